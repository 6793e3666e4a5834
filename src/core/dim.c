/* Sizes: arithmetic and relations over values and symbols, and the shape rules that everything shares. Knows nothing of how
   a trace keeps its symbols: those calls go through the hooks. */
#include "core/dim.h"

#include <inttypes.h>
#include <stdio.h>

static const rp__dim_hooks *hooks; /* set once, at load of floor 5, before any symbol exists */

void rp__dim_install(const rp__dim_hooks *installed) { hooks = installed; }
const rp__dim_hooks *rp__dim_installed(void) { return hooks; }

/* A word below the limit that no trace gave out: an argument of the caller that is no size. */
static int64_t no_size(rp_dim d) {
    (void)rp__fail(
        RP_ERROR_SHAPE,
        "%" PRId64 " is too small for a size or an index: or is it a symbolic size of a trace that has ended?", d);
    return 0;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

rp_dim rp__dim_apply(rp__dim_op op, rp_dim a, rp_dim b) {
    if (rp__dim_is_symbol(a) || rp__dim_is_symbol(b))
        return hooks ? hooks->apply(op, a, b) : no_size(rp__dim_is_symbol(a) ? a : b);
    int64_t out = 0;
    bool fits = true;
    switch (op) {
    case RP__DIM_ADD: fits = rp__add_i64(a, b, &out); break;
    case RP__DIM_SUB: fits = !__builtin_sub_overflow(a, b, &out); break;
    case RP__DIM_MUL: fits = rp__mul_i64(a, b, &out); break;
    case RP__DIM_FLOORDIV:
    case RP__DIM_MOD:
        fits = !rp__dim_same_word(b, 0) && !(rp__dim_same_word(a, INT64_MIN) && rp__dim_same_word(b, -1));
        if (fits) out = op == RP__DIM_MOD ? a - floor_div(a, b) * b : floor_div(a, b);
        break;
    case RP__DIM_MAX: out = rp__dim_number(a) > rp__dim_number(b) ? a : b; break;
    case RP__DIM_MIN: out = rp__dim_number(a) < rp__dim_number(b) ? a : b; break;
    }
    /* Results below the limit would read as symbols. */
    if (!fits || rp__dim_is_symbol(out)) {
        rp__fail(RP_ERROR_SHAPE, "size arithmetic overflows: %" PRId64 " %s %" PRId64, a,
                 (const char *const[]){"+", "-", "*", "//", "%", "max", "min"}[op], b);
        return 0;
    }
    return out;
}

bool rp__dim_is(rp__dim_relation relation, rp_dim a, rp_dim b) {
    if (rp__dim_is_symbol(a) || rp__dim_is_symbol(b)) {
        if (rp__dim_same_word(a, b)) /* the same symbol: no guard needed */
            return relation == RP__DIM_EQ || relation == RP__DIM_LE;
        return hooks ? hooks->is(relation, a, b) : no_size(rp__dim_is_symbol(a) ? a : b) != 0;
    }
    switch (relation) {
    case RP__DIM_EQ: return rp__dim_same_word(a, b);
    case RP__DIM_NE: return !rp__dim_same_word(a, b);
    case RP__DIM_LT: return rp__dim_number(a) < rp__dim_number(b);
    case RP__DIM_LE: return rp__dim_number(a) <= rp__dim_number(b);
    }
    return false;
}

bool rp__dim_divides(rp_dim a, rp_dim b) {
    if (rp__dim_same_word(a, 0)) return false;
    if (rp__dim_same_word(a, b) || rp__dim_same_word(a, 1)) return true;
    if (rp__dim_is_symbol(a) || rp__dim_is_symbol(b)) return hooks && hooks->divides(a, b);
    return rp__dim_same_word(a, -1) || rp__dim_same_word(b % a, 0);
}

bool rp__dim_before(rp_dim a, rp_dim b) {
    const bool symbolic = rp__dim_is_symbol(a) || rp__dim_is_symbol(b);
    if (!symbolic || rp__dim_same_word(a, 0) || rp__dim_same_word(b, 0)) return rp__dim_is(RP__DIM_LT, a, b);
    if (rp__dim_same_word(a, b)) return false;
    return rp__dim_divides(a, b) || (!rp__dim_divides(b, a) && rp__dim_is(RP__DIM_LT, a, b));
}

bool rp__dim_known(rp_dim d) { return !rp__dim_is_symbol(d) || (hooks && hooks->known(d)); }

int64_t rp__dim_hint(rp_dim d) { return !rp__dim_is_symbol(d) ? d : hooks ? hooks->hint(d) : no_size(d); }
int64_t rp__dim_value(rp_dim d) { return !rp__dim_is_symbol(d) ? d : hooks ? hooks->specialise(d) : no_size(d); }

rp_dim rp__numel(const rp_dim *size, size_t ndim) {
    rp_dim n = 1;
    bool overflow = false, symbolic = false;
    for (size_t i = 0; i < ndim; i++) {
        if (rp__dim_same_word(size[i], 0)) /* an empty tensor is empty whatever its other sizes are */
            return 0;
        symbolic = symbolic || rp__dim_is_symbol(size[i]);
    }
    for (size_t i = 0; i < ndim; i++) {
        if (symbolic)
            n = rp__dim_apply(RP__DIM_MUL, n, size[i]);
        else
            overflow = !rp__mul_i64(n, size[i], &n) || overflow;
    }
    if (overflow) {
        char text[RP__SHAPE_TEXT];
        rp__fail(RP_ERROR_SHAPE, "the number of elements of size %s overflows", rp__shape_text(size, ndim, text));
        return 0;
    }
    return n;
}

void rp__contiguous_strides(const rp_dim *size, size_t ndim, rp_dim *stride) {
    rp_dim next = 1;
    for (size_t i = ndim; i-- > 0;) {
        stride[i] = next;
        /* PyTorch: strides of empty tensors count sizes as at least 1. Of a symbol that is asked: a guard. */
        bool counts =
            i > 0 && (rp__dim_is_symbol(size[i]) ? rp__dim_is(RP__DIM_LT, 0, size[i]) : !rp__dim_same_word(size[i], 0));
        rp_dim factor = counts ? size[i] : 1;
        int64_t product;
        if (rp__dim_is_symbol(next) || rp__dim_is_symbol(factor))
            next = rp__dim_apply(RP__DIM_MUL, next, factor);
        else if (rp__mul_i64(next, factor, &product) && product <= RP__REACH_LIMIT)
            next = product;
        else
            next = 0; /* only without elements: there is no memory for the others */
    }
}

rp_status rp__broadcast(const rp_dim *a, size_t a_ndim, const rp_dim *b, size_t b_ndim, rp_dim *out, size_t *out_ndim) {
    size_t ndim = a_ndim > b_ndim ? a_ndim : b_ndim;
    for (size_t k = 1; k <= ndim; k++) {
        rp_dim x = k <= a_ndim ? a[a_ndim - k] : 1, y = k <= b_ndim ? b[b_ndim - k] : 1;
        if (rp__dim_same_word(x, 1)) /* before y is asked: a symbol need not be told from 1 */
            out[ndim - k] = y;
        else if (rp__dim_same_word(x, y) || rp__dim_is(RP__DIM_EQ, y, 1))
            out[ndim - k] = x;
        else if (rp__dim_is(RP__DIM_EQ, x, 1))
            out[ndim - k] = y;
        else if (rp__dim_is(RP__DIM_EQ, x, y))
            out[ndim - k] = rp__dim_is_symbol(x) ? y : x; /* of equals, prefer the value */
        else {
            char at[RP__SHAPE_TEXT], bt[RP__SHAPE_TEXT];
            return rp__fail(RP_ERROR_SHAPE,
                            "The size of tensor a (%" PRId64 ") must match the size of tensor b (%" PRId64
                            ") at non-singleton dimension %zu: sizes %s and %s do not broadcast",
                            rp__dim_hint(x), rp__dim_hint(y), ndim - k, rp__shape_text(a, a_ndim, at),
                            rp__shape_text(b, b_ndim, bt));
        }
    }
    *out_ndim = ndim;
    return RP_OK;
}

rp_status rp__wrap_dim(int64_t dim, size_t ndim, size_t *out) {
    int64_t range = ndim ? (int64_t)ndim : 1;
    if (dim < -range || dim >= range) {
        *out = 0;
        return rp__fail(RP_ERROR_INDEX,
                        "Dimension out of range (expected to be in range of [%" PRId64 ", %" PRId64
                        "], but got %" PRId64 ")",
                        -range, range - 1, dim);
    }
    *out = (size_t)(dim < 0 ? dim + range : dim);
    return RP_OK;
}

const char *rp__shape_text(const rp_dim *size, size_t ndim, char buf[RP__SHAPE_TEXT]) {
    size_t used = 0;
    buf[used++] = '(';
    for (size_t i = 0; i < ndim && used < RP__SHAPE_TEXT - 32; i++) {
        const char *comma = i ? ", " : "";
        int n = rp__dim_is_symbol(size[i])
                    ? snprintf(buf + used, 32, "%ss%" PRIu64, comma, (uint64_t)size[i] - (uint64_t)INT64_MIN)
                    : snprintf(buf + used, 32, "%s%" PRId64, comma, size[i]);
        used += (size_t)n;
    }
    buf[used++] = ')';
    buf[used] = 0;
    return buf;
}
