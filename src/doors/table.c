/* The engines of this floor, in the order in which they are listed (backend.h). */
#include "doors/engines.h"

const rp__engine *const rp__door_engines[] = {&rp__engine_onnxrt, &rp__engine_xla,  &rp__engine_tensorrt,
                                              &rp__engine_tvm,    &rp__engine_ipex, NULL};
