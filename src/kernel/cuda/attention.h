/* Attention on CUDA: macros, words and grids of attention_simt.cuh and attention_draw.cuh. */
#ifndef RP_KERNEL_CUDA_ATTENTION_H
#define RP_KERNEL_CUDA_ATTENTION_H

#include "device/device.h"
#include "kernel/library.h"

rp_status rp__cuda_attention_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                  const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out);
rp_status rp__cuda_attention_draw_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                       const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out);

#endif
