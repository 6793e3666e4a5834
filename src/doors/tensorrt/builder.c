/* See builder.h. The layout of the library's objects is confirmed before anything else is called: a builder must know its logger, which is
   ours, where the layout has it. */
#include "doors/tensorrt/builder.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/thread.h"
#include "core/trust.h"
#include "doors/library.h"

static struct {
    pthread_once_t once;
    rp__door_found found;
    int number, major; /* 101300 is 10.13.0; of TensorRT-RTX, which is laid out as 11, 1 */
    rp__trt_layout layout;
    rp__trt_object *(*builder)(void *logger, int version), *(*runtime)(void *logger, int version),
        *(*parser)(rp__trt_object *network, void *logger, int version);
    int (*parser_version)(void);
} lib = {.once = PTHREAD_ONCE_INIT};

static const char *const names[] = {"libnvinfer.so.11", "libnvinfer.so.10", "libtensorrt_rtx.so.1", NULL};
static const char *const wheels[][2] = {{"tensorrt_libs", "libnvinfer.so."},
                                        {"tensorrt_rtx_libs", "libtensorrt_rtx.so."},
                                        {"onnxruntime_ep_nv_tensorrt_rtx", "libtensorrt_rtx.so."},
                                        {NULL, NULL}};
static const rp__door_library where_it_is = {"REPRISE_TENSORRT", names, wheels, "createInferBuilder_INTERNAL"};
static const uint8_t places[RP__TRT_METHOD_COUNT][RP__TRT_LAYOUTS] = {
#define PLACE(name, ten, eleven) {ten, eleven},
    RP__TRT_METHODS(PLACE)
#undef PLACE
};

/* ---- our logger: an object with a table of functions, as the library expects it */

static rp__mutex logging = RP__MUTEX_INIT;
static char told[512]; /* the last error; under the lock */

typedef struct interface_info {
    const char *kind;
    int32_t major, minor;
} interface_info;
static int32_t logger_language(void *self) {
    (void)self;
    return 0;
}
static interface_info logger_info(void *self) {
    (void)self;
    return (interface_info){"ILogger", 1, 0};
}
static void logger_end(void *self) { (void)self; }
static void logger_log(void *self, int32_t severity, const char *text) {
    (void)self;
    if (severity > 1 || !text) return; /* warnings and less */
    rp__lock(&logging);
    rp__printable(told, sizeof told, text);
    rp__unlock(&logging);
}
static rp__trt_function *const logger_functions[] = {(rp__trt_function *)logger_language,
                                                     (rp__trt_function *)logger_info, (rp__trt_function *)logger_end,
                                                     (rp__trt_function *)logger_end, (rp__trt_function *)logger_log};
static struct { rp__trt_function *const *functions; } logger = {logger_functions};

static void last_error(char *text, size_t bytes) {
    rp__lock(&logging);
    (void)snprintf(text, bytes, "%s", *told ? told : "it gave no reason");
    told[0] = 0;
    rp__unlock(&logging);
}

rp_status rp__trt_fail(const char *what) {
    char text[512];
    last_error(text, sizeof text);
    return rp__fail(RP_ERROR_COMPILE, "TensorRT %s %s: %s", lib.found.version, what, text);
}

/* ---- calls */

static rp__trt_function *const *table_of(rp__trt_object *object) {
    rp__trt_function *const *table;
    memcpy(&table, object, sizeof table);
    return table;
}

static rp__trt_object *impl_of(rp__trt_object *object) {
    rp__trt_object *impl;
    memcpy(&impl, (char *)object + sizeof(void *), sizeof impl);
    return impl;
}

rp__trt_function *rp__trt_find(rp__trt_object *object, rp__trt_method method, rp__trt_object **impl) {
    *impl = impl_of(object);
    return table_of(*impl)[places[method][lib.layout]];
}

/* Is it an object at all? Without a driver one release gives a small number. */
static bool is_object(const rp__trt_object *object) { return (uintptr_t)object >= 65536; }

void rp__trt_delete(rp__trt_object *object) {
    enum { DELETING = 1 };
    if (is_object(object)) ((void (*)(rp__trt_object *))table_of(object)[DELETING])(object);
}

/* ---- opening */

static bool take(void *handle, const char *name, void *into) {
    void *entry = dlsym(handle, name);
    if (!entry)
        (void)snprintf(lib.found.why, sizeof lib.found.why, "half of it is here: there is no function %s", name);
    memcpy(into, &entry, sizeof entry);
    return entry != NULL;
}

/* The parser's library lies beside the other, or on the loader's path; or one library has both. */
static bool open_parser(void *handle) {
    static const char *const stems[] = {"libnvonnxparser.so.%d", "libtensorrt_onnxparser_rtx.so.%d"};
    char name[64], path[700], refused[300];
    const char *stem = stems[lib.major < 10], *slash = strrchr(lib.found.where, '/');
    if (dlsym(handle, "createNvOnnxParser_INTERNAL")) return take(handle, "createNvOnnxParser_INTERNAL", &lib.parser);
    (void)snprintf(name, sizeof name, stem, lib.major);
    (void)snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - lib.found.where + 1) : 0, lib.found.where, name);
    if (slash && lib.major < 10) { /* its files have the whole version in their names */
        const char *whole = strstr(slash, ".so.");
        (void)snprintf(path, sizeof path, "%.*slibtensorrt_onnxparser_rtx%s", (int)(slash - lib.found.where + 1),
                       lib.found.where, whole ? whole : ".so");
    }
    if (slash && rp__library_refused(path, refused, sizeof refused)) {
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.180s: %s", path, refused);
        return false;
    }
    void *parser = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!parser) parser = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!parser) {
        const char *text = dlerror();
        (void)snprintf(lib.found.why, sizeof lib.found.why, "half of it is here: %.400s", text ? text : name);
        return false;
    }
    (void)snprintf(name, sizeof name, "getNvOnnxParserVersion");
    return take(parser, "createNvOnnxParser_INTERNAL", &lib.parser) && take(parser, name, &lib.parser_version);
}

/* Does a builder's logger stand where the layout says? */
static bool layout_fits(void) {
    rp__trt_object *builder = lib.builder(&logger, lib.number), *impl;
    if (!is_object(builder)) {
        char text[512];
        last_error(text, sizeof text);
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.120s makes no builder: %.300s", lib.found.where, text);
        return false;
    }
    rp__trt_function *f = rp__trt_find(builder, RP__TRT_BUILDER_LOGGER, &impl);
    const bool fits = ((rp__trt_object * (*)(rp__trt_object *)) f)(impl) == &logger;
    if (fits)
        rp__trt_delete(builder);
    else
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.300s: its functions do not lie where they are expected",
                       lib.found.where);
    return fits;
}

static void open_library(void) {
    void *entry;
    int (*number)(void);
    lib.found.forks = rp__door_forks();
    void *handle = rp__door_load(&where_it_is, lib.found.where, lib.found.why, &entry);
    if (!handle) return;
    memcpy(&lib.builder, &entry, sizeof lib.builder);
    if (!take(handle, "createInferRuntime_INTERNAL", &lib.runtime) || !take(handle, "getInferLibVersion", &number))
        return;
    lib.number = number();
    lib.major = lib.number / 10000;
    (void)snprintf(lib.found.version, sizeof lib.found.version, "%s%d.%d.%d", lib.major < 8 ? "RTX " : "", lib.major,
                   lib.number / 100 % 100, lib.number % 100);
    if (lib.major != 1 && lib.major != 10 && lib.major != 11) {
        (void)snprintf(lib.found.why, sizeof lib.found.why,
                       "%.300s is version %s; 10 and 11 are used, and TensorRT-RTX 1", lib.found.where,
                       lib.found.version);
        return;
    }
    lib.layout = lib.major == 10 ? RP__TRT_10 : RP__TRT_11;
    lib.found.here = layout_fits() && open_parser(handle);
    if (lib.found.here) lib.found.why[0] = 0;
}

bool rp__trt_open(char version[64], char where[512], char why[512]) {
    (void)pthread_once(&lib.once, open_library);
    return rp__door_answer(&lib.found, version, where, why);
}

/* ---- engines */

static rp__trt_object *call_plain(rp__trt_object *object, rp__trt_method method) {
    rp__trt_object *impl;
    rp__trt_function *f = rp__trt_find(object, method, &impl);
    return ((rp__trt_object * (*)(rp__trt_object *)) f)(impl);
}

static rp__trt_object *make_network(rp__trt_object *builder) {
    rp__trt_object *impl;
    rp__trt_function *f = rp__trt_find(builder, RP__TRT_BUILDER_NETWORK, &impl);
    const uint32_t flags = lib.layout == RP__TRT_10 ? RP__TRT_STRONGLY_TYPED : 0;
    return ((rp__trt_object * (*)(rp__trt_object *, uint32_t)) f)(impl, flags);
}

/* The only flag that is set from the start is that of TF32. */
static void clear_flags(rp__trt_object *config) {
    rp__trt_object *impl;
    rp__trt_function *f = rp__trt_find(config, RP__TRT_CONFIG_SET_FLAGS, &impl);
    ((void (*)(rp__trt_object *, uint32_t))f)(impl, 0);
}

/* The parser stays: its deletion has no place that is the same in all releases. */
static bool parse(rp__trt_object *network, const void *model, size_t bytes) {
    rp__trt_object *parser = lib.parser(network, &logger, lib.parser_version ? lib.parser_version() : lib.number);
    if (!is_object(parser)) return false;
    rp__trt_function *f = table_of(parser)[RP__TRT_PARSE];
    return ((bool (*)(rp__trt_object *, const void *, size_t, const char *))f)(parser, model, bytes, NULL);
}

static rp__trt_object *build(rp__trt_object *builder, rp__trt_object *network, rp__trt_object *config) {
    rp__trt_object *impl;
    rp__trt_function *f = rp__trt_find(builder, RP__TRT_BUILDER_BUILD, &impl);
    return ((rp__trt_object * (*)(rp__trt_object *, rp__trt_object *, rp__trt_object *)) f)(impl, network, config);
}

static rp_status copy_plan(rp__trt_object *host, rp__text *plan) {
    rp__trt_object *impl;
    rp__trt_function *size = rp__trt_find(host, RP__TRT_HOST_SIZE, &impl);
    const size_t bytes = ((size_t(*)(rp__trt_object *))size)(impl);
    rp__text_write(plan, call_plain(host, RP__TRT_HOST_DATA), bytes);
    return plan->failed ? RP__OOM("an engine of TensorRT") : RP_OK;
}

rp_status rp__trt_plan(const void *model, size_t bytes, bool tf32, rp__text *plan) {
    rp__trt_object *builder = lib.builder(&logger, lib.number), *network = NULL, *config = NULL, *host = NULL;
    rp_status status = RP_OK;
    memset(plan, 0, sizeof *plan);
    if (!is_object(builder)) return rp__trt_fail("makes no builder");
    network = make_network(builder);
    config = is_object(network) ? call_plain(builder, RP__TRT_BUILDER_CONFIG) : NULL;
    if (!is_object(config)) status = rp__trt_fail("makes no network");
    if (status == RP_OK && !tf32) clear_flags(config);
    if (status == RP_OK && !parse(network, model, bytes)) status = rp__trt_fail("refuses the model");
    if (status == RP_OK) {
        host = build(builder, network, config);
        if (!is_object(host)) status = rp__trt_fail("refuses the graph");
    }
    if (status == RP_OK) status = copy_plan(host, plan);
    rp__trt_delete(host);
    rp__trt_delete(config);
    rp__trt_delete(network);
    rp__trt_delete(builder);
    return status;
}

rp_status rp__trt_context(const void *plan, size_t bytes, rp__trt_object **engine, rp__trt_object **context) {
    static rp__mutex making = RP__MUTEX_INIT;
    static rp__trt_object *runtime; /* one a process: engines need it as long as they live */
    rp__trt_object *impl;
    *engine = *context = NULL;
    rp__lock(&making);
    if (!runtime) {
        runtime = lib.runtime(&logger, lib.number);
        if (is_object(runtime) && call_plain(runtime, RP__TRT_RUNTIME_LOGGER) != &logger) runtime = NULL;
        if (!is_object(runtime)) runtime = NULL;
    }
    if (runtime) {
        rp__trt_function *f = rp__trt_find(runtime, RP__TRT_RUNTIME_ENGINE, &impl);
        *engine = ((rp__trt_object * (*)(rp__trt_object *, const void *, size_t)) f)(impl, plan, bytes);
    }
    rp__unlock(&making);
    if (!runtime || !is_object(*engine)) return rp__trt_fail("does not take its own engine");
    rp__trt_function *f = rp__trt_find(*engine, RP__TRT_ENGINE_CONTEXT, &impl);
    *context = ((rp__trt_object * (*)(rp__trt_object *, int32_t)) f)(impl, 0);
    if (is_object(*context)) return RP_OK;
    rp__trt_delete(*engine);
    *engine = *context = NULL;
    return rp__trt_fail("makes no context");
}
