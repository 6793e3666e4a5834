/* The tape: one node a differentiable call; edges to the nodes of its inputs. Owned by floor 4; floors 6 and 7 add nodes of
   their own kind (a compiled backward, a graph replay) through rp__tape_attach. */
#ifndef RP_AUTOGRAD_TAPE_H
#define RP_AUTOGRAD_TAPE_H

#include "ops/ops.h"

typedef struct rp__tape_node rp__tape_node;

/* What a tensor holds: its place on the tape, its gradient, its hooks. */
typedef struct rp__autograd {
    rp__tape_node *node; /* producer, counted; NULL for leaves */
    uint32_t out_index;  /* which output of it */
    rp_tensor *grad;     /* .grad, retained; NULL */
    struct rp__hook_entry *hooks;
    rp__tape_node *accumulate; /* leaves: the node that adds into .grad (weak until used) */
} rp__autograd;

/* How a node computes. All functions run in the calling thread with grad mode = create_graph. */
typedef struct rp__tape_class {
    const char *name;
    /* grad_in[i] (owned by the innermost scope) for needed inputs, NULL = zero. */
    rp_status (*backward)(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph);
    void (*release_saved)(rp__tape_node *n); /* after a backward without retain_graph */
    void (*destroy)(rp__tape_node *n);
} rp__tape_class;

/* A saved tensor: retained, with the version at save time; unpacking checks it and names the writing line. A node's own output
   is held without a cycle. */
typedef struct rp__saved {
    rp_tensor *tensor;
    uint64_t version;
    bool is_output;
    uint32_t index;
} rp__saved;
rp_status rp__saved_pack(rp__saved *s, rp_tensor *t, bool is_output, uint32_t index);
rp_tensor *rp__saved_unpack(rp__saved *s,
                            rp__tape_node *n); /* error tensor and a sticky error when modified or released */
void rp__saved_drop(rp__saved *s);

struct rp__tape_node {
    atomic_uint refs;
    const rp__tape_class *class_;
    const char *op, *site; /* forward call */
    uint64_t sequence;     /* rising with creation: backward runs highest first among ready nodes */
    rp_stream *stream;     /* of the forward */
    uint32_t n_in, n_out;
    struct rp__edge {
        rp__tape_node *node; /* counted; NULL: this input needs no gradient */
        uint32_t index;      /* output number of that node */
    } * edges;               /* n_in */
    rp__meta *in_meta, *out_meta;
    bool released; /* saved tensors are gone: a second backward is an error that says so */
    void *payload;
};

bool rp__grad_needed(const rp_tensor *t); /* grad mode aside: leaf that requires grad, or result with a node */
/* Makes a node whose inputs are in[0..n_in), attaches outputs (floating ones) to it. Takes ownership of payload. */
rp_status rp__tape_attach(const rp__tape_class *class_, void *payload, const char *op, const char *site,
                          rp_tensor *const *in, uint32_t n_in, rp_tensor *const *out, uint32_t n_out,
                          rp__tape_node **node);

#endif
