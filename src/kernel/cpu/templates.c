/* The CPU's table of templates (kernel/template.h): oneDNN, and kernels of our own: packed, and by the matrix unit. */
#include "kernel/cpu/templates.h"

#include "core/dtype.h"
#include "kernel/cpu/gemm.h"
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

static bool is_whole(const rp__problem *p) { return !rp__dtype_is_float((rp_dtype)p->o[0].dtype); }
static bool conv_serves(const rp__problem *p, size_t *workspace) {
    (void)workspace;
    return !is_whole(p);
}
static bool conv_whole_serves(const rp__problem *p, size_t *workspace) {
    (void)workspace;
    return is_whole(p);
}
static rp_status conv_whole_bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    (void)workspace;
    return rp__cpu_conv_whole_bind(p->device, p->op, p->o, p->n, p->call, buffer, out);
}

static const rp__template onednn = {.name = "onednn",
                                    .ops = 1u << RP__LIB_MATMUL | 1u << RP__LIB_CONV_FORWARD | 1u << RP__LIB_CONV_INPUT,
                                    .available = rp__onednn_available,
                                    .serves = onednn_serves,
                                    .cost = onednn_cost,
                                    .bind = onednn_bind};
/* Whatever the sizes, so that a machine with the unit has one order for all products of its type. */
static bool dots_serves(const rp__problem *p, size_t *workspace) {
    (void)workspace;
    return rp__cpu_dots((rp_dtype)p->o[0].dtype);
}
static rp__order dots_order(const rp__problem *p) { return rp__order_with(rp__problem_order(p), RP__FAMILY_DOTS, 0); }
static rp_status matmul_dots_bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    (void)workspace;
    return rp__cpu_matmul_dots_bind(p->device, p->op, p->o, p->n, p->call, buffer, out);
}
static rp_status conv_dots_bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    (void)workspace;
    return rp__cpu_conv_dots_bind(p->device, p->op, p->o, p->n, p->call, buffer, out);
}

/* All of ours take what follows by kernel/cpu/contract.c. */
static const rp__template packed = {
    .name = "packed", .ops = 1u << RP__LIB_MATMUL, .follows = true, .order = rp__problem_order, .bind = matmul_bind};
static const rp__template packed_conv = {.name = "packed",
                                         .ops = RP__CPU_CONVOLUTIONS,
                                         .follows = true,
                                         .serves = conv_serves,
                                         .order = rp__problem_order,
                                         .bind = conv_bind};
static const rp__template whole_conv = {
    .name = "whole", .ops = RP__CPU_CONVOLUTIONS, .serves = conv_whole_serves, .bind = conv_whole_bind};

/* Of equal costs the first: before the packed ones, behind oneDNN where that is worth its call. */
static const rp__template dots = {.name = "dots",
                                  .ops = 1u << RP__LIB_MATMUL,
                                  .follows = true,
                                  .serves = dots_serves,
                                  .order = dots_order,
                                  .bind = matmul_dots_bind};
static const rp__template dots_conv = {.name = "dots",
                                       .ops = RP__CPU_CONVOLUTIONS,
                                       .follows = true,
                                       .serves = dots_serves,
                                       .order = dots_order,
                                       .bind = conv_dots_bind};

const rp__template *const rp__cpu_templates[RP__CPU_TEMPLATES] = {&onednn, &dots,        &dots_conv,
                                                                  &packed, &packed_conv, &whole_conv};
