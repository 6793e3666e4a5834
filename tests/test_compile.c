/* rp_compile: specialisations, guards, symbols, purity, breaks, gradients at entry and exit, backends, explain. Every compiled
   result is compared with the function itself, run eagerly. */
/* ctest: labels=threads timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>

#include "core/alloc.h"
#include "support/trace_help.h"
#include "tensor/tensor.h"

/* ---- functions */

struct net {
    rp_tensor *w, *b; /* (4, 3), (4) */
    int64_t mode;
};

static void forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct net *m = ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *h = rp_linear(in[0], m->w, m->b);
    out[0] = m->mode ? rp_tanh(h) : rp_sin(h);
}

static struct net new_net(bool grad) {
    struct net m = {filled(0.05, 2, 4, 3), filled(0.1, 1, 4), 0};
    rp_retain(m.w);
    rp_retain(m.b);
    if (grad) {
        assert_int_equal(rp_set_requires_grad(m.w, true), RP_OK);
        assert_int_equal(rp_set_requires_grad(m.b, true), RP_OK);
    }
    return m;
}

static void free_net(struct net *m) {
    rp_release(m->w);
    rp_release(m->b);
}

static rp_compiled *compiled(rp_fn fn, const rp_compile_options *o) {
    rp_compiled *f = rp_compile(fn, o);
    assert_ok();
    return f;
}

static void test_inference(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct net m = new_net(false);
    rp_fn fn = {forward, &m, sizeof m, "net"};
    rp_compiled *f = compiled(fn, RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true)),
                *plain = rp_plain(fn);
    for (int call = 0; call < 4; call++) {
        rp_tensor *x = filled(0.3 + call, 2, 5, 3), *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        assert_int_equal(rp_call(plain, &x, 1, &want, 1), RP_OK);
        assert_same(got, want);
    }
    assert_int_equal(explain_total(f, "specialisation", NULL), 1);
    /* ctx bytes are a guard */
    m.mode = 1;
    for (int call = 0; call < 2; call++) {
        rp_tensor *x = filled(0.3, 2, 5, 3), *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        assert_int_equal(rp_call(plain, &x, 1, &want, 1), RP_OK);
        assert_same(got, want);
    }
    assert_int_equal(explain_total(f, "specialisation", NULL), 2);
    assert_int_equal(explain_total(f, "guard", "guard-ctx"), 1);
    /* the parameter is captured by reference: a write is seen */
    rp_mul_scalar_(m.w, rp_f64(2));
    rp_tensor *x = filled(0.3, 2, 5, 3), *got, *want;
    assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
    assert_int_equal(rp_call(plain, &x, 1, &want, 1), RP_OK);
    assert_same(got, want);
    assert_int_equal(explain_total(f, "break", NULL), 0);
    rp_compiled_release(f);
    rp_compiled_release(plain);
    free_net(&m);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

static void test_training(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct net m = new_net(true);
    rp_fn fn = {forward, &m, sizeof m, "net"};
    rp_compiled *f = compiled(fn, RP_OPTIONS(rp_compile_options, .backend = "aot_eager")), *plain = rp_plain(fn);
    for (int call = 0; call < 3; call++) {
        rp_tensor *grads[2][3];
        for (int k = 0; k < 2; k++) {
            rp_tensor *leaf = filled(0.2 * call, 2, 5, 3), *y;
            assert_int_equal(rp_set_requires_grad(leaf, true), RP_OK);
            rp_tensor *x = rp_mul_scalar(leaf, rp_f64(1.5)); /* an argument with history */
            assert_int_equal(rp_call(k ? f : plain, &x, 1, &y, 1), RP_OK);
            assert_int_equal(rp_backward(rp_sum(rp_mul(y, y)), NULL, NULL), RP_OK);
            grads[k][0] = rp_clone(rp_grad_of(m.w));
            grads[k][1] = rp_clone(rp_grad_of(m.b));
            grads[k][2] = rp_clone(rp_grad_of(leaf));
            rp_set_grad(m.w, NULL);
            rp_set_grad(m.b, NULL);
        }
        for (int g = 0; g < 3; g++) assert_same(grads[1][g], grads[0][g]);
    }
    assert_int_equal(explain_total(f, "specialisation", NULL), 1);
    assert_int_equal(explain_total(f, "break", NULL), 0);
    /* grad mode is a guard */
    bool grad = rp_set_grad_enabled(false);
    rp_tensor *x = filled(0.3, 2, 5, 3), *y;
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    assert_false(rp_requires_grad(y));
    rp_set_grad_enabled(grad);
    rp_compiled_release(f);
    rp_compiled_release(plain);
    free_net(&m);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- a whole step: backward and the update inside */

struct step {
    struct net net;
    bool keep_grad;
};

static void train_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct step *s = ctx;
    rp_tensor *y, *params[] = {s->net.w, s->net.b};
    (void)n_out;
    if (s->keep_grad) {
        for (int k = 0; k < 2; k++) rp_set_grad(params[k], NULL);
    }
    forward(&s->net, in, n_in, &y, 1);
    rp_tensor *loss = rp_mean(rp_mul(y, y));
    rp_backward(loss, NULL, NULL);
    bool grad = rp_set_grad_enabled(false);
    for (int k = 0; k < 2; k++) {
        rp_add_(params[k], rp_mul_scalar(rp_grad_of(params[k]), rp_f64(-0.5)));
        if (!s->keep_grad) rp_set_grad(params[k], NULL);
    }
    rp_set_grad_enabled(grad);
    out[0] = rp_detach(loss);
}

static void whole_step(bool keep_grad) {
    rp_scope scope = rp_scope_begin();
    struct step a = {new_net(true), keep_grad}, b = {new_net(true), keep_grad};
    rp_compiled *f = compiled((rp_fn){train_step, &a, sizeof a, "step"},
                              RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true));
    for (int call = 0; call < 6; call++) {
        rp_tensor *x = filled(0.4, 2, 5, 3), *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        train_step(&b, &x, 1, &want, 1);
        assert_ok();
        assert_same(got, want);
        assert_same(a.net.w, b.net.w);
        assert_same(a.net.b, b.net.b);
        assert_int_equal(rp_version(a.net.w), rp_version(b.net.w));
        assert_int_equal(rp_grad_of(a.net.w) != NULL, keep_grad);
        if (keep_grad) assert_same(rp_grad_of(a.net.w), rp_grad_of(b.net.w));
    }
    /* with keep_grad the first call finds no .grad, all later ones find one: two specialisations */
    assert_int_equal(explain_total(f, "specialisation", NULL), keep_grad ? 2 : 1);
    assert_int_equal(explain_total(f, "break", NULL), 0);
    rp_compiled_release(f);
    rp_set_grad(a.net.w, NULL);
    free_net(&a.net);
    free_net(&b.net);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static void test_whole_step(void **state) {
    (void)state;
    whole_step(false);
    whole_step(true);
}

/* .grad accumulates over calls: the entry gradient is an argument of the graph, written in place */
static void accumulate(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *y;
    forward(ctx, in, n_in, &y, 1);
    (void)n_out;
    rp_tensor *loss = rp_sum(y);
    rp_backward(loss, NULL, NULL);
    out[0] = rp_detach(loss);
}

static void test_accumulated_gradient(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct net a = new_net(true), b = new_net(true);
    rp_compiled *f = compiled((rp_fn){accumulate, &a, sizeof a, "accumulate"},
                              RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    for (int call = 0; call < 5; call++) {
        rp_tensor *x = filled(0.1 * call, 2, 5, 3), *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        accumulate(&b, &x, 1, &want, 1);
        assert_same(got, want);
        assert_same(rp_grad_of(a.w), rp_grad_of(b.w));
        assert_same(rp_grad_of(a.b), rp_grad_of(b.b));
    }
    assert_int_equal(explain_total(f, "break", NULL), 0);
    rp_compiled_release(f);
    rp_set_grad(a.w, NULL);
    rp_set_grad(a.b, NULL);
    free_net(&a);
    free_net(&b);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* ---- sizes */

static void pair_sum(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_reshape(rp_permute(rp_add(in[0], in[1]), RP_DIMS(1, 0)), RP_DIMS(-1));
    out[1] = rp_mean(rp_exp(rp_mul_scalar(in[0], rp_f64(0.01))), RP_DIMS(1));
}

static void check_pair(rp_compiled *f, int64_t rows, int64_t columns, int64_t rows2) {
    rp_tensor *in[] = {filled(0.1, 2, rows, columns), filled(0.7, 2, rows2, columns)}, *got[2], *want[2];
    assert_int_equal(rp_call(f, in, 2, got, 2), RP_OK);
    pair_sum(NULL, in, 2, want, 2);
    assert_ok();
    assert_same(got[0], want[0]);
    assert_same(got[1], want[1]);
}

static void test_symbolic_sizes(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = compiled((rp_fn){pair_sum, NULL, 0, "pair"},
                              RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true));
    check_pair(f, 4, 3, 4);
    check_pair(f, 4, 3, 4);
    check_pair(f, 7, 3, 7); /* rows become a symbol, one for both */
    check_pair(f, 9, 3, 9);
    check_pair(f, 100, 3, 100);
    check_pair(f, 2, 3, 2);
    assert_int_equal(explain_total(f, "specialisation", NULL), 2);
    check_pair(f, 5, 6, 5); /* columns too */
    check_pair(f, 8, 11, 8);
    assert_int_equal(explain_total(f, "specialisation", NULL), 3);
    check_pair(f, 6, 4, 1); /* broadcast: other relations */
    check_pair(f, 3, 5, 1);
    assert_int_equal(explain_total(f, "break", NULL), 0);
    /* the guard in words */
    bool found = false;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
        found = found || strstr(e.message, "in[0].size(0)");
    }
    assert_true(found);
    rp_compiled_release(f);
    f = compiled((rp_fn){pair_sum, NULL, 0, "pair"},
                 RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .static_sizes = true, .cache_limit = 2));
    for (int rows = 2; rows < 7; rows++) check_pair(f, rows, 3, rows);
    assert_int_equal(explain_total(f, "specialisation", ""), 5);
    assert_int_equal(explain_total(f, "specialisation", "evicted"), 3);
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* rp_size on a symbol gives the value and guards it */
static void scale_by_rows(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_f64((double)rp_size(in[0], 0)));
}

static void test_size_read_on_host(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = compiled((rp_fn){scale_by_rows, NULL, 0, "rows"},
                              RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true));
    for (int64_t rows = 2; rows < 6; rows++) {
        for (int again = 0; again < 2; again++) {
            rp_tensor *x = filled(0.1, 2, rows, (int64_t)3), *got, *want;
            assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
            scale_by_rows(NULL, &x, 1, &want, 1);
            assert_same(got, want);
        }
    }
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* Numbers of ops that are sizes of the trace, as words: a derivative or a layer hands on what a tensor says of itself. */
static int word_op;
static void takes_words(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const rp_dim n = in[0]->size[0];
    rp_tensor *x = in[0], *row;
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = out[1] = rp_sin(x);
    switch (word_op) {
    case 0: out[0] = rp_topk(x, n, 0, true, true, &out[1]); break;
    case 1: out[0] = rp_multinomial(rp_abs(rp_select(x, 1, 0)), n, true); break;
    case 2: out[0] = rp_randint(0, n, RP_DIMS(9)); break;
    case 3: out[0] = rp_slice(x, 0, 0, n, n); break;
    case 4: out[0] = rp_slice(x, 0, 1, n, 1); break;
    case 5:
        row = rp_unsqueeze(rp_unsqueeze(rp_transpose(x, 0, 1), 0), 2); /* (1, 3, 1, n) */
        out[0] = rp_conv2d(row, rp_ones(RP_DIMS(3, 3, 1, 1)), NULL, RP_DIMS(1, n), RP_DIMS(0, n), RP_DIMS(1, 1), 1);
        break;
    case 6: out[0] = rp_full(&n, 1, rp_f64(2)); break;
    case 7: out[0] = rp_expand(rp_slice(x, 0, 0, 1, 1), RP_DIMS(n, 3)); break;
    }
}
enum { WORD_OPS = 8 };

static void test_sizes_as_numbers(void **state) {
    (void)state;
    for (word_op = 0; word_op < WORD_OPS; word_op++) {
        rp_scope scope = rp_scope_begin();
        rp_compiled *f =
            compiled((rp_fn){takes_words, NULL, 0, "words"},
                     RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true, .strict = true));
        for (int64_t rows = 3; rows < 10; rows++) {
            rp_tensor *x = filled(0.1, 2, rows, (int64_t)3), *got[2], *want[2];
            assert_int_equal(rp_manual_seed(11), RP_OK);
            if (rp_call(f, &x, 1, got, 2) != RP_OK)
                fail_msg("op %d, %d rows: %s", word_op, (int)rows, rp_error_message());
            assert_int_equal(rp_manual_seed(11), RP_OK);
            takes_words(NULL, &x, 1, want, 2);
            assert_same(got[0], want[0]);
            assert_same(got[1], want[1]);
        }
        if (word_op == 0) assert_int_equal(explain_total(f, "specialisation", NULL), 2); /* k needs no other */
        assert_int_equal(explain_total(f, "break", NULL), 0);
        rp_compiled_release(f);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
}

/* A tensor that outlived the trace that made it has no value: wherever it comes in, it is an error. */
static rp_tensor *outlived;
static void keeps_a_tensor(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_sin(in[0]);
    outlived = rp_retain(out[0]);
}
static void adds(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_relu(rp_add(in[0], in[1]));
}
static void steps(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_sum(rp_mul(in[0], in[1]));
    (void)rp_backward(out[0], NULL, NULL);
}
static void reads_orphan(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul(in[0], outlived);
}

static void test_orphans(void **state) {
    (void)state;
    static const char *const names[] = {"eager", "aot_eager", "fused", "cudagraphs"};
    for (int b = 0; b < 4; b++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = filled(0.1, 1, 3), *y;
        rp_ir_release(rp_trace((rp_fn){keeps_a_tensor, NULL, 0, "keeps"}, &x, 1, 1));
        assert_ok();
        assert_int_equal(rp_size(outlived, 0), 3); /* what it is can still be asked */
        assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
        rp_compiled *f = compiled((rp_fn){adds, NULL, 0, "adds"}, RP_OPTIONS(rp_compile_options, .backend = names[b])),
                    *s =
                        compiled((rp_fn){steps, NULL, 0, "steps"}, RP_OPTIONS(rp_compile_options, .backend = names[b])),
                    *r = compiled((rp_fn){reads_orphan, NULL, 0, "reads"},
                                  RP_OPTIONS(rp_compile_options, .backend = names[b]));
        for (int call = 0; call < 4; call++) { /* before, while and after it is compiled */
            rp_tensor *in[] = {x, outlived}, *good[] = {x, x}, *twice[] = {outlived, outlived};
            FAILS(RP_ERROR_STATE, "given up", rp_call(f, in, 2, &y, 1));
            assert_true(rp_is_error(y));
            FAILS(RP_ERROR_STATE, "given up", rp_call(f, twice, 2, &y, 1));
            FAILS(RP_ERROR_STATE, "given up", rp_call(r, &x, 1, &y, 1));
            OK(rp_call(f, good, 2, &y, 1));
            if (call % 2)
                FAILS(RP_ERROR_STATE, "given up", rp_backward(y, outlived, NULL));
            else
                OK(rp_backward(y, rp_ones_like(x), NULL));
            OK(rp_set_grad(x, call % 2 ? NULL : rp_zeros(RP_DIMS(3))));
            OK(rp_call(s, good, 2, &y, 1));
            OK(rp_set_grad(x, outlived));
            FAILS(RP_ERROR_STATE, "given up", rp_call(s, good, 2, &y, 1));
            OK(rp_set_grad(x, NULL));
        }
        rp_compiled_release(f);
        rp_compiled_release(s);
        rp_compiled_release(r);
        rp_release(outlived);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
}

/* ---- breaks */

static int effects;
static const char *break_line;

static void branchy(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *h = rp_mul(in[0], in[0]);
    effects++;
    rp_tensor *total = rp_sum(h);
    double sum = (break_line = RP_HERE, rp_item_f64(total)); /* one line: the place */
    out[0] = sum > 10 ? rp_exp(rp_mul_scalar(h, rp_f64(-1))) : rp_sin(h);
}

static void test_break(void **state) {
    (void)state;
    for (int full = 0; full < 2; full++) {
        rp_scope scope = rp_scope_begin();
        effects = 0;
        rp_compiled *f = compiled((rp_fn){branchy, NULL, 0, "branchy"},
                                  RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = full == 1));
        for (int call = 0; call < 6; call++) {
            rp_tensor *leaf[2], *got, *want;
            for (int k = 0; k < 2; k++) {
                leaf[k] = filled(call % 2 ? 3 : 0.1, 1, 6);
                rp_set_requires_grad(leaf[k], true);
            }
            rp_status status = rp_call(f, &leaf[0], 1, &got, 1);
            assert_int_equal(effects, 2 * call + 1); /* once, also when it breaks */
            if (full) {
                assert_int_equal(status, RP_ERROR_GRAPH_BREAK);
                assert_non_null(strstr(rp_error_message(), break_line));
                rp_error_take();
            } else {
                assert_int_equal(status, RP_OK);
            }
            branchy(NULL, &leaf[1], 1, &want, 1);
            assert_same(got, want); /* true values in both cases */
            assert_int_equal(rp_backward(rp_sum(got), NULL, NULL), RP_OK);
            assert_int_equal(rp_backward(rp_sum(want), NULL, NULL), RP_OK);
            assert_same(rp_grad_of(leaf[0]), rp_grad_of(leaf[1]));
        }
        assert_int_equal(explain_total(f, "break", "host-read"), 1);
        rp_compiled_release(f);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        assert_ok();
    }
}

/* an op whose sizes depend on data: it runs between two segments, on a view that it copies first */
static void positive(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *h = rp_permute(rp_relu(rp_add_scalar(in[0], rp_f64(-0.1))), RP_DIMS(1, 0));
    rp_tensor *where = rp_nonzero(h);
    out[0] = rp_mul(where, where);
    out[1] = rp_exp(h);
}

static void test_data_sizes(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f =
        compiled((rp_fn){positive, NULL, 0, "positive"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    for (int call = 0; call < 4; call++) {
        rp_tensor *x = filled(0.2 - 0.1 * call, 2, 3, 4), *got[2], *want[2];
        assert_int_equal(rp_call(f, &x, 1, got, 2), RP_OK);
        positive(NULL, &x, 1, want, 2);
        assert_same(got[0], want[0]);
        assert_same(got[1], want[1]);
    }
    assert_int_equal(explain_total(f, "break", "op-needs-values"), 1);
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* segments with writes to what comes from outside */
struct counted {
    rp_tensor *count;
};
static void counting(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct counted *c = ctx;
    (void)n_in;
    (void)n_out;
    rp_add_scalar_(c->count, rp_f64(1));
    if (rp_item_f64(c->count) > 2.5) rp_add_scalar_(c->count, rp_f64(10));
    rp_tensor *v = rp_select(in[0], 0, 1);
    rp_add_(v, c->count);
    out[0] = rp_mul_scalar(in[0], rp_f64(2));
}

static void test_break_with_writes(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct counted a = {rp_retain(rp_full(RP_NO_DIMS, rp_f64(0)))}, b = {rp_retain(rp_full(RP_NO_DIMS, rp_f64(0)))};
    rp_compiled *f =
        compiled((rp_fn){counting, &a, sizeof a, "counting"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    rp_tensor *x = filled(1, 2, 3, 2), *y = filled(1, 2, 3, 2);
    for (int call = 0; call < 5; call++) {
        rp_tensor *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        counting(&b, &y, 1, &want, 1);
        assert_same(got, want);
        assert_same(x, y);
        assert_same(a.count, b.count);
        assert_int_equal(rp_version(x), rp_version(y));
    }
    rp_compiled_release(f);
    rp_release(a.count);
    rp_release(b.count);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- purity */

static double hidden;
static void impure(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    hidden += 1;
    out[0] = rp_mul_scalar(in[0], rp_f64(hidden));
}

static void test_purity(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f =
        compiled((rp_fn){impure, NULL, 0, "impure"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    rp_tensor *x = filled(1, 1, 3), *y;
    hidden = 0;
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    for (int call = 0; call < 3; call++) {
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_same(y, rp_mul_scalar(x, rp_f64(hidden))); /* it ran in this call, with the value of now */
    }
    assert_int_equal(explain_total(f, "break", "impure"), 1);
    rp_compiled_release(f);
    f = compiled((rp_fn){impure, NULL, 0, "impure"},
                 RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true));
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_ERROR_GUARD);
    assert_non_null(strstr(rp_error_message(), "mul_scalar")); /* the node that differs */
    rp_error_take();
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* Host data too long for a constant: another tensor in each call. */
static void long_table(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    static const float table[2048];
    out[0] = rp_add(in[0], rp_from_data(table, RP_DIMS(2048), RP_F32));
}

static void test_other_tensors(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = compiled((rp_fn){long_table, NULL, 0, "long table"},
                              RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true));
    rp_tensor *x = filled(1, 1, 2048), *y;
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_ERROR_GUARD);
    assert_non_null(strstr(rp_error_message(), "one is float32 (2048), from "));
    assert_non_null(strstr(rp_error_message(), "test_compile.c"));
    assert_non_null(strstr(rp_error_message(), "pass it as an argument"));
    rp_error_take();
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static rp_tensor *stored;
static void storing(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_release(stored);
    stored = rp_retain(rp_exp(in[0]));
    out[0] = rp_neg(stored);
}

static void test_escape(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f =
        compiled((rp_fn){storing, NULL, 0, "storing"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    for (int call = 0; call < 4; call++) {
        rp_tensor *x = filled(0.1 * call, 1, 3), *y;
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_same(stored, rp_exp(x));
        assert_same(y, rp_neg(stored));
    }
    assert_int_equal(explain_total(f, "break", "tensor-escapes"), 1);
    rp_release(stored);
    stored = NULL;
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- random numbers */

static void noisy(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    rp_tensor *r = rp_rand(RP_DIMS(5));
    out[0] = rp_add(rp_dropout(in[0], 0.5, true), r);
}

static void test_random(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = compiled((rp_fn){noisy, NULL, 0, "noisy"},
                              RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true));
    rp_tensor *x = filled(1, 1, 5), *got[4], *want;
    uint64_t seed, a, b;
    rp_manual_seed(7);
    for (int call = 0; call < 4; call++) assert_int_equal(rp_call(f, &x, 1, &got[call], 1), RP_OK);
    rp_generator_get(rp_default_generator(rp_cpu()), &seed, &a);
    rp_manual_seed(7);
    for (int call = 0; call < 4; call++) {
        noisy(NULL, &x, 1, &want, 1);
        assert_same(got[call], want);
    }
    rp_generator_get(rp_default_generator(rp_cpu()), &seed, &b);
    assert_int_equal(a, b);
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- constants, aliases, errors, nesting */

static void aliases(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    const float table[] = {1, 2, 3};
    out[0] = in[0];
    out[1] = rp_view(in[0], RP_DIMS(3, 1));
    rp_tensor *held = rp_retain(rp_from_data(table, RP_DIMS(3), RP_F32)); /* a constant, whoever holds it */
    out[2] = rp_add(in[0], held);
    rp_release(held);
    out[3] = NULL;
}

static void test_aliases(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = compiled((rp_fn){aliases, NULL, 0, "aliases"},
                              RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true));
    for (int call = 0; call < 3; call++) {
        rp_tensor *x = filled(0.5 + call, 1, 3), *out[4], *want[4];
        assert_int_equal(rp_call(f, &x, 1, out, 4), RP_OK);
        aliases(NULL, &x, 1, want, 4);
        assert_ptr_equal(out[0], x);
        assert_ptr_equal(rp_data(out[1]), rp_data(x));
        assert_same(out[1], want[1]);
        assert_same(out[2], want[2]);
        assert_null(out[3]);
    }
    assert_int_equal(explain_total(f, "break", NULL), 0);
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ctx: a tensor from outside, which copies that need not be made hand on as it is. It is no constant of the graph. */
static void hands_on(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    rp_tensor *same = rp_contiguous(*(rp_tensor **)ctx);
    out[0] = rp_mul(in[0], same);
    rp_add_scalar_(same, rp_f64(0.5));
    out[1] = rp_add(in[0], same);
}

static void test_handed_on(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *outside[2];
        for (int k = 0; k < 2; k++) {
            outside[k] = way & 2 ? rp_full(RP_DIMS(3), rp_f64(2)) : rp_full(RP_NO_DIMS, rp_f64(2));
            if (way & 1) { /* as a module's buffer, in no scope */
                rp_scope made = rp_scope_begin();
                outside[k] = rp_retain(rp_clone(outside[k]));
                assert_int_equal(rp_scope_end(made, NULL, 0), RP_OK);
            }
        }
        rp_compiled *f = compiled((rp_fn){hands_on, &outside[0], sizeof outside[0], "hands_on"},
                                  RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
        for (int call = 0; call < 4; call++) {
            rp_tensor *x = filled(0.5 + call, 1, 3), *out[2], *want[2];
            if (call == 3)
                for (int k = 0; k < 2; k++) rp_fill_(outside[k], rp_f64(7));
            assert_int_equal(rp_call(f, &x, 1, out, 2), RP_OK);
            hands_on(&outside[1], &x, 1, want, 2);
            assert_same(out[0], want[0]);
            assert_same(out[1], want[1]);
            assert_same(outside[0], outside[1]);
        }
        rp_compiled_release(f);
        for (int k = 0; k < 2 && way & 1; k++) rp_release(outside[k]);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
    assert_ok();
}

static void wrong(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in;
    (void)n_out;
    rp_tensor *kept_alive = rp_exp(in[0]);
    if (ctx) *(rp_tensor **)ctx = rp_retain(kept_alive);
    out[0] = rp_add(kept_alive, rp_zeros(RP_DIMS(7, 7, 7)));
}

static void test_error_inside(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *orphan = NULL, *x = filled(1, 1, 3), *y;
    rp_compiled *f =
        compiled((rp_fn){wrong, &orphan, 0, "wrong"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_ERROR_SHAPE);
    assert_true(rp_is_error(y));
    assert_non_null(strstr(rp_error_message(), "add"));
    rp_error_take();
    /* what the function kept was never computed: an error, not a crash */
    assert_true(rp_is_error(rp_neg(orphan)));
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    float host[3];
    assert_int_equal(rp_to_host(orphan, host, sizeof host), RP_ERROR_STATE);
    rp_error_take();
    rp_release(orphan);
    rp_compiled_release(f);
    /* and the library works on */
    assert_same(rp_neg(rp_neg(x)), x);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

static void nested(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *h;
    (void)n_in;
    (void)n_out;
    rp_call(ctx, in, 1, &h, 1);
    out[0] = rp_mul(h, h);
}

static void test_nested(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct net m = new_net(false);
    rp_compiled *inner =
        compiled((rp_fn){forward, &m, sizeof m, "inner"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    rp_compiled *f = compiled((rp_fn){nested, inner, 0, "outer"},
                              RP_OPTIONS(rp_compile_options, .backend = "aot_eager", .fullgraph = true));
    for (int call = 0; call < 3; call++) {
        rp_tensor *x = filled(0.2 * call, 2, 5, 3), *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        forward(&m, &x, 1, &want, 1);
        assert_same(got, rp_mul(want, want));
    }
    assert_int_equal(rp_explain_count(inner), 0); /* inlined */
    rp_compiled_release(f);
    rp_compiled_release(inner);
    free_net(&m);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- backends */

static struct { int compiled, ran, destroyed; } seen;

static rp_status my_compile(void *ctx, const rp_ir *graph, void **object) {
    assert_ptr_equal(ctx, &seen);
    assert_int_equal(rp_ir_check(graph), RP_OK);
    size_t n = rp_ir_text(graph, NULL, 0);
    char *text = malloc(n + 1);
    assert_int_equal(rp_ir_text(graph, text, n + 1), n);
    assert_non_null(strstr(text, "linear"));
    free(text);
    seen.compiled++;
    *object = (void *)(uintptr_t)graph;
    return RP_OK;
}

static rp_status my_run(void *ctx, void *object, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    seen.ran++;
    return rp_ir_run(object, in, n_in, out, n_out);
}

static void my_destroy(void *ctx, void *object) {
    (void)ctx;
    (void)object;
    seen.destroyed++;
}

static bool is_listed(const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < rp_backend_count(); i++) n += strcmp(rp_backend_name(i), name) == 0;
    assert_true(n < 2);
    return n == 1;
}

/* A name that was taken back is free; functions that were compiled with what it stood for go on. */
static void test_backends_go(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_backend mine = {sizeof mine, "passing", my_compile, my_run, my_destroy, &seen};
    assert_true(is_listed("fused") && is_listed("inductor") && !is_listed("passing"));
    assert_int_equal(rp_register_backend(&mine), RP_OK);
    assert_true(is_listed("passing"));
    struct net m = new_net(false);
    rp_compiled *f =
        compiled((rp_fn){forward, &m, sizeof m, "net"}, RP_OPTIONS(rp_compile_options, .backend = "passing"));
    rp_tensor *x = filled(0.2, 2, 5, 3), *got, *want;
    for (int turn = 0; turn < 4; turn++) {
        int ran = seen.ran;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        forward(&m, &x, 1, &want, 1);
        assert_same(got, want);
        if (turn == 1) assert_int_equal(rp_unregister_backend("passing"), RP_OK);
        if (turn > 1) assert_int_equal(seen.ran, ran + 1);
    }
    assert_false(is_listed("passing"));
    assert_int_equal(rp_unregister_backend("passing"), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
    assert_int_equal(rp_unregister_backend("fused"), RP_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(rp_error_message(), "the library's own"));
    rp_error_take();
    rp_compile((rp_fn){forward, &m, sizeof m, "net"}, RP_OPTIONS(rp_compile_options, .backend = "passing"));
    assert_non_null(strstr(rp_error_message(), "there is no backend \"passing\""));
    rp_error_take();
    assert_int_equal(rp_register_backend(&mine), RP_OK);
    assert_int_equal(rp_unregister_backend("passing"), RP_OK);
    rp_compiled_release(f);
    free_net(&m);
    memset(&seen, 0, sizeof seen);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- counters of the process, and a reset */

static int64_t counter(const char *kind, const char *reason) {
    int64_t total = 0;
    for (size_t k = 0; k < rp_counter_count(); k++) {
        rp_counter c;
        assert_int_equal(rp_counter_get(k, &c), RP_OK);
        assert_true(c.count > 0);
        if (strcmp(c.kind, kind) == 0 && strcmp(c.reason, reason) == 0) total += (int64_t)c.count;
    }
    return total;
}

static bool reads; /* the function asks for a value on the host */
static void may_read(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_exp(in[0]);
    if (reads && rp_item_f64(rp_sum(out[0])) < 0) out[0] = in[0];
}

static void test_reset(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_counters_clear();
    assert_int_equal(rp_counter_count(), 0);
    rp_compiled *f = compiled((rp_fn){may_read, NULL, 0, "may read"}, NULL);
    rp_tensor *x = filled(0.2, 1, 5), *y, *want = rp_exp(x);
    reads = true;
    for (int k = 0; k < 3; k++) assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    assert_int_equal(counter("break", "host-read"), 1);
    int64_t made = counter("specialisation", ""); /* segments */
    reads = false;
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK); /* it still runs at every call */
    assert_int_equal(explain_total(f, "specialisation", NULL), counter("specialisation", ""));
    rp_compile_reset();
    for (int k = 0; k < 3; k++) {
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_same(y, want);
    }
    bool whole = false; /* one graph, at last */
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        whole = whole || strcmp(e.of, "specialisation 1") == 0;
    }
    assert_true(whole);
    assert_true(counter("specialisation", "") > made);
    assert_int_equal(counter("break", "host-read"), 1);
    assert_int_not_equal(rp_counter_get(rp_counter_count(), &(rp_counter){0}), RP_OK);
    rp_error_take();
    rp_counters_clear();
    assert_int_equal(rp_counter_count(), 0);
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

static void three_ops(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_mul(rp_tanh(rp_exp(in[0])), in[0]);
}

/* "cudagraphs" runs eager's kernels, one an op; "fused" makes one of them, forward as backward. */
static void test_kernels_of_backends(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(0.2, 2, 3, 4), *y;
    rp_compiled *apart = compiled((rp_fn){three_ops, NULL, 0, "apart"},
                                  RP_OPTIONS(rp_compile_options, .backend = "cudagraphs")),
                *joined = compiled((rp_fn){three_ops, NULL, 0, "joined"}, NULL);
    rp_tensor *want = rp_mul(rp_tanh(rp_exp(x)), x);
    for (int k = 0; k < 3; k++) {
        OK(rp_call(apart, &x, 1, &y, 1));
        assert_same(y, want);
        OK(rp_call(joined, &x, 1, &y, 1));
        assert_same(y, want);
    }
    assert_int_equal(explain_total(apart, "kernel", NULL), 3);
    assert_int_equal(explain_total(joined, "kernel", NULL), 1);
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    for (int k = 0; k < 3; k++) {
        OK(rp_call(apart, &x, 1, &y, 1));
        OK(rp_backward(rp_sum(y), NULL, NULL));
    }
    for (size_t k = 0; k < rp_explain_count(apart); k++) {
        rp_explain_entry e;
        OK(rp_explain_get(apart, k, &e));
        if (strcmp(e.kind, "kernel") == 0) assert_null(strchr(e.message, '+'));
    }
    rp_compiled_release(apart);
    rp_compiled_release(joined);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static void test_backends(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_backend mine = {sizeof mine, "mine", my_compile, my_run, my_destroy, &seen};
    assert_int_equal(rp_register_backend(&mine), RP_OK);
    assert_int_equal(rp_register_backend(&mine), RP_ERROR_INVALID_ARGUMENT); /* the name is taken */
    rp_error_take();
    bool found = false;
    for (size_t i = 0; i < rp_backend_count(); i++) found = found || strcmp(rp_backend_name(i), "mine") == 0;
    assert_true(found);
    struct net m = new_net(false);
    rp_compiled *f = compiled((rp_fn){forward, &m, sizeof m, "net"}, RP_OPTIONS(rp_compile_options, .backend = "mine"));
    for (int call = 0; call < 3; call++) {
        rp_tensor *x = filled(0.2, 2, 5, 3), *got, *want;
        assert_int_equal(rp_call(f, &x, 1, &got, 1), RP_OK);
        forward(&m, &x, 1, &want, 1);
        assert_same(got, want);
    }
    assert_int_equal(seen.compiled, 1);
    assert_int_equal(seen.ran, 2); /* the first call computes while it records */
    rp_compiled_release(f);
    assert_int_equal(seen.destroyed, 1);

    f = rp_compile((rp_fn){forward, &m, sizeof m, "net"}, RP_OPTIONS(rp_compile_options, .backend = "nonsense"));
    assert_int_equal(rp_error_status(), RP_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(rp_error_message(), "eager, aot_eager"));
    rp_error_take();
    rp_tensor *x = filled(0.2, 2, 5, 3), *y;
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_ERROR_STATE);
    rp_error_take();
    rp_compiled_release(f);

    effects = 0;
    f = compiled((rp_fn){branchy, NULL, 0, "branchy"}, RP_OPTIONS(rp_compile_options, .backend = "eager"));
    x = filled(0.2, 1, 6);
    for (int call = 0; call < 3; call++) assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    assert_int_equal(effects, 3);
    rp_compiled_release(f);
    free_net(&m);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    assert_ok();
}

/* ---- threads, memory */

static void *thread_main(void *arg) {
    rp_scope scope = rp_scope_begin();
    struct net *m = arg; /* shared parameters */
    rp_compiled *f =
        rp_compile((rp_fn){forward, m, sizeof *m, "net"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    for (int call = 0; call < 30; call++) {
        const float data[] = {1, 2, 3, 4, 5, 6};
        rp_tensor *x = rp_from_data(data, RP_DIMS(2, 3), RP_F32), *y;
        if (rp_call(f, &x, 1, &y, 1) != RP_OK) return "call failed";
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? "failed" : NULL;
}

/* ---- captured tensors that change between calls ---- */

struct outside {
    rp_tensor *v, *w; /* v: a view, the only one that holds its base; w: a leaf */
};

static void times_view(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct outside *o = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_mul(in[0], o->v);
    out[1] = rp_mul(in[0], o->w);
}

/* Gives what is in .grad behind a backward inside. */
static void gradient_inside(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct outside *o = ctx;
    (void)n_in, (void)n_out;
    rp_backward(rp_sum(rp_mul(rp_mul(in[0], o->w), o->w)), NULL, NULL);
    out[0] = rp_clone(rp_grad_of(o->w));
    out[1] = rp_detach(o->w);
}

static rp_tensor *halved(void *ctx, rp_tensor *grad) {
    (void)ctx;
    return rp_mul_scalar(grad, rp_f64(0.5));
}

static rp_tensor *doubled(void *ctx, rp_tensor *grad) {
    (void)ctx;
    return rp_mul_scalar(grad, rp_f64(2));
}

enum { NEED, NO_NEED, FILL, HOOK, HOOK2, UNHOOK, GRAD, NO_GRAD, BACKWARD, WRITE_VIEW, WRITE_VIEW_OF_ANOTHER };

static void change_outside(const struct outside *o, int what) {
    static uint64_t hook;
    rp_scope scope = rp_scope_begin();
    rp_tensor *other = filled(0.7, 1, 3);
    bool grad = rp_set_grad_enabled(what != FILL);
    switch (what) {
    case NEED: rp_set_requires_grad(o->w, true); break;
    case NO_NEED: rp_set_requires_grad(o->w, false); break;
    case FILL: rp_fill_(o->w, rp_f64(0.75)); break;
    case HOOK: hook = rp_register_hook(o->w, halved, NULL); break;
    case HOOK2: hook = rp_register_hook(o->w, doubled, NULL); break;
    case UNHOOK: rp_remove_hook(o->w, hook); break;
    case GRAD: rp_set_grad(o->w, other); break;
    case NO_GRAD: rp_set_grad(o->w, NULL); break;
    case BACKWARD: rp_backward(rp_sum(o->w), NULL, NULL); break;
    case WRITE_VIEW: rp_mul_(o->v, o->w); break; /* gives a history to the base, and to v with it */
    default:
        rp_set_requires_grad(other, true);
        rp_mul_(o->v, other);
        break;
    }
    (void)rp_set_grad_enabled(grad);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

/* A call gives what the function gives; w's .grad is left as it was found, lest the next call sees another. */
static void call_and_look(rp_compiled *f, rp_fn fn, const struct outside *o, int what) {
    rp_tensor *x = filled(0.4, 1, 3), *want[2], *got[2], *before = rp_grad_of(o->w);
    if (before) before = rp_clone(before);
    rp_call(f, &x, 1, got, 2); /* first: the function itself may bring a view up to date */
    rp_set_grad(o->w, before);
    fn.body(fn.ctx, &x, 1, want, 2);
    rp_set_grad(o->w, before);
    assert_ok();
    for (int i = 0; i < 2; i++) {
        float a[3], b[3];
        assert_int_equal(rp_to_host(want[i], a, sizeof a), RP_OK);
        assert_int_equal(rp_to_host(got[i], b, sizeof b), RP_OK);
        if (memcmp(a, b, sizeof a) || rp_requires_grad(want[i]) != rp_requires_grad(got[i]))
            fail_msg("result %d after change %d", i, what);
    }
}

static void change_between_calls(rp_body *body, const int *changes, int n) {
    rp_scope scope = rp_scope_begin(), inner = rp_scope_begin();
    rp_tensor *kept[] = {rp_slice(filled(0.2, 1, 5), 0, 1, 4, 1), filled(0.3, 1, 3)};
    struct outside o = {kept[0], kept[1]};
    rp_scope_end(inner, kept, 2);
    const rp_fn fn = {body, &o, sizeof o, "outside"};
    rp_compiled *f = compiled(fn, NULL);
    for (int i = 0; i < n; i++) {
        change_outside(&o, changes[i]);
        for (int k = 0; k < 4; k++) call_and_look(f, fn, &o, changes[i]);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_ok();
}

static void test_captured_changes(void **state) {
    (void)state;
    static const int needs[] = {FILL, NEED, NO_NEED, FILL, NEED, HOOK, UNHOOK, BACKWARD, WRITE_VIEW};
    static const int late[] = {FILL, NO_NEED, FILL, WRITE_VIEW_OF_ANOTHER};
    static const int gradients[] = {NEED,   FILL,     BACKWARD, NO_GRAD, GRAD,    HOOK,
                                    UNHOOK, BACKWARD, HOOK2,    UNHOOK,  NO_GRAD, FILL};
    change_between_calls(times_view, needs, sizeof needs / sizeof *needs);
    change_between_calls(times_view, late, sizeof late / sizeof *late);
    change_between_calls(gradient_inside, gradients, sizeof gradients / sizeof *gradients);
}

static void test_threads(void **state) {
    (void)state;
    struct net m = new_net(false);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &m), 0);
    for (int i = 0; i < 2; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    free_net(&m);
}

static rp_status train_twice(rp_tensor *x) {
    struct step s = {{x, x, 0}, false};
    rp_scope scope = rp_scope_begin();
    s.net.w = rp_full(RP_DIMS(4, 3), rp_f64(0.5));
    s.net.b = rp_full(RP_DIMS(4), rp_f64(0.25));
    rp_set_requires_grad(s.net.w, true);
    rp_set_requires_grad(s.net.b, true);
    rp_compiled *f =
        rp_compile((rp_fn){train_step, &s, sizeof s, "step"}, RP_OPTIONS(rp_compile_options, .backend = "aot_eager"));
    for (int call = 0; call < 3 && !rp_failed(); call++) {
        rp_tensor *y;
        rp_call(f, &x, 1, &y, 1);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    return rp_failed() ? rp_error_take() : RP_OK;
}

static void test_out_of_memory(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(0.3, 2, 5, 3);
    assert_int_equal(train_twice(x), RP_OK);
    assert_int_equal(train_twice(x), RP_OK); /* caches are warm */
    uint64_t live = rp__alloc_live();
    assert_int_equal(train_twice(x), RP_OK);
    assert_int_equal(rp__alloc_live(), live);
    bool clean = false;
    for (uint64_t n = 1; n < 100000 && !clean; n += n < 400 ? 1 : 7) {
        uint64_t before = rp__alloc_fail_at(n);
        rp_status status = train_twice(x);
        uint64_t after = rp__alloc_fail_at(0);
        clean = after - before < n;
        if (!clean && status != RP_OK && status != RP_ERROR_OUT_OF_MEMORY)
            fail_msg("allocation %llu: status %d", (unsigned long long)n, (int)status);
        assert_false(rp_failed());
    }
    assert_true(clean);
    assert_int_equal(train_twice(x), RP_OK);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* Reads a number, then goes on behind an op that fails, and reads another. */
static void reads_behind_errors(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *place, *most = rp_max_dim(in[0], 1, false, &place);
    out[0] = rp_mul_scalar(most, rp_f64(rp_item_f64(rp_sum(most)) > 0 ? 2 : 3));
    for (int k = 0; k < 2; k++) {
        if (rp_is_error(k ? rp_max_dim(in[0], 0, false, &place) : rp_cos(in[0]))) (void)rp_error_take();
        rp_tensor *e = rp_exp(in[0]);
        if (rp_item_f64(rp_sum(e)) > 0) out[0] = rp_add(out[0], rp_sum(e, RP_DIMS(1), false));
    }
}

static void test_out_of_memory_between_segments(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = filled(0.3, 2, 5, 3), *out;
    rp_compiled *f = rp_compile((rp_fn){reads_behind_errors, NULL, 0, "reads"}, NULL);
    for (int k = 0; k < 3; k++) assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
    bool clean = false;
    for (uint64_t n = 1; n < 10000 && !clean; n++) {
        rp_scope call = rp_scope_begin();
        const uint64_t before = rp__alloc_fail_at(n);
        const rp_status status = rp_call(f, &x, 1, &out, 1);
        clean = rp__alloc_fail_at(0) - before < n;
        if (status != RP_OK && status != RP_ERROR_OUT_OF_MEMORY)
            fail_msg("allocation %llu: status %d", (unsigned long long)n, (int)status);
        (void)rp_error_take();
        assert_int_equal(rp_scope_end(call, NULL, 0), RP_OK);
    }
    assert_true(clean);
    assert_int_equal(rp_call(f, &x, 1, &out, 1), RP_OK);
    rp_compiled_release(f);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_inference, take_error),
        cmocka_unit_test_teardown(test_training, take_error),
        cmocka_unit_test_teardown(test_whole_step, take_error),
        cmocka_unit_test_teardown(test_accumulated_gradient, take_error),
        cmocka_unit_test_teardown(test_symbolic_sizes, take_error),
        cmocka_unit_test_teardown(test_sizes_as_numbers, take_error),
        cmocka_unit_test_teardown(test_orphans, take_error),
        cmocka_unit_test_teardown(test_size_read_on_host, take_error),
        cmocka_unit_test_teardown(test_break, take_error),
        cmocka_unit_test_teardown(test_break_with_writes, take_error),
        cmocka_unit_test_teardown(test_data_sizes, take_error),
        cmocka_unit_test_teardown(test_purity, take_error),
        cmocka_unit_test_teardown(test_other_tensors, take_error),
        cmocka_unit_test_teardown(test_escape, take_error),
        cmocka_unit_test_teardown(test_random, take_error),
        cmocka_unit_test_teardown(test_aliases, take_error),
        cmocka_unit_test_teardown(test_handed_on, take_error),
        cmocka_unit_test_teardown(test_error_inside, take_error),
        cmocka_unit_test_teardown(test_nested, take_error),
        cmocka_unit_test_teardown(test_backends_go, take_error),
        cmocka_unit_test_teardown(test_reset, take_error),
        cmocka_unit_test_teardown(test_backends, take_error),
        cmocka_unit_test_teardown(test_kernels_of_backends, take_error),
        cmocka_unit_test_teardown(test_captured_changes, take_error),
        cmocka_unit_test_teardown(test_threads, take_error),
        cmocka_unit_test_teardown(test_out_of_memory, take_error),
        cmocka_unit_test_teardown(test_out_of_memory_between_segments, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
