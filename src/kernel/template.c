/* Which row of a device's table computes a problem (template.h). */
#include "kernel/template.h"

#include "core/dtype.h"

double rp__problem_work(const rp__problem *p) {
    const rp__operand *o = p->o;
    double work = 1;
    if (p->op == RP__LIB_MATMUL) {
        for (unsigned d = 0; d < o[0].ndim; d++) work *= (double)o[0].size[d];
        return work * (double)o[1].size[o[1].ndim - 1u];
    }
    /* Each element of the smaller side meets a window of the weight; y, x, w in the order of the op. */
    static const unsigned of[3][2] = {{0, 2}, {1, 2}, {1, 0}};
    const rp__operand *y = &o[of[p->op - RP__LIB_CONV_FORWARD][0]], *w = &o[of[p->op - RP__LIB_CONV_FORWARD][1]];
    for (unsigned d = 0; d < y->ndim; d++) work *= (double)y->size[d];
    for (unsigned d = 1; d < w->ndim; d++) work *= (double)w->size[d];
    return work;
}

rp__order rp__problem_order(const rp__problem *p) {
    static const rp__contract_form forms[] = {[RP__LIB_MATMUL] = RP__CONTRACT_PRODUCT,
                                              [RP__LIB_CONV_FORWARD] = RP__CONTRACT_CONV,
                                              [RP__LIB_CONV_INPUT] = RP__CONTRACT_CONV_INPUT,
                                              [RP__LIB_CONV_WEIGHT] = RP__CONTRACT_CONV_WEIGHT};
    if (!rp__dtype_is_float(p->o[0].dtype)) return RP__ORDER_ELSEWHERE;
    return rp__order_of(forms[p->op], rp__dtype_bytes(p->o[0].dtype) == 8);
}

static rp__order order_of(const rp__template *t, const rp__problem *p) {
    return t->order ? t->order(p) : RP__ORDER_ELSEWHERE;
}

static bool is_of(const rp__template *t, rp__library_op op) { return t->ops >> op & 1u; }

const rp__template *rp__template_pick(const rp__template *const *rows, size_t n_rows, const rp__problem *p, size_t most,
                                      rp__order order, size_t *workspace) {
    uint64_t asked = 0;
    for (;;) { /* the cheapest first: whether a row serves may take its library's time */
        size_t best = n_rows;
        double least = 0;
        for (size_t k = 0; k < n_rows; k++) {
            const rp__template *t = rows[k];
            if (asked >> k & 1u || !is_of(t, p->op)) continue;
            if (order != RP__ORDER_ELSEWHERE && (!t->follows || order_of(t, p) != order)) continue;
            const double cost = t->cost ? t->cost(p) : rp__problem_work(p);
            if (best < n_rows && cost >= least) continue;
            best = k;
            least = cost;
        }
        if (best == n_rows) return NULL;
        asked |= UINT64_C(1) << best;
        *workspace = 0;
        if (rows[best]->available && !rows[best]->available()) continue;
        if ((!rows[best]->serves || rows[best]->serves(p, workspace)) && *workspace <= most) return rows[best];
    }
}

rp__order rp__template_order(const rp__template *const *rows, size_t n_rows, const rp__problem *p) {
    size_t workspace;
    const rp__template *own = rp__template_pick(rows, n_rows, p, SIZE_MAX, RP__ORDER_ELSEWHERE, &workspace);
    const rp__order order = own ? order_of(own, p) : RP__ORDER_ELSEWHERE;
    if (order == RP__ORDER_ELSEWHERE || own->follows) return order;
    return rp__template_pick(rows, n_rows, p, SIZE_MAX, order, &workspace) ? order : RP__ORDER_ELSEWHERE;
}

const char *rp__template_name(const rp__template *const *rows, size_t n_rows, rp__library_op op) {
    for (size_t k = 0; k < n_rows; k++) {
        if (is_of(rows[k], op) && rows[k]->available && rows[k]->available()) return rows[k]->name;
    }
    return "reprise";
}
