/* Recording (trace.h). One rp__trace a running trace; the thread's innermost one is `current`. Everything that a trace changes
   outside (layers, grad mode, autocast, table of symbols, versions, .grad) it puts back. Running a recorded graph is ir_run.c. */
#include "trace/trace.h"

#include "ops/private.h"
#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "core/alloc.h"
#include "core/fork.h"
#include "core/log.h"
#include "ops/autocast.h"
#include "ops/execute.h"
#include "ops/format.h"
#include "ops/grad.h"
#include "reprise_ir.h"
#include "trace/ir_run.h"
#include "trace/trace_parts.h"

typedef rp__trace_outside outside;
typedef rp__trace_memory memory;
typedef rp__trace_watch watch;
typedef rp__trace_counter counter;

static RP__TLS_FAST rp__trace *current;

rp__trace *rp__trace_current(void) { return current && !current->busy ? current : NULL; }
bool rp__trace_closes(const rp__trace *t) { return t->request->close; }
bool rp__trace_derived(const rp__trace *t) { return t->request->derived; }
rp__trace_mode rp__trace_mode_of(const rp__trace *t) { return t->mode; }
rp_status rp__trace_spoil(rp__trace *t, rp_status status) {
    if (status != RP_OK && t->spoilt == RP_OK) t->spoilt = status;
    return status;
}
void rp__trace_refuse(rp__trace *t, const char *reason, const char *site) {
    if (t->result->reason) return;
    t->result->reason = reason;
    t->result->site = site;
}
rp_ir *rp__trace_ir(rp__trace *t) { return t->ir; }
bool rp__trace_pending(const rp_tensor *t) { return t->traced && t->traced->trace && !t->storage->data; }

bool rp__trace_made(const rp__trace *t, const rp_tensor *x) {
    size_t number = rp__trace_index(&t->by_storage, rp__trace_key_of_id(x->storage->id));
    return number != SIZE_MAX && t->memory[number].first != RP__IR_NONE;
}

static bool map_put(rp__map *m, rp__hash key, size_t index) {
    return rp__map_put(m, key, (void *)(uintptr_t)(index + 1));
}

static bool is_outside(const memory *m) { return m->first == RP__IR_NONE && m->storage; }

/* Does memory that the graph knows lie under s as well, as another storage? */
static bool meets_outside(const rp__trace *t, const rp__storage *s) {
    for (size_t k = 0; k < t->n_memory; k++)
        if (is_outside(&t->memory[k]) && rp__storage_meets(s, t->memory[k].storage)) return true;
    return false;
}

/* Says of arguments and captured tensors whether others lie in the same bytes (rp__ir_value_info.shared). */
static void mark_shared(const rp__trace *t) {
    rp_ir *ir = t->ir;
    bool wrapped = false;
    for (size_t k = 0; k < t->n_memory && !wrapped; k++)
        wrapped = is_outside(&t->memory[k]) && t->memory[k].storage->foreign;
    for (uint32_t k = 0; k < ir->body.n_args && wrapped; k++) {
        rp__ir_value_info *info = &ir->values[ir->body.args[k]];
        info->shared = is_outside(&t->memory[info->storage]) && meets_outside(t, t->memory[info->storage].storage);
    }
    for (size_t k = 0; k < ir->body.n_nodes && wrapped; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->kind != RP__IR_CAPTURED) continue;
        rp__ir_value_info *info = &ir->values[n->out[0]];
        info->shared = is_outside(&t->memory[info->storage]) && meets_outside(t, t->memory[info->storage].storage);
    }
}

/* ---- handles and their values */

static void forget(struct rp__trace_value *v) {
    if (v->trace) {
        if (v->previous)
            v->previous->next = v->next;
        else
            v->trace->values = v->next;
        if (v->next) v->next->previous = v->previous;
    }
    rp__free(v);
}

static rp_status set_value(rp__trace *t, rp_tensor *tensor, rp__ir_value value) {
    if (!tensor->traced) {
        struct rp__trace_value *v = rp__calloc(1, sizeof *v);
        if (!v) return RP__OOM("trace");
        v->trace = t;
        v->tensor = tensor;
        v->next = t->values;
        if (v->next) v->next->previous = v;
        t->values = v;
        tensor->traced = v;
    }
    tensor->traced->value = value;
    return RP_OK;
}

/* Number of a storage in the graph. `first`: the value that covers it, for pending memory. */
static rp_status storage_number(rp__trace *t, rp__storage *s, rp_dim base, rp__ir_value first, uint32_t *out) {
    size_t known = rp__trace_index(&t->by_storage, rp__trace_key_of_id(s->id));
    if (known != SIZE_MAX) {
        *out = (uint32_t)known;
        return RP_OK;
    }
    uint32_t n = t->ir->n_storages;
    if (!RP__GROW(&t->memory, &t->memory_capacity, n + 1u) || !map_put(&t->by_storage, rp__trace_key_of_id(s->id), n))
        return RP__OOM("trace");
    for (; t->n_memory < n; t->n_memory++) t->memory[t->n_memory] = (memory){.first = RP__IR_NONE, .last = RP__IR_NONE};
    t->n_memory = n + 1u;
    t->memory[n] = (memory){.storage = rp__storage_retain(s), .base = base, .first = first, .last = RP__IR_NONE};
    t->ir->n_storages++;
    *out = n;
    return RP_OK;
}

/* Gives value v the memory of handle x. */
static rp_status place(rp__trace *t, rp__ir_value v, const rp_tensor *x, bool pending) {
    uint32_t storage;
    t->ir->n_storages--; /* the one that rp__ir_add_value made up */
    RP_TRY(storage_number(t, x->storage, x->offset, pending ? v : RP__IR_NONE, &storage));
    if (!RP__GROW(&t->before, &t->before_capacity, v + 1u)) return RP__OOM("trace");
    t->before[v] = t->memory[storage].last;
    t->memory[storage].last = v;
    rp__ir_value_info *info = &t->ir->values[v];
    info->storage = storage;
    info->offset = rp__dim_apply(RP__DIM_SUB, x->offset, t->memory[storage].base);
    memcpy(info->stride, x->stride, x->ndim * sizeof *x->stride);
    return RP_OK;
}

static rp_status add_outside(rp__trace *t, rp_tensor *x, rp__ir_value v) {
    if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    if (!RP__GROW(&t->outside, &t->outside_capacity, t->n_outside + 1) ||
        !map_put(&t->by_handle, rp__trace_key(x), t->n_outside))
        return RP__OOM("trace");
    t->outside[t->n_outside++] = (outside){rp_retain(x), v, RP__IR_NONE, false};
    t->ir->values[v].requires_grad = rp__grad_needed(x);
    return place(t, v, x, false);
}

static rp_status add_operand(rp__trace *t, rp_tensor *x) {
    if (!RP__GROW(&t->operands, &t->operands_capacity, t->n_operands + 1)) return RP__OOM("trace");
    t->operands[t->n_operands++] = x;
    return RP_OK;
}

enum { CONST_BYTES = 4096 };

/* A tensor that the function made from host data: part of the graph. */
static bool is_constant(const rp__trace *t, const rp_tensor *x) {
    return t->mode != RP__TRACE_SEGMENTS && !x->storage->foreign && x->storage->data &&
           x->storage->bytes <= CONST_BYTES && !rp__grad_needed(x) && rp__tensor_contiguous(x) &&
           x->id >= t->first_id && rp__scope_holds(t->scope, x);
}

static rp__ir_value add_constant(rp__trace *t, const rp_tensor *x, const rp__meta *meta) {
    const size_t bytes = (size_t)rp__tensor_numel(x) * rp__dtype_bytes(meta->dtype);
    char elements[CONST_BYTES];
    const void *data = rp__tensor_data(x);
    if (x->device.type != RP_DEVICE_CPU && bytes) {
        rp__device *d = rp__device_get(x->device);
        if (!d || d->ops->copy_out(d, rp__current_stream(d), elements, data, bytes) != RP_OK) return RP__IR_NONE;
        data = elements;
    }
    return rp__ir_add_const(t->ir, &t->ir->body, meta, data, bytes, x->site);
}

static rp__ir_value resolve(rp__trace *t, rp_tensor *x) {
    if (x->traced && x->traced->trace == t) return x->traced->value;
    size_t known = rp__trace_index(&t->by_handle, rp__trace_key(x));
    if (known != SIZE_MAX) {
        t->outside[known].reached = true;
        return t->outside[known].value;
    }
    if (rp__trace_check_alive(x) != RP_OK) return RP__IR_NONE;
    bool close = t->request->close;
    if (x->traced && !close) {
        const rp__trace *of = t->around;
        while (of && of != x->traced->trace) of = of->around;
        (void)rp__fail(RP_ERROR_STATE, of ? "a trace uses a tensor that the trace around it has not computed"
                                          : "a tensor that another thread is tracing was used");
        return RP__IR_NONE;
    }
    rp__meta meta;
    rp__ir_meta_of(x, &meta);
    const char *site = x->site;
    rp__ir_value v;
    if (close || t->mode == RP__TRACE_SEGMENTS) {
        v = rp__ir_add_arg(t->ir, &t->ir->body, &meta, site);
        return add_outside(t, x, v) == RP_OK && add_operand(t, x) == RP_OK ? v : RP__IR_NONE;
    }
    size_t w = rp__trace_index(&t->by_entry, rp__trace_key(x));
    if (w != SIZE_MAX) {
        t->watches[w].input = t->ir->body.n_args;
        v = rp__ir_add_arg(t->ir, &t->ir->body, &meta, site);
        return add_outside(t, x, v) == RP_OK && add_operand(t, x) == RP_OK ? v : RP__IR_NONE;
    }
    if (is_constant(t, x))
        v = add_constant(t, x, &meta);
    else
        v = rp__ir_add_captured(t->ir, &t->ir->body, x, site);
    if (v == RP__IR_NONE || add_outside(t, x, v) != RP_OK) return RP__IR_NONE;
    if (t->mode != RP__TRACE_SEGMENTS && rp__grad_needed(x) && !rp_is_leaf(x) && rp__grad_recording() &&
        !t->result->reason) {
        t->result->reason = "captured-history";
        t->result->site = rp__site();
    }
    return v;
}

rp__ir_value rp__trace_resolve(rp__trace *t, rp_tensor *x) {
    const rp__ir_value v = resolve(t, x);
    /* What was entered by halves does not come right again. */
    if (v == RP__IR_NONE && rp_error_status() == RP_ERROR_OUT_OF_MEMORY)
        (void)rp__trace_spoil(t, RP_ERROR_OUT_OF_MEMORY);
    return v;
}

/* ---- random counters */

static counter *counter_of(rp__trace *t, rp_generator *g) {
    for (size_t i = 0; i < t->n_counters; i++) {
        if (t->counters[i].generator == g) return &t->counters[i];
    }
    if (!RP__GROW(&t->counters, &t->counters_capacity, t->n_counters + 1)) {
        (void)RP__OOM("trace");
        return NULL;
    }
    t->counters[t->n_counters] = (counter){g, t->request->random_base};
    return &t->counters[t->n_counters++];
}

rp_dim rp__trace_random_offset(rp__trace *t, rp_generator *g) {
    counter *c = counter_of(t, g);
    return c ? c->used : 0;
}

void rp__trace_random_seek(rp__trace *t, rp_generator *g, rp_dim offset) {
    counter *c = counter_of(t, g);
    if (c) c->used = offset;
}

static rp_status reserve(rp__trace *t, const rp__call *call, rp__ir_node *node) {
    rp_generator *g = rp__ir_generator(call->attrs, call->n_attrs, call->out[0]->device);
    counter *c = counter_of(t, g);
    rp_dim count;
    const uint64_t failures = rp__error_count();
    if (!c) return RP_ERROR_OUT_OF_MEMORY;
    RP_TRY(rp__op_counters(call, &count));
    node->random_offset = c->used;
    node->random_count = count;
    c->used = rp__dim_apply(RP__DIM_ADD, c->used, count);
    return rp__status_since(failures);
}

/* ---- recording one call */

static rp_status written(rp__trace *t, const rp__call *call, rp_tensor *x) {
    uint32_t number;
    RP_TRY(storage_number(t, x->storage, x->offset, RP__IR_NONE, &number));
    memory *m = &t->memory[number];
    if (m->first == RP__IR_NONE) {
        if (t->request->close) {
            (void)rp__trace_spoil(t, RP_ERROR_GRAPH_BREAK);
            return rp__op_error(call, RP_ERROR_GRAPH_BREAK, "a function of a region writes to memory from outside");
        }
        if (!m->written) {
            m->written = true;
            m->version = atomic_load(&x->storage->version);
            m->writer_op = x->storage->writer_op;
            m->writer_site = x->storage->writer_site;
        }
    }
    rp__storage_written(x->storage, call->op->name, call->site);
    return RP_OK;
}

static rp_status fresh(rp__trace *t, const rp__meta *meta, rp__ir_value v, rp_tensor **out) {
    rp__storage *s = rp__storage_wrap(meta->device, NULL, 0, NULL, NULL, NULL);
    if (!s) return RP_ERROR_OUT_OF_MEMORY;
    int64_t numel = 1;
    for (unsigned d = 0; d < meta->ndim; d++) {
        if (!rp__mul_i64(numel, rp__dim_hint(meta->size[d]), &numel)) numel = 0;
    }
    s->bytes = (size_t)numel * rp__dtype_bytes(meta->dtype);
    *out = rp__tensor_new(meta->dtype, meta->size, meta->ndim, s); /* takes the reference over */
    if (rp__tensor_is_error(*out)) return rp_error_status();
    rp__order_strides((*out)->size, meta->ndim, meta->order, (*out)->stride);
    RP_TRY(place(t, v, *out, true));
    return set_value(t, *out, v);
}

rp_status rp__trace_outputs(rp__trace *t, uint32_t node, const rp__meta *const *meta, rp_tensor **out, uint32_t n_out) {
    for (uint32_t k = 0; k < n_out; k++) {
        rp__meta m = *meta[k]; /* may lie in the graph's values, which move */
        rp__ir_value v = rp__ir_set_out(t->ir, node, k, &m);
        if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        RP_TRY(fresh(t, &m, v, &out[k]));
    }
    return RP_OK;
}

/* Does the layer above put this call on the tape? Passes that differentiate the graph must see the same boundary. */
static bool carries_gradient(const rp__call *call) {
    bool needed = false;
    for (uint32_t k = 0; k < call->n_in && !needed; k++) needed = call->in[k] && rp__grad_needed(call->in[k]);
    return needed && rp__grad_recording() && call->op != RP__OP(detach);
}

static bool marks_gradient(bool carries, const rp__meta *meta) { return carries && rp__dtype_is_float(meta->dtype); }

/* Grad mode is off: what has a history keeps it, with other values. A graph knows values only. */
static void note_untaped(rp__trace *t, const rp__call *call, const rp_tensor *x) {
    size_t number = rp__trace_index(&t->by_storage, rp__trace_key_of_id(x->storage->id));
    rp__ir_value v = number == SIZE_MAX ? RP__IR_NONE : t->memory[number].last;
    for (; v != RP__IR_NONE && !t->untaped_site; v = t->before[v])
        if (t->ir->values[v].requires_grad) t->untaped_site = call->site ? call->site : "";
}

/* From now on the handle x stands for v. */
static void value_is(rp__trace *t, rp_tensor *x, rp__ir_value v) {
    if (x->traced && x->traced->trace == t)
        x->traced->value = v;
    else
        t->outside[rp__trace_index(&t->by_handle, rp__trace_key(x))].value = v;
}

/* Results of the node that was added for a call: values and handles. */
static rp_status record_results(rp__trace *t, rp__call *call, uint32_t node, const rp__ir_value *in, bool carries,
                                rp__meta *meta, const rp__view *view) {
    const rp__op *op = call->op;
    rp_ir *ir = t->ir;
    if (op->lowering == RP__VIEW) {
        rp_tensor *base = call->in[0];
        rp_tensor *out = rp__tensor_view(base, view->size, view->stride, view->ndim, view->offset);
        if (rp__tensor_is_error(out)) return rp_error_status();
        call->out[0] = out;
        rp__ir_meta_of(out, &meta[0]);
        rp__ir_value v = rp__ir_set_out(ir, node, 0, &meta[0]);
        if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        RP_TRY(place(t, v, out, false));
        ir->values[v].requires_grad = marks_gradient(carries, &meta[0]);
        return set_value(t, out, v);
    }
    for (uint32_t k = 0; k < call->n_in; k++) {
        if (!call->in[k] || !rp__ir_writes(&ir->nodes[node], k)) continue;
        RP_TRY(written(t, call, call->in[k]));
        if (!rp__grad_recording() && !t->untaped_site) note_untaped(t, call, call->in[k]);
    }
    for (uint32_t k = 0; k < call->n_out; k++) {
        if (!op->schema.out_written[k]) {
            rp__ir_value v = rp__ir_set_out(ir, node, k, &meta[k]);
            if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
            RP_TRY(fresh(t, &meta[k], v, &call->out[k]));
            ir->values[v].requires_grad = marks_gradient(carries, &meta[k]);
            continue;
        }
        /* The result is the operand: the same handle, another value. */
        uint32_t w = 0;
        while (w < call->n_in && !rp__ir_writes(&ir->nodes[node], w)) w++;
        if (w == call->n_in) return rp__op_error(call, RP_ERROR_INTERNAL, "the schema returns what it does not write");
        rp_tensor *x = call->in[w];
        call->out[k] = x;
        rp__ir_meta_of(x, &meta[k]);
        rp__ir_value v = rp__ir_set_out(ir, node, k, &meta[k]);
        if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        RP_TRY(place(t, v, x, false));
        ir->values[v].requires_grad = ir->values[in[w]].requires_grad || marks_gradient(carries, &meta[k]);
        value_is(t, x, v);
        /* Memory from outside gets a history, also where no result has one. */
        if (ir->values[v].requires_grad && rp__grad_recording() &&
            t->memory[ir->values[v].storage].first == RP__IR_NONE)
            t->result->training = true;
    }
    return op->flags & RP_OP_RANDOM ? reserve(t, call, &ir->nodes[node]) : RP_OK;
}

static rp_status record(rp__trace *t, rp__call *call) {
    bool carries = carries_gradient(call);
    rp__ir_value in[RP__MAX_IN];
    rp__meta meta[RP__MAX_OUTS];
    rp__view view;
    const rp__op *op = call->op;
    rp_ir *ir = t->ir;
    if (op->lowering == RP__VIEW) {
        RP_TRY(rp__op_view(call, &meta[0], &view));
    } else {
        memset(meta, 0, sizeof meta);
        RP_TRY(rp__op_infer(call, meta));
        if (op->flags & RP_OP_INPLACE) RP_TRY(rp__op_check_written(call));
    }
    for (uint32_t k = 0; k < call->n_in; k++) {
        in[k] = call->in[k] ? rp__trace_resolve(t, call->in[k]) : RP__IR_NONE;
        if (call->in[k] && in[k] == RP__IR_NONE) return rp_error_status();
    }
    if (rp__flags.shadowing) { /* another handle of the same value, so that a second derivative goes on through it */
        call->out[0] = rp__tensor_view(call->in[0], view.size, view.stride, view.ndim, view.offset);
        return rp__tensor_is_error(call->out[0]) ? rp_error_status() : set_value(t, call->out[0], in[0]);
    }
    if (t->request->derived) RP_TRY(rp__trace_cut_operands(t, call, in));
    uint32_t node = rp__ir_add_node(ir, &ir->body, RP__IR_OP, op, in, call->n_in, call->list_begin, call->attrs,
                                    call->n_attrs, call->n_out, rp__site_of_part(call->site, op->name));
    if (node == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    ir->nodes[node].untaped = !rp__grad_recording();
    rp_status status = record_results(t, call, node, in, carries, meta, &view);
    if (status == RP_OK) return RP_OK;
    /* Refused: as if it had not been called. The function may take the error and go on. */
    ir->body.n_nodes--;
    ir->nodes[node].dead = true;
    for (uint32_t k = 0; k < call->n_in; k++)
        if (call->in[k] && rp__ir_writes(&ir->nodes[node], k)) value_is(t, call->in[k], in[k]);
    return status == RP_ERROR_OUT_OF_MEMORY ? rp__trace_spoil(t, status) : status;
}

/* ---- the thread out of the trace, for a while */

typedef struct suspended {
    rp__layer *trace;
    bool grad;
    rp__symbols *symbols;
    rp__site_frame frame;   /* nodes bring their own */
    rp__error_state failed; /* of the function: passes that try something report failures, and take them back */
} suspended;

static void suspend(rp__trace *t, suspended *s) {
    rp__error_save(&s->failed);
    s->trace = rp__layer_set(RP__LAYER_TRACE, NULL);
    s->grad = rp__grad_switch(false);
    s->symbols = rp__symbols_enter(NULL);
    s->frame = rp__site_enter((rp__site_frame){NULL, NULL});
    t->busy = true;
    rp__flags.tracing = false;
}

static void resume(rp__trace *t, const suspended *s) {
    rp__error_restore(&s->failed);
    rp__site_pop(s->frame);
    (void)rp__symbols_enter(s->symbols);
    (void)rp__grad_switch(s->grad);
    (void)rp__layer_set(RP__LAYER_TRACE, s->trace);
    t->busy = false;
    rp__flags.tracing = true;
}

rp_status rp__trace_check_alive(const rp_tensor *x) {
    if (RP__LIKELY(!x->traced || x->traced->trace)) return RP_OK;
    return rp__fail(RP_ERROR_STATE, "a tensor of a trace that was given up was used (made by %s at %s)",
                    x->op ? x->op : "?", x->site ? x->site : "?");
}

/* ---- the layer */

static rp_status handle(rp__layer *self, rp__layer_kind at, rp__call *call) {
    rp__trace *t = current;
    (void)self;
    if (!t || t->busy) return rp__dispatch_below(at, call);
    const rp__op *op = call->op;
    const rp_device place = call->n_in && call->in[0] ? call->in[0]->device : rp_default_device();
    bool needs_values =
        rp__op_syncs(op, place) || (op->flags & RP__OP_DATA_SIZE) || (op->lowering != RP__VIEW && !op->infer);
    if (!needs_values) return record(t, call);
    RP_TRY(rp__trace_break(t, "op-needs-values", call->site));
    for (uint32_t k = 0; k < call->n_in; k++)
        if (call->in[k]) RP_TRY(rp__trace_check_alive(call->in[k]));
    /* Its operands are real now, and what it gives is from outside; ops that it is made of are not recorded. */
    suspended s;
    suspend(t, &s);
    rp__site_frame frame = rp__site_push(call->site, op->name); /* for what it reports */
    rp_status status = rp__dispatch_below(at, call);
    rp__site_pop(frame);
    resume(t, &s);
    return status;
}

static rp__layer layer = {handle};

/* ---- computing */

static void release_result(void *tensor) { rp_release(tensor); }

/* Makes the pending storage of value v hold what r holds, in v's strides. r is not used afterwards, but perhaps not the only
   holder of its memory. */
static rp_status adopt(rp__storage *s, const rp__ir_value_info *v, rp_tensor *r) {
    bool same = true;
    for (unsigned d = 0; d < r->ndim; d++)
        same =
            same && (rp__dim_same_word(r->size[d], 1) || rp__dim_same_word(rp__dim_hint(v->stride[d]), r->stride[d]));
    if (!same && rp__dim_number(rp__tensor_numel(r)) > 0) {
        rp__device *d = rp__device_get(r->device);
        rp_tensor *other = d ? rp__tensor_empty(d, (rp_dtype)r->dtype, r->size, r->ndim) : rp__tensor_error();
        if (rp__tensor_is_error(other)) return rp_error_status();
        for (unsigned k = 0; k < r->ndim; k++) other->stride[k] = rp__dim_hint(v->stride[k]);
        RP_TRY(rp__run_copy(other, r));
        r = other;
    }
    rp__storage *from = r->storage;
    if (atomic_load(&from->refs) == 1 && from->block && !from->foreign && rp__tensor_data(r) == (char *)from->data) {
        s->block = from->block;
        s->data = from->data;
        s->bytes = from->bytes;
        from->block = NULL;
        from->data = NULL;
        from->bytes = 0;
        return RP_OK;
    }
    s->data = rp__tensor_data(r);
    s->bytes = (size_t)rp__tensor_numel(r) * rp__dtype_bytes((rp_dtype)r->dtype);
    s->foreign = from->foreign;
    s->stable = from->stable;
    s->generation = from->generation;
    s->stamp = from->stamp;
    s->replay_site = from->replay_site;
    s->behind = rp__storage_block(from);
    s->deleter = release_result;
    s->deleter_ctx = rp_retain(r);
    return RP_OK;
}

/* A handle of its own for value v, over the trace's memory; of the innermost scope. */
static rp_tensor *handle_of(rp__trace *t, rp__ir_value v) {
    const rp__ir_value_info *info = &t->ir->values[v];
    const memory *m = &t->memory[info->storage];
    rp_tensor *x = rp__tensor_new(info->meta.dtype, info->meta.size, info->meta.ndim, rp__storage_retain(m->storage));
    if (rp__tensor_is_error(x)) return x;
    memcpy(x->stride, info->stride, info->meta.ndim * sizeof *x->stride);
    x->offset = m->base + info->offset;
    return x;
}

/* Frees memory that only the trace holds once no later node needs it. uses: per storage. */
static void drop_unused(rp__trace *t, uint32_t *uses, rp__ir_value v) {
    uint32_t s = t->ir->values[v].storage;
    memory *m = &t->memory[s];
    if (--uses[s] == 0 && m->first != RP__IR_NONE && m->storage && atomic_load(&m->storage->refs) == 1) {
        rp__storage_release(m->storage);
        m->storage = NULL;
    }
}

/* Versions were counted when writes were recorded: running the ops must not count them again. */
typedef struct version {
    rp__storage *storage;
    uint64_t version;
    const char *op, *site;
} version;

static void uncount_writes(const version *v, size_t n) {
    for (; n > 0; v++, n--) {
        if (!v->storage) continue;
        atomic_store(&v->storage->version, v->version);
        v->storage->writer_op = v->op;
        v->storage->writer_site = v->site;
    }
}

typedef struct computing {
    rp__trace *t;
    uint32_t *uses;    /* per storage */
    version *versions; /* of what the node that runs writes */
    uint32_t n_versions;
} computing;

static rp_status give_operands(void *ctx, uint32_t node, rp_tensor **in) {
    computing *c = ctx;
    const rp__ir_node *n = &c->t->ir->nodes[node];
    c->n_versions = 0;
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (n->in[k] == RP__IR_NONE) continue;
        in[k] = handle_of(c->t, n->in[k]);
        if (rp__tensor_is_error(in[k])) return rp_error_status();
        rp__storage *s = in[k]->storage;
        if (rp__ir_writes(n, k))
            c->versions[c->n_versions++] = (version){s, atomic_load(&s->version), s->writer_op, s->writer_site};
    }
    return RP_OK;
}

static rp_status put_results(void *ctx, uint32_t node, rp_tensor *const *out) {
    computing *c = ctx;
    const rp_ir *ir = c->t->ir;
    const rp__ir_node *n = &ir->nodes[node];
    for (uint32_t k = 0; k < n->n_out; k++) {
        memory *m = &c->t->memory[ir->values[n->out[k]].storage];
        if (m->first == n->out[k]) RP_TRY(adopt(m->storage, &ir->values[n->out[k]], out[k]));
    }
    uncount_writes(c->versions, c->n_versions);
    return RP_OK;
}

static void drop_operands(void *ctx, uint32_t node) {
    computing *c = ctx;
    const rp__ir_node *n = &c->t->ir->nodes[node];
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (n->in[k] != RP__IR_NONE) drop_unused(c->t, c->uses, n->in[k]);
    }
    for (uint32_t k = 0; k < n->n_out; k++) drop_unused(c->t, c->uses, n->out[k]);
}

static rp_status compute_nodes(rp__trace *t) {
    rp_ir *ir = t->ir;
    computing c = {.t = t, .uses = rp__calloc(ir->n_storages + 1u, sizeof *c.uses)};
    uint32_t widest = 0;
    for (size_t i = 0; c.uses && i < ir->body.n_nodes; i++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[i]];
        for (uint32_t k = 0; k < n->n_in; k++)
            c.uses[n->in[k] == RP__IR_NONE ? ir->n_storages : ir->values[n->in[k]].storage]++;
        for (uint32_t k = 0; k < n->n_out; k++) c.uses[ir->values[n->out[k]].storage]++;
        widest = n->n_in > widest ? n->n_in : widest;
    }
    c.versions = rp__calloc(widest + 1u, sizeof *c.versions);
    const rp__ir_pending pending = {give_operands, put_results, drop_operands, &c};
    rp_status status = c.uses && c.versions ? rp__ir_run_pending(ir, &pending) : RP__OOM("trace");
    rp__free(c.uses);
    rp__free(c.versions);
    return status;
}

/* A segment as a whole: its results are the memory that somebody else still holds. */
static rp_status run_segment(rp__trace *t) {
    rp_ir *ir = t->ir;
    rp__ir_value *results = rp__alloc((ir->n_storages + 1u) * sizeof *results);
    rp_tensor **out = rp__calloc(ir->n_storages + 1u, sizeof *out);
    version *versions = rp__calloc(ir->n_storages + 1u, sizeof *versions);
    rp_status status = RP_OK;
    uint32_t n = 0;
    if (!results || !out || !versions) {
        status = RP__OOM("trace");
        goto done;
    }
    bool effect = false;
    for (size_t i = 0; i < ir->body.n_nodes && !effect; i++)
        effect = rp__ir_node_has_effect(ir, &ir->nodes[ir->body.nodes[i]]) ||
                 (!rp__dim_same_word(ir->nodes[ir->body.nodes[i]].random_count, 0));
    for (uint32_t s = 0; s < t->n_memory; s++) {
        const memory *m = &t->memory[s];
        if (!m->storage) continue;
        versions[s] =
            (version){m->storage, atomic_load(&m->storage->version), m->storage->writer_op, m->storage->writer_site};
    }
    /* By nodes: a node that was refused half-way left memory that nothing makes. */
    for (size_t i = 0; i < ir->body.n_nodes; i++) {
        const rp__ir_node *node = &ir->nodes[ir->body.nodes[i]];
        for (uint32_t k = 0; k < node->n_out; k++) {
            const memory *m = node->out[k] == RP__IR_NONE ? NULL : &t->memory[ir->values[node->out[k]].storage];
            if (m && m->storage && m->first == node->out[k] && atomic_load(&m->storage->refs) > 1)
                results[n++] = m->first;
        }
    }
    if (n == 0 && !effect) goto done;
    mark_shared(t);
    RP_TRY_GOTO(status, done, rp__ir_set_results(ir, &ir->body, results, n));
    status = t->request->run(t->request->run_ctx, ir, t->operands, t->n_operands, out, n);
    for (uint32_t k = 0; k < n && status == RP_OK; k++)
        status = adopt(t->memory[ir->values[results[k]].storage].storage, &ir->values[results[k]], out[k]);
    uncount_writes(versions, t->n_memory);
done:
    rp__free(results);
    rp__free(out);
    rp__free(versions);
    return status;
}

/* Handles of this trace become ordinary ones (computed) or orphans. */
static void release_values(rp__trace *t, bool computed) {
    while (t->values) {
        struct rp__trace_value *v = t->values;
        rp_tensor *x = v->tensor;
        t->values = v->next;
        if (computed) {
            x->traced = NULL;
            rp__free(v);
        } else {
            v->trace = NULL;
        }
    }
}

static void clear_recording(rp__trace *t) {
    for (size_t i = 0; i < t->n_outside; i++) rp_release(t->outside[i].tensor);
    t->n_outside = t->n_operands = 0;
    for (size_t s = 0; s < t->n_memory; s++) rp__storage_release(t->memory[s].storage);
    t->n_memory = 0;
    rp__map_free(&t->by_handle);
    rp__map_free(&t->by_storage);
    t->by_handle = t->by_storage = (rp__map){0};
}

/* Computes what was recorded so far. The trace goes on with an empty graph. */
static rp_status flush(rp__trace *t, bool last) {
    rp_ir *next = NULL;
    if (!last && !(next = rp__ir_new(t->request->fn.name))) return RP_ERROR_OUT_OF_MEMORY;
    suspended s;
    suspend(t, &s);
    rp_scope scope = rp__scope_begin();
    rp_status status = t->mode == RP__TRACE_SEGMENTS && t->request->run ? run_segment(t) : compute_nodes(t);
    rp__scope_end(scope, NULL, 0);
    resume(t, &s);
    release_values(t, status == RP_OK);
    if (status == RP_OK) rp__trace_forget_histories(t);
    clear_recording(t);
    if (!last || status != RP_OK) {
        rp__ir_release(t->ir);
        t->ir = next;
        if (!next && !(t->ir = rp__ir_new(t->request->fn.name)))
            return status != RP_OK ? status : RP_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < t->n_counters; i++) t->counters[i].used = 0;
    return status;
}

rp_status rp__trace_break(rp__trace *t, const char *reason, const char *site) {
    if (t->busy) return RP_OK;
    if (t->mode == RP__TRACE_ABSTRACT) {
        t->result->reason = reason;
        t->result->site = site;
        (void)rp__trace_spoil(t, RP_ERROR_GRAPH_BREAK);
        return rp__fail(
            RP_ERROR_GRAPH_BREAK,
            strcmp(reason, "host-read") == 0
                ? "%s: the function reads a value on the host (%s), and nothing is computed while it is traced"
                : "%s: the graph would break (%s), and nothing is computed while it is traced",
            t->request->fn.name ? t->request->fn.name : "trace", reason);
    }
    if (t->mode == RP__TRACE_FUNCTION) {
        t->result->broken = true;
        t->result->reason = reason;
        t->result->site = site;
        rp__log(RP__LOG_TRACE, "%s: %s at %s; going on as trace-and-flush",
                t->request->fn.name ? t->request->fn.name : "function", reason,
                site && *site ? site : "an unknown place");
    }
    rp_status status = flush(t, false);
    t->mode = RP__TRACE_SEGMENTS;
    if (status == RP_OK) t->result->n_words = 0; /* what they are now stays */
    return status;
}

static rp_status materialise(rp_tensor *x) {
    rp__trace *t = current;
    if (t && t->busy) return RP_OK;
    if (x && x->traced && !x->traced->trace)
        return rp__fail(RP_ERROR_STATE,
                        "the value of a tensor of a trace that was given up was read (made by %s at %s)",
                        x->op ? x->op : "?", x->site ? x->site : "?");
    if (!t)
        return x && x->traced ? rp__fail(RP_ERROR_STATE, "a tensor that another thread is tracing was read") : RP_OK;
    /* What a segment has not touched is as real as ever. */
    if (x && t->mode == RP__TRACE_SEGMENTS && !x->traced &&
        rp__trace_index(&t->by_storage, rp__trace_key_of_id(x->storage->id)) == SIZE_MAX &&
        !meets_outside(t, x->storage))
        return RP_OK;
    /* Where it is read; of a read through bindings the best that is known is where the value was made. */
    const char *site = rp__site();
    return rp__trace_break(t, "host-read", site && *site ? site : x ? x->site : NULL);
}

static rp_status before_switch(void) {
    rp__trace *t = current;
    return t ? rp__trace_break(t, "setting-switched", rp__site()) : RP_OK;
}

static void free_hook(struct rp__trace_value *v) { forget(v); }

/* ---- arguments */

static rp_status make_stand_in(rp__trace *t, size_t k) {
    const rp__trace_request *q = t->request;
    rp_tensor *x;
    if (q->arg_info) {
        const rp__ir_value_info *info = q->arg_info[k];
        rp__storage *s = rp__storage_wrap(info->meta.device, NULL, 0, NULL, NULL, NULL);
        if (!s) return RP_ERROR_OUT_OF_MEMORY;
        s->bytes = 1; /* pending, never computed */
        x = rp__tensor_new(info->meta.dtype, info->meta.size, info->meta.ndim, s);
        if (rp__tensor_is_error(x)) return rp_error_status();
        memcpy(x->stride, info->stride, info->meta.ndim * sizeof *x->stride);
        t->stand_in[k] = x;
        return info->requires_grad && !q->no_grad ? rp_set_requires_grad(x, true) : RP_OK;
    }
    rp_tensor *real = q->in[k];
    for (size_t j = 0; j < k; j++) {
        if (q->in[j] != real) continue;
        t->stand_in[k] = t->stand_in[j]; /* one tensor twice is one in any trace */
        return RP_OK;
    }
    const rp_dim *size = q->sizes && q->sizes[k] ? q->sizes[k] : real->size;
    const rp_dim *stride = q->strides && q->strides[k] ? q->strides[k] : real->stride;
    x = rp__tensor_new((rp_dtype)real->dtype, size, real->ndim, rp__storage_retain(real->storage));
    if (rp__tensor_is_error(x)) return rp_error_status();
    memcpy(x->stride, stride, real->ndim * sizeof *stride);
    x->offset = real->offset;
    x->op = real->op;
    x->site = real->site;
    t->stand_in[k] = x;
    if (!rp__grad_needed(real) || q->no_grad) return RP_OK;
    if (!rp_is_leaf(real)) {
        rp_tensor *in[] = {real}, *out[] = {x};
        bool grad = rp__grad_switch(true);
        rp_status status = rp__tape_attach(&rp__trace_alias_class, NULL, "argument", real->site, in, 1, out, 1, NULL);
        (void)rp__grad_switch(grad);
        return status;
    }
    RP_TRY(rp_set_requires_grad(x, true));
    if (real->autograd && real->autograd->grad) {
        rp__autograd *a = rp__autograd_get(x);
        if (!a) return RP_ERROR_OUT_OF_MEMORY;
        a->grad = rp_retain(real->autograd->grad);
        rp__grad_change(x);
    }
    return RP_OK;
}

static rp_status enter_arguments(rp__trace *t, rp_tensor *const *args) {
    if (t->mode == RP__TRACE_SEGMENTS) return RP_OK;
    for (size_t k = 0; k < t->request->n_in; k++) {
        rp__meta meta;
        rp__ir_meta_of(args[k], &meta);
        rp__ir_value v = rp__ir_add_arg(t->ir, &t->ir->body, &meta, NULL);
        if (v == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
        if (rp__trace_index(&t->by_handle, rp__trace_key(args[k])) !=
            SIZE_MAX) { /* the same tensor twice: fn cannot tell which it uses */
            t->ir->values[v].requires_grad = rp__grad_needed(args[k]);
            RP_TRY(place(t, v, args[k], false));
            continue;
        }
        RP_TRY(add_outside(t, args[k], v));
        if (t->stand_in) RP_TRY(set_value(t, args[k], v));
        /* A captured tensor that is also an argument is the argument. */
        if (t->stand_in && t->request->in &&
            rp__trace_index(&t->by_handle, rp__trace_key(t->request->in[k])) == SIZE_MAX) {
            rp_tensor *real = t->request->in[k];
            if (!RP__GROW(&t->outside, &t->outside_capacity, t->n_outside + 1) ||
                !map_put(&t->by_handle, rp__trace_key(real), t->n_outside))
                return RP__OOM("trace");
            t->outside[t->n_outside++] = (outside){rp_retain(real), v, (uint32_t)k, false};
        }
    }
    return RP_OK;
}

/* ---- the whole */

void rp__trace_result_free(rp__trace_result *r) {
    if (!r) return;
    rp__ir_release(r->ir);
    for (size_t i = 0; i < r->n_operands; i++) rp_release(r->operands[i]);
    for (size_t i = 0; i < r->n_grads; i++) {
        rp_release(r->grads[i].leaf);
        rp_release(r->grads[i].tensor);
        rp_release(r->grads[i].entry);
    }
    for (size_t i = 0; i < r->n_bytes; i++) rp__free(r->bytes[i].copy);
    rp__free(r->operands);
    rp__free(r->grads);
    rp__free(r->bytes);
    rp__free(r->words);
    rp__free(r->reached);
    memset(r, 0, sizeof *r);
}

rp_status rp_guard_bytes_at(const char *site, const void *bytes, size_t n) {
    RP__CALLED_FROM(site);
    if (!bytes && n) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_guard_bytes: the address is NULL");
    rp__trace *t = current;
    while (t && t->around) t = t->around;                            /* within a block: of the function that has it */
    if (!t || t->mode == RP__TRACE_SEGMENTS || n == 0) return RP_OK; /* the function runs at every call anyway */
    rp__trace_result *r = t->result;
    size_t capacity = r->n_bytes;
    for (size_t i = 0; i < capacity; i++)
        if (r->bytes[i].address == bytes && r->bytes[i].n == n)
            return RP_OK; /* what they were first is nearest to what they were when the function began */
    rp__guard_bytes *grown = rp__realloc(r->bytes, (capacity + 1) * sizeof *grown);
    void *copy = rp__alloc(n);
    if (grown) r->bytes = grown;
    if (!grown || !copy) {
        rp__free(copy);
        return RP__OOM("rp_guard_bytes");
    }
    memcpy(copy, bytes, n);
    r->bytes[r->n_bytes++] = (rp__guard_bytes){bytes, n, copy};
    return RP_OK;
}

rp_status rp__trace_word_set(uint64_t *word, uint64_t value) {
    RP_TRY(rp_guard_bytes(word, sizeof *word));
    rp__trace *t = current;
    rp__trace_result *r = t && t->mode != RP__TRACE_SEGMENTS ? t->result : NULL;
    size_t k = 0;
    while (r && k < r->n_words && r->words[k].address != word) k++;
    if (r && k == r->n_words) {
        rp__trace_word *grown = rp__realloc(r->words, (k + 1) * sizeof *grown);
        if (!grown) return RP__OOM("trace");
        r->words = grown;
        r->words[r->n_words++] = (rp__trace_word){word, *word, 0};
    }
    *word = value;
    return RP_OK;
}

/* Words that are left as they were found are no effect. undo: nothing was computed. */
static void take_words(rp__trace_result *r, bool undo) {
    size_t n = 0;
    for (size_t k = 0; k < r->n_words; k++) {
        rp__trace_word w = r->words[k];
        w.exit = *w.address;
        if (undo) *w.address = w.entry;
        if (w.exit != w.entry) r->words[n++] = w;
    }
    r->n_words = n;
}

/* Results of the graph: outputs of the function, then gradients. */
static rp_status take_results(rp__trace *t, rp_tensor *const *out) {
    rp__trace_result *r = t->result;
    size_t n_out = t->request->n_out;
    rp__ir_value *results = rp__alloc((n_out + t->n_watches + 1) * sizeof *results);
    rp_status status = RP_OK;
    uint32_t n = 0;
    if (!results) return RP__OOM("trace");
    for (size_t k = 0; k < n_out && status == RP_OK; k++) {
        results[n] = RP__IR_NONE;
        if (out[k]) {
            status = rp__tensor_check(out[k], "an output of the function");
            if (status != RP_OK) break;
            if ((results[n] = rp__trace_resolve(t, out[k])) == RP__IR_NONE)
                status = rp_error_status();
            else {
                const rp__autograd *a = out[k]->autograd;
                bool grad = rp__grad_needed(out[k]) && !(a && a->node && a->node->released);
                rp__ir_value_info *info = &t->ir->values[results[n]];
                /* The mark of a base stays that of the op that made it: its history begins with a later write. */
                info->late_grad = info->late_grad || (grad && !info->requires_grad);
                if (!grad || (out[k]->flags & RP__T_VIEW)) info->requires_grad = grad;
                r->training = r->training || grad;
            }
        }
        n++;
    }
    if (status == RP_OK) status = rp__trace_judge(t, out);
    if (status == RP_OK) status = rp__trace_exit_gradients(t, results, &n);
    if (status == RP_OK) status = rp__ir_set_results(t->ir, &t->ir->body, results, n);
    rp__free(results);
    return status;
}

static rp_status take_reached(rp__trace *t) {
    rp__trace_result *r = t->result;
    for (size_t i = 0; i < t->n_outside; i++) {
        const outside *o = &t->outside[i];
        if (o->arg == RP__IR_NONE || !o->reached) continue;
        if (!r->reached && !(r->reached = rp__calloc(t->request->n_in, sizeof *r->reached))) return RP__OOM("trace");
        r->reached[o->arg] = true;
    }
    return RP_OK;
}

static rp_status take_operands(rp__trace *t) {
    rp__trace_result *r = t->result;
    if (!t->request->close) return RP_OK;
    r->operands = rp__calloc(t->n_operands + 1, sizeof *r->operands);
    if (!r->operands) return RP__OOM("trace");
    for (size_t i = 0; i < t->n_operands; i++) r->operands[r->n_operands++] = rp_retain(t->operands[i]);
    return RP_OK;
}

static void restore_versions(rp__trace *t) {
    for (size_t s = 0; s < t->n_memory; s++) {
        memory *m = &t->memory[s];
        if (!m->written || !m->storage) continue;
        atomic_store(&m->storage->version, m->version);
        m->storage->writer_op = m->writer_op;
        m->storage->writer_site = m->writer_site;
    }
}

static rp__mutex install_lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &install_lock, 1)

static void install(void) {
    static atomic_bool installed;
    if (atomic_load_explicit(&installed, memory_order_acquire)) return;
    rp__lock(&install_lock);
    rp__symbols_install();
    rp__materialise_hook = materialise;
    rp__switch_hook = before_switch;
    rp__trace_free_hook = free_hook;
    rp__trace_watch_gradients();
    rp__function_trace_hook = rp__trace_function;
    atomic_store_explicit(&installed, true, memory_order_release);
    rp__unlock(&install_lock);
}

/* Runs the body between begin and end, and takes what it recorded. */
static rp_status traced_body(rp__trace *t, rp_tensor **out) {
    const rp__trace_request *q = t->request;
    rp_tensor *const *args = q->in;
    if (t->mode == RP__TRACE_ABSTRACT) {
        t->stand_in = rp__calloc(q->n_in + 1, sizeof *t->stand_in);
        if (!t->stand_in) return RP__OOM("trace");
        for (size_t k = 0; k < q->n_in; k++) RP_TRY(make_stand_in(t, k));
        args = t->stand_in;
    }
    RP_TRY(enter_arguments(t, args));
    q->fn.body(q->fn.ctx, args, q->n_in, out, q->n_out);
    if (t->spoilt != RP_OK && rp_error_status() != t->spoilt) { /* whatever the function made of the error */
        (void)rp_error_take();
        return rp__fail(t->spoilt, "`%s` went on after an error that only its recording knows",
                        q->fn.name && *q->fn.name ? q->fn.name : "a function without a name");
    }
    if (rp_failed()) return rp_error_status();
    if (t->mode == RP__TRACE_SEGMENTS) return flush(t, true);
    RP_TRY(take_results(t, out));
    mark_shared(t);
    RP_TRY(take_operands(t));
    RP_TRY(take_reached(t));
    for (size_t i = 0; i < t->n_counters; i++)
        t->result->random_count = rp__dim_apply(RP__DIM_ADD, t->result->random_count,
                                                rp__dim_apply(RP__DIM_SUB, t->counters[i].used, q->random_base));
    if (t->mode == RP__TRACE_FUNCTION) return flush(t, true);
    return rp_failed() ? rp_error_status() : RP_OK;
}

void rp__modes_leave(uint8_t autocast, rp_device device) {
    (void)rp_set_autocast(RP_DEVICE_CPU, (rp_dtype)(autocast & 15));
    (void)rp_set_autocast(RP_DEVICE_CUDA, (rp_dtype)(autocast >> 4));
    (void)rp_set_default_device(device);
}

rp_status rp__trace_run(const rp__trace_request *q, rp_tensor **out, rp__trace_result *result) {
    memset(result, 0, sizeof *result);
    if (!q->fn.body) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the function is NULL");
    if (current && q->mode != RP__TRACE_ABSTRACT)
        return rp__fail(RP_ERROR_INTERNAL, "a trace inside a trace must be abstract");
    install();
    rp__trace *t = rp__calloc(1, sizeof *t);
    rp_tensor **outs = rp__calloc(q->n_out + 1, sizeof *outs);
    if (!t || !outs || !(t->ir = rp__ir_new(q->fn.name))) {
        rp__free(t);
        rp__free(outs);
        return RP__OOM("trace");
    }
    t->request = q;
    t->result = result;
    t->mode = q->mode;
    t->around = current;
    t->ir->symbols = q->symbols ? rp__symbols_retain(q->symbols)
                     : current  ? rp__symbols_retain(current->ir->symbols)
                                : NULL;

    rp__error_state before;
    rp__error_save(&before);
    rp__symbols *symbols = rp__symbols_enter(t->ir->symbols);
    rp__layer *outer_layer = rp__layer_set(RP__LAYER_TRACE, &layer);
    bool grad = q->no_grad ? rp__grad_switch(false) : rp__grad_recording(), tracing = rp__flags.tracing;
    const rp__grad_said said = rp__grad_said_now;
    const uint8_t autocast = rp__autocast_state();
    const rp_device device = rp_default_device();
    if (q->no_grad) rp__grad_said_now = (rp__grad_said){true, q->grad_mode};
    rp__flags.tracing = true;
    current = t;
    t->first_id = rp__unique_id_fresh();
    t->scope = rp__scope_begin();

    rp_status status = traced_body(t, outs);

    bool abstract = q->mode == RP__TRACE_ABSTRACT;
    if (abstract || status != RP_OK) {
        rp__trace_restore_gradients(t);
        rp__trace_restore_histories(t);
        restore_versions(t);
    }
    take_words(result, abstract || status != RP_OK);
    rp__trace_forget_histories(t);
    current = t->around;
    rp__flags.tracing = tracing;
    (void)rp__layer_set(RP__LAYER_TRACE, outer_layer);
    if (q->no_grad) {
        result->switched = rp__grad_said_now.on != q->grad_mode;
        (void)rp__grad_switch(grad);
        rp__grad_said_now = said;
    } else {
        result->switched = rp__grad_recording() != grad;
        if (abstract) (void)rp__grad_switch(grad);
    }
    result->autocast = rp__autocast_state();
    result->device = rp_default_device();
    result->moved =
        result->autocast != autocast || result->device.type != device.type || result->device.index != device.index;
    if (abstract && result->moved) rp__modes_leave(autocast, device);
    bool keep = !abstract && status == RP_OK;
    rp__scope_end(t->scope, outs, keep ? q->n_out : 0);
    for (size_t k = 0; k < q->n_out && !abstract; k++) out[k] = keep ? outs[k] : rp__tensor_error();
    for (size_t i = 0; i < t->n_watches; i++) {
        rp_release(t->watches[i].tensor);
        rp_release(t->watches[i].entry);
    }
    if (abstract || (status != RP_OK && t->values)) {
        for (const struct rp__trace_value *v = t->values; v; v = v->next)
            result->escaped += rp__trace_index(&t->by_handle, rp__trace_key(v->tensor)) == SIZE_MAX;
        release_values(t, false);
    }
    clear_recording(t);
    if (status == RP_OK && q->mode != RP__TRACE_SEGMENTS && !result->broken) {
        result->ir = t->ir;
        t->ir->taped = !q->close && !q->no_grad;
    } else {
        rp__ir_release(t->ir);
    }
    (void)rp__symbols_enter(symbols);
    rp__free(t->outside);
    rp__free(t->memory);
    rp__free(t->before);
    rp__free(t->watches);
    rp__free(t->histories);
    rp__free(t->counters);
    rp__free(t->operands);
    rp__free(t->stand_in);
    rp__map_free(&t->by_handle);
    rp__map_free(&t->by_storage);
    rp__map_free(&t->by_watched);
    rp__map_free(&t->by_entry);
    rp__flow_free(&t->flow);
    rp__free(t);
    rp__free(outs);
    rp__error_restore(&before);
    return status;
}

/* ---- export */

/* The whole function as one graph, for export. */
static rp_ir *trace_whole(const rp__trace_request *request) {
    const rp_fn *fn = &request->fn;
    rp__trace_result result = {0};
    rp_status status = rp__trace_run(request, NULL, &result);
    rp_ir *ir = result.ir;
    /* What a compiled function would leave to the tape, a text that is read elsewhere would get wrong without a word. */
    if (status == RP_OK && result.reason)
        status = rp__fail(RP_ERROR_GRAPH_BREAK,
                          "rp_trace: a graph of `%s` would not give its gradients (%s at %s). With grad mode off, or "
                          "for arguments that need none, its values are exported",
                          fn->name && *fn->name ? fn->name : "a function without a name", result.reason,
                          result.site && *result.site ? result.site : "no call site");
    if (status == RP_OK && result.n_words)
        status = rp__fail(RP_ERROR_GRAPH_BREAK,
                          "rp_trace: `%s` changes an object that is no tensor (a gradient scaler between unscale and "
                          "update), and a graph of it would not",
                          fn->name && *fn->name ? fn->name : "a function without a name");
    if (status == RP_OK) {
        /* Gradients that the function leaves on tensors are effects, not outputs: they are not part of what is exported. */
        ir->body.n_results = (uint32_t)request->n_out;
        result.ir = NULL;
    } else {
        ir = rp__ir_failed();
    }
    rp__trace_result_free(&result);
    return ir;
}

rp_ir *rp_trace_at(const char *site, rp_fn fn, rp_tensor *const *in, size_t n_in, size_t n_out) {
    RP__CALLED_FROM(site);
    if (n_in && !in) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_trace: the arguments are NULL");
        return rp__ir_failed();
    }
    for (size_t k = 0; k < n_in; k++) {
        if (rp__tensor_check(in[k], "an argument") != RP_OK || rp__tensor_is_error(in[k])) return rp__ir_failed();
    }
    const rp__trace_request request = {.mode = RP__TRACE_ABSTRACT, .fn = fn, .in = in, .n_in = n_in, .n_out = n_out};
    return trace_whole(&request);
}

/* ---- by types alone (reprise_ir.h) */

typedef struct typed {
    rp__ir_value_info *info;
    const rp__ir_value_info **pointers;
    rp__symbols *symbols;
} typed;

static rp_status take_type(typed *t, const rp_ir_type *type, size_t k) {
    if (type->struct_size < offsetof(rp_ir_type, requires_grad) + sizeof type->requires_grad)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "type %zu: struct_size is %zu; set it to the size of the struct", k,
                        type->struct_size);
    if (!rp__dtype_is_valid(type->dtype) || type->ndim > RP_MAX_DIMS)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "type %zu: no element type, or more than %d dimensions", k,
                        RP_MAX_DIMS);
    if (type->requires_grad && !rp__dtype_is_float(type->dtype))
        return rp__fail(RP_ERROR_DTYPE, "type %zu: only tensors of floating types require gradients, not %s", k,
                        rp_dtype_name(type->dtype));
    rp__ir_value_info *info = &t->info[k];
    const uint64_t failures = rp__error_count();
    info->meta.dtype = type->dtype;
    info->meta.device = type->device;
    info->meta.ndim = (uint8_t)type->ndim;
    info->requires_grad = type->requires_grad;
    for (size_t d = 0; d < type->ndim; d++) {
        info->meta.size[d] = type->size[d];
        if (type->size[d] < 0)
            return rp__fail(RP_ERROR_SHAPE, "type %zu: size %zu is %lld; a symbol has the size of the traced call", k,
                            d, (long long)type->size[d]);
        if (!type->dynamic[d]) continue;
        const rp__symbol symbol = {.input = (uint32_t)k, .dim = (uint8_t)d, .hint = type->size[d]};
        info->meta.size[d] = rp__symbols_add(t->symbols, &symbol);
        RP_TRY(rp__status_since(failures));
    }
    rp__contiguous_strides(info->meta.size, type->ndim, info->stride);
    t->pointers[k] = info;
    return rp__status_since(failures);
}

rp_ir *rp_trace_types_at(const char *site, rp_fn fn, const rp_ir_type *types, size_t n_in, size_t n_out) {
    RP__CALLED_FROM(site);
    if (n_in && !types) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_trace_types: the types are NULL");
        return rp__ir_failed();
    }
    install(); /* strides of the types are made of their symbols */
    typed t = {rp__calloc(n_in + 1, sizeof *t.info), rp__calloc(n_in + 1, sizeof *t.pointers), rp__symbols_new()};
    rp_status status = t.info && t.pointers && t.symbols ? RP_OK : RP__OOM("types of arguments");
    rp__symbols *before = rp__symbols_enter(t.symbols);
    for (size_t k = 0; k < n_in && status == RP_OK; k++) /* a caller's structs may be longer or shorter than ours */
        status = take_type(&t, (const void *)((const char *)types + k * types->struct_size), k);
    (void)rp__symbols_enter(before);
    rp_ir *ir = rp__ir_failed();
    if (status == RP_OK) {
        bool any = rp__symbols_count(t.symbols) > 0;
        const rp__trace_request request = {.mode = RP__TRACE_ABSTRACT,
                                           .fn = fn,
                                           .arg_info = t.pointers,
                                           .symbols = any ? t.symbols : NULL,
                                           .n_in = n_in,
                                           .n_out = n_out};
        ir = trace_whole(&request);
    }
    rp__symbols_release(t.symbols);
    rp__free(t.info);
    rp__free(t.pointers);
    return ir;
}
