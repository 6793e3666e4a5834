/* The numbers contract: the same DAG gives the same bits from the interpreter on every instruction set, aligned or not, in any
   slicing, with one thread or two, over every layout, and from emitted C. NaNs compare equal to NaNs.
   The order of reductions and the values of the primitives are checked against plain loops written here.
   ctest: labels=numbers,threads timeout=900 cost=35 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/cpu/jit.h"
#include "support/loops.h"
#include "support/slow.h"

static test_device device;

/* ---- logical arrays and their layouts -------------------------------------------------------------------------------- */

enum { MAX_ACCESSES = 16, MAX_DIMS = 4 };
typedef enum layout {
    CONTIGUOUS,
    MISALIGNED,
    PERMUTED,
    GAPS,
    MIXED,
    BETWEEN,
    SWAPPED,
    LAYOUTS
} layout; /* MIXED: another for each access; BETWEEN: rows lie along a dim in the middle; SWAPPED: outer dims the other way round */

typedef struct problem {
    rp__dag *dag;
    unsigned n_outer, n_inner;
    int64_t extent[MAX_DIMS];
    int64_t rows, row_len;
    void *in[MAX_ACCESSES]; /* logical values of each read access: rows x row_len, or rows */
    rp_scalar scalars[8];
} problem;

typedef struct placed {
    rp__space_access access[MAX_ACCESSES];
    char *memory[MAX_ACCESSES];
} placed;

static int64_t logical_count(const problem *p, unsigned a) {
    return rp__dag_is_row(p->dag, p->dag->accesses[a].axes) ? p->rows : p->rows * p->row_len;
}
/* Strides of access a under a layout; returns the number of elements that memory needs. */
static int64_t lay(const problem *p, unsigned a, layout l, int64_t *stride) {
    if (l == MIXED) l = a % 2 ? CONTIGUOUS : PERMUTED;
    unsigned dims = p->n_outer + p->n_inner, order[MAX_DIMS];
    for (unsigned d = 0; d < dims; d++) order[d] = l == PERMUTED ? (d + p->n_outer) % dims : d;
    if (l == BETWEEN && p->n_outer > 1) {
        for (unsigned d = p->n_outer - 1u; d < dims; d++) order[d] = d + 1 < dims ? d + 1 : p->n_outer - 1u;
    }
    for (unsigned d = 0; l == SWAPPED && d < p->n_outer; d++) order[d] = p->n_outer - 1u - d;
    int64_t next = l == GAPS ? 3 : 1;
    for (unsigned k = dims; k-- > 0;) {
        unsigned d = order[k];
        if (rp__dag_is_row(p->dag, p->dag->accesses[a].axes) && d >= p->n_outer) {
            stride[d] = 0;
            continue;
        }
        stride[d] = next;
        next *= p->extent[d];
        if (l == GAPS && k == dims - 1) next += 5;
    }
    return next;
}
static int64_t element_offset(const problem *p, const int64_t *stride, bool row, int64_t i) {
    int64_t offset = 0;
    for (unsigned d = row ? p->n_outer : p->n_outer + p->n_inner; d-- > 0;) {
        offset += i % p->extent[d] * stride[d];
        i /= p->extent[d];
    }
    return offset;
}
static void place(const problem *p, layout l, placed *out) {
    for (unsigned a = 0; a < p->dag->n_accesses; a++) {
        const rp__access *acc = &p->dag->accesses[a];
        rp__space_access *x = &out->access[a];
        memset(x, 0, sizeof *x);
        size_t size = acc->kind == RP__ACCESS_IOTA ? 8 : rp__dtypes[acc->dtype].bytes;
        if (acc->kind == RP__ACCESS_IOTA) { /* the row-major number of the element */
            lay(p, a, CONTIGUOUS, x->stride);
            x->iota_base = 5;
            out->memory[a] = NULL;
            continue;
        }
        int64_t n = lay(p, a, l, x->stride);
        out->memory[a] = aligned_alloc(64, ((size_t)n * size + 191) / 64 * 64);
        x->base = out->memory[a] + (l == MISALIGNED ? size : 0);
        for (int64_t i = 0; p->in[a] && i < logical_count(p, a); i++) {
            memcpy((char *)x->base + element_offset(p, x->stride, rp__dag_is_row(p->dag, acc->axes), i) * (int64_t)size,
                   (char *)p->in[a] + i * (int64_t)size, size);
        }
    }
}
static void unplace(const problem *p, placed *x) {
    for (unsigned a = 0; a < p->dag->n_accesses; a++) free(x->memory[a]);
}
/* NaNs become one NaN. */
static void canonical(rp_dtype dtype, void *data, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float *f = data;
        double *g = data;
        uint16_t *h = data;
        if (dtype == RP_F32 && f[i] != f[i]) memcpy(&f[i], &(uint32_t){0x7fc00000}, 4);
        if (dtype == RP_F64 && g[i] != g[i]) memcpy(&g[i], &(uint64_t){0x7ff8000000000000}, 8);
        if (dtype == RP_F16 && (h[i] & 0x7fff) > 0x7c00) h[i] = 0x7e00;
        if (dtype == RP_BF16 && (h[i] & 0x7fff) > 0x7f80) h[i] = 0x7fc0;
    }
}
/* Runs p in a layout; the written accesses' logical values go to out[]. */
static void run_in(const problem *p, layout l, test_rng *split, void **out) {
    placed x;
    place(p, l, &x);
    rp__space s = {.dims = {(uint8_t)p->n_outer, (uint8_t)p->n_inner},
                   .n_accesses = p->dag->n_accesses,
                   .n_scalars = p->dag->n_scalars,
                   .scalars = p->scalars,
                   .op = "test",
                   .site = "here"};
    rp__random_draw draws[2] = {{NULL, 1234567, 3}, {NULL, 99, (uint64_t)1 << 33}};
    s.draw = draws;
    s.n_draws = 2;
    memcpy(s.extent, p->extent, sizeof p->extent);
    rp__space_access collapsed[MAX_ACCESSES];
    memcpy(collapsed, x.access, sizeof collapsed);
    s.accesses = collapsed;
    rp__space_collapse(p->dag, &s, collapsed);
    test_run(&device, p->dag, &s, split);
    for (unsigned a = 0; a < p->dag->n_accesses; a++) {
        const rp__access *acc = &p->dag->accesses[a];
        if (acc->kind != RP__ACCESS_WRITE) continue;
        size_t size = rp__dtypes[acc->dtype].bytes;
        for (int64_t i = 0; i < logical_count(p, a); i++) {
            memcpy((char *)out[a] + i * (int64_t)size,
                   (char *)x.access[a].base +
                       element_offset(p, x.access[a].stride, rp__dag_is_row(p->dag, acc->axes), i) * (int64_t)size,
                   size);
        }
        canonical((rp_dtype)acc->dtype, out[a], logical_count(p, a));
    }
    unplace(p, &x);
}
static void alloc_outputs(const problem *p, void **out) {
    for (unsigned a = 0; a < p->dag->n_accesses; a++) {
        const rp__access *acc = &p->dag->accesses[a];
        size_t size = rp__dtypes[acc->dtype].bytes * (size_t)logical_count(p, a);
        out[a] = acc->kind == RP__ACCESS_WRITE ? calloc(1, size + 1) : NULL;
    }
}
static void fill_inputs(problem *p, test_rng *r) {
    for (unsigned a = 0; a < p->dag->n_accesses; a++) {
        const rp__access *acc = &p->dag->accesses[a];
        if (acc->kind != RP__ACCESS_READ) continue;
        size_t size = rp__dtypes[acc->dtype].bytes;
        int64_t n = logical_count(p, a);
        p->in[a] = malloc((size_t)n * size + 1);
        for (int64_t i = 0; i < n; i++) {
            static const double special[] = {0, -0.0, 1, -1, INFINITY, -INFINITY, NAN, 1e30, -1e-30, 0.5, 65519, 1e-42};
            uint64_t k = test_next(r);
            double v =
                k % 64 < 12 && k >> 40 & 1 ? special[k % 64] : ((double)(int64_t)k * 0x1p-63) * (k & 64 ? 4 : 200);
            rp_scalar s =
                rp__dtype_is_float((rp_dtype)acc->dtype)
                    ? test_f(v)
                    : test_i(acc->dtype == RP_BOOL ? (int64_t)(k & 1)
                                                   : (int64_t)(k >> 20) % 200 - (acc->dtype == RP_U8 ? 0 : 100));
            if (acc->dtype == RP_U8) s = test_i((int64_t)(k >> 20 & 255));
            rp__scalar_store(s, (rp_dtype)acc->dtype, (char *)p->in[a] + i * (int64_t)size);
        }
    }
}

/* ---- the sweep ------------------------------------------------------------------------------------------------------ */

static void same_outputs(const problem *p, void **want, void **got, const char *what) {
    for (unsigned a = 0; a < p->dag->n_accesses; a++) {
        if (!want[a]) continue;
        size_t size = rp__dtypes[p->dag->accesses[a].dtype].bytes;
        for (int64_t i = 0; i < logical_count(p, a); i++) {
            if (!memcmp((char *)want[a] + i * (int64_t)size, (char *)got[a] + i * (int64_t)size, size)) continue;
            rp__text t = {0};
            rp__dag_text(p->dag, &t);
            uint64_t w = 0, g = 0;
            memcpy(&w, (char *)want[a] + i * (int64_t)size, size);
            memcpy(&g, (char *)got[a] + i * (int64_t)size, size);
            fail_msg("%s: access %u element %lld of %lld x %lld: %llx, not %llx\n%s", what, a, (long long)i,
                     (long long)p->rows, (long long)p->row_len, (unsigned long long)g, (unsigned long long)w, t.data);
        }
    }
}
static bool have_compiler;
/* Each sweep takes one of eleven runs, and the next one others: no factor of eleven is in the count of runs. With REPRISE_TEST_ALL=1 all, and
   one of 25 where sanitizers make everything slow. */
static unsigned share(void) { return test_takes_all() ? 1 : SLOW_BUILD ? 25 : 11; }

/* native: emitted C too, for that instruction set, counted modulo their number, or (REPRISE_TEST_ALL=1) for each: a compiler takes its time. */
enum { NOT_NATIVE = -1 };
static void sweep(problem *p, int native) {
    static unsigned turn;
    const unsigned begin = turn;
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    static const char *const layouts[] = {"contiguous", "misaligned", "permuted", "gaps",
                                          "mixed",      "between",    "swapped"};
    void *want[MAX_ACCESSES], *got[MAX_ACCESSES];
    alloc_outputs(p, want);
    alloc_outputs(p, got);
    rp__tiles_set(rp__tiles_named("baseline"));
    (void)!rp_set_num_threads(1);
    run_in(p, CONTIGUOUS, NULL, want);
    int n_isas = 0, nth = 0;
    for (int i = 0; i < 3; i++) n_isas += rp__tiles_named(isas[i]) != NULL;
    for (int i = 0; i < 3; i++) {
        const rp__tiles *tiles = rp__tiles_named(isas[i]);
        if (!tiles) continue;
        rp__tiles_set(tiles);
        const bool emitted = have_compiler && native >= 0 && (native % n_isas == nth || test_takes_all());
        nth++;
        for (int tier = 0; tier < (emitted ? 2 : 1); tier++) {
            if (tier == 1 && !rp__jit_request(p->dag, true)) fail_msg("%s", rp__jit_reason(p->dag));
            for (int l = 0; l < LAYOUTS; l++) {
                for (int mode = 0; mode < 3; mode++) {
                    if (turn++ % share()) continue;
                    test_rng split = {(uint64_t)(l + 1)};
                    (void)!rp_set_num_threads(mode == 1 ? 2 : 1);
                    run_in(p, (layout)l, mode == 2 ? &split : NULL, got);
                    char what[96];
                    snprintf(what, sizeof what, "%s, %s, %s, %s", tier ? "emitted C" : "interpreter", isas[i],
                             layouts[l],
                             mode == 0   ? "1 thread"
                             : mode == 1 ? "2 threads"
                                         : "pieces");
                    same_outputs(p, want, got, what);
                }
            }
        }
    }
    assert_true(share() == 1 || (turn - begin) % share() != 0);
    rp__tiles_set(NULL);
    for (unsigned a = 0; a < p->dag->n_accesses; a++) {
        free(want[a]);
        free(got[a]);
    }
}
static void problem_free(problem *p) {
    for (unsigned a = 0; a < p->dag->n_accesses; a++) free(p->in[a]);
    rp__dag_release(p->dag);
}
static problem problem_of(rp__dag *dag, unsigned n_outer, unsigned n_inner, const int64_t *extent) {
    problem p;
    memset(&p, 0, sizeof p);
    if (!dag) fail_msg("%s", rp_error_message());
    p.dag = dag;
    p.n_outer = n_outer;
    p.n_inner = n_inner;
    p.rows = p.row_len = 1;
    for (unsigned d = 0; d < n_outer + n_inner; d++) {
        p.extent[d] = extent[d];
        *(d < n_outer ? &p.rows : &p.row_len) *= extent[d];
    }
    for (int i = 0; i < 8; i++) p.scalars[i] = test_f(1.25 + i);
    return p;
}

static const struct shape {
    unsigned n_outer, n_inner;
    int64_t extent[MAX_DIMS];
} shapes[] = {
    {1, 1, {1, 1}},      {1, 1, {3, 16}},      {1, 1, {5, 1000}},   {2, 1, {3, 5, 31}},    {1, 2, {70, 3, 11}},
    {1, 1, {600, 40}},   {2, 2, {2, 9, 4, 5}}, {1, 1, {2, 8193}},   {1, 1, {33, 64}},      {1, 1, {1, 40000}},
    {0, 1, {33000}},     {1, 1, {20, 9000}},   {2, 1, {3, 40, 70}}, {2, 2, {5, 17, 9, 9}}, {1, 1, {300, 20}},
    {2, 1, {7, 29, 13}}, /* tiles of short rows that are turned, one after the other */
};

/* ---- named kernels --------------------------------------------------------------------------------------------------- */

static rp__dag *softmax(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, dtype, false);
    rp__val e = op1(b, RP__EXP, op2(b, RP__SUB, x, rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW)));
    store_new(b, dtype, op2(b, RP__DIV, e, rp__dag_reduce(b, RP__REDUCE_SUM, e, RP__ALONG_ROW)), false);
    return rp__dag_finish(b);
}
static rp__dag *layer_norm(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, dtype, false), n = rp__dag_scalar_value(b, rp__dag_scalar(b), RP_F32);
    rp__val mean = op2(b, RP__DIV, rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW), n),
            d = op2(b, RP__SUB, x, mean);
    rp__val var = op2(b, RP__DIV, rp__dag_reduce(b, RP__REDUCE_SUM, op2(b, RP__MUL, d, d), RP__ALONG_ROW), n);
    rp__val r = op1(b, RP__RSQRT, op2(b, RP__ADD, var, rp__dag_const(b, RP_F32, test_f(1e-5))));
    rp__val y = op2(b, RP__MUL, op2(b, RP__MUL, d, r), load_new(b, RP_F32, false));
    store_new(b, dtype, y, false);
    store_new(b, RP_F32, mean, true);
    store_new(b, dtype, r, true);
    return rp__dag_finish(b);
}
static void named_kernels(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F16, RP_BF16};
    test_rng r = {1};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int t = 0; t < 3; t++) {
            problem p = problem_of(softmax(dtypes[t]), shapes[s].n_outer, shapes[s].n_inner, shapes[s].extent);
            fill_inputs(&p, &r);
            sweep(&p, t + (int)s);
            problem_free(&p);
            p = problem_of(layer_norm(dtypes[t]), shapes[s].n_outer, shapes[s].n_inner, shapes[s].extent);
            fill_inputs(&p, &r);
            sweep(&p, t + 1 + (int)s);
            problem_free(&p);
        }
    }
}

/* Every reduction of every type, and what depends on it in a later phase. */
static void reductions(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_I32, RP_I64, RP_U8, RP_BOOL, RP_BF16, RP_I8, RP_I16};
    test_rng r = {2};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            rp__dag_builder *b = rp__dag_new();
            rp__val x = load_new(b, dtypes[t], false);
            for (int k = RP__REDUCE_SUM; k <= RP__REDUCE_ALL; k++) {
                rp__val v = rp__dag_reduce(b, (rp__reduce_kind)k, x, RP__ALONG_ROW);
                store_new(b, rp__dag_dtype(b, v), v, true);
                if (k == RP__REDUCE_MAX)
                    store_new(b, RP_BOOL, op2(b, RP__EQ, x, rp__dag_cast(b, v, rp__dag_dtype(b, x))), false);
            }
            problem p = problem_of(rp__dag_finish(b), shapes[s].n_outer, shapes[s].n_inner, shapes[s].extent);
            fill_inputs(&p, &r);
            sweep(&p, (int)(t + s));
            problem_free(&p);
        }
    }
}

/* A phase that only reduces what it loads goes by columns where these lie side by side: whole lines of 32 rows, or a row at a time where a
   piece takes some columns; rows that fill no line, columns that fill no vector, few positions, which need no lanes, several chunks. */
static void columns(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F16, RP_BF16, RP_F64, RP_I64};
    static const rp__reduce_kind kinds[] = {RP__REDUCE_SUM, RP__REDUCE_MAX, RP__REDUCE_MIN, RP__REDUCE_PROD};
    static const int64_t sizes[][2] = {{7, 300}, {1, 129},   {33, 64},  {300, 31}, {75, 96},
                                       {130, 2}, {130, 127}, {70, 257}, {37, 8225}};
    test_rng r = {7};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                rp__dag_builder *b = rp__dag_new();
                rp__val v = rp__dag_reduce(b, kinds[k], load_new(b, dtypes[t], false), RP__ALONG_ROW);
                store_new(b, rp__dag_dtype(b, v), v, true);
                problem p = problem_of(rp__dag_finish(b), 1, 1, sizes[s]);
                fill_inputs(&p, &r);
                sweep(&p, (int)(t + k + s));
                problem_free(&p);
            }
        }
    }
}

/* ---- random kernels -------------------------------------------------------------------------------------------------- */

static rp__val random_value(rp__dag_builder *b, test_rng *r, const rp__val *pool, int n) {
    static const rp__prim floats1[] = {
#define RP_MATH1(prim, f, cost) RP__##prim,
#define RP_MATH2(prim, f, cost)
#include "kernel/prims.def"
        RP__NEG, RP__ABS, RP__SIGN, RP__RSQRT, RP__RECIP, RP__ERFP1, RP__SIGMOID, RP__ISNAN};
    static const rp__prim floats2[] = {
#define RP_MATH1(prim, f, cost)
#define RP_MATH2(prim, f, cost) RP__##prim,
#include "kernel/prims.def"
        RP__ADD, RP__SUB, RP__MUL, RP__DIV, RP__FLOORDIV, RP__REMAINDER, RP__MAX,
        RP__MIN, RP__EQ,  RP__NE,  RP__LT,  RP__LE,       RP__ADD,       RP__MUL};
    static const rp__prim ints2[] = {RP__ADD, RP__SUB, RP__MUL,      RP__MAX,       RP__MIN, RP__AND, RP__OR, RP__XOR,
                                     RP__EQ,  RP__LT,  RP__FLOORDIV, RP__REMAINDER, RP__SHL, RP__SHR, RP__GCD};
    static const rp__prim ints1[] = {RP__NEG, RP__ABS, RP__SIGN, RP__NOT};
    static const rp__prim bools[] = {RP__AND, RP__OR, RP__XOR, RP__EQ, RP__NE, RP__LE};
    static const rp_dtype types[] = {RP_F32, RP_F64, RP_I32, RP_I64, RP_U8, RP_BOOL, RP_F16, RP_BF16, RP_I8, RP_I16};
    rp__val a = pool[test_below(r, (uint64_t)n)];
    rp_dtype d = rp__dag_dtype(b, a);
    rp__val x = rp__dag_cast(b, pool[test_below(r, (uint64_t)n)], d);
    switch (test_below(r, 12)) {
    case 0: return rp__dag_cast(b, a, types[test_below(r, 10)]);
    case 1: {
        rp__val c = rp__dag_cast(b, pool[test_below(r, (uint64_t)n)], RP_BOOL);
        return rp__dag_op(b, RP__WHERE, c, a, x);
    }
    case 2: return rp__dag_reduce(b, (rp__reduce_kind)test_below(r, 4), a, RP__ALONG_ROW);
    case 3: return rp__dag_const(b, d, test_f((double)test_below(r, 9) - 3.5));
    case 4:
        if (d == RP_I32) return rp__dag_op_imm(b, RP__ROUND, RP_I32, a, test_below(r, 2) ? RP_I8 : RP_I16);
        if (d == RP_F32) return rp__dag_op_imm(b, RP__ROUND, RP_F32, a, test_below(r, 2) ? RP_F16 : RP_BF16);
        return rp__dag_cast(b, a, RP_F32);
    default: break;
    }
    if (rp__dtype_is_float(d)) {
        return test_below(r, 2) ? op1(b, floats1[test_below(r, sizeof floats1 / sizeof *floats1)], a)
                                : op2(b, floats2[test_below(r, sizeof floats2 / sizeof *floats2)], a, x);
    }
    if (d == RP_BOOL) return test_below(r, 5) ? op2(b, bools[test_below(r, 6)], a, x) : op1(b, RP__NOT, a);
    return test_below(r, 3) ? op2(b, ints2[test_below(r, sizeof ints2 / sizeof *ints2)], a, x)
                            : op1(b, ints1[test_below(r, 4)], a);
}
static rp__dag *random_dag(test_rng *r) {
    static const rp_dtype types[] = {RP_F32, RP_F32, RP_F32, RP_F64,  RP_F16, RP_BF16,
                                     RP_I32, RP_I64, RP_U8,  RP_BOOL, RP_I8,  RP_I16};
    rp__dag_builder *b = rp__dag_new();
    rp__val pool[64];
    int n = 0;
    int loads = 1 + (int)test_below(r, 4);
    for (int i = 0; i < loads; i++) pool[n++] = load_new(b, types[test_below(r, 12)], i && !test_below(r, 4));
    if (!test_below(r, 3)) {
        rp__val i = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
        pool[n++] = i;
        pool[n++] = rp__dag_op_imm(b, RP__PHILOX, RP_I64, i, 0);
        pool[n++] = rp__dag_op_imm(b, RP__PHILOX64, RP_I64, i, 1);
        pool[n++] =
            rp__dag_op_imm(b, RP__PHILOX_NORMAL, test_below(r, 2) ? RP_F32 : RP_F64, i, (int64_t)test_below(r, 2));
    }
    if (test_below(r, 2)) pool[n++] = rp__dag_scalar_value(b, rp__dag_scalar(b), types[test_below(r, 4)]);
    int values = 3 + (int)test_below(r, 24);
    for (int i = 0; i < values && n < 60; i++) {
        pool[n] = random_value(b, r, pool, n);
        n++;
    }
    int stores = 1 + (int)test_below(r, 3);
    for (int i = 0; i < stores; i++) {
        rp__val v = pool[n - 1 - i];
        static const rp_dtype halves[] = {RP_F32, RP_F16, RP_BF16}, narrow[] = {RP_I32, RP_I8, RP_I16};
        rp_dtype d = rp__dag_dtype(b, v);
        store_new(b, d == RP_F32 ? halves[test_below(r, 3)] : d == RP_I32 ? narrow[test_below(r, 3)] : d, v, false);
    }
    return rp__dag_finish(b);
}
/* Scans of every kind, alone and between phases: of what a reduction gave, under another reduction, of a scan. */
static void scans(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_I64, RP_BF16, RP_U8};
    test_rng r = {8};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            rp__dag_builder *b = rp__dag_new();
            rp__val x = load_new(b, dtypes[t], false);
            for (int k = RP__SCAN_SUM; k < RP__SCAN_KINDS; k++) {
                if (k == RP__SCAN_LOGADDEXP && !rp__dtype_is_float(dtypes[t])) continue;
                rp__val v = rp__dag_scan(b, (rp__scan_kind)k, x, RP__ALONG_ROW);
                store_new(b, rp__dag_dtype(b, v), v, false);
            }
            if (dtypes[t] == RP_F32) {
                rp__val high = rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW);
                rp__val e = op1(b, RP__EXP, op2(b, RP__SUB, x, high));
                rp__val run = rp__dag_scan(b, RP__SCAN_SUM, e, RP__ALONG_ROW);
                rp__val again = rp__dag_scan(b, RP__SCAN_MIN, op1(b, RP__NEG, run), RP__ALONG_ROW);
                rp__val all = rp__dag_reduce(b, RP__REDUCE_SUM, again, RP__ALONG_ROW);
                store_new(b, RP_F32, op2(b, RP__DIV, run, all), false);
                store_new(b, RP_F32, all, true);
            }
            problem p = problem_of(rp__dag_finish(b), shapes[s].n_outer, shapes[s].n_inner, shapes[s].extent);
            fill_inputs(&p, &r);
            sweep(&p, (int)(t + s));
            problem_free(&p);
        }
    }
}

/* ---- windows ---- */

enum { WIN_DIMS = 4, WIN_INNER = 2 };
/* Element `at` of a space of WIN_DIMS dims: the places of two windows by the formula. False: outside. */
static bool window_places(const rp__space *s, const rp__space_window *w, const int64_t *at, int64_t *offset) {
    for (int k = 0; k < 2; k++) {
        int64_t t = -w[k].pad;
        for (unsigned d = 0; d < rp__space_dims(s); d++) t += at[d] * w[k].factor[d];
        if (t % w[k].divisor != 0 || t / w[k].divisor < 0 || t / w[k].divisor >= w[k].size) return false;
        *offset += t / w[k].divisor * w[k].stride;
    }
    return true;
}
static void window_case(test_rng *r, rp__dag *dag, rp_dtype dtype, bool rows) {
    static const int64_t extents[] = {1, 2, 3, 5, 9, 40, 67};
    enum { PLANE = 7, MEMORY = 4 * 67 + PLANE * PLANE * 3 };
    rp__space s = {
        .dims = {WIN_DIMS - WIN_INNER, WIN_INNER}, .n_accesses = dag->n_accesses, .op = "test", .site = "here"};
    rp__space_access a[5];
    rp__space_window w[6];
    int64_t n = 1, row = 1;
    memset(a, 0, sizeof a);
    memset(w, 0, sizeof w);
    for (int d = 0; d < WIN_DIMS; d++) {
        s.extent[d] = extents[test_below(r, d < WIN_DIMS - WIN_INNER ? 7 : 4)];
        n *= s.extent[d];
        row *= d < WIN_DIMS - WIN_INNER ? 1 : s.extent[d];
    }
    for (int k = 0; k < 2; k++) {
        w[k] = (rp__space_window){.size = (int64_t)test_below(r, PLANE) + 1,
                                  .stride = k ? 1 : PLANE,
                                  .pad = (int64_t)test_below(r, 9) - 4,
                                  .divisor = test_below(r, 2) ? 1 : (int64_t)test_below(r, 3) + 1};
        for (int d = 0; d < WIN_DIMS; d++) w[k].factor[d] = test_below(r, 3) ? 0 : (int64_t)test_below(r, 6) - 2;
        w[k].factor[1 + k] = (int64_t)test_below(r, 3) + 1;
        w[k + 2] = w[k];
    }
    char memory[MEMORY * 8];
    for (int i = 0; i < MEMORY; i++)
        rp__scalar_store(rp_f64((double)(test_below(r, 2000)) - 1000), dtype,
                         memory + i * (int64_t)rp__dtypes[dtype].bytes);
    const int64_t step = (int64_t)test_below(r, 3), base = 11;
    a[0] = (rp__space_access){.base = memory, .stride = {step}}; /* a plain stride beside windows */
    a[1] = (rp__space_access){.iota_base = base, .stride = {step}};
    const int64_t count = rows ? n / row : n;
    double *sum = malloc(sizeof *sum * (size_t)(count + 1)), *want = malloc(sizeof *want * (size_t)(count + 1));
    int64_t *place = malloc(8 * (size_t)(count + 1)), *inside = malloc(8 * (size_t)(count + 1));
    int64_t *want_place = malloc(8 * (size_t)(count + 1)), *want_inside = malloc(8 * (size_t)(count + 1));
    for (int64_t i = 0; i < n; i++) {
        int64_t at[WIN_DIMS], rest = i, o = rows ? i / row : i;
        for (int d = WIN_DIMS; d-- > 0; rest /= s.extent[d]) at[d] = rest % s.extent[d];
        if (!rows || i % row == 0) {
            want[o] = 0;
            want_place[o] = want_inside[o] = 0;
        }
        int64_t offset = at[0] * step;
        if (!window_places(&s, w, at, &offset)) continue;
        want[o] += rp__scalar_f64(rp__scalar_load(dtype, memory + offset * (int64_t)rp__dtypes[dtype].bytes));
        want_inside[o]++;
        if (base + offset > want_place[o]) want_place[o] = base + offset;
    }
    void *out[3] = {sum, place, inside};
    for (int k = 0; k < 3; k++) {
        a[2 + k].base = out[k];
        int64_t next = 1;
        for (int d = rows ? WIN_DIMS - WIN_INNER : WIN_DIMS; d-- > 0; next *= s.extent[d]) a[2 + k].stride[d] = next;
    }
    s.accesses = a;
    s.windows = w;
    rp__space_collapse(dag, &s, a);
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    for (int k = 0; k < 3; k++) {
        const rp__tiles *t = rp__tiles_named(isas[k]);
        if (!t) continue;
        rp__tiles_set(t);
        memset(sum, 0xee, sizeof *sum * (size_t)count);
        memset(place, 0xee, 8 * (size_t)count);
        memset(inside, 0xee, 8 * (size_t)count);
        test_run(&device, dag, &s, r);
        assert_memory_equal(place, want_place, 8 * (size_t)count);
        assert_memory_equal(inside, want_inside, 8 * (size_t)count);
        for (int64_t i = 0; i < count; i++) assert_true(sum[i] == want[i]);
    }
    rp__tiles_set(NULL);
    free(sum);
    free(want);
    free(place);
    free(inside);
    free(want_place);
    free(want_inside);
}
/* Sums, largest places and counts of rows, or each element's, of whole numbers in any order of additions. */
static void windows(void **state) {
    (void)state;
    static const rp_dtype dtypes[] = {RP_F32, RP_F16, RP_F64, RP_U8};
    test_rng r = {77};
    for (int rows = 0; rows < 2; rows++) {
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            rp__dag_builder *b = rp__dag_new();
            const rp__axes out = rows ? RP__ALONG_ROWS : RP__ELEMENTS;
            uint16_t from = rp__dag_access_windows(b, RP__ACCESS_READ, dtypes[t], RP__ELEMENTS, 2);
            uint16_t numbers = rp__dag_access_windows(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS, 2);
            rp__val x = rp__dag_cast(b, rp__dag_load(b, from, NONE, NONE), RP_F64), place = rp__dag_iota(b, numbers);
            rp__val inside = rp__dag_cast(b, rp__dag_inside(b, from), RP_I64);
            if (rows) {
                x = rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW);
                place = rp__dag_reduce(b, RP__REDUCE_MAX, place, RP__ALONG_ROW);
                inside = rp__dag_reduce(b, RP__REDUCE_SUM, inside, RP__ALONG_ROW);
            }
            rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_F64, out), x);
            rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_I64, out), place);
            rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_I64, out), inside);
            rp__dag *dag = rp__dag_finish(b);
            assert_non_null(dag);
            for (int k = 0; k < 60; k++) window_case(&r, dag, dtypes[t], rows);
            rp__dag_release(dag);
        }
    }
}

static void random_kernels(void **state) {
    (void)state;
    test_rng r = {3};
    for (int i = 0; i < 150; i++) {
        const struct shape *s = &shapes[test_below(&r, 9)];
        problem p = problem_of(random_dag(&r), s->n_outer, s->n_inner, s->extent);
        fill_inputs(&p, &r);
        sweep(&p, i % 8 ? NOT_NATIVE : i / 8);
        problem_free(&p);
    }
}

/* Pointwise kernels over shapes that are walked in blocks when operands are transposed. */
static void transposes(void **state) {
    (void)state;
    static const int64_t extents[][3] = {{130, 67, 1}, {16, 300, 3}, {40, 7, 50}, {5, 64, 129}};
    test_rng r = {6};
    for (int i = 0; i < 4; i++) {
        static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_U8, RP_F64};
        rp__dag_builder *b = rp__dag_new();
        rp__val x = load_new(b, dtypes[i], false), y = load_new(b, RP_F32, false), z = load_new(b, dtypes[i], true);
        rp__val n = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
        rp__val v = op2(b, RP__ADD, op2(b, RP__MUL, rp__dag_cast(b, x, RP_F32), y), rp__dag_cast(b, n, RP_F32));
        store_new(b, RP_F32, v, false);
        store_new(b, RP_F16, op2(b, RP__SUB, v, rp__dag_cast(b, z, RP_F32)), false);
        problem p = problem_of(rp__dag_finish(b), 1, 2, extents[i]);
        fill_inputs(&p, &r);
        sweep(&p, i);
        problem_free(&p);
    }
}

/* ---- plain loops ----------------------------------------------------------------------------------------------------- */

/* The order of a reduction as loop.h states it, one element after the other. */
static float sum_in_order(const float *x, int64_t n) {
    int64_t chunks = (n + RP__CHUNK - 1) / RP__CHUNK;
    float *partial = malloc(sizeof *partial * (size_t)(chunks + 1));
    for (int64_t c = 0; c < chunks; c++) {
        float lane[RP__LANES] = {0};
        for (int64_t i = c * RP__CHUNK; i < n && i < (c + 1) * RP__CHUNK; i++) lane[i % RP__LANES] += x[i];
        for (int s = RP__LANES / 2; s > 0; s /= 2)
            for (int j = 0; j < s; j++) lane[j] += lane[j + s];
        partial[c] = lane[0];
    }
    while (chunks > 1) { /* neighbours level by level, an odd last one passes up */
        for (int64_t k = 0; k < chunks / 2; k++) partial[k] = partial[2 * k] + partial[2 * k + 1];
        if (chunks % 2) partial[chunks / 2] = partial[chunks - 1];
        chunks = (chunks + 1) / 2;
    }
    float v = n ? partial[0] : 0;
    free(partial);
    return v;
}
static void order_is_as_stated(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 1, 5, 31, 32, 33, 1000, 8191, 8192, 8193, 60001, 300000};
    test_rng r = {4};
    rp__dag_builder *b = rp__dag_new();
    store_new(b, RP_F32, rp__dag_reduce(b, RP__REDUCE_SUM, load_new(b, RP_F32, false), RP__ALONG_ROW), true);
    rp__dag *dag = rp__dag_finish(b);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        int64_t n = lengths[k];
        float *x = malloc(sizeof *x * (size_t)(n * 2 + 1)), got[2], want[2];
        for (int64_t i = 0; i < 2 * n; i++) x[i] = (float)((double)(int64_t)test_next(&r) * 0x1p-60);
        want[0] = sum_in_order(x, n);
        want[1] = sum_in_order(x + n, n);
        for (int threads = 1; threads <= 2; threads++) {
            (void)!rp_set_num_threads(threads);
            rp__space_access a[2] = {{.base = x, .stride = {n, 1}}, {.base = got, .stride = {1, 0}}};
            rp__space s = {.dims = {1, 1}, .extent = {2, n}, .n_accesses = 2, .accesses = a};
            memset(got, 0xff, sizeof got);
            test_run(&device, dag, &s, NULL);
            assert_memory_equal(got, want, sizeof got);
        }
        free(x);
    }
    rp__dag_release(dag);
}

/* Blocks, blocks of a chunk, chunks; each from left to right. */
static void scan_in_order(const float *x, float *y, int64_t n) {
    float chunks = 0, chunk = 0;
    for (int64_t c = 0; c < n; c += RP__CHUNK) {
        for (int64_t k = c; k < n && k < c + RP__CHUNK; k += RP__SCAN_BLOCK) {
            float run = 0, before = c == 0 ? chunk : k == c ? chunks : chunks + chunk;
            for (int64_t i = k; i < n && i < k + RP__SCAN_BLOCK; i++) {
                run = i == k ? x[i] : run + x[i];
                y[i] = i < RP__SCAN_BLOCK ? run : before + run;
            }
            chunk = k == c ? run : chunk + run;
        }
        chunks = c == 0 ? chunk : chunks + chunk;
    }
}
static void scan_order_is_as_stated(void **state) {
    (void)state;
    static const int64_t lengths[] = {0, 1, 63, 64, 65, 128, 1000, 8191, 8192, 8193, 8256, 8300, 16384, 50001};
    test_rng r = {14};
    rp__dag_builder *b = rp__dag_new();
    store_new(b, RP_F32, rp__dag_scan(b, RP__SCAN_SUM, load_new(b, RP_F32, false), RP__ALONG_ROW), false);
    rp__dag *dag = rp__dag_finish(b);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        const int64_t n = lengths[k];
        float *x = malloc(sizeof *x * (size_t)(n * 2 + 1)), *want = malloc(sizeof *x * (size_t)(n * 2 + 1)),
              *got = malloc(sizeof *x * (size_t)(n * 2 + 1));
        for (int64_t i = 0; i < 2 * n; i++) x[i] = (float)((double)(int64_t)test_next(&r) * 0x1p-60);
        for (int columns = 0; columns < 2; columns++) { /* along memory and across it */
            float *one = malloc(sizeof *one * (size_t)(n + 1)), *sums = malloc(sizeof *one * (size_t)(n + 1));
            const int64_t row = columns ? 1 : n, step = columns ? 2 : 1;
            for (int64_t j = 0; j < 2; j++) {
                for (int64_t i = 0; i < n; i++) one[i] = x[j * row + i * step];
                scan_in_order(one, sums, n);
                for (int64_t i = 0; i < n; i++) want[j * row + i * step] = sums[i];
            }
            rp__space_access a[2] = {{.base = x, .stride = {row, step}}, {.base = got, .stride = {row, step}}};
            rp__space s = {.dims = {1, 1}, .extent = {2, n}, .n_accesses = 2, .accesses = a};
            test_run(&device, dag, &s, NULL);
            assert_memory_equal(got, want, sizeof *got * (size_t)(2 * n));
            free(one);
            free(sums);
        }
        free(x);
        free(want);
        free(got);
    }
    rp__dag_release(dag);
}

static double ulp_distance(float got, double want) {
    if (isnan(want)) return isnan(got) ? 0 : 1e9;
    if ((double)got == want) return 0;
    if (isinf(want) || isinf(got)) return (double)(float)want == (double)got ? 0 : 1e9;
    int e;
    frexp(want, &e);
    double ulp = ldexp(1, e - 24 < -149 ? -149 : e - 24);
    return fabs((double)got - want) / ulp;
}
static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_recip(double x) { return 1 / x; }
static double ref_rsqrt(double x) { return 1 / sqrt(x); }
static double ref_neg(double x) { return -x; }
static double ref_sign(double x) { return (x > 0) - (x < 0); }
static void values_are_right(void **state) {
    (void)state;
    static const struct {
        rp__prim op;
        double (*f)(double);
        double ulp;
    } table[] = {
        {RP__EXP, exp, 2},           {RP__EXPM1, expm1, 2},   {RP__LOG, log, 2},
        {RP__LOG1P, log1p, 2},       {RP__SIN, sin, 2},       {RP__COS, cos, 2},
        {RP__TANH, tanh, 2},         {RP__ERF, erf, 2},       {RP__SIGMOID, ref_sigmoid, 3},
        {RP__SQRT, sqrt, 0.5},       {RP__FLOOR, floor, 0},   {RP__CEIL, ceil, 0},
        {RP__TRUNC, trunc, 0},       {RP__RINT, rint, 0},     {RP__ABS, fabs, 0},
        {RP__NEG, ref_neg, 0},       {RP__SIGN, ref_sign, 0}, {RP__RECIP, ref_recip, 0.5},
        {RP__RSQRT, ref_rsqrt, 1.5},
    };
    enum { N = 1000 };
    float x[N], y[N];
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        rp__dag_builder *b = rp__dag_new();
        store_new(b, RP_F32, op1(b, table[k].op, load_new(b, RP_F32, false)), false);
        rp__dag *dag = rp__dag_finish(b);
        test_rng r = {5};
        for (int i = 0; i < N; i++) x[i] = (float)((double)(int64_t)test_next(&r) * 0x1p-63 * (i % 2 ? 30 : 1));
        rp__space_access a[2] = {{.base = x, .stride = {1}}, {.base = y, .stride = {1}}};
        rp__space s = {.dims = {1}, .extent = {N}, .n_accesses = 2, .accesses = a};
        test_run(&device, dag, &s, NULL);
        for (int i = 0; i < N; i++) {
            double u = ulp_distance(y[i], table[k].f((double)x[i]));
            if (u > table[k].ulp + 1e-6)
                fail_msg("operation %d of %a: %a, %g ulp off", table[k].op, (double)x[i], (double)y[i], u);
        }
        rp__dag_release(dag);
    }
}
/* PyTorch's corner cases of integers, casts and NaN. */
static void corner_cases(void **state) {
    (void)state;
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, RP_F32, false), y = load_new(b, RP_F32, false);
    store_new(b, RP_F32, op2(b, RP__MAX, x, y), false);
    store_new(b, RP_I32, rp__dag_cast(b, x, RP_I32), false);
    store_new(b, RP_I64, rp__dag_cast(b, x, RP_I64), false);
    store_new(b, RP_U8, rp__dag_cast(b, x, RP_U8), false);
    store_new(b, RP_F32, op2(b, RP__FLOORDIV, x, y), false);
    store_new(b, RP_F32, op2(b, RP__REMAINDER, x, y), false);
    rp__dag *dag = rp__dag_finish(b);
    float in[] = {NAN, 1, 3e9f, -3e9f, 300.7f, -1.5f, -7}, in2[] = {1, NAN, 2, 2, -7, 0, 2};
    float max[7], fd[7], rem[7];
    int32_t i32[7];
    int64_t i64[7];
    uint8_t u8[7];
    void *at[] = {in, in2, max, i32, i64, u8, fd, rem};
    rp__space_access a[8] = {{.base = NULL}};
    for (int i = 0; i < 8; i++) a[i] = (rp__space_access){.base = at[i], .stride = {1}};
    rp__space s = {.dims = {1}, .extent = {7}, .n_accesses = 8, .accesses = a};
    test_run(&device, dag, &s, NULL);
    assert_true(isnan(max[0]) && isnan(max[1]) && max[2] == 3e9f);
    assert_int_equal(i32[0], 0);
    assert_int_equal(i32[2], INT32_MAX);
    assert_int_equal(i32[3], INT32_MIN);
    assert_int_equal(i32[5], -1);
    assert_int_equal(i64[2], 3000000000);
    assert_int_equal(u8[4], 300 % 256);
    assert_int_equal(u8[5], 255);
    assert_true(fd[4] == -43 && rem[4] == 300.7f - 43 * 7 && fd[6] == -4 && rem[6] == 1 && isinf(fd[5]));
    rp__dag_release(dag);
}

int main(void) {
    test_device_init(&device);
    setenv("REPRISE_JIT", "1", 1);
    have_compiler = system("cc --version >/dev/null 2>&1") == 0 && !getenv("REPRISE_CC");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_right), cmocka_unit_test(corner_cases),  cmocka_unit_test(order_is_as_stated),
        cmocka_unit_test(reductions),       cmocka_unit_test(named_kernels), cmocka_unit_test(random_kernels),
        cmocka_unit_test(transposes),       cmocka_unit_test(scans),         cmocka_unit_test(scan_order_is_as_stated),
        cmocka_unit_test(windows),          cmocka_unit_test(columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
