/* Form 5: the traced graph. SSA: nodes call ops on values; a node may own regions (sub-graphs with block arguments). Every
   pass walks regions. Built by tracing (trace.h), by the parser (ir_parse.c) and by passes. docs/ir.md has the text form.

   What every rp_ir keeps (the checker, ir_check.c, verifies it):
     - body.args are the function's inputs in order; body.results its outputs (RP__IR_NONE: absent).
     - A block sees its own arguments and the results of its own earlier nodes, nothing else: what a region needs from outside
       is an operand of the node that owns it and an argument of its blocks.
     - The order of a block's nodes is program order. Effects (in-place ops, ASSIGN, random ops) happen in it.
     - Values with the same `storage` share memory. So may arguments and captured tensors marked `shared`, in memory that a program
       has wrapped more than once: such a graph is not compiled if it writes them. A view has its base's storage; an in-place op's result has its first
       operand's storage, sizes and strides. An op `x_` and ASSIGN change what every value of that storage reads afterwards.
       A *functional* graph has no in-place op, and no two values of one storage except views of a value nobody writes;
       it may end with ASSIGN nodes.
     - Sizes, strides, offsets, INT and INTS attributes and random offsets may be symbols (symbols.h, rp_ir.symbols).

   Operands of the kinds with regions:
     COND        in[0] the predicate (one element); in[1..] the arguments of both blocks. regions: then, else.
     WHILE       in[0..n_out) the state, then loop invariants; both blocks take all of them. regions: cond (one bool result),
                 body (n_out results: the next state). attrs[0] INT: max_iter, 0 without a bound. attrs[1] INT: keeps, the number s of
                 states whose history the loop keeps for a derivative: the state is then s values, a count (i64) of iterations and s
                 stacks (max_iter, *size) of the values at the beginning of each; 0: none, and the state is just that.
     CHECKPOINT  in[] the arguments of its block; outputs are its results. regions: body.
     FUNCTION    a custom function (rp_function_apply). in[] the arguments of its forward, outputs are its results, fresh and row-major.
                 regions: forward; backward, which takes in[], the results and a gradient for each result, and gives a gradient for
                 each of in[], RP__IR_NONE where there is none. The derivative of the node is the backward, not that of the forward's ops. */
#ifndef RP_TRACE_IR_H
#define RP_TRACE_IR_H

#include "core/arena.h"
#include "core/handle.h"
#include "core/text.h"
#include "ops/ops.h"
#include "trace/symbols.h"

typedef uint32_t rp__ir_value; /* index into rp_ir.values */
#define RP__IR_NONE UINT32_MAX

typedef struct rp__ir_value_info {
    rp__meta meta;
    rp_dim stride[RP_MAX_DIMS]; /* strides that eager execution gives it, elements; programs make it so */
    rp_dim offset;              /* of element 0 in its storage, elements */
    uint32_t storage;           /* memory; < rp_ir.n_storages */
    uint32_t node;              /* producer: index, or RP__IR_NONE for a block argument */
    uint32_t out_index;         /* result or argument number */
    bool requires_grad;
    bool shared;      /* argument or captured tensor: some of its bytes lie under another storage of the graph, too */
    bool late_grad;   /* of a result: it required none when it was made, a write through a view gave it its history */
    const char *site; /* may be NULL */
} rp__ir_value_info;

typedef enum rp__ir_kind {
    RP__IR_OP,       /* op, attrs (all of the schema's, in order) */
    RP__IR_CAPTURED, /* a tensor reached from outside the arguments (a parameter): captured_index into rp_ir.captured */
    RP__IR_CONST,    /* small host constant: data, row-major elements of its one output */
    RP__IR_COND,
    RP__IR_WHILE,
    RP__IR_CHECKPOINT,
    RP__IR_FUNCTION, /* regions, see above */
    RP__IR_ASSIGN, /* effect: writes value 1 into the memory of value 0 (an input or captured tensor); no result, or value 0's
                          memory after the write */
    RP__IR_KIND_COUNT
} rp__ir_kind;

/* What a kind of node is made of: text, parser, checker, copies and hash go by this table (ir.c). A new kind is a row there, its rules
   in ir_check.c and what it does in ir_run.c. */
typedef enum rp__ir_part {
    RP__IR_NO_PART,
    RP__IR_OPERANDS, /* of the node, those after `first` */
    RP__IR_RESULTS,
    RP__IR_GRADIENTS, /* one for each operand, of its type, or RP__IR_NONE */
    RP__IR_CONDITION  /* one bool */
} rp__ir_part;
typedef struct rp__ir_form {
    const char *name;   /* in the text; NULL: its op's, whose schema says what operands and attributes there are */
    int8_t n_in, n_out; /* -1: any number */
    bool index, data;   /* captured_index, data: in the text in place of operands */
    bool random;        /* may take counters */
    bool state;         /* results are the next values of the first operands, as in type */
    uint8_t first;      /* operands that the regions do not take */
    uint8_t n_regions, n_attrs;
    const char *attr[2]; /* INT; in the text behind the operands, all but the first where they are not 0 */
    struct {
        const char *name;
        rp__ir_part takes[3], gives;
    } region[2];
} rp__ir_form;
extern const rp__ir_form rp__ir_forms[RP__IR_KIND_COUNT];

typedef struct rp__ir_block rp__ir_block;
typedef struct rp__ir_node {
    rp__ir_kind kind;
    const rp__op *op;     /* RP__IR_OP */
    const rp_attr *attrs; /* in the arena, with what they point to; RP_ATTR_GENERATOR handles are held by the rp_ir */
    uint32_t n_attrs;
    rp__ir_value *in, *out; /* in[k] may be RP__IR_NONE: an absent optional argument */
    uint32_t n_in, n_out;
    uint32_t list_begin[RP__MAX_PARAMS + 1]; /* as rp__call */
    rp__ir_block *regions;
    uint32_t n_regions;
    uint32_t captured_index; /* RP__IR_CAPTURED */
    const void *data;        /* RP__IR_CONST */
    size_t data_bytes;
    /* Random ops and CHECKPOINT: counters that the same generator has reserved before this node since the function (in a
       CHECKPOINT's block: the node) began, and how many it takes. Two nodes may name the same counters: a recomputation. */
    rp_dim random_offset, random_count;
    const char *site; /* "file:line" or NULL */
    bool
        recompute; /* of a checkpoint: a backward runs it again rather than keep its results (a hint, no part of the text) */
    bool untaped; /* recorded with grad mode off (of a taped graph, a hint, no part of the text) */
    bool dead;    /* removed by a pass: every walk skips it */
} rp__ir_node;

struct rp__ir_block {
    uint32_t *nodes; /* indices, in program order */
    size_t n_nodes, nodes_capacity;
    rp__ir_value *args, *results;
    uint32_t n_args, n_results;
};

struct rp_ir {
    rp__handle handle; /* what the program holds of it */
    atomic_uint refs;  /* that, and what the library holds */
    atomic_bool lent;
    rp__arena arena;
    const char *name;
    rp__ir_node *nodes; /* addresses change as nodes are added: keep indices */
    size_t n_nodes, nodes_capacity;
    rp__ir_value_info *values;
    size_t n_values, values_capacity;
    uint32_t n_storages;
    rp__ir_block body;
    rp_tensor **captured; /* retained; NULL entries in a parsed graph (it can be read, not run) */
    size_t n_captured, captured_capacity;
    rp_generator **generators; /* retained: those that attributes name */
    size_t n_generators, generators_capacity;
    rp__symbols *symbols; /* sizes that are symbols, with hints and guards; NULL: all static */
    uint64_t failures;    /* of the thread before it was begun */
    bool taped;           /* traced as a tape saw it: rp__ir_node.untaped says which nodes it did not see */
};

/* ---- building. On failure: a sticky error and NULL, RP__IR_NONE or a status. */
/* One reference, which may become the program's; NULL and a sticky error when out of memory. */
rp_ir *rp__ir_new(const char *name);
rp_ir *rp__ir_retain(rp_ir *ir); /* by the library: the program uses rp_ir_retain and rp_ir_release */
void rp__ir_release(rp_ir *ir);  /* NULL is nothing */
void rp__ir_lend(rp_ir *ir);     /* one of the library's own, for the program to see: it holds what it retains */
rp_ir *rp__ir_failed(void);      /* what public constructors return on failure: empty, never freed */
rp_status rp__ir_usable(const rp_ir *ir, const char *call); /* else a sticky error that says why not */

/* A value in a storage of its own, with the strides that meta->order says. */
rp__ir_value rp__ir_add_value(rp_ir *ir, const rp__meta *meta, uint32_t node, uint32_t out_index, const char *site);
/* Appends a node to `block` (NULL: to none, the caller places it). Outputs are RP__IR_NONE until rp__ir_set_out or the
   caller fills them. attrs are copied with everything they point to. list_begin NULL: every operand is a parameter of its own. */
uint32_t rp__ir_add_node(rp_ir *ir, rp__ir_block *block, rp__ir_kind kind, const rp__op *op, const rp__ir_value *in,
                         uint32_t n_in, const uint32_t *list_begin, const rp_attr *attrs, uint32_t n_attrs,
                         uint32_t n_out, const char *site);
rp__ir_value rp__ir_set_out(rp_ir *ir, uint32_t node, uint32_t k,
                            const rp__meta *meta);                  /* adds value and makes it output k */
rp_status rp__ir_add_regions(rp_ir *ir, uint32_t node, uint32_t n); /* empty blocks */
rp__ir_value rp__ir_add_arg(rp_ir *ir, rp__ir_block *block, const rp__meta *meta, const char *site);
rp_status rp__ir_set_results(rp_ir *ir, rp__ir_block *block, const rp__ir_value *results, uint32_t n);
rp_status rp__ir_block_append(rp_ir *ir, rp__ir_block *block, uint32_t node);
rp__ir_value rp__ir_add_captured(rp_ir *ir, rp__ir_block *block, rp_tensor *t,
                                 const char *site); /* retains t; NULL allowed */
rp__ir_value rp__ir_add_const(rp_ir *ir, rp__ir_block *block, const rp__meta *meta, const void *data, size_t bytes,
                              const char *site);
/* The meta that a real tensor has. */
void rp__ir_meta_of(const rp_tensor *t, rp__meta *out);
/* What a CAPTURED (retains t) and a CONST (copies) have besides operands and results. */
rp_status rp__ir_set_captured(rp_ir *ir, uint32_t node, rp_tensor *t);
rp_status rp__ir_set_data(rp_ir *ir, uint32_t node, const void *data, size_t bytes);
/* Copies `from` (a block of `source`, regions and all) into block `to` of ir: to->args must exist, one for each of from's.
   Words of symbols, captured tensors and generators are taken over; both graphs have the same table of symbols or none. */
rp_status rp__ir_copy_block(rp_ir *ir, rp__ir_block *to, const rp_ir *source, const rp__ir_block *from);

/* ---- asking */
static inline const rp__ir_value_info *rp__ir_info(const rp_ir *ir, rp__ir_value v) { return &ir->values[v]; }
/* Are its strides those of a new tensor? Compares words: the graph's table of symbols must be in force. */
bool rp__ir_value_contiguous(const rp__ir_value_info *v);
/* The same of two values of one size; dims of one element do not count. */
bool rp__ir_same_strides(const rp__ir_value_info *a, const rp__ir_value_info *b);
/* Has a tensor of v's sizes v's strides? Without symbols. */
bool rp__ir_lies_as(const rp_ir *ir, rp__ir_value v, const rp_tensor *t);
/* Does it fill its memory, its dims in any order? What a node makes does. */
bool rp__ir_value_dense(const rp__ir_value_info *v);
/* Values of the node that a part of its regions' arguments or results has the types of. */
const rp__ir_value *rp__ir_part_values(const rp__ir_node *n, rp__ir_part part, uint32_t *count);
/* How many arguments and results block r has. */
void rp__ir_region_counts(const rp__ir_node *n, uint32_t r, uint32_t *args, uint32_t *results);
/* Why a kind of node cannot have so many operands and results; NULL: it can. */
const char *rp__ir_counts_fault(rp__ir_kind kind, uint32_t n_in, uint32_t n_out);
bool rp__ir_writes(const rp__ir_node *n, uint32_t k); /* does the node write operand k in place? */
/* May it not be removed or moved although nobody reads its results? */
bool rp__ir_node_has_effect(const rp_ir *ir, const rp__ir_node *n);
bool rp__ir_block_random(const rp_ir *ir, const rp__ir_block *block); /* any random op in it or in a region of it? */
/* Calls `visit` on every block, regions first. */
rp_status rp__ir_walk(rp_ir *ir, rp__ir_block *block, rp_status (*visit)(void *ctx, rp_ir *ir, rp__ir_block *block),
                      void *ctx);
/* Structure, attributes, metas, effects, symbols and guards; not names, sites, hints, numbering of values, nor which tensors are
   captured. This is what the purity check, rp_ir_equal and the segment cache compare. */
rp_status rp__ir_hash(const rp_ir *ir, rp__hash *out);
/* The call that a node stands for, over handles in[n_in] (NULL where absent). */
void rp__ir_call(const rp__ir_node *n, rp_tensor *const *in, rp_tensor **out, rp__call *call);
/* The first difference of two graphs as one sentence, for messages: "node 3: mul instead of add at net.c:7". Returns
   the call site of that node, if it has one. */
const char *rp__ir_diff(const rp_ir *a, const rp_ir *b, rp__text *out);

/* ---- text (ir_text.c) */
void rp__ir_print(const rp_ir *ir, bool sites, rp__text *out);
void rp__ir_print_node(const rp_ir *ir, uint32_t node, rp__text *out); /* one line, values by index */

#endif
