/* Stand-in for NVTX: counts the ranges that are open, and keeps the name of the last. */
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))
EXPORT int nvtxRangePushA(const char *message);
EXPORT int nvtxRangePop(void);
EXPORT const char *cudasim_range(void);

static _Thread_local int depth;
static _Thread_local char last[64];

int nvtxRangePushA(const char *message) {
    (void)snprintf(last, sizeof last, "%s", message);
    return depth++;
}
int nvtxRangePop(void) { return depth > 0 ? --depth : -2; }
const char *cudasim_range(void) { return last; }
