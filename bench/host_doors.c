/* What a call costs on the host beyond an engine's own call: a small perceptron through rp_compile, and the engine's own function alone,
   with operands bound once, on the same graph, in turns. Also an engine that does nothing, for what the shared part costs.
   host_doors [SECONDS]: medians in us; engines that are not here are passed over. XLA by a plug-in of CUDA is called with a GPU's memory, and
   its own call is one that the host waits for, as ours need not. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <reprise.h>
#include <reprise_io.h>
#include <reprise_ir.h>

#include "core/alloc.h"
#include "doors/door.h"
#include "doors/onnxrt/ort.h"
#include "doors/xla/pjrt.h"
#include "doors/xla/text.h"

/* So small that XLA computes in the caller's thread: what another thread's waking takes is no property of ours. */
enum { ROWS = 2, IN = 4, HIDDEN = 8, OUT = 4, BATCH = 50, MOST = 4096 };

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians of two calls in turns, of batches of each. */
static void beside(double seconds, void (*a)(void *), void *a_of, void (*b)(void *), void *b_of, double us[2]) {
    static double times[2][MOST];
    size_t n = 0;
    for (const double end = now() + seconds; n < MOST && (now() < end || n < 5); n++) {
        for (int which = 0; which < 2; which++) {
            void (*call)(void *) = which ? b : a;
            void *of = which ? b_of : a_of;
            if (!call) continue;
            const double begin = now();
            for (int k = 0; k < BATCH; k++) call(of);
            times[which][n] = 1e6 * (now() - begin) / BATCH;
        }
    }
    for (int which = 0; which < 2; which++) {
        qsort(times[which], n, sizeof(double), by_size);
        us[which] = times[which][n / 2];
    }
}

/* ---- the function */

static struct { rp_tensor *w1, *b1, *w2, *b2, *x; } net;

static void forward(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_linear(rp_relu(rp_linear(in[0], net.w1, net.b1)), net.w2, net.b2);
}
static const rp_fn fn = {forward, NULL, 0, "mlp"};

static void call_compiled(void *f) {
    rp_tensor *y = NULL;
    const rp_scope scope = rp_scope_begin();
    if (rp_call(f, &net.x, 1, &y, 1) != RP_OK) abort();
    rp_scope_end(scope, NULL, 0);
}

static rp_compiled *compiled(const char *backend) {
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backend, .strict = true));
    for (int k = 0; k < 20; k++) call_compiled(f);
    return f;
}

static bool is_here(const char *backend, rp_backend_info *info) {
    *info = (rp_backend_info){.struct_size = sizeof *info};
    return rp_backend_info_get(backend, info) == RP_OK && info->available;
}

/* The function's tensors on a device, and its graph. */
static rp_ir *made_on(rp_device device) {
    (void)rp_set_default_device(device);
    net.w1 = rp_randn(RP_DIMS(HIDDEN, IN), NULL), net.b1 = rp_randn(RP_DIMS(HIDDEN), NULL);
    net.w2 = rp_randn(RP_DIMS(OUT, HIDDEN), NULL), net.b2 = rp_randn(RP_DIMS(OUT), NULL);
    net.x = rp_randn(RP_DIMS(ROWS, IN), NULL);
    return rp_trace(fn, &net.x, 1, 1);
}

/* ---- an engine that does nothing */

static bool idle_open(char version[64], char where[512], char why[512]) {
    version[0] = where[0] = why[0] = 0;
    return true;
}
static bool idle_takes(const rp__engine_options *o, const rp_ir *ir, const rp__ir_node *n, char why[256]) {
    (void)o, (void)ir, (void)n, (void)why;
    return true;
}
static rp_status idle_build(const rp__door_part *part, const rp__engine_options *o, void **made) {
    (void)o;
    *made = (void *)(uintptr_t)part;
    return RP_OK;
}
static rp_status idle_run(void *made, rp_tensor *const *in, rp_tensor **out) {
    const rp__door_part *part = made;
    (void)in;
    for (uint32_t k = 0; k < part->n_out; k++) out[k] = rp__door_result(&part->out[k], part->ir);
    return RP_OK;
}
static void idle_destroy(void *made) { (void)made; }
static const rp__door idle = {.name = "idle",
                              .title = "nothing",
                              .open = idle_open,
                              .takes = idle_takes,
                              .build = idle_build,
                              .run = idle_run,
                              .destroy = idle_destroy};
static const rp__leaf idle_leaf = {.kind = RP__LEAF_DOOR, .ops = &rp__door_leaf, .door = &idle};
static const rp__engine idle_engine = {.name = "idle", RP__ENGINE_OVER_LEAF, .leaf = &idle_leaf};

/* ---- ONNX Runtime alone */

static struct {
    rp__ort api;
    rp__ort_object *session, *in, *out;
} ort;

static void ort_good(rp__ort_status s) {
    if (!s) return;
    (void)fprintf(stderr, "%s\n", ort.api.error_message(s));
    exit(1);
}

static void ort_alone(void *unused) {
    static const char *const in[] = {"in0"}, *const out[] = {"out0"};
    (void)unused;
    ort_good(ort.api.run(ort.session, NULL, in, (const rp__ort_object *const *)&ort.in, 1, out, 1, &ort.out));
}

static void ort_begin(const char *where, rp_ir *ir) {
    static float y[ROWS * OUT];
    void *library = dlopen(where, RTLD_NOW), *entry = library ? dlsym(library, "OrtGetApiBase") : NULL;
    const rp__ort_base *(*base)(void);
    rp__ort_object *env, *memory, *options;
    if (!entry) exit(1);
    memcpy(&base, &entry, sizeof base);
    const void *const *table = base()->table(RP__ORT_VERSION);
#define TAKE(name, place, result, parameters) memcpy(&ort.api.name, &table[place], sizeof ort.api.name);
    RP__ORT_FUNCTIONS(TAKE)
#undef TAKE
    char *model = NULL;
    const char *path = "host_doors.onnx";
    if (rp_onnx_save(path, ir, NULL) != RP_OK) exit(1);
    FILE *f = fopen(path, "rb");
    model = malloc(1 << 20);
    const size_t bytes = f && model ? fread(model, 1, 1 << 20, f) : 0;
    if (f) (void)fclose(f);
    (void)remove(path);
    ort_good(ort.api.create_env(4, "alone", &env));
    ort_good(ort.api.create_options(&options));
    ort_good(ort.api.set_optimization(options, 99));
    ort_good(ort.api.create_session(env, model, bytes, options, &ort.session));
    ort_good(ort.api.cpu_memory(1, 0, &memory));
    static const int64_t x_size[] = {ROWS, IN}, y_size[] = {ROWS, OUT};
    ort_good(ort.api.create_tensor(memory, rp__tensor_data(net.x), ROWS * IN * 4, x_size, 2, 1, &ort.in));
    ort_good(ort.api.create_tensor(memory, y, ROWS * OUT * 4, y_size, 2, 1, &ort.out));
    free(model);
}

/* ---- XLA alone */

static struct {
    rp__pjrt_call *const *table;
    rp__pjrt_object *loaded, *argument[8];
    size_t n;
} xla;

static void xla_call(unsigned word, void *arguments) {
    if (xla.table[word](arguments)) exit(1);
}

static void xla_alone(void *unused) {
    static const rp__pjrt_run_options plain = {.head = {.bytes = sizeof plain}};
    (void)unused;
    rp__pjrt_object *done[1] = {NULL}, *result[1] = {NULL}, *const * arguments[1] = {xla.argument},
                    **results[1] = {result};
    rp__pjrt_execute e = {.head = {.bytes = sizeof e},
                          .executable = xla.loaded,
                          .options = &plain,
                          .arguments = arguments,
                          .n_devices = 1,
                          .n_arguments = xla.n,
                          .results = results,
                          .done = done};
    xla_call(RP__PJRT_EXECUTE, &e);
    rp__pjrt_one one = {.head = {.bytes = sizeof one}, .object = done[0]};
    xla_call(RP__PJRT_EVENT_AWAIT, &one);
    xla_call(RP__PJRT_EVENT_DESTROY, &one);
    one.object = result[0];
    xla_call(RP__PJRT_BUFFER_DESTROY, &one);
}

static void xla_begin(const char *where, rp_ir *ir, bool on_gpu) {
    static const char options[] = "\x1a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x01\x28\x01";
    void *library = dlopen(where, RTLD_NOW), *entry = library ? dlsym(library, "GetPjrtApi") : NULL;
    const void *(*api)(void);
    if (!entry) exit(1);
    memcpy(&api, &entry, sizeof api);
    xla.table = (rp__pjrt_call *const *)(const void *)api();
    rp__pjrt_option lean = {
        .head = {.bytes = sizeof lean}, .name = "preallocate", .length = 11, .type = RP__PJRT_OPTION_BOOL, .n = 1};
    rp__pjrt_client c = {.head = {.bytes = sizeof c}, .options = &lean, .n_options = on_gpu};
    xla_call(RP__PJRT_CLIENT_CREATE, &c);
    rp__pjrt_devices d = {.head = {.bytes = sizeof d}, .client = c.client};
    xla_call(RP__PJRT_DEVICES, &d);
    rp__hlo h;
    rp__text text;
    uint32_t failed;
    rp__put_val *map = rp__lower_map(ir);
    rp_tensor *tensors[8];
    rp__hlo_begin(&h, ir);
    for (uint32_t k = 0; k < ir->body.n_args + ir->n_captured; k++) {
        tensors[k] = k < ir->body.n_args ? net.x : ir->captured[k - ir->body.n_args];
        const rp__put_type t = rp__put_type_from(RP_F32, tensors[k]->size, tensors[k]->ndim);
        const rp__put_val v = rp__hlo_arg(&h, &t, -1);
        if (k < ir->body.n_args) map[ir->body.args[k]] = v;
        for (size_t i = 0; i < ir->body.n_nodes; i++) {
            const rp__ir_node *n = &ir->nodes[ir->body.nodes[i]];
            if (n->kind == RP__IR_CAPTURED && k == ir->body.n_args + n->captured_index) map[n->out[0]] = v;
        }
        float bytes[HIDDEN * IN + HIDDEN * OUT];
        if (rp_to_host(tensors[k], bytes, (size_t)rp_numel(tensors[k]) * sizeof *bytes) != RP_OK) exit(1);
        rp__pjrt_from_host f = {.head = {.bytes = sizeof f},
                                .client = c.client,
                                .data = bytes,
                                .type = 11,
                                .size = tensors[k]->size,
                                .ndim = tensors[k]->ndim,
                                .semantics = RP__PJRT_DURING_CALL,
                                .device = d.devices[0]};
        xla_call(RP__PJRT_FROM_HOST, &f);
        xla.argument[xla.n++] = f.buffer;
    }
    if (!rp__lower_nodes(&h.emitter, ir, ir->body.nodes, ir->body.n_nodes, map, &failed) ||
        !rp__hlo_module(&h, (rp__put_val[]){map[ir->body.results[0]]}, 1, &text))
        exit(1);
    const rp__pjrt_program program = {.head = {.bytes = sizeof program},
                                      .code = text.data,
                                      .code_bytes = text.length,
                                      .format = "mlir",
                                      .format_bytes = 4};
    rp__pjrt_compile compile = {.head = {.bytes = sizeof compile},
                                .client = c.client,
                                .program = &program,
                                .options = options,
                                .options_bytes = sizeof options - 1};
    xla_call(RP__PJRT_COMPILE, &compile);
    xla.loaded = compile.executable;
    rp__text_free(&text);
    rp__hlo_end(&h);
    rp__free(map);
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? atof(argv[1]) : 1;
    rp_backend_info info;
    double us[2];
    const rp_scope scope = rp_scope_begin();
    if (rp__engine_register(&idle_engine) != RP_OK) return 1;
    rp_ir *ir = made_on(rp_cpu());
    rp_compiled *f = compiled("idle");
    beside(seconds, call_compiled, f, NULL, NULL, us);
    (void)printf("%-10s%10.2f us a call of a function whose engine does nothing\n", "shared", us[0]);
    rp_compiled_release(f);
    if (is_here("onnxrt", &info)) {
        ort_begin(info.where, ir);
        f = compiled("onnxrt");
        beside(seconds, call_compiled, f, ort_alone, NULL, us);
        (void)printf("%-10s%10.2f us a call, %.2f of the engine's own: %.2f\n", "onnxrt", us[0], us[1], us[0] - us[1]);
        rp_compiled_release(f);
    }
    if (is_here("xla", &info)) {
        const bool on_gpu = strstr(info.version, "for cuda");
        if (on_gpu) {
            rp_ir_release(ir);
            ir = made_on(rp_cuda(0));
        }
        xla_begin(info.where, ir, on_gpu);
        f = compiled("xla");
        beside(seconds, call_compiled, f, xla_alone, NULL, us);
        (void)printf("%-10s%10.2f us a call, %.2f of the engine's own: %.2f (%s)\n", "xla", us[0], us[1], us[0] - us[1],
                     info.version);
        rp_compiled_release(f);
    }
    rp_ir_release(ir);
    rp_scope_end(scope, NULL, 0);
    if (rp_failed()) (void)fprintf(stderr, "host_doors: %s\n", rp_error_message());
    return rp_failed();
}
