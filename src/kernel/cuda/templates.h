/* CUDA's table of templates (kernel/template.h): asked by library.c for products and convolutions by themselves, by contract.c for those
 * with something behind each sum. */
#ifndef RP_KERNEL_CUDA_TEMPLATES_H
#define RP_KERNEL_CUDA_TEMPLATES_H

#include "core/text.h"
#include "kernel/cuda/text_kernel.h"
#include "kernel/template.h"

typedef struct rp__cuda_product_row {
    rp__template row;
    /* Of a row that takes what follows: words that it has before those of what follows; its words, grid, slots and the facts that its
     * text depends on, where o[0] has no memory and `wide` says that what follows needs offsets of 64 bits; the text, in which `parts`
     * stand for the store and, of the row that makes factors, for loads. facts have 32 bits; contract.c puts the number of words that follow above them. */
    uint32_t (*words)(const rp__problem *p);
    rp_status (*tiles)(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts);
    void (*source)(const char *name, uint64_t facts, const rp__text_parts *parts, rp__text *out);
    /* rp__library.join of the row's kernels, for those of another row with the same text too; both launches may be others'. NULL: none is joined. */
    rp_status (*join)(rp__device *d, const rp__launch *a, const rp__launch *b, rp__launch_buffer *buffer,
                      rp__launch *out);
    /* Does the text with these facts take several sums at once, eight but of depthwise convolutions (rp__library_call.neighbours)? NULL: none does. */
    bool (*takes_lanes)(uint64_t facts);
} rp__cuda_product_row;

/* The table: rp__cuda_NAME_row of each, in the file of its kernel. Of rows that cost the same the first is taken. */
#define RP__CUDA_ROWS(ROW)                                                                                             \
    ROW(stream)                                                                                                        \
    ROW(chain)                                                                                                         \
    ROW(matmul)                                                                                                        \
    ROW(tensor)                                                                                                        \
    ROW(fma)                                                                                                           \
    ROW(lt)                                                                                                            \
    ROW(conv)                                                                                                          \
    ROW(conv_mma)                                                                                                      \
    ROW(conv_depth)                                                                                                    \
    ROW(conv_shares)                                                                                                   \
    ROW(conv_depth_shares)                                                                                             \
    ROW(conv_groups)                                                                                                   \
    ROW(conv_group_shares)                                                                                             \
    ROW(dnn)
#define RP__CUDA_ROW(name) extern const rp__cuda_product_row rp__cuda_##name##_row;
RP__CUDA_ROWS(RP__CUDA_ROW)
#undef RP__CUDA_ROW
#define RP__CUDA_ROW(name) +1
enum {
    RP__CUDA_CONVOLUTIONS = 1u << RP__LIB_CONV_FORWARD | 1u << RP__LIB_CONV_INPUT | 1u << RP__LIB_CONV_WEIGHT,
    RP__CUDA_TEMPLATED = 1u << RP__LIB_MATMUL | RP__CUDA_CONVOLUTIONS, /* ops that the table has rows for */
    RP__CUDA_TEMPLATES = 0 RP__CUDA_ROWS(RP__CUDA_ROW)
};
#undef RP__CUDA_ROW
extern const rp__template *const rp__cuda_templates[RP__CUDA_TEMPLATES];

/* The row that computes the problem with what follows its sums, in this order; its place in the table. */
const rp__cuda_product_row *rp__cuda_template_following(const rp__problem *p, rp__order order, unsigned *place);
const rp__cuda_product_row *rp__cuda_template_at(unsigned place);
/* rp__library.join: that of the row whose kernels both launches are. */
rp_status rp__cuda_join(rp__device *d, const rp__launch *a, const rp__launch *b, rp__launch_buffer *buffer,
                        rp__launch *out);
/* The row that computes factors where it would read them, if it has the problem's order. */
const rp__cuda_product_row *rp__cuda_template_making(const rp__problem *p, unsigned *place);

#endif
