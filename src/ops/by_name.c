/* Calls of ops by name: arguments are matched against the schema, defaults filled in, and dispatched like any call. For
   bindings, user ops, parsers of graphs. */
#include <string.h>

#include "core/alloc.h"
#include "ops/table.h"

static rp_status bad(const rp__op *op, const char *name, const char *what) {
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_call: %s: argument '%s' %s (%s)", op->name, name, what,
                    op->schema_text);
}

/* A given attribute in the schema's kind. Numbers convert where nothing is lost: int to float, any number to Scalar. */
static rp_status convert(const rp__op *op, const rp__param *p, const rp_attr *given, rp_attr *out) {
    *out = *given;
    rp_attr_kind want = (rp_attr_kind)p->attr_kind;
    if (given->kind == RP_ATTR_NONE) {
        if (!p->optional) return bad(op, p->name, "may not be None");
        *out = rp__param_none(p);
        return RP_OK;
    }
    if (given->kind == want) {
        bool list = want == RP_ATTR_INTS || want == RP_ATTR_FLOATS;
        if (list && given->n && !given->v.ints) return bad(op, p->name, "is a list without values");
        if (p->type == RP__TYPE_BOOL && given->v.scalar.kind != RP_SCALAR_NONE &&
            given->v.scalar.kind != RP_SCALAR_BOOL)
            return bad(op, p->name, "is true, false or None");
        return RP_OK;
    }
    out->kind = want;
    if (want == RP_ATTR_FLOAT && given->kind == RP_ATTR_INT) {
        out->v.f = (double)given->v.i;
        return RP_OK;
    }
    if (p->type == RP__TYPE_BOOL && given->kind != RP_ATTR_BOOL) return bad(op, p->name, "is true, false or None");
    if (want == RP_ATTR_SCALAR && given->kind <= RP_ATTR_BOOL) {
        out->v.scalar = given->kind == RP_ATTR_INT     ? rp_i64(given->v.i)
                        : given->kind == RP_ATTR_FLOAT ? rp_f64(given->v.f)
                                                       : rp_bool(given->v.b);
        return RP_OK;
    }
    return bad(op, p->name, "has another kind than the schema says");
}

static rp_status fill_attrs(const rp__op *op, const rp_attr *attrs, size_t n_attrs, rp_attr *out) {
    size_t k = 0;
    if (n_attrs > op->schema.n_attrs)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_call: %s takes %u attributes, not %zu (%s)", op->name,
                        op->schema.n_attrs, n_attrs, op->schema_text);
    for (unsigned i = 0; i < op->schema.n_params; i++) {
        const rp__param *p = &op->schema.params[i];
        if (p->kind != RP__PARAM_ATTR) continue;
        if (k < n_attrs)
            RP_TRY(convert(op, p, &attrs[k], &out[k]));
        else if (p->has_default)
            out[k] = rp__param_default(p);
        else
            return bad(op, p->name, "is missing and has no default");
        k++;
    }
    return RP_OK;
}

/* Lists of different lengths: what is before the last one ends with a NULL, which goes. */
static bool fill_apart(const rp__schema *s, rp_tensor *const *in, size_t n_in, unsigned lists, rp_tensor **flat,
                       rp__call *call) {
    size_t at = 0, n = 0;
    unsigned t = 0, singles_behind = 0;
    for (unsigned i = 0; i < s->n_params; i++) {
        if (s->params[i].kind == RP__PARAM_ATTR) continue;
        if (s->params[i].kind != RP__PARAM_TENSORS) {
            if (at == n_in) return false;
            flat[n++] = in[at++];
        } else if (--lists > 0) {
            while (at < n_in && in[at]) flat[n++] = in[at++];
            if (at++ == n_in) return false;
        } else {
            for (unsigned k = i + 1; k < s->n_params; k++)
                singles_behind +=
                    s->params[k].kind == RP__PARAM_TENSOR || s->params[k].kind == RP__PARAM_OPTIONAL_TENSOR;
            while (at + singles_behind < n_in) flat[n++] = in[at++];
        }
        call->list_begin[++t] = (uint32_t)n;
    }
    call->in = flat;
    return at == n_in;
}

/* Which of in[0..n_in) belong to which tensor parameter. Lists share equally what single tensors leave over, or are apart. */
static rp_status fill_lists(const rp__op *op, rp_tensor *const *in, size_t n_in, rp_tensor **flat, rp__call *call) {
    const rp__schema *s = &op->schema;
    unsigned singles = 0, lists = 0, needed = 0, t = 0;
    for (unsigned i = 0; i < s->n_params; i++) {
        singles += s->params[i].kind == RP__PARAM_TENSOR || s->params[i].kind == RP__PARAM_OPTIONAL_TENSOR;
        needed += s->params[i].kind == RP__PARAM_TENSOR;
        lists += s->params[i].kind == RP__PARAM_TENSORS;
    }
    bool fits = lists ? n_in >= singles && n_in <= RP__MAX_IN && (n_in - singles) % lists == 0
                      : n_in >= needed && n_in <= singles;
    size_t each = lists && fits ? (n_in - singles) / lists : 0, at = 0;
    for (unsigned i = 0; i < s->n_params; i++) {
        uint8_t kind = s->params[i].kind;
        if (kind == RP__PARAM_ATTR) continue;
        const size_t n = kind == RP__PARAM_TENSORS ? each : 1;
        for (size_t k = 0; lists > 1 && fits && kind == RP__PARAM_TENSORS && !s->params[i].optional && k < n; k++)
            fits = in[at + k] != NULL;
        at += n;
        call->list_begin[t + 1] = (uint32_t)at;
        t++;
    }
    if (fits || (lists > 1 && n_in <= RP__MAX_IN && fill_apart(s, in, n_in, lists, flat, call))) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_call: %s does not take %zu tensors (%s)", op->name, n_in,
                    op->schema_text);
}

static rp_status call_by_name(const char *site, const char *name, rp_tensor *const *in, size_t n_in,
                              const rp_attr *attrs, size_t n_attrs, rp_tensor **out, size_t n_out) {
    const rp__op *op = rp__op_find(name);
    if (!op) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_call: no op is named '%s'", name ? name : "(null)");
    if ((n_in && !in) || (n_attrs && !attrs) || (n_out && !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_call: %s: a list of arguments is NULL", op->name);
    if (n_out > op->schema.n_outs)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_call: %s has %u results, not %zu", op->name,
                        op->schema.n_outs, n_out);
    rp_attr all[RP__MAX_PARAMS];
    rp_tensor *results[RP__MAX_OUTS], *padded[RP__MAX_PARAMS] = {NULL}, *flat[RP__MAX_IN];
    rp__call call = {.op = op,
                     .site = site,
                     .in = in,
                     .attrs = all,
                     .n_attrs = op->schema.n_attrs,
                     .out = results,
                     .n_out = op->schema.n_outs};
    RP_TRY(fill_attrs(op, attrs, n_attrs, all));
    RP_TRY(fill_lists(op, in, n_in, flat, &call));
    call.n_in = call.list_begin[op->schema.n_tensor_params];
    if (call.in == in && call.n_in > n_in) { /* trailing optional tensors left out */
        memcpy(padded, in, n_in * sizeof *in);
        call.in = padded;
    }
    rp_status status = rp__dispatch(&call);
    for (size_t k = 0; k < n_out; k++) out[k] = results[k];
    return status;
}

rp_status rp_op_call_at(const char *site, const char *name, rp_tensor *const *in, size_t n_in, const rp_attr *attrs,
                        size_t n_attrs, rp_tensor **out, size_t n_out) {
    RP__LISTS_APART(in, n_in, out, n_out, rp_op_call_at(site, name, apart, n_in, attrs, n_attrs, out, n_out));
    rp__site_frame frame = rp__site_push(site, NULL);
    for (size_t k = 0; out && k < n_out; k++) out[k] = rp__tensor_error();
    rp_status status = call_by_name(site, name, in, n_in, attrs, n_attrs, out, n_out);
    rp__site_pop(frame);
    return status;
}
