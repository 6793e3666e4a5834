/* ctest: labels=cuda timeout=900 cost=110 */
/* Library ops of selection and scattering on CUDA against the CPU's, whose bits they must give (test_library.c checks those);
   small products against the plain kernel.
   Runs on the emulator; with REPRISE_TEST_CUDA=real on a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "device/device.h"
#include "device/error_record.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/nvrtc.h"
#include "kernel/library.h"
#include "support/cuda.h"
#include "support/slow.h"
#include "tensor/tensor.h"

static rp__device *cpu, *cuda;

static uint64_t seed = 1;
static uint32_t random_word(void) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33);
}

typedef struct array {
    rp__operand o;
    unsigned char *memory;
    size_t bytes;
} array;

/* turned: the first dim is innermost. */
static array array_new(rp_dtype dtype, unsigned ndim, const int64_t *size, bool turned, int64_t gap) {
    array a = {.o = {.dtype = dtype, .ndim = (uint8_t)ndim}};
    int64_t n = gap;
    for (unsigned i = 0; i < ndim; i++) {
        const unsigned d = turned ? i : ndim - 1 - i;
        a.o.size[d] = size[d];
        a.o.stride[d] = n;
        n *= size[d] > 0 ? size[d] : 1;
    }
    a.bytes = (size_t)n * rp__dtype_bytes(dtype);
    a.memory = calloc(1, a.bytes);
    assert_non_null(a.memory);
    a.o.base = a.memory;
    return a;
}

static void put(const array *a, int64_t i, double x) {
    int64_t at = 0;
    for (unsigned d = a->o.ndim; d-- > 0;) {
        at += i % a->o.size[d] * a->o.stride[d];
        i /= a->o.size[d];
    }
    unsigned char *p = a->memory + at * (int64_t)rp__dtype_bytes(a->o.dtype);
    switch (a->o.dtype) {
    case RP_F32: memcpy(p, &(float){(float)x}, 4); break;
    case RP_F64: memcpy(p, &x, 8); break;
    case RP_F16: memcpy(p, &(uint16_t){rp__f32_to_f16((float)x)}, 2); break;
    case RP_BF16: memcpy(p, &(uint16_t){rp__f32_to_bf16((float)x)}, 2); break;
    case RP_I32: memcpy(p, &(int32_t){(int32_t)x}, 4); break;
    case RP_I64: memcpy(p, &(int64_t){(int64_t)x}, 8); break;
    case RP_I16: memcpy(p, &(int16_t){(int16_t)x}, 2); break;
    case RP_BOOL: *p = x != 0; break;
    default: *p = (uint8_t)(int)x;
    }
}
static int64_t numel(const rp__operand *o) {
    int64_t n = 1;
    for (unsigned i = 0; i < o->ndim; i++) n *= o->size[i];
    return n;
}
static void fill(const array *a) {
    const bool real = rp__dtype_is_float(a->o.dtype);
    for (int64_t i = 0, n = numel(&a->o); i < n; i++) {
        const double odd[] = {0.0, -0.0, NAN, INFINITY, -INFINITY, 0.5, 0.5, 0.5};
        const double number = (double)(random_word() % 4096) / 2048 - 1;
        put(a, i,
            !real               ? (double)(random_word() % 9) - (a->o.dtype == RP_U8 || a->o.dtype == RP_BOOL ? 0 : 4)
            : random_word() % 4 ? number
                                : odd[random_word() % 8]);
    }
}
static void fill_numbers(const array *a) {
    for (int64_t i = 0, n = numel(&a->o); i < n; i++)
        put(a, i, a->o.dtype == RP_BF16 ? random_word() % 8 : (double)(random_word() % 64) / 8);
}

static void check(rp_status status) {
    if (status != RP_OK) fail_msg("%s", rp_error_message());
}

/* The error that a kernel found in the data, taken; RP_OK when it found none. */
static rp_status found(rp__device *d) {
    rp_status status = d->ops->stream_synchronize(d, rp__current_stream(d));
    if (status == RP_OK) status = rp__error_record_check(d);
    if (status != RP_OK) rp_error_take();
    return status;
}

/* The first n_out arrays are written. Runs on both devices; the bytes must agree, and both find `error` in the data. */
static void run_both_error(rp__library_op op, array *a, size_t n, size_t n_out, rp__library_call *call,
                           rp_status error) {
    rp__operand o[4], c[4];
    rp__storage *storages[4];
    rp_stream *s = rp__current_stream(cuda);
    call->op = "test", call->site = "test_cuda_library.c";
    for (size_t i = 0; i < n; i++) {
        o[i] = c[i] = a[i].o;
        storages[i] = rp__storage_new(cuda, s, a[i].bytes);
        if (!storages[i]) fail_msg("%s", rp_error_message());
        check(cuda->ops->copy_in(cuda, s, storages[i]->data, a[i].memory, a[i].bytes));
        c[i].base = (unsigned char *)storages[i]->data + ((unsigned char *)a[i].o.base - a[i].memory);
        c[i].storage = storages[i];
    }
    check(rp__library_run(cuda, s, op, c, n, call));
    check(rp__library_run(cpu, rp__current_stream(cpu), op, o, n, call));
    assert_int_equal(found(cuda), error);
    assert_int_equal(found(cpu), error);
    for (size_t i = 0; i < n; i++) {
        unsigned char *back = malloc(a[i].bytes);
        assert_non_null(back);
        check(cuda->ops->copy_out(cuda, s, back, storages[i]->data, a[i].bytes));
        size_t bytes = a[i].bytes;
        if (op == RP__LIB_NONZERO && i == 0) /* rows behind the count are anything */
            bytes = (size_t)((unsigned char *)a[0].o.base - a[0].memory) +
                    (size_t) * (const int64_t *)a[1].o.base * (size_t)a[0].o.size[1] * sizeof(int64_t);
        if (i < n_out && memcmp(back, a[i].memory, bytes))
            fail_msg("op %d, %s, operand %d: the devices differ", (int)op, rp_dtype_name(a[n - 1].o.dtype), (int)i);
        free(back);
        rp__storage_release(storages[i]);
    }
}

static void run_both(rp__library_op op, array *a, size_t n, size_t n_out, rp__library_call *call) {
    run_both_error(op, a, n, n_out, call, RP_OK);
}

static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_BOOL, RP_I8, RP_I16};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static void topk_case(rp_dtype dtype, int64_t rows, int64_t n, int64_t k, bool last, bool largest) {
    const int64_t in[2] = {last ? rows : n, last ? n : rows}, out[2] = {last ? rows : k, last ? k : rows};
    array a[3] = {array_new(dtype, 2, out, false, 1), array_new(RP_I64, 2, out, true, 1),
                  array_new(dtype, 2, in, false, 2)};
    fill(&a[2]);
    for (int64_t i = 0; !rp__dtype_is_float(dtype) && n & 1 && i < rows * n; i++) /* all of the type's bits */
        put(&a[2], i, ldexp((double)random_word() - 0x1p30, (int)(8 * rp__dtype_bytes(dtype)) - 32));
    rp__library_call call = {.k = k, .dim = last, .largest = largest, .sorted = true};
    run_both(RP__LIB_TOPK, a, 3, 2, &call);
    for (unsigned i = 0; i < 3; i++) free(a[i].memory);
}

static void test_topk(void **state) {
    (void)state;
    for (unsigned d = 0; d < DTYPES - 1; d++) {
        topk_case(dtypes[d], 3, 300, 9, d & 1, d & 2);
        topk_case(dtypes[d], 2, 37, 37, !(d & 1), !(d & 2));
    }
    topk_case(RP_F32, 1, 1, 1, true, true);
    topk_case(RP_F32, 2, 1300, 1100, true, true); /* a sort, of which the first are kept */
    topk_case(RP_U8, 1, 1200, 1026, true, false);
    /* a group of lanes a row: from one element to the most */
    static const int64_t few[] = {1, 2, 3, 7, 17, 32, 33, 64, 100, 256};
    for (unsigned c = 0; c < sizeof few / sizeof *few; c++)
        topk_case(dtypes[c], 19, few[c], c & 1 ? few[c] : (few[c] + 1) / 2, c & 1, c & 2);
    topk_case(RP_F64, 9, 130, 130, false, true);
    topk_case(RP_I64, 40, 31, 31, true, false);
    /* selections from registers, in one launch and by way of candidates, and of these again */
    topk_case(RP_F32, 2, 257, 64, true, true);
    topk_case(RP_BF16, 2, 1024, 1, true, false);
    topk_case(RP_I64, 1, 2100, 500, false, true);
    topk_case(RP_F64, 1, 8192, 33, true, true);
    topk_case(RP_F32, 2, 8193, 1024, true, false);
    topk_case(RP_BF16, 2, 20011, 50, false, true);
    topk_case(RP_U8, 1, 17000, 700, true, true); /* few values: the lowest places of many equal ones */
    topk_case(RP_I64, 1, 70001, 1000, true, false);
    topk_case(RP_F32, 1, 0, 0, true, true);
}

/* A row that a block of this device has no shared memory for is sorted as longer ones are. */
static void test_sort_small_memory(void **state) {
    (void)state;
    const size_t limit = cuda->shared_limit;
    if (limit < 96 << 10) return; /* the device itself is one */
    cuda->shared_limit = 64 << 10;
    topk_case(RP_F32, 2, 8003, 8003, true, false);
    topk_case(RP_I64, 2, 5003, 5003, true, true);
    topk_case(RP_I16, 1, 8100, 8100, false, true);
    cuda->shared_limit = 96 << 10;
    topk_case(RP_F64, 1, 6007, 6007, true, false);
    cuda->shared_limit = limit;
}

static void test_sort(void **state) {
    (void)state;
    for (unsigned d = 0; d < DTYPES; d++) /* a block a row */
        if (dtypes[d] != RP_BOOL) topk_case(dtypes[d], 2, 1031 + d, 1031 + d, d & 1, d & 2);
    topk_case(RP_F32, 2, 257, 257, true, true);
    topk_case(RP_I64, 1, 600, 600, true, false);
    topk_case(RP_F32, 1, 4096, 4096, true, false);
    topk_case(RP_F16, 1, 5000, 4999, true, true);
    topk_case(RP_F64, 1, 8192, 8192, true, true);
    for (unsigned d = 0; d < DTYPES; d++) /* three launches a digit */
        if (dtypes[d] != RP_BOOL) topk_case(dtypes[d], 1 + (d & 1), 8193 + 1500 * d, 8193 + 1500 * d, d & 1, d & 2);
    topk_case(RP_F32, 1, 12300, 5000, true, true); /* of which the first are kept */
    topk_case(RP_F32, 3, 9000, 9000, false, false);
    const int multiprocessors = cuda->multiprocessors;
    cuda->multiprocessors = 1; /* chunks of two tiles, the last one of less */
    topk_case(RP_F32, 1, 70001, 70001, true, true);
    topk_case(RP_BF16, 2, 40001, 40001, true, false);
    cuda->multiprocessors = multiprocessors;
    if (test_cuda_is_real()) { /* the emulator would take minutes */
        topk_case(RP_F32, 1, 9000001, 9000001, true, true);
        topk_case(RP_I64, 1200, 9001, 9001, true, false);
        topk_case(RP_BF16, 3, 4000000, 4000000, true, false);
        topk_case(RP_F32, 1, 40000000, 1024, true, true); /* candidates of candidates of candidates */
    }
}

static void test_nonzero(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{4, 5, 6}, {9, 1, 500}, {0, 3, 2}};
    for (unsigned d = 0; d < DTYPES; d++)
        for (unsigned c = 0; c < 3; c++)
            for (unsigned nd = c == 1 ? 3 : 0; nd <= 3; nd++) {
                array x = array_new(dtypes[d], nd, sizes[c], d & 1, 2);
                fill(&x);
                const int64_t rows[2] = {numel(&x.o), nd};
                array a[3] = {array_new(RP_I64, 2, rows, false, 1), array_new(RP_I64, 0, NULL, false, 1), x};
                rp__library_call call = {0};
                run_both(RP__LIB_NONZERO, a, 3, 2, &call);
                for (unsigned i = 0; i < 3; i++) free(a[i].memory);
            }
}

static void test_multinomial(void **state) {
    (void)state;
    static const int64_t ns[] = {1, 2, 5, 300, 1000};
    for (unsigned c = 0; c < 5; c++)
        for (unsigned mode = 0; mode < 4; mode++) {
            const bool replacement = mode & 1;
            const int64_t n = ns[c], samples = replacement ? 33 : (n + 1) / 2, ys[2] = {3, samples}, ws[2] = {3, n};
            array a[2] = {array_new(RP_I64, 2, ys, false, 1), array_new(mode & 2 ? RP_F64 : RP_F32, 2, ws, true, 1)};
            for (int64_t i = 0; i < 3 * n; i++) put(&a[1], i, ldexp(1 + random_word() % 7, -(int)(random_word() % 60)));
            rp__library_call call = {.replacement = replacement,
                                     .draw = {.seed = 5 + c, .inner = UINT64_C(0xfffffffe)}};
            run_both(RP__LIB_MULTINOMIAL, a, 2, 1, &call);
            free(a[0].memory);
            free(a[1].memory);
        }
    const int64_t two[2] = {1, 2};
    array a[2] = {array_new(RP_I64, 2, two, false, 1), array_new(RP_F32, 2, two, false, 1)};
    put(&a[1], 0, 1);
    rp__library_call call = {.replacement = false};
    run_both_error(RP__LIB_MULTINOMIAL, a, 2, 1, &call, RP_ERROR_INVALID_ARGUMENT);
    free(a[0].memory);
    free(a[1].memory);
}

static void test_scatter(void **state) {
    (void)state;
    for (unsigned d = 0; d < DTYPES; d++)
        for (unsigned k = 0; k < 6 * RP__SCATTERS; k++) {
            const unsigned mode = k % 6;
            const rp__scatter kind = (rp__scatter)(k / 6);
            /* whole numbers of eighths: sums are exact, so that atomics give them in any order */
            const unsigned dim = mode % 3;
            const int64_t ys[3] = {4, 5, 6}, is[3] = {dim == 0 ? 9 : 4, dim == 1 ? 20 : 3, dim == 2 ? 11 : 6};
            array a[3] = {array_new(dtypes[d], 3, ys, true, 1), array_new(RP_I64, 3, is, false, 1),
                          array_new(dtypes[d], 3, is, false, 1)};
            fill_numbers(&a[0]);
            fill_numbers(&a[2]);
            /* products of powers of two, too */
            for (int64_t i = 0, n = numel(&a[2].o); kind == RP__SCATTER_MUL && mode < 3 && i < n; i++)
                put(&a[2], i, ldexp(1, (int)(random_word() % 3) - rp__dtype_is_float(dtypes[d])));
            for (int64_t i = 0, n = numel(&a[1].o); i < n; i++) put(&a[1], i, random_word() % (uint32_t)ys[dim]);
            if (mode == 5) put(&a[1], 3, (double)ys[dim]);
            /* of several that are set in one place any may stay, but for the deterministic form */
            rp__library_call call = {
                .dim = dim, .scatter = kind, .deterministic = mode >= 3 || kind == RP__SCATTER_SET};
            run_both_error(RP__LIB_SCATTER, a, 3, 1, &call, mode == 5 ? RP_ERROR_INDEX : RP_OK);
            for (unsigned i = 0; i < 3; i++) free(a[i].memory);
        }
    /* many lines: the ordered form of a chain a line */
    const int64_t ys[2] = {3000, 700}, is[2] = {2, 700};
    array a[3] = {array_new(RP_F32, 2, ys, false, 1), array_new(RP_I64, 2, is, false, 1),
                  array_new(RP_F32, 2, is, false, 1)};
    fill_numbers(&a[0]);
    fill_numbers(&a[2]);
    for (int64_t i = 0; i < 1400; i++) put(&a[1], i, random_word() % 3000);
    rp__library_call call = {.dim = 0, .deterministic = true};
    run_both(RP__LIB_SCATTER, a, 3, 1, &call);
    for (unsigned i = 0; i < 3; i++) free(a[i].memory);
}

/* Elements of 16 bits share a word with what is none of them: bits that are NaN as such an element stay what they are. */
static void test_scatter_halves(void **state) {
    (void)state;
    for (unsigned mode = 0; mode < 16; mode++) {
        const rp_dtype dtype = mode & 1 ? RP_F16 : RP_BF16;
        const int64_t first = mode >> 1 & 1, n = 4 + (mode >> 2 & 1), size[1] = {12}, ys[1] = {n}, is[1] = {100};
        array a[3] = {array_new(dtype, 1, size, false, 1), array_new(RP_I64, 1, is, false, 1),
                      array_new(dtype, 1, is, false, 1)};
        const uint16_t around = dtype == RP_F16 ? 0x7c01 : 0x7f81;
        for (unsigned i = 0; i < 12; i++) memcpy(a[0].memory + 2 * i, &around, 2);
        a[0].o.size[0] = ys[0];
        a[0].o.base = a[0].memory + 2 * first;
        if (mode & 8) { /* from the last to the first */
            a[0].o.base = a[0].memory + 2 * (first + n - 1);
            a[0].o.stride[0] = -1;
        }
        for (int64_t i = 0; i < n; i++) memcpy(a[0].memory + 2 * (first + i), &(uint16_t){0}, 2);
        for (int64_t i = 0; i < 100; i++) {
            put(&a[1], i, (double)(random_word() % (uint32_t)n));
            put(&a[2], i, (double)(random_word() % 3));
        }
        rp__library_call call = {.dim = 0, .scatter = RP__SCATTER_ADD};
        run_both(RP__LIB_SCATTER, a, 3, 1, &call);
        for (unsigned i = 0; i < 3; i++) free(a[i].memory);
    }
}

/* Counts are exact; NaN, infinities and what is outside are in no bin, and what is at the end is in the last one. */
static void test_count_bins(void **state) {
    (void)state;
    static const rp_dtype floats[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    static const int64_t bins[] = {1, 100, 5000, 12288}, items[] = {1, 999, 20001};
    for (unsigned c = 0; c < 96; c++) {
        const int64_t ys[1] = {bins[c / 4 % 4]}, xs[1] = {items[c / 16 % 3] + 1};
        array a[2] = {array_new(c & 1 ? RP_I32 : RP_I64, 1, ys, false, 1), array_new(floats[c % 4], 1, xs, false, 1)};
        fill(&a[1]);
        a[1].o.size[0]--;
        if (c >= 48) a[1].o.base = a[1].memory + rp__dtype_bytes(floats[c % 4]); /* no vector begins here */
        const bool far = c % 5 == 0;
        rp__library_call call = {.range = {far ? -1e39 : -0.5, far ? 1e39 : 1}};
        run_both(RP__LIB_COUNT_BINS, a, 2, 1, &call);
        for (unsigned i = 0; i < 2; i++) free(a[i].memory);
    }
}

/* Sums of whole numbers of eighths are exact, in any order; a deterministic one is the CPU's with any numbers. */
static void test_weighted_scatter(void **state) {
    (void)state;
    static const rp_dtype floats[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    static const int64_t taps[] = {1, 4, 7, RP__MAX_TAPS}, channels[] = {1, 3, 9, 13}, places[] = {1, 5, 300, 37};
    for (unsigned c = 0; c < 64; c++) {
        const rp_dtype dtype = floats[c % 4], sums = c / 4 % 2 ? RP_F64 : RP_F32;
        const unsigned z = c / 16;
        const bool deterministic = c / 8 % 2, turned = z == 3;
        const int64_t n = 2 - (z == 1), s = 3 + 40 * z, k = taps[(c / 4 + z) % 4], ys[3] = {n, channels[z], s},
                      gs[3] = {n, channels[z], places[z]}, is[3] = {n, k, places[z]};
        array a[4] = {array_new(sums, 3, ys, false, 1), array_new(dtype, 3, gs, turned, 1),
                      array_new(z % 2 ? RP_I64 : RP_I32, 3, is, turned, 1), array_new(sums, 3, is, false, 1 + turned)};
        fill_numbers(&a[1]);
        fill_numbers(&a[3]);
        for (int64_t i = 0; deterministic && i < numel(&a[3].o); i++) put(&a[3], i, (double)random_word() / 1e9 - 1);
        for (int64_t i = 0; i < numel(&a[2].o); i++) put(&a[2], i, (double)(random_word() % (uint32_t)(s + 1)) - 1);
        rp__library_call call = {.deterministic = deterministic};
        run_both(RP__LIB_WEIGHTED_SCATTER, a, 4, 1, &call);
        for (unsigned i = 0; i < 4; i++) free(a[i].memory);
    }
}

/* Neighbours along dim are neighbours in memory, of indices and values: what a gradient of a sort is. */
static void test_scatter_rows(void **state) {
    (void)state;
    for (unsigned mode = 0; mode < 4; mode++) {
        const int64_t ys[2] = {7, 300}, is[2] = {7, 300};
        const rp_dtype dtype = mode & 1 ? RP_I64 : RP_F32;
        array a[3] = {array_new(dtype, 2, ys, false, 1), array_new(RP_I64, 2, is, false, 1),
                      array_new(dtype, 2, is, false, 1)};
        fill_numbers(&a[0]);
        fill_numbers(&a[2]);
        for (int64_t i = 0; i < 7 * 300; i++) put(&a[1], i, (double)(i * 77 % 300)); /* each place once a row */
        rp__library_call call = {.dim = 1, .scatter = mode & 2 ? RP__SCATTER_ADD : RP__SCATTER_SET};
        run_both(RP__LIB_SCATTER, a, 3, 1, &call);
        for (unsigned i = 0; i < 3; i++) free(a[i].memory);
    }
}

/* Sums of many integers in few places: in shared memory, exact with carries and both signs, in any order. */
static void counts_case(rp_dtype dtype, int64_t lines, int64_t length, int64_t bound, bool deterministic, bool bad) {
    const bool along = length % 5000 == 0;
    const int64_t ys[2] = {bound, lines}, is[2] = {length, lines};
    array a[3] = {array_new(dtype, 2, ys, true, 1), array_new(RP_I64, 2, is, along, 1),
                  array_new(dtype, 2, is, true, along ? 1 : 2)};
    const int shift = dtype == RP_I64 ? 20 : 0;
    for (int64_t i = 0; i < numel(&a[0].o); i++) put(&a[0], i, ldexp((double)random_word() - 0x1p30, shift));
    for (int64_t i = 0; i < numel(&a[2].o); i++) {
        put(&a[1], i, random_word() % 3 ? random_word() % (uint32_t)bound : 0);
        put(&a[2], i, ldexp((double)random_word() - 0x1p30, random_word() % 2 ? shift : -12));
    }
    if (bad) put(&a[1], 77, (double)bound);
    rp__library_call call = {.dim = 0, .scatter = RP__SCATTER_ADD, .deterministic = deterministic};
    run_both_error(RP__LIB_SCATTER, a, 3, 1, &call, bad ? RP_ERROR_INDEX : RP_OK);
    for (unsigned i = 0; i < 3; i++) free(a[i].memory);
}

static void test_counts(void **state) {
    (void)state;
    counts_case(RP_I64, 1, 9000, 10, false, false);
    counts_case(RP_I64, 1, 600, 1, true, false);
    counts_case(RP_I32, 1, 5000, 7, true, true);
    counts_case(RP_I64, 3, 5000, 9, false, false);
    counts_case(RP_I32, 5, 2600, 5, false, false);
    counts_case(RP_I64, 2, 20000, 39, true, false); /* several blocks */
    counts_case(RP_I64, 4, 100, 50, false, false);  /* too few for it */
}

/* ---- small products, and chains of them (test_program_cuda.c runs these) */

typedef struct on_device {
    array host;
    rp__operand o;
} on_device;

static on_device upload(array a) {
    on_device v = {.host = a, .o = a.o};
    rp_stream *s = rp__current_stream(cuda);
    v.o.storage = rp__storage_new(cuda, s, a.bytes + 16);
    if (!v.o.storage) fail_msg("%s", rp_error_message());
    check(cuda->ops->copy_in(cuda, s, v.o.storage->data, a.memory, a.bytes));
    v.o.base = v.o.storage->data;
    return v;
}
static void download(const on_device *v) {
    check(cuda->ops->copy_out(cuda, rp__current_stream(cuda), v->host.memory, v->o.base, v->host.bytes));
}
static void drop(on_device *v) {
    rp__storage_release(v->o.storage);
    free(v->host.memory);
}

/* Element i of what lies without gaps. */
static double get(const array *a, int64_t i) {
    unsigned char *p = a->memory + i * (int64_t)rp__dtype_bytes(a->o.dtype);
    switch (a->o.dtype) {
    case RP_F32: return *(float *)(void *)p;
    case RP_F64: return *(double *)(void *)p;
    case RP_F16: return (double)rp__f16_to_f32(*(uint16_t *)(void *)p);
    default: return (double)rp__bf16_to_f32(*(uint16_t *)(void *)p);
    }
}
/* o as a batch of two, the second operand of stride 0 where `apart` is not set: these products are matmul.cuh's. */
static rp__operand twice(rp__operand o, bool apart) {
    rp__operand b = o;
    b.ndim = 3;
    b.size[0] = 2;
    b.stride[0] = apart ? o.size[0] * o.size[1] : 0;
    for (unsigned d = 0; d < 2; d++) b.size[d + 1] = o.size[d], b.stride[d + 1] = o.stride[d];
    return b;
}

/* The same bits; a NaN is any NaN, since the emulator's processor keeps what the operands carry. */
static bool is_same(const array *a, const array *b) {
    for (int64_t i = 0, n = numel(&a->o); i < n; i++) {
        double x = get(a, i), y = get(b, i);
        if (isnan(x) ? !isnan(y) : memcmp(&x, &y, sizeof x) != 0) return false;
    }
    return true;
}

/* m rows of width[0] by width[1] columns, whose sums are too short for another kernel's. mode: bias, turned weight, turned rows, NaNs and infinities. */
static void small_case(rp_dtype dtype, int64_t m, const int64_t *width, unsigned mode, int64_t gap) {
    rp__library_call call = {.op = "test", .site = "test_cuda_library.c"};
    array a = array_new(dtype, 2, (int64_t[]){m, width[0]}, mode & 4, gap),
          weight = array_new(dtype, 2, width, mode & 2, gap), b = array_new(dtype, 1, &width[1], false, gap);
    if (mode & 8)
        fill(&a);
    else
        fill_numbers(&a);
    fill(&b);
    for (int64_t i = 0; i < width[0] * width[1]; i++)
        put(&weight, i, (double)(int)(random_word() % 2001 - 1000) / 1000);
    on_device x = upload(a), w = upload(weight), bias = upload(b),
              out = upload(array_new(dtype, 2, (int64_t[]){m, width[1]}, false, 1)),
              one = upload(array_new(dtype, 2, (int64_t[]){2 * m, width[1]}, false, 1));
    const size_t n = mode & 1 ? 4 : 3;
    one.o.size[0] = m;
    const rp__operand single[4] = {out.o, x.o, w.o, bias.o},
                      batch[4] = {twice(one.o, true), twice(x.o, false), twice(w.o, false), bias.o};
    const rp__order order = cuda->ops->library->order(cuda, RP__LIB_MATMUL, single, n, &call);
    assert_int_equal(order, cuda->ops->library->order(cuda, RP__LIB_MATMUL, batch, n, &call));
    const bool theirs = order == RP__ORDER_ELSEWHERE; /* cuBLASLt may add up each of the two in an order of its own */
    if (theirs) assert_true(dtype == RP_F64 && width[0] > 320);
    check(rp__library_run(cuda, rp__current_stream(cuda), RP__LIB_MATMUL, batch, n, &call));
    check(rp__library_run(cuda, rp__current_stream(cuda), RP__LIB_MATMUL, single, n, &call));
    download(&one);
    download(&out);
    bool same = theirs || is_same(&out.host, &one.host);
    for (int64_t i = 0; theirs && i < m * width[1]; i++) {
        double sum = 0, bound = 0;
        for (int64_t k = 0; k < width[0]; k++) {
            const double term = get(&a, i / width[1] * width[0] + k) * get(&weight, k * width[1] + i % width[1]);
            sum += term, bound += fabs(term);
        }
        for (unsigned of = 0; of < 2; of++)
            if (!(fabs(get(of ? &one.host : &out.host, i) - sum) <= 1e-13 * bound)) same = false;
    }
    if (!same)
        fail_msg("%s, %d rows, mode %x, gap %d: the product differs", rp_dtype_name(dtype), (int)m, mode, (int)gap);
    drop(&x), drop(&w), drop(&bias), drop(&out), drop(&one);
}

static void test_small_product(void **state) {
    (void)state;
    static const rp_dtype floats[] = {RP_F32, RP_F64, RP_F16, RP_BF16};
    for (unsigned d = 0; d < 4; d++) {
        for (unsigned mode = 0; mode < 16; mode++) {
            small_case(floats[d], 1, (int64_t[]){10, 64}, mode, 1);
            small_case(floats[d], 37, (int64_t[]){7, 33}, mode, 1 + (mode & 1));
            small_case(floats[d], 3, (int64_t[]){rp__dtype_is_narrow(floats[d]) ? 120 : 290, 70}, mode, 1);
        }
    }
    small_case(RP_F64, 2, (int64_t[]){5000, 2}, 0, 1); /* cuBLASLt's */
}

static void test_chain_refused(void **state) {
    (void)state;
    const rp__library *library = cuda->ops->library;
    rp__library_stage s[2];
    memset(s, 0, sizeof s);
    for (unsigned k = 0; k < 2; k++) {
        s[k].order = rp__order_of(RP__CONTRACT_PRODUCT, 0);
        for (unsigned i = 0; i < 3; i++)
            s[k].o[i] = (rp__operand){.dtype = RP_F32, .ndim = 2, .size = {8, 8}, .stride = {8, 1}};
    }
    assert_int_equal(library->chain(cuda, s, 2), RP__CHAIN_YES);
    assert_int_equal(library->chain(cuda, s, 1), RP__CHAIN_YES); /* with what follows */
    assert_int_equal(library->chain(cuda, s, 0), RP__CHAIN_TOO_LARGE);
    assert_null(cpu->ops->library->chain);
    s[0].o[1].stride[0] = 0; /* all rows are one */
    assert_int_equal(library->chain(cuda, s, 2), RP__CHAIN_LAYOUT);
    s[0].o[1].stride[0] = 8;
    s[1].o[1].size[0] = 4;
    assert_int_equal(library->chain(cuda, s, 2), RP__CHAIN_LAYOUT);
    s[1].o[1].size[0] = 8;
    s[1].order = rp__order_with(s[1].order, RP__FAMILY_TF32, 0);
    assert_int_equal(library->chain(cuda, s, 2), RP__CHAIN_OTHER_SUM);
    s[1].order = s[0].order;
    s[1].o[2].size[1] = s[1].o[0].size[1] = s[1].o[2].stride[0] = s[1].o[0].stride[0] =
        1600; /* more than a block keeps */
    assert_int_equal(library->chain(cuda, s, 2), RP__CHAIN_TOO_LARGE);
    for (unsigned k = 0; k < 2; k++)
        for (unsigned i = 0; i < 3; i++)
            s[k].o[i] = (rp__operand){.dtype = RP_I32, .ndim = 2, .size = {8, 8}, .stride = {8, 1}};
    assert_int_equal(library->chain(cuda, s, 2), RP__CHAIN_OTHER_SUM);
}

/* ---- kernels compiled side by side */

static rp__kernel *ask(unsigned n, const char *body) { /* a kernel that nobody else has; the caller's reference */
    char name[32], source[256];
    rp__kernel *k = NULL;
    (void)snprintf(name, sizeof name, "batch_%u_%u", (unsigned)getpid(), n);
    (void)snprintf(source, sizeof source, "extern \"C\" __global__ void %s(rp_u32 *p) {\n    %s\n}\n", name, body);
    check(rp__nvrtc_kernel(cuda, source, name, RP__KERNEL_CUDA, &k));
    return k;
}

static void test_batch(void **state) {
    (void)state;
    rp__kernel *k[6];
    check(rp__nvrtc_batch_begin(cuda));
    assert_int_not_equal(rp__nvrtc_batch_begin(cuda), RP_OK); /* one at a time */
    (void)rp_error_take();
    for (unsigned n = 0; n < 5; n++) k[n] = ask(n, "*p = blockIdx.x;");
    k[5] = ask(2, "*p = blockIdx.x;"); /* again: the same one */
    assert_ptr_equal(k[5], k[2]);
    for (unsigned n = 0; n < 5; n++) assert_true(rp__nvrtc_is_pending(k[n]));
    const uint64_t before = rp__nvrtc_statistics().compiled;
    check(rp__nvrtc_batch_end(cuda, true));
    assert_int_equal(rp__nvrtc_statistics().compiled, before + 5);
    for (unsigned n = 0; n < 5; n++) assert_false(rp__nvrtc_is_pending(k[n]));
    rp__kernel *again = ask(3, "*p = blockIdx.x;");
    assert_ptr_equal(again, k[3]);
    rp__kernel_release(again);
    for (unsigned n = 0; n < 6; n++) rp__kernel_release(k[n]);

    check(rp__nvrtc_batch_begin(cuda)); /* one of them is wrong: the error names it, and none is kept half done */
    k[0] = ask(10, "*p = 1;");
    k[1] = ask(11, "*p = no_such_thing;");
    assert_int_equal(rp__nvrtc_batch_end(cuda, true), RP_ERROR_COMPILE);
    assert_non_null(strstr(rp_error_message(), "_11"));
    (void)rp_error_take();
    rp__kernel_release(k[0]), rp__kernel_release(k[1]);
    check(rp__nvrtc_batch_begin(cuda)); /* dropped */
    k[0] = ask(12, "*p = 2;");
    check(rp__nvrtc_batch_end(cuda, false));
    assert_true(rp__nvrtc_is_pending(k[0]));
    rp__kernel_release(k[0]);
    k[0] = ask(12, "*p = 2;"); /* by itself */
    assert_false(rp__nvrtc_is_pending(k[0]));
    rp__kernel_release(k[0]);
}

static int setup(void **state) {
    (void)state;
    cpu = rp__device_get((rp_device){RP_DEVICE_CPU, 0});
    cuda = rp__device_get((rp_device){RP_DEVICE_CUDA, 0});
    return cpu && cuda ? 0 : -1;
}

/* ---- convolutions */

enum { ROWS_FIRST, CHANNELS_LAST, GAPS };

/* (first, channels, spatial...) */
static array image_new(rp_dtype dtype, unsigned spatial, int64_t first, int64_t channels, const int64_t *size,
                       unsigned layout) {
    int64_t all[5] = {first, channels};
    if (spatial) memcpy(all + 2, size, spatial * sizeof *size);
    array a = array_new(dtype, spatial + 2, all, false, layout == GAPS ? 3 : 1);
    if (layout == CHANNELS_LAST) {
        a.o.stride[1] = 1;
        int64_t stride = channels;
        for (unsigned d = spatial + 2; d-- > 2; stride *= all[d]) a.o.stride[d] = stride;
        a.o.stride[0] = stride;
    }
    return a;
}

/* Small whole numbers: their sums are exact in any order. */
static void fill_small(const array *a) {
    for (int64_t k = 0, n = numel(&a->o); k < n; k++) put(a, k, (double)(random_word() % 3) - 1);
}

static void test_conv(void **state) {
    /* The op that a case is made for, which the emulator runs of it; of EACH these take turns. Elsewhere a case runs all three. */
    enum { EACH, FORWARD, INPUT, WEIGHT, OPS = WEIGHT };
    static const struct {
        rp_dtype dtype;
        uint16_t spatial, batch, groups, cg, og, x, w, y; /* the last three: layouts */
        int64_t in[3], kernel[3], stride[3], padding[3], dilation[3];
        int multiprocessors, made_for;
    } cases[] = {
        /* rows of 1 to 130 in every tile, with few and with many multiprocessors to fill */
        {RP_F16, 2, 2, 1, 8, 40, 0, 0, 0, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, EACH},
        {RP_F16, 2, 2, 1, 8, 40, 1, 1, 1, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, EACH},
        {RP_BF16, 2, 1, 1, 40, 130, 1, 1, 1, {6, 5}, {3, 2}, {1, 2}, {1, 0}, {1, 1}, 1, EACH},
        {RP_BF16, 2, 3, 1, 5, 70, 0, 0, 1, {7, 8}, {2, 3}, {2, 3}, {1, 2}, {1, 2}, 1, EACH},
        {RP_F16, 2, 1, 3, 8, 16, 1, 1, 1, {6, 6}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 16, EACH},
        {RP_F16, 2, 2, 5, 1, 1, 0, 0, 0, {8, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 16, EACH},
        {RP_F16, 1, 2, 1, 72, 20, 0, 0, 0, {41}, {5}, {3}, {2}, {2}, 16, EACH},
        {RP_BF16, 3, 1, 2, 8, 33, 1, 0, 2, {4, 5, 6}, {2, 3, 2}, {1, 2, 1}, {0, 1, 1}, {1, 1, 2}, 16, EACH},
        {RP_F16, 2, 4, 1, 16, 64, 0, 0, 0, {8, 8}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 132, EACH},
        {RP_F32, 2, 2, 1, 6, 130, 0, 0, 0, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, EACH},
        {RP_F32, 2, 1, 1, 30, 20, 1, 1, 1, {9, 7}, {3, 3}, {2, 1}, {1, 2}, {1, 1}, 1, EACH},
        {RP_F32, 2, 2, 4, 8, 8, 0, 0, 0, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 16, EACH},
        {RP_F32, 1, 3, 2, 3, 12, 2, 2, 2, {30}, {4}, {2}, {3}, {3}, 16, EACH},
        {RP_F32, 3, 1, 1, 4, 7, 0, 0, 0, {4, 5, 6}, {2, 3, 2}, {2, 2, 1}, {1, 1, 1}, {1, 1, 2}, 16, EACH},
        {RP_F64, 2, 2, 1, 20, 70, 0, 1, 0, {8, 6}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, EACH},
        {RP_F64, 1, 2, 1, 3, 5, 0, 0, 0, {20}, {3}, {1}, {1}, {1}, 16, EACH},
        /* a long inner index, in shares */
        {RP_F16, 2, 3, 1, 16, 24, 0, 0, 0, {20, 20}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, WEIGHT},
        {RP_BF16, 2, 1, 1, 300, 20, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, FORWARD},
        /* more than a batch of the inner index, and no tile at all */
        {RP_F16, 2, 1, 1, 64, 33, 1, 1, 1, {6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, EACH},
        {RP_BF16, 2, 1, 2, 64, 40, 0, 0, 0, {6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, EACH},
        {RP_BF16, 2, 2, 5, 1, 1, 1, 1, 1, {11, 6}, {5, 3}, {2, 1}, {2, 1}, {1, 2}, 16, EACH},
        {RP_F32, 1, 3, 3, 2, 2, 0, 1, 0, {300}, {3}, {1}, {1}, {1}, 16, EACH},
        {RP_F32, 2, 6, 1, 3, 9, 0, 0, 0, {40, 44}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, EACH},
        {RP_F64, 1, 1, 1, 2, 3, 0, 0, 0, {5000}, {3}, {1}, {1}, {1}, 132, WEIGHT},
        /* vectors: of channels, with strides (classes of places with equal rest, some without taps), dilations, groups and images that no
           tile fits; of pixels; in shares; results that no vector fits */
        {RP_F16, 2, 2, 1, 32, 128, 1, 1, 1, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, INPUT},
        {RP_BF16, 2, 2, 1, 48, 64, 1, 1, 1, {8, 7}, {3, 3}, {2, 3}, {1, 0}, {2, 1}, 1, INPUT},
        {RP_F16, 2, 2, 1, 16, 32, 1, 1, 1, {7, 7}, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 4, INPUT},
        {RP_F16, 1, 2, 2, 16, 24, 1, 1, 1, {37}, {5}, {1}, {2}, {3}, 16, EACH},
        {RP_BF16, 3, 1, 1, 16, 16, 1, 1, 1, {4, 5, 6}, {3, 2, 3}, {2, 1, 2}, {1, 0, 1}, {1, 1, 1}, 16, EACH},
        {RP_F16, 2, 3, 1, 32, 72, 0, 0, 0, {4, 6}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 132, EACH},
        {RP_BF16, 2, 2, 1, 40, 24, 0, 1, 1, {8, 9}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, EACH},
        {RP_F16, 2, 1, 1, 256, 16, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, FORWARD},
        {RP_F16, 2, 4, 1, 16, 136, 1, 1, 1, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, WEIGHT},
        {RP_BF16, 2, 2, 1, 16, 24, 1, 1, 0, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2, FORWARD},
        {RP_F16, 2, 1, 1, 8, 200, 1, 0, 2, {12, 25}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, FORWARD},
        /* warpgroups: a step by itself, columns that are no power of two, chunks of channels in shares and none */
        {RP_F16, 2, 2, 1, 64, 136, 0, 0, 0, {8, 14}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, FORWARD},
        {RP_BF16, 2, 1, 1, 128, 128, 1, 1, 1, {16, 12}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, EACH},
        {RP_F16, 2, 2, 1, 128, 72, 1, 1, 1, {7, 9}, {3, 3}, {2, 1}, {1, 1}, {1, 1}, 132, EACH},
        /* a channel a group: vectors of channels and none, strips that end in the middle, shares of many images */
        {RP_F16, 2, 2, 16, 1, 1, 1, 1, 1, {11, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 16, EACH},
        {RP_F32, 2, 3, 8, 1, 1, 1, 1, 1, {9, 9}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 16, EACH},
        {RP_BF16, 2, 2, 8, 1, 1, 1, 1, 1, {12, 9}, {7, 7}, {1, 1}, {3, 3}, {1, 1}, 16, EACH},
        {RP_F32, 1, 2, 6, 1, 1, 0, 0, 0, {40}, {5}, {2}, {2}, {1}, 16, EACH},
        {RP_F64, 2, 1, 5, 1, 1, 0, 2, 1, {6, 7}, {2, 3}, {1, 2}, {0, 1}, {2, 1}, 16, EACH},
        {RP_F16, 2, 8, 3, 1, 1, 0, 1, 0, {40, 40}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, WEIGHT},
        /* so many of them that a thread makes results side by side, which end in the middle; more channels than a span; windows that stay in
           shared memory */
        {RP_F16, 2, 3, 38, 1, 1, 1, 1, 1, {15, 18}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, EACH},
        {RP_BF16, 2, 2, 36, 1, 1, 1, 1, 1, {17, 13}, {3, 2}, {2, 2}, {1, 1}, {1, 2}, 1, EACH},
        {RP_F32, 2, 2, 34, 1, 1, 1, 1, 1, {10, 11}, {5, 5}, {1, 1}, {2, 2}, {1, 1}, 1, EACH},
        {RP_F16, 1, 2, 40, 1, 1, 1, 1, 1, {45}, {4}, {1}, {2}, {3}, 1, EACH},
        /* groups of few channels: more than a span and less, in every memory format, with steps whose classes have no taps, dilations, turns
           that end in the middle, as many blocks as turns and fewer */
        {RP_F16, 2, 2, 20, 4, 4, 1, 1, 1, {11, 19}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, EACH},
        {RP_BF16, 2, 1, 3, 8, 8, 0, 0, 0, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, EACH},
        {RP_F16, 2, 2, 5, 16, 16, 1, 0, 0, {10, 12}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, EACH},
        {RP_BF16, 2, 2, 2, 32, 32, 1, 1, 1, {9, 8}, {3, 2}, {1, 3}, {1, 0}, {1, 2}, 16, EACH},
        {RP_F16, 2, 1, 9, 2, 2, 0, 1, 2, {7, 8}, {1, 5}, {2, 3}, {0, 2}, {1, 1}, 16, EACH},
        {RP_F16, 2, 1, 2, 8, 8, 1, 1, 1, {9, 9}, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 16, INPUT},
        {RP_BF16, 1, 3, 4, 4, 4, 1, 1, 1, {150}, {7}, {2}, {3}, {1}, 1, EACH},
        {RP_F16, 2, 2, 4, 16, 16, 1, 1, 1, {24, 24}, {5, 5}, {1, 1}, {2, 2}, {1, 1}, 2, EACH},
        /* few channels in: whole rows and none, pairs, one dim, tiles of every width, more tiles than blocks, results by rows and by columns,
           one by one */
        {RP_F16, 2, 2, 1, 3, 64, 1, 0, 1, {24, 32}, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 1, FORWARD},
        {RP_BF16, 2, 3, 1, 3, 72, 0, 0, 0, {21, 48}, {5, 3}, {1, 1}, {2, 1}, {1, 1}, 1, FORWARD},
        {RP_F16, 2, 2, 1, 4, 24, 1, 1, 1, {19, 36}, {3, 3}, {1, 2}, {1, 1}, {2, 1}, 132, FORWARD},
        {RP_BF16, 2, 1, 1, 1, 16, 0, 0, 0, {28, 28}, {5, 5}, {1, 1}, {0, 0}, {1, 1}, 132, FORWARD},
        {RP_F16, 2, 2, 1, 2, 33, 1, 1, 0, {9, 70}, {4, 4}, {4, 4}, {0, 0}, {1, 1}, 2, FORWARD},
        {RP_BF16, 1, 2, 1, 1, 40, 0, 0, 0, {1600}, {10}, {5}, {0}, {1}, 1, FORWARD},
        {RP_F16, 1, 1, 1, 6, 130, 1, 1, 1, {301}, {5}, {1}, {2}, {2}, 1, FORWARD},
        /* input gradients of strided convolutions that no vector fits: classes of places, more than the picture has, some without taps; in
           shares; in chunks of channels that are no step of tensor cores */
        {RP_BF16, 2, 2, 1, 3, 24, 0, 0, 0, {17, 16}, {4, 4}, {4, 4}, {0, 0}, {1, 1}, 132, INPUT},
        {RP_F32, 2, 2, 1, 5, 9, 0, 1, 0, {3, 11}, {2, 3}, {4, 5}, {1, 1}, {1, 1}, 16, INPUT},
        {RP_F16, 1, 2, 1, 12, 20, 0, 0, 0, {41}, {5}, {4}, {3}, {2}, 16, INPUT},
        {RP_F32, 2, 1, 1, 20, 160, 0, 0, 0, {6, 6}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 132, INPUT},
        {RP_F16, 2, 2, 1, 24, 40, 1, 1, 1, {9, 10}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, INPUT},
        {RP_F32, 3, 1, 1, 10, 34, 0, 0, 0, {4, 6, 5}, {2, 2, 2}, {2, 2, 2}, {0, 0, 0}, {1, 1, 1}, 1, INPUT},
        /* a picture of one place, which is one class however far a step goes */
        {RP_F32, 2, 3, 2, 40, 72, 0, 2, 1, {1, 1}, {1, 2}, {1, 3}, {2, 2}, {3, 1}, 132, INPUT},
        {RP_F16, 2, 2, 1, 24, 40, 1, 1, 1, {1, 1}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 16, INPUT},
        {RP_F16, 2, 1, 1, 128, 640, 1, 1, 1, {1, 1}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 132, INPUT},
        {RP_BF16, 1, 2, 1, 12, 20, 0, 0, 0, {1}, {3}, {2}, {1}, {1}, 16, INPUT},
        {RP_F64, 2, 2, 1, 2, 5, 0, 0, 0, {1, 1}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, INPUT},
        /* few rows, no tile: blocks and groups of the inner index, classes, every number of rows */
        {RP_F32, 1, 2, 1, 1, 40, 0, 0, 0, {700}, {80}, {4}, {0}, {1}, 1, INPUT},
        {RP_F32, 2, 1, 1, 3, 300, 0, 0, 0, {18, 15}, {4, 4}, {1, 1}, {1, 2}, {1, 1}, 1, INPUT},
        {RP_F64, 2, 1, 2, 4, 12, 0, 2, 1, {20, 17}, {3, 4}, {2, 3}, {1, 1}, {1, 2}, 1, INPUT},
        {RP_BF16, 2, 2, 1, 3, 24, 0, 0, 0, {17, 16}, {4, 4}, {4, 4}, {0, 0}, {1, 1}, 1, INPUT},
        {RP_F32, 2, 2, 1, 40, 3, 1, 0, 2, {16, 17}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, FORWARD},
        {RP_F32, 3, 2, 1, 2, 20, 0, 0, 0, {6, 7, 8}, {3, 3, 3}, {2, 1, 2}, {1, 1, 1}, {1, 1, 1}, 2, INPUT},
        /* 8 x 8 results a thread: in the largest tile and in the flattest, sums of blocks and of groups in memory, shares, large windows */
        {RP_F32, 2, 1, 1, 100, 128, 0, 0, 0, {16, 15}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, FORWARD},
        {RP_F32, 1, 1, 1, 1400, 32, 0, 0, 0, {250}, {3}, {1}, {1}, {1}, 1, FORWARD},
        {RP_F32, 2, 3, 1, 64, 64, 0, 1, 0, {14, 14}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2, INPUT},
        {RP_F32, 2, 1, 1, 12, 70, 1, 0, 2, {20, 17}, {7, 5}, {1, 1}, {3, 2}, {1, 1}, 1, INPUT},
        /* in slices of all sizes: ends within a slice, sums of several blocks, classes, images of few places */
        {RP_F32, 2, 1, 1, 67, 70, 0, 0, 0, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, FORWARD},
        {RP_F32, 2, 1, 1, 33, 40, 0, 0, 0, {14, 13}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 132, INPUT},
        {RP_F32, 2, 1, 1, 500, 64, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, FORWARD},
        {RP_F32, 2, 1, 1, 1100, 20, 0, 0, 0, {6, 6}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, FORWARD},
        {RP_F32, 2, 1, 3, 20, 9, 0, 0, 2, {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, INPUT},
        {RP_F32, 2, 1, 1, 3, 64, 0, 0, 0, {30, 30}, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 132, INPUT},
        {RP_F32, 1, 2, 1, 600, 16, 0, 0, 0, {70}, {4}, {1}, {2}, {1}, 4, FORWARD},
        /* weight gradients in shares of few and of more rows */
        {RP_F32, 2, 2, 4, 3, 20, 0, 0, 0, {20, 20}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 16, WEIGHT},
        /* the last ROUNDED ones are rounded to tf32: one by one and in vectors, in every tile, with shares, classes, dilations, groups, one dim and three */
        {RP_F32, 2, 2, 1, 6, 130, 0, 0, 0, {9, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, FORWARD},
        {RP_F32, 2, 1, 1, 30, 20, 1, 1, 1, {9, 7}, {3, 3}, {2, 1}, {1, 2}, {1, 1}, 1, INPUT},
        {RP_F32, 2, 2, 2, 20, 36, 1, 1, 1, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 16, WEIGHT},
        {RP_F32, 1, 3, 1, 12, 20, 1, 1, 1, {41}, {5}, {3}, {2}, {2}, 16, INPUT},
        {RP_F32, 3, 1, 1, 16, 16, 1, 1, 1, {4, 5, 6}, {3, 2, 3}, {2, 1, 2}, {1, 0, 1}, {1, 1, 1}, 16, WEIGHT},
        {RP_F32, 2, 2, 1, 32, 128, 1, 1, 1, {9, 8}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, INPUT},
        {RP_F32, 2, 1, 1, 128, 136, 1, 1, 1, {16, 12}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, FORWARD},
        {RP_F32, 2, 1, 1, 256, 68, 1, 1, 1, {5, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, FORWARD},
        {RP_F32, 2, 3, 1, 32, 72, 0, 0, 0, {4, 6}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 132, FORWARD},
        {RP_F32, 2, 2, 1, 40, 24, 0, 1, 1, {8, 9}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, WEIGHT},
        {RP_F32, 2, 1, 1, 8, 200, 1, 0, 2, {12, 25}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, FORWARD},
        {RP_F32, 2, 2, 1, 16, 20, 1, 1, 0, {7, 7}, {7, 5}, {1, 1}, {3, 2}, {1, 1}, 2, WEIGHT},
        {RP_F32, 2, 1, 1, 3, 64, 0, 0, 0, {30, 30}, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 132, FORWARD},
        {RP_F32, 2, 1, 1, 20, 160, 0, 0, 0, {6, 6}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 132, INPUT},
        {RP_F32, 2, 6, 1, 16, 24, 0, 0, 0, {20, 20}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, WEIGHT},
        {RP_F32, 2, 2, 1, 64, 64, 1, 1, 1, {1, 1}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 132, INPUT},
        /* weights as they are made: rows that end in the middle of a tile, groups, shares with less than others, steps, windows, one dim */
        {RP_F32, 2, 2, 1, 96, 40, 0, 0, 0, {9, 12}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 132, FORWARD},
        {RP_F32, 2, 1, 2, 32, 36, 1, 0, 1, {11, 19}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 132, FORWARD},
        {RP_F32, 2, 1, 1, 64, 72, 2, 0, 0, {8, 16}, {5, 2}, {1, 1}, {2, 0}, {1, 1}, 4, FORWARD},
        {RP_F32, 2, 3, 1, 160, 24, 0, 0, 1, {7, 7}, {3, 3}, {3, 3}, {0, 2}, {1, 1}, 132, FORWARD},
        {RP_F32, 1, 2, 1, 64, 20, 0, 0, 0, {150}, {7}, {4}, {3}, {1}, 132, FORWARD},
        {RP_F32, 2, 1, 1, 32, 40, 1, 0, 0, {29, 36}, {1, 8}, {4, 4}, {0, 2}, {1, 1}, 132, FORWARD},
        {RP_F32, 2, 2, 1, 32, 64, 0, 0, 0, {8, 7}, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 132, INPUT},
    };
    enum {
        SMALL_ROOM = 99 << 10,
        SLICED = 9,
        WARP_TILES = 10, /* conv.c's, with those of warpgroups, conv_patch.c's */
        ROUNDED_TILES = 16,
        PATCHES = 8,
        FIRST_PATCH = 32,
        ROUNDED = 23,
        CASES = sizeof cases / sizeof *cases
    };
    const int multiprocessors = cuda->multiprocessors;
    const size_t limit = cuda->shared_limit;
    unsigned forced[2][OPS] = {{0}}, patches = 0; /* tiles, of each op those of f32 and of tf32 by turns */
    (void)state;
    for (unsigned n = 0; n < CASES; n++) {
        const unsigned spatial = cases[n].spatial;
        const int64_t channels = (int64_t)cases[n].cg * cases[n].groups, out = (int64_t)cases[n].og * cases[n].groups;
        int64_t places[3];
        rp__library_call call = {.conv = {.spatial = (uint8_t)spatial, .groups = cases[n].groups},
                                 .precision = n < CASES - ROUNDED ? RP__FLOAT32_HIGHEST : RP__FLOAT32_HIGH};
        for (unsigned d = 0; d < spatial; d++) {
            call.conv.stride[d] = cases[n].stride[d];
            call.conv.padding[d] = cases[n].padding[d];
            call.conv.dilation[d] = cases[n].dilation[d];
            places[d] =
                (cases[n].in[d] + 2 * cases[n].padding[d] - cases[n].dilation[d] * (cases[n].kernel[d] - 1) - 1) /
                    cases[n].stride[d] +
                1;
        }
        array x = image_new(cases[n].dtype, spatial, cases[n].batch, channels, cases[n].in, cases[n].x),
              w = image_new(cases[n].dtype, spatial, out, cases[n].cg, cases[n].kernel, cases[n].w),
              y = image_new(cases[n].dtype, spatial, cases[n].batch, out, places, cases[n].y),
              bias = image_new(cases[n].dtype, 0, out, 1, NULL, 0);
        bias.o.ndim = 1;
        array forward[4] = {y, x, w, bias}, input[3] = {x, y, w}, weight[3] = {w, y, x};
        cuda->multiprocessors = cases[n].multiprocessors;
        print_message("convolution %u\n", n);
        for (unsigned op = 0; op < OPS; op++) {
            const bool made_for = cases[n].made_for == FORWARD + (int)op;
            if (!test_cuda_takes(cases[n].made_for == EACH ? n + op : made_for ? OPS * n : 1u, OPS)) continue;
            array *operands = op == 0 ? forward : op == 1 ? input : weight;
            const rp__library_op ops[] = {RP__LIB_CONV_FORWARD, RP__LIB_CONV_INPUT, RP__LIB_CONV_WEIGHT};
            const unsigned count = op == 0 && n % 2 ? 4 : 3;
            for (unsigned k = 0; k < count; k++) fill_small(&operands[k]);
            run_both(ops[op], operands, count, 1, &call);
            if (call.precision || (op < 2 && cases[n].dtype == RP_F32)) { /* some of the tiles, whatever the sizes */
                static const unsigned turns[OPS] = {2, 4, 2}, rounded[OPS] = {ROUNDED_TILES, ROUNDED_TILES, WARP_TILES};
                for (unsigned k = 0; k < (call.precision ? turns[op] + (op == 0) : 2); k++) {
                    const bool patch = call.precision && k == turns[op];
                    unsigned *at = patch ? &patches : &forced[call.precision != 0][op];
                    rp__cuda_conv_tile = 1 +
                                         (*at)++ % (patch            ? PATCHES
                                                    : call.precision ? rounded[op]
                                                                     : SLICED) +
                                         (patch ? FIRST_PATCH : 0);
                    for (unsigned i = 0; i < count; i++) fill_small(&operands[i]);
                    run_both(ops[op], operands, count, 1, &call);
                }
                rp__cuda_conv_tile = 0;
            }
            if (op < 2 || cases[n].groups == 1 || cases[n].dtype == RP_F32 || limit < SMALL_ROOM) continue;
            cuda->shared_limit = SMALL_ROOM; /* as on devices of 8.6, 8.9 and 12.0 */
            for (unsigned k = 0; k < count; k++) fill_small(&operands[k]);
            run_both(ops[op], operands, count, 1, &call);
            cuda->shared_limit = limit;
        }
        cuda->multiprocessors = multiprocessors;
        free(x.memory);
        free(w.memory);
        free(y.memory);
        free(bias.memory);
    }
    for (unsigned op = 0; op < OPS && !SLOW_BUILD; op++) {
        assert_true(forced[1][op] >= (op + FORWARD == WEIGHT ? WARP_TILES : ROUNDED_TILES));
        assert_true(op + FORWARD == WEIGHT || forced[0][op] >= SLICED);
    }
    assert_true(SLOW_BUILD || patches >= PATCHES);
}

/* Element i of what lies anyhow, as put counts. */
static double get_placed(const array *a, int64_t i) {
    array at = *a;
    for (unsigned d = a->o.ndim; d-- > 0;) {
        at.memory += i % a->o.size[d] * a->o.stride[d] * (int64_t)rp__dtype_bytes(a->o.dtype);
        i /= a->o.size[d];
    }
    return get(&at, 0);
}

/* On CUDA alone; the first array is written. */
static void run_cuda(rp__library_op op, array *a, size_t n, rp__library_call *call) {
    rp__operand o[16];
    rp__storage *storages[16];
    rp_stream *s = rp__current_stream(cuda);
    call->op = "test", call->site = "test_cuda_library.c";
    for (size_t i = 0; i < n; i++) {
        o[i] = a[i].o;
        storages[i] = NULL;
        if (!a[i].memory) continue; /* absent */
        storages[i] = rp__storage_new(cuda, s, a[i].bytes);
        if (!storages[i]) fail_msg("%s", rp_error_message());
        check(cuda->ops->copy_in(cuda, s, storages[i]->data, a[i].memory, a[i].bytes));
        o[i].base = storages[i]->data;
        o[i].storage = storages[i];
    }
    check(rp__library_run(cuda, s, op, o, n, call));
    assert_int_equal(found(cuda), RP_OK);
    for (size_t i = 0; i < n; i++) {
        if (!storages[i]) continue;
        check(cuda->ops->copy_out(cuda, s, a[i].memory, storages[i]->data, a[i].bytes));
        rp__storage_release(storages[i]);
    }
}

/* An infinity reaches what is made of it: not the groups beside its own, which share steps of tensor cores with it, nor taps that it does
 * not meet, whatever turns of places reach beyond the result. */
static void test_conv_infinity(void **state) {
    static const struct {
        uint16_t groups, c, side;
        rp__library_op op;
        int64_t at; /* of the infinity, in what is read with windows, or of an input gradient dy */
    } cases[] = {
        {8, 2, 8, RP__LIB_CONV_FORWARD, 0},           {4, 4, 9, RP__LIB_CONV_FORWARD, 40},
        {3, 8, 7, RP__LIB_CONV_FORWARD, 700},         {8, 2, 8, RP__LIB_CONV_INPUT, 70},
        {6, 8, 9, RP__LIB_CONV_INPUT, 1000},          {2, 16, 10, RP__LIB_CONV_INPUT, 0},
        {2, 16, 10, RP__LIB_CONV_WEIGHT, 5 * 10 + 9}, {5, 4, 11, RP__LIB_CONV_WEIGHT, 10 * 11 + 3},
    };
    (void)state;
    for (unsigned n = 0; n < sizeof cases / sizeof *cases; n++) {
        const int64_t side = cases[n].side, c = cases[n].c, channels = c * cases[n].groups, window[2] = {3, 3},
                      places[2] = {side, side}, plane = side * side, group = cases[n].at / plane / c,
                      row = cases[n].at % plane / side, column = cases[n].at % side;
        const bool weight = cases[n].op == RP__LIB_CONV_WEIGHT;
        rp__library_call call = {.conv = {.spatial = 2, .groups = cases[n].groups}};
        for (unsigned d = 0; d < 2; d++) call.conv.stride[d] = call.conv.padding[d] = call.conv.dilation[d] = 1;
        array x = image_new(RP_F16, 2, 1, channels, places, ROWS_FIRST),
              w = image_new(RP_F16, 2, channels, c, window, ROWS_FIRST),
              y = image_new(RP_F16, 2, 1, channels, places, ROWS_FIRST), finite[3],
              *read = weight ? &finite[2] : &finite[1];
        fill_small(&x), fill_small(&w), fill_small(&y);
        finite[0] = weight ? w : cases[n].op == RP__LIB_CONV_INPUT ? x : y;
        finite[1] = cases[n].op == RP__LIB_CONV_FORWARD ? x : y;
        finite[2] = weight ? x : w;
        run_cuda(cases[n].op, finite, 3, &call);
        unsigned char *want = malloc(finite[0].bytes);
        assert_non_null(want);
        memcpy(want, finite[0].memory, finite[0].bytes);
        put(read, cases[n].at, (double)INFINITY);
        run_cuda(cases[n].op, finite, 3, &call);
        array before = finite[0];
        before.memory = want;
        int64_t met = 0;
        for (int64_t k = 0; k < numel(&before.o); k++) {
            bool meets;
            if (weight) {
                const int64_t ky = k / 3 % 3, kx = k % 3, in = k / 9 % c, out = k / 9 / c;
                meets = out / c == group && in == cases[n].at / plane % c && row - ky + 1 >= 0 && row - ky + 1 < side &&
                        column - kx + 1 >= 0 && column - kx + 1 < side;
            } else {
                const int64_t dy = k % plane / side - row, dx = k % side - column;
                meets = k / plane / c == group && dy >= -1 && dy <= 1 && dx >= -1 && dx <= 1;
            }
            met += meets;
            if (meets ? isfinite(get_placed(&finite[0], k)) : get_placed(&finite[0], k) != get_placed(&before, k))
                fail_msg("case %u: element %d is %g, without the infinity %g", n, (int)k, get_placed(&finite[0], k),
                         get_placed(&before, k));
        }
        assert_true(met > 0);
        free(want);
        free(x.memory), free(w.memory), free(y.memory);
    }
}

/* Numbers whose sums are not exact: results have the same bits however the operands lie, and whichever kernel reads them. */
static void test_conv_layouts(void **state) {
    static const struct {
        rp_dtype dtype;
        uint16_t batch, groups, cg, og;
        int64_t in[2], kernel[2], stride[2], padding[2];
    } cases[] = {
        {RP_F16, 2, 1, 40, 24, {9, 7}, {3, 3}, {1, 1}, {1, 1}},
        {RP_BF16, 1, 2, 64, 16, {8, 8}, {3, 2}, {2, 1}, {1, 0}},
        {RP_F16, 1, 1, 256, 16, {5, 5}, {3, 3}, {1, 1}, {1, 1}},
        {RP_F16, 2, 1, 64, 96, {9, 10}, {3, 3}, {1, 1}, {1, 1}}, /* warpgroups, and none */
        {RP_BF16, 2, 1, 80, 128, {6, 7}, {3, 1}, {1, 2}, {1, 0}},
        {RP_BF16, 1, 1, 128, 64, {8, 9}, {3, 3}, {1, 1}, {1, 1}}, /* chunks of channels */
        {RP_F16, 1, 1, 192, 128, {7, 9}, {2, 3}, {2, 1}, {1, 1}},
        {RP_F16, 2, 16, 1, 1, {9, 10}, {3, 3}, {2, 1}, {1, 1}},
        {RP_F16, 2, 18, 4, 4, {9, 10}, {3, 3}, {1, 1}, {1, 1}},
        {RP_BF16, 3, 4, 16, 16, {9, 18}, {3, 3}, {2, 1}, {1, 1}},
        {RP_F32, 3, 8, 1, 1, {9, 10}, {5, 3}, {1, 1}, {2, 1}},
        {RP_BF16, 5, 36, 1, 1, {18, 17}, {3, 3}, {1, 1}, {1, 1}},
        {RP_F32, 2, 1, 20, 10, {12, 12}, {3, 3}, {2, 2}, {1, 1}},
        {RP_F16, 2, 1, 3, 64, {20, 24}, {7, 7}, {2, 2}, {3, 3}}, /* few channels in */
        {RP_BF16, 1, 1, 4, 20, {18, 16}, {3, 3}, {1, 1}, {1, 1}},
        {RP_F16, 1, 1, 1, 16, {18, 21}, {5, 3}, {1, 1}, {2, 1}},
        {RP_BF16, 1, 1, 24, 40, {9, 8}, {3, 3}, {2, 2}, {1, 1}}, /* classes of places */
        {RP_F16, 1, 1, 40, 72, {20, 19}, {9, 9}, {9, 9}, {0, 0}},
        {RP_F32, 1, 1, 3, 30, {20, 18}, {3, 3}, {2, 2}, {1, 1}},
        /* the last ROUNDED ones: to tf32 */
        {RP_F32, 2, 1, 40, 24, {9, 7}, {3, 3}, {1, 1}, {1, 1}},
        {RP_F32, 1, 1, 192, 64, {7, 9}, {2, 3}, {2, 1}, {1, 1}},
        {RP_F32, 2, 2, 20, 36, {9, 10}, {3, 3}, {2, 2}, {1, 1}},
        {RP_F32, 3, 1, 64, 128, {6, 8}, {1, 1}, {1, 1}, {0, 0}},
    };
    enum { ROUNDED = 4, CASES = sizeof cases / sizeof *cases };
    (void)state;
    for (unsigned n = 0; n < CASES; n++) {
        const int64_t channels = (int64_t)cases[n].cg * cases[n].groups, out = (int64_t)cases[n].og * cases[n].groups;
        int64_t places[2];
        rp__library_call call = {.conv = {.spatial = 2, .groups = cases[n].groups},
                                 .precision = n < CASES - ROUNDED ? RP__FLOAT32_HIGHEST : RP__FLOAT32_HIGH};
        for (unsigned d = 0; d < 2; d++) {
            call.conv.stride[d] = cases[n].stride[d];
            call.conv.padding[d] = cases[n].padding[d];
            call.conv.dilation[d] = 1;
            places[d] = (cases[n].in[d] + 2 * cases[n].padding[d] - cases[n].kernel[d]) / cases[n].stride[d] + 1;
        }
        array a[2][3];
        for (unsigned last = 0; last < 2; last++) {
            const unsigned layout = last ? CHANNELS_LAST : ROWS_FIRST;
            a[last][0] = image_new(cases[n].dtype, 2, cases[n].batch, out, places, layout);
            a[last][1] = image_new(cases[n].dtype, 2, cases[n].batch, channels, cases[n].in, layout);
            a[last][2] = image_new(cases[n].dtype, 2, out, cases[n].cg, cases[n].kernel, layout);
        }
        for (unsigned op = 0; op < 3; op++) {
            static const unsigned order[3][3] = {{0, 1, 2}, {1, 0, 2}, {2, 0, 1}};
            const rp__library_op ops[] = {RP__LIB_CONV_FORWARD, RP__LIB_CONV_INPUT, RP__LIB_CONV_WEIGHT};
            for (unsigned last = 0; last < 2; last++) {
                array operands[3];
                for (unsigned k = 0; k < 3; k++) operands[k] = a[last][order[op][k]];
                seed = 77 + n;
                for (unsigned k = 1; k < 3; k++)
                    for (int64_t i = 0; i < numel(&operands[k].o); i++)
                        put(&operands[k], i, (double)(random_word() % 4096) / 1031 - 2);
                run_cuda(ops[op], operands, 3, &call);
            }
            const array *one = &a[0][order[op][0]], *two = &a[1][order[op][0]];
            for (int64_t i = 0; i < numel(&one->o); i++)
                if (get_placed(one, i) != get_placed(two, i))
                    fail_msg("case %u, op %u: element %lld differs", n, op, (long long)i);
        }
        for (unsigned k = 0; k < 3; k++) free(a[0][k].memory), free(a[1][k].memory);
    }
}

/* More states than a block has threads, sequences that end before the last time, states without a way. */
static void test_ctc(void **state) {
    (void)state;
    enum { T = 5, N = 3, L = 300 };
    static const int64_t size[3] = {T, N, L}, lengths[N] = {T, 2, 0};
    for (unsigned c = 0; c < 3; c++) { /* reach; carry along the ways, and against them */
        rp__library_call call = {.op = "test", .site = "test_cuda_library.c", .back = c == 2};
        array a[5], own;
        const size_t n = c ? 5 : 4;
        for (size_t k = 0; k < n - 2; k++) a[k] = array_new(RP_F32, 3, size, false, 1);
        a[n - 2] = array_new(RP_BOOL, 2, size + 1, false, 1);
        a[n - 1] = array_new(RP_I64, 1, size + 1, false, 1);
        for (size_t k = 1; k < n - 1; k++)
            for (int64_t i = 0; i < numel(&a[k].o); i++)
                put(&a[k], i, k == n - 2 ? random_word() % 2 : (double)(random_word() % 512) / 128 - 2);
        for (int64_t i = 0; i < N; i++) put(&a[n - 1], i, (double)lengths[i]);
        own = array_new(RP_F32, 3, size, false, 1);
        rp__operand o[5] = {own.o};
        for (size_t k = 1; k < n; k++) o[k] = a[k].o;
        run_cuda(c ? RP__LIB_CTC_CARRY : RP__LIB_CTC_REACH, a, n, &call);
        check(rp__library_run(cpu, rp__current_stream(cpu), c ? RP__LIB_CTC_CARRY : RP__LIB_CTC_REACH, o, n, &call));
        assert_int_equal(found(cpu), RP_OK);
        for (int64_t i = 0; i < T * N * L; i++) {
            const double x = get(&a[0], i), y = get(&own, i);
            if (!(fabs(x - y) <= 1e-5 * (1 + fabs(y)))) fail_msg("case %u, element %d: %g, %g", c, (int)i, x, y);
        }
        free(own.memory);
        for (size_t k = 0; k < n; k++) free(a[k].memory);
    }
}

/* Recurrent layers of more units than a block, a lane or a vector has; sequences that fill no block of them; both directions. */
static void test_recur(void **state) {
    (void)state;
    static const struct {
        rp_dtype dtype;
        uint8_t cell;
        int16_t steps, rows, units;
        bool reverse, part; /* part: x has gaps; no bias, and not all gradients */
    } cases[] = {
        {RP_F32, RP__CELL_TANH, 3, 5, 32, false, false},  {RP_F32, RP__CELL_TANH, 2, 3, 130, true, true},
        {RP_F32, RP__CELL_RELU, 4, 1100, 1, true, false}, {RP_F32, RP__CELL_GRU, 2, 3, 50, true, false},
        {RP_F32, RP__CELL_GRU, 3, 2, 19, false, true},    {RP_F32, RP__CELL_LSTM, 2, 3, 64, false, false},
        {RP_F32, RP__CELL_LSTM, 3, 70, 67, true, true},   {RP_F32, RP__CELL_LSTM, 1, 33, 256, false, false},
        {RP_F64, RP__CELL_LSTM, 2, 3, 33, false, true},   {RP_F64, RP__CELL_GRU, 2, 150, 40, true, false},
    };
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t t = cases[c].steps, n = cases[c].rows, h = cases[c].units;
        const unsigned cell = cases[c].cell;
        const int64_t gates = rp__cell_gates(cell) * h, states[3] = {t + 1, n, h}, kept[3] = {t, n, 4 * h},
                      sums[3] = {t, n, gates}, wide[3] = {t, n, gates + 5}, weights[2] = {gates, h};
        const rp_dtype dtype = cases[c].dtype;
        const bool lstm = cell == RP__CELL_LSTM, keeps = cell >= RP__CELL_GRU, part = cases[c].part;
        const int64_t most = cuda->ops->library->recurs(cuda, (rp__recurrent_cell)cell, dtype, h);
        if (cases[c].rows < 1000 && most < n) fail_msg("case %u: of %d sequences at the most", c, (int)most);
#define OF(has, ndim, size) ((has) ? array_new(dtype, ndim, size, false, 1) : (array){.bytes = 0})
        array a[21] = {OF(true, 3, states), OF(true, 2, states + 1), OF(lstm, 3, states), OF(lstm, 2, states + 1),
                       OF(keeps, 3, kept), OF(true, 3, part ? wide : sums), OF(true, 2, weights), OF(!part, 1, weights),
                       OF(true, 2, states + 1), OF(lstm, 2, states + 1),
                       /* back: dx, dy, dh, dc, three gradients, then states, cells, kept, w */
                       OF(true, 3, sums), OF(cell == RP__CELL_GRU, 3, sums), OF(true, 2, states + 1),
                       OF(lstm, 2, states + 1), OF(!part, 3, states), OF(true, 2, states + 1),
                       OF(lstm && !part, 2, states + 1)};
#undef OF
        a[5].o.size[2] = gates;
        for (unsigned k = 5; k < 17; k++)
            for (int64_t i = 0; a[k].memory && (k < 10 || k > 13) && i < numel(&a[k].o); i++)
                put(&a[k], i, ((double)(random_word() % 4096) / 2048 - 1) * (k == 6 ? 4.0 / (double)(h + 3) : 1));
        a[17] = a[0], a[18] = a[2], a[19] = a[4], a[20] = a[6];
        for (unsigned back = 0; back < 2; back++) {
            rp__library_call call = {.op = "test", .recurrence = {.cell = (uint8_t)cell, .reverse = cases[c].reverse}};
            const rp__library_op op = back ? RP__LIB_RECUR_BACK : RP__LIB_RECUR;
            array *of = a + 10 * back;
            const unsigned count = back ? 11 : 10, results = back ? 4 : 5;
            rp__operand o[11];
            unsigned char *own[5] = {NULL};
            call.site = "test_cuda_library.c";
            for (unsigned k = 0; k < count; k++) {
                o[k] = of[k].o;
                if (k < results && of[k].memory) o[k].base = own[k] = calloc(1, of[k].bytes);
            }
            check(rp__library_run(cpu, rp__current_stream(cpu), op, o, count, &call));
            assert_int_equal(found(cpu), RP_OK);
            run_cuda(op, of, count, &call);
            for (unsigned k = 0; k < results; k++) {
                array other = of[k];
                other.memory = own[k];
                other.o.base = own[k];
                for (int64_t i = 0; own[k] && i < numel(&other.o); i++) {
                    const double x = get(&of[k], i), y = get(&other, i), error = dtype == RP_F64 ? 1e-13 : 3e-6;
                    if (!(fabs(x - y) <= error * (1 + fabs(y))))
                        fail_msg("case %u, back %u, result %u, element %d: %.9g, %.9g", c, back, k, (int)i, x, y);
                }
                free(own[k]);
            }
        }
        for (unsigned k = 0; k < 17; k++) free(a[k].memory);
    }
}

int main(void) {
    rp__cuda_dnn_use = RP__DNN_NEVER; /* cuDNN's operands lie in one way, and test_cuda_dnn.c has them */
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort_small_memory),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_sort),
        cmocka_unit_test(test_nonzero),
        cmocka_unit_test(test_multinomial),
        cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_scatter_halves),
        cmocka_unit_test(test_weighted_scatter),
        cmocka_unit_test(test_count_bins),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_scatter_rows),
        cmocka_unit_test(test_small_product),
        cmocka_unit_test(test_chain_refused),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_infinity),
        cmocka_unit_test(test_conv_layouts),
        cmocka_unit_test(test_ctc),
        cmocka_unit_test(test_recur),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
