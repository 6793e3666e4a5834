/* Files of expected values below tests/data/golden. */
#ifndef RP_TESTS_GOLDEN_H
#define RP_TESTS_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>

#include "support/check.h"

/* "training/schedules.txt", open for reading. */
static inline FILE *golden_open(const char *file) {
    char path[512];
    const char *data = getenv("REPRISE_TEST_DATA");
    (void)snprintf(path, sizeof path, "%s/golden/%s", data && *data ? data : "tests/data", file);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("cannot open %s", path);
    return f;
}

#endif
