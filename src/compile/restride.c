/* Restride: arguments that lie in memory as a call brings them, not as they were traced.
   Requires  a functional graph without symbols; tensors of the traced sizes; arguments that loops and convolutions alone read
             (rp__layout_free_args).
   Keeps     every value, and strides of all other values but of views. */
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"

rp_status rp__restride(rp_ir *ir, const bool *moved, rp_tensor *const *in, rp_ir **out) {
    bool any = false;
    for (uint32_t k = 0; k < ir->body.n_args && !any; k++)
        any = moved[k] && !rp__ir_lies_as(ir, ir->body.args[k], in[k]);
    if (!any) {
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    rp__rewrite w;
    rp_status status = rp__rewrite_begin(&w, ir);
    for (uint32_t k = 0; k < ir->body.n_args && status == RP_OK; k++)
        if (moved[k])
            memcpy(w.dst->values[w.map[ir->body.args[k]]].stride, in[k]->stride, in[k]->ndim * sizeof in[k]->stride[0]);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++)
        if (!ir->nodes[ir->body.nodes[k]].dead) status = rp__rewrite_copy(&w, &w.dst->body, ir->body.nodes[k]);
    if (status == RP_OK) status = rp__rewrite_results(&w, &ir->body, &w.dst->body);
    return rp__rewrite_end(&w, status, "restride", out);
}
