/* The device-independent part of stream capture: which streams capture, where their memory comes from, what was forbidden, and
   how many random counters the graph will use. Devices record; floor 7 begins and ends. */
#include "device/capture.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "device/allocator.h"

/* The list, and of its members `invalid` and the streams that joined. The allocator's lock is not taken under it. */
static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)
static rp__capture *captures;
static atomic_int active;

bool rp__stream_capturing(const rp_stream *s) { return s->capture != NULL; }

rp__replays *rp__replays_retain(rp__replays *r) {
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void rp__replays_release(rp__replays *r) {
    if (r && atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) rp__free(r);
}

rp__capture *rp__capture_current(void) {
    if (RP__LIKELY(!rp__captures_active())) return NULL;
    for (rp__device *d = NULL; (d = rp__device_next_open(d));) {
        rp__capture *c = rp__current_stream(d)->capture;
        if (c) return c;
    }
    return NULL;
}

bool rp__captures_active(void) { return atomic_load_explicit(&active, memory_order_acquire) != 0; }

bool rp_is_capturing(rp_device device) {
    rp__device *d = rp__device_get(device);
    return d && rp__stream_capturing(rp__current_stream(d));
}

static void leave(rp_stream *s) { (void)rp__allocator_capture(s, NULL, NULL); }

static void invalidate(rp__capture *c, const char *why) { /* under the lock */
    if (!c->invalid) snprintf(c->why, sizeof c->why, "%s", why);
    c->invalid = true;
}

void rp__capture_invalidate(rp__capture *c, const char *why) {
    rp__lock(&lock);
    invalidate(c, why);
    rp__unlock(&lock);
}

rp_status rp__capture_forbid(rp_stream *s, const char *what) {
    if (RP__LIKELY(!rp__captures_active())) return RP_OK;
    pthread_t self = pthread_self();
    const char *mode = NULL;
    rp__lock(&lock);
    for (rp__capture *c = captures; c; c = c->next) {
        bool own = s && s->capture == c;
        bool local = !s && c->mode == RP_CAPTURE_THREAD_LOCAL && pthread_equal(c->thread, self);
        if (!own && !local && c->mode != RP_CAPTURE_GLOBAL) continue;
        char why[sizeof c->why];
        const char *op = rp__site_op(), *site = rp__site();
        snprintf(why, sizeof why, "%s%s%s%s%s", what, *op ? " in " : "", op, *site ? " at " : "", site);
        invalidate(c, why);
        mode = own     ? "while its stream is capturing"
               : local ? "while this thread is capturing"
                       : "while a global capture is under way";
    }
    rp__unlock(&lock);
    return mode ? rp__fail(RP_ERROR_CAPTURE, "%s is not permitted %s", what, mode) : RP_OK;
}

rp_status rp__capture_begin(rp_stream *s, rp_pool *pool, rp_capture_mode mode) {
    if (s->is_default)
        return rp__fail(RP_ERROR_CAPTURE, "the default stream cannot be captured: make a stream with rp_stream_new");
    rp__capture *c = rp__calloc(1, sizeof *c);
    rp__replays *replays = rp__calloc(1, sizeof *replays);
    if (!c || !replays) {
        rp__free(c);
        rp__free(replays);
        return RP__OOM("a capture");
    }
    atomic_init(&replays->refs, 1);
    c->replays = replays;
    c->stream = rp__stream_retain(s);
    c->pool = rp__pool_retain(pool);
    c->mode = mode;
    c->thread = pthread_self();
    rp_status status = RP_OK;
    if (!rp__allocator_capture(s, c, pool)) {
        status = rp__fail(RP_ERROR_STATE, "the stream is capturing already");
    } else {
        status = s->device->ops->capture_begin(s->device, s, mode);
        if (status != RP_OK) leave(s);
    }
    if (status != RP_OK) {
        rp__pool_drop(pool);
        rp__stream_drop(s);
        rp__replays_release(replays);
        rp__free(c);
        return status;
    }
    rp__lock(&lock);
    c->next = captures;
    captures = c;
    atomic_fetch_add(&active, 1);
    rp__unlock(&lock);
    return RP_OK;
}

/* ---- captures of others, on adopted streams */

static rp__capture *ended_of_others; /* what their graphs use: reachable for good */

static rp_status begin_of_others(rp_stream *s, uint64_t id) {
    rp__capture *c = rp__calloc(1, sizeof *c);
    rp__replays *replays = rp__calloc(1, sizeof *replays);
    const uint64_t failures = rp__error_count();
    rp_pool *pool = c && replays ? rp_pool_new(s->device->id) : NULL;
    const rp_status made = pool ? rp__status_since(failures) : RP__OOM("a capture");
    if (made != RP_OK) {
        rp_pool_release(pool);
        rp__free(c);
        rp__free(replays);
        return made;
    }
    atomic_init(&replays->refs, 1);
    c->replays = replays;
    c->stream = rp__stream_retain(s);
    c->pool = pool;
    c->mode = RP_CAPTURE_RELAXED; /* what else is forbidden meanwhile is for its owner to say */
    c->thread = pthread_self();
    c->others = id;
    if (!rp__allocator_capture(s, c, pool)) {
        rp_pool_release(pool);
        rp__stream_drop(s);
        rp__replays_release(replays);
        rp__free(c);
        return rp__fail(RP_ERROR_STATE, "the stream is capturing already");
    }
    rp__lock(&lock);
    c->next = captures;
    captures = c;
    atomic_fetch_add(&active, 1);
    rp__unlock(&lock);
    return s->device->ops->capture_note_others(s->device, s);
}

/* One that ended or made way for another; NULL: none. Each is taken off the list once. */
static rp__capture *take_ended(void) {
    rp__capture *found = NULL;
    rp__lock(&lock);
    for (rp__capture **link = &captures; *link && !found; link = &(*link)->next) {
        rp__capture *c = *link;
        uint64_t id = 0;
        if (!c->others) continue;
        if (c->stream->device->ops->capture_of_others(c->stream->device, c->stream, &id) != RP_OK || id == c->others)
            continue;
        found = c;
        *link = c->next;
        atomic_fetch_sub(&active, 1);
        break;
    }
    rp__unlock(&lock);
    return found;
}

rp_status rp__capture_follow(rp_stream *s) {
    rp__device *d = s->device;
    uint64_t id = 0;
    for (rp__capture *c; rp__captures_active() && (c = take_ended());) {
        for (size_t i = 0; i < c->n_forked; i++) leave(c->forked[i]);
        leave(c->stream);
        rp__lock(&lock);
        c->next = ended_of_others;
        ended_of_others = c;
        rp__unlock(&lock);
    }
    if (!s->foreign || !d->ops->capture_of_others || s->capture) return RP_OK;
    RP_TRY(d->ops->capture_of_others(d, s, &id));
    return id ? begin_of_others(s, id) : RP_OK;
}

rp_status rp__capture_join(rp__capture *c, rp_stream *s) {
    if (s->is_default) return rp__fail(RP_ERROR_CAPTURE, "the default stream cannot wait for an event of a capture");
    if (s->capture == c) return RP_OK;
    rp__lock(&lock);
    bool room = RP__GROW(&c->forked, &c->forked_capacity, c->n_forked + c->n_joining + 1);
    if (room) c->n_joining++;
    rp__unlock(&lock);
    if (!room) return RP__OOM("the streams of a capture");
    bool joined = rp__allocator_capture(s, c, c->pool);
    rp__lock(&lock);
    c->n_joining--;
    if (joined) c->forked[c->n_forked++] = rp__stream_retain(s);
    rp__unlock(&lock);
    return joined ? RP_OK : rp__fail(RP_ERROR_CAPTURE, "a stream of one capture cannot wait for an event of another");
}

void rp__capture_random_free(rp__capture_random *random, size_t n) {
    for (size_t i = 0; i < n; i++) {
        rp__random_memory_release(random[i].memory);
        rp__generator_drop(random[i].generator);
    }
    rp__free(random);
}

rp_status rp__capture_end(rp_stream *s, rp__devgraph **graph, rp__capture_random **random, size_t *n_random) {
    *graph = NULL;
    *random = NULL;
    *n_random = 0;
    rp__capture *c = s->capture;
    if (!c) return rp__fail(RP_ERROR_STATE, "the stream is not capturing");
    if (c->others) return rp__fail(RP_ERROR_STATE, "the capture is not the library's: who began it ends it");
    if (c->stream != s) return rp__fail(RP_ERROR_CAPTURE, "a capture ends on the stream that began it");
    if (c->mode != RP_CAPTURE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        return rp__fail(RP_ERROR_CAPTURE, "a capture that is not relaxed ends in the thread that began it");
    rp__device *d = s->device;
    rp_status status = d->ops->capture_end(d, s, graph);
    rp__lock(&lock);
    for (rp__capture **link = &captures; *link; link = &(*link)->next) {
        if (*link == c) {
            *link = c->next;
            break;
        }
    }
    atomic_fetch_sub(&active, 1);
    rp__unlock(&lock);
    if (status == RP_OK && c->invalid) status = rp__fail(RP_ERROR_CAPTURE, "the capture is invalid: %s", c->why);
    for (size_t i = 0; i < c->n_forked; i++) {
        leave(c->forked[i]);
        rp__stream_drop(c->forked[i]);
    }
    rp__free(c->forked);
    leave(s);
    rp__pool_drop(c->pool);
    if (status == RP_OK) {
        *random = c->random;
        *n_random = c->n_random;
    } else {
        rp__capture_random_free(c->random, c->n_random);
        if (*graph) d->ops->graph_free(*graph);
        *graph = NULL;
    }
    rp__replays_release(c->replays);
    rp__free(c);
    rp__stream_drop(s);
    return status;
}

rp_status rp__capture_reserve(rp__capture *c, rp_generator *g, uint64_t counters, rp__random_draw *out,
                              rp__random_memory **memory) {
    if (c->others) {
        RP_TRY(rp__random_take_followed(g, counters, out, memory));
        return rp__capture_hold_random(c, g, *memory);
    }
    rp__capture_random *r = NULL;
    for (size_t i = 0; i < c->n_random && !r; i++) {
        if (c->random[i].generator == g && !c->random[i].borrowed) r = &c->random[i];
    }
    if (!r) {
        if (!RP__GROW(&c->random, &c->random_capacity, c->n_random + 1)) return RP__OOM("the generators of a capture");
        rp__random_memory *m = rp__calloc(1, sizeof *m);
        if (!m) return RP__OOM("the generators of a capture");
        atomic_init(&m->refs, 1);
        m->device = g->device;
        /* Of the default stream: outside the pool, for it outlives what the graph frees inside. */
        rp_status status = rp__block_alloc(g->device, g->device->default_stream, 2 * sizeof(uint64_t), &m->block);
        if (status != RP_OK) {
            rp__free(m);
            return status;
        }
        r = &c->random[c->n_random++];
        *r = (rp__capture_random){.generator = rp__generator_retain(g), .state = m->block->data, .memory = m};
    }
    *out = (rp__random_draw){r->state, 0, r->used};
    *memory = r->memory;
    r->used += counters;
    return RP_OK;
}

rp_status rp__capture_hold_random(rp__capture *c, rp_generator *g, rp__random_memory *m) {
    for (size_t i = 0; i < c->n_random; i++)
        if (c->random[i].memory == m) return RP_OK;
    if (!RP__GROW(&c->random, &c->random_capacity, c->n_random + 1)) return RP__OOM("the generators of a capture");
    c->random[c->n_random++] = (rp__capture_random){.generator = rp__generator_retain(g),
                                                    .state = m->block->data,
                                                    .memory = rp__random_memory_retain(m),
                                                    .borrowed = true};
    return RP_OK;
}
