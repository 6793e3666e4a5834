/* Programs on several streams: a run waits for the last one on another stream, with which it shares memory, and for those who still read
   the results that it overwrites; what it reads is not reused before it is done. Called by program_run.c, under the program's lock,
   once the process has made a stream; not in captures, whose memory is their own. */
#include "compile/program_parts.h"
#include "device/allocator.h"

static rp__mutex lock = PTHREAD_MUTEX_INITIALIZER; /* of the stream of every arena */

static rp_status take_turn(rp__executable *p, rp_stream *s) {
    rp_status status = RP_OK;
    rp__lock(&lock);
    rp_stream *last = p->turn->stream ? p->turn->stream : p->device->default_stream;
    if (last != s) {
        rp_event *e = rp_event_new(p->device->id, false);
        status = rp_event_record(e, last);
        if (status == RP_OK) status = rp_stream_wait_event(s, e);
        rp_event_release(e);
    }
    if (status == RP_OK && p->turn->stream != s) {
        if (p->turn->stream) rp_stream_release(p->turn->stream);
        p->turn->stream = rp__stream_retain(s);
    }
    rp__unlock(&lock);
    return status;
}

static rp_status uses(const rp_tensor *t, rp_stream *s) {
    return t && t->storage->block ? rp__block_used_by(t->storage->block, s) : RP_OK;
}

rp_status rp__program_meet(rp__executable *p, rp_tensor *const *in, rp_stream *s) {
    RP_TRY(take_turn(p, s));
    for (uint32_t k = 0; k < p->ir->body.n_args; k++) RP_TRY(uses(in[k], s));
    for (size_t k = 0; k < p->ir->n_captured; k++) RP_TRY(uses(p->ir->captured[k], s));
    if (p->memory) RP_TRY(rp__block_used_by(p->memory->block, s));
    for (uint32_t k = 0; k < p->n_results; k++) {
        for (unsigned i = 0; i < RP__PROGRAM_MEMORIES; i++) {
            rp__storage *kept = p->results[k].kept[i];
            if (!kept || !kept->block) continue;
            RP_TRY(rp__block_await(kept->block, s));
            RP_TRY(rp__block_used_by(kept->block, s));
        }
    }
    return RP_OK;
}
