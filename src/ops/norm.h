/* What norms share: a row brought to mean 0 and variance 1, then scaled and shifted by operands 1 and 2, where
   they are. */
#ifndef RP_OPS_NORM_H
#define RP_OPS_NORM_H

#include "ops/lower.h"

typedef struct rp__lw_norm {
    rp__val extent, mean, squares, rstd, y; /* squares: the sum of those of x - mean */
} rp__lw_norm;
/* Of operand 0 along the inner dims, which are set; eps: number of the attribute. */
rp__lw_norm rp__lw_normalise(rp__lower *lw, unsigned eps);

/* (C) as (C, 1, ..): it broadcasts along dim 1 of a tensor of this rank. NULL: NULL. */
rp_tensor *rp__per_channel(rp_tensor *t, unsigned ndim);
/* running = (1 - momentum) running + momentum batch; the caller keeps it from the tape. NULL is ignored. */
void rp__bring_up_to_date(rp_tensor *running, rp_tensor *batch, double momentum);

#endif
