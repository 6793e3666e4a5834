/* Products of bf16 by the matrix unit of x86 processors (AMX), where CPUID and the system offer it: isa/gemm_tile.h packs
   operands, dots.c multiplies.

   Numbers: an element adds up over K in steps of 32, from left to right: sum = sum + (even + odd), where `even` is the chain of fma
   from 0 over the elements of a step whose place is even, `odd` the other one; numbers below the least normal one are 0. After
   every 4096 elements (kernel/product.h) a new sum begins, and these are added from left to right. So is every product and
   convolution of bf16 on such a machine, whatever its sizes: RP__FAMILY_DOTS is the order of all (templates.c), and what a launch
   was bound to decides which kernel runs. A product of f32 whose factors are read from bf16 is none of these. */
#ifndef RP_KERNEL_CPU_DOTS_H
#define RP_KERNEL_CPU_DOTS_H

#include <stdbool.h>
#include <stdint.h>

/* Does the machine have the unit, and does REPRISE_CPU leave it on (it names no narrower set)? Asks the system once. */
bool rp__dots_here(void);
/* Tests: 0 no, 1 where it is here, -1 as REPRISE_CPU says. */
void rp__dots_set(int wanted);

/* Of the calling thread, around calls below, for blocks of so many rows, at most 16. one: of a single column, whose calls are `one`. */
void rp__dots_begin(int64_t rows, bool one);
void rp__dots_end(void);

enum { RP__DOTS_ROWS = 16, RP__DOTS_STEP = 32, RP__DOTS_STRIP = 32 };
/* c[rows, columns] (+)= a[rows, k] b[k, columns], in units of 16 rows (or of those that rp__dots_begin names), 16 columns (1 or 2)
   and 32 of k. `pairs`: rows 2q and 2q + 1 of b, of RP__DOTS_STRIP columns, side by side: 4 bytes a column. */
typedef struct rp__dots_call {
    const uint16_t *a;
    int64_t am; /* elements from row to row */
    const uint32_t *pairs;
    float *c;
    int64_t ldc;
    int64_t rows, columns, steps;
    bool first; /* nothing in c yet */
    bool far;   /* a comes from memory, not from a cache */
    bool one;   /* b is one column, and `pairs` nothing but its elements; so is c */
} rp__dots_call;
void rp__dots_run(const rp__dots_call *d);

#endif
