/* Hostile callers of compiled functions, backends, regions, graphs and streams (test_hostile.c): each call comes back with an
   error and leaves nothing behind. ctest: again=REPRISE_CHECK=1 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "reprise_io.h"
#include "reprise_ir.h"
#include "reprise_text.h"
#include "support/hostile.h"

static void leaves_out(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)out, (void)n_out;
}
static void doubles(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    for (size_t k = 0; k < n_in && k < n_out; k++) out[k] = rp_add(in[k], in[k]);
}
static void gives_errors(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in;
    for (size_t k = 0; k < n_out; k++) out[k] = wrong;
}
static void shape_error(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in;
    for (size_t k = 0; k < n_out; k++) out[k] = rp_view(in[0], RP_DIMS(77));
}
static void leaks_scope(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)rp_scope_begin();
    doubles(ctx, in, n_in, out, n_out);
}
static void compiled_functions_refuse(void **state) {
    (void)state;
    rp_tensor *a = ones(2), *out[2] = {NULL, NULL};
    rp_fn none = {0}, fn = {doubles, NULL, 0, NULL}, bytes = {doubles, NULL, 16, "bytes"};
    rp_compiled *made[] = {
        rp_compile(none, NULL),
        (rp_error_take(), rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "no_such"))),
        (rp_error_take(), rp_compile(fn, &(rp_compile_options){0})),
        (rp_error_take(), rp_compile(bytes, NULL)),
        (rp_error_take(), rp_plain(none)),
        (rp_error_take(), rp_compile(fn, RP_OPTIONS(rp_compile_options, .purity = -1))),
        (rp_error_take(), rp_compile(fn, RP_OPTIONS(rp_compile_options, .layout = (rp_graph_layout)3))),
    };
    enum { MADE = sizeof made / sizeof *made };
    rp_error_take();
    for (size_t i = 0; i < MADE; i++) {
        rp_explain_entry e;
        assert_non_null(made[i]);
        rp_status status = rp_call(made[i], &a, 1, out, 1);
        if (status == RP_OK) fail_msg("made[%zu] ran", i);
        assert_true(rp_failed());
        rp_error_take();
        (void)rp_explain_count(made[i]);
        rp_error_take();
        refuses(rp_explain_get(made[i], 0, &e));
        (void)rp_graphed_set_training(made[i], true);
        rp_error_take();
    }
    for (size_t i = 0; i < MADE; i++) rp_compiled_release(made[i]);
    rp_compiled_release(NULL);
    out[0] = NULL;
    refuses(rp_call(NULL, &a, 1, out, 1));
    assert_true(rp_is_error(out[0])); /* whoever goes on with it is told */
    complains(rp_explain_count(NULL));
    refuses(rp_explain_get(NULL, 0, &(rp_explain_entry){0}));
    refuses(rp_graphed_set_training(NULL, true));
    refuses(rp_guard_bytes(NULL, 8));
    rp_error_take();
    static const char *const backends[] = {"fused", "eager", "aot_eager", "cudagraphs", NULL};
    rp_body *bodies[] = {doubles, leaves_out, gives_errors, shape_error, leaks_scope};
    for (size_t b = 0; b < 5; b++) {
        for (size_t k = 0; k < 5; k++) {
            rp_compiled *f = backends[b] ? rp_compile((rp_fn){bodies[k], NULL, 0, "hostile"},
                                                      RP_OPTIONS(rp_compile_options, .backend = backends[b]))
                                         : rp_plain((rp_fn){bodies[k], NULL, 0, "hostile"});
            assert_false(rp_failed());
            for (int round = 0; round < 4; round++) {
                rp_scope s = rp_scope_begin();
                out[0] = out[1] = NULL;
                rp_status status = rp_call(f, &a, 1, out, 1);
                bool good = k == 0 || k == 1 || k == 4;
                if (good != (status == RP_OK) || rp_failed() == good)
                    fail_msg("backend %s body %zu round %d: %s '%s'", backends[b] ? backends[b] : "plain", k, round,
                             rp_status_name(status), rp_error_message());
                rp_error_take();
                if (k == 0) assert_int_equal(rp_item_i64(rp_select(out[0], 0, 1)), 2);
                if (k == 1) assert_null(out[0]);
                rp_scope_end(s, NULL, 0);
            }
            refuses(rp_call(f, NULL, 1, out, 1));
            refuses(rp_call(f, &a, 1, NULL, 1));
            if (k == 0) {
                refuses(rp_call(f, &wrong, 1, out, 1));
                refuses(rp_call(f, (rp_tensor *[]){NULL}, 1, out, 1));
            }
            rp_explain_entry e;
            refuses(rp_explain_get(f, SIZE_MAX, &e));
            refuses(rp_explain_get(f, 0, NULL));
            size_t n = rp_explain_count(f);
            refuses(rp_explain_get(f, n, &e));
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
                assert_true(e.kind && e.reason && e.message && e.site);
            }
            rp_compiled_release(f);
        }
    }
}

/* A function that releases itself, or the callable that it is the function of, while it runs: the call ends well, and then it is gone. */
static rp_compiled *itself;
static void releases_itself(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_compiled *f = itself;
    itself = NULL;
    rp_compiled_release(f); /* NULL is nothing */
    out[0] = rp_neg(in[0]);
}

static void released_while_it_runs(void **state) {
    (void)state;
    const rp_fn fn = {releases_itself, NULL, 0, "itself"};
    for (int way = 0; way < 5; way++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_ones(RP_DIMS(3)), *y = NULL;
        rp_compiled *f = NULL;
        if (way == 0) f = rp_plain(fn);
        if (way == 1 || way == 2) f = rp_compile(fn, NULL);
        if (way == 3) f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "eager"));
        if (way == 4) {
            const rp_graphed_callable one = {.fn = fn, .args = &x, .n_args = 1, .n_out = 1};
            assert_int_equal(rp_make_graphed_callables(&one, 1, NULL, &f), RP_OK);
            assert_int_equal(rp_graphed_set_training(f, true), RP_OK); /* it runs the function */
        }
        if (way == 2) assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK); /* the second call records it again */
        itself = f;
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_null(itself);
        assert_true(rp_item_f64(rp_sum(y)) == -3);
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_ERROR_STATE);
        (void)rp_error_take();
        rp_scope_end(scope, NULL, 0);
    }
}

/* A backend that does as it is told. */
enum { B_GOOD, B_NOTHING, B_SHAPE, B_RANK, B_DTYPE, B_ERROR, B_STICKY, B_STATUS, B_ODD_STATUS, B_KINDS };
static struct told {
    rp_status compile;
    int run;
    bool drops; /* writes rubbish where its object belongs, although it fails */
    int live;   /* objects compiled and not destroyed */
} told;
static rp_status backend_compile(void *ctx, const rp_ir *graph, void **compiled) {
    (void)ctx;
    *compiled = told.drops ? (void *)&told : (void *)(uintptr_t)graph;
    if (told.compile == RP_OK) told.live++;
    return told.compile;
}
static void backend_destroy(void *ctx, void *compiled) {
    (void)ctx;
    assert_ptr_not_equal(compiled, &told);
    told.live--;
}
static rp_status backend_run(void *ctx, void *compiled, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                             size_t n_out) {
    (void)ctx;
    switch (told.run) {
    case B_GOOD: return rp_ir_run(compiled, in, n_in, out, n_out);
    case B_SHAPE: out[0] = ones(3); break;
    case B_RANK: out[0] = rp_full(RP_DIMS(2, 1), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32)); break;
    case B_DTYPE: out[0] = rp_full(RP_DIMS(2), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F64)); break;
    case B_ERROR: out[0] = wrong; break;
    case B_STICKY: out[0] = rp_view(in[0], RP_DIMS(77)); break;
    case B_STATUS: return RP_ERROR_IO;
    case B_ODD_STATUS: return (rp_status)-77;
    default: break; /* leaves out[] as it was */
    }
    return RP_OK;
}

static void call_told(bool strict, bool gradient, const char *named) {
    rp_tensor *a = ones(2), *out[1];
    if (gradient) assert_int_equal(rp_set_requires_grad(a, true), RP_OK);
    rp_compiled *f = rp_compile((rp_fn){doubles, NULL, 0, "f"},
                                RP_OPTIONS(rp_compile_options, .backend = "hostile", .strict = strict));
    for (int round = 0; round < 4; round++) {
        rp_scope scope = rp_scope_begin();
        rp_status status = rp_call(f, &a, 1, out, 1);
        if (named && (round > 0 || strict)) { /* the first call computes while it traces */
            if (status == RP_OK || !strstr(rp_error_message(), named))
                fail_msg("mode %d/%d, round %d: %s '%s'", (int)told.compile, told.run, round, rp_status_name(status),
                         rp_error_message());
            assert_true(rp_is_error(out[0]));
        } else if (!named || told.run == B_GOOD) {
            assert_int_equal(status, RP_OK);
            assert_int_equal(rp_item_i64(rp_select(out[0], 0, 1)), 2);
            if (gradient) assert_int_equal(rp_backward(rp_sum(out[0]), NULL, NULL), RP_OK);
        }
        rp_error_take();
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled_release(f);
    assert_int_equal(told.live, 0);
}

static void backends_refuse(void **state) {
    (void)state;
    rp_backend b = {sizeof b, "hostile", backend_compile, backend_run, backend_destroy, NULL};
    refuses(rp_register_backend(NULL));
    refuses(rp_register_backend(&(rp_backend){0}));
    rp_backend cut = b;
    cut.struct_size = 0;
    refuses(rp_register_backend(&cut));
    cut = b;
    cut.name = "inductor";
    refuses(rp_register_backend(&cut));
    cut.name = "hostile2";
    cut.run = NULL;
    refuses(rp_register_backend(&cut));
    assert_int_equal(rp_register_backend(&b), RP_OK);
    refuses(rp_register_backend(&b));
    for (int gradient = 0; gradient < 2; gradient++) {
        /* a compile that fails: an error when strict, else node by node */
        static const rp_status failures[] = {RP_ERROR_IO, RP_ERROR_UNAVAILABLE, RP_ERROR_COMPILE, (rp_status)-3};
        for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
            told = (struct told){.compile = failures[i], .drops = i % 2};
            call_told(true, gradient, "backend \"hostile\"");
            call_told(false, gradient, NULL);
        }
        /* results that are none, or not what the graph says */
        for (int kind = 0; kind < B_KINDS; kind++) {
            told = (struct told){.run = kind};
            call_told(false, gradient, kind == B_GOOD ? NULL : "backend \"hostile\"");
        }
        told = (struct told){.compile = RP_ERROR_OUT_OF_MEMORY};
        rp_tensor *a = ones(2), *out[1];
        rp_compiled *f =
            rp_compile((rp_fn){doubles, NULL, 0, "f"}, RP_OPTIONS(rp_compile_options, .backend = "hostile"));
        refuses(rp_call(f, &a, 1, out, 1));
        rp_compiled_release(f);
    }
}

/* An op that has no derivative: said in PyTorch's words, with a way out. */
static void draws_indices(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul(in[0], rp_to_dtype(rp_eq(in[0], in[0]), RP_F32));
}
static void strict_tells_of_skips(void **state) {
    (void)state;
    rp_tensor *x = ones(3), *out[1];
    assert_int_equal(rp_set_requires_grad(x, true), RP_OK);
    rp_compiled *f = rp_compile((rp_fn){draws_indices, NULL, 0, "f"}, RP_OPTIONS(rp_compile_options, .strict = true));
    for (int round = 0; round < 3; round++) {
        assert_int_equal(rp_call(f, &x, 1, out, 1), RP_OK);
        assert_int_equal(rp_backward(rp_sum(out[0]), NULL, NULL), RP_OK);
    }
    rp_compiled_release(f);
}

static void body_false(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)n_out;
    out[0] = rp_full(RP_NO_DIMS, rp_bool(false), RP_OPTIONS(rp_full_options, .dtype = RP_BOOL));
}
static void body_true(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)in, (void)n_in, (void)n_out;
    out[0] = rp_full(RP_NO_DIMS, rp_bool(true), RP_OPTIONS(rp_full_options, .dtype = RP_BOOL));
}

static void try_regions(rp_tensor *a) {
    rp_tensor *out[2] = {NULL, NULL},
              *yes = rp_full(RP_NO_DIMS, rp_bool(true), RP_OPTIONS(rp_full_options, .dtype = RP_BOOL));
    rp_fn f = {doubles, NULL, 0, "doubles"}, none = {0}, absent = {leaves_out, NULL, 0, "absent"},
          bad = {gives_errors, NULL, 0, "bad"}, no = {body_false, NULL, 0, "no"}, always = {body_true, NULL, 0, "yes"},
          shape = {shape_error, NULL, 0, "shape"};
    refuses(rp_cond(NULL, f, f, &a, 1, out, 1));
    refuses(rp_cond(wrong, f, f, &a, 1, out, 1));
    refuses(rp_cond(ones(2), f, f, &a, 1, out, 1));
    refuses(rp_cond(yes, none, f, &a, 1, out, 1));
    refuses(rp_cond(yes, f, none, &a, 1, out, 1));
    refuses(rp_cond(yes, f, f, NULL, 1, out, 1));
    refuses(rp_cond(yes, f, f, &a, 1, NULL, 1));
    refuses(rp_cond(yes, f, f, &wrong, 1, out, 1));
    refuses(rp_cond(yes, f, f, (rp_tensor *[]){NULL}, 1, out, 1));
    refuses(rp_cond(yes, bad, bad, &a, 1, out, 1));
    refuses(rp_cond(yes, shape, shape, &a, 1, out, 1));
    refuses(rp_while(none, f, &a, 1, 3, out));
    refuses(rp_while(no, none, &a, 1, 3, out));
    refuses(rp_while(no, f, NULL, 1, 3, out));
    refuses(rp_while(no, f, &a, 1, 3, NULL));
    refuses(rp_while(no, f, &wrong, 1, 3, out));
    refuses(rp_while(absent, f, &a, 1, 3, out));
    refuses(rp_while(f, f, &a, 1, 3, out)); /* a condition of two elements */
    refuses(rp_while(always, absent, &a, 1, 3, out));
    refuses(rp_while(always, bad, &a, 1, 3, out));
    refuses(rp_while(bad, f, &a, 1, 3, out));
    refuses(rp_checkpoint(none, &a, 1, out, 1));
    refuses(rp_checkpoint(f, NULL, 1, out, 1));
    refuses(rp_checkpoint(f, &a, 1, NULL, 1));
    refuses(rp_checkpoint(f, &wrong, 1, out, 1));
    refuses(rp_checkpoint(bad, &a, 1, out, 1));
    refuses(rp_checkpoint(shape, &a, 1, out, 1));
}

static void regions_refuse(void **state) {
    (void)state;
    rp_tensor *a = ones(2);
    try_regions(a);
    assert_int_equal(rp_set_requires_grad(a, true), RP_OK);
    try_regions(a);
}

static void graphs_as_text_refuse(void **state) {
    (void)state;
    static const char *const garbage[] = {"",
                                          "graph",
                                          "graph {",
                                          "{}",
                                          "\x00\x01\x02",
                                          "graph f(%0: f32[99999999999999999999])",
                                          "((((((((((((((((((",
                                          "%",
                                          "graph g(%a: f32[2]) { return %b }"};
    rp_tensor *a = ones(2), *out[2];
    char text[4096];
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        rp_ir *ir = rp_ir_parse(garbage[i], strlen(garbage[i]));
        assert_true(rp_failed());
        rp_error_take();
        assert_non_null(ir);
        (void)rp_ir_check(ir);
        (void)rp_ir_run(ir, &a, 1, out, 1);
        (void)rp_ir_text(ir, text, sizeof text);
        rp_error_take();
        rp_ir_release(ir);
    }
    rp_ir *null_text = rp_ir_parse(NULL, 10);
    assert_int_not_equal(rp_error_take(), RP_OK);
    rp_ir_release(null_text);
    rp_ir_release(NULL);
    refuses(rp_ir_check(NULL));
    refuses(rp_ir_run(NULL, &a, 1, out, 1));
    (void)rp_ir_text(NULL, text, 4);
    (void)rp_ir_equal(NULL, NULL);
    rp_error_take();
    rp_ir *bad = rp_trace((rp_fn){0}, &a, 1, 1);
    assert_int_not_equal(rp_error_take(), RP_OK);
    assert_non_null(bad);
    rp_ir_release(bad);
    bad = rp_trace((rp_fn){doubles, NULL, 0, "f"}, NULL, 1, 1);
    assert_int_not_equal(rp_error_take(), RP_OK);
    rp_ir_release(bad);
    bad = rp_trace((rp_fn){shape_error, NULL, 0, "f"}, &a, 1, 1);
    assert_int_not_equal(rp_error_take(), RP_OK);
    rp_ir_release(bad);
    rp_ir *good = rp_trace((rp_fn){doubles, NULL, 0, "f"}, &a, 1, 1);
    assert_false(rp_failed());
    assert_int_equal(rp_ir_check(good), RP_OK);
    assert_false(rp_ir_equal(good, NULL));
    rp_error_take();
    refuses(rp_ir_run(good, &a, 0, out, 1));
    refuses(rp_ir_run(good, &a, 1, out, 2));
    refuses(rp_ir_run(good, NULL, 1, out, 1));
    refuses(rp_ir_run(good, &a, 1, NULL, 1));
    refuses(rp_ir_run(good, &wrong, 1, out, 1));
    refuses(rp_ir_run(good, (rp_tensor *[]){NULL}, 1, out, 1));
    refuses(rp_ir_run(good, (rp_tensor *[]){ones(3)}, 1, out, 1));
    size_t need = rp_ir_text(good, NULL, 0);
    assert_true(need > 0 && need < sizeof text);
    assert_int_equal(rp_ir_text(good, NULL, 100), need);
    for (size_t n = 1; n <= need + 1; n++) {
        memset(text, 'x', sizeof text);
        assert_int_equal(rp_ir_text(good, text, n), need);
        assert_int_equal(text[n - 1], 0);
        assert_int_equal(text[n], 'x');
    }
    for (size_t n = 0; n < need; n++) { /* every prefix */
        rp_ir *cut = rp_ir_parse(text, n);
        (void)rp_ir_equal(cut, good);
        rp_error_take();
        rp_ir_release(cut);
    }
    rp_ir *again = rp_ir_parse(text, need);
    assert_true(rp_ir_equal(again, good));
    rp_ir_release(again);
    rp_ir_release(good);
}

static void streams_events_graphs_refuse(void **state) {
    (void)state;
    rp_tensor *a = ones(2);
    rp_generator *g = rp_generator_new(rp_cpu(), 5);
    rp_generator_release(NULL);
    refuses(rp_generator_seed(NULL, 1));
    refuses(rp_generator_get(NULL, NULL, NULL));
    refuses(rp_generator_set(NULL, 1, 1));
    assert_int_equal(rp_generator_get(g, NULL, NULL), RP_OK);
    assert_int_equal(rp_generator_set(g, 1, UINT64_MAX), RP_OK);
    (void)rp_randn(RP_DIMS(9), RP_OPTIONS(rp_randn_options, .generator = g));
    rp_error_take();
    rp_generator_release(rp_default_generator(rp_cpu()));
    rp_generator_release(rp_default_generator(rp_cpu()));
    assert_int_equal(rp_generator_seed(rp_default_generator(rp_cpu()), 1), RP_OK);
    rp_generator_release(g);

    refuses(rp_set_current_stream(NULL));
    refuses(rp_stream_synchronize(NULL));
    complains(rp_stream_query(NULL));
    rp_stream_release(NULL);
    rp_stream *s = rp_stream_new(rp_cpu()), *first = rp_current_stream(rp_cpu());
    rp_event *e = rp_event_new(rp_cpu(), false), *t = rp_event_new(rp_cpu(), true);
    refuses(rp_event_record(NULL, s));
    refuses(rp_event_record(e, NULL));
    refuses(rp_event_synchronize(NULL));
    complains(rp_event_query(NULL));
    complains(rp_event_elapsed_ms(NULL, NULL));
    complains(rp_event_elapsed_ms(t, t)); /* never recorded */
    refuses(rp_stream_wait_event(NULL, e));
    refuses(rp_stream_wait_event(s, NULL));
    assert_int_equal(rp_event_record(e, s), RP_OK);
    assert_int_equal(rp_event_record(t, s), RP_OK);
    complains(rp_event_elapsed_ms(e, t));
    assert_true(rp_event_elapsed_ms(e, t) < 0);
    rp_error_take();
    rp_event_release(NULL);
    rp_event_release(e);
    rp_event_release(t);

    refuses(rp_graph_begin(NULL, rp_cpu(), NULL));
    refuses(rp_graph_end(NULL));
    refuses(rp_graph_instantiate(NULL));
    refuses(rp_graph_replay(NULL));
    refuses(rp_graph_reset(NULL));
    refuses(rp_graph_repoint(NULL, a, a));
    complains(rp_graph_pool(NULL));
    rp_graph_release(NULL);
    rp_pool_release(NULL);
    rp_graph *graph = rp_graph_new(), *other = rp_graph_new();
    refuses(rp_graph_end(graph));
    refuses(rp_graph_instantiate(graph));
    refuses(rp_graph_replay(graph));
    refuses(rp_graph_repoint(graph, a, a));
    assert_int_equal(rp_graph_reset(graph), RP_OK);
    refuses(rp_graph_begin(graph, rp_cpu(), &(rp_graph_options){0}));
    refuses(rp_graph_begin(graph, rp_cpu(), RP_OPTIONS(rp_graph_options, .mode = (rp_capture_mode)8)));
    refuses(rp_graph_begin(graph, rp_cpu(), RP_OPTIONS(rp_graph_options, .stream = first)));
    assert_int_equal(rp_graph_begin(graph, rp_cpu(), NULL), RP_OK);
    refuses(rp_graph_begin(graph, rp_cpu(), NULL));
    rp_tensor *b = rp_add(a, a);
    complains(rp_item(rp_select(b, 0, 0)));
    (void)rp_graph_end(graph);
    rp_error_take();
    (void)rp_graph_reset(graph);
    rp_error_take();
    assert_false(rp_is_capturing(rp_cpu()));
    assert_int_equal(rp_graph_begin(graph, rp_cpu(), NULL), RP_OK);
    refuses(rp_graph_replay(graph));
    refuses(rp_graph_end(other));
    b = rp_add(a, a);
    assert_int_equal(rp_graph_end(graph), RP_OK);
    refuses(rp_graph_end(graph));
    refuses(rp_graph_instantiate(graph));
    refuses(rp_graph_begin(graph, rp_cpu(), NULL));
    refuses(rp_graph_repoint(graph, a, ones(3)));
    refuses(rp_graph_repoint(graph, ones(2), a));
    refuses(rp_graph_repoint(graph, NULL, a));
    refuses(rp_graph_repoint(graph, a, wrong));
    assert_int_equal(rp_graph_replay(graph), RP_OK);
    assert_int_equal(rp_item_i64(rp_select(b, 0, 0)), 2);
    assert_int_equal(rp_graph_begin(other, rp_cpu(), NULL), RP_OK);
    rp_graph_release(other); /* abandoned in the middle */
    assert_false(rp_is_capturing(rp_cpu()));
    rp_graph_release(graph);
    assert_int_equal(rp_item_i64(rp_select(b, 0, 0)), 2);
    rp_stream_release(s);

    rp_compiled *made[2] = {NULL, NULL};
    rp_graphed_callable c = {.fn = {doubles, NULL, 0, "f"}, .args = &a, .n_args = 1, .n_out = 1}, cut = c;
    refuses(rp_make_graphed_callables(NULL, 1, NULL, made));
    refuses(rp_make_graphed_callables(&c, 0, NULL, made));
    refuses(rp_make_graphed_callables(&c, 1, NULL, NULL));
    refuses(rp_make_graphed_callables(&c, 1, &(rp_graphed_options){0}, made));
    cut.args = NULL;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    cut = c;
    cut.fn.body = NULL;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    cut = c;
    cut.args = &wrong;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    cut = c;
    cut.n_params = 1;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    cut = c;
    cut.fn.body = shape_error;
    refuses(rp_make_graphed_callables(&cut, 1, NULL, made));
    assert_false(rp_is_capturing(rp_cpu()));
}

/* A callable that behaves until its run number `at`: 0 to 2 are warm-ups, 3 is the capture. */
enum {
    G_GOOD,
    G_ERROR,
    G_NULL,
    G_SHAPE,
    G_RANK,
    G_DTYPE,
    G_FAILS,
    G_RELEASES,
    G_RELEASES_ALL,
    G_READS,
    G_SYNCHRONIZES,
    G_CAPTURES,
    G_GRAPHS,
    G_SCOPE,
    G_BACKWARD,
    G_KINDS
};
typedef struct odd {
    int kind, at, runs;
} odd;

static void odd_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    odd *o = ctx;
    rp_compiled *inner = NULL;
    rp_graphed_callable c = {.fn = {doubles, NULL, 0, "inner"}, .args = in, .n_args = 1, .n_out = 1};
    doubles(NULL, in, n_in, out, n_out);
    if (o->runs++ != o->at) return;
    switch (o->kind) {
    case G_ERROR: out[0] = wrong; break;
    case G_NULL: out[0] = NULL; break;
    case G_SHAPE: out[0] = rp_cat(RP_TENSORS(in[0], in[0]), 0); break;
    case G_RANK: out[0] = rp_unsqueeze(out[0], 0); break;
    case G_DTYPE: out[0] = rp_to_dtype(out[0], RP_F64); break;
    case G_FAILS: out[0] = rp_view(in[0], RP_DIMS(77)); break;
    case G_RELEASES: rp_release(in[0]); break;
    case G_RELEASES_ALL:
        for (int k = 0; k < 5; k++) rp_release(in[0]);
        break;
    case G_READS: (void)rp_item(rp_select(out[0], 0, 0)); break;
    case G_SYNCHRONIZES: (void)rp_synchronize(rp_cpu()); break;
    case G_CAPTURES: {
        rp_graph *g = rp_graph_new();
        (void)rp_graph_begin(g, rp_cpu(), NULL);
        rp_graph_release(g);
        break;
    }
    case G_GRAPHS:
        (void)rp_make_graphed_callables(&c, 1, NULL, &inner);
        rp_compiled_release(inner);
        break;
    case G_SCOPE: (void)rp_scope_begin(); break;
    case G_BACKWARD: (void)rp_backward(rp_sum(out[0]), NULL, NULL); break;
    default: break;
    }
}

/* Which runs this one must not survive. */
static bool is_refused(int kind, int at, bool training) {
    switch (kind) {
    case G_GOOD:
    case G_SCOPE: return false;
    case G_READS: /* only a capture forbids them */
    case G_SYNCHRONIZES:
    case G_CAPTURES: /* a thread has one capture */
    case G_GRAPHS: return at == 3;
    case G_BACKWARD: return !training; /* an addition keeps nothing, so it can be gone through again */
    default: return true;
    }
}

static void good_graphed(bool training) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *a = ones(2), *out;
    if (training) rp_set_requires_grad(a, true);
    rp_graphed_callable c = {.fn = {doubles, NULL, 0, "good"}, .args = &a, .n_args = 1, .n_out = 1};
    rp_compiled *f;
    assert_int_equal(rp_make_graphed_callables(&c, 1, NULL, &f), RP_OK);
    assert_int_equal(rp_call(f, &a, 1, &out, 1), RP_OK);
    assert_int_equal(rp_item_i64(rp_select(out, 0, 1)), 2);
    if (training) {
        assert_int_equal(rp_backward(rp_sum(out), NULL, NULL), RP_OK);
        assert_int_equal(rp_item_i64(rp_select(rp_grad_of(a), 0, 1)), 2);
        rp_set_grad(a, NULL);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

static void odd_graphed(int kind, int at, bool training, bool second) {
    rp_scope scope = rp_scope_begin();
    odd o = {kind, at, 0};
    rp_tensor *a = ones(2), *b = ones(2), *out;
    if (training) {
        rp_set_requires_grad(a, true);
        rp_set_requires_grad(b, true);
    }
    rp_graphed_callable c[2] = {{.fn = {doubles, NULL, 0, "good"}, .args = &b, .n_args = 1, .n_out = 1},
                                {.fn = {odd_body, &o, 0, "odd"}, .args = &a, .n_args = 1, .n_out = 1}};
    rp_compiled *f[2];
    size_t n = second ? 2 : 1;
    assert_false(rp_failed());
    rp_status status = rp_make_graphed_callables(second ? c : c + 1, n, NULL, f);
    const char *m = rp_error_message();
    if ((status != RP_OK) != is_refused(kind, at, training) || (status != RP_OK) != rp_failed())
        fail_msg("kind %d at run %d%s: %s '%s'", kind, at, training ? ", training" : "", rp_status_name(status), m);
    if (status != RP_OK && (!strstr(m, "odd") || !strstr(m, hostile_file(__FILE__))))
        fail_msg("kind %d at run %d%s: the message names not both callable and line: '%s'", kind, at,
                 training ? ", training" : "", m);
    rp_error_take();
    assert_false(rp_is_capturing(rp_cpu()));
    assert_true(rp_grad_enabled());
    for (size_t k = 0; k < n; k++) {
        if (status != RP_OK)
            refuses(rp_call(f[k], &b, 1, &out, 1));
        else
            assert_int_equal(rp_call(f[k], second && k == 0 ? &b : &a, 1, &out, 1), RP_OK);
        rp_compiled_release(f[k]);
    }
    rp_error_take();
    rp_scope_end(scope, NULL, 0);
    rp_error_take(); /* what the function released too often */
}

static void graphed_callables_refuse(void **state) {
    (void)state;
    for (int training = 0; training < 2; training++) good_graphed(training);
    rp_memory_stats s = {.struct_size = sizeof s};
    uint64_t before = live(), reserved = 0;
    for (int turn = 0; turn < 2; turn++) {
        for (int kind = 0; kind < G_KINDS; kind++) {
            for (int at = 0; at < 4; at++) {
                for (int mode = 0; mode < 4; mode++) odd_graphed(kind, at, mode & 1, mode & 2);
                good_graphed(at & 1);
                if (live() != before)
                    fail_msg("kind %d at run %d: %lld tensors were left", kind, at, (long long)(live() - before));
            }
        }
        assert_int_equal(rp_memory_stats_get(rp_cpu(), &s), RP_OK);
        if (turn == 0) reserved = s.reserved;
    }
    assert_true(s.reserved <= reserved);
}

/* ---------------------------------------------------------------- handles of another kind */

/* Every public call that takes a handle q of a kind, in the order of the kinds. */
#define HANDLE_CALLS(X)                                                                                                \
    X(TENSOR, sin, rp_sin(q))                                                                                          \
    X(TENSOR, requires_grad, rp_set_requires_grad(q, true))                                                            \
    X(TENSOR, release, rp_release(q))                                                                                  \
    X(FUNCTION, call, rp_call(q, &a, 1, &out, 1))                                                                      \
    X(FUNCTION, call_named, rp_call_named(q, names, &a, 1, &out, 1))                                                   \
    X(FUNCTION, set_training, rp_graphed_set_training(q, true))                                                        \
    X(FUNCTION, explain_count, rp_explain_count(q))                                                                    \
    X(FUNCTION, explain_get, rp_explain_get(q, 0, &entry))                                                             \
    X(FUNCTION, compiled_release, rp_compiled_release(q))                                                              \
    X(GRAPH, graph_begin, rp_graph_begin(q, rp_cpu(), NULL))                                                           \
    X(GRAPH, graph_end, rp_graph_end(q))                                                                               \
    X(GRAPH, graph_instantiate, rp_graph_instantiate(q))                                                               \
    X(GRAPH, graph_replay, rp_graph_replay(q))                                                                         \
    X(GRAPH, graph_reset, rp_graph_reset(q))                                                                           \
    X(GRAPH, graph_repoint, rp_graph_repoint(q, a, a))                                                                 \
    X(GRAPH, graph_pool, rp_graph_pool(q))                                                                             \
    X(GRAPH, graph_release, rp_graph_release(q))                                                                       \
    X(STREAM, set_current, rp_set_current_stream(q))                                                                   \
    X(STREAM, synchronize, rp_stream_synchronize(q))                                                                   \
    X(STREAM, query, rp_stream_query(q))                                                                               \
    X(STREAM, wait_event, rp_stream_wait_event(q, h[EVENT]))                                                           \
    X(STREAM, wait_stream, rp_stream_wait_stream(q, h[STREAM]))                                                        \
    X(STREAM, wait_for, rp_stream_wait_stream(h[STREAM], q))                                                           \
    X(STREAM, record_on, rp_event_record(h[EVENT], q))                                                                 \
    X(STREAM, begin_on, rp_graph_begin(h[GRAPH], rp_cpu(), RP_OPTIONS(rp_graph_options, .stream = q)))                 \
    X(STREAM, stream_release, rp_stream_release(q))                                                                    \
    X(EVENT, record, rp_event_record(q, h[STREAM]))                                                                    \
    X(EVENT, event_synchronize, rp_event_synchronize(q))                                                               \
    X(EVENT, event_query, rp_event_query(q))                                                                           \
    X(EVENT, elapsed_from, rp_event_elapsed_ms(q, h[EVENT]))                                                           \
    X(EVENT, elapsed_to, rp_event_elapsed_ms(h[EVENT], q))                                                             \
    X(EVENT, wait_for_event, rp_stream_wait_event(h[STREAM], q))                                                       \
    X(EVENT, event_release, rp_event_release(q))                                                                       \
    X(POOL, begin_in, rp_graph_begin(h[GRAPH], rp_cpu(), RP_OPTIONS(rp_graph_options, .pool = q)))                     \
    X(POOL, graphed_in, rp_make_graphed_callables(&callable, 1, RP_OPTIONS(rp_graphed_options, .pool = q), &made))     \
    X(POOL, pool_release, rp_pool_release(q))                                                                          \
    X(GENERATOR, seed, rp_generator_seed(q, 1))                                                                        \
    X(GENERATOR, get, rp_generator_get(q, NULL, NULL))                                                                 \
    X(GENERATOR, set, rp_generator_set(q, 1, 1))                                                                       \
    X(GENERATOR, randn, rp_randn(RP_DIMS(9), RP_OPTIONS(rp_randn_options, .generator = q)))                            \
    X(GENERATOR, generator_release, rp_generator_release(q))                                                           \
    X(IR, text, rp_ir_text(q, text, sizeof text))                                                                      \
    X(IR, check, rp_ir_check(q))                                                                                       \
    X(IR, equal, rp_ir_equal(h[IR], q))                                                                                \
    X(IR, run, rp_ir_run(q, &a, 1, &out, 1))                                                                           \
    X(IR, node_get, rp_ir_node_get(q, 0, &node))                                                                       \
    X(IR, add_arg, rp_ir_add_captured(q, a))                                                                           \
    X(IR, onnx, rp_onnx_save("none.onnx", q, NULL))                                                                    \
    X(IR, retain, rp_ir_retain(q))                                                                                     \
    X(IR, ir_release, rp_ir_release(q))                                                                                \
    X(MODULE, child, rp_module_child(q, "child"))                                                                      \
    X(MODULE, parameters, rp_module_parameters(q, &n))                                                                 \
    X(MODULE, module_training, rp_module_set_training(q, true))                                                        \
    X(MODULE, to_dtype, rp_module_to_dtype(q, RP_F32))                                                                 \
    X(MODULE, summary, rp_module_summary(q, text, sizeof text))                                                        \
    X(MODULE, find, rp_module_find(q, "a.b"))                                                                          \
    X(MODULE, linear_add, rp_linear_add(q, "l", &linear, 2, 2, true))                                                  \
    X(MODULE, sequential_add, rp_sequential_add(q, "s"))                                                               \
    X(MODULE, compile_module, rp_compile_module(q, fn, NULL))                                                          \
    X(MODULE, adam_module, rp_optimizer_release(rp_adam_module(q, 1, NULL)))                                           \
    X(MODULE, save, rp_save("none.safetensors", q, NULL))                                                              \
    X(MODULE, module_release, rp_module_release(q))                                                                    \
    X(SEQUENTIAL, sequential_op, rp_sequential_op(q, "relu"))                                                          \
    X(SEQUENTIAL, sequential_module, rp_sequential_module(q))                                                          \
    X(SEQUENTIAL, sequential_forward, rp_sequential_forward(q, a))                                                     \
    X(OPTIMIZER, step, rp_optimizer_step(q))                                                                           \
    X(OPTIMIZER, zero_grad, rp_optimizer_zero_grad(q, true))                                                           \
    X(OPTIMIZER, set_lr, rp_optimizer_set_lr(q, 0, 1))                                                                 \
    X(OPTIMIZER, lr, rp_optimizer_lr(q, 0))                                                                            \
    X(OPTIMIZER, param_count, rp_optimizer_param_count(q, 0))                                                          \
    X(OPTIMIZER, add_group, rp_adam_add_group(q, &b, 1, 1, NULL))                                                      \
    X(OPTIMIZER, state, rp_optimizer_state(q, 0, 0, "exp_avg"))                                                        \
    X(OPTIMIZER, set_schedule, rp_optimizer_set_schedule(q, h[SCHEDULE]))                                              \
    X(OPTIMIZER, schedule_step, rp_optimizer_schedule_step(q))                                                         \
    X(OPTIMIZER, unscale, rp_grad_scaler_unscale(h[SCALER], q))                                                        \
    X(OPTIMIZER, scaled_step, rp_grad_scaler_step(h[SCALER], q))                                                       \
    X(OPTIMIZER, plateau, rp_plateau_step(&plateau, q, 1))                                                             \
    X(OPTIMIZER, save_it, rp_save("none.safetensors", h[MODULE], RP_OPTIONS(rp_save_options, .optimizer = q)))         \
    X(OPTIMIZER, optimizer_release, rp_optimizer_release(q))                                                           \
    X(LBFGS, lbfgs_step, rp_lbfgs_step(q, NULL, NULL))                                                                 \
    X(LBFGS, save_lbfgs, rp_save("none.safetensors", h[MODULE], RP_OPTIONS(rp_save_options, .lbfgs = q)))              \
    X(LBFGS, lbfgs_release, rp_lbfgs_release(q))                                                                       \
    X(SCHEDULE, rate, rp_schedule_rate(q, a, 1))                                                                       \
    X(SCHEDULE, set_for, rp_optimizer_set_schedule(h[OPTIMIZER], q))                                                   \
    X(SCHEDULE, chained, rp_schedule_chained((rp_schedule *const[]){q}, 1))                                            \
    X(SCHEDULE, schedule_release, rp_schedule_release(q))                                                              \
    X(SCALER, scale, rp_grad_scaler_scale(q, a))                                                                       \
    X(SCALER, scaler_update, rp_grad_scaler_update(q))                                                                 \
    X(SCALER, scaler_state, rp_grad_scaler_state(q, "scale"))                                                          \
    X(SCALER, scaler_release, rp_grad_scaler_release(q))                                                               \
    X(AVERAGE, average_update, rp_average_update(q))                                                                   \
    X(AVERAGE, average_tensor, rp_average_tensor(q, 0))                                                                \
    X(AVERAGE, average_swap, rp_average_swap(q))                                                                       \
    X(AVERAGE, average_release, rp_average_release(q))                                                                 \
    X(LOADER, next, rp_loader_next(q, two, 1))                                                                         \
    X(LOADER, position, rp_loader_position(q, NULL, NULL, NULL))                                                       \
    X(LOADER, seek, rp_loader_seek(q, 0, 0, 0))                                                                        \
    X(LOADER, save_loader, rp_save("none.safetensors", h[MODULE], RP_OPTIONS(rp_save_options, .loader = q)))           \
    X(LOADER, loader_release, rp_loader_release(q))                                                                    \
    X(SAFETENSORS, info, rp_safetensors_info(q, 0, &info))                                                             \
    X(SAFETENSORS, has, rp_safetensors_has(q, "a"))                                                                    \
    X(SAFETENSORS, tensor, rp_safetensors_tensor(q, "a"))                                                              \
    X(SAFETENSORS, safetensors_release, rp_safetensors_release(q))                                                     \
    X(TOKENIZER, count, rp_tokenizer_count(q))                                                                         \
    X(TOKENIZER, id, rp_tokenizer_id(q, "a"))                                                                          \
    X(TOKENIZER, tokenizer_release, rp_tokenizer_release(q))

enum {
    TENSOR,
    FUNCTION,
    GRAPH,
    STREAM,
    EVENT,
    POOL,
    GENERATOR,
    IR,
    MODULE,
    SEQUENTIAL,
    OPTIMIZER,
    LBFGS,
    SCHEDULE,
    SCALER,
    AVERAGE,
    LOADER,
    SAFETENSORS,
    TOKENIZER,
    HANDLES
};
enum {
#define X(KIND, NAME, CALL) CALL_##NAME,
    HANDLE_CALLS(X)
#undef X
        CALLS
};
static const struct {
    int kind;
    const char *text;
} handle_calls[] = {
#define X(KIND, NAME, CALL) {KIND, #CALL},
    HANDLE_CALLS(X)
#undef X
};

/* h: a live handle of each kind. */
static void call_with(int which, void *q, void *const *h) {
    static const char *const names[] = {"x"};
    rp_tensor *a = h[TENSOR], *b = ones(2), *out = NULL, *two[2];
    rp_fn fn = {doubles, NULL, 0, "doubles"};
    rp_graphed_callable callable = {.fn = fn, .args = &a, .n_args = 1, .n_out = 1};
    rp_compiled *made;
    rp_explain_entry entry;
    rp_ir_node node;
    rp_linear_layer linear;
    rp_file_tensor info;
    rp_plateau plateau = {.best = 0};
    char text[64];
    size_t n;
    rp_set_requires_grad(b, true);
    switch (which) {
#define X(KIND, NAME, CALL)                                                                                            \
    case CALL_##NAME: (void)(CALL); break;
        HANDLE_CALLS(X)
#undef X
    default: break;
    }
}

static void make_handles(void **h, const char *folder) {
    rp_tensor *a = ones(2), *b = ones(2);
    rp_fn fn = {doubles, NULL, 0, "doubles"};
    char path[128];
    rp_set_requires_grad(b, true);
    h[TENSOR] = rp_retain(a);
    h[FUNCTION] = rp_compile(fn, NULL);
    h[GRAPH] = rp_graph_new();
    h[STREAM] = rp_stream_new(rp_cpu());
    h[EVENT] = rp_event_new(rp_cpu(), true);
    h[POOL] = rp_pool_new(rp_cpu());
    h[GENERATOR] = rp_generator_new(rp_cpu(), 1);
    h[IR] = rp_trace(fn, &a, 1, 1);
    h[MODULE] = rp_module_new("m");
    h[SEQUENTIAL] = rp_sequential_add(h[MODULE], "s");
    h[OPTIMIZER] = rp_adam(&b, 1, 0.1, NULL);
    h[LBFGS] = rp_lbfgs_new(&b, 1, 1, NULL);
    h[SCHEDULE] = rp_schedule_step(2, 0.1);
    h[SCALER] = rp_grad_scaler_new(NULL);
    h[AVERAGE] = rp_average_new(&b, 1, 0.9);
    h[LOADER] = rp_loader_new(&a, 1, 1, NULL);
    (void)snprintf(path, sizeof path, "%s/a.safetensors", folder);
    const rp_named_tensor item = {"a", a};
    assert_int_equal(rp_safetensors_save(path, &item, 1, NULL, 0), RP_OK);
    h[SAFETENSORS] = rp_safetensors_open(path);
    (void)snprintf(path, sizeof path, "%s/vocab.txt", folder);
    FILE *vocab = fopen(path, "w");
    assert_non_null(vocab);
    fputs("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", vocab);
    fclose(vocab);
    h[TOKENIZER] = rp_tokenizer_wordpiece(path, NULL);
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

/* Whose call is a release? They come last of their kind. */
static bool releases(int which) {
    return which == CALLS - 1 || handle_calls[which + 1].kind != handle_calls[which].kind;
}

static void release_handles(void *const *h) {
    for (int k = 0; k < CALLS; k++) {
        const int kind = handle_calls[k].kind;
        if (releases(k) && kind != SEQUENTIAL) call_with(k, h[kind], h);
    }
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

/* Each call with each handle of another kind, and with released ones of every kind: an error that names both, and nothing is
   lost or half-done. The released ones were made first, so that memory used again would be seen. */
static void handles_of_another_kind(void **state) {
    (void)state;
    static const char *const kinds[HANDLES] = {
        "tensor",    "function",         "graph",    "stream",          "event",
        "pool",      "generator",        "rp_ir",    "module",          "sequence of layers",
        "optimizer", "L-BFGS optimizer", "schedule", "gradient scaler", "average",
        "loader",    "safetensors file", "tokenizer"};
    char folder[] = "/tmp/reprise-handles-XXXXXX", path[64], wanted[64];
    assert_non_null(mkdtemp(folder));
    void *gone[HANDLES], *h[HANDLES];
    make_handles(gone, folder);
    release_handles(gone);
    make_handles(h, folder);
    const uint64_t before = live();
    for (int k = 0; k < CALLS; k++) {
        for (int of = 0; of < 2 * HANDLES; of++) {
            const int kind = of % HANDLES;
            const bool own = kind == handle_calls[k].kind;
            if (own && (of < HANDLES || kind == TENSOR)) continue; /* test_hostile has those */
            rp_scope scope = rp_scope_begin();
            call_with(k, of < HANDLES ? h[kind] : gone[kind], h);
            rp_scope_end(scope, NULL, 0);
            const char *const m = rp_error_message();
            (void)snprintf(wanted, sizeof wanted,
                           handle_calls[k].kind == TENSOR ? "%s, not a tensor" : " %s was given, not a", kinds[kind]);
            if (!rp_failed() || !strstr(m, own ? "was released already" : wanted))
                fail_msg("%s of a %s%s: '%s'", handle_calls[k].text, of < HANDLES ? "" : "released ", kinds[kind], m);
            rp_error_take();
        }
    }
    assert_int_equal(live(), before);
    assert_int_equal(rp_optimizer_group_count(h[MODULE]) + rp_sequential_count(h[STREAM]) + rp_safetensors_count(h[IR]),
                     0);
    assert_int_equal(rp_ir_value_count(h[POOL]) + rp_ir_symbol_count(h[POOL]), 0);
    assert_false(rp_module_training(h[EVENT]));
    assert_int_equal(rp_loader_batches(h[GRAPH]), 0);
    rp_error_take();
    release_handles(h);
    (void)snprintf(path, sizeof path, "%s/a.safetensors", folder);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/vocab.txt", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(compiled_functions_refuse),    CASE(released_while_it_runs),   CASE(backends_refuse),
        CASE(strict_tells_of_skips),        CASE(regions_refuse),           CASE(graphs_as_text_refuse),
        CASE(streams_events_graphs_refuse), CASE(graphed_callables_refuse), CASE(handles_of_another_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
