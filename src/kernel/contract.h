/* What a launch of a DAG with a CONTRACT is made of: a product or convolution as a library op takes it, whose sums have no memory,
   and dims for the DAGs of what follows (rp__dag.rest) and of what makes a factor (rp__dag.before). Read from the accesses of the two
   factors, so that both devices serve such a DAG by the templates of their library ops, with the rest run on each tile before it leaves
   the registers or the cache, and factors computed in place of being read. */
#ifndef RP_KERNEL_CONTRACT_H
#define RP_KERNEL_CONTRACT_H

#include "kernel/library.h"
#include "kernel/product.h"

/* The dims of the result, each a dim of the space (RP__NO_DIM: it has one index only). */
#define RP__NO_DIM ((uint8_t)0xff)
typedef struct rp__contraction {
    rp__library_op op;
    rp__order order; /* of the node */
    /* As the op takes them; o[0] without memory and strides. A factor that is made has no memory; its strides are those of a dense one, where what it
       is made of lies along K with K innermost. */
    rp__operand o[3];
    rp__library_call call;
    /* PRODUCT: batch dims, then those of m, then those of n, each outermost first; o[0] has one dim for m and one for n.
       Convolutions: one dim each: what only the operand with windows has (images; CONV_WEIGHT: channels of the input), groups, what only
       the other has (rows of the product), then the spatial dims. */
    uint8_t n_batch, n_m, n_n;
    uint8_t dim[RP__SPACE_MAX_DIMS];
    uint8_t k; /* PRODUCT: the dim that is added up over; RP__NO_DIM: none */
} rp__contraction;
enum { RP__CONTRACT_ALONE, RP__CONTRACT_GROUP, RP__CONTRACT_ROW, RP__CONTRACT_SPATIAL }; /* in dim, of convolutions */

/* The space is collapsed. RP_ERROR_INTERNAL: it is none that a product of our ops makes. */
rp_status rp__contract_read(const rp__dag *dag, const rp__space *space, rp__contraction *out);

/* Of a product whose results are stored along rows of the first factor, not along those of the second: the factors change places, so
   that a template of a GPU writes lines. Sums are the same bits: a term and their order are the same from both sides. Nothing where that is not so
   (bf16x3), a factor is made, or rows are so few that the factor with columns is what takes the time. */
void rp__contract_turn(const rp__dag *dag, const rp__space *space, rp__contraction *c);
extern _Atomic unsigned rp__contract_turns; /* how many have, for tests */

/* The parts of the DAG: what follows, what makes the first and the second factor. NULL: there is no such part. */
enum { RP__CONTRACT_REST, RP__CONTRACT_FIRST, RP__CONTRACT_SECOND, RP__CONTRACT_PARTS };
static inline rp__dag *rp__contract_part(const rp__dag *dag, unsigned part) {
    return part == RP__CONTRACT_REST ? dag->rest : dag->before[part - 1];
}

/* The type of the factors in memory; of two that are made, the one in which they are added up. */
rp_dtype rp__contract_dtype(const rp__dag *dag);

/* What a part takes of the launch, in words from word `first` on, with slots behind those of `out`: [address of each access of the part; of
   access 0: nothing] [extent of each of n dims] [strides of each access] [scalars] [draws] [error record, tag], as rp__space_layout_of
   has it for the part and n dims. `dim` names the dims of the space. */
rp_status rp__contract_words(struct rp__device *d, const rp__dag *dag, unsigned part, const rp__space *space,
                             const uint8_t *dim, unsigned n, uint32_t first, rp__launch_buffer *buffer,
                             rp__launch *out);

#endif
