/* CUDA C text of a loop kernel. emit.c turns (DAG, class) into one extern "C" kernel; loops.c chooses the class, binds
 * parameters and launches. Nothing here talks to a driver, so that sources can be emitted and read anywhere.
 *
 * The order of a reduction over R elements (a function of R and nothing else; equal for every template and layout):
 *   chunks of RP__CUDA_CHUNK elements; in a chunk P = 4 T virtual lanes, T = rp__cuda_row_threads(R); lane p adds its elements
 *   i = p (mod P) in rising order to the identity; lanes 4g..4g+3 of group g combine as (0 with 2) with (1 with 3); groups
 *   combine first over g / 32 (halving: q with q + Q/2, Q/4, ...), then over g % 32 the same way; chunk c adds to the identity of
 *   fold lane c % RP__CUDA_FOLD in rising order, and the fold lanes combine by halving (lane f with f + F/2, F/4, ...). Lanes
 *   without a chunk hold the identity, which changes nothing, so that as many lanes as there are chunks, a power of two, do. */
#ifndef RP_KERNEL_CUDA_EMIT_H
#define RP_KERNEL_CUDA_EMIT_H

#include "kernel/loop.h"

enum {
    RP__CUDA_CHUNK = 16384,
    RP__CUDA_FOLD = 256,
    RP__CUDA_SECTION = 2048,          /* of a scan: what a warp has of a chunk */
    RP__CUDA_SCAN_TOTALS_A_CHUNK = 9, /* partial results: of its sections and its own */
    RP__CUDA_MOST_BLOCKS = 8,
    /* of a cluster */ RP__CUDA_BLOCK = 256,
    RP__CUDA_MAX_VECTOR = 8,
    RP__CUDA_RANGED = 256,
    RP__CUDA_STILL_DIMS = 8
};

typedef enum rp__cuda_template {
    RP__CUDA_POINTWISE, /* a thread computes `unroll` vectors of `vector` points */
    RP__CUDA_TILE,      /* the same for a tile of two dims, of which accesses disagree about which is contiguous */
    RP__CUDA_ROW, /* `threads` threads a row, `groups` vectors of `span` elements each in registers; R <= threads groups span */
    RP__CUDA_SHORT,   /* a thread has `vector` whole rows of few elements */
    RP__CUDA_CLUSTER, /* the same for a row of up to 8 chunks: a cluster of `down` blocks, a chunk each */
    RP__CUDA_ROW_LOOP, /* a block of 256 threads a row, chunk by chunk, values recomputed in every phase; R > RP__CUDA_CHUNK */
    RP__CUDA_COLUMN, /* outer dims run fastest: rows side by side in a block, `down` threads down each; R <= RP__CUDA_CHUNK */
    RP__CUDA_CLUSTER_COLUMN, /* the same by a cluster of `parts` blocks, at most 8 and `down`, each one part of the column */
    RP__CUDA_PARTIAL_ROW,    /* one phase, one chunk of one row a block: writes partial results */
    RP__CUDA_PARTIAL_COLUMN, /* one walk, one of `parts` parts of a chunk a block */
    RP__CUDA_SCAN, /* scans alone: `threads` threads a row, four elements each, tile by tile; `tile` rows a block */
    RP__CUDA_SCAN_TOTALS, /* scans, one chunk of one row a block, a section a warp: writes their totals */
    RP__CUDA_SCAN_PARTS,  /* the same, behind the totals of the chunks before */
    RP__CUDA_SPLIT, /* one chunk of one row a block, a launch a phase: folds what those before have left, writes partial results or stores */
    RP__CUDA_SPLIT_COLUMN, /* the same where outer dims run fastest: one of `parts` parts of a chunk a block */
    RP__CUDA_FINISH, /* folds partial results and runs the row values and stores; rows side by side, `down` threads down each */
    RP__CUDA_MANY,    /* pointwise over groups of equal problems of one dim or two */
    RP__CUDA_CONTRACT /* a product or convolution and what follows: contract.c makes the text */
} rp__cuda_template;

/* SHORT: what is constant about a window of the DAG. */
typedef struct rp__cuda_window {
    uint8_t like;  /* the first window that is at the same places everywhere */
    uint8_t known; /* whether what follows is filled in: it is small */
    int8_t divisor, pad;
    int8_t factor;   /* of outer dim `outer`, the one that has a factor */
    int8_t inner[3]; /* factors of the inner dims */
    uint8_t outer;
} rp__cuda_window;

/* All that the source depends on besides the DAG. Compared and hashed as bytes: zero it first. */
typedef struct rp__cuda_class {
    uint8_t template_; /* rp__cuda_template */
    uint8_t n_outer, n_inner;
    uint8_t
        vector; /* POINTWISE, TILE, MANY: points a vector; COLUMN, SHORT: rows a thread; rows: the span when some access is loaded in vectors */
    uint8_t
        unroll; /* POINTWISE, MANY: vectors a thread; COLUMN: groups of four elements whose loads are in flight together */
    uint8_t
        span; /* ROW: neighbouring elements that a thread takes at once, 4 or 8; strided also 1; SCAN: those of a row that is a thread's
                     alone, or 0 */
    uint8_t
        groups; /* ROW: vectors a thread; COLUMN: elements of a lane where a thread holds its columns in registers, or 0 */
    uint8_t
        once; /* columns: no element that is stored is made of a sum, so that those are stored in the walk that adds up; nothing is walked
                     again */
    uint8_t strided; /* ROW, CLUSTER: a thread's elements are T apart, for rows that are not read in vectors */
    uint8_t
        ragged; /* rows: vectors lie where memory is aligned: 1 a row ends within one, 2 it may begin within one too; POINTWISE: points are
                   left behind the last vector */
    uint8_t
        crosses; /* rows of several dims: the last one does not hold whole vectors, which may end in the next place of the others */
    uint8_t full; /* ROW: R = threads groups span, so that no element needs a guard; FINISH, SPLIT_COLUMN: one
                        chunk a fold lane at most; SCAN: R <= 4 threads */
    uint8_t late; /* POINTWISE: vectors lie apart, and all of one is computed before it is stored element by element */
    uint8_t wide; /* 64-bit element offsets */
    uint8_t n_draws;
    uint16_t
        threads; /* ROW, SCAN: threads a row, of the latter a power of two, at most 256; COLUMN: T of the order above; FINISH: fold lanes */
    uint16_t
        down; /* COLUMN: threads down a column, at most T / parts; FINISH: the same, at most threads * parts; CLUSTER: blocks; TILE:
                          places across */
    uint16_t
        parts; /* CLUSTER_COLUMN, PARTIAL_COLUMN, SPLIT_COLUMN, FINISH: blocks, and results, a chunk: a power of two, at most T; others 1 */
    uint16_t tree; /* ROW: T of the order above, a multiple of threads span / 4; SPLIT_COLUMN: fold lanes */
    uint16_t
        tile; /* TILE: places along the last dim; tile * down is a multiple of 256. COLUMN, FINISH: threads side by side; SCAN: rows a block; ROW
                 strided in a warp: elements a thread, or 0 */
    uint8_t across;    /* TILE: the other dim; SCAN: 1 where rows, not elements, are what neighbouring threads have */
    uint8_t phase;     /* SPLIT, SPLIT_COLUMN: which one */
    uint8_t stage;     /* TILE: elements of a vector across */
    uint16_t problems; /* MANY: groups that the parameter table has room for, a power of two */
    /* per access, along the fastest dim (POINTWISE), the last outer one (`unit` of COLUMN and SHORT) or the inner dims (rows) */
    uint64_t unit;      /* stride 1 and aligned for whole vectors */
    uint64_t broadcast; /* stride 0 */
    uint64_t gathered;  /* POINTWISE, TILE, SHORT: of `unit`, loads at computed places that keep vectors whole */
    uint64_t staged;    /* TILE: through shared memory */
    uint64_t
        staged_unit; /* TILE: of these, stride 1 across and aligned for vectors of `stage`; COLUMN, SHORT: stride 0 along the last outer dim */
    uint64_t line; /* rows of several dims, and strided ones of one: those of which element i lies i behind the first */
    uint64_t unmoved;  /* SHORT: stride 0 along the inner dims, whatever windows do */
    uint8_t extent[3]; /* SHORT: of the inner dims */
    uint64_t still
        [RP__CUDA_STILL_DIMS]; /* SHORT, POINTWISE: per dim, the accesses (of POINTWISE, iotas) of stride 0 along it */
    /* per node of type i64, of the first RP__CUDA_RANGED (ranges.c): computed in 32 bits, which hold all that it can be; divisions of these
       are of numbers without a sign, by one that is not 0 */
    uint64_t narrow[4];
    /* CHECK_INDEX: of an index that is inside whatever it is; LOAD at a computed place: 31 bits hold all of its offset */
    uint64_t sure[4];
    rp__cuda_window windows[RP__DAG_WINDOWS]; /* SHORT */
} rp__cuda_class;

/* Parameter words: those of rp__space_words (space.h), then these. */
enum {
    RP__CUDA_WORD_POINTS,  /* POINTWISE: points; rows: number of rows; MANY: number of groups */
    RP__CUDA_WORD_PARTIAL, /* address of partial results */
    RP__CUDA_WORD_CHUNKS,  /* chunks a row */
    RP__CUDA_EXTRA_WORDS
};
/* MANY: scalars, then RP__CUDA_EXTRA_WORDS, then for each group: points, first block, one address an access; of two dims: points, first block,
 * extent of the last dim, addresses, two strides an access. */
uint32_t rp__cuda_group_words(const rp__dag *dag, const rp__cuda_class *c);

int rp__cuda_row_threads(int64_t r);                         /* T of the order above: a power of two, 1 to 256 */
unsigned rp__cuda_columns(const rp__cuda_class *c);          /* COLUMN: rows side by side in a block */
unsigned rp__cuda_tile_pitch(unsigned tile, unsigned bytes); /* TILE: elements of a row of the tile in shared memory */
unsigned rp__cuda_row_block(const rp__cuda_class *c); /* ROW: threads a block; it holds block / c->threads rows */
unsigned rp__cuda_slot_step(
    const rp__cuda_class *c); /* ROW strided in a warp: what `tile` is a multiple of; the last ones may be empty */
uint32_t rp__cuda_word_count(const rp__dag *dag, const rp__cuda_class *c, uint32_t n_groups);
/* Adds the kernel `name` to `out`; prelude.cuh and support.cuh come before it. */
rp_status rp__cuda_emit(const rp__dag *dag, const rp__cuda_class *c, const char *name, rp__text *out);

/* A part of a product's DAG (rp__dag.rest, before), as statements of a kernel that has parameters p and the places that the dims are read
 * from; x is the sum. */
typedef struct rp__cuda_place {
    const char *from; /* an expression: the number of the place along `dims` dims, outermost first */
    unsigned dims;
} rp__cuda_place;
typedef struct rp__cuda_part {
    const rp__dag *dag;
    const rp__cuda_place *places;
    unsigned n_places;
    uint32_t first;  /* word at which its own begin (rp__contract_words) */
    bool wide;       /* 64-bit offsets */
    uint64_t stores; /* those that go to memory */
    const char *to;  /* what store `made` would store is assigned to this variable; NULL: nothing is */
    unsigned made;
    /* What is read at its own place has been read before there was a sum, into fields whose names begin so, "held[i].x"; NULL: it is read
       with the others. */
    const char *held;
} rp__cuda_part;
rp_status rp__cuda_emit_part(const rp__cuda_part *part, rp__text *out);
/* Declarations of these fields; statements that fill them. */
rp_status rp__cuda_emit_held(const rp__cuda_part *part, rp__text *fields, rp__text *fill);

/* The same rest for several sums at once, sum[0..vector - 1], neighbours along dim `along`. Masks of accesses: those that lie there as an aligned
 * vector, those that all of them share, those of either that vary along the rows of the product alone. */
typedef struct rp__cuda_lanes {
    unsigned along, vector;
    uint64_t unit, same, line;
} rp__cuda_lanes;
/* Four texts: the types rp_held and rp_line of what is read ahead of the sums, and RP_HELD_BYTES, what the former has; statements that fill
 * *held; those that fill *held, an rp_line, and compute there what costs more than a load and is made of nothing else; those that follow the sums,
 * with `held` and `line` in hand. */
enum { RP__CUDA_WIDE_TYPES, RP__CUDA_WIDE_HELD, RP__CUDA_WIDE_LINE, RP__CUDA_WIDE_REST, RP__CUDA_WIDE_TEXTS };
rp_status rp__cuda_emit_wide(const rp__dag *rest, const rp__cuda_place *places, unsigned n, uint32_t first, bool wide,
                             const rp__cuda_lanes *lanes, rp__text out[RP__CUDA_WIDE_TEXTS]);

#endif
