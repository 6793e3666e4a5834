/* The version string equals the numbers of the header and of the build. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <reprise.h>

static void version_string_is_the_header(void **state) {
    (void)state;
    char want[64];
    snprintf(want, sizeof want, "%d.%d.%d", RP_VERSION_MAJOR, RP_VERSION_MINOR, RP_VERSION_PATCH);
    assert_string_equal(rp_version_string(), want);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(version_string_is_the_header)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
