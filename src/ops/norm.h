/* What layer norm and batch norm share: a row brought to mean 0 and variance 1, then scaled and shifted by operands 1 and 2, where
   they are. */
#ifndef RP_OPS_NORM_H
#define RP_OPS_NORM_H

#include "ops/lower.h"

typedef struct rp__lw_norm {
    rp__val extent, mean, squares, rstd, y; /* squares: the sum of those of x - mean */
} rp__lw_norm;
/* Of operand 0 along the inner dims, which are set; eps: number of the attribute. */
rp__lw_norm rp__lw_normalise(rp__lower *lw, unsigned eps);

#endif
