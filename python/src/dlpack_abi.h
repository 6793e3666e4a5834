/* The parts of DLPack 1.x that the module exchanges tensors by, in our own words: managed tensors, and the table of C functions that
   a tensor class offers as __dlpack_c_exchange_api__. Layouts are fixed within major version 1. */
#ifndef REPRISE_PY_DLPACK_ABI_H
#define REPRISE_PY_DLPACK_ABI_H

#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6 };

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* in elements; strides NULL: row-major */
    uint64_t byte_offset;
} dl_tensor;

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self); /* may be NULL */
    uint64_t flags;
    dl_tensor tensor;
};

struct DLManagedTensor {
    dl_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
};

/* Every function gives 0, or -1 with a Python error. */
typedef struct dl_exchange {
    uint32_t major, minor;
    struct dl_exchange *previous;
    int (*allocate)(dl_tensor *prototype, struct DLManagedTensorVersioned **out, void *ctx,
                    void (*error)(void *ctx, const char *kind, const char *message));
    int (*managed_from_object)(void *object, struct DLManagedTensorVersioned **out);
    int (*object_from_managed)(struct DLManagedTensorVersioned *tensor, void **out); /* takes `tensor` over */
    int (*view_of_object)(void *object, dl_tensor *out); /* shape and strides belong to the object */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} dl_exchange;

_Static_assert(sizeof(dl_tensor) == 48, "DLTensor on 64-bit machines");
_Static_assert(sizeof(struct DLManagedTensorVersioned) == 80, "DLManagedTensorVersioned on 64-bit machines");

#endif
