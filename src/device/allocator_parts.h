/* What the files of the allocator share; nobody else includes it (what others call is in allocator.h). Three layers:
     segments  from the device (rarely);
     shelves   free blocks of one (pool, stream, small or large), best fit, split and merged inside their segment;
     pieces    CPU only: fixed size classes up to 32 KiB on the default stream, cached by each thread, never merged.
   A shelf's stream orders the reuse of its blocks; blocks that other streams used wait for events of those streams.
     allocator.c          the interface, pieces, statistics
     allocator_shelves.c  segments and shelves, what waits for other streams
     pool.c               private pools and what captures used of them
   Called by storages and by captures; never calls up. A live block of a side stream holds the stream, one of a pool holds the
   pool: such references are given up when the lock has been left, as the end of a stream or a pool waits for work. Under the
   lock only ops of the device are called, and none that waits for what runs in threads of the host: there it may be a kernel
   of the program's, which may wait for a thread that wants memory. So a CPU's streams are waited for before the lock is taken
   (rp__allocator_settle), and under it are only asked. The lock is recursive: the device's ops may make and drop events.
   The functions declared here are called under it, or when the allocator ends, unless they say otherwise. */
#ifndef RP_DEVICE_ALLOCATOR_PARTS_H
#define RP_DEVICE_ALLOCATOR_PARTS_H

#include "core/fork.h"
#include "device/allocator.h"

#if defined(__SANITIZE_ADDRESS__)
#define RP__ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RP__ASAN 1
#endif
#endif
#ifdef RP__ASAN
#include <sanitizer/asan_interface.h>
#endif

enum { RP__SHELF_BINS = 256, RP__ALLOCATOR_CLASSES = 32 };

typedef enum rp__block_kind { RP__BLOCK_GENERAL, RP__BLOCK_PIECE, RP__BLOCK_EMPTY, RP__BLOCK_FOREIGN } rp__block_kind;

/* What an allocation from another stream left behind: reuse waits until each is done. */
typedef struct rp__block_use {
    rp_stream *stream; /* retained */
    rp_event *event;   /* recorded when the block was freed; NULL before, and while the stream is capturing */
} rp__block_use;
typedef struct rp__block_uses {
    size_t n, capacity;
    rp__block_use *entries;
} rp__block_uses;

typedef struct rp__block_base { /* what every block begins with */
    rp__block pub;
    uint8_t kind, size_class;
    rp__block_uses *uses;
    struct rp__block_base *pending_next;
} rp__block_base;

typedef struct rp__shelf rp__shelf;
typedef struct rp__shelf_block {
    rp__block_base b;
    rp__shelf *shelf;
    char *address;
    size_t size;
    bool free;
    struct rp__shelf_block *before, *after;        /* neighbours in the segment */
    struct rp__shelf_block *free_prev, *free_next; /* in the bin; free_next also links spare structs */
} rp__shelf_block;

struct rp__shelf {
    rp_pool *pool;
    rp_stream *stream;  /* NULL: none any more; whole segments that wait for whatever stream needs one */
    bool small, orphan; /* orphan: its pool is gone; the segments go when no capture forbids it */
    /* Nothing uses memory that is free: a sanitizer may watch it. A stream that queues still runs what was launched before,
       and a graph's replay uses memory of its pool that was free in between. */
    bool in_order;
    rp__shelf *next;
    uint64_t occupied[RP__SHELF_BINS / 64];
    rp__shelf_block *bins[RP__SHELF_BINS];
};

/* Memory of a program, which its deleter gives back. As of the default stream, whose work the deleter waits for as well. */
typedef struct rp__foreign {
    rp__block_base b;
    void (*deleter)(void *ctx);
    void *ctx;
} rp__foreign;

typedef struct rp__allocator_rules {
    size_t granule, small_limit, small_segment, medium_limit, medium_segment, large_round, large_split;
} rp__allocator_rules;

struct rp__allocator {
    rp__device *device;
    rp__allocator_rules rules;
    rp__mutex lock;
    unsigned depth; /* how often its holder has taken it */
    rp__fork_lock fork_lock;
    rp_stream *given_up_streams; /* references to be dropped by who leaves the lock */
    rp_pool *given_up_pools;
    rp__shelf *shelves;
    rp__shelf_block *spare;
    rp__block_base *pending; /* freed, but used by other streams */
    size_t n_pending;
    rp__block_base *foreign_pending;   /* the same of programs' memory */
    atomic_bool foreign_waits;         /* there is such */
    int64_t allocated, allocated_peak; /* without what threads hold in their counters */
    uint64_t reserved, reserved_peak, in_private_pools, allocations, frees;
    rp__block_base empty;
    bool has_pieces;
    struct rp__piece *classes[RP__ALLOCATOR_CLASSES];
    struct rp__chunk *chunks;
    struct rp__thread_cache *caches; /* of all threads */
};

/* What a sanitizer may say about memory that no block has. */
static inline void rp__block_poison(const void *p, size_t bytes) {
#ifdef RP__ASAN
    ASAN_POISON_MEMORY_REGION(p, bytes);
#else
    (void)p, (void)bytes;
#endif
}

static inline void rp__block_unpoison(const void *p, size_t bytes) {
#ifdef RP__ASAN
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#else
    (void)p, (void)bytes;
#endif
}

/* Does a touch of memory of this shelf, while no block has it, mean a defect? Not in a private pool, whose graphs go on using it,
   and not on a device that works behind the host's back. */
static inline bool rp__shelf_is_guarded(const rp__allocator *a, const rp__shelf *s) {
    return a->device->id.type == RP_DEVICE_CPU && s->in_order;
}

/* ---- allocator.c */

/* The lock. Leaving it for good drops the references given up under it, and lets work of the CPU go on that was asked for. */
void rp__allocator_enter(rp__allocator *a);
void rp__allocator_leave(rp__allocator *a);
/* One reference of the allocator's; NULL is nothing. */
void rp__allocator_give_up_stream(rp__allocator *a, rp_stream *s);
void rp__allocator_give_up_pool(rp__allocator *a, rp_pool *p);
/* Not under the lock: waits for the work of the device, if under the lock nobody may. Nothing while a capture runs. */
void rp__allocator_settle(rp__allocator *a);
/* Is there no work of the device that could touch memory? Waits for it where that is allowed under the lock. */
bool rp__allocator_at_rest(rp__allocator *a);

/* Bytes that tensors hold now, with what threads have not flushed yet. */
int64_t rp__allocator_allocated(rp__allocator *a);
/* Counts a block of `bytes` bytes as allocated. */
void rp__allocator_count(rp__allocator *a, size_t bytes);
/* Makes memory reusable and drops what a live block holds. The block's record is gone afterwards. */
void rp__block_release(rp__allocator *a, rp__block_base *b);

/* ---- allocator_shelves.c */

/* A block of at least `bytes` bytes; statistics are the caller's. */
rp_status rp__block_take(rp__allocator *a, rp_pool *pool, rp_stream *stream, size_t bytes, rp__shelf_block **out);
/* Joins a block that is being freed with its free neighbours and shelves it. */
void rp__block_return(rp__allocator *a, rp__shelf_block *b);
/* b becomes, or is no longer, a free block in a bin of its shelf. */
void rp__block_shelve(rp__allocator *a, rp__shelf_block *b);
void rp__block_unshelve(rp__allocator *a, rp__shelf_block *b);
/* Cuts b, which is not shelved, behind its first `size` bytes; the rest is not shelved either. NULL: no memory for its record. */
rp__shelf_block *rp__block_cut(rp__allocator *a, rp__shelf_block *b, size_t size);
/* Is the work of the other streams done? Drops what is. `wait`: waits for it instead, where that is allowed (not in captures, and
   not for a CPU: rp__allocator_settle has waited). */
bool rp__block_uses_done(rp__allocator *a, rp__block_uses *u, bool wait);
void rp__block_uses_free(rp__allocator *a, rp__block_uses *u);
/* Releases the pending blocks whose other streams are done; wait: all but those of captures. */
void rp__allocator_collect(rp__allocator *a, bool wait);
/* Gives free segments back to the device: of one shelf; of pools that are gone, with their shelves; of the default pool and
   those. The last two do nothing while a capture runs. */
void rp__shelf_drop_segments(rp__allocator *a, rp__shelf *s);
void rp__allocator_drop_orphans(rp__allocator *a);
void rp__allocator_drop_cached(rp__allocator *a);

/* ---- pool.c */

/* Room for one more range: before a block is taken, so that noting it cannot fail. */
rp_status rp__pool_ledger_room(struct rp__pool_ledger *l);
void rp__pool_ledger_note(struct rp__pool_ledger *l, char *address, size_t size);

#endif
