/* Recurrent layers along a sequence on the CPU: the cells of one step, one table an instruction set, built from isa/recur.c. lib_recur.c
   runs the steps, whose products are those of gemm.h.

   Numbers: sums as every product has them (kernel/product.h), functions of kernel/cpu/vmath.h, no contraction: the bits are those of the same
   steps made of a product and pointwise ops, whatever the threads, and however many sequences an item has. */
#ifndef RP_KERNEL_CPU_RECUR_H
#define RP_KERNEL_CPU_RECUR_H

#include <stdint.h>

#include "kernel/operand.h"

/* One sequence at one step; rows of `units` elements, those of gates one behind the other. */
typedef struct rp__recur_row {
    int64_t units;
    const void *x; /* forward: of gates */
    void *kept;    /* of GRU and LSTM, four rows; forward: it has the sums, of the others `after` has them */
    void *before;  /* state before the step */
    void *after;   /* and behind it */
    void *cell_before, *cell_after; /* of LSTM */
    /* backward: gradients of the state, which becomes what of the state before it is no product, of the cell, of all that the sums are of (dy: of GRU, w h + b
       alone), and what is to be added to that of the state: more of it, and that of the result; NULL: nothing */
    void *dh, *dc, *dx, *dy;
    const void *more, *grad;
} rp__recur_row;

typedef struct rp__recur_isa {
    void (*forward[2])(rp__recurrent_cell cell, const rp__recur_row *r); /* in f32 and f64 */
    void (*backward[2])(rp__recurrent_cell cell, const rp__recur_row *r);
    void (*turn[2])(int64_t rows, int64_t columns, const void *from, void *to); /* to: columns by rows */
} rp__recur_isa;
extern const rp__recur_isa rp__recur_baseline;
#ifndef RP_ISA_BASELINE_ONLY
extern const rp__recur_isa rp__recur_avx2, rp__recur_avx512;
#endif

#endif
