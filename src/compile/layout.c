/* Layout: operands of convolutions with their channels innermost, or by rows, where the device's kernel reads them faster so.
   Requires  a functional graph whose sizes are values.
   Keeps     every bit of every result, and its strides: what a copy feeds are values that nobody outside sees.
   A convolution gives the same bits for either layout (kernel/product.h), so this is a choice of speed, and the device's
   (rp__library.turned). The operand gets a copy in that order. A loop that makes the operand takes the copy in and, if nobody
   else wants the other order, stores nothing else; pointwise readers of the operand read the copy of innermost channels, as their results
   are mostly read by the next convolution. Copies of arguments are kernels of their own, one for all convolutions that read the argument. */
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "ops/product.h"

typedef struct layout {
    const rp_ir *src;
    rp__rewrite w;
    rp__ir_value *last, *rows; /* per src value: its copies in dst */
} layout;

/* Inputs of a convolution that are to be copied; bit k: input k. */
static rp_status wanted(const rp_ir *ir, const rp__ir_node *n, rp__turned *out) {
    rp__ir_stand_in handles[RP__FEW_OPERANDS + 1];
    rp_tensor *in[RP__FEW_OPERANDS] = {0}, *made[1];
    rp__call call;
    *out = (rp__turned){0};
    if (n->dead || n->kind != RP__IR_OP || n->op->lowering != RP__PRODUCT || n->n_out != 1 ||
        n->n_in > RP__FEW_OPERANDS)
        return RP_OK;
    for (uint32_t k = 0; k < n->n_in; k++)
        if (n->in[k] != RP__IR_NONE) in[k] = rp__ir_stand_in_for(ir, n->in[k], &handles[k]);
    made[0] = rp__ir_stand_in_for(ir, n->out[0], &handles[n->n_in]);
    rp__device *d = rp__device_get(made[0]->device);
    if (!d) return rp_error_status();
    rp__ir_call(n, in, made, &call);
    return rp__product_turned(&call, d, out);
}

/* Channels stand before the spatial dims, of which a window has as many as the weight's rank says. */
static rp_status emit_last(layout *l, rp__ir_value v, unsigned spatial, const char *site, rp__ir_value *out) {
    if (l->last[v] == RP__IR_NONE) {
        rp__meta meta = l->src->values[v].meta;
        const unsigned channel = meta.ndim - spatial - 1u;
        unsigned k = 0;
        meta.order = (rp__dim_order)channel << 4 * k++;
        for (unsigned d = meta.ndim; d-- > 0;)
            if (d != channel) meta.order |= (rp__dim_order)d << 4 * k++;
        rp_attr format = {.kind = RP_ATTR_INT, .v.i = RP_PRESERVE_FORMAT}; /* other ranks have no name for it */
        if (meta.ndim == spatial + 2u && spatial > 1)
            format.v.i = spatial == 2 ? RP_CHANNELS_LAST : RP_CHANNELS_LAST_3D;
        RP_TRY(rp__ir_emit(l->w.dst, &l->w.dst->body, RP__OP(clone), &l->w.map[v], 1, &format, 1, &meta, 1, site,
                           &l->last[v]));
    }
    *out = l->last[v];
    return RP_OK;
}

static rp_status emit_rows(layout *l, rp__ir_value v, const char *site, rp__ir_value *out) {
    if (l->rows[v] == RP__IR_NONE) {
        rp__meta meta = l->src->values[v].meta;
        const rp_attr format = {.kind = RP_ATTR_INT, .v.i = RP_CONTIGUOUS_FORMAT};
        meta.order = RP__ROW_MAJOR;
        RP_TRY(rp__ir_emit(l->w.dst, &l->w.dst->body, RP__OP(clone), &l->w.map[v], 1, &format, 1, &meta, 1, site,
                           &l->rows[v]));
    }
    *out = l->rows[v];
    return RP_OK;
}

static rp_status visit(layout *l, uint32_t node) {
    const rp_ir *ir = l->src;
    const rp__ir_node *n = &ir->nodes[node];
    rp__ir_value in[RP__FEW_OPERANDS];
    rp__turned copied;
    if (n->kind != RP__IR_OP || n->n_in > RP__FEW_OPERANDS) return rp__rewrite_copy(&l->w, &l->w.dst->body, node);
    RP_TRY(wanted(ir, n, &copied));
    for (uint32_t k = 0; k < n->n_in; k++) {
        const rp__ir_value v = n->in[k];
        in[k] = v == RP__IR_NONE ? RP__IR_NONE : l->w.map[v];
        if (copied.rows >> k & 1u)
            RP_TRY(emit_rows(l, v, n->site, &in[k]));
        else if (copied.channels >> k & 1u)
            RP_TRY(emit_last(l, v, ir->values[n->in[1]].meta.ndim - 2u, n->site, &in[k]));
        else if (v != RP__IR_NONE && l->last[v] != RP__IR_NONE && n->op->lowering == RP__POINTWISE && n->n_out == 1 &&
                 rp__meta_same_size(&ir->values[v].meta, &ir->values[n->out[0]].meta))
            in[k] = l->last[v];
    }
    return rp__rewrite_copy_with(&l->w, &l->w.dst->body, node, in);
}

rp_status rp__layout(rp_ir *ir, rp_ir **out) {
    bool any = false;
    for (size_t k = 0; k < ir->body.n_nodes && !any; k++) {
        rp__turned copied;
        RP_TRY(wanted(ir, &ir->nodes[ir->body.nodes[k]], &copied));
        any = (copied.channels | copied.rows) != 0;
    }
    if (!any) {
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    layout l = {.src = ir};
    *out = NULL;
    l.last = rp__alloc(2 * (ir->n_values + 1) * sizeof *l.last);
    if (!l.last) return RP__OOM("layouts of a graph");
    l.rows = l.last + ir->n_values + 1;
    for (size_t v = 0; v <= ir->n_values; v++) l.last[v] = l.rows[v] = RP__IR_NONE;
    rp_status status = rp__rewrite_begin(&l.w, ir);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++)
        if (!ir->nodes[ir->body.nodes[k]].dead) status = visit(&l, ir->body.nodes[k]);
    if (status == RP_OK) status = rp__rewrite_results(&l.w, &ir->body, &l.w.dst->body);
    rp__free(l.last);
    return rp__rewrite_end(&l.w, status, "layout", out);
}
