/* rp_while: the host runs a loop, or a trace records a WHILE node with condition and body as blocks. A loop that a gradient
   may pass keeps the state of every iteration in stacks of max_iter rows, over which its backward, a loop too, walks back;
   without max_iter it has no gradient. ir_run.c calls it for a node that is traced again; regions.c asks for the backward.
   The state keeps its types; neither function draws random numbers in a trace. */
#include "trace/regions.h"

#include "ops/private.h"
#include <string.h>

#include "core/alloc.h"
#include "ops/format.h"
#include "ops/grad.h"

/* The state of a loop, then what does not change, as one list. */
static rp_status host_while(rp__region_where at, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n_state,
                            size_t n_in, int64_t max_iter, rp_tensor **out) {
    rp_tensor **state = rp__calloc(n_in + n_state + 1, sizeof *state);
    if (!state) return RP__OOM("rp_while");
    rp_tensor **next = state + n_in;
    if (n_in) memcpy(state, in, n_in * sizeof *state);
    const uint64_t failures = rp__error_count();
    rp_status status = RP_OK;
    for (int64_t i = 0; status == RP_OK && (max_iter <= 0 || i < max_iter); i++) {
        rp_scope scope = rp__scope_begin();
        rp_tensor *go = NULL;
        bool on = false;
        cond_fn.body(cond_fn.ctx, state, n_in, &go, 1);
        status = rp__status_since(failures);
        if (status == RP_OK) status = rp__region_check_result(at, cond_fn, go, 0);
        if (status == RP_OK) status = rp__region_may_decide(at, go, "deciding on the host whether a loop goes on");
        if (status == RP_OK) {
            on = rp__scalar_f64(rp_item(go)) != 0;
            status = rp__status_since(failures);
        }
        memset(next, 0, n_state * sizeof *next);
        if (on && status == RP_OK) {
            body_fn.body(body_fn.ctx, state, n_in, next, n_state);
            status = rp__status_since(failures);
        }
        for (size_t k = 0; on && k < n_state && status == RP_OK; k++) {
            status = rp__region_check_result(at, body_fn, next[k], k);
            if (status == RP_OK && (next[k]->dtype != state[k]->dtype || next[k]->ndim != state[k]->ndim ||
                                    memcmp(next[k]->size, state[k]->size, next[k]->ndim * sizeof *next[k]->size) != 0))
                status = rp__fail(RP_ERROR_SHAPE, "rp_while: state %zu changes its size or type", k);
        }
        if (on && status == RP_OK) status = rp__region_own_results(state, n_in, next, n_state);
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
    rp__ir_release(l->cond);
    rp__ir_release(l->body);
    rp__free(l->operands);
}

static rp_status close_loop(rp__region_where at, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n_state,
                            size_t n_in, loop *l) {
    rp__region a = {0}, b = {0};
    rp_tensor **all = NULL;
    size_t n_all = 0;
    rp_status status;
    *l = (loop){.n_state = n_state};
    RP_TRY_GOTO(status, done, rp__region_trace(at, cond_fn, false, in, n_in, 1, &a));
    RP_TRY_GOTO(status, done, rp__region_trace(at, body_fn, false, in, n_in, n_state, &b));
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
    RP_TRY_GOTO(status, done, rp__region_merge_operands(&a, &b, &all, &n_all));
    RP_TRY_GOTO(status, done, rp__region_widen(&a, n_in, all, n_all, &l->cond));
    RP_TRY_GOTO(status, done, rp__region_widen(&b, n_in, all, n_all, &l->body));
    l->operands = rp__calloc(n_in + n_all + 1, sizeof *l->operands);
    if (!l->operands) {
        status = RP__OOM("rp_while");
        goto done;
    }
    if (n_in) memcpy(l->operands, in, n_in * sizeof *l->operands);
    memcpy(l->operands + n_in, all, n_all * sizeof *l->operands);
    l->n = n_in + n_all;
done:
    rp__region_free(&a);
    rp__region_free(&b);
    rp__free(all);
    return status;
}

/* The loop that also keeps its states: (state, count, stacks) with stacks (max_iter, *size). */
typedef struct keeping {
    const loop *l;
    int64_t max_iter;
} keeping;

/* Runs a function of the loop on another state. */
static rp_status run_on(const loop *l, const rp_ir *ir, rp_tensor *const *state, rp_tensor **out, size_t n_out) {
    rp_tensor **operands = rp__alloc((l->n + 1) * sizeof *operands);
    if (!operands) return RP__OOM("rp_while");
    memcpy(operands, l->operands, l->n * sizeof *operands);
    memcpy(operands, state, l->n_state * sizeof *operands);
    const rp_status status = rp__ir_run(ir, operands, l->n, out, n_out, NULL);
    rp__free(operands);
    return status;
}

static void keeping_cond(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const keeping *k = ctx;
    (void)n_in;
    (void)run_on(k->l, k->l->cond, in, out, n_out);
}

static void keeping_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const keeping *k = ctx;
    size_t n = k->l->n_state;
    (void)n_in;
    (void)n_out;
    if (run_on(k->l, k->l->body, in, out, n) != RP_OK) return;
    out[n] = rp_add_scalar(in[n], rp_i64(1));
    rp_tensor *hit = rp_eq(rp_arange(rp_i64(0), rp_i64(k->max_iter)), in[n]); /* (max_iter) */
    for (size_t s = 0; s < n; s++) {
        rp_dim size[RP_MAX_DIMS];
        size[0] = k->max_iter;
        for (unsigned d = 0; d < in[s]->ndim; d++) size[d + 1] = 1;
        out[n + 1 + s] = rp_where(rp_view(hit, size, in[s]->ndim + 1u), rp_unsqueeze(in[s], 0), in[n + 1 + s]);
    }
}

static rp_status trace_while(rp__trace *t, rp__region_where at, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in,
                             size_t n_state, size_t n_in, int64_t max_iter, rp_tensor **out) {
    loop l = {0}, wide = {0};
    rp_tensor **states = NULL, **kept_out = NULL, **save = NULL;
    rp_status status;
    bool *carries = rp__calloc(2 * n_state + 2, sizeof *carries); /* state, count, stacks */
    if (!carries) return RP__OOM("rp_while");
    RP_TRY_GOTO(status, done, close_loop(at, cond_fn, body_fn, in, n_state, n_in, &l));
    bool differentiable, small = true;
    RP_TRY_GOTO(status, done, rp__region_flow(l.body, NULL, n_state, l.operands, l.n, carries, &differentiable));
    memcpy(carries + n_state + 1, carries, n_state * sizeof *carries);
    for (size_t s = 0; s < n_state; s++) small = small && in[s]->ndim < RP_MAX_DIMS;
    if (!differentiable || max_iter <= 0 || !small) {
        RP_TRY_GOTO(status, done,
                    rp__region_emit(t, at, RP__IR_WHILE, l.cond, l.body, l.operands, l.n, max_iter > 0 ? max_iter : 0,
                                    0, l.body, out, NULL));
        if (differentiable) {
            rp__region_kept k = {.kind = RP__IR_WHILE, .n_state = n_state};
            status = rp__region_attach(at, &k, "while", NULL, 0, l.operands, l.n, out, carries, n_state);
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
    const uint64_t failures = rp__error_count();
    bool grad = rp__grad_switch(false);
    memcpy(states, in, n_state * sizeof *states);
    states[n_state] = rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64));
    for (size_t s = 0; s < n_state; s++) {
        rp_dim size[RP_MAX_DIMS];
        size[0] = max_iter;
        memcpy(size + 1, in[s]->size, in[s]->ndim * sizeof *size);
        states[n_state + 1 + s] =
            rp_full(size, in[s]->ndim + 1u, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = (rp_dtype)in[s]->dtype));
    }
    keeping k = {&l, max_iter};
    status = rp__status_since(failures);
    if (status == RP_OK)
        status = close_loop(at, (rp_fn){keeping_cond, &k, 0, "while"}, (rp_fn){keeping_body, &k, 0, "while"}, states,
                            n_wide, n_wide, &wide);
    (void)rp__grad_switch(grad);
    if (status == RP_OK)
        status = rp__region_emit(t, at, RP__IR_WHILE, wide.cond, wide.body, wide.operands, wide.n, max_iter, n_state,
                                 wide.body, kept_out, NULL);
    if (status == RP_OK) {
        memcpy(out, kept_out, n_state * sizeof *out);
        memcpy(save, l.operands, l.n * sizeof *save);
        memcpy(save + l.n, kept_out + n_state, (n_state + 1) * sizeof *save);
        rp__region_kept p = {
            .kind = RP__IR_WHILE, .a = rp__ir_retain(l.body), .n_state = n_state, .max_iter = max_iter};
        /* The history is a result, too: a second derivative reaches it. */
        status =
            rp__region_attach(at, &p, "while", save, l.n + n_state + 1, l.operands, l.n, kept_out, carries, n_wide);
    }
done:
    loop_free(&l);
    loop_free(&wide);
    rp__free(states);
    rp__free(kept_out);
    rp__free(save);
    rp__free(carries);
    return status;
}

rp_status rp__while_invariant(const char *site, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n_state,
                              size_t n_in, int64_t max_iter, rp_tensor **out) {
    const rp__region_where at = {"rp_while", site ? site : rp__site()};
    rp_scope scope = rp__scope_begin();
    rp_status status =
        rp__region_check_functions("rp_while", "rp_while: an argument", cond_fn, body_fn, in, n_in, out, n_state);
    rp__trace *t = rp__trace_current();
    rp_tensor **settled_in = NULL;
    if (status == RP_OK) status = rp__region_settle(at, in, n_in, n_state, &settled_in);
    if (status == RP_OK && t)
        status = rp__region_fall_back(
            at, trace_while(t, at, cond_fn, body_fn, settled_in, n_state, n_in, max_iter, out), &t);
    if (status == RP_OK && !t) status = host_while(at, cond_fn, body_fn, settled_in, n_state, n_in, max_iter, out);
    rp__free(settled_in);
    return rp__region_finish(scope, status, out, n_state);
}

rp_status rp_while_at(const char *site, rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n, int64_t max_iter,
                      rp_tensor **out) {
    RP__CALLED_FROM(site && *site ? site : NULL);
    RP__LISTS_APART(in, n, out, n, rp_while_at(site, cond_fn, body_fn, apart, n, max_iter, out));
    return rp__while_invariant(site, cond_fn, body_fn, in, n, n, max_iter, out);
}

/* ---- backward */

typedef struct back { /* one step back of a loop: (i, gradients of the state, sums of gradients of invariants) */
    const rp__region_task *q;
    rp_tensor *const *operands; /* of the body: state (as it began), invariants */
    rp_tensor *const *stacks;
    const bool *wanted; /* per operand; all floating states are */
} back;

static void back_cond(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx;
    (void)n_in;
    (void)n_out;
    out[0] = rp_gt(in[0], rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)));
}

/* x + nothing is x for every x but nothing + 0, which is 0: where a sum has not begun. */
static rp_tensor *nothing_like(const rp_tensor *t) {
    return rp_full(t->size, t->ndim, rp_f64(-0.0), RP_OPTIONS(rp_full_options, .dtype = (rp_dtype)t->dtype));
}

/* Row i of a stack (max_iter, *size of like). */
static rp_tensor *row_of(rp_tensor *stack, rp_tensor *i, const rp_tensor *like, int64_t max_iter) {
    rp_dim rows[2] = {max_iter, rp__tensor_numel(like)};
    rp_tensor *dense = rp__row_major(stack);
    return rp_view(rp_embedding(rp_view(dense, rows, 2), i), like->size, like->ndim);
}

static void back_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const back *b = ctx;
    const rp__region_task *q = b->q;
    const rp__region_kept *p = q->p;
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
    const uint64_t failures = rp__error_count();
    out[0] = rp_add_scalar(in[0], rp_i64(-1));
    rp_tensor *first = rp_eq(out[0], rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)));
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
    rp__region_derivative d = {.ir = p->a, .wanted = b->wanted, .n_operands = p->n_operands};
    if (rp__status_since(failures) == RP_OK &&
        rp__region_derive(&d, grad_out, operands, sums, rp__grad_recording(), false, grads) == RP_OK) {
        for (size_t k = 0, g = 0; k < p->n_operands; k++) {
            if (!b->wanted[k]) continue;
            rp_tensor *grad = grads[g++], *kept_grad = k < p->n_state ? q->grad_out[p->n_state + 1 + k] : NULL;
            out[o++] = kept_grad ? rp_add(grad, row_of(kept_grad, out[0], b->operands[k], p->max_iter)) : grad;
        }
    }
    rp__free(work);
}

rp_status rp__region_while_backward(const rp__region_task *q, rp_tensor **grad_in) {
    const rp__region_kept *p = q->p;
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
    const uint64_t failures = rp__error_count();
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
    rp_status status = rp__status_since(failures);
    if (status == RP_OK)
        status = rp_while_at(rp__site(), (rp_fn){back_cond, &b, 0, "while backward"},
                             (rp_fn){back_body, &b, 0, "while backward"}, state, n, p->max_iter, out);
    rp_tensor *ran = status == RP_OK
                         ? rp_gt(count, rp_full(RP_NO_DIMS, rp_i64(0), RP_OPTIONS(rp_full_options, .dtype = RP_I64)))
                         : NULL;
    for (size_t k = 0, o = 1; k < p->n_operands && status == RP_OK; k++) {
        if (!wanted[k]) continue;
        rp_tensor *grad = out[o++];
        if (k < p->n_state && q->sums[k])
            grad = rp_where(ran, grad, rp_add(q->sums[k], grad));
        else if (k >= p->n_state && !q->sums[k])
            grad = rp_where(ran, grad, rp_zeros_like(grad));
        grad_in[k] = q->needed[k] ? grad : NULL;
    }
    if (status == RP_OK) status = rp__status_since(failures);
    rp__free(wanted);
    rp__free(state);
    return status;
}
