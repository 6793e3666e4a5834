/* Tier 0: runs a program (program.h) over a slice of a launch. Everything lives on the stack of the slice and in the scratch
   of its thread; nothing here can fail. The entry is rp__interpret; the words are a header (rp__cpu_header) and then the
   canonical words of loop.h. This file has the scratch, sets a slice up and walks over it; interp_parts.h says what the
   others have. */
#include "kernel/cpu/interp_parts.h"

#include <sys/mman.h>

#include "core/fork.h"
#include "core/thread.h"

/* Of tile buffers: what fits beside the memory operands in a first-level cache of 32 KB. */
enum { L1_BYTES = 20 * 1024 };

typedef rp__interp run;
typedef rp__interp_scratch workspace;

/* ---- scratch of a thread -------------------------------------------------------------------------------------------- */

/* It stands in for stack, of which a thread may have little: pages of its own, mapped at the thread's first launch, touched as
   far as launches need them, unmapped when the thread ends. Two: a slice of a long row runs inside its launch. */
static RP__TLS_FAST workspace *thread_scratch;
/* Where the system gives no pages: one slice at a time uses this. Who holds it waits for nobody. */
static workspace reserve;
static rp__mutex reserve_lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_reserve, &reserve_lock, 1)
bool rp__interpret_in_reserve;

/* Behind the scratches: where rows that are put together whole lie, if they are longer than one; pages of the thread again, none of which launches
   without such rows touch. NULL: not mapped yet. */
#define SCRATCH_BYTES (RP__INTERP_SCRATCHES * sizeof(workspace) + sizeof(char *))
static char **wide_of(workspace *scratches) { return (char **)(void *)(scratches + RP__INTERP_SCRATCHES); }
static void scratch_unmap(void *p) {
    char *const wide = *wide_of(p);
    if (wide) munmap(wide, RP__INTERP_WIDE);
    munmap(p, SCRATCH_BYTES);
    thread_scratch = NULL;
}
static workspace *scratch_map(void) {
    static rp__thread_end scratches = {.end = scratch_unmap};
    void *p = MAP_FAILED;
    if (!rp__interpret_in_reserve)
        p = mmap(NULL, SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (rp__thread_keep(&scratches, p)) return thread_scratch = p;
    munmap(p, SCRATCH_BYTES);
    return NULL;
}
static __attribute__((noinline)) workspace *first_scratch(int which) {
    if (scratch_map()) return thread_scratch + which;
    rp__lock(&reserve_lock);
    return &reserve;
}
rp__interp_scratch *rp__interp_take(int which) {
    return RP__LIKELY(thread_scratch != NULL) ? thread_scratch + which : first_scratch(which);
}
void rp__interp_give(const rp__interp_scratch *s) {
    if (RP__UNLIKELY(s == &reserve)) rp__unlock(&reserve_lock);
}
bool rp__interp_in_reserve(const run *r) { return r == &reserve.r; }

char *rp__interp_wide(void) {
    if (!thread_scratch && !scratch_map()) return NULL;
    char **const at = wide_of(thread_scratch);
    if (*at) return *at;
    void *p = mmap(NULL, RP__INTERP_WIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : (*at = p);
}

/* ---- setting up a slice --------------------------------------------------------------------------------------------- */

static rp__interp_form form_of(const run *r, unsigned access) {
    const int64_t *stride = r->stride + access * r->dims;
    if (r->p->access_windows[access]) return RP__INTERP_GENERAL;
    int64_t want = 1;
    bool uniform = true, linear = true;
    for (unsigned d = r->d1; d-- > r->d0;) {
        if (r->extent[d] == 1) continue;
        uniform = uniform && stride[d] == 0;
        linear = linear && stride[d] == want;
        want *= r->extent[d];
    }
    return uniform ? RP__INTERP_UNIFORM : linear ? RP__INTERP_LINEAR : RP__INTERP_GENERAL;
}
static void byte_range(const run *r, unsigned access, intptr_t *lo, intptr_t *hi) {
    const int64_t *stride = r->stride + access * r->dims;
    int64_t low = 0, high = 1;
    for (unsigned d = 0; d < r->dims; d++) {
        int64_t span = (r->extent[d] - 1) * stride[d];
        if (span < 0)
            low += span;
        else
            high += span;
    }
    *lo = (intptr_t)r->address[access] + low * r->p->access_size[access];
    *hi = (intptr_t)r->address[access] + high * r->p->access_size[access];
}
static void find_direct(run *r) {
    const rp__program *p = r->p;
    for (unsigned k = 0; k < p->n_stores; k++) {
        const rp__program_store *st = &p->stores[k];
        r->direct[k] = st->direct && r->form[st->access] == RP__INTERP_LINEAR;
        if (!r->direct[k] || !st->late_reads) continue;
        intptr_t lo, hi, from, to;
        byte_range(r, st->access, &lo, &hi);
        for (unsigned a = 0; a < p->n_accesses; a++) {
            if (!(st->late_reads >> a & 1)) continue;
            if (p->access_windows[a]) r->direct[k] = false;
            byte_range(r, a, &from, &to);
            if (from < hi && lo < to) r->direct[k] = false;
        }
    }
}
/* Is the access read at places that are calculated, which its range does not know? */
static bool has_places(const rp__program *p, unsigned access) {
    for (uint32_t k = 0; k < p->n_insns; k++)
        if (p->insns[k].kind == RP__INSN_LOAD && p->insns[k].access == access && p->insns[k].a != RP__NO_VAL)
            return true;
    return false;
}
/* A swap, or a buffer that is given what was there before: a store writes, and the next one has what was loaded from there. */
static void find_copied(run *r) {
    const rp__program *p = r->p;
    r->copied = 0;
    for (unsigned k = 0; k < p->n_stores && p->n_stores > 1; k++) {
        for (unsigned a = 0; a < p->n_accesses && p->stores[k].loaded >> a; a++) {
            if (!(p->stores[k].loaded >> a & 1)) continue;
            intptr_t lo, hi, from, to;
            byte_range(r, a, &from, &to);
            for (unsigned j = 0; j < p->n_stores; j++) {
                byte_range(r, p->stores[j].access, &lo, &hi);
                const bool apart = !p->access_windows[a] && !has_places(p, a) && p->stores[j].offset == RP__NO_VAL &&
                                   (hi <= from || to <= lo);
                if (j != k && !apart) r->copied |= UINT64_C(1) << a;
            }
        }
    }
}
/* Pointers into scratch for tiles of r->tile elements, r->w rows of r->b positions. At most, in KB, given the limits of a
   program: blocks 32; row values 64, or along 32; tiles 64; accumulators and scans 96; stack of partials 30 levels of 1/32 of that;
   raw halves 16; kept 128. */
void rp__interp_lay_out(run *r, char *scratch) {
    const rp__program *p = r->p;
    char *at = scratch;
    r->blocks = at;
    at += 64 * (size_t)p->n_blocks;
    r->rowbuf = at;
    for (unsigned k = 0; k < p->n_row_regs; k++) {
        bool across = r->walk == RP__WALK_ACROSS;
        r->regs[p->row_reg[k]] = (rp__interp_reg){at, across};
        at += across ? rp__interp_round64(r->w * r->b) * p->row_size[k] : 64;
    }
    r->tiles = at;
    at += r->tile * p->tile_bytes;
    r->acc = at;
    at += rp__interp_round64((int64_t)p->acc_bytes * r->lanes * r->w);
    r->stack = at;
    unsigned levels = 0;
    for (int64_t c = (r->row_len + RP__CHUNK - 1) / RP__CHUNK; c > 0; c >>= 1) levels++;
    if (levels > 1) at += rp__interp_round64((int64_t)p->acc_bytes * r->w * levels);
    r->scan = at;
    at += rp__interp_round64((int64_t)p->scan_bytes * r->w);
    r->raw = at;
    if (p->converts) at += r->tile * 2;
    r->kept = at;
}
static int64_t floor_pow2(int64_t n) { return n < 1 ? 1 : INT64_C(1) << (63 - __builtin_clzll((uint64_t)n)); }
static int64_t clamp(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

void rp__interp_begin(run *r, const rp__program *p, const uint64_t *words, rp__walk walk) {
    const unsigned n_outer = (unsigned)(words[0] >> 8 & 0xff), dims = n_outer + (unsigned)(words[0] >> 16 & 0xff);
    r->p = p;
    r->part = RP__INTERP_ALL;
    r->repeats = 0;
    r->walk = walk;
    r->n_outer = n_outer;
    r->dims = dims;
    r->address = words + 1;
    r->extent = (const int64_t *)(r->address + p->n_accesses);
    r->stride = r->extent + dims;
    r->windows = r->stride + (size_t)dims * p->n_accesses;
    r->scalars = (const uint64_t *)(r->windows + (size_t)(4 + dims) * p->n_windows);
    r->env.draws = r->scalars + p->n_scalars;
    if (p->checks) {
        const uint64_t *e = r->env.draws + 3 * (size_t)p->n_draws;
        r->env.errors = (rp__error_record *)(uintptr_t)e[0];
        r->env.tag = e[1];
    }
}
void rp__interp_begin_walk(run *r) {
    r->rows = r->row_len = 1;
    for (unsigned d = 0; d < r->dims; d++) *(d < r->n_outer ? &r->rows : &r->row_len) *= r->extent[d];
    r->lanes = r->walk == RP__WALK_ACROSS ? clamp(r->row_len, 1, RP__LANES) : RP__LANES;
    r->d0 = r->walk == RP__WALK_ALONG || r->walk == RP__WALK_LONG ? r->n_outer : 0;
    r->d1 = r->walk == RP__WALK_ACROSS ? r->n_outer : r->dims;
    for (unsigned a = 0; a < r->p->n_accesses; a++) r->base[a] = (char *)(uintptr_t)r->address[a];
    for (unsigned k = 0; k < r->p->n_windows; k++) r->place[k] = -r->windows[k * (4 + r->dims) + 2];
    rp__interp_forms(r);
}
void rp__interp_forms(run *r) {
    for (unsigned a = 0; a < r->p->n_accesses; a++) r->form[a] = (uint8_t)form_of(r, a);
    find_direct(r);
    find_copied(r);
}
int64_t rp__interp_tile_for(const rp__program *p, int64_t n) {
    int64_t t = clamp(floor_pow2(L1_BYTES / (p->tile_bytes ? p->tile_bytes : 1)), 64, 2048);
    return n < t ? rp__interp_round64(n) : t;
}

static void run_elements(run *r, int64_t first, int64_t last, char *scratch) {
    r->part = RP__INTERP_ALL;
    rp__interp_begin_walk(r);
    r->w = r->b = r->nq = 1;
    r->tile = rp__interp_tile_for(r->p, last - first);
    rp__interp_lay_out(r, scratch);
    rp__interp_uniform(r);
    if (!r->p->n_phases) return;
    for (int64_t pos = first; pos < last; pos += r->tile) {
        int64_t n = last - pos < r->tile ? last - pos : r->tile;
        r->pos = pos;
        rp__interp_element(r, 0, n);
    }
}
/* IOTA bases are numbers in base[]; others are addresses. Added up as numbers, then. */
void rp__interp_set_row(run *r, int64_t row) {
    for (unsigned a = 0; a < r->p->n_accesses; a++) {
        int64_t off = rp__interp_offset(r, a, 0, r->n_outer, row);
        const int64_t step = off * (r->p->access_iota[a] ? 1 : r->p->access_size[a]);
        r->base[a] = (char *)(uintptr_t)((uint64_t)r->address[a] + (uint64_t)step);
    }
    for (unsigned k = 0; k < r->p->n_windows; k++) {
        const int64_t *w = r->windows + k * (4 + r->dims);
        r->place[k] = rp__interp_along(r, w + 4, 0, r->n_outer, row) - w[2];
    }
}
void rp__interp_size_along(run *r) {
    const rp__program *p = r->p;
    r->w = r->nq = 1;
    r->tile = rp__interp_tile_for(p, r->row_len);
    if (r->row_len <= RP__CHUNK && rp__interp_round64(r->row_len) * p->tile_bytes <= RP__KEEP_BYTES / 2)
        r->tile = rp__interp_round64(r->row_len ? r->row_len : 1);
    r->b = r->tile;
    r->kept_cap = rp__interp_round64(r->row_len);
}
static void run_along(run *r, int64_t first, int64_t last, char *scratch) {
    rp__interp_begin_walk(r);
    rp__interp_size_along(r);
    rp__interp_lay_out(r, scratch);
    rp__interp_uniform(r);
    for (int64_t row = first; row < last; row++) {
        rp__interp_set_row(r, row);
        rp__interp_phases(r);
    }
}
/* Memory of the sums of lane `lane`, as zeros. */
void rp__interp_begin_lane(const rp__program *p, int64_t lane, int64_t n, char **base) {
    for (unsigned a = 0; a < p->n_accesses; a++) {
        if (!(p->added >> a & 1)) continue;
        base[a] += lane * n * p->access_size[a];
        memset(base[a], 0, (size_t)n * p->access_size[a]);
    }
}
static void run_lanes(run *r, int64_t first, int64_t last, char *scratch) {
    r->walk = RP__WALK_ALONG;
    rp__interp_begin_walk(r);
    rp__interp_size_along(r);
    rp__interp_lay_out(r, scratch);
    rp__interp_uniform(r);
    for (int64_t lane = first; lane < last; lane++) {
        char *sums[RP__DAG_MAX_ACCESSES];
        for (unsigned a = 0; a < r->p->n_accesses; a++) sums[a] = (char *)(uintptr_t)r->address[a];
        rp__interp_begin_lane(r->p, lane, r->row_len, sums);
        for (int64_t row = lane; row < r->rows; row += RP__LANES) {
            rp__interp_set_row(r, row);
            for (unsigned a = 0; a < r->p->n_accesses; a++) {
                if (r->p->added >> a & 1) r->base[a] = sums[a];
            }
            rp__interp_phases(r);
        }
    }
}
/* Rows of a tile across. Few positions: what it needs stays near a first-level cache. Many: each is another line of memory, read the better
   the longer it is, so that sums may fill much of a second-level cache. What is kept is to fit, if that leaves rows enough. */
int64_t rp__interp_across_width(const rp__program *p, int64_t rows, int64_t row_len) {
    enum { FEW = 2 * RP__LANES, NEAR = 96 * 1024, FAR = 320 * 1024, ENOUGH = 64 };
    int64_t levels = 0, most = row_len <= FEW ? 512 : 1024;
    for (int64_t c = (row_len + RP__CHUNK - 1) / RP__CHUNK; c > 1; c >>= 1) levels++;
    const int64_t per_row = (int64_t)p->acc_bytes * (clamp(row_len, 1, RP__LANES) + (levels ? levels + 1 : 0)) +
                            p->scan_bytes + p->tile_bytes + p->row_bytes * 2 + 2;
    if (row_len <= FEW) {
        most = clamp(floor_pow2(NEAR / per_row), 16, most);
    } else {
        most = clamp(FAR / per_row / 16 * 16, 16, most);
        const int64_t kept = p->kept_bytes ? (RP__KEEP_BYTES / p->kept_bytes - 128) / row_len / 16 * 16 : most;
        if (kept >= ENOUGH && kept < most) most = kept;
    }
    return clamp(rows, 16, most);
}
unsigned rp__interp_stretch(const rp__program *p, unsigned n_outer, unsigned dims, const int64_t *extent,
                            const int64_t *stride, int64_t *rows) {
    enum { SHORT = 16 };
    unsigned split = n_outer;
    int64_t many = 1;
    for (bool fits = true; split > 0 && fits; split -= fits) {
        for (unsigned a = 0; a < p->n_accesses && fits; a++) {
            const int64_t *own = stride + (size_t)a * dims;
            if (p->access_windows[a] || p->access_iota[a] || own[n_outer - 1] != 1) continue;
            fits = own[split - 1] == many || extent[split - 1] == 1;
        }
        if (fits) many *= extent[split - 1];
    }
    if (many < SHORT) return 0;
    if (split) *rows = many;
    return split;
}
/* Of `left` rows in the next tile: no short one is left over. */
static int64_t tile_rows(int64_t left, int64_t width) {
    const int64_t tiles = (left + width - 1) / width, rows = ((left + tiles - 1) / tiles + 15) / 16 * 16;
    const int64_t most = left < width ? left : width;
    return rows < most ? rows : most;
}
enum { SHORT_COLUMN = 8 * RP__LANES, COLUMN_BYTES = 16 * 1024, WHOLE_COLUMNS = 512, SHORTEST_COLUMNS = 4 };
enum { BLOCK_ROWS = 128, BLOCK_POSITIONS = 16 }; /* 16 elements of four bytes are a cache line; 128 lines are 8 KB */
/* Is it one of those that tiles of several positions repeat (weights of a norm whose channels lie last)? */
static bool repeats(const run *r, unsigned a) {
    if (r->form[a] != RP__INTERP_LINEAR || r->copied >> a & 1 || r->p->written >> a & 1 || r->p->access_iota[a] ||
        r->p->access_row[a])
        return false;
    for (unsigned d = r->n_outer; d < r->dims; d++)
        if (r->stride[a * r->dims + d] != 0 && r->extent[d] != 1) return false;
    return true;
}
/* As many as have room. */
static uint64_t repeating(const run *r) {
    uint64_t found = 0;
    int64_t left = RP__INTERP_PLANES / (8 * r->tile);
    for (unsigned a = 0; a < r->p->n_accesses && left > 0; a++) {
        const bool is = repeats(r, a);
        found |= (uint64_t)is << a;
        left -= is;
    }
    return found;
}
/* Rows that lie along their inner dim, all of them: nothing is used in place, so tiles take as many positions as one line of memory has
   and turn them in registers, as blocks do. */
static bool turned(const run *r) {
    const rp__program *p = r->p;
    if (r->dims != r->n_outer + 1u || r->row_len < BLOCK_POSITIONS / 2) return false;
    bool any = false;
    for (unsigned a = 0; a < p->n_accesses; a++) {
        if (p->access_row[a] || p->access_iota[a]) continue;
        if (p->access_windows[a] || r->form[a] == RP__INTERP_LINEAR) return false;
        any = any || r->stride[a * r->dims + r->n_outer] == 1;
    }
    return any;
}
/* A program that only reduces what it loads goes by columns (tiles.h): where rows are short, sums that stay in a first-level cache count for
   more than wide lines of memory. */
static bool short_columns(const run *r) {
    const rp__program *p = r->p;
    if (p->n_phases != 1 || !p->n_reductions || r->row_len > SHORT_COLUMN) return false;
    for (uint32_t k = p->element[0].begin; k < p->element[0].end; k++) {
        if (p->insns[k].kind != RP__INSN_REDUCE && (p->insns[k].kind != RP__INSN_LOAD || k > p->element[0].begin))
            return false;
    }
    return true;
}
static void run_across(run *r, int64_t first, int64_t last, bool blocks, char *scratch) {
    rp__interp_begin_walk(r);
    r->stretch = r->rows;
    const unsigned split =
        blocks ? 0 : rp__interp_stretch(r->p, r->n_outer, r->dims, r->extent, r->stride, &r->stretch);
    r->d0 = split;
    if (split) rp__interp_forms(r);
    const int64_t bytes = (int64_t)r->p->tile_bytes + r->p->row_bytes + 1;
    int64_t width = blocks ? BLOCK_ROWS : rp__interp_across_width(r->p, r->rows, r->row_len);
    const bool whole = !blocks && short_columns(r) && rp__interp_whole_columns(r, 0);
    if (whole) {
        r->lanes = 1;
        width = clamp(COLUMN_BYTES * 4 / ((int64_t)r->p->acc_bytes + 2 * bytes) / 16 * 16, 16,
                      r->row_len <= SHORTEST_COLUMNS ? 4 * WHOLE_COLUMNS / r->row_len / 16 * 16 : WHOLE_COLUMNS);
    } else if (!blocks && short_columns(r))
        width = clamp(COLUMN_BYTES / (int64_t)(r->p->acc_bytes * r->lanes), 16, width);
    const bool turn = !blocks && turned(r);
    if (turn) width = clamp(L1_BYTES / bytes / BLOCK_POSITIONS / 16 * 16, 16, width < BLOCK_ROWS ? width : BLOCK_ROWS);
    int64_t laid_w = 0, laid_b = 0;
    for (int64_t w0 = first; w0 < last; w0 += r->w) {
        const int64_t before = w0 / r->stretch, end = (before + 1) * r->stretch;
        const int64_t left = (end < last ? end : last) - w0;
        r->w0 = w0;
        r->w = tile_rows(left, width);
        for (unsigned a = 0; a < r->p->n_accesses; a++)
            r->shift[a] = rp__interp_offset(r, a, 0, split, before) - before * r->stretch;
        /* One position after the other in memory, of all rows: tiles of several positions are linear too. */
        bool in_place = true;
        for (unsigned a = 0; a < r->p->n_accesses; a++) {
            int64_t want = r->stretch;
            bool flat = r->w == r->stretch;
            for (unsigned d = r->dims; d-- > r->n_outer;) {
                flat = flat && (r->extent[d] == 1 || r->stride[a * r->dims + d] == want);
                want *= r->extent[d];
            }
            r->flat[a] = flat;
            in_place = in_place && (flat || r->p->access_row[a] || r->form[a] != RP__INTERP_LINEAR || repeats(r, a));
        }
        /* Wide tiles take one position: memory is used in place; narrow ones several, so that a tile is worth its calls. */
        r->b =
            r->w >= 128 ? 1 : clamp(floor_pow2((bytes * 512 < L1_BYTES ? 512 : L1_BYTES / bytes) / r->w), 1, RP__LANES);
        if (split && !in_place) r->b = 1; /* what lies in stretches is used where it is, a position at a time */
        if (turn)
            r->b = clamp(floor_pow2(L1_BYTES / bytes / r->w), 1,
                         r->row_len < BLOCK_POSITIONS ? r->row_len : BLOCK_POSITIONS);
        if (blocks) r->b = clamp(floor_pow2(L1_BYTES / bytes / r->w), 1, BLOCK_POSITIONS);
        if (r->w != laid_w || r->b != laid_b) {
            laid_w = r->w;
            laid_b = r->b;
            r->tile = rp__interp_round64(r->w * r->b);
            r->kept_cap = rp__interp_round64(r->row_len * r->w) +
                          64; /* the last tile may start anywhere and is written in full vectors */
            rp__interp_lay_out(r, scratch);
            rp__interp_uniform(r);
            r->repeats = r->b > 1 ? repeating(r) : 0;
            r->repeats_at = scratch + RP__INTERP_BYTES;
        }
        r->repeated_yet = 0;
        rp__interp_phases(r);
    }
    r->repeats = 0;
}

/* ---- many element spaces -------------------------------------------------------------------------------------------- */

/* Words: [header | groups << 32] [first item of each group, and the end] [extent of each group] [address of each access, group
   by group] [stride of each access, group by group] [scalars] [draws] [error record, tag]. Items are blocks of RP__MANY. */
static void run_many(run *r, const rp__cpu_loop *loop, const rp__program *p, const uint64_t *words, int64_t first,
                     int64_t last, char *scratch) {
    const uint64_t groups = words[0] >> 32;
    const int64_t *start = (const int64_t *)(words + 1), *extents = start + groups + 1;
    const uint64_t *address = (const uint64_t *)(extents + groups);
    const int64_t *strides = (const int64_t *)(address + groups * p->n_accesses);
    r->p = p;
    r->walk = RP__WALK_ELEMENTS;
    r->part = RP__INTERP_ALL;
    r->repeats = 0; /* what another walk of this thread repeated is not this one's */
    r->n_outer = r->dims = 1;
    r->scalars = (const uint64_t *)(strides + groups * p->n_accesses);
    r->env.draws = r->scalars + p->n_scalars;
    if (p->checks) {
        const uint64_t *e = r->env.draws + 3 * (size_t)p->n_draws;
        r->env.errors = (rp__error_record *)(uintptr_t)e[0];
        r->env.tag = e[1];
    }
    uint64_t lo = 0, hi = groups - 1;
    while (lo < hi) { /* the last group that starts at or before `first` */
        uint64_t mid = (lo + hi + 1) / 2;
        if (start[mid] <= first)
            lo = mid;
        else
            hi = mid - 1;
    }
    for (uint64_t g = lo; g < groups && start[g] < last; g++) {
        int64_t from = (first > start[g] ? first - start[g] : 0) * RP__MANY_BLOCK,
                to = (last - start[g]) * RP__MANY_BLOCK;
        if (to > extents[g]) to = extents[g];
        if (from >= to) continue;
        const int64_t *stride = strides + g * p->n_accesses;
        if (rp__line_run_group(loop, address + g * p->n_accesses, stride, r->scalars, from, to, scratch)) continue;
        r->address = address + g * p->n_accesses;
        r->extent = extents + g;
        r->stride = stride;
        run_elements(r, from, to, scratch);
    }
}

/* The keeping program, where what it keeps fits. r: its dims are set. */
static const rp__program *rows_program(const run *r, rp__program *const *programs) {
    const rp__program *keep = programs[RP__PLAN_KEEP];
    if (!keep) return programs[RP__PLAN_RECOMPUTE];
    int64_t row_len = 1, rows = 1;
    for (unsigned d = 0; d < r->dims; d++) *(d < r->n_outer ? &rows : &row_len) *= r->extent[d];
    const int64_t width = r->walk == RP__WALK_ACROSS ? rp__interp_across_width(keep, rows, row_len) : 1;
    return rp__keep_fits(keep, row_len, width) ? keep : programs[RP__PLAN_RECOMPUTE];
}

static void run_walk(const rp__cpu_loop *loop, rp__program *const *programs, const uint64_t *words, int64_t first,
                     int64_t last, run *r, char *scratch) {
    const rp__walk walk = (rp__walk)(words[0] & 0xff);
    if (walk == RP__WALK_MANY) {
        run_many(r, loop, programs[RP__PLAN_ELEMENTS], words, first, last, scratch);
        return;
    }
    if (loop->programs[RP__PLAN_RECOMPUTE] && loop->programs[RP__PLAN_RECOMPUTE]->largest.phase &&
        walk != RP__WALK_LONG)
        programs = loop->programs; /* its search is better than a group */
    const rp__program *p =
        programs[walk == RP__WALK_ELEMENTS || walk == RP__WALK_BLOCKS ? RP__PLAN_ELEMENTS : RP__PLAN_RECOMPUTE];
    if (walk == RP__WALK_LONG && rp__line_long_fits(loop, words)) {
        rp__interp_begin(r, loop->programs[RP__PLAN_RECOMPUTE], words, walk);
        rp__interp_long(r, loop, scratch);
        return;
    }
    if (walk == RP__WALK_ELEMENTS) {
        rp__interp_begin(r, loop->programs[RP__PLAN_ELEMENTS], words, walk);
        if (rp__interp_copies(r, first, last, scratch)) return;
        rp__interp_begin(r, loop->programs[RP__PLAN_ELEMENTS], words, walk);
        if (rp__interp_by_planes(r, first, last, scratch)) return;
        rp__interp_begin(r, loop->programs[RP__PLAN_ELEMENTS], words, walk);
        if (programs != loop->programs && rp__interp_by_rows(r, first, last, true, scratch)) return;
        rp__interp_begin(r, p, words, walk);
        if (!rp__interp_by_rows(r, first, last, false, scratch)) run_elements(r, first, last, scratch);
        return;
    }
    rp__interp_begin(r, p, words, walk);
    if (walk == RP__WALK_BLOCKS) {
        r->walk = RP__WALK_ACROSS;
        run_across(r, first, last, true, scratch);
        return;
    }
    if (walk == RP__WALK_ACROSS) {
        rp__interp_begin(r, rows_program(r, loop->programs), words, walk);
        if (rp__interp_by_planes(r, first, last, scratch)) return;
        rp__interp_begin(r, p, words, walk);
    }
    if (walk != RP__WALK_LONG) r->p = rows_program(r, programs);
    if (walk == RP__WALK_LANES)
        run_lanes(r, first, last, scratch);
    else if (walk == RP__WALK_ALONG)
        run_along(r, first, last, scratch);
    else if (walk == RP__WALK_ACROSS)
        run_across(r, first, last, false, scratch);
    else
        rp__interp_long(r, NULL, scratch);
}
static void run_launch(const rp__cpu_loop *loop, rp__program *const *programs, const uint64_t *words, int64_t first,
                       int64_t last) {
    workspace *mine = rp__interp_take(RP__INTERP_LAUNCH);
    if (!rp__line_run(loop, words, first, last, mine->tiles))
        run_walk(loop, programs, words, first, last, &mine->r, mine->tiles);
    rp__interp_give(mine);
}
void rp__interpret(const rp__kernel *kernel, const uint64_t *words, int64_t first, int64_t last) {
    const rp__cpu_loop *loop = kernel->payload;
    run_launch(loop, loop->programs, words, first, last);
}
bool rp__interp_groups = true;
void rp__run_native(const rp__kernel *kernel, const uint64_t *words, int64_t first, int64_t last) {
    const rp__cpu_loop *loop = kernel->payload;
    run_launch(loop, rp__interp_groups ? loop->grouped : loop->programs, words, first, last);
}
