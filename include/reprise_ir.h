/* reprise_ir.h - graphs as data: what a backend reads, and what a front end makes.
 *
 * An rp_ir is a graph in SSA form: a block of nodes in program order, each with operands and results, which are values. A node
 * may own further blocks, its regions. docs/ir.md has the text form (rp_ir_text) and what each kind of node means.
 *
 * Reading  Values are numbers within their graph; the address of a block identifies it. What these functions give (strings, lists,
 *          attributes, tensors) belongs to the graph and lives as long as it. A graph that was given to rp_backend.compile, or that
 *          rp_trace made, never changes: any number of threads may read it.
 *          The program holds graphs that it made or retained (rp_ir_retain), and gives each reference back once; one that is used
 *          after its last one is gone, or released more often, is RP_ERROR_STATE.
 * Making   rp_trace_types records a function for arguments of given types, without data: ops of every kind, regions, random
 *          numbers. A front end that has no function to call makes a graph node by node, from rp_ir_new on.
 * Structs  struct_size is set by the caller (RP_OPTIONS, or = {.struct_size = sizeof x}); a newer library fills what it knows of.
 * Errors   As everywhere: a status and the thread's sticky error; RP_IR_NONE where a value is returned.
 */
#ifndef REPRISE_IR_H
#define REPRISE_IR_H

#include "reprise.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t rp_ir_value;
#define RP_IR_NONE UINT32_MAX /* no value: an absent operand or result; no producer: an argument of a block */

typedef struct rp_ir_block rp_ir_block; /* part of a graph: never released */

/* ---------------------------------------------------------------- blocks */

RP_API const char *rp_ir_name(const rp_ir *ir);
RP_API const rp_ir_block *rp_ir_body(const rp_ir *ir);
/* How many, and through the pointer which. A result may be RP_IR_NONE. */
RP_API size_t rp_ir_block_args(const rp_ir_block *block, const rp_ir_value **args);
RP_API size_t rp_ir_block_results(const rp_ir_block *block, const rp_ir_value **results);

/* ---------------------------------------------------------------- nodes */

typedef enum rp_ir_kind {
    RP_IR_OP = 0,       /* an op of the table; never a composite one */
    RP_IR_CAPTURED = 1, /* a tensor from outside the arguments: a parameter, a buffer */
    RP_IR_CONST = 2,    /* a small constant of the host */
    RP_IR_COND = 3,     /* in: predicate, arguments of both blocks; regions: then, else */
    /* in: state, then what does not change; regions: condition, body; max_iter as attribute 0 (0: no bound), attribute 1 is how
       many states keep their history */
    RP_IR_WHILE = 4,
    RP_IR_CHECKPOINT = 5, /* regions: body */
    RP_IR_FUNCTION = 6,   /* a custom function; regions: forward, backward */
    RP_IR_ASSIGN = 7      /* writes in[1] into the memory of in[0], an argument or captured tensor */
} rp_ir_kind;

typedef struct rp_ir_node {
    size_t struct_size;
    uint32_t number; /* within the graph */
    rp_ir_kind kind;
    const char *op; /* RP_IR_OP: its name in the table (rp_op_info_get); else "" */
    /* flat: operands of a list stand one after the other; absent ones are RP_IR_NONE */
    const rp_ir_value *in;
    size_t n_in;
    const rp_ir_value *out;
    size_t n_out;
    const rp_attr *attrs; /* all of the op's, in the order of its schema; sizes among them may be symbols */
    size_t n_attrs;
    size_t n_regions;
    rp_tensor *captured; /* RP_IR_CAPTURED: borrowed; NULL in a graph that was read from text */
    const void *data;    /* RP_IR_CONST: row-major elements of out[0] */
    size_t data_bytes;
    /* Random ops: the counters that the node takes from its generator, counted from where that stood when the function began.
       Two nodes may name the same counters (a recomputation). Sizes, which may be symbols. */
    int64_t random_offset, random_count;
    bool has_effect;  /* it may not be removed or moved although nobody reads its results */
    const char *site; /* "file:line" or "" */
} rp_ir_node;

/* Nodes of a block, in program order: for (size_t at = 0; rp_ir_next(ir, block, &at, &node);) ... */
RP_CALL bool rp_ir_next(const rp_ir *ir, const rp_ir_block *block, size_t *at, rp_ir_node *node);
/* The node of that number, as in rp_ir_value_info.producer. */
RP_CALL rp_status rp_ir_node_get(const rp_ir *ir, uint32_t number, rp_ir_node *node);
RP_CALL const rp_ir_block *rp_ir_node_region(const rp_ir *ir, uint32_t node,
                                             size_t region); /* NULL and an error: none */
/* Does the node write operand in[k] in place? A functional graph, which backends are given, has RP_IR_ASSIGN only. */
RP_CALL bool rp_ir_node_writes(const rp_ir *ir, uint32_t node, size_t k);
/* Operands and attributes by the names of the schema: rp_ir_operands(ir, n, "weight", &first) gives how many operands the
   parameter has (1; of a list any number) and the number of the first of them in `in`. NULL, or 0 and RP_ERROR_INVALID_ARGUMENT,
   where the op has no such parameter. */
RP_CALL size_t rp_ir_operands(const rp_ir *ir, uint32_t node, const char *name, size_t *first);
RP_CALL const rp_attr *rp_ir_attr(const rp_ir *ir, uint32_t node, const char *name);

/* ---------------------------------------------------------------- values */

typedef struct rp_ir_value_info {
    size_t struct_size;
    rp_dtype dtype;
    rp_device device;
    size_t ndim;
    int64_t size[RP_MAX_DIMS], stride[RP_MAX_DIMS], offset; /* elements; may be symbols */
    bool contiguous;                                        /* row-major */
    uint32_t
        memory; /* values of one memory have one number: a view and its base, an in-place op's result and operand */
    uint32_t producer;  /* number of the node; RP_IR_NONE: an argument of a block */
    size_t index;       /* which result, or argument, it is */
    bool requires_grad; /* a gradient may reach it */
    const char *site;   /* where it was made, or "" */
} rp_ir_value_info;
RP_CALL rp_status rp_ir_value_get(const rp_ir *ir, rp_ir_value value, rp_ir_value_info *info);
RP_API size_t rp_ir_value_count(const rp_ir *ir); /* values are 0 .. this - 1; some may be used by no node */

/* ---------------------------------------------------------------- sizes that are symbols */

RP_API bool rp_ir_is_symbolic(int64_t size); /* a symbol or an expression of symbols, not a number */
RP_API size_t rp_ir_symbol_count(const rp_ir *ir);
typedef struct rp_ir_symbol {
    size_t struct_size;
    size_t arg; /* it is a size of this argument of the body; SIZE_MAX: of none (a size that depends on data) */
    size_t dim;
    bool is_stride; /* its stride instead */
    int64_t hint;   /* the value in the traced call */
} rp_ir_symbol;
RP_CALL rp_status rp_ir_symbol_get(const rp_ir *ir, size_t index, rp_ir_symbol *symbol);
/* The symbol that `size` is by itself; SIZE_MAX for numbers and expressions. */
RP_CALL size_t rp_ir_symbol_of(const rp_ir *ir, int64_t size);
RP_CALL int64_t rp_ir_size_hint(const rp_ir *ir, int64_t size); /* the value in the traced call */
/* The value for symbols[0..rp_ir_symbol_count); RP_ERROR_SHAPE if it overflows. */
RP_CALL rp_status rp_ir_size_value(const rp_ir *ir, int64_t size, const int64_t *symbols, int64_t *value);
/* The same of a Scalar attribute, which may be a size or a number calculated of sizes: the number that it is. */
RP_CALL rp_status rp_ir_scalar_value(const rp_ir *ir, rp_scalar scalar, const int64_t *symbols, rp_scalar *value);
/* Reads the symbols off arguments. RP_ERROR_GUARD: the graph does not hold for them, with the first condition that fails. */
RP_CALL rp_status rp_ir_symbols_of_args(const rp_ir *ir, rp_tensor *const *in, size_t n_in, int64_t *symbols);
/* "s0*4 + 1", NUL-terminated; returns the length it needs without the NUL. */
RP_CALL size_t rp_ir_size_text(const rp_ir *ir, int64_t size, char *buf, size_t bytes);

/* ---------------------------------------------------------------- making graphs */

/* type of an argument that there is no tensor for; entries of one array have one struct_size */
typedef struct rp_ir_type {
    size_t struct_size;
    rp_dtype dtype;
    rp_device device;
    size_t ndim;
    int64_t size[RP_MAX_DIMS];
    bool dynamic[RP_MAX_DIMS]; /* the size becomes a symbol, with size[d] as its hint */
    bool requires_grad;
} rp_ir_type;
/* rp_trace for arguments of these types, row-major: fn is called with tensors that have sizes and no data. Reading a value is
   RP_ERROR_GRAPH_BREAK. NULL never: an empty rp_ir on failure. */
RP_CALL rp_ir *rp_trace_types(rp_fn fn, const rp_ir_type *types, size_t n_in, size_t n_out);

/* An empty graph, to be filled by the functions below, by one thread, and then used like any other. NULL never. */
RP_CALL rp_ir *rp_ir_new(const char *name);
/* Each gives the new value, RP_IR_NONE and a sticky error on failure. Arguments are numbered as they are added. */
RP_CALL rp_ir_value rp_ir_add_arg(rp_ir *ir, const rp_ir_type *type);
RP_CALL rp_ir_value rp_ir_add_captured(rp_ir *ir, rp_tensor *t); /* holds t */
/* Row-major elements, copied: bytes = number of elements * element size. On the CPU. */
RP_CALL rp_ir_value rp_ir_add_const(rp_ir *ir, const void *data, const int64_t *size, size_t ndim, rp_dtype dtype);
/* Appends a call of an op; types of the results come from its rules, and `origin` (kept: a string constant; NULL: the place of this
   call) is the node's call site, which messages name. Operands and attributes as for rp_op_call, RP_IR_NONE for an absent operand. A composite op appends what it is made of.
   Refused: ops that write, draw or read on the host (rp_trace_types records these; write with rp_ir_add_assign). */
RP_CALL rp_status rp_ir_add_op(rp_ir *ir, const char *origin, const char *name, const rp_ir_value *in, size_t n_in,
                               const rp_attr *attrs, size_t n_attrs, rp_ir_value *out, size_t n_out);
/* Writes `value` into the memory of `target`, an argument or captured tensor, of the same size and type. */
RP_CALL rp_status rp_ir_add_assign(rp_ir *ir, const char *origin, rp_ir_value target, rp_ir_value value);
RP_CALL rp_status rp_ir_set_results(rp_ir *ir, const rp_ir_value *results, size_t n); /* RP_IR_NONE: absent */

#ifdef __cplusplus
}
#endif

#include "reprise_ir_calls.h"

#endif
