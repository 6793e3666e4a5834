/* Setup and teardown of tests each of which runs in a scope of its own, with random numbers that begin anew. */
#ifndef RP_TESTS_IN_SCOPE_H
#define RP_TESTS_IN_SCOPE_H

#include "support/check.h"

static rp_scope test_scope;
static inline int scope_setup(void **state) {
    (void)state;
    (void)rp_error_take();
    test_scope = rp_scope_begin();
    return rp_manual_seed(5) == RP_OK ? 0 : -1;
}
static inline int scope_teardown(void **state) {
    (void)state;
    return rp_scope_end(test_scope, NULL, 0) == RP_OK && !rp_failed() ? 0 : -1;
}

#endif
