/* Tier 0: runs a program (program.h) over a slice of a launch. Everything lives on the stack of the slice and in the scratch of
   its thread; nothing here can fail. The entry is rp__interpret; the words are a header (rp__cpu_header) and then the canonical words of loop.h.

   One structure serves all walks. A tile has n = B * W elements: B positions of the inner dims times W rows. ALONG has W = 1
   and long tiles; ACROSS has up to 512 rows and few positions; ELEMENTS has no rows. Lane j of a reduction over W rows is
   the W accumulators at acc[j * W], so that a whole tile accumulates as one vector operation, and the halving tree over
   lanes is one vector operation a level. */
#include <string.h>
#include <sys/mman.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/thread.h"
#include "kernel/cpu/program.h"
#include "kernel/tree.h"

enum {
    SCRATCH_BYTES = 512 * 1024, /* of a slice, touched as far as a launch needs it: see lay_out */
    L1_BYTES = 20 * 1024 /* of tile buffers: what fits beside the memory operands in a first-level cache of 32 KB */
};

typedef struct reg {
    char *p;
    int64_t step;
} reg;
typedef enum form { GENERAL, LINEAR, UNIFORM } form; /* of an access over the walk of tiles */

typedef struct run {
    const rp__program *p;
    const uint64_t *address;
    const int64_t *extent, *stride; /* stride[access * dims + dim] */
    const uint64_t *scalars;
    unsigned n_outer, dims;
    unsigned d0, d1; /* dims that a tile walks over: all, the inner, or the outer ones */
    rp__walk walk;
    rp__tile_env env;
    int64_t tile;          /* capacity of a tile, elements; a multiple of 64 */
    int64_t rows, row_len; /* outer and inner elements */
    int64_t w, w0, b, nq;  /* ACROSS: rows of the tile, first row, positions a tile, positions of this tile */
    int64_t pos;           /* element of the walk at which the tile starts (ACROSS: inner position) */
    bool whole;            /* n is a multiple that permits memory in place */
    bool stacked;          /* ACROSS: positions of all rows follow each other in memory where an access is linear */
    char *tiles, *kept, *acc, *stack, *rowbuf, *blocks, *raw;
    int64_t kept_cap;
    char *base[RP__DAG_MAX_ACCESSES];
    uint8_t form[RP__DAG_MAX_ACCESSES], flat[RP__DAG_MAX_ACCESSES]; /* flat: ACROSS, stacked */
    bool direct[RP__DAG_MAX_ACCESSES];
    reg regs[RP__DAG_MAX_NODES];
    /* Operands that do not move, one repeated value each. Not in the tile buffer of the load: the instruction that is its last
       reader may write that buffer while it still reads the block. */
    _Alignas(64) char repeated[RP__DAG_MAX_ACCESSES][64];
} run;

static inline unsigned log2_size(unsigned size) { return (unsigned)__builtin_ctz(size); }
static inline int64_t round64(int64_t n) { return (n + 63) & ~INT64_C(63); }

static void splat(char *block, uint64_t bits, unsigned size) {
    if (size == 1)
        bits *= UINT64_C(0x0101010101010101);
    else if (size == 4)
        bits = (bits & 0xffffffff) * UINT64_C(0x100000001);
    uint64_t w[8];
    for (int i = 0; i < 8; i++) w[i] = bits;
    memcpy(block, w, sizeof w);
}
static uint64_t peek(const void *p, unsigned size) {
    uint64_t v = 0;
    switch (size) {
    case 1: memcpy(&v, p, 1); break;
    case 2: memcpy(&v, p, 2); break;
    case 4: memcpy(&v, p, 4); break;
    default: memcpy(&v, p, 8);
    }
    return v;
}

/* ---- scratch of a thread -------------------------------------------------------------------------------------------- */

/* It stands in for stack, of which a thread may have little: pages of its own, mapped at the thread's first launch, touched as
   far as launches need them, unmapped when the thread ends. Two: a slice of a long row runs inside its launch. */
enum { SCRATCH_LAUNCH, SCRATCH_SLICE, SCRATCHES };
typedef struct workspace {
    run r;
    _Alignas(64) char tiles[SCRATCH_BYTES];
} workspace;
static RP__TLS_FAST workspace *thread_scratch;
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static bool scratch_key_made;
/* Where the system gives no pages: one slice at a time uses this. Who holds it waits for nobody. */
static workspace reserve;
static rp__mutex reserve_lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_reserve, &reserve_lock, 1)
bool rp__interpret_in_reserve;

static void scratch_unmap(void *p) {
    munmap(p, SCRATCHES * sizeof(workspace));
    thread_scratch = NULL;
}
static void scratch_key_make(void) { scratch_key_made = pthread_key_create(&scratch_key, scratch_unmap) == 0; }
static __attribute__((noinline)) workspace *scratch_map(int which) {
    (void)pthread_once(&scratch_once, scratch_key_make);
    const size_t bytes = SCRATCHES * sizeof(workspace);
    void *p = MAP_FAILED;
    if (scratch_key_made && !rp__interpret_in_reserve)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED && pthread_setspecific(scratch_key, p) == 0) return (thread_scratch = p) + which;
    if (p != MAP_FAILED) munmap(p, bytes);
    rp__lock(&reserve_lock);
    return &reserve;
}
static inline workspace *scratch_take(int which) {
    return RP__LIKELY(thread_scratch != NULL) ? thread_scratch + which : scratch_map(which);
}
static inline void scratch_give(const workspace *s) {
    if (RP__UNLIKELY(s == &reserve)) rp__unlock(&reserve_lock);
}

/* ---- walking: consecutive elements as segments along the last dim --------------------------------------------------- */

typedef struct segments {
    const int64_t *extent, *stride;
    int nd;
    int64_t left, offset, last; /* offset of the next element, last: stride along a segment */
    int64_t index[RP__SPACE_MAX_DIMS];
} segments;

static void segments_begin(segments *s, const run *r, unsigned access, unsigned d0, unsigned d1, int64_t start,
                           int64_t n) {
    s->extent = r->extent + d0;
    s->stride = r->stride + access * r->dims + d0;
    s->nd = (int)(d1 - d0);
    s->left = n;
    s->offset = 0;
    s->last = s->nd ? s->stride[s->nd - 1] : 0;
    for (int d = s->nd - 1; d >= 0; d--) {
        if (d) {
            s->index[d] = start % s->extent[d];
            start /= s->extent[d];
        } else {
            s->index[d] = start;
        }
        s->offset += s->index[d] * s->stride[d];
    }
}
static int64_t segments_next(segments *s, int64_t *offset) {
    if (!s->left) return 0;
    *offset = s->offset;
    if (s->nd <= 1) {
        int64_t n = s->left;
        s->left = 0;
        return n;
    }
    int d = s->nd - 1;
    int64_t n = s->extent[d] - s->index[d];
    if (n > s->left) n = s->left;
    s->left -= n;
    s->index[d] += n;
    s->offset += n * s->last;
    while (d > 0 && s->index[d] == s->extent[d]) {
        s->offset -= s->extent[d] * s->stride[d];
        s->index[d] = 0;
        d--;
        s->index[d]++;
        s->offset += s->stride[d];
    }
    return n;
}
static int64_t offset_at(const run *r, unsigned access, unsigned d0, unsigned d1, int64_t start) {
    const int64_t *stride = r->stride + access * r->dims;
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

/* One segment of elements of `size` bytes. */
static void copy_in(const run *r, char *d, const char *from, unsigned size, int64_t stride, int64_t n) {
    if (stride == 1) {
        memcpy(d, from, (size_t)n * size);
    } else {
        rp__tile_call t = {.d = d, .a = from, .n = n, .imm = stride};
        r->p->tiles->gather[log2_size(size)](&t);
    }
}
static void copy_out(const run *r, char *to, const char *a, int64_t step, unsigned size, int64_t stride, int64_t n) {
    if (stride == 1 && step) {
        memcpy(to, a, (size_t)n * size);
    } else {
        rp__tile_call t = {.d = to, .a = a, .as = step, .n = n, .imm = stride};
        r->p->tiles->scatter[log2_size(size)](&t);
    }
}

/* ---- loads ---------------------------------------------------------------------------------------------------------- */

/* Elements through an offset or predicate: the address of each is computed, and memory behind a false predicate is not
   touched. */
static void load_each(char *d, const char *from, unsigned size, int64_t stride, int64_t n, const reg *off,
                      const reg *pred, int64_t k0) {
    for (int64_t k = 0; k < n; k++) {
        int64_t e = k0 + k;
        if (pred && !((const uint8_t *)pred->p)[e * pred->step]) {
            memset(d + k * size, 0, size);
            continue;
        }
        int64_t at = k * stride + (off ? ((const int64_t *)(const void *)off->p)[e * off->step] : 0);
        const char *src = from + at * (int64_t)size;
        switch (size) {
        case 1: d[k] = *src; break;
        case 2: memcpy(d + k * 2, src, 2); break;
        case 4: memcpy(d + k * 4, src, 4); break;
        default: memcpy(d + k * 8, src, 8);
        }
    }
}
static void load_part(const run *r, const rp__insn *i, char *d, unsigned d0, unsigned d1, int64_t start, int64_t n,
                      int64_t extra, int64_t k0) {
    const unsigned a = i->access, size = r->p->access_size[a];
    const reg *off = i->a == RP__NO_VAL ? NULL : &r->regs[i->a], *pred = i->b == RP__NO_VAL ? NULL : &r->regs[i->b];
    segments s;
    segments_begin(&s, r, a, d0, d1, start, n);
    int64_t at, k = 0, m;
    while ((m = segments_next(&s, &at))) {
        const char *from = r->base[a] + (at + extra) * (int64_t)size;
        if (off || pred)
            load_each(d + k * size, from, size, s.last, m, off, pred, k0 + k);
        else
            copy_in(r, d + k * size, from, size, s.last, m);
        k += m;
    }
}
/* A tile of an access that is contiguous along the one inner dim: a row after the other, so that a cache line of memory is read
   once, however far rows lie apart (rows a power of two apart fall into few sets of a cache). */
static void load_transposed(const run *r, unsigned a, char *d) {
    const unsigned size = r->p->access_size[a];
    segments s;
    segments_begin(&s, r, a, 0, r->n_outer, r->w0, r->w);
    int64_t at, m;
    while ((m = segments_next(&s, &at))) {
        const char *from = r->base[a] + (at + r->pos) * (int64_t)size;
        for (int64_t j = 0; j < m; j++, d += size, from += s.last * (int64_t)size) {
            /* Each row is another line, and no hardware prefetcher sees so many streams. */
            if (j + 12 < m) __builtin_prefetch(from + 12 * s.last * (int64_t)size);
            rp__tile_call t = {.d = d, .a = from, .as = 1, .n = r->nq, .imm = r->w};
            r->p->tiles->scatter[log2_size(size)](&t);
        }
    }
}
/* The tile of an element load, as raw storage, into d. */
static void load_raw(const run *r, const rp__insn *i, char *d, int64_t n) {
    if (r->walk != RP__WALK_ACROSS) {
        load_part(r, i, d, r->d0, r->d1, r->pos, n, 0, 0);
        return;
    }
    const unsigned size = r->p->access_size[i->access];
    const int64_t *stride = r->stride + i->access * r->dims;
    if (r->nq > 1 && r->dims == r->n_outer + 1u && stride[r->n_outer] == 1 && stride[r->n_outer - 1] != 1 &&
        i->a == RP__NO_VAL && i->b == RP__NO_VAL) {
        load_transposed(r, i->access, d);
        return;
    }
    for (int64_t q = 0; q < r->nq; q++) {
        int64_t extra = offset_at(r, i->access, r->n_outer, r->dims, r->pos + q);
        load_part(r, i, d + q * r->w * size, 0, r->n_outer, r->w0, r->w, extra, q * r->w);
    }
}
static void load_tile(run *r, const rp__insn *i, char *buffer, int64_t n) {
    const unsigned a = i->access, size = r->p->access_size[a], convert = r->p->access_load[a];
    reg *d = &r->regs[i->d];
    const bool plain = i->a == RP__NO_VAL && i->b == RP__NO_VAL;
    if (plain && r->form[a] == UNIFORM && i->home != RP__HOME_KEPT) {
        uint64_t bits = peek(r->base[a], size);
        if (convert == RP__LOAD_BOOL) {
            bits = bits != 0;
        } else if (convert) {
            union {
                float f;
                uint32_t u;
            } x = {.f = convert == RP__LOAD_F16 ? rp__f16_to_f32((uint16_t)bits) : rp__bf16_to_f32((uint16_t)bits)};
            bits = x.u;
        }
        splat(r->repeated[a], bits, i->size);
        *d = (reg){r->repeated[a], 0};
        return;
    }
    const char *linear = NULL;
    if (plain && r->form[a] == LINEAR) {
        if (r->walk != RP__WALK_ACROSS) {
            linear = r->base[a] + r->pos * (int64_t)size;
        } else if (r->nq == 1 || r->flat[a]) {
            linear = r->base[a] + (r->w0 + offset_at(r, a, r->n_outer, r->dims, r->pos)) * (int64_t)size;
        }
    }
    d->step = 1;
    if (linear && !convert && r->whole) {
        union {
            const char *c;
            char *m;
        } memory = {.c = linear}; /* registers that were loaded are never written */
        d->p = memory.m;
        return;
    }
    d->p = buffer;
    if (convert) {
        if (!linear) {
            load_raw(r, i, r->raw, n);
            linear = r->raw;
        }
        rp__tile_call t = {.d = buffer, .a = linear, .n = n};
        r->p->tiles->load[convert - 1](&t);
    } else if (linear) {
        memcpy(buffer, linear, (size_t)n * size);
    } else {
        load_raw(r, i, buffer, n);
    }
}
static void iota_part(const run *r, unsigned a, int64_t *d, unsigned d0, unsigned d1, int64_t start, int64_t n,
                      int64_t base) {
    segments s;
    segments_begin(&s, r, a, d0, d1, start, n);
    int64_t at, m;
    while ((m = segments_next(&s, &at))) {
        uint64_t v = (uint64_t)base + (uint64_t)at, step = (uint64_t)s.last;
        for (int64_t k = 0; k < m; k++) d[k] = (int64_t)(v + (uint64_t)k * step);
        d += m;
    }
}
static void iota_tile(run *r, const rp__insn *i, int64_t *d, int64_t n) {
    const unsigned a = i->access;
    const int64_t base = (int64_t)(intptr_t)r->base[a];
    if (r->walk != RP__WALK_ACROSS) {
        iota_part(r, a, d, r->d0, r->d1, r->pos, n, base);
        return;
    }
    for (int64_t q = 0; q < r->nq; q++) {
        iota_part(r, a, d + q * r->w, 0, r->n_outer, r->w0, r->w,
                  base + offset_at(r, a, r->n_outer, r->dims, r->pos + q));
    }
}

/* ---- stores --------------------------------------------------------------------------------------------------------- */

static void add_one(char *to, const char *value, unsigned dtype) {
    union {
        float f;
        double d;
        int32_t i;
        int64_t l;
    } x, y;
    uint16_t h;
    switch (dtype) {
    case RP_F32:
        memcpy(&x.f, to, 4);
        memcpy(&y.f, value, 4);
        x.f += y.f;
        memcpy(to, &x.f, 4);
        break;
    case RP_F64:
        memcpy(&x.d, to, 8);
        memcpy(&y.d, value, 8);
        x.d += y.d;
        memcpy(to, &x.d, 8);
        break;
    case RP_F16:
    case RP_BF16:
        memcpy(&h, to, 2);
        memcpy(&y.f, value, 4);
        x.f = (dtype == RP_F16 ? rp__f16_to_f32(h) : rp__bf16_to_f32(h)) + y.f;
        h = dtype == RP_F16 ? rp__f32_to_f16(x.f) : rp__f32_to_bf16(x.f);
        memcpy(to, &h, 2);
        break;
    case RP_I32:
        memcpy(&x.i, to, 4);
        memcpy(&y.i, value, 4);
        x.i = (int32_t)((uint32_t)x.i + (uint32_t)y.i);
        memcpy(to, &x.i, 4);
        break;
    case RP_I64:
        memcpy(&x.l, to, 8);
        memcpy(&y.l, value, 8);
        x.l = (int64_t)((uint64_t)x.l + (uint64_t)y.l);
        memcpy(to, &x.l, 8);
        break;
    case RP_U8: *(uint8_t *)to = (uint8_t)(*(const uint8_t *)to + *(const uint8_t *)value); break;
    default: *(uint8_t *)to = *(const uint8_t *)to | *(const uint8_t *)value;
    }
}
/* value: compute type, `from` bytes an element; a half is converted here when adding, before this when setting. */
static void store_each(const rp__program_store *st, char *to, const char *value, int64_t step, unsigned from,
                       int64_t stride, int64_t n, const reg *off, const reg *pred, int64_t k0) {
    for (int64_t k = 0; k < n; k++) {
        int64_t e = k0 + k;
        if (pred && !((const uint8_t *)pred->p)[e * pred->step]) continue;
        int64_t at = k * stride + (off ? ((const int64_t *)(const void *)off->p)[e * off->step] : 0);
        char *p = to + at * (int64_t)st->size;
        const char *v = value + e * step * (int64_t)from;
        if (st->mode == RP__STORE_ADD)
            add_one(p, v, st->dtype);
        else
            memcpy(p, v, st->size);
    }
}
static void store_part(const run *r, const rp__program_store *st, const char *value, int64_t step, unsigned from,
                       unsigned d0, unsigned d1, int64_t start, int64_t n, int64_t extra, int64_t k0) {
    const reg *off = st->offset == RP__NO_VAL ? NULL : &r->regs[st->offset];
    const reg *pred = st->predicate == RP__NO_VAL ? NULL : &r->regs[st->predicate];
    segments s;
    segments_begin(&s, r, st->access, d0, d1, start, n);
    int64_t at, k = k0, m;
    while ((m = segments_next(&s, &at))) {
        char *to = r->base[st->access] + (at + extra) * (int64_t)st->size;
        if (off || pred || st->mode == RP__STORE_ADD) {
            store_each(st, to, value, step, from, s.last, m, off, pred, k);
        } else {
            copy_out(r, to, value + k * step * (int64_t)from, step, from, s.last, m);
        }
        k += m;
    }
}
static void store_tile(run *r, unsigned number, int64_t n) {
    const rp__program_store *st = &r->p->stores[number];
    const reg *v = &r->regs[st->value];
    const unsigned a = st->access, half = r->p->access_half[a];
    const bool plain = st->offset == RP__NO_VAL && st->predicate == RP__NO_VAL && st->mode == RP__STORE_SET;
    char *linear = NULL;
    if (plain && r->form[a] == LINEAR) {
        if (r->walk != RP__WALK_ACROSS) {
            linear = r->base[a] + r->pos * (int64_t)st->size;
        } else if (r->nq == 1 || r->flat[a]) {
            linear = r->base[a] + (r->w0 + offset_at(r, a, r->n_outer, r->dims, r->pos)) * (int64_t)st->size;
        }
    }
    const char *value = v->p;
    int64_t step = v->step;
    unsigned from = half ? 4 : st->size;
    if (half && st->mode == RP__STORE_SET) {
        rp__tile_call t = {.d = linear ? linear : r->raw, .a = value, .as = step, .n = n};
        r->p->tiles->store_half[half - 1](&t);
        if (linear) return;
        value = r->raw;
        step = 1;
        from = 2;
    }
    if (linear) {
        if (value != linear) copy_out(r, linear, value, step, st->size, 1, n);
    } else if (r->walk != RP__WALK_ACROSS) {
        store_part(r, st, value, step, from, r->d0, r->d1, r->pos, n, 0, 0);
    } else {
        for (int64_t q = 0; q < r->nq; q++) {
            int64_t extra = offset_at(r, a, r->n_outer, r->dims, r->pos + q);
            store_part(r, st, value, step, from, 0, r->n_outer, r->w0, r->w, extra, q * r->w);
        }
    }
}

/* ---- segments of instructions --------------------------------------------------------------------------------------- */

/* A routine may write over an operand's tile, but not over a value of step 0 there, which it reads again for every vector:
   that one moves aside. */
static inline const char *beside(const reg *v, const char *d, char aside[64]) {
    if (v->step || v->p != d) return v->p;
    memcpy(aside, v->p, 64);
    return aside;
}

static inline void call_fn(const run *r, const rp__insn *i, char *d, int64_t n) {
    rp__tile_call t;
    _Alignas(64) char aside[3][64];
    t.d = d;
    t.a = beside(&r->regs[i->a], d, aside[0]);
    t.as = r->regs[i->a].step;
    if (i->b != RP__NO_VAL) {
        t.b = beside(&r->regs[i->b], d, aside[1]);
        t.bs = r->regs[i->b].step;
    }
    if (i->c != RP__NO_VAL) {
        t.c = beside(&r->regs[i->c], d, aside[2]);
        t.cs = r->regs[i->c].step;
    }
    t.n = n;
    t.imm = i->imm;
    t.env = &r->env;
    i->fn(&t);
}
static char *direct_memory(const run *r, unsigned store) {
    const rp__program_store *st = &r->p->stores[store];
    int64_t at = r->pos;
    if (r->walk == RP__WALK_ACROSS) {
        if (r->nq != 1 && !r->flat[st->access]) return NULL;
        at = r->w0 + offset_at(r, st->access, r->n_outer, r->dims, r->pos);
    }
    return r->base[st->access] + at * (int64_t)st->size;
}

/* One emitted function: pointers of inputs, outputs and accumulators, and the steps of the inputs. */
static void run_group(run *r, const rp__group *g, int64_t n) {
    const rp__program *p = r->p;
    char *pointers[RP__GROUP_POINTERS];
    int64_t steps[RP__GROUP_POINTERS];
    unsigned k = 0;
    for (unsigned i = 0; i < g->n_inputs; i++, k++) {
        pointers[k] = r->regs[g->inputs[i]].p;
        steps[k] = r->regs[g->inputs[i]].step;
    }
    const bool across = r->walk == RP__WALK_ACROSS;
    for (unsigned i = 0; i < g->n_outputs; i++, k++) {
        const rp__group_output *o = &g->outputs[i];
        char *d = o->home == RP__HOME_KEPT ? r->kept + r->kept_cap * o->at + (across ? r->pos * r->w : r->pos) * o->size
                                           : r->tiles + r->tile * o->at;
        if (o->direct && r->whole && r->direct[o->direct - 1]) {
            char *memory = direct_memory(r, o->direct - 1u);
            if (memory) d = memory;
        }
        r->regs[o->d] = (reg){d, 1};
        pointers[k] = d;
    }
    for (unsigned i = 0; i < g->n_reductions; i++, k++) {
        const rp__reduction *red = &p->reductions[g->reductions[i]];
        pointers[k] = across ? r->acc + (red->at * RP__LANES + r->pos % RP__LANES * red->size) * r->w
                             : r->acc + red->at * RP__LANES;
    }
    (across ? g->across : g->along)(pointers, steps, n);
}

static void run_element(run *r, unsigned phase, int64_t n) {
    const rp__program *p = r->p;
    const rp__insn *i = p->insns + p->element[phase].begin, *end = p->insns + p->element[phase].end;
    r->whole = (uint64_t)n * p->min_size % p->tiles->vec_bytes == 0;
    for (; i < end; i++) {
        char *d = r->tiles + r->tile * i->at;
        if (i->home == RP__HOME_KEPT) {
            d = r->kept + r->kept_cap * i->at + (r->walk == RP__WALK_ACROSS ? r->pos * r->w : r->pos) * i->size;
        }
        switch (i->kind) {
        case RP__INSN_OP: {
            if (i->direct && r->whole && r->direct[i->direct - 1]) {
                char *memory = direct_memory(r, i->direct - 1u);
                if (memory) d = memory;
            }
            r->regs[i->d] = (reg){d, 1};
            call_fn(r, i, d, n);
            break;
        }
        case RP__INSN_LOAD: load_tile(r, i, d, n); break;
        case RP__INSN_IOTA:
            r->regs[i->d] = (reg){d, 1};
            iota_tile(r, i, (int64_t *)(void *)d, n);
            break;
        case RP__INSN_KEPT: r->regs[i->d] = (reg){d, 1}; break;
        case RP__INSN_GROUP: run_group(r, &p->groups[i->access], n); break;
        case RP__INSN_REDUCE: {
            const rp__reduction *red = &p->reductions[i->access];
            const reg *a = &r->regs[i->a];
            rp__tile_call t = {.a = a->p, .as = a->step, .n = n};
            if (r->walk == RP__WALK_ACROSS) {
                t.d = r->acc + (red->at * RP__LANES + r->pos % RP__LANES * red->size) * r->w;
                p->tiles->reduce_block[red->kind][red->type](&t);
            } else {
                t.d = r->acc + red->at * RP__LANES;
                p->tiles->reduce_row[red->kind][red->type](&t);
            }
            break;
        }
        default: store_tile(r, i->access, n);
        }
    }
}

/* Copies of a row tile for each position of an element tile. */
static void replicate(const run *r, char *buffer, unsigned size) {
    for (int64_t q = 1; q < r->b; q++) memcpy(buffer + q * r->w * size, buffer, (size_t)(r->w * size));
}
static void run_row(run *r, struct rp__segment s) {
    const rp__program *p = r->p;
    for (uint32_t k = s.begin; k < s.end; k++) {
        const rp__insn *i = &p->insns[k];
        reg *d = &r->regs[i->d];
        const unsigned a = i->access;
        if (r->walk != RP__WALK_ACROSS) {
            if (i->kind == RP__INSN_OP) {
                call_fn(r, i, d->p, 1);
            } else if (i->kind == RP__INSN_IOTA) {
                int64_t v = (int64_t)(intptr_t)r->base[a];
                memcpy(d->p, &v, 8);
            } else {
                const unsigned size = p->access_size[a], convert = p->access_load[a];
                const reg *off = i->a == RP__NO_VAL ? NULL : &r->regs[i->a],
                          *pred = i->b == RP__NO_VAL ? NULL : &r->regs[i->b];
                char one[8];
                load_each(one, r->base[a], size, 0, 1, off, pred, 0);
                if (convert) {
                    rp__tile_call t = {.d = d->p, .a = one, .n = 1};
                    p->tiles->load[convert - 1](&t);
                } else {
                    memcpy(d->p, one, size);
                }
            }
            splat(d->p, peek(d->p, i->size), i->size);
            continue;
        }
        if (i->kind == RP__INSN_OP) {
            call_fn(r, i, d->p, r->w);
        } else if (i->kind == RP__INSN_IOTA) {
            iota_part(r, a, (int64_t *)(void *)d->p, 0, r->n_outer, r->w0, r->w, (int64_t)(intptr_t)r->base[a]);
        } else {
            const unsigned convert = p->access_load[a];
            load_part(r, i, convert ? r->raw : d->p, 0, r->n_outer, r->w0, r->w, 0, 0);
            if (convert) {
                rp__tile_call t = {.d = d->p, .a = r->raw, .n = r->w};
                p->tiles->load[convert - 1](&t);
            }
        }
        if (r->b > 1) replicate(r, d->p, i->size);
    }
}
static void run_uniform(run *r) {
    const rp__program *p = r->p;
    for (uint32_t k = 0; k < p->uniform_end; k++) {
        const rp__insn *i = &p->insns[k];
        char *d = r->blocks + 64 * (size_t)i->at;
        r->regs[i->d] = (reg){d, 0};
        if (i->fn) {
            call_fn(r, i, d, 1);
            splat(d, peek(d, i->size), i->size);
        } else {
            splat(d, i->b == RP__NO_VAL ? (uint64_t)i->imm : r->scalars[i->b], i->size);
        }
    }
}

/* ---- reductions ----------------------------------------------------------------------------------------------------- */

static void fill_identity(const rp__reduction *red, char *d, int64_t n) {
    union {
        char *c;
        uint8_t *b;
        uint32_t *w;
        uint64_t *l;
    } to = {.c = d};
    if (red->size == 1)
        memset(d, (int)(red->identity & 0xff), (size_t)n);
    else if (red->size == 4)
        for (int64_t k = 0; k < n; k++) to.w[k] = (uint32_t)red->identity;
    else
        for (int64_t k = 0; k < n; k++) to.l[k] = red->identity;
}
static char *lanes_of(const run *r, const rp__reduction *red) { return r->acc + (int64_t)red->at * RP__LANES * r->w; }
static void begin_chunk(run *r, unsigned phase) {
    for (unsigned k = 0; k < r->p->n_reductions; k++) {
        const rp__reduction *red = &r->p->reductions[k];
        if (red->phase == phase) fill_identity(red, lanes_of(r, red), RP__LANES * r->w);
    }
}
/* The lanes of reduction `red` become w values at the start of its accumulators. */
static char *finish_chunk(run *r, const rp__reduction *red) {
    char *acc = lanes_of(r, red);
    if (r->w == 1) {
        rp__tile_call t = {.d = acc, .a = acc};
        r->p->tiles->finish_row[red->kind][red->type](&t);
        return acc;
    }
    for (int64_t s = RP__LANES / 2; s > 0; s /= 2) {
        rp__tile_call t = {.d = acc, .a = acc + s * r->w * red->size, .as = 1, .n = s * r->w};
        r->p->tiles->reduce_block[red->kind][red->type](&t);
    }
    return acc;
}
static void combine(const run *r, const rp__reduction *red, char *left, const char *right) {
    rp__tile_call t = {.d = left, .a = right, .as = 1, .n = r->w};
    r->p->tiles->reduce_block[red->kind][red->type](&t);
}
static char *stack_at(const run *r, const rp__reduction *red, unsigned level) {
    return r->stack + ((int64_t)level * r->p->acc_bytes + red->at) * r->w;
}
/* Chunk `count` of reduction red arrives as w values at v (which is overwritten). */
static void push_chunk(run *r, const rp__reduction *red, uint64_t count, char *v) {
    unsigned level = rp__tree_push(count);
    for (unsigned l = 0; l < level; l++) {
        char *older = stack_at(r, red, l);
        combine(r, red, older, v);
        v = older;
    }
    char *to = stack_at(r, red, level);
    if (v != to) memcpy(to, v, (size_t)r->w * red->size);
}
static char *finish_chunks(run *r, const rp__reduction *red, uint64_t count) {
    char *v = NULL;
    for (unsigned level = 0; count >> level; level++) {
        if (!(count >> level & 1)) continue;
        char *older = stack_at(r, red, level);
        if (v) combine(r, red, older, v);
        v = older;
    }
    return v;
}
static void set_result(run *r, const rp__reduction *red, const char *v) {
    char *d = r->regs[red->d].p;
    if (r->walk != RP__WALK_ACROSS) {
        splat(d, peek(v, red->size), red->size);
    } else {
        memcpy(d, v, (size_t)r->w * red->size);
        if (r->b > 1) replicate(r, d, red->size);
    }
}

/* Inner positions [begin, end) of one phase, at most a chunk. */
static void run_positions(run *r, unsigned phase, int64_t begin, int64_t end) {
    for (int64_t pos = begin; pos < end; pos += r->b) {
        int64_t m = end - pos < r->b ? end - pos : r->b;
        r->pos = pos;
        r->nq = m;
        run_element(r, phase, m * r->w);
    }
}
static void store_row_values(run *r) {
    for (unsigned k = 0; k < r->p->n_stores; k++) {
        const rp__program_store *st = &r->p->stores[k];
        if (!st->row) continue;
        const reg *v = &r->regs[st->value];
        const unsigned half = r->p->access_half[st->access];
        const int64_t n = r->walk == RP__WALK_ACROSS ? r->w : 1;
        const char *value = v->p;
        int64_t step = v->step;
        unsigned from = half ? 4 : st->size;
        if (half && st->mode == RP__STORE_SET) {
            rp__tile_call t = {.d = r->raw, .a = value, .as = step, .n = n};
            r->p->tiles->store_half[half - 1](&t);
            value = r->raw;
            step = 1;
            from = 2;
        }
        if (r->walk == RP__WALK_ACROSS) {
            store_part(r, st, value, step, from, 0, r->n_outer, r->w0, n, 0, 0);
        } else {
            store_part(r, st, value, step, from, 0, 0, 0, 1, 0, 0);
        }
    }
}
/* All phases of the row, or tile of rows, that base (and w0) name. */
static void run_phases(run *r) {
    const rp__program *p = r->p;
    for (unsigned phase = 0; phase < p->n_phases; phase++) {
        run_row(r, p->row[phase]);
        uint64_t chunks = 0;
        for (int64_t at = 0; at < r->row_len || !chunks; at += RP__CHUNK, chunks++) {
            begin_chunk(r, phase);
            int64_t end = r->row_len - at < RP__CHUNK ? r->row_len : at + RP__CHUNK;
            run_positions(r, phase, at, end);
            for (unsigned k = 0; k < p->n_reductions; k++) {
                const rp__reduction *red = &p->reductions[k];
                if (red->phase != phase) continue;
                char *v = finish_chunk(r, red);
                if (r->row_len <= RP__CHUNK)
                    set_result(r, red, v);
                else
                    push_chunk(r, red, chunks, v);
            }
        }
        for (unsigned k = 0; k < p->n_reductions && chunks > 1; k++) {
            const rp__reduction *red = &p->reductions[k];
            if (red->phase == phase) set_result(r, red, finish_chunks(r, red, chunks));
        }
    }
    run_row(r, p->row[p->n_phases]);
    store_row_values(r);
}

/* ---- setting up a slice --------------------------------------------------------------------------------------------- */

static form form_of(const run *r, unsigned access) {
    const int64_t *stride = r->stride + access * r->dims;
    int64_t want = 1;
    bool uniform = true, linear = true;
    for (unsigned d = r->d1; d-- > r->d0;) {
        if (r->extent[d] == 1) continue;
        uniform = uniform && stride[d] == 0;
        linear = linear && stride[d] == want;
        want *= r->extent[d];
    }
    return uniform ? r->walk == RP__WALK_ACROSS ? GENERAL : UNIFORM : linear ? LINEAR : GENERAL;
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
        r->direct[k] = st->direct && r->form[st->access] == LINEAR;
        if (!r->direct[k] || !st->late_reads) continue;
        intptr_t lo, hi, from, to;
        byte_range(r, st->access, &lo, &hi);
        for (unsigned a = 0; a < p->n_accesses; a++) {
            if (!(st->late_reads >> a & 1)) continue;
            byte_range(r, a, &from, &to);
            if (from < hi && lo < to) r->direct[k] = false;
        }
    }
}
/* Pointers into scratch for tiles of r->tile elements, r->w rows of r->b positions. At most, in KB, given the limits of a
   program: blocks 32; row values 64, or along 32; tiles 64; accumulators 96; stack of partials 30 levels of 1/32 of that;
   raw halves 16; kept 128. */
static void lay_out(run *r, char *scratch) {
    const rp__program *p = r->p;
    char *at = scratch;
    r->blocks = at;
    at += 64 * (size_t)p->n_blocks;
    r->rowbuf = at;
    for (unsigned k = 0; k < p->n_row_regs; k++) {
        bool across = r->walk == RP__WALK_ACROSS;
        r->regs[p->row_reg[k]] = (reg){at, across};
        at += across ? round64(r->w * r->b) * p->row_size[k] : 64;
    }
    r->tiles = at;
    at += r->tile * p->tile_bytes;
    r->acc = at;
    at += round64((int64_t)p->acc_bytes * RP__LANES * r->w);
    r->stack = at;
    unsigned levels = 0;
    for (int64_t c = (r->row_len + RP__CHUNK - 1) / RP__CHUNK; c > 0; c >>= 1) levels++;
    if (levels > 1) at += round64((int64_t)p->acc_bytes * r->w * levels);
    r->raw = at;
    if (p->converts) at += r->tile * 2;
    r->kept = at;
}
static int64_t floor_pow2(int64_t n) { return n < 1 ? 1 : INT64_C(1) << (63 - __builtin_clzll((uint64_t)n)); }
static int64_t clamp(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

static void begin(run *r, const rp__program *p, const uint64_t *words, rp__walk walk) {
    const unsigned n_outer = (unsigned)(words[0] >> 8 & 0xff), dims = n_outer + (unsigned)(words[0] >> 16 & 0xff);
    r->p = p;
    r->walk = walk;
    r->n_outer = n_outer;
    r->dims = dims;
    r->address = words + 1;
    r->extent = (const int64_t *)(r->address + p->n_accesses);
    r->stride = r->extent + dims;
    r->scalars = (const uint64_t *)(r->stride + (size_t)dims * p->n_accesses);
    r->env.draws = r->scalars + p->n_scalars;
    if (p->checks) {
        const uint64_t *e = r->env.draws + 3 * (size_t)p->n_draws;
        r->env.errors = (rp__error_record *)(uintptr_t)e[0];
        r->env.tag = e[1];
    }
}
static void begin_walk(run *r) {
    r->rows = r->row_len = 1;
    for (unsigned d = 0; d < r->dims; d++) *(d < r->n_outer ? &r->rows : &r->row_len) *= r->extent[d];
    r->d0 = r->walk == RP__WALK_ALONG || r->walk == RP__WALK_LONG ? r->n_outer : 0;
    r->d1 = r->walk == RP__WALK_ACROSS ? r->n_outer : r->dims;
    for (unsigned a = 0; a < r->p->n_accesses; a++) {
        r->base[a] = (char *)(uintptr_t)r->address[a];
        r->form[a] = (uint8_t)form_of(r, a);
    }
    find_direct(r);
}
static int64_t tile_for(const rp__program *p, int64_t n) {
    int64_t t = clamp(floor_pow2(L1_BYTES / (p->tile_bytes ? p->tile_bytes : 1)), 64, 2048);
    return n < t ? round64(n) : t;
}

static void run_elements(run *r, int64_t first, int64_t last, char *scratch) {
    begin_walk(r);
    r->w = r->b = r->nq = 1;
    r->tile = tile_for(r->p, last - first);
    lay_out(r, scratch);
    run_uniform(r);
    if (!r->p->n_phases) return;
    for (int64_t pos = first; pos < last; pos += r->tile) {
        int64_t n = last - pos < r->tile ? last - pos : r->tile;
        r->pos = pos;
        run_element(r, 0, n);
    }
}
/* IOTA bases are numbers in base[]; others are addresses. */
static void set_row(run *r, int64_t row) {
    for (unsigned a = 0; a < r->p->n_accesses; a++) {
        int64_t off = offset_at(r, a, 0, r->n_outer, row);
        r->base[a] = (char *)(uintptr_t)r->address[a] + off * (r->p->access_iota[a] ? 1 : r->p->access_size[a]);
    }
}
static void size_along(run *r) {
    const rp__program *p = r->p;
    r->w = r->nq = 1;
    r->tile = tile_for(p, r->row_len);
    if (r->row_len <= RP__CHUNK && round64(r->row_len) * p->tile_bytes <= RP__KEEP_BYTES / 2)
        r->tile = round64(r->row_len ? r->row_len : 1);
    r->b = r->tile;
    r->kept_cap = round64(r->row_len);
}
static void run_along(run *r, int64_t first, int64_t last, char *scratch) {
    begin_walk(r);
    size_along(r);
    lay_out(r, scratch);
    run_uniform(r);
    for (int64_t row = first; row < last; row++) {
        set_row(r, row);
        run_phases(r);
    }
}
/* Rows of a tile of an across walk: as many as accumulators and scratch permit. */
static int64_t across_width(const rp__program *p, int64_t rows) {
    int64_t per_row = (int64_t)p->acc_bytes * RP__LANES + p->tile_bytes + p->row_bytes * 2 + 2;
    return clamp(floor_pow2(96 * 1024 / per_row), 16, clamp(rows, 16, 512));
}
enum { BLOCK_ROWS = 128, BLOCK_POSITIONS = 16 }; /* 16 elements of four bytes are a cache line; 128 lines are 8 KB */
static void run_across(run *r, int64_t first, int64_t last, bool blocks, char *scratch) {
    begin_walk(r);
    const int64_t width = blocks ? BLOCK_ROWS : across_width(r->p, r->rows);
    for (int64_t w0 = first; w0 < last; w0 += r->w) {
        r->w0 = w0;
        r->w = last - w0 < width ? last - w0 : width;
        const int64_t bytes = (int64_t)r->p->tile_bytes + r->p->row_bytes + 1;
        /* Wide tiles take one position: memory is used in place; narrow ones several, so that a tile is worth its calls. */
        r->b =
            r->w >= 128 ? 1 : clamp(floor_pow2((bytes * 512 < L1_BYTES ? 512 : L1_BYTES / bytes) / r->w), 1, RP__LANES);
        if (blocks) r->b = clamp(floor_pow2(L1_BYTES / bytes / r->w), 1, BLOCK_POSITIONS);
        r->tile = round64(r->w * r->b);
        r->kept_cap =
            round64(r->row_len * r->w) + 64; /* the last tile may start anywhere and is written in full vectors */
        /* One position after the other in memory, of all rows: tiles of several positions are linear too. */
        for (unsigned a = 0; a < r->p->n_accesses; a++) {
            int64_t want = r->rows;
            bool flat = r->w == r->rows;
            for (unsigned d = r->dims; d-- > r->n_outer;) {
                flat = flat && (r->extent[d] == 1 || r->stride[a * r->dims + d] == want);
                want *= r->extent[d];
            }
            r->flat[a] = flat;
        }
        lay_out(r, scratch);
        run_uniform(r);
        run_phases(r);
    }
}

/* ---- long rows: chunks over threads --------------------------------------------------------------------------------- */

typedef struct long_row {
    const rp__program *p;
    const uint64_t *words;
    const run *main;
    int64_t row;
    unsigned phase;
    uint64_t *partials; /* [reduction][chunk] */
    int64_t chunks;
    rp__line line; /* of chunk functions */
    rp__line_fn *fn;
} long_row;

static void long_line_slice(void *ctx, int64_t first, int64_t last) {
    const long_row *l = ctx;
    rp__line line = l->line;
    line.first = first;
    line.last = last;
    l->fn(&line);
}

static void long_slice(void *ctx, int64_t first, int64_t last) {
    const long_row *l = ctx;
    workspace *mine = scratch_take(SCRATCH_SLICE);
    run *r = &mine->r;
    begin(r, l->p, l->words, RP__WALK_LONG);
    begin_walk(r);
    size_along(r);
    lay_out(r, mine->tiles);
    run_uniform(r);
    set_row(r, l->row);
    memcpy(r->rowbuf, l->main->rowbuf, 64 * (size_t)l->p->n_row_regs);
    for (int64_t c = first; c < last; c++) {
        begin_chunk(r, l->phase);
        int64_t at = c * RP__CHUNK, end = r->row_len - at < RP__CHUNK ? r->row_len : at + RP__CHUNK;
        run_positions(r, l->phase, at, end);
        for (unsigned k = 0; k < l->p->n_reductions; k++) {
            const rp__reduction *red = &l->p->reductions[k];
            if (red->phase == l->phase) memcpy(&l->partials[k * l->chunks + c], finish_chunk(r, red), red->size);
        }
    }
    scratch_give(mine);
}
/* loop: its chunk functions serve; NULL: tiles do. */
static void run_long(run *r, const rp__cpu_loop *loop, char *scratch) {
    const rp__program *p = r->p;
    begin_walk(r);
    size_along(r);
    lay_out(r, scratch);
    run_uniform(r);
    long_row l = {.p = p, .words = r->address - 1, .main = r, .chunks = (r->row_len + RP__CHUNK - 1) / RP__CHUNK};
    uint64_t few[1024], *many = NULL;
    const size_t need = (size_t)l.chunks * (p->n_reductions ? p->n_reductions : 1);
    l.partials = few;
    if (need > sizeof few / sizeof *few) l.partials = many = rp__alloc(need * sizeof *many);
    if (r == &reserve.r) l.partials = NULL; /* slices would wait for it */
    static const int64_t no_rows[RP__DAG_MAX_ACCESSES];
    l.line = (rp__line){.base = r->base, .row = no_rows, .blocks = r->blocks, .rows = 1, .n = r->row_len};
    l.line.values = r->rowbuf;
    l.line.partials = l.partials;
    l.line.chunks = l.chunks;
    int64_t bytes = 0;
    for (unsigned a = 0; a < p->n_accesses; a++) bytes += p->access_row[a] ? 0 : p->access_size[a];
    for (int64_t row = 0; row < r->rows; row++) {
        set_row(r, row);
        l.line.stream = rp__line_streams(p, &l.line, bytes * r->row_len * r->rows);
        if (!l.partials) { /* out of memory: the same bits in one thread */
            run_phases(r);
            continue;
        }
        l.row = row;
        for (unsigned phase = 0; phase < p->n_phases; phase++) {
            run_row(r, p->row[phase]);
            l.phase = phase;
            l.fn = loop ? atomic_load_explicit(&loop->chunk[phase], memory_order_relaxed) : NULL;
            (void)!rp__parallel(l.chunks, p->serial ? l.chunks : 4, l.fn ? long_line_slice : long_slice, &l);
            for (unsigned k = 0; k < p->n_reductions; k++) {
                const rp__reduction *red = &p->reductions[k];
                if (red->phase != phase) continue;
                for (int64_t c = 0; c < l.chunks; c++) {
                    push_chunk(r, red, (uint64_t)c, (char *)&l.partials[(int64_t)k * l.chunks + c]);
                }
                set_result(r, red, finish_chunks(r, red, (uint64_t)l.chunks));
            }
        }
        run_row(r, p->row[p->n_phases]);
        store_row_values(r);
    }
    rp__free(many);
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

static void run_walk(const rp__cpu_loop *loop, rp__program *const *programs, const uint64_t *words, int64_t first,
                     int64_t last, run *r, char *scratch) {
    const rp__walk walk = (rp__walk)(words[0] & 0xff);
    if (walk == RP__WALK_MANY) {
        run_many(r, loop, programs[RP__PLAN_ELEMENTS], words, first, last, scratch);
        return;
    }
    const rp__program *p =
        programs[walk == RP__WALK_ELEMENTS || walk == RP__WALK_BLOCKS ? RP__PLAN_ELEMENTS : RP__PLAN_RECOMPUTE];
    if (walk == RP__WALK_LONG && rp__line_long_fits(loop, words)) {
        begin(r, loop->programs[RP__PLAN_RECOMPUTE], words, walk);
        run_long(r, loop, scratch);
        return;
    }
    begin(r, p, words, walk);
    if (walk == RP__WALK_BLOCKS) {
        r->walk = RP__WALK_ACROSS;
        run_across(r, first, last, true, scratch);
        return;
    }
    if (walk == RP__WALK_ELEMENTS) {
        run_elements(r, first, last, scratch);
        return;
    }
    const rp__program *keep = programs[RP__PLAN_KEEP];
    if (keep && walk != RP__WALK_LONG) {
        int64_t row_len = 1, rows = 1;
        for (unsigned d = 0; d < r->dims; d++) *(d < r->n_outer ? &rows : &row_len) *= r->extent[d];
        if (rp__keep_fits(keep, row_len, walk == RP__WALK_ACROSS ? across_width(keep, rows) : 1)) r->p = keep;
    }
    if (walk == RP__WALK_ALONG)
        run_along(r, first, last, scratch);
    else if (walk == RP__WALK_ACROSS)
        run_across(r, first, last, false, scratch);
    else
        run_long(r, NULL, scratch);
}
static void run_launch(const rp__cpu_loop *loop, rp__program *const *programs, const uint64_t *words, int64_t first,
                       int64_t last) {
    workspace *mine = scratch_take(SCRATCH_LAUNCH);
    if (!rp__line_run(loop, words, first, last, mine->tiles))
        run_walk(loop, programs, words, first, last, &mine->r, mine->tiles);
    scratch_give(mine);
}
void rp__interpret(const rp__kernel *kernel, const uint64_t *words, int64_t first, int64_t last) {
    const rp__cpu_loop *loop = kernel->payload;
    run_launch(loop, loop->programs, words, first, last);
}
void rp__run_native(const rp__kernel *kernel, const uint64_t *words, int64_t first, int64_t last) {
    const rp__cpu_loop *loop = kernel->payload;
    run_launch(loop, loop->grouped, words, first, last);
}
