/* The emulated driver: memory, kernels, modules, streams. test_cudasim_graphs.c has capture and graphs,
 * test_cudasim_libraries.c the symbol tables, the prelude, NVRTC and cuBLASLt. By default the libraries of
 * REPRISE_CUDASIM_DIR are driven. With REPRISE_TEST_REAL_CUDA=1 the installed ones are, and the tests that need the emulator
 * (poison, failure on demand, deliberately wrong kernels) are skipped with a line each: so the rest shows that the emulator
 * answers as a GPU does. */
/* ctest: labels=cuda timeout=600 cost=12 */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cudasim/cudasim.h"
#include "support/cudasim.h"

/* ---- Set-up ---- */

/* After a test that lost the context on purpose. */
static void recover(CUresult code) {
    assert_int_equal(cu->cuStreamSynchronize(stream), code);
    sim.reset_error();
}

/* ---- Symbol tables ---- */

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
    to_device(p, host, sizeof host);
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
    to_device(in, host, sizeof host);
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
    to_device(in, host, N * sizeof *host);
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
        to_device(numbers, ints, sizeof ints);
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

static int clz32(uint32_t v) {
    int n = 0;
    while (n < 32 && !(v >> (31 - n) & 1)) {
        n++;
    }
    return n;
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
    const int64_t expected[16] = {
        0xfffffffd, 2,  clz32(0x10000) * 100 + 32, 6364, 864, 0x80000000, 2147483647, -2, INT64_MAX, 0, INT32_MIN, 0,
        1,          11, 0x3f8020003f804000,        1};
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
    to_device(pa, a, sizeof a);
    to_device(pb, b, sizeof b);
    to_device(pa32, a32, sizeof a32);
    to_device(pb32, b32, sizeof b32);
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
    to_device(pu, u, sizeof u);
    to_device(pf, f, sizeof f);
    to_device(pdd, &zero, sizeof zero);
    to_device(pw, &w, sizeof w);
    to_device(ph, h, sizeof h);
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

/* A warpgroup's chain of 64 x 64 x 8 and the same of four warps: how many results differ in their bits. product.c counts on none. */
static const char both_ways[] =
    "extern \"C\" __global__ void __launch_bounds__(128) both_ways(int *differ, rp_u32 seed) {\n"
    "    extern __shared__ __align__(128) unsigned char room[];\n"
    "    rp_u16 *b = (rp_u16 *)room;\n" /* pieces of K, columns, 8 of K */
    "    const int t = threadIdx.x, lane = t % 32;\n"
    "    for (int i = t; i < 512; i += 128) {\n"
    "        const rp_u32 r = (i + 1 + seed * 977u) * 2654435761u ^ (i * 40503u + seed) << 7;\n"
    "        b[i] = TO_16(((int)(r >> 8 & 0xffff) - 32768) * rp_exp2_f32((float)((int)(r >> 25 & 15) - 20)));\n"
    "    }\n"
    "    rp_fence_proxy_async();\n"
    "    rp_barrier();\n"
    "    float one[4] = {0, 0, 0, 0}, other[4] = {0, 0, 0, 0};\n"
    "    rp_u32 a[4][4];\n"
    "    for (int q = 0; q < 4; q++) for (int v = 0; v < 4; v++) {\n"
    "        const rp_u32 r = (t * 16 + q * 4 + v + 3 + seed * 31u) * 2246822519u ^ (t + seed) << 9;\n"
    "        a[q][v] = TO_16(((int)(r & 0xfff) - 2048) * rp_exp2_f32((float)((int)(r >> 26 & 7) - 12))) |\n"
    "                  (rp_u32)TO_16(((int)(r >> 12 & 0xfff) - 2048) * rp_exp2_f32((float)((int)(r >> 29) - 12))) << 16;\n"
    "    }\n"
    "    for (int q = 0; q < 4; q++) {\n"
    "        rp_u32 f[2];\n"
    "        for (int v = 0; v < 2; v++) f[v] = *(rp_u32 *)&b[(q * 2 + v) * 64 + lane / 4 * 8 + lane % 4 * 2];\n"
    "        MMA(other, a[q], f);\n"
    "    }\n"
    "    rp_wgmma_hold(one, 4);\n"
    "    rp_wgmma_fence();\n"
    "    _Pragma(\"unroll\") for (int q = 0; q < 4; q++)\n"
    "        WGMMA(one, a[q], rp_wgmma_desc(b, 128, 128, 0) + q * 16, 1, 0);\n"
    "    rp_wgmma_commit();\n"
    "    rp_wgmma_wait(0);\n"
    "    rp_wgmma_hold(one, 4);\n"
    "    for (int v = 0; v < 4; v++) if (rp_f32_bits(one[v]) != rp_f32_bits(other[v])) rp_atomic_add_i32(differ, 1);\n"
    "    rp_atomic_add_i32(differ + 1, one[0] != 0);\n"
    "}\n";

/* The same of f32 as tf32, both operands in shared memory, whatever the 13 bits are that nobody reads. */
static const char both_ways_tf32[] =
    "extern \"C\" __global__ void __launch_bounds__(128) both_ways(int *differ, rp_u32 seed) {\n"
    "    extern __shared__ __align__(128) unsigned char room[];\n"
    "    float *a = (float *)room, *b = a + 2048;\n" /* pieces of four of K, rows (columns), K */
    "    const int t = threadIdx.x, lane = t % 32, w = t / 32;\n"
    "    for (int i = t; i < 2048 + 256; i += 128) {\n"
    "        const rp_u32 r = (i + 1 + seed * 977u) * 2654435761u ^ (i * 40503u + seed) << 7;\n"
    "        a[i] = ((int)(r >> 8 & 0xffff) - 32768) * rp_exp2_f32((float)((int)(r >> 25 & 31) - 30)) + (float)(r & 255) * 1e-9f;\n"
    "    }\n"
    "    rp_fence_proxy_async();\n"
    "    rp_barrier();\n"
    "    float one[4] = {0, 0, 0, 0}, other[4] = {0, 0, 0, 0};\n"
    "    for (int q = 0; q < 4; q++) {\n"
    "        rp_u32 f[4], g[2];\n"
    "        for (int v = 0; v < 4; v++)\n"
    "            f[v] = rp_f32_bits(a[(2 * q + v / 2) * 256 + (w * 16 + lane / 4 + v % 2 * 8) * 4 + lane % 4]);\n"
    "        for (int v = 0; v < 2; v++) g[v] = rp_f32_bits(b[(2 * q + v) * 32 + lane]);\n"
    "        rp_mma_m16n8k8_tf32(other, f, g);\n"
    "    }\n"
    "    rp_wgmma_hold(one, 4);\n"
    "    rp_wgmma_fence();\n"
    "    _Pragma(\"unroll\") for (int q = 0; q < 4; q++)\n"
    "        rp_wgmma_n8_tf32(one, rp_wgmma_desc(a, 1024, 128, 0) + q * 128, rp_wgmma_desc(b, 128, 128, 0) + q * 16, 1);\n"
    "    rp_wgmma_commit();\n"
    "    rp_wgmma_wait(0);\n"
    "    rp_wgmma_hold(one, 4);\n"
    "    for (int v = 0; v < 4; v++) if (rp_f32_bits(one[v]) != rp_f32_bits(other[v])) rp_atomic_add_i32(differ, 1);\n"
    "    rp_atomic_add_i32(differ + 1, one[0] != 0);\n"
    "}\n";

static void test_warpgroup_bits(void **state) {
    (void)state;
    if (strcmp(architecture, "-arch=sm_90") != 0) {
        print_message("skipped: a device of 9.0 has these instructions\n");
        skip();
    }
    CUdeviceptr p = device_alloc(8);
    for (int which = 0; which < 3; which++) {
        char text[sizeof both_ways + sizeof both_ways_tf32];
        int counts[2] = {0, 0};
        const char *type = which ? "bf16" : "f16";
        snprintf(
            text, sizeof text,
            "#define TO_16(x) rp_cvt_f32_to_%s(x)\n#define MMA rp_mma_m16n8k16_%s\n#define WGMMA rp_wgmma_n8_%s_ra\n%s",
            type, type, type, both_ways);
        CUlibrary library = load_for("-arch=sm_90a", which == 2 ? both_ways_tf32 : text);
        OK(cu->cuMemcpyHtoD(p, counts, sizeof counts));
        const int turns = real ? 1000 : 2;
        for (int turn = 0; turn < turns; turn++) {
            uint32_t number = (uint32_t)turn;
            void *params[] = {&p, &number};
            OK(cu->cuLaunchKernel(function_of(library, "both_ways"), 1, 1, 1, 128, 1, 1, 16384, stream, params, NULL));
        }
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(counts, p, sizeof counts));
        assert_int_equal(counts[0], 0);
        assert_true(counts[1] > turns * 100);
        OK(cu->cuLibraryUnload(library));
    }
    OK(cu->cuMemFree(p));
}

/* Four warps bring numbers by way of a ring, four others add them up: full and empty places are told by barriers in shared memory. */
static void test_rings(void **state) {
    (void)state;
    if (strcmp(architecture, "-arch=sm_90") != 0) {
        print_message("skipped: a device of 9.0 has these instructions\n");
        skip();
    }
    static const char ring[] =
        "extern \"C\" __global__ void __launch_bounds__(256) ring(const rp_u32 *from, rp_u32 *to, int steps) {\n"
        "    __shared__ __align__(16) rp_u32 room[2][512];\n"
        "    __shared__ rp_u64 full[2], empty[2];\n"
        "    const int t = threadIdx.x;\n"
        "    rp_u32 sum = 0;\n"
        "    for (int i = 0; t == 0 && i < 2; i++) {\n"
        "        rp_mbarrier_init(&full[i], 128);\n"
        "        rp_mbarrier_init(&empty[i], 4);\n"
        "    }\n"
        "    rp_barrier();\n"
        "    for (int s = 0; s < steps; s++) {\n"
        "        const int at = s % 2, turn = s / 2 % 2;\n"
        "        if (t >= 128) {\n"
        "            rp_mbarrier_wait(&empty[at], turn ^ 1);\n"
        "            rp_cp_async_16(&room[at][(t - 128) * 4], from + s * 512 + (t - 128) * 4);\n"
        "            rp_mbarrier_arrive_copied(&full[at]);\n"
        "        } else {\n"
        "            rp_mbarrier_wait(&full[at], turn);\n"
        "            for (int i = 0; i < 4; i++) sum = sum * 3 + room[at][(t * 4 + i + 77) % 512];\n"
        "            rp_warp_sync();\n"
        "            if (t % 32 == 0) rp_mbarrier_arrive(&empty[at]);\n"
        "        }\n"
        "    }\n"
        "    rp_cp_async_wait(0);\n"
        "    if (t < 128) to[t] = sum;\n"
        "}\n"
        "extern \"C\" __global__ void nobody(rp_u32 *p) {\n"
        "    __shared__ rp_u64 full[1];\n"
        "    if (threadIdx.x == 0) rp_mbarrier_init(full, 33);\n"
        "    rp_barrier();\n"
        "    if (threadIdx.x < 32) rp_mbarrier_arrive(full);\n"
        "    else rp_mbarrier_wait(full, 0);\n"
        "    *p = 1;\n"
        "}\n";
    enum { STEPS = 9 };
    uint32_t numbers[STEPS * 512], sums[128];
    for (uint32_t i = 0; i < STEPS * 512; i++) numbers[i] = i * 2654435761u ^ i << 9;
    CUdeviceptr from = device_alloc(sizeof numbers), to = device_alloc(sizeof sums);
    OK(cu->cuMemcpyHtoD(from, numbers, sizeof numbers));
    CUlibrary library = load_for("-arch=sm_90a", ring);
    int steps = STEPS;
    void *params[] = {&from, &to, &steps};
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        OK(cu->cuLaunchKernel(function_of(library, "ring"), 2, 1, 1, 256, 1, 1, 0, stream, params, NULL));
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(sums, to, sizeof sums));
        for (uint32_t t = 0; t < 128; t++) {
            uint32_t sum = 0;
            for (uint32_t i = 0; i < STEPS * 4; i++) sum = sum * 3 + numbers[i / 4 * 512 + (t * 4 + i % 4 + 77) % 512];
            assert_int_equal(sums[t], sum);
        }
    }
    if (!real) {
        char text[512];
        OK(cu->cuLaunchKernel(function_of(library, "nobody"), 1, 1, 1, 64, 1, 1, 0, stream, &params[1], NULL));
        recover(CUDA_ERROR_LAUNCH_TIMEOUT);
        sim.last_text(text, sizeof text);
        assert_non_null(strstr(text, "deadlock"));
    }
    OK(cu->cuMemFree(from));
    OK(cu->cuMemFree(to));
    OK(cu->cuLibraryUnload(library));
}

/* Products of a warpgroup: each way that matrices lie in shared memory, and sizes, types and sources spread over them. */
static void test_warpgroups(void **state) {
    (void)state;
    if (strcmp(architecture, "-arch=sm_90") != 0) {
        print_message("skipped: a device of 9.0 has these instructions\n");
        skip();
    }
    static const int sizes[] = {8, 16, 32, 48, 64, 80, 96, 128, 160, 176, 192, 256};
    enum { CASES = 24, N_SIZES = sizeof sizes / sizeof *sizes };
    CUdeviceptr p = device_alloc(64 * 256 * 4);
    float *out = malloc(64 * 256 * 4);
    for (int c = 0; c < CASES; c++) {
        static const int swizzles[] = {128, 64, 32, 0};
        const bool held = c >= 16, across_a = !held && c & 1, across_b = c >> (held ? 0 : 1) & 1, keep = c % 3 != 0;
        const int swizzle = swizzles[(held ? c >> 1 : c >> 2) & 3];
        int n = sizes[(c * 7 + 10) % N_SIZES];
        if (across_b && n % (swizzle ? swizzle / 2 : 8)) n = n < 128 ? 64 : 192; /* whole lines */
        char text[sizeof warpgroup + 256];
        snprintf(text, sizeof text,
                 "#define N %d\n#define TYPE %s\n#define SWIZZLE %d\n#define ACROSS_A %d\n#define ACROSS_B %d\n"
                 "#define HELD %d\n#define KEEP %d\n%s",
                 n, (c ^ c >> 2) & 1 ? "bf16" : "f16", swizzle, across_a, across_b, held, keep, warpgroup);
        CUlibrary library = load_for("-arch=sm_90a", text);
        void *params[] = {&p};
        seed((unsigned long long)c);
        OK(cu->cuLaunchKernel(function_of(library, "warpgroup"), 1, 1, 1, 128, 1, 1, (unsigned)(64 + n) * 128, stream,
                              params, NULL));
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(out, p, (size_t)(64 * n) * 4));
        for (int i = 0; i < 64 * n; i++) {
            float sum = keep ? 1 : 0;
            for (int k = 0; k < 64; k++) {
                sum += (float)(((i / n * 7 + k * 3) % 9 - 4) * ((i % n * 11 + k * 5) % 7 - 3));
            }
            if (out[i] != sum)
                print_message("case %d, %d columns, swizzle %d: (%d, %d) is %g, not %g\n", c, n, swizzle, i / n, i % n,
                              out[i], sum);
            assert_true(out[i] == sum);
        }
        OK(cu->cuLibraryUnload(library));
    }
    free(out);
    OK(cu->cuMemFree(p));
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

/* What a function returns lies where it belongs, and nothing of what lies beside it changes, whatever compiled the text. */
static void test_returned_structs(void **state) {
    (void)state;
    static const char returning[] =
        "typedef struct { int v[2 * 1 + 1]; /* not *a pointer */ } three;\n"
        "RP_FN three three_from(int n) { three t; for (int i = 0; i < 3; i++) { t.v[i] = n + i; } return t; }\n"
        "extern \"C\" __global__ void around(int *p) {\n"
        "    int before[2] = { 5, 6 };\n"
        "    three t;\n"
        "    int behind[2] = { 7, 8 };\n"
        "    t = three_from(10);\n"
        "    p[0] = before[0], p[1] = before[1], p[2] = behind[0], p[3] = behind[1];\n"
        "    for (int i = 0; i < 3; i++) { p[4 + i] = t.v[i]; }\n"
        "}\n";
    static const int want[] = {5, 6, 7, 8, 10, 11, 12};
    int got[7];
    CUlibrary library = load(returning);
    CUdeviceptr p = device_alloc(sizeof got);
    void *params[] = {&p};
    OK(cu->cuLaunchKernel(function_of(library, "around"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(got, p, sizeof got));
    assert_memory_equal(got, want, sizeof got);
    OK(cu->cuLibraryUnload(library));
    OK(cu->cuMemFree(p));
}

/* What the emulator calls, too. Names of temporary files that are gone come again, by chance: here they do every time. */
static bool same_names;
__attribute__((visibility("default"))) int mkstemp(char *template);
int mkstemp(char *template) {
    if (same_names) {
        memcpy(template + strlen(template) - 6, "Sameun", 6);
        return open(template, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    void *next = dlsym(RTLD_NEXT, "mkstemp");
    int (*call)(char *);
    memcpy(&call, &next, sizeof call);
    return call(template);
}

/* Each image that is loaded is its own, whatever its file was called for that while. */
static void test_many_images(void **state) {
    (void)state;
    if (real) {
        skip();
    }
    same_names = true;
    CUlibrary one = load("extern \"C\" __global__ void first(int *p) { *p = 1; }\n"),
              other = load("extern \"C\" __global__ void second(int *p) { *p = 2; }\n");
    same_names = false;
    CUdeviceptr p = device_alloc(4);
    void *params[] = {&p};
    OK(cu->cuLaunchKernel(function_of(one, "first"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(p), 1);
    OK(cu->cuLaunchKernel(function_of(other, "second"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(p), 2);
    OK(cu->cuLibraryUnload(one));
    OK(cu->cuLibraryUnload(other));
    OK(cu->cuMemFree(p));
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
    to_device(global, &number, 4);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_virtual_memory),
        cmocka_unit_test(test_poison_and_bounds),
        cmocka_unit_test(test_launch),
        cmocka_unit_test(test_shared_and_shuffles),
        cmocka_unit_test(test_prelude_functions),
        cmocka_unit_test(test_warpgroup_bits),
        cmocka_unit_test(test_warpgroups),
        cmocka_unit_test(test_rings),
        cmocka_unit_test(test_wrong_kernels),
        cmocka_unit_test(test_returned_structs),
        cmocka_unit_test(test_many_images),
        cmocka_unit_test(test_modules),
        cmocka_unit_test(test_streams),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
