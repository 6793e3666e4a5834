/* The interpreter's bytecode: a DAG compiled once for a kind of traversal. Made by program.c, run by interp.c; immutable and
   counted, because kernels in recorded graphs outlive the DAG. Emitted C (jit.c) replaces the run of one program by native
   code and shares its words. */
#ifndef RP_KERNEL_CPU_PROGRAM_H
#define RP_KERNEL_CPU_PROGRAM_H

#include "core/arena.h"
#include "kernel/cpu/line.h"
#include "kernel/cpu/tiles.h"

/* How a program walks the space. Elements: no row values matter, all dims are walked as one. Rows: one row (or a tile of
   rows) at a time, phase by phase. A rows program keeps element values that several phases need in row scratch, or computes
   them again in each phase: the same bits, chosen at launch by the length of the row. */
typedef enum rp__plan { RP__PLAN_ELEMENTS, RP__PLAN_KEEP, RP__PLAN_RECOMPUTE, RP__PLAN_COUNT } rp__plan;

typedef enum rp__insn_kind {
    RP__INSN_OP,   /* fn on registers */
    RP__INSN_LOAD, /* access; a: offset or none, b: predicate or none */
    RP__INSN_IOTA,
    RP__INSN_INSIDE, /* access */
    RP__INSN_KEPT,   /* d is in row scratch since an earlier phase */
    RP__INSN_REDUCE, /* a into accumulator `access` */
    RP__INSN_SCAN,   /* scan number `access` of a */
    RP__INSN_STORE,  /* store number `access` */
    RP__INSN_GROUP   /* group number `access`: many operations in one emitted function */
} rp__insn_kind;
/* Where a register's elements lie. */
typedef enum rp__home {
    RP__HOME_UNIFORM, /* a 64-byte block of one repeated value, for the launch */
    RP__HOME_ROW,     /* one value a row: a block (one row at a time), or a tile over rows */
    RP__HOME_TILE,    /* a tile buffer, shared over time */
    RP__HOME_KEPT     /* row scratch */
} rp__home;

typedef struct rp__insn {
    rp__tile_fn *fn;
    int64_t imm;
    uint8_t kind, home;  /* home of d */
    uint8_t type, size;  /* tile type and element bytes of d (REDUCE: of a) */
    uint16_t d, a, b, c; /* registers; RP__NO_VAL: none */
    uint16_t access;
    uint16_t direct; /* 1 + the store whose memory may be d */
    uint32_t at;     /* of d: bytes an element before it in its home (UNIFORM, ROW: number of the block) */
} rp__insn;

typedef struct rp__reduction {
    uint8_t kind, type, size;
    uint16_t d;        /* register of the result */
    uint16_t phase;    /* element phase that feeds it */
    uint32_t at;       /* bytes a lane before its accumulators */
    uint64_t identity; /* bit pattern */
} rp__reduction;

typedef struct rp__program_scan {
    uint8_t kind, type, size;
    uint32_t at; /* bytes a row before its state, of RP__SCAN_STATE values */
} rp__program_scan;

typedef struct rp__program_store {
    uint16_t access, value, offset, predicate; /* registers */
    uint8_t dtype, mode, row, size;            /* storage dtype and its bytes */
    bool direct;                               /* the producing instruction may write memory itself */
    uint32_t producer;                         /* its number in insns, if direct */
    uint64_t late_reads; /* accesses that are read after the producer: direct only if none of them overlaps */
    uint64_t loaded;     /* accesses whose elements it stores, or is led by, as they were loaded */
} rp__program_store;

/* Operations that emitted C computes in one loop over the tile: arithmetic between loads, stores and what must go element by
   element. Lists are in rp__program.lists. */
typedef void rp__group_fn(char *const *p, const int64_t *s, int64_t n);
typedef struct rp__group_output {
    uint16_t d;
    uint8_t home, size;
    uint16_t direct; /* as in rp__insn */
    uint32_t at;
} rp__group_output;
typedef struct rp__group {
    uint16_t *nodes, *inputs, *reductions;
    rp__group_output *outputs;
    uint16_t n_nodes, n_inputs, n_outputs, n_reductions;
    rp__group_fn *along, *across; /* how reductions accumulate; equal without any */
} rp__group;
enum { RP__GROUP_POINTERS = 96 }; /* inputs, outputs and accumulators of a group */

/* A phase that does nothing but find the least number of an element of the row that is the row's `largest` value, or NaN: argmax and its
   like (interp_largest.c). */
typedef struct rp__program_largest {
    uint16_t phase;                    /* 1 + number; 0: there is none */
    uint16_t largest, iota, reduction; /* register, access, number */
    uint32_t load;                     /* instruction */
} rp__program_largest;

typedef struct rp__program {
    bool grouped; /* for emitted C: operations lie in groups, tile buffers hold what passes between instructions */
    rp__group *groups;
    uint16_t n_groups;
    rp__arena arena;  /* of groups and their lists */
    uint8_t *classes; /* of each register: rp__value_class */
    rp__hash key;
    const rp__tiles *tiles;
    rp__plan plan;
    uint32_t n_insns;
    uint16_t n_regs, n_accesses, n_scalars, n_stores, n_reductions, n_scans, n_draws, n_blocks, n_row_regs;
    uint16_t n_phases;   /* element phases */
    bool checks, serial; /* serial: adding stores, one slice only */
    /* segments of insns: uniform [0, row[0].begin), then for each phase p row segment p and element segment p, then the last
       row segment */
    uint32_t uniform_end;
    struct rp__segment {
        uint32_t begin, end;
    } * row, *element; /* n_phases + 1, n_phases */
    rp__insn *insns;
    rp__reduction *reductions;
    rp__program_scan *scans;
    rp__program_store *stores;
    uint64_t written;       /* bit a: a store's access */
    uint64_t added;         /* bit a: that of an adding store */
    uint64_t counted;       /* bit a: an iota that is read */
    uint8_t *access_size;   /* storage bytes */
    uint8_t *access_narrow; /* rp__narrow_kind of its dtype */
    uint8_t *access_load;   /* the same or RP__LOAD_BOOL: what a load is converted by */
    uint8_t *access_row, *access_iota;
    uint8_t *access_windows; /* number of windows, */
    uint8_t *first_window;   /* and of the first of them */
    uint16_t n_windows;
    bool places; /* loads at computed places */
    bool moves;  /* of elements: one load, and a store of it as it lies in memory */
    rp__program_largest largest;
    uint8_t *row_size; /* bytes of each ROW register, and the register that owns it */
    uint16_t *row_reg;
    uint16_t *block_reg; /* register of each UNIFORM block */
    uint32_t tile_bytes; /* of all tile buffers, an element */
    uint32_t kept_bytes; /* of row scratch, an element of the row */
    uint32_t acc_bytes;  /* of accumulators, a lane */
    uint32_t row_bytes;  /* of ROW registers, a row */
    uint32_t scan_bytes; /* of the state of scans, a row */
    uint32_t cost;       /* rough cycles an element, for slicing */
    uint8_t min_size; /* of any element value or access: n * min_size / vec_bytes whole means memory in place is safe */
    bool converts;    /* loads or stores do: needs the raw buffer */
} rp__program;

typedef enum rp__value_class { RP__VALUE_DEAD, RP__VALUE_UNIFORM, RP__VALUE_ROW, RP__VALUE_ELEMENT } rp__value_class;

/* What one program may hold, so that the smallest layout of a slice (interp.c) fits its scratch: bytes an element of live tile
   values, of row values, of accumulators, and numbers of uniform and row values. The fuser splits below this. */
enum {
    RP__PROGRAM_TILE_BYTES = 1024,
    RP__PROGRAM_ROW_BYTES = 1024,
    RP__PROGRAM_ACC_BYTES = RP__LOOP_SUM_BYTES,
    RP__PROGRAM_SCAN_BYTES = 4 * RP__LOOP_SCAN_BYTES, /* RP__SCAN_STATE of each */
    RP__PROGRAM_BLOCKS = 512
};
/* NULL and a sticky error. grouped: for emitted C. */
rp__program *rp__program_new(const rp__dag *dag, rp__plan plan, const rp__tiles *tiles, bool grouped);
void rp__program_release(rp__program *p);

/* words[0] of a CPU launch; the canonical words (loop.h) follow. */
typedef enum rp__walk {
    RP__WALK_ELEMENTS, /* items: elements */
    RP__WALK_ALONG,    /* items: rows; vectors along the row */
    RP__WALK_ACROSS,   /* items: rows; vectors over rows */
    RP__WALK_LONG,     /* one item: few long rows, the entry itself splits their chunks over threads */
    RP__WALK_LANES,    /* items: every RP__LANES-th row, as ALONG (rp__space.lanes) */
    RP__WALK_BLOCKS, /* items: elements of all dims but one: transposes, in blocks that use whole cache lines of both sides */
    RP__WALK_MANY /* many element spaces of one dim, see backend.c */
} rp__walk;
static inline uint64_t rp__cpu_header(rp__walk walk, unsigned n_outer, unsigned n_inner) {
    return (uint64_t)walk | (uint64_t)n_outer << 8 | (uint64_t)n_inner << 16;
}

enum { RP__CPU_PAST = 24 }; /* bits of the header: rp__schedule.past */

enum { RP__CHUNK_PHASES = 3 }; /* of programs that have chunk functions, at most */
/* What a CPU kernel of a loop carries (rp__kernel.payload). */
typedef struct rp__cpu_loop {
    rp__program *programs[RP__PLAN_COUNT]; /* those that it may need */
    rp__program *grouped[RP__PLAN_COUNT];  /* the same for emitted C; set before the entry becomes rp__run_native */
    _Atomic(rp__line_fn *) line[RP__PLAN_COUNT]; /* compiled whole programs, of `programs`; NULL: none */
    /* the recomputing program's chunk functions, a phase each; the first is set last */
    _Atomic(rp__line_fn *) chunk[RP__CHUNK_PHASES];
    struct rp__jit_state *jit; /* jit.c */
    rp__hash key;
} rp__cpu_loop;
enum { RP__MANY_BLOCK = 2048 };       /* elements an item of RP__WALK_MANY */
enum { RP__KEEP_BYTES = 128 * 1024 }; /* of row scratch: a part of a second-level cache, beside 64 KB of tiles */
/* Does a row's scratch of a keeping program fit, for tiles of `rows` rows? */
static inline bool rp__keep_fits(const rp__program *p, int64_t row_len, int64_t rows) {
    return row_len <= RP__KEEP_BYTES &&
           (int64_t)p->kept_bytes * (((row_len * rows + 63) & ~INT64_C(63)) + 64) <= RP__KEEP_BYTES;
}
/* Line functions that are part of the library, a table an instruction set: generated by tools/gen/genlines.c. */
typedef struct rp__line_entry {
    rp__hash key; /* of the DAG */
    int plan;
    rp__line_fn *fn, *chunk[RP__CHUNK_PHASES];
} rp__line_entry;
#define RP__LINES(isa)                                                                                                 \
    extern const rp__line_entry rp__lines_##isa[];                                                                     \
    extern const size_t rp__n_lines_##isa;
RP__LINES(baseline)
#ifndef RP_ISA_BASELINE_ONLY
RP__LINES(avx2)
RP__LINES(avx512)
#endif
extern bool rp__line_table_off;       /* tests: kernels made from now on have none of them */
extern int64_t rp__line_stream_bytes; /* line.c; tests: as little as 0 */
/* Gives a new kernel those of its programs. */
void rp__line_adopt(rp__cpu_loop *loop, const rp__dag *dag, const rp__tiles *tiles);
/* line.c: items [first, last) of a launch by a line function, where there is one for its program and the space suits it. scratch:
   as interp.c's, at least 64 bytes a uniform value and what is kept. */
bool rp__line_run(const rp__cpu_loop *loop, const uint64_t *words, int64_t first, int64_t last, char *scratch);
/* The same for elements [first, last) of one group of a launch over many tensors. */
bool rp__line_run_group(const rp__cpu_loop *loop, const uint64_t *address, const int64_t *stride,
                        const uint64_t *scalars, int64_t first, int64_t last, char *scratch);
/* Few elements, in this thread; checked against the DAG as rp__space_words does. */
bool rp__line_run_flat(const rp__cpu_loop *loop, const rp__dag *dag, const rp__flat *flat);
/* Its two halves: is there a line function for it (flat->base is not looked at), and the uniform values, 64 bytes for each of the
   program's n_blocks, that the function reads. */
bool rp__line_flat_fits(const rp__cpu_loop *loop, const rp__dag *dag, const rp__flat *flat);
void rp__line_flat_blocks(const rp__cpu_loop *loop, const rp__dag *dag, const rp__flat *flat, char *blocks);
/* Uniform values of a program, 64 bytes for each of its n_blocks. */
void rp__line_blocks(const rp__program *p, const uint64_t *scalars, char *blocks);
/* How stretches of n elements each lie: those of the same index in `outer` dims. */
typedef struct rp__line_stretches {
    int64_t n, step; /* elements, and how far these lie apart */
    const int64_t *extent, *stride;
    unsigned outer, size; /* bytes of an element */
    bool still;           /* each is one value */
    const rp__tiles *tiles;
} rp__line_stretches;
typedef struct
    rp__line_filled { /* what a piece holds: n elements from number `from` of the stretch at `lies` on; NULL: nothing */
    const char *lies;
    int64_t from, n;
} rp__line_filled;
typedef struct rp__line_pieces {
    char *place[RP__DAG_MAX_ACCESSES], *piece[RP__DAG_MAX_ACCESSES];
    rp__line_filled filled[RP__DAG_MAX_ACCESSES];
    rp__line_stretches lie[RP__DAG_MAX_ACCESSES];
    uint64_t written, to_take;
    uint64_t whole;     /* bit a: its piece holds rows, not a chunk: a band of up to `band` of them (line.c), */
    int64_t band, rows; /* of the `rows` that follow each other from the first of the line on; */
    int64_t step[RP__DAG_MAX_ACCESSES],
        row[RP__DAG_MAX_ACCESSES];      /* elements to the next, 0: no band; number of the one under way */
    char *memory[RP__DAG_MAX_ACCESSES]; /* where the first of the band lies */
} rp__line_pieces;
/* How accesses lie along rows whose elements are in dims [n_outer, dims): sets l->apart and what goes with it; false: as a line function
   cannot have them. rp__line_room before it runs, for each thread: `room` holds a piece of each. rows: that it runs over; 0: chunks of one. */
bool rp__line_apart(const rp__program *p, unsigned n_outer, unsigned dims, const int64_t *extent, const int64_t *stride,
                    rp__line_pieces *x, rp__line *l);
void rp__line_room(rp__line_pieces *x, rp__line *l, char *room, int64_t rows);
/* Can all phases of a walk RP__WALK_LONG go by chunk functions? */
bool rp__line_long_fits(const rp__cpu_loop *loop, const uint64_t *words);
/* Is a launch that touches `bytes` bytes to store past the caches? l: bases, rows and their distances are set. past: as its schedule
   has it; 0: by the bytes. */
bool rp__line_streams(const rp__program *p, const rp__line *l, int64_t bytes, unsigned past);
/* interp.c: the sums of a lane (RP__WALK_LANES), for rows of n elements, become zeros; base[a] of their accesses moves there. */
void rp__interp_begin_lane(const rp__program *p, int64_t lane, int64_t n, char **base);
/* interp.c: the outer dims that all accesses walk in one line that walk the last of them so: tiles across of such stretches use memory in
   place, where rows of all outer dims lie apart. Their first dim, and the rows of a stretch; 0 where it is all of them or too short. */
unsigned rp__interp_stretch(const rp__program *p, unsigned n_outer, unsigned dims, const int64_t *extent,
                            const int64_t *stride, int64_t *rows);
/* interp_planes.c: dims of a walk over rows or elements, and how they come in planes, points and lanes of these (0: there are none);
   false: not so, or too few. */
typedef struct rp__dims {
    unsigned n_outer, dims;
    const int64_t *extent, *stride, *windows;
} rp__dims;
typedef struct rp__planes {
    unsigned first, lanes; /* dims: of the first point, of the first lane */
    int64_t planes, points, width;
    int64_t split; /* of the last dim of planes as many belong to the points: 1, or more */
} rp__planes;
bool rp__interp_planes(const rp__program *p, const rp__dims *dims, rp__planes *out);
extern bool rp__interp_planes_off; /* tests: neither do rows go so nor by routines of a row (interp_still.c), */
extern _Atomic(uint64_t) rp__interp_planes_taken; /* and how many slices went so */
rp__cpu_entry rp__interpret;                      /* tier 0 */
extern bool rp__interpret_in_reserve; /* tests: threads get no scratch of their own, as where the system has no pages */
rp__cpu_entry rp__run_native;         /* tier 1 */
extern bool
    rp__interp_groups; /* bench: false: tier 1 is line functions alone, and the interpreter does what they leave */

#endif
