/* What the files of the tile interpreter share; nobody else includes it (what others call is in program.h).
     interp.c         the scratch of a thread, setting up a slice of a launch, the walks over it, the entries
     interp_memory.c  elements between memory and tiles, wherever an access leads
     interp_tile.c    the instructions of a tile: loads, routines, stores; row values, uniform values
     interp_still.c   elements as rows of the last dim: what stands still along it for many rows at once
     interp_copies.c  programs that only move memory: rows as copies forwards and backwards, or by indices
     interp_rows.c    the phases of a row or tile of rows: chunks, lanes, the tree of partials
     interp_planes.c  rows and elements whose places are the same in many planes: places are found once
     interp_largest.c the phase of argmax: where in a row its largest value stands
     interp_long.c    long rows, whose chunks run on several threads
   One structure serves all walks. A tile has n = B * W elements: B positions of the inner dims times W rows. ALONG has W = 1
   and long tiles; ACROSS has up to 1024 rows, of the shortest columns 2048 and few positions; ELEMENTS has no rows. Lane j of a reduction over W rows is
   the W accumulators at acc[j * W], so that a whole tile accumulates as one vector operation, and the halving tree over
   lanes is one vector operation a level. Nothing here can fail. */
#ifndef RP_KERNEL_CPU_INTERP_PARTS_H
#define RP_KERNEL_CPU_INTERP_PARTS_H

#include <string.h>

#include "kernel/cpu/program.h"

typedef struct rp__interp_reg {
    char *p;
    int64_t step;
} rp__interp_reg;
typedef enum rp__interp_form {
    RP__INTERP_GENERAL,
    RP__INTERP_LINEAR,
    RP__INTERP_UNIFORM
} rp__interp_form; /* of an access over the walk of tiles; ACROSS: over the rows at one position */

/* Of a walk by rows (interp_still.c, interp_copies.c): instructions of what stands still along the last dim, of what is the same in every
   row, of all else. A mask, since a value may be both of the former. */
typedef enum rp__interp_part {
    RP__INTERP_ALL = 0,
    RP__INTERP_MOVING = 1,
    RP__INTERP_STILL = 2,
    RP__INTERP_COLUMN = 4,
    RP__INTERP_APART = RP__INTERP_STILL | RP__INTERP_COLUMN /* those whose values lie in tiles of their own */
} rp__interp_part;
enum { RP__INTERP_PARTED = 512 }; /* instructions of a phase that may be parted */
enum {
    RP__INTERP_STILL_ROWS = 256, /* whose still values are calculated at once, in tiles of their own */
    RP__INTERP_STILL_VALUES = 60 /* of each part: as many tiles, and a block each, fit where rows keep theirs */
};

typedef struct rp__interp {
    const rp__program *p;
    const uint64_t *address;
    const int64_t *extent, *stride; /* stride[access * dims + dim] */
    const int64_t *windows;         /* 4 + dims words each, see rp__space_layout */
    const uint64_t *scalars;
    unsigned n_outer, dims;
    unsigned d0, d1; /* dims that a tile walks over: all, the inner, or the outer ones */
    rp__walk walk;
    rp__tile_env env;
    int64_t tile;          /* capacity of a tile, elements; a multiple of 64 */
    int64_t rows, row_len; /* outer and inner elements */
    int64_t w, w0, b, nq;  /* ACROSS: rows of the tile, first row, positions a tile, positions of this tile */
    int64_t stretch;       /* ACROSS: rows that follow each other in memory wherever their last dim does */
    int64_t shift[RP__DAG_MAX_ACCESSES]; /* ACROSS: row w0 of a linear access is at base + w0 + shift */
    int64_t lanes; /* of accumulators: RP__LANES; ACROSS: of short rows as many as they have elements */
    int64_t pos;   /* element of the walk at which the tile starts (ACROSS: inner position) */
    bool whole;    /* n is a multiple that permits memory in place */
    uint8_t part;  /* rp__interp_part: the instructions that run */
    uint8_t moves[RP__INTERP_PARTED]; /* of each instruction of the phase: the parts that it is of */
    char *apart;                      /* the tile of the next still value, which moving ones do not write over */
    char *tiles, *kept, *acc, *stack, *scan, *rowbuf, *blocks, *raw;
    int64_t kept_cap;
    char *base[RP__DAG_MAX_ACCESSES];
    int64_t place[RP__DAG_WINDOWS]; /* of each window, times its divisor, at what base names */
    uint8_t form[RP__DAG_MAX_ACCESSES],
        flat[RP__DAG_MAX_ACCESSES]; /* flat: ACROSS: rows and positions follow each other in memory */
    bool direct[RP__DAG_MAX_ACCESSES];
    uint64_t
        copied; /* accesses whose memory a store writes before another one stores what was loaded: not used in place */
    uint64_t repeats,
        repeated_yet; /* ACROSS: accesses that stand still along the positions of tiles of several, which are repeated for these
                                       once a tile of rows, at repeats_at + n * 8 * tile; those that have been */
    char *repeats_at;
    rp__interp_reg regs[RP__DAG_MAX_NODES];
    /* Operands that do not move, one repeated value each. Not in the tile buffer of the load: the instruction that is its last
       reader may write that buffer while it still reads the block. */
    _Alignas(64) char repeated[RP__DAG_MAX_ACCESSES][64];
} rp__interp;

static inline unsigned rp__interp_log2(unsigned size) { return (unsigned)__builtin_ctz(size); }
static inline int64_t rp__interp_round64(int64_t n) { return (n + 63) & ~INT64_C(63); }

static inline void rp__interp_splat(char *block, uint64_t bits, unsigned size) {
    if (size == 1)
        bits *= UINT64_C(0x0101010101010101);
    else if (size == 4)
        bits = (bits & 0xffffffff) * UINT64_C(0x100000001);
    uint64_t w[8];
    for (int i = 0; i < 8; i++) w[i] = bits;
    memcpy(block, w, sizeof w);
}
static inline uint64_t rp__interp_peek(const void *p, unsigned size) {
    uint64_t v = 0;
    switch (size) {
    case 1: memcpy(&v, p, 1); break;
    case 2: memcpy(&v, p, 2); break;
    case 4: memcpy(&v, p, 4); break;
    default: memcpy(&v, p, 8);
    }
    return v;
}

/* ---- scratch of a thread (interp.c) */

enum {
    RP__INTERP_BYTES = 512 * 1024,  /* of a slice, touched as far as a launch needs it: see rp__interp_lay_out */
    RP__INTERP_PLANES = 320 * 1024, /* of what planes share, after those */
    RP__INTERP_WIDE = 32 << 20      /* of whole rows that are put together (rp__interp_wide) */
};
/* Two: a slice of a long row runs inside its launch. */
enum { RP__INTERP_LAUNCH, RP__INTERP_SLICE, RP__INTERP_SCRATCHES };
typedef struct rp__interp_scratch {
    rp__interp r;
    _Alignas(64) char tiles[RP__INTERP_BYTES + RP__INTERP_PLANES];
} rp__interp_scratch;
rp__interp_scratch *rp__interp_take(int which);
void rp__interp_give(const rp__interp_scratch *s);
/* RP__INTERP_WIDE bytes of the thread; NULL: there are none. */
char *rp__interp_wide(void);
/* Is r that of the one scratch there is where the system gives no pages? Slices of its launch would wait for it. */
bool rp__interp_in_reserve(const rp__interp *r);

/* ---- setting up a slice (interp.c) */

void rp__interp_begin(rp__interp *r, const rp__program *p, const uint64_t *words, rp__walk walk);
void rp__interp_begin_walk(rp__interp *r);
/* Forms of the accesses over dims d0 to d1, and the stores that may be written by what makes their value. */
void rp__interp_forms(rp__interp *r);
int64_t rp__interp_tile_for(const rp__program *p, int64_t n);
void rp__interp_size_along(rp__interp *r);
void rp__interp_lay_out(rp__interp *r, char *scratch);
void rp__interp_set_row(rp__interp *r, int64_t row);

/* ---- memory (interp_memory.c). Dims d0 to d1 are walked, from element `start` on, n elements. */

static inline int64_t rp__interp_along(const rp__interp *r, const int64_t *stride, unsigned d0, unsigned d1,
                                       int64_t start) {
    int64_t offset = 0;
    for (unsigned d = d1; d-- > d0;) {
        if (d > d0) {
            offset += start % r->extent[d] * stride[d];
            start /= r->extent[d];
        } else {
            offset += start * stride[d];
        }
    }
    return offset;
}
static inline int64_t rp__interp_offset(const rp__interp *r, unsigned access, unsigned d0, unsigned d1, int64_t start) {
    return rp__interp_along(r, r->stride + access * r->dims, d0, d1, start);
}
/* ACROSS: element of row w0 at inner position pos, of an access that is linear over the rows of a stretch. */
static inline int64_t rp__interp_across_at(const rp__interp *r, unsigned access, int64_t pos) {
    return r->w0 + r->shift[access] + rp__interp_offset(r, access, r->n_outer, r->dims, pos);
}
/* One segment of elements of `size` bytes. */
static inline void rp__interp_copy_out(const rp__interp *r, char *to, const char *a, int64_t step, unsigned size,
                                       int64_t stride, int64_t n) {
    if (stride == 1 && step) {
        memcpy(to, a, (size_t)n * size);
    } else {
        rp__tile_call t = {.d = to, .a = a, .as = step, .n = n, .imm = stride};
        r->p->tiles->scatter[rp__interp_log2(size)](&t);
    }
}
/* n elements of `size` bytes, `stride` elements apart, side by side into d. */
void rp__interp_copy_in(const rp__interp *r, char *d, const char *from, unsigned size, int64_t stride, int64_t n);
/* Elements through an offset or predicate (NULL: none), numbered from k0: memory behind a false predicate is not touched. */
void rp__interp_load_each(const rp__interp *r, char *d, const char *from, unsigned size, int64_t stride, int64_t n,
                          const rp__interp_reg *off, const rp__interp_reg *pred, int64_t k0);
/* n elements of an access with windows, from element `start` of dims d0 to d1 on: as raw storage, as numbers (IOTA), as bools
   (INSIDE). q: inner position that the walk across stands at, or -1 for none. */
void rp__interp_windows_part(const rp__interp *r, const rp__insn *i, char *d, unsigned d0, unsigned d1, int64_t start,
                             int64_t n, int64_t q);
/* The tile of one. */
void rp__interp_windows(const rp__interp *r, const rp__insn *i, char *d, int64_t n);
/* The access of instruction i, as raw storage, `extra` elements further on. */
void rp__interp_load_part(const rp__interp *r, const rp__insn *i, char *d, unsigned d0, unsigned d1, int64_t start,
                          int64_t n, int64_t extra, int64_t k0);
/* The tile of an element load, as raw storage, into d. */
void rp__interp_load_raw(const rp__interp *r, const rp__insn *i, char *d, int64_t n);
/* Does a tile across of several positions hold lines of memory of access a, one a row? */
bool rp__interp_turns(const rp__interp *r, unsigned a);
/* Such a tile, of elements as they lie in memory, into its rows. */
void rp__interp_store_turned(const rp__interp *r, const rp__program_store *st, const char *value);
void rp__interp_iota_part(const rp__interp *r, unsigned a, int64_t *d, unsigned d0, unsigned d1, int64_t start,
                          int64_t n, int64_t base);
/* value: compute type, `from` bytes an element; a half is converted here when adding, before this when setting. */
void rp__interp_store_part(const rp__interp *r, const rp__program_store *st, const char *value, int64_t step,
                           unsigned from, unsigned d0, unsigned d1, int64_t start, int64_t n, int64_t extra,
                           int64_t k0);

/* ---- instructions (interp_tile.c) */

/* The tile of n elements at r->pos. */
void rp__interp_element(rp__interp *r, unsigned phase, int64_t n);
/* The same for these instructions alone, by number in the one phase of elements. */
void rp__interp_listed(rp__interp *r, const uint16_t *list, unsigned count, int64_t n);
/* Values of the row, or rows, that base (and w0) name; values of the whole slice. */
void rp__interp_row(rp__interp *r, struct rp__segment s);
void rp__interp_uniform(rp__interp *r);
/* Copies of a row tile for each position of an element tile. */
static inline void rp__interp_replicate(const rp__interp *r, char *buffer, unsigned size) {
    for (int64_t q = 1; q < r->b; q++) memcpy(buffer + q * r->w * size, buffer, (size_t)(r->w * size));
}

/* One instruction of an element phase, into d: its tile, or where what is kept of it lies. */
void rp__interp_insn(rp__interp *r, const rp__insn *i, char *d, int64_t n);
/* Its operation, of n elements. */
void rp__interp_call(const rp__interp *r, const rp__insn *i, char *d, int64_t n);

/* ---- rows (interp_rows.c) */

/* All phases of the row, or tile of rows, that base (and w0) name. */
void rp__interp_phases(rp__interp *r);
void rp__interp_begin_chunk(rp__interp *r, unsigned phase);
/* Inner positions [begin, end) of one phase, at most a chunk. */
void rp__interp_positions(rp__interp *r, unsigned phase, int64_t begin, int64_t end);
/* The lanes of reduction `red` become w values at the start of its accumulators. */
char *rp__interp_finish_chunk(rp__interp *r, const rp__reduction *red);
/* Chunk `count` of reduction red arrives as w values at v (which is overwritten). */
void rp__interp_push_chunk(rp__interp *r, const rp__reduction *red, uint64_t count, char *v);
char *rp__interp_finish_chunks(rp__interp *r, const rp__reduction *red, uint64_t count);
void rp__interp_set_result(rp__interp *r, const rp__reduction *red, const char *v);
void rp__interp_store_rows(rp__interp *r);
/* Runs the phase that finds where the largest stands (interp_largest.c); false: it is another, or its space is not such. */
bool rp__interp_largest(rp__interp *r, unsigned phase);
/* Distance of positions in memory, where it is one; -1: it is not. */
int64_t rp__interp_position_step(const rp__interp *r, unsigned access);
/* Does the walk across take the rows of a phase, which are short and only reduced, as whole columns of memory? Forms are known. */
bool rp__interp_whole_columns(const rp__interp *r, unsigned phase);

/* ---- elements by rows (interp_still.c) */

/* Elements [first, last) of a walk of elements; false: nothing was done, the walk does not go by rows. routines: only where a row is one routine,
   which a program without groups tells. */
bool rp__interp_by_rows(rp__interp *r, int64_t first, int64_t last, bool routines, char *scratch);

/* The same for a program that only moves memory (interp_copies.c); it is one without groups. Where that is false rp__interp_begin comes
   again before another walk: dims may have been told apart anew. */
bool rp__interp_copies(rp__interp *r, int64_t first, int64_t last, char *scratch);

/* ---- what planes share (interp_planes.c) */

/* In which order a reduction over so many rows takes those that are there (not NULL), of RP__WINDOW_ROWS at most. */
void rp__interp_tree(rp__window_tree *t, const void *const *a, int64_t rows);

/* Rows or elements [first, last) of a launch whose header, program and words rp__interp_begin took; false: nothing was done, and
   rp__interp_begin comes again as above. */
bool rp__interp_by_planes(rp__interp *r, int64_t first, int64_t last, char *scratch);
/* Rows of a tile across, as many as accumulators and scratch permit (interp.c). */
int64_t rp__interp_across_width(const rp__program *p, int64_t rows, int64_t row_len);

/* ---- long rows (interp_long.c) */

/* loop: its chunk functions serve; NULL: tiles do. */
void rp__interp_long(rp__interp *r, const rp__cpu_loop *loop, char *scratch);

#endif
