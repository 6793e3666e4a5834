/* What the tests of the tape share. */
#ifndef RP_TESTS_TAPE_H
#define RP_TESTS_TAPE_H

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "support/check.h"

/* "test_x.c", as call sites name it. */
static inline const char *tape_file(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static inline rp_tensor *vec(size_t n, const double *values) {
    return rp_from_data(values, RP_DIMS((int64_t)n), RP_F64);
}
#define VEC(...) vec(sizeof((const double[]){__VA_ARGS__}) / sizeof(double), (const double[]){__VA_ARGS__})
#define LEAF(...) leaf(VEC(__VA_ARGS__))
static inline rp_tensor *leaf(rp_tensor *t) {
    assert_int_equal(rp_set_requires_grad(t, true), RP_OK);
    return t;
}
static inline rp_tensor *sum(rp_tensor *t) { return rp_sum(t); }
static inline rp_tensor *add(rp_tensor *a, rp_tensor *b) { return rp_add(a, b); }

static inline void ok(rp_status status) {
    if (status == RP_OK && !rp_failed()) return;
    char text[1024];
    snprintf(text, sizeof text, "status %d: %s", (int)status, rp_error_message());
    (void)rp_error_take();
    fail_msg("%s", text);
}

static inline void equal_at(const char *site, rp_tensor *t, size_t n, const double *want) {
    double have[64];
    if (!t || rp_is_error(t)) fail_msg("%s: no tensor: %s", site, rp_error_message());
    if (rp_numel(t) != (int64_t)n) fail_msg("%s: %lld elements instead of %zu", site, (long long)rp_numel(t), n);
    ok(rp_to_host(t, have, n * sizeof *have));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(have[i] - want[i]) <= 1e-12 * (1 + fabs(want[i]))))
            fail_msg("%s: element %zu is %.17g, not %.17g", site, i, have[i], want[i]);
}
#define EQUAL(t, ...)                                                                                                  \
    equal_at(RP_HERE, (t), sizeof((const double[]){__VA_ARGS__}) / sizeof(double), (const double[]){__VA_ARGS__})

/* "file:line" of the next line. */
#define NEXT_LINE(name)                                                                                                \
    char name[48];                                                                                                     \
    snprintf(name, sizeof name, "%s:%d", tape_file(__FILE__), __LINE__ + 1)

static rp_scope scope;
static inline int setup(void **state) {
    (void)state;
    (void)rp_error_take();
    rp_set_grad_enabled(true);
    scope = rp_scope_begin();
    return 0;
}
static inline int teardown(void **state) {
    (void)state;
    return rp_scope_end(scope, NULL, 0) == RP_OK && !rp_failed() ? 0 : -1;
}

#define RETAIN RP_OPTIONS(rp_backward_options, .retain_graph = true)
#define CREATE RP_OPTIONS(rp_backward_options, .create_graph = true)

static inline void in_thread(size_t stack, void *(*run)(void *), void *ctx) {
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, stack), 0);
    assert_int_equal(pthread_create(&thread, &attributes, run, ctx), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}

#endif
