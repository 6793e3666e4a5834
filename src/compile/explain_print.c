/* REPRISE_EXPLAIN=1: what rp_explain_* says of each function of a program that knows nothing of it, on standard error, when the
   function is released or, of those that are not, when the program ends. A function that was never called has nothing to say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compile/callable.h"
#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"
#include "core/text.h"

typedef struct entry {
    rp_compiled *f;
    const char *kind; /* of f, whose table goes before f does */
    pid_t process;    /* a child has its parent's functions, and does not speak of them */
    struct entry *next;
} entry;
static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)
static entry *first;
static bool wanted;

static void print_entry(void *ctx, const rp_explain_entry *r) {
    rp__text *t = ctx;
    char line[2048], shown[4096];
    (void)snprintf(line, sizeof line, "  %-15s %s%s%s%s%s%s%s%s%s", r->kind, r->message, *r->reason ? " [" : "",
                   r->reason, *r->reason ? "]" : "", *r->site ? " at " : "", r->site, *r->of ? " (" : "", r->of,
                   *r->of ? ")" : "");
    rp__printable(shown, sizeof shown, line);
    rp__text_puts(t, shown);
    if (r->count != 1) rp__text_add(t, " (%lld)", (long long)r->count);
    rp__text_puts(t, "\n");
}

static void print(const entry *e) {
    const rp_compiled *f = e->f;
    rp__text t = {0};
    char shown[4096];
    rp__explain_each(f->explain, print_entry, &t);
    rp__printable(shown, sizeof shown, f->name);
    if (t.data && !t.failed) (void)fprintf(stderr, "reprise explain: %s (%s)\n%s", shown, e->kind, t.data);
    rp__text_free(&t);
}

static void at_exit(void) {
    rp__lock(&lock);
    for (entry *e = first; e; e = e->next)
        if (e->process == getpid()) print(e);
    rp__unlock(&lock);
}

static void start(void) {
    const char *value = rp__env("REPRISE_EXPLAIN");
    wanted = value && !strcmp(value, "1") && atexit(at_exit) == 0;
}

void rp__explain_enter(rp_compiled *f) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, start);
    entry *e = wanted ? rp__alloc(sizeof *e) : NULL;
    if (!e) return;
    rp__lock(&lock);
    *e = (entry){f, f->ops->kind, getpid(), first};
    first = e;
    rp__unlock(&lock);
}

void rp__explain_leave(rp_compiled *f) {
    if (!wanted) return;
    rp__lock(&lock);
    for (entry **at = &first, *e; (e = *at); at = &e->next) {
        if (e->f != f) continue;
        *at = e->next;
        if (e->process == getpid()) print(e);
        rp__free(e);
        break;
    }
    rp__unlock(&lock);
}
