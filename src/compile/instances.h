/* Which programs a compiled function keeps. An instance is the program of a unit for one tuple of sizes: arena, results, device
   graph. All units of a function, forward and backward, of all its specialisations, share one set with two limits: how many,
   and how much memory they hold. The least recently used one goes first; the last one of a unit stays, so that a call finds
   what it ran a moment ago whatever the limits are. Owns the order of use and the lock of the units' lists; units own the
   instances, and free what they are told to. */
#ifndef RP_COMPILE_INSTANCES_H
#define RP_COMPILE_INSTANCES_H

#include "compile/program.h"

enum { RP__INSTANCES = 64 };
#define RP__INSTANCE_BYTES (UINT64_C(1) << 30)

typedef struct rp__instance_owner {
    uint64_t last; /* when one of its instances was used last */
} rp__instance_owner;

typedef struct rp__instance {
    rp__instance_owner *owner;
    rp__executable *program; /* NULL: what holds it cannot be said */
    uint64_t used;
    size_t at; /* in the set */
} rp__instance;

typedef struct rp__instances {
    atomic_uint refs;
    rp__mutex
        lock; /* of what follows, and of the lists of all units; held for moments, never while something is built */
    rp__instance **all;
    size_t n, capacity;
    uint64_t now;
    size_t limit;
    uint64_t bytes_limit;
    const void **arenas; /* room for n */
    size_t arenas_capacity;
} rp__instances;

/* Zero: the default. NULL and an error: out of memory. */
rp__instances *rp__instances_new(size_t limit, uint64_t bytes);
rp__instances *rp__instances_retain(rp__instances *s);
void rp__instances_release(rp__instances *s);

/* Under the lock. */
rp_status rp__instances_add(rp__instances *s, rp__instance *i); /* used now */
void rp__instances_use(rp__instances *s, rp__instance *i);
void rp__instances_remove(rp__instances *s, rp__instance *i);
/* One that has to go, as the limits are exceeded; NULL: none has to, or none may. */
rp__instance *rp__instances_victim(rp__instances *s);

#endif
