/* Joint graph: appends the derivatives of a functional graph to it.
   Requires  a functional graph whose values carry requires_grad as tracing saw it.
   Keeps     the forward's nodes, in order, before all others; its results first among the results.
   After it  (inputs, tangents) -> (results, gradients). Gradients are added up in the order of the tape: nodes from last to
             first, the sum so far on the left, so that a compiled gradient has the bits of an eager one.
   A custom function that functionalise has opened has its own backward there, as a graph (rp_ir.functions).
   A branch and a loop that keeps its history get a node of the same kind, made by the tape's own code under a trace
   (rp__region_backward).
   Refused (RP_ERROR_UNAVAILABLE, the caller runs the tape instead): a gradient through a loop without max_iter or in a checkpoint, through an op that
   works in place on many tensors, through a custom function in a branch or loop, or into an argument that the function wrote. */
#include "ops/private.h"
#include <string.h>

#include "compile/passes.h"
#include "compile/record_layer.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "ops/grad.h"
#include "trace/trace.h"

typedef struct differentiator {
    rp__rewrite w; /* the forward is copied */
    rp__record_layer r;
    rp_tensor **handle; /* per forward value of dst, made on demand */
    rp_tensor **grad;   /* per forward value of dst */
    size_t n_values;    /* of the forward part of dst */
    uint64_t given;     /* results that have tangents */
    rp_tensor **whole;  /* by rp__ir_node.write: gradient of what was written in part */
} differentiator;

static rp_tensor *handle_of(differentiator *d, rp__ir_value v) {
    if (!d->handle[v]) d->handle[v] = rp__record_handle(&d->r, v);
    return d->handle[v];
}

static rp_status add_gradient(differentiator *d, rp__ir_value v, rp_tensor *grad) {
    if (rp__tensor_is_error(grad)) return rp_error_status();
    d->grad[v] = d->grad[v] ? rp_add(d->grad[v], grad) : grad;
    return rp__tensor_is_error(d->grad[v]) ? rp_error_status() : RP_OK;
}

static bool wants_gradient(const rp_ir *ir, rp__ir_value v) {
    return v != RP__IR_NONE && ir->values[v].requires_grad && rp__dtype_is_float(ir->values[v].meta.dtype);
}

/* Tensor operands and results that the derivative reads; NULL for the rest. */
static rp_status run_vjp(differentiator *d, uint32_t index, rp_tensor **in, rp_tensor **grad_in, rp__meta *in_meta,
                         bool *needed) {
    rp_ir *ir = d->w.dst;
    const rp__ir_node n = ir->nodes[index]; /* by value: recording moves the array */
    rp_tensor *out[RP__MAX_OUTS] = {0}, *grad_out[RP__MAX_OUTS] = {0};
    rp__meta out_meta[RP__MAX_OUTS];
    bool any_needed = false, any_grad = false;
    for (uint32_t k = 0; k < n.n_out; k++) {
        out_meta[k] = ir->values[n.out[k]].meta;
        grad_out[k] = d->grad[n.out[k]];
        any_grad = any_grad || grad_out[k];
        if (n.op->saves & RP__SAVE_OUT(k)) {
            out[k] = handle_of(d, n.out[k]);
            if (rp__tensor_is_error(out[k])) return rp_error_status();
        }
    }
    if (!any_grad) return RP_OK;
    memset(in_meta, 0, n.n_in * sizeof *in_meta);
    for (uint32_t k = 0; k < n.n_in; k++) {
        in[k] = grad_in[k] = NULL;
        needed[k] = wants_gradient(ir, n.in[k]);
        any_needed = any_needed || needed[k];
        if (n.in[k] == RP__IR_NONE) continue;
        in_meta[k] = ir->values[n.in[k]].meta;
        bool saved = (n.op->saves & RP__SAVE_IN_ALL) == RP__SAVE_IN_ALL || (k < 16 && (n.op->saves & RP__SAVE_IN(k)));
        if (!saved) continue;
        in[k] = handle_of(d, n.in[k]);
        if (rp__tensor_is_error(in[k])) return rp_error_status();
    }
    if (!any_needed) return RP_OK;
    if (!n.op->vjp) {
        return rp__fail(RP_ERROR_UNAVAILABLE,
                        "%s is not differentiable: detach what it reads, or call it under no_grad", n.op->name);
    }
    rp__call call;
    rp__ir_call(&n, in, out, &call);
    rp__vjp g = {.call = &call,
                 .in_meta = in_meta,
                 .out_meta = out_meta,
                 .grad_out = grad_out,
                 .needed = needed,
                 .grad_in = grad_in};
    RP_TRY(rp__grad_run(&g));
    for (uint32_t k = 0; k < n.n_in; k++) {
        if (grad_in[k] && needed[k]) RP_TRY(add_gradient(d, n.in[k], grad_in[k]));
    }
    return RP_OK;
}

/* The graph `part`, whose arguments are the values args, becomes part of the body; results[k] are values of it. */
static rp_status splice(rp_ir *dst, const rp_ir *part, const rp__ir_value *args, rp__ir_value *results) {
    rp__rewrite w = {.src = part, .dst = dst, .map = rp__alloc((part->n_values + 1) * sizeof *w.map)};
    if (!w.map) return RP__OOM("a derivative");
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < part->body.n_args; k++) w.map[part->body.args[k]] = args[k];
    for (size_t k = 0; k < part->body.n_nodes && status == RP_OK; k++) {
        if (!part->nodes[part->body.nodes[k]].dead) status = rp__rewrite_copy(&w, &dst->body, part->body.nodes[k]);
    }
    for (uint32_t k = 0; k < part->body.n_results && status == RP_OK; k++)
        results[k] = part->body.results[k] == RP__IR_NONE ? RP__IR_NONE : w.map[part->body.results[k]];
    rp__free(w.map);
    return status;
}

typedef struct region { /* scratch of one region's backward */
    bool *flags;
    uint32_t *same;
    rp__ir_value *args, *results;
    const rp__ir_value_info **info;
} region;

static rp_status region_args(differentiator *d, const rp__ir_node *n, uint32_t n_given, region *r,
                             rp__region_request *request) {
    rp_ir *ir = d->w.dst;
    bool loop = n->kind == RP__IR_WHILE;
    uint32_t first = loop ? 0 : 1, n_operands = n->n_in - first, at = 0;
    bool *given = r->flags, *needed = given + n_given, *summed = needed + n_operands, any = false;
    *request =
        (rp__region_request){.given = given, .needed = needed, .summed = summed, .same = r->same, .info = r->info};
    for (uint32_t k = 0; k < n->n_in; k++) r->args[at++] = n->in[k];
    for (uint32_t k = n_given; k < n->n_out && loop; k++) {
        r->args[at++] = n->out[k];
        if (d->grad[n->out[k]])
            return rp__fail(RP_ERROR_UNAVAILABLE, "a gradient through the derivative of a loop at %s",
                            n->site ? n->site : "");
    }
    for (uint32_t k = 0; k < n_given; k++) {
        given[k] = d->grad[n->out[k]] && ir->values[n->out[k]].requires_grad;
        any = any || given[k];
        if (given[k] && (r->args[at++] = rp__record_value(&d->r, d->grad[n->out[k]])) == RP__IR_NONE)
            return RP_ERROR_INTERNAL;
    }
    bool any_needed = false;
    for (uint32_t k = 0; k < n_operands; k++) {
        rp__ir_value v = n->in[first + k];
        needed[k] = wants_gradient(ir, v);
        r->same[k] = k;
        for (uint32_t j = 0; j < k && needed[k] && !loop; j++) {
            if (n->in[first + j] != v) continue;
            r->same[k] = r->same[j];
            needed[k] = false;
        }
        any_needed = any_needed || needed[k];
        summed[k] = needed[k] && d->grad[v];
        /* One sum is one operand's to continue. */
        for (uint32_t j = 0; j < k && summed[k]; j++) summed[k] = !(summed[j] && n->in[first + j] == v);
        if (summed[k] && (r->args[at++] = rp__record_value(&d->r, d->grad[v])) == RP__IR_NONE) return RP_ERROR_INTERNAL;
    }
    for (uint32_t k = 0; k < at; k++) r->info[k] = &ir->values[r->args[k]];
    request->n_info = any && any_needed ? at : 0;
    return RP_OK;
}

static rp_status run_region(differentiator *d, uint32_t index) {
    rp_ir *ir = d->w.dst;
    const rp__ir_node n = ir->nodes[index]; /* by value: splicing moves the array */
    bool loop = n.kind == RP__IR_WHILE;
    if (loop && n.attrs[1].v.i == 0)
        return rp__fail(RP_ERROR_UNAVAILABLE, "a gradient through a loop %s at %s",
                        n.attrs[0].v.i > 0 ? "inside a checkpoint" : "without max_iter", n.site ? n.site : "");
    uint32_t n_given = loop ? (uint32_t)n.attrs[1].v.i : n.n_out, first = loop ? 0 : 1;
    size_t most = 2 * ((size_t)n.n_in + n.n_out) + 1;
    region r = {.flags = rp__calloc(2 * most, sizeof *r.flags),
                .same = rp__calloc(most, sizeof *r.same),
                .args = rp__calloc(most, sizeof *r.args),
                .results = rp__calloc(most, sizeof *r.results),
                .info = rp__calloc(most, sizeof *r.info)};
    rp__region_request request = {.n_info = 0};
    rp_ir *part = NULL;
    rp_status status = r.flags && r.same && r.args && r.results && r.info ? region_args(d, &n, n_given, &r, &request)
                                                                          : RP__OOM("a derivative");
    if (status == RP_OK && request.n_info > 0) {
        rp__record_pause(&d->r);
        status = rp__region_backward(ir, index, &request, &part);
        rp__record_resume(&d->r);
        if (status == RP_OK) status = splice(ir, part, r.args, r.results);
        for (uint32_t k = 0, at = 0; k < n.n_in - first && status == RP_OK; k++) {
            if (!request.needed[k]) continue;
            rp_tensor *grad = rp__record_handle(&d->r, r.results[at++]);
            rp__ir_value v = n.in[first + k];
            if (rp__tensor_is_error(grad))
                status = rp_error_status();
            else if (request.summed[k] || !d->grad[v])
                d->grad[v] = grad;
            else
                status = add_gradient(d, v, grad);
        }
    }
    if (part) rp__ir_release(part);
    rp__free(r.flags);
    rp__free(r.same);
    rp__free(r.args);
    rp__free(r.results);
    rp__free(r.info);
    return status;
}

/* A write through a view, as the tape takes it back. The scatter: the part's gradient goes on to what was written. The view
   before it: the old tensor's gradient is the new one's, with that of the old part (zero if none) in place of the part's;
   nothing is added up, so that not even the sign of a zero changes. */
static rp_status backward_of_write(differentiator *d, uint32_t index) {
    rp_ir *ir = d->w.dst;
    const rp__ir_node n = ir->nodes[index]; /* by value: recording moves the array */
    const rp__call attrs = {.attrs = n.attrs, .n_attrs = n.n_attrs};
    if (!rp__ir_is_view(&n)) {
        rp_tensor *whole = d->whole[n.write] = d->grad[n.out[0]];
        if (!whole || !wants_gradient(ir, n.in[1])) return RP_OK;
        return add_gradient(d, n.in[1], rp__grad_call(n.op->inverse, &attrs, whole, NULL));
    }
    rp_tensor *whole = d->whole[n.write], *part = d->grad[n.out[0]];
    if (!whole || !wants_gradient(ir, n.in[0])) return RP_OK;
    rp__meta meta = ir->values[n.out[0]].meta;
    if (!part) part = rp__zeros_of(&meta);
    return add_gradient(d, n.in[0], rp__grad_call(n.op->inverse, &attrs, whole, part));
}

/* A value as the backward of a function was traced on it: row-major. */
static rp__ir_value settled(differentiator *d, rp_tensor *t) {
    if (!rp__tensor_contiguous(t)) t = rp_clone(t);
    return rp__tensor_is_error(t) ? RP__IR_NONE : rp__record_value(&d->r, t);
}

/* A custom function: its backward takes the place of the derivatives of its forward. */
static rp_status backward_of_function(differentiator *d, const rp__ir_function *f) {
    rp_ir *ir = d->w.dst;
    bool any = false, wanted = false;
    for (uint32_t k = 0; k < f->n_out; k++) {
        rp__ir_value v = d->w.map[f->out[k]];
        any = any || (d->grad[v] && ir->values[v].requires_grad);
    }
    for (uint32_t k = 0; k < f->n_in; k++)
        wanted = wanted || (f->backward->body.results[k] != RP__IR_NONE && wants_gradient(ir, d->w.map[f->in[k]]));
    uint32_t n_args = f->n_in + 2 * f->n_out;
    rp__ir_value *args = rp__alloc((n_args + f->n_in + 1u) * sizeof *args);
    if (!args) return RP__OOM("backward of a custom function");
    rp__ir_value *results = args + n_args;
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < f->n_in; k++) args[k] = d->w.map[f->in[k]];
    for (uint32_t k = 0; k < f->n_out && status == RP_OK; k++) {
        rp__ir_value v = d->w.map[f->out[k]];
        rp__meta meta = ir->values[v].meta; /* by value: recording moves the array */
        args[f->n_in + k] = v;
        if (any && wanted) {
            rp_tensor *grad = d->grad[v] ? d->grad[v] : rp__zeros_of(&meta);
            rp__ir_value g = rp__tensor_is_error(grad) ? RP__IR_NONE : settled(d, grad);
            args[f->n_in + f->n_out + k] = g;
            if (g == RP__IR_NONE) status = rp_error_status();
        }
        d->grad[v] = NULL; /* none goes on into the forward */
    }
    if (status == RP_OK && any && wanted) status = splice(ir, f->backward, args, results);
    for (uint32_t k = 0; k < f->n_in && status == RP_OK && any && wanted; k++) {
        if (results[k] == RP__IR_NONE || !wants_gradient(ir, args[k])) continue;
        rp_tensor *grad = rp__record_handle(&d->r, results[k]);
        status = add_gradient(d, args[k], grad);
    }
    rp__free(args);
    return status;
}

static rp_status backward_of(differentiator *d, uint32_t index) {
    const rp__ir_node *n = &d->w.dst->nodes[index];
    if (n->write) {
        rp__site_frame at = rp__site_push(n->site ? n->site : "", n->op->name);
        rp_status written = backward_of_write(d, index);
        rp__site_pop(at);
        return written;
    }
    bool any = false;
    for (uint32_t k = 0; k < n->n_out; k++)
        any = any || (d->grad[n->out[k]] && d->w.dst->values[n->out[k]].requires_grad);
    if (!any || n->kind == RP__IR_CAPTURED || n->kind == RP__IR_CONST) return RP_OK;
    rp__site_frame frame = rp__site_push(n->site ? n->site : "", n->kind == RP__IR_OP ? n->op->name : "");
    uint32_t n_in = n->n_in ? n->n_in : 1;
    rp_tensor **tensors = rp__calloc(2 * (size_t)n_in, sizeof *tensors);
    rp__meta *meta = rp__calloc(n_in, sizeof *meta);
    bool *needed = rp__calloc(n_in, sizeof *needed);
    rp_status status = RP_OK;
    if (!tensors || !meta || !needed) {
        status = RP__OOM("a derivative");
    } else if (n->n_regions > 0) {
        status = run_region(d, index);
    } else {
        status = run_vjp(d, index, tensors, tensors + n_in, meta, needed);
    }
    rp__free(tensors);
    rp__free(meta);
    rp__free(needed);
    rp__site_pop(frame);
    return status;
}

static bool is_of_function(const rp_ir *ir, rp__ir_value v) {
    for (size_t i = 0; i < ir->n_functions; i++) {
        for (uint32_t k = 0; k < ir->functions[i].n_out; k++)
            if (ir->functions[i].out[k] == v) return true;
    }
    return false;
}

/* What the walk over nodes cannot differentiate, found before anything is recorded. */
static rp_status check_forward(const rp_ir *ir) {
    if (ir->function_inside)
        return rp__fail(RP_ERROR_UNAVAILABLE, "a gradient through a custom function in a branch or loop at %s",
                        ir->function_inside);
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (n->dead) continue;
        const char *site = n->site ? n->site : "";
        bool in = false, out = false;
        for (uint32_t r = 0; r < n->n_in; r++)
            in = in || (n->in[r] != RP__IR_NONE && ir->values[n->in[r]].requires_grad);
        for (uint32_t r = 0; r < n->n_out; r++)
            out = out || (ir->values[n->out[r]].requires_grad && !is_of_function(ir, n->out[r]));
        if (n->kind == RP__IR_ASSIGN && ir->values[n->in[1]].requires_grad) {
            return rp__fail(RP_ERROR_UNAVAILABLE, "an argument is written with a value that needs a gradient at %s",
                            site);
        }
        if (n->kind == RP__IR_OP && rp__ir_node_has_effect(ir, n)) {
            return rp__fail(RP_ERROR_UNAVAILABLE, "%s, in place, in a function that is differentiated", n->op->name);
        }
        if (n->kind == RP__IR_OP && out && !in) {
            return rp__fail(RP_ERROR_UNAVAILABLE, "a gradient through what is no op at %s", site);
        }
    }
    return RP_OK;
}

/* Every node of the forward but ASSIGNs, which come last, behind the derivatives: those read the old values. */
static rp_status copy_forward(differentiator *d) {
    const rp_ir *src = d->w.src;
    for (size_t k = 0; k < src->body.n_nodes; k++) {
        const rp__ir_node *n = &src->nodes[src->body.nodes[k]];
        if (!n->dead && n->kind != RP__IR_ASSIGN) RP_TRY(rp__rewrite_copy(&d->w, &d->w.dst->body, src->body.nodes[k]));
    }
    return RP_OK;
}

bool rp__joint_has_tangent(const rp_ir *ir, uint32_t k, uint64_t given) {
    rp__ir_value v = ir->body.results[k];
    return wants_gradient(ir, v) && !rp__ir_is_outer(ir, v) && (k >= 64 || (given >> k & 1));
}

static rp_status add_tangents(differentiator *d, rp__joint *j) {
    rp_ir *dst = d->w.dst;
    const rp__ir_block *body = &d->w.src->body;
    j->tangent_of = rp__alloc((body->n_results + 1u) * sizeof *j->tangent_of);
    if (!j->tangent_of) return RP__OOM("tangents");
    for (uint32_t k = 0; k < body->n_results; k++) {
        if (!rp__joint_has_tangent(d->w.src, k, d->given)) continue;
        rp__meta meta = d->w.src->values[body->results[k]].meta;
        if (rp__ir_add_arg(dst, &dst->body, &meta, d->w.src->values[body->results[k]].site) == RP__IR_NONE) {
            return RP_ERROR_OUT_OF_MEMORY;
        }
        j->tangent_of[j->n_tangents++] = k;
    }
    return RP_OK;
}

static rp_status add_results(differentiator *d, rp__joint *j, const uint32_t *leaves, uint32_t n_leaves) {
    rp_ir *dst = d->w.dst;
    const rp__ir_block *body = &d->w.src->body;
    rp__ir_value *results = rp__alloc((body->n_results + n_leaves + 1u) * sizeof *results);
    j->grad_arg = rp__alloc((n_leaves + 1u) * sizeof *j->grad_arg);
    if (!results || !j->grad_arg) {
        rp__free(results);
        return RP__OOM("results of the joint graph");
    }
    uint32_t n = 0;
    for (; n < body->n_results; n++) {
        results[n] = body->results[n] == RP__IR_NONE ? RP__IR_NONE : d->w.map[body->results[n]];
    }
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < n_leaves; k++) {
        rp__ir_value leaf = leaves[k] < body->n_args ? dst->body.args[leaves[k]] : RP__IR_NONE;
        for (size_t i = 0; i < dst->n_nodes && leaves[k] >= body->n_args; i++) {
            const rp__ir_node *c = &dst->nodes[i];
            if (c->kind == RP__IR_CAPTURED && c->captured_index == leaves[k] - body->n_args) leaf = c->out[0];
        }
        rp_tensor *grad = leaf == RP__IR_NONE ? NULL : d->grad[leaf];
        results[n] = grad ? rp__record_value(&d->r, grad) : RP__IR_NONE;
        if (grad && results[n] == RP__IR_NONE) status = RP_ERROR_INTERNAL;
        j->grad_arg[j->n_grads++] = leaves[k];
        n++;
    }
    if (status == RP_OK) status = rp__ir_set_results(dst, &dst->body, results, n);
    rp__free(results);
    return status;
}

static rp_status differentiate(differentiator *d, rp__joint *j, const uint32_t *leaves, uint32_t n_leaves) {
    rp_ir *dst = d->w.dst;
    RP_TRY(copy_forward(d));
    d->n_values = dst->n_values;
    size_t n_nodes = dst->body.n_nodes;
    RP_TRY(add_tangents(d, j));
    d->handle = rp__calloc(dst->n_values + 1, sizeof *d->handle);
    d->grad = rp__calloc(dst->n_values + 1, sizeof *d->grad);
    d->whole = rp__calloc(dst->n_nodes + 1, sizeof *d->whole); /* a number has at least one node */
    if (!d->handle || !d->grad || !d->whole) return RP__OOM("derivatives");
    for (uint32_t k = 0; k < j->n_tangents; k++) {
        rp_tensor *tangent = handle_of(d, dst->body.args[j->n_inputs + k]);
        RP_TRY(add_gradient(d, d->w.map[d->w.src->body.results[j->tangent_of[k]]], tangent));
    }
    const rp_ir *from = d->w.src;
    for (size_t k = n_nodes, f = from->n_functions; k-- > 0;) {
        while (f > 0 && dst->values[d->w.map[from->functions[f - 1].last]].node == dst->body.nodes[k])
            RP_TRY(backward_of_function(d, &from->functions[--f]));
        RP_TRY(backward_of(d, dst->body.nodes[k]));
    }
    RP_TRY(add_results(d, j, leaves, n_leaves));
    const rp_ir *src = d->w.src;
    for (size_t k = 0; k < src->body.n_nodes; k++) {
        const rp__ir_node *n = &src->nodes[src->body.nodes[k]];
        if (!n->dead && n->kind == RP__IR_ASSIGN) RP_TRY(rp__rewrite_copy(&d->w, &dst->body, src->body.nodes[k]));
    }
    return RP_OK;
}

rp_status rp__joint_build(const rp_ir *ir, const uint32_t *leaves, uint32_t n_leaves, uint64_t given, rp__joint *out) {
    memset(out, 0, sizeof *out);
    RP_TRY(check_forward(ir));
    differentiator d;
    memset(&d, 0, sizeof d);
    d.given = given;
    out->n_inputs = ir->body.n_args;
    out->n_results = ir->body.n_results;
    rp_status status = rp__rewrite_begin(&d.w, ir);
    if (status == RP_OK) {
        status = rp__record_begin(&d.r, d.w.dst, &d.w.dst->body);
        if (status == RP_OK) {
            status = differentiate(&d, out, leaves, n_leaves);
            rp__record_end(&d.r);
        }
    }
    rp__free(d.handle);
    rp__free(d.grad);
    rp__free(d.whole);
    status = rp__rewrite_end(&d.w, status, "joint", &out->ir);
    if (status != RP_OK) rp__joint_free(out);
    return status;
}

void rp__joint_free(rp__joint *j) {
    if (j->ir) rp__ir_release(j->ir);
    rp__free(j->tangent_of);
    rp__free(j->grad_arg);
    memset(j, 0, sizeof *j);
}
