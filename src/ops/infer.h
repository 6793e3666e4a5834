/* Pieces of type and shape rules that several families share. Sizes are rp_dim: a rule compares them with rp__dim_is only. */
#ifndef RP_OPS_INFER_H
#define RP_OPS_INFER_H

#include "ops/ops.h"

const char *rp__dtype_title(rp_dtype d); /* "Float", "Long": PyTorch's names in messages */

void rp__meta_like(rp__meta *out, const rp_tensor *t, rp_dtype dtype); /* sizes of t */
/* Size of inputs a and b broadcast against each other. */
rp_status rp__meta_broadcast(const rp_tensor *a, const rp_tensor *b, rp__meta *out);

/* Of operands a and b, either a number in a Scalar form. */
rp_status rp__call_broadcast(const rp__call *call, unsigned a, unsigned b, rp__meta *out);

/* Result type of operands [first, first + n) and Scalar attribute attr (negative: none). */
rp_dtype rp__call_promote(const rp__call *call, unsigned first, unsigned n, int attr);
static inline rp_dtype rp__float_or_default(rp_dtype d) { return rp__dtype_is_float(d) ? d : RP_F32; }

bool rp__same_size(const rp_tensor *a, const rp_tensor *b); /* decides by guards in a trace */

/* Wraps dim attribute `dim` for rank ndim; PyTorch's range error with the op's name. */
rp_status rp__call_dim(const rp__call *call, int64_t dim, size_t ndim, unsigned *out);
/* Bits of the dims that a reduction names in int[] or int? attribute `attr`; none named: all. */
rp_status rp__call_dim_mask(const rp__call *call, unsigned attr, uint32_t *mask);
/* Size of in[0] reduced over mask. */
void rp__meta_reduced(const rp__call *call, uint32_t mask, bool keepdim, rp_dtype dtype, rp__meta *out);
/* The end of a rule that calls other ops: their result is the call's. */
rp_status rp__give(const rp__call *call, rp_tensor *t);
/* The error of an op that PyTorch does not define for dtype d either. */
rp_status rp__call_refuse_dtype(const rp__call *call, rp_dtype d);
/* That error for bool; unless d is floating. */
rp_status rp__call_need_number(const rp__call *call, rp_dtype d);
rp_status rp__call_need_float(const rp__call *call, rp_dtype d);

/* The first two attributes as the bounds of random integers of that type. */
rp_status rp__call_check_range(const rp__call *call, rp_dtype dtype);

/* Which part of its elements native_dropout keeps, from its attributes. */
double rp__dropout_keeps(const rp_attr *attrs);

/* Ranges of slice and slice_scatter after clamping. */
typedef struct rp__range {
    unsigned dim;
    rp_dim start, length;
    int64_t step;
} rp__range;
rp_status rp__call_range(const rp__call *call, unsigned first_attr, rp__range *out); /* attrs: dim, start, end, step */
rp_status rp__call_index(const rp__call *call, int64_t dim, int64_t index, unsigned *out_dim, rp_dim *out_index);

#endif
