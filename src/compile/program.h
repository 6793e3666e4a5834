/* Programs: a functional graph of concrete sizes as data. An array of launch records over numbered buffers, the edges between
   them, a planned arena, and what has to be patched when an argument moved. Built without executing anything: every group is
   lowered under a launch recorder, on a stream that captures, so that draws read the replay's state and scratch memory is the
   program's own. Runs on the stream that is current at the call.

   Buffers: arguments and captured tensors (outside, re-pointed when they move, copied where that cannot be), results (fresh
   memory at each call unless the caller has let go of an older result), constants, temporaries (the arena), scratch of
   library ops. */
#ifndef RP_COMPILE_PROGRAM_H
#define RP_COMPILE_PROGRAM_H

#include "compile/fuse.h"
#include "compile/passes.h"
#include "kernel/relax.h"
#include "kernel/tune.h"

typedef struct rp__executable rp__executable;

/* Memory of temporaries that programs share: forward and backward of one function, its sizes. They take turns. */
typedef struct rp__shared_arena {
    rp__mutex lock;       /* held by the program that runs, whatever thread it runs in */
    rp__storage *storage; /* counted; NULL: none yet */
    rp_stream *stream;    /* counted: of the last run, once the process has several streams; NULL: the default one */
} rp__shared_arena;
void rp__shared_arena_begin(rp__shared_arena *a);
void rp__shared_arena_end(rp__shared_arena *a);

typedef struct rp__executable_options {
    bool no_fusion, no_graph, wait; /* wait: for kernels that are compiled in the background */
    bool tune;                      /* schedules of kernels are measured (kernel/tune.h) */
    rp_numbers numbers;
    rp_graph_layout layout;
    bool
        grows; /* programs of other sizes will share the arena: one that is too small is replaced by one with room to spare */
    rp__shared_arena *arena; /* NULL: its own. A storage in it that is large enough is used: memory from outside */
    /* Counters a call takes of each generator, also for random ops that are gone; NULL: those of the nodes. */
    const rp__executable_random *random;
    size_t n_random;
    const bool *donors;          /* per argument: its memory may be overwritten behind its last reader; NULL: of none */
    const bool *free_results;    /* per result: its strides may be others than the graph's; NULL: of none */
    struct rp__recipes *recipes; /* of programs of this graph for other sizes (recipe.h); NULL: there will be none */
    /* Told of `kinds` of moves that happened for the first time (bit RP__COPY_*, bit RP__COPY_COUNT for arguments re-pointed),
       behind the run, outside the program's lock; NULL: nobody wants to know. */
    void (*tell)(void *ctx, const rp__executable *p, uint32_t kinds);
    void *tell_ctx;
} rp__executable_options;

/* Made by rp__pipeline_program. */
void rp__executable_free(rp__executable *p);
/* Bytes of device memory that p holds by itself, and its arena, which it may share (NULL: none). At any time. */
uint64_t rp__executable_holds(const rp__executable *p, const rp__storage **arena);

/* Runs. Arguments have the dtypes, sizes and strides of the graph (guards and callers see to it). out[k] of the innermost scope,
   NULL where the graph has no result. draws: seeds and bases of an earlier run that this one repeats (a backward); NULL: the
   generators advance. drawn: NULL, or room for one entry a generator of the program (options.n_random), filled with seed and
   base of this run, whatever other threads run meanwhile. */
rp_status rp__executable_run(rp__executable *p, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                             const rp__executable_random *draws, size_t n_draws, rp__executable_random *drawn);

/* The same without draws given or asked for, by a caller who sees to it that no other call of p runs. */
rp_status rp__executable_run_alone(rp__executable *p, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

/* ---- what explain says of it */
/* Why a call copies what it could not reach by re-pointing. */
typedef enum rp__executable_copy {
    RP__COPY_LIBRARY,   /* an argument that a library call touches moved */
    RP__COPY_FOREIGN,   /* an argument moved to wrapped memory */
    RP__COPY_ALIGNMENT, /* an argument moved to an address of another alignment */
    RP__COPY_RESULT,    /* a result of a library call, whose older memory the caller holds */
    RP__COPY_COUNT
} rp__executable_copy;
typedef struct rp__executable_kernel {
    const char *ops; /* "mul+add+relu", or the library op */
    const char *site;
    const char *server; /* "loop", or who serves the library op */
    int64_t bytes;      /* read and written */
    bool library;
    const rp__kernel *kernel;       /* of its last launch */
    const rp__dag *dags[2];         /* of its launches; NULL: no loops */
    uint32_t taken[RP__FREE_COUNT]; /* freedoms of RP_NUMBERS_FAST, by number of nodes */
    rp__tuned tuned[2];             /* of its launches, where schedules are measured */
    int64_t moved[2];
    const char *schedule[2];
    const char *(*fault)(const rp__dag *dag); /* of rp__loop_backend; may be NULL */
} rp__executable_kernel;
typedef struct rp__executable_layout { /* of a device graph, or of a body of a region in one */
    const char *reason;                /* a name of reasons.def */
    uint32_t nodes, depth;             /* depth: nodes of the longest path */
    bool line, body;
} rp__executable_layout;
typedef struct rp__executable_facts {
    const rp__executable_kernel *kernels;
    size_t n_kernels;
    const struct rp__executable_unfused { const char *reason, *producer, *consumer, *site; } * unfused;
    size_t n_unfused;
    const struct rp__executable_region { const char *kind, *site; } * regions;
    size_t n_regions;
    double copy_rate; /* bytes a second that a copy moves on the device; 0: nobody has measured */
    const char *
        split; /* why regions are decided by the host between device graphs; NULL: they are nodes, or there is no graph */
    bool graphed, one_call; /* one_call: a call of a library, which has a graph while its memory stays where it is */
    const rp__executable_layout *layouts;
    size_t n_layouts;
    size_t n_launches, n_edges;
    uint32_t n_ahead; /* launches of a device graph that read weights before those before them are complete */
    uint32_t n_fused,
        n_lowered; /* graphs fused, and kernels lowered, because there was no program of sizes like its own */
    int64_t arena_bytes, result_bytes, eager_peak_bytes;
    int64_t donated_bytes; /* by which the arena is smaller because temporaries lie in arguments */
    /* of the executable: they count on */
    const _Atomic uint64_t *patches, *fresh_results;
    const _Atomic uint64_t *moved, *copies; /* arguments re-pointed; [RP__COPY_COUNT] */
    const _Atomic uint64_t *executables;    /* of the device graphs, now; NULL: the device has none */
    uint64_t runs;
} rp__executable_facts;
/* Not while another thread may run p. */
void rp__executable_facts_of(const rp__executable *p, rp__executable_facts *out);
/* What counts on, and nothing else of it: at any time. */
void rp__executable_counts_of(const rp__executable *p, rp__executable_facts *out);

/* ---- between the files of the program */

/* Where a storage of the graph lies: data + base is its byte 0. */
typedef struct rp__executable_place {
    rp__storage *storage; /* borrowed by whoever lowers */
    int64_t base, bytes;
} rp__executable_place;
typedef rp_status rp__draw_source(void *ctx, rp_generator *g, uint64_t inner, rp__random_draw *out);

/* What the lowerings of a group asked for, and the kernel that came of it: lowerings that ask for the same, at other places,
   make the same one. */
typedef struct rp__group_kernel {
    uint64_t *asked;
    size_t n_asked, capacity;
    rp__dag *dag; /* counted; NULL: none yet */
    uint32_t taken[RP__FREE_COUNT];
} rp__group_kernel;
void rp__group_kernel_free(rp__group_kernel *k);

/* Schedules of kernels: the backend's, the best known, or measured: then nothing is launched. */
typedef enum rp__tune_mode { RP__TUNE_NOT, RP__TUNE_USE, RP__TUNE_MEASURE } rp__tune_mode;
typedef struct rp__group_lowering {
    const rp__executable_place *places;  /* per storage */
    const rp__executable_place *partial; /* of lanes of columns; NULL: the group has none */
    rp__device *device;
    rp_stream *stream;
    rp__draw_source *draw;
    void *draw_ctx;
    unsigned freedoms; /* of the DAGs, see kernel/relax.h */
    rp__tune_mode tune;
    rp__group_kernel *
        kernels; /* two, of the group at other sizes, taken if they are the same, else replaced; of a chain those of all groups; NULL: nobody keeps
                    them */
    struct rp__chain_stage *stage; /* of a chain: what would be launched is kept here; NULL: it is launched */
} rp__group_lowering;
/* One product of a chain as its kernel takes it, with what follows, which stores `rows`: these may have no memory. */
typedef struct rp__chain_stage {
    rp__ir_value rows; /* RP__IR_NONE: of the last one */
    rp__dag *dag;      /* counted */
    rp__space space;
    rp__space_access accesses[RP__DAG_MAX_ACCESSES];
    rp_scalar scalars[RP__DAG_MAX_SCALARS];
    unsigned store; /* of dag->rest: the one of rows */
} rp__chain_stage;
/* lower_group.c: one launch for the members, or two where the group has columns. */
typedef struct rp__group_made {
    rp__dag *dags[2];                  /* the caller's to release; the second may be NULL */
    uint32_t taken[2][RP__FREE_COUNT]; /* freedoms, by number of nodes */
    uint32_t built;                    /* so many had to be made */
    rp__tuned tuned[2];                /* with RP__TUNE_USE */
    int64_t moved[2];                  /* bytes that a launch moves, each element once */
    char *schedule[2];                 /* in words, from rp__alloc; NULL: it has none */
} rp__group_made;
rp_status rp__group_lower(const rp__fusion *f, const rp__fuse_group *g, const rp__group_lowering *how,
                          rp__group_made *out);
/* lower_chain.c: the same for a chain, one launch: of made.dags the first is that of its first product. */
rp_status rp__chain_lower(const rp__fusion *f, const rp__fuse_group *g, const rp__group_lowering *how,
                          rp__group_made *out);
/* Bytes of `partial`; 0: none. */
int64_t rp__group_partial_bytes(const rp__fuse_group *g);

/* order.c: groups in an order that every dependency allows and that keeps little alive. order[n_live]. */
rp_status rp__fuse_order(const rp__fusion *f, uint32_t *order, uint32_t *n_live);

/* plan.c: offsets in one arena, or in memory that is there anyway. Lifetimes are positions in the order, both ends included.
   steps: how much was looked at; NULL: nobody wants to know. */
typedef struct rp__plan_buffer {
    int64_t bytes;
    uint32_t first, last;
    uint32_t space; /* out: RP__PLAN_ARENA, or a space */
    int64_t offset; /* out: in that */
} rp__plan_buffer;
typedef struct rp__plan_space { /* free behind position `last` */
    int64_t bytes;
    uint32_t last;
} rp__plan_space;
enum { RP__PLAN_ALIGNMENT = 256 };
#define RP__PLAN_ARENA UINT32_MAX
rp_status rp__plan(rp__plan_buffer *buffers, size_t n, const rp__plan_space *spaces, uint32_t n_spaces,
                   int64_t *arena_bytes, size_t *steps);

#endif
