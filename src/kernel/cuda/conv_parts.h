/* What the templates of convolutions (conv.c, conv_depth.c) share. */
#ifndef RP_KERNEL_CUDA_CONV_PARTS_H
#define RP_KERNEL_CUDA_CONV_PARTS_H

#include "kernel/cuda/library.h"

/* The product that a convolution is: rows and columns of one group, K. */
typedef struct rp__conv_extent {
    unsigned kind, spatial; /* kind 0: forward, 1: input gradient, 2: weight gradient */
    int64_t groups, batch, cg, og, in, points, taps, m, n, k;
    /* Of an input gradient (RP_CLASSES of conv_common.cuh); the most of a class. Where a step is wider than one place, also if the picture has
       no second one. */
    bool strided;
    int64_t classes, class_n, class_taps, class_k;
    int64_t busy; /* classes that have taps; the others' results are zeros */
} rp__conv_extent;

rp__conv_extent rp__conv_extents(rp__library_op op, const rp__operand *y, const rp__operand *x, const rp__operand *w,
                                 const rp__conv_geometry *conv);
/* y, x and w of a problem. */
rp__conv_extent rp__conv_sort(const rp__problem *p, const rp__operand **sorted);
/* Do places, or offsets on their way to one, need 64 bits? */
bool rp__conv_is_wide(const rp__operand *const *sorted, const rp__conv_geometry *conv);
bool rp__conv_has_bias(const rp__problem *p);
/* Words and slots of a kernel; a result without memory has no slot. */
void rp__conv_words(const rp__problem *p, const rp__operand *const *sorted, const rp__conv_extent *e, bool bias,
                    rp__launch_buffer *buffer, rp__launch *out);
/* The same of a weight gradient whose shares leave their sums in the call's workspace: word 3, and the last one says how many. */
void rp__conv_part_words(const rp__problem *p, const rp__operand *const *sorted, const rp__conv_extent *e,
                         int64_t parts, rp__launch_buffer *buffer, rp__launch *out);
uint32_t rp__conv_n_words(const rp__problem *p);
/* Of tests and measurements: 1 + the row of conv.c's tiles, of those in slices and of those in vectors, 17 + the row of conv_bulk.c's, or 33 + the
   row of conv_patch.c's, that serves wherever one can; 0: the one of least clocks, if any. From 64 on with 64 (1 + the logarithm of the shares)
   of conv_bulk.c's. Tiles of weight gradients there are counted round, and forced shares alone decide how their sums are cut. */
extern unsigned rp__cuda_conv_tile;

/* The launch; parts: as many shares leave their sums in the call's workspace, of rp__conv_parts_bytes; 0: none. */
rp_status rp__conv_bind(const rp__problem *p, int64_t parts, rp__launch_buffer *buffer, rp__launch *out);
int64_t rp__conv_most_shares(const rp__conv_extent *e); /* that sums of a weight gradient are long enough for */
size_t rp__conv_parts_bytes(const rp__conv_extent *e, rp_dtype dtype, int64_t parts);
bool rp__conv_on_tensor_cores(const rp__problem *p);

/* Forward convolutions rounded to tf32 whose weights are one run a row (conv_patch.c), of row "mma": is this a kernel of theirs? Channels of a
   step, and of a chunk of all that are rounded (RP_CHUNK of conv_common.cuh). */
enum { RP__CONV_ROUNDED_CHUNK = 32 };
typedef struct rp__conv_patch {
    uint64_t facts;
    double us;
    int64_t columns, rows; /* of blocks */
} rp__conv_patch;
bool rp__conv_is_patch(uint64_t facts);
/* The tile of least time for these weights; `along`: vectors of the other operand run along channels. False: none serves. */
bool rp__conv_patch_plan(const rp__conv_extent *e, const rp__operand *w, const rp__conv_geometry *conv,
                         const rp__operand *y, bool along, const rp__device *d, unsigned split, unsigned only,
                         rp__conv_patch *out);
/* How results leave: along rows, eight at once. Gives the bytes of shared memory. */
uint32_t rp__conv_patch_leaves(rp__conv_patch *p, bool bias, bool rows, bool eight);
void rp__conv_patch_macros(uint64_t facts, rp__text *out);

/* Forward convolutions and input gradients by bulk copies (conv_bulk.c), of row "mma", on sm_90: is this a kernel of theirs? */
bool rp__conv_is_bulk(uint64_t facts);
/* f32: does every text of row "mma" round half to even, as these copies do? A function of sizes. */
bool rp__conv_rounds_even(const rp__conv_extent *e);
extern _Atomic unsigned rp__conv_bulks; /* how many launches were, for tests */
typedef struct rp__conv_bulk_tile {
    unsigned tm, tn, wm, stages, resident, maps;
} rp__conv_bulk_tile;
rp__conv_bulk_tile rp__conv_bulk_tile_of(uint64_t facts);
/* The logarithm of shares that take least time, and that; UINT32_MAX: they are not of this kind. Of sizes and the kind of device. */
unsigned rp__conv_bulk_split(const rp__conv_extent *e, const rp__device *d, rp_dtype dtype, double *us);
typedef struct rp__conv_bulk {
    uint64_t facts; /* but for dtype, kind, spatial, bias, and how results leave */
    const void *tile;
    double us;
    int64_t columns, rows; /* of blocks */
    uint32_t shared_bytes;
} rp__conv_bulk;
/* Of y, x and w as they lie: the tile of least time; out NULL: whether they serve is asked alone. False: they do not. */
bool rp__conv_bulk_plan(const rp__conv_extent *e, const rp__operand *const *sorted, const rp__conv_geometry *conv,
                        const rp__device *d, unsigned split, rp__conv_bulk *out);
/* The same of weight gradients of f32 rounded to tf32 (conv_bulk_weight.cuh): can sizes be served, and into how many shares are sums best cut?
   Each of so many parts that a launch leaves in memory, 1: none, is of 1 << split shares, of a cluster. */
typedef struct rp__conv_cut {
    unsigned split;
    int64_t parts;
} rp__conv_cut;
bool rp__conv_bulk_turns(const rp__conv_extent *e, const rp__device *d);
rp__conv_cut rp__conv_bulk_cut(const rp__conv_extent *e, const rp__device *d);
bool rp__conv_bulk_weight_plan(const rp__conv_extent *e, const rp__operand *const *sorted,
                               const rp__conv_geometry *conv, const rp__device *d, rp__conv_cut cut,
                               rp__conv_bulk *out);
/* Maps behind the words of the launch, or those of what follows it, with their slots. False: there are none, and the launch is as before. */
bool rp__conv_bulk_words(const rp__problem *p, const rp__conv_extent *e, const rp__operand *const *sorted,
                         const rp__conv_bulk *plan, uint32_t behind, rp__launch_buffer *buffer, rp__launch *out);
/* The greatest common divisor of a step and a dilation. */
int64_t rp__conv_common(int64_t step, int64_t dilation);

/* Depthwise convolutions are another template's (conv_depth.c); shares of their weight gradients. */
bool rp__conv_is_depthwise(const rp__problem *p);
/* Channels that a thread of it has where they are innermost: so many of its sums leave as a vector. 0: it is no depthwise convolution. */
unsigned rp__conv_depth_lanes(const rp__problem *p);
/* Pictures that it reads, or would rather read, with their channels innermost. */
void rp__conv_pictures_turned(const rp__problem *p, rp__turned *out);
int64_t rp__conv_depth_parts(const rp__problem *p);
/* And those of 16-bit floats whose groups have few channels (conv_groups.c). */
bool rp__conv_is_grouped(const rp__problem *p);
int64_t rp__conv_group_parts(const rp__problem *p);

/* Of a weight gradient that rounds to tf32: into how many shares, at most so many, its sums are best cut for warpgroups; 0: another rule. A
 * function of sizes and the kind of device alone, since bits depend on it: also where operands lie so that other tiles serve. */
int64_t rp__conv_turned_parts(const rp__conv_extent *e, const rp__device *d, int64_t most);

/* cuDNN's row (conv_dnn.c). Does it serve a convolution, and which operands are then to be copied first? And whose convolutions are, for tests and
   measurements; of tests, too: so many plans are kept, 0: as many as usual. */
rp_status rp__cuda_dnn_turned(const rp__problem *p, bool *serves, rp__turned *out);
bool rp__cuda_dnn_is_everywhere(void); /* not by family */
typedef enum rp__dnn_use { RP__DNN_BY_FAMILY, RP__DNN_ALWAYS, RP__DNN_NEVER } rp__dnn_use;
extern unsigned rp__cuda_dnn_use, rp__cuda_dnn_plans;

#endif
