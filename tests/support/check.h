/* What tests check again and again: a call that succeeds; one that fails with a status and a text, and leaves no error. */
#ifndef RP_TESTS_CHECK_H
#define RP_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

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

/* No call failed so far: for calls that return no status. */
static inline void fine_at(const char *site) {
    char message[1024];
    if (!rp_failed()) return;
    snprintf(message, sizeof message, "%s", rp_error_message());
    (void)rp_error_take();
    fail_msg("%s: %s", site, message);
}
#define FINE() fine_at(RP_HERE)

/* The last call failed with this code, and the message has this text: the same for calls that return no status. */
static inline void failed_at(const char *site, rp_status code, const char *text) {
    char message[1024];
    snprintf(message, sizeof message, "%s", rp_error_message());
    rp_status have = rp_error_take();
    if (have != code) fail_msg("%s: status %d instead of %d: %s", site, (int)have, (int)code, message);
    if (!strstr(message, text)) fail_msg("%s: '%s' is not in '%s'", site, text, message);
}
#define FAILED(code, text) failed_at(RP_HERE, (code), (text))

/* Teardown: one failure must not make the next tests fail. */
static inline int take_error(void **state) {
    (void)state;
    rp_error_take();
    return 0;
}

#endif
