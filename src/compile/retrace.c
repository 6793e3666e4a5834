/* Tracing a function again without computing: with sizes as symbols, where a call differs in sizes only, and to compare, since
   what a function reads outside of tensors is seen by no guard. */
#include <string.h>

#include "compile/compiled_parts.h"
#include "core/alloc.h"

void rp__pattern_free(rp__pattern *p) {
    rp__symbols_release(p->symbols);
    rp__free(p->size);
    rp__free(p->stride);
    rp__free(p->sizes);
    rp__free(p->strides);
    rp__free(p->by_rows);
}

typedef struct pair { /* what a dynamic dim was and is: dims that agree in both share a symbol */
    int64_t old, now;
    rp_dim word;
} pair;

/* Did argument k of the recorded call lie row by row, as far as its strides were used? */
static bool lay_by_rows(const rp__specialisation *from, size_t k, unsigned ndim) {
    int64_t run = 1;
    bool symbolic, rows = true;
    for (unsigned d = ndim; d-- > 0;) {
        const int64_t size = rp__guards_size(&from->guards, k, d, &symbolic);
        rows = rows && (size == 1 || rp__guards_stride(&from->guards, k, d, &symbolic) == run);
        run *= size ? size : 1;
    }
    return rows;
}

/* Strides of contiguous arguments follow from their sizes; of others each is a symbol that changed. */
static void add_strides(const rp__specialisation *from, const rp_tensor *t, size_t k, rp__pattern *p) {
    const rp_dim *size = p->size[k];
    rp_dim *stride = p->stride[k];
    const bool was = from->by_rows && from->by_rows[k];
    p->by_rows[k] = rp__tensor_contiguous(t) && (was || lay_by_rows(from, k, t->ndim));
    if (p->by_rows[k]) {
        rp__symbols *outer = rp__symbols_enter(p->symbols);
        rp__contiguous_strides(size, t->ndim, stride);
        (void)rp__symbols_enter(outer);
        return;
    }
    for (unsigned d = 0; d < t->ndim; d++) {
        bool symbolic;
        int64_t old = rp__guards_stride(&from->guards, k, d, &symbolic);
        rp__symbol s = {.input = (uint32_t)k, .dim = (uint8_t)d, .is_stride = true, .hint = t->stride[d]};
        stride[d] = symbolic || old != t->stride[d] ? rp__symbols_add(p->symbols, &s) : t->stride[d];
    }
}

static rp_status begin(rp__pattern *p, size_t n_in) {
    *p = (rp__pattern){.symbols = rp__symbols_new()};
    p->size = rp__calloc(n_in + 1, sizeof *p->size);
    p->stride = rp__calloc(n_in + 1, sizeof *p->stride);
    p->sizes = rp__calloc(n_in + 1, sizeof *p->sizes);
    p->strides = rp__calloc(n_in + 1, sizeof *p->strides);
    p->by_rows = rp__calloc(n_in + 1, sizeof *p->by_rows);
    return p->symbols && p->size && p->stride && p->sizes && p->strides && p->by_rows ? RP_OK
                                                                                      : RP__OOM("symbolic sizes");
}

rp_status rp__pattern_make(const rp__specialisation *from, rp_tensor *const *in, size_t n_in, rp__pattern *p) {
    pair *pairs = NULL;
    size_t n = 0, capacity = 0;
    rp_status status = begin(p, n_in);
    for (size_t k = 0; k < n_in && status == RP_OK; k++) {
        const rp_tensor *t = in[k];
        rp_dim *size = p->size[k];
        bool any = false;
        for (unsigned d = 0; d < t->ndim && status == RP_OK; d++) {
            bool symbolic;
            int64_t old = rp__guards_size(&from->guards, k, d, &symbolic), now = t->size[d];
            size[d] = now;
            if (!symbolic && old == now) continue;
            size_t i = 0;
            while (i < n && (pairs[i].old != old || pairs[i].now != now)) i++;
            if (i == n) {
                rp__symbol s = {.input = (uint32_t)k, .dim = (uint8_t)d, .hint = now};
                if (!RP__GROW(&pairs, &capacity, n + 1)) {
                    status = RP__OOM("symbolic sizes");
                    break;
                }
                pairs[n++] = (pair){old, now, rp__symbols_add(p->symbols, &s)};
            }
            size[d] = pairs[i].word;
            any = true;
        }
        if (!any || status != RP_OK) continue;
        add_strides(from, t, k, p);
        p->sizes[k] = size;
        p->strides[k] = p->stride[k];
    }
    rp__free(pairs);
    return status == RP_OK && rp_failed() ? rp_error_status() : status;
}

/* The symbols of s itself, for sizes of another call that it serves: what is no symbol in s stays a number. */
static rp_status same_pattern(const rp__specialisation *s, rp_tensor *const *in, size_t n_in, rp__pattern *p) {
    const rp__symbols *own = s->guards.symbols;
    RP_TRY(begin(p, n_in));
    size_t n = 0;
    while (n < rp__symbols_count(own) && rp__symbols_at(own, n)->input < n_in) {
        rp__symbol symbol = *rp__symbols_at(own, n++);
        const rp_tensor *t = in[symbol.input];
        symbol.hint = symbol.is_stride ? t->stride[symbol.dim] : t->size[symbol.dim];
        (void)rp__symbols_add(p->symbols, &symbol);
    }
    for (size_t k = 0; k < n_in && !rp_failed(); k++) {
        const rp_dim *words = s->guards.symbolic[k];
        const unsigned ndim = in[k]->ndim;
        if (!words) continue;
        p->by_rows[k] = s->by_rows[k];
        for (unsigned i = 0; i < 2 * ndim; i++) {
            size_t which;
            const bool plain = rp__symbols_is_plain(own, words[i], &which) && which < n;
            *(i < ndim ? &p->size[k][i] : &p->stride[k][i - ndim]) =
                plain ? rp__symbols_word(p->symbols, which) : words[i];
        }
        if (s->by_rows[k]) {
            rp__symbols *outer = rp__symbols_enter(p->symbols);
            rp__contiguous_strides(p->size[k], ndim, p->stride[k]);
            (void)rp__symbols_enter(outer);
        }
        p->sizes[k] = p->size[k];
        p->strides[k] = p->stride[k];
    }
    return rp_failed() ? rp_error_status() : RP_OK;
}

rp_status rp__retrace_abstract(rp__compiled *c, const rp__pattern *p, rp_tensor *const *in, size_t n_in, size_t n_out,
                               rp__trace_result *result) {
    rp__trace_request request = {.mode = RP__TRACE_ABSTRACT, .fn = c->base.fn, .in = in, .n_in = n_in, .n_out = n_out};
    if (p) {
        request.symbols = p->symbols;
        request.sizes = p->sizes;
        request.strides = p->strides;
    }
    return rp__trace_run(&request, NULL, result);
}

rp__reason rp__retrace_unusable(const rp__trace_result *r) {
    return r->reason    ? rp__reason_find(r->reason)
           : r->left    ? RP__REASON_BACKWARD_LEAVES
           : r->escaped ? RP__REASON_TENSOR_ESCAPES
                        : RP__REASON_NONE;
}

bool rp__retrace_same_outside(const rp__trace_result *a, const rp__trace_result *b) {
    if (a->ir->n_captured != b->ir->n_captured || a->n_grads != b->n_grads) return false;
    for (size_t i = 0; i < a->ir->n_captured; i++) {
        if (a->ir->captured[i] != b->ir->captured[i]) return false;
    }
    for (size_t i = 0; i < a->n_grads; i++) {
        if (a->grads[i].leaf != b->grads[i].leaf || a->grads[i].at_exit != b->grads[i].at_exit) return false;
    }
    return true;
}

/* Was a tensor that the function reaches by itself an argument when s was recorded? Then the graph of that call has the
   argument in its place, which no other call could know. */
static bool was_argument(const rp__specialisation *s, const rp_ir *again, size_t n_in) {
    for (size_t i = 0; i < again->n_captured; i++) {
        for (size_t k = 0; k < n_in; k++)
            if (again->captured[i]->id == s->arg_ids[k]) return true;
    }
    return false;
}

/* The first tensor that the function reached by itself and that is not the one of the recorded call. */
static void name_outside(const rp__trace_result *again, const rp__trace_result *recorded, rp__text *out) {
    const rp_tensor *other = NULL;
    for (size_t i = 0; i < again->ir->n_captured && i < recorded->ir->n_captured && !other; i++)
        if (again->ir->captured[i] != recorded->ir->captured[i]) other = again->ir->captured[i];
    rp__text_puts(out, "it uses other tensors from outside");
    if (!other) return;
    char text[RP__SHAPE_TEXT];
    const bool known = other->site && *other->site;
    rp__text_add(out, ": one is %s%s%s; make it once, before the calls, or pass it as an argument",
                 rp__tensor_text(other, text), known ? ", from " : "", known ? other->site : "");
}

static bool ctx_changed(const rp__specialisation *s, rp_fn fn) {
    return s->guards.ctx_bytes && memcmp(s->guards.ctx_copy, fn.ctx, s->guards.ctx_bytes) != 0;
}

rp_status rp__retrace(rp__compiled *c, rp__specialisation *s, rp_tensor *const *in, size_t n_in, size_t n_out,
                      rp__verdict *v, rp__trace_result *again, rp__reason *reason, rp__text *detail) {
    rp__pattern p = {0};
    rp__error_state before;
    rp__error_save(&before);
    rp_status status = s->symbolic ? same_pattern(s, in, n_in, &p) : RP_OK;
    rp__hash hash;
    *v = RP__RETRACE_PURE;
    if (status == RP_OK) {
        rp_status traced = rp__retrace_abstract(c, s->symbolic ? &p : NULL, in, n_in, n_out, again);
        if (traced == RP_ERROR_OUT_OF_MEMORY) {
            status = traced;
        } else if (traced != RP_OK) {
            *v = again->reason ? RP__RETRACE_UNUSABLE : RP__RETRACE_FAILS;
            *reason = again->reason ? rp__reason_find(again->reason) : RP__REASON_TRACE_FAILED;
            rp__text_puts(detail, rp_error_message());
        } else if ((*reason = rp__retrace_unusable(again)) != RP__REASON_NONE) {
            *v = RP__RETRACE_UNUSABLE;
            rp__text_puts(detail, again->site ? again->site : "");
        } else if (ctx_changed(s, c->base.fn)) {
            *v = RP__RETRACE_UNUSABLE;
            *reason = RP__REASON_CTX_CHANGES;
        } else if ((status = rp__ir_hash(again->ir, &hash)) == RP_OK &&
                   (!rp__hash_equal(hash, s->hash) || !rp__retrace_same_outside(again, &s->trace))) {
            *v = was_argument(s, again->ir, n_in) ? RP__RETRACE_OTHER_CALL : RP__RETRACE_UNUSABLE;
            *reason = RP__REASON_IMPURE;
            if (rp__hash_equal(hash, s->hash))
                name_outside(again, &s->trace, detail);
            else
                again->site = rp__ir_diff(s->trace.ir, again->ir, detail);
        }
    }
    if (status == RP_OK) (void)rp_error_take();
    rp__error_restore(&before);
    rp__pattern_free(&p);
    return status;
}
