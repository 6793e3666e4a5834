/* Adding rows to the op table. Only rp_op_register does. */
#ifndef RP_OPS_TABLE_H
#define RP_OPS_TABLE_H

#include "ops/ops.h"

/* Enters a complete row; its memory must stay. An error when the name is taken. */
rp_status rp__op_table_add(rp__op *op);

#endif
