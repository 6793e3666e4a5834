/* The emulated cuBLASLt: plain loops for matmul with the layouts, types and epilogues of cublaslt_api.h, as one kernel of a
 * stream of the emulated driver (capturable). f16, bf16 and f32 accumulate in f32, f64 in f64. Every sum runs in order of k,
 * so equal operands give equal bits. GELU is the tanh form, as NVIDIA's. What the real library refuses for its parameters
 * (CUBLASLT_LOG_LEVEL=1 makes it say why) is refused here: mostly for a plan already, for pointers when it runs. */
#include "kernel/cuda/cublaslt_api.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cudasim.h"

#define EXPORT __attribute__((visibility("default")))
#define RP__CUBLASLT_FN(need, name, symbol, ret, args) EXPORT ret symbol args;
#include "kernel/cuda/libcublaslt.def"
#undef RP__CUBLASLT_FN

struct cublasLtContext {
    int live;
};

struct rp__cublaslt_desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t pointer_mode, trans_a, trans_b;
    uint32_t epilogue;
    void *bias;
    int64_t bias_stride;
    int32_t bias_type; /* -1: that of D */
};

struct rp__cublaslt_layout {
    uint32_t type;
    int32_t order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride;
};

struct rp__cublaslt_preference {
    uint64_t workspace;
};

/* ---- Elements ---- */

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff, bits;
    float x;
    if (exponent == 0) {
        x = (float)mantissa * 0x1p-24f;
        return sign ? -x : x;
    }
    bits = exponent == 31 ? sign | 0x7f800000u | mantissa << 13 : sign | (exponent + 112) << 23 | mantissa << 13;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float bfloat_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t float_to_half(float x) {
    uint32_t bits, sign, magnitude;
    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 16 & 0x8000;
    magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return 0x7fff;
    }
    if (magnitude >= 0x477ff000u) {
        return (uint16_t)(sign | 0x7c00);
    }
    if (magnitude < 0x38800000u) {
        float rounded;
        memcpy(&rounded, &magnitude, sizeof rounded);
        rounded += 0.5f;
        memcpy(&bits, &rounded, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

static size_t type_bytes(uint32_t type) {
    switch (type) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    default: return 0;
    }
}

static double load(const void *p, uint32_t type, int64_t i) {
    switch (type) {
    case CUDA_R_64F: return ((const double *)p)[i];
    case CUDA_R_32F: return (double)((const float *)p)[i];
    case CUDA_R_16F: return (double)half_to_float(((const uint16_t *)p)[i]);
    default: return (double)bfloat_to_float(((const uint16_t *)p)[i]);
    }
}

static void store(void *p, uint32_t type, int64_t i, double v) {
    float f = (float)v;
    uint32_t bits;
    switch (type) {
    case CUDA_R_64F: ((double *)p)[i] = v; break;
    case CUDA_R_32F: ((float *)p)[i] = f; break;
    case CUDA_R_16F: ((uint16_t *)p)[i] = float_to_half(f); break;
    default:
        memcpy(&bits, &f, sizeof bits);
        ((uint16_t *)p)[i] =
            (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        break;
    }
}

/* ---- The kernel ---- */

typedef struct job {
    struct rp__cublaslt_desc desc;
    struct rp__cublaslt_layout a, b, c, d;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    bool device_scalars;
    const void *alpha_p, *beta_p;
    double alpha, beta;
} job;

static int64_t at(const struct rp__cublaslt_layout *l, int64_t row, int64_t col, int64_t batch) {
    return batch * l->stride + (l->order == CUBLASLT_ORDER_ROW ? row * l->ld + col : row + col * l->ld);
}

static double gelu(double x, bool wide) {
    if (wide) {
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    }
    float f = (float)x;
    return (double)(0.5f * f * (1.0f + tanhf(0.79788456f * (f + 0.044715f * f * f * f))));
}

/* Sums of one row of A and COLUMNS columns of B, `step` elements apart from one k to the next, columns `next` apart. A sum
 * waits for each of its own additions, so several are under way. */
enum { COLUMNS = 8 };
#define SUMS(name, type, accumulator, VALUE)                                                                           \
    static void name(double *sums, const type *a, int64_t a_step, const type *b, int64_t b_step, int64_t next,         \
                     int64_t columns, int64_t k) {                                                                     \
        int64_t c = 0;                                                                                                 \
        for (; c + COLUMNS <= columns; c += COLUMNS) {                                                                 \
            accumulator sum[COLUMNS] = {0};                                                                            \
            for (int64_t i = 0; i < k; i++) {                                                                          \
                accumulator x = VALUE(a[i * a_step]);                                                                  \
                const type *y = b + i * b_step + c * next;                                                             \
                for (int q = 0; q < COLUMNS; q++) sum[q] += x * VALUE(y[q * next]);                                    \
            }                                                                                                          \
            for (int q = 0; q < COLUMNS; q++) sums[c + q] = (double)sum[q];                                            \
        }                                                                                                              \
        for (; c < columns; c++) {                                                                                     \
            accumulator sum = 0;                                                                                       \
            for (int64_t i = 0; i < k; i++) sum += VALUE(a[i * a_step]) * VALUE(b[i * b_step + c * next]);             \
            sums[c] = (double)sum;                                                                                     \
        }                                                                                                              \
    }
#define AS_IT_IS(x) (x)
SUMS(sums_f64, double, double, AS_IT_IS)
SUMS(sums_f32, float, float, AS_IT_IS)
SUMS(sums_f16, uint16_t, float, half_to_float)
SUMS(sums_bf16, uint16_t, float, bfloat_to_float)

enum { RUN = 64 }; /* columns whose sums are held at once: a multiple of COLUMNS */

/* The sums of `row` and `columns` columns from col on. */
static void sums_of(const job *j, double sums[RUN], int64_t row, int64_t col, int64_t columns, int64_t batch,
                    int64_t k) {
    bool ta = j->desc.trans_a, tb = j->desc.trans_b;
    int64_t a_at = ta ? at(&j->a, 0, row, batch) : at(&j->a, row, 0, batch);
    int64_t a_step = (ta ? at(&j->a, 1, row, batch) : at(&j->a, row, 1, batch)) - a_at;
    int64_t b_at = tb ? at(&j->b, col, 0, batch) : at(&j->b, 0, col, batch);
    int64_t b_step = (tb ? at(&j->b, col, 1, batch) : at(&j->b, 1, col, batch)) - b_at;
    int64_t next = (tb ? at(&j->b, col + 1, 0, batch) : at(&j->b, 0, col + 1, batch)) - b_at;
#define TAKE(name, type)                                                                                               \
    name(sums, (const type *)j->a_data + a_at, a_step, (const type *)j->b_data + b_at, b_step, next, columns, k)
    switch (j->a.type) { /* that of B as well */
    case CUDA_R_64F: TAKE(sums_f64, double); break;
    case CUDA_R_32F: TAKE(sums_f32, float); break;
    case CUDA_R_16F: TAKE(sums_f16, uint16_t); break;
    default: TAKE(sums_bf16, uint16_t); break;
    }
#undef TAKE
}

static void run(void *params) {
    const job *j = params;
    bool wide = j->desc.compute == CUBLAS_COMPUTE_64F || j->desc.compute == CUBLAS_COMPUTE_64F_PEDANTIC;
    int64_t m = (int64_t)j->d.rows, n = (int64_t)j->d.cols, k = (int64_t)(j->desc.trans_a ? j->a.rows : j->a.cols);
    double alpha = j->device_scalars ? load(j->alpha_p, j->desc.scale, 0) : j->alpha;
    double beta = j->device_scalars ? load(j->beta_p, j->desc.scale, 0) : j->beta;
    uint32_t bias_type = j->desc.bias_type >= 0 ? (uint32_t)j->desc.bias_type : j->d.type;
    double sums[RUN];
    for (int64_t batch = 0; batch < j->d.batch; batch++) {
        for (int64_t row = 0; row < m; row++) {
            for (int64_t col = 0; col < n; col++) {
                if (col % RUN == 0) {
                    sums_of(j, sums, row, col, n - col < RUN ? n - col : RUN, batch, k);
                }
                double sum = sums[col % RUN];
                double v = wide ? alpha * sum : (double)((float)alpha * (float)sum);
                if (beta != 0) { /* C may be garbage when beta is zero */
                    double c = load(j->c_data, j->c.type, at(&j->c, row, col, batch));
                    v = wide ? v + beta * c : (double)((float)v + (float)beta * (float)c);
                }
                if (j->desc.epilogue & CUBLASLT_EPILOGUE_BIAS) {
                    double bias = load(j->desc.bias, bias_type, row + batch * j->desc.bias_stride);
                    v = wide ? v + bias : (double)((float)v + (float)bias);
                }
                if (j->desc.epilogue & CUBLASLT_EPILOGUE_RELU) {
                    v = v > 0 ? v : v != v ? v : 0;
                }
                if (j->desc.epilogue & CUBLASLT_EPILOGUE_GELU) {
                    v = gelu(v, wide);
                }
                store(j->d_data, j->d.type, at(&j->d, row, col, batch), v);
            }
        }
        /* The sums over k of A's rows or B's columns are the gradient of a bias. */
        bool of_a = j->desc.epilogue == CUBLASLT_EPILOGUE_BGRADA, of_b = j->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB;
        for (int64_t i = 0; (of_a || of_b) && i < (of_a ? m : n); i++) {
            double sum = 0;
            float narrow = 0;
            for (int64_t q = 0; q < k; q++) {
                double x =
                    of_a
                        ? load(j->a_data, j->a.type, j->desc.trans_a ? at(&j->a, q, i, batch) : at(&j->a, i, q, batch))
                        : load(j->b_data, j->b.type, j->desc.trans_b ? at(&j->b, i, q, batch) : at(&j->b, q, i, batch));
                sum += x;
                narrow += (float)x;
            }
            store(j->desc.bias, bias_type, i + batch * j->desc.bias_stride, wide ? sum : (double)narrow);
        }
    }
}

/* ---- Checks ---- */

static bool wide_compute(cublasComputeType_t c) { return c == CUBLAS_COMPUTE_64F || c == CUBLAS_COMPUTE_64F_PEDANTIC; }

static bool epilogue_known(uint32_t e) {
    return e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_RELU || e == CUBLASLT_EPILOGUE_BIAS ||
           e == CUBLASLT_EPILOGUE_RELU_BIAS || e == CUBLASLT_EPILOGUE_GELU || e == CUBLASLT_EPILOGUE_GELU_BIAS ||
           e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}

#define WITH_BIAS (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)

static bool leading_fits(const struct rp__cublaslt_layout *l) {
    return l->ld >= 0 && (uint64_t)l->ld >= (l->order == CUBLASLT_ORDER_ROW ? l->cols : l->rows);
}

/* Orders and transpositions that epilogues do not go with. */
static bool epilogue_fits(const struct rp__cublaslt_desc *desc, const struct rp__cublaslt_layout *a,
                          const struct rp__cublaslt_layout *b, const struct rp__cublaslt_layout *d) {
    bool row = d->order == CUBLASLT_ORDER_ROW;
    if (desc->epilogue == CUBLASLT_EPILOGUE_BGRADA) {
        return !row && a->order == CUBLASLT_ORDER_COL && !desc->trans_a;
    }
    if (desc->epilogue == CUBLASLT_EPILOGUE_BGRADB) {
        return !row && b->order == CUBLASLT_ORDER_COL && desc->trans_b;
    }
    return !(row && (desc->epilogue & CUBLASLT_EPILOGUE_BIAS));
}

static cublasStatus_t check(const struct rp__cublaslt_desc *desc, const struct rp__cublaslt_layout *a,
                            const struct rp__cublaslt_layout *b, const struct rp__cublaslt_layout *c,
                            const struct rp__cublaslt_layout *d) {
    if (!desc || !a || !b || !c || !d) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    uint64_t m = desc->trans_a ? a->cols : a->rows, k = desc->trans_a ? a->rows : a->cols;
    uint64_t k2 = desc->trans_b ? b->cols : b->rows, n = desc->trans_b ? b->rows : b->cols;
    if (k != k2 || m != d->rows || n != d->cols || c->rows != d->rows || c->cols != d->cols || a->batch != d->batch ||
        b->batch != d->batch || c->batch != d->batch || m == 0 || n == 0 || k == 0 || !leading_fits(a) ||
        !leading_fits(b) || !leading_fits(c) || !leading_fits(d)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    bool wide = wide_compute(desc->compute);
    bool types = wide
                     ? a->type == CUDA_R_64F && b->type == CUDA_R_64F && c->type == CUDA_R_64F &&
                           d->type == CUDA_R_64F && desc->scale == CUDA_R_64F
                     : a->type == b->type && c->type == d->type && a->type != CUDA_R_64F && desc->scale == CUDA_R_32F &&
                           (d->type == a->type || (d->type == CUDA_R_32F && a->type != CUDA_R_32F));
    if (!types || !epilogue_known(desc->epilogue) || !epilogue_fits(desc, a, b, d) || c->order != d->order ||
        (wide && desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- The API ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    if (!handle) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

size_t cublasLtGetVersion(void) { return 130100; }

size_t cublasLtGetCudartVersion(void) { return 13000; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    if (!desc) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *desc = calloc(1, sizeof **desc);
    if (!*desc) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    **desc = (struct rp__cublaslt_desc){
        .compute = compute, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .bias_type = -1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t take(void *to, size_t size, const void *from, size_t bytes) {
    if (!from || bytes != size) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attr,
                                              const void *value, size_t bytes) {
    int32_t ignored;
    if (!d) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return take(&d->pointer_mode, sizeof d->pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(&d->trans_a, sizeof d->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(&d->trans_b, sizeof d->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(&d->epilogue, sizeof d->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(&d->bias, sizeof d->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return take(&d->bias_stride, sizeof d->bias_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(&d->bias_type, sizeof d->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return take(&ignored, sizeof ignored, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    if (!layout) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *layout = calloc(1, sizeof **layout);
    if (!*layout) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    **layout = (struct rp__cublaslt_layout){.type = type, .rows = rows, .cols = cols, .ld = ld, .batch = 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attr,
                                                const void *value, size_t bytes) {
    if (!l) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return take(&l->type, sizeof l->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return take(&l->order, sizeof l->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return take(&l->rows, sizeof l->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return take(&l->cols, sizeof l->cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return take(&l->ld, sizeof l->ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return take(&l->batch, sizeof l->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return take(&l->stride, sizeof l->stride, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    if (!preference) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *preference = calloc(1, sizeof **preference);
    return *preference ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attr, const void *value,
                                                    size_t bytes) {
    uint32_t ignored;
    if (!p) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        return take(&p->workspace, sizeof p->workspace, value, bytes);
    }
    return take(&ignored, sizeof ignored, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
    if (!handle || !preference || requested < 1 || !results || !found) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *found = 0;
    cublasStatus_t status = check(desc, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    uint64_t workspace = preference->workspace < 4096 ? 0 : 4096;
    for (int i = 0; i < requested && i < 2; i++) { /* two, of which the first wants a workspace */
        memset(&results[i], 0, sizeof results[i]);
        results[i].algo.data[0] = 0xc0da + (uint64_t)i;
        results[i].workspaceSize = i == 0 ? workspace : 0;
        results[i].algo.data[1] = results[i].workspaceSize;
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].wavesCount = 1;
        (*found)++;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* The last element that a matrix reaches, with all batches. */
static unsigned long long extent(const struct rp__cublaslt_layout *l) {
    return (unsigned long long)(at(l, (int64_t)l->rows - 1, (int64_t)l->cols - 1, l->batch - 1) + 1) *
           type_bytes(l->type);
}

static bool on_device(const void *p, const struct rp__cublaslt_layout *l) {
    return p && cudasim_is_device((unsigned long long)(uintptr_t)p, extent(l));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a_data,
                              cublasLtMatrixLayout_t a, const void *b_data, cublasLtMatrixLayout_t b, const void *beta,
                              const void *c_data, cublasLtMatrixLayout_t c, void *d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    cublasStatus_t status = check(desc, a, b, c, d);
    if (!handle || !alpha || !beta || status != CUBLAS_STATUS_SUCCESS) {
        return status != CUBLAS_STATUS_SUCCESS ? status : CUBLAS_STATUS_INVALID_VALUE;
    }
    if (algo && (algo->data[0] & ~1ull) != 0xc0da) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (algo && (workspace_bytes < algo->data[1] ||
                 (algo->data[1] && !cudasim_is_device((unsigned long long)(uintptr_t)workspace, algo->data[1])))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    job j = {.desc = *desc,
             .a = *a,
             .b = *b,
             .c = *c,
             .d = *d,
             .a_data = a_data,
             .b_data = b_data,
             .c_data = c_data,
             .d_data = d_data};
    j.device_scalars = desc->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
    if (j.device_scalars) {
        j.alpha_p = alpha;
        j.beta_p = beta;
    } else {
        j.alpha = load(alpha, desc->scale, 0);
        j.beta = load(beta, desc->scale, 0);
    }
    uint32_t bias_type = desc->bias_type >= 0 ? (uint32_t)desc->bias_type : d->type;
    if ((desc->bias != NULL) != ((desc->epilogue & WITH_BIAS) != 0) ||
        (uintptr_t)desc->bias % type_bytes(bias_type) != 0 || (uintptr_t)workspace % 16 != 0) {
        return CUBLAS_STATUS_INVALID_VALUE; /* a bias that the epilogue does not use is an error too */
    }
    if (!on_device(a_data, a) || !on_device(b_data, b) || !on_device(d_data, d) ||
        ((j.device_scalars || j.beta != 0) && !on_device(c_data, c))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    int result = cudasim_launch_native(stream, run, &j, sizeof j);
    return result == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
