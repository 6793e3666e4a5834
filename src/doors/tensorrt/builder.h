/* TensorRT's library, and engines made by it from ONNX models: no GPU is needed for TensorRT-RTX's. Running them is tensorrt.c's. */
#ifndef RP_DOORS_TENSORRT_BUILDER_H
#define RP_DOORS_TENSORRT_BUILDER_H

#include "core/text.h"
#include "doors/tensorrt/trt.h"

/* Opened once. False: why. */
bool rp__trt_open(char version[64], char where[512], char why[512]);
/* The engine's bytes; freed by the caller. tf32: products of float32 may round their operands. Fails with a sticky error that has the
   library's text. */
rp_status rp__trt_plan(const void *model, size_t bytes, bool tf32, rp__text *plan);
/* An engine and its context from such bytes. */
rp_status rp__trt_context(const void *plan, size_t bytes, rp__trt_object **engine, rp__trt_object **context);
void rp__trt_delete(rp__trt_object *object); /* NULL is let be */
/* A function of an object, to be called with *impl. */
typedef void rp__trt_function(void);
rp__trt_function *rp__trt_find(rp__trt_object *object, rp__trt_method method, rp__trt_object **impl);
rp_status rp__trt_fail(const char *what); /* with the last error that the library told */

#endif
