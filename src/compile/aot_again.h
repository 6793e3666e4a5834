/* A compiled call once more, under the tape: for gradients that its compiled backward does not give (aot.c). */
#ifndef RP_COMPILE_AOT_AGAIN_H
#define RP_COMPILE_AOT_AGAIN_H

#include "autograd/tape.h"
#include "compile/program.h"

typedef struct rp__again {
    const rp_ir *graph;     /* as traced */
    rp_tensor *const *in;   /* its arguments, then its captured tensors, as they were; copies of those that it writes */
    const uint32_t *leaves; /* argument, or n_args + captured tensor */
    const bool *needed;     /* per leaf */
    uint32_t n_leaves;
    const uint32_t *tangent_of; /* per tangent: result number */
    rp_tensor *const *grad_out; /* per tangent; NULL: none */
    uint32_t n_tangents;
    const rp__executable_random *starts; /* where the call found its generators */
    size_t n_starts;
    bool create_graph; /* the gradients get a history, which leads to that of the arguments */
} rp__again;

/* grad_in[k] of the innermost scope for leaves k with needed[k]; NULL: nothing that was given depends on it. */
rp_status rp__aot_again(const rp__again *q, rp_tensor **grad_in);

#endif
