/* Guards of a specialisation (guards.h). rp__guards_hold runs at every call of a compiled function: no allocation, no locks. */
#include "compile/guards.h"

#include <assert.h>
#include <string.h>

#include "autograd/tape.h"
#include "core/alloc.h"
#include "ops/autocast.h"

/* What autograd wants of a tensor: 3: a leaf that needs a gradient, 1: another that does. */
static inline uint64_t need_of(const rp_tensor *t) {
    return t->flags & RP__T_REQUIRES_GRAD ? 3 : t->autograd && rp__grad_needed(t);
}

/* Type, rank, device, and what autograd wants of a tensor, in one word. */
static inline uint64_t head_of(const rp_tensor *t) {
    return (uint64_t)t->dtype | (uint64_t)t->ndim << 8 | (uint64_t)t->device.type << 16 |
           (uint64_t)(uint16_t)t->device.index << 24 | need_of(t) << 40;
}

static inline uint64_t hooks_of(const rp_tensor *leaf) {
    return leaf && leaf->autograd && leaf->autograd->hooks ? rp__hooks_key(leaf->autograd) : 0;
}

uint64_t rp__guards_environment(void) {
    rp_device d = rp_default_device();
    return (uint64_t)!rp__flags.grad_disabled | (uint64_t)rp_deterministic() << 1 | rp__float32_precisions() << 2 |
           (uint64_t)d.type << 8 | (uint64_t)(uint32_t)d.index << 16 | (uint64_t)rp__autocast_state() << 48;
}

/* words of argument k: head, sizes, strides */
static uint64_t *add_argument(uint64_t *w, const rp_tensor *t) {
    *w++ = head_of(t);
    for (unsigned d = 0; d < t->ndim; d++) *w++ = (uint64_t)t->size[d];
    for (unsigned d = 0; d < t->ndim; d++) *w++ = (uint64_t)t->stride[d];
    return w;
}

static const uint64_t *argument(const rp__guards *g, size_t k) {
    const uint64_t *w = g->words;
    for (size_t i = 0; i < k; i++) w += 1 + 2 * (w[0] >> 8 & 0xff);
    return w;
}

static inline unsigned bit_of(const rp__storage *s) {
    return (unsigned)(((uint64_t)(uintptr_t)s >> 5) * UINT64_C(0x9e3779b97f4a7c15) >> 54); /* < RP__GUARD_BITS */
}

static rp__hash key_of(uint64_t id) { return (rp__hash){rp__hash_mix(id, 3), id}; }

/* Id of the captured storage that t lies in; 0: in none. */
static inline uint64_t outside_of(const rp__guards *g, const rp_tensor *t) {
    const rp__storage *s = t->storage;
    unsigned bit = bit_of(s);
    if (!(g->outside_bits[bit / 64] >> bit % 64 & 1)) return 0;
    return rp__map_get(&g->outside, key_of(s->id)) ? s->id : 0;
}

enum { FEW_ARGUMENTS = 6 }; /* comparing each with each costs less than hashing them */

/* The number under which `what` was met first. */
static bool first_of(rp__map *met, const void *what, size_t k, uint32_t *first) {
    const rp__hash key = {rp__hash_mix((uint64_t)(uintptr_t)what, 4), (uint64_t)(uintptr_t)what};
    const size_t known = (size_t)(uintptr_t)rp__map_get(met, key);
    *first = (uint32_t)(known ? known - 1 : k);
    return known || rp__map_put(met, key, (void *)(uintptr_t)(k + 1));
}

static rp_status build_aliases(rp__guards *g, const rp_ir *ir, rp_tensor *const *in, size_t n_in) {
    g->offset = rp__calloc(n_in + 1, sizeof *g->offset);
    if (!g->offset) return RP__OOM("guards");
    if (n_in > 1) {
        g->same = rp__calloc(2 * n_in, sizeof *g->same);
        if (!g->same) return RP__OOM("guards");
        g->twin = g->same + n_in;
    }
    rp__map first = {0};
    bool memory = true;
    for (size_t k = 0; k < n_in && g->same && memory; k++) {
        memory = first_of(&first, in[k]->storage, k, &g->same[k]) && first_of(&first, in[k], k, &g->twin[k]);
        g->offset[k] = in[k]->offset - in[g->same[k]]->offset;
    }
    rp__map_free(&first);
    if (memory && n_in > FEW_ARGUMENTS) {
        size_t mask = 7;
        while (mask < 4 * n_in) mask = 2 * mask + 1;
        g->seen = rp__calloc(1, sizeof *g->seen + (mask + 1) * sizeof *g->seen->at);
        memory = g->seen != NULL;
        if (memory) g->seen->mask = mask;
    }
    if (!memory) return RP__OOM("guards");
    for (size_t i = 0; i < ir->n_captured; i++) {
        const rp__storage *s = ir->captured[i]->storage;
        unsigned bit = bit_of(s);
        if (!rp__map_put(&g->outside, key_of(s->id), &g->outside)) return RP__OOM("guards");
        g->outside_bits[bit / 64] |= UINT64_C(1) << bit % 64;
    }
    if (!g->outside.count) return RP_OK;
    g->in_outside = rp__calloc(n_in + 1, sizeof *g->in_outside);
    if (!g->in_outside) return RP__OOM("guards");
    for (size_t k = 0; k < n_in; k++) {
        g->in_outside[k] = outside_of(g, in[k]);
        if (g->in_outside[k]) g->offset[k] = in[k]->offset;
    }
    return RP_OK;
}

static void range_of(struct rp__guard_range *r, const rp__storage *s) {
    r->begin = (uintptr_t)s->data;
    r->end = s->data ? r->begin + s->bytes : r->begin;
    r->storage = s;
}

/* Which storages of arguments, gradients at entry and captured tensors have bytes in common. */
static uint64_t meets_of(const rp__guards *g, rp_tensor *const *in) {
    const struct rp__guard_range *r = g->ranges;
    const size_t n = g->n_sharing + g->n_captured;
    uint64_t meets = 0;
    for (size_t k = 0; k < g->n_sharing; k++) range_of(&g->ranges[k], in[k]->storage);
    for (size_t i = 1; i < n; i++) {
        uint32_t moved = g->order[i];
        size_t at = i;
        for (; at > 0 && r[g->order[at - 1]].begin > r[moved].begin; at--) g->order[at] = g->order[at - 1];
        g->order[at] = moved;
    }
    for (size_t i = 0; i < n; i++) {
        const struct rp__guard_range *a = &r[g->order[i]];
        for (size_t j = i + 1; j < n && r[g->order[j]].begin < a->end; j++) {
            uint64_t low = g->order[i], high = g->order[j];
            if (rp__storage_meets(a->storage, r[high].storage))
                meets += rp__hash_mix(low < high ? low << 32 | high : high << 32 | low, 5) | 1;
        }
    }
    return meets;
}

/* Is wrapped memory shared as it was? */
static bool wrapped_hold(const rp__guards *g, rp_tensor *const *in) {
    bool wrapped = g->wrapped;
    for (size_t k = 0; k < g->n_sharing; k++) wrapped = wrapped || in[k]->storage->foreign;
    return RP__LIKELY(!wrapped) ? g->meets == 0 : meets_of(g, in) == g->meets;
}

static rp_status build_ranges(rp__guards *g, rp_tensor *const *in) {
    size_t n = g->n_sharing + g->n_captured;
    g->ranges = rp__calloc(n + 1, sizeof *g->ranges);
    g->order = rp__calloc(n + 1, sizeof *g->order);
    if (!g->ranges || !g->order) return RP__OOM("guards");
    for (size_t k = 0; k < n; k++) g->order[k] = (uint32_t)k;
    for (size_t i = 0; i < g->n_captured; i++) {
        const rp__storage *s = g->captured[i].tensor->storage;
        range_of(&g->ranges[g->n_sharing + i], s);
        g->wrapped = g->wrapped || s->foreign;
    }
    g->meets = meets_of(g, in);
    return RP_OK;
}

rp_status rp__guards_only(rp__guards *g, size_t k, const rp_tensor *t) {
    if (!g->only) g->only = rp__calloc(g->n_in, sizeof *g->only);
    if (!g->only) return RP__OOM("guards");
    g->only[k] = t->id;
    g->apart = false;
    return RP_OK;
}

/* What may share memory, as it was when the function began. */
static rp_status build_sharing(rp__guards *g, const rp_ir *ir, rp_tensor *const *in) {
    rp_tensor **all = rp__alloc((g->n_in + g->n_grads + 1) * sizeof *all);
    if (!all) return RP__OOM("guards");
    if (g->n_in) memcpy(all, in, g->n_in * sizeof *all);
    g->n_sharing = g->n_in;
    for (size_t i = 0; i < g->n_grads; i++)
        if (g->grads[i].at_entry) all[g->n_sharing++] = g->grads[i].entry;
    rp_status status = build_ranges(g, all);
    if (status == RP_OK) status = build_aliases(g, ir, all, g->n_sharing);
    if (status == RP_OK && g->n_sharing > g->n_in)
        g->sharing = all;
    else
        rp__free(all);
    g->apart = status == RP_OK && !g->sharing && !g->seen && !g->in_outside && !g->only && !g->wrapped && g->meets == 0;
    for (size_t k = 0; k < g->n_in && g->same; k++) g->apart = g->apart && g->same[k] == k;
    return status;
}

rp_status rp__guards_build(rp__guards *g, const rp__trace_result *result, rp_fn fn, rp_tensor *const *in, size_t n_in,
                           const rp_dim *const *sizes, const rp_dim *const *strides) {
    const rp_ir *ir = result->ir;
    size_t words = 1;
    memset(g, 0, sizeof *g);
    g->n_in = n_in;
    g->ctx = fn.ctx;
    g->ctx_bytes = fn.ctx ? fn.ctx_bytes : 0;
    g->bytes = result->bytes;
    g->n_bytes = result->n_bytes;
    g->ir = ir;
    g->grads = result->grads;
    g->n_grads = result->n_grads;
    g->symbols = ir->symbols;
    for (size_t k = 0; k < n_in; k++) words += 1 + 2u * in[k]->ndim;
    g->words = rp__alloc(words * sizeof *g->words);
    g->symbolic = rp__calloc(n_in + 1, sizeof *g->symbolic);
    g->captured = rp__calloc(ir->n_captured + 1, sizeof *g->captured);
    g->ctx_copy = rp__alloc(g->ctx_bytes ? g->ctx_bytes : 1);
    g->hooks = rp__calloc(g->n_grads + 1, sizeof *g->hooks);
    if (!g->words || !g->symbolic || !g->captured || !g->ctx_copy || !g->hooks) return RP__OOM("guards");
    uint64_t *w = g->words;
    for (size_t k = 0; k < n_in; k++) {
        w = add_argument(w, in[k]);
        bool symbolic = false;
        unsigned n = in[k]->ndim;
        for (unsigned d = 0; d < n && sizes && sizes[k]; d++)
            symbolic = symbolic || rp__dim_is_symbol(sizes[k][d]) || rp__dim_is_symbol(strides[k][d]);
        if (!symbolic) continue;
        rp_dim *copy = rp__alloc(2u * n * sizeof *copy);
        if (!copy) return RP__OOM("guards");
        memcpy(copy, sizes[k], n * sizeof *copy);
        memcpy(copy + n, strides[k], n * sizeof *copy);
        g->symbolic[k] = copy;
    }
    if (g->ctx_bytes) memcpy(g->ctx_copy, fn.ctx, g->ctx_bytes);
    for (size_t i = 0; i < g->n_grads; i++) {
        g->hooks[i] = hooks_of(g->grads[i].leaf);
        g->argument_grads = g->argument_grads || !g->grads[i].leaf;
    }
    for (size_t i = 0; i < ir->n_captured; i++)
        g->captured[g->n_captured++] =
            (struct rp__captured_guard){ir->captured[i], head_of(ir->captured[i]), need_of(ir->captured[i])};
    for (size_t k = 0; k < n_in && result->reached; k++)
        if (result->reached[k]) RP_TRY(rp__guards_only(g, k, in[k]));
    return build_sharing(g, ir, in);
}

void rp__guards_free(rp__guards *g) {
    for (size_t k = 0; g->symbolic && k < g->n_in; k++) rp__free((void *)(uintptr_t)g->symbolic[k]);
    rp__free(g->symbolic);
    rp__free(g->words);
    rp__free(g->same);
    rp__free(g->seen);
    rp__free(g->offset);
    rp__free(g->in_outside);
    rp__free(g->ranges);
    rp__free(g->order);
    rp__free(g->only);
    rp__free(g->sharing);
    rp__free(g->captured);
    rp__free(g->hooks);
    rp__free(g->ctx_copy);
    rp__map_free(&g->outside);
    memset(g, 0, sizeof *g);
}

static inline bool same_words(const uint64_t *w, const rp_dim *d, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        if (w[i] != (uint64_t)d[i]) return false;
    }
    return true;
}

/* ---- symbols */

enum { FEW_SYMBOLS = 64 };

/* Values of the symbols in this call. */
static void bind(const rp__guards *g, rp_tensor *const *in, int64_t *binding) {
    for (size_t i = 0; i < rp__symbols_count(g->symbols); i++) {
        const rp__symbol *s = rp__symbols_at(g->symbols, i);
        const rp_tensor *t = s->input < g->n_in ? in[s->input] : NULL;
        binding[i] = !t || s->dim >= t->ndim ? s->hint : s->is_stride ? t->stride[s->dim] : t->size[s->dim];
    }
}

/* A size or stride of the graph's argument against the call's; strides of dims of size 0 and 1 do not matter. */
static bool symbolic_argument(const rp__guards *g, size_t k, const rp_tensor *t, const int64_t *binding, bool *stride,
                              unsigned *dim) {
    const rp_dim *words = g->symbolic[k];
    int64_t value;
    for (unsigned d = 0; d < t->ndim; d++) {
        *dim = d;
        *stride = false;
        if (!rp__symbols_value(g->symbols, words[d], binding, &value) || value != t->size[d]) return false;
    }
    for (unsigned d = 0; d < t->ndim; d++) {
        *dim = d;
        *stride = true;
        if (t->size[d] > 1 &&
            (!rp__symbols_value(g->symbols, words[t->ndim + d], binding, &value) || value != t->stride[d]))
            return false;
    }
    return true;
}

static bool symbols_hold(const rp__guards *g, rp_tensor *const *in) {
    int64_t few[FEW_SYMBOLS], *binding = few;
    size_t n = rp__symbols_count(g->symbols), failed;
    if (n > FEW_SYMBOLS && !(binding = rp__alloc(n * sizeof *binding)))
        return false; /* traced again, which reports the lack of memory */
    bind(g, in, binding);
    bool holds = true, stride;
    unsigned dim;
    for (size_t k = 0; k < g->n_in && holds; k++)
        holds = !g->symbolic[k] || symbolic_argument(g, k, in[k], binding, &stride, &dim);
    holds = holds && rp__symbols_hold(g->symbols, binding, &failed);
    if (binding != few) rp__free(binding);
    return holds;
}

/* ---- the check */

/* Is it met in this check for the first time? */
static bool is_new(struct rp__guard_seen *s, const void *what) {
    size_t at = (size_t)((uint64_t)(uintptr_t)what * UINT64_C(0x9e3779b97f4a7c15) >> 32) & s->mask;
    for (; s->at[at].check == s->checks; at = (at + 1) & s->mask)
        if (s->at[at].what == what) return false;
    s->at[at].what = what;
    s->at[at].check = s->checks;
    return true;
}

static bool aliases_hold(const rp__guards *g, rp_tensor *const *in) {
    if (!(g->same || g->in_outside || g->only)) return true;
    const bool few = !g->seen;
    if (!few) g->seen->checks++;
    for (size_t k = 0; g->same && k < g->n_sharing; k++) {
        const rp__storage *s = in[k]->storage;
        uint32_t first = g->same[k], twin = g->twin[k];
        if (!few && ((first == k && !is_new(g->seen, s)) || (twin == k && !is_new(g->seen, in[k])))) return false;
        if (first == k) {
            for (size_t j = 0; j < k && few; j++)
                if (in[j]->storage == s) return false;
            continue;
        }
        if (in[first]->storage != s || in[twin] != in[k]) return false;
        if (!(g->in_outside && g->in_outside[k]) && in[k]->offset - in[first]->offset != g->offset[k]) return false;
        for (size_t j = first; j < twin && few; j++)
            if (in[j] == in[k]) return false;
    }
    for (size_t k = 0; g->in_outside && k < g->n_sharing; k++) {
        if (outside_of(g, in[k]) != g->in_outside[k]) return false;
        if (g->in_outside[k] && in[k]->offset != g->offset[k]) return false;
    }
    for (size_t k = 0; g->only && k < g->n_in; k++)
        if (g->only[k] && g->only[k] != in[k]->id) return false;
    return true;
}

static inline bool has_grad(const rp_tensor *t) { return t->autograd && t->autograd->grad; }

/* A gradient at entry that is an argument of the graph, which may write it without reading it: it lies as the recorded one did. */
static bool grad_lies_as_recorded(const rp__guards *g, const rp__trace_grad *recorded, const rp_tensor *leaf) {
    if (recorded->input == RP__IR_NONE) return true;
    const rp_tensor *grad = leaf->autograd->grad;
    const rp__ir_value_info *v = rp__ir_info(g->ir, g->ir->body.args[recorded->input]);
    if (grad->ndim != v->meta.ndim || grad->dtype != v->meta.dtype) return false;
    for (unsigned d = 0; d < grad->ndim; d++) {
        if (!rp__dim_is_symbol(v->meta.size[d]) && grad->size[d] != v->meta.size[d]) return false;
        if (!rp__dim_is_symbol(v->stride[d]) && grad->size[d] != 1 && grad->stride[d] != v->stride[d]) return false;
    }
    return true;
}

static bool grad_holds(const rp__guards *g, const rp__trace_grad *recorded, const rp_tensor *leaf) {
    if (has_grad(leaf) != recorded->at_entry) return false;
    return !recorded->at_entry || grad_lies_as_recorded(g, recorded, leaf);
}

/* Is memory shared as it was? Gradients at entry are there. */
static bool sharing_holds(const rp__guards *g, rp_tensor *const *in) {
    rp_tensor **all = g->sharing;
    size_t n = g->n_in;
    if (RP__LIKELY(!all)) return wrapped_hold(g, in) && aliases_hold(g, in);
    if (n) memcpy(all, in, n * sizeof *all);
    for (size_t i = 0; i < g->n_grads; i++)
        if (g->grads[i].at_entry)
            all[n++] = (g->grads[i].leaf ? g->grads[i].leaf : in[g->grads[i].arg])->autograd->grad;
    return wrapped_hold(g, all) && aliases_hold(g, all);
}

static bool captured_hold(const rp__guards *g) {
    for (size_t i = 0; i < g->n_captured; i++)
        if (need_of(g->captured[i].tensor) != g->captured[i].need) return false;
    for (size_t i = 0; i < g->n_grads; i++) {
        const rp_tensor *leaf = g->grads[i].leaf;
        if (leaf && (!grad_holds(g, &g->grads[i], leaf) || hooks_of(leaf) != g->hooks[i])) return false;
    }
    return true;
}

/* What `apart` says, of arguments of which none is wrapped memory. */
static inline bool are_apart(rp_tensor *const *in, size_t n) {
    for (size_t k = 1; k < n; k++)
        for (size_t j = 0; j < k; j++)
            if (in[j]->storage == in[k]->storage) return false;
    return true;
}

/* foreign: an argument may be wrapped memory. */
static inline bool rest_holds(rp__guards *g, rp_fn fn, rp_tensor *const *in, bool foreign) {
    if (g->environment != rp__guards_environment() || g->ctx != fn.ctx ||
        (g->ctx_bytes && memcmp(g->ctx_copy, fn.ctx, g->ctx_bytes) != 0))
        return false;
    for (size_t i = 0; i < g->n_bytes; i++) {
        if (memcmp(g->bytes[i].copy, g->bytes[i].address, g->bytes[i].n) != 0) return false;
    }
    const uint64_t changes = atomic_load_explicit(&rp__grad_changes, memory_order_acquire);
    if (RP__UNLIKELY(changes != g->changes)) {
        if (!captured_hold(g)) return false;
        g->changes = changes;
    }
    assert(captured_hold(g));
    for (size_t i = 0; g->argument_grads && i < g->n_grads; i++)
        if (!g->grads[i].leaf && !grad_holds(g, &g->grads[i], in[g->grads[i].arg])) return false;
    return RP__LIKELY(g->apart && !foreign) ? are_apart(in, g->n_in) : sharing_holds(g, in);
}

bool rp__guards_hold(rp__guards *g, rp_fn fn, rp_tensor *const *in, size_t n_in) {
    const uint64_t *w = g->words;
    bool symbolic = false, foreign = false;
    if (n_in != g->n_in) return false;
    for (size_t k = 0; k < n_in; k++) {
        const rp_tensor *t = in[k];
        unsigned n = t->ndim;
        if (w[0] != head_of(t)) return false;
        foreign |= t->storage->foreign;
        if (RP__UNLIKELY(g->symbolic[k] != NULL))
            symbolic = true;
        else if (!same_words(w + 1, t->size, n) || !same_words(w + 1 + n, t->stride, n))
            return false;
        w += 1 + 2 * n;
    }
    return rest_holds(g, fn, in, foreign) && (!symbolic || symbols_hold(g, in));
}

bool rp__guards_only_sizes(rp__guards *g, rp_fn fn, rp_tensor *const *in, size_t n_in) {
    const uint64_t *w = g->words;
    if (n_in != g->n_in) return false;
    for (size_t k = 0; k < n_in; k++) {
        if (w[0] != head_of(in[k])) return false;
        w += 1 + 2u * in[k]->ndim;
    }
    return rest_holds(g, fn, in, true);
}

int64_t rp__guards_size(const rp__guards *g, size_t in, unsigned dim, bool *symbolic) {
    *symbolic = g->symbolic[in] && rp__dim_is_symbol(g->symbolic[in][dim]);
    return (int64_t)argument(g, in)[1 + dim];
}

int64_t rp__guards_stride(const rp__guards *g, size_t in, unsigned dim, bool *symbolic) {
    const uint64_t *w = argument(g, in);
    unsigned n = w[0] >> 8 & 0xff;
    *symbolic = g->symbolic[in] && rp__dim_is_symbol(g->symbolic[in][n + dim]);
    return (int64_t)w[1 + n + dim];
}

/* ---- in words */

static void head_text(uint64_t head, rp__text *out) {
    rp__text_add(out, "%s of rank %u on %s:%d%s", rp_dtype_name((rp_dtype)(head & 0xff)), (unsigned)(head >> 8 & 0xff),
                 (head >> 16 & 0xff) == RP_DEVICE_CPU ? "cpu" : "cuda", (int)(head >> 24 & 0xffff),
                 head >> 40 & 2   ? ", a leaf that requires grad"
                 : head >> 40 & 1 ? ", requires grad"
                                  : "");
}

static rp__reason explain_symbols(const rp__guards *g, rp_tensor *const *in, rp__text *out) {
    int64_t few[FEW_SYMBOLS], *binding = few;
    size_t n = rp__symbols_count(g->symbols), failed;
    bool stride;
    unsigned dim;
    if (n > FEW_SYMBOLS && !(binding = rp__alloc(n * sizeof *binding))) return RP__REASON_GUARD_RELATION;
    rp__reason reason = RP__REASON_NONE;
    bind(g, in, binding);
    for (size_t k = 0; k < g->n_in && reason == RP__REASON_NONE; k++) {
        if (!g->symbolic[k] || symbolic_argument(g, k, in[k], binding, &stride, &dim)) continue;
        reason = stride ? RP__REASON_GUARD_STRIDE : RP__REASON_GUARD_RELATION;
        rp__text_add(out, "in[%zu].%s(%u) == ", k, stride ? "stride" : "size", dim);
        rp__symbols_text(g->symbols, g->symbolic[k][stride ? in[k]->ndim + dim : dim], true, out);
        rp__text_add(out, " does not hold (%lld)", (long long)(stride ? in[k]->stride[dim] : in[k]->size[dim]));
    }
    if (reason == RP__REASON_NONE && !rp__symbols_hold(g->symbols, binding, &failed)) {
        reason = RP__REASON_GUARD_RELATION;
        rp__symbols_guard_text(g->symbols, rp__symbols_guard_at(g->symbols, failed), true, out);
        rp__text_puts(out, " does not hold");
    }
    if (binding != few) rp__free(binding);
    return reason;
}

rp__reason rp__guards_explain(const rp__guards *g, rp_fn fn, rp_tensor *const *in, size_t n_in, rp__text *out) {
    const uint64_t *w = g->words;
    if (n_in != g->n_in) {
        rp__text_add(out, "%zu arguments -> %zu", g->n_in, n_in);
        return RP__REASON_GUARD_ARGUMENT;
    }
    for (size_t k = 0; k < n_in; k++) {
        const rp_tensor *t = in[k];
        unsigned n = t->ndim;
        if (w[0] != head_of(t)) {
            rp__text_add(out, "in[%zu]: ", k);
            head_text(w[0], out);
            rp__text_puts(out, " -> ");
            head_text(head_of(t), out);
            return RP__REASON_GUARD_ARGUMENT;
        }
        for (unsigned d = 0; d < 2 * n && !g->symbolic[k]; d++) {
            int64_t now = d < n ? t->size[d] : t->stride[d - n];
            if (w[1 + d] == (uint64_t)now) continue;
            rp__text_add(out, "in[%zu].%s(%u): %lld -> %lld", k, d < n ? "size" : "stride", d % n, (long long)w[1 + d],
                         (long long)now);
            return d < n ? RP__REASON_GUARD_SIZE : RP__REASON_GUARD_STRIDE;
        }
        w += 1 + 2 * n;
    }
    uint64_t environment = rp__guards_environment();
    if (g->environment != environment) {
        uint64_t changed = g->environment ^ environment;
        rp__text_add(out, "%s: %s",
                     changed & 1      ? "grad mode"
                     : changed & 2    ? "deterministic"
                     : changed & 12   ? "float32 matmul precision"
                     : changed & 0x30 ? "float32 convolution precision"
                     : changed >> 48  ? "autocast"
                                      : "default device",
                     changed & 1   ? (environment & 1 ? "off -> on" : "on -> off")
                     : changed & 2 ? (environment & 2 ? "off -> on" : "on -> off")
                                   : "changed");
        return RP__REASON_GUARD_MODE;
    }
    if (g->ctx != fn.ctx) {
        rp__text_puts(out, "ctx is another object");
        return RP__REASON_GUARD_CTX;
    }
    for (size_t i = 0; i < g->ctx_bytes; i++) {
        unsigned old = ((const unsigned char *)g->ctx_copy)[i], now = ((const unsigned char *)fn.ctx)[i];
        if (old != now) {
            rp__text_add(out, "byte %zu of ctx: 0x%02x -> 0x%02x", i, old, now);
            return RP__REASON_GUARD_CTX;
        }
    }
    for (size_t i = 0; i < g->n_bytes; i++) {
        if (memcmp(g->bytes[i].copy, g->bytes[i].address, g->bytes[i].n) != 0) {
            rp__text_add(out, "the %zu bytes of rp_guard_bytes call %zu changed", g->bytes[i].n, i);
            return RP__REASON_GUARD_BYTES;
        }
    }
    for (size_t i = 0; i < g->n_captured; i++) {
        uint64_t head = head_of(g->captured[i].tensor);
        if (head != g->captured[i].head) {
            const char *site = g->captured[i].tensor->site;
            rp__text_add(out, "captured tensor %zu (made at %s): ", i, site && *site ? site : "?");
            head_text(g->captured[i].head, out);
            rp__text_puts(out, " -> ");
            head_text(head, out);
            return RP__REASON_GUARD_CAPTURED;
        }
    }
    for (size_t i = 0; i < g->n_grads; i++) {
        const rp_tensor *leaf = g->grads[i].leaf ? g->grads[i].leaf : in[g->grads[i].arg];
        if (has_grad(leaf) != g->grads[i].at_entry) {
            rp__text_add(out, ".grad of %s tensor: %s", g->grads[i].leaf ? "a captured" : "an argument",
                         g->grads[i].at_entry ? "there -> absent" : "absent -> there");
            return RP__REASON_GUARD_GRAD;
        }
        if (!grad_holds(g, &g->grads[i], leaf)) {
            rp__text_add(out, ".grad of %s tensor has other sizes or strides",
                         g->grads[i].leaf ? "a captured" : "an argument");
            return RP__REASON_GUARD_GRAD;
        }
        if (hooks_of(g->grads[i].leaf) != g->hooks[i]) {
            rp__text_puts(out, "a captured tensor has other hooks");
            return RP__REASON_GUARD_GRAD;
        }
    }
    if (!sharing_holds(g, in)) {
        rp__text_puts(
            out,
            "arguments and gradients are, or share memory with, each other or tensors that the function reaches by itself in "
            "another way");
        return RP__REASON_GUARD_ALIAS;
    }
    return explain_symbols(g, in, out);
}
