/* See recording.h. */
#include "graphs/recording.h"

#include "ops/private.h"
#include <string.h>

#include "core/alloc.h"
#include "core/flags.h"
#include "core/fork.h"
#include "core/log.h"
#include "device/error_record.h"

/* ---- side streams ---- */

enum { SIDE_STREAMS = 8 };
static rp__mutex side_lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_side, &side_lock, 1)
static rp_stream *side_streams[SIDE_STREAMS]; /* idle */

rp_stream *rp__side_stream_take(rp__device *d) {
    rp_stream *s = NULL;
    rp__lock(&side_lock);
    for (unsigned k = 0; k < SIDE_STREAMS && !s; k++) {
        if (!side_streams[k] || side_streams[k]->device != d) continue;
        s = side_streams[k];
        side_streams[k] = NULL;
    }
    rp__unlock(&side_lock);
    if (s) return s;
    s = rp__stream_new(d);
    return s && s->device ? s : NULL;
}

void rp__side_stream_give(rp_stream *s) {
    if (!s) return;
    rp__lock(&side_lock);
    for (unsigned k = 0; k < SIDE_STREAMS && s; k++) {
        if (side_streams[k]) continue;
        side_streams[k] = s;
        s = NULL;
    }
    rp__unlock(&side_lock);
    if (s) rp__stream_drop(s);
}

/* ---- capturing ---- */

static bool in_pool(const rp__recording *r, const rp__storage *s) { return s->block && s->block->pool == r->pool; }

rp__external *rp__recording_find(rp__recording *r, const rp__storage *s) {
    for (size_t k = 0; k < r->n_externals; k++)
        if (r->externals[k].storage == s) return &r->externals[k];
    return NULL;
}

static rp_status note_external(rp__recording *r, const rp__launch *l, const rp__slot *slot) {
    rp__external *e = rp__recording_find(r, slot->storage);
    if (!e) {
        if (!RP__GROW(&r->externals, &r->externals_capacity, r->n_externals + 1)) return RP__OOM("what a graph reads");
        e = &r->externals[r->n_externals++];
        *e = (rp__external){.storage = rp__storage_retain(slot->storage),
                            .version = atomic_load(&slot->storage->version),
                            .op = *rp__site_op() ? rp__site_op() : l->op, /* cat is made of copies */
                            .site = l->site,
                            .begin = slot->begin,
                            .end = slot->end,
                            .now = slot->storage->data};
    }
    if (slot->begin < e->begin) e->begin = slot->begin;
    if (slot->end > e->end) e->end = slot->end;
    e->access |= slot->access;
    if (l->kernel->kind == RP__KERNEL_CUDA_LIBRARY) e->library = true;
    return RP_OK;
}

static rp_status record(rp__launch_recorder *base, rp_stream *s, const rp__launch *l) {
    rp__recorder *c = (rp__recorder *)base;
    for (uint32_t k = 0; k < l->n_slots && s->capture; k++) {
        rp__storage *storage = l->slots[k].storage;
        if (!storage || in_pool(c->recording, storage)) continue;
        rp_status status = note_external(c->recording, l, &l->slots[k]);
        if (status != RP_OK) {
            c->failed = status;
            return status;
        }
    }
    return rp__launch_unrecorded(s, l);
}

rp_status rp__recorder_begin(rp__recorder *c, rp__recording *r, rp_stream *stream, rp_pool *pool,
                             rp_capture_mode mode) {
    rp__device *d = stream->device;
    memset(c, 0, sizeof *c);
    c->base.record = record;
    c->recording = r;
    r->device = d;
    rp_stream *previous = rp__stream_retain(rp__current_stream(d));
    RP_TRY(rp_set_current_stream(stream));
    rp_status status = rp__capture_begin(stream, pool, mode);
    if (status != RP_OK) {
        rp__error_state kept;
        rp__error_save(&kept);
        (void)rp_set_current_stream(previous);
        (void)rp_error_take();
        rp__error_restore(&kept);
        rp__stream_drop(previous);
        return status;
    }
    r->pool = rp__pool_retain(pool);
    c->previous = previous;
    c->stream = rp__stream_retain(stream);
    (void)rp__launch_recorder_set(&c->base);
    return RP_OK;
}

rp_status rp__recorder_check_outermost(const char *call) {
    return rp__launch_recorder_get()
               ? rp__fail(RP_ERROR_STATE, "%s: this thread is capturing already: a capture cannot hold another", call)
               : RP_OK;
}

bool rp__recorder_is_current(const rp__recorder *c) { return rp__launch_recorder_get() == &c->base; }

rp_status rp__recorder_end(rp__recorder *c, size_t *nodes) {
    rp__recording *r = c->recording;
    if (nodes) *nodes = 0;
    (void)rp__launch_recorder_set(NULL);
    if (c->stream->capture) r->counted = rp__replays_retain(c->stream->capture->replays);
    rp_status status = rp__capture_end(c->stream, &r->graph, &r->random, &r->n_random);
    rp_status restored = rp_set_current_stream(c->previous);
    rp__stream_drop(c->previous);
    rp__stream_drop(c->stream);
    if (status == RP_OK) status = c->failed != RP_OK ? c->failed : restored;
    if (status != RP_OK) {
        rp__recording_free(r);
        return status;
    }
    size_t n = r->device->ops->graph_nodes(r->graph);
    r->unknown = n == 0 && r->n_externals > 0; /* a driver that cannot say what was captured */
    for (size_t k = 0; k < n; k++) {
        const rp__launch *l = r->device->ops->graph_node(r->graph, (uint32_t)k);
        r->unknown = r->unknown || !l || l->barrier;
    }
    if (nodes) *nodes = n;
    return RP_OK;
}

rp_status rp__recording_instantiate(rp__recording *r) {
    if (!r->graph) return rp__fail(RP_ERROR_STATE, "there is no captured graph to instantiate");
    RP_TRY(r->device->ops->graph_instantiate(r->graph, r->device->default_stream));
    if (r->device->ops->graph_count && !r->instantiated) r->device->ops->graph_count(r->graph, &r->executables);
    r->instantiated = true;
    return RP_OK;
}

void rp__recording_free(rp__recording *r) {
    rp__capture_random_free(r->random, r->n_random);
    rp__replays_release(r->counted);
    if (r->graph) r->device->ops->graph_free(r->graph);
    for (size_t k = 0; k < r->n_externals; k++) {
        rp__storage_release(r->externals[k].storage);
        if (r->externals[k].moved) rp__storage_release(r->externals[k].moved);
    }
    rp__free(r->externals);
    if (r->pool) rp__pool_drop(r->pool);
    memset(r, 0, sizeof *r);
}

/* ---- replay ---- */

/* Whoever has one pool's turn asks for no second: what a call inside does belongs to its turn. A child of a fork has no use for pools whose
   turn another thread had. */
rp_pool *rp__turn_begin(rp_pool *pool) {
    if (!pool || rp__flags.has_turn) return NULL;
    rp__flags.has_turn = true;
    (void)rp__pool_retain(pool);
    rp__lock(&pool->turn);
    return pool;
}

void rp__turn_end(rp_pool *pool) {
    if (!pool) return;
    rp__flags.has_turn = false;
    rp__unlock(&pool->turn);
    rp__pool_drop(pool);
}

/* Graphs of one pool share memory, so a replay on another stream than the last waits for it. */
static rp_status order_behind_pool(rp__recording *r, rp_stream *s) {
    rp_status status = RP_OK;
    rp_stream *last = r->pool->replayed_on;
    if (last && last != s) {
        status = rp__stream_follow(s, last);
        r->stream_waits++;
    }
    if (status == RP_OK && last != s) {
        if (last) rp__stream_drop(last);
        r->pool->replayed_on = rp__stream_retain(s);
    }
    return status;
}

/* Who releases the graph, and what it reads, while it runs on s gives memory away that is not used again before s is done. */
static rp_status meet(rp__recording *r, rp_stream *s) {
    for (size_t k = 0; k < r->n_externals; k++) {
        RP_TRY(rp__storage_used_by(r->externals[k].storage, s));
        RP_TRY(rp__storage_used_by(r->externals[k].moved, s));
    }
    r->met = s->id;
    return RP_OK;
}

rp_status rp__recording_replay(rp__recording *r, rp_stream *s) {
    if (RP__UNLIKELY(!r->graph)) return rp__fail(RP_ERROR_STATE, "replay without a preceding successful capture");
    if (RP__UNLIKELY(!r->instantiated)) RP_TRY(rp__recording_instantiate(r));
    /* what kernels found in earlier replays, read without waiting for the device */
    if (RP__UNLIKELY(atomic_load_explicit(&r->device->errors->state, memory_order_relaxed) == 2))
        RP_TRY(rp__error_record_check(r->device));
    if (RP__UNLIKELY(r->pool->replayed_on != s)) RP_TRY(order_behind_pool(r, s));
    if (RP__UNLIKELY(r->met != s->id)) RP_TRY(meet(r, s));
    for (size_t k = 0; k < r->n_random; k++) {
        rp__capture_random *random = &r->random[k];
        uint64_t state[2];
        /* the memory outlives replays under way: it is of the default stream */
        if (!s->is_default) RP_TRY(rp__block_used_by(random->memory->block, s));
        if (random->borrowed) continue;
        rp__lock(&random->generator->lock);
        state[0] = random->generator->seed;
        state[1] = random->generator->offset;
        random->generator->offset += random->used;
        rp__unlock(&random->generator->lock);
        RP_TRY(r->device->ops->copy_in(r->device, s, random->state, state, sizeof state));
    }
    RP_TRY(r->device->ops->graph_launch(r->graph, s));
    r->replays++;
    atomic_fetch_add_explicit(&r->counted->count, 1, memory_order_relaxed);
    for (size_t k = 0; k < r->n_externals; k++) {
        const rp__external *e = &r->externals[k];
        if (e->access & RP__WRITE) rp__storage_written(e->moved ? e->moved : e->storage, e->op, e->site);
    }
    return RP_OK;
}

/* ---- re-pointing ---- */

bool rp__recording_movable(const rp__recording *r, const rp__external *e, const char **why) {
    *why = e->library   ? "a library call reads it"
           : r->unknown ? "the graph has a launch whose operands are not known, which may read it"
                        : NULL;
    return !*why;
}

static rp_status repoint_node(rp__recording *r, uint32_t node, const rp__external *e, const char *from,
                              const char *to) {
    const rp__launch *l = r->device->ops->graph_node(r->graph, node);
    uint64_t by = (uint64_t)(uintptr_t)to - (uint64_t)(uintptr_t)from, small[64], *words = NULL;
    for (uint32_t k = 0; k < l->n_slots; k++) {
        if (l->slots[k].storage != e->storage) continue;
        if (!words) {
            words = l->n_words <= sizeof small / sizeof *small ? small : rp__alloc(l->n_words * sizeof *words);
            if (!words) return RP__OOM("parameters of a graph node");
            memcpy(words, l->words, l->n_words * sizeof *words);
        }
        words[l->slots[k].word] = l->words[l->slots[k].word] + by; /* also where two slots share a word */
    }
    if (!words) return RP_OK;
    rp_status status = r->device->ops->graph_set_words(r->graph, node, words);
    if (words != small) rp__free(words);
    if (status == RP_OK) r->patches++;
    return status;
}

rp_status rp__recording_repoint(rp__recording *r, rp__external *e, rp__storage *to, char *address) {
    const char *why;
    char *target = to ? address : e->storage->data;
    if (target == e->now) return RP_OK;
    if (!rp__recording_movable(r, e, &why))
        return rp__fail(RP_ERROR_CAPTURE, "memory of a graph cannot be re-pointed: %s", why);
    if (((uintptr_t)target ^ (uintptr_t)e->storage->data) % 16)
        return rp__fail(RP_ERROR_CAPTURE, "memory of a graph cannot be re-pointed: the new address is aligned "
                                          "differently from the captured one (modulo 16)");
    size_t n = r->device->ops->graph_nodes(r->graph);
    for (uint32_t k = 0; k < n; k++) {
        rp_status status = repoint_node(r, k, e, e->now, target);
        if (RP__LIKELY(status == RP_OK)) continue;
        while (k-- > 0) (void)repoint_node(r, k, e, target, e->now); /* all or none: the next call counts from `now` */
        return status;
    }
    if (e->moved) rp__storage_release(e->moved);
    e->moved = to ? rp__storage_retain(to) : NULL;
    r->met = 0;
    e->now = target;
    return RP_OK;
}

/* ---- arguments ---- */

void rp__static_input_find(rp__recording *r, rp_tensor *recorded, rp__static_input *out) {
    *out = (rp__static_input){.tensor = recorded, .external = rp__recording_find(r, recorded->storage)};
}

static bool same_layout(const rp_tensor *a, const rp_tensor *b) {
    for (unsigned d = 0; d < a->ndim; d++)
        if (a->size[d] > 1 && a->stride[d] != b->stride[d]) return false;
    return true;
}

/* Why `actual` cannot be read where it is; RP__REASON_NONE when it can. */
static rp__reason must_copy(const rp__recording *r, const rp__static_input *input, const rp_tensor *actual,
                            bool overwritten) {
    const rp__external *e = input->external;
    const char *why;
    int64_t begin, end;
    rp__tensor_byte_range(input->tensor, &begin, &end);
    if (!e) return RP__REASON_UNKNOWN_LAUNCH;
    if (overwritten) return RP__REASON_OWN_RESULT;
    if (!rp__recording_movable(r, e, &why)) return e->library ? RP__REASON_LIBRARY_OPERAND : RP__REASON_UNKNOWN_LAUNCH;
    if (e->begin < begin || e->end > end) return RP__REASON_SHARED_MEMORY;
    if (rp__storage_is_unseen(actual->storage)) return RP__REASON_FOREIGN_MEMORY;
    if (!same_layout(actual, input->tensor)) return RP__REASON_OTHER_LAYOUT;
    if (((uintptr_t)rp__tensor_data(actual) ^ (uintptr_t)rp__tensor_data(input->tensor)) % 16)
        return RP__REASON_ALIGNMENT;
    return RP__REASON_NONE;
}

/* Grad mode aside: an argument that a graph reads or writes has no tape of its own in it. */
static rp_status copy(rp_tensor *to, rp_tensor *from) {
    bool grad = rp_set_grad_enabled(false);
    rp_tensor *done = rp_copy_(to, from);
    (void)rp_set_grad_enabled(grad);
    return rp__tensor_is_error(done) ? rp_error_status() : RP_OK;
}

rp_status rp__static_input_set(rp__recording *r, rp__static_input *input, rp_tensor *actual, bool overwritten,
                               rp__explain *explain, size_t number) {
    rp__external *e = input->external;
    const rp_tensor *recorded = input->tensor;
    input->stands_in = false;
    if (!e && !r->unknown) return RP_OK;
    size_t bytes = rp__dtype_bytes((rp_dtype)recorded->dtype);
    char *base = rp__tensor_data(actual) - (size_t)recorded->offset * bytes;
    if (RP__LIKELY(e && base == e->now && (actual->storage == e->moved || actual->storage == e->storage) &&
                   same_layout(actual, recorded)))
        return RP_OK;
    if (actual->storage == recorded->storage && actual->offset == recorded->offset && same_layout(actual, recorded))
        return e ? rp__recording_repoint(r, e, NULL, NULL) : RP_OK;
    rp__reason reason = must_copy(r, input, actual, overwritten);
    if (reason == RP__REASON_NONE) {
        RP_TRY(rp__recording_repoint(r, e, actual->storage, base));
        if (!input->patched) {
            rp__explain_add(explain, "patch", RP__REASON_MOVED_INPUT, NULL, 1,
                            "argument %zu moved: the nodes that read it were re-pointed", number);
            input->patched = true;
        }
        return RP_OK;
    }
    if (e) RP_TRY(rp__recording_repoint(r, e, NULL, NULL));
    if (!input->copied) {
        rp__explain_add(explain, "copy", reason, NULL, 1, "argument %zu is copied at every call that moves it", number);
        input->copied = true;
    }
    input->stands_in = true;
    return copy(input->tensor, actual);
}

rp_status rp__static_input_give_back(const rp__static_input *input, rp_tensor *actual) {
    if (!input->stands_in || !rp__static_input_written(input)) return RP_OK;
    return rp__storage_is_stale(actual->storage) ? RP_OK : copy(actual, input->tensor); /* gone with this replay */
}
