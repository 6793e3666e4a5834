/* In-place ops: the rule that every row with a functional form shares, and copy and fill, whose functional forms exist for
   them. What an in-place op computes is said by its functional form; here is only what writing into self adds. */
#include "ops/infer.h"
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
