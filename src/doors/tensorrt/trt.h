/* TensorRT's objects from C: a C++ object's second word is what implements it, and a method is a place in that one's table of functions,
   the same within a major version. Objects are deleted by the second place of their own table. The parser of ONNX models is called
   directly. */
#ifndef RP_DOORS_TENSORRT_TRT_H
#define RP_DOORS_TENSORRT_TRT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void rp__trt_object;

/* Majors 10 and 11; TensorRT-RTX 1 is laid out as 11. */
typedef enum rp__trt_layout { RP__TRT_10, RP__TRT_11, RP__TRT_LAYOUTS } rp__trt_layout;

/* TRT(method, place in 10, place in 11) */
#define RP__TRT_METHODS(TRT)                                                                                           \
    TRT(BUILDER_CONFIG, 7, 5)    /* rp__trt_object *(impl) */                                                          \
    TRT(BUILDER_NETWORK, 8, 6)   /* rp__trt_object *(impl, uint32_t flags) */                                          \
    TRT(BUILDER_BUILD, 14, 11)   /* rp__trt_object *(impl, network, config): HOST */                                   \
    TRT(BUILDER_LOGGER, 16, 13)  /* rp__trt_object *(impl) */                                                          \
    TRT(CONFIG_SET_FLAGS, 8, 6)  /* void (impl, uint32_t) */                                                           \
    TRT(HOST_DATA, 2, 2)         /* void *(impl) */                                                                    \
    TRT(HOST_SIZE, 3, 3)         /* size_t (impl) */                                                                   \
    TRT(RUNTIME_ENGINE, 3, 3)    /* rp__trt_object *(impl, const void *, size_t) */                                    \
    TRT(RUNTIME_LOGGER, 11, 10)  /* rp__trt_object *(impl) */                                                          \
    TRT(ENGINE_CONTEXT, 5, 5)    /* rp__trt_object *(impl, int32_t strategy) */                                        \
    TRT(CONTEXT_ADDRESS, 24, 23) /* bool (impl, const char *name, void *) */                                           \
    TRT(CONTEXT_ENQUEUE, 37, 36) /* bool (impl, CUstream) */

typedef enum rp__trt_method {
#define RP__TRT_METHOD(name, ten, eleven) RP__TRT_##name,
    RP__TRT_METHODS(RP__TRT_METHOD)
#undef RP__TRT_METHOD
        RP__TRT_METHOD_COUNT
} rp__trt_method;

/* Of a parser's own table. */
enum { RP__TRT_PARSE = 0 }; /* bool (parser, const void *model, size_t, const char *path) */

/* Of createNetworkV2 in 10; 11 knows no other networks. */
enum { RP__TRT_STRONGLY_TYPED = 1 << 1 };

#endif
