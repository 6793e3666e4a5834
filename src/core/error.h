/* Status codes and the thread's sticky error. Every floor reports through rp__fail and forwards with RP_TRY.
   The text lies in memory that is set aside, so that errors work out of memory. */
#ifndef RP_CORE_ERROR_H
#define RP_CORE_ERROR_H

#include <reprise.h>

/* What the library itself calls has the site of the public call around it, never a line of the library. */
#ifdef RP_BUILD
#undef RP_HERE
#define RP_HERE NULL
#endif

#if defined(__GNUC__)
#define RP__PRINTF(f, a) __attribute__((format(printf, f, a)))
#define RP__WARN_UNUSED __attribute__((warn_unused_result))
#define RP__UNLIKELY(x) __builtin_expect(!!(x), 0)
#define RP__LIKELY(x) __builtin_expect(!!(x), 1)
#else
#define RP__PRINTF(f, a)
#define RP__WARN_UNUSED
#define RP__UNLIKELY(x) (x)
#define RP__LIKELY(x) (x)
#endif

/* Thread-local storage that costs an instruction to reach, of which a process has little: what every call touches, a few
   words each. scripts/check_exports.sh limits what the whole library has of thread-local storage. */
#if defined(__ELF__)
#define RP__TLS_FAST _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define RP__TLS_FAST _Thread_local
#endif

/* Records the first failure of the thread (later ones are counted, and appended as context only by rp__fail_context) and
   returns `status`. The message should name the op and the shapes; the site is the call site in force (rp__site_push). */
rp_status rp__fail(rp_status status, const char *format, ...) RP__PRINTF(2, 3);
/* Adds ": while <text>" to the sticky error that a callee has just set; returns its status. */
rp_status rp__fail_context(const char *format, ...) RP__PRINTF(1, 2);
/* Failures reported in this thread so far, first or not: did a call fail while an older error was already held? */
extern RP__TLS_FAST uint64_t rp__error_failures; /* error.c alone writes these two */
extern RP__TLS_FAST rp_status rp__error_held;
static inline uint64_t rp__error_count(void) { return rp__error_failures; }
static inline bool rp__failed(void) { return RP__UNLIKELY(rp__error_held != RP_OK); } /* rp_failed, inline */
/* What has failed since rp__error_count was `before` and is held: the question of all that calls functions whose status it does not
   see. rp_failed() answers for errors of before, too, which are the program's to take. */
static inline rp_status rp__status_since(uint64_t before) {
    return RP__LIKELY(rp__error_failures == before) ? RP_OK : rp__error_held;
}
/* What a program's function returned. A failure that nothing was reported for since rp__error_count was `before`, or whose report
   was taken, gets one: "<what> `<name>` returned ...". */
rp_status rp__returned(rp_status status, uint64_t before, const char *what, const char *name);
#define RP__OOM(what) rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: %s", (what))

/* Forwards a failure. */
#define RP_TRY(expression)                                                                                             \
    do {                                                                                                               \
        rp_status rp_try_status_ = (expression);                                                                       \
        if (RP__UNLIKELY(rp_try_status_ != RP_OK)) return rp_try_status_;                                              \
    } while (0)
/* The same in a function that frees at a label. */
#define RP_TRY_GOTO(status_variable, label, expression)                                                                \
    do {                                                                                                               \
        (status_variable) = (expression);                                                                              \
        if (RP__UNLIKELY((status_variable) != RP_OK)) goto label;                                                      \
    } while (0)

/* The line that the running public call was given: of the innermost that was given one, NULL without. What has no line of its
   own - ops inside layers and optimizers, derivatives of ops that bindings called, messages of what is no op - has this one. */
extern RP__TLS_FAST const char *rp__caller_site;
static inline const char *rp__caller_enter(const char *site) {
    const char *outer = rp__caller_site;
    if (site) rp__caller_site = site;
    return outer;
}
static inline void rp__caller_leave(const char *const *outer) { rp__caller_site = *outer; }
/* First line of a public function rp_x_at(site, ...) that is no op; it holds until the function returns. */
#define RP__CALLED_FROM(site)                                                                                          \
    __attribute__((cleanup(rp__caller_leave), unused)) const char *const rp_outer_site = rp__caller_enter(site)

/* The call site and op in force, for messages and for nodes made by layers, losses and optimizers: while a site is pushed,
   inner ops take it instead of their own. Constant strings only. */
typedef struct rp__site_frame {
    const char *site, *op;
} rp__site_frame;
extern RP__TLS_FAST rp__site_frame rp__site_frame_in_force; /* for the functions below */
/* Returns what to give to rp__site_pop. The outermost frame that knows a site or an op wins: layers, losses and optimizers speak
   for the ops inside. */
static inline rp__site_frame rp__site_push(const char *site, const char *op) {
    const rp__site_frame previous = rp__site_frame_in_force;
    rp__site_frame_in_force = (rp__site_frame){previous.site ? previous.site : site, previous.op ? previous.op : op};
    return previous;
}
static inline void rp__site_pop(rp__site_frame previous) { rp__site_frame_in_force = previous; }
/* Replaces the frame, e.g. in a worker or a deferred launch; popped the same way. */
static inline rp__site_frame rp__site_enter(rp__site_frame exact) {
    const rp__site_frame previous = rp__site_frame_in_force;
    rp__site_frame_in_force = exact;
    return previous;
}
static inline const char *rp__site(void) { /* "" when unknown */
    const char *site = rp__site_frame_in_force.site ? rp__site_frame_in_force.site : rp__caller_site;
    return site ? site : "";
}
/* A line as graphs keep it: the same text, which remembers the op or layer in force where it was called. Kept for good, one of a kind; where that
   op is `part` itself, or without memory, it is `site`. */
const char *rp__site_of_part(const char *site, const char *part);
static inline const char *rp__site_op(void) { return rp__site_frame_in_force.op ? rp__site_frame_in_force.op : ""; }

/* So many threads can hold an error before a text takes memory from the heap. */
enum { RP__ERROR_TEXTS = 64 };

/* Saves and restores the sticky error: for code that must run with a clean slate (hooks, workers, probes). */
typedef struct rp__error_state {
    rp_status status;
    uint64_t failures;
    char text[1024];
} rp__error_state;
void rp__error_save(rp__error_state *out); /* and clears */
/* Keeps an error set meanwhile only if `state` holds none. Failures that were taken meanwhile were none. */
void rp__error_restore(const rp__error_state *state);
/* Another thread's error is a failure of this one; returns its status. */
rp_status rp__error_adopt(const rp__error_state *state);

#endif
