/* Status codes and the thread's sticky error. Every floor reports through rp__fail and forwards with RP_TRY.
   The text lies in memory that is set aside, so that errors work out of memory. */
#ifndef RP_CORE_ERROR_H
#define RP_CORE_ERROR_H

#include <reprise.h>

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

/* Records the first failure of the thread (later ones are counted, and appended as context only by rp__fail_context) and
   returns `status`. The message should name the op and the shapes; the site is the call site in force (rp__site_push). */
rp_status rp__fail(rp_status status, const char *format, ...) RP__PRINTF(2, 3);
/* Adds ": while <text>" to the sticky error that a callee has just set; returns its status. */
rp_status rp__fail_context(const char *format, ...) RP__PRINTF(1, 2);
/* Failures reported in this thread so far, first or not: did a call fail while an older error was already held? */
uint64_t rp__error_count(void);
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

/* The call site and op in force, for messages and for nodes made by layers, losses and optimizers: while a site is pushed,
   inner ops take it instead of their own. Constant strings only. */
typedef struct rp__site_frame {
    const char *site, *op;
} rp__site_frame;
rp__site_frame rp__site_push(const char *site, const char *op); /* returns what to give to rp__site_pop */
void rp__site_pop(rp__site_frame previous);
rp__site_frame rp__site_enter(
    rp__site_frame exact);  /* replaces the frame, e.g. in a worker or a deferred launch; popped the same way */
const char *rp__site(void); /* "" when unknown */
const char *rp__site_op(void);

/* So many threads can hold an error before a text takes memory from the heap. */
enum { RP__ERROR_TEXTS = 64 };

/* Saves and restores the sticky error: for code that must run with a clean slate (hooks, workers, probes). */
typedef struct rp__error_state {
    rp_status status;
    char text[1024];
} rp__error_state;
void rp__error_save(rp__error_state *out);            /* and clears */
void rp__error_restore(const rp__error_state *state); /* keeps an error set meanwhile only if `state` holds none */

#endif
