/* The library ops of the CUDA device: the table behind kernel/library.h. */
#include "kernel/cuda/library.h"

#include <string.h>

#include "kernel/cuda/attention.h"
#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/lib_select.h"
#include "kernel/cuda/lib_sort.h"
#include "kernel/cuda/recur.h"
#include "tensor/tensor.h"

rp_status rp__cuda_line_grid(rp__launch *out, const rp__library_call *call, int64_t blocks, unsigned threads) {
    if (blocks > INT32_MAX) return rp__fail(RP_ERROR_SHAPE, "%s: this is more than one CUDA launch takes", call->op);
    out->grid[0] = (uint32_t)blocks;
    out->block[0] = threads;
    out->grid[1] = out->grid[2] = out->block[1] = out->block[2] = 1;
    return RP_OK;
}

/* What has one kernel. */
static const rp__library_family families[RP__LIB_COUNT] = {
    [RP__LIB_TOPK] = {rp__cuda_topk_bind, rp__cuda_topk_workspace},
    [RP__LIB_NONZERO] = {rp__cuda_nonzero_bind, rp__cuda_nonzero_workspace},
    [RP__LIB_MULTINOMIAL] = {rp__cuda_multinomial_bind, rp__cuda_multinomial_workspace},
    [RP__LIB_SCATTER] = {rp__cuda_scatter_bind, NULL},
    [RP__LIB_COUNT_BINS] = {rp__cuda_count_bins_bind, NULL},
    [RP__LIB_WEIGHTED_SCATTER] = {rp__cuda_weighted_scatter_bind, NULL},
    [RP__LIB_STEPS] = {rp__cuda_steps_bind, NULL},
    [RP__LIB_CHOOSE] = {rp__cuda_choose_bind, NULL},
    [RP__LIB_ATTENTION] = {rp__cuda_attention_bind, NULL},
    [RP__LIB_ATTENTION_KEYS] = {rp__cuda_attention_bind, NULL},
    [RP__LIB_ATTENTION_QUERIES] = {rp__cuda_attention_bind, NULL},
    [RP__LIB_ATTENTION_PLACE] = {rp__cuda_attention_draw_bind, NULL},
    [RP__LIB_ATTENTION_KEEP] = {rp__cuda_attention_draw_bind, NULL},
    [RP__LIB_CTC_REACH] = {rp__cuda_ctc_bind, NULL},
    [RP__LIB_CTC_CARRY] = {rp__cuda_ctc_bind, NULL},
    [RP__LIB_RECUR] = {rp__cuda_recur_bind, NULL},
    [RP__LIB_RECUR_BACK] = {rp__cuda_recur_bind, NULL},
};

static inline bool has_templates(rp__library_op op) { return RP__CUDA_TEMPLATED >> op & 1u; }

static const rp__template *pick(const rp__problem *p, size_t *workspace) {
    return rp__template_pick(rp__cuda_templates, RP__CUDA_TEMPLATES, p, SIZE_MAX, RP__ORDER_ELSEWHERE, workspace);
}

static size_t workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                        const rp__library_call *call) {
    size_t bytes = 0;
    if (!has_templates(op)) return rp__family_workspace(families, d, op, o, n, call);
    return pick(&(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE, &(rp__problem_notes){.even = false}}, &bytes)
               ? bytes
               : 0;
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
    if (!has_templates(op)) return rp__family_bind(families, d, op, o, n, call, buffer, out);
    return bind_template(&(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE, &(rp__problem_notes){.even = false}},
                         buffer, out);
}

static rp_status finish(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                        unsigned step, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__problem p = {d, op, o, n, call, RP__ORDER_ELSEWHERE, &(rp__problem_notes){.even = false}};
    size_t bytes;
    *out = (rp__launch){0};
    if (op == RP__LIB_TOPK) return rp__cuda_topk_step(d, o, call, step, buffer, out);
    if (op != RP__LIB_CONV_WEIGHT || step > 1) return RP_OK;
    const rp__template *t = pick(&p, &bytes);
    return t == &rp__cuda_conv_shares_row.row || t == &rp__cuda_conv_depth_shares_row.row ||
                   t == &rp__cuda_conv_group_shares_row.row
               ? rp__cuda_conv_add_shares(&p, buffer, out)
               : RP_OK;
}

static const char *name(rp__device *d, rp__library_op op) {
    (void)d;
    const bool ours = RP__CUDA_CONVOLUTIONS >> op & 1u && op != RP__LIB_CONV_WEIGHT && !rp__cuda_dnn_is_everywhere();
    return ours ? "reprise" : rp__template_name(rp__cuda_templates, RP__CUDA_TEMPLATES, op);
}

static rp__order order(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
    return rp__template_order(
        rp__cuda_templates, RP__CUDA_TEMPLATES,
        &(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE, &(rp__problem_notes){.even = false}});
}

/* Of the plain kernel, which is for products that take no longer than a launch: a block computes what it would read, and the launch that is
 * saved is worth many additions. */
static unsigned factor_cost(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                            const rp__library_call *call, rp__order order, unsigned k) {
    enum { WORTH = 128, MOST = 64, TILE = 16 };
    const rp__problem p = {d, op, o, n, call, order, &(rp__problem_notes){.even = false}};
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
                                      .turned = rp__cuda_conv_turned,
                                      .recurs = rp__cuda_recurs,
                                      .join = rp__cuda_join,
                                      .chain = rp__cuda_chain,
                                      .bind_chain = rp__cuda_chain_bind,
                                      .name = name};
