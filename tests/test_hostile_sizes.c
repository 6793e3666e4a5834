/* ctest: timeout=240 */
/* Hostile attributes: every op of the table with good tensors and, one after the other and mixed, attributes that no program
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

#include "ops/ops.h"

enum { MAX_IN = 6, MAX_INTS = 40, MAX_ATTRS = RP__MAX_PARAMS };

/* ---- good calls */

typedef struct good {
    const char *name;
    const char *in; /* "f23 i4": dtype letter and sizes, one digit a dim; '-' absent; 'q' before it: values 0, 1, ... */
    const char *attrs; /* of the schema, in its order: "[1,2] 3 0.5 none"; the rest are the defaults */
} good;

static const good table[] = {
    {"add", "f23 f3", "1"},
    {"sub", "i23 i3", "1"},
    {"add_scalar", "f23", "2"},
    {"mul_scalar", "i23", "2"},
    {"div_scalar", "f23", "2"},
    {"div_size", "f23", "2"},
    {"is_class", "i31", "4"},
    {"pow_scalar", "f23", "2"},
    {"sub_scalar", "i23", "2"},
    {"eq_scalar", "i23", "2"},
    {"ne_scalar", "h23", "2"},
    {"lt_scalar", "f23", "2"},
    {"le_scalar", "i23", "2"},
    {"gt_scalar", "u23", "2"},
    {"ge_scalar", "f23", "2"},
    {"gelu", "f23", ""},
    {"argmax", "f23", "1"},
    {"var", "f23", "[1]"},
    {"std", "f23", "[1]"},
    {"argmin", "f23", "1"},
    {"amin", "f234", "[1] 0"},
    {"logsumexp", "f234", "[1] 0"},
    {"nansum", "f234", "[1] 0 none"},
    {"nanmean", "f234", "[1] 0 none"},
    {"count_nonzero", "f23", "[1]"},
    {"linalg_vector_norm", "f23", "2 [1]"},
    {"any", "f23", "[1]"},
    {"all", "f23", "[1]"},
    {"prod", "f23", "1"},
    {"clamp", "f23", "1 2"},
    {"softplus", "f23", "1 20"},
    {"addcmul", "f23 f23 f23", "2"},
    {"addcdiv", "f23 f23 f23", "2"},
    {"masked_fill_scalar", "f23 b23", "2"},
    {"glu", "f24", "1"},
    {"polygamma", "f23", "1"},
    {"embedding", "f32 qi3", ""},
    {"clone", "f23", ""},
    {"copy", "f23 f3", ""},
    {"zeros_like", "f23", ""},
    {"ones_like", "i23", ""},
    {"to_dtype", "f23", "f64"},
    {"add_", "f23 f3", "1"},
    {"sub_", "f23 f3", "1"},
    {"add_scalar_", "f23", "1"},
    {"mul_scalar_", "i23", "1"},
    {"fill_", "i23", "1"},
    {"fill", "h23", "1"},
    {"empty", "", "[2,3] f32"},
    {"full", "", "[2,3] 1 f32"},
    {"zeros", "", "[2,3] f32"},
    {"ones", "", "[2,3] f32"},
    {"arange", "", "0 5 1 i64"},
    {"sum", "f234", "[1] 0 none"},
    {"mean", "f234", "[1] 0 none"},
    {"amax", "f234", "[1] 0"},
    {"softmax", "f234", "1"},
    {"log_softmax", "f234", "1"},
    {"cumsum", "f234", "1 none"},
    {"cumsum_reversed", "f234", "1"},
    {"max_pool2d", "f1244", "[2,2] [2,2] [0,0] [1,1] 0"},
    {"max_pool2d_with_indices", "f1244", "[2,2] [2,2] [0,0] [1,1] 0"},
    {"max_pool2d_input", "f1222 i1222", "[1,2,4,4] [2,2] [2,2] [0,0] [1,1] 0"},
    {"avg_pool2d", "f1244", "[2,2] [2,2] [0,0] 0 1 4"},
    {"avg_pool2d_input", "f1222", "[1,2,4,4] [2,2] [2,2] [0,0] 0 1 4"},
    {"constant_pad_nd", "f23", "[1,2] 1"},
    {"batch_norm", "f23 f3 f3 f3 f3", "0 0.1 1e-5"},
    {"batch_norm_train", "f234 f31 f31", "1e-5"},
    {"layer_norm", "f23 f3 f3", "[3] 1e-5"},
    {"native_layer_norm", "f23 f3 f3", "[3] 1e-5"},
    {"cross_entropy", "f34 qi3", "1 -100"},
    {"cross_entropy_rows", "f34 qi3", "-100"},
    {"view", "f23", "[3,2]"},
    {"reshape", "f23", "[3,2]"},
    {"flatten", "f23", "0 1"},
    {"unflatten", "f23", "1 [3,1]"},
    {"permute", "f23", "[1,0]"},
    {"transpose", "f23", "0 1"},
    {"swapaxes", "f23", "0 1"},
    {"expand", "f13", "[4,3]"},
    {"slice", "f63", "0 1 5 2"},
    {"select", "f23", "0 1"},
    {"unsqueeze", "f23", "0"},
    {"squeeze", "f13", "0"},
    {"slice_scatter", "f63 f23", "0 1 5 2"},
    {"select_scatter", "f23 f3", "0 1"},
    {"narrow", "f63", "0 1 3"},
    {"squeeze_dims", "f131", "[0,1]"},
    {"movedim", "f234", "[0] [2]"},
    {"diagonal", "f34", "1 0 1"},
    {"diagonal_scatter", "f34 f3", "1 0 1"},
    {"unfold", "f26", "1 3 2"},
    {"unfold_scatter", "f26 f232", "1 2 2"},
    {"unfold_backward", "f223", "[2,6] 1 3 2"},
    {"cat", "f23 f23", "0"},
    {"gather", "f3 qi3", "0"},
    {"embedding_backward", "f32 qi3", "3"},
    {"scatter_add", "f3 qi3 f3", "0"},
    {"topk", "f23", "2 -1 1 1"},
    {"conv2d", "f1244 f2222 f2", "[1,1] [0,0] [1,1] 1"},
    {"conv2d_input", "f1233 f2222", "[1,2,4,4] [1,1] [0,0] [1,1] 1"},
    {"conv2d_weight", "f1233 f1244", "[2,2,2,2] [1,1] [0,0] [1,1] 1"},
    {"rand", "", "[2,3] none f32"},
    {"randn", "", "[2,3] none f32"},
    {"randint", "", "0 9 [2,3] none i64"},
    {"dropout", "f23", "0.5 1 none"},
    {"native_dropout", "f23", "0.5 none none"},
    {"multinomial", "f23", "2 0 none"},
    {"adam_step_", "f3 f3 f3 f3 s s", "0.9 0.99 1e-8 0 0 0"},
    {"sgd_step_", "f3 f3 f3 s s", "0.9 0.5 0 0 0"},
};

/* Pointwise ops that have no row above, and what is made of them: tensors of one size, of integers where floats are refused; 2 for
   a number that has no default. */
static good all[512];
static size_t n_all;

static const good *row_of(const char *name) {
    for (size_t t = 0; t < n_all; t++)
        if (strcmp(all[t].name, name) == 0) return &all[t];
    return NULL;
}

static void collect(void) {
    for (; n_all < sizeof table / sizeof *table; n_all++) all[n_all] = table[n_all];
    for (size_t i = 0; i < rp__op_table_count(); i++) {
        const rp__op *op = rp__op_table_at(i);
        if (op->schema.n_attrs == 0 || op->functional_op || row_of(op->name)) continue;
        if (op->lowering != RP__POINTWISE && op->lowering != RP__COMPOSITE) continue;
        const bool two = op->schema.n_tensor_params > 1,
                   one_number = !op->schema.params[op->schema.n_params - 1].has_default;
        const bool ints = strncmp(op->name, "bitwise_", 8) == 0;
        assert_true(n_all < sizeof all / sizeof *all);
        all[n_all++] = (good){op->name, ints ? "i23" : two ? "f23 f23" : "f23", one_number ? "2 2" : ""};
    }
}

static rp_dtype dtype_of(const char *text) {
    static const struct {
        const char *name;
        rp_dtype dtype;
    } names[] = {{"f32", RP_F32}, {"f64", RP_F64}, {"i64", RP_I64}, {"none", RP_DTYPE_NONE}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, text) == 0) return names[i].dtype;
    fail_msg("no dtype %s", text);
    return RP_DTYPE_NONE;
}

static size_t make_inputs(const good *g, rp_tensor **in) {
    size_t n = 0;
    for (const char *p = g->in; *p;) {
        bool counted = *p == 'q';
        p += counted;
        char kind = *p++;
        int64_t size[RP_MAX_DIMS], total = 1;
        size_t ndim = 0;
        for (; *p && *p != ' '; p++) total *= size[ndim++] = *p - '0';
        rp_dtype dtype = kind == 'i'   ? RP_I64
                         : kind == 'u' ? RP_U8
                         : kind == 'h' ? RP_F16
                         : kind == 'b' ? RP_BOOL
                                       : RP_F32;
        if (kind == '-')
            in[n++] = NULL;
        else if (counted)
            in[n++] =
                rp_view(rp_arange(rp_i64(0), rp_i64(total), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = dtype)),
                        size, ndim);
        else
            in[n++] = rp_full(size, ndim, rp_i64(kind == 's' ? 1 : 2), RP_OPTIONS(rp_full_options, .dtype = dtype));
        while (*p == ' ') p++;
    }
    assert_false(rp_failed());
    return n;
}

/* ints: room for the lists. */
static size_t make_attrs(const good *g, const rp__op *op, rp_attr *attrs, int64_t (*ints)[MAX_INTS]) {
    size_t n = 0;
    const char *p = g->attrs;
    for (unsigned i = 0; i < op->schema.n_params; i++) {
        if (op->schema.params[i].kind != RP__PARAM_ATTR) continue;
        char word[32] = "";
        int used = 0;
        rp_attr *a = &attrs[n];
        if (sscanf(p, "%31s%n", word, &used) != 1 || strcmp(word, "none") == 0) {
            *a = *word && used ? rp__param_none(&op->schema.params[i]) : rp__param_default(&op->schema.params[i]);
            if (a->kind == RP_ATTR_INTS && a->v.ints) a->v.ints = memcpy(ints[n], a->v.ints, a->n * sizeof **ints);
            if (a->kind == RP_ATTR_INTS && !a->v.ints) a->v.ints = ints[n];
            p += used;
            n++;
            continue;
        }
        p += used;
        *a = (rp_attr){.kind = (rp_attr_kind)op->schema.params[i].attr_kind};
        switch (a->kind) {
        case RP_ATTR_INT: a->v.i = atoll(word); break;
        case RP_ATTR_FLOAT: a->v.f = atof(word); break;
        case RP_ATTR_BOOL: a->v.b = word[0] == '1'; break;
        case RP_ATTR_SCALAR: a->v.scalar = rp_i64(atoll(word)); break;
        case RP_ATTR_DTYPE: a->v.dtype = dtype_of(word); break;
        case RP_ATTR_INTS:
            a->v.ints = ints[n];
            for (char *at = word; *at == '[' || *at == ',';) ints[n][a->n++] = strtoll(at + 1, &at, 10);
            break;
        default: break;
        }
        n++;
    }
    return n;
}

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
        for (size_t i = from; i < a->n; i++) ints[i] = from ? ints[i % from] : 1;
        break;
    }
    default: break;
    }
}

/* ---- the three forms of a call */

typedef struct job {
    const rp__op *op;
    rp_attr attrs[MAX_ATTRS];
    size_t n_attrs, n_out;
    rp_status status;
} job;

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    job *j = ctx;
    rp_tensor *results[RP__MAX_OUTS] = {NULL};
    j->status = rp_op_call(j->op->name, in, n_in, j->attrs, j->n_attrs, results, j->op->schema.n_outs);
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

static void same(const job *j, const char *form, rp_tensor *a, rp_tensor *b) {
    static char x[1 << 20], y[1 << 20];
    bool equal = rp_ndim(a) == rp_ndim(b) && rp_dtype_of(a) == rp_dtype_of(b) && rp_numel(a) == rp_numel(b);
    for (int d = 0; equal && d < (int)rp_ndim(a); d++) equal = rp_size(a, d) == rp_size(b, d);
    bool values = strcmp(j->op->name, "empty") != 0;
    if (equal && values && small(a)) {
        size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
        assert_int_equal(rp_to_host(a, x, bytes), RP_OK);
        assert_int_equal(rp_to_host(b, y, bytes), RP_OK);
        equal = memcmp(x, y, bytes) == 0;
    }
    if (!equal) {
        (void)describe(j, last, sizeof last);
        fail_msg("%s %s: another result than eager", form, last);
    }
}

static void reseed(void) { assert_int_equal(rp_manual_seed(7), RP_OK); }

static void compare(job *j, const good *g, bool compile) {
    rp_tensor *in[MAX_IN], *out[RP__MAX_OUTS], *again[RP__MAX_OUTS], *had = NULL;
    (void)describe(j, last, sizeof last);
    rp_scope scope = rp_scope_begin();
    size_t n_in = make_inputs(g, in), n_out = j->op->schema.n_outs;
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
    rp_tensor *fresh[MAX_IN];
    (void)make_inputs(g, fresh);
    rp_ir *ir = rp_trace(fn, fresh, n_in, n_out);
    /* a trace allocates nothing */
    if ((j->status == RP_OK) != (eager == RP_OK || eager == RP_ERROR_OUT_OF_MEMORY))
        fail_msg("traced %s: %s, eager %s ('%s')", last, rp_status_name(j->status), rp_status_name(eager),
                 rp_error_message());
    if (j->status != RP_OK) check_message(j, "traced");
    rp_error_take();
    rp_ir_release(ir);
    if (compile) {
        rp_compiled *f = rp_compile(fn, NULL);
        for (int round = 0; round < 2; round++) {
            (void)make_inputs(g, fresh);
            reseed();
            rp_status status = rp_call(f, fresh, n_in, again, n_out);
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
    for (size_t t = 0; t < n_all; t++) {
        const good *g = &all[t];
        if (only && strcmp(only, g->name)) continue;
        int64_t ints[MAX_ATTRS][MAX_INTS];
        job j = {.op = rp__op_find(g->name)};
        assert_non_null(j.op);
        double start = seconds();
        j.n_attrs = make_attrs(g, j.op, j.attrs, ints);
        compare(&j, g, true);
        if (j.status != RP_OK) fail_msg("%s: the good call fails", g->name);
        for (size_t k = 0; k < j.n_attrs; k++) {
            unsigned n = ways(&j.attrs[k]);
            for (unsigned way = 0; way < n; way++) {
                (void)make_attrs(g, j.op, j.attrs, ints);
                spoil(&j.attrs[k], ints[k], way);
                compare(&j, g, way % 3 == 0);
            }
        }
        for (unsigned round = 0; round < 60; round++) {
            seed = (uint64_t)t * 1000 + round;
            (void)make_attrs(g, j.op, j.attrs, ints);
            for (size_t k = 0; k < j.n_attrs; k++)
                if (draw(2)) spoil(&j.attrs[k], ints[k], draw(ways(&j.attrs[k])));
            compare(&j, g, round % 4 == 0);
        }
        double took = seconds() - start;
        if (took > 30) fail_msg("%s took %.0f s", g->name, took);
        if (getenv("HOSTILE_TIMES")) printf("%-20s %.2f s\n", g->name, took);
    }
    assert_int_equal(live(&peak), before);
    assert_true(peak < 64u << 20);
}

static void every_op_with_attributes_has_a_row(void **state) {
    (void)state;
    for (size_t i = 0; i < rp__op_table_count(); i++) {
        const rp__op *op = rp__op_table_at(i);
        if (op->functional_op) op = op->functional_op; /* in place: the same attributes */
        if (op->schema.n_attrs > 0 && !row_of(op->name)) fail_msg("`%s` has attributes and no row here", op->name);
    }
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
    collect();
    setenv("REPRISE_JIT", "0", 1);
    const struct CMUnitTest tests[] = {
        CASE(every_op_with_attributes_has_a_row), CASE(sizes_overflow),  CASE(words_below_all_sizes),
        CASE(words_in_symbolic_traces),           CASE(every_attribute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
