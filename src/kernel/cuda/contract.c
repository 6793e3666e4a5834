/* DAGs with a CONTRACT on CUDA: the texts of our products and convolutions, with the rest of the DAG in place of their store. */
#include "kernel/contract.h"

#include <string.h>

#include "kernel/cuda/contract.h"
#include "kernel/cuda/emit.h"
#include "kernel/cuda/library.h"

/* What of the class the text depends on: the template's facts in `unit`, how the dims divide in `broadcast`. */
enum { BATCH_SHIFT = 0, M_SHIFT = 8, N_SHIFT = 16, OP_SHIFT = 24 };

static bool is_wide(const rp__dag *dag, const rp__space *s) {
    const int64_t limit = INT32_MAX / 2;
    for (unsigned a = 1; a < dag->rest->n_accesses; a++) {
        const rp__space_access *x = &s->accesses[dag->rest_access[a]];
        int64_t reach = 0;
        for (unsigned d = 0; d < rp__space_dims(s); d++) {
            const int64_t stride = x->stride[d] < 0 ? -x->stride[d] : x->stride[d];
            if (s->extent[d] > limit || (stride && s->extent[d] > limit / stride)) return true;
            reach += s->extent[d] * stride;
            if (reach > limit) return true;
        }
    }
    return false;
}

static rp__library_op op_of(const rp__cuda_class *c) { return (rp__library_op)(c->broadcast >> OP_SHIFT & 0xff); }

rp_status rp__cuda_contract_class(rp__device *d, const rp__dag *dag, const rp__space *space, rp__launch_buffer *buffer,
                                  rp__launch *out, rp__cuda_class *c) {
    rp__contraction r;
    uint64_t facts = 0;
    memset(c, 0, sizeof *c);
    memset(out, 0, sizeof *out);
    RP_TRY(rp__contract_read(dag, space, &r));
    for (unsigned k = 0; k < r.o[0].ndim; k++) {
        if (r.o[0].size[k] == 0) return RP_OK;
    }
    const bool product = r.op == RP__LIB_MATMUL;
    const unsigned n =
        product ? (unsigned)r.n_batch + r.n_m + r.n_n : (unsigned)RP__CONTRACT_SPATIAL + r.call.conv.spatial;
    const uint32_t first = product ? rp__cuda_matmul_words(r.o) : rp__cuda_conv_words(r.call.conv.spatial);
    const bool wide = is_wide(dag, space);
    RP_TRY(rp__contract_words(d, dag, space, r.dim, n, first, buffer, out));
    const uint32_t words = out->n_words;
    RP_TRY(product ? rp__cuda_matmul_tiles(d, r.o, wide, &r.call, buffer, out, &facts)
                   : rp__cuda_conv_tiles(d, r.op, r.o, &r.call, buffer, out, &facts));
    out->n_words = words;
    c->template_ = RP__CUDA_CONTRACT;
    c->n_outer = (uint8_t)n;
    c->wide = product ? facts >> 26 & 1 : 1;
    c->unit = facts | (uint64_t)(words - first) << 32;
    c->broadcast = (uint64_t)r.n_batch << BATCH_SHIFT | (uint64_t)r.n_m << M_SHIFT | (uint64_t)r.n_n << N_SHIFT |
                   (uint64_t)r.op << OP_SHIFT;
    return RP_OK;
}

rp_status rp__cuda_contract_emit(const rp__dag *dag, const rp__cuda_class *c, const char *name, rp__text *out) {
    const rp__library_op op = op_of(c);
    rp__text follow = {0};
    rp_status status;
    if (op == RP__LIB_MATMUL) {
        const rp__cuda_place places[3] = {{"(rp_i64)blockIdx.z", (unsigned)(c->broadcast >> BATCH_SHIFT & 0xff)},
                                          {"m", (unsigned)(c->broadcast >> M_SHIFT & 0xff)},
                                          {"n", (unsigned)(c->broadcast >> N_SHIFT & 0xff)}};
        status = rp__cuda_emit_rest(dag->rest, places, 3, 14 + 4 * (uint32_t)(c->unit >> 8 & 0xff), c->wide, &follow);
        if (status == RP_OK) rp__cuda_matmul_source(name, c->unit, follow.data, out);
    } else {
        const rp__cuda_place places[6] = {{"n", 1}, {"g", 1}, {"m", 1}, {"at[0]", 1}, {"at[1]", 1}, {"at[2]", 1}};
        const unsigned spatial = c->n_outer - RP__CONTRACT_SPATIAL;
        status = rp__cuda_emit_rest(dag->rest, places, c->n_outer, rp__cuda_conv_words(spatial), c->wide, &follow);
        if (status == RP_OK) rp__cuda_conv_source(name, c->unit, follow.data, out);
    }
    rp__text_free(&follow);
    if (status == RP_OK && out->failed) status = RP__OOM("CUDA source of a kernel");
    return status;
}
