/* Random functions, each called several times with other sizes, layouts, aliases and wishes for gradients: a compiled function gives the bits
   of eager execution in every call, forward and backward, and leaves arguments and generators as it does. What a function does is drawn
   from its seed alone, never from sizes. REPRISE_FUZZ_SEED runs one seed, REPRISE_FUZZ_SEEDS says how many run.
   ctest: labels=compile timeout=300 cost=10 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "support/cuda.h"

enum { N_IN = 3, N_OUT = 3, STEPS = 12, VALUES = N_IN + STEPS, CALLS = 9, BACKENDS = 3 };
static const char *const backends[BACKENDS] = {"aot_eager", "cudagraphs", "fused"};

typedef struct step {
    unsigned kind, a, b, p, q;
} step;
typedef struct function {
    uint64_t seed;
    unsigned n, ndim[N_IN], letter[N_IN][3], out[N_OUT];
    rp_dtype dtype[N_IN];
    bool needs[N_IN], writes;
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

static bool is_float(const rp_tensor *t) { return rp_dtype_of(t) <= RP_BF16 && rp_dtype_of(t) != RP_DTYPE_NONE; }

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

static rp_tensor *gathered(const step *s, rp_tensor *a, rp_tensor *b) {
    int64_t dim = rp_ndim(a) ? (int64_t)(s->p % rp_ndim(a)) : 0;
    rp_tensor *index = NULL, *both[] = {a, b};
    switch (s->q % 5) {
    case 0: return rp_cat(both, 2, dim);
    case 1: /* every other row, by numbers that are computed */
        index = rp_arange(rp_i64(0), rp_i64(rp_size(a, 0)), rp_i64(1 + s->p % 2));
        return rp_embedding(a, index);
    case 2: (void)rp_topk(a, 1, dim, true, true, &index); return rp_gather(a, dim, index);
    case 3: (void)rp_topk(a, 1, dim, true, true, &index); return rp_scatter_add(a, dim, index, b);
    default: return rp_matmul(a, s->p % 2 ? b : rp_transpose(a, -1, -2));
    }
}

static rp_tensor *reduced(const step *s, rp_tensor *a) {
    int64_t dim = rp_ndim(a) ? (int64_t)(s->p % rp_ndim(a)) : 0;
    size_t n = rp_ndim(a) && s->p % 5 ? 1 : 0;
    switch (s->q % 5) {
    case 0: return rp_sum(a, &dim, n, s->p % 2);
    case 1: return rp_mean(a, &dim, n, s->p % 2);
    case 2: return rp_amax(a, &dim, n, s->p % 2);
    case 3: return rp_softmax(a, dim);
    default: dim = rp_size(a, -1); return rp_layer_norm(a, &dim, 1, NULL, NULL, 1e-5);
    }
}

static rp_tensor *written(const step *s, rp_tensor *a, rp_tensor *b) {
    switch (s->q % 5) {
    case 0: return rp_add_(a, b);
    case 1: return rp_mul_(a, b);
    case 2: return rp_copy_(a, b);
    case 3: return rp_fill_(a, rp_f64(0.25));
    default: return rp_tanh_(a);
    }
}

static rp_tensor *pointwise(const step *s, rp_tensor *a, rp_tensor *b) {
    switch (s->q % 10) {
    case 0: return rp_sin(a);
    case 1: return rp_tanh(a);
    case 2: return rp_relu(a);
    case 3: return rp_add(a, b);
    case 4: return rp_mul(a, b);
    case 5: return rp_maximum(a, b);
    case 6: return rp_where(rp_gt_scalar(a, rp_f64(0)), a, b);
    case 7: return rp_mul_scalar(a, rp_f64(0.5));
    case 8: return rp_to_dtype(a, s->p % 3 ? RP_F32 : s->p % 2 ? RP_F16 : RP_F64);
    default: return rp_size(a, -1) > 4 ? rp_cos(a) : rp_neg(a); /* a size that is read */
    }
}

static rp_tensor *take(const step *s, rp_tensor *const *value) {
    rp_tensor *a = value[s->a], *b = value[s->b];
    switch (s->kind) {
    case 0: return view(s, a, b);
    case 1: return gathered(s, a, b);
    case 2: return reduced(s, a);
    case 3: return written(s, a, b);
    case 4: return rp_dropout(a, 0.4, true);
    default: return pointwise(s, a, b);
    }
}

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const function *f = ctx;
    rp_tensor *value[VALUES];
    for (size_t k = 0; k < n_in; k++) value[k] = in[k];
    for (unsigned k = 0; k < f->n && !rp_failed(); k++) value[N_IN + k] = take(&f->steps[k], value);
    for (size_t k = 0; k < n_out && !rp_failed(); k++) out[k] = rp_mul_scalar(value[f->out[k]], rp_i64(1));
}

typedef struct sizes {
    int64_t of[3]; /* a letter stands for a size */
    int layout;    /* 1: as a transposed view */
    bool same;     /* arguments that can be one tensor are */
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

/* A function whose steps are valid for some sizes. */
static void draw(function *f, uint64_t seed) {
    seed_from(seed);
    *f = (function){.seed = seed, .writes = seed % 2};
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
    for (unsigned tries = 0, wanted = 3 + below(STEPS - 2); f->n < wanted && tries < 200; tries++) {
        unsigned n = N_IN + f->n;
        step s = {below(9), below(2) ? n - 1 : below(n), below(n), below(30), below(90)};
        if (s.kind == 3 && !f->writes) continue;
        if (s.kind == 2 && !is_float(value[s.a])) continue;
        value[n] = take(&s, value);
        if (rp_error_take() == RP_OK && rp_numel(value[n]) <= 600 && rp_ndim(value[n]) < 6) f->steps[f->n++] = s;
    }
    for (unsigned k = 0; k < N_OUT; k++) f->out[k] = N_IN + f->n - 1 - below(f->n < 5 ? f->n + 1 : 5);
    (void)rp_scope_end(scope, NULL, 0);
}

typedef struct seen {
    rp_status status, backward;
    rp_tensor *in[N_IN], *out[N_OUT], *grad[N_IN];
    uint64_t drawn;
} seen;

static void call(rp_compiled *c, const function *f, const sizes *z, seen *r) {
    *r = (seen){.status = RP_OK};
    for (unsigned k = 0; k < N_IN; k++) {
        r->in[k] = argument(f, k, z);
        for (unsigned j = 0; j < k && z->same; j++) {
            bool fits = f->ndim[j] == f->ndim[k] && f->dtype[j] == f->dtype[k] && f->needs[j] == f->needs[k];
            for (unsigned d = 0; d < f->ndim[k] && fits; d++) fits = z->of[f->letter[j][d]] == z->of[f->letter[k][d]];
            if (fits) r->in[k] = r->in[j];
        }
    }
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
    fits = rp_to_host(a, x, bytes) == RP_OK && rp_to_host(b, y, bytes) == RP_OK && memcmp(x, y, bytes) == 0;
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
    if (ok && want->backward != RP_ERROR_VERSION) {
        ok = want->backward == got->backward;
        /* a function that writes to its arguments counts results without a gradient as zero (docs/deviations.md) */
        for (unsigned k = 0; k < N_IN && ok; k++)
            ok = (f->writes && !want->grad[k]) || same(want->grad[k], got->grad[k]);
    }
    if (!ok) fail_msg("seed %llu: call %u of backend %s differs", (unsigned long long)f->seed, number, backend);
}

static void run_seed(uint64_t seed) {
    static const int64_t picks[] = {3, 5, 4, 0, 1, 2, 6, 7, 9, 1};
    function f;
    draw(&f, seed);
    rp_fn fn = {body, &f, 0, "fuzz"};
    rp_compiled *plain = rp_plain(fn), *c[BACKENDS];
    for (int b = 0; b < BACKENDS; b++)
        c[b] = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .no_graph = seed % 5 == 0,
                                         .cache_limit = seed % 4 == 0 ? 2 : 0));
    sizes z = {.of = {3, 5, 4}};
    for (unsigned k = 0; k < CALLS; k++) {
        if (k > 1 && below(5)) z.of[below(3)] = picks[below(10)];
        z.layout = below(4) == 0;
        z.same = below(4) == 0;
        z.roots = f.writes || below(3) ? 7 : below(8);
        z.values += below(2);
        rp_scope scope = rp_scope_begin();
        seen want, got;
        call(plain, &f, &z, &want);
        for (int b = 0; b < BACKENDS; b++) {
            call(c[b], &f, &z, &got);
            compare(&f, &want, &got, backends[b], k);
        }
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
    for (int b = 0; b < BACKENDS; b++) rp_compiled_release(c[b]);
    rp_compiled_release(plain);
}

static void test_fuzz(void **state) {
    (void)state;
    const char *one = getenv("REPRISE_FUZZ_SEED"), *count = getenv("REPRISE_FUZZ_SEEDS");
    if (one) {
        run_seed(strtoull(one, NULL, 10));
        return;
    }
    uint64_t last = count ? strtoull(count, NULL, 10) : rp_default_device().type == RP_DEVICE_CPU ? 1500 : 20;
    for (uint64_t seed = 1; seed <= last; seed++) run_seed(seed);
    print_message("%u calls compared, %u refused by eager\n", compared, refused);
    assert_true(compared > refused);
}

int main(void) {
    if (!test_device_choose()) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fuzz)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
