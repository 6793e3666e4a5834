/* What the files of src/ops share beside the public forms of ops.h and lower.h: the step from a call with allocated outputs to
   launches, and scopes of the library's own tensors. Operands of library ops are in library_ops.h, for those that have some. */
#ifndef RP_OPS_EXECUTE_H
#define RP_OPS_EXECUTE_H

#include "ops/lower.h"
#include "ops/ops.h"

enum { RP__LOWER_MAX_IN = 16 }; /* tensor operands of one loop kernel */

/* The launch of a call, for calls that differ from it in the memory of their tensors only. */
enum { RP__KEPT_ACCESSES = 12, RP__KEPT_OUT = 0x80, RP__KEPT_NONE = 0xff };
typedef struct rp__kept_launch {
    rp__ready *ready; /* NULL: it cannot be kept */
    uint8_t n_accesses;
    uint8_t
        operand[RP__KEPT_ACCESSES]; /* of each access: input k, RP__KEPT_OUT | output k, or RP__KEPT_NONE: an iota */
    /* Builds with assertions: what the launch was bound with, all but addresses. look: only that is asked for, and nothing is
       launched. */
    bool look;
    uint64_t print;
} rp__kept_launch;

/* Lowers a loop op whose outputs are allocated, and launches it. keep: what is to be kept of the launch is put there; NULL:
   nothing is, else the stream is one of which rp__launch_runs_at_once holds. lower.c */
rp_status rp__lower_launch(const rp__call *call, rp__device *d, rp_stream *s, rp__kept_launch *keep);
uint64_t rp__lower_built(void); /* calls of this thread whose DAG was not kept from an earlier one */

/* Reserves counters of the generator that attribute k names (NULL: the default one of d). lower.c */
rp_status rp__reserve_draw(const rp__call *call, unsigned generator_attr, rp__device *d, rp_stream *s,
                           uint64_t counters, struct rp__random_draw *out);

/* The number of weights that attention_place reserves random numbers for. attention.c */
rp_dim rp__attention_weights(const rp__call *call);

/* The argument that output k of an in-place op is, and its number. dispatch.c */
uint32_t rp__call_written_at(const rp__call *call, uint32_t k);
rp_tensor *rp__call_written(const rp__call *call, uint32_t k);

/* A scope for what an op makes inside. The sticky error needs no scope: error tensors are never scoped. */
typedef rp_scope rp__scope_guard;
static inline rp__scope_guard rp__scope_guard_begin(void) { return rp__scope_begin(); }
static inline void rp__scope_guard_end(rp__scope_guard guard, rp_tensor **keep, size_t n) {
    rp__scope_end(guard, keep, n);
}

/* User ops. user.c */
rp_status rp__user_run(rp__call *call);
/* Work on the host over row-major tensors of the CPU as one launch, which captures and programs record. The handles of `call` have sizes
   and no memory, absent tensors are NULL; what fails says so to the error record, by the tag. user.c */
typedef rp_status rp__host_work(const rp__call *call, const void *const *in, void *const *out, uint64_t tag);
/* Results are allocated; `in` are the call's operands, row-major. */
rp_status rp__host_launch(const rp__call *call, rp__device *d, rp_tensor *const *in, rp__host_work *work);
/* Are launches of this thread on s recorded, not run? */
bool rp__host_recorded(const rp_stream *s);

/* Calls for rules: shorthand of a dispatch below all layers, for launches that an op is made of. The result has memory of its
   own. */
rp_tensor *rp__run_contiguous(rp_tensor *t, rp_dtype dtype); /* t itself when it is row-major and of that dtype */
rp_status rp__run_copy(rp_tensor *dst, rp_tensor *src);  /* dst = src, broadcast and converted; no checks, no version */
rp_status rp__run_fill(rp_tensor *dst, rp_scalar value); /* dst = value everywhere */

#endif
