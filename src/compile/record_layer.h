/* Writes ops into a graph as they are called: what runs between begin and end in this thread is not computed but recorded, on
   handles without memory. For code of the library that makes graphs out of derivatives; tracing of users' functions, with
   real arguments, is floor 5's. */
#ifndef RP_COMPILE_RECORD_LAYER_H
#define RP_COMPILE_RECORD_LAYER_H

#include "compile/rewrite.h"
#include "core/hash.h"

typedef struct rp__record_layer {
    rp__layer layer; /* first: the dispatch chain knows this part */
    rp_ir *ir;
    rp__ir_block *block;
    rp__map values; /* handle id -> value + 1 */
    rp__layer *before[RP__LAYER_COUNT];
    bool grad_mode;
    rp_scope scope;
} rp__record_layer;

rp_status rp__record_begin(rp__record_layer *r, rp_ir *ir, rp__ir_block *block);
void rp__record_end(rp__record_layer *r); /* handles made meanwhile die */
/* Between the two the thread is as it was before begin: traces may run. */
void rp__record_pause(rp__record_layer *r);
void rp__record_resume(rp__record_layer *r);
/* A handle for a value of the graph; lives until rp__record_end. Error tensor on failure. */
rp_tensor *rp__record_handle(rp__record_layer *r, rp__ir_value v);
/* The value that a handle stands for; RP__IR_NONE and a sticky error when it was made outside. */
rp__ir_value rp__record_value(rp__record_layer *r, const rp_tensor *t);

#endif
