/* Host side of the library ops that select and scatter on CUDA: nonzero, multinomial, scatters, counts, the ways of CTC, steps. Called by library.c of
 * this folder alone; operands as in kernel/library.h. */
#ifndef RP_KERNEL_CUDA_LIB_SELECT_H
#define RP_KERNEL_CUDA_LIB_SELECT_H

#include "device/device.h"
#include "kernel/library.h"

rp__library_workspace rp__cuda_nonzero_workspace, rp__cuda_multinomial_workspace;
rp__library_bind rp__cuda_nonzero_bind, rp__cuda_multinomial_bind, rp__cuda_scatter_bind,
    rp__cuda_weighted_scatter_bind, rp__cuda_count_bins_bind, rp__cuda_ctc_bind, rp__cuda_steps_bind;

#endif
