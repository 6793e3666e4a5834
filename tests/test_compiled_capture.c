/* Compiled functions that are called while a raw graph is captured: what a replay computes and draws is what the function,
   run eagerly in the replay's place, does, and calls outside go on between replays. On the CPU, then on CUDA (the emulator,
   or a GPU with REPRISE_TEST_CUDA=real). */
/* ctest: labels=compile timeout=300 cost=8 */
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
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

static const char *const backends[] = {"aot_eager", "cudagraphs", "fused"};
enum { BACKENDS = 3, WARM = 3 }; /* WARM: the captured call is the first, the second, a later one */

static rp_compiled *compiled(rp_body *body, void *ctx, size_t ctx_bytes, int backend) {
    rp_compiled *f = rp_compile((rp_fn){body, ctx, ctx_bytes, "f"},
                                RP_OPTIONS(rp_compile_options, .backend = backends[backend], .fullgraph = true));
    if (rp_failed()) fail_msg("%s", rp_error_message());
    return f;
}

static rp_tensor *input(void) { return rp_add_scalar(rp_rand(RP_DIMS(6, 7)), rp_f64(0.5)); }
static rp_tensor *leaf(rp_tensor *values) {
    rp_tensor *x = rp_detach(values);
    OK(rp_set_requires_grad(x, true));
    return x;
}
static rp_tensor *total(rp_tensor *t) { return rp_sum(t); }
static rp_tensor *next_draw(void) { return rp_rand(RP_DIMS(5)); }

/* ---- draws */

BODY(draws) { /* ctx: another generator */
    UNUSED;
    rp_tensor *h = rp_sin(rp_dropout(in[0], 0.5, true));
    h = rp_add(h, rp_rand(RP_DIMS(6, 7), RP_OPTIONS(rp_rand_options, .generator = *(rp_generator **)ctx)));
    out[0] = rp_mul(h, rp_dropout(h, 0.25, true));
    out[1] = rp_multinomial(rp_exp(in[0]), 3, true);
}

static void seed(rp_generator *other, uint64_t to) {
    OK(rp_manual_seed(to));
    OK(rp_generator_seed(other, to + 100));
}

static void a_replay_draws_anew(void **state) {
    (void)state;
    for (int at = 0; at < BACKENDS * WARM; at++) {
        rp_generator *other = rp_generator_new(device, 5);
        rp_compiled *f = compiled(draws, &other, sizeof other, at / WARM);
        rp_tensor *x = input(), *want[4][2], *next, *out[2], *between[2];
        for (int k = 0; k < at % WARM; k++) OK(rp_call(f, &x, 1, out, 2));
        seed(other, 3);
        for (int k = 0; k < 4; k++) draws(&other, &x, 1, want[k], 2);
        next = next_draw();
        rp_graph *g = rp_graph_new();
        seed(other, 3);
        OK(rp_graph_begin(g, device, NULL));
        OK(rp_call(f, &x, 1, out, 2));
        OK(rp_graph_end(g));
        /* the capture has drawn nothing; replays and calls outside take turns */
        for (int k = 0; k < 4; k++) {
            if (k == 2) {
                OK(rp_call(f, &x, 1, between, 2));
                same(between[0], want[k][0]);
                same(between[1], want[k][1]);
                continue;
            }
            OK(rp_graph_replay(g));
            same(out[0], want[k][0]);
            same(out[1], want[k][1]);
        }
        same(next_draw(), next);
        seed(other, 3);
        OK(rp_graph_replay(g));
        same(out[0], want[0][0]);
        same(between[0], want[2][0]); /* of a call outside: no replay writes there */
        rp_graph_release(g);
        rp_compiled_release(f);
        rp_generator_release(other);
    }
}

static void two_calls_in_one_capture(void **state) {
    (void)state;
    for (int backend = 0; backend < BACKENDS; backend++) {
        rp_generator *other = rp_generator_new(device, 5);
        rp_compiled *f = compiled(draws, &other, sizeof other, backend);
        rp_tensor *x = input(), *want[3][2], *eager, *want_eager, *out[3][2];
        for (int k = 0; k < 2; k++) OK(rp_call(f, &x, 1, out[0], 2));
        seed(other, 9);
        draws(&other, &x, 1, want[0], 2);
        want_eager = next_draw();
        for (int k = 1; k < 3; k++) draws(&other, k == 1 ? &want[0][0] : &x, 1, want[k], 2);
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        OK(rp_call(f, &x, 1, out[0], 2));
        eager = next_draw();
        OK(rp_call(f, &out[0][0], 1, out[1], 2));
        OK(rp_call(f, &x, 1, out[2], 2));
        OK(rp_graph_end(g));
        for (int round = 0; round < 2; round++) {
            seed(other, 9);
            OK(rp_graph_replay(g));
            for (int k = 0; k < 3; k++) {
                same(out[k][0], want[k][0]);
                same(out[k][1], want[k][1]);
            }
            same(eager, want_eager);
        }
        rp_graph_release(g);
        rp_compiled_release(f);
        rp_generator_release(other);
    }
}

/* ---- memory */

BODY(many) { /* temporaries, a product, a write to an argument */
    UNUSED;
    rp_tensor *w = *(rp_tensor **)ctx;
    rp_tensor *h = rp_relu(rp_linear(in[0], w, NULL)); /* (6, 6) */
    rp_tensor *p = rp_softmax(rp_matmul(rp_exp(h), in[0]), -1);
    rp_add_(in[1], rp_sum(p, RP_DIMS(0)));
    out[0] = rp_mul(p, rp_sin(in[0]));
    out[1] = rp_transpose(h, 0, 1);
}

static void a_graph_shares_nothing_with_calls(void **state) {
    (void)state;
    for (int at = 0; at < BACKENDS * WARM; at++) {
        rp_tensor *w = rp_rand(RP_DIMS(6, 7));
        rp_compiled *f = compiled(many, &w, sizeof w, at / WARM);
        rp_tensor *x = input(), *sums = rp_zeros(RP_DIMS(7)), *y = input(), *other = rp_zeros(RP_DIMS(7));
        rp_tensor *want[2], *want_sums = rp_zeros(RP_DIMS(7)), *out[2], *outside[2];
        rp_tensor *const args[] = {x, sums}, *const others[] = {y, other}, *const wanted[] = {x, want_sums};
        for (int k = 0; k < at % WARM; k++) OK(rp_call(f, others, 2, outside, 2));
        for (int k = 0; k < 3; k++) many(&w, wanted, 2, want, 2);
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        OK(rp_call(f, args, 2, out, 2));
        OK(rp_graph_end(g));
        rp_tensor *is_first = rp_clone(sums);
        for (int k = 0; k < 3; k++) {
            rp_scope scope = rp_scope_begin();
            OK(rp_graph_replay(g));
            rp_tensor *held = rp_clone(out[0]);
            for (int i = 0; i < 5; i++) { /* results come and go, arguments move */
                rp_tensor *moved[] = {rp_clone(i % 2 ? y : x), other};
                OK(rp_call(f, moved, 2, outside, 2));
            }
            same(out[0], held);
            OK(rp_scope_end(scope, NULL, 0));
        }
        same(is_first, rp_zeros(RP_DIMS(7)));
        same(out[0], want[0]);
        same(out[1], rp_clone(want[1]));
        same(sums, want_sums);
        /* the graph needs the function no more */
        rp_compiled_release(f);
        rp_tensor *filler[8];
        for (int k = 0; k < 8; k++) filler[k] = rp_full(RP_DIMS(6, 7), rp_f64(k));
        OK(rp_graph_replay(g));
        many(&w, wanted, 2, want, 2);
        same(out[0], want[0]);
        same(sums, want_sums);
        same(filler[3], rp_full(RP_DIMS(6, 7), rp_f64(3)));
        rp_graph_release(g);
    }
}

BODY(with_constant) {
    UNUSED;
    static const float table[7] = {1, 2, 3, 4, 5, 6, 7};
    out[0] = rp_mul(in[0], rp_from_data(table, RP_DIMS(7), RP_F32));
}

static void constants_of_a_released_function_live(void **state) {
    (void)state;
    for (int backend = 1; backend < BACKENDS;
         backend++) { /* the first makes them as the function does: from the host */
        rp_compiled *f = compiled(with_constant, NULL, 0, backend);
        rp_tensor *x = input(), *out, *want;
        for (int k = 0; k < 2; k++) OK(rp_call(f, &x, 1, &out, 1));
        with_constant(NULL, &x, 1, &want, 1);
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .check_input_liveness = true)));
        OK(rp_call(f, &x, 1, &out, 1));
        OK(rp_graph_end(g));
        rp_compiled_release(f);
        OK(rp_graph_replay(g));
        same(out, want);
        rp_graph_release(g);
    }
}

static void arguments_at_odd_addresses(void **state) { /* kernels are compiled for 16 bytes: the graph copies */
    (void)state;
    for (int backend = 1; backend < BACKENDS; backend++) {
        rp_tensor *w = rp_rand(RP_DIMS(6, 7));
        rp_compiled *f = compiled(many, &w, sizeof w, backend);
        rp_tensor *all = rp_rand(RP_DIMS(43)), *sums = rp_zeros(RP_DIMS(8)), *out[2], *want[2];
        rp_tensor *x = input(), *aligned = rp_zeros(RP_DIMS(7)), *const args[] = {x, aligned};
        for (int k = 0; k < 3; k++) OK(rp_call(f, args, 2, out, 2));
        rp_tensor *odd[] = {rp_view(rp_slice(all, 0, 1, 43, 1), RP_DIMS(6, 7)), rp_slice(sums, 0, 1, 8, 1)};
        rp_tensor *like[] = {rp_clone(odd[0]), rp_clone(odd[1])};
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        OK(rp_call(f, odd, 2, out, 2));
        OK(rp_graph_end(g));
        for (int k = 0; k < 2; k++) {
            OK(rp_fill_(rp_slice(all, 0, 1, 20, 1), rp_f64(k)) ? RP_OK : rp_error_status());
            (void)rp_copy_(like[0], odd[0]);
            many(&w, like, 2, want, 2);
            OK(rp_graph_replay(g));
            same(out[0], want[0]);
            same(rp_clone(odd[1]), like[1]);
        }
        same(rp_clone(rp_slice(sums, 0, 0, 1, 1)), rp_zeros(RP_DIMS(1))); /* beside what is written */
        rp_graph_release(g);
        rp_compiled_release(f);
    }
}

/* ---- training */

typedef struct net {
    rp_generator *other;
    int checkpoint; /* 0: none; 1: around the middle; 2: the result is the checkpoint's; 3: nested */
} net;

BODY(middle) {
    UNUSED;
    rp_tensor *h = rp_sin(rp_dropout(in[0], 0.5, true));
    out[0] = rp_exp(rp_mul(h, rp_dropout(h, 0.25, true)));
}
BODY(outer_middle) {
    UNUSED;
    rp_tensor *h = rp_dropout(in[0], 0.5, true), *deep;
    if (rp_checkpoint(((rp_fn){middle, ctx, 0, "middle"}), &h, 1, &deep, 1) != RP_OK) return;
    out[0] = rp_exp(rp_dropout(deep, 0.5, true));
}
BODY(plain_outer_middle) {
    UNUSED;
    rp_tensor *h = rp_dropout(in[0], 0.5, true), *deep;
    middle(ctx, &h, 1, &deep, 1);
    out[0] = rp_exp(rp_dropout(deep, 0.5, true));
}

/* Two results; the second hangs on a mask alone. */
BODY(training) {
    UNUSED;
    const net *n = ctx;
    rp_tensor *before =
                  rp_mul(in[0], rp_dropout(in[0], 0.5, true, RP_OPTIONS(rp_dropout_options, .generator = n->other))),
              *h;
    if (n->checkpoint == 3)
        rp_checkpoint(((rp_fn){outer_middle, ctx, 0, "outer"}), &before, 1, &h, 1);
    else if (n->checkpoint)
        rp_checkpoint(((rp_fn){middle, ctx, 0, "middle"}), &before, 1, &h, 1);
    else
        middle(ctx, &before, 1, &h, 1);
    out[0] = n->checkpoint == 2 ? h : rp_mul(h, rp_dropout(h, 0.5, true));
    out[1] = rp_mul(before, before);
}
BODY(plain_training) { /* what it is without checkpoints */
    const net *n = ctx;
    net plain = *n;
    plain.checkpoint = 0;
    if (n->checkpoint != 3) {
        rp_tensor *before = rp_mul(in[0],
                                   rp_dropout(in[0], 0.5, true, RP_OPTIONS(rp_dropout_options, .generator = n->other))),
                  *h;
        UNUSED;
        middle(ctx, &before, 1, &h, 1);
        out[0] = n->checkpoint == 2 ? h : rp_mul(h, rp_dropout(h, 0.5, true));
        out[1] = rp_mul(before, before);
        return;
    }
    rp_tensor *before =
                  rp_mul(in[0], rp_dropout(in[0], 0.5, true, RP_OPTIONS(rp_dropout_options, .generator = n->other))),
              *h;
    plain_outer_middle(&plain, &before, 1, &h, 1);
    out[0] = rp_mul(h, rp_dropout(h, 0.5, true));
    out[1] = rp_mul(before, before);
}

typedef struct step {
    rp_tensor *out[2], *grad, *next;
} step;
static void step_same(const net *n, int what, step a, step b) {
    same(a.out[0], b.out[0]);
    same(a.out[1], b.out[1]);
    same(a.next, b.next);
    if (what == 2 && n->checkpoint) /* second derivatives may add up in another order */
        near(a.grad, b.grad);
    else
        same(a.grad, b.grad);
}
/* what: 0 both results, 1 the first alone (the call is run again), 2 the gradient's gradient */
static void gradient(step *r, rp_tensor *x, int what, bool retain) {
    rp_tensor *loss = what == 1 ? total(r->out[0]) : rp_add(total(r->out[0]), total(r->out[1]));
    if (what < 2) {
        OK(rp_grad(&loss, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = retain), &r->grad));
        return;
    }
    rp_tensor *first;
    OK(rp_grad(&loss, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .create_graph = true), &first));
    loss = total(rp_mul(first, first));
    OK(rp_grad(&loss, 1, &x, 1, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = retain), &r->grad));
}
static step eager_step(net *n, rp_tensor *values, uint64_t s, int what) {
    step r;
    rp_tensor *x = leaf(values);
    seed(n->other, s);
    plain_training(n, &x, 1, r.out, 2);
    gradient(&r, x, what, false);
    r.next = next_draw();
    return r;
}

enum { SEEDS = 2 };

static void train_whole(net *n, int backend, int warm, int what, rp_tensor *values, const step *want) {
    rp_compiled *f = compiled(training, n, sizeof *n, backend);
    rp_tensor *x = leaf(values);
    step r;
    for (int k = 0; k < warm; k++) {
        OK(rp_call(f, &x, 1, r.out, 2));
        gradient(&r, x, what, false);
    }
    rp_tensor *y = leaf(values);
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, device, NULL));
    OK(rp_call(f, &y, 1, r.out, 2));
    gradient(&r, y, what, false);
    OK(rp_graph_end(g));
    for (uint64_t k = 0; k < SEEDS; k++) {
        seed(n->other, k);
        OK(rp_graph_replay(g));
        r.next = next_draw();
        step_same(n, what, r, want[k]);
        step outside;
        rp_tensor *z = leaf(values);
        seed(n->other, k);
        OK(rp_call(f, &z, 1, outside.out, 2));
        gradient(&outside, z, what, false);
        outside.next = next_draw();
        step_same(n, what, outside, want[k]);
        step_same(n, what, r, want[k]); /* of the replay: the call outside has written elsewhere */
    }
    rp_graph_release(g);
    rp_compiled_release(f);
}

/* The forward in one capture or in none, the backward in another or in none. */
static void train_parts(net *n, int backend, int what, rp_tensor *values, const step *want, bool forward,
                        bool backward) {
    rp_stream *before = rp_current_stream(device), *s = rp_stream_new(device);
    OK(rp_synchronize(device));
    OK(rp_set_current_stream(s));
    rp_compiled *f = compiled(training, n, sizeof *n, backend);
    rp_tensor *x = leaf(values);
    step r;
    for (int k = 0; k < 2; k++) {
        OK(rp_call(f, &x, 1, r.out, 2));
        gradient(&r, x, what, false);
    }
    rp_tensor *y = leaf(values);
    rp_graph *a = rp_graph_new(), *b = rp_graph_new();
    seed(n->other, 0);
    if (forward) OK(rp_graph_begin(a, device, RP_OPTIONS(rp_graph_options, .stream = s)));
    OK(rp_call(f, &y, 1, r.out, 2));
    if (forward) OK(rp_graph_end(a));
    rp_pool *pool = forward ? rp_graph_pool(a) : NULL;
    if (backward) {
        OK(rp_graph_begin(b, device, RP_OPTIONS(rp_graph_options, .stream = s, .pool = pool)));
        gradient(&r, y, what, true);
        OK(rp_graph_end(b));
    }
    for (uint64_t k = 0; k < (forward ? SEEDS : 1); k++) {
        if (forward) {
            seed(n->other, k);
            OK(rp_graph_replay(a));
            r.next = next_draw();
        } else {
            r.next = next_draw();
        }
        if (backward)
            OK(rp_graph_replay(b));
        else
            gradient(&r, y, what, true);
        step_same(n, what, r, want[k]);
    }
    rp_graph_release(a);
    rp_graph_release(b);
    rp_compiled_release(f);
    OK(rp_synchronize(device));
    OK(rp_set_current_stream(before));
    rp_stream_release(s);
}

static void training_in_captures(int checkpoint) {
    for (int what = 0; what < 3; what++) {
        net n;
        memset(&n, 0, sizeof n); /* its bytes are guarded */
        n.other = checkpoint ? NULL : rp_generator_new(device, 5);
        n.checkpoint = checkpoint;
        rp_generator *own = n.other;
        if (!own) n.other = rp_default_generator(device);
        rp_tensor *x = input();
        step want[SEEDS];
        for (uint64_t k = 0; k < SEEDS; k++) want[k] = eager_step(&n, x, k, what);
        for (int backend = 0; backend < BACKENDS; backend++) {
            for (int warm = 0; warm < WARM; warm++) train_whole(&n, backend, warm, what, x, want);
            train_parts(&n, backend, what, x, want, true, true);
            train_parts(&n, backend, what, x, want, false, true);
            train_parts(&n, backend, what, x, want, true, false);
        }
        rp_generator_release(own);
    }
}
static void training_with_dropout(void **state) {
    (void)state;
    training_in_captures(0);
}
static void training_with_a_checkpoint(void **state) { /* R8 */
    (void)state;
    training_in_captures(1);
}
static void a_result_that_is_a_checkpoints(void **state) {
    (void)state;
    training_in_captures(2);
}
static void training_with_nested_checkpoints(void **state) {
    (void)state;
    training_in_captures(3);
}

BODY(gradient_inside) {
    rp_tensor *results[2];
    training(ctx, in, n_in, results, n_out);
    rp_tensor *loss = rp_add(total(results[0]), total(results[1]));
    if (rp_grad(&loss, 1, in, 1, NULL, NULL, &out[0]) != RP_OK) return;
    out[1] = rp_rand(RP_DIMS(3));
}

static void a_backward_inside_the_function(void **state) { /* the recomputation is nodes of its own, which draw again */
    (void)state;
    for (int at = 0; at < BACKENDS * WARM; at++) {
        net n;
        memset(&n, 0, sizeof n);
        n.other = rp_default_generator(device);
        n.checkpoint = 1;
        rp_compiled *f = compiled(gradient_inside, &n, sizeof n, at / WARM);
        rp_tensor *values = input(), *x = leaf(values), *out[2], *want[2];
        for (int k = 0; k < at % WARM; k++) OK(rp_call(f, &x, 1, out, 2));
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, device, NULL));
        OK(rp_call(f, &x, 1, out, 2));
        OK(rp_graph_end(g));
        for (uint64_t k = 0; k < SEEDS; k++) {
            rp_tensor *y = leaf(values);
            OK(rp_manual_seed(k));
            gradient_inside(&n, &y, 1, want, 2);
            OK(rp_manual_seed(k));
            OK(rp_graph_replay(g));
            same(out[0], want[0]);
            same(out[1], want[1]);
        }
        rp_graph_release(g);
        rp_compiled_release(f);
    }
}

/* ---- node by node */

BODY(
    on_two_devices) { /* a CPU number and a tensor of the device: on CUDA no program, but a backward that draws the mask again */
    UNUSED;
    rp_tensor *gone = rp_dropout(in[0], 0.5, true), *h = rp_sin(rp_dropout(in[0], 0.5, true));
    (void)gone;
    out[0] = rp_mul(rp_mul(h, rp_dropout(h, 0.25, true)), in[1]);
}

static void masks_of_a_graph_that_is_no_program(void **state) {
    (void)state;
    static const float three = 3;
    OK(rp_set_default_device(rp_cpu()));
    rp_tensor *number = rp_from_data(&three, RP_NO_DIMS, RP_F32);
    OK(rp_set_default_device(device));
    rp_tensor *values = input();
    for (int backend = 0; backend < BACKENDS; backend++) {
        rp_compiled *f = compiled(on_two_devices, NULL, 0, backend);
        for (uint64_t call = 0; call < 5; call++) {
            rp_tensor *grad[2], *out[2], *next[2];
            for (int k = 0; k < 2; k++) {
                rp_tensor *x[] = {leaf(values), number};
                OK(rp_manual_seed(call));
                if (k)
                    OK(rp_call(f, x, 2, &out[k], 1));
                else
                    on_two_devices(NULL, x, 2, &out[k], 1);
                rp_tensor *loss = total(rp_mul(out[k], out[k]));
                OK(rp_grad(&loss, 1, x, 1, NULL, NULL, &grad[k]));
                next[k] = next_draw();
            }
            same(out[1], out[0]);
            same(grad[1], grad[0]);
            same(next[1], next[0]);
        }
        rp_compiled_release(f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_replay_draws_anew, begin, end),
        cmocka_unit_test_setup_teardown(two_calls_in_one_capture, begin, end),
        cmocka_unit_test_setup_teardown(a_graph_shares_nothing_with_calls, begin, end),
        cmocka_unit_test_setup_teardown(constants_of_a_released_function_live, begin, end),
        cmocka_unit_test_setup_teardown(arguments_at_odd_addresses, begin, end),
        cmocka_unit_test_setup_teardown(training_with_dropout, begin, end),
        cmocka_unit_test_setup_teardown(training_with_a_checkpoint, begin, end),
        cmocka_unit_test_setup_teardown(a_result_that_is_a_checkpoints, begin, end),
        cmocka_unit_test_setup_teardown(training_with_nested_checkpoints, begin, end),
        cmocka_unit_test_setup_teardown(a_backward_inside_the_function, begin, end),
        cmocka_unit_test_setup_teardown(masks_of_a_graph_that_is_no_program, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}
