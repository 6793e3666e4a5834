/* Runs launches by line functions (line.h): whole programs compiled to one function over rows of contiguous elements, either
   part of the library (tools/gen/genlines.c) or emitted and loaded (jit.c). Called by interp.c before it walks tiles itself;
   says no, and has done nothing, when the program has no such function or the space is not of rows that lie in memory element
   after element, or of stretches in which operands lie so or stand still. Of rows in stretches a function takes a chunk at a time,
   put together for it where it is not one stretch. The same bits as the interpreter's. */
#include <assert.h>
#include <string.h>

#include "kernel/cpu/interp_parts.h"
#include "kernel/cpu/program.h"

enum { STREAM_ALIGN = 64 };
/* Launches that touch more bytes than this leave little of their output in a last-level cache, which other cores and programs
   use as well: reading output in, only to write over it, would be all that the caches do. Measured with layer_norm over 16 MB
   and two threads on a part of a 32 MB cache: 0.7 of the time. */
int64_t rp__line_stream_bytes = 24 << 20;

/* ---- those of the library */

static const struct {
    const rp__tiles *tiles;
    const rp__line_entry *lines;
    const size_t *n;
} tables[] = {
#ifndef RP_ISA_BASELINE_ONLY
    {&rp__tiles_avx2, rp__lines_avx2, &rp__n_lines_avx2},
    {&rp__tiles_avx512, rp__lines_avx512, &rp__n_lines_avx512},
#endif
    {&rp__tiles_baseline, rp__lines_baseline, &rp__n_lines_baseline},
};
bool rp__line_table_off;

void rp__line_adopt(rp__cpu_loop *loop, const rp__dag *dag, const rp__tiles *tiles) {
    for (size_t t = 0; t < sizeof tables / sizeof *tables && !rp__line_table_off; t++) {
        if (tables[t].tiles != tiles) continue;
        for (size_t i = 0; i < *tables[t].n; i++) {
            const rp__line_entry *e = &tables[t].lines[i];
            if (!rp__hash_equal(e->key, dag->key) || !loop->programs[e->plan]) continue;
            atomic_init(&loop->line[e->plan], e->fn);
            for (unsigned k = 0; k < RP__CHUNK_PHASES && e->chunk[0]; k++) atomic_init(&loop->chunk[k], e->chunk[k]);
        }
    }
}

/* ---- running */

/* As many of a value as a word has room for. */
static uint64_t word_of(uint64_t bits, unsigned size) {
    return size == 1   ? (bits & 255) * UINT64_C(0x0101010101010101)
           : size == 2 ? (bits & 0xffff) * UINT64_C(0x0001000100010001)
           : size == 4 ? (bits & 0xffffffff) * UINT64_C(0x100000001)
                       : bits;
}
static void repeat(char *block, uint64_t bits, unsigned size) {
    uint64_t w[8];
    for (int i = 0; i < 8; i++) w[i] = word_of(bits, size);
    memcpy(block, w, sizeof w);
}
/* `size` bytes at `from` again and again, up to a line beyond `bytes`. From registers: a line in memory would be read before it is there.
   All stores but the first are aligned: short stretches begin anywhere. */
static void fill_lines(char *to, const char *from, unsigned size, int64_t bytes) {
    typedef uint64_t line __attribute__((vector_size(16), may_alias));
    typedef line anywhere __attribute__((aligned(1)));
    uint64_t bits = 0;
    switch (size) { /* of known length: no call */
    case 1: memcpy(&bits, from, 1); break;
    case 2: memcpy(&bits, from, 2); break;
    case 4: memcpy(&bits, from, 4); break;
    default: memcpy(&bits, from, 8);
    }
    const line w = {word_of(bits, size), word_of(bits, size)};
    *(anywhere *)(void *)to = w;
    char *const end = to + bytes;
    for (char *at = to + 16 - (uintptr_t)to % 16; at < end; at += 64) {
        for (int k = 0; k < 64; k += 16) *(line *)(void *)(at + k) = w;
    }
}
/* Uniform values: constants, scalars, and what follows from them alone; the k-th instruction makes block k. */
void rp__line_blocks(const rp__program *p, const uint64_t *scalars, char *blocks) {
    for (uint32_t k = 0; k < p->uniform_end; k++) {
        const rp__insn *i = &p->insns[k];
        char *d = blocks + 64 * (size_t)k;
        if (!i->fn) {
            repeat(d, i->b == RP__NO_VAL ? (uint64_t)i->imm : scalars[i->b], i->size);
            continue;
        }
        const uint16_t operands[3] = {i->a, i->b, i->c};
        const void *at[3] = {NULL, NULL, NULL};
        for (int o = 0; o < 3; o++) {
            for (uint32_t b = 0; b < k && operands[o] != RP__NO_VAL; b++) {
                if (p->block_reg[b] == operands[o]) at[o] = blocks + 64 * (size_t)b;
            }
        }
        const rp__tile_call t = {.d = d, .a = at[0], .b = at[1], .c = at[2], .n = 1, .imm = i->imm};
        i->fn(&t);
        uint64_t bits = 0;
        memcpy(&bits, d, i->size);
        repeat(d, bits, i->size);
    }
}

/* Steps of access `a` over dims [d0, d1), walked as one: 1 one element after the other, 0 one value, -1 anything else. */
static int step_of(const int64_t *extent, const int64_t *stride, unsigned d0, unsigned d1) {
    int64_t want = 1;
    bool still = true, linear = true;
    for (unsigned d = d1; d-- > d0;) {
        if (extent[d] == 1) continue;
        still = still && stride[d] == 0;
        linear = linear && stride[d] == want;
        want *= extent[d];
    }
    return linear ? 1 : still ? 0 : -1;
}
/* Those of a line function's access over dims [d0, d1). An iota that nothing reads any more is no memory: it lies as the whole does. */
static int line_step(const rp__program *p, unsigned a, unsigned dims, const int64_t *extent, const int64_t *stride,
                     unsigned d0, unsigned d1) {
    return p->access_iota[a] ? 1 : step_of(extent, stride + (size_t)a * dims, d0, d1);
}
/* An iota's is a number and not memory, 0 too: added up as numbers. */
static char *moved(uint64_t address, int64_t bytes) { return (char *)(uintptr_t)(address + (uint64_t)bytes); }
/* What a turn of elements of step 1 moves. */
static int64_t line_bytes(const rp__program *p, unsigned a, int step) {
    return step == 1 && !p->access_iota[a] ? p->access_size[a] : 0;
}
/* May stores pass the caches by? Stores of elements only; their rows must be aligned. */
bool rp__line_streams(const rp__program *p, const rp__line *l, int64_t bytes, unsigned past) {
    if (l->apart & p->written) return false;
    if (past ? past == 1 : bytes < rp__line_stream_bytes) return false;
    uintptr_t any = 0;
    for (unsigned k = 0; k < p->n_stores; k++) {
        const rp__program_store *st = &p->stores[k];
        if (!st->row) any |= (uintptr_t)l->base[st->access] | (uintptr_t)(l->rows > 1 ? l->row[st->access] : 0);
    }
    return any % STREAM_ALIGN == 0;
}

static int64_t offset_of(const int64_t *extent, const int64_t *stride, unsigned dims, int64_t row) {
    int64_t offset = 0;
    for (unsigned d = dims; d-- > 0;) {
        offset += (d ? row % extent[d] : row) * stride[d];
        if (d) row /= extent[d];
    }
    return offset;
}

enum {
    TURN = 32, /* elements of a loop turn of a line function: what is left of a stretch costs as much as some turns, */
    SHORT = 256,     /* so that such stretches below this length are put together */
    TOGETHER = 1024, /* as a piece of so many elements */
    TURNED = 8       /* stretches turned at once: whatever their length, a first-level cache has a line of each */
};

typedef rp__line_stretches stretches;
/* `count` stretches of `bytes` bytes, `step` from each other in memory and one after the other in a piece, which has room for a line more. */
static void move_each(char *piece, char *lies, int64_t bytes, int64_t step, int64_t count, bool apart) {
#define MOVE_OF(n)                                                                                                     \
    for (; count > 0; count--, piece += n, lies += step) memcpy(apart ? lies : piece, apart ? piece : lies, n)
    switch (bytes) { /* of known length: no call */
    case 8: MOVE_OF(8); break;
    case 16: MOVE_OF(16); break;
    case 32: MOVE_OF(32); break;
    case 64: MOVE_OF(64); break;
    case 128: MOVE_OF(128); break;
    default:
        for (; count > 0; count--, piece += bytes, lies += step)
            memcpy(apart ? lies : piece, apart ? piece : lies, (size_t)bytes);
    }
#undef MOVE_OF
}
/* A part of one stretch whose elements lie apart. */
static void move_part(const stretches *s, char *piece, char *memory, int64_t first, int64_t last, bool apart) {
    const int64_t offset = offset_of(s->extent, s->stride, s->outer, first / s->n) + first % s->n * s->step;
    char *const lies = memory + offset * s->size;
    const rp__tile_call t = {
        .d = apart ? lies : piece, .a = apart ? piece : lies, .as = 1, .n = last - first, .imm = s->step};
    (apart ? s->tiles->scatter : s->tiles->gather)[rp__interp_log2(s->size)](&t);
}
/* Stretches whose elements lie apart, as places do where channels lie last: a few elements of each stretch, so that lines of memory
   that stretches share are still near for the next. Stretches that lie side by side are turned in registers. */
static void move_strided(const stretches *s, char *piece, char *memory, int64_t first, int64_t last, bool apart) {
    enum { AT_ONCE = 64 }; /* elements of each */
    const int64_t size = s->size, head = (s->n - first % s->n) % s->n;
    if (first / s->n == (last - 1) / s->n) {
        move_part(s, piece, memory, first, last, apart);
        return;
    }
    if (head) move_part(s, piece, memory, first, first + head, apart);
    const unsigned d = s->outer - 1; /* there are several stretches */
    const int64_t end = last / s->n * s->n, side = s->stride[d] == 1 ? s->extent[d] : 1;
    rp__tile_fn *const turn = s->tiles->transpose[rp__interp_log2(s->size)];
    for (int64_t from = 0; from < s->n; from += AT_ONCE) {
        const int64_t m = s->n - from < AT_ONCE ? s->n - from : AT_ONCE;
        for (int64_t at = first + head, many; at < end; at += many * s->n) {
            const int64_t number = at / s->n, left = (end - at) / s->n;
            many = side - number % side < left ? side - number % side : left;
            if (many > TURNED) many = TURNED;
            char *const packed = piece + (at - first + from) * size;
            char *const lies = memory + (offset_of(s->extent, s->stride, s->outer, number) + from * s->step) * size;
            /* Of the next elements each is another line, further on than the turn itself asks for. */
            const int64_t next = s->n - from - AT_ONCE < AT_ONCE ? s->n - from - AT_ONCE : AT_ONCE;
            for (int64_t k = AT_ONCE; k < AT_ONCE + next; k++) {
                if (apart)
                    __builtin_prefetch(lies + k * s->step * size, 1, 2);
                else
                    __builtin_prefetch(lies + k * s->step * size, 0, 2);
            }
            const rp__tile_call t =
                apart ? (rp__tile_call){.d = lies, .a = packed, .as = s->step, .n = many, .bs = m, .imm = s->n}
                      : (rp__tile_call){.d = packed, .a = lies, .as = s->n, .n = m, .bs = many, .imm = s->step};
            turn(&t);
        }
    }
    if (end < last) move_part(s, piece + (end - first) * size, memory, end, last, apart);
}
/* Elements [first, last) between memory and a piece, where they lie one after the other: put together there, or taken apart. */
static void move_stretches(const stretches *s, char *piece, char *memory, int64_t first, int64_t last, bool apart) {
    if (s->step > 1 || s->step < 0) {
        move_strided(s, piece, memory, first, last, apart);
        return;
    }
    int64_t index[RP_MAX_DIMS], offset = 0, begin = first % s->n, left = first / s->n;
    const int64_t *const extent = s->extent, *const stride = s->stride;
    for (unsigned d = s->outer; d-- > 0; left /= extent[d]) {
        index[d] = left % extent[d];
        offset += index[d] * stride[d];
    }
    for (int64_t at = first; at < last; begin = 0) {
        int64_t m = s->n - begin < last - at ? s->n - begin : last - at, many = 1, step = 0;
        if (m == s->n && s->outer) { /* as many whole ones as the next dim has */
            const unsigned d = s->outer - 1;
            many = (last - at) / m < extent[d] - index[d] ? (last - at) / m : extent[d] - index[d];
            step = stride[d] * s->size;
        }
        const int64_t bytes = m * s->size;
        char *lies = memory + (offset + (s->still ? 0 : begin)) * s->size;
        if (s->still) {
            for (int64_t k = 0; k < many; k++) fill_lines(piece + k * bytes, lies + k * step, s->size, bytes);
        } else {
            move_each(piece, lies, bytes, step, many, apart);
        }
        piece += many * bytes, at += many * m;
        for (unsigned d = s->outer; d-- > 0; many = 1) {
            offset += many * stride[d];
            index[d] += many;
            if (index[d] < extent[d]) break;
            offset -= stride[d] * extent[d];
            index[d] = 0;
        }
    }
}

/* Short stretches: what does not lie as the whole space does is put together, a piece at a time. */
static bool run_short(const rp__cpu_loop *loop, unsigned dims, unsigned inner, int64_t n, const uint64_t *address,
                      const int64_t *extent, const int64_t *stride, const uint64_t *scalars, int64_t first,
                      int64_t last, int64_t total, unsigned past, char *scratch) {
    enum { GATHERED = 16, LINEAR, REPEATED, ROWS };
    const rp__program *p = loop->programs[RP__PLAN_ELEMENTS];
    uint8_t way[RP__DAG_MAX_ACCESSES];
    char *base[RP__DAG_MAX_ACCESSES], *piece[RP__DAG_MAX_ACCESSES];
    char *room = scratch + 64 * (size_t)p->n_blocks;
    uint64_t still = 0;
    unsigned gathered = 0;
    int64_t bytes = 0;
    for (unsigned a = 0; a < p->n_accesses; a++) {
        const int64_t *own = stride + (size_t)a * dims;
        const int step = line_step(p, a, dims, extent, stride, 0, dims);
        way[a] = step == 1 ? LINEAR : step_of(extent, own, 0, inner) == 0 ? REPEATED : ROWS;
        if (!step) still |= UINT64_C(1) << a;
        bytes += line_bytes(p, a, step);
        if (step >= 0) continue;
        if ((p->written >> a & 1u) || gathered++ == GATHERED) return false;
        piece[a] = room;
        room += (TOGETHER + SHORT) * 8;
    }
    const int64_t all = (last + n - 1) / n - first / n, rows = TOGETHER / n < all ? TOGETHER / n : all;
    for (unsigned a = 0; a < p->n_accesses; a++) {
        const int64_t *own = stride + (size_t)a * dims;
        char *from = (char *)(uintptr_t)address[a];
        const stretches s = {n, 1, extent, own, inner, p->access_size[a], false, p->tiles};
        if (way[a] == REPEATED && !(still >> a & 1u)) /* the same rows in each piece */
            move_stretches(&s, piece[a], from, 0, rows * n, false);
    }
    rp__line_blocks(p, scalars, scratch);
    rp__line_fn *fn = atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_acquire);
    for (int64_t at = first; at < last;) {
        const int64_t row = at / n, begin = at % n, end = (row + rows) * n < last ? (row + rows) * n : last;
        rp__line l = {.base = base, .blocks = scratch, .rows = 1, .n = end - at, .still = still};
        for (unsigned a = 0; a < p->n_accesses; a++) {
            const int64_t *own = stride + (size_t)a * dims;
            char *from = (char *)(uintptr_t)address[a];
            if (way[a] == LINEAR)
                base[a] = moved(address[a], at * p->access_size[a]);
            else if (still >> a & 1u)
                base[a] = from;
            else
                base[a] = piece[a] + begin * p->access_size[a];
            const stretches s = {n,       1, extent, own, inner, p->access_size[a], !step_of(extent, own, inner, dims),
                                 p->tiles};
            if (way[a] == ROWS) move_stretches(&s, piece[a], from, row * n, end, false);
        }
        l.stream = rp__line_streams(p, &l, bytes * total, past);
        fn(&l);
        at = end;
    }
    return true;
}

/* Elements [first, last) of a space whose operands each run on or stand still along the last dims, as a column of means beside rows
   does, or a row of weights below rows: stretch by stretch, and those at equal distances by one call. */
static bool run_stretches(const rp__cpu_loop *loop, unsigned dims, const uint64_t *address, const int64_t *extent,
                          const int64_t *stride, const uint64_t *scalars, int64_t first, int64_t last, int64_t total,
                          unsigned past, char *scratch) {
    const rp__program *p = loop->programs[RP__PLAN_ELEMENTS];
    unsigned inner = dims;
    int64_t n = 1, many = 1, bytes = 0;
    bool repeats = false;
    for (bool fits = true; inner > 0 && fits; inner -= fits) {
        for (unsigned a = 0; a < p->n_accesses && fits; a++) {
            const int step = line_step(p, a, dims, extent, stride, inner - 1, dims);
            fits = step == 1 || (step == 0 && !(p->written >> a & 1u));
            repeats = repeats || step == 0;
        }
        if (fits) n *= extent[inner - 1];
    }
    if (n < 2 || (n < SHORT && p->moves && !repeats))
        return false; /* short lines that only move are interp_copies.c's */
    if (n < SHORT && n % TURN &&
        run_short(loop, dims, inner, n, address, extent, stride, scalars, first, last, total, past, scratch))
        return true;
    if (n < TURN) return false;
    unsigned outer = inner; /* dims [outer, inner) are walked at equal distances */
    const unsigned near = inner ? inner - 1 : 0;
    for (bool fits = true; outer > 0 && fits; outer -= fits) {
        for (unsigned a = 0; a < p->n_accesses && fits; a++)
            fits = p->access_iota[a] || stride[(size_t)a * dims + outer - 1] == many * stride[(size_t)a * dims + near];
        if (fits) many *= extent[outer - 1];
    }
    char *base[RP__DAG_MAX_ACCESSES];
    int64_t row[RP__DAG_MAX_ACCESSES];
    uint64_t still = 0;
    for (unsigned a = 0; a < p->n_accesses; a++) {
        const int64_t *own = stride + (size_t)a * dims;
        const int step = line_step(p, a, dims, extent, stride, inner, dims);
        if (!step) still |= UINT64_C(1) << a;
        row[a] = inner ? own[near] * p->access_size[a] : 0;
        bytes += line_bytes(p, a, step);
    }
    rp__line_blocks(p, scalars, scratch);
    rp__line_fn *fn = atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_acquire);
    for (int64_t at = first; at < last;) {
        const int64_t stretch = at / n, begin = at % n;
        rp__line l = {.base = base, .blocks = scratch, .rows = 1, .n = n - begin, .still = still};
        if (l.n > last - at) l.n = last - at;
        if (l.n == n) {
            const int64_t left = many - stretch % many;
            l.rows = (last - at) / n < left ? (last - at) / n : left;
            if (l.rows > 1) l.row = row;
        }
        for (unsigned a = 0; a < p->n_accesses; a++)
            base[a] = moved(address[a], (offset_of(extent, stride + (size_t)a * dims, inner, stretch) +
                                         (still >> a & 1u ? 0 : begin)) *
                                            p->access_size[a]);
        l.stream = rp__line_streams(p, &l, bytes * total, past);
        fn(&l);
        at += l.rows * l.n;
    }
    return true;
}

/* Elements [first, last) of the whole space as one row. */
static bool run_elements(const rp__cpu_loop *loop, unsigned dims, const uint64_t *address, const int64_t *extent,
                         const int64_t *stride, const uint64_t *scalars, int64_t first, int64_t last, int64_t total,
                         unsigned past, char *scratch) {
    const rp__program *p = loop->programs[RP__PLAN_ELEMENTS];
    char *base[RP__DAG_MAX_ACCESSES];
    uint64_t still = 0;
    int64_t bytes = 0;
    for (unsigned a = 0; a < p->n_accesses; a++) {
        const int step = line_step(p, a, dims, extent, stride, 0, dims);
        if (step < 0)
            return run_stretches(loop, dims, address, extent, stride, scalars, first, last, total, past, scratch);
        if (!step) still |= UINT64_C(1) << a;
        base[a] = moved(address[a], step ? first * p->access_size[a] : 0);
        bytes += line_bytes(p, a, step);
    }
    if (still & p->written) return false;
    rp__line_blocks(p, scalars, scratch);
    rp__line l = {.base = base, .blocks = scratch, .rows = 1, .n = last - first, .still = still};
    l.stream = rp__line_streams(p, &l, bytes * total, past);
    atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_acquire)(&l);
    return true;
}

/* All n elements of a space of one dim that are not worth passing by the caches. */
static bool run_few(const rp__cpu_loop *loop, const uint64_t *address, int64_t n, const int64_t *stride,
                    const uint64_t *scalars, char *scratch) {
    const rp__program *p = loop->programs[RP__PLAN_ELEMENTS];
    char *base[RP__DAG_MAX_ACCESSES];
    uint64_t still = 0;
    for (unsigned a = 0; a < p->n_accesses; a++) {
        base[a] = (char *)(uintptr_t)address[a];
        if (RP__LIKELY(stride[a] == 1)) continue;
        if (n == 1) continue;
        if (stride[a]) return false;
        still |= UINT64_C(1) << a;
    }
    if (still & p->written) return false;
    if (p->uniform_end) rp__line_blocks(p, scalars, scratch);
    atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_acquire)(
        &(rp__line){.base = base, .blocks = scratch, .rows = 1, .n = n, .still = still});
    return true;
}

/* ---- rows along which operands stand still for a while, or lie in stretches */

enum {
    SHORT_STRETCH = 4, /* below it the interpreter's gathers are as good, */
    STRIDED = 16,      /* as they are below this where elements of a stretch lie apart */
    PIECES = 10,       /* accesses in pieces, which lie in scratch behind blocks and kept values */
    PIECE = 8 * RP__CHUNK + 64,
    BAND_BYTES =
        640 * 1024, /* up to which pieces of elements that lie apart hold rows: a part of a second-level cache */
    WIDE = RP__INTERP_WIDE - 128 * PIECES,
    LINE = 64 /* a band is so wide that none shares lines of memory with the next, if there is room */
};
_Static_assert(PIECES *(PIECE + 128) + 32 * 1024 + RP__KEEP_BYTES <= RP__INTERP_BYTES + RP__INTERP_PLANES,
               "room for pieces");
/* Bands: rows side by side in memory, whose pieces follow each other, so that a line that they share is read and written once. Rows of the
   band under way between memory and pieces. */
static void move_band(const rp__line *l, int a, bool apart) {
    static const int64_t beside = 1;
    rp__line_pieces *x = l->pieces;
    const rp__line_filled *f = &x->filled[a];
    stretches s = x->lie[a];
    const int64_t side = f->from * (s.outer ? s.extent[0] : 1);
    if (f->from > 1) s.outer = 1, s.extent = &side, s.stride = &beside;
    move_stretches(&s, x->piece[a], x->memory[a], 0, f->from * l->n, apart);
}
/* The number in its band of row `row`, which lies at `memory`; where another band begins it is put together. */
static int64_t band_row(const rp__line *l, int a, int64_t row, char *memory) {
    rp__line_pieces *x = l->pieces;
    rp__line_filled *f = &x->filled[a];
    const int64_t step = x->step[a] * x->lie[a].size, far = f->lies ? memory - f->lies : -1;
    x->row[a] = step ? far / step : 0;
    if (far >= 0 && far == x->row[a] * step && x->row[a] < f->from) return x->row[a];
    const int64_t left = x->rows - row, most = step ? x->band : 1;
    *f = (rp__line_filled){memory, most > 1 && left < most ? left : most, l->n}; /* of one row there is no `rows` */
    assert(f->from >= 1);
    x->memory[a] = memory;
    if (!(x->written >> a & 1u)) move_band(l, a, false);
    return x->row[a] = 0;
}
static void bring(const rp__line *l, int64_t row, uint64_t accesses, int64_t first, int64_t last) {
    rp__line_pieces *x = l->pieces;
    for (uint64_t left = l->apart & accesses; left; left &= left - 1) {
        const int a = __builtin_ctzll(left);
        const stretches *s = &x->lie[a];
        x->place[a] = x->piece[a];
        x->to_take &= ~(UINT64_C(1) << a);
        if (first >= last) continue;
        const int64_t begin = first % s->n;
        const bool one = last - first <= s->n - begin;
        char *memory = l->base[a] + row * l->row[a];
        char *lies = memory + offset_of(s->extent, s->stride, s->outer, first / s->n) * s->size;
        rp__line_filled *const f = &x->filled[a];
        const int64_t from = one && s->still ? 0 : begin;
        const bool written = x->written >> a & 1u;
        if (one && !s->still && s->step == 1) {
            x->place[a] = lies + begin * s->size;
        } else if (x->whole >> a & 1u) {
            const int64_t k = band_row(l, a, row, memory);
            x->place[a] = x->piece[a] + (k * l->n + first) * s->size;
            x->to_take |= (uint64_t)written << a;
        } else if (written) {
            x->to_take |= UINT64_C(1) << a;
        } else if (f->lies != lies || f->from != from ||
                   f->n != last - first) { /* else an earlier phase has asked for it */
            move_stretches(s, x->piece[a], memory, first, last, false);
            *f = (rp__line_filled){lies, from, last - first};
        }
    }
}
static void take(const rp__line *l, int64_t row, uint64_t accesses, int64_t first, int64_t last) {
    rp__line_pieces *x = l->pieces;
    for (uint64_t left = accesses & x->to_take; left && first < last; left &= left - 1) {
        const int a = __builtin_ctzll(left);
        if (!(x->whole >> a & 1u)) {
            move_stretches(&x->lie[a], x->piece[a], l->base[a] + row * l->row[a], first, last, true);
        } else if (last == l->n && x->row[a] + 1 == x->filled[a].from) {
            move_band(l, a, true);
            x->filled[a].lies = NULL;
        }
    }
}
static int64_t size_of(const int64_t *extent, unsigned d0, unsigned d1) {
    int64_t n = 1;
    for (unsigned d = d0; d < d1; d++) n *= extent[d];
    return n;
}
static int64_t check_index(const rp__line *l, int64_t index, int64_t bound, int wrap) {
    const int64_t at = wrap && index < 0 ? index + bound : index;
    if (RP__LIKELY(at >= 0 && at < bound)) return at;
    rp__error_record_put(l->errors, l->tag, index, bound);
    return 0;
}
bool rp__line_apart(const rp__program *p, unsigned n_outer, unsigned dims, const int64_t *extent, const int64_t *stride,
                    rp__line_pieces *x, rp__line *l) {
    unsigned n = 0;
    l->apart = 0;
    for (unsigned a = 0; a < p->n_accesses; a++) {
        const int64_t *own = stride + (size_t)a * dims;
        if (p->access_row[a] || step_of(extent, own, n_outer, dims) == 1) continue;
        if (p->access_iota[a]) {
            if (p->counted >> a & 1u) return false;
            continue;
        }
        stretches s = {.step = 1, .size = p->access_size[a], .tiles = p->tiles};
        unsigned outer = dims;
        while (outer > n_outer && step_of(extent, own, outer - 1, dims) >= 0) outer--;
        s.still = step_of(extent, own, outer, dims) == 0;
        s.n = size_of(extent, outer, dims);
        if (s.n == 1 && outer > n_outer) {
            for (s.step = own[outer - 1]; outer > n_outer; outer--) {
                if (extent[outer - 1] > 1 && own[outer - 1] != s.step * s.n) break;
                s.n *= extent[outer - 1];
            }
            if (s.n < STRIDED) return false;
        }
        s.extent = extent + n_outer;
        s.stride = own + n_outer;
        s.outer = outer - n_outer;
        const int64_t row = n_outer ? own[n_outer - 1] : 0; /* to the next one */
        x->step[a] = (s.outer == 0 && row == 1) || (s.outer == 1 && s.stride[0] == 1 && row == s.extent[0]) ? row : 0;
        const bool written = p->written >> a & 1u;
        if (s.n < SHORT_STRETCH || (p->added >> a & 1u) || (written && s.still) || n++ == PIECES) return false;
        l->apart |= UINT64_C(1) << a;
        x->lie[a] = s;
    }
    x->written = p->written;
    l->bring = bring;
    l->take = take;
    return true;
}
/* Rows of which the stretches fill a line of memory. */
static int64_t line_rows(const rp__line_pieces *x) {
    const int a = __builtin_ctzll(x->whole);
    const stretches *s = &x->lie[a];
    const int64_t side = s->outer && s->stride[s->outer - 1] == 1 ? s->extent[s->outer - 1] : 1;
    if (!x->step[a] || side * s->size >= LINE) return 1;
    return (LINE / s->size + side - 1) / side;
}
void rp__line_room(rp__line_pieces *x, rp__line *l, char *room, int64_t rows) {
    char *wide = NULL;
    int64_t bytes = 0, most = PIECES * PIECE;
    x->whole = 0;
    for (uint64_t left = l->apart; left; left &= left - 1) {
        const rp__line_stretches *s = &x->lie[__builtin_ctzll(left)];
        if (!rows || s->still || s->step == 1) {
            most -= PIECE;
        } else {
            x->whole |= left & -left;
            bytes += l->n * s->size;
        }
    }
    if (most > BAND_BYTES) most = BAND_BYTES;
    const int64_t lines = bytes ? line_rows(x) : 1;
    if (lines * bytes > most && bytes <= WIDE && (wide = rp__interp_wide()))
        most = lines * bytes < WIDE ? lines * bytes : WIDE;
    if (bytes > most || !bytes) x->whole = 0;
    x->band = x->whole ? most / bytes : 1;
    if (x->whole) { /* no stretches left over, if that does not take half of them */
        const rp__line_stretches *s = &x->lie[__builtin_ctzll(x->whole)];
        const int64_t each = s->outer ? s->extent[s->outer - 1] : 1;
        int64_t band = x->band;
        while (band > x->band / 2 && band * each % TURNED) band--;
        if (band > x->band / 2) x->band = band;
    }
    if (x->band > rows) x->band = rows;
    for (uint64_t left = l->apart; left; left &= left - 1) {
        const int a = __builtin_ctzll(left);
        const bool whole = x->whole >> a & 1u;
        char **const from = whole && wide ? &wide : &room;
        x->piece[a] = *from;
        x->filled[a].lies = NULL;
        *from += whole ? (x->band * l->n * x->lie[a].size + 127) & ~INT64_C(63) : PIECE;
    }
    x->to_take = 0;
    x->rows = 1;
    l->pieces = x;
    l->place = x->place;
}

static int64_t step_bytes(const rp__program *p, unsigned a) { return p->access_iota[a] ? 1 : p->access_size[a]; }
/* Rows [first, last), each of n elements; lanes: the rows of these lanes. One call where rows follow each other at equal distances,
   else one a row. */
static bool run_rows(const rp__cpu_loop *loop, unsigned n_outer, unsigned dims, const uint64_t *address,
                     const int64_t *extent, const int64_t *stride, const uint64_t *scalars, int64_t first, int64_t last,
                     bool lanes, unsigned past, char *scratch) {
    uint64_t counts[2] = {1, 1}; /* beyond 64 bits only where one of them is 0 */
    for (unsigned d = 0; d < dims; d++) counts[d >= n_outer] *= (uint64_t)extent[d];
    const int64_t rows = (int64_t)counts[0], n = (int64_t)counts[1];
    rp__plan plan = RP__PLAN_RECOMPUTE;
    const rp__program *p = loop->programs[RP__PLAN_KEEP];
    if (p && rp__keep_fits(p, n, 1)) plan = RP__PLAN_KEEP;
    rp__line_fn *fn = atomic_load_explicit(&loop->line[plan], memory_order_acquire);
    if (!fn) return false;
    p = loop->programs[plan];
    char *base[RP__DAG_MAX_ACCESSES];
    int64_t row[RP__DAG_MAX_ACCESSES], bytes = 0;
    const int64_t step = lanes ? RP__LANES : 1;
    rp__line_pieces pieces;
    rp__line l = {.base = base, .row = row, .blocks = scratch, .n = n};
    if (!rp__line_apart(p, n_outer, dims, extent, stride, &pieces, &l)) return false;
    if (p->checks) {
        const uint64_t *behind = scalars + p->n_scalars + 3 * (size_t)p->n_draws;
        l.check = check_index;
        l.errors = (rp__error_record *)(uintptr_t)behind[0];
        l.tag = behind[1];
    }
    for (unsigned a = 0; a < p->n_accesses; a++) {
        const int64_t *own = stride + (size_t)a * dims;
        row[a] = n_outer == 1 ? step * own[0] * step_bytes(p, a) : 0;
        bytes += p->access_row[a] || p->access_iota[a] ? 0 : p->access_size[a];
    }
    rp__line_blocks(p, scalars, scratch);
    l.kept = scratch + 64 * (size_t)p->n_blocks;
    l.kept_cap = (n + 63) & ~INT64_C(63);
    if (l.apart)
        rp__line_room(&pieces, &l, l.kept + (size_t)p->kept_bytes * (plan == RP__PLAN_KEEP ? l.kept_cap : 0),
                      lanes ? 1 : rows);
    for (int64_t lane = first, end = lanes ? last : first + 1; lane < end; lane++) {
        char *sums[RP__DAG_MAX_ACCESSES];
        const int64_t stop = lanes ? rows : last;
        for (unsigned a = 0; lanes && a < p->n_accesses; a++) sums[a] = (char *)(uintptr_t)address[a];
        if (lanes) rp__interp_begin_lane(p, lane, n, sums);
        l.rows = n_outer == 1 ? (stop - lane + step - 1) / step : 1;
        for (int64_t at = lane; at < stop; at += l.rows * step) {
            for (unsigned a = 0; a < p->n_accesses; a++) {
                base[a] =
                    moved(address[a], offset_of(extent, stride + (size_t)a * dims, n_outer, at) * step_bytes(p, a));
                if (lanes && (p->added >> a & 1)) base[a] = sums[a];
            }
            const int64_t side = n_outer ? extent[n_outer - 1] : 1, beside = side - at % side;
            pieces.rows = lanes ? 1 : beside < stop - at ? beside : stop - at;
            if (at == lane || l.rows == 1) l.stream = !lanes && rp__line_streams(p, &l, bytes * n * rows, past);
            fn(&l);
        }
    }
    return true;
}

bool rp__line_long_fits(const rp__cpu_loop *loop, const uint64_t *words) {
    if (!atomic_load_explicit(&loop->chunk[0], memory_order_acquire)) return false;
    const rp__program *p = loop->programs[RP__PLAN_RECOMPUTE];
    const unsigned n_outer = (unsigned)(words[0] >> 8 & 0xff), dims = n_outer + (unsigned)(words[0] >> 16 & 0xff);
    const int64_t *extent = (const int64_t *)(words + 1 + p->n_accesses), *stride = extent + dims;
    rp__line_pieces pieces;
    rp__line l;
    return rp__line_apart(p, n_outer, dims, extent, stride, &pieces, &l);
}

bool rp__line_run(const rp__cpu_loop *loop, const uint64_t *words, int64_t first, int64_t last, char *scratch) {
    const rp__walk walk = (rp__walk)(words[0] & 0xff);
    if (walk == RP__WALK_ELEMENTS ? !atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_relaxed)
                                  : (walk != RP__WALK_ALONG && walk != RP__WALK_LANES) ||
                                        !atomic_load_explicit(&loop->line[RP__PLAN_RECOMPUTE], memory_order_relaxed))
        return false;
    const rp__program *p = loop->programs[walk == RP__WALK_ELEMENTS ? RP__PLAN_ELEMENTS : RP__PLAN_RECOMPUTE];
    const unsigned n_outer = (unsigned)(words[0] >> 8 & 0xff), dims = n_outer + (unsigned)(words[0] >> 16 & 0xff);
    const unsigned past = (unsigned)(words[0] >> RP__CPU_PAST & 3u);
    const uint64_t *address = words + 1;
    const int64_t *extent = (const int64_t *)(address + p->n_accesses), *stride = extent + dims;
    const uint64_t *scalars = (const uint64_t *)(stride + (size_t)dims * p->n_accesses);
    if (walk != RP__WALK_ELEMENTS)
        return run_rows(loop, n_outer, dims, address, extent, stride, scalars, first, last, walk == RP__WALK_LANES,
                        past, scratch);
    int64_t total = 1;
    for (unsigned d = 0; d < dims; d++) total *= extent[d];
    if (dims == 1 && total <= RP__MANY_BLOCK && last - first == total)
        return run_few(loop, address, total, stride, scalars, scratch);
    return run_elements(loop, dims, address, extent, stride, scalars, first, last, total, past, scratch);
}
enum { FLAT_BLOCKS = 8 }; /* uniform values of a tiny launch */
bool rp__line_flat_fits(const rp__cpu_loop *loop, const rp__dag *dag, const rp__flat *flat) {
    const rp__program *p = loop->programs[RP__PLAN_ELEMENTS];
    return atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_acquire) && p->n_blocks <= FLAT_BLOCKS &&
           dag->n_scalars <= FLAT_BLOCKS && flat->n_scalars >= dag->n_scalars && flat->n_accesses == p->n_accesses &&
           !(flat->still & p->written);
}
void rp__line_flat_blocks(const rp__cpu_loop *loop, const rp__dag *dag, const rp__flat *flat, char *blocks) {
    const rp__program *p = loop->programs[RP__PLAN_ELEMENTS];
    uint64_t scalars[FLAT_BLOCKS];
    for (unsigned i = 0; i < dag->n_scalars; i++)
        scalars[i] = rp__scalar_word(flat->scalars[i], (rp_dtype)dag->scalar_dtypes[i]);
    if (p->uniform_end) rp__line_blocks(p, scalars, blocks);
}
bool rp__line_run_flat(const rp__cpu_loop *loop, const rp__dag *dag, const rp__flat *flat) {
    if (!rp__line_flat_fits(loop, dag, flat)) return false;
    _Alignas(64) char blocks[64 * FLAT_BLOCKS];
    rp__line_flat_blocks(loop, dag, flat, blocks);
    atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_acquire)(
        &(rp__line){.base = flat->base, .blocks = blocks, .rows = 1, .n = flat->n, .still = flat->still});
    return true;
}
bool rp__line_run_group(const rp__cpu_loop *loop, const uint64_t *address, const int64_t *stride,
                        const uint64_t *scalars, int64_t first, int64_t last, char *scratch) {
    if (!atomic_load_explicit(&loop->line[RP__PLAN_ELEMENTS], memory_order_relaxed)) return false;
    return run_elements(loop, 1, address, &last, stride, scalars, first, last, last - first, 0, scratch);
}
