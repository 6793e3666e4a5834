/* Calls of library ops from rules (library_ops.c). A header of its own, as what it includes changes with every new library op: only who calls one
   is compiled again. */
#ifndef RP_OPS_LIBRARY_OPS_H
#define RP_OPS_LIBRARY_OPS_H

#include "kernel/library.h"
#include "ops/ops.h"

/* Operand of a library op over all of t. */
rp__operand rp__operand_of(const rp_tensor *t);

/* rp__library_run on the device of operand 0, with op, site and determinism of the call. */
rp_status rp__run_library_op(const rp__call *call, rp__library_op op, const rp__operand *operands, size_t n,
                             rp__library_call *library);

#endif
