/* Linear(10, 64), ReLU, Linear(64, 10), with the names of a torch.nn.Sequential: "0.weight", "0.bias", "2.weight",
 * "2.bias".
 *
 * The struct stays where it is from mlp_init to mlp_release: its module knows where its tensors lie.
 */
#ifndef MODELS_MLP_H
#define MODELS_MLP_H

#include <reprise.h>
#include <reprise_nn.h>

struct mlp_options { /* zero fields: 10, 64, 10 */
    int64_t in, hidden, out;
};

struct mlp {
    rp_module *module;
    rp_linear_layer first, second;
};

/* options NULL: all defaults. On failure nothing is held, and the status says why. */
rp_status mlp_init(struct mlp *m, const struct mlp_options *options);
void mlp_release(struct mlp *m);
rp_tensor *mlp_forward(const struct mlp *m, rp_tensor *x); /* (..., in) to (..., out) */
/* The same as a function to compile; ctx: the struct mlp. */
void mlp_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

#endif
