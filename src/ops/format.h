/* How results lie in memory: orders of dims, and the formats that are names of some. */
#ifndef RP_OPS_FORMAT_H
#define RP_OPS_FORMAT_H

#include "ops/ops.h"

/* Strides of a dense tensor in this order. */
void rp__order_strides(const rp_dim *size, unsigned ndim, rp__dim_order order, rp_dim *stride);
/* The order that gives exactly these strides; row-major where there is none. */
rp__dim_order rp__strides_order(const rp_dim *size, const rp_dim *stride, unsigned ndim);
rp_tensor *rp__tensor_of_meta(rp__device *d, const rp__meta *meta); /* with memory; sizes are values */
/* Fills the orders of results whose sizes are known. */
rp_status rp__call_format(const rp__call *call, rp__meta *out);
bool rp__tensor_has_format(const rp_tensor *t, int64_t format); /* Tensor.is_contiguous(memory_format) */
bool rp__channels_last(const rp_tensor *t); /* do its strides suggest channels_last, or channels_last_3d? */
/* t, or a copy of it: row-major. */
rp_tensor *rp__row_major(rp_tensor *t);
rp_tensor *rp__row_major_copy(rp_tensor *t);

#endif
