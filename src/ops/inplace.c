/* In-place ops: the rule that every row with a functional form shares, and copy and fill, whose functional forms exist for
   them. What an in-place op computes is said by its functional form; here is only what writing into self adds. */
#include <string.h>

#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

/* May a result of type `from` be written into a tensor of type `to`? (torch.can_cast) */
static bool castable(rp_dtype from, rp_dtype to) { return rp__dtypes[from].category <= rp__dtypes[to].category; }

rp_status rp__infer_inplace(const rp__call *call, rp__meta *out) {
    const rp_tensor *self = call->in[0];
    rp__call functional = *call;
    functional.op = call->op->functional_op;
    RP_TRY(functional.op->infer(&functional, out));
    bool same = out->ndim == self->ndim;
    for (unsigned d = 0; same && d < self->ndim; d++)
        same = rp__dim_same_word(out->size[d], self->size[d]) || rp__dim_is(RP__DIM_EQ, out->size[d], self->size[d]);
    if (!same) {
        char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
        return rp__op_error(call, RP_ERROR_SHAPE, "output with shape %s doesn't match the broadcast shape %s",
                            rp__shape_text(self->size, self->ndim, a), rp__shape_text(out->size, out->ndim, b));
    }
    if (!castable(out->dtype, (rp_dtype)self->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "result type %s can't be cast to the desired output type %s",
                            rp__dtype_title(out->dtype), rp__dtype_title((rp_dtype)self->dtype));
    out->dtype = (rp_dtype)self->dtype;
    return RP_OK;
}

/* Does a derivative follow, which may keep what the op reads? */
static bool recorded(const rp__call *call) {
    bool found = false;
    for (uint32_t k = 0; k < call->n_in; k++) found = found || (call->in[k] && rp_requires_grad(call->in[k]));
    return found && rp_grad_enabled();
}

/* Of an op that is calculated apart: the result, which has self's size, is copied. What a derivative keeps of self is a copy, for
   self is written. */
rp_status rp__expand_inplace(const rp__call *call) {
    rp_tensor *self = call->in[0], *in[RP__MAX_IN], *result[RP__MAX_OUTS];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    rp__call functional = *call;
    functional.op = call->op->functional_op;
    functional.out = result;
    if (recorded(call)) {
        memcpy(in, call->in, call->n_in * sizeof *in);
        in[0] = rp_clone_at(call->site, self, NULL);
        functional.in = in;
    }
    RP_TRY(rp__dispatch(&functional));
    if (!rp__same_size(self, result[0]))
        return rp__op_error(call, RP_ERROR_SHAPE, "output with shape %s doesn't match the broadcast shape %s",
                            rp__shape_text(self->size, self->ndim, a),
                            rp__shape_text(result[0]->size, result[0]->ndim, b));
    if (!castable((rp_dtype)result[0]->dtype, (rp_dtype)self->dtype))
        return rp__op_error(call, RP_ERROR_DTYPE, "result type %s can't be cast to the desired output type %s",
                            rp__dtype_title((rp_dtype)result[0]->dtype), rp__dtype_title((rp_dtype)self->dtype));
    call->out[0] = rp_copy__at(call->site, self, result[0], false);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

/* ---- copy: src in self's size and type */

rp_status rp__infer_copy(const rp__call *call, rp__meta *out) {
    const rp_tensor *self = call->in[0], *src = call->in[1];
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    RP_TRY(rp__meta_broadcast(self, src, out));
    bool same = out->ndim == self->ndim;
    for (unsigned d = 0; same && d < self->ndim; d++) same = rp__dim_is(RP__DIM_EQ, out->size[d], self->size[d]);
    if (!same)
        return rp__op_error(call, RP_ERROR_SHAPE, "output with shape %s doesn't match the broadcast shape %s",
                            rp__shape_text(self->size, self->ndim, a), rp__shape_text(out->size, out->ndim, b));
    out->dtype = (rp_dtype)self->dtype;
    return RP_OK;
}

void rp__lower_copy(rp__lower *lw) { rp__lw_out(lw, 0, rp__lw_in(lw, 1)); }

/* ---- fill: a number in self's size and type */

rp_status rp__infer_fill(const rp__call *call, rp__meta *out) {
    const rp_tensor *self = call->in[0];
    if (!rp__scalar_fits(call->attrs[0].v.scalar, (rp_dtype)self->dtype))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "value cannot be converted to type %s without overflow",
                            rp_dtype_name((rp_dtype)self->dtype));
    rp__meta_like(out, self, (rp_dtype)self->dtype);
    return RP_OK;
}

/* Integers take the number as i64 first: -1 is 255 in uint8. */
void rp__lower_fill(rp__lower *lw) {
    const rp_dtype dtype = rp__lw_out_dtype(lw, 0);
    rp__lw_out(lw, 0, rp__lw_attr(lw, 0, rp__dtype_wraps(dtype) ? RP_I64 : rp__lw_compute(dtype)));
}
