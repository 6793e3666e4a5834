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
/* Operand k converted (promotion): an input rounds through `to` when it is f16 or bf16; the number of a Scalar form comes as
   it is, in the compute type. */
rp__val rp__lw_in_as(rp__lower *lw, unsigned k, rp_dtype to);
/* Scalar attribute as a number that meets operands of type `type`: of another width it wraps, as PyTorch's conversion does. */
rp__val rp__lw_number(rp__lower *lw, unsigned attr, rp_dtype type);
bool rp__lw_has(const rp__lower *lw, unsigned k); /* optional input present? structural */
rp__val rp__lw_const(rp__lower *lw, rp_dtype compute, double value);
rp__val rp__lw_const_i(rp__lower *lw, rp_dtype compute, int64_t value);
rp__val rp__lw_attr(rp__lower *lw, unsigned attr, rp_dtype compute); /* number attribute as a run-time scalar */
/* Derived run-time scalar. */
rp__val rp__lw_scalar_fn(rp__lower *lw, rp_scalar (*value)(const rp__call *call), rp_dtype compute);
/* A value that shapes the DAG (a class of exponents): becomes part of the key. Returns value. */
int64_t rp__lw_structural_value(rp__lower *lw, int64_t value);
/* Is the Scalar attribute the number 1? Structural, and part of every key: free on the hot path. */
bool rp__lw_attr_is_one(const rp__lower *lw, unsigned attr);
static inline bool rp__scalar_is_one(rp_scalar s) {
    return s.kind == RP_SCALAR_F64    ? s.v.f == 1.0
           : s.kind == RP_SCALAR_BOOL ? s.v.b
                                      : s.kind == RP_SCALAR_I64 && s.v.i == 1;
}
/* Result type of those of operands [0, n) that are there and Scalar attribute `attr` (none: negative) by the promotion rules: the type in which an op with
   several operands calculates, also in place. It depends on dtypes, on which inputs are 0-d and on the kind of the number only,
   which are part of every key. */
rp_dtype rp__lw_promoted(const rp__lower *lw, unsigned n, int attr);
rp__val
rp__lw_linear_index(rp__lower *lw); /* row-major number of the element in output 0 (i64): random counters, arange */
rp__val rp__lw_inner_extent(rp__lower *lw, rp_dtype compute); /* number of elements of a row, as a run-time scalar */
rp__val rp__lw_1(rp__lower *lw, rp__prim op, rp__val a);
rp__val rp__lw_2(rp__lower *lw, rp__prim op, rp__val a, rp__val b);
rp__val rp__lw_3(rp__lower *lw, rp__prim op, rp__val a, rp__val b, rp__val c);
rp__val rp__lw_cast(rp__lower *lw, rp__val a, rp_dtype to);
rp__val rp__lw_reduce(rp__lower *lw, rp__reduce_kind kind, rp__val a); /* over the inner dims */
rp__val rp__lw_scan(rp__lower *lw, rp__scan_kind kind, rp__val a);     /* along the inner dims */
/* The sum of a * b over the inner dims, two factors or loads (product.h); for those who bring a sink. */
rp__val rp__lw_contract(rp__lower *lw, rp__val a, rp__val b, unsigned order);
void rp__lw_join(rp__lower *lw, unsigned dim); /* dims `dim` and the next of the space are one dim of the result */
/* One draw for each element of output 0; reserves its counters at this place. PHILOX and PHILOX64 give bits (i64),
   PHILOX_NORMAL a number of `dtype`. */
rp__val rp__lw_random(rp__lower *lw, unsigned generator_attr, rp__prim philox_kind, rp_dtype dtype);
void rp__lw_out(rp__lower *lw, unsigned k, rp__val v);     /* output k = v, once an element; rounds to its dtype */
void rp__lw_out_row(rp__lower *lw, unsigned k, rp__val v); /* output k = v, once a row: v must be a row value */

/* ROWS: bit d set = dim d of in[0] is inner. Called by the geometry half at every call. */
void rp__lw_inner(rp__lower *lw, uint32_t mask);

/* ROWS: rows are walked from their last element to the first: what a scan runs along backwards. Before any value. */
void rp__lw_reverse(rp__lower *lw);

/* INDEXED: input k, whose dims are the first of the space: like rp__lw_in it may be the value of a producing op. */
rp__val rp__lw_in_front(rp__lower *lw, unsigned k);
/* INDEXED (and ROWS, for operands that do not broadcast) */
void rp__lw_space(rp__lower *lw, const rp_dim *size, size_t ndim, uint32_t inner_mask);
/* An access of tensor operand (input k, or output k with `out`) with strides given for each dim of the space, in the order of
   rp__lw_space (ROWS: of in[0]). axes: RP__ELEMENTS, or RP__ALONG_ROWS where the strides of inner dims are 0. */
uint16_t rp__lw_access(rp__lower *lw, bool out, unsigned k, const rp_dim *stride, rp__axes axes);
/* Input k as a factor of rp__lw_contract, with strides as rp__lw_access has them: it may be the value of a producing op where `along` says
   which dim of the space each of its dims is, RP__LW_NO_DIM for one of size 1 or expanded. along: NULL, where it must lie in memory. */
enum { RP__LW_NO_DIM = 0xff };
rp__val rp__lw_factor(rp__lower *lw, unsigned k, const rp_dim *stride, const uint8_t *along);
/* An access with windows (loop.h), of input k or, k negative, of numbers: the place's distance from the first element. `factor`
   has an entry for each dim of the space. What it reads must lie in memory. */
typedef struct rp__lw_window {
    rp_dim size, stride, pad, divisor;
    rp_dim factor[RP_MAX_DIMS];
} rp__lw_window;
uint16_t rp__lw_windows(rp__lower *lw, int k, const rp_dim *stride, const rp__lw_window *windows, unsigned n,
                        rp__axes axes);
rp__val rp__lw_inside(rp__lower *lw, uint16_t access); /* is the place inside? */
rp__val rp__lw_place(rp__lower *lw, uint16_t access);  /* of numbers: the number; outside 0 */
rp__val rp__lw_load(rp__lower *lw, uint16_t access, rp__val offset, rp__val predicate);
rp__val rp__lw_size(rp__lower *lw, rp_dim d);          /* a size or stride as a run-time i64 scalar */
rp__val rp__lw_dim_index(rp__lower *lw, unsigned dim); /* loop index of a dim of the space */
rp__val rp__lw_check_index(rp__lower *lw, rp__val index, rp__val bound, bool wrap_negative);

/* ---- driving. Eager lowers one call at a time (execute.h). Who puts several calls into one kernel brings a sink: the functions
   above then ask it for everything that belongs to the kernel as a whole, and build the rest with its builder. Tensors of the
   call need dtype, sizes and strides, no memory. */
typedef struct rp__lower_scalar { /* where a run-time scalar comes from */
    enum { RP__SCALAR_ATTR, RP__SCALAR_FN, RP__SCALAR_INNER_EXTENT, RP__SCALAR_SIZE } kind;
    unsigned attr;
    rp_scalar (*fn)(const rp__call *call);
    rp_dim size;
} rp__lower_scalar;
typedef enum rp__lower_iota { RP__IOTA_LINEAR, RP__IOTA_DIM } rp__lower_iota;

typedef struct rp__lower_sink rp__lower_sink;
struct rp__lower_sink {
    rp__dag_builder
        *builder; /* NULL: nothing is built, lowerings ask for their places only; values that they get mean nothing */
    /* In its compute type, rounded to its dtype. front: its dims are the first of the space, else the last. */
    rp__val (*in)(rp__lower_sink *s, const rp__call *call, unsigned k, bool front);
    void (*out)(rp__lower_sink *s, const rp__call *call, unsigned k, rp__val v); /* in the compute type, not rounded */
    rp__val (*reduce)(rp__lower_sink *s, const rp__call *call, rp__reduce_kind kind,
                      rp__val a); /* over the inner dims */
    rp__val (*scan)(rp__lower_sink *s, const rp__call *call, rp__scan_kind kind, rp__val a);
    rp__val (*contract)(rp__lower_sink *s, const rp__call *call, rp__val a, rp__val b, unsigned order);
    void (*join)(rp__lower_sink *s, const rp__call *call, unsigned dim);
    void (*reverse)(rp__lower_sink *s, const rp__call *call);
    rp__val (*scalar)(rp__lower_sink *s, const rp__call *call, const rp__lower_scalar *from, rp_dtype compute);
    rp__val (*iota)(rp__lower_sink *s, const rp__call *call, rp__lower_iota kind, unsigned dim);   /* i64 */
    unsigned (*draw)(rp__lower_sink *s, const rp__call *call, unsigned generator_attr, bool wide); /* its draw number */
    void (*structural)(rp__lower_sink *s, const rp__call *call,
                       int64_t value);                                     /* shapes the DAG; NULL: of no interest */
    void (*inner)(rp__lower_sink *s, const rp__call *call, uint32_t mask); /* ROWS */
    void (*space)(rp__lower_sink *s, const rp__call *call, const rp_dim *size, size_t ndim, uint32_t inner_mask);
    uint16_t (*access)(rp__lower_sink *s, const rp__call *call, bool out, unsigned k, const rp_dim *stride,
                       rp__axes axes);
    rp__val (*factor)(rp__lower_sink *s, const rp__call *call, unsigned k, const rp_dim *stride, const uint8_t *along);
    uint16_t (*windows)(rp__lower_sink *s, const rp__call *call, int k, const rp_dim *stride,
                        const rp__lw_window *windows, unsigned n, rp__axes axes);
};
/* Runs the lowering of a loop op (POINTWISE, ROWS, INDEXED) or a product into the sink. */
rp_status rp__lower_into(rp__lower_sink *sink, const rp__call *call);
/* Value of a run-time scalar for this call; RP__SCALAR_INNER_EXTENT is the caller's. */
rp_scalar rp__lower_scalar_value(const rp__lower_scalar *from, const rp__call *call);

#endif
