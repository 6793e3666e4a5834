/* Attention on the CPU: the words of its kernels, and their entries, one pair an instruction set, built from isa/attention.c.
   lib_attention.c fills the words.

   Numbers: a row of the result depends on its query, the keys, values and mask alone: keys in blocks, each by the machine's fma, of which the
   length is a function of the sizes of a head. Neither threads, strides nor the width of vectors show in the bits. Where the matrix unit
   multiplies bf16 (dots.h), it does so here for all heads of up to 256 features and values, whatever the number of queries, in blocks of its
   own: other bits, and weights and slopes are bf16 before they are multiplied. */
#ifndef RP_KERNEL_CPU_ATTENTION_H
#define RP_KERNEL_CPU_ATTENTION_H

#include "device/launch.h"

enum { RP__ATTENTION_NO_MASK, RP__ATTENTION_BOOL, RP__ATTENTION_F32, RP__ATTENTION_SAME };

/* Addresses; sizes; strides in elements, of (b, h, row, feature) in that order. */
enum {
    RP__ATTENTION_OUT, /* forward */
    RP__ATTENTION_DQ,  /* backward */
    RP__ATTENTION_DK,
    RP__ATTENTION_DV,
    RP__ATTENTION_GRAD,
    RP__ATTENTION_Q,
    RP__ATTENTION_K,
    RP__ATTENTION_V,
    RP__ATTENTION_LSE,
    RP__ATTENTION_DELTA,
    RP__ATTENTION_MASK,
    RP__ATTENTION_PLACE,
    RP__ATTENTION_SUMS, /* backward: gradients of keys and values while they are added up */
    RP__ATTENTION_BATCH,
    RP__ATTENTION_HEADS,
    RP__ATTENTION_GROUP, /* heads of queries that share one of keys */
    RP__ATTENTION_ROWS,  /* L */
    RP__ATTENTION_KEYS,  /* S */
    RP__ATTENTION_FEATURES,
    RP__ATTENTION_VALUES, /* features of a value */
    RP__ATTENTION_DTYPE,
    RP__ATTENTION_MASK_KIND,
    RP__ATTENTION_CAUSAL,
    RP__ATTENTION_SCALE, /* bits of an f64 */
    RP__ATTENTION_KEEP,  /* bits of an f64: the probability that a weight stays; used with a place only */
    RP__ATTENTION_BLOCK_ROWS,
    RP__ATTENTION_BLOCK_KEYS,
    RP__ATTENTION_DOTS,    /* does the matrix unit multiply? (dots.h) */
    RP__ATTENTION_STRIDES, /* of RP__ATTENTION_OUT .. RP__ATTENTION_MASK, four each */
    RP__ATTENTION_WORDS = RP__ATTENTION_STRIDES + 4 * (RP__ATTENTION_MASK + 1)
};
/* Elements of a row of features, of whole vectors. */
static inline int64_t rp__attention_padded(int64_t features) { return (features + 15) / 16 * 16; }

/* Rows of SUMS of so many keys: whole tiles of the matrix unit. */
static inline int64_t rp__attention_sums(int64_t keys) { return (keys + 15) / 16 * 16; }

enum { RP__ATTENTION_IN_F32, RP__ATTENTION_IN_F64, RP__ATTENTION_IN_DOTS, RP__ATTENTION_KINDS };
typedef struct rp__attention_isa {
    rp__cpu_entry *forward[RP__ATTENTION_KINDS];  /* an item: a block of rows of one (b, h) */
    rp__cpu_entry *backward[RP__ATTENTION_KINDS]; /* an item: one (b, h of keys) */
} rp__attention_isa;
extern const rp__attention_isa rp__attention_baseline;
#ifndef RP_ISA_BASELINE_ONLY
extern const rp__attention_isa rp__attention_avx2, rp__attention_avx512;
#endif

#endif
