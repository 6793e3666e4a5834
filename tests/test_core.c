/* The core: sticky errors, injected allocation failures, element types and promotion, sizes, hashing, texts, the pool.
   ctest: labels=threads */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/arena.h"
#include "core/dim.h"
#include "core/dtype.h"
#include "core/hash.h"
#include "core/text.h"
#include "core/thread.h"

static void errors_keep_the_first(void **state) {
    (void)state;
    assert_false(rp_failed());
    assert_string_equal(rp_error_message(), "");
    rp__site_frame outer = rp__site_push("a.c:7", "add");
    rp__site_frame inner = rp__site_push("layers.c:1", "mul"); /* inside a public call: the outer names win */
    assert_int_equal(rp__fail(RP_ERROR_SHAPE, "sizes %d and %d", 2, 3), RP_ERROR_SHAPE);
    rp__site_pop(inner);
    rp__site_pop(outer);
    assert_string_equal(rp_error_message(), "add: sizes 2 and 3 at a.c:7");
    uint64_t count = rp__error_count();
    assert_int_equal(rp__fail(RP_ERROR_DTYPE, "another"), RP_ERROR_DTYPE);
    assert_int_equal(rp__error_count(), count + 1);
    assert_int_equal(rp_error_status(), RP_ERROR_SHAPE);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    assert_int_equal(rp_error_take(), RP_OK);
    assert_false(rp_failed());
    assert_string_equal(rp_status_name(RP_ERROR_DEVICE_LOST), "RP_ERROR_DEVICE_LOST");
    assert_string_equal(rp_status_name(RP_ERROR_INTERNAL), "RP_ERROR_INTERNAL");
}

static void error_context_belongs_to_the_first(void **state) {
    (void)state;
    rp__fail(RP_ERROR_IO, "no file");
    assert_int_equal(rp__fail_context("loading %s", "x.npy"), RP_ERROR_IO);
    assert_string_equal(rp_error_message(), "no file: while loading x.npy");
    rp__fail(RP_ERROR_SHAPE, "later");
    rp__fail_context("doing the later thing");
    assert_string_equal(rp_error_message(), "no file: while loading x.npy");
    rp_error_take();
    /* An op that names itself is not named twice. */
    rp__site_frame outer = rp__site_push(NULL, "relu");
    rp__fail(RP_ERROR_DTYPE, "relu: not for bool");
    rp__site_pop(outer);
    assert_string_equal(rp_error_message(), "relu: not for bool");
    rp_error_take();
}

static void error_text_is_cut_to_its_buffer(void **state) {
    (void)state;
    char big[4096];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    rp__fail(RP_ERROR_IO, "%s", big);
    rp__fail_context("%s", big);
    assert_int_equal(strlen(rp_error_message()), sizeof((rp__error_state *)0)->text - 1);
    rp_error_take();
}

/* A thread that ends with an error leaves its text's place to others. */
static void *end_with_an_error(void *text) {
    rp__fail(RP_ERROR_IO, "%s", (const char *)text);
    return strcmp(rp_error_message(), text) ? "no text" : NULL;
}

static pthread_barrier_t meeting;

static void *hold_an_error(void *text) {
    void *failed = end_with_an_error(text);
    pthread_barrier_wait(&meeting);
    pthread_barrier_wait(&meeting);
    return strcmp(rp_error_message(), text) ? "another text" : failed;
}

static void error_texts_need_no_memory(void **state) {
    (void)state;
    pthread_t threads[RP__ERROR_TEXTS];
    void *failed;
    rp__alloc_fail_at(1);
    for (int i = 0; i < 2 * RP__ERROR_TEXTS; i++) {
        assert_int_equal(pthread_create(&threads[0], NULL, end_with_an_error, "ends"), 0);
        pthread_join(threads[0], &failed);
        assert_null(failed);
    }
    rp__fail(RP_ERROR_SHAPE, "mine");
    assert_string_equal(rp_error_message(), "mine");
    rp_error_take();
    assert_true(rp__alloc_denied()); /* nothing was allocated: the next one is still to fail */

    /* With every place taken a text lies on the heap; without that the status remains. */
    char texts[RP__ERROR_TEXTS][24];
    pthread_barrier_init(&meeting, NULL, RP__ERROR_TEXTS + 1);
    for (int i = 0; i < RP__ERROR_TEXTS; i++) {
        snprintf(texts[i], sizeof texts[i], "thread %d", i);
        assert_int_equal(pthread_create(&threads[i], NULL, hold_an_error, texts[i]), 0);
    }
    pthread_barrier_wait(&meeting);
    uint64_t live = rp__alloc_live();
    rp__fail(RP_ERROR_SHAPE, "one more");
    assert_string_equal(rp_error_message(), "one more");
    assert_int_equal(rp__alloc_live(), live + 1);
    rp_error_take();
    assert_int_equal(rp__alloc_live(), live);
    rp__alloc_fail_at(1);
    assert_int_equal(rp__fail(RP_ERROR_SHAPE, "too many"), RP_ERROR_SHAPE);
    assert_int_equal(rp__fail_context("counting"), RP_ERROR_SHAPE);
    assert_non_null(strstr(rp_error_message(), "no memory"));
    rp__error_state lost;
    rp__error_save(&lost);
    assert_false(rp_failed());
    pthread_barrier_wait(&meeting);
    for (int i = 0; i < RP__ERROR_TEXTS; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    pthread_barrier_destroy(&meeting);
    rp__error_restore(&lost);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
}

static void error_states_are_saved(void **state) {
    (void)state;
    rp__error_state none, held;
    rp__error_save(&none);
    rp__fail(RP_ERROR_INDEX, "first");
    rp__error_restore(&none);
    assert_string_equal(rp_error_message(), "first");
    rp__error_save(&held);
    assert_false(rp_failed());
    rp__fail(RP_ERROR_SHAPE, "meanwhile");
    rp__error_restore(&held);
    assert_string_equal(rp_error_message(), "first");
    assert_int_equal(rp_error_take(), RP_ERROR_INDEX);
}

static void allocations_fail_on_demand(void **state) {
    (void)state;
    uint64_t live = rp__alloc_live();
    rp__alloc_fail_at(2);
    void *a = rp__alloc(8), *b = rp__alloc(8), *c = rp__calloc(3, 5);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(rp__alloc_live(), live + 2);
    rp__alloc_fail_at(1);
    assert_null(rp__realloc(a, 100));
    a = rp__realloc(a, 100); /* survived; the injection is used up */
    assert_non_null(a);
    assert_null(rp__calloc(SIZE_MAX / 2, 3));
    void *aligned = rp__alloc_aligned(256, 10);
    assert_int_equal((uintptr_t)aligned % 256, 0);
    char *copy = rp__strdup("text");
    assert_string_equal(copy, "text");
    rp__free(a);
    rp__free(b);
    rp__free(c);
    rp__free(aligned);
    rp__free(copy);
    assert_int_equal(rp__alloc_live(), live);
    int *array = NULL;
    size_t capacity = 0;
    assert_true(RP__GROW(&array, &capacity, 3));
    array[0] = 42;
    int *old = array;
    rp__alloc_fail_at(1);
    assert_false(RP__GROW(&array, &capacity, 1000));
    assert_ptr_equal(array, old);
    assert_true(RP__GROW(&array, &capacity, 1000));
    assert_int_equal(array[0], 42);
    assert_false(RP__GROW(&array, &capacity, SIZE_MAX / 2));
    rp__free(array);
}

/* torch.promote_types, written out. Rows and columns: f32 f64 f16 bf16 i32 i64 u8 bool i8 i16. */
static void promotion_is_torchs(void **state) {
    (void)state;
    static const uint8_t want[10][10] = {
        {RP_F32, RP_F64, RP_F32, RP_F32, RP_F32, RP_F32, RP_F32, RP_F32, RP_F32, RP_F32},
        {RP_F64, RP_F64, RP_F64, RP_F64, RP_F64, RP_F64, RP_F64, RP_F64, RP_F64, RP_F64},
        {RP_F32, RP_F64, RP_F16, RP_F32, RP_F16, RP_F16, RP_F16, RP_F16, RP_F16, RP_F16},
        {RP_F32, RP_F64, RP_F32, RP_BF16, RP_BF16, RP_BF16, RP_BF16, RP_BF16, RP_BF16, RP_BF16},
        {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_I32, RP_I32, RP_I32, RP_I32},
        {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I64, RP_I64, RP_I64, RP_I64, RP_I64, RP_I64},
        {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_U8, RP_I16, RP_I16},
        {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_BOOL, RP_I8, RP_I16},
        {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_I16, RP_I8, RP_I8, RP_I16},
        {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_I16, RP_I16, RP_I16, RP_I16},
    };
    assert_int_equal(RP__DTYPE_COUNT, 11);
    for (int a = 1; a <= 10; a++) {
        for (int b = 1; b <= 10; b++) assert_int_equal(rp__promote((rp_dtype)a, (rp_dtype)b), want[a - 1][b - 1]);
    }
}

/* What follows from the rows of the table, and that no two of them have one name or code. */
static void rows_of_dtypes(void **state) {
    (void)state;
    float f32;
    double f64;
    const uint64_t bits32 = rp__dtype_infinity(RP_F32), bits64 = rp__dtype_infinity(RP_F64);
    memcpy(&f32, &bits32, sizeof f32);
    memcpy(&f64, &bits64, sizeof f64);
    assert_true(isinf(f32) && f32 > 0 && isinf(f64) && f64 > 0);
    assert_int_equal(rp__dtype_infinity(RP_F16), rp__f32_to_f16(INFINITY));
    assert_int_equal(rp__dtype_infinity(RP_BF16), rp__f32_to_bf16(INFINITY));
    assert_true(rp__dtype_most(RP_I64) == INT64_MAX && rp__dtype_least(RP_I64) == INT64_MIN);
    assert_true(rp__dtype_most(RP_I8) == INT8_MAX && rp__dtype_least(RP_I8) == INT8_MIN);
    assert_true(rp__dtype_most(RP_U8) == UINT8_MAX && rp__dtype_least(RP_U8) == 0 && rp__dtype_most(RP_BOOL) == 1);
    for (unsigned a = 1; a < RP__DTYPE_COUNT; a++) {
        const rp__dtype_info *x = &rp__dtypes[a];
        assert_true(x->title && x->cuda && x->npy && x->safetensors && x->hlo && x->onnx && x->pjrt && x->digits);
        assert_true(rp__dtype_is_half((rp_dtype)a) == (a == RP_F16 || a == RP_BF16));
        for (unsigned b = 1; b < a; b++) {
            const rp__dtype_info *y = &rp__dtypes[b];
            assert_true(strcmp(x->name, y->name) && strcmp(x->short_name, y->short_name) && strcmp(x->title, y->title));
            assert_true((strcmp(x->npy, y->npy) || !*x->npy) && strcmp(x->safetensors, y->safetensors));
            assert_true(strcmp(x->hlo, y->hlo) && x->onnx != y->onnx && x->pjrt != y->pjrt);
            assert_true(x->dlpack != y->dlpack || x->bytes != y->bytes);
        }
    }
}

static rp_dtype result_of(rp_dtype dim, rp_dtype zero, int scalar) {
    rp__promotion p = {0};
    if (dim) rp__promote_tensor(&p, dim, 2);
    if (zero) rp__promote_tensor(&p, zero, 0);
    if (scalar >= 0) rp__promote_scalar(&p, (rp_scalar_kind)scalar);
    return rp__promotion_result(&p);
}

static void result_type_weighs_operands(void **state) {
    (void)state;
    assert_int_equal(result_of(RP_F16, RP_F64, -1), RP_F16);     /* f16[2] + f64[] */
    assert_int_equal(result_of(RP_I32, RP_F64, -1), RP_F64);     /* i32[2] + f64[] */
    assert_int_equal(result_of(RP_I32, RP_I64, -1), RP_I32);     /* i32[2] + i64[] */
    assert_int_equal(result_of(RP_U8, 0, RP_SCALAR_I64), RP_U8); /* u8[2] + 3 */
    assert_int_equal(result_of(RP_U8, 0, RP_SCALAR_F64), RP_F32);
    assert_int_equal(result_of(RP_I8, RP_U8, -1), RP_I8); /* i8[2] + u8[] */
    assert_int_equal(result_of(RP_I8, RP_I64, RP_SCALAR_I64), RP_I8);
    assert_int_equal(result_of(RP_I16, RP_F16, -1), RP_F16);
    assert_int_equal(result_of(RP_BF16, 0, RP_SCALAR_F64), RP_BF16);
    assert_int_equal(result_of(RP_BOOL, 0, RP_SCALAR_I64), RP_I64);
    assert_int_equal(result_of(RP_BOOL, 0, RP_SCALAR_BOOL), RP_BOOL);
    assert_int_equal(result_of(0, RP_F64, RP_SCALAR_F64), RP_F64);
    assert_int_equal(result_of(0, RP_I32, RP_SCALAR_F64), RP_F32);
    assert_int_equal(result_of(RP_BOOL, RP_U8, RP_SCALAR_F64), RP_F32);
    assert_int_equal(result_of(RP_BOOL, RP_F16, RP_SCALAR_F64), RP_F16);
    assert_int_equal(result_of(0, 0, RP_SCALAR_F64), RP_F32);
}

/* A double is exact for every f16 and bf16 value: the nearest is found by comparing neighbours. */
static void check_rounding(uint16_t (*to)(float), float (*from)(uint16_t), uint16_t infinity) {
    for (uint32_t h = 0; h < infinity; h++) {
        float value = from((uint16_t)h), next = from((uint16_t)(h + 1));
        assert_int_equal(to(value), h);
        assert_int_equal(to(-value), h | 0x8000);
        if (isinf(next)) continue;
        double middle = ((double)value + (double)next) / 2;
        float half = (float)middle; /* exact: one more bit than the format */
        assert_true((double)half == middle);
        assert_int_equal(to(half), h % 2 ? h + 1 : h);
        assert_int_equal(to(nextafterf(half, 0)), h);
        assert_int_equal(to(nextafterf(half, INFINITY)), h + 1);
    }
    assert_int_equal(to(INFINITY), infinity);
    assert_int_equal(to(-INFINITY), infinity | 0x8000);
    assert_true(isnan(from(to(NAN))));
    assert_true(isnan(from((uint16_t)(infinity + 1))));
    assert_int_equal(to(3.4e38f), to == rp__f32_to_f16 ? infinity : to(3.4e38f));
}

static void sixteen_bit_floats_round_to_even(void **state) {
    (void)state;
    check_rounding(rp__f32_to_f16, rp__f16_to_f32, 0x7c00);
    check_rounding(rp__f32_to_bf16, rp__bf16_to_f32, 0x7f80);
    assert_int_equal(rp__f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(rp__f32_to_f16(65520.0f), 0x7c00);
    assert_true(rp__f16_to_f32(0x3c00) == 1.0f && rp__f16_to_f32(0x0001) == 0x1p-24f &&
                rp__bf16_to_f32(0x3f80) == 1.0f);
}

static void scalars_convert(void **state) {
    (void)state;
    assert_true(rp__scalar_fits(rp_i64(-255), RP_U8) && !rp__scalar_fits(rp_i64(256), RP_U8));
    assert_true(!rp__scalar_fits(rp_f64(-1), RP_U8) && rp__scalar_fits(rp_f64(255), RP_U8));
    assert_true(rp__scalar_fits(rp_i64(-128), RP_I8) && !rp__scalar_fits(rp_i64(-129), RP_I8));
    assert_true(rp__scalar_fits(rp_f64(127), RP_I8) && !rp__scalar_fits(rp_f64(127.5), RP_I8));
    assert_true(rp__scalar_fits(rp_i64(32767), RP_I16) && !rp__scalar_fits(rp_f64(-32769), RP_I16));
    assert_true(rp__scalar_fits(rp_f64(0x1.fep127), RP_BF16) && !rp__scalar_fits(rp_f64(0x1p128), RP_BF16));
    assert_true(rp__scalar_fits(rp_f64(65504), RP_F16) && !rp__scalar_fits(rp_f64(1e5), RP_F16));
    assert_true(rp__scalar_fits(rp_f64(INFINITY), RP_F16) && rp__scalar_fits(rp_f64(NAN), RP_F32));
    assert_true(!rp__scalar_fits(rp_f64(NAN), RP_I64) && !rp__scalar_fits(rp_f64(1e300), RP_F32));
    assert_true(!rp__scalar_fits(rp_i64(INT64_C(1) << 31), RP_I32) && rp__scalar_fits(rp_f64(-2147483648.0), RP_I32));
    assert_true(!rp__scalar_fits(rp_f64(0x1p63), RP_I64) && rp__scalar_fits(rp_i64(300), RP_BOOL));
    assert_int_equal(rp__scalar_i64(rp_f64(NAN)), 0);
    assert_int_equal(rp__scalar_i64(rp_f64(1e30)), INT64_MAX);
    assert_int_equal(rp__scalar_i64(rp_f64(-1e30)), INT64_MIN);
    assert_int_equal(rp__scalar_i64(rp_f64(-2.9)), -2);
    for (int d = 1; d < RP__DTYPE_COUNT; d++) {
        uint64_t word = 0;
        rp__scalar_store(rp_i64(3), (rp_dtype)d, &word);
        rp_scalar back = rp__scalar_load((rp_dtype)d, &word);
        assert_int_equal(rp__scalar_i64(back), d == RP_BOOL ? 1 : 3);
        assert_int_equal(back.kind, rp__dtype_is_float((rp_dtype)d) ? RP_SCALAR_F64
                                    : d == RP_BOOL                  ? RP_SCALAR_BOOL
                                                                    : RP_SCALAR_I64);
    }
    uint8_t u8;
    rp__scalar_store(rp_i64(-1), RP_U8, &u8);
    assert_int_equal(u8, 255);
    int8_t i8;
    rp__scalar_store(rp_i64(200), RP_I8, &i8);
    assert_int_equal(i8, -56);
    int16_t i16;
    rp__scalar_store(rp_f64(-40000.9), RP_I16, &i16);
    assert_int_equal(i16, 25536);
    int32_t i32;
    rp__scalar_store(rp_f64(1e12), RP_I32, &i32);
    assert_int_equal(i32, INT32_MAX);
    float f32;
    rp__scalar_store(rp_i64((INT64_C(1) << 54) + (INT64_C(1) << 30) + 1), RP_F32,
                     &f32); /* double rounding would give 2^54 */
    assert_true(f32 == 0x1p54f + 0x1p31f);
}

static void shapes_follow_torch(void **state) {
    (void)state;
    rp_dim a[] = {4, 1, 3}, b[] = {5, 1}, out[RP_MAX_DIMS];
    size_t n;
    char text[RP__SHAPE_TEXT];
    assert_int_equal(rp__broadcast(a, 3, b, 2, out, &n), RP_OK);
    assert_string_equal(rp__shape_text(out, n, text), "(4, 5, 3)");
    rp_dim c[] = {0}, d[] = {1};
    assert_int_equal(rp__broadcast(c, 1, d, 1, out, &n), RP_OK);
    assert_int_equal(out[0], 0);
    rp_dim e[] = {2, 3}, f[] = {2};
    assert_int_equal(rp__broadcast(e, 2, f, 1, out, &n), RP_ERROR_SHAPE);
    assert_non_null(
        strstr(rp_error_message(),
               "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 1"));
    rp_error_take();
    size_t k;
    assert_int_equal(rp__wrap_dim(-1, 3, &k), RP_OK);
    assert_int_equal(k, 2);
    assert_int_equal(rp__wrap_dim(-1, 0, &k), RP_OK);
    assert_int_equal(rp__wrap_dim(3, 3, &k), RP_ERROR_INDEX);
    assert_string_equal(rp_error_message(), "Dimension out of range (expected to be in range of [-3, 2], but got 3)");
    rp_error_take();
    rp_dim huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, hollow[] = {INT64_C(1) << 40, 0, INT64_C(1) << 40};
    assert_int_equal(rp__numel(hollow, 3), 0);
    assert_false(rp_failed());
    rp__numel(huge, 2);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    rp__contiguous_strides(a, 3, out);
    assert_true(out[0] == 3 && out[1] == 3 && out[2] == 1);
    assert_int_equal(rp__dim_apply(RP__DIM_FLOORDIV, -7, 2), -4);
    assert_int_equal(rp__dim_apply(RP__DIM_MOD, -7, 2), 1);
    rp__dim_apply(RP__DIM_MOD, 1, 0);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
    rp__dim_apply(RP__DIM_ADD, INT64_MAX, 1);
    assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
}

static void hashes_are_xxh3(void **state) {
    (void)state;
    char text[33];
    rp__hash_text(rp__hash_bytes("", 0, rp__hash_none()), text);
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f"); /* XXH3-128 of nothing, seed 0 */
    rp__hash a = rp__hash_bytes("reprise", 7, rp__hash_none()), b = rp__hash_bytes("reprise", 7, a);
    assert_false(rp__hash_equal(a, b));
    assert_false(rp__hash_equal(b, rp__hash_bytes("reprise", 7, (rp__hash){a.lo, 0})));
}

static void maps_agree_with_a_model(void **state) {
    (void)state;
    enum { KEYS = 300, STEPS = 20000 };
    uintptr_t model[KEYS] = {0};
    rp__map m = {0};
    uint64_t random = 1;
    size_t count = 0;
    for (int step = 0; step < STEPS; step++) {
        random = rp__hash_mix(random, 7);
        size_t k = random % KEYS;
        rp__hash key = {k % 17, k}; /* many equal low words */
        if (random >> 32 & 1) {
            count += !model[k];
            model[k] = (uintptr_t)(random >> 40) + 1;
            assert_true(rp__map_put(&m, key, (void *)model[k]));
        } else {
            assert_ptr_equal(rp__map_remove(&m, key), (void *)model[k]);
            count -= model[k] != 0;
            model[k] = 0;
        }
        assert_int_equal(m.count, count);
        if (step % 1000 == 0) {
            for (size_t i = 0; i < KEYS; i++)
                assert_ptr_equal(rp__map_get(&m, (rp__hash){i % 17, i}), (void *)model[i]);
        }
    }
    size_t iterator = 0, seen = 0;
    rp__hash key;
    void *value;
    while (rp__map_next(&m, &iterator, &key, &value)) {
        assert_ptr_equal(value, (void *)model[key.hi]);
        seen++;
    }
    assert_int_equal(seen, count);
    rp__map_free(&m);
    rp__alloc_fail_at(1);
    assert_false(rp__map_put(&m, key, value));
    assert_int_equal(m.count, 0);
}

static void texts_and_arenas(void **state) {
    (void)state;
    uint64_t live = rp__alloc_live();
    rp__text t = {0};
    rp__text_add(&t, "%d-%s", 12, "ab");
    for (int i = 0; i < 100; i++) rp__text_puts(&t, "0123456789");
    rp__text_add(&t, "%0500d", 7); /* longer than the small buffer */
    assert_int_equal(t.length, 5 + 1000 + 500);
    assert_int_equal(strlen(t.data), t.length);
    rp__text_free(&t);
    rp__alloc_fail_at(1);
    rp__text_puts(&t, "x");
    assert_true(t.failed);
    rp__text_puts(&t, "y");
    assert_null(t.data);
    rp__arena a = {0};
    int *numbers = RP__NEW(&a, int, 10);
    assert_int_equal((uintptr_t)numbers % 16, 0);
    for (int i = 0; i < 10; i++) assert_int_equal(numbers[i], 0);
    char *big = rp__arena_alloc(&a, 100000);
    memset(big, 1, 100000);
    assert_string_equal(rp__arena_strdup(&a, "word"), "word");
    assert_null(RP__NEW(&a, double, SIZE_MAX / 4));
    rp__alloc_fail_at(1);
    assert_null(rp__arena_alloc(&a, 1 << 20));
    rp__arena_free(&a);
    assert_int_equal(rp__alloc_live(), live);
}

/* ---- the pool */

typedef struct count_ctx {
    _Atomic unsigned char *seen;
    int64_t n, grain;
    atomic_int bad, nested;
} count_ctx;

static void nested_body(void *ctx, int64_t begin, int64_t end) {
    count_ctx *c = ctx;
    atomic_fetch_add(&c->nested, (int)(end - begin));
}

static void count_body(void *ctx, int64_t begin, int64_t end) {
    count_ctx *c = ctx;
    if (begin % c->grain != 0 || (end % c->grain != 0 && end != c->n)) atomic_fetch_add(&c->bad, 1);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&c->seen[i], 1);
    rp__parallel(10, 1, nested_body, c);
}

static void parallel_covers_everything_once(void **state) {
    (void)state;
    enum { N = 10007 };
    static _Atomic unsigned char seen[N];
    int before = rp_num_threads();
    const int refused[] = {0, -1, 257, 100000, INT_MAX};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(rp_set_num_threads(refused[i]), RP_ERROR_INVALID_ARGUMENT);
        assert_non_null(strstr(rp_error_message(), "set_num_threads"));
        rp_error_take();
        assert_int_equal(rp_num_threads(), before);
    }
    assert_int_equal(rp_set_num_threads(256), RP_OK);
    assert_int_equal(rp_num_threads(), 256);
    for (int threads = 1; threads <= 5; threads += 2) {
        rp_set_num_threads(threads);
        assert_int_equal(rp_num_threads(), threads);
        for (int64_t grain = 1; grain < 20000; grain *= 3) {
            for (int i = 0; i < N; i++) atomic_store(&seen[i], 0);
            count_ctx c = {.seen = seen, .n = N, .grain = grain};
            assert_int_equal(rp__parallel(N, grain, count_body, &c), RP_OK);
            for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&seen[i]), 1);
            assert_int_equal(c.bad, 0);
            assert_int_equal(c.nested % 10, 0);
        }
    }
    rp_set_num_threads(before);
    assert_int_equal(rp__parallel(0, 1, count_body, NULL), RP_OK);
}

static void failing_body(void *ctx, int64_t begin, int64_t end) {
    (void)ctx;
    for (int64_t i = begin; i < end; i++) {
        if (i == 77) rp__fail(RP_ERROR_INDEX, "item %d", (int)i);
    }
}

static void errors_of_workers_reach_the_caller(void **state) {
    (void)state;
    int before = rp_num_threads();
    rp_set_num_threads(4);
    for (int round = 0; round < 50; round++) {
        rp__site_frame outer = rp__site_push("here.c:1", "walk");
        assert_int_equal(rp__parallel(200, 1, failing_body, NULL), RP_ERROR_INDEX);
        rp__site_pop(outer);
        assert_string_equal(rp_error_message(), "walk: item 77 at here.c:1");
        assert_int_equal(rp_error_take(), RP_ERROR_INDEX);
        rp__fail(RP_ERROR_IO, "older");
        assert_int_equal(rp__parallel(200, 1, failing_body, NULL) == RP_OK, 0);
        assert_string_equal(rp_error_message(), "older");
        rp_error_take();
        assert_int_equal(rp__parallel(70, 1, failing_body, NULL), RP_OK);
    }
    rp_set_num_threads(before);
}

#if defined(__SANITIZE_THREAD__)
#define RP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RP_TSAN 1
#endif
#endif

static void the_pool_survives_fork(void **state) {
    (void)state;
#ifdef RP_TSAN
    skip(); /* its runtime ends a child that starts threads */
#endif
    static _Atomic unsigned char seen[1000];
    int before = rp_num_threads();
    rp_set_num_threads(3);
    count_ctx c = {.seen = seen, .n = 1000, .grain = 1};
    rp__parallel(1000, 1, count_body, &c);
    pid_t child = fork();
    if (child == 0) {
        rp__parallel(1000, 1, count_body, &c);
        int bad = 0;
        for (int i = 0; i < 1000; i++) bad += atomic_load(&seen[i]) != 2;
        _exit(bad != 0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    rp_set_num_threads(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_keep_the_first),
        cmocka_unit_test(error_context_belongs_to_the_first),
        cmocka_unit_test(error_text_is_cut_to_its_buffer),
        cmocka_unit_test(error_texts_need_no_memory),
        cmocka_unit_test(error_states_are_saved),
        cmocka_unit_test(allocations_fail_on_demand),
        cmocka_unit_test(promotion_is_torchs),
        cmocka_unit_test(rows_of_dtypes),
        cmocka_unit_test(result_type_weighs_operands),
        cmocka_unit_test(sixteen_bit_floats_round_to_even),
        cmocka_unit_test(scalars_convert),
        cmocka_unit_test(shapes_follow_torch),
        cmocka_unit_test(hashes_are_xxh3),
        cmocka_unit_test(maps_agree_with_a_model),
        cmocka_unit_test(texts_and_arenas),
        cmocka_unit_test(parallel_covers_everything_once),
        cmocka_unit_test(errors_of_workers_reach_the_caller),
        cmocka_unit_test(the_pool_survives_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
