/* Relaxed numbers (RP_NUMBERS_FAST): a kernel's DAG rewritten to one that rounds elsewhere. What is rewritten is a DAG of its own, with a
   key of its own, so that interpreter, emitted C and CUDA C compute the same thing of it, and default numbers never meet it.

   What eq, ne, lt and le compare and what floor and its like make whole keeps the rounding of its own type: values that were equal in
   memory are equal here. */
#ifndef RP_KERNEL_RELAX_H
#define RP_KERNEL_RELAX_H

#include "kernel/loop.h"

typedef enum rp__freedom {
    RP__FREE_FMA,       /* a * b + c is rounded once */
    RP__FREE_QUOTIENT,  /* a / b with b of fewer axes than a is a * (1 / b) */
    RP__FREE_WIDE,      /* float16 and bfloat16 values between ops are not rounded; a store rounds */
    RP__FREE_FUNCTIONS, /* f32 quotients, reciprocals, exp, tanh, sigmoid and 1/sqrt are approximate (node.imm.i is 1) */
    RP__FREE_COUNT
} rp__freedom;

/* The freedoms of `freedoms` (bit rp__freedom) taken; taken[f] grows by the number of nodes. Takes the reference over: the DAG
   itself where nothing changes; NULL and a sticky error when out of memory. */
rp__dag *rp__dag_relax(rp__dag *dag, unsigned freedoms, uint32_t taken[RP__FREE_COUNT]);

#endif
