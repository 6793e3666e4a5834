/* Recurrent layers on CUDA: macros, words and grids of recur.cuh. */
#ifndef RP_KERNEL_CUDA_RECUR_H
#define RP_KERNEL_CUDA_RECUR_H

#include "device/device.h"
#include "kernel/library.h"

int64_t rp__cuda_recurs(rp__device *d, rp__recurrent_cell cell, rp_dtype dtype, int64_t units);
rp__library_bind rp__cuda_recur_bind;

#endif
