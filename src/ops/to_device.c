/* rp_to_device: a tensor made where it is wanted, and copy_, which crosses devices and has the derivative. */
#include "ops/private.h"

#include "tensor/tensor.h"

static rp_tensor *moved(rp_tensor *t, rp_device device, bool non_blocking) {
    const rp_device own = rp_default_device();
    const bool last = !rp__tensor_contiguous(t) && rp_is_contiguous_format(t, RP_CHANNELS_LAST);
    if (rp_set_default_device(device) != RP_OK) return rp__tensor_error();
    rp_tensor *out = rp_empty(t->size, t->ndim,
                              RP_OPTIONS(rp_empty_options, .dtype = (rp_dtype)t->dtype,
                                         .memory_format = last ? RP_CHANNELS_LAST : RP_CONTIGUOUS_FORMAT));
    if (rp_set_default_device(own) != RP_OK || rp__tensor_is_error(out)) return rp__tensor_error();
    return rp_copy_(out, t, non_blocking);
}

rp_tensor *rp_to_device_at(const char *site, rp_tensor *t, rp_device device, bool non_blocking) {
    rp__site_frame frame = rp__site_push(site, "to_device");
    rp_tensor *out = rp__tensor_error();
    if (rp__tensor_check(t, "the tensor") == RP_OK) {
        if (rp__device_equal(t->device, device)) {
            out = rp__tensor_enter_scope(t);
        } else {
            rp_scope scope = rp__scope_begin();
            if (scope.id) out = moved(t, device, non_blocking);
            rp__scope_end(scope, &out, 1);
        }
    }
    rp__site_pop(frame);
    return out;
}
