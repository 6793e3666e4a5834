/* Form 1: the op table and the dispatch point. src/ops/FAMILY.def has one row an op; everything that anyone knows about an op is
   reached from its rp__op. Every call of an op, whoever makes it, is an rp__call that enters rp__dispatch.

   A row, read by tools/gen/genops.c:

       RP_OP(name, "schema", LOWERING, .field = value, ..., "description")

     LOWERING   POINTWISE, ROWS, INDEXED, VIEW, LIBRARY, HOST or COMPOSITE: rp__lowering
     .rule      of which op's rule it computes (rp__lower_, rp__view_, rp__run_ or rp__expand_NAME); its own unless said
     .prim      a primitive of src/kernel/prims.def that computes it of the operands in their promoted floating type: no rule is written
     .infer     whose type and shape rule it has (rp__infer_NAME)
     .vjp       whose derivative (rp__vjp_NAME); NONE: not differentiable. Ops in place have that of their functional form, views
                without one of their own that which follows from their rule
     .saves     what the derivative reads: IN(k) | OUT(k) | CROSS
     .format    how a result lies in memory where the family's rule is not PyTorch's: LIKE, FIRST, ANY or ALL (rp__format)
     .forms     INPLACE: also `name_`, which computes into the first operand; of ROWS and COMPOSITE a call of name whose result is
                copied there. SCATTER, of a view: also `name_scatter`, a copy of self with src in
                place of the view; what a gradient of the view and a write through it become. SCALAR: also `name_scalar`, whose second operand is a number (and
                `name_scalar_`): type rule and lowering are the same and get operand 1, tensor or number; the derivative is
                rp__vjp_NAME_scalar
     .scalar    the schema of the Scalar form, where more than the operand differs; .scalar_saves: what its derivative reads
     .flags     RANDOM | SYNC | NONDETERMINISTIC | DATA_SIZE | LAUNCHED: what is SYNC is one launch on the CPU, or made of such |
                PRIVATE: parts of derivatives and of other ops, not exported

   Rules are found by the op's name among the definitions in src/ops. The build ends where one is missing, where a row says NONE
   and there is one, and where no row uses one. */
#ifndef RP_OPS_OPS_H
#define RP_OPS_OPS_H

#include "device/generator.h"
#include "kernel/loop.h"
#include "tensor/tensor.h"

struct rp__lower;
typedef struct rp__op rp__op;
typedef struct rp__call rp__call;

/* ---- schema: PyTorch's text, "add(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor". Types: Tensor, Tensor? (may be
   NULL), Tensor[] (a list), Tensor?[] (of which each may be), Tensor(a) (returned or viewed), Tensor(a!) (written), int (SymInt),
   float, bool, Scalar, ScalarType, str, Generator, Layout, Device, MemoryFormat, each optional with "?"; int[], int[2] (a default
   of one number stands for all), int[]?, float[], float[]?. "dtype" is ScalarType. "=value" gives a default; what follows "*," is given by
   name. Returns: Tensor, (Tensor, Tensor), Tensor(a!); Tensor[] is not allowed.

   None of an optional attribute: INT64_MIN of int?, Layout?, Device?, MemoryFormat?; a Scalar of no kind for Scalar?, float? and
   bool?, which are held as Scalars; RP_DTYPE_NONE; NULL for the rest. */
enum { RP__MAX_PARAMS = 16, RP__MAX_OUTS = 8, RP__MAX_IN = 512 };
typedef enum rp__param_kind {
    RP__PARAM_TENSOR,
    RP__PARAM_OPTIONAL_TENSOR,
    RP__PARAM_TENSORS,
    RP__PARAM_ATTR
} rp__param_kind;
/* What an attribute is beyond the kind in which it is held. */
typedef enum rp__param_type {
    RP__TYPE_PLAIN,
    RP__TYPE_FLOAT,         /* float?, a Scalar */
    RP__TYPE_BOOL,          /* bool?, a Scalar */
    RP__TYPE_LAYOUT,        /* rp_layout, an int */
    RP__TYPE_DEVICE,        /* rp__device_word, an int */
    RP__TYPE_MEMORY_FORMAT, /* rp_memory_format, an int */
} rp__param_type;
typedef struct rp__param {
    char name[32];
    uint8_t kind;          /* rp__param_kind */
    uint8_t attr_kind;     /* rp_attr_kind of RP__PARAM_ATTR */
    uint8_t type;          /* rp__param_type */
    uint8_t fixed;         /* int[2]: 2; 0: any number */
    bool symbolic;         /* SymInt, SymInt[], SymInt?: a size or an index, which may be a symbol of the trace */
    bool optional;         /* may be None; of RP__PARAM_TENSORS: entries may */
    bool keyword;          /* behind "*": a field of the op's options */
    bool written, aliased; /* Tensor(a!), Tensor(a) */
    char alias;            /* 'a' */
    bool has_default;
    bool empty_list;         /* int[]?: the default is [], not None */
    int64_t default_ints[4]; /* int[]: the default's entries, value.n of them; see rp__param_default */
    char default_text[16];   /* str: the default; "": None */
    rp_attr value;           /* the default */
} rp__param;
rp_attr rp__param_default(const rp__param *p); /* with ints pointing into *p, which must stay where it is */
rp_attr rp__param_none(const rp__param *p);    /* None, as an optional parameter holds it */
bool rp__attr_is_none(const rp_attr *a);       /* of an optional attribute */
static inline int64_t rp__device_word(rp_device d) { return (int64_t)d.type * 65536 + d.index; }
static inline rp_device rp__word_device(int64_t word) {
    return (rp_device){(rp_device_type)(word / 65536), (int32_t)(word % 65536)};
}
typedef struct rp__schema {
    char name[48];
    uint8_t n_params, n_tensor_params, n_attrs, n_outs;
    bool typed;                       /* has attributes of a type beyond their kind: dispatch looks at them */
    rp__param params[RP__MAX_PARAMS]; /* in order, tensors and attributes mixed */
    char out_alias[RP__MAX_OUTS];     /* 'a' if output k is (a view of) the parameter with that alias; 0: fresh */
    bool out_written[RP__MAX_OUTS];   /* Tensor(a!): the output is that parameter itself */
} rp__schema;
/* Parses; on failure a sticky error that points at the offending text. Needs no other part of the library but core. */
rp_status rp__schema_parse(const char *text, rp__schema *out);

/* ---- a call */
/* Dims of a result in memory, the innermost first, four bits each. */
typedef uint64_t rp__dim_order;
#define RP__ROW_MAJOR UINT64_C(0)

typedef struct rp__meta { /* what shape and type rules compute of an output */
    rp_dtype dtype;
    rp_device device;
    uint8_t ndim;
    rp__dim_order order; /* from rp__op_infer; rules say nothing of it, and who keeps a meta has strides beside it */
    rp_dim size[RP_MAX_DIMS];
} rp__meta;

struct rp__call {
    const rp__op *op;
    const char *site;     /* as given by the caller; dispatch replaces it by the outermost site in force */
    rp_tensor *const *in; /* flat: lists expanded; optional ones may be NULL */
    uint32_t n_in;
    uint32_t list_begin[RP__MAX_PARAMS + 1]; /* first flat index of tensor parameter p; [p + 1] its end */
    const rp_attr *attrs;                    /* all of the schema's, defaults filled in */
    uint32_t n_attrs;
    rp_tensor **out; /* results; in-place ops return their argument with one more reference of the scope */
    uint32_t n_out;
};
static inline int64_t rp__attr_int(const rp__call *c, unsigned k) { return c->attrs[k].v.i; }
static inline double rp__attr_float(const rp__call *c, unsigned k) { return c->attrs[k].v.f; }
static inline bool rp__attr_bool(const rp__call *c, unsigned k) { return c->attrs[k].v.b; }

/* ---- rules of a row */
/* Type and shape rule: fills out[0..n_out). Written over rp_dim. Errors through rp__op_error. */
typedef rp_status rp__infer_fn(const rp__call *call, rp__meta *out);
/* View rule: the sizes of the result, and which dims of in[0] its dims walk; it reads sizes and attributes, no strides. All that is
   done with a view follows from this: where it lies in memory (rp__op_view), its derivative, what a write through it makes of the
   whole, and on which loop axes it is fused.

   Element (i0, i1, ..) of the result is the element of in[0] whose place along dim p is start[p] plus the sum of step[d] * i_d over
   the dims d that come from p. */
typedef struct rp__view {
    uint8_t ndim;
    rp_dim size[RP_MAX_DIMS];
    int8_t from[RP_MAX_DIMS][2]; /* dims of in[0]; -1: none. Neither: of one element, or repeated. Both: a diagonal */
    int64_t step[RP_MAX_DIMS];   /* > 0. Of two dims from one (windows) the first has the larger one, the second 1 */
    rp_dim start[RP_MAX_DIMS];   /* for each dim of in[0] */
    bool folds;                  /* the elements of in[0] in row-major order with other dims: no dim comes from one */
    /* rp__op_view: elements over in[0]'s storage */
    rp_dim stride[RP_MAX_DIMS], offset;
} rp__view;
typedef rp_status rp__view_fn(const rp__call *call, rp__view *out);
/* Loop lowering: builds the DAG and says how operands walk the iteration space (lower.h). */
typedef void rp__lower_fn(struct rp__lower *lw);
/* Library lowering and host ops: outputs are allocated; launches. Runs again under a recorder to build programs. */
typedef rp_status rp__run_fn(const rp__call *call);
/* Composite: fills out by calling other ops; dispatch expands it above autograd, so it needs no derivative. */
struct rp__product;
typedef rp_status rp__product_fn(const rp__call *call, struct rp__product *out);
typedef rp_status rp__expand_fn(const rp__call *call);
/* Derivative, written with ops. grad_in[i] may be left NULL (zero). */
typedef struct rp__vjp {
    const rp__call *call;               /* in and out hold what the row saves, NULL elsewhere; attrs as called */
    const rp__meta *in_meta, *out_meta; /* of all inputs and outputs */
    rp_tensor *const *grad_out;         /* NULL: zero */
    const bool *needed;                 /* per input */
    rp_tensor **grad_in;
} rp__vjp;
typedef rp_status rp__vjp_fn(const rp__vjp *g);

typedef enum rp__lowering {
    RP__POINTWISE, /* lower; the space is output 0's shape; every operand broadcasts to it */
    RP__ROWS,      /* lower; the space is in[0]'s shape, the inner dims those of rp__lower_inner */
    RP__INDEXED,   /* lower; computed offsets; the space is what the lowering says */
    RP__VIEW,      /* view */
    RP__LIBRARY,   /* run */
    RP__PRODUCT, /* product: operands of a product or convolution; it is run as such, or lowered to a CONTRACT (product.h) */
    RP__COMPOSITE, /* expand */
    RP__HOST,      /* run: data-dependent sizes, host reads; a graph break unless it has its own trace rule */
    RP__USER       /* rp_op_register */
} rp__lowering;

/* Private flags, beside the public RP_OP_* of the descriptor. */
enum {
    RP__OP_DATA_SIZE = 1u << 16, /* output size depends on data: symbol with an upper bound in traces */
    RP__OP_RANDOM_STATE = 1u << 17,
    RP__OP_PRIVATE = 1u << 18, /* not exported and not listed; graphs name it */
    RP__OP_LAUNCHED = 1u << 19 /* SYNC on a GPU alone: on the CPU it is recorded as launches */
};
/* What a derivative needs kept. */
#define RP__SAVE_NONE 0u
#define RP__SAVE_IN(k) (1u << (k))
#define RP__SAVE_OUT(k) (1u << (16 + (k)))
#define RP__SAVE_IN_ALL 0xffffu
#define RP__SAVE_CROSS                                                                                                 \
    (1u << 31) /* a product: input 0 is needed only for the gradient of input 1, and the other way round */

/* How results lie in memory (format.c). A memory format that the call asks for comes first. */
typedef enum rp__format {
    RP__FORMAT_FAMILY, /* pointwise ops: as PyTorch's TensorIterator finds; others: row-major */
    RP__FORMAT_LIKE,   /* operand 0's strides if it is dense, else as a pointwise op of it: torch.preserve_format */
    RP__FORMAT_FIRST,  /* channels_last (or _3d) if operand 0 is, else row-major */
    RP__FORMAT_ANY,    /* if operand 0 or 1 is */
    RP__FORMAT_ALL     /* if all operands are */
} rp__format;

struct rp__op {
    const char *name, *schema_text, *doc;
    rp__lowering lowering;
    rp__format format;
    union {
        rp__lower_fn *lower;
        rp__view_fn *view;
        rp__run_fn *run;
        rp__expand_fn *expand;
        rp__product_fn *product;
    } rule;
    rp__infer_fn *infer;
    rp__vjp_fn
        *vjp; /* NULL: not differentiable (an error when a gradient is asked through it, unless outputs are integral) */
    const char *functional; /* in-place ops: the name of the out-of-place op with the same parameters; "" otherwise */
    const rp__op *functional_op; /* the row of that name; NULL for ops that are not in place */
    uint8_t prim;                /* rp__prim of rows with .prim */
    const rp__op *inverse;       /* of a view its SCATTER form, of that the view; NULL */
    uint8_t scalar_operand; /* a Scalar form: the operand of the rules that the first attribute stands for; 0: none */
    uint32_t saves, flags;
    rp__schema schema; /* parsed at build time by genops, at registration for user ops */
    void *user;        /* RP__USER: the descriptor */
    uint32_t index;    /* position in the table: for side tables of a floor, never for switches */
};
/* Does the op read values on the host, of operands on that device? Such ops are neither captured nor parts of programs. */
static inline bool rp__op_syncs(const rp__op *op, rp_device device) {
    return (op->flags & RP_OP_SYNC) && !((op->flags & RP__OP_LAUNCHED) && device.type == RP_DEVICE_CPU);
}
/* Attribute k as the rules of the row count them: without the number that stands for an operand in a Scalar form. */
static inline const rp_attr *rp__call_attr(const rp__call *c, unsigned k) {
    return &c->attrs[k + (c->op->scalar_operand != 0)];
}
const rp__op *rp__op_find(const char *name); /* NULL when unknown */
size_t rp__op_table_count(void);
const rp__op *rp__op_table_at(size_t index);

/* Builtin rows that code knows one by one, by name; a name without a row does not link. Everything else is asked of the row. */
#define RP__OP(name) (&rp__row_##name)
extern const rp__op rp__row_abs, rp__row_add, rp__row_add_scalar, rp__row_attention_place, rp__row_bmm, rp__row_cat,
    rp__row_clone, rp__row_conv2d, rp__row_copy, rp__row_copy_, rp__row_detach, rp__row_div_scalar, rp__row_empty,
    rp__row_eq, rp__row_expand, rp__row_fill, rp__row_full, rp__row_linear, rp__row_lt_scalar, rp__row_mul,
    rp__row_mul_scalar, rp__row_native_dropout, rp__row_ne, rp__row_neg, rp__row_permute, rp__row_rand, rp__row_recur,
    rp__row_relu, rp__row_scatter_add, rp__row_scatter_max, rp__row_scatter_min, rp__row_scatter_mul,
    rp__row_scatter_set, rp__row_select, rp__row_select_scatter, rp__row_slice, rp__row_slice_scatter, rp__row_sub,
    rp__row_to_dtype, rp__row_unsqueeze, rp__row_view;
size_t rp__op_builtin_count(void); /* of the table: those of the user follow */

/* ---- dispatch */
/* For callers that build a flat `in` of RP__MAX_IN entries: appends tensor parameter `param` of n tensors. false when it does not
   fit; rp__call_too_long then reports that and fills the outputs. */
bool rp__call_add_list(rp__call *call, rp_tensor **flat, unsigned param, rp_tensor *const *tensors, size_t n);
rp_status rp__call_too_long(rp__call *call);
rp_status rp__call_bad_option(rp__call *call,
                              const char *name); /* the same, of an option that is not what the op takes */
/* The one entry. Checks handles, fills call->out (error tensors on failure), returns the status. */
rp_status rp__dispatch(rp__call *call);

/* Layers of a thread, in this order from the top; each may be absent. A layer handles a call and passes it on (perhaps changed)
   with rp__dispatch_below. Installed and removed by the floor that owns it. */
typedef enum rp__layer_kind {
    RP__LAYER_AUTOCAST,
    RP__LAYER_AUTOGRAD,
    RP__LAYER_FUNCTIONALISE,
    RP__LAYER_TRACE,
    RP__LAYER_VERIFY,
    RP__LAYER_COUNT
} rp__layer_kind;
typedef struct rp__layer {
    rp_status (*handle)(struct rp__layer *self, rp__layer_kind at, rp__call *call);
} rp__layer;
rp__layer *rp__layer_set(rp__layer_kind kind,
                         rp__layer *layer); /* of the calling thread; NULL removes; returns the old one */
rp_status rp__dispatch_below(rp__layer_kind at, rp__call *call); /* continues below layer `at` */
/* Default layers of new threads (autograd). */
void rp__layer_default(rp__layer_kind kind, rp__layer *layer);

/* The end of the chain: infers, allocates outputs, lowers, launches. Also used by floor 6 to lower one op at a time. */
rp_status rp__execute(rp__call *call);
/* infer (or view) only, for tracing: metas of the outputs. */
rp_status rp__op_infer(const rp__call *call, rp__meta *out);
rp_status rp__op_view(const rp__call *call, rp__meta *out, rp__view *view); /* of views, with the geometry */

/* For tracing, of an op in place: what executing it would refuse of the memory that it writes. */
rp_status rp__op_check_written(const rp__call *call);

/* Counters that a call of a random op reserves (generator.h), without running it: call->out are handles of the result's type.
   Sizes may be symbols. */
rp_status rp__op_counters(const rp__call *call, rp_dim *out);

/* Error with op name and all operand shapes: "add: <text> (float32 (2, 3), int64 (4))"; rp__fail adds the call site. */
rp_status rp__op_error(const rp__call *call, rp_status status, const char *format, ...) RP__PRINTF(3, 4);

#endif
