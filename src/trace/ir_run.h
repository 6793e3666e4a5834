/* Runs graphs node by node through dispatch, so that a tape or a trace above sees every op. The reference for every backend, what
   backends "aot_eager" run, and how a trace computes what is pending. */
#ifndef RP_TRACE_IR_RUN_H
#define RP_TRACE_IR_RUN_H

#include "device/generator.h"
#include "trace/ir.h"

typedef struct rp__ir_run_options {
    const rp_dim *
        binding; /* words for the symbols of ir (values or words of the table in force); NULL: from the inputs' sizes */
    rp_tensor *const *captured; /* in place of ir->captured; NULL: those */
    /* Offsets of random nodes count from where generators stand now (in a trace: from its beginning), also where nodes are gone. */
    bool whole;
} rp__ir_run_options;
/* out[k] belongs to the innermost scope; an absent result is NULL; a result that is an input is that handle. */
rp_status rp__ir_run(const rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                     const rp__ir_run_options *options);
/* The nodes of the body over memory that exists already: a trace computes what is pending for the handles that wait for it. Captured
   tensors, constants and views are there and do not run; symbols stand for their hints. A failure ends the run. */
typedef struct rp__ir_pending {
    rp_status (*operands)(void *ctx, uint32_t node,
                          rp_tensor **in); /* of the innermost scope, which ends behind `results` */
    rp_status (*results)(void *ctx, uint32_t node, rp_tensor *const *out);
    void (*done)(void *ctx, uint32_t node); /* of every node */
    void *ctx;
} rp__ir_pending;
rp_status rp__ir_run_pending(const rp_ir *ir, const rp__ir_pending *pending);
/* Symbols of ir from the arguments' sizes; binding[rp__symbols_count]. Checks rank, dtype, static sizes and, for values, the
   guards. */
rp_status rp__ir_bind(const rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_dim *binding);

/* The generator that a random call uses. */
rp_generator *rp__ir_generator(const rp_attr *attrs, size_t n_attrs, rp_device device);

#endif
