/* Runs graphs node by node through dispatch, so that a tape or a trace above sees every op. The reference for every backend, what
   backends "aot_eager" run, and how a trace computes what is pending. */
#ifndef RP_TRACE_IR_RUN_H
#define RP_TRACE_IR_RUN_H

#include "device/generator.h"
#include "trace/ir.h"

/* What the random nodes of a graph have drawn: a node draws at its own offset, also when it was moved or is a recomputation,
   and in a capture as outside. Zeroed to begin. Counters of nodes that are gone are passed over, so that generators end
   behind them. */
typedef struct rp__ir_positions {
    struct rp__ir_position {
        rp_generator *generator; /* counted */
        rp_dim first, end;       /* offsets taken */
    } * entries;
    size_t n, capacity;
    bool whole;           /* the first node of a generator does not begin there, but at its offset */
    rp__random_log drawn; /* of all generators: an entry's counters follow one another in it */
} rp__ir_positions;
void rp__ir_positions_end(rp__ir_positions *p);

typedef struct rp__ir_run_options {
    const rp_dim *
        binding; /* words for the symbols of ir (values or words of the table in force); NULL: from the inputs' sizes */
    rp_tensor *const *captured; /* in place of ir->captured; NULL: those */
    bool whole; /* offsets of random nodes count from where generators stand now, also where the first nodes are gone */
    /* Called after each node of the body with its results; a failure ends the run. */
    rp_status (*observe)(void *ctx, const rp_ir *ir, uint32_t node, rp_tensor *const *out, uint32_t n_out);
    void *ctx;
} rp__ir_run_options;
/* out[k] belongs to the innermost scope; an absent result is NULL; a result that is an input is that handle. */
rp_status rp__ir_run(const rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                     const rp__ir_run_options *options);
/* One node over handles; results of the innermost scope. binding NULL: no symbols, or their hints. */
rp_status rp__ir_run_node(const rp_ir *ir, uint32_t node, rp_tensor *const *in, rp_tensor **out, const rp_dim *binding,
                          rp__ir_positions *positions);
/* Symbols of ir from the arguments' sizes; binding[rp__symbols_count]. Checks rank, dtype, static sizes and, for values, the
   guards. */
rp_status rp__ir_bind(const rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_dim *binding);

/* The generator that a random call uses. */
rp_generator *rp__ir_generator(const rp_attr *attrs, size_t n_attrs, rp_device device);

#endif
