/* Symbols of a trace: sizes (and strides) of arguments that a graph does not fix. Owns the expression table behind symbolic
   rp_dim words, the hints (values in the traced call) and the guards that shape rules recorded. Floor 5 and 6 use it; shape
   rules see it only through core/dim.h.

   Every expression is kept as a polynomial over atoms (symbols, quotients, remainders, maxima, minima) with its terms in
   one fixed order, and is hash-consed: two words of one table are equal exactly when the expressions are equal as polynomials.
   All atoms are sizes, strides or quotients of them, so none is negative; rules that follow from that need no guard.

   A word means something only together with its table. The table in force belongs to the thread (rp__symbols_enter).

   Threads. A table is open at first: one thread is at work on it, a trace and the passes of its compilation, and what is asked
   becomes guards. Before others can find it, it is sealed (rp__symbols_seal), for good: from then on nothing in it changes, so
   that reading it takes no lock; who publishes the graph orders the two (the lock of a compiled function). Passes that run later
   work on a copy of their own (rp__symbols_fork), in which expressions are added and no guard is: what they ask is answered
   by the hints. Words of the sealed table mean the same in the copy. */
#ifndef RP_TRACE_SYMBOLS_H
#define RP_TRACE_SYMBOLS_H

#include "core/dim.h"
#include "core/error.h"
#include "core/text.h"

typedef struct rp__symbols rp__symbols;

enum { RP__SYMBOL_NO_SOURCE = UINT32_MAX };
typedef struct rp__symbol { /* where a call finds the value: input `input`, size or stride of dim `dim` */
    uint32_t input;         /* RP__SYMBOL_NO_SOURCE: not an argument's (a data-dependent size) */
    uint8_t dim;
    bool is_stride;
    int64_t hint;
} rp__symbol;

typedef struct rp__size_guard { /* holds in every call that the graph serves */
    rp__dim_relation relation;
    rp_dim a, b;
} rp__size_guard;

rp__symbols *rp__symbols_new(void); /* NULL: out of memory (no sticky error); refs 1 */
rp__symbols *rp__symbols_retain(rp__symbols *s);
void rp__symbols_release(rp__symbols *s);
rp__symbols *rp__symbols_enter(rp__symbols *s); /* table in force in this thread; returns the one before. NULL: none */

/* A new symbol; 0 and a sticky error when out of memory. */
rp_dim rp__symbols_add(rp__symbols *s, const rp__symbol *symbol);
size_t rp__symbols_count(const rp__symbols *s);
const rp__symbol *rp__symbols_at(const rp__symbols *s, size_t index);
rp_dim rp__symbols_word(const rp__symbols *s, size_t index);              /* word of symbol `index` */
bool rp__symbols_is_plain(const rp__symbols *s, rp_dim d, size_t *index); /* is d a symbol itself (no expression)? */
bool rp__symbols_knows(const rp__symbols *s, rp_dim d);   /* is d a value, or a word of s (NULL: of none)? */
int64_t rp__symbols_hint(const rp__symbols *s, rp_dim d); /* d may be a value */

void rp__symbols_seal(rp__symbols *s); /* NULL: none */
/* A table that the calling thread may work on, counted: s itself while it is open, else a copy. NULL for NULL. */
rp_status rp__symbols_fork(rp__symbols *s, rp__symbols **out);
/* The same for checkers and printers, of graphs that others may be looking at: s itself only if it is open and in force. */
rp_status rp__symbols_scratch(rp__symbols *s, rp__symbols **out);
/* While the thread is quiet, questions are answered by the hints and no guard is recorded. Returns what it was. */
bool rp__symbols_quiet(bool quiet);
size_t rp__symbols_guard_count(const rp__symbols *s);
const rp__size_guard *rp__symbols_guard_at(const rp__symbols *s, size_t index);
rp_status rp__symbols_guard_add(rp__symbols *s, rp__dim_relation relation, rp_dim a,
                                rp_dim b); /* no-op when it is known to hold */

/* d with symbol i replaced by binding[i] (values, or words of the table in force). */
rp_dim rp__symbols_substitute(const rp__symbols *s, rp_dim d, const rp_dim *binding);
/* The value of d for values binding[i]; false on overflow or a division by zero. No allocation, no errors: guards use it. */
bool rp__symbols_value(const rp__symbols *s, rp_dim d, const int64_t *binding, int64_t *out);
/* Does every guard hold? Otherwise *failed is its index. */
/* The same of d, a word of a number calculated of sizes (RP_SCALAR_SYM_F64): binding NULL stands for the hints. */
bool rp__symbols_number(const rp__symbols *s, rp_dim d, const int64_t *binding, double *out);
rp_scalar rp__symbols_substitute_number(const rp__symbols *s, rp_dim d, const rp_dim *binding);
bool rp__symbols_hold(const rp__symbols *s, const int64_t *binding, size_t *failed);

/* "s0*64 + 4"; with words: "in[0].size(0)*64 + 4". s may be NULL when d is a value. */
void rp__symbols_text(const rp__symbols *s, rp_dim d, bool words, rp__text *out);
void rp__symbols_guard_text(const rp__symbols *s, const rp__size_guard *g, bool words, rp__text *out);

void rp__symbols_install(void); /* once: hooks of core/dim.h */

#endif
