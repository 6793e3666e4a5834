/* What tests check again and again: a call that succeeds; one that fails with a status and a text, and leaves no error. */
#ifndef RP_TESTS_CHECK_H
#define RP_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include <reprise.h>

#define OK(expression)                                                                                                 \
    do {                                                                                                               \
        rp_status ok_status = (expression);                                                                            \
        if (ok_status != RP_OK) fail_msg("%s: %s", #expression, rp_error_message());                                   \
    } while (0)
#define FAILS(code, fragment, expression)                                                                              \
    do {                                                                                                               \
        assert_int_equal((expression), (code));                                                                        \
        if (!strstr(rp_error_message(), (fragment))) fail_msg("\"%s\" is not in: %s", (fragment), rp_error_message()); \
        assert_int_equal(rp_error_take(), (code));                                                                     \
    } while (0)

/* Teardown: one failure must not make the next tests fail. */
static inline int take_error(void **state) {
    (void)state;
    rp_error_take();
    return 0;
}

#endif
