/* What explain says of a program (program.h): its kernels, edges that were not fused, memory that eager execution would take. */
#include "compile/program_parts.h"

#include <string.h>

#include "core/alloc.h"

int64_t rp__program_eager_peak(const rp_ir *ir) {
    /* eager: every op's result lives from its op to the last reader of its memory; results to the end */
    int64_t now = 0, peak = 0;
    uint32_t *last = rp__calloc(ir->n_storages + 1u, sizeof *last);
    int64_t *bytes = rp__calloc(ir->n_storages + 1u, sizeof *bytes);
    for (size_t k = 0; last && k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_in; i++) {
            if (n->in[i] != RP__IR_NONE) last[ir->values[n->in[i]].storage] = (uint32_t)k + 1;
        }
    }
    for (uint32_t k = 0; last && k < ir->body.n_results; k++) {
        if (ir->body.results[k] != RP__IR_NONE) last[ir->values[ir->body.results[k]].storage] = UINT32_MAX;
    }
    for (size_t k = 0; last && bytes && k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_out && (n->kind == RP__IR_OP || n->n_regions > 0); i++) {
            uint32_t s = ir->values[n->out[i]].storage;
            if (rp__ir_is_view(n) || bytes[s]) continue;
            bytes[s] = rp__program_value_bytes(ir, n->out[i]);
            now += bytes[s];
        }
        if (now > peak) peak = now;
        for (uint32_t i = 0; i < n->n_in; i++) {
            if (n->in[i] == RP__IR_NONE || last[ir->values[n->in[i]].storage] != (uint32_t)k + 1) continue;
            now -= bytes[ir->values[n->in[i]].storage];
            bytes[ir->values[n->in[i]].storage] = 0;
        }
    }
    rp__free(last);
    rp__free(bytes);
    return peak;
}

static const char *node_name(const rp__ir_node *n) {
    return n->kind == RP__IR_OP      ? n->op->name
           : n->kind == RP__IR_COND  ? "cond"
           : n->kind == RP__IR_WHILE ? "while"
                                     : "assign";
}

/* A loop kernel is called rp_SCHEDULE_ and a hash of 16 digits: the schedule. "": it has another name. */
static size_t schedule_in(const char *name, const char **at) {
    const size_t n = name ? strlen(name) : 0;
    *at = n > 20 ? name + 3 : "";
    return n > 20 && strncmp(name, "rp_", 3) == 0 && name[n - 17] == '_' ? n - 20 : 0;
}

static rp_status describe_group(rp__executable *p, const rp__program_part *part, uint32_t group) {
    const rp__fusion *f = &part->fusion;
    const rp__fuse_group *g = &f->groups[group];
    const rp__fuse_node *first = &f->nodes[g->members[0]];
    const bool product = rp__fuse_product(f, g) != NULL;
    const rp__ir_node *n = &part->ir->nodes[first->node];
    const char *site = n->site ? n->site : "";
    if (first->kind == RP__FUSE_NOTHING) return RP_OK;
    if (first->kind == RP__FUSE_REGION) {
        p->regions[p->n_regions++] = (struct rp__executable_region){node_name(n), site};
        return RP_OK;
    }
    rp__executable_kernel *k = &p->kernels[p->n_kernels++];
    rp__text t = {0};
    for (uint32_t m = 0; m < g->n_members; m++)
        rp__text_add(&t, "%s%s", m ? "+" : "", node_name(&part->ir->nodes[f->nodes[g->members[m]].node]));
    k->ops = t.failed || !t.data ? NULL : rp__arena_strdup(&p->arena, t.data);
    rp__text_free(&t);
    if (!k->ops) return RP__OOM("facts of a program");
    const rp__ir_node *named = &part->ir->nodes[f->nodes[rp__fuse_named(f, g)].node];
    k->site = named->site ? named->site : "";
    k->library = g->chain || first->kind == RP__FUSE_LIBRARY || (first->kind == RP__FUSE_PRODUCT && g->n_members == 1);
    k->server = k->library ? "library" : "loop";
    rp__text schedules = {0};
    bool elsewhere = false; /* another library's kernel names the group, not the copies around it */
    const struct rp__program_made *made = &p->made[part->first_group + group];
    for (uint32_t r = made->first_record; r < made->first_record + made->n_records; r++) {
        if (!elsewhere) k->kernel = p->records[r]->kernel;
        for (uint32_t s = 0; s < p->records[r]->n_slots; s++) {
            k->bytes += p->records[r]->slots[s].end - p->records[r]->slots[s].begin;
        }
        const bool named_by_kernel = k->library || product; /* which template it is stands there */
        if (named_by_kernel && !elsewhere && p->records[r]->kernel->name) k->server = p->records[r]->kernel->name;
        elsewhere = elsewhere || p->records[r]->kernel->kind == RP__KERNEL_CUDA_LIBRARY;
        const char *at;
        const size_t length = named_by_kernel ? 0 : schedule_in(p->records[r]->kernel->name, &at);
        if (length) rp__text_add(&schedules, "%s%.*s", schedules.length ? ", " : "loop, schedule ", (int)length, at);
    }
    for (size_t j = 0; j < p->n_joined && !k->kernel; j++) {
        if (p->joined[j].group != part->first_group + group) continue;
        k->kernel = p->records[p->joined[j].record]->kernel;
        if (k->kernel->name) k->server = k->kernel->name;
    }
    if (schedules.length) k->server = rp__arena_strdup(&p->arena, schedules.data);
    const bool failed = schedules.failed || !k->server;
    rp__text_free(&schedules);
    if (failed) return RP__OOM("facts of a program");
    k->fault = p->device->ops->loops->fault;
    for (uint32_t i = 0; i < made->n_dags; i++) {
        const struct rp__program_dag *d = &p->dags[made->first_dag + i];
        k->tuned[i] = d->tuned;
        k->moved[i] = d->moved;
        k->schedule[i] = d->schedule;
        k->dags[i] = d->dag;
        for (unsigned of = 0; of < RP__FREE_COUNT; of++) k->taken[of] += d->taken[of];
    }
    return RP_OK;
}

static rp_status describe_results(rp__executable *p) {
    const rp_ir *ir = p->ir;
    p->n_outs = ir->body.n_results;
    p->outs = RP__NEW(&p->arena, rp__program_result, p->n_outs + 1u);
    if (!p->outs) return RP__OOM("results of a program");
    for (uint32_t k = 0; k < p->n_outs; k++) {
        rp__program_result *r = &p->outs[k];
        rp__ir_value v = ir->body.results[k];
        r->absent = v == RP__IR_NONE;
        if (r->absent) continue;
        const rp__ir_value_info *info = &ir->values[v];
        const rp__program_buffer *b = &p->buffers[info->storage];
        r->memory = b->kind == RP__BUFFER_RESULT ? b->index : RP__IR_NONE;
        r->outer_buffer = info->storage;
        r->dtype = info->meta.dtype;
        r->ndim = info->meta.ndim;
        memcpy(r->size, info->meta.size, sizeof r->size);
        memcpy(r->stride, info->stride, sizeof r->stride);
        r->offset = info->offset;
        const rp__ir_node *n = rp__ir_producer(ir, v);
        r->same = rp__ir_is_outer(ir, v);
        r->arg = n ? RP__IR_NONE : info->out_index;
        r->op = n && n->kind == RP__IR_OP ? n->op->name : "compiled";
        r->site = n && n->site ? n->site : "";
    }
    return RP_OK;
}

rp_status rp__program_describe(rp__executable *p) {
    RP_TRY(describe_results(p));
    size_t n_unfused = 0;
    for (const rp__program_part *part = p->parts; part; part = part->next) n_unfused += part->fusion.n_unfused;
    p->kernels = RP__NEW(&p->arena, rp__executable_kernel, p->n_groups + 1u);
    p->unfused = RP__NEW(&p->arena, struct rp__executable_unfused, n_unfused + 1u);
    p->regions = RP__NEW(&p->arena, struct rp__executable_region, p->n_choices + 1u);
    if (!p->kernels || !p->unfused || !p->regions) return RP__OOM("facts of a program");
    for (const rp__program_part *part = p->parts; part; part = part->next) {
        const rp__fusion *f = &part->fusion;
        for (uint32_t i = 0; i < part->n_order; i++) RP_TRY(describe_group(p, part, part->order[i]));
        for (uint32_t i = 0; i < f->n_unfused; i++) {
            const rp__unfused_edge *e = &f->unfused[i];
            if (f->nodes[e->producer].group == f->nodes[e->consumer].group) continue;
            const rp__ir_node *a = &part->ir->nodes[f->nodes[e->producer].node],
                              *b = &part->ir->nodes[f->nodes[e->consumer].node];
            p->unfused[p->n_unfused++] =
                (struct rp__executable_unfused){e->reason, node_name(a), node_name(b), b->site ? b->site : ""};
        }
    }
    return RP_OK;
}

void rp__executable_counts_of(const rp__executable *p, rp__executable_facts *out) {
    *out = (rp__executable_facts){.patches = &p->patches,
                                  .fresh_results = &p->fresh,
                                  .moved = &p->moved,
                                  .copies = p->copies,
                                  .executables = p->device->ops->graph_count ? &p->executables : NULL};
}

void rp__executable_facts_of(const rp__executable *p, rp__executable_facts *out) {
    *out = (rp__executable_facts){.kernels = p->kernels,
                                  .n_kernels = p->n_kernels,
                                  .unfused = p->unfused,
                                  .n_unfused = p->n_unfused,
                                  .regions = p->regions,
                                  .n_regions = p->n_regions,
                                  .split = p->split,
                                  .graphed = p->graphed,
                                  .one_call = p->one_call,
                                  .layouts = p->layouts,
                                  .n_layouts = p->n_layouts,
                                  .copy_rate = p->tune ? rp__tune_copy_rate(p->device, false) : 0,
                                  .executables = p->device->ops->graph_count ? &p->executables : NULL,
                                  .n_launches = p->n_records,
                                  .n_fused = p->n_fused,
                                  .n_lowered = p->n_lowered,
                                  .n_edges = p->n_edges,
                                  .n_ahead = p->graphed ? p->n_ahead : 0,
                                  .arena_bytes = p->arena_bytes,
                                  .result_bytes = p->result_bytes,
                                  .donated_bytes = p->donated_bytes,
                                  .eager_peak_bytes = p->eager_peak,
                                  .runs = p->runs,
                                  .moved = &p->moved,
                                  .copies = p->copies,
                                  .patches = &p->patches,
                                  .fresh_results = &p->fresh};
}
