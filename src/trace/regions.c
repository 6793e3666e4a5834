/* rp_cond, rp_while and rp_checkpoint. Without a trace the host runs the functions (the tape sees their ops, checkpoint drops what
   it would save). In a trace each becomes one node whose blocks are the functions, traced abstractly and closed: what they
   read from outside becomes operands. Gradients of such a node are nodes of the same kind over the derivative of the block:
     cond        the same predicate chooses the derivative of the branch that ran;
     while       the forward also keeps every iteration's state (max_iter bounds them); a second loop walks back over them;
     checkpoint  the block is recorded again, with the random counters of the first time, and differentiated.
   Gradients are added up in the order of eager execution, where each op of a block is a node of the tape: a derivative gets the sum so
   far of an operand's gradients and adds to it.
   One rule for results: a function gives every result that it is asked for, and branches give the same types.
   A function that reads a value on the host or draws random numbers inside cond or while cannot be a block: the trace computes
   what is pending, and the host runs it. */
#include <string.h>

#include "autograd/tape.h"
#include "core/alloc.h"
#include "core/log.h"
#include "device/capture.h"
#include "trace/ir_run.h"
#include "trace/trace.h"

/* ---- a closed function */

typedef struct region {
    rp_ir *ir;            /* arguments: the explicit ones, then operands */
    rp_tensor **operands; /* retained */
    size_t n_operands;
    rp_dim random_count;
} region;

static void region_free(region *r) {
    rp_ir_release(r->ir);
    for (size_t i = 0; i < r->n_operands; i++) rp_release(r->operands[i]);
    rp__free(r->operands);
    *r = (region){0};
}

typedef struct where { /* a call, for messages */
    const char *of, *site;
} where;

/* Results of a block are fresh row-major tensors: neither arguments, nor views, nor the same twice. */
typedef struct settled {
    rp_fn fn;
    where at;
} settled;

static const char *name_of(rp_fn fn) { return fn.name && *fn.name ? fn.name : "a function without a name"; }
static const char *place_of(const char *site) { return site && *site ? site : "no call site"; }

/* The rule for results, wherever the function runs: each that was asked for is there. */
static rp_status check_result(where at, rp_fn fn, rp_tensor *t, size_t k) {
    if (!t)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: `%s` leaves output %zu out (%s)", at.of, name_of(fn), k,
                        place_of(at.site));
    return rp__tensor_check(t, "an output of a region");
}

static void settled_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const settled *s = ctx;
    s->fn.body(s->fn.ctx, in, n_in, out, n_out);
    for (size_t k = 0; k < n_out && !rp_failed(); k++) {
        if (check_result(s->at, s->fn, out[k], k) != RP_OK) return;
        bool copy = !rp__trace_pending(out[k]) || (out[k]->flags & RP__T_VIEW) || !rp__tensor_contiguous(out[k]);
        for (size_t i = 0; i < n_in && !copy; i++) copy = in[i] && in[i]->storage == out[k]->storage;
        for (size_t i = 0; i < k && !copy; i++) copy = out[i]->storage == out[k]->storage;
        if (copy) out[k] = rp_clone(out[k]);
    }
}

rp_status rp__region_own_results(rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    for (size_t k = 0; k < n_out; k++) {
        bool copy = false;
        for (size_t i = 0; i < n_in && !copy; i++) copy = in[i]->storage == out[k]->storage;
        for (size_t i = 0; i < k && !copy; i++) copy = out[i]->storage == out[k]->storage;
        if (copy) out[k] = rp_clone(out[k]);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    return RP_OK;
}

/* fn on stand-ins of the types `infos`. */
static rp_status trace_closed(rp_fn fn, const rp__ir_value_info *infos, size_t n_in, size_t n_out, region *out) {
    rp__trace_result result = {0};
    *out = (region){0};
    const rp__ir_value_info **pointers = rp__calloc(n_in + 1, sizeof *pointers);
    if (!pointers) return RP__OOM("region");
    for (size_t k = 0; k < n_in; k++) pointers[k] = &infos[k];
    rp__trace_request request = {.mode = RP__TRACE_ABSTRACT,
                                 .fn = fn,
                                 .n_in = n_in,
                                 .n_out = n_out,
                                 .arg_info = pointers,
                                 .close = true,
                                 .no_grad = true};
    rp_status status = rp__trace_run(&request, NULL, &result);
    if (status == RP_OK && result.escaped)
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a region keeps a tensor that it made");
    if (status == RP_OK) {
        *out = (region){result.ir, result.operands, result.n_operands, result.random_count};
        result.ir = NULL;
        result.operands = NULL;
        result.n_operands = 0;
    }
    rp__trace_result_free(&result);
    rp__free(pointers);
    return status;
}

static void info_of(const rp_tensor *t, rp__ir_value_info *out) {
    rp__ir_meta_of(t, &out->meta);
    memcpy(out->stride, t->stride, sizeof out->stride);
}

static rp_status trace_region(where at, rp_fn fn, rp_tensor *const *in, size_t n_in, size_t n_out, region *out) {
    settled s = {fn, at};
    *out = (region){0};
    rp__ir_value_info *infos = rp__calloc(n_in + 1, sizeof *infos);
    if (!infos) return RP__OOM("region");
    for (size_t k = 0; k < n_in; k++) info_of(in[k], &infos[k]);
    rp_status status = trace_closed((rp_fn){settled_body, &s, 0, fn.name}, infos, n_in, n_out, out);
    rp__free(infos);
    return status;
}

/* A copy of r's graph whose arguments past n_explicit are `all` (which holds r's operands). */
static rp_status widen(const region *r, size_t n_explicit, rp_tensor *const *all, size_t n_all, rp_ir **out) {
    rp_ir *ir = rp__ir_new(r->ir->name);
    if (!ir) return RP_ERROR_OUT_OF_MEMORY;
    ir->symbols = rp__symbols_retain(r->ir->symbols);
    rp_status status = RP_OK;
    rp__ir_value *args = rp__alloc((r->ir->body.n_args + 1u) * sizeof *args);
    if (!args) status = RP__OOM("region");
    for (size_t k = 0; k < n_explicit + n_all && status == RP_OK; k++) {
        rp__meta meta;
        if (k < n_explicit)
            meta = r->ir->values[r->ir->body.args[k]].meta;
        else
            rp__ir_meta_of(all[k - n_explicit], &meta);
        rp__ir_value v = rp__ir_add_arg(ir, &ir->body, &meta, NULL);
        if (v == RP__IR_NONE)
            status = RP_ERROR_OUT_OF_MEMORY;
        else if (k < n_explicit)
            args[k] = v;
        for (size_t i = 0; k >= n_explicit && i < r->n_operands; i++) {
            if (r->operands[i] == all[k - n_explicit]) args[n_explicit + i] = v;
        }
    }
    if (status == RP_OK) {
        rp__ir_block to = ir->body;
        to.args = args;
        to.n_args = r->ir->body.n_args;
        status = rp__ir_copy_block(ir, &to, r->ir, &r->ir->body);
        to.args = ir->body.args;
        to.n_args = ir->body.n_args;
        ir->body = to;
    }
    rp__free(args);
    if (status != RP_OK) {
        rp_ir_release(ir);
        return status;
    }
    *out = ir;
    return RP_OK;
}

/* The operands of two regions, each once. *all: n of them, borrowed. */
static rp_status merge_operands(const region *a, const region *b, rp_tensor ***all, size_t *n) {
    *n = 0;
    *all = rp__calloc(a->n_operands + (b ? b->n_operands : 0) + 1, sizeof **all);
    if (!*all) return RP__OOM("region");
    for (size_t i = 0; i < a->n_operands; i++) (*all)[(*n)++] = a->operands[i];
    for (size_t i = 0; b && i < b->n_operands; i++) {
        size_t k = 0;
        while (k < *n && (*all)[k] != b->operands[i]) k++;
        if (k == *n) (*all)[(*n)++] = b->operands[i];
    }
    return RP_OK;
}

/* ---- recording a node */

static rp_status add_block(rp_ir *ir, uint32_t node, uint32_t r, const rp_ir *from) {
    rp__ir_block *block = &ir->nodes[node].regions[r];
    for (uint32_t k = 0; k < from->body.n_args; k++) {
        const rp__ir_value_info *info = &from->values[from->body.args[k]];
        if (rp__ir_add_arg(ir, block, &info->meta, info->site) == RP__IR_NONE) return RP_ERROR_OUT_OF_MEMORY;
    }
    return rp__ir_copy_block(ir, block, from, &from->body);
}

/* The line of the op that made result k; copies of the trace's own have none. */
static const char *made_at(const rp_ir *ir, uint32_t k) {
    rp__ir_value v = ir->body.results[k];
    for (const char *site = NULL;;) {
        uint32_t node = ir->values[v].node;
        const rp__ir_node *n = node == RP__IR_NONE ? NULL : &ir->nodes[node];
        site = n ? n->site : ir->values[v].site;
        if ((site && *site) || !n || n->n_in == 0 || n->in[0] == RP__IR_NONE) return site;
        v = n->in[0];
    }
}

/* Branches give the same types: else an error that names both and the lines where the results were made. */
static rp_status check_types(where at, const rp_ir *a, rp_fn a_fn, const rp_ir *b, rp_fn b_fn) {
    for (uint32_t k = 0; k < a->body.n_results; k++) {
        const rp__ir_value_info *x = &a->values[a->body.results[k]], *y = &b->values[b->body.results[k]];
        char x_size[RP__SHAPE_TEXT], y_size[RP__SHAPE_TEXT];
        if (x->meta.dtype == y->meta.dtype && x->meta.ndim == y->meta.ndim &&
            rp__device_equal(x->meta.device, y->meta.device) &&
            memcmp(x->meta.size, y->meta.size, x->meta.ndim * sizeof *x->meta.size) == 0)
            continue;
        return rp__fail(RP_ERROR_SHAPE,
                        "rp_cond: the branches differ in output %u (%s): `%s` gives %s %s (%s), `%s` gives %s %s (%s)",
                        k, place_of(at.site), name_of(a_fn), rp_dtype_name(x->meta.dtype),
                        rp__shape_text(x->meta.size, x->meta.ndim, x_size), place_of(made_at(a, k)), name_of(b_fn),
                        rp_dtype_name(y->meta.dtype), rp__shape_text(y->meta.size, y->meta.ndim, y_size),
                        place_of(made_at(b, k)));
    }
    return RP_OK;
}

/* Records kind(operands) with the graphs a (and b) as blocks; pending outputs typed as the results of `typed`. */
static rp_status emit(rp__trace *t, where at, rp__ir_kind kind, const rp_ir *a, const rp_ir *b,
                      rp_tensor *const *operands, size_t n, int64_t max_iter, size_t keeps, const rp_ir *typed,
                      rp_tensor **out, uint32_t *made) {
    rp_ir *ir = rp__trace_ir(t);
    rp__ir_value *in = rp__alloc((n + 1) * sizeof *in);
    const rp__meta **metas = rp__calloc(typed->body.n_results + 1u, sizeof *metas);
    const rp_attr attrs[2] = {{.kind = RP_ATTR_INT, .v.i = max_iter}, {.kind = RP_ATTR_INT, .v.i = (int64_t)keeps}};
    uint32_t node = RP__IR_NONE;
    rp_status status = in && metas ? RP_OK : RP__OOM("region");
    for (size_t k = 0; k < n && status == RP_OK; k++) {
        if ((in[k] = rp__trace_resolve(t, operands[k])) == RP__IR_NONE) status = rp_error_status();
    }
    if (status == RP_OK) {
        node = rp__ir_add_node(ir, NULL, kind, NULL, in, (uint32_t)n, NULL, attrs, kind == RP__IR_WHILE ? 2 : 0,
                               typed->body.n_results, at.site);
        status = node == RP__IR_NONE ? RP_ERROR_OUT_OF_MEMORY : rp__ir_add_regions(ir, node, b ? 2 : 1);
    }
    if (status == RP_OK) status = add_block(ir, node, 0, a);
    if (status == RP_OK && b) status = add_block(ir, node, 1, b);
    if (status == RP_OK) status = rp__ir_block_append(ir, &ir->body, node); /* whole or not at all */
    for (uint32_t k = 0; metas && k < typed->body.n_results; k++)
        metas[k] = &typed->values[typed->body.results[k]].meta;
    if (status == RP_OK) status = rp__trace_outputs(t, node, metas, out, typed->body.n_results);
    if (made) *made = node;
    rp__free(in);
    rp__free(metas);
    return status;
}

/* Arguments as a function of a branch or loop sees them, on the host and in a trace: row-major. Operands from `n_own` on are what the
   functions read from outside, which stays as it is: a copy would add up gradients in another order. */
static rp_status settle_operands(rp_tensor *const *in, size_t n, size_t n_own, rp_tensor **out) {
    for (size_t k = 0; k < n; k++) {
        RP_TRY(rp__tensor_check(in[k], "an argument of a region"));
        if (rp__tensor_is_error(in[k]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "an argument of a region is the error tensor");
        out[k] = k >= n_own || rp__tensor_contiguous(in[k]) ? in[k] : rp_clone(in[k]);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
    }
    return RP_OK;
}

/* Failures after which the host runs the functions. Takes the error. */
static bool falls_back(rp_status status) {
    if (status != RP_ERROR_GRAPH_BREAK) return false;
    (void)rp_error_take();
    return true;
}

static bool any_needs_grad(rp_tensor *const *in, size_t n) {
    bool any = false;
    for (size_t k = 0; k < n && rp_grad_enabled(); k++) any = any || rp__grad_needed(in[k]);
    return any;
}

/* ---- what the tape keeps of a region */

typedef struct kept {
    rp__ir_kind kind;
    rp_ir *a, *b;
    rp__saved *saved; /* n: predicate (cond), operands; loops: operands, count, stacks */
    size_t n_saved, n_operands, n_state;
    int64_t max_iter;
    rp_generator *generator; /* checkpoint: counted; NULL: it draws nothing */
    rp_dim random_offset;
    rp__random_draw draw;      /* where the block began to draw */
    rp__random_memory *memory; /* of draw.state; counted */
} kept;

static void kept_contents_free(kept *p) {
    rp_ir_release(p->a);
    rp_ir_release(p->b);
    rp_generator_release(p->generator);
    rp__random_memory_release(p->memory);
}

static void kept_release_saved(rp__tape_node *n) {
    kept *p = n->payload;
    for (size_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
    n->released = true;
}

static void kept_destroy(rp__tape_node *n) {
    kept *p = n->payload;
    for (size_t i = 0; i < p->n_saved; i++) rp__saved_drop(&p->saved[i]);
    kept_contents_free(p);
    rp__free(p->saved);
}

static rp_status kept_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph);
static const rp__tape_class kept_class = {"region", kept_backward, kept_release_saved, kept_destroy};

/* Puts out on the tape behind operands. Takes p's contents over, also on failure. */
static rp_status attach(where at, kept *contents, const char *name, rp_tensor *const *save, size_t n_save,
                        rp_tensor *const *operands, size_t n_operands, rp_tensor *const *out, size_t n_out) {
    rp__tape_node *n;
    rp__trace *t = rp__trace_current();
    rp_status status = rp__tape_node_new(&kept_class, name, at.site, operands, (uint32_t)n_operands, out,
                                         (uint32_t)n_out, sizeof(kept), &n);
    if (status != RP_OK) {
        kept_contents_free(contents);
        return status;
    }
    kept *p = n->payload;
    *p = *contents;
    p->n_operands = n_operands;
    p->saved = rp__calloc(n_save + 1, sizeof *p->saved);
    status = p->saved ? RP_OK : RP__OOM("tape");
    for (size_t i = 0; i < n_save && status == RP_OK; i++) {
        size_t k = 0; /* a result is kept without holding its own node */
        while (k < n_out && out[k] != save[i]) k++;
        status = rp__saved_pack(&p->saved[i], save[i], k < n_out, k < n_out ? (uint32_t)k : 0);
        p->n_saved = i + 1;
    }
    for (size_t k = 0; k < n_out && status == RP_OK; k++) {
        if (!rp__dtype_is_float((rp_dtype)out[k]->dtype)) continue;
        status = rp__tape_set_history(out[k], n, (uint32_t)k);
        if (status == RP_OK && t) rp__trace_ir(t)->values[rp__trace_resolve(t, out[k])].requires_grad = true;
    }
    rp__tape_node_release(n);
    return status;
}

/* ---- the derivative of a block: from gradients of the results, operands, and sums so far of the operands' gradients */

typedef struct derivative {
    const rp_ir *ir;
    const bool *wanted;   /* per operand */
    const uint32_t *same; /* per operand: the first that is the same tensor; NULL: all are their own */
    const bool *given;    /* per result: a gradient comes in */
    const bool *summed;   /* per operand: a sum comes in */
    size_t n_operands;
} derivative;

/* grad_out[k], sums[k]: NULL where nothing comes in. grads: of the wanted operands, one after the other; zero where the block gives
   none. create_graph: on the tape behind operands and grad_out. */
static rp_status derive(const derivative *d, rp_tensor *const *grad_out, rp_tensor *const *operands,
                        rp_tensor *const *sums, bool create_graph, bool again, rp_tensor **grads) {
    size_t n_out = d->ir->body.n_results, n_wanted = 0, n_roots = 0, most = n_out + d->n_operands;
    rp_tensor **work = rp__calloc(2 * d->n_operands + n_out + 2 * most + 1, sizeof *work);
    if (!work) return RP__OOM("derivative of a region");
    rp_tensor **leaf = work, **wanted = leaf + d->n_operands, **out = wanted + d->n_operands, **roots = out + n_out,
              **seeds = roots + most;
    bool grad = rp_set_grad_enabled(true);
    rp_status status = RP_OK;
    for (size_t k = 0; k < d->n_operands && status == RP_OK; k++) {
        leaf[k] = d->same ? leaf[d->same[k]] : NULL;
        if (!leaf[k]) leaf[k] = operands[k];
        if (!d->wanted[k]) continue;
        if (create_graph && rp__grad_needed(operands[k])) {
            leaf[k] = rp_view(operands[k], operands[k]->size, operands[k]->ndim);
        } else {
            leaf[k] = rp__tape_shadow(operands[k]);
            status = rp_set_requires_grad(leaf[k], true);
        }
        wanted[n_wanted++] = leaf[k];
        if (sums[k]) {
            roots[n_roots] = leaf[k];
            seeds[n_roots++] = sums[k];
        }
        if (status == RP_OK && rp_failed()) status = rp_error_status();
    }
    rp__trace *t = rp__trace_current();
    size_t before = t ? rp__trace_ir(t)->n_nodes : 0;
    if (status == RP_OK) status = rp__ir_run(d->ir, leaf, d->n_operands, out, n_out, NULL);
    for (size_t k = before; again && t && k < rp__trace_ir(t)->n_nodes; k++) rp__trace_ir(t)->nodes[k].recompute = true;
    for (size_t k = 0; k < n_out && status == RP_OK; k++) {
        if (grad_out[k] && rp__grad_needed(out[k])) {
            roots[n_roots] = out[k];
            seeds[n_roots++] = grad_out[k];
        }
    }
    rp_backward_options options = {.struct_size = sizeof options,
                                   .allow_unused = true,
                                   .create_graph = create_graph,
                                   .retain_graph = create_graph};
    if (status == RP_OK && n_roots && n_wanted)
        status = rp_grad(roots, n_roots, wanted, n_wanted, seeds, &options, grads);
    (void)rp_set_grad_enabled(grad);
    for (size_t k = 0; k < n_wanted && status == RP_OK; k++) {
        if (!grads[k]) grads[k] = rp_zeros_like(wanted[k]);
    }
    if (status == RP_OK && rp_failed()) status = rp_error_status();
    rp__free(work);
    return status;
}

/* The same as a function of what comes in: gradients, operands, sums. On the host grad mode says whether the result needs a history; in
   a trace the function is a block without a tape, which is differentiated as such. */
static void derivative_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const derivative *d = ctx;
    size_t n_results = d->ir->body.n_results, at = 0;
    rp_tensor **all = rp__calloc(n_results + 2 * d->n_operands + 1, sizeof *all);
    (void)n_in;
    (void)n_out;
    if (!all) {
        (void)RP__OOM("derivative of a region");
        return;
    }
    rp_tensor **operands = all + n_results, **sums = operands + d->n_operands;
    for (size_t k = 0; k < n_results; k++) all[k] = d->given[k] ? in[at++] : NULL;
    for (size_t k = 0; k < d->n_operands; k++) operands[k] = in[at++];
    for (size_t k = 0; k < d->n_operands; k++) sums[k] = d->summed[k] ? in[at++] : NULL;
    (void)derive(d, all, operands, sums, rp_grad_enabled(), false, out);
    rp__free(all);
}

/* The host may not decide while the stream captures: replays would take what was taken then. */
static rp_status may_decide(where at, const rp_tensor *on, const char *what) {
    rp__device *d = rp__device_get(on->device);
    if (!d) return rp_error_status();
    rp__site_frame outer = rp__site_push(at.site, at.of);
    rp_status status = rp__capture_forbid(rp__current_stream(d), what);
    rp__site_pop(outer);
    return status;
}

/* ---- cond */

static rp_status host_cond(where at, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in, size_t n_in,
                           rp_tensor **out, size_t n_out) {
    RP_TRY(may_decide(at, pred, "deciding a branch on the host"));
    rp_scalar take = rp_item(pred);
    if (rp_failed()) return rp_error_status();
    const rp_fn *fn = rp__scalar_f64(take) != 0 ? &then_fn : &else_fn;
    fn->body(fn->ctx, in, n_in, out, n_out);
    rp_status status = rp_failed() ? rp_error_status() : RP_OK;
    for (size_t k = 0; k < n_out && status == RP_OK; k++) status = check_result(at, *fn, out[k], k);
    return status == RP_OK ? rp__region_own_results(in, n_in, out, n_out) : status;
}

static rp_status trace_cond(rp__trace *t, where at, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in,
                            size_t n_in, rp_tensor **out, size_t n_out) {
    region a = {0}, b = {0};
    rp_ir *x = NULL, *y = NULL;
    rp_tensor **all = NULL, **operands = NULL;
    size_t n_all = 0;
    rp_status status;
    RP_TRY_GOTO(status, done, trace_region(at, then_fn, in, n_in, n_out, &a));
    RP_TRY_GOTO(status, done, trace_region(at, else_fn, in, n_in, n_out, &b));
    if (rp__ir_block_random(a.ir, &a.ir->body) || rp__ir_block_random(b.ir, &b.ir->body)) {
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a branch draws random numbers");
        goto done;
    }
    RP_TRY_GOTO(status, done, check_types(at, a.ir, then_fn, b.ir, else_fn));
    RP_TRY_GOTO(status, done, merge_operands(&a, &b, &all, &n_all));
    RP_TRY_GOTO(status, done, widen(&a, n_in, all, n_all, &x));
    RP_TRY_GOTO(status, done, widen(&b, n_in, all, n_all, &y));
    operands = rp__calloc(1 + n_in + n_all, sizeof *operands);
    if (!operands) {
        status = RP__OOM("rp_cond");
        goto done;
    }
    operands[0] = pred;
    if (n_in) memcpy(operands + 1, in, n_in * sizeof *operands);
    memcpy(operands + 1 + n_in, all, n_all * sizeof *operands);
    RP_TRY_GOTO(status, done, emit(t, at, RP__IR_COND, x, y, operands, 1 + n_in + n_all, 0, 0, x, out, NULL));
    if (any_needs_grad(operands + 1, n_in + n_all)) {
        kept k = {.kind = RP__IR_COND, .a = x, .b = y};
        x = y = NULL;
        status = attach(at, &k, "cond", operands, 1 + n_in + n_all, operands + 1, n_in + n_all, out, n_out);
    }
done:
    region_free(&a);
    region_free(&b);
    rp_ir_release(x);
    rp_ir_release(y);
    rp__free(all);
    rp__free(operands);
    return status;
}

static rp_status check_functions(const char *name, const char *what, rp_fn a, rp_fn b, rp_tensor *const *in,
                                 size_t n_in, rp_tensor **out, size_t n_out) {
    if (!a.body || !b.body || (n_in && !in) || (n_out && !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a function or a list of tensors is NULL", name);
    for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    for (size_t k = 0; k < n_in; k++) {
        RP_TRY(rp__tensor_check(in[k], what));
        if (rp__tensor_is_error(in[k]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: argument %zu is the error tensor", name, k);
    }
    return RP_OK;
}

/* On failure every output is the error tensor; on success outputs move out of the inner scope. */
static rp_status finish(rp_scope scope, rp_status status, rp_tensor **out, size_t n_out) {
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    for (size_t k = 0; out && k < n_out && status != RP_OK; k++) out[k] = rp__tensor_error();
    return status;
}

rp_status(rp_cond)(rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                   size_t n_out) {
    return rp_cond_at(NULL, pred, then_fn, else_fn, in, n_in, out, n_out);
}

rp_status rp_cond_at(const char *site, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in, size_t n_in,
                     rp_tensor **out, size_t n_out) {
    RP__LISTS_APART(in, n_in, out, n_out, rp_cond_at(site, pred, then_fn, else_fn, apart, n_in, out, n_out));
    return rp__cond_outside(site, pred, then_fn, else_fn, in, n_in, n_in, out, n_out);
}

rp_status rp__cond_outside(const char *site, rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in,
                           size_t n_own, size_t n_in, rp_tensor **out, size_t n_out) {
    const where at = {"rp_cond", site ? site : rp__site()};
    rp_scope scope = rp__scope_begin();
    rp_status status = check_functions("rp_cond", "rp_cond: an argument", then_fn, else_fn, in, n_in, out, n_out);
    if (status == RP_OK) status = rp__tensor_check(pred, "rp_cond: the predicate");
    if (status == RP_OK &&
        (rp__tensor_is_error(pred) || pred->dtype != RP_BOOL || rp__dim_is(RP__DIM_NE, rp__tensor_numel(pred), 1)))
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_cond: the predicate must be one bool");
    rp__trace *t = rp__trace_current();
    rp_tensor **settled_in = status == RP_OK ? rp__calloc(n_in + 1, sizeof *settled_in) : NULL;
    if (status == RP_OK) status = settled_in ? settle_operands(in, n_in, n_own, settled_in) : RP__OOM("rp_cond");
    if (status == RP_OK && t) {
        status = trace_cond(t, at, pred, then_fn, else_fn, settled_in, n_in, out, n_out);
        if (falls_back(status)) {
            status = rp__trace_break(t, "region-not-traceable", at.site);
            t = NULL;
        }
    }
    if (status == RP_OK && !t)
        status = host_cond(at, pred, then_fn, else_fn, settled_in, n_in, out, n_out);
    else if (status == RP_OK && rp_failed())
        status = rp_error_status();
    rp__free(settled_in);
    return finish(scope, status, out, n_out);
}

/* ---- while */

/* The state of a loop, then what does not change, as one list. */
static rp_status host_while(where at, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n_state, size_t n_in,
                            int64_t max_iter, rp_tensor **out) {
    rp_tensor **state = rp__calloc(n_in + n_state + 1, sizeof *state);
    if (!state) return RP__OOM("rp_while");
    rp_tensor **next = state + n_in;
    if (n_in) memcpy(state, in, n_in * sizeof *state);
    rp_status status = RP_OK;
    for (int64_t i = 0; status == RP_OK && (max_iter <= 0 || i < max_iter); i++) {
        rp_scope scope = rp__scope_begin();
        rp_tensor *go = NULL;
        bool on = false;
        cond_fn.body(cond_fn.ctx, state, n_in, &go, 1);
        if (!rp_failed() && check_result(at, cond_fn, go, 0) == RP_OK &&
            may_decide(at, go, "deciding on the host whether a loop goes on") == RP_OK)
            on = rp__scalar_f64(rp_item(go)) != 0;
        memset(next, 0, n_state * sizeof *next);
        if (on && !rp_failed()) body_fn.body(body_fn.ctx, state, n_in, next, n_state);
        for (size_t k = 0; on && k < n_state && !rp_failed(); k++) {
            if (check_result(at, body_fn, next[k], k) != RP_OK) break;
            if (next[k]->dtype != state[k]->dtype || next[k]->ndim != state[k]->ndim ||
                memcmp(next[k]->size, state[k]->size, next[k]->ndim * sizeof *next[k]->size) != 0)
                (void)rp__fail(RP_ERROR_SHAPE, "rp_while: state %zu changes its size or type", k);
        }
        status = rp_failed() ? rp_error_status() : on ? rp__region_own_results(state, n_in, next, n_state) : RP_OK;
        rp__scope_end(scope, next, status == RP_OK && on ? n_state : 0);
        if (!on) break;
        if (status == RP_OK) memcpy(state, next, n_state * sizeof *state);
    }
    if (status == RP_OK) {
        memcpy(out, state, n_state * sizeof *out);
        status = rp__region_own_results(in, n_in, out, n_state);
    }
    rp__free(state);
    return status;
}

typedef struct loop { /* both functions closed over the same operands */
    rp_ir *cond, *body;
    rp_tensor **operands; /* state, invariants that were given, then those found */
    size_t n_state, n;
} loop;

static void loop_free(loop *l) {
    rp_ir_release(l->cond);
    rp_ir_release(l->body);
    rp__free(l->operands);
}

static rp_status close_loop(where at, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n_state, size_t n_in,
                            loop *l) {
    region a = {0}, b = {0};
    rp_tensor **all = NULL;
    size_t n_all = 0;
    rp_status status;
    *l = (loop){.n_state = n_state};
    RP_TRY_GOTO(status, done, trace_region(at, cond_fn, in, n_in, 1, &a));
    RP_TRY_GOTO(status, done, trace_region(at, body_fn, in, n_in, n_state, &b));
    if (rp__ir_block_random(a.ir, &a.ir->body) || rp__ir_block_random(b.ir, &b.ir->body)) {
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a loop draws random numbers");
        goto done;
    }
    const rp__meta *go = &a.ir->values[a.ir->body.results[0]].meta;
    if (go->dtype != RP_BOOL || rp__dim_is(RP__DIM_NE, rp__numel(go->size, go->ndim), 1)) {
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_while: the condition must give one bool");
        goto done;
    }
    for (size_t k = 0; k < n_state; k++) {
        const rp__meta *m = &b.ir->values[b.ir->body.results[k]].meta;
        if (m->dtype != (rp_dtype)in[k]->dtype || m->ndim != in[k]->ndim ||
            memcmp(m->size, in[k]->size, m->ndim * sizeof *m->size) != 0) {
            status = rp__fail(RP_ERROR_SHAPE, "rp_while: state %zu changes its size or type", k);
            goto done;
        }
    }
    RP_TRY_GOTO(status, done, merge_operands(&a, &b, &all, &n_all));
    RP_TRY_GOTO(status, done, widen(&a, n_in, all, n_all, &l->cond));
    RP_TRY_GOTO(status, done, widen(&b, n_in, all, n_all, &l->body));
    l->operands = rp__calloc(n_in + n_all + 1, sizeof *l->operands);
    if (!l->operands) {
        status = RP__OOM("rp_while");
        goto done;
    }
    if (n_in) memcpy(l->operands, in, n_in * sizeof *l->operands);
    memcpy(l->operands + n_in, all, n_all * sizeof *l->operands);
    l->n = n_in + n_all;
done:
    region_free(&a);
    region_free(&b);
    rp__free(all);
    return status;
}

/* The loop that also keeps its states: (state, count, stacks) with stacks (max_iter, *size). */
typedef struct keeping {
    const loop *l;
    int64_t max_iter;
} keeping;

static rp_status loop_operands(const loop *l, rp_tensor *const *state, rp_tensor **out) {
    memcpy(out, l->operands, l->n * sizeof *out);
    memcpy(out, state, l->n_state * sizeof *out);
    return RP_OK;
}

static void keeping_cond(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const keeping *k = ctx;
    rp_tensor **operands = rp__calloc(k->l->n + 1, sizeof *operands);
    (void)n_in;
    if (!operands) {
        (void)RP__OOM("rp_while");
        return;
    }
    (void)loop_operands(k->l, in, operands);
    (void)rp__ir_run(k->l->cond, operands, k->l->n, out, n_out, NULL);
    rp__free(operands);
}

static void keeping_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const keeping *k = ctx;
    size_t n = k->l->n_state;
    rp_tensor **operands = rp__calloc(k->l->n + 1, sizeof *operands);
    (void)n_in;
    (void)n_out;
    if (!operands) {
        (void)RP__OOM("rp_while");
        return;
    }
    (void)loop_operands(k->l, in, operands);
    (void)rp__ir_run(k->l->body, operands, k->l->n, out, n, NULL);
    rp__free(operands);
    out[n] = rp_add_scalar(in[n], rp_i64(1));
    rp_tensor *hit = rp_eq(rp_arange(rp_i64(0), rp_i64(k->max_iter), rp_i64(1), RP_I64), in[n]); /* (max_iter) */
    for (size_t s = 0; s < n; s++) {
        rp_dim size[RP_MAX_DIMS];
        size[0] = k->max_iter;
        for (unsigned d = 0; d < in[s]->ndim; d++) size[d + 1] = 1;
        out[n + 1 + s] = rp_where(rp_view(hit, size, in[s]->ndim + 1u), rp_unsqueeze(in[s], 0), in[n + 1 + s]);
    }
}

static rp_status trace_while(rp__trace *t, where at, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n_state,
                             size_t n_in, int64_t max_iter, rp_tensor **out) {
    loop l = {0}, wide = {0};
    rp_tensor **states = NULL, **kept_out = NULL, **save = NULL;
    rp_status status;
    RP_TRY_GOTO(status, done, close_loop(at, cond_fn, body_fn, in, n_state, n_in, &l));
    bool differentiable = any_needs_grad(l.operands, l.n), small = true;
    for (size_t s = 0; s < n_state; s++) small = small && in[s]->ndim < RP_MAX_DIMS;
    if (!differentiable || max_iter <= 0 || !small) {
        RP_TRY_GOTO(status, done,
                    emit(t, at, RP__IR_WHILE, l.cond, l.body, l.operands, l.n, max_iter > 0 ? max_iter : 0, 0, l.body,
                         out, NULL));
        if (differentiable) {
            kept k = {.kind = RP__IR_WHILE, .n_state = n_state};
            status = attach(at, &k, "while", NULL, 0, l.operands, l.n, out, n_state);
        }
        goto done;
    }
    /* state, count, stacks */
    size_t n_wide = 2 * n_state + 1;
    states = rp__calloc(n_wide + 1, sizeof *states);
    kept_out = rp__calloc(n_wide + 1, sizeof *kept_out);
    save = rp__calloc(l.n + n_state + 2, sizeof *save);
    if (!states || !kept_out || !save) {
        status = RP__OOM("rp_while");
        goto done;
    }
    bool grad = rp_set_grad_enabled(false);
    memcpy(states, in, n_state * sizeof *states);
    states[n_state] = rp_full(RP_NO_DIMS, rp_i64(0), RP_I64);
    for (size_t s = 0; s < n_state; s++) {
        rp_dim size[RP_MAX_DIMS];
        size[0] = max_iter;
        memcpy(size + 1, in[s]->size, in[s]->ndim * sizeof *size);
        states[n_state + 1 + s] = rp_full(size, in[s]->ndim + 1u, rp_i64(0), (rp_dtype)in[s]->dtype);
    }
    keeping k = {&l, max_iter};
    status = rp_failed() ? rp_error_status() : RP_OK;
    if (status == RP_OK)
        status = close_loop(at, (rp_fn){keeping_cond, &k, 0, "while"}, (rp_fn){keeping_body, &k, 0, "while"}, states,
                            n_wide, n_wide, &wide);
    if (status == RP_OK)
        status = emit(t, at, RP__IR_WHILE, wide.cond, wide.body, wide.operands, wide.n, max_iter, n_state, wide.body,
                      kept_out, NULL);
    (void)rp_set_grad_enabled(grad);
    if (status == RP_OK) {
        memcpy(out, kept_out, n_state * sizeof *out);
        memcpy(save, l.operands, l.n * sizeof *save);
        memcpy(save + l.n, kept_out + n_state, (n_state + 1) * sizeof *save);
        kept p = {.kind = RP__IR_WHILE, .a = rp__ir_retain(l.body), .n_state = n_state, .max_iter = max_iter};
        /* The history is a result, too: a second derivative reaches it. */
        status = attach(at, &p, "while", save, l.n + n_state + 1, l.operands, l.n, kept_out, n_wide);
    }
done:
    loop_free(&l);
    loop_free(&wide);
    rp__free(states);
    rp__free(kept_out);
    rp__free(save);
    return status;
}

rp_status rp__while_invariant(const char *site, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n_state,
                              size_t n_in, int64_t max_iter, rp_tensor **out) {
    const where at = {"rp_while", site ? site : rp__site()};
    rp_scope scope = rp__scope_begin();
    rp_status status = check_functions("rp_while", "rp_while: an argument", cond_fn, body_fn, in, n_in, out, n_state);
    rp__trace *t = rp__trace_current();
    rp_tensor **settled_in = status == RP_OK ? rp__calloc(n_in + 1, sizeof *settled_in) : NULL;
    if (status == RP_OK) status = settled_in ? settle_operands(in, n_in, n_state, settled_in) : RP__OOM("rp_while");
    if (status == RP_OK && t) {
        status = trace_while(t, at, cond_fn, body_fn, settled_in, n_state, n_in, max_iter, out);
        if (falls_back(status)) {
            status = rp__trace_break(t, "region-not-traceable", at.site);
            t = NULL;
        }
    }
    if (status == RP_OK && !t) status = host_while(at, cond_fn, body_fn, settled_in, n_state, n_in, max_iter, out);
    rp__free(settled_in);
    return finish(scope, status, out, n_state);
}

rp_status(rp_while)(rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n, int64_t max_iter, rp_tensor **out) {
    return rp__while_invariant(NULL, cond_fn, body_fn, in, n, n, max_iter, out);
}

rp_status rp_while_at(const char *site, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n, int64_t max_iter,
                      rp_tensor **out) {
    RP__LISTS_APART(in, n, out, n, rp_while_at(site, cond_fn, body_fn, apart, n, max_iter, out));
    return rp__while_invariant(site, cond_fn, body_fn, in, n, n, max_iter, out);
}

/* ---- checkpoint */

static rp_status trace_checkpoint(rp__trace *t, where at, rp_fn fn, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                  size_t n_out) {
    region a = {0};
    rp_tensor **operands = NULL;
    rp_status status;
    RP_TRY_GOTO(status, done, trace_region(at, fn, in, n_in, n_out, &a));
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
    RP_TRY_GOTO(status, done, emit(t, at, RP__IR_CHECKPOINT, a.ir, NULL, operands, n, 0, 0, a.ir, out, &node));
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
    if (any_needs_grad(operands, n)) {
        kept k = {.kind = RP__IR_CHECKPOINT,
                  .a = rp__ir_retain(a.ir),
                  .generator = rp__generator_retain(g),
                  .random_offset = start,
                  .draw = begins,
                  .memory = rp__random_memory_retain(memory)};
        status = attach(at, &k, "checkpoint", operands, n, operands, n, out, n_out);
    }
done:
    region_free(&a);
    rp__free(operands);
    return status;
}

rp_status(rp_checkpoint)(rp_fn fn, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    return rp_checkpoint_at(NULL, fn, in, n_in, out, n_out);
}

rp_status rp_checkpoint_at(const char *site, rp_fn fn, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                           size_t n_out) {
    const where at = {"rp_checkpoint", site ? site : rp__site()};
    rp__trace *t = rp__trace_current();
    if ((n_in && !in) || (n_out && !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_checkpoint: a list of tensors is NULL");
    RP__LISTS_APART(in, n_in, out, n_out, rp_checkpoint_at(site, fn, apart, n_in, out, n_out));
    if (!t) return rp__checkpoint_run(at.site, fn, NULL, in, n_in, out, n_out);
    rp_scope scope = rp__scope_begin();
    rp_status status = check_functions("rp_checkpoint", "rp_checkpoint: an argument", fn, fn, in, n_in, out, n_out);
    /* Arguments stay as they are, as without a trace: a copy would add up their gradients in another order. */
    if (status == RP_OK) status = trace_checkpoint(t, at, fn, in, n_in, out, n_out);
    if (falls_back(status)) { /* what it reads can be computed: as if it stood here, without recomputation */
        fn.body(fn.ctx, in, n_in, out, n_out);
        status = rp_failed() ? rp_error_status() : RP_OK;
    }
    return finish(scope, status, out, n_out);
}

/* ---- custom functions */

typedef struct fresh { /* a forward, whose results must be what FUNCTION gives */
    rp_fn fn;
    bool others; /* a result is missing, a view, an argument, or the same as another */
} fresh;

static void fresh_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    fresh *f = ctx;
    f->fn.body(f->fn.ctx, in, n_in, out, n_out);
    for (size_t k = 0; k < n_out && !rp_failed(); k++) {
        if (!out[k] || !rp__trace_pending(out[k]) || (out[k]->flags & RP__T_VIEW) || !rp__tensor_contiguous(out[k])) {
            f->others = true;
            return;
        }
        for (size_t i = 0; i < n_in; i++) f->others = f->others || in[i]->storage == out[k]->storage;
        for (size_t i = 0; i < k; i++) f->others = f->others || out[i]->storage == out[k]->storage;
    }
}

/* The backward b, traced on (in, results, gradients) and closed over operands, as a block of a node with operands (in, all). */
static rp_status arrange_backward(const region *b, size_t n_in, size_t n_out, rp_tensor *const *all, size_t n_all,
                                  rp_ir **out) {
    rp_ir *ir = rp__ir_new(b->ir->name);
    if (!ir) return RP_ERROR_OUT_OF_MEMORY;
    ir->symbols = rp__symbols_retain(b->ir->symbols);
    rp_status status = RP_OK;
    uint32_t n_args = (uint32_t)(n_in + n_all + 2 * n_out);
    rp__ir_value *args = rp__alloc((b->ir->body.n_args + 1u) * sizeof *args),
                 *results = rp__alloc((n_in + n_all + 1) * sizeof *results);
    if (!args || !results) status = RP__OOM("a custom function");
    for (size_t k = 0; k < n_args && status == RP_OK; k++) {
        bool operand = k >= n_in && k < n_in + n_all;
        size_t traced = k < n_in ? k : k - n_all; /* of b's explicit arguments */
        rp__meta meta;
        if (operand)
            rp__ir_meta_of(all[k - n_in], &meta);
        else
            meta = b->ir->values[b->ir->body.args[traced]].meta;
        rp__ir_value v = rp__ir_add_arg(ir, &ir->body, &meta, NULL);
        if (v == RP__IR_NONE) status = RP_ERROR_OUT_OF_MEMORY;
        if (!operand && status == RP_OK) args[traced] = v;
        for (size_t i = 0; operand && i < b->n_operands; i++)
            if (b->operands[i] == all[k - n_in]) args[n_in + 2 * n_out + i] = v;
    }
    if (status == RP_OK) {
        rp__ir_block to = ir->body;
        to.args = args;
        to.n_args = b->ir->body.n_args;
        status = rp__ir_copy_block(ir, &to, b->ir, &b->ir->body);
        to.args = ir->body.args;
        to.n_args = ir->body.n_args;
        ir->body = to;
    }
    for (size_t k = 0; k < n_in + n_all && status == RP_OK; k++)
        results[k] = k < n_in ? ir->body.results[k] : RP__IR_NONE; /* what is read from outside gets no gradient */
    if (status == RP_OK) status = rp__ir_set_results(ir, &ir->body, results, (uint32_t)(n_in + n_all));
    rp__free(args);
    rp__free(results);
    if (status != RP_OK) {
        rp_ir_release(ir);
        return status;
    }
    *out = ir;
    return RP_OK;
}

/* RP_ERROR_GRAPH_BREAK: it is no node. */
static rp_status trace_custom(rp__trace *t, where at, rp_fn forward, rp_fn backward, rp_tensor *const *in, size_t n_in,
                              rp_tensor **out, size_t n_out) {
    region a = {0}, b = {0};
    fresh f = {.fn = forward};
    rp_ir *x = NULL, *y = NULL;
    rp_tensor **all = NULL, **operands = NULL;
    size_t n_all = 0;
    rp_status status;
    rp__ir_value_info *infos = rp__calloc(n_in + 2 * n_out + 1, sizeof *infos);
    if (!infos) return RP__OOM("a custom function");
    for (size_t k = 0; k < n_in; k++) info_of(in[k], &infos[k]);
    RP_TRY_GOTO(status, done, trace_closed((rp_fn){fresh_body, &f, 0, forward.name}, infos, n_in, n_out, &a));
    if (f.others || rp__ir_block_random(a.ir, &a.ir->body)) {
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "a custom function gives a view or draws random numbers");
        goto done;
    }
    for (size_t k = 0; k < 2 * n_out; k++) infos[n_in + k] = a.ir->values[a.ir->body.results[k % n_out]];
    RP_TRY_GOTO(status, done, trace_closed(backward, infos, n_in + 2 * n_out, n_in, &b));
    if (rp__ir_block_random(b.ir, &b.ir->body)) {
        status = rp__fail(RP_ERROR_GRAPH_BREAK, "the backward of a custom function draws random numbers");
        goto done;
    }
    RP_TRY_GOTO(status, done, merge_operands(&a, &b, &all, &n_all));
    RP_TRY_GOTO(status, done, widen(&a, n_in, all, n_all, &x));
    RP_TRY_GOTO(status, done, arrange_backward(&b, n_in, n_out, all, n_all, &y));
    operands = rp__calloc(n_in + n_all + 1, sizeof *operands);
    if (!operands) {
        status = RP__OOM("a custom function");
        goto done;
    }
    if (n_in) memcpy(operands, in, n_in * sizeof *operands);
    if (n_all) memcpy(operands + n_in, all, n_all * sizeof *operands);
    status = emit(t, at, RP__IR_FUNCTION, x, y, operands, n_in + n_all, 0, 0, x, out, NULL);
done:
    region_free(&a);
    region_free(&b);
    rp_ir_release(x);
    rp_ir_release(y);
    rp__free(all);
    rp__free(operands);
    rp__free(infos);
    return status;
}

rp_status rp__trace_function(const char *site, rp_fn forward, rp_fn backward, rp_tensor *const *in, size_t n_in,
                             rp_tensor **out, size_t n_out, bool needed, bool *traced) {
    rp__trace *t = rp__trace_current();
    *traced = false;
    if (!t || rp__trace_mode_of(t) == RP__TRACE_SEGMENTS || (!needed && !rp__trace_closes(t))) return RP_OK;
    const where at = {"rp_function_apply", site};
    rp__error_state before;
    rp__error_save(&before); /* what fails here is no failure of the call */
    rp_scope scope = rp__scope_begin();
    rp_status status = trace_custom(t, at, forward, backward, in, n_in, out, n_out);
    rp__scope_end(scope, out, status == RP_OK ? n_out : 0);
    if (status == RP_ERROR_OUT_OF_MEMORY) return status;
    if (status != RP_OK) {
        rp__log(RP__LOG_TRACE, "custom function `%s` at %s: %s", name_of(forward), place_of(site), rp_error_message());
        (void)rp_error_take();
        for (size_t k = 0; k < n_out; k++) out[k] = NULL;
    }
    rp__error_restore(&before);
    if (status != RP_OK && rp__trace_closes(t))
        return rp__fail(RP_ERROR_GRAPH_BREAK, "a custom function that cannot be recorded with its backward");
    if (status != RP_OK) {
        rp__trace_refuse(t, "custom-function", site && *site ? site : name_of(forward));
        return RP_OK;
    }
    for (size_t k = 0; k < n_out && needed; k++) {
        if (rp__dtype_is_float((rp_dtype)out[k]->dtype))
            rp__trace_ir(t)->values[rp__trace_resolve(t, out[k])].requires_grad = true;
    }
    *traced = true;
    return RP_OK;
}

/* ---- backward */

typedef struct task { /* one backward of a region */
    const kept *p;
    rp_tensor *const *saved, *const *grad_out; /* grad_out[k] NULL: none; of a loop: state, count, stacks */
    rp_tensor *const *sums;                    /* per operand, NULL: none */
    const bool *needed;                        /* per operand */
    const uint32_t *same;                      /* per operand */
    bool create_graph;
} task;

typedef struct back { /* one step back of a loop: (i, gradients of the state, sums of gradients of invariants) */
    const task *q;
    rp_tensor *const *operands; /* of the body: state (as it began), invariants */
    rp_tensor *const *stacks;
    const bool *wanted; /* per operand; all floating states are */
} back;

static void back_cond(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_gt(in[0], rp_full(RP_NO_DIMS, rp_i64(0), RP_I64));
}

/* x + nothing is x for every x but nothing + 0, which is 0: where a sum has not begun. */
static rp_tensor *nothing_like(const rp_tensor *t) {
    return rp_full(t->size, t->ndim, rp_f64(-0.0), (rp_dtype)t->dtype);
}

/* Row i of a stack (max_iter, *size of like). */
static rp_tensor *row_of(rp_tensor *stack, rp_tensor *i, const rp_tensor *like, int64_t max_iter) {
    rp_dim rows[2] = {max_iter, rp__tensor_numel(like)};
    rp_tensor *dense = rp__tensor_contiguous(stack) ? stack : rp_clone(stack);
    return rp_view(rp_embedding(rp_view(dense, rows, 2), i), like->size, like->ndim);
}

static void back_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const back *b = ctx;
    const task *q = b->q;
    const kept *p = q->p;
    rp_tensor **work = rp__calloc(3 * p->n_operands + p->n_state + 1, sizeof *work);
    (void)n_in;
    (void)n_out;
    if (!work) {
        (void)RP__OOM("backward of a loop");
        return;
    }
    rp_tensor **operands = work, **grads = work + p->n_operands, **sums = grads + p->n_operands,
              **grad_out = sums + p->n_operands;
    size_t at = 1, o = 1;
    out[0] = rp_add_scalar(in[0], rp_i64(-1));
    rp_tensor *first = rp_eq(out[0], rp_full(RP_NO_DIMS, rp_i64(0), RP_I64));
    memcpy(operands, b->operands, p->n_operands * sizeof *operands);
    for (size_t k = 0; k < p->n_operands; k++) {
        const rp_tensor *like = b->operands[k];
        if (k < p->n_state) {
            operands[k] = row_of(b->stacks[k], out[0], like, p->max_iter);
            /* The state of the first iteration is the operand: what else was made of it comes before. */
            if (b->wanted[k] && q->sums[k]) sums[k] = rp_where(first, q->sums[k], nothing_like(like));
            grad_out[k] = b->wanted[k] ? in[at++] : NULL;
        } else if (b->wanted[k]) {
            sums[k] = in[at++];
        }
    }
    derivative d = {.ir = p->a, .wanted = b->wanted, .n_operands = p->n_operands};
    if (!rp_failed() && derive(&d, grad_out, operands, sums, rp_grad_enabled(), false, grads) == RP_OK) {
        for (size_t k = 0, g = 0; k < p->n_operands; k++) {
            if (!b->wanted[k]) continue;
            rp_tensor *grad = grads[g++], *kept_grad = k < p->n_state ? q->grad_out[p->n_state + 1 + k] : NULL;
            out[o++] =
                kept_grad ? rp_add(grad, row_of(kept_grad, out[0], b->operands[k], p->max_iter), rp_i64(1)) : grad;
        }
    }
    rp__free(work);
}

static rp_status while_backward(const task *q, rp_tensor **grad_in) {
    const kept *p = q->p;
    if (!p->a)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "rp_while: a gradient was asked through a loop without max_iter (or with a state of rank %d)",
                        RP_MAX_DIMS);
    rp_tensor *const *operands = q->saved,
                     *count = q->saved[p->n_operands], *const *stacks = q->saved + p->n_operands + 1;
    bool *wanted = rp__calloc(p->n_operands + 1, sizeof *wanted);
    rp_tensor **state = rp__calloc(2 * p->n_operands + 3, sizeof *state);
    if (!wanted || !state) {
        rp__free(wanted);
        rp__free(state);
        return RP__OOM("backward of a loop");
    }
    rp_tensor **out = state + p->n_operands + 1;
    size_t n = 1;
    state[0] = count;
    for (size_t k = 0; k < p->n_operands; k++) {
        wanted[k] = rp__dtype_is_float((rp_dtype)operands[k]->dtype) && (k < p->n_state || q->needed[k]);
        if (!wanted[k]) continue;
        if (k < p->n_state)
            state[n++] = q->grad_out[k] ? q->grad_out[k] : rp_zeros_like(operands[k]);
        else
            state[n++] = q->sums[k] ? q->sums[k] : nothing_like(operands[k]);
    }
    back b = {q, operands, stacks, wanted};
    rp_status status = rp_failed()
                           ? rp_error_status()
                           : rp_while_at(rp__site(), (rp_fn){back_cond, &b, 0, "while backward"},
                                         (rp_fn){back_body, &b, 0, "while backward"}, state, n, p->max_iter, out);
    rp_tensor *ran = status == RP_OK ? rp_gt(count, rp_full(RP_NO_DIMS, rp_i64(0), RP_I64)) : NULL;
    for (size_t k = 0, o = 1; k < p->n_operands && status == RP_OK; k++) {
        if (!wanted[k]) continue;
        rp_tensor *grad = out[o++];
        if (k < p->n_state && q->sums[k])
            grad = rp_where(ran, grad, rp_add(q->sums[k], grad, rp_i64(1)));
        else if (k >= p->n_state && !q->sums[k])
            grad = rp_where(ran, grad, rp_zeros_like(grad));
        grad_in[k] = q->needed[k] ? grad : NULL;
    }
    if (status == RP_OK && rp_failed()) status = rp_error_status();
    rp__free(wanted);
    rp__free(state);
    return status;
}

static rp_status cond_backward(const task *q, rp_tensor **grad_in) {
    const kept *p = q->p;
    size_t n_out = p->a->body.n_results, n_wanted = 0, n = 0;
    rp_tensor **in = rp__calloc(n_out + 3 * p->n_operands + 1, sizeof *in);
    bool *flags = rp__calloc(n_out + p->n_operands + 1, sizeof *flags);
    if (!in || !flags) {
        rp__free(in);
        rp__free(flags);
        return RP__OOM("backward of rp_cond");
    }
    rp_tensor **grads = in + n_out + 2 * p->n_operands;
    bool *given = flags, *summed = flags + n_out;
    for (size_t k = 0; k < n_out; k++) {
        given[k] = q->grad_out[k] != NULL;
        if (given[k]) in[n++] = q->grad_out[k];
    }
    memcpy(in + n, q->saved + 1, p->n_operands * sizeof *in);
    n += p->n_operands;
    for (size_t k = 0; k < p->n_operands; k++) {
        n_wanted += q->needed[k];
        summed[k] = q->needed[k] && q->sums[k];
        if (summed[k]) in[n++] = q->sums[k];
    }
    derivative x = {p->a, q->needed, q->same, given, summed, p->n_operands};
    derivative y = x;
    y.ir = p->b;
    rp_status status = rp_cond_at(rp__site(), q->saved[0], (rp_fn){derivative_body, &x, 0, "then backward"},
                                  (rp_fn){derivative_body, &y, 0, "else backward"}, in, n, grads, n_wanted);
    for (size_t k = 0, g = 0; k < p->n_operands && status == RP_OK; k++) {
        if (q->needed[k]) grad_in[k] = grads[g++];
    }
    rp__free(in);
    rp__free(flags);
    return status;
}

static rp_status checkpoint_backward(const task *q, rp_tensor **grad_in) {
    const kept *p = q->p;
    derivative d = {.ir = p->a, .wanted = q->needed, .same = q->same, .n_operands = p->n_operands};
    rp_tensor **grads = rp__calloc(p->n_operands + 1, sizeof *grads);
    if (!grads) return RP__OOM("backward of rp_checkpoint");
    rp_status status = RP_OK;
    rp__trace *t = rp__trace_current();
    rp__random_log *outer_log = NULL, *outer_again = NULL, drawn = {0};
    rp_dim before = 0;
    if (p->generator && t) {
        before = rp__trace_random_offset(t, p->generator);
        rp__trace_random_seek(t, p->generator, p->random_offset);
    } else if (p->generator) {
        status = rp__random_log_add(&drawn, p->generator, RP__RANDOM_OPEN, &p->draw, p->memory);
        outer_again = rp__random_again_set(&drawn);
        outer_log = rp__random_log_set(NULL);
    }
    if (status == RP_OK)
        status =
            rp_failed() ? rp_error_status() : derive(&d, q->grad_out, q->saved, q->sums, q->create_graph, true, grads);
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

static rp_status region_backward(const task *q, rp_tensor **grad_in) {
    return q->p->kind == RP__IR_COND    ? cond_backward(q, grad_in)
           : q->p->kind == RP__IR_WHILE ? while_backward(q, grad_in)
                                        : checkpoint_backward(q, grad_in);
}

static rp_status kept_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in, bool create_graph) {
    const kept *p = n->payload;
    if (n->released) return rp__tape_released(n);
    rp_tensor **tensors = rp__calloc(p->n_saved + p->n_operands + 1, sizeof *tensors);
    bool *needed = rp__calloc(p->n_operands + 1, sizeof *needed);
    uint32_t *same = rp__calloc(p->n_operands + 1, sizeof *same);
    rp_status status = tensors && needed && same ? RP_OK : RP__OOM("backward of a region");
    if (status == RP_OK) {
        rp_tensor **saved = tensors, **sums = tensors + p->n_saved;
        for (size_t i = 0; i < p->n_saved && status == RP_OK; i++) {
            saved[i] = rp__saved_unpack(&p->saved[i], n);
            if (rp__tensor_is_error(saved[i])) status = rp_error_status();
        }
        for (uint32_t k = 0; k < p->n_operands && status == RP_OK; k++) {
            const rp__edge *edge = &n->edges[k];
            needed[k] = rp__tape_needs(n, k);
            same[k] = k;
            for (uint32_t j = 0; j < k && needed[k] && p->kind != RP__IR_WHILE; j++) {
                if (n->edges[j].node != edge->node || n->edges[j].index != edge->index) continue;
                same[k] = same[j];
                needed[k] = false;
            }
            if (needed[k] && !create_graph) sums[k] = rp__tape_take_sum(n, k);
            if (sums[k] && rp__tensor_is_error(sums[k])) status = rp_error_status();
        }
        const task q = {p, saved, grad_out, sums, needed, same, create_graph};
        if (status == RP_OK) status = region_backward(&q, grad_in);
    }
    rp__free(tensors);
    rp__free(needed);
    rp__free(same);
    return status;
}

/* ---- the backward of a node as a graph */

/* A block as a graph: its first n_results results, without the nodes that only others need. */
static rp_status block_ir(const rp_ir *ir, const rp__ir_block *block, uint32_t n_results, rp_ir **out) {
    rp_ir *made = rp__ir_new(ir->name);
    if (!made) return RP_ERROR_OUT_OF_MEMORY;
    made->symbols = rp__symbols_retain(ir->symbols);
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < block->n_args && status == RP_OK; k++) {
        const rp__ir_value_info *info = &ir->values[block->args[k]];
        if (rp__ir_add_arg(made, &made->body, &info->meta, info->site) == RP__IR_NONE) status = RP_ERROR_OUT_OF_MEMORY;
    }
    if (status == RP_OK) status = rp__ir_copy_block(made, &made->body, ir, block);
    bool *live = status == RP_OK ? rp__calloc(made->n_values + 1, sizeof *live) : NULL;
    if (status == RP_OK && !live) status = RP__OOM("backward of a region");
    if (status != RP_OK) {
        rp_ir_release(made);
        return status;
    }
    made->body.n_results = n_results;
    for (uint32_t k = 0; k < n_results; k++) live[made->body.results[k]] = true;
    for (size_t i = made->body.n_nodes; i-- > 0;) {
        rp__ir_node *n = &made->nodes[made->body.nodes[i]];
        bool needed = rp__ir_node_has_effect(made, n);
        for (uint32_t k = 0; k < n->n_out; k++) needed = needed || live[n->out[k]];
        n->dead = n->dead || !needed;
        for (uint32_t k = 0; k < n->n_in && !n->dead; k++) {
            if (n->in[k] != RP__IR_NONE) live[n->in[k]] = true;
        }
    }
    rp__free(live);
    *out = made;
    return RP_OK;
}

typedef struct backward_fn {
    const kept *p;
    const rp__region_request *r;
    size_t n_results;
} backward_fn;

static void backward_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const backward_fn *f = ctx;
    const kept *p = f->p;
    size_t n_grads = p->kind == RP__IR_WHILE ? 2 * p->n_state + 1 : f->n_results; /* none of a loop's history */
    rp_tensor **work = rp__calloc(p->n_saved + n_grads + 2 * p->n_operands + 1, sizeof *work);
    (void)n_in;
    (void)n_out;
    if (!work) {
        (void)RP__OOM("backward of a region");
        return;
    }
    rp_tensor **saved = work, **grad_out = saved + p->n_saved, **sums = grad_out + n_grads,
              **grads = sums + p->n_operands;
    size_t at = p->n_saved, o = 0;
    rp_status status = settle_operands(in, p->n_saved, p->n_saved, saved);
    for (size_t k = 0; k < f->n_results; k++) grad_out[k] = f->r->given[k] ? in[at++] : NULL;
    for (size_t k = 0; k < p->n_operands; k++) sums[k] = f->r->summed[k] ? in[at++] : NULL;
    const task q = {p, saved, grad_out, sums, f->r->needed, f->r->same, false};
    if (status == RP_OK) status = region_backward(&q, grads);
    for (size_t k = 0; k < p->n_operands && status == RP_OK; k++) {
        if (f->r->needed[k]) out[o++] = grads[k];
    }
    rp__free(work);
}

rp_status rp__region_backward(const rp_ir *ir, uint32_t node, const rp__region_request *request, rp_ir **out) {
    const rp__ir_node *n = &ir->nodes[node];
    bool looping = n->kind == RP__IR_WHILE;
    uint32_t keeps = looping ? (uint32_t)n->attrs[1].v.i : 0;
    *out = NULL;
    if (n->kind == RP__IR_CHECKPOINT || (looping && keeps == 0))
        return rp__fail(RP_ERROR_INTERNAL, "the backward of this region is no graph");
    kept p = {.kind = n->kind,
              .n_saved = n->n_in + (looping ? keeps + 1 : 0),
              .n_operands = n->n_in - (looping ? 0 : 1),
              .n_state = keeps,
              .max_iter = looping ? n->attrs[0].v.i : 0};
    uint32_t n_results = looping ? keeps : n->n_out;
    rp_status status = block_ir(ir, &n->regions[looping ? 1 : 0], n_results, &p.a);
    if (status == RP_OK && !looping) status = block_ir(ir, &n->regions[1], n_results, &p.b);
    backward_fn f = {&p, request, n_results};
    size_t n_out = 0;
    for (size_t k = 0; k < p.n_operands; k++) n_out += request->needed[k];
    rp__trace_result result = {0};
    rp__trace_request trace = {.mode = RP__TRACE_ABSTRACT,
                               .fn = {backward_body, &f, 0, "backward"},
                               .n_in = request->n_info,
                               .n_out = n_out,
                               .arg_info = request->info,
                               .symbols = ir->symbols,
                               .no_grad = true};
    if (status == RP_OK) status = rp__trace_run(&trace, NULL, &result);
    if (status == RP_OK) {
        *out = result.ir;
        result.ir = NULL;
    }
    rp__trace_result_free(&result);
    rp_ir_release(p.a);
    rp_ir_release(p.b);
    return status;
}
