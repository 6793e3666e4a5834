/* What stands where TensorRT would (tests/test_tensorrt.c): objects with tables of functions, laid out as LAYOUT (10 or 11) has them, which
   say that they are VERSION. It computes one thing: it copies 64 bytes of its input to its output on the stream that it is given.
   Faults: NO_PARSER, REFUSES (every model), FAILS (every run). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void any(void);
typedef struct object {
    any *const *deletes;
    void *impl;
} object;

static void gone(void *self) { (void)self; }
static any *const deletes[] = {(any *)gone, (any *)gone};
#define OBJECT(name)                                                                                                   \
    static any *name##_table[64];                                                                                      \
    static struct { any **functions; } name##_impl = {name##_table};                                                   \
    static object name = {deletes, &name##_impl};
OBJECT(builder)
OBJECT(network)
OBJECT(config)
OBJECT(host)
OBJECT(runtime)
OBJECT(engine)
OBJECT(context)
#define AT(ten, eleven) (LAYOUT == 10 ? (ten) : (eleven))

static void *logger;
static uint32_t flags = 1 << 6;
static char *in, *out;
static const char plan[] = "a plan";

static void say(const char *text) {
    typedef void log(void *self, int severity, const char *text);
    ((log *)(*(any ***)logger)[4])(logger, 1, text);
}

static void *make_network(void *self, uint32_t kind) {
    (void)self;
    if (kind == AT(2u, 0u)) return &network;
    say("there are no networks of that kind");
    return NULL;
}
static void *make_config(void *self) { return (void)self, &config; }
static void *build(void *self, void *n, void *c) {
    (void)self;
    if (n == &network && c == &config && flags == EXPECTED_FLAGS) return &host;
    say("flags are not as expected");
    return NULL;
}
static void *whose(void *self) { return (void)self, logger; }
static void set_flags(void *self, uint32_t to) { (void)self, flags = to; }
static const void *data(void *self) { return (void)self, plan; }
static size_t size(void *self) { return (void)self, sizeof plan; }
static void *make_engine(void *self, const void *bytes, size_t n) {
    (void)self;
    return n == sizeof plan && memcmp(bytes, plan, n) == 0 ? &engine : NULL;
}
static void *make_context(void *self, int32_t strategy) { return (void)self, strategy == 0 ? &context : NULL; }
static bool set_address(void *self, const char *name, void *p) {
    (void)self;
    if (strcmp(name, "in0") == 0) in = p;
    if (strcmp(name, "out0") == 0) out = p;
    return strcmp(name, "in0") == 0 || strcmp(name, "out0") == 0;
}
static bool enqueue(void *self, void *stream) {
    (void)self;
#ifdef FAILS
    say("the stream is on fire");
    return false;
#endif
    typedef int copy(uint64_t to, uint64_t from, size_t bytes, void *stream);
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    copy *f = cuda ? (copy *)dlsym(cuda, "cuMemcpyDtoDAsync_v2") : NULL;
    return f && f((uintptr_t)out, (uintptr_t)in, 64, stream) == 0;
}

int getInferLibVersion(void) { return VERSION; }
void *createInferBuilder_INTERNAL(void *l, int version) {
    logger = l;
    builder_table[AT(7, 5)] = (any *)make_config;
    builder_table[AT(8, 6)] = (any *)make_network;
    builder_table[AT(14, 11)] = (any *)build;
    builder_table[AT(13, 16)] = (any *)size; /* where the other major's logger would be: some other function */
    builder_table[AT(16, 13)] = (any *)whose;
    config_table[AT(8, 6)] = (any *)set_flags;
    host_table[2] = (any *)data;
    host_table[3] = (any *)size;
    return version == VERSION ? &builder : NULL;
}
void *createInferRuntime_INTERNAL(void *l, int version) {
    logger = l;
    runtime_table[3] = (any *)make_engine;
    runtime_table[AT(11, 10)] = (any *)whose;
    engine_table[5] = (any *)make_context;
    context_table[AT(24, 23)] = (any *)set_address;
    context_table[AT(37, 36)] = (any *)enqueue;
    return version == VERSION ? &runtime : NULL;
}

#ifndef NO_PARSER
static bool parse(void *self, const void *model, size_t n, const char *path) {
    (void)self;
#ifdef REFUSES
    say("Relu is beneath it");
    return false;
#endif
    return !path && memmem(model, n, "Relu", 4);
}
static any *parser_table[] = {(any *)parse};
static struct { any **functions; } parser = {parser_table};
void *createNvOnnxParser_INTERNAL(void *n, void *l, int version) {
    return n == &network && l == logger && version > 0 ? &parser : NULL;
}
#endif
