/* The passes of floor 6 in the order in which they run; pipeline.c calls them. Each takes a graph and makes another; the caller
   releases both. */
#ifndef RP_COMPILE_PASSES_H
#define RP_COMPILE_PASSES_H

#include "device/generator.h"
#include "trace/ir.h"

/* functionalise.c: no node writes memory but ASSIGN nodes at the end of the body, one a mutated input or captured tensor. */
rp_status rp__functionalise(const rp_ir *ir, rp_ir **out);

/* random_totals.c: how many counters each generator of the graph takes in all (a word of the graph's symbols, if it has any);
   *out is freed with rp__free. */
/* Counters of one generator: how many a call takes, and where a call found it. */
typedef struct rp__executable_random {
    rp_generator *generator; /* borrowed from the graph */
    uint64_t count;
    uint64_t seed, base;
    rp__random_memory
        *memory; /* of a call that was captured: the replay's seed is there, and base counts from what is there */
} rp__executable_random;
rp_status rp__random_totals(const rp_ir *ir, rp__executable_random **out, size_t *n);
/* Which one the caller gave a random node; NULL: its device's. */
rp_generator *rp__random_generator(const rp__ir_node *n);

/* joint.c: of a graph as traced, for values of its symbols (NULL: they stay), (inputs, tangents) -> (results, gradients). A leaf is numbered: argument k is k, captured tensor c is n_inputs +
   c. One tangent for each result that carries a gradient, is no argument itself and has its bit in `given` (results from the
   64th on: always); one gradient for each leaf asked for, in that order, after the results
   (RP__IR_NONE: nothing depends on the leaf). */
typedef struct rp__joint {
    rp_ir *ir;
    uint32_t n_inputs, n_results; /* of the forward */
    uint32_t *tangent_of;         /* per tangent: result number */
    uint32_t n_tangents;
    uint32_t *grad_arg; /* per gradient: its leaf */
    uint32_t n_grads;
    bool
        relaxed; /* kernels need not give the bits of others (RP_NUMBERS_FAST): what is compared for equality is calculated once */
} rp__joint;
rp_status rp__joint_build(const rp_ir *ir, const int64_t *binding, const uint32_t *leaves, uint32_t n_leaves,
                          uint64_t given, rp__joint *out);
/* Has result k a tangent? */
bool rp__joint_has_tangent(const rp_ir *ir, uint32_t k, uint64_t given);
void rp__joint_free(rp__joint *j);

/* decompose.c: dropout as a mask that needs no operand and products with it, once gradients are taken. *out may be ir,
   counted. */
rp_status rp__decompose(rp_ir *ir, rp_ir **out);
/* Drawing one random number again, in bytes of memory traffic that take as long. */
unsigned rp__draw_bytes(rp_device device);

/* simplify.c: dead code, common subexpressions, identities that keep every bit. gradients_done: nothing will be differentiated
   any more, so detach and no_grad boundaries may go. */
rp_status rp__simplify(const rp_ir *ir, bool gradients_done, rp_ir **out);

/* partition.c: two graphs. forward: (inputs) -> (results, saved); backward: (saved, tangents) -> (gradients, in the order of the
   leaves; RP__IR_NONE where there is none). */
typedef enum rp__saved_kind {
    RP__SAVED_RESULT,  /* result `index` of the forward: one of the function's own, or one behind them */
    RP__SAVED_ARG,     /* argument `index` */
    RP__SAVED_CAPTURED /* captured tensor `index` */
} rp__saved_kind;
typedef struct rp__saved_source {
    rp__saved_kind kind;
    uint32_t index;
} rp__saved_source;
typedef struct rp__partitioned {
    rp_ir *forward, *backward;
    rp__saved_source *saved; /* one an argument of the backward, before the tangents */
    uint32_t n_saved;
    int64_t saved_bytes;   /* by hints; without arguments and captured tensors */
    uint32_t n_recomputed; /* nodes that no tangent reaches and that the backward runs */
} rp__partitioned;
/* RP_ERROR_UNAVAILABLE: the backward needs what the forward overwrites.
   keep_random: random ops are not run again and stay in the forward even if nobody reads them (for leaves that draw as they run,
   without a base of their own). */
rp_status rp__partition(const rp__joint *joint, bool keep_random, rp__partitioned *out);
void rp__partitioned_free(rp__partitioned *p);

/* specialise.c: the graph with its symbols replaced by values. */
rp_status rp__specialise(const rp_ir *ir, const int64_t *binding, rp_ir **out);

/* spread.c: values that are made from nothing (fills, ranges) once for each loop that reads them, so that each kernel makes its
   own. *out may be ir itself, counted. Nothing after it may merge equal expressions. */
rp_status rp__spread(rp_ir *ir, rp_ir **out);

/* layout.c: values around convolutions with their channels innermost, where the device reads them faster. free_results: per result, may it
   lie otherwise than ir says; NULL: none. *out may be ir, counted. */
rp_status rp__layout(rp_ir *ir, const bool *free_results, rp_ir **out);
/* Per argument: do nothing but kernels that take any strides read it? */
void rp__layout_free_args(const rp_ir *ir, bool *is_free);
/* restride.c: arguments k with moved[k] lie as in[k] does. *out may be ir, counted. */
rp_status rp__restride(rp_ir *ir, const bool *moved, rp_tensor *const *in, rp_ir **out);

/* join_scatters.c: a sum of scatters into zeros that fill a tensor, the gradient of a split, is a cat. *out may be ir, counted. */
rp_status rp__join_scatters(rp_ir *ir, rp_ir **out);

/* cats.c: operands of a cat are stored in its result, and so is what a scatter writes into. First, before blocks are settled, copies
   of those that cannot be; *out may be ir, counted. Then, on a settled graph that is the caller's own if it has either, places. */
rp_status rp__cats_part(rp_ir *ir, rp_ir **out);
rp_status rp__cats_place(rp_ir *ir);

/* blocks.c: what planning needs of regions (blocks.c says what), for the body of a graph, and for a region's block: opened, it
   is a graph by itself, which other passes may take before it is settled, too. node: of ir, which is settled. */
rp_status rp__blocks_settle(const rp_ir *ir, rp_ir **out);
rp_status rp__block_open(const rp_ir *ir, uint32_t node, uint32_t region, rp_ir **out);
rp_status rp__block_settle(const rp_ir *block, const rp_ir *ir, uint32_t node, uint32_t region, rp_ir **out);

/* fuse.h: fuse.c, chain.c. program.h: order.c, plan.c, lower_group.c. */

#endif
