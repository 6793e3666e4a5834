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

/* What is said of one thing: of a function, of one of its specialisations, of a unit of that (forward, backward), of a program
   for one tuple of sizes. A thing lies in another one; one lock for all of a function. */
typedef struct rp__explain rp__explain;

rp__explain *rp__explain_new(void);              /* of a function; NULL and an error: out of memory */
rp__explain *rp__explain_retain(rp__explain *e); /* by what may speak when the function is gone; of a function */
void rp__explain_free(rp__explain *e);           /* one count; NULL is allowed */
/* A part of `in`, called "in's name, text". NULL: without memory, or in NULL; what is said to it is lost. */
rp__explain *rp__explain_open(rp__explain *in, const char *format, ...) RP__PRINTF(2, 3);
/* There is no more of the part, and nobody adds to it: what happened is counted on in `in`, what it was like (kernels, memory,
   graphs, conditions) is forgotten, parts of it go likewise. NULL is allowed. */
void rp__explain_close(rp__explain *e);

/* Adds `count` to the record of (kind, reason, site, message) of e, made if missing. site and the text may be NULL: then the
   reason's sentence. Never fails: without memory the fact is lost. Of what happens (specialisations, guards that fail, skips) a
   part keeps so many different sentences a reason and counts others in one record. kind: a constant. */
enum { RP__EXPLAIN_SENTENCES = 64 };
void rp__explain_add(rp__explain *e, const char *kind, rp__reason reason, const char *site, int64_t count,
                     const char *format, ...) RP__PRINTF(6, 7);

/* A fact of the kind "advice": the first of a reason stays and is counted, and is logged in the name of the function. */
void rp__explain_advise(rp__explain *e, rp__reason reason, const char *site, const char *name, const char *format, ...)
    RP__PRINTF(5, 6);

/* A count that every call may change, read when somebody asks; the counter lives until e is closed. */
void rp__explain_live(rp__explain *e, const char *kind, rp__reason reason, const char *text,
                      const _Atomic uint64_t *counter);

/* What may turn out while e lives: whenever somebody counts, say(about) is asked, until it gives a text; that is a record then, behind
   `what`. `what` and the site live as long as e. */
typedef const char *rp__explain_question(const void *about);
void rp__explain_ask(rp__explain *e, const char *kind, rp__reason reason, const char *site, const char *what,
                     rp__explain_question *say, const void *about);

/* Records of e and its parts, in order: those of a part behind those of what it lies in. */
size_t rp__explain_count(rp__explain *e);
bool rp__explain_at(rp__explain *e, size_t index, rp_explain_entry *out);
/* The same, one after the other, under the lock: visit says nothing to e. */
void rp__explain_each(rp__explain *e, void (*visit)(void *ctx, const rp_explain_entry *entry), void *ctx);

#endif
