/* Strides of a view with another size, for the families that fold dims (matmul) and for reshape. */
#ifndef RP_OPS_VIEW_H
#define RP_OPS_VIEW_H

#include "ops/ops.h"

/* Strides that let size[0..n) walk t's elements in row-major order; false when no strides do. */
bool rp__view_strides(const rp_tensor *t, const rp_dim *size, size_t n, rp_dim *stride);

#endif
