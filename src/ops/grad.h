/* What derivatives share. A derivative (rp__vjp_<op>, in <family>_grad.c) is written with public ops, so that it traces, fuses
   and is differentiable itself. It may return a gradient in the broadcast size and the promoted dtype: rp__grad_run, its only
   caller (the tape, and the compiler's joint graph), sums and converts to what the input has. */
#ifndef RP_OPS_GRAD_H
#define RP_OPS_GRAD_H

#include "ops/rules.h"

/* Runs call->op's derivative; afterwards every grad_in[i] is NULL (zero, or not needed) or has the meta of input i. */
rp_status rp__grad_run(const rp__vjp *g);
/* Of what has a derivative along other operands alone: an error that says so. */
rp_tensor *rp__no_slope(const rp__vjp *g);
/* t summed to `size` (torch.Tensor.sum_to_size): undoes a broadcast. */
rp_tensor *rp__sum_to_size(rp_tensor *t, const rp_dim *size, size_t ndim);
/* Zeros with the given meta: memory of their own, or one element expanded (for operands that are only read). */
rp_tensor *rp__to_device_of(rp_tensor *t, const rp__meta *meta); /* t itself, or a copy on the device of meta */
rp_tensor *rp__zeros_of(const rp__meta *meta);
rp_tensor *rp__zeros_expanded(const rp__meta *meta);
rp_tensor *rp__count_beside(const rp_tensor *t, rp_dim n); /* 0 .. n - 1 in int64, on the device of t */
/* The gradient of the first elements along each dim as that of all: zeros behind it. What was not scattered has none. */
rp_tensor *rp__fill_up(rp_tensor *grad, const rp__meta *meta);
rp_tensor *rp__zero_like(const rp_tensor *t); /* 0-d, dtype and device of t */
/* No dims, on the device of t: beside tensors it is a number, whose type is that of the result. */
rp_tensor *rp__number_beside(const rp_tensor *t, rp_scalar value, rp_dtype dtype);
/* The gradient of pad_edges with respect to its operand, of that size (padding.c). */
rp_tensor *rp__pad_edges_input(rp_tensor *grad, const rp_dim *size, const rp_attr *pad, int64_t mode);
/* grad where low < x < high: NaN is not inside; a limit of no kind is none. */
rp_tensor *rp__inside(rp_tensor *grad, rp_tensor *x, rp_scalar low, rp_scalar high);
/* Of the larger or smaller one of operand 0 and operand `other`. */
rp_status rp__extremum_grad(const rp__vjp *g, unsigned other, bool maximum);
/* op with the attributes of `like`, over a and, unless it is NULL, b. */
rp_tensor *rp__grad_call(const rp__op *op, const rp__call *like, rp_tensor *a, rp_tensor *b);
/* f16 and bf16 as f32: formulas of several ops are computed in f32 and rounded once, by rp__grad_run, as one kernel would. */
rp_tensor *rp__wide(rp_tensor *t);
/* rp_set_grad_enabled as the library itself calls it: a trace does not take it for the function's wish. The tape has it. */
bool rp__grad_switch(bool enabled);
size_t rp__attr_dim(int64_t dim, size_t ndim); /* of a call that was checked: 0 <= result < max(ndim, 1) */

/* The derivative of a unary op from its slope at x, the operand, or y, the result, of which the row saves what the slope reads; or
   from the gradient itself, given `grad`. f16 and bf16 come as f32. WITH: what comes in it more than once has a name behind it,
   "*t = rp_tanh(x)". */
#define NUMBER(k) (g->call->attrs[k].v.scalar) /* attribute k */
#define RP__GRAD_AS(name, value, ...)                                                                                  \
    rp_status rp__vjp_##name(const rp__vjp *g) {                                                                       \
        rp_tensor *x = g->call->in[0] ? rp__wide(g->call->in[0]) : NULL;                                               \
        rp_tensor *y = g->call->out[0] ? rp__wide(g->call->out[0]) : NULL;                                             \
        rp_tensor __VA_ARGS__;                                                                                         \
        (void)x, (void)y;                                                                                              \
        g->grad_in[0] = value;                                                                                         \
        return RP_OK;                                                                                                  \
    }
#define RP__GRAD(name, value) RP__GRAD_AS(name, value, *grad = g->grad_out[0])
#define RP__GRAD_WITH(name, value, ...) RP__GRAD_AS(name, value, *grad = g->grad_out[0], __VA_ARGS__)
#define RP__SLOPE(name, slope) RP__GRAD(name, rp_mul(grad, slope))
#define RP__SLOPE_WITH(name, slope, ...) RP__GRAD_WITH(name, rp_mul(grad, slope), __VA_ARGS__)
/* Of a binary op: the gradients of its operands a and b. */
#define RP__SLOPES(name, of_a, of_b)                                                                                   \
    rp_status rp__vjp_##name(const rp__vjp *g) {                                                                       \
        rp_tensor *grad = g->grad_out[0];                                                                              \
        rp_tensor *a = g->call->in[0] ? rp__wide(g->call->in[0]) : NULL;                                               \
        rp_tensor *b = g->call->in[1] ? rp__wide(g->call->in[1]) : NULL;                                               \
        rp_tensor *y = g->call->out[0] ? rp__wide(g->call->out[0]) : NULL;                                             \
        (void)a, (void)b, (void)y;                                                                                     \
        if (g->needed[0]) g->grad_in[0] = of_a;                                                                        \
        if (g->needed[1]) g->grad_in[1] = of_b;                                                                        \
        return RP_OK;                                                                                                  \
    }

#endif
