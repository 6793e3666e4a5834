/* What the kernels for matrix products have in common (matmul.c, product.c): operands as matrices, and the words that describe them. */
#ifndef RP_KERNEL_CUDA_MATMUL_H
#define RP_KERNEL_CUDA_MATMUL_H

#include "kernel/template.h"

typedef struct rp__matmul { /* the operands as matrices over batch dims; size-1 and mergeable batch dims are gone */
    int64_t m, n, k;
    int64_t om, on, am, ak, bk, bn, bias_stride;
    int64_t batch, extents[RP_MAX_DIMS], so[RP_MAX_DIMS], sa[RP_MAX_DIMS], sb[RP_MAX_DIMS];
    unsigned n_batch;
    bool bias;
    rp_dtype dtype;
} rp__matmul;

void rp__matmul_read(const rp__operand *o, size_t n, rp__matmul *p);
/* Do offsets of these operands need 64 bits? */
bool rp__matmul_is_wide(const rp__operand *o, size_t n);
/* The words of matmul.cuh and product.cuh but for the addresses, and their number; rp__launch.ahead of product.cuh, for the second factor. */
enum { RP__MATMUL_AHEAD = 14, RP__MATMUL_WORDS, RP__MATMUL_BATCH_WORDS = 4 };
uint32_t rp__matmul_n_words(const rp__problem *p);
void rp__matmul_words(const rp__matmul *p, rp__launch_buffer *buffer, rp__launch *out);
/* Several products in one launch: the sizes that a launch's words give; have the two launches equal words but for addresses (of a, which may be several
 * already, the first); a with the addresses of b behind it. */
void rp__matmul_read_words(const uint64_t *words, rp_dtype dtype, unsigned n_batch, rp__matmul *out);
bool rp__matmul_is_alike(const rp__launch *a, const rp__launch *b);
void rp__matmul_join(const rp__launch *a, const rp__launch *b, rp__launch_buffer *buffer, rp__launch *out);
/* Of the facts of matmul.cuh: the first factor is made, the second. */
enum { RP__MATMUL_MAKES = 28 };
/* Addresses and slots of a product by itself. */
void rp__matmul_start(const rp__problem *p, const rp__matmul *read, rp__launch_buffer *buffer, rp__launch *out);
/* Addresses and slots of the factors, for what follows. One without memory is made. */
void rp__matmul_factors(const rp__problem *p, rp__launch_buffer *buffer, rp__launch *out);
/* Sums of so many terms, of 16-bit floats of fewer, are too long for the blocks of matmul.cuh, each of which walks all of K alone. */
enum { RP__MATMUL_LONG = 320, RP__MATMUL_LONG_NARROW = 128 };
/* Multiprocessors that clusters of so many blocks, the logarithm of their number, find room in: a part of the device holds several of them, and a
 * rest in which there is none (of the 132 of an H200 120 for clusters of eight). */
static inline int rp__cuda_in_clusters(const rp__device *d, unsigned split) {
    return d->multiprocessors - (split == 3 ? d->multiprocessors / 11 : split == 2 ? d->multiprocessors / 16 : 0);
}
/* Of tests and measurements: 1 + the row of product.c's tiles that serves wherever it can; 0: the one of least clocks. */
extern unsigned rp__cuda_product_tile;

#endif
