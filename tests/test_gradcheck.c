/* Every derivative of the op table against central differences in float64, and every second derivative; contiguous and
   transposed inputs. A row that is differentiable and has no case here fails the test. */
/* ctest: timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <reprise.h>

#include "ops/ops.h"
#include "ops/private.h"

enum { MAX_IN = 4, MAX_NUMEL = 256 };

typedef rp_tensor *case_fn(rp_tensor **x);
typedef enum range {
    ANY,
    POSITIVE,
    APART,  /* no two values near each other */
    UNIT,   /* between -1 and 1 */
    STEP,   /* slope 0 between steps */
    ABOVE,  /* above 1 */
    INSIDE, /* between 0 and 1 */
    INTS,
    NO_SLOPE /* ops without a derivative: no case */
} range;
typedef struct grad_case {
    const char *op;     /* row that it covers */
    const char *shapes; /* "2,3;3": inputs; "-" is 0-d */
    range values;
    case_fn *fn;
} grad_case;

/* ---------------------------------------------------------------- the cases */

#define CASE(id, expression)                                                                                           \
    static rp_tensor *id(rp_tensor **x) { return expression; }

static rp_tensor *ints(const int64_t *size, size_t ndim, const int64_t *values) {
    return rp_from_data(values, size, ndim, RP_I64);
}
#define INDEX_2_3 ints(RP_DIMS(2, 3), (const int64_t[]){0, 2, 1, 1, 0, 0})
#define INDEX_3 ints(RP_DIMS(3), (const int64_t[]){2, 0, 2})

static rp_tensor *mask_2_3(void) { return rp_from_data((const uint8_t[]){1, 0, 1, 0, 0, 1}, RP_DIMS(2, 3), RP_BOOL); }

CASE(f_add, rp_add(x[0], x[1], RP_OPTIONS(rp_add_options, .alpha = rp_f64(1.5))))
CASE(f_sub, rp_sub(x[0], x[1], RP_OPTIONS(rp_sub_options, .alpha = rp_f64(0.75))))
CASE(f_sub_one, rp_sub(x[0], x[1]))
CASE(f_mul, rp_mul(x[0], x[1]))
CASE(f_square, rp_mul(x[0], x[0]))
CASE(f_div, rp_div(x[0], x[1]))
CASE(f_add_scalar, rp_mul(rp_add_scalar(x[0], rp_f64(2.5)), x[0]))
CASE(f_mul_scalar, rp_mul_scalar(x[0], rp_f64(-2.5)))
CASE(f_div_size, rp_div_size(x[0], 3))
CASE(f_div_scalar, rp_div_scalar(x[0], rp_f64(3.0)))
CASE(f_pow_3, rp_pow_scalar(x[0], rp_i64(3)))
CASE(f_pow_half, rp_pow_scalar(x[0], rp_f64(-1.5)))
CASE(f_pow_0, rp_add(rp_pow_scalar(x[0], rp_i64(0)), x[0]))
CASE(f_maximum, rp_maximum(x[0], x[1]))
CASE(f_minimum, rp_minimum(x[0], x[1]))
CASE(f_sign, rp_mul(rp_sign(x[0]), x[0]))
CASE(f_div_floor, rp_mul(rp_div_mode(x[0], x[1], "floor"), rp_div_mode(x[0], x[1], "trunc")))
CASE(f_round_decimals, rp_mul(rp_round(x[0], RP_OPTIONS(rp_round_options, .decimals = rp_i64(1))), x[0]))
CASE(f_logit_eps, rp_logit(x[0], rp_f64(0.3)))
CASE(f_lerp, rp_lerp(x[0], x[1], x[2]))
CASE(f_lerp_scalar, rp_lerp_scalar(x[0], x[1], rp_f64(0.7)))
CASE(f_addcmul, rp_addcmul(x[0], x[1], x[2], RP_OPTIONS(rp_addcmul_options, .value = rp_f64(1.5))))
CASE(f_addcdiv, rp_addcdiv(x[0], x[1], x[2], RP_OPTIONS(rp_addcdiv_options, .value = rp_f64(1.5))))
CASE(f_masked_fill, rp_masked_fill(x[0], mask_2_3(), x[1]))
CASE(f_masked_fill_, rp_masked_fill_(rp_clone(x[0]), mask_2_3(), x[1]))
CASE(f_masked_fill_scalar_, rp_masked_fill_scalar_(rp_clone(x[0]), mask_2_3(), rp_f64(2)))
CASE(f_masked_fill_scalar, rp_masked_fill_scalar(x[0], mask_2_3(), rp_f64(2)))
CASE(f_polygamma, rp_polygamma(1, x[0]))
CASE(f_prelu, rp_prelu(x[0], x[1]))
CASE(f_glu, rp_glu(x[0]))
CASE(f_elu, rp_elu(x[0], rp_f64(1.5), rp_f64(0.7), rp_f64(1.25)))
CASE(f_softshrink, rp_softshrink(x[0], rp_f64(0.33)))
CASE(f_softplus, rp_softplus(x[0], rp_f64(3), rp_f64(1.5)))
CASE(f_clamp, rp_clamp(x[0], rp_f64(-0.7), rp_f64(0.6)))
CASE(f_clamp_low, rp_clamp(x[0], rp_f64(-0.7)))
CASE(f_clamp_high, rp_clamp(x[0], rp_none(), rp_f64(0.6)))
CASE(f_where, rp_where(mask_2_3(), x[0], x[1]))
CASE(f_to_dtype, rp_to_dtype(rp_mul(x[0], x[0]), RP_F64))
CASE(f_clone, rp_clone(x[0]))
CASE(f_copy, rp_mul(rp_copy(x[0], x[1]), x[0]))
CASE(f_fill, rp_mul(rp_fill(x[0], rp_f64(2)), x[0]))
CASE(f_detach, rp_add(rp_mul(rp_fill(rp_detach(x[0]), rp_f64(3)), x[0]), x[0]))

CASE(f_add_, rp_add_(rp_mul_scalar(x[0], rp_i64(2)), x[1], RP_OPTIONS(rp_add_options, .alpha = rp_f64(1.5))))
CASE(f_sub_, rp_sub_(rp_clone(x[0]), x[1], RP_OPTIONS(rp_sub_options, .alpha = rp_i64(2))))
CASE(f_mul_, rp_mul_(rp_clone(x[0]), x[1]))
CASE(f_div_, rp_div_(rp_clone(x[0]), x[1]))
CASE(f_add_scalar_, rp_add_scalar_(rp_sin(x[0]), rp_i64(2)))
CASE(f_mul_scalar_, rp_mul_scalar_(rp_add_scalar(x[0], rp_i64(1)), rp_f64(1.5)))
CASE(f_copy_, rp_mul(rp_copy_(rp_clone(x[0]), x[1]), x[0]))
CASE(f_fill_, rp_mul(rp_fill_(rp_clone(x[0]), rp_f64(2)), x[0]))

/* In place through views of a result: the whole is returned. */
static rp_tensor *f_view_mul_(rp_tensor **x) {
    rp_tensor *base = rp_clone(x[0]); /* (2, 3) */
    rp_mul_(rp_select(base, 0, 1), x[1]);
    return base;
}
static rp_tensor *f_view_exp_(rp_tensor **x) {
    rp_tensor *base = rp_sin(x[0]);
    rp_tensor *view = rp_transpose(rp_slice(base, 1, 0, 2, 1), 0, 1);
    rp_exp_(view);
    return rp_add(rp_sum(rp_mul(view, view)), base);
}
static rp_tensor *f_view_copy_into_plain(rp_tensor **x) {
    rp_tensor *base = rp_zeros(RP_DIMS(3, 3), RP_OPTIONS(rp_zeros_options, .dtype = RP_F64));
    rp_copy_(rp_slice(base, 0, 0, 2, 1), x[0]);
    rp_copy_(rp_select(base, 0, 2), rp_mul(rp_clone(rp_select(base, 0, 1)), rp_clone(rp_select(base, 0, 0))));
    return base;
}
static rp_tensor *f_base_then_view(rp_tensor **x) {
    rp_tensor *base = rp_clone(x[0]);
    rp_tensor *view = rp_select(base, 0, 0);
    rp_mul_(base, x[0]);
    return rp_mul(view, view);
}
static rp_tensor *f_view_twice(rp_tensor **x) {
    rp_tensor *base = rp_clone(x[0]);
    rp_tensor *a = rp_view(base, RP_DIMS(6)), *b = rp_select(base, 1, 2);
    rp_sin_(rp_slice(a, 0, 1, 4, 2));
    rp_tanh_(b);
    return rp_mul(a, a);
}

CASE(f_amin, rp_amin(x[0], RP_DIMS(1)))
CASE(f_std, rp_std(x[0], RP_DIMS(1)))
CASE(f_nansum, rp_nansum(rp_mul(x[0], x[0]), RP_DIMS(0)))
CASE(f_nanmean, rp_nanmean(rp_mul(x[0], x[0]), RP_DIMS(1), true))
CASE(f_logsumexp, rp_logsumexp(x[0], RP_DIMS(1)))
CASE(f_norm, rp_linalg_vector_norm(x[0]))
CASE(f_norm_3, rp_linalg_vector_norm(x[0], rp_i64(3), RP_DIMS(1), true))
CASE(f_norm_1, rp_linalg_vector_norm(x[0], rp_i64(1), RP_DIMS(0)))
CASE(f_norm_inf, rp_linalg_vector_norm(x[0], rp_f64(INFINITY), RP_DIMS(1)))
CASE(f_prod, rp_prod(rp_sin(x[0]), 1, true))
CASE(f_prod_all, rp_prod(x[0]))
CASE(f_var, rp_var(x[0], RP_DIMS(1)))
CASE(f_var_0, rp_var(x[0], RP_NO_DIMS, RP_OPTIONS(rp_var_options, .correction = rp_f64(0.5), .keepdim = RP_TRUE)))
CASE(f_sum, rp_sum(rp_mul(x[0], x[0])))
CASE(f_sum_dims, rp_sum(x[0], RP_DIMS(0, -1)))
CASE(f_sum_keep, rp_sum(x[0], RP_DIMS(1), true))
CASE(f_mean, rp_mean(rp_mul(x[0], x[0]), RP_NO_DIMS, true))
CASE(f_mean_dims, rp_mean(x[0], RP_DIMS(1)))
CASE(f_amax, rp_amax(rp_mul(x[0], x[0]), RP_DIMS(1), false))
CASE(f_amax_all, rp_amax(x[0], RP_NO_DIMS, false))
CASE(f_softmax, rp_softmax(x[0], 1))
CASE(f_softmax_0, rp_softmax(x[0], 0))
CASE(f_max_pool, rp_max_pool2d(x[0], RP_DIMS(3, 2), RP_DIMS(2, 1), RP_DIMS(1, 1), RP_DIMS(1, 1), true))
CASE(f_max_pool_dilated,
     rp_max_pool2d_with_indices(rp_mul(x[0], x[0]), RP_DIMS(2, 2), RP_DIMS(1), RP_DIMS(0), RP_DIMS(2, 1), false, NULL))
static rp_tensor *f_max_pool_input(rp_tensor **x) {
    rp_tensor *indices, *like = rp_sin(rp_reshape(
                            rp_arange(rp_i64(0), rp_i64(20), rp_i64(1), RP_OPTIONS(rp_arange_options, .dtype = RP_F64)),
                            RP_DIMS(1, 1, 5, 4)));
    rp_max_pool2d_with_indices(like, RP_DIMS(2, 3), RP_DIMS(2, 1), RP_DIMS(1, 1), RP_DIMS(1, 1), false, &indices);
    return rp_max_pool2d_input(x[0], indices, RP_DIMS(1, 1, 5, 4), RP_DIMS(2, 3), RP_DIMS(2, 1), RP_DIMS(1, 1),
                               RP_DIMS(1, 1), false);
}
CASE(f_avg_pool, rp_avg_pool2d(x[0], RP_DIMS(3, 2), RP_DIMS(2, 1), RP_DIMS(1, 1), true, true, INT64_MIN))
CASE(f_avg_pool_inside, rp_avg_pool2d(rp_mul(x[0], x[0]), RP_DIMS(3), RP_DIMS(2), RP_DIMS(1), true, false, INT64_MIN))
CASE(f_avg_pool_number, rp_avg_pool2d(x[0], RP_DIMS(2), NULL, 0, RP_DIMS(0), false, true, 3))
CASE(f_avg_pool_input, rp_avg_pool2d_input(x[0], RP_DIMS(1, 2, 5, 4), RP_DIMS(3, 2), RP_DIMS(2, 1), RP_DIMS(1, 1),
                                           false, false, INT64_MIN))
CASE(f_pad, rp_constant_pad_nd(rp_mul(x[0], x[0]), RP_DIMS(1, -1, 2, 0), rp_f64(2)))
CASE(f_batch_norm, rp_batch_norm(x[0], x[1], x[2], NULL, NULL, true, 0.1, 1e-3))
CASE(f_batch_norm_plain, rp_batch_norm(x[0], NULL, NULL, NULL, NULL, true, 0.1, 1e-3))
CASE(f_batch_norm_eval,
     rp_batch_norm(x[0], x[1], x[2], rp_full(RP_DIMS(2), rp_f64(0.3), RP_OPTIONS(rp_full_options, .dtype = RP_F64)),
                   rp_full(RP_DIMS(2), rp_f64(1.7), RP_OPTIONS(rp_full_options, .dtype = RP_F64)), false, 0.1, 1e-3))
static rp_tensor *f_batch_norm_train(rp_tensor **x) {
    rp_tensor *mean, *rstd, *var, *y = rp_batch_norm_train(x[0], x[1], x[2], 1e-3, &mean, &rstd, &var);
    rp_tensor *stats = rp_add(rp_add(mean, rp_mul(rstd, mean)), var);
    return rp_add(y, rp_unsqueeze(stats, -1));
}
CASE(f_cumsum, rp_cumsum(x[0], 1))
CASE(f_cumsum_reversed, rp_cumsum_reversed(rp_mul(x[0], x[0]), 0))
CASE(f_log_softmax, rp_log_softmax(x[0], -1))
CASE(f_layer_norm, rp_layer_norm(x[0], RP_DIMS(3), x[1], x[2], 1e-5))
CASE(f_layer_norm_plain, rp_layer_norm(x[0], RP_DIMS(2, 3), NULL, NULL, 1e-5))
CASE(f_layer_norm_weight, rp_layer_norm(x[0], RP_DIMS(3), x[1], NULL, 1e-2))
static rp_tensor *f_native_layer_norm(rp_tensor **x) {
    rp_tensor *mean, *rstd;
    rp_tensor *y = rp_native_layer_norm(x[0], RP_DIMS(rp_size(x[0], -1)), x[1], x[2], 0.1, &mean, &rstd);
    return rp_add(rp_sum(y, RP_DIMS(1)), rp_view(rp_mul(mean, rstd), RP_DIMS(2)));
}
CASE(f_cross_entropy, rp_cross_entropy(x[0], ints(RP_DIMS(3), (const int64_t[]){2, 0, -100})))
CASE(f_cross_entropy_sum, rp_cross_entropy(x[0], ints(RP_DIMS(3), (const int64_t[]){2, 1, 3}), NULL, 2, 1))
CASE(f_cross_entropy_one, rp_cross_entropy(x[0], ints(NULL, 0, (const int64_t[]){1}), NULL, 0, -100))
static rp_tensor *f_cross_entropy_rows(rp_tensor **x) {
    rp_tensor *high, *log_total;
    rp_tensor *loss = rp_cross_entropy_rows(x[0], ints(RP_DIMS(3), (const int64_t[]){2, -1, 0}), -1, &high, &log_total);
    return rp_add(rp_mul(loss, high), rp_mul(log_total, loss));
}

CASE(f_view, rp_view(rp_sin(x[0]), RP_DIMS(3, 2)))
CASE(f_flatten, rp_flatten(rp_transpose(x[0], 0, 1), 0, 1))
CASE(f_unflatten, rp_unflatten(x[0], 1, RP_DIMS(3, -1)))
CASE(f_reshape, rp_reshape(rp_transpose(x[0], 0, 1), RP_DIMS(-1)))
CASE(f_permute, rp_permute(x[0], RP_DIMS(2, 0, -2)))
CASE(f_swapaxes, rp_swapaxes(x[0], 0, -1))
CASE(f_transpose, rp_transpose(x[0], 0, -1))
CASE(f_expand, rp_mul(rp_expand(x[0], RP_DIMS(2, 4, 3)), rp_expand(x[1], RP_DIMS(2, 4, -1))))
CASE(f_slice, rp_slice(x[0], 1, 0, INT64_MAX, 2))
CASE(f_slice_negative, rp_slice(x[0], -1, -2, INT64_MIN, 1))
CASE(f_select, rp_select(x[0], -1, -2))
CASE(f_unsqueeze, rp_unsqueeze(x[0], -2))
CASE(f_squeeze, rp_squeeze(x[0], -2))
CASE(f_squeeze_kept, rp_squeeze(x[0], 0))
CASE(f_slice_scatter, rp_slice_scatter(x[0], x[1], 1, 0, 3, 2))
CASE(f_select_scatter, rp_select_scatter(x[0], x[1], 0, 1))
CASE(f_narrow, rp_narrow(x[0], 1, -3, 2))
CASE(f_squeeze_dims, rp_squeeze_dims(x[0], RP_DIMS(0, -1)))
CASE(f_squeeze_all, rp_squeeze_dims(x[0]))
CASE(f_movedim, rp_movedim(x[0], RP_DIMS(0, -1), RP_DIMS(-1, 0)))
CASE(f_diagonal, rp_diagonal(x[0], 1, 2, 0))
CASE(f_diagonal_scatter, rp_diagonal_scatter(x[0], x[1], -1, 0, 1))
CASE(f_unfold, rp_unfold(x[0], 1, 3, 2))
CASE(f_unfold_apart, rp_unfold(x[0], 0, 2, 3))
CASE(f_unfold_scatter, rp_unfold_scatter(x[0], x[1], 0, 2, 3))
CASE(f_unfold_backward, rp_unfold_backward(x[0], RP_DIMS(2, 6), 1, 3, 2))
CASE(f_cat, rp_cat(RP_TENSORS(x[0], x[1], x[0]), 1))
CASE(f_gather, rp_gather(x[0], 1, INDEX_2_3))
CASE(f_embedding, rp_embedding(x[0], INDEX_2_3))
CASE(f_embedding_backward, rp_embedding_backward(x[0], INDEX_3, 4))
CASE(f_scatter_add, rp_scatter_add(x[0], 1, INDEX_2_3, x[1]))
CASE(f_scatter_add_row, rp_scatter_add(x[0], 0, ints(RP_DIMS(1), (const int64_t[]){0}), rp_select(x[1], 0, 1)))
CASE(f_scatter_add_point, rp_scatter_add(rp_select(x[0], 0, 0), 0, ints(RP_NO_DIMS, (const int64_t[]){0}), x[1]))
CASE(f_scatter_add_larger, rp_scatter_add(x[0], 0, ints(RP_DIMS(1, 2), (const int64_t[]){1, 0}), x[1]))
static rp_tensor *f_topk(rp_tensor **x) {
    rp_tensor *indices;
    return rp_mul_scalar(rp_topk(x[0], 2, 1, true, true, &indices), rp_i64(3));
}
CASE(f_topk_smallest, rp_topk(x[0], 1, 0, false, true, NULL))
CASE(f_bmm, rp_bmm(x[0], x[1]))
CASE(f_matmul, rp_matmul(x[0], x[1]))
CASE(f_linear, rp_linear(x[0], x[1], x[2]))
CASE(f_linear_plain, rp_linear(x[0], x[1], NULL))
CASE(f_conv2d, rp_conv2d(x[0], x[1], x[2], RP_DIMS(1, 1), RP_DIMS(1, 0), RP_DIMS(1, 1), 1))
CASE(f_conv2d_groups, rp_conv2d(x[0], x[1], NULL, RP_DIMS(2, 1), RP_DIMS(0, 1), RP_DIMS(1, 2), 2))
CASE(f_conv2d_input, rp_conv2d_input(x[0], x[1], RP_DIMS(1, 2, 4, 3), RP_DIMS(2, 1), RP_DIMS(1, 1), RP_DIMS(1, 1), 1))
CASE(f_conv2d_weight, rp_conv2d_weight(x[0], x[1], RP_DIMS(3, 2, 2, 2), RP_DIMS(2, 1), RP_DIMS(1, 1), RP_DIMS(1, 1), 1))
static rp_tensor *f_native_dropout(rp_tensor **x) {
    rp_manual_seed(7);
    return rp_mul(rp_native_dropout(x[0], 0.4, RP_UNSET, NULL, NULL), x[0]);
}
static rp_tensor *f_dropout(rp_tensor **x) {
    rp_manual_seed(8);
    return rp_dropout(x[0], 0.5, true);
}

/* The op by its name: `op_`, or with 0.75 as the second operand,; attributes are the defaults, other numbers 2. */
static const char *by_name_op;
static rp_tensor *by_name(rp_tensor **x) {
    const rp__op *op = rp__op_find(by_name_op);
    rp_tensor *in[MAX_IN] = {op->flags & RP_OP_INPLACE ? rp_clone(x[0]) : x[0]}, *out = NULL;
    rp_attr attrs[RP__MAX_PARAMS];
    size_t n_in = 1, n = 0;
    for (unsigned k = 1; k < op->schema.n_params; k++) {
        const rp__param *p = &op->schema.params[k];
        if (p->kind != RP__PARAM_ATTR)
            in[n_in] = x[n_in], n_in++;
        else if (p->attr_kind == RP_ATTR_SCALAR && p->optional) /* a range */
            attrs[n] = (rp_attr){.kind = RP_ATTR_SCALAR, .v.scalar = rp_f64(n ? 0.5 : -0.5)}, n++;
        else if (p->has_default)
            attrs[n++] = rp__param_default(p);
        else if (p->attr_kind == RP_ATTR_SCALAR)
            attrs[n++] = (rp_attr){.kind = RP_ATTR_SCALAR, .v.scalar = rp_f64(op->scalar_operand ? 0.75 : 2)};
    }
    (void)rp_op_call(op->name, in, n_in, attrs, n, &out, 1);
    return out;
}

static const grad_case written[] = {
#define UNARY(op, range, flags, value) {#op, "2,3", range, by_name},
#include "ref/unary.def"
#undef UNARY
#define BINARY(op, range, flags, value) {#op, "2,3;3", range, by_name},
#include "ref/binary.def"
#undef BINARY
    {"div_mode", "2,3;3", POSITIVE, f_div_floor},
    {"round", "2,3", ANY, f_round_decimals},
    {"logit", "2,3", INSIDE, f_logit_eps},
    {"lerp", "2,3;3;2,1", ANY, f_lerp},
    {"lerp_scalar", "2,3;3", ANY, f_lerp_scalar},
    {"addcmul", "2,3;3;2,1", ANY, f_addcmul},
    {"addcdiv", "2,3;3;2,1", POSITIVE, f_addcdiv},
    {"masked_fill", "2,3;-", ANY, f_masked_fill},
    {"masked_fill_", "2,3;-", ANY, f_masked_fill_},
    {"masked_fill_scalar_", "2,3", ANY, f_masked_fill_scalar_},
    {"masked_fill_scalar", "2,3", ANY, f_masked_fill_scalar},
    {"polygamma", "2,3", POSITIVE, f_polygamma},
    {"prelu", "2,3;3", ANY, f_prelu},
    {"glu", "2,4", ANY, f_glu},
    {"nan_to_num", "2,3", ANY, by_name},
    {"elu", "2,3", ANY, f_elu},
    {"softshrink", "2,3", ANY, f_softshrink},
    {"threshold", "2,3", ANY, by_name},
    {"add", "2,3;3", ANY, f_add},
    {"add", "2,1,3;4,1", ANY, f_add},
    {"add", "-;2,2", ANY, f_add},
    {"sub", "3;2,3", ANY, f_sub},
    {"sub", "2,3;2,3", ANY, f_sub_one},
    {"mul", "2,3;2,1", ANY, f_mul},
    {"mul", "2,0;1", ANY, f_mul},
    {"mul", "2,3", ANY, f_square},
    {"div", "2,3;3", APART, f_div},
    {"add_scalar", "3", ANY, f_add_scalar},
    {"mul_scalar", "2,2", ANY, f_mul_scalar},
    {"div_scalar", "2,2", ANY, f_div_scalar},
    {"div_size", "2,2", ANY, f_div_size},
    {"pow_scalar", "2,3", ANY, f_pow_3},
    {"pow_scalar", "2,3", POSITIVE, f_pow_half},
    {"pow_scalar", "3", ANY, f_pow_0},
    {"maximum", "2,3;2,3", APART, f_maximum},
    {"minimum", "2,3;1,3", APART, f_minimum},
    {"sign", "2,3", ANY, f_sign},
    {"where", "2,3;3", ANY, f_where},
    {"to_dtype", "2,3", ANY, f_to_dtype},
    {"softplus", "2,3", ANY, f_softplus},
    {"clamp", "2,3", ANY, f_clamp},
    {"clamp", "2,3", ANY, f_clamp_low},
    {"clamp", "2,3", ANY, f_clamp_high},
    {"clone", "2,3", ANY, f_clone},
    {"copy", "2,3;3", ANY, f_copy},
    {"fill", "2,3", ANY, f_fill},
    {"detach", "2,3", ANY, f_detach},
    {"add_", "2,3;3", ANY, f_add_},
    {"sub_", "2,3;3", ANY, f_sub_},
    {"mul_", "2,3;3", ANY, f_mul_},
    {"div_", "2,3;2,3", APART, f_div_},
    {"add_scalar_", "2,3", ANY, f_add_scalar_},
    {"mul_scalar_", "2,3", ANY, f_mul_scalar_},
    {"copy_", "2,3;3", ANY, f_copy_},
    {"fill_", "2,3", ANY, f_fill_},
    {"mul_", "2,3;3", ANY, f_view_mul_},
    {"exp_", "2,3", ANY, f_view_exp_},
    {"copy_", "2,3", ANY, f_view_copy_into_plain},
    {"mul_", "2,3", ANY, f_base_then_view},
    {"sin_", "2,3", ANY, f_view_twice},
    {"amin", "2,3", APART, f_amin},
    {"std", "2,3", ANY, f_std},
    {"nansum", "2,3", ANY, f_nansum},
    {"nanmean", "2,3", ANY, f_nanmean},
    {"logsumexp", "2,3", ANY, f_logsumexp},
    {"linalg_vector_norm", "2,3", ANY, f_norm},
    {"linalg_vector_norm", "2,3", ANY, f_norm_3},
    {"linalg_vector_norm", "2,3", ANY, f_norm_1},
    {"linalg_vector_norm", "2,3", APART, f_norm_inf},
    {"prod", "2,3", ANY, f_prod},
    {"prod", "2,2", ANY, f_prod_all},
    {"var", "2,3", ANY, f_var},
    {"var", "2,3", ANY, f_var_0},
    {"sum", "2,3", ANY, f_sum},
    {"sum", "2,3,2", ANY, f_sum_dims},
    {"sum", "2,3", ANY, f_sum_keep},
    {"mean", "2,3", ANY, f_mean},
    {"mean", "2,3,2", ANY, f_mean_dims},
    {"amax", "2,3", APART, f_amax},
    {"amax", "2,3", APART, f_amax_all},
    {"softmax", "2,3", ANY, f_softmax},
    {"softmax", "3,2", ANY, f_softmax_0},
    {"log_softmax", "2,3", ANY, f_log_softmax},
    {"max_pool2d", "1,2,5,4", APART, f_max_pool},
    {"max_pool2d_with_indices", "1,4,3", APART, f_max_pool_dilated},
    {"max_pool2d_input", "1,1,3,4", ANY, f_max_pool_input},
    {"avg_pool2d", "1,2,5,4", ANY, f_avg_pool},
    {"avg_pool2d", "1,4,4", ANY, f_avg_pool_inside},
    {"avg_pool2d", "1,1,5,4", ANY, f_avg_pool_number},
    {"avg_pool2d_input", "1,2,3,5", ANY, f_avg_pool_input},
    {"constant_pad_nd", "2,3", ANY, f_pad},
    {"batch_norm", "3,2,2;2;2", ANY, f_batch_norm},
    {"batch_norm", "4,2", ANY, f_batch_norm_plain},
    {"batch_norm", "3,2;2;2", ANY, f_batch_norm_eval},
    {"batch_norm_train", "3,2,2;2,1;2,1", ANY, f_batch_norm_train},
    {"cumsum", "2,3", ANY, f_cumsum},
    {"cumsum_reversed", "3,2", ANY, f_cumsum_reversed},
    {"layer_norm", "2,3;3;3", ANY, f_layer_norm},
    {"layer_norm", "2,2,3", ANY, f_layer_norm_plain},
    {"layer_norm", "2,3;3", ANY, f_layer_norm_weight},
    {"native_layer_norm", "2,3;3;3", ANY, f_native_layer_norm},
    {"cross_entropy", "3,4", ANY, f_cross_entropy},
    {"cross_entropy", "3,4", ANY, f_cross_entropy_sum},
    {"cross_entropy", "3", ANY, f_cross_entropy_one},
    {"cross_entropy_rows", "3,4", ANY, f_cross_entropy_rows},
    {"view", "2,3", ANY, f_view},
    {"reshape", "2,3", ANY, f_reshape},
    {"flatten", "2,3,2", ANY, f_flatten},
    {"unflatten", "2,6", ANY, f_unflatten},
    {"permute", "2,3,2", ANY, f_permute},
    {"transpose", "2,3,2", ANY, f_transpose},
    {"swapaxes", "2,3,2", ANY, f_swapaxes},
    {"expand", "4,1;2,1,3", ANY, f_expand},
    {"slice", "2,5", ANY, f_slice},
    {"slice", "2,4", ANY, f_slice_negative},
    {"select", "2,3", ANY, f_select},
    {"unsqueeze", "2,3", ANY, f_unsqueeze},
    {"squeeze", "2,1,3", ANY, f_squeeze},
    {"squeeze", "2,3", ANY, f_squeeze_kept},
    {"slice_scatter", "2,4;2,2", ANY, f_slice_scatter},
    {"select_scatter", "2,3;3", ANY, f_select_scatter},
    {"slice", "2,5", ANY, f_narrow},
    {"squeeze_dims", "1,3,1", ANY, f_squeeze_dims},
    {"squeeze_dims", "1,3,1", ANY, f_squeeze_all},
    {"permute", "2,3,2", ANY, f_movedim},
    {"diagonal", "3,2,2", ANY, f_diagonal},
    {"diagonal_scatter", "3,4;2", ANY, f_diagonal_scatter},
    {"unfold", "2,6", ANY, f_unfold},
    {"unfold", "6", ANY, f_unfold_apart},
    {"unfold_scatter", "6;2,2", ANY, f_unfold_scatter},
    {"unfold_backward", "2,2,3", ANY, f_unfold_backward},
    {"cat", "2,3;2,1", ANY, f_cat},
    {"cat", "2,3;2,0", ANY, f_cat},
    {"gather", "2,3", ANY, f_gather},
    {"embedding", "4,2", ANY, f_embedding},
    {"embedding_backward", "3,2", ANY, f_embedding_backward},
    {"scatter_add", "2,3;2,3", ANY, f_scatter_add},
    {"scatter_add", "2,3;2,3", ANY, f_scatter_add_larger},
    {"scatter_add", "2;2", ANY, f_scatter_add_row},
    {"scatter_add", "2;2", ANY, f_scatter_add_point},
    {"topk", "2,4", APART, f_topk},
    {"topk", "3,2", APART, f_topk_smallest},
    {"bmm", "2,3;3,2", ANY, f_bmm},
    {"bmm", "2,2,3;2,3,1", ANY, f_bmm},
    {"matmul", "2,2,3;3,2", ANY, f_matmul},
    {"matmul", "3;3,2", ANY, f_matmul},
    {"matmul", "2,3;3", ANY, f_matmul},
    {"matmul", "3;3", ANY, f_matmul},
    {"matmul", "2,1,2,3;3,3,2", ANY, f_matmul},
    {"linear", "2,3;2,3;2", ANY, f_linear},
    {"linear", "2,2,3;2,3;2", ANY, f_linear},
    {"linear", "3;2,3", ANY, f_linear_plain},
    {"conv2d", "1,2,3,3;3,2,2,2;3", ANY, f_conv2d},
    {"conv2d", "1,2,4,4;4,1,2,2", ANY, f_conv2d_groups},
    {"conv2d_input", "1,3,3,4;3,2,2,2", ANY, f_conv2d_input},
    {"conv2d_weight", "1,3,3,4;1,2,4,3", ANY, f_conv2d_weight},
    {"native_dropout", "3,4", ANY, f_native_dropout},
    {"dropout", "3,4", ANY, f_dropout},
};
enum { N_WRITTEN = sizeof written / sizeof *written, MOST = 2048 };
static grad_case cases[MOST];
static size_t N_CASES;

static const grad_case *case_of(const char *op) {
    for (size_t i = 0; i < N_CASES; i++)
        if (strcmp(cases[i].op, op) == 0) return &cases[i];
    return NULL;
}

/* Forms that genops derives have the values of their op's first case. */
static void collect(void) {
    static char texts[MOST][128]; /* of a case: the op that it is a form of, then shapes */
    for (size_t i = 0; i < N_WRITTEN; i++) {
        if (written[i].values != NO_SLOPE && written[i].values != INTS) cases[N_CASES++] = written[i];
    }
    for (int forms = 0; forms < 2; forms++) {
        for (size_t k = 0; k < rp__op_builtin_count(); k++) {
            const rp__op *op = rp__op_table_at(k);
            if (case_of(op->name) || (forms == 0 ? !op->scalar_operand : !*op->functional)) continue;
            char *text = texts[N_CASES];
            (void)snprintf(text, 64, "%s", forms == 0 ? op->name : op->functional);
            if (forms == 0) text[strlen(text) - strlen("_scalar")] = 0;
            const grad_case *base = case_of(text);
            if (!base) continue;
            (void)snprintf(text + 64, 64, "%s", base->shapes);
            if (forms == 0) text[64 + strcspn(text + 64, ";")] = 0;
            cases[N_CASES++] = (grad_case){op->name, text + 64, base->values, by_name};
        }
    }
}

/* ---------------------------------------------------------------- inputs */

typedef struct inputs {
    size_t n, ndim[MAX_IN], numel[MAX_IN];
    int64_t size[MAX_IN][RP_MAX_DIMS];
    double value[MAX_IN][MAX_NUMEL];
} inputs;

static uint64_t random_state;
static double random_unit(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(random_state >> 11) / 9007199254740992.0;
}

static void inputs_make(const grad_case *c, inputs *in) {
    memset(in, 0, sizeof *in);
    random_state = 12345;
    const char *s = c->shapes;
    size_t total = 0;
    while (*s) {
        size_t k = in->n++;
        assert_true(k < MAX_IN);
        in->numel[k] = 1;
        if (*s == '-') s++;
        while (*s && *s != ';') {
            char *end;
            in->size[k][in->ndim[k]] = strtol(s, &end, 10);
            in->numel[k] *= (size_t)in->size[k][in->ndim[k]++];
            s = *end == ',' ? end + 1 : end;
        }
        if (*s == ';') s++;
        assert_true(in->numel[k] <= MAX_NUMEL);
        for (size_t i = 0; i < in->numel[k]; i++, total++) {
            double v = random_unit() * 3 - 1.5;
            v += v < 0 ? -0.1 : 0.1; /* away from kinks at 0 */
            if (c->values == POSITIVE) v = fabs(v) + 0.2;
            if (c->values == UNIT) v *= 0.55;
            if (c->values == ABOVE) v = fabs(v) + 1.2;
            if (c->values == INSIDE) v = 0.5 + v * 0.25;
            if (c->values == APART) v = ((double)((total * 7) % 31) - 15.3) * 0.11;
            in->value[k][i] = v;
        }
    }
}

/* Leaves with the values; and what the function gets: the leaves, or copies of them with other strides. */
static void inputs_tensors(const inputs *in, bool transposed, rp_tensor **leaves, rp_tensor **x) {
    for (size_t k = 0; k < in->n; k++) {
        leaves[k] = rp_from_data(in->value[k], in->size[k], in->ndim[k], RP_F64);
        rp_set_requires_grad(leaves[k], true);
        x[k] = leaves[k];
        if (transposed && in->ndim[k] > 1) x[k] = rp_transpose(rp_clone(rp_transpose(leaves[k], 0, -1)), 0, -1);
    }
}

/* ---------------------------------------------------------------- checks */

static const char *current;

static void require(bool ok) {
    if (ok && !rp_failed()) return;
    char text[1024];
    snprintf(text, sizeof text, "%s", rp_error_message());
    (void)rp_error_take();
    fail_msg("%s: %s", current, text);
}

static void host(rp_tensor *t, double *out) {
    require(!rp_is_error(t) && rp_numel(t) <= MAX_NUMEL * 4);
    require(rp_to_host(t, out, (size_t)rp_numel(t) * sizeof(double)) == RP_OK);
}

/* Fixed weights for the elements of an output. */
static rp_tensor *cotangent(rp_tensor *y) {
    double v[MAX_NUMEL * 4];
    int64_t size[RP_MAX_DIMS], n = rp_numel(y);
    for (size_t d = 0; d < rp_ndim(y); d++) size[d] = rp_size(y, (int64_t)d);
    for (int64_t i = 0; i < n; i++) v[i] = 0.3 + 0.17 * (double)((i * 5) % 7) - (i % 2 ? 0.9 : 0.0);
    return rp_from_data(v, size, rp_ndim(y), RP_F64);
}

/* The scalar that is differentiated: sum y . v, or in second order sum_k g_k . u_k with g = d(y . v)/dx. */
static double objective(const grad_case *c, const inputs *in, bool transposed, bool second,
                        double (*grads)[MAX_NUMEL]) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *leaves[MAX_IN], *x[MAX_IN], *g[MAX_IN];
    inputs_tensors(in, transposed, leaves, x);
    rp_tensor *y = c->fn(x);
    require(!rp_is_error(y));
    rp_tensor *v = cotangent(y);
    rp_tensor *total;
    if (!second) {
        total = rp_sum(rp_mul(y, v));
    } else {
        require(rp_grad(&y, 1, leaves, in->n, &v,
                        RP_OPTIONS(rp_backward_options, .create_graph = true, .allow_unused = true), g) == RP_OK);
        total = rp_sum(rp_mul(leaves[0], rp_zeros_like(leaves[0]))); /* never a constant */
        for (size_t k = 0; k < in->n; k++)
            if (g[k]) total = rp_add(total, rp_sum(rp_mul(g[k], cotangent(g[k]))));
    }
    require(!rp_is_error(total));
    double value = rp_item_f64(total);
    if (grads) {
        require(rp_grad(&total, 1, leaves, in->n, NULL, RP_OPTIONS(rp_backward_options, .allow_unused = true), g) ==
                RP_OK);
        for (size_t k = 0; k < in->n; k++) {
            memset(grads[k], 0, sizeof grads[k]);
            if (!g[k]) continue;
            require(rp_ndim(g[k]) == in->ndim[k] && (size_t)rp_numel(g[k]) == in->numel[k] &&
                    rp_dtype_of(g[k]) == RP_F64);
            for (size_t d = 0; d < in->ndim[k]; d++) require(rp_size(g[k], (int64_t)d) == in->size[k][d]);
            host(g[k], grads[k]);
        }
    }
    require(rp_scope_end(scope, NULL, 0) == RP_OK);
    return value;
}

static void check(const grad_case *c, bool transposed, bool second) {
    static inputs in;
    static double grads[MAX_IN][MAX_NUMEL];
    char text[128];
    snprintf(text, sizeof text, "%s(%s)%s%s", c->op, c->shapes, transposed ? " transposed" : "",
             second ? " second" : "");
    current = text;
    by_name_op = c->op;
    inputs_make(c, &in);
    (void)objective(c, &in, transposed, second, grads);
    const double h = 1e-5;
    for (size_t k = 0; k < in.n; k++)
        for (size_t i = 0; i < in.numel[k]; i++) {
            double at = in.value[k][i];
            in.value[k][i] = at + h;
            double above = objective(c, &in, transposed, second, NULL);
            in.value[k][i] = at - h;
            double below = objective(c, &in, transposed, second, NULL);
            in.value[k][i] = at;
            double numeric = (above - below) / (2 * h);
            /* Differences of h = 1e-5: about 1e-10 of truncation times the third derivative, and 1e-11 of rounding. */
            if (!(fabs(numeric - grads[k][i]) <= 2e-7 * (1 + fabs(numeric))))
                fail_msg("%s: input %zu element %zu: gradient %.12g, by differences %.12g", text, k, i, grads[k][i],
                         numeric);
        }
    current = NULL;
}

static void first_derivatives(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) check(&cases[i], false, false);
}

static void transposed_inputs(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) check(&cases[i], true, false);
}

static void second_derivatives(void **state) {
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) check(&cases[i], false, true);
}

static void every_differentiable_row_has_a_case(void **state) {
    (void)state;
    for (size_t i = 0; i < rp__op_table_count(); i++) {
        const rp__op *op = rp__op_table_at(i);
        bool differentiable = op->vjp || (op->functional_op && op->functional_op->vjp);
        if (differentiable && !case_of(op->name)) fail_msg("`%s` has a derivative and no case", op->name);
    }
}

int main(int argc, char **argv) {
    collect();
    if (argc > 1) { /* test_gradcheck OP: that op alone; a failure ends the program */
        for (size_t i = 0; i < N_CASES; i++)
            for (int k = 0; k < 4 && strcmp(cases[i].op, argv[1]) == 0; k++) check(&cases[i], k & 1, k & 2);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_differentiable_row_has_a_case),
        cmocka_unit_test(first_derivatives),
        cmocka_unit_test(transposed_inputs),
        cmocka_unit_test(second_derivatives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
