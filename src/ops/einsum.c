/* einsum: the equation is read into labels, one for each dim of an operand; then two operands after the other become one, by a
   product where something is added up over both and by multiplication where not. Dims of one element broadcast: they are
   left out as soon as two operands meet, and stand again in the result. */
#include <string.h>

#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

enum { LETTERS = 52, LABELS = LETTERS + RP_MAX_DIMS, MOST = 64 }; /* behind the letters: dims of "...", from the last */

typedef struct term {
    rp_tensor *t;
    unsigned n; /* t->ndim */
    uint8_t label[RP_MAX_DIMS];
} term;

typedef struct equation {
    const rp__call *call;
    size_t n;
    term terms[MOST];
    rp_dim size[LABELS]; /* 1 until another is seen */
    unsigned count[LABELS], out_n, n_ellipsis;
    uint8_t out[RP_MAX_DIMS];
    bool ellipsis; /* is there one? */
} equation;

static int letter(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1; }
static char name_of(uint8_t label) {
    return (char)(label >= LETTERS ? '.' : label < 26 ? 'A' + label : 'a' + label - 26);
}
static bool has(const uint8_t *label, unsigned n, unsigned which) { return memchr(label, (int)which, n) != NULL; }

/* ---- reading */

/* Subscripts up to `end`: letters and at most one ellipsis, which comes as LABELS. */
typedef struct subscripts {
    uint8_t label[2 * RP_MAX_DIMS];
    unsigned n;
    bool ellipsis;
} subscripts;

static rp_status read(const rp__call *call, const char *all, const char *from, const char *end, subscripts *s) {
    s->n = 0;
    s->ellipsis = false;
    for (const char *p = from; p < end; p++) {
        if (*p == ' ') continue;
        if (s->n == sizeof s->label)
            return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
        if (*p == '.') {
            if (s->ellipsis || end - p < 3 || p[1] != '.' || p[2] != '.')
                return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                    "found '.' at index %td that is not part of any ellipsis, or a second ellipsis",
                                    p - all);
            s->ellipsis = true;
            s->label[s->n++] = LABELS;
            p += 2;
            continue;
        }
        if (letter(*p) < 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "invalid subscript given at index %td in the equation string, subscripts must be in "
                                "[a-zA-Z]",
                                p - all);
        s->label[s->n++] = (uint8_t)letter(*p);
    }
    return RP_OK;
}

/* The labels of operand k, of which one that stands twice is its diagonal. */
static rp_status read_operand(equation *e, size_t k, const subscripts *s) {
    term *x = &e->terms[k];
    x->t = e->call->in[k];
    const unsigned named = s->n - s->ellipsis, ndim = x->t->ndim;
    if (named > ndim || (named < ndim && !s->ellipsis))
        return rp__op_error(
            e->call, RP_ERROR_SHAPE,
            "the number of subscripts in the equation (%u) %s the number of dimensions (%u) for operand "
            "%zu%s",
            named, named > ndim ? "is more than" : "does not match", ndim, k,
            s->ellipsis ? "" : " and no ellipsis was given");
    uint8_t label[RP_MAX_DIMS];
    unsigned n = 0;
    for (unsigned i = 0; i < s->n; i++) {
        if (s->label[i] != LABELS) {
            label[n++] = s->label[i];
            continue;
        }
        if (ndim - named > e->n_ellipsis) e->n_ellipsis = ndim - named;
        for (unsigned d = ndim - named; d-- > 0;) label[n++] = (uint8_t)(LETTERS + d);
    }
    e->ellipsis = e->ellipsis || s->ellipsis;
    x->n = 0;
    for (unsigned d = 0; d < n; d++) {
        const unsigned at = x->n;
        unsigned before = 0;
        while (before < at && x->label[before] != label[d]) before++;
        e->count[label[d]]++;
        if (before == at) {
            x->label[x->n++] = label[d];
            continue;
        }
        /* Dims behind `at` are those still to be read. */
        const rp_dim one = x->t->size[before], two = x->t->size[at];
        if (!rp__dim_is(RP__DIM_EQ, one, two))
            return rp__op_error(e->call, RP_ERROR_SHAPE,
                                "subscript %c is repeated for operand %zu but the sizes don't match, %lld != %lld",
                                name_of(label[d]), k, (long long)rp__dim_hint(two), (long long)rp__dim_hint(one));
        x->t = rp_movedim(rp_diagonal(x->t, 0, before, at), (const int64_t[]){-1}, 1, (const int64_t[]){before}, 1);
        if (rp__tensor_is_error(x->t)) return rp_error_status();
    }
    for (unsigned d = 0; d < x->n; d++) {
        rp_dim *seen = &e->size[x->label[d]], size = x->t->size[d];
        if (rp__dim_is(RP__DIM_EQ, size, 1)) continue;
        if (!rp__dim_is(RP__DIM_EQ, *seen, 1) && !rp__dim_is(RP__DIM_EQ, *seen, size))
            return rp__op_error(e->call, RP_ERROR_SHAPE,
                                "subscript %c has size %lld for operand %zu which does not broadcast with previously "
                                "seen size %lld",
                                name_of(x->label[d]), (long long)rp__dim_hint(size), k, (long long)rp__dim_hint(*seen));
        *seen = size;
    }
    return RP_OK;
}

static rp_status add_out(equation *e, unsigned label) {
    if (e->out_n == RP_MAX_DIMS)
        return rp__op_error(e->call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    e->out[e->out_n++] = (uint8_t)label;
    return RP_OK;
}

static rp_status read_result(equation *e, const char *all, const char *arrow) {
    subscripts s;
    if (!arrow) { /* the ellipsis, then what stands once, by the alphabet */
        for (unsigned d = e->n_ellipsis; d-- > 0;) RP_TRY(add_out(e, LETTERS + d));
        for (unsigned c = 0; c < LETTERS; c++)
            if (e->count[c] == 1) RP_TRY(add_out(e, c));
        return RP_OK;
    }
    RP_TRY(read(e->call, all, arrow + 2, all + strlen(all), &s));
    for (unsigned i = 0; i < s.n; i++) {
        const unsigned label = s.label[i];
        if (label == LABELS) {
            for (unsigned d = e->n_ellipsis; d-- > 0;) RP_TRY(add_out(e, LETTERS + d));
            continue;
        }
        if (has(e->out, e->out_n, label))
            return rp__op_error(e->call, RP_ERROR_INVALID_ARGUMENT,
                                "output subscript %c appears more than once in the output", name_of((uint8_t)label));
        if (e->count[label] == 0)
            return rp__op_error(e->call, RP_ERROR_INVALID_ARGUMENT,
                                "output subscript %c does not appear in the equation for any input operand",
                                name_of((uint8_t)label));
        RP_TRY(add_out(e, label));
    }
    return RP_OK;
}

static rp_status read_equation(equation *e, const char *text) {
    const char *arrow = strstr(text, "->"), *end = arrow ? arrow : text + strlen(text), *from = text;
    subscripts s;
    for (size_t k = 0;; k++) {
        const char *comma = memchr(from, ',', (size_t)(end - from)), *stop = comma ? comma : end;
        if (k == e->n)
            return rp__op_error(e->call, RP_ERROR_INVALID_ARGUMENT,
                                "fewer operands were provided than specified in the equation");
        RP_TRY(read(e->call, text, from, stop, &s));
        RP_TRY(read_operand(e, k, &s));
        if (!comma) {
            if (k + 1 != e->n)
                return rp__op_error(e->call, RP_ERROR_INVALID_ARGUMENT,
                                    "more operands were provided than specified in the equation");
            return read_result(e, text, arrow);
        }
        from = comma + 1;
    }
}

/* ---- computing */

/* Which labels are needed beside these two operands? */
static void needed(const equation *e, const term *terms, size_t n, bool *keep) {
    memset(keep, 0, LABELS * sizeof *keep);
    for (unsigned d = 0; d < e->out_n; d++) keep[e->out[d]] = true;
    for (size_t k = 0; k < n; k++)
        for (unsigned d = 0; d < terms[k].n; d++) keep[terms[k].label[d]] = true;
}

static void drop_label(term *x, unsigned d) {
    memmove(x->label + d, x->label + d + 1, x->n - d - 1);
    x->n--;
}

static void drop_ones(term *x) {
    for (unsigned d = x->n; d-- > 0 && !rp__tensor_is_error(x->t);) {
        if (!rp__dim_is(RP__DIM_EQ, x->t->size[d], 1)) continue;
        x->t = rp_squeeze(x->t, d);
        drop_label(x, d);
    }
}

/* Added up over what neither the other has nor anything after. */
static void sum_own(term *x, const term *other, const bool *keep) {
    int64_t dims[RP_MAX_DIMS];
    size_t n = 0;
    for (unsigned d = 0; d < x->n; d++)
        if (!keep[x->label[d]] && !(other && has(other->label, other->n, x->label[d]))) dims[n++] = d;
    if (n == 0) return;
    x->t = rp_sum(x->t, dims, n);
    for (size_t i = n; i-- > 0;) drop_label(x, (unsigned)dims[i]);
}

/* The dims of x in the order of these labels, one for each; of size 1 where x has none. */
static rp_tensor *arrange(const term *x, const uint8_t *label, unsigned n) {
    int64_t order[RP_MAX_DIMS] = {0};
    unsigned m = 0;
    for (unsigned i = 0; i < n; i++)
        for (unsigned d = 0; d < x->n; d++)
            if (x->label[d] == label[i]) order[m++] = d;
    rp_tensor *t = rp_permute(x->t, order, m);
    for (unsigned i = 0; i < n; i++)
        if (!has(x->label, x->n, label[i])) t = rp_unsqueeze(t, i);
    return t;
}

/* labels [from, to) of a tensor so arranged as one dim */
static rp_dim product_of(const rp_tensor *t, unsigned from, unsigned to) {
    rp_dim size = 1;
    for (unsigned d = from; d < to; d++) size = rp__dim_apply(RP__DIM_MUL, size, t->size[d]);
    return size;
}

static rp_status contract(const equation *e, term *a, term *b, const bool *keep, term *out) {
    uint8_t both[RP_MAX_DIMS], left[RP_MAX_DIMS], right[RP_MAX_DIMS], over[RP_MAX_DIMS];
    unsigned n_both = 0, n_left = 0, n_right = 0, n_over = 0;
    drop_ones(a);
    drop_ones(b);
    if (rp__tensor_is_error(a->t) || rp__tensor_is_error(b->t)) return rp_error_status();
    sum_own(a, b, keep);
    sum_own(b, a, keep);
    if (rp__tensor_is_error(a->t) || rp__tensor_is_error(b->t)) return rp_error_status();
    for (unsigned d = 0; d < a->n; d++) {
        const uint8_t l = a->label[d];
        if (!has(b->label, b->n, l))
            left[n_left++] = l;
        else if (keep[l])
            both[n_both++] = l;
        else
            over[n_over++] = l;
    }
    for (unsigned d = 0; d < b->n; d++)
        if (!has(a->label, a->n, b->label[d])) right[n_right++] = b->label[d];
    out->n = n_both + n_left + n_right;
    if (out->n > RP_MAX_DIMS)
        return rp__op_error(e->call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    memcpy(out->label, both, n_both);
    memcpy(out->label + n_both, left, n_left);
    memcpy(out->label + n_both + n_left, right, n_right);
    if (n_over == 0) {
        out->t = rp_mul(arrange(a, out->label, out->n), arrange(b, out->label, out->n));
        return rp__tensor_is_error(out->t) ? rp_error_status() : RP_OK;
    }
    uint8_t order_a[RP_MAX_DIMS], order_b[RP_MAX_DIMS];
    memcpy(order_a, both, n_both);
    memcpy(order_a + n_both, left, n_left);
    memcpy(order_a + n_both + n_left, over, n_over);
    memcpy(order_b, both, n_both);
    memcpy(order_b + n_both, over, n_over);
    memcpy(order_b + n_both + n_over, right, n_right);
    rp_tensor *x = arrange(a, order_a, a->n), *y = arrange(b, order_b, b->n);
    if (rp__tensor_is_error(x) || rp__tensor_is_error(y)) return rp_error_status();
    rp_dim size[RP_MAX_DIMS], flat[RP_MAX_DIMS + 2];
    for (unsigned d = 0; d < n_both + n_left; d++) size[d] = x->size[d];
    for (unsigned d = 0; d < n_right; d++) size[n_both + n_left + d] = y->size[n_both + n_over + d];
    if (n_both + 2 > RP_MAX_DIMS)
        return rp__op_error(e->call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    memcpy(flat, size, n_both * sizeof *flat);
    flat[n_both] = product_of(x, n_both, n_both + n_left);
    flat[n_both + 1] = product_of(x, n_both + n_left, a->n);
    x = rp_reshape(x, flat, n_both + 2);
    flat[n_both] = flat[n_both + 1];
    flat[n_both + 1] = product_of(y, n_both + n_over, b->n);
    y = rp_reshape(y, flat, n_both + 2);
    out->t = rp_reshape(rp_bmm(x, y), size, out->n);
    return rp__tensor_is_error(out->t) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_einsum(const rp__call *call) {
    equation e = {.call = call, .n = call->n_in};
    const rp_attr *path = &call->attrs[1];
    const bool has_path = !rp__attr_is_none(path);
    bool keep[LABELS];
    if (e.n == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "must provide at least one operand");
    if (e.n > MOST)
        return rp__op_error(call, RP_ERROR_UNAVAILABLE, "an equation has at most %d operands, not %zu", MOST, e.n);
    if (has_path && path->n != (e.n == 1 ? 1 : 2 * (e.n - 1)))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "expected contraction path given in path parameter to have size %zu but got %zu",
                            e.n == 1 ? (size_t)1 : 2 * (e.n - 1), path->n);
    for (unsigned l = 0; l < LABELS; l++) e.size[l] = 1;
    RP_TRY(read_equation(&e, call->attrs[0].v.string));
    size_t n = e.n;
    for (size_t step = 0; n > 1; step++, n--) {
        int64_t i = 0, j = 1;
        if (has_path) {
            i = path->v.ints[2 * step];
            j = path->v.ints[2 * step + 1];
            if (i < 0 || j < 0 || i >= (int64_t)n || j >= (int64_t)n || i == j)
                return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                    "invalid contraction (%lld, %lld in the list of %zu operands)", (long long)i,
                                    (long long)j, n);
        }
        term a = e.terms[i], b = e.terms[j], out;
        const size_t low = (size_t)(i < j ? i : j), high = (size_t)(i < j ? j : i);
        memmove(e.terms + high, e.terms + high + 1, (n - high - 1) * sizeof *e.terms);
        memmove(e.terms + low, e.terms + low + 1, (n - low - 2) * sizeof *e.terms);
        needed(&e, e.terms, n - 2, keep);
        RP_TRY(contract(&e, &a, &b, keep, &out));
        if (has_path) { /* the result is the last of those that are left, without one the first */
            e.terms[n - 2] = out;
        } else {
            memmove(e.terms + 1, e.terms, (n - 2) * sizeof *e.terms);
            e.terms[0] = out;
        }
    }
    needed(&e, NULL, 0, keep);
    sum_own(&e.terms[0], NULL, keep);
    if (rp__tensor_is_error(e.terms[0].t)) return rp_error_status();
    call->out[0] = arrange(&e.terms[0], e.out, e.out_n);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}
