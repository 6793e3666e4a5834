/* The CUDA symbol tables, the prelude and the emulated driver, NVRTC and cuBLASLt, through the tables that the library uses. By
 * default the libraries of REPRISE_CUDASIM_DIR are driven. With REPRISE_TEST_REAL_CUDA=1 the installed ones are, and the tests that need
 * the emulator (poison, failure on demand, deliberately wrong kernels) are skipped with a line each: so the rest shows
 * that the emulator answers as a GPU does. */
/* ctest: labels=cuda timeout=240 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>

#include "cudasim/cudasim.h"
#include "device/cuda/libcuda.h"
#include "device/cuda/libnvrtc.h"
#include "kernel/cuda/libcublaslt.h"
#include "reprise_embed.h"

static const rp__libcuda *cu;
static const rp__libnvrtc *rtc;
static const rp__libcublaslt *lt;
static bool real; /* a GPU, not the emulator */
static CUcontext ctx;
static char architecture[32];

static struct {
    void (*seed)(unsigned long long);
    void (*fail_after)(unsigned long long, int);
    void (*counters)(cudasim_counters *);
    void (*reset_error)(void);
    int (*last_text)(char *, unsigned int);
} sim;

#define SEEDS 6 /* orders that each order-dependent test tries */

static CUresult shown(CUresult result, const char *expression, int line) {
    if (result != CUDA_SUCCESS) {
        const char *name = NULL;
        cu->cuGetErrorName(result, &name);
        print_message("line %d: %s -> %d %s\n", line, expression, (int)result, name ? name : "");
    }
    return result;
}
#define OK(expression) assert_int_equal(shown((expression), #expression, __LINE__), CUDA_SUCCESS)
#define FAILS(code, expression) assert_int_equal((expression), (code))
#define NEEDS_EMULATOR() \
    do { \
        if (real) { \
            print_message("skipped on a GPU: needs the emulator\n"); \
            skip(); \
        } \
    } while (0)

static void seed(unsigned long long n) {
    if (!real) {
        sim.seed(n);
    }
}

/* ---- Compiling ---- */

static char *with_prelude(const char *kernels) {
    size_t n = strlen(rp__embed_prelude_cuh) + strlen(kernels) + 256;
    char *text = malloc(n);
    assert_non_null(text);
    snprintf(text, n, "#define RP_PRELUDE_CONDITIONAL 1\n/* rp-prelude begin */\n%s/* rp-prelude end */\n%s", rp__embed_prelude_cuh, kernels);
    return text;
}

static nvrtcResult compile_with(const rp__libnvrtc *r, const char *source, const char *arch, char **image, char **log) {
    nvrtcProgram program;
    const char *const options[] = { arch, "-default-device", "--fmad=false" };
    size_t n;
    assert_int_equal(r->nvrtcCreateProgram(&program, source, "test.cu", 0, NULL, NULL), NVRTC_SUCCESS);
    nvrtcResult result = r->nvrtcCompileProgram(program, 3, options);
    assert_int_equal(r->nvrtcGetProgramLogSize(program, &n), NVRTC_SUCCESS);
    *log = malloc(n + 1);
    assert_int_equal(r->nvrtcGetProgramLog(program, *log), NVRTC_SUCCESS);
    *image = NULL;
    if (result == NVRTC_SUCCESS) {
        assert_int_equal(r->nvrtcGetCUBINSize(program, &n), NVRTC_SUCCESS);
        assert_true(n > 0);
        *image = malloc(n);
        assert_int_equal(r->nvrtcGetCUBIN(program, *image), NVRTC_SUCCESS);
    }
    assert_int_equal(r->nvrtcDestroyProgram(&program), NVRTC_SUCCESS);
    return result;
}

static CUlibrary load(const char *kernels) {
    char *source = with_prelude(kernels), *image, *log;
    nvrtcResult result = compile_with(rtc, source, architecture, &image, &log);
    if (result != NVRTC_SUCCESS) {
        print_message("%s\n", log);
    }
    assert_int_equal(result, NVRTC_SUCCESS);
    CUlibrary library;
    OK(cu->cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    free(source);
    free(image);
    free(log);
    return library;
}

static CUfunction function_of(CUlibrary library, const char *name) {
    CUkernel kernel;
    CUfunction function;
    OK(cu->cuLibraryGetKernel(&kernel, library, name));
    OK(cu->cuKernelGetFunction(&function, kernel));
    return function;
}

/* The kernels of most tests, compiled once. */
static const char kernels[] =
    "typedef struct { float *out; const float *in; rp_i64 n; float scale; rp_u8 flag; } args;\n"
    "extern \"C\" __global__ void __launch_bounds__(256) scale(args a) {\n"
    "    rp_i64 i = (rp_i64)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    rp_grid_wait();\n"
    "    if (i < a.n) { a.out[i] = a.in[i] * a.scale + (a.flag ? 1.0f : 0.0f); }\n"
    "    rp_launch_dependents();\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(256) scale_no_wait(args a) {\n"
    "    rp_i64 i = (rp_i64)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < a.n) { a.out[i] = a.in[i] * a.scale; }\n"
    "}\n"
    "extern \"C\" __global__ void axpy(float *y, const float *x, float a, int n) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) { y[i] = y[i] + a * x[i]; }\n"
    "}\n"
    /* Sum of a block: shuffles, then a static exchange, then one atomic. */
    "extern \"C\" __global__ void __launch_bounds__(256) sum(float *out, const float *in, int n) {\n"
    "    __shared__ float part[8];\n"
    "    float v = 0.0f;\n"
    "    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) { v += in[i]; }\n"
    "    for (int m = 16; m > 0; m >>= 1) { v += rp_shfl_xor_f32(v, m, 32); }\n"
    "    if (rp_lane() == 0) { part[threadIdx.x / 32] = v; }\n"
    "    rp_barrier();\n"
    "    if (threadIdx.x < 32) {\n"
    "        v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;\n"
    "        for (int d = 4; d > 0; d >>= 1) { v += rp_shfl_down_f32(v, d, 32); }\n"
    "        if (threadIdx.x == 0) { rp_atomic_add_f32(out, v); }\n"
    "    }\n"
    "}\n"
    /* Reverses a block's stretch through dynamic shared memory. */
    "extern \"C\" __global__ void reverse(int *p) {\n"
    "    extern __shared__ int tile[];\n"
    "    int base = blockIdx.x * blockDim.x;\n"
    "    tile[threadIdx.x] = p[base + threadIdx.x];\n"
    "    rp_barrier();\n"
    "    p[base + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];\n"
    "}\n"
    /* The last block to arrive writes the sum of all blocks' numbers; the ticket resets itself. */
    "extern \"C\" __global__ void ticket(rp_u32 *ticket, rp_u32 *parts, rp_u32 *out) {\n"
    "    __shared__ int last;\n"
    "    if (threadIdx.x == 0) {\n"
    "        parts[blockIdx.x] = blockIdx.x + 1;\n"
    "        rp_threadfence();\n"
    "        last = rp_atomic_inc_u32(ticket, gridDim.x - 1) == gridDim.x - 1;\n"
    "    }\n"
    "    rp_barrier();\n"
    "    if (last && threadIdx.x == 0) {\n"
    "        rp_u32 s = 0;\n"
    "        rp_threadfence();\n"
    "        for (rp_u32 i = 0; i < gridDim.x; i++) { s += rp_ld_acquire_u32(&parts[i]); }\n"
    "        *out = s;\n"
    "    }\n"
    "}\n"
    "extern \"C\" __global__ void count(int *n) { rp_atomic_add_i32(n, 1); }\n"
    "extern \"C\" __global__ void countdown(int *n, rp_u64 handle) {\n"
    "    int left = *n - 1;\n"
    "    *n = left;\n"
    "    rp_set_conditional(handle, left > 0);\n"
    "}\n"
    "extern \"C\" __global__ void choose(rp_u64 handle, rp_u32 value) { rp_set_conditional(handle, value); }\n"
    "extern \"C\" __global__ void put(int *p, int v) { rp_grid_wait(); *p = v; rp_launch_dependents(); }\n"
    "extern \"C\" __global__ void append(int *list, int *n, int v) { list[*n] = v; *n = *n + 1; }\n"
    "__device__ int device_number = 41;\n"
    "extern \"C\" __global__ void bump(int *out) { device_number += 1; *out = device_number; }\n";

static CUlibrary common;
static CUstream stream;

static CUfunction fn(const char *name) {
    return function_of(common, name);
}

typedef struct args {
    CUdeviceptr out, in;
    int64_t n;
    float scale;
    uint8_t flag;
} args;

static CUdeviceptr device_alloc(size_t bytes) {
    CUdeviceptr p;
    OK(cu->cuMemAlloc(&p, bytes));
    return p;
}

static void launch(const char *name, unsigned int grid, unsigned int block, unsigned int shared, CUstream s, void **params) {
    OK(cu->cuLaunchKernel(fn(name), grid, 1, 1, block, 1, 1, shared, s, params, NULL));
}

static void launch_put(CUdeviceptr p, int v, CUstream s) {
    void *params[] = { &p, &v };
    launch("put", 1, 1, 0, s, params);
}

static int read_int(CUdeviceptr p) {
    int v;
    OK(cu->cuMemcpyDtoH(&v, p, sizeof v));
    return v;
}

static void write_int(CUdeviceptr p, int v) {
    OK(cu->cuMemcpyHtoD(p, &v, sizeof v));
}

/* ---- Set-up ---- */

static int start(void **state) {
    (void)state;
    const char *folder = getenv("REPRISE_CUDASIM_DIR"), *wanted = getenv("REPRISE_TEST_REAL_CUDA");
    real = wanted && *wanted == '1';
    if (!real) {
        char path[1024];
        if (!folder) {
            print_message("REPRISE_CUDASIM_DIR is not set\n");
            return -1;
        }
        snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
        setenv("REPRISE_LIBCUDA", path, 1);
        snprintf(path, sizeof path, "%s/libnvrtc.so.13", folder);
        setenv("REPRISE_LIBNVRTC", path, 1);
        snprintf(path, sizeof path, "%s/libcublasLt.so.13", folder);
        setenv("REPRISE_LIBCUBLASLT", path, 1);
        setenv("CUDASIM_QUIET", "1", 1);
    }
    cu = rp__libcuda_get();
    rtc = rp__libnvrtc_get();
    lt = rp__libcublaslt_get();
    if (!cu || !rtc || !lt) {
        char text[8192];
        rp__libcuda_report(text, sizeof text);
        print_message("%s", text);
        rp__libnvrtc_report(text, sizeof text);
        print_message("%s", text);
        rp__libcublaslt_report(text, sizeof text);
        print_message("%s", text);
        return -1;
    }
    if (!real) {
        void *library = dlopen(getenv("REPRISE_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
        *(void **)&sim.seed = dlsym(library, "cudasim_seed");
        *(void **)&sim.fail_after = dlsym(library, "cudasim_fail_after");
        *(void **)&sim.counters = dlsym(library, "cudasim_get_counters");
        *(void **)&sim.reset_error = dlsym(library, "cudasim_reset_error");
        *(void **)&sim.last_text = dlsym(library, "cudasim_last_text");
    }
    int major = 0, minor = 0;
    OK(cu->cuInit(0));
    OK(cu->cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cu->cuCtxSetCurrent(ctx));
    OK(cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    OK(cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    snprintf(architecture, sizeof architecture, "-arch=sm_%d%d", major, minor);
    common = load(kernels);
    OK(cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    return 0;
}

static int stop(void **state) {
    (void)state;
    OK(cu->cuStreamDestroy(stream));
    OK(cu->cuLibraryUnload(common));
    if (!real) {
        cudasim_counters c;
        sim.counters(&c);
        assert_int_equal(c.live_allocations + c.live_pinned + c.live_physical + c.live_reservations, 0);
        assert_int_equal(c.live_streams + c.live_events + c.live_libraries + c.live_graphs + c.live_execs, 0);
        assert_true(c.device_bytes == 0);
    }
    OK(cu->cuDevicePrimaryCtxRelease(0));
    return 0;
}

/* After a test that lost the context on purpose. */
static void recover(CUresult code) {
    assert_int_equal(cu->cuStreamSynchronize(stream), code);
    sim.reset_error();
}

/* ---- Symbol tables ---- */

static void test_tables(void **state) {
    (void)state;
    char text[8192];
    assert_true(rp__libcuda_report(text, sizeof text) > 0);
    assert_non_null(strstr(text, "libcuda"));
    rp__libnvrtc_report(text, sizeof text);
    assert_non_null(strstr(text, "libnvrtc"));
    rp__libcublaslt_report(text, sizeof text);
    assert_non_null(strstr(text, "libcublasLt"));
    int version, major, minor, count;
    OK(cu->cuDriverGetVersion(&version));
    assert_true(version >= 12040);
    assert_int_equal(rtc->nvrtcVersion(&major, &minor), NVRTC_SUCCESS);
    assert_true(major >= 12);
    assert_int_equal(rtc->nvrtcGetNumSupportedArchs(&count), NVRTC_SUCCESS);
    int *archs = calloc((size_t)count, sizeof *archs);
    assert_int_equal(rtc->nvrtcGetSupportedArchs(archs), NVRTC_SUCCESS);
    bool has90 = false;
    for (int i = 0; i < count; i++) {
        has90 = has90 || archs[i] == 90;
    }
    free(archs);
    assert_true(has90);
    void *p = NULL;
    CUdriverProcAddressQueryResult status;
    OK(cu->cuGetProcAddress("cuMemAlloc", &p, 12040, 0, &status));
    assert_true(p != NULL && status == CU_GET_PROC_ADDRESS_SUCCESS);
}

static void test_device(void **state) {
    (void)state;
    int count, value;
    char name[128];
    size_t total, free_bytes;
    CUdevice device;
    CUcontext current;
    OK(cu->cuDeviceGetCount(&count));
    assert_true(count >= 1);
    FAILS(CUDA_ERROR_INVALID_DEVICE, cu->cuDeviceGet(&device, count));
    OK(cu->cuDeviceGet(&device, 0));
    OK(cu->cuDeviceGetName(name, sizeof name, device));
    assert_true(strlen(name) > 0);
    OK(cu->cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    assert_int_equal(value, 32);
    OK(cu->cuDeviceTotalMem(&total, device));
    OK(cu->cuMemGetInfo(&free_bytes, &total));
    assert_true(free_bytes <= total && free_bytes > 0);
    OK(cu->cuCtxGetCurrent(&current));
    assert_ptr_equal(current, ctx);
    OK(cu->cuCtxPushCurrent(ctx));
    OK(cu->cuCtxPopCurrent(&current));
    assert_ptr_equal(current, ctx);
    if (!real) {
        OK(cu->cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
        assert_int_equal(value, 132);
        OK(cu->cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
        assert_int_equal(value, 232448);
    }
}

/* ---- Memory ---- */

static void test_memory(void **state) {
    (void)state;
    CUdeviceptr p = device_alloc(1000), q = device_alloc(1000), start_addr;
    unsigned char host[1000], back[1000];
    unsigned int type;
    size_t size;
    int ordinal;
    assert_int_equal(p % 256, 0);
    for (size_t i = 0; i < sizeof host; i++) {
        host[i] = (unsigned char)(i * 7);
    }
    OK(cu->cuMemcpyHtoD(p, host, sizeof host));
    OK(cu->cuMemcpyDtoDAsync(q, p, sizeof host, stream));
    OK(cu->cuMemcpyDtoHAsync(back, q, sizeof back, stream));
    OK(cu->cuStreamSynchronize(stream));
    assert_memory_equal(host, back, sizeof host);
    OK(cu->cuMemsetD8Async(q, 0x5a, 10, stream));
    OK(cu->cuMemsetD32Async(q + 12, 0x01020304, 2, stream));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(back, q, 32));
    assert_int_equal(back[9], 0x5a);
    assert_int_equal(back[10], host[10]);
    assert_int_equal(back[12], 4);
    assert_int_equal(back[19], 1);
    assert_int_equal(back[20], host[20]);
    OK(cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    OK(cu->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    assert_int_equal(ordinal, 0);
    OK(cu->cuPointerGetAttribute(&start_addr, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 5));
    OK(cu->cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 5));
    assert_true(start_addr == p && size == 1000);
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)host));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuMemAlloc(&start_addr, 0));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cu->cuMemAlloc(&start_addr, (size_t)1 << 46));
    OK(cu->cuMemFree(p));
    OK(cu->cuMemFree(q));
    OK(cu->cuMemFree(0));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuMemFree(p));
    /* Pinned memory is one address for both sides. */
    int *pinned;
    CUdeviceptr of_pinned;
    OK(cu->cuMemHostAlloc((void **)&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cu->cuMemHostGetDevicePointer(&of_pinned, pinned, 0));
    launch_put(of_pinned + 8, 77, stream);
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(pinned[2], 77);
    OK(cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)pinned));
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    OK(cu->cuMemFreeHost(pinned));
}

static void test_virtual_memory(void **state) {
    (void)state;
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
    CUmemAccessDesc access = { .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemGenericAllocationHandle a, b;
    CUdeviceptr va;
    size_t g;
    OK(cu->cuMemGetAllocationGranularity(&g, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cu->cuMemAddressReserve(&va, 4 * g, 0, 0, 0));
    OK(cu->cuMemCreate(&a, g, &prop, 0));
    OK(cu->cuMemCreate(&b, g, &prop, 0));
    OK(cu->cuMemMap(va, g, 0, a, 0));
    OK(cu->cuMemMap(va + g, g, 0, b, 0));
    OK(cu->cuMemSetAccess(va, 2 * g, &access, 1));
    OK(cu->cuMemRelease(a)); /* the mapping keeps it */
    launch_put(va + g - 4, 5, stream);
    launch_put(va + g, 6, stream);
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(va + g - 4), 5);
    assert_int_equal(read_int(va + g), 6);
    char both[8];
    OK(cu->cuMemcpyDtoH(both, va + g - 4, 8)); /* across two mappings */
    OK(cu->cuMemUnmap(va, g));
    /* The same memory elsewhere: its bytes are still there. */
    OK(cu->cuMemUnmap(va + g, g));
    OK(cu->cuMemMap(va + 2 * g, g, 0, b, 0));
    OK(cu->cuMemSetAccess(va + 2 * g, g, &access, 1));
    assert_int_equal(read_int(va + 2 * g), 6);
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuMemcpyDtoH(both, va, 8));
    OK(cu->cuMemUnmap(va + 2 * g, g));
    OK(cu->cuMemRelease(b));
    OK(cu->cuMemAddressFree(va, 4 * g));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuMemCreate(&a, g + 1, &prop, 0));
}

static void test_poison_and_bounds(void **state) {
    (void)state;
    NEEDS_EMULATOR();
    CUdeviceptr p = device_alloc(100), q;
    float f;
    OK(cu->cuMemcpyDtoH(&f, p, sizeof f));
    assert_true(isnan(f)); /* fresh memory is no zero */
    /* One element behind the end, in the red zone. */
    launch_put(p + 100, 1, stream);
    recover(CUDA_ERROR_ILLEGAL_ADDRESS);
    char text[512];
    sim.last_text(text, sizeof text);
    assert_non_null(strstr(text, "behind an allocation of 100 bytes"));
    /* Far behind it: the guard page. */
    launch_put(p + 256, 1, stream);
    recover(CUDA_ERROR_ILLEGAL_ADDRESS);
    sim.last_text(text, sizeof text);
    assert_non_null(strstr(text, "kernel put"));
    /* After free. */
    OK(cu->cuMemFree(p));
    launch_put(p, 1, stream);
    recover(CUDA_ERROR_ILLEGAL_ADDRESS);
    /* A sticky error meets every later call until the context goes. */
    launch_put(0, 1, stream);
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cu->cuStreamSynchronize(stream));
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cu->cuMemAlloc(&q, 16));
    sim.reset_error();
}

/* ---- Kernels ---- */

static void test_launch(void **state) {
    (void)state;
    enum { N = 1000 };
    float host[N];
    CUdeviceptr in = device_alloc(sizeof host), out = device_alloc(sizeof host);
    for (int i = 0; i < N; i++) {
        host[i] = (float)i;
    }
    OK(cu->cuMemcpyHtoD(in, host, sizeof host));
    args a = { out, in, N, 0.5f, 1 };
    void *params[] = { &a };
    launch("scale", 4, 256, 0, stream, params);
    a.scale = 99.0f; /* parameters were copied */
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(host, out, sizeof host));
    for (int i = 0; i < N; i++) {
        assert_true(host[i] == (float)i * 0.5f + 1.0f);
    }
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuLaunchKernel(fn("scale"), 0, 1, 1, 256, 1, 1, 0, stream, params, NULL));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuLaunchKernel(fn("scale"), 1, 1, 1, 2048, 1, 1, 0, stream, params, NULL));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuLaunchKernel(fn("scale"), 1, 65536, 1, 1, 1, 1, 0, stream, params, NULL));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuLaunchKernel(fn("scale"), 1, 1, 1, 1, 1, 1, 300000, stream, params, NULL));
    size_t offset, size;
    OK(cu->cuFuncGetParamInfo(fn("axpy"), 3, &offset, &size));
    assert_true(offset == 20 && size == 4);
    OK(cu->cuFuncGetParamInfo(fn("scale"), 0, &offset, &size));
    assert_true(offset == 0 && size == sizeof(args));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuFuncGetParamInfo(fn("scale"), 1, &offset, &size));
    int value;
    OK(cu->cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, fn("scale")));
    assert_int_equal(value, 256);
    OK(cu->cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, fn("sum")));
    assert_int_equal(value, 32);
    OK(cu->cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, fn("scale"), 256, 0));
    assert_int_equal(value, 8);
    OK(cu->cuMemFree(in));
    OK(cu->cuMemFree(out));
}

static void test_shared_and_shuffles(void **state) {
    (void)state;
    enum { N = 10000 };
    float *host = malloc(N * sizeof *host);
    double expected = 0;
    for (int i = 0; i < N; i++) {
        host[i] = (float)(i % 7); /* sums of small integers are exact in any order */
        expected += host[i];
    }
    CUdeviceptr in = device_alloc(N * sizeof *host), out = device_alloc(4), numbers = device_alloc(4 * 512);
    OK(cu->cuMemcpyHtoD(in, host, N * sizeof *host));
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        float result;
        int ints[512], n = N;
        seed(s);
        OK(cu->cuMemsetD32Async(out, 0, 1, stream));
        void *params[] = { &out, &in, &n };
        launch("sum", 5, 256, 0, stream, params);
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(&result, out, 4));
        assert_true(result == (float)expected);
        for (int i = 0; i < 512; i++) {
            ints[i] = i;
        }
        OK(cu->cuMemcpyHtoD(numbers, ints, sizeof ints));
        void *reverse_params[] = { &numbers };
        launch("reverse", 4, 128, 128 * 4, stream, reverse_params);
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(ints, numbers, sizeof ints));
        for (int i = 0; i < 512; i++) {
            assert_int_equal(ints[i], i / 128 * 128 + 127 - i % 128);
        }
        OK(cu->cuMemsetD32Async(numbers, 0, 512, stream));
        CUdeviceptr parts = numbers + 16, answer = numbers + 4;
        void *ticket_params[] = { &numbers, &parts, &answer };
        for (int again = 0; again < 2; again++) {
            launch("ticket", 40, 64, 0, stream, ticket_params);
        }
        OK(cu->cuStreamSynchronize(stream));
        assert_int_equal(read_int(answer), 40 * 41 / 2);
        assert_int_equal(read_int(numbers), 0);
    }
    free(host);
    OK(cu->cuMemFree(in));
    OK(cu->cuMemFree(out));
    OK(cu->cuMemFree(numbers));
}

static const char functions[] =
    "extern \"C\" __global__ void shuffles(int *out) {\n"
    "    int t = threadIdx.x, v = t * 10;\n"
    "    out[t] = rp_shfl_xor_i32(v, 1, 32);\n"
    "    out[32 + t] = rp_shfl_down_i32(v, 3, 8);\n"
    "    out[64 + t] = rp_shfl_up_i32(v, 2, 16);\n"
    "    out[96 + t] = rp_shfl_idx_i32(v, 5, 8);\n"
    "    out[128 + t] = (int)rp_ballot(t % 3 == 0);\n"
    "    out[160 + t] = rp_any(t == 9) * 2 + rp_all(t < 31);\n"
    "    double d = rp_shfl_xor_f64(t + 0.5, 16, 32);\n"
    "    rp_i64 w = rp_shfl_idx_i64((rp_i64)t << 40, 7, 32);\n"
    "    out[192 + t] = (int)(d * 2) + (int)(w >> 40) * 1000;\n"
    "}\n"
    "extern \"C\" __global__ void convert(rp_u32 *bits) {\n" /* every f16 and every upper half of an f32 */
    "    rp_u32 i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    float f = rp_cvt_f16_to_f32((rp_u16)i);\n"
    "    bits[i] = rp_isnan_f32(f) ? 0x7fc00000u : rp_f32_bits(f);\n"
    "    float g = rp_bits_f32(i << 16 | (i * 40503u & 0xffffu));\n"
    "    bits[65536 + i] = rp_cvt_f32_to_f16(g) | (rp_u32)rp_cvt_f32_to_bf16(g) << 16;\n"
    "}\n"
    "extern \"C\" __global__ void integers(rp_i64 *o) {\n"
    "    o[0] = rp_mulhi_u32(0xffffffffu, 0xfffffffeu);\n"
    "    o[1] = (rp_i64)rp_mulhi_u64(0xffffffffffffffffull, 3);\n"
    "    o[2] = rp_clz(0x10000u) * 100 + rp_clz(0);\n"
    "    o[3] = rp_clz_u64(1) * 100 + rp_clz_u64(0);\n"
    "    o[4] = rp_popc(0xf0f0u) * 100 + rp_popc_u64(~0ull);\n"
    "    o[5] = rp_brev_u32(1);\n"
    "    o[6] = rp_cvt_f32_to_i32(3e9f);\n"
    "    o[7] = rp_cvt_f32_to_i32(-2.9f);\n"
    "    o[8] = rp_cvt_f64_to_i64(1e300);\n"
    "    o[9] = rp_cvt_f32_to_i64(rp_bits_f32(0x7fc00000u));\n"
    "    o[10] = rp_cvt_f64_to_i32(-1e10);\n"
    "    o[11] = rp_max_f32(rp_bits_f32(0x7fc00000u), 1.0f) == 1.0f;\n"
    "    o[12] = rp_fmax_f32(rp_bits_f32(0x7fc00000u), 1.0f) == 1.0f;\n"
    "    o[13] = rp_isinf_f64(-1.0 / 0.0) * 10 + rp_isfinite_f32(3.0f);\n"
    "    o[14] = rp_cvt_f32_to_tf32(rp_bits_f32(0x3f801000u));\n"
    "    float s, c;\n"
    "    rp_sincos_f32(0.0f, &s, &c);\n"
    "    o[15] = (rp_i64)(s * 10 + c);\n"
    "}\n"
    "extern \"C\" __global__ void mma(float *d, const rp_u16 *a, const rp_u16 *b, const float *a32, const float *b32, float *d32) {\n"
    "    __shared__ rp_u16 ta[16 * 16];\n"
    "    __shared__ __align__(16) rp_u16 tb[16 * 8];\n"
    "    int t = threadIdx.x, g = t / 4, q = t % 4;\n"
    "    rp_cp_async_16(&ta[t * 8], &a[t * 8]);\n"
    "    if (t < 16) { rp_cp_async_16(&tb[t * 8], &b[t * 8]); }\n"
    "    rp_cp_async_commit();\n"
    "    rp_cp_async_wait(0);\n"
    "    rp_barrier();\n"
    "    rp_u32 fa[4], fb[2];\n"
    "    float acc[4] = { 0, 0, 0, 0 };\n"
    "    rp_ldmatrix_x4(fa, &ta[(t % 16) * 16 + t / 16 * 8]);\n" /* row-major 16 x 16 */
    "    rp_ldmatrix_x2_trans(fb, &tb[(t % 16) * 8]);\n"         /* row-major 16 x 8, wanted by columns */
    "    rp_mma_m16n8k16_f16(acc, fa, fb);\n"
    "    d[g * 8 + 2 * q] = acc[0]; d[g * 8 + 2 * q + 1] = acc[1];\n"
    "    d[(g + 8) * 8 + 2 * q] = acc[2]; d[(g + 8) * 8 + 2 * q + 1] = acc[3];\n"
    "    rp_u32 ra[4] = { rp_f32_bits(a32[g * 8 + q]), rp_f32_bits(a32[(g + 8) * 8 + q]), rp_f32_bits(a32[g * 8 + q + 4]),\n"
    "                     rp_f32_bits(a32[(g + 8) * 8 + q + 4]) };\n"
    "    rp_u32 rb[2] = { rp_f32_bits(b32[q * 8 + g]), rp_f32_bits(b32[(q + 4) * 8 + g]) };\n"
    "    float e[4] = { 1, 1, 1, 1 };\n"
    "    rp_mma_m16n8k8_tf32(e, ra, rb);\n"
    "    d32[g * 8 + 2 * q] = e[0]; d32[g * 8 + 2 * q + 1] = e[1];\n"
    "    d32[(g + 8) * 8 + 2 * q] = e[2]; d32[(g + 8) * 8 + 2 * q + 1] = e[3];\n"
    "}\n"
    "extern \"C\" __global__ void atomics(rp_u32 *u, float *f, double *d, rp_u64 *w, rp_u16 *h) {\n"
    "    int t = threadIdx.x + blockIdx.x * blockDim.x;\n"
    "    rp_atomic_add_u32(&u[0], t);\n"
    "    rp_atomic_max_i32((rp_i32 *)&u[1], t - 100);\n"
    "    rp_atomic_min_u32(&u[2], t + 3);\n"
    "    rp_atomic_or_u32(&u[3], 1u << (t % 32));\n"
    "    rp_atomic_xor_u32(&u[4], t);\n"
    "    rp_atomic_add_f32(&f[0], 1.0f);\n"
    "    rp_atomic_max_f32(&f[1], (float)t);\n"
    "    rp_atomic_min_f32(&f[2], -(float)t);\n"
    "    rp_atomic_add_f64(&d[0], 0.5);\n"
    "    rp_atomic_add_u64(&w[0], 1ull << 33);\n"
    "    rp_atomic_add_f16(&h[0], 0x3c00);\n"
    "    rp_atomic_add_bf16(&h[2], 0x3f80);\n"
    "    rp_u32 seen = *(volatile rp_u32 *)&u[5], old;\n"
    "    do { old = seen; seen = rp_atomic_cas_u32(&u[5], old, old + 2); } while (seen != old);\n"
    "}\n"
    /* Blocks wait for each other in a chain through flags in memory. */
    "extern \"C\" __global__ void chain(rp_u32 *flag) {\n"
    "    if (threadIdx.x == 0) {\n"
    "        while (rp_ld_acquire_u32(flag) != gridDim.x - 1 - blockIdx.x) { rp_spin_pause(); }\n"
    "        rp_st_release_u32(flag, gridDim.x - blockIdx.x);\n"
    "    }\n"
    "    rp_barrier();\n"
    "}\n";

static int clz32(uint32_t v) {
    int n = 0;
    while (n < 32 && !(v >> (31 - n) & 1)) {
        n++;
    }
    return n;
}

/* Nearest even by exact arithmetic in double: the neighbours of x among values with `bits` of mantissa and least exponent `low`. */
static uint32_t round_to(float x, int mantissa, int exponent_bits) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 31 << (mantissa + exponent_bits);
    int bias = (1 << (exponent_bits - 1)) - 1;
    double m = fabs((double)x);
    if (isnan(x)) {
        return 0x7fff;
    }
    int e = m == 0 || isinf(m) ? 0 : ilogb(m);
    if (m != 0 && !isinf(m) && e < 1 - bias) {
        e = 1 - bias;
    }
    double ulp = ldexp(1.0, e - mantissa), steps = isinf(m) ? 0 : nearbyint(m / ulp);
    double r = steps * ulp;
    if (isinf(m) || r >= ldexp(1.0, bias + 1)) {
        return sign | ((1u << exponent_bits) - 1) << mantissa;
    }
    if (r == 0) {
        return sign;
    }
    int re = ilogb(r) < 1 - bias ? 1 - bias : ilogb(r);
    uint32_t significand = (uint32_t)(r / ldexp(1.0, re - mantissa));
    uint32_t field = significand >> mantissa ? (uint32_t)(re + bias) : 0;
    return sign | field << mantissa | (significand & ((1u << mantissa) - 1));
}

static void test_prelude_functions(void **state) {
    (void)state;
    CUlibrary library = load(functions);
    CUdeviceptr p = device_alloc(65536 * 8);
    void *params[] = { &p };
    int out[224];
    seed(3);
    OK(cu->cuLaunchKernel(function_of(library, "shuffles"), 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(out, p, sizeof out));
    uint32_t votes = 0;
    for (int t = 0; t < 32; t++) {
        votes |= t % 3 == 0 ? 1u << t : 0;
    }
    for (int t = 0; t < 32; t++) {
        assert_int_equal(out[t], (t ^ 1) * 10);
        assert_int_equal(out[32 + t], (t % 8 + 3 < 8 ? t + 3 : t) * 10);
        assert_int_equal(out[64 + t], (t % 16 >= 2 ? t - 2 : t) * 10);
        assert_int_equal(out[96 + t], (t / 8 * 8 + 5) * 10);
        assert_int_equal((uint32_t)out[128 + t], votes);
        assert_int_equal(out[160 + t], 2);
        assert_int_equal(out[192 + t], (t ^ 16) * 2 + 1 + 7000);
    }
    /* Conversions against exact arithmetic. */
    uint32_t *bits = malloc(65536 * 8);
    OK(cu->cuLaunchKernel(function_of(library, "convert"), 256, 1, 1, 256, 1, 1, 0, stream, params, NULL));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(bits, p, 65536 * 8));
    for (uint32_t i = 0; i < 65536; i++) {
        float f, g;
        memcpy(&f, &bits[i], 4);
        uint32_t e = i >> 10 & 31, m = i & 0x3ff, from = i << 16 | (i * 40503u & 0xffffu);
        double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, (int)e - 25);
        if (e == 31) {
            assert_true(m ? isnan(f) : isinf(f) && (f < 0) == (i >> 15 != 0));
        } else {
            assert_true((double)f == (i >> 15 ? -v : v));
        }
        memcpy(&g, &from, 4);
        assert_int_equal(bits[65536 + i] & 0xffff, round_to(g, 10, 5));
        assert_int_equal(bits[65536 + i] >> 16, round_to(g, 7, 8));
    }
    free(bits);
    int64_t o[16];
    OK(cu->cuLaunchKernel(function_of(library, "integers"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(o, p, sizeof o));
    const int64_t expected[16] = { 0xfffffffd, 2, clz32(0x10000) * 100 + 32, 6364, 864, 0x80000000, 2147483647, -2, INT64_MAX, 0,
                                   INT32_MIN, 0, 1, 11, 0x3f802000, 1 };
    for (int i = 0; i < 16; i++) {
        assert_true(o[i] == expected[i]);
    }
    /* Tensor cores: small integers, so exact. */
    uint16_t a[256], b[128];
    float a32[128], b32[64], d[128], d32[128];
    for (int i = 0; i < 256; i++) {
        a[i] = (uint16_t)(0x3c00 + (i * 5 % 4) * 0x100); /* 1, 1.25, 1.5, 1.75 */
    }
    for (int i = 0; i < 128; i++) {
        b[i] = (uint16_t)(0x4000 + (i * 3 % 4) * 0x100); /* 2, 2.5, 3, 3.5 */
        a32[i] = (float)(i % 9) - 4;
    }
    for (int i = 0; i < 64; i++) {
        b32[i] = (float)(i % 5) - 2;
    }
    CUdeviceptr pa = p, pb = p + 1024, pa32 = p + 2048, pb32 = p + 4096, pd = p + 8192, pd32 = p + 16384;
    OK(cu->cuMemcpyHtoD(pa, a, sizeof a));
    OK(cu->cuMemcpyHtoD(pb, b, sizeof b));
    OK(cu->cuMemcpyHtoD(pa32, a32, sizeof a32));
    OK(cu->cuMemcpyHtoD(pb32, b32, sizeof b32));
    void *mma_params[] = { &pd, &pa, &pb, &pa32, &pb32, &pd32 };
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        OK(cu->cuLaunchKernel(function_of(library, "mma"), 1, 1, 1, 32, 1, 1, 0, stream, mma_params, NULL));
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(d, pd, sizeof d));
        OK(cu->cuMemcpyDtoH(d32, pd32, sizeof d32));
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 8; j++) {
                float sum = 0, sum32 = 1;
                for (int k = 0; k < 16; k++) {
                    sum += (1.0f + 0.25f * (float)((i * 16 + k) * 5 % 4)) * (2.0f + 0.5f * (float)((k * 8 + j) * 3 % 4));
                }
                for (int k = 0; k < 8; k++) {
                    sum32 += a32[i * 8 + k] * b32[k * 8 + j];
                }
                assert_true(d[i * 8 + j] == sum);
                assert_true(d32[i * 8 + j] == sum32);
            }
        }
    }
    /* Atomics: 8 blocks of 64. */
    uint32_t u[6] = { 0, 0, 1000, 0, 0, 0 };
    float f[3] = { 0, -1, 1 };
    double zero = 0;
    uint64_t w = 0;
    uint16_t h[4] = { 0, 0, 0, 0 };
    CUdeviceptr pu = p, pf = p + 64, pdd = p + 128, pw = p + 192, ph = p + 256;
    OK(cu->cuMemcpyHtoD(pu, u, sizeof u));
    OK(cu->cuMemcpyHtoD(pf, f, sizeof f));
    OK(cu->cuMemcpyHtoD(pdd, &zero, sizeof zero));
    OK(cu->cuMemcpyHtoD(pw, &w, sizeof w));
    OK(cu->cuMemcpyHtoD(ph, h, sizeof h));
    void *atomic_params[] = { &pu, &pf, &pdd, &pw, &ph };
    OK(cu->cuLaunchKernel(function_of(library, "atomics"), 8, 1, 1, 64, 1, 1, 0, stream, atomic_params, NULL));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(u, pu, sizeof u));
    OK(cu->cuMemcpyDtoH(f, pf, sizeof f));
    OK(cu->cuMemcpyDtoH(&zero, pdd, sizeof zero));
    OK(cu->cuMemcpyDtoH(&w, pw, sizeof w));
    OK(cu->cuMemcpyDtoH(h, ph, sizeof h));
    assert_int_equal(u[0], 511 * 512 / 2);
    assert_int_equal(u[1], 411);
    assert_int_equal(u[2], 3);
    assert_true(u[3] == 0xffffffffu);
    assert_int_equal(u[4], 0);
    assert_int_equal(u[5], 1024);
    assert_true(f[0] == 512 && f[1] == 511 && f[2] == -511 && zero == 256 && w == (uint64_t)512 << 33);
    assert_int_equal(h[0], 0x6000); /* 512 */
    assert_int_equal(h[2], 0x4380); /* 256: bf16 stops counting there */
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        write_int(p, 0);
        OK(cu->cuLaunchKernel(function_of(library, "chain"), 20, 1, 1, 64, 1, 1, 0, stream, params, NULL));
        OK(cu->cuStreamSynchronize(stream));
        assert_int_equal(read_int(p), 20);
    }
    OK(cu->cuMemFree(p));
    OK(cu->cuLibraryUnload(library));
}
