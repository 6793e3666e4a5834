/* Products that are made of bmm, views and numbers; dot, which is a reduction. */
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/lower.h"
#include "ops/private.h"
#include "ops/rules.h"

static rp_status need_rank(const rp__call *call, unsigned k, unsigned ndim) {
    const rp_tensor *t = call->in[k];
    if (t->ndim == ndim) return RP_OK;
    return rp__op_error(call, RP_ERROR_SHAPE, "operand %u must have %u dims, but it has %u", k, ndim, t->ndim);
}

static rp_status need_one_type(const rp__call *call) {
    for (uint32_t k = 1; k < call->n_in; k++)
        if (call->in[k] && call->in[k]->dtype != call->in[0]->dtype)
            return rp__op_error(call, RP_ERROR_DTYPE, "operands must have the same dtype, but got %s and %s",
                                rp__dtype_title((rp_dtype)call->in[0]->dtype),
                                rp__dtype_title((rp_dtype)call->in[k]->dtype));
    return RP_OK;
}

static rp_status refuse_bool(const rp__call *call) {
    return call->in[0]->dtype == RP_BOOL ? rp__call_refuse_dtype(call, RP_BOOL) : RP_OK;
}

rp_status rp__expand_mm(const rp__call *call) {
    RP_TRY(need_rank(call, 0, 2));
    RP_TRY(need_rank(call, 1, 2));
    return rp__give(call, rp_bmm(call->in[0], call->in[1]));
}

rp_status rp__expand_mv(const rp__call *call) {
    RP_TRY(need_rank(call, 0, 2));
    RP_TRY(need_rank(call, 1, 1));
    return rp__give(call, rp_matmul(call->in[0], call->in[1]));
}

/* A reduction of a product, not a product of matrices: it is as long as it gets, has one row and one column, and reads all that it
   multiplies once. */
rp_status rp__infer_dot(const rp__call *call, rp__meta *out) {
    const rp_tensor *a = call->in[0], *b = call->in[1];
    RP_TRY(refuse_bool(call));
    RP_TRY(need_rank(call, 0, 1));
    RP_TRY(need_rank(call, 1, 1));
    RP_TRY(need_one_type(call));
    if (!rp__dim_is(RP__DIM_EQ, a->size[0], b->size[0]))
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "inconsistent tensor size, expected tensor [%lld] and src [%lld] to have the same number of "
            "elements, but got %lld and %lld elements respectively",
            (long long)rp__dim_hint(a->size[0]), (long long)rp__dim_hint(b->size[0]),
            (long long)rp__dim_hint(a->size[0]), (long long)rp__dim_hint(b->size[0]));
    out->dtype = (rp_dtype)a->dtype;
    out->ndim = 0;
    return RP_OK;
}

void rp__lower_dot(rp__lower *lw) {
    rp__lw_inner(lw, 1);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_2(lw, RP__MUL, rp__lw_in(lw, 0), rp__lw_in(lw, 1))));
}

rp_status rp__expand_vdot(const rp__call *call) { return rp__give(call, rp_dot(call->in[0], call->in[1])); }

rp_status rp__expand_outer(const rp__call *call) {
    RP_TRY(need_rank(call, 0, 1));
    RP_TRY(need_rank(call, 1, 1));
    return rp__give(call, rp_mul(rp_unsqueeze(call->in[0], 1), call->in[1]));
}

rp_status rp__expand_inner(const rp__call *call) {
    rp_tensor *a = call->in[0], *b = call->in[1];
    const int64_t last_a = (int64_t)a->ndim - 1, last_b = (int64_t)b->ndim - 1;
    RP_TRY(need_one_type(call));
    if (a->ndim == 0 || b->ndim == 0) return rp__give(call, rp_mul(a, b));
    if (!rp__dim_is(RP__DIM_EQ, a->size[last_a], b->size[last_b]))
        return rp__op_error(call, RP_ERROR_SHAPE, "the size of the last dimension must match, got %lld and %lld",
                            (long long)rp__dim_hint(a->size[last_a]), (long long)rp__dim_hint(b->size[last_b]));
    return rp__give(call, rp_tensordot(a, b, &last_a, 1, &last_b, 1));
}

/* ---- beta * self + alpha * product */

/* A factor of integers is one; of bools it is whether there is something to add. */
static rp_tensor *times(rp_tensor *t, rp_scalar factor) {
    const rp_dtype d = (rp_dtype)t->dtype;
    if (rp__scalar_is_one(factor) || d == RP_BOOL || rp__tensor_is_error(t)) return t;
    return rp_mul_scalar(t, rp__dtype_is_float(d) || !rp__scalar_is_float(factor) ? factor
                                                                                  : rp_i64(rp__scalar_i64(factor)));
}

static bool is_zero(rp_scalar s) { return !rp__scalar_is_symbol(s) && rp__scalar_f64(s) == 0; }

static rp_status give_sum(const rp__call *call, rp_tensor *product) {
    const rp_scalar beta = call->attrs[0].v.scalar, alpha = call->attrs[1].v.scalar;
    if (rp__tensor_is_error(product)) return rp_error_status();
    const rp_dtype dtype = (rp_dtype)product->dtype;
    rp_tensor *self = rp_expand(call->in[0], product->size, product->ndim); /* its size must fit, whatever beta */
    rp_tensor *sum = dtype == RP_BOOL && is_zero(alpha) ? rp_zeros_like(product) : times(rp__wide(product), alpha);
    if (!is_zero(beta)) sum = rp_add(times(rp__wide(self), beta), sum);
    if (!rp__tensor_is_error(self) && !rp__tensor_is_error(sum) && (rp_dtype)sum->dtype != dtype)
        sum = rp_to_dtype(sum, dtype);
    return rp__give(call, rp__tensor_is_error(self) ? self : sum);
}

rp_status rp__expand_addmm(const rp__call *call) {
    RP_TRY(refuse_bool(call));
    RP_TRY(need_one_type(call));
    RP_TRY(need_rank(call, 1, 2));
    RP_TRY(need_rank(call, 2, 2));
    return give_sum(call, rp_bmm(call->in[1], call->in[2]));
}

rp_status rp__expand_addmv(const rp__call *call) {
    RP_TRY(need_one_type(call));
    RP_TRY(need_rank(call, 1, 2));
    RP_TRY(need_rank(call, 2, 1));
    return give_sum(call, rp_matmul(call->in[1], call->in[2]));
}

rp_status rp__expand_baddbmm(const rp__call *call) {
    RP_TRY(need_one_type(call));
    RP_TRY(need_rank(call, 1, 3));
    RP_TRY(need_rank(call, 2, 3));
    return give_sum(call, rp_bmm(call->in[1], call->in[2]));
}

/* One product whose inner dim is the batch's as well. */
rp_status rp__expand_addbmm(const rp__call *call) {
    rp_tensor *a = call->in[1], *b = call->in[2];
    RP_TRY(refuse_bool(call));
    RP_TRY(need_one_type(call));
    RP_TRY(need_rank(call, 1, 3));
    RP_TRY(need_rank(call, 2, 3));
    if (!rp__dim_is(RP__DIM_EQ, a->size[0], b->size[0]) || !rp__dim_is(RP__DIM_EQ, a->size[2], b->size[1]))
        return rp__op_error(call, RP_ERROR_SHAPE, "batch1 and batch2 must have one batch and be multipliable");
    const rp_dim k = rp__dim_apply(RP__DIM_MUL, a->size[0], a->size[2]);
    const rp_dim left[2] = {a->size[1], k}, right[2] = {k, b->size[2]};
    return give_sum(call, rp_bmm(rp_reshape(rp_transpose(a, 0, 1), left, 2), rp_reshape(b, right, 2)));
}

rp_status rp__expand_addr(const rp__call *call) {
    const rp_dtype self = (rp_dtype)call->in[0]->dtype;
    RP_TRY(need_rank(call, 1, 1));
    RP_TRY(need_rank(call, 2, 1));
    for (unsigned k = 0; k < 2 && !rp__dtype_is_float(rp__call_promote(call, 0, 3, -1)); k++)
        if (rp__scalar_is_float(call->attrs[k].v.scalar))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "For integral input tensors, argument %s must not be a floating point number.",
                                k ? "alpha" : "beta");
    rp_tensor *product = rp_outer(call->in[1], call->in[2]);
    if (!rp__tensor_is_error(product) && (rp_dtype)product->dtype != self)
        product = rp_to_dtype(product, rp__call_promote(call, 0, 3, -1));
    return give_sum(call, product);
}

/* ---- products of many */

/* The product of [first, last] where at[i * n + j] is the last factor of the left part of [i, j]. */
static rp_tensor *chain(rp_tensor *const *t, const uint16_t *at, size_t n, size_t first, size_t last) {
    if (first == last) return t[first];
    const size_t split = at[first * n + last];
    return rp_bmm(chain(t, at, n, first, split), chain(t, at, n, split + 1, last));
}

/* The order of fewest multiplications: the best of each part from those of its parts. */
static rp_status best_order(rp_tensor *const *t, size_t n, uint16_t *at, double *cost) {
    for (size_t i = 0; i < n; i++) cost[i * n + i] = 0;
    for (size_t length = 1; length < n; length++) {
        for (size_t i = 0; i + length < n; i++) {
            const size_t j = i + length;
            cost[i * n + j] = -1;
            for (size_t k = i; k < j; k++) {
                const double own = (double)rp__dim_value(t[i]->size[0]) * (double)rp__dim_value(t[k]->size[1]) *
                                   (double)rp__dim_value(t[j]->size[1]);
                const double all = cost[i * n + k] + cost[(k + 1) * n + j] + own;
                if (cost[i * n + j] >= 0 && all >= cost[i * n + j]) continue;
                cost[i * n + j] = all;
                at[i * n + j] = (uint16_t)k;
            }
        }
    }
    return RP_OK;
}

static rp_status product_of_all(const rp__call *call, bool vectors) {
    enum { FEW = 32 };
    rp_tensor *t[FEW], *y;
    uint16_t at[FEW * FEW];
    double cost[FEW * FEW];
    const size_t n = call->n_in;
    if (n == 0 || (vectors && n < 2))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "expected at least %d tensors but got %zu",
                            vectors ? 2 : 1, n);
    if (n > FEW)
        return rp__op_error(call, RP_ERROR_UNAVAILABLE, "at most %d tensors are multiplied at once, not %zu", FEW, n);
    RP_TRY(need_one_type(call));
    if (n == 1) {
        RP_TRY(need_rank(call, 0, 2));
        return rp__give(call, call->in[0]);
    }
    bool row = false, column = false;
    for (size_t k = 0; k < n; k++) {
        t[k] = call->in[k];
        if (vectors && t[k]->ndim == 1 && (k == 0 || k == n - 1)) {
            t[k] = rp_unsqueeze(t[k], k == 0 ? 0 : 1);
            *(k == 0 ? &row : &column) = true;
        } else {
            RP_TRY(need_rank(call, (unsigned)k, 2));
        }
        if (rp__tensor_is_error(t[k])) return rp_error_status();
        if (k > 0 && !rp__dim_is(RP__DIM_EQ, t[k - 1]->size[1], t[k]->size[0]))
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "tensors %zu and %zu with sizes (%lld, %lld) and (%lld, %lld) "
                                "cannot be multiplied",
                                k - 1, k, (long long)rp__dim_hint(t[k - 1]->size[0]),
                                (long long)rp__dim_hint(t[k - 1]->size[1]), (long long)rp__dim_hint(t[k]->size[0]),
                                (long long)rp__dim_hint(t[k]->size[1]));
    }
    RP_TRY(best_order(t, n, at, cost));
    y = chain(t, at, n, 0, n - 1);
    if (row) y = rp_squeeze(y, 0);
    if (column) y = rp_squeeze(y, -1);
    return rp__give(call, y);
}

rp_status rp__expand_linalg_multi_dot(const rp__call *call) { return product_of_all(call, true); }
rp_status rp__expand_chain_matmul(const rp__call *call) { return product_of_all(call, false); }

/* ---- over chosen dims */

rp_status rp__expand_tensordot(const rp__call *call) {
    rp_tensor *t[2] = {call->in[0], call->in[1]};
    const size_t n = call->attrs[0].n;
    unsigned dim[2][RP_MAX_DIMS];
    int64_t order[2][RP_MAX_DIMS];
    rp_dim flat[2][2], size[2 * RP_MAX_DIMS];
    size_t kept[2] = {0, 0}, n_size = 0;
    if (n != call->attrs[1].n || n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "both dimension lists should have same length");
    RP_TRY(need_one_type(call));
    for (size_t i = 0; i < n; i++) {
        for (unsigned s = 0; s < 2; s++) {
            RP_TRY(rp__call_dim(call, call->attrs[s].v.ints[i], t[s]->ndim, &dim[s][i]));
            if (t[s]->ndim == 0)
                return rp__op_error(call, RP_ERROR_INDEX, "a tensor without dims has none to be summed over");
            for (size_t k = 0; k < i; k++)
                if (dim[s][k] == dim[s][i])
                    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                        "dim %u appears multiple times in the list of dims", dim[s][i]);
        }
        const rp_dim a = t[0]->size[dim[0][i]], b = t[1]->size[dim[1][i]];
        const bool one_a = rp__dim_is(RP__DIM_EQ, a, 1), one_b = rp__dim_is(RP__DIM_EQ, b, 1);
        if (one_a != one_b) { /* one stands for all */
            const unsigned s = one_a ? 1 : 0;
            const int64_t over = dim[s][i];
            t[s] = rp_to_dtype(rp_sum(t[s], &over, 1, true), (rp_dtype)t[s]->dtype);
            if (rp__tensor_is_error(t[s])) return rp_error_status();
        } else if (!rp__dim_is(RP__DIM_EQ, a, b)) {
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "contracted dimensions need to match, but first has size %lld in dim %u and second has "
                                "size %lld in dim %u",
                                (long long)rp__dim_hint(a), dim[0][i], (long long)rp__dim_hint(b), dim[1][i]);
        }
    }
    for (unsigned s = 0; s < 2; s++) { /* (kept, summed) and (summed, kept) */
        size_t at = s == 0 ? 0 : n;
        flat[s][0] = flat[s][1] = 1;
        for (unsigned d = 0; d < t[s]->ndim; d++) {
            bool summed = false;
            for (size_t i = 0; i < n; i++) summed = summed || dim[s][i] == d;
            if (summed) continue;
            order[s][at++] = d;
            kept[s]++;
            flat[s][s] = rp__dim_apply(RP__DIM_MUL, flat[s][s], t[s]->size[d]);
            size[n_size++] = t[s]->size[d];
        }
        for (size_t i = 0; i < n; i++) {
            order[s][s == 0 ? kept[0] + i : i] = dim[s][i];
            flat[s][1 - s] = rp__dim_apply(RP__DIM_MUL, flat[s][1 - s], t[s]->size[dim[s][i]]);
        }
        t[s] = rp_reshape(rp_permute(t[s], order[s], t[s]->ndim), flat[s], 2);
    }
    if (n_size > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "a tensor has at most %d dimensions", RP_MAX_DIMS);
    return rp__give(call, rp_reshape(rp_bmm(t[0], t[1]), size, n_size));
}

rp_status rp__expand_kron(const rp__call *call) {
    rp_tensor *const *in = call->in;
    const unsigned n = in[0]->ndim > in[1]->ndim ? in[0]->ndim : in[1]->ndim;
    rp_dim beside[2][2 * RP_MAX_DIMS], size[RP_MAX_DIMS];
    if (2 * n > RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_UNAVAILABLE, "operands have at most %d dimensions", RP_MAX_DIMS / 2);
    for (unsigned d = 0; d < n; d++) {
        rp_dim both[2];
        for (unsigned s = 0; s < 2; s++) {
            const unsigned lead = n - in[s]->ndim;
            both[s] = d < lead ? 1 : in[s]->size[d - lead];
            beside[s][2 * d + s] = both[s];
            beside[s][2 * d + 1 - s] = 1;
        }
        size[d] = rp__dim_apply(RP__DIM_MUL, both[0], both[1]);
    }
    rp_tensor *product =
        rp_mul(rp_reshape(in[0], beside[0], (size_t)2 * n), rp_reshape(in[1], beside[1], (size_t)2 * n));
    return rp__give(call, rp_reshape(product, size, n));
}

static rp_status give_cross(const rp__call *call, unsigned dim) {
    static const uint8_t next[3][2] = {{1, 2}, {2, 0}, {0, 1}};
    rp_tensor *part[2][3], *y[3];
    for (unsigned s = 0; s < 2; s++)
        for (unsigned k = 0; k < 3; k++) part[s][k] = rp__wide(rp_slice(call->in[s], dim, k, k + 1, 1));
    for (unsigned k = 0; k < 3; k++) {
        const unsigned i = next[k][0], j = next[k][1];
        y[k] = rp_sub(rp_mul(part[0][i], part[1][j]), rp_mul(part[0][j], part[1][i]));
    }
    rp_tensor *all = rp_cat(y, 3, dim);
    if (!rp__tensor_is_error(all) && all->dtype != call->in[0]->dtype)
        all = rp_to_dtype(all, (rp_dtype)call->in[0]->dtype);
    return rp__give(call, all);
}

rp_status rp__expand_linalg_cross(const rp__call *call) {
    const rp_tensor *a = call->in[0], *b = call->in[1];
    unsigned dim;
    RP_TRY(need_one_type(call));
    if (a->ndim != b->ndim)
        return rp__op_error(call, RP_ERROR_SHAPE, "inputs must have the same number of dimensions.");
    RP_TRY(rp__call_dim(call, rp__attr_int(call, 0), a->ndim, &dim));
    if (a->ndim == 0 || !rp__dim_is(RP__DIM_EQ, a->size[dim], 3) || !rp__dim_is(RP__DIM_EQ, b->size[dim], 3))
        return rp__op_error(call, RP_ERROR_SHAPE, "inputs dimension %lld must have length 3.",
                            (long long)rp__attr_int(call, 0));
    return give_cross(call, dim);
}

rp_status rp__expand_cross(const rp__call *call) {
    const rp_tensor *a = call->in[0];
    int64_t dim = rp__attr_int(call, 0);
    if (rp__attr_is_none(&call->attrs[0])) {
        for (dim = 0; dim < a->ndim && !rp__dim_is(RP__DIM_EQ, a->size[dim], 3);) dim++;
        if (dim == a->ndim) return rp__op_error(call, RP_ERROR_SHAPE, "no dimension of size 3 in input");
    }
    return rp__give(call,
                    rp_linalg_cross(call->in[0], call->in[1], RP_OPTIONS(rp_linalg_cross_options, .dim = rp_i64(dim))));
}

rp_status rp__expand_bilinear(const rp__call *call) {
    rp_tensor *x = call->in[0], *y = call->in[1], *weight = call->in[2], *bias = call->in[3];
    rp_dim rows = 1, size[RP_MAX_DIMS];
    RP_TRY(need_one_type(call));
    RP_TRY(need_rank(call, 2, 3));
    bool fits = x->ndim > 0 && x->ndim == y->ndim;
    for (unsigned d = 0; fits && d + 1u < x->ndim; d++) {
        fits = rp__dim_is(RP__DIM_EQ, x->size[d], y->size[d]);
        size[d] = x->size[d];
        rows = rp__dim_apply(RP__DIM_MUL, rows, x->size[d]);
    }
    if (!fits || !rp__dim_is(RP__DIM_EQ, x->size[x->ndim - 1], weight->size[1]) ||
        !rp__dim_is(RP__DIM_EQ, y->size[y->ndim - 1], weight->size[2]))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "inputs of sizes (..., I1) and (..., I2) are expected beside a weight of (O, I1, I2)");
    if (bias && (bias->ndim != 1 || !rp__dim_is(RP__DIM_EQ, bias->size[0], weight->size[0])))
        return rp__op_error(call, RP_ERROR_SHAPE, "bias must have the size of the weight's dim 0");
    const rp_dim one = weight->size[1], two = weight->size[2], out = weight->size[0];
    const rp_dim left[2] = {rows, one}, right[3] = {rows, two, 1}, between[3] = {rows, out, two};
    const rp_dim flat[2] = {one, rp__dim_apply(RP__DIM_MUL, out, two)};
    rp_tensor *by_one = rp_bmm(rp_reshape(x, left, 2), rp_reshape(rp_transpose(weight, 0, 1), flat, 2));
    rp_tensor *product = rp_bmm(rp_reshape(by_one, between, 3), rp_reshape(y, right, 3));
    size[x->ndim - 1] = out;
    product = rp_reshape(product, size, x->ndim);
    return rp__give(call, bias ? rp_add(product, bias) : product);
}
