/* The samples of every op (tests/samples) over element types and layouts against PyTorch's values (tests/data/golden); a row without
   samples, or without expected values, fails. test_samples --calls [OP] prints the calls for scripts/golden_samples.py.
   ctest: labels=numbers timeout=300 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samples/samples.h"

static void every_row_has_samples(void **state) {
    (void)state;
    for (size_t i = 0; i < rp__op_builtin_count(); i++) {
        const rp__op *op = rp__op_table_at(i);
        const sample *s = sample_of(op->name);
        if (!s) fail_msg("op %s has no samples in tests/samples", op->name);
        bool valued = sample_is_random(s) || op->flags & RP__OP_PRIVATE || !op->schema.n_outs || ref_find(op->name);
        if (!valued && !sample_has_golden(s))
            fail_msg("op %s has no expected values: run scripts/golden_samples.py", op->name);
    }
}

/* One op, with what a call gives when it differs: SAMPLE_OP=name. */
static bool wanted(const sample *s, rp_dtype dtype, ref_layout layout) {
    const char *only = getenv("SAMPLE_OP");
    (void)dtype, (void)layout;
    return !only || !*only || strcmp(only, s->op->name) == 0;
}

static void sweep(void **state) {
    (void)state;
    print_message("%d calls\n", sample_sweep(rp_cpu(), wanted));
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--calls") == 0) {
        (void)sample_count();
        sample_print_calls(argc > 2 ? argv[2] : NULL);
        return 0;
    }
    (void)sample_count();
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_row_has_samples), cmocka_unit_test(sweep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
