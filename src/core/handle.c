/* See handle.h. Free memory is kept in queues by size, first in, first out; a lock is enough, as none of these is made by every
   op. */
#include "core/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"

enum { LIVE = 0x52504831, DEAD = 0x52504830, STEP = 64, SIZES = 64 };

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

void *rp__handle_new(const char *kind, size_t bytes) {
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
    h->kind = kind;
    h->op = rp__site_op();
    h->site = rp__site();
    h->name[0] = 0;
    h->next = NULL;
    h->steps = (uint32_t)k;
    atomic_store_explicit(&h->state, LIVE, memory_order_relaxed);
    return h;
}

void rp__handle_free(void *object) {
    rp__handle *h = object;
    if (!h) return;
    size_t k = h->steps;
    memset(h + 1, 0, (k + 1) * STEP - sizeof *h);
    atomic_store_explicit(&h->state, DEAD, memory_order_relaxed);
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

static rp_status released(const rp__handle *h, const char *call) {
    bool made = *h->op || *h->site;
    return rp__fail(RP_ERROR_STATE, "%s: the %s%s%s%s was released already%s%s%s%s%s%s", call, h->kind,
                    *h->name ? " `" : "", h->name, *h->name ? "`" : "", made ? " (made" : "", *h->op ? " by " : "",
                    h->op, *h->site ? " at " : "", h->site, made ? ")" : "");
}

bool rp__handle_is_live(const rp__handle *h) {
    return h && atomic_load_explicit(&h->state, memory_order_relaxed) == LIVE;
}

bool rp__handle_give_up(rp__handle *h, const char *call) {
    uint32_t state = atomic_load_explicit(&h->state, memory_order_relaxed);
    unsigned one = 1;
    if (state == LIVE &&
        atomic_compare_exchange_strong_explicit(&h->held, &one, 0, memory_order_relaxed, memory_order_relaxed))
        return true;
    if (state == LIVE || state == DEAD)
        (void)released(h, call);
    else
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the argument is no handle of that kind", call);
    return false;
}

rp_status rp__handle_refuse(const rp__handle *h, const char *call, const char *kind) {
    if (!h) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the %s is NULL", call, kind);
    uint32_t state = atomic_load_explicit(&h->state, memory_order_relaxed);
    if (state == LIVE && strcmp(h->kind, kind) != 0)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a %s was given, not a %s", call, h->kind, kind);
    if (state == DEAD || state == LIVE) return released(h, call);
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the %s was not made (see the error of its constructor)", call,
                    kind);
}
