/* One engine a folder. */
#ifndef RP_DOORS_ENGINES_H
#define RP_DOORS_ENGINES_H

#include "compile/backend.h"

extern const rp__engine rp__engine_onnxrt; /* ONNX Runtime */

#endif
