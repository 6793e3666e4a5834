/* See part.h. */
#include "doors/onnx/part.h"

#include <stdio.h>

#include "core/alloc.h"
#include "ops/private.h"

static rp__put_val add_argument(rp__emitter *e, const rp__put_type *type) {
    char name[32];
    (void)snprintf(name, sizeof name, "a%zu", e->n_values);
    return rp__onnx_input((rp__onnx *)e, name, type);
}

bool rp__onnx_takes(const rp_ir *ir, const rp__ir_node *n, int opset, bool flat, char why[256]) {
    rp__onnx o;
    rp__onnx_begin(&o, ir, opset);
    o.flat = flat;
    const bool good = rp__door_takes(&o.emitter, ir, n, add_argument);
    if (!good) (void)snprintf(why, 256, "%s", o.emitter.why);
    rp__onnx_end(&o);
    return good;
}

/* The bytes of a weight, in memory order; *copy: of one that lies elsewhere, to be freed. */
static rp_status weight_bytes(const rp__door_value *v, size_t bytes, const void **data, void **copy) {
    *data = rp__tensor_data(v->tensor);
    *copy = NULL;
    if (v->tensor->device.type == RP_DEVICE_CPU) return RP_OK;
    *data = *copy = rp__alloc(bytes + 1);
    if (!*copy) return RP__OOM("weights for another engine");
    rp_tensor *t = v->turned ? rp_permute(v->tensor, v->order, v->type.ndim) : v->tensor;
    return rp_to_host(rp_detach(t), *copy, bytes);
}

static rp_status put_inputs(rp__onnx *o, const rp__door_part *p, rp__put_val *values, rp__onnx_part *out) {
    for (uint32_t k = 0; k < p->n_in; k++) {
        const rp__door_value *v = &p->in[k];
        if (v->weight) {
            char name[16];
            const void *data;
            void *copy;
            (void)snprintf(name, sizeof name, "w%u", k);
            const size_t bytes = (size_t)rp__numel(v->type.size, v->type.ndim) * rp__dtype_bytes(v->type.dtype);
            const rp_status status = weight_bytes(v, bytes, &data, &copy);
            if (status == RP_OK) values[k] = rp__onnx_weight_of(o, name, &v->type, data, bytes);
            rp__free(copy);
            RP_TRY(status);
            continue;
        }
        (void)snprintf(out->name[out->n_in], sizeof out->name[0], "in%u", k);
        out->in_of[out->n_in] = k;
        values[k] = rp__onnx_input(o, out->name[out->n_in++], &v->type);
    }
    return RP_OK;
}

rp_status rp__onnx_part_write(const rp__door_part *p, const char *who, int opset, rp__onnx_part *out) {
    rp__onnx o;
    uint32_t bad = RP__IR_NONE;
    const size_t n = (size_t)p->n_in + p->n_out + 1;
    rp__put_val *values = rp__calloc(n, sizeof *values), *results = values + p->n_in;
    *out = (rp__onnx_part){.in_of = rp__calloc(n, sizeof *out->in_of), .name = rp__calloc(n, sizeof *out->name)};
    if (!values || !out->in_of || !out->name) {
        rp__free(values);
        return RP__OOM("a model for another engine");
    }
    rp__onnx_begin(&o, p->ir, opset);
    rp_status status = put_inputs(&o, p, values, out);
    bool whole = status == RP_OK && rp__door_write(&o.emitter, p, values, results, &bad);
    for (uint32_t k = 0; k < p->n_out && whole; k++) {
        char *name = out->name[out->n_in + k];
        (void)snprintf(name, sizeof out->name[0], "out%u", k);
        rp__onnx_output(&o, name, results[k]);
    }
    whole = whole && !o.emitter.failed;
    if (status == RP_OK && !whole)
        status = rp__fail(RP_ERROR_COMPILE, "a graph for %s: %s%s%s", who,
                          bad == RP__IR_NONE     ? ""
                          : p->ir->nodes[bad].op ? p->ir->nodes[bad].op->name
                                                 : "",
                          bad == RP__IR_NONE ? "" : ": ", o.emitter.why);
    else if (status == RP_OK && !rp__onnx_model(&o, p->ir->name, &out->model))
        status = RP__OOM("a model for another engine");
    rp__onnx_end(&o);
    rp__free(values);
    return status;
}

void rp__onnx_part_free(rp__onnx_part *p) {
    rp__text_free(&p->model);
    rp__free(p->in_of);
    rp__free(p->name);
    *p = (rp__onnx_part){.n_in = 0};
}
