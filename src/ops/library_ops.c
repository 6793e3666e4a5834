/* Steps that run rules share: operands of library ops, copies, contiguous forms. They go below all layers: what an op is made
   of is neither taped nor traced. */
#include <string.h>

#include "ops/execute.h"
#include "ops/library_ops.h"
#include "ops/rules.h"

rp__operand rp__operand_of(const rp_tensor *t) {
    rp__operand o; /* sizes and strides past ndim are nobody's */
    o.base = rp__tensor_data(t);
    o.storage = t->storage;
    o.dtype = (rp_dtype)t->dtype;
    o.ndim = t->ndim;
    for (unsigned d = 0; d < t->ndim; d++) {
        o.size[d] = t->size[d];
        o.stride[d] = t->stride[d];
    }
    return o;
}

rp_status rp__run_copy(rp_tensor *dst, rp_tensor *src) {
    rp__device *d = rp__device_get(dst->device);
    if (!d) return rp_error_status();
    rp_tensor *in[] = {dst, src}, *out[] = {dst};
    rp__call call = {.op = RP__OP(copy), .site = rp__site(), .in = in, .n_in = 2, .out = out, .n_out = 1};
    return rp__lower_launch(&call, d, rp__current_stream(d), NULL);
}

rp_status rp__run_fill(rp_tensor *dst, rp_scalar value) {
    rp__device *d = rp__device_get(dst->device);
    if (!d) return rp_error_status();
    const rp_attr attrs[] = {{.kind = RP_ATTR_SCALAR, .v.scalar = value}};
    rp__call call = {.op = RP__OP(fill),
                     .site = rp__site(),
                     .in = &dst,
                     .n_in = 1,
                     .attrs = attrs,
                     .n_attrs = 1,
                     .out = &dst,
                     .n_out = 1};
    return rp__lower_launch(&call, d, rp__current_stream(d), NULL);
}

rp_tensor *rp__run_contiguous(rp_tensor *t, rp_dtype dtype) {
    if ((rp_dtype)t->dtype == dtype && rp__tensor_contiguous(t)) return t;
    rp__device *d = rp__device_get(t->device);
    rp_tensor *out = d ? rp__tensor_empty(d, dtype, t->size, t->ndim) : rp__tensor_error();
    if (rp__tensor_is_error(out) || rp__run_copy(out, t) != RP_OK) return rp__tensor_error();
    return out;
}

rp_status rp__run_library_op(const rp__call *call, rp__library_op op, const rp__operand *operands, size_t n,
                             rp__library_call *library) {
    rp__device *d = rp__device_get(operands[0].storage->device);
    if (!d) return rp_error_status();
    library->op = call->op->name;
    library->site = call->site;
    library->deterministic = rp_deterministic();
    return rp__library_run(d, rp__current_stream(d), op, operands, n, library);
}
