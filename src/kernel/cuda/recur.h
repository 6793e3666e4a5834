/* Recurrent layers on CUDA: macros, words and grids of recur.cuh. */
#ifndef RP_KERNEL_CUDA_RECUR_H
#define RP_KERNEL_CUDA_RECUR_H

#include "device/device.h"
#include "kernel/library.h"

int64_t rp__cuda_recurs(rp__device *d, rp__recurrent_cell cell, rp_dtype dtype, int64_t units);
rp_status rp__cuda_recur_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                              const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out);

#endif
