/* Form 4: the launch record. One kernel, its parameters as 64-bit words, and the slots that say which words are pointers, to
   what, and how they are used. Dependencies, liveness, re-pointing and programmatic-edge safety derive from slots alone. */
#ifndef RP_DEVICE_LAUNCH_H
#define RP_DEVICE_LAUNCH_H

#include <stdatomic.h>

#include "core/error.h"
#include "core/hash.h"

struct rp__storage;
typedef struct rp__launch rp__launch;
typedef struct rp__kernel rp__kernel;

/* A CPU kernel runs items [begin, end) of a launch. Words are the parameters; scratch is per call on the stack or from
   rp__cpu_scratch. It must not fail: what can fail is checked before the launch. Errors in data (a bad index) go to the
   device's error record. */
typedef void rp__cpu_entry(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end);

typedef enum rp__kernel_kind {
    RP__KERNEL_CPU,  /* `cpu` */
    RP__KERNEL_CUDA, /* `function`: a CUfunction of ours; waits for its predecessors (griddepcontrol.wait) first */
    RP__KERNEL_CUDA_LIBRARY, /* `enqueue`: puts work of a library on the stream; captured behind its dependencies in graphs */
    RP__KERNEL_CUDA_USER /* a user's kernel: full edges only */
} rp__kernel_kind;

struct rp__kernel {
    atomic_uint refs;
    rp__kernel_kind kind;
    rp__hash key; /* outlives the process */
    const char *name;
    _Atomic(rp__cpu_entry *) cpu; /* may be swapped by a better tier while launches run: both give the same bits */
    void *function;
    rp_status (*enqueue)(const rp__kernel *k, rp_stream *s, const rp__launch *launch);
    void *payload;                       /* owned */
    void (*destroy)(rp__kernel *kernel); /* frees payload and the struct; NULL: static kernel, never freed */
};
rp__kernel *rp__kernel_retain(rp__kernel *k);
void rp__kernel_release(rp__kernel *k);

enum { RP__READ = 1, RP__WRITE = 2, RP__AHEAD = 4 /* of what is read, see rp__launch.ahead */ };
typedef struct rp__slot {
    uint32_t word;               /* index of the pointer in words */
    uint32_t access;             /* RP__READ | RP__WRITE, RP__AHEAD */
    struct rp__storage *storage; /* borrowed by the record */
    int32_t buffer;              /* programs number their storages; -1 elsewhere */
    int64_t begin, end;          /* byte range touched, relative to the storage's start; conservative */
} rp__slot;

struct rp__launch {
    rp__kernel *kernel;
    const uint64_t *words; /* parameters */
    const rp__slot *slots;
    uint32_t n_words, n_slots;
    uint32_t
        ahead; /* CUDA, not 0: of the word that says whether what RP__AHEAD slots read may be read before the launches that a device
                       graph puts before this one are complete. 0 as lowerings leave it; a program sets it where none of its records writes there */
    uint32_t draw, n_draws; /* random numbers: words [draw, draw + 3 * n_draws) are state, seed, inner of each */
    uint32_t grid[3], block[3], shared_bytes; /* CUDA */
    int64_t items, grain;                     /* CPU: slices of [0, items) start at multiples of grain */
    const char *site, *op;                    /* constant strings */
    bool barrier;                             /* no slots known: ordered against everything */
};

/* Do two slots, both with storages, touch the same bytes, also where wrapped memory is under both? */
bool rp__slots_meet(const rp__slot *a, const rp__slot *b);
/* Do two launches have to keep their order? (a write of one overlaps an access of the other) */
bool rp__launch_conflict(const rp__launch *a, const rp__launch *b);
/* CUDA: do blocks hold tiles in shared memory? Such kernels compute for long beside what they read, and want a multiprocessor's room. */
static inline bool rp__launch_holds_tiles(const rp__launch *l) { return l->shared_bytes >= 8192; }
/* CUDA: blocks of the grid. */
static inline uint64_t rp__launch_blocks(const rp__launch *l) { return (uint64_t)l->grid[0] * l->grid[1] * l->grid[2]; }
/* A deep copy in one block (words, slots), freed by rp__launch_free; retains kernel and slot storages if asked. */
rp__launch *rp__launch_copy(const rp__launch *l, bool retain_storages);
void rp__launch_free(rp__launch *l, bool release_storages);

/* The only way work reaches a device: hands the launch to the thread's recorder if one is installed (floor 6 builds programs
   by running lowerings under one: nothing executes), else to the stream's device, which runs, queues or captures it. */
rp_status rp__launch_on(rp_stream *s, const rp__launch *l);
/* The same past the recorder: what a recorder itself gives to the device, also of streams that do not capture. */
rp_status rp__launch_unrecorded(rp_stream *s, const rp__launch *l);
typedef struct rp__launch_recorder {
    rp_status (*record)(struct rp__launch_recorder *self, rp_stream *s,
                        const rp__launch *l); /* must copy what it keeps */
} rp__launch_recorder;
rp__launch_recorder *rp__launch_recorder_set(rp__launch_recorder *r); /* of the thread; returns the old one */
rp__launch_recorder *rp__launch_recorder_get(void);                   /* of the thread; NULL: launches go to devices */
extern RP__TLS_FAST rp__launch_recorder *rp__launch_recorder_now;     /* the same, inline; launch.c alone writes it */

#endif
