/* Library ops of the CUDA device, a file an op family; library.c is the table. */
#ifndef RP_KERNEL_CUDA_LIBRARY_H
#define RP_KERNEL_CUDA_LIBRARY_H

#include "device/device.h"
#include "kernel/cuda/templates.h"
#include "kernel/library.h"

/* Below this many multiply-adds our kernel's one node costs less than a cuBLASLt call (bench/gpu_reprise.c measures it). */
#define RP__CUDA_SMALL_PRODUCT (INT64_C(1) << 22)
rp__chain_answer rp__cuda_chain(rp__device *d, const rp__library_stage *stages, size_t n);
rp_status rp__cuda_chain_bind(rp__device *d, const rp__library_stage *stages, size_t n, const rp__library_call *call,
                              rp__launch_buffer *buffer, rp__launch *out);
rp__library_bind rp__cuda_choose_bind;

/* The second launch of rows whose shares leave sums (conv_shares.c). */
rp_status rp__cuda_conv_add_shares(const rp__problem *p, rp__launch_buffer *buffer, rp__launch *out);
/* rp__library.turned (conv.c). */
rp_status rp__cuda_conv_turned(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                               const rp__library_call *call, rp__turned *out);

/* A grid of one dim. */
rp_status rp__cuda_line_grid(rp__launch *out, const rp__library_call *call, int64_t blocks, unsigned threads);

/* cuBLASLt (matmul_lt.c): can it do the product, and which? NULL kernel: no; use our own. */
typedef struct rp__lt_problem { /* row-major product; zeroed first, compared as bytes: the key of a plan */
    int32_t dtype, epilogue;    /* cublasLtEpilogue_t */
    int32_t transpose_a, transpose_b, alignment, device;
    int32_t compute, unused; /* cublasComputeType_t */
    int64_t m, n, k, lda, ldb, ldd, batch, stride_a, stride_b, stride_d;
} rp__lt_problem;
bool rp__cuda_lt_available(void);
/* Bytes of workspace of the plan; false: cuBLASLt has no algorithm for it. */
bool rp__cuda_lt_plan(rp__device *d, const rp__lt_problem *problem, size_t *workspace);
rp__kernel *rp__cuda_lt_kernel(void); /* words: out a b bias workspace bytes, then the problem */

#endif
