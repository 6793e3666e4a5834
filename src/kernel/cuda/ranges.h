/* What integers of a DAG can be (ranges.c). */
#ifndef RP_KERNEL_CUDA_RANGES_H
#define RP_KERNEL_CUDA_RANGES_H

#include "kernel/cuda/emit.h"

/* Fills c->narrow and c->sure. */
void rp__cuda_find_ranges(const rp__dag *dag, const rp__space *s, const rp__space_access *a, rp__cuda_class *c);

#endif
