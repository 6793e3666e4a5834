/* ctest: labels=cuda timeout=600 */
/* Library ops of selection and scattering on CUDA against the CPU's, whose bits they must give (test_library.c checks those).
   Runs on the emulator; with REPRISE_TEST_CUDA=real on a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "device/device.h"
#include "device/error_record.h"
#include "kernel/library.h"
#include "support/cuda.h"
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
        c[i].base = storages[i]->data;
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
        if (i < n_out && memcmp(back, a[i].memory, a[i].bytes))
            fail_msg("op %d, %s, operand %d: the devices differ", (int)op, rp_dtype_name(a[n - 1].o.dtype), (int)i);
        free(back);
        rp__storage_release(storages[i]);
    }
}

static void run_both(rp__library_op op, array *a, size_t n, size_t n_out, rp__library_call *call) {
    run_both_error(op, a, n, n_out, call, RP_OK);
}

static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_BOOL};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static void topk_case(rp_dtype dtype, int64_t rows, int64_t n, int64_t k, bool last, bool largest) {
    const int64_t in[2] = {last ? rows : n, last ? n : rows}, out[2] = {last ? rows : k, last ? k : rows};
    array a[3] = {array_new(dtype, 2, out, false, 1), array_new(RP_I64, 2, out, true, 1),
                  array_new(dtype, 2, in, false, 2)};
    fill(&a[2]);
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
    topk_case(RP_F32, 2, 1300, 1100, true, true); /* sorted in the workspace */
    topk_case(RP_U8, 1, 1200, 1026, true, false);
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

static void test_scatter_add(void **state) {
    (void)state;
    for (unsigned d = 0; d < DTYPES; d++)
        for (unsigned mode = 0; mode < 6; mode++) {
            /* whole numbers of eighths: sums are exact, so that atomics give them in any order */
            const unsigned dim = mode % 3;
            const int64_t ys[3] = {4, 5, 6}, is[3] = {dim == 0 ? 9 : 4, dim == 1 ? 20 : 3, dim == 2 ? 11 : 6};
            array a[3] = {array_new(dtypes[d], 3, ys, true, 1), array_new(RP_I64, 3, is, false, 1),
                          array_new(dtypes[d], 3, is, false, 1)};
            fill_numbers(&a[0]);
            fill_numbers(&a[2]);
            for (int64_t i = 0, n = numel(&a[1].o); i < n; i++) put(&a[1], i, random_word() % (uint32_t)ys[dim]);
            if (mode == 5) put(&a[1], 3, (double)ys[dim]);
            rp__library_call call = {.dim = dim, .deterministic = mode >= 3};
            run_both_error(RP__LIB_SCATTER_ADD, a, 3, 1, &call, mode == 5 ? RP_ERROR_INDEX : RP_OK);
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
    run_both(RP__LIB_SCATTER_ADD, a, 3, 1, &call);
    for (unsigned i = 0; i < 3; i++) free(a[i].memory);
}

static int setup(void **state) {
    (void)state;
    cpu = rp__device_get((rp_device){RP_DEVICE_CPU, 0});
    cuda = rp__device_get((rp_device){RP_DEVICE_CUDA, 0});
    return cpu && cuda ? 0 : -1;
}

int main(void) {
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_nonzero),
        cmocka_unit_test(test_multinomial),
        cmocka_unit_test(test_scatter_add),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
