/* cuBLASLt: plans by problem, kept for the life of the process, and the enqueue function of its launch records. A record holds
 * the problem and the addresses; no handle of the library is in it. Math is f32 for f32, or TF32 where the program allows it, and f32
 * accumulation for f16 and bf16; a plan is chosen once by the library's heuristic, so every run of a problem gives the same bits. */
#include <string.h>

#include "core/alloc.h"
#include "device/cuda/cuda.h"
#include "device/cuda/offline.h"
#include "kernel/cuda/libcublaslt.h"
#include "kernel/cuda/library.h"

/* NVIDIA's advice for Hopper, and PyTorch's default. */
#define MAX_WORKSPACE ((size_t)32 << 20)

typedef struct plan {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d; /* cuBLASLt's column-major operands: a is our b */
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    bool usable;
} plan;

static rp__mutex lock = RP__MUTEX_INIT;
static rp__map plans; /* by the bytes of rp__lt_problem */
static cublasLtHandle_t handles[RP__DEVICE_SLOTS];

bool rp__cuda_lt_available(void) { return rp__libcublaslt_get() != NULL; }

static rp_status lt_status(cublasStatus_t result, const char *call) {
    if (result == CUBLAS_STATUS_SUCCESS) return RP_OK;
    return rp__fail(result == CUBLAS_STATUS_ALLOC_FAILED ? RP_ERROR_OUT_OF_MEMORY : RP_ERROR_DRIVER,
                    "%s gave cublasStatus_t %d", call, (int)result);
}

static cudaDataType_t data_type(rp_dtype dtype) {
    switch (dtype) {
    case RP_F64: return CUDA_R_64F;
    case RP_F16: return CUDA_R_16F;
    case RP_BF16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
    }
}

static rp_status handle_of(rp__device *d, cublasLtHandle_t *out) {
    const rp__libcublaslt *lt = rp__libcublaslt_get();
    if (!handles[d->slot]) {
        CUstreamCaptureMode mode = rp__cuda_relax(d);
        rp_status status = lt_status(lt->cublasLtCreate(&handles[d->slot]), "cublasLtCreate");
        rp__cuda_unrelax(d, mode);
        RP_TRY(status);
    }
    *out = handles[d->slot];
    return RP_OK;
}

static rp_status layout(cublasLtMatrixLayout_t *out, cudaDataType_t type, int64_t rows, int64_t columns, int64_t ld,
                        int64_t batch, int64_t stride) {
    const rp__libcublaslt *lt = rp__libcublaslt_get();
    int32_t count = (int32_t)batch;
    RP_TRY(lt_status(lt->cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)columns, ld),
                     "cublasLtMatrixLayoutCreate"));
    if (batch == 1) return RP_OK;
    RP_TRY(
        lt_status(lt->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
                  "cublasLtMatrixLayoutSetAttribute"));
    return lt_status(
        lt->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "cublasLtMatrixLayoutSetAttribute");
}

static void free_plan(plan *p) {
    const rp__libcublaslt *lt = rp__libcublaslt_get();
    if (p->a) (void)lt->cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) (void)lt->cublasLtMatrixLayoutDestroy(p->b);
    if (p->d) (void)lt->cublasLtMatrixLayoutDestroy(p->d);
    if (p->desc) (void)lt->cublasLtMatmulDescDestroy(p->desc);
    rp__free(p);
}

/* A row-major matrix is the transpose of the same bytes read column by column: D = A B row-major is D' = B' A' there. */
static rp_status describe(const rp__lt_problem *q, plan *p) {
    const rp__libcublaslt *lt = rp__libcublaslt_get();
    cudaDataType_t type = data_type((rp_dtype)q->dtype), scale = q->dtype == RP_F64 ? CUDA_R_64F : CUDA_R_32F;
    cublasComputeType_t compute = (cublasComputeType_t)q->compute;
    cublasOperation_t first = q->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = q->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t epilogue = q->epilogue;
    RP_TRY(lt_status(lt->cublasLtMatmulDescCreate(&p->desc, compute, scale), "cublasLtMatmulDescCreate"));
    RP_TRY(lt_status(lt->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first),
                     "cublasLtMatmulDescSetAttribute"));
    RP_TRY(lt_status(lt->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second),
                     "cublasLtMatmulDescSetAttribute"));
    RP_TRY(lt_status(
        lt->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue),
        "cublasLtMatmulDescSetAttribute"));
    RP_TRY(q->transpose_b ? layout(&p->a, type, q->k, q->n, q->ldb, q->batch, q->stride_b)
                          : layout(&p->a, type, q->n, q->k, q->ldb, q->batch, q->stride_b));
    RP_TRY(q->transpose_a ? layout(&p->b, type, q->m, q->k, q->lda, q->batch, q->stride_a)
                          : layout(&p->b, type, q->k, q->m, q->lda, q->batch, q->stride_a));
    return layout(&p->d, type, q->n, q->m, q->ldd, q->batch, q->stride_d);
}

static rp_status search(rp__device *d, const rp__lt_problem *q, plan *p) {
    const rp__libcublaslt *lt = rp__libcublaslt_get();
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtHandle_t handle = NULL;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t best;
    size_t limit = MAX_WORKSPACE;
    uint32_t alignment = (uint32_t)q->alignment;
    int found = 0;
    memset(&best, 0, sizeof best);
    if (rp__cuda_offline()) { /* the heuristic asks a device; nothing is computed without one, and kernels around it are the same */
        p->usable = true;
        return RP_OK;
    }
    RP_TRY(handle_of(d, &handle));
    RP_TRY(lt_status(lt->cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
    rp_status status = lt_status(lt->cublasLtMatmulPreferenceSetAttribute(
                                     preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit),
                                 "cublasLtMatmulPreferenceSetAttribute");
    for (unsigned k = 0; status == RP_OK && k < sizeof aligned / sizeof *aligned; k++)
        status =
            lt_status(lt->cublasLtMatmulPreferenceSetAttribute(preference, aligned[k], &alignment, sizeof alignment),
                      "cublasLtMatmulPreferenceSetAttribute");
    if (status == RP_OK) {
        cublasStatus_t result =
            lt->cublasLtMatmulAlgoGetHeuristic(handle, p->desc, p->a, p->b, p->d, p->d, preference, 1, &best, &found);
        p->usable = result == CUBLAS_STATUS_SUCCESS && found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
        p->algo = best.algo;
        p->workspace = best.workspaceSize;
    }
    (void)lt->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

/* The plan of a problem; NULL and a sticky error when it could not be made. */
static const plan *plan_of(rp__device *d, const rp__lt_problem *q) {
    rp__hash key = rp__hash_bytes(q, sizeof *q, rp__hash_none());
    rp__lock(&lock);
    plan *p = rp__map_get(&plans, key);
    if (!p && rp__cuda_enter(d) == RP_OK) {
        p = rp__calloc(1, sizeof *p);
        if (!p) {
            (void)RP__OOM("a cuBLASLt plan");
        } else if (describe(q, p) != RP_OK || search(d, q, p) != RP_OK) {
            free_plan(p);
            p = NULL;
        } else if (!rp__map_put(&plans, key, p)) {
            free_plan(p);
            p = NULL;
            (void)RP__OOM("a cuBLASLt plan");
        }
    }
    rp__unlock(&lock);
    return p;
}

bool rp__cuda_lt_plan(rp__device *d, const rp__lt_problem *problem, size_t *workspace) {
    const plan *p = plan_of(d, problem);
    if (!p || !p->usable) return false;
    *workspace = p->workspace;
    return true;
}

static rp_status enqueue(const rp__kernel *k, rp_stream *s, const rp__launch *l) {
    rp__lt_problem q;
    cublasLtHandle_t handle = NULL;
    (void)k;
    if (rp__cuda_offline()) return RP_OK;
    memcpy(&q, &l->words[6], sizeof q);
    const plan *p = plan_of(s->device, &q);
    if (!p) return rp_error_status();
    RP_TRY(handle_of(s->device, &handle));
    const rp__libcublaslt *lt = rp__libcublaslt_get();
    const float one_f = 1, zero_f = 0;
    const double one_d = 1, zero_d = 0;
    bool f64 = q.dtype == RP_F64;
    rp__lock(&lock); /* the bias pointer lives in the shared description */
    uint64_t bias =
        l->words[3]; /* not 0 exactly where the epilogue has a bias: cuBLASLt refuses one without the other */
    cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
    if (bias)
        result = lt->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = lt->cublasLtMatmul(handle, p->desc, f64 ? (const void *)&one_d : (const void *)&one_f,
                                    (const void *)(uintptr_t)l->words[2], p->a, (const void *)(uintptr_t)l->words[1],
                                    p->b, f64 ? (const void *)&zero_d : (const void *)&zero_f,
                                    (const void *)(uintptr_t)l->words[0], p->d, (void *)(uintptr_t)l->words[0], p->d,
                                    &p->algo, (void *)(uintptr_t)l->words[4], (size_t)l->words[5], s->native);
    rp__unlock(&lock);
    return lt_status(result, "cublasLtMatmul");
}

rp__kernel *rp__cuda_lt_kernel(void) {
    static rp__kernel kernel = {.refs = 1,
                                .kind = RP__KERNEL_CUDA_LIBRARY,
                                .key = {0x6375626c61734c74u, 1},
                                .name = "cublasLtMatmul",
                                .enqueue = enqueue};
    return &kernel;
}
