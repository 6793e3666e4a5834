/* Derivatives of random.c. */
#include "ops/grad.h"
#include "ops/infer.h"

#include "ops/private.h"

rp_status rp__vjp_native_dropout(const rp__vjp *g) {
    const double keep = rp__dropout_keeps(g->call->attrs);
    if (!g->grad_out[0]) return RP_OK;
    g->grad_in[0] = rp_mul_scalar(rp_mul(g->grad_out[0], g->call->out[1]), rp_f64(keep > 0 ? 1 / keep : 0.0));
    return RP_OK;
}
