/* See loops.h. */
#include "support/loops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"

uint64_t test_next(test_rng *r) { /* splitmix64 */
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
uint64_t test_below(test_rng *r, uint64_t n) { return test_next(r) % n; }

void test_device_init(test_device *d) {
    memset(d, 0, sizeof *d);
    d->ops.name = "test";
    d->ops.loops = &rp__cpu_loops;
    d->device.ops = &d->ops;
    d->device.errors = &d->errors;
}
static void slice(void *ctx, int64_t begin, int64_t end) {
    const rp__launch *l = ctx;
    atomic_load (&l->kernel->cpu)(l->kernel, l->words, begin, end);
}
void test_run(test_device *d, rp__dag *dag, const rp__space *space, test_rng *split) {
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    rp__launch l;
    memset(&l, 0, sizeof l);
    if (!buffer || rp__cpu_loops.bind(&d->device, dag, space, buffer, &l) != RP_OK) {
        fprintf(stderr, "bind: %s\n", rp_error_message());
        abort();
    }
    if (!l.kernel) return;
    if (!split) {
        if (rp__parallel(l.items, l.grain, slice, &l) != RP_OK) abort();
        return;
    }
    for (int64_t at = 0; at < l.items;) {
        int64_t n = l.grain >= l.items ? l.items : 1 + (int64_t)test_below(split, (uint64_t)(l.items - at));
        slice(&l, at, at + n);
        at += n;
    }
}
