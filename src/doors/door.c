/* What all doors share (door.h): the object that a graph becomes, and its runs. Knows no engine. */
#include "ops/private.h"

#include "doors/door.h"

#include <stdio.h>
#include <string.h>

#include "compile/pipeline.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "core/log.h"
#include "trace/ir_run.h"

typedef struct part {
    const rp__door_part *is;
    void *made;                        /* by the engine; NULL: fused kernels */
    _Atomic(rp__executable *) program; /* fused kernels, made when they are first run */
    atomic_bool failed;                /* the engine has failed: fused kernels from now on */
    uint64_t *versions;                /* of captured weights, per in */
} part;

typedef struct made {
    const rp__door *door;
    rp_ir *graph;
    bool strict, wait, no_graph, tune;
    rp_numbers numbers;
    rp_graph_layout layout;
    const rp__engine_options *options;
    rp__executable_random *random;
    size_t n_random;
    void (*tell)(void *ctx, const char *kind, rp__reason reason, const char *site, const char *text);
    void *tell_ctx;
    rp__door_part *parts;
    part *state;
    size_t n_parts;
    uint32_t n_slots, n_captured;
    uint32_t *result_slot; /* per result; RP__IR_NONE: absent */
    bool *result_whole;    /* per result: it is the root of its memory */
    rp__mutex build;
    rp__mutex running; /* engines run one call of a part at a time */
} made;

/* Of a part that the engine refused: no error. */
#define RP__RAN_NOT ((rp_status)-1)

static void tell(const made *m, const char *kind, rp__reason reason, const char *site, const char *text) {
    if (m->tell) m->tell(m->tell_ctx, kind, reason, site, text);
}

/* ---- results and arguments */

rp_tensor *rp__door_result(const rp__door_value *v, const rp_ir *ir) {
    const rp__ir_value_info *info = &ir->values[v->value];
    rp__device *d = rp__device_get(info->meta.device);
    if (!d) return rp__tensor_error();
    const rp__tensor_form form = {.bytes = (size_t)rp__numel(info->meta.size, info->meta.ndim) *
                                           rp__dtype_bytes(info->meta.dtype),
                                  .dtype = (uint8_t)info->meta.dtype,
                                  .ndim = info->meta.ndim,
                                  .size = info->meta.size,
                                  .stride = info->stride};
    return rp__tensor_of_form(d, rp__current_stream(d), &form);
}

/* Does t lie as the engine was told: the value's dims in memory order, without gaps? */
static bool lies_so(const rp__door_value *v, const rp_tensor *t) {
    if (!v->turned) return rp__tensor_contiguous(t);
    int64_t step = 1;
    for (unsigned k = v->type.ndim; k-- > 0;) {
        const unsigned d = (unsigned)v->order[k];
        if (t->size[d] != 1 && t->stride[d] != step) return t->size[d] == 0;
        step *= t->size[d];
    }
    return true;
}

/* A copy in the order that the engine was told; of the innermost scope. */
static rp_tensor *placed(const rp__door_value *v, rp_tensor *t) {
    rp_dim stride[RP_MAX_DIMS];
    int64_t step = 1;
    rp__device *d = rp__device_get(t->device);
    for (unsigned k = v->type.ndim; k-- > 0;) {
        stride[v->order[k]] = step;
        step *= t->size[v->order[k]];
    }
    const rp__tensor_form form = {.bytes = (size_t)step * rp__dtype_bytes((rp_dtype)t->dtype),
                                  .dtype = t->dtype,
                                  .ndim = t->ndim,
                                  .size = t->size,
                                  .stride = stride};
    rp_tensor *x = d ? rp__tensor_of_form(d, rp__current_stream(d), &form) : rp__tensor_error();
    return rp__tensor_is_error(x) ? x : rp_copy_(x, t);
}

/* ---- writing a part in the language of an emitter */

static rp__put_val logical(rp__emitter *e, const rp__door_value *v, rp__put_val x) {
    int64_t dims[RP_MAX_DIMS] = {0};
    if (!v->turned) return x;
    for (unsigned k = 0; k < v->type.ndim; k++) dims[v->order[k]] = k;
    return rp__put_permute(e, x, dims);
}

bool rp__door_write(rp__emitter *e, const rp__door_part *p, const rp__put_val *in, rp__put_val *out, uint32_t *failed) {
    rp__put_val *map = rp__lower_map(p->ir);
    *failed = RP__IR_NONE;
    if (!map) {
        rp__put_oom(e);
        return false;
    }
    for (uint32_t k = 0; k < p->n_in; k++) map[p->in[k].value] = logical(e, &p->in[k], in[k]);
    bool whole = rp__lower_nodes(e, p->ir, p->nodes, p->n_nodes, map, failed);
    for (uint32_t k = 0; k < p->n_out && whole; k++) {
        const rp__door_value *v = &p->out[k];
        const rp__put_val x = rp__lower_current(e, p->ir, map, v->value);
        out[k] = v->turned ? rp__put_permute(e, x, v->order) : x;
    }
    for (uint32_t k = 0; k < p->n_writes && e->writes && whole; k++) {
        const rp__door_value *v = &p->in[p->writes[k]];
        out[p->n_out + k] = v->turned ? rp__put_permute(e, map[v->value], v->order) : map[v->value];
    }
    rp__free(map);
    return whole && !e->failed;
}

bool rp__door_takes(rp__emitter *e, const rp_ir *ir, const rp__ir_node *n,
                    rp__put_val (*add)(rp__emitter *e, const rp__put_type *type)) {
    rp__put_val few[RP__FEW_OPERANDS + RP__MAX_OUTS] = {0}, *in = few;
    if (n->n_in + n->n_out > RP__FEW_OPERANDS + RP__MAX_OUTS) in = rp__alloc(((size_t)n->n_in + n->n_out) * sizeof *in);
    if (!in) return false;
    rp__put_val *out = in + n->n_in;
    for (uint32_t k = 0; k < n->n_in; k++) {
        in[k] = RP__EMIT_NONE;
        if (n->in[k] == RP__IR_NONE) continue;
        const rp__meta *m = &ir->values[n->in[k]].meta;
        const rp__put_type t = rp__put_type_from(m->dtype, m->size, m->ndim);
        in[k] = add(e, &t);
    }
    bool good;
    if (rp__lower_is_write(n)) {
        rp__put_val *written = rp__alloc((n->n_in + 1u) * sizeof *written);
        good = written && rp__lower_write(e, ir, n, in, written);
        rp__free(written);
    } else {
        good = rp__lower_node(e, ir, n, in, out);
    }
    if (in != few) rp__free(in);
    return good;
}

/* ---- making */

static const char *name_of(const rp__ir_node *n) {
    return n->kind == RP__IR_OP ? n->op->name : rp__ir_forms[n->kind].name;
}

static rp_status behind(const made *m, rp__reason reason, const rp__ir_node *n, const char *why) {
    char text[512];
    const char *site = n && n->site ? n->site : "";
    (void)snprintf(text, sizeof text, "%s%s%s", n ? name_of(n) : "", n ? ": " : "", why);
    tell(m, "skip", reason, site, text);
    if (!m->strict || m->door->shares) return RP_OK;
    if (rp_failed()) { /* the engine's own */
        (void)rp__fail_context("backend \"%s\" (strict)", m->door->name);
        return rp_error_status();
    }
    return rp__fail(RP_ERROR_UNAVAILABLE, "backend \"%s\" (strict): %s%s%s%s", m->door->name, text, *site ? " (" : "",
                    site, *site ? ")" : "");
}

static bool value_on_device(const rp__door *door, const rp_ir *ir, rp__ir_value v) {
    if (v == RP__IR_NONE) return true;
    const rp_device device = ir->values[v].meta.device;
    return door->runs_on ? door->runs_on(device) : device.type == door->device;
}

static bool on_device(const rp__door *door, const rp_ir *ir, const rp__ir_node *n) {
    bool good = true;
    for (uint32_t k = 0; k < n->n_in && good; k++) good = value_on_device(door, ir, n->in[k]);
    for (uint32_t k = 0; k < n->n_out && good; k++) good = value_on_device(door, ir, n->out[k]);
    return good;
}

/* Views that the engine cannot say make their readers the others'. */
static bool ways_taken(const made *m, const bool *views, const rp__ir_node *n) {
    for (uint32_t k = 0; k < n->n_in; k++) {
        for (rp__ir_value v = n->in[k]; v != RP__IR_NONE;) {
            const uint32_t at = m->graph->values[v].node;
            if (at == RP__IR_NONE || !rp__ir_is_view(&m->graph->nodes[at])) break;
            if (!views[at]) return false;
            v = m->graph->nodes[at].in[0];
        }
    }
    return true;
}

/* Is it the forward of a training step? Then tensors that need a gradient are about to be written. */
static bool is_differentiated(const rp_ir *ir) {
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_out && !n->dead && n->kind != RP__IR_CAPTURED; i++)
            if (n->out[i] != RP__IR_NONE && ir->values[n->out[i]].requires_grad) return true;
    }
    return false;
}

/* Nodes that write in place, for engines that do so by new values: memory must be known by one name only. */
static bool writes_plainly(const rp_ir *ir, const rp__ir_node *n) {
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (!rp__ir_writes(n, k) || n->in[k] == RP__IR_NONE) continue;
        const rp__ir_node *from = rp__ir_producer(ir, n->in[k]);
        if ((from && rp__ir_is_view(from)) || ir->values[n->in[k]].shared) return false;
    }
    return true;
}

static rp_status judge(const made *m, bool *takes) {
    const rp_ir *ir = m->graph;
    char version[64], where[512], why[512] = "";
    const bool here = m->door->open(version, where, why);
    if (!here) return behind(m, RP__REASON_ENGINE_ABSENT, NULL, why);
    if (m->door->inference && is_differentiated(ir))
        return m->door->shares ? RP_OK
                               : behind(m, RP__REASON_ENGINE_INFERENCE_ONLY, NULL, "the graph is one of training");
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const uint32_t at = ir->body.nodes[k];
        const rp__ir_node *n = &ir->nodes[at];
        if (n->dead || n->kind == RP__IR_CAPTURED || n->kind == RP__IR_CONST) continue;
        if (n->kind == RP__IR_ASSIGN && !m->door->writes) continue; /* the library's, and no fault of the engine */
        if (!on_device(m->door, ir, n)) {
            if (!m->door->shares) RP_TRY(behind(m, RP__REASON_ENGINE_DEVICE, n, "it runs elsewhere"));
            continue;
        }
        char lacks[256] = "";
        takes[at] = m->door->takes(m->options, ir, n, lacks) && ways_taken(m, takes, n);
        if (takes[at] && m->door->writes && !writes_plainly(ir, n)) {
            takes[at] = false;
            (void)snprintf(lacks, sizeof lacks, "it writes memory that has other names");
        }
        if (n->kind == RP__IR_ASSIGN) continue;
        if (!takes[at] && !rp__ir_is_view(n) && !m->door->shares)
            RP_TRY(behind(m, RP__REASON_ENGINE_LACKS_OP, n,
                          *lacks ? lacks : "it reads a view that the engine cannot say"));
    }
    return RP_OK;
}

/* May the bytes of a captured tensor be taken for what they are now? */
static bool is_still(const made *m, const rp__door_value *v) {
    const rp_tensor *t = v->tensor;
    if (!t || rp__storage_is_unseen(t->storage) ||
        (m->graph->values[v->value].requires_grad && is_differentiated(m->graph)))
        return false;
    for (size_t k = 0; k < m->graph->body.n_nodes; k++) {
        const rp__ir_node *n = &m->graph->nodes[m->graph->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_in && !n->dead; i++) {
            if (n->in[i] == RP__IR_NONE || !rp__ir_writes(n, i)) continue;
            const rp__ir_node *target = rp__ir_producer(m->graph, rp__ir_root(m->graph, n->in[i]));
            if (target && target->kind == RP__IR_CAPTURED &&
                m->graph->captured[target->captured_index]->storage == t->storage)
                return false;
        }
    }
    return lies_so(v, t);
}

static uint64_t version_of(const rp_tensor *t) {
    return atomic_load_explicit(&t->storage->version, memory_order_acquire);
}

static rp_status build_part(made *m, part *p) {
    rp__door_part *is = (rp__door_part *)(uintptr_t)p->is;
    p->versions = rp__calloc(is->n_in + 1u, sizeof *p->versions);
    if (!p->versions) return RP__OOM("a part for an engine");
    for (uint32_t k = 0; k < is->n_in; k++)
        if (is->in[k].tensor) p->versions[k] = version_of(is->in[k].tensor);
    rp__error_state before;
    rp__error_save(&before);
    rp_status status = m->door->build(is, m->options, &p->made);
    if (status != RP_OK) {
        p->made = NULL;
        const rp_status strict = behind(m, RP__REASON_ENGINE_REFUSED, NULL, rp_error_message());
        if (strict == RP_OK) (void)rp_error_take();
        status = strict;
    }
    rp__error_restore(&before);
    return status;
}

static rp_status describe_results(made *m, const uint32_t *slot_of) {
    const rp__ir_block *body = &m->graph->body;
    m->result_slot = rp__calloc(body->n_results + 1u, sizeof *m->result_slot);
    m->result_whole = rp__calloc(body->n_results + 1u, sizeof *m->result_whole);
    if (!m->result_slot || !m->result_whole) return RP__OOM("compiled graph");
    for (uint32_t k = 0; k < body->n_results; k++) {
        const rp__ir_value v = body->results[k];
        m->result_slot[k] = RP__IR_NONE;
        if (v == RP__IR_NONE) continue;
        const rp__ir_value root = rp__ir_root(m->graph, v);
        m->result_whole[k] = root == v;
        m->result_slot[k] = slot_of[root];
        if (slot_of[root] == RP__IR_NONE)
            return rp__fail(RP_ERROR_UNAVAILABLE, "a result of the graph is a constant"); /* run node by node */
    }
    return RP_OK;
}

static rp_status begin_parts(made *m) {
    bool *takes = rp__calloc(m->graph->n_nodes + 1, sizeof *takes);
    uint32_t *slot_of = rp__calloc(m->graph->n_values + 1, sizeof *slot_of);
    rp_status status = takes && slot_of ? judge(m, takes) : RP__OOM("compiled graph");
    if (status == RP_OK) status = rp__door_parts(m->graph, takes, &m->parts, &m->n_parts, &m->n_slots, slot_of);
    if (status == RP_OK) status = describe_results(m, slot_of);
    rp__free(takes);
    rp__free(slot_of);
    RP_TRY(status);
    m->state = rp__calloc(m->n_parts + 1, sizeof *m->state);
    if (!m->state) return RP__OOM("compiled graph");
    for (size_t k = 0; k < m->n_parts; k++) m->state[k].is = &m->parts[k];
    for (size_t k = 0; k < m->n_parts; k++) {
        char text[160];
        rp__door_part *p = &m->parts[k];
        for (uint32_t i = 0; i < p->n_in && p->engine; i++) p->in[i].weight = is_still(m, &p->in[i]);
        if (p->engine) RP_TRY(build_part(m, &m->state[k]));
        (void)snprintf(text, sizeof text, "part %zu of %zu: %zu nodes, %s", k + 1, m->n_parts, p->n_nodes,
                       m->state[k].made ? m->door->title : "fused kernels");
        tell(m, "engine", RP__REASON_NONE, NULL, text);
    }
    return RP_OK;
}

static void part_end(const made *m, part *p) {
    if (p->made) m->door->destroy(p->made);
    if (p->program) rp__executable_free(p->program);
    rp__free(p->versions);
}

static void destroy(void *object) {
    made *m = object;
    for (size_t k = 0; m->state && k < m->n_parts; k++) part_end(m, &m->state[k]);
    rp__door_parts_free(m->parts, m->n_parts);
    for (size_t k = 0; k < m->n_random; k++) rp__generator_drop(m->random[k].generator);
    rp__free(m->random);
    rp__free(m->state);
    rp__free(m->result_slot);
    rp__free(m->result_whole);
    rp__ir_release(m->graph);
    (void)pthread_mutex_destroy(&m->build);
    (void)pthread_mutex_destroy(&m->running);
    rp__free(m);
}

static rp_status compile(const rp__leaf *leaf, const rp__leaf_request *r, void **out) {
    made *m = rp__calloc(1, sizeof *m);
    if (!m) return RP__OOM("compiled graph");
    m->door = leaf->door;
    m->graph = rp__ir_retain(r->graph);
    m->strict = r->strict;
    m->wait = r->wait;
    m->no_graph = r->no_graph;
    m->numbers = r->numbers;
    m->tune = r->tune;
    m->layout = r->layout;
    m->options = r->options;
    m->tell = r->tell;
    m->tell_ctx = r->tell_ctx;
    (void)pthread_mutex_init(&m->build, NULL);
    (void)pthread_mutex_init(&m->running, NULL);
    rp_status status = RP_OK;
    if (r->n_random) {
        m->random = rp__calloc(r->n_random, sizeof *m->random);
        if (!m->random) status = RP__OOM("compiled graph");
        for (size_t k = 0; k < r->n_random && status == RP_OK; k++) {
            m->random[m->n_random++] = r->random[k];
            (void)rp__generator_retain(r->random[k].generator);
        }
    }
    if (status == RP_OK) status = begin_parts(m);
    if (status != RP_OK) {
        destroy(m);
        return status;
    }
    *out = m;
    return RP_OK;
}

/* ---- running */

/* Inputs of a part of fused kernels are its graph's arguments: captured tensors are in the graph. */
static uint32_t fused_inputs(const rp__door_part *p, rp_tensor *const *slots, rp_tensor **in) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < p->n_in; k++)
        if (!p->in[k].tensor) in[n++] = slots[p->in[k].slot];
    return n;
}

static rp_status fused_program(made *m, part *p, rp_tensor *const *in, uint32_t n, rp__executable **out) {
    *out = atomic_load_explicit(&p->program, memory_order_acquire);
    if (*out) return RP_OK;
    rp_status status = RP_OK;
    rp_ir *graph = NULL;
    rp__lock(&m->build);
    *out = p->program;
    if (!*out) {
        rp__error_state before;
        rp__error_save(&before);
        const rp__executable_options options = {.no_graph = m->no_graph,
                                                .wait = m->wait,
                                                .numbers = m->numbers,
                                                .tune = m->tune,
                                                .layout = m->layout,
                                                .random = m->n_random ? m->random : NULL,
                                                .n_random = m->n_random};
        status = rp__door_part_graph(p->is, &graph);
        if (status == RP_OK) status = rp__pipeline_program(graph, in, n, &options, out);
        rp__ir_release(graph);
        if (status == RP_OK) atomic_store_explicit(&p->program, *out, memory_order_release);
        rp__error_restore(&before);
    }
    rp__unlock(&m->build);
    return status;
}

static rp_status run_fused(made *m, part *p, rp_tensor **slots, const rp__executable_random *draws, size_t n_draws) {
    const rp__door_part *is = p->is;
    rp_tensor *few[2 * RP__FEW_OPERANDS], **in = few;
    if (is->n_in + is->n_out > 2 * RP__FEW_OPERANDS) in = rp__calloc((size_t)is->n_in + is->n_out, sizeof *in);
    if (!in) return RP__OOM("a part of a compiled graph");
    rp_tensor **out = in + is->n_in;
    const uint32_t n = fused_inputs(is, slots, in);
    rp__executable *program;
    rp_status status = fused_program(m, p, in, n, &program);
    if (status == RP_OK) status = rp__executable_run(program, in, n, out, is->n_out, draws, n_draws, NULL);
    for (uint32_t k = 0; k < is->n_out && status == RP_OK; k++) slots[is->out[k].slot] = out[k];
    if (in != few) rp__free(in);
    return status;
}

/* Under the lock: a weight was written since the part was built, which is built again with that weight as an input. */
static rp_status refresh(made *m, part *p) {
    rp__door_part *is = (rp__door_part *)(uintptr_t)p->is;
    bool stale = false;
    for (uint32_t k = 0; k < is->n_in; k++) {
        if (!is->in[k].weight || version_of(is->in[k].tensor) == p->versions[k]) continue;
        is->in[k].weight = false;
        stale = true;
    }
    if (!stale) return RP_OK;
    m->door->destroy(p->made);
    p->made = NULL;
    rp__free(p->versions);
    p->versions = NULL;
    tell(m, "instance", RP__REASON_WEIGHT_WRITTEN, NULL, rp__reason_text(RP__REASON_WEIGHT_WRITTEN));
    return build_part(m, p);
}

static rp_status run_locked(made *m, part *p, rp_tensor *const *slots, rp_tensor **in, rp_tensor **out) {
    const rp__door_part *is = p->is;
    RP_TRY(refresh(m, p));
    if (!p->made) return RP__RAN_NOT;
    for (uint32_t k = 0; k < is->n_in; k++) {
        const rp__door_value *v = &is->in[k];
        in[k] = v->weight ? NULL : slots[v->slot];
        if (!in[k] || RP__LIKELY(lies_so(v, in[k]))) continue;
        tell(m, "copy", RP__REASON_ENGINE_COPY, NULL, rp__reason_text(RP__REASON_ENGINE_COPY));
        in[k] = placed(v, in[k]);
        if (rp__tensor_is_error(in[k])) return rp_error_status();
    }
    for (uint32_t k = 0; k < is->n_out; k++) out[k] = NULL;
    rp_status status = m->door->run(p->made, in, out);
    for (uint32_t k = 0; k < is->n_writes && m->door->writes && status == RP_OK; k++) {
        rp_tensor *t = slots[is->in[is->writes[k]].slot];
        if (in[is->writes[k]] == t)
            rp__storage_written(t->storage, "compiled function", NULL);
        else if (rp__tensor_is_error(rp_copy_(t, in[is->writes[k]])))
            status = RP__DOOR_SPOILT;
    }
    return status;
}

static rp_status run_engine(made *m, part *p, rp_tensor **slots) {
    const rp__door_part *is = p->is;
    rp_tensor *few[2 * RP__FEW_OPERANDS], **in = few;
    if (is->n_in + is->n_out > 2 * RP__FEW_OPERANDS) in = rp__calloc((size_t)is->n_in + is->n_out, sizeof *in);
    if (!in) return RP__OOM("a part of a compiled graph");
    rp_tensor **out = in + is->n_in;
    rp__lock(&m->running);
    rp_status status = run_locked(m, p, slots, in, out);
    rp__unlock(&m->running);
    for (uint32_t k = 0; k < is->n_out && status == RP_OK; k++) slots[is->out[k].slot] = out[k];
    if (in != few) rp__free(in);
    return status;
}

/* The engine's failure is told once; from then on the part is fused kernels. */
static rp_status engine_failed(made *m, part *p) {
    const rp_status strict = behind(m, RP__REASON_ENGINE_FAILED, NULL, rp_error_message());
    if (strict != RP_OK) return strict;
    (void)rp_error_take();
    atomic_store_explicit(&p->failed, true, memory_order_release);
    return RP_OK;
}

static rp_status run_part(made *m, part *p, rp_tensor **slots, const rp__executable_random *draws, size_t n_draws) {
    if (p->is->engine && !atomic_load_explicit(&p->failed, memory_order_acquire)) {
        const rp_status status = run_engine(m, p, slots);
        if (RP__LIKELY(status == RP_OK)) return RP_OK;
        if (status == RP__DOOR_SPOILT) {
            (void)rp__fail_context("backend \"%s\", of memory that it was about to write", m->door->name);
            return rp_error_status();
        }
        if (status == RP__DOOR_EARLIER) return rp_error_status();
        if (status == RP__RAN_NOT)
            atomic_store_explicit(&p->failed, true, memory_order_release);
        else if (status != RP__DOOR_NOT_NOW)
            RP_TRY(engine_failed(m, p));
    }
    return run_fused(m, p, slots, draws, n_draws);
}

static rp_tensor *result(const made *m, uint32_t k, rp_tensor *const *slots) {
    if (m->result_slot[k] == RP__IR_NONE) return NULL;
    const uint32_t slot = m->result_slot[k];
    rp_tensor *t = slots[slot];
    if (m->result_whole[k]) return slot < m->graph->body.n_args + m->graph->n_captured ? rp__tensor_enter_scope(t) : t;
    const rp__ir_value_info *info = &m->graph->values[m->graph->body.results[k]];
    return rp__tensor_view(t, info->meta.size, info->stride, info->meta.ndim, info->offset);
}

static rp_status run(void *object, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                     const rp__executable_random *draws, size_t n_draws) {
    made *m = object;
    enum { FEW = 64 };
    rp_tensor *few[FEW], **slots = few;
    if (n_in != m->graph->body.n_args || n_out != m->graph->body.n_results)
        return rp__fail(RP_ERROR_INTERNAL, "a graph of %u arguments and %u results was run with %zu and %zu",
                        m->graph->body.n_args, m->graph->body.n_results, n_in, n_out);
    if (m->n_slots > FEW) slots = rp__calloc(m->n_slots, sizeof *slots);
    if (!slots) return RP__OOM("a compiled graph");
    for (size_t k = 0; k < n_in; k++) slots[k] = in[k];
    for (size_t k = 0; k < m->graph->n_captured; k++) slots[n_in + k] = m->graph->captured[k];
    const bool failed = rp_failed();
    rp__error_state before; /* an older error of the thread is none of an engine's */
    if (failed) rp__error_save(&before);
    const rp_scope scope = rp__scope_begin();
    rp_status status = RP_OK;
    for (size_t k = 0; k < m->n_parts && status == RP_OK; k++)
        status = run_part(m, &m->state[k], slots, draws, n_draws);
    size_t n = 0;
    for (; n < n_out && status == RP_OK; n++) {
        out[n] = result(m, (uint32_t)n, slots);
        for (size_t i = 0; i < n && out[n]; i++)
            if (out[i] == out[n]) {
                out[n] = rp__tensor_enter_scope(out[n]);
                break;
            }
        if (out[n] && rp__tensor_is_error(out[n])) status = rp_error_status();
    }
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    if (failed) rp__error_restore(&before);
    if (slots != few) rp__free(slots);
    return status;
}

/* ---- what is here */

static void info(const rp__leaf *leaf, rp_backend_info *out) {
    const rp__door *door = leaf->door;
    out->available = door->open(out->version, out->where, out->why);
}

static rp_status check(const rp__leaf *leaf, const rp__engine_options *options) {
    const rp__door *door = leaf->door;
    for (size_t k = 0; k < options->n; k++) {
        bool known = false;
        char all[256] = "";
        for (const char *const *key = door->keys; key && *key; key++) {
            known = known || strcmp(*key, options->text[2 * k]) == 0;
            const size_t at = strlen(all);
            (void)snprintf(all + at, sizeof all - at, "%s%s", at ? ", " : "", *key);
        }
        if (!known)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "backend \"%s\" has no option \"%s\"; there are: %s", door->name,
                            options->text[2 * k], *all ? all : "none");
    }
    return door->check ? door->check(options) : RP_OK;
}

const rp__leaf_ops rp__door_leaf = {.compile = compile, .run = run, .destroy = destroy, .info = info, .check = check};
