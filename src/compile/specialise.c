/* Specialise: the graph with its symbols replaced by the values of one call.
   Requires  values for every symbol that satisfy the graph's guards.
   Keeps     everything else.
   After it  no size, stride, offset, attribute or counter is a symbol; the graph has no table of symbols. */
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"

typedef struct specialiser {
    const rp__symbols *symbols;
    const int64_t *binding;
    rp_ir *ir;
} specialiser;

static rp_status replace(const specialiser *s, rp_dim *d) {
    if (!rp__dim_is_symbol(*d) || *d == INT64_MIN) return RP_OK; /* INT64_MIN: None of an optional integer */
    int64_t value;
    if (!rp__symbols_value(s->symbols, *d, s->binding, &value)) {
        return rp__fail(RP_ERROR_SHAPE, "a size of the graph overflows for these arguments");
    }
    *d = value;
    return RP_OK;
}

static rp_status replace_number(const specialiser *s, rp_scalar *number) {
    double value;
    if (rp__scalar_is_size(*number)) {
        number->kind = RP_SCALAR_I64;
        return replace(s, &number->v.i);
    }
    if (!rp__symbols_number(s->symbols, number->v.i, s->binding, &value))
        return rp__fail(RP_ERROR_SHAPE, "a number of the graph cannot be calculated for these arguments");
    *number = rp_f64(value);
    return RP_OK;
}

static rp_status replace_attrs(const specialiser *s, rp__ir_node *n) {
    rp_attr *attrs = NULL;
    for (uint32_t k = 0; k < n->n_attrs; k++) {
        const rp_attr *a = &n->attrs[k];
        const bool scalar = a->kind == RP_ATTR_SCALAR && rp__scalar_is_symbol(a->v.scalar);
        bool symbolic = scalar || (a->kind == RP_ATTR_INT && rp__dim_is_symbol(a->v.i));
        for (size_t i = 0; a->kind == RP_ATTR_INTS && i < a->n; i++)
            symbolic = symbolic || rp__dim_is_symbol(a->v.ints[i]);
        if (!symbolic) continue;
        if (!attrs) {
            attrs = rp__arena_copy(&s->ir->arena, n->attrs, n->n_attrs * sizeof *attrs);
            if (!attrs) return RP__OOM("graph node");
            n->attrs = attrs;
        }
        if (scalar) {
            RP_TRY(replace_number(s, &attrs[k].v.scalar));
            continue;
        }
        if (a->kind == RP_ATTR_INT) {
            RP_TRY(replace(s, &attrs[k].v.i));
            continue;
        }
        int64_t *ints = rp__arena_copy(&s->ir->arena, attrs[k].v.ints, attrs[k].n * sizeof *ints);
        if (!ints) return RP__OOM("graph node");
        for (size_t i = 0; i < attrs[k].n; i++) RP_TRY(replace(s, &ints[i]));
        attrs[k].v.ints = ints;
    }
    return RP_OK;
}

static rp_status replace_all(const specialiser *s) {
    for (size_t v = 0; v < s->ir->n_values; v++) {
        rp__ir_value_info *info = &s->ir->values[v];
        for (unsigned d = 0; d < info->meta.ndim; d++) {
            RP_TRY(replace(s, &info->meta.size[d]));
            RP_TRY(replace(s, &info->stride[d]));
        }
        RP_TRY(replace(s, &info->offset));
        int64_t bytes = (int64_t)rp__dtype_bytes(info->meta.dtype);
        bool fits = true, empty = false;
        for (unsigned d = 0; d < info->meta.ndim; d++) {
            fits = rp__mul_i64(bytes, info->meta.size[d], &bytes) && fits;
            empty = empty || info->meta.size[d] == 0;
        }
        if (!fits && !empty) { /* eager execution refuses it too (dispatch.c) */
            char size[RP__SHAPE_TEXT];
            return rp__fail(RP_ERROR_SHAPE,
                            "a value of size %s of the graph is too large: its bytes cannot be counted%s%s",
                            rp__shape_text(info->meta.size, info->meta.ndim, size), info->site ? ": " : "",
                            info->site ? info->site : "");
        }
    }
    for (size_t k = 0; k < s->ir->n_nodes; k++) {
        rp__ir_node *n = &s->ir->nodes[k];
        RP_TRY(replace_attrs(s, n));
        RP_TRY(replace(s, &n->random_offset));
        RP_TRY(replace(s, &n->random_count));
    }
    return RP_OK;
}

rp_status rp__specialise(const rp_ir *ir, const int64_t *binding, rp_ir **out) {
    rp__rewrite w;
    bool quiet = rp__symbols_quiet(true); /* the guards hold for `binding` */
    rp_status status = rp__rewrite_begin(&w, ir);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++) {
        if (!ir->nodes[ir->body.nodes[k]].dead) status = rp__rewrite_copy(&w, &w.dst->body, ir->body.nodes[k]);
    }
    if (status == RP_OK) status = rp__rewrite_results(&w, &ir->body, &w.dst->body);
    if (status == RP_OK && ir->symbols) {
        const specialiser s = {w.dst->symbols, binding, w.dst};
        status = replace_all(&s);
        (void)rp__symbols_enter(NULL);
        rp__symbols_release(w.dst->symbols);
        w.dst->symbols = NULL;
    }
    status = rp__rewrite_end(&w, status, "specialise", out);
    (void)rp__symbols_quiet(quiet);
    return status;
}
