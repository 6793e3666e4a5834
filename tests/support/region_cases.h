/* Functions with branches and loops, and the check that a compiled one replays what eager execution gives, bit for bit,
   whatever the predicates are from call to call. For the tests of regions on the CPU and on CUDA; the default device is where
   they run. */
#ifndef RP_TESTS_REGION_CASES_H
#define RP_TESTS_REGION_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#define RC_BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define RC_UNUSED (void)ctx, (void)n_in, (void)n_out
#define RC_FN(body, name) ((rp_fn){body, ctx, 0, name})

struct rc_weights {
    rp_tensor *w; /* (4, 4) */
};

static inline rp_tensor *rc_positive(rp_tensor *x) { /* is the sum above zero? */
    return rp_gt_scalar(rp_sum(x), rp_f64(0));
}

/* a branch with kernels to fuse, a product, an operand from outside and a result that is its argument */
RC_BODY(rc_then) {
    RC_UNUSED;
    const struct rc_weights *m = ctx;
    out[0] = rp_softmax(rp_mul_scalar(rp_sin(rp_matmul(in[0], m->w)), rp_f64(2)), -1);
    out[1] = in[0];
}
RC_BODY(rc_else) {
    RC_UNUSED;
    out[0] = rp_neg(rp_exp(in[0]));
    out[1] = rp_add_scalar(in[0], rp_i64(3));
}
RC_BODY(rc_cond) {
    RC_UNUSED;
    rp_tensor *r[2], *x = rp_mul_scalar(in[0], rp_f64(0.5));
    rp_cond(rc_positive(x), RC_FN(rc_then, "then"), RC_FN(rc_else, "else"), &x, 1, r, 2);
    out[0] = rp_add(r[0], rp_tanh(r[1]));
    out[1] = r[1];
}

/* a loop whose states swap places, with a bound, an invariant that is a strided view and one from outside */
RC_BODY(rc_go) {
    RC_UNUSED;
    out[0] = rp_lt_scalar(rp_sum(rp_abs(in[1])), rp_f64(90));
}
RC_BODY(rc_step) {
    RC_UNUSED;
    const struct rc_weights *m = ctx;
    out[0] = rp_add_scalar(in[0], rp_i64(1));
    out[1] = rp_add(in[2], rp_mul(rp_sin(in[1]), m->w));
    out[2] = rp_add_scalar(in[1], rp_f64(0.7));
}
RC_BODY(rc_while) {
    RC_UNUSED;
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), in[0],
                          rp_transpose(in[0], 0, 1)},
              *r[3];
    rp_while(RC_FN(rc_go, "go"), RC_FN(rc_step, "step"), state, 3, 7, r);
    out[0] = rp_mul(r[1], r[2]);
    out[1] = r[0];
}

/* a branch inside a loop inside a branch */
RC_BODY(rc_inner_then) {
    RC_UNUSED;
    const struct rc_weights *m = ctx;
    out[0] = rp_add(rp_matmul(in[0], m->w), in[1]);
}
RC_BODY(rc_inner_else) {
    RC_UNUSED;
    out[0] = rp_mul_scalar(in[0], rp_f64(-0.75));
}
RC_BODY(rc_nest_go) {
    RC_UNUSED;
    out[0] = rp_lt_scalar(in[0], rp_i64(5));
}
RC_BODY(rc_nest_step) {
    RC_UNUSED;
    rp_tensor *both[] = {in[1], rp_tanh(in[1])};
    out[0] = rp_add_scalar(in[0], rp_i64(1));
    rp_cond(rc_positive(in[1]), RC_FN(rc_inner_then, "inner then"), RC_FN(rc_inner_else, "inner else"), both, 2,
            &out[1], 1);
}
RC_BODY(rc_nest_then) {
    RC_UNUSED;
    rp_tensor *state[] = {rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)), in[0]}, *r[2];
    rp_while(RC_FN(rc_nest_go, "nest go"), RC_FN(rc_nest_step, "nest step"), state, 2, 0, r);
    out[0] = r[1];
}
RC_BODY(rc_nest_else) {
    RC_UNUSED;
    out[0] = in[0];
}
RC_BODY(rc_nested) {
    RC_UNUSED;
    rp_tensor *x = rp_sin(in[0]);
    rp_cond(rc_positive(in[0]), RC_FN(rc_nest_then, "nest then"), RC_FN(rc_nest_else, "nest else"), &x, 1, &out[0], 1);
    out[1] = rp_neg(out[0]);
}

/* a loop whose condition branches */
RC_BODY(rc_yes) {
    RC_UNUSED;
    out[0] = rp_lt_scalar(rp_select(rp_view(in[0], RP_DIMS(16)), 0, 0), rp_f64(3));
}
RC_BODY(rc_no) {
    RC_UNUSED;
    out[0] = rp_gt_scalar(rp_select(rp_view(in[0], RP_DIMS(16)), 0, 15), rp_f64(-9));
}
RC_BODY(rc_asking_go) {
    RC_UNUSED;
    rp_cond(rc_positive(in[0]), RC_FN(rc_yes, "yes"), RC_FN(rc_no, "no"), in, 1, out, 1);
}
RC_BODY(rc_asking_step) {
    RC_UNUSED;
    out[0] = rp_add(in[0], rp_mul_scalar(in[0], rp_f64(0.5)));
}
RC_BODY(rc_asking) {
    RC_UNUSED;
    rp_while(RC_FN(rc_asking_go, "asking go"), RC_FN(rc_asking_step, "asking step"), in, 1, 20, out);
    out[1] = rp_relu(out[0]);
}

static const struct rc_case {
    const char *name;
    rp_body *body;
    unsigned regions;
} rc_cases[] = {{"cond", rc_cond, 1}, {"while", rc_while, 1}, {"nested", rc_nested, 3}, {"asking", rc_asking, 2}};
enum { RC_CASES = sizeof rc_cases / sizeof *rc_cases };

static inline rp_tensor *rc_filled(double start) {
    float data[16];
    for (int i = 0; i < 16; i++) data[i] = (float)(start + 0.21 * (i % 5) - 0.17 * (i % 3));
    return rp_from_data(data, RP_DIMS(4, 4), RP_F32);
}

static inline void rc_same(const char *name, rp_tensor *got, rp_tensor *want) {
    char a[64], b[64];
    if (rp_failed()) fail_msg("%s: %s", name, rp_error_message());
    size_t bytes = (size_t)rp_numel(want) * rp_dtype_size(rp_dtype_of(want));
    assert_int_equal(rp_numel(got), rp_numel(want));
    assert_true(bytes <= sizeof a);
    assert_int_equal(rp_to_host(got, a, bytes), RP_OK);
    assert_int_equal(rp_to_host(want, b, bytes), RP_OK);
    if (memcmp(a, b, bytes) != 0) {
        char x[600], y[600];
        rp_format(got, x, sizeof x);
        rp_format(want, y, sizeof y);
        fail_msg("%s: got %s\nwant %s", name, x, y);
    }
}

/* Calls with other predicates, moved arguments, kept and dropped results. */
static inline rp_compiled *rc_check(const struct rc_case *c, const rp_compile_options *options) {
    static const double starts[] = {0.5, -0.6, 0.3, -2, 40, 0.01, -0.4, 0.5};
    struct rc_weights m = {rp_retain(rc_filled(0.3))};
    rp_compiled *f = rp_compile((rp_fn){c->body, &m, 0, c->name}, options);
    rp_tensor *held[2 * sizeof starts / sizeof *starts];
    size_t n_held = 0;
    rp_tensor *still = rp_retain(rc_filled(0.1));
    for (size_t k = 0; k < sizeof starts / sizeof *starts; k++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *x = rc_filled(starts[k]), *want[2], *got[2];
        if (k % 2) { /* the same memory again */
            rp_copy_(still, x);
            x = still;
        }
        c->body(&m, &x, 1, want, 2);
        if (rp_failed()) fail_msg("%s, eager: %s", c->name, rp_error_message());
        (void)rp_call(f, &x, 1, got, 2);
        for (int r = 0; r < 2; r++) rc_same(c->name, got[r], want[r]);
        if (k % 3 == 0) held[n_held++] = rp_retain(got[0]);
        assert_int_equal(rp_scope_end(s, NULL, 0), RP_OK);
    }
    while (n_held > 0) rp_release(held[--n_held]);
    rp_release(still);
    rp_release(m.w);
    return f;
}

/* Counts of entries of explain of that kind whose message contains `text`. */
static inline unsigned rc_told(rp_compiled *f, const char *kind, const char *text) {
    unsigned n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, kind) == 0 && strstr(e.message, text)) n += (unsigned)e.count;
    }
    return n;
}

#endif
