/* Programs (program.h): building by recording, and running. The run path allocates nothing but handles of results, hashes
   nothing and takes work only where an argument moved.

   Building: buffers get places (arguments as proxies of their memory, so that two arguments in one storage stay two buffers),
   groups are lowered in order under the recorder, slots are turned into buffer numbers, edges come from slots that conflict. */
#include "compile/program.h"

#include <string.h>

#include "compile/passes.h"
#include "core/alloc.h"
#include "device/capture.h"
#include "ops/execute.h"

typedef struct patch { /* a word that holds an address inside a buffer */
    uint32_t record, word;
} patch;

typedef struct buffer {
    enum { BUFFER_ARG, BUFFER_CAPTURED, BUFFER_RESULT, BUFFER_CONST, BUFFER_TEMP, BUFFER_NONE } kind;
    uint32_t index; /* argument, captured tensor, result slot */
    int64_t bytes;
    int64_t first_element; /* outside: offset of element 0 as traced */
    rp__executable_place place;
    char *address; /* outside and results: byte 0 as the records have it */
    patch *patches;
    uint32_t n_patches;
    bool written; /* by an ASSIGN or in place */
    const char *written_site;
    int64_t begin, end; /* bytes of it that records touch */
    bool library;       /* a record touches it that cannot be re-pointed inside a device graph */
} buffer;

typedef struct outer { /* what is compared at each call: one an argument or captured tensor that records touch */
    uint32_t buffer;
    uint32_t arg; /* RP__IR_NONE: captured */
    rp_tensor *captured;
    int64_t shift; /* address of byte 0 = address of element 0 - shift */
    bool write;
    const char *site;
    rp__storage *fixed; /* counted. Not NULL: records use this memory of ours, and each call copies (see read_moved) */
    rp__executable_copy why;
} outer;

enum { RESULT_MEMORIES = 3 };
typedef struct result_memory { /* memory of one result buffer: reused when the caller has let go of it */
    uint32_t buffer;
    rp__storage *kept[RESULT_MEMORIES]; /* counted */
    rp__storage *now;                   /* of the running call; borrowed from kept */
    rp__storage *fixed; /* counted. Not NULL: records write this memory of ours, and each call copies it to `now` */
} result_memory;

typedef struct result { /* a handle to be returned */
    bool absent;
    bool same; /* it is an argument (then `arg`) or a captured tensor itself */
    uint32_t arg;
    uint32_t memory; /* index into results, RP__IR_NONE: it lies in an argument or captured tensor */
    uint32_t outer_buffer;
    rp_dtype dtype;
    uint8_t ndim;
    rp_dim size[RP_MAX_DIMS], stride[RP_MAX_DIMS], offset; /* offset in the buffer */
    const char *op, *site;
} result;

struct rp__executable {
    rp__mutex lock;
    rp__device *device;
    rp__arena arena;
    rp_ir *ir; /* retained: names, sites, captured tensors and generators live in it */
    rp_stream *build_stream;
    rp_pool *pool;       /* scratch of library ops */
    rp__storage *memory; /* the arena; counted */
    buffer *buffers;     /* per storage of the graph */
    uint32_t n_buffers;
    rp__launch **records;
    uint32_t n_records;
    size_t records_capacity;
    uint32_t *record_group;
    size_t record_group_capacity;
    uint32_t *node;        /* per record: node of the device graph */
    rp__storage **scratch; /* counted */
    rp__dag **dags;        /* counted */
    size_t n_dags, dags_capacity;
    size_t n_scratch, scratch_capacity;
    rp__devgraph *graph; /* NULL: launched one by one */
    bool stale;          /* records that cannot be re-pointed have changed: the graph must be built again */
    size_t n_edges;
    outer *outers;
    uint32_t n_outers;
    result_memory *results;
    uint32_t n_results;
    result *outs;
    uint32_t n_outs;
    uint8_t *touched; /* per record: words changed since the graph has seen them */
    uint32_t *touched_list, n_touched;
    rp__executable_random *random;
    size_t n_random;
    rp__capture_random *states; /* device memory of seeds; ours */
    size_t n_states;
    rp__executable_kernel *kernels;
    size_t n_kernels;
    struct rp__executable_unfused *unfused;
    size_t n_unfused;
    int64_t arena_bytes, result_bytes, eager_peak;
    uint64_t runs;
    _Atomic uint64_t patches, fresh, moved, copies[RP__COPY_COUNT]; /* written under the lock, read by explain */
    _Atomic uint32_t moves;
};

/* ---- random counters */

static rp_generator *generator_of(const rp__ir_node *n) {
    for (uint32_t k = 0; k < n->n_attrs; k++) {
        if (n->attrs[k].kind == RP_ATTR_GENERATOR) return n->attrs[k].v.generator;
    }
    return NULL;
}

rp_status rp__random_totals(const rp_ir *ir, rp__executable_random **out, size_t *n) {
    size_t capacity = 0;
    *out = NULL;
    *n = 0;
    for (size_t k = 0; k < ir->n_nodes; k++) {
        const rp__ir_node *node = &ir->nodes[k];
        if (node->dead || node->kind != RP__IR_OP || !(node->op->flags & RP_OP_RANDOM)) continue;
        rp_generator *g = generator_of(node);
        if (!g) {
            rp__device *d = rp__device_get(ir->values[node->out[0]].meta.device);
            if (!d) goto failed;
            g = d->generator;
        }
        size_t i = 0;
        while (i < *n && (*out)[i].generator != g) i++;
        if (i == *n) {
            if (!RP__GROW(out, &capacity, *n + 1)) {
                (void)RP__OOM("random state of a program");
                goto failed;
            }
            (*out)[(*n)++] = (rp__executable_random){.generator = g};
        }
        rp_dim end = rp__dim_apply(RP__DIM_ADD, node->random_offset, node->random_count);
        (*out)[i].count = (uint64_t)rp__dim_apply(RP__DIM_MAX, (rp_dim)(*out)[i].count, end);
    }
    return RP_OK;
failed:
    rp__free(*out);
    *out = NULL;
    *n = 0;
    return rp_error_status();
}

/* ---- building */

typedef struct recorder {
    rp__launch_recorder hook; /* first */
    rp__executable *p;
    uint32_t group;
} recorder;

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
    if (!RP__GROW(&p->records, &p->records_capacity, p->n_records + 1u) ||
        !RP__GROW(&p->record_group, &p->record_group_capacity, p->n_records + 1u)) {
        return RP__OOM("launch records");
    }
    rp__launch *copy = rp__launch_copy(l, false);
    if (!copy) return RP_ERROR_OUT_OF_MEMORY;
    p->record_group[p->n_records] = r->group;
    p->records[p->n_records++] = copy;
    rp__slot *slots = (rp__slot *)(uintptr_t)copy->slots;
    for (uint32_t k = 0; k < copy->n_slots; k++) {
        rp__storage *storage = slots[k].storage;
        slots[k].buffer = -1;
        if (!storage || storage == p->memory) continue;
        bool known = false;
        for (uint32_t b = 0; b < p->n_buffers && !known; b++) {
            known = p->buffers[b].kind != BUFFER_NONE && p->buffers[b].place.storage == storage;
            if (known) slots[k].buffer = (int32_t)b;
        }
        for (size_t i = 0; i < p->n_scratch && !known; i++) known = p->scratch[i] == storage;
        if (known) continue;
        if (!RP__GROW(&p->scratch, &p->scratch_capacity, p->n_scratch + 1))
            return RP__OOM("scratch memory of a program");
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

static int64_t value_bytes(const rp_ir *ir, rp__ir_value v) {
    const rp__meta *m = &ir->values[v].meta;
    return rp__numel(m->size, m->ndim) * (int64_t)rp__dtype_bytes(m->dtype);
}

/* A storage that stands for memory owned elsewhere while records are made. */
static rp_status proxy(rp__executable *p, buffer *b, char *address, int64_t bytes) {
    b->place.storage = rp__storage_wrap(p->device->id, address, (size_t)bytes, NULL, NULL);
    if (!b->place.storage) return RP_ERROR_OUT_OF_MEMORY;
    b->place.base = 0;
    b->place.bytes = bytes;
    b->address = address;
    return RP_OK;
}

/* The address of byte 0 of a buffer in which tensor t, traced at `info`, lies. */
static char *byte_zero(const rp_tensor *t, const rp__ir_value_info *info) {
    char *data = rp__tensor_data(t);
    return data ? data - info->offset * (int64_t)rp__dtype_bytes(info->meta.dtype) : NULL;
}

static rp_status place_outer(rp__executable *p, rp__ir_value v, const rp_tensor *t, unsigned kind, uint32_t index) {
    const rp__ir_value_info *info = &p->ir->values[v];
    buffer *b = &p->buffers[info->storage];
    if (b->kind != BUFFER_NONE) return RP_OK; /* a second argument in the same storage reads through the first */
    b->kind = kind;
    b->index = index;
    b->first_element = info->offset;
    int64_t begin, end;
    rp__tensor_byte_range(t, &begin, &end);
    b->bytes = end - begin + info->offset * (int64_t)rp__dtype_bytes(info->meta.dtype);
    return proxy(p, b, byte_zero(t, info), b->bytes);
}

static rp_status place_const(rp__executable *p, const rp__ir_node *n) {
    buffer *b = &p->buffers[p->ir->values[n->out[0]].storage];
    b->kind = BUFFER_CONST;
    b->bytes = (int64_t)n->data_bytes;
    b->place.storage = rp__storage_new(p->device, p->device->default_stream, n->data_bytes);
    if (!b->place.storage) return RP_ERROR_OUT_OF_MEMORY;
    b->place.bytes = b->bytes;
    if (n->data_bytes == 0) return RP_OK;
    return p->device->ops->copy_in(p->device, p->device->default_stream, b->place.storage->data, n->data,
                                   n->data_bytes);
}

static bool has_epilogue(const rp__fusion *f, const rp__fuse_group *g) {
    return g->n_members == 2 && f->nodes[g->members[0]].kind == RP__FUSE_LIBRARY;
}

static rp_status place_buffers(rp__executable *p, const rp__fusion *f, const uint32_t *order, uint32_t n_order,
                               rp_tensor *const *in, const rp__executable_options *options) {
    const rp_ir *ir = p->ir;
    p->n_buffers = ir->n_storages;
    p->buffers = RP__NEW(&p->arena, buffer, ir->n_storages + 1u);
    rp__plan_buffer *plan = rp__calloc(ir->n_storages + 1u, sizeof *plan);
    uint32_t *storage_of = rp__calloc(ir->n_storages + 1u, sizeof *storage_of);
    rp_status status = RP_OK;
    if (!p->buffers || !plan || !storage_of) {
        status = RP__OOM("buffers of a program");
        goto done;
    }
    for (uint32_t s = 0; s < ir->n_storages; s++) p->buffers[s].kind = BUFFER_NONE;
    for (uint32_t k = 0; k < ir->body.n_args; k++) {
        RP_TRY_GOTO(status, done, place_outer(p, ir->body.args[k], in[k], BUFFER_ARG, k));
    }
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        if (n->kind == RP__IR_CONST) RP_TRY_GOTO(status, done, place_const(p, n));
        if (n->kind != RP__IR_CAPTURED) continue;
        const rp_tensor *t = ir->captured[n->captured_index];
        if (!t) {
            status = rp__fail(RP_ERROR_STATE, "a parsed graph has no captured tensors and cannot run");
            goto done;
        }
        RP_TRY_GOTO(status, done, place_outer(p, n->out[0], t, BUFFER_CAPTURED, n->captured_index));
    }
    /* what groups store: results and temporaries, alive from the first writer to the last reader */
    size_t n_plan = 0;
    for (uint32_t i = 0; i < n_order; i++) {
        const rp__fuse_group *g = &f->groups[order[i]];
        for (uint32_t m = 0; m < g->n_members; m++) {
            const rp__fuse_node *fn = &f->nodes[g->members[m]];
            const rp__ir_node *n = &ir->nodes[fn->node];
            for (uint32_t k = 0; k < n->n_out; k++) {
                rp__ir_value v = n->out[k];
                buffer *b = &p->buffers[ir->values[v].storage];
                bool inside = fn->kind == RP__FUSE_LOOP || g->n_members > 1;
                if (b->kind != BUFFER_NONE || (inside && !rp__fuse_stored(f, g->members, g->n_members, v))) continue;
                b->bytes = value_bytes(ir, v);
                if (f->result_storage[ir->values[v].storage]) {
                    b->kind = BUFFER_RESULT;
                    b->index = p->n_results++;
                    p->result_bytes += b->bytes;
                    continue;
                }
                b->kind = BUFFER_TEMP;
                b->index = (uint32_t)n_plan;
                storage_of[n_plan] = ir->values[v].storage;
                plan[n_plan++] = (rp__plan_buffer){.bytes = b->bytes, .first = i, .last = i};
            }
            for (uint32_t k = 0; k < n->n_in; k++) {
                if (n->in[k] == RP__IR_NONE) continue;
                buffer *b = &p->buffers[ir->values[n->in[k]].storage];
                if (b->kind == BUFFER_TEMP && plan[b->index].last < i) plan[b->index].last = i;
                if (rp__ir_writes(n, k) && (b->kind == BUFFER_ARG || b->kind == BUFFER_CAPTURED)) {
                    b->written = true;
                    b->written_site = n->site;
                }
            }
        }
    }
    RP_TRY_GOTO(status, done, rp__plan(plan, n_plan, &p->arena_bytes));
    rp__shared_arena *shared = options->arena;
    if (shared && shared->storage && (int64_t)shared->storage->bytes >= p->arena_bytes &&
        rp__device_equal(shared->storage->device, p->device->id)) {
        p->memory = rp__storage_retain(shared->storage);
    } else {
        p->memory = rp__storage_new(p->device, p->device->default_stream, (size_t)p->arena_bytes);
        if (!p->memory) {
            status = RP_ERROR_OUT_OF_MEMORY;
            goto done;
        }
        if (shared) {
            if (shared->storage) rp__storage_release(shared->storage);
            shared->storage = rp__storage_retain(p->memory);
        }
    }
    for (size_t k = 0; k < n_plan; k++) {
        p->buffers[storage_of[k]].place =
            (rp__executable_place){.storage = p->memory, .base = plan[k].offset, .bytes = plan[k].bytes};
    }
    p->results = RP__NEW(&p->arena, result_memory, p->n_results + 1u);
    if (!p->results) {
        status = RP__OOM("results of a program");
        goto done;
    }
    for (uint32_t s = 0; s < ir->n_storages; s++) {
        buffer *b = &p->buffers[s];
        if (b->kind != BUFFER_RESULT) continue;
        result_memory *r = &p->results[b->index];
        r->buffer = s;
        r->kept[0] = rp__storage_new(p->device, p->device->default_stream, (size_t)b->bytes);
        if (!r->kept[0]) {
            status = RP_ERROR_OUT_OF_MEMORY;
            goto done;
        }
        r->now = r->kept[0];
        RP_TRY_GOTO(status, done, proxy(p, b, r->now->data, b->bytes));
    }
    for (uint32_t i = 0; i < n_order; i++) { /* what an epilogue reads lies where it writes */
        const rp__fuse_group *g = &f->groups[order[i]];
        if (!has_epilogue(f, g)) continue;
        rp__ir_value from = ir->nodes[f->nodes[g->members[0]].node].out[0],
                     to = ir->nodes[f->nodes[g->members[1]].node].out[0];
        rp__executable_place *place = &p->buffers[ir->values[from].storage].place;
        *place = p->buffers[ir->values[to].storage].place;
        if (place->storage && place->storage != p->memory) (void)rp__storage_retain(place->storage);
    }
done:
    rp__free(plan);
    rp__free(storage_of);
    return status;
}

/* A handle of a value in the program's memory, for rules that take tensors. */
static rp_tensor *handle_of(rp__executable *p, rp__ir_value v) {
    const rp__ir_value_info *info = &p->ir->values[v];
    const rp__executable_place *place = &p->buffers[info->storage].place;
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

static rp_status run_rule(rp__executable *p, const rp__ir_node *n, rp_tensor **in, rp_tensor **out, bool *relu) {
    rp__call call;
    for (uint32_t k = 0; k < n->n_in; k++) {
        in[k] = n->in[k] == RP__IR_NONE ? NULL : handle_of(p, n->in[k]);
        if (in[k] && rp__tensor_is_error(in[k])) return rp_error_status();
    }
    rp__ir_call(n, in, out, &call);
    call.relu = relu;
    if (n->op->lowering == RP__USER) { /* allocates its own results */
        rp_tensor *made[RP__MAX_OUTS] = {0};
        call.out = made;
        RP_TRY(rp__user_run(&call));
        for (uint32_t k = 0; k < n->n_out; k++) {
            out[k] = handle_of(p, n->out[k]);
            if (rp__tensor_is_error(out[k])) return rp_error_status();
            RP_TRY(rp__run_copy(out[k], made[k]));
        }
        return RP_OK;
    }
    for (uint32_t k = 0; k < n->n_out; k++) {
        out[k] = handle_of(p, n->out[k]);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    if (n->op->flags & RP_OP_RANDOM) { /* its own reservation must find the counter of its place */
        rp_generator *g = generator_of(n);
        rp__random_draw unused;
        RP_TRY(rp__random_reserve(g ? g : p->device->generator, p->build_stream, 0, &unused));
        rp__capture *c = p->build_stream->capture;
        for (size_t i = 0; i < c->n_random; i++) {
            if (c->random[i].generator == (g ? g : p->device->generator))
                c->random[i].used = (uint64_t)n->random_offset;
        }
    }
    if (n->op->lowering == RP__LIBRARY) return n->op->rule.run(&call);
    if (n->op->lowering == RP__POINTWISE || n->op->lowering == RP__ROWS || n->op->lowering == RP__INDEXED) {
        return rp__lower_launch(&call, p->device, p->build_stream); /* empty operands */
    }
    return rp__fail(RP_ERROR_UNAVAILABLE, "%s cannot be part of a program", n->op->name);
}

/* relu: NULL, or to be set if the op's launch did the relu of its result too. */
static rp_status record_library(rp__executable *p, const rp__ir_node *n, bool *relu) {
    rp_tensor **handles = rp__calloc(n->n_in + n->n_out + 1u, sizeof *handles);
    if (!handles) return RP__OOM("operands of a library op");
    rp_scope scope = rp__scope_begin();
    rp__site_frame frame = rp__site_push(n->site ? n->site : "", n->op->name);
    rp_status status = run_rule(p, n, handles, handles + n->n_in, relu);
    rp__site_pop(frame);
    rp__scope_end(scope, NULL, 0);
    rp__free(handles);
    return status;
}

/* The DAG stays with the program: programs of other sizes find it, and its kernel, while one of them lives. */
static rp_status lower(rp__executable *p, const rp__fusion *f, const rp__fuse_group *g,
                       const rp__executable_place *places) {
    if (!RP__GROW(&p->dags, &p->dags_capacity, p->n_dags + 1)) return RP__OOM("kernels of a program");
    RP_TRY(rp__group_lower(f, g, places, p->device, p->build_stream, draw, p, &p->dags[p->n_dags]));
    p->n_dags++;
    return RP_OK;
}

static rp_status record_groups(rp__executable *p, const rp__fusion *f, const uint32_t *order, uint32_t n_order) {
    rp__executable_place *places = rp__calloc(p->n_buffers + 1u, sizeof *places);
    if (!places) return RP__OOM("buffers of a program");
    for (uint32_t b = 0; b < p->n_buffers; b++) places[b] = p->buffers[b].place;
    recorder r = {.hook = {record}, .p = p};
    rp_status status = RP_OK;
    rp_stream *before = rp__current_stream(p->device);
    bool grad_mode = rp_set_grad_enabled(false);
    rp__layer *layers[RP__LAYER_COUNT];
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) layers[k] = rp__layer_set((rp__layer_kind)k, NULL);
    p->build_stream = rp_stream_new(p->device->id);
    p->pool = rp_pool_new(p->device->id);
    if (rp_failed()) status = rp_error_status();
    if (status == RP_OK) status = rp_set_current_stream(p->build_stream);
    if (status == RP_OK) status = rp__capture_begin(p->build_stream, p->pool, RP_CAPTURE_THREAD_LOCAL);
    if (status == RP_OK) {
        rp__launch_recorder *previous = rp__launch_recorder_set(&r.hook);
        for (uint32_t i = 0; i < n_order && status == RP_OK; i++) {
            const rp__fuse_group *g = &f->groups[order[i]];
            const rp__fuse_node *first = &f->nodes[g->members[0]];
            r.group = order[i];
            if (first->kind == RP__FUSE_NOTHING) continue;
            if (first->kind == RP__FUSE_LIBRARY) {
                bool epilogue = has_epilogue(f, g), done = false;
                status = record_library(p, &p->ir->nodes[first->node], epilogue ? &done : NULL);
                if (status == RP_OK && epilogue && !done) { /* over the product, in place */
                    rp__fuse_group relu = {.members = g->members + 1, .n_members = 1};
                    status = lower(p, f, &relu, places);
                }
            } else {
                status = lower(p, f, g, places);
            }
        }
        (void)rp__launch_recorder_set(previous);
        rp__devgraph *nothing = NULL; /* the recorder kept everything from the stream */
        rp_status ended = rp__capture_end(p->build_stream, &nothing, &p->states, &p->n_states);
        if (nothing) p->device->ops->graph_free(nothing);
        if (status == RP_OK) status = ended;
    }
    (void)rp_set_current_stream(before);
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) (void)rp__layer_set((rp__layer_kind)k, layers[k]);
    (void)rp_set_grad_enabled(grad_mode);
    rp__free(places);
    return status;
}

/* Edges: for each buffer the accesses so far; a write waits for all that overlap, a read for writes. */
typedef struct access {
    rp__storage *storage;
    int64_t begin, end;
    uint32_t record;
    bool write;
} access;

static rp_status build_graph(rp__executable *p) {
    const rp__device_ops *ops = p->device->ops;
    p->n_edges = 0;
    access *log = NULL;
    size_t n_log = 0, log_capacity = 0;
    uint32_t *deps = rp__calloc(2 * ((size_t)p->n_records + 1), sizeof *deps),
             *mark = deps ? deps + p->n_records + 1 : NULL;
    rp_status status = deps ? ops->graph_new(p->device, &p->graph) : RP__OOM("edges of a program");
    uint32_t barrier = RP__IR_NONE;
    for (uint32_t i = 0; i < p->n_records && status == RP_OK; i++) {
        const rp__launch *l = p->records[i];
        uint32_t n = 0;
        if (l->barrier) {
            for (uint32_t k = 0; k < i; k++) deps[n++] = k;
            barrier = i;
        } else if (barrier != RP__IR_NONE) {
            deps[n++] = barrier;
            mark[barrier] = i + 1;
        }
        for (uint32_t k = 0; k < l->n_slots && !l->barrier; k++) {
            const rp__slot *s = &l->slots[k];
            if (!s->storage) continue;
            for (size_t a = 0; a < n_log; a++) {
                if (log[a].storage != s->storage || log[a].begin >= s->end || s->begin >= log[a].end) continue;
                if (!log[a].write && !(s->access & RP__WRITE)) continue;
                if (log[a].record == i || mark[log[a].record] == i + 1) continue;
                mark[log[a].record] = i + 1;
                deps[n++] = log[a].record;
            }
        }
        for (uint32_t k = 0; k < l->n_slots && !l->barrier && status == RP_OK; k++) {
            const rp__slot *s = &l->slots[k];
            if (!s->storage) continue;
            if (s->access & RP__WRITE) { /* what lies wholly inside is ordered through this write from now on */
                size_t kept = 0;
                for (size_t a = 0; a < n_log; a++) {
                    bool inside = log[a].storage == s->storage && log[a].begin >= s->begin && log[a].end <= s->end &&
                                  log[a].record != i;
                    if (!inside) log[kept++] = log[a];
                }
                n_log = kept;
            }
            if (!RP__GROW(&log, &log_capacity, n_log + 1)) {
                status = RP__OOM("edges of a program");
                break;
            }
            log[n_log++] = (access){s->storage, s->begin, s->end, i, (s->access & RP__WRITE) != 0};
        }
        p->n_edges += n;
        if (status == RP_OK) status = ops->graph_add(p->graph, l, deps, n, &p->node[i]);
    }
    if (status == RP_OK) status = ops->graph_instantiate(p->graph, p->device->default_stream);
    rp__free(log);
    rp__free(deps);
    return status;
}

/* Which words of which records hold addresses of which buffer. */
static rp_status collect_patches(rp__executable *p) {
    for (uint32_t i = 0; i < p->n_records; i++) {
        for (uint32_t k = 0; k < p->records[i]->n_slots; k++) {
            int32_t b = p->records[i]->slots[k].buffer;
            if (b < 0) continue;
            const rp__slot *s = &p->records[i]->slots[k];
            rp__kernel_kind kind = p->records[i]->kernel->kind;
            buffer *touched = &p->buffers[b];
            if (touched->n_patches++ == 0 || s->begin < touched->begin) touched->begin = s->begin;
            if (s->end > touched->end) touched->end = s->end;
            if (kind == RP__KERNEL_CUDA_LIBRARY || kind == RP__KERNEL_CUDA_USER) touched->library = true;
        }
    }
    for (uint32_t b = 0; b < p->n_buffers; b++) {
        p->buffers[b].patches = RP__NEW(&p->arena, patch, p->buffers[b].n_patches + 1u);
        if (!p->buffers[b].patches) return RP__OOM("patches of a program");
        p->buffers[b].n_patches = 0;
    }
    for (uint32_t i = 0; i < p->n_records; i++) {
        for (uint32_t k = 0; k < p->records[i]->n_slots; k++) {
            const rp__slot *s = &p->records[i]->slots[k];
            if (s->buffer < 0) continue;
            buffer *b = &p->buffers[s->buffer];
            bool twice = false;
            for (uint32_t j = 0; j < b->n_patches && !twice; j++)
                twice = b->patches[j].record == i && b->patches[j].word == s->word;
            if (!twice) b->patches[b->n_patches++] = (patch){i, s->word};
        }
    }
    p->touched = RP__NEW(&p->arena, uint8_t, p->n_records + 1u);
    p->touched_list = RP__NEW(&p->arena, uint32_t, p->n_records + 1u);
    p->outers = RP__NEW(&p->arena, outer, p->n_buffers + 1u);
    if (!p->touched || !p->touched_list || !p->outers) return RP__OOM("patches of a program");
    for (uint32_t s = 0; s < p->n_buffers; s++) {
        const buffer *b = &p->buffers[s];
        if (b->kind != BUFFER_ARG && b->kind != BUFFER_CAPTURED) continue;
        outer *o = &p->outers[p->n_outers];
        o->buffer = s;
        o->arg = b->kind == BUFFER_ARG ? b->index : RP__IR_NONE;
        o->captured = b->kind == BUFFER_CAPTURED ? p->ir->captured[b->index] : NULL;
        o->write = b->written;
        o->site = b->written_site ? b->written_site : "";
        rp__ir_value v = RP__IR_NONE;
        if (b->kind == BUFFER_ARG) v = p->ir->body.args[b->index];
        for (size_t k = 0; k < p->ir->n_nodes && v == RP__IR_NONE; k++) {
            const rp__ir_node *n = &p->ir->nodes[k];
            if (n->kind == RP__IR_CAPTURED && n->captured_index == b->index) v = n->out[0];
        }
        o->shift = p->ir->values[v].offset * (int64_t)rp__dtype_bytes(p->ir->values[v].meta.dtype);
        if (b->n_patches > 0 || o->write) p->n_outers++;
    }
    return RP_OK;
}

static rp_status describe_results(rp__executable *p) {
    const rp_ir *ir = p->ir;
    p->n_outs = ir->body.n_results;
    p->outs = RP__NEW(&p->arena, result, p->n_outs + 1u);
    if (!p->outs) return RP__OOM("results of a program");
    for (uint32_t k = 0; k < p->n_outs; k++) {
        result *r = &p->outs[k];
        rp__ir_value v = ir->body.results[k];
        r->absent = v == RP__IR_NONE;
        if (r->absent) continue;
        const rp__ir_value_info *info = &ir->values[v];
        const buffer *b = &p->buffers[info->storage];
        r->memory = b->kind == BUFFER_RESULT ? b->index : RP__IR_NONE;
        r->outer_buffer = info->storage;
        r->dtype = info->meta.dtype;
        r->ndim = info->meta.ndim;
        memcpy(r->size, info->meta.size, sizeof r->size);
        memcpy(r->stride, info->stride, sizeof r->stride);
        r->offset = info->offset;
        const rp__ir_node *n = rp__ir_producer(ir, v);
        r->same = rp__ir_is_outer(ir, v);
        r->arg = n ? RP__IR_NONE : info->out_index;
        r->op = n && n->kind == RP__IR_OP ? n->op->name : "compiled";
        r->site = n && n->site ? n->site : "";
    }
    return RP_OK;
}

/* ---- what explain says */

static int64_t eager_peak(const rp_ir *ir) {
    /* eager: every op's result lives from its op to the last reader of its memory; results to the end */
    int64_t now = 0, peak = 0;
    uint32_t *last = rp__calloc(ir->n_storages + 1u, sizeof *last);
    int64_t *bytes = rp__calloc(ir->n_storages + 1u, sizeof *bytes);
    for (size_t k = 0; last && k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_in; i++) {
            if (n->in[i] != RP__IR_NONE) last[ir->values[n->in[i]].storage] = (uint32_t)k + 1;
        }
    }
    for (uint32_t k = 0; last && k < ir->body.n_results; k++) {
        if (ir->body.results[k] != RP__IR_NONE) last[ir->values[ir->body.results[k]].storage] = UINT32_MAX;
    }
    for (size_t k = 0; last && bytes && k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_out && n->kind == RP__IR_OP; i++) {
            uint32_t s = ir->values[n->out[i]].storage;
            if (rp__ir_is_view(n) || bytes[s]) continue;
            bytes[s] = value_bytes(ir, n->out[i]);
            now += bytes[s];
        }
        if (now > peak) peak = now;
        for (uint32_t i = 0; i < n->n_in; i++) {
            if (n->in[i] == RP__IR_NONE || last[ir->values[n->in[i]].storage] != (uint32_t)k + 1) continue;
            now -= bytes[ir->values[n->in[i]].storage];
            bytes[ir->values[n->in[i]].storage] = 0;
        }
    }
    rp__free(last);
    rp__free(bytes);
    return peak;
}

static rp_status describe(rp__executable *p, const rp__fusion *f, const uint32_t *order, uint32_t n_order) {
    p->kernels = RP__NEW(&p->arena, rp__executable_kernel, n_order + 1u);
    p->unfused = RP__NEW(&p->arena, struct rp__executable_unfused, f->n_unfused + 1u);
    if (!p->kernels || !p->unfused) return RP__OOM("facts of a program");
    for (uint32_t i = 0; i < n_order; i++) {
        const rp__fuse_group *g = &f->groups[order[i]];
        const rp__fuse_node *first = &f->nodes[g->members[0]];
        if (first->kind == RP__FUSE_NOTHING) continue;
        rp__executable_kernel *k = &p->kernels[p->n_kernels++];
        rp__text t = {0};
        for (uint32_t m = 0; m < g->n_members; m++) {
            const rp__ir_node *n = &p->ir->nodes[f->nodes[g->members[m]].node];
            rp__text_add(&t, "%s%s", m ? "+" : "", n->kind == RP__IR_OP ? n->op->name : "assign");
        }
        k->ops = t.failed || !t.data ? NULL : rp__arena_strdup(&p->arena, t.data);
        rp__text_free(&t);
        if (!k->ops) return RP__OOM("facts of a program");
        const rp__ir_node *n = &p->ir->nodes[f->nodes[rp__fuse_named(f, g)].node];
        k->site = n->site ? n->site : "";
        k->library = first->kind == RP__FUSE_LIBRARY;
        k->server = k->library ? "library" : "loop";
        for (uint32_t r = 0; r < p->n_records; r++) {
            if (p->record_group[r] != order[i]) continue;
            k->kernel = p->records[r]->kernel;
            for (uint32_t s = 0; s < p->records[r]->n_slots; s++) {
                k->bytes += p->records[r]->slots[s].end - p->records[r]->slots[s].begin;
            }
            if (k->library && p->records[r]->kernel->name) k->server = p->records[r]->kernel->name;
        }
    }
    for (uint32_t i = 0; i < f->n_unfused; i++) {
        const rp__unfused_edge *e = &f->unfused[i];
        if (f->nodes[e->producer].group == f->nodes[e->consumer].group) continue;
        const rp__ir_node *a = &p->ir->nodes[f->nodes[e->producer].node],
                          *b = &p->ir->nodes[f->nodes[e->consumer].node];
        p->unfused[p->n_unfused++] =
            (struct rp__executable_unfused){e->reason, a->kind == RP__IR_OP ? a->op->name : "assign",
                                            b->kind == RP__IR_OP ? b->op->name : "assign", b->site ? b->site : ""};
    }
    return RP_OK;
}

static rp_status take_random(rp__executable *p, const rp__executable_options *options) {
    rp__executable_random *own = NULL;
    size_t n = 0;
    const rp__executable_random *from = options->random;
    if (from) {
        n = options->n_random;
    } else {
        RP_TRY(rp__random_totals(p->ir, &own, &n));
        from = own;
    }
    p->random = RP__NEW(&p->arena, rp__executable_random, n + 1);
    if (p->random && n) memcpy(p->random, from, n * sizeof *from);
    p->n_random = n;
    rp__free(own);
    if (!p->random) return RP__OOM("random state of a program");
    for (size_t k = 0; k < n; k++) (void)rp__generator_retain(p->random[k].generator);
    return RP_OK;
}

static rp_status build(rp__executable *p, rp_tensor *const *in, const rp__executable_options *options) {
    rp__fusion f;
    const rp__fuse_options fuse = {.none = options->no_fusion};
    RP_TRY(check_devices(p));
    RP_TRY(take_random(p, options));
    p->eager_peak = eager_peak(p->ir);
    if (!options->no_fusion) {
        rp_ir *spread;
        RP_TRY(rp__spread(p->ir, &spread));
        rp_ir_release(p->ir);
        p->ir = spread;
    }
    RP_TRY(rp__fuse(p->ir, &fuse, &f));
    uint32_t n_order = 0, *order = rp__calloc(f.n_groups + 1u, sizeof *order);
    rp_status status = order ? rp__fuse_order(&f, order, &n_order) : RP__OOM("order of a program");
    if (status == RP_OK) status = place_buffers(p, &f, order, n_order, in, options);
    if (status == RP_OK) status = record_groups(p, &f, order, n_order);
    if (status == RP_OK) {
        p->node = RP__NEW(&p->arena, uint32_t, p->n_records + 1u);
        status = p->node ? collect_patches(p) : RP__OOM("a program");
    }
    if (status == RP_OK && !options->no_graph) status = build_graph(p);
    if (status == RP_OK) status = describe_results(p);
    if (status == RP_OK) status = describe(p, &f, order, n_order);
    rp__free(order);
    rp__fusion_free(&f);
    return status;
}

rp_status rp__executable_new(const rp_ir *ir, rp_tensor *const *in, size_t n_in, const rp__executable_options *options,
                             rp__executable **out) {
    static const rp__executable_options defaults;
    *out = NULL;
    if (n_in != ir->body.n_args) {
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the graph takes %u arguments, not %zu", ir->body.n_args, n_in);
    }
    rp__executable *p = rp__calloc(1, sizeof *p);
    if (!p) return RP__OOM("a program");
    pthread_mutex_init(&p->lock, NULL);
    p->ir = rp__ir_retain((rp_ir *)(uintptr_t)ir);
    rp_status status = build(p, in, options ? options : &defaults);
    if (status != RP_OK) {
        rp__executable_free(p);
        return status;
    }
    *out = p;
    return RP_OK;
}

void rp__executable_free(rp__executable *p) {
    if (!p) return;
    if (p->graph) p->device->ops->graph_free(p->graph);
    for (uint32_t i = 0; i < p->n_records; i++) rp__launch_free(p->records[i], false);
    rp__free(p->records);
    rp__free(p->record_group);
    for (uint32_t b = 0; b < p->n_buffers && p->buffers; b++) {
        if (p->buffers[b].place.storage && p->buffers[b].place.storage != p->memory) {
            rp__storage_release(p->buffers[b].place.storage);
        }
    }
    for (uint32_t k = 0; k < p->n_outers; k++) {
        if (p->outers[k].fixed) rp__storage_release(p->outers[k].fixed);
    }
    for (uint32_t k = 0; k < p->n_results && p->results; k++) {
        if (p->results[k].fixed) rp__storage_release(p->results[k].fixed);
        for (unsigned i = 0; i < RESULT_MEMORIES; i++) {
            if (p->results[k].kept[i]) rp__storage_release(p->results[k].kept[i]);
        }
    }
    for (size_t k = 0; k < p->n_scratch; k++) rp__storage_release(p->scratch[k]);
    rp__free(p->scratch);
    for (size_t k = 0; k < p->n_dags; k++) rp__dag_release(p->dags[k]);
    rp__free(p->dags);
    for (size_t k = 0; k < p->n_states; k++) {
        rp__block_free(p->states[k].generator->device, p->states[k].block);
        rp_generator_release(p->states[k].generator);
    }
    rp__free(p->states);
    for (size_t k = 0; k < p->n_random && p->random; k++) rp_generator_release(p->random[k].generator);
    if (p->memory) rp__storage_release(p->memory);
    if (p->build_stream) rp_stream_release(p->build_stream);
    if (p->pool) rp_pool_release(p->pool);
    rp_ir_release(p->ir);
    rp__arena_free(&p->arena);
    pthread_mutex_destroy(&p->lock);
    rp__free(p);
}

/* ---- running */

static inline void count(_Atomic uint64_t *counter, uint64_t by) { /* one writer at a time */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by, memory_order_relaxed);
}

static inline void note_move(rp__executable *p, unsigned bit) {
    uint32_t moves = atomic_load_explicit(&p->moves, memory_order_relaxed);
    atomic_store_explicit(&p->moves, moves | 1u << bit, memory_order_relaxed);
}

static void move_buffer(rp__executable *p, buffer *b, char *address) {
    int64_t by = address - b->address;
    for (uint32_t k = 0; k < b->n_patches; k++) {
        uint32_t r = b->patches[k].record;
        uint64_t *words = (uint64_t *)(uintptr_t)p->records[r]->words;
        words[b->patches[k].word] += (uint64_t)by;
        if (!p->touched[r]) {
            p->touched[r] = 1;
            p->touched_list[p->n_touched++] = r;
        }
    }
    b->address = address;
}

/* ---- memory that moved

   Most records are re-pointed. Where that cannot be, the records get memory of the program's own, from the first call that needs
   it, and every call copies: arguments before the launch, what was written after it. On the device that is so for
   - library calls and users' kernels in a device graph: their nodes cannot change, so the graph is built once more;
   - an address whose low bits differ: kernels are compiled for the alignment of what they were recorded with;
   - wrapped memory in a device graph: a kernel in flight must not read what an owner whom we do not see changes or frees. */

enum { ALIGNMENT_MASK = 15 }; /* the widest load of a kernel is 16 bytes */

static rp_tensor *bytes_handle(rp__storage *storage, int64_t at, int64_t bytes, int64_t unit) {
    rp_dim n = bytes / unit;
    rp_tensor *t = rp__tensor_new(unit == 8 ? RP_I64 : unit == 4 ? RP_I32 : RP_U8, &n, 1, rp__storage_retain(storage));
    if (!rp__tensor_is_error(t)) t->offset = at / unit;
    return t;
}

/* to = from, both inside their storages, on the current stream, in the widest units that both addresses allow. */
static rp_status copy_bytes(rp__storage *to_storage, const char *to, rp__storage *from_storage, const char *from,
                            int64_t bytes) {
    int64_t to_at = to - (const char *)to_storage->data, from_at = from - (const char *)from_storage->data;
    uint64_t all =
        (uint64_t)(uintptr_t)to | (uint64_t)(uintptr_t)from | (uint64_t)to_at | (uint64_t)from_at | (uint64_t)bytes;
    int64_t unit = all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : 1;
    if (bytes == 0) return RP_OK;
    rp_scope scope = rp__scope_begin();
    rp_tensor *dst = bytes_handle(to_storage, to_at, bytes, unit),
              *src = bytes_handle(from_storage, from_at, bytes, unit);
    rp_status status =
        rp__tensor_is_error(dst) || rp__tensor_is_error(src) ? rp_error_status() : rp__run_copy(dst, src);
    rp__scope_end(scope, NULL, 0);
    return status;
}

/* The records of b use memory of ours from now on; aligned as what they were recorded with. */
static rp_status fix(rp__executable *p, buffer *b, rp_stream *s, rp__storage **out) {
    rp__storage *own = rp__storage_new(p->device, s, (size_t)(b->end - b->begin) + ALIGNMENT_MASK + 1);
    if (!own) return RP_ERROR_OUT_OF_MEMORY;
    uintptr_t low = (uintptr_t)(b->address + b->begin) & ALIGNMENT_MASK;
    move_buffer(p, b, (char *)own->data + low - b->begin);
    p->stale = p->stale || (b->library && p->graph);
    *out = own;
    return RP_OK;
}

/* An argument or captured tensor lies at `address`, not where its records read. */
static rp_status read_moved(rp__executable *p, outer *o, const rp_tensor *t, char *address, rp_stream *s) {
    buffer *b = &p->buffers[o->buffer];
    if (!o->fixed) {
        bool cuda = p->device->id.type != RP_DEVICE_CPU;
        if (b->library && p->graph)
            o->why = RP__COPY_LIBRARY;
        else if (cuda && p->graph && t->storage->foreign)
            o->why = RP__COPY_FOREIGN;
        else if (cuda && (((uintptr_t)address ^ (uintptr_t)b->address) & ALIGNMENT_MASK))
            o->why = RP__COPY_ALIGNMENT;
        else {
            move_buffer(p, b, address);
            count(&p->moved, 1);
            note_move(p, RP__COPY_COUNT);
            return RP_OK;
        }
        RP_TRY(fix(p, b, s, &o->fixed));
        note_move(p, o->why);
    }
    count(&p->copies[o->why], 1);
    return copy_bytes(o->fixed, b->address + b->begin, t->storage, address + b->begin, b->end - b->begin);
}

/* What assignments wrote into memory of ours goes to the tensor: exactly the elements written, nothing between them. */
static rp_status write_back(rp__executable *p, const outer *o, const rp_tensor *t) {
    const rp_ir *ir = p->ir;
    const buffer *b = &p->buffers[o->buffer];
    rp_scope scope = rp__scope_begin();
    rp_status status = RP_OK;
    for (size_t i = 0; i < ir->body.n_nodes && status == RP_OK; i++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[i]];
        for (uint32_t k = 0; k < n->n_in && status == RP_OK && !n->dead; k++) {
            if (n->in[k] == RP__IR_NONE || !rp__ir_writes(n, k)) continue;
            const rp__ir_value_info *info = &ir->values[n->in[k]];
            if (info->storage != o->buffer) continue;
            const rp__meta *m = &info->meta;
            rp_tensor *src = rp__tensor_new(m->dtype, m->size, m->ndim, rp__storage_retain(o->fixed)),
                      *dst = rp__tensor_new(m->dtype, m->size, m->ndim, rp__storage_retain(t->storage));
            if (rp__tensor_is_error(src) || rp__tensor_is_error(dst)) {
                status = rp_error_status();
                break;
            }
            memcpy(src->stride, info->stride, m->ndim * sizeof *src->stride);
            memcpy(dst->stride, info->stride, m->ndim * sizeof *dst->stride);
            src->offset = (b->address - (char *)o->fixed->data) / (int64_t)rp__dtype_bytes(m->dtype) + info->offset;
            dst->offset = t->offset + info->offset - b->first_element;
            status = rp__run_copy(dst, src);
        }
    }
    rp__scope_end(scope, NULL, 0);
    return status;
}

/* Memory for a result: one that nobody holds any more, or new. */
static rp_status next_memory(rp__executable *p, result_memory *r, rp_stream *s) {
    if (RP__LIKELY(atomic_load_explicit(&r->now->refs, memory_order_acquire) == 1)) return RP_OK;
    buffer *b = &p->buffers[r->buffer];
    rp__storage *found = NULL;
    unsigned free_slot = 0;
    for (unsigned k = 0; k < RESULT_MEMORIES && !found; k++) {
        if (!r->kept[k]) {
            free_slot = k;
        } else if (atomic_load_explicit(&r->kept[k]->refs, memory_order_acquire) == 1) {
            found = r->kept[k];
        }
    }
    if (!found) {
        found = rp__storage_new(p->device, s, (size_t)b->bytes);
        if (!found) return RP_ERROR_OUT_OF_MEMORY;
        if (r->kept[free_slot]) rp__storage_release(r->kept[free_slot]); /* the caller keeps it alive */
        r->kept[free_slot] = found;
        count(&p->fresh, 1);
    }
    r->now = found;
    if (r->fixed) return RP_OK;
    if (b->library && p->graph) {
        note_move(p, RP__COPY_RESULT);
        return fix(p, b, s, &r->fixed);
    }
    move_buffer(p, b, found->data);
    return RP_OK;
}

static rp_status rebuild(rp__executable *p) {
    p->device->ops->graph_free(p->graph);
    p->graph = NULL;
    for (uint32_t k = 0; k < p->n_touched; k++) p->touched[p->touched_list[k]] = 0;
    p->n_touched = 0;
    p->stale = false;
    rp_status status = build_graph(p);
    if (status != RP_OK && p->graph) { /* later calls launch one by one */
        p->device->ops->graph_free(p->graph);
        p->graph = NULL;
    }
    return status;
}

static rp_status set_random(rp__executable *p, rp_stream *s, const rp__executable_random *draws, size_t n_draws) {
    for (size_t k = 0; k < p->n_random; k++) {
        rp__executable_random *r = &p->random[k];
        const rp__executable_random *given = NULL;
        for (size_t i = 0; i < n_draws; i++) {
            if (draws[i].generator == r->generator) given = &draws[i];
        }
        if (given) {
            r->seed = given->seed;
            r->base = given->base;
            continue;
        }
        rp__lock(&r->generator->lock);
        r->seed = r->generator->seed;
        r->base = r->generator->offset;
        r->generator->offset += r->count;
        rp__unlock(&r->generator->lock);
    }
    for (size_t k = 0; k < p->n_states; k++) {
        for (size_t i = 0; i < p->n_random; i++) {
            if (p->random[i].generator != p->states[k].generator) continue;
            uint64_t words[2] = {p->random[i].seed, p->random[i].base};
            RP_TRY(p->device->ops->copy_in(p->device, s, p->states[k].state, words, sizeof words));
        }
    }
    return RP_OK;
}

static rp_status launch(rp__executable *p, rp_stream *s) {
    const rp__device_ops *ops = p->device->ops;
    if (!p->graph) {
        count(&p->patches, p->n_touched);
        for (uint32_t k = 0; k < p->n_touched; k++) p->touched[p->touched_list[k]] = 0;
        p->n_touched = 0;
        for (uint32_t i = 0; i < p->n_records; i++) RP_TRY(rp__launch_on(s, p->records[i]));
        return RP_OK;
    }
    while (p->n_touched > 0) {
        uint32_t r = p->touched_list[--p->n_touched];
        p->touched[r] = 0;
        count(&p->patches, 1);
        RP_TRY(ops->graph_set_words(p->graph, p->node[r], p->records[r]->words));
    }
    return ops->graph_launch(p->graph, s);
}

static rp_tensor *result_handle(rp__executable *p, const result *r, rp_tensor *const *in) {
    rp__storage *storage;
    rp_dim offset = r->offset;
    if (RP__LIKELY(r->memory != RP__IR_NONE)) {
        storage = p->results[r->memory].now;
    } else { /* memory of an argument, a captured tensor or a constant */
        const buffer *b = &p->buffers[r->outer_buffer];
        if (b->kind != BUFFER_ARG && b->kind != BUFFER_CAPTURED) {
            storage = b->place.storage;
            offset += b->place.base / (int64_t)rp__dtype_bytes(r->dtype);
        } else {
            rp_tensor *base = b->kind == BUFFER_ARG ? in[b->index] : p->ir->captured[b->index];
            if (r->same) return rp__tensor_enter_scope(r->arg != RP__IR_NONE ? in[r->arg] : base);
            return rp__tensor_view(base, r->size, r->stride, r->ndim, base->offset + r->offset - b->first_element);
        }
    }
    rp_tensor *t = rp__tensor_new(r->dtype, r->size, r->ndim, rp__storage_retain(storage));
    if (RP__UNLIKELY(rp__tensor_is_error(t))) return t;
    memcpy(t->stride, r->stride, r->ndim * sizeof *t->stride);
    t->offset = offset;
    t->op = r->op;
    t->site = r->site;
    return t;
}

static rp_status run(rp__executable *p, rp_tensor *const *in, rp_tensor **out, const rp__executable_random *draws,
                     size_t n_draws) {
    rp_stream *s = rp__current_stream(p->device);
    for (uint32_t k = 0; k < p->n_outers; k++) {
        outer *o = &p->outers[k];
        rp_tensor *t = o->captured ? o->captured : in[o->arg];
        char *address = rp__tensor_data(t);
        if (RP__UNLIKELY(!address)) continue; /* empty */
        address -= o->shift;
        if (RP__UNLIKELY(address != p->buffers[o->buffer].address)) RP_TRY(read_moved(p, o, t, address, s));
    }
    for (uint32_t k = 0; k < p->n_results; k++) RP_TRY(next_memory(p, &p->results[k], s));
    if (RP__UNLIKELY(p->n_random > 0)) RP_TRY(set_random(p, s, draws, n_draws));
    p->runs++;
    if (RP__UNLIKELY(p->stale)) RP_TRY(rebuild(p));
    RP_TRY(launch(p, s));
    for (uint32_t k = 0; k < p->n_results; k++) {
        const result_memory *r = &p->results[k];
        if (RP__LIKELY(!r->fixed)) continue;
        const buffer *b = &p->buffers[r->buffer];
        count(&p->copies[RP__COPY_RESULT], 1);
        RP_TRY(copy_bytes(r->now, (char *)r->now->data + b->begin, r->fixed, b->address + b->begin, b->end - b->begin));
    }
    for (uint32_t k = 0; k < p->n_outers; k++) {
        const outer *o = &p->outers[k];
        if (RP__UNLIKELY(o->write)) {
            const rp_tensor *t = o->captured ? o->captured : in[o->arg];
            if (o->fixed) RP_TRY(write_back(p, o, t));
            rp__storage_written(t->storage, "compiled function", o->site);
        }
    }
    for (uint32_t k = 0; k < p->n_outs; k++) {
        out[k] = p->outs[k].absent ? NULL : result_handle(p, &p->outs[k], in);
        if (out[k] && RP__UNLIKELY(rp__tensor_is_error(out[k]))) return rp_error_status();
    }
    return RP_OK;
}

rp_status rp__executable_run(rp__executable *p, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                             const rp__executable_random *draws, size_t n_draws) {
    if (RP__UNLIKELY(n_in != p->ir->body.n_args || n_out != p->n_outs)) {
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "the program takes %u arguments and gives %u results, not %zu and %zu", p->ir->body.n_args,
                        p->n_outs, n_in, n_out);
    }
    rp__lock(&p->lock);
    rp_status status = run(p, in, out, draws, n_draws);
    rp__unlock(&p->lock);
    return status;
}

const rp__executable_random *rp__executable_draws(const rp__executable *p, size_t *n) {
    *n = p->n_random;
    return p->random;
}

uint32_t rp__executable_moves(const rp__executable *p) { return atomic_load_explicit(&p->moves, memory_order_relaxed); }

void rp__executable_facts_of(const rp__executable *p, rp__executable_facts *out) {
    *out = (rp__executable_facts){.kernels = p->kernels,
                                  .n_kernels = p->n_kernels,
                                  .unfused = p->unfused,
                                  .n_unfused = p->n_unfused,
                                  .n_launches = p->n_records,
                                  .n_edges = p->n_edges,
                                  .arena_bytes = p->arena_bytes,
                                  .result_bytes = p->result_bytes,
                                  .eager_peak_bytes = p->eager_peak,
                                  .runs = p->runs,
                                  .moved = &p->moved,
                                  .copies = p->copies,
                                  .patches = &p->patches,
                                  .fresh_results = &p->fresh};
}
