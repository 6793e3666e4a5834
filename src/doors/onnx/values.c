/* Values of an ONNX model: names, inputs, outputs, weights, nodes, sizes that are calculated; and the model around them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "doors/onnx/onnx.h"
#include "doors/onnx/proto.h"
#include "trace/symbols.h"

/* Fields of ONNX's messages (onnx.proto). */
enum {
    MODEL_IR_VERSION = 1,
    MODEL_PRODUCER = 2,
    MODEL_PRODUCER_VERSION = 3,
    MODEL_GRAPH = 7,
    MODEL_OPSET = 8,
    OPSET_VERSION = 2,
    GRAPH_NODE = 1,
    GRAPH_NAME = 2,
    GRAPH_INITIALIZER = 5,
    GRAPH_INPUT = 11,
    GRAPH_OUTPUT = 12,
    NODE_INPUT = 1,
    NODE_OUTPUT = 2,
    NODE_NAME = 3,
    NODE_TYPE = 4,
    NODE_ATTRIBUTE = 5,
    NODE_DOC = 6,
    ATTR_NAME = 1,
    ATTR_F = 2,
    ATTR_I = 3,
    ATTR_S = 4,
    ATTR_GRAPH = 6,
    ATTR_INTS = 8,
    ATTR_TYPE = 20,
    TENSOR_DIMS = 1,
    TENSOR_TYPE = 2,
    TENSOR_NAME = 8,
    TENSOR_RAW = 9,
    TENSOR_EXTERNAL = 13,
    TENSOR_LOCATION = 14,
    ENTRY_KEY = 1,
    ENTRY_VALUE = 2,
    INFO_NAME = 1,
    INFO_TYPE = 2,
    TYPE_TENSOR = 1,
    TENSOR_ELEMENT = 1,
    TENSOR_SHAPE = 2,
    SHAPE_DIM = 1,
    DIM_VALUE = 1,
    DIM_NAME = 2
};
enum { KIND_FLOAT = 1, KIND_INT = 2, KIND_STRING = 3, KIND_GRAPH = 5, KIND_INTS = 7, LOCATION_OUTSIDE = 1 };

/* The version of the file format that came with an opset. */
static int ir_version(int opset) { return opset < 19 ? 8 : opset < 21 ? 9 : 10; }

void rp__onnx_begin(rp__onnx *o, const rp_ir *ir, int opset) {
    memset(o, 0, sizeof *o);
    rp__put_begin(&o->emitter, &rp__onnx_ops, ir);
    o->opset = opset ? opset : RP__ONNX_OPSET;
}

void rp__onnx_end(rp__onnx *o) {
    rp__put_end(&o->emitter);
    rp__text_free(&o->nodes);
    rp__text_free(&o->weights);
    rp__text_free(&o->inputs);
    rp__text_free(&o->outputs);
    rp__free(o->names);
    rp__free(o->symbol);
    rp__free(o->arg);
    rp__free(o->outside);
    rp__arena_free(&o->arena);
}

static void set_name(rp__onnx *o, rp__put_val v, const char *name) {
    const size_t before = o->names_capacity;
    if (!RP__GROW(&o->names, &o->names_capacity, (size_t)v + 1)) {
        rp__put_oom(&o->emitter);
        return;
    }
    for (size_t k = before; k < o->names_capacity; k++) o->names[k] = NULL;
    o->names[v] = rp__arena_copy(&o->arena, name, strlen(name) + 1);
    if (!o->names[v]) rp__put_oom(&o->emitter);
}

static const char *name_of(const rp__onnx *o, rp__put_val v, char own[32]) {
    if (v == RP__EMIT_NONE) return "";
    if (v < o->names_capacity && o->names[v]) return o->names[v];
    (void)snprintf(own, 32, "v%u", v);
    return own;
}

/* ---- attributes and nodes */

static void attr(rp__onnx_attrs *a, const char *name, int kind, rp__text *rest) {
    rp__text message = {0};
    rp__proto_string(&message, ATTR_NAME, name);
    if (rest->length) rp__text_write(&message, rest->data, rest->length);
    message.failed = message.failed || rest->failed;
    rp__text_free(rest);
    rp__proto_int(&message, ATTR_TYPE, kind);
    rp__proto_message(&a->fields, NODE_ATTRIBUTE, &message);
}

void rp__onnx_attr_int(rp__onnx_attrs *a, const char *name, int64_t value) {
    rp__text rest = {0};
    rp__proto_int(&rest, ATTR_I, value);
    attr(a, name, KIND_INT, &rest);
}
void rp__onnx_attr_float(rp__onnx_attrs *a, const char *name, double value) {
    rp__text rest = {0};
    rp__proto_float(&rest, ATTR_F, (float)value);
    attr(a, name, KIND_FLOAT, &rest);
}
void rp__onnx_attr_string(rp__onnx_attrs *a, const char *name, const char *value) {
    rp__text rest = {0};
    rp__proto_string(&rest, ATTR_S, value);
    attr(a, name, KIND_STRING, &rest);
}
void rp__onnx_attr_ints(rp__onnx_attrs *a, const char *name, const int64_t *values, size_t n) {
    rp__text rest = {0};
    for (size_t k = 0; k < n; k++) rp__proto_int(&rest, ATTR_INTS, values[k]);
    attr(a, name, KIND_INTS, &rest);
}

void rp__onnx_node(rp__onnx *o, const char *type, const rp__put_val *in, unsigned n_in, const rp__put_val *out,
                   unsigned n_out, rp__onnx_attrs *attrs) {
    rp__emitter *e = &o->emitter;
    rp__text node = {0};
    char own[32], name[96];
    bool missing = e->failed;
    for (unsigned k = 0; k < n_out; k++) missing = missing || (out[k] == RP__EMIT_NONE && k == 0);
    if (missing) {
        if (attrs) rp__text_free(&attrs->fields);
        return;
    }
    while (n_in > 0 && in[n_in - 1] == RP__EMIT_NONE) n_in--;
    for (unsigned k = 0; k < n_in; k++) rp__proto_string(&node, NODE_INPUT, name_of(o, in[k], own));
    for (unsigned k = 0; k < n_out; k++) rp__proto_string(&node, NODE_OUTPUT, name_of(o, out[k], own));
    if (e->node && e->node->kind == RP__IR_OP) {
        const long number = (long)(e->node - e->ir->nodes);
        (void)snprintf(name, sizeof name, "%s_%ld_%u", e->node->op->name, number, o->n_extra++);
        rp__proto_string(&node, NODE_NAME, name);
        if (e->node->site) rp__proto_string(&node, NODE_DOC, e->node->site);
    } else {
        (void)snprintf(name, sizeof name, "n%u", o->n_extra++);
        rp__proto_string(&node, NODE_NAME, name);
    }
    rp__proto_string(&node, NODE_TYPE, type);
    if (attrs) {
        if (attrs->fields.length) rp__text_write(&node, attrs->fields.data, attrs->fields.length);
        node.failed = node.failed || attrs->fields.failed;
        rp__text_free(&attrs->fields);
    }
    rp__proto_message(&o->nodes, GRAPH_NODE, &node);
    if (o->nodes.failed) rp__put_oom(e);
}

/* ---- inputs, outputs, weights */

static void info(rp__onnx *o, rp__text *to, unsigned field, const char *name, const rp__put_type *t) {
    rp__text message = {0}, type = {0}, tensor = {0}, shape = {0};
    for (unsigned d = 0; d < t->ndim; d++) {
        rp__text dim = {0};
        if (rp__dim_is_symbol(t->size[d])) {
            rp__text words = {0};
            rp__symbols_text(o->emitter.ir->symbols, t->size[d], false, &words);
            rp__proto_string(&dim, DIM_NAME, words.data ? words.data : "s");
            rp__text_free(&words);
        } else {
            rp__proto_int(&dim, DIM_VALUE, t->size[d]);
        }
        rp__proto_message(&shape, SHAPE_DIM, &dim);
    }
    rp__proto_int(&tensor, TENSOR_ELEMENT, rp__dtypes[t->dtype].onnx);
    rp__proto_message(&tensor, TENSOR_SHAPE, &shape);
    rp__proto_message(&type, TYPE_TENSOR, &tensor);
    rp__proto_string(&message, INFO_NAME, name);
    rp__proto_message(&message, INFO_TYPE, &type);
    rp__proto_message(to, field, &message);
    if (to->failed) rp__put_oom(&o->emitter);
}

rp__put_val rp__onnx_input(rp__onnx *o, const char *name, const rp__put_type *type) {
    const rp__put_val v = rp__put_new(&o->emitter, type);
    if (v == RP__EMIT_NONE) return v;
    set_name(o, v, name);
    info(o, &o->inputs, GRAPH_INPUT, name, type);
    return v;
}

/* An output is a value of its own: the same one may be given twice, or be an input. */
void rp__onnx_output(rp__onnx *o, const char *name, rp__put_val v) {
    if (o->emitter.failed) return;
    const rp__put_type t = o->emitter.types[v];
    const rp__put_val out = rp__put_new(&o->emitter, &t);
    if (out == RP__EMIT_NONE) return;
    set_name(o, out, name);
    rp__onnx_node(o, "Identity", &v, 1, &out, 1, NULL);
    info(o, &o->outputs, GRAPH_OUTPUT, name, &t);
}

/* ---- graphs within nodes */

static const char *inner_name(rp__onnx *o, char name[32]) {
    (void)snprintf(name, 32, "b%u", o->n_extra++);
    return name;
}

rp__put_val rp__onnx_inner_input(rp__onnx *o, const rp__put_type *type) {
    char name[32];
    return rp__onnx_input(o, inner_name(o, name), type);
}

void rp__onnx_inner_output(rp__onnx *o, rp__put_val v) {
    char name[32];
    rp__onnx_output(o, inner_name(o, name), v);
}

void rp__onnx_inner_begin(rp__onnx *o, rp__onnx_outer *outer) {
    *outer = (rp__onnx_outer){.nodes = o->nodes, .inputs = o->inputs, .outputs = o->outputs};
    o->nodes = o->inputs = o->outputs = (rp__text){0};
    if (!o->symbol) return; /* sizes that are calculated within are not there outside */
    outer->symbol = rp__alloc((o->n_symbols + 1) * sizeof *o->symbol);
    if (outer->symbol)
        memcpy(outer->symbol, o->symbol, o->n_symbols * sizeof *o->symbol);
    else
        rp__put_oom(&o->emitter);
}

void rp__onnx_inner_end(rp__onnx *o, rp__onnx_outer *outer, rp__onnx_attrs *attrs, const char *name) {
    rp__text graph = {0}, rest = {0};
    rp__text *const parts[] = {&o->nodes, &o->inputs, &o->outputs};
    rp__proto_string(&graph, GRAPH_NAME, name);
    for (unsigned k = 0; k < 3; k++) {
        if (parts[k]->length) rp__text_write(&graph, parts[k]->data, parts[k]->length);
        graph.failed = graph.failed || parts[k]->failed;
        rp__text_free(parts[k]);
    }
    rp__proto_message(&rest, ATTR_GRAPH, &graph);
    attr(attrs, name, KIND_GRAPH, &rest);
    o->nodes = outer->nodes;
    o->inputs = outer->inputs;
    o->outputs = outer->outputs;
    rp__free(o->symbol);
    o->symbol = outer->symbol;
}

static void entry(rp__text *t, const char *key, const char *value) {
    rp__text message = {0};
    rp__proto_string(&message, ENTRY_KEY, key);
    rp__proto_string(&message, ENTRY_VALUE, value);
    rp__proto_message(t, TENSOR_EXTERNAL, &message);
}

static void number_entry(rp__text *t, const char *key, int64_t value) {
    char text[24];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    entry(t, key, text);
}

static void weight(rp__onnx *o, const char *name, const rp__put_type *type, const void *data, size_t bytes) {
    rp__text tensor = {0};
    for (unsigned d = 0; d < type->ndim; d++) rp__proto_int(&tensor, TENSOR_DIMS, type->size[d]);
    rp__proto_int(&tensor, TENSOR_TYPE, rp__dtypes[type->dtype].onnx);
    rp__proto_string(&tensor, TENSOR_NAME, name);
    if (o->outside_bytes && bytes >= o->outside_bytes) {
        if (!RP__GROW(&o->outside, &o->outside_capacity, o->n_outside + 1)) {
            rp__text_free(&tensor);
            rp__put_oom(&o->emitter);
            return;
        }
        o->outside[o->n_outside++] = (rp__onnx_weight){name, data, bytes};
        entry(&tensor, "location", o->file);
        number_entry(&tensor, "offset", o->outside_length);
        number_entry(&tensor, "length", (int64_t)bytes);
        rp__proto_int(&tensor, TENSOR_LOCATION, LOCATION_OUTSIDE);
        o->outside_length += (int64_t)((bytes + RP__ONNX_ALIGNMENT - 1) / RP__ONNX_ALIGNMENT * RP__ONNX_ALIGNMENT);
    } else {
        rp__proto_bytes(&tensor, TENSOR_RAW, data, bytes);
    }
    rp__proto_message(&o->weights, GRAPH_INITIALIZER, &tensor);
    if (o->weights.failed) rp__put_oom(&o->emitter);
}

rp__put_val rp__onnx_weight_of(rp__onnx *o, const char *name, const rp__put_type *type, const void *data,
                               size_t bytes) {
    const rp__put_val v = rp__put_new(&o->emitter, type);
    if (v == RP__EMIT_NONE) return v;
    set_name(o, v, name);
    if (!o->emitter.failed) weight(o, o->names[v], type, data, bytes);
    return v;
}

void rp__onnx_constant(rp__onnx *o, rp__put_val v, const void *data, size_t bytes) {
    char own[32];
    const size_t outside = o->outside_bytes;
    if (o->emitter.failed) return;
    o->outside_bytes = 0; /* the data does not stay */
    weight(o, name_of(o, v, own), &o->emitter.types[v], data, bytes);
    o->outside_bytes = outside;
}

/* ---- sizes */

static rp__put_val small(rp__onnx *o, int64_t value) {
    const rp__put_type t = {.dtype = RP_I64, .ndim = 1, .size = {1}};
    return rp__put_table(&o->emitter, &t, &value, sizeof value);
}

static rp__put_val symbol(rp__onnx *o, size_t k) {
    rp__emitter *e = &o->emitter;
    const rp__symbols *s = e->ir->symbols;
    if (!o->symbol) {
        o->n_symbols = rp__symbols_count(s);
        o->symbol = rp__alloc((o->n_symbols + 1) * sizeof *o->symbol);
        if (!o->symbol) {
            rp__put_oom(e);
            return RP__EMIT_NONE;
        }
        for (size_t i = 0; i < o->n_symbols; i++) o->symbol[i] = RP__EMIT_NONE;
    }
    if (k >= o->n_symbols || o->symbol[k] != RP__EMIT_NONE) return k < o->n_symbols ? o->symbol[k] : RP__EMIT_NONE;
    const rp__symbol *from = rp__symbols_at(s, k);
    if (from->is_stride || from->input >= o->n_args || o->arg[from->input] == RP__EMIT_NONE) {
        rp__put_lacks(e, "a size that is no argument's");
        return RP__EMIT_NONE;
    }
    const rp__put_type t = {.dtype = RP_I64, .ndim = 1, .size = {1}};
    rp__onnx_attrs a = {{0}};
    rp__onnx_attr_int(&a, "start", from->dim);
    rp__onnx_attr_int(&a, "end", from->dim + 1);
    o->symbol[k] = rp__put_new(e, &t);
    rp__onnx_node(o, "Shape", &o->arg[from->input], 1, &o->symbol[k], 1, &a);
    return o->symbol[k];
}

/* A size as it is printed: sums of products of numbers, symbols, brackets and functions of two. */
typedef struct reader {
    rp__onnx *o;
    const char *at;
} reader;

static rp__put_val two(rp__onnx *o, const char *type, rp__put_val a, rp__put_val b) {
    const rp__put_type t = {.dtype = RP_I64, .ndim = 1, .size = {1}};
    if (a == RP__EMIT_NONE || b == RP__EMIT_NONE) return RP__EMIT_NONE;
    const rp__put_val in[] = {a, b}, out = rp__put_new(&o->emitter, &t);
    rp__onnx_node(o, type, in, 2, &out, 1, NULL);
    return out;
}

static rp__put_val read_sum(reader *r);
static bool skip(reader *r, const char *word) {
    while (*r->at == ' ') r->at++;
    if (strncmp(r->at, word, strlen(word)) != 0) return false;
    r->at += strlen(word);
    return true;
}
static rp__put_val read_two(reader *r, const char *type) {
    const rp__put_val a = read_sum(r);
    (void)skip(r, ",");
    const rp__put_val b = read_sum(r);
    (void)skip(r, ")");
    return two(r->o, type, a, b);
}
static rp__put_val read_factor(reader *r) {
    char *end;
    if (skip(r, "-")) return two(r->o, "Mul", small(r->o, -1), read_factor(r));
    if (skip(r, "floordiv(")) return read_two(r, "Div"); /* nothing here is negative */
    if (skip(r, "mod(")) return read_two(r, "Mod");
    if (skip(r, "max(")) return read_two(r, "Max");
    if (skip(r, "min(")) return read_two(r, "Min");
    if (skip(r, "(")) {
        const rp__put_val v = read_sum(r);
        (void)skip(r, ")");
        return v;
    }
    const bool is_symbol = skip(r, "s");
    const long long n = strtoll(r->at, &end, 10);
    if (end == r->at) {
        rp__put_lacks(&r->o->emitter, "a size that cannot be calculated");
        return RP__EMIT_NONE;
    }
    r->at = end;
    return is_symbol ? symbol(r->o, (size_t)n) : small(r->o, n);
}
static rp__put_val read_product(reader *r) {
    rp__put_val v = read_factor(r);
    while (!r->o->emitter.failed && skip(r, "*")) v = two(r->o, "Mul", v, read_factor(r));
    return v;
}
static rp__put_val read_sum(reader *r) {
    rp__put_val v = read_product(r);
    while (!r->o->emitter.failed) {
        if (skip(r, "+"))
            v = two(r->o, "Add", v, read_product(r));
        else if (skip(r, "-"))
            v = two(r->o, "Sub", v, read_product(r));
        else
            break;
    }
    return v;
}

static rp__put_val one_size(rp__onnx *o, rp_dim d) {
    if (!rp__dim_is_symbol(d)) return small(o, d);
    rp__text text = {0};
    rp__symbols_text(o->emitter.ir->symbols, d, false, &text);
    reader r = {o, text.data ? text.data : ""};
    const rp__put_val v = read_sum(&r);
    rp__text_free(&text);
    return v;
}

rp__put_val rp__onnx_sizes(rp__onnx *o, const rp_dim *size, unsigned n) {
    rp__emitter *e = &o->emitter;
    const rp__put_type t = {.dtype = RP_I64, .ndim = 1, .size = {n}};
    bool known = true;
    for (unsigned d = 0; d < n; d++) known = known && !rp__dim_is_symbol(size[d]);
    if (known) return rp__put_table(e, &t, size, n * sizeof *size);
    rp__put_val parts[RP_MAX_DIMS];
    for (unsigned d = 0; d < n; d++) parts[d] = one_size(o, size[d]);
    if (e->failed) return RP__EMIT_NONE;
    if (n == 1) return parts[0];
    const rp__put_val out = rp__put_new(e, &t);
    rp__onnx_attrs a = {{0}};
    rp__onnx_attr_int(&a, "axis", 0);
    rp__onnx_node(o, "Concat", parts, n, &out, 1, &a);
    return out;
}

/* ---- the model */

bool rp__onnx_model(rp__onnx *o, const char *graph_name, rp__text *out) {
    rp__text opset = {0};
    rp__text *const parts[] = {&o->nodes, &o->weights, &o->inputs, &o->outputs};
    rp__text name = {0};
    rp__proto_string(&name, GRAPH_NAME, graph_name && *graph_name ? graph_name : "graph");
    size_t bytes = name.length;
    for (unsigned k = 0; k < 4; k++) bytes += parts[k]->length;
    memset(out, 0, sizeof *out);
    rp__proto_int(out, MODEL_IR_VERSION, ir_version(o->opset));
    rp__proto_string(out, MODEL_PRODUCER, "reprise");
    char version[32];
    (void)snprintf(version, sizeof version, "%d.%d.%d", RP_VERSION_MAJOR, RP_VERSION_MINOR, RP_VERSION_PATCH);
    rp__proto_string(out, MODEL_PRODUCER_VERSION, version);
    rp__proto_int(&opset, OPSET_VERSION, o->opset);
    rp__proto_message(out, MODEL_OPSET, &opset);
    rp__proto_head(out, MODEL_GRAPH, bytes);
    if (name.length) rp__text_write(out, name.data, name.length);
    bool failed = name.failed;
    for (unsigned k = 0; k < 4; k++) {
        if (parts[k]->length) rp__text_write(out, parts[k]->data, parts[k]->length);
        failed = failed || parts[k]->failed;
    }
    rp__text_free(&name);
    if (!failed && !out->failed) return true;
    rp__text_free(out);
    return false;
}
