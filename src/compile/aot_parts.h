/* What the files of AOT autograd (aot.h) share; nobody else includes it. aot.c makes the object and its plans, of what aot_graph.c
   finds in the traced graph; aot_run.c runs it; aot_node.c does so for training, and is the node that the call leaves on the tape;
   aot_again.c runs such a call again. */
#ifndef RP_COMPILE_AOT_PARTS_H
#define RP_COMPILE_AOT_PARTS_H

#include "autograd/tape.h"
#include "compile/aot.h"
#include "compile/passes.h"
#include "compile/unit.h"

#define RP__AOT_EVERY UINT64_MAX /* results: all that have tangents */

/* Does the function write an argument or captured tensor, and does a second run of a call need what was there before? */
typedef enum rp__aot_write { RP__AOT_WRITES_NOT, RP__AOT_NEEDS_NONE, RP__AOT_KEEPS_OLD } rp__aot_write;

typedef struct rp__aot_plan {
    uint64_t given;               /* results whose gradients its backward takes */
    int64_t *binding;             /* sizes that it is for; NULL: all */
    rp__unit *forward, *backward; /* backward NULL: inference */
    rp__saved_source *saved;
    uint32_t n_saved;
    bool donates;       /* the backward may overwrite some of them */
    uint32_t *tangents; /* of the backward: numbers of rp__aot.tangent_of */
    uint32_t n_tangents;
    rp__explain *explain; /* of the object, or a part of it; NULL: none */
    struct rp__aot_plan *next;
} rp__aot_plan;

struct rp__aot {
    atomic_uint refs; /* the engine's, and one a tape node */
    rp_ir *graph;     /* as traced */
    const rp__leaf *leaf;
    bool on_tape; /* runs node by node under the tape */
    bool no_graph, wait, strict, tune;
    rp_numbers numbers;
    rp__engine_options engine_options;
    rp_graph_layout layout;
    bool training, step, segment;
    rp__shared_arena arena;
    rp__instances *instances; /* counted */
    size_t n_symbols;
    uint32_t n_results;  /* of the function */
    bool *free_results;  /* per result: its strides are the compiler's choice; NULL: none */
    rp__mutex lock;      /* plans, n_plans, explain */
    rp__aot_plan *plans; /* never changed once in the list */
    uint32_t n_plans;
    rp__explain *explain;
    _Atomic(rp__aot_plan *) current; /* of the last call */
    _Atomic uint64_t wanted;  /* what the last backward was given; 0: none has run, or nothing can be planned for it */
    _Atomic uint64_t *shared; /* rp__engine_request.given; used by calls only, as tape nodes may live longer */
    rp__executable_random *random; /* generators of the function */
    size_t n_random;
    /* training */
    uint32_t *tangent_of; /* per tangent: result number */
    uint32_t n_tangents;
    uint32_t *leaves; /* argument, or n_args + captured tensor; rising */
    uint32_t n_leaves;
    rp__aot_write *writes; /* per argument, then captured tensor */
};

/* ---- aot_graph.c */
/* a->leaves. */
rp_status rp__aot_find_leaves(rp__aot *a);
/* a->tangent_of; a->writes. */
rp_status rp__aot_find_tangents(rp__aot *a);
rp_status rp__aot_find_written(rp__aot *a, const rp_ir *functional);
/* The bits of `given` that say something of this graph, RP__AOT_EVERY if those are all. */
uint64_t rp__aot_plannable(const rp__aot *a, uint64_t given);
/* Saved memory that nobody but the tape has a handle of: made by the forward, and no part of another result. */
bool rp__aot_is_tapes_own(const rp__partitioned *parts, const rp__saved_source *s, uint32_t n_results);

/* ---- aot.c */
void rp__aot_release(rp__aot *a); /* one count of a->refs; NULL is allowed */
/* The plan for this call: for what the last backward was given. */
rp_status rp__aot_choose_plan(rp__aot *a, const int64_t *binding, rp__aot_plan **out);

/* ---- aot_node.c */
/* The forward of the plan for this call; the results hang on one node. As rp__aot_run; binding: of the graph's symbols. */
rp_status rp__aot_run_training(rp__aot *a, const int64_t *binding, rp_tensor *const *in, rp_tensor **out, size_t n_out);

#endif
