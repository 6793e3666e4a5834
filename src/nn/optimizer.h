/* What saving and loading need of optimizers (optimizer.c), besides the public calls. */
#ifndef RP_NN_OPTIMIZER_H
#define RP_NN_OPTIMIZER_H

#include <reprise_nn.h>

/* "adam"; NULL and a sticky error for what is no optimizer. */
const char *rp__optimizer_kind(const rp_optimizer *opt);
/* The names of what is kept a parameter, besides its count of steps. */
#define RP__OPTIMIZER_STATES                                                                                           \
    { "exp_avg", "exp_avg_sq", "momentum_buffer" }
rp_tensor *rp__optimizer_state(rp_optimizer *opt, size_t group, size_t index, const char *name); /* NULL: not kept */
/* Steps of each parameter of a group; setting them parts those that were stepped together and no longer have one count. */
rp_status rp__optimizer_counts(rp_optimizer *opt, size_t group, float *counts);
rp_status rp__optimizer_set_counts(rp_optimizer *opt, size_t group, const float *counts);

#endif
