/* Tier 1: emitted C, compiled by the system's compiler in a background thread and swapped into the kernel. Called by
   backend.c; the rest of the library asks for reasons and counters. It never fails a launch: whatever goes wrong leaves tier 0
   in place, with a reason. */
#ifndef RP_KERNEL_CPU_JIT_H
#define RP_KERNEL_CPU_JIT_H

#include "kernel/cpu/program.h"

void rp__jit_count(rp__dag *dag, rp__kernel *kernel, int64_t elements); /* one launch; may ask for compilation */
void rp__jit_forget(rp__cpu_loop *loop);                                /* the kernel dies */
rp_status rp__jit_source(const rp__dag *dag, const rp__kernel *kernel, rp__text *out);

#endif
