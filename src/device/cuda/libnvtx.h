/* NVTX, by which a program tells NVIDIA's profilers what it is doing, as a table of functions opened at first use. Without the library
 * ranges cost a lock and a comparison. */
#ifndef RP_DEVICE_CUDA_LIBNVTX_H
#define RP_DEVICE_CUDA_LIBNVTX_H

#include <stddef.h>

typedef struct rp__libnvtx {
#define RP__NVTX_FN(need, name, symbol, ret, args) ret(*name) args;
#include "libnvtx.def"
#undef RP__NVTX_FN
} rp__libnvtx;

const rp__libnvtx *rp__libnvtx_get(void); /* NULL: there is none, and rp__libnvtx_report says why */
size_t rp__libnvtx_report(char *text, size_t size);

#endif
