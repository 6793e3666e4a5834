/* The frame around derivatives: runs one, then brings its gradients to the size and dtype of the inputs. */
#include "ops/grad.h"

#include "ops/private.h"

rp_tensor *rp__sum_to_size(rp_tensor *t, const rp_dim *size, size_t ndim) {
    int64_t dims[RP_MAX_DIMS];
    size_t n = 0, lead = t->ndim > ndim ? t->ndim - ndim : 0;
    for (size_t d = 0; d < t->ndim; d++)
        if (d < lead || !rp__dim_is(RP__DIM_EQ, t->size[d], size[d - lead])) /* else a broadcast of size 1 */
            dims[n++] = (int64_t)d;
    if (n > 0) t = rp_sum(t, dims, n, lead == 0);
    return lead > 0 ? rp_view(t, size, ndim) : t;
}

/* Factories make tensors on the default device, which is `wanted` for the time of one. */
static bool device_enter(rp_device wanted, rp_device *outer) {
    *outer = rp_default_device();
    return rp__device_equal(*outer, wanted) || rp_set_default_device(wanted) == RP_OK;
}
static void device_leave(rp_device wanted, rp_device outer) {
    if (!rp__device_equal(outer, wanted)) (void)rp_set_default_device(outer);
}

rp_tensor *rp__zeros_of(const rp__meta *meta) {
    rp_device outer;
    if (!device_enter(meta->device, &outer)) return rp__tensor_error();
    rp_tensor *t = rp_zeros(meta->size, meta->ndim, RP_OPTIONS(rp_zeros_options, .dtype = meta->dtype));
    device_leave(meta->device, outer);
    return t;
}

rp_tensor *rp__count_beside(const rp_tensor *like, rp_dim n) {
    rp_device outer;
    if (!device_enter(like->device, &outer)) return rp__tensor_error();
    rp_tensor *t = rp_arange(rp_i64(0), rp_i64(n), rp_i64(1));
    device_leave(like->device, outer);
    return t;
}

rp_tensor *rp__to_device_of(rp_tensor *t, const rp__meta *meta) {
    if (rp__tensor_is_error(t) || rp__device_equal(t->device, meta->device)) return t;
    rp__meta here = {.dtype = (rp_dtype)t->dtype, .ndim = t->ndim, .device = meta->device};
    for (size_t d = 0; d < t->ndim; d++) here.size[d] = t->size[d];
    return rp_copy_(rp__zeros_of(&here), t);
}

rp_tensor *rp__zeros_expanded(const rp__meta *meta) {
    rp__meta one = {.dtype = meta->dtype, .device = meta->device};
    rp_tensor *zero = rp__zeros_of(&one);
    return meta->ndim > 0 ? rp_expand(zero, meta->size, meta->ndim) : zero;
}

rp_tensor *rp__zero_like(const rp_tensor *t) {
    rp__meta one = {.dtype = (rp_dtype)t->dtype, .device = t->device};
    return rp__zeros_of(&one);
}

rp_tensor *rp__grad_call(const rp__op *op, const rp__call *like, rp_tensor *a, rp_tensor *b) {
    rp_tensor *in[2] = {a, b}, *out = NULL;
    rp__call call = {.op = op,
                     .in = in,
                     .n_in = b ? 2 : 1,
                     .list_begin = {0, 1, 2},
                     .attrs = like->attrs,
                     .n_attrs = like->n_attrs,
                     .out = &out,
                     .n_out = 1};
    return rp__dispatch(&call) == RP_OK ? out : rp__tensor_error();
}

rp_tensor *rp__wide(rp_tensor *t) {
    const rp_dtype d = (rp_dtype)t->dtype;
    return rp__dtype_is_float(d) && rp__dtype_is_narrow(d) ? rp_to_dtype(t, (rp_dtype)rp__dtypes[d].compute) : t;
}

size_t rp__attr_dim(int64_t dim, size_t ndim) {
    if (dim < 0) dim += ndim > 0 ? (int64_t)ndim : 1;
    return (size_t)dim;
}

static bool has_size(const rp_tensor *t, const rp__meta *meta) {
    bool same = t->ndim == meta->ndim;
    for (size_t d = 0; same && d < t->ndim; d++) same = rp__dim_is(RP__DIM_EQ, t->size[d], meta->size[d]);
    return same;
}

rp_status rp__grad_run(const rp__vjp *g) {
    bool any = false;
    for (uint32_t k = 0; k < g->call->n_out; k++) any = any || g->grad_out[k];
    if (!any) return RP_OK;
    RP_TRY(g->call->op->vjp(g));
    for (uint32_t i = 0; i < g->call->n_in; i++) {
        rp_tensor *t = g->grad_in[i];
        if (!t) continue;
        if (!g->needed[i]) {
            g->grad_in[i] = NULL;
            continue;
        }
        const rp__meta *meta = &g->in_meta[i];
        if (!rp__tensor_is_error(t) && !has_size(t, meta)) t = rp__sum_to_size(t, meta->size, meta->ndim);
        if (!rp__tensor_is_error(t) && t->dtype != meta->dtype) t = rp_to_dtype(t, meta->dtype);
        t = rp__to_device_of(t, meta); /* of a CPU operand of a CUDA op: 0-d, or the source of copy_ */
        if (rp__tensor_is_error(t)) return rp_error_status();
        g->grad_in[i] = t;
    }
    return RP_OK;
}
