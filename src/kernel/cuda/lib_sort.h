/* Host side of topk and sorts on CUDA (sort.cuh, topk.cuh). Called by library.c of this folder alone; operands as in kernel/library.h. */
#ifndef RP_KERNEL_CUDA_LIB_SORT_H
#define RP_KERNEL_CUDA_LIB_SORT_H

#include "device/device.h"
#include "kernel/library.h"

rp__library_workspace rp__cuda_topk_workspace;
rp__library_bind rp__cuda_topk_bind;
/* Launch number `step`, from 0 on, which is that of bind; behind the last one: without kernel. */
rp_status rp__cuda_topk_step(rp__device *d, const rp__operand *o, const rp__library_call *call, unsigned step,
                             rp__launch_buffer *buffer, rp__launch *out);

#endif
