/* Fusion: which nodes of a functional graph become one kernel. The plan is made over concrete sizes (specialise.c has replaced
   symbols); kernels themselves carry no sizes, so equal plans of different sizes share them.

   A group computes over *axes*. Every value of it has a map: for each of its dims the axes, outermost first, whose combined
   index runs through that dim; a broadcast or size-1 dim has none. Views between members change maps only. Reshapes split
   axes. What a map cannot say (a part of a tensor, a reshape across dims that others keep apart) is an edge that is not
   fused, with its reason. */
#ifndef RP_COMPILE_FUSE_H
#define RP_COMPILE_FUSE_H

#include "compile/rewrite.h"
#include "ops/lower.h"

enum { RP__AXES = RP_MAX_DIMS };

typedef struct rp__axis_map {
    uint8_t ndim;
    uint8_t begin[RP_MAX_DIMS + 1]; /* axes of dim d: axis[begin[d]] .. axis[begin[d + 1] - 1] */
    uint8_t axis[RP__AXES];
} rp__axis_map;

/* What a kernel has to hold of a DAG: nodes; of those, the ones that are the same all along a row, constants and scalars aside;
   reductions and scans of values of up to 32 bits and of more. */
typedef struct rp__dag_extent {
    uint16_t nodes, row, sums[2], scans[2];
    uint16_t cost; /* of all its nodes but loads (rp__node_cost) */
} rp__dag_extent;

/* An operand of a product that the product's kernel may make itself, of what a loop would make it. */
typedef struct rp__fuse_factor {
    uint32_t most;                       /* that an element of it may cost; 0: it must lie in memory */
    uint8_t operand, along[RP_MAX_DIMS]; /* the dim of the space that each of its dims is; RP__LW_NO_DIM: none */
} rp__fuse_factor;

/* One node, as the fuser sees it. */
typedef struct rp__fuse_node {
    uint32_t node;
    enum {
        RP__FUSE_LOOP,
        RP__FUSE_COPY /* ASSIGN */,
        RP__FUSE_LIBRARY,
        RP__FUSE_PRODUCT, /* a library op that what is computed of each of its elements may join: its order is that of a CONTRACT */
        RP__FUSE_REGION,
        RP__FUSE_NOTHING /* no work: empty */
    } kind;
    uint8_t ndim; /* loop: its space */
    rp_dim size[RP_MAX_DIMS];
    uint32_t inner;            /* ROWS, INDEXED: mask of inner dims */
    bool reversed;             /* its rows are walked from their ends */
    uint64_t memory_operands;  /* operands that are read at computed places: they must lie in memory */
    uint32_t moves;            /* dims of the space along which those, or numbers of the place, are others */
    rp__fuse_factor factor[2]; /* PRODUCT */
    uint8_t n_factors;
    uint64_t plain_operands; /* operands that are read element by element (perhaps too) */
    uint64_t front_operands; /* of those: their dims are the first of the space, not the last */
    uint32_t joined;         /* bit d: dims d and d + 1 of the space are one dim of the result */
    bool combines;           /* has reductions or scans, be it of rows of one element without an inner dim */
    bool sums;               /* a sum of floats over its inner dims, and what follows from that alone */
    bool opaque;             /* stores at computed places: results exist in memory only */
    uint8_t n_draws;
    uint32_t n_scalars, n_windows;
    rp__dag_extent extent;
    rp_tensor **in, **out; /* stand-ins */
    uint32_t group;
} rp__fuse_node;

/* A group is members of kind LOOP and COPY, with one PRODUCT at most, before which its factors may be made; or one other node; or a chain (chain.c): matrix
   products, each with the loops that follow it, each reading the rows of the one before, that the device runs in one launch. */
typedef struct rp__fuse_group {
    uint32_t *members; /* indices into rp__fusion.nodes, in program order */
    uint32_t n_members;
    uint32_t version;              /* changes with its members */
    struct rp__group_space *space; /* of the members, if it was asked for */
    uint32_t partial;              /* of a space with column sums: buffer of their lanes */
    bool dead;                     /* merged into another */
    bool
        chain; /* products, each before the loops that follow it, that the device's library runs as stages of one launch */
} rp__fuse_group;

typedef struct rp__unfused_edge {
    uint32_t producer, consumer; /* fuse nodes */
    const char *reason;          /* a name of reasons.def */
} rp__unfused_edge;

typedef struct rp__fusion {
    const rp_ir *ir;
    bool on_gpu;
    rp__arena arena;
    rp__fuse_node *nodes;
    uint32_t n_nodes;
    uint32_t *node_of; /* graph node -> fuse node, or RP__IR_NONE */
    rp__fuse_group *groups;
    uint32_t n_groups;
    uint32_t **succ; /* per fuse node: nodes that must come later (data and memory) */
    uint32_t *n_succ;
    bool *result_storage; /* per storage: a result lies in it */
    uint32_t **readers;   /* per root value: fuse nodes that read it, through views */
    uint32_t *n_readers;
    rp__unfused_edge *unfused;
    uint32_t n_unfused;
    size_t unfused_capacity;
} rp__fusion;

/* none: every node by itself. d: whose library says in which order products add up; NULL: they stay by themselves. */
rp_status rp__fuse(const rp_ir *ir, struct rp__device *d, bool none, rp__fusion *out);
void rp__fusion_free(rp__fusion *f);
/* What rp__fuse begins with: nodes and their order, each node a group. extents: NULL, or the extent of each fuse node, found
   when the same graph was fused for other sizes: lowerings are asked for their places only. */
rp_status rp__fuse_begin(const rp_ir *ir, struct rp__device *d, const rp__dag_extent *extents, rp__fusion *out);
/* May these nodes, once a group of the same graph for other sizes and no chain, be one for the sizes of f? Nothing is asked about
   cycles. */
bool rp__fuse_holds(const rp__fusion *f, rp__fuse_group *g);
/* Is one kernel for them slow, where it is known? The answer may change with the class of a size, or of a number of elements. */
bool rp__fuse_runs_slowly(const rp__fusion *f, const rp__fuse_group *g);
unsigned rp__fuse_size_class(int64_t size);

/* The factor that operand k of a node is; NULL: none. */
static inline const rp__fuse_factor *rp__fuse_factor_of(const rp__fuse_node *n, uint32_t k) {
    for (unsigned i = 0; i < n->n_factors; i++)
        if (n->factor[i].operand == k) return &n->factor[i];
    return NULL;
}
/* What the lowering of a loop op asks for: the space, operands, out's other fields. Lives in the arena. */
rp_status rp__fuse_look(const rp_ir *ir, uint32_t node, rp__arena *arena, rp__fuse_node *out);

/* Row-major without gaps, from the start of its storage. */
static inline bool rp__ir_is_row_major(const rp__ir_value_info *v) {
    rp_dim step = 1;
    for (unsigned d = v->meta.ndim; d-- > 0;) {
        if (v->meta.size[d] != 1 && v->stride[d] != step) return false;
        step *= v->meta.size[d];
    }
    return v->offset == 0;
}
static inline bool rp__fuse_is_matmul(const rp__fusion *f, uint32_t k) { /* a chain may have it */
    const rp__ir_node *n = &f->ir->nodes[f->nodes[k].node];
    return (f->nodes[k].kind == RP__FUSE_LIBRARY || f->nodes[k].kind == RP__FUSE_PRODUCT) &&
           (rp__ir_is_op(n, RP__OP(bmm)) || rp__ir_is_op(n, RP__OP(linear)));
}

/* ---- fuse_paths.c: which merges would make a cycle */
typedef struct rp__fuse_found {
    uint64_t place;
    uint32_t group;
} rp__fuse_found;
typedef struct rp__fuse_end { /* of a search: what it has found, itself first, and the edge that is next */
    rp__fuse_found *found;
    uint32_t n, at, member, edge;
} rp__fuse_end;
typedef struct rp__fuse_paths {
    const rp__fusion *f;
    uint32_t *next, *before;     /* groups in an order that dependencies agree with, a ring with its ends at n_groups */
    uint64_t *place;             /* per group: larger than those before it */
    uint32_t *pred, *pred_begin; /* per node: nodes that must come earlier, those of k from pred_begin[k] */
    uint32_t *stack, *mark, stamp; /* scratch of searches, per group */
    rp__fuse_end ends[2];          /* of the last one: from the first group on, and from the second back */
    unsigned complete;             /* the one that had no more edges */
} rp__fuse_paths;
rp_status rp__fuse_paths_begin(rp__fuse_paths *p, const rp__fusion *f);
void rp__fuse_paths_end(rp__fuse_paths *p);
/* Is there a way from one of the groups to the other over at least one more? */
bool rp__fuse_path_around(rp__fuse_paths *p, uint32_t a, uint32_t b);
/* The same, and true where so many edges do not tell. */
bool rp__fuse_path_unless(rp__fuse_paths *p, uint32_t a, uint32_t b, uint32_t edges);
/* There is none: group b is about to become part of group a. */
void rp__fuse_paths_merge(rp__fuse_paths *p, uint32_t a, uint32_t b);

/* Of a group whose space is not theirs. */
void rp__fuse_set_members(rp__fuse_group *g, uint32_t *members, uint32_t n);
/* Group a has these members from now on, group b is gone. */
void rp__fuse_take(rp__fusion *f, uint32_t a, uint32_t b, uint32_t *members, uint32_t n);

/* ---- chain.c */
/* Chains of products that the library of d takes. */
rp_status rp__fuse_chains(rp__fusion *f, struct rp__device *d);
/* Is the group still one that the library of d takes, for the sizes of f? */
rp_status rp__fuse_chain_holds(const rp__fusion *f, struct rp__device *d, const rp__fuse_group *g, bool *holds);

/* Where the stage of a chain that begins at member `first` ends. */
uint32_t rp__chain_end(const rp__fusion *f, const uint32_t *members, uint32_t n, uint32_t first);
/* What product `next` reads, as it lies, of the stage that members [first, n) are, and nothing else of members [0, n); RP__IR_NONE, with next so:
   nothing. Else why not, or why the members are no stage; "": failed, with a sticky error. */
const char *rp__chain_rows(const rp__fusion *f, const uint32_t *members, uint32_t n, uint32_t first, uint32_t next,
                           rp__ir_value *rows);

/* The space of a group: axes, which of them are inner, and the map of every value that members touch. */
typedef struct rp__mapped_value {
    rp__ir_value value;
    rp__axis_map map;
} rp__mapped_value;
typedef struct rp__group_space {
    uint8_t n_axes, n_inner;
    bool reversed; /* inner axes are walked from their ends */
    /* Masks of members. columns: they sum over the outer axes, where others reduce over the inner ones; behind: they read nothing of
       the group but what those make. Such a group is two launches: one walks the rows and leaves sums of every RP__LANES-th row,
       the other adds these up, in the order of a reduction, and runs what is behind. */
    uint64_t columns, behind;
    int64_t size[RP__AXES];
    uint8_t order[RP__AXES]; /* outer axes, then inner axes in logical order */
    bool is_inner[RP__AXES];
    rp__mapped_value *values;
    uint32_t n_values;
    size_t values_capacity;
    rp__axis_map *node_map; /* per member */
    uint32_t n_nodes;
    size_t node_capacity;
} rp__group_space;
/* NULL and the space; or the reason why the nodes cannot be one kernel (a name of reasons.def). out-of-memory: "". */
const char *rp__group_space_make(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__group_space *out);
void rp__group_space_free(rp__group_space *s);
extern int64_t rp__column_least,
    rp__column_row_least; /* rows, and elements of each, from which on columns join them; tests: less */
const rp__axis_map *rp__group_map(const rp__group_space *s, rp__ir_value v); /* NULL: not mapped */

/* The group's product; NULL: there is none. */
const rp__fuse_node *rp__fuse_product(const rp__fusion *f, const rp__fuse_group *g);
/* The member that a kernel is named by: the first that has operands, if any has. */
uint32_t rp__fuse_named(const rp__fusion *f, const rp__fuse_group *g);

/* Must the value be stored when `group` has run: is it read by another group, or a result? */
bool rp__fuse_stored(const rp__fusion *f, const uint32_t *members, uint32_t n, rp__ir_value v);

#endif
