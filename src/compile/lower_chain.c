/* One kernel for a chain of products (chain.c): each stage is lowered like a group of its own, into a DAG with a CONTRACT over a space, and all of
   them are launched together. */
#include <string.h>

#include "compile/program.h"
#include "core/alloc.h"
#include "device/device.h"
#include "kernel/library.h"

static rp_status lower_stages(const rp__fusion *f, const rp__fuse_group *g, const rp__group_lowering *how,
                              rp__chain_stage *kept, rp__library_stage *stages, uint32_t *n, rp__group_made *out) {
    rp__group_lowering mine = *how;
    mine.tune = RP__TUNE_NOT;
    for (uint32_t first = 0, end; first < g->n_members; first = end) {
        end = rp__chain_end(f, g->members, g->n_members, first);
        const uint32_t next = end < g->n_members ? g->members[end] : RP__IR_NONE;
        const rp__fuse_group stage = {.members = g->members + first, .n_members = end - first};
        rp__group_made made;
        rp__chain_stage *keeper = &kept[*n];
        const char *why = rp__chain_rows(f, g->members, end, first, next, &keeper->rows);
        if (why) return *why ? rp__fail(RP_ERROR_INTERNAL, "a chain is none any more: %s", why) : rp_error_status();
        mine.stage = keeper;
        /* of the group that its product was once: no other has them */
        if (how->kernels) mine.kernels = &how->kernels[2 * (size_t)g->members[first]];
        RP_TRY(rp__group_lower(f, &stage, &mine, &made));
        rp__dag_release(made.dags[0]); /* kept */
        out->built += made.built;
        for (unsigned k = 0; k < RP__FREE_COUNT; k++) out->taken[0][k] += made.taken[0][k];
        stages[(*n)++] = (rp__library_stage){.dag = keeper->dag, .space = &keeper->space, .rows = keeper->store};
    }
    return RP_OK;
}

rp_status rp__chain_lower(const rp__fusion *f, const rp__fuse_group *g, const rp__group_lowering *how,
                          rp__group_made *out) {
    const rp__ir_node *named = &f->ir->nodes[f->nodes[g->members[0]].node];
    const rp__library_call call = {.op = named->op->name, .site = named->site};
    rp__library_stage stages[RP__CHAIN_MAX];
    uint32_t n = 0;
    memset(stages, 0, sizeof stages);
    *out = (rp__group_made){.built = 0};
    rp__chain_stage *kept = rp__calloc(RP__CHAIN_MAX, sizeof *kept);
    if (!kept) return RP__OOM("a chain of products");
    rp__site_frame frame = rp__site_push(named->site ? named->site : "", named->op->name);
    rp_status status = lower_stages(f, g, how, kept, stages, &n, out);
    if (status == RP_OK) status = rp__library_run_chain(how->device, how->stream, stages, n, &call);
    rp__site_pop(frame);
    if (status == RP_OK) out->dags[0] = rp__dag_retain(kept[0].dag);
    for (uint32_t s = 0; s < RP__CHAIN_MAX; s++) rp__dag_release(kept[s].dag);
    rp__free(kept);
    return status;
}
