/* What another engine's language is written with. A lowering (lower.h) says what a node of a graph computes in some twenty
   operations; an emitter writes each of them as text or bytes of its language. Values have a dtype and sizes, are row-major
   and never change. Elementwise operands broadcast as in NumPy.

   Failures stick in the emitter: the first one keeps its sentence (`why`), later calls give RP__EMIT_NONE. An operation that
   the language lacks is a failure of that kind, not an error of the library. */
#ifndef RP_DOORS_EMIT_H
#define RP_DOORS_EMIT_H

#include "core/text.h"
#include "kernel/library.h"
#include "kernel/loop.h"
#include "trace/ir.h"

typedef uint32_t rp__put_val; /* number of a value of the emitter */
#define RP__EMIT_NONE UINT32_MAX

typedef struct rp__put_type {
    rp_dtype dtype;
    uint8_t ndim;
    rp_dim size[RP_MAX_DIMS];
} rp__put_type;

typedef struct rp__emitter rp__emitter;

/* What conv and its transpose take; spatial dims follow batch and channels. Padding may differ at the ends. */
typedef struct rp__put_conv {
    uint8_t spatial;
    int64_t stride[3], before[3], after[3], dilation[3], groups;
} rp__put_conv;

/* A loop over n values: while go(state), state = turn(state), `most` times at most (0: without a bound). Both are written once; they may
   read values around them. */
typedef struct rp__put_loop {
    unsigned n;
    int64_t most;
    rp__put_val (*go)(rp__emitter *e, void *ctx, const rp__put_val *state); /* a bool without dims */
    void (*turn)(rp__emitter *e, void *ctx, const rp__put_val *state, rp__put_val *next);
    void *ctx;
} rp__put_loop;

/* Writes value `out`, whose type is known. An operation that is NULL is one that the language lacks; so is a call that ends with
   rp__put_lacks. */
typedef struct rp__put_ops {
    void (*scalar)(rp__emitter *e, rp__put_val out, rp_scalar value);
    void (*table)(rp__emitter *e, rp__put_val out, const void *data, size_t bytes);
    void (*iota)(rp__emitter *e, rp__put_val out); /* i64, one dim: 0, 1, ... */
    /* false: the language lacks it, and nothing was written (steps.c makes it of others) */
    bool (*prim)(rp__emitter *e, rp__put_val out, rp__prim op, const rp__put_val *in, unsigned n);
    void (*cast)(rp__emitter *e, rp__put_val out, rp__put_val a);
    /* dims of the mask keep size 1 */
    void (*reduce)(rp__emitter *e, rp__put_val out, rp__reduce_kind kind, rp__put_val a, uint32_t mask);
    /* false: the language lacks it, and nothing was written (special.c) */
    bool (*scan)(rp__emitter *e, rp__put_val out, rp__scan_kind kind, rp__put_val a, unsigned dim, bool reversed);
    void (*reshape)(rp__emitter *e, rp__put_val out, rp__put_val a);
    void (*permute)(rp__emitter *e, rp__put_val out, rp__put_val a, const int64_t *dims);
    void (*expand)(rp__emitter *e, rp__put_val out, rp__put_val a); /* same rank */
    void (*slice)(rp__emitter *e, rp__put_val out, rp__put_val a, const rp_dim *start, const int64_t *step);
    void (*flip)(rp__emitter *e, rp__put_val out, rp__put_val a, uint32_t mask);
    void (*pad)(rp__emitter *e, rp__put_val out, rp__put_val a, const int64_t *before, const int64_t *after,
                rp__put_val value);
    void (*cat)(rp__emitter *e, rp__put_val out, const rp__put_val *in, unsigned n, unsigned dim);
    /* slices of a along dim, in place of that dim the dims of index (integers within the bounds) */
    void (*take)(rp__emitter *e, rp__put_val out, rp__put_val a, rp__put_val index, unsigned dim);
    /* out[.., i, ..] = a[.., index[.., i, ..], ..] */
    void (*gather)(rp__emitter *e, rp__put_val out, rp__put_val a, rp__put_val index, unsigned dim);
    void (*scatter)(rp__emitter *e, rp__put_val out, rp__scatter kind, rp__put_val a, rp__put_val index,
                    rp__put_val src, unsigned dim);
    void (*matmul)(rp__emitter *e, rp__put_val out, rp__put_val a, rp__put_val b); /* equal batch dims before */
    void (*conv)(rp__emitter *e, rp__put_val out, rp__put_val x, rp__put_val w, const rp__put_conv *g);
    /* x (N, O, *), w (O, C/g, *): the gradient of conv with respect to its input */
    void (*conv_transpose)(rp__emitter *e, rp__put_val out, rp__put_val x, rp__put_val w, const rp__put_conv *g);
    /* MAX or SUM of windows of the last `spatial` dims; padding counts for nothing */
    void (*pool)(rp__emitter *e, rp__put_val out, rp__reduce_kind kind, rp__put_val a, const int64_t *kernel,
                 const rp__put_conv *g);
    void (*topk)(rp__emitter *e, rp__put_val values, rp__put_val indices, rp__put_val a, int64_t k, unsigned dim,
                 bool largest);
    void (*softmax)(rp__emitter *e, rp__put_val out, rp__put_val a); /* of the last dim; NULL: made of others */
    /* Nodes with regions, whose blocks rp__lower_block writes; out[] are values that are there. NULL: the language has none.
       choose: in[0] one bool. */
    void (*choose)(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, const rp__put_val *out);
    void (*repeat)(rp__emitter *e, const rp__put_loop *loop, const rp__put_val *first, const rp__put_val *out);
    /* Whole nodes that the language has an operation for, by the op's name: true if it was written. May be NULL. */
    bool (*node)(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out);
} rp__put_ops;

struct rp__emitter {
    const rp__put_ops *ops;
    rp__put_type *types; /* per value */
    size_t n_values, capacity;
    const rp_ir *ir;         /* of the node at hand */
    const rp__ir_node *node; /* at hand; NULL: none */
    bool writes;             /* nodes that write in place become new values of what they write (lower.h) */
    bool failed;
    rp_status status; /* RP_ERROR_UNAVAILABLE: lacks something; or what went wrong */
    char why[256];
};

void rp__put_begin(rp__emitter *e, const rp__put_ops *ops, const rp_ir *ir);
void rp__put_end(rp__emitter *e);
rp__put_val rp__put_new(rp__emitter *e, const rp__put_type *type);
void rp__put_lacks(rp__emitter *e, const char *format, ...) RP__PRINTF(2, 3);
void rp__put_within(rp__emitter *e, const char *what); /* names what lacked it */
void rp__put_oom(rp__emitter *e);
static inline const rp__put_type *rp__put_type_of(const rp__emitter *e, rp__put_val v) { return &e->types[v]; }
static inline rp_dtype rp__put_dtype(const rp__emitter *e, rp__put_val v) {
    return v == RP__EMIT_NONE ? RP_DTYPE_NONE : e->types[v].dtype;
}
/* Elements, where sizes are numbers; -1: they are not. */
int64_t rp__put_numel(const rp__emitter *e, rp__put_val v);
bool rp__put_same_sizes(const rp__put_type *a, const rp_dim *size, unsigned ndim);
rp__put_type rp__put_type_from(rp_dtype dtype, const rp_dim *size, unsigned ndim);

rp__put_val rp__put_scalar(rp__emitter *e, rp_dtype dtype, rp_scalar value);
static inline rp__put_val rp__put_number(rp__emitter *e, rp_dtype dtype, double value) {
    return rp__put_scalar(e, dtype, (rp_scalar){RP_SCALAR_F64, {.f = value}});
}
static inline rp__put_val rp__put_int(rp__emitter *e, rp_dtype dtype, int64_t value) {
    return rp__put_scalar(e, dtype, (rp_scalar){RP_SCALAR_I64, {.i = value}});
}
rp__put_val rp__put_table(rp__emitter *e, const rp__put_type *type, const void *data, size_t bytes);
rp__put_val rp__put_iota(rp__emitter *e, rp_dim n);
/* dtype: of the result; comparisons give bool. */
rp__put_val rp__put_prim(rp__emitter *e, rp__prim op, rp_dtype dtype, rp__put_val a, rp__put_val b, rp__put_val c);
#define RP__EMIT1(e, op, a) rp__put_prim(e, RP__##op, rp__put_dtype(e, a), a, RP__EMIT_NONE, RP__EMIT_NONE)
#define RP__EMIT2(e, op, a, b) rp__put_prim(e, RP__##op, rp__put_dtype(e, a), a, b, RP__EMIT_NONE)
#define RP__EMIT_IS(e, op, a, b) rp__put_prim(e, RP__##op, RP_BOOL, a, b, RP__EMIT_NONE)
static inline rp__put_val rp__put_where(rp__emitter *e, rp__put_val c, rp__put_val a, rp__put_val b) {
    return rp__put_prim(e, RP__WHERE, rp__put_dtype(e, a), c, a, b);
}
/* steps.c and special.c: a primitive of others, a scan of others. */
rp__put_val rp__put_steps(rp__emitter *e, rp__prim op, rp__put_val a, rp__put_val b);
rp__put_val rp__put_special(rp__emitter *e, rp__prim op, rp__put_val a, rp__put_val b);
rp__put_val rp__put_scan_steps(rp__emitter *e, rp__scan_kind kind, rp__put_val a, unsigned dim, bool reversed);
/* A loop: out[] are new values of the types of first[]. */
void rp__put_repeat(rp__emitter *e, const rp__put_loop *loop, const rp__put_val *first, rp__put_val *out);
rp__put_val rp__put_cast(rp__emitter *e, rp__put_val a, rp_dtype to);
rp__put_val rp__put_reduce(rp__emitter *e, rp__reduce_kind kind, rp__put_val a, uint32_t mask);
rp__put_val rp__put_scan(rp__emitter *e, rp__scan_kind kind, rp__put_val a, unsigned dim, bool reversed);
rp__put_val rp__put_reshape(rp__emitter *e, rp__put_val a, const rp_dim *size, unsigned ndim);
rp__put_val rp__put_permute(rp__emitter *e, rp__put_val a, const int64_t *dims);
/* To sizes of the same or a higher rank. */
rp__put_val rp__put_expand(rp__emitter *e, rp__put_val a, const rp_dim *size, unsigned ndim);
rp__put_val rp__put_slice(rp__emitter *e, rp__put_val a, const rp_dim *start, const rp_dim *size, const int64_t *step);
rp__put_val rp__put_flip(rp__emitter *e, rp__put_val a, uint32_t mask);
/* Negative: cut off. */
rp__put_val rp__put_pad(rp__emitter *e, rp__put_val a, const int64_t *before, const int64_t *after, rp__put_val value);
rp__put_val rp__put_cat(rp__emitter *e, const rp__put_val *in, unsigned n, unsigned dim);
rp__put_val rp__put_take(rp__emitter *e, rp__put_val a, rp__put_val index, unsigned dim);
rp__put_val rp__put_gather(rp__emitter *e, rp__put_val a, rp__put_val index, unsigned dim);
rp__put_val rp__put_scatter(rp__emitter *e, rp__scatter kind, rp__put_val a, rp__put_val index, rp__put_val src,
                            unsigned dim);
rp__put_val rp__put_matmul(rp__emitter *e, rp__put_val a, rp__put_val b);
rp__put_val rp__put_conv_of(rp__emitter *e, bool transposed, rp__put_val x, rp__put_val w, const rp__put_conv *g,
                            const rp__put_type *out);
rp__put_val rp__put_pool(rp__emitter *e, rp__reduce_kind kind, rp__put_val a, const int64_t *kernel,
                         const rp__put_conv *g, const rp__put_type *out);
void rp__put_topk(rp__emitter *e, rp__put_val a, int64_t k, unsigned dim, bool largest, rp__put_val *values,
                  rp__put_val *indices);

#endif
