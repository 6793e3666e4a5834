/* Host side of the library ops that select and scatter on CUDA: nonzero, multinomial, scatter, the ways of CTC, steps. Called by library.c of
 * this folder alone; operands as in kernel/library.h. */
#ifndef RP_KERNEL_CUDA_LIB_SELECT_H
#define RP_KERNEL_CUDA_LIB_SELECT_H

#include "device/device.h"
#include "kernel/library.h"

size_t rp__cuda_nonzero_workspace(rp__device *d, const rp__operand *o, size_t n, const rp__library_call *call);
rp_status rp__cuda_nonzero_bind(rp__device *d, const rp__operand *o, size_t n, const rp__library_call *call,
                                rp__launch_buffer *buffer, rp__launch *out);
size_t rp__cuda_multinomial_workspace(rp__device *d, const rp__operand *o, size_t n, const rp__library_call *call);
rp_status rp__cuda_multinomial_bind(rp__device *d, const rp__operand *o, size_t n, const rp__library_call *call,
                                    rp__launch_buffer *buffer, rp__launch *out);
size_t rp__cuda_scatter_workspace(rp__device *d, const rp__operand *o, size_t n, const rp__library_call *call);
rp_status rp__cuda_scatter_bind(rp__device *d, const rp__operand *o, size_t n, const rp__library_call *call,
                                rp__launch_buffer *buffer, rp__launch *out);
rp_status rp__cuda_steps_bind(rp__device *d, const rp__operand *o, size_t n, const rp__library_call *call,
                              rp__launch_buffer *buffer, rp__launch *out);
rp_status rp__cuda_ctc_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                            const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out);

#endif
