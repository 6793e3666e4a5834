/* Recomputation (torch.utils.checkpoint, the form without reentrancy): while the function runs, what its ops would save gets a
   number instead; the first time that a gradient asks for one of them the function runs again, from its saved arguments and
   with the random state of then, and what its ops save under the same numbers is the answer. The history stays that of the
   first run, so parameters that the function reaches through ctx, rp_grad and second derivatives work as without it. What the
   function reads from outside its arguments must still hold what it held then: the first run notes versions, the second checks
   them. Where a run is captured the random state of then is not known yet: the second run takes its numbers from the draws of
   the first, one by one, which say where the replays of the first find their state. So it does for generators of the user's. */
#include "autograd/tape.h"
#include "core/alloc.h"
#include "device/capture.h"
#include "ops/autocast.h"

#include "ops/private.h"
#include <string.h>

typedef struct rp__checkpoint checkpoint;

typedef struct random_state { /* of the default generator of a device that is in use */
    rp_generator *generator;
    uint64_t seed, offset;
} random_state;

typedef struct outside {  /* memory that the function reads and neither is given nor makes */
    rp__storage *storage; /* counted */
    uint64_t version;
} outside;

struct rp__checkpoint {
    atomic_uint refs;
    rp_fn fn;
    void (*release)(void *ctx); /* of fn.ctx; NULL: the caller's */
    const char *site;
    size_t n_in, n_out;
    uint8_t autocast;       /* when the function ran first */
    rp__saved *in;          /* n_in; tensor NULL: absent */
    rp_tensor *const *args; /* of the run that is going on */
    bool *requires_grad;
    rp_tensor **slots; /* recomputed values by number; NULL: not (or no longer) there */
    uint32_t *uses;    /* by number: who will still ask; the value goes with the last */
    size_t n_slots, slots_capacity, uses_capacity;
    random_state *random; /* n_random: devices in use when the function ran first */
    size_t n_random;
    rp__random_log drawn; /* by the first run */
    outside *outside;
    size_t n_outside, outside_capacity;
    rp__replays *first; /* of the capture in which the function ran first; counted; NULL: none */
    rp__replays *again; /* of that in which the slots were filled */
    uint64_t replay;    /* of `first`, whose values the slots are */
    /* While the function runs for the first time: */
    struct rp__checkpoint *around; /* whose function called it */
    rp_scope scope;                /* what it makes is in it */
    uint64_t first_id;             /* and has this id or a later one */
    rp__map met;                   /* storages that were looked at, by id */
    bool recomputing;
    size_t recomputed; /* numbers given out by the second run so far */
};

RP__TLS_FAST checkpoint *rp__checkpoint_recording; /* whose function runs for the first time */
static _Thread_local checkpoint *recomputing;

void rp__checkpoint_suspend(rp__checkpoint_state *s) {
    *s = (rp__checkpoint_state){rp__checkpoint_recording, recomputing};
    rp__checkpoint_recording = recomputing = NULL;
}

void rp__checkpoint_resume(const rp__checkpoint_state *s) {
    rp__checkpoint_recording = s->recording;
    recomputing = s->recomputing;
}

static void checkpoint_release(checkpoint *c) {
    if (!c || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) return;
    for (size_t i = 0; c->in && i < c->n_in; i++) rp__saved_drop(&c->in[i]);
    for (size_t i = 0; i < c->n_slots; i++)
        if (c->slots[i]) rp_release(c->slots[i]);
    rp__free(c->slots);
    rp__free(c->uses);
    rp__free(c->in);
    rp__free(c->requires_grad);
    rp__free(c->random);
    rp__random_log_free(&c->drawn);
    for (size_t i = 0; i < c->n_outside; i++) rp__storage_release(c->outside[i].storage);
    rp__free(c->outside);
    rp__replays_release(c->first);
    rp__replays_release(c->again);
    if (c->release) c->release(c->fn.ctx);
    rp__free(c);
}

/* Whether a tensor is kept by somebody else anyway: leaves, and the arguments (unless an outer checkpoint keeps them by number).
   The answer must be the same in both runs, though arguments are leaves in the second. */
static bool kept_anyway(const checkpoint *c, const rp_tensor *t) {
    for (size_t i = 0; i < c->n_in; i++)
        if (c->args && c->args[i] == t) return c->in[i].tensor != NULL;
    if (t->flags & RP__T_REQUIRES_GRAD) return true;
    for (size_t i = 0; i < c->n_in; i++)
        if (c->in[i].tensor && c->in[i].tensor->storage == t->storage) return true;
    return false;
}

bool rp__checkpoint_pack(rp__saved *s, rp_tensor *t, bool is_output, uint32_t index, rp_status *status) {
    checkpoint *c = recomputing;
    if (c) {
        if (rp__flags.muted) return true;
        if (kept_anyway(c, t)) return false;
        size_t slot = c->recomputed++;
        if (slot < c->n_slots && c->uses[slot] > 0 && !c->slots[slot]) {
            rp_tensor *value = rp_detach(t);
            if (rp__tensor_is_error(value))
                *status = rp_error_status();
            else
                c->slots[slot] = rp_retain(value);
        }
        return true; /* the second run's own nodes save nothing: no gradient goes through them */
    }
    c = rp__checkpoint_recording;
    if (!c || kept_anyway(c, t)) return false;
    if (!RP__GROW(&c->slots, &c->slots_capacity, c->n_slots + 1) ||
        !RP__GROW(&c->uses, &c->uses_capacity, c->n_slots + 1)) {
        *status = RP__OOM("checkpoint");
        return true;
    }
    if (is_output)
        s->edge.index = index;
    else if ((*status = rp__tape_edge_of(t, &s->edge)) != RP_OK)
        return true;
    s->is_output = is_output;
    s->checkpoint = c;
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    s->slot = (uint32_t)c->n_slots;
    c->slots[c->n_slots] = NULL;
    c->uses[c->n_slots++] = 1;
    return true;
}

void rp__checkpoint_drop(rp__saved *s) {
    checkpoint *c = s->checkpoint;
    s->checkpoint = NULL;
    if (c->uses[s->slot] > 0 && --c->uses[s->slot] == 0 && c->slots[s->slot]) {
        rp_release(c->slots[s->slot]);
        c->slots[s->slot] = NULL;
    }
    checkpoint_release(c);
}

/* ---------------------------------------------------------------- what is read from outside */

static rp__hash key_of(const rp__storage *s) { return (rp__hash){rp__hash_mix(s->id, 5), s->id}; }

static rp_status meet(checkpoint *c, const rp_tensor *t, bool inside) {
    rp__hash key = key_of(t->storage);
    if (rp__map_get(&c->met, key)) return RP_OK;
    if (!rp__map_put(&c->met, key, c)) return RP__OOM("checkpoint");
    if (inside || (t->id >= c->first_id && rp__scope_holds(c->scope, t))) return RP_OK;
    if (!RP__GROW(&c->outside, &c->outside_capacity, c->n_outside + 1)) return RP__OOM("checkpoint");
    c->outside[c->n_outside++] = (outside){rp__storage_retain(t->storage), atomic_load(&t->storage->version)};
    return RP_OK;
}

rp_status rp__checkpoint_reads(rp_tensor *const *in, uint32_t n_in) {
    for (checkpoint *c = rp__checkpoint_recording; c; c = c->around)
        for (uint32_t k = 0; k < n_in; k++)
            if (in[k]) RP_TRY(meet(c, in[k], false));
    return RP_OK;
}

rp_status rp__checkpoint_makes(rp_tensor *const *out, uint32_t n_out) {
    for (checkpoint *c = rp__checkpoint_recording; c; c = c->around)
        for (uint32_t k = 0; k < n_out; k++)
            if (out[k]) RP_TRY(meet(c, out[k], true));
    return RP_OK;
}

/* What the function wrote itself (running statistics) it writes again in the second run: that is its own affair. */
static void forget_written(checkpoint *c) {
    size_t kept = 0;
    for (size_t i = 0; i < c->n_outside; i++) {
        if (atomic_load(&c->outside[i].storage->version) == c->outside[i].version)
            c->outside[kept++] = c->outside[i];
        else
            rp__storage_release(c->outside[i].storage);
    }
    c->n_outside = kept;
}

static rp_status check_outside(const checkpoint *c) {
    for (size_t i = 0; i < c->n_outside; i++) {
        const rp__storage *s = c->outside[i].storage;
        uint64_t version = atomic_load(&s->version);
        if (version == c->outside[i].version) continue;
        return rp__fail(
            RP_ERROR_VERSION,
            "rp_checkpoint: `%s` (%s) must run again for a gradient, but a tensor that it reads from outside "
            "has been modified in place by `%s` (%s): it is at version %llu, expected version %llu; make it "
            "an argument and write into a clone",
            c->fn.name && *c->fn.name ? c->fn.name : "fn", c->site && *c->site ? c->site : "no call site",
            s->writer_op ? s->writer_op : "a write",
            s->writer_site && *s->writer_site ? s->writer_site : "no call site", (unsigned long long)version,
            (unsigned long long)c->outside[i].version);
    }
    return RP_OK;
}

static rp_status random_save(random_state **list, size_t *n) {
    size_t limit = 0;
    for (rp__device *d = rp__device_next_open(NULL); d; d = rp__device_next_open(d)) limit++;
    *n = 0;
    *list = rp__alloc((limit > 0 ? limit : 1) * sizeof **list);
    if (!*list) return RP__OOM("checkpoint");
    for (rp__device *d = rp__device_next_open(NULL); d && *n < limit; d = rp__device_next_open(d)) {
        random_state *r = &(*list)[*n];
        r->generator = d->generator;
        rp__generator_state(r->generator, &r->seed, &r->offset);
        ++*n;
    }
    return RP_OK;
}

static void random_restore(const random_state *list, size_t n) {
    for (size_t i = 0; i < n; i++) rp__generator_put(list[i].generator, list[i].seed, list[i].offset);
}

/* The second run itself: the thread's state is that of the first, and put back afterwards. Draws are those of the first; that
   default generators stand where they stood is for a function that asks where. */
static rp_status body_again(checkpoint *c, rp_tensor **tensors, size_t *count) {
    random_state *now = NULL;
    size_t n_now = 0;
    rp_status status = random_save(&now, &n_now);
    if (status == RP_OK) {
        checkpoint *outer = recomputing, *outer_recording = rp__checkpoint_recording;
        bool outer_muted = rp__flags.muted;
        rp__random_rewind(&c->drawn);
        rp__random_log *outer_again = rp__random_again_set(&c->drawn);
        rp__random_log *outer_log = rp__random_log_set(NULL);
        random_restore(c->random, c->n_random);
        rp__checkpoint_recording = NULL;
        recomputing = c;
        c->recomputed = 0;
        rp__flags.muted = false;
        c->recomputing = true;
        c->args = tensors;
        const uint8_t autocast = rp__autocast_switch(c->autocast);
        c->fn.body(c->fn.ctx, tensors, c->n_in, tensors + c->n_in, c->n_out);
        (void)rp__autocast_switch(autocast);
        c->recomputing = false;
        c->args = NULL;
        *count = c->recomputed;
        recomputing = outer;
        rp__checkpoint_recording = outer_recording;
        rp__flags.muted = outer_muted;
        random_restore(now, n_now);
        (void)rp__random_log_set(outer_log);
        (void)rp__random_again_set(outer_again);
    }
    rp__free(now);
    return status;
}

/* Runs the function again and fills the slots. */
static rp_status recompute(checkpoint *c, rp__tape_node *n) {
    if (c->recomputing)
        return rp__fail(RP_ERROR_STATE, "rp_checkpoint: recomputing `%s` asked for its own result",
                        c->fn.name ? c->fn.name : "fn");
    rp_tensor **tensors = rp__calloc(c->n_in + c->n_out, sizeof *tensors);
    if (!tensors) return RP__OOM("checkpoint");
    size_t count = 0;
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? check_outside(c) : rp_error_status();
    bool grad_mode = rp_set_grad_enabled(false);
    for (size_t i = 0; i < c->n_in && status == RP_OK; i++) {
        if (!c->in[i].tensor && !c->in[i].checkpoint) continue;
        rp_tensor *t = rp__saved_unpack(&c->in[i], n);
        if (!rp__tensor_is_error(t)) t = rp_detach(t);
        status = rp__tensor_is_error(t) ? rp_error_status() : RP_OK;
        if (status == RP_OK && c->requires_grad[i]) status = rp_set_requires_grad(t, true);
        tensors[i] = t;
    }
    (void)rp_set_grad_enabled(true);
    if (status == RP_OK) {
        status = body_again(c, tensors, &count);
        for (size_t k = 0; k < c->n_out && status == RP_OK; k++)
            if (tensors[c->n_in + k])
                status = rp__tensor_check(tensors[c->n_in + k], "result of a checkpointed function");
        if (status == RP_OK && count != c->n_slots)
            status = rp__fail(
                RP_ERROR_STATE,
                "rp_checkpoint: `%s` saved %zu tensors when it ran first and %zu when it was recomputed (%s): it must "
                "do the same both times",
                c->fn.name ? c->fn.name : "fn", c->n_slots, count, c->site && *c->site ? c->site : "no call site");
    }
    (void)rp_set_grad_enabled(grad_mode);
    rp__scope_end(scope, NULL, 0);
    rp__free(tensors);
    return status;
}

static rp__replays *replays_now(void) { /* counted */
    const rp__capture *capture = rp__capture_current();
    return capture ? rp__replays_retain(capture->replays) : NULL;
}

/* What was recomputed counts for one replay of the first run, and in the capture that recomputed it: elsewhere it is made
   again. */
static void drop_overtaken(checkpoint *c) {
    if (RP__LIKELY(!c->first && !c->again && !rp__captures_active())) return;
    rp__replays *now = replays_now();
    uint64_t replay = c->first ? atomic_load_explicit(&c->first->count, memory_order_relaxed) : 0;
    bool overtaken = replay != c->replay || (now != c->again && (c->first || c->again));
    for (size_t i = 0; i < c->n_slots && overtaken; i++) {
        if (c->slots[i]) rp_release(c->slots[i]);
        c->slots[i] = NULL;
    }
    c->replay = replay;
    rp__replays_release(c->again);
    c->again = now;
}

rp_tensor *rp__checkpoint_unpack(rp__saved *s, rp__tape_node *n) {
    checkpoint *c = s->checkpoint;
    if (!c->recomputing) drop_overtaken(c);
    if (!c->slots[s->slot] && recompute(c, n) != RP_OK) return rp__tensor_error();
    if (!c->slots[s->slot]) {
        (void)rp__fail(RP_ERROR_INTERNAL, "rp_checkpoint: number %u was not recomputed", (unsigned)s->slot);
        return rp__tensor_error();
    }
    return rp__saved_attach(s, c->slots[s->slot], n);
}

/* Every result that was asked for is there; what failed in the function itself, after that many failures, is told already. */
static rp_status check_results(const char *site, rp_fn fn, rp_tensor **out, size_t n_out, uint64_t failures) {
    RP_TRY(rp__status_since(failures));
    for (size_t k = 0; k < n_out; k++) {
        if (!out[k])
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_checkpoint: `%s` leaves output %zu out (%s)",
                            fn.name && *fn.name ? fn.name : "a function without a name", k,
                            site && *site ? site : "no call site");
        RP_TRY(rp__tensor_check(out[k], "result of a checkpointed function"));
    }
    return RP_OK;
}

static rp_status run_first(checkpoint *c, rp_tensor *const *in, rp_tensor **out) {
    c->in = rp__calloc(c->n_in > 0 ? c->n_in : 1, sizeof *c->in);
    c->requires_grad = rp__calloc(c->n_in > 0 ? c->n_in : 1, sizeof *c->requires_grad);
    if (!c->in || !c->requires_grad) return RP__OOM("checkpoint");
    for (size_t i = 0; i < c->n_in; i++) {
        if (!in[i]) continue;
        RP_TRY(rp__tensor_check(in[i], "argument of a checkpointed function"));
        RP_TRY(rp__saved_pack(&c->in[i], in[i], false, 0));
        c->requires_grad[i] = rp__grad_needed(in[i]);
        RP_TRY(meet(c, in[i], true)); /* its version is checked as that of a saved tensor */
    }
    RP_TRY(random_save(&c->random, &c->n_random));
    c->first = replays_now();
    c->around = rp__checkpoint_recording;
    rp__random_log *outer_log = rp__random_log_set(&c->drawn);
    c->drawn.outer = outer_log;
    rp__checkpoint_recording = c;
    c->args = in;
    const uint64_t failures = rp__error_count();
    c->fn.body(c->fn.ctx, in, c->n_in, out, c->n_out);
    c->args = NULL;
    rp__checkpoint_recording = c->around;
    c->around = NULL;
    c->drawn.outer = NULL;
    (void)rp__random_log_set(outer_log);
    forget_written(c);
    return check_results(c->site, c->fn, out, c->n_out, failures);
}

/* An argument may be absent, not broken. */
static rp_status check_arguments(rp_tensor *const *in, size_t n_in) {
    for (size_t i = 0; i < n_in; i++)
        if (in[i]) RP_TRY(rp__tensor_check(in[i], "an argument of a checkpointed function"));
    return RP_OK;
}

rp_status rp__checkpoint_run(const char *site, rp_fn fn, void (*release)(void *ctx), rp_tensor *const *in, size_t n_in,
                             rp_tensor **out, size_t n_out) {
    for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    rp_status status;
    rp_scope scope = rp__scope_begin();
    if (!scope.id) {
        status = rp_error_status();
    } else if (!fn.body) {
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_checkpoint: no function");
    } else if ((status = check_arguments(in, n_in)) != RP_OK) {
        /* told already */
    } else if (!rp__grad_recording() || recomputing) {
        /* Without a tape nothing would be kept. Inside the recomputation of an outer one the arguments take the numbers that
           they took in the first run, and the rest none. */
        status = RP_OK;
        bool outer_muted = rp__flags.muted;
        for (size_t i = 0; i < n_in && recomputing && status == RP_OK; i++) {
            rp__saved unused = {.tensor = NULL};
            if (in[i]) (void)rp__checkpoint_pack(&unused, in[i], false, 0, &status);
        }
        rp__flags.muted = rp__flags.muted || recomputing;
        const uint64_t failures = rp__error_count();
        fn.body(fn.ctx, in, n_in, out, n_out);
        rp__flags.muted = outer_muted;
        status = status == RP_OK ? check_results(site, fn, out, n_out, failures) : status;
    } else {
        checkpoint *c = rp__calloc(1, sizeof *c);
        status = c ? RP_OK : RP__OOM("checkpoint");
        if (c) {
            atomic_init(&c->refs, 1);
            c->fn = fn;
            c->autocast = rp__autocast_state();
            c->release = release;
            c->site = site;
            release = NULL;
            c->n_in = n_in;
            c->n_out = n_out;
            c->scope = scope;
            c->first_id = rp__unique_id_fresh();
            status = run_first(c, in, out);
            rp__map_free(&c->met);
            checkpoint_release(c);
        }
    }
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    for (size_t k = 0; k < n_out && status != RP_OK; k++) out[k] = rp__tensor_error();
    if (release) release(fn.ctx);
    return status;
}
