/* The expression table behind symbolic sizes (symbols.h). Polynomials with hash-consing; guards without repetitions. An open
   table is changed by one thread, a sealed one by none; nothing here calls into floors above core. */
#include "trace/symbols.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/flags.h"

enum { MAX_TERMS = 24, MAX_DEGREE = 20 };

typedef struct term { /* coefficient times a product of atoms, ids rising; no atoms: the constant */
    int64_t coefficient;
    uint32_t n;
    uint32_t atom[MAX_DEGREE];
} term;

typedef struct poly { /* terms in the order of term_order, no zero coefficients */
    uint32_t n;
    term terms[MAX_TERMS];
} poly;

typedef enum kind {
    KIND_SYMBOL,
    KIND_POLY,
    KIND_FLOORDIV,
    KIND_MOD,
    KIND_MAX,
    KIND_MIN,
    /* From here on numbers calculated of sizes, whose words are no sizes: a float64, a size as one, an rp__num_op of two. */
    KIND_CONSTANT,
    KIND_OF_SIZE,
    KIND_NUMBER
} kind;

typedef struct expression {
    kind kind;
    uint32_t index;   /* KIND_SYMBOL: of the symbol; KIND_POLY: first of its terms; KIND_NUMBER: the rp__num_op */
    uint32_t n_terms; /* KIND_POLY; of numbers the nodes of the expression as a tree */
    rp_dim a, b;      /* the other kinds; KIND_CONSTANT: the bits of the number */
    int64_t hint;
    uint32_t next; /* in its hash chain, UINT32_MAX ends */
} expression;

enum { BUCKETS = 256 };

struct rp__symbols {
    atomic_uint refs;
    uint32_t table; /* its number; a copy has that of what it was copied from */
    bool sealed;    /* set once, before other threads know the table */
    bool settled;   /* a copy of a sealed one: its guards are all there are */
    expression *expressions;
    size_t n_expressions, expressions_capacity;
    term *terms;
    size_t n_terms, terms_capacity;
    rp__symbol *symbols;
    uint32_t *symbol_expression;
    size_t n_symbols, symbols_capacity, symbol_expression_capacity;
    rp__size_guard *guards;
    size_t n_guards, guards_capacity;
    uint32_t bucket[BUCKETS];
};

static _Thread_local rp__symbols *current;

/* A word names its table, so that one of another trace, or of one that has ended, is not taken for one of this. Tables count
   from 1, and INT64_MIN is no word: it stands for None in optional integers. */
enum { TABLES = 1 << 29 };
static rp_dim word_of(const rp__symbols *s, size_t id) {
    return INT64_MIN + (int64_t)((uint64_t)s->table << 32 | (uint32_t)id);
}
static size_t id_of(rp_dim d) { return (uint32_t)((uint64_t)d - (uint64_t)INT64_MIN); }
static uint32_t table_of(rp_dim d) { return (uint32_t)(((uint64_t)d - (uint64_t)INT64_MIN) >> 32); }

/* ---- life */

rp__symbols *rp__symbols_new(void) {
    static atomic_uint tables;
    rp__symbols *s = rp__calloc(1, sizeof *s);
    if (!s) return NULL;
    atomic_init(&s->refs, 1);
    s->table = 1 + atomic_fetch_add_explicit(&tables, 1, memory_order_relaxed) % (TABLES - 1);
    for (size_t i = 0; i < BUCKETS; i++) s->bucket[i] = UINT32_MAX;
    if (!RP__GROW(&s->expressions, &s->expressions_capacity, 1)) {
        rp__free(s);
        return NULL;
    }
    memset(&s->expressions[0], 0, sizeof s->expressions[0]);
    s->n_expressions = 1;
    return s;
}

rp__symbols *rp__symbols_retain(rp__symbols *s) {
    if (s) atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void rp__symbols_release(rp__symbols *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    rp__free(s->expressions);
    rp__free(s->terms);
    rp__free(s->symbols);
    rp__free(s->symbol_expression);
    rp__free(s->guards);
    rp__free(s);
}

rp__symbols *rp__symbols_enter(rp__symbols *s) {
    rp__symbols *before = current;
    current = s;
    return before;
}

size_t rp__symbols_count(const rp__symbols *s) { return s ? s->n_symbols : 0; }
const rp__symbol *rp__symbols_at(const rp__symbols *s, size_t index) { return &s->symbols[index]; }
rp_dim rp__symbols_word(const rp__symbols *s, size_t index) { return word_of(s, s->symbol_expression[index]); }
bool rp__symbols_quiet(bool quiet) {
    bool before = rp__flags.quiet;
    rp__flags.quiet = quiet;
    return before;
}
void rp__symbols_seal(rp__symbols *s) {
    if (s && !s->sealed) s->sealed = true;
}

static bool copy_array(void *to, size_t *capacity, const void *from, size_t n, size_t size) {
    void *made = rp__alloc(n ? n * size : 1);
    if (!made) return false;
    if (n) memcpy(made, from, n * size);
    memcpy(to, &made, sizeof made);
    *capacity = n;
    return true;
}

static rp_status copy_table(const rp__symbols *s, rp__symbols **out) {
    rp__symbols *c = rp__calloc(1, sizeof *c);
    if (!c) return RP__OOM("symbolic sizes");
    atomic_init(&c->refs, 1);
    c->table = s->table;
    c->settled = true;
    c->n_expressions = s->n_expressions;
    c->n_terms = s->n_terms;
    c->n_symbols = s->n_symbols;
    c->n_guards = s->n_guards;
    memcpy(c->bucket, s->bucket, sizeof c->bucket);
    if (!copy_array(&c->expressions, &c->expressions_capacity, s->expressions, s->n_expressions,
                    sizeof *s->expressions) ||
        !copy_array(&c->terms, &c->terms_capacity, s->terms, s->n_terms, sizeof *s->terms) ||
        !copy_array(&c->symbols, &c->symbols_capacity, s->symbols, s->n_symbols, sizeof *s->symbols) ||
        !copy_array(&c->symbol_expression, &c->symbol_expression_capacity, s->symbol_expression, s->n_symbols,
                    sizeof *s->symbol_expression) ||
        !copy_array(&c->guards, &c->guards_capacity, s->guards, s->n_guards, sizeof *s->guards)) {
        rp__symbols_release(c);
        return RP__OOM("symbolic sizes");
    }
    *out = c;
    return RP_OK;
}

rp_status rp__symbols_fork(rp__symbols *s, rp__symbols **out) {
    *out = NULL;
    if (s && s->sealed) return copy_table(s, out);
    *out = rp__symbols_retain(s);
    return RP_OK;
}

rp_status rp__symbols_scratch(rp__symbols *s, rp__symbols **out) {
    *out = NULL;
    if (s && (s != current || s->sealed)) return copy_table(s, out);
    *out = rp__symbols_retain(s);
    return RP_OK;
}

size_t rp__symbols_guard_count(const rp__symbols *s) { return s ? s->n_guards : 0; }
const rp__size_guard *rp__symbols_guard_at(const rp__symbols *s, size_t index) { return &s->guards[index]; }

/* A word of another table (a handle that outlived its trace) must not index out of this one. */
static const expression *find(const rp__symbols *s, rp_dim d) {
    return s && table_of(d) == s->table && id_of(d) < s->n_expressions ? &s->expressions[id_of(d)] : NULL;
}

/* Of a size: a number calculated of sizes is none. */
static const expression *find_size(const rp__symbols *s, rp_dim d) {
    const expression *e = find(s, d);
    return e && e->kind < KIND_CONSTANT ? e : NULL;
}
static const expression *find_number(const rp__symbols *s, rp_dim d) {
    const expression *e = rp__dim_is_symbol(d) ? find(s, d) : NULL;
    return e && e->kind >= KIND_CONSTANT ? e : NULL;
}

bool rp__symbols_is_plain(const rp__symbols *s, rp_dim d, size_t *index) {
    const expression *e = rp__dim_is_symbol(d) ? find(s, d) : NULL;
    if (!e || e->kind != KIND_SYMBOL) return false;
    *index = e->index;
    return true;
}

bool rp__symbols_knows(const rp__symbols *s, rp_dim d) { return !rp__dim_is_symbol(d) || find_size(s, d) != NULL; }

int64_t rp__symbols_hint(const rp__symbols *s, rp_dim d) {
    if (!rp__dim_is_symbol(d)) return d;
    const expression *e = find_size(s, d);
    return e ? e->hint : 0;
}

/* ---- polynomials */

/* Orders by structure, not by number: two tables that hold the same expressions agree. */
static int words_order(const rp__symbols *s, rp_dim a, rp_dim b);

static int atoms_order(const rp__symbols *s, const term *a, const term *b) {
    if (a->n != b->n) return a->n > b->n ? -1 : 1; /* higher degree first: the constant is last */
    for (uint32_t i = 0; i < a->n; i++) {
        int order = words_order(s, word_of(s, a->atom[i]), word_of(s, b->atom[i]));
        if (order) return order;
    }
    return 0;
}

static int words_order(const rp__symbols *s, rp_dim a, rp_dim b) {
    if (rp__dim_same_word(a, b)) return 0;
    if (!rp__dim_is_symbol(a) || !rp__dim_is_symbol(b))
        return rp__dim_is_symbol(a) ? -1 : rp__dim_is_symbol(b) ? 1 : rp__dim_number(a) < rp__dim_number(b) ? -1 : 1;
    const expression *x = &s->expressions[id_of(a)], *y = &s->expressions[id_of(b)];
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->kind == KIND_SYMBOL) return x->index < y->index ? -1 : 1;
    if (x->kind != KIND_POLY) {
        int order = words_order(s, x->a, y->a);
        return order ? order : words_order(s, x->b, y->b);
    }
    for (uint32_t i = 0; i < x->n_terms && i < y->n_terms; i++) {
        const term *t = &s->terms[x->index + i], *u = &s->terms[y->index + i];
        int order = atoms_order(s, t, u);
        if (order) return order;
        if (t->coefficient != u->coefficient) return t->coefficient < u->coefficient ? -1 : 1;
    }
    return x->n_terms < y->n_terms ? -1 : 1;
}

static bool poly_add_term(const rp__symbols *s, poly *p, const term *t) {
    if (t->coefficient == 0) return true;
    uint32_t at = 0;
    while (at < p->n) {
        int order = atoms_order(s, t, &p->terms[at]);
        if (order == 0) {
            if (!rp__add_i64(p->terms[at].coefficient, t->coefficient, &p->terms[at].coefficient)) return false;
            if (p->terms[at].coefficient == 0) {
                memmove(&p->terms[at], &p->terms[at + 1], (p->n - at - 1) * sizeof(term));
                p->n--;
            }
            return true;
        }
        if (order < 0) break;
        at++;
    }
    if (p->n == MAX_TERMS) return false;
    memmove(&p->terms[at + 1], &p->terms[at], (p->n - at) * sizeof(term));
    p->terms[at] = *t;
    p->n++;
    return true;
}

static void to_poly(const rp__symbols *s, rp_dim d, poly *out) {
    out->n = 0;
    term t = {.coefficient = d};
    if (rp__dim_is_symbol(d)) {
        const expression *e = &s->expressions[id_of(d)];
        if (e->kind == KIND_POLY) {
            out->n = e->n_terms;
            memcpy(out->terms, &s->terms[e->index], e->n_terms * sizeof(term));
            return;
        }
        t.coefficient = 1;
        t.n = 1;
        t.atom[0] = (uint32_t)id_of(d);
    }
    (void)poly_add_term(s, out, &t);
}

static bool term_mul(const rp__symbols *s, const term *a, const term *b, term *out) {
    memset(out, 0, sizeof *out);
    if (!rp__mul_i64(a->coefficient, b->coefficient, &out->coefficient) || a->n + b->n > MAX_DEGREE) return false;
    uint32_t i = 0, k = 0;
    while (i < a->n || k < b->n)
        out->atom[out->n++] =
            k == b->n || (i < a->n && words_order(s, word_of(s, a->atom[i]), word_of(s, b->atom[k])) <= 0)
                ? a->atom[i++]
                : b->atom[k++];
    return true;
}

/* a / b exactly, for one term each. */
static bool term_divide(const term *a, const term *b, term *out) {
    memset(out, 0, sizeof *out);
    if (b->coefficient == 0 || b->coefficient == -1 || a->coefficient % b->coefficient != 0) return false;
    out->coefficient = a->coefficient / b->coefficient;
    uint32_t k = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        if (k < b->n && a->atom[i] == b->atom[k])
            k++;
        else
            out->atom[out->n++] = a->atom[i];
    }
    return k == b->n;
}

static bool poly_combine(const rp__symbols *s, rp_dim a, rp_dim b, int64_t factor, poly *out) {
    poly other;
    to_poly(s, a, out);
    to_poly(s, b, &other);
    for (uint32_t i = 0; i < other.n; i++) {
        if (!rp__mul_i64(other.terms[i].coefficient, factor, &other.terms[i].coefficient) ||
            !poly_add_term(s, out, &other.terms[i]))
            return false;
    }
    return true;
}

static bool poly_mul(const rp__symbols *s, rp_dim a, rp_dim b, poly *out) {
    poly x, y;
    to_poly(s, a, &x);
    to_poly(s, b, &y);
    out->n = 0;
    for (uint32_t i = 0; i < x.n; i++) {
        for (uint32_t k = 0; k < y.n; k++) {
            term t;
            if (!term_mul(s, &x.terms[i], &y.terms[k], &t) || !poly_add_term(s, out, &t)) return false;
        }
    }
    return true;
}

/* a / b, if that is a polynomial: long division by leading terms, which the order of terms keeps (by degree, then by atoms). */
static bool poly_divide(const rp__symbols *s, rp_dim a, rp_dim b, poly *quotient) {
    poly rest, by;
    to_poly(s, a, &rest);
    to_poly(s, b, &by);
    quotient->n = 0;
    if (by.n == 0) return false;
    while (rest.n > 0) {
        term t;
        if (!term_divide(&rest.terms[0], &by.terms[0], &t) || !poly_add_term(s, quotient, &t)) return false;
        term back = t;
        if (!rp__mul_i64(t.coefficient, -1, &back.coefficient)) return false;
        for (uint32_t i = 0; i < by.n; i++) {
            term product;
            if (!term_mul(s, &back, &by.terms[i], &product) || !poly_add_term(s, &rest, &product)) return false;
        }
    }
    return true;
}

/* ---- interning */

static uint32_t hash_words(uint64_t h, uint64_t w) {
    h ^= w;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 32);
}

static rp_dim append(rp__symbols *s, const expression *e, uint32_t slot) {
    assert(!s->sealed);
    if (s->sealed) {
        (void)rp__fail(RP_ERROR_INTERNAL, "a size is calculated in a table that other threads read");
        return 0;
    }
    if (s->n_expressions >= UINT32_MAX / 2 ||
        !RP__GROW(&s->expressions, &s->expressions_capacity, s->n_expressions + 1)) {
        (void)RP__OOM("symbolic size");
        return 0;
    }
    size_t id = s->n_expressions++;
    s->expressions[id] = *e;
    s->expressions[id].next = UINT32_MAX;
    if (slot != UINT32_MAX) {
        s->expressions[id].next = s->bucket[slot];
        s->bucket[slot] = (uint32_t)id;
    }
    return word_of(s, id);
}

static rp_dim intern_poly(rp__symbols *s, const poly *p) {
    if (p->n == 0) return 0;
    if (p->n == 1 && p->terms[0].n == 0) return p->terms[0].coefficient;
    if (p->n == 1 && p->terms[0].n == 1 && p->terms[0].coefficient == 1) return word_of(s, p->terms[0].atom[0]);
    uint32_t h = p->n;
    int64_t hint = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        int64_t product = p->terms[i].coefficient;
        h = hash_words(h, (uint64_t)product);
        for (uint32_t k = 0; k < p->terms[i].n; k++) {
            h = hash_words(h, p->terms[i].atom[k]);
            if (!rp__mul_i64(product, s->expressions[p->terms[i].atom[k]].hint, &product)) goto overflow;
        }
        if (!rp__add_i64(hint, product, &hint)) goto overflow;
    }
    uint32_t slot = h % BUCKETS;
    for (uint32_t at = s->bucket[slot]; at != UINT32_MAX; at = s->expressions[at].next) {
        const expression *e = &s->expressions[at];
        if (e->kind == KIND_POLY && e->n_terms == p->n) {
            uint32_t i = 0;
            while (i < p->n && s->terms[e->index + i].coefficient == p->terms[i].coefficient &&
                   atoms_order(s, &s->terms[e->index + i], &p->terms[i]) == 0)
                i++;
            if (i == p->n) return word_of(s, at);
        }
    }
    if (!RP__GROW(&s->terms, &s->terms_capacity, s->n_terms + p->n)) {
        (void)RP__OOM("symbolic size");
        return 0;
    }
    expression e = {.kind = KIND_POLY, .index = (uint32_t)s->n_terms, .n_terms = p->n, .hint = hint};
    rp_dim d = append(s, &e, slot);
    if (!rp__dim_same_word(d, 0)) {
        memcpy(&s->terms[s->n_terms], p->terms, p->n * sizeof(term));
        s->n_terms += p->n;
    }
    return d;
overflow:
    (void)rp__fail(RP_ERROR_SHAPE, "a size does not fit 63 bits");
    return 0;
}

static rp_dim intern_pair(rp__symbols *s, kind k, uint32_t index, uint32_t nodes, rp_dim a, rp_dim b, int64_t hint) {
    uint32_t slot = hash_words(hash_words((uint64_t)k + 77 + index, (uint64_t)a), (uint64_t)b) % BUCKETS;
    for (uint32_t at = s->bucket[slot]; at != UINT32_MAX; at = s->expressions[at].next) {
        const expression *e = &s->expressions[at];
        if (e->kind == k && e->index == index && rp__dim_same_word(e->a, a) && rp__dim_same_word(e->b, b))
            return word_of(s, at);
    }
    expression e = {.kind = k, .index = index, .n_terms = nodes, .a = a, .b = b, .hint = hint};
    return append(s, &e, slot);
}

rp_dim rp__symbols_add(rp__symbols *s, const rp__symbol *symbol) {
    if (!RP__GROW(&s->symbols, &s->symbols_capacity, s->n_symbols + 1) ||
        !RP__GROW(&s->symbol_expression, &s->symbol_expression_capacity, s->n_symbols + 1)) {
        (void)RP__OOM("symbol");
        return 0;
    }
    expression e = {.kind = KIND_SYMBOL, .index = (uint32_t)s->n_symbols, .hint = symbol->hint};
    rp_dim d = append(s, &e, UINT32_MAX);
    if (rp__dim_same_word(d, 0)) return 0;
    s->symbols[s->n_symbols] = *symbol;
    s->symbol_expression[s->n_symbols] = (uint32_t)id_of(d);
    s->n_symbols++;
    return d;
}

/* ---- questions */

/* Can the sign of the polynomial be told from its coefficients? Atoms are not negative. *low: a lower bound. */
static bool lower_bound(const poly *p, int64_t *low) {
    *low = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->terms[i].n == 0)
            *low = p->terms[i].coefficient;
        else if (p->terms[i].coefficient < 0)
            return false;
    }
    return true;
}

/* 1: always, 0: never, -1: depends on the call. */
static int decide(const rp__symbols *s, rp__dim_relation relation, rp_dim a, rp_dim b) {
    poly up, down; /* b - a and a - b */
    if (!poly_combine(s, b, a, -1, &up) || !poly_combine(s, a, b, -1, &down)) return -1;
    int64_t up_low, down_low;
    bool up_known = lower_bound(&up, &up_low), down_known = lower_bound(&down, &down_low);
    switch (relation) {
    case RP__DIM_EQ:
    case RP__DIM_NE: {
        int equal = up.n == 0 ? 1 : (up_known && up_low > 0) || (down_known && down_low > 0) ? 0 : -1;
        return equal < 0 || relation == RP__DIM_EQ ? equal : !equal;
    }
    case RP__DIM_LT: return up_known && up_low > 0 ? 1 : down_known && down_low >= 0 ? 0 : -1;
    case RP__DIM_LE: return up_known && up_low >= 0 ? 1 : down_known && down_low > 0 ? 0 : -1;
    }
    return -1;
}

static bool relate(rp__dim_relation relation, int64_t a, int64_t b) {
    switch (relation) {
    case RP__DIM_EQ: return a == b;
    case RP__DIM_NE: return a != b;
    case RP__DIM_LT: return a < b;
    case RP__DIM_LE: return a <= b;
    }
    return false;
}

rp_status rp__symbols_guard_add(rp__symbols *s, rp__dim_relation relation, rp_dim a, rp_dim b) {
    if (rp__flags.quiet || s->settled || decide(s, relation, a, b) == 1) return RP_OK;
    assert(!s->sealed);
    if (s->sealed) return rp__fail(RP_ERROR_INTERNAL, "a guard is added to a table that other threads read");
    if ((relation == RP__DIM_EQ || relation == RP__DIM_NE) && !rp__dim_is_symbol(a)) { /* value on the right */
        rp_dim t = a;
        a = b;
        b = t;
    }
    for (size_t i = 0; i < s->n_guards; i++) {
        if (s->guards[i].relation == relation && rp__dim_same_word(s->guards[i].a, a) &&
            rp__dim_same_word(s->guards[i].b, b))
            return RP_OK;
    }
    if (!RP__GROW(&s->guards, &s->guards_capacity, s->n_guards + 1)) return RP__OOM("size guard");
    s->guards[s->n_guards++] = (rp__size_guard){relation, a, b};
    return RP_OK;
}

static bool hook_is(rp__dim_relation relation, rp_dim a, rp_dim b) {
    rp__symbols *s = current;
    if (!rp__symbols_knows(s, a) || !rp__symbols_knows(s, b)) {
        (void)rp__fail(RP_ERROR_STATE, "a size or a tensor of another trace, or of one that has ended, was used");
        return false;
    }
    int decision = decide(s, relation, a, b);
    if (decision >= 0) return decision == 1;
    bool holds = relate(relation, rp__symbols_hint(s, a), rp__symbols_hint(s, b));
    /* What is recorded always holds: the negation of a relation that does not. */
    static const rp__dim_relation negation[] = {RP__DIM_NE, RP__DIM_EQ, RP__DIM_LE, RP__DIM_LT};
    if (holds)
        (void)rp__symbols_guard_add(s, relation, a, b);
    else if (relation == RP__DIM_EQ || relation == RP__DIM_NE)
        (void)rp__symbols_guard_add(s, negation[relation], a, b);
    else
        (void)rp__symbols_guard_add(s, negation[relation], b, a);
    return holds;
}

static bool hook_divides(rp_dim a, rp_dim b) {
    poly quotient;
    return rp__symbols_knows(current, a) && rp__symbols_knows(current, b) && poly_divide(current, b, a, &quotient);
}

static bool hook_known(rp_dim d) { return rp__symbols_knows(current, d); }

static int64_t hook_hint(rp_dim d) { return rp__symbols_hint(current, d); }

static int64_t hook_specialise(rp_dim d) {
    rp__symbols *s = current;
    if (!rp__symbols_knows(s, d)) {
        (void)rp__fail(RP_ERROR_STATE, "a size or a tensor of another trace, or of one that has ended, was used");
        return 0;
    }
    int64_t value = rp__symbols_hint(s, d);
    (void)rp__symbols_guard_add(s, RP__DIM_EQ, d, value);
    return value;
}

/* Floor division as Python's; false for a zero divisor. Sizes are not negative, quotients of differences may be. */
static bool floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder) {
    if (b == 0 || (a == INT64_MIN && b == -1)) return false;
    int64_t q = a / b, r = a % b;
    if (r != 0 && (r < 0) != (b < 0)) {
        q--;
        r += b;
    }
    *quotient = q;
    *remainder = r;
    return true;
}

static bool value_apply(rp__dim_op op, int64_t a, int64_t b, int64_t *out) {
    int64_t other;
    switch (op) {
    case RP__DIM_ADD: return rp__add_i64(a, b, out);
    case RP__DIM_SUB: return !__builtin_sub_overflow(a, b, out);
    case RP__DIM_MUL: return rp__mul_i64(a, b, out);
    case RP__DIM_FLOORDIV: return floor_divide(a, b, out, &other);
    case RP__DIM_MOD: return floor_divide(a, b, &other, out);
    case RP__DIM_MAX: *out = a > b ? a : b; return true;
    case RP__DIM_MIN: *out = a < b ? a : b; return true;
    }
    return false;
}

static rp_dim apply(rp__symbols *s, rp__dim_op op, rp_dim a, rp_dim b) {
    int64_t hint;
    if (!value_apply(op, rp__symbols_hint(s, a), rp__symbols_hint(s, b), &hint)) {
        (void)rp__fail(RP_ERROR_SHAPE, "a size does not fit 63 bits, or is divided by zero");
        return 0;
    }
    poly p;
    bool fits = false;
    switch (op) {
    case RP__DIM_ADD:
    case RP__DIM_SUB: fits = poly_combine(s, a, b, op == RP__DIM_ADD ? 1 : -1, &p); break;
    case RP__DIM_MUL: fits = poly_mul(s, a, b, &p); break;
    case RP__DIM_FLOORDIV:
    case RP__DIM_MOD: {
        /* That the divisor is not zero is guarded. */
        const bool exact = poly_divide(s, a, b, &p);
        if (rp__dim_is_symbol(b) && rp__symbols_guard_add(s, RP__DIM_NE, b, 0) != RP_OK) return 0;
        if (exact) return op == RP__DIM_MOD ? 0 : intern_poly(s, &p);
        return intern_pair(s, op == RP__DIM_MOD ? KIND_MOD : KIND_FLOORDIV, 0, 0, a, b, hint);
    }
    case RP__DIM_MAX:
    case RP__DIM_MIN: {
        if (decide(s, RP__DIM_LE, a, b) == 1) return op == RP__DIM_MAX ? b : a;
        if (decide(s, RP__DIM_LE, b, a) == 1) return op == RP__DIM_MAX ? a : b;
        bool swap = words_order(s, b, a) < 0; /* commutative: one order */
        rp_dim low = swap ? b : a, high = swap ? a : b;
        return intern_pair(s, op == RP__DIM_MAX ? KIND_MAX : KIND_MIN, 0, 0, low, high, hint);
    }
    }
    if (fits) return intern_poly(s, &p);
    /* Too long an expression: its operands become values of this call. */
    int64_t value = 0;
    if ((rp__dim_is_symbol(a) && rp__symbols_guard_add(s, RP__DIM_EQ, a, rp__symbols_hint(s, a)) != RP_OK) ||
        (rp__dim_is_symbol(b) && rp__symbols_guard_add(s, RP__DIM_EQ, b, rp__symbols_hint(s, b)) != RP_OK) ||
        !value_apply(op, rp__symbols_hint(s, a), rp__symbols_hint(s, b), &value))
        return 0;
    return value;
}

static rp_dim hook_apply(rp__dim_op op, rp_dim a, rp_dim b) {
    if (!current || !rp__symbols_knows(current, a) || !rp__symbols_knows(current, b)) {
        (void)rp__fail(RP_ERROR_STATE, "a size or a tensor of another trace, or of one that has ended, was used");
        return 0;
    }
    return apply(current, op, a, b);
}

/* ---- numbers calculated of sizes */

enum { MAX_NUMBER = 24 }; /* nodes of an expression; a longer one is made of the values of this call */

/* The word of an operand, 0 and a sticky error for one of another trace; *nodes of its expression are added up. */
static rp_dim number_word(rp__symbols *s, rp_scalar a, uint32_t *nodes) {
    if (a.kind == RP_SCALAR_SYM_F64 || a.kind == RP_SCALAR_SYM) {
        const expression *e = a.kind == RP_SCALAR_SYM ? find_size(s, a.v.i) : find_number(s, a.v.i);
        if (!e) {
            (void)rp__fail(RP_ERROR_STATE, "a number of another trace, or of one that has ended, was used");
            return 0;
        }
        *nodes += e->kind < KIND_CONSTANT ? 1 : e->n_terms;
        return e->kind < KIND_CONSTANT ? intern_pair(s, KIND_OF_SIZE, 0, 1, a.v.i, 0, 0) : a.v.i;
    }
    const double f = rp__scalar_f64(a);
    int64_t bits;
    memcpy(&bits, &f, sizeof bits);
    *nodes += 1;
    return intern_pair(s, KIND_CONSTANT, 0, 1, bits, 0, 0);
}

static rp_scalar hook_number(rp__num_op op, rp_scalar a, rp_scalar b) {
    rp__symbols *s = current;
    uint32_t nodes = 1;
    const rp_dim x = number_word(s, a, &nodes);
    const rp_dim y = op == RP__NUM_SQRT || rp__dim_same_word(x, 0) ? 0 : number_word(s, b, &nodes);
    if (rp__dim_same_word(x, 0) || (op != RP__NUM_SQRT && rp__dim_same_word(y, 0))) return rp_f64(0);
    if (nodes > MAX_NUMBER) return rp_f64(rp__num_f64(op, rp__scalar_f64(a), rp__scalar_f64(b)));
    const rp_dim word = intern_pair(s, KIND_NUMBER, op, nodes, x, y, 0);
    if (rp__dim_same_word(word, 0)) return rp_f64(0);
    return (rp_scalar){.kind = RP_SCALAR_SYM_F64, .v.i = word};
}

bool rp__symbols_number(const rp__symbols *s, rp_dim d, const int64_t *binding, double *out) {
    const expression *e = find_number(s, d);
    if (!e) return false;
    if (e->kind == KIND_CONSTANT) {
        memcpy(out, &e->a, sizeof *out);
        return true;
    }
    if (e->kind == KIND_OF_SIZE) {
        int64_t size = rp__symbols_hint(s, e->a);
        if (binding && !rp__symbols_value(s, e->a, binding, &size)) return false;
        *out = (double)size;
        return true;
    }
    double a, b = 0;
    if (!rp__symbols_number(s, e->a, binding, &a)) return false;
    if (e->index != RP__NUM_SQRT && !rp__symbols_number(s, e->b, binding, &b)) return false;
    *out = rp__num_f64((rp__num_op)e->index, a, b);
    return true;
}

/* The value in this call; each size in it is fixed by a guard. */
static double hook_specialise_number(rp_dim d) {
    const expression *e = find_number(current, d);
    double value = 0;
    if (!e) {
        (void)rp__fail(RP_ERROR_STATE, "a number of another trace, or of one that has ended, was used");
        return 0;
    }
    const rp_dim a = e->a, b = e->b;
    if (e->kind == KIND_OF_SIZE) (void)hook_specialise(a);
    const bool number = e->kind == KIND_NUMBER, two = number && e->index != RP__NUM_SQRT;
    if (number) (void)hook_specialise_number(a);
    if (two) (void)hook_specialise_number(b);
    (void)rp__symbols_number(current, d, NULL, &value);
    return value;
}

static bool hook_number_known(rp_dim d) { return find_number(current, d) != NULL; }

rp_scalar rp__symbols_substitute_number(const rp__symbols *s, rp_dim d, const rp_dim *binding) {
    const expression *found = find_number(s, d);
    if (!found) return rp_f64(0);
    const expression e = *found; /* s may be the table in force, which grows and moves meanwhile */
    if (e.kind == KIND_CONSTANT) {
        double f;
        memcpy(&f, &e.a, sizeof f);
        return rp_f64(f);
    }
    if (e.kind == KIND_OF_SIZE) return rp__scalar_dim(rp__symbols_substitute(s, e.a, binding));
    const rp_scalar a = rp__symbols_substitute_number(s, e.a, binding);
    const rp_scalar b = e.index == RP__NUM_SQRT ? a : rp__symbols_substitute_number(s, e.b, binding);
    /* Of sizes that are now numbers, too, it stays a float. */
    if (rp__scalar_is_symbol(a) || rp__scalar_is_symbol(b)) return hook_number((rp__num_op)e.index, a, b);
    return rp_f64(rp__num_f64((rp__num_op)e.index, rp__scalar_f64(a), rp__scalar_f64(b)));
}

void rp__symbols_install(void) {
    static const rp__dim_hooks hooks = {
        .apply = hook_apply,
        .is = hook_is,
        .divides = hook_divides,
        .hint = hook_hint,
        .specialise = hook_specialise,
        .known = hook_known,
        .number = hook_number,
        .specialise_number = hook_specialise_number,
        .number_known = hook_number_known,
    };
    rp__dim_install(&hooks);
}

/* ---- substitution and values */

static const rp__dim_op op_of[] = {
    [KIND_FLOORDIV] = RP__DIM_FLOORDIV, [KIND_MOD] = RP__DIM_MOD, [KIND_MAX] = RP__DIM_MAX, [KIND_MIN] = RP__DIM_MIN};

/* Operands of an expression were made before it, so recursion ends; its depth is that of nested quotients. */
rp_dim rp__symbols_substitute(const rp__symbols *s, rp_dim d, const rp_dim *binding) {
    if (!rp__dim_is_symbol(d) || rp__dim_same_word(d, INT64_MIN)) return d;
    const expression *found = find_size(s, d);
    if (!found) return 0;
    const expression e = *found; /* s may be the table in force, which grows and moves meanwhile */
    if (e.kind == KIND_SYMBOL) return binding[e.index];
    if (e.kind != KIND_POLY) {
        const rp_dim a = rp__symbols_substitute(s, e.a, binding), b = rp__symbols_substitute(s, e.b, binding);
        return rp__dim_apply(op_of[e.kind], a, b);
    }
    rp_dim sum = 0;
    uint32_t n_terms = e.n_terms, first = e.index;
    for (uint32_t i = 0; i < n_terms; i++) {
        term t = s->terms[first + i];
        rp_dim product = t.coefficient;
        for (uint32_t k = 0; k < t.n; k++)
            product = rp__dim_apply(RP__DIM_MUL, product, rp__symbols_substitute(s, word_of(s, t.atom[k]), binding));
        sum = rp__dim_apply(RP__DIM_ADD, sum, product);
    }
    return sum;
}

bool rp__symbols_value(const rp__symbols *s, rp_dim d, const int64_t *binding, int64_t *out) {
    if (!rp__dim_is_symbol(d)) {
        *out = d;
        return true;
    }
    const expression *e = find_size(s, d);
    if (!e) return false;
    if (e->kind == KIND_SYMBOL) {
        *out = binding[e->index];
        return true;
    }
    if (e->kind != KIND_POLY) {
        int64_t a, b;
        return rp__symbols_value(s, e->a, binding, &a) && rp__symbols_value(s, e->b, binding, &b) &&
               value_apply(op_of[e->kind], a, b, out);
    }
    int64_t sum = 0;
    for (uint32_t i = 0; i < e->n_terms; i++) {
        const term *t = &s->terms[e->index + i];
        int64_t product = t->coefficient, value;
        for (uint32_t k = 0; k < t->n; k++) {
            if (!rp__symbols_value(s, word_of(s, t->atom[k]), binding, &value) ||
                !rp__mul_i64(product, value, &product))
                return false;
        }
        if (!rp__add_i64(sum, product, &sum)) return false;
    }
    *out = sum;
    return true;
}

bool rp__symbols_hold(const rp__symbols *s, const int64_t *binding, size_t *failed) {
    for (size_t i = 0; s && i < s->n_guards; i++) {
        int64_t a, b;
        if (!rp__symbols_value(s, s->guards[i].a, binding, &a) || !rp__symbols_value(s, s->guards[i].b, binding, &b) ||
            !relate(s->guards[i].relation, a, b)) {
            *failed = i;
            return false;
        }
    }
    return true;
}

/* ---- text */

static void atom_text(const rp__symbols *s, uint32_t id, bool words, rp__text *out) {
    static const char *const name[] = {
        [KIND_FLOORDIV] = "floordiv", [KIND_MOD] = "mod", [KIND_MAX] = "max", [KIND_MIN] = "min"};
    const expression *e = &s->expressions[id];
    if (e->kind == KIND_SYMBOL) {
        const rp__symbol *symbol = &s->symbols[e->index];
        if (words && symbol->input != RP__SYMBOL_NO_SOURCE)
            rp__text_add(out, "in[%u].%s(%u)", symbol->input, symbol->is_stride ? "stride" : "size", symbol->dim);
        else
            rp__text_add(out, "s%u", e->index);
        return;
    }
    rp__text_add(out, "%s(", name[e->kind]);
    rp__symbols_text(s, e->a, words, out);
    rp__text_puts(out, ", ");
    rp__symbols_text(s, e->b, words, out);
    rp__text_puts(out, ")");
}

static void number_text(const rp__symbols *s, const expression *e, bool words, rp__text *out) {
    static const char *const name[] = {[RP__NUM_ADD] = "add", [RP__NUM_SUB] = "sub", [RP__NUM_MUL] = "mul",
                                       [RP__NUM_DIV] = "div", [RP__NUM_POW] = "pow", [RP__NUM_SQRT] = "sqrt"};
    if (e->kind == KIND_CONSTANT) {
        double f;
        memcpy(&f, &e->a, sizeof f);
        rp__text_number(out, f);
        return;
    }
    rp__text_add(out, "%s(", e->kind == KIND_OF_SIZE ? "float" : name[e->index]);
    rp__symbols_text(s, e->a, words, out);
    if (e->kind == KIND_NUMBER && e->index != RP__NUM_SQRT) {
        rp__text_puts(out, ", ");
        rp__symbols_text(s, e->b, words, out);
    }
    rp__text_puts(out, ")");
}

void rp__symbols_text(const rp__symbols *s, rp_dim d, bool words, rp__text *out) {
    if (!rp__dim_is_symbol(d)) {
        rp__text_add(out, "%lld", (long long)d);
        return;
    }
    const expression *e = find(s, d);
    if (!e) {
        rp__text_puts(out, "?");
        return;
    }
    if (e->kind >= KIND_CONSTANT) {
        number_text(s, e, words, out);
        return;
    }
    if (e->kind != KIND_POLY) {
        atom_text(s, (uint32_t)id_of(d), words, out);
        return;
    }
    for (uint32_t i = 0; i < e->n_terms; i++) {
        const term *t = &s->terms[e->index + i];
        int64_t c = t->coefficient;
        bool negative = c < 0;
        uint64_t magnitude = negative ? 0u - (uint64_t)c : (uint64_t)c;
        rp__text_puts(out, i == 0 ? (negative ? "-" : "") : negative ? " - " : " + ");
        for (uint32_t k = 0; k < t->n; k++) {
            if (k) rp__text_puts(out, "*");
            atom_text(s, t->atom[k], words, out);
        }
        if (t->n == 0)
            rp__text_add(out, "%llu", (unsigned long long)magnitude);
        else if (magnitude != 1)
            rp__text_add(out, "*%llu", (unsigned long long)magnitude);
    }
}

void rp__symbols_guard_text(const rp__symbols *s, const rp__size_guard *g, bool words, rp__text *out) {
    static const char *const name[] = {
        [RP__DIM_EQ] = "==", [RP__DIM_NE] = "!=", [RP__DIM_LT] = "<", [RP__DIM_LE] = "<="};
    rp__symbols_text(s, g->a, words, out);
    rp__text_add(out, " %s ", name[g->relation]);
    rp__symbols_text(s, g->b, words, out);
}
