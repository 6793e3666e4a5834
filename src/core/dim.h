/* Sizes. An rp_dim is one 64-bit word: a value, or a symbol of the trace that is running in this thread. Shape rules are
   written over it with these checked helpers, so that eager and symbolic execution share one rule.
   A symbol's expression table belongs to the trace (src/trace/symbols.c), which installs itself through rp__dim_ops. */
#ifndef RP_CORE_DIM_H
#define RP_CORE_DIM_H

#include <assert.h>

#include "core/error.h"

typedef int64_t rp_dim;

#define RP__DIM_SYMBOL_LIMIT (-(INT64_C(1) << 62)) /* words below this are symbols: id = word - INT64_MIN */
static inline bool rp__dim_is_symbol(rp_dim d) { return RP__UNLIKELY(d < RP__DIM_SYMBOL_LIMIT); }

/* Words by name: scripts/check_dims.py finds comparisons that are not. (What is asked of rp__dim_is is decided, and guarded.) */
/* One word: equal sizes. Else two numbers are unequal, and symbols may be equal all the same. */
static inline bool rp__dim_same_word(rp_dim a, rp_dim b) { return (int64_t)a == (int64_t)b; }
/* Where there are no symbols: of tensors that have memory, and behind the specialisation of a graph. */
static inline int64_t rp__dim_number(rp_dim d) {
    assert(!rp__dim_is_symbol(d));
    return (int64_t)d;
}

typedef enum rp__dim_op {
    RP__DIM_ADD,
    RP__DIM_SUB,
    RP__DIM_MUL,
    RP__DIM_FLOORDIV,
    RP__DIM_MOD,
    RP__DIM_MAX,
    RP__DIM_MIN
} rp__dim_op;
/* Of numbers calculated of sizes (RP_SCALAR_SYM_F64, core/dtype.h). RP__NUM_SQRT has one operand. */
typedef enum rp__num_op { RP__NUM_ADD, RP__NUM_SUB, RP__NUM_MUL, RP__NUM_DIV, RP__NUM_POW, RP__NUM_SQRT } rp__num_op;
typedef enum rp__dim_relation { RP__DIM_EQ, RP__DIM_NE, RP__DIM_LT, RP__DIM_LE } rp__dim_relation;

/* No memory reaches so many elements. Strides that a tensor never steps along (of dims of one element, of tensors without
   any) are kept below: then the places that a tensor of RP_MAX_DIMS could name have bytes that can be counted, and what
   computes with offsets and strides need not look. */
#define RP__REACH_LIMIT (INT64_C(1) << 55)

/* Value arithmetic. false on overflow, division by zero. */
static inline bool rp__mul_i64(int64_t a, int64_t b, int64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool rp__add_i64(int64_t a, int64_t b, int64_t *out) { return !__builtin_add_overflow(a, b, out); }

/* a op b. Values overflow to a sticky RP_ERROR_SHAPE and 0. With a symbol on either side the thread's trace answers. */
rp_dim rp__dim_apply(rp__dim_op op, rp_dim a, rp_dim b);
/* Decides a relation. For values: compares. For symbols: decides by the hint (the value in this call) and records a guard. */
bool rp__dim_is(rp__dim_relation relation, rp_dim a, rp_dim b);
/* Is b a multiple of a, whatever the symbols stand for? No guard; false also where they do not tell, and for a = 0. */
bool rp__dim_divides(rp_dim a, rp_dim b);
/* Does stride (or size) a come before b? Numbers are compared. A divisor comes before its multiples, so that
   an order of dims is one of the symbols and not of the size that was seen first; where all between is 1, they are equal, and
   the strides that tell one order from the other are used by nothing. What the symbols leave open is decided as rp__dim_is does. */
bool rp__dim_before(rp_dim a, rp_dim b);
int64_t rp__dim_hint(rp_dim d);  /* the value in the traced call; no guard */
int64_t rp__dim_value(rp_dim d); /* the value; a symbol is specialised to it by a guard */
/* A value, or a symbol of the trace in force: what a caller may pass. */
bool rp__dim_known(rp_dim d);

/* Installed by floor 5; NULL members never run because no symbols exist without a trace. */
typedef struct rp__dim_hooks {
    rp_dim (*apply)(rp__dim_op op, rp_dim a, rp_dim b);
    bool (*is)(rp__dim_relation relation, rp_dim a, rp_dim b);
    bool (*divides)(rp_dim a, rp_dim b);
    int64_t (*hint)(rp_dim d);
    int64_t (*specialise)(rp_dim d);
    bool (*known)(rp_dim d); /* is the word one that the trace of this thread gave out? */
    /* The same of words of numbers, which are no sizes: an expression of two Scalars, its value, is it known? */
    rp_scalar (*number)(rp__num_op op, rp_scalar a, rp_scalar b);
    double (*specialise_number)(rp_dim d);
    bool (*number_known)(rp_dim d);
} rp__dim_hooks;
void rp__dim_install(const rp__dim_hooks *hooks);
const rp__dim_hooks *rp__dim_installed(void); /* NULL: none */

/* Shapes. */
rp_dim rp__numel(const rp_dim *size, size_t ndim); /* 1 for rank 0; sticky error on overflow */
void rp__contiguous_strides(const rp_dim *size, size_t ndim, rp_dim *stride);
/* out = broadcast of a and b (torch.broadcast_shapes); error names op in force and both shapes. */
rp_status rp__broadcast(const rp_dim *a, size_t a_ndim, const rp_dim *b, size_t b_ndim, rp_dim *out, size_t *out_ndim);
/* Wraps a dim that counts from the end; PyTorch's message and range (rank 0 accepts -1 and 0). */
rp_status rp__wrap_dim(int64_t dim, size_t ndim, size_t *out);
/* "(2, 3)" into buf; returns buf. Enough for 16 dims: RP__SHAPE_TEXT bytes. */
enum { RP__SHAPE_TEXT = 384 };
const char *rp__shape_text(const rp_dim *size, size_t ndim, char buf[RP__SHAPE_TEXT]);

#endif
