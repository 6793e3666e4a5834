/* See mlp.h. */
#include "mlp.h"

#include <reprise_ops.h>

#include <string.h>

rp_status mlp_init(struct mlp *m, const struct mlp_options *options) {
    const struct mlp_options none = {0}, *o = options ? options : &none;
    memset(m, 0, sizeof *m);
    const int64_t hidden = o->hidden ? o->hidden : 64;
    m->module = rp_module_new("mlp");
    rp_status status = rp_linear_add(m->module, "0", &m->first, o->in ? o->in : 10, hidden, true);
    if (!status) status = rp_linear_add(m->module, "2", &m->second, hidden, o->out ? o->out : 10, true);
    if (status) mlp_release(m);
    return status;
}

void mlp_release(struct mlp *m) {
    rp_module_release(m->module);
    memset(m, 0, sizeof *m);
}

rp_tensor *mlp_forward(const struct mlp *m, rp_tensor *x) {
    return rp_linear_layer_forward(&m->second, rp_relu(rp_linear_layer_forward(&m->first, x)));
}

void mlp_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = mlp_forward(ctx, in[0]);
}
