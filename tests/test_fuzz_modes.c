/* Random functions that do what surrounds ops: they switch grad mode, take errors and go on, write to tensors from outside,
   differentiate what they have made, and call rp_cond, rp_while and rp_checkpoint with functions that do the same. Each is
   called in turn with grad mode on and off, with tensors that have no value among its arguments, and with an allocation that
   fails: compiled it gives the bits, the histories, the grad mode and the state of tensors from outside of eager execution.
   support/fuzz.h says which seeds run.
   ctest: labels=compile timeout=900 cost=35 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "core/alloc.h"
#include "support/cuda.h"
#include "support/fuzz.h"
#include "trace/trace.h"

enum { N_IN = 2, N_OUT = 3, STEPS = 9, VALUES = N_IN + 2 + STEPS, BLOCK_STEPS = 3, CALLS = 5, BACKENDS = 3, DEPTH = 2 };
static const char *const backends[BACKENDS] = {"aot_eager", "cudagraphs", "fused"};

typedef struct step {
    unsigned kind, a, b, p;
} step;

typedef struct function {
    uint64_t seed;
    unsigned n, out[N_OUT];
    bool needs[N_IN], leaves_mode, raw, regions;
    step steps[STEPS];
} function;

/* What a function reaches by itself; eager and compiled have one each. */
typedef struct world {
    const function *f;
    rp_tensor *w, *sum; /* a parameter; a plain tensor that is written */
    bool quiet;         /* it is not */
} world;

static uint64_t below_state;
static unsigned below(unsigned n) {
    uint64_t *s = &below_state;
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (unsigned)(*s >> 20) % n;
}
static void seed_from(uint64_t seed) {
    below_state = seed * 2654435761u + 88172645463325252u;
    for (int k = 0; k < 4; k++) (void)below(2);
}

static rp_tensor *total(rp_tensor *t) { return rp_sum(t); }

/* ---- ops, all from (3, 4) to (3, 4) */

static rp_tensor *pointwise(unsigned p, rp_tensor *a, rp_tensor *b) {
    switch (p % 9) {
    case 0: return rp_sin(a);
    case 1: return rp_tanh(rp_mul(a, b));
    case 2: return rp_add(a, rp_cos(b));
    case 3: return rp_mul(a, rp_sigmoid(b));
    case 4: return rp_softmax(a, p % 2);
    case 5: return rp_sub(a, rp_mean(b, RP_DIMS(p % 2), true));
    case 6: return rp_maximum(a, b);
    case 7: return rp_relu(rp_sub(a, b, RP_OPTIONS(rp_sub_options, .alpha = rp_f64(0.5))));
    default: return rp_mul_scalar(a, rp_f64(0.75));
    }
}

/* An op that is refused; what the function then does. */
static rp_tensor *refused_op(unsigned p, rp_tensor *a, rp_tensor *own) {
    rp_tensor *wrong = rp_ones(RP_DIMS(5, 2)), *r;
    switch (p % 4) {
    case 0: r = rp_matmul(a, wrong); break;
    case 1: r = rp_copy_(own ? own : rp_clone(a), wrong); break;
    case 2: r = rp_view(a, RP_DIMS(7)); break;
    default: r = rp_add(a, wrong);
    }
    if (!rp_is_error(r)) return r;
    (void)rp_error_take();
    return rp_neg(a);
}

/* ---- regions */

typedef struct block {
    const world *w;
    uint64_t seed;
    unsigned depth;
    bool again; /* runs again in a backward, and what it writes would be written again */
} block;

enum { KEPT = 4096 };
static block kept[KEPT]; /* a checkpoint runs its function again in the backward */
static unsigned n_kept;

static rp_tensor *region(const block *around, uint64_t seed, unsigned kind, rp_tensor *a, rp_tensor *b);

/* Draws from a state of its own: blocks run while functions are drawn, and again later. */
static unsigned drawn(uint64_t *s, unsigned n) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (unsigned)(*s >> 20) % n;
}

static void block_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const block *q = ctx;
    uint64_t s = q->seed | 1;
    rp_tensor *x = in[0], *y = n_in > 1 ? in[1] : q->w->w;
    for (unsigned k = 0, n = 1 + drawn(&s, BLOCK_STEPS); k < n && !rp_failed(); k++) {
        unsigned kind = drawn(&s, 24), p = drawn(&s, 1000);
        bool old = rp_grad_enabled();
        switch (kind) {
        case 0:
        case 1:
        case 2: /* a part with grad mode off, or on */
            (void)rp_set_grad_enabled(kind == 2);
            x = pointwise(p, x, y);
            (void)rp_set_grad_enabled(old);
            break;
        case 3: x = refused_op(p, x, NULL); break;
        case 4: /* memory from outside */
            if (drawn(&s, 3) == 0 && !q->again && !q->w->quiet) {
                rp_tensor *part = rp_select(q->w->sum, 0, 1);
                (void)rp_set_grad_enabled(false);
                rp_add_scalar_(part, rp_f64(0.125));
                (void)rp_set_grad_enabled(old);
                (void)rp_error_take();
            }
            break;
        case 5: /* a number for the host */
            if (drawn(&s, 3) == 0) x = rp_item_f64(total(x)) > 1 ? rp_mul_scalar(x, rp_f64(0.5)) : rp_cos(x);
            break;
        case 6:
            if (q->depth < DEPTH) x = region(q, s, p, x, y);
            break;
        case 7: x = pointwise(p, x, q->w->w); break;
        case 8:
            x = rp_mul(x, y);
            rp_tanh_(p % 2 ? x : rp_select(x, 0, 0));
            break;
        case 9: x = rp_detach(x); break;
        default: x = pointwise(p, x, y);
        }
    }
    for (size_t k = 0; k < n_out; k++) out[k] = k ? rp_tanh(in[k]) : x;
}
static void turns_left(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lt_scalar(total(rp_abs(in[0])), rp_f64(8));
}

static rp_tensor *region(const block *around, uint64_t seed, unsigned kind, rp_tensor *a, rp_tensor *b) {
    block *x = &kept[n_kept++ % KEPT], *y = &kept[n_kept++ % KEPT];
    *x = (block){around->w, seed * 31 + 7, around->depth + 1, around->again || kind % 4 > 1};
    *y = *x;
    y->seed = seed * 17 + 3;
    rp_tensor *in[] = {a, b}, *r[2] = {NULL, NULL};
    rp_fn f = {block_body, x, 0, "block"}, g = {block_body, y, 0, "other block"};
    switch (kind % 4) {
    case 0: rp_cond(rp_gt_scalar(total(a), rp_f64(1)), f, g, in, 2, r, 1); break;
    case 1: rp_while((rp_fn){turns_left, x, 0, "turns"}, f, in, 2, 3, r); break;
    default: rp_checkpoint(f, in, 2, r, 1);
    }
    return r[0];
}

/* ---- functions */

enum {
    POINTWISE = 10,
    VIEW = POINTWISE,
    DETACH,
    QUIETLY,
    LOUDLY,
    SWITCH,
    REFUSED,
    REGION,
    QUIET_REGION,
    INNER_GRAD,
    IN_PLACE,
    TO_OUTSIDE,
    DROPOUT,
    MORE_REGION,
    KINDS
};

static rp_tensor *inner_gradient(const function *f, unsigned p, rp_tensor *a) {
    if (f->regions) { /* whether their results require a gradient is no question to ask */
        a = rp_detach(a);
        (void)rp_set_requires_grad(a, true);
    }
    bool old = rp_set_grad_enabled(f->regions || rp_grad_enabled());
    rp_tensor *h = p % 3 ? rp_mul(a, rp_sin(a)) : a, *sum = total(rp_mul(rp_sin(h), h)), *g = NULL;
    (void)rp_set_grad_enabled(old);
    if (!rp_requires_grad(sum) || !rp_requires_grad(h)) return rp_neg(a);
    /* Without retain_graph: what lies between h and the sum is used by nobody else. */
    (void)rp_grad(&sum, 1, &h, 1, NULL, p % 2 ? NULL : RP_OPTIONS(rp_backward_options, .create_graph = true), &g);
    rp_tensor *r = p % 5 && g ? rp_mul(g, h) : h;
    return f->regions ? rp_detach(r) : r;
}

static rp_tensor *take(const world *w, const step *s, rp_tensor *const *value, bool *own, unsigned at) {
    rp_tensor *a = value[s->a], *b = value[s->b], *r = NULL;
    bool old = rp_grad_enabled();
    own[at] = false;
    switch (s->kind) {
    case VIEW: own[at] = own[s->a]; return rp_transpose(rp_transpose(a, 0, 1), 0, 1);
    case DETACH: return rp_detach(a);
    case QUIETLY:
    case LOUDLY:
        (void)rp_set_grad_enabled(s->kind == LOUDLY);
        r = pointwise(s->p, a, b);
        (void)rp_set_grad_enabled(old);
        own[at] = true;
        return r;
    case SWITCH: (void)rp_set_grad_enabled(!old); return a;
    case REFUSED: return refused_op(s->p, a, own[s->a] ? a : NULL);
    case REGION:
    case MORE_REGION: return region(&(block){.w = w}, w->f->seed + s->p, s->p, a, b);
    case QUIET_REGION:
        (void)rp_set_grad_enabled(false);
        r = region(&(block){.w = w}, w->f->seed + s->p, s->p, a, b);
        (void)rp_set_grad_enabled(old);
        return r;
    case INNER_GRAD: return inner_gradient(w->f, s->p, a);
    case IN_PLACE:
        if (!own[s->a]) return rp_exp(rp_tanh(a));
        switch (s->p % 4) {
        case 0: return rp_tanh_(a);
        case 1: return rp_mul_(a, b);
        case 2: (void)rp_mul_(rp_select(a, 0, 1), rp_select(b, 0, 0)); return a;
        default: (void)rp_fill_(rp_slice(a, 1, 1, 3, 1), rp_f64(0.5)); return a;
        }
    case TO_OUTSIDE:
        if (s->p % 4 == 0) (void)rp_set_grad_enabled(false);
        if (s->p % 3)
            (void)rp_add_(w->sum, s->p % 2 ? rp_detach(a) : a);
        else
            (void)rp_mul_(rp_select(w->sum, 0, 0), rp_select(s->p % 2 ? rp_detach(a) : a, 0, 2));
        (void)rp_set_grad_enabled(old);
        return w->sum;
    case DROPOUT: own[at] = true; return rp_dropout(a, 0.3, true);
    default: own[at] = true; return pointwise(s->p, a, b);
    }
}

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const world *w = ctx;
    const function *f = w->f;
    rp_tensor *value[VALUES];
    bool own[VALUES] = {false}, mode = rp_grad_enabled();
    unsigned n = 0;
    for (size_t k = 0; k < n_in; k++) value[n++] = in[k];
    value[n++] = w->w;
    value[n++] = w->sum;
    for (unsigned k = 0; k < f->n && !rp_failed(); k++, n++) value[n] = take(w, &f->steps[k], value, own, n);
    if (!f->leaves_mode) (void)rp_set_grad_enabled(mode);
    for (size_t k = 0; k < n_out && !rp_failed(); k++)
        out[k] = f->raw && own[f->out[k]] ? value[f->out[k]] : rp_mul_scalar(value[f->out[k]], rp_f64(0.5));
}

static void draw(function *f, uint64_t seed) {
    seed_from(seed);
    *f = (function){.seed = seed, .leaves_mode = below(6) == 0, .raw = below(2)};
    f->n = 2 + below(STEPS - 1);
    for (unsigned k = 0; k < N_IN; k++) f->needs[k] = below(3) != 0;
    /* Some kinds are rare in each function, so that not every one of them is split up and run piece by piece. */
    bool writes = below(4) == 0;
    f->regions = below(3) != 0;
    for (unsigned k = 0; k < f->n; k++) {
        unsigned n = N_IN + 2 + k, kind;
        do kind = below(KINDS);
        while ((kind == TO_OUTSIDE && !writes) ||
               (!f->regions && (kind == REGION || kind == QUIET_REGION || kind == MORE_REGION)));
        f->steps[k] = (step){kind, below(2) && k ? n - 1 : below(writes ? n : n - 1 ? n : 1), below(n), below(1000)};
    }
    for (unsigned k = 0; k < N_OUT; k++) f->out[k] = N_IN + 1 + f->n - below(f->n < 4 ? f->n : 4);
}

/* ---- one call, and what can be seen of it */

static rp_tensor *numbers(double from) {
    rp_tensor *t = rp_add_scalar(
        rp_arange(rp_i64(0), rp_i64(12), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)), rp_f64(from));
    return rp_detach(rp_reshape(rp_sin(rp_mul_scalar(t, rp_f64(1.3))), RP_DIMS(3, 4)));
}

static world new_world(const function *f) {
    bool old = rp_set_grad_enabled(true);
    world w = {f, numbers(0.25), numbers(0.5), false};
    (void)rp_set_requires_grad(w.w, true);
    (void)rp_set_grad_enabled(old);
    return w;
}

typedef struct seen {
    rp_status status, backward;
    rp_tensor *out[N_OUT], *grad[N_IN + 1];
    bool mode;
    char error[300];
} seen;

/* The allocation of the library's calls below that is denied, 0: none; how many they made. */
static uint64_t fault, allocations;
static uint64_t fault_begin(void) { return rp__alloc_fail_at(fault > allocations ? fault - allocations : 0); }
static void fault_end(uint64_t before) { allocations += rp__alloc_fail_at(0) - before; }

static void call(rp_compiled *c, const world *w, unsigned number, bool mode, seen *r) {
    *r = (seen){.status = RP_OK};
    rp_tensor *in[N_IN], *roots[N_OUT], *seeds[N_OUT], *leaves[N_IN + 1], *grads[N_IN + 1];
    size_t n_roots = 0, n = 0;
    for (unsigned k = 0; k < N_IN; k++) {
        in[k] = numbers(number + 2.0 * k);
        if (w->f->needs[k]) (void)rp_set_requires_grad(in[k], true);
    }
    assert_int_equal(rp_manual_seed(number), RP_OK);
    (void)rp_set_grad_enabled(mode);
    allocations = 0;
    uint64_t before = fault_begin();
    r->status = rp_call(c, in, N_IN, r->out, N_OUT);
    fault_end(before);
    r->mode = rp_set_grad_enabled(true);
    snprintf(r->error, sizeof r->error, "%s", rp_error_message());
    (void)rp_error_take();
    if (r->status != RP_OK) return;
    for (unsigned k = 0; k < N_OUT; k++) {
        bool again = !rp_requires_grad(r->out[k]) || rp_is_leaf(r->out[k]);
        for (unsigned j = 0; j < k && !again; j++) again = r->out[j] == r->out[k];
        if (again) continue;
        seeds[n_roots] = rp_cos(rp_detach(r->out[k]));
        roots[n_roots++] = r->out[k];
    }
    for (unsigned k = 0; k < N_IN; k++)
        if (w->f->needs[k]) leaves[n++] = in[k];
    leaves[n++] = w->w;
    before = fault_begin();
    if (n_roots)
        r->backward = rp_grad(roots, n_roots, leaves, n, seeds,
                              RP_OPTIONS(rp_backward_options, .allow_unused = true, .retain_graph = true), grads);
    fault_end(before);
    if (n_roots && r->backward == RP_OK)
        for (unsigned k = 0, at = 0; k <= N_IN; k++) r->grad[k] = k == N_IN || w->f->needs[k] ? grads[at++] : NULL;
    (void)rp_error_take();
}

static bool same(rp_tensor *a, rp_tensor *b) {
    float x[12], y[12];
    if (!a || !b) return a == b;
    if (rp_numel(a) != rp_numel(b) || rp_numel(a) > 12) return false;
    size_t bytes = (size_t)rp_numel(a) * sizeof *x;
    return rp_to_host(a, x, bytes) == RP_OK && rp_to_host(b, y, bytes) == RP_OK && memcmp(x, y, bytes) == 0;
}

/* A branch that did not run gives a gradient of zero, where eager execution gives none; a loop has one sum a place
   (docs/deviations.md). */
static bool same_gradient(const function *f, rp_tensor *want, rp_tensor *got) {
    float x[12] = {0}, y[12];
    if (!f->regions) return same(want, got);
    if (!got) return !want;
    if (rp_numel(got) > 12 || (want && rp_numel(want) != rp_numel(got))) return false;
    size_t n = (size_t)rp_numel(got);
    if (rp_to_host(got, y, n * sizeof *y) != RP_OK) return false;
    if (want && rp_to_host(want, x, n * sizeof *x) != RP_OK) return false;
    for (size_t k = 0; k < n; k++)
        if (!(fabsf(x[k] - y[k]) <= 1e-5f * (1 + fabsf(x[k]))) && memcmp(&x[k], &y[k], sizeof *x) != 0) return false;
    return true;
}

static unsigned compared, refused, unlike_backward, whole;

/* A result of a branch or loop requires a gradient if it could (docs/compile.md). */
static bool same_wish(const world *w, const rp_tensor *want, const rp_tensor *got) {
    if (rp_requires_grad(want) == rp_requires_grad(got)) return true;
    return w->f->regions && rp_requires_grad(got);
}

static const char *difference(const world *w, const world *v, const seen *want, const seen *got) {
    if (got->status != RP_OK) return "status";
    for (unsigned k = 0; k < N_OUT; k++) {
        if (!same(want->out[k], got->out[k])) return "a result";
        if (!same_wish(w, want->out[k], got->out[k])) return "whether a result requires a gradient";
    }
    if (!same(w->sum, v->sum)) return "a tensor from outside";
    if (!same_wish(w, w->sum, v->sum)) return "whether a tensor from outside requires a gradient";
    if (want->mode != got->mode) return "grad mode";
    /* What eager execution refuses because a value was overwritten, the functional form can have kept. */
    if (want->backward == RP_ERROR_VERSION || got->backward == RP_ERROR_VERSION) {
        unlike_backward++;
        return NULL;
    }
    if (want->backward != got->backward) return "the status of the backward";
    for (unsigned k = 0; k <= N_IN; k++)
        if (!same_gradient(w->f, want->grad[k], got->grad[k])) return "a gradient";
    return NULL;
}

/* A tensor that has outlived its trace. */
static void keeps(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = rp_sin(in[0]);
    *(rp_tensor **)ctx = rp_retain(out[0]);
}
static rp_tensor *orphan(void) {
    rp_tensor *x = numbers(1), *r = NULL;
    rp_ir_release(rp_trace((rp_fn){keeps, &r, 0, "keeps"}, &x, 1, 1));
    return r;
}

static void call_with_orphan(rp_compiled *c) {
    rp_tensor *r = orphan(), *in[N_IN] = {r, numbers(2)}, *out[N_OUT];
    assert_int_equal(rp_call(c, in, N_IN, out, N_OUT), RP_ERROR_STATE);
    assert_true(rp_is_error(out[0]));
    (void)rp_error_take();
    rp_release(r);
}

static void show(const function *f, const seen *want, const seen *got) {
    static const char *const names[KINDS - POINTWISE] = {
        "view",         "detach",     "quietly",  "loudly",     "switch",  "refused", "region",
        "quiet region", "inner grad", "in place", "to outside", "dropout", "region"};
    print_message("seed %llu%s%s, needs %d %d\n", (unsigned long long)f->seed, f->leaves_mode ? ", leaves mode" : "",
                  f->raw ? ", raw" : "", f->needs[0], f->needs[1]);
    for (unsigned k = 0; k < f->n; k++) {
        const step *s = &f->steps[k];
        print_message("  %u = %s(%u, %u) %u\n", N_IN + 2 + k,
                      s->kind < POINTWISE ? "pointwise" : names[s->kind - POINTWISE], s->a, s->b, s->p);
    }
    for (unsigned k = 0; k < N_OUT; k++) {
        char x[200] = "none", y[200] = "none";
        if (want->out[k]) (void)rp_format(want->out[k], x, sizeof x);
        if (got->out[k]) (void)rp_format(got->out[k], y, sizeof y);
        print_message("  result %u: requires gradient %d %d, %s\n    %s\n", f->out[k], rp_requires_grad(want->out[k]),
                      rp_requires_grad(got->out[k]), x, y);
    }
    print_message("  %s\n  backward %s, %s\n", got->error, rp_status_name(want->backward),
                  rp_status_name(got->backward));
}

static void run_seed(uint64_t seed) {
    function f;
    draw(&f, seed);
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        world w = new_world(&f), v = new_world(&f);
        rp_fn fn = {body, &w, sizeof w, "fuzz"};
        rp_compiled *plain = rp_plain(fn);
        fn.ctx = &v;
        rp_compiled *c =
            rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .no_graph = seed % 3 == 0));
        for (unsigned k = 0; k < CALLS; k++) {
            seen want, got;
            bool mode = seed % 4 != 0 || k % 2;
            call(plain, &w, k, mode, &want);
            if (seed % 7 == 0 && k % 2) call_with_orphan(c);
            call(c, &v, k, mode, &got);
            if (want.status !=
                RP_OK) { /* a write that autograd refuses: so it is compiled; what was done before it may differ */
                refused++;
                if (got.status == RP_OK)
                    fail_msg("seed %llu, %s: call %u succeeds", (unsigned long long)seed, backends[b], k);
                break;
            }
            const char *what = difference(&w, &v, &want, &got);
            if (what) show(&f, &want, &got);
            if (what) fail_msg("seed %llu, %s: call %u: %s differs", (unsigned long long)seed, backends[b], k, what);
            compared++;
        }
        bool split = false;
        for (size_t k = 0; k < rp_explain_count(c); k++) {
            rp_explain_entry e;
            assert_int_equal(rp_explain_get(c, k, &e), RP_OK);
            split = split || strcmp(e.kind, "break") == 0 || strcmp(e.kind, "skip") == 0;
        }
        whole += !split;
        (void)rp_set_grad(w.w, NULL);
        (void)rp_set_grad(v.w, NULL);
        rp_compiled_release(c);
        rp_compiled_release(plain);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        assert_null(rp__trace_current());
    }
}

/* ---- an allocation that fails, anywhere in a call and its backward */

enum { FAULT_CALLS = 4 };
#define NEVER (UINT64_C(1) << 60) /* counts only */

static unsigned injected, told_of;

/* Four calls, the n-th allocation of call `at` denied. The number of allocations of that call. */
static uint64_t calls_with_fault(const world *w, const char *backend, unsigned at, uint64_t n, const seen *want) {
    rp_scope scope = rp_scope_begin();
    rp_fn fn = {body, (void *)(uintptr_t)w, sizeof *w, "fuzz"};
    rp_compiled *c = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backend));
    uint64_t count = 0;
    for (unsigned k = 0; k < FAULT_CALLS; k++) {
        seen got;
        fault = k == at ? n : 0;
        call(c, w, k, true, &got);
        fault = 0;
        if (k == at) count = allocations;
        (void)rp_set_grad_enabled(true);
        assert_null(rp__trace_current());
        if (k == at && n != NEVER) { /* what it gives, if it succeeds, may be what the function made of the error */
            bool told =
                (got.status == RP_OK || got.status == RP_ERROR_OUT_OF_MEMORY) &&
                (got.backward == RP_OK || got.backward == RP_ERROR_OUT_OF_MEMORY || got.backward == want[k].backward);
            if (!told) {
                show(w->f, &want[k], &got);
                fail_msg("seed %llu, %s: allocation %llu of call %u: status %s, backward %s",
                         (unsigned long long)w->f->seed, backend, (unsigned long long)n, at, rp_status_name(got.status),
                         rp_status_name(got.backward));
            }
            injected++;
            told_of += got.status != RP_OK || got.backward != RP_OK;
            continue;
        }
        const char *what = difference(w, w, &want[k], &got);
        if (what) {
            show(w->f, &want[k], &got);
            fail_msg("seed %llu, %s: allocation %llu of call %u: %s of call %u differs", (unsigned long long)w->f->seed,
                     backend, (unsigned long long)n, at, what, k);
        }
    }
    rp_compiled_release(c);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    return count;
}

static void faults_of_seed(uint64_t seed) {
    function f;
    draw(&f, seed);
    for (unsigned k = 0; k < f.n; k++)
        if (f.steps[k].kind == TO_OUTSIDE || f.steps[k].kind == DROPOUT) f.steps[k].kind = POINTWISE - 1;
    rp_scope scope = rp_scope_begin();
    world w = new_world(&f);
    w.quiet = true;
    rp_compiled *plain = rp_plain((rp_fn){body, &w, sizeof w, "fuzz"});
    seen want[FAULT_CALLS];
    bool fine = true;
    for (unsigned k = 0; k < FAULT_CALLS && fine; k++) {
        call(plain, &w, k, true, &want[k]);
        fine = want[k].status == RP_OK;
    }
    rp_compiled_release(plain);
    for (int b = 0; b < BACKENDS && fine; b++) {
        for (unsigned at = 0; at < 3; at++) {
            (void)calls_with_fault(&w, backends[b], at, NEVER, want);
            uint64_t live = rp__alloc_live(), count = calls_with_fault(&w, backends[b], at, NEVER, want);
            assert_true(count > 0);
            for (uint64_t n = 1 + seed % 7; n <= count; n += 1 + n / 3) {
                (void)calls_with_fault(&w, backends[b], at, n, want);
                if (rp__alloc_live() > live + 16) { /* a cache that a fault left smaller grows again */
                    (void)calls_with_fault(&w, backends[b], at, n, want);
                    (void)calls_with_fault(&w, backends[b], at, n, want);
                    uint64_t then = rp__alloc_live();
                    for (int k = 0; k < 4; k++) (void)calls_with_fault(&w, backends[b], at, n, want);
                    if (rp__alloc_live() >= then + 4)
                        fail_msg("seed %llu, %s: allocation %llu of call %u leaks", (unsigned long long)seed,
                                 backends[b], (unsigned long long)n, at);
                    live = rp__alloc_live();
                }
            }
        }
    }
    (void)rp_set_grad(w.w, NULL);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static void test_faults(void **state) {
    (void)state;
    if (rp_default_device().type != RP_DEVICE_CPU) skip();
    fuzz_seeds f = fuzz_begin(60);
    for (uint64_t seed; fuzz_next(&f, &seed);) faults_of_seed(seed);
    print_message("%u allocations denied, %u calls failed for it\n", injected, told_of);
    if (f.ran >= 20) assert_true(told_of > injected / 2);
}

static void test_modes(void **state) {
    (void)state;
    fuzz_seeds f = fuzz_begin(rp_default_device().type == RP_DEVICE_CPU ? 1500 : 20);
    for (uint64_t seed; fuzz_next(&f, &seed);) run_seed(seed);
    print_message("%u calls compared, %u functions refused by eager, %u backwards not compared, %u functions whole\n",
                  compared, refused, unlike_backward, whole);
    if (f.ran >= 20) assert_true(compared > 10 * refused);
}

int main(void) {
    if (!test_device_choose()) return 1;
    (void)rp_set_deterministic(true); /* CUDA adds by atomics in an order that is drawn */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_modes), cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
