/* Records of rp_explain_* and the reason table (explain.h). */
#include "compile/explain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/log.h"

static const struct {
    const char *name, *text;
} reasons[RP__REASON_COUNT] = {
    [RP__REASON_NONE] = {"", ""},
#define RP_REASON(id, name, text) [RP__REASON_##id] = {name, text},
#include "compile/reasons.def"
#undef RP_REASON
};

const char *rp__reason_name(rp__reason r) { return reasons[r].name; }
const char *rp__reason_text(rp__reason r) { return reasons[r].text; }

rp__reason rp__reason_find(const char *name) {
    for (int r = 1; name && r < RP__REASON_COUNT; r++) {
        if (strcmp(reasons[r].name, name) == 0) return (rp__reason)r;
    }
    return RP__REASON_NONE;
}

typedef struct record {
    const char *kind; /* constant */
    rp__reason reason;
    uint64_t key; /* of all that tells records apart */
    char *message, *site;
    int64_t count;
    const _Atomic uint64_t *live; /* added to count when asked for; NULL */
} record;

typedef struct question {
    const char *kind, *site, *what;
    rp__reason reason;
    rp__explain_question *say;
    const void *about;
} question;

struct rp__explain {
    rp__mutex *lock;  /* of the function */
    atomic_uint refs; /* of a function's */
    rp__explain *in, *parts, *next;
    char *name;
    record *records;
    size_t n, capacity;
    question *questions; /* without an answer so far */
    size_t n_questions, questions_capacity;
};

static rp__explain *new_part(rp__mutex *lock, const char *name) {
    rp__explain *e = rp__calloc(1, sizeof *e);
    char *own = rp__strdup(name);
    if (!e || !own) {
        rp__free(e);
        rp__free(own);
        return NULL;
    }
    e->lock = lock;
    e->name = own;
    return e;
}

rp__explain *rp__explain_new(void) {
    rp__mutex *lock = rp__calloc(1, sizeof *lock);
    rp__explain *e = lock ? new_part(lock, "") : NULL;
    if (!e) {
        rp__free(lock);
        (void)RP__OOM("what is to be explained");
        return NULL;
    }
    (void)pthread_mutex_init(lock, NULL);
    atomic_init(&e->refs, 1);
    return e;
}

rp__explain *rp__explain_retain(rp__explain *e) {
    atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    return e;
}

static void free_records(rp__explain *e) {
    for (size_t i = 0; i < e->n; i++) {
        rp__free(e->records[i].message);
        rp__free(e->records[i].site);
    }
    rp__free(e->records);
    rp__free(e->questions);
    rp__free(e->name);
    rp__free(e);
}

static void free_parts(rp__explain *e) {
    for (rp__explain *part = e->parts, *next; part; part = next) {
        next = part->next;
        free_parts(part);
        free_records(part);
    }
}

void rp__explain_free(rp__explain *e) {
    if (!e || atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1) return;
    rp__mutex *lock = e->lock;
    free_parts(e);
    free_records(e);
    (void)pthread_mutex_destroy(lock);
    rp__free(lock);
}

rp__explain *rp__explain_open(rp__explain *in, const char *format, ...) {
    char text[256];
    va_list args;
    if (!in) return NULL;
    int n = snprintf(text, sizeof text, "%s%s", in->name, *in->name ? ", " : "");
    va_start(args, format);
    if (n >= 0 && (size_t)n < sizeof text) (void)vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    rp__explain *e = new_part(in->lock, text);
    if (!e) return NULL;
    e->in = in;
    rp__lock(in->lock);
    rp__explain **end = &in->parts;
    while (*end) end = &(*end)->next;
    *end = e;
    rp__unlock(in->lock);
    return e;
}

static bool same(const record *a, const char *kind, rp__reason reason, const char *site, const char *text) {
    return a->reason == reason && strcmp(a->kind, kind) == 0 && strcmp(a->site, site) == 0 &&
           strcmp(a->message, text) == 0;
}

/* Facts that stay facts when what they are about is gone; a function may meet any number of them. The first COUNTED are
   counted for the process, too: of the others functions count each call by themselves. */
enum { COUNTED = 7, EVENTS = 9 };
static const char *const events[EVENTS] = {"specialisation", "instance", "break", "skip", "guard",
                                           "fusion",         "lowering", "copy",  "patch"};
static _Atomic uint64_t counters[COUNTED][RP__REASON_COUNT];

static size_t event_of(const char *kind) { /* EVENTS: none */
    size_t i = 0;
    while (i < EVENTS && strcmp(kind, events[i]) != 0) i++;
    return i;
}
static bool is_event(const char *kind) { return event_of(kind) < EVENTS; }

static void count_for_process(const char *kind, rp__reason reason, int64_t by) {
    size_t event = event_of(kind);
    if (event < COUNTED) atomic_fetch_add_explicit(&counters[event][reason], (uint64_t)by, memory_order_relaxed);
}

/* Number `index` of those that are not 0. */
static bool find_counter(size_t *index, rp_counter *out) {
    for (size_t k = 0; k < COUNTED; k++) {
        for (int r = 0; r < RP__REASON_COUNT; r++) {
            uint64_t n = atomic_load_explicit(&counters[k][r], memory_order_relaxed);
            if (n == 0 || (*index)-- > 0) continue;
            *out = (rp_counter){events[k], rp__reason_name((rp__reason)r), n};
            return true;
        }
    }
    return false;
}

size_t rp_counter_count(void) {
    rp_counter unused;
    size_t left = SIZE_MAX;
    (void)find_counter(&left, &unused);
    return SIZE_MAX - left;
}

rp_status rp_counter_get_at(const char *site, size_t index, rp_counter *counter) {
    RP__CALLED_FROM(site);
    if (!counter) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_counter_get: an argument is NULL");
    size_t left = index;
    if (find_counter(&left, counter)) return RP_OK;
    return rp__fail(RP_ERROR_INDEX, "rp_counter_get: there is no counter %zu", index);
}

void rp_counters_clear(void) {
    for (size_t k = 0; k < COUNTED; k++)
        for (int r = 0; r < RP__REASON_COUNT; r++) atomic_store_explicit(&counters[k][r], 0, memory_order_relaxed);
}

static uint64_t key_of(const char *kind, rp__reason reason, const char *site, const char *text) {
    uint64_t key = rp__hash_mix((uint64_t)reason, rp__hash_bytes(kind, strlen(kind), rp__hash_none()).lo);
    key = rp__hash_mix(key, rp__hash_bytes(site, strlen(site), rp__hash_none()).lo);
    return rp__hash_mix(key, rp__hash_bytes(text, strlen(text), rp__hash_none()).lo);
}

/* Under the lock. live: a record of its own. */
static void add(rp__explain *e, const char *kind, rp__reason reason, const char *site, int64_t count, const char *text,
                const _Atomic uint64_t *live) {
    uint64_t key = key_of(kind, reason, site, text);
    size_t sentences = 0;
    bool event = is_event(kind);
    for (size_t i = 0; i < e->n && !live; i++) {
        record *r = &e->records[i];
        if (r->key == key && !r->live && same(r, kind, reason, site, text)) {
            r->count += count;
            return;
        }
        if (event && r->reason == reason && strcmp(r->kind, kind) == 0) sentences++;
    }
    static const char others[] = "others, which are counted here only";
    if (sentences >= RP__EXPLAIN_SENTENCES && strcmp(text, others) != 0) {
        add(e, kind, reason, "", count, others, NULL);
        return;
    }
    char *message = rp__strdup(text), *where = rp__strdup(site);
    if (message && where && RP__GROW(&e->records, &e->capacity, e->n + 1)) {
        e->records[e->n++] = (record){kind, reason, key, message, where, count, live};
    } else {
        rp__free(message);
        rp__free(where);
    }
}

void rp__explain_add(rp__explain *e, const char *kind, rp__reason reason, const char *site, int64_t count,
                     const char *format, ...) {
    char text[1024];
    va_list args;
    if (format) {
        va_start(args, format);
        (void)vsnprintf(text, sizeof text, format, args);
        va_end(args);
    } else {
        (void)snprintf(text, sizeof text, "%s", rp__reason_text(reason));
    }
    if (!site) site = "";
    count_for_process(kind, reason, count);
    rp__log(RP__LOG_COMPILE, "%s: %s %s%s%s", kind, rp__reason_name(reason), text, *site ? " at " : "", site);
    if (!e) return;
    rp__lock(e->lock);
    add(e, kind, reason, site, count, text, NULL);
    rp__unlock(e->lock);
}

void rp__explain_advise(rp__explain *e, rp__reason reason, const char *site, const char *name, const char *format,
                        ...) {
    static const char kind[] = "advice";
    char text[1024];
    bool told = false;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!e) return;
    rp__lock(e->lock);
    for (size_t i = 0; i < e->n && !told; i++) {
        told = e->records[i].reason == reason && strcmp(e->records[i].kind, kind) == 0;
        if (told) e->records[i].count++;
    }
    rp__unlock(e->lock);
    if (told) return;
    rp__explain_add(e, kind, reason, site, 1, "%s", text);
    rp__log(RP__LOG_ADVICE, "%s: %s%s%s", name, text, site && *site ? " at " : "", site ? site : "");
}

void rp__explain_live(rp__explain *e, const char *kind, rp__reason reason, const char *text,
                      const _Atomic uint64_t *counter) {
    if (!e) return;
    rp__lock(e->lock);
    add(e, kind, reason, "", 0, text, counter);
    rp__unlock(e->lock);
}

void rp__explain_ask(rp__explain *e, const char *kind, rp__reason reason, const char *site, const char *what,
                     rp__explain_question *say, const void *about) {
    if (!e) return;
    rp__lock(e->lock);
    if (RP__GROW(&e->questions, &e->questions_capacity, e->n_questions + 1))
        e->questions[e->n_questions++] = (question){kind, site ? site : "", what, reason, say, about};
    rp__unlock(e->lock);
}

/* Under the lock. */
static void ask_all(rp__explain *e) {
    size_t open = 0;
    for (size_t i = 0; i < e->n_questions; i++) {
        const question *q = &e->questions[i];
        const char *answer = q->say(q->about);
        char text[1024];
        if (answer) {
            (void)snprintf(text, sizeof text, "%s: %s", q->what, answer);
            add(e, q->kind, q->reason, q->site, 1, text, NULL);
        } else {
            e->questions[open++] = *q;
        }
    }
    e->n_questions = open;
    for (rp__explain *part = e->parts; part; part = part->next) ask_all(part);
}

static int64_t count_of(const record *r) {
    return r->count + (r->live ? (int64_t)atomic_load_explicit(r->live, memory_order_relaxed) : 0);
}

/* A condition of what is gone is none any more: guards that failed were counted where they failed. */
static void fold(rp__explain *into, rp__explain *e) {
    for (rp__explain *part = e->parts, *next; part; part = next) {
        next = part->next;
        fold(into, part);
    }
    for (size_t i = 0; i < e->n; i++) {
        const record *r = &e->records[i];
        if (is_event(r->kind) && strcmp(r->kind, "guard") != 0 && count_of(r) != 0)
            add(into, r->kind, r->reason, r->site, count_of(r), r->message, NULL);
    }
    free_records(e);
}

void rp__explain_close(rp__explain *e) {
    if (!e) return;
    rp__mutex *lock = e->lock;
    rp__lock(lock);
    rp__explain **link = &e->in->parts;
    while (*link != e) link = &(*link)->next;
    *link = e->next;
    fold(e->in, e);
    rp__unlock(lock);
}

static size_t count_all(const rp__explain *e) {
    size_t n = e->n;
    for (const rp__explain *part = e->parts; part; part = part->next) n += count_all(part);
    return n;
}

/* *index: of the records that follow; less by those of e if it is not among them. */
static bool find(const rp__explain *e, size_t *index, rp_explain_entry *out) {
    if (*index < e->n) {
        const record *r = &e->records[*index];
        *out = (rp_explain_entry){r->kind, rp__reason_name(r->reason), r->message, r->site, count_of(r), e->name};
        return true;
    }
    *index -= e->n;
    for (const rp__explain *part = e->parts; part; part = part->next)
        if (find(part, index, out)) return true;
    return false;
}

size_t rp__explain_count(rp__explain *e) {
    rp__lock(e->lock);
    ask_all(e);
    size_t n = count_all(e);
    rp__unlock(e->lock);
    return n;
}

static void visit_all(const rp__explain *e, void (*visit)(void *ctx, const rp_explain_entry *entry), void *ctx) {
    for (size_t i = 0; i < e->n; i++) {
        const record *r = &e->records[i];
        visit(ctx, &(rp_explain_entry){r->kind, rp__reason_name(r->reason), r->message, r->site, count_of(r), e->name});
    }
    for (const rp__explain *part = e->parts; part; part = part->next) visit_all(part, visit, ctx);
}

void rp__explain_each(rp__explain *e, void (*visit)(void *ctx, const rp_explain_entry *entry), void *ctx) {
    rp__lock(e->lock);
    ask_all(e);
    visit_all(e, visit, ctx);
    rp__unlock(e->lock);
}

bool rp__explain_at(rp__explain *e, size_t index, rp_explain_entry *out) {
    rp__lock(e->lock);
    bool found = find(e, &index, out);
    rp__unlock(e->lock);
    return found;
}
