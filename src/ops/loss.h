/* What the losses of loss.c and loss_rows.c share. */
#ifndef RP_OPS_LOSS_H
#define RP_OPS_LOSS_H

#include "ops/infer.h"

enum { RP__LOSS_NONE, RP__LOSS_MEAN, RP__LOSS_SUM };
rp_status rp__loss_reduction(const rp__call *call, unsigned attr, int64_t *reduction);
/* call->out[0]: the losses of elements reduced, in dtype if that is a floating type. */
rp_status rp__loss_give(const rp__call *call, rp_tensor *loss, int64_t reduction, rp_dtype dtype);
rp_status rp__loss_same_size(const rp__call *call, unsigned a, unsigned b); /* of operands a and b, the target */

#endif
