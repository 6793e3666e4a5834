/* Units: a functional graph as AOT autograd calls it, forward or backward. One of an engine of programs is a program for each tuple
   of sizes, built when first called with them; kernels are shared between them. A public backend's is what that made of the
   graph, and one of neither runs node by node. */
#ifndef RP_COMPILE_UNIT_H
#define RP_COMPILE_UNIT_H

#include "compile/backend.h"
#include "compile/instances.h"

typedef struct rp__unit rp__unit;
typedef struct rp__unit_request {
    rp_ir *graph;         /* functional; retained */
    const rp__leaf *leaf; /* outlives the unit */
    bool no_graph, wait;  /* as in rp_compile_options */
    rp_numbers numbers;
    bool tune;
    rp_graph_layout layout;
    bool strict;                         /* a graph that the leaf cannot do is an error, not run node by node */
    rp__shared_arena *arena;             /* outlives the unit */
    const rp__executable_random *random; /* copied; totals of the function */
    size_t n_random;
    const rp__engine_options *engine_options; /* outlive the unit */
    const bool *donors;       /* copied; per argument: who runs the graph may give its memory away; NULL: none */
    const bool *free_results; /* copied; per result: its strides may be others than the graph's; NULL: of none */
    const bool *free_args;    /* copied; per argument: it lies as calls bring it, not as the graph says; NULL: none */
    rp__instances *instances; /* of the function; NULL: its own */
    rp__explain *explain;     /* of what the unit is a part of; NULL: nobody wants to know */
    const char *name;         /* of the unit, for explain: "forward" */
} rp__unit_request;

rp_status rp__unit_new(const rp__unit_request *request, rp__unit **out);
void rp__unit_free(rp__unit *u);
/* The explain list is about to die: counts are settled, later facts are lost. A unit may live on in tapes. NULL is allowed. */
void rp__unit_forget_explain(rp__unit *u);
typedef struct rp__unit_call {
    const int64_t *binding;             /* values of the graph's symbols; NULL without symbols */
    const rp__executable_random *draws; /* as rp__executable_run */
    size_t n_draws;
    rp__executable_random *drawn; /* likewise; untouched by leaves that draw as they run */
    bool donate;                  /* nobody needs the donors any more: the run may overwrite them */
} rp__unit_call;
rp_status rp__unit_run(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                       size_t n_out);
/* The executable that every call without draws of its own runs, from now on; NULL: there is none, or none yet. */
rp__executable *rp__unit_settled(const rp__unit *u);

#endif
