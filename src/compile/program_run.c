/* The call of a program (program.h). It allocates nothing but handles of results, hashes nothing, and takes work only where an
   argument moved (program_moved.c). */
#include "compile/program_parts.h"

#include <string.h>

#include "core/alloc.h"
#include "device/allocator.h"
#include "device/error_record.h"
#include "kernel/library.h"

static rp_status rebuild(rp__executable *p) {
    for (uint32_t k = 0; k < p->n_touched; k++) p->touched[p->touched_list[k]] = 0;
    p->n_touched = 0;
    p->stale = false;
    rp_status status = rp__program_build_graph(p);
    if (status != RP_OK) rp__program_drop_graph(p); /* later calls launch one by one */
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
            r->memory = given->memory;
            continue;
        }
        rp__random_draw drawn;
        RP_TRY(rp__random_take(r->generator, s, r->count, &drawn, &r->memory));
        r->seed = drawn.seed;
        r->base = drawn.inner;
    }
    return RP_OK;
}

/* Where the records read it. A draw of a capture is looked up: its replay has said where it began. */
static rp_status write_states(rp__executable *p, rp_stream *s) {
    for (size_t k = 0; k < p->n_states; k++) {
        for (size_t i = 0; i < p->n_random; i++) {
            if (p->random[i].generator != p->states[k].generator) continue;
            const rp__executable_random *r = &p->random[i];
            uint64_t words[2] = {r->seed, r->base};
            if (r->memory) {
                RP_TRY(p->device->ops->copy_out(p->device, s, words, r->memory->block->data, sizeof words));
                words[1] += r->base;
            }
            RP_TRY(p->device->ops->copy_in(p->device, s, p->states[k].state, words, sizeof words));
        }
    }
    return RP_OK;
}

static rp_status run_part(rp__executable *p, const rp__program_part *part, rp_stream *s);

/* Waits for the stream and reads what a device graph's decision would read. */
static rp_status holds(rp__executable *p, const rp__program_choice *c, rp_stream *s, bool *out) {
    uint8_t on = 0;
    const void *at = (const void *)(uintptr_t)p->records[c->set]->words[RP__CHOOSE_PREDICATE];
    RP_TRY(p->device->ops->copy_out(p->device, s, &on, at, 1));
    *out = on != 0;
    return RP_OK;
}

static rp_status run_choice(rp__executable *p, const rp__program_choice *c, rp_stream *s) {
    bool on;
    if (!c->loop) {
        RP_TRY(holds(p, c, s, &on));
        return run_part(p, c->body[on ? 0 : 1], s);
    }
    RP_TRY(run_part(p, c->test, s));
    for (int64_t i = 0; c->limit == 0 || i < c->limit; i++) {
        RP_TRY(holds(p, c, s, &on));
        if (!on) break;
        RP_TRY(run_part(p, c->body[0], s));
        RP_TRY(run_part(p, c->test, s));
    }
    return RP_OK;
}

static rp_status run_part(rp__executable *p, const rp__program_part *part, rp_stream *s) {
    const rp__program_segment *segment = part->segments, *end = segment + part->n_segments;
    for (uint32_t k = 0; k < part->n_steps;) {
        const rp__program_step *step = &part->steps[k];
        if (part->n_segments > 0 && segment < end && segment->first == k) {
            RP_TRY(p->device->ops->graph_launch(segment->graph, s));
            k += segment++->n;
            continue;
        }
        RP_TRY(step->choice ? run_choice(p, step->choice, s) : rp__launch_on(s, p->records[step->record]));
        k++;
    }
    return RP_OK;
}

static rp_status repoint(rp__executable *p, uint32_t record) {
    const rp__launch *l = p->records[record];
    for (uint32_t at = p->node[record]; at != RP__IR_NONE; at = p->places[at].next) {
        const rp__program_place *place = &p->places[at];
        uint64_t decision[8];
        if (RP__UNLIKELY(place->handle != 0)) {
            memcpy(decision, l->words, l->n_words * sizeof *decision);
            decision[0] = place->handle;
        }
        RP_TRY(p->device->ops->graph_set_words(place->graph, place->node, place->handle ? decision : l->words));
    }
    return RP_OK;
}

/* A library's call by itself. Its node cannot change, so a graph is of the memory with which it was made, and calls with other memory do
   without. Calls that come with the same memory time and again get one, which costs the host less than the library's own call does; memory that
   does not stay is waited for twice as long each time. */
static rp_status launch_call(rp__executable *p, rp_stream *s, bool moved) {
    enum { STEADY = 4, MOST = 6 };
    if (moved) {
        p->steady = 0;
        if (p->graph) rp__program_drop_graph(p);
    } else if (!p->graph && p->calls_graphed < MOST && ++p->steady >= (uint32_t)STEADY << p->calls_graphed &&
               !rp_failed()) {
        const rp_status status = rp__program_build_graph(p);
        p->graphed = false; /* its records move as if there were none */
        p->calls_graphed = status == RP_OK ? p->calls_graphed + 1 : MOST;
        if (status != RP_OK) {
            rp__program_drop_graph(p);
            (void)rp_error_take();
        }
    }
    return p->graph ? p->device->ops->graph_launch(p->graph, s) : run_part(p, p->body, s);
}

static rp_status launch(rp__executable *p, rp_stream *s) {
    const bool moved = p->n_touched > 0;
    if (!p->graphed) {
        rp__program_count(&p->patches, p->n_touched);
        for (uint32_t k = 0; k < p->n_touched; k++) p->touched[p->touched_list[k]] = 0;
        p->n_touched = 0;
        if (p->one_call) return launch_call(p, s, moved);
    }
    while (p->n_touched > 0) {
        uint32_t r = p->touched_list[p->n_touched - 1];
        RP_TRY(repoint(p, r)); /* one that fails is tried again by the next call */
        p->n_touched--;
        p->touched[r] = 0;
        rp__program_count(&p->patches, 1);
    }
    return p->graph ? p->device->ops->graph_launch(p->graph, s) : run_part(p, p->body, s);
}

/* captured: memory of results of a call in a capture; NULL: that of the program. */
static rp_tensor *result_handle(rp__executable *p, const rp__program_result *r, rp_tensor *const *in,
                                rp__storage *const *captured) {
    rp__storage *storage;
    rp_dim offset = r->offset;
    if (RP__LIKELY(r->memory != RP__IR_NONE)) {
        storage = RP__UNLIKELY(captured != NULL) ? captured[r->memory] : p->results[r->memory].now;
    } else { /* memory of an argument, a captured tensor or a constant */
        const rp__program_buffer *b = &p->buffers[r->outer_buffer];
        if (b->kind != RP__BUFFER_ARG && b->kind != RP__BUFFER_CAPTURED) {
            storage = b->place.storage;
            offset += b->place.base / (int64_t)rp__dtype_bytes(r->dtype);
        } else {
            rp_tensor *base = b->kind == RP__BUFFER_ARG ? in[b->index] : p->ir->captured[b->index];
            if (r->same) return rp__tensor_enter_scope(r->arg != RP__IR_NONE ? in[r->arg] : base);
            return rp__tensor_view(base, r->size, r->stride, r->ndim, base->offset + r->offset - b->first_element);
        }
    }
    rp_tensor *t = rp__tensor_over(r->dtype, r->size, r->stride, r->ndim, offset, rp__storage_retain(storage));
    if (RP__UNLIKELY(rp__tensor_is_error(t))) return t;
    t->op = r->op;
    t->site = r->site;
    return t;
}

/* From the launch on, also one that fails, nobody finds in them what was saved there. */
static void overwrite_donors(const rp__executable *p, rp_tensor *const *in) {
    for (uint32_t k = 0; k < p->n_outers; k++) {
        const rp__program_buffer *b = &p->buffers[p->outers[k].buffer];
        if (b->donated) rp__storage_written(in[b->index]->storage, "a backward without retain_graph", NULL);
    }
}

static rp_status read_moved(rp__executable *p, rp__program_outer *o, rp_tensor *t, rp_stream *s) {
    if (!t->storage->data) return rp__tensor_materialise(t); /* empty, or a value that no trace has computed */
    char *address = rp__tensor_data(t);
    RP_TRY(rp__program_read_moved(p, o, t, address - o->shift, s));
    o->now = o->fixed ? 0 : (uintptr_t)address; /* what is copied is copied at each call */
    return RP_OK;
}

static rp_status give(rp__executable *p, rp_tensor *const *in, rp__storage *const *captured, rp_tensor **out) {
    for (uint32_t k = 0; k < p->n_outs; k++) {
        out[k] = p->outs[k].absent ? NULL : result_handle(p, &p->outs[k], in, captured);
        if (out[k] && RP__UNLIKELY(rp__tensor_is_error(out[k]))) return rp_error_status();
    }
    return RP_OK;
}

static rp_status run_captured(rp__executable *p, rp_stream *s, rp_tensor *const *in, rp_tensor **out) {
    rp__storage **results = rp__calloc(p->n_results + 1u, sizeof *results);
    if (!results) return RP__OOM("a captured program");
    rp_status status = rp__program_capture(p, in, s, results);
    for (const rp__program_outer *o = p->outers, *end = o + p->n_written; o < end && status == RP_OK; o++)
        rp__storage_written((o->captured ? o->captured : in[o->arg])->storage, "compiled function", o->site);
    if (status == RP_OK) status = give(p, in, results, out);
    for (uint32_t k = 0; k < p->n_results; k++) rp__storage_release(results[k]);
    rp__free(results);
    return status;
}

static rp_status run(rp__executable *p, rp_tensor *const *in, rp_tensor **out, const rp__executable_random *draws,
                     size_t n_draws) {
    rp_stream *s = rp__current_stream(p->device);
    /* Of an earlier call: whoever waits by other means than ours would not hear of it. Nobody does for a CPU. */
    if (p->device != &rp__cpu_device) RP_TRY(rp__error_record_check(p->device));
    if (RP__UNLIKELY(s->capture != NULL)) {
        RP_TRY(set_random(p, s, draws, n_draws));
        return run_captured(p, s, in, out);
    }
    if (RP__UNLIKELY(rp__several_streams())) RP_TRY(rp__program_meet(p, in, s));
    for (rp__program_outer *o = p->outers + p->first_compared, *end = p->outers + p->end_compared; o < end; o++) {
        rp_tensor *t = o->captured ? o->captured : in[o->arg];
        uintptr_t address = (uintptr_t)t->storage->data + (uintptr_t)(t->offset * o->element_bytes);
        if (RP__UNLIKELY(address != o->now)) RP_TRY(read_moved(p, o, t, s));
    }
    for (uint32_t k = 0; k < p->n_results; k++) {
        rp__program_memory *r = &p->results[k];
        bool held = atomic_load_explicit(&r->now->refs, memory_order_acquire) != 1;
        if (RP__UNLIKELY(held)) RP_TRY(rp__program_next_memory(p, r, s));
    }
    if (RP__UNLIKELY(rp__several_streams())) RP_TRY(rp__program_await_readers(p, s));
    if (RP__UNLIKELY(p->n_random > 0)) {
        RP_TRY(set_random(p, s, draws, n_draws));
        RP_TRY(write_states(p, s));
    }
    if (RP__UNLIKELY(++p->runs == p->hot_runs)) rp__program_heat(p, false);
    if (RP__UNLIKELY(p->stale)) RP_TRY(rebuild(p));
    if (p->donated_bytes > 0) overwrite_donors(p, in);
    RP_TRY(launch(p, s));
    for (uint32_t k = 0; k < p->n_results; k++)
        if (RP__UNLIKELY(p->results[k].fixed)) RP_TRY(rp__program_give_result(p, &p->results[k]));
    for (const rp__program_outer *o = p->outers, *end = o + p->n_written; o < end; o++) {
        const rp_tensor *t = o->captured ? o->captured : in[o->arg];
        if (RP__UNLIKELY(o->fixed != NULL))
            RP_TRY(rp__program_write_back(p, o, t, o->fixed, p->buffers[o->buffer].address));
        rp__storage_written(t->storage, "compiled function", o->site);
    }
    return give(p, in, NULL, out);
}

static __attribute__((noinline)) void tell(rp__executable *p, uint32_t moves) {
    uint32_t before = atomic_fetch_or_explicit(&p->told, moves, memory_order_relaxed);
    if (p->tell && (moves & ~before)) p->tell(p->tell_ctx, p, moves & ~before);
}

static __attribute__((noinline)) rp_status refuse(const rp__executable *p, size_t n_in, size_t n_out) {
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the program takes %u arguments and gives %u results, not %zu and %zu",
                    p->ir->body.n_args, p->n_outs, n_in, n_out);
}

static bool has_news(const rp__executable *p, uint32_t *moves) {
    *moves = atomic_load_explicit(&p->moves, memory_order_relaxed);
    return *moves != atomic_load_explicit(&p->told, memory_order_relaxed);
}

rp_status rp__executable_run_alone(rp__executable *p, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                   size_t n_out) {
    uint32_t moves;
    if (RP__UNLIKELY(n_in != p->ir->body.n_args || n_out != p->n_outs)) return refuse(p, n_in, n_out);
    rp_status status = run(p, in, out, NULL, 0);
    if (RP__UNLIKELY(has_news(p, &moves))) tell(p, moves);
    return status;
}

rp_status rp__executable_run(rp__executable *p, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out,
                             const rp__executable_random *draws, size_t n_draws, rp__executable_random *drawn) {
    uint32_t moves;
    if (RP__UNLIKELY(n_in != p->ir->body.n_args || n_out != p->n_outs)) return refuse(p, n_in, n_out);
    rp__lock(&p->turn->lock);
    rp_status status = run(p, in, out, draws, n_draws);
    if (RP__UNLIKELY(drawn && p->n_random > 0)) memcpy(drawn, p->random, p->n_random * sizeof *drawn);
    rp__unlock(&p->turn->lock);
    if (RP__UNLIKELY(has_news(p, &moves))) tell(p, moves);
    return status;
}
