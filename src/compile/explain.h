/* What a compiled function did and did not do: one record a fact, counted when it happens again. Floors 5 to 7 write,
   rp_explain_* reads. Also the reason table (reasons.def). */
#ifndef RP_COMPILE_EXPLAIN_H
#define RP_COMPILE_EXPLAIN_H

#include "core/error.h"
#include "core/thread.h"

typedef enum rp__reason {
    RP__REASON_NONE,
#define RP_REASON(id, name, text) RP__REASON_##id,
#include "compile/reasons.def"
#undef RP_REASON
    RP__REASON_COUNT
} rp__reason;
const char *rp__reason_name(rp__reason r); /* "" for none */
const char *rp__reason_text(rp__reason r);
rp__reason rp__reason_find(const char *name); /* RP__REASON_NONE when unknown */

typedef struct rp__explain {
    rp__mutex lock;
    struct rp__explain_record {
        const char *kind; /* constant */
        rp__reason reason;
        char *message, *site;
        int64_t count;
        const _Atomic uint64_t *live; /* added to count when asked for; NULL */
    } * records;
    size_t n, capacity;
} rp__explain;
void rp__explain_begin(rp__explain *e);
void rp__explain_free(rp__explain *e);
/* Adds `count` to the record of (kind, reason, site, message), made if missing. site and the text may be NULL: then the reason's
   sentence. Never fails: without memory the fact is lost. */
void rp__explain_add(rp__explain *e, const char *kind, rp__reason reason, const char *site, int64_t count,
                     const char *format, ...) RP__PRINTF(6, 7);

/* A fact of the kind "advice": the first of a reason stays and is counted, and is logged in the name of the function. */
void rp__explain_advise(rp__explain *e, rp__reason reason, const char *site, const char *name, const char *format, ...)
    RP__PRINTF(5, 6);

/* A count that every call may change: read when somebody asks. settle takes its last value; then the counter may die. */
void rp__explain_live(rp__explain *e, const char *kind, rp__reason reason, const char *text,
                      const _Atomic uint64_t *counter);
void rp__explain_settle(rp__explain *e, const _Atomic uint64_t *counter);
/* The same for what there is no more of. */
void rp__explain_forget(rp__explain *e, const _Atomic uint64_t *counter);

#endif
