/* Memory of a program (program.h): gives what the body and the blocks of its regions store places. Called once, when they are
   fused and ordered and before anything is recorded.

   Arguments and captured tensors are proxies of their memory, so that two arguments in one storage stay two buffers. Results
   are memory of their own. Temporaries share one arena, and what is free of arguments that the caller gives away, planned
   over one line of positions for the body and all blocks: a region takes its positions between two of its own, at which its
   operands and results are alive; so branches share memory, and what a loop reads in each iteration lives to its end. An
   argument of a block is the buffer of the operand behind it, a result of a branch that of the region's result (blocks.c). */
#include <string.h>

#include "compile/program_parts.h"
#include "core/alloc.h"

/* A storage that stands for memory owned elsewhere while records are made. */
static rp_status proxy(rp__executable *p, rp__program_buffer *b, char *address, int64_t bytes) {
    b->place.storage = rp__storage_wrap(p->device->id, address, (size_t)bytes, NULL, NULL, NULL);
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
    rp__program_buffer *b = &p->buffers[info->storage];
    if (b->kind != RP__BUFFER_NONE) return RP_OK; /* a second argument in the same storage reads through the first */
    b->kind = kind;
    b->index = index;
    b->first_element = info->offset;
    int64_t begin, end;
    rp__tensor_byte_range(t, &begin, &end);
    b->bytes = end - begin + info->offset * (int64_t)rp__dtype_bytes(info->meta.dtype);
    return proxy(p, b, byte_zero(t, info), b->bytes);
}

static rp_status place_const(rp__executable *p, rp__program_buffer *b, const rp__ir_node *n) {
    b->kind = RP__BUFFER_CONST;
    b->bytes = (int64_t)n->data_bytes;
    b->place.storage = rp__storage_new(p->device, p->device->default_stream, n->data_bytes);
    if (!b->place.storage) return RP_ERROR_OUT_OF_MEMORY;
    b->place.bytes = b->bytes;
    b->place.storage->inner = true;
    if (n->data_bytes == 0) return RP_OK;
    return p->device->ops->copy_in(p->device, p->device->default_stream, b->place.storage->data, n->data,
                                   n->data_bytes);
}

/* ---- parts */

typedef struct placer {
    rp__executable *p;
    const rp__executable_options *options;
    rp__plan_buffer *plan;
    uint32_t *buffer_at; /* per entry of the plan */
    size_t n_plan, plan_capacity, buffer_capacity;
    uint32_t now;
    rp__plan_space *donors; /* of the arena of p */
    uint32_t *donor_at;     /* per donor: its buffer */
    uint32_t *donor_of;     /* per argument: its donor, RP__IR_NONE */
    uint32_t n_donors;
} placer;

static rp_status new_buffer(rp__executable *p, uint32_t *out) {
    if (!RP__GROW(&p->buffers, &p->buffers_capacity, p->n_buffers + 1u)) return RP__OOM("buffers of a program");
    memset(&p->buffers[p->n_buffers], 0, sizeof *p->buffers);
    p->buffers[p->n_buffers].kind = RP__BUFFER_NONE;
    *out = p->n_buffers++;
    return RP_OK;
}

static rp_status make_temp(placer *l, uint32_t buffer, int64_t bytes) {
    if (!RP__GROW(&l->plan, &l->plan_capacity, l->n_plan + 1) ||
        !RP__GROW(&l->buffer_at, &l->buffer_capacity, l->n_plan + 1))
        return RP__OOM("memory plan");
    rp__program_buffer *b = &l->p->buffers[buffer];
    b->kind = RP__BUFFER_TEMP;
    b->index = (uint32_t)l->n_plan;
    b->bytes = bytes;
    l->buffer_at[l->n_plan] = buffer;
    l->plan[l->n_plan++] = (rp__plan_buffer){.bytes = bytes, .first = l->now, .last = l->now};
    return RP_OK;
}

static rp_status new_temp(placer *l, int64_t bytes, uint32_t *out) {
    RP_TRY(new_buffer(l->p, out));
    return make_temp(l, *out, bytes);
}

/* The buffer is still read now. */
static void alive(placer *l, uint32_t buffer) {
    const rp__program_buffer *b = &l->p->buffers[buffer];
    if (b->kind == RP__BUFFER_TEMP && l->plan[b->index].last < l->now) l->plan[b->index].last = l->now;
    if (b->kind == RP__BUFFER_ARG && l->n_donors > 0 && l->donor_of[b->index] != RP__IR_NONE)
        l->donors[l->donor_of[b->index]].last = l->now;
}

static uint32_t buffer_of(const rp__program_part *part, rp__ir_value v) {
    return part->buffer_of[part->ir->values[v].storage];
}

/* Memory for a value that is stored, unless its storage has some. */
static rp_status place_value(placer *l, const rp__program_part *part, rp__ir_value v) {
    rp__executable *p = l->p;
    uint32_t at = buffer_of(part, v);
    int64_t bytes = part->bytes[part->ir->values[v].storage];
    rp__program_buffer *b = &p->buffers[at];
    if (b->kind != RP__BUFFER_NONE) return RP_OK;
    if (part != p->body || !part->fusion.result_storage[part->ir->values[v].storage]) return make_temp(l, at, bytes);
    b->bytes = bytes;
    b->kind = RP__BUFFER_RESULT;
    b->index = p->n_results++;
    p->result_bytes += bytes;
    return RP_OK;
}

static rp_status place_part(placer *l, rp__program_part *part);

/* One block of a region: arguments are the buffers behind the operands; results those of `results`, if given. */
static rp_status place_block(placer *l, const rp__program_part *part, const rp__ir_node *n, const uint32_t *results,
                             rp__program_part *block) {
    rp__executable *p = l->p;
    const rp_ir *ir = block->ir;
    uint32_t first = n->kind == RP__IR_COND;
    for (uint32_t k = 0; k < ir->body.n_args; k++)
        block->buffer_of[ir->values[ir->body.args[k]].storage] = buffer_of(part, n->in[first + k]);
    for (uint32_t k = 0; k < ir->body.n_results; k++)
        block->buffer_of[ir->values[ir->body.results[k]].storage] = results[k];
    for (uint32_t s = 0; s < ir->n_storages; s++) {
        if (block->buffer_of[s] == RP__IR_NONE) RP_TRY(new_buffer(p, &block->buffer_of[s]));
    }
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *c = &ir->nodes[ir->body.nodes[k]];
        if (c->dead) continue;
        if (c->kind == RP__IR_CONST) RP_TRY(place_const(p, &p->buffers[buffer_of(block, c->out[0])], c));
        if (c->kind == RP__IR_CAPTURED)
            return rp__fail(RP_ERROR_UNAVAILABLE, "a branch or loop body holds a captured tensor at %s",
                            c->site ? c->site : "");
    }
    return place_part(l, block);
}

static rp_status place_region(placer *l, rp__program_part *part, uint32_t group) {
    rp__executable *p = l->p;
    rp__program_choice *c = rp__program_choice_of(part, group);
    if (!c) return rp__fail(RP_ERROR_INTERNAL, "a region of a program has no blocks");
    const rp__ir_node *n = &part->ir->nodes[c->node];
    uint32_t *results = RP__NEW(&p->arena, uint32_t, n->n_out + 1u), go = RP__IR_NONE;
    if (!results) return RP__OOM("a region of a program");
    for (uint32_t k = 0; k < n->n_out; k++) {
        RP_TRY(place_value(l, part, n->out[k]));
        results[k] = buffer_of(part, n->out[k]);
    }
    if (c->loop) {
        if (c->limit > 0) RP_TRY(new_temp(l, (int64_t)sizeof(int64_t), &c->counter));
        RP_TRY(new_temp(l, 1, &go));
        RP_TRY(place_block(l, part, n, &go, c->test));
        RP_TRY(place_block(l, part, n, NULL, c->body[0]));
    } else {
        RP_TRY(place_block(l, part, n, results, c->body[0]));
        RP_TRY(place_block(l, part, n, results, c->body[1]));
    }
    l->now++;
    for (uint32_t k = 0; k < n->n_in; k++) alive(l, buffer_of(part, n->in[k]));
    for (uint32_t k = 0; k < n->n_out; k++) alive(l, results[k]);
    if (go != RP__IR_NONE) alive(l, go);
    if (c->counter != RP__IR_NONE) alive(l, c->counter);
    return RP_OK;
}

static rp_status place_group(placer *l, const rp__program_part *part, rp__fuse_group *g) {
    const rp__fusion *f = &part->fusion;
    const int64_t partial = rp__group_partial_bytes(g);
    if (partial > 0) RP_TRY(new_temp(l, partial, &g->partial));
    for (uint32_t m = 0; m < g->n_members; m++) {
        const rp__fuse_node *fn = &f->nodes[g->members[m]];
        const rp__ir_node *n = &part->ir->nodes[fn->node];
        for (uint32_t k = 0; k < n->n_out; k++) {
            bool inside = fn->kind == RP__FUSE_LOOP || g->n_members > 1;
            if (!inside || rp__fuse_stored(f, g->members, g->n_members, n->out[k]))
                RP_TRY(place_value(l, part, n->out[k]));
        }
        for (uint32_t k = 0; k < n->n_in; k++) {
            if (n->in[k] == RP__IR_NONE) continue;
            alive(l, buffer_of(part, n->in[k]));
            rp__program_buffer *b = &l->p->buffers[buffer_of(part, n->in[k])];
            if (rp__ir_writes(n, k) && (b->kind == RP__BUFFER_ARG || b->kind == RP__BUFFER_CAPTURED)) {
                b->written = true;
                b->written_site = n->site;
            }
        }
    }
    return RP_OK;
}

/* The result of a cat and what is stored in its parts are one storage: as large as the largest. */
static rp_status measure_storages(placer *l, rp__program_part *part) {
    const rp_ir *ir = part->ir;
    part->bytes = RP__NEW(&l->p->arena, int64_t, ir->n_storages + 1u);
    if (!part->bytes) return RP__OOM("memory plan");
    for (rp__ir_value v = 0; v < ir->n_values; v++) {
        int64_t *bytes = &part->bytes[ir->values[v].storage], own = rp__program_value_bytes(ir, v);
        if (*bytes < own && !rp__ir_is_view(rp__ir_producer(ir, v))) *bytes = own;
    }
    return RP_OK;
}

/* What groups store: results and temporaries, alive from the first writer to the last reader. */
static rp_status place_part(placer *l, rp__program_part *part) {
    RP_TRY(measure_storages(l, part));
    for (uint32_t i = 0; i < part->n_order; i++) {
        rp__fuse_group *g = &part->fusion.groups[part->order[i]];
        bool region = part->fusion.nodes[g->members[0]].kind == RP__FUSE_REGION;
        l->now++;
        RP_TRY(region ? place_region(l, part, part->order[i]) : place_group(l, part, g));
    }
    return RP_OK;
}

/* ---- the whole */

/* Arguments that may be overwritten, and are no part of a result. */
static rp_status find_donors(placer *l) {
    rp__executable *p = l->p;
    const rp_ir *ir = p->ir;
    uint32_t n = ir->body.n_args;
    if (!l->options->donors) return RP_OK;
    l->donors = RP__NEW(&p->arena, rp__plan_space, n + 1u);
    l->donor_at = RP__NEW(&p->arena, uint32_t, n + 1u);
    l->donor_of = RP__NEW(&p->arena, uint32_t, n + 1u);
    if (!l->donors || !l->donor_at || !l->donor_of) return RP__OOM("memory plan");
    for (uint32_t k = 0; k < n; k++) {
        const rp__ir_value_info *info = &ir->values[ir->body.args[k]];
        const rp__program_buffer *b = &p->buffers[info->storage];
        l->donor_of[k] = RP__IR_NONE;
        bool own = b->kind == RP__BUFFER_ARG && b->index == k && info->offset == 0 && b->bytes > 0;
        if (!l->options->donors[k] || !own || p->body->fusion.result_storage[info->storage]) continue;
        l->donors[l->n_donors] = (rp__plan_space){.bytes = b->bytes};
        l->donor_at[l->n_donors] = info->storage;
        l->donor_of[k] = l->n_donors++;
    }
    return RP_OK;
}

static rp_status place_body(placer *l, rp_tensor *const *in) {
    rp__executable *p = l->p;
    const rp_ir *ir = p->ir;
    for (uint32_t s = 0; s < ir->n_storages; s++) RP_TRY(new_buffer(p, &p->body->buffer_of[s]));
    for (uint32_t k = 0; k < ir->body.n_args; k++) RP_TRY(place_outer(p, ir->body.args[k], in[k], RP__BUFFER_ARG, k));
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        if (n->kind == RP__IR_CONST) RP_TRY(place_const(p, &p->buffers[ir->values[n->out[0]].storage], n));
        if (n->kind != RP__IR_CAPTURED) continue;
        const rp_tensor *t = ir->captured[n->captured_index];
        if (!t) return rp__fail(RP_ERROR_STATE, "a parsed graph has no captured tensors and cannot run");
        RP_TRY(place_outer(p, n->out[0], t, RP__BUFFER_CAPTURED, n->captured_index));
    }
    RP_TRY(find_donors(l));
    return place_part(l, p->body);
}

/* Under the lock of the arena. */
static bool has_room(const rp__executable *p, const rp__shared_arena *shared) {
    return shared && shared->storage && (int64_t)shared->storage->bytes >= p->arena_bytes &&
           rp__device_equal(shared->storage->device, p->device->id);
}

/* A temporary in an argument costs a record that is re-pointed when the argument moves: only where the arena gets smaller. */
static rp_status plan(placer *l) {
    rp__executable *p = l->p;
    int64_t alone, less;
    RP_TRY(rp__plan(l->plan, l->n_plan, NULL, 0, &alone, NULL));
    p->arena_bytes = alone;
    rp__lock(&p->turn->lock);
    bool room = has_room(p, l->options->arena);
    rp__unlock(&p->turn->lock);
    if (l->n_donors == 0 || room) return RP_OK;
    RP_TRY(rp__plan(l->plan, l->n_plan, l->donors, l->n_donors, &less, NULL));
    if (less >= alone) return rp__plan(l->plan, l->n_plan, NULL, 0, &p->arena_bytes, NULL);
    p->arena_bytes = less;
    p->donated_bytes = alone - less;
    return RP_OK;
}

/* Where the plan has put it. */
static void place_temp(placer *l, size_t entry) {
    rp__executable *p = l->p;
    const rp__plan_buffer *at = &l->plan[entry];
    rp__executable_place *place = &p->buffers[l->buffer_at[entry]].place;
    *place = (rp__executable_place){.storage = p->memory, .base = at->offset, .bytes = at->bytes};
    if (at->space == RP__PLAN_ARENA) return;
    rp__program_buffer *donor = &p->buffers[l->donor_at[at->space]];
    donor->donated = true;
    place->storage = rp__storage_retain(donor->place.storage);
}

static rp_status take_arena(rp__executable *p, const rp__executable_options *options) {
    rp__shared_arena *shared = options->arena;
    rp__lock(&p->turn->lock);
    if (has_room(p, shared)) {
        p->memory = rp__storage_retain(shared->storage);
    } else {
        size_t bytes = (size_t)p->arena_bytes,
               had = options->grows && shared && shared->storage ? shared->storage->bytes : 0;
        p->memory =
            rp__storage_new(p->device, p->device->default_stream, had && bytes < had + had / 4 ? had + had / 4 : bytes);
        if (p->memory && shared) {
            if (shared->storage) rp__storage_release(shared->storage);
            shared->storage = rp__storage_retain(p->memory);
        }
    }
    rp__unlock(&p->turn->lock);
    return p->memory ? RP_OK : RP_ERROR_OUT_OF_MEMORY;
}

static rp_status make_results(rp__executable *p) {
    p->results = RP__NEW(&p->arena, rp__program_memory, p->n_results + 1u);
    if (!p->results) return RP__OOM("results of a program");
    for (uint32_t s = 0; s < p->n_buffers; s++) {
        rp__program_buffer *b = &p->buffers[s];
        if (b->kind != RP__BUFFER_RESULT) continue;
        rp__program_memory *r = &p->results[b->index];
        r->buffer = s;
        r->kept[0] = rp__storage_new(p->device, p->device->default_stream, (size_t)b->bytes);
        if (!r->kept[0]) return RP_ERROR_OUT_OF_MEMORY;
        r->now = r->kept[0];
        rp__program_count(&p->held, r->now->bytes);
        RP_TRY(proxy(p, b, r->now->data, b->bytes));
    }
    return RP_OK;
}

/* Names the op that makes the largest of these buffers, for what is said when there is no memory; popped as other frames. */
static rp__site_frame push_largest(const rp__executable *p, unsigned kind) {
    const rp_ir *ir = p->ir;
    const rp__ir_node *largest = NULL;
    int64_t most = -1;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t o = 0; !n->dead && n->op && o < n->n_out; o++) {
            const uint32_t storage = ir->values[n->out[o]].storage;
            if (p->buffers[p->body->buffer_of[storage]].kind != kind || p->body->bytes[storage] <= most) continue;
            most = p->body->bytes[storage];
            largest = n;
        }
    }
    return rp__site_push(largest ? largest->site : NULL, largest ? largest->op->name : NULL);
}

rp_status rp__program_place_buffers(rp__executable *p, rp_tensor *const *in, const rp__executable_options *options) {
    placer l = {.p = p, .options = options};
    rp_status status = place_body(&l, in);
    if (status == RP_OK) status = plan(&l);
    if (status == RP_OK) {
        const rp__site_frame frame = push_largest(p, RP__BUFFER_TEMP);
        status = take_arena(p, options);
        rp__site_pop(frame);
    }
    for (size_t k = 0; k < l.n_plan && status == RP_OK; k++) place_temp(&l, k);
    if (status == RP_OK) {
        const rp__site_frame frame = push_largest(p, RP__BUFFER_RESULT);
        status = make_results(p);
        rp__site_pop(frame);
    }
    rp__free(l.plan);
    rp__free(l.buffer_at);
    return status;
}
