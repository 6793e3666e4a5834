/* What a block of a model makes on its way lives until the block ends, not until the model does: layers in a loop then need
   the memory of one. A tape keeps what a gradient needs. */
#ifndef MODELS_SCOPED_H
#define MODELS_SCOPED_H

#include <reprise.h>

/* x, made since the scope began, which ends. */
static inline rp_tensor *scope_keep(rp_scope scope, rp_tensor *x) {
    (void)rp_scope_end(scope, &x, 1);
    return x;
}

#endif
