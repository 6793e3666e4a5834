/* Tracing: a dispatch layer that records the calls of the thread instead of running them. Owns pending tensors (rp_tensor.traced
   is set, sizes known, storage without data), the recording of views and in-place ops as they are, random counters in program
   order, gradients that appear or vanish, and what happens when the host reads a pending value. The autograd layer sits
   above: a tape is built on pending tensors as on any others, so rp_backward and optimizer steps are recorded too.

   Modes
     FUNCTION  the first call: real arguments. At the end everything that was recorded is computed, node by node, into the handles
               that the function made: what it returned, keeps on the tape or stored elsewhere holds true values, side effects
               happen once. A host read computes what is pending earlier, and the same run goes on as SEGMENTS.
     SEGMENTS  trace-and-flush: a host read, an op that needs values, or the end closes a segment, which `run` computes.
     ABSTRACT  nothing is computed and nothing outside changes (versions and .grad are put back): export, the purity check, re-traces
               with symbolic sizes, regions, joint graphs. A host read is RP_ERROR_GRAPH_BREAK. Traces nest in this mode only. */
#ifndef RP_TRACE_TRACE_H
#define RP_TRACE_TRACE_H

#include "trace/ir.h"

typedef struct rp__trace rp__trace;
typedef enum rp__trace_mode { RP__TRACE_FUNCTION, RP__TRACE_SEGMENTS, RP__TRACE_ABSTRACT } rp__trace_mode;

/* Computes a segment: graph->body.args are `in`; out[k] are the results, each of the innermost scope. Borrowed: ir. */
typedef rp_status rp__segment_run(void *ctx, rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                  size_t n_out);

typedef struct rp__trace_request {
    rp__trace_mode mode;
    rp_fn fn;
    rp_tensor *const *in; /* arguments; ABSTRACT: fn sees stand-ins of the same type that share their storage */
    size_t n_in, n_out;
    /* ABSTRACT only: types of the arguments instead of `in` (in is NULL): stand-ins with memory of their own. */
    const rp__ir_value_info *const *arg_info;
    /* ABSTRACT only: table of symbols that sizes of arg_info are words of (shared), or that symbols are added to; NULL: that of
       the trace around, if any. */
    rp__symbols *symbols;
    /* ABSTRACT only, with `in`: words to use as sizes and strides of argument k, NULL where they are those of the tensor. */
    const rp_dim *const *sizes, *const *strides;
    /* ABSTRACT only: outside tensors become further arguments of the graph (a region) instead of captured ones. */
    bool close;
    /* ABSTRACT only: no tape is built. */
    bool no_grad;
    /* no_grad: gradients may go through the graph all the same; where fn switches grad mode off, operands are detached. */
    bool derived;
    bool grad_mode;       /* no_grad: the mode that fn begins with */
    rp__segment_run *run; /* SEGMENTS (and FUNCTION after a break); NULL: node by node */
    void *run_ctx;
    rp_dim random_base; /* regions: counters reserved before, of every generator */
} rp__trace_request;

/* What happens to .grad of a tensor (an argument or a captured one) when the graph has run. */
typedef struct rp__trace_grad {
    rp_tensor *leaf;  /* retained; NULL: argument `arg` */
    uint32_t arg;     /* RP__IR_NONE: not an argument */
    bool at_entry;    /* it had a .grad when the function began: a guard */
    rp_tensor *entry; /* that .grad, retained; NULL once guards are built */
    uint32_t input;   /* number of the graph's argument that is this entry gradient, RP__IR_NONE: not read */
    enum { RP__GRAD_KEPT, RP__GRAD_CLEARED, RP__GRAD_RESULT, RP__GRAD_TENSOR } at_exit;
    uint32_t result;   /* RP__GRAD_RESULT: number of the graph's result that becomes .grad */
    rp_tensor *tensor; /* RP__GRAD_TENSOR: a tensor from outside that becomes .grad; retained */
} rp__trace_grad;

typedef struct rp__guard_bytes {
    const void *address;
    size_t n;
    void *copy;
} rp__guard_bytes;

/* A word of an object that is no tensor, which the function sets: a call that plays the graph back leaves it as the body did. */
typedef struct rp__trace_word {
    uint64_t *address;
    uint64_t entry, exit;
} rp__trace_word;

typedef struct rp__trace_result {
    rp_ir *ir;   /* caller's; NULL when the trace was broken, or in SEGMENTS mode */
    bool broken; /* FUNCTION: a host read made it go on as SEGMENTS */
    const char *reason,
        *site; /* of the first break or of what makes the graph unusable: a name of reasons.def; NULL: none */
    /* The graph's arguments: n_in of the function, then entry gradients (grads[].input), then, with `close`, `operands`. Its
       results: n_out of the function, then exit gradients. */
    rp_tensor **operands; /* retained */
    size_t n_operands;
    rp__trace_grad *grads;
    size_t n_grads;
    rp__guard_bytes *bytes;
    size_t n_bytes;
    rp__trace_word *words;
    size_t n_words;
    size_t escaped; /* ABSTRACT: pending tensors that outlive the trace: the function stores them somewhere */
    bool left;      /* a backward inside went on through the history that an argument came with */
    bool *reached;  /* ABSTRACT, per argument: fn also used that tensor by itself, not as its argument; NULL: none */
    bool training;  /* some output carries history: a later backward may enter the graph */
    bool backward;  /* a backward ran inside */
    bool switched;  /* fn leaves another grad mode than it found */
    bool moved;     /* fn leaves another autocast or default device than it found: these */
    uint8_t autocast;
    rp_device device;
    rp_dim random_count; /* counters reserved, of all generators together */
} rp__trace_result;

/* Runs fn under a trace. out[0..n_out) (not ABSTRACT): as rp_call gives them, of the innermost scope. The result is valid (to be
   freed) also on failure. A failure of the function is the sticky error and the status; nothing pending stays behind usable. */
rp_status rp__trace_run(const rp__trace_request *request, rp_tensor **out, rp__trace_result *result);
void rp__trace_result_free(rp__trace_result *r);
/* What `moved` tells, in the calling thread. */
void rp__modes_leave(uint8_t autocast, rp_device device);
/* *word = value, in memory that is never unmapped (of a handle). What it was is a guard of the function that is traced, and what it
   is at the end an effect of every call. */
rp_status rp__trace_word_set(uint64_t *word, uint64_t value);

/* Will x have a value? A tensor of a trace that gave up, or of rp_trace, has none once that is over: an error. */
rp_status rp__trace_check_alive(const rp_tensor *x);
rp__trace *rp__trace_current(void);         /* recording in this thread; NULL outside, and while it computes */
bool rp__trace_pending(const rp_tensor *t); /* recorded, not computed */

/* For the regions (regions.h). */
/* Are tensors from outside further arguments of what is recorded? */
bool rp__trace_closes(const rp__trace *t);
bool rp__trace_derived(const rp__trace *t); /* of its request */
rp__trace_mode rp__trace_mode_of(const rp__trace *t);
/* The graph cannot stand for the function, because of `reason`; the first one is kept. */
void rp__trace_refuse(rp__trace *t, const char *reason, const char *site);
/* The trace ends in this failure, whatever the function makes of the error that it is told. Gives status back. */
rp_status rp__trace_spoil(rp__trace *t, rp_status status);
/* Does x lie in memory that the running trace has made? */
bool rp__trace_made(const rp__trace *t, const rp_tensor *x);
/* The value of t in the running trace: its own, or entered as captured tensor or argument. RP__IR_NONE and an error. */
rp__ir_value rp__trace_resolve(rp__trace *trace, rp_tensor *t);
rp_ir *rp__trace_ir(rp__trace *trace); /* being recorded */
/* Values and pending handles for the outputs of `node`. */
rp_status rp__trace_outputs(rp__trace *trace, uint32_t node, const rp__meta *const *meta, rp_tensor **out,
                            uint32_t n_out);
/* Counters of a generator used so far; seek: for recomputation. */
rp_dim rp__trace_random_offset(rp__trace *trace, rp_generator *g);
void rp__trace_random_seek(rp__trace *trace, rp_generator *g, rp_dim offset);
/* Computes what is pending, giving `reason`; in ABSTRACT mode RP_ERROR_GRAPH_BREAK. */
rp_status rp__trace_break(rp__trace *trace, const char *reason, const char *site);
/* An operand, x, as a block uses it: detached if x may carry a gradient and the block has switched grad mode off. The error
   tensor if it has switched it on instead, which a graph cannot say (RP_ERROR_GRAPH_BREAK). */
rp_tensor *rp__trace_cut(rp__trace *trace, rp_tensor *x, const char *site);

/* regions.c: of a branch or loop that the host runs no result shares memory with an argument or another result, so that
   writing one means the same as in a trace, and gradients of a result are added up before they reach what it was copied from. */
rp_status rp__region_own_results(rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

/* region_cond.c: rp_cond whose operands past n_own its functions read from outside (operands of a COND node that is traced
   again). */
rp_status rp__cond_outside(const char *site, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in,
                           size_t n_own, size_t n_in, rp_tensor **out, size_t n_out);

/* region_function.c: records a custom function as one FUNCTION node; its results belong to the innermost scope and have no
   history yet. forward gives n_out results of in; backward takes in, the results and their gradients and gives n_in
   gradients, NULL where there is none. Both run once, on stand-ins. needed: an argument needs a gradient. *traced false,
   without an error: nothing was recorded, and the caller runs the forward as it is (needed: then the graph is refused if one
   is made). */
rp_status rp__trace_function(const char *site, rp_fn forward, rp_fn backward, rp_tensor *const *in, size_t n_in,
                             rp_tensor **out, size_t n_out, bool needed, bool *traced);

/* region_while.c: rp_while whose operands past n_state do not change (operands of a WHILE node). */
rp_status rp__while_invariant(const char *site, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n_state,
                              size_t n_in, int64_t max_iter, rp_tensor **out);

#endif
