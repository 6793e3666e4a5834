/* Records of rp_explain_* and the reason table (explain.h). */
#include "compile/explain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
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

void rp__explain_begin(rp__explain *e) {
    memset(e, 0, sizeof *e);
    (void)pthread_mutex_init(&e->lock, NULL);
}

void rp__explain_free(rp__explain *e) {
    for (size_t i = 0; i < e->n; i++) {
        rp__free(e->records[i].message);
        rp__free(e->records[i].site);
    }
    rp__free(e->records);
    (void)pthread_mutex_destroy(&e->lock);
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
    rp__log(RP__LOG_COMPILE, "%s: %s %s%s%s", kind, rp__reason_name(reason), text, *site ? " at " : "", site);
    rp__lock(&e->lock);
    for (size_t i = 0; i < e->n; i++) {
        struct rp__explain_record *r = &e->records[i];
        if (r->reason == reason && strcmp(r->kind, kind) == 0 && strcmp(r->site, site) == 0 &&
            strcmp(r->message, text) == 0) {
            r->count += count;
            rp__unlock(&e->lock);
            return;
        }
    }
    char *message = rp__strdup(text), *where = rp__strdup(site);
    if (message && where && RP__GROW(&e->records, &e->capacity, e->n + 1)) {
        e->records[e->n++] = (struct rp__explain_record){kind, reason, message, where, count, NULL};
    } else {
        rp__free(message);
        rp__free(where);
    }
    rp__unlock(&e->lock);
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
    rp__lock(&e->lock);
    for (size_t i = 0; i < e->n && !told; i++) {
        told = e->records[i].reason == reason && strcmp(e->records[i].kind, kind) == 0;
        if (told) e->records[i].count++;
    }
    rp__unlock(&e->lock);
    if (told) return;
    rp__explain_add(e, kind, reason, site, 1, "%s", text);
    rp__log(RP__LOG_ADVICE, "%s: %s%s%s", name, text, site && *site ? " at " : "", site ? site : "");
}

void rp__explain_live(rp__explain *e, const char *kind, rp__reason reason, const char *text,
                      const _Atomic uint64_t *counter) {
    char *message = rp__strdup(text), *where = rp__strdup("");
    rp__lock(&e->lock);
    if (message && where && RP__GROW(&e->records, &e->capacity, e->n + 1)) {
        e->records[e->n++] = (struct rp__explain_record){kind, reason, message, where, 0, counter};
    } else {
        rp__free(message);
        rp__free(where);
    }
    rp__unlock(&e->lock);
}

static void end_live(rp__explain *e, const _Atomic uint64_t *counter, bool keep) {
    rp__lock(&e->lock);
    for (size_t i = 0; i < e->n; i++) {
        if (e->records[i].live != counter) continue;
        if (keep) e->records[i].count += (int64_t)atomic_load_explicit(counter, memory_order_relaxed);
        e->records[i].live = NULL;
    }
    rp__unlock(&e->lock);
}
void rp__explain_settle(rp__explain *e, const _Atomic uint64_t *counter) { end_live(e, counter, true); }
void rp__explain_forget(rp__explain *e, const _Atomic uint64_t *counter) { end_live(e, counter, false); }
