/* The tape: one node a differentiable call; edges to the nodes of its inputs. Owned by floor 4; floors 6 and 7 add nodes of
   their own kind (a compiled backward, a graph replay) through rp__tape_attach.

   Invariants
     Sequence numbers rise with creation over all threads, and an edge always leads to a node with a smaller one: descending
     order of sequence is an order in which backward may run.
     Nodes never form a cycle: a node's own output is saved as a second handle without a tape entry.
     Nothing here recurses along the graph: nodes whose last reference goes are put on a list of the thread and taken apart
     one after the other. */
#ifndef RP_AUTOGRAD_TAPE_H
#define RP_AUTOGRAD_TAPE_H

#include "ops/ops.h"

typedef struct rp__tape_node rp__tape_node;
typedef struct rp__view_step rp__view_step;
typedef struct rp__hook_entry rp__hook_entry;

/* What a tensor holds: its place on the tape, its gradient, its hooks. Made when first needed; dies with the handle. */
typedef struct rp__autograd {
    rp_tensor *tensor;   /* the handle that owns this */
    rp__tape_node *node; /* producer, counted; NULL for leaves. Read it through rp__tape_edge_of: views may be stale */
    uint32_t out_index;  /* which output of it */
    rp_tensor *grad;     /* .grad, retained; NULL */
    rp__hook_entry *hooks;     /* registered on this handle, in order, counted */
    rp__tape_node *accumulate; /* leaves: the node that adds into .grad; weak, it holds the tensor */
    /* Views made with grad mode on: the tensor that is no view itself, and the way from it. */
    rp_tensor *base;      /* retained */
    rp__view_step *steps; /* last step, counted */
    uint64_t
        view_version; /* version of the storage when `node` was found; another one: history may have been rewritten */
} rp__autograd;

/* How a node computes. All functions run in the calling thread with grad mode = create_graph. */
typedef struct rp__tape_class {
    const char *name;
    /* grad_in[i] (owned by the innermost scope) for needed inputs (rp__tape_needs), NULL = zero. At least one grad_out is given;
       the others may be NULL = zero. Sizes and dtypes that differ from the input's by a broadcast are summed and converted by
       the caller. */
    rp_status (*backward)(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph);
    void (*release_saved)(
        rp__tape_node *n); /* after a backward without retain_graph; sets n->released if anything was kept */
    void (*destroy)(
        rp__tape_node *n); /* frees what the payload holds; a payload of rp__tape_attach is freed by it too */
} rp__tape_class;

typedef struct rp__edge {
    rp__tape_node *node; /* counted; NULL: no gradient is needed */
    uint32_t index;      /* output number of that node */
} rp__edge;

struct rp__checkpoint;

/* A saved tensor: its value without history, with the version at save time, and the edge to its producer; unpacking checks the
   version and names the writing line. Inside rp_checkpoint only a number is kept, and unpacking runs the function again. */
typedef struct rp__saved {
    rp_tensor *tensor; /* counted; NULL: nothing saved, released, or left to a checkpoint */
    uint64_t version;
    bool is_output; /* of the node that saves it: the edge leads to that node and is not counted */
    rp__edge edge;
    struct rp__checkpoint *checkpoint; /* counted */
    uint32_t slot;
} rp__saved;
rp_status rp__saved_pack(rp__saved *s, rp_tensor *t, bool is_output, uint32_t index);
rp_tensor *rp__saved_unpack(rp__saved *s,
                            rp__tape_node *n); /* error tensor and a sticky error when modified or released */
rp_tensor *rp__saved_attach(const rp__saved *s, rp_tensor *value,
                            rp__tape_node *n); /* value with the saved one's history */
void rp__saved_drop(rp__saved *s);

/* Type, device and size of an input or output, short: nodes are kept by the million. */
typedef struct rp__tape_meta {
    uint8_t dtype, ndim, device_type;
    int32_t device_index;
    uint32_t dims; /* first of its sizes in rp__tape_node.dims */
} rp__tape_meta;

/* From so many on a history is said to be that of a sum over steps. */
enum { RP__TAPE_REPEATS_ADVICE = 1000 };

struct rp__tape_node {
    atomic_uint refs;
    const rp__tape_class *class_;
    const char *op, *site; /* forward call */
    uint64_t sequence;     /* backward runs highest first */
    rp_stream *stream;     /* of the forward, counted */
    uint32_t n_in, n_out;
    bool released;         /* saved tensors are gone: a second backward is an error that says so */
    atomic_bool told;      /* a leaf's: the log has said that it moved into a capture */
    uint32_t repeats;      /* calls of the same op and line in a row before it, by the longest way through its inputs */
    rp__hook_entry *hooks; /* on outputs: run on their gradients before the node; counted */
    struct rp__retain *retain; /* outputs whose handle wants .grad */
    rp__edge *edges;           /* n_in */
    rp__tape_meta *meta;       /* n_in, then n_out */
    rp_dim *dims;
    void *payload;
    rp__tape_node *next_dead; /* list of nodes to be taken apart */
};

/* Called before .grad of t is read or changed; floor 5 installs it: a .grad at entry is a guard of a trace, one that is there at
   the end another result. */
extern void (*rp__grad_watch_hook)(rp_tensor *t);
static inline void rp__grad_watch(rp_tensor *t) {
    if (RP__UNLIKELY(rp__flags.tracing) && rp__grad_watch_hook) rp__grad_watch_hook(t);
}

/* Called before the history of t changes; floor 5 installs it: a trace that computes nothing puts back that of a tensor from
   outside, lest the call that follows finds it changed. */
extern rp_status (*rp__history_watch_hook)(rp_tensor *t);
static inline rp_status rp__history_watch(rp_tensor *t) {
    return RP__UNLIKELY(rp__flags.tracing) && rp__history_watch_hook ? rp__history_watch_hook(t) : RP_OK;
}

/* The trace of a block has the tape off. What the function that it runs says with rp_set_grad_enabled, and reads with
   rp_grad_enabled, is here: the trace cuts what is off. */
typedef struct rp__grad_said {
    bool apart, on; /* not apart: grad mode is that of the thread */
} rp__grad_said;
extern _Thread_local rp__grad_said rp__grad_said_now;

/* Called for a custom function while a trace records; floor 5 installs it (rp__trace_function of trace.h). */
extern rp_status (*rp__function_trace_hook)(const char *site, rp_fn forward, rp_fn backward, rp_tensor *const *in,
                                            size_t n_in, rp_tensor **out, size_t n_out, bool needed, bool *traced);

/* Called before a hook of t is registered (change 1) or removed (-1); floor 5 installs it: a graph that a later backward
   enters would not run hooks. */
extern rp_status (*rp__hook_watch_hook)(rp_tensor *t, int change);
static inline rp_status rp__hook_watch(rp_tensor *t, int change) {
    return RP__UNLIKELY(rp__flags.tracing) && rp__hook_watch_hook ? rp__hook_watch_hook(t, change) : RP_OK;
}

/* Counts changes of whether a tensor needs a gradient, has a .grad or hooks: who holds some tensors, has looked at them,
   and finds the count as it was before, need not look again (guards.c). Whoever changes one of the three calls
   rp__grad_change afterwards; whoever changes the base of a view calls it for the view, too, which may be all that holds the
   base. */
extern _Atomic uint64_t rp__grad_changes;
static inline void rp__grad_change(const rp_tensor *t) {
    if (atomic_load_explicit(&t->refs, memory_order_relaxed) != 1) /* else the caller alone holds it */
        atomic_fetch_add_explicit(&rp__grad_changes, 1, memory_order_release);
}

/* Grad mode aside: leaf that requires grad, or result with a node. A view without one has what its base has; a base has no
   base. */
static inline bool rp__grad_needed(const rp_tensor *t) {
    const rp__autograd *a = t->autograd;
    if (RP__LIKELY(!a)) return t->flags & RP__T_REQUIRES_GRAD;
    if ((t->flags & RP__T_REQUIRES_GRAD) || a->node || !a->base) return (t->flags & RP__T_REQUIRES_GRAD) || a->node;
    return (a->base->flags & RP__T_REQUIRES_GRAD) || (a->base->autograd && a->base->autograd->node);
}
bool rp__tape_needs(const rp__tape_node *n, uint32_t in); /* in a backward function: is that gradient asked for? */
/* In a backward function: must the node be able to run again? Else what it has saved is dropped when it returns. */
bool rp__tape_retains(void);
/* In a backward function: what gradients of that input come to so far, NULL if none; belongs to the innermost scope. The
   function then returns the whole sum: its own contributions follow one by one, as if its ops were nodes by themselves. */
rp_tensor *rp__tape_take_sum(const rp__tape_node *n, uint32_t in);
void rp__tape_in_meta(const rp__tape_node *n, uint32_t k, rp__meta *out);
void rp__tape_out_meta(const rp__tape_node *n, uint32_t k, rp__meta *out);
void rp__meta_of(const rp_tensor *t, rp__meta *out);
rp__tape_node *rp__tape_node_retain(rp__tape_node *n); /* accepts NULL */
void rp__tape_node_release(rp__tape_node *n);

/* Where the gradient of t goes: *out gets a counted node, or NULL when none is needed. */
rp_status rp__tape_edge_of(rp_tensor *t, rp__edge *out);
/* t's entry, made if missing; NULL and a sticky error when out of memory. */
rp__autograd *rp__autograd_get(rp_tensor *t);

/* A node with n_in edges found from in[] and metas of in[] and out[] (entries may be NULL), and payload_bytes of zeroed memory
   behind `payload` that lives and dies with the node. Not attached to anything: refs 1, the caller's. */
rp_status rp__tape_node_new(const rp__tape_class *class_, const char *op, const char *site, rp_tensor *const *in,
                            uint32_t n_in, rp_tensor *const *out, uint32_t n_out, size_t payload_bytes,
                            rp__tape_node **node);
/* The error of a second backward. */
rp_status rp__tape_released(const rp__tape_node *n);
/* Makes `n` the producer of t as output `index`. */
rp_status rp__tape_set_history(rp_tensor *t, rp__tape_node *n, uint32_t index);
/* The same for what t had before, which may be none; view_version as it was then. */
void rp__tape_put_back(rp_tensor *t, rp__tape_node *n, uint32_t index, uint64_t view_version);

/* Makes a node whose inputs are in[0..n_in), attaches outputs (floating ones) to it. Takes ownership of payload, also on
   failure (class_->destroy is called). No node is made, and the payload is destroyed, when no input needs a gradient or grad
   mode is off. *node (optional) is borrowed: it lives as long as its outputs; NULL when none was made. */
rp_status rp__tape_attach(const rp__tape_class *class_, void *payload, const char *op, const char *site,
                          rp_tensor *const *in, uint32_t n_in, rp_tensor *const *out, uint32_t n_out,
                          rp__tape_node **node);

/* ---- hooks (hooks.c) */
void rp__hooks_free(rp__tape_node *n);
void rp__hooks_free_of_tensor(rp__autograd *a);
/* Run the hooks of output `index` of n, or of a leaf, on *grad in order; *grad may be replaced by one of the innermost scope. */
rp_status rp__hooks_run(rp__tape_node *n, uint32_t index, rp_tensor **grad);
rp_status rp__hooks_run_leaf(rp__autograd *a, rp_tensor **grad);
/* Which hooks a leaf has, in one number; 0: none. */
uint64_t rp__hooks_key(rp__autograd *a);
/* .grad of handles that asked for it through rp_retain_grad. */
rp_status rp__retain_run(rp__tape_node *n, uint32_t index, rp_tensor *grad);
rp_status rp__retain_add(rp__tape_node *n, uint32_t index, rp__autograd *a);
void rp__retain_remove(rp__tape_node *n, rp__autograd *a);
void rp__retain_free(rp__tape_node *n);

/* ---- views (views.c) */
/* Records that the result of the view op `call` is reached from call->in[0] by it. */
rp_status rp__view_track(const rp__call *call, rp_tensor *view);
/* Applies the steps to `base` with ops; the result belongs to the innermost scope. */
rp_tensor *rp__view_replay(const rp__view_step *steps, rp_tensor *base);
rp__view_step *rp__view_steps_retain(rp__view_step *s);
void rp__view_steps_release(rp__view_step *s);
/* Copies of attributes, with what they point to, in one block. A generator becomes NULL: no derivative draws. */
size_t rp__attrs_bytes(const rp_attr *attrs, size_t n);
void rp__attrs_copy(rp_attr *to, const rp_attr *attrs, size_t n);
/* Finds the node of a view anew if its storage was written since. */
rp_status rp__view_refresh(rp__autograd *a);

/* ---- leaves and gradients (leaf.c) */
rp_status rp__accumulate_node(rp_tensor *leaf, rp__tape_node **out); /* counted */
extern const rp__tape_class rp__accumulate_class;

/* ---- the engine (backward.c) */
/* Gradients of sum_k roots[k] . seeds[k]. inputs NULL: into .grad of all leaves; else out[i] for inputs[i], each retained. */
rp_status rp__engine_run(const rp__edge *roots, rp_tensor *const *seeds, size_t n_roots, const rp__edge *inputs,
                         size_t n_inputs, rp_tensor **out, bool retain_graph, bool create_graph);
/* The same from tensors to tensors, which all need a gradient; grads[k] is of the innermost scope, NULL: none came. */
rp_status rp__tape_grads(rp_tensor *const *roots, rp_tensor *const *seeds, size_t n_roots, rp_tensor *const *inputs,
                         size_t n_inputs, rp_tensor **grads, bool retain_graph, bool create_graph);
/* Every leaf that a backward of these outputs would reach and that is none of `stops`, nor behind one, each once; a status other
   than RP_OK ends it. */
rp_status rp__tape_each_leaf(rp_tensor *const *outputs, size_t n, rp_tensor *const *stops, size_t n_stops,
                             rp_status (*visit)(void *ctx, const rp_tensor *leaf), void *ctx);
extern void (*rp__backward_watch_hook)(void); /* floor 5's; called where a backward runs inside a trace */
/* Brings a gradient to the size and dtype of what it is the gradient of. */
rp_status rp__grad_fit(rp_tensor **grad, const rp__meta *meta, const char *what);

/* ---- recomputation (checkpoint.c) */
bool rp__checkpoint_pack(rp__saved *s, rp_tensor *t, bool is_output, uint32_t index, rp_status *status);
rp_tensor *rp__checkpoint_unpack(rp__saved *s, rp__tape_node *n);
void rp__checkpoint_drop(rp__saved *s);
extern RP__TLS_FAST struct rp__checkpoint *rp__checkpoint_recording; /* NULL: the two below have nothing to do */
/* Between the two no checkpoint takes part in what the thread does: a graph is recorded, whatever function asked for it. */
typedef struct rp__checkpoint_state {
    struct rp__checkpoint *recording, *recomputing;
} rp__checkpoint_state;
void rp__checkpoint_suspend(rp__checkpoint_state *s);
void rp__checkpoint_resume(const rp__checkpoint_state *s);
/* Told of every call: what a checkpointed function reads without having made it is noted. */
rp_status rp__checkpoint_reads(rp_tensor *const *in, uint32_t n_in);
rp_status rp__checkpoint_makes(rp_tensor *const *out, uint32_t n_out);
/* Eager form of rp_checkpoint. release (NULL: fn.ctx stays the caller's) is called with fn.ctx once the function cannot run
   again. */
rp_status rp__checkpoint_run(const char *site, rp_fn fn, void (*release)(void *ctx), rp_tensor *const *in, size_t n_in,
                             rp_tensor **out, size_t n_out);

/* A second handle of t's value without history, in the innermost scope. */
rp_tensor *rp__tape_shadow(rp_tensor *t);

/* Does the tape record? Not so in the trace of a block, whatever rp_grad_enabled says. */
static inline bool rp__grad_recording(void) { return !rp__flags.grad_disabled; }
extern rp__layer rp__autograd_layer; /* record.c: default layer of every thread */

/* One of a fixed set of locks: guards the accumulate node, hooks and view entries of the objects that share it. Never held
   while other code of the library that may lock is called. */
rp__mutex *rp__autograd_lock(const void *object);

#endif
