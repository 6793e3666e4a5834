/* Passes read one graph and write another: nothing is edited in place, so a pass that fails leaves its input whole, and dead
   values are never carried over by accident. A rewrite holds both graphs and the map between their values. */
#ifndef RP_COMPILE_REWRITE_H
#define RP_COMPILE_REWRITE_H

#include "trace/ir.h"

typedef struct rp__rewrite {
    const rp_ir *src;
    rp_ir *dst;
    rp__ir_value *map; /* src value -> dst value; RP__IR_NONE: not made yet */
} rp__rewrite;

/* Starts dst with src's name, captured tensors and symbols; arguments of the body are made and mapped. */
rp_status rp__rewrite_begin(rp__rewrite *w, const rp_ir *src);
/* Frees the map; *out = dst (checked in debug builds) or, with status != RP_OK, dst is released. Returns the status. */
rp_status rp__rewrite_end(rp__rewrite *w, rp_status status, rp_ir **out);

/* Copies a node of src, regions included, with its operands mapped, to the end of `block` of dst. */
rp_status rp__rewrite_copy(rp__rewrite *w, rp__ir_block *block, uint32_t node);
/* The same with the operands given as values of dst. */
rp_status rp__rewrite_copy_with(rp__rewrite *w, rp__ir_block *block, uint32_t node, const rp__ir_value *in);
/* A node with regions: operands given, every region rewritten by `visit` (arguments before and results after are copied). */
typedef rp_status rp__rewrite_block(void *ctx, const rp__ir_block *from, rp__ir_block *to);
rp_status rp__rewrite_copy_regions(rp__rewrite *w, rp__ir_block *block, uint32_t node, const rp__ir_value *in,
                                   rp__rewrite_block *visit, void *ctx);
/* Copies the arguments of a block of src to a new block of dst, and maps them. */
rp_status rp__rewrite_args(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to);
/* Arguments that INPUT nodes make are known only when those are copied: completes to->args. */
void rp__rewrite_inputs(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to);
rp_status rp__rewrite_results(rp__rewrite *w, const rp__ir_block *from, rp__ir_block *to);

/* Captured tensors and symbols of src, shared with dst. */
rp_status rp__ir_share_outer(rp_ir *dst, const rp_ir *src);

/* ---- building and asking, for all passes */

/* A new op node; attributes in schema order; outputs get metas out[k] and row-major strides. */
rp_status rp__ir_emit(rp_ir *ir, rp__ir_block *block, const rp__op *op, const rp__ir_value *in, uint32_t n_in,
                      const rp_attr *attrs, uint32_t n_attrs, const rp__meta *out_meta, uint32_t n_out,
                      const char *site, rp__ir_value *out);
/* A view op: sizes and strides of the result come from the op's view rule. */
rp_status rp__ir_emit_view(rp_ir *ir, rp__ir_block *block, const rp__op *op, rp__ir_value in, const rp_attr *attrs,
                           uint32_t n_attrs, const char *site, rp__ir_value *out);
/* ASSIGN: writes `value` into the memory of `target`; its result is target's memory after the write. */
rp_status rp__ir_emit_assign(rp_ir *ir, rp__ir_block *block, rp__ir_value target, rp__ir_value value, const char *site,
                             rp__ir_value *out);

/* Fills a handle that shape, type and view rules can read: sizes, strides, dtype, device; no memory, no count. */
void rp__ir_fake_tensor(const rp_ir *ir, rp__ir_value v, rp_tensor *out);

static inline const rp__ir_node *rp__ir_producer(const rp_ir *ir, rp__ir_value v) {
    uint32_t n = ir->values[v].node;
    return n == RP__IR_NONE ? NULL : &ir->nodes[n];
}
/* An argument of the function or a captured tensor: memory that lives outside. */
bool rp__ir_is_outer(const rp_ir *ir, rp__ir_value v);
static inline bool rp__ir_is_view(const rp__ir_node *n) { return n && n->kind == RP__IR_OP && n->op->lowering == RP__VIEW; }
/* Nodes that stay although nothing reads them: assignments, random advances are accounted apart (program.c), regions with
   effects. */
bool rp__ir_has_effect(const rp__ir_node *n);
bool rp__ir_contiguous(const rp_ir *ir, rp__ir_value v);
bool rp__meta_same_size(const rp__meta *a, const rp__meta *b);
int64_t rp__meta_bytes_hint(const rp__meta *m);

/* The checker after a pass, in builds with assertions: names the pass in the error. */
rp_status rp__pass_check(const rp_ir *ir, const char *pass);

#endif
