/* Launch records: conflicts, copies, kernels' counts, and the one way to a device. */
#include "device/launch.h"

#include <string.h>

#include "core/alloc.h"
#include "device/device.h"
#include "tensor/tensor.h"

rp__kernel *rp__kernel_retain(rp__kernel *k) {
    if (k && k->destroy) atomic_fetch_add_explicit(&k->refs, 1, memory_order_relaxed);
    return k;
}

void rp__kernel_release(rp__kernel *k) {
    if (k && k->destroy && atomic_fetch_sub_explicit(&k->refs, 1, memory_order_acq_rel) == 1) k->destroy(k);
}

bool rp__slots_meet(const rp__slot *a, const rp__slot *b) {
    if (a->storage == b->storage) return a->begin < b->end && b->begin < a->end;
    if (!rp__storage_meets(a->storage, b->storage)) return false;
    intptr_t x = (intptr_t)a->storage->data, y = (intptr_t)b->storage->data;
    return x + a->begin < y + b->end && y + b->begin < x + a->end;
}

bool rp__launch_conflict(const rp__launch *a, const rp__launch *b) {
    if (a->barrier || b->barrier) return true;
    for (uint32_t i = 0; i < a->n_slots; i++) {
        const rp__slot *x = &a->slots[i];
        for (uint32_t k = 0; k < b->n_slots; k++) {
            const rp__slot *y = &b->slots[k];
            if (!((x->access | y->access) & RP__WRITE)) continue;
            bool planned = x->buffer >= 0 && x->buffer == y->buffer && x->begin < y->end && y->begin < x->end;
            if (x->storage && y->storage ? rp__slots_meet(x, y) : planned) return true;
        }
    }
    return false;
}

rp__launch *rp__launch_copy(const rp__launch *l, bool retain_storages) {
    size_t words = l->n_words * sizeof *l->words, slots = l->n_slots * sizeof *l->slots;
    rp__launch *copy = rp__alloc(sizeof *copy + words + slots);
    if (!copy) {
        RP__OOM("a launch record");
        return NULL;
    }
    *copy = *l;
    uint64_t *copied_words = (uint64_t *)(void *)(copy + 1);
    rp__slot *copied_slots = (rp__slot *)(void *)(copied_words + l->n_words);
    if (words) memcpy(copied_words, l->words, words);
    if (slots) memcpy(copied_slots, l->slots, slots);
    copy->words = copied_words;
    copy->slots = copied_slots;
    rp__kernel_retain(copy->kernel);
    for (uint32_t i = 0; retain_storages && i < copy->n_slots; i++) {
        if (copy->slots[i].storage) rp__storage_retain(copy->slots[i].storage);
    }
    return copy;
}

void rp__launch_free(rp__launch *l, bool release_storages) {
    if (!l) return;
    for (uint32_t i = 0; release_storages && i < l->n_slots; i++) {
        if (l->slots[i].storage) rp__storage_release(l->slots[i].storage);
    }
    rp__kernel_release(l->kernel);
    rp__free(l);
}

RP__TLS_FAST rp__launch_recorder *rp__launch_recorder_now;

rp__launch_recorder *rp__launch_recorder_set(rp__launch_recorder *r) {
    rp__launch_recorder *old = rp__launch_recorder_now;
    rp__launch_recorder_now = r;
    return old;
}

rp__launch_recorder *rp__launch_recorder_get(void) { return rp__launch_recorder_now; }

/* Memory that another stream's allocations reuse once it is free: not before this stream is done with it. What a capture
   reads is held by its graph. */
static rp_status note_uses(rp_stream *s, const rp__launch *l) {
    for (uint32_t i = 0; i < l->n_slots; i++) RP_TRY(rp__storage_used_by(l->slots[i].storage, s));
    return RP_OK;
}

rp_status rp__launch_on(rp_stream *s, const rp__launch *l) {
    rp__launch_recorder *recorder = rp__launch_recorder_now;
    if (RP__UNLIKELY(recorder != NULL)) return recorder->record(recorder, s, l);
    return rp__launch_unrecorded(s, l);
}

rp_status rp__launch_unrecorded(rp_stream *s, const rp__launch *l) {
    if (!l->kernel) /* nothing to do: an empty space */
        return RP_OK;
    rp__device *d = s->device;
    if (RP__UNLIKELY(rp__several_streams()) && !s->capture) RP_TRY(note_uses(s, l));
    return d->ops->launch(d, s, l);
}
