/* Holds NVIDIA's headers to tests/cuda_abi.def and every line of our symbol tables to NVIDIA's prototype. Not part of
 * the build: test_cuda_abi.c compiles it, for its static assertions only, where a CUDA toolkit is installed. */
#include <stddef.h>

#include <cublasLt.h>
#include <cuda.h>
#include <nvrtc.h>
#if defined __has_include && __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h> /* comes by itself */
#define ABI_CUDNN
#endif

#if CUDA_VERSION < 13000
#pragma message("headers older than 13.0 lack some of the optional functions: nothing was compared")
#else

#define ABI_NVRTC
#define ABI_CUBLASLT
#define ABI_DRIVER
#define ABI_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "size of " #type);
#define ABI_OFFSET(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), "offset of " #type "." #field);
#define ABI_VALUE(name, value) _Static_assert((long long)(name) == (value), "value of " #name);
#include "cuda_abi.def"

/* 13.0 declares these two under the plain name, for what the suffixed symbols are; the older form of the first is not
 * declared. */
#define cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo
#define cuStreamUpdateCaptureDependencies_v2 cuStreamUpdateCaptureDependencies
typedef CUresult capture_info_v2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                                 size_t *);
#define cuStreamGetCaptureInfo_v2 (*(capture_info_v2 *)0)

#define SAME(symbol, ret, args)                                                                                        \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), ret(*) args), "prototype of " #symbol);
#define RP__CUDA_FN(need, name, symbol, ret, args) SAME(symbol, ret, args)
#include "device/cuda/libcuda.def"
#define RP__NVRTC_FN(need, name, symbol, ret, args) SAME(symbol, ret, args)
#include "device/cuda/libnvrtc.def"
#define RP__CUBLASLT_FN(need, name, symbol, ret, args) SAME(symbol, ret, args)
#include "kernel/cuda/libcublaslt.def"
#ifdef ABI_CUDNN
#define RP__CUDNN_FN(need, name, symbol, ret, args) SAME(symbol, ret, args)
#include "kernel/cuda/libcudnn.def"
#endif

#endif
