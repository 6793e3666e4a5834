/* What saving, loading and scaling need of optimizers (optimizer.c), besides the public calls. */
#ifndef RP_NN_OPTIMIZER_H
#define RP_NN_OPTIMIZER_H

#include <reprise_nn.h>

/* "adam"; NULL and a sticky error for what is no optimizer. */
const char *rp__optimizer_kind(const rp_optimizer *opt);
/* That no other optimizer has, nor had: 0 for what is none, or none any more. */
uint64_t rp__optimizer_id(const rp_optimizer *opt);
/* What is recorded holds for the parameters, groups and schedule that the optimizer has now. */
rp_status rp__optimizer_guard(const rp_optimizer *opt);
/* What is kept a parameter besides its count of steps: state k, its name in *name; NULL behind the last. Its own,
   even where parameters that are stepped together share one. */
rp_tensor *rp__optimizer_state(rp_optimizer *opt, size_t group, size_t index, size_t k, const char **name);
/* Steps of each parameter of a group; setting them parts those that were stepped together and no longer have one
   count. */
rp_status rp__optimizer_counts(rp_optimizer *opt, size_t group, float *counts);
rp_status rp__optimizer_set_counts(rp_optimizer *opt, size_t group, const float *counts);
rp_tensor *rp__optimizer_schedule_step(const rp_optimizer *opt, size_t group); /* NULL: it has no schedule */
rp_tensor *rp__optimizer_momentum(const rp_optimizer *opt, size_t group);      /* NULL: its schedule cycles none */
/* Parameter `index` of a group, borrowed. */
rp_tensor *rp__optimizer_param(const rp_optimizer *opt, size_t group, size_t index);
/* A step that changes nothing, counts included, where found_inf (0-d float32, 0 or 1, on the device of all
   parameters; NULL: 0) is 1. */
rp_status rp__optimizer_step(rp_optimizer *opt, rp_tensor *found_inf);

#endif
