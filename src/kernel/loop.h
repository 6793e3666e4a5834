/* Form 3: the loop kernel. A DAG of primitive values over named axes, with loads, stores and reductions over some of the axes.
   Softmax, layer norm, cross-entropy, Adam, a cast and a strided copy are all one of these.

   A kernel is a pair:
     rp__dag   what is computed: immutable, hash-consed, counted, shared by all calls with the same expression and dtypes;
     rp__space where: the dims of each axis with their extents, and for every access its base address and one stride a dim, all
               given at launch.
   An axis is a class of dims in the same role: how many dims it has is the space's, so a 2-D and a 5-D add are one DAG. Every
   access, value and store has a mask of the axes along which it may vary: without an axis in its mask it is the same for all of
   that axis. An access may have windows: dims of memory with bounds, whose place is an affine function of the axes over a divisor.
   REDUCE removes axes from a mask, SCAN (prefix sums and the like) keeps the ones it runs along. What a template of a backend can run (rows: one set of reduced axes) is a property
   of the DAG that the template asks for, see rp__dag.rows.
   Sizes, strides, addresses, scalars and seeds are never part of a DAG. A backend's key is (DAG, space class), see
   rp__space_class. The phases of a kernel are not written down: a value that (transitively) reads a REDUCE lives in a later
   phase than that reduction (rp__node.phase). A backend loops over the reduced dims once a phase, or keeps the row in
   registers; both give the same bits because every value is a pure function of its inputs.

   CONTRACT is the sum of products that linear, bmm and convolutions are. It is not a REDUCE of a MUL: its order is that of
   product.h, which is its tag. Two values may be one kernel where the order that the one has eagerly is that of the node.

   Numbers contract: the order of a reduction is a function of the extent R of its axes alone, their elements in row-major order. On the CPU: element i belongs to
   chunk i / RP__CHUNK and in it to virtual lane i % RP__LANES; a lane accumulates its elements in rising order from the
   identity; the lanes of a chunk combine as a halving tree (lane j with j + LANES/2, then LANES/4, ...); chunks combine as a
   balanced binary tree: neighbours 2k and 2k + 1 level by level, an odd last one passes up (rp__tree_push in tree.h says it
   in code; it needs one partial a level). A SCAN goes by blocks of RP__SCAN_BLOCK elements: in a block each element combines
   with the one before; whole blocks of a chunk, and then whole chunks, combine from left to right; a result is (what lies before
   its block) combined with (its place in the block). CUDA kernels have orders of their own, again functions of R alone. */
#ifndef RP_KERNEL_LOOP_H
#define RP_KERNEL_LOOP_H

#include "core/arena.h"
#include "core/dtype.h"
#include "core/hash.h"
#include "core/text.h"
#include "device/launch.h"
#include "kernel/schedule.h"
#include "tensor/tensor.h"

struct rp__device;
struct rp__launch_buffer;
struct rp__random_draw;

enum { RP__LANES = 32, RP__CHUNK = 8192, RP__SCAN_BLOCK = 64 };

typedef enum rp__prim {
#define RP_PRIM(name, arity, class) RP__##name,
#include "kernel/prims.def"
    RP__PRIM_COUNT,
    /* nodes that are not arithmetic */
    RP__LOAD =
        RP__PRIM_COUNT, /* access `access`; a: element offset node (i64) or none, b: predicate node (bool) or none (false: 0, memory untouched) */
    RP__IOTA, /* i64: sum over dims of index * stride of access `access`, plus its base: loop indices, linear element numbers */
    RP__INSIDE, /* bool: are the places of all windows of access `access` whole numbers inside their bounds? */
    RP__CONST,  /* imm, in the node's dtype */
    RP__SCALAR, /* run-time scalar number `access` of the launch, in the node's dtype */
    RP__REDUCE, /* imm.i: rp__reduce_kind; a: value; over: the axes that it removes */
    RP__SCAN, /* imm.i: rp__scan_kind; a: value; over: the axes that it runs along, their elements in row-major order */
    RP__CONTRACT, /* imm.i: rp__order (product.h); a, b: values; over: the axes along which it adds up a * b, in the node's dtype */
    RP__NODE_COUNT
} rp__prim;

typedef enum rp__reduce_kind {
    RP__REDUCE_SUM,
    RP__REDUCE_MAX,
    RP__REDUCE_MIN,
    RP__REDUCE_PROD,
    RP__REDUCE_ANY,
    RP__REDUCE_ALL
} rp__reduce_kind;
/* SUM and PROD accumulate f32 in f32 (by lanes), f64 in f64, integers and bool in i64 (the result's dtype then). ANY and ALL
   take and give bool, and so do MAX and MIN of bool. MAX and MIN propagate NaN. Empty rows give the identity
   (MAX: -inf or the least integer). */

typedef enum rp__scan_kind {
    RP__SCAN_SUM,
    RP__SCAN_PROD,
    RP__SCAN_MAX,
    RP__SCAN_MIN,
    RP__SCAN_LOGADDEXP,
    RP__SCAN_KINDS
} rp__scan_kind; /* inclusive; types as for reductions, LOGADDEXP of floats; a bool is u8 */

typedef uint16_t rp__val; /* index of a node */
typedef uint8_t rp__axes; /* a mask: bit x is axis x */
enum { RP__DAG_MAX_AXES = 8 };
/* The axes that builders name where one division of the dims is enough: rows, and what lies along a row. */
enum { RP__ALONG_ROWS = 1u << 0, RP__ALONG_ROW = 1u << 1, RP__ELEMENTS = RP__ALONG_ROWS | RP__ALONG_ROW };
#define RP__NO_VAL ((rp__val)0xffff)
enum { RP__ACCESS_WINDOWS = 8, RP__DAG_WINDOWS = 16 }; /* of an access, of a DAG */
enum { RP__DAG_MAX_NODES = 4096, RP__DAG_MAX_ACCESSES = 64, RP__DAG_MAX_SCALARS = 64 };
/* What every backend takes in one kernel: results of reductions, aligned, and of scans. */
enum { RP__LOOP_SUM_BYTES = 128, RP__LOOP_SCAN_BYTES = 64 };

typedef struct rp__node {
    uint8_t op;    /* rp__prim */
    uint8_t dtype; /* of the value: F32, F64, I32, I64, U8, BOOL */
    uint8_t phase; /* number of reductions on the longest path to it */
    rp__axes axes; /* along which it may vary */
    rp__val a, b, c;
    uint16_t access; /* LOAD, IOTA: access; SCALAR: scalar number */
    rp__axes over;   /* REDUCE, SCAN */
    union {
        int64_t i; /* DIV, RECIP, RSQRT, EXP, TANH, SIGMOID of f32: 1 where the value may be approximate (relax.h) */
        double f;
    } imm;
} rp__node;

typedef enum rp__access_kind {
    RP__ACCESS_READ,
    RP__ACCESS_WRITE,
    RP__ACCESS_READ_WRITE,
    RP__ACCESS_IOTA
} rp__access_kind;
typedef struct rp__access {
    uint8_t kind;    /* rp__access_kind */
    uint8_t dtype;   /* storage dtype in memory */
    rp__axes axes;   /* strides along the dims of others are all 0 */
    uint8_t windows; /* dims of memory that are walked by rp__space_window, beside those that have strides */
} rp__access;

typedef enum rp__store_mode {
    RP__STORE_SET,
    RP__STORE_ADD /* atomic where lanes may collide: flag nondeterministic on CUDA */
} rp__store_mode;
typedef struct rp__store {
    uint16_t access;
    rp__val value;     /* converted to the access's dtype */
    rp__val offset;    /* element offset node (i64), or RP__NO_VAL */
    rp__val predicate; /* bool; false: not stored */
    uint8_t mode;
    rp__axes axes; /* once for each place along these: those of the access */
} rp__store;

typedef struct rp__dag {
    atomic_uint refs;
    rp__hash key;
    uint16_t n_nodes, n_accesses, n_scalars, n_stores;
    uint16_t n_phases; /* 1 + largest phase */
    uint16_t n_windows;
    uint8_t n_axes;
    bool scans;
    /* With a CONTRACT, of which there is one at most: what follows it, over its elements, as a DAG of points. Its access 0 reads
       the sum; access e > 0 is access rest_access[e] of this DAG. NULL: no CONTRACT. */
    struct rp__dag *rest;
    const uint16_t *rest_access;
    /* What makes each of its factors, over the dims along which that varies, likewise; access 0 stores the factor in the type of
       the sums. NULL: the factor is a plain load. */
    struct rp__dag *before[2];
    const uint16_t *before_access[2];
    rp__axes ordered; /* that reductions and scans run over: their dims keep their order */
    /* Rows: every reduction and scan runs over the same axes, and every access and store has all of these or none. `inner` are those axes,
       the last ones; without reductions those that stores lack. Others are outer. Templates of points and rows ask for it. */
    bool rows;
    rp__axes inner;
    bool random;      /* has PHILOX nodes: the launch carries a draw */
    bool checks;      /* has CHECK_INDEX or integer division nodes: the launch carries an error record and tag */
    uint16_t n_draws; /* 1 + largest draw number */
    const uint8_t *scalar_dtypes; /* of each scalar, RP_DTYPE_NONE for one that no node reads */
    const rp__node *nodes;        /* topological: sources before users */
    const rp__access *accesses;
    const rp__store *stores;
    void *backend[2]; /* compiled forms by device type; owned by the backends (loop_backend.destroy) */
} rp__dag;

/* ---- building. Nodes are hash-consed and folded (x+0 is not folded: -0.0; constants of integers are). A builder fails
   sticky: after a failure every call returns RP__NO_VAL and finish returns NULL with the thread's error set. */
typedef struct rp__dag_builder rp__dag_builder;
rp__dag_builder *rp__dag_new(void); /* NULL and a sticky error when out of memory; all functions accept NULL */
uint16_t rp__dag_access(rp__dag_builder *b, rp__access_kind kind, rp_dtype dtype, rp__axes axes);
/* Read or iota. Where a place is outside a load gives 0 and touches no memory, an iota 0. */
uint16_t rp__dag_access_windows(rp__dag_builder *b, rp__access_kind kind, rp_dtype dtype, rp__axes axes,
                                unsigned windows);
uint16_t rp__dag_scalar(rp__dag_builder *b); /* a new run-time scalar */
rp__val rp__dag_load(rp__dag_builder *b, uint16_t access, rp__val offset,
                     rp__val predicate); /* value in the compute type */
rp__val rp__dag_iota(rp__dag_builder *b, uint16_t access);
rp__val rp__dag_inside(rp__dag_builder *b, uint16_t access);
rp__val rp__dag_const(rp__dag_builder *b, rp_dtype compute, rp_scalar value);
rp__val rp__dag_scalar_value(rp__dag_builder *b, uint16_t scalar, rp_dtype compute); /* one dtype a scalar */
rp__val rp__dag_op(rp__dag_builder *b, rp__prim op, rp__val a, rp__val x,
                   rp__val c); /* operands must have equal types (WHERE: bool, T, T). CHECK_INDEX: c = 1 counts negative
                                  indices from the end, 0 or RP__NO_VAL does not. Unused operands: RP__NO_VAL. */
rp__val rp__dag_op_imm(rp__dag_builder *b, rp__prim op, rp_dtype dtype, rp__val a, int64_t imm); /* ROUND, PHILOX... */
/* A node as a DAG has it, its operands those of the builder: for who makes one DAG of another. Axes and phase follow anew. */
rp__val rp__dag_node(rp__dag_builder *b, rp__node n);
rp__val rp__dag_cast(rp__dag_builder *b, rp__val a, rp_dtype to); /* to f16, bf16: CAST to f32 then ROUND */
rp__val rp__dag_reduce(rp__dag_builder *b, rp__reduce_kind kind, rp__val a, rp__axes over);
rp__val rp__dag_scan(rp__dag_builder *b, rp__scan_kind kind, rp__val a, rp__axes over);
/* The sum of a * x over the axes, accumulated in their type, added up as `order` says (product.h). Nothing but what they are computed from
   varies along those axes. */
rp__val rp__dag_contract(rp__dag_builder *b, rp__val a, rp__val x, rp__axes over, uint32_t order);
void rp__dag_store(rp__dag_builder *b, uint16_t access, rp__val value);
void rp__dag_store_at(rp__dag_builder *b, uint16_t access, rp__val value, rp__val offset, rp__val predicate,
                      rp__store_mode mode);
rp_dtype rp__dag_dtype(const rp__dag_builder *b, rp__val v);
/* Frees the builder. Dead nodes are dropped; axes that all accesses have alike and that the same reductions remove become one,
   and they are numbered anew: those that no reduction removes come first, then by accesses. Equal DAGs are one object (interned).
   map (NULL: not wanted): the number of each axis of the builder, RP__DAG_MAX_AXES for one without a use. */
rp__dag *rp__dag_finish(rp__dag_builder *b);
rp__dag *rp__dag_finish_map(rp__dag_builder *b, uint8_t map[RP__DAG_MAX_AXES]);
/* With rows: is it the same along one? */
static inline bool rp__dag_is_row(const rp__dag *d, rp__axes axes) { return d->inner && !(axes & d->inner); }
void rp__dag_abandon(rp__dag_builder *b);
rp__dag *rp__dag_retain(rp__dag *d);
void rp__dag_release(rp__dag *d);
/* About what a node costs, where an addition is 1. */
unsigned rp__node_cost(const rp__node *n);
void rp__dag_text(const rp__dag *d, rp__text *out); /* one node a line; docs/developers/forms.md */

/* ---- launching */
enum { RP__SPACE_MAX_DIMS = RP_MAX_DIMS };
typedef struct rp__space_access {
    void *base; /* address for index 0 (IOTA: NULL; value in iota_base) */
    int64_t iota_base;
    struct rp__storage *storage;        /* for slots; NULL for IOTA */
    int64_t begin, end;                 /* byte range of the storage that may be touched */
    int64_t stride[RP__SPACE_MAX_DIMS]; /* elements; dims of axis 0 first */
} rp__space_access;
/* Where a window is: (sum over dims of index * factor - pad) / divisor, if the division leaves no rest and 0 <= place < size. The
   access is place * stride elements further on. Pools, convolutions and pads read by windows with divisor 1; the gradient of a
   window that moves by steps divides by the step. */
typedef struct rp__space_window {
    int64_t size, stride, pad, divisor;
    int64_t factor[RP__SPACE_MAX_DIMS];
} rp__space_window;
typedef struct rp__space {
    uint8_t dims[RP__DAG_MAX_AXES]; /* of each axis; more axes than the DAG has belong to its last */
    int64_t extent[RP__SPACE_MAX_DIMS];
    uint16_t n_accesses, n_scalars;
    const rp__space_access *accesses;
    rp__space_window *windows;    /* of all accesses, one access after the other; DAGs without: NULL */
    const rp_scalar *scalars;     /* stored in the node's dtype by the backend */
    struct rp__random_draw *draw; /* DAGs with random; one for all draws of the DAG in the order of draw numbers */
    uint16_t n_draws;
    bool
        lanes; /* CPU: RP__LANES walks, one of the rows r % RP__LANES == k each; what adding stores add to begins as 0 and lies, for walk
                   k, k times the length of a row further on. So it has the partial sums over rows in the order of a reduction */
    const rp__schedule *how; /* NULL: as the backend chooses */
    const char *op, *site;
} rp__space;

static inline unsigned rp__space_dims(const rp__space *s) {
    unsigned n = 0;
    for (unsigned x = 0; x < RP__DAG_MAX_AXES; x++) n += s->dims[x];
    return n;
}
/* Dims of a DAG with rows: the last of them lie along a row, the others before them. */
static inline unsigned rp__space_inner(const rp__dag *dag, const rp__space *s) {
    unsigned n = 0;
    for (unsigned x = 0; x < dag->n_axes; x++) n += dag->inner >> x & 1u ? s->dims[x] : 0;
    return n;
}
static inline unsigned rp__space_outer(const rp__dag *dag, const rp__space *s) {
    return rp__space_dims(s) - rp__space_inner(dag, s);
}
/* Elements of memory from one index of dim d to the next, as far as windows stay inside. */
int64_t rp__space_step(const rp__dag *dag, const rp__space *s, const rp__space_access *accesses, unsigned access,
                       unsigned d);
/* Merges dims of an axis that all accesses walk alike, drops extent-1 dims, orders the dims of an axis that nothing is added up
   along by stride where no IOTA forbids it (results do not depend on it). In place on the caller's copies, windows too. */
void rp__space_collapse(const rp__dag *dag, rp__space *s, rp__space_access *accesses);

/* The same for few elements that lie one after the other in every access, or are one value for all of them; no IOTA, no draw. */
enum { RP__FLAT_ACCESSES = 6 };
typedef struct rp__flat {
    int64_t n;                     /* > 0 */
    char *base[RP__FLAT_ACCESSES]; /* addresses for index 0 */
    uint64_t still;                /* bit a: access a is one value */
    uint16_t n_accesses, n_scalars;
    const rp_scalar *scalars;
} rp__flat;

struct rp__launch_buffer;
typedef struct rp__ready rp__ready;
typedef struct rp__loop_backend {
    /* Fills `out` with a launch of dag over space. Parameter words and slots are written into caller memory of the sizes given
       by limits; nothing is allocated on the hot path. RP_OK with out->kernel NULL: nothing to do (an empty space without row
       stores of an empty reduction). */
    rp_status (*bind)(struct rp__device *d, rp__dag *dag, const rp__space *space, struct rp__launch_buffer *buffer,
                      rp__launch *out);
    /* Text of the generated source, for dump; NULL when it has none. */
    rp_status (*source)(struct rp__device *d, rp__dag *dag, const rp__space *space, rp__text *out);
    void (*destroy)(rp__dag *dag); /* frees dag->backend[this device type] */
    /* What rp__loop_launch calls instead of bind and rp__launch_on, for a backend that runs some kernels as several launches
       (CUDA: few long rows), or without a record (CPU: tiny ones). NULL: one launch each. */
    rp_status (*launch)(struct rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space);
    /* Runs it before it returns, without a record; false: not this one, and nothing was done. NULL: none. Callers see to it that
       there is no kernel log. */
    bool (*launch_flat)(struct rp__device *d, rp_stream *s, rp__dag *dag, const rp__flat *flat);
    /* What bind finds for a space, kept for launches that differ from it in addresses, op and site only, and run by the
       thread that made it. NULL, without a sticky error: not kept. ready_run runs it before it returns, on a stream of which
       rp__launch_runs_at_once holds, where there is no kernel log; false: it is out of date, and nothing was done. base: an
       address an access, those of iotas are not looked at. */
    rp__ready *(*ready_new)(struct rp__device *d, rp__dag *dag, const rp__space *space);
    bool (*ready_run)(rp__ready *r, rp_stream *s, char *const *base, const char *op, const char *site,
                      rp_status *status);
    void (*ready_free)(rp__ready *r);
    /* rp__loop_bind_many on this device. RP_ERROR_UNAVAILABLE without a sticky error: too many groups for one launch, or
       none of this kind; rp__loop_launch_many then halves the list, down to single binds. NULL: always single binds. */
    rp_status (*bind_many)(struct rp__device *d, rp__dag *dag, const rp__space *shared,
                           const rp__space_access *accesses, const int64_t *extents, size_t n_groups,
                           struct rp__launch_buffer *buffer, rp__launch *out);
    /* One launch of the DAG over several spaces. RP_ERROR_UNAVAILABLE without a sticky error: not these. NULL: never. */
    rp_status (*bind_parts)(struct rp__device *d, rp__dag *dag, const rp__space *const *spaces, size_t n,
                            struct rp__launch_buffer *buffer, rp__launch *out);
    /* Between the two, launches that this thread binds, library ops' too, are recorded only: the device may put off compiling
       their kernels and do it side by side at the end. keep false: what was recorded is dropped. NULL: nothing to gain. */
    rp_status (*batch_begin)(struct rp__device *d);
    rp_status (*batch_end)(struct rp__device *d, bool keep);
    /* Schedules that may be better than the backend's own choice for the space, at most `room`; free: also those that add up in
       another order. NULL: there are none. */
    size_t (*schedules)(struct rp__device *d, rp__dag *dag, const rp__space *space, bool free, rp__schedule *out,
                        size_t room);
    /* What times measured on the device hold for: its model, its driver, its threads. */
    void (*machine)(struct rp__device *d, rp__text *out);
    /* The schedule that the space's wishes come to, in words: "row, 128 threads". */
    void (*schedule_text)(struct rp__device *d, rp__dag *dag, const rp__space *space, rp__text *out);
    /* What a kernel of this device gains by (bit rp__freedom of kernel/relax.h). NULL: nothing. */
    unsigned (*freedoms)(void);
    /* Recorded launches of the DAG are played back often: a better form of its kernel pays, in the background or, with `wait`,
       before this returns. Its launches use it once it is there. Nothing fails. NULL: there is one form. */
    void (*hot)(rp__dag *dag, bool wait);
    /* Why the better form could not be made, once that is known; NULL: nothing went wrong. The text lives as long as the DAG. NULL:
       nothing can. */
    const char *(*fault)(const rp__dag *dag);
} rp__loop_backend;
extern const rp__loop_backend rp__cpu_loops;  /* kernel/cpu/backend.c */
extern const rp__loop_backend rp__cuda_loops; /* kernel/cuda/loops.c */

/* Limits of one launch; untouched pages of the buffer cost nothing. */
enum { RP__MAX_WORDS = 16384, RP__MAX_SLOTS = 4096 };
typedef struct rp__launch_buffer { /* caller memory for one launch, per thread and reused */
    uint64_t words[RP__MAX_WORDS];
    rp__slot slots[RP__MAX_SLOTS];
} rp__launch_buffer;
rp__launch_buffer *rp__launch_buffer_get(void); /* the thread's own; NULL and a sticky error when out of memory */

/* The canonical parameter words of a launch, the same on every device, from words[first] on:
     [address of each access; IOTA: its base] [extents] [strides of each access, one a dim, in elements]
     [size, stride, pad, divisor, one factor a dim of each window] [scalars, 64-bit patterns in the dtype of their node: f32 in the low half, integers sign-extended]
     [state pointer, seed, inner of each draw] [error record, error tag if dag->checks].
   Slots name the address words. (The state of a captured draw lives outside pools and never moves.) */
typedef struct rp__space_layout { /* word index of the first of each group */
    uint32_t address, extent, stride, window, scalar, draw, error, end;
} rp__space_layout;
void rp__space_layout_of(const rp__dag *dag, unsigned dims, uint32_t first, rp__space_layout *out);
/* Fills words and slots of `buffer`, and n_words, n_slots, words, slots, op and site of `out`. Checks the space against the
   DAG. RP_ERROR_INTERNAL when they do not fit each other. */
rp_status rp__space_words(struct rp__device *d, const rp__dag *dag, const rp__space *space, uint32_t first,
                          struct rp__launch_buffer *buffer, rp__launch *out);
uint64_t rp__scalar_word(rp_scalar value, rp_dtype compute);
rp_dtype rp__dag_scalar_dtype(const rp__dag *dag, uint16_t scalar); /* RP_DTYPE_NONE: not read */

/* kernel_log.c: tells the thread's rp_kernel_log, if any. */
extern RP__TLS_FAST rp_kernel_log *rp__kernel_log_set;
void rp__kernel_log_tell(struct rp__device *d, rp__dag *dag, const rp__space *space);

/* bind + rp__launch_on, or what the backend does instead. */
rp_status rp__loop_launch(struct rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space);
rp_status rp__loop_launch_one(struct rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space);

/* Between begin and end this thread's launches of points on the device and stream are gathered; the end launches them, neighbours with the same
   DAG in one launch where the device can. None may need what another stores. status: what happened between; not RP_OK: nothing is
   launched, and it is returned. */
typedef struct rp__loop_parts {
    struct rp__device *device;
    rp_stream *stream;
    struct rp__loop_part *part;
    size_t n, capacity;
} rp__loop_parts;
void rp__loop_parts_begin(rp__loop_parts *p, struct rp__device *d, rp_stream *s);
rp_status rp__loop_parts_end(rp__loop_parts *p, rp_status status);

/* Several equal problems in one launch (multi-tensor: Adam over all parameters): the DAG must have one dim, no reduction;
   accesses come in groups of dag->n_accesses, extents one a group; scalars are shared. */
rp_status rp__loop_launch_many(struct rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *shared,
                               const rp__space_access *accesses, const int64_t *extents, size_t n_groups);
rp_status rp__loop_bind_many(struct rp__device *d, rp__dag *dag, const rp__space *shared,
                             const rp__space_access *accesses, const int64_t *extents, size_t n_groups,
                             rp__launch_buffer *buffer, rp__launch *out);

#endif
