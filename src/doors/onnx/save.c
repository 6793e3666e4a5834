/* rp_onnx_save: a graph as a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise_io.h>

#include "compile/passes.h"
#include "core/alloc.h"
#include "core/options.h"
#include "doors/lower.h"
#include "doors/onnx/onnx.h"
#include "io/file.h"
#include "trace/symbols.h"

enum { OUTSIDE = 1 << 20 };

typedef struct save {
    const char *path;
    rp_onnx_options options;
    rp_ir *ir;
    rp__onnx onnx;
    rp__put_val *map;
    void **copies; /* of captured tensors that do not lie row-major on the CPU */
    uint32_t *nodes;
} save;

static const char *given(const char *const *names, size_t n, size_t k, const char *stem, char own[64]) {
    if (names && k < n && names[k] && *names[k]) return names[k];
    (void)snprintf(own, 64, "%s%zu", stem, k);
    return own;
}

static const char *weight_name(const save *s, size_t k, char own[64]) {
    for (size_t i = 0; i < s->options.n_weights; i++) {
        const rp_tensor *t = s->options.weights[i].tensor, *mine = s->ir->captured[k];
        if (t && mine && t->storage == mine->storage && t->offset == mine->offset && s->options.weights[i].name)
            return s->options.weights[i].name;
    }
    (void)snprintf(own, 64, "weight%zu", k);
    return own;
}

static rp_status add_weight(save *s, const rp__ir_node *n) {
    const size_t k = n->captured_index;
    rp_tensor *t = s->ir->captured[k];
    char own[64];
    if (!t) return rp__fail(RP_ERROR_STATE, "rp_onnx_save: the graph was read from text and has no captured tensors");
    rp_dim numel = 1;
    for (unsigned d = 0; d < t->ndim; d++) numel *= t->size[d];
    const size_t bytes = (size_t)numel * rp__dtype_bytes((rp_dtype)t->dtype);
    const void *data = rp__tensor_data(t);
    if (t->device.type != RP_DEVICE_CPU || !rp__tensor_contiguous(t)) {
        s->copies[k] = rp__alloc(bytes + 1);
        if (!s->copies[k]) return RP__OOM("weights of a model");
        RP_TRY(rp_to_host(t, s->copies[k], bytes));
        data = s->copies[k];
    }
    const rp__put_type type = rp__put_type_from((rp_dtype)t->dtype, t->size, t->ndim);
    s->map[n->out[0]] = rp__onnx_weight_of(&s->onnx, weight_name(s, k, own), &type, data, bytes);
    return RP_OK;
}

static rp_status write_graph(save *s) {
    const rp_ir *ir = s->ir;
    rp__onnx *o = &s->onnx;
    rp__emitter *e = &o->emitter;
    char own[64], name[128];
    size_t n_nodes = 0,
           n_pure = SIZE_MAX; /* nodes before the first write: a model has none, what it would write is another value */
    o->arg = rp__alloc((ir->body.n_args + 1u) * sizeof *o->arg);
    if (!o->arg) return RP__OOM("a model");
    o->n_args = ir->body.n_args;
    for (uint32_t k = 0; k < ir->body.n_args; k++) {
        const rp__meta *m = &ir->values[ir->body.args[k]].meta;
        const rp__put_type t = rp__put_type_from(m->dtype, m->size, m->ndim);
        o->arg[k] = s->map[ir->body.args[k]] =
            rp__onnx_input(o, given(s->options.inputs, s->options.n_inputs, k, "in", own), &t);
    }
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        if (n->kind == RP__IR_CAPTURED) {
            RP_TRY(add_weight(s, n));
            continue;
        }
        if (n->kind == RP__IR_ASSIGN && n_nodes < n_pure) n_pure = n_nodes;
        s->nodes[n_nodes++] = ir->body.nodes[k];
    }
    if (n_pure > n_nodes) n_pure = n_nodes;
    uint32_t failed = RP__IR_NONE;
    bool good = rp__lower_nodes(e, ir, s->nodes, n_pure, s->map, &failed);
    e->writes = true; /* behind everything else: assignments, and results that are views of what they write */
    good = good && rp__lower_nodes(e, ir, s->nodes + n_pure, n_nodes - n_pure, s->map, &failed);
    if (!good && e->status == RP_ERROR_UNAVAILABLE) {
        const rp__ir_node *n = &ir->nodes[failed];
        return rp__fail(RP_ERROR_UNAVAILABLE, "rp_onnx_save: `%s` (%s) has no form in ONNX: %s",
                        n->kind == RP__IR_OP ? n->op->name : rp__ir_forms[n->kind].name,
                        n->site && *n->site ? n->site : "no call site", e->why);
    }
    for (uint32_t k = 0; k < ir->body.n_results; k++) {
        if (ir->body.results[k] == RP__IR_NONE) continue;
        const rp__put_val v = rp__lower_current(e, ir, s->map, ir->body.results[k]);
        if (v == RP__EMIT_NONE)
            return e->failed ? RP__OOM("a model")
                             : rp__fail(RP_ERROR_INTERNAL, "rp_onnx_save: nothing stands for result %u", k);
        rp__onnx_output(o, given(s->options.outputs, s->options.n_outputs, k, "out", own), v);
    }
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead || n->kind != RP__IR_ASSIGN) continue;
        const uint32_t from = ir->values[n->in[0]].node;
        const char *target = from == RP__IR_NONE ? given(s->options.inputs, s->options.n_inputs,
                                                         ir->values[n->in[0]].out_index, "in", own)
                                                 : weight_name(s, ir->nodes[from].captured_index, own);
        (void)snprintf(name, sizeof name, "new_%s", target);
        rp__onnx_output(o, name, s->map[n->in[0]]);
    }
    return e->failed ? RP__OOM("a model") : RP_OK;
}

static rp_status write_outside(const save *s, const char *path) {
    static const char zeros[RP__ONNX_ALIGNMENT];
    rp__writer w;
    RP_TRY(rp__writer_begin(&w, "rp_onnx_save", path));
    for (size_t k = 0; k < s->onnx.n_outside; k++) {
        const rp__onnx_weight *x = &s->onnx.outside[k];
        rp__writer_put(&w, x->data, x->bytes);
        const size_t over = x->bytes % RP__ONNX_ALIGNMENT;
        if (over) rp__writer_put(&w, zeros, RP__ONNX_ALIGNMENT - over);
    }
    return rp__writer_end(&w, true);
}

/* Weights first: a model never names a file that is not there. */
static rp_status write_files(save *s, const char *data_path) {
    rp__text model;
    rp__writer w;
    if (!rp__onnx_model(&s->onnx, s->ir->name, &model)) return RP__OOM("a model");
    rp_status status = RP_OK;
    if (model.length > INT32_MAX)
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT,
                          "rp_onnx_save: a model of %zu bytes; beyond 2 GiB weights must lie in a file of their own",
                          model.length);
    if (status == RP_OK && s->onnx.n_outside > 0) status = write_outside(s, data_path);
    if (status == RP_OK) status = rp__writer_begin(&w, "rp_onnx_save", s->path);
    if (status == RP_OK) {
        rp__writer_put(&w, model.data, model.length);
        status = rp__writer_end(&w, true);
    }
    rp__text_free(&model);
    return status;
}

static rp_status prepare(const rp_ir *given_ir, rp_ir **out) {
    rp_ir *functional;
    RP_TRY(rp__functionalise(given_ir, &functional));
    rp_status status = rp__simplify(functional, true, out);
    rp__ir_release(functional);
    return status;
}

static rp_status save_graph(save *s, const rp_ir *ir) {
    char data_path[4096];
    if (snprintf(data_path, sizeof data_path, "%s.data", s->path) >= (int)sizeof data_path)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_onnx_save: the path is too long");
    const char *slash = strrchr(data_path, '/');
    RP_TRY(prepare(ir, &s->ir));
    rp__symbols *outer = rp__symbols_enter(s->ir->symbols);
    const bool quiet = rp__symbols_quiet(true);
    rp__onnx_begin(&s->onnx, s->ir, s->options.opset);
    const size_t outside = s->options.outside_bytes;
    s->onnx.outside_bytes = outside == SIZE_MAX ? 0 : outside ? outside : OUTSIDE;
    s->onnx.file = slash ? slash + 1 : data_path;
    s->map = rp__lower_map(s->ir);
    s->copies = rp__calloc(s->ir->n_captured + 1, sizeof *s->copies);
    s->nodes = rp__alloc((s->ir->n_nodes + 1) * sizeof *s->nodes);
    rp_status status = s->map && s->copies && s->nodes ? write_graph(s) : RP__OOM("a model");
    if (status == RP_OK) status = write_files(s, data_path);
    rp__onnx_end(&s->onnx);
    (void)rp__symbols_quiet(quiet);
    (void)rp__symbols_enter(outer);
    return status;
}

rp_status rp_onnx_save_at(const char *site, const char *path, const rp_ir *ir, const rp_onnx_options *options) {
    RP__CALLED_FROM(site);
    save s = {.path = path};
    RP_TRY(rp__options_read("rp_onnx_save", options, sizeof s.options, &s.options));
    RP_TRY(rp__ir_usable(ir, "rp_onnx_save"));
    if (!path || !*path) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_onnx_save: the path is missing");
    if (s.options.opset && (s.options.opset < RP__ONNX_OPSET_LEAST || s.options.opset > RP__ONNX_OPSET_MOST))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_onnx_save: opset %d; there are %d to %d", s.options.opset,
                        RP__ONNX_OPSET_LEAST, RP__ONNX_OPSET_MOST);
    const rp_status status = save_graph(&s, ir);
    for (size_t k = 0; s.copies && k < s.ir->n_captured; k++) rp__free(s.copies[k]);
    rp__free(s.copies);
    rp__free(s.map);
    rp__free(s.nodes);
    rp__ir_release(s.ir);
    return status;
}
