/* Memory that moved since the records of a program were made (program_parts.h). Called by program_run.c alone; everything
   here may allocate, the call without moves comes here never.

   Most records are re-pointed. Where that cannot be, the records get memory of the program's own, from the first call that
   needs it, and every call copies: arguments before the launch, what was written after it. On the device that is so for
   - library calls in a device graph: their nodes cannot change, so the graph is built once more (one call alone: program_run.c);
   - an address whose low bits differ: kernels are compiled for the alignment of what they were recorded with;
   - wrapped memory in a device graph, unless it is declared stable: a kernel in flight must not read what an owner whom we do
   not see changes or frees. */
#include "compile/program_parts.h"

#include <string.h>

#include "ops/execute.h"

static void note_move(rp__executable *p, unsigned bit) {
    uint32_t moves = atomic_load_explicit(&p->moves, memory_order_relaxed);
    atomic_store_explicit(&p->moves, moves | 1u << bit, memory_order_relaxed);
}

static void move_buffer(rp__executable *p, rp__program_buffer *b, char *address) {
    int64_t by = address - b->address;
    for (uint32_t k = 0; k < b->n_patches; k++) {
        uint32_t r = b->patches[k].record;
        uint64_t *words = (uint64_t *)(uintptr_t)p->records[r]->words;
        words[b->patches[k].word] += (uint64_t)by;
        if (!p->touched[r]) {
            p->touched[r] = 1;
            p->touched_list[p->n_touched++] = r;
        }
    }
    b->address = address;
}

static rp_tensor *bytes_handle(rp__storage *storage, int64_t at, int64_t bytes, int64_t unit) {
    rp_dim n = bytes / unit;
    rp_tensor *t = rp__tensor_new(unit == 8 ? RP_I64 : unit == 4 ? RP_I32 : RP_U8, &n, 1, rp__storage_retain(storage));
    if (!rp__tensor_is_error(t)) t->offset = at / unit;
    return t;
}

/* In the widest units that both addresses allow. */
rp_status rp__program_copy_bytes(rp__storage *to_storage, const char *to, rp__storage *from_storage, const char *from,
                                 int64_t bytes) {
    int64_t to_at = to - (const char *)to_storage->data, from_at = from - (const char *)from_storage->data;
    uint64_t all =
        (uint64_t)(uintptr_t)to | (uint64_t)(uintptr_t)from | (uint64_t)to_at | (uint64_t)from_at | (uint64_t)bytes;
    int64_t unit = all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : 1;
    if (bytes == 0) return RP_OK;
    rp_scope scope = rp__scope_begin();
    rp_tensor *dst = bytes_handle(to_storage, to_at, bytes, unit),
              *src = bytes_handle(from_storage, from_at, bytes, unit);
    rp_status status =
        rp__tensor_is_error(dst) || rp__tensor_is_error(src) ? rp_error_status() : rp__run_copy(dst, src);
    rp__scope_end(scope, NULL, 0);
    return status;
}

rp_status rp__program_own_memory(const rp__executable *p, const rp__program_buffer *b, rp_stream *s, rp__storage **own,
                                 char **zero) {
    *own = rp__storage_new(p->device, s, (size_t)(b->end - b->begin) + RP__PROGRAM_ALIGNMENT + 1);
    if (!*own) return RP_ERROR_OUT_OF_MEMORY;
    uintptr_t low = (uintptr_t)(b->address + b->begin) & RP__PROGRAM_ALIGNMENT;
    *zero = (char *)(*own)->data + low - b->begin;
    return RP_OK;
}

/* The records of b use memory of ours from now on. */
static rp_status fix(rp__executable *p, rp__program_buffer *b, rp_stream *s, rp__storage **out) {
    char *zero;
    RP_TRY(rp__program_own_memory(p, b, s, out, &zero));
    rp__program_count(&p->held, (*out)->bytes);
    move_buffer(p, b, zero);
    p->stale = p->stale || (b->library && p->graphed);
    return RP_OK;
}

rp_status rp__program_read_moved(rp__executable *p, rp__program_outer *o, const rp_tensor *t, char *address,
                                 rp_stream *s) {
    rp__program_buffer *b = &p->buffers[o->buffer];
    if (!o->fixed) {
        bool cuda = p->device->id.type != RP_DEVICE_CPU;
        if (b->library && p->graphed)
            o->why = RP__COPY_LIBRARY;
        else if (cuda && p->graphed && rp__storage_is_unseen(t->storage))
            o->why = RP__COPY_FOREIGN;
        else if (cuda && (((uintptr_t)address ^ (uintptr_t)b->address) & RP__PROGRAM_ALIGNMENT))
            o->why = RP__COPY_ALIGNMENT;
        else {
            move_buffer(p, b, address);
            rp__program_count(&p->moved, 1);
            note_move(p, RP__COPY_COUNT);
            return RP_OK;
        }
        RP_TRY(fix(p, b, s, &o->fixed));
        note_move(p, o->why);
    }
    rp__program_count(&p->copies[o->why], 1);
    return rp__program_copy_bytes(o->fixed, b->address + b->begin, t->storage, address + b->begin, b->end - b->begin);
}

rp_status rp__program_write_back(const rp__executable *p, const rp__program_outer *o, const rp_tensor *t,
                                 rp__storage *own, const char *zero) {
    const rp_ir *ir = p->ir;
    const rp__program_buffer *b = &p->buffers[o->buffer];
    rp_scope scope = rp__scope_begin();
    rp_status status = RP_OK;
    for (size_t i = 0; i < ir->body.n_nodes && status == RP_OK; i++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[i]];
        for (uint32_t k = 0; k < n->n_in && status == RP_OK && !n->dead; k++) {
            if (n->in[k] == RP__IR_NONE || !rp__ir_writes(n, k)) continue;
            const rp__ir_value_info *info = &ir->values[n->in[k]];
            if (info->storage != o->buffer) continue;
            const rp__meta *m = &info->meta;
            rp_tensor *src = rp__tensor_new(m->dtype, m->size, m->ndim, rp__storage_retain(own)),
                      *dst = rp__tensor_new(m->dtype, m->size, m->ndim, rp__storage_retain(t->storage));
            if (rp__tensor_is_error(src) || rp__tensor_is_error(dst)) {
                status = rp_error_status();
                break;
            }
            memcpy(src->stride, info->stride, m->ndim * sizeof *src->stride);
            memcpy(dst->stride, info->stride, m->ndim * sizeof *dst->stride);
            src->offset = (zero - (char *)own->data) / (int64_t)rp__dtype_bytes(m->dtype) + info->offset;
            dst->offset = t->offset + info->offset - b->first_element;
            status = rp__run_copy(dst, src);
        }
    }
    rp__scope_end(scope, NULL, 0);
    return status;
}

rp_status rp__program_next_memory(rp__executable *p, rp__program_memory *r, rp_stream *s) {
    rp__program_buffer *b = &p->buffers[r->buffer];
    rp__storage *found = NULL;
    unsigned free_slot = 0;
    for (unsigned k = 0; k < RP__PROGRAM_MEMORIES && !found; k++) {
        if (!r->kept[k]) {
            free_slot = k;
        } else if (atomic_load_explicit(&r->kept[k]->refs, memory_order_acquire) == 1) {
            found = r->kept[k];
        }
    }
    if (!found) {
        found = rp__storage_new(p->device, s, (size_t)b->bytes);
        if (!found) return RP_ERROR_OUT_OF_MEMORY;
        if (r->kept[free_slot])
            rp__storage_release(r->kept[free_slot]); /* the caller keeps it alive */
        else
            rp__program_count(&p->held, found->bytes);
        r->kept[free_slot] = found;
        rp__program_count(&p->fresh, 1);
    }
    r->now = found;
    if (r->fixed) return RP_OK;
    if (b->library && p->graphed) {
        note_move(p, RP__COPY_RESULT);
        return fix(p, b, s, &r->fixed);
    }
    move_buffer(p, b, found->data);
    return RP_OK;
}

rp_status rp__program_give_result(rp__executable *p, const rp__program_memory *r) {
    const rp__program_buffer *b = &p->buffers[r->buffer];
    rp__program_count(&p->copies[RP__COPY_RESULT], 1);
    return rp__program_copy_bytes(r->now, (char *)r->now->data + b->begin, r->fixed, b->address + b->begin,
                                  b->end - b->begin);
}
