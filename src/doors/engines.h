/* One engine a folder. */
#ifndef RP_DOORS_ENGINES_H
#define RP_DOORS_ENGINES_H

#include "compile/backend.h"

extern const rp__engine rp__engine_onnxrt; /* ONNX Runtime */
extern const rp__engine rp__engine_ipex;   /* fused kernels */
extern const rp__engine rp__engine_tensorrt;
extern const rp__engine rp__engine_tvm; /* TVM */
extern const rp__engine rp__engine_xla; /* XLA by a PJRT plug-in */

#endif
