/* Generators: host state, the counters that a random op reserves, and Philox itself. Captures keep their own accounts
   (capture.h): a captured op reserves in the graph, whose replay advances the generator. */
#include "device/generator.h"

#include "core/alloc.h"
#include "device/allocator.h"
#include "device/capture.h"

#define DEFAULT_SEED UINT64_C(67280421310721) /* PyTorch's default_rng_seed_val */

void rp__philox_at(uint64_t seed, uint64_t counter, uint32_t third, uint32_t out[4]) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = third, c3 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}
void rp__philox(uint64_t seed, uint64_t counter, uint32_t out[4]) { rp__philox_at(seed, counter, 0, out); }

static rp_generator error_generator; /* what constructors return on failure: no device */

static rp_status generator_check(const rp_generator *g) {
    return rp__handle_check(g, RP__HANDLE_GENERATOR, "generator");
}

static _Atomic uint64_t seed_of_new_devices = DEFAULT_SEED;

rp_status rp__generator_open(rp__device *d, rp_generator **out) {
    rp_generator *g = *out = rp__handle_new(RP__HANDLE_GENERATOR, sizeof *g);
    if (!g) return RP__OOM("a generator");
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->device = d;
    g->seed = atomic_load(&seed_of_new_devices);
    return RP_OK;
}

rp_generator *rp_default_generator_at(const char *site, rp_device device) {
    RP__CALLED_FROM(site);
    rp__device *d = rp__device_get(device);
    return d ? d->generator : &error_generator;
}

rp_generator *rp_generator_new_at(const char *site, rp_device device, uint64_t seed) {
    RP__CALLED_FROM(site);
    rp__device *d = rp__device_get(device);
    rp_generator *g;
    if (!d || rp__generator_open(d, &g) != RP_OK) return &error_generator;
    g->seed = seed;
    return g;
}

rp_generator *rp__generator_retain(rp_generator *g) {
    if (g && g->device) atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void rp_generator_release(rp_generator *g) {
    if (!g || g == &error_generator) return;
    if (rp__handle_is(g, RP__HANDLE_GENERATOR) && g == g->device->generator) return;
    if (rp__handle_give_up(g, RP__HANDLE_GENERATOR, "generator_release")) rp__generator_drop(g);
}

void rp__generator_drop(rp_generator *g) {
    if (!g || !g->device || g == g->device->generator ||
        atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1)
        return;
    rp__random_memory_release(g->followed);
    pthread_mutex_destroy(&g->lock);
    rp__handle_free(g);
}

void rp__generator_state(rp_generator *g, uint64_t *seed, uint64_t *offset) {
    rp__lock(&g->lock);
    if (seed) *seed = g->seed;
    if (offset) *offset = g->offset;
    rp__unlock(&g->lock);
}

void rp__generator_put(rp_generator *g, uint64_t seed, uint64_t offset) {
    rp__lock(&g->lock);
    g->seed = seed;
    g->offset = offset;
    rp__unlock(&g->lock);
}

/* A captured op takes its numbers from where the generator is at the replay: what is set or read now is not that. A capture of others may have
 * ended since its stream was adopted. */
static rp_status check_not_capturing(const rp_generator *g, const char *what) {
    RP_TRY(generator_check(g));
    rp_stream *s = rp__captures_active() ? rp__current_stream(g->device) : NULL;
    if (RP__LIKELY(!s) || !rp__stream_capturing(s)) return RP_OK;
    RP_TRY(rp__capture_follow(s));
    if (!rp__stream_capturing(s)) return RP_OK;
    return rp__fail(RP_ERROR_CAPTURE,
                    "%s a generator is not permitted while its device's stream is capturing: a replay draws from where "
                    "the generator is then; do it before the capture or between replays",
                    what);
}

rp_status rp_generator_set_at(const char *site, rp_generator *g, uint64_t seed, uint64_t offset) {
    RP__CALLED_FROM(site);
    RP_TRY(check_not_capturing(g, "setting"));
    rp__generator_put(g, seed, offset);
    return RP_OK;
}

rp_status rp_generator_seed_at(const char *site, rp_generator *g, uint64_t seed) {
    RP__CALLED_FROM(site);
    return rp_generator_set(g, seed, 0);
}

rp_status rp_generator_get_at(const char *site, rp_generator *g, uint64_t *seed, uint64_t *offset) {
    RP__CALLED_FROM(site);
    RP_TRY(check_not_capturing(g, "reading"));
    rp__generator_state(g, seed, offset);
    return RP_OK;
}

rp_status rp_manual_seed_at(const char *site, uint64_t seed) {
    RP__CALLED_FROM(site);
    for (rp__device *d = NULL; (d = rp__device_next_open(d));) RP_TRY(check_not_capturing(d->generator, "setting"));
    atomic_store(&seed_of_new_devices, seed);
    for (rp__device *d = NULL; (d = rp__device_next_open(d));) rp__generator_put(d->generator, seed, 0);
    return RP_OK;
}

static void keep_memory(void *ctx) { (void)ctx; /* whoever gave it frees it */ }

static rp_status memory_of_others(rp__device *d, const uint64_t *state, rp__random_memory **out) {
    rp__random_memory *m = *out = rp__calloc(1, sizeof *m);
    if (!m) return RP__OOM("a generator's state");
    atomic_init(&m->refs, 1);
    m->device = d;
    rp_status status = rp__block_foreign(d, (void *)(uintptr_t)state, 2 * sizeof *state, keep_memory, NULL, &m->block);
    if (status == RP_OK) return RP_OK;
    rp__free(m);
    *out = NULL;
    return status;
}

rp_status rp_generator_follow_at(const char *site, rp_generator *g, const uint64_t *state) {
    RP__CALLED_FROM(site);
    rp__random_memory *m = NULL;
    RP_TRY(generator_check(g));
    if ((uintptr_t)state % sizeof *state)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "generator_follow: the state is two words of 64 bits, not at %p",
                        (const void *)state);
    if (state) RP_TRY(memory_of_others(g->device, state, &m));
    rp__lock(&g->lock);
    rp__random_memory *before = g->followed;
    g->followed = m;
    g->followed_used = 0;
    rp__unlock(&g->lock);
    rp__random_memory_release(before);
    return RP_OK;
}

/* ---- draws */

rp_status rp__random_take_followed(rp_generator *g, uint64_t counters, rp__random_draw *out,
                                   rp__random_memory **memory) {
    rp__lock(&g->lock);
    *memory = g->followed;
    if (g->followed) *out = (rp__random_draw){g->followed->block->data, 0, g->followed_used};
    g->followed_used += counters;
    rp__unlock(&g->lock);
    if (*memory) return RP_OK;
    return rp__fail(RP_ERROR_CAPTURE,
                    "random numbers in a capture that the library did not begin: its replays could not go on in the "
                    "generator, unless they find its state in memory (rp_generator_follow)");
}

rp__random_memory *rp__random_memory_retain(rp__random_memory *m) {
    if (m) atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void rp__random_memory_release(rp__random_memory *m) {
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1) return;
    rp__block_free(m->device, m->block);
    rp__free(m);
}

static _Thread_local rp__random_log *noting, *repeating;

rp__random_log *rp__random_log_set(rp__random_log *log) {
    rp__random_log *old = noting;
    noting = log;
    return old;
}

rp__random_log *rp__random_again_set(rp__random_log *log) {
    rp__random_log *old = repeating;
    repeating = log;
    return old;
}

void rp__random_rewind(rp__random_log *log) {
    log->next = 0;
    for (size_t i = 0; i < log->n; i++) log->drawn[i].taken = 0;
}

void rp__random_log_free(rp__random_log *log) {
    for (size_t i = 0; i < log->n; i++) {
        rp__generator_drop(log->drawn[i].generator);
        rp__random_memory_release(log->drawn[i].memory);
    }
    rp__free(log->drawn);
    *log = (rp__random_log){0};
}

rp_status rp__random_log_add(rp__random_log *log, rp_generator *g, uint64_t counters, const rp__random_draw *draw,
                             rp__random_memory *memory) {
    if (!RP__GROW(&log->drawn, &log->capacity, log->n + 1)) return RP__OOM("the random numbers of a function");
    log->drawn[log->n++] = (struct rp__random_drawn){.generator = rp__generator_retain(g),
                                                     .counters = counters,
                                                     .draw = *draw,
                                                     .memory = rp__random_memory_retain(memory)};
    return RP_OK;
}

static rp_status note(rp_generator *g, uint64_t counters, const rp__random_draw *draw, rp__random_memory *memory) {
    for (rp__random_log *log = noting; log; log = log->outer)
        RP_TRY(rp__random_log_add(log, g, counters, draw, memory));
    return RP_OK;
}

/* The next entry of g that has counters left, from `at` on. */
static struct rp__random_drawn *next_of(const rp__random_log *log, size_t *at, const rp_generator *g) {
    for (; *at < log->n; ++*at) {
        struct rp__random_drawn *d = &log->drawn[*at];
        if (d->generator == g && d->taken < d->counters) return d;
    }
    return NULL;
}

/* Does `b` go on where all of `a` ends? */
static bool follows(const struct rp__random_drawn *a, const struct rp__random_drawn *b) {
    return b->memory == a->memory && b->draw.state == a->draw.state && b->draw.seed == a->draw.seed &&
           b->draw.inner == a->draw.inner + a->counters;
}

/* The next draw of the first run. Its place in memory stays as long as the capture that it is part of now, or as the work of
   s. */
static rp_status draw_again(rp_generator *g, rp_stream *s, uint64_t counters, rp__random_draw *out,
                            rp__random_memory **memory) {
    rp__random_log *from = repeating;
    while (from->next < from->n && from->drawn[from->next].taken == from->drawn[from->next].counters) from->next++;
    size_t at = from->next;
    struct rp__random_drawn *d = next_of(from, &at, g);
    if (d) {
        *out = d->draw;
        out->inner += d->taken;
        *memory = d->memory;
    }
    for (uint64_t left = counters; d && left > 0;) {
        uint64_t part = d->counters - d->taken < left ? d->counters - d->taken : left;
        d->taken += part;
        left -= part;
        const struct rp__random_drawn *last = d;
        if (left > 0) d = next_of(from, &at, g);
        if (left > 0 && d && !follows(last, d)) d = NULL;
    }
    if (!d)
        return rp__fail(RP_ERROR_STATE, "a recomputed function draws other random numbers than when it ran first: it "
                                        "must do the same both times");
    if (!*memory) return RP_OK;
    return rp__stream_capturing(s) ? rp__capture_hold_random(s->capture, g, *memory)
                                   : rp__block_used_by((*memory)->block, s);
}

static rp_status check_device(const rp_generator *g, const rp_stream *s) {
    char a[24], b[24];
    RP_TRY(generator_check(g));
    if (g->device == s->device) return RP_OK;
    return rp__fail(RP_ERROR_DEVICE, "Expected a generator of %s, got one of %s", rp__device_text(s->device->id, a),
                    rp__device_text(g->device->id, b));
}

rp_status rp__random_peek(rp_generator *g, rp_stream *s, rp__random_draw *out, rp__random_memory **memory) {
    *memory = NULL;
    RP_TRY(check_device(g, s));
    if (RP__UNLIKELY(rp__stream_capturing(s))) return rp__capture_reserve(s->capture, g, 0, out, memory);
    *out = (rp__random_draw){NULL, 0, 0};
    rp__generator_state(g, &out->seed, &out->inner);
    return RP_OK;
}

rp_status rp__random_take(rp_generator *g, rp_stream *s, uint64_t counters, rp__random_draw *out,
                          rp__random_memory **memory) {
    if (counters == 0) return rp__random_peek(g, s, out, memory);
    *memory = NULL;
    RP_TRY(check_device(g, s));
    if (RP__UNLIKELY(repeating != NULL)) {
        RP_TRY(draw_again(g, s, counters, out, memory));
    } else if (RP__UNLIKELY(rp__stream_capturing(s))) {
        RP_TRY(rp__capture_reserve(s->capture, g, counters, out, memory));
    } else {
        rp__lock(&g->lock);
        *out = (rp__random_draw){NULL, g->seed, g->offset};
        g->offset += counters;
        rp__unlock(&g->lock);
    }
    return RP__UNLIKELY(noting != NULL) ? note(g, counters, out, *memory) : RP_OK;
}

rp_status rp__random_reserve(rp_generator *g, rp_stream *s, uint64_t counters, rp__random_draw *out) {
    rp__random_memory *memory;
    return rp__random_take(g, s, counters, out, &memory);
}
