/* ONNX Runtime as an engine: a part becomes an ONNX model in memory and that a session. Arguments and results are the runtime's views
   of our memory; captured tensors that stay as they are, are weights of the model.
   Options: provider (cpu, CUDA, TensorRT, or a name that the library knows), provider_options ("key=value,.."), threads,
   optimization (0 none, 1 basic, 2 extended, 99 all). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "doors/door.h"
#include "doors/engines.h"
#include "doors/library.h"
#include "doors/onnx/part.h"
#include "doors/onnxrt/ort.h"

/* ---- the library */

static struct {
    pthread_once_t once;
    rp__door_found found;
    rp__ort ort;
    rp__ort_object *env, *memory;
    int minor; /* of its version 1.minor */
} lib = {.once = PTHREAD_ONCE_INIT};

static const char *const names[] = {"libonnxruntime.so.1", "libonnxruntime.so", NULL};
static const char *const wheels[][2] = {{"onnxruntime/capi", "libonnxruntime.so"}, {NULL, NULL}};
static const rp__door_library where_it_is = {"REPRISE_ONNXRUNTIME", names, wheels, "OrtGetApiBase"};

enum { LOG_FATAL = 4 };

/* Does the table hold what it is said to hold? What a status is made of must come out of it. */
static bool layout_fits(const rp__ort *o) {
    static const char said[] = "reprise looks at the table";
    const rp__ort_status s = o->create_status(2, said);
    const bool fits = s && o->error_code(s) == 2 && o->error_message(s) && strcmp(o->error_message(s), said) == 0;
    if (fits) o->release_status(s);
    return fits;
}

/* The text of a failed call, which it releases; false: there was none. */
static bool failed(rp__ort_status s, char *text, size_t bytes) {
    if (!s) return false;
    (void)snprintf(text, bytes, "%s", lib.ort.error_message(s));
    lib.ort.release_status(s);
    return true;
}

static void open_library(void) {
    void *entry;
    lib.found.forks = rp__door_forks();
    if (!rp__door_load(&where_it_is, lib.found.where, lib.found.why, &entry)) return;
    const rp__ort_base *(*base_of)(void);
    memcpy(&base_of, &entry, sizeof base_of);
    const rp__ort_base *base = base_of();
    const char *version = base && base->version ? base->version() : NULL;
    (void)snprintf(lib.found.version, sizeof lib.found.version, "%s", version ? version : "unknown");
    const void *const *table = base && base->table ? base->table(RP__ORT_VERSION) : NULL;
    if (!table) {
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.300s is version %s; 1.%d is the oldest that is used",
                       lib.found.where, lib.found.version, RP__ORT_OLDEST);
        return;
    }
#define TAKE(name, place, result, parameters) memcpy(&lib.ort.name, &table[place], sizeof lib.ort.name);
    RP__ORT_FUNCTIONS(TAKE)
#undef TAKE
    if (!layout_fits(&lib.ort)) {
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.300s: its functions do not lie where they are expected",
                       lib.found.where);
        return;
    }
    lib.minor = atoi(strchr(lib.found.version, '.') ? strchr(lib.found.version, '.') + 1 : "0");
    /* From 1.29 on it reports to its maker as soon as an environment is made, which is before it can be told not to. */
    (void)setenv("ORT_DISABLE_TELEMETRY", "1", 0);
    if (failed(lib.ort.create_env(LOG_FATAL, "reprise", &lib.env), lib.found.why, sizeof lib.found.why) ||
        failed(lib.ort.cpu_memory(1, 0, &lib.memory), lib.found.why, sizeof lib.found.why))
        return;
    (void)failed(lib.ort.disable_telemetry(lib.env), lib.found.why, sizeof lib.found.why);
    lib.found.why[0] = 0;
    lib.found.here = true;
}

static bool open_door(char version[64], char where[512], char why[512]) {
    (void)pthread_once(&lib.once, open_library);
    return rp__door_answer(&lib.found, version, where, why);
}

/* The newest operators that a release has. */
static int opset(void) { return lib.minor >= 18 ? 21 : lib.minor >= 17 ? 20 : lib.minor >= 14 ? 18 : 17; }

/* ---- what it takes */

static bool takes(const rp__engine_options *options, const rp_ir *ir, const rp__ir_node *n, char why[256]) {
    (void)options;
    return rp__onnx_takes(ir, n, opset(), false, why);
}

/* ---- sessions */

typedef struct bound { /* a view of our memory, kept while that does not move */
    const void *data;
    rp__ort_object *value;
} bound;

typedef struct session {
    const rp__door_part *part;
    rp__ort_object *session;
    uint32_t n_in, n_out; /* inputs that are no weights */
    rp__onnx_part onnx;   /* names, and which inputs; its model is gone */
    const char **name;    /* of inputs and then outputs */
    bound *bound;         /* likewise */
    rp__ort_object **value;
    unsigned forks;
} session;

static void destroy(void *made) {
    session *s = made;
    const bool ours = s->forks == rp__door_forks(); /* a child of fork must not wait for threads that it has not */
    for (uint32_t k = 0; s->bound && k < s->n_in + s->n_out; k++)
        if (ours && s->bound[k].value) lib.ort.release_value(s->bound[k].value);
    if (ours && s->session) lib.ort.release_session(s->session);
    rp__onnx_part_free(&s->onnx);
    rp__free(s->name);
    rp__free(s->bound);
    rp__free(s->value);
    rp__free(s);
}

static rp_status fail_with(const char *what, const char *text) {
    return rp__fail(RP_ERROR_COMPILE, "ONNX Runtime %s: %s: %s", lib.found.version, what, text);
}

/* "a=1,b=2" as two lists that point into `text`, which is cut. */
static size_t split(char *text, const char **keys, const char **values, size_t most) {
    size_t n = 0;
    for (char *p = text; *p && n < most; n++) {
        char *end = strchr(p, ','), *equals = strchr(p, '=');
        if (end) *end = 0;
        keys[n] = p;
        values[n] = equals && (!end || equals < end) ? (*equals = 0, equals + 1) : "";
        p = end ? end + 1 : p + strlen(p) + strlen(values[n]) + 1;
        if (!end) return n + 1;
    }
    return n;
}

static rp_status add_provider(rp__ort_object *so, const char *name, const char *options) {
    enum { MOST = 32 };
    const char *keys[MOST], *values[MOST];
    char text[1024], why[512];
    const rp__ort *o = &lib.ort;
    (void)snprintf(text, sizeof text, "%s", options ? options : "");
    const size_t n = split(text, keys, values, MOST);
    rp__ort_object *of = NULL;
    bool bad;
    if (strcmp(name, "CUDA") == 0) {
        bad = failed(o->create_cuda(&of), why, sizeof why) ||
              (n && failed(o->update_cuda(of, keys, values, n), why, sizeof why)) ||
              failed(o->append_cuda(so, of), why, sizeof why);
        if (of) o->release_cuda(of);
    } else if (strcmp(name, "TensorRT") == 0) {
        bad = failed(o->create_tensorrt(&of), why, sizeof why) ||
              (n && failed(o->update_tensorrt(of, keys, values, n), why, sizeof why)) ||
              failed(o->append_tensorrt(so, of), why, sizeof why);
        if (of) o->release_tensorrt(of);
    } else {
        bad = failed(o->append_provider(so, name, keys, values, n), why, sizeof why);
    }
    return bad ? fail_with(name, why) : RP_OK;
}

static rp_status check(const rp__engine_options *options) {
    const char *threads = rp__engine_option(options, "threads"), *level = rp__engine_option(options, "optimization");
    if (threads && (strspn(threads, "0123456789") != strlen(threads) || !*threads))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "backend \"onnxrt\": threads is a number, not \"%s\"", threads);
    if (level && strcmp(level, "0") != 0 && strcmp(level, "1") != 0 && strcmp(level, "2") != 0 &&
        strcmp(level, "99") != 0)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "backend \"onnxrt\": optimization is 0, 1, 2 or 99, not \"%s\"",
                        level);
    return RP_OK;
}

static rp_status make_options(const rp__engine_options *options, rp__ort_object **out) {
    char why[512];
    const rp__ort *o = &lib.ort;
    const char *threads = rp__engine_option(options, "threads"), *level = rp__engine_option(options, "optimization"),
               *provider = rp__engine_option(options, "provider");
    if (failed(o->create_options(out), why, sizeof why)) return fail_with("options", why);
    if (failed(o->set_optimization(*out, level ? atoi(level) : 99), why, sizeof why) ||
        (threads && failed(o->set_threads(*out, atoi(threads)), why, sizeof why)))
        return fail_with("options", why);
    if (!provider || strcmp(provider, "cpu") == 0) return RP_OK;
    return add_provider(*out, provider, rp__engine_option(options, "provider_options"));
}

static rp_status build(const rp__door_part *p, const rp__engine_options *options, void **made) {
    session *s = rp__calloc(1, sizeof *s);
    const size_t n = (size_t)p->n_in + p->n_out + 1;
    rp__ort_object *so = NULL;
    char why[1024];
    if (!s) return RP__OOM("a session of ONNX Runtime");
    s->part = p;
    s->forks = rp__door_forks();
    s->name = rp__calloc(n, sizeof *s->name);
    s->bound = rp__calloc(n, sizeof *s->bound);
    s->value = rp__calloc(n, sizeof *s->value);
    rp_status status = s->name && s->bound && s->value ? rp__onnx_part_write(p, "ONNX Runtime", opset(), &s->onnx)
                                                       : RP__OOM("a session of ONNX Runtime");
    s->n_in = s->onnx.n_in;
    s->n_out = p->n_out;
    for (size_t k = 0; k < n && status == RP_OK; k++) s->name[k] = s->onnx.name[k];
    if (status == RP_OK) status = make_options(options, &so);
    if (status == RP_OK &&
        failed(lib.ort.create_session(lib.env, s->onnx.model.data, s->onnx.model.length, so, &s->session), why,
               sizeof why))
        status = fail_with("it refuses the graph", why);
    if (so) lib.ort.release_options(so);
    rp__text_free(&s->onnx.model);
    if (status != RP_OK) {
        destroy(s);
        return status;
    }
    *made = s;
    return RP_OK;
}

static rp_status view(session *s, uint32_t k, const rp__door_value *v, const rp_tensor *t) {
    static char nothing[8]; /* the address of no elements */
    void *data = rp__tensor_data(t);
    bound *b = &s->bound[k];
    char why[512];
    if (!data) data = nothing;
    if (RP__LIKELY(b->value && b->data == data)) return RP_OK;
    if (b->value) lib.ort.release_value(b->value);
    b->value = NULL;
    const size_t bytes = (size_t)rp__numel(v->type.size, v->type.ndim) * rp__dtype_bytes(v->type.dtype);
    if (failed(lib.ort.create_tensor(lib.memory, data, bytes, v->type.size, v->type.ndim,
                                     rp__dtypes[v->type.dtype].onnx, &b->value),
               why, sizeof why))
        return fail_with("it refuses a tensor", why);
    b->data = data;
    s->value[k] = b->value;
    return RP_OK;
}

static rp_status run(void *made, rp_tensor *const *in, rp_tensor **out) {
    session *s = made;
    const rp__door_part *p = s->part;
    char why[1024];
    if (s->forks != rp__door_forks())
        return rp__fail(RP_ERROR_STATE,
                        "ONNX Runtime was opened before the process forked, and its threads stayed behind");
    for (uint32_t k = 0; k < s->n_in; k++) RP_TRY(view(s, k, &p->in[s->onnx.in_of[k]], in[s->onnx.in_of[k]]));
    for (uint32_t k = 0; k < s->n_out; k++) {
        out[k] = rp__door_result(&p->out[k], p->ir);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
        RP_TRY(view(s, s->n_in + k, &p->out[k], out[k]));
    }
    if (failed(lib.ort.run(s->session, NULL, s->name, (const rp__ort_object *const *)s->value, s->n_in,
                           s->name + s->n_in, s->n_out, s->value + s->n_in),
               why, sizeof why))
        return rp__fail(RP_ERROR_STATE, "ONNX Runtime %s failed: %s", lib.found.version, why);
    return RP_OK;
}

static const char *const keys[] = {"provider", "provider_options", "threads", "optimization", NULL};
RP__ENGINE_OF_DOOR(onnxrt, .title = "ONNX Runtime", .device = RP_DEVICE_CPU, .check = check)
