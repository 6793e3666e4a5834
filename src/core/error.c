/* The thread's sticky error, status names, and the frame that says which public call is running. Thread-local storage holds
   little more than what every op touches, because a program that opens the library late has little to give. A text lies in a
   place of its own while its error is held: in one of a table that is there from the start, so that an error can be told out of
   memory, and on the heap only when as many threads hold errors as the table has places. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/flags.h"
#include "core/fork.h"
#include "core/hash.h"

RP__TLS_FAST rp__site_frame rp__site_frame_in_force;
RP__TLS_FAST const char *rp__caller_site;
RP__TLS_FAST uint64_t rp__error_failures;
RP__TLS_FAST rp_status rp__error_held;
static RP__TLS_FAST char *text; /* of the held error; NULL: none is held, or there was no place for its text */
RP__TLS_FAST rp__thread_flags rp__flags;

/* ---- places for texts */

enum { TEXT_BYTES = sizeof((rp__error_state *)0)->text, PLACES = RP__ERROR_TEXTS };
static const char no_place[] =
    "the text of this error was lost: many threads hold errors, and there is no memory for another";
static char places[PLACES][TEXT_BYTES]; /* pages of it that no error needed are not in memory */
static _Atomic uint64_t taken;          /* bit k: places[k] is some thread's */

static size_t place_of(const char *p) { return (size_t)(p - (const char *)places) / TEXT_BYTES; }
static bool in_table(const char *p) { return p >= (const char *)places && p < (const char *)places + sizeof places; }

static void text_give(void) {
    char *p = text;
    if (!p) return;
    text = NULL;
    if (in_table(p))
        atomic_fetch_and_explicit(&taken, ~(UINT64_C(1) << place_of(p)), memory_order_release);
    else
        rp__free(p);
}

static void thread_exit(void *unused) {
    (void)unused;
    (void)rp_error_take();
}

/* In the child of a fork the other threads' errors are nobody's. */
static void keep_own_place(void) { atomic_store(&taken, text && in_table(text) ? UINT64_C(1) << place_of(text) : 0); }

static void start(void) { rp__fork_handler_add(keep_own_place); }

/* The thread's place, empty when it is new; NULL when there is none. */
static char *text_take(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static rp__thread_end ends = {.end = thread_exit};
    if (text) return text;
    (void)pthread_once(&once, start);
    uint64_t now = atomic_load_explicit(&taken, memory_order_relaxed);
    while (~now && !text) {
        unsigned k = (unsigned)__builtin_ctzll(~now);
        if (atomic_compare_exchange_weak_explicit(&taken, &now, now | UINT64_C(1) << k, memory_order_acquire,
                                                  memory_order_relaxed))
            text = places[k];
    }
    if (!text) text = rp__alloc(TEXT_BYTES);
    if (!text) return NULL;
    text[0] = 0;
    /* Any value: thread_exit looks at `text`. Without it a thread that ends with an error keeps the place. */
    (void)rp__thread_keep(&ends, &ends);
    return text;
}

/* ---- the sticky error */

const char *rp_status_name(rp_status status) {
    static const char *const names[] = {
        [RP_OK] = "RP_OK",
        [RP_ERROR_INVALID_ARGUMENT] = "RP_ERROR_INVALID_ARGUMENT",
        [RP_ERROR_SHAPE] = "RP_ERROR_SHAPE",
        [RP_ERROR_DTYPE] = "RP_ERROR_DTYPE",
        [RP_ERROR_DEVICE] = "RP_ERROR_DEVICE",
        [RP_ERROR_OUT_OF_MEMORY] = "RP_ERROR_OUT_OF_MEMORY",
        [RP_ERROR_INDEX] = "RP_ERROR_INDEX",
        [RP_ERROR_STATE] = "RP_ERROR_STATE",
        [RP_ERROR_VERSION] = "RP_ERROR_VERSION",
        [RP_ERROR_STALE] = "RP_ERROR_STALE",
        [RP_ERROR_CAPTURE] = "RP_ERROR_CAPTURE",
        [RP_ERROR_GRAPH_BREAK] = "RP_ERROR_GRAPH_BREAK",
        [RP_ERROR_GUARD] = "RP_ERROR_GUARD",
        [RP_ERROR_UNAVAILABLE] = "RP_ERROR_UNAVAILABLE",
        [RP_ERROR_COMPILE] = "RP_ERROR_COMPILE",
        [RP_ERROR_IO] = "RP_ERROR_IO",
        [RP_ERROR_DRIVER] = "RP_ERROR_DRIVER",
        [RP_ERROR_DEVICE_LOST] = "RP_ERROR_DEVICE_LOST",
        [RP_ERROR_INTERNAL] = "RP_ERROR_INTERNAL",
    };
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown status";
}

bool rp_failed(void) { return rp__error_held != RP_OK; }
rp_status rp_error_status(void) { return rp__error_held; }
const char *rp_error_message(void) { return rp__error_held == RP_OK ? "" : text ? text : no_place; }

rp_status rp_error_take(void) {
    rp_status status = rp__error_held;
    rp__error_held = RP_OK;
    text_give();
    return status;
}

int rp_report(FILE *file, const char *what) {
    if (!rp_failed()) return 0;
    (void)fprintf(file, "%s%s%s\n", what ? what : "", what ? ": " : "", rp_error_message());
    rp_error_take();
    return 1;
}

/* Appends at `used`, cutting what does not fit; returns the new length. */
static size_t append(size_t used, const char *format, ...) RP__PRINTF(2, 3);
static size_t append(size_t used, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + used, TEXT_BYTES - used, format, args);
    va_end(args);
    if (n < 0) return used;
    return used + (size_t)n < TEXT_BYTES ? used + (size_t)n : TEXT_BYTES - 1;
}

/* Lines of graphs, by line and op and by their own address. */
typedef struct kept {
    const char *op; /* behind the site */
    char site[];
} kept;
static struct {
    rp__mutex lock;
    rp__map of_pair, of_address;
} lines = {.lock = RP__MUTEX_INIT};
RP__LOCKS_SURVIVE_FORK(fork_lines, &lines.lock, 1)

static rp__hash address_of(const void *a, const void *b) {
    return (rp__hash){(uint64_t)(uintptr_t)a, (uint64_t)(uintptr_t)b};
}

const char *rp__site_of_part(const char *site, const char *part) {
    const char *op = rp__site_op();
    if (!site || !*op || strcmp(op, part) == 0) return site;
    rp__lock(&lines.lock);
    kept *k = rp__map_get(&lines.of_pair, address_of(site, op));
    if (!k || strcmp(k->site, site) != 0 ||
        strcmp(k->op, op) != 0) { /* texts may have gone, and others come where they were */
        const size_t bytes = strlen(site) + 1, more = strlen(op) + 1;
        k = rp__alloc(sizeof *k + bytes + more);
        if (k) {
            memcpy(k->site, site, bytes);
            k->op = memcpy(k->site + bytes, op, more);
            if (!rp__map_put(&lines.of_address, address_of(k->site, NULL), k)) {
                rp__free(k);
                k = NULL;
            } else {
                (void)rp__map_put(&lines.of_pair, address_of(site, op),
                                  k); /* without memory another one is made next time */
            }
        }
    }
    rp__unlock(&lines.lock);
    return k ? k->site : site;
}

/* The op that a line of a graph remembers; "": none. */
static const char *op_of_line(const char *site) {
    rp__lock(&lines.lock);
    const kept *k = rp__map_get(&lines.of_address, address_of(site, NULL));
    rp__unlock(&lines.lock);
    return k ? k->op : "";
}

rp_status rp__fail(rp_status status, const char *format, ...) {
    if (status == RP_OK) status = RP_ERROR_INTERNAL;
    rp__error_failures++;
    rp__flags.held_is_last = rp__error_held == RP_OK;
    if (!rp__flags.held_is_last) return status;
    rp__error_held = status;
    if (!text_take()) return status;
    const char *op = rp__site_op(), *site = rp__site();
    if (!*site && rp__caller_site) site = rp__caller_site; /* a frame of a call that had no line */
    char body[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(body, sizeof body, format, args);
    va_end(args);
    if (n < 0) body[0] = 0;
    size_t op_length = strlen(op), used = 0;
    bool named = op_length && strncmp(body, op, op_length) == 0 && body[op_length] == ':';
    const char *whole = op_of_line(site); /* of which op is a part */
    if (*whole && strcmp(whole, op) != 0) used = append(used, "%s: ", whole);
    if (op_length && !named) used = append(used, "%s: ", op);
    used = append(used, "%s", body);
    if (*site) append(used, " at %s", site);
    return status;
}

rp_status rp__returned(rp_status status, uint64_t before, const char *what, const char *name) {
    if (status == RP_OK || (rp__error_held != RP_OK && rp__error_failures != before)) return status;
    return rp__fail(status, "%s `%s` returned %s", what, name, rp_status_name(status));
}

rp_status rp__fail_context(const char *format, ...) {
    if (rp__error_held == RP_OK) return rp__fail(RP_ERROR_INTERNAL, "a context was given for an error that is not set");
    if (!rp__flags.held_is_last || !text) /* the callee's error was not the first: its text was not kept either */
        return rp__error_held;
    size_t used = append(strlen(text), ": while ");
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + used, TEXT_BYTES - used, format, args);
    va_end(args);
    if (n < 0) text[used] = 0;
    return rp__error_held;
}

void rp__error_save(rp__error_state *out) {
    out->status = rp__error_held;
    out->failures = rp__error_failures;
    const char *message = rp_error_message();
    memcpy(out->text, message, strlen(message) + 1);
    rp_error_take();
}

static void hold(const rp__error_state *state) {
    rp__error_held = state->status;
    rp__flags.held_is_last = true;
    if (text_take()) memcpy(text, state->text, strlen(state->text) + 1);
}

void rp__error_restore(const rp__error_state *state) {
    if (rp__error_held == RP_OK) rp__error_failures = state->failures;
    if (state->status != RP_OK) hold(state);
}

rp_status rp__error_adopt(const rp__error_state *state) {
    rp__error_failures++;
    if (rp__error_held == RP_OK)
        hold(state);
    else
        rp__flags.held_is_last = false;
    return state->status;
}
