/* CUDA's table of templates (templates.h). */
#include "kernel/cuda/templates.h"

#define ROW(name) &rp__cuda_##name##_row.row,
const rp__template *const rp__cuda_templates[RP__CUDA_TEMPLATES] = {RP__CUDA_ROWS(ROW)};
#undef ROW

const rp__cuda_product_row *rp__cuda_template_following(const rp__problem *p, rp__order order, unsigned *place) {
    size_t unused;
    const rp__template *t = rp__template_pick(rp__cuda_templates, RP__CUDA_TEMPLATES, p, SIZE_MAX, order, &unused);
    for (unsigned k = 0; t && k < RP__CUDA_TEMPLATES; k++) {
        if (rp__cuda_templates[k] != t) continue;
        *place = k;
        return rp__cuda_template_at(k);
    }
    return NULL;
}

const rp__cuda_product_row *rp__cuda_template_making(const rp__problem *p, unsigned *place) {
    const rp__cuda_product_row *row = &rp__cuda_matmul_row;
    if (p->op != RP__LIB_MATMUL || row->row.order(p) != p->order) return NULL;
    for (*place = 0; rp__cuda_templates[*place] != &row->row;) ++*place;
    return row;
}

const rp__cuda_product_row *rp__cuda_template_at(unsigned place) {
    return (const rp__cuda_product_row *)rp__cuda_templates[place]; /* its first member */
}

rp_status rp__cuda_join(rp__device *d, const rp__launch *a, const rp__launch *b, rp__launch_buffer *buffer,
                        rp__launch *out) {
    *out = (rp__launch){0};
    for (unsigned k = 0; k < RP__CUDA_TEMPLATES && !out->kernel; k++) {
        const rp__cuda_product_row *row = rp__cuda_template_at(k);
        if (row->join) RP_TRY(row->join(d, a, b, buffer, out));
    }
    return RP_OK;
}
