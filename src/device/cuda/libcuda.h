/* The CUDA driver as a table of functions, opened at first use. Callers hold the table: `const rp__libcuda *cu =
 * rp__libcuda_get();` then `cu->cuMemAlloc(...)`; NULL means that there is no driver, and rp__libcuda_report says why.
 * */
#ifndef RP_DEVICE_CUDA_LIBCUDA_H
#define RP_DEVICE_CUDA_LIBCUDA_H

#include "cuda_api.h"

typedef struct rp__libcuda {
#define RP__CUDA_FN(need, name, symbol, ret, args) ret(*name) args;
#include "libcuda.def"
#undef RP__CUDA_FN
} rp__libcuda;

const rp__libcuda *rp__libcuda_get(void);
size_t rp__libcuda_report(char *text, size_t size);

#endif
