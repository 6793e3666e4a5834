/* One kernel for a chain of products (chain.c): each stage is lowered like a group of its own, into a DAG with a CONTRACT over a space, and all of
   them are launched together. */
#include <string.h>

#include "compile/program.h"
#include "core/alloc.h"
#include "device/device.h"

rp_status rp__chain_launch(const rp__fusion *f, const rp__fuse_group *g, const rp__group_lowering *how) {
    const rp__ir_node *named = &f->ir->nodes[f->nodes[g->members[0]].node];
    const rp__library_call call = {.op = named->op->name, .site = named->site};
    rp__library_stage stages[RP__CHAIN_MAX];
    rp__chain_stage *kept = rp__calloc(RP__CHAIN_MAX, sizeof *kept);
    rp__group_lowering mine = *how;
    uint32_t n = 0;
    if (!kept) return RP__OOM("a chain of products");
    memset(stages, 0, sizeof stages);
    rp_status status = RP_OK;
    for (uint32_t first = 0, end; first < g->n_members && status == RP_OK; first = end) {
        end = rp__chain_end(f, g->members, g->n_members, first);
        const rp__fuse_group stage = {.members = g->members + first, .n_members = end - first};
        rp__group_made made;
        kept[n].rows = end < g->n_members ? rp__chain_rows(f, g->members, end, first, g->members[end]) : RP__IR_NONE;
        mine.stage = &kept[n];
        status = rp__group_lower(f, &stage, &mine, &made);
        if (status != RP_OK) break;
        rp__dag_release(made.dags[0]);
        stages[n] = (rp__library_stage){.dag = kept[n].dag, .space = &kept[n].space, .rows = kept[n].store};
        n++;
    }
    if (status == RP_OK) status = rp__library_run_chain(how->device, how->stream, stages, n, &call);
    for (uint32_t s = 0; s < RP__CHAIN_MAX; s++) rp__dag_release(kept[s].dag);
    rp__free(kept);
    return status;
}
