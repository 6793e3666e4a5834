/* A count of who holds an object that threads may let go while others take it: 0 is the end, from which nobody comes back. */
#ifndef RP_CORE_HOLDS_H
#define RP_CORE_HOLDS_H

#include <stdatomic.h>
#include <stdbool.h>

/* One more; false: the last one has let go. */
static inline bool rp__holds_take(atomic_uint *holds) {
    unsigned now = atomic_load_explicit(holds, memory_order_relaxed);
    while (now > 0)
        if (atomic_compare_exchange_weak_explicit(holds, &now, now + 1, memory_order_relaxed, memory_order_relaxed))
            return true;
    return false;
}

#endif
