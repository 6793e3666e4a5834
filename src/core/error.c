/* The thread's sticky error, status names, and the frame that says which public call is running. All of it lives in
   thread-local storage of fixed size: reporting an error never allocates. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__ELF__)
#define RP__TLS _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define RP__TLS _Thread_local
#endif

/* Hot and small, so that it fits the static TLS block also when the library is opened late. */
static RP__TLS rp__site_frame frame;
static RP__TLS rp_status held;
static RP__TLS uint64_t failures, held_at; /* held_at: value of failures when the held error was set */
static _Thread_local char text[sizeof((rp__error_state *)0)->text];

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

bool rp_failed(void) { return held != RP_OK; }
rp_status rp_error_status(void) { return held; }
const char *rp_error_message(void) { return held == RP_OK ? "" : text; }
uint64_t rp__error_count(void) { return failures; }

rp_status rp_error_take(void) {
    rp_status status = held;
    held = RP_OK;
    text[0] = 0;
    return status;
}

/* Appends at `used`, cutting what does not fit; returns the new length. */
static size_t append(size_t used, const char *format, ...) RP__PRINTF(2, 3);
static size_t append(size_t used, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + used, sizeof text - used, format, args);
    va_end(args);
    if (n < 0) return used;
    return used + (size_t)n < sizeof text ? used + (size_t)n : sizeof text - 1;
}

rp_status rp__fail(rp_status status, const char *format, ...) {
    if (status == RP_OK) status = RP_ERROR_INTERNAL;
    failures++;
    if (held != RP_OK) return status;
    const char *op = rp__site_op(), *site = rp__site();
    char body[sizeof text];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(body, sizeof body, format, args);
    va_end(args);
    if (n < 0) body[0] = 0;
    size_t op_length = strlen(op), used = 0;
    bool named = op_length && strncmp(body, op, op_length) == 0 && body[op_length] == ':';
    text[0] = 0;
    if (op_length && !named) used = append(used, "%s: ", op);
    used = append(used, "%s", body);
    if (*site) append(used, " at %s", site);
    held = status;
    held_at = failures;
    return status;
}

rp_status rp__fail_context(const char *format, ...) {
    if (held == RP_OK) return rp__fail(RP_ERROR_INTERNAL, "a context was given for an error that is not set");
    if (held_at != failures) /* the callee's error was not the first: its text was not kept either */
        return held;
    size_t used = append(strlen(text), ": while ");
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + used, sizeof text - used, format, args);
    va_end(args);
    if (n < 0) text[used] = 0;
    return held;
}

rp__site_frame rp__site_push(const char *site, const char *op) {
    rp__site_frame previous = frame;
    /* The outermost frame that knows a site or an op wins: layers, losses and optimizers speak for the ops inside. */
    if (!frame.site) frame.site = site;
    if (!frame.op) frame.op = op;
    return previous;
}

void rp__site_pop(rp__site_frame previous) { frame = previous; }
const char *rp__site(void) { return frame.site ? frame.site : ""; }
const char *rp__site_op(void) { return frame.op ? frame.op : ""; }

rp__site_frame rp__site_enter(rp__site_frame exact) {
    rp__site_frame previous = frame;
    frame = exact;
    return previous;
}

void rp__error_save(rp__error_state *out) {
    out->status = held;
    if (held == RP_OK)
        out->text[0] = 0;
    else
        memcpy(out->text, text, sizeof text);
    rp_error_take();
}

void rp__error_restore(const rp__error_state *state) {
    if (state->status == RP_OK) return;
    held = state->status;
    held_at = failures;
    memcpy(text, state->text, sizeof text);
}
