/* torch.optim.lr_scheduler.ReduceLROnPlateau: a decision of the host about a number that the program measured,
   outside of recorded steps. */
#include <reprise_nn.h>

#include <math.h>

#include "core/error.h"
#include "core/options.h"
#include "nn/optimizer.h"

rp_status rp_plateau_init_at(const char *site, rp_plateau *p, const rp_plateau_options *options) {
    RP__CALLED_FROM(site);
    rp_plateau_options o;
    if (!p) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_plateau_init: the plateau is NULL");
    RP_TRY(rp__options_read("rp_plateau_init", options, sizeof o, &o));
    if (o.factor >= 1) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_plateau_init: the factor must be below 1");
    *p = (rp_plateau){.options = o, .best = o.max ? -INFINITY : INFINITY};
    p->options.factor = rp__option_or(o.factor, 0.1);
    p->options.threshold = rp__option_or(o.threshold, 1e-4);
    p->options.eps = rp__option_or(o.eps, 1e-8);
    p->options.patience = o.patience ? (o.patience < 0 ? 0 : o.patience) : 10;
    return RP_OK;
}

static bool is_better(const rp_plateau *p, double metric) {
    const double threshold = p->options.threshold;
    if (p->options.max) return metric > (p->options.absolute ? p->best + threshold : p->best * (threshold + 1));
    return metric < (p->options.absolute ? p->best - threshold : p->best * (1 - threshold));
}

rp_status rp_plateau_step_at(const char *site, rp_plateau *p, rp_optimizer *opt, double metric) {
    const uint64_t failures = rp__error_count();
    RP__CALLED_FROM(site);
    if (!p || !opt) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_plateau_step: an argument is NULL");
    if (!rp__optimizer_kind(opt)) return rp_error_status();
    if (is_better(p, metric)) {
        p->best = metric;
        p->bad_epochs = 0;
    } else {
        p->bad_epochs++;
    }
    if (p->cooldown_left > 0) {
        p->cooldown_left--;
        p->bad_epochs = 0;
    }
    if (p->bad_epochs <= p->options.patience) return RP_OK;
    p->cooldown_left = p->options.cooldown;
    p->bad_epochs = 0;
    for (size_t g = 0; g < rp_optimizer_group_count(opt); g++) {
        const double old = rp_item_f64(rp_optimizer_lr(opt, g));
        const double lr = fmax(old * p->options.factor, p->options.min_lr);
        if (old - lr > p->options.eps) RP_TRY(rp_optimizer_set_lr(opt, g, lr));
    }
    return rp__status_since(failures);
}
