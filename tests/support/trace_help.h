/* What the tests of tracing and compilation share: tensors with values, exact comparison, totals of explain. */
#ifndef RP_TESTS_TRACE_HELP_H
#define RP_TESTS_TRACE_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>

#include "support/check.h"

static inline void assert_ok(void) {
    if (rp_failed()) fail_msg("%s: %s", rp_status_name(rp_error_status()), rp_error_message());
}

/* f32 of the n sizes that follow (each an int or int64_t below 2^31), every element different, around `start`. */
#define filled(start, n, ...) filled_with((start), (n), (const int64_t[]){__VA_ARGS__})
static inline rp_tensor *filled_with(double start, size_t n, const int64_t *size) {
    int64_t numel = 1;
    for (size_t i = 0; i < n; i++) numel *= size[i];
    float *data = malloc((size_t)numel * sizeof *data + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < numel; i++) data[i] = (float)(start + 0.03 * (double)(i % 37) - 0.2 * (double)(i % 5));
    rp_tensor *t = rp_from_data(data, size, n, RP_F32);
    free(data);
    assert_ok();
    return t;
}

/* Same type, sizes and bits. */
static inline void assert_same(rp_tensor *got, rp_tensor *want) {
    assert_ok();
    assert_false(rp_is_error(got));
    assert_int_equal(rp_dtype_of(got), rp_dtype_of(want));
    assert_int_equal(rp_ndim(got), rp_ndim(want));
    for (size_t d = 0; d < rp_ndim(got); d++) assert_int_equal(rp_size(got, (int64_t)d), rp_size(want, (int64_t)d));
    size_t bytes = (size_t)rp_numel(want) * rp_dtype_size(rp_dtype_of(want));
    char *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    assert_true(a && b);
    assert_int_equal(rp_to_host(got, a, bytes), RP_OK);
    assert_int_equal(rp_to_host(want, b, bytes), RP_OK);
    if (memcmp(a, b, bytes) != 0) {
        char x[400], y[400];
        rp_format(got, x, sizeof x);
        rp_format(want, y, sizeof y);
        fail_msg("got %s\nwant %s", x, y);
    }
    free(a);
    free(b);
}

/* f32 of the same sizes, equal within rounding of sums taken in another order: 4 ulp of the larger magnitude. */
static inline void assert_close(rp_tensor *got, rp_tensor *want) {
    assert_ok();
    assert_non_null(got);
    assert_int_equal(rp_numel(got), rp_numel(want));
    size_t n = (size_t)rp_numel(want);
    float *a = malloc(n * sizeof *a + 1), *b = malloc(n * sizeof *b + 1);
    assert_true(a && b);
    assert_int_equal(rp_to_host(got, a, n * sizeof *a), RP_OK);
    assert_int_equal(rp_to_host(want, b, n * sizeof *b), RP_OK);
    for (size_t i = 0; i < n; i++) {
        float bound = 4 * 1.1920929e-7f * (b[i] < 0 ? -b[i] : b[i]);
        if (!(a[i] - b[i] <= bound && b[i] - a[i] <= bound))
            fail_msg("element %zu: got %.9g, want %.9g", i, (double)a[i], (double)b[i]);
    }
    free(a);
    free(b);
}

/* Sum of the counts of records of a kind, and of a reason unless it is NULL. */
static inline int64_t explain_total(rp_compiled *f, const char *kind, const char *reason) {
    int64_t total = 0;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, i, &e), RP_OK);
        if (strcmp(e.kind, kind) == 0 && (!reason || strcmp(e.reason, reason) == 0)) total += e.count;
    }
    return total;
}

#endif
