/* The sweep over samples: see samples.h. Expected values are files of tests/data/golden, one an op's line, written by
   scripts/golden.py from what sample_print_calls prints:

       sample OP TEXT
       types T T T T T T T T          result types for inputs of ref_types, "float32/int64" of two results; "-" refused
       order N                        how often the first result can be differentiated: 0, 1, 2
       f NDIM SIZE... VALUE...        results for float64 inputs, a line each; i: int64, u: uint8, b: bool

   Samples' floats are the same numbers in every float type, and their integers in int32 and int64, so that one list of values
   serves them all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/cpu/dots.h"
#include "samples/samples.h"

/* ---- expected values */

typedef struct golden {
    bool known, refused;
    int n_out, order;
    ref_value out[SAMPLE_OUT];
} golden;

static FILE *open_golden(const char *name) {
    char path[4096];
    const char *data = getenv("REPRISE_TEST_DATA");
    (void)snprintf(path, sizeof path, "%s/golden/%s.txt", data && *data ? data : "tests/data", name);
    return fopen(path, "r");
}

static char class_of(rp_dtype d) { return ref_is_float(d) ? 'f' : d == RP_U8 ? 'u' : d == RP_BOOL ? 'b' : 'i'; }

static int index_of(rp_dtype d) {
    int i = 0;
    while (ref_types[i] != d) i++;
    return i;
}

/* own: floats as they are, for results of other types. */
static void read_types(char *text, rp_dtype d, bool own, golden *g) {
    char *at, *word = strtok_r(text, " \n", &at);
    for (int i = index_of(d); i > 0 && word; i--) word = strtok_r(NULL, " \n", &at);
    g->refused = !word || strcmp(word, "-") == 0;
    char *inner;
    for (char *name = g->refused ? NULL : strtok_r(word, "/", &inner); name; name = strtok_r(NULL, "/", &inner))
        for (int i = 0; i < SAMPLE_TYPES; i++)
            if (strcmp(rp_dtype_name(ref_types[i]), name) == 0)
                g->out[g->n_out++].dtype = own && ref_is_float(ref_types[i]) ? RP_F64 : ref_types[i];
}

static bool own_types(const sample *s) { return s->row->own_types || s->op->flags & RP__OP_PRIVATE; }

static void read_value(char *text, ref_value *out) {
    char *at = text;
    int64_t size[RP_MAX_DIMS];
    int ndim = (int)strtol(at, &at, 10);
    for (int k = 0; k < ndim; k++) size[k] = strtoll(at, &at, 10);
    rp_dtype d = out->dtype;
    *out = ref_new(d, size, ndim);
    for (int64_t i = 0; i < out->n; i++) out->v[i] = ref_round(d, strtod(at, &at));
}

static bool read_golden(const sample *s, rp_dtype d, golden *g) {
    char *line = NULL, want[400];
    size_t room = 0;
    int seen = 0;
    *g = (golden){.known = false};
    FILE *f = open_golden(s->row->op);
    if (!f) return false;
    (void)snprintf(want, sizeof want, "sample %s %s\n", s->op->name, s->text);
    while (getline(&line, &room, f) > 0) {
        if (strncmp(line, "sample ", 7) == 0) {
            if (g->known) break;
            g->known = strcmp(line, want) == 0;
        } else if (g->known && strncmp(line, "types ", 6) == 0) {
            read_types(line + 6, d, own_types(s), g);
        } else if (g->known && strncmp(line, "order ", 6) == 0) {
            g->order = atoi(line + 6);
        } else if (g->known && line[0] == class_of(d) && seen < g->n_out) {
            read_value(line + 2, &g->out[seen++]);
        }
    }
    free(line);
    (void)fclose(f);
    if (g->known && !g->refused && seen != g->n_out) fail_msg("golden/%s.txt: '%s' is cut off", s->row->op, s->text);
    return g->known;
}

/* Of an op in place: the values of its op, if they may lie in self. */
static void written_into_self(const sample *s, rp_dtype d, golden *g) {
    if (!g->known || g->refused) return;
    ref_value self = sample_values(&s->in[0], d, SAMPLE_N, 0), *y = &g->out[0];
    bool fits = self.ndim == y->ndim && memcmp(self.size, y->size, (size_t)y->ndim * sizeof *y->size) == 0;
    bool casts =
        !(ref_is_float(y->dtype) && !ref_is_float(self.dtype)) && !(y->dtype != RP_BOOL && self.dtype == RP_BOOL);
    g->refused = !fits || !casts;
    for (int64_t i = 0; i < y->n && !g->refused; i++) y->v[i] = ref_round(self.dtype, y->v[i]);
    y->dtype = self.dtype;
}

/* Is the type among those of a list, "f32 i64"? */
static bool is_listed(const char *list, rp_dtype d) {
    static const char *const names[] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool"};
    const char *name = names[index_of(d)];
    const size_t n = strlen(name);
    for (; list; list = strchr(list, ' ') ? strchr(list, ' ') + 1 : NULL)
        if (strncmp(list, name, n) == 0 && (!list[n] || list[n] == ' ')) return true;
    return false;
}

static void expected(const sample *s, rp_dtype d, golden *g) {
    if (s->op->functional_op) {
        sample base = *s;
        base.op = s->op->functional_op;
        (void)read_golden(&base, d, g);
        written_into_self(s, d, g);
    } else {
        (void)read_golden(s, d, g);
    }
    const bool elsewhere = rp_default_device().type != RP_DEVICE_CPU && is_listed(s->row->host, d);
    if (g->known && (is_listed(s->row->refused, d) || elsewhere)) g->refused = true;
}

bool sample_has_golden(const sample *s) {
    golden g;
    expected(s, RP_F32, &g);
    ref_reset();
    return g.known;
}

int sample_order(const sample *s) {
    const rp__op *op = s->op->functional_op ? s->op->functional_op : s->op;
    golden g;
    expected(s, RP_F64, &g);
    ref_reset();
    if (g.known) return g.refused ? 0 : g.order;
    bool values = false;
    for (int k = 0; k < s->n_in; k++) values = values || sample_is_value(&s->in[k]);
    return values && (op->vjp || op->lowering == RP__COMPOSITE) ? 2 : 0;
}

/* ---- one call */

static const char *const layout_names[REF_LAYOUTS] = {"contiguous", "transposed", "sliced", "expanded", "offset"};

static rp_status call(const sample *s, rp_dtype d, ref_layout layout, rp_tensor **out) {
    rp_tensor *in[SAMPLE_IN + 1];
    for (int k = 0; k < s->n_in; k++) {
        ref_value v = sample_values(&s->in[k], d, SAMPLE_N, (unsigned)k);
        in[k] = ref_tensor(&v, layout);
    }
    return sample_call(s, in, out);
}

/* What was added up is at least the largest result; of an op of one operand each result stands for itself. */
static void with_magnitudes(const sample *s, ref_value *y) {
    if (s->op->lowering == RP__POINTWISE && s->n_args == 1 && !s->row->cancels) return;
    double most = 1;
    for (int64_t i = 0; i < y->n; i++) most = isfinite(y->v[i]) ? fmax(most, fabs(y->v[i])) : most;
    ref_value m = ref_new(RP_F64, y->size, y->ndim);
    for (int64_t i = 0; i < y->n; i++) m.v[i] = most;
    y->mag = m.v;
}

static void own_values(const sample *s, golden *g) {
    rp_tensor *out[SAMPLE_OUT];
    rp_scope scope = rp_scope_begin();
    g->refused = call(s, RP_F64, REF_CONTIGUOUS, out) != RP_OK;
    g->n_out = g->refused ? 0 : (int)sample_outs(s);
    (void)rp_error_take();
    for (int k = 0; k < g->n_out; k++) {
        int64_t size[RP_MAX_DIMS], ndim = (int64_t)rp_ndim(out[k]);
        for (int64_t d = 0; d < ndim; d++) size[d] = rp_size(out[k], d);
        g->out[k] = ref_new(rp_dtype_of(out[k]), size, (int)ndim);
        rp_tensor *wide = rp_to_dtype(out[k], RP_F64);
        if (rp_to_host(wide, g->out[k].v, (size_t)g->out[k].n * sizeof(double)) != RP_OK)
            fail_msg("%s %s: %s", s->op->name, s->text, rp_error_message());
    }
    (void)rp_scope_end(scope, NULL, 0);
}

static void run(const sample *s, rp_dtype d, ref_layout layout, golden *g) {
    char what[400];
    (void)snprintf(what, sizeof what, "%s(%s) %s %s", s->op->name, s->text, rp_dtype_name(d), layout_names[layout]);
    rp_tensor *out[SAMPLE_OUT];
    rp_scope scope = rp_scope_begin();
    rp_status status = call(s, d, layout, out);
    const bool is_part = s->op->flags & RP__OP_PRIVATE;
    if (g->refused) {
        if (status == RP_OK && !is_part) fail_msg("%s: PyTorch refuses what is accepted", what);
        (void)rp_error_take();
        (void)rp_scope_end(scope, NULL, 0);
        return;
    }
    /* No promise for other types: float64 alone, a part of other ops; a view of this layout may not exist. */
    if (status != RP_OK &&
        (!g->known || is_part ||
         (s->op->schema.out_alias[0] && !s->op->schema.out_written[0] && layout != REF_CONTIGUOUS))) {
        (void)rp_error_take();
        (void)rp_scope_end(scope, NULL, 0);
        return;
    }
    if (status != RP_OK) fail_msg("%s: %s", what, rp_error_message());
    if (g->n_out != (int)sample_outs(s)) fail_msg("%s: %d results, not %zu", what, g->n_out, sample_outs(s));
    for (int k = 0; k < g->n_out; k++) {
        ref_value want = g->out[k];
        if (!g->known || own_types(s)) {
            want.dtype = rp_dtype_of(out[k]);
            for (int64_t i = 0; i < want.n; i++) want.v[i] = ref_round(want.dtype, want.v[i]);
        }
        with_magnitudes(s, &want);
        ref_case c = {.ulps = s->row->ulps > 0 ? s->row->ulps : 16, .narrow = s->row->narrow};
        c.exact = !ref_is_float(want.dtype);
        c.factors = s->row->flags & SAMPLE_TENSOR_CORES &&
                    (rp_default_device().type == RP_DEVICE_CUDA ? want.dtype == RP_F16 || want.dtype == RP_BF16
                                                                : want.dtype == RP_BF16 && rp__dots_here());
        ref_compare(what, out[k], &want, &c);
    }
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static bool swept(const sample *s) {
    for (int k = 0; k < s->n_in; k++)
        if (s->in[k].dtype == RP_DTYPE_NONE && s->place[k] >= 0) return true;
    return false;
}

int sample_sweep(rp_device device, sample_wants *wants) {
    rp_device before = rp_default_device();
    unsigned shard, shards;
    int calls = 0;
    ref_shard(&shard, &shards);
    assert_int_equal(rp_set_default_device(device), RP_OK);
    for (size_t i = 0; i < sample_count(); i++) {
        const sample *s = sample_at(i);
        if (i % shards != shard || sample_is_random(s)) continue;
        for (int t = 0; t < SAMPLE_TYPES; t++) {
            if (t && !swept(s)) break;
            for (int layout = 0; layout < REF_LAYOUTS; layout++) {
                /* repeated values are others */
                if (layout == REF_EXPANDED || (wants && !wants(s, ref_types[t], (ref_layout)layout))) continue;
                golden g;
                expected(s, ref_types[t], &g);
                if (!g.known) own_values(s, &g);
                if (g.known || !g.refused) run(s, ref_types[t], (ref_layout)layout, &g);
                ref_reset();
                calls++;
            }
        }
    }
    assert_int_equal(rp_set_default_device(before), RP_OK);
    return calls;
}

/* ---- for scripts/golden.py */

static void print_number(double v) {
    if (isnan(v))
        printf(" nan");
    else if (v == trunc(v) && fabs(v) < 1e15)
        printf(signbit(v) && v == 0 ? " -0.0" : " %.0f", v);
    else
        printf(" %.17g", v);
}

static void print_operand(const sample *s, rp_dtype d, int place) {
    int k = 0;
    while (k < s->n_in && s->place[k] != place) k++;
    if (k == s->n_in) {
        printf("none\n");
        return;
    }
    const sample_tensor *t = &s->in[k];
    ref_value v = sample_values(t, d, SAMPLE_N, (unsigned)k);
    printf("%s %s %d", t->written ? "written" : t->constant ? "constant" : "tensor", rp_dtype_name(v.dtype), v.ndim);
    for (int i = 0; i < v.ndim; i++) printf(" %lld", (long long)v.size[i]);
    for (int64_t i = 0; i < v.n; i++) print_number(v.v[i]);
    printf("\n");
}

static void print_attr(const rp__param *p, const rp_attr *a) {
    if (p->optional && rp__attr_is_none(a)) {
        printf("none\n");
        return;
    }
    switch (a->kind) {
    case RP_ATTR_INT: printf("int %lld\n", (long long)a->v.i); break;
    case RP_ATTR_FLOAT: printf("float %.17g\n", a->v.f); break;
    case RP_ATTR_BOOL: printf("bool %d\n", a->v.b); break;
    case RP_ATTR_DTYPE: printf("dtype %s\n", rp_dtype_name(a->v.dtype)); break;
    case RP_ATTR_STRING: printf("str %s\n", a->v.string); break;
    case RP_ATTR_SCALAR:
        if (a->v.scalar.kind == RP_SCALAR_BOOL) printf("bool %d\n", a->v.scalar.v.b);
        if (a->v.scalar.kind == RP_SCALAR_I64) printf("int %lld\n", (long long)a->v.scalar.v.i);
        if (a->v.scalar.kind == RP_SCALAR_F64) printf("float %.17g\n", a->v.scalar.v.f);
        break;
    case RP_ATTR_INTS:
        printf("ints");
        for (size_t i = 0; i < a->n; i++) printf(" %lld", (long long)a->v.ints[i]);
        printf("\n");
        break;
    case RP_ATTR_FLOATS:
        printf("floats");
        for (size_t i = 0; i < a->n; i++) printf(" %.17g", a->v.floats[i]);
        printf("\n");
        break;
    default: fail_msg("%s: an attribute that golden.py cannot have", p->name);
    }
}

static void print_call(const sample *s, rp_dtype d) {
    rp_attr attrs[SAMPLE_ATTRS];
    int64_t ints[SAMPLE_ATTRS][SAMPLE_INTS];
    unsigned attr = 0;
    int place = 0;
    (void)sample_attrs(s, SAMPLE_N, attrs, ints);
    printf("call %s %s %s %s\n", s->row->op, s->op->name, rp_dtype_name(d), s->text);
    for (unsigned i = 0; i < s->op->schema.n_params; i++) {
        const rp__param *p = &s->op->schema.params[i];
        if (p->kind == RP__PARAM_ATTR) {
            if (*s->word[attr]) { /* others have PyTorch's defaults */
                printf("%s %s ", p->keyword ? "option" : "arg", p->name);
                print_attr(p, &attrs[attr]);
            }
            attr++;
        } else if (p->kind == RP__PARAM_TENSORS) {
            const int each = s->list[i];
            unsigned later = 0;
            for (unsigned k = i + 1; k < s->op->schema.n_params; k++)
                later += s->op->schema.params[k].kind == RP__PARAM_TENSORS;
            printf("arg %s list %d\n", p->name, each);
            for (int k = 0; k < each; k++, place++) {
                printf("item - ");
                print_operand(s, d, place);
            }
            place += s->apart && later;
        } else {
            printf("arg %s ", p->name);
            print_operand(s, d, place++);
        }
    }
    printf("end\n");
}

void sample_print_calls(const char *op) {
    for (size_t i = 0; i < sample_count(); i++) {
        const sample *s = sample_at(i);
        if ((op && strcmp(op, s->row->op) != 0) || s->op->functional_op || sample_is_random(s)) continue;
        for (int t = 0; t < SAMPLE_TYPES; t++) {
            print_call(s, ref_types[t]);
            ref_reset();
        }
    }
}
