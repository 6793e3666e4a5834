/* Autocast (torch.autocast) of a thread: the topmost layer gives ops their operands in the type that PyTorch's lists
   say. The state is a byte of rp__flags: what compiled functions compare, and checkpoints remember. */
#ifndef RP_OPS_AUTOCAST_H
#define RP_OPS_AUTOCAST_H

#include "core/flags.h"

/* The state, and another in its place; returns the old one. */
uint8_t rp__autocast_switch(uint8_t state);
static inline uint8_t rp__autocast_state(void) { return rp__flags.autocast; }

#endif
