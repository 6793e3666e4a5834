/* From a traced graph to a program: pipeline.c names every pass, in order, and nobody else calls one.

     inference  traced -> one functional graph, which a unit (unit.h) runs. So are segments, and whole training steps, whose
                gradients are part of what was traced.
     training   traced -> with its derivatives, functional -> forward and backward, two units.
     program    a unit's graph, for one tuple of sizes -> launch records. */
#ifndef RP_COMPILE_PIPELINE_H
#define RP_COMPILE_PIPELINE_H

#include "compile/backend.h"
#include "compile/passes.h"
#include "compile/program.h"

/* random, with n_random: NULL, or what the function draws of its generators, also through ops that are removed later on; freed
   with rp__free. */
rp_status rp__pipeline_functional(const rp_ir *traced, rp_ir **out, rp__executable_random **random, size_t *n_random);

/* A leaf that draws as it goes gets every node, and no totals. */
rp_status rp__pipeline_inference(const rp_ir *traced, rp__leaf_kind leaf, rp_ir **out, rp__executable_random **random,
                                 size_t *n_random);

typedef struct rp__pipeline_pair {
    rp__joint joint;
    rp__partitioned parts;
} rp__pipeline_pair;
/* binding, leaves and given as rp__joint_build takes them. */
rp_status rp__pipeline_training(const rp_ir *traced, const int64_t *binding, rp__leaf_kind leaf, const uint32_t *leaves,
                                uint32_t n_leaves, uint64_t given, rp_numbers numbers, rp__pipeline_pair *out);
void rp__pipeline_pair_free(rp__pipeline_pair *p); /* zeroed is fine */

/* The graph for values of its symbols. */
rp_status rp__pipeline_sized(const rp_ir *ir, const int64_t *binding, rp_ir **out);

/* A functional graph without symbols; in[]: arguments as the first call will bring them; options: NULL is all zero. */
rp_status rp__pipeline_program(const rp_ir *ir, rp_tensor *const *in, size_t n_in,
                               const rp__executable_options *options, rp__executable **out);

#endif
