/* Which reductions a thread does alone, RP__CUDA_SHORT (short.c), and what that asks loops.c about layouts. */
#ifndef RP_KERNEL_CUDA_SHORT_H
#define RP_KERNEL_CUDA_SHORT_H

#include "kernel/cuda/emit.h"

/* Decides whether rows of the space, collapsed, of a class whose dims are known, are such; then puts the dim that threads and vectors run
 * along last among the outer ones, and fills the class. False: they are not, and nothing was changed. */
bool rp__cuda_short(const struct rp__device *d, const rp__dag *dag, rp__space *s, rp__space_access *a,
                    rp__cuda_class *c);

/* ---- loops.c */
/* Moves dim `from` to place `to` >= from; those between move up. */
void rp__cuda_move_dim(const rp__dag *dag, rp__space *s, rp__space_access *a, unsigned from, unsigned to);
/* Can access k be read in aligned vectors of `width` elements along dim `fast`? */
bool rp__cuda_is_unit(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned k, unsigned fast,
                      unsigned width);
/* Accesses in `unit` whose loads at computed places keep vectors whole. */
uint64_t rp__cuda_find_gathered(const rp__dag *dag, const rp__space *s, const rp__space_access *a, unsigned fast,
                                const rp__cuda_class *c);

#endif
