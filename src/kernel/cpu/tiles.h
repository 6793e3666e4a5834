/* Tile routines: one vector routine per primitive and dtype, built once an instruction set from isa/tiles.c. Called by the
   interpreter (interp_tile.c, interp_rows.c) and through it by nobody else. A routine reads operands of n elements (step 1)
   or one vector block that repeats (step 0: every element of 64 bytes is the same value) and writes n elements; it may round
   n up to full vectors of the widest lane count of its operands, so buffers are padded and memory is used in place only where
   n is such a multiple. Routines with side effects or per-element memory accesses stay within n. All tables give the same
   bits. */
#ifndef RP_KERNEL_CPU_TILES_H
#define RP_KERNEL_CPU_TILES_H

#include "device/error_record.h"
#include "device/generator.h"
#include "kernel/loop.h"

/* What routines with side effects need of a launch. */
typedef struct rp__tile_env {
    rp__error_record *errors;
    uint64_t tag;
    const uint64_t *draws; /* words: state pointer, seed, inner of each draw */
} rp__tile_env;

typedef struct rp__tile_call {
    void *d;
    const void *a, *b, *c;
    int64_t as, bs, cs; /* step of each operand: 1 or 0 */
    int64_t n, imm;
    const rp__tile_env *env;
} rp__tile_call;
typedef void rp__tile_fn(const rp__tile_call *t);

/* n elements of one row of a SCAN, of which the first is at position pos: state has RP__SCAN_STATE elements, kept from call to
   call. */
enum {
    RP__SCAN_STATE = 4
}; /* of the block under way, of the chunk's blocks before it, of the chunks before it, both together */
typedef struct rp__scan_call {
    void *d, *state;
    const void *a;
    int64_t as, n, pos;
} rp__scan_call;
typedef void rp__scan_fn(const rp__scan_call *c);

/* Rows of n columns: element (r, i) is at a + r * row + i and goes to d + r % 32 * lane + i, all in elements. */
typedef struct rp__columns_call {
    void *d;
    const void *a;
    int64_t lane, row, rows, n;
} rp__columns_call;
typedef void rp__columns_fn(const rp__columns_call *c);

/* *d = the reduction of n elements, at least one, that lie side by side: of integers, whose order does not matter. */
typedef void rp__row_fn(void *d, const void *a, int64_t n);

/* What is left of the order of a reduction over so many rows where only some have an element: lanes that lack one have the identity, which
   changes nothing. */
enum { RP__WINDOW_ROWS = 256 };
typedef struct rp__window_tree {
    int64_t n, more, pairs,
        first; /* lanes that have a row; further rows; pairs of lanes in order; the one that has the result */
    /* The first row of each lane, then the further ones, each of which is combined with what lane `onto` has by then. */
    uint8_t row[RP__WINDOW_ROWS], onto[RP__WINDOW_ROWS], to[RP__LANES], from[RP__LANES];
} rp__window_tree;
/* Rows of n columns anywhere in memory, at most RP__WINDOW_ROWS of them, of which those of the tree are there. d: what it gives.
   key: of each row another of int64; an element whose key is not `wanted` is 0. over: of each row what its elements are divided by,
   or multiplied if `times`, in their type. NULL: there are none. */
typedef struct rp__window_call {
    void *d;
    const void *const *a;
    const rp__window_tree *tree;
    int64_t n;
    const int64_t *const *key;
    int64_t wanted;
    const void *over;
    bool times;
} rp__window_call;
typedef void rp__window_fn(const rp__window_call *c);

/* Rows of n columns anywhere in memory: d[i] = ((a[0][i] * weight[0]) + a[1][i] * weight[1]) + ..., each operation rounded. */
typedef struct rp__weigh_call {
    float *d;
    const void *const *a;
    const float *weight;
    int64_t rows, n;
} rp__weigh_call;
typedef void rp__weigh_fn(const rp__weigh_call *c);

/* Of such rows the least number of one whose element is the largest of its column; of one that is NaN: -1 less its number. INT64_MAX:
   there is none. Numbers are below INT32_MAX. */
typedef struct rp__place_call {
    int64_t *d;
    const void *largest;
    const void *const *a;
    const int32_t *number;
    int64_t rows, n;
} rp__place_call;
typedef void rp__place_fn(const rp__place_call *c);

/* Positions of n columns, those of one `step` elements behind those of the one before: best[i] becomes the least number of a position whose
   element of column i is largest[i] or NaN, if that is less than it was. best: integers as wide as the elements. It and the operands are
   read and written in full vectors. */
typedef struct rp__first_call {
    void *best;
    const void *a, *largest;
    int64_t n, step, positions, number; /* number: of the first position */
} rp__first_call;
typedef void rp__first_fn(const rp__first_call *c);
/* The first of n elements that is *largest or NaN; -1: there is none. Reads full vectors. */
typedef int64_t rp__find_fn(const void *a, const void *largest, int64_t n);

/* Compute dtypes as table columns. */
enum { RP__TILE_F32, RP__TILE_F64, RP__TILE_I32, RP__TILE_I64, RP__TILE_U8, RP__TILE_BOOL, RP__TILE_TYPES };
static inline unsigned rp__tile_type(unsigned dtype) {
    switch (dtype) {
    case RP_F32: return RP__TILE_F32;
    case RP_F64: return RP__TILE_F64;
    case RP_I32: return RP__TILE_I32;
    case RP_I64: return RP__TILE_I64;
    case RP_U8: return RP__TILE_U8;
    default: return RP__TILE_BOOL;
    }
}

/* Storage that is not what routines take: narrow types become what they are calculated in, and back; a bool is true if its byte is
   not 0, which memory from outside of the library need not hold as 1. */
typedef enum rp__load_kind {
    RP__LOAD_F16 = 1,
    RP__LOAD_BF16,
    RP__LOAD_I8,
    RP__LOAD_I16,
    RP__LOAD_BOOL,
    RP__LOAD_KINDS,
    RP__NARROW_KINDS = RP__LOAD_I16
} rp__load_kind;
static inline unsigned rp__narrow_kind(unsigned dtype) { /* 0: not a narrow type */
    switch (dtype) {
    case RP_F16: return RP__LOAD_F16;
    case RP_BF16: return RP__LOAD_BF16;
    case RP_I8: return RP__LOAD_I8;
    case RP_I16: return RP__LOAD_I16;
    default: return 0;
    }
}

typedef struct rp__tiles {
    const char *name; /* "avx2" */
    unsigned vec_bytes;
    rp__tile_fn
        *op[RP__PRIM_COUNT][RP__TILE_TYPES]; /* by the type of operand a (WHERE: of b; PHILOX_NORMAL: of the result) */
    rp__tile_fn *cast[RP__TILE_TYPES][RP__TILE_TYPES]; /* from, to */
    rp__tile_fn *round[RP__NARROW_KINDS]; /* through the narrow type; this and what follows by rp__load_kind - 1 */
    rp__tile_fn *load[RP__LOAD_BOOL], *store_narrow[RP__NARROW_KINDS]; /* n exact: contiguous */
    rp__tile_fn *gather[4]; /* n exact, element size 1 << k: d[i] = a[i * imm] */
    rp__tile_fn *load_at
        [4]; /* n a multiple of 8: d[i] = a[b[i] + i * imm], b of int64; 0 where bytes c (NULL: none) are 0: a is not read there.
                                  NULL: the instruction set has no such loads */
    rp__tile_fn *scatter[4];   /* n exact: d[i * imm] = a[i * as] */
    rp__tile_fn *transpose[4]; /* n exact: d[q * as + i] = a[i * imm + q] for q < bs */
    /* d: 32 lane accumulators; a: n elements (n exact), element i goes to lane i % 32 */
    rp__tile_fn *reduce_row[6][RP__TILE_TYPES];
    rp__tile_fn *finish_row[6][RP__TILE_TYPES]; /* d: one element = the halving tree over 32 lanes a (overwritten) */
    /* d[i] = d[i] op a[i] (n exact) */
    rp__tile_fn *reduce_block[6][RP__TILE_TYPES];
    /* ... and what the elements are in memory: of the type, or by rp__load_kind another. NULL: none */
    rp__columns_fn *reduce_columns[6][RP__TILE_TYPES][RP__LOAD_KINDS];
    /* d[i] = the halving tree over the lanes of column i; lane is not read */
    rp__columns_fn *whole_columns[6][RP__TILE_TYPES][RP__LOAD_KINDS];
    rp__row_fn *whole_row[6][RP__TILE_TYPES][RP__LOAD_KINDS];
    rp__window_fn *reduce_window[6][RP__TILE_TYPES][3];
    rp__weigh_fn *weigh[3]; /* of float, or by rp__load_kind one of two narrow types */
    rp__place_fn *place[RP__TILE_TYPES][3];
    rp__first_fn *first[RP__TILE_TYPES];
    rp__find_fn *find[RP__TILE_TYPES];
    rp__scan_fn *scan[RP__SCAN_KINDS][RP__TILE_TYPES];
    rp__tile_fn *scan_block[RP__SCAN_KINDS][RP__TILE_TYPES]; /* as reduce_block */
} rp__tiles;

extern const rp__tiles rp__tiles_baseline;
#ifndef RP_ISA_BASELINE_ONLY
extern const rp__tiles rp__tiles_avx2, rp__tiles_avx512;
#endif
/* The table for this CPU, or the one that REPRISE_CPU names where the CPU has it; constant over the process unless a test
   sets another (NULL: back to the choice). */
extern _Atomic(const rp__tiles *) rp__tiles_chosen; /* NULL: not yet */
const rp__tiles *rp__tiles_choose(void);
static inline const rp__tiles *rp__tiles_current(void) {
    const rp__tiles *t = atomic_load_explicit(&rp__tiles_chosen, memory_order_acquire);
    return RP__LIKELY(t != NULL) ? t : rp__tiles_choose();
}
const rp__tiles *rp__tiles_named(const char *name); /* NULL: unknown here */
void rp__tiles_set(const rp__tiles *tiles);

#endif
