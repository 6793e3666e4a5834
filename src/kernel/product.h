/* The order in which products and convolutions of ours add up, on every device: K in blocks of RP__PRODUCT_BLOCK elements (f64: half
   as many), blocks in groups of RP__PRODUCT_GROUP, each a chain from left to right:
     block = ((0 + a b) + a b) ..., group = (block + block) + ..., result = (group + group) + ...
   Where K is one block it is one chain. The error of a sum so grows with 256 + 16 + K / 4096 instead of K. A function of K and
   dtype alone; the chain within a block uses the machine's fma, if it has one.
   Convolutions on CUDA (kernel/cuda/conv.c): a K that is long beside the result is cut into 2, 4 or 8 shares of at least 128
   elements, each with blocks and groups of its own, whose results are added up from left to right, a function of sizes and the kind of
   device (a share of f32 may be slices, RP__FAMILY_SLICES, of four elements of each step); those of 16-bit floats go through tensor cores, with the channel (of a multiple of 64: 64 of them) innermost along K, in
   steps of 16 from left to right in f32; f32 that may round to tf32 the same way in steps of 8. */
#ifndef RP_KERNEL_PRODUCT_H
#define RP_KERNEL_PRODUCT_H

enum { RP__PRODUCT_BLOCK = 256, RP__PRODUCT_GROUP = 16 };

/* What K runs through, in this order; the outermost first:
     PRODUCT      the columns of a matrix
     CONV         channel, window
     CONV_INPUT   channel of the output, window; of strided convolutions each device takes the places that an element of the input
                  had a part in, or zeros for the others
     CONV_WEIGHT  image, place in the output */
typedef enum rp__contract_form {
    RP__CONTRACT_PRODUCT,
    RP__CONTRACT_CONV,
    RP__CONTRACT_CONV_INPUT,
    RP__CONTRACT_CONV_WEIGHT
} rp__contract_form;

/* The order tag of a product: equal tags are equal bits. Products that another library serves have none of ours. */
typedef unsigned rp__order;
#define RP__ORDER_ELSEWHERE 0u
static inline rp__order rp__order_of(rp__contract_form form, int element_is_8_bytes) {
    return (unsigned)RP__PRODUCT_BLOCK / (element_is_8_bytes ? 2u : 1u) << 16 | (unsigned)RP__PRODUCT_GROUP << 8 |
           (unsigned)form;
}

/* Sums that are not the machine's fma along blocks, or that are cut into shares of K (product.cuh); on CUDA, but for the last. */
typedef enum rp__order_family {
    RP__FAMILY_FMA, /* blocks and groups as above */
    /* Tensor cores, f16 and bf16: steps of 16 of K (few channels: a tap), sums in f32; by warps or, with equal bits, by warpgroups. */
    RP__FAMILY_MMA,
    RP__FAMILY_TF32,    /* tensor cores, f32 rounded to tf32: steps of 8 */
    RP__FAMILY_BF16X3,  /* tensor cores, f32 as two bf16: steps of 16, three products each */
    RP__FAMILY_INTEGER, /* any order: the bits are the same */
    RP__FAMILY_SLOTS,   /* weight gradients of depthwise convolutions: chains of 32 threads, then from left to right */
    RP__FAMILY_SLICES,  /* fma, each 32 of K in four parts, which add up by themselves; then from left to right */
    RP__FAMILY_DOTS,    /* the matrix unit of x86 processors, bf16: steps of 32 (cpu/dots.h), groups as above */
    RP__FAMILY_LANES    /* few rows: 64 chains of fma, of every 64th 16 bytes of K each (cuda/stream.cuh) */
} rp__order_family;
/* `shares`: the logarithm of their number, at most 3. */
static inline rp__order rp__order_with(rp__order order, rp__order_family family, unsigned shares) {
    return order | (unsigned)family << 28 | shares << 26;
}
static inline rp__order_family rp__order_family_of(rp__order order) { return (rp__order_family)(order >> 28); }
static inline unsigned rp__order_shares(rp__order order) { return order >> 26 & 3u; }
static inline unsigned rp__order_block(rp__order order) { return order >> 16 & 0x3ffu; }
static inline unsigned rp__order_group(rp__order order) { return order >> 8 & 0xffu; }
static inline rp__contract_form rp__order_form(rp__order order) { return (rp__contract_form)(order & 0xff); }

#endif
