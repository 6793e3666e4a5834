/* DAGs with a CONTRACT on the CPU, between backend.c and contract.c. */
#ifndef RP_KERNEL_CPU_CONTRACT_H
#define RP_KERNEL_CPU_CONTRACT_H

#include "kernel/loop.h"

/* A kernel for the DAG whose parts (kernel/contract.h) are run by these, NULL where there is none; counted once. NULL and a sticky
   error. */
rp__kernel *rp__cpu_contract_kernel(const rp__dag *dag, rp__kernel *const parts[3]);
rp__kernel *const *rp__cpu_contract_parts(const rp__kernel *contract);
rp_status rp__cpu_contract_bind(struct rp__device *d, rp__dag *dag, const rp__space *space, rp__kernel *kernel,
                                rp__launch_buffer *buffer, rp__launch *out);

#endif
