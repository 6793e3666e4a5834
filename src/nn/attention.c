/* Attention as layers: several heads with their projections, and the transformer's layers and stacks of them. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/options.h"
#include "nn/layer.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------- several heads */

static rp_status xavier_new(rp_tensor **place, int64_t rows, int64_t columns) {
    *place = rp__parameter_new(RP_DIMS(rows, columns), RP_DTYPE_NONE);
    return *place ? rp_init_xavier_uniform(*place, 1.0) : rp_error_status();
}

static rp_status heads_fill(rp_multihead_attention_layer *l, int64_t embed_dim, int64_t num_heads,
                            const rp_multihead_attention_options *o) {
    static const char what[] = "multi-head attention layer";
    const int64_t kdim = o->kdim ? o->kdim : embed_dim, vdim = o->vdim ? o->vdim : embed_dim;
    RP_TRY(rp__layer_positive(what, "embed_dim", embed_dim));
    RP_TRY(rp__layer_positive(what, "num_heads", num_heads));
    RP_TRY(rp__layer_positive(what, "kdim", kdim));
    RP_TRY(rp__layer_positive(what, "vdim", vdim));
    RP_TRY(rp__layer_probability(what, o->dropout));
    if (embed_dim % num_heads || embed_dim > INT64_MAX / 3)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: embed_dim %lld must be divisible by num_heads %lld", what,
                        (long long)embed_dim, (long long)num_heads);
    l->embed_dim = embed_dim;
    l->num_heads = num_heads;
    l->dropout = o->dropout;
    l->add_zero_attn = o->add_zero_attn;
    l->batch_first = o->batch_first;
    if (kdim == embed_dim && vdim == embed_dim) {
        RP_TRY(xavier_new(&l->in_proj_weight, 3 * embed_dim, embed_dim));
    } else {
        RP_TRY(xavier_new(&l->q_proj_weight, embed_dim, embed_dim));
        RP_TRY(xavier_new(&l->k_proj_weight, embed_dim, kdim));
        RP_TRY(xavier_new(&l->v_proj_weight, embed_dim, vdim));
    }
    if (!o->no_bias) {
        l->in_proj_bias = rp__parameter_new(RP_DIMS(3 * embed_dim), RP_DTYPE_NONE);
        if (!l->in_proj_bias) return rp_error_status();
        RP_TRY(rp_init_constant(l->in_proj_bias, 0.0));
    }
    if (!o->add_bias_kv) return RP_OK;
    rp_tensor **const both[2] = {&l->bias_k, &l->bias_v};
    for (int i = 0; i < 2; i++) {
        *both[i] = rp__parameter_new(RP_DIMS(1, 1, embed_dim), RP_DTYPE_NONE);
        if (!*both[i]) return rp_error_status();
        RP_TRY(rp_init_xavier_normal(*both[i], 1.0));
    }
    return RP_OK;
}

rp_status rp_multihead_attention_add_at(const char *site, rp_module *m, const char *name,
                                        rp_multihead_attention_layer *l, int64_t embed_dim, int64_t num_heads,
                                        const rp_multihead_attention_options *options) {
    RP__CALLED_FROM(site);
    rp_multihead_attention_options o;
    RP_TRY(rp__layer_need(l, "multi-head attention layer"));
    memset(l, 0, sizeof *l);
    RP_TRY(rp__options_read("multi-head attention layer", options, sizeof o, &o));
    rp_module *child = NULL;
    rp_status status = heads_fill(l, embed_dim, num_heads, &o);
    if (status == RP_OK) {
        status = RP__ADOPT(m, name, &child, {"in_proj_weight", &l->in_proj_weight, false},
                           {"q_proj_weight", &l->q_proj_weight, false}, {"k_proj_weight", &l->k_proj_weight, false},
                           {"v_proj_weight", &l->v_proj_weight, false}, {"in_proj_bias", &l->in_proj_bias, false},
                           {"bias_k", &l->bias_k, false}, {"bias_v", &l->bias_v, false});
    } else {
        rp_tensor **const all[] = {&l->in_proj_weight, &l->q_proj_weight, &l->k_proj_weight, &l->v_proj_weight,
                                   &l->in_proj_bias,   &l->bias_k,        &l->bias_v};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) rp__parameter_release(all[i]);
    }
    RP_TRY(status);
    status = rp_linear_add(child, "out_proj", &l->out_proj, embed_dim, embed_dim, !o.no_bias);
    if (status == RP_OK && l->out_proj.bias) status = rp_init_constant(l->out_proj.bias, 0.0);
    if (status != RP_OK) {
        rp__module_undo(child);
        memset(l, 0, sizeof *l);
        return status;
    }
    l->module = child;
    return RP_OK;
}

/* Rows [from, to) x embed_dim of the projection; weights of their own come whole. */
static rp_tensor *projected(const rp_multihead_attention_layer *l, rp_tensor *x, rp_tensor *own, int from, int to) {
    const int64_t e = l->embed_dim;
    rp_tensor *w = own ? own : rp_slice(l->in_proj_weight, 0, from * e, to * e);
    return rp_linear(x, w, l->in_proj_bias ? rp_slice(l->in_proj_bias, 0, from * e, to * e) : NULL);
}

/* Queries, keys and values from one product where they are of one tensor. */
static void project(const rp_multihead_attention_layer *l, rp_tensor *const in[3], rp_tensor *out[3]) {
    const int64_t e = l->embed_dim;
    int done = 0;
    if (l->in_proj_weight && in[1] == in[2]) {
        const int first = in[0] == in[1] ? 0 : 1;
        rp_tensor *joined = projected(l, in[2], NULL, first, 3);
        for (int i = first; i < 3; i++) out[i] = rp_slice(joined, -1, (i - first) * e, (i - first + 1) * e);
        done = first == 0 ? 3 : 2;
    }
    if (done == 3) return;
    out[0] = projected(l, in[0], l->q_proj_weight, 0, 1);
    if (done == 2) return;
    out[1] = projected(l, in[1], l->k_proj_weight, 1, 2);
    out[2] = projected(l, in[2], l->v_proj_weight, 2, 3);
}

/* (L, N, E) or, batch_first, (N, L, E) as (N, heads, L, E / heads), and back. */
static rp_tensor *to_heads(const rp_multihead_attention_layer *l, rp_tensor *x) {
    const int64_t size[2] = {l->num_heads, l->embed_dim / l->num_heads};
    static const int64_t batch_first[4] = {0, 2, 1, 3}, batch_second[4] = {1, 2, 0, 3};
    return rp_permute(rp_unflatten(x, -1, size, 2), l->batch_first ? batch_first : batch_second, 4);
}
static rp_tensor *from_heads(const rp_multihead_attention_layer *l, rp_tensor *x) {
    static const int64_t batch_first[4] = {0, 2, 1, 3}, batch_second[4] = {2, 0, 1, 3};
    return rp_flatten(rp_permute(x, l->batch_first ? batch_first : batch_second, 4), -2, -1);
}

/* One more key and value that every query sees: of a sequence x (L, N, E) its bias, of heads zeros. */
static rp_tensor *with_bias(const rp_multihead_attention_layer *l, rp_tensor *x, rp_tensor *bias) {
    if (!bias || rp__tensor_is_error(x)) return x;
    const int64_t sequence = l->batch_first ? 1 : 0;
    rp_dim size[3] = {x->size[0], x->size[1], x->size[2]};
    size[sequence] = 1;
    rp_tensor *const both[2] = {x, rp_expand(bias, size, 3)};
    return rp_cat(both, 2, sequence);
}
static rp_tensor *with_zero(rp_tensor *x) { return rp_constant_pad_nd(x, RP_DIMS(0, 0, 0, 1), rp_i64(0)); }

typedef struct masks {
    rp_tensor *keep; /* bool: what is seen; NULL: everything */
    rp_tensor *bias; /* added to the scores; NULL: nothing */
} masks;

/* mask: of a size that broadcasts to (N, heads, L, S). */
static void mask_add(masks *all, rp_tensor *mask) {
    if (rp_dtype_of(mask) == RP_BOOL) {
        rp_tensor *keep = rp_logical_not(mask);
        all->keep = all->keep ? rp_logical_and(all->keep, keep) : keep;
    } else {
        all->bias = all->bias ? rp_add(all->bias, mask) : mask;
    }
}

static rp_status masks_read(const rp_multihead_attention_layer *l, const rp_attention_masks *given, const rp_tensor *q,
                            const rp_tensor *k, masks *out) {
    const uint64_t failures = rp__error_count();
    const rp_dim n = q->size[0], rows = q->size[2], columns = k->size[2];
    *out = (masks){NULL, NULL};
    if (given->attn_mask) {
        rp_tensor *mask = given->attn_mask;
        RP_TRY(rp__tensor_check(mask, "multi-head attention layer: attn_mask"));
        if (mask->ndim == 3) {
            const rp_dim size[4] = {n, l->num_heads, rows, columns};
            mask = rp_reshape(mask, size, 4);
        } else if (mask->ndim != 2) {
            return rp__fail(RP_ERROR_SHAPE, "multi-head attention layer: attn_mask has 2 or 3 dims, not %u",
                            mask->ndim);
        }
        mask_add(out, mask);
    } else if (given->is_causal) {
        const rp_arange_options beside = {.struct_size = sizeof beside, .dtype = RP_I64, .device = &q->device};
        rp_tensor *at = rp_unsqueeze(rp_arange(rp_i64(0), rp__scalar_dim(rows), rp_i64(1), &beside), 1);
        mask_add(out, rp_gt(rp_arange(rp_i64(0), rp__scalar_dim(columns), rp_i64(1), &beside), at));
    }
    if (given->key_padding_mask) {
        const rp_dim size[4] = {n, 1, 1, columns};
        RP_TRY(rp__tensor_check(given->key_padding_mask, "multi-head attention layer: key_padding_mask"));
        mask_add(out, rp_reshape(given->key_padding_mask, size, 4));
    }
    return rp__status_since(failures);
}

/* The same as one mask of scaled_dot_product_attention; `more` keys behind the masked ones are seen by all. */
static rp_tensor *mask_of(const masks *m, unsigned more) {
    const int64_t pad[2] = {0, more};
    rp_tensor *keep = m->keep, *bias = m->bias;
    if (keep && more) keep = rp_constant_pad_nd(keep, pad, 2, rp_i64(1));
    if (bias && more) bias = rp_constant_pad_nd(bias, pad, 2, rp_i64(0));
    return !bias ? keep : !keep ? bias : rp_masked_fill_scalar(bias, rp_logical_not(keep), rp_f64(-INFINITY));
}

/* As scaled_dot_product_attention, with the weights. */
static rp_tensor *weighted(rp_tensor *q, rp_tensor *k, rp_tensor *v, rp_tensor *mask, double p, rp_tensor **weights) {
    if (rp__tensor_is_error(q)) return q;
    const rp_scalar features = rp__scalar_dim(q->size[3]);
    const rp_scalar scale = rp__num_apply(RP__NUM_DIV, rp_f64(1), rp__num_apply(RP__NUM_SQRT, features, features));
    rp_tensor *scores = rp_matmul(rp_mul_scalar(q, scale), rp_transpose(k, -2, -1));
    if (mask && rp_dtype_of(mask) == RP_BOOL)
        scores = rp_masked_fill_scalar(scores, rp_logical_not(mask), rp_f64(-INFINITY));
    else if (mask)
        scores = rp_add(scores, mask);
    *weights = rp_dropout(rp_softmax(scores, -1), p, true);
    return rp_matmul(*weights, v);
}

static rp_tensor *heads_forward(const rp_multihead_attention_layer *l, rp_tensor *const in[3],
                                const rp_attention_masks *given, rp_tensor **weights) {
    static const char *const names[3] = {"query", "key", "value"};
    rp_tensor *x[3], *y[3] = {NULL};
    const bool alone = in[0] && rp_ndim(in[0]) == 2;
    const int64_t batch = l->batch_first ? 0 : 1;
    for (int i = 0; i < 3; i++) {
        if (rp__tensor_check(in[i], names[i]) != RP_OK) return rp__tensor_error();
        if (in[i]->ndim != (alone ? 2 : 3)) {
            (void)rp__fail(
                RP_ERROR_SHAPE,
                "multi-head attention layer: query, key and value have 3 dims, or 2 without a batch; %s has %u",
                names[i], in[i]->ndim);
            return rp__tensor_error();
        }
        x[i] = in[i];
        for (int k = 0; k < i; k++)
            if (in[k] == in[i]) x[i] = x[k];
        if (alone && x[i] == in[i]) x[i] = rp_unsqueeze(in[i], batch);
    }
    project(l, x, y);
    unsigned more = l->bias_k ? 1 : 0;
    rp_tensor *q = to_heads(l, y[0]), *k = to_heads(l, with_bias(l, y[1], l->bias_k)),
              *v = to_heads(l, with_bias(l, y[2], l->bias_v));
    if (l->add_zero_attn) {
        k = with_zero(k);
        v = with_zero(v);
        more++;
    }
    masks m;
    if (rp__tensor_is_error(q) || rp__tensor_is_error(k) || rp__tensor_is_error(v)) return rp__tensor_error();
    const double p = rp_module_training(l->module) ? l->dropout : 0;
    const bool causal = given->is_causal && !given->attn_mask && !given->key_padding_mask && !more && !weights;
    const rp_attention_masks none = {.struct_size = sizeof none};
    rp_tensor *keys = more ? rp_slice(k, 2, 0, rp__dim_apply(RP__DIM_SUB, k->size[2], more)) : k;
    if (rp__tensor_is_error(keys) || masks_read(l, causal ? &none : given, q, keys, &m) != RP_OK)
        return rp__tensor_error();
    rp_tensor *mask = mask_of(&m, more), *out;
    if (weights) {
        out = weighted(q, k, v, mask, p, weights);
        if (!given->head_weights) *weights = rp_mean(*weights, RP_DIMS(1));
        if (alone) *weights = rp_squeeze(*weights, 0);
    } else {
        out = rp_scaled_dot_product_attention(q, k, v, mask, p, causal);
    }
    out = rp_linear_layer_forward(&l->out_proj, from_heads(l, out));
    return alone ? rp_squeeze(out, batch) : out;
}

rp_tensor *rp_multihead_attention_layer_forward_at(const char *site, const rp_multihead_attention_layer *l,
                                                   rp_tensor *query, rp_tensor *key, rp_tensor *value,
                                                   const rp_attention_masks *masks_given, rp_tensor **weights) {
    if (weights) *weights = rp__tensor_error();
    if (!l) return rp__no_layer(site, "multi-head attention layer");
    rp__site_frame frame = rp__site_push(site, "multihead_attention");
    rp_scope scope = rp__scope_begin();
    rp_attention_masks given;
    rp_tensor *in[3] = {query, key, value};
    rp_tensor *kept[2] = {rp__tensor_error(), rp__tensor_error()};
    rp__hooks_before(l->module, in, 3);
    if (scope.id && rp__options_read("multi-head attention layer", masks_given, sizeof given, &given) == RP_OK)
        kept[0] = heads_forward(l, in, &given, weights ? &kept[1] : NULL);
    rp__hooks_after(l->module, in, 3, kept, weights ? 2 : 1);
    if (weights) *weights = kept[1];
    rp__scope_end(scope, kept, weights ? 2 : 1);
    rp__site_pop(frame);
    return kept[0];
}

/* ---------------------------------------------------------------- the transformer's layers */

static rp_status norm_add(rp_module *m, const char *name, rp_layer_norm_layer *l, int64_t features, double eps,
                          bool bias) {
    RP_TRY(rp_layer_norm_layer_init(l, &features, 1, eps, true, RP_DTYPE_NONE));
    if (!bias) rp__parameter_release(&l->bias);
    return RP__ADOPT_LAYER(m, name, l, {"weight", &l->weight, false}, {"bias", &l->bias, false});
}

static rp_status layer_fill(rp_module *m, rp_transformer_layer *l, int64_t d, int64_t nhead,
                            const rp_transformer_options *o) {
    const double eps = rp__option_or(o->layer_norm_eps, 1e-5);
    const int64_t hidden = o->dim_feedforward ? o->dim_feedforward : 2048;
    const rp_multihead_attention_options heads = {
        .struct_size = sizeof heads, .dropout = l->dropout, .no_bias = o->no_bias, .batch_first = o->batch_first};
    RP_TRY(rp_multihead_attention_add(m, "self_attn", &l->self_attn, d, nhead, &heads));
    if (l->decodes) RP_TRY(rp_multihead_attention_add(m, "multihead_attn", &l->multihead_attn, d, nhead, &heads));
    RP_TRY(rp_linear_add(m, "linear1", &l->linear1, d, hidden, !o->no_bias));
    RP_TRY(rp_linear_add(m, "linear2", &l->linear2, hidden, d, !o->no_bias));
    RP_TRY(norm_add(m, "norm1", &l->norm1, d, eps, !o->no_bias));
    RP_TRY(norm_add(m, "norm2", &l->norm2, d, eps, !o->no_bias));
    return l->decodes ? norm_add(m, "norm3", &l->norm3, d, eps, !o->no_bias) : RP_OK;
}

static rp_status layer_add(rp_module *m, const char *name, rp_transformer_layer *l, int64_t d_model, int64_t nhead,
                           const rp_transformer_options *options, bool decodes) {
    rp_transformer_options o;
    RP_TRY(rp__layer_need(l, "transformer layer"));
    memset(l, 0, sizeof *l);
    RP_TRY(rp__options_read("transformer layer", options, sizeof o, &o));
    l->dropout = rp__option_or(o.dropout, 0.1);
    RP_TRY(rp__layer_probability("transformer layer", l->dropout));
    if (o.activation != RP_TRANSFORMER_RELU && o.activation != RP_TRANSFORMER_GELU)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "transformer layer: there is no activation %d", (int)o.activation);
    l->activation = o.activation;
    l->norm_first = o.norm_first;
    l->decodes = decodes;
    rp_module *child;
    RP_TRY(rp__module_adopt(m, name, NULL, 0, &child));
    rp_status status = layer_fill(child, l, d_model, nhead, &o);
    if (status != RP_OK) {
        rp__module_undo(child);
        memset(l, 0, sizeof *l);
        return status;
    }
    l->module = child;
    return RP_OK;
}

rp_status rp_transformer_encoder_layer_add_at(const char *site, rp_module *m, const char *name, rp_transformer_layer *l,
                                              int64_t d_model, int64_t nhead, const rp_transformer_options *options) {
    RP__CALLED_FROM(site);
    return layer_add(m, name, l, d_model, nhead, options, false);
}

rp_status rp_transformer_decoder_layer_add_at(const char *site, rp_module *m, const char *name, rp_transformer_layer *l,
                                              int64_t d_model, int64_t nhead, const rp_transformer_options *options) {
    RP__CALLED_FROM(site);
    return layer_add(m, name, l, d_model, nhead, options, true);
}

static rp_tensor *dropped(const rp_transformer_layer *l, rp_tensor *x) {
    return rp_dropout(x, l->dropout, rp_module_training(l->module));
}

typedef struct step { /* one part of a layer: x + what it makes of x, normalised before or behind */
    enum { SELF, MEMORY, FORWARD } kind;
    const rp_layer_norm_layer *norm;
    rp_tensor *memory;
    const rp_attention_masks *masks;
} step;

static rp_tensor *made(const rp_transformer_layer *l, const step *s, rp_tensor *x) {
    if (s->kind != FORWARD) {
        rp_tensor *from = s->kind == SELF ? x : s->memory;
        return rp_multihead_attention_layer_forward(s->kind == SELF ? &l->self_attn : &l->multihead_attn, x, from, from,
                                                    s->masks, NULL);
    }
    rp_tensor *h = rp_linear_layer_forward(&l->linear1, x);
    h = l->activation == RP_TRANSFORMER_GELU ? rp_gelu(h) : rp_relu(h);
    return rp_linear_layer_forward(&l->linear2, dropped(l, h));
}

static rp_tensor *parts_forward(const rp_transformer_layer *l, rp_tensor *x, const step *steps, size_t n) {
    for (size_t i = 0; i < n; i++) {
        rp_tensor *in = l->norm_first ? rp_layer_norm_layer_forward(steps[i].norm, x) : x;
        x = rp_add(x, dropped(l, made(l, &steps[i], in)));
        if (!l->norm_first) x = rp_layer_norm_layer_forward(steps[i].norm, x);
    }
    return x;
}

static rp_tensor *encode(const rp_transformer_layer *l, rp_tensor *src, const rp_attention_masks *masks_given) {
    rp__hooks_before(l->module, &src, 1);
    const step steps[2] = {{SELF, &l->norm1, NULL, masks_given}, {FORWARD, &l->norm2, NULL, NULL}};
    return rp__hooks_result(l->module, &src, 1, parts_forward(l, src, steps, 2));
}

static rp_tensor *decode(const rp_transformer_layer *l, rp_tensor *tgt, rp_tensor *memory,
                         const rp_attention_masks *tgt_masks, const rp_attention_masks *memory_masks) {
    rp_tensor *in[] = {tgt, memory};
    rp__hooks_before(l->module, in, 2);
    const step steps[3] = {
        {SELF, &l->norm1, NULL, tgt_masks}, {MEMORY, &l->norm2, in[1], memory_masks}, {FORWARD, &l->norm3, NULL, NULL}};
    return rp__hooks_result(l->module, in, 2, parts_forward(l, in[0], steps, 3));
}

/* What `call` gives, in a scope and under a name of its own. */
#define FRAMED(site, name, call)                                                                                       \
    rp__site_frame frame = rp__site_push(site, name);                                                                  \
    rp_scope scope = rp__scope_begin();                                                                                \
    rp_tensor *out = scope.id ? (call) : rp__tensor_error();                                                           \
    rp__scope_end(scope, &out, 1);                                                                                     \
    rp__site_pop(frame);                                                                                               \
    return out

rp_tensor *rp_transformer_encoder_layer_forward_at(const char *site, const rp_transformer_layer *l, rp_tensor *src,
                                                   const rp_attention_masks *masks_given) {
    if (!l || l->decodes) return rp__no_layer(site, "transformer encoder layer");
    FRAMED(site, "transformer_encoder_layer", encode(l, src, masks_given));
}

rp_tensor *rp_transformer_decoder_layer_forward_at(const char *site, const rp_transformer_layer *l, rp_tensor *tgt,
                                                   rp_tensor *memory, const rp_attention_masks *tgt_masks,
                                                   const rp_attention_masks *memory_masks) {
    if (!l || !l->decodes) return rp__no_layer(site, "transformer decoder layer");
    FRAMED(site, "transformer_decoder_layer", decode(l, tgt, memory, tgt_masks, memory_masks));
}

/* ---------------------------------------------------------------- stacks */

/* to's parameters become those of from, which has the same. */
static rp_status copy_parameters(rp_module *to, rp_module *from) {
    size_t n, k;
    rp_tensor *const *a = rp_module_parameters(to, &n), *const *b = rp_module_parameters(from, &k);
    if (!a || !b || n != k) return rp_error_status();
    const bool grad = rp_set_grad_enabled(false);
    rp_status status = RP_OK;
    for (size_t i = 0; i < n && status == RP_OK; i++)
        status = rp__tensor_is_error(rp_copy_(a[i], b[i])) ? rp_error_status() : RP_OK;
    (void)rp_set_grad_enabled(grad);
    return status;
}

static rp_status stack_fill(rp_module *child, rp_transformer_stack *s, int64_t d_model, int64_t nhead, bool norm,
                            const rp_transformer_options *o, bool decodes) {
    rp_module *list, *first = NULL;
    RP_TRY(rp__module_adopt(child, "layers", NULL, 0, &list));
    for (size_t i = 0; i < s->num_layers; i++) {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        RP_TRY(layer_add(list, number, &s->layers[i], d_model, nhead, o, decodes));
        union {
            const rp_module *kept;
            rp_module *own;
        } it = {s->layers[i].module};
        if (i == 0)
            first = it.own;
        else
            RP_TRY(copy_parameters(it.own, first));
    }
    return norm ? norm_add(child, "norm", &s->norm, d_model, rp__option_or(o ? o->layer_norm_eps : 0, 1e-5),
                           !(o && o->no_bias))
                : RP_OK;
}

static rp_status stack_add(rp_module *m, const char *name, rp_transformer_stack *s, rp_transformer_layer *layers,
                           size_t num_layers, int64_t d_model, int64_t nhead, bool norm,
                           const rp_transformer_options *options, bool decodes) {
    rp_transformer_options o;
    RP_TRY(rp__layer_need(s, "transformer"));
    memset(s, 0, sizeof *s);
    RP_TRY(rp__options_read("transformer", options, sizeof o, &o));
    o.struct_size = sizeof o;
    if (num_layers && !layers)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "transformer: the array of %zu layers is NULL", num_layers);
    s->layers = layers;
    s->num_layers = num_layers;
    rp_module *child;
    RP_TRY(rp__module_adopt(m, name, NULL, 0, &child));
    rp_status status = stack_fill(child, s, d_model, nhead, norm, &o, decodes);
    s->module = child;
    if (status == RP_OK) return RP_OK;
    rp__module_undo(child);
    memset(layers, 0, num_layers * sizeof *layers);
    memset(s, 0, sizeof *s);
    return status;
}

rp_status rp_transformer_encoder_add_at(const char *site, rp_module *m, const char *name, rp_transformer_stack *s,
                                        rp_transformer_layer *layers, size_t num_layers, int64_t d_model, int64_t nhead,
                                        bool norm, const rp_transformer_options *options) {
    RP__CALLED_FROM(site);
    return stack_add(m, name, s, layers, num_layers, d_model, nhead, norm, options, false);
}

rp_status rp_transformer_decoder_add_at(const char *site, rp_module *m, const char *name, rp_transformer_stack *s,
                                        rp_transformer_layer *layers, size_t num_layers, int64_t d_model, int64_t nhead,
                                        bool norm, const rp_transformer_options *options) {
    RP__CALLED_FROM(site);
    return stack_add(m, name, s, layers, num_layers, d_model, nhead, norm, options, true);
}

static rp_tensor *normed(const rp_transformer_stack *s, rp_tensor *x) {
    return s->norm.weight ? rp_layer_norm_layer_forward(&s->norm, x) : x;
}

static rp_tensor *encode_all(const rp_transformer_stack *s, rp_tensor *x, const rp_attention_masks *masks_given) {
    rp__hooks_before(s->module, &x, 1);
    rp_tensor *y = x;
    for (size_t i = 0; i < s->num_layers; i++) y = encode(&s->layers[i], y, masks_given);
    return rp__hooks_result(s->module, &x, 1, normed(s, y));
}

static rp_tensor *decode_all(const rp_transformer_stack *s, rp_tensor *x, rp_tensor *memory,
                             const rp_attention_masks *tgt_masks, const rp_attention_masks *memory_masks) {
    rp_tensor *in[] = {x, memory};
    rp__hooks_before(s->module, in, 2);
    rp_tensor *y = in[0];
    for (size_t i = 0; i < s->num_layers; i++) y = decode(&s->layers[i], y, in[1], tgt_masks, memory_masks);
    return rp__hooks_result(s->module, in, 2, normed(s, y));
}

rp_tensor *rp_transformer_encoder_forward_at(const char *site, const rp_transformer_stack *s, rp_tensor *src,
                                             const rp_attention_masks *masks_given) {
    if (!s) return rp__no_layer(site, "transformer encoder");
    FRAMED(site, "transformer_encoder", encode_all(s, src, masks_given));
}

rp_tensor *rp_transformer_decoder_forward_at(const char *site, const rp_transformer_stack *s, rp_tensor *tgt,
                                             rp_tensor *memory, const rp_attention_masks *tgt_masks,
                                             const rp_attention_masks *memory_masks) {
    if (!s) return rp__no_layer(site, "transformer decoder");
    FRAMED(site, "transformer_decoder", decode_all(s, tgt, memory, tgt_masks, memory_masks));
}
