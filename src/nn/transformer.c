/* torch.nn.Transformer: an encoder and a decoder of attention.c, both with a norm behind, in one module. */
#include <reprise_nn.h>

#include "core/error.h"
#include "nn/layer.h"
#include "tensor/tensor.h"

#include <string.h>

static rp_status fill(rp_module *child, rp_transformer *t, rp_transformer_layer *encoder, size_t n_encoder,
                      rp_transformer_layer *decoder, size_t n_decoder, int64_t d_model, int64_t nhead,
                      const rp_transformer_options *options) {
    RP_TRY(
        rp_transformer_encoder_add(child, "encoder", &t->encoder, encoder, n_encoder, d_model, nhead, true, options));
    RP_TRY(
        rp_transformer_decoder_add(child, "decoder", &t->decoder, decoder, n_decoder, d_model, nhead, true, options));
    size_t n;
    rp_tensor *const *parameters = rp_module_parameters(child, &n);
    if (!parameters) return rp_error_status();
    for (size_t i = 0; i < n; i++) /* matrices */
        if (parameters[i]->ndim > 1) RP_TRY(rp_init_xavier_uniform(parameters[i], 1.0));
    return RP_OK;
}

rp_status rp_transformer_add_at(const char *site, rp_module *m, const char *name, rp_transformer *t,
                                rp_transformer_layer *encoder, size_t n_encoder, rp_transformer_layer *decoder,
                                size_t n_decoder, int64_t d_model, int64_t nhead,
                                const rp_transformer_options *options) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__layer_need(t, "transformer"));
    memset(t, 0, sizeof *t);
    rp_module *child;
    RP_TRY(rp__module_adopt(m, name, NULL, 0, &child));
    t->module = child;
    const rp_status status = fill(child, t, encoder, n_encoder, decoder, n_decoder, d_model, nhead, options);
    if (status == RP_OK) return RP_OK;
    rp__module_undo(child);
    memset(t, 0, sizeof *t);
    return status;
}

rp_tensor *rp_transformer_forward_at(const char *site, const rp_transformer *t, rp_tensor *src, rp_tensor *tgt,
                                     const rp_attention_masks *src_masks, const rp_attention_masks *tgt_masks,
                                     const rp_attention_masks *memory_masks) {
    if (!t) return rp__no_layer(site, "transformer");
    rp__site_frame frame = rp__site_push(site, "transformer");
    rp_scope scope = rp__scope_begin();
    rp_tensor *out = rp__tensor_error(), *in[] = {src, tgt};
    rp__hooks_before(t->module, in, 2);
    if (scope.id)
        out = rp_transformer_decoder_forward(
            &t->decoder, in[1], rp_transformer_encoder_forward(&t->encoder, in[0], src_masks), tgt_masks, memory_masks);
    out = rp__hooks_result(t->module, in, 2, out);
    rp__scope_end(scope, &out, 1);
    rp__site_pop(frame);
    return out;
}
