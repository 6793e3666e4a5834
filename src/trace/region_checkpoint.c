/* rp_checkpoint in a trace: a CHECKPOINT node that keeps its operands alone, and where its block began to draw. The backward
   records the block again, with the random counters of the first time, and differentiates it. Without a trace the tape does
   the same by itself (rp__checkpoint_run); regions.c asks for the backward. */
#include "trace/regions.h"

#include <string.h>

#include "core/alloc.h"

static rp_status trace_checkpoint(rp__trace *t, rp__region_where at, rp_fn fn, rp_tensor *const *in, size_t n_in,
                                  rp_tensor **out, size_t n_out) {
    rp__region a = {0};
    rp_tensor **operands = NULL;
    bool *carries = NULL, any = false;
    rp_status status;
    RP_TRY_GOTO(status, done, rp__region_trace(at, fn, true, in, n_in, n_out, &a));
    /* One generator only: its counters are a range that the node can name. */
    rp_generator *g = NULL;
    for (size_t i = 0; i < a.ir->n_nodes; i++) {
        const rp__ir_node *n = &a.ir->nodes[i];
        if (n->kind != RP__IR_OP || !(n->op->flags & RP_OP_RANDOM)) continue;
        rp_generator *of = rp__ir_generator(n->attrs, n->n_attrs, a.ir->values[n->out[0]].meta.device);
        if (g && g != of) {
            status = rp__fail(RP_ERROR_GRAPH_BREAK, "a checkpoint draws from two generators");
            goto done;
        }
        g = of;
    }
    operands = rp__calloc(n_in + a.n_operands + 1, sizeof *operands);
    if (!operands) {
        status = RP__OOM("rp_checkpoint");
        goto done;
    }
    if (n_in) memcpy(operands, in, n_in * sizeof *operands);
    if (a.n_operands) memcpy(operands + n_in, a.operands, a.n_operands * sizeof *operands);
    size_t n = n_in + a.n_operands;
    uint32_t node;
    RP_TRY_GOTO(status, done,
                rp__region_emit(t, at, RP__IR_CHECKPOINT, a.ir, NULL, operands, n, 0, 0, a.ir, out, &node));
    rp_dim start = 0;
    rp__random_draw begins = {NULL, 0, 0};
    rp__random_memory *memory = NULL;
    if (g) {
        rp__ir_node *made = &rp__trace_ir(t)->nodes[node];
        start = rp__trace_random_offset(t, g);
        made->random_offset = start;
        made->random_count = a.random_count;
        rp__trace_random_seek(t, g, rp__dim_apply(RP__DIM_ADD, start, a.random_count));
        RP_TRY_GOTO(status, done, rp__random_peek(g, rp__current_stream(g->device), &begins, &memory));
        begins.inner += (uint64_t)rp__dim_hint(start);
    }
    carries = rp__calloc(n_out + 1, sizeof *carries);
    if (!carries) {
        status = RP__OOM("rp_checkpoint");
        goto done;
    }
    RP_TRY_GOTO(status, done, rp__region_flow(a.ir, NULL, 0, operands, n, carries, &any));
    if (any) {
        rp__region_kept k = {.kind = RP__IR_CHECKPOINT,
                             .a = rp__ir_retain(a.ir),
                             .generator = rp__generator_retain(g),
                             .random_offset = start,
                             .draw = begins,
                             .memory = rp__random_memory_retain(memory)};
        status = rp__region_attach(at, &k, "checkpoint", operands, n, operands, n, out, carries, n_out);
    }
done:
    rp__region_free(&a);
    rp__free(operands);
    rp__free(carries);
    return status;
}

rp_status rp_checkpoint_at(const char *site, rp_fn fn, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                           size_t n_out) {
    RP__CALLED_FROM(site && *site ? site : NULL);
    const rp__region_where at = {"rp_checkpoint", site ? site : rp__site()};
    rp__trace *t = rp__trace_current();
    if ((n_in && !in) || (n_out && !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_checkpoint: a list of tensors is NULL");
    RP__LISTS_APART(in, n_in, out, n_out, rp_checkpoint_at(site, fn, apart, n_in, out, n_out));
    if (!t) return rp__checkpoint_run(at.site, fn, NULL, in, n_in, out, n_out);
    rp_scope scope = rp__scope_begin();
    rp_status status =
        rp__region_check_functions("rp_checkpoint", "rp_checkpoint: an argument", fn, fn, in, n_in, out, n_out);
    /* Arguments stay as they are, as without a trace: a copy would add up their gradients in another order. */
    if (status == RP_OK) status = trace_checkpoint(t, at, fn, in, n_in, out, n_out);
    if (rp__region_falls_back(status)) { /* what it reads can be computed: as if it stood here, without recomputation */
        const uint64_t failures = rp__error_count();
        fn.body(fn.ctx, in, n_in, out, n_out);
        status = rp__status_since(failures);
    }
    return rp__region_finish(scope, status, out, n_out);
}

/* ---- backward */

rp_status rp__region_checkpoint_backward(const rp__region_task *q, rp_tensor **grad_in) {
    const rp__region_kept *p = q->p;
    rp__region_derivative d = {.ir = p->a, .wanted = q->needed, .same = q->same, .n_operands = p->n_operands};
    rp_tensor **grads = rp__calloc(p->n_operands + 1, sizeof *grads);
    if (!grads) return RP__OOM("backward of rp_checkpoint");
    rp_status status = RP_OK;
    rp__trace *t = rp__trace_current();
    rp__random_log *outer_log = NULL, *outer_again = NULL, drawn = {0};
    rp_dim before = 0;
    if (p->generator && t) {
        const uint64_t failures = rp__error_count();
        before = rp__trace_random_offset(t, p->generator);
        rp__trace_random_seek(t, p->generator, p->random_offset);
        status = rp__status_since(failures);
    } else if (p->generator) {
        status = rp__random_log_add(&drawn, p->generator, RP__RANDOM_OPEN, &p->draw, p->memory);
        outer_again = rp__random_again_set(&drawn);
        outer_log = rp__random_log_set(NULL);
    }
    if (status == RP_OK) status = rp__region_derive(&d, q->grad_out, q->saved, q->sums, q->create_graph, true, grads);
    if (p->generator && t) {
        rp__trace_random_seek(t, p->generator, before);
    } else if (p->generator) {
        (void)rp__random_log_set(outer_log);
        (void)rp__random_again_set(outer_again);
        rp__random_log_free(&drawn);
    }
    for (size_t k = 0, g = 0; k < p->n_operands && status == RP_OK; k++) {
        if (q->needed[k]) grad_in[k] = grads[g++];
    }
    rp__free(grads);
    return status;
}
