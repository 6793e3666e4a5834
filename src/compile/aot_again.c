/* Runs the graph of a compiled call again, op by op under the tape, and differentiates that (aot_again.h). Called by aot.c
   from the backward of a tape node. Every leaf gets a handle of its own in front, so that gradients stop there: what an
   argument was made from, perhaps of another argument, is the outer backward's affair. */
#include "compile/aot_again.h"

#include <string.h>

#include "core/alloc.h"
#include "device/allocator.h"
#include "trace/ir_run.h"

static rp_status front_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    (void)n;
    (void)create_graph;
    grad_in[0] = grad_out[0];
    return RP_OK;
}
static void front_nothing(rp__tape_node *n) { (void)n; }
static const rp__tape_class front_class = {"argument", front_backward, front_nothing, front_nothing};

/* The value of t as the run sees it. */
static rp_tensor *front(const rp__again *q, rp_tensor *t, bool needed) {
    if (!rp__grad_needed(t)) return t;
    rp_tensor *x = rp__tape_shadow(t);
    if (rp__tensor_is_error(x) || !needed) return x;
    rp_status status;
    if (q->create_graph) {
        bool grad = rp_set_grad_enabled(true);
        status = rp__tape_attach(&front_class, NULL, "argument", t->site, &t, 1, &x, 1, NULL);
        (void)rp_set_grad_enabled(grad);
    } else {
        status = rp_set_requires_grad(x, true);
    }
    return status == RP_OK ? x : rp__tensor_error();
}

static rp_status make_fronts(const rp__again *q, rp_tensor **args, rp_tensor **captured) {
    const rp_ir *ir = q->graph;
    uint32_t n_args = ir->body.n_args, n = n_args + (uint32_t)ir->n_captured, at = 0; /* leaves rise */
    for (uint32_t k = 0; k < n; k++) {
        while (at < q->n_leaves && q->leaves[at] < k) at++;
        bool needed = at < q->n_leaves && q->leaves[at] == k && q->needed[at];
        rp_tensor **to = k < n_args ? &args[k] : &captured[k - n_args];
        *to = front(q, q->in[k], needed);
        if (rp__tensor_is_error(*to)) return rp_error_status();
    }
    return RP_OK;
}

/* The forward, with the random numbers of then. */
static rp_status run(const rp__again *q, rp_tensor *const *args, rp_tensor *const *captured, rp_tensor **results) {
    const rp__ir_run_options options = {.captured = captured};
    rp__random_log drawn = {0};
    rp_status status = RP_OK;
    for (size_t k = 0; k < q->n_starts && status == RP_OK; k++) {
        const rp__executable_random *start = &q->starts[k];
        rp__random_draw draw = {NULL, start->seed, start->base};
        if (start->memory) draw = (rp__random_draw){start->memory->block->data, 0, start->base};
        status = rp__random_log_add(&drawn, start->generator, RP__RANDOM_OPEN, &draw, start->memory);
    }
    rp__random_log *outer_again = rp__random_again_set(&drawn), *outer_log = rp__random_log_set(NULL);
    bool grad = rp_set_grad_enabled(true);
    if (status == RP_OK)
        status = rp__ir_run(q->graph, args, q->graph->body.n_args, results, q->graph->body.n_results, &options);
    (void)rp_set_grad_enabled(grad);
    (void)rp__random_log_set(outer_log);
    (void)rp__random_again_set(outer_again);
    rp__random_log_free(&drawn);
    return status;
}

/* From results that were given a gradient to leaves of which one is wanted. */
static rp_status differentiate(const rp__again *q, rp_tensor *const *args, rp_tensor *const *captured,
                               rp_tensor *const *results, rp_tensor **grad_in) {
    uint32_t n_args = q->graph->body.n_args, n_roots = 0, n_inputs = 0;
    rp_tensor **lists = rp__calloc(2u * (q->n_tangents + q->n_leaves) + 1u, sizeof *lists);
    if (!lists) return RP__OOM("backward of a compiled function");
    rp_tensor **roots = lists, **seeds = roots + q->n_tangents, **inputs = seeds + q->n_tangents,
              **grads = inputs + q->n_leaves;
    for (uint32_t k = 0; k < q->n_tangents; k++) {
        rp_tensor *root = results[q->tangent_of[k]];
        if (!q->grad_out[k] || !rp__grad_needed(root)) continue;
        seeds[n_roots] = q->grad_out[k];
        roots[n_roots++] = root;
    }
    for (uint32_t k = 0; k < q->n_leaves; k++) {
        uint32_t leaf = q->leaves[k];
        if (q->needed[k]) inputs[n_inputs++] = leaf < n_args ? args[leaf] : captured[leaf - n_args];
    }
    rp_status status = rp__tape_grads(roots, seeds, n_roots, inputs, n_inputs, grads, q->create_graph, q->create_graph);
    for (uint32_t k = 0, at = 0; k < q->n_leaves && status == RP_OK; k++)
        if (q->needed[k]) grad_in[k] = grads[at++];
    rp__free(lists);
    return status;
}

rp_status rp__aot_again(const rp__again *q, rp_tensor **grad_in) {
    size_t n_args = q->graph->body.n_args, n_results = q->graph->body.n_results;
    rp_tensor **args = rp__calloc(n_args + n_results + q->graph->n_captured + 1, sizeof *args);
    if (!args) return RP__OOM("backward of a compiled function");
    rp_tensor **results = args + n_args, **captured = results + n_results;
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? make_fronts(q, args, captured) : rp_error_status();
    if (status == RP_OK) status = run(q, args, captured, results);
    if (status == RP_OK) status = differentiate(q, args, captured, results, grad_in);
    rp__scope_end(scope, grad_in, status == RP_OK ? q->n_leaves : 0);
    rp__free(args);
    return status;
}
