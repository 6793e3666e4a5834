/* Tensor maps by the driver, which knows their layout; we know the place of the address in one, and check that. */
#include "kernel/cuda/tensor_map.h"

#include <pthread.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "device/cuda/offline.h"

static const CUtensorMapSwizzle SWIZZLE = CU_TENSOR_MAP_SWIZZLE_128B;
static const CUtensorMapL2promotion PROMOTION = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

static CUtensorMapDataType type_of(rp_dtype dtype, bool tf32) {
    return dtype == RP_F16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
           : dtype == RP_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
           : tf32             ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

/* Two maps of one picture in two places: are they the same but for word 0, the address? */
static bool good;
static void look(void) {
    const rp__libcuda *driver = rp__libcuda_get();
    static const cuuint64_t size[4] = {8, 5, 4, 2}, stride[3] = {32, 160, 640};
    static const int lower[2] = {-1, -1}, upper[2] = {-1, -1};
    static const cuuint32_t step[4] = {1, 1, 1, 1}, box[3] = {8, 1, 4};
    static const uintptr_t at[2] = {0x7f0000000400, 0x7e1234567890};
    CUtensorMap map[2][2];
    good = driver && driver->cuTensorMapEncodeIm2col && driver->cuTensorMapEncodeTiled;
    for (unsigned k = 0; k < 2 && good; k++) {
        void *address = (void *)at[k]; /* NOLINT: nobody reads there */
        good = driver->cuTensorMapEncodeIm2col(&map[0][k], CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4, address, size, stride,
                                               lower, upper, 8, 16, step, CU_TENSOR_MAP_INTERLEAVE_NONE, SWIZZLE,
                                               PROMOTION, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS &&
               driver->cuTensorMapEncodeTiled(&map[1][k], CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, address, size, stride,
                                              box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, SWIZZLE, PROMOTION,
                                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS &&
               map[0][k].opaque[0] == at[k] && map[1][k].opaque[0] == at[k];
    }
    for (unsigned which = 0; which < 2 && good; which++)
        good = !memcmp(&map[which][0].opaque[1], &map[which][1].opaque[1], sizeof map[0][0] - sizeof(cuuint64_t));
}

bool rp__cuda_maps(rp__device *d) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (d->arch != 90) return false;
    if (rp__cuda_offline()) return true;
    (void)pthread_once(&once, look);
    return good;
}

bool rp__map_fits(const rp__operand *picture, const rp__map_window *w) {
    static const int64_t corner[3] = {1 << 15, 1 << 7, 1 << 4}, offset[3] = {1 << 16, 1 << 8, 1 << 5};
    enum { STEPS = 8 };
    const int64_t most = corner[w->spatial - 1], bytes = (int64_t)rp__dtype_bytes(picture->dtype);
    int64_t least = picture->size[1], last = 1; /* places do not overlap: dims from the innermost on */
    if (picture->stride[1] != 1 || picture->size[1] < 1) return false;
    for (unsigned k = 0; k <= w->spatial; k++) {
        const unsigned d = k < w->spatial ? w->spatial + 1 - k : 0;
        const int64_t stride = picture->stride[d];
        if (picture->size[d] < 1) return false;
        if (picture->size[d] == 1) continue;
        if (stride < least || stride % last || stride * bytes % 16 || stride > INT32_MAX) return false;
        least = stride * picture->size[d], last = stride;
    }
    for (unsigned k = 0; k < w->spatial; k++) {
        const int64_t size = picture->size[2 + k], upper = (w->places[k] - 1) * w->step[k] + 1 + w->lower[k] - size;
        if (w->lower[k] < -most || w->lower[k] >= most || upper < -most || upper >= most || w->step[k] > STEPS ||
            w->step[k] < 1 || w->reach[k] >= offset[w->spatial - 1] || w->reach[k] < 0 || w->places[k] < 1)
            return false;
    }
    return true;
}

/* Strides in bytes of dims behind the first, each a multiple of the one before; 0: nobody knows it, since there is one place, and any will do. */
static void known_strides(const cuuint64_t *size, cuuint64_t bytes, unsigned n, cuuint64_t *stride) {
    for (unsigned k = n; k-- > 0;)
        if (stride[k] == 0 && k + 1 < n) stride[k] = stride[k + 1];
    for (unsigned k = 0; k < n; k++)
        if (stride[k] == 0) stride[k] = k ? stride[k - 1] * size[k] : (size[0] * bytes + 15) / 16 * 16;
}

bool rp__map_pixels(rp__device *d, const rp__operand *picture, const rp__map_window *w, bool tf32, unsigned channels,
                    unsigned pixels, uint64_t *words) {
    const unsigned rank = w->spatial + 2;
    const cuuint64_t bytes = rp__dtype_bytes(picture->dtype);
    cuuint64_t size[5] = {(cuuint64_t)picture->size[1]}, stride[4];
    cuuint32_t step[5] = {1, 1, 1, 1, 1};
    int lower[3], upper[3];
    CUtensorMap map;
    memset(words, 0, RP__MAP_WORDS * sizeof *words);
    if (rp__cuda_offline()) return true;
    for (unsigned k = 0; k < w->spatial; k++) { /* a map's innermost dim comes first */
        const unsigned at = w->spatial - 1 - k;
        size[1 + k] = (cuuint64_t)picture->size[2 + at];
        step[1 + k] = (cuuint32_t)w->step[at];
        lower[k] = (int)w->lower[at];
        upper[k] = (int)((w->places[at] - 1) * w->step[at] + 1 + w->lower[at] - picture->size[2 + at]);
    }
    size[rank - 1] = (cuuint64_t)picture->size[0];
    for (unsigned k = 0; k + 1 < rank; k++) {
        const unsigned dim = k + 2 < rank ? w->spatial + 1 - k : 0;
        stride[k] = picture->size[dim] > 1 ? (cuuint64_t)picture->stride[dim] * bytes : 0;
    }
    known_strides(size, bytes, rank - 1, stride);
    if (rp__cuda_of(d)->cu->cuTensorMapEncodeIm2col(
            &map, type_of(picture->dtype, tf32), rank, picture->base, size, stride, lower, upper, channels, pixels,
            step, CU_TENSOR_MAP_INTERLEAVE_NONE, SWIZZLE, PROMOTION, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return false;
    memcpy(words, map.opaque, sizeof map.opaque);
    return true;
}

bool rp__map_box(rp__device *d, const rp__map_rows *rows, bool tf32, unsigned x, unsigned z, uint64_t *words) {
    const cuuint64_t bytes = rp__dtype_bytes((rp_dtype)rows->dtype);
    const cuuint32_t box[3] = {x, 1, z}, step[3] = {1, 1, 1};
    cuuint64_t size[3], stride[2];
    union {
        const void *in;
        void *out;
    } base = {.in = rows->base};
    CUtensorMap map;
    memset(words, 0, RP__MAP_WORDS * sizeof *words);
    if (rp__cuda_offline()) return true;
    for (unsigned k = 0; k < 3; k++) size[k] = (cuuint64_t)rows->size[k];
    for (unsigned k = 0; k < 2; k++) stride[k] = size[k + 1] > 1 ? (cuuint64_t)rows->stride[k] * bytes : 0;
    known_strides(size, bytes, 2, stride);
    if (rp__cuda_of(d)->cu->cuTensorMapEncodeTiled(&map, type_of((rp_dtype)rows->dtype, tf32), 3, base.out, size,
                                                   stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, SWIZZLE, PROMOTION,
                                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return false;
    memcpy(words, map.opaque, sizeof map.opaque);
    return true;
}
