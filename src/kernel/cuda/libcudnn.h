/* cuDNN as a table of functions, opened at first use: NULL means absent, too old or forbidden (REPRISE_CUDNN=0), and rp__libcudnn_report
 * says why. Opening costs a second of a program's start, so nobody asks before a convolution wants it. */
#ifndef RP_KERNEL_CUDA_LIBCUDNN_H
#define RP_KERNEL_CUDA_LIBCUDNN_H

#include "cudnn_api.h"

typedef struct rp__libcudnn {
#define RP__CUDNN_FN(need, name, symbol, ret, args) ret(*name) args;
#include "libcudnn.def"
#undef RP__CUDNN_FN
} rp__libcudnn;

const rp__libcudnn *rp__libcudnn_get(void);
size_t rp__libcudnn_report(char *text, size_t size);

#endif
