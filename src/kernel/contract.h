/* What a launch of a DAG with a CONTRACT is made of: a product or convolution as a library op takes it, whose sums have no memory,
   and dims for the DAG of what follows (rp__dag.rest). Read from the accesses of the two factors, so that both devices serve such
   a DAG by the templates of their library ops, with the rest run on each tile before it leaves the registers or the cache. */
#ifndef RP_KERNEL_CONTRACT_H
#define RP_KERNEL_CONTRACT_H

#include "kernel/library.h"
#include "kernel/product.h"

/* The dims of the result, each a dim of the space (RP__NO_DIM: it has one index only). */
#define RP__NO_DIM ((uint8_t)0xff)
typedef struct rp__contraction {
    rp__library_op op;
    rp__order order;  /* of the node */
    rp__operand o[3]; /* as the op takes them; o[0] without memory and strides */
    rp__library_call call;
    /* PRODUCT: batch dims, then those of m, then those of n, each outermost first; o[0] has one dim for m and one for n.
       Convolutions: one dim each: what only the operand with windows has (images; CONV_WEIGHT: channels of the input), groups, what only
       the other has (rows of the product), then the spatial dims. */
    uint8_t n_batch, n_m, n_n;
    uint8_t dim[RP__SPACE_MAX_DIMS];
} rp__contraction;
enum { RP__CONTRACT_ALONE, RP__CONTRACT_GROUP, RP__CONTRACT_ROW, RP__CONTRACT_SPATIAL }; /* in dim, of convolutions */

/* The space is collapsed. RP_ERROR_INTERNAL: it is none that a product of our ops makes. */
rp_status rp__contract_read(const rp__dag *dag, const rp__space *space, rp__contraction *out);

/* What the rest takes of the launch, in words from word `first` on, with slots: [address of each access of the rest; of access 0:
   nothing] [extent of each of n dims] [strides of each access] [scalars] [draws] [error record, tag], as rp__space_layout_of has it
   for the rest and n dims. `dim` names the dims of the space. */
rp_status rp__contract_words(struct rp__device *d, const rp__dag *dag, const rp__space *space, const uint8_t *dim,
                             unsigned n, uint32_t first, rp__launch_buffer *buffer, rp__launch *out);

#endif
