/* DAGs with a CONTRACT on CUDA, between loops.c and contract.c. */
#ifndef RP_KERNEL_CUDA_CONTRACT_H
#define RP_KERNEL_CUDA_CONTRACT_H

#include "kernel/cuda/emit.h"

/* The launch but for its kernel, and the class whose kernel it is; c->template_ stays 0 where there is nothing to compute. */
rp_status rp__cuda_contract_class(struct rp__device *d, const rp__dag *dag, const rp__space *space,
                                  rp__launch_buffer *buffer, rp__launch *out, rp__cuda_class *c);
/* Do offsets of its accesses take 64 bits? */
bool rp__cuda_contract_is_wide(const rp__dag *dag, const rp__space *s);
/* The name of its row in the table of templates. */
const char *rp__cuda_contract_row(const rp__cuda_class *c);
rp_status rp__cuda_contract_emit(const rp__dag *dag, const rp__cuda_class *c, const char *name, rp__text *out);

#endif
