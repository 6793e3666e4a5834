/* What the files of layers share: parameters, buffers, and the ways in which a layer becomes a child of a module. */
#ifndef RP_NN_LAYER_H
#define RP_NN_LAYER_H

#include "nn/module.h"

/* A parameter: retained, of no scope, requiring a gradient, of unknown values. NULL and a sticky error on failure. dtype
   RP_DTYPE_NONE: float32. */
rp_tensor *rp__parameter_new(const int64_t *size, size_t ndim, rp_dtype dtype);
/* The same, of a value, and without a gradient. */
rp_tensor *rp__buffer_new(const int64_t *size, size_t ndim, rp_dtype dtype, double value);
void rp__parameter_release(rp_tensor **t);

rp_status rp__layer_need(const void *layer, const char *what);
rp_tensor *rp__no_layer(const char *site, const char *what); /* the result of a layer that is NULL */
rp_status rp__layer_positive(const char *layer, const char *what, int64_t value);
rp_status rp__layer_probability(const char *layer, double p);
/* A norm's sizes, kept in the layer. */
rp_status rp__layer_shape(const char *layer, const int64_t *shape, size_t n, int64_t *own, size_t *n_own);
/* Ones and, where bias is not NULL, zeros. */
rp_status rp__affine_new(rp_tensor **weight, rp_tensor **bias, const int64_t *size, size_t n, rp_dtype dtype);

/* As a child of m, which l->module becomes: a layer's tensors, of which it holds the references. */
#define RP__ADOPT_LAYER(m, name, l, ...)                                                                               \
    rp__module_adopt_layer((m), (name), (const rp__module_field[]){__VA_ARGS__},                                       \
                           sizeof((const rp__module_field[]){__VA_ARGS__}) / sizeof(rp__module_field), &(l)->module)
/* The same for a layer that goes on with its child. */
#define RP__ADOPT(m, name, child, ...)                                                                                 \
    rp__module_adopt((m), (name), (const rp__module_field[]){__VA_ARGS__},                                             \
                     sizeof((const rp__module_field[]){__VA_ARGS__}) / sizeof(rp__module_field), (child))

#endif
