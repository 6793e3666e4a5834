/* The CPU's table of templates (kernel/template.h): oneDNN, and the packed kernels of our own. */
#include "kernel/cpu/templates.h"

#include "kernel/cpu/lib.h"
#include "kernel/cpu/lib_onednn.h"

static bool onednn_serves(const rp__problem *p, size_t *workspace) {
    return rp__onednn_serves(p->op, p->o, p->n, p->call, workspace);
}
static double onednn_cost(const rp__problem *p) {
    return p->op == RP__LIB_MATMUL ? RP__ONEDNN_MATMUL_WORK : RP__ONEDNN_CONV_WORK;
}
static rp_status onednn_bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    return rp__onednn_bind(p->op, p->o, p->n, p->call, workspace, buffer, out);
}

static rp_status matmul_bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    (void)workspace;
    return rp__cpu_matmul_bind(p->device, p->op, p->o, p->n, p->call, buffer, out);
}
static rp_status conv_bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    (void)workspace;
    return rp__cpu_conv_bind(p->device, p->op, p->o, p->n, p->call, buffer, out);
}

static const rp__template onednn = {.name = "onednn",
                                    .ops = 1u << RP__LIB_MATMUL | 1u << RP__LIB_CONV_FORWARD | 1u << RP__LIB_CONV_INPUT,
                                    .available = rp__onednn_available,
                                    .serves = onednn_serves,
                                    .cost = onednn_cost,
                                    .bind = onednn_bind};
/* Both take what follows by kernel/cpu/contract.c. */
static const rp__template packed = {
    .name = "packed", .ops = 1u << RP__LIB_MATMUL, .follows = true, .order = rp__problem_order, .bind = matmul_bind};
static const rp__template packed_conv = {
    .name = "packed", .ops = RP__CPU_CONVOLUTIONS, .follows = true, .order = rp__problem_order, .bind = conv_bind};

const rp__template *const rp__cpu_templates[RP__CPU_TEMPLATES] = {&onednn, &packed, &packed_conv};
