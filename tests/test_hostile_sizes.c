/* ctest: timeout=240 cost=10 */
/* Hostile attributes: every op of the table with the tensors of its first sample (tests/samples) and, one after the other and mixed, attributes that no program
   should pass: extremes of 64 bits, words that could be taken for symbols, NaN, lists of any length. Eager, traced and compiled
   calls agree on what is refused and on what is computed; nothing crashes, hangs, leaks or allocates absurdly. Then sizes that
   overflow only in the end, by repeated expand and cat. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "samples/samples.h"

enum { MAX_INTS = SAMPLE_INTS, MAX_ATTRS = SAMPLE_ATTRS, N = 4 };

/* ---- bad values. A size that is neither small nor beyond what any machine maps is a program's right, and not in the list. */

static const int64_t words[] = {INT64_MIN,
                                INT64_MIN + 1,
                                INT64_MIN + 2,
                                INT64_MIN + 7,
                                -(INT64_C(1) << 62) - 1,
                                -(INT64_C(1) << 62),
                                -(INT64_C(1) << 61),
                                -17,
                                -3,
                                -2,
                                -1,
                                0,
                                1,
                                2,
                                3,
                                4,
                                17,
                                33,
                                INT64_C(1) << 48,
                                INT64_C(1) << 53,
                                INT64_C(1) << 60,
                                INT64_C(1) << 61,
                                (INT64_C(1) << 62) - 1,
                                INT64_C(1) << 62,
                                INT64_MAX - 1,
                                INT64_MAX};
static const double floats[] = {0.0 / 0.0, 1.0 / 0.0, -1.0 / 0.0, -1,     -0.0,   0,    0.5,
                                1,         1.5,       1e300,      -1e300, 1e-320, 1e40, 9.3e18};
enum { N_WORDS = sizeof words / sizeof *words, N_FLOATS = sizeof floats / sizeof *floats };

static uint64_t seed;
static uint32_t draw(uint32_t n) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % n;
}

/* How many ways there are to spoil one attribute. */
static unsigned ways(const rp_attr *a) {
    switch (a->kind) {
    case RP_ATTR_INT: return N_WORDS;
    case RP_ATTR_FLOAT: return N_FLOATS;
    case RP_ATTR_BOOL: return 2;
    case RP_ATTR_SCALAR: return N_WORDS + N_FLOATS + 3;
    case RP_ATTR_DTYPE: return 12;
    case RP_ATTR_INTS: return (unsigned)(a->n * N_WORDS + 10);
    default: return 1;
    }
}

static void spoil(rp_attr *a, int64_t *ints, unsigned way) {
    switch (a->kind) {
    case RP_ATTR_INT: a->v.i = words[way]; break;
    case RP_ATTR_FLOAT: a->v.f = floats[way]; break;
    case RP_ATTR_BOOL: a->v.b = way != 0; break;
    case RP_ATTR_DTYPE: a->v.dtype = way < 10 ? (rp_dtype)way : way == 10 ? (rp_dtype)-1 : (rp_dtype)77; break;
    case RP_ATTR_SCALAR:
        if (way < N_WORDS)
            a->v.scalar = rp_i64(words[way]);
        else if (way < N_WORDS + N_FLOATS)
            a->v.scalar = rp_f64(floats[way - N_WORDS]);
        else if (way < N_WORDS + N_FLOATS + 2)
            a->v.scalar = rp_bool(way % 2 == 0);
        else
            a->v.scalar = (rp_scalar){.kind = (rp_scalar_kind)9};
        break;
    case RP_ATTR_INTS: {
        unsigned single = (unsigned)a->n * N_WORDS;
        if (way < single) {
            ints[way / N_WORDS] = words[way % N_WORDS];
            break;
        }
        static const size_t lengths[10] = {0, 1, 2, 3, 4, 5, 16, 17, 33, 40};
        size_t from = a->n;
        a->n = lengths[way - single];
        a->v.ints = ints; /* None had no entries */
        for (size_t i = from; i < a->n; i++) ints[i] = from && i < 8 ? ints[i % from] : 1;
        break;
    }
    default: break;
    }
}

/* ---- the three forms of a call */

typedef struct job {
    const sample *sample; /* whose tensors are good */
    const rp__op *op;
    rp_dtype dtype;
    rp_attr attrs[MAX_ATTRS];
    size_t n_attrs, n_out;
    rp_status status;
} job;

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    job *j = ctx;
    rp_tensor *results[RP__MAX_OUTS] = {NULL}, *args[SAMPLE_IN] = {NULL};
    for (size_t k = 0; k < n_in; k++)
        if (j->sample->place[k] >= 0) args[j->sample->place[k]] = in[k];
    j->status =
        rp_op_call(j->op->name, args, (size_t)j->sample->n_args, j->attrs, j->n_attrs, results, j->op->schema.n_outs);
    for (size_t k = 0; k < n_out; k++) out[k] = results[k];
}

static size_t describe(const job *j, char *text, size_t room) {
    size_t used = (size_t)snprintf(text, room, "%s(", j->op->name);
    for (size_t k = 0; k < j->n_attrs && used < room - 64; k++) {
        const rp_attr *a = &j->attrs[k];
        if (a->kind == RP_ATTR_INT) used += (size_t)snprintf(text + used, room - used, "%lld ", (long long)a->v.i);
        if (a->kind == RP_ATTR_FLOAT) used += (size_t)snprintf(text + used, room - used, "%g ", a->v.f);
        if (a->kind == RP_ATTR_BOOL) used += (size_t)snprintf(text + used, room - used, "%d ", a->v.b);
        if (a->kind == RP_ATTR_DTYPE) used += (size_t)snprintf(text + used, room - used, "dtype %d ", (int)a->v.dtype);
        if (a->kind == RP_ATTR_SCALAR)
            used += (size_t)snprintf(text + used, room - used, "scalar %d:%lld ", (int)a->v.scalar.kind,
                                     (long long)a->v.scalar.v.i);
        if (a->kind == RP_ATTR_INTS) {
            used += (size_t)snprintf(text + used, room - used, "[%zu:", a->n);
            for (size_t i = 0; i < a->n && i < 6; i++)
                used += (size_t)snprintf(text + used, room - used, " %lld", (long long)a->v.ints[i]);
            used += (size_t)snprintf(text + used, room - used, "] ");
        }
    }
    return used;
}

static char last[1024];

static void check_message(const job *j, const char *form) {
    const char *m = rp_error_message();
    bool expanded = strcmp(form, "compiled") == 0 && j->op->lowering == RP__COMPOSITE; /* known by what it became */
    if ((expanded || strstr(m, j->op->name)) && strstr(m, "test_hostile_sizes.c:")) return;
    (void)describe(j, last, sizeof last);
    fail_msg("%s %s: the message does not name op and line: '%s'", form, last, m);
}

static bool small(const rp_tensor *t) { return rp_numel(t) >= 0 && rp_numel(t) <= 100000; }

/* Which of two NaNs an operation gives is nobody's promise: all become one. */
static void one_nan(char *data, size_t bytes, rp_dtype d) {
    static const struct {
        rp_dtype of;
        uint64_t infinity;
    } types[] = {{RP_F16, 0x7c00}, {RP_BF16, 0x7f80}, {RP_F32, 0x7f800000}, {RP_F64, 0x7ff0000000000000}};
    const size_t size = rp_dtype_size(d);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        for (size_t at = 0; types[k].of == d && at < bytes; at += size) {
            uint64_t x = 0;
            memcpy(&x, data + at, size);
            if ((x & ~(UINT64_C(1) << (8 * size - 1))) > types[k].infinity) memset(data + at, 0x7f, size);
        }
    }
}

static void same(const job *j, const char *form, rp_tensor *a, rp_tensor *b) {
    static char x[1 << 20], y[1 << 20];
    bool equal = rp_ndim(a) == rp_ndim(b) && rp_dtype_of(a) == rp_dtype_of(b) && rp_numel(a) == rp_numel(b);
    for (int d = 0; equal && d < (int)rp_ndim(a); d++) equal = rp_size(a, d) == rp_size(b, d);
    bool values = !strstr(j->op->name, "empty"); /* memory as it was found */
    if (equal && values && small(a)) {
        size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
        assert_int_equal(rp_to_host(a, x, bytes), RP_OK);
        assert_int_equal(rp_to_host(b, y, bytes), RP_OK);
        one_nan(x, bytes, rp_dtype_of(a));
        one_nan(y, bytes, rp_dtype_of(b));
        equal = memcmp(x, y, bytes) == 0;
    }
    if (!equal) {
        (void)describe(j, last, sizeof last);
        fail_msg("%s %s: another result than eager", form, last);
    }
}

static void reseed(void) { assert_int_equal(rp_manual_seed(7), RP_OK); }

static void compare(job *j, bool compile) {
    rp_tensor *in[SAMPLE_IN + 1], *out[RP__MAX_OUTS], *again[RP__MAX_OUTS], *had = NULL;
    (void)describe(j, last, sizeof last);
    rp_scope scope = rp_scope_begin();
    size_t n_in = (size_t)j->sample->n_in, n_out = j->op->schema.n_outs;
    sample_make(j->sample, j->dtype, N, 0, in);
    bool writes = j->op->flags & RP_OP_INPLACE;
    rp_fn fn = {body, j, 0, "hostile"};
    reseed();
    body(j, in, n_in, out, n_out);
    const rp_status eager = j->status;
    if (eager != RP_OK)
        check_message(j, "eager");
    else if (rp_failed())
        fail_msg("eager %s: RP_OK and '%s'", last, rp_error_message());
    rp_error_take();
    (void)rp_synchronize(rp_cpu());
    rp_error_take();
    if (writes) had = in[0];
    /* traced */
    rp_tensor *fresh[SAMPLE_IN + 1];
    sample_make(j->sample, j->dtype, N, 0, fresh);
    rp_ir *ir = rp_trace(fn, fresh, n_in, n_out);
    /* a trace allocates nothing */
    const bool reads = (j->op->flags & RP_OP_SYNC ||
                        j->op->lowering == RP__COMPOSITE) && /* a norm of singular values is, others are not */
                       j->status == RP_ERROR_GRAPH_BREAK;    /* values, which a trace has not */
    const bool later =
        j->op->flags & RP__OP_LAUNCHED && j->status == RP_OK; /* what is wrong with values is found in a launch */
    if (!reads && !later && (j->status == RP_OK) != (eager == RP_OK || eager == RP_ERROR_OUT_OF_MEMORY))
        fail_msg("traced %s: %s, eager %s ('%s')", last, rp_status_name(j->status), rp_status_name(eager),
                 rp_error_message());
    if (j->status != RP_OK) check_message(j, "traced");
    rp_error_take();
    rp_ir_release(ir);
    if (compile) {
        rp_compiled *f = rp_compile(fn, NULL);
        for (int round = 0; round < 2; round++) {
            sample_make(j->sample, j->dtype, N, 0, fresh);
            reseed();
            rp_status status = rp_call(f, fresh, n_in, again, n_out);
            if (later && status == RP_OK) status = rp_synchronize(rp_cpu());
            if ((status == RP_OK) != (eager == RP_OK))
                fail_msg("compiled %s, call %d: %s '%s', eager %s", last, round, rp_status_name(status),
                         rp_error_message(), rp_status_name(eager));
            if (status != RP_OK) check_message(j, "compiled");
            rp_error_take();
            (void)rp_synchronize(rp_cpu());
            rp_error_take();
            if (eager != RP_OK) break;
            for (size_t k = 0; k < n_out; k++) same(j, "compiled", out[k], again[k]);
            if (had) same(j, "compiled", had, fresh[0]);
        }
        rp_compiled_release(f);
    }
    rp_scope_end(scope, NULL, 0);
}

static bool takes(job *j) {
    rp_tensor *in[SAMPLE_IN + 1], *out[RP__MAX_OUTS];
    rp_scope scope = rp_scope_begin();
    sample_make(j->sample, j->dtype, N, 0, in);
    body(j, in, (size_t)j->sample->n_in, out, j->op->schema.n_outs);
    (void)rp_error_take();
    (void)rp_scope_end(scope, NULL, 0);
    return j->status == RP_OK;
}

static uint64_t live(uint64_t *peak) {
    rp_memory_stats s = {.struct_size = sizeof s};
    assert_int_equal(rp_memory_stats_get(rp_cpu(), &s), RP_OK);
    *peak = s.reserved_peak;
    return s.live_tensors;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void every_attribute(void **state) {
    (void)state;
    uint64_t peak, before;
    reseed();
    assert_int_equal(rp_memory_stats_reset_peak(rp_cpu()), RP_OK);
    before = live(&peak);
    const char *only = getenv("HOSTILE_OP");
    for (size_t t = 0; t < sample_count(); t++) {
        const sample *g = sample_at(t);
        const char *name = g->op->name;
        if (g->number || !g->op->schema.n_attrs || (only && strcmp(only, name))) continue;
        static const rp_dtype types[] = {RP_F32, RP_I64, RP_F16, RP_U8};
        int64_t ints[MAX_ATTRS][MAX_INTS];
        job j = {.sample = g, .op = g->op, .dtype = types[t % 4]};
        double start = seconds();
        j.n_attrs = sample_attrs(g, N, j.attrs, ints);
        if (!takes(&j)) j.dtype = RP_F32;
        compare(&j, true);
        if (j.status != RP_OK) fail_msg("%s: the good call fails", name);
        for (size_t k = 0; k < j.n_attrs; k++) {
            unsigned n = ways(&j.attrs[k]);
            for (unsigned way = 0; way < n; way++) {
                (void)sample_attrs(g, N, j.attrs, ints);
                spoil(&j.attrs[k], ints[k], way);
                compare(&j, way % 3 == 0);
            }
        }
        for (unsigned round = 0; round < 60; round++) {
            seed = (uint64_t)t * 1000 + round;
            (void)sample_attrs(g, N, j.attrs, ints);
            for (size_t k = 0; k < j.n_attrs; k++)
                if (draw(2)) spoil(&j.attrs[k], ints[k], draw(ways(&j.attrs[k])));
            compare(&j, round % 4 == 0);
        }
        double took = seconds() - start;
        if (took > 30) fail_msg("%s took %.0f s", name, took);
        if (getenv("HOSTILE_TIMES")) printf("%-20s %.2f s\n", name, took);
    }
    assert_int_equal(live(&peak), before);
    assert_true(peak < 64u << 20);
}

/* ---- sizes that overflow in the end */

#define refused(op, ...)                                                                                               \
    do {                                                                                                               \
        assert_false(rp_failed());                                                                                     \
        rp_tensor *refused_ = (op);                                                                                    \
        const char *const words_[] = {"test_hostile_sizes.c:", __VA_ARGS__};                                           \
        if (!rp_is_error(refused_)) fail_msg("line %d: %s is not refused", __LINE__, #op);                             \
        for (size_t w_ = 0; w_ < sizeof words_ / sizeof *words_; w_++)                                                 \
            if (!strstr(rp_error_message(), words_[w_]))                                                               \
                fail_msg("line %d: no '%s' in '%s'", __LINE__, words_[w_], rp_error_message());                        \
        rp_error_take();                                                                                               \
    } while (0)

static void sizes_overflow(void **state) {
    (void)state;
    const int64_t big = INT64_C(1) << 40, half = INT64_C(1) << 31, most = INT64_C(1) << 62;
    rp_scope scope = rp_scope_begin();
    rp_tensor *one = rp_full(RP_DIMS(1), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32)),
              *byte = rp_full(RP_DIMS(1), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_U8));
    rp_tensor *wide = rp_expand(one, RP_DIMS(big)); /* 4 TiB of one number */
    assert_int_equal(rp_numel(wide), big);
    /* repeated expand: elements, then bytes */
    refused(rp_expand(wide, RP_DIMS(big, big)), "expand", "(1099511627776, 1099511627776)");
    rp_tensor *square = rp_expand(rp_expand(byte, RP_DIMS(half)), RP_DIMS(half, half));
    assert_int_equal(rp_numel(square), most);
    refused(rp_expand(square, RP_DIMS(4, half, half)), "expand");
    refused(rp_to_dtype(square, RP_F32), "to_dtype", "uint8 (2147483648, 2147483648)");
    refused(rp_view(square, RP_DIMS(most, 2)), "view");
    /* joins and outer products */
    rp_tensor *most_bytes = rp_expand(byte, RP_DIMS(most));
    refused(rp_cat(RP_TENSORS(most_bytes, most_bytes), 0), "cat", "uint8 (4611686018427387904)");
    refused(rp_add(rp_unsqueeze(wide, 1), wide), "add", "float32");
    refused(rp_matmul(rp_unsqueeze(wide, 1), rp_unsqueeze(wide, 0)), "float32");
    refused(rp_embedding(rp_expand(one, RP_DIMS(1, big)),
                         rp_expand(rp_zeros(RP_DIMS(1), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)), RP_DIMS(big))),
            "embedding");
    refused(rp_sum(wide, RP_NO_DIMS, false, RP_OPTIONS(rp_sum_options, .dtype = (rp_dtype)77)), "sum");
    /* allocations that no machine has */
    refused(rp_rand(RP_DIMS(most), RP_OPTIONS(rp_rand_options, .dtype = RP_F64)), "rand");
    refused(rp_rand(RP_DIMS(INT64_C(1) << 50)), "rand");
    refused(rp_clone(rp_expand(one, RP_DIMS(INT64_C(1) << 50))), "clone");
    refused(rp_zeros(RP_DIMS(big, big, big), RP_OPTIONS(rp_zeros_options, .dtype = RP_U8)),
            "(1099511627776, 1099511627776, 1099511627776)");
    /* an empty tensor is empty whatever its other sizes are */
    assert_int_equal(rp_numel(rp_zeros(RP_DIMS(0, big, big))), 0);
    assert_int_equal(rp_numel(rp_expand(one, RP_DIMS(most, 0, most, 1))), 0);
    assert_false(rp_failed());
    /* windows of convolutions */
    rp_tensor *image = rp_expand(rp_full(RP_DIMS(1, 1, 1, 1), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32)),
                                 RP_DIMS(1, 1, big, 4));
    rp_tensor *kernel = rp_full(RP_DIMS(1, 1, 1, 1), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
    refused(rp_conv2d(image, rp_expand(kernel, RP_DIMS(1, 1, most / 4, 1)), NULL, RP_DIMS(1, 1), RP_DIMS(0, 0),
                      RP_DIMS(INT32_MAX, 1), 1),
            "conv2d", "float32 (1, 1, 1099511627776, 4)");
    refused(rp_conv2d(image, kernel, NULL, RP_DIMS(1, 1), RP_DIMS(INT32_MAX, INT32_MAX), RP_DIMS(1, 1), 1), "conv2d");
    rp_scope_end(scope, NULL, 0);
}

/* An index or a size below every size names itself, the op and the operands. */
static void words_below_all_sizes(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *m = rp_zeros(RP_DIMS(2, 3));
    static const int64_t low[] = {INT64_MIN, INT64_MIN + 1, INT64_MIN + 5, -(INT64_C(1) << 62) - 1};
    for (size_t i = 0; i < sizeof low / sizeof *low; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "%lld", (long long)low[i]);
        refused(rp_select(m, 0, low[i]), "select: ", "index", text, "(float32 (2, 3))");
        refused(rp_select(m, low[i], 0), "select: ", text);
        refused(rp_view(m, RP_DIMS(low[i], 3)), "view: ", text, "(float32 (2, 3))");
        refused(rp_expand(m, RP_DIMS(low[i], 2, 3)), "expand: ", text, "(float32 (2, 3))");
        refused(rp_softmax(m, low[i]), "softmax: ", text);
        refused(rp_zeros(RP_DIMS(low[i])), "zeros: ", text);
    }
    refused(rp_select(m, 0, -(INT64_C(1) << 62)), "index -4611686018427387904 out of range", "(2, 3)");
    rp_scope_end(scope, NULL, 0);
}

/* The same in a symbolic trace: words of the trace's own symbols are sizes, others are refused as in eager. */
static int64_t word;
static void uses_word(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(rp_select(in[0], 0, word), rp_view(in[0], RP_DIMS(-1)));
}
/* Without elements, sizes may be such that products of them are beyond 64 bits: ops give nothing, or say so. */
static void nothing_is_huge(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {{INT64_C(4160749568), 0, INT64_C(3856990464), 0},
                                       {INT64_C(1) << 40, INT64_C(1) << 40, INT64_C(1) << 40, 0},
                                       {0, INT64_C(3982855056), INT64_C(2374400256), INT64_C(4160749568)}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *t = rp_empty(sizes[k], 4), *results[] = {
                                                  rp_add(t, t),
                                                  rp_transpose(t, 0, 3),
                                                  rp_clone(rp_transpose(t, 1, 2)),
                                                  rp_slice(t, 0, 0, 1, 1),
                                                  rp_copy_(t, rp_ones(RP_DIMS(1))),
                                                  rp_cat(RP_TENSORS(t, t), 1),
                                                  rp_reshape(t, RP_DIMS(0)),
                                                  rp_flip(t, RP_DIMS(1)),
                                              };
        for (size_t i = 0; i < sizeof results / sizeof *results; i++)
            assert_true(rp_is_error(results[i]) || rp_numel(results[i]) == 0);
        const rp_status status = rp_error_take();
        assert_true(status == RP_OK || status == RP_ERROR_SHAPE || status == RP_ERROR_INVALID_ARGUMENT);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
}

static void symbolic_overflow_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_expand(in[0], RP_DIMS(rp_size(in[1], 0), rp_size(in[1], 0), rp_size(in[1], 0)));
    out[0] = rp_select(rp_select(rp_select(x, 0, 0), 0, 0), 0, 0);
}
static void words_in_symbolic_traces(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *out[1], *a = rp_zeros(RP_DIMS(4)), *b = rp_zeros(RP_DIMS(5));
    word = -(INT64_C(1) << 62) - 1;
    rp_compiled *f = rp_compile((rp_fn){uses_word, NULL, 0, "f"}, NULL);
    for (int round = 0; round < 4; round++) {
        rp_tensor *in = round % 2 ? a : b;
        assert_int_not_equal(rp_call(f, &in, 1, out, 1), RP_OK);
        assert_non_null(strstr(rp_error_message(), "-4611686018427387905"));
        rp_error_take();
    }
    word = -1;
    for (int round = 0; round < 4; round++) {
        rp_tensor *in = round % 2 ? a : b;
        assert_int_equal(rp_call(f, &in, 1, out, 1), RP_OK);
    }
    rp_compiled_release(f);
    /* a size that fits in the trace and overflows in a later call */
    f = rp_compile((rp_fn){symbolic_overflow_body, NULL, 0, "g"}, NULL);
    rp_tensor *one = rp_full(RP_DIMS(1, 1, 1), rp_i64(3), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
    for (int64_t n = 2; n < 6; n++) {
        rp_tensor *in[2] = {
            one, rp_expand(rp_full(RP_DIMS(1), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32)), RP_DIMS(n))};
        assert_int_equal(rp_call(f, in, 2, out, 1), RP_OK);
        assert_int_equal(rp_item_i64(out[0]), 3);
    }
    for (int round = 0; round < 3; round++) {
        rp_tensor *in[2] = {one, rp_expand(rp_full(RP_DIMS(1), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32)),
                                           RP_DIMS(INT64_C(1) << 22))};
        rp_status status = rp_call(f, in, 2, out, 1);
        if (status == RP_OK) fail_msg("a size of 2^66 elements was accepted in round %d", round);
        assert_true(rp_failed());
        rp_error_take();
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

static int clear(void **state) {
    (void)state;
    (void)rp_error_take();
    return 0;
}
#define CASE(name) cmocka_unit_test_setup(name, clear)

int main(void) {
    setenv("REPRISE_JIT", "0", 1);
    const struct CMUnitTest tests[] = {
        CASE(sizes_overflow),           CASE(nothing_is_huge), CASE(words_below_all_sizes),
        CASE(words_in_symbolic_traces), CASE(every_attribute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
