/* Making a graph node by node (reprise_ir.h), for front ends that have no function to trace. Ops are called over handles without
   memory under a layer that records, so that types, views, defaults and composite ops are what the ops' own rules say. */
#include <string.h>

#include "compile/rewrite.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "reprise_ir.h"
#include "trace/ir.h"

rp_ir *rp_ir_new_at(const char *site, const char *name) {
    RP__CALLED_FROM(site);
    rp_ir *ir = rp__ir_new(name);
    if (!ir) return rp__ir_failed();
    /* Every graph has results, none at first. */
    if (rp__ir_set_results(ir, &ir->body, NULL, 0) == RP_OK) return ir;
    rp__ir_release(ir);
    return rp__ir_failed();
}

static rp_status check_open(const rp_ir *ir, const char *what) {
    RP_TRY(rp__ir_usable(ir, what));
    if (atomic_load_explicit(&((rp_ir *)(uintptr_t)ir)->refs, memory_order_relaxed) != 1)
        return rp__fail(RP_ERROR_STATE, "%s: graph \"%s\" is in use: it cannot grow any more", what, ir->name);
    return rp__status_since(ir->failures); /* what follows a call that failed would be built on nothing */
}

static rp_status check_values(const rp_ir *ir, const rp_ir_value *v, size_t n, const char *what) {
    if (n && !v) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a list of values is NULL", what);
    for (size_t k = 0; k < n; k++) {
        if (v[k] != RP_IR_NONE && v[k] >= ir->n_values)
            return rp__fail(RP_ERROR_INDEX, "%s: graph \"%s\" has no value %u", what, ir->name, v[k]);
    }
    return RP_OK;
}

static bool numel_of(const int64_t *size, size_t ndim, int64_t *out) {
    *out = 1;
    bool empty = false;
    for (size_t d = 0; d < ndim; d++) {
        if (size[d] < 0) return false;
        empty = empty || size[d] == 0;
    }
    for (size_t d = 0; d < ndim && !empty; d++)
        if (!rp__mul_i64(*out, size[d], out)) return false;
    if (empty) *out = 0;
    return true;
}

rp_ir_value rp_ir_add_arg_at(const char *site, rp_ir *ir, const rp_ir_type *type) {
    RP__CALLED_FROM(site);
    if (check_open(ir, "rp_ir_add_arg") != RP_OK) return RP_IR_NONE;
    int64_t numel;
    if (!type || type->struct_size < offsetof(rp_ir_type, requires_grad) + sizeof type->requires_grad ||
        !rp__dtype_is_valid(type->dtype) || type->ndim > RP_MAX_DIMS) {
        (void)rp__fail(
            RP_ERROR_INVALID_ARGUMENT,
            "rp_ir_add_arg: a type with its struct_size, an element type and at most %d dimensions is needed",
            RP_MAX_DIMS);
        return RP_IR_NONE;
    }
    if (!numel_of(type->size, type->ndim, &numel)) {
        (void)rp__fail(RP_ERROR_SHAPE, "rp_ir_add_arg: a size is negative, or the number of elements overflows");
        return RP_IR_NONE;
    }
    for (size_t d = 0; d < type->ndim; d++) {
        if (!type->dynamic[d]) continue;
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT,
                       "rp_ir_add_arg: sizes that are symbols come from a function (rp_trace_types)");
        return RP_IR_NONE;
    }
    if (type->requires_grad && !rp__dtype_is_float(type->dtype)) {
        (void)rp__fail(RP_ERROR_DTYPE, "rp_ir_add_arg: only tensors of floating types require gradients, not %s",
                       rp_dtype_name(type->dtype));
        return RP_IR_NONE;
    }
    rp__meta meta;
    memset(&meta, 0, sizeof meta);
    meta.dtype = type->dtype;
    meta.device = type->device;
    meta.ndim = (uint8_t)type->ndim;
    memcpy(meta.size, type->size, type->ndim * sizeof *meta.size);
    rp__ir_value v = rp__ir_add_arg(ir, &ir->body, &meta, NULL);
    if (v != RP__IR_NONE) ir->values[v].requires_grad = type->requires_grad;
    return v;
}

rp_ir_value rp_ir_add_captured_at(const char *site, rp_ir *ir, rp_tensor *t) {
    RP__CALLED_FROM(site);
    if (check_open(ir, "rp_ir_add_captured") != RP_OK) return RP_IR_NONE;
    if (rp__tensor_check(t, "a captured tensor") != RP_OK || rp__tensor_is_error(t)) return RP_IR_NONE;
    for (size_t k = 0; k < ir->n_nodes; k++) { /* one tensor is one value */
        const rp__ir_node *n = &ir->nodes[k];
        if (n->kind == RP__IR_CAPTURED && ir->captured[n->captured_index] == t) return n->out[0];
    }
    rp__ir_value v = rp__ir_add_captured(ir, &ir->body, t, t->site);
    if (v != RP__IR_NONE) ir->values[v].requires_grad = rp_requires_grad(t);
    return v;
}

rp_ir_value rp_ir_add_const_at(const char *site, rp_ir *ir, const void *data, const int64_t *size, size_t ndim,
                               rp_dtype dtype) {
    RP__CALLED_FROM(site);
    if (check_open(ir, "rp_ir_add_const") != RP_OK) return RP_IR_NONE;
    int64_t numel, bytes;
    if (ndim > RP_MAX_DIMS || (ndim && !size) || !rp__dtype_is_valid(dtype) || !numel_of(size, ndim, &numel) ||
        !rp__mul_i64(numel, (int64_t)rp__dtype_bytes(dtype), &bytes) || (bytes && !data)) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_add_const: data, an element type and sizes are needed");
        return RP_IR_NONE;
    }
    rp__meta meta;
    memset(&meta, 0, sizeof meta);
    meta.dtype = dtype;
    meta.device = rp_cpu();
    meta.ndim = (uint8_t)ndim;
    if (ndim) memcpy(meta.size, size, ndim * sizeof *size);
    return rp__ir_add_const(ir, &ir->body, &meta, data, (size_t)bytes, NULL);
}

/* ---- recording */

typedef struct recorder {
    rp__layer layer; /* first: the dispatch chain knows this part */
    rp_ir *ir;
    rp__map values; /* handle id -> value + 1 */
    rp__layer *before[RP__LAYER_COUNT];
    bool grad_mode;
    rp_scope scope;
} recorder;

static rp__hash key_of(const rp_tensor *t) { return (rp__hash){t->id, 1}; }

static rp__ir_value value_of(recorder *r, const rp_tensor *t) {
    uintptr_t v = (uintptr_t)rp__map_get(&r->values, key_of(t));
    if (v != 0) return (rp__ir_value)(v - 1);
    (void)rp__fail(RP_ERROR_INTERNAL, "an op uses a tensor that is not in the graph");
    return RP__IR_NONE;
}

static rp_tensor *handle_of(recorder *r, rp__ir_value v) {
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

static rp_status record(recorder *r, rp__call *call, rp__ir_value *in) {
    const rp_device place = call->n_in && call->in[0] ? call->in[0]->device : rp_cpu();
    if ((call->op->flags & (RP_OP_INPLACE | RP_OP_RANDOM)) || rp__op_syncs(call->op, place)) {
        return rp__op_error(call, RP_ERROR_UNAVAILABLE,
                            "an op that writes, draws or reads on the host cannot be recorded here");
    }
    for (uint32_t k = 0; k < call->n_in; k++) {
        in[k] = RP__IR_NONE;
        if (!call->in[k]) continue;
        in[k] = value_of(r, call->in[k]);
        if (in[k] == RP__IR_NONE) return RP_ERROR_INTERNAL;
    }
    rp__ir_value out[RP__MAX_OUTS];
    if (call->op->lowering == RP__VIEW) {
        RP_TRY(rp__ir_emit_view(r->ir, &r->ir->body, call->op, in[0], call->attrs, call->n_attrs, call->site, &out[0]));
    } else {
        rp__meta meta[RP__MAX_OUTS];
        memset(meta, 0, sizeof meta);
        RP_TRY(rp__op_infer(call, meta));
        uint32_t node = rp__ir_add_node(r->ir, &r->ir->body, RP__IR_OP, call->op, in, call->n_in, call->list_begin,
                                        call->attrs, call->n_attrs, call->n_out, call->site);
        if (node == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        for (uint32_t k = 0; k < call->n_out; k++) {
            out[k] = rp__ir_set_out(r->ir, node, k, &meta[k]);
            if (out[k] == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        }
    }
    for (uint32_t k = 0; k < call->n_out; k++) {
        call->out[k] = handle_of(r, out[k]);
        if (rp__tensor_is_error(call->out[k])) return rp_error_status();
    }
    return RP_OK;
}

static rp_status record_call(rp__layer *self, rp__layer_kind at, rp__call *call) {
    (void)at;
    rp__ir_value few[RP__FEW_OPERANDS] = {0}, *in = few;
    if (call->n_in > RP__FEW_OPERANDS) {
        in = rp__alloc(call->n_in * sizeof *in);
        if (!in) return RP__OOM("operands of a graph node");
    }
    rp_status status = record((recorder *)self, call, in);
    if (in != few) rp__free(in);
    return status;
}

static void begin(recorder *r, rp_ir *ir) {
    memset(r, 0, sizeof *r);
    r->layer.handle = record_call;
    r->ir = ir;
    r->scope = rp__scope_begin();
    r->grad_mode = rp_set_grad_enabled(false);
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) {
        r->before[k] = rp__layer_set((rp__layer_kind)k, k == RP__LAYER_TRACE ? &r->layer : NULL);
    }
}

static void end(recorder *r) { /* handles made meanwhile die */
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) (void)rp__layer_set((rp__layer_kind)k, r->before[k]);
    (void)rp_set_grad_enabled(r->grad_mode);
    rp__scope_end(r->scope, NULL, 0);
    rp__map_free(&r->values);
}

/* Handles for `in`, the call, and the values of what it gave. */
static rp_status call_op(recorder *r, const char *site, const char *name, const rp_ir_value *in, size_t n_in,
                         const rp_attr *attrs, size_t n_attrs, rp_ir_value *out, size_t n_out) {
    rp_tensor *results[RP__MAX_OUTS] = {NULL}, **operands = rp__calloc(n_in + 1, sizeof *operands);
    if (!operands) return RP__OOM("operands of a graph node");
    rp_status status = RP_OK;
    bool needed = false;
    size_t first = r->ir->n_values;
    for (size_t k = 0; k < n_in && status == RP_OK; k++) {
        if (in[k] == RP_IR_NONE) continue;
        needed = needed || r->ir->values[in[k]].requires_grad;
        operands[k] = handle_of(r, in[k]);
        if (rp__tensor_is_error(operands[k])) status = rp_error_status();
    }
    if (status == RP_OK) status = rp_op_call_at(site, name, operands, n_in, attrs, n_attrs, results, n_out);
    for (size_t k = 0; k < n_out && status == RP_OK; k++) {
        out[k] = value_of(r, results[k]);
        if (out[k] == RP__IR_NONE) status = RP_ERROR_INTERNAL;
    }
    /* As a tape would: what follows from an operand with a gradient has one, as far as its type permits. */
    for (size_t v = first; v < r->ir->n_values; v++)
        r->ir->values[v].requires_grad = needed && rp__dtype_is_float(r->ir->values[v].meta.dtype);
    rp__free(operands);
    return status;
}

rp_status rp_ir_add_op_at(const char *site, rp_ir *ir, const char *origin, const char *name, const rp_ir_value *in,
                          size_t n_in, const rp_attr *attrs, size_t n_attrs, rp_ir_value *out, size_t n_out) {
    RP__CALLED_FROM(site);
    for (size_t k = 0; out && k < n_out; k++) out[k] = RP_IR_NONE;
    RP_TRY(check_open(ir, "rp_ir_add_op"));
    RP_TRY(check_values(ir, in, n_in, "rp_ir_add_op"));
    if (n_out > RP__MAX_OUTS || (n_out && !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_add_op: %zu results, or nowhere to write them", n_out);
    size_t before = ir->body.n_nodes;
    recorder r;
    begin(&r, ir);
    rp_status status = call_op(&r, origin ? origin : site, name, in, n_in, attrs, n_attrs, out, n_out);
    end(&r);
    if (status == RP_OK) return RP_OK;
    ir->body.n_nodes = before; /* what a composite op had appended */
    for (size_t k = 0; k < n_out; k++) out[k] = RP_IR_NONE;
    return rp__fail_context("graph \"%s\", appending %s", ir->name, name ? name : "(null)");
}

rp_status rp_ir_add_assign_at(const char *site, rp_ir *ir, const char *origin, rp_ir_value target, rp_ir_value value) {
    RP__CALLED_FROM(site);
    RP_TRY(check_open(ir, "rp_ir_add_assign"));
    if (target >= ir->n_values || value >= ir->n_values)
        return rp__fail(RP_ERROR_INDEX, "rp_ir_add_assign: graph \"%s\" has no value %u", ir->name,
                        target >= ir->n_values ? target : value);
    const rp__meta *a = &ir->values[target].meta, *b = &ir->values[value].meta;
    if (!rp__ir_is_outer(ir, target))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_add_assign: the target is no argument or captured tensor");
    if (a->dtype != b->dtype || !rp__device_equal(a->device, b->device) || !rp__meta_same_size(a, b)) {
        char x[RP__SHAPE_TEXT], y[RP__SHAPE_TEXT];
        return rp__fail(RP_ERROR_SHAPE, "rp_ir_add_assign: %s %s cannot be written to %s %s", rp_dtype_name(b->dtype),
                        rp__shape_text(b->size, b->ndim, x), rp_dtype_name(a->dtype),
                        rp__shape_text(a->size, a->ndim, y));
    }
    return rp__ir_emit_assign(ir, &ir->body, target, value, origin ? origin : site);
}

rp_status rp_ir_set_results_at(const char *site, rp_ir *ir, const rp_ir_value *results, size_t n) {
    RP__CALLED_FROM(site);
    RP_TRY(check_open(ir, "rp_ir_set_results"));
    RP_TRY(check_values(ir, results, n, "rp_ir_set_results"));
    if (n > UINT32_MAX) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_ir_set_results: too many results");
    return rp__ir_set_results(ir, &ir->body, results, (uint32_t)n);
}
