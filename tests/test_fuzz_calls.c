/* Random functions, each called several times with other sizes, layouts, aliases and wishes for gradients: a compiled function gives the bits
   of eager execution in every call, forward and backward, and leaves arguments, buffers and generators as it does. Arguments may be one
   tensor, overlapping views of one, wrapped handles of one buffer, or expanded; buffers that the function reaches by itself are
   written in training, too. So does a graphed callable, wherever its arguments lie. What a function does is drawn from its seed
   alone, never from sizes. support/fuzz.h says which seeds run.
   ctest: labels=compile timeout=300 cost=55 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "samples/samples.h"
#include "support/cuda.h"
#include "support/fuzz.h"

enum {
    N_IN = 3,
    N_OUT = 3,
    N_HELD = 2, /* buffers: the values behind the arguments */
    FIRST = N_IN + N_HELD,
    STEPS = 12,
    VALUES = FIRST + STEPS,
    CALLS = 9,
    BACKENDS = 3
};
static const char *const backends[BACKENDS] = {"aot_eager", "cudagraphs", "fused"};

typedef struct step {
    unsigned kind, a, b, p, q;
} step;
typedef struct function {
    uint64_t seed;
    unsigned n, ndim[N_IN], letter[N_IN][3], out[N_OUT];
    rp_dtype dtype[N_IN];
    bool needs[N_IN], writes, holds, as_is[N_OUT]; /* as_is: a result is the value itself, perhaps a view */
    step steps[STEPS];
} function;

static uint64_t state_of_seed;
static unsigned below(unsigned n) {
    uint64_t *s = &state_of_seed;
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (unsigned)(*s >> 20) % n;
}
static void seed_from(uint64_t seed) {
    state_of_seed = seed * 2654435761u + 88172645463325252u;
    for (int k = 0; k < 4; k++) (void)below(2);
}

static rp_tensor *view(const step *s, rp_tensor *a, rp_tensor *b) {
    int64_t n = (int64_t)rp_ndim(a), dim = n ? (int64_t)s->p % n : 0, size[RP_MAX_DIMS] = {-1};
    switch (s->q % 9) {
    case 0: return rp_reshape(a, size, 1);
    case 1: size[0] = rp_size(b, 0), size[1] = -1; return rp_reshape(a, size, 2);
    case 2: return rp_transpose(a, dim, -1);
    case 3: return rp_slice(a, dim, s->p % 3 ? 1 : INT64_MIN, s->p % 2 ? -1 : INT64_MAX, 1 + s->p % 2);
    case 4: return rp_select(a, dim, s->p % 2 ? -1 : 0);
    case 5: return rp_unsqueeze(a, dim);
    case 6: return rp_squeeze(a, dim);
    case 7: return rp_detach(a);
    default:
        size[0] = s->p % 2 ? 2 : rp_size(b, 0);
        for (int64_t d = 0; d < n; d++) size[d + 1] = rp_size(a, d);
        return rp_expand(a, size, (size_t)n + 1);
    }
}

static uint64_t drawn_for(const step *s) { return (uint64_t)(s->p * 90 + s->q) * UINT64_C(0x9e3779b97f4a7c15) >> 8; }

static rp_tensor *written(const step *s, rp_tensor *a, rp_tensor *b) {
    sample_apply_in_place(drawn_for(s), a, (rp_tensor *const[]){b}, 1);
    return a;
}

static rp_tensor *computed(const step *s, rp_tensor *a, rp_tensor *b) {
    if (s->kind == 5 && s->q % 5 == 0) return rp_to_dtype(a, s->p % 3 ? RP_F32 : s->p % 2 ? RP_F16 : RP_F64);
    if (s->kind == 5 && s->q % 5 == 1) return rp_size(a, -1) > 4 ? rp_cos(a) : rp_neg(a); /* a size that is read */
    return sample_apply(drawn_for(s), a, (rp_tensor *const[]){b, a}, 2);
}

/* No gradient goes into what outlives the call. */
static rp_tensor *written_buffer(const step *s, rp_tensor *a, rp_tensor *b) {
    bool grad = rp_set_grad_enabled(s->p % 3 == 0);
    rp_tensor *with = rp_mean(rp_detach(b), RP_NO_DIMS, false, RP_OPTIONS(rp_mean_options, .dtype = RP_F32)), *r;
    if (s->p % 2 && rp_ndim(a) == 1) a = rp_slice(a, 0, 1, 3, 1);
    switch (s->q % 5) {
    case 0: r = rp_mul_scalar_(a, rp_f64(0.5)); break;
    case 1: r = rp_add_(a, with, RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.1))); break;
    case 2: r = rp_copy_(a, with); break;
    case 3: r = rp_fill_(a, rp_f64(0.25)); break;
    default: r = rp_tanh_(a); break;
    }
    (void)rp_set_grad_enabled(grad);
    return r;
}

static rp_tensor *take(const step *s, rp_tensor *const *value) {
    rp_tensor *a = value[s->a], *b = value[s->b];
    if (s->a >= N_IN && s->a < FIRST && s->kind == 3) return written_buffer(s, a, b);
    switch (s->kind) {
    case 0: return view(s, a, b);
    case 3: return written(s, a, b);
    case 4: return rp_dropout(a, 0.4, true);
    default: return computed(s, a, b);
    }
}

static rp_tensor *const *held; /* of the function that is called */

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const function *f = ctx;
    rp_tensor *value[VALUES];
    for (size_t k = 0; k < n_in; k++) value[k] = in[k];
    for (size_t k = 0; k < N_HELD; k++) value[N_IN + k] = held[k];
    for (unsigned k = 0; k < f->n && !rp_failed(); k++) value[FIRST + k] = take(&f->steps[k], value);
    for (size_t k = 0; k < n_out && !rp_failed(); k++)
        out[k] = f->as_is[k] ? value[f->out[k]] : rp_mul_scalar(value[f->out[k]], rp_i64(1));
}

typedef struct sizes {
    int64_t of[3];         /* a letter stands for a size */
    int layout;            /* 1: as a transposed view */
    bool same;             /* arguments that can be one tensor are */
    unsigned share, shift; /* how arguments of float32 lie in memory; how far one begins behind the one before */
    unsigned roots;
    uint64_t values;
} sizes;

static rp_tensor *argument(const function *f, unsigned k, const sizes *c) {
    int64_t size[3], n = 1;
    for (unsigned d = 0; d < f->ndim[k]; d++) n *= size[d] = c->of[f->letter[k][d]];
    rp_tensor *t =
        rp_add_scalar(rp_arange(rp_i64(0), rp_i64(n), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
                      rp_f64((double)(c->values + k)));
    t = rp_reshape(rp_mul_scalar(rp_sin(rp_mul_scalar(t, rp_f64(1.7))), rp_f64(2)), size, f->ndim[k]);
    if (c->layout && f->ndim[k] > 1) t = rp_transpose(rp_clone(rp_transpose(t, 0, 1)), 0, 1);
    t = rp_detach(rp_to_dtype(t, f->dtype[k]));
    if (c->layout && f->ndim[k] > 1) t = rp_detach(rp_transpose(rp_clone(rp_transpose(t, 0, 1)), 0, 1));
    if (f->needs[k]) (void)rp_set_requires_grad(t, true);
    return t;
}

enum { APART, VIEWS, WRAPPED, STABLE, EXPANDED };

/* Arguments of float32 as views of one tensor, wrapped handles of its memory, or expanded ones. */
static void share_memory(const function *f, const sizes *z, rp_tensor **in) {
    enum { MOST = 2000 };
    rp_tensor *base = rp_sin(
        rp_add_scalar(rp_arange(rp_i64(0), rp_i64(MOST), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)),
                      rp_f64((double)z->values)));
    int64_t at = 0;
    for (unsigned k = 0; k < N_IN && z->share != APART; k++) {
        int64_t size[RP_MAX_DIMS], n = rp_numel(in[k]);
        size_t ndim = rp_ndim(in[k]);
        if (f->dtype[k] != RP_F32 || n == 0 || at + n > MOST) continue;
        for (size_t d = 0; d < ndim; d++) size[d] = rp_size(in[k], (int64_t)d);
        if (z->share == EXPANDED) {
            if (ndim == 0) continue;
            in[k] = rp_expand(rp_slice(in[k], (int64_t)(z->shift % ndim), 0, 1, 1), size, ndim);
        } else if (z->share == VIEWS) {
            in[k] = rp_view(rp_slice(base, 0, at, at + n, 1), size, ndim);
        } else {
            in[k] =
                rp_from_blob((float *)rp_data(base) + at, size, ndim, NULL, RP_F32, rp_default_device(), NULL, NULL);
            if (z->share == STABLE) (void)rp_declare_stable(in[k]);
        }
        in[k] = rp_detach(in[k]);
        if (f->needs[k]) (void)rp_set_requires_grad(in[k], true);
        at += z->shift;
    }
}

/* Does t lie in the memory of one of the arguments and buffers? */
static bool is_outside(rp_tensor *t, rp_tensor *const *outside) {
    const char *at = rp_data(t);
    for (unsigned k = 0; k < FIRST; k++) {
        const char *begin = rp_data(outside[k]);
        size_t bytes = (size_t)rp_numel(outside[k]) * rp_dtype_size(rp_dtype_of(outside[k]));
        if (at >= begin && at < begin + bytes) return true;
    }
    return false;
}

static void make_held(rp_tensor **out) {
    out[0] = rp_full(RP_NO_DIMS, rp_f64(0.75));
    out[1] = rp_cos(rp_arange(rp_i64(0), rp_i64(4), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)));
}

/* A function whose steps are valid for some sizes. holds: it may write its buffers. */
static void draw(function *f, uint64_t seed, bool holds) {
    seed_from(seed);
    *f = (function){.seed = seed, .writes = seed % 2, .holds = holds && seed % 3 == 0};
    static const rp_dtype dtypes[] = {RP_F32, RP_F32, RP_F32, RP_F64, RP_F16, RP_I64};
    for (unsigned k = 0; k < N_IN; k++) {
        f->ndim[k] = below(4);
        for (unsigned d = 0; d < 3; d++) f->letter[k][d] = below(3);
        f->dtype[k] = dtypes[below(6)];
        f->needs[k] = below(2) && f->dtype[k] != RP_I64;
    }
    const sizes first = {.of = {3, 5, 4}};
    rp_scope scope = rp_scope_begin();
    rp_tensor *value[VALUES];
    for (unsigned k = 0; k < N_IN; k++) value[k] = argument(f, k, &first);
    make_held(value + N_IN);
    for (unsigned tries = 0, wanted = 3 + below(STEPS - 2); f->n < wanted && tries < 200; tries++) {
        unsigned n = FIRST + f->n;
        step s = {below(9), below(2) ? n - 1 : below(n), below(n), below(30), below(90)};
        if (f->holds && below(4) == 0) {
            s.kind = 3;
            s.a = N_IN + below(N_HELD);
        } else if (f->writes && below(4) == 0) {
            s.kind = below(2) ? 3 : 9;
            s.a = below(N_IN);
            s.b = below(N_IN);
        }
        bool buffer = is_outside(value[s.a], value) &&
                      !is_outside(value[s.a], (rp_tensor *const[]){value[0], value[1], value[2], value[0], value[0]});
        if (s.kind == 3 && (buffer ? !f->holds || s.a >= FIRST : !f->writes)) continue;
        value[n] = take(&s, value);
        if (rp_error_take() == RP_OK && rp_numel(value[n]) <= 600 && rp_ndim(value[n]) < 6) f->steps[f->n++] = s;
    }
    for (unsigned k = 0; k < N_OUT; k++) {
        f->out[k] = FIRST + f->n - 1 - below(f->n < 5 ? f->n + 1 : 5);
        /* What comes back of an argument gets gradients from outside and from inside, added up in another order. */
        f->as_is[k] = below(3) == 0 && !is_outside(value[f->out[k]], value);
    }
    (void)rp_scope_end(scope, NULL, 0);
}

typedef struct seen {
    rp_status status, backward;
    rp_tensor *in[N_IN], *out[N_OUT], *grad[N_IN];
    rp_tensor *const *held;
    uint64_t drawn;
} seen;

static void call(rp_compiled *c, const function *f, const sizes *z, rp_tensor *const *buffers, seen *r) {
    *r = (seen){.status = RP_OK, .held = held = buffers};
    for (unsigned k = 0; k < N_IN; k++) {
        r->in[k] = argument(f, k, z);
        for (unsigned j = 0; j < k && z->same; j++) {
            bool fits = f->ndim[j] == f->ndim[k] && f->dtype[j] == f->dtype[k] && f->needs[j] == f->needs[k];
            for (unsigned d = 0; d < f->ndim[k] && fits; d++) fits = z->of[f->letter[j][d]] == z->of[f->letter[k][d]];
            if (fits) r->in[k] = r->in[j];
        }
    }
    if (!z->same) share_memory(f, z, r->in);
    assert_int_equal(rp_manual_seed(z->values), RP_OK);
    r->status = rp_call(c, r->in, N_IN, r->out, N_OUT);
    if (r->status == RP_OK) r->status = rp_synchronize(rp_default_device());
    (void)rp_error_take();
    if (r->status != RP_OK) return;
    rp_tensor *roots[N_OUT], *seeds[N_OUT], *leaves[N_IN], *grads[N_IN];
    size_t n_roots = 0, n = 0;
    for (unsigned k = 0; k < N_OUT; k++) {
        if (!(z->roots >> k & 1) || !rp_requires_grad(r->out[k])) continue;
        seeds[n_roots] = rp_cos(rp_detach(r->out[k]));
        roots[n_roots++] = r->out[k];
    }
    for (unsigned k = 0; k < N_IN; k++)
        if (f->needs[k]) leaves[n++] = r->in[k];
    if (n_roots && n)
        r->backward =
            rp_grad(roots, n_roots, leaves, n, seeds, RP_OPTIONS(rp_backward_options, .allow_unused = true), grads);
    if (n_roots && n && r->backward == RP_OK)
        for (unsigned k = 0, at = 0; k < N_IN; k++) r->grad[k] = f->needs[k] ? grads[at++] : NULL;
    (void)rp_error_take();
    uint64_t seed;
    assert_int_equal(rp_generator_get(rp_default_generator(rp_default_device()), &seed, &r->drawn), RP_OK);
}

static bool same(rp_tensor *a, rp_tensor *b) {
    if (!a || !b) return a == b;
    bool fits =
        rp_ndim(a) == rp_ndim(b) && rp_dtype_of(a) == rp_dtype_of(b) && rp_requires_grad(a) == rp_requires_grad(b);
    for (size_t d = 0; fits && d < rp_ndim(a); d++) fits = rp_size(a, (int64_t)d) == rp_size(b, (int64_t)d);
    if (!fits) return false;
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    char *x = malloc(bytes + 1), *y = malloc(bytes + 1);
    fits =
        rp_to_host(a, x, bytes) == RP_OK && rp_to_host(b, y, bytes) == RP_OK && fuzz_same(rp_dtype_of(a), x, y, bytes);
    free(x);
    free(y);
    return fits;
}

static unsigned compared, refused;

static void compare(const function *f, const seen *want, const seen *got, const char *backend, unsigned number) {
    /* An index out of range of what nothing reads is met by nobody; a write that eager execution finds to overlap, or to have
       been needed by the backward, is none in the functional form. */
    if (want->status != RP_OK) {
        refused++;
        return;
    }
    compared++;
    bool ok = got->status == RP_OK && got->drawn == want->drawn;
    for (unsigned k = 0; k < N_OUT && ok; k++) ok = same(want->out[k], got->out[k]);
    for (unsigned k = 0; k < N_IN && ok; k++) ok = same(want->in[k], got->in[k]);
    for (unsigned k = 0; k < N_HELD && ok; k++) ok = same(want->held[k], got->held[k]);
    if (ok && want->backward != RP_ERROR_VERSION) {
        ok = want->backward == got->backward;
        for (unsigned k = 0; k < N_IN && ok; k++) ok = same(want->grad[k], got->grad[k]);
    }
    if (!ok) fail_msg("seed %llu: call %u of backend %s differs", (unsigned long long)f->seed, number, backend);
}

static void run_seed(uint64_t seed) {
    static const int64_t picks[] = {3, 5, 4, 0, 1, 2, 6, 7, 9, 1};
    function f;
    draw(&f, seed, true);
    rp_fn fn = {body, &f, 0, "fuzz"};
    rp_compiled *plain = rp_plain(fn), *c[BACKENDS];
    rp_scope whole = rp_scope_begin();
    rp_tensor *buffers[BACKENDS + 1][N_HELD];
    for (int b = 0; b <= BACKENDS; b++) make_held(buffers[b]);
    for (int b = 0; b < BACKENDS; b++)
        c[b] = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .no_graph = seed % 5 == 0,
                                         .cache_limit = seed % 4 == 0 ? 2 : 0));
    sizes z = {.of = {3, 5, 4}};
    for (unsigned k = 0; k < CALLS; k++) {
        if (k > 1 && below(5)) z.of[below(3)] = picks[below(10)];
        z.layout = below(4) == 0;
        z.same = below(4) == 0;
        z.roots = below(3) ? 7 : below(8);
        z.share = below(3) ? APART : below(EXPANDED + 1);
        z.shift = 1 + below(40);
        z.values += below(2);
        rp_scope scope = rp_scope_begin();
        seen want, got;
        call(plain, &f, &z, buffers[BACKENDS], &want);
        for (int b = 0; b < BACKENDS; b++) {
            call(c[b], &f, &z, buffers[b], &got);
            compare(&f, &want, &got, backends[b], k);
            for (int i = 0; i < N_HELD && want.status != RP_OK; i++) /* it got as far as it got */
                (void)rp_copy_(buffers[b][i], buffers[BACKENDS][i]);
            assert_int_equal(rp_error_take(), RP_OK);
        }
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
    for (int b = 0; b < BACKENDS; b++) rp_compiled_release(c[b]);
    rp_compiled_release(plain);
    assert_int_equal(rp_scope_end(whole, NULL, 0), RP_OK);
}

/* ---- graphed callables: one argument may be a parameter, memory is the library's or wrapped, and results of eager runs live on */

typedef struct graphed_function {
    const function *f;
    rp_tensor *param;  /* stands for the last argument; NULL: none does */
    rp_tensor *before; /* its values: a function may write it, through rp_detach */
} graphed_function;

static void graphed_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const graphed_function *g = ctx;
    rp_tensor *all[N_IN] = {NULL};
    for (size_t k = 0; k < n_in; k++) all[k] = in[k];
    if (g->param) all[N_IN - 1] = g->param;
    body((void *)(uintptr_t)g->f, all, N_IN, out, n_out);
}

static void count_release(void *ctx) { --*(int *)ctx; }

/* The same tensor in memory of a program's own, that of `t`, with its strides. */
static rp_tensor *wrapped(rp_tensor *t, int *live) {
    int64_t size[RP_MAX_DIMS], stride[RP_MAX_DIMS];
    for (size_t d = 0; d < rp_ndim(t); d++) {
        size[d] = rp_size(t, (int64_t)d);
        stride[d] = rp_stride(t, (int64_t)d);
    }
    ++*live;
    rp_tensor *w =
        rp_from_blob(rp_data(t), size, rp_ndim(t), stride, rp_dtype_of(t), rp_device_of(t), count_release, live);
    if (rp_requires_grad(t)) (void)rp_set_requires_grad(w, true);
    return w;
}

typedef struct graphed_seen {
    rp_status status, backward;
    rp_tensor *in[N_IN], *out[N_OUT], *grad[N_IN];
} graphed_seen;

static void graphed_call(rp_compiled *c, const graphed_function *g, const sizes *z, bool wrap, int *live,
                         graphed_seen *r) {
    size_t n = g->param ? N_IN - 1 : N_IN, n_roots = 0, n_leaves = 0;
    *r = (graphed_seen){.status = RP_OK};
    if (g->param) (void)rp_copy_(rp_detach(g->param), g->before);
    for (unsigned k = 0; k < N_IN; k++) {
        r->in[k] = k < n ? argument(g->f, k, z) : g->param;
        if (k < n && wrap) r->in[k] = wrapped(r->in[k], live);
    }
    assert_int_equal(rp_manual_seed(z->values), RP_OK);
    r->status = rp_call(c, r->in, n, r->out, N_OUT);
    if (r->status == RP_OK) r->status = rp_synchronize(rp_default_device());
    if (g->param) r->in[N_IN - 1] = rp_clone(rp_detach(g->param)); /* as it is after the call */
    if (r->status != RP_OK) return;
    rp_tensor *roots[N_OUT], *seeds[N_OUT], *leaves[N_IN], *grads[N_IN];
    for (unsigned k = 0; k < N_OUT; k++) {
        if (!rp_requires_grad(r->out[k])) continue;
        seeds[n_roots] = rp_cos(rp_detach(r->out[k]));
        roots[n_roots++] = r->out[k];
    }
    for (unsigned k = 0; k < N_IN; k++)
        if (g->f->needs[k]) leaves[n_leaves++] = k < n ? r->in[k] : g->param;
    if (!n_roots || !n_leaves) return;
    r->backward =
        rp_grad(roots, n_roots, leaves, n_leaves, seeds, RP_OPTIONS(rp_backward_options, .allow_unused = true), grads);
    for (unsigned k = 0, at = 0; k < N_IN && r->backward == RP_OK; k++)
        r->grad[k] = g->f->needs[k] ? grads[at++] : NULL;
}

static unsigned graphed_made, graphed_refused, graphed_writing;

static void graphed_compare(const function *f, const graphed_seen *want, const graphed_seen *got, unsigned number) {
    bool ok = got->status == RP_OK && want->backward == got->backward;
    for (unsigned k = 0; k < N_OUT && ok; k++) ok = same(want->out[k], got->out[k]);
    for (unsigned k = 0; k < N_IN && ok; k++) ok = same(want->in[k], got->in[k]);
    for (unsigned k = 0; k < N_IN && ok; k++) ok = same(want->grad[k], got->grad[k]);
    if (!ok)
        fail_msg("seed %llu: call %u of a graphed callable differs: %s", (unsigned long long)f->seed, number,
                 rp_error_message());
}

static void run_graphed(uint64_t seed) {
    function f;
    draw(&f, seed, false);
    sizes z = {.of = {3, 5, 4}};
    int live = 0;
    rp_scope scope = rp_scope_begin();
    rp_tensor *buffers[N_HELD];
    make_held(buffers);
    held = buffers;
    graphed_function g = {&f, f.needs[N_IN - 1] ? argument(&f, N_IN - 1, &z) : NULL, NULL};
    if (g.param) g.before = rp_clone(rp_detach(g.param));
    size_t n = g.param ? N_IN - 1 : N_IN;
    rp_fn fn = {graphed_body, &g, sizeof g, "graphed fuzz"};
    rp_compiled *plain = rp_plain(fn), *c = NULL;
    graphed_seen kept; /* until the end: its tape leads to the parameter */
    graphed_call(plain, &g, &z, false, &live, &kept);
    bool usable = kept.status == RP_OK && kept.backward == RP_OK;
    (void)rp_error_take();
    rp_tensor *typical[N_IN];
    for (unsigned k = 0; k < n; k++) typical[k] = argument(&f, k, &z);
    rp_graphed_callable callable = {fn, typical, n, &g.param, N_IN - n, N_OUT};
    rp_status made =
        usable ? rp_make_graphed_callables(&callable, 1, RP_OPTIONS(rp_graphed_options, .allow_unused_input = true), &c)
               : RP_ERROR_STATE;
    /* Nothing but this may stand against it: history that only a tape could hand on. */
    if (made != RP_OK) {
        if (usable && !strstr(rp_error_message(), "what has a gradient"))
            fail_msg("seed %llu: %s", (unsigned long long)seed, rp_error_message());
        (void)rp_error_take();
        graphed_refused++;
    }
    for (unsigned k = 0; k < CALLS && made == RP_OK; k++) {
        z.layout = below(3) == 0;
        z.values += below(2);
        bool wrap = below(2);
        rp_scope inner = rp_scope_begin();
        graphed_seen want, got;
        graphed_call(plain, &g, &z, false, &live, &want);
        if (want.status == RP_OK && want.backward == RP_OK) {
            graphed_call(c, &g, &z, wrap, &live, &got);
            graphed_compare(&f, &want, &got, k);
            graphed_made++;
            graphed_writing += f.writes;
        }
        (void)rp_error_take();
        assert_int_equal(rp_scope_end(inner, NULL, 0), RP_OK);
    }
    rp_compiled_release(c);
    rp_compiled_release(plain);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_int_equal(rp_synchronize(rp_default_device()), RP_OK);
    assert_int_equal(live, 0); /* wrapped memory comes back */
}

static void test_fuzz_graphed(void **state) {
    (void)state;
    fuzz_seeds f = fuzz_begin(rp_default_device().type == RP_DEVICE_CPU ? 800 : 20);
    for (uint64_t seed; fuzz_next(&f, &seed);) run_graphed(seed);
    print_message("%u graphed calls compared, %u of functions that write; %u functions refused\n", graphed_made,
                  graphed_writing, graphed_refused);
    if (f.ran >= 20) assert_true(graphed_made > f.ran && graphed_writing > f.ran / 8);
}

static void test_fuzz(void **state) {
    (void)state;
    fuzz_seeds f = fuzz_begin(rp_default_device().type == RP_DEVICE_CPU ? 1500 : 20);
    for (uint64_t seed; fuzz_next(&f, &seed);) run_seed(seed);
    print_message("%u calls compared, %u refused by eager\n", compared, refused);
    if (f.ran >= 20) assert_true(compared > refused);
}

int main(void) {
    if (!test_device_choose()) return 1;
    (void)rp_set_deterministic(true); /* CUDA adds by atomics in an order that is drawn */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fuzz), cmocka_unit_test(test_fuzz_graphed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
