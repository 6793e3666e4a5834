/* "ipex": Intel's extension of PyTorch was oneDNN on a CPU, and has ended. Fused kernels here take their products and convolutions from
   oneDNN where its module is, so the name is theirs. */
#include "doors/engines.h"

const rp__engine rp__engine_ipex = {.name = "ipex", RP__ENGINE_OVER_LEAF, .leaf = &rp__leaf_fused};
