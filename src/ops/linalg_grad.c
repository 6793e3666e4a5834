/* Derivatives of linalg.c. Where a factorisation is not unique or not smooth (equal eigenvalues, signs of vectors, missing rank) they
   are infinite or NaN, as the formulas are. */
#include "ops/grad.h"
#include "ops/private.h"

static rp_tensor *turned(rp_tensor *t) { return rp_transpose(t, -2, -1); }
static rp_tensor *plus(rp_tensor *a, rp_tensor *b) { return !a ? b : !b ? a : rp_add(a, b); }
static rp_dim rows_of(const rp_tensor *t) { return t->size[t->ndim - 2]; }
static rp_dim columns_of(const rp_tensor *t) { return t->size[t->ndim - 1]; }

/* Is column - row of a place at least k? */
static rp_tensor *above(const rp_tensor *t, int64_t k) {
    rp_tensor *row = rp_unsqueeze(rp__count_beside(t, rows_of(t)), 1);
    return rp_ge(rp__count_beside(t, columns_of(t)), rp_add_scalar(row, rp_i64(k)));
}
static rp_tensor *upper_part(rp_tensor *t, int64_t k) {
    return rp__tensor_is_error(t) ? t : rp_where(above(t, k), t, rp__zero_like(t));
}
static rp_tensor *lower_part(rp_tensor *t, int64_t k) {
    return rp__tensor_is_error(t) ? t : rp_where(above(t, k + 1), rp__zero_like(t), t);
}
static rp_tensor *on_diagonal(const rp_tensor *t) { return rp_logical_and(above(t, 0), rp_logical_not(above(t, 1))); }
/* t, with these numbers on its diagonal. */
static rp_tensor *with_diagonal(rp_tensor *t, rp_tensor *diagonal) {
    return rp__tensor_is_error(t) ? t : rp_where(on_diagonal(t), rp_unsqueeze(diagonal, -1), t);
}
/* t + t^T, its diagonal once */
static rp_tensor *both_halves(rp_tensor *t) {
    if (rp__tensor_is_error(t)) return t;
    return rp_where(on_diagonal(t), t, rp_add(t, turned(t)));
}

/* L = chol(A): 1/2 L^-T (P + P^T) L^-1 of P, the lower half of L^T gL with its diagonal halved. */
rp_status rp__vjp_cholesky_factor(const rp__vjp *g) {
    const bool upper = rp__attr_bool(g->call, 0);
    rp_tensor *l = g->call->out[0], *grad = g->grad_out[0];
    if (!grad) return RP_OK;
    if (upper) {
        l = turned(l);
        grad = turned(grad);
    }
    rp_tensor *part = both_halves(lower_part(rp_matmul(turned(l), grad), 0));
    part = rp_solve_triangle(turned(l), part, true, true, false);
    g->grad_in[0] = rp_mul_scalar(rp_solve_triangle(l, part, false, false, false), rp_f64(0.5));
    return RP_OK;
}

rp_status rp__vjp_solve_square(const rp__vjp *g) {
    rp_tensor *of_b = rp_solve_square(turned(g->call->in[0]), g->grad_out[0], rp__attr_int(g->call, 0), NULL);
    if (g->needed[0]) g->grad_in[0] = rp_neg(rp_matmul(of_b, turned(g->call->out[0])));
    g->grad_in[1] = of_b;
    return RP_OK;
}

rp_status rp__vjp_solve_triangle(const rp__vjp *g) {
    const bool upper = rp__attr_bool(g->call, 0), left = rp__attr_bool(g->call, 1), unit = rp__attr_bool(g->call, 2);
    rp_tensor *x = g->call->out[0];
    rp_tensor *of_b = rp_solve_triangle(turned(g->call->in[0]), g->grad_out[0], !upper, left, unit);
    if (g->needed[0]) {
        rp_tensor *of_a = rp_neg(left ? rp_matmul(of_b, turned(x)) : rp_matmul(turned(x), of_b));
        g->grad_in[0] = upper ? upper_part(of_a, unit) : lower_part(of_a, -(int64_t)unit);
    }
    g->grad_in[1] = of_b;
    return RP_OK;
}

/* t numbers on the diagonals of matrices like a */
static rp_tensor *diagonal_of(rp_tensor *t, const rp_tensor *a) {
    rp_tensor *wide = rp_expand(rp_unsqueeze(rp_unsqueeze(t, -1), -1), a->size, a->ndim);
    return rp__tensor_is_error(wide) ? wide : rp_where(on_diagonal(wide), wide, rp__zero_like(wide));
}

/* det A^-T, of a singular A that of one a little beside it; A^-T of the logarithm. */
rp_status rp__vjp_lu_determinant(const rp__vjp *g) {
    enum { MOVE = 1, AS_IT_IS = 2 };
    rp_tensor *a = g->call->in[0], *sum = NULL;
    if (g->grad_out[0])
        sum = rp_solve_square(turned(a), diagonal_of(rp_mul(g->grad_out[0], g->call->out[0]), a), MOVE, NULL);
    if (g->grad_out[2]) sum = plus(sum, rp_solve_square(turned(a), diagonal_of(g->grad_out[2], a), AS_IT_IS, NULL));
    g->grad_in[0] = sum;
    return RP_OK;
}

/* Rows of t where the exchanges of A = P L U had them. */
static rp_tensor *rows_back(rp_tensor *t, rp_tensor *pivots) {
    rp_tensor *order = rp_pivots_order(rp_unsqueeze(pivots, -1), rows_of(t));
    return rp_take_along_dim(t, rp_unsqueeze(rp_argsort(order, -1), -1), -2);
}

/* Of the square part P^T dA = L dU + dL U: P L^-T (lower(L^T gL) + upper(gU U^T)) U^-T. Columns behind it are U2 = L^-1 A2 and rows
   below L2 = A2 U^-1, which give to A2 and to the square part. */
rp_status rp__vjp_lu_factors(const rp__vjp *g) {
    rp_tensor *lu = g->call->out[0], *grad = g->grad_out[0];
    if (!grad) return RP_OK;
    const rp_dim m = rows_of(lu), n = columns_of(lu);
    const bool wide = rp__dim_is(RP__DIM_LT, m, n), tall = rp__dim_is(RP__DIM_LT, n, m);
    const unsigned dim = wide ? (unsigned)lu->ndim - 1 : (unsigned)lu->ndim - 2;
    const rp_dim k = wide ? m : n, all = wide ? n : m;
    rp_tensor *square = wide || tall ? rp_slice(lu, dim, 0, k, 1) : lu, *l = turned(square), *u = l;
    rp_tensor *to_square = wide || tall ? rp_slice(grad, dim, 0, k, 1) : grad;
    rp_tensor *to_l = to_square, *to_u = to_square, *part[2] = {NULL, NULL};
    if (wide) {
        rp_tensor *rest = rp_slice(grad, dim, k, all, 1);
        part[1] = rp_solve_triangle(l, rest, true, true, true);
        to_l = rp_sub(to_l, rp_matmul(part[1], turned(rp_slice(lu, dim, k, all, 1))));
    } else if (tall) {
        rp_tensor *rest = rp_slice(grad, dim, k, all, 1);
        part[1] = rp_solve_triangle(u, rest, false, false, false);
        to_u = rp_sub(to_u, rp_matmul(turned(rp_slice(lu, dim, k, all, 1)), part[1]));
    }
    /* L^T lower(gL) + upper(gU) U^T, of which the halves count */
    rp_tensor *unit = with_diagonal(upper_part(l, 1), rp_ones_like(rp_diagonal(square, 0, -2, -1)));
    rp_tensor *below = lower_part(rp_matmul(unit, lower_part(to_l, -1)), -1);
    rp_tensor *above_it = upper_part(rp_matmul(upper_part(to_u, 0), lower_part(l, 0)), 0);
    part[0] =
        rp_solve_triangle(u, rp_solve_triangle(l, rp_add(below, above_it), true, true, true), false, false, false);
    rp_tensor *whole = part[1] ? rp_cat(part, 2, dim) : part[0];
    g->grad_in[0] = rows_back(whole, g->call->out[1]);
    return RP_OK;
}

/* Of m >= n. M = gR R^T - Q^T gQ: (gQ + Q sym(upper half of M)) R^-T. */
static rp_tensor *qr_of_tall(rp_tensor *q, rp_tensor *r, rp_tensor *to_q, rp_tensor *to_r) {
    rp_tensor *m = to_r ? rp_matmul(to_r, turned(r)) : NULL;
    if (to_q) m = plus(m, rp_neg(rp_matmul(turned(q), to_q)));
    rp_tensor *sum = plus(rp_matmul(q, both_halves(upper_part(m, 0))), to_q);
    return rp_solve_triangle(turned(r), sum, false, false, false);
}

rp_status rp__vjp_qr_factors(const rp__vjp *g) {
    enum { REDUCED, COMPLETE, WITHOUT_Q };
    const int64_t mode = rp__attr_int(g->call, 0);
    const rp__meta *a = &g->in_meta[0];
    const rp_dim m = a->size[a->ndim - 2], n = a->size[a->ndim - 1];
    const bool wide = rp__dim_is(RP__DIM_LT, m, n);
    rp_tensor *q = g->call->out[0], *r = g->call->out[1], *to_q = g->grad_out[0], *to_r = g->grad_out[1];
    if (mode == WITHOUT_Q || (mode == COMPLETE && rp__dim_is(RP__DIM_LT, n, m)))
        return rp__op_error(g->call, RP_ERROR_UNAVAILABLE,
                            "The QR decomposition is not differentiable when mode='%s'%s",
                            mode == COMPLETE ? "complete" : "r", mode == COMPLETE ? " and nrows > ncols" : "");
    if (!wide) {
        g->grad_in[0] = qr_of_tall(q, r, to_q, to_r);
        return RP_OK;
    }
    /* A = (A1 A2), R = (R1 R2): R2 = Q^T A2 gives to Q and A2, and the rest is square. */
    rp_tensor *first = rp_slice(r, -1, 0, m, 1), *second = rp_slice(r, -1, m, n, 1), *part[2] = {NULL, NULL};
    rp_tensor *to_first = NULL;
    if (to_r) {
        rp_tensor *to_second = rp_slice(to_r, -1, m, n, 1);
        to_first = rp_slice(to_r, -1, 0, m, 1);
        part[1] = rp_matmul(q, to_second);
        to_q = plus(to_q, rp_matmul(rp_matmul(q, second), turned(to_second)));
    } else {
        part[1] = rp_mul_scalar(rp_matmul(q, second), rp_i64(0));
    }
    part[0] = qr_of_tall(q, first, to_q, to_first);
    g->grad_in[0] = rp_cat(part, 2, -1);
    return RP_OK;
}

/* t with its columns times these numbers */
static rp_tensor *scaled(rp_tensor *t, rp_tensor *numbers) { return rp_mul(t, rp_unsqueeze(numbers, -2)); }

/* V (diag(gL) + V^T gV / (l_j - l_i)) V^T */
rp_status rp__vjp_eigen_pairs(const rp__vjp *g) {
    rp_tensor *values = g->call->out[0], *v = g->call->out[1], *to_values = g->grad_out[0], *to_v = g->grad_out[1];
    if (!to_v) {
        if (to_values) g->grad_in[0] = rp_matmul(scaled(v, to_values), turned(v));
        return RP_OK;
    }
    rp_tensor *apart = rp_sub(rp_unsqueeze(values, -2), rp_unsqueeze(values, -1)), *one = rp_ones_like(values);
    rp_tensor *inner = rp_div(rp_matmul(turned(v), to_v), with_diagonal(apart, one));
    inner = with_diagonal(inner, to_values ? to_values : rp_mul_scalar(values, rp_i64(0)));
    g->grad_in[0] = rp_matmul(v, rp_matmul(inner, turned(v)));
    return RP_OK;
}

/* t - t^T over s_j^2 - s_i^2 */
static rp_tensor *skew_over(rp_tensor *t, rp_tensor *s) {
    rp_tensor *high = rp_unsqueeze(s, -2), *low = rp_unsqueeze(s, -1);
    rp_tensor *apart = rp_mul(rp_sub(high, low), rp_add(high, low));
    return rp_div(rp_sub(t, turned(t)), with_diagonal(apart, rp_ones_like(s)));
}

/* A = U S V^T. U [skew(U^T gU)/E S + S skew(V^T gV)/E + gS] V^T, and what of gU and gV lies outside of both. */
rp_status rp__vjp_singular_parts(const rp__vjp *g) {
    rp_tensor *u = g->call->out[0], *s = g->call->out[1], *vh = g->call->out[2];
    rp_tensor *to_u = g->grad_out[0], *to_s = g->grad_out[1], *to_vh = g->grad_out[2];
    const rp_dim k = s->size[s->ndim - 1];
    if (!to_u && !to_s && !to_vh) return RP_OK;
    const rp_dim m = rows_of(u), n = columns_of(vh);
    if (rp__attr_bool(g->call, 0)) { /* vectors of no value give nothing */
        u = rp_slice(u, -1, 0, k, 1);
        vh = rp_slice(vh, -2, 0, k, 1);
        if (to_u) to_u = rp_slice(to_u, -1, 0, k, 1);
        if (to_vh) to_vh = rp_slice(to_vh, -2, 0, k, 1);
    }
    if (!to_u && !to_vh) {
        g->grad_in[0] = rp_matmul(scaled(u, to_s), vh);
        return RP_OK;
    }
    rp_tensor *inner = NULL, *outer = NULL, *reach = rp_unsqueeze(s, -1);
    if (to_u) inner = scaled(skew_over(rp_matmul(turned(u), to_u), s), s);
    if (to_vh) inner = plus(inner, rp_mul(reach, skew_over(rp_matmul(vh, turned(to_vh)), s)));
    if (to_s) inner = with_diagonal(inner, to_s);
    rp_tensor *sum = rp_matmul(rp_matmul(u, inner), vh);
    if (to_u && rp__dim_is(RP__DIM_LT, k, m)) {
        outer = scaled(to_u, rp_reciprocal(s));
        outer = rp_sub(outer, rp_matmul(u, rp_matmul(turned(u), outer)));
        sum = plus(sum, rp_matmul(outer, vh));
    }
    if (to_vh && rp__dim_is(RP__DIM_LT, k, n)) {
        outer = rp_div(to_vh, reach);
        outer = rp_sub(outer, rp_matmul(rp_matmul(outer, turned(vh)), vh));
        sum = plus(sum, rp_matmul(u, outer));
    }
    g->grad_in[0] = sum;
    return RP_OK;
}

/* Of P = A^+, a matrix of constant rank. */
static rp_tensor *of_pseudo_inverse(rp_tensor *a, rp_tensor *p, rp_tensor *grad) {
    rp_tensor *turned_p = turned(p), *turned_grad = turned(grad);
    if (rp__dim_is(RP__DIM_LE, rows_of(a), columns_of(a))) {
        rp_tensor *k = rp_matmul(turned_grad, p), *kp = rp_matmul(k, turned_p);
        rp_tensor *sum = rp_sub(kp, turned(rp_matmul(p, k)));
        sum = rp_sub(sum, rp_matmul(rp_matmul(a, p), kp));
        return rp_add(sum, rp_matmul(rp_matmul(turned_p, p), rp_sub(turned_grad, rp_matmul(k, a))));
    }
    rp_tensor *k = rp_matmul(p, turned_grad), *pk = rp_matmul(turned_p, k);
    rp_tensor *sum = rp_sub(pk, turned(rp_matmul(k, p)));
    sum = rp_add(sum, rp_matmul(rp_matmul(rp_sub(turned_grad, rp_matmul(a, k)), p), turned_p));
    return rp_sub(sum, rp_matmul(rp_matmul(pk, p), a));
}

rp_status rp__vjp_pseudo_inverse(const rp__vjp *g) {
    g->grad_in[0] = of_pseudo_inverse(g->call->in[0], g->call->out[0], g->grad_out[0]);
    return RP_OK;
}

/* X = A^+ B */
rp_status rp__vjp_least_squares(const rp__vjp *g) {
    rp_tensor *a = g->call->in[0], *b = g->call->in[1], *grad = g->grad_out[0];
    if (!grad) return RP_OK;
    rp_tensor *p = rp_pseudo_inverse(a, 0, rp__attr_float(g->call, 0), false);
    if (g->needed[0]) g->grad_in[0] = of_pseudo_inverse(a, p, rp_matmul(grad, turned(b)));
    if (g->needed[1]) g->grad_in[1] = rp_matmul(turned(p), grad);
    return RP_OK;
}

/* The slope of exp at A along E stands above the diagonal of exp of A, E; 0, A. Its transpose is that at A^T. */
rp_status rp__vjp_exponential_of(const rp__vjp *g) {
    rp_tensor *a = turned(g->call->in[0]), *grad = g->grad_out[0];
    if (!grad || rp__tensor_is_error(a)) return rp__tensor_is_error(a) ? rp_error_status() : RP_OK;
    const rp_dim n = rows_of(a);
    rp_tensor *above[2] = {a, grad}, *below[2] = {rp_zeros_like(a), a}, *half[2];
    half[0] = rp_cat(above, 2, -1);
    half[1] = rp_cat(below, 2, -1);
    rp_tensor *both = rp_exponential_of(rp_cat(half, 2, -2));
    g->grad_in[0] = rp_narrow(rp_narrow(both, -2, 0, n), -1, n, n);
    return RP_OK;
}

/* H Y + Y H = Z: the same equation of gY gives gZ, and -(gZ Y^T + Y^T gZ) is H's. */
rp_status rp__vjp_lyapunov(const rp__vjp *g) {
    rp_tensor *y = turned(g->call->out[0]), *of_z = rp_lyapunov(g->call->in[0], g->grad_out[0]);
    if (g->needed[0]) g->grad_in[0] = rp_neg(rp_add(rp_matmul(of_z, y), rp_matmul(y, of_z)));
    g->grad_in[1] = of_z;
    return RP_OK;
}

/* A = U H. Of X = U^T gU - gH H: U gH + U Y, where H Y + Y H = X - X^T, and what of gU lies outside of U times H^-1. No difference of
   singular values is divided by, so equal ones are as good as any. */
rp_status rp__vjp_linalg_polar(const rp__vjp *g) {
    rp_tensor *u = g->call->out[0], *h = g->call->out[1], *to_u = g->grad_out[0], *to_h = g->grad_out[1];
    if (!to_u && !to_h) return RP_OK;
    rp_tensor *x = NULL, *outside = NULL, *own = NULL;
    if (to_u) {
        x = rp_matmul(turned(u), to_u);
        if (!rp__dim_is(RP__DIM_EQ, rows_of(u), columns_of(u)))
            outside = turned(rp_solve_square(h, turned(rp_sub(to_u, rp_matmul(u, x))), 2, NULL));
    }
    if (to_h) {
        x = plus(x, rp_neg(rp_matmul(to_h, h)));
        own = to_h;
    }
    own = plus(own, rp_lyapunov(h, rp_sub(x, turned(x))));
    g->grad_in[0] = plus(rp_matmul(u, own), outside);
    return RP_OK;
}

/* X X = A */
rp_status rp__vjp_linalg_matrix_sqrth(const rp__vjp *g) {
    rp_tensor *grad = g->grad_out[0];
    g->grad_in[0] = rp_lyapunov(g->call->out[0], rp_mul_scalar(rp_add(grad, turned(grad)), rp_f64(0.5)));
    return RP_OK;
}
