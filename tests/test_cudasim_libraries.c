/* The CUDA symbol tables, the prelude, and the emulated NVRTC, cuBLASLt and cuDNN. By default the libraries of REPRISE_CUDASIM_DIR
 * are driven. With REPRISE_TEST_REAL_CUDA=1 the installed ones are, and the tests that need the emulator (poison, failure on
 * demand, deliberately wrong kernels) are skipped with a line each: so the rest shows that the emulator answers as a GPU
 * does. */
/* ctest: labels=cuda timeout=600 cost=16 */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cudasim/cudasim.h"
#include "kernel/cuda/libcudnn.h"
#include "support/cudasim.h"

/* ---- Symbol tables ---- */

static void test_tables(void **state) {
    (void)state;
    char text[8192];
    assert_true(rp__libcuda_report(text, sizeof text) > 0);
    assert_non_null(strstr(text, "libcuda"));
    rp__libnvrtc_report(text, sizeof text);
    assert_non_null(strstr(text, "libnvrtc"));
    rp__libcublaslt_report(text, sizeof text);
    assert_non_null(strstr(text, "libcublasLt"));
    int version, major, minor, count;
    OK(cu->cuDriverGetVersion(&version));
    assert_true(version >= 12040);
    assert_int_equal(rtc->nvrtcVersion(&major, &minor), NVRTC_SUCCESS);
    assert_true(major >= 12);
    assert_int_equal(rtc->nvrtcGetNumSupportedArchs(&count), NVRTC_SUCCESS);
    int *archs = calloc((size_t)count, sizeof *archs);
    assert_int_equal(rtc->nvrtcGetSupportedArchs(archs), NVRTC_SUCCESS);
    bool has90 = false;
    for (int i = 0; i < count; i++) {
        has90 = has90 || archs[i] == 90;
    }
    free(archs);
    assert_true(has90);
    void *p = NULL;
    CUdriverProcAddressQueryResult status;
    OK(cu->cuGetProcAddress("cuMemAlloc", &p, 12040, 0, &status));
    assert_true(p != NULL && status == CU_GET_PROC_ADDRESS_SUCCESS);
}

/* ---- cuBLASLt ---- */

typedef struct problem {
    int m, n, k, batch;
    bool trans_a, trans_b, rows; /* rows: row-major layouts */
    cudaDataType type, out;
    cublasLtEpilogue_t epilogue;
    float beta;
} problem;

static float narrow(float x, cudaDataType type) { /* values used here are exact in every type */
    (void)type;
    return x;
}

static void put_element(void *p, cudaDataType type, size_t i, float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    switch ((int)type) {
    case CUDA_R_64F: ((double *)p)[i] = v; break;
    case CUDA_R_32F: ((float *)p)[i] = v; break;
    case CUDA_R_16F: ((uint16_t *)p)[i] = (uint16_t)round_to(v, 10, 5); break;
    default: ((uint16_t *)p)[i] = (uint16_t)(bits >> 16); break;
    }
}

static float get_element(const void *p, cudaDataType type, size_t i) {
    uint32_t bits;
    float f;
    switch ((int)type) {
    case CUDA_R_64F: return (float)((const double *)p)[i];
    case CUDA_R_32F: return ((const float *)p)[i];
    case CUDA_R_16F: {
        uint16_t h = ((const uint16_t *)p)[i];
        int e = h >> 10 & 31, m = h & 0x3ff;
        double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        return (float)(h >> 15 ? -v : v);
    }
    default:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, 4);
        return f;
    }
}

static size_t element_size(cudaDataType type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

static cublasLtMatrixLayout_t layout(cudaDataType type, int rows, int cols, bool row_major, int batch) {
    cublasLtMatrixLayout_t l;
    int32_t order = row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL, count = batch;
    int64_t stride = (int64_t)rows * cols;
    assert_int_equal(lt->cublasLtMatrixLayoutCreate(&l, type, (uint64_t)rows, (uint64_t)cols, row_major ? cols : rows),
                     0);
    assert_int_equal(lt->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
                     0);
    assert_int_equal(
        lt->cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        0);
    return l;
}

static void run_problem(cublasLtHandle_t handle, const problem *q) {
    int ar = q->trans_a ? q->k : q->m, ac = q->trans_a ? q->m : q->k, br = q->trans_b ? q->n : q->k,
        bc = q->trans_b ? q->k : q->n;
    size_t na = (size_t)(ar * ac * q->batch), nb = (size_t)(br * bc * q->batch), nd = (size_t)(q->m * q->n * q->batch);
    unsigned char *a = calloc(na, 8), *b = calloc(nb, 8), *c = calloc(nd, 8), *d = calloc(nd, 8),
                  *bias = calloc((size_t)q->m, 8);
    for (size_t i = 0; i < na; i++) {
        put_element(a, q->type, i, (float)((int)(i * 7 % 9) - 4) * 0.5f);
    }
    for (size_t i = 0; i < nb; i++) {
        put_element(b, q->type, i, (float)((int)(i * 5 % 7) - 3) * 0.5f);
    }
    for (size_t i = 0; i < nd; i++) {
        put_element(c, q->out, i, (float)((int)(i % 5) - 2));
    }
    for (int i = 0; i < q->m; i++) {
        put_element(bias, q->out, (size_t)i, (float)(i % 3) - 1.0f);
    }
    size_t sa = na * element_size(q->type), sb = nb * element_size(q->type), sd = nd * element_size(q->out);
    CUdeviceptr pa = device_alloc(sa), pb = device_alloc(sb), pc = device_alloc(sd), pd = device_alloc(sd),
                work = device_alloc(1 << 20);
    CUdeviceptr pbias = device_alloc((size_t)q->m * 8);
    to_device(pa, a, sa);
    to_device(pb, b, sb);
    to_device(pc, c, sd);
    to_device(pbias, bias, (size_t)q->m * element_size(q->out));
    cublasLtMatmulDesc_t desc;
    bool wide = q->type == CUDA_R_64F;
    int32_t ta = q->trans_a, tb = q->trans_b;
    uint32_t epilogue = q->epilogue;
    uint64_t workspace = 1 << 20;
    assert_int_equal(lt->cublasLtMatmulDescCreate(&desc, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                                  wide ? CUDA_R_64F : CUDA_R_32F),
                     0);
    assert_int_equal(lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta), 0);
    assert_int_equal(lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb), 0);
    assert_int_equal(
        lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue), 0);
    void *bias_pointer = (void *)(uintptr_t)pbias, *no_bias = NULL;
    bool wants_bias = (epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA)) != 0;
    if (wants_bias) {
        assert_int_equal(lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer,
                                                            sizeof bias_pointer),
                         0);
    }
    cublasLtMatrixLayout_t la = layout(q->type, ar, ac, q->rows, q->batch),
                           lb = layout(q->type, br, bc, q->rows, q->batch),
                           ld = layout(q->out, q->m, q->n, q->rows, q->batch);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[4];
    int n_found;
    assert_int_equal(lt->cublasLtMatmulPreferenceCreate(&preference), 0);
    assert_int_equal(lt->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                              &workspace, sizeof workspace),
                     0);
    assert_int_equal(lt->cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, ld, ld, preference, 4, found, &n_found),
                     0);
    assert_true(n_found > 0);
    double alpha64 = 2, beta64 = (double)q->beta;
    float alpha32 = 2, beta32 = q->beta;
    const void *alpha = wide ? (const void *)&alpha64 : &alpha32, *beta = wide ? (const void *)&beta64 : &beta32;
    for (int captured = 0; captured < 2; captured++) {
        CUgraph graph;
        CUgraphExec exec;
        OK(cu->cuMemsetD8Async(pd, 0xff, sd, stream));
        if (captured) {
            OK(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        }
        int result = (int)lt->cublasLtMatmul(handle, desc, alpha, (void *)(uintptr_t)pa, la, (void *)(uintptr_t)pb, lb,
                                             beta, (void *)(uintptr_t)pc, ld, (void *)(uintptr_t)pd, ld, &found[0].algo,
                                             (void *)(uintptr_t)work, 1 << 20, stream);
        if (result != 0) {
            fail_msg("%d x %d x %d in %d batches, types %d %d, epilogue %u%s: cublasStatus_t %d", q->m, q->n, q->k,
                     q->batch, (int)q->type, (int)q->out, epilogue, captured ? ", captured" : "", result);
        }
        if (captured) {
            OK(cu->cuStreamEndCapture(stream, &graph));
            OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
            OK(cu->cuGraphLaunch(exec, stream));
        }
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(d, pd, sd));
        if (captured) {
            OK(cu->cuGraphExecDestroy(exec));
            OK(cu->cuGraphDestroy(graph));
        }
        for (int t = 0; t < q->batch; t++) {
            for (int i = 0; i < q->m; i++) {
                for (int j = 0; j < q->n; j++) {
                    double sum = 0;
                    for (int x = 0; x < q->k; x++) {
                        int r1 = q->trans_a ? x : i, c1 = q->trans_a ? i : x, r2 = q->trans_b ? j : x,
                            c2 = q->trans_b ? x : j;
                        size_t ia = (size_t)(t * ar * ac + (q->rows ? r1 * ac + c1 : r1 + c1 * ar));
                        size_t ib = (size_t)(t * br * bc + (q->rows ? r2 * bc + c2 : r2 + c2 * br));
                        sum += (double)get_element(a, q->type, ia) * (double)get_element(b, q->type, ib);
                    }
                    size_t id = (size_t)(t * q->m * q->n + (q->rows ? i * q->n + j : i + j * q->m));
                    double v = 2 * sum + (double)q->beta * (double)get_element(c, q->out, id);
                    v += epilogue & 4 ? (double)get_element(bias, q->out, (size_t)i) : 0;
                    v = epilogue & 2 && v < 0 ? 0 : v;
                    v = epilogue & 32 ? 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))) : v;
                    double slack = epilogue & 32 ? fabs(v) * 0.01 + 1e-3 : 0; /* else small dyadic numbers: exact */
                    assert_true(fabs((double)narrow(get_element(d, q->out, id), q->out) - v) <= slack);
                }
            }
        }
        if (epilogue == CUBLASLT_EPILOGUE_BGRADA) {
            unsigned char *grad = calloc((size_t)q->m, 8);
            OK(cu->cuMemcpyDtoH(grad, pbias, (size_t)q->m * element_size(q->out)));
            for (int i = 0; i < q->m; i++) {
                double sum = 0;
                for (int x = 0; x < q->k; x++) {
                    int r1 = q->trans_a ? x : i, c1 = q->trans_a ? i : x;
                    sum += (double)get_element(a, q->type, (size_t)(q->rows ? r1 * ac + c1 : r1 + c1 * ar));
                }
                assert_true((double)get_element(grad, q->out, (size_t)i) == sum);
            }
            free(grad);
        }
    }
    /* a bias without an epilogue for it, and the other way round */
    assert_int_equal(lt->cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                        wants_bias ? &no_bias : &bias_pointer, sizeof bias_pointer),
                     0);
    assert_int_equal(lt->cublasLtMatmul(handle, desc, alpha, (void *)(uintptr_t)pa, la, (void *)(uintptr_t)pb, lb, beta,
                                        (void *)(uintptr_t)pc, ld, (void *)(uintptr_t)pd, ld, &found[0].algo,
                                        (void *)(uintptr_t)work, 1 << 20, stream),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(lt->cublasLtMatmulPreferenceDestroy(preference), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(la), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(lb), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(ld), 0);
    assert_int_equal(lt->cublasLtMatmulDescDestroy(desc), 0);
    CUdeviceptr all[] = {pa, pb, pc, pd, work, pbias};
    for (size_t i = 0; i < 6; i++) {
        OK(cu->cuMemFree(all[i]));
    }
    free(a), free(b), free(c), free(d), free(bias);
}

static void test_cublaslt(void **state) {
    (void)state;
    static const problem problems[] = {
        {16, 8, 24, 1, false, false, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0},
        {16, 8, 24, 1, true, false, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1},
        {8, 16, 24, 3, false, true, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 0},
        {16, 8, 24, 1, false, false, true, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1},
        {16, 8, 24, 1, true, false, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_RELU_BIAS, 0},
        {16, 8, 24, 1, true, false, false, CUDA_R_32F, CUDA_R_32F, CUBLASLT_EPILOGUE_BIAS, 0},
        {16, 8, 24, 1, true, false, false, CUDA_R_16F, CUDA_R_16F, CUBLASLT_EPILOGUE_BIAS, 0},
        {16, 8, 24, 1, true, false, false, CUDA_R_16BF, CUDA_R_32F, CUBLASLT_EPILOGUE_DEFAULT, 1},
        {16, 8, 24, 1, true, false, false, CUDA_R_16F, CUDA_R_16F, CUBLASLT_EPILOGUE_GELU_BIAS, 0},
        {16, 8, 24, 2, true, false, false, CUDA_R_64F, CUDA_R_64F, CUBLASLT_EPILOGUE_DEFAULT, 1},
        {16, 16, 32, 1, false, true, false, CUDA_R_16F, CUDA_R_16F, CUBLASLT_EPILOGUE_BGRADA, 0},
    };
    cublasLtHandle_t handle;
    assert_true(lt->cublasLtGetVersion() >= 120000);
    assert_true(lt->cublasLtGetCudartVersion() >= 12000);
    assert_int_equal(lt->cublasLtCreate(&handle), 0);
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        run_problem(handle, &problems[i]);
    }
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a = layout(CUDA_R_32F, 4, 5, false, 1), b = layout(CUDA_R_32F, 6, 7, false, 1),
                           d = layout(CUDA_R_32F, 4, 7, false, 1);
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found;
    int n;
    assert_int_equal(lt->cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    assert_int_equal(lt->cublasLtMatmulPreferenceCreate(&preference), 0);
    assert_int_equal(lt->cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, 1, &found, &n),
                     CUBLAS_STATUS_INVALID_VALUE);
    /* rows of 4 in steps of 3 */
    cublasLtMatrixLayout_t narrow_b = layout(CUDA_R_32F, 5, 7, false, 1);
    int64_t three = 3;
    assert_int_equal(lt->cublasLtMatmulAlgoGetHeuristic(handle, desc, a, narrow_b, d, d, preference, 1, &found, &n), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutSetAttribute(d, CUBLASLT_MATRIX_LAYOUT_LD, &three, sizeof three), 0);
    assert_int_equal(lt->cublasLtMatmulAlgoGetHeuristic(handle, desc, a, narrow_b, d, d, preference, 1, &found, &n),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(narrow_b), 0);
    assert_int_equal(lt->cublasLtMatmulPreferenceDestroy(preference), 0);
    assert_int_equal(lt->cublasLtMatmulDescDestroy(desc), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(a), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(b), 0);
    assert_int_equal(lt->cublasLtMatrixLayoutDestroy(d), 0);
    assert_int_equal(lt->cublasLtDestroy(handle), 0);
}

/* ---- cuDNN: what its descriptors refuse (test_cuda_dnn.c has what they compute) ---- */

static const rp__libcudnn *dnn;

static cudnnBackendDescriptor_t descriptor(cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    assert_int_equal(dnn->cudnnBackendCreateDescriptor(type, &d), CUDNN_STATUS_SUCCESS);
    return d;
}

static cudnnStatus_t integers(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, int64_t n,
                              const int64_t *v) {
    return dnn->cudnnBackendSetAttribute(d, name, CUDNN_TYPE_INT64, n, v);
}

/* skip: an attribute that is left out */
static cudnnBackendDescriptor_t image(int64_t id, const int64_t *size, int skip, cudnnStatus_t *status) {
    const int64_t stride[4] = {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1}, alignment = 16;
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t d = descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    if (skip != CUDNN_ATTR_TENSOR_DATA_TYPE)
        assert_int_equal(dnn->cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type),
                         0);
    if (skip != CUDNN_ATTR_TENSOR_DIMENSIONS) assert_int_equal(integers(d, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, size), 0);
    if (skip != CUDNN_ATTR_TENSOR_STRIDES) assert_int_equal(integers(d, CUDNN_ATTR_TENSOR_STRIDES, 4, stride), 0);
    assert_int_equal(integers(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &id), 0);
    if (skip != CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)
        assert_int_equal(integers(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &alignment), 0);
    *status = dnn->cudnnBackendFinalize(d);
    return d;
}

static cudnnBackendDescriptor_t windows(int64_t padding, int skip, cudnnStatus_t *status) {
    const int64_t spatial = 2, paddings[2] = {padding, padding}, ones[2] = {1, 1};
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t d = descriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_ATTR_CONVOLUTION_DILATIONS,
        CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES};
    assert_int_equal(integers(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &spatial), 0);
    assert_int_equal(dnn->cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type),
                     0);
    assert_int_equal(
        dnn->cudnnBackendSetAttribute(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode), 0);
    for (int k = 0; k < 4; k++)
        if (skip != (int)names[k]) assert_int_equal(integers(d, names[k], 2, k < 2 ? paddings : ones), 0);
    *status = dnn->cudnnBackendFinalize(d);
    return d;
}

static cudnnStatus_t operation(cudnnBackendDescriptor_t conv, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t w,
                               cudnnBackendDescriptor_t y) {
    const float one = 1, zero = 0;
    cudnnBackendDescriptor_t op = descriptor(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    const struct {
        cudnnBackendAttributeName_t name;
        cudnnBackendDescriptor_t value;
    } children[] = {{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, conv},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, w},
                    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, y}};
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (int k = 0; k < 4 && status == CUDNN_STATUS_SUCCESS; k++)
        if (children[k].value)
            status = dnn->cudnnBackendSetAttribute(op, children[k].name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                                   &children[k].value);
    if (status == CUDNN_STATUS_SUCCESS) {
        assert_int_equal(dnn->cudnnBackendSetAttribute(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                                       CUDNN_TYPE_FLOAT, 1, &one),
                         0);
        assert_int_equal(dnn->cudnnBackendSetAttribute(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                                                       CUDNN_TYPE_FLOAT, 1, &zero),
                         0);
        status = dnn->cudnnBackendFinalize(op);
    }
    assert_int_equal(dnn->cudnnBackendDestroyDescriptor(op), 0);
    return status;
}

static void test_cudnn(void **state) {
    (void)state;
    const int64_t in[4] = {2, 4, 6, 6}, window[4] = {8, 4, 3, 3}, out[4] = {2, 8, 6, 6}, wrong[4] = {2, 8, 5, 6};
    static const int parts[] = {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
                                CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT};
    char text[256] = "";
    cudnnStatus_t status;
    dnn = rp__libcudnn_get();
    if (!dnn) {
        print_message("skipped: cuDNN is not installed\n");
        skip();
    }
    assert_true(dnn->cudnnGetVersion() >= 90000);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
        cudnnBackendDescriptor_t d = image(1, in, parts[k], &status);
        assert_int_not_equal(status, CUDNN_STATUS_SUCCESS);
        assert_non_null(dnn->cudnnGetErrorString(status));
        assert_int_equal(dnn->cudnnBackendDestroyDescriptor(d), 0);
    }
    if (dnn->cudnnGetLastErrorString) {
        dnn->cudnnGetLastErrorString(text, sizeof text);
        assert_true(*text);
    }
    cudnnBackendDescriptor_t no_steps = windows(1, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &status);
    assert_int_not_equal(status, CUDNN_STATUS_SUCCESS);
    cudnnBackendDescriptor_t conv = windows(1, 0, &status);
    assert_int_equal(status, CUDNN_STATUS_SUCCESS);
    cudnnBackendDescriptor_t x = image(1, in, 0, &status), w = image(2, window, 0, &status),
                             y = image(3, out, 0, &status), other = image(3, wrong, 0, &status);
    assert_int_equal(status, CUDNN_STATUS_SUCCESS);
    /* a type that is not the attribute's; behind the end */
    cudnnBackendDescriptor_t open = descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    assert_int_not_equal(dnn->cudnnBackendSetAttribute(open, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_DOUBLE, 4, in),
                         CUDNN_STATUS_SUCCESS);
    assert_int_not_equal(integers(x, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, in), CUDNN_STATUS_SUCCESS);
    assert_int_equal(operation(conv, x, w, y), CUDNN_STATUS_SUCCESS);
    assert_int_not_equal(operation(conv, x, w, NULL), CUDNN_STATUS_SUCCESS);
    assert_int_not_equal(operation(conv, x, w, open), CUDNN_STATUS_SUCCESS);
    assert_int_not_equal(operation(conv, x, w, other), CUDNN_STATUS_SUCCESS);
    assert_int_not_equal(operation(no_steps, x, w, y), CUDNN_STATUS_SUCCESS);
    cudnnBackendDescriptor_t all[] = {no_steps, conv, x, w, y, other, open};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        assert_int_equal(dnn->cudnnBackendDestroyDescriptor(all[k]), 0);
}

/* ---- The prelude ---- */

typedef struct names {
    char name[512][64];
    size_t n;
} names;

static bool has_name(const names *list, const char *name, size_t n) {
    for (size_t i = 0; i < list->n; i++) {
        if (strlen(list->name[i]) == n && memcmp(list->name[i], name, n) == 0) {
            return true;
        }
    }
    return false;
}

static size_t name_length(const char *p) {
    size_t n = 0;
    while ((p[n] >= 'a' && p[n] <= 'z') || (p[n] >= 'A' && p[n] <= 'Z') || (p[n] >= '0' && p[n] <= '9') ||
           p[n] == '_') {
        n++;
    }
    return n;
}

/* The names between [functions] and [end] of the head comment. */
static void listed_names(names *list) {
    const char *p = strstr(rp__embed_prelude_cuh, "[functions]"), *end = strstr(rp__embed_prelude_cuh, "[end]");
    assert_true(p && end && end > p);
    list->n = 0;
    for (; p < end; p++) {
        size_t n = strncmp(p, "rp_", 3) == 0 && p[-1] == ' ' ? name_length(p) : 0;
        if (n && !(p[n - 2] == '_' && p[n - 1] == 'T') && !has_name(list, p, n)) {
            assert_true(list->n < 512 && n < 64);
            memcpy(list->name[list->n], p, n);
            list->name[list->n++][n] = '\0';
        }
        p += n ? n - 1 : 0;
    }
    assert_true(list->n > 150);
}

/* Every function that the text defines by its plain name is in the list. */
static void check_defined(const names *list, const char *text) {
    size_t seen = 0;
    for (const char *p = strstr(text, "RP_FN "); p; p = strstr(p + 1, "RP_FN ")) {
        const char *open = strchr(p, '('), *name = open;
        if (open[1] == 'r' && open[2] == 'p') { /* (rp_barrier)(void) */
            continue;
        }
        while (name > p && name_length(name - 1) > 0) {
            name--;
        }
        size_t n = name_length(name);
        if (name[n] != '(' || strncmp(name, "rp_", 3) != 0 || strncmp(name, "rp__", 4) == 0 || name[-1] == '#') {
            continue;
        }
        if (!has_name(list, name, n)) {
            print_message("%.*s is not in the list of prelude.cuh\n", (int)n, name);
        }
        assert_true(has_name(list, name, n));
        seen++;
    }
    assert_true(seen > 40);
}

static char *use_all(const names *list) {
    char *text = malloc(list->n * 160 + 512);
    size_t at = (size_t)sprintf(text, "extern \"C\" __global__ void all_names(void **out) {\n    int i = 0;\n");
    for (size_t i = 0; i < list->n; i++) {
        at += (size_t)sprintf(text + at, "    out[i++] = (void *)%s;\n", list->name[i]);
    }
    sprintf(text + at, "}\n");
    char *source = with_prelude(text);
    free(text);
    return source;
}

static char *read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        return NULL;
    }
    char *text = calloc(1, 1 << 20);
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

static void test_prelude_names(void **state) {
    (void)state;
    static names list;
    char *image, *log;
    listed_names(&list);
    check_defined(&list, rp__embed_prelude_cuh);
    char *source = use_all(&list);
    nvrtcResult result = compile_with(rtc, source, architecture, &image, &log);
    if (result != NVRTC_SUCCESS) {
        print_message("%s\n", log);
    }
    assert_int_equal(result, NVRTC_SUCCESS);
    free(image);
    free(log);
    free(source);
    char path[1024];
    const char *data = getenv("REPRISE_TEST_DATA"); /* tests/data of the source tree */
    assert_non_null(data);
    snprintf(path, sizeof path, "%s/../cudasim/prelude.h", data);
    char *text = read_text(path);
    assert_non_null(text);
    check_defined(&list, text);
    free(text);
}

/* NVIDIA's NVRTC, where it is installed, compiles the prelude and the kernels of this file for the first and the newest
 * target. */
static void test_real_nvrtc(void **state) {
    (void)state;
    static names list;
    static rp__libnvrtc table;
    static const char *const files[] = {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.13",
                                        "/usr/local/cuda/lib64/libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"};
    void *library = NULL;
    const char *wanted = getenv("REPRISE_REAL_NVRTC");
    library = wanted && *wanted ? dlopen(wanted, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t i = 0; !library && i < sizeof files / sizeof files[0]; i++) {
        library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        int major = 0, minor = 0;
        nvrtcResult (*version)(int *, int *) = NULL;
        if (library) {
            *(void **)&version = dlsym(library, "nvrtcVersion");
            version(&major, &minor);
        }
        if (library && minor >= 1000) { /* the emulator, found by its name */
            dlclose(library);
            library = NULL;
        }
    }
    if (!library) {
        print_message("skipped: NVIDIA's NVRTC is not installed\n");
        skip();
    }
#define RP__NVRTC_FN(need, name, symbol, ret, args) *(void **)&table.name = dlsym(library, #symbol);
#include "device/cuda/libnvrtc.def"
#undef RP__NVRTC_FN
    listed_names(&list);
    char *sources[] = {use_all(&list), with_prelude(kernels), with_prelude(functions)};
    static const char *const archs[] = {"-arch=sm_80", "-arch=sm_90a"};
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < 2; j++) {
            char *image, *log;
            nvrtcResult result = compile_with(&table, sources[i], archs[j], &image, &log);
            if (result != NVRTC_SUCCESS) {
                print_message("%s: %.2000s\n", archs[j], log);
            }
            assert_int_equal(result, NVRTC_SUCCESS);
            assert_memory_equal(image, "\177ELF", 4);
            free(image);
            free(log);
        }
        free(sources[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),        cmocka_unit_test(test_cublaslt),   cmocka_unit_test(test_cudnn),
        cmocka_unit_test(test_prelude_names), cmocka_unit_test(test_real_nvrtc),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
