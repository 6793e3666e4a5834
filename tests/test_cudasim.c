/* The CUDA symbol tables, the prelude and the emulated driver, NVRTC and cuBLASLt, through the tables that the library
 * uses. By default the libraries of REPRISE_CUDASIM_DIR are driven. With REPRISE_TEST_REAL_CUDA=1 the installed ones
 * are, and the tests that need the emulator (poison, failure on demand, deliberately wrong kernels) are skipped with a
 * line each: so the rest shows that the emulator answers as a GPU does. */
/* ctest: labels=cuda timeout=600 cost=20 */
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
#define NEEDS_EMULATOR()                                                                                               \
    do {                                                                                                               \
        if (real) {                                                                                                    \
            print_message("skipped on a GPU: needs the emulator\n");                                                   \
            skip();                                                                                                    \
        }                                                                                                              \
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
    snprintf(text, n, "#define RP_PRELUDE_CONDITIONAL 1\n/* rp-prelude begin */\n%s/* rp-prelude end */\n%s",
             rp__embed_prelude_cuh, kernels);
    return text;
}

static nvrtcResult compile_with(const rp__libnvrtc *r, const char *source, const char *arch, char **image, char **log) {
    nvrtcProgram program;
    const char *const options[] = {arch, "-default-device", "--fmad=false"};
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

static CUfunction fn(const char *name) { return function_of(common, name); }

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

static void launch(const char *name, unsigned int grid, unsigned int block, unsigned int shared, CUstream s,
                   void **params) {
    OK(cu->cuLaunchKernel(fn(name), grid, 1, 1, block, 1, 1, shared, s, params, NULL));
}

static void launch_put(CUdeviceptr p, int v, CUstream s) {
    void *params[] = {&p, &v};
    launch("put", 1, 1, 0, s, params);
}

static int read_int(CUdeviceptr p) {
    int v;
    OK(cu->cuMemcpyDtoH(&v, p, sizeof v));
    return v;
}

static void write_int(CUdeviceptr p, int v) { OK(cu->cuMemcpyHtoD(p, &v, sizeof v)); }

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
    FAILS(CUDA_ERROR_INVALID_VALUE,
          cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)host));
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
    CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    unsigned int answer = 77;
    void *answers = &answer;
    OK(cu->cuPointerGetAttributes(1, &asked, &answers, (CUdeviceptr)(uintptr_t)pinned));
    assert_int_equal(answer, CU_MEMORYTYPE_HOST);
    OK(cu->cuPointerGetAttributes(1, &asked, &answers, (CUdeviceptr)(uintptr_t)&answer));
    assert_int_equal(answer, 0);
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    OK(cu->cuMemFreeHost(pinned));
}

static void test_virtual_memory(void **state) {
    (void)state;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
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
    args a = {out, in, N, 0.5f, 1};
    void *params[] = {&a};
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
        void *params[] = {&out, &in, &n};
        launch("sum", 5, 256, 0, stream, params);
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(&result, out, 4));
        assert_true(result == (float)expected);
        for (int i = 0; i < 512; i++) {
            ints[i] = i;
        }
        OK(cu->cuMemcpyHtoD(numbers, ints, sizeof ints));
        void *reverse_params[] = {&numbers};
        launch("reverse", 4, 128, 128 * 4, stream, reverse_params);
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(ints, numbers, sizeof ints));
        for (int i = 0; i < 512; i++) {
            assert_int_equal(ints[i], i / 128 * 128 + 127 - i % 128);
        }
        OK(cu->cuMemsetD32Async(numbers, 0, 512, stream));
        CUdeviceptr parts = numbers + 16, answer = numbers + 4;
        void *ticket_params[] = {&numbers, &parts, &answer};
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

/* Nearest even by exact arithmetic in double: the neighbours of x among values with `bits` of mantissa and least
 * exponent `low`. */
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
    void *params[] = {&p};
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
    const int64_t expected[16] = {0xfffffffd, 2,         clz32(0x10000) * 100 + 32,
                                  6364,       864,       0x80000000,
                                  2147483647, -2,        INT64_MAX,
                                  0,          INT32_MIN, 0,
                                  1,          11,        0x3f802000,
                                  1};
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
    void *mma_params[] = {&pd, &pa, &pb, &pa32, &pb32, &pd32};
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
                    sum +=
                        (1.0f + 0.25f * (float)((i * 16 + k) * 5 % 4)) * (2.0f + 0.5f * (float)((k * 8 + j) * 3 % 4));
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
    uint32_t u[6] = {0, 0, 1000, 0, 0, 0};
    float f[3] = {0, -1, 1};
    double zero = 0;
    uint64_t w = 0;
    uint16_t h[4] = {0, 0, 0, 0};
    CUdeviceptr pu = p, pf = p + 64, pdd = p + 128, pw = p + 192, ph = p + 256;
    OK(cu->cuMemcpyHtoD(pu, u, sizeof u));
    OK(cu->cuMemcpyHtoD(pf, f, sizeof f));
    OK(cu->cuMemcpyHtoD(pdd, &zero, sizeof zero));
    OK(cu->cuMemcpyHtoD(pw, &w, sizeof w));
    OK(cu->cuMemcpyHtoD(ph, h, sizeof h));
    void *atomic_params[] = {&pu, &pf, &pdd, &pw, &ph};
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

/* A kernel with a fault of synchronisation must not pass: it is reported, or its result is wrong in some order. */
static void test_wrong_kernels(void **state) {
    (void)state;
    NEEDS_EMULATOR();
    static const char wrong[] =
        "extern \"C\" __global__ void lane_gone(int *p) { if (threadIdx.x == 3) { return; } rp_barrier(); *p = 1; }\n"
        "extern \"C\" __global__ void two_barriers(int *p) {\n"
        "    if (threadIdx.x < 32) {\n"
        "        rp_barrier();\n"
        "    } else {\n"
        "        rp_barrier();\n"
        "    }\n"
        "    *p = 1;\n"
        "}\n"
        "extern \"C\" __global__ void half_warp(int *p) {\n"
        "    if (threadIdx.x % 32 < 16) { *p = rp_shfl_xor_i32(1, 1, 32); } else { rp_barrier(); }\n"
        "}\n"
        "extern \"C\" __global__ void missing_barrier(int *p) {\n"
        "    __shared__ int s[64];\n"
        "    s[threadIdx.x] = threadIdx.x;\n"
        "    p[threadIdx.x] = s[63 - threadIdx.x];\n"
        "}\n"
        "extern \"C\" __global__ void misaligned(float *p) { rp_st_v4_f32(p + 1, rp_ld_v4_f32(p)); }\n"
        "extern \"C\" __global__ void spins(rp_u32 *p) { while (rp_ld_acquire_u32(p) != 12345) { rp_spin_pause(); } }\n"
        "extern \"C\" __global__ void deep(int *p) {\n"
        "    volatile char big[1 << 20];\n"
        "    for (int i = (1 << 20) - 1; i >= 0; i -= 512) { big[i] = 1; }\n"
        "    *p = big[0];\n"
        "}\n"
        "extern \"C\" __global__ void missing_async_wait(int *p, const int *q) {\n"
        "    __shared__ int s[64];\n"
        "    s[threadIdx.x] = -1;\n"
        "    rp_cp_async_4(&s[threadIdx.x], &q[threadIdx.x]);\n"
        "    rp_cp_async_commit();\n"
        "    p[threadIdx.x] = s[threadIdx.x];\n"
        "}\n";
    static const struct {
        const char *name, *words;
        CUresult code;
    } cases[] = {{"lane_gone", "returned", CUDA_ERROR_LAUNCH_FAILED},
                 {"two_barriers", "different barriers", CUDA_ERROR_LAUNCH_FAILED},
                 {"half_warp", "deadlock", CUDA_ERROR_LAUNCH_FAILED},
                 {"misaligned", "16 bytes", CUDA_ERROR_MISALIGNED_ADDRESS},
                 {"spins", "deadlock", CUDA_ERROR_LAUNCH_TIMEOUT},
                 {"deep", "stack", CUDA_ERROR_HARDWARE_STACK_ERROR}};
    CUlibrary library = load(wrong);
    CUdeviceptr p = device_alloc(1024), q = p + 512;
    void *params[] = {&p, &q};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (unsigned long long s = 1; s <= 3; s++) {
            char text[512];
            seed(s);
            OK(cu->cuLaunchKernel(function_of(library, cases[i].name), 2, 1, 1, 64, 1, 1, 0, stream, params, NULL));
            recover(cases[i].code);
            sim.last_text(text, sizeof text);
            assert_non_null(strstr(text, cases[i].words));
            assert_non_null(strstr(text, cases[i].name));
        }
    }
    static const char *const silent[] = {"missing_barrier", "missing_async_wait"};
    for (size_t i = 0; i < 2; i++) {
        int wrong_runs = 0, values[64];
        for (unsigned long long s = 1; s <= SEEDS; s++) {
            seed(s);
            OK(cu->cuMemsetD32Async(q, 7, 64, stream));
            OK(cu->cuLaunchKernel(function_of(library, silent[i]), 1, 1, 1, 64, 1, 1, 0, stream, params, NULL));
            OK(cu->cuStreamSynchronize(stream));
            OK(cu->cuMemcpyDtoH(values, p, sizeof values));
            bool right = true;
            for (int t = 0; t < 64; t++) {
                right = right && values[t] == (i == 0 ? 63 - t : 7);
            }
            wrong_runs += !right;
        }
        assert_int_equal(wrong_runs, SEEDS);
    }
    OK(cu->cuMemFree(p));
    OK(cu->cuLibraryUnload(library));
}

static void test_modules(void **state) {
    (void)state;
    CUdeviceptr p = device_alloc(4), global;
    void *params[] = {&p};
    size_t bytes;
    int number = 100;
    CUkernel kernel;
    CUlibrary bad;
    OK(cu->cuLibraryGetGlobal(&global, &bytes, common, "device_number"));
    assert_int_equal(bytes, 4);
    OK(cu->cuMemcpyHtoD(global, &number, 4));
    launch("bump", 1, 1, 0, stream, params);
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(p), 101);
    FAILS(CUDA_ERROR_NOT_FOUND, cu->cuLibraryGetKernel(&kernel, common, "no_such_kernel"));
    FAILS(CUDA_ERROR_NOT_FOUND, cu->cuLibraryGetGlobal(&global, &bytes, common, "no_such_global"));
    if (!real) {
        static const char junk[64] = "not an image of any kind";
        FAILS(CUDA_ERROR_INVALID_IMAGE, cu->cuLibraryLoadData(&bad, junk, NULL, NULL, 0, NULL, NULL, 0));
    }
    char *image, *log,
        *source = with_prelude("extern \"C\" __global__ void k(int *p) {\n    *p = undeclared_thing;\n}\n");
    assert_int_equal(compile_with(rtc, source, architecture, &image, &log), NVRTC_ERROR_COMPILATION);
    assert_non_null(strstr(log, "undeclared_thing"));
    free(source);
    free(log);
    assert_int_equal(compile_with(rtc, "", "-no-such-option", &image, &log), NVRTC_ERROR_INVALID_OPTION);
    free(log);
    OK(cu->cuMemFree(p));
}

/* ---- Streams and events ---- */

static void on_host(void *data) {
    int *n = data;
    *n += 1;
}

static void test_streams(void **state) {
    (void)state;
    CUstream other;
    CUevent event, early, plain;
    CUdeviceptr list = device_alloc(4 * 64), n = device_alloc(4);
    OK(cu->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cu->cuEventCreate(&event, CU_EVENT_DEFAULT));
    OK(cu->cuEventCreate(&early, CU_EVENT_DEFAULT));
    OK(cu->cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuEventQuery(event)); /* never recorded: complete */
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        int calls = 0, got[4];
        seed(s);
        write_int(n, 0);
        OK(cu->cuEventRecord(early, stream));
        for (int v = 0; v < 4; v++) { /* to and fro between two streams */
            CUstream on = v % 2 ? other : stream, next = v % 2 ? stream : other;
            void *params[] = {&list, &n, &v};
            launch("append", 1, 1, 0, on, params);
            OK(cu->cuLaunchHostFunc(on, on_host, &calls));
            OK(cu->cuEventRecord(event, on));
            OK(cu->cuStreamWaitEvent(next, event, 0));
        }
        OK(cu->cuEventRecord(event, stream));
        CUresult result;
        while ((result = cu->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY) {}
        OK(result);
        OK(cu->cuEventSynchronize(event));
        OK(cu->cuCtxSynchronize());
        OK(cu->cuMemcpyDtoH(got, list, sizeof got));
        for (int v = 0; v < 4; v++) {
            assert_int_equal(got[v], v);
        }
        assert_int_equal(calls, 4);
        float ms = -1;
        OK(cu->cuEventElapsedTime(&ms, early, event));
        assert_true(ms >= 0);
        OK(cu->cuEventRecord(plain, stream));
        OK(cu->cuStreamSynchronize(stream));
        FAILS(CUDA_ERROR_INVALID_HANDLE, cu->cuEventElapsedTime(&ms, early, plain));
    }
    if (!real) { /* a missing event shows in some order */
        int swapped = 0;
        for (unsigned long long s = 1; s <= 4 * SEEDS; s++) {
            seed(s);
            launch_put(list, 1, stream);
            launch_put(list, 2, other);
            OK(cu->cuCtxSynchronize());
            swapped += read_int(list) == 1;
        }
        assert_true(swapped > 0 && swapped < 4 * SEEDS);
    }
    OK(cu->cuEventDestroy(event));
    OK(cu->cuEventDestroy(early));
    OK(cu->cuEventDestroy(plain));
    OK(cu->cuStreamDestroy(other));
    OK(cu->cuMemFree(list));
    OK(cu->cuMemFree(n));
}

/* ---- Capture ---- */

static void test_capture(void **state) {
    (void)state;
    CUstream side;
    CUevent fork, join;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr a = device_alloc(12);
    OK(cu->cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cu->cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    CUgraph of_info = NULL;
    const CUgraphNode *deps;
    const CUgraphEdgeData *edges;
    size_t n;
    launch_put(a, 1, stream);
    OK(cu->cuStreamGetCaptureInfo(stream, &status, &id, &of_info, &deps, &edges, &n));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_true(id != 0 && of_info != NULL && n == 1);
    CUgraphNode first = deps[0];
    OK(cu->cuEventRecord(fork, stream));
    OK(cu->cuStreamWaitEvent(side, fork, 0));
    OK(cu->cuStreamIsCapturing(side, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    launch_put(a + 4, 2, side);
    launch_put(a, 3, stream);
    OK(cu->cuMemsetD32Async(a + 8, 9, 1, side));
    OK(cu->cuEventRecord(join, side));
    OK(cu->cuStreamWaitEvent(stream, join, 0));
    OK(cu->cuStreamGetCaptureInfo(stream, &status, &id, &of_info, &deps, &edges, &n));
    assert_int_equal(n, 2);
    OK(cu->cuStreamEndCapture(stream, &graph));
    OK(cu->cuStreamIsCapturing(side, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    n = 0;
    OK(cu->cuGraphGetNodes(graph, NULL, &n));
    assert_int_equal(n, 4);
    OK(cu->cuGraphGetEdges(graph, NULL, NULL, NULL, &n));
    assert_int_equal(n, 3);
    CUgraphNodeType type;
    OK(cu->cuGraphNodeGetType(first, &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_KERNEL);
    CUDA_KERNEL_NODE_PARAMS params;
    OK(cu->cuGraphKernelNodeGetParams(first, &params));
    assert_int_equal(*(int *)params.kernelParams[1], 1);
    assert_true(*(CUdeviceptr *)params.kernelParams[0] == a);
    OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cu->cuGraphUpload(exec, stream));
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        OK(cu->cuMemsetD32Async(a, 0, 3, stream));
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuStreamSynchronize(stream));
        assert_int_equal(read_int(a), 3);
        assert_int_equal(read_int(a + 4), 2);
        assert_int_equal(read_int(a + 8), 9);
    }
    OK(cu->cuGraphExecDestroy(exec));
    OK(cu->cuGraphDestroy(graph));
    OK(cu->cuStreamDestroy(side));
    OK(cu->cuEventDestroy(fork));
    OK(cu->cuEventDestroy(join));
    OK(cu->cuMemFree(a));
}

static CUresult end_capture(CUstream s) {
    CUgraph graph = (CUgraph)(uintptr_t)1;
    CUresult result = cu->cuStreamEndCapture(s, &graph);
    if (result == CUDA_SUCCESS) {
        OK(cu->cuGraphDestroy(graph));
    } else if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
        assert_null(graph);
    }
    return result;
}

static void *end_elsewhere(void *data) {
    (void)data;
    cu->cuCtxSetCurrent(ctx);
    CUgraph graph;
    return (void *)(uintptr_t)cu->cuStreamEndCapture(stream, &graph);
}

static void *alloc_elsewhere(void *data) {
    CUdeviceptr p = 0;
    CUresult *result = data;
    cu->cuCtxSetCurrent(ctx);
    *result = cu->cuMemAlloc(&p, 64);
    if (*result == CUDA_SUCCESS) {
        cu->cuMemFree(p);
    }
    return NULL;
}

static void test_capture_errors(void **state) {
    (void)state;
    CUstream side, blocking;
    CUevent event, outside;
    CUgraph graph;
    CUdeviceptr p = device_alloc(4), q;
    CUstreamCaptureMode local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, global = CU_STREAM_CAPTURE_MODE_GLOBAL,
                        relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    int v = 0;
    OK(cu->cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cu->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuEventRecord(outside, side));
    FAILS(CUDA_ERROR_ILLEGAL_STATE, cu->cuStreamEndCapture(stream, &graph));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuStreamBeginCapture(NULL, local));
    /* 900 and then 901: synchronising, querying, allocating */
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_ILLEGAL_STATE, cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuStreamSynchronize(stream));
    void *params[] = {&p, &v};
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
          cu->cuLaunchKernel(fn("put"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuStreamQuery(stream));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuMemAlloc(&q, 64));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuCtxSynchronize());
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    /* The same call is allowed in relaxed mode, by capture or by thread. */
    OK(cu->cuStreamBeginCapture(stream, relaxed));
    OK(cu->cuMemAlloc(&q, 64));
    OK(end_capture(stream));
    OK(cu->cuMemFree(q));
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuThreadExchangeStreamCaptureMode(&relaxed));
    OK(cu->cuMemAlloc(&q, 64));
    OK(cu->cuThreadExchangeStreamCaptureMode(&relaxed));
    assert_int_equal(relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(end_capture(stream));
    OK(cu->cuMemFree(q));
    /* Another thread is forbidden by a global capture only. */
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        CUresult result = CUDA_SUCCESS;
        OK(cu->cuStreamBeginCapture(stream, i ? global : local));
        pthread_create(&thread, NULL, alloc_elsewhere, &result);
        pthread_join(thread, NULL);
        assert_int_equal(result, i ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
        assert_int_equal(end_capture(stream), i ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    }
    /* 902: two captures meet */
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuStreamBeginCapture(side, local));
    OK(cu->cuEventRecord(event, side));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_MERGE, cu->cuStreamWaitEvent(stream, event, 0));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(side));
    /* 903: ended on another stream; 904: not joined */
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuEventRecord(event, stream));
    OK(cu->cuStreamWaitEvent(side, event, 0));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cu->cuStreamEndCapture(side, &graph));
    assert_int_not_equal(end_capture(stream), CUDA_SUCCESS);
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuEventRecord(event, stream));
    OK(cu->cuStreamWaitEvent(side, event, 0));
    launch_put(p, 1, side);
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, end_capture(stream));
    /* 905: waits for work outside; 907: asks for an event inside */
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cu->cuStreamWaitEvent(stream, outside, 0));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuEventRecord(event, stream));
    FAILS(CUDA_ERROR_CAPTURED_EVENT, cu->cuEventQuery(event));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuEventRecord(event, stream));
    FAILS(CUDA_ERROR_CAPTURED_EVENT, cu->cuEventSynchronize(event));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    /* 906: the legacy stream while a blocking stream is captured */
    OK(cu->cuStreamBeginCapture(blocking, relaxed));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu->cuLaunchKernel(fn("put"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(blocking));
    OK(cu->cuStreamBeginCapture(blocking, relaxed));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu->cuMemcpyHtoD(p, &v, 4));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(blocking));
    /* 908: ended by another thread, which ends it all the same */
    pthread_t thread;
    void *result;
    OK(cu->cuStreamBeginCapture(stream, local));
    pthread_create(&thread, NULL, end_elsewhere, NULL);
    pthread_join(thread, &result);
    assert_int_equal((int)(uintptr_t)result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    FAILS(CUDA_ERROR_ILLEGAL_STATE, end_capture(stream));
    OK(cu->cuEventDestroy(event));
    OK(cu->cuEventDestroy(outside));
    OK(cu->cuStreamDestroy(side));
    OK(cu->cuStreamDestroy(blocking));
    OK(cu->cuMemFree(p));
}

/* ---- Graphs ---- */

static CUgraphNodeParams put_node(CUdeviceptr *p, int *v, void **params) {
    params[0] = p;
    params[1] = v;
    CUgraphNodeParams n = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    n.kernel = (CUDA_KERNEL_NODE_PARAMS){.func = fn("put"),
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 1,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params};
    return n;
}

static void test_graph(void **state) {
    (void)state;
    CUgraph graph, child;
    CUgraphNode set, one, two, copy, empty, nested, in_child;
    CUgraphExec exec;
    CUdeviceptr a = device_alloc(64), b = a + 32;
    int v1 = 11, v2 = 22, v3 = 33;
    void *params[2];
    OK(cu->cuGraphCreate(&graph, 0));
    OK(cu->cuGraphCreate(&child, 0));
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = a, .value = 5, .elementSize = 4, .width = 8, .height = 1};
    OK(cu->cuGraphAddMemsetNode(&set, graph, NULL, 0, &fill, ctx));
    CUgraphNodeParams node = put_node(&a, &v1, params);
    OK(cu->cuGraphAddNode(&one, graph, &set, NULL, 1, &node));
    CUdeviceptr a4 = a + 4;
    node = put_node(&a4, &v2, params);
    OK(cu->cuGraphAddKernelNode(&two, graph, &set, 1, &node.kernel));
    CUgraphNode both[2] = {one, two};
    OK(cu->cuGraphAddEmptyNode(&empty, graph, both, 2));
    CUDA_MEMCPY3D move = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = b,
                          .WidthInBytes = 32,
                          .Height = 1,
                          .Depth = 1};
    OK(cu->cuGraphAddMemcpyNode(&copy, graph, &empty, 1, &move, ctx));
    CUdeviceptr b8 = b + 8;
    node = put_node(&b8, &v3, params);
    OK(cu->cuGraphAddKernelNode(&in_child, child, NULL, 0, &node.kernel));
    OK(cu->cuGraphAddChildGraphNode(&nested, graph, &copy, 1, child));
    OK(cu->cuGraphDestroy(child)); /* the node has a copy */
    OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    const int expected[8] = {11, 22, 33, 5, 5, 5, 5, 5};
    int got[8];
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(got, b, sizeof got));
        assert_memory_equal(got, expected, sizeof got);
    }
    /* A launch that is queued keeps the parameters it was queued with. */
    v1 = 44;
    node = put_node(&a, &v1, params);
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuGraphExecKernelNodeSetParams(exec, one, &node.kernel));
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(b), 11);
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(b), 44);
    CUDA_KERNEL_NODE_PARAMS unchanged;
    OK(cu->cuGraphKernelNodeGetParams(one, &unchanged));
    assert_int_equal(*(int *)unchanged.kernelParams[1], 11); /* the graph itself is as it was */
    /* Disabled nodes do nothing; edges through them hold. */
    OK(cu->cuGraphNodeSetEnabled(exec, two, 0));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuGraphNodeSetEnabled(exec, nested, 0));
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(b + 4), 5);
    OK(cu->cuGraphNodeSetEnabled(exec, two, 1));
    fill.value = 6;
    OK(cu->cuGraphExecMemsetNodeSetParams(exec, set, &fill, ctx));
    move.WidthInBytes = 16;
    OK(cu->cuGraphExecMemcpyNodeSetParams(exec, copy, &move, ctx));
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(got, b, sizeof got));
    assert_true(got[3] == 6 && got[4] == 5 && got[1] == 22);
    /* A whole update: back to the graph's own parameters. Then one that does not fit. */
    CUgraphExecUpdateResultInfo info;
    OK(cu->cuGraphExecUpdate(exec, graph, &info));
    assert_int_equal(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(got, b, sizeof got));
    assert_memory_equal(got, expected, sizeof got);
    CUgraphNode more;
    OK(cu->cuGraphAddEmptyNode(&more, graph, NULL, 0));
    FAILS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cu->cuGraphExecUpdate(exec, graph, &info));
    assert_int_equal(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    /* A cycle is refused where the graph is instantiated. */
    CUgraphExec none;
    CUgraphNode from = nested, to = set;
    OK(cu->cuGraphAddDependencies(graph, &from, &to, NULL, 1));
    assert_int_not_equal(cu->cuGraphInstantiateWithFlags(&none, graph, 0), CUDA_SUCCESS);
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuGraphAddEmptyNode(&more, graph, (CUgraphNode[]){one, one}, 2));
    OK(cu->cuGraphExecDestroy(exec));
    OK(cu->cuGraphDestroy(graph));
    OK(cu->cuMemFree(a));
}

static void add_scale(CUgraphNode *node, CUgraph graph, const char *name, args *a, CUgraphNode *dep,
                      bool programmatic) {
    void *params[] = {a};
    CUgraphNodeParams n = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    n.kernel = (CUDA_KERNEL_NODE_PARAMS){.func = fn(name),
                                         .gridDimX = 4,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 64,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params};
    CUgraphEdgeData edge = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                            .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    OK(cu->cuGraphAddNode(node, graph, dep, dep && programmatic ? &edge : NULL, dep ? 1 : 0, &n));
}

/* A chain of kernels by programmatic edges; with `name` in the middle. Returns how many of SEEDS runs gave the right
 * result. */
static int run_chain(const char *name) {
    enum { N = 256, LENGTH = 5 };
    CUdeviceptr buffer[LENGTH + 1];
    float host[N];
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode last = NULL;
    int right = 0;
    OK(cu->cuGraphCreate(&graph, 0));
    for (int i = 0; i <= LENGTH; i++) {
        buffer[i] = device_alloc(sizeof host);
    }
    for (int i = 0; i < LENGTH; i++) {
        args a = {buffer[i + 1], buffer[i], N, 2.0f, 0};
        CUgraphNode node;
        add_scale(&node, graph, i == 2 ? name : "scale", &a, i ? &last : NULL, true);
        last = node;
    }
    OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        for (int i = 1; i <= LENGTH; i++) {
            OK(cu->cuMemsetD32Async(buffer[i], 0x7fc00000, N, stream));
        }
        for (int i = 0; i < N; i++) {
            host[i] = (float)i + (float)s;
        }
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyHtoD(buffer[0], host, sizeof host));
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(host, buffer[LENGTH], sizeof host));
        bool good = true;
        for (int i = 0; i < N; i++) {
            good = good && host[i] == ((float)i + (float)s) * 32.0f;
        }
        right += good;
    }
    OK(cu->cuGraphExecDestroy(exec));
    OK(cu->cuGraphDestroy(graph));
    for (int i = 0; i <= LENGTH; i++) {
        OK(cu->cuMemFree(buffer[i]));
    }
    return right;
}

static void test_programmatic_edges(void **state) {
    (void)state;
    cudasim_counters before, after;
    if (!real) {
        sim.counters(&before);
    }
    assert_int_equal(run_chain("scale"), SEEDS);
    if (!real) {
        sim.counters(&after);
        assert_true(after.early > before.early);
        assert_true(after.suspended > before.suspended);
        assert_int_equal(run_chain("scale_no_wait"), 0); /* the missing wait gives wrong data, always */
    }
    /* By capture: the attribute of the consumer becomes an edge with data. */
    CUgraph graph;
    CUgraphNode from[2], to[2];
    CUgraphEdgeData edges[2];
    CUdeviceptr p = device_alloc(4);
    size_t n = 2;
    int v = 1;
    void *params[] = {&p, &v};
    CUlaunchAttribute attr = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    attr.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = &attr,
                             .numAttrs = 1};
    OK(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (v = 1; v <= 3; v++) {
        OK(cu->cuLaunchKernelEx(&config, fn("put"), params, NULL));
    }
    OK(cu->cuStreamEndCapture(stream, &graph));
    FAILS(CUDA_ERROR_LOSSY_QUERY, cu->cuGraphGetEdges(graph, from, to, NULL, &n));
    n = 2;
    OK(cu->cuGraphGetEdges(graph, from, to, edges, &n));
    assert_int_equal(n, 2);
    assert_int_equal(edges[0].type, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    assert_int_equal(edges[0].from_port, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
    /* A programmatic edge needs kernels on both sides. */
    CUgraphNode empty, bad;
    OK(cu->cuGraphAddEmptyNode(&empty, graph, NULL, 0));
    CUgraphNodeParams node = put_node(&p, &v, params);
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuGraphAddNode(&bad, graph, &empty, edges, 1, &node));
    OK(cu->cuGraphDestroy(graph));
    /* In a stream without capture. */
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        for (v = 1; v <= 4; v++) {
            OK(cu->cuLaunchKernelEx(&config, fn("put"), params, NULL));
        }
        OK(cu->cuStreamSynchronize(stream));
        assert_int_equal(read_int(p), 4);
    }
    OK(cu->cuMemFree(p));
}

static void test_conditional_nodes(void **state) {
    (void)state;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphConditionalHandle loop, branch, many;
    CUgraphNode first, node;
    CUdeviceptr left = device_alloc(4), count = device_alloc(16);
    OK(cu->cuGraphCreate(&graph, 0));
    OK(cu->cuGraphConditionalHandleCreate(&loop, graph, ctx, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    OK(cu->cuGraphConditionalHandleCreate(&branch, graph, ctx, 0, CU_GRAPH_COND_ASSIGN_DEFAULT));
    OK(cu->cuGraphConditionalHandleCreate(&many, graph, ctx, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = count, .value = 0, .elementSize = 4, .width = 4, .height = 1};
    OK(cu->cuGraphAddMemsetNode(&first, graph, NULL, 0, &fill, ctx));
    CUgraphNodeParams while_node = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    while_node.conditional =
        (CUDA_CONDITIONAL_NODE_PARAMS){.handle = loop, .type = CU_GRAPH_COND_TYPE_WHILE, .size = 1, .ctx = ctx};
    OK(cu->cuGraphAddNode(&node, graph, &first, NULL, 1, &while_node));
    CUgraph body = while_node.conditional.phGraph_out[0], same = NULL;
    OK(cu->cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    void *count_params[] = {&count}, *down_params[] = {&left, &loop};
    launch("count", 1, 1, 0, stream, count_params);
    launch("countdown", 1, 1, 0, stream, down_params);
    OK(cu->cuStreamEndCapture(stream, &same));
    assert_ptr_equal(same, body);
    /* IF with ELSE by the default 0, and SWITCH by the default 1. */
    CUgraphNodeParams if_node = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL}, switch_node = if_node;
    if_node.conditional =
        (CUDA_CONDITIONAL_NODE_PARAMS){.handle = branch, .type = CU_GRAPH_COND_TYPE_IF, .size = 2, .ctx = ctx};
    switch_node.conditional =
        (CUDA_CONDITIONAL_NODE_PARAMS){.handle = many, .type = CU_GRAPH_COND_TYPE_SWITCH, .size = 3, .ctx = ctx};
    CUgraphNode after, last;
    OK(cu->cuGraphAddNode(&after, graph, &node, NULL, 1, &if_node));
    OK(cu->cuGraphAddNode(&last, graph, &after, NULL, 1, &switch_node));
    for (unsigned int i = 0; i < 5; i++) {
        CUdeviceptr at = count + (i < 2 ? 4 : 8);
        int value = (int)i + 10;
        void *params[2];
        CUgraphNodeParams put = put_node(&at, &value, params);
        CUgraphNode inner;
        OK(cu->cuGraphAddNode(&inner,
                              i < 2 ? if_node.conditional.phGraph_out[i] : switch_node.conditional.phGraph_out[i - 2],
                              NULL, NULL, 0, &put));
    }
    OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int n = 1; n < 7; n++) {
        seed((unsigned long long)n);
        write_int(left, n);
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuStreamSynchronize(stream));
        assert_int_equal(read_int(left), 0);
        assert_int_equal(read_int(count), n);
        assert_int_equal(read_int(count + 4), 11); /* ELSE */
        assert_int_equal(read_int(count + 8), 13); /* case 1 */
    }
    CUgraphExec second;
    assert_int_not_equal(cu->cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_SUCCESS);
    CUgraph outer;
    OK(cu->cuGraphCreate(&outer, 0));
    assert_int_not_equal(cu->cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph), CUDA_SUCCESS);
    /* A handle that no node uses. */
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = 0};
    OK(cu->cuGraphConditionalHandleCreate(&loop, outer, ctx, 1, 0));
    assert_int_not_equal(cu->cuGraphInstantiateWithParams(&second, outer, &how), CUDA_SUCCESS);
    assert_int_equal(how.result_out, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED);
    OK(cu->cuGraphDestroy(outer));
    OK(cu->cuGraphExecDestroy(exec));
    OK(cu->cuGraphDestroy(graph));
    OK(cu->cuMemFree(left));
    OK(cu->cuMemFree(count));
}

/* ---- Failure on demand ---- */

/* A small piece of work that cleans up after itself wherever it fails. */
static CUresult small_work(CUdeviceptr *out) {
    CUdeviceptr p = 0;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode node;
    int v = 3, back = 0;
    void *params[2];
    CUgraphNodeParams put = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    put.kernel = (CUDA_KERNEL_NODE_PARAMS){.gridDimX = 1,
                                           .gridDimY = 1,
                                           .gridDimZ = 1,
                                           .blockDimX = 1,
                                           .blockDimY = 1,
                                           .blockDimZ = 1,
                                           .kernelParams = params};
    CUkernel kernel;
    CUresult result = cu->cuMemAlloc(&p, 64);
    params[0] = &p;
    params[1] = &v;
    if (result == CUDA_SUCCESS) {
        result = cu->cuLibraryGetKernel(&kernel, common, "put");
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuKernelGetFunction(&put.kernel.func, kernel);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuGraphCreate(&graph, 0);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuGraphAddNode(&node, graph, NULL, NULL, 0, &put);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuGraphInstantiateWithFlags(&exec, graph, 0);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuGraphLaunch(exec, stream);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuStreamSynchronize(stream);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuMemcpyDtoH(&back, p, sizeof back);
    }
    if (exec) {
        cu->cuGraphExecDestroy(exec);
    }
    if (graph) {
        cu->cuGraphDestroy(graph);
    }
    if (p) {
        cu->cuMemFree(p);
    }
    *out = (CUdeviceptr)back;
    return result;
}

static void test_failures(void **state) {
    (void)state;
    NEEDS_EMULATOR();
    cudasim_counters before, after;
    CUdeviceptr out;
    int failed = 0;
    sim.counters(&before);
    for (unsigned long long n = 1; n < 100; n++) {
        sim.fail_after(n, n % 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
        CUresult result = small_work(&out);
        sim.fail_after(0, 0);
        sim.counters(&after);
        assert_int_equal(after.live_allocations, before.live_allocations);
        assert_int_equal(after.live_graphs, before.live_graphs);
        assert_int_equal(after.live_execs, before.live_execs);
        if (result == CUDA_SUCCESS) {
            break;
        }
        failed++;
        assert_int_equal(result, n % 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
    }
    assert_int_equal(failed, 9);
    assert_true(out == 3);
}

/* ---- cuBLASLt ---- */

typedef struct problem {
    int m, n, k, batch;
    bool trans_a, trans_b, rows; /* rows: row-major layouts */
    cudaDataType type, out;
    cublasLtEpilogue_t epilogue;
    float beta;
} problem;

static float narrow(float x, cudaDataType type) { /* values used here are exact in every type */
    (void)type;
    return x;
}

static void put_element(void *p, cudaDataType type, size_t i, float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    switch ((int)type) {
    case CUDA_R_64F: ((double *)p)[i] = v; break;
    case CUDA_R_32F: ((float *)p)[i] = v; break;
    case CUDA_R_16F: ((uint16_t *)p)[i] = (uint16_t)round_to(v, 10, 5); break;
    default: ((uint16_t *)p)[i] = (uint16_t)(bits >> 16); break;
    }
}

static float get_element(const void *p, cudaDataType type, size_t i) {
    uint32_t bits;
    float f;
    switch ((int)type) {
    case CUDA_R_64F: return (float)((const double *)p)[i];
    case CUDA_R_32F: return ((const float *)p)[i];
    case CUDA_R_16F: {
        uint16_t h = ((const uint16_t *)p)[i];
        int e = h >> 10 & 31, m = h & 0x3ff;
        double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        return (float)(h >> 15 ? -v : v);
    }
    default:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, 4);
        return f;
    }
}

static size_t element_size(cudaDataType type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

static cublasLtMatrixLayout_t layout(cudaDataType type, int rows, int cols, bool row_major, int batch) {
    cublasLtMatrixLayout_t l;
    int32_t order = row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL, count = batch;
    int64_t stride = (int64_t)rows * cols;
    assert_int_equal(lt->cublasLtMatrixLayoutCreate(&l, type, (uint64_t)rows, (uint64_t)cols, row_major ? cols : rows),
                     0);
    assert_int_equal(lt->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
                     0);
    assert_int_equal(
        lt->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        0);
    return l;
}

static void run_problem(cublasLtHandle_t handle, const problem *q) {
    int ar = q->trans_a ? q->k : q->m, ac = q->trans_a ? q->m : q->k, br = q->trans_b ? q->n : q->k,
        bc = q->trans_b ? q->k : q->n;
    size_t na = (size_t)(ar * ac * q->batch), nb = (size_t)(br * bc * q->batch), nd = (size_t)(q->m * q->n * q->batch);
    unsigned char *a = calloc(na, 8), *b = calloc(nb, 8), *c = calloc(nd, 8), *d = calloc(nd, 8),
                  *bias = calloc((size_t)q->m, 8);
    for (size_t i = 0; i < na; i++) {
        put_element(a, q->type, i, (float)((int)(i * 7 % 9) - 4) * 0.5f);
    }
    for (size_t i = 0; i < nb; i++) {
        put_element(b, q->type, i, (float)((int)(i * 5 % 7) - 3) * 0.5f);
    }
    for (size_t i = 0; i < nd; i++) {
        put_element(c, q->out, i, (float)((int)(i % 5) - 2));
    }
    for (int i = 0; i < q->m; i++) {
        put_element(bias, q->out, (size_t)i, (float)(i % 3) - 1.0f);
    }
    size_t sa = na * element_size(q->type), sb = nb * element_size(q->type), sd = nd * element_size(q->out);
    CUdeviceptr pa = device_alloc(sa), pb = device_alloc(sb), pc = device_alloc(sd), pd = device_alloc(sd),
                work = device_alloc(1 << 20);
    CUdeviceptr pbias = device_alloc((size_t)q->m * 8);
    OK(cu->cuMemcpyHtoD(pa, a, sa));
    OK(cu->cuMemcpyHtoD(pb, b, sb));
    OK(cu->cuMemcpyHtoD(pc, c, sd));
    OK(cu->cuMemcpyHtoD(pbias, bias, (size_t)q->m * element_size(q->out)));
    cublasLtMatmulDesc_t desc;
    bool wide = q->type == CUDA_R_64F;
    int32_t ta = q->trans_a, tb = q->trans_b;
    uint32_t epilogue = q->epilogue;
    uint64_t workspace = 1 << 20;
    assert_int_equal(lt->cublasLtMatmulDescCreate(&desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                                  wide ? CUDA_R_64F : CUDA_R_32F),
                     0);
    assert_int_equal(lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta), 0);
    assert_int_equal(lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb), 0);
    assert_int_equal(
        lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue), 0);
    void *bias_pointer = (void *)(uintptr_t)pbias, *no_bias = NULL;
    bool wants_bias = (epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA)) != 0;
    if (wants_bias) {
        assert_int_equal(lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer,
                                                            sizeof bias_pointer),
                         0);
    }
    cublasLtMatrixLayout_t la = layout(q->type, ar, ac, q->rows, q->batch),
                           lb = layout(q->type, br, bc, q->rows, q->batch),
                           ld = layout(q->out, q->m, q->n, q->rows, q->batch);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[4];
    int n_found;
    assert_int_equal(lt->cublasLtMatmulPreferenceCreate(&preference), 0);
    assert_int_equal(lt->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                              &workspace, sizeof workspace),
                     0);
    assert_int_equal(lt->cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, ld, ld, preference, 4, found, &n_found),
                     0);
    assert_true(n_found > 0);
    double alpha64 = 2, beta64 = (double)q->beta;
    float alpha32 = 2, beta32 = q->beta;
    const void *alpha = wide ? (const void *)&alpha64 : &alpha32, *beta = wide ? (const void *)&beta64 : &beta32;
    for (int captured = 0; captured < 2; captured++) {
        CUgraph graph;
        CUgraphExec exec;
        OK(cu->cuMemsetD8Async(pd, 0xff, sd, stream));
        if (captured) {
            OK(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        }
        int result = (int)lt->cublasLtMatmul(handle, desc, alpha, (void *)(uintptr_t)pa, la, (void *)(uintptr_t)pb, lb,
                                             beta, (void *)(uintptr_t)pc, ld, (void *)(uintptr_t)pd, ld, &found[0].algo,
                                             (void *)(uintptr_t)work, 1 << 20, stream);
        if (result != 0) {
            fail_msg("%d x %d x %d in %d batches, types %d %d, epilogue %u%s: cublasStatus_t %d", q->m, q->n, q->k,
                     q->batch, (int)q->type, (int)q->out, epilogue, captured ? ", captured" : "", result);
        }
        if (captured) {
            OK(cu->cuStreamEndCapture(stream, &graph));
            OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
            OK(cu->cuGraphLaunch(exec, stream));
        }
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(d, pd, sd));
        if (captured) {
            OK(cu->cuGraphExecDestroy(exec));
            OK(cu->cuGraphDestroy(graph));
        }
        for (int t = 0; t < q->batch; t++) {
            for (int i = 0; i < q->m; i++) {
                for (int j = 0; j < q->n; j++) {
                    double sum = 0;
                    for (int x = 0; x < q->k; x++) {
                        int r1 = q->trans_a ? x : i, c1 = q->trans_a ? i : x, r2 = q->trans_b ? j : x,
                            c2 = q->trans_b ? x : j;
                        size_t ia = (size_t)(t * ar * ac + (q->rows ? r1 * ac + c1 : r1 + c1 * ar));
                        size_t ib = (size_t)(t * br * bc + (q->rows ? r2 * bc + c2 : r2 + c2 * br));
                        sum += (double)get_element(a, q->type, ia) * (double)get_element(b, q->type, ib);
                    }
                    size_t id = (size_t)(t * q->m * q->n + (q->rows ? i * q->n + j : i + j * q->m));
                    double v = 2 * sum + (double)q->beta * (double)get_element(c, q->out, id);
                    v += epilogue & 4 ? (double)get_element(bias, q->out, (size_t)i) : 0;
                    v = epilogue & 2 && v < 0 ? 0 : v;
                    v = epilogue & 32 ? 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))) : v;
                    double slack = epilogue & 32 ? fabs(v) * 0.01 + 1e-3 : 0; /* else small dyadic numbers: exact */
                    assert_true(fabs((double)narrow(get_element(d, q->out, id), q->out) - v) <= slack);
                }
            }
        }
        if (epilogue == CUBLASLT_EPILOGUE_BGRADA) {
            unsigned char *grad = calloc((size_t)q->m, 8);
            OK(cu->cuMemcpyDtoH(grad, pbias, (size_t)q->m * element_size(q->out)));
            for (int i = 0; i < q->m; i++) {
                double sum = 0;
                for (int x = 0; x < q->k; x++) {
                    int r1 = q->trans_a ? x : i, c1 = q->trans_a ? i : x;
                    sum += (double)get_element(a, q->type, (size_t)(q->rows ? r1 * ac + c1 : r1 + c1 * ar));
                }
                assert_true((double)get_element(grad, q->out, (size_t)i) == sum);
            }
            free(grad);
        }
    }
    /* a bias without an epilogue for it, and the other way round */
    assert_int_equal(lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                        wants_bias ? &no_bias : &bias_pointer, sizeof bias_pointer),
                     0);
    assert_int_equal(lt->cublasLtMatmul(handle, desc, alpha, (void *)(uintptr_t)pa, la, (void *)(uintptr_t)pb, lb, beta,
                                        (void *)(uintptr_t)pc, ld, (void *)(uintptr_t)pd, ld, &found[0].algo,
                                        (void *)(uintptr_t)work, 1 << 20, stream),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(lt->cublasLtMatmulPreferenceDestroy(preference), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(la), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(lb), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(ld), 0);
    assert_int_equal(lt->cublasLtMatmulDescDestroy(desc), 0);
    CUdeviceptr all[] = {pa, pb, pc, pd, work, pbias};
    for (size_t i = 0; i < 6; i++) {
        OK(cu->cuMemFree(all[i]));
    }
    free(a), free(b), free(c), free(d), free(bias);
}

static void test_cublaslt(void **state) {
    (void)state;
    static const problem problems[] = {
        {16, 8, 24, 1, false, false, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0},
        {16, 8, 24, 1, true, false, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1},
        {8, 16, 24, 3, false, true, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0},
        {16, 8, 24, 1, false, false, true, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1},
        {16, 8, 24, 1, true, false, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_RELU_BIAS, 0},
        {16, 8, 24, 1, true, false, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_BIAS, 0},
        {16, 8, 24, 1, true, false, false, CUDA_R_16F, CUDA_R_16F, CUBLASLT_EPILOGUE_BIAS, 0},
        {16, 8, 24, 1, true, false, false, CUDA_R_16BF, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1},
        {16, 8, 24, 1, true, false, false, CUDA_R_16F, CUDA_R_16F, CUBLASLT_EPILOGUE_GELU_BIAS, 0},
        {16, 8, 24, 2, true, false, false, CUDA_R_64F, CUDA_R_64F, CUBLASLT_EPILOGUE_DEFAULT, 1},
        {16, 16, 32, 1, false, true, false, CUDA_R_16F, CUDA_R_16F, CUBLASLT_EPILOGUE_BGRADA, 0},
    };
    cublasLtHandle_t handle;
    assert_true(lt->cublasLtGetVersion() >= 120000);
    assert_true(lt->cublasLtGetCudartVersion() >= 12000);
    assert_int_equal(lt->cublasLtCreate(&handle), 0);
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        run_problem(handle, &problems[i]);
    }
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a = layout(CUDA_R_32F, 4, 5, false, 1), b = layout(CUDA_R_32F, 6, 7, false, 1),
                           d = layout(CUDA_R_32F, 4, 7, false, 1);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int n;
    assert_int_equal(lt->cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    assert_int_equal(lt->cublasLtMatmulPreferenceCreate(&preference), 0);
    assert_int_equal(lt->cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, 1, &found, &n),
                     CUBLAS_STATUS_INVALID_VALUE);
    /* rows of 4 in steps of 3 */
    cublasLtMatrixLayout_t narrow_b = layout(CUDA_R_32F, 5, 7, false, 1);
    int64_t three = 3;
    assert_int_equal(lt->cublasLtMatmulAlgoGetHeuristic(handle, desc, a, narrow_b, d, d, preference, 1, &found, &n), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutSetAttribute(d, CUBLASLT_MATRIX_LAYOUT_LD, &three, sizeof three), 0);
    assert_int_equal(lt->cublasLtMatmulAlgoGetHeuristic(handle, desc, a, narrow_b, d, d, preference, 1, &found, &n),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(narrow_b), 0);
    assert_int_equal(lt->cublasLtMatmulPreferenceDestroy(preference), 0);
    assert_int_equal(lt->cublasLtMatmulDescDestroy(desc), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(a), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(b), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(d), 0);
    assert_int_equal(lt->cublasLtDestroy(handle), 0);
}

/* ---- The prelude ---- */

typedef struct names {
    char name[512][64];
    size_t n;
} names;

static bool has_name(const names *list, const char *name, size_t n) {
    for (size_t i = 0; i < list->n; i++) {
        if (strlen(list->name[i]) == n && memcmp(list->name[i], name, n) == 0) {
            return true;
        }
    }
    return false;
}

static size_t name_length(const char *p) {
    size_t n = 0;
    while ((p[n] >= 'a' && p[n] <= 'z') || (p[n] >= 'A' && p[n] <= 'Z') || (p[n] >= '0' && p[n] <= '9') ||
           p[n] == '_') {
        n++;
    }
    return n;
}

/* The names between [functions] and [end] of the head comment. */
static void listed_names(names *list) {
    const char *p = strstr(rp__embed_prelude_cuh, "[functions]"), *end = strstr(rp__embed_prelude_cuh, "[end]");
    assert_true(p && end && end > p);
    list->n = 0;
    for (; p < end; p++) {
        size_t n = strncmp(p, "rp_", 3) == 0 && p[-1] == ' ' ? name_length(p) : 0;
        if (n && !(p[n - 2] == '_' && p[n - 1] == 'T') && !has_name(list, p, n)) {
            assert_true(list->n < 512 && n < 64);
            memcpy(list->name[list->n], p, n);
            list->name[list->n++][n] = '\0';
        }
        p += n ? n - 1 : 0;
    }
    assert_true(list->n > 150);
}

/* Every function that the text defines by its plain name is in the list. */
static void check_defined(const names *list, const char *text) {
    size_t seen = 0;
    for (const char *p = strstr(text, "RP_FN "); p; p = strstr(p + 1, "RP_FN ")) {
        const char *open = strchr(p, '('), *name = open;
        if (open[1] == 'r' && open[2] == 'p') { /* (rp_barrier)(void) */
            continue;
        }
        while (name > p && name_length(name - 1) > 0) {
            name--;
        }
        size_t n = name_length(name);
        if (name[n] != '(' || strncmp(name, "rp_", 3) != 0 || strncmp(name, "rp__", 4) == 0 || name[-1] == '#') {
            continue;
        }
        if (!has_name(list, name, n)) {
            print_message("%.*s is not in the list of prelude.cuh\n", (int)n, name);
        }
        assert_true(has_name(list, name, n));
        seen++;
    }
    assert_true(seen > 40);
}

static char *use_all(const names *list) {
    char *text = malloc(list->n * 160 + 512);
    size_t at = (size_t)sprintf(text, "extern \"C\" __global__ void all_names(void **out) {\n    int i = 0;\n");
    for (size_t i = 0; i < list->n; i++) {
        at += (size_t)sprintf(text + at, "    out[i++] = (void *)%s;\n", list->name[i]);
    }
    sprintf(text + at, "}\n");
    char *source = with_prelude(text);
    free(text);
    return source;
}

static char *read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        return NULL;
    }
    char *text = calloc(1, 1 << 20);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

static void test_prelude_names(void **state) {
    (void)state;
    static names list;
    char *image, *log;
    listed_names(&list);
    check_defined(&list, rp__embed_prelude_cuh);
    char *source = use_all(&list);
    nvrtcResult result = compile_with(rtc, source, architecture, &image, &log);
    if (result != NVRTC_SUCCESS) {
        print_message("%s\n", log);
    }
    assert_int_equal(result, NVRTC_SUCCESS);
    free(image);
    free(log);
    free(source);
    char path[1024];
    const char *data = getenv("REPRISE_TEST_DATA"); /* tests/data of the source tree */
    assert_non_null(data);
    snprintf(path, sizeof path, "%s/../cudasim/prelude.h", data);
    char *text = read_text(path);
    assert_non_null(text);
    check_defined(&list, text);
    free(text);
}

/* NVIDIA's NVRTC, where it is installed, compiles the prelude and the kernels of this file for the first and the newest
 * target. */
static void test_real_nvrtc(void **state) {
    (void)state;
    static names list;
    static rp__libnvrtc table;
    static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.13",
                                        "/usr/local/cuda/lib64/libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"};
    void *library = NULL;
    const char *wanted = getenv("REPRISE_REAL_NVRTC");
    library = wanted && *wanted ? dlopen(wanted, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t i = 0; !library && i < sizeof files / sizeof files[0]; i++) {
        library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        int major = 0, minor = 0;
        nvrtcResult (*version)(int *, int *) = NULL;
        if (library) {
            *(void **)&version = dlsym(library, "nvrtcVersion");
            version(&major, &minor);
        }
        if (library && minor >= 1000) { /* the emulator, found by its name */
            dlclose(library);
            library = NULL;
        }
    }
    if (!library) {
        print_message("skipped: NVIDIA's NVRTC is not installed\n");
        skip();
    }
#define RP__NVRTC_FN(need, name, symbol, ret, args) *(void **)&table.name = dlsym(library, #symbol);
#include "device/cuda/libnvrtc.def"
#undef RP__NVRTC_FN
    listed_names(&list);
    char *sources[] = {use_all(&list), with_prelude(kernels), with_prelude(functions)};
    static const char *const archs[] = {"-arch=sm_80", "-arch=sm_90a"};
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < 2; j++) {
            char *image, *log;
            nvrtcResult result = compile_with(&table, sources[i], archs[j], &image, &log);
            if (result != NVRTC_SUCCESS) {
                print_message("%s: %.2000s\n", archs[j], log);
            }
            assert_int_equal(result, NVRTC_SUCCESS);
            assert_memory_equal(image, "\177ELF", 4);
            free(image);
            free(log);
        }
        free(sources[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_device),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_virtual_memory),
        cmocka_unit_test(test_poison_and_bounds),
        cmocka_unit_test(test_launch),
        cmocka_unit_test(test_shared_and_shuffles),
        cmocka_unit_test(test_prelude_functions),
        cmocka_unit_test(test_wrong_kernels),
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_capture_errors),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_programmatic_edges),
        cmocka_unit_test(test_conditional_nodes),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_cublaslt),
        cmocka_unit_test(test_prelude_names),
        cmocka_unit_test(test_real_nvrtc),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
