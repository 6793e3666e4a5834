/* TVM's C interface (tvm_ffi 0.1), as far as it is used: functions by name, arguments as tagged words of 16 bytes, tensors as DLPack's.
   Whatever is called gives 0, or leaves an error object behind. */
#ifndef RP_DOORS_TVM_FFI_H
#define RP_DOORS_TVM_FFI_H

#include <stddef.h>
#include <stdint.h>

enum {
    RP__TVM_INT = 1,
    RP__TVM_BOOL = 2,
    RP__TVM_DLTENSOR = 7,
    RP__TVM_TEXT = 8,
    RP__TVM_TENSOR = 70,
    RP__TVM_ARRAY = 71
};
/* Objects begin with a header of so many bytes; then come a tensor's DLTensor, and an error's kind and message. */
enum { RP__TVM_HEADER = 24 };
enum { RP__TVM_CPU = 1, RP__TVM_POOLED = 2, RP__TVM_ALIGNMENT = 64 };

typedef struct rp__tvm_any {
    int32_t type;
    uint32_t zero;
    union {
        int64_t i;
        const char *text;
        void *object;
    } v;
} rp__tvm_any;

typedef struct rp__tvm_bytes {
    const char *data;
    size_t n;
} rp__tvm_bytes;

typedef struct rp__tvm_version {
    uint32_t major, minor, patch;
} rp__tvm_version;

typedef struct rp__tvm_tensor { /* DLTensor */
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} rp__tvm_tensor;

/* TVM(member, name, result, parameters) */
#define RP__TVM_FUNCTIONS(TVM)                                                                                         \
    TVM(version, "TVMFFIGetVersion", void, (rp__tvm_version * out))                                                    \
    TVM(global, "TVMFFIFunctionGetGlobal", int, (const rp__tvm_bytes *name, void **out))                               \
    TVM(call, "TVMFFIFunctionCall", int, (void *function, const rp__tvm_any *in, int32_t n, rp__tvm_any *out))         \
    TVM(release, "TVMFFIObjectDecRef", int, (void *object))                                                            \
    TVM(error, "TVMFFIErrorMoveFromRaised", void, (void **out))

typedef struct rp__tvm {
#define RP__TVM_MEMBER(member, name, result, parameters) result(*member) parameters;
    RP__TVM_FUNCTIONS(RP__TVM_MEMBER)
#undef RP__TVM_MEMBER
} rp__tvm;

#endif
