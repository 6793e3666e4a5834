/* Templates: the ways in which a device computes a product or convolution, a row each in the device's table (kernel/cpu/templates.c,
   kernel/cuda/templates.c): its own kernels and those of libraries alike. A row says what it serves, in which order it adds up, and
   what it costs. Who computes a problem is the row that costs least of those that serve it: a function of device, sizes, strides and dtypes, so
   an eager call, a captured one and a compiled one have the same row, and the same bits.
   A CONTRACT carries the order of the row that its op has by itself, and may be computed by any row of that order which takes what
   follows a sum. A row with an order of its own and nobody to follow it stays by itself, as libraries do. */
#ifndef RP_KERNEL_TEMPLATE_H
#define RP_KERNEL_TEMPLATE_H

#include "kernel/library.h"
#include "kernel/product.h"

/* What rows found about a problem and ask again while one is picked and bound. */
typedef struct rp__problem_notes {
    uint8_t split[8]; /* of a product by its kind of arithmetic: log2 of the shares of K, and one; 0: not asked */
    bool even;        /* what follows a convolution finds the places of all images one step apart, in rising order */
} rp__problem_notes;

typedef struct rp__problem { /* as rp__library takes it */
    struct rp__device *device;
    rp__library_op op;
    const rp__operand *o;
    size_t n;
    const rp__library_call *call;
    rp__order order;          /* the one that a CONTRACT wants; RP__ORDER_ELSEWHERE: what the row has by itself */
    rp__problem_notes *notes; /* NULL: nothing is kept */
} rp__problem;

typedef struct rp__template {
    const char *name; /* "chain", "simt", "cublasLt", ... */
    uint32_t ops;     /* bit op: of rp__library_op */
    bool follows;     /* takes what follows a sum: the device's row says how */
    /* Is it a library of others, and there? NULL: ours, always. */
    bool (*available)(void);
    /* Whether the row can compute the problem, and the bytes of workspace that it needs (0 before it is asked). NULL: all of its ops. */
    bool (*serves)(const rp__problem *p, size_t *workspace);
    /* The tag of its sums; NULL: none of ours. Where p->order is one that the row can give, that: of a CONTRACT's dims as they merge, rows
       and batches may be divided in another way than in the op's, and what depends on them must not be found anew. */
    rp__order (*order)(const rp__problem *p);
    /* In multiply-adds of the plain kernel of ours: a library's call is worth so many before it pays. NULL: those of the problem. */
    double (*cost)(const rp__problem *p);
    rp_status (*bind)(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out);
} rp__template;

/* The multiply-adds of a problem. */
double rp__problem_work(const rp__problem *p);
/* The order of sums of floats as kernel/product.h has it; RP__ORDER_ELSEWHERE for integers, which add up in words wider than a result. */
rp__order rp__problem_order(const rp__problem *p);

/* The row that computes the problem in at most so many bytes of workspace: of equal costs the first. order: RP__ORDER_ELSEWHERE, or the
   one that a CONTRACT wants, with what follows it. *workspace: bytes that it needs. NULL: none. */
const rp__template *rp__template_pick(const rp__template *const *rows, size_t n_rows, const rp__problem *p, size_t most,
                                      rp__order order, size_t *workspace);
/* rp__library.order: the tag of the row picked, if some row takes what follows sums of that tag. */
rp__order rp__template_order(const rp__template *const *rows, size_t n_rows, const rp__problem *p);
/* rp__library.name: the libraries among the rows that serve the op and are there, else "reprise". */
const char *rp__template_name(const rp__template *const *rows, size_t n_rows, rp__library_op op);

#endif
