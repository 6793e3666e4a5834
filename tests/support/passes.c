/* Text in, text out (passes.h). */
#include "support/passes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

void test_no_error(void) {
    if (!rp_failed()) return;
    char text[1024];
    snprintf(text, sizeof text, "%s", rp_error_message());
    (void)rp_error_take();
    fail_msg("%s", text);
}

rp_ir *test_parse(const char *text) {
    rp_ir *ir = rp_ir_parse(text, strlen(text));
    test_no_error();
    assert_int_equal(rp_ir_check(ir), RP_OK);
    return ir;
}

void test_expect_graph(const rp_ir *ir, const char *text) {
    rp__text t = {0};
    rp__ir_print(ir, false, &t);
    assert_false(t.failed);
    assert_int_equal(rp_ir_check(ir), RP_OK);
    rp_ir *again = test_parse(t.data);
    assert_true(rp_ir_equal(ir, again));
    rp_ir_release(again);
    if (strcmp(t.data, text) != 0) {
        fprintf(stderr, "--- expected\n%s--- got\n%s", text, t.data);
        rp__text_free(&t);
        fail_msg("another graph");
    }
    rp__text_free(&t);
}
