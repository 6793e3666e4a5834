/* The recording layer (record_layer.h): the trace layer of the dispatch chain while the compiler writes graphs with ops. */
#include "compile/record_layer.h"

#include <string.h>

#include "core/alloc.h"

static rp__hash key_of(const rp_tensor *t) { return (rp__hash){t->id, 1}; }

rp__ir_value rp__record_value(rp__record_layer *r, const rp_tensor *t) {
    uintptr_t v = (uintptr_t)rp__map_get(&r->values, key_of(t));
    if (v != 0) return (rp__ir_value)(v - 1);
    (void)rp__fail(RP_ERROR_INTERNAL, "an op uses a tensor that is not in the graph");
    return RP__IR_NONE;
}

rp_tensor *rp__record_handle(rp__record_layer *r, rp__ir_value v) {
    const rp__ir_value_info *info = &r->ir->values[v];
    rp__storage *storage = rp__storage_wrap(info->meta.device, NULL, 0, NULL, NULL, NULL);
    if (!storage) return rp__tensor_error();
    rp_tensor *t = rp__tensor_new(info->meta.dtype, info->meta.size, info->meta.ndim, storage);
    if (rp__tensor_is_error(t)) return t;
    memcpy(t->stride, info->stride, info->meta.ndim * sizeof *t->stride);
    t->offset = info->offset;
    if (!rp__map_put(&r->values, key_of(t), (void *)((uintptr_t)v + 1))) {
        (void)RP__OOM("recording a graph");
        return rp__tensor_error();
    }
    return t;
}

static rp_status record(rp__record_layer *r, rp__call *call, rp__ir_value *in) {
    if (call->op->flags & (RP_OP_INPLACE | RP_OP_SYNC | RP_OP_RANDOM)) {
        return rp__op_error(call, RP_ERROR_UNAVAILABLE,
                            "an op that writes, draws or reads on the host cannot be recorded here");
    }
    for (uint32_t k = 0; k < call->n_in; k++) {
        in[k] = RP__IR_NONE;
        if (!call->in[k]) continue;
        in[k] = rp__record_value(r, call->in[k]);
        if (in[k] == RP__IR_NONE) return RP_ERROR_INTERNAL;
    }
    rp__ir_value out[RP__MAX_OUTS];
    if (call->op->lowering == RP__VIEW) {
        RP_TRY(rp__ir_emit_view(r->ir, r->block, call->op, in[0], call->attrs, call->n_attrs, call->site, &out[0]));
    } else {
        rp__meta meta[RP__MAX_OUTS];
        memset(meta, 0, sizeof meta);
        RP_TRY(rp__op_infer(call, meta));
        uint32_t node = rp__ir_add_node(r->ir, r->block, RP__IR_OP, call->op, in, call->n_in, call->list_begin,
                                        call->attrs, call->n_attrs, call->n_out, call->site);
        if (node == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        for (uint32_t k = 0; k < call->n_out; k++) {
            out[k] = rp__ir_set_out(r->ir, node, k, &meta[k]);
            if (out[k] == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        }
    }
    for (uint32_t k = 0; k < call->n_out; k++) {
        call->out[k] = rp__record_handle(r, out[k]);
        if (rp__tensor_is_error(call->out[k])) return rp_error_status();
    }
    return RP_OK;
}

static rp_status handle(rp__layer *self, rp__layer_kind at, rp__call *call) {
    (void)at;
    rp__ir_value few[RP__FEW_OPERANDS] = {0}, *in = few;
    if (call->n_in > RP__FEW_OPERANDS) {
        in = rp__alloc(call->n_in * sizeof *in);
        if (!in) return RP__OOM("operands of a graph node");
    }
    rp_status status = record((rp__record_layer *)self, call, in);
    if (in != few) rp__free(in);
    return status;
}

rp_status rp__record_begin(rp__record_layer *r, rp_ir *ir, rp__ir_block *block) {
    memset(r, 0, sizeof *r);
    r->layer.handle = handle;
    r->ir = ir;
    r->block = block;
    r->scope = rp__scope_begin();
    r->grad_mode = rp_set_grad_enabled(false);
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) {
        r->before[k] = rp__layer_set((rp__layer_kind)k, k == RP__LAYER_TRACE ? &r->layer : NULL);
    }
    return RP_OK;
}

void rp__record_pause(rp__record_layer *r) {
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) (void)rp__layer_set((rp__layer_kind)k, r->before[k]);
}

void rp__record_resume(rp__record_layer *r) {
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++)
        (void)rp__layer_set((rp__layer_kind)k, k == RP__LAYER_TRACE ? &r->layer : NULL);
}

void rp__record_end(rp__record_layer *r) {
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) (void)rp__layer_set((rp__layer_kind)k, r->before[k]);
    (void)rp_set_grad_enabled(r->grad_mode);
    rp__scope_end(r->scope, NULL, 0);
    rp__map_free(&r->values);
}
