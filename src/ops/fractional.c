/* Pools over windows whose places are drawn: rules of fractional.def. Where windows begin is calculated in the operand's type, as PyTorch
   does it; their elements are gathered, so that the gradient of overlapping windows adds up. */
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"

enum { MOST = 3 };

/* Begins of `out` windows of k elements of n, of samples (N, C, 1) between 0 and 1: int64 (N, C, out). */
static rp_tensor *begins(rp_tensor *samples, int64_t n, int64_t k, int64_t out) {
    rp_tensor *place = rp__count_beside(samples, out);
    if (out == 1) return rp_expand(rp_add_scalar(rp_mul_scalar(place, rp_i64(0)), rp_i64(n - k)), RP_DIMS(1, 1, 1));
    const rp_scalar step = rp_f64((double)(n - k) / (double)(out - 1));
    rp_tensor *first = rp_to_dtype(rp_mul_scalar(samples, step), RP_I64);
    rp_tensor *each = rp_mul_scalar(rp_add(rp_to_dtype(place, (rp_dtype)samples->dtype), samples), step);
    rp_tensor *last = rp_fill(rp__zero_like(place), rp_i64(n - k));
    /* within the plane, whatever the samples and their rounding */
    rp_tensor *begin = rp_clamp(rp_sub(rp_to_dtype(each, RP_I64), first), rp_i64(0), rp_i64(n - k));
    return rp_where(rp_eq_scalar(place, rp_i64(out - 1)), last, begin);
}

static rp_status fractional(const rp__call *call, unsigned spatial) {
    rp_tensor *x = call->in[0], *samples = call->in[1];
    const rp_attr *kernel = &call->attrs[0], *output = &call->attrs[1];
    const bool batch = x->ndim == spatial + 2;
    const rp_dtype dtype = (rp_dtype)x->dtype;
    RP_TRY(rp__call_need_float(call, dtype));
    if (x->ndim != spatial + 1 && !batch)
        return rp__op_error(call, RP_ERROR_SHAPE, "expects %u dims, or %u of a batch, not %u", spatial + 1, spatial + 2,
                            x->ndim);
    if (kernel->n != spatial || output->n != spatial)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "kernel_size and output_size are %u numbers", spatial);
    if ((rp_dtype)samples->dtype != dtype) return rp__op_error(call, RP_ERROR_DTYPE, "samples are of the type of self");
    if (samples->ndim != 3)
        return rp__op_error(call, RP_ERROR_SHAPE, "samples are (N, C, dims), not of %u dims", samples->ndim);
    if (!batch) x = rp_unsqueeze(x, 0);
    if (rp__tensor_is_error(x)) return rp_error_status();
    if (rp__dim_is(RP__DIM_LT, samples->size[0], x->size[0]))
        return rp__op_error(call, RP_ERROR_SHAPE, "there are samples for fewer planes than self is a batch of");
    if (rp__dim_is(RP__DIM_LT, x->size[1], 1)) return rp__op_error(call, RP_ERROR_SHAPE, "self has no channels");
    if (!rp__dim_is(RP__DIM_EQ, samples->size[1], x->size[1]))
        return rp__op_error(call, RP_ERROR_SHAPE, "samples are not of as many channels as self");
    if (!rp__dim_is(RP__DIM_EQ, samples->size[2], spatial))
        return rp__op_error(call, RP_ERROR_SHAPE, "samples are %u a plane, not %lld", spatial,
                            (long long)rp__dim_hint(samples->size[2]));
    if (!rp__dim_is(RP__DIM_EQ, samples->size[0], x->size[0])) samples = rp_narrow(samples, 0, 0, x->size[0]);
    if (rp__tensor_is_error(samples)) return rp_error_status();
    int64_t n[MOST], plane = 1, elements = 1, all_elements = 1;
    for (unsigned d = 0; d < spatial; d++) {
        const int64_t k = kernel->v.ints[d], out = output->v.ints[d];
        n[d] = rp__dim_value(x->size[2 + d]);
        /* of volumes PyTorch asks for one element more */
        if (k < 1 || out < 1 || n[d] < 1 || out > n[d] || k > n[d] - out + (spatial == 2))
            return rp__op_error(call, RP_ERROR_SHAPE, "windows of %lld find no places in %lld", (long long)k,
                                (long long)n[d]);
        if (!rp__mul_i64(plane, n[d], &plane) || !rp__mul_i64(elements, k, &elements) ||
            !rp__mul_i64(all_elements, out, &all_elements) || !rp__mul_i64(all_elements, k, &all_elements))
            return rp__op_error(call, RP_ERROR_SHAPE, "a window's size does not fit into 64 bits");
    }
    /* places (N, C, outputs.., kernel..) in the plane */
    rp_tensor *places = NULL;
    const rp_dim one[2 + 2 * MOST] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (unsigned d = 0; d < spatial; d++) {
        rp_dim size[2 + 2 * MOST];
        /* of a plane the samples are those of the columns first */
        const int64_t which = spatial == 2 ? 1 - (int64_t)d : (int64_t)d;
        rp_tensor *begin =
            begins(rp_detach(rp_slice(samples, 2, which, which + 1, 1)), n[d], kernel->v.ints[d], output->v.ints[d]);
        if (rp__tensor_is_error(begin)) return rp_error_status();
        for (unsigned k = 0; k < 2 + 2 * spatial; k++) size[k] = one[k];
        size[0] = begin->size[0], size[1] = begin->size[1], size[2 + d] = begin->size[2];
        rp_tensor *along = rp_view(begin, size, 2 + 2 * spatial);
        for (unsigned k = 0; k < 2 + 2 * spatial; k++) size[k] = one[k];
        size[2 + spatial + d] = kernel->v.ints[d];
        along = rp_add(along, rp_view(rp__count_beside(x, kernel->v.ints[d]), size, 2 + 2 * spatial));
        places = places ? rp_add(rp_mul_scalar(places, rp_i64(n[d])), along) : along;
    }
    rp_dim flat[3] = {x->size[0], x->size[1], plane}, windows[3 + MOST] = {x->size[0], x->size[1]};
    for (unsigned d = 0; d < spatial; d++) windows[2 + d] = output->v.ints[d];
    windows[2 + spatial] = elements;
    rp_dim full[2 + 2 * MOST] = {x->size[0], x->size[1]};
    for (unsigned d = 0; d < spatial; d++) full[2 + d] = output->v.ints[d], full[2 + spatial + d] = kernel->v.ints[d];
    places = rp_reshape(rp_expand(places, full, 2 + 2 * spatial), windows, 3 + spatial);
    rp_tensor *all = rp_reshape(places, (rp_dim[]){x->size[0], x->size[1], all_elements}, 3), *best = NULL;
    rp_tensor *values = rp_reshape(rp_gather(rp_reshape(x, flat, 3), 2, all), windows, 3 + spatial);
    values = rp_max_dim(values, -1, false, &best);
    rp_tensor *indices = rp_squeeze(rp_gather(places, -1, rp_unsqueeze(best, -1)), -1);
    call->out[0] = batch ? values : rp_squeeze(values, 0);
    call->out[1] = batch ? indices : rp_squeeze(indices, 0);
    return rp__tensor_is_error(call->out[0]) || rp__tensor_is_error(call->out[1]) ? rp_error_status() : RP_OK;
}
rp_status rp__expand_fractional_max_pool2d(const rp__call *call) { return fractional(call, 2); }
rp_status rp__expand_fractional_max_pool3d(const rp__call *call) { return fractional(call, 3); }
