/* Products and convolutions: what a row of kind PRODUCT says of a call, and what follows from it: the launch of its library op, or
   the lowering to a CONTRACT, through which the ops around it join its kernel. */
#ifndef RP_OPS_PRODUCT_H
#define RP_OPS_PRODUCT_H

#include "kernel/library.h"
#include "kernel/product.h"
#include "ops/lower.h"
#include "ops/ops.h"

typedef struct rp__product {
    rp__library_op op; /* RP__LIB_MATMUL or a convolution */
    unsigned n;        /* operands; 0: there is nothing to add up, the result is empty or zeros */
    rp__operand o[4];  /* of that op; tensors of the call may have no memory */
    uint8_t in[4];     /* operand k > 0 is this input of the call */
    uint32_t added;    /* bit d: dim d of o[0], of size 1, is none of the result's */
    bool rows;         /* the second factor is a matrix: leading dims of the first are rows, as far as strides allow */
    rp__conv_geometry conv;
    /* A convolution whose window covers the picture, on a device that reads operands turned: it is one of windows of one place, of as many
       channels as the window has elements, where operands lie by rows, and wants them so. */
    bool covers;
} rp__product;

/* What the row says, leading dims that are rows folded, windows that cover pictures as channels. */
rp_status rp__product_of(const rp__call *call, rp__product *out);
/* Computes the result, whose memory is there. */
rp_status rp__product_run(const rp__call *call);
/* Inputs of a convolution of which d wants copies (rp__library.turned); bit k: input k, here and of `there`. */
rp_status rp__product_turned(const rp__call *call, rp__device *d, uint32_t there, rp__turned *out);
/* The order in which the call adds up on its device, by itself and in the CONTRACT that it lowers to; RP__ORDER_ELSEWHERE: it lowers
   to none. */
rp_status rp__product_order(const rp__call *call, rp__device *d, rp__order *order);
/* The most that computing an element of an input may cost (rp__node_cost) where d makes that factor while it computes the product of that order,
   instead of reading it; 0: it cannot. */
rp_status rp__product_factor_cost(const rp__call *call, rp__device *d, rp__order order, unsigned input, unsigned *cost);
/* The CONTRACT: the space is the result's dims and what is added up over. */
void rp__product_lower(rp__lower *lw);

#endif
