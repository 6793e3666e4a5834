/* The library ops of the CUDA device: the table behind kernel/library.h. */
#include "kernel/cuda/library.h"

#include <string.h>

#include "kernel/cuda/attention.h"
#include "kernel/cuda/lib_select.h"
#include "kernel/cuda/lib_sort.h"
#include "kernel/cuda/recur.h"
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

rp_status rp__cuda_workspace_slot(const rp__library_call *call, size_t bytes, uint32_t word, rp__launch_buffer *buffer,
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

rp_status rp__cuda_line_grid(rp__launch *out, const rp__library_call *call, int64_t blocks, unsigned threads) {
    if (blocks > INT32_MAX) return rp__fail(RP_ERROR_SHAPE, "%s: this is more than one CUDA launch takes", call->op);
    out->grid[0] = (uint32_t)blocks;
    out->block[0] = threads;
    out->grid[1] = out->grid[2] = out->block[1] = out->block[2] = 1;
    return RP_OK;
}

int64_t rp__cuda_operand_numel(const rp__operand *o) {
    int64_t n = 1;
    for (unsigned i = 0; i < o->ndim; i++) n *= o->size[i];
    return n;
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
    case RP__LIB_TOPK: return rp__cuda_topk_step(d, o, n, call, 0, buffer, out);
    case RP__LIB_NONZERO: return rp__cuda_nonzero_bind(d, o, n, call, buffer, out);
    case RP__LIB_MULTINOMIAL: return rp__cuda_multinomial_bind(d, o, n, call, buffer, out);
    case RP__LIB_SCATTER: return rp__cuda_scatter_bind(d, o, n, call, buffer, out);
    case RP__LIB_CHOOSE: return rp__cuda_choose_bind(d, o, n, call, buffer, out);
    case RP__LIB_STEPS: return rp__cuda_steps_bind(d, o, n, call, buffer, out);
    case RP__LIB_CTC_REACH:
    case RP__LIB_CTC_CARRY: return rp__cuda_ctc_bind(d, op, o, n, call, buffer, out);
    case RP__LIB_RECUR:
    case RP__LIB_RECUR_BACK: return rp__cuda_recur_bind(d, op, o, n, call, buffer, out);
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

static rp_status finish(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                        unsigned step, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__problem p = {d, op, o, n, call, RP__ORDER_ELSEWHERE};
    size_t bytes;
    *out = (rp__launch){0};
    if (op == RP__LIB_TOPK) return rp__cuda_topk_step(d, o, n, call, step, buffer, out);
    if (op != RP__LIB_CONV_WEIGHT || step > 1) return RP_OK;
    const rp__template *t = pick(&p, &bytes);
    return t == &rp__cuda_conv_shares_row.row || t == &rp__cuda_conv_depth_shares_row.row ||
                   t == &rp__cuda_conv_group_shares_row.row
               ? rp__cuda_conv_add_shares(&p, buffer, out)
               : RP_OK;
}

static const char *name(rp__device *d, rp__library_op op) {
    (void)d;
    return rp__template_name(rp__cuda_templates, RP__CUDA_TEMPLATES, op);
}

static rp__order order(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
    return rp__template_order(rp__cuda_templates, RP__CUDA_TEMPLATES,
                              &(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE});
}

/* Of the plain kernel, which is for products that take no longer than a launch: a block computes what it would read, and the launch that is
 * saved is worth many additions. */
static unsigned factor_cost(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                            const rp__library_call *call, rp__order order, unsigned k) {
    enum { WORTH = 128, MOST = 64, TILE = 16 };
    const rp__problem p = {d, op, o, n, call, order};
    const int64_t other = o->size[o->ndim - (k ? 2u : 1u)], tiles = (other + TILE - 1) / TILE;
    unsigned place;
    if (op != RP__LIB_MATMUL || !rp__dtype_is_float((rp_dtype)o->dtype) ||
        rp__cuda_template_following(&p, order, &place) != &rp__cuda_matmul_row)
        return 0;
    return tiles == 1 ? MOST : tiles - 1 <= WORTH ? (unsigned)(WORTH / (tiles - 1)) : 0;
}

extern const rp__library rp__cuda_library;
const rp__library rp__cuda_library = {.workspace = workspace,
                                      .bind = bind,
                                      .finish = finish,
                                      .order = order,
                                      .factor_cost = factor_cost,
                                      .channels_last = rp__cuda_conv_channels_last,
                                      .recurs = rp__cuda_recurs,
                                      .join = rp__cuda_product_join,
                                      .chain = rp__cuda_chain,
                                      .bind_chain = rp__cuda_chain_bind,
                                      .name = name};
