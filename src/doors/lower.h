/* From nodes of a graph to the operations of an emitter (emit.h). One way for all languages:
     loop ops   the op's own lowering (ops/lower.h) says what it computes; each primitive value becomes an operation over the
                op's space, of which values that do not vary along a dim have size 1. Accesses by computed places become indexed
                reads of the operand in row-major order.
     views      by the map that their rule gives (rp__view).
     products, and library ops: a row of the table in lower_ops.c.
   A language that has an operation for a whole op writes that instead (rp__put_ops.node).
   What an emitter sees is row-major, whatever the strides of the graph. */
#ifndef RP_DOORS_LOWER_H
#define RP_DOORS_LOWER_H

#include "doors/emit.h"

/* One node. in[]: as the node's operands, RP__EMIT_NONE for absent ones; out[]: its results. False: e->why says what is missing. */
bool rp__lower_node(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out);

/* The same for a node that writes in place, where the emitter has such: written[k] is the new value of operand k, RP__EMIT_NONE of one that is
   only read. */
bool rp__lower_write(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n, const rp__put_val *in,
                     rp__put_val *written);
bool rp__lower_is_write(const rp__ir_node *n);

/* Nodes in order. What is written in place has its new value in the map, and views of it are made of that from then on. map: per value of ir what stands for it, RP__EMIT_NONE where nothing does; filled on the way. False: *failed is the
   node that could not be lowered. */
bool rp__lower_nodes(rp__emitter *e, const rp_ir *ir, const uint32_t *nodes, size_t n, rp__put_val *map,
                     uint32_t *failed);
/* The nodes of a region, in whatever the emitter writes to at the moment. args: what stands for the block's arguments; results: what stands for
   its results. False: e->why says what is missing. */
bool rp__lower_block(rp__emitter *e, const rp__ir_block *block, const rp__put_val *args, rp__put_val *results);
/* What stands for a value now: a view of what was written is made of what is there. */
rp__put_val rp__lower_current(rp__emitter *e, const rp_ir *ir, rp__put_val *map, rp__ir_value v);
/* Per value of ir RP__EMIT_NONE; freed by the caller. */
rp__put_val *rp__lower_map(const rp_ir *ir);

/* Has the table of lower_ops.c a row for the op? The row is run; false and e->failed not set: there is none. */
bool rp__lower_by_row(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out);
/* lower_loop.c: loop ops; lower_view.c: views. */
bool rp__lower_update(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *written);
void rp__lower_loop(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out);
rp__put_val rp__lower_view(rp__emitter *e, const rp__ir_node *n, rp__put_val in);
/* lower_attention.c: attention's kernels, rows of the table; false: left to the library. */
bool rp__lower_attention(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out);
bool rp__lower_attention_backward(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out);
/* lower_recur.c: the same of recurrent layers. */
bool rp__lower_recur(rp__emitter *e, const rp__ir_node *n, const rp__put_val *in, rp__put_val *out);

/* Calls that rules can read: handles with the sizes of the node's values, row-major, no memory. */
typedef struct rp__lower_call {
    rp__call call;
    struct rp__ir_stand_in *stand_ins;
    rp_tensor **handles;
} rp__lower_call;
rp_status rp__lower_call_of(const rp_ir *ir, const rp__ir_node *n, rp__lower_call *out);
void rp__lower_call_end(rp__lower_call *c);

/* Does a node of the graph or of a region in it read the value, or is it a result? */
bool rp__lower_is_read(const rp_ir *ir, rp__ir_value v);

/* One element as a value without dims. */
static inline rp__put_val rp__lower_single(rp__emitter *e, rp__put_val a) {
    const rp_dim none[1] = {0};
    return rp__put_reshape(e, a, none, 0);
}
/* a[index]: elements of a, all its dims as one, at places (i64) of any sizes. */
rp__put_val rp__lower_at(rp__emitter *e, rp__put_val a, rp__put_val index);
/* 0, 1, .. along dim d of a space of that rank, size 1 along the others. */
rp__put_val rp__lower_index(rp__emitter *e, rp_dim extent, unsigned d, unsigned ndim);

#endif
