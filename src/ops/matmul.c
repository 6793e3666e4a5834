/* Matrix products. matmul is made of views and bmm; bmm and linear are library ops on strided operands. */
#include "ops/library_ops.h"
#include "ops/private.h"
#include "ops/product.h"
#include <string.h>

#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/rules.h"
#include "ops/view.h"

static rp_status check_types(const rp__call *call, const rp_tensor *a, const rp_tensor *b) {
    if (a->dtype != b->dtype)
        return rp__op_error(call, RP_ERROR_DTYPE, "expected m1 and m2 to have the same dtype, but got: %s != %s",
                            rp_dtype_name((rp_dtype)a->dtype), rp_dtype_name((rp_dtype)b->dtype));
    /* PyTorch looks at the type when there is something to add up. */
    if (a->dtype == RP_BOOL && !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(a), 0) &&
        !rp__dim_is(RP__DIM_EQ, rp__tensor_numel(b), 0))
        return rp__call_refuse_dtype(call, RP_BOOL);
    return RP_OK;
}

static bool differ(rp_dim a, rp_dim b) { return !rp__dim_same_word(a, b) && !rp__dim_is(RP__DIM_EQ, a, b); }

static rp_status shapes_error(const rp__call *call, const rp_tensor *a, rp_dim k, rp_dim n) {
    rp_dim rows = a->ndim == 1 ? 1 : a->size[a->ndim - 2];
    for (int d = 0; d + 2 < a->ndim; d++) rows = rp__dim_apply(RP__DIM_MUL, rows, a->size[d]);
    return rp__op_error(call, RP_ERROR_SHAPE, "mat1 and mat2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                        (long long)rp__dim_hint(rows), (long long)rp__dim_hint(a->size[a->ndim - 1]),
                        (long long)rp__dim_hint(k), (long long)rp__dim_hint(n));
}

/* ---- bmm */

rp_status rp__infer_bmm(const rp__call *call, rp__meta *out) {
    const rp_tensor *a = call->in[0], *b = call->in[1];
    char t[RP__SHAPE_TEXT];
    if (a->ndim < 2 || b->ndim != a->ndim)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "batch1 and batch2 must be matrices with the same number of batch dimensions");
    RP_TRY(check_types(call, a, b));
    unsigned n = a->ndim;
    if (n == 2 && differ(a->size[1], b->size[0])) return shapes_error(call, a, b->size[0], b->size[1]);
    rp__meta_like(out, a, (rp_dtype)a->dtype);
    bool same = !differ(a->size[n - 1], b->size[n - 2]);
    for (unsigned d = 0; d + 2 < n; d++) same = same && !differ(a->size[d], b->size[d]);
    if (!same) {
        rp__meta want = *out;
        want.size[n - 2] = a->size[n - 1];
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "Expected size for first two dimensions of batch2 tensor to be: %s but got another.",
                            rp__shape_text(want.size, n - 1, t));
    }
    out->size[n - 1] = b->size[n - 1];
    return RP_OK;
}

rp_status rp__product_bmm(const rp__call *call, rp__product *p) {
    p->op = RP__LIB_MATMUL;
    if (call->out[0]->dtype == RP_BOOL) return RP_OK; /* sums of nothing */
    p->n = 3;
    p->o[0] = rp__operand_of(call->out[0]);
    p->o[1] = rp__operand_of(call->in[0]);
    p->o[2] = rp__operand_of(call->in[1]);
    p->in[2] = 1;
    return RP_OK;
}

/* ---- matmul: torch.matmul's cases by rank */

/* t broadcast to batch dims lead[0..n) before its last two. */
static rp_tensor *with_batch(const char *site, rp_tensor *t, const rp_dim *lead, size_t n) {
    rp_dim size[RP_MAX_DIMS];
    if (rp_is_error(t)) return t;
    bool same = t->ndim == n + 2;
    for (size_t d = 0; d < n; d++) {
        size[d] = lead[d];
        same = same && !differ(lead[d], t->size[d]);
    }
    if (same) return t;
    size[n] = t->size[t->ndim - 2];
    size[n + 1] = t->size[t->ndim - 1];
    return rp_expand_at(site, t, size, n + 2, NULL);
}

rp_status rp__expand_matmul(const rp__call *call) {
    rp_tensor *a = call->in[0], *b = call->in[1], *c;
    const char *site = call->site;
    unsigned na = a->ndim, nb = b->ndim;
    if (na == 0 || nb == 0)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "both arguments to matmul need to be at least 1D, but they are %uD and %uD", na, nb);
    RP_TRY(check_types(call, a, b));
    rp_dim ka = a->size[na - 1], kb = nb == 1 ? b->size[0] : b->size[nb - 2];
    if (differ(ka, kb)) {
        if (na == 1 && nb == 1)
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "inconsistent tensor size, expected tensor [%lld] and src [%lld] to have the same number of elements, "
                "but got %lld and %lld elements respectively",
                (long long)rp__dim_hint(ka), (long long)rp__dim_hint(kb), (long long)rp__dim_hint(ka),
                (long long)rp__dim_hint(kb));
        if (nb == 1)
            return rp__op_error(call, RP_ERROR_SHAPE, "size mismatch, got input (%lld), mat (%lldx%lld), vec (%lld)",
                                (long long)rp__dim_hint(a->size[na - 2]), (long long)rp__dim_hint(a->size[na - 2]),
                                (long long)rp__dim_hint(ka), (long long)rp__dim_hint(kb));
        return shapes_error(call, a, kb, b->size[nb - 1]);
    }
    if (na == 2 && nb == 2) {
        c = rp_bmm_at(site, a, b);
    } else if (na > 2 && nb == 2) { /* one product with all leading dims as rows */
        rp_dim rows = 1, size[RP_MAX_DIMS];
        for (unsigned d = 0; d + 1 < na; d++) {
            size[d] = a->size[d];
            rows = rp__dim_apply(RP__DIM_MUL, rows, a->size[d]);
        }
        size[na - 1] = b->size[1];
        const rp_dim flat[2] = {rows, ka};
        c = rp_view_at(site, rp_bmm_at(site, rp_reshape_at(site, a, flat, 2), b), size, na);
    } else {
        rp_tensor *a2 = na == 1 ? rp_unsqueeze_at(site, a, 0) : a, *b2 = nb == 1 ? rp_unsqueeze_at(site, b, 1) : b;
        if (rp_is_error(a2) || rp_is_error(b2)) return rp_error_status();
        rp_dim lead[RP_MAX_DIMS];
        size_t n = 0;
        RP_TRY(rp__broadcast(a2->size, a2->ndim - 2u, b2->size, b2->ndim - 2u, lead, &n));
        c = rp_bmm_at(site, with_batch(site, a2, lead, n), with_batch(site, b2, lead, n));
        if (na == 1) c = rp_squeeze_at(site, c, -2);
        if (nb == 1) c = rp_squeeze_at(site, c, -1);
    }
    call->out[0] = c;
    return rp_is_error(c) ? rp_error_status() : RP_OK;
}

/* ---- linear */

rp_status rp__infer_linear(const rp__call *call, rp__meta *out) {
    const rp_tensor *x = call->in[0], *w = call->in[1], *bias = call->in[2];
    if (x->ndim == 0)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "both arguments to linear need to be at least 1D, but they are 0D and %uD", w->ndim);
    if (w->ndim != 1 && w->ndim != 2)
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "weight must be 2-D (out features, in features) or 1-D, but it is %u-D", w->ndim);
    RP_TRY(check_types(call, x, w));
    if (differ(x->size[x->ndim - 1], w->size[w->ndim - 1]))
        return shapes_error(call, x, w->size[w->ndim - 1], w->ndim == 2 ? w->size[0] : 1);
    if (w->ndim == 1) { /* in features: one feature comes out, without a dim of its own */
        if (bias) return rp__op_error(call, RP_ERROR_SHAPE, "addmm: mat2 must be a matrix, got 1-D tensor");
        rp__meta_like(out, x, (rp_dtype)x->dtype);
        out->ndim--;
        return RP_OK;
    }
    if (bias) {
        RP_TRY(check_types(call, x, bias));
        if (bias->ndim != 1 || differ(bias->size[0], w->size[0])) {
            char a[RP__SHAPE_TEXT];
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "Expected bias to be 1-dimensional with %lld elements, but got bias of size %s",
                                (long long)rp__dim_hint(w->size[0]), rp__shape_text(bias->size, bias->ndim, a));
        }
    }
    rp__meta_like(out, x, (rp_dtype)x->dtype);
    out->size[out->ndim - 1] = w->size[0];
    return RP_OK;
}

rp_status rp__product_linear(const rp__call *call, rp__product *p) {
    const rp_tensor *x = call->in[0], *w = call->in[1], *out = call->out[0];
    const bool one = w->ndim == 1, row = x->ndim == 1; /* a weight of one row; an input of one row */
    p->op = RP__LIB_MATMUL;
    if (out->dtype == RP_BOOL) return RP_OK; /* sums of nothing */
    p->n = call->in[2] ? 4 : 3;
    rp__operand *y = &p->o[0], *a = &p->o[1], *b = &p->o[2];
    *y = rp__operand_of(out);
    *a = rp__operand_of(x);
    *b = rp__operand_of(w);
    if (call->in[2]) p->o[3] = rp__operand_of(call->in[2]);
    p->in[2] = 1;
    p->in[3] = 2;
    p->rows = true;
    if (one) { /* the result's dim of one feature is not there */
        p->added |= 1u << y->ndim;
        y->size[y->ndim] = 1;
        y->stride[y->ndim++] = 1;
    }
    if (row) {
        rp__operand *const both[2] = {y, a};
        for (unsigned i = 0; i < 2; i++) {
            memmove(both[i]->size + 1, both[i]->size, both[i]->ndim * sizeof *y->size);
            memmove(both[i]->stride + 1, both[i]->stride, both[i]->ndim * sizeof *y->stride);
            both[i]->size[0] = 1;
            both[i]->stride[0] = 0;
            both[i]->ndim++;
        }
        p->added = p->added << 1 | 1u;
    }
    /* weight^T, the same for every batch index */
    const unsigned n = a->ndim;
    b->ndim = (uint8_t)n;
    for (unsigned d = 0; d + 2 < n; d++) {
        b->size[d] = a->size[d];
        b->stride[d] = 0;
    }
    b->size[n - 2] = w->size[one ? 0 : 1];
    b->stride[n - 2] = w->stride[one ? 0 : 1];
    b->size[n - 1] = one ? 1 : w->size[0];
    b->stride[n - 1] = one ? 0 : w->stride[0];
    return RP_OK;
}
