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

/* ---- words and slots */

void rp__operand_slot(const rp__operand *o, uint32_t word, uint32_t access, rp__launch_buffer *buffer,
                      rp__launch *out) {
    const int64_t bytes = (int64_t)rp__dtype_bytes(o->dtype);
    int64_t low = 0, high = 1;
    for (unsigned i = 0; i < o->ndim; i++) {
        if (o->size[i] <= 0) {
            low = high = 0;
            break;
        }
        const int64_t reach = (o->size[i] - 1) * o->stride[i];
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    const char *start = o->storage ? o->storage->data : NULL;
    const int64_t at = start && o->base ? (int64_t)((const char *)o->base - start) : 0;
    out->words = buffer->words;
    out->slots = buffer->slots;
    buffer->words[word] = (uint64_t)(uintptr_t)o->base;
    buffer->slots[out->n_slots++] = (rp__slot){.word = word,
                                               .access = access,
                                               .storage = o->storage,
                                               .buffer = -1,
                                               .begin = at + low * bytes,
                                               .end = at + high * bytes};
}

void rp__operand_slots(const rp__operand *o, size_t n, const uint32_t *access, rp__launch_buffer *buffer,
                       rp__launch *out) {
    out->n_slots = 0;
    for (size_t k = 0; k < n; k++) rp__operand_slot(&o[k], (uint32_t)k, access[k], buffer, out);
}

rp_status rp__workspace_slot(const rp__library_call *call, size_t bytes, uint32_t word, rp__launch_buffer *buffer,
                             rp__launch *out) {
    buffer->words[word] = bytes ? (uint64_t)(uintptr_t)call->workspace : 0;
    if (!bytes) return RP_OK;
    if (call->workspace_bytes < bytes || !call->workspace)
        return rp__fail(RP_ERROR_INTERNAL, "%s: a workspace of %zu bytes where %zu are needed", call->op,
                        call->workspace_bytes, bytes);
    const char *start = call->workspace_storage ? call->workspace_storage->data : NULL;
    int64_t from = start ? (int64_t)((const char *)call->workspace - start) : 0;
    buffer->slots[out->n_slots++] = (rp__slot){.word = word,
                                               .access = RP__READ | RP__WRITE,
                                               .storage = call->workspace_storage,
                                               .buffer = -1,
                                               .begin = from,
                                               .end = from + (int64_t)bytes};
    return RP_OK;
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
    for (size_t k = 0; k < n && RP__UNLIKELY(rp__kernel_log_set); k++)
        rp__kernel_log_tell(d, stages[k].dag, stages[k].space);
    RP_TRY(d->ops->library->bind_chain(d, stages, n, call, buffer, &launch));
    return rp__launch_on(s, &launch);
}

/* ---- do the operands fit? */

static bool lies_plain(const rp__operand *o) {
    int64_t run = 1;
    for (unsigned i = o->ndim; i-- > 0; run *= o->size[i])
        if (o->size[i] != 1 && o->stride[i] != run) return false;
    return true;
}

static rp_status ctc_check(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
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

static rp_status weighted_scatter_check(const rp__operand *o, size_t n, const rp__library_call *call) {
    const rp__operand *y = &o[0], *grad = &o[1], *index = &o[2], *weight = &o[3];
    bool fits = n == 4 && (y->dtype == RP_F32 || y->dtype == RP_F64) && weight->dtype == y->dtype &&
                rp__dtype_is_float(grad->dtype) && (index->dtype == RP_I32 || index->dtype == RP_I64);
    for (unsigned k = 0; fits && k < 4; k++) fits = o[k].ndim == 3 && o[k].size[0] == y->size[0];
    fits = fits && grad->size[1] == y->size[1] && index->size[1] <= RP__MAX_TAPS;
    for (unsigned d = 0; fits && d < 3; d++) fits = index->size[d] == weight->size[d];
    fits = fits && index->size[2] == grad->size[2];
    return fits ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "%s: operands of weighted_scatter do not fit", call->op);
}

static rp_status count_bins_check(const rp__operand *o, size_t n, const rp__library_call *call) {
    const bool fits = n == 2 && o[0].ndim == 1 && o[1].ndim == 1 && (o[0].dtype == RP_I32 || o[0].dtype == RP_I64) &&
                      rp__dtype_is_float(o[1].dtype) && lies_plain(&o[0]) && lies_plain(&o[1]);
    return fits ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "%s: operands of count_bins do not fit", call->op);
}

static rp_status recur_check(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
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

static rp_status topk_check(const rp__operand *o, size_t n, const rp__library_call *call) {
    const rp__operand *values = &o[0], *indices = &o[1], *x = &o[2];
    const unsigned dim = (unsigned)call->dim;
    const bool fits = n >= 3 && dim < x->ndim && values->ndim == x->ndim && indices->ndim == x->ndim &&
                      indices->dtype == RP_I64 && values->dtype == x->dtype && rp__dtype_is_valid(x->dtype) &&
                      call->k >= 0 && call->k <= x->size[dim] && values->size[dim] == call->k;
    return fits ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "%s: operands of topk do not fit", call->op);
}

static rp_status nonzero_check(const rp__operand *o, size_t n, const rp__library_call *call) {
    const rp__operand *indices = &o[0], *count = &o[1], *x = &o[2];
    const bool fits = n >= 3 && indices->ndim == 2 && indices->dtype == RP_I64 && count->dtype == RP_I64 &&
                      rp__dtype_is_valid(x->dtype) && indices->size[0] >= rp__operand_numel(x) &&
                      indices->size[1] == x->ndim;
    return fits ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "%s: operands of nonzero do not fit", call->op);
}

static rp_status multinomial_check(const rp__operand *o, size_t n, const rp__library_call *call) {
    const rp__operand *y = &o[0], *x = &o[1];
    const bool fits = n >= 2 && y->ndim == 2 && x->ndim == 2 && y->dtype == RP_I64 &&
                      (x->dtype == RP_F32 || x->dtype == RP_F64) && y->size[0] == x->size[0];
    if (!fits) return rp__fail(RP_ERROR_INTERNAL, "%s: operands of multinomial do not fit", call->op);
    if (x->size[1] > INT64_C(1) << 24)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: number of categories cannot exceed 2^24", call->op);
    return RP_OK;
}

static rp_status scatter_check(const rp__operand *o, size_t n, const rp__library_call *call) {
    const rp__operand *y = &o[0], *index = &o[1], *src = &o[2];
    const bool fits = n >= 3 && y->ndim == index->ndim && src->ndim == index->ndim &&
                      (unsigned)call->dim < index->ndim && index->dtype == RP_I64 && src->dtype == y->dtype &&
                      rp__dtype_is_valid(y->dtype) && call->scatter < RP__SCATTERS;
    return fits ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "%s: operands of scatter do not fit", call->op);
}

static rp_status steps_check(const rp__operand *o, size_t n, const rp__library_call *call) {
    bool good = n == 3 && call->steps < RP_STEPS_COUNT && (o[0].dtype == RP_F32 || o[0].dtype == RP_F64);
    for (unsigned k = 0; good && k < 3; k++)
        good = o[k].ndim == 1 && o[k].dtype == o[0].dtype && o[k].size[0] == o[0].size[0] &&
               (o[k].stride[0] == 1 || o[k].size[0] < 2);
    return good ? RP_OK : rp__fail(RP_ERROR_INTERNAL, "%s: operands of steps do not fit", call->op);
}

/* Of what is the same for every device. */
static rp_status check(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
    switch (op) {
    case RP__LIB_TOPK: return topk_check(o, n, call);
    case RP__LIB_NONZERO: return nonzero_check(o, n, call);
    case RP__LIB_MULTINOMIAL: return multinomial_check(o, n, call);
    case RP__LIB_SCATTER: return scatter_check(o, n, call);
    case RP__LIB_WEIGHTED_SCATTER: return weighted_scatter_check(o, n, call);
    case RP__LIB_COUNT_BINS: return count_bins_check(o, n, call);
    case RP__LIB_STEPS: return steps_check(o, n, call);
    case RP__LIB_CTC_REACH:
    case RP__LIB_CTC_CARRY: return ctc_check(op, o, n, call);
    case RP__LIB_RECUR:
    case RP__LIB_RECUR_BACK: return recur_check(op, o, n, call);
    default: return RP_OK;
    }
}

/* ---- families */

rp_status rp__family_bind(const rp__library_family *families, rp__device *d, rp__library_op op, const rp__operand *o,
                          size_t n, const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    *out = (rp__launch){.words = buffer->words, .slots = buffer->slots, .op = call->op, .site = call->site};
    if (!families[op].bind) return rp__fail(RP_ERROR_INTERNAL, "%s: library op %d is not here", call->op, (int)op);
    RP_TRY(check(op, o, n, call));
    return families[op].bind(d, op, o, n, call, buffer, out);
}

size_t rp__family_workspace(const rp__library_family *families, rp__device *d, rp__library_op op, const rp__operand *o,
                            size_t n, const rp__library_call *call) {
    return families[op].workspace ? families[op].workspace(d, op, o, n, call) : 0;
}
