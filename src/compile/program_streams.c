/* Programs on several streams: a run waits for the last one on another stream, with which it shares memory, and for those who
   still read the results that it overwrites; what it reads is not reused before it is done. Called by program_run.c, while
   the program has its turn, once the process has made a stream; not in captures, whose memory is their own. A run on the
   stream of the last one costs next to nothing: only arguments are looked at. */
#include "compile/program_parts.h"
#include "device/allocator.h"

static rp_status take_turn(rp__shared_arena *turn, rp__device *d, rp_stream *s) {
    rp_stream *last = turn->stream ? turn->stream : d->default_stream;
    if (last != s) RP_TRY(rp__stream_follow(s, last));
    if (turn->stream) rp__stream_drop(turn->stream);
    turn->stream = rp__stream_retain(s);
    return RP_OK;
}

/* Results are allocated where they are written: so only readers elsewhere have to be waited for. */
static rp_status let_go_elsewhere(rp__executable *p, rp__program_memory *r, rp_stream *s) {
    rp__storage *last = NULL; /* the one in use, until another is found */
    for (unsigned k = 0; k < RP__PROGRAM_MEMORIES; k++) {
        rp__storage *kept = r->kept[k];
        if (!kept || !kept->block || kept->block->stream == s) continue;
        r->kept[k] = NULL;
        rp__program_count(&p->held, -(uint64_t)kept->bytes);
        if (kept == r->now)
            last = kept;
        else
            rp__storage_release(kept);
    }
    if (!last) return RP_OK;
    rp_status status = rp__program_next_memory(p, r, s);
    if (r->now != last) {
        rp__storage_release(last);
        return status;
    }
    unsigned k = 0; /* without memory it stays as it was */
    while (r->kept[k]) k++;
    r->kept[k] = last;
    rp__program_count(&p->held, last->bytes);
    return status;
}

/* What the program holds is used by s from now on. */
static rp_status move_to(rp__executable *p, rp_stream *s) {
    RP_TRY(rp__storage_used_by(p->memory, s));
    for (size_t k = 0; k < p->ir->n_captured; k++)
        if (p->ir->captured[k]) RP_TRY(rp__storage_used_by(p->ir->captured[k]->storage, s));
    for (uint32_t k = 0; k < p->n_buffers; k++) RP_TRY(rp__storage_used_by(p->buffers[k].place.storage, s));
    for (size_t k = 0; k < p->n_scratch; k++) RP_TRY(rp__storage_used_by(p->scratch[k], s));
    for (uint32_t k = 0; k < p->n_outers; k++) RP_TRY(rp__storage_used_by(p->outers[k].fixed, s));
    for (size_t k = 0; k < p->n_states; k++) RP_TRY(rp__block_used_by(p->states[k].memory->block, s));
    for (uint32_t k = 0; k < p->n_results; k++) {
        RP_TRY(rp__storage_used_by(p->results[k].fixed, s));
        RP_TRY(let_go_elsewhere(p, &p->results[k], s));
    }
    p->met = s->id;
    return RP_OK;
}

rp_status rp__program_meet(rp__executable *p, rp_tensor *const *in, rp_stream *s) {
    if (p->turn->stream != s) RP_TRY(take_turn(p->turn, p->device, s));
    if (RP__UNLIKELY(p->met != s->id)) RP_TRY(move_to(p, s));
    for (uint32_t k = 0; k < p->ir->body.n_args; k++)
        if (in[k]) RP_TRY(rp__storage_used_by(in[k]->storage, s));
    return RP_OK;
}

rp_status rp__program_await_readers(const rp__executable *p, rp_stream *s) {
    for (uint32_t k = 0; k < p->n_results; k++) RP_TRY(rp__block_await(p->results[k].now->block, s));
    return RP_OK;
}
