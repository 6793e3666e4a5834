/* What the files of the CUDA C emitter share; nobody else includes it. A file a kind of kernel (emit_point.c, emit_tile.c, emit_row.c,
 * emit_short.c, emit_column.c, emit_partial.c) over four that write pieces: emit_value.c one node, load or store; emit_frame.c what
 * kernels open with, indices, vectors; emit_reduce.c lanes and trees; emit_scan.c prefixes. emit.c decides where each node is computed and calls
 * them.
 *
 * Shape of the text: per-element values live in arrays or loop variables v<node>, row values in scalars r<node>; o<access> is
 * the element offset of an access, a<access> its address, b<access> that of a thread's first vector in its row, l<node> a
 * loaded vector, w<store> a vector to store, c<node> the lanes and s<node> the folded result of a reduction, h<node> its
 * shared memory; `p.w` are the parameter words. */
#ifndef RP_KERNEL_CUDA_EMIT_PARTS_H
#define RP_KERNEL_CUDA_EMIT_PARTS_H

#include "kernel/cuda/emit.h"

enum { RP__LEVEL_UNIFORM, RP__LEVEL_ROW, RP__LEVEL_ELEMENT };

/* What follows several sums at once: is a value made of what rp_line has read, of that alone, and kept there? */
enum { RP__LINED_NOT, RP__LINED_ALONE, RP__LINED_KEPT };

typedef struct rp__emitter {
    const rp__dag *dag;
    const rp__cuda_class *c;
    rp__text *out;
    uint32_t n_dims;
    rp__space_layout words;
    const char *at; /* index into a value array: "[e]" */
    uint8_t *level; /* per node: RP__LEVEL_* */
    uint8_t *place; /* per node: the phase whose loop computes it */
    bool *array;    /* per node: kept from one phase to a later one */
    bool *needed;   /* per node: scratch of rp__emit_find_needed */
    uint8_t *stage; /* per node: scans on the longest path to it */
    bool *early;    /* per node: a load that lies in x<node>[w] already */
    uint8_t *lined; /* per node, of several sums at once: RP__LINED_* */
    bool *still;    /* per node: of points, an element value that is the same for all of a vector */
    /* rows that a thread has side by side: row values are arrays r<node>[j] where there are several */
    unsigned columns;
    unsigned along; /* of points: the dim that vectors run along, the last one but behind a product */
    bool recompute; /* looped templates keep nothing between phases */
    bool filled;    /* of ragged rows: all slots have an element */
} rp__emitter;

/* How the threads of a row share it: element (u, j) of thread t is i = (u * threads + t) * span + j, and lane (u % strips) *
 * span + j of the thread takes it; strided, with one strip, i = (u * span + j) * threads + t and lane j. threads * strips * span is P of the order in emit.h. */
typedef struct rp__row_shape {
    unsigned threads, span, strips;
} rp__row_shape;
#define RP__ROW_SHARED(shape) ((shape).threads * (shape).span / 4 + 1)

/* ---- emit.c */
/* Fills e->needed with what the loop of `phase` computes when nothing is kept. */
void rp__emit_find_needed(const rp__emitter *e, unsigned phase);
/* The same with row values that it stores: of reductions, those that a launch of this phase has to fold. */
void rp__emit_find_folded(const rp__emitter *e, unsigned phase);

/* ---- emit_value.c */
bool rp__emit_is_rows(const rp__cuda_class *c); /* a kernel over rows, not over points */
const char *rp__emit_type(unsigned dtype);      /* in memory and in registers: "float", "rp_u16" */
/* Of value v in registers: of 64 bits that are enough (ranges.c) the 32. */
const char *rp__emit_value_type(const rp__emitter *e, rp__val v);
bool rp__emit_is_half(unsigned dtype);       /* a 16-bit float */
const char *rp__emit_suffix(unsigned dtype); /* of prelude functions: "f32" or "f64" */
const char *rp__emit_index_type(const rp__emitter *e);
/* A value written as an operand; literals are written out. */
const char *rp__emit_value(const rp__emitter *e, rp__val v, char buf[64]);
uint32_t rp__emit_extra_word(const rp__emitter *e, unsigned which); /* RP__CUDA_WORD_* */
uint32_t rp__emit_stride_word(const rp__emitter *e, unsigned access, unsigned dim);
/* Kernels over points: do all points read the same element of this access? */
bool rp__emit_is_still(const rp__emitter *e, unsigned access);
/* May the access have a stride along a dim? Where not, the text does not multiply by it, and what does not vary is seen to. */
bool rp__emit_moves(const rp__emitter *e, unsigned access, unsigned dim);
/* Is this load read as whole vectors before the loop over elements? */
bool rp__emit_in_vectors(const rp__emitter *e, const rp__node *n);
/* f, the offset of element i of an access, and here, whether its windows have it. */
void rp__emit_place(const rp__emitter *e, unsigned access);
void rp__emit_early_load(const rp__emitter *e, unsigned node, const char *guard); /* x<node>[w], where it is */
/* `raw`, a value in the storage type of an access, in the type that is computed with. */
void rp__emit_converted(const rp__emitter *e, unsigned access, const char *raw);
/* One per-element or row node. Element nodes are declared here unless they are arrays. guard: NULL, or the condition under which
 * memory may be touched. */
void rp__emit_node(const rp__emitter *e, rp__val v, const char *guard);
void rp__emit_stored(const rp__emitter *e, unsigned access, rp__val v); /* in the storage type of the access */
void rp__emit_store(const rp__emitter *e, const rp__store *s, const char *guard);

/* ---- emit_frame.c */
void rp__emit_signature(const rp__emitter *e, const char *name, uint32_t n_words, unsigned threads);
/* The wait for predecessors, addresses of accesses, uniform values. many: addresses come from a table (emit_point.c). */
void rp__emit_start(const rp__emitter *e, bool many);
/* The same for kernels over rows: then `rows` and, if there are inner dims to walk, R, their extent. */
void rp__emit_rows_start(const rp__emitter *e, bool inner);
/* Row number row_ -> row, live, indices d<dim> and offsets. Idle threads read a valid row and store nothing; exact: there are
   none. */
void rp__emit_row_start(const rp__emitter *e, bool exact);
/* Splits the number `from` into indices over dims [first, first + n): <prefix>0.. ; the outermost gets what is left. */
void rp__emit_indices(const rp__emitter *e, const char *from, const char *prefix, unsigned first, unsigned n);
/* Of what follows a product: indices d<dim>, addresses and offsets of all accesses but the first. */
void rp__emit_places(const rp__emitter *e, const rp__cuda_place *places, unsigned n);
void rp__emit_inner_indices(const rp__emitter *e);
void rp__emit_access_offsets(const rp__emitter *e, const char *prefix, unsigned first, unsigned n);
void rp__emit_row_nodes(const rp__emitter *e, unsigned phase);
/* Element nodes of a phase: the needed ones of a looped template, else those whose place it is. */
void rp__emit_element_nodes(const rp__emitter *e, unsigned phase, const char *guard);
void rp__emit_row_stores(const rp__emitter *e, const char *guard);
void rp__emit_vector_types(const rp__emitter *e, unsigned width);
/* Element `index` of the vector l<node>, in the type that is computed with. */
void rp__emit_loaded(const rp__emitter *e, unsigned node, const char *index);
/* Over points: loads of whole vectors, all issued before anything is computed: l<node>[count * vector]. `at`: element offset of vector u. */
void rp__emit_vector_loads(const rp__emitter *e, unsigned count, unsigned vector, const char *at, const char *guard);
/* The vector of one load at its access's offset and `at` ("" or " + i4"): l<node>[vector]. */
void rp__emit_vector_load(const rp__emitter *e, unsigned node, unsigned vector, const char *at, const char *guard);
/* The same for `count` vectors w, loaded before any is used: declared, loaded, l<node> of vector w. */
void rp__emit_vectors(const rp__emitter *e, unsigned node, unsigned vector, unsigned count);
void rp__emit_vectors_load(const rp__emitter *e, unsigned node, unsigned vector, const char *at, const char *guard);
void rp__emit_vectors_use(const rp__emitter *e, unsigned node);
const char *rp__emit_word_type(unsigned dtype); /* of a vector's words: 16-bit floats share one of 32 bits */
unsigned rp__emit_words(unsigned dtype, unsigned width);
/* A store whose access takes whole vectors gathers its lanes first: declared by _gathered, put there for lane j by _gather,
 * stored at the address `at` by _gathered_store. 16-bit floats are converted in pairs. */
bool rp__emit_vector_store(const rp__emitter *e, const rp__store *s);
void rp__emit_gathered(const rp__emitter *e, const rp__store *s, unsigned number, unsigned width);
void rp__emit_gather(const rp__emitter *e, const rp__store *s, unsigned number);
void rp__emit_gathered_store(const rp__emitter *e, const rp__store *s, unsigned number, unsigned width,
                             const char *guard, const char *at);
/* Of all stores (rows: those of row values, too), for lane j: put into vectors, or stored. */
void rp__emit_lane_stores(const rp__emitter *e, bool rows, const char *guard);
/* The vectors behind them, at the address `place` in which @ is the number of the access: "a@ + o@". */
void rp__emit_vector_stores(const rp__emitter *e, bool rows, unsigned width, const char *guard, const char *place);
void rp__emit_where(const char *place, unsigned access, char *out, size_t bytes);

/* ---- emit_reduce.c */
bool rp__emit_reduces_in(const rp__emitter *e, unsigned node, unsigned phase);
/* Shared memory of every reduction: h<node> of the extents `extents`, "[2][256]". */
void rp__emit_shared(const rp__emitter *e, const char *extents);
void rp__emit_accumulators(const rp__emitter *e, unsigned phase, unsigned lanes); /* c<node>[lanes] = identity */
void rp__emit_accumulation(const rp__emitter *e, unsigned phase, const char *lane, const char *guard);
void rp__emit_halving(const rp__emitter *e, unsigned node, const char *name,
                      unsigned count); /* of an array into its first value */
void rp__emit_combine(const rp__emitter *e, const rp__node *n, const char *a, const char *b); /* an expression */
/* s<node> of every reduction of a phase: the groups of four of a thread, then the tree over the threads t of a row. Every thread
 * gets the result. Above 32 groups h<node><turn> has RP__ROW_SHARED(shape) elements. */
void rp__emit_trees(const rp__emitter *e, unsigned phase, const rp__row_shape *shape, const char *turn);
/* f<node>, the fold lane of thread t, before the loop over chunks; s<node>, the result of the chunk at `chunk`, into its lane; and
 * r<node>, which every thread gets. h<node><turn> is as of rp__emit_trees over 256 threads. */
void rp__emit_fold_start(const rp__emitter *e, unsigned phase);
void rp__emit_fold_identity(const rp__emitter *e, unsigned node); /* f<node> alone */
void rp__emit_fold(const rp__emitter *e, unsigned phase);
void rp__emit_fold_step(const rp__emitter *e, unsigned node, const char *x); /* x into f<node> */
void rp__emit_fold_end(const rp__emitter *e, unsigned phase, const char *turn);
/* r<node> = f<node> combined over the `lanes` threads t of a row: up to 32, or 256 with h<node>. */
void rp__emit_fold_lanes(const rp__emitter *e, unsigned phase, unsigned lanes, const char *turn);

/* Of a cluster: z<node>, where other blocks find s<node>, and r<node> of the chunks of all of them. */
void rp__emit_cluster_shared(const rp__emitter *e);
void rp__emit_cluster_fold(const rp__emitter *e, unsigned phase);

const char *rp__emit_shuffle(unsigned dtype); /* of shuffle functions: the type that they exchange */

/* ---- emit_scan.c: kernels with scans, RP__CUDA_SCAN or, with reductions, RP__CUDA_ROW_LOOP. Every element value of theirs is an array of a tile's four elements but
 * for what is loaded in vectors. */
void rp__emit_find_stages(rp__emitter *e);          /* fills e->stage */
void rp__emit_scan_functions(const rp__emitter *e); /* before the kernel */
void rp__emit_scan_shared(const rp__emitter *e);
unsigned rp__emit_scan_threads(const rp__emitter *e); /* a row, or a section of one */
unsigned rp__emit_scan_own(const rp__emitter *e);     /* elements of a thread */
void rp__emit_scan_row(const rp__emitter *e); /* what lies before a row's chunk, and before a section of it: declared */
void rp__emit_scan_chunk(const rp__emitter *e);
void rp__emit_scan_chunk_end(const rp__emitter *e); /* the chunk's total to what lies before the next one */
void rp__emit_scan_totals(const rp__emitter *e);    /* the totals of `section` and of chunk_ to memory */
void rp__emit_scan_before(const rp__emitter *e);    /* what lies before `section` of chunk_, from there */
/* All element values of tile u of a chunk. element: the text that opens a loop over them. */
void rp__emit_scan_tile(const rp__emitter *e, const char *element);
void rp__emit_scan_vectors(const rp__emitter *e);

/* ---- emit_column.c: halving trees over `count` values, a power of two, that come one after the other. Value number n is the one at
 * the place with n's bits reversed; value c waits in <name><node>_<level>, or combines with what waits there. After the last, c is all of
 * them. */
void rp__emit_reversed(const rp__emitter *e, const char *from, unsigned count); /* an expression */
void rp__emit_waiting(const rp__emitter *e, unsigned node, char name, unsigned count, const char *size);
void rp__emit_visited(const rp__emitter *e, unsigned node, char name, unsigned count, const char *turn, const char *c,
                      const char *at);
/* h<node>[0][column] of what the `down` threads of a column have in h<node>[row][column]. */
void rp__emit_down(const rp__emitter *e, unsigned phase, unsigned down, const char *row, const char *column);

/* ---- emit_ragged.c: rows whose vectors lie where memory is aligned, not where rows begin (c->ragged). Slot n of the `slots` elements that
 * the threads of a row, or of a chunk, have room for holds element n - shift; the slots before element 0 hold those after the last one.
 * A vector that memory does not hold whole is read and written element by element. */
void rp__emit_ragged_shared(const rp__emitter *e,
                            unsigned lanes); /* what lanes are exchanged through: of all rows of a block */
void rp__emit_ragged_start(const rp__emitter *e, unsigned span); /* shift */
/* Within a loop over u: f, the element of the first slot of this thread's vector that begins at slot `at`, and whether it is whole, which it
 * is when `sure`; `len` elements are there. */
void rp__emit_ragged_vector(const rp__emitter *e, const char *at, const char *sure, unsigned span);
/* Within a loop over j: q, the element, i = first + q, and in. */
void rp__emit_ragged_element(const rp__emitter *e, unsigned slots, const char *first);
/* A load's vector from `at` into `to`. */
void rp__emit_ragged_load(const rp__emitter *e, unsigned node, const char *to, unsigned span, unsigned slots,
                          const char *first, const char *at);
/* Of a gathered store that is not whole: its elements. */
void rp__emit_ragged_store(const rp__emitter *e, const rp__store *s, unsigned number, unsigned span, unsigned slots,
                           const char *first);
/* Elements in the slots before element 0 come last in their lanes: declared, accumulated in place of rp__emit_accumulation, added when all
 * others are. Then lanes go to the threads that rp__emit_trees takes them from. */
void rp__emit_ragged_late(const rp__emitter *e, unsigned phase, unsigned span);
void rp__emit_ragged_accumulation(const rp__emitter *e, unsigned phase, const char *lane);
void rp__emit_ragged_lanes(const rp__emitter *e, unsigned phase, const rp__row_shape *shape, unsigned slots);

/* ---- emit_short.c */
/* What the windows of outer dim d divide its places by; 1: more than one number, or too large a one. */
unsigned rp__emit_divided(const rp__emitter *e, unsigned d);

/* ---- kernels */
bool rp__emit_loads_early(const rp__emitter *e); /* of emit_point.c: it changes how values are named */
void rp__emit_pointwise(const rp__emitter *e, const char *name);
void rp__emit_point_body(const rp__emitter *e, const char *guard,
                         bool many); /* nodes and stores of a vector of points */
void rp__emit_tile(const rp__emitter *e, const char *name);
void rp__emit_staged(const rp__emitter *e,
                     unsigned access); /* its element in shared memory, within rp__emit_point_body */
void rp__emit_many(const rp__emitter *e, const char *name, uint32_t n_groups);
void rp__emit_row(const rp__emitter *e, const char *name);
void rp__emit_row_loop(const rp__emitter *e, const char *name);
void rp__emit_short(const rp__emitter *e, const char *name);
void rp__emit_split(const rp__emitter *e, const char *name);
void rp__emit_scan(const rp__emitter *e, const char *name);
void rp__emit_scan_parts(const rp__emitter *e, const char *name, bool totals);
void rp__emit_partial_row(const rp__emitter *e, const char *name);
void rp__emit_column(const rp__emitter *e, const char *name, bool partial);
void rp__emit_split_column(const rp__emitter *e, const char *name);
/* Partial result `which`, of `node`, of a part of a chunk of the row, as an operand; `chunks` is how many a row has. */
void rp__emit_partial(const rp__emitter *e, unsigned node, unsigned which, const char *chunk, const char *part);
void rp__emit_partial_stores(const rp__emitter *e, unsigned phase, const char *guard, const char *chunk,
                             const char *part);
void rp__emit_partial_fold(const rp__emitter *e, unsigned phase); /* where e->needed has one of them; others are 0 */
/* The same of rows side by side, `lanes` fold lanes and `down` threads ty a row; column: this thread's in h<node>. */
void rp__emit_partial_columns(const rp__emitter *e, unsigned phase, unsigned lanes, unsigned down, const char *column);
void rp__emit_finish(const rp__emitter *e, const char *name);

#endif
