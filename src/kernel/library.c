/* Runs one library op: operands to a launch record, the record to the stream. */
#include "kernel/library.h"

#include "device/device.h"
#include "tensor/tensor.h"

rp_status rp__library_run(rp__device *d, rp_stream *s, rp__library_op op, const rp__operand *operands, size_t n,
                          rp__library_call *call) {
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    if (!buffer) return rp_error_status();
    rp__storage *scratch = NULL;
    const size_t bytes = d->ops->library->workspace(d, op, operands, n, call);
    if (bytes > call->workspace_bytes) {
        scratch = rp__storage_new(d, s, bytes);
        if (!scratch) return rp_error_status();
        call->workspace = scratch->data;
        call->workspace_storage = scratch;
        call->workspace_bytes = bytes;
    }
    rp__launch launch = {0};
    rp_status status = d->ops->library->bind(d, op, operands, n, call, buffer, &launch);
    if (status == RP_OK && launch.kernel) {
        status = rp__launch_on(s, &launch);
        if (status == RP_OK && d->ops->library->finish) {
            status = d->ops->library->finish(d, op, operands, n, call, buffer, &launch);
            if (status == RP_OK && launch.kernel) status = rp__launch_on(s, &launch);
        }
    }
    if (scratch) {
        /* Stream order keeps the memory until the launch has run. */
        rp__storage_release(scratch);
        call->workspace = NULL;
        call->workspace_storage = NULL;
        call->workspace_bytes = 0;
    }
    return status;
}

void rp__channels_innermost(const rp__operand *o, int64_t *stride) {
    int64_t run = o->size[1];
    stride[1] = 1;
    for (unsigned d = o->ndim; d-- > 0;) {
        if (d == 1) continue;
        stride[d] = run;
        run *= o->size[d];
    }
}

rp_status rp__library_run_chain(rp__device *d, rp_stream *s, const rp__library_stage *stages, size_t n,
                                const rp__library_call *call) {
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    if (!buffer) return rp_error_status();
    rp__launch launch = {0};
    RP_TRY(d->ops->library->bind_chain(d, stages, n, call, buffer, &launch));
    return rp__launch_on(s, &launch);
}
