/* TensorRT as an engine: a part becomes an ONNX model, that an engine (builder.h), which is kept on disk, and that a context, whose
   inputs and outputs are our memory and which works on the current stream. Graphs of inference on a GPU.
   Options: tf32 (0 or 1: products of float32 may round their operands; 0). */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "doors/engines.h"
#include "doors/library.h"
#include "doors/onnx/part.h"
#include "doors/tensorrt/builder.h"
#include "kernel/disk_cache.h"

enum { OPSET = 18 };

static bool open_door(char version[64], char where[512], char why[512]) {
    if (!rp__trt_open(version, where, why)) return false;
    if (rp_device_count(RP_DEVICE_CUDA) > 0) return true;
    (void)snprintf(why, 512, "there is no GPU");
    return false;
}

static bool takes(const rp__engine_options *options, const rp_ir *ir, const rp__ir_node *n, char why[256]) {
    (void)options;
    for (uint32_t k = 0; k < n->n_in + n->n_out; k++) {
        const rp__ir_value v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
        if (v == RP__IR_NONE) continue;
        const rp_dtype dtype = ir->values[v].meta.dtype;
        if (dtype != RP_F64 && dtype != RP_I16) continue;
        (void)snprintf(why, 256, "it has no %s", rp_dtype_name(dtype));
        return false;
    }
    return rp__onnx_takes(ir, n, OPSET, true, why);
}

typedef struct context {
    const rp__door_part *part;
    rp__onnx_part onnx; /* names; its model is gone */
    rp__trt_object *engine, *context;
    unsigned forks;
} context;

static void destroy(void *made) {
    context *c = made;
    if (c->forks == rp__door_forks()) {
        rp__trt_delete(c->context);
        rp__trt_delete(c->engine);
    }
    rp__onnx_part_free(&c->onnx);
    rp__free(c);
}

/* An engine is for one kind of GPU and one release. */
static rp__hash key_of(const context *c, bool tf32) {
    char version[64], where[512], why[512], text[256];
    rp__device *d = rp__device_get((rp_device){RP_DEVICE_CUDA, 0});
    (void)rp__trt_open(version, where, why);
    (void)snprintf(text, sizeof text, "%s %s %d", version, d ? d->label : "", tf32);
    return rp__hash_bytes(c->onnx.model.data, c->onnx.model.length,
                          rp__hash_bytes(text, strlen(text), rp__hash_none()));
}

static rp_status make(context *c, bool tf32) {
    const rp__hash key = key_of(c, tf32);
    void *kept = NULL;
    size_t bytes = 0;
    char why[128];
    if (rp__disk_cache_get(key, "trt", &kept, &bytes)) {
        const rp_status status = rp__trt_context(kept, bytes, &c->engine, &c->context);
        rp__free(kept);
        if (status == RP_OK) return RP_OK;
        (void)rp_error_take(); /* of another driver: it is made again */
        rp__disk_cache_drop(key, "trt");
    }
    rp__text plan = {0};
    rp_status status = rp__trt_plan(c->onnx.model.data, c->onnx.model.length, tf32, &plan);
    if (status == RP_OK) status = rp__trt_context(plan.data, plan.length, &c->engine, &c->context);
    if (status == RP_OK) (void)rp__disk_cache_put(key, "trt", plan.data, plan.length, why, sizeof why);
    rp__text_free(&plan);
    return status;
}

static rp_status build(const rp__door_part *p, const rp__engine_options *options, void **made) {
    context *c = rp__calloc(1, sizeof *c);
    if (!c) return RP__OOM("an engine of TensorRT");
    c->part = p;
    c->forks = rp__door_forks();
    rp_status status = rp__onnx_part_write(p, "TensorRT", OPSET, &c->onnx);
    if (status == RP_OK) status = make(c, rp__engine_switch(options, "tf32"));
    rp__text_free(&c->onnx.model);
    if (status != RP_OK) {
        destroy(c);
        return status;
    }
    *made = c;
    return RP_OK;
}

static rp_status address(context *c, uint32_t k, const rp_tensor *t) {
    rp__trt_object *impl;
    rp__trt_function *f = rp__trt_find(c->context, RP__TRT_CONTEXT_ADDRESS, &impl);
    if (((bool (*)(rp__trt_object *, const char *, void *))f)(impl, c->onnx.name[k], rp__tensor_data(t))) return RP_OK;
    return rp__trt_fail("refuses a tensor");
}

static rp_status run(void *made, rp_tensor *const *in, rp_tensor **out) {
    context *c = made;
    const rp__door_part *p = c->part;
    rp__trt_object *impl;
    if (c->forks != rp__door_forks()) return rp__fail(RP_ERROR_STATE, "TensorRT was opened before the process forked");
    rp__device *d = rp__device_get(p->ir->values[p->out[0].value].meta.device);
    if (!d) return rp_error_status();
    rp_stream *s = rp__current_stream(d);
    for (uint32_t k = 0; k < c->onnx.n_in; k++) {
        RP_TRY(rp__storage_used_by(in[c->onnx.in_of[k]]->storage, s));
        RP_TRY(address(c, k, in[c->onnx.in_of[k]]));
    }
    for (uint32_t k = 0; k < p->n_out; k++) {
        out[k] = rp__door_result(&p->out[k], p->ir);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
        RP_TRY(address(c, c->onnx.n_in + k, out[k]));
    }
    rp__trt_function *f = rp__trt_find(c->context, RP__TRT_CONTEXT_ENQUEUE, &impl);
    return ((bool (*)(rp__trt_object *, void *))f)(impl, s->native) ? RP_OK : rp__trt_fail("failed");
}

static rp_status check(const rp__engine_options *options) {
    return rp__engine_check_switch(options, "tensorrt", "tf32");
}

static const char *const keys[] = {"tf32", NULL};
RP__ENGINE_OF_DOOR(tensorrt, .title = "TensorRT", .device = RP_DEVICE_CUDA, .inference = true, .check = check)
