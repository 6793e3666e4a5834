/* Errors that kernels find in data, and those of other libraries' work: the table of tags, and turning a record into the thread's sticky
   error. */
#include "device/error_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"

enum { TAG_LIMIT = 1 << 20, RECENT = 64 };

typedef struct tag {
    const char *op, *site;
    const char *outer; /* the op or layer in force, of which op is a part; NULL: op itself, or none */
} tag;

static struct {
    rp__mutex lock;
    rp__map index;
    tag *tags; /* tag number - 1 */
    size_t n, capacity;
} table = {.lock = RP__MUTEX_INIT};
RP__LOCKS_SURVIVE_FORK(fork_lock, &table.lock, 1)

/* A tag costs a lock once a place in the program; then this thread remembers it. Without memory each costs the lock. */
typedef struct memo {
    tag key;
    uint64_t number;
} memo;
static _Thread_local memo *recent; /* of RECENT; NULL: none yet */

static void recent_free(void *p) {
    recent = NULL;
    rp__free(p);
}
static __attribute__((noinline)) memo *recent_make(void) {
    static rp__thread_end memos = {.end = recent_free};
    return recent = rp__thread_new(&memos, RECENT * sizeof *recent);
}

static uint64_t of_both(const void *a, const void *b) {
    return rp__hash_mix((uint64_t)(uintptr_t)a, (uint64_t)(uintptr_t)b);
}
static rp__hash key_of(tag t) {
    return (rp__hash){(uint64_t)(uintptr_t)t.op, (uint64_t)(uintptr_t)t.site ^ of_both(t.outer, NULL)};
}

uint64_t rp__error_tag(const char *op, const char *site) {
    const char *outer = rp__site_frame_in_force.op;
    tag t = {op, site, outer && op && *outer && strcmp(outer, op) != 0 ? outer : NULL};
    size_t at = (size_t)(of_both(op, site) % RECENT);
    memo *m = RP__LIKELY(recent != NULL) ? recent : recent_make();
    if (m && m[at].number && m[at].key.op == op && m[at].key.site == site && m[at].key.outer == t.outer)
        return m[at].number;
    rp__lock(&table.lock);
    uint64_t number = (uint64_t)(uintptr_t)rp__map_get(&table.index, key_of(t));
    if (!number && table.n < TAG_LIMIT && RP__GROW(&table.tags, &table.capacity, table.n + 1) &&
        rp__map_put(&table.index, key_of(t), (void *)(uintptr_t)(table.n + 1))) {
        table.tags[table.n++] = t;
        number = table.n;
    }
    rp__unlock(&table.lock);
    if (number && m) m[at] = (memo){t, number};
    return number;
}

static void put(rp__error_record *r, uint64_t code, uint64_t number, int64_t index, int64_t bound) {
    uint64_t empty = 0;
    if (!r ||
        !atomic_compare_exchange_strong_explicit(&r->state, &empty, 1, memory_order_acquire, memory_order_relaxed))
        return; /* the first error is kept */
    r->code = code;
    r->tag = number;
    r->index = index;
    r->bound = bound;
    atomic_store_explicit(&r->state, 2, memory_order_release);
}

void rp__error_record_put(rp__error_record *r, uint64_t number, int64_t index, int64_t bound) {
    put(r, RP__ERROR_INDEX, number, index, bound);
}
void rp__error_record_put_code(rp__error_record *r, rp__error_code code, uint64_t number, int64_t index,
                               int64_t bound) {
    put(r, code, number, index, bound);
}
void rp__error_record_put_division(rp__error_record *r, uint64_t number) { put(r, RP__ERROR_DIVISION, number, 0, 0); }

/* Of others' work, by the device's slot. */
typedef struct report {
    uint64_t tag;
    char text[1024];
} report;
static _Atomic(report *) reports[RP__DEVICE_SLOTS];
static report no_memory = {.text = "another library's work failed, and there was no memory to keep the reason"};

void rp__error_record_put_text(rp__device *d, uint64_t number, const char *text) {
    report *r = rp__alloc(sizeof *r), *none = NULL;
    if (r) {
        r->tag = number;
        (void)snprintf(r->text, sizeof r->text, "%s", text);
    } else {
        r = &no_memory;
    }
    if (!atomic_compare_exchange_strong_explicit(&reports[d->slot], &none, r, memory_order_release,
                                                 memory_order_relaxed) &&
        r != &no_memory)
        rp__free(r);
}

/* Codes whose text does not depend on the data. */
static const char *const texts[RP__ERROR_CODES] = {
    [RP__ERROR_DIVISION] = "integer division by zero",
    [RP__ERROR_WEIGHT] = "probability tensor contains either `inf`, `nan` or element < 0",
    [RP__ERROR_WEIGHT_SUM] = "invalid multinomial distribution (sum of probabilities <= 0)",
    [RP__ERROR_WEIGHT_COUNT] =
        "invalid multinomial distribution (with replacement=False, not enough non-negative category to sample)",
};

static tag tag_of(uint64_t number) {
    tag t = {NULL, NULL, NULL};
    rp__lock(&table.lock);
    if (number > 0 && number <= table.n) t = table.tags[number - 1];
    rp__unlock(&table.lock);
    return t;
}

static rp_status tell_report(rp__device *d) {
    report *r = atomic_exchange_explicit(&reports[d->slot], NULL, memory_order_acquire);
    if (!r) return RP_OK; /* another thread tells it */
    const tag t = tag_of(r->tag);
    rp__site_frame outer = rp__site_enter((rp__site_frame){t.site, t.outer ? t.outer : t.op});
    const rp_status status = rp__fail(RP_ERROR_STATE, "%s%s%s", t.outer ? t.op : "", t.outer ? ": " : "", r->text);
    rp__site_pop(outer);
    if (r != &no_memory) rp__free(r);
    return status;
}

rp_status rp__error_record_check(rp__device *d) {
    if (RP__UNLIKELY(atomic_load_explicit(&reports[d->slot], memory_order_relaxed) != NULL)) RP_TRY(tell_report(d));
    rp__error_record *r = d->errors;
    if (!r || atomic_load_explicit(&r->state, memory_order_acquire) != 2) return RP_OK;
    rp__error_record found = {.code = r->code, .tag = r->tag, .index = r->index, .bound = r->bound};
    uint64_t written = 2;
    if (!atomic_compare_exchange_strong_explicit(&r->state, &written, 0, memory_order_acq_rel, memory_order_relaxed))
        return RP_OK; /* another thread reports it */
    const tag t = tag_of(found.tag);
    rp__site_frame outer = rp__site_enter((rp__site_frame){t.site, t.outer ? t.outer : t.op});
    const char *part = t.outer ? t.op : "", *colon = t.outer ? ": " : "";
    rp_status status;
    if (found.code < RP__ERROR_CODES && texts[found.code])
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s%s%s", part, colon, texts[found.code]);
    else if (found.code == RP__ERROR_USER)
        status = rp__fail((rp_status)found.index, "%s%s" RP__USER_FAILED, part, colon);
    else
        status = rp__fail(RP_ERROR_INDEX, "%s%sindex %" PRId64 " is out of bounds for a dimension of size %" PRId64,
                          part, colon, found.index, found.bound);
    rp__site_pop(outer);
    return status;
}
