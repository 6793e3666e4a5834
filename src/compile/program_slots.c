/* What the slots of a program's records say (program_parts.h): which record waits for which, and which words hold addresses of
   buffers. Called while it is built, and again when its device graph is. */
#include "compile/program_parts.h"

#include "core/alloc.h"

/* Edges: for each buffer the accesses so far; a write waits for all that overlap, a read for writes. */
typedef struct access {
    rp__storage *storage;
    int64_t begin, end;
    uint32_t record;
    bool write;
} access;

rp_status rp__program_build_graph(rp__executable *p) {
    const rp__device_ops *ops = p->device->ops;
    p->n_edges = 0;
    access *log = NULL;
    size_t n_log = 0, log_capacity = 0;
    uint32_t *deps = rp__calloc(2 * ((size_t)p->n_records + 1), sizeof *deps),
             *mark = deps ? deps + p->n_records + 1 : NULL;
    rp_status status = deps ? ops->graph_new(p->device, &p->graph) : RP__OOM("edges of a program");
    uint32_t barrier = RP__IR_NONE;
    for (uint32_t i = 0; i < p->n_records && status == RP_OK; i++) {
        const rp__launch *l = p->records[i];
        uint32_t n = 0;
        if (l->barrier) {
            for (uint32_t k = 0; k < i; k++) deps[n++] = k;
            barrier = i;
        } else if (barrier != RP__IR_NONE) {
            deps[n++] = barrier;
            mark[barrier] = i + 1;
        }
        for (uint32_t k = 0; k < l->n_slots && !l->barrier; k++) {
            const rp__slot *s = &l->slots[k];
            if (!s->storage) continue;
            for (size_t a = 0; a < n_log; a++) {
                if (log[a].storage != s->storage || log[a].begin >= s->end || s->begin >= log[a].end) continue;
                if (!log[a].write && !(s->access & RP__WRITE)) continue;
                if (log[a].record == i || mark[log[a].record] == i + 1) continue;
                mark[log[a].record] = i + 1;
                deps[n++] = log[a].record;
            }
        }
        for (uint32_t k = 0; k < l->n_slots && !l->barrier && status == RP_OK; k++) {
            const rp__slot *s = &l->slots[k];
            if (!s->storage) continue;
            if (s->access & RP__WRITE) { /* what lies wholly inside is ordered through this write from now on */
                size_t kept = 0;
                for (size_t a = 0; a < n_log; a++) {
                    bool inside = log[a].storage == s->storage && log[a].begin >= s->begin && log[a].end <= s->end &&
                                  log[a].record != i;
                    if (!inside) log[kept++] = log[a];
                }
                n_log = kept;
            }
            if (!RP__GROW(&log, &log_capacity, n_log + 1)) {
                status = RP__OOM("edges of a program");
                break;
            }
            log[n_log++] = (access){s->storage, s->begin, s->end, i, (s->access & RP__WRITE) != 0};
        }
        p->n_edges += n;
        if (status == RP_OK) status = ops->graph_add(p->graph, l, deps, n, &p->node[i]);
    }
    if (status == RP_OK) status = ops->graph_instantiate(p->graph, p->device->default_stream);
    rp__free(log);
    rp__free(deps);
    return status;
}

/* Which words of which records hold addresses of which buffer. */
rp_status rp__program_collect_patches(rp__executable *p) {
    for (uint32_t i = 0; i < p->n_records; i++) {
        for (uint32_t k = 0; k < p->records[i]->n_slots; k++) {
            int32_t b = p->records[i]->slots[k].buffer;
            if (b < 0) continue;
            const rp__slot *s = &p->records[i]->slots[k];
            rp__kernel_kind kind = p->records[i]->kernel->kind;
            rp__program_buffer *touched = &p->buffers[b];
            if (touched->n_patches++ == 0 || s->begin < touched->begin) touched->begin = s->begin;
            if (s->end > touched->end) touched->end = s->end;
            if (kind == RP__KERNEL_CUDA_LIBRARY || kind == RP__KERNEL_CUDA_USER) touched->library = true;
        }
    }
    for (uint32_t b = 0; b < p->n_buffers; b++) {
        p->buffers[b].patches = RP__NEW(&p->arena, rp__program_patch, p->buffers[b].n_patches + 1u);
        if (!p->buffers[b].patches) return RP__OOM("patches of a program");
        p->buffers[b].n_patches = 0;
    }
    for (uint32_t i = 0; i < p->n_records; i++) {
        for (uint32_t k = 0; k < p->records[i]->n_slots; k++) {
            const rp__slot *s = &p->records[i]->slots[k];
            if (s->buffer < 0) continue;
            rp__program_buffer *b = &p->buffers[s->buffer];
            bool twice = false;
            for (uint32_t j = 0; j < b->n_patches && !twice; j++)
                twice = b->patches[j].record == i && b->patches[j].word == s->word;
            if (!twice) b->patches[b->n_patches++] = (rp__program_patch){i, s->word};
        }
    }
    p->touched = RP__NEW(&p->arena, uint8_t, p->n_records + 1u);
    p->touched_list = RP__NEW(&p->arena, uint32_t, p->n_records + 1u);
    p->outers = RP__NEW(&p->arena, rp__program_outer, p->n_buffers + 1u);
    if (!p->touched || !p->touched_list || !p->outers) return RP__OOM("patches of a program");
    for (uint32_t s = 0; s < p->n_buffers; s++) {
        const rp__program_buffer *b = &p->buffers[s];
        if (b->kind != RP__BUFFER_ARG && b->kind != RP__BUFFER_CAPTURED) continue;
        rp__program_outer *o = &p->outers[p->n_outers];
        o->buffer = s;
        o->arg = b->kind == RP__BUFFER_ARG ? b->index : RP__IR_NONE;
        o->captured = b->kind == RP__BUFFER_CAPTURED ? p->ir->captured[b->index] : NULL;
        o->write = b->written;
        o->site = b->written_site ? b->written_site : "";
        rp__ir_value v = RP__IR_NONE;
        if (b->kind == RP__BUFFER_ARG) v = p->ir->body.args[b->index];
        for (size_t k = 0; k < p->ir->n_nodes && v == RP__IR_NONE; k++) {
            const rp__ir_node *n = &p->ir->nodes[k];
            if (n->kind == RP__IR_CAPTURED && n->captured_index == b->index) v = n->out[0];
        }
        o->shift = p->ir->values[v].offset * (int64_t)rp__dtype_bytes(p->ir->values[v].meta.dtype);
        if (b->n_patches > 0 || o->write) p->n_outers++;
    }
    return RP_OK;
}
