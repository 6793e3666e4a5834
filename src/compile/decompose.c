/* Decompose: ops that are one kernel by themselves become their parts, where other kernels can take these.
   Requires  a functional graph; no gradient is still to be taken.
   Keeps     every bit of every result; random counters.
   Today that is dropout: a mask that is made from nothing but counters, and two products with it. The mask can then be made again
   by a backward rather than kept (partition.c), or by each kernel that reads it (spread.c), without the dropout's operand. */
#include "compile/passes.h"
#include "compile/rewrite.h"
#include "ops/infer.h"

#include <string.h>

/* self * (rand < 1 - p) * 1 / (1 - p): the arithmetic of rp__lower_native_dropout. Products with 0 and 1 round to themselves. */
static rp_status emit_dropout(rp__rewrite *w, rp__ir_block *block, const rp__ir_node *n) {
    rp_ir *dst = w->dst;
    const rp__meta *out = &w->src->values[n->out[0]].meta;
    double keep = rp__dropout_keeps(n->attrs);
    rp__meta numbers = *out, mask = *out;
    numbers.dtype = RP_F32;
    mask.dtype = RP_BOOL;
    rp__ir_value drawn, kept, in[2], product, result;
    const rp_attr draw[] = {rp__attr_of_ints(out->size, out->ndim), n->attrs[2]};
    const rp_attr below = {.kind = RP_ATTR_SCALAR, .v.scalar = rp_f64(keep)};
    const rp_attr scale = {.kind = RP_ATTR_SCALAR, .v.scalar = rp_f64(keep == 0 ? 0 : 1 / keep)};
    RP_TRY(rp__ir_emit(dst, block, RP__OP(rand), NULL, 0, draw, 2, &numbers, 1, n->site, &drawn));
    dst->nodes[dst->values[drawn].node].random_offset = n->random_offset;
    dst->nodes[dst->values[drawn].node].random_count = n->random_count;
    RP_TRY(rp__ir_emit(dst, block, RP__OP(lt_scalar), &drawn, 1, &below, 1, &mask, 1, n->site, &kept));
    in[0] = w->map[n->in[0]];
    in[1] = kept;
    RP_TRY(rp__ir_emit(dst, block, RP__OP(mul), in, 2, NULL, 0, out, 1, n->site, &product));
    RP_TRY(rp__ir_emit(dst, block, RP__OP(mul_scalar), &product, 1, &scale, 1, out, 1, n->site, &result));
    memcpy(dst->values[product].stride, w->src->values[n->out[0]].stride, sizeof dst->values[product].stride);
    memcpy(dst->values[result].stride, w->src->values[n->out[0]].stride, sizeof dst->values[result].stride);
    w->map[n->out[0]] = result;
    w->map[n->out[1]] = kept;
    return RP_OK;
}

rp_status rp__decompose(rp_ir *ir, rp_ir **out) {
    bool any = false;
    for (size_t k = 0; k < ir->body.n_nodes && !any; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        any = !n->dead && rp__ir_is_op(n, RP__OP(native_dropout));
    }
    if (!any) {
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    rp__rewrite w;
    rp_status status = rp__rewrite_begin(&w, ir);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        status = rp__ir_is_op(n, RP__OP(native_dropout)) ? emit_dropout(&w, &w.dst->body, n)
                                                         : rp__rewrite_copy(&w, &w.dst->body, ir->body.nodes[k]);
    }
    if (status == RP_OK) status = rp__rewrite_results(&w, &ir->body, &w.dst->body);
    return rp__rewrite_end(&w, status, "decompose", out);
}

/* By the cost of the ten rounds: 25 ns a word on a CPU, where a byte of memory takes a tenth of one; a GPU draws while it
   waits for memory, but not for less than a number of 4 bytes. So a mask of a byte is worth keeping, numbers are worth
   drawing on a GPU. */
unsigned rp__draw_bytes(rp_device device) { return device.type == RP_DEVICE_CPU ? 64 : 4; }
