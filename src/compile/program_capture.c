/* The call of a program whose stream captures (program_parts.h). Called by program_run.c alone, under the lock.

   The capture may be replayed between calls of the program, on another stream, and longer than the program lives. So it
   shares nothing with them that either writes: its launches are copies of the records, one by one on the stream, whose
   temporaries, results and scratch lie in the capture's pool, and whose draws read the capture's state. Arguments, captured
   tensors and constants are read where they lie; whoever records the capture holds them by the slots, as those of any launch. */
#include "compile/program_parts.h"

#include <string.h>

#include "core/alloc.h"
#include "tensor/tensor.h"

typedef struct place {    /* of a buffer, a scratch or the arena, in this call */
    rp__storage *storage; /* NULL: where the records have it */
    int64_t by;           /* added to addresses of the records */
    int64_t shift;        /* added to ranges of slots */
    bool own;             /* counted */
} place;

typedef struct copier {
    rp__executable *p;
    rp_stream *stream;
    place *buffers, *scratch, arena;
} copier;

static rp_status take(const copier *c, const char *recorded, size_t bytes, place *out) {
    rp__storage *own = rp__storage_new(c->p->device, c->stream, bytes);
    if (!own) return RP_ERROR_OUT_OF_MEMORY;
    *out = (place){.storage = own, .by = (char *)own->data - recorded, .own = true};
    return RP_OK;
}

/* An argument or captured tensor. One whose address the kernels cannot take is copied, by the graph too. */
static rp_status place_outer(copier *c, const rp__program_outer *o, rp_tensor *t) {
    rp__executable *p = c->p;
    const rp__program_buffer *b = &p->buffers[o->buffer];
    place *at = &c->buffers[o->buffer];
    *at = (place){.storage = t->storage};
    if (!t->storage->data) return rp__tensor_materialise(t); /* empty, or a value that no trace has computed */
    char *zero = rp__tensor_data(t);
    zero -= o->shift;
    if (p->device->id.type != RP_DEVICE_CPU && (((uintptr_t)zero ^ (uintptr_t)b->address) & RP__PROGRAM_ALIGNMENT)) {
        rp__storage *own;
        RP_TRY(rp__program_own_memory(p, b, c->stream, &own, &zero));
        *at = (place){.storage = own, .own = true};
        char *from = (char *)rp__tensor_data(t) - o->shift + b->begin;
        RP_TRY(rp__program_copy_bytes(own, zero + b->begin, t->storage, from, b->end - b->begin));
    }
    at->by = zero - b->address;
    at->shift = zero - (char *)at->storage->data;
    return RP_OK;
}

static rp_status place_all(copier *c, rp_tensor *const *in) {
    rp__executable *p = c->p;
    for (uint32_t k = 0; k < p->n_outers; k++) {
        const rp__program_outer *o = &p->outers[k];
        RP_TRY(place_outer(c, o, o->captured ? o->captured : in[o->arg]));
    }
    for (uint32_t k = 0; k < p->n_results; k++) {
        const rp__program_buffer *b = &p->buffers[p->results[k].buffer];
        RP_TRY(take(c, b->address, (size_t)b->bytes, &c->buffers[p->results[k].buffer]));
    }
    for (size_t k = 0; k < p->n_scratch; k++)
        RP_TRY(take(c, p->scratch[k]->data, p->scratch[k]->bytes, &c->scratch[k]));
    return take(c, p->memory->data, (size_t)p->arena_bytes, &c->arena);
}

static const place *place_of(const copier *c, const rp__slot *s) {
    const rp__executable *p = c->p;
    if (s->buffer >= 0) return &c->buffers[s->buffer];
    if (s->storage == p->memory) return &c->arena;
    for (size_t k = 0; k < p->n_scratch; k++)
        if (p->scratch[k] == s->storage) return &c->scratch[k];
    return NULL;
}

/* Each of the record's draws: which generator, by the state that it was recorded with. */
static rp_status place_draws(const copier *c, const rp__launch *record, uint64_t *words) {
    const rp__executable *p = c->p;
    for (uint32_t i = 0; i < record->n_draws; i++) {
        uint64_t *draw = words + record->draw + 3 * (size_t)i;
        const rp__executable_random *from = NULL;
        for (size_t k = 0; k < p->n_states; k++) {
            if (draw[0] != (uint64_t)(uintptr_t)p->states[k].state) continue;
            for (size_t r = 0; r < p->n_random; r++)
                if (p->random[r].generator == p->states[k].generator) from = &p->random[r];
        }
        if (!from) return rp__fail(RP_ERROR_INTERNAL, "a launch of a program draws from a generator that it has not");
        draw[0] = from->memory ? (uint64_t)(uintptr_t)from->memory->block->data : 0;
        draw[1] = from->seed;
        draw[2] += from->base;
        if (from->memory) RP_TRY(rp__capture_hold_random(c->stream->capture, from->generator, from->memory));
    }
    return RP_OK;
}

static rp_status launch_copy(const copier *c, const rp__launch *record) {
    rp__launch *l = rp__launch_copy(record, false);
    if (!l) return RP_ERROR_OUT_OF_MEMORY;
    uint64_t *words = (uint64_t *)(uintptr_t)l->words;
    rp__slot *slots = (rp__slot *)(uintptr_t)l->slots;
    rp_status status = place_draws(c, record, words);
    for (uint32_t k = 0; k < l->n_slots && status == RP_OK; k++) {
        const place *at = place_of(c, &slots[k]);
        if (!at || !at->storage) continue;
        words[slots[k].word] = record->words[slots[k].word] + (uint64_t)at->by; /* also where two slots share a word */
        slots[k].storage = at->storage;
        slots[k].buffer = -1;
        slots[k].begin += at->shift;
        slots[k].end += at->shift;
    }
    if (status == RP_OK) status = rp__launch_on(c->stream, l);
    rp__launch_free(l, false);
    return status;
}

static rp_status write_back(const copier *c, rp_tensor *const *in) {
    const rp__executable *p = c->p;
    for (uint32_t k = 0; k < p->n_written; k++) {
        const rp__program_outer *o = &p->outers[k];
        const place *at = &c->buffers[o->buffer];
        if (at->own)
            RP_TRY(rp__program_write_back(p, o, o->captured ? o->captured : in[o->arg], at->storage,
                                          (char *)at->storage->data + at->shift));
    }
    return RP_OK;
}

static rp_status run(copier *c, rp_tensor *const *in) {
    const rp__executable *p = c->p;
    RP_TRY(place_all(c, in));
    for (uint32_t k = 0; k < p->body->n_steps; k++) RP_TRY(launch_copy(c, p->records[p->body->steps[k].record]));
    return write_back(c, in);
}

rp_status rp__program_capture(rp__executable *p, rp_tensor *const *in, rp_stream *s, rp__storage **results) {
    if (p->n_choices > 0) return rp__capture_forbid(s, "a compiled branch or loop");
    size_t n = p->n_buffers + p->n_scratch;
    copier c = {.p = p, .stream = s, .buffers = rp__calloc(n + 1, sizeof *c.buffers)};
    if (!c.buffers) return RP__OOM("a captured program");
    c.scratch = c.buffers + p->n_buffers;
    rp_status status = run(&c, in);
    for (uint32_t k = 0; k < p->n_results; k++) {
        place *at = &c.buffers[p->results[k].buffer];
        results[k] = at->storage;
        at->own = false;
    }
    if (c.arena.own) rp__storage_release(c.arena.storage);
    for (size_t k = 0; k < n; k++)
        if (c.buffers[k].own) rp__storage_release(c.buffers[k].storage);
    rp__free(c.buffers);
    return status;
}
