/* oneDNN for large products and convolutions on the CPU (lib_onednn.c), through libreprise-onednn.so. Whether it can serve is a
   function of the problem (and of the module being there), and so is whether it does (templates.c).
   REPRISE_ONEDNN=0: never. */
#ifndef RP_KERNEL_CPU_LIB_ONEDNN_H
#define RP_KERNEL_CPU_LIB_ONEDNN_H

#include "kernel/cpu/lib.h"
#include "kernel/onednn/onednn.h"

/* Multiplications from which a problem is worth a primitive of its own. */
#define RP__ONEDNN_MATMUL_WORK 1.6e7
#define RP__ONEDNN_CONV_WORK 4e6

/* Plans kept, by last use: a plan is a problem's block, of which most have eight. Twice what a training step of fifty
   convolutions needs. */
enum { RP__ONEDNN_PLANS = 2048 };

const rp__onednn *rp__onednn_module(void); /* NULL: it is not here */
bool rp__onednn_available(void);
size_t rp__onednn_plan_count(void);
/* Can oneDNN compute the problem? scratch: bytes of workspace then. */
bool rp__onednn_serves(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                       size_t *scratch);
rp_status rp__onednn_bind(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                          size_t scratch, rp__launch_buffer *buffer, rp__launch *out);

#endif
