/* What the tests of hostile callers share: an action is refused, and says so. */
#ifndef RP_TESTS_HOSTILE_H
#define RP_TESTS_HOSTILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "reprise.h"

/* "test_x.c:", as call sites name it. */
static inline const char *hostile_file(const char *path) {
    static char name[64];
    const char *slash = strrchr(path, '/');
    snprintf(name, sizeof name, "%s:", slash ? slash + 1 : path);
    return name;
}

static rp_tensor *wrong; /* the error tensor */

static inline rp_tensor *error_tensor(void) {
    rp_tensor *t = rp_relu(NULL);
    rp_error_take();
    return t;
}

static inline rp_tensor *ones(int64_t n) {
    return rp_full(RP_DIMS(n), rp_i64(1), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
}

static inline uint64_t live(void) {
    rp_memory_stats s = {.struct_size = sizeof s};
    assert_int_equal(rp_memory_stats_get(rp_cpu(), &s), RP_OK);
    return s.live_tensors;
}

/* The action fails, and the sticky error says the same with a message. */
#define refuses(action)                                                                                                \
    do {                                                                                                               \
        assert_false(rp_failed());                                                                                     \
        rp_status refuses_ = (action);                                                                                 \
        if (refuses_ == RP_OK || !rp_failed() || !*rp_error_message())                                                 \
            fail_msg("line %d: %s: status %s, sticky %s '%s'", __LINE__, #action, rp_status_name(refuses_),            \
                     rp_status_name(rp_error_status()), rp_error_message());                                           \
        assert_int_equal(rp_error_take(), refuses_);                                                                   \
    } while (0)
/* The op gives the error tensor, and its message names the op and this file. */
#define fails(op)                                                                                                      \
    do {                                                                                                               \
        assert_false(rp_failed());                                                                                     \
        rp_tensor *fails_ = (op);                                                                                      \
        if (!fails_ || !rp_is_error(fails_) || !rp_failed() || !strstr(rp_error_message(), hostile_file(__FILE__)))    \
            fail_msg("line %d: %s: '%s'", __LINE__, #op, rp_error_message());                                          \
        rp_error_take();                                                                                               \
    } while (0)
/* The function has no status: a sticky error tells. */
#define complains(call)                                                                                                \
    do {                                                                                                               \
        assert_false(rp_failed());                                                                                     \
        (void)(call);                                                                                                  \
        if (!rp_failed() || !*rp_error_message()) fail_msg("line %d: %s: no error", __LINE__, #call);                  \
        rp_error_take();                                                                                               \
    } while (0)

static inline int begin_test(void **state) {
    (void)state;
    wrong = error_tensor();
    static rp_scope scope;
    scope = rp_scope_begin();
    *state = &scope;
    return 0;
}
static inline int end_test(void **state) {
    return rp_scope_end(*(rp_scope *)*state, NULL, 0) == RP_OK && !rp_failed() ? 0 : -1;
}
#define CASE(name) cmocka_unit_test_setup_teardown(name, begin_test, end_test)

#endif
