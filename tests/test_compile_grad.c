/* Gradients that cross the border of a compiled function: derivatives of derivatives that the function takes itself, leaves
   that it makes, what it does with grad mode off, custom functions, one tensor as several of its results. Every result and
   gradient is compared, bit for bit, with the function run eagerly, on every backend that compiles. */
/* ctest: labels=compile timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include <reprise.h>

#include "compile/unit.h"
#include "support/trace_help.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

static const char *const backends[] = {"eager", "aot_eager", "cudagraphs", "fused"};
enum { BACKENDS = 4, OUT = 2 };

static rp_tensor *total(rp_tensor *t) { return rp_sum(t); }

static rp_tensor *derivative(rp_tensor *of, rp_tensor *by) {
    rp_tensor *sum = total(of), *g = NULL;
    assert_int_equal(rp_grad(&sum, 1, &by, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &g), RP_OK);
    return g;
}

/* ---- derivatives inside, and the derivative of the whole outside */

BODY(cube) { /* saved arguments */
    UNUSED;
    out[0] = derivative(rp_mul(in[0], rp_mul(in[0], in[0])), in[0]);
    out[1] = NULL;
}
BODY(by_intermediate) { /* saved results, and a tensor in the middle */
    UNUSED;
    rp_tensor *h = rp_sin(in[0]), *g = derivative(rp_tanh(rp_exp(h)), h);
    out[0] = rp_mul(g, h);
    out[1] = h;
}
BODY(rows) { /* saved statistics of row kernels */
    UNUSED;
    rp_tensor *h = rp_softmax(rp_layer_norm(in[0], RP_DIMS(4), NULL, NULL, 1e-5), -1);
    rp_tensor *g = derivative(rp_mul(h, h), in[0]);
    out[0] = total(rp_mul(g, g));
    out[1] = rp_log_softmax(g, 0);
}
BODY(thrice) { /* a third derivative is taken outside */
    UNUSED;
    rp_tensor *g = derivative(rp_exp(rp_mul(in[0], in[0])), in[0]);
    out[0] = derivative(rp_mul(g, g), in[0]);
    out[1] = NULL;
}
BODY(product) { /* a penalty on the gradient of a layer */
    UNUSED;
    rp_tensor *w = rp_slice(in[0], 0, 0, 2, 1), *h = rp_matmul(rp_relu(in[0]), rp_transpose(w, 0, 1));
    rp_tensor *g = derivative(rp_mul(h, h), w);
    out[0] = rp_add(total(rp_mul(g, g)), total(h));
    out[1] = NULL;
}
BODY(factors) { /* a penalty on the gradient of a product that has zeros */
    UNUSED;
    rp_tensor *x = rp_mul(in[0], rp_gt_scalar(in[0], rp_f64(-0.4)));
    rp_tensor *g = derivative(rp_prod(x, 0), in[0]);
    out[0] = rp_add(total(rp_mul(g, g)), rp_prod(x));
    out[1] = NULL;
}
BODY(cut) { /* without create_graph the derivative is a constant of the backward outside */
    UNUSED;
    rp_tensor *sum = total(rp_exp(in[0])), *g = NULL;
    assert_int_equal(rp_grad(&sum, 1, in, 1, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true), &g), RP_OK);
    out[0] = rp_mul(g, in[0]);
    out[1] = rp_detach(sum);
}

BODY(up_to_intermediate) { /* a derivative that stops at h, without retain_graph, leaves the history of h whole */
    UNUSED;
    rp_tensor *h = rp_mul(in[0], rp_sin(in[0])), *sum = total(rp_mul(rp_exp(h), h)), *g = NULL;
    assert_int_equal(rp_grad(&sum, 1, &h, 1, NULL, NULL, &g), RP_OK);
    out[0] = h;
    out[1] = rp_mul(h, g);
}
BODY(in_two_halves) { /* and goes on from there */
    UNUSED;
    rp_tensor *leaf = rp_detach(in[0]), *half = NULL, *g = NULL;
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    rp_tensor *h = rp_mul(leaf, rp_sin(leaf)), *sum = total(rp_mul(rp_exp(h), h));
    assert_int_equal(rp_grad(&sum, 1, &h, 1, NULL, NULL, &half), RP_OK);
    assert_int_equal(rp_grad(&h, 1, &leaf, 1, &half, NULL, &g), RP_OK);
    out[0] = rp_mul(g, in[0]);
    out[1] = NULL;
}

BODY(largest) { /* an index that was saved has no history */
    UNUSED;
    rp_tensor *index = NULL, *values = rp_topk(in[0], 2, -1, true, true, &index);
    out[0] = derivative(values, in[0]);
    out[1] = rp_mul(derivative(rp_mul(values, values), in[0]), in[0]);
}

/* ---- leaves that the function makes */

BODY(leaf_for_itself) { /* used inside alone: its gradient is a value like any other */
    UNUSED;
    rp_tensor *leaf = rp_detach(in[0]);
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    rp_tensor *g = derivative(rp_mul(rp_mul(leaf, leaf), in[0]), leaf);
    out[0] = rp_mul(g, in[0]);
    out[1] = rp_detach(leaf);
}
BODY(leaf_behind_result) {
    UNUSED;
    rp_tensor *leaf = rp_clone(rp_detach(in[0]));
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    out[0] = rp_sin(in[0]);
    out[1] = rp_mul(leaf, leaf);
}
BODY(leaf_given) {
    UNUSED;
    out[1] = rp_ones_like(in[0]);
    assert_int_equal(rp_set_requires_grad(out[1], true), RP_OK);
    out[0] = rp_mul(out[1], in[0]);
}

/* ---- grad mode off for a while */

#define FN(body) ((rp_fn){body, NULL, 0, #body})

BODY(square) {
    UNUSED;
    out[0] = rp_mul(in[0], in[0]);
}
BODY(constant_inside) { /* also when the call runs again under the tape, for another choice of results */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = rp_mul(rp_exp(in[0]), in[0]);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul(rp_mul(c, in[0]), in[0]);
    out[1] = rp_add(c, rp_sin(in[0]));
}
BODY(written_part) { /* the values change, the history does not */
    UNUSED;
    rp_tensor *h = rp_sin(in[0]);
    bool old = rp_set_grad_enabled(false);
    rp_fill_(rp_slice(h, 0, 0, 2, 1), rp_f64(2));
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul_scalar(h, rp_f64(3));
    out[1] = NULL;
}
BODY(late) { /* a history that comes with a write through a view, of what is read under both modes and is two results */
    UNUSED;
    rp_tensor *c = rp_mul_scalar(rp_detach(rp_cos(in[0])), rp_f64(0.5));
    rp_mul_(rp_select(c, 0, 1), rp_select(in[0], 0, 2));
    out[0] = out[1] = c;
}
BODY(late_in_front) { /* what is written was made of the argument with grad mode off: no gradient goes there */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = rp_mul_scalar(in[0], rp_f64(0.75));
    (void)rp_set_grad_enabled(old);
    rp_mul_(rp_select(c, 0, 1), rp_select(in[0], 0, 0));
    out[0] = c;
    out[1] = NULL;
}
BODY(late_and_off) {
    UNUSED;
    rp_tensor *c = rp_mul_scalar(rp_detach(rp_cos(in[0])), rp_f64(0.5));
    rp_mul_(rp_select(c, 0, 1), rp_select(in[0], 0, 2));
    bool old = rp_set_grad_enabled(false);
    rp_tensor *d = rp_exp(c), *e = NULL;
    assert_int_equal(rp_checkpoint(FN(square), &c, 1, &e, 1), RP_OK);
    (void)rp_set_grad_enabled(old);
    out[0] = c;
    out[1] = rp_add(d, e);
}
BODY(written_for_nobody) { /* what carries no gradient is written as ever */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = rp_mul(in[0], in[0]);
    rp_mul_scalar_(c, rp_f64(2));
    (void)rp_set_grad_enabled(old);
    out[0] = rp_add_(c, rp_exp(in[0]));
    out[1] = NULL;
}

/* ---- the same in branches, loops and checkpoints */

static rp_tensor *more_than(rp_tensor *x, double bound) { return rp_gt_scalar(total(x), rp_f64(bound)); }

BODY(partly) { /* exp(x) x counts as a number times x */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    assert_false(rp_grad_enabled());
    rp_tensor *c = rp_exp(in[0]);
    assert_false(rp_set_grad_enabled(old));
    assert_int_equal(rp_grad_enabled(), old);
    out[0] = rp_mul(c, in[0]);
}
BODY(wholly) {
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    out[0] = rp_mul(rp_exp(in[0]), in[0]);
    (void)rp_set_grad_enabled(old);
}
BODY(squared) {
    UNUSED;
    out[0] = rp_mul(in[0], in[0]);
}
BODY(taken) {
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(partly), FN(squared), in, 1, out, 1), RP_OK);
    assert_int_equal(rp_cond(more_than(in[0], 99), FN(squared), FN(partly), in, 1, &out[1], 1), RP_OK);
}
BODY(taken_off) { /* neither branch gives what carries a gradient */
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], 0), FN(wholly), FN(wholly), in, 1, out, 1), RP_OK);
    out[1] = rp_mul(rp_sin(in[0]), out[0]);
}
BODY(taken_either) { /* one does */
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], 99), FN(wholly), FN(squared), in, 1, out, 1), RP_OK);
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(wholly), FN(squared), in, 1, &out[1], 1), RP_OK);
    out[1] = rp_mul(rp_sin(in[0]), out[1]);
}
BODY(taken_under) { /* the whole node is off, at the top and in a branch */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = NULL;
    assert_int_equal(rp_cond(more_than(in[0], 0), FN(squared), FN(partly), in, 1, &c, 1), RP_OK);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul(c, in[0]);
    out[1] = c;
}
BODY(squared_quietly) {
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = NULL;
    assert_int_equal(rp_cond(more_than(in[0], 0), FN(squared), FN(wholly), in, 1, &c, 1), RP_OK);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul(c, in[0]);
}
BODY(taken_inside) {
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(squared_quietly), FN(squared), in, 1, out, 1), RP_OK);
    out[1] = NULL;
}

BODY(few) {
    UNUSED;
    out[0] = rp_lt_scalar(in[0], rp_i64(3));
}
BODY(step_partly) {
    UNUSED;
    out[0] = rp_add_scalar(in[0], rp_i64(1));
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = rp_add(rp_sin(in[1]), in[2]);
    (void)rp_set_grad_enabled(old);
    out[1] = rp_add(rp_mul(c, in[1]), rp_mul(in[2], in[2]));
    out[2] = rp_mul_scalar(in[2], rp_f64(0.5));
}
BODY(step_off) { /* a state that carries nothing, although the invariant does */
    UNUSED;
    rp_tensor *const *from = ctx;
    out[0] = rp_add_scalar(in[0], rp_i64(1));
    bool old = rp_set_grad_enabled(false);
    out[1] = rp_add(rp_sin(in[1]), from[0]);
    (void)rp_set_grad_enabled(old);
}
BODY(step_inside) {
    UNUSED;
    out[0] = rp_add_scalar(in[0], rp_i64(1));
    rp_tensor *r = NULL;
    assert_int_equal(rp_cond(rp_gt_scalar(in[0], rp_i64(0)), FN(partly), FN(squared_quietly), in + 1, 1, &r, 1), RP_OK);
    out[1] = rp_sin(r);
}
BODY(looped) {
    UNUSED;
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), rp_sin(in[0]),
                          in[0]},
              *r[3];
    assert_int_equal(rp_while(FN(few), FN(step_partly), state, 3, 5, r), RP_OK);
    out[0] = r[1];
    out[1] = r[2];
}
BODY(looped_off) { /* no bound is needed */
    UNUSED;
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)),
                          rp_zeros_like(rp_detach(in[0]))},
              *r[2], *from = in[0];
    assert_int_equal(rp_while(FN(few), (rp_fn){step_off, &from, sizeof from, "step_off"}, state, 2, 0, r), RP_OK);
    out[0] = r[1];
    out[1] = rp_mul(r[1], in[0]);
}
BODY(looped_inside) {
    UNUSED;
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), rp_sin(in[0])},
              *r[2];
    assert_int_equal(rp_while(FN(few), FN(step_inside), state, 2, 4, r), RP_OK);
    out[0] = r[1];
    out[1] = NULL;
}
BODY(again_partly) {
    UNUSED;
    assert_int_equal(rp_checkpoint(FN(partly), in, 1, out, 1), RP_OK);
    assert_int_equal(rp_checkpoint(FN(wholly), in, 1, &out[1], 1), RP_OK);
}
BODY(quietly_inside) {
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(squared_quietly), FN(squared), in, 1, out, 1), RP_OK);
}
BODY(again_inside) {
    UNUSED;
    assert_int_equal(rp_checkpoint(FN(quietly_inside), in, 1, out, 1), RP_OK);
    assert_int_equal(rp_checkpoint(FN(squared_quietly), in, 1, &out[1], 1), RP_OK);
}
BODY(written_inside) {
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = rp_mul(in[0], in[0]);
    rp_mul_(c, in[0]);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_add_(c, rp_exp(in[0]));
}
BODY(taken_written) {
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(written_inside), FN(partly), in, 1, out, 1), RP_OK);
    out[1] = NULL;
}
BODY(view_inside) { /* a view that was made with grad mode off, its base goes on */
    UNUSED;
    rp_tensor *h = rp_sin(in[0]);
    bool old = rp_set_grad_enabled(false);
    rp_tensor *v = rp_transpose(h, 0, 1);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_add(rp_mul(v, h), h);
}
BODY(taken_view) {
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(view_inside), FN(partly), in, 1, out, 1), RP_OK);
    out[1] = NULL;
}

BODY(gives_back) {
    UNUSED;
    out[0] = in[0];
}
BODY(again_under) { /* the whole of a checkpoint is off, another is not; one draws, one hands on what it is given */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = NULL, *d = NULL, *e = NULL;
    assert_int_equal(rp_checkpoint(FN(squared), in, 1, &c, 1), RP_OK);
    assert_int_equal(rp_checkpoint(FN(partly), in, 1, &d, 1), RP_OK);
    (void)rp_set_grad_enabled(old);
    assert_int_equal(rp_checkpoint(FN(squared), &c, 1, &e, 1), RP_OK);
    out[0] = rp_mul(rp_add(c, d), in[0]);
    assert_int_equal(rp_checkpoint(FN(partly), &out[0], 1, &out[1], 1), RP_OK);
    out[1] = rp_add(out[1], e);
}
BODY(again_within) {
    UNUSED;
    rp_tensor *x = rp_mul(in[0], in[0]);
    rp_mul_(rp_select(x, 0, 0), rp_select(in[0], 0, 1));
    assert_int_equal(rp_checkpoint(FN(squared), &x, 1, out, 1), RP_OK);
}
BODY(again_within_under) { /* another inside of it, and a write to a part */
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = NULL;
    assert_int_equal(rp_checkpoint(FN(again_within), in, 1, &c, 1), RP_OK);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul(c, in[0]);
    out[1] = rp_maximum(c, in[0]);
}
BODY(handed_on) { /* what a checkpoint is given comes out of it as it is, with its history, also under grad mode off */
    UNUSED;
    rp_tensor *h = rp_sin(in[0]), *r = NULL;
    bool old = rp_set_grad_enabled(false);
    assert_int_equal(rp_checkpoint(FN(gives_back), &h, 1, &r, 1), RP_OK);
    (void)rp_set_grad_enabled(old);
    rp_mul_(r, in[0]); /* h is written */
    out[0] = rp_mul(h, r);
    out[1] = r;
}
BODY(looped_under) {
    UNUSED;
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), rp_sin(in[0]),
                          in[0]},
              *r[3];
    bool old = rp_set_grad_enabled(false);
    assert_int_equal(rp_while(FN(few), FN(step_partly), state, 3, 5, r), RP_OK);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul(r[1], in[0]);
    out[1] = r[2];
}

/* what cannot be a block */
BODY(history_written) { /* the history of h stays */
    UNUSED;
    rp_tensor *h = rp_sin(in[0]);
    bool old = rp_set_grad_enabled(false);
    rp_fill_(rp_slice(h, 0, 0, 2, 1), rp_f64(2));
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul_scalar(h, rp_f64(3));
}
BODY(taken_history) {
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(history_written), FN(partly), in, 1, out, 1), RP_OK);
    out[1] = NULL;
}
BODY(leaves_off) {
    UNUSED;
    (void)rp_set_grad_enabled(false);
    out[0] = rp_exp(in[0]);
}
BODY(taken_leaves_off) {
    UNUSED;
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(leaves_off), FN(partly), in, 1, out, 1), RP_OK);
    rp_tensor *c = rp_cos(in[0]);
    (void)rp_set_grad_enabled(true);
    out[0] = rp_mul(rp_mul(out[0], c), in[0]);
    out[1] = NULL;
}
BODY(switches_on) {
    UNUSED;
    bool old = rp_set_grad_enabled(true);
    out[0] = rp_mul(in[0], in[0]);
    (void)rp_set_grad_enabled(old);
}
BODY(taken_on) {
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    assert_int_equal(rp_cond(more_than(in[0], -99), FN(switches_on), FN(switches_on), in, 1, out, 1), RP_OK);
    (void)rp_set_grad_enabled(old);
    out[1] = NULL;
}

/* ---- custom functions: their own backward counts, whatever the forward is made of */

BODY(long_square) {
    UNUSED;
    out[0] = rp_mul(rp_exp(rp_mul_scalar(in[0], rp_f64(0))), rp_mul(in[0], in[0]));
}
static rp_status thrice_backward(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,
                                 size_t n_out, rp_tensor **grad_in, size_t n_in) {
    (void)ctx, (void)n_saved, (void)n_out, (void)n_in;
    grad_in[0] = rp_mul(grad_out[0], rp_mul_scalar(saved[0], rp_f64(3)));
    return RP_OK;
}
static rp_tensor *custom(rp_body *body, rp_tensor *x) {
    rp_function f = {sizeof f, {body, NULL, 0, "custom"}, thrice_backward, NULL, false};
    rp_tensor *y = NULL;
    (void)rp_function_apply(&f, &x, 1, &y, 1);
    return y;
}
BODY(custom_alone) {
    UNUSED;
    out[0] = custom(square, in[0]);
    out[1] = NULL;
}
BODY(custom_between) {
    UNUSED;
    out[0] = rp_mul(custom(long_square, rp_sin(in[0])), in[0]);
    out[1] = custom(square, out[0]);
}
BODY(custom_in_checkpoint) {
    UNUSED;
    assert_int_equal(rp_checkpoint((rp_fn){custom_alone, NULL, 0, "inner"}, in, 1, out, 1), RP_OK);
    out[1] = NULL;
}
BODY(custom_off) {
    UNUSED;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = custom(square, in[0]);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul(c, in[0]);
}
BODY(custom_off_in_checkpoint) {
    UNUSED;
    assert_int_equal(rp_checkpoint(FN(custom_off), in, 1, out, 1), RP_OK);
    out[1] = NULL;
}
BODY(custom_inside) { /* its backward runs in the function: part of the graph */
    UNUSED;
    rp_tensor *leaf = rp_detach(in[0]), *g = NULL;
    assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
    rp_tensor *sum = total(custom(square, leaf));
    assert_int_equal(rp_grad(&sum, 1, &leaf, 1, NULL, NULL, &g), RP_OK);
    bool old = rp_set_grad_enabled(false);
    out[0] = rp_mul(g, in[0]);
    (void)rp_set_grad_enabled(old);
    out[1] = NULL;
}

/* ---- one tensor, several results */

BODY(repeated) {
    UNUSED;
    out[0] = rp_sin(in[0]);
    out[1] = out[0];
}

typedef struct seen {
    rp_tensor *out[OUT], *grad;
    bool needs[OUT];
} seen;

/* mask: for which results a gradient comes in */
static void call(rp_compiled *f, rp_status want, int mask, seen *s) {
    rp_tensor *x = filled(0.3, 2, 4, 4), *seeds[OUT], *roots[OUT], *g = NULL;
    size_t n = 0;
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_int_equal(rp_call(f, &x, 1, s->out, OUT), want);
    (void)rp_error_take();
    for (int k = 0; k < OUT; k++) {
        s->needs[k] = s->out[k] && rp_requires_grad(s->out[k]);
        if (!s->needs[k] || !(mask >> k & 1) || (k && s->out[k] == s->out[0])) continue;
        roots[n] = s->out[k];
        seeds[n++] = rp_add_scalar(rp_cos(rp_detach(s->out[k])), rp_f64(k));
    }
    s->grad = NULL;
    if (!n) return;
    assert_int_equal(rp_grad(roots, n, &x, 1, seeds,
                             RP_OPTIONS(rp_backward_options, .retain_graph = true, .allow_unused = true), &g),
                     RP_OK);
    s->grad = g;
}

static void check(rp_body *body, const char *name, const char *why) {
    for (int b = 0; b < BACKENDS; b++) {
        const char *reason = b == 0 ? NULL : why; /* "eager" records nothing */
        for (int full = 0; full < 2; full++) {
            rp_scope scope = rp_scope_begin();
            rp_fn fn = {body, NULL, 0, name};
            rp_compiled *plain = rp_plain(fn),
                        *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .fullgraph = full));
            seen want, got;
            static const int masks[] = {3, 3, 1, 1, 2, 3};
            for (size_t k = 0; k < sizeof masks / sizeof *masks; k++) {
                call(plain, RP_OK, masks[k], &want);
                call(f, reason && full ? RP_ERROR_GRAPH_BREAK : RP_OK, masks[k], &got);
                for (int i = 0; i < OUT; i++) {
                    assert_int_equal(got.needs[i], want.needs[i]);
                    assert_int_equal(!got.out[i], !want.out[i]);
                    if (want.out[i]) assert_same(got.out[i], want.out[i]);
                }
                assert_int_equal(got.out[0] == got.out[1], want.out[0] == want.out[1]);
                assert_int_equal(!got.grad, !want.grad);
                if (want.grad) assert_same(got.grad, want.grad);
            }
            assert_int_equal(explain_total(f, "break", NULL), reason ? 1 : 0);
            if (reason) assert_int_equal(explain_total(f, "break", reason), 1);
            for (size_t k = 0; k < rp_explain_count(f); k++) {
                rp_explain_entry e;
                assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
                if (strcmp(e.kind, "skip") == 0) fail_msg("%s, %s: %s", name, backends[b], e.message);
            }
            rp_compiled_release(f);
            rp_compiled_release(plain);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
    }
}

static void test_derivatives_inside(void **state) {
    (void)state;
    check(cube, "cube", NULL);
    check(by_intermediate, "by_intermediate", NULL);
    check(rows, "rows", NULL);
    check(thrice, "thrice", NULL);
    check(product, "product", NULL);
    check(factors, "factors", NULL);
    check(cut, "cut", NULL);
    check(largest, "largest", NULL);
    check(up_to_intermediate, "up_to_intermediate", NULL);
    check(in_two_halves, "in_two_halves", NULL);
    rp_tensor *x = filled(0.3, 1, 4);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_false(rp_requires_grad(derivative(rp_topk(x, 1, 0, true, true, NULL), x)));
}

static void test_leaves_inside(void **state) {
    (void)state;
    check(leaf_for_itself, "leaf_for_itself", NULL);
    check(leaf_behind_result, "leaf_behind_result", "leaf-inside");
    check(leaf_given, "leaf_given", "leaf-inside");
}

static void test_grad_mode_off(void **state) {
    (void)state;
    check(constant_inside, "constant_inside", NULL);
    check(written_part, "written_part", "written-without-tape");
    check(written_for_nobody, "written_for_nobody", NULL);
    static rp_body *const run_by_node[] = {late, late_and_off,
                                           late_in_front}; /* under the tape, which does as the function did */
    for (int k = 0; k < 3; k++) {
        rp_fn fn = {run_by_node[k], NULL, 0, "late"};
        rp_compiled *plain = rp_plain(fn), *f = rp_compile(fn, NULL);
        for (int turn = 0; turn < 4; turn++) {
            seen want, got;
            call(plain, RP_OK, 3, &want);
            call(f, RP_OK, 3, &got);
            for (int i = 0; i < OUT && want.out[i]; i++) {
                assert_same(got.out[i], want.out[i]);
                assert_int_equal(got.needs[i], want.needs[i]);
            }
            assert_same(got.grad, want.grad);
        }
        rp_compiled_release(plain);
        rp_compiled_release(f);
    }
}

static void test_grad_mode_off_in_regions(void **state) {
    (void)state;
    check(taken, "taken", NULL);
    check(taken_off, "taken_off", NULL);
    check(taken_either, "taken_either", NULL);
    check(taken_under, "taken_under", NULL);
    check(taken_inside, "taken_inside", NULL);
    check(taken_written, "taken_written", NULL);
    check(taken_view, "taken_view", NULL);
    check(looped, "looped", NULL);
    check(looped_off, "looped_off", NULL);
    check(looped_inside, "looped_inside", NULL);
    check(again_partly, "again_partly", NULL);
    check(again_inside, "again_inside", NULL);
    check(again_under, "again_under", NULL);
    check(again_within_under, "again_within_under", NULL);
    check(handed_on, "handed_on", NULL);
    check(looped_under, "looped_under", NULL);
}

/* A second derivative: what is off in the first stays off in it. */
static rp_tensor *second_by(rp_compiled *f) {
    rp_tensor *x = filled(0.3, 2, 4, 4), *out[OUT], *g = NULL, *gg = NULL;
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_int_equal(rp_call(f, &x, 1, out, OUT), RP_OK);
    rp_tensor *sum = total(rp_mul(out[0], rp_sin(out[0])));
    assert_int_equal(rp_grad(&sum, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &g), RP_OK);
    rp_tensor *dot = total(rp_mul(g, g));
    assert_int_equal(rp_grad(&dot, 1, &x, 1, NULL, NULL, &gg), RP_OK);
    return gg;
}
static void test_grad_mode_off_twice(void **state) {
    (void)state;
    static rp_body *const bodies[] = {taken, taken_inside, looped, again_partly};
    for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
        rp_scope scope = rp_scope_begin();
        rp_fn fn = {bodies[k], NULL, 0, "twice"};
        rp_compiled *plain = rp_plain(fn);
        rp_tensor *want = second_by(plain);
        for (int b = 0; b < BACKENDS; b++) {
            rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .fullgraph = true));
            for (int call = 0; call < 3; call++) assert_close(second_by(f), want);
            rp_compiled_release(f);
        }
        rp_compiled_release(plain);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
}

/* ---- grad mode that the caller has off, or that the function leaves otherwise */

BODY(on_for_a_while) {
    UNUSED;
    rp_tensor *before = rp_mul(in[0], in[0]);
    bool old = rp_set_grad_enabled(true);
    out[0] = rp_mul(rp_sin(in[0]), before);
    (void)rp_set_grad_enabled(old);
    out[1] = rp_mul(out[0], in[0]);
}
BODY(switches_over) {
    UNUSED;
    out[0] = rp_mul(in[0], in[0]);
    (void)rp_set_grad_enabled(!rp_grad_enabled());
    out[1] = rp_sin(in[0]);
}
static void test_grad_mode_of_caller(void **state) {
    (void)state;
    static rp_body *const bodies[] = {on_for_a_while, switches_over};
    for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
        for (int b = 0; b < BACKENDS; b++) {
            rp_fn fn = {bodies[k], NULL, 0, "modes"};
            rp_compiled *f[2] = {rp_plain(fn), rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b],
                                                                         .fullgraph = true))};
            for (int turn = 0; turn < 8; turn++) { /* each mode is another specialisation */
                rp_tensor *out[2][OUT], *x[2], *g[2];
                bool left[2];
                for (int i = 0; i < 2; i++) {
                    x[i] = filled(0.3, 2, 4, 4);
                    assert_int_equal(rp_set_requires_grad(x[i], true), RP_OK);
                    (void)rp_set_grad_enabled(turn % 2 == 1);
                    OK(rp_call(f[i], &x[i], 1, out[i], OUT));
                    left[i] = rp_set_grad_enabled(true);
                }
                assert_int_equal(left[1], left[0]);
                for (int o = 0; o < OUT; o++) {
                    assert_same(out[1][o], out[0][o]);
                    assert_int_equal(rp_requires_grad(out[1][o]), rp_requires_grad(out[0][o]));
                    if (!rp_requires_grad(out[0][o])) continue;
                    for (int i = 0; i < 2; i++) {
                        rp_tensor *sum = total(out[i][o]);
                        assert_int_equal(rp_grad(&sum, 1, &x[i], 1, NULL,
                                                 RP_OPTIONS(rp_backward_options, .retain_graph = true), &g[i]),
                                         RP_OK);
                    }
                    assert_same(g[1], g[0]);
                }
            }
            rp_compiled_release(f[0]);
            rp_compiled_release(f[1]);
        }
    }
}

/* ---- tensors from outside whose history the function changes */

struct account {
    rp_tensor *w, *sum;
};
BODY(book) {
    UNUSED;
    const struct account *a = ctx;
    rp_sub_(a->sum, rp_mul(a->w, in[0]));
    out[0] = a->sum;
    out[1] = NULL;
}
BODY(book_part) { /* through a view that the function makes */
    UNUSED;
    const struct account *a = ctx;
    rp_sub_(rp_slice(a->sum, 0, 0, 2, 1), rp_slice(rp_mul(a->w, in[0]), 0, 1, 3, 1));
    out[0] = a->sum;
    out[1] = NULL;
}
static void test_history_from_outside(void **state) {
    (void)state;
    static rp_body *const bodies[] = {book, book_part};
    for (int b = 0; b < 2 * BACKENDS; b++) {
        rp_tensor *want[6] = {NULL}, *g;
        for (int compiled = 0; compiled < 2; compiled++) {
            struct account a = {filled(0.5, 1, 4), rp_zeros(RP_DIMS(4))};
            assert_int_equal(rp_set_requires_grad(a.w, true), RP_OK);
            rp_fn fn = {bodies[b % 2], &a, sizeof a, "book"};
            rp_compiled *f =
                compiled ? rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b / 2])) : rp_plain(fn);
            rp_tensor *x = filled(0.7, 1, 4), *out[OUT];
            for (int turn = 0; turn < 6; turn++) { /* one term more a turn */
                assert_int_equal(rp_call(f, &x, 1, out, OUT), RP_OK);
                assert_ptr_equal(out[0], a.sum);
                rp_tensor *sum = total(rp_mul(out[0], out[0]));
                assert_int_equal(
                    rp_grad(&sum, 1, &a.w, 1, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true), &g), RP_OK);
                if (compiled)
                    assert_same(g, want[turn]);
                else
                    want[turn] = g;
            }
            rp_compiled_release(f);
        }
    }
    /* and what only looks leaves no trace */
    struct account a = {filled(0.5, 1, 4), rp_zeros(RP_DIMS(4))};
    assert_int_equal(rp_set_requires_grad(a.w, true), RP_OK);
    rp_tensor *x = filled(0.7, 1, 4);
    for (int k = 0; k < 2; k++) {
        rp_ir_release(rp_trace((rp_fn){bodies[k], &a, 0, "book"}, &x, 1, 1));
        (void)rp_error_take();
        assert_false(rp_requires_grad(a.sum));
        assert_int_equal(rp_version(a.sum), 0);
    }
    bool on = rp_grad_enabled();
    rp_ir_release(rp_trace(FN(switches_over), &x, 1, 2));
    assert_int_equal(rp_grad_enabled(), on);
}

BODY(loop_inside) {
    UNUSED;
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), rp_sin(in[0])},
              *r[2];
    assert_int_equal(rp_while(FN(few), FN(step_inside), state, 2, 4, r), RP_OK);
    out[0] = r[1];
}
BODY(loop_again) {
    UNUSED;
    assert_int_equal(rp_checkpoint(FN(loop_inside), in, 1, out, 1), RP_OK);
    out[1] = NULL;
}
static void test_loop_in_checkpoint(void **state) {
    (void)state;
    rp_compiled *plain = rp_plain(FN(loop_again)),
                *f = rp_compile(FN(loop_again), RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int k = 0; k < 3; k++) {
        seen want, got;
        call(plain, RP_OK, 1, &want);
        call(f, RP_OK, 1, &got);
        assert_same(got.out[0], want.out[0]);
        assert_same(got.grad, want.grad);
    }
    assert_int_equal(explain_total(f, "skip", NULL), 0);
    rp_compiled_release(f);
    rp_compiled_release(plain);
}

/* Views whose history is found anew after a write, writes through views of any kind, writes behind the back of a history: one
   graph each, with the gradients of the tape. */
BODY(read_after_write) {
    UNUSED;
    rp_tensor *a = rp_sin(in[0]), *row = rp_select(a, 0, 1), *turned = rp_transpose(a, 0, 1);
    (void)rp_mul_scalar_(a, rp_f64(1.5));
    out[0] = rp_add(row, rp_select(turned, 0, 2));
    (void)rp_add_(row, rp_cos(rp_select(in[0], 0, 0)));
    out[1] = rp_mul(turned, a);
}
BODY(written_across) {
    UNUSED;
    rp_tensor *a = rp_sin(in[0]), *turned = rp_transpose(a, 0, 1), *flat = rp_view(a, RP_DIMS(16));
    (void)rp_add_(rp_select(turned, 0, 0), rp_exp(rp_select(in[0], 1, 3)));
    (void)rp_mul_scalar_(flat, rp_f64(0.5));
    out[0] = a;
    out[1] = rp_mul(turned, rp_view(flat, RP_DIMS(4, 4)));
}
BODY(behind_a_history) {
    UNUSED;
    rp_tensor *a = rp_cos(in[0]), *cut = rp_detach(a);
    (void)rp_fill_(rp_select(cut, 0, 0), rp_f64(0.25));
    out[0] = rp_mul_scalar(a, rp_f64(3));
    out[1] = rp_sub_(cut, rp_erf(in[0]));
}
static void test_written_views_are_in_the_graph(void **state) {
    (void)state;
    const rp_fn fns[] = {FN(read_after_write), FN(written_across), FN(behind_a_history)};
    for (size_t c = 0; c < sizeof fns / sizeof *fns; c++) {
        for (int b = 1; b < BACKENDS; b++) {
            rp_scope scope = rp_scope_begin();
            rp_compiled *plain = rp_plain(fns[c]),
                        *f = rp_compile(fns[c],
                                        RP_OPTIONS(rp_compile_options, .backend = backends[b], .fullgraph = true));
            for (int k = 0; k < 6; k++) {
                seen want, got;
                const int mask = k < 3 ? 3 : k % 2 + 1; /* gradients of both results, then of one: another plan */
                call(plain, RP_OK, mask, &want);
                call(f, RP_OK, mask, &got);
                for (int i = 0; i < OUT; i++) {
                    assert_same(got.out[i], want.out[i]);
                    assert_int_equal(got.needs[i], want.needs[i]);
                }
                assert_int_equal(!got.grad, !want.grad);
                if (want.grad) assert_same(got.grad, want.grad);
            }
            assert_int_equal(explain_total(f, "skip", NULL), 0);
            rp_compiled_release(f);
            rp_compiled_release(plain);
            rp_scope_end(scope, NULL, 0);
        }
    }
}

static void test_grad_mode_in_no_block(void **state) {
    (void)state;
    check(taken_history, "taken_history", "region-not-traceable");
    check(taken_leaves_off, "taken_leaves_off", "region-not-traceable");
    check(taken_on, "taken_on", "region-not-traceable");
}

static void test_custom_functions(void **state) {
    (void)state;
    check(custom_alone, "custom_alone", NULL);
    check(custom_between, "custom_between", NULL);
    check(custom_in_checkpoint, "custom_in_checkpoint", NULL);
    check(custom_off_in_checkpoint, "custom_off_in_checkpoint", NULL);
    check(custom_inside, "custom_inside", NULL);
}

/* ---- layouts of gradients: that of a mean is dense, that of a sum a view of what came in */

BODY(mean_of_all) {
    UNUSED;
    out[0] = rp_mean(in[0]);
}
BODY(mean_of_rows) {
    UNUSED;
    out[0] = rp_mean(in[0], RP_DIMS(-1));
}
BODY(mean_of_columns) {
    UNUSED;
    out[0] = rp_mean(in[0], RP_DIMS(0), true);
}
BODY(mean_in_double) {
    UNUSED;
    out[0] = rp_mean(in[0], RP_DIMS(0, 1), true, RP_OPTIONS(rp_mean_options, .dtype = RP_F64));
}
BODY(sum_of_all) {
    UNUSED;
    out[0] = total(in[0]);
}
BODY(sum_of_rows) {
    UNUSED;
    out[0] = rp_sum(in[0], RP_DIMS(1));
}
BODY(loss_of_mean) {
    UNUSED;
    rp_tensor *difference = rp_sub(rp_sin(in[0]), in[0]);
    out[0] = rp_mean(rp_mul(difference, difference));
}

static rp_tensor *gradient_by(rp_compiled *f) {
    rp_tensor *x = filled(0.3, 2, 4, 4), *y = NULL, *g = NULL;
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    rp_tensor *seed = rp_add_scalar(rp_cos(rp_detach(y)), rp_f64(1));
    assert_int_equal(rp_grad(&y, 1, &x, 1, &seed, NULL, &g), RP_OK);
    return g;
}

static void test_layout_of_gradients(void **state) {
    (void)state;
    static const struct {
        rp_body *body;
        int64_t stride[2];
    } cases[] = {{mean_of_all, {4, 1}},    {mean_of_rows, {4, 1}}, {mean_of_columns, {4, 1}},
                 {mean_in_double, {4, 1}}, {sum_of_all, {0, 0}},   {sum_of_rows, {1, 0}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rp_fn fn = {cases[k].body, NULL, 0, "layout"};
        rp_compiled *plain = rp_plain(fn);
        rp_tensor *want = gradient_by(plain);
        for (int d = 0; d < 2; d++) assert_int_equal(rp_stride(want, d), cases[k].stride[d]);
        for (int b = 0; b < BACKENDS; b++) {
            rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backends[b], .fullgraph = true));
            for (int call = 0; call < 3; call++) {
                rp_tensor *got = gradient_by(f);
                assert_same(got, want);
                for (int d = 0; d < 2; d++) assert_int_equal(rp_stride(got, d), cases[k].stride[d]);
            }
            rp_compiled_release(f);
        }
        rp_compiled_release(plain);
    }
    /* the division is a part of what reads it: one kernel forward, one backward */
    rp_compiled *f = rp_compile(FN(loss_of_mean), RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int call = 0; call < 3; call++) (void)gradient_by(f);
    assert_int_equal(explain_total(f, "kernel", NULL), 2);
    rp_compiled_release(f);
}

static void test_repeated_result(void **state) {
    (void)state;
    check(repeated, "repeated", NULL);
    rp_compiled *f = rp_compile((rp_fn){repeated, NULL, 0, "repeated"}, NULL);
    for (int k = 0; k < 3; k++) { /* what is written into one is seen, with its history, in the other */
        rp_tensor *x = filled(0.3, 1, 4), *out[OUT], *g;
        assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        assert_int_equal(rp_call(f, &x, 1, out, OUT), RP_OK);
        rp_mul_scalar_(out[0], rp_f64(0));
        rp_tensor *sum = total(out[1]);
        assert_int_equal(rp_grad(&sum, 1, &x, 1, NULL, NULL, &g), RP_OK);
        assert_true(rp_item_f64(total(rp_abs(g))) == 0);
    }
    rp_compiled_release(f);
}

/* For one of its sizes, not the first, a function writes an argument: that alone has a gradient, no result. */
static void adds_to_argument(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    if (rp_size(in[1], 0) == 3) rp_add_(in[0], rp_mul(in[1], in[1]));
    out[0] = rp_ones(RP_DIMS(2));
}
static void history_by_a_write_alone(void **state) {
    (void)state;
    static const char *const names[] = {"aot_eager", "cudagraphs", "fused"};
    for (size_t b = 0; b < 3; b++) {
        rp_compiled *f =
            rp_compile((rp_fn){adds_to_argument, NULL, 0, "adds"}, RP_OPTIONS(rp_compile_options, .backend = names[b]));
        for (int call = 0; call < 4; call++) {
            rp_scope scope = rp_scope_begin();
            const float w[] = {1, -2, 3, 4};
            rp_tensor *in[] = {rp_ones(RP_DIMS(3)), rp_from_data(w, RP_DIMS(call ? 3 : 4), RP_F32)}, *out, *sum, *grad;
            assert_int_equal(rp_set_requires_grad(in[1], true), RP_OK);
            assert_int_equal(rp_call(f, in, 2, &out, 1), RP_OK);
            assert_true(rp_requires_grad(in[0]) == (call > 0) && !rp_requires_grad(out));
            sum = rp_sum(in[0]);
            if (call) assert_int_equal(rp_grad(&sum, 1, &in[1], 1, NULL, NULL, &grad), RP_OK);
            for (int k = 0; k < 3 && call; k++) assert_true(rp_item_f64(rp_select(grad, 0, k)) == 2 * (double)w[k]);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
        rp_compiled_release(f);
    }
}

/* A step that clears .grad where it lies, and adds to it: it writes there without reading, so strides are a guard. */
static void clears_in_place(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *w = ((rp_tensor **)ctx)[0];
    (void)n_in, (void)n_out;
    bool old = rp_set_grad_enabled(false);
    rp_fill_(rp_grad_of(w), rp_f64(0));
    rp_set_grad_enabled(old);
    out[0] = rp_sum(rp_mul(w, in[0]));
    assert_int_equal(rp_backward(out[0], NULL, NULL), RP_OK);
    out[0] = rp_detach(out[0]);
}
static void strides_of_gradients_at_entry(void **state) {
    (void)state;
    static const char *const names[] = {"aot_eager", "cudagraphs", "fused"};
    for (size_t b = 0; b < 6; b++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *w = rp_zeros(RP_DIMS(2, 3));
        assert_int_equal(rp_set_requires_grad(w, true), RP_OK);
        rp_compiled *f = rp_compile((rp_fn){clears_in_place, &w, sizeof w, "clears"},
                                    RP_OPTIONS(rp_compile_options, .backend = names[b % 3]));
        for (int call = 0; call < 8; call++) {
            const float v[] = {10, 11, 12, 13, 14, 15};
            rp_tensor *x = rp_from_data(v, RP_DIMS(2, 3), RP_F32), *out;
            float g[6];
            bool turned = (call / 2 % 2 == 1) == (b < 3);
            rp_set_grad(w, turned ? rp_t(rp_ones(RP_DIMS(3, 2))) : rp_ones(RP_DIMS(2, 3)));
            assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
            assert_int_equal(rp_to_host(rp_grad_of(w), g, sizeof g), RP_OK);
            assert_memory_equal(g, v, sizeof g);
            assert_int_equal(rp_stride(rp_grad_of(w), 0), turned ? 1 : 3);
        }
        rp_compiled_release(f);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
}

/* Gradients at entry that share memory: with each other, with an argument, with a buffer that the function reaches by itself. */
typedef struct shared_gradients {
    rp_tensor *w[2], *flat;
} shared_gradients;

static void adds_to_gradients(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const shared_gradients *c = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *loss = rp_sum(rp_mul(rp_mul(c->w[0], c->w[1]), in[0]));
    assert_int_equal(rp_backward(loss, NULL, NULL), RP_OK);
    out[0] = rp_cat(RP_TENSORS(c->flat, rp_detach(in[0]), rp_grad_of(c->w[1])), 0);
}

static void lay_gradients(const shared_gradients *c, int how, rp_tensor *x) {
    rp_tensor *g = rp_ones(RP_DIMS(4)), *h = rp_ones(RP_DIMS(4));
    if (how == 1) g = rp_narrow(c->flat, 0, 0, 4), h = rp_narrow(c->flat, 0, 4, 4);
    if (how == 2) h = g;
    if (how == 3) g = x;
    if (how == 4) g = rp_narrow(c->flat, 0, 0, 4), h = rp_narrow(c->flat, 0, 2, 4);
    rp_set_grad(c->w[0], g);
    rp_set_grad(c->w[1], h);
}

static void gradients_that_share_memory(void **state) {
    (void)state;
    enum { WAYS = 5, CALLS = 2 * WAYS };
    static const char *const names[] = {"aot_eager", "cudagraphs", "fused"};
    for (int b = 0; b < 3 * WAYS; b++) {
        float values[2][CALLS][16];
        for (int k = 0; k < 2; k++) {
            rp_scope scope = rp_scope_begin();
            shared_gradients c = {{rp_full(RP_DIMS(4), rp_f64(2)), rp_full(RP_DIMS(4), rp_f64(3))},
                                  rp_zeros(RP_DIMS(8))};
            for (int i = 0; i < 2; i++) assert_int_equal(rp_set_requires_grad(c.w[i], true), RP_OK);
            rp_fn fn = {adds_to_gradients, &c, sizeof c, "adds"};
            rp_compiled *f = k ? rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = names[b % 3])) : rp_plain(fn);
            for (int call = 0; call < CALLS; call++) { /* each way follows each other one in some b */
                rp_tensor *x = rp_full(RP_DIMS(4), rp_f64(call + 1)), *out;
                lay_gradients(&c, call < 3 ? b / 3 : (b / 3 + call * call) % WAYS, x);
                assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
                assert_int_equal(rp_to_host(out, values[k][call], sizeof values[k][call]), RP_OK);
            }
            for (int i = 0; i < 2; i++) rp_set_grad(c.w[i], NULL);
            rp_compiled_release(f);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
        assert_memory_equal(values[0], values[1], sizeof values[0]);
    }
}

/* A backward is made for the precision of its call, too: explain tells its programs apart. */
BODY(two_products) {
    UNUSED;
    out[0] = rp_matmul(rp_sin(rp_matmul(in[0], in[1])), in[1]);
}
/* Graphs that explain knows of things whose name ends so. */
static int64_t graphs_of(rp_compiled *f, const char *end) {
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        const size_t length = strlen(e.of), tail = strlen(end);
        if (strcmp(e.kind, "graph") == 0 && length >= tail && strcmp(e.of + length - tail, end) == 0) n += e.count;
    }
    return n;
}
static void test_variants_are_told_apart(void **state) {
    (void)state;
    static const char *const precisions[] = {"highest", "high", "highest", "high"};
    rp_compiled *f = rp_compile((rp_fn){two_products, NULL, 0, "two_products"},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[] = {rp_randn(RP_DIMS(8, 8)), rp_randn(RP_DIMS(8, 8))}, *y, *grad[2];
    for (int k = 0; k < 2; k++) assert_int_equal(rp_set_requires_grad(in[k], true), RP_OK);
    for (int call = 0; call < 6; call++) {
        assert_int_equal(rp_call(f, in, 2, &y, 1), RP_OK);
        assert_int_equal(rp_set_float32_matmul_precision(precisions[call % 4]), RP_OK);
        rp_tensor *sum = rp_sum(y);
        assert_int_equal(rp_grad(&sum, 1, in, 2, NULL, NULL, grad), RP_OK);
        assert_int_equal(rp_set_float32_matmul_precision("highest"), RP_OK);
    }
    /* the second call's is the first to be compiled */
    assert_int_equal(graphs_of(f, "backward, over saved values"), 1);
    assert_int_equal(graphs_of(f, "backward, over saved values, float32 products highest, convolutions highest"), 1);
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* So are programs for arguments that lie in other ways. */
BODY(sine) {
    UNUSED;
    out[0] = rp_sin(in[0]);
}
static void test_strides_are_told(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x[] = {rp_randn(RP_DIMS(4, 3)), rp_transpose(rp_randn(RP_DIMS(3, 4)), 0, 1)}, *y;
    rp_ir *graph = rp_trace((rp_fn){sine, NULL, 0, "sine"}, x, 1, 1);
    rp__explain *all = rp__explain_new();
    rp__unit *u;
    assert_int_equal(rp__unit_new(&(rp__unit_request){.graph = graph,
                                                      .leaf = rp__engine_find("fused")->leaf,
                                                      .free_args = (const bool[]){true},
                                                      .explain = all,
                                                      .name = "unit"},
                                  &u),
                     RP_OK);
    for (int call = 0; call < 4; call++) {
        assert_int_equal(rp__unit_run(u, &(rp__unit_call){0}, &x[call % 2], 1, &y, 1), RP_OK);
        assert_true(rp_item_i64(rp_all(rp_eq(y, rp_sin(x[call % 2])))));
    }
    int64_t kernels[2] = {0};
    for (size_t k = 0; k < rp__explain_count(all); k++) {
        rp_explain_entry e;
        assert_true(rp__explain_at(all, k, &e));
        if (strcmp(e.kind, "kernel") != 0) continue;
        kernels[0] += e.count * (strcmp(e.of, "unit") == 0);
        kernels[1] += e.count * (strcmp(e.of, "unit, argument 0 with strides (1, 4)") == 0);
    }
    assert_int_equal(kernels[0], 1);
    assert_int_equal(kernels[1], 1);
    rp__unit_free(u);
    rp__explain_free(all);
    rp_ir_release(graph);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_strides_are_told, take_error),
        cmocka_unit_test_teardown(test_variants_are_told_apart, take_error),
        cmocka_unit_test_teardown(test_derivatives_inside, take_error),
        cmocka_unit_test_teardown(test_leaves_inside, take_error),
        cmocka_unit_test_teardown(test_grad_mode_off, take_error),
        cmocka_unit_test_teardown(test_grad_mode_off_in_regions, take_error),
        cmocka_unit_test_teardown(test_grad_mode_off_twice, take_error),
        cmocka_unit_test_teardown(test_grad_mode_of_caller, take_error),
        cmocka_unit_test_teardown(test_history_from_outside, take_error),
        cmocka_unit_test_teardown(test_loop_in_checkpoint, take_error),
        cmocka_unit_test_teardown(test_written_views_are_in_the_graph, take_error),
        cmocka_unit_test_teardown(test_grad_mode_in_no_block, take_error),
        cmocka_unit_test_teardown(test_custom_functions, take_error),
        cmocka_unit_test_teardown(test_layout_of_gradients, take_error),
        cmocka_unit_test_teardown(test_repeated_result, take_error),
        cmocka_unit_test_teardown(history_by_a_write_alone, take_error),
        cmocka_unit_test_teardown(strides_of_gradients_at_entry, take_error),
        cmocka_unit_test_teardown(gradients_that_share_memory, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
