/* Graphs as ONNX models. A writer is an emitter (emit.h) of ONNX operators with inputs, outputs and weights around them; engines
   that read ONNX, and rp_onnx_save, use it. Operators are those of the default domain, opset 17 to 22.
   Names: values are v0, v1, ..; inputs, outputs and weights have the names that the caller gives; a node is named by its op and its
   number in the graph, and its doc_string is the call site. */
#ifndef RP_DOORS_ONNX_ONNX_H
#define RP_DOORS_ONNX_ONNX_H

#include "core/arena.h"
#include "doors/emit.h"

enum { RP__ONNX_OPSET = 21, RP__ONNX_OPSET_LEAST = 17, RP__ONNX_OPSET_MOST = 22 };

typedef struct rp__onnx_weight { /* an initializer whose bytes are elsewhere */
    const char *name;
    const void *data;
    size_t bytes;
} rp__onnx_weight;

typedef struct rp__onnx {
    rp__emitter emitter; /* first */
    rp__arena arena;     /* names */
    const char **names;  /* per value */
    size_t names_capacity;
    rp__text nodes, weights, inputs, outputs; /* fields of the graph */
    int opset;
    bool flat;           /* its reader takes no graphs within nodes */
    rp__put_val *symbol; /* per symbol of the graph: its value, i64 (1) */
    size_t n_symbols;
    rp__put_val *arg; /* per argument of the graph, for sizes that are symbols; RP__EMIT_NONE: unknown */
    size_t n_args;
    unsigned n_extra; /* numbers of names */
    /* Weights of at least so many bytes lie outside the model, in `file` (a name beside the model's); 0: none does. */
    size_t outside_bytes;
    const char *file;
    rp__onnx_weight *outside; /* in order, from offset 0 on, each at a multiple of RP__ONNX_ALIGNMENT */
    size_t n_outside, outside_capacity;
    int64_t outside_length;
} rp__onnx;
enum { RP__ONNX_ALIGNMENT = 64 };

/* opset 0: RP__ONNX_OPSET. */
void rp__onnx_begin(rp__onnx *o, const rp_ir *ir, int opset);
void rp__onnx_end(rp__onnx *o);
/* name: copied. */
rp__put_val rp__onnx_input(rp__onnx *o, const char *name, const rp__put_type *type);
/* data stays until the model is written, if it may lie outside. */
rp__put_val rp__onnx_weight_of(rp__onnx *o, const char *name, const rp__put_type *type, const void *data, size_t bytes);
/* An initializer for a value that is there. */
void rp__onnx_constant(rp__onnx *o, rp__put_val v, const void *data, size_t bytes);
void rp__onnx_output(rp__onnx *o, const char *name, rp__put_val v);
/* The whole model; freed by the caller. False: out of memory. */
bool rp__onnx_model(rp__onnx *o, const char *graph_name, rp__text *out);

/* ops.c */
extern const rp__put_ops rp__onnx_ops;
/* values.c: sizes as an i64 value of one dim, from symbols where they are some. */
rp__put_val rp__onnx_sizes(rp__onnx *o, const rp_dim *size, unsigned n);

/* An operator, its attributes appended as fields 5 of the node. */
typedef struct rp__onnx_attrs {
    rp__text fields;
} rp__onnx_attrs;
void rp__onnx_attr_int(rp__onnx_attrs *a, const char *name, int64_t value);
void rp__onnx_attr_float(rp__onnx_attrs *a, const char *name, double value);
void rp__onnx_attr_string(rp__onnx_attrs *a, const char *name, const char *value);
void rp__onnx_attr_ints(rp__onnx_attrs *a, const char *name, const int64_t *values, size_t n);
/* attrs: freed; NULL: none. RP__EMIT_NONE among the inputs: absent. */
void rp__onnx_node(rp__onnx *o, const char *type, const rp__put_val *in, unsigned n_in, const rp__put_val *out,
                   unsigned n_out, rp__onnx_attrs *attrs);

/* A graph within a node, which sees the values around it: until its end, nodes, inputs and outputs are its own. */
typedef struct rp__onnx_outer {
    rp__text nodes, inputs, outputs;
    rp__put_val *symbol;
} rp__onnx_outer;
void rp__onnx_inner_begin(rp__onnx *o, rp__onnx_outer *outer);
void rp__onnx_inner_end(rp__onnx *o, rp__onnx_outer *outer, rp__onnx_attrs *attrs, const char *name);
/* Of such a graph, with a name of its own. */
rp__put_val rp__onnx_inner_input(rp__onnx *o, const rp__put_type *type);
void rp__onnx_inner_output(rp__onnx *o, rp__put_val v);

#endif
