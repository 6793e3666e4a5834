/* Calls that repeat. Most eager calls were made before: the same op on tensors of the same types, sizes and strides, with the
   same attributes. What type and shape rules, lowering and binding found for one of them is kept for the next, which compares
   its key, allocates its outputs and runs. Used by dispatch.c alone, below all layers. */
#ifndef RP_OPS_REPEAT_H
#define RP_OPS_REPEAT_H

#include "ops/execute.h"

typedef struct rp__repeat {
    uint32_t place; /* of the call in the table */
    bool keep;      /* what the call comes to is to be kept there */
} rp__repeat;

/* Runs the call if it is known; *status then says how that went. Else fills *r. */
bool rp__repeat_run(rp__call *call, rp__repeat *r, rp_status *status);
/* After a call ran well for which r->keep holds: keeps its launch, which moves in; NULL: it is a view. */
void rp__repeat_keep(const rp__repeat *r, const rp__call *call, const rp__kept_launch *launch);
/* Calls of this thread that were run so. */
uint64_t rp__repeat_count(void);
/* Tests: all calls of this thread fall on one place, so that keys alone tell them apart. */
void rp__repeat_one_place(bool one);

#endif
