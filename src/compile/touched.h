/* Which nodes touch which bytes: what slots name, in storages and in memory of others under them, found without comparing with every
   slot there is. */
#ifndef REPRISE_COMPILE_TOUCHED_H
#define REPRISE_COMPILE_TOUCHED_H

#include "device/launch.h"

typedef struct rp__touched { /* all zero: nothing */
    struct rp__touched_range *of;
    size_t capacity;
    uint32_t n, root;
} rp__touched;
void rp__touched_free(rp__touched *t);

rp_status rp__touched_add(rp__touched *t, const rp__slot *s, uint32_t node);
/* What lies wholly inside of the slot's bytes goes. */
void rp__touched_drop(rp__touched *t, const rp__slot *s);
/* visit for each node that touched bytes of the slot (rp__slots_meet), more than once perhaps, until one gives false: then so does
   this. */
typedef bool rp__touched_visitor(void *ctx, uint32_t node);
bool rp__touched_each(const rp__touched *t, const rp__slot *s, rp__touched_visitor *visit, void *ctx);

#endif
