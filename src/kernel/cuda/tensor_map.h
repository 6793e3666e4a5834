/* Tensor maps: how the copy unit of sm_90 reads a picture or a matrix (cuTensorMapEncodeIm2col, cuTensorMapEncodeTiled of the CUDA driver).
 * A map is 16 words among those of a launch. Its first word is the address, and nothing else in it depends on that, so a slot re-points it
 * as it does any other address (rp__cuda_maps makes sure). */
#ifndef RP_KERNEL_CUDA_TENSOR_MAP_H
#define RP_KERNEL_CUDA_TENSOR_MAP_H

#include "device/device.h"
#include "kernel/operand.h"

enum { RP__MAP_WORDS = 16, RP__MAP_ALIGN = 8 /* words: where in a launch a map may begin */ };

/* Places of a window over a picture (N, C, *) whose channels lie side by side, outermost spatial dim first: `places` of them along each dim,
 * `step` apart, from `lower` on; taps are up to `reach` further. */
typedef struct rp__map_window {
    unsigned spatial;
    int64_t lower[3], places[3], step[3], reach[3];
} rp__map_window;

/* Can the device copy by maps, and does its driver make them as we read them? */
bool rp__cuda_maps(rp__device *d);
/* Is there a map for these places? The address, a multiple of 16 bytes, aside. */
bool rp__map_fits(const rp__operand *picture, const rp__map_window *w);
/* False: the driver makes none. tf32: f32 is rounded as it is copied, half to even. A copy is of `channels` (128 bytes, swizzled) of `pixels` places. */
bool rp__map_pixels(rp__device *d, const rp__operand *picture, const rp__map_window *w, bool tf32, unsigned channels,
                    unsigned pixels, uint64_t *words);
/* A box (x, 1, z) of sizes (nx, ny, nz), of which the first lie side by side; strides in elements. */
typedef struct rp__map_rows {
    const void *base;
    uint8_t dtype; /* rp_dtype */
    int64_t size[3], stride[2];
} rp__map_rows;
bool rp__map_box(rp__device *d, const rp__map_rows *rows, bool tf32, unsigned x, unsigned z, uint64_t *words);

#endif
