/* One recurrent layer in one direction as a library op (kernel/library.h, RP__LIB_RECUR), and its gradient. */
#include "kernel/library.h"

#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/library_ops.h"
#include "ops/rules.h"

static bool is(rp_dim a, rp_dim b) { return rp__dim_is(RP__DIM_EQ, a, b); }

static void set_meta(rp__meta *out, rp_dtype dtype, unsigned ndim, rp_dim a, rp_dim b, rp_dim c) {
    out->dtype = dtype;
    out->ndim = (uint8_t)ndim;
    out->size[0] = a, out->size[1] = b;
    if (ndim > 2) out->size[2] = c;
}

static bool has_size(const rp_tensor *t, unsigned ndim, rp_dim a, rp_dim b, rp_dim c) {
    return t->ndim == ndim && is(t->size[0], a) && is(t->size[1], b) && (ndim < 3 || is(t->size[2], c));
}

static rp_status refuse(const rp__call *call) {
    return rp__op_error(call, RP_ERROR_SHAPE, "operands of these sizes do not fit each other");
}

/* Attributes, and types of what there is. */
static rp_status check(const rp__call *call, rp_dtype dtype, unsigned *cell) {
    const int64_t wanted = rp__attr_int(call, 0);
    if (dtype != RP_F32 && dtype != RP_F64) return rp__call_refuse_dtype(call, dtype);
    for (uint32_t k = 0; k < call->n_in; k++)
        if (call->in[k] && (rp_dtype)call->in[k]->dtype != dtype)
            return rp__op_error(call, RP_ERROR_DTYPE, "operands of other types");
    if (wanted < RP__CELL_TANH || wanted > RP__CELL_LSTM)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "there is no cell %lld", (long long)wanted);
    *cell = (unsigned)wanted;
    return RP_OK;
}

rp_status rp__infer_recur(const rp__call *call, rp__meta *out) {
    const rp_tensor *x = call->in[0], *w = call->in[1], *b = call->in[2], *h = call->in[3], *c = call->in[4];
    const rp_dtype dtype = (rp_dtype)x->dtype;
    unsigned cell;
    RP_TRY(check(call, dtype, &cell));
    if (x->ndim != 3 || w->ndim != 2 || rp__dim_is(RP__DIM_LT, x->size[0], 1)) return refuse(call);
    const rp_dim steps = x->size[0], states = rp__dim_apply(RP__DIM_ADD, steps, 1), rows = x->size[1],
                 units = w->size[1], sums = rp__dim_apply(RP__DIM_MUL, units, rp__cell_gates(cell));
    const bool lstm = cell == RP__CELL_LSTM;
    if (!is(x->size[2], sums) || !has_size(w, 2, sums, units, 0) || (h && !has_size(h, 2, rows, units, 0)) ||
        (c && (!lstm || !has_size(c, 2, rows, units, 0))) || (b && (b->ndim != 1 || !is(b->size[0], sums))))
        return refuse(call);
    set_meta(&out[0], dtype, 3, states, rows, units);
    set_meta(&out[1], dtype, 2, rows, units, 0);
    set_meta(&out[2], dtype, 3, states, rows, lstm ? units : 0);
    set_meta(&out[3], dtype, 2, rows, lstm ? units : 0, 0);
    set_meta(&out[4], dtype, 3, steps, rows, cell >= RP__CELL_GRU ? rp__dim_apply(RP__DIM_MUL, units, 4) : 0);
    return RP_OK;
}

rp_status rp__infer_recur_backward(const rp__call *call, rp__meta *out) {
    const rp_tensor *grad = call->in[0], *last = call->in[1], *last_cell = call->in[2], *states = call->in[3],
                    *cells = call->in[4], *kept = call->in[5], *w = call->in[6];
    const rp_dtype dtype = (rp_dtype)states->dtype;
    unsigned cell;
    RP_TRY(check(call, dtype, &cell));
    if (states->ndim != 3 || rp__dim_is(RP__DIM_LT, states->size[0], 2)) return refuse(call);
    const rp_dim steps = rp__dim_apply(RP__DIM_SUB, states->size[0], 1), rows = states->size[1],
                 units = states->size[2], sums = rp__dim_apply(RP__DIM_MUL, units, rp__cell_gates(cell));
    const bool lstm = cell == RP__CELL_LSTM;
    if ((grad && !has_size(grad, 3, states->size[0], rows, units)) || (last && !has_size(last, 2, rows, units, 0)) ||
        (last_cell && !has_size(last_cell, 2, rows, lstm ? units : 0, 0)) ||
        !has_size(cells, 3, states->size[0], rows, lstm ? units : 0) ||
        !has_size(kept, 3, steps, rows, cell >= RP__CELL_GRU ? rp__dim_apply(RP__DIM_MUL, units, 4) : 0) ||
        !has_size(w, 2, sums, units, 0))
        return refuse(call);
    set_meta(&out[0], dtype, 3, steps, rows, sums);
    set_meta(&out[1], dtype, 3, steps, rows, cell == RP__CELL_GRU ? sums : 0);
    set_meta(&out[2], dtype, 2, rows, units, 0);
    set_meta(&out[3], dtype, 2, rows, lstm ? units : 0, 0);
    return RP_OK;
}

/* Absent operands, and empty ones, have no base. */
static rp__operand operand_or_none(const rp_tensor *t) {
    const bool none = !t || rp__dim_is(RP__DIM_EQ, rp__tensor_numel(t), 0);
    return none ? (rp__operand){.base = NULL} : rp__operand_of(t);
}

/* strided: the input whose rows alone are contiguous. Nothing is read or written of an empty first result. */
static rp_status run(const rp__call *call, rp__library_op op, unsigned strided) {
    enum { MOST = 12 };
    rp__operand o[MOST];
    size_t n = 0;
    if (rp__dim_is(RP__DIM_EQ, rp__tensor_numel(call->out[0]), 0)) return RP_OK;
    for (uint32_t k = 0; k < call->n_out; k++) o[n++] = operand_or_none(call->out[k]);
    for (uint32_t k = 0; k < call->n_in; k++) {
        rp_tensor *t = call->in[k];
        if (t && !(k == strided && rp__dim_is(RP__DIM_EQ, t->stride[t->ndim - 1], 1)))
            t = rp__run_contiguous(t, (rp_dtype)t->dtype);
        if (t && rp__tensor_is_error(t)) return rp_error_status();
        o[n++] = operand_or_none(t);
    }
    rp__library_call library = {
        .recurrence = {.cell = (uint8_t)rp__attr_int(call, 0), .reverse = rp__attr_bool(call, 1)}};
    return rp__run_library_op(call, op, o, n, &library);
}

rp_status rp__run_recur(const rp__call *call) { return run(call, RP__LIB_RECUR, 0); }
rp_status rp__run_recur_backward(const rp__call *call) { return run(call, RP__LIB_RECUR_BACK, UINT32_MAX); }
