/* Custom functions (rp_function_apply) in compiled functions: forward and backward of the program's, as parts of one graph
   each way. Every call's results and gradients are compared, bit for bit, with those of the function run eagerly. On the CPU,
   then on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). */
/* ctest: labels=compile timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <reprise.h>

#include "support/each_device.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define BACKWARD(name)                                                                                                 \
    static rp_status name(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out,              \
                          size_t n_out, rp_tensor **grad_in, size_t n_in)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)
#define UNUSED_BACK ((void)ctx, (void)saved, (void)n_saved, (void)grad_out, (void)n_out, (void)grad_in, (void)n_in)

static const char *const backends[] = {"aot_eager", "cudagraphs", "fused"};
enum { BACKENDS = 3, CALLS = 4, OUTS = 3 };

static rp_tensor *total(rp_tensor *t) { return rp_sum(t); }
static rp_tensor *leaf(rp_tensor *values) {
    rp_tensor *x = rp_detach(values);
    OK(rp_set_requires_grad(x, true));
    return x;
}
static size_t entries(rp_compiled *f, const char *kind, const char *reason) {
    size_t n = 0;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        OK(rp_explain_get(f, i, &e));
        n += strcmp(e.kind, kind) == 0 && (!reason || strcmp(e.reason, reason) == 0);
    }
    return n;
}

static rp_tensor *weight; /* what functions read from outside */
static int backwards;     /* calls of the program's backward functions */

/* ---- what a function and its backward may be */

/* (x, nothing, s) -> (y, mask, z): the gradients are none of the forward's; s is broadcast, its gradient of another size */
BODY(rich_forward) {
    UNUSED;
    if (n_in != 3 || in[1]) return;
    out[0] = rp_mul(rp_sin(in[0]), in[2]);
    out[1] = rp_gt_scalar(in[0], rp_f64(0.8));
    out[2] = rp_mul(rp_exp(in[0]), weight);
}
BACKWARD(rich_backward) {
    UNUSED_BACK;
    backwards++;
    if (n_saved != 6 || saved[1] || n_in != 3 || n_out != 3) return RP_ERROR_INVALID_ARGUMENT;
    rp_tensor *g = rp_add(grad_out[0], rp_mul(grad_out[2], saved[5]));
    g = rp_where(saved[4], g, rp_mul_scalar(g, rp_f64(0.5)));
    grad_in[0] = rp_mul(rp_mul(g, weight), saved[3]);
    grad_in[2] = rp_mul(g, saved[0]); /* the size of x: summed to that of s */
    return RP_OK;
}
static const rp_function rich = {sizeof(rp_function), {rich_forward, NULL, 0, "rich"}, rich_backward, NULL, true};

BODY(rich_body) {
    UNUSED;
    rp_tensor *y[3], *h = rp_mul(in[0], in[0]), *args[] = {h, NULL, in[1]};
    if (rp_function_apply(&rich, args, 3, y, 3) != RP_OK) return;
    out[0] = rp_mul(rp_add(y[0], y[2]), h);
    out[1] = y[0]; /* a result as it is */
    out[2] = rp_where(y[1], h, rp_neg(h));
}

/* twice in a row, and one result without a use */
BODY(twice_body) {
    UNUSED;
    rp_tensor *y[3], *z[3], *args[] = {in[0], NULL, in[1]};
    if (rp_function_apply(&rich, args, 3, y, 3) != RP_OK) return;
    rp_tensor *more[] = {y[2], NULL, in[1]};
    if (rp_function_apply(&rich, more, 3, z, 3) != RP_OK) return;
    out[0] = z[0];
    out[1] = rp_transpose(rp_mul(z[0], in[0]), 0, 1); /* its gradient comes with other strides */
    out[2] = rp_sum(rp_mul(y[0], in[0]), RP_DIMS(0));
}

BODY(round_forward) {
    UNUSED;
    out[0] = rp_to_dtype(rp_to_dtype(rp_mul_scalar(in[0], rp_f64(8)), RP_I32), RP_F32);
}
BACKWARD(straight_through) {
    UNUSED_BACK;
    backwards++;
    grad_in[0] = grad_out[0];
    return RP_OK;
}
static const rp_function rounded = {
    sizeof(rp_function), {round_forward, NULL, 0, "round"}, straight_through, NULL, false};
BODY(rounded_inner) {
    UNUSED;
    (void)rp_function_apply(&rounded, in, 1, out, 1);
}

BODY(checkpointed_body) {
    UNUSED;
    rp_tensor *h = rp_mul(in[0], in[0]), *y;
    if (rp_checkpoint(((rp_fn){rounded_inner, NULL, 0, "rounded"}), &h, 1, &y, 1) != RP_OK) return;
    out[0] = rp_mul(y, in[1]);
    out[1] = rp_sin(y);
    out[2] = y; /* directly the checkpoint's, directly the function's */
}

/* a function in the forward and in the backward of another */
BODY(outer_forward) {
    UNUSED;
    rp_tensor *h = rp_exp(in[0]), *y;
    if (rp_function_apply(&rounded, &h, 1, &y, 1) != RP_OK) return;
    out[0] = rp_add(y, in[0]);
}
BODY(doubled_forward) {
    UNUSED;
    out[0] = rp_mul_scalar(in[0], rp_f64(2));
}
BACKWARD(tripled) {
    UNUSED_BACK;
    backwards++;
    grad_in[0] = rp_mul_scalar(grad_out[0], rp_f64(3));
    return RP_OK;
}
static const rp_function doubled = {sizeof(rp_function), {doubled_forward, NULL, 0, "doubled"}, tripled, NULL, false};
BACKWARD(outer_backward) { /* of gradients of gradients it gives three times what comes */
    UNUSED_BACK;
    backwards++;
    return rp_function_apply(&doubled, grad_out, 1, &grad_in[0], 1);
}
static const rp_function outer = {sizeof(rp_function), {outer_forward, NULL, 0, "outer"}, outer_backward, NULL, false};
BODY(nested_body) {
    UNUSED;
    rp_tensor *y;
    if (rp_function_apply(&outer, in, 1, &y, 1) != RP_OK) return;
    out[0] = rp_mul(y, in[1]);
    out[1] = rp_mul(y, y);
    out[2] = in[0];
}

BODY(inside_body) { /* the backward is the function's own */
    UNUSED;
    rp_tensor *h = rp_mul(in[0], in[0]), *y, *grad;
    if (rp_function_apply(&rounded, &h, 1, &y, 1) != RP_OK) return;
    rp_tensor *loss = total(rp_mul(y, in[1]));
    if (rp_grad(&loss, 1, in, 1, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true), &grad) != RP_OK) return;
    out[0] = rp_detach(grad);
    out[1] = rp_mul(y, in[1]);
    out[2] = loss;
}

/* ---- the comparison */

typedef struct given { /* which results the loss reads; second: and the gradient's gradient */
    unsigned results;
    bool second;
} given;

static void gradients(rp_tensor *const *out, given g, rp_tensor *const *x, rp_tensor **grad) {
    rp_tensor *loss = NULL;
    for (int k = 0; k < OUTS; k++) {
        if (!(g.results >> k & 1u) || !rp_requires_grad(out[k])) continue;
        rp_tensor *part = rp_mul_scalar(total(rp_mul(out[k], out[k])), rp_f64(k + 1));
        loss = loss ? rp_add(loss, part) : part;
    }
    rp_backward_options options = {.struct_size = sizeof options, .create_graph = g.second, .allow_unused = true};
    OK(rp_grad(&loss, 1, x, 2, NULL, &options, grad));
    if (!g.second) return;
    loss = grad[1] ? rp_add(total(rp_mul(grad[0], grad[0])), total(grad[1])) : total(rp_mul(grad[0], grad[0]));
    options.create_graph = false;
    OK(rp_grad(&loss, 1, x, 2, NULL, &options, grad));
}

static void make(int64_t rows, rp_tensor *values[2]) {
    values[0] = rp_add_scalar(rp_rand(RP_DIMS(rows, 5)), rp_f64(0.3));
    values[1] = rp_add_scalar(rp_rand(RP_DIMS(1, 5)), rp_f64(0.3));
}

static void check_call(rp_body *body, rp_compiled *f, given g, int64_t rows) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *values[2], *out[2][OUTS], *grad[2][2];
    make(rows, values);
    for (int k = 0; k < 2; k++) {
        rp_tensor *x[] = {leaf(values[0]), leaf(values[1])};
        if (k)
            OK(rp_call(f, x, 2, out[k], OUTS));
        else
            body(NULL, x, 2, out[k], OUTS);
        if (rp_failed()) fail_msg("%s", rp_error_message());
        gradients(out[k], g, x, grad[k]);
    }
    for (int k = 0; k < OUTS; k++) {
        same(out[1][k], out[0][k]);
        assert_int_equal(rp_requires_grad(out[1][k]), rp_requires_grad(out[0][k]));
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(grad[1][k] != NULL, grad[0][k] != NULL);
        if (!grad[0][k]) continue;
        if (g.second) /* second derivatives may add up in another order */
            near(grad[1][k], grad[0][k]);
        else
            same(grad[1][k], grad[0][k]);
    }
    OK(rp_scope_end(scope, NULL, 0));
}

static rp_compiled *compiled(rp_body *body, int backend, bool fullgraph) {
    rp_compiled *f = rp_compile((rp_fn){body, NULL, 0, "f"},
                                RP_OPTIONS(rp_compile_options, .backend = backends[backend], .fullgraph = fullgraph));
    if (rp_failed()) fail_msg("%s", rp_error_message());
    return f;
}

/* One graph each way: after the second call the program's functions run no more, and nothing is skipped. */
enum { FIRST = 1, EACH = 2, SECOND = 4 }; /* gradients of all results, of some, of gradients */
static void check(rp_body *body, unsigned what) {
    static const given cases[] = {{7, false}, {1, false}, {2, false}, {7, true}};
    static const unsigned kind[] = {FIRST, EACH, EACH, SECOND};
    weight = rp_add_scalar(rp_rand(RP_DIMS(1, 5)), rp_f64(0.5));
    for (int backend = 0; backend < BACKENDS; backend++) {
        for (int c = 0; c < 4; c++) {
            if (!(what & kind[c])) continue;
            rp_compiled *f = compiled(body, backend, true);
            for (int call = 0; call < CALLS; call++) check_call(body, f, cases[c], 4);
            assert_int_equal(entries(f, "skip", NULL), 0);
            assert_int_equal(entries(f, "break", NULL), 0);
            rp_tensor *values[2], *out[OUTS], *grad[2];
            make(4, values);
            rp_tensor *x[] = {leaf(values[0]), leaf(values[1])};
            backwards = 0;
            OK(rp_call(f, x, 2, out, OUTS));
            gradients(out, cases[c], x, grad);
            assert_int_equal(backwards, 0);
            rp_compiled_release(f);
        }
    }
}

static void gradients_are_the_functions_own(void **state) {
    (void)state;
    check(rich_body, FIRST | EACH | SECOND);
}
static void functions_in_a_row(void **state) {
    (void)state;
    check(twice_body, FIRST | EACH | SECOND);
}
static void functions_in_a_checkpoint(void **state) {
    (void)state;
    check(checkpointed_body, FIRST | EACH | SECOND);
}
static void functions_in_functions(void **state) {
    (void)state;
    check(nested_body, FIRST | EACH | SECOND);
}
static void a_backward_inside(void **state) {
    (void)state;
    check(inside_body, FIRST);
}

static void other_sizes(void **state) {
    (void)state;
    weight = rp_add_scalar(rp_rand(RP_DIMS(1, 5)), rp_f64(0.5));
    for (int backend = 0; backend < BACKENDS; backend++) {
        rp_compiled *f = compiled(rich_body, backend, true);
        for (int64_t call = 0; call < 8; call++)
            check_call(rich_body, f, (given){call < 6 ? 7 : 1, call == 5}, 3 + call % 4);
        rp_compiled_release(f);
    }
}

static void in_a_raw_graph(void **state) {
    (void)state;
    weight = rp_add_scalar(rp_rand(RP_DIMS(1, 5)), rp_f64(0.5));
    for (int at = 0; at < BACKENDS * 3; at++) {
        rp_compiled *f = compiled(rich_body, at / 3, true);
        rp_tensor *values[2], *out[OUTS], *grad[2], *want[OUTS], *want_grad[2];
        make(4, values);
        rp_tensor *x[] = {leaf(values[0]), leaf(values[1])};
        for (int k = 0; k < at % 3; k++) {
            OK(rp_call(f, x, 2, out, OUTS));
            gradients(out, (given){7, false}, x, grad);
        }
        rp_tensor *y[] = {leaf(values[0]), leaf(values[1])};
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        OK(rp_call(f, y, 2, out, OUTS));
        gradients(out, (given){7, false}, y, grad);
        OK(rp_graph_end(g));
        OK(rp_graph_replay(g));
        rp_tensor *z[] = {leaf(values[0]), leaf(values[1])};
        rich_body(NULL, z, 2, want, OUTS);
        gradients(want, (given){7, false}, z, want_grad);
        for (int k = 0; k < OUTS; k++) same(out[k], want[k]);
        for (int k = 0; k < 2; k++) same(grad[k], want_grad[k]);
        rp_graph_release(g);
        rp_compiled_release(f);
    }
}

/* ---- the node as text */

static void a_node_of_graphs(void **state) {
    (void)state;
    weight = rp_add_scalar(rp_rand(RP_DIMS(1, 5)), rp_f64(0.5));
    rp_tensor *values[2], *out[2], *want[2], *grad[2], *want_grad[2];
    make(4, values);
    rp_tensor *x[] = {leaf(values[0]), leaf(values[1])};
    rp_ir *ir = rp_trace((rp_fn){nested_body, NULL, 0, "f"}, x, 2, 2);
    OK(rp_ir_check(ir));
    size_t length = rp_ir_text(ir, NULL, 0);
    char *text = malloc(length + 1);
    assert_int_equal(rp_ir_text(ir, text, length + 1), length);
    assert_non_null(strstr(text, "function("));
    assert_non_null(strstr(text, "backward("));
    rp_ir *parsed = rp_ir_parse(text, length);
    if (rp_failed()) fail_msg("%s\n%s", rp_error_message(), text);
    OK(rp_ir_check(parsed));
    assert_true(rp_ir_equal(ir, parsed));
    for (int k = 0; k < 2; k++) {
        rp_tensor *y[] = {leaf(values[0]), leaf(values[1])}, *z[] = {leaf(values[0]), leaf(values[1])}, *all[OUTS];
        OK(rp_ir_run(k ? parsed : ir, y, 2, out, 2));
        nested_body(NULL, z, 2, all, OUTS);
        memcpy(want, all, sizeof want);
        rp_tensor *loss = total(rp_add(out[0], out[1])), *want_loss = total(rp_add(want[0], want[1]));
        OK(rp_grad(&loss, 1, y, 2, NULL, NULL, grad));
        OK(rp_grad(&want_loss, 1, z, 2, NULL, NULL, want_grad));
        for (int i = 0; i < 2; i++) {
            same(out[i], want[i]);
            same(grad[i], want_grad[i]);
        }
    }
    /* what does not fit is refused */
    static const char *const wrong[][2] = {{"backward(", "backwind("}, {"function(", "checkpoint("}};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        char *changed = malloc(length + 16);
        char *where = strstr(text, wrong[k][0]);
        size_t before = (size_t)(where - text);
        memcpy(changed, text, before);
        strcpy(changed + before, wrong[k][1]);
        strcat(changed, where + strlen(wrong[k][0]));
        rp_ir *bad = rp_ir_parse(changed, strlen(changed));
        assert_true(rp_failed());
        (void)rp_error_take();
        rp_ir_release(bad);
        free(changed);
    }
    free(text);
    rp_ir_release(parsed);
    rp_ir_release(ir);
}

/* ---- what cannot be recorded */

BACKWARD(reading_backward) { /* decides by a value */
    UNUSED_BACK;
    bool large = rp_item_f64(rp_amax(saved[0], RP_NO_DIMS, false)) > 0.5;
    if (rp_failed()) return rp_error_status();
    grad_in[0] = large ? rp_mul_scalar(grad_out[0], rp_f64(3)) : rp_neg(grad_out[0]);
    return RP_OK;
}
BACKWARD(failing_backward) { /* under a trace it fails: of stand-ins there is no address */
    UNUSED_BACK;
    if (!rp_data(grad_out[0])) return rp_failed() ? rp_error_status() : RP_ERROR_STATE;
    grad_in[0] = rp_mul_scalar(grad_out[0], rp_f64(5));
    return RP_OK;
}
static rp_tensor *stash; /* of the forward, for the backward */
BODY(stashing_forward) {
    UNUSED;
    rp_release(stash);
    stash = rp_retain(rp_cos(in[0]));
    out[0] = rp_sin(in[0]);
}
BACKWARD(stashing_backward) {
    UNUSED_BACK;
    grad_in[0] = rp_mul(grad_out[0], stash);
    return RP_OK;
}
BODY(viewing_forward) {
    UNUSED;
    out[0] = rp_transpose(rp_sin(in[0]), 0, 1);
}
BACKWARD(viewing_backward) {
    UNUSED_BACK;
    grad_in[0] = rp_mul_scalar(rp_transpose(grad_out[0], 0, 1), rp_f64(7));
    return RP_OK;
}
BODY(sin_forward) {
    UNUSED;
    out[0] = rp_sin(in[0]);
}
static const rp_function unrecorded[] = {
    {sizeof(rp_function), {sin_forward, NULL, 0, "reads"}, reading_backward, NULL, false},
    {sizeof(rp_function), {sin_forward, NULL, 0, "fails"}, failing_backward, NULL, false},
    {sizeof(rp_function), {stashing_forward, NULL, 0, "stashes"}, stashing_backward, NULL, false},
    {sizeof(rp_function), {viewing_forward, NULL, 0, "views"}, viewing_backward, NULL, false}};
enum { UNRECORDED = sizeof unrecorded / sizeof *unrecorded };
static const rp_function *chosen;
BODY(unrecorded_inner) {
    UNUSED;
    (void)rp_function_apply(chosen, in, 1, out, 1);
}
BODY(unrecorded_body) {
    UNUSED;
    rp_tensor *h = rp_mul(in[0], in[0]), *y;
    if (rp_function_apply(chosen, &h, 1, &y, 1) != RP_OK) return;
    out[0] = rp_mul_scalar(y, rp_f64(2));
    out[1] = rp_mul(h, in[1]);
    out[2] = rp_exp(y);
}
BODY(unrecorded_in_checkpoint) {
    UNUSED;
    rp_tensor *h = rp_mul(in[0], in[0]), *y;
    if (rp_checkpoint(((rp_fn){unrecorded_inner, NULL, 0, "inner"}), &h, 1, &y, 1) != RP_OK) return;
    out[0] = rp_mul_scalar(y, rp_f64(2));
    out[1] = rp_mul(h, in[1]);
    out[2] = rp_exp(y);
}

static void what_cannot_be_recorded_runs(void **state) {
    (void)state;
    for (int k = 0; k < UNRECORDED; k++) {
        chosen = &unrecorded[k];
        for (int backend = 0; backend < BACKENDS; backend++) {
            for (int inside = 0; inside < 2; inside++) {
                rp_body *body = inside ? unrecorded_in_checkpoint : unrecorded_body;
                rp_compiled *f = compiled(body, backend, false);
                for (int call = 0; call < CALLS; call++) check_call(body, f, (given){7, false}, 4);
                assert_true(entries(f, "break", "custom-function") > 0);
                rp_compiled_release(f);
                f = compiled(body, backend, true);
                rp_tensor *values[2], *out[OUTS];
                make(4, values);
                rp_tensor *x[] = {leaf(values[0]), leaf(values[1])};
                FAILS(RP_ERROR_GRAPH_BREAK, "custom", rp_call(f, x, 2, out, OUTS));
                rp_compiled_release(f);
            }
        }
    }
    rp_release(stash);
    stash = NULL;
    /* A graph that is exported would not say that its derivative is another. */
    rp_tensor *pair[2];
    make(4, pair);
    rp_tensor *leaves[] = {leaf(pair[0]), leaf(pair[1])};
    for (int k = 0; k < UNRECORDED; k++) {
        chosen = &unrecorded[k];
        rp_ir *ir = NULL;
        FAILS(RP_ERROR_GRAPH_BREAK, "custom-function",
              (ir = rp_trace((rp_fn){unrecorded_body, NULL, 0, "f"}, leaves, 2, OUTS), rp_error_status()));
        rp_ir_release(ir);
    }
    rp_release(stash);
    stash = NULL;
    chosen = &unrecorded[0];
    for (int off = 0; off < 2; off++) { /* the forward alone is what there is to say */
        rp_tensor *got[OUTS], *values[OUTS];
        bool grad = rp_set_grad_enabled(!off);
        rp_ir *ir = rp_trace((rp_fn){unrecorded_body, NULL, 0, "f"}, off ? leaves : pair, 2, OUTS);
        OK(rp_ir_run(ir, pair, 2, got, OUTS));
        unrecorded_body(NULL, pair, 2, values, OUTS);
        for (int k = 0; k < OUTS; k++) same(got[k], values[k]);
        (void)rp_set_grad_enabled(grad);
        rp_ir_release(ir);
    }
    /* without gradients there is nothing to record but the forward */
    chosen = &unrecorded[0];
    rp_compiled *f = compiled(unrecorded_body, 2, true);
    rp_tensor *values[2], *out[OUTS], *want[OUTS];
    make(4, values);
    unrecorded_body(NULL, values, 2, want, OUTS);
    for (int call = 0; call < CALLS; call++) {
        OK(rp_call(f, values, 2, out, OUTS));
        for (int k = 0; k < OUTS; k++) same(out[k], want[k]);
    }
    rp_compiled_release(f);
}

/* ---- grad mode off inside: what follows has no derivative, neither in the function nor in a graph of it */

BACKWARD(untaped_backward) {
    UNUSED_BACK;
    bool grad = rp_set_grad_enabled(false);
    grad_in[0] = rp_mul(grad_out[0], rp_cos(saved[0]));
    (void)rp_set_grad_enabled(grad);
    return RP_OK;
}
static const rp_function untaped = {
    sizeof(rp_function), {sin_forward, NULL, 0, "untaped"}, untaped_backward, NULL, false};
BODY(untaped_inner) {
    UNUSED;
    (void)rp_function_apply(&untaped, in, 1, out, 1);
}
BODY(half_taped) {
    UNUSED;
    bool grad = rp_set_grad_enabled(false);
    rp_tensor *factor = rp_sin(in[0]);
    (void)rp_set_grad_enabled(grad);
    out[0] = rp_mul(factor, in[0]);
}
static rp_compiled *half_taped_compiled;
BODY(half_taped_call) {
    UNUSED;
    (void)rp_call(half_taped_compiled, in, 1, out, 1);
}
enum { AS_FUNCTION, IN_CHECKPOINT, IN_BRANCH, IN_LOOP, COMPILED_IN_CHECKPOINT, UNTAPED_CASES };
static int untaped_case;
BODY(once_more) {
    UNUSED;
    out[0] = rp_lt_scalar(in[1], rp_f64(2));
}
BODY(half_taped_step) {
    half_taped(ctx, in, n_in, out, n_out);
    out[1] = rp_add_scalar(in[1], rp_i64(1));
}
BODY(untaped_body) {
    UNUSED;
    rp_tensor *h = rp_mul(in[0], in[0]), *y[2],
              *state[] = {h, rp_zeros(RP_NO_DIMS, RP_OPTIONS(rp_zeros_options, .dtype = RP_I64))};
    rp_tensor *on = rp_gt_scalar(rp_amax(in[0], RP_NO_DIMS, false), rp_f64(0));
    const rp_fn part = {half_taped, NULL, 0, "half"}, call = {half_taped_call, NULL, 0, "call"};
    if (untaped_case == AS_FUNCTION) untaped_inner(NULL, &h, 1, y, 1);
    if (untaped_case == IN_CHECKPOINT) (void)rp_checkpoint(part, &h, 1, y, 1);
    if (untaped_case == IN_BRANCH) (void)rp_cond(on, part, part, &h, 1, y, 1);
    if (untaped_case == IN_LOOP)
        (void)rp_while((rp_fn){once_more, NULL, 0, "more"}, (rp_fn){half_taped_step, NULL, 0, "step"}, state, 2, 3, y);
    if (untaped_case == COMPILED_IN_CHECKPOINT) (void)rp_checkpoint(call, &h, 1, y, 1);
    if (rp_failed()) return;
    out[0] = rp_mul(y[0], in[1]);
    out[1] = rp_sin(y[0]);
    out[2] = rp_mul(h, in[1]);
}
static void grad_mode_off_in_blocks(void **state) {
    (void)state;
    for (untaped_case = 0; untaped_case < UNTAPED_CASES; untaped_case++) {
        for (int backend = 0; backend < BACKENDS; backend++) {
            half_taped_compiled = compiled(half_taped, backend, true);
            for (int second = 0; second < 2; second++) {
                rp_compiled *f = compiled(untaped_body, backend, false);
                for (int call = 0; call < CALLS; call++) check_call(untaped_body, f, (given){7, second != 0}, 4);
                rp_compiled_release(f);
            }
            rp_compiled_release(half_taped_compiled);
        }
    }
    /* without gradients it is a graph all the same */
    bool grad = rp_set_grad_enabled(false);
    for (untaped_case = IN_CHECKPOINT; untaped_case <= IN_LOOP; untaped_case++) {
        rp_compiled *f = compiled(untaped_body, 2, true);
        rp_tensor *values[2], *out[OUTS], *want[OUTS];
        make(4, values);
        untaped_body(NULL, values, 2, want, OUTS);
        for (int call = 0; call < CALLS; call++) {
            OK(rp_call(f, values, 2, out, OUTS));
            for (int k = 0; k < OUTS; k++) same(out[k], want[k]);
        }
        rp_compiled_release(f);
    }
    (void)rp_set_grad_enabled(grad);
}

/* ---- a result that its backward does not read may be written, also where gradients have gradients */

BODY(written_body) {
    UNUSED;
    rp_tensor *h = rp_mul(in[0], in[0]), *y;
    if (rp_function_apply(&doubled, &h, 1, &y, 1) != RP_OK) return;
    y = rp_mul_scalar_(y, rp_f64(3));
    out[0] = rp_mul(y, in[1]);
    out[1] = rp_mul_scalar(y, rp_f64(2));
    out[2] = rp_sin(h);
}
static void results_that_are_written(void **state) {
    (void)state;
    check(written_body, FIRST | EACH | SECOND);
}

BODY(wrong_forward) {
    UNUSED;
    out[0] = rp_matmul(in[0], in[0]); /* (4, 5) x (4, 5) */
}
static const rp_function wrong = {
    sizeof(rp_function), {wrong_forward, NULL, 0, "wrong"}, straight_through, NULL, false};
BODY(wrong_body) {
    UNUSED;
    (void)rp_function_apply(&wrong, in, 1, out, 1);
}
static void a_wrong_forward_is_told_once(void **state) {
    (void)state;
    rp_compiled *f = compiled(wrong_body, 2, false);
    rp_tensor *values[2], *out[1];
    make(4, values);
    rp_tensor *x = leaf(values[0]);
    for (int call = 0; call < 3; call++) FAILS(RP_ERROR_SHAPE, "matmul", rp_call(f, &x, 1, out, 1));
    rp_compiled_release(f);
}

/* ---- branches: the tape, and explain says so */

BODY(negative) {
    UNUSED;
    out[0] = rp_neg(in[0]);
}
BODY(branch_body) {
    UNUSED;
    rp_tensor *h = rp_mul(in[0], in[0]), *y;
    rp_tensor *on = rp_gt_scalar(rp_amax(in[0], RP_NO_DIMS, false), rp_f64(0));
    if (rp_cond(on, (rp_fn){rounded_inner, NULL, 0, "then"}, (rp_fn){negative, NULL, 0, "else"}, &h, 1, &y, 1) != RP_OK)
        return;
    out[0] = rp_mul(y, in[1]);
    out[1] = rp_sin(y);
    out[2] = rp_mul(h, in[1]);
}
static void in_a_branch(void **state) {
    (void)state;
    for (int backend = 0; backend < BACKENDS; backend++) {
        rp_compiled *f = compiled(branch_body, backend, false);
        for (int call = 0; call < CALLS; call++) check_call(branch_body, f, (given){7, false}, 4);
        assert_int_equal(entries(f, "skip", NULL), 0);
        rp_compiled_release(f);
        f = compiled(branch_body, backend, true); /* without gradients it is a graph */
        rp_tensor *values[2], *out[OUTS], *want[OUTS];
        make(4, values);
        branch_body(NULL, values, 2, want, OUTS);
        for (int call = 0; call < CALLS; call++) {
            OK(rp_call(f, values, 2, out, OUTS));
            for (int k = 0; k < OUTS; k++) same(out[k], want[k]);
        }
        assert_int_equal(entries(f, "skip", NULL), 0);
        rp_compiled_release(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gradients_are_the_functions_own, begin, end),
        cmocka_unit_test_setup_teardown(functions_in_a_row, begin, end),
        cmocka_unit_test_setup_teardown(functions_in_a_checkpoint, begin, end),
        cmocka_unit_test_setup_teardown(functions_in_functions, begin, end),
        cmocka_unit_test_setup_teardown(a_backward_inside, begin, end),
        cmocka_unit_test_setup_teardown(other_sizes, begin, end),
        cmocka_unit_test_setup_teardown(in_a_raw_graph, begin, end),
        cmocka_unit_test_setup_teardown(a_node_of_graphs, begin, end),
        cmocka_unit_test_setup_teardown(what_cannot_be_recorded_runs, begin, end),
        cmocka_unit_test_setup_teardown(grad_mode_off_in_blocks, begin, end),
        cmocka_unit_test_setup_teardown(results_that_are_written, begin, end),
        cmocka_unit_test_setup_teardown(a_wrong_forward_is_told_once, begin, end),
        cmocka_unit_test_setup_teardown(in_a_branch, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
