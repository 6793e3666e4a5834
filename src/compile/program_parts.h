/* What the files of a program (program.h) share with each other and with the pipeline, which fuses its parts and runs its steps in
   order; nobody else includes it. program_place.c gives buffers places, program.c records groups. program_slots.c reads from the slots of the records which edges there are and which words to patch.
   program_run.c is the call, program_moved.c what it does where memory moved, program_capture.c the call while the stream
   captures. program_facts.c says of it what explain prints. */
#ifndef RP_COMPILE_PROGRAM_PARTS_H
#define RP_COMPILE_PROGRAM_PARTS_H

#include "compile/program.h"
#include "device/capture.h"

typedef struct rp__program_patch { /* a word that holds an address inside a buffer */
    uint32_t record, word;
} rp__program_patch;

typedef struct rp__program_buffer {
    enum {
        RP__BUFFER_ARG,
        RP__BUFFER_CAPTURED,
        RP__BUFFER_RESULT,
        RP__BUFFER_CONST,
        RP__BUFFER_TEMP,
        RP__BUFFER_NONE
    } kind;
    uint32_t index; /* argument, captured tensor, result slot */
    int64_t bytes;
    int64_t first_element; /* outside: offset of element 0 as traced */
    rp__executable_place place;
    char *address; /* outside and results: byte 0 as the records have it */
    rp__program_patch *patches;
    uint32_t n_patches;
    bool written; /* by an ASSIGN or in place */
    const char *written_site;
    int64_t begin, end; /* bytes of it that records touch */
    bool library;       /* a record touches it that cannot be re-pointed inside a device graph */
    bool donated;       /* an argument in which temporaries lie, behind its last reader */
} rp__program_buffer;

typedef struct rp__program_outer { /* an argument or captured tensor that records touch */
    uint32_t buffer;
    uint32_t arg; /* RP__IR_NONE: captured */
    rp_tensor *captured;
    int64_t shift; /* address of byte 0 = address of element 0 - shift */
    int64_t element_bytes;
    uintptr_t now; /* the address of element 0 with which the records are right; 0: none */
    const char *site;
    rp__storage *
        fixed; /* counted. Not NULL: records use this memory of ours, and each call copies (see rp__program_read_moved) */
    rp__executable_copy why;
} rp__program_outer;

enum { RP__PROGRAM_MEMORIES = 3 };
typedef struct rp__program_memory { /* memory of one result buffer: reused when the caller has let go of it */
    uint32_t buffer;
    rp__storage *kept[RP__PROGRAM_MEMORIES]; /* counted */
    rp__storage *now;                        /* of the running call; borrowed from kept */
    rp__storage *fixed; /* counted. Not NULL: records write this memory of ours, and each call copies it to `now` */
} rp__program_memory;

typedef struct rp__program_result { /* a handle to be returned */
    bool absent;
    bool same; /* it is an argument (then `arg`) or a captured tensor itself */
    uint32_t arg;
    uint32_t memory; /* index into results, RP__IR_NONE: it lies in an argument or captured tensor */
    uint32_t outer_buffer;
    rp_dtype dtype;
    uint8_t ndim;
    rp_dim size[RP_MAX_DIMS], stride[RP_MAX_DIMS], offset; /* offset in the buffer */
    const char *op, *site;
} rp__program_result;

/* A block of the graph: its body, or that of a region. */
typedef struct rp__program_step {
    uint32_t record; /* RP__IR_NONE: a choice */
    struct rp__program_choice *choice;
} rp__program_step;
typedef struct rp__program_segment { /* steps that one device graph runs, where the host decides (p->split) */
    uint32_t first, n;
    rp__devgraph *graph;
} rp__program_segment;
typedef struct rp__program_part {
    struct rp__program_part *next; /* of p->parts */
    rp_ir *ir;                     /* counted */
    rp__fusion fusion;             /* gone when the program is built */
    rp__group_kernel *kernels;     /* of its groups at other sizes, borrowed while the program is built; NULL: none */
    uint32_t *order, n_order;      /* of its groups */
    uint32_t first_group;          /* its groups as records number them */
    uint32_t *buffer_of;           /* per storage of ir */
    int64_t *bytes;                /* per storage of ir that its nodes make */
    struct rp__program_choice *choices;
    rp__program_step *steps;
    uint32_t n_steps;
    size_t steps_capacity;
    rp__program_segment *segments;
    uint32_t n_segments;
    size_t segments_capacity;
} rp__program_part;

/* A region: which of its blocks run, and how often. */
typedef struct rp__program_choice {
    struct rp__program_choice *next; /* of its part */
    bool loop;
    int64_t limit;             /* loops: 0: none */
    uint32_t group, node;      /* of the part */
    rp__program_part *test;    /* loops: computes whether to go on */
    rp__program_part *body[2]; /* loops: body; else: then, else */
    uint32_t counter;          /* buffer; RP__IR_NONE */
    uint32_t set, again; /* records that decide for a device graph: before it, and behind each iteration of a loop */
    const char *site;
} rp__program_choice;

/* Where a record is in device graphs; a loop's test is in two. */
typedef struct rp__program_place {
    rp__devgraph *graph;
    uint32_t node, next; /* of the same record */
    uint64_t handle;     /* of the decision that it makes: its first word there; 0: none */
} rp__program_place;

struct rp__executable {
    rp__device *device;
    rp__arena arena;
    rp_ir *
        ir; /* counted; as its body is (spread.c, blocks.c): names, sites, captured tensors and generators live in it */
    rp__program_part *body, *parts; /* parts: all, the body last */
    uint32_t n_groups, n_choices;
    rp__shared_arena *turn, own_turn; /* whose lock and stream order the runs: the shared arena, or its own */
    uint64_t met;                     /* stream that what is the program's own is on (program_streams.c); 0: none yet */
    rp_stream *build_stream;
    rp_pool *pool;               /* scratch of library ops */
    rp__storage *memory;         /* the arena; counted */
    rp__program_buffer *buffers; /* per storage of the graph, then those of regions */
    uint32_t n_buffers;
    size_t buffers_capacity;
    rp__launch **records;
    uint32_t n_records;
    size_t records_capacity;
    uint32_t *record_group; /* of all parts'; RP__IR_NONE: of none */
    size_t record_group_capacity;
    struct rp__program_made { /* per group of all parts: its own records and DAGs, which lie side by side */
        uint32_t first_record, n_records, first_dag, n_dags;
    } * made;
    struct rp__program_joined { /* groups whose launch is part of another one's record */
        uint32_t group, record;
    } * joined;
    size_t n_joined, joined_capacity;
    uint32_t *node; /* per record: the first of its places, RP__IR_NONE */
    rp__program_place *places;
    uint32_t n_places;
    size_t places_capacity;
    rp__storage **scratch; /* counted */
    struct rp__program_dag {
        rp__dag *dag; /* counted */
        uint32_t taken[RP__FREE_COUNT];
        rp__tuned tuned;
        int64_t moved;
        const char *schedule; /* in the arena; NULL: none */
    } * dags;
    size_t n_dags, dags_capacity;
    size_t n_scratch, scratch_capacity;
    bool graphed;                   /* launches go through device graphs */
    bool one_call;                  /* of a library: program_run.c, launch_call */
    uint32_t steady, calls_graphed; /* of one_call: calls in a row with the same memory; graphs made so far */
    rp_graph_layout layout;         /* as asked for */
    unsigned freedoms;              /* of kernels: bit rp__freedom */
    bool tune;                      /* schedules are measured */
    rp__executable_layout *layouts; /* of its device graphs */
    size_t n_layouts, layouts_capacity;
    _Atomic uint64_t executables; /* of them; counted by the device, if it has any */
    rp__devgraph *graph;          /* the whole; NULL: launched one by one, or in segments */
    const char *split;            /* why it is segments: regions are decided by the host */
    bool stale;                   /* records that cannot be re-pointed have changed: the graph must be built again */
    size_t n_edges;
    uint32_t n_ahead; /* records whose word rp__launch.ahead is set */
    /* The first n_written are written. Those that can move lie side by side, from first_compared to end_compared: each call
       compares their addresses, and no others. */
    rp__program_outer *outers;
    uint32_t n_outers, n_written, first_compared, end_compared;
    rp__program_memory *results;
    uint32_t n_results;
    rp__program_result *outs;
    uint32_t n_outs;
    uint8_t *touched; /* per record: words changed since the graph has seen them */
    uint32_t *touched_list, n_touched;
    rp__executable_random *random;
    size_t n_random;
    rp__capture_random *states; /* device memory of seeds; ours */
    size_t n_states;
    rp__executable_kernel *kernels;
    size_t n_kernels;
    struct rp__executable_unfused *unfused;
    size_t n_unfused;
    struct rp__executable_region *regions;
    size_t n_regions;
    uint32_t n_fused, n_lowered; /* parts fused, and kernels lowered, for this program and no other */
    int64_t arena_bytes, result_bytes, donated_bytes, eager_peak;
    uint64_t runs, hot_runs; /* hot_runs: the run at which kernels are worth compiling better; 0: never */
    _Atomic uint64_t held;   /* bytes of results, scratch memory and what calls copy to */
    _Atomic uint64_t patches, fresh, moved, copies[RP__COPY_COUNT]; /* written under the lock, read by explain */
    _Atomic uint32_t moves, told; /* kinds of moves that happened, and those of them that tell() knows */
    void (*tell)(void *ctx, const rp__executable *p, uint32_t kinds);
    void *tell_ctx;
};

static inline int64_t rp__program_value_bytes(const rp_ir *ir, rp__ir_value v) { /* of a dense value */
    const rp__meta *m = &ir->values[v].meta;
    return rp__numel(m->size, m->ndim) * (int64_t)rp__dtype_bytes(m->dtype);
}

static inline void rp__program_count(_Atomic uint64_t *counter, uint64_t by) { /* one writer at a time */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by, memory_order_relaxed);
}

/* The region that is a group of the part. */
static inline rp__program_choice *rp__program_choice_of(const rp__program_part *part, uint32_t group) {
    rp__program_choice *c = part->choices;
    while (c && c->group != group) c = c->next;
    return c;
}

/* ---- program.c: a program is made by these, in this order (pipeline.c) */
/* Without parts. options->random: as many as the graph has generators, or more. */
rp_status rp__program_begin(const rp_ir *ir, size_t n_in, const rp__executable_options *options, rp__executable **out);
/* One of `ir`, taken over, also on failure; its storages have no buffers yet. */
rp_status rp__program_part_new(rp__executable *p, rp_ir *ir, rp__program_part **out);
/* When it is fused: its groups are numbered, and there is room for their order. */
rp_status rp__program_part_groups(rp__executable *p, rp__program_part *part);
/* The region that is group `group` of the part; its blocks are missing. */
rp_status rp__program_choice_new(rp__executable *p, rp__program_part *part, uint32_t group, rp__program_choice **out);
/* Lowers every group: the records. */
rp_status rp__program_record(rp__executable *p);
/* From which run on kernels are worth compiling better; with wait, they are at once. */
void rp__program_plan_heat(rp__executable *p, bool wait);
/* Whatever has become of it, nothing reads the fusions of parts any more. p: NULL is allowed. */
void rp__program_parts_made(rp__executable *p);

/* ---- program_place.c */
/* Gives each value that is stored its memory: all parts are fused and ordered. */
rp_status rp__program_place_buffers(rp__executable *p, rp_tensor *const *in, const rp__executable_options *options);

/* ---- program_slots.c */
/* Device graphs of all records: p->graph, or segments where regions cannot be nodes. */
rp_status rp__program_build_graph(rp__executable *p);
/* A library's call and nothing else: a graph of it would save no launch, and what it touches would be copied wherever memory moves. */
bool rp__program_is_one_call(const rp__executable *p);
void rp__program_drop_graph(rp__executable *p);
/* Its kernels are worth compiling better; with wait, they are when it returns. */
void rp__program_heat(rp__executable *p, bool wait);
/* Fills patches of buffers, and outers. Every record is there. */
rp_status rp__program_collect_patches(rp__executable *p);

/* ---- program_moved.c, under the lock */
/* An argument or captured tensor t lies at `address`, not where its records read. */
rp_status rp__program_read_moved(rp__executable *p, rp__program_outer *o, const rp_tensor *t, char *address,
                                 rp_stream *s);
/* What assignments wrote into memory of ours, where the buffer's byte 0 is `zero`, goes to the tensor: exactly the elements
   written, nothing between them. */
rp_status rp__program_write_back(const rp__executable *p, const rp__program_outer *o, const rp_tensor *t,
                                 rp__storage *own, const char *zero);
enum {
    RP__PROGRAM_ALIGNMENT = 15
}; /* low bits of an address for which kernels are compiled: the widest load is 16 bytes */
/* Memory of ours in place of what records touch of b, aligned as that; *zero: where the buffer's byte 0 would be. */
rp_status rp__program_own_memory(const rp__executable *p, const rp__program_buffer *b, rp_stream *s, rp__storage **own,
                                 char **zero);
/* to = from, both inside their storages, on the current stream. */
rp_status rp__program_copy_bytes(rp__storage *to_storage, const char *to, rp__storage *from_storage, const char *from,
                                 int64_t bytes);
/* Memory for a result whose last one the caller holds: one that nobody holds any more, or new. */
rp_status rp__program_next_memory(rp__executable *p, rp__program_memory *r, rp_stream *s);
/* The run on s is ordered behind what other streams do with the memory that it shares with them (program_streams.c). */
rp_status rp__program_meet(rp__executable *p, rp_tensor *const *in, rp_stream *s);
/* The run may overwrite the memory of its results: behind those who read the last ones. */
rp_status rp__program_await_readers(const rp__executable *p, rp_stream *s);
/* What records wrote into memory of ours goes to the memory of the result. */
rp_status rp__program_give_result(rp__executable *p, const rp__program_memory *r);

/* ---- program_capture.c, under the lock */
/* Gives the launches of a call to a stream that captures. results[k]: memory of result k, counted by the caller, also on failure;
   NULL: none yet. */
rp_status rp__program_capture(rp__executable *p, rp_tensor *const *in, rp_stream *s, rp__storage **results);

/* ---- program_facts.c */
int64_t rp__program_eager_peak(const rp_ir *ir); /* bytes of the graph run op by op */
/* Its results, and what explain says of it; while fusions of the parts are there. */
rp_status rp__program_describe(rp__executable *p);

#endif
