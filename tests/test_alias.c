/* Tensors that share memory, and what is written of them, in compiled functions: each call is compared, bit for bit, with the function
   run eagerly, on every backend that compiles and on each device: values, gradients, memory that was written, errors. */
/* ctest: labels=compile timeout=180 cost=10 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "support/each_device.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

static const char *const backends[] = {"aot_eager", "cudagraphs", "fused"};
enum { BACKENDS = 3, N = 8 };

static rp_compiled *function(rp_body *body, void *ctx, size_t bytes, int backend) { /* BACKENDS: eager */
    rp_fn fn = {body, ctx, bytes, "f"};
    return backend == BACKENDS ? rp_plain(fn)
                               : rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[backend]));
}

static rp_tensor *total(rp_tensor *t) { return rp_sum(t); }

static rp_tensor *numbers(int64_t n) {
    return rp_sin(rp_arange(rp_i64(1), rp_i64(n + 1), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F32)));
}

/* How many entries of `kind` with `reason` explain has. */
static int told(rp_compiled *f, const char *kind, const char *reason) {
    int n = 0;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        OK(rp_explain_get(f, i, &e));
        n += strcmp(e.kind, kind) == 0 && (!reason || (e.reason && strcmp(e.reason, reason) == 0));
    }
    return n;
}

/* ---- wrapped memory */

BODY(read_then_written) { /* the second argument is read before the first one is written, and after */
    UNUSED;
    out[0] = rp_mul_scalar(in[1], rp_f64(2));
    rp_add_scalar_(in[0], rp_f64(1));
    out[1] = rp_neg(in[1]);
}

/* Argument k of a call: a handle of its own over elements [first, first + N) of `base`, which n_bytes of memory of ours lie behind. */
static rp_tensor *wrap(rp_tensor *base, int64_t first, bool stable) {
    float *data = rp_data(base);
    rp_tensor *t = rp_from_blob(data + first, RP_DIMS(N), NULL, RP_F32, device, NULL, NULL);
    if (stable) OK(rp_declare_stable(t));
    return t;
}

/* How a pair of arguments lies in memory. */
enum { APART, SAME, SHIFTED, OWN_AND_WRAPPED, CAPTURED, TOUCHING, IMPORTED, LAYOUTS };

static struct { rp_tensor *read; /* what CAPTURED calls read, by themselves */ } outside;
BODY(captured_is_read) {
    UNUSED;
    out[0] = rp_mul_scalar(outside.read, rp_f64(2));
    rp_add_scalar_(in[0], rp_f64(1));
    out[1] = rp_add(outside.read, in[1]);
}

static void lay_out(int layout, rp_tensor *base, rp_tensor **in) {
    in[0] = wrap(base, 0, layout % 2);
    switch (layout) {
    case SAME: in[1] = wrap(base, 0, true); break;
    case SHIFTED: in[1] = wrap(base, N / 2, false); break;
    case OWN_AND_WRAPPED: in[1] = rp_slice(base, 0, 0, N, 1); break;
    case TOUCHING: in[1] = wrap(base, N, true); break;
    case IMPORTED: /* two handles that another library hands over */
        for (int64_t k = 0; k < 2; k++) in[k] = rp_from_dlpack(rp_to_dlpack(rp_slice(base, 0, k * 2, k * 2 + N, 1)));
        break;
    default: in[1] = wrap(base, 2 * N, layout % 2); break;
    }
}

/* One compiled function sees every layout, in an order in which each follows each. */
static void wrapped_memory(void **state) {
    (void)state;
    static const int order[] = {
        APART,    APART,    SAME,     SAME, APART,    SHIFTED,  OWN_AND_WRAPPED, SHIFTED,         IMPORTED, APART,
        IMPORTED, TOUCHING, TOUCHING, SAME, CAPTURED, CAPTURED, OWN_AND_WRAPPED, OWN_AND_WRAPPED, APART};
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f[2] = {function(read_then_written, NULL, 0, b), function(read_then_written, NULL, 0, BACKENDS)};
        rp_tensor *base[2] = {numbers(4 * N), numbers(4 * N)}, *in[2], *out[2][2];
        for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
            for (int i = 0; i < 2; i++) {
                lay_out(order[k], base[i], in);
                OK(rp_call(f[i], in, 2, out[i], 2));
                OK(rp_synchronize(device));
            }
            for (int i = 0; i < 2; i++) same(out[0][i], out[1][i]);
            same(base[0], base[1]);
        }
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* What the function reaches by itself lies in the memory that an argument wraps, in some calls. */
static void wrapped_captured(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f[2] = {function(captured_is_read, NULL, 0, b), function(captured_is_read, NULL, 0, BACKENDS)};
        rp_tensor *base[2] = {numbers(4 * N), numbers(4 * N)}, *read[2], *in[2], *out[2][2];
        for (int i = 0; i < 2; i++) read[i] = wrap(base[i], 0, true);
        for (int k = 0; k < 8; k++) {
            for (int i = 0; i < 2; i++) {
                outside.read = read[i];
                in[0] = wrap(base[i], (k / 2) % 2 ? N / 2 : 2 * N, false);
                in[1] = wrap(base[i], 3 * N, true);
                OK(rp_call(f[i], in, 2, out[i], 2));
                OK(rp_synchronize(device));
            }
            for (int i = 0; i < 2; i++) same(out[0][i], out[1][i]);
            same(base[0], base[1]);
        }
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* Nothing is paid for in calls without wrapped memory: one specialisation, one program. */
static void memory_of_ours(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = function(read_then_written, NULL, 0, 2);
    rp_tensor *in[2], *out[2];
    for (int k = 0; k < 6; k++) {
        in[0] = k < 4 ? numbers(N) : wrap(numbers(N), 0, true);
        in[1] = numbers(N);
        OK(rp_call(f, in, 2, out, 2));
    }
    assert_int_equal(told(f, "specialisation", NULL), 1);
    assert_int_equal(told(f, "skip", NULL), 0);
    rp_compiled_release(f);
    OK(rp_scope_end(scope, NULL, 0));
}

/* A function that runs at every call: a value is read through one handle while a write through another waits to be computed. */
BODY(read_in_the_middle) {
    UNUSED;
    float now[N];
    rp_add_scalar_(in[0], rp_f64(1));
    OK(rp_to_host(in[1], now, sizeof now));
    out[0] = rp_mul_scalar(in[1], rp_f64(now[0]));
}
static void wrapped_in_segments(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f[2] = {function(read_in_the_middle, NULL, 0, b), function(read_in_the_middle, NULL, 0, BACKENDS)};
        rp_tensor *base[2] = {numbers(4 * N), numbers(4 * N)}, *in[2], *out[2];
        for (int k = 0; k < 6; k++) {
            for (int i = 0; i < 2; i++) {
                lay_out(k % 3, base[i], in);
                OK(rp_call(f[i], in, 2, &out[i], 1));
                OK(rp_synchronize(device));
            }
            same(out[0], out[1]);
            same(base[0], base[1]);
        }
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* ---- views of one tensor, and tensors whose elements share memory */

BODY(captured_and_its_view) { /* writes the argument, a part of what it then reads by itself */
    UNUSED;
    rp_mul_scalar_(in[0], rp_f64(3));
    out[0] = rp_exp(*(rp_tensor **)ctx);
}
static void parts_of_captured(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *base[2] = {numbers(2 * N), numbers(2 * N)}, *out[2];
        for (int i = 0; i < 2; i++) {
            rp_compiled *f = function(captured_and_its_view, &base[i], sizeof base[i], i ? BACKENDS : b);
            for (int k = 0; k < 6; k++) {
                rp_tensor *part = rp_slice(base[i], 0, k / 3, N + k / 3, 1);
                OK(rp_call(f, &part, 1, &out[i], 1));
            }
            rp_compiled_release(f);
        }
        same(out[0], out[1]);
        same(base[0], base[1]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* Two halves of one tensor have no byte in common: such a step is compiled. */
static rp_tensor *halves[2];
BODY(halves_are_written) {
    UNUSED;
    rp_add_(halves[0], in[0]);
    rp_mul_(halves[1], halves[0]);
    out[0] = rp_neg(halves[1]);
}
static void parts_apart(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *base[2] = {numbers(2 * N), numbers(2 * N)}, *out[2], *x = numbers(N);
        for (int i = 0; i < 2; i++) {
            halves[0] = rp_slice(base[i], 0, 0, N, 1);
            halves[1] = rp_slice(base[i], 0, N, 2 * N, 1);
            rp_compiled *f = function(halves_are_written, NULL, 0, i ? BACKENDS : b);
            for (int k = 0; k < 4; k++) OK(rp_call(f, &x, 1, &out[i], 1));
            assert_int_equal(told(f, "skip", NULL), 0);
            rp_compiled_release(f);
        }
        same(out[0], out[1]);
        same(base[0], base[1]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* Arguments that are parts of one tensor: both written, each read before and after. */
BODY(parts_are_written) {
    UNUSED;
    out[0] = rp_mul(in[0], in[1]);
    rp_add_(in[0], in[1]);
    rp_mul_(in[1], in[0]);
    out[1] = rp_sub(in[0], in[1]);
    rp_neg_(rp_slice(in[0], 0, 1, 3, 1));
}

/* Pair k of parts of 6 x N numbers. TOGETHER: they have bytes in common, or bytes of the one lie between bytes of the other. */
enum { PARTS = 7, TOGETHER = 4 };
static void parts_of(int k, rp_tensor *base, rp_tensor **in) {
    rp_tensor *all = rp_reshape(base, RP_DIMS(6 * N));
    const int64_t second[PARTS] = {N, 2 * N, 5 * N, 3 * N, N / 2, 1, 0};
    in[0] = rp_slice(all, 0, 0, N, 1);
    in[1] = rp_slice(all, 0, second[k], second[k] + N, 1);
    if (k == 3) { /* the second one comes first in memory, and in reverse order of dims */
        rp_tensor *front = rp_transpose(rp_reshape(in[0], RP_DIMS(2, N / 2)), 0, 1);
        in[0] = rp_reshape(in[1], RP_DIMS(N / 2, 2));
        in[1] = front;
    }
    if (k == PARTS - 1) { /* columns */
        rp_tensor *pairs = rp_reshape(all, RP_DIMS(3 * N, 2));
        in[0] = rp_slice(rp_select(pairs, 1, 0), 0, 0, N, 1);
        in[1] = rp_slice(rp_select(pairs, 1, 1), 0, 0, N, 1);
    }
}

static void parts_as_arguments(void **state) {
    (void)state;
    static const int order[] = {0, 0, 0, 4, 1, 0, 3, 3, 6, 2, 5, 2, 6, 0, 4, 3};
    for (int b = 0; b < BACKENDS; b++) {
        for (int mixed = 0; mixed < 2; mixed++) {
            rp_scope scope = rp_scope_begin();
            rp_compiled *f[2] = {function(parts_are_written, NULL, 0, b),
                                 function(parts_are_written, NULL, 0, BACKENDS)};
            rp_tensor *base[2] = {numbers(6 * N), numbers(6 * N)}, *in[2], *out[2][2];
            for (size_t k = 0; k < sizeof order / sizeof *order; k++) {
                rp_status got[2];
                if (!mixed && order[k] >= TOGETHER) continue;
                for (int i = 0; i < 2; i++) {
                    parts_of(order[k], base[i], in);
                    got[i] = rp_call(f[i], in, 2, out[i], 2);
                    assert_int_equal(rp_error_take(), got[i]);
                    OK(rp_synchronize(device));
                }
                assert_int_equal(got[0], got[1]);
                if (got[0] != RP_OK) rp_copy_(base[0], base[1]); /* refused: how far the function came is open */
                for (int r = 0; r < 2 && got[0] == RP_OK; r++) same(out[0][r], out[1][r]);
                same(base[0], base[1]);
            }
            if (!mixed) assert_int_equal(told(f[0], "skip", NULL), 0);
            if (mixed) assert_true(told(f[0], "skip", NULL) > 0);
            for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
            OK(rp_scope_end(scope, NULL, 0));
        }
    }
}

/* A part is written while a gradient goes through the other one. */
BODY(part_is_trained) {
    UNUSED;
    bool grad = rp_set_grad_enabled(false);
    rp_mul_scalar_(in[1], rp_f64(1.5));
    (void)rp_set_grad_enabled(grad);
    out[0] = rp_mul(rp_sin(in[0]), in[2]);
    out[1] = rp_neg(in[1]);
}
static void parts_of_a_step(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f[2] = {function(part_is_trained, NULL, 0, b), function(part_is_trained, NULL, 0, BACKENDS)};
        rp_tensor *base[2] = {numbers(4 * N), numbers(4 * N)}, *grad[2];
        for (int k = 0; k < 5; k++) {
            for (int i = 0; i < 2; i++) {
                const int64_t at = (k == 3 ? 2 : 1) * N;
                rp_tensor *w = numbers(N), *out[2];
                OK(rp_set_requires_grad(w, true));
                rp_tensor *in[] = {rp_slice(base[i], 0, 0, N, 1), rp_slice(base[i], 0, at, at + N, 1), w};
                OK(rp_call(f[i], in, 3, out, 2));
                OK(rp_grad(&out[0], 1, &w, 1, (rp_tensor *[]){rp_cos(rp_detach(out[0]))}, NULL, &grad[i]));
            }
            same(grad[0], grad[1]);
            same(base[0], base[1]);
        }
        assert_int_equal(told(f[0], "skip", NULL), 0);
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

BODY(row_is_filled) {
    UNUSED;
    (void)rp_fill_(rp_select(in[0], 0, 1), rp_f64(0.5));
    out[0] = rp_neg(in[0]);
}
BODY(all_is_filled) {
    UNUSED;
    (void)rp_fill_(in[0], rp_f64(-2));
    out[0] = rp_exp(in[0]);
}
BODY(all_is_added) { /* each element depends on what it was: eager execution refuses where elements share memory */
    UNUSED;
    rp_add_scalar_(in[0], rp_f64(1));
    out[0] = rp_neg(in[0]);
}

/* Argument k: 3 x 4 numbers of its own, one row seen three times, rows that lie in each other, a transposed tensor. */
static rp_tensor *overlapping(int k, rp_tensor **memory) {
    *memory = numbers(12);
    switch (k) {
    case 0: return rp_reshape(*memory, RP_DIMS(3, 4));
    case 1: return rp_expand(rp_slice(*memory, 0, 0, 4, 1), RP_DIMS(3, 4));
    case 2: {
        rp_tensor *t =
            rp_from_blob(rp_data(*memory), RP_DIMS(3, 4), (const int64_t[]){2, 1}, RP_F32, device, NULL, NULL);
        OK(rp_declare_stable(t));
        return t;
    }
    default: return rp_transpose(rp_reshape(*memory, RP_DIMS(4, 3)), 0, 1);
    }
}

static void elements_share_memory(void **state) {
    (void)state;
    static rp_body *const bodies[] = {row_is_filled, all_is_filled, all_is_added};
    static const int order[] = {0, 1, 1, 0, 2, 2, 3, 1, 3, 2};
    for (int n = 0; n < 3 * BACKENDS; n++) {
        rp_body *body = bodies[n / BACKENDS];
        for (size_t first = 0; first < 3; first++) { /* another layout is the one that is recorded */
            rp_scope scope = rp_scope_begin();
            rp_compiled *f[2] = {function(body, NULL, 0, n % BACKENDS), function(body, NULL, 0, BACKENDS)};
            for (size_t k = first; k < sizeof order / sizeof *order; k++) {
                rp_tensor *out[2], *memory[2], *x;
                rp_status got[2];
                if (body == all_is_added && order[k] == 2) continue; /* the result depends on the order of elements */
                for (int i = 0; i < 2; i++) {
                    x = overlapping(order[k], &memory[i]);
                    got[i] = rp_call(f[i], &x, 1, &out[i], 1);
                    assert_int_equal(rp_error_take(), got[i]);
                    OK(rp_synchronize(device));
                }
                assert_int_equal(got[0], got[1]);
                assert_int_equal(got[0], body == all_is_added && order[k] == 1 ? RP_ERROR_INVALID_ARGUMENT : RP_OK);
                if (got[0] == RP_OK) same(out[0], out[1]);
                same(memory[0], memory[1]);
            }
            for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
            OK(rp_scope_end(scope, NULL, 0));
        }
    }
}

/* ---- views of what is written with a gradient, as results */

enum { WHOLE, PART, VIEWED, BOTH };
typedef struct written_view {
    int view, result;
} written_view;
BODY(view_of_written) {
    (void)n_in, (void)n_out;
    const written_view *w = ctx;
    rp_tensor *made = w->view % 2 ? rp_zeros(RP_DIMS(3, 4)) : rp_mul_scalar(in[1], rp_f64(2)), *v;
    switch (w->view / 2) {
    case 0: v = rp_select(made, 0, 1); break;
    case 1: v = rp_transpose(made, 0, 1); break;
    case 2: v = rp_reshape(made, RP_DIMS(12)); break;
    case 3: v = rp_slice(made, 1, 1, 3, 1); break;
    default: v = rp_unsqueeze(rp_slice(made, 0, 0, 3, 2), 0); break;
    }
    rp_tensor *value = rp_select(rp_select(in[0], 0, 0), 0, 2); /* 0-d: fits every view */
    rp_tensor *other = rp_neg(v);                               /* read before the write: no history */
    rp_add_(v, rp_exp(value));
    out[0] = w->result == WHOLE ? made : w->result == PART ? rp_select(made, 0, 2) : v;
    out[1] = w->result == BOTH ? made : w->result == VIEWED ? other : rp_mul(other, rp_sin(v));
}

static void views_have_histories(void **state) {
    (void)state;
    for (int n = 0; n < 10 * 4 * BACKENDS; n++) {
        rp_scope scope = rp_scope_begin();
        written_view w = {n % 10, n / 10 % 4};
        rp_compiled *f[2] = {function(view_of_written, &w, sizeof w, n / 40),
                             function(view_of_written, &w, sizeof w, BACKENDS)};
        for (int k = 0; k < 4; k++) {
            rp_tensor *out[2][2], *grad[2];
            for (int i = 0; i < 2; i++) {
                rp_tensor *in[2] = {rp_reshape(numbers(12), RP_DIMS(3, 4)), rp_reshape(numbers(12), RP_DIMS(3, 4))};
                rp_tensor *roots[2], *seeds[2];
                size_t n_roots = 0;
                OK(rp_set_requires_grad(in[0], true));
                OK(rp_call(f[i], in, 2, out[i], 2));
                for (int r = 0; r < 2; r++) {
                    if (!rp_requires_grad(out[i][r]) || (k == 3 && r == 1)) continue;
                    seeds[n_roots] = rp_cos(rp_detach(out[i][r]));
                    roots[n_roots++] = out[i][r];
                }
                assert_true(n_roots > 0);
                OK(rp_grad(roots, n_roots, in, 1, seeds, RP_OPTIONS(rp_backward_options, .allow_unused = true),
                           &grad[i]));
            }
            for (int r = 0; r < 2; r++) {
                same(out[0][r], out[1][r]);
                assert_int_equal(rp_requires_grad(out[0][r]), rp_requires_grad(out[1][r]));
            }
            assert_int_equal(!grad[0], !grad[1]);
            if (grad[0]) same(grad[0], grad[1]);
        }
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* ---- an error of the function, while the trace computes what came before it */

BODY(view_that_does_not_fit) {
    UNUSED;
    rp_mul_(in[0], in[1]);
    out[0] = rp_view(in[0], RP_DIMS(6));
    (void)rp_item_f64(total(in[0]));
}
static void errors_stay(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f = function(view_that_does_not_fit, NULL, 0, b);
        for (int k = 0; k < 5; k++) {
            bool fits = k % 3 == 0;
            rp_tensor *out,
                *in[2] = {rp_reshape(numbers(6), RP_DIMS(fits ? 2 : 3, fits ? 3 : 2)), rp_ones(RP_DIMS(2, 3))};
            if (!fits) in[0] = rp_permute(in[0], RP_DIMS(1, 0));
            OK(rp_set_requires_grad(in[1], k != 1));
            assert_int_equal(rp_call(f, in, 2, &out, 1), fits ? RP_OK : RP_ERROR_SHAPE);
            assert_int_equal(rp_error_take(), fits ? RP_OK : RP_ERROR_SHAPE);
        }
        rp_compiled_release(f);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* The program goes on with an error of its own: what a compiler tries, and reports to explain, does not take it back. */
/* Two arguments are parts of one tensor: one is written, the other read. A gradient for some results, which the call runs again for,
   has the values of a call with tensors apart. */
static void reads_and_writes(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *w = *(rp_tensor **)ctx;
    out[0] = rp_mul(rp_sin(w), in[0]);
    out[1] = rp_cos(w);
    rp_add_scalar_(in[1], rp_i64(1));
}

static void parts_run_again(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *w = numbers(2);
        OK(rp_set_requires_grad(w, true));
        rp_compiled *f = function(reads_and_writes, &w, sizeof w, b);
        for (int k = 1; k < 8; k++) {
            const int given = k / 2 % 2;
            rp_tensor *base = numbers(5), *out[2];
            rp_tensor *in[2] = {rp_slice(base, 0, 0, 2, 1), rp_slice(base, 0, 2, 5, 1)};
            OK(rp_call(f, in, 2, out, 2));
            if (k == 1) continue; /* op by op: the version of the storage is the other part's, too */
            OK(rp_backward(rp_sum(out[given]), NULL, NULL));
            same(rp_grad_of(w), given ? rp_neg(rp_sin(rp_detach(w))) : rp_mul(rp_cos(rp_detach(w)), in[0]));
            same(in[1], rp_add_scalar(rp_slice(numbers(5), 0, 2, 5, 1), rp_i64(1)));
            OK(rp_set_grad(w, NULL));
        }
        rp_compiled_release(f);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* Ops over many tensors write what a graph has made, and copies of parts, in place: other values made of the same memory before and
   after are those of eager calls. */
typedef struct gradients {
    rp_tensor *p[2], *buffer;
    int way;
} gradients;

static void gradients_are_written(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const gradients *g = ctx;
    rp_tensor *const *p = g->p, *s = rp_sin(in[0]), *kept = NULL;
    (void)n_in, (void)n_out;
    switch (g->way) {
    case 0: /* between two writes, of the argument */
        rp_set_grad(p[0], rp_detach(in[0]));
        rp_clip_grad_value(p, 1, 0.75);
        rp_copy_(g->buffer, in[0]);
        rp_clip_grad_value(p, 1, 0.25);
        break;
    case 1: /* what stands for another value before the write */
        rp_set_grad(p[0], s);
        kept = rp_mul_scalar(s, rp_f64(1));
        rp_clip_grad_norm(p, 1, 0.25, 2);
        kept = rp_add_scalar(kept, rp_i64(1));
        break;
    case 2: /* two that are equal */
        rp_set_grad(p[0], rp_neg(rp_neg(s)));
        rp_set_grad(p[1], rp_abs(rp_abs(rp_sin(in[0]))));
        rp_clip_grad_norm(p, 1, 0.25, 2);
        rp_copy_(g->buffer, s);
        rp_clip_grad_norm(p, 2, 0.125, 2);
        kept = rp_clone(rp_grad_of(p[0]));
        break;
    case 3: /* one gradient of two parameters: executed, it is scaled twice */
        rp_set_grad(p[0], rp_detach(in[0]));
        rp_set_grad(p[1], rp_detach(in[0]));
        rp_clip_grad_norm(p, 2, 0.25, 2);
        break;
    default: /* of a detached value */
        rp_set_grad(p[0], rp_detach(s));
        rp_clip_grad_norm(p, 1, 0.25, 2);
        kept = rp_clone(rp_mul_scalar(s, rp_f64(1)));
        rp_clip_grad_norm(p, 1, 0.125, 2);
        rp_copy_(g->buffer, rp_mul_scalar(s, rp_f64(1)));
    }
    out[0] = rp_detach(kept ? rp_clone(kept) : rp_sum(in[0]));
}

static void lists_are_written(void **state) {
    (void)state;
    for (int n = 0; n < 5 * BACKENDS; n++) {
        if (n / BACKENDS == 3 && device.type == RP_DEVICE_CUDA) continue; /* both at once, there */
        rp_scope scope = rp_scope_begin();
        gradients g[2];
        rp_compiled *f[2];
        for (int i = 0; i < 2; i++) {
            g[i] = (gradients){{rp_ones(RP_DIMS(6)), rp_ones(RP_DIMS(6))}, rp_zeros(RP_DIMS(6)), n / BACKENDS};
            for (int k = 0; k < 2; k++) OK(rp_set_requires_grad(g[i].p[k], true));
            f[i] = function(gradients_are_written, &g[i], 0, i ? n % BACKENDS : BACKENDS);
        }
        for (int call = 0; call < 4; call++) {
            rp_tensor *x[2], *out[2];
            for (int i = 0; i < 2; i++) {
                x[i] = numbers(6);
                for (int k = 0; k < 2; k++) OK(rp_set_grad(g[i].p[k], NULL));
                OK(rp_call(f[i], &x[i], 1, &out[i], 1));
            }
            same(out[0], out[1]);
            same(x[0], x[1]);
            same(g[0].buffer, g[1].buffer);
            same(rp_grad_of(g[0].p[0]), rp_grad_of(g[1].p[0]));
            if (rp_grad_of(g[0].p[1])) same(rp_grad_of(g[0].p[1]), rp_grad_of(g[1].p[1]));
        }
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* What is kept of memory before it is written, and given to other memory afterwards. */
static void kept_before(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *a = in[0], *b = in[1], *kept = rp_clone(a);
    (void)n_in, (void)n_out;
    switch (*(const int *)ctx) {
    case 0: /* a swap */
        rp_copy_(a, b);
        rp_copy_(b, kept);
        break;
    case 1:
        rp_mul_scalar_(a, rp_i64(2));
        rp_copy_(b, kept);
        break;
    case 2: /* by copy_, and what is written last comes first in the graph */
        (void)rp_neg(a);
        rp_copy_(b, a);
        rp_mul_scalar_(a, rp_f64(0.5));
        break;
    case 3: /* by rows */
        rp_sub_(a, rp_sum(a, RP_DIMS(1), true));
        rp_copy_(b, kept);
        break;
    case 4:
        rp_copy_(a, rp_softmax(a, 1));
        rp_copy_(b, rp_mul_scalar(kept, rp_i64(1)));
        break;
    default: /* from one line to the next */ rp_copy_(a, rp_cumsum(b, 1)); rp_copy_(b, kept);
    }
    out[0] = rp_sum(kept);
}

static void kept_before_a_write(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{4, 4}, {3, 5}, {16, 1}, {1, 16}, {64, 64}, {100, 37}};
    static const int ways[] = {0, 1, 2, 3, 4, 5};
    const bool few = device.type == RP_DEVICE_CUDA;
    for (size_t n = 0; n < 6 * sizeof sizes / sizeof *sizes * BACKENDS; n += few ? 7 : 1) {
        rp_scope scope = rp_scope_begin();
        const int64_t *size = sizes[n / BACKENDS / 6];
        rp_compiled *f = function(kept_before, (void *)(uintptr_t)&ways[n / BACKENDS % 6], sizeof *ways, n % BACKENDS);
        for (int k = 0; k < 3; k++) {
            rp_tensor *in[2], *want[2], *out, *sum;
            for (int i = 0; i < 2; i++) {
                in[i] = rp_mul_scalar(rp_reshape(numbers(size[0] * size[1]), size, 2), rp_i64(i + 1));
                want[i] = rp_clone(in[i]);
            }
            kept_before((void *)(uintptr_t)&ways[n / BACKENDS % 6], want, 2, &sum, 1);
            OK(rp_call(f, in, 2, &out, 1));
            for (int i = 0; i < 2; i++) same(in[i], want[i]);
            same(out, sum);
        }
        rp_compiled_release(f);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* A write that is refused is refused where it is called, recorded or not: a function may do something else then. */
static void write_or_copy(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *x = rp_expand(in[0], RP_DIMS(3, 4)), *y = rp_clone(in[1]);
    if (rp_is_error(rp_add_(x, in[1]))) {
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
        x = rp_add(x, in[1]);
    }
    if (rp_is_error(rp_copy_(rp_slice(y, 0, 0, 2, 1), rp_slice(y, 0, 1, 3, 1)))) { /* they overlap */
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
        rp_copy_(rp_slice(y, 0, 0, 2, 1), rp_clone(rp_slice(y, 0, 1, 3, 1)));
    }
    out[0] = x;
    out[1] = y;
}

static void refused_where_they_are(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f = function(write_or_copy, NULL, 0, b);
        for (int k = 0; k < 5; k++) { /* one column and three are other layouts, more rows another size */
            const int64_t rows = k == 3 ? 1 : 3;
            rp_tensor *in[2] = {rp_reshape(numbers(4 * rows), RP_DIMS(rows, 4)), rp_ones(RP_DIMS(3, 4))};
            if (k % 2 == 0) in[0] = rp_slice(in[0], 0, 0, 1, 1);
            rp_tensor *out[2], *want[2];
            write_or_copy(NULL, (rp_tensor *[]){rp_clone(in[0]), rp_clone(in[1])}, 2, want, 2);
            OK(rp_call(f, in, 2, out, 2));
            for (int i = 0; i < 2; i++) same(out[i], want[i]);
        }
        rp_compiled_release(f);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

static void errors_of_the_program_stay(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f = function(all_is_filled, NULL, 0, b);
        for (int k = 0; k < 6; k++) {
            rp_tensor *memory, *x = overlapping(k % 2, &memory), *out;
            (void)rp_view(x, RP_DIMS(7));
            assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
            assert_int_equal(rp_error_take(), RP_ERROR_SHAPE);
            same(out, rp_exp(x));
        }
        assert_true(told(f, "skip", "not-one-graph") > 0);
        rp_compiled_release(f);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* ---- buffers that are written while training */

typedef struct norm { /* batch norm by hand over (batch, features) */
    rp_tensor *weight, *bias, *mean, *variance, *count;
    bool training;
    int kind; /* of what else is done */
} norm;

static rp_tensor *normalise(const norm *n, rp_tensor *x) {
    rp_tensor *mean = n->mean, *variance = n->variance;
    if (n->training) {
        mean = rp_mean(x, RP_DIMS(0));
        rp_tensor *off = rp_sub(x, mean);
        variance = rp_mean(rp_mul(off, off), RP_DIMS(0));
        bool grad = rp_set_grad_enabled(false);
        rp_mul_scalar_(n->mean, rp_f64(0.9));
        rp_add_(n->mean, mean, RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.1)));
        rp_copy_(n->variance, rp_add(rp_mul_scalar(n->variance, rp_f64(0.9)), variance,
                                     RP_OPTIONS(rp_add_options, .alpha = rp_f64(0.125))));
        rp_add_scalar_(n->count, rp_i64(1));
        (void)rp_set_grad_enabled(grad);
    }
    rp_tensor *scale = rp_rsqrt(rp_add_scalar(variance, rp_f64(1e-5)));
    return rp_add(rp_mul(rp_mul(rp_sub(x, mean), scale), n->weight), n->bias);
}

BODY(normalised) {
    (void)n_in, (void)n_out;
    const norm *n = ctx;
    out[0] = rp_tanh(normalise(n, in[0]));
    if (n->kind == 1) out[1] = n->mean;
    if (n->kind == 2) out[1] = rp_mul(out[0], rp_mul_scalar(n->mean, rp_f64(2))); /* as it is behind the write */
    if (n->kind == 3) (void)rp_fill_(n->count, rp_i64(-1));                       /* nobody reads it */
    if (n->kind == 4) rp_add_(in[1], rp_detach(rp_select(out[0], 0, 0)));         /* an argument, with grad mode on */
    if (!out[1]) out[1] = rp_sin(out[0]);
}
BODY(step) { /* the whole: forward, backward, update */
    (void)n_in, (void)n_out;
    const norm *n = ctx;
    rp_tensor *loss = total(rp_mul(normalise(n, in[0]), in[0]));
    OK(rp_backward(loss, NULL, NULL));
    bool grad = rp_set_grad_enabled(false);
    rp_tensor *leaf[2] = {n->weight, n->bias};
    for (int k = 0; k < 2; k++) {
        rp_add_(leaf[k], rp_grad_of(leaf[k]), RP_OPTIONS(rp_add_options, .alpha = rp_f64(-0.01)));
        OK(rp_set_grad(leaf[k], NULL));
    }
    (void)rp_set_grad_enabled(grad);
    out[0] = rp_detach(loss);
}

static norm norm_new(bool training, int kind) {
    norm n = {.weight = rp_add_scalar(numbers(4), rp_f64(1)),
              .bias = rp_cos(numbers(4)),
              .mean = rp_zeros(RP_DIMS(4)),
              .variance = rp_ones(RP_DIMS(4)),
              .count = rp_zeros(RP_NO_DIMS, RP_OPTIONS(rp_zeros_options, .dtype = RP_I64)),
              .training = training,
              .kind = kind};
    OK(rp_set_requires_grad(n.weight, true));
    OK(rp_set_requires_grad(n.bias, true));
    return n;
}

static void same_norms(const norm *a, const norm *b) {
    same(a->weight, b->weight);
    same(a->bias, b->bias);
    same(a->mean, b->mean);
    same(a->variance, b->variance);
    same(a->count, b->count);
}

/* Gradients of parameters and argument by a backward outside: for all results, for one, and differentiated again. */
static void differentiate(rp_tensor **out, rp_tensor *x, const norm *n, int how, rp_tensor **grad) {
    rp_tensor *leaves[3] = {n->weight, n->bias, x}, *roots[2], *seeds[2];
    size_t n_roots = 0;
    for (int r = 0; r < 2; r++) {
        if (!rp_requires_grad(out[r]) || (how == 1 && r == 1)) continue;
        seeds[n_roots] = rp_cos(rp_detach(out[r]));
        roots[n_roots++] = out[r];
    }
    OK(rp_grad(roots, n_roots, leaves, 3, seeds,
               RP_OPTIONS(rp_backward_options, .allow_unused = true, .create_graph = how == 2), grad));
    if (how != 2) return;
    rp_tensor *sum = total(rp_mul(grad[2], grad[2]));
    OK(rp_grad(&sum, 1, leaves, 3, NULL, RP_OPTIONS(rp_backward_options, .allow_unused = true), grad));
}

static void buffers_are_written(void **state) {
    (void)state;
    for (int c = 0; c < BACKENDS * 10; c++) {
        rp_scope scope = rp_scope_begin();
        int b = c % BACKENDS, kind = c / BACKENDS % 5;
        bool training = c / BACKENDS < 5;
        norm n[2] = {norm_new(training, kind), norm_new(training, kind)};
        rp_compiled *f[2];
        rp_fn fn = {normalised, &n[0], sizeof n[0], "norm"};
        f[0] =
            rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .strict = true, .fullgraph = true));
        f[1] = function(normalised, &n[1], sizeof n[1], BACKENDS);
        for (int k = 0; k < 9; k++) {
            rp_tensor *out[2][2], *grad[2][3], *in[2][2];
            for (int i = 0; i < 2; i++) {
                in[i][0] = rp_reshape(numbers(4 * (5 + k / 7)), RP_DIMS(5 + k / 7, 4));
                in[i][1] = numbers(4);
                OK(rp_set_requires_grad(in[i][0], true));
                OK(rp_call(f[i], in[i], 2, out[i], 2));
                differentiate(out[i], in[i][0], &n[i], k < 4 ? 0 : k % 3, grad[i]);
            }
            for (int r = 0; r < 2; r++) same(out[0][r], out[1][r]);
            for (int r = 0; r < 3; r++) {
                assert_int_equal(!grad[0][r], !grad[1][r]);
                if (grad[0][r]) same(grad[0][r], grad[1][r]);
            }
            same(in[0][1], in[1][1]);
            same_norms(&n[0], &n[1]);
        }
        assert_int_equal(told(f[0], "skip", NULL), 0);
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

static void whole_steps_write_buffers(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        norm n[2] = {norm_new(true, 0), norm_new(true, 0)};
        rp_compiled *f[2];
        rp_fn fn = {step, &n[0], sizeof n[0], "step"};
        f[0] =
            rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .strict = true, .fullgraph = true));
        f[1] = function(step, &n[1], sizeof n[1], BACKENDS);
        for (int k = 0; k < 5; k++) {
            rp_tensor *out[2], *x = rp_reshape(numbers(20), RP_DIMS(5, 4));
            for (int i = 0; i < 2; i++) OK(rp_call(f[i], &x, 1, &out[i], 1));
            same(out[0], out[1]);
            same_norms(&n[0], &n[1]);
        }
        assert_int_equal(told(f[0], "skip", NULL), 0);
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* The old value of what is written: where the backward can do with what was made from it, it is that which is kept; where it
   cannot, eager execution refuses the backward, and so does a compiled function, which says why it is not one graph. */
typedef struct old_value {
    rp_tensor *w, *buffer;
    int kind;
} old_value;
BODY(old_is_used) {
    (void)n_in, (void)n_out;
    const old_value *o = ctx;
    rp_tensor *of = o->kind == 3 ? in[1] : o->buffer;
    rp_tensor *scale = o->kind == 0 ? rp_exp(of) : o->kind == 1 ? rp_transpose(of, 0, 1) : of;
    out[0] = rp_mul(rp_mul(in[0], scale), o->w);
    rp_add_scalar_(of, rp_f64(0.5));
}
static void old_values(void **state) {
    (void)state;
    for (int c = 0; c < BACKENDS * 4; c++) {
        rp_scope scope = rp_scope_begin();
        old_value o[2];
        rp_compiled *f[2];
        for (int i = 0; i < 2; i++) {
            o[i] = (old_value){rp_reshape(numbers(4), RP_DIMS(2, 2)), rp_reshape(rp_neg(numbers(4)), RP_DIMS(2, 2)),
                               c / BACKENDS};
            OK(rp_set_requires_grad(o[i].w, true));
            f[i] = function(old_is_used, &o[i], sizeof o[i], i ? BACKENDS : c % BACKENDS);
        }
        for (int k = 0; k < 6; k++) {
            rp_tensor *out[2], *grad[2][2], *other[2];
            rp_status back[2];
            for (int i = 0; i < 2; i++) {
                rp_tensor *x = rp_reshape(numbers(4), RP_DIMS(2, 2)), *leaves[2] = {x, o[i].w};
                rp_tensor *in[2] = {x, other[i] = rp_reshape(numbers(4), RP_DIMS(2, 2))};
                OK(rp_set_requires_grad(x, true));
                OK(rp_call(f[i], in, 2, &out[i], 1));
                rp_tensor *seed = rp_cos(rp_detach(out[i]));
                back[i] = rp_grad(&out[i], 1, leaves, 2, &seed, RP_OPTIONS(rp_backward_options, .create_graph = k > 3),
                                  grad[i]);
                assert_int_equal(rp_error_take(), back[i]);
            }
            same(out[0], out[1]);
            same(o[0].buffer, o[1].buffer);
            same(other[0], other[1]);
            assert_int_equal(back[1], o[0].kind == 0 ? RP_OK : RP_ERROR_VERSION);
            assert_int_equal(back[0], back[1]);
            for (int r = 0; r < 2 && back[0] == RP_OK; r++) same(grad[0][r], grad[1][r]);
        }
        assert_int_equal(told(f[0], "skip", "not-one-graph"), o[0].kind != 0);
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

/* ---- as many axes as there may be */

BODY(sixteen_axes) { /* rows of one element, beside 16 axes that no layout lets go together */
    UNUSED;
    rp_tensor *sum = rp_sum(in[0], RP_DIMS(15));
    out[0] = rp_relu(rp_view(sum, RP_DIMS(2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2)));
}
static void most_axes(void **state) {
    (void)state;
    for (int b = 0; b < BACKENDS; b++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f[2] = {function(sixteen_axes, NULL, 0, b), function(sixteen_axes, NULL, 0, BACKENDS)};
        rp_tensor *out[2], *x = rp_reshape(numbers(1 << 16), RP_DIMS(4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1));
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < 2; i++) OK(rp_call(f[i], &x, 1, &out[i], 1));
            same(out[0], out[1]);
        }
        for (int i = 0; i < 2; i++) rp_compiled_release(f[i]);
        OK(rp_scope_end(scope, NULL, 0));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrapped_memory, begin, end),
        cmocka_unit_test_setup_teardown(wrapped_captured, begin, end),
        cmocka_unit_test_setup_teardown(memory_of_ours, begin, end),
        cmocka_unit_test_setup_teardown(wrapped_in_segments, begin, end),
        cmocka_unit_test_setup_teardown(parts_of_captured, begin, end),
        cmocka_unit_test_setup_teardown(parts_apart, begin, end),
        cmocka_unit_test_setup_teardown(parts_as_arguments, begin, end),
        cmocka_unit_test_setup_teardown(parts_of_a_step, begin, end),
        cmocka_unit_test_setup_teardown(elements_share_memory, begin, end),
        cmocka_unit_test_setup_teardown(views_have_histories, begin, end),
        cmocka_unit_test_setup_teardown(errors_stay, begin, end),
        cmocka_unit_test_setup_teardown(lists_are_written, begin, end),
        cmocka_unit_test_setup_teardown(kept_before_a_write, begin, end),
        cmocka_unit_test_setup_teardown(parts_run_again, begin, end),
        cmocka_unit_test_setup_teardown(refused_where_they_are, begin, end),
        cmocka_unit_test_setup_teardown(errors_of_the_program_stay, begin, end),
        cmocka_unit_test_setup_teardown(buffers_are_written, begin, end),
        cmocka_unit_test_setup_teardown(whole_steps_write_buffers, begin, end),
        cmocka_unit_test_setup_teardown(old_values, begin, end),
        cmocka_unit_test_setup_teardown(most_axes, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
