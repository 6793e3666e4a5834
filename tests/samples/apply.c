/* Samples as steps of random programs: see samples.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "samples/samples.h"

static unsigned below(uint64_t *s, unsigned n) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (unsigned)(*s >> 20) % n;
}

/* ---- which samples */

/* Functions of floats that compute: no factories, parts of other ops, host reads, draws. */
static bool is_step(const sample *s, bool in_place) {
    const bool is_form = s->op->functional_op != NULL;
    if (in_place != is_form || (in_place && (s->op->lowering != RP__POINTWISE || s->in[0].kind != 'f'))) return false;
    if (s->op->flags & (RP_OP_SYNC | RP__OP_PRIVATE) || (s->op->flags & RP_OP_INPLACE && !is_form) ||
        sample_is_random(s))
        return false;
    bool values = false;
    for (int k = 0; k < s->n_in; k++) {
        if (s->in[k].kind == 's' || s->place[k] < 0) return false;
        values = values || sample_is_value(&s->in[k]);
        for (int d = 0; d < s->in[k].ndim; d++)
            if (s->in[k].size[d] == 0) return false;
    }
    return values;
}

/* Is its gradient the derivative by all that the result is made of? Of what stands for rounding, or for a bound that is set without a tape,
   PyTorch says something else; a deviation of one number repeated, as operands here may be, is 0 but for rounding, and so is nothing that
   it is divided by. */
static bool is_differentiable(const sample *s) {
    static const char *const others[] = {
        "detach",  "fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine", "gaussian_nll_loss", "std",
        "std_mean"};
    bool all = true;
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) all = all && strcmp(s->op->name, others[k]) != 0;
    for (int k = 0; k < s->n_in; k++)
        all = all && !s->in[k].constant && (!sample_is_value(&s->in[k]) || s->in[k].dtype == RP_DTYPE_NONE);
    return all;
}

enum { FRESH, IN_PLACE, DIFFERENTIABLE, KINDS };

static const sample *step(uint64_t random, int kind) {
    static const sample **list[KINDS];
    static size_t n[KINDS];
    if (!list[kind]) {
        list[kind] = calloc(sample_count(), sizeof **list);
        for (size_t i = 0; list[kind] && i < sample_count(); i++) {
            const sample *s = sample_at(i);
            if (is_step(s, kind == IN_PLACE) && (kind != DIFFERENTIABLE || is_differentiable(s)))
                list[kind][n[kind]++] = s;
        }
    }
    return list[kind][random % n[kind]];
}

/* ---- operands */

/* Values of t in the sizes of the sample's tensor, repeated or cut off. A copy: whether reshape makes a view depends on strides, and a
   later step may write. */
static rp_tensor *fit(rp_tensor *t, const sample_tensor *like, int64_t n) {
    int64_t size[RP_MAX_DIMS], total = 1, have = rp_numel(t);
    for (int d = 0; d < like->ndim; d++) total *= size[d] = like->size[d] < 0 ? n : like->size[d];
    if (have == 0)
        return rp_full(size, (size_t)like->ndim, rp_f64(0.25), RP_OPTIONS(rp_full_options, .dtype = rp_dtype_of(t)));
    rp_tensor *flat = rp_reshape(rp_clone(t), RP_DIMS(-1));
    if (have < total) flat = rp_reshape(rp_expand(flat, RP_DIMS((total + have - 1) / have, have)), RP_DIMS(-1));
    return rp_reshape(rp_slice(flat, 0, 0, total, 1), size, (size_t)like->ndim);
}

static bool is_float(const rp_tensor *t) { return ref_is_float(rp_dtype_of(t)); }

static bool broadcasts(const rp_tensor *a, const rp_tensor *b) {
    size_t n = rp_ndim(a) < rp_ndim(b) ? rp_ndim(a) : rp_ndim(b);
    for (size_t k = 1; k <= n; k++) {
        int64_t x = rp_size(a, -(int64_t)k), y = rp_size(b, -(int64_t)k);
        if (x != y && x != 1 && y != 1) return false;
    }
    return true;
}

/* Into the range of the sample's values. */
static rp_tensor *within(const sample_tensor *like, rp_tensor *t) {
    switch (like->kind) {
    case 'p': return rp_add_scalar(rp_abs(t), rp_f64(0.5));
    case 'u': return rp_mul_scalar(rp_tanh(t), rp_f64(0.875));
    case 'q': return rp_add_scalar(rp_mul_scalar(rp_tanh(t), rp_f64(0.25)), rp_f64(0.5));
    case 'w': return rp_mul_scalar(t, rp_f64(8));
    case 'b': return rp_gt_scalar(t, rp_f64(0.125));
    default: return t;
    }
}

/* Do its attributes say nothing of sizes? Then operands of the same rank are as good as the sample's own. */
static bool any_size(const sample *s, const rp_tensor *first) {
    if (s->sized || (s->op->lowering != RP__POINTWISE && (s->n_args > 1 || (int)rp_ndim(first) != s->in[0].ndim)))
        return false;
    unsigned attr = 0;
    for (unsigned i = 0; i < s->op->schema.n_params; i++) {
        const rp__param *p = &s->op->schema.params[i];
        if (p->kind != RP__PARAM_ATTR) continue;
        bool number = p->attr_kind == RP_ATTR_INTS || (p->attr_kind == RP_ATTR_INT && s->op->lowering != RP__POINTWISE);
        if (*s->word[attr] && number && strcmp(p->name, "dim") != 0) return false;
        attr++;
    }
    return true;
}

/* FUZZ_STEPS=1: what a random program does. */
static void tell(const sample *s, const rp_tensor *first) {
    if (!getenv("FUZZ_STEPS")) return;
    printf("%s(%s) of %s", s->op->name, s->text, rp_dtype_name(rp_dtype_of(first)));
    for (size_t d = 0; d < rp_ndim(first); d++) printf(" %lld", (long long)rp_size(first, (int64_t)d));
    printf("\n");
}

static rp_tensor *apply(const sample *s, uint64_t random, rp_tensor *first, rp_tensor *const *pool, size_t n_pool) {
    rp_tensor *in[SAMPLE_IN + 1], *out[SAMPLE_OUT] = {NULL};
    uint64_t state = random * 2654435761u + 88172645463325252u;
    tell(s, first);
    const int64_t n = 1 + (int64_t)(random % 7 % 6 + 1);
    const bool as_is = any_size(s, first), pointwise = s->op->lowering == RP__POINTWISE;
    rp_dtype type = is_float(first) ? rp_dtype_of(first) : RP_F32;
    for (int k = 0; k < s->n_in; k++) {
        const sample_tensor *like = &s->in[k];
        rp_tensor *t = first;
        for (unsigned i = below(&state, (unsigned)n_pool), tries = 0; k && tries < n_pool;
             tries++, i = (i + 1) % (unsigned)n_pool) {
            if (!is_float(pool[i]) || (as_is && !broadcasts(first, pool[i]))) continue;
            t = pool[i];
            break;
        }
        if (like->kind == 'i') t = rp_arange(rp_i64(0), rp_i64(like->below));
        if (like->kind == 'd') {
            int64_t count = 1;
            for (int d = 0; d < like->ndim; d++) count *= like->size[d];
            in[k] =
                rp_view(rp_arange(rp_i64(count), rp_i64(0), rp_i64(-1), RP_OPTIONS(rp_arange_options, .dtype = RP_I64)),
                        like->size, (size_t)like->ndim);
            continue;
        }
        if (!as_is || like->kind == 'i') t = fit(t, like, n);
        if (like->kind == 'i') {
            in[k] = rp_to_dtype(t, like->dtype);
            continue;
        }
        if (!pointwise && rp_dtype_of(t) != type) t = rp_to_dtype(t, type);
        t = within(like, t);
        in[k] = like->dtype != RP_DTYPE_NONE && rp_dtype_of(t) != like->dtype ? rp_to_dtype(t, like->dtype) : t;
    }
    (void)sample_call(s, in, out);
    return out[below(&state, (unsigned)sample_outs(s))];
}

rp_tensor *sample_apply(uint64_t random, rp_tensor *first, rp_tensor *const *pool, size_t n_pool) {
    return apply(step(random >> 8, FRESH), random, first, pool, n_pool);
}

rp_tensor *sample_apply_differentiable(uint64_t random, rp_tensor *first, rp_tensor *const *pool, size_t n_pool) {
    return apply(step(random >> 8, DIFFERENTIABLE), random, first, pool, n_pool);
}

static bool broadcasts_into(const rp_tensor *target, const rp_tensor *t) {
    if (!is_float(t) || rp_ndim(t) > rp_ndim(target)) return false;
    for (size_t k = 1; k <= rp_ndim(t); k++)
        if (rp_size(t, -(int64_t)k) != 1 && rp_size(t, -(int64_t)k) != rp_size(target, -(int64_t)k)) return false;
    return true;
}

void sample_apply_in_place(uint64_t random, rp_tensor *target, rp_tensor *const *pool, size_t n_pool) {
    const sample *s = step(random >> 8, IN_PLACE);
    rp_tensor *in[SAMPLE_IN + 1], *out[SAMPLE_OUT] = {NULL};
    uint64_t state = random * 2654435761u + 88172645463325252u;
    tell(s, target);
    in[0] = target;
    for (int k = 1; k < s->n_in; k++) {
        unsigned i = below(&state, (unsigned)n_pool), tries = 0;
        while (tries < n_pool && !broadcasts_into(target, pool[i])) i = (i + 1) % (unsigned)n_pool, tries++;
        if (tries == n_pool) return;
        in[k] = within(&s->in[k], rp_mul_scalar(pool[i], rp_f64(0.5))); /* not the memory that is written */
    }
    (void)sample_call_on(s, in, out);
}
