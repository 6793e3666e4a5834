/* Building a program (program.h) by recording; program_parts.h says where the rest is.

   When every value has its place, groups are lowered in order under the recorder, slots are turned into buffer numbers, edges
   come from slots that conflict. A region is a choice of its part: its blocks are parts with steps of their own. */
#include "compile/program_parts.h"

#include <string.h>

#include "compile/passes.h"
#include "core/alloc.h"
#include "core/env.h"
#include "ops/execute.h"
#include "ops/library_ops.h"
#include "ops/product.h"

typedef struct recorder {
    rp__launch_recorder hook; /* first */
    rp__executable *p;
    uint32_t group;
    bool follows; /* the last record is the last step of the part, and the group's first launch may join it */
    rp__launch_buffer *buffer; /* of joint launches; NULL: none yet */
    rp__map known;             /* storage -> its first buffer (number + 1), or KNOWN_SCRATCH */
} recorder;

#define KNOWN_SCRATCH UINTPTR_MAX
static rp__hash storage_key(const rp__storage *s) { return (rp__hash){rp__hash_mix(s->id, 7), s->id}; }
static bool know(recorder *r, const rp__storage *s, uintptr_t as) {
    return rp__map_put(&r->known, storage_key(s), (void *)as);
}

/* A temporary moves with what it lies in. */
static rp_status know_buffers(recorder *r) {
    for (uint32_t b = r->p->n_buffers; b-- > 0;) { /* of two in one storage the first one counts */
        const rp__program_buffer *of = &r->p->buffers[b];
        if (of->kind == RP__BUFFER_NONE || of->kind == RP__BUFFER_TEMP || !of->place.storage) continue;
        if (!know(r, of->place.storage, b + 1u)) return RP__OOM("launch records");
    }
    return RP_OK;
}

/* The launch and the last record as one, if the device has such a launch: siblings mostly stand side by side. */
static rp_status join(recorder *r, const rp__launch *l, bool *joined) {
    rp__executable *p = r->p;
    rp__launch *last = p->records[p->n_records - 1], both, *copy;
    *joined = false;
    if (!p->device->ops->library->join || last->kernel->kind != l->kernel->kind || rp__launch_conflict(last, l))
        return RP_OK;
    if (!r->buffer) r->buffer = rp__alloc(sizeof *r->buffer);
    if (!r->buffer) return RP__OOM("a launch");
    RP_TRY(p->device->ops->library->join(p->device, last, l, r->buffer, &both));
    if (!both.kernel) return RP_OK;
    copy = RP__GROW(&p->joined, &p->joined_capacity, p->n_joined + 1u) ? rp__launch_copy(&both, false) : NULL;
    if (!copy) return RP__OOM("launch records");
    p->joined[p->n_joined++] = (struct rp__program_joined){r->group, p->n_records - 1};
    rp__launch_free(last, false);
    p->records[p->n_records - 1] = copy;
    *joined = true;
    return RP_OK;
}

static rp_status record(rp__launch_recorder *self, rp_stream *s, const rp__launch *l) {
    recorder *r = (recorder *)self;
    rp__executable *p = r->p;
    (void)s;
    if (!l->kernel) return RP_OK; /* an empty space */
    if (l->barrier) {
        return rp__fail(RP_ERROR_UNAVAILABLE,
                        "%s: a launch without slots hides which memory it uses; "
                        "it cannot be part of a program",
                        l->op);
    }
    bool joined = false;
    if (r->follows) RP_TRY(join(r, l, &joined));
    r->follows = false;
    if (!joined) {
        if (!RP__GROW(&p->records, &p->records_capacity, p->n_records + 1u) ||
            !RP__GROW(&p->record_group, &p->record_group_capacity, p->n_records + 1u)) {
            return RP__OOM("launch records");
        }
        rp__launch *own = rp__launch_copy(l, false);
        if (!own) return RP_ERROR_OUT_OF_MEMORY;
        p->record_group[p->n_records] = r->group;
        p->records[p->n_records++] = own;
    }
    const rp__launch *copy = p->records[p->n_records - 1];
    rp__slot *slots = (rp__slot *)(uintptr_t)copy->slots;
    for (uint32_t k = 0; k < copy->n_slots; k++) {
        rp__storage *storage = slots[k].storage;
        slots[k].buffer = -1;
        if (!storage || storage == p->memory) continue;
        const uintptr_t known = (uintptr_t)rp__map_get(&r->known, storage_key(storage));
        if (known && known != KNOWN_SCRATCH) slots[k].buffer = (int32_t)(known - 1);
        if (known) continue;
        if (!RP__GROW(&p->scratch, &p->scratch_capacity, p->n_scratch + 1) || !know(r, storage, KNOWN_SCRATCH))
            return RP__OOM("scratch memory of a program");
        rp__program_count(&p->held, storage->bytes);
        p->scratch[p->n_scratch++] = rp__storage_retain(storage);
    }
    return RP_OK;
}

static rp_status draw(void *ctx, rp_generator *g, uint64_t inner, rp__random_draw *out) {
    rp__executable *p = ctx;
    RP_TRY(rp__random_reserve(g, p->build_stream, 0, out)); /* gives the state of the replay */
    out->inner = inner;
    return RP_OK;
}

static rp_status check_devices(rp__executable *p) {
    const rp_ir *ir = p->ir;
    p->device = NULL;
    for (size_t v = 0; v < ir->n_values; v++) {
        rp__device *d = rp__device_get(ir->values[v].meta.device);
        if (!d) return rp_error_status();
        if (p->device && p->device != d) {
            return rp__fail(RP_ERROR_UNAVAILABLE, "a program on several devices");
        }
        p->device = d;
    }
    if (!p->device) p->device = rp__device_get(rp_default_device());
    return p->device ? RP_OK : rp_error_status();
}

/* A handle of a value in the program's memory, for rules that take tensors. */
static rp_tensor *handle_of(const rp__executable *p, const rp__program_part *part, rp__ir_value v) {
    const rp__ir_value_info *info = &part->ir->values[v];
    const rp__executable_place *place = &p->buffers[part->buffer_of[info->storage]].place;
    if (!place->storage) {
        (void)rp__fail(RP_ERROR_INTERNAL, "a value of the program has no memory");
        return rp__tensor_error();
    }
    rp_tensor *t =
        rp__tensor_new(info->meta.dtype, info->meta.size, info->meta.ndim, rp__storage_retain(place->storage));
    if (rp__tensor_is_error(t)) return t;
    memcpy(t->stride, info->stride, info->meta.ndim * sizeof *t->stride);
    t->offset = info->offset + place->base / (int64_t)rp__dtype_bytes(info->meta.dtype);
    return t;
}

static rp_status run_rule(rp__executable *p, const rp__program_part *part, const rp__ir_node *n, rp_tensor **in,
                          rp_tensor **out) {
    rp__call call;
    for (uint32_t k = 0; k < n->n_in; k++) {
        in[k] = n->in[k] == RP__IR_NONE ? NULL : handle_of(p, part, n->in[k]);
        if (in[k] && rp__tensor_is_error(in[k])) return rp_error_status();
    }
    rp__ir_call(n, in, out, &call);
    if (n->op->lowering == RP__USER || n->op->lowering == RP__HOST) { /* allocates its own results */
        rp_tensor *made[RP__MAX_OUTS] = {0};
        call.out = made;
        RP_TRY(n->op->lowering == RP__USER ? rp__user_run(&call) : n->op->rule.run(&call));
        for (uint32_t k = 0; k < n->n_out; k++) {
            out[k] = handle_of(p, part, n->out[k]);
            if (rp__tensor_is_error(out[k])) return rp_error_status();
            RP_TRY(rp__run_copy(out[k], made[k]));
        }
        return RP_OK;
    }
    for (uint32_t k = 0; k < n->n_out; k++) {
        out[k] = handle_of(p, part, n->out[k]);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    if (n->op->flags & RP_OP_RANDOM) { /* its own reservation must find the counter of its place */
        rp_generator *g = rp__random_generator(n);
        rp__random_draw unused;
        RP_TRY(rp__random_reserve(g ? g : p->device->generator, p->build_stream, 0, &unused));
        rp__capture *c = p->build_stream->capture;
        for (size_t i = 0; i < c->n_random; i++) {
            if (c->random[i].generator == (g ? g : p->device->generator))
                c->random[i].used = (uint64_t)n->random_offset;
        }
    }
    if (n->op->lowering == RP__LIBRARY) return n->op->rule.run(&call);
    if (n->op->lowering == RP__PRODUCT) return rp__product_run(&call);
    if (n->op->lowering == RP__POINTWISE || n->op->lowering == RP__ROWS || n->op->lowering == RP__INDEXED) {
        return rp__lower_launch(&call, p->device, p->build_stream, NULL); /* empty operands */
    }
    return rp__fail(RP_ERROR_UNAVAILABLE, "%s cannot be part of a program", n->op->name);
}

static rp_status record_library(rp__executable *p, const rp__program_part *part, const rp__ir_node *n) {
    rp_tensor **handles = rp__calloc(n->n_in + n->n_out + 1u, sizeof *handles);
    if (!handles) return RP__OOM("operands of a library op");
    rp_scope scope = rp__scope_begin();
    rp__site_frame frame = rp__site_push(n->site ? n->site : "", n->op->name);
    rp_status status = run_rule(p, part, n, handles, handles + n->n_in);
    rp__site_pop(frame);
    rp__scope_end(scope, NULL, 0);
    rp__free(handles);
    return status;
}

/* g: group `group`, or what is launched by itself of it. */
static rp_status lower(rp__executable *p, const rp__program_part *part, uint32_t group, const rp__fuse_group *g,
                       const rp__executable_place *places) {
    const rp__group_lowering l = {.places = places,
                                  .partial = g->space && g->space->columns ? &p->buffers[g->partial].place : NULL,
                                  .device = p->device,
                                  .stream = p->build_stream,
                                  .draw = draw,
                                  .draw_ctx = p,
                                  .freedoms = p->freedoms,
                                  .tune = p->tune ? RP__TUNE_USE : RP__TUNE_NOT,
                                  .kernels =
                                      part->kernels && !g->chain ? &part->kernels[2 * (size_t)group] : part->kernels};
    rp__group_made made;
    if (!RP__GROW(&p->dags, &p->dags_capacity, p->n_dags + 2)) return RP__OOM("kernels of a program");
    RP_TRY((g->chain ? rp__chain_lower : rp__group_lower)(&part->fusion, g, &l, &made));
    for (unsigned k = 0; k < 2 && made.dags[k]; k++) {
        struct rp__program_dag *d = &p->dags[p->n_dags++];
        *d = (struct rp__program_dag){.dag = made.dags[k], .tuned = made.tuned[k], .moved = made.moved[k]};
        memcpy(d->taken, made.taken[k], sizeof d->taken);
        if (made.schedule[k]) d->schedule = rp__arena_strdup(&p->arena, made.schedule[k]);
        rp__free(made.schedule[k]);
    }
    p->n_lowered += made.built;
    return RP_OK;
}

/* ---- regions */

/* The launch that decides for a device graph; elsewhere the host reads its predicate. */
static rp_status record_decision(recorder *r, const rp__program_part *of, rp__ir_value predicate,
                                 const rp__program_choice *c, bool first, uint32_t *out) {
    rp__executable *p = r->p;
    rp__operand operands[2];
    rp_scope scope = rp__scope_begin();
    r->group = RP__IR_NONE;
    r->follows = false;
    rp_tensor *on = handle_of(p, of, predicate), *counter = NULL;
    rp_status status = rp__tensor_is_error(on) ? rp_error_status() : RP_OK;
    if (status == RP_OK && c->counter != RP__IR_NONE) {
        const rp__executable_place *place = &p->buffers[c->counter].place;
        counter = rp__tensor_new(RP_I64, NULL, 0, rp__storage_retain(place->storage));
        status = rp__tensor_is_error(counter) ? rp_error_status() : RP_OK;
        if (status == RP_OK) counter->offset = place->base / (int64_t)sizeof(int64_t);
    }
    if (status == RP_OK) {
        operands[0] = rp__operand_of(on);
        if (counter) operands[1] = rp__operand_of(counter);
        rp__library_call call = {.op = c->loop ? "while" : "cond", .site = c->site, .limit = c->limit, .first = first};
        *out = p->n_records;
        status = rp__library_run(p->device, p->build_stream, RP__LIB_CHOOSE, operands, counter ? 2 : 1, &call);
    }
    rp__scope_end(scope, NULL, 0);
    return status;
}

static rp_status record_part(recorder *r, rp__program_part *part);

static rp_status record_choice(recorder *r, const rp__program_part *part, rp__program_choice *c) {
    const rp__ir_node *n = &part->ir->nodes[c->node];
    if (!c->loop) {
        RP_TRY(record_decision(r, part, n->in[0], c, true, &c->set));
    } else {
        rp__ir_value go = c->test->ir->body.results[0];
        RP_TRY(record_part(r, c->test));
        RP_TRY(record_decision(r, c->test, go, c, true, &c->set));
        RP_TRY(record_decision(r, c->test, go, c, false, &c->again));
    }
    for (unsigned k = 0; k < 2 && c->body[k]; k++) RP_TRY(record_part(r, c->body[k]));
    return RP_OK;
}

static rp_status add_step(rp__program_part *part, uint32_t record, rp__program_choice *choice) {
    if (!RP__GROW(&part->steps, &part->steps_capacity, part->n_steps + 1u)) return RP__OOM("steps of a program");
    part->steps[part->n_steps++] = (rp__program_step){record, choice};
    return RP_OK;
}

static rp_status record_group(recorder *r, rp__program_part *part, uint32_t group, const rp__executable_place *places) {
    rp__executable *p = r->p;
    const rp__fusion *f = &part->fusion;
    const rp__fuse_group *g = &f->groups[group];
    const rp__fuse_node *first = &f->nodes[g->members[0]];
    const uint32_t before = p->n_records;
    const size_t n_dags = p->n_dags;
    if (first->kind == RP__FUSE_NOTHING) return RP_OK;
    r->follows = part->n_steps > 0 && !part->steps[part->n_steps - 1].choice && p->n_records > 0 &&
                 part->steps[part->n_steps - 1].record == p->n_records - 1;
    if (first->kind == RP__FUSE_REGION) {
        r->follows = false;
        rp__program_choice *c = rp__program_choice_of(part, group);
        if (!c) return rp__fail(RP_ERROR_INTERNAL, "a region of a program has no blocks");
        RP_TRY(record_choice(r, part, c));
        return add_step(part, RP__IR_NONE, c);
    }
    r->group = part->first_group + group;
    const bool alone = first->kind == RP__FUSE_LIBRARY || (first->kind == RP__FUSE_PRODUCT && g->n_members == 1);
    if (alone && !g->chain) {
        RP_TRY(record_library(p, part, &part->ir->nodes[first->node]));
    } else {
        RP_TRY(lower(p, part, group, g, places));
    }
    p->made[r->group] =
        (struct rp__program_made){before, p->n_records - before, (uint32_t)n_dags, (uint32_t)(p->n_dags - n_dags)};
    for (uint32_t k = before; k < p->n_records; k++) RP_TRY(add_step(part, k, NULL));
    return RP_OK;
}

static rp_status record_part(recorder *r, rp__program_part *part) {
    const rp__executable *p = r->p;
    rp__executable_place *places = rp__calloc(part->ir->n_storages + 1u, sizeof *places);
    if (!places) return RP__OOM("buffers of a program");
    for (uint32_t s = 0; s < part->ir->n_storages; s++) places[s] = p->buffers[part->buffer_of[s]].place;
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < part->n_order && status == RP_OK; i++)
        status = record_group(r, part, part->order[i], places);
    rp__free(places);
    return status;
}

/* ---- schedules, before anything is recorded */

static rp_status no_draw(void *ctx, rp_generator *g, uint64_t inner, rp__random_draw *out) {
    (void)ctx, (void)g, (void)inner;
    memset(out, 0, sizeof *out); /* what draws is not measured */
    return RP_OK;
}

static rp_status tune_group(rp__executable *p, const rp__program_part *part, const rp__fuse_group *g,
                            const rp__executable_place *places) {
    const rp__fuse_node *first = &part->fusion.nodes[g->members[0]];
    if (first->kind == RP__FUSE_NOTHING || first->kind == RP__FUSE_REGION || first->kind == RP__FUSE_LIBRARY ||
        first->kind == RP__FUSE_PRODUCT || g->chain)
        return RP_OK;
    const rp__group_lowering l = {.places = places,
                                  .partial = g->space && g->space->columns ? &p->buffers[g->partial].place : NULL,
                                  .device = p->device,
                                  .draw = no_draw,
                                  .draw_ctx = p,
                                  .freedoms = p->freedoms,
                                  .tune = RP__TUNE_MEASURE};
    rp__group_made made;
    const rp_status status = rp__group_lower(&part->fusion, g, &l, &made);
    rp__dag_release(made.dags[0]);
    rp__dag_release(made.dags[1]);
    return status;
}

static rp_status tune_parts(rp__executable *p) {
    if (!p->device->ops->loops->schedules) return RP_OK;
    (void)rp__tune_copy_rate(p->device, true);
    for (rp__program_part *part = p->parts; part; part = part->next) {
        rp__executable_place *places = rp__calloc(part->ir->n_storages + 1u, sizeof *places);
        if (!places) return RP__OOM("buffers of a program");
        rp_status status = RP_OK;
        for (uint32_t s = 0; s < part->ir->n_storages; s++) places[s] = p->buffers[part->buffer_of[s]].place;
        for (uint32_t i = 0; i < part->n_order && status == RP_OK; i++)
            status = tune_group(p, part, &part->fusion.groups[part->order[i]], places);
        rp__free(places);
        RP_TRY(status);
    }
    return RP_OK;
}

rp_status rp__program_record(rp__executable *p) {
    recorder r = {.hook = {record}, .p = p};
    rp_status status = RP_OK;
    p->made = RP__NEW(&p->arena, struct rp__program_made, p->n_groups + 1u);
    if (!p->made) return RP__OOM("a program");
    if (p->tune) RP_TRY(tune_parts(p));
    rp_stream *before = rp__stream_retain(rp__current_stream(p->device)); /* the thread may be all that holds it */
    bool grad_mode = rp_set_grad_enabled(false);
    rp__layer *layers[RP__LAYER_COUNT];
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) layers[k] = rp__layer_set((rp__layer_kind)k, NULL);
    const uint64_t failures = rp__error_count();
    p->build_stream = rp__stream_new(p->device);
    p->pool = rp_pool_new(p->device->id);
    status = rp__status_since(failures);
    if (status == RP_OK) status = know_buffers(&r);
    if (status == RP_OK) status = rp_set_current_stream(p->build_stream);
    if (status == RP_OK) status = rp__capture_begin(p->build_stream, p->pool, RP_CAPTURE_THREAD_LOCAL);
    if (status == RP_OK) {
        rp__launch_recorder *previous = rp__launch_recorder_set(&r.hook);
        const rp__loop_backend *loops = p->device->ops->loops;
        if (loops->batch_begin) status = loops->batch_begin(p->device);
        bool batch = loops->batch_begin && status == RP_OK;
        if (status == RP_OK) status = record_part(&r, p->body);
        (void)rp__launch_recorder_set(previous);
        rp__devgraph *nothing = NULL; /* the recorder kept everything from the stream */
        rp_status ended = rp__capture_end(p->build_stream, &nothing, &p->states, &p->n_states);
        if (nothing) p->device->ops->graph_free(nothing);
        if (status == RP_OK) status = ended;
        if (batch) {
            rp_status compiled = loops->batch_end(p->device, status == RP_OK);
            if (status == RP_OK) status = compiled;
        }
    }
    rp__free(r.buffer);
    rp__map_free(&r.known);
    rp_status restored = rp_set_current_stream(before);
    rp__stream_drop(before);
    if (status == RP_OK) status = restored;
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) (void)rp__layer_set((rp__layer_kind)k, layers[k]);
    (void)rp_set_grad_enabled(grad_mode);
    if (status != RP_OK) return status;
    p->node = RP__NEW(&p->arena, uint32_t, p->n_records + 1u);
    return p->node ? RP_OK : RP__OOM("a program");
}

static rp_status take_random(rp__executable *p, const rp__executable_options *options) {
    const size_t n = options->n_random;
    p->random = RP__NEW(&p->arena, rp__executable_random, n + 1);
    if (!p->random) return RP__OOM("random state of a program");
    if (n) memcpy(p->random, options->random, n * sizeof *p->random);
    p->n_random = n;
    for (size_t k = 0; k < n; k++) (void)rp__generator_retain(p->random[k].generator);
    return RP_OK;
}

/* The rule of eager launches (kernel/cpu/jit.c), for all of the program's kernels at once. */
enum { HOT_RUNS = 32, HOT_BYTES = 1 << 28 };
void rp__program_plan_heat(rp__executable *p, bool wait) {
    if (!p->device->ops->loops->hot || p->n_dags == 0) return;
    if (wait) {
        rp__program_heat(p, true);
        return;
    }
    uint64_t bytes = 1;
    for (uint32_t k = 0; k < p->n_records; k++) {
        const rp__launch *l = p->records[k];
        for (uint32_t i = 0; i < l->n_slots; i++) bytes += (uint64_t)(l->slots[i].end - l->slots[i].begin);
    }
    p->hot_runs = HOT_BYTES / bytes > HOT_RUNS ? HOT_BYTES / bytes : HOT_RUNS;
}
void rp__program_heat(rp__executable *p, bool wait) {
    for (size_t k = 0; k < p->n_dags; k++) p->device->ops->loops->hot(p->dags[k].dag, wait);
}

void rp__shared_arena_begin(rp__shared_arena *a) {
    memset(a, 0, sizeof *a);
    (void)pthread_mutex_init(&a->lock, NULL);
}

void rp__shared_arena_end(rp__shared_arena *a) {
    if (a->storage) rp__storage_release(a->storage);
    if (a->stream) rp__stream_drop(a->stream);
    (void)pthread_mutex_destroy(&a->lock);
}

rp_status rp__program_begin(const rp_ir *ir, size_t n_in, const rp__executable_options *options, rp__executable **out) {
    *out = NULL;
    if (n_in != ir->body.n_args) {
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the graph takes %u arguments, not %zu", ir->body.n_args, n_in);
    }
    rp__executable *p = rp__calloc(1, sizeof *p);
    if (!p) return RP__OOM("a program");
    rp__shared_arena_begin(&p->own_turn);
    p->turn = options->arena ? options->arena : &p->own_turn;
    p->ir = rp__ir_retain((rp_ir *)(uintptr_t)ir);
    p->tell = options->tell;
    p->tell_ctx = options->tell_ctx;
    p->layout = options->layout;
    p->tune = options->tune || rp__env_number("REPRISE_TUNE", 0) != 0;
    rp_status status = check_devices(p);
    if (status == RP_OK && options->numbers == RP_NUMBERS_FAST && p->device->ops->loops->freedoms)
        p->freedoms = p->device->ops->loops->freedoms();
    if (status == RP_OK) status = take_random(p, options);
    if (status != RP_OK) {
        rp__executable_free(p);
        return status;
    }
    p->eager_peak = rp__program_eager_peak(p->ir);
    *out = p;
    return RP_OK;
}

rp_status rp__program_part_groups(rp__executable *p, rp__program_part *part) {
    part->first_group = p->n_groups;
    p->n_groups += part->fusion.n_groups;
    part->order = RP__NEW(&p->arena, uint32_t, part->fusion.n_groups + 1u);
    return part->order ? RP_OK : RP__OOM("order of a program");
}

rp_status rp__program_part_new(rp__executable *p, rp_ir *ir, rp__program_part **out) {
    rp__program_part *part = *out = RP__NEW(&p->arena, rp__program_part, 1);
    if (!part) {
        rp__ir_release(ir);
        return RP__OOM("a program");
    }
    memset(part, 0, sizeof *part);
    part->ir = ir;
    part->next = p->parts;
    p->parts = part;
    part->buffer_of = RP__NEW(&p->arena, uint32_t, ir->n_storages + 1u);
    if (!part->buffer_of) return RP__OOM("a program");
    memset(part->buffer_of, 0xff, ir->n_storages * sizeof *part->buffer_of);
    return RP_OK;
}

rp_status rp__program_choice_new(rp__executable *p, rp__program_part *part, uint32_t group, rp__program_choice **out) {
    const uint32_t index = part->fusion.nodes[part->fusion.groups[group].members[0]].node;
    const rp__ir_node *n = &part->ir->nodes[index];
    if (n->kind != RP__IR_COND && n->kind != RP__IR_WHILE)
        return rp__fail(RP_ERROR_UNAVAILABLE, "a checkpoint inside a program at %s", n->site ? n->site : "");
    rp__program_choice *c = *out = RP__NEW(&p->arena, rp__program_choice, 1);
    if (!c) return RP__OOM("a region of a program");
    *c = (rp__program_choice){.next = part->choices,
                              .loop = n->kind == RP__IR_WHILE,
                              .group = group,
                              .node = index,
                              .counter = RP__IR_NONE,
                              .set = RP__IR_NONE,
                              .again = RP__IR_NONE,
                              .site = n->site ? n->site : ""};
    if (c->loop && n->attrs[0].v.i > 0) c->limit = n->attrs[0].v.i;
    part->choices = c;
    p->n_choices++;
    return RP_OK;
}

void rp__program_parts_made(rp__executable *p) {
    for (rp__program_part *part = p ? p->parts : NULL; part; part = part->next) {
        rp__fusion_free(&part->fusion);
        part->kernels = NULL;
    }
}

uint64_t rp__executable_holds(const rp__executable *p, const rp__storage **arena) {
    *arena = p->memory;
    return atomic_load_explicit(&p->held, memory_order_relaxed);
}

void rp__executable_free(rp__executable *p) {
    if (!p) return;
    rp__program_drop_graph(p);
    for (rp__program_part *part = p->parts; part; part = part->next) {
        rp__free(part->steps);
        rp__free(part->segments);
        rp__ir_release(part->ir);
    }
    rp__free(p->places);
    rp__free(p->layouts);
    for (uint32_t i = 0; i < p->n_records; i++) rp__launch_free(p->records[i], false);
    rp__free(p->records);
    rp__free(p->record_group);
    rp__free(p->joined);
    for (uint32_t b = 0; b < p->n_buffers && p->buffers; b++) {
        if (p->buffers[b].place.storage && p->buffers[b].place.storage != p->memory) {
            rp__storage_release(p->buffers[b].place.storage);
        }
    }
    rp__free(p->buffers);
    for (uint32_t k = 0; k < p->n_outers; k++) {
        if (p->outers[k].fixed) rp__storage_release(p->outers[k].fixed);
    }
    for (uint32_t k = 0; k < p->n_results && p->results; k++) {
        if (p->results[k].fixed) rp__storage_release(p->results[k].fixed);
        for (unsigned i = 0; i < RP__PROGRAM_MEMORIES; i++) {
            if (p->results[k].kept[i]) rp__storage_release(p->results[k].kept[i]);
        }
    }
    for (size_t k = 0; k < p->n_scratch; k++) rp__storage_release(p->scratch[k]);
    rp__free(p->scratch);
    for (size_t k = 0; k < p->n_dags; k++) rp__dag_release(p->dags[k].dag);
    rp__free(p->dags);
    rp__capture_random_free(p->states, p->n_states);
    for (size_t k = 0; k < p->n_random && p->random; k++) rp__generator_drop(p->random[k].generator);
    if (p->memory) rp__storage_release(p->memory);
    if (p->build_stream) rp__stream_drop(p->build_stream);
    if (p->pool) rp__pool_drop(p->pool);
    rp__ir_release(p->ir);
    rp__arena_free(&p->arena);
    rp__shared_arena_end(&p->own_turn);
    rp__free(p);
}
