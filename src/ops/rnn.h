/* What recurrent networks and their derivatives share. */
#ifndef RP_OPS_RNN_H
#define RP_OPS_RNN_H

#include "ops/ops.h"

/* Of any number of tensors, which are overwritten, along dim; one is itself. */
rp_tensor *rp__joined(rp_tensor **list, int64_t n, int64_t dim);

#endif
