/* Form 5: the traced graph. SSA: nodes call ops on values; a node may own regions (sub-graphs with block arguments). Every
   pass walks regions. Built by tracing (trace.h), by the parser (ir_text.c) and by passes. */
#ifndef RP_TRACE_IR_H
#define RP_TRACE_IR_H

#include "core/arena.h"
#include "core/text.h"
#include "ops/ops.h"

typedef uint32_t rp__ir_value; /* index into rp_ir.values */
#define RP__IR_NONE UINT32_MAX

typedef struct rp__ir_value_info {
    rp__meta meta;              /* sizes may be symbols of the graph */
    rp_dim stride[RP_MAX_DIMS]; /* strides that eager execution gives it */
    uint32_t node;              /* producer: index, or RP__IR_NONE for a block argument */
    uint32_t out_index;         /* or argument number */
    bool requires_grad;
    const char *site;
} rp__ir_value_info;

typedef enum rp__ir_kind {
    RP__IR_OP,       /* op, attrs */
    RP__IR_INPUT,    /* argument k of the function */
    RP__IR_CAPTURED, /* a tensor reached from outside the arguments (a parameter): attr: index into rp_ir.captured */
    RP__IR_CONST,    /* small host constant */
    RP__IR_COND,
    RP__IR_WHILE,
    RP__IR_CHECKPOINT, /* regions */
    RP__IR_ASSIGN      /* effect: writes value 1 into the memory of value 0 (an input or captured tensor) */
} rp__ir_kind;

typedef struct rp__ir_block rp__ir_block;
typedef struct rp__ir_node {
    rp__ir_kind kind;
    const rp__op *op;
    const rp_attr *attrs;
    uint32_t n_attrs;
    rp__ir_value *in, *out;
    uint32_t n_in, n_out;
    uint32_t list_begin[RP__MAX_PARAMS + 1]; /* as rp__call */
    rp__ir_block *regions;
    uint32_t n_regions;
    uint64_t random_offset; /* random ops: counters reserved before it, from the function's start */
    uint64_t random_count;
    const char *site;
    bool dead;
} rp__ir_node;

struct rp__ir_block {
    uint32_t *nodes; /* indices, in program order */
    size_t n_nodes, nodes_capacity;
    rp__ir_value *args, *results;
    uint32_t n_args, n_results;
};

struct rp_ir {
    rp__arena arena;
    const char *name;
    rp__ir_node *nodes;
    size_t n_nodes, nodes_capacity;
    rp__ir_value_info *values;
    size_t n_values, values_capacity;
    rp__ir_block body;
    rp_tensor **captured; /* retained */
    size_t n_captured, captured_capacity;
    struct rp__symbols *symbols; /* sizes that are symbols, with hints and guards; NULL: all static */
    rp_status status;            /* of an rp_ir that could not be made */
};

rp_ir *rp__ir_new(const char *name);
rp__ir_value rp__ir_add_value(rp_ir *ir, const rp__meta *meta, uint32_t node, uint32_t out_index,
                              const char *site); /* RP__IR_NONE: out of memory */
uint32_t rp__ir_add_node(rp_ir *ir, rp__ir_block *block, rp__ir_kind kind, const rp__op *op, const rp__ir_value *in,
                         uint32_t n_in, const uint32_t *list_begin, const rp_attr *attrs, uint32_t n_attrs,
                         uint32_t n_out, const char *site);
/* Calls `visit` on every block, regions first. */
rp_status rp__ir_walk(rp_ir *ir, rp__ir_block *block, rp_status (*visit)(void *ctx, rp_ir *ir, rp__ir_block *block),
                      void *ctx);
rp__hash rp__ir_hash(const rp_ir *ir); /* structure, attributes, metas: what the purity check compares */

#endif
