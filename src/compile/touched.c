/* See touched.h. */
#include "compile/touched.h"

#include "core/alloc.h"
#include "tensor/tensor.h"

/* A tree in order of `where` and `begin`, heap-ordered by chance, that knows the last end below each range. A storage has ranges of its
   own, counted from its start; those in the memory of all storages, or of others' (rp__storage_meets), are addresses. */
enum { EVERYWHERE = 0, IN_FOREIGN = 1 };
struct rp__touched_range {
    uintptr_t where; /* a storage, EVERYWHERE, IN_FOREIGN */
    intptr_t begin, end, last;
    uint32_t node, less, more; /* less, more: index + 1 in `of` */
};
typedef struct rp__touched_range range;
typedef struct span {
    uintptr_t where;
    intptr_t begin, end;
} span;

/* Is the range in order before what begins at `begin`? */
static bool is_before(const range *r, uintptr_t where, intptr_t begin) {
    return r->where != where ? r->where < where : r->begin < begin;
}
static uint32_t chance(uint32_t at) { return at * UINT32_C(2654435769); } /* odd: each index has its own */
static void renew(const rp__touched *t, uint32_t at) {
    range *r = &t->of[at - 1];
    r->last = r->end;
    if (r->less && t->of[r->less - 1].last > r->last) r->last = t->of[r->less - 1].last;
    if (r->more && t->of[r->more - 1].last > r->last) r->last = t->of[r->more - 1].last;
}
static void split(const rp__touched *t, uint32_t at, uintptr_t where, intptr_t begin, uint32_t *less, uint32_t *more) {
    if (!at) {
        *less = *more = 0;
        return;
    }
    range *r = &t->of[at - 1];
    if (is_before(r, where, begin)) {
        *less = at;
        split(t, r->more, where, begin, &r->more, more);
    } else {
        *more = at;
        split(t, r->less, where, begin, less, &r->less);
    }
    renew(t, at);
}
static uint32_t join(const rp__touched *t, uint32_t less, uint32_t more) {
    if (!less || !more) return less ? less : more;
    const bool below = chance(less) > chance(more);
    range *r = &t->of[(below ? less : more) - 1];
    if (below)
        r->more = join(t, r->more, more);
    else
        r->less = join(t, less, r->less);
    renew(t, below ? less : more);
    return below ? less : more;
}

static rp_status add_range(rp__touched *t, span s, uint32_t node) {
    uint32_t less, more;
    if (!RP__GROW(&t->of, &t->capacity, t->n + 1u)) return RP__OOM("edges of a program");
    t->of[t->n++] = (range){s.where, s.begin, s.end, s.end, node, 0, 0};
    split(t, t->root, s.where, s.begin, &less, &more);
    t->root = join(t, join(t, less, t->n), more);
    return RP_OK;
}

static uint32_t without_inside(const rp__touched *t, uint32_t at, intptr_t end) {
    if (!at) return 0;
    range *r = &t->of[at - 1];
    r->less = without_inside(t, r->less, end);
    r->more = without_inside(t, r->more, end);
    if (r->end <= end) return join(t, r->less, r->more);
    renew(t, at);
    return at;
}
/* Drops what lies wholly inside. */
static void drop_inside(rp__touched *t, span s) {
    uint32_t less, from, inside, more;
    split(t, t->root, s.where, s.begin, &less, &from);
    split(t, from, s.where, s.end, &inside, &more);
    t->root = join(t, join(t, less, without_inside(t, inside, s.end)), more);
}

static bool each_overlap(const rp__touched *t, uint32_t at, span s, rp__touched_visitor *visit, void *ctx) {
    if (!at || t->of[at - 1].last <= s.begin) return true;
    const range *r = &t->of[at - 1];
    if (r->where >= s.where && !each_overlap(t, r->less, s, visit, ctx)) return false;
    if (r->where == s.where && r->begin < s.end && r->end > s.begin && !visit(ctx, r->node)) return false;
    return !is_before(r, s.where, s.end) || each_overlap(t, r->more, s, visit, ctx);
}

/* What a slot touches, as every slot that touches it too looks for it. */
static unsigned touched_spans(const rp__slot *s, span out[3]) {
    const intptr_t data = s->storage ? (intptr_t)s->storage->data : 0;
    unsigned n = 0;
    if (!s->storage || s->begin >= s->end) return 0;
    out[n++] = (span){(uintptr_t)s->storage, s->begin, s->end};
    if (data) out[n++] = (span){EVERYWHERE, data + s->begin, data + s->end};
    if (data && s->storage->foreign) out[n++] = (span){IN_FOREIGN, data + s->begin, data + s->end};
    return n;
}
rp_status rp__touched_add(rp__touched *t, const rp__slot *s, uint32_t node) {
    span spans[3];
    const unsigned n = touched_spans(s, spans);
    for (unsigned k = 0; k < n; k++) RP_TRY(add_range(t, spans[k], node));
    return RP_OK;
}
void rp__touched_drop(rp__touched *t, const rp__slot *s) {
    span spans[3];
    const unsigned n = touched_spans(s, spans);
    for (unsigned k = 0; k < n; k++) drop_inside(t, spans[k]);
}
bool rp__touched_each(const rp__touched *t, const rp__slot *s, rp__touched_visitor *visit, void *ctx) {
    const intptr_t data = s->storage ? (intptr_t)s->storage->data : 0;
    if (!s->storage || s->begin >= s->end) return true;
    if (!each_overlap(t, t->root, (span){(uintptr_t)s->storage, s->begin, s->end}, visit, ctx)) return false;
    const uintptr_t where = s->storage->foreign ? EVERYWHERE : IN_FOREIGN;
    return !data || each_overlap(t, t->root, (span){where, data + s->begin, data + s->end}, visit, ctx);
}

void rp__touched_free(rp__touched *t) {
    rp__free(t->of);
    *t = (rp__touched){0};
}
