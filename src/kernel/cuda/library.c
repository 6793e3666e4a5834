/* The library ops of the CUDA device: the table behind kernel/library.h. */
#include "kernel/cuda/library.h"

#include <string.h>

#include "kernel/cuda/attention.h"
#include "kernel/cuda/lib_select.h"
#include "tensor/tensor.h"

void rp__cuda_operand_slot(const rp__operand *o, uint32_t word, uint32_t access, rp__launch_buffer *buffer,
                           rp__launch *out) {
    int64_t low = 0, high = 1, bytes = (int64_t)rp__dtype_bytes(o->dtype);
    for (unsigned d = 0; d < o->ndim; d++) {
        int64_t reach = (o->size[d] - 1) * o->stride[d];
        if (o->size[d] == 0) reach = 0;
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    int64_t start = o->storage && o->storage->data ? (int64_t)((char *)o->base - (char *)o->storage->data) : 0;
    buffer->words[word] = (uint64_t)(uintptr_t)o->base;
    buffer->slots[out->n_slots++] = (rp__slot){.word = word,
                                               .access = access,
                                               .storage = o->storage,
                                               .buffer = -1,
                                               .begin = start + low * bytes,
                                               .end = start + high * bytes};
    out->words = buffer->words;
    out->slots = buffer->slots;
}

void rp__cuda_operand_slots(const rp__operand *o, size_t n, const uint32_t *access, rp__launch_buffer *buffer,
                            rp__launch *out) {
    out->n_slots = 0;
    for (size_t k = 0; k < n; k++) rp__cuda_operand_slot(&o[k], (uint32_t)k, access[k], buffer, out);
}

static inline bool has_templates(rp__library_op op) { return RP__CUDA_TEMPLATED >> op & 1u; }

static const rp__template *pick(const rp__problem *p, size_t *workspace) {
    return rp__template_pick(rp__cuda_templates, RP__CUDA_TEMPLATES, p, SIZE_MAX, RP__ORDER_ELSEWHERE, workspace);
}

static size_t workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                        const rp__library_call *call) {
    size_t bytes = 0;
    switch (op) {
    case RP__LIB_TOPK: return rp__cuda_topk_workspace(d, o, n, call);
    case RP__LIB_NONZERO: return rp__cuda_nonzero_workspace(d, o, n, call);
    case RP__LIB_MULTINOMIAL: return rp__cuda_multinomial_workspace(d, o, n, call);
    case RP__LIB_SCATTER: return rp__cuda_scatter_workspace(d, o, n, call);
    default:
        return has_templates(op) && pick(&(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE}, &bytes) ? bytes : 0;
    }
}

static rp_status bind_template(const rp__problem *p, rp__launch_buffer *buffer, rp__launch *out) {
    size_t bytes;
    const rp__template *t = pick(p, &bytes);
    *out = (rp__launch){.op = p->call->op, .site = p->call->site};
    if (!t || bytes > p->call->workspace_bytes)
        return rp__fail(RP_ERROR_INTERNAL, "%s: %zu bytes of workspace given, %zu needed", p->call->op,
                        p->call->workspace_bytes, bytes);
    return t->bind(p, bytes, buffer, out);
}

static rp_status bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                      rp__launch_buffer *buffer, rp__launch *out) {
    switch (op) {
    case RP__LIB_TOPK: return rp__cuda_topk_bind(d, o, n, call, buffer, out);
    case RP__LIB_NONZERO: return rp__cuda_nonzero_bind(d, o, n, call, buffer, out);
    case RP__LIB_MULTINOMIAL: return rp__cuda_multinomial_bind(d, o, n, call, buffer, out);
    case RP__LIB_SCATTER: return rp__cuda_scatter_bind(d, o, n, call, buffer, out);
    case RP__LIB_CHOOSE: return rp__cuda_choose_bind(d, o, n, call, buffer, out);
    case RP__LIB_ATTENTION:
    case RP__LIB_ATTENTION_KEYS:
    case RP__LIB_ATTENTION_QUERIES: return rp__cuda_attention_bind(d, op, o, n, call, buffer, out);
    case RP__LIB_ATTENTION_PLACE:
    case RP__LIB_ATTENTION_KEEP: return rp__cuda_attention_draw_bind(d, op, o, n, call, buffer, out);
    default: break;
    }
    if (!has_templates(op)) return rp__fail(RP_ERROR_INTERNAL, "%s: library op %d on CUDA", call->op, (int)op);
    return bind_template(&(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE}, buffer, out);
}

static const char *name(rp__device *d, rp__library_op op) {
    (void)d;
    return rp__template_name(rp__cuda_templates, RP__CUDA_TEMPLATES, op);
}

static rp__order order(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
    return rp__template_order(rp__cuda_templates, RP__CUDA_TEMPLATES,
                              &(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE});
}

extern const rp__library rp__cuda_library;
const rp__library rp__cuda_library = {.workspace = workspace,
                                      .bind = bind,
                                      .order = order,
                                      .chain = rp__cuda_chain,
                                      .bind_chain = rp__cuda_chain_bind,
                                      .name = name};
