/* Lowering of one op into the loop form. A lowering is written once and serves eager execution (where an operand is a load),
   fusion (where an operand may be the value of a producing op) and both devices.

   Two halves: the DAG (depends on dtypes and structural attributes only; cached by eager under that key) and the space
   (sizes, strides; computed at each call). A lowering calls rp__lw_* to build the DAG; geometry follows from its kind:
     POINTWISE  operand k broadcasts to output 0's shape.
     ROWS       operand k broadcasts to in[0]'s shape; inner dims = rp__lw_inner(mask), the last ones in logical order; outputs
                whose size is 1 (or absent, keepdim false) along the inner dims are row outputs.
     INDEXED    the lowering sets the space itself (rp__lw_space) and strides per access (rp__lw_access). */
#ifndef RP_OPS_LOWER_H
#define RP_OPS_LOWER_H

#include "ops/ops.h"

typedef struct rp__lower rp__lower;

/* What is being lowered. */
const rp__call *rp__lw_call(const rp__lower *lw);
rp_dtype rp__lw_in_dtype(const rp__lower *lw, unsigned k); /* storage dtype of input k */
rp_dtype rp__lw_out_dtype(const rp__lower *lw, unsigned k);
rp_dtype rp__lw_compute(rp_dtype dtype); /* compute type */

/* Values. */
rp__val rp__lw_in(rp__lower *lw, unsigned k); /* input k in its compute type */
rp__val rp__lw_in_as(rp__lower *lw, unsigned k,
                     rp_dtype to); /* converted (promotion): rounds through `to` when it is f16 or bf16 */
bool rp__lw_has(const rp__lower *lw, unsigned k); /* optional input present? structural */
rp__val rp__lw_const(rp__lower *lw, rp_dtype compute, double value);
rp__val rp__lw_const_i(rp__lower *lw, rp_dtype compute, int64_t value);
rp__val rp__lw_attr(rp__lower *lw, unsigned attr, rp_dtype compute); /* number attribute as a run-time scalar */
rp__val rp__lw_scalar_fn(rp__lower *lw, rp_scalar (*value)(const rp__call *call),
                         rp_dtype compute); /* derived run-time scalar */
int64_t rp__lw_structural(rp__lower *lw,
                          unsigned attr); /* int/bool/dtype attribute that shapes the DAG: becomes part of the key */
rp__val
rp__lw_linear_index(rp__lower *lw); /* row-major number of the element in output 0 (i64): random counters, arange */
rp__val rp__lw_inner_index(rp__lower *lw);                    /* row-major number along the inner dims (i64) */
rp__val rp__lw_inner_extent(rp__lower *lw, rp_dtype compute); /* number of elements of a row, as a run-time scalar */
rp__val rp__lw_1(rp__lower *lw, rp__prim op, rp__val a);
rp__val rp__lw_2(rp__lower *lw, rp__prim op, rp__val a, rp__val b);
rp__val rp__lw_3(rp__lower *lw, rp__prim op, rp__val a, rp__val b, rp__val c);
rp__val rp__lw_cast(rp__lower *lw, rp__val a, rp_dtype to);
rp__val rp__lw_reduce(rp__lower *lw, rp__reduce_kind kind, rp__val a);
rp__val rp__lw_random(rp__lower *lw, unsigned generator_attr, rp__prim philox_kind,
                      rp_dtype dtype); /* one draw; reserves counters at its place */
void rp__lw_out(rp__lower *lw, unsigned k,
                rp__val v); /* output k = v (row value for row outputs); rounds to its dtype */

/* ROWS: bit d set = dim d of in[0] is inner. Called by the geometry half at every call. */
void rp__lw_inner(rp__lower *lw, uint32_t mask);

/* INDEXED */
void rp__lw_space(rp__lower *lw, const rp_dim *size, size_t ndim, uint32_t inner_mask);
/* An access of tensor operand (input k, or output k with `out`) with strides given for each dim of the space. */
uint16_t rp__lw_access(rp__lower *lw, bool out, unsigned k, const rp_dim *stride);
rp__val rp__lw_load(rp__lower *lw, uint16_t access, rp__val offset, rp__val predicate);
void rp__lw_store(rp__lower *lw, uint16_t access, rp__val value, rp__val offset, rp__val predicate,
                  rp__store_mode mode);
rp__val rp__lw_size(rp__lower *lw, rp_dim d);          /* a size or stride as a run-time i64 scalar */
rp__val rp__lw_dim_index(rp__lower *lw, unsigned dim); /* loop index of a dim of the space */
rp__val rp__lw_check_index(rp__lower *lw, rp__val index, rp__val bound, bool wrap_negative);

#endif
