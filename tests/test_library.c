/* ctest: labels=numbers,threads timeout=600 cost=44 */
/* Library ops on the CPU against plain loops. Products and convolutions are compared bit for bit: their order of summation is
   part of the contract (kernel/cpu/gemm.h), so every instruction set with fma and each without, every thread count and layout
   must give what the loops here give. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "device/device.h"
#include "device/error_record.h"
#include "kernel/cpu/dots.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/lib_onednn.h"
#include "kernel/cpu/tiles.h"
#include "kernel/library.h"
#include "kernel/template.h"
#include "support/slow.h"

static rp__device *cpu;

static uint64_t seed = 1;
static uint32_t random_word(void) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33);
}
static double random_unit(void) { return (double)(random_word() % 4096) / 2048 - 1; }

/* An operand with memory of its own; sizes of 0 own nothing. gap: stride of the innermost dim in `order` (a permutation,
   outer first). */
typedef struct array {
    rp__operand o;
    unsigned char *memory;
    size_t bytes;
} array;

static array array_new(rp_dtype dtype, unsigned ndim, const int64_t *size, const unsigned *order, int64_t gap) {
    array a = {.o = {.dtype = dtype, .ndim = (uint8_t)ndim}};
    int64_t n = gap;
    for (unsigned i = ndim; i-- > 0;) {
        const unsigned d = order ? order[i] : i;
        a.o.size[d] = size[d];
        a.o.stride[d] = n;
        n *= size[d] > 0 ? size[d] : 1;
    }
    const int64_t element = (int64_t)rp__dtype_bytes(dtype);
    a.bytes = (size_t)(n * element + 64);
    a.memory = malloc(a.bytes);
    assert_non_null(a.memory);
    memset(a.memory, 0x5a, a.bytes);
    a.o.base = a.memory + element; /* never a vector's alignment */
    return a;
}
static void array_free(array *a) { free(a->memory); }

static double get(const rp__operand *o, int64_t at) {
    switch (o->dtype) {
    case RP_F32: return ((const float *)o->base)[at];
    case RP_F64: return ((const double *)o->base)[at];
    case RP_F16: return rp__f16_to_f32(((const uint16_t *)o->base)[at]);
    case RP_BF16: return rp__bf16_to_f32(((const uint16_t *)o->base)[at]);
    case RP_I32: return ((const int32_t *)o->base)[at];
    case RP_I64: return (double)((const int64_t *)o->base)[at];
    case RP_I8: return ((const int8_t *)o->base)[at];
    case RP_I16: return ((const int16_t *)o->base)[at];
    default: return ((const uint8_t *)o->base)[at];
    }
}
static void put(const rp__operand *o, int64_t at, double x) {
    switch (o->dtype) {
    case RP_F32: ((float *)o->base)[at] = (float)x; break;
    case RP_F64: ((double *)o->base)[at] = x; break;
    case RP_F16: ((uint16_t *)o->base)[at] = rp__f32_to_f16((float)x); break;
    case RP_BF16: ((uint16_t *)o->base)[at] = rp__f32_to_bf16((float)x); break;
    case RP_I32: ((int32_t *)o->base)[at] = (int32_t)x; break;
    case RP_I64: ((int64_t *)o->base)[at] = (int64_t)x; break;
    case RP_I8: ((int8_t *)o->base)[at] = (int8_t)x; break;
    case RP_I16: ((int16_t *)o->base)[at] = (int16_t)x; break;
    default: ((uint8_t *)o->base)[at] = (uint8_t)(int64_t)x; /* wraps, where x itself may not */
    }
}
static int64_t numel(const rp__operand *o) {
    int64_t n = 1;
    for (unsigned i = 0; i < o->ndim; i++) n *= o->size[i];
    return n;
}
/* Offset of the i-th element in logical order. */
static int64_t offset_of(const rp__operand *o, int64_t i) {
    int64_t at = 0;
    for (unsigned d = o->ndim; d-- > 0;) {
        at += i % o->size[d] * o->stride[d];
        i /= o->size[d];
    }
    return at;
}
static void fill(const array *a) {
    const bool real = rp__dtype_is_float(a->o.dtype);
    for (int64_t i = 0, n = numel(&a->o); i < n; i++) {
        const double x = real ? random_unit() : (double)(random_word() % 200) - (a->o.dtype == RP_U8 ? 0 : 100);
        put(&a->o, offset_of(&a->o, i), x);
    }
}

static rp_status run(rp__library_op op, const array *a, size_t n, rp__library_call *call) {
    rp__operand o[4];
    for (size_t i = 0; i < n; i++) o[i] = a[i].o;
    call->op = "test";
    call->site = "test_library.c";
    return rp__library_run(cpu, rp__current_stream(cpu), op, o, n, call);
}
static void run_ok(rp__library_op op, const array *a, size_t n, rp__library_call *call) {
    if (run(op, a, n, call) != RP_OK) fail_msg("%s", rp_error_message());
}

/* Do the products in memory come from an instruction set with fma? From the matrix unit? */
static bool fused, dots;
static const char *const names[] = {"baseline", "avx2", "avx512"};
enum { NAMES = sizeof names / sizeof *names };
static bool has_fma(unsigned name) {
#ifdef __aarch64__
    return true || name;
#else
    return name > 0;
#endif
}
/* Runs the op for instruction sets [from, end), with one thread and with two; the memory of the first result must come back.
   false: none of them is here. */
static bool run_each(rp__library_op op, const array *a, size_t n, rp__library_call *call, unsigned from, unsigned end) {
    unsigned char *first = NULL, *empty = malloc(a[0].bytes);
    assert_non_null(empty);
    memcpy(empty, a[0].memory, a[0].bytes);
    for (unsigned i = from; i < end; i++) {
        const rp__tiles *tiles = rp__tiles_named(names[i]);
        if (!tiles) continue;
        rp__tiles_set(tiles);
        rp__dots_set(dots);
        for (int threads = 1; threads <= 2; threads++) {
            assert_int_equal(rp_set_num_threads(threads), RP_OK);
            memcpy(a[0].memory, empty, a[0].bytes);
            run_ok(op, a, n, call);
            if (!first) {
                first = malloc(a[0].bytes);
                assert_non_null(first);
                memcpy(first, a[0].memory, a[0].bytes);
            } else if (memcmp(first, a[0].memory, a[0].bytes)) {
                fail_msg("op %d: %s with %d threads gives other bits", (int)op, names[i], threads);
            }
        }
    }
    rp__tiles_set(NULL);
    rp__dots_set(-1);
    bool any = first != NULL;
    free(first);
    free(empty);
    return any;
}
static void run_everywhere(rp__library_op op, const array *a, size_t n, rp__library_call *call) {
    (void)run_each(op, a, n, call, 0, NAMES);
}
/* Products of the sets without fma (which 0), of those with it (1), and of the matrix unit (2); whole numbers are the same everywhere. */
enum { WAYS = 3 };
static bool run_products(rp__library_op op, const array *a, size_t n, rp__library_call *call, unsigned which) {
    const unsigned cut = has_fma(0) ? 0 : 1;
    fused = which > 0;
    dots = which == 2;
    if (dots) {
        rp__dots_set(1);
        rp__tiles_set(rp__tiles_named(names[NAMES - 1]));
        const bool here = rp__cpu_dots(a[0].o.dtype);
        rp__tiles_set(NULL);
        if (!here) return dots = false;
    }
    return run_each(op, a, n, call, dots ? NAMES - 1 : which ? cut : 0, which ? NAMES : cut);
}
/* The sum of a step of 32 elements by the matrix unit (dots.h). */
static float step_of_dots(const float *x, const float *y, int n) {
    float part[2] = {0, 0};
    for (int i = 0; i < n; i++) part[i % 2] = fmaf(x[i], y[i], part[i % 2]);
    return part[0] + part[1];
}
/* Products added up from left to right, onto one another. Where they are fused on x86 the machine has fma, which a call costs more than. */
#if defined(__x86_64__) && defined(__GNUC__)
#define WITH_FMA __attribute__((target("fma")))
#else
#define WITH_FMA
#endif
#define CHAIN(T, name, fma)                                                                                            \
    WITH_FMA static T name##_fused(const T *x, const T *y, int64_t n) {                                                \
        T sum = 0;                                                                                                     \
        for (int64_t i = 0; i < n; i++) sum = fma(x[i], y[i], sum);                                                    \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static T name(const T *x, const T *y, int64_t n) {                                                                 \
        if (fused) return name##_fused(x, y, n);                                                                       \
        T sum = 0;                                                                                                     \
        for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];                                                            \
        return sum;                                                                                                    \
    }
CHAIN(float, chain_f32, __builtin_fmaf)
CHAIN(double, chain_f64, __builtin_fma)
static float muladd_f32(float x, float y, float sum) { return fused ? fmaf(x, y, sum) : sum + x * y; }
static double muladd_f64(double x, double y, double sum) { return fused ? fma(x, y, sum) : sum + x * y; }

/* ---- products */

enum { BLOCK = 256, GROUP = 16 * BLOCK }; /* of 4-byte sums; 8-byte ones: half */

/* k numbers of an operand side by side, as sums take them: double for f64, else float. */
static void line_of(const rp__operand *o, int64_t at, int64_t step, int64_t k, void *line) {
    if (o->dtype == RP_F64)
        for (int64_t i = 0; i < k; i++) ((double *)line)[i] = ((const double *)o->base)[at + i * step];
    else
        for (int64_t i = 0; i < k; i++) ((float *)line)[i] = (float)get(o, at + i * step);
}

/* One element by the contract (kernel/product.h): blocks, groups of blocks, groups, each from left to right. */
static double product_f64(const double *x, const double *y, int64_t k, const double *bias) {
    double s = 0, group = 0;
    for (int64_t from = 0; from < k; from += BLOCK / 2) {
        const int64_t to = from + BLOCK / 2 < k ? from + BLOCK / 2 : k;
        const double block = chain_f64(x + from, y + from, to - from);
        group = from % (GROUP / 2) == 0 ? block : group + block;
        if (to % (GROUP / 2) == 0 || to == k) s = from < GROUP / 2 ? group : s + group;
    }
    if (bias) s += *bias;
    return s;
}
static double product_f32(const float *x, const float *y, int64_t k, const double *bias) {
    float s = 0, group = 0;
    if (dots) {
        for (int64_t from = 0; from < k; from += 32) {
            const int n = k - from < 32 ? (int)(k - from) : 32;
            group = (from % GROUP ? group : 0) + step_of_dots(x + from, y + from, n);
            if ((from + 32) % GROUP == 0 || from + 32 >= k) s = from < GROUP ? group : s + group;
        }
        if (bias) s += (float)*bias;
        return (double)s;
    }
    for (int64_t from = 0; from < k; from += BLOCK) {
        const int64_t to = from + BLOCK < k ? from + BLOCK : k;
        const float block = chain_f32(x + from, y + from, to - from);
        group = from % GROUP == 0 ? block : group + block;
        if (to % GROUP == 0 || to == k) s = from < GROUP ? group : s + group;
    }
    if (bias) s += (float)*bias;
    return (double)s;
}
/* Sums of integers wrap. */
static double product_whole(const rp__operand *a, int64_t at, int64_t step_a, const rp__operand *b, int64_t bt,
                            int64_t step_b, int64_t k, const double *bias) {
    switch (a->dtype) {
    case RP_I64: {
        uint64_t s = 0;
        for (int64_t i = 0; i < k; i++)
            s += (uint64_t)((const int64_t *)a->base)[at + i * step_a] *
                 (uint64_t)((const int64_t *)b->base)[bt + i * step_b];
        if (bias) s += (uint64_t)(int64_t)*bias;
        return (double)(int64_t)s;
    }
    case RP_I32: {
        uint32_t s = 0;
        for (int64_t i = 0; i < k; i++)
            s += (uint32_t)((const int32_t *)a->base)[at + i * step_a] *
                 (uint32_t)((const int32_t *)b->base)[bt + i * step_b];
        if (bias) s += (uint32_t)(int32_t)*bias;
        return (double)(int32_t)s;
    }
    case RP_I8:
    case RP_I16: {
        int64_t s = bias ? (int64_t)*bias : 0;
        for (int64_t i = 0; i < k; i++) s += (int64_t)get(a, at + i * step_a) * (int64_t)get(b, bt + i * step_b);
        return a->dtype == RP_I8 ? (int8_t)(uint64_t)s : (int16_t)(uint64_t)s;
    }
    default: {
        uint8_t s = 0;
        for (int64_t i = 0; i < k; i++)
            s = (uint8_t)(s +
                          ((const uint8_t *)a->base)[at + i * step_a] * ((const uint8_t *)b->base)[bt + i * step_b]);
        return (uint8_t)(s + (bias ? (uint8_t)*bias : 0));
    }
    }
}

static void check_product(const array *a, bool bias) {
    const unsigned nd = a[0].o.ndim;
    const int64_t M = a[0].o.size[nd - 2], N = a[0].o.size[nd - 1], K = a[1].o.size[nd - 1];
    rp__operand expected = a[0].o;
    double one[1];
    expected.base = one;
    const bool real = rp__dtype_is_float(a[0].o.dtype), f64 = a[0].o.dtype == RP_F64;
    const int64_t width = f64 ? sizeof(double) : sizeof(float);
    char *row = malloc((size_t)(K * width) + 1), *columns = malloc((size_t)(K * N * width) + 1);
    assert_true(row && columns);
    for (int64_t i = 0, n = numel(&a[0].o); i < n; i++) {
        int64_t batch = i / N / M, at = i / N % M * a[1].o.stride[nd - 2], bt = i % N * a[2].o.stride[nd - 1];
        for (unsigned d = nd - 2; d-- > 0;) {
            const int64_t j = batch % a[0].o.size[d];
            batch /= a[0].o.size[d];
            at += j * a[1].o.stride[d];
            bt += j * a[2].o.stride[d];
        }
        double b = bias ? get(&a[3].o, i % N * a[3].o.stride[0]) : 0;
        const int64_t step_a = a[1].o.stride[nd - 1], step_b = a[2].o.stride[nd - 2];
        char *column = columns + i % N * K * width;
        if (real && i % N == 0) line_of(&a[1].o, at, step_a, K, row);
        if (real && i % (M * N) < N) line_of(&a[2].o, bt, step_b, K, column);
        const double *add = bias ? &b : NULL;
        put(&expected, 0,
            f64    ? product_f64((const double *)(void *)row, (const double *)(void *)column, K, add)
            : real ? product_f32((const float *)(void *)row, (const float *)(void *)column, K, add)
                   : product_whole(&a[1].o, at, step_a, &a[2].o, bt, step_b, K, add));
        const size_t bytes = rp__dtype_bytes(a[0].o.dtype);
        const char *got = (const char *)a[0].o.base + offset_of(&a[0].o, i) * (int64_t)bytes;
        if (memcmp(got, one, bytes))
            fail_msg("%s (%lld, %lld, %lld) element %lld: %.9g, expected %.9g", rp_dtype_name(a[0].o.dtype),
                     (long long)M, (long long)N, (long long)K, (long long)i, get(&a[0].o, offset_of(&a[0].o, i)),
                     get(&expected, 0));
    }
    free(row);
    free(columns);
}

static void product_case(rp_dtype dtype, int64_t M, int64_t N, int64_t K, unsigned layout, bool bias) {
    static const unsigned plain[2] = {0, 1}, turned[2] = {1, 0};
    const int64_t y[2] = {M, N}, x[2] = {M, K}, w[2] = {K, N};
    array a[4] = {array_new(dtype, 2, y, layout & 4 ? turned : plain, layout & 8 ? 3 : 1),
                  array_new(dtype, 2, x, layout & 1 ? turned : plain, layout & 8 ? 2 : 1),
                  array_new(dtype, 2, w, layout & 2 ? turned : plain, layout & 16 ? 2 : 1),
                  array_new(dtype, 1, &N, NULL, 2)};
    for (unsigned i = 1; i < 4; i++) fill(&a[i]);
    rp__library_call call = {0};
    for (unsigned which = 0; which < WAYS; which++)
        if (run_products(RP__LIB_MATMUL, a, bias ? 4 : 3, &call, which)) check_product(a, bias);
    for (unsigned i = 0; i < 4; i++) array_free(&a[i]);
}

enum { SPARSER = RACES_ONLY ? 31 : SLOW_BUILD ? 7 : 1 }; /* fewer layouts where the loops here are slow */

static void test_matmul_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {
        {1, 1, 1},       {1, 64, 10},   {64, 1, 7},    {64, 64, 10},   {64, 10, 64},   {3, 5, 0},
        {0, 4, 3},       {4, 0, 3},     {17, 33, 65},  {7, 100, 1},    {1, 300, 77},   {2, 130, 31},
        {13, 67, 300},   {250, 70, 40}, {100, 3, 520}, {5, 4, 1030},   {97, 129, 9},   {11, 16, 16},
        {300, 2, 5},     {3, 5, 4097},  {1, 70, 9000}, {30, 66, 4600}, {4, 700, 270},  {2, 2100, 30},
        {210, 290, 280}, {8, 8, 8},     {12, 28, 300}, {32, 45, 4400}, {1, 200, 1500}, {3, 150, 4500},
        {4, 130, 1100},  {6, 90, 1033}, {1, 90, 1024}, {2, 41, 2048},  {1, 37, 5120},  {3, 40, 1024}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned layout = 0; layout < 32; layout += (i % 3 + 1) * SPARSER)
            product_case(RP_F32, shapes[i][0], shapes[i][1], shapes[i][2], layout, layout % 2);
}

/* Blocks of K that end between steps of the matrix unit: of weights read in place, and of columns of a wider matrix, odd numbers of them. */
static void test_matmul_ends(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{5, 32, 1000, 1000}, {16, 48, 1026, 1026}, {1, 64, 2047, 2048},
                                        {40, 33, 301, 512},  {7, 32, 301, 512},    {18, 70, 1, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t M = shapes[i][0], N = shapes[i][1], K = shapes[i][2];
        const int64_t y[2] = {M, N}, x[2] = {M, K}, w[2] = {shapes[i][3], N};
        array a[3] = {array_new(RP_BF16, 2, y, NULL, 1), array_new(RP_BF16, 2, x, NULL, 1),
                      array_new(RP_BF16, 2, w, (const unsigned[]){1, 0}, 1)};
        a[2].o.size[0] = K;
        fill(&a[1]);
        fill(&a[2]);
        rp__library_call call = {0};
        for (unsigned which = 0; which < WAYS; which++)
            if (run_products(RP__LIB_MATMUL, a, 3, &call, which)) check_product(a, false);
        for (unsigned k = 0; k < 3; k++) array_free(&a[k]);
    }
}

static void test_matmul_dtypes(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_I8, RP_I16};
    static const int64_t shapes[][3] = {{1, 70, 33},    {9, 4, 150},   {33, 65, 20},    {100, 66, 300}, {13, 17, 0},
                                        {70, 1, 9},     {5, 7, 4400},  {16, 300, 1090}, {1, 2100, 70},  {50, 98, 600},
                                        {2, 170, 1300}, {1, 45, 2048}, {2, 21, 4608}};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (unsigned layout = (unsigned)i % 2; layout < 32; layout += 3 * SPARSER)
                product_case(dtypes[d], shapes[i][0], shapes[i][1], shapes[i][2], layout, layout % 2);
}

static void test_matmul_batch(void **state) {
    (void)state;
    /* out (2, 3, M, N); a without, b with the inner batch dim; then the reverse; then rows that fold */
    for (unsigned which = 0; which < 3; which++) {
        const int64_t y[4] = {2, 3, 10, 19}, x[4] = {2, 3, 10, 21}, w[4] = {2, 3, 21, 19};
        array a[3] = {array_new(RP_F32, 4, y, NULL, 1), array_new(RP_F32, 4, x, NULL, 1),
                      array_new(RP_F32, 4, w, NULL, 1)};
        fill(&a[1]);
        fill(&a[2]);
        if (which == 0) a[1].o.stride[1] = 0;
        if (which == 1) a[2].o.stride[0] = 0;
        if (which == 2) a[2].o.stride[0] = a[2].o.stride[1] = 0;
        rp__library_call call = {0};
        for (unsigned set = 0; set < WAYS; set++)
            if (run_products(RP__LIB_MATMUL, a, 3, &call, set)) check_product(a, false);
        for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
    }
}

static void test_matmul_special(void **state) {
    (void)state;
    /* NaN and infinity stay where they belong: no product with padding reaches a result */
    const int64_t y[2] = {7, 21}, x[2] = {7, 5}, w[2] = {5, 21};
    array a[3] = {array_new(RP_F32, 2, y, NULL, 1), array_new(RP_F32, 2, x, NULL, 1), array_new(RP_F32, 2, w, NULL, 1)};
    fill(&a[1]);
    fill(&a[2]);
    put(&a[1].o, 3 * 5 + 2, INFINITY);
    put(&a[2].o, 4 * 21 + 20, NAN);
    rp__library_call call = {0};
    run_ok(RP__LIB_MATMUL, a, 3, &call);
    for (int64_t i = 0; i < 7; i++) {
        for (int64_t j = 0; j < 21; j++) {
            const double v = get(&a[0].o, i * 21 + j);
            if (j == 20)
                assert_true(isnan(v));
            else if (i == 3)
                assert_true(isinf(v) || isnan(v));
            else
                assert_true(isfinite(v));
        }
    }
    for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
}

/* The error of a sum of a million products is that of its blocks, not of its length. */
static void matmul_long(int64_t k, double limit) {
    const int64_t y[2] = {2, 3}, x[2] = {2, k}, w[2] = {k, 3};
    array a[3] = {array_new(RP_F32, 2, y, NULL, 1), array_new(RP_F32, 2, x, NULL, 1), array_new(RP_F32, 2, w, NULL, 1)};
    uint32_t r = 12345;
    for (unsigned i = 1; i < 3; i++) {
        for (int64_t e = 0; e < numel(&a[i].o); e++, r = r * 1664525u + 1013904223u)
            ((float *)a[i].o.base)[e] = (float)(r >> 8) * 0x1p-24f;
    }
    rp__library_call call = {0};
    run_ok(RP__LIB_MATMUL, a, 3, &call);
    for (int64_t m = 0; m < 2; m++) {
        for (int64_t n = 0; n < 3; n++) {
            double sum = 0;
            for (int64_t i = 0; i < k; i++) sum += get(&a[1].o, m * k + i) * get(&a[2].o, i * 3 + n);
            assert_true(fabs(get(&a[0].o, m * 3 + n) - sum) <= limit * sum);
        }
    }
    for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
}

/* Sums of blocks: their error does not grow with the length as that of one chain does. */
static void test_matmul_long(void **state) {
    (void)state;
    matmul_long(4096, 4e-7);
    matmul_long(1 << 20, 2e-6);
}

static void test_matmul_refuses(void **state) {
    (void)state;
    const int64_t two[2] = {2, 2};
    array a[3] = {array_new(RP_BOOL, 2, two, NULL, 1), array_new(RP_BOOL, 2, two, NULL, 1),
                  array_new(RP_BOOL, 2, two, NULL, 1)};
    rp__library_call call = {0};
    assert_int_equal(run(RP__LIB_MATMUL, a, 3, &call), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
    for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
}

/* ---- convolutions */

typedef struct conv_case {
    int64_t n, c, o, groups, x[3], w[3], stride[3], padding[3], dilation[3];
    unsigned spatial;
    bool channels_last;
} conv_case;

static const conv_case conv_cases[] = {
    /* weight gradients by taps: several tiles of both channels, blocks and groups of K, and what lies channels last */
    {2, 12, 40, 2, {0, 13, 17}, {0, 3, 3}, {0, 1, 2}, {0, 1, 2}, {0, 1, 1}, 2, false},
    {2, 12, 40, 2, {0, 13, 17}, {0, 3, 3}, {0, 2, 1}, {0, 1, 2}, {0, 1, 2}, 2, true},
    {1, 3, 150, 1, {0, 20, 25}, {0, 5, 4}, {0, 1, 1}, {0, 2, 2}, {0, 1, 1}, 2, false},
    {1, 40, 9, 1, {0, 9, 8}, {0, 4, 3}, {0, 1, 1}, {0, 2, 1}, {0, 1, 1}, 2, true},
    {3, 5, 33, 1, {4, 9, 10}, {2, 3, 2}, {1, 1, 1}, {1, 1, 0}, {1, 1, 2}, 3, false},
    {1, 2, 9, 1, {0, 70, 66}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}, 2, false},
    {8, 8, 64, 8, {0, 6, 5}, {0, 3, 2}, {0, 1, 1}, {0, 1, 0}, {0, 1, 1}, 2, false},
    {2, 3, 4, 1, {0, 7, 9}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}, 2, false},
    {1, 4, 6, 2, {0, 8, 11}, {0, 3, 2}, {0, 2, 3}, {0, 1, 0}, {0, 1, 2}, 2, false},
    {2, 6, 6, 6, {0, 9, 9}, {0, 3, 3}, {0, 2, 1}, {0, 2, 1}, {0, 2, 1}, 2, true},
    {1, 5, 70, 1, {0, 10, 13}, {0, 1, 1}, {0, 1, 1}, {0, 0, 0}, {0, 1, 1}, 2, false},
    {1,
     2,
     3,
     1,
     {0, 12, 12},
     {0, 2, 2},
     {0, 4, 4},
     {0, 0, 0},
     {0, 1, 1},
     2,
     false}, /* taps that some positions never meet */
    {2, 3, 5, 1, {0, 0, 40}, {0, 0, 5}, {0, 0, 2}, {0, 0, 3}, {0, 0, 2}, 1, false},
    /* many groups: one of each channel, of several that are more than their lanes, with channels innermost, of one dim and of three, longer than
       a block and than a group of blocks */
    {2, 19, 19, 19, {0, 13, 11}, {0, 3, 3}, {0, 1, 2}, {0, 1, 1}, {0, 1, 1}, 2, false},
    {1, 48, 80, 16, {0, 9, 7}, {0, 2, 4}, {0, 2, 1}, {0, 1, 3}, {0, 1, 2}, 2, false},
    {3, 9, 18, 9, {0, 8, 12}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 2, 2}, 2, true},
    {5, 8, 16, 8, {0, 0, 900}, {0, 0, 5}, {0, 0, 1}, {0, 0, 2}, {0, 0, 1}, 1, false},
    {1, 10, 10, 10, {5, 6, 7}, {2, 3, 1}, {1, 2, 1}, {1, 0, 0}, {2, 1, 1}, 3, false},
    /* whose lines are longer than are calculated at once; small pictures; strides whose places some taps never meet, and of more places than
       leave together; several channels and rows a group, of a stride, of lines far apart */
    {1, 20, 20, 20, {0, 9, 400}, {0, 7, 7}, {0, 1, 1}, {0, 3, 3}, {0, 1, 1}, 2, false},
    {3, 24, 24, 24, {0, 7, 7}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}, 2, false},
    {2, 17, 17, 17, {0, 11, 13}, {0, 3, 3}, {0, 3, 4}, {0, 1, 1}, {0, 1, 2}, 2, true},
    {1, 16, 32, 16, {0, 10, 12}, {0, 3, 3}, {0, 2, 5}, {0, 2, 1}, {0, 3, 1}, 2, false},
    {1, 32, 32, 16, {0, 19, 18}, {0, 3, 5}, {0, 2, 2}, {0, 1, 2}, {0, 4, 1}, 2, true},
    {1, 33, 33, 33, {4, 6, 5}, {3, 2, 3}, {2, 1, 2}, {1, 0, 1}, {1, 2, 1}, 3, true},
    {1, 2, 3, 1, {4, 5, 6}, {2, 3, 2}, {1, 2, 1}, {1, 1, 1}, {1, 1, 2}, 3, false},
    {1, 40, 30, 1, {0, 14, 15}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}, 2, false},
    /* tiles that end within a row; rows of one column; residues of several classes, and of more than a box has; a volume */
    {1, 3, 2, 1, {0, 3, 300}, {0, 2, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}, 2, false},
    {2, 2, 9, 1, {0, 70, 3}, {0, 3, 3}, {0, 1, 1}, {0, 1, 0}, {0, 1, 1}, 2, false},
    {1, 4, 4, 2, {0, 31, 29}, {0, 3, 4}, {0, 3, 2}, {0, 3, 2}, {0, 2, 3}, 2, false},
    {1, 2, 3, 1, {0, 0, 120}, {0, 0, 11}, {0, 0, 11}, {0, 0, 4}, {0, 0, 3}, 1, false},
    {2, 3, 4, 1, {9, 8, 7}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, 3, true},
    {3, 8, 8, 8, {0, 20, 20}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}, 2, false},
    /* channels innermost, more than eight of them; a plane a tile does not hold, of one channel */
    {1, 19, 21, 1, {0, 13, 18}, {0, 3, 3}, {0, 2, 2}, {0, 1, 1}, {0, 1, 1}, 2, true},
    {2, 2, 2, 2, {0, 40, 45}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}, 2, false},
    /* channels innermost, few places and more channels than a block of terms is long */
    {2, 6, 300, 1, {0, 4, 4}, {0, 1, 1}, {0, 1, 1}, {0, 0, 0}, {0, 1, 1}, 2, true},
};

static int64_t conv_size(const conv_case *c, unsigned d) {
    return (c->x[d] + 2 * c->padding[d] - c->dilation[d] * (c->w[d] - 1) - 1) / c->stride[d] + 1;
}

/* x, w, y, bias with the dims of the case. */
static void conv_arrays(const conv_case *c, rp_dtype dtype, array a[4]) {
    static const unsigned last[5] = {0, 2, 3, 1, 4};
    int64_t x[5] = {c->n, c->c}, w[5] = {c->o, c->c / c->groups}, y[5] = {c->n, c->o};
    for (unsigned k = 0; k < c->spatial; k++) {
        const unsigned d = 3 - c->spatial + k;
        x[2 + k] = c->x[d];
        w[2 + k] = c->w[d];
        y[2 + k] = conv_size(c, d);
    }
    a[0] = array_new(dtype, c->spatial + 2, x, c->channels_last ? last : NULL, 1);
    a[1] = array_new(dtype, c->spatial + 2, w, c->channels_last ? last : NULL, 1);
    a[2] = array_new(dtype, c->spatial + 2, y, c->channels_last ? last : NULL, 1);
    a[3] = array_new(dtype, 1, &c->o, NULL, 1);
}

static void conv_geometry(const conv_case *c, rp__library_call *call) {
    call->conv = (rp__conv_geometry){.spatial = (uint8_t)c->spatial, .groups = c->groups};
    for (unsigned k = 0; k < c->spatial; k++) {
        call->conv.stride[k] = c->stride[3 - c->spatial + k];
        call->conv.padding[k] = c->padding[3 - c->spatial + k];
        call->conv.dilation[k] = c->dilation[3 - c->spatial + k];
    }
}

static int64_t at5(const rp__operand *o, unsigned spatial, int64_t i, int64_t j, const int64_t p[3]) {
    int64_t at = i * o->stride[0] + j * o->stride[1];
    for (unsigned k = 0; k < spatial; k++) at += p[3 - spatial + k] * o->stride[2 + k];
    return at;
}

/* One result under way: its products come in order of k, those with a zero of the padding left out. */
typedef struct tree_sum {
    double block, odd, group, total;
    int64_t number; /* of the block */
} tree_sum;
static int64_t block_of(bool f64) { return dots ? 32 : f64 ? BLOCK / 2 : BLOCK; }
static void sum_up(tree_sum *s, bool f64, int64_t number) { /* the block is whole: the next is `number` */
    const int64_t group = dots ? GROUP / 32 : 16;
    if (dots) s->block = (double)((float)s->block + (float)s->odd);
    s->group = f64 ? s->group + s->block : (double)((float)s->group + (float)s->block);
    s->block = s->odd = 0;
    if (number / group != s->number / group) {
        s->total = f64 ? s->total + s->group : (double)((float)s->total + (float)s->group);
        s->group = 0;
    }
    s->number = number;
}
/* Of a gradient of the input: the place of tap r among those that meet position p, and how many do. */
static int64_t met(const int64_t *r, const int64_t *p, const int64_t *W, const int64_t *st, const int64_t *pd,
                   const int64_t *dl, int64_t *all) {
    int64_t at = 0;
    *all = 1;
    for (unsigned d = 0; d < 3; d++) {
        int64_t count = 0, before = 0;
        for (int64_t k = 0; k < W[d]; k++) {
            if ((p[d] + pd[d] - k * dl[d]) % st[d]) continue;
            before += k < r[d];
            count++;
        }
        at = at * count + before;
        *all *= count;
    }
    return at;
}

/* All (image, group, o, c, q, r) with x at q * stride - padding + r * dilation inside, in an order that gives each result its own
   contract: forward (c, r), input (o, r), weight (n, q). Sums in `dst`, an array of doubles that hold values of the type. */
static void conv_loops(const conv_case *c, const array a[4], unsigned kind, tree_sum *dst) {
    const unsigned s = c->spatial;
    int64_t X[3] = {1, 1, 1}, W[3] = {1, 1, 1}, Y[3] = {1, 1, 1}, st[3] = {1, 1, 1}, pd[3] = {0}, dl[3] = {1, 1, 1};
    for (unsigned d = 3 - s; d < 3; d++)
        X[d] = c->x[d], W[d] = c->w[d], Y[d] = conv_size(c, d), st[d] = c->stride[d], pd[d] = c->padding[d],
        dl[d] = c->dilation[d];
    const int64_t C = c->c / c->groups, O = c->o / c->groups, taps = W[0] * W[1] * W[2], points = Y[0] * Y[1] * Y[2];
    const bool f64 = a[0].o.dtype == RP_F64;
    const rp__operand *x = &a[0].o, *w = &a[1].o, *y = &a[2].o;
    typedef int64_t place[3];
    place *tap = malloc((size_t)taps * sizeof *tap + 1), *point = malloc((size_t)points * sizeof *point + 1);
    assert_true(tap && point);
    for (int64_t i = 0; i < taps; i++) tap[i][0] = i / (W[1] * W[2]), tap[i][1] = i / W[2] % W[1], tap[i][2] = i % W[2];
    for (int64_t i = 0; i < points; i++)
        point[i][0] = i / (Y[1] * Y[2]), point[i][1] = i / Y[2] % Y[1], point[i][2] = i % Y[2];
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t g = 0; g < c->groups; g++)
            for (int64_t o = g * O; o < g * O + O; o++)
                for (int64_t i = 0; i < C; i++)
                    for (int64_t outer = 0; outer < (kind == 2 ? points : taps); outer++)
                        for (int64_t inner = 0; inner < (kind == 2 ? taps : points); inner++) {
                            const int64_t ri = kind == 2 ? inner : outer, qi = kind == 2 ? outer : inner;
                            const int64_t *r = tap[ri], *q = point[qi];
                            int64_t p[3];
                            bool inside = true;
                            for (unsigned d = 0; d < 3; d++) {
                                p[d] = q[d] * st[d] - pd[d] + r[d] * dl[d];
                                inside = inside && p[d] >= 0 && p[d] < X[d];
                            }
                            if (!inside) continue;
                            const int64_t ax = at5(x, s, n, g * C + i, p), aw = at5(w, s, o, i, r),
                                          ay = at5(y, s, n, o, q);
                            tree_sum *to = &dst[kind == 0 ? ay : kind == 1 ? ax : aw];
                            int64_t all = taps, k = kind == 2 ? n * points + qi : i * taps + ri;
                            if (kind == 1) k = met(r, p, W, st, pd, dl, &all) + (o - g * O) * all;
                            if (k / block_of(f64) != to->number) sum_up(to, f64, k / block_of(f64));
                            const double u = kind == 0 ? get(w, aw) : kind == 1 ? get(w, aw) : get(y, ay);
                            const double v = kind == 1 ? get(y, ay) : get(x, ax);
                            double *part = dots && k % 2 ? &to->odd : &to->block;
                            *part =
                                f64 ? muladd_f64(u, v, *part) : (double)muladd_f32((float)u, (float)v, (float)*part);
                        }
    free(tap);
    free(point);
}

static void conv_check(const conv_case *c, rp_dtype dtype, unsigned kind, bool bias, unsigned which) {
    static const rp__library_op ops[3] = {RP__LIB_CONV_FORWARD, RP__LIB_CONV_INPUT, RP__LIB_CONV_WEIGHT};
    static const unsigned order[3][3] = {{2, 0, 1}, {0, 2, 1}, {1, 2, 0}};
    array a[4];
    conv_arrays(c, dtype, a);
    for (unsigned i = 0; i < 4; i++)
        if (i != order[kind][0]) fill(&a[i]);
    const array used[4] = {a[order[kind][0]], a[order[kind][1]], a[order[kind][2]], a[3]};
    rp__library_call call = {0};
    conv_geometry(c, &call);
    const bool ran = run_products(ops[kind], used, bias ? 4 : 3, &call, which);
    tree_sum *sums = calloc(used[0].bytes, sizeof *sums);
    assert_non_null(sums);
    if (ran) conv_loops(c, a, kind, sums);
    for (int64_t i = 0, n = ran ? numel(&used[0].o) : 0; i < n; i++) {
        const int64_t at = offset_of(&used[0].o, i);
        sum_up(&sums[at], dtype == RP_F64, sums[at].number + GROUP);
        double e = sums[at].total;
        if (bias) {
            const double b = get(&a[3].o, i / (n / c->n / c->o) % c->o);
            e = dtype == RP_F64 ? e + b : (double)((float)e + (float)b);
        }
        double one;
        rp__operand round = {.base = &one, .dtype = dtype};
        put(&round, 0, e);
        if (get(&round, 0) != get(&used[0].o, at))
            fail_msg("convolution %u of case %d, %s, element %lld: %.9g, expected %.9g", kind, (int)(c - conv_cases),
                     rp_dtype_name(dtype), (long long)i, get(&used[0].o, at), get(&round, 0));
    }
    free(sums);
    for (unsigned i = 0; i < 4; i++) array_free(&a[i]);
}

static void test_conv(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++)
        for (unsigned kind = 0; kind < 3; kind++)
            for (unsigned d = 0; d < 4; d++)
                for (unsigned which = 0; which < WAYS; which++) {
                    if (SLOW_BUILD && (i + kind + d + which) % (RACES_ONLY ? 11 : 3)) continue;
                    conv_check(&conv_cases[i], dtypes[d], kind, kind == 0 && (i + d) % 2, which);
                }
}

static double dot(const rp__operand *a, const rp__operand *b) {
    double s = 0;
    for (int64_t i = 0, n = numel(a); i < n; i++) s += get(a, offset_of(a, i)) * get(b, offset_of(b, i));
    return s;
}

/* <dy, conv(x, w)> = <conv_input(dy, w), x> = <conv_weight(dy, x), w> */
static void test_conv_adjoint(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        array a[4], b[4];
        conv_arrays(&conv_cases[i], RP_F64, a);
        conv_arrays(&conv_cases[i], RP_F64, b);
        for (unsigned k = 0; k < 3; k++) fill(&a[k]);
        rp__library_call call = {0};
        conv_geometry(&conv_cases[i], &call);
        run_ok(RP__LIB_CONV_FORWARD, (array[]){b[2], a[0], a[1]}, 3, &call);
        run_ok(RP__LIB_CONV_INPUT, (array[]){b[0], a[2], a[1]}, 3, &call);
        run_ok(RP__LIB_CONV_WEIGHT, (array[]){b[1], a[2], a[0]}, 3, &call);
        const double y = dot(&a[2].o, &b[2].o), x = dot(&a[0].o, &b[0].o), w = dot(&a[1].o, &b[1].o);
        assert_true(fabs(y - x) <= 1e-11 * (1 + fabs(y)));
        assert_true(fabs(y - w) <= 1e-11 * (1 + fabs(y)));
        for (unsigned k = 0; k < 4; k++) array_free(&a[k]), array_free(&b[k]);
    }
}

/* ---- topk */

static bool comes_first(double a, int64_t i, double b, int64_t j, bool largest) {
    if (isnan(a) != isnan(b)) return largest ? isnan(a) : isnan(b);
    if (isnan(a) || a == b) return i < j;
    return largest ? a > b : a < b;
}

static void topk_case(rp_dtype dtype, int64_t rows, int64_t n, int64_t k, unsigned dim, bool largest) {
    const int64_t in[2] = {dim ? rows : n, dim ? n : rows}, out[2] = {dim ? rows : k, dim ? k : rows};
    array a[3] = {array_new(dtype, 2, out, NULL, 1), array_new(RP_I64, 2, out, NULL, 1),
                  array_new(dtype, 2, in, NULL, 2)};
    fill(&a[2]);
    for (int64_t i = 0; i < rows * n; i += 3) { /* ties, and what compares oddly */
        const double odd[] = {0.0, -0.0, NAN, INFINITY, -INFINITY, 0.5, 0.5, 0.5};
        const double x = rp__dtype_is_float(dtype) ? odd[random_word() % 8] : (double)(random_word() % 3);
        put(&a[2].o, offset_of(&a[2].o, i), x);
    }
    rp__library_call call = {.k = k, .dim = dim, .largest = largest, .sorted = true};
    run_ok(RP__LIB_TOPK, a, 3, &call);
    bool *taken = calloc((size_t)n, sizeof *taken);
    assert_non_null(taken);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t base = row * a[2].o.stride[1 - dim], step = a[2].o.stride[dim];
        memset(taken, 0, (size_t)n * sizeof *taken);
        for (int64_t i = 0; i < k; i++) {
            int64_t best = -1;
            for (int64_t j = 0; j < n; j++)
                if (!taken[j] && (best < 0 || comes_first(get(&a[2].o, base + j * step), j,
                                                          get(&a[2].o, base + best * step), best, largest)))
                    best = j;
            taken[best] = true;
            const int64_t at = row * a[1].o.stride[1 - dim] + i * a[1].o.stride[dim];
            assert_int_equal(((const int64_t *)a[1].o.base)[at], best);
            const size_t bytes = rp__dtype_bytes(dtype);
            assert_memory_equal((const char *)a[0].o.base + at * (int64_t)bytes,
                                (const char *)a[2].o.base + (base + best * step) * (int64_t)bytes, bytes);
        }
    }
    free(taken);
    for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
}

static void test_topk(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_I8, RP_I16};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (unsigned i = 0; i < 4; i++) {
            topk_case(dtypes[d], 5, 50, 7, i & 1, i & 2);
            topk_case(dtypes[d], 3, 20, 20, i & 1, i & 2);
            topk_case(dtypes[d], 2, 531, 531, i & 1, i & 2); /* runs are merged */
            topk_case(dtypes[d], 1, 1, 1, i & 1, i & 2);
        }
    const int64_t none[2] = {3, 0}, in[2] = {3, 4};
    array a[3] = {array_new(RP_F32, 2, none, NULL, 1), array_new(RP_I64, 2, none, NULL, 1),
                  array_new(RP_F32, 2, in, NULL, 1)};
    rp__library_call call = {.k = 0, .dim = 1};
    run_ok(RP__LIB_TOPK, a, 3, &call);
    for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
}

/* ---- nonzero */

static void test_nonzero(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_BOOL, RP_I8, RP_I16};
    static const unsigned turned[3] = {2, 0, 1};
    static const int64_t sizes[][3] = {{4, 5, 6}, {1, 1, 1}, {0, 3, 2}, {3, 1, 70}};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t c = 0; c < sizeof sizes / sizeof *sizes; c++)
            for (unsigned nd = 0; nd <= 3; nd++) {
                array x = array_new(dtypes[d], nd, sizes[c], nd == 3 ? turned : NULL, 2);
                const int64_t n = numel(&x.o), rows[2] = {n, nd};
                array a[3] = {array_new(RP_I64, 2, rows, NULL, 1), array_new(RP_I64, 0, NULL, NULL, 1), x};
                for (int64_t i = 0; i < n; i++) /* -0 is zero */
                    put(&x.o, offset_of(&x.o, i),
                        random_word() % 2 ? (rp__dtype_is_float(dtypes[d]) && random_word() % 2 ? -0.0 : 0)
                                          : 1 + random_word() % 9);
                rp__library_call call = {0};
                run_ok(RP__LIB_NONZERO, a, 3, &call);
                int64_t found = 0;
                for (int64_t i = 0; i < n; i++) {
                    if (get(&x.o, offset_of(&x.o, i)) == 0) continue;
                    int64_t rest = i;
                    for (unsigned k = nd; k-- > 0;) {
                        assert_int_equal(((const int64_t *)a[0].o.base)[found * nd + k], rest % x.o.size[k]);
                        rest /= x.o.size[k];
                    }
                    found++;
                }
                assert_int_equal(*(const int64_t *)a[1].o.base, found);
                for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
            }
}

/* ---- multinomial */

__extension__ typedef unsigned __int128 wide;

/* The rule of docs/random.md, said as plainly as can be. */
static void multinomial_rule(const double *w, int64_t n, int64_t row, int64_t samples, bool replacement,
                             const rp__random_draw *draw, int64_t *out) {
    double max = 0;
    for (int64_t i = 0; i < n; i++) max = w[i] > max ? w[i] : max;
    int shift = 62;
    while (n > INT64_C(1) << (62 - shift)) shift--;
    uint64_t *weights = malloc((size_t)n * sizeof *weights), total = 0;
    assert_non_null(weights);
    for (int64_t i = 0; i < n; i++) {
        weights[i] = (uint64_t)floor(w[i] / max * pow(2, shift));
        if (w[i] > 0 && weights[i] == 0) weights[i] = 1;
        total += weights[i];
    }
    for (int64_t s = 0; s < samples; s++) {
        const uint64_t e = (uint64_t)(row * samples + s);
        uint32_t x[4];
        rp__philox(draw->seed, draw->inner + e / 2, x);
        const uint64_t word = (uint64_t)x[e % 2 * 2] << 32 | x[e % 2 * 2 + 1], t = (uint64_t)((wide)word * total >> 64);
        uint64_t sum = 0;
        int64_t i = 0;
        while ((sum += weights[i]) <= t) i++;
        out[s] = i;
        if (!replacement) {
            total -= weights[i];
            weights[i] = 0;
        }
    }
    free(weights);
}

static void test_multinomial_rule(void **state) {
    (void)state;
    static const int64_t ns[] = {1, 2, 3, 5, 64, 257, 1000};
    for (size_t c = 0; c < sizeof ns / sizeof *ns; c++)
        for (unsigned mode = 0; mode < 4; mode++) {
            const bool replacement = mode & 1;
            const rp_dtype dtype = mode & 2 ? RP_F64 : RP_F32;
            const int64_t n = ns[c], rows = 3, samples = replacement ? 40 : (n + 1) / 2;
            const int64_t ys[2] = {rows, samples}, ws[2] = {rows, n};
            array a[2] = {array_new(RP_I64, 2, ys, NULL, 2), array_new(dtype, 2, ws, (const unsigned[]){1, 0}, 1)};
            double w[1000];
            for (int64_t i = 0; i < rows * n; i++) {
                double x = random_word() % 4 && n > 2 && i % n >= samples ? random_unit() + 1
                                                                          : ldexp(1, -(int)(random_word() % 120));
                put(&a[1].o, offset_of(&a[1].o, i), x);
            }
            rp__library_call call = {.replacement = replacement,
                                     .draw = {.seed = 77 + c, .inner = UINT64_C(0xfffffffe) + mode}};
            run_everywhere(RP__LIB_MULTINOMIAL, a, 2, &call);
            assert_int_equal(rp__error_record_check(cpu), RP_OK);
            for (int64_t row = 0; row < rows; row++) {
                int64_t expected[1000];
                for (int64_t i = 0; i < n; i++) w[i] = get(&a[1].o, row * a[1].o.stride[0] + i * a[1].o.stride[1]);
                multinomial_rule(w, n, row, samples, replacement, &call.draw, expected);
                for (int64_t s = 0; s < samples; s++)
                    assert_int_equal(((const int64_t *)a[0].o.base)[row * a[0].o.stride[0] + s * a[0].o.stride[1]],
                                     expected[s]);
            }
            array_free(&a[0]);
            array_free(&a[1]);
        }
}

static void test_multinomial_distribution(void **state) {
    (void)state;
    enum { N = 12, SAMPLES = 60000 };
    const int64_t ys[2] = {1, SAMPLES}, ws[2] = {1, N};
    array a[2] = {array_new(RP_I64, 2, ys, NULL, 1), array_new(RP_F32, 2, ws, NULL, 1)};
    double total = 0, chi = 0, seen[N] = {0};
    for (int64_t i = 0; i < N; i++) {
        put(&a[1].o, i, i == 5 ? 0 : (double)(i + 1));
        total += get(&a[1].o, i);
    }
    rp__library_call call = {.replacement = true, .draw = {.seed = 2024}};
    run_ok(RP__LIB_MULTINOMIAL, a, 2, &call);
    for (int64_t s = 0; s < SAMPLES; s++) seen[((const int64_t *)a[0].o.base)[s]]++;
    assert_true(seen[5] == 0);
    for (int64_t i = 0; i < N; i++) {
        const double e = get(&a[1].o, i) / total * SAMPLES;
        if (e > 0) chi += (seen[i] - e) * (seen[i] - e) / e;
    }
    assert_true(chi < 29.6); /* 10 degrees of freedom: exceeded once in a thousand seeds */
    assert_true(chi > 1.5);  /* and this is no table */
    array_free(&a[0]);
    array_free(&a[1]);
}

static void test_multinomial_errors(void **state) {
    (void)state;
    static const struct {
        double w[3];
        bool replacement;
        const char *text;
    } cases[] = {{{1, -1, 1}, true, "element < 0"},
                 {{1, NAN, 1}, true, "`nan`"},
                 {{INFINITY, 1, 1}, false, "`inf`"},
                 {{0, 0, 0}, true, "sum of probabilities <= 0"},
                 {{1, 0, 0}, false, "not enough non-negative category"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t ys[2] = {1, 2}, ws[2] = {1, 3};
        array a[2] = {array_new(RP_I64, 2, ys, NULL, 1), array_new(RP_F64, 2, ws, NULL, 1)};
        for (int64_t i = 0; i < 3; i++) put(&a[1].o, i, cases[c].w[i]);
        rp__library_call call = {.replacement = cases[c].replacement};
        run_ok(RP__LIB_MULTINOMIAL, a, 2, &call);
        assert_int_equal(rp__error_record_check(cpu), RP_ERROR_INVALID_ARGUMENT);
        assert_non_null(strstr(rp_error_message(), cases[c].text));
        rp_error_take();
        assert_int_equal(((const int64_t *)a[0].o.base)[0], 0);
        array_free(&a[0]);
        array_free(&a[1]);
    }
}

/* ---- scatter */

static double combined(rp__scatter kind, rp_dtype dtype, double x, double y) {
    const bool narrow = rp__dtype_is_float(dtype) && dtype != RP_F64;
    switch (kind) {
    case RP__SCATTER_ADD: return narrow ? (double)((float)x + (float)y) : x + y;
    case RP__SCATTER_MUL: return narrow ? (double)((float)x * (float)y) : x * y;
    case RP__SCATTER_MAX: return isnan(x) || x > y ? x : y;
    case RP__SCATTER_MIN: return isnan(x) || x < y ? x : y;
    default: return y;
    }
}

static void scatter_case(rp__scatter kind, rp_dtype dtype, unsigned dim, bool bad) {
    const int64_t ys[3] = {4, 5, 6}, is[3] = {dim == 0 ? 9 : 4, dim == 1 ? 40 : 3, dim == 2 ? 11 : 6},
                  ss[3] = {9, 40, 11};
    array a[3] = {array_new(dtype, 3, ys, (const unsigned[]){1, 2, 0}, 1), array_new(RP_I64, 3, is, NULL, 1),
                  array_new(dtype, 3, ss, NULL, 1)};
    fill(&a[0]);
    fill(&a[2]);
    for (int64_t i = 0, n = numel(&a[1].o); i < n; i++)
        ((int64_t *)a[1].o.base)[offset_of(&a[1].o, i)] =
            bad && i == n / 2 ? ys[dim] : (int64_t)(random_word() % (uint32_t)ys[dim]);
    array expected = array_new(dtype, 3, ys, (const unsigned[]){1, 2, 0}, 1);
    memcpy(expected.memory, a[0].memory, a[0].bytes);
    for (int64_t i = 0, n = numel(&a[1].o); i < n; i++) { /* logical order keeps the order along dim */
        int64_t rest = i, at = 0, from = 0;
        const int64_t k = ((const int64_t *)a[1].o.base)[offset_of(&a[1].o, i)];
        for (unsigned d = 3; d-- > 0;) {
            const int64_t j = rest % is[d];
            rest /= is[d];
            at += (d == dim ? k : j) * expected.o.stride[d];
            from += j * a[2].o.stride[d];
        }
        if (k >= ys[dim]) continue;
        const double x = get(&expected.o, at), y = get(&a[2].o, from);
        double s = combined(kind, dtype, x, y);
        if (dtype == RP_U8) s = (uint8_t)(int)s;
        if (dtype == RP_I8) s = (int8_t)(int)s;
        if (dtype == RP_I16) s = (int16_t)(int)s;
        if (dtype == RP_I32) s = (int32_t)(uint32_t)(uint64_t)(int64_t)s;
        put(&expected.o, at, s);
    }
    rp__library_call call = {.dim = dim, .scatter = kind};
    run_everywhere(RP__LIB_SCATTER, a, 3, &call);
    assert_memory_equal(a[0].memory, expected.memory, a[0].bytes);
    if (bad) {
        assert_int_equal(rp__error_record_check(cpu), RP_ERROR_INDEX);
        assert_non_null(strstr(rp_error_message(), "is out of bounds"));
        rp_error_take();
    }
    assert_int_equal(rp__error_record_check(cpu), RP_OK);
    array_free(&expected);
    for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
}

static void test_scatter(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_I8, RP_I16};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (unsigned i = 0; i < 6; i++)
            for (unsigned kind = 0; kind < RP__SCATTERS; kind++)
                if (kind != RP__SCATTER_MUL || rp__dtype_is_float(dtypes[d])) /* of integers products overflow */
                    scatter_case((rp__scatter)kind, dtypes[d], i % 3, i >= 3);
}

/* Many rows of one embedding: more than one slice, and the bits of one. */
static void test_scatter_add_rows(void **state) {
    (void)state;
    const int64_t ys[2] = {10, 300}, is[2] = {500, 300};
    array a[3] = {array_new(RP_F32, 2, ys, NULL, 1), array_new(RP_I64, 2, is, NULL, 1),
                  array_new(RP_F32, 2, is, NULL, 1)};
    fill(&a[0]);
    fill(&a[2]);
    a[1].o.stride[0] = 1;
    a[1].o.stride[1] = 0;
    for (int64_t i = 0; i < 500; i++) ((int64_t *)a[1].o.base)[i] = random_word() % 10;
    float expected[10][300];
    memcpy(expected, a[0].o.base, sizeof expected);
    for (int64_t i = 0; i < 500; i++)
        for (int64_t j = 0; j < 300; j++)
            expected[((int64_t *)a[1].o.base)[i]][j] += ((const float *)a[2].o.base)[i * 300 + j];
    rp__library_call call = {.dim = 0};
    run_everywhere(RP__LIB_SCATTER, a, 3, &call);
    assert_memory_equal(a[0].o.base, expected, sizeof expected);
    for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
}

/* An index that repeats by stride 0 gives the bits of one that is written out: rows of every type, kind and width, one of them nowhere. */
static void test_scatter_rows(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_I8, RP_I16, RP_BOOL};
    static const int64_t widths[] = {5, 8, 41, 300};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (unsigned k = 0; k < 4 * RP__SCATTERS; k++) {
            const rp__scatter kind = (rp__scatter)(k / 4);
            const int64_t n = widths[k % 4], ys[2] = {6, n}, is[2] = {30, n};
            if (kind == RP__SCATTER_MUL && !rp__dtype_is_float(dtypes[d])) continue;
            array rows[3] = {array_new(dtypes[d], 2, ys, NULL, 1), array_new(RP_I64, 2, is, NULL, 1),
                             array_new(dtypes[d], 2, is, NULL, 1)};
            array out = array_new(dtypes[d], 2, ys, NULL, 1), places = array_new(RP_I64, 2, is, NULL, 1);
            fill(&rows[0]);
            fill(&rows[2]);
            memcpy(out.memory, rows[0].memory, out.bytes);
            rows[1].o.stride[0] = 1, rows[1].o.stride[1] = 0;
            for (int64_t i = 0; i < 30; i++) {
                const int64_t at = i == 17 ? 6 : random_word() % 6;
                ((int64_t *)rows[1].o.base)[i] = at;
                for (int64_t j = 0; j < n; j++) ((int64_t *)places.o.base)[i * n + j] = at;
            }
            const array each[3] = {out, places, rows[2]};
            rp__library_call call = {.dim = 0, .scatter = kind};
            run_everywhere(RP__LIB_SCATTER, each, 3, &call);
            assert_int_equal(rp__error_record_check(cpu), RP_ERROR_INDEX);
            rp_error_take();
            run_everywhere(RP__LIB_SCATTER, rows, 3, &call);
            assert_int_equal(rp__error_record_check(cpu), RP_ERROR_INDEX);
            rp_error_take();
            assert_memory_equal(rows[0].memory, out.memory, out.bytes);
            for (unsigned i = 0; i < 3; i++) array_free(&rows[i]);
            array_free(&out);
            array_free(&places);
        }
    }
}

/* ---- oneDNN against our kernels */

/* Runs with our kernel into one result, through the table into another: oneDNN's has the same bits for one thread and two, close to
   ours. `bound`: per unit of the largest result. false: it does not serve, having nothing but its reference here. */
static bool compare_onednn(rp__library_op op, const array *a, size_t n, rp__library_call *call, rp__library_bind *ours,
                           double bound) {
    rp__operand o[4];
    rp__launch launch = {0};
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    for (size_t i = 0; i < n; i++) o[i] = a[i].o;
    call->op = "test", call->site = "test_library.c";
    size_t scratch;
    if (!rp__onednn_serves(op, o, n, call, &scratch)) return false;
    launch.words = buffer->words, launch.slots = buffer->slots;
    assert_int_equal(ours(cpu, op, o, n, call, buffer, &launch), RP_OK);
    assert_int_equal(rp__launch_on(rp__current_stream(cpu), &launch), RP_OK);
    unsigned char *expected = malloc(a[0].bytes), *first = malloc(a[0].bytes);
    assert_non_null(expected);
    assert_non_null(first);
    memcpy(expected, a[0].memory, a[0].bytes);
    for (int threads = 1; threads <= 2; threads++) {
        rp_set_num_threads(threads);
        memset(a[0].memory, 0x5a, a[0].bytes);
        run_ok(op, a, n, call);
        if (threads == 1)
            memcpy(first, a[0].memory, a[0].bytes);
        else
            assert_memory_equal(first, a[0].memory, a[0].bytes);
    }
    rp__operand other = a[0].o;
    other.base = expected + ((char *)a[0].o.base - (char *)a[0].memory);
    double largest = 0;
    for (int64_t i = 0, m = numel(&other); i < m; i++) largest = fmax(largest, fabs(get(&other, offset_of(&other, i))));
    for (int64_t i = 0, m = numel(&other); i < m; i++) {
        const int64_t at = offset_of(&other, i);
        if (!(fabs(get(&other, at) - get(&a[0].o, at)) <= bound * largest))
            fail_msg("op %d element %lld: oneDNN %.9g, ours %.9g", (int)op, (long long)i, get(&a[0].o, at),
                     get(&other, at));
    }
    free(expected);
    free(first);
    return true;
}

static void test_onednn(void **state) {
    (void)state;
    unsigned served = 0; /* of convolutions */
    if (!rp__onednn_available()) skip();
    for (unsigned layout = 0; layout < 8; layout++) { /* bit 0: a transposed, 1: b transposed, 2: many batches */
        const int64_t batch = layout & 4 ? 11 : 1, M = layout & 4 ? 100 : 301, N = 150, K = 400;
        const int64_t y[3] = {batch, M, N}, x[3] = {batch, M, K}, w[3] = {batch, K, N};
        static const unsigned turned[3] = {0, 2, 1};
        array a[4] = {array_new(RP_F32, 3, y, NULL, 1), array_new(RP_F32, 3, x, layout & 1 ? turned : NULL, 1),
                      array_new(RP_F32, 3, w, layout & 2 ? turned : NULL, 1), array_new(RP_F32, 1, &N, NULL, 1)};
        for (unsigned i = 1; i < 4; i++) fill(&a[i]);
        rp__library_call call = {0};
        /* 400 terms a sum, each rounded to 2^-24 of at most about the largest result */
        assert_true(compare_onednn(RP__LIB_MATMUL, a, layout & 1 ? 4 : 3, &call, rp__cpu_matmul_bind, 2e-5));
        for (unsigned i = 0; i < 4; i++) array_free(&a[i]);
    }
    static const conv_case cases[] = {
        {4, 16, 32, 1, {0, 28, 28}, {0, 3, 3}, {0, 1, 1}, {0, 1, 1}, {0, 1, 1}, 2, false},
        {5, 16, 48, 2, {0, 41, 33}, {0, 3, 3}, {0, 2, 2}, {0, 2, 2}, {0, 2, 2}, 2, false},
        {3, 24, 40, 1, {0, 31, 30}, {0, 5, 3}, {0, 1, 1}, {0, 2, 1}, {0, 1, 1}, 2, true},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        array a[4];
        conv_arrays(&cases[c], RP_F32, a);
        for (unsigned i = 0; i < 4; i++) fill(&a[i]);
        rp__library_call call = {0};
        conv_geometry(&cases[c], &call);
        served += compare_onednn(RP__LIB_CONV_FORWARD, (array[]){a[2], a[0], a[1], a[3]}, c ? 4 : 3, &call,
                                 rp__cpu_conv_bind, 2e-5);
        fill(&a[2]);
        served += compare_onednn(RP__LIB_CONV_INPUT, (array[]){a[0], a[2], a[1]}, 3, &call, rp__cpu_conv_bind, 2e-5);
        for (unsigned i = 0; i < 4; i++) array_free(&a[i]);
    }
    assert_in_range(served, 3, 6);
}

/* More problems than plans are kept: those that went are made again when they are asked for. */
static void test_onednn_plans_are_limited(void **state) {
    (void)state;
    if (!rp__onednn_available()) skip();
    const int64_t K = 256, N = 256;
    const int64_t x[2] = {700, K}, w[2] = {K, N}, y[2] = {700, N};
    array a[3] = {array_new(RP_F32, 2, y, NULL, 1), array_new(RP_F32, 2, x, NULL, 1), array_new(RP_F32, 2, w, NULL, 1)};
    rp__library_call call = {.op = "test", .site = "test_library.c"};
    rp__operand o[3];
    for (unsigned i = 0; i < 3; i++) o[i] = a[i].o;
    size_t scratch;
    for (int64_t rows = 700; rows > 256; rows--) {
        o[0].size[0] = o[1].size[0] = rows;
        assert_true(rp__onednn_serves(RP__LIB_MATMUL, o, 3, &call, &scratch));
        assert_true(rp__onednn_plan_count() <= RP__ONEDNN_PLANS);
    }
    assert_int_equal(rp__onednn_plan_count(), RP__ONEDNN_PLANS);
    fill(&a[1]), fill(&a[2]);
    assert_true(compare_onednn(RP__LIB_MATMUL, a, 3, &call, rp__cpu_matmul_bind, 2e-5));
    for (unsigned i = 0; i < 3; i++) array_free(&a[i]);
}

static int setup(void **state) {
    (void)state;
    cpu = rp__device_get((rp_device){RP_DEVICE_CPU, 0});
    return cpu ? 0 : -1;
}

/* ---- the table of templates */

static bool there, never_asked;
static bool is_there(void) { return there; }
static bool takes_wide(const rp__problem *p, size_t *workspace) {
    *workspace = 100;
    return p->o[0].size[1] >= 8;
}
static bool is_never_asked(const rp__problem *p, size_t *workspace) {
    (void)p, (void)workspace;
    never_asked = false;
    return true;
}
static double cheap(const rp__problem *p) { return p->o[0].size[0] > 4 ? 1 : 1e9; }
static double dear(const rp__problem *p) { return 2 * rp__problem_work(p); }
static rp__order other_order(const rp__problem *p) { return rp__problem_order(p) + (1u << 28); }

static void test_templates(void **state) {
    (void)state;
    enum { PRODUCTS = 1u << RP__LIB_MATMUL };
    const rp__template library = {.name = "library", .ops = PRODUCTS, .available = is_there, .cost = cheap},
                       fast = {.name = "fast",
                               .ops = PRODUCTS,
                               .serves = takes_wide,
                               .order = other_order,
                               .cost = cheap},
                       plain = {.name = "plain", .ops = PRODUCTS, .follows = true, .order = rp__problem_order},
                       again = {.name = "again", .ops = PRODUCTS, .follows = true, .order = rp__problem_order},
                       late = {.name = "late", .ops = PRODUCTS, .serves = is_never_asked, .cost = dear},
                       conv = {.name = "conv", .ops = 1u << RP__LIB_CONV_FORWARD};
    const rp__template *const rows[] = {&late, &conv, &library, &fast, &plain, &again};
    enum { ROWS = sizeof rows / sizeof *rows };
    rp__operand o[3] = {{.dtype = RP_F32, .ndim = 2, .size = {6, 9}},
                        {.dtype = RP_F32, .ndim = 2, .size = {6, 5}},
                        {.dtype = RP_F32, .ndim = 2, .size = {5, 9}}};
    const rp__library_call call = {.op = "test", .site = "test_library.c"};
    const rp__problem p = {cpu, RP__LIB_MATMUL, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
    size_t workspace;
#define PICKED(most, order) rp__template_pick(rows, ROWS, &p, most, order, &workspace)
    assert_true(rp__problem_work(&p) == 6 * 9 * 5);
    there = never_asked = true;
    assert_ptr_equal(PICKED(SIZE_MAX, RP__ORDER_ELSEWHERE), &library); /* of equal costs the first */
    assert_int_equal(rp__template_order(rows, ROWS, &p), RP__ORDER_ELSEWHERE);
    assert_string_equal(rp__template_name(rows, ROWS, RP__LIB_MATMUL), "library");
    there = false;
    assert_ptr_equal(PICKED(SIZE_MAX, RP__ORDER_ELSEWHERE), &fast);
    assert_int_equal(workspace, 100);
    assert_int_equal(rp__template_order(rows, ROWS, &p), RP__ORDER_ELSEWHERE); /* nobody follows sums of its order */
    assert_ptr_equal(PICKED(99, RP__ORDER_ELSEWHERE), &plain);                 /* too little memory */
    assert_int_equal(workspace, 0);
    assert_ptr_equal(PICKED(SIZE_MAX, rp__problem_order(&p)), &plain);
    assert_null(PICKED(SIZE_MAX, other_order(&p)));
    assert_string_equal(rp__template_name(rows, ROWS, RP__LIB_MATMUL), "reprise");
    o[0].size[1] = o[2].size[1] = 7; /* not served */
    assert_ptr_equal(PICKED(SIZE_MAX, RP__ORDER_ELSEWHERE), &plain);
    assert_int_equal(rp__template_order(rows, ROWS, &p), rp__problem_order(&p));
    o[0].size[0] = o[1].size[0] = 3; /* not worth it: nobody is asked */
    there = true;
    assert_ptr_equal(PICKED(SIZE_MAX, RP__ORDER_ELSEWHERE), &plain);
    assert_true(never_asked);
    o[0].dtype = RP_I32; /* integers have no order that a kernel follows */
    assert_int_equal(rp__template_order(rows, ROWS, &p), RP__ORDER_ELSEWHERE);
    const rp__problem none = {cpu, RP__LIB_CONV_WEIGHT, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
    assert_null(rp__template_pick(rows, ROWS, &none, SIZE_MAX, RP__ORDER_ELSEWHERE, &workspace));
#undef PICKED
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_ends),
        cmocka_unit_test(test_matmul_shapes),
        cmocka_unit_test(test_matmul_dtypes),
        cmocka_unit_test(test_matmul_batch),
        cmocka_unit_test(test_matmul_special),
        cmocka_unit_test(test_matmul_long),
        cmocka_unit_test(test_matmul_refuses),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_adjoint),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_nonzero),
        cmocka_unit_test(test_multinomial_rule),
        cmocka_unit_test(test_multinomial_distribution),
        cmocka_unit_test(test_multinomial_errors),
        cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_scatter_add_rows),
        cmocka_unit_test(test_scatter_rows),
        cmocka_unit_test(test_onednn),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_onednn_plans_are_limited),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
