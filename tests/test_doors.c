/* Other engines behind rp_compile: how graphs are cut into parts (with an engine of the test's own, which takes the ops that it is
   told to and runs them node by node), what becomes of engines that are absent, too old, laid out otherwise, refuse or fail, weights that are
   written, forks; and, where an engine's library is here, every op's first samples through it against eager.
   DOORS_OP=name: one op, with the reason where it has no form. DOORS_ONNX=folder: each op's model is left there. REPRISE_TEST_FILTER and
   REPRISE_TEST_SKIP: patterns of tests that run, and that do not. ctest: timeout=600 cost=20 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <reprise.h>
#include <reprise_io.h>
#include <reprise_ir.h>
#include <reprise_nn.h>

#include "compile/pipeline.h"
#include "core/alloc.h"
#include "doors/door.h"
#include "doors/onnx/part.h"
#include "doors/xla/text.h"
#include "samples/samples.h"
#include "support/check.h"
#include "support/cuda.h"
#include "trace/ir_run.h"

/* ---------------------------------------------------------------- an engine of the test's own */

static struct {
    const char *lacks[4];                 /* ops that it has no form of */
    bool absent, refuses, fails, starved; /* starved: out of memory where it refuses or fails */
    bool spoils;                          /* it fails when it has written */
    rp_status answer;                     /* instead of a run, if it is none of RP_OK */
    int built, ran, weights, inputs;
} fake;

typedef struct fake_made {
    rp_ir *graph;
    const rp__door_part *part;
} fake_made;

static bool fake_open(char version[64], char where[512], char why[512]) {
    (void)snprintf(version, 64, "1.0");
    (void)snprintf(where, 512, "here");
    (void)snprintf(why, 512, "%s", fake.absent ? "there is none" : "");
    return !fake.absent;
}

static bool fake_takes(const rp__engine_options *options, const rp_ir *ir, const rp__ir_node *n, char why[256]) {
    (void)options, (void)ir;
    if (n->kind != RP__IR_OP && n->kind != RP__IR_ASSIGN) {
        (void)snprintf(why, 256, "no regions");
        return false;
    }
    for (unsigned k = 0; k < 4; k++) {
        if (!fake.lacks[k] || strcmp(fake.lacks[k], n->op->name) != 0) continue;
        (void)snprintf(why, 256, "it never learned that");
        return false;
    }
    return true;
}

static rp_status fake_build(const rp__door_part *part, const rp__engine_options *options, void **made) {
    (void)options;
    if (fake.refuses)
        return rp__fail(fake.starved ? RP_ERROR_OUT_OF_MEMORY : RP_ERROR_COMPILE, "the engine does not like it");
    fake_made *m = calloc(1, sizeof *m);
    if (!m) return RP_ERROR_OUT_OF_MEMORY;
    m->part = part;
    rp_status status = rp__door_part_graph(part, &m->graph);
    fake.built++;
    fake.weights = fake.inputs = 0;
    for (uint32_t k = 0; k < part->n_in; k++) {
        fake.weights += part->in[k].weight;
        fake.inputs += !part->in[k].weight;
    }
    *made = m;
    return status;
}

static rp_status fake_run(void *made, rp_tensor *const *in, rp_tensor **out) {
    const fake_made *m = made;
    rp_tensor *args[64], *results[64];
    uint32_t n = 0;
    fake.ran++;
    if (fake.fails) return rp__fail(fake.starved ? RP_ERROR_OUT_OF_MEMORY : RP_ERROR_STATE, "the engine broke down");
    if (fake.answer == RP__DOOR_EARLIER) (void)rp__fail(RP_ERROR_STATE, "what was before it broke down");
    if (fake.answer != RP_OK) return fake.answer;
    for (uint32_t k = 0; k < m->part->n_in; k++)
        if (!m->part->in[k].tensor) args[n++] = in[k];
    RP_TRY(rp__ir_run(m->graph, args, n, results, m->part->n_out, NULL));
    for (uint32_t k = 0; k < m->part->n_out; k++) {
        out[k] = rp__door_result(&m->part->out[k], m->part->ir);
        (void)rp_copy_(out[k], results[k]);
    }
    if (fake.spoils && rp__fail(RP_ERROR_STATE, "the engine broke down behind it")) return RP__DOOR_SPOILT;
    return rp_error_status();
}

static void fake_destroy(void *made) {
    fake_made *m = made;
    rp__ir_release(m->graph);
    free(m);
}

static const char *const fake_keys[] = {"level", NULL};
static const rp__door fake_door = {.name = "fake",
                                   .title = "the fake",
                                   .open = fake_open,
                                   .device = RP_DEVICE_CPU,
                                   .keys = fake_keys,
                                   .takes = fake_takes,
                                   .build = fake_build,
                                   .run = fake_run,
                                   .destroy = fake_destroy};
static const rp__leaf fake_leaf = {.kind = RP__LEAF_DOOR, .ops = &rp__door_leaf, .door = &fake_door};
static const rp__engine fake_engine = {.name = "fake", RP__ENGINE_OVER_LEAF, .leaf = &fake_leaf};
/* The same, and nodes that write in place are its own. */
static const rp__door writer_door = {.name = "writer",
                                     .title = "the writer",
                                     .open = fake_open,
                                     .device = RP_DEVICE_CPU,
                                     .writes = true,
                                     .takes = fake_takes,
                                     .build = fake_build,
                                     .run = fake_run,
                                     .destroy = fake_destroy};
static const rp__leaf writer_leaf = {.kind = RP__LEAF_DOOR, .ops = &rp__door_leaf, .door = &writer_door};
static const rp__engine writer_engine = {.name = "writer", RP__ENGINE_OVER_LEAF, .leaf = &writer_leaf};

static int fresh(void **state) {
    (void)state;
    memset(&fake, 0, sizeof fake);
    (void)rp_error_take();
    return rp_manual_seed(5) == RP_OK ? 0 : -1; /* a test's numbers are its own, whatever ran before */
}

/* ---------------------------------------------------------------- functions */

typedef struct net {
    rp_tensor *w, *b;
} net;

/* relu(x w) + b, and the sum of its cumulative sums: cumsum in the middle */
static void chain(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_relu(rp_matmul(in[0], n->w));
    rp_tensor *c = rp_cumsum(h, 1, NULL);
    out[0] = rp_add(rp_mul(c, h), n->b, NULL);
}

static net make_net(bool grad) {
    net n = {rp_randn(RP_DIMS(8, 8), NULL), rp_randn(RP_DIMS(8), NULL)};
    if (grad) {
        OK(rp_set_requires_grad(n.w, true));
        OK(rp_set_requires_grad(n.b, true));
    }
    return n;
}

static void same_bits(rp_tensor *a, rp_tensor *b) {
    float x[512], y[512];
    assert_int_equal(rp_numel(a), rp_numel(b));
    const size_t bytes = (size_t)rp_numel(a) * sizeof *x;
    OK(rp_to_host(a, x, bytes));
    OK(rp_to_host(b, y, bytes));
    for (size_t k = 0; k < bytes / sizeof *x; k++)
        if (fabsf(x[k] - y[k]) > 1e-5f * fmaxf(1, fabsf(y[k]))) fail_msg("element %zu is %g, not %g", k, x[k], y[k]);
}

/* Steps of an optimizer that divides by its gradients' sizes amplify rounding without a bound that is known beforehand: a is as far from
   the same steps in float64 as eager's b, times four. */
static void as_close(rp_tensor *a, rp_tensor *b, rp_tensor *exact) {
    float x[512], y[512];
    double z[512], off = 1e-6;
    const size_t n = (size_t)rp_numel(a);
    assert_true(n <= 512 && rp_numel(b) == rp_numel(a) && rp_numel(exact) == rp_numel(a));
    OK(rp_to_host(a, x, n * sizeof *x));
    OK(rp_to_host(b, y, n * sizeof *y));
    OK(rp_to_host(exact, z, n * sizeof *z));
    for (size_t k = 0; k < n; k++) off = fmax(off, fabs((double)y[k] - z[k]) / fmax(1, fabs(z[k])));
    for (size_t k = 0; k < n; k++) {
        if (!(fabs((double)x[k] - z[k]) <= 4 * off * fmax(1, fabs(z[k]))))
            fail_msg("element %zu is %.9g, not %.9g; eager gives %.9g", k, (double)x[k], z[k], (double)y[k]);
    }
}

static bool explains(rp_compiled *f, const char *kind, const char *reason, const char *text) {
    rp_explain_entry e;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        OK(rp_explain_get(f, k, &e));
        if (strcmp(e.kind, kind) == 0 && strcmp(e.reason, reason) == 0 && strstr(e.message, text)) return true;
    }
    return false;
}

static rp_compiled *compiled(rp_fn fn, const char *backend, bool strict) {
    return rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backend, .strict = strict));
}

static void calls(rp_compiled *f, rp_fn fn, rp_tensor *x, int n) {
    for (int k = 0; k < n; k++) {
        rp_tensor *y, *z;
        fn.body(fn.ctx, &x, 1, &z, 1);
        OK(rp_call(f, &x, 1, &y, 1));
        same_bits(y, z);
    }
}

static bool is_here(const char *backend) {
    rp_backend_info info = {.struct_size = sizeof info};
    OK(rp_backend_info_get(backend, &info));
    return info.available;
}

/* ---------------------------------------------------------------- parts */

static void what_the_engine_lacks_runs_beside_it(void **state) {
    (void)state;
    fake.lacks[0] = "cumsum";
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", false);
    calls(f, fn, rp_randn(RP_DIMS(4, 8), NULL), 4);
    assert_int_equal(fake.built, 2); /* before and behind it */
    assert_true(fake.ran >= 4);
    assert_true(explains(f, "skip", "engine-lacks-op", "cumsum: it never learned that"));
    assert_true(explains(f, "engine", "", "part 2 of 3"));
    rp_compiled_release(f);
}

static void a_graph_that_it_takes_is_one_part(void **state) {
    (void)state;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", true);
    calls(f, fn, rp_randn(RP_DIMS(4, 8), NULL), 4);
    assert_int_equal(fake.built, 1);
    assert_int_equal(fake.weights, 2);
    rp_compiled_release(f);
}

static void parameters_are_weights_of_inference(void **state) {
    (void)state;
    net n = make_net(true);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", true);
    const bool grad = rp_set_grad_enabled(false);
    calls(f, fn, rp_randn(RP_DIMS(4, 8), NULL), 3);
    assert_int_equal(fake.weights, 2);
    (void)rp_set_grad_enabled(grad);
    calls(f, fn, rp_randn(RP_DIMS(4, 8), NULL), 3);
    assert_int_equal(fake.weights, 0); /* about to be trained */
    rp_compiled_release(f);
}

static void strict_makes_it_an_error(void **state) {
    (void)state;
    fake.lacks[0] = "cumsum";
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y;
    assert_int_not_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    assert_non_null(strstr(rp_error_message(), "cumsum: it never learned that"));
    assert_non_null(strstr(rp_error_message(), "test_doors.c:"));
    (void)rp_error_take();
    rp_compiled_release(f);
}

static void gradients_come_through_parts(void **state) {
    (void)state;
    fake.lacks[0] = "cumsum";
    fake.lacks[1] = "cumsum_reversed";
    net n = make_net(true);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", false);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *want[2] = {NULL, NULL};
    for (int k = 0; k < 4; k++) {
        rp_tensor *y, *loss, *got[2];
        if (k == 0)
            fn.body(fn.ctx, &x, 1, &y, 1);
        else
            OK(rp_call(f, &x, 1, &y, 1));
        loss = rp_sum(y);
        OK(rp_grad(&loss, 1, (rp_tensor *[]){n.w, n.b}, 2, NULL, NULL, got));
        for (int i = 0; i < 2; i++) {
            if (k == 0)
                want[i] = got[i];
            else
                same_bits(got[i], want[i]);
        }
    }
    assert_true(fake.ran > 0);
    rp_compiled_release(f);
}

typedef struct trained {
    rp_tensor *w;
    rp_optimizer *adam;
} trained;

/* A whole step, and what the weight was before it: its update is in place, between two that read it. */
static void step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const trained *t = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *before = rp_mul_scalar(rp_detach(t->w), rp_f64(2));
    rp_tensor *loss = rp_sum(rp_square(rp_matmul(in[0], t->w)));
    (void)rp_backward(loss, NULL, NULL);
    (void)rp_optimizer_step(t->adam);
    (void)rp_optimizer_zero_grad(t->adam, true);
    out[0] = rp_add(before, rp_mul_scalar(rp_detach(t->w), rp_f64(3)));
    out[1] = rp_detach(loss);
}

static void updates_in_place_keep_their_order(void **state) {
    (void)state;
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *first = rp_randn(RP_DIMS(8, 8), NULL), *want[5][2];
    static const char *const backends[] = {NULL, "fake", "onnxrt", "xla", "ipex"};
    for (int k = 0; k < 5; k++) {
        trained t = {rp_clone(first), NULL};
        OK(rp_set_requires_grad(t.w, true));
        t.adam = rp_adam(&t.w, 1, 0.1, NULL);
        rp_compiled *f = k == 0 ? rp_plain((rp_fn){step, &t, sizeof t, "step"})
                                : compiled((rp_fn){step, &t, sizeof t, "step"}, backends[k], false);
        for (int i = 0; i < 5; i++) {
            rp_tensor *out[2];
            OK(rp_call(f, &x, 1, out, 2));
            for (int r = 0; r < 2; r++) {
                if (k == 0)
                    want[i][r] = rp_clone(out[r]);
                else
                    same_bits(out[r], want[i][r]);
            }
        }
        rp_compiled_release(f);
        rp_optimizer_release(t.adam);
    }
}

typedef struct steps {
    rp_tensor *w[3]; /* (8, 8); its transpose's memory; (8) */
    rp_optimizer *optimizer;
    bool clip;
} steps;

static void whole_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const steps *t = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_tanh(rp_add(rp_matmul(in[0], t->w[0]), t->w[2], NULL));
    rp_tensor *loss = rp_mean(rp_square(rp_matmul(h, t->w[1])));
    (void)rp_backward(loss, NULL, NULL);
    if (t->clip) (void)rp_clip_grad_norm(t->w, 3, 0.1, 2);
    (void)rp_optimizer_step(t->optimizer);
    (void)rp_optimizer_zero_grad(t->optimizer, true);
    out[0] = rp_detach(loss);
}

static rp_optimizer *an_optimizer(int kind, rp_tensor *const *w) {
    if (kind == 0) return rp_sgd(w, 3, 0.1, RP_OPTIONS(rp_sgd_options, .momentum = 0.9, .nesterov = true));
    if (kind != 2) return rp_adamw(w, 3, 0.02, RP_OPTIONS(rp_adam_options, .amsgrad = true));
    return rp_rmsprop(w, 3, 0.01, NULL);
}

/* Weights are written where they lie, also those whose dims are turned, and those that others write between two steps. */
static void a_whole_training_step_is_one_part_of_xla(void **state) {
    (void)state;
    if (!is_here("xla")) skip();
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *first = rp_randn(RP_DIMS(8, 8), NULL),
              *second = rp_randn(RP_DIMS(8, 8), NULL);
    for (int kind = 0; kind < 4;
         kind++) { /* the last scales gradients through views of them, which is left to the library */
        rp_tensor *want[3][7], *kept[3][3];
        for (int run = 0; run < 3; run++) { /* as called, by the engine, in float64 */
            const bool engine = run == 1;
            const rp_dtype type = run == 2 ? RP_F64 : RP_F32;
            steps t = {.w = {rp_to_dtype(rp_clone(first), type, NULL),
                             rp_to_dtype(rp_clone(rp_transpose(second, 0, 1)), type, NULL),
                             rp_to_dtype(rp_zeros(RP_DIMS(8)), type, NULL)},
                       .clip = kind == 3};
            for (int k = 0; k < 3; k++) OK(rp_set_requires_grad(t.w[k], true));
            const void *memory = rp_data(t.w[0]);
            rp_tensor *from = rp_to_dtype(x, type, NULL);
            t.optimizer = an_optimizer(kind, t.w);
            const rp_fn fn = {whole_step, &t, sizeof t, "whole_step"};
            rp_compiled *f = engine ? compiled(fn, "xla", !t.clip) : rp_plain(fn);
            for (int i = 0; i < 7; i++) {
                OK(rp_call(f, &from, 1, &want[run][i], 1));
                if (i == 4) (void)rp_mul_scalar_(rp_detach(t.w[2]), rp_f64(0.5));
            }
            assert_ptr_equal(rp_data(t.w[0]), memory);
            for (int k = 0; k < 3; k++) kept[run][k] = rp_clone(rp_detach(t.w[k]));
            if (engine) assert_true(explains(f, "engine", "", "part 1 of 1") == !t.clip);
            if (engine && t.clip) assert_true(explains(f, "skip", "engine-lacks-op", "memory that has other names"));
            rp_compiled_release(f);
            rp_optimizer_release(t.optimizer);
        }
        for (int i = 0; i < 7; i++) as_close(want[1][i], want[0][i], want[2][i]);
        for (int k = 0; k < 3; k++) as_close(kept[1][k], kept[0][k], kept[2][k]);
    }
}

/* ---------------------------------------------------------------- faults */

static void an_engine_that_is_absent_leaves_fused_kernels(void **state) {
    (void)state;
    fake.absent = true;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", false);
    calls(f, fn, rp_randn(RP_DIMS(4, 8), NULL), 3);
    assert_int_equal(fake.built, 0);
    assert_true(explains(f, "skip", "engine-absent", "there is none"));
    rp_compiled_release(f);
    f = compiled(fn, "fake", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y;
    FAILS(RP_ERROR_UNAVAILABLE, "there is none", rp_call(f, &x, 1, &y, 1));
    rp_compiled_release(f);
}

static void a_refusal_leaves_fused_kernels(void **state) {
    (void)state;
    fake.refuses = true;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", false);
    calls(f, fn, rp_randn(RP_DIMS(4, 8), NULL), 3);
    assert_true(explains(f, "skip", "engine-refused", "does not like it"));
    rp_compiled_release(f);
    f = compiled(fn, "fake", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y;
    FAILS(RP_ERROR_COMPILE, "does not like it", rp_call(f, &x, 1, &y, 1));
    rp_compiled_release(f);
}

static void a_failure_in_the_middle_is_made_good(void **state) {
    (void)state;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", false);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL);
    calls(f, fn, x, 3);
    fake.fails = true;
    calls(f, fn, x, 1);
    const int ran = fake.ran;
    calls(f, fn, x, 2); /* it is not asked again */
    assert_int_equal(fake.ran, ran);
    assert_true(explains(f, "skip", "engine-failed", "broke down"));
    rp_compiled_release(f);
}

static void an_engine_without_memory_leaves_fused_kernels(void **state) {
    (void)state;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y;
    fake.starved = fake.refuses = true;
    rp_compiled *f = compiled(fn, "fake", false);
    calls(f, fn, x, 3);
    assert_true(explains(f, "skip", "engine-refused", "does not like it"));
    rp_compiled_release(f);
    fake.refuses = false;
    f = compiled(fn, "fake", false);
    calls(f, fn, x, 2);
    fake.fails = true;
    calls(f, fn, x, 2);
    assert_true(explains(f, "skip", "engine-failed", "broke down"));
    rp_compiled_release(f);
    f = compiled(fn, "fake", true);
    OK(rp_call(f, &x, 1, &y, 1)); /* which records, and runs nothing else */
    FAILS(RP_ERROR_OUT_OF_MEMORY, "broke down", rp_call(f, &x, 1, &y, 1));
    rp_compiled_release(f);
}

static void a_weight_that_is_written_becomes_an_input(void **state) {
    (void)state;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL);
    calls(f, fn, x, 3);
    assert_int_equal(fake.weights, 2);
    (void)rp_mul_scalar_(n.w, rp_f64(2));
    calls(f, fn, x, 2);
    assert_int_equal(fake.built, 2);
    assert_int_equal(fake.weights, 1);
    (void)rp_mul_scalar_(n.w, rp_f64(2));
    calls(f, fn, x, 2);
    assert_int_equal(fake.built, 2);
    rp_compiled_release(f);
}

static void an_argument_with_gaps_is_copied_for_the_engine(void **state) {
    (void)state;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_tensor *wide = rp_randn(RP_DIMS(4, 10), NULL);
    rp_tensor *lies[] = {rp_randn(RP_DIMS(4, 8), NULL), rp_narrow(wide, 1, 1, 8)};
    for (int gaps = 0; gaps < 2; gaps++) {
        rp_compiled *f = compiled(fn, "fake", true);
        calls(f, fn, lies[gaps], 3);
        assert_int_equal(explains(f, "copy", "engine-copy", "does not lie in memory without gaps"), gaps);
        (void)rp_mul_scalar_(wide, rp_f64(-1)); /* a copy of what is there now */
        calls(f, fn, lies[gaps], 1);
        rp_compiled_release(f);
    }
}

/* Neither is the engine's failure: it is asked again by the next call. */
static void a_run_that_cannot_be_now_is_made_by_others(void **state) {
    (void)state;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "fake", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y;
    calls(f, fn, x, 2);
    fake.answer = RP__DOOR_NOT_NOW;
    const int before = fake.ran;
    calls(f, fn, x, 2);
    assert_int_equal(fake.ran, before + 2);
    fake.answer = RP__DOOR_EARLIER;
    FAILS(RP_ERROR_STATE, "what was before it broke down", rp_call(f, &x, 1, &y, 1));
    fake.answer = RP_OK;
    calls(f, fn, x, 2);
    assert_int_equal(fake.ran, before + 5);
    assert_false(explains(f, "skip", "engine-failed", ""));
    rp_compiled_release(f);
}

static void doubled(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    (void)rp_mul_scalar_(in[0], rp_f64(2));
    out[0] = rp_add_scalar(in[0], rp_f64(1));
}

/* Fused kernels would double it once more. */
static void what_was_written_is_not_written_again(void **state) {
    (void)state;
    const rp_fn fn = {doubled, NULL, 0, "doubled"};
    for (int strict = 0; strict < 2; strict++) {
        rp_compiled *f = compiled(fn, "writer", strict);
        rp_tensor *x = rp_full(RP_DIMS(64), rp_f64(1)), *y;
        float at[64], want = 1;
        fake.spoils = false;
        for (int k = 0; k < 3; k++, want *= 2) OK(rp_call(f, &x, 1, &y, 1));
        fake.spoils = true;
        FAILS(RP_ERROR_STATE, "of memory that it was about to write", rp_call(f, &x, 1, &y, 1));
        OK(rp_to_host(x, at, sizeof at));
        assert_true(at[0] == want || at[0] == 2 * want);
        fake.spoils = false;
        OK(rp_call(f, &x, 1, &y, 1)); /* it has not been given up */
        assert_true(rp_item_f64(rp_select(y, 0, 0)) == 2 * at[0] + 1);
        assert_false(explains(f, "skip", "engine-failed", ""));
        rp_compiled_release(f);
    }
    assert_true(fake.ran >= 6);
}

static void options_are_looked_at(void **state) {
    (void)state;
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    const char *const good[][2] = {{"level", "3"}}, *const bad[][2] = {{"depth", "3"}};
    rp_compiled_release(rp_compile(
        fn, RP_OPTIONS(rp_compile_options, .backend = "fake", .engine_options = good, .n_engine_options = 1)));
    assert_false(rp_failed());
    (void)rp_compile(fn,
                     RP_OPTIONS(rp_compile_options, .backend = "fake", .engine_options = bad, .n_engine_options = 1));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "has no option \"depth\"; there are: level");
    (void)rp_compile(fn, RP_OPTIONS(rp_compile_options, .engine_options = good, .n_engine_options = 1));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "takes no engine_options");
}

static void backends_say_what_is_here(void **state) {
    (void)state;
    rp_backend_info info = {.struct_size = sizeof info};
    OK(rp_backend_info_get("fake", &info));
    assert_true(info.available);
    assert_string_equal(info.version, "1.0");
    fake.absent = true;
    OK(rp_backend_info_get("fake", &info));
    assert_false(info.available);
    assert_string_equal(info.why, "there is none");
    OK(rp_backend_info_get("fused", &info));
    assert_true(info.available);
    FAILS(RP_ERROR_INVALID_ARGUMENT, "there is no backend", rp_backend_info_get("nobody", &info));
}

/* ---------------------------------------------------------------- libraries that are not what they seem */

/* A shared library made of this text. */
static void make_library(char path[64], const char *source) {
    char command[256];
    (void)snprintf(path, 64, "./engine_%d.so", (int)getpid());
    (void)snprintf(command, sizeof command, "cc -w -shared -fPIC -x c -o %s -", path);
    FILE *cc = popen(command, "w");
    if (!cc) skip();
    const bool written = fputs(source, cc) >= 0;
    if (pclose(cc) != 0 || !written) fail_msg("the compiler does not take this library:\n%s", source);
    (void)fflush(NULL);
}

/* In a process that has opened no library yet: what is said of the backend, and whether a function goes on without it. */
static void library_says(const char *backend, const char *variable, const char *source, const char *said) {
    char path[64];
    make_library(path, source);
    const pid_t child = fork();
    if (child == 0) {
        rp_backend_info info = {.struct_size = sizeof info};
        net n = make_net(false);
        const rp_fn fn = {chain, &n, sizeof n, "chain"};
        (void)setenv(variable, path, 1);
        bool good = rp_backend_info_get(backend, &info) == RP_OK && !info.available && strstr(info.why, said);
        if (!good) print_message("%s: '%s' is not in '%s'\n", backend, said, info.why);
        rp_compiled *f = compiled(fn, backend, false);
        rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y = NULL;
        for (int k = 0; k < 3 && good; k++) good = rp_call(f, &x, 1, &y, 1) == RP_OK;
        good = good && explains(f, "skip", "engine-absent", said);
        rp_compiled_release(f);
        _exit(good ? 0 : 1);
    }
    int status = 1;
    (void)waitpid(child, &status, 0);
    (void)remove(path);
    assert_int_equal(status, 0);
}

static void libraries_that_are_no_engine_are_refused(void **state) {
    (void)state;
    library_says("onnxrt", "REPRISE_ONNXRUNTIME", "int nothing;", "has no function OrtGetApiBase");
    library_says("xla", "REPRISE_PJRT_PLUGIN", "int nothing;", "has no function GetPjrtApi");
    library_says("tvm", "REPRISE_TVM", "int nothing;", "has no function TVMFFIFunctionCall");
}

/* A library of TVM's functions, and nothing behind them, of this version. */
#define TVM_OF(version)                                                                                                \
    "int TVMFFIFunctionCall(void) { return 1; } int TVMFFIFunctionGetGlobal(void) { return 1; }"                       \
    "int TVMFFIObjectDecRef(void) { return 0; } void TVMFFIErrorMoveFromRaised(void **e) { *e = 0; }"                  \
    "void TVMFFIGetVersion(unsigned *v) { unsigned is[] = {" version "}; v[0] = is[0], v[1] = is[1], v[2] = is[2]; }"

static void engines_that_are_too_old_say_so(void **state) {
    (void)state;
    library_says("onnxrt", "REPRISE_ONNXRUNTIME",
                 "static const void *t(unsigned v) { return 0; } static const char *n(void) { return \"1.3.0\"; }"
                 "static struct { void *t, *n; } b = {t, n}; void *OrtGetApiBase(void) { return &b; }",
                 "is version 1.3.0; 1.12 is the oldest");
    library_says("xla", "REPRISE_PJRT_PLUGIN",
                 "static struct { unsigned long n[4]; int v[2]; void *f[120]; } t = {{1000}, {0, 12}};"
                 "void *GetPjrtApi(void) { return &t; }",
                 "is PJRT 0.12");
    library_says("tvm", "REPRISE_TVM", TVM_OF("0, 0, 9"), "is tvm_ffi 0.0; 0.1 is used");
}

static void engines_that_are_too_new_say_so(void **state) {
    (void)state;
    library_says("xla", "REPRISE_PJRT_PLUGIN",
                 "static struct { unsigned long n[4]; int v[2]; void *f[120]; } t = {{1000}, {1, 2}};"
                 "void *GetPjrtApi(void) { return &t; }",
                 "is PJRT 1.2");
    library_says("tvm", "REPRISE_TVM", TVM_OF("1, 0, 0"), "is tvm_ffi 1.0; 0.1 is used");
}

/* The library is whole, and what it needs beside it is not there. */
static void engines_that_are_loaded_by_half_say_so(void **state) {
    (void)state;
    library_says("tvm", "REPRISE_TVM", TVM_OF("0, 1, 3"), "half of it is here: libtvm_runtime.so");
    library_says("tvm", "REPRISE_TVM", "int TVMFFIFunctionCall(void) { return 1; }",
                 "has no function TVMFFIGetVersion");
    library_says("xla",
                 "REPRISE_PJRT_PLUGIN", /* what makes a client fails, as without a driver, for a reason of its own */
                 "static void *good(void *a) { return 0; } static void *bad(void *a) { return \"e\"; }"
                 "static void *text(void **a) { a[3] = \"its driver is on holiday\"; a[4] = (void *)24; return 0; }"
                 "static struct { unsigned long n[4]; int v[2]; void *f[120]; } t = {{1000}, {0, 90}};"
                 "void *GetPjrtApi(void) { t.f[0] = good; t.f[1] = text; t.f[3] = good; t.f[10] = bad; return &t; }",
                 "its driver is on holiday");
    library_says("onnxrt", "REPRISE_ONNXRUNTIME",
                 "static void *make(int code, const char *text) { static char s[100]; int i = 0;"
                 " s[0] = code; while ((s[i + 1] = text[i])) i++; return s; }"
                 "static int code(char *s) { return s[0]; } static char *message(char *s) { return s + 1; }"
                 "static void no(void *s) { } static void *env(void) { return make(1, \"no thread is left\"); }"
                 "static void *a[400]; static void *t(unsigned v) {"
                 " a[0] = make; a[1] = code; a[2] = message; a[3] = env; a[93] = no; return a; }"
                 "static const char *n(void) { return \"1.99.0\"; }"
                 "static struct { void *t, *n; } b = {t, n}; void *OrtGetApiBase(void) { return &b; }",
                 "no thread is left");
}

/* The parts of ONNX Runtime's table that a session is made by: it refuses every graph, with what it was told before as the text. */
#define ORT_THAT_TELLS                                                                                                 \
    "static char said[400], made[400];"                                                                                \
    "static void say(const char *t) { int n = 0; while (said[n]) n++; while ((said[n] = *t++)) n++; }"                 \
    "static void *make(int code, const char *t) { int i = 0; made[0] = code; while ((made[i + 1] = t[i])) i++;"        \
    " return made; }"                                                                                                  \
    "static int code(char *s) { return s[0]; } static char *message(char *s) { return s + 1; }"                        \
    "static void gone(void *s) { } static void *good(void) { return 0; }"                                              \
    "static void *options(void **o) { *o = made; return 0; }"                                                          \
    "static void *update(void *o, const char **k, const char **v, unsigned long n) {"                                  \
    " for (unsigned long i = 0; i < n; i++) { say(k[i]); say(\":\"); say(v[i]); say(\";\"); } return 0; }"             \
    "static void *append(void *so, void *of) { say(\"appended;\"); return 0; }"                                        \
    "static void *named(void *so, const char *name, const char **k, const char **v, unsigned long n) {"                \
    " say(name); say(\";\"); return update(0, k, v, n); }"                                                             \
    "static void *session(void) { return make(1, said); }"                                                             \
    "static void *cuda(void **o) { say(\"CUDA;\"); return options(o); }"                                               \
    "static void *tensorrt(void **o) { say(\"TensorRT;\"); return options(o); }"                                       \
    "static void *a[400]; static void *t(unsigned v) { for (int i = 0; i < 400; i++) a[i] = gone;"                     \
    " a[0] = make; a[1] = code; a[2] = message; a[3] = a[6] = a[23] = a[24] = a[69] = good; a[10] = options;"          \
    " a[8] = session; a[170] = a[204] = append; a[171] = tensorrt; a[205] = cuda; a[172] = a[206] = update;"           \
    " a[216] = named; return a; }"                                                                                     \
    "static const char *n(void) { return \"1.99.0\"; }"                                                                \
    "static struct { void *t, *n; } b = {t, n}; void *OrtGetApiBase(void) { return &b; }"

static bool refuses_with(const char *provider, const char *more, const char *said) {
    const char *const options[][2] = {{"provider", provider}, {"provider_options", more}};
    net n = make_net(false);
    rp_compiled *f = rp_compile((rp_fn){chain, &n, sizeof n, "chain"},
                                RP_OPTIONS(rp_compile_options, .backend = "onnxrt", .engine_options = options,
                                           .n_engine_options = 1 + (more != NULL)));
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y = NULL, *z = NULL;
    chain(&n, &x, 1, &z, 1);
    bool good = true;
    for (int k = 0; k < 2 && good; k++)
        good = rp_call(f, &x, 1, &y, 1) == RP_OK && rp_item_i64(rp_allclose(y, z, 1e-4, 1e-5, false)) == 1;
    good = good && explains(f, "skip", "engine-refused", said);
    if (!good) print_message("%s: no '%s'\n", provider, said);
    rp_compiled_release(f);
    return good;
}

static void onnxrt_is_told_its_provider(void **state) {
    (void)state;
    char path[64];
    make_library(path, ORT_THAT_TELLS);
    const pid_t child = fork();
    if (child == 0) {
        (void)setenv("REPRISE_ONNXRUNTIME", path, 1);
        _exit(refuses_with("CUDA", "device_id=1,arena=kSameAsRequested",
                           "graph: CUDA;device_id:1;arena:kSameAsRequested;appended;") &&
                      refuses_with("CUDA", NULL, "CUDA;appended;") &&
                      refuses_with("TensorRT", "trt_fp16_enable=1", "TensorRT;trt_fp16_enable:1;appended;") &&
                      refuses_with("OpenVINO", "device_type=GPU", "OpenVINO;device_type:GPU;")
                  ? 0
                  : 1);
    }
    int status = 1;
    (void)waitpid(child, &status, 0);
    (void)remove(path);
    assert_int_equal(status, 0);
}

/* That a library was made for a CPU alone is said by itself, and by us for what. */
static void a_provider_that_is_not_in_the_library_is_named(void **state) {
    (void)state;
    if (!is_here("onnxrt")) skip();
    static const char *const providers[] = {"CUDA", "TensorRT", "Abacus"};
    for (unsigned k = 0; k < 3; k++) {
        const char *const options[][2] = {{"provider", providers[k]}};
        net n = make_net(false);
        rp_compiled *f = rp_compile((rp_fn){chain, &n, sizeof n, "chain"},
                                    RP_OPTIONS(rp_compile_options, .backend = "onnxrt", .strict = true,
                                               .engine_options = options, .n_engine_options = 1));
        rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y;
        char said[64];
        (void)snprintf(said, sizeof said, ": %s: ", providers[k]);
        assert_int_not_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        print_message("%s\n", rp_error_message());
        if (!strstr(rp_error_message(), said)) fail_msg("'%s' is not in '%s'", said, rp_error_message());
        FAILED(RP_ERROR_COMPILE, "provider");
        rp_compiled_release(f);
    }
}

static void tables_that_are_laid_out_otherwise_are_refused(void **state) {
    (void)state;
    library_says("onnxrt", "REPRISE_ONNXRUNTIME",
                 "static void *f(void) { return 0; } static void *a[400];"
                 "static void *t(unsigned v) { for (int i = 0; i < 400; i++) a[i] = f; return a; }"
                 "static const char *n(void) { return \"1.99.0\"; }"
                 "static struct { void *t, *n; } b = {t, n}; void *OrtGetApiBase(void) { return &b; }",
                 "do not lie where they are expected");
    library_says("xla", "REPRISE_PJRT_PLUGIN",
                 "static struct { unsigned long n[4]; int v[2]; } t = {{48}, {0, 90}};"
                 "void *GetPjrtApi(void) { return &t; }",
                 "has 48 bytes");
}

/* ---------------------------------------------------------------- a plug-in of CUDA */

static bool close_by(rp_tensor *a, rp_tensor *b) {
    if (rp_failed()) print_message("%s\n", rp_error_message());
    return !rp_failed() && rp_item_i64(rp_allclose(a, b, 1e-4, 1e-5, false)) == 1;
}

/* Arguments where they lie, also where that is no address for XLA, and in another order; weights; results that are arguments again. */
static bool computes_on_cuda(void) {
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "xla", true);
    rp_tensor *whole = rp_randn(RP_DIMS(41), NULL), *y = NULL, *z = NULL;
    rp_tensor *given[] = {rp_randn(RP_DIMS(5, 8), NULL), rp_view(rp_narrow(whole, 0, 1, 40), RP_DIMS(5, 8)),
                          rp_transpose(rp_randn(RP_DIMS(8, 5), NULL), 0, 1)};
    bool good = true;
    for (int k = 0; k < 9 && good; k++) {
        if (k == 5) (void)rp_mul_scalar_(n.w, rp_f64(0.5));
        rp_tensor *x = k < 6 || !y ? given[k % 3] : y;
        chain(&n, &x, 1, &z, 1);
        good = rp_call(f, &x, 1, &y, 1) == RP_OK && close_by(y, z);
    }
    good = good && rp_device_of(y).type == RP_DEVICE_CUDA && explains(f, "engine", "", "part 1 of 1");
    rp_compiled_release(f);
    return good;
}

/* What a step writes lies where it lay. */
static bool trains_on_cuda(void) {
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *first = rp_randn(RP_DIMS(8, 8), NULL),
              *second = rp_randn(RP_DIMS(8, 8), NULL), *loss[2][6], *kept[2];
    bool good = true;
    for (int run = 0; run < 2; run++) {
        steps t = {.w = {rp_clone(first), rp_clone(rp_transpose(second, 0, 1)), rp_zeros(RP_DIMS(8))}};
        for (int k = 0; k < 3; k++) (void)rp_set_requires_grad(t.w[k], true);
        const void *memory = rp_data(t.w[0]);
        t.optimizer = an_optimizer(0, t.w);
        const rp_fn fn = {whole_step, &t, sizeof t, "whole_step"};
        rp_compiled *f = run ? compiled(fn, "xla", true) : rp_plain(fn);
        for (int i = 0; i < 6 && good; i++) {
            good = rp_call(f, &x, 1, &loss[run][i], 1) == RP_OK;
            if (i == 3) (void)rp_mul_scalar_(rp_detach(t.w[2]), rp_f64(0.5));
        }
        good = good && rp_data(t.w[0]) == memory && (!run || explains(f, "engine", "", "part 1 of 1"));
        kept[run] = rp_clone(rp_detach(t.w[1]));
        rp_compiled_release(f);
        rp_optimizer_release(t.optimizer);
    }
    for (int i = 0; i < 6 && good; i++) good = close_by(loss[0][i], loss[1][i]);
    return good && close_by(kept[0], kept[1]);
}

/* Nobody may wait while a graph is recorded: it has fused kernels, and calls outside of it are the engine's as before. */
static bool stands_aside_in_a_graph(void) {
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "xla", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y = NULL, *z = NULL;
    bool good = true;
    for (int k = 0; k < 3 && good; k++) good = rp_call(f, &x, 1, &y, 1) == RP_OK;
    rp_graph *graph = rp_graph_new();
    good = good && rp_graph_begin(graph, rp_cuda(0), NULL) == RP_OK && rp_call(f, &x, 1, &y, 1) == RP_OK &&
           rp_graph_end(graph) == RP_OK;
    for (int k = 0; k < 2 && good; k++) {
        (void)rp_mul_scalar_(x, rp_f64(-0.5));
        chain(&n, &x, 1, &z, 1);
        good = rp_graph_replay(graph) == RP_OK && close_by(y, z);
    }
    rp_tensor *w = NULL;
    good = good && rp_call(f, &x, 1, &w, 1) == RP_OK && close_by(w, z) && !explains(f, "skip", "engine-failed", "");
    rp_graph_release(graph);
    rp_compiled_release(f);
    return good;
}

typedef struct asked {
    int *views, *waits, *host, *late, *silent, *lacking;
} asked;

/* Many small ops, of which an emulated GPU has done few before somebody waits. */
static rp_tensor *busy(void) {
    rp_tensor *t = rp_ones(RP_DIMS(16));
    for (int k = 0; k < 100; k++) (void)rp_mul_scalar_(t, rp_f64(0.5));
    return t;
}

/* Calls until the engine has it. */
static bool warms(rp_compiled *f, rp_tensor *x) {
    rp_tensor *y = NULL;
    bool good = true;
    for (int k = 0; k < 3 && good; k++) good = rp_call(f, &x, 1, &y, 1) == RP_OK;
    return good && rp_synchronize(rp_cuda(0)) == RP_OK;
}

/* A run that nobody waited for fails: whoever waits next is told, or the next call; and the one behind it is as ever. */
static bool tells_late_failures(int *late) {
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "xla", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y = NULL, *z = NULL;
    float host[32];
    bool good = warms(f, x);
    for (int how = 0; how < 4 && good; how++) {
        *late = 1;
        good = rp_call(f, &x, 1, &y, 1) == RP_OK;
        *late = 0;
        switch (how) {
        case 0: (void)rp_call(f, &x, 1, &y, 1); break;
        case 1: (void)rp_synchronize(rp_cuda(0)); break;
        case 2: (void)rp_to_host(rp_neg(y), host, sizeof host); break; /* an emulated copy takes no memory of others */
        default: (void)rp_item_f64(rp_sum(y));
        }
        good = good && rp_error_status() == RP_ERROR_STATE && strstr(rp_error_message(), "add") &&
               strstr(rp_error_message(), "test_doors.c") && strstr(rp_error_message(), "behind the call: ");
        if (!good) print_message("late failure %d: %s\n", how, rp_failed() ? rp_error_message() : "nobody is told");
        (void)rp_error_take();
    }
    chain(&n, &x, 1, &z, 1);
    good = good && rp_call(f, &x, 1, &y, 1) == RP_OK && close_by(y, z) && !explains(f, "skip", "engine-failed", "");
    rp_compiled_release(f);
    return good;
}

/* What a kernel found in data before the run is the caller's error, and no run begins. */
static bool tells_what_kernels_found(void) {
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "xla", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y = NULL, *z = NULL;
    bool good = warms(f, x);
    (void)rp_index_select(x, 0, rp_full(RP_DIMS(1), rp_i64(9)));
    while (!rp_stream_query(rp_current_stream(rp_cuda(0))) && !rp_failed()) {}
    good = good && !rp_failed() && rp_call(f, &x, 1, &y, 1) == RP_ERROR_INDEX;
    (void)rp_error_take();
    chain(&n, &x, 1, &z, 1);
    good = good && rp_call(f, &x, 1, &y, 1) == RP_OK && close_by(y, z);
    if (!good) print_message("an error that a kernel found\n");
    rp_compiled_release(f);
    return good;
}

/* The host waits for a run that has no event, and is told how it ended. */
static bool waits_without_events(const asked *a) {
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "xla", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y = NULL, *z = NULL;
    bool good = warms(f, x);
    const int before = *a->host;
    *a->silent = 1;
    chain(&n, &x, 1, &z, 1);
    good = good && rp_call(f, &x, 1, &y, 1) == RP_OK && *a->host > before && close_by(y, z);
    *a->silent = 0;
    if (!good) print_message("a run without an event\n");
    rp_compiled_release(f);
    return good;
}

/* Results that are gone and wait for our stream are given back to a run that lacks memory. */
static bool gives_memory_back(const asked *a) {
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "xla", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *y = NULL, *z = NULL;
    bool good = warms(f, x);
    const rp_scope scope = rp_scope_begin();
    good = good && rp_call(f, &x, 1, &y, 1) == RP_OK;
    (void)busy();
    good = rp_scope_end(scope, NULL, 0) == RP_OK && good;
    *a->lacking = 1;
    good = good && rp_call(f, &x, 1, &y, 1) == RP_OK && !*a->lacking;
    *a->lacking = 0;
    chain(&n, &x, 1, &z, 1);
    good = good && close_by(y, z) && !explains(f, "skip", "engine-failed", "");
    if (!good) print_message("memory that is given back: %s\n", rp_failed() ? rp_error_message() : "");
    rp_compiled_release(f);
    return good;
}

static const void *memory_of_another(void) {
    const rp_scope scope = rp_scope_begin();
    const void *data = rp_data(rp_empty(RP_DIMS(40, 8)));
    (void)rp_scope_end(scope, NULL, 0);
    return data;
}

/* An argument of one stream that a run on another reads: when it is gone its memory is nobody else's before that stream has come so far. */
static bool keeps_what_runs_read(void) {
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *f = compiled(fn, "xla", true);
    rp_stream *here = rp_current_stream(rp_cuda(0)), *there = rp_stream_new(rp_cuda(0));
    rp_tensor *y = NULL;
    const void *data[2] = {NULL, NULL}, *next[2] = {NULL, NULL};
    bool good = warms(f, rp_randn(RP_DIMS(40, 8), NULL));
    for (int read = 0; read < 2; read++) {
        const rp_scope scope = rp_scope_begin();
        rp_tensor *x = rp_randn(RP_DIMS(40, 8), NULL), *kept[2];
        data[read] = rp_data(x);
        good = good && rp_synchronize(rp_cuda(0)) == RP_OK && rp_set_current_stream(there) == RP_OK;
        if (read) good = good && rp_call(f, &x, 1, &y, 1) == RP_OK;
        kept[0] = busy();
        kept[1] = read ? y : NULL;
        good = good && rp_set_current_stream(here) == RP_OK;
        (void)rp_scope_end(scope, kept, 2);
        next[read] = memory_of_another();
        good = good && rp_synchronize(rp_cuda(0)) == RP_OK;
    }
    good = good && next[0] == data[0] && next[1] != data[1]; /* the first was read by nobody there */
    if (!good) print_message("an argument's memory: %p, %p; %p, %p\n", data[0], next[0], data[1], next[1]);
    rp_compiled_release(f);
    rp_stream_release(there);
    return good;
}

static bool as_it_orders_runs(int streams, const asked *a) {
    bool good = computes_on_cuda();
    good = good && trains_on_cuda();
    good = good && stands_aside_in_a_graph();
    if (!good) print_message("%s\n", rp_failed() ? rp_error_message() : "a result differs");
    print_message("streams %d: %d views, %d waits on streams, %d of the host\n", streams, *a->views, *a->waits,
                  *a->host);
    switch (streams) {
    case 0: good = good && !*a->views && !*a->waits && *a->host; break;
    case 1:
        good = good && *a->views > 10 && *a->waits > 10 && !*a->host && tells_late_failures(a->late) &&
               tells_what_kernels_found() && waits_without_events(a);
        break;
    case 2:
        good = good && *a->views <= 1 && *a->waits > 10 && !*a->host;
        break; /* which was to see that it does not look */
    default: good = good && *a->views > 10 && !*a->waits && *a->host; break;
    }
    if (rp__several_streams()) print_message("XLA's stream is taken for one of the program's\n");
    good = good && !rp__several_streams() && gives_memory_back(a);
    return good && keeps_what_runs_read();
}

/* On a GPU, with the plug-in of CUDA that is there. */
static void the_real_one_shares_its_memory(void) {
    enum { NONE = 77 };
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        rp_backend_info info = {.struct_size = sizeof info};
        if (!test_cuda_choose() || rp_backend_info_get("xla", &info) != RP_OK || !strstr(info.version, "for cuda"))
            _exit(NONE);
        print_message("%s, %s\n", info.version, info.where);
        const bool good = info.available && rp_set_default_device(rp_cuda(0)) == RP_OK && computes_on_cuda() &&
                          trains_on_cuda() && stands_aside_in_a_graph();
        if (!good) print_message("%s\n", rp_failed() ? rp_error_message() : "a result differs");
        (void)fflush(NULL);
        _exit(good ? 0 : 1);
    }
    int status = 1;
    (void)waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NONE) skip();
    assert_int_equal(status, 0);
}

/* Runs are ordered with our streams in each of the ways that plug-ins have, and the host waits where there is none. */
static void a_plug_in_of_cuda_shares_its_memory(void **state) {
    (void)state;
    char plain[512], path[64], command[2048];
    const char *given = getenv("REPRISE_PJRT_PLUGIN"), *sim = getenv("REPRISE_CUDASIM_DIR"),
               *data = getenv("REPRISE_TEST_DATA");
    if (test_cuda_is_real()) {
        the_real_one_shares_its_memory();
        return;
    }
    if (given && strlen(given) < sizeof plain)
        (void)strcpy(plain, given);
    else if (!rp__door_find("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so", plain, sizeof plain))
        skip();
    if (!sim || !*sim || !data) skip();
    (void)snprintf(path, sizeof path, "./engine_%d.so", (int)getpid());
    for (int streams = 0; streams < 4; streams++) {
        (void)snprintf(
            command, sizeof command,
            "cc -w -shared -fPIC -I '%s/../../src' -DSTREAMS=%d -DPLAIN='\"%s\"' -o %s '%s/engines/pjrt_cuda.c'", data,
            streams, plain, path, data);
        assert_int_equal(system(command), 0);
        (void)fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            (void)setenv("REPRISE_PJRT_PLUGIN", path, 1);
            void *library = dlopen(path, RTLD_NOW);
            const asked a = {dlsym(library, "pjrt_views_on_streams"), dlsym(library, "pjrt_waits_on_streams"),
                             dlsym(library, "pjrt_host_waits"),       dlsym(library, "pjrt_late"),
                             dlsym(library, "pjrt_silent"),           dlsym(library, "pjrt_short")};
            const bool good = library && test_cuda_choose() && rp_set_default_device(rp_cuda(0)) == RP_OK &&
                              as_it_orders_runs(streams, &a);
            (void)fflush(NULL);
            _exit(good ? 0 : 1);
        }
        int status = 1;
        (void)waitpid(child, &status, 0);
        (void)remove(path);
        if (status != 0) fail_msg("a plug-in that orders runs in way %d", streams);
    }
}

static void a_child_of_fork_goes_on_in_fused_kernels(void **state) {
    (void)state;
    static const char *const engines[] = {"onnxrt", "xla", "tvm"};
    bool any = false;
    for (unsigned k = 0; k < 3; k++) {
        if (!is_here(engines[k])) continue;
        any = true;
        net n = make_net(false);
        const rp_fn fn = {chain, &n, sizeof n, "chain"};
        rp_compiled *f = compiled(fn, engines[k], false);
        rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL);
        calls(f, fn, x, 3);
        (void)fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            rp_tensor *y = NULL;
            bool good = true;
            for (int i = 0; i < 2 && good; i++) good = rp_call(f, &x, 1, &y, 1) == RP_OK;
            good = good && explains(f, "skip", "engine-failed", "forked");
            rp_compiled_release(f);
            _exit(good ? 0 : 1);
        }
        int status = 1;
        (void)waitpid(child, &status, 0);
        assert_int_equal(status, 0);
        calls(f, fn, x, 2);
        rp_compiled_release(f);
    }
    if (!any) skip();
}

/* Somebody else has the library, too, and closes it while functions of ours are there. */
static void a_library_that_others_close_stays(void **state) {
    (void)state;
    static const char *const engines[] = {"onnxrt", "xla", "tvm"};
    bool any = false;
    for (unsigned k = 0; k < 3; k++) {
        rp_backend_info info = {.struct_size = sizeof info};
        OK(rp_backend_info_get(engines[k], &info));
        void *theirs = info.available ? dlopen(info.where, RTLD_NOW | RTLD_NOLOAD) : NULL;
        if (!theirs) continue;
        any = true;
        net n = make_net(false);
        const rp_fn fn = {chain, &n, sizeof n, "chain"};
        rp_compiled *f = compiled(fn, k < 2 ? engines[k] : "fake", false);
        rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL);
        calls(f, fn, x, 2);
        (void)dlclose(theirs);
        calls(f, fn, x, 2);
        rp_compiled_release(f);
        theirs = dlopen(info.where, RTLD_NOW | RTLD_NOLOAD);
        assert_non_null(theirs); /* it lives on for the next function */
        (void)dlclose(theirs);
    }
    if (!any) skip();
}

static void two_engines_live_side_by_side(void **state) {
    (void)state;
    if (!is_here("onnxrt") || !is_here("xla")) skip();
    net n = make_net(false);
    const rp_fn fn = {chain, &n, sizeof n, "chain"};
    rp_compiled *a = compiled(fn, "onnxrt", true), *b = compiled(fn, "xla", true);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL), *z = rp_randn(RP_DIMS(3, 8), NULL);
    for (int k = 0; k < 3; k++) {
        calls(a, fn, x, 2);
        calls(b, fn, x, 2);
        calls(a, fn, z, 2); /* and of other sizes */
        calls(b, fn, z, 2);
    }
    rp_compiled_release(a);
    rp_compiled_release(b);
}

/* ---------------------------------------------------------------- attention */

enum { ATTENTION = 3 }; /* q, k, v */

/* four heads of queries over two of keys */
typedef struct attends {
    bool causal;
    rp_tensor *mask;
} attends;

static void attend(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const attends *a = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *y =
        rp_scaled_dot_product_attention(in[0], in[1], in[2], a->mask, 0, a->causal,
                                        RP_OPTIONS(rp_scaled_dot_product_attention_options, .enable_gqa = true));
    out[0] = rp_softmax(y, -1);
}

static void attention_is_the_engines_forward_and_backward(void **state) {
    (void)state;
    static const char *const engines[] = {"onnxrt", "xla"};
    bool any = false;
    for (unsigned k = 0; k < 2; k++) {
        if (!is_here(engines[k])) continue;
        any = true;
        for (int how = 0; how < 3; how++) {
            attends a = {.causal = how == 1};
            if (how == 2) { /* one row sees nothing */
                a.mask = rp_ge_scalar(rp_randn(RP_DIMS(2, 1, 5, 6), NULL), rp_f64(-0.5));
                (void)rp_fill_(rp_select(a.mask, 2, 1), rp_bool(false));
            }
            const rp_fn fn = {attend, &a, sizeof a, "attend"};
            rp_compiled *f = compiled(fn, engines[k], true);
            rp_tensor *x[ATTENTION] = {rp_randn(RP_DIMS(2, 4, 5, 3), NULL), rp_randn(RP_DIMS(2, 2, 6, 3), NULL),
                                       rp_randn(RP_DIMS(2, 2, 6, 4), NULL)};
            rp_tensor *by = rp_randn(RP_DIMS(2, 4, 5, 4), NULL), *want[ATTENTION];
            for (int i = 0; i < ATTENTION; i++) OK(rp_set_requires_grad(x[i], true));
            for (int turn = 0; turn < 4; turn++) {
                rp_tensor *y, *loss, *got[ATTENTION];
                if (turn == 0)
                    attend(&a, x, ATTENTION, &y, 1);
                else
                    OK(rp_call(f, x, ATTENTION, &y, 1));
                loss = rp_sum(rp_mul(y, by));
                OK(rp_grad(&loss, 1, x, ATTENTION, NULL, NULL, turn == 0 ? want : got));
                for (int i = 0; i < ATTENTION && turn > 0; i++) same_bits(got[i], want[i]);
            }
            assert_true(explains(f, "engine", "", "part 1 of 1"));
            assert_false(explains(f, "skip", "engine-lacks-op", ""));
            rp_compiled_release(f);
        }
    }
    if (!any) skip();
}

/* ---------------------------------------------------------------- files of ONNX */

typedef struct onnx_node {
    char op[32], in[64], out[64]; /* the first operand and the first result */
} onnx_node;

static uint64_t onnx_number(const unsigned char **at) {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        const unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
}

/* The next field of a message: its number, and of bytes where they are. */
static unsigned onnx_field(const unsigned char **at, const unsigned char **data, size_t *bytes) {
    const uint64_t key = onnx_number(at);
    *data = NULL;
    *bytes = 0;
    if ((key & 7) == 2) {
        *bytes = (size_t)onnx_number(at);
        *data = *at;
        *at += *bytes;
    } else {
        assert_int_equal(key & 7, 0);
        (void)onnx_number(at);
    }
    return (unsigned)(key >> 3);
}

static void onnx_text(char *to, size_t room, const unsigned char *data, size_t bytes) {
    if (!*to) (void)snprintf(to, room, "%.*s", (int)bytes, (const char *)data);
}

/* The nodes of a function as rp_onnx_save writes it. */
static size_t onnx_nodes(rp_body *body, rp_tensor *const *in, size_t n_in, size_t n_out, onnx_node *nodes,
                         size_t most) {
    enum { GRAPH = 7, NODE = 1, INPUT = 1, OUTPUT = 2, OP_TYPE = 4 };
    static unsigned char file[1 << 16];
    char path[64];
    size_t n = 0, bytes;
    const unsigned char *data;
    (void)snprintf(path, sizeof path, "./doors_%d.onnx", (int)getpid());
    rp_ir *ir = rp_trace((rp_fn){body, NULL, 0, "written"}, in, n_in, n_out);
    OK(rp_onnx_save(path, ir, NULL));
    rp_ir_release(ir);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const unsigned char *at = file, *end = file + fread(file, 1, sizeof file, f);
    (void)fclose(f);
    (void)remove(path);
    while (at < end && onnx_field(&at, &data, &bytes) != GRAPH) {}
    for (const unsigned char *graph = data, *last = data + bytes; graph < last;) {
        const unsigned char *node, *text;
        size_t length;
        if (onnx_field(&graph, &node, &length) != NODE) continue;
        assert_true(n < most);
        memset(&nodes[n], 0, sizeof nodes[n]);
        for (const unsigned char *stop = node + length; node < stop;) {
            const unsigned field = onnx_field(&node, &text, &length);
            if (field == INPUT) onnx_text(nodes[n].in, sizeof nodes[n].in, text, length);
            if (field == OUTPUT) onnx_text(nodes[n].out, sizeof nodes[n].out, text, length);
            if (field == OP_TYPE) onnx_text(nodes[n].op, sizeof nodes[n].op, text, length);
        }
        n++;
    }
    return n;
}

static const onnx_node *onnx_maker(const onnx_node *nodes, size_t n, const char *value) {
    for (size_t k = 0; k < n; k++)
        if (strcmp(nodes[k].out, value) == 0) return &nodes[k];
    return NULL;
}

static void views_of_what_is_doubled(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_slice(in[0], 0, 1, 3, 1);
    out[1] = in[0];
    out[2] = rp_slice(rp_view(in[0], RP_DIMS(2, 3)), 1, 0, 3, 2);
    (void)rp_mul_scalar_(out[2], rp_f64(3));
    (void)rp_mul_scalar_(in[0], rp_f64(2));
}

static void a_model_gives_views_of_arguments_as_they_were_written(void **state) {
    (void)state;
    onnx_node nodes[64];
    rp_tensor *x = rp_ones(RP_DIMS(6), NULL);
    const size_t n = onnx_nodes(views_of_what_is_doubled, &x, 1, 3, nodes, 64);
    static const char *const results[] = {"out0", "out1", "out2", "new_in0"};
    for (unsigned k = 0; k < 4; k++) { /* each is of what the last write left */
        const onnx_node *from = onnx_maker(nodes, n, results[k]);
        while (from && strcmp(from->op, "Mul") != 0) from = onnx_maker(nodes, n, from->in);
        if (!from) fail_msg("%s is read before it is written", results[k]);
        assert_string_not_equal(from->in, "in0");
    }
}

static void nothing_filled(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_full(RP_DIMS(0), rp_f64(2));
    out[1] = rp_cat(RP_TENSORS(in[0], rp_full(RP_DIMS(0, 2), rp_f64(1))), 0);
}

static void a_model_says_what_has_no_elements_as_a_constant(void **state) {
    (void)state;
    onnx_node nodes[16];
    rp_tensor *x = rp_ones(RP_DIMS(3, 2), NULL);
    const size_t n = onnx_nodes(nothing_filled, &x, 1, 2, nodes, 16);
    assert_non_null(onnx_maker(nodes, n, "out0"));
    for (size_t k = 0; k < n; k++) assert_string_not_equal(nodes[k].op, "Expand");
}

/* ---------------------------------------------------------------- branches and loops */

static void tall(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_mul(rp_sigmoid(in[0]), n->b);
    out[1] = rp_amax(in[0], RP_DIMS(1), false);
}
static void wide(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_matmul(in[0], n->w);
    out[1] = rp_select(in[0], 1, 2);
}
static void goes_on(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lt_scalar(rp_add(rp_sum(rp_abs(in[0])), in[1], NULL), rp_f64(60));
}
static void turns(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_mul_scalar(rp_tanh(rp_matmul(in[0], n->w)), rp_f64(0.1));
    out[0] = rp_add(rp_mul_scalar(in[0], rp_f64(1.5)), h, NULL); /* grows, and keeps what differs small */
    out[1] = rp_add_scalar(in[1], rp_f64(1));
}

typedef struct steered {
    net n;
    int64_t most; /* turns; 0: until it is done */
} steered;

/* One of two functions by the argument's sum, and a loop whose turns depend on values. */
static void steer(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    steered *s = ctx;
    net *n = &s->n;
    rp_tensor *h = rp_add(in[0], n->b, NULL), *two[2], *state[2], *last[2];
    (void)n_in, (void)n_out;
    rp_cond(rp_gt_scalar(rp_sum(in[0]), rp_f64(0)), (rp_fn){tall, n, sizeof *n, "tall"},
            (rp_fn){wide, n, sizeof *n, "wide"}, &h, 1, two, 2);
    state[0] = two[0];
    state[1] = rp_full(RP_NO_DIMS, rp_f64(0));
    rp_while((rp_fn){goes_on, n, sizeof *n, "goes_on"}, (rp_fn){turns, n, sizeof *n, "turns"}, state, 2, s->most, last);
    out[0] = last[0];
    out[1] = rp_add(two[1], last[1], NULL);
}

static void branches_and_loops_are_the_engines(void **state) {
    (void)state;
    static const char *const engines[] = {"onnxrt", "xla"};
    bool any = false;
    rp_tensor *x = rp_abs(rp_randn(RP_DIMS(4, 8), NULL)), *of_either_sign[] = {x, rp_neg(x)};
    for (unsigned k = 0; k < 2; k++) {
        if (!is_here(engines[k])) continue;
        any = true;
        for (int64_t most = 0; most <= 4; most += 4) {
            steered s = {make_net(most > 0), most};
            const rp_fn fn = {steer, &s, sizeof s, "steer"};
            rp_compiled *f = compiled(fn, engines[k], true);
            for (int turn = 0; turn < 4; turn++) {
                rp_tensor *in = of_either_sign[turn % 2], *want[2], *got[2], *grad[2][2];
                steer(&s, &in, 1, want, 2);
                OK(rp_call(f, &in, 1, got, 2));
                for (int i = 0; i < 2; i++) same_bits(got[i], want[i]);
                for (int which = 0; which < 2 && most > 0; which++) {
                    rp_tensor **y = which ? got : want, *loss = rp_add(rp_sum(rp_square(y[0])), rp_sum(y[1]), NULL);
                    OK(rp_grad(&loss, 1, (rp_tensor *[]){s.n.w, s.n.b}, 2, NULL, NULL, grad[which]));
                }
                for (int i = 0; i < 2 && most > 0; i++) same_bits(grad[1][i], grad[0][i]);
            }
            assert_true(explains(f, "engine", "", "part 1 of 1"));
            assert_false(explains(f, "skip", "engine-lacks-op", ""));
            rp_compiled_release(f);
        }
    }
    if (!any) skip();
}

static void an_engine_without_regions_runs_around_them(void **state) {
    (void)state;
    steered s = {make_net(false), 0};
    const rp_fn fn = {steer, &s, sizeof s, "steer"};
    rp_compiled *f = compiled(fn, "fake", false);
    rp_tensor *x = rp_randn(RP_DIMS(4, 8), NULL);
    for (int turn = 0; turn < 4; turn++) {
        rp_tensor *want[2], *got[2];
        steer(&s, &x, 1, want, 2);
        OK(rp_call(f, &x, 1, got, 2));
        for (int i = 0; i < 2; i++) same_bits(got[i], want[i]);
    }
    assert_true(explains(f, "skip", "engine-lacks-op", "cond: no regions"));
    assert_true(explains(f, "skip", "engine-lacks-op", "while: no regions"));
    assert_true(fake.ran > 0);
    rp_compiled_release(f);
    /* nor is ONNX for an engine without them asked for any */
    rp_ir *ir = rp_trace(fn, &x, 1, 2);
    unsigned found = 0;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *node = &ir->nodes[ir->body.nodes[k]];
        char why[256] = "";
        if (node->kind != RP__IR_COND && node->kind != RP__IR_WHILE) continue;
        assert_true(rp__onnx_takes(ir, node, 0, false, why));
        assert_false(rp__onnx_takes(ir, node, 0, true, why));
        assert_non_null(strstr(why, "it takes no "));
        found++;
    }
    assert_int_equal(found, 2);
    rp_ir_release(ir);
}

/* ---------------------------------------------------------------- what a language lacks, made of others */

static void mathematical(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *x = in[0];
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_lgamma(x);
    out[1] = rp_digamma(x);
    out[2] = rp_erfinv(rp_mul_scalar(x, rp_f64(1.0 / 8)));
    out[3] = rp_special_zeta(rp_full(RP_NO_DIMS, rp_f64(3)), x);
    out[4] = rp_nextafter(x, rp_neg(x));
    out[5] = rp_logcumsumexp(x, 1);
    out[6] = rp_cumprod(x, 0, NULL);
}

/* Of either sign, small, at poles, at the ends of erfinv, infinite and not a number. */
static void functions_that_a_language_lacks_are_whole(void **state) {
    (void)state;
    static const char *const engines[] = {"onnxrt", "xla"};
    static const float at[] = {0.25f,  1,        2,      3.5f,     7.875f,     40,     1e-6f,      -0.5f,
                               -1.75f, -3,       -8,     8,        0,          -1e-6f, 7.9999995f, 1.0001f,
                               12.5f,  2.0f / 3, 1e-39f, 0x1p-70f, -0x1p-126f, 5,      INFINITY,   NAN};
    enum { OUTS = 7, N = sizeof at / sizeof *at };
    bool any = false;
    rp_tensor *x = rp_from_data(at, RP_DIMS(2, N / 2), RP_F32);
    for (unsigned k = 0; k < 2; k++) {
        if (!is_here(engines[k])) continue;
        any = true;
        rp_tensor *want[OUTS], *got[OUTS];
        const rp_fn fn = {mathematical, NULL, 0, "mathematical"};
        rp_compiled *f = compiled(fn, engines[k], true);
        mathematical(NULL, &x, 1, want, OUTS);
        OK(rp_call(f, &x, 1, got, OUTS));
        for (int i = 0; i < OUTS; i++) {
            float a[N], b[N];
            OK(rp_to_host(got[i], a, sizeof a));
            OK(rp_to_host(want[i], b, sizeof b));
            for (unsigned j = 0; j < N; j++) {
                const bool near = fabsf(a[j] - b[j]) <= (i == 4 ? 0 : 4e-6f * fmaxf(fabsf(b[j]), 1));
                if (!(a[j] == b[j] || near || (isnan(a[j]) && isnan(b[j]))))
                    fail_msg("%s: function %d of %.9g is %.9g, not %.9g", engines[k], i, at[j], a[j], b[j]);
            }
        }
        rp_compiled_release(f);
    }
    if (!any) skip();
}

/* ---------------------------------------------------------------- rp_cudagraphs_inner */

static void square(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add_scalar(rp_mul(in[0], in[0]), rp_f64(1));
}

static void a_recorded_function_copies_what_is_asked(void **state) {
    (void)state;
    const rp_fn fn = {square, NULL, 0, "square"};
    for (int how = 0; how < 4; how++) {
        const bool inputs = how & 1, outputs = how & 2;
        rp_tensor *x = rp_full(RP_DIMS(4), rp_f64(2)), *z = rp_full(RP_DIMS(4), rp_f64(3)), *a = NULL, *b = NULL;
        rp_compiled *f = rp_cudagraphs_inner(fn, &x, 1, 1, inputs, outputs);
        OK(rp_call(f, &x, 1, &a, 1));
        assert_true(rp_item_f64(rp_sum(a)) == 20);
        if (inputs) {
            OK(rp_call(f, &z, 1, &b, 1));
            assert_true(rp_item_f64(rp_sum(b)) == 40);
        } else {
            FAILS(RP_ERROR_GUARD, "copy_inputs", rp_call(f, &z, 1, &b, 1));
            (void)rp_fill_(x, rp_f64(3)); /* where the recording reads */
            OK(rp_call(f, &x, 1, &b, 1));
            assert_true(rp_item_f64(rp_sum(b)) == 40);
        }
        assert_true(rp_item_f64(rp_sum(a)) == (outputs ? 20 : 40)); /* a copy, or the same memory at every call */
        rp_tensor *wide = rp_ones(RP_DIMS(5));
        FAILS(RP_ERROR_GUARD, "was recorded", rp_call(f, &wide, 1, &b, 1));
        rp_compiled_release(f);
    }
}

/* ---------------------------------------------------------------- oneDNN: what follows a product or convolution is in its call */

typedef struct block {
    rp_tensor *w1, *w2, *scale, *shift, *mean, *var, *fc, *bias;
} block;

static rp_tensor *normed(const block *b, rp_tensor *x) {
    return rp_batch_norm(x, b->scale, b->shift, b->mean, b->var, false, 0.1, 1e-5, true);
}

/* A residual block, and a layer with an activation and a residual of its own. */
static void residual(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const block *b = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_relu(normed(b, rp_conv2d(in[0], b->w1, NULL, RP_DIMS(1, 1), RP_DIMS(1, 1))));
    out[0] = rp_relu(rp_add(normed(b, rp_conv2d(h, b->w2, NULL, RP_DIMS(1, 1), RP_DIMS(1, 1))), in[0], NULL));
    out[1] = rp_add(rp_gelu(rp_linear(in[1], b->fc, b->bias)), in[1], NULL);
}

/* With vectors of 512 bits oneDNN has kernels of its own for all that may follow; with fewer, by its version, references alone. */
static bool has_wide_vectors(void) {
#if defined __x86_64__
    return __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

static void products_take_what_follows_into_onednns_call(void **state) {
    (void)state;
    rp_backend_info info = {.struct_size = sizeof info};
    OK(rp_backend_info_get("ipex", &info));
    assert_true(info.available);
    if (!*info.version) skip(); /* it is fused kernels alone */
    block b = {.w1 = rp_mul_scalar(rp_randn(RP_DIMS(32, 32, 3, 3), NULL), rp_f64(0.05)),
               .w2 = rp_mul_scalar(rp_randn(RP_DIMS(32, 32, 3, 3), NULL), rp_f64(0.05)),
               .scale = rp_rand(RP_DIMS(32), NULL),
               .shift = rp_randn(RP_DIMS(32), NULL),
               .mean = rp_randn(RP_DIMS(32), NULL),
               .var = rp_add_scalar(rp_rand(RP_DIMS(32), NULL), rp_f64(0.5)),
               .fc = rp_mul_scalar(rp_randn(RP_DIMS(256, 256), NULL), rp_f64(0.05)),
               .bias = rp_randn(RP_DIMS(256), NULL)};
    rp_tensor *in[] = {rp_randn(RP_DIMS(2, 32, 24, 24), NULL), rp_randn(RP_DIMS(2, 130, 256), NULL)};
    const rp_fn fn = {residual, &b, sizeof b, "residual"};
    rp_compiled *f = compiled(fn, "ipex", true);
    for (int turn = 0; turn < 5; turn++) {
        rp_tensor *want[2], *got[2];
        if (turn == 3) { /* what was packed is so no more */
            (void)rp_mul_scalar_(b.w1, rp_f64(-1));
            (void)rp_mul_scalar_(b.fc, rp_f64(0.5));
        }
        residual(&b, in, 2, want, 2);
        OK(rp_call(f, in, 2, got, 2));
        for (int i = 0; i < 2; i++) {
            rp_tensor *apart = rp_abs(rp_sub(got[i], want[i], NULL));
            assert_true(rp_item_f64(rp_amax(apart)) < 2e-4);
        }
    }
    if (!has_wide_vectors() && explains(f, "skip", "engine-refused", "oneDNN has no primitives")) {
        rp_compiled_release(f); /* but slow ones: fused kernels have done it, and said so */
        skip();
    }
    assert_true(explains(f, "engine", "", "oneDNN"));
    assert_false(explains(f, "skip", "engine-refused", ""));
    assert_true(explains(f, "instance", "weight-written", ""));
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) { /* without oneDNN's threads */
        rp_tensor *got[2];
        const bool good = rp_call(f, in, 2, got, 2) == RP_OK && explains(f, "skip", "engine-failed", "forked");
        rp_compiled *fresh_one = compiled(fn, "ipex", true);
        _exit(good && rp_call(fresh_one, in, 2, got, 2) == RP_OK && rp_call(fresh_one, in, 2, got, 2) == RP_OK ? 0 : 1);
    }
    int status = 1;
    (void)waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    rp_compiled_release(f);
}

/* ---------------------------------------------------------------- TVM: an op takes its compiler seconds */

/* Two results, one of them turned, weights and an argument that begins between two vectors. */
static void two_ways(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const net *n = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *h = rp_gelu(rp_matmul(in[0], n->w));
    out[0] = rp_softmax(rp_add(h, n->b, NULL), 1);
    out[1] = rp_contiguous(rp_transpose(rp_layer_norm(h, RP_DIMS(8), NULL, NULL, 1e-5), 0, 1));
}

static void tvm_computes_and_keeps_its_modules(void **state) {
    (void)state;
    if (!is_here("tvm")) skip();
    net n = make_net(false);
    const rp_fn fn = {two_ways, &n, sizeof n, "two_ways"};
    rp_tensor *whole = rp_randn(RP_DIMS(5, 8), NULL), *part = rp_narrow(rp_flatten(whole, 0, -1), 0, 3, 32),
              *x[] = {rp_narrow(whole, 0, 0, 4), rp_reshape(part, RP_DIMS(4, 8))};
    for (int turn = 0; turn < 2; turn++) { /* the second takes the module from the cache */
        rp_compiled *f = compiled(fn, "tvm", true);
        for (int k = 0; k < 4; k++) {
            rp_tensor *y[2], *z[2];
            two_ways(&n, &x[k % 2], 1, z, 2);
            OK(rp_call(f, &x[k % 2], 1, y, 2));
            same_bits(y[0], z[0]);
            same_bits(y[1], z[1]);
        }
        rp_compiled_release(f);
    }
}

static void what_tvms_compiler_says_is_told(void **state) {
    (void)state;
    if (!is_here("tvm")) skip();
    net n = make_net(false);
    const rp_fn fn = {two_ways, &n, sizeof n, "two_ways"};
    rp_tensor *x = rp_randn(RP_DIMS(7, 8), NULL), *y[2]; /* a size that no cache has */
    const char *const absent[][2] = {{"python", "/nowhere/python3"}}, *const wrong[][2] = {{"target", "abacus"}},
                      *const number[][2] = {{"seconds", "soon"}};
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "tvm", .strict = true,
                                               .engine_options = absent, .n_engine_options = 1));
    FAILS(RP_ERROR_COMPILE, "/nowhere/python3 cannot be started", rp_call(f, &x, 1, y, 2));
    rp_compiled_release(f);
    f = rp_compile(fn,
                   RP_OPTIONS(rp_compile_options, .backend = "tvm", .engine_options = wrong, .n_engine_options = 1));
    for (int k = 0; k < 2; k++) OK(rp_call(f, &x, 1, y, 2));
    assert_true(explains(f, "skip", "engine-refused", "abacus"));
    rp_compiled_release(f);
    (void)rp_compile(fn,
                     RP_OPTIONS(rp_compile_options, .backend = "tvm", .engine_options = number, .n_engine_options = 1));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "seconds is a number");
}

/* ---------------------------------------------------------------- engines that are here: every op */

typedef struct call {
    const sample *sample;
} call;

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    (void)sample_call(((const call *)ctx)->sample, in, out);
}

/* The call as a file, for others to look at. */
static void leave_model(const sample *s, rp_fn fn, rp_tensor *const *in, size_t n_out) {
    const char *folder = getenv("DOORS_ONNX");
    char path[512];
    if (!folder || !*folder) return;
    (void)snprintf(path, sizeof path, "%s/%s_%u.onnx", folder, s->op->name, s->number);
    rp_ir *ir = rp_trace(fn, in, (size_t)s->n_in, n_out);
    if (!rp_failed()) (void)rp_onnx_save(path, ir, NULL);
    (void)rp_error_take(); /* what has no form is told when the engine is asked */
    rp_ir_release(ir);
}

/* A call compiled for the engine gives what eager gives: 1 yes, 0 it has no form (why), -1 it differs. */
static int through(const char *backend, const sample *s, rp_dtype dtype, char why[512]) {
    rp_tensor *in[SAMPLE_IN + 1], *want[SAMPLE_OUT], *got[SAMPLE_OUT];
    const size_t n = sample_outs(s);
    call c = {s};
    const rp_fn fn = {body, &c, sizeof c, s->op->name};
    sample_make(s, dtype, SAMPLE_N, 0, in);
    (void)rp_set_grad_enabled(false);
    int good = 1;
    if (rp_failed() || sample_call(s, in, want) != RP_OK) {
        (void)rp_error_take();
        (void)snprintf(why, 512, "not of this type");
        return 2;
    }
    if (strcmp(backend, "onnxrt") == 0) leave_model(s, fn, in, n);
    rp_compiled *f =
        rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backend, .strict = true, .fullgraph = true));
    for (int k = 0; k < 2 && good == 1; k++) {
        if (rp_call(f, in, (size_t)s->n_in, got, n) != RP_OK) {
            (void)snprintf(why, 512, "%.500s", rp_error_message());
            (void)rp_error_take();
            good = 0;
        }
    }
    for (size_t k = 0; k < n && good == 1; k++) {
        if (!want[k] || !got[k]) continue;
        const size_t count = (size_t)rp_numel(want[k]);
        if (rp_numel(got[k]) != rp_numel(want[k]) || rp_dtype_of(got[k]) != rp_dtype_of(want[k])) {
            (void)snprintf(why, 512, "result %zu has another type or size", k);
            good = -1;
            break;
        }
        const rp_dtype of = rp_dtype_of(want[k]);
        double *x = calloc(count + 1, sizeof *x), *y = calloc(count + 1, sizeof *y), most = 1;
        OK(rp_to_host(rp_to_dtype(got[k], RP_F64, NULL), x, count * sizeof *x));
        OK(rp_to_host(rp_to_dtype(want[k], RP_F64, NULL), y, count * sizeof *y));
        const double unit = of == RP_BF16 ? 2e-2 : of == RP_F16 ? 3e-3 : of == RP_F32 ? 2e-5 : of == RP_F64 ? 1e-10 : 0;
        for (size_t i = 0; i < count; i++) most = isfinite(y[i]) ? fmax(most, fabs(y[i])) : most;
        for (size_t i = 0; i < count && good == 1; i++) {
            if (x[i] == y[i] || (isnan(x[i]) && isnan(y[i])) || fabs(x[i] - y[i]) <= unit * most) continue;
            (void)snprintf(why, 512, "result %zu, element %zu is %.9g instead of %.9g", k, i, x[i], y[i]);
            good = -1;
        }
        free(x);
        free(y);
    }
    rp_compiled_release(f);
    return good;
}

static void every_op(const char *backend) {
    rp_backend_info info = {.struct_size = sizeof info};
    const char *only = getenv("DOORS_OP"), *types = getenv("DOORS_TYPES");
    OK(rp_backend_info_get(backend, &info));
    if (!info.available) {
        print_message("%s is not here: %s\n", backend, info.why);
        skip();
    }
    int with = 0, without = 0, wrong = 0, all = 0;
    for (size_t k = 0; k < sample_count(); k++) {
        const sample *s = sample_at(k);
        const bool inplace = s->op->flags & RP_OP_INPLACE;
        if (sample_is_random(s) || inplace || s->row->flags & SAMPLE_UNWRITTEN) continue;
        if (only && *only ? strcmp(only, s->op->name) != 0 : !s->whole_road) continue;
        if (s->op->flags & (RP_OP_SYNC | RP__OP_DATA_SIZE)) continue;
        static const rp_dtype swept[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_BOOL};
        for (unsigned t = 0; t < (types ? 8u : 1u); t++) {
            char why[512] = "";
            const rp_scope scope = rp_scope_begin();
            const int good = through(backend, s, swept[t], why);
            rp_scope_end(scope, NULL, 0);
            all++;
            if (good == 1) with++;
            if (good == 0) {
                without++;
                print_message("%s has no %s (%s, %s): %s\n", backend, s->op->name, s->text, rp_dtype_name(swept[t]),
                              why);
            }
            if (good == -1) {
                wrong++;
                print_message("%s: %s(%s) of %s: %s\n", backend, s->op->name, s->text, rp_dtype_name(swept[t]), why);
            }
        }
    }
    print_message("%s %s: %d calls, %d as eager, %d without a form, %d differ\n", backend, info.version, all, with,
                  without, wrong);
    assert_int_equal(wrong, 0);
    assert_true(with > 0 || only);
}

static void onnxrt_computes_every_op(void **state) {
    (void)state;
    every_op("onnxrt");
}

/* A GPU's XLA would round the operands of products, if it were not told. */
static void xla_is_told_the_precision(void **state) {
    (void)state;
    static const char *const wanted[] = {
        "precision = [HIGHEST, HIGHEST]",
        "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"};
    static const char graph[] = "graph \"g\" (%0: f32[2, 3, 4, 4]) {\n  return %0\n}\n";
    for (int tf32 = 0; tf32 < 2; tf32++) {
        rp_ir *ir = rp_ir_parse(graph, strlen(graph));
        assert_non_null(ir);
        rp__hlo h;
        rp__text text;
        rp__hlo_begin(&h, ir);
        h.tf32 = tf32;
        const rp_dim four[] = {2, 3, 4, 4}, weight[] = {5, 3, 1, 1}, out[] = {2, 5, 4, 4};
        const rp__put_type x = rp__put_type_from(RP_F32, four, 4), w = rp__put_type_from(RP_F32, weight, 4),
                           y = rp__put_type_from(RP_F32, out, 4);
        const rp__put_conv g = {.spatial = 2, .groups = 1, .stride = {1, 1}, .dilation = {1, 1}};
        const rp__put_val a = rp__hlo_arg(&h, &x, -1), b = rp__hlo_arg(&h, &w, -1),
                          results[] = {rp__put_new(&h.emitter, &x), rp__put_new(&h.emitter, &y)};
        rp__hlo_ops.matmul(&h.emitter, results[0], a, a);
        rp__hlo_ops.conv(&h.emitter, results[1], a, b, &g);
        assert_true(rp__hlo_module(&h, results, 2, &text));
        for (int k = 0; k < 2; k++) assert_int_equal(strstr(text.data, wanted[k]) != NULL, !tf32);
        rp__text_free(&text);
        rp__hlo_end(&h);
        rp_ir_release(ir);
    }
    net n = make_net(false);
    static const char *const wrong[][2] = {{"tf32", "yes"}};
    (void)rp_compile((rp_fn){two_ways, &n, sizeof n, "two_ways"},
                     RP_OPTIONS(rp_compile_options, .backend = "xla", .engine_options = wrong, .n_engine_options = 1));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "tf32 is 0 or 1, not \"yes\"");
}

/* Every product and convolution that a graph becomes says how exact it is, those of its gradients, too. */
static void products_of_each_kind(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *h = rp_conv2d(in[0], in[1], NULL, RP_DIMS(1, 1), RP_DIMS(1, 1));
    h = rp_conv_transpose2d(h, in[2], NULL, RP_DIMS(2, 2), RP_DIMS(0, 0), RP_DIMS(0, 0), 1, RP_DIMS(1, 1));
    h = rp_flatten(h, 2, -1);
    rp_tensor *loss = rp_sum(rp_matmul(rp_scaled_dot_product_attention(h, h, h, NULL, 0, false, NULL), in[3]));
    (void)rp_grad(&loss, 1, in, 4, NULL, NULL, out);
}

static void xla_is_told_the_precision_of_gradients(void **state) {
    (void)state;
    rp_tensor *in[] = {rp_randn(RP_DIMS(2, 3, 4, 4), NULL), rp_randn(RP_DIMS(5, 3, 3, 3), NULL),
                       rp_randn(RP_DIMS(5, 2, 2, 2), NULL), rp_randn(RP_DIMS(64, 7), NULL)};
    for (int k = 0; k < 4; k++) OK(rp_set_requires_grad(in[k], true));
    rp_ir *ir = rp_trace((rp_fn){products_of_each_kind, NULL, 0, "products"}, in, 4, 4);
    FINE();
    for (int tf32 = 0; tf32 < 2; tf32++) {
        rp__hlo h;
        rp__text text;
        uint32_t bad;
        rp__put_val *map = rp__lower_map(ir), results[4];
        rp__hlo_begin(&h, ir);
        h.tf32 = tf32;
        for (uint32_t k = 0; k < 4; k++) {
            const rp__meta *m = &ir->values[ir->body.args[k]].meta;
            const rp__put_type t = rp__put_type_from(m->dtype, m->size, m->ndim);
            map[ir->body.args[k]] = rp__hlo_arg(&h, &t, -1);
        }
        if (!rp__lower_nodes(&h.emitter, ir, ir->body.nodes, ir->body.n_nodes, map, &bad))
            fail_msg("%s", h.emitter.why);
        for (uint32_t k = 0; k < 4; k++) results[k] = rp__lower_current(&h.emitter, ir, map, ir->body.results[k]);
        assert_true(rp__hlo_module(&h, results, 4, &text));
        int products = 0, convolutions = 0, exact = 0;
        for (const char *line = text.data; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
            const char *end = strchr(line, '\n');
            char one[1024];
            (void)snprintf(one, sizeof one, "%.*s", end ? (int)(end - line) : 1023, line);
            const bool dot = strstr(one, "stablehlo.dot_general"), conv = strstr(one, "stablehlo.convolution");
            products += dot;
            convolutions += conv;
            exact += (dot || conv) && strstr(one, "HIGHEST");
        }
        assert_true(products >= 6 && convolutions >= 6);
        assert_int_equal(exact, tf32 ? 0 : products + convolutions);
        rp__text_free(&text);
        rp__hlo_end(&h);
        rp__free(map);
    }
    rp_ir_release(ir);
}

static void xla_computes_every_op(void **state) {
    (void)state;
    every_op("xla");
}

int main(void) {
    const char *filter = getenv("REPRISE_TEST_FILTER"), *skipped = getenv("REPRISE_TEST_SKIP");
    if (filter && *filter) cmocka_set_test_filter(filter);
    if (skipped && *skipped) cmocka_set_skip_filter(skipped);
    if (rp__engine_register(&fake_engine) != RP_OK || rp__engine_register(&writer_engine) != RP_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_the_engine_lacks_runs_beside_it, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_graph_that_it_takes_is_one_part, fresh, take_error),
        cmocka_unit_test_setup_teardown(parameters_are_weights_of_inference, fresh, take_error),
        cmocka_unit_test_setup_teardown(strict_makes_it_an_error, fresh, take_error),
        cmocka_unit_test_setup_teardown(gradients_come_through_parts, fresh, take_error),
        cmocka_unit_test_setup_teardown(an_engine_that_is_absent_leaves_fused_kernels, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_refusal_leaves_fused_kernels, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_failure_in_the_middle_is_made_good, fresh, take_error),
        cmocka_unit_test_setup_teardown(an_engine_without_memory_leaves_fused_kernels, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_weight_that_is_written_becomes_an_input, fresh, take_error),
        cmocka_unit_test_setup_teardown(an_argument_with_gaps_is_copied_for_the_engine, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_run_that_cannot_be_now_is_made_by_others, fresh, take_error),
        cmocka_unit_test_setup_teardown(what_was_written_is_not_written_again, fresh, take_error),
        cmocka_unit_test_setup_teardown(options_are_looked_at, fresh, take_error),
        cmocka_unit_test_setup_teardown(backends_say_what_is_here, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_recorded_function_copies_what_is_asked, fresh, take_error),
        cmocka_unit_test_setup_teardown(libraries_that_are_no_engine_are_refused, fresh, take_error),
        cmocka_unit_test_setup_teardown(engines_that_are_too_old_say_so, fresh, take_error),
        cmocka_unit_test_setup_teardown(engines_that_are_too_new_say_so, fresh, take_error),
        cmocka_unit_test_setup_teardown(engines_that_are_loaded_by_half_say_so, fresh, take_error),
        cmocka_unit_test_setup_teardown(onnxrt_is_told_its_provider, fresh, take_error),
        cmocka_unit_test_setup_teardown(tables_that_are_laid_out_otherwise_are_refused, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_plug_in_of_cuda_shares_its_memory, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_child_of_fork_goes_on_in_fused_kernels, fresh, take_error),
        cmocka_unit_test_setup_teardown(updates_in_place_keep_their_order, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_whole_training_step_is_one_part_of_xla, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_library_that_others_close_stays, fresh, take_error),
        cmocka_unit_test_setup_teardown(two_engines_live_side_by_side, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_provider_that_is_not_in_the_library_is_named, fresh, take_error),
        cmocka_unit_test_setup_teardown(attention_is_the_engines_forward_and_backward, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_model_gives_views_of_arguments_as_they_were_written, fresh, take_error),
        cmocka_unit_test_setup_teardown(a_model_says_what_has_no_elements_as_a_constant, fresh, take_error),
        cmocka_unit_test_setup_teardown(branches_and_loops_are_the_engines, fresh, take_error),
        cmocka_unit_test_setup_teardown(an_engine_without_regions_runs_around_them, fresh, take_error),
        cmocka_unit_test_setup_teardown(functions_that_a_language_lacks_are_whole, fresh, take_error),
        cmocka_unit_test_setup_teardown(products_take_what_follows_into_onednns_call, fresh, take_error),
        cmocka_unit_test_setup_teardown(tvm_computes_and_keeps_its_modules, fresh, take_error),
        cmocka_unit_test_setup_teardown(what_tvms_compiler_says_is_told, fresh, take_error),
        cmocka_unit_test_setup_teardown(onnxrt_computes_every_op, fresh, take_error),
        cmocka_unit_test_setup_teardown(xla_is_told_the_precision, fresh, take_error),
        cmocka_unit_test_setup_teardown(xla_is_told_the_precision_of_gradients, fresh, take_error),
        cmocka_unit_test_setup_teardown(xla_computes_every_op, fresh, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
