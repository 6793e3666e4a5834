/* Scans along one dim: rows kernels in which every element depends on those before it. A derivative runs the other way. */
#include "ops/infer.h"
#include "ops/rules.h"

/* Integers and bools add up in int64. */
rp_status rp__infer_cumsum(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    rp_dtype in = (rp_dtype)t->dtype, asked = call->attrs[1].v.dtype;
    rp_dtype dtype = asked != RP_DTYPE_NONE ? asked : rp__dtype_is_float(in) ? in : RP_I64;
    unsigned dim;
    if (!rp__dtype_is_valid(dtype)) return rp__op_error(call, RP_ERROR_DTYPE, "no such dtype: %d", (int)dtype);
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), t->ndim, &dim));
    rp__meta_like(out, t, dtype);
    return RP_OK;
}

/* Elements are converted to the result's type first, as PyTorch does with dtype=. A 0-d tensor is a row of one. */
static void cumulate(rp__lower *lw, bool reversed) {
    const rp__call *call = rp__lw_call(lw);
    unsigned dim, ndim = call->in[0]->ndim;
    if (ndim > 0 && rp__call_dim(call, rp__attr_int(call, 0), ndim, &dim) == RP_OK) rp__lw_inner(lw, 1u << dim);
    if (reversed) rp__lw_reverse(lw);
    rp__lw_out(lw, 0, rp__lw_scan(lw, RP__SCAN_SUM, rp__lw_in_as(lw, 0, rp__lw_out_dtype(lw, 0))));
}
void rp__lower_cumsum(rp__lower *lw) { cumulate(lw, false); }

rp_status rp__infer_cumsum_reversed(const rp__call *call, rp__meta *out) {
    unsigned dim;
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), call->in[0]->ndim, &dim));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}
void rp__lower_cumsum_reversed(rp__lower *lw) { cumulate(lw, true); }
