/* Random programs of float64 with views and writes through them: gradients are those of finite differences, gradients of gradients those of
   differences of gradients, whether the program is compiled or not. A program that a backward refuses (it wrote what that needs) is
   none; where differences of two widths, or of both sides, disagree, the function has a corner and says nothing.
   support/fuzz.h says which seeds run.
   ctest: timeout=600 cost=20 */
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

#include "samples/samples.h"
#include "support/cuda.h"
#include "support/fuzz.h"

enum { N_IN = 3, POOL = 14, MOST = 12, STEPS = 9 };

typedef struct program {
    uint64_t seed;
    unsigned steps;
    size_t ndim[N_IN];
    int64_t size[N_IN][3], n[N_IN];
} program;

static unsigned below(uint64_t *s, unsigned n) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (unsigned)(*s >> 20) % n;
}

/* apart: each element is another one of t; what is written through others is nobody's promise. */
static rp_tensor *view(uint64_t *s, rp_tensor *t, bool apart) {
    const size_t n = rp_ndim(t);
    const unsigned kind = below(s, apart ? 10 : 13), p = below(s, 12);
    if (n == 0) return kind % 2 || apart ? rp_unsqueeze(t, 0) : rp_expand(t, RP_DIMS(2));
    const int64_t d = (int64_t)(p % n), e = (int64_t)(below(s, 7) % n), size = rp_size(t, d);
    switch (kind) {
    case 0: return rp_transpose(t, d, e);
    case 1: return rp_slice(t, d, p % 2, INT64_MAX, 1 + p % 3);
    case 2: return rp_select(t, d, (int64_t)(p % (unsigned)size));
    case 3: return rp_unsqueeze(t, d);
    case 4: return rp_reshape(t, RP_DIMS(-1));
    case 5: return d == e ? rp_narrow(t, d, size - 1, 1) : rp_diagonal(t, (int64_t)(p % 3) - 1, d, e);
    case 6: return rp_view_as(t, rp_detach(t));
    case 7: return size % 2 == 0 ? rp_unflatten(t, d, RP_DIMS(2, -1)) : rp_flatten(t, 0, -1);
    case 8: return rp_movedim(t, &d, 1, RP_DIMS(e));
    case 9: return rp_squeeze(t, d);
    case 10: return rp_unfold(t, d, 1 + (int64_t)(p % (unsigned)size), 1 + p % 2);
    case 11: {
        int64_t sizes[RP_MAX_DIMS] = {2};
        for (size_t k = 0; k < n; k++) sizes[k + 1] = rp_size(t, (int64_t)k);
        return rp_expand(t, sizes, n + 1);
    }
    default: return rp_numel(t) >= 4 ? rp_as_strided(t, RP_DIMS(2, 2), RP_DIMS(p % 3, 1), INT64_MIN) : t;
    }
}

static bool is_apart(const rp_tensor *t) {
    bool met[4096] = {false};
    if (rp_is_error(t)) return false;
    for (int64_t i = 0, n = rp_numel(t); i < n; i++) {
        int64_t at = 0;
        for (int64_t d = (int64_t)rp_ndim(t) - 1, rest = i; d >= 0; rest /= rp_size(t, d--))
            at += rest % rp_size(t, d) * rp_stride(t, d);
        if (at >= 4096 || met[at]) return false;
        met[at] = true;
    }
    return true;
}

static bool fits(const rp_tensor *t) {
    return !rp_is_error(t) && rp_numel(t) > 0 && rp_numel(t) <= 200 && rp_ndim(t) < 6;
}

/* Writes of other kinds than elementwise ones. */
static void write(uint64_t *s, rp_tensor *t, rp_tensor *const *pool, unsigned n) {
    rp_tensor *from = pool[below(s, n)], *flat = rp_reshape(from, RP_DIMS(-1));
    const unsigned kind = below(s, 8);
    const int64_t d = rp_ndim(t) ? (int64_t)(below(s, 6) % rp_ndim(t)) : 0;
    rp_tensor *number = rp_mul_scalar(rp_select(flat, 0, 0), rp_f64(0.75));
    switch (kind) {
    case 0: (void)rp_copy_(t, number); break;
    case 1: (void)rp_fill_(t, rp_f64(0.25)); break;
    case 2: (void)rp_masked_fill_scalar_(t, rp_gt_scalar(rp_detach(t), rp_f64(0.3)), rp_f64(-0.5)); break;
    case 3:
        (void)rp_index_fill_(t, d, rp_zeros(RP_DIMS(1), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)), number);
        break;
    case 4: (void)rp_mul_(t, rp_tanh(number)); break;
    case 5: (void)rp_addcmul_(t, rp_clone(t), number); break;
    case 6: (void)rp_copy_(t, rp_clone(rp_flip(t, RP_DIMS(d)))); break;
    default:
        (void)rp_index_add_(t, d, rp_zeros(RP_DIMS(1), RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)),
                            rp_sin(rp_clone(rp_narrow(t, d, 0, 1))));
    }
}

static bool told;

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const program *p = ctx;
    uint64_t s = p->seed * 2654435761u + 88172645463325252u;
    rp_tensor *pool[POOL];
    bool own[POOL];
    unsigned n = 0;
    (void)n_out;
    for (int k = 0; k < 4; k++) (void)below(&s, 2);
    for (size_t k = 0; k < n_in; k++) {
        own[n] = below(&s, 3) > 0;
        pool[n] = own[n] ? rp_mul_scalar(in[k], rp_f64(1)) : in[k];
        n++;
    }
    for (unsigned step = 0; step < p->steps; step++) {
        const unsigned at = below(&s, 2) ? n - 1 : below(&s, n), kind = below(&s, 12);
        const uint64_t random = ((uint64_t)below(&s, 1u << 30) << 30) | below(&s, 1u << 30);
        rp_tensor *a = pool[at], *r = NULL;
        bool is_own = true;
        if (kind < 4) {
            r = sample_apply_differentiable(random, a, pool, n);
            if (r && !rp_is_error(r) && rp_dtype_of(r) != RP_F64) continue; /* differences of less are none */
            if (r && !rp_is_error(r))
                r = rp_mul_scalar(rp_tanh(rp_mul_scalar(rp_to_dtype(r, RP_F64), rp_f64(0.5))), rp_f64(1.5));
        } else if (kind < 7) {
            r = view(&s, a, false);
            is_own = own[at] && is_apart(r);
        } else if (kind < 10 && own[at]) {
            rp_tensor *target = below(&s, 2) ? view(&s, a, true) : a;
            if (fits(target)) {
                if (kind == 7)
                    sample_apply_in_place(random, target, pool, n);
                else
                    write(&s, target, pool, n);
            }
        } else if (kind == 10) {
            r = rp_mul(a, rp_cos(a));
        } else {
            r = rp_sin(a);
        }
        if (rp_failed()) {
            if (told) print_message("  step %u refused: %s\n", step, rp_error_message());
            rp_error_take();
            continue;
        }
        if (told) print_message("  step %u: kind %u of %u%s\n", step, kind, at, r ? " -> " : "");
        if (!r || !fits(r)) continue;
        const unsigned to = n < POOL ? n++ : N_IN + step % (POOL - N_IN);
        pool[to] = r;
        own[to] = is_own;
    }
    rp_tensor *total = NULL;
    for (unsigned k = 0; k < n; k++) {
        rp_tensor *part = rp_mul_scalar(
            rp_sum(rp_sin(rp_mul_scalar(rp_to_dtype(pool[k], RP_F64), rp_f64(0.5 + 0.1 * k)))), rp_f64(1 + 0.3 * k));
        total = total ? rp_add(total, part) : part;
    }
    out[0] = total;
}

static void make(const program *p, const double (*x)[MOST], rp_tensor **in) {
    for (unsigned k = 0; k < N_IN; k++) {
        in[k] = rp_from_data(x[k], p->size[k], p->ndim[k], RP_F64);
        (void)rp_set_requires_grad(in[k], true);
    }
}

/* sum of all gradients, each times a number of its own: what is differentiated again */
static double weight(unsigned k, int64_t i) { return cos(1.0 + 3.0 * k + 0.7 * (double)i); }
static rp_tensor *weights(const program *p, unsigned k) {
    double w[MOST];
    for (int64_t i = 0; i < p->n[k]; i++) w[i] = weight(k, i);
    return rp_from_data(w, p->size[k], p->ndim[k], RP_F64);
}

typedef struct seen {
    bool fine;
    double value, grad[N_IN][MOST]; /* of the program, or of its weighed gradient */
} seen;

static bool read_grads(const program *p, rp_tensor *const *g, seen *r) {
    for (unsigned k = 0; k < N_IN; k++) {
        memset(r->grad[k], 0, sizeof r->grad[k]);
        if (g[k] && rp_to_host(g[k], r->grad[k], (size_t)p->n[k] * sizeof(double)) != RP_OK) return false;
        for (int64_t i = 0; i < p->n[k]; i++)
            if (!isfinite(r->grad[k][i])) return false;
    }
    return true;
}

/* order 0: the value; 1: and its gradient; 2: the weighed gradient as value; 3: and the gradient of that */
static seen run(rp_compiled *c, const program *p, const double (*x)[MOST], int order) {
    seen r = {.fine = false};
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[N_IN], *y = NULL, *g[N_IN], *gg[N_IN], *sum = NULL;
    make(p, x, in);
    const bool grad = rp_set_grad_enabled(order > 0);
    if (rp_call(c, in, N_IN, &y, 1) != RP_OK || (order && !rp_requires_grad(y))) goto done;
    if (order == 0) {
        r.value = rp_item_f64(y);
        r.fine = !rp_failed() && isfinite(r.value);
        goto done;
    }
    if (rp_grad(&y, 1, in, N_IN, NULL, RP_OPTIONS(rp_backward_options, .allow_unused = true, .create_graph = order > 1),
                g) != RP_OK)
        goto done;
    if (order == 1) {
        r.value = rp_item_f64(y);
        r.fine = read_grads(p, g, &r) && isfinite(r.value);
        goto done;
    }
    for (unsigned k = 0; k < N_IN; k++) {
        if (!g[k]) continue;
        rp_tensor *part = rp_sum(rp_mul(g[k], weights(p, k)));
        sum = sum ? rp_add(sum, part) : part;
    }
    if (!sum || rp_failed()) goto done;
    r.value = rp_item_f64(sum);
    r.fine = isfinite(r.value);
    if (order == 2 || !r.fine) goto done;
    if (!rp_requires_grad(sum)) goto done; /* it is the same everywhere */
    r.fine = rp_grad(&sum, 1, in, N_IN, NULL, RP_OPTIONS(rp_backward_options, .allow_unused = true), gg) == RP_OK &&
             read_grads(p, gg, &r);
done:
    (void)rp_set_grad_enabled(grad);
    if (rp_failed()) {
        if (told) print_message("  %s\n", rp_error_message());
        rp_error_take();
        r.fine = false;
    }
    (void)rp_scope_end(scope, NULL, 0);
    return r;
}

static unsigned checked, corners, refused, twice;

/* Differences of `order` against the gradients of `want`. */
static void compare(rp_compiled *c, const program *p, double (*x)[MOST], const seen *want, int order, const char *how) {
    for (unsigned k = 0; k < N_IN; k++) {
        for (int64_t i = 0; i < p->n[k]; i++) {
            const double at = x[k][i], h = 1e-5, far = 4e-5;
            double v[4];
            bool fine = true;
            for (int j = 0; j < 4 && fine; j++) {
                x[k][i] = at + (j % 2 ? -1 : 1) * (j < 2 ? h : far);
                const seen s = run(c, p, (const double(*)[MOST])x, order);
                v[j] = s.value;
                fine = s.fine;
            }
            x[k][i] = at;
            if (!fine) {
                corners++;
                continue;
            }
            const double near = (v[0] - v[1]) / (2 * h), wide = (v[2] - v[3]) / (2 * far),
                         ahead = (v[0] - want->value) / h, behind = (want->value - v[1]) / h, size = 1 + fabs(near);
            if (fabs(near - wide) > 1e-5 * size || fabs(ahead - behind) > 1e-2 * size) {
                corners++;
                continue;
            }
            checked++;
            if (fabs(near - want->grad[k][i]) <= 1e-4 * size) continue;
            fail_msg("seed %llu, %s: gradient of order %d of argument %u, element %lld: %.9g; differences %.9g, %.9g",
                     (unsigned long long)p->seed, how, order ? 2 : 1, k, (long long)i, want->grad[k][i], near, wide);
        }
    }
}

static void run_seed(uint64_t seed) {
    uint64_t s = seed * 77777 + 12345;
    program p = {.seed = seed};
    double x[N_IN][MOST];
    for (int k = 0; k < 4; k++) (void)below(&s, 2);
    p.steps = 2 + below(&s, STEPS - 1);
    for (unsigned k = 0; k < N_IN; k++) {
        p.ndim[k] = below(&s, 4);
        p.n[k] = 1;
        for (size_t d = 0; d < p.ndim[k]; d++) {
            int64_t size = 1 + below(&s, 4);
            if (p.n[k] * size > MOST) size = 1;
            p.n[k] *= p.size[k][d] = size;
        }
        for (int64_t i = 0; i < p.n[k]; i++) x[k][i] = (double)((int)below(&s, 4001) - 2000) / 1403.7;
    }
    const rp_fn fn = {body, &p, sizeof p, "fuzz"};
    rp_scope scope = rp_scope_begin();
    rp_compiled *eager = rp_plain(fn), *fused = rp_compile(fn, NULL);
    const double(*at)[MOST] = (const double(*)[MOST])x;
    told = fuzz_number("REPRISE_FUZZ_TELL", 0) != 0;
    const seen first = run(eager, &p, at, 1);
    told = false;
    if (!first.fine) {
        refused++;
    } else {
        compare(eager, &p, x, &first, 0, "eager");
        for (int call = 0; call < 3; call++) {
            const seen got = run(fused, &p, at, 1);
            if (!got.fine || memcmp(&got, &first, sizeof got) != 0)
                fail_msg("seed %llu: call %d, compiled, differs", (unsigned long long)seed, call);
        }
        const seen second = run(eager, &p, at, 3);
        if (second.fine) {
            twice++;
            if (seed % 2) compare(eager, &p, x, &second, 2, "eager");
            for (int call = 0; call < 2; call++) {
                const seen got = run(fused, &p, at, 3);
                bool same = got.fine && got.value == second.value;
                for (unsigned k = 0; k < N_IN && same; k++)
                    for (int64_t i = 0; i < p.n[k] && same; i++) same = got.grad[k][i] == second.grad[k][i];
                if (!same)
                    fail_msg("seed %llu: call %d, compiled, differs in gradients of gradients",
                             (unsigned long long)seed, call);
            }
        }
    }
    rp_compiled_release(eager);
    rp_compiled_release(fused);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static void test_fuzz(void **state) {
    (void)state;
    fuzz_seeds f = fuzz_begin(rp_default_device().type == RP_DEVICE_CPU ? 400 : 10);
    for (uint64_t seed; fuzz_next(&f, &seed);) run_seed(seed);
    print_message(
        "%llu programs: %u derivatives compared, %u at corners; %u programs refused, %u differentiated twice\n",
        (unsigned long long)f.ran, checked, corners, refused, twice);
    if (f.ran >= 20) assert_true(checked > corners && refused < f.ran / 2 && twice > f.ran / 4);
}

int main(void) {
    if (!test_device_choose()) return 1;
    (void)rp_set_deterministic(true); /* CUDA adds by atomics in an order that is drawn */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fuzz)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
