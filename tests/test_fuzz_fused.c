/* Random programs: each is run eagerly and through AOT autograd with the fused backend, forward and backward; every result and
   every gradient must have the same bits, and so must the arguments and buffers that a program writes. Some take arguments that
   share memory, write buffers from outside, or give views of buffers that they wrote. A seed is one program;
   support/fuzz.h says which run.
   ctest: timeout=300 cost=22 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <reprise.h>

#include "compile/aot.h"
#include "compile/fuse.h"
#include "samples/samples.h"
#include "support/cuda.h"
#include "support/fuzz.h"
#include "trace/trace.h"

enum { N_IN = 3, N_OUT = 3, N_HELD = 2, POOL = 24 };
enum { APART, VIEWS, WRAPPED, STABLE, EXPANDED, LAYOUTS }; /* of arguments in memory */

typedef struct program {
    uint64_t seed;
    int steps;
    bool in_place, training, regions;
    bool holds;   /* writes buffers that it reaches by itself */
    bool buffers; /* makes buffers without a history, and gives them one by writing */
    int layout;
} program;

static uint64_t next(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}
static unsigned below(uint64_t *s, unsigned n) { return (unsigned)(next(s) >> 20) % n; }

static bool same_sizes(const rp_tensor *a, const rp_tensor *b) {
    bool same = rp_ndim(a) == rp_ndim(b);
    for (size_t d = 0; same && d < rp_ndim(a); d++) same = rp_size(a, (int64_t)d) == rp_size(b, (int64_t)d);
    return same;
}

static bool is_float(const rp_tensor *t) {
    rp_dtype d = rp_dtype_of(t);
    return d == RP_F32 || d == RP_F64 || d == RP_F16 || d == RP_BF16;
}

static rp_tensor *view(uint64_t *s, rp_tensor *t) {
    size_t n = rp_ndim(t);
    if (n == 0) return rp_unsqueeze(t, 0);
    int64_t d = (int64_t)below(s, (unsigned)n), size = rp_size(t, d);
    switch (below(s, 10)) {
    case 0: return rp_transpose(t, d, (int64_t)below(s, (unsigned)n));
    case 7: {
        const int64_t other = (int64_t)below(s, (unsigned)n), offset = (int64_t)below(s, 3) - 1;
        if (other == d || size + (offset < 0 ? offset : 0) < 1 || rp_size(t, other) - (offset > 0 ? offset : 0) < 1)
            return t;
        return rp_diagonal(t, offset, d, other);
    }
    case 8: return n < 4 && size > 1 ? rp_unfold(t, d, 2, 1 + (int64_t)below(s, 2)) : t;
    case 9: return rp_movedim(t, &d, 1, RP_DIMS(0));
    case 1: return n < 4 ? rp_unsqueeze(t, d) : t;
    case 2: return size > 1 ? rp_slice(t, d, 1, INT64_MAX, 1 + (int64_t)below(s, 2)) : t;
    case 3: return rp_select(t, d, (int64_t)below(s, (unsigned)size));
    case 4: {
        if (n < 2 || n > 4 || !rp_is_contiguous(t)) return t;
        int64_t flat[4];
        for (size_t k = 0; k + 1 < n; k++) flat[k] = rp_size(t, (int64_t)k);
        flat[n - 2] *= rp_size(t, (int64_t)n - 1);
        return rp_view(t, flat, n - 1);
    }
    case 5: {
        if (n > 3) return t;
        int64_t sizes[4] = {3};
        for (size_t k = 0; k < n; k++) sizes[k + 1] = rp_size(t, (int64_t)k);
        return rp_expand(t, sizes, n + 1);
    }
    default: {
        if (n > 3 || !rp_is_contiguous(t)) return t;
        int64_t sizes[5], m = 0;
        for (size_t k = 0; k < n; k++) {
            int64_t z = rp_size(t, (int64_t)k);
            if (z == 6 && (int64_t)k == d) {
                sizes[m++] = 2;
                sizes[m++] = 3;
            } else {
                sizes[m++] = z;
            }
        }
        return rp_view(t, sizes, (size_t)m);
    }
    }
}

/* An op of the table; results that are no floats become some. */
static rp_tensor *some_op(uint64_t *s, rp_tensor *a, rp_tensor *const *pool, unsigned n) {
    rp_tensor *r = sample_apply(next(s), a, pool, n);
    return is_float(r) ? r : rp_to_dtype(r, RP_F32);
}

/* Two or three tensors of a's sizes, a among them, perhaps twice. */
static rp_tensor *joined(uint64_t *s, rp_tensor *a, rp_tensor *const *pool, unsigned n) {
    if (rp_ndim(a) == 0) return rp_neg(a);
    rp_tensor *parts[3] = {a, a, a};
    unsigned first = below(s, 3), at = below(s, n);
    for (unsigned k = 0, p = (first + 1) % 3; k < n && p != first; k++) {
        rp_tensor *t = pool[(at + k) % n];
        if (!same_sizes(t, a) || (t == a && below(s, 2))) continue;
        parts[p] = t;
        p = (p + 1) % 3;
    }
    return rp_cat(parts, 2 + below(s, 2), (int64_t)below(s, (unsigned)rp_ndim(a)));
}

/* All of a read in parts along one dim: its gradient is put together from theirs. */
static rp_tensor *split(uint64_t *s, rp_tensor *a) {
    if (rp_ndim(a) == 0) return rp_sin(a);
    int64_t d = (int64_t)below(s, (unsigned)rp_ndim(a)), n = rp_size(a, d);
    if (n % 2 != 0 || n > 6) return rp_sin(a);
    if (below(s, 2)) return rp_mul(rp_sin(rp_slice(a, d, 0, n / 2, 1)), rp_relu(rp_slice(a, d, n / 2, n, 1)));
    rp_tensor *r = rp_tanh(rp_select(a, d, 0));
    for (int64_t k = 1; k < n; k++) {
        rp_tensor *part = rp_select(a, d, k);
        r = below(s, 2) ? rp_mul(r, rp_cos(part)) : rp_add(r, rp_neg(part));
    }
    return r;
}

/* ---- regions: functions whose results have the size and type of their first argument */

typedef struct block {
    uint64_t seed;
    rp_tensor *outside; /* read from outside: of the argument's size and type; may be NULL */
    bool draws;
} block;

static rp_tensor *mild(uint64_t *s, const block *b, rp_tensor *x) {
    unsigned n = 1 + below(s, 3);
    rp_tensor *r = x, *with = b->outside ? b->outside : x;
    for (unsigned k = 0; k < n; k++) {
        switch (below(s, 8)) {
        case 0: r = rp_sin(r); break;
        case 1: r = rp_tanh(rp_mul(r, with)); break;
        case 2: r = rp_add(r, rp_tanh(with)); break;
        case 3: r = rp_mul_scalar(r, rp_f64(-0.75)); break;
        case 4: r = rp_ndim(r) ? rp_softmax(r, -1) : rp_sigmoid(r); break;
        case 5: r = rp_mul(r, rp_sigmoid(x)); break;
        case 6: r = b->draws ? rp_dropout(r, 0.4, true) : rp_cos(r); break;
        default: r = rp_sub(rp_relu(r), rp_mul_scalar(with, rp_f64(0.5)));
        }
    }
    return r;
}

static void block_a(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const block *b = ctx;
    uint64_t s = b->seed;
    (void)n_in;
    for (size_t k = 0; k < n_out; k++) out[k] = mild(&s, b, in[k]);
}
static void block_b(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const block *b = ctx;
    uint64_t s = b->seed * 31 + 7;
    (void)n_in;
    for (size_t k = 0; k < n_out; k++) out[k] = mild(&s, b, in[k]);
}
static void is_small(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lt_scalar(rp_sum(rp_abs(in[0])), rp_f64(1.2 * (double)rp_numel(in[0])));
}
static void step_both(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) { /* states meet */
    rp_tensor *r[2];
    block_a(ctx, in, n_in, r, 2);
    (void)n_out;
    out[0] = rp_add(r[0], rp_mul_scalar(r[1], rp_f64(0.25)));
    out[1] = rp_tanh(r[0]);
}
static void branch_inside(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    block *b = ctx;
    (void)n_in, (void)n_out;
    rp_cond(rp_gt_scalar(rp_sum(in[0]), rp_f64(0)), (rp_fn){block_a, b, 0, "a"}, (rp_fn){block_b, b, 0, "b"}, in, 1,
            out, 1);
}

static rp_tensor *region(uint64_t *s, rp_tensor *a, rp_tensor *outside) {
    static block kept[256]; /* a checkpoint runs its function again in the backward */
    static unsigned n_kept;
    block *b = &kept[n_kept++ % 256];
    *b = (block){.seed = next(s) | 1, .outside = outside};
    rp_tensor *two[] = {a, rp_mul_scalar(a, rp_f64(0.5))}, *r[2] = {NULL, NULL};
    rp_fn x = {block_a, b, 0, "a"}, y = {block_b, b, 0, "b"}, go = {is_small, b, 0, "small"};
    rp_tensor *on = rp_gt_scalar(rp_sum(a), rp_f64(0));
    switch (below(s, 5)) {
    case 0: rp_cond(on, x, y, two, 1, r, 1); return r[0];
    case 1: rp_cond(on, y, x, two, 2, r, 2); return rp_add(r[0], r[1]);
    case 2:
        rp_while(go, (rp_fn){step_both, b, 0, "both"}, two, 2, 1 + (int64_t)below(s, 4), r);
        return rp_mul(r[0], r[1]);
    case 3: rp_while(go, (rp_fn){branch_inside, b, 0, "branch"}, two, 1, 3, r); return rp_sin(r[0]);
    default:
        b->draws = true;
        rp_checkpoint(x, two, 1, r, 1);
        return r[0];
    }
}

static rp_tensor **held; /* of the run */

/* No gradient goes into what outlives the program. */
static void write_held(uint64_t *s, rp_tensor *a) {
    rp_tensor *target = held[below(s, N_HELD)];
    bool grad = rp_set_grad_enabled(below(s, 2));
    if (below(s, 3) == 0 && rp_ndim(target)) target = rp_slice(target, 0, 1, 4, 1);
    rp_tensor *value = rp_mean(rp_to_dtype(rp_detach(a), RP_F32));
    switch (below(s, 4)) {
    case 0: (void)rp_mul_scalar_(target, rp_f64(0.75)); break;
    case 1: (void)rp_add_(target, value, RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.25))); break;
    case 2: (void)rp_copy_(target, value); break;
    default: (void)rp_fill_(target, rp_f64(0.5));
    }
    (void)rp_set_grad_enabled(grad);
}

static rp_tensor *written_buffer(uint64_t *s, rp_tensor *like, rp_tensor *a) {
    rp_tensor *made = below(s, 2) ? rp_clone(rp_detach(like)) : rp_zeros_like(rp_detach(like)), *part = view(s, made);
    rp_tensor *value = rp_to_dtype(rp_sum(rp_tanh(a)), rp_dtype_of(made));
    (void)rp_add_(part, value);
    return below(s, 3) ? part : below(s, 2) ? made : view(s, made);
}

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    program p = *(program *)ctx;
    uint64_t s = p.seed * 2654435761u + 88172645463325252u;
    rp_tensor *pool[POOL];
    bool own[POOL];
    unsigned n = 0;
    for (size_t k = 0; k < n_in; k++) {
        pool[n] = in[k];
        own[n++] = p.layout != APART && !p.training; /* what needs a gradient is no leaf to write */
    }
    for (size_t k = 0; k < N_HELD && p.holds; k++) {
        pool[n] = held[k];
        own[n++] = false;
    }
    const unsigned first = n;
    for (int step = 0; step < p.steps && !rp_failed(); step++) {
        unsigned i = below(&s, 3) ? n - 1 - below(&s, n < 4 ? n : 4) : below(&s, n), j = below(&s, n);
        rp_tensor *a = pool[i], *r = NULL;
        bool fresh = true;
        unsigned kind = below(&s, 20);
        if (p.holds && below(&s, 5) == 0) {
            write_held(&s, a);
            continue;
        }
        if (p.regions && below(&s, 4) == 0 && rp_dtype_of(a) == RP_F32 && rp_numel(a) <= 400) {
            unsigned tries = 0;
            for (; tries < n && (pool[j] == a || rp_dtype_of(pool[j]) != RP_F32 || !same_sizes(pool[j], a)); tries++)
                j = (j + 1) % n;
            r = region(&s, a, tries < n ? pool[j] : NULL);
        } else if (p.buffers && below(&s, 4) == 0 && is_float(a)) {
            r = written_buffer(&s, is_float(pool[j]) ? pool[j] : a, a);
        } else if (kind < 13) {
            r = some_op(&s, a, pool, n);
        } else if (kind < 16) {
            r = view(&s, a);
            fresh = false;
            own[n < POOL ? n : 0] = own[i];
        } else if (kind == 16) {
            r = rp_mul_scalar(rp_tanh(a), rp_f64(1.5));
        } else if (kind == 17) {
            static const rp_dtype types[] = {RP_F32, RP_F16, RP_BF16, RP_F64};
            r = rp_to_dtype(a, types[below(&s, 4)]);
        } else if (kind == 18) {
            r = rp_ndim(a) >= 2 && below(&s, 2) ? rp_matmul(a, rp_transpose(a, -1, -2))
                : below(&s, 2)                  ? joined(&s, a, pool, n)
                                                : split(&s, a);
        } else if (p.in_place && own[i]) {
            rp_tensor *target = below(&s, 2) ? a : view(&s, a);
            sample_apply_in_place(next(&s), below(&s, 4) || !rp_ndim(target) ? target : rp_select(target, 0, 0), pool,
                                  n);
            continue;
        } else {
            r = rp_dropout(a, 0.3, true);
        }
        if (rp_numel(r) > 4000 || rp_numel(r) == 0) continue;
        unsigned at = n < POOL ? n++ : first + below(&s, POOL - first);
        pool[at] = r;
        if (fresh)
            own[at] = r != a;
        else
            own[at] = own[i];
    }
    for (size_t k = 0; k < n_out; k++) out[k] = pool[n - 1 - k % n];
}

static rp_tensor *make(uint64_t *s, unsigned which, const int64_t shared[3]) {
    int64_t size[3] = {shared[0], shared[1], shared[2]};
    size_t ndim = 3;
    if (which == 1) size[below(s, 3)] = 1;
    int64_t *from = size;
    if (which == 2) {
        ndim = 1 + below(s, 2);
        from = size + 3 - ndim;
    }
    int64_t n = 1;
    for (size_t d = 0; d < ndim; d++) n *= from[d];
    float *data = malloc((size_t)n * sizeof *data);
    for (int64_t k = 0; k < n; k++) data[k] = (float)((int)below(s, 4001) - 2000) / 701.0f;
    rp_tensor *t = rp_from_data(data, from, ndim, RP_F32);
    free(data);
    return t;
}

static bool same_bits(rp_tensor *a, rp_tensor *b) {
    if (!a || !b) return a == b;
    if (rp_ndim(a) != rp_ndim(b) || rp_dtype_of(a) != rp_dtype_of(b) || rp_numel(a) != rp_numel(b)) return false;
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    bool same =
        rp_to_host(a, x, bytes) == RP_OK && rp_to_host(b, y, bytes) == RP_OK && fuzz_same(rp_dtype_of(a), x, y, bytes);
    free(x);
    free(y);
    return same;
}

/* A branch that did not run gives a gradient of zero, where eager execution gives none. nan: NaN of b is the same as any. */
static bool same_gradients(rp_tensor *a, rp_tensor *b, bool nan) {
    if (!a && !b) return true;
    if (!b || (a && rp_numel(a) != rp_numel(b))) return false;
    size_t n = (size_t)rp_numel(b);
    float *x = calloc(n + 1, sizeof *x), *y = calloc(n + 1, sizeof *y);
    bool same = (!a || rp_to_host(a, x, n * sizeof *x) == RP_OK) && rp_to_host(b, y, n * sizeof *y) == RP_OK;
    for (size_t k = 0; k < n && same; k++)
        same = x[k] == y[k] || (nan && isnan(y[k])) || fuzz_same(RP_F32, &x[k], &y[k], sizeof *x);
    free(x);
    free(y);
    return same;
}

typedef struct outcome {
    rp_tensor *out[N_OUT], *grad[N_IN];
} outcome;

static bool finish(program *p, rp_tensor **in, outcome *o) {
    if (rp_failed()) return false;
    rp_tensor *total = NULL;
    for (unsigned k = 0; k < N_OUT && p->training; k++) {
        /* An argument that is also a result gets a gradient from outside and one from inside: one node adds them up in another
           order than many. */
        if (!rp_requires_grad(o->out[k]) || rp_is_leaf(o->out[k])) continue;
        if (p->seed % 7 == 3 && k != p->seed / 7 % N_OUT) continue; /* a gradient for one result */
        rp_tensor *part = rp_sum(rp_to_dtype(rp_mul(o->out[k], o->out[k]), RP_F32));
        total = total ? rp_add(total, part) : part;
    }
    if (total && rp_backward(total, NULL, NULL) != RP_OK) return false;
    for (unsigned k = 0; k < N_IN; k++) o->grad[k] = rp_grad_of(in[k]);
    return !rp_failed();
}

static unsigned skipped, ran, interpreted;

/* The same values of the arguments as others, in memory that they share. */
static void share_memory(const program *p, uint64_t *s, rp_tensor **in) {
    enum { MOST = 5000 };
    rp_tensor *base =
        rp_sin(rp_arange(rp_i64(0), rp_i64(MOST), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)));
    int64_t at = 0;
    for (unsigned k = 0; k < N_IN; k++) {
        int64_t size[RP_MAX_DIMS];
        size_t ndim = rp_ndim(in[k]);
        for (size_t d = 0; d < ndim; d++) size[d] = rp_size(in[k], (int64_t)d);
        if (p->layout == EXPANDED) {
            in[k] = rp_expand(rp_slice(in[k], (int64_t)below(s, (unsigned)ndim), 0, 1, 1), size, ndim);
        } else if (at + rp_numel(in[k]) <= MOST) {
            if (p->layout == VIEWS)
                in[k] = rp_view(rp_slice(base, 0, at, at + rp_numel(in[k]), 1), size, ndim);
            else
                in[k] = rp_from_blob((float *)rp_data(base) + at, size, ndim, NULL, RP_F32, rp_default_device(), NULL,
                                     NULL);
            if (p->layout == STABLE) (void)rp_declare_stable(in[k]);
        }
        in[k] = rp_detach(in[k]);
        at += below(s, 3) ? 1 + below(s, 30) : 200;
    }
}

static void make_held(rp_tensor **out) {
    out[0] = rp_full(RP_NO_DIMS, rp_f64(0.75));
    out[1] = rp_cos(rp_arange(rp_i64(0), rp_i64(6), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)));
}

static void arguments(const program *p, rp_tensor **in) {
    static const int64_t choices[] = {1, 2, 4, 5, 6, 6, 7, 33};
    uint64_t s = p->seed * 77777 + 12345;
    int64_t shared[3];
    for (unsigned d = 0; d < 3; d++) shared[d] = choices[below(&s, 8)];
    for (unsigned k = 0; k < N_IN; k++) in[k] = make(&s, k, shared);
    if (p->layout != APART) share_memory(p, &s, in);
    for (unsigned k = 0; k < N_IN && p->training; k++) (void)rp_set_requires_grad(in[k], true);
}

static void print_graph(const program *p, rp_tensor **in) {
    (void)rp_error_take();
    rp_fn fn = {body, (void *)(uintptr_t)p, 0, "fuzz"};
    rp_ir *ir = rp_trace(fn, in, N_IN, N_OUT);
    rp__text t = {0};
    rp__ir_print(ir, false, &t);
    fputs(t.data ? t.data : "", stderr);
    rp__text_free(&t);
    rp_ir_release(ir);
    (void)rp_error_take();
}

static void print_kernels(rp__explain *e) {
    rp_explain_entry x;
    for (size_t k = 0; rp__explain_at(e, k, &x); k++) print_message("%s, %s: %s\n", x.of, x.kind, x.message);
}

static void print_values(rp_tensor *a, rp_tensor *b) {
    if (!a || !b) {
        print_message("eager %s, compiled %s\n", a ? "some" : "none", b ? "some" : "none");
        return;
    }
    a = rp_to_dtype(a, RP_F32);
    b = rp_to_dtype(b, RP_F32);
    int64_t n = rp_numel(a);
    float *x = malloc((size_t)n * sizeof *x + 1), *y = malloc((size_t)n * sizeof *y + 1);
    if (rp_to_host(a, x, (size_t)n * 4) == RP_OK && rp_to_host(b, y, (size_t)n * 4) == RP_OK) {
        for (int64_t k = 0; k < n && k < 8; k++) print_message("  %a %a\n", (double)x[k], (double)y[k]);
    }
    free(x);
    free(y);
}

/* A tensor that is several results is one to the caller of a compiled function, and gets one gradient. */
static void share_results(const outcome *eager, outcome *compiled) {
    for (unsigned k = 1; k < N_OUT; k++) {
        unsigned first = 0;
        while (eager->out[first] != eager->out[k]) first++;
        compiled->out[k] = compiled->out[first];
    }
}

/* That zero of a branch that did not run, times a derivative behind it that is not finite, is NaN. Is gradient k of the same graph, run node
   by node, just that? */
static bool nodes_give(program *p, const rp__trace_result *traced, const outcome *eager, rp_tensor *const *first_held,
                       unsigned k, rp_tensor *want) {
    rp_tensor *in[N_IN];
    outcome nodes = {0};
    rp__aot *aot = NULL;
    rp__explain *explain = rp__explain_new();
    rp__engine_request e = {.graph = traced->ir, .training = traced->training, .explain = explain};
    arguments(p, in);
    for (unsigned h = 0; h < N_HELD; h++) (void)rp_copy_(held[h], first_held[h]);
    rp_manual_seed(p->seed);
    bool same =
        rp__aot_compile(&rp__leaf_nodes, &e, &aot) == RP_OK && rp__aot_run(aot, in, N_IN, nodes.out, N_OUT) == RP_OK;
    share_results(eager, &nodes);
    same = same && finish(p, in, &nodes) && same_bits(nodes.grad[k], want);
    rp__aot_free(aot);
    rp__explain_free(explain);
    return same;
}

static void run_seed(uint64_t seed) {
    program p = {.seed = seed,
                 .steps = 4 + (int)(seed % 17),
                 .in_place = seed % 3 == 0,
                 .training = seed % 2 == 0,
                 .regions = seed % 5 == 1,
                 .holds = seed % 11 < 3,
                 .buffers = seed % 13 < 3};
    if (seed % 7 < 2) {
        p.layout = 1 + (int)(seed / 7 % (LAYOUTS - 1));
        p.in_place = true;
    }
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[N_IN], *in2[N_IN], *in3[N_IN];
    outcome eager = {0}, fused = {0};
    rp_tensor *held_by[2][N_HELD], *held_first[N_HELD];
    arguments(&p, in);
    arguments(&p, in2);
    arguments(&p, in3);
    make_held(held_first);
    for (int k = 0; k < 2; k++) make_held(held_by[k]);
    rp_manual_seed(seed);
    held = held_by[0];
    body(&p, in, N_IN, eager.out, N_OUT);
    if (!finish(&p, in, &eager)) { /* a program that eager refuses: a write to what the backward needs */
        (void)rp_error_take();
        skipped++;
        rp_scope_end(scope, NULL, 0);
        return;
    }
    rp__trace_request request = {
        .mode = RP__TRACE_ABSTRACT, .fn = {body, &p, 0, "fuzz"}, .in = in2, .n_in = N_IN, .n_out = N_OUT};
    rp__trace_result traced;
    rp__aot *aot = NULL;
    rp__explain *explain = rp__explain_new();
    rp_explain_entry row;
    assert_non_null(explain);
    held = held_by[1];
    rp_status status = rp__trace_run(&request, NULL, &traced);
    if (status == RP_OK) {
        rp__engine_request e = {.graph = traced.ir, .training = traced.training, .explain = explain};
        status = rp__aot_compile(getenv("REPRISE_FUZZ_INTERPRET") ? &rp__leaf_nodes : &rp__leaf_fused, &e, &aot);
    }
    for (unsigned round = 0; round < 2 && status == RP_OK; round++) { /* the second re-uses memory or is re-pointed */
        rp_tensor **use = round ? in3 : in2;
        rp_manual_seed(seed);
        memset(&fused, 0, sizeof fused);
        for (unsigned k = 0; k < N_HELD; k++) (void)rp_copy_(held_by[1][k], held_first[k]);
        status = rp__aot_run(aot, use, N_IN, fused.out, N_OUT);
        if (status == RP_OK) share_results(&eager, &fused);
        if (status != RP_OK || !finish(&p, use, &fused)) break;
        for (unsigned k = 0; k < N_OUT; k++) {
            bool strides = rp_ndim(eager.out[k]) == rp_ndim(fused.out[k]);
            for (size_t d = 0; strides && d < rp_ndim(eager.out[k]); d++) {
                strides = p.buffers || rp_size(eager.out[k], (int64_t)d) < 2 ||
                          rp_stride(eager.out[k], (int64_t)d) == rp_stride(fused.out[k], (int64_t)d);
            }
            if (strides && same_bits(eager.out[k], fused.out[k])) continue;
            print_graph(&p, in2);
            print_kernels(explain);
            print_values(eager.out[k], fused.out[k]);
            fail_msg("seed %llu, round %u: result %u differs", (unsigned long long)seed, round, k);
        }
        for (unsigned k = 0; k < N_IN + N_HELD; k++) {
            bool argument = k < N_IN;
            if (argument ? same_bits(in[k], use[k]) : same_bits(held_by[0][k - N_IN], held_by[1][k - N_IN])) continue;
            print_graph(&p, in2);
            fail_msg("seed %llu, round %u: %s %u is left otherwise", (unsigned long long)seed, round,
                     argument ? "argument" : "buffer", argument ? k : k - N_IN);
        }
        for (unsigned k = 0; k < N_IN; k++) {
            if (same_bits(eager.grad[k], fused.grad[k])) continue;
            if (p.regions && same_gradients(eager.grad[k], fused.grad[k], false)) continue;
            if (p.regions && same_gradients(eager.grad[k], fused.grad[k], true) &&
                nodes_give(&p, &traced, &eager, held_first, k, fused.grad[k]))
                continue;
            print_graph(&p, in2);
            print_kernels(explain);
            print_values(eager.grad[k], fused.grad[k]);
            fail_msg("seed %llu, round %u: gradient %u differs", (unsigned long long)seed, round, k);
        }
    }
    if (rp_failed()) {
        char text[1024];
        snprintf(text, sizeof text, "%s", rp_error_message());
        print_graph(&p, in2);
        fail_msg("seed %llu: %s", (unsigned long long)seed, text);
    }
    ran++;
    for (size_t k = 0; rp__explain_at(explain, k, &row); k++) {
        if (strcmp(row.kind, "skip") != 0) continue;
        interpreted++;
        if (getenv("REPRISE_FUZZ_SKIPS")) print_message("seed %llu: %s\n", (unsigned long long)seed, row.message);
    }
    rp__aot_free(aot);
    rp__trace_result_free(&traced);
    rp__explain_free(explain);
    rp_scope_end(scope, NULL, 0);
}

static void test_fuzz(void **state) {
    (void)state;
    fuzz_seeds f = fuzz_begin(rp_default_device().type == RP_DEVICE_CPU ? 8000 : 20);
    for (uint64_t seed; fuzz_next(&f, &seed);) run_seed(seed);
    print_message("%llu programs: %u compared, %u refused by eager, %u run node by node\n", (unsigned long long)f.ran,
                  ran, skipped, interpreted);
    if (f.ran >= 20) assert_true(ran > f.ran / 2 && interpreted < ran / 4);
}

int main(void) {
    if (!test_device_choose()) return 1;
    (void)rp_set_deterministic(true);            /* CUDA adds by atomics in an order that is drawn */
    rp__column_least = rp__column_row_least = 1; /* sizes here are small */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fuzz)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
