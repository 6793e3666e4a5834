/* The interpreter's memory (interp_parts.h): elements of an access between memory and a tile, segment by segment along the
   last dim. Called by interp_tile.c, and by interp_rows.c for stores of row values; calculates nothing but sums into memory. */
#include "kernel/cpu/interp_parts.h"

typedef rp__interp run;
typedef rp__interp_reg reg;

/* ---- walking: consecutive elements as segments along the last dims that are walked in one step ----------------------- */

typedef struct segments {
    const int64_t *extent, *stride;
    int nd;
    int64_t left, offset, last,
        length; /* offset of the next element, last: stride along a segment, length: of a whole one */
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
    s->length = s->nd ? s->extent[s->nd - 1] : 1;
    for (; s->nd > 1 && s->stride[s->nd - 2] == s->last * s->length; s->nd--) s->length *= s->extent[s->nd - 2];
    if (s->nd) { /* the dims of a segment are one */
        s->index[s->nd - 1] = s->nd > 1 ? start % s->length : start;
        if (s->nd > 1) start /= s->length;
        s->offset = s->index[s->nd - 1] * s->last;
    }
    for (int d = s->nd - 2; d >= 0; d--) {
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
    int64_t n = s->length - s->index[d];
    if (n > s->left) n = s->left;
    s->left -= n;
    s->index[d] += n;
    s->offset += n * s->last;
    if (s->index[d] < s->length) return n;
    s->index[d] = 0;
    s->offset -= s->length * s->last;
    for (d--;; d--) {
        s->index[d]++;
        s->offset += s->stride[d];
        if (d == 0 || s->index[d] < s->extent[d]) return n;
        s->offset -= s->extent[d] * s->stride[d];
        s->index[d] = 0;
    }
}

#define FILL(T)                                                                                                        \
    {                                                                                                                  \
        T v;                                                                                                           \
        memcpy(&v, from, sizeof v);                                                                                    \
        for (int64_t k = 0; k < n; k++) ((T *)(void *)d)[k] = v;                                                       \
    }                                                                                                                  \
    break
static void fill(char *d, const char *from, unsigned size, int64_t n) {
    switch (size) {
    case 1: FILL(uint8_t);
    case 2: FILL(uint16_t);
    case 4: FILL(uint32_t);
    default: FILL(uint64_t);
    }
}
#undef FILL
/* One segment of elements of `size` bytes. */
void rp__interp_copy_in(const run *r, char *d, const char *from, unsigned size, int64_t stride, int64_t n) {
    if (stride == 1) {
        memcpy(d, from, (size_t)n * size);
    } else if (stride == 0) {
        fill(d, from, size, n);
    } else {
        rp__tile_call t = {.d = d, .a = from, .n = n, .imm = stride};
        r->p->tiles->gather[rp__interp_log2(size)](&t);
    }
}

/* ---- loads ---------------------------------------------------------------------------------------------------------- */

/* AddressSanitizer sees loads one by one, not those of vectors at computed places: where it looks on there are none. */
#if defined(__SANITIZE_ADDRESS__)
#define RP_WATCHED true
#elif defined(__has_feature)
#define RP_WATCHED __has_feature(address_sanitizer)
#else
#define RP_WATCHED false
#endif
/* Elements through an offset or predicate: the address of each is computed, and memory behind a false predicate is not
   touched. */
void rp__interp_load_each(const run *r, char *d, const char *from, unsigned size, int64_t stride, int64_t n,
                          const reg *off, const reg *pred, int64_t k0) {
    static const int64_t none = 0;
    static const char zeros[8] = {0};
    const int64_t *at = off ? (const int64_t *)(const void *)off->p + k0 * off->step : &none;
    const int64_t step = off ? off->step : 0;
    const uint8_t *const wanted = pred ? (const uint8_t *)pred->p + k0 * pred->step : NULL;
    const int64_t next = pred ? pred->step : 0;
    rp__tile_fn *const vectors = RP_WATCHED ? NULL : r->p->tiles->load_at[rp__interp_log2(size)];
    int64_t begin = 0;
    if (vectors && step == 1 && (!pred || next == 1) && n >= 8) {
        begin = n / 8 * 8;
        vectors(&(rp__tile_call){.d = d, .a = from, .b = at, .c = wanted, .n = begin, .imm = stride});
    }
    /* Of known length: no call. */
#define EACH(size)                                                                                                     \
    case size:                                                                                                         \
        if (!wanted) {                                                                                                 \
            for (int64_t k = begin; k < n; k++)                                                                        \
                memcpy(d + k * (size), from + (k * stride + at[k * step]) * (size), size);                             \
            break;                                                                                                     \
        }                                                                                                              \
        for (int64_t k = begin; k < n; k++) { /* a choice of addresses: no branch to be foreseen */                    \
            const int64_t place = wanted[k * next] ? k * stride + at[k * step] : 0;                                    \
            memcpy(d + k * (size), wanted[k * next] ? from + place * (size) : zeros, size);                            \
        }                                                                                                              \
        break
    switch (size) {
        EACH(1);
        EACH(2);
        EACH(4);
        EACH(8);
    }
#undef EACH
}
void rp__interp_load_part(const run *r, const rp__insn *i, char *d, unsigned d0, unsigned d1, int64_t start, int64_t n,
                          int64_t extra, int64_t k0) {
    const unsigned a = i->access, size = r->p->access_size[a];
    if (r->p->access_windows[a]) { /* of a row value: nothing further on */
        rp__interp_windows_part(r, i, d, d0, d1, start, n, -1);
        return;
    }
    const reg *off = i->a == RP__NO_VAL ? NULL : &r->regs[i->a], *pred = i->b == RP__NO_VAL ? NULL : &r->regs[i->b];
    segments s;
    segments_begin(&s, r, a, d0, d1, start, n);
    int64_t at, k = 0, m;
    while ((m = segments_next(&s, &at))) {
        const char *from = r->base[a] + (at + extra) * (int64_t)size;
        if (off && !off->step && !pred)
            rp__interp_copy_in(r, d + k * size, from + *(const int64_t *)(const void *)off->p * (int64_t)size, size,
                               s.last, m);
        else if (off || pred)
            rp__interp_load_each(r, d + k * size, from, size, s.last, m, off, pred, k0 + k);
        else
            rp__interp_copy_in(r, d + k * size, from, size, s.last, m);
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
        rp__tile_call t = {.d = d, .as = r->w, .a = from, .n = m, .imm = s.last, .bs = r->nq};
        r->p->tiles->transpose[rp__interp_log2(size)](&t);
        d += m * size;
    }
}
/* Does a tile across of several positions hold lines of memory of access a, one a row? */
bool rp__interp_turns(const run *r, unsigned a) {
    const int64_t *stride = r->stride + a * r->dims;
    return r->nq > 1 && r->dims == r->n_outer + 1u && stride[r->n_outer] == 1 && stride[r->n_outer - 1] != 1;
}
/* The tile of an element load, as raw storage, into d. */
void rp__interp_load_raw(const run *r, const rp__insn *i, char *d, int64_t n) {
    if (r->p->access_windows[i->access]) {
        rp__interp_windows(r, i, d, n);
        return;
    }
    if (r->walk != RP__WALK_ACROSS) {
        rp__interp_load_part(r, i, d, r->d0, r->d1, r->pos, n, 0, 0);
        return;
    }
    const unsigned size = r->p->access_size[i->access];
    if (i->a == RP__NO_VAL && i->b == RP__NO_VAL && rp__interp_turns(r, i->access)) {
        load_transposed(r, i->access, d);
        return;
    }
    for (int64_t q = 0; q < r->nq; q++) {
        int64_t extra = rp__interp_offset(r, i->access, r->n_outer, r->dims, r->pos + q);
        rp__interp_load_part(r, i, d + q * r->w * size, 0, r->n_outer, r->w0, r->w, extra, q * r->w);
    }
}
void rp__interp_iota_part(const run *r, unsigned a, int64_t *d, unsigned d0, unsigned d1, int64_t start, int64_t n,
                          int64_t base) {
    segments s;
    segments_begin(&s, r, a, d0, d1, start, n);
    int64_t at, m;
    while ((m = segments_next(&s, &at))) {
        typedef uint64_t pair __attribute__((vector_size(16), may_alias, aligned(1)));
        const uint64_t v = (uint64_t)base + (uint64_t)at, step = (uint64_t)s.last;
        const pair next = {4 * step, 4 * step};
        pair x = {v, v + step}, y = {v + 2 * step, v + 3 * step};
        int64_t k = 0;
        for (; k + 4 <= m; k += 4, x += next, y += next) {
            *(pair *)(void *)(d + k) = x;
            *(pair *)(void *)(d + k + 2) = y;
        }
        for (; k < m; k++) d[k] = (int64_t)(v + (uint64_t)k * step);
        d += m;
    }
}

/* ---- windows -------------------------------------------------------------------------------------------------------- */

typedef struct run_of { /* neighbours along the last dim of the walk: element k is at offset + k * step */
    int64_t offset, step;
    int64_t place[RP__ACCESS_WINDOWS], move[RP__ACCESS_WINDOWS]; /* of each window, times its divisor */
} run_of;

static inline unsigned element_bytes(const run *r, const rp__insn *i) {
    return i->kind == RP__INSN_LOAD ? r->p->access_size[i->access] : i->kind == RP__INSN_IOTA ? 8 : 1;
}
static inline int64_t floor_div(int64_t a, int64_t b) {
    return b == 1 ? a : a / b - (a % b != 0 && (a < 0) != (b < 0));
}
/* What elements [lo, hi) of a run are; the others are outside. */
static inline void fill_run(const run *r, const rp__insn *i, char *d, int64_t offset, int64_t step, int64_t n,
                            int64_t lo, int64_t hi) {
    const unsigned size = element_bytes(r, i);
    if (hi < lo) hi = lo;
    if (lo) memset(d, 0, (size_t)lo * size);
    if (hi < n) memset(d + hi * size, 0, (size_t)(n - hi) * size);
    if (i->kind == RP__INSN_INSIDE) {
        memset(d + lo, 1, (size_t)(hi - lo));
    } else if (i->kind == RP__INSN_IOTA) {
        int64_t *to = (int64_t *)(void *)d;
        int64_t v = (int64_t)(intptr_t)r->base[i->access] + offset + lo * step;
        for (int64_t k = lo; k < hi; k++, v += step) to[k] = v;
    } else if (lo < hi) {
        rp__interp_copy_in(r, d + lo * size, r->base[i->access] + (offset + lo * step) * (int64_t)size, size, step,
                           hi - lo);
    }
}
/* A run all of whose windows stay: it is inside or outside as a whole. */
static inline void still_run(const run *r, const rp__insn *i, char *d, const run_of *x, const int64_t *windows,
                             unsigned count, int64_t n) {
    int64_t offset = x->offset;
    bool in = true;
    for (unsigned k = 0; k < count; k++) {
        const int64_t *w = windows + k * (4 + r->dims), divisor = w[3];
        const int64_t at = divisor == 1 ? x->place[k] : x->place[k] / divisor;
        in = in && (uint64_t)at < (uint64_t)w[0] && at * divisor == x->place[k];
        offset += at * w[1];
    }
    fill_run(r, i, d, offset, x->step, n, 0, in ? n : 0);
}
/* A run with windows that do not move by whole places: those that stay decide for all of it, the others element by element, place and
   rest of each carried on without a division. */
static void parted_run(const run *r, const rp__insn *i, char *d, const run_of *x, const int64_t *windows,
                       unsigned count, int64_t n) {
    struct {
        int64_t at, rest, move, more, size, stride, divisor;
    } own[RP__ACCESS_WINDOWS];
    const unsigned size = element_bytes(r, i);
    unsigned moving = 0;
    int64_t offset = x->offset;
    for (unsigned k = 0; k < count; k++) {
        const int64_t *w = windows + k * (4 + r->dims), divisor = w[3], at = floor_div(x->place[k], divisor);
        if (x->move[k]) {
            const int64_t move = floor_div(x->move[k], divisor);
            own[moving].at = at;
            own[moving].rest = x->place[k] - at * divisor;
            own[moving].move = move;
            own[moving].more = x->move[k] - move * divisor;
            own[moving].size = w[0];
            own[moving].stride = w[1];
            own[moving++].divisor = divisor;
            continue;
        }
        if ((uint64_t)at >= (uint64_t)w[0] || at * divisor != x->place[k]) {
            memset(d, 0, (size_t)n * size);
            return;
        }
        offset += at * w[1];
    }
    const char *from = r->base[i->access];
    const int64_t number = (int64_t)(intptr_t)from;
#define PARTED(T, INSIDE)                                                                                              \
    for (int64_t e = 0; e < n; e++, offset += x->step) {                                                               \
        int64_t at = offset;                                                                                           \
        bool in = true;                                                                                                \
        for (unsigned k = 0; k < moving; k++) {                                                                        \
            in = in & (own[k].rest == 0) & ((uint64_t)own[k].at < (uint64_t)own[k].size);                              \
            at += own[k].at * own[k].stride;                                                                           \
            own[k].at += own[k].move;                                                                                  \
            own[k].rest += own[k].more;                                                                                \
            const int64_t over = own[k].rest >= own[k].divisor;                                                        \
            own[k].at += over;                                                                                         \
            own[k].rest -= over ? own[k].divisor : 0;                                                                  \
        }                                                                                                              \
        T value = 0;                                                                                                   \
        (void)at; /* not every INSIDE reads it */                                                                      \
        if (in) INSIDE;                                                                                                \
        memcpy(d + e * (int64_t)sizeof value, &value, sizeof value);                                                   \
    }
#define PARTED_LOAD(T) PARTED(T, memcpy(&value, from + at * (int64_t)sizeof value, sizeof value))
    if (i->kind == RP__INSN_INSIDE) {
        PARTED(uint8_t, value = 1)
    } else if (i->kind == RP__INSN_IOTA) {
        PARTED(int64_t, value = number + at)
    } else {
        switch (size) {
        case 1: PARTED_LOAD(uint8_t) break;
        case 2: PARTED_LOAD(uint16_t) break;
        case 4: PARTED_LOAD(uint32_t) break;
        default: PARTED_LOAD(uint64_t)
        }
    }
#undef PARTED_LOAD
#undef PARTED
}
/* A run of n elements. Windows that stay, or move by whole places, leave one stretch of it inside; others part it. */
static void window_run(const run *r, const rp__insn *i, char *d, const run_of *x, int64_t n) {
    const unsigned a = i->access, count = r->p->access_windows[a];
    const int64_t *windows = r->windows + (size_t)r->p->first_window[a] * (4 + r->dims);
    int64_t lo = 0, hi = n, offset = x->offset, step = x->step;
    bool stretch = true;
    for (unsigned k = 0; k < count && stretch; k++) {
        const int64_t divisor = windows[k * (4 + r->dims) + 3];
        stretch = divisor == 1 || x->move[k] % divisor == 0;
    }
    if (!stretch && n > 1) {
        parted_run(r, i, d, x, windows, count, n);
        return;
    }
    for (unsigned k = 0; k < count; k++) {
        const int64_t *w = windows + k * (4 + r->dims), size = w[0], divisor = w[3];
        const int64_t at = divisor == 1 ? x->place[k] : x->place[k] / divisor;
        const int64_t move = n == 1 ? 0 : divisor == 1 ? x->move[k] : x->move[k] / divisor;
        if (at * divisor != x->place[k]) hi = lo;
        offset += at * w[1];
        step += move * w[1];
        int64_t first = lo, end = hi; /* 0 <= at + k * move < size */
        const int64_t last = at + (n - 1) * move;
        if (at >= 0 && at < size && last >= 0 && last < size) continue; /* as most runs are; divisions are dear */
        if (move == 0) {
            end = first;
        } else if (move > 0) {
            first = -floor_div(at, move);
            end = floor_div(size - 1 - at, move) + 1;
        } else {
            first = -floor_div(size - 1 - at, -move);
            end = floor_div(at, -move) + 1;
        }
        if (first > lo) lo = first < n ? first : n;
        if (end < hi) hi = end;
    }
    fill_run(r, i, d, offset, step, n, lo, hi);
}
void rp__interp_windows_part(const run *r, const rp__insn *i, char *d, unsigned d0, unsigned d1, int64_t start,
                             int64_t n, int64_t q) {
    const unsigned a = i->access, count = r->p->access_windows[a];
    const unsigned size = element_bytes(r, i);
    const int64_t *windows = r->windows + (size_t)r->p->first_window[a] * (4 + r->dims);
    int64_t fixed[RP__ACCESS_WINDOWS];
    for (unsigned k = 0; k < count; k++) {
        fixed[k] = r->place[r->p->first_window[a] + k];
        if (q >= 0) fixed[k] += rp__interp_along(r, windows + k * (4 + r->dims) + 4, r->n_outer, r->dims, q);
    }
    const int64_t extra = q >= 0 ? rp__interp_offset(r, a, r->n_outer, r->dims, q) : 0;
    /* Indices of the run's first element, and what they add up to in memory and in each window. */
    const int64_t *stride = r->stride + a * r->dims;
    int64_t index[RP__SPACE_MAX_DIMS] = {0}, rest = start;
    for (unsigned e = d1; e-- > d0;) {
        index[e] = e > d0 ? rest % r->extent[e] : rest;
        rest = e > d0 ? rest / r->extent[e] : 0;
    }
    run_of at = {.offset = extra, .step = d1 > d0 ? stride[d1 - 1] : 0};
    for (unsigned e = d0; e < d1; e++) at.offset += index[e] * stride[e];
    bool still = true;
    for (unsigned k = 0; k < count; k++) {
        const int64_t *factor = windows + k * (4 + r->dims) + 4;
        at.place[k] = fixed[k];
        for (unsigned e = d0; e < d1; e++) at.place[k] += index[e] * factor[e];
        at.move[k] = d1 > d0 ? factor[d1 - 1] : 0;
        still = still && at.move[k] == 0;
    }
    while (n > 0) {
        int64_t m = d1 > d0 + 1 ? r->extent[d1 - 1] - index[d1 - 1] : n;
        if (m > n) m = n;
        if (still)
            still_run(r, i, d, &at, windows, count, m);
        else
            window_run(r, i, d, &at, m);
        d += m * size;
        n -= m;
        if (n == 0) break;
        /* back to the start of the last dim, and on in the one before */
        unsigned e = d1 - 1;
        int64_t back = index[e];
        for (index[e] = 0;; e--) {
            const bool carry = e > d0 && e < d1 - 1 && index[e] == r->extent[e];
            if (carry) back = index[e], index[e] = 0;
            if (e == d1 - 1 || carry) {
                at.offset -= back * stride[e];
                for (unsigned k = 0; k < count; k++) at.place[k] -= back * windows[k * (4 + r->dims) + 4 + e];
                index[e - 1]++;
                at.offset += stride[e - 1];
                for (unsigned k = 0; k < count; k++) at.place[k] += windows[k * (4 + r->dims) + 4 + e - 1];
            } else {
                break;
            }
        }
    }
}
void rp__interp_windows(const run *r, const rp__insn *i, char *d, int64_t n) {
    if (r->walk != RP__WALK_ACROSS) {
        rp__interp_windows_part(r, i, d, r->d0, r->d1, r->pos, n, -1);
        return;
    }
    const unsigned size = element_bytes(r, i);
    for (int64_t q = 0; q < r->nq; q++)
        rp__interp_windows_part(r, i, d + q * r->w * size, 0, r->n_outer, r->w0, r->w, r->pos + q);
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
    case RP_I8:
        memcpy(&y.i, value, 4);
        *(uint8_t *)to = (uint8_t)(*(const uint8_t *)to + (uint32_t)y.i);
        break;
    case RP_I16:
        memcpy(&h, to, 2);
        memcpy(&y.i, value, 4);
        h = (uint16_t)(h + (uint32_t)y.i);
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
    static const int64_t none = 0;
    static const uint8_t all = 1;
    const int64_t *const place = off ? (const int64_t *)(const void *)off->p + k0 * off->step : &none;
    const uint8_t *const wanted = pred ? (const uint8_t *)pred->p + k0 * pred->step : &all;
    const int64_t place_step = off ? off->step : 0, next = pred ? pred->step : 0;
    value += k0 * step * (int64_t)from;
#define EACH(size, STORE)                                                                                              \
    for (int64_t k = 0; k < n; k++) {                                                                                  \
        if (!wanted[k * next]) continue; /* its place may be none */                                                   \
        char *const p = to + (k * stride + place[k * place_step]) * (int64_t)(size);                                   \
        STORE;                                                                                                         \
    }
#define EACH_SET(size) EACH(size, memcpy(p, value + k * step * (int64_t)from, size))
    if (st->mode == RP__STORE_ADD) {
        EACH(st->size, add_one(p, value + k * step * (int64_t)from, st->dtype))
        return;
    }
    switch (st->size) { /* of known length: no call */
    case 1: EACH_SET(1) break;
    case 2: EACH_SET(2) break;
    case 4: EACH_SET(4) break;
    default: EACH_SET(8)
    }
#undef EACH_SET
#undef EACH
}
void rp__interp_store_part(const run *r, const rp__program_store *st, const char *value, int64_t step, unsigned from,
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
            rp__interp_copy_out(r, to, value + k * step * (int64_t)from, step, from, s.last, m);
        }
        k += m;
    }
}
/* The opposite of load_transposed. */
void rp__interp_store_turned(const run *r, const rp__program_store *st, const char *value) {
    segments s;
    segments_begin(&s, r, st->access, 0, r->n_outer, r->w0, r->w);
    int64_t at, m;
    while ((m = segments_next(&s, &at))) {
        char *to = r->base[st->access] + (at + r->pos) * (int64_t)st->size;
        rp__tile_call t = {.d = to, .as = s.last, .a = value, .n = r->nq, .imm = r->w, .bs = m};
        r->p->tiles->transpose[rp__interp_log2(st->size)](&t);
        value += m * st->size;
    }
}
