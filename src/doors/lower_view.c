/* Views for emitters, by the map of their rule: a reshape; or a slice, an exchange of dims, new dims and an expansion; what has a dim
   from two or two from one (diagonals, windows) reads elements by places. */
#include <string.h>

#include "compile/rewrite.h"
#include "doors/lower.h"

/* Places of the result's elements in the operand, row-major. */
static rp__put_val by_places(rp__emitter *e, const rp__view *v, const rp__put_type *whole, rp__put_val in) {
    rp_dim stride[RP_MAX_DIMS], start = 0;
    rp__contiguous_strides(whole->size, whole->ndim, stride);
    for (unsigned p = 0; p < whole->ndim; p++)
        start = rp__dim_apply(RP__DIM_ADD, start, rp__dim_apply(RP__DIM_MUL, v->start[p], stride[p]));
    rp__put_val at = RP__EMIT_NONE;
    bool known = !rp__dim_is_symbol(start);
    for (unsigned d = 0; d < v->ndim && known; d++) {
        rp_dim step = 0;
        for (unsigned k = 0; k < 2; k++)
            if (v->from[d][k] >= 0)
                step = rp__dim_apply(RP__DIM_ADD, step, rp__dim_apply(RP__DIM_MUL, v->step[d], stride[v->from[d][k]]));
        known = !rp__dim_is_symbol(step);
        if (!known || rp__dim_same_word(step, 0)) continue;
        const rp__put_val by =
            RP__EMIT2(e, MUL, rp__lower_index(e, v->size[d], d, v->ndim), rp__put_int(e, RP_I64, step));
        at = at == RP__EMIT_NONE ? by : RP__EMIT2(e, ADD, at, by);
    }
    if (!known) {
        rp__put_lacks(e, "places depend on a size that is not known");
        return RP__EMIT_NONE;
    }
    const rp__put_val first = rp__put_int(e, RP_I64, start);
    at = at == RP__EMIT_NONE ? first : RP__EMIT2(e, ADD, at, first);
    return rp__put_expand(e, rp__lower_at(e, in, at), v->size, v->ndim);
}

/* Each dim of the result comes from one of the operand at most, and none of these gives two. */
static bool is_plain(const rp__view *v) {
    uint32_t used = 0;
    for (unsigned d = 0; d < v->ndim; d++) {
        const int p = v->from[d][0];
        if (v->from[d][1] >= 0) return false;
        if (p < 0) continue;
        if (used >> p & 1u) return false;
        used |= 1u << p;
    }
    return true;
}

static rp__put_val by_steps(rp__emitter *e, const rp__view *v, const rp__put_type *whole, rp__put_val in) {
    rp_dim start[RP_MAX_DIMS], size[RP_MAX_DIMS], kept[RP_MAX_DIMS];
    int64_t step[RP_MAX_DIMS], order[RP_MAX_DIMS], place[RP_MAX_DIMS];
    for (unsigned p = 0; p < whole->ndim; p++) {
        start[p] = v->start[p];
        size[p] = 1;
        step[p] = 1;
        place[p] = -1;
    }
    for (unsigned d = 0; d < v->ndim; d++) {
        const int p = v->from[d][0];
        if (p < 0) continue;
        size[p] = v->size[d];
        step[p] = v->step[d];
        place[p] = (int64_t)d;
    }
    rp__put_val x = rp__put_slice(e, in, start, size, step);
    unsigned n = 0, n_kept = 0; /* dims that stay, in the order of the result; then those that go, of size 1 */
    for (unsigned d = 0; d < v->ndim; d++)
        if (v->from[d][0] >= 0) order[n++] = v->from[d][0];
    for (unsigned p = 0; p < whole->ndim; p++)
        if (place[p] < 0) order[n++] = (int64_t)p;
    x = rp__put_permute(e, x, order);
    for (unsigned d = 0; d < v->ndim; d++) kept[n_kept++] = v->from[d][0] < 0 ? 1 : v->size[d];
    x = rp__put_reshape(e, x, kept, n_kept);
    return rp__put_expand(e, x, v->size, v->ndim);
}

rp__put_val rp__lower_view(rp__emitter *e, const rp__ir_node *n, rp__put_val in) {
    rp__view v;
    if (rp__ir_view_map(e->ir, n, n->in[0], &v) != RP_OK) {
        rp__put_lacks(e, "%s", rp_error_message());
        (void)rp_error_take();
        return RP__EMIT_NONE;
    }
    const rp__put_type whole = e->types[in];
    if (v.folds) return rp__put_reshape(e, in, v.size, v.ndim);
    return is_plain(&v) ? by_steps(e, &v, &whole, in) : by_places(e, &v, &whole, in);
}
