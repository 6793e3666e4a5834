/* What optimizers need of schedules (schedule.c): a copy of their own, and rates. */
#ifndef RP_NN_SCHEDULE_H
#define RP_NN_SCHEDULE_H

#include <reprise_nn.h>

typedef struct rp__schedule rp__schedule;

/* NULL and a sticky error on failure. */
rp__schedule *rp__schedule_copy(const rp_schedule *s);
void rp__schedule_free(rp__schedule *s); /* NULL is ignored */
/* The rate at a step (float64, of any size) for a parameter group that began with `base`: float64. */
rp_tensor *rp__schedule_rate(const rp__schedule *s, rp_tensor *step, double base);
/* Does it cycle the momentum? Then the momentum at a step, likewise; `own` is the group's, while a part runs that cycles none. */
bool rp__schedule_cycles(const rp_schedule *s);
rp_tensor *rp__schedule_momentum(const rp__schedule *s, rp_tensor *step, double own);

#endif
