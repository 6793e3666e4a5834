/* Passes read one graph and write another: nothing is edited in place, so a pass that fails leaves its input whole, and dead
   values are never carried over by accident. A rewrite holds both graphs and the map between their values. */
#ifndef RP_COMPILE_REWRITE_H
#define RP_COMPILE_REWRITE_H

#include "trace/ir.h"

typedef struct rp__rewrite {
    const rp_ir *src;
    rp_ir *dst;
    rp__ir_value *map;  /* src value -> dst value; RP__IR_NONE: not made yet */
    rp__symbols *outer; /* table in force before */
} rp__rewrite;

/* Starts dst with src's name, captured tensors and symbols; the table of symbols is entered, so that what a pass
   asks of sizes becomes a guard; after the specialisation was published, when the table is sealed, dst has a copy of it, and
   hints are the answers. Arguments of the body are made and mapped. */
rp_status rp__rewrite_begin(rp__rewrite *w, const rp_ir *src);
rp_status rp__rewrite_begin_bare(rp__rewrite *w, const rp_ir *src); /* no argument yet: rp__rewrite_arg makes them */
rp_status rp__rewrite_arg(rp__rewrite *w, rp__ir_value v); /* the next argument of dst's body stands for v of src */
/* Frees the map; *out = dst (checked in debug builds, named by the pass) or, with status != RP_OK, dst is released. */
rp_status rp__rewrite_end(rp__rewrite *w, rp_status status, const char *pass, rp_ir **out);

/* Copies a node of src, regions included, with its operands mapped, to the end of `block` of dst. View ops are inferred anew,
   because the memory of their operand may differ. */
rp_status rp__rewrite_copy(rp__rewrite *w, rp__ir_block *block, uint32_t node);
/* The same with the operands given as values of dst. */
rp_status rp__rewrite_copy_with(rp__rewrite *w, rp__ir_block *block, uint32_t node, const rp__ir_value *in);
/* A node with regions: operands given, every region rewritten by `visit` (arguments before and results after are copied). */
typedef rp_status rp__rewrite_block(void *ctx, const rp__ir_block *from, rp__ir_block *to);
rp_status rp__rewrite_copy_regions(rp__rewrite *w, rp__ir_block *block, uint32_t node, const rp__ir_value *in,
                                   rp__rewrite_block *visit, void *ctx);
/* Results of a block of src, through the map. */
rp_status rp__rewrite_results(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to);

/* ---- building and asking, for all passes */

/* A new op node whose operands are single tensors; outputs get metas out_meta[k] in memory of their own. */
rp_status rp__ir_emit(rp_ir *ir, rp__ir_block *block, const rp__op *op, const rp__ir_value *in, uint32_t n_in,
                      const rp_attr *attrs, uint32_t n_attrs, const rp__meta *out_meta, uint32_t n_out,
                      const char *site, rp__ir_value *out);
/* Row-major, a copy of `in` where it is not. */
rp_status rp__ir_emit_row_major(rp_ir *ir, rp__ir_block *block, rp__ir_value in, const char *site, rp__ir_value *out);
/* A view op: sizes, strides and offset of the result come from the op's view rule. */
rp_status rp__ir_emit_view(rp_ir *ir, rp__ir_block *block, const rp__op *op, rp__ir_value in, const rp_attr *attrs,
                           uint32_t n_attrs, const char *site, rp__ir_value *out);
/* The map of a view op, were it applied to `whole`, a value of ir. */
rp_status rp__ir_view_map(const rp_ir *ir, const rp__ir_node *view, rp__ir_value whole, rp__view *out);
/* What the rule says of the result of a view op. */
rp_status rp__ir_infer_view(const rp_ir *ir, const rp__op *op, rp__ir_value in, const rp_attr *attrs, uint32_t n_attrs,
                            const char *site, rp__meta *meta, struct rp__view *view);
/* ASSIGN: writes `value` into the memory of `target`. */
rp_status rp__ir_emit_assign(rp_ir *ir, rp__ir_block *block, rp__ir_value target, rp__ir_value value, const char *site);

/* A handle that shape, type and view rules can read: sizes, strides, dtype, device; no memory, no count. */
typedef struct rp__ir_stand_in {
    rp_tensor tensor;
    rp__storage storage;
} rp__ir_stand_in;
rp_tensor *rp__ir_stand_in_for(const rp_ir *ir, rp__ir_value v, rp__ir_stand_in *out);

static inline const rp__ir_node *rp__ir_producer(const rp_ir *ir, rp__ir_value v) {
    uint32_t n = ir->values[v].node;
    return n == RP__IR_NONE ? NULL : &ir->nodes[n];
}
static inline bool rp__ir_is_op(const rp__ir_node *n, const rp__op *op) {
    return n && n->kind == RP__IR_OP && n->op == op;
}
static inline bool rp__ir_is_view(const rp__ir_node *n) {
    return n && n->kind == RP__IR_OP && n->op->lowering == RP__VIEW;
}
/* cats.c: a cat whose operands all lie in their parts of its result: nothing is left to run. */
bool rp__cat_is_joined(const rp_ir *ir, const rp__ir_node *n);
/* An argument of a block or a captured tensor: memory that lives outside. */
bool rp__ir_is_outer(const rp_ir *ir, rp__ir_value v);
/* The value that v is a view of, through all views; v itself when it is none. */
rp__ir_value rp__ir_root(const rp_ir *ir, rp__ir_value v);
/* Marks the roots whose memory an op of the body writes in place, as an optimizer's step does; assigned: and those of ASSIGN, behind all ops. */
void rp__ir_mark_written(const rp_ir *ir, bool assigned, bool *roots);
bool rp__meta_same_size(const rp__meta *a, const rp__meta *b);
int64_t rp__meta_bytes_hint(const rp__meta *m);
rp_attr rp__attr_of_ints(const int64_t *ints, size_t n);
rp_attr rp__attr_of_dtype(rp_dtype dtype);

/* n_in operands on the heap or, few of them, in the caller's array. */
enum { RP__FEW_OPERANDS = 24 };

#endif
