/* Losses that are compositions of ops. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "tensor/tensor.h"

rp_tensor *rp_mse_loss_at(const char *site, rp_tensor *input, rp_tensor *target, int64_t reduction) {
    rp__site_frame frame = rp__site_push(site, "mse_loss");
    rp_scope scope = rp__scope_begin();
    rp_tensor *difference = scope.id ? rp_sub(input, target) : rp__tensor_error();
    rp_tensor *loss = rp_mul(difference, difference);
    if (reduction == 1)
        loss = rp_mean(loss);
    else if (reduction == 2)
        loss = rp_sum(loss);
    else if (reduction != 0) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "mse_loss: reduction is 0 (none), 1 (mean) or 2 (sum), not %lld",
                       (long long)reduction);
        loss = rp__tensor_error();
    }
    rp__scope_end(scope, &loss, 1);
    rp__site_pop(frame);
    return loss;
}
