/* Private ops: parts of derivatives and of other ops. They are dispatched, traced and compiled as any other, and graphs name them;
   programs cannot call them by a function and do not see them listed. Generated from the rows with .flags = PRIVATE. */
#ifndef RP_OPS_PRIVATE_H
#define RP_OPS_PRIVATE_H

#include <reprise_ops.h>

#include "ops_private.inc"

#endif
