/* Declarations of rules of the table: rp__infer_..., rp__lower_..., rp__view_..., rp__run_..., rp__expand_... and rp__vjp_....
   Generated, so that a file that defines a rule is checked against the row's form. A source sees those that it names (RP__RULES, set
   by the build for each source of src/ops), so that others come and go without it. */
#ifndef RP_OPS_RULES_H
#define RP_OPS_RULES_H

#include "ops/lower.h"
#include "ops/ops.h"

#ifdef RP__RULES
#include RP__RULES
#endif

#endif
