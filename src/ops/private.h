/* Ops for the library's own use, private ones too: parts of derivatives and of other ops (.flags = PRIVATE), which are dispatched,
   traced and compiled as any other and which graphs name, but programs cannot call by a function and do not see listed. A source of
   the library sees the ops that it names (RP__CALLS, set by the build for each source), so that others come and go without it. */
#ifndef RP_OPS_PRIVATE_H
#define RP_OPS_PRIVATE_H

#include <reprise.h>

#ifdef RP__CALLS
#include RP__CALLS
#else
#include <reprise_ops.h>

#include "ops_private.inc"
#endif

#endif
