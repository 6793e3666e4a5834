/* What the tests of the emulator share: the libraries, and kernels compiled with the prelude. */
#ifndef RP_TESTS_CUDASIM_H
#define RP_TESTS_CUDASIM_H

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

static inline CUresult shown(CUresult result, const char *expression, int line) {
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

static inline void seed(unsigned long long n) {
    if (!real) {
        sim.seed(n);
    }
}

static inline char *with_prelude(const char *kernels) {
    size_t n = strlen(rp__embed_prelude_cuh) + strlen(kernels) + 256;
    char *text = malloc(n);
    assert_non_null(text);
    snprintf(
        text, n,
        "#define RP_PRELUDE_WGMMA 1\n#define RP_PRELUDE_CONDITIONAL 1\n/* rp-prelude begin */\n%s/* rp-prelude end */\n%s",
        rp__embed_prelude_cuh, kernels);
    return text;
}

static inline nvrtcResult compile_with(const rp__libnvrtc *r, const char *source, const char *arch, char **image,
                                       char **log) {
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

static inline CUlibrary load_for(const char *arch, const char *kernels) {
    char *source = with_prelude(kernels), *image, *log;
    nvrtcResult result = compile_with(rtc, source, arch, &image, &log);
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

static inline CUlibrary load(const char *kernels) { return load_for(architecture, kernels); }

static inline CUfunction function_of(CUlibrary library, const char *name) {
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

static inline CUfunction fn(const char *name) { return function_of(common, name); }

typedef struct args {
    CUdeviceptr out, in;
    int64_t n;
    float scale;
    uint8_t flag;
} args;

static inline CUdeviceptr device_alloc(size_t bytes) {
    CUdeviceptr p;
    OK(cu->cuMemAlloc(&p, bytes));
    return p;
}
/* A copy that has ended: of memory that is not pinned the driver's may still be under way when it returns, and streams of ours do not
   wait for it. */
static inline void to_device(CUdeviceptr p, const void *host, size_t bytes) {
    OK(cu->cuMemcpyHtoD(p, host, bytes));
    OK(cu->cuCtxSynchronize());
}

static inline void launch(const char *name, unsigned int grid, unsigned int block, unsigned int shared, CUstream s,
                          void **params) {
    OK(cu->cuLaunchKernel(fn(name), grid, 1, 1, block, 1, 1, shared, s, params, NULL));
}

static inline void launch_put(CUdeviceptr p, int v, CUstream s) {
    void *params[] = {&p, &v};
    launch("put", 1, 1, 0, s, params);
}

static inline int read_int(CUdeviceptr p) {
    int v;
    OK(cu->cuMemcpyDtoH(&v, p, sizeof v));
    return v;
}

static inline void write_int(CUdeviceptr p, int v) { OK(cu->cuMemcpyHtoD(p, &v, sizeof v)); }

static inline int start(void **state) {
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
        snprintf(path, sizeof path, "%s/libcudnn.so.9", folder);
        if (!getenv("REPRISE_LIBCUDNN")) setenv("REPRISE_LIBCUDNN", path, 1);
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

static inline int stop(void **state) {
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
    "    o[14] = (rp_i64)rp_cvt_f32_to_tf32(rp_bits_f32(0x3f801000u)) << 32 | rp_cvt_f32_to_tf32(rp_bits_f32(0x3f803000u));\n"
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

/* A product 64 x 64 x N of small integers, plus one, by a warpgroup; the macros are the test's. Rows are those of a and columns of b. */
static const char warpgroup[] =
    "#define GLUE(a, b, c) a##b##_##c\n"
    "#define GLUED(a, b, c) GLUE(a, b, c)\n"
    "#define GLUE_RA2(n, type) rp_wgmma_n##n##_##type##_ra\n"
    "#define GLUE_RA(n, type) GLUE_RA2(n, type)\n"
    "#define CONVERT GLUED(rp_cvt_f32_, to, TYPE)\n"
    "RP_FN int place(int row, int k, int rows, int across) {\n"
    "    if (!SWIZZLE) return across ? row / 8 * (64 * 16) + k * 16 + row % 8 * 2 : k / 8 * (rows * 16) + row * 16 + k % 8 * 2;\n"
    "    const int line = across ? k : row, piece = (across ? row : k) / 8, n = SWIZZLE / 16;\n"
    "    return piece / n * (across ? 64 : rows) * SWIZZLE + line * SWIZZLE + (piece % n ^ line % 8 / (8 / n)) * 16 +\n"
    "           (across ? row : k) % 8 * 2;\n"
    "}\n"
    "RP_FN rp_u64 matrix(const unsigned char *p, int rows, int across) {\n"
    "    if (!SWIZZLE) return across ? rp_wgmma_desc(p, 128, 64 * 16, 0) : rp_wgmma_desc(p, rows * 16, 128, 0);\n"
    "    return rp_wgmma_desc(p, across ? 64 * SWIZZLE : 0, 8 * SWIZZLE, SWIZZLE);\n"
    "}\n"
    "RP_FN rp_u64 further(int q, int rows, int across) {\n" /* 16 q of K */
    "    if (!SWIZZLE) return across ? q * 16 : q * 2 * rows;\n"
    "    if (across) return q * SWIZZLE;\n"
    "    const int n = SWIZZLE / 16;\n"
    "    return q * 2 / n * (rows * n) + q * 2 % n;\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(128) warpgroup(float *out) {\n"
    "    extern __shared__ __align__(1024) unsigned char room[];\n"
    "    unsigned char *b = room + 64 * 64 * 2;\n"
    "    const int t = threadIdx.x, lane = t % 32;\n"
    "    for (int i = t; i < 64 * 64; i += 128)\n"
    "        *(rp_u16 *)(room + place(i / 64, i % 64, 64, ACROSS_A)) = CONVERT((float)((i / 64 * 7 + i % 64 * 3) % 9 - 4));\n"
    "    for (int i = t; i < N * 64; i += 128)\n"
    "        *(rp_u16 *)(b + place(i / 64, i % 64, N, ACROSS_B)) = CONVERT((float)((i / 64 * 11 + i % 64 * 5) % 7 - 3));\n"
    "    rp_fence_proxy_async();\n"
    "    rp_barrier();\n"
    "    float d[N / 2];\n"
    "    for (int i = 0; i < N / 2; i++) d[i] = 1;\n"
    "    rp_u32 held[4][4];\n"
    "    for (int q = 0; q < 4; q++) for (int v = 0; v < 4; v++) {\n"
    "        const int row = t / 32 * 16 + lane / 4 + v % 2 * 8, k = q * 16 + lane % 4 * 2 + v / 2 * 8;\n"
    "        held[q][v] = *(rp_u16 *)(room + place(row, k, 64, ACROSS_A)) |\n"
    "                     (rp_u32)*(rp_u16 *)(room + place(row, k + 1, 64, ACROSS_A)) << 16;\n"
    "    }\n"
    "    const rp_u64 da = matrix(room, 64, ACROSS_A), db = matrix(b, N, ACROSS_B);\n"
    "    rp_wgmma_hold(d, N / 2);\n"
    "    rp_wgmma_fence();\n"
    "    _Pragma(\"unroll\") for (int q = 0; q < 4; q++)\n"
    "        if (HELD) GLUE_RA(N, TYPE)(d, held[q], db + further(q, N, ACROSS_B), q > 0 || KEEP, ACROSS_B);\n"
    "        else GLUED(rp_wgmma_n, N, TYPE)(d, da + further(q, 64, ACROSS_A), db + further(q, N, ACROSS_B), q > 0 || KEEP,\n"
    "                                        ACROSS_A, ACROSS_B);\n"
    "    rp_wgmma_commit();\n"
    "    rp_wgmma_wait(0);\n"
    "    rp_wgmma_hold(d, N / 2);\n"
    "    for (int i = 0; i < N / 2; i++)\n"
    "        out[(t / 32 * 16 + lane / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];\n"
    "}\n";

/* Nearest even by exact arithmetic in double: the neighbours of x among values with `bits` of mantissa and least
 * exponent `low`. */
static inline uint32_t round_to(float x, int mantissa, int exponent_bits) {
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

#endif
