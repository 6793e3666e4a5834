/* See resnet.h. */
#include "resnet.h"
#include "scoped.h"

#include <reprise_ops.h>

#include <stdio.h>
#include <string.h>

struct shape {
    const char *name;
    int blocks[4];
    bool bottleneck;
    int64_t groups, width_of_group;
};

static const struct shape shapes[] = {
    {"resnet18", {2, 2, 2, 2}, false, 1, 64},         {"resnet34", {3, 4, 6, 3}, false, 1, 64},
    {"resnet50", {3, 4, 6, 3}, true, 1, 64},          {"resnet101", {3, 4, 23, 3}, true, 1, 64},
    {"resnet152", {3, 8, 36, 3}, true, 1, 64},        {"resnext50_32x4d", {3, 4, 6, 3}, true, 32, 4},
    {"resnext101_32x8d", {3, 4, 23, 3}, true, 32, 8},
};

static rp_status conv_add(rp_module *m, const char *name, rp_conv2d_layer *conv, int64_t in, int64_t out,
                          int64_t kernel, int64_t stride, int64_t groups) {
    rp_status status =
        rp_conv2d_add(m, name, conv, in, out, kernel, kernel,
                      RP_OPTIONS(rp_conv2d_options, .stride = {stride, stride}, .padding = {kernel / 2, kernel / 2},
                                 .groups = groups, .no_bias = true));
    return status ? status : rp_init_kaiming_normal(conv->weight, RP_FAN_OUT);
}

static rp_status block_add(rp_module *m, struct resnet_block *b, const struct shape *s, int64_t in, int64_t planes,
                           int64_t stride) {
    const int64_t out = s->bottleneck ? 4 * planes : planes, width = planes * s->width_of_group / 64 * s->groups;
    rp_status status;
    b->projects = stride != 1 || in != out;
    if (s->bottleneck) {
        b->n_convs = 3;
        status = conv_add(m, "conv1", &b->conv[0], in, width, 1, 1, 1);
        if (!status) status = conv_add(m, "conv2", &b->conv[1], width, width, 3, stride, s->groups);
        if (!status) status = conv_add(m, "conv3", &b->conv[2], width, out, 1, 1, 1);
    } else {
        b->n_convs = 2;
        status = conv_add(m, "conv1", &b->conv[0], in, planes, 3, stride, 1);
        if (!status) status = conv_add(m, "conv2", &b->conv[1], planes, planes, 3, 1, 1);
    }
    for (int i = 0; i < b->n_convs && !status; i++) {
        const char *const names[] = {"bn1", "bn2", "bn3"};
        status = rp_batch_norm_add(m, names[i], &b->bn[i], rp_size(b->conv[i].weight, 0), NULL);
    }
    if (status || !b->projects) return status;
    rp_module *shortcut = rp_module_child(m, "downsample");
    status = conv_add(shortcut, "0", &b->downsample, in, out, 1, stride, 1);
    return status ? status : rp_batch_norm_add(shortcut, "1", &b->downsample_bn, out, NULL);
}

static rp_status fill(struct resnet *r, const struct shape *s, const struct resnet_options *o) {
    const int64_t width = o->width ? o->width : 64;
    r->module = rp_module_new(s->name);
    rp_status status = conv_add(r->module, "conv1", &r->conv1, o->channels ? o->channels : 3, width, 7, 2, 1);
    if (!status) status = rp_batch_norm_add(r->module, "bn1", &r->bn1, width, NULL);
    int64_t in = width;
    for (int stage = 0; stage < 4 && !status; stage++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d", stage + 1);
        rp_module *layer = rp_module_child(r->module, name);
        for (int i = 0; i < s->blocks[stage] && !status; i++) {
            snprintf(name, sizeof name, "%d", i);
            const int64_t planes = width << stage;
            status = block_add(rp_module_child(layer, name), &r->blocks[r->n_blocks++], s, in, planes,
                               i == 0 && stage > 0 ? 2 : 1);
            in = s->bottleneck ? 4 * planes : planes;
        }
    }
    return status ? status : rp_linear_add(r->module, "fc", &r->fc, in, o->classes ? o->classes : 1000, true);
}

rp_status resnet_init(struct resnet *r, const struct resnet_options *options) {
    const struct resnet_options none = {0}, *o = options ? options : &none;
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (strcmp(shapes[i].name, o->depth ? o->depth : "resnet18") != 0) continue;
        rp_status status = fill(r, &shapes[i], o);
        if (status) resnet_release(r);
        return status;
    }
    return RP_ERROR_INVALID_ARGUMENT;
}

void resnet_release(struct resnet *r) {
    rp_module_release(r->module);
    memset(r, 0, sizeof *r);
}

static rp_tensor *block_forward(const struct resnet_block *b, rp_tensor *x) {
    rp_tensor *y = x;
    for (int i = 0; i < b->n_convs; i++) {
        y = rp_batch_norm_layer_forward(&b->bn[i], rp_conv2d_layer_forward(&b->conv[i], y));
        if (i + 1 < b->n_convs) y = rp_relu(y);
    }
    if (b->projects) x = rp_batch_norm_layer_forward(&b->downsample_bn, rp_conv2d_layer_forward(&b->downsample, x));
    return rp_relu(rp_add(y, x));
}

rp_tensor *resnet_forward(const struct resnet *r, rp_tensor *x) {
    x = rp_relu(rp_batch_norm_layer_forward(&r->bn1, rp_conv2d_layer_forward(&r->conv1, x)));
    x = rp_max_pool2d(x, RP_DIMS(3, 3), RP_DIMS(2, 2), RP_DIMS(1, 1));
    for (size_t i = 0; i < r->n_blocks; i++) {
        rp_scope scope = rp_scope_begin();
        x = scope_keep(scope, block_forward(&r->blocks[i], x));
    }
    return rp_linear_layer_forward(&r->fc, rp_mean(x, RP_DIMS(-2, -1)));
}

void resnet_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = resnet_forward(ctx, in[0]);
}
