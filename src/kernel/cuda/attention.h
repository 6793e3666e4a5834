/* Attention on CUDA: macros, words and grids of attention_simt.cuh and attention_draw.cuh. */
#ifndef RP_KERNEL_CUDA_ATTENTION_H
#define RP_KERNEL_CUDA_ATTENTION_H

#include "device/device.h"
#include "kernel/library.h"

rp__library_bind rp__cuda_attention_bind, rp__cuda_attention_draw_bind;

#endif
