/* What follows from the map of a view (rp__view), for dispatch, derivatives and the compiler; strides of a view with another size,
   for the families that fold dims (matmul) and for reshape. */
#ifndef RP_OPS_VIEW_H
#define RP_OPS_VIEW_H

#include "ops/ops.h"

/* Strides that let size[0..n) walk t's elements in row-major order; false when no strides do. */
bool rp__view_strides(const rp_tensor *t, const rp_dim *size, size_t n, rp_dim *stride);

/* Sizes and map of the view that call makes or, of a SCATTER form, writes; of in[0] dtype and sizes are asked. */
rp_status rp__call_view_map(const rp__call *call, rp__view *out);
/* Then: strides and offset over in[0]. */
rp_status rp__call_view_place(const rp__call *call, rp__view *out);

/* Which elements of the whole are in it? Not all that lie in size[0..ndim): then a SCATTER form puts it back. */
bool rp__view_is_part(const rp__view *v, const rp_dim *size, unsigned ndim);
bool rp__view_repeats(const rp__view *v);  /* is an element there more than once, along a dim of its own? */
bool rp__view_overlaps(const rp__view *v); /* windows that reach into each other? */
/* The dims of the result in the order of those that they come from, new ones first; true: another order than they have. A view
   that neither is a part nor repeats is the whole again once permuted so and given the sizes of the whole. */
bool rp__view_order(const rp__view *v, int64_t *dims);

/* rp_unfold_backward; of windows side by side, which fill the dim, each element is that of one window, and there is nothing to add. */
rp_tensor *rp__windows_back(rp_tensor *grad, const rp_dim *size, size_t ndim, int64_t dim, int64_t width, int64_t step);

#endif
