/* See handle.h. Free memory is kept in queues by size, first in, first out; a lock is enough, as none of these is made by every
   op. */
#include "core/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"

enum { STEP = 64, SIZES = 64 };

static const char *const kinds[] = {
#define X(NAME, text) text,
    RP__HANDLE_KINDS(X)
#undef X
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static struct {
    rp__mutex lock;
    struct {
        rp__handle *head, *tail;
        size_t n;
    } free[SIZES]; /* of k + 1 steps */
} slots = {.lock = RP__MUTEX_INIT};
RP__LOCKS_SURVIVE_FORK(fork_lock, &slots.lock, 1)

static bool reused(void) {
    static _Atomic int answer; /* 0: not asked yet */
    int known = atomic_load_explicit(&answer, memory_order_relaxed);
    if (known == 0) {
        const char *check = rp__env("REPRISE_CHECK");
        known = check && strcmp(check, "1") == 0 ? 1 : 2;
        atomic_store_explicit(&answer, known, memory_order_relaxed);
    }
    return known == 2;
}

void *rp__handle_new(rp__handle_kind kind, size_t bytes) {
    size_t k = (bytes - 1) / STEP;
    if (bytes < sizeof(rp__handle) || k >= SIZES || rp__alloc_inject()) return NULL;
    rp__handle *h = NULL;
    rp__lock(&slots.lock);
    if (slots.free[k].n > RP__HANDLE_QUARANTINE && reused()) {
        h = slots.free[k].head;
        slots.free[k].head = h->next;
        slots.free[k].n--;
    }
    rp__unlock(&slots.lock);
    if (!h) h = calloc(1, (k + 1) * STEP);
    if (!h) return NULL;
    rp__alloc_counted(1);
    atomic_init(&h->held, 1);
    h->op = rp__site_op();
    h->site = rp__site();
    h->name[0] = 0;
    h->next = NULL;
    h->steps = (uint32_t)k;
    atomic_store_explicit(&h->state, RP__HANDLE_STATE(kind, true), memory_order_relaxed);
    return h;
}

void rp__handle_free(void *object) {
    rp__handle *h = object;
    if (!h) return;
    size_t k = h->steps;
    memset(h + 1, 0, (k + 1) * STEP - sizeof *h);
    (void)atomic_fetch_and_explicit(&h->state, ~1u, memory_order_relaxed); /* its kind stays */
    rp__alloc_counted(-1);
    rp__lock(&slots.lock);
    h->next = NULL;
    if (slots.free[k].n++)
        slots.free[k].tail->next = h;
    else
        slots.free[k].head = h;
    slots.free[k].tail = h;
    rp__unlock(&slots.lock);
}

const char *rp__handle_kind_of(const void *object) {
    const uint32_t word = atomic_load_explicit(&((const rp__handle *)object)->state, memory_order_relaxed);
    if (word == RP__TENSOR_MAGIC || word == RP__TENSOR_DEAD) return "tensor";
    const uint32_t kind = (word - RP__HANDLE_STATE(0, false)) >> 1;
    return kind < KINDS ? kinds[kind] : NULL;
}

static const char *article(const char *name) { return strchr("aeioL", *name) ? "an" : "a"; }

static rp_status released(const rp__handle *h, const char *kind, const char *call) {
    bool made = *h->op || *h->site;
    return rp__fail(RP_ERROR_STATE, "%s: the %s%s%s%s was released already%s%s%s%s%s%s", call, kind,
                    *h->name ? " `" : "", h->name, *h->name ? "`" : "", made ? " (made" : "", *h->op ? " by " : "",
                    h->op, *h->site ? " at " : "", h->site, made ? ")" : "");
}

rp_status rp__handle_refuse(const void *object, rp__handle_kind kind, const char *call) {
    const rp__handle *const h = object;
    const char *const wanted = kinds[kind];
    if (!h) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the %s is NULL", call, wanted);
    const char *const given = rp__handle_kind_of(h);
    if (given && given != wanted)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: %s %s was given, not %s %s", call, article(given), given,
                        article(wanted), wanted);
    if (given) return released(h, wanted, call);
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the %s was not made (see the error of its constructor)", call,
                    wanted);
}

bool rp__handle_give_up(void *object, rp__handle_kind kind, const char *call) {
    rp__handle *const h = object;
    unsigned held = rp__handle_is(h, kind) ? atomic_load_explicit(&h->held, memory_order_relaxed) : 0;
    while (held > 0) {
        if (atomic_compare_exchange_weak_explicit(&h->held, &held, held - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    }
    (void)rp__handle_refuse(h, kind, call);
    return false;
}
