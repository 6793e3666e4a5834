/* Advice where nothing is wrong and hours are lost all the same: what explain says of it, and that the log says it once.
   ctest: timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <reprise_nn.h>

/* The record of `kind` and `reason` in what explain says of f; false: there is none. */
static bool said(rp_compiled *f, const char *kind, const char *reason, rp_explain_entry *out) {
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        assert_int_equal(rp_explain_get(f, i, out), RP_OK);
        if (!strcmp(out->kind, kind) && !strcmp(out->reason, reason)) return true;
    }
    return false;
}
static bool any_advice(rp_compiled *f) {
    rp_explain_entry e;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
        if (!strcmp(e.kind, "advice")) return true;
    }
    return false;
}

struct scaled { /* seven bytes of padding behind `negative` */
    bool negative;
    double factor;
};
static void scale(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const struct scaled *s = ctx;
    (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_f64(s->negative ? -s->factor : s->factor));
}
static void call(rp_compiled *f) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_ones(RP_DIMS(3)), *y = NULL;
    assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
    rp_scope_end(scope, NULL, 0);
}

static void a_ctx_that_nobody_guards(void) {
    struct scaled s = {false, 2};
    rp_explain_entry e;
    rp_compiled *f = rp_compile((rp_fn){scale, &s, 0, "unguarded"}, NULL);
    call(f);
    assert_true(said(f, "advice", "ctx-unguarded", &e));
    assert_non_null(strstr(e.message, "ctx_bytes is 0"));
    rp_compiled_release(f);
    f = rp_compile((rp_fn){scale, &s, 0, "plain"}, RP_OPTIONS(rp_compile_options, .backend = "eager"));
    call(f); /* it runs each time, so nothing is to be guarded */
    assert_false(any_advice(f));
    rp_compiled_release(f);
}

static void padding_that_differs(void) {
    struct scaled s;
    rp_explain_entry e;
    rp_compiled *f = rp_compile((rp_fn){scale, &s, sizeof s, "padded"}, NULL);
    for (int i = 0; i < 6; i++) {
        memset(&s, i / 2, sizeof s);
        s.negative = true;
        s.factor = 3;
        call(f);
    }
    assert_true(said(f, "advice", "ctx-padding", &e));
    assert_non_null(strstr(e.message, "bytes 1 to 7"));
    assert_int_equal(e.count, 2); /* two of the three fillings came behind another */
    rp_compiled_release(f);
}

static void a_number_that_changes(void) {
    struct scaled s;
    rp_explain_entry e;
    memset(&s, 0, sizeof s);
    rp_compiled *f = rp_compile((rp_fn){scale, &s, sizeof s, "rate"}, NULL);
    for (int i = 0; i < 50; i++) {
        s.factor = 1 + i * 0.1;
        call(f);
        assert_int_equal(said(f, "advice", "ctx-number", &e), i >= 4);
    }
    assert_non_null(strstr(e.message, "0-d tensor"));
    assert_int_equal(e.count, 46);
    rp_compiled_release(f);
    f = rp_compile((rp_fn){scale, &s, sizeof s, "few"}, NULL); /* a few settings are no stream of numbers */
    for (int i = 0; i < 50; i++) {
        s.factor = i % 3;
        call(f);
    }
    assert_false(any_advice(f));
    rp_compiled_release(f);
}

struct step {
    rp_tensor *w;
    rp_optimizer *sgd;
    bool detached;
};
static void whole_step(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    struct step *s = ctx;
    (void)n_in, (void)n_out;
    rp_tensor *loss = rp_mse_loss(rp_matmul(in[0], s->w), in[1], 1);
    rp_backward(loss, NULL, NULL);
    rp_optimizer_step(s->sgd);
    rp_optimizer_zero_grad(s->sgd, true);
    out[0] = s->detached ? rp_detach(loss) : loss;
}
static void a_step_that_keeps_its_history(void) {
    for (int detached = 0; detached < 2; detached++) {
        struct step s;
        rp_explain_entry e;
        memset(&s, 0, sizeof s);
        rp_scope scope = rp_scope_begin();
        s.w = rp_ones(RP_DIMS(4, 2));
        rp_set_requires_grad(s.w, true);
        s.sgd = rp_sgd(&s.w, 1, 0.1, NULL);
        s.detached = detached;
        rp_compiled *f = rp_compile((rp_fn){whole_step, &s, sizeof s, "step"}, NULL);
        for (int i = 0; i < 4; i++) {
            rp_tensor *in[] = {rp_ones(RP_DIMS(3, 4)), rp_zeros(RP_DIMS(3, 2))}, *loss = NULL;
            assert_int_equal(rp_call(f, in, 2, &loss, 1), RP_OK);
        }
        assert_int_equal(any_advice(f), !detached);
        if (!detached) {
            assert_true(said(f, "advice", "step-not-detached", &e));
            assert_non_null(strstr(e.message, "rp_detach"));
            assert_non_null(strstr(e.site, "test_advice.c:"));
        }
        rp_compiled_release(f);
        rp_optimizer_release(s.sgd);
        rp_scope_end(scope, NULL, 0);
    }
}

static void halved(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_f64(0.5));
}
/* sum += loss, 1200 times, each loss with a history of its own. */
static void a_sum_over_steps(bool detached) {
    rp_explain_entry e;
    rp_scope outer = rp_scope_begin();
    rp_tensor *w = rp_ones(RP_DIMS(2)), *sum = rp_retain(rp_zeros(NULL, 0));
    rp_set_requires_grad(w, true);
    for (int i = 0; i < 1200; i++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *loss = rp_sum(w), *old = sum;
        sum = rp_retain(rp_add(sum, detached ? rp_detach(loss) : loss));
        rp_release(old);
        rp_scope_end(scope, NULL, 0);
    }
    rp_compiled *f = rp_compile((rp_fn){halved, NULL, 0, "halved"}, NULL);
    rp_tensor *y = NULL;
    assert_int_equal(rp_call(f, &sum, 1, &y, 1), RP_OK);
    assert_int_equal(said(f, "advice", "sum-over-steps", &e), !detached);
    if (!detached) assert_non_null(strstr(e.site, "test_advice.c:"));
    rp_compiled_release(f);
    rp_release(sum);
    rp_scope_end(outer, NULL, 0);
}

/* In a thread's root scope, which nothing ends; then as many within scopes. */
static void many_tensors(bool scopes) {
    for (int i = 0; i < 3000; i++) {
        rp_scope scope = {0};
        if (scopes) scope = rp_scope_begin();
        (void)rp_zeros(RP_DIMS(1));
        if (scopes) rp_scope_end(scope, NULL, 0);
    }
}

static void explained(void **state) {
    (void)state;
    a_ctx_that_nobody_guards();
    padding_that_differs();
    a_number_that_changes();
    a_step_that_keeps_its_history();
    a_sum_over_steps(false);
    a_sum_over_steps(true);
    assert_false(rp_failed());
}

/* A function that is not the same twice is run at each call from the second on: its own count shows every run, that of the second
   trace too, and explain names the line. */
static int counter;
static void counts(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    counter++;
    out[0] = rp_add_scalar(in[0], rp_i64(counter)); /* the line */
}
static const int line_of_counts = __LINE__ - 2;
static void an_impure_function_names_its_line(void **state) {
    (void)state;
    static const double values[] = {1, 3, 4, 5};
    char line[32];
    rp_explain_entry e;
    rp_scope scope = rp_scope_begin();
    rp_compiled *f = rp_compile((rp_fn){counts, NULL, 0, "counts"}, NULL);
    for (int i = 0; i < 4; i++) {
        rp_tensor *x = rp_zeros(NULL, 0), *y = NULL;
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_true(rp_item_f64(y) == values[i] && counter == (int)values[i]);
    }
    assert_true(said(f, "break", "impure", &e));
    snprintf(line, sizeof line, "test_advice.c:%d", line_of_counts);
    assert_non_null(strstr(e.site, line));
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

static void run_child(const char *what, const char *topics, char *text, size_t bytes) {
    int out[2], status = -1;
    assert_int_equal(pipe(out), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 2);
        close(out[0]);
        setenv("REPRISE_LOG", topics, 1);
        execl("/proc/self/exe", "test_advice", what, (char *)NULL);
        _exit(99);
    }
    close(out[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < bytes && (got = read(out[0], text + n, bytes - n - 1)) > 0;) n += (size_t)got;
    text[n] = 0;
    close(out[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("%s: %s", what, text);
}

/* REPRISE_EXPLAIN: of a function that is released, then of one that is not; nothing without it. */
static void explained_at_the_end(void **state) {
    (void)state;
    char text[16384];
    run_child("end", "", text, sizeof text);
    assert_string_equal(text, "");
    setenv("REPRISE_EXPLAIN", "1", 1);
    run_child("end", "", text, sizeof text);
    unsetenv("REPRISE_EXPLAIN");
    const char *released = strstr(text, "reprise explain: released (compiled)\n"),
               *left = strstr(text, "reprise explain: left\\x1B (compiled)\n");
    if (!released || !left || left < released || !strstr(left, "  specialisation  1 nodes") ||
        !strstr(released, "ctx-unguarded"))
        fail_msg("%s", text);
    assert_null(strchr(text, '\033'));
    assert_null(strstr(strstr(left + 1, "specialisation"), "reprise explain"));
}

/* One line a function or chain or thread, however often it happens; nothing of it where the topic is off. */
static void logged_once(void **state) {
    (void)state;
    static const struct {
        const char *what, *topic, *begin; /* "": nothing */
    } cases[] = {
        {"unguarded", "advice", "reprise advice: unguarded: ctx is given"},
        {"padding", "advice", "reprise advice: padded: bytes 1 to 7"},
        {"sum", "advice", "reprise advice: the result of add at "},
        {"detached", "advice", ""},
        {"root", "scope", "reprise scope: "},
        {"scopes", "scope", ""},
        {"root", "advice", ""},
        {"padding", "scope", ""},
    };
    char text[4096];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_child(cases[i].what, cases[i].topic, text, sizeof text);
        const char *end = strchr(text, '\n');
        if (!*cases[i].begin ? *text != 0 : strncmp(text, cases[i].begin, strlen(cases[i].begin)) != 0 || !end)
            fail_msg("%s: %s", cases[i].what, text);
        if (*text && strcmp(cases[i].what, "sum") != 0) assert_true(end[1] == 0);
    }
    run_child("padding", "guards", text, sizeof text);
    assert_non_null(strstr(text, "reprise guards: padded: recorded anew: byte 1 of ctx"));
    run_child("root", "scope", text, sizeof text);
    assert_non_null(strstr(text, "root scope"));
    assert_non_null(strstr(text, "test_advice.c:"));
}

int main(int argc, char **argv) {
    if (argc == 2) {
        if (!strcmp(argv[1], "end")) {
            struct scaled s = {false, 2};
            rp_compiled *a = rp_compile((rp_fn){scale, &s, 0, "released"}, NULL);
            static rp_compiled *left; /* found by a leak check */
            left = rp_compile((rp_fn){halved, NULL, 0, "left\033"}, NULL);
            call(a);
            call(left);
            rp_compiled_release(a);
            pid_t pid = fork(); /* a child says nothing of what is not its own */
            if (pid == 0) exit(0);
            (void)waitpid(pid, NULL, 0);
        }
        if (!strcmp(argv[1], "unguarded")) a_ctx_that_nobody_guards();
        if (!strcmp(argv[1], "padding")) padding_that_differs();
        if (!strcmp(argv[1], "sum")) a_sum_over_steps(false);
        if (!strcmp(argv[1], "detached")) a_sum_over_steps(true);
        if (!strcmp(argv[1], "root")) many_tensors(false);
        if (!strcmp(argv[1], "scopes")) many_tensors(true);
        return rp_failed();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(explained),
        cmocka_unit_test(an_impure_function_names_its_line),
        cmocka_unit_test(logged_once),
        cmocka_unit_test(explained_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
