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
    for (unsigned step = 1; status == RP_OK && launch.kernel; step++) {
        status = rp__launch_on(s, &launch);
        if (status != RP_OK || !d->ops->library->finish) break;
        status = d->ops->library->finish(d, op, operands, n, call, step, buffer, &launch);
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

static bool lies_plain(const rp__operand *o) {
    int64_t run = 1;
    for (unsigned i = o->ndim; i-- > 0; run *= o->size[i])
        if (o->size[i] != 1 && o->stride[i] != run) return false;
    return true;
}

rp_status rp__ctc_check(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
    const size_t tables = op == RP__LIB_CTC_CARRY ? 3 : 2; /* (T, N, L) */
    bool fits = n == tables + 2 && (o[0].dtype == RP_F32 || o[0].dtype == RP_F64);
    for (size_t k = 0; fits && k < n; k++) {
        const unsigned ndim = k < tables ? 3 : k == tables ? 2 : 1, from = k < tables ? 0 : 1;
        fits = o[k].ndim == ndim && o[k].dtype == (k < tables ? o[0].dtype : k == tables ? RP_BOOL : RP_I64);
        for (unsigned i = 0; fits && i < ndim; i++) fits = o[k].size[i] == o[0].size[from + i];
        fits = fits && (lies_plain(&o[k]) || o[0].size[0] * o[0].size[1] * o[0].size[2] == 0);
    }
    return fits ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "%s: operands of CTC do not fit", call->op);
}

rp_status rp__recur_check(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
    const bool back = op == RP__LIB_RECUR_BACK;
    const unsigned cell = call->recurrence.cell;
    const int64_t gates = rp__cell_gates(cell), kept = cell >= RP__CELL_GRU ? 4 : 0;
    const rp__operand *x = back ? &o[0] : &o[5], *h = back ? &o[2] : &o[1];
    bool fits = n == (back ? 11u : 10u) && x->ndim == 3 && h->ndim == 2 && x->size[0] > 0 &&
                (x->dtype == RP_F32 || x->dtype == RP_F64) && x->size[1] == h->size[0] &&
                x->size[2] == gates * h->size[1];
    const int64_t steps = fits ? x->size[0] : 0, rows = fits ? h->size[0] : 0, units = fits ? h->size[1] : 0;
    for (size_t k = 0; fits && k < n; k++) {
        /* steps + 1 rows units; rows units; steps rows kept; steps rows gates; gates units; gates */
        const char form = (back ? "xxllsllsskw" : "slslkxwbll")[k];
        const int64_t first = form == 's'                  ? steps + 1
                              : form == 'k' || form == 'x' ? steps
                              : form == 'l'                ? rows
                                                           : gates * units;
        const unsigned ndim = form == 'b' ? 1 : form == 'w' || form == 'l' ? 2 : 3;
        if (!o[k].base) continue;
        fits = o[k].dtype == x->dtype && o[k].ndim == ndim && o[k].size[0] == first;
        if (fits && ndim == 3) fits = o[k].size[1] == rows;
        if (fits && ndim > 1)
            fits = o[k].size[ndim - 1] == (form == 'k' ? kept * units : form == 'x' ? gates * units : units);
        if (fits && rows * units > 0)
            fits = form == 'x' && !back ? o[k].stride[2] == 1 || o[k].size[2] == 1 : lies_plain(&o[k]);
    }
    return fits ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "%s: operands of a recurrent layer do not fit", call->op);
}
