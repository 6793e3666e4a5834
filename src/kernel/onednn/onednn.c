/* libreprise-onednn.so: plans over oneDNN's C interface, 2.x and 3.x. See onednn.h. Knows nothing of the library's types. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/onednn/parts.h"

dnnl_engine_t rp__dnnl_engine;
static void make_engine(void) {
    if (dnnl_engine_create(&rp__dnnl_engine, dnnl_cpu, 0) != dnnl_success) rp__dnnl_engine = NULL;
}
bool rp__dnnl_begin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_engine);
    return rp__dnnl_engine != NULL;
}

typedef struct plan {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_memory_t memory[5]; /* result, two operands, bias, scratch */
    dnnl_exec_arg_t args[5];
    int n_args;
} plan;

static void plan_free(void *p) {
    plan *x = p;
    if (!x) return;
    for (int i = 0; i < 5; i++)
        if (x->memory[i]) dnnl_memory_destroy(x->memory[i]);
    if (x->stream) dnnl_stream_destroy(x->stream);
    if (x->primitive) dnnl_primitive_destroy(x->primitive);
    free(x);
}

dnnl_status_t rp__dnnl_describe(const rp__onednn_problem *q, rp__dnnl_desc d[4], const_dnnl_primitive_attr_t attr,
                                dnnl_primitive_desc_t *out) {
    rp__dnnl_desc_ref bias = q->bias ? RP__DESC(&d[3]) : NULL;
    dnnl_dims_t dilates = {0}, strides = {0}, left = {0}, right = {0};
    for (int i = 0; i < q->spatial; i++) {
        dilates[i] = q->dilation[i] - 1;
        strides[i] = q->conv_stride[i];
        left[i] = q->padding[i];
        right[i] = q->padding_end[i];
    }
#if DNNL_VERSION_MAJOR >= 3
    if (q->kind == RP__ONEDNN_MATMUL)
        return dnnl_matmul_primitive_desc_create(out, rp__dnnl_engine, d[1], d[2], bias, d[0], attr);
    if (q->kind == RP__ONEDNN_CONV_FORWARD)
        return dnnl_convolution_forward_primitive_desc_create(out, rp__dnnl_engine, dnnl_forward_inference,
                                                              dnnl_convolution_direct, d[1], d[2], bias, d[0], strides,
                                                              dilates, left, right, attr);
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t status = dnnl_convolution_forward_primitive_desc_create(&hint, rp__dnnl_engine, dnnl_forward_training,
                                                                          dnnl_convolution_direct, d[0], d[2], NULL,
                                                                          d[1], strides, dilates, left, right, NULL);
    if (status != dnnl_success) return status;
    status = dnnl_convolution_backward_data_primitive_desc_create(
        out, rp__dnnl_engine, dnnl_convolution_direct, d[0], d[2], d[1], strides, dilates, left, right, hint, attr);
#else
    dnnl_status_t status;
    if (q->kind == RP__ONEDNN_MATMUL) {
        dnnl_matmul_desc_t op;
        status = dnnl_matmul_desc_init(&op, &d[1], &d[2], bias, &d[0]);
        return status == dnnl_success ? dnnl_primitive_desc_create(out, &op, attr, rp__dnnl_engine, NULL) : status;
    }
    dnnl_convolution_desc_t op;
    if (q->kind == RP__ONEDNN_CONV_FORWARD) {
        status = dnnl_dilated_convolution_forward_desc_init(&op, dnnl_forward_inference, dnnl_convolution_direct, &d[1],
                                                            &d[2], bias, &d[0], strides, dilates, left, right);
        return status == dnnl_success ? dnnl_primitive_desc_create(out, &op, attr, rp__dnnl_engine, NULL) : status;
    }
    dnnl_primitive_desc_t hint = NULL;
    status = dnnl_dilated_convolution_forward_desc_init(&op, dnnl_forward_training, dnnl_convolution_direct, &d[0],
                                                        &d[2], NULL, &d[1], strides, dilates, left, right);
    if (status == dnnl_success) status = dnnl_primitive_desc_create(&hint, &op, NULL, rp__dnnl_engine, NULL);
    if (status != dnnl_success) return status;
    status = dnnl_dilated_convolution_backward_data_desc_init(&op, dnnl_convolution_direct, &d[0], &d[2], &d[1],
                                                              strides, dilates, left, right);
    if (status == dnnl_success) status = dnnl_primitive_desc_create(out, &op, attr, rp__dnnl_engine, hint);
#endif
    dnnl_primitive_desc_destroy(hint);
    return status;
}

static dnnl_primitive_attr_t attributes(void) {
    dnnl_primitive_attr_t attr = NULL;
    if (dnnl_primitive_attr_create(&attr) == dnnl_success &&
        dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) == dnnl_success)
        return attr;
    if (attr) dnnl_primitive_attr_destroy(attr);
    return NULL;
}

/* oneDNN wants the groups of a weight as a dim of their own. */
static int weight_desc(rp__dnnl_desc *d, const rp__onednn_problem *q, dnnl_data_type_t type) {
    dnnl_dims_t size = {0}, stride = {0};
    int n = 0;
    if (q->groups > 1) {
        size[n] = q->groups, stride[n++] = q->size[2][0] / q->groups * q->stride[2][0];
        size[n] = q->size[2][0] / q->groups, stride[n++] = q->stride[2][0];
    } else {
        size[n] = q->size[2][0], stride[n++] = q->stride[2][0];
    }
    for (int i = 1; i < q->ndim; i++) size[n] = q->size[2][i], stride[n++] = q->stride[2][i];
    return rp__dnnl_desc_new(d, n, size, type, stride);
}

bool rp__dnnl_is_reference(const_dnnl_primitive_desc_t pd) {
    const char *who = NULL;
    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &who) == dnnl_success && who &&
           strncmp(who, "ref", 3) == 0;
}

static void *make_plan(const rp__onednn_problem *q, size_t *scratch) {
    const dnnl_data_type_t type = q->dtype == RP__ONEDNN_F32    ? dnnl_f32
                                  : q->dtype == RP__ONEDNN_BF16 ? dnnl_bf16
                                                                : dnnl_f16;
    rp__dnnl_desc d[4];
    memset(d, 0, sizeof d);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    plan *p = rp__dnnl_begin() ? calloc(1, sizeof *p) : NULL;
    int ok = p != NULL;
    for (int i = 0; ok && i < 3; i++) {
        dnnl_dims_t size = {0}, stride = {0};
        for (int k = 0; k < q->ndim; k++) size[k] = q->size[i][k], stride[k] = q->stride[i][k];
        ok = i == 2 && q->kind != RP__ONEDNN_MATMUL ? weight_desc(&d[i], q, type)
                                                    : rp__dnnl_desc_new(&d[i], q->ndim, size, type, stride);
    }
    if (ok && q->bias) {
        dnnl_dims_t size = {1, 1, 1}, stride = {1, 1, 1};
        if (q->kind == RP__ONEDNN_MATMUL) {
            size[2] = q->size[0][2], stride[0] = stride[1] = size[2];
            ok = rp__dnnl_desc_new(&d[3], 3, size, type, stride);
        } else {
            size[0] = q->size[0][1];
            ok = rp__dnnl_desc_new(&d[3], 1, size, type, stride);
        }
    }
    ok = ok && (attr = attributes()) != NULL;
    ok = ok && rp__dnnl_describe(q, d, attr, &pd) == dnnl_success && !rp__dnnl_is_reference(pd);
    ok = ok && dnnl_primitive_create(&p->primitive, pd) == dnnl_success;
    ok = ok && dnnl_stream_create(&p->stream, rp__dnnl_engine, dnnl_stream_default_flags) == dnnl_success;
    static const int matmul_args[4] = {DNNL_ARG_DST, DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS};
    static const int input_args[4] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS};
    for (int i = 0; ok && i < (q->bias ? 4 : 3); i++) {
        ok = dnnl_memory_create(&p->memory[i], RP__DESC(&d[i]), rp__dnnl_engine, DNNL_MEMORY_NONE) == dnnl_success;
        p->args[p->n_args].arg = q->kind == RP__ONEDNN_CONV_INPUT ? input_args[i] : matmul_args[i];
        p->args[p->n_args++].memory = p->memory[i];
    }
    *scratch = 0;
    if (ok) {
        rp__dnnl_desc_ref wanted = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        *scratch = wanted ? dnnl_memory_desc_get_size(wanted) : 0;
        if (*scratch) {
            ok = dnnl_memory_create(&p->memory[4], wanted, rp__dnnl_engine, DNNL_MEMORY_NONE) == dnnl_success;
            p->args[p->n_args].arg = DNNL_ARG_SCRATCHPAD;
            p->args[p->n_args++].memory = p->memory[4];
        }
    }
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (attr) dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 4; i++) rp__dnnl_desc_free(&d[i]);
    if (ok) return p;
    plan_free(p);
    return NULL;
}

static void *plan_new(const rp__onednn_problem *q, size_t *scratch) {
    int before = rp__dnnl_threads(1);
    void *p = make_plan(q, scratch);
    (void)rp__dnnl_threads(before);
    return p;
}

static int run_alone(plan *p, void *const addresses[4], void *scratch) {
    for (int i = 0; i < 5; i++) {
        if (!p->memory[i]) continue;
        dnnl_status_t status = dnnl_memory_set_data_handle(p->memory[i], i == 4 ? scratch : addresses[i]);
        if (status != dnnl_success) return (int)status;
    }
    dnnl_status_t status = dnnl_primitive_execute(p->primitive, p->stream, p->n_args, p->args);
    return status == dnnl_success ? (int)dnnl_stream_wait(p->stream) : (int)status;
}

static int run(void *handle, void *const addresses[4], void *scratch) {
    int before = rp__dnnl_threads(1);
    int status = run_alone(handle, addresses, scratch);
    (void)rp__dnnl_threads(before);
    return status;
}

extern const rp__onednn rp__onednn_table;
__attribute__((visibility("default"))) const rp__onednn rp__onednn_table = {
    .abi = RP__ONEDNN_ABI,
    .version = {DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH},
    .plan_new = plan_new,
    .run = run,
    .plan_free = plan_free,
    .net_new = rp__dnnl_net_new,
    .net_run = rp__dnnl_net_run,
    .net_free = rp__dnnl_net_free,
};
