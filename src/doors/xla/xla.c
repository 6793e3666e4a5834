/* XLA as an engine, through any PJRT plug-in: a part becomes StableHLO text of known sizes and that an executable. On a CPU arguments
   are the plug-in's views of our memory, and results are its memory, which the tensor owns; a plug-in of another device is given copies.
   An index outside of its bounds is moved inside, as XLA does. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "doors/door.h"
#include "doors/engines.h"
#include "doors/library.h"
#include "doors/xla/pjrt.h"
#include "doors/xla/text.h"

/* ---- the plug-in */

static struct {
    pthread_once_t once;
    rp__door_found found;
    bool cpu;
    rp__pjrt_call *const *table;
    rp__pjrt_object *client, *device;
} lib = {.once = PTHREAD_ONCE_INIT};

static const char *const names[] = {"pjrt_c_api_cpu_plugin.so", NULL};
static const char *const wheels[][2] = {{"lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"}, {NULL, NULL}};
static const rp__door_library where_it_is = {"REPRISE_PJRT_PLUGIN", names, wheels, "GetPjrtApi"};

#define HEAD(x) ((rp__pjrt_head){.bytes = sizeof(x)})

/* Calls a function of the table; an error becomes text. */
static bool failed(unsigned word, void *arguments, char *text, size_t bytes) {
    rp__pjrt_object *error = lib.table[word](arguments);
    if (!error) return false;
    rp__pjrt_text message = {.head = HEAD(message), .of = error};
    (void)lib.table[RP__PJRT_ERROR_MESSAGE](&message);
    (void)snprintf(text, bytes, "%.*s", (int)(message.length < 900 ? message.length : 900),
                   message.text ? message.text : "");
    rp__pjrt_one gone = {.head = HEAD(gone), .object = error};
    (void)lib.table[RP__PJRT_ERROR_DESTROY](&gone);
    return true;
}

static void drop(unsigned word, rp__pjrt_object *object) {
    char text[8];
    rp__pjrt_one one = {.head = HEAD(one), .object = object};
    if (object) (void)failed(word, &one, text, sizeof text);
}

static bool wait_for(rp__pjrt_object *event, char *why, size_t bytes) {
    rp__pjrt_one one = {.head = HEAD(one), .object = event};
    if (!event) return true;
    const bool bad = failed(RP__PJRT_EVENT_AWAIT, &one, why, bytes);
    drop(RP__PJRT_EVENT_DESTROY, event);
    return !bad;
}

static bool open_client(void) {
    rp__pjrt_head begin = HEAD(begin);
    rp__pjrt_client c = {.head = HEAD(c)};
    rp__pjrt_devices d = {.head = HEAD(d)};
    rp__pjrt_text name = {.head = HEAD(name)};
    if (failed(RP__PJRT_INITIALIZE, &begin, lib.found.why, sizeof lib.found.why) ||
        failed(RP__PJRT_CLIENT_CREATE, &c, lib.found.why, sizeof lib.found.why))
        return false;
    lib.client = d.client = c.client;
    name.of = c.client;
    if (failed(RP__PJRT_PLATFORM, &name, lib.found.why, sizeof lib.found.why) ||
        failed(RP__PJRT_DEVICES, &d, lib.found.why, sizeof lib.found.why))
        return false;
    if (d.n == 0) {
        (void)snprintf(lib.found.why, sizeof lib.found.why, "the plug-in has no device");
        return false;
    }
    lib.device = d.devices[0];
    lib.cpu = name.length == 3 && memcmp(name.text, "cpu", 3) == 0;
    const size_t at = strlen(lib.found.version);
    (void)snprintf(lib.found.version + at, sizeof lib.found.version - at, " for %.*s",
                   (int)(name.length < 24 ? name.length : 24), name.text);
    return true;
}

static void open_library(void) {
    void *entry;
    int version[2];
    size_t bytes;
    lib.found.forks = rp__door_forks();
    if (!rp__door_load(&where_it_is, lib.found.where, lib.found.why, &entry)) return;
    const void *(*table_of)(void);
    memcpy(&table_of, &entry, sizeof table_of);
    const char *table = table_of();
    if (!table) {
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.300s gives no table of functions", lib.found.where);
        return;
    }
    memcpy(&bytes, table, sizeof bytes);
    memcpy(version, table + RP__PJRT_VERSION * sizeof(void *), sizeof version);
    (void)snprintf(lib.found.version, sizeof lib.found.version, "PJRT %d.%d", version[0], version[1]);
    if (version[0] != 0 || version[1] < RP__PJRT_OLDEST_MINOR || version[1] > 100000) {
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.300s is PJRT %d.%d; 0.%d and newer ones of 0 are used",
                       lib.found.where, version[0], version[1], RP__PJRT_OLDEST_MINOR);
        return;
    }
    if (bytes < RP__PJRT_WORDS * sizeof(void *)) {
        (void)snprintf(lib.found.why, sizeof lib.found.why,
                       "%.300s: its table of functions has %zu bytes, and is laid out otherwise", lib.found.where,
                       bytes);
        return;
    }
    lib.table = (rp__pjrt_call *const *)(const void *)table;
    lib.found.here = open_client();
    if (lib.found.here) lib.found.why[0] = 0;
}

static bool open_door(char version[64], char where[512], char why[512]) {
    (void)pthread_once(&lib.once, open_library);
    return rp__door_answer(&lib.found, version, where, why);
}

/* ---- what it takes */

static rp__put_val add_argument(rp__emitter *e, const rp__put_type *type) {
    return rp__hlo_arg((rp__hlo *)e, type, -1);
}

static bool takes(const rp__engine_options *options, const rp_ir *ir, const rp__ir_node *n, char why[256]) {
    rp__hlo h;
    (void)options;
    rp__hlo_begin(&h, ir);
    const bool good = rp__door_takes(&h.emitter, ir, n, add_argument);
    if (!good) (void)snprintf(why, 256, "%s", h.emitter.why);
    rp__hlo_end(&h);
    return good;
}

/* ---- executables */

typedef struct bound {
    const void *data; /* of our memory that the buffer is a view of; NULL: it is a copy */
    rp__pjrt_object *buffer;
} bound;

typedef struct executable {
    const rp__door_part *part;
    rp__pjrt_object *loaded;
    bound *in;
    rp__pjrt_object **argument, **result; /* results: those of the part, then what it writes */
    bool *written;                        /* per argument: donated, and its memory holds the result */
    unsigned forks;
} executable;

static void destroy(void *made) {
    executable *x = made;
    if (x->forks == rp__door_forks()) {
        for (uint32_t k = 0; x->in && k < x->part->n_in; k++) drop(RP__PJRT_BUFFER_DESTROY, x->in[k].buffer);
        drop(RP__PJRT_EXECUTABLE_DESTROY, x->loaded);
    }
    rp__free(x->in);
    rp__free(x->argument);
    rp__free(x->result);
    rp__free(x->written);
    rp__free(x);
}

static rp_status write_text(const rp__door_part *p, rp__text *text) {
    rp__hlo h;
    uint32_t bad = RP__IR_NONE;
    rp__put_val *values = rp__calloc((size_t)p->n_in + p->n_out + p->n_writes + 1, sizeof *values),
                *out = values + p->n_in;
    if (!values) return RP__OOM("a program for XLA");
    rp__hlo_begin(&h, p->ir);
    uint32_t writes = 0;
    for (uint32_t k = 0; k < p->n_in; k++) {
        const bool written = writes < p->n_writes && p->writes[writes] == k;
        values[k] = rp__hlo_arg(&h, &p->in[k].type, written ? (int)(p->n_out + writes) : -1);
        writes += written;
    }
    rp_status status = RP_OK;
    if (!rp__door_write(&h.emitter, p, values, out, &bad))
        status = rp__fail(RP_ERROR_COMPILE, "a graph for XLA: %s", h.emitter.why);
    else if (!rp__hlo_module(&h, out, p->n_out + p->n_writes, text))
        status = RP__OOM("a program for XLA");
    rp__hlo_end(&h);
    rp__free(values);
    return status;
}

static rp_status compile_text(const rp__text *text, rp__pjrt_object **out) {
    /* CompileOptionsProto: executable_build_options {device_ordinal: -1, num_replicas: 1, num_partitions: 1} */
    static const char options[] = "\x1a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x01\x28\x01";
    static const char format[] = "mlir";
    char why[1024];
    const rp__pjrt_program program = {
        .head = HEAD(program), .code = text->data, .code_bytes = text->length, .format = format, .format_bytes = 4};
    rp__pjrt_compile c = {.head = HEAD(c),
                          .client = lib.client,
                          .program = &program,
                          .options = options,
                          .options_bytes = sizeof options - 1};
    if (failed(RP__PJRT_COMPILE, &c, why, sizeof why))
        return rp__fail(RP_ERROR_COMPILE, "XLA (%s) refuses the graph: %s", lib.found.version, why);
    *out = c.executable;
    return RP_OK;
}

static rp_status build(const rp__door_part *p, const rp__engine_options *options, void **made) {
    executable *x = rp__calloc(1, sizeof *x);
    rp__text text = {0};
    (void)options;
    if (!x) return RP__OOM("a program for XLA");
    x->part = p;
    x->forks = rp__door_forks();
    x->in = rp__calloc(p->n_in + 1u, sizeof *x->in);
    x->argument = rp__calloc(p->n_in + 1u, sizeof *x->argument);
    x->result = rp__calloc((size_t)p->n_out + p->n_writes + 1u, sizeof *x->result);
    x->written = rp__calloc(p->n_in + 1u, sizeof *x->written);
    for (uint32_t k = 0; k < p->n_writes && x->written; k++) x->written[p->writes[k]] = true;
    rp_status status =
        x->in && x->argument && x->result && x->written ? write_text(p, &text) : RP__OOM("a program for XLA");
    if (status == RP_OK) status = compile_text(&text, &x->loaded);
    rp__text_free(&text);
    if (status != RP_OK) {
        destroy(x);
        return status;
    }
    *made = x;
    return RP_OK;
}

static size_t bytes_of(const rp__door_value *v) {
    return (size_t)rp__numel(v->type.size, v->type.ndim) * rp__dtype_bytes(v->type.dtype);
}

/* The buffer of an argument: a view that is there, or a new one. */
static rp_status bind(executable *x, uint32_t k, const rp_tensor *t, bool stays) {
    static char nothing[64] __attribute__((aligned(64))); /* the address of no elements */
    const rp__door_value *v = &x->part->in[k];
    bound *b = &x->in[k];
    char why[1024];
    const void *data = rp__tensor_data(t);
    if (!data) data = nothing;
    if (RP__LIKELY(b->buffer && (stays || b->data == data))) return RP_OK;
    drop(RP__PJRT_BUFFER_DESTROY, b->buffer);
    *b = (bound){0};
    rp__pjrt_from_host h = {.head = HEAD(h),
                            .client = lib.client,
                            .data = data,
                            .type = rp__dtypes[v->type.dtype].pjrt,
                            .size = v->type.size,
                            .ndim = v->type.ndim,
                            .semantics = !lib.cpu || stays ? RP__PJRT_DURING_CALL
                                         : x->written[k]   ? RP__PJRT_OURS_TO_WRITE
                                                           : RP__PJRT_ZERO_COPY,
                            .device = lib.device};
    if (failed(RP__PJRT_FROM_HOST, &h, why, sizeof why))
        return rp__fail(RP_ERROR_STATE, "XLA (%s) refuses argument %u: %s", lib.found.version, k, why);
    drop(RP__PJRT_EVENT_DESTROY, h.done);
    x->argument[k] = b->buffer = h.buffer;
    rp__pjrt_pointer at = {.head = HEAD(at), .buffer = h.buffer};
    if (lib.cpu && !stays && !failed(RP__PJRT_POINTER, &at, why, sizeof why) && at.pointer == (uintptr_t)data)
        b->data = data; /* not a copy of what is there now */
    return RP_OK;
}

static void drop_buffer(void *buffer) { drop(RP__PJRT_BUFFER_DESTROY, buffer); }

/* A tensor over the plug-in's memory. */
static rp_tensor *own(const rp__door_part *p, uint32_t k, rp__pjrt_object *buffer) {
    const rp__door_value *v = &p->out[k];
    const rp__ir_value_info *info = &p->ir->values[v->value];
    char why[1024];
    const size_t bytes = bytes_of(v);
    rp__pjrt_pointer at = {.head = HEAD(at), .buffer = buffer};
    if (bytes == 0 || !lib.cpu || failed(RP__PJRT_POINTER, &at, why, sizeof why)) return NULL;
    rp__storage *s = rp__storage_wrap(info->meta.device, (void *)at.pointer, bytes, NULL, drop_buffer, buffer);
    if (!s) return NULL;
    s->foreign = false; /* made for us: nobody else writes it */
    return rp__tensor_over(info->meta.dtype, info->meta.size, info->stride, info->meta.ndim, 0, s);
}

static rp_tensor *copied(const rp__door_part *p, uint32_t k, rp__pjrt_object *buffer) {
    char why[1024];
    rp_tensor *t = rp__door_result(&p->out[k], p->ir);
    rp__pjrt_to_host h = {.head = HEAD(h), .buffer = buffer, .to = rp__tensor_data(t), .bytes = bytes_of(&p->out[k])};
    if (!rp__tensor_is_error(t) && h.bytes > 0 &&
        (failed(RP__PJRT_TO_HOST, &h, why, sizeof why) || !wait_for(h.done, why, sizeof why))) {
        (void)rp__fail(RP_ERROR_STATE, "XLA (%s) does not give result %u: %s", lib.found.version, k, why);
        t = rp__tensor_error();
    }
    drop(RP__PJRT_BUFFER_DESTROY, buffer);
    return t;
}

/* What a run wrote: into our memory, whose buffer is the next call's argument; or elsewhere, where it could not be given that. */
static rp_status take_written(executable *x, rp_tensor *const *in) {
    char why[1024];
    rp_status status = RP_OK;
    for (uint32_t j = 0; j < x->part->n_writes; j++) {
        const uint32_t k = x->part->writes[j];
        rp__pjrt_object *result = x->result[x->part->n_out + j];
        const size_t bytes = bytes_of(&x->part->in[k]);
        void *data = rp__tensor_data(in[k]);
        rp__pjrt_pointer at = {.head = HEAD(at), .buffer = result};
        drop(RP__PJRT_BUFFER_DESTROY, x->in[k].buffer); /* it was donated */
        x->in[k] = (bound){0};
        if (lib.cpu && data && !failed(RP__PJRT_POINTER, &at, why, sizeof why) && at.pointer == (uintptr_t)data) {
            x->in[k] = (bound){data, result};
            x->argument[k] = result;
            continue;
        }
        rp__pjrt_to_host h = {.head = HEAD(h), .buffer = result, .to = data, .bytes = bytes};
        if (bytes > 0 && status == RP_OK &&
            (failed(RP__PJRT_TO_HOST, &h, why, sizeof why) || !wait_for(h.done, why, sizeof why)))
            status = rp__fail(RP_ERROR_STATE, "XLA (%s) does not give what it wrote: %s", lib.found.version, why);
        drop(RP__PJRT_BUFFER_DESTROY, result);
    }
    return status == RP_OK ? RP_OK : RP__DOOR_SPOILT;
}

static rp_status take_results(executable *x, rp_tensor **out) {
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < x->part->n_out; k++) {
        if (status != RP_OK) {
            drop(RP__PJRT_BUFFER_DESTROY, x->result[k]);
            continue;
        }
        out[k] = own(x->part, k, x->result[k]);
        if (!out[k]) out[k] = copied(x->part, k, x->result[k]);
        if (rp__tensor_is_error(out[k])) status = rp_error_status();
    }
    return status;
}

/* Buffers that a failed run was given to write are nobody knows what. */
static void forget_written(executable *x) {
    for (uint32_t j = 0; j < x->part->n_writes; j++) {
        bound *b = &x->in[x->part->writes[j]];
        drop(RP__PJRT_BUFFER_DESTROY, b->buffer);
        *b = (bound){0};
    }
}

static rp_status run(void *made, rp_tensor *const *in, rp_tensor **out) {
    static const rp__pjrt_run_options plain = {.head = {.bytes = sizeof plain}};
    executable *x = made;
    char why[1024];
    if (x->forks != rp__door_forks())
        return rp__fail(RP_ERROR_STATE, "XLA was opened before the process forked, and its threads stayed behind");
    for (uint32_t k = 0; k < x->part->n_in; k++) RP_TRY(bind(x, k, in[k] ? in[k] : x->part->in[k].tensor, !in[k]));
    rp__pjrt_object *done[1] = {NULL}, *const * arguments[1] = {x->argument}, **results[1] = {x->result};
    rp__pjrt_execute e = {.head = HEAD(e),
                          .executable = x->loaded,
                          .options = &plain,
                          .arguments = arguments,
                          .n_devices = 1,
                          .n_arguments = x->part->n_in,
                          .results = results,
                          .done = done};
    const bool began = !failed(RP__PJRT_EXECUTE, &e, why, sizeof why);
    if (!began || !wait_for(done[0], why, sizeof why)) {
        for (uint32_t k = 0; k < x->part->n_out + x->part->n_writes && began; k++)
            drop(RP__PJRT_BUFFER_DESTROY, x->result[k]);
        forget_written(x);
        (void)rp__fail(RP_ERROR_STATE, "XLA (%s) failed: %s", lib.found.version, why);
        return x->part->n_writes ? RP__DOOR_SPOILT : RP_ERROR_STATE;
    }
    const rp_status written = take_written(x, in), taken = take_results(x, out);
    if (taken != RP_OK && x->part->n_writes) return RP__DOOR_SPOILT;
    return written == RP_OK ? taken : written;
}

static const char *const keys[] = {NULL};
RP__ENGINE_OF_DOOR(xla, .title = "XLA", .device = RP_DEVICE_CPU, .writes = true)
