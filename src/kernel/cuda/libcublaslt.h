/* cuBLASLt as a table of functions, opened at first use: NULL means absent, and rp__libcublaslt_report says why. */
#ifndef RP_KERNEL_CUDA_LIBCUBLASLT_H
#define RP_KERNEL_CUDA_LIBCUBLASLT_H

#include "cublaslt_api.h"

typedef struct rp__libcublaslt {
#define RP__CUBLASLT_FN(need, name, symbol, ret, args) ret(*name) args;
#include "libcublaslt.def"
#undef RP__CUBLASLT_FN
} rp__libcublaslt;

const rp__libcublaslt *rp__libcublaslt_get(void);
size_t rp__libcublaslt_report(char *text, size_t size);

#endif
