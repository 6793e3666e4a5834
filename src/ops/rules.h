/* Declarations of every rule that a row of the table uses: rp__infer_..., rp__lower_..., rp__view_..., rp__run_..., rp__expand_...
   and rp__vjp_.... Generated, so that a file that defines a rule is checked against the row's form. Included by the families. */
#ifndef RP_OPS_RULES_H
#define RP_OPS_RULES_H

#include "ops/lower.h"
#include "ops/ops.h"
#include "ops/product.h"

#include "ops_rules.inc"

#endif
