/* The backend seam. Inside, a backend is an engine: it takes a graph as it was traced (in-place ops and views as they are)
   and gives an object whose run() is joined to the tape when the graph is for training. Engines: "eager"; "aot_eager",
   "cudagraphs" and "fused" (alias "inductor"), which AOT autograd (aot.h) makes of what runs functional graphs, their leaf; a
   public rp_backend becomes an engine in the same way. All are in the table of backend_registry.c. */
#ifndef RP_COMPILE_BACKEND_H
#define RP_COMPILE_BACKEND_H

#include "compile/explain.h"
#include "trace/ir.h"

typedef struct rp__engine rp__engine;

/* What the functional graphs that AOT autograd makes for an engine become. */
typedef enum rp__leaf_kind {
    RP__LEAF_NODES,   /* nothing: they run node by node. The reference */
    RP__LEAF_PROGRAM, /* a program of eager's kernels, one a node */
    RP__LEAF_FUSED,   /* a program of fused kernels */
    RP__LEAF_DOOR,    /* another engine's, with programs of fused kernels around it (src/doors/) */
    RP__LEAF_USERS    /* what a public backend makes of them */
} rp__leaf_kind;

/* Keys and values of rp_compile_options.engine_options. */
typedef struct rp__engine_options {
    char **text; /* key, value, key, value, .. */
    size_t n;    /* pairs */
} rp__engine_options;
rp_status rp__engine_options_copy(const char *const (*pairs)[2], size_t n, rp__engine_options *out);
void rp__engine_options_free(rp__engine_options *o);
const char *rp__engine_option(const rp__engine_options *o, const char *key); /* NULL: not given */
/* An option that is 0, as if it were not given, or 1. */
bool rp__engine_switch(const rp__engine_options *o, const char *key);
rp_status rp__engine_check_switch(const rp__engine_options *o, const char *engine, const char *key);

struct rp__executable_random;
typedef struct rp__leaf rp__leaf;
/* What a leaf of a higher floor is given: one graph of concrete sizes. */
typedef struct rp__leaf_request {
    rp_ir *graph;                      /* functional; retained by whoever keeps it */
    const rp__engine_options *options; /* outlive what is made */
    bool strict, wait, no_graph, tune;
    rp_numbers numbers;
    rp_graph_layout layout;
    const struct rp__executable_random *random; /* totals of the function; copied by whoever keeps them */
    size_t n_random;
    /* One fact for explain, at any time until what was made is destroyed. */
    void (*tell)(void *ctx, const char *kind, rp__reason reason, const char *site, const char *text);
    void *tell_ctx;
} rp__leaf_request;
typedef struct rp__leaf_ops {
    rp_status (*compile)(const rp__leaf *leaf, const rp__leaf_request *request, void **made);
    /* draws: of each generator of the function; n_draws 0: it has none */
    rp_status (*run)(void *made, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                     const struct rp__executable_random *draws, size_t n_draws);
    void (*destroy)(void *made);
    /* Fills the info; and, of options, says what is wrong. */
    void (*info)(const rp__leaf *leaf, rp_backend_info *info);
    rp_status (*check)(const rp__leaf *leaf, const rp__engine_options *options);
} rp__leaf_ops;

struct rp__leaf {
    rp__leaf_kind kind;
    rp_backend users;        /* all zero for the others */
    const rp__leaf_ops *ops; /* RP__LEAF_DOOR */
    const void *door;        /* of the ops */
};
static inline bool rp__leaf_is_program(rp__leaf_kind kind) {
    return kind == RP__LEAF_PROGRAM || kind == RP__LEAF_FUSED || kind == RP__LEAF_DOOR;
}

typedef struct rp__engine_request {
    rp_ir *graph;  /* checked; borrowed: rp__ir_retain to keep it. Arguments: see rp__trace_result */
    bool training; /* some result requires a gradient: run() joins forward and backward to the tape as one node */
    bool segment;  /* of trace-and-flush: no tape (it exists already, op by op); grad mode is off */
    bool step;     /* not for training, but a backward ran in the function: a whole training step */
    const rp_compile_options *options;        /* borrowed for the call */
    const rp__engine_options *engine_options; /* likewise; NULL: none */
    struct rp__instances *instances;          /* programs that the function keeps; NULL: the object's own */
    rp__explain *explain;                     /* of the specialisation; lives as long as the object */
    /* Results (bits) whose gradients the last backward of any graph of the function was given; 0: none ran. Lives as long as
       the object; NULL: nobody wants to know. */
    _Atomic uint64_t *given;
} rp__engine_request;

enum {
    RP__ENGINE_RUNS_FUNCTION = 1, /* "eager": no graph at all, the function runs at every call */
    RP__ENGINE_DEBUG = 2
}; /* for finding out which layer is wrong; not for speed */

struct rp__engine {
    const char *name, *alias; /* alias may be NULL */
    unsigned tags;
    rp_status (*compile)(const rp__engine *self, const rp__engine_request *request, void **object);
    /* in: as many as the graph takes; out[k] of the innermost scope, NULL where the graph has no result; a result that is an
       argument (or a view of one) is that handle (a view of it). Called by any thread, by several at once; grad mode is off
       unless the graph is for training. */
    rp_status (*run)(void *object, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
    /* The program that run() is, and nothing around it, from now on: it may be run in its place. NULL: there is none, or none
       yet. May be NULL itself. */
    struct rp__executable *(*settled)(const void *object);
    void (*destroy)(void *object);
    const rp__leaf *leaf; /* NULL: it takes no graphs */
};

/* Engines of higher floors; `e` and what it points to stay. The name must be new. */
rp_status rp__engine_register(const rp__engine *e);
const rp__engine *
rp__engine_find(const char *name); /* NULL name: the default. NULL and an error that lists the names */

/* An engine that AOT autograd makes of a leaf. */
rp_status rp__leaf_compile(const rp__engine *self, const rp__engine_request *request, void **object);
rp_status rp__leaf_run(void *object, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
void rp__leaf_destroy(void *object);
struct rp__executable *rp__leaf_settled(const void *object);
#define RP__ENGINE_OVER_LEAF                                                                                           \
    .compile = rp__leaf_compile, .run = rp__leaf_run, .settled = rp__leaf_settled, .destroy = rp__leaf_destroy

/* Engines of floor 8, which fills the table (src/doors/table.c); NULL at its end. */
extern const rp__engine *const rp__door_engines[];

/* Of the engines "aot_eager", "cudagraphs" and "fused". */
extern const rp__leaf rp__leaf_nodes, rp__leaf_program, rp__leaf_fused;

#endif
