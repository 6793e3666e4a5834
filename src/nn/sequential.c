/* torch.nn.Sequential: layers one after the other, whose structs it owns and names by their number. */
#include <reprise_nn.h>

#include "core/alloc.h"
#include "core/handle.h"
#include "nn/layer.h"
#include "tensor/tensor.h"

#include <stdio.h>

struct rp_sequential {
    rp__handle handle;
    rp_module *module;
    struct part {
        rp_forward_fn *forward;
        const void *layer;
        void *own; /* the layer, if it is the sequence's */
    } * parts;
    size_t n, capacity;
};

static rp_sequential failed_sequential; /* every call fails */

static void sequential_free(void *memory) {
    rp_sequential *s = memory;
    for (size_t i = 0; i < s->n; i++) rp__free(s->parts[i].own);
    rp__free(s->parts);
    rp__handle_free(s);
}

static rp_status check(const rp_sequential *s) { return rp__handle_check(s, RP__HANDLE_SEQUENTIAL, "sequential"); }

rp_sequential *rp_sequential_add_at(const char *site, rp_module *m, const char *name) {
    RP__CALLED_FROM(site);
    rp_module *child = NULL;
    if (rp__module_adopt(m, name, NULL, 0, &child) != RP_OK) return &failed_sequential;
    rp_sequential *s = rp__handle_new(RP__HANDLE_SEQUENTIAL, sizeof *s);
    if (!s) {
        rp__module_undo(child);
        (void)RP__OOM("a sequence of layers");
        return &failed_sequential;
    }
    s->module = child;
    rp__module_own(child, s, sequential_free);
    return s;
}

rp_module *rp_sequential_module_at(const char *site, rp_sequential *s) {
    RP__CALLED_FROM(site);
    return check(s) == RP_OK ? s->module : NULL;
}

size_t rp_sequential_count(const rp_sequential *s) { return rp__handle_is(s, RP__HANDLE_SEQUENTIAL) ? s->n : 0; }

/* Room for one part, which counts when part_end finds that its layer was made. */
static rp_status part_begin(rp_sequential *s, size_t bytes, rp_forward_fn *forward, char number[24]) {
    RP_TRY(check(s));
    void *layer = RP__GROW(&s->parts, &s->capacity, s->n + 1) ? rp__calloc(1, bytes) : NULL;
    if (!layer) return RP__OOM("a layer");
    s->parts[s->n] = (struct part){forward, layer, layer};
    (void)snprintf(number, 24, "%zu", s->n);
    return RP_OK;
}

static rp_status part_end(rp_sequential *s, rp_status status) {
    if (status == RP_OK)
        s->n++;
    else
        rp__free(s->parts[s->n].own);
    return status;
}

/* A function that makes layers of `type` by `add`, an rp_x_add, and runs them by `forward`. */
#define PART(name, type, run, parameters, ...)                                                                         \
    static rp_tensor *name##_run(const void *layer, rp_tensor *x) { return run((const type *)layer, x); }              \
    rp_status rp_sequential_##name##_at parameters {                                                                   \
        RP__CALLED_FROM(site);                                                                                         \
        char number[24];                                                                                               \
        RP_TRY(part_begin(s, sizeof(type), name##_run, number));                                                       \
        type *l = s->parts[s->n].own;                                                                                  \
        return part_end(s, __VA_ARGS__);                                                                               \
    }

PART(linear, rp_linear_layer, rp_linear_layer_forward,
     (const char *site, rp_sequential *s, int64_t in_features, int64_t out_features, bool bias),
     rp_linear_add(s->module, number, l, in_features, out_features, bias))
PART(conv, rp_conv_layer, rp_conv_layer_forward,
     (const char *site, rp_sequential *s, int64_t in_channels, int64_t out_channels, const int64_t *kernel,
      size_t spatial, const rp_conv_options *options),
     rp_conv_add(s->module, number, l, in_channels, out_channels, kernel, spatial, options))
PART(conv_transpose, rp_conv_layer, rp_conv_layer_forward,
     (const char *site, rp_sequential *s, int64_t in_channels, int64_t out_channels, const int64_t *kernel,
      size_t spatial, const rp_conv_options *options),
     rp_conv_transpose_add(s->module, number, l, in_channels, out_channels, kernel, spatial, options))
PART(batch_norm, rp_batch_norm_layer, rp_batch_norm_layer_forward,
     (const char *site, rp_sequential *s, int64_t num_features, const rp_batch_norm_options *options),
     rp_batch_norm_add(s->module, number, l, num_features, options))
PART(layer_norm, rp_layer_norm_layer, rp_layer_norm_layer_forward,
     (const char *site, rp_sequential *s, const int64_t *normalized_shape, size_t n_dims, double eps,
      bool elementwise_affine),
     rp_layer_norm_add(s->module, number, l, normalized_shape, n_dims, eps, elementwise_affine))
PART(group_norm, rp_group_norm_layer, rp_group_norm_layer_forward,
     (const char *site, rp_sequential *s, int64_t num_groups, int64_t num_channels, double eps, bool affine),
     rp_group_norm_add(s->module, number, l, num_groups, num_channels, eps, affine))
PART(embedding, rp_embedding_layer, rp_embedding_layer_forward,
     (const char *site, rp_sequential *s, int64_t num_embeddings, int64_t embedding_dim),
     rp_embedding_add(s->module, number, l, num_embeddings, embedding_dim))
PART(prelu, rp_prelu_layer, rp_prelu_layer_forward,
     (const char *site, rp_sequential *s, int64_t num_parameters, double value),
     rp_prelu_add(s->module, number, l, num_parameters, value))

static rp_tensor *op_forward(const rp_op_layer *l, rp_tensor *x) { return rp_op_layer_forward(l, &x, 1); }
PART(op, rp_op_layer, op_forward, (const char *site, rp_sequential *s, const char *call),
     rp_op_layer_add(s->module, number, l, call))

rp_status rp_sequential_function_at(const char *site, rp_sequential *s, rp_forward_fn *forward, const void *layer) {
    RP__CALLED_FROM(site);
    RP_TRY(check(s));
    if (!forward) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "sequential: the function is NULL");
    if (!RP__GROW(&s->parts, &s->capacity, s->n + 1)) return RP__OOM("a layer");
    s->parts[s->n++] = (struct part){forward, layer, NULL};
    return RP_OK;
}

rp_tensor *rp_sequential_forward_at(const char *site, const rp_sequential *s, rp_tensor *x) {
    rp__site_frame frame = rp__site_push(site, "sequential");
    if (check(s) != RP_OK) {
        rp__site_pop(frame);
        return rp__tensor_error();
    }
    rp_scope scope = rp__scope_begin();
    rp__hooks_before(s->module, &x, 1);
    rp_tensor *y = scope.id ? x : rp__tensor_error();
    for (size_t i = 0; i < s->n && scope.id; i++) y = s->parts[i].forward(s->parts[i].layer, y);
    y = rp__hooks_result(s->module, &x, 1, y);
    if (y == x && scope.id) y = rp__tensor_enter_scope(x);
    rp__scope_end(scope, &y, 1);
    rp__site_pop(frame);
    return y;
}
