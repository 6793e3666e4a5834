/* The CPU's table of library ops, and what its families share. */
#include "kernel/cpu/lib.h"
#include "kernel/cpu/templates.h"
#include "tensor/tensor.h"

/* What has one kernel. */
static const rp__library_family families[RP__LIB_COUNT] = {
    [RP__LIB_TOPK] = {rp__cpu_topk_bind, rp__cpu_topk_workspace},
    [RP__LIB_NONZERO] = {rp__cpu_nonzero_bind, NULL},
    [RP__LIB_MULTINOMIAL] = {rp__cpu_multinomial_bind, rp__cpu_multinomial_workspace},
    [RP__LIB_SCATTER] = {rp__cpu_scatter_bind, NULL},
    [RP__LIB_COUNT_BINS] = {rp__cpu_count_bins_bind, NULL},
    [RP__LIB_WEIGHTED_SCATTER] = {rp__cpu_weighted_scatter_bind, NULL},
    [RP__LIB_STEPS] = {rp__cpu_steps_bind, NULL},
    [RP__LIB_CHOOSE] = {rp__cpu_choose_bind, NULL},
    [RP__LIB_ATTENTION] = {rp__cpu_attention_bind, NULL},
    [RP__LIB_ATTENTION_KEYS] = {rp__cpu_attention_backward_bind, rp__cpu_attention_workspace},
    [RP__LIB_ATTENTION_QUERIES] = {rp__cpu_attention_backward_bind, NULL},
    [RP__LIB_ATTENTION_PLACE] = {rp__cpu_attention_place_bind, NULL},
    [RP__LIB_ATTENTION_KEEP] = {rp__cpu_attention_keep_bind, NULL},
    [RP__LIB_CTC_REACH] = {rp__cpu_ctc_bind, NULL},
    [RP__LIB_CTC_CARRY] = {rp__cpu_ctc_bind, NULL},
    [RP__LIB_RECUR] = {rp__cpu_recur_bind, rp__cpu_recur_workspace},
    [RP__LIB_RECUR_BACK] = {rp__cpu_recur_bind, rp__cpu_recur_workspace},
};

static inline bool has_templates(rp__library_op op) { return RP__CPU_TEMPLATED >> op & 1u; }

/* most: bytes of workspace there are. */
static const rp__template *pick(const rp__problem *p, size_t most, size_t *workspace) {
    return rp__template_pick(rp__cpu_templates, RP__CPU_TEMPLATES, p, most, RP__ORDER_ELSEWHERE, workspace);
}

static size_t workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                        const rp__library_call *call) {
    size_t bytes = 0;
    if (!has_templates(op)) return rp__family_workspace(families, d, op, o, n, call);
    return pick(&(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE, NULL}, SIZE_MAX, &bytes) ? bytes : 0;
}

static rp_status bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                      rp__launch_buffer *buffer, rp__launch *out) {
    if (!has_templates(op)) return rp__family_bind(families, d, op, o, n, call, buffer, out);
    *out = (rp__launch){.words = buffer->words, .slots = buffer->slots, .op = call->op, .site = call->site};
    const rp__problem p = {d, op, o, n, call, RP__ORDER_ELSEWHERE, NULL};
    size_t bytes;
    /* A caller without the workspace (out of memory while a plan was made) gets our kernels. */
    return pick(&p, call->workspace_bytes, &bytes)->bind(&p, bytes, buffer, out);
}

static const char *name(rp__device *d, rp__library_op op) {
    (void)d;
    return rp__template_name(rp__cpu_templates, RP__CPU_TEMPLATES, op);
}

static rp__order order(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call) {
    return rp__template_order(rp__cpu_templates, RP__CPU_TEMPLATES,
                              &(rp__problem){d, op, o, n, call, RP__ORDER_ELSEWHERE, NULL});
}

extern const rp__library rp__cpu_library; /* without chains: a launch costs less than a row of a small product */
const rp__library rp__cpu_library = {.workspace = workspace,
                                     .bind = bind,
                                     .order = order,
                                     .factor_cost = rp__cpu_factor_cost,
                                     .recurs = rp__cpu_recurs,
                                     .name = name};
