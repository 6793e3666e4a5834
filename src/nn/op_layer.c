/* Layers without parameters: an op of the table and its arguments, read from the text of a call. */
#include <reprise_nn.h>

#include "core/error.h"
#include "core/text.h"
#include "nn/layer.h"
#include "ops/table.h"
#include "tensor/tensor.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const char *call, *at;
    rp_op_layer *to;
    size_t n_ints, n_floats;
} reader;

static rp_status refuse(const reader *r, const char *what) {
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op layer: %s at \"%.40s\" of \"%s\"", what, r->at, r->call);
}

static void blanks(reader *r) {
    while (isspace((unsigned char)*r->at)) r->at++;
}

static bool accept(reader *r, char c) {
    blanks(r);
    if (*r->at != c) return false;
    r->at++;
    return true;
}

/* The length of the word that begins here; 0: none does. */
static size_t word(reader *r) {
    blanks(r);
    size_t n = 0;
    if (isalpha((unsigned char)*r->at) || *r->at == '_')
        while (isalnum((unsigned char)r->at[n]) || r->at[n] == '_') n++;
    return n;
}

static bool is_word(const reader *r, size_t n, const char *text) {
    return n == strlen(text) && strncmp(r->at, text, n) == 0;
}

static rp_status read_number(reader *r, rp_attr *out) {
    char *end_int = NULL;
    blanks(r);
    errno = 0;
    const long long i = strtoll(r->at, &end_int, 10);
    const bool too_large = errno == ERANGE;
    double f = 0;
    const char *end_float = rp__text_read_number(r->at, &f);
    if (end_float == r->at) return refuse(r, "a number is missing");
    if (end_float > end_int) {
        *out = (rp_attr){.kind = RP_ATTR_FLOAT, .v.f = f};
        r->at = end_float;
        return RP_OK;
    }
    if (too_large) return refuse(r, "a number beyond 64 bits");
    *out = (rp_attr){.kind = RP_ATTR_INT, .v.i = i};
    r->at = end_int;
    return RP_OK;
}

/* An adaptive pool, whose sizes may be the input's. */
static bool is_adaptive(const reader *r) { return strncmp(r->call, "adaptive_", 9) == 0; }

/* A list of numbers, or one number for all of a list of that length. */
static rp_status read_list(reader *r, const rp__param *p, rp_attr *out) {
    const bool many = accept(r, '[') || accept(r, '(');
    const bool ints = p->attr_kind == RP_ATTR_INTS;
    const size_t first = ints ? r->n_ints : r->n_floats;
    const size_t room = ints ? sizeof r->to->ints / sizeof *r->to->ints : sizeof r->to->floats / sizeof *r->to->floats;
    size_t n = first;
    while (!many || (!accept(r, ']') && !accept(r, ')'))) {
        rp_attr number = {.kind = RP_ATTR_INT, .v.i = INT64_MIN}; /* None: the input's size */
        const size_t none = many && ints && is_adaptive(r) && is_word(r, word(r), "None") ? 4 : 0;
        r->at += none;
        if (!none) RP_TRY(read_number(r, &number));
        if (ints && number.kind != RP_ATTR_INT) return refuse(r, "a list of integers ends");
        for (size_t times = !many && p->fixed ? p->fixed : 1; times > 0; times--, n++) {
            if (n == room) return refuse(r, "there are too many numbers");
            if (ints)
                r->to->ints[n] = number.v.i;
            else
                r->to->floats[n] = number.kind == RP_ATTR_INT ? (double)number.v.i : number.v.f;
        }
        if (!many) break;
        (void)accept(r, ',');
    }
    *out = (rp_attr){.kind = (rp_attr_kind)p->attr_kind, .n = n - first};
    if (ints)
        out->v.ints = r->to->ints + first, r->n_ints = n;
    else
        out->v.floats = r->to->floats + first, r->n_floats = n;
    return RP_OK;
}

/* 'text', which is kept in the layer's own. */
static rp_status read_string(reader *r, rp_attr *out) {
    blanks(r);
    const char quote = *r->at;
    if (quote != '\'' && quote != '"') return refuse(r, "a text in quotes is missing");
    const char *end = strchr(r->at + 1, quote);
    if (!end) return refuse(r, "a quote is not closed");
    char *own = r->to->text + (r->at + 1 - r->call);
    own[end - r->at - 1] = 0;
    *out = (rp_attr){.kind = RP_ATTR_STRING, .v.string = own};
    r->at = end + 1;
    return RP_OK;
}

/* 'none', 'mean' or 'sum', which the op counts. */
static rp_status read_reduction(reader *r, rp_attr *out) {
    static const char *const names[] = {"none", "mean", "sum"};
    const reader before = *r;
    rp_attr text;
    RP_TRY(read_string(r, &text));
    for (int k = 0; k < 3; k++) {
        if (strcmp(text.v.string, names[k]) != 0) continue;
        *out = (rp_attr){.kind = RP_ATTR_INT, .v.i = k};
        return RP_OK;
    }
    return refuse(&before, "no reduction ('none', 'mean', 'sum')");
}

static rp_status read_value(reader *r, const rp__param *p, rp_attr *out) {
    const size_t n = word(r);
    if (!n && (*r->at == '\'' || *r->at == '"') && strcmp(p->name, "reduction") == 0) return read_reduction(r, out);
    if (is_word(r, n, "None") || is_word(r, n, "none")) {
        *out = (rp_attr){.kind = RP_ATTR_NONE};
    } else if (is_word(r, n, "True") || is_word(r, n, "true") || is_word(r, n, "False") || is_word(r, n, "false")) {
        *out = (rp_attr){.kind = RP_ATTR_BOOL, .v.b = *r->at == 'T' || *r->at == 't'};
    } else if (n && p->attr_kind == RP_ATTR_DTYPE) {
        rp_dtype found = RP_DTYPE_NONE;
        for (int d = 1; d < RP__DTYPE_COUNT && found == RP_DTYPE_NONE; d++)
            if (is_word(r, n, rp_dtype_name((rp_dtype)d))) found = (rp_dtype)d;
        if (found == RP_DTYPE_NONE) return refuse(r, "there is no such dtype");
        *out = (rp_attr){.kind = RP_ATTR_DTYPE, .v.dtype = found};
    } else if (p->attr_kind == RP_ATTR_STRING) {
        return read_string(r, out);
    } else if (p->attr_kind == RP_ATTR_INTS || p->attr_kind == RP_ATTR_FLOATS) {
        return read_list(r, p, out);
    } else {
        return read_number(r, out);
    }
    r->at += n;
    return RP_OK;
}

/* Which attribute of the op has the name that stands before a '='; -1: the next value has none. */
static rp_status read_name(reader *r, const rp__op *op, int *which) {
    const size_t n = word(r);
    const char *behind = r->at + n;
    while (isspace((unsigned char)*behind)) behind++;
    *which = -1;
    if (!n || *behind != '=') return RP_OK;
    for (unsigned i = 0, k = 0; i < op->schema.n_params; i++) {
        if (op->schema.params[i].kind != RP__PARAM_ATTR) continue;
        if (is_word(r, n, op->schema.params[i].name)) *which = (int)k;
        k++;
    }
    if (*which < 0)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op layer: %s has no argument \"%.*s\" (%s)", op->name, (int)n,
                        r->at, op->schema_text);
    r->at = behind + 1;
    return RP_OK;
}

static const rp__param *attribute_at(const rp__op *op, unsigned k) {
    for (unsigned i = 0; i < op->schema.n_params; i++)
        if (op->schema.params[i].kind == RP__PARAM_ATTR && k-- == 0) return &op->schema.params[i];
    return NULL;
}

/* Attributes that say whether it is trained are the mode's, unless the call gives them. */
static bool is_mode(const rp__param *p) {
    return p->attr_kind == RP_ATTR_BOOL && (strcmp(p->name, "train") == 0 || strcmp(p->name, "training") == 0);
}

/* What torch.nn.Unfold and Fold have for what their ops need. */
static bool nn_default(const rp__op *op, const rp__param *p, rp_attr *out) {
    static const int64_t ones[] = {1, 1}, zeros[] = {0, 0};
    if (strcmp(op->name, "im2col") != 0 && strcmp(op->name, "col2im") != 0) return false;
    if (p->attr_kind != RP_ATTR_INTS || strcmp(p->name, "kernel_size") == 0 || strcmp(p->name, "output_size") == 0)
        return false;
    *out = (rp_attr){.kind = RP_ATTR_INTS, .n = 2, .v.ints = strcmp(p->name, "padding") == 0 ? zeros : ones};
    return true;
}

static rp_status read_call(reader *r) {
    rp_op_layer *l = r->to;
    bool given[RP__MAX_PARAMS] = {false};
    const size_t n = word(r);
    char name[64];
    if (n == 0 || n >= sizeof name) return refuse(r, "the name of an op is missing");
    l->mode = l->from_input = -1;
    if (is_word(r, n, "identity")) {
        r->at += n;
        if (accept(r, '(') && !accept(r, ')')) return refuse(r, "identity takes nothing");
        blanks(r);
        if (*r->at) return refuse(r, "the call goes on");
        l->op = "identity";
        return RP_OK;
    }
    memcpy(name, r->at, n);
    name[n] = 0;
    const rp__op *op = rp__op_find(name);
    if (!op || op->flags & RP__OP_PRIVATE || op->schema.n_attrs > sizeof l->attrs / sizeof *l->attrs)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op layer: no op is named '%s'", name);
    r->at += n;
    if (accept(r, '(') && !accept(r, ')')) {
        for (unsigned next = 0;;) {
            int which;
            RP_TRY(read_name(r, op, &which));
            const unsigned k = which < 0 ? next : (unsigned)which;
            const rp__param *p = attribute_at(op, k);
            if (!p || given[k] || (which < 0 && p->keyword))
                return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op layer: %s takes no such argument at \"%.40s\" (%s)",
                                name, r->at, op->schema_text);
            RP_TRY(read_value(r, p, &l->attrs[k]));
            given[k] = true;
            next = k + 1;
            if (accept(r, ')')) break;
            if (!accept(r, ',')) return refuse(r, "a comma is missing");
        }
    }
    blanks(r);
    if (*r->at) return refuse(r, "the call goes on");
    for (unsigned k = 0; k < op->schema.n_attrs; k++) {
        const rp__param *p = attribute_at(op, k);
        if (given[k]) {
            for (size_t i = 0; l->attrs[k].kind == RP_ATTR_INTS && i < l->attrs[k].n; i++)
                if (l->attrs[k].v.ints[i] == INT64_MIN) l->from_input = (int)k;
            continue;
        }
        if (is_mode(p)) {
            l->mode = (int)k;
            l->attrs[k] = (rp_attr){.kind = RP_ATTR_BOOL, .v.b = true};
        } else if (p->has_default) {
            l->attrs[k] = rp__param_default(p);
            if (p->optional && rp__attr_is_none(&l->attrs[k])) l->attrs[k] = (rp_attr){.kind = RP_ATTR_NONE};
        } else if (!nn_default(op, p, &l->attrs[k])) {
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op layer: %s needs '%s' (%s)", name, p->name, op->schema_text);
        }
    }
    l->n_attrs = op->schema.n_attrs;
    l->op = op->name;
    return RP_OK;
}

rp_status rp_op_layer_init_at(const char *site, rp_op_layer *l, const char *call) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(l, "op layer"));
    memset(l, 0, sizeof *l);
    if (!call || strlen(call) >= sizeof l->text)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "op layer: the text of a call has up to %zu letters",
                        sizeof l->text - 1);
    strcpy(l->text, call);
    reader r = {.call = call, .at = call, .to = l};
    const rp_status status = read_call(&r);
    if (status != RP_OK) memset(l, 0, sizeof *l);
    return status;
}

rp_status rp_op_layer_add_at(const char *site, rp_module *m, const char *name, rp_op_layer *l, const char *call) {
    RP__CALLED_FROM(site);
    RP_TRY(rp_op_layer_init_at(NULL, l, call));
    return rp__module_adopt_layer(m, name, NULL, 0, &l->module);
}

/* Sizes that are None become those of the input's last dims. */
static void sizes_of_input(rp_attr *list, rp_tensor *x, int64_t sizes[8]) {
    const size_t n = list->n;
    if (n > 8 || !x || x->magic != RP__TENSOR_MAGIC || x->ndim < n) return; /* the op refuses the input */
    for (size_t i = 0; i < n; i++)
        sizes[i] = list->v.ints[i] == INT64_MIN ? rp_size(x, (int64_t)(x->ndim - n + i)) : list->v.ints[i];
    list->v.ints = sizes;
}

rp_tensor *rp_op_layer_forward_at(const char *site, const rp_op_layer *l, rp_tensor *const *in, size_t n_in) {
    rp_tensor *out = rp__tensor_error();
    rp_attr attrs[RP__MAX_PARAMS];
    if (!l || !l->op) return rp__no_layer(site, "op layer");
    memcpy(attrs, l->attrs, l->n_attrs * sizeof *attrs);
    if (l->mode >= 0) attrs[l->mode].v.b = rp_module_training(l->module);
    rp_tensor *own[RP__MAX_IN];
    int64_t sizes[8];
    const bool hooked = n_in <= RP__MAX_IN && in; /* else the op says what is wrong */
    if (hooked) {
        memcpy(own, in, n_in * sizeof *own);
        rp__hooks_before(l->module, own, n_in);
        in = own;
    }
    if (!l->n_attrs && strcmp(l->op, "identity") == 0) {
        rp__site_frame frame = rp__site_push(site, "identity");
        if (n_in == 1 && in && rp__tensor_check(in[0], "identity: the input") == RP_OK)
            out = rp__tensor_enter_scope(in[0]);
        else if (n_in != 1 || !in)
            (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "identity: one tensor, not %zu", n_in);
        rp__site_pop(frame);
    } else {
        if (l->from_input >= 0 && n_in && in) sizes_of_input(&attrs[l->from_input], in[0], sizes);
        (void)rp_op_call_at(site, l->op, in, n_in, attrs, l->n_attrs, &out, 1);
    }
    return hooked ? rp__hooks_result(l->module, in, n_in, out) : out;
}
