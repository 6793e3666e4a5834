/* The CPU's table of library ops, and what its families share. */
#include "kernel/cpu/lib.h"
#include "kernel/cpu/lib_onednn.h"
#include "tensor/tensor.h"

void rp__cpu_slot(const rp__operand *o, uint32_t word, uint32_t access, rp__launch_buffer *buffer, rp__launch *out) {
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
    buffer->words[word] = (uint64_t)(uintptr_t)o->base;
    buffer->slots[out->n_slots++] = (rp__slot){.word = word,
                                               .access = access,
                                               .storage = o->storage,
                                               .buffer = -1,
                                               .begin = at + low * bytes,
                                               .end = at + high * bytes};
}

rp_status rp__cpu_workspace_slot(const rp__library_call *call, size_t bytes, uint32_t word, rp__launch_buffer *buffer,
                                 rp__launch *out) {
    if (call->workspace_bytes < bytes || (bytes && !call->workspace))
        return rp__fail(RP_ERROR_INTERNAL, "%s: a workspace of %zu bytes where %zu are needed", call->op,
                        call->workspace_bytes, bytes);
    const char *start = call->workspace_storage ? call->workspace_storage->data : NULL;
    const int64_t at = start ? (int64_t)((const char *)call->workspace - start) : 0;
    buffer->words[word] = (uint64_t)(uintptr_t)call->workspace;
    buffer->slots[out->n_slots++] = (rp__slot){.word = word,
                                               .access = RP__READ | RP__WRITE,
                                               .storage = call->workspace_storage,
                                               .buffer = -1,
                                               .begin = at,
                                               .end = at + (int64_t)bytes};
    return RP_OK;
}

static const struct {
    rp__cpu_bind *bind;
    rp__cpu_workspace *workspace; /* NULL: none */
} families[RP__LIB_COUNT] = {
    [RP__LIB_MATMUL] = {rp__cpu_matmul_bind, NULL},
    [RP__LIB_CONV_FORWARD] = {rp__cpu_conv_bind, NULL},
    [RP__LIB_CONV_INPUT] = {rp__cpu_conv_bind, NULL},
    [RP__LIB_CONV_WEIGHT] = {rp__cpu_conv_bind, NULL},
    [RP__LIB_TOPK] = {rp__cpu_topk_bind, rp__cpu_topk_workspace},
    [RP__LIB_NONZERO] = {rp__cpu_nonzero_bind, NULL},
    [RP__LIB_MULTINOMIAL] = {rp__cpu_multinomial_bind, rp__cpu_multinomial_workspace},
    [RP__LIB_SCATTER] = {rp__cpu_scatter_bind, NULL},
    [RP__LIB_CHOOSE] = {rp__cpu_choose_bind, NULL},
};

static bool may_be_onednn(rp__library_op op) { return op <= RP__LIB_CONV_WEIGHT; }

static size_t workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                        const rp__library_call *call) {
    size_t bytes;
    if (may_be_onednn(op) && rp__onednn_serves(op, o, n, call, &bytes)) return bytes;
    return families[op].workspace ? families[op].workspace(d, op, o, n, call) : 0;
}

static rp_status bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                      rp__launch_buffer *buffer, rp__launch *out) {
    *out = (rp__launch){.words = buffer->words, .slots = buffer->slots, .op = call->op, .site = call->site};
    size_t bytes;
    /* A caller without the workspace (out of memory while a plan was made) gets our kernels. */
    if (may_be_onednn(op) && rp__onednn_serves(op, o, n, call, &bytes) && call->workspace_bytes >= bytes)
        return rp__onednn_bind(op, o, n, call, bytes, buffer, out);
    return families[op].bind(d, op, o, n, call, buffer, out);
}

static const char *name(rp__device *d, rp__library_op op) {
    (void)d;
    return may_be_onednn(op) && op != RP__LIB_CONV_WEIGHT && rp__onednn_available() ? "onednn" : "reprise";
}

static rp__order order(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
    static const rp__contract_form forms[] = {[RP__LIB_MATMUL] = RP__CONTRACT_PRODUCT,
                                              [RP__LIB_CONV_FORWARD] = RP__CONTRACT_CONV,
                                              [RP__LIB_CONV_INPUT] = RP__CONTRACT_CONV_INPUT,
                                              [RP__LIB_CONV_WEIGHT] = RP__CONTRACT_CONV_WEIGHT};
    size_t bytes;
    (void)d;
    /* Integers add up in words that are wider than the result. */
    if (!rp__dtype_is_float(o[0].dtype) || rp__onednn_serves(op, o, n, call, &bytes)) return RP__ORDER_ELSEWHERE;
    return rp__order_of(forms[op], rp__dtype_bytes(o[0].dtype) == 8);
}

/* A launch costs less than a row of a small product: nothing to win. */
static rp__chain_answer chain(rp__device *d, const rp__library_stage *stages, size_t n) {
    (void)d;
    (void)stages;
    (void)n;
    return RP__CHAIN_NOT_HERE;
}

extern const rp__library rp__cpu_library;
const rp__library rp__cpu_library = {
    .workspace = workspace, .bind = bind, .order = order, .chain = chain, .name = name};
