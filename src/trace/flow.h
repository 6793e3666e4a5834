/* Which values of a graph's body carry a gradient, if some of its arguments do: what the tape would find. Blocks of regions
   are traced without a tape, so this is how their results, and operands that a function uses with grad mode off, are told
   apart. Asked by regions.c and trace_grad.c; changes nothing. */
#ifndef RP_TRACE_FLOW_H
#define RP_TRACE_FLOW_H

#include "trace/ir.h"

typedef struct rp__flow { /* zeroed to begin */
    bool *value;          /* by value: of its own history */
    bool *written;        /* by storage: something that carries was written into it */
    size_t values, value_capacity, storages, storage_capacity;
    size_t next; /* the first node of the body that was not looked at */
} rp__flow;

/* Goes on to the end of the body. args: by argument; NULL: every floating one carries. */
rp_status rp__flow_advance(rp__flow *f, const rp_ir *ir, const bool *args);
static inline bool rp__flow_carries(const rp__flow *f, const rp_ir *ir, rp__ir_value v) {
    return v != RP__IR_NONE && (f->value[v] || f->written[ir->values[v].storage]) &&
           rp__dtype_is_float(ir->values[v].meta.dtype);
}
/* Does something in the memory of v carry a gradient? */
bool rp__flow_in_memory(const rp__flow *f, const rp_ir *ir, rp__ir_value v);
void rp__flow_free(rp__flow *f);

#endif
