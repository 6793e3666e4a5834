/* What the files of the regions share; nobody else includes it (what others call is in trace.h). A region is a node of the trace
   whose blocks are functions of the caller: rp_cond, rp_while, rp_checkpoint and custom functions. Without a trace the host runs
   the functions (the tape sees their ops, checkpoint drops what it would save). In a trace each becomes one node whose blocks are
   the functions, traced abstractly and closed: what they read from outside becomes operands.
     regions.c            closing a function, recording a node, what the tape keeps, derivatives of blocks, dispatch of backward
     region_cond.c, region_while.c, region_checkpoint.c, region_function.c   one kind each
   One rule for results: a function gives every result that it is asked for, and branches give the same types.
   Blocks are traced without a tape; where a function switches grad mode off, the operands that could carry a gradient are detached,
   and flow.h says which results carry one.
   A function that reads a value on the host, draws random numbers inside cond or while, writes with grad mode off into what carries
   a gradient, or leaves grad mode other than it found it, cannot be a block: the trace computes what is pending, and the host
   runs it. */
#ifndef RP_TRACE_REGIONS_H
#define RP_TRACE_REGIONS_H

#include "autograd/tape.h"
#include "trace/ir_run.h"
#include "trace/trace.h"

typedef struct rp__region_where { /* a call, for messages */
    const char *of, *site;
} rp__region_where;

static inline const char *rp__region_name_of(rp_fn fn) {
    return fn.name && *fn.name ? fn.name : "a function without a name";
}
static inline const char *rp__region_place_of(const char *site) { return site && *site ? site : "no call site"; }

/* ---- what every call does */

/* `name` is called with these: nothing is NULL or the error tensor; empties out. what: in[k], for messages. */
rp_status rp__region_check_functions(const char *name, const char *what, rp_fn a, rp_fn b, rp_tensor *const *in,
                                     size_t n_in, rp_tensor **out, size_t n_out);
/* The rule for results, wherever the function runs: each that was asked for is there. */
rp_status rp__region_check_result(rp__region_where at, rp_fn fn, rp_tensor *t, size_t k);
/* Arguments as a function of a branch or loop sees them, on the host and in a trace: row-major. Operands from `n_own` on are
   what the functions read from outside, which stays as it is: a copy would add up gradients in another order. */
rp_status rp__region_settle_operands(rp_tensor *const *in, size_t n, size_t n_own, rp_tensor **out);
/* The host may not decide while the stream captures: replays would take what was taken then. */
rp_status rp__region_may_decide(rp__region_where at, const rp_tensor *on, const char *what);
/* The same into a new list, which the caller frees, also on failure. */
rp_status rp__region_settle(rp__region_where at, rp_tensor *const *in, size_t n, size_t n_own, rp_tensor ***out);
/* Failures after which the host runs the functions. Takes the error. */
bool rp__region_falls_back(rp_status status);
/* After such a failure of a branch or loop the trace ends: *t becomes NULL. Other statuses are given back. */
rp_status rp__region_fall_back(rp__region_where at, rp_status status, rp__trace **t);
/* carries[k]: the tape records, and result k of the block a, or of b (NULL: there is none), depends on an operand that needs
   a gradient. n_state > 0: a loop, whose results are its first n_state operands of the next iteration. *any: one does. */
rp_status rp__region_flow(const rp_ir *a, const rp_ir *b, size_t n_state, rp_tensor *const *operands, size_t n,
                          bool *carries, bool *any);
/* On failure every output is the error tensor; on success outputs move out of the inner scope. */
rp_status rp__region_finish(rp_scope scope, rp_status status, rp_tensor **out, size_t n_out);

/* ---- a closed function */

typedef struct rp__region {
    rp_ir *ir;            /* arguments: the explicit ones, then operands */
    rp_tensor **operands; /* retained */
    size_t n_operands;
    rp_dim random_count;
} rp__region;

/* Frees the contents and empties *r; a zeroed one holds nothing. */
void rp__region_free(rp__region *r);
/* The layout of t, as arguments of rp__region_trace_closed have it. */
void rp__region_info_of(const rp_tensor *t, rp__ir_value_info *out);
/* fn on stand-ins of the types `infos`. derived: gradients may go through what it records, op by op. out: caller's, empty on
   failure. */
rp_status rp__region_trace_closed(rp_fn fn, bool derived, const rp__ir_value_info *infos, size_t n_in, size_t n_out,
                                  rp__region *out);
/* The same on stand-ins of `in`, as a block: its results are fresh row-major tensors. Where fn gives others they are copied;
   own: refused, if they share memory with arguments, with each other or with what lies outside. */
rp_status rp__region_trace(rp__region_where at, rp_fn fn, bool own, rp_tensor *const *in, size_t n_in, size_t n_out,
                           rp__region *out);
/* Appends from's nodes and results to ir's body, whose own arguments stay: `args` are those of `from`, one for each. */
rp_status rp__region_copy_onto(rp_ir *ir, const rp_ir *from, rp__ir_value *args);
/* A copy of r's graph whose arguments past n_explicit are `all` (which holds r's operands). */
rp_status rp__region_widen(const rp__region *r, size_t n_explicit, rp_tensor *const *all, size_t n_all, rp_ir **out);
/* The operands of two regions (b: NULL, or the second), each once. *all: n of them, borrowed; the caller frees the list. */
rp_status rp__region_merge_operands(const rp__region *a, const rp__region *b, rp_tensor ***all, size_t *n);

/* Records kind(operands) with the graphs a (and b, or NULL) as blocks; pending outputs typed as the results of `typed`.
   max_iter and keeps: the attributes of a WHILE. *made: the node's number; made may be NULL. */
rp_status rp__region_emit(rp__trace *t, rp__region_where at, rp__ir_kind kind, const rp_ir *a, const rp_ir *b,
                          rp_tensor *const *operands, size_t n, int64_t max_iter, size_t keeps, const rp_ir *typed,
                          rp_tensor **out, uint32_t *made);

/* ---- what the tape keeps of a region */

typedef struct rp__region_kept {
    rp__ir_kind kind;
    rp_ir *a, *b;
    rp__saved *saved; /* n: predicate (cond), operands; loops: operands, count, stacks */
    size_t n_saved, n_operands, n_state;
    int64_t max_iter;
    rp_generator *generator; /* checkpoint: counted; NULL: it draws nothing */
    rp_dim random_offset;
    rp__random_draw draw;      /* where the block began to draw */
    rp__random_memory *memory; /* of draw.state; counted */
} rp__region_kept;

/* Puts out[k] with carries[k] on the tape behind operands, with `save` kept for the backward. Takes the contents over, also on
   failure. */
rp_status rp__region_attach(rp__region_where at, rp__region_kept *contents, const char *name, rp_tensor *const *save,
                            size_t n_save, rp_tensor *const *operands, size_t n_operands, rp_tensor *const *out,
                            const bool *carries, size_t n_out);

/* ---- backward */

/* The derivative of a block: from gradients of the results, operands, and sums so far of the operands' gradients. */
typedef struct rp__region_derivative {
    const rp_ir *ir;
    const bool *wanted;   /* per operand */
    const uint32_t *same; /* per operand: the first that is the same tensor; NULL: all are their own */
    const bool *given;    /* per result: a gradient comes in */
    const bool *summed;   /* per operand: a sum comes in */
    size_t n_operands;
} rp__region_derivative;

/* grad_out[k], sums[k]: NULL where nothing comes in. grads: of the wanted operands, one after the other; zero where the block
   gives none. create_graph: on the tape behind operands and grad_out. again: what a trace records of the block is marked as
   recomputation. */
rp_status rp__region_derive(const rp__region_derivative *d, rp_tensor *const *grad_out, rp_tensor *const *operands,
                            rp_tensor *const *sums, bool create_graph, bool again, rp_tensor **grads);

typedef struct rp__region_task { /* one backward of a region */
    const rp__region_kept *p;
    rp_tensor *const *saved, *const *grad_out; /* grad_out[k] NULL: none; of a loop: state, count, stacks */
    rp_tensor *const *sums;                    /* per operand, NULL: none */
    const bool *needed;                        /* per operand */
    const uint32_t *same;                      /* per operand */
    bool create_graph;
} rp__region_task;

/* One a kind, in its file. grad_in[k], for each operand that is needed: its gradient, added to the sum so far. */
rp_status rp__region_cond_backward(const rp__region_task *q, rp_tensor **grad_in);
rp_status rp__region_while_backward(const rp__region_task *q, rp_tensor **grad_in);
rp_status rp__region_checkpoint_backward(const rp__region_task *q, rp_tensor **grad_in);

#endif
