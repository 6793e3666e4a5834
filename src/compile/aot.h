/* AOT autograd: from a traced graph to functional graphs that a leaf backend compiles, forward and backward joined to the tape as
   one node. The contract between the engines (backend_registry.c) and the pipeline (pipeline.h).

   What an implementation does with a graph:
     inference  one functional graph (ASSIGN nodes at its end write mutated arguments back) goes to the leaf.
     training   two functional graphs; the leaf compiles the forward now and the backward at the first backward;
                run() gives results that hang on one tape node with the arguments and captured tensors that need a gradient as
                inputs, saved values checked for versions.
     both       a result that is an argument, or a view of one, is regenerated outside from the real argument.
   Every graph that reaches the leaf passes rp_ir_check and has no in-place op. Captured tensors stay CAPTURED nodes. */
#ifndef RP_COMPILE_AOT_H
#define RP_COMPILE_AOT_H

#include "compile/backend.h"

typedef struct rp__aot rp__aot;

rp_status rp__aot_compile(const rp__leaf *leaf, const rp__engine_request *request, rp__aot **out);
/* As rp__engine.run. */
rp_status rp__aot_run(rp__aot *a, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
/* As rp__engine.settled. */
struct rp__executable *rp__aot_settled(const rp__aot *a);
void rp__aot_free(rp__aot *a);

#endif
