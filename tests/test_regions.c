/* rp_cond, rp_while, rp_checkpoint: eager, traced and compiled give the same values and gradients; text form; fallbacks. */
#include "support/region_cases.h"
#include "support/trace_help.h"

#include <math.h>

#include "core/alloc.h"
#include "trace/trace.h"

struct weights {
    rp_tensor *w; /* (3) */
};

static void scale_then(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct weights *m = ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul(rp_sin(in[0]), m->w); /* m->w is read from outside */
    out[1] = in[0];
}

static void scale_else(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_exp(in[0]);
    out[1] = rp_neg(in[0]);
}

static void with_cond(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *r[2], *h = rp_mul_scalar(in[0], rp_f64(2));
    (void)n_in;
    (void)n_out;
    rp_cond(rp_gt(rp_sum(in[0]), rp_full(RP_NO_DIMS, rp_f64(0))), (rp_fn){scale_then, ctx, 0, "then"},
            (rp_fn){scale_else, ctx, 0, "else"}, &h, 1, r, 2);
    out[0] = rp_add(r[0], r[1]);
}

static void loop_go(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_lt(rp_sum(rp_abs(in[1])), rp_full(RP_NO_DIMS, rp_f64(20)));
}

static void loop_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct weights *m = ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_add_scalar(in[0], rp_i64(1));
    out[1] = rp_add(in[1], rp_mul(rp_sin(in[1]), m->w));
    out[1] = rp_add_scalar(out[1], rp_f64(0.7));
}

static void with_while(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)),
                          rp_mul_scalar(in[0], rp_f64(0.5))},
              *r[2];
    (void)n_in;
    (void)n_out;
    rp_while((rp_fn){loop_go, ctx, 0, "go"}, (rp_fn){loop_step, ctx, 0, "step"}, state, 2, 12, r);
    out[0] = rp_mul(r[1], r[1]);
}

static void noisy_block(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct weights *m = ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_tanh(rp_mul(rp_dropout(rp_exp(in[0]), 0.5, true), m->w));
}

static void with_checkpoint(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *noise = rp_rand(RP_DIMS(3)), *r;
    (void)n_in;
    (void)n_out;
    rp_checkpoint((rp_fn){noisy_block, ctx, sizeof(struct weights), "block"}, in, 1, &r, 1);
    out[0] = rp_add(r, rp_mul(noise, rp_rand(RP_DIMS(3))));
}

/* the same function with its backward inside: a whole step */
struct inside {
    rp_body *body;
    struct weights *m;
};
static void step_inside(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct inside *s = ctx;
    rp_tensor *y;
    (void)n_out;
    s->body(s->m, in, n_in, &y, 1);
    rp_tensor *loss = rp_sum(y);
    rp_backward(loss, NULL, NULL);
    out[0] = rp_detach(loss);
    out[1] = rp_clone(rp_grad_of(s->m->w));
    rp_set_grad(s->m->w, NULL);
}

/* A branch that did not run leaves no .grad eagerly; a graph's node gives a gradient of zero. */
static rp_tensor *grad_or_zero(rp_tensor *t) {
    return rp_grad_of(t) ? rp_clone(rp_grad_of(t)) : rp_zeros_like(rp_detach(t));
}

static void assert_whole(rp_compiled *f) { /* nothing ran outside of the graphs */
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, "skip") == 0) fail_msg("skip: %s", e.message);
    }
}

static void compare(rp_body *body, const char *node, double start) {
    rp_scope scope = rp_scope_begin();
    struct weights m = {rp_retain(filled(0.8, 1, 3))};
    rp_set_requires_grad(m.w, true);
    rp_tensor *want[4], *y;

    /* the reference: eager, tape by op */
    rp_tensor *x = filled(start, 1, 3);
    rp_set_requires_grad(x, true);
    rp_manual_seed(3);
    body(&m, &x, 1, &y, 1);
    assert_ok();
    want[0] = y;
    want[1] = rp_sum(y);
    assert_int_equal(rp_backward(want[1], NULL, NULL), RP_OK);
    want[2] = grad_or_zero(x);
    want[3] = grad_or_zero(m.w);
    rp_set_grad(m.w, NULL);

    /* the graph has the node, passes the checker, and reads back */
    rp_ir *ir = rp_trace((rp_fn){body, &m, 0, "region"}, &x, 1, 1);
    assert_ok();
    size_t n = rp_ir_text(ir, NULL, 0);
    char *text = malloc(n + 1);
    assert_non_null(text);
    rp_ir_text(ir, text, n + 1);
    assert_non_null(strstr(text, node));
    assert_int_equal(rp_ir_check(ir), RP_OK);
    rp_ir *back = rp_ir_parse(text, n);
    assert_ok();
    assert_true(rp_ir_equal(ir, back));
    rp_ir_release(back);
    free(text);
    rp_manual_seed(3);
    rp_tensor *leaf = filled(start, 1, 3);
    assert_int_equal(rp_ir_run(ir, &leaf, 1, &y, 1), RP_OK);
    assert_same(y, want[0]);
    rp_ir_release(ir);

    static const char *const backends[] = {"aot_eager", "fused", "cudagraphs"};
    for (size_t k = 0; k < sizeof backends / sizeof *backends; k++) {
        /* compiled: forward and backward are graphs; the first call's tape is of recorded regions */
        rp_compiled *f = rp_compile((rp_fn){body, &m, sizeof m, "region"},
                                    RP_OPTIONS(rp_compile_options, .backend = backends[k], .fullgraph = true));
        for (int call = 0; call < 4; call++) {
            leaf = filled(start, 1, 3);
            rp_set_requires_grad(leaf, true);
            rp_manual_seed(3);
            assert_int_equal(rp_call(f, &leaf, 1, &y, 1), RP_OK);
            assert_same(y, want[0]);
            assert_int_equal(rp_backward(rp_sum(y), NULL, NULL), RP_OK);
            assert_same(rp_grad_of(leaf), want[2]);
            assert_same(grad_or_zero(m.w), want[3]);
            rp_set_grad(m.w, NULL);
        }
        assert_int_equal(explain_total(f, "break", NULL), 0);
        assert_whole(f);
        rp_compiled_release(f);

        /* backward inside the graph: the gradient of the region is part of it */
        struct inside s = {body, &m};
        f = rp_compile((rp_fn){step_inside, &s, sizeof s, "step"},
                       RP_OPTIONS(rp_compile_options, .backend = backends[k], .fullgraph = true));
        for (int call = 0; call < 4; call++) {
            rp_tensor *out[2];
            leaf = filled(start, 1, 3);
            rp_manual_seed(3);
            assert_int_equal(rp_call(f, &leaf, 1, out, 2), RP_OK);
            assert_same(out[0], want[1]);
            assert_same(out[1], want[3]);
        }
        assert_int_equal(explain_total(f, "break", NULL), 0);
        assert_whole(f);
        rp_compiled_release(f);
    }
    rp_release(m.w);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

static void test_cond(void **state) {
    (void)state;
    compare(with_cond, "cond(", 0.5);  /* the first branch */
    compare(with_cond, "cond(", -0.5); /* the second: the weight gets a gradient of zero */
}

static void test_while(void **state) {
    (void)state;
    compare(with_while, "while(", 0.4); /* ends by its condition */
    compare(with_while, "while(", 30);  /* no iteration at all */
    compare(with_while, "while(", -3);  /* ends at max_iter or by its condition */
}

/* an argument that does not lie densely, and has a gradient from several places: they are added up as without a trace */
static void of_a_view(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct weights *m = ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *r = rp_add(rp_tanh(in[0]), rp_tanh(rp_mul(in[0], m->w)));
    out[0] = rp_add(rp_mul_scalar(in[0], rp_f64(0.3)), rp_exp(r));
}
static void with_view(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *both[] = {rp_sin(in[0]), rp_mul(in[0], in[0])}, *r;
    (void)n_in;
    (void)n_out;
    rp_tensor *v = rp_slice(rp_cat(both, 2, 0), 0, 0, 6, 2);
    rp_tensor *first = rp_mul_scalar(v, rp_f64(0.7));
    rp_checkpoint((rp_fn){of_a_view, ctx, 0, "view"}, &v, 1, &r, 1);
    out[0] = rp_add(rp_mul(r, first), rp_mul_scalar(v, rp_f64(1.1)));
}

/* views inside of what does not lie densely, given and read from outside */
static void of_views(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *const *outside = ctx; /* (3, 2) both */
    (void)n_in;
    (void)n_out;
    rp_tensor *m = rp_matmul(in[0], rp_transpose(*outside, 0, 1)); /* (3, 3) */
    out[0] = rp_add(rp_tanh(rp_select(rp_transpose(m, 0, 1), 0, 1)), rp_select(*outside, 1, 0));
}
static void with_views(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    static rp_tensor *outside; /* a checkpoint runs its function again in the backward */
    const struct weights *m = ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *rows[] = {rp_unsqueeze(rp_sin(in[0]), 0), rp_unsqueeze(rp_mul(in[0], m->w), 0)};
    rp_tensor *x = rp_transpose(rp_cat(rows, 2, 0), 0, 1); /* (3, 2), strides (1, 3) */
    outside = rp_expand(rp_slice(x, 1, 0, 1, 1), RP_DIMS(3, 2));
    rp_checkpoint((rp_fn){of_views, &outside, 0, "views"}, &x, 1, out, 1);
    out[0] = rp_mul(out[0], rp_select(x, 1, 1));
}

static void test_checkpoint(void **state) {
    (void)state;
    compare(with_checkpoint, "checkpoint(", 0.3);
    compare(with_view, "checkpoint(", 0.3);
    compare(with_view, "checkpoint(", 0.9);
    compare(with_views, "checkpoint(", 0.5);
}

/* a gradient through a loop without a bound is an error that says so */
static void unbounded(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), in[0]}, *r[2];
    (void)n_in;
    (void)n_out;
    rp_while((rp_fn){loop_go, ctx, 0, "go"}, (rp_fn){loop_step, ctx, 0, "step"}, state, 2, 0, r);
    rp_backward(rp_sum(r[1]), NULL, NULL);
    out[0] = rp_detach(r[1]);
}

static void test_unbounded(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct weights m = {rp_retain(filled(0.8, 1, 3))};
    rp_set_requires_grad(m.w, true);
    rp_tensor *x = filled(0.1, 1, 3), *y;
    unbounded(&m, &x, 1, &y, 1); /* eager: the tape has every iteration */
    assert_ok();
    rp_set_grad(m.w, NULL);
    rp_compiled *f = rp_compile((rp_fn){unbounded, &m, sizeof m, "unbounded"},
                                RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(rp_error_message(), "max_iter"));
    rp_error_take();
    assert_null(rp_grad_of(m.w));
    rp_compiled_release(f);
    rp_release(m.w);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static void idle(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), in[0]}, *r[2];
    (void)n_in;
    (void)n_out;
    rp_while((rp_fn){loop_go, ctx, 0, "go"}, (rp_fn){loop_step, ctx, 0, "step"}, state, 2, 0, r);
    out[0] = r[1];
}

/* a loop that never runs gives a copy, node by node as eagerly: a write to its result is none to its argument */
static void test_idle(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct weights m = {filled(0.8, 1, 3)};
    rp_tensor *x = filled(50, 1, 3), *y;
    rp_ir *ir = rp_trace((rp_fn){idle, &m, sizeof m, "idle"}, &x, 1, 1);
    assert_int_equal(rp_ir_run(ir, &x, 1, &y, 1), RP_OK);
    assert_true(rp_data(y) != rp_data(x));
    idle(&m, &x, 1, &y, 1);
    assert_true(rp_data(y) != rp_data(x));
    assert_ok();
    rp_ir_release(ir);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* branches that cannot be blocks: the host runs them */
static void host_branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_f64(rp_item_f64(rp_sum(in[0]))));
    out[1] = rp_rand(RP_DIMS(3));
}

static void with_host_branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *zero = rp_full(RP_NO_DIMS, rp_f64(0));
    (void)n_in;
    (void)n_out;
    rp_cond(rp_gt(rp_sum(in[0]), zero), (rp_fn){host_branch, ctx, 0, "then"}, (rp_fn){scale_else, ctx, 0, "else"}, in,
            1, out, 2);
}

static void test_fallback(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f =
        rp_compile((rp_fn){with_host_branch, NULL, 0, "host"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    for (int call = 0; call < 4; call++) {
        rp_tensor *x = filled(call % 2 ? -1 : 1, 1, 3), *got[2], *want[2];
        rp_manual_seed(5);
        assert_int_equal(rp_call(f, &x, 1, got, 2), RP_OK);
        rp_manual_seed(5);
        with_host_branch(NULL, &x, 1, want, 2);
        assert_same(got[0], want[0]);
        assert_same(got[1], want[1]);
    }
    assert_int_equal(explain_total(f, "break", "region-not-traceable"), 1);
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

static rp_tensor *total_of(rp_tensor *t) { return rp_sum(t); }

/* what a region may not do */
static void writing_branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct weights *m = ctx;
    (void)n_in;
    (void)n_out;
    rp_add_scalar_(m->w, rp_f64(1));
    out[0] = in[0];
}

static void narrow_branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_select(in[0], 0, 0);
}

static rp_body *other_branch;
static void with_bad_branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *pred = rp_gt(rp_sum(in[0]), rp_full(RP_NO_DIMS, rp_f64(0)));
    (void)n_in;
    (void)n_out;
    rp_cond(pred, (rp_fn){narrow_branch, ctx, 0, "then"}, (rp_fn){other_branch, ctx, 0, "else"}, in, 1, out, 1);
}

static void test_errors(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct weights m = {filled(0.8, 1, 3)};
    rp_tensor *x = filled(1, 1, 3), *y[2];
    other_branch = writing_branch;
    rp_ir *ir = rp_trace((rp_fn){with_bad_branch, &m, 0, "bad"}, &x, 1, 1);
    assert_int_equal(rp_error_status(), RP_ERROR_GRAPH_BREAK);
    assert_non_null(strstr(rp_error_message(), "writes to memory from outside"));
    assert_non_null(strstr(rp_error_message(), "add_scalar_"));
    rp_error_take();
    rp_ir_release(ir);
    assert_int_equal(rp_version(m.w), 0);
    struct weights unused = m;
    other_branch = narrow_branch;
    rp_ir_release(rp_trace((rp_fn){with_bad_branch, &unused, 0, "fine"}, &x, 1, 1));
    assert_ok();
    /* the predicate is one bool */
    assert_int_equal(rp_cond(x, (rp_fn){scale_then, &m, 0, "a"}, (rp_fn){scale_else, &m, 0, "b"}, &x, 1, y, 2),
                     RP_ERROR_INVALID_ARGUMENT);
    assert_true(rp_is_error(y[0]) && rp_is_error(y[1]));
    rp_error_take();
    assert_int_equal(rp_while((rp_fn){NULL, NULL, 0, "a"}, (rp_fn){scale_else, &m, 0, "b"}, &x, 1, 3, y),
                     RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* Functions that are told of an error, take it and go on: eagerly and compiled they must do the same. */
typedef struct careless {
    rp_tensor *memory; /* (3), from outside */
    int what;
    bool takes; /* takes the error */
} careless;

static void careless_block(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const careless *c = ctx;
    rp_tensor *kept = rp_cos(in[0]), *made = NULL, *t;
    (void)n_in;
    (void)n_out;
    switch (c->what) {
    case 0: rp_fill_(c->memory, rp_f64(2)); break;                                   /* memory from outside */
    case 1: rp_mul_(rp_slice(c->memory, 0, 1, 3, 1), rp_select(in[0], 0, 0)); break; /* through a view */
    case 2: rp_add_scalar_(in[0], rp_f64(1)); break;                                 /* an argument */
    case 3: rp_copy_(c->memory, rp_ones(RP_DIMS(5))); break; /* sizes that do not fit: refused everywhere */
    case 4: rp_mul_(kept, rp_ones(RP_DIMS(5))); break;       /* the same to what it made */
    case 5: made = rp_mul_scalar(kept, rp_f64(rp_item_f64(total_of(in[0])))); break; /* a number for the host */
    case 6:
        t = rp_matmul(in[0], rp_ones(RP_DIMS(2, 2)));
        made = rp_is_error(t) ? rp_exp(kept) : t;
        break;
    case 7:
        t = rp_reshape(c->memory, RP_DIMS(2, 2));
        rp_fill_(rp_is_error(t) ? kept : t, rp_f64(4));
        break;
    }
    if (c->takes) (void)rp_error_take();
    out[0] = rp_add(made && !rp_is_error(made) ? made : kept, c->memory);
}
enum { CARELESS = 8 };

static void careless_go(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    careless_block(ctx, in, 1, out, 1);
    out[0] = rp_lt_scalar(in[1], rp_i64(2));
}
static void careless_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    careless_block(ctx, in, 1, out, 1);
    out[1] = rp_add_scalar(in[1], rp_i64(1));
}

static int careless_kind;
static void with_careless(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_fn block = {careless_block, ctx, 0, "careless"};
    rp_tensor *x = rp_mul_scalar(in[0], rp_f64(0.5)),
              *yes = rp_full(RP_NO_DIMS, rp_bool(true), RP_OPTIONS(rp_full_options, .dtype = RP_BOOL)), *r = NULL;
    (void)n_in;
    (void)n_out;
    if (careless_kind == 0) rp_checkpoint(block, &x, 1, &r, 1);
    if (careless_kind == 1) rp_cond(yes, block, block, &x, 1, &r, 1);
    if (careless_kind >= 2) {
        rp_tensor *state[] = {x, rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64))},
                  *after[2] = {NULL, NULL};
        rp_while((rp_fn){careless_go, ctx, 0, "go"}, (rp_fn){careless_step, ctx, 0, "step"}, state, 2, 4, after);
        r = after[0];
    }
    out[0] = r && !rp_is_error(r) ? rp_add(r, x) : r;
}

static void test_errors_taken(void **state) {
    (void)state;
    static const char *const backends[] = {"aot_eager", "fused"};
    for (int b = 0; b < 2; b++) {
        for (int k = 0; k < 3 * CARELESS * 2; k++) {
            rp_scope scope = rp_scope_begin();
            careless c[2];
            rp_fn fn[2];
            careless_kind = k / CARELESS % 3;
            for (int i = 0; i < 2; i++) {
                c[i] = (careless){filled(0.8, 1, 3), k % CARELESS, k / CARELESS / 3 > 0};
                fn[i] = (rp_fn){with_careless, &c[i], sizeof c[i], "with_careless"};
            }
            rp_compiled *f[] = {rp_plain(fn[0]),
                                rp_compile(fn[1], RP_OPTIONS(rp_compile_options, .backend = backends[b]))};
            for (int call = 0; call < 4; call++) {
                rp_tensor *y[2];
                rp_status status[2];
                for (int i = 0; i < 2; i++) {
                    rp_tensor *x = filled(0.4, 1, 3);
                    status[i] = rp_call(f[i], &x, 1, &y[i], 1);
                    assert_int_equal(rp_error_take(), status[i]);
                }
                if (status[0] != status[1])
                    fail_msg("case %d, call %d: status %d, not %d", k, call, status[1], status[0]);
                if (status[0] == RP_OK) assert_same(y[1], y[0]);
                assert_same(c[1].memory, c[0].memory);
                assert_int_equal(rp_version(c[1].memory), rp_version(c[0].memory));
            }
            assert_null(rp__trace_current());
            /* An exported graph is that of the whole function or none. */
            rp_tensor *x = filled(0.4, 1, 3);
            uint64_t version = rp_version(c[1].memory);
            rp_ir *ir = rp_trace(fn[1], &x, 1, 1);
            if (!rp_failed()) assert_int_equal(rp_ir_check(ir), RP_OK);
            (void)rp_error_take();
            rp_ir_release(ir);
            assert_int_equal(rp_version(c[1].memory), version);
            rp_compiled_release(f[0]);
            rp_compiled_release(f[1]);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
    }
}

/* Blocks are parts of one program: fused, planned, replayed with other predicates. */
static void test_programs(void **state) {
    (void)state;
    for (size_t k = 0; k < RC_CASES; k++) {
        for (int no_graph = 0; no_graph < 2; no_graph++) {
            rp_scope scope = rp_scope_begin();
            rp_compiled *f = rc_check(&rc_cases[k], RP_OPTIONS(rp_compile_options, .backend = "fused",
                                                               .fullgraph = true, .no_graph = no_graph != 0));
            assert_int_equal(rc_told(f, "skip", ""), 0);
            assert_int_equal(rc_told(f, "region", no_graph ? "host" : "node of the device graph"), rc_cases[k].regions);
            assert_true(no_graph ? rc_told(f, "graph", "") == 0 : rc_told(f, "graph", "device graph ") == 1);
            rp_compiled_release(f);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
            assert_ok();
        }
    }
}

/* ---- the rule for results: the same words from the host and from a trace */

static bool leaves_out; /* does `lacking` leave its second result out, or give another type? */
static void lacking(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_neg(in[0]);
    out[1] = leaves_out ? NULL : rp_to_dtype(in[0], RP_F64);
}
static void complete(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_sin(in[0]);
    out[1] = rp_exp(in[0]);
}
static void lacking_cond(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_cond(rp_gt_scalar(rp_select(in[0], 0, 0), rp_f64(0)), (rp_fn){complete, ctx, 0, "complete"},
            (rp_fn){lacking, ctx, 0, "lacking"}, in, 1, out, 2);
}
static void endless(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lt_scalar(rp_select(in[0], 0, 0), rp_f64(100));
}
static void lacking_while(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *state[] = {in[0], in[0]};
    rp_while((rp_fn){endless, ctx, 0, "endless"}, (rp_fn){lacking, ctx, 0, "lacking"}, state, 2, 3, out);
}
static void lacking_checkpoint(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_checkpoint((rp_fn){lacking, ctx, 0, "lacking"}, in, 1, out, 2);
}

static void assert_told(rp_status want, const char *const *words) {
    assert_int_equal(rp_error_status(), want);
    for (; *words; words++) {
        if (!strstr(rp_error_message(), *words)) fail_msg("no \"%s\" in: %s", *words, rp_error_message());
    }
    rp_error_take();
}

static void test_results(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(-1, 1, 3), *out[2];
    static const struct {
        rp_body *body;
        const char *name;
    } regions[] = {{lacking_cond, "rp_cond"}, {lacking_while, "rp_while"}, {lacking_checkpoint, "rp_checkpoint"}};
    rp_set_requires_grad(x, true);
    leaves_out = true;
    for (size_t k = 0; k < sizeof regions / sizeof *regions; k++) {
        const char *const words[] = {regions[k].name, "`lacking` leaves output 1 out", "test_regions.c:", NULL};
        for (int grad = 0; grad < 2; grad++) {
            bool before = rp_set_grad_enabled(grad != 0);
            out[0] = out[1] = NULL;
            regions[k].body(NULL, &x, 1, out, 2); /* the host */
            assert_true(rp_is_error(out[0]) && rp_is_error(out[1]));
            assert_told(RP_ERROR_INVALID_ARGUMENT, words);
            (void)rp_set_grad_enabled(before);
        }
        rp_ir_release(rp_trace((rp_fn){regions[k].body, NULL, 0, "lacking"}, &x, 1, 2));
        assert_told(RP_ERROR_INVALID_ARGUMENT, words);
    }
    leaves_out = false;
    const char *const differ[] = {"differ in output 1", "`complete` gives float32 (3)", "`lacking` gives float64 (3)",
                                  "test_regions.c:", NULL};
    rp_ir_release(rp_trace((rp_fn){lacking_cond, NULL, 0, "differ"}, &x, 1, 2));
    assert_told(RP_ERROR_SHAPE, differ);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* ---- second derivatives */

static double region_x[3] = {0.35, -0.2, 0.6};
enum { SECOND_COND, SECOND_WHILE, SECOND_CHECKPOINT, SECOND_KINDS };

static void cubic(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(rp_mul(in[0], rp_sin(in[0])), in[1]);
}
static void other(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(rp_exp(rp_mul(in[0], in[0])), in[1]);
}
static void short_loop(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lt_scalar(rp_sum(rp_mul(in[0], in[0])), rp_f64(6));
}
static void grow(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(rp_mul_scalar(in[0], rp_f64(1.5)), rp_mul(rp_sin(in[0]), in[1]));
    out[1] = rp_mul(in[1], rp_tanh(in[0]));
}
static rp_tensor *second_value(int kind, rp_tensor *x) {
    rp_tensor *in[2] = {x, rp_mul(x, rp_exp(x))}, *out[2] = {NULL, NULL};
    rp_tensor *sum = rp_sum(x);
    rp_fn f = {cubic, NULL, 0, "cubic"}, g = {other, NULL, 0, "other"};
    if (kind == SECOND_COND) rp_cond(rp_gt_scalar(sum, rp_f64(0)), f, g, in, 2, out, 1);
    if (kind == SECOND_WHILE)
        rp_while((rp_fn){short_loop, NULL, 0, "short"}, (rp_fn){grow, NULL, 0, "grow"}, in, 2, 9, out);
    if (kind == SECOND_CHECKPOINT) rp_checkpoint(f, in, 2, out, 1);
    rp_tensor *y = kind == SECOND_WHILE ? rp_mul(out[0], out[1]) : out[0];
    return rp_sum(rp_mul(y, y));
}

/* d/dx of sum(v . d value / dx); x is a leaf */
static void second_gradient(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const int *kind = ctx;
    (void)n_in;
    rp_tensor *x = rp_detach(in[0]), *value, *g;
    rp_set_requires_grad(x, true);
    value = second_value(*kind, x);
    rp_grad(&value, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &g);
    rp_tensor *dot = rp_sum(rp_mul(g, in[1]));
    if (n_out > 1) out[1] = rp_detach(g);
    rp_grad(&dot, 1, &x, 1, NULL, NULL, &out[0]);
}

static void test_second_order(void **state) {
    (void)state;
    for (int kind = 0; kind < SECOND_KINDS; kind++) {
        rp_scope scope = rp_scope_begin();
        const double v[3] = {0.7, -1.1, 0.4}, h = 1e-5;
        double got[3], plus[3], minus[3];
        rp_tensor *in[2] = {rp_from_data(region_x, RP_DIMS(3), RP_F64), rp_from_data(v, RP_DIMS(3), RP_F64)}, *out[2];
        second_gradient(&kind, in, 2, out, 2);
        assert_ok();
        assert_int_equal(rp_to_host(out[0], got, sizeof got), RP_OK);
        for (int d = 0; d < 3; d++) { /* central differences of v . gradient */
            double at[3], slope = 0;
            for (int sign = 0; sign < 2; sign++) {
                memcpy(at, region_x, sizeof at);
                at[d] += sign ? -h : h;
                rp_tensor *x = rp_from_data(at, RP_DIMS(3), RP_F64), *value, *g;
                rp_set_requires_grad(x, true);
                value = second_value(kind, x);
                assert_int_equal(rp_grad(&value, 1, &x, 1, NULL, NULL, &g), RP_OK);
                assert_int_equal(rp_to_host(g, sign ? minus : plus, sizeof plus), RP_OK);
            }
            for (int k = 0; k < 3; k++) slope += v[k] * (plus[k] - minus[k]) / (2 * h);
            double bound = 1e-6 * (1 + fabs(slope));
            if (!(fabs(got[d] - slope) <= bound))
                fail_msg("kind %d, element %d: %.12g, not %.12g", kind, d, got[d], slope);
        }
        /* the same inside a compiled function: both derivatives are in its graph */
        static const char *const backends[] = {"aot_eager", "fused"};
        for (size_t b = 0; b < 2; b++) {
            rp_compiled *f = rp_compile((rp_fn){second_gradient, &kind, sizeof kind, "second"},
                                        RP_OPTIONS(rp_compile_options, .backend = backends[b], .fullgraph = true));
            for (int call = 0; call < 3; call++) {
                rp_tensor *compiled[2];
                double again[3];
                assert_int_equal(rp_call(f, in, 2, compiled, 2), RP_OK);
                assert_ok();
                assert_same(compiled[1], out[1]);
                assert_int_equal(rp_to_host(compiled[0], again, sizeof again), RP_OK);
                for (int d = 0; d < 3; d++) {
                    if (!(fabs(again[d] - got[d]) <= 1e-12 * (1 + fabs(got[d]))))
                        fail_msg("kind %d, %s, call %d: %.12g, not %.12g", kind, backends[b], call, again[d], got[d]);
                }
            }
            assert_whole(f);
            rp_compiled_release(f);
        }
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        assert_ok();
    }
}

/* a second derivative through a compiled function: the call is run again under the tape */
static void value_of(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = second_value(*(const int *)ctx, in[0]);
}
static void test_second_order_compiled(void **state) {
    (void)state;
    for (int kind = 0; kind < SECOND_KINDS; kind++) {
        rp_scope scope = rp_scope_begin();
        rp_fn fn = {value_of, &kind, sizeof kind, "value"};
        rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
        rp_compiled *plain = rp_plain(fn);
        rp_tensor *want[2] = {NULL, NULL};
        for (int call = -1; call < 4; call++) {
            rp_tensor *x = rp_from_data(region_x, RP_DIMS(3), RP_F64), *y, *g, *gg;
            rp_set_requires_grad(x, true);
            assert_int_equal(rp_call(call < 0 ? plain : f, &x, 1, &y, 1), RP_OK);
            assert_int_equal(rp_grad(&y, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &g),
                             RP_OK);
            rp_tensor *dot = rp_sum(rp_mul(g, rp_sin(g)));
            assert_int_equal(rp_grad(&dot, 1, &x, 1, NULL, NULL, &gg), RP_OK);
            if (call < 0) {
                want[0] = rp_detach(g);
                want[1] = gg;
                continue;
            }
            assert_same(rp_detach(g), want[0]);
            double have[3], expect[3];
            assert_int_equal(rp_to_host(gg, have, sizeof have), RP_OK);
            assert_int_equal(rp_to_host(want[1], expect, sizeof expect), RP_OK);
            for (int d = 0; d < 3; d++) {
                if (!(fabs(have[d] - expect[d]) <= 1e-12 * (1 + fabs(expect[d]))))
                    fail_msg("kind %d, call %d: %.12g, not %.12g", kind, call, have[d], expect[d]);
            }
        }
        rp_compiled_release(f);
        rp_compiled_release(plain);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        assert_ok();
    }
}

/* ---- the n-th allocation fails */

static rp_status step_twice(rp_body *body, rp_tensor *x) {
    rp_scope scope = rp_scope_begin();
    struct weights m = {rp_full(RP_DIMS(3), rp_f64(0.8))};
    struct inside s = {body, &m};
    rp_set_requires_grad(m.w, true);
    rp_compiled *f =
        rp_compile((rp_fn){step_inside, &s, sizeof s, "step"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    for (int call = 0; call < 2 && !rp_failed(); call++) {
        rp_tensor *out[2];
        rp_call(f, &x, 1, out, 2);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? rp_error_take() : RP_OK;
}

/* a branch that switches grad mode off for a while, in a checkpoint */
static void quiet_branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct weights *m = ctx;
    (void)n_in, (void)n_out;
    bool old = rp_set_grad_enabled(false);
    rp_tensor *c = rp_mul(rp_exp(in[0]), m->w);
    (void)rp_set_grad_enabled(old);
    out[0] = rp_mul(c, rp_mul(in[0], m->w));
}
static void quiet_block(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *positive = rp_gt_scalar(rp_sum(in[0]), rp_f64(0));
    rp_fn fn = {quiet_branch, ctx, 0, "quiet"};
    rp_cond(positive, fn, fn, in, n_in, out, n_out);
}
static void with_quiet(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_checkpoint((rp_fn){quiet_block, ctx, 0, "block"}, in, n_in, out, n_out);
}

static void test_out_of_memory(void **state) {
    (void)state;
    rp_body *bodies[] = {with_cond, with_while, with_checkpoint, with_quiet};
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(0.4, 1, 3);
    for (size_t b = 0; b < sizeof bodies / sizeof *bodies; b++) {
        for (int warm = 0; warm < 2; warm++) assert_int_equal(step_twice(bodies[b], x), RP_OK);
        uint64_t live = rp__alloc_live();
        bool done = false;
        for (uint64_t n = 1; !done; n += n < 100 ? 1 : 11) {
            uint64_t before = rp__alloc_fail_at(n);
            rp_status status = step_twice(bodies[b], x);
            uint64_t after = rp__alloc_fail_at(0);
            done = after - before < n;
            if (status != RP_OK && (done || status != RP_ERROR_OUT_OF_MEMORY))
                fail_msg("function %zu, allocation %llu: status %d", b, (unsigned long long)n, (int)status);
            assert_null(rp__trace_current());
        }
        assert_int_equal(step_twice(bodies[b], x), RP_OK);
        assert_in_range(rp__alloc_live(), 0, live + 8); /* caches may have lost an entry, or found room for one */
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_cond, take_error),
        cmocka_unit_test_teardown(test_while, take_error),
        cmocka_unit_test_teardown(test_checkpoint, take_error),
        cmocka_unit_test_teardown(test_unbounded, take_error),
        cmocka_unit_test_teardown(test_fallback, take_error),
        cmocka_unit_test_teardown(test_errors, take_error),
        cmocka_unit_test_teardown(test_errors_taken, take_error),
        cmocka_unit_test_teardown(test_programs, take_error),
        cmocka_unit_test_teardown(test_results, take_error),
        cmocka_unit_test_teardown(test_second_order, take_error),
        cmocka_unit_test_teardown(test_second_order_compiled, take_error),
        cmocka_unit_test_teardown(test_idle, take_error),
        cmocka_unit_test_teardown(test_out_of_memory, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
