/* Derivatives of view.c, from the maps of the views. */
#include "ops/grad.h"
#include "ops/view.h"

#include "ops/private.h"

#include <string.h>

/* Is a view of a part one of the whole, a selection in a dim of size 1 or a slice of all? Guards nothing: a symbol may be. */
static bool takes_all(const rp__view *map, const rp__meta *in) {
    if (map->folds) return false;
    for (int p = 0; p < in->ndim; p++) {
        int dim = -1;
        for (int d = 0; d < map->ndim; d++) {
            if (map->from[d][0] != p && map->from[d][1] != p) continue;
            if (dim >= 0 || map->from[d][1] >= 0 || map->step[d] != 1) return false;
            dim = d;
        }
        if (!rp__dim_same_word(dim < 0 ? 1 : map->size[dim], in->size[p])) return false;
    }
    return true;
}

rp_status rp__vjp_any_view(const rp__vjp *g) {
    const rp__op *scatter = g->call->op->inverse;
    const rp__meta *in = &g->in_meta[0];
    rp_tensor *grad = g->grad_out[0];
    rp_tensor whole = {.dtype = (uint8_t)in->dtype, .ndim = in->ndim, .device = in->device}, *operand = &whole;
    rp__call call = *g->call;
    rp__view map;
    int64_t dims[RP_MAX_DIMS];
    memcpy(whole.size, in->size, in->ndim * sizeof *in->size);
    call.in = &operand;
    RP_TRY(rp__call_view_map(&call, &map));
    if (scatter && !takes_all(&map, in)) {
        g->grad_in[0] = rp__grad_call(scatter, g->call, rp__zeros_expanded(in), grad);
        return RP_OK;
    }
    if (!rp__view_repeats(&map)) { /* else summed by rp__grad_run */
        if (rp__view_order(&map, dims)) grad = rp_permute(grad, dims, map.ndim);
        bool same = grad->ndim == in->ndim;
        for (unsigned d = 0; same && d < in->ndim; d++) same = rp__dim_same_word(grad->size[d], in->size[d]);
        if (!same) grad = rp_reshape(grad, in->size, in->ndim);
    }
    g->grad_in[0] = grad;
    return RP_OK;
}

rp_status rp__vjp_scatter(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0];
    if (g->needed[0]) g->grad_in[0] = rp__grad_call(g->call->op, g->call, grad, rp__zeros_expanded(&g->in_meta[1]));
    if (g->needed[1]) g->grad_in[1] = rp__grad_call(g->call->op->inverse, g->call, grad, NULL);
    return RP_OK;
}

/* Windows that meet side by side, put so; NULL: others. */
static rp_tensor *side_by_side(rp_tensor *grad, const rp_dim *size, int64_t dim, int64_t width, int64_t step) {
    if (rp__tensor_is_error(grad) || width != step ||
        !rp__dim_is(RP__DIM_EQ, rp__dim_apply(RP__DIM_MUL, grad->size[dim], step), size[dim]))
        return NULL;
    return rp_flatten(rp_movedim(grad, RP_DIMS(-1), RP_DIMS(dim + 1)), dim, dim + 1);
}

rp_tensor *rp__windows_back(rp_tensor *grad, const rp_dim *size, size_t ndim, int64_t dim, int64_t width,
                            int64_t step) {
    if (dim < 0) dim += (int64_t)ndim;
    rp_tensor *beside = side_by_side(grad, size, dim, width, step);
    if (!beside) return rp_unfold_backward(grad, size, ndim, dim, width, step);
    return rp_add_scalar(beside, rp_i64(0)); /* a sum of one -0 is 0 */
}

rp_status rp__vjp_unfold(const rp__vjp *g) {
    const rp__meta *in = &g->in_meta[0];
    const rp__call *c = g->call;
    rp_tensor *grad = g->grad_out[0];
    const int64_t width = rp__attr_int(c, 1), step = rp__attr_int(c, 2);
    int64_t dim = rp__attr_int(c, 0);
    if (in->ndim == 0) {
        g->grad_in[0] = rp_sum(grad);
        return RP_OK;
    }
    if (dim < 0) dim += in->ndim;
    g->grad_in[0] = side_by_side(grad, in->size, dim, width, step);
    if (!g->grad_in[0]) g->grad_in[0] = rp_unfold_backward(grad, in->size, in->ndim, dim, width, step);
    return RP_OK;
}

rp_status rp__vjp_unfold_backward(const rp__vjp *g) {
    const rp__call *c = g->call;
    g->grad_in[0] = rp_unfold(g->grad_out[0], rp__attr_int(c, 1), rp__attr_int(c, 2), rp__attr_int(c, 3));
    return RP_OK;
}
