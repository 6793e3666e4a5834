/* What library ops are given, whichever they are: operands, and what a convolution or a recurrent cell is. Apart from library.h, which changes with
   every new op: kernels for vectors, which take longest to compile, need no more than this. */
#ifndef RP_KERNEL_OPERAND_H
#define RP_KERNEL_OPERAND_H

#include "core/dtype.h"

struct rp__storage;

/* An operand: a strided array. */
typedef struct rp__operand {
    void *base;
    struct rp__storage *storage;
    rp_dtype dtype;
    uint8_t ndim;
    int64_t size[RP_MAX_DIMS], stride[RP_MAX_DIMS]; /* elements */
} rp__operand;

typedef struct rp__conv_geometry {
    uint8_t spatial; /* 1, 2 or 3 */
    int64_t stride[3], padding[3], dilation[3], groups;
} rp__conv_geometry;

/* Sums that what follows a convolution takes several at once, where its accesses are aligned vectors: rows of the product (channels of the
   result), or columns (places). */
typedef enum rp__neighbours { RP__NEIGHBOURS_NONE, RP__NEIGHBOURS_ROWS, RP__NEIGHBOURS_COLUMNS } rp__neighbours;

/* What a step of a recurrent layer computes of the sums that its gates have. */
typedef enum rp__recurrent_cell { RP__CELL_TANH, RP__CELL_RELU, RP__CELL_GRU, RP__CELL_LSTM } rp__recurrent_cell;
static inline unsigned rp__cell_gates(unsigned cell) {
    return cell == RP__CELL_LSTM ? 4 : cell == RP__CELL_GRU ? 3 : 1;
}

#endif
