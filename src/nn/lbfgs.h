/* What saving and loading need of L-BFGS (lbfgs.c). */
#ifndef RP_NN_LBFGS_H
#define RP_NN_LBFGS_H

#include <reprise_nn.h>

enum { RP__LBFGS_TENSORS = 5 };
/* Tensor k of all that it keeps, and its name; the error tensor of one that could not be made. */
rp_tensor *rp__lbfgs_tensor(const rp_lbfgs *l, size_t k, const char **name);

#endif
