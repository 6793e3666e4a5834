/* See vit.h. */
#include "vit.h"
#include "attention.h"
#include "scoped.h"

#include <reprise_ops.h>

#include <stdio.h>
#include <string.h>

static int64_t given_or(int64_t value, int64_t otherwise) { return value ? value : otherwise; }

/* ---------------------------------------------------------------- parameters */

/* What torchvision calls its parts where timm has another name, and where they are: its encoder is a module of its own,
   the three matrices of attention are parameters of its module. */
struct naming {
    bool encoder;
    const char *class_token, *positions, *patches, *layers, *norm;
    const char *norm1, *attention, *qkv_weight, *qkv_bias, *projection, *norm2, *mlp, *fc1, *fc2;
};
static const struct naming timm = {false,    "cls_token", "pos_embed", "proj",  "blocks", "norm", "norm1", "attn",
                                   "weight", "bias",      "proj",      "norm2", "mlp",    "fc1",  "fc2"};
static const struct naming torchvision = {true,
                                          "class_token",
                                          "pos_embedding",
                                          "conv_proj",
                                          "layers",
                                          "ln",
                                          "ln_1",
                                          "self_attention",
                                          "in_proj_weight",
                                          "in_proj_bias",
                                          "out_proj",
                                          "ln_2",
                                          "mlp",
                                          "0",
                                          "3"};

static void normal_parameter(rp_module *m, const char *name, rp_tensor **place, const int64_t *size, size_t ndim,
                             double std, rp_status *status) {
    if (*status) return;
    *place = rp_empty(size, ndim);
    *status = rp_init_normal(*place, 0, std);
    if (!*status) *status = rp_set_requires_grad(*place, true);
    if (!*status) *status = rp_module_add_parameter(m, name, place);
}

static rp_status linear_add(rp_module *m, const char *name, rp_linear_layer *l, int64_t in, int64_t out) {
    rp_status status = rp_linear_add(m, name, l, in, out, true);
    if (!status) status = rp_init_normal(l->weight, 0, 0.02);
    return status ? status : rp_init_constant(l->bias, 0);
}

static rp_status norm_add(rp_module *m, const char *name, rp_layer_norm_layer *l, int64_t hidden) {
    return rp_layer_norm_add(m, name, l, RP_DIMS(hidden), 1e-6, true);
}

static rp_status layer_add(rp_module *m, const struct naming *names, struct vit_layer *l, int64_t hidden,
                           int64_t inner) {
    rp_status status = norm_add(m, names->norm1, &l->norm1, hidden);
    rp_module *attention = rp_module_child(m, names->attention);
    rp_module *qkv = names->encoder ? attention : rp_module_child(attention, "qkv");
    normal_parameter(qkv, names->qkv_weight, &l->qkv_weight, RP_DIMS(3 * hidden, hidden), 0.02, &status);
    normal_parameter(qkv, names->qkv_bias, &l->qkv_bias, RP_DIMS(3 * hidden), 0, &status);
    if (!status) status = linear_add(attention, names->projection, &l->projection, hidden, hidden);
    if (!status) status = norm_add(m, names->norm2, &l->norm2, hidden);
    rp_module *mlp = rp_module_child(m, names->mlp);
    if (!status) status = linear_add(mlp, names->fc1, &l->fc1, hidden, inner);
    return status ? status : linear_add(mlp, names->fc2, &l->fc2, inner, hidden);
}

static rp_status fill(struct vit *v, const struct vit_options *o) {
    const struct naming *names = o->torchvision ? &torchvision : &timm;
    const int64_t patch = given_or(o->patch, 16), side = given_or(o->side, 224), n = side / patch;
    rp_module *top = v->module, *encoder = names->encoder ? rp_module_child(top, "encoder") : top;
    rp_status status = RP_OK;
    normal_parameter(top, names->class_token, &v->class_token, RP_DIMS(1, 1, v->hidden), 1e-6, &status);
    normal_parameter(encoder, names->positions, &v->positions, RP_DIMS(1, n * n + 1, v->hidden), 0.02, &status);
    if (!status)
        status = rp_conv2d_add(names->encoder ? top : rp_module_child(top, "patch_embed"), names->patches, &v->patches,
                               given_or(o->channels, 3), v->hidden, patch, patch,
                               RP_OPTIONS(rp_conv2d_options, .stride = {patch, patch}));
    rp_module *layers = rp_module_child(encoder, names->layers);
    for (size_t i = 0; i < v->n_layers && !status; i++) {
        char name[48];
        if (names->encoder)
            snprintf(name, sizeof name, "encoder_layer_%zu", i);
        else
            snprintf(name, sizeof name, "%zu", i);
        status = layer_add(rp_module_child(layers, name), names, &v->layers[i], v->hidden,
                           given_or(o->inner, 4 * v->hidden));
    }
    if (!status) status = norm_add(encoder, names->norm, &v->norm, v->hidden);
    rp_module *head = names->encoder ? rp_module_child(top, "heads") : top;
    return status ? status : linear_add(head, "head", &v->head, v->hidden, given_or(o->classes, 1000));
}

rp_status vit_init(struct vit *v, const struct vit_options *options) {
    const struct vit_options none = {0}, *o = options ? options : &none;
    memset(v, 0, sizeof *v);
    const int64_t layers = given_or(o->layers, 12), patch = given_or(o->patch, 16), side = given_or(o->side, 224);
    v->hidden = given_or(o->hidden, 768);
    v->heads = given_or(o->heads, 12);
    if (layers < 1 || layers > VIT_MAX_LAYERS || v->heads < 1 || v->hidden % v->heads || patch < 1 || side < patch ||
        side % patch)
        return RP_ERROR_INVALID_ARGUMENT;
    v->n_layers = (size_t)layers;
    v->module = rp_module_new("vit");
    rp_scope scope = rp_scope_begin();
    rp_status status = fill(v, o), ended = rp_scope_end(scope, NULL, 0);
    if (!status) status = ended;
    if (status) vit_release(v);
    return status;
}

void vit_release(struct vit *v) {
    rp_module_release(v->module);
    memset(v, 0, sizeof *v);
}

/* ---------------------------------------------------------------- forward */

static rp_tensor *layer_forward(const struct vit *v, const struct vit_layer *l, rp_tensor *x) {
    rp_tensor *y = rp_linear(rp_layer_norm_layer_forward(&l->norm1, x), l->qkv_weight, l->qkv_bias);
    y = rp_unflatten(y, -1, RP_DIMS(3, v->heads, -1)); /* (batch, tokens, 3, heads, hidden / heads) */
    rp_tensor *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = rp_transpose(rp_select(y, 2, i), 1, 2); /* (batch, heads, tokens, hidden / heads) */
    x = rp_add(
        x, rp_linear_layer_forward(&l->projection, attention_join(attention(part[0], part[1], part[2], NULL, NULL))));
    y = rp_gelu(rp_linear_layer_forward(&l->fc1, rp_layer_norm_layer_forward(&l->norm2, x)));
    return rp_add(x, rp_linear_layer_forward(&l->fc2, y));
}

rp_tensor *vit_forward(const struct vit *v, rp_tensor *x) {
    x = rp_transpose(rp_flatten(rp_conv2d_layer_forward(&v->patches, x), 2, 3), 1, 2); /* (batch, patches, hidden) */
    rp_tensor *token = rp_expand(v->class_token, RP_DIMS(rp_sym_size(x, 0), -1, -1));
    x = rp_add(rp_cat(RP_TENSORS(token, x), 1), v->positions);
    for (size_t i = 0; i < v->n_layers; i++) {
        rp_scope scope = rp_scope_begin();
        x = scope_keep(scope, layer_forward(v, &v->layers[i], x));
    }
    return rp_linear_layer_forward(&v->head, rp_select(rp_layer_norm_layer_forward(&v->norm, x), 1, 0));
}

void vit_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = vit_forward(ctx, in[0]);
}
