/* XLA as an engine, through any PJRT plug-in: a part becomes StableHLO text of known sizes and that an executable. Arguments on the plug-in's
   device, a CPU or the first GPU, are its views of our memory, and results are its memory, which the tensor owns; a plug-in of another
   device is given copies. A plug-in of CUDA has streams of its own: runs are ordered with ours on the GPU where the plug-in can say so, and
   who waits for the GPU is told of their failures; else the host waits. An index outside of its bounds is moved inside, as XLA does.
   Options: tf32 (0 or 1: products of float32 may round their operands; 0). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/env.h"
#include "device/allocator.h"
#include "device/capture.h"
#include "device/error_record.h"
#include "doors/door.h"
#include "doors/engines.h"
#include "doors/library.h"
#include "doors/xla/pjrt.h"
#include "doors/xla/text.h"
#include "ops/private.h"

/* ---- the plug-in */

static struct {
    pthread_once_t once;
    rp__door_found found;
    bool cpu, cuda;
    rp__pjrt_call *const *table;
    rp__pjrt_object *client, *device;
    /* of CUDA */
    rp__pjrt_call *wait_on; /* a stream of ours behind a buffer of the plug-in's; NULL: it cannot say so */
    rp_stream before;       /* the stream that its views may be defined on; native NULL: it does not look at such */
} lib = {.once = PTHREAD_ONCE_INIT};

static const char *const names[] = {"pjrt_c_api_cpu_plugin.so", NULL};
static const char *const wheels[][2] = {{"lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"},
                                        {"jax_plugins/xla_cuda13", "xla_cuda_plugin.so"},
                                        {"jax_plugins/xla_cuda12", "xla_cuda_plugin.so"},
                                        {NULL, NULL}};
static const rp__door_library where_it_is = {"REPRISE_PJRT_PLUGIN", names, wheels, "GetPjrtApi"};

enum { ALIGNED = 64 }; /* what XLA asks of memory that is not its own */
#define HEAD(x) ((rp__pjrt_head){.bytes = sizeof(x)})

/* The text of an error, which is gone then; false: there is none. */
static bool told(rp__pjrt_object *error, char *text, size_t bytes) {
    if (!error) return false;
    rp__pjrt_text message = {.head = HEAD(message), .of = error};
    (void)lib.table[RP__PJRT_ERROR_MESSAGE](&message);
    (void)snprintf(text, bytes, "%.*s", (int)(message.length < 900 ? message.length : 900),
                   message.text ? message.text : "");
    rp__pjrt_one gone = {.head = HEAD(gone), .object = error};
    (void)lib.table[RP__PJRT_ERROR_DESTROY](&gone);
    return true;
}

/* Calls a function of the table; an error becomes text. */
static bool failed(unsigned word, void *arguments, char *text, size_t bytes) {
    return told(lib.table[word](arguments), text, bytes);
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

/* A plug-in of GPUs takes most of the memory of one for itself when it begins, unless it is told not to; others may know no such option. */
static bool create(rp__pjrt_client *c) {
    static const char name[] = "preallocate";
    const char *file = strrchr(lib.found.where, '/');
    rp__pjrt_option lean = {
        .head = HEAD(lean), .name = name, .length = sizeof name - 1, .type = RP__PJRT_OPTION_BOOL, .n = 1};
    lean.is.flag = false;
    c->options = &lean;
    c->n_options = file && (strstr(file, "cuda") || strstr(file, "rocm") || strstr(file, "gpu"));
    bool bad = failed(RP__PJRT_CLIENT_CREATE, c, lib.found.why, sizeof lib.found.why);
    if (bad && c->n_options) {
        *c = (rp__pjrt_client){.head = c->head};
        bad = failed(RP__PJRT_CLIENT_CREATE, c, lib.found.why, sizeof lib.found.why);
    }
    c->options = NULL;
    return !bad;
}

static void not_ours_to_free(void *data, void *ctx) { (void)data, (void)ctx; }

/* A view of a GPU's memory, of what is there when `stream` has come as far as it is now (0: of what is there). False: why. */
static bool view_memory(void *data, const int64_t *size, unsigned ndim, int type, intptr_t stream,
                        rp__pjrt_object **buffer, char *why, size_t bytes) {
    rp__pjrt_view view = {.head = HEAD(view),
                          .client = lib.client,
                          .data = data,
                          .size = size,
                          .ndim = ndim,
                          .type = type,
                          .device = lib.device,
                          .gone = not_ours_to_free,
                          .stream = stream};
    if (failed(RP__PJRT_VIEW, &view, why, bytes)) return false;
    *buffer = view.buffer;
    return true;
}

/* How runs are ordered with our streams. Some plug-ins take any stream of a view and do not look at it: one that does refuses a
   stream that it does not know, such as a new one of ours. */
static void look_for_streams(void) {
    const rp__pjrt_extension *e = ((const void *const *)lib.table)[RP__PJRT_EXTENSIONS];
    while (e && e->type != RP__PJRT_EXTENSION_STREAM) e = e->next;
    if (!e || e->bytes < sizeof *e || !e->stream_of || !e->wait_on) return;
    lib.wait_on = e->wait_on;
    static const int64_t size[] = {1};
    char why[1024];
    rp__device *d = rp__device_get((rp_device){RP_DEVICE_CUDA, 0});
    rp__block *memory = NULL;
    rp__pjrt_object *buffer = NULL;
    rp__pjrt_stream_of of = {.bytes = sizeof of, .device = lib.device};
    rp__error_state before;
    rp__error_save(&before);
    rp_stream *stranger = d ? rp__stream_new(d) : NULL;
    if (stranger && stranger->device && !told(e->stream_of(&of), why, sizeof why) && of.stream &&
        rp__block_alloc(d, d->default_stream, ALIGNED, &memory) == RP_OK) {
        const int f32 = rp__dtypes[RP_F32].pjrt;
        if (!view_memory(memory->data, size, 1, f32, (intptr_t)stranger->native, &buffer, why, sizeof why) &&
            view_memory(memory->data, size, 1, f32, of.stream, &buffer, why, sizeof why))
            lib.before = (rp_stream){.device = d, .foreign = true, .native = (void *)of.stream};
        drop(RP__PJRT_BUFFER_DESTROY, buffer);
        rp__block_free(d, memory);
    }
    rp__stream_drop(stranger);
    (void)rp_error_take();
    rp__error_restore(&before);
}

static bool open_client(void) {
    rp__pjrt_head begin = HEAD(begin);
    rp__pjrt_client c = {.head = HEAD(c)};
    rp__pjrt_devices d = {.head = HEAD(d)};
    rp__pjrt_text name = {.head = HEAD(name)};
    if (failed(RP__PJRT_INITIALIZE, &begin, lib.found.why, sizeof lib.found.why) || !create(&c)) return false;
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
    lib.cuda = name.length == 4 && memcmp(name.text, "cuda", 4) == 0;
    const size_t at = strlen(lib.found.version);
    (void)snprintf(lib.found.version + at, sizeof lib.found.version - at, " for %.*s",
                   (int)(name.length < 24 ? name.length : 24), name.text);
    if (lib.cuda) look_for_streams();
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

/* A plug-in of another device is given copies of the CPU's memory where a user names it; one that was only found there is not. */
static bool runs_on(rp_device device) {
    if (device.type == RP_DEVICE_CPU) return lib.cpu || rp__env("REPRISE_PJRT_PLUGIN");
    return lib.cuda && device.type == RP_DEVICE_CUDA && device.index == 0;
}

/* Is memory of this device the plug-in's as well? */
static bool shared(rp_device device) { return device.type == RP_DEVICE_CPU ? lib.cpu : lib.cuda; }

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
    bool on_gpu;                          /* some of its values are CUDA's */
    uint64_t tag;                         /* of its last op, for who is told of a failure behind the call */
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

static rp_device device_of(const rp__door_part *p, const rp__door_value *v) {
    return p->ir->values[v->value].meta.device;
}

static rp_status write_text(const rp__door_part *p, bool tf32, rp__text *text) {
    rp__hlo h;
    uint32_t bad = RP__IR_NONE;
    rp__put_val *values = rp__calloc((size_t)p->n_in + p->n_out + p->n_writes + 1, sizeof *values),
                *out = values + p->n_in;
    if (!values) return RP__OOM("a program for XLA");
    rp__hlo_begin(&h, p->ir);
    h.tf32 = tf32;
    uint32_t writes = 0;
    for (uint32_t k = 0; k < p->n_in; k++) {
        const bool written = writes < p->n_writes && p->writes[writes] == k;
        /* a view of a GPU's memory is not given away: what is written there is copied behind the run */
        const bool donated = written && device_of(p, &p->in[k]).type == RP_DEVICE_CPU;
        values[k] = rp__hlo_arg(&h, &p->in[k].type, donated ? (int)(p->n_out + writes) : -1);
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
    if (!x) return RP__OOM("a program for XLA");
    x->part = p;
    x->forks = rp__door_forks();
    for (size_t k = 0; k < p->n_nodes; k++) {
        const rp__ir_node *n = &p->ir->nodes[p->nodes[k]];
        if (n->kind == RP__IR_OP) x->tag = rp__error_tag(n->op->name, n->site);
    }
    x->in = rp__calloc(p->n_in + 1u, sizeof *x->in);
    x->argument = rp__calloc(p->n_in + 1u, sizeof *x->argument);
    x->result = rp__calloc((size_t)p->n_out + p->n_writes + 1u, sizeof *x->result);
    x->written = rp__calloc(p->n_in + 1u, sizeof *x->written);
    for (uint32_t k = 0; k < p->n_writes && x->written; k++) x->written[p->writes[k]] = true;
    for (uint32_t k = 0; k < p->n_in; k++) x->on_gpu = x->on_gpu || device_of(p, &p->in[k]).type == RP_DEVICE_CUDA;
    for (uint32_t k = 0; k < p->n_out; k++) x->on_gpu = x->on_gpu || device_of(p, &p->out[k]).type == RP_DEVICE_CUDA;
    rp_status status = x->in && x->argument && x->result && x->written
                           ? write_text(p, rp__engine_switch(options, "tf32"), &text)
                           : RP__OOM("a program for XLA");
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

/* The same of an argument in CUDA's memory: always a view, which is as good for whatever lies at that address later. */
static rp_status bind_cuda(executable *x, uint32_t k, rp_tensor *t, rp_stream *ours) {
    const rp__door_value *v = &x->part->in[k];
    bound *b = &x->in[k];
    char why[1024];
    if ((uintptr_t)rp__tensor_data(t) % ALIGNED != 0) t = rp_clone(t); /* of the caller's scope */
    if (rp__tensor_is_error(t)) return rp_error_status();
    RP_TRY(rp__storage_used_by(t->storage, ours)); /* which goes on behind the run */
    if (RP__LIKELY(b->buffer && b->data == rp__tensor_data(t))) return RP_OK;
    drop(RP__PJRT_BUFFER_DESTROY, b->buffer);
    *b = (bound){0};
    if (!view_memory(rp__tensor_data(t), v->type.size, v->type.ndim, rp__dtypes[v->type.dtype].pjrt, 0, &b->buffer, why,
                     sizeof why))
        return rp__fail(RP_ERROR_STATE, "XLA (%s) refuses argument %u: %s", lib.found.version, k, why);
    x->argument[k] = b->buffer;
    b->data = rp__tensor_data(t);
    return RP_OK;
}

/* The buffer of an argument: a view that is there, or a new one. */
static rp_status bind(executable *x, uint32_t k, rp_tensor *t, bool stays, rp_stream *ours) {
    static char nothing[64] __attribute__((aligned(64))); /* the address of no elements */
    const rp__door_value *v = &x->part->in[k];
    bound *b = &x->in[k];
    char why[1024];
    const bool views = shared(t->device) && !stays;
    const void *data = rp__tensor_data(t);
    if (t->device.type == RP_DEVICE_CUDA && bytes_of(v) > 0) return bind_cuda(x, k, t, ours);
    if (!data || bytes_of(v) == 0) data = nothing;
    if (RP__LIKELY(b->buffer && (stays || b->data == data))) return RP_OK;
    drop(RP__PJRT_BUFFER_DESTROY, b->buffer);
    *b = (bound){0};
    rp__pjrt_from_host h = {.head = HEAD(h),
                            .client = lib.client,
                            .data = data,
                            .type = rp__dtypes[v->type.dtype].pjrt,
                            .size = v->type.size,
                            .ndim = v->type.ndim,
                            .semantics = !views          ? RP__PJRT_DURING_CALL
                                         : x->written[k] ? RP__PJRT_OURS_TO_WRITE
                                                         : RP__PJRT_ZERO_COPY,
                            .device = lib.device};
    if (failed(RP__PJRT_FROM_HOST, &h, why, sizeof why))
        return rp__fail(RP_ERROR_STATE, "XLA (%s) refuses argument %u: %s", lib.found.version, k, why);
    drop(RP__PJRT_EVENT_DESTROY, h.done);
    x->argument[k] = b->buffer = h.buffer;
    rp__pjrt_pointer at = {.head = HEAD(at), .buffer = h.buffer};
    if (views && !failed(RP__PJRT_POINTER, &at, why, sizeof why) && at.pointer == (uintptr_t)data)
        b->data = data; /* not a copy of what is there now */
    return RP_OK;
}

static atomic_uint given_back; /* results' memory, so far */

static void drop_buffer(void *buffer) {
    drop(RP__PJRT_BUFFER_DESTROY, buffer);
    atomic_fetch_add_explicit(&given_back, 1, memory_order_relaxed);
}

/* A tensor over the plug-in's memory; NULL: it cannot be one. */
static rp_tensor *own(const rp__door_part *p, const rp__door_value *v, rp__pjrt_object *buffer) {
    const rp__ir_value_info *info = &p->ir->values[v->value];
    char why[1024];
    const size_t bytes = bytes_of(v);
    rp__pjrt_pointer at = {.head = HEAD(at), .buffer = buffer};
    if (bytes == 0 || !shared(info->meta.device) || failed(RP__PJRT_POINTER, &at, why, sizeof why)) return NULL;
    const bool cpu = info->meta.device.type == RP_DEVICE_CPU;
    rp__device *d = rp__device_get(info->meta.device);
    /* on a GPU it is the plug-in's again when our streams have done what they had by the time that the tensor went */
    rp__storage *s = cpu ? rp__storage_wrap(info->meta.device, (void *)at.pointer, bytes, NULL, drop_buffer, buffer)
                         : (d ? rp__storage_foreign(d, (void *)at.pointer, bytes, drop_buffer, buffer) : NULL);
    if (!s) return NULL;
    if (!cpu && rp__block_used_by(s->block, rp__current_stream(d)) != RP_OK) {
        rp__storage_release(s); /* and the buffer */
        return rp__tensor_error();
    }
    s->foreign = false; /* made for us: nobody else writes it */
    return rp__tensor_over(info->meta.dtype, info->meta.size, info->stride, info->meta.ndim, 0, s);
}

static rp_tensor *copied(const rp__door_part *p, uint32_t k, rp__pjrt_object *buffer) {
    char why[1024];
    rp_tensor *t = rp__door_result(&p->out[k], p->ir);
    if (!rp__tensor_is_error(t) && t->device.type != RP_DEVICE_CPU && bytes_of(&p->out[k]) > 0) {
        (void)rp__fail(RP_ERROR_STATE, "XLA (%s) does not say where result %u lies", lib.found.version, k);
        t = rp__tensor_error();
    }
    rp__pjrt_to_host h = {.head = HEAD(h), .buffer = buffer, .to = rp__tensor_data(t), .bytes = bytes_of(&p->out[k])};
    if (!rp__tensor_is_error(t) && h.bytes > 0 &&
        (failed(RP__PJRT_TO_HOST, &h, why, sizeof why) || !wait_for(h.done, why, sizeof why))) {
        (void)rp__fail(RP_ERROR_STATE, "XLA (%s) does not give result %u: %s", lib.found.version, k, why);
        t = rp__tensor_error();
    }
    drop(RP__PJRT_BUFFER_DESTROY, buffer);
    return t;
}

static rp_status copy_written(const rp__door_part *p, const rp__door_value *v, rp_tensor *t, rp__pjrt_object *result) {
    if (bytes_of(v) == 0) {
        drop(RP__PJRT_BUFFER_DESTROY, result);
        return RP_OK;
    }
    rp_tensor *from = own(p, v, result);
    if (!from) {
        drop(RP__PJRT_BUFFER_DESTROY, result);
        return rp__fail(RP_ERROR_STATE, "XLA (%s) does not say where lies what it wrote", lib.found.version);
    }
    return rp__tensor_is_error(from) || rp__tensor_is_error(rp_copy_(t, from)) ? rp_error_status() : RP_OK;
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
        if (in[k]->device.type == RP_DEVICE_CUDA) {
            if (status == RP_OK)
                status = copy_written(x->part, &x->part->in[k], in[k], result);
            else
                drop(RP__PJRT_BUFFER_DESTROY, result);
            continue;
        }
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
        out[k] = own(x->part, &x->part->out[k], x->result[k]);
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

/* ---- order with our streams of the GPU */

/* Of a run that nobody waits for: its failure is told to who waits for the GPU next. */
static void is_done(rp__pjrt_object *error, void *tag) {
    char text[1024], said[1200];
    if (!told(error, text, sizeof text)) return;
    (void)snprintf(said, sizeof said, "XLA (%s) failed in the part that ends here, behind the call: %s",
                   lib.found.version, text);
    rp__error_record_put_text(rp__device_get((rp_device){RP_DEVICE_CUDA, 0}), (uint64_t)(uintptr_t)tag, said);
}

/* The plug-in's stream goes on behind what ours has been given. */
static rp_status follow(rp_stream *ours) {
    rp__device *d = ours->device;
    rp_event *e = rp_event_new(d->id, false);
    rp_status status = e->device ? d->ops->event_record(d, e, ours) : rp_error_status();
    if (status == RP_OK) status = d->ops->stream_wait_event(d, &lib.before, e);
    rp_event_release(e);
    return status;
}

/* A run computes behind what our current stream has been given: one of its arguments is defined there, on a stream of the plug-in's
   that follows ours. Without arguments in the GPU's memory it reads nothing of ours. */
static rp_status order_before(executable *x, rp_stream *ours) {
    char why[1024];
    uint32_t k = 0;
    while (k < x->part->n_in && !(x->in[k].data && device_of(x->part, &x->part->in[k]).type == RP_DEVICE_CUDA &&
                                  bytes_of(&x->part->in[k]) > 0))
        k++;
    if (k == x->part->n_in) return RP_OK;
    if (!lib.before.native)
        return ours->device->ops->stream_synchronize(ours->device, ours) == RP_OK ? RP_OK : RP__DOOR_EARLIER;
    const rp__door_value *v = &x->part->in[k];
    rp__pjrt_object *buffer;
    if (follow(ours) != RP_OK) return RP__DOOR_EARLIER;
    if (!view_memory((void *)(uintptr_t)x->in[k].data, v->type.size, v->type.ndim, rp__dtypes[v->type.dtype].pjrt,
                     (intptr_t)lib.before.native, &buffer, why, sizeof why))
        return rp__fail(RP_ERROR_STATE, "XLA (%s) refuses argument %u: %s", lib.found.version, k, why);
    drop(RP__PJRT_BUFFER_DESTROY, x->in[k].buffer);
    x->argument[k] = x->in[k].buffer = buffer;
    return RP_OK;
}

/* Our current stream goes on behind what the run computes. False: the plug-in cannot say so. */
static bool order_behind(executable *x, rp_stream *ours, rp__pjrt_object *done) {
    char why[1024];
    const uint32_t n = x->part->n_out + x->part->n_writes;
    if (!lib.wait_on || n == 0 || !done) return false;
    for (uint32_t k = 0; k < n; k++) {
        rp__pjrt_wait_on w = {.bytes = sizeof w, .stream = (intptr_t)ours->native, .buffer = x->result[k]};
        if (told(lib.wait_on(&w), why, sizeof why)) return false;
    }
    rp__pjrt_on_ready r = {.head = HEAD(r), .event = done, .call = is_done, .ctx = (void *)(uintptr_t)x->tag};
    if (failed(RP__PJRT_EVENT_ON_READY, &r, why, sizeof why)) return false;
    drop(RP__PJRT_EVENT_DESTROY, done);
    return true;
}

/* The host waits for the run: for all of it, or for its results where the plug-in gives no event. */
static bool wait_for_run(executable *x, rp__pjrt_object *done, char *why, size_t bytes) {
    if (done) return wait_for(done, why, bytes);
    for (uint32_t k = 0; k < x->part->n_out + x->part->n_writes; k++) {
        rp__pjrt_ready r = {.head = HEAD(r), .buffer = x->result[k]};
        if (failed(RP__PJRT_BUFFER_READY, &r, why, bytes) || !wait_for(r.event, why, bytes)) return false;
    }
    return true;
}

/* Results that are gone, and that our current stream was still to read, are the plug-in's again: were there such? */
static rp_status give_back(rp_stream *ours, bool *some) {
    const unsigned before = atomic_load_explicit(&given_back, memory_order_relaxed);
    RP_TRY(ours->device->ops->stream_synchronize(ours->device, ours));
    rp__foreign_collect(ours->device);
    *some = atomic_load_explicit(&given_back, memory_order_relaxed) != before;
    return RP_OK;
}

static rp_status run(void *made, rp_tensor *const *in, rp_tensor **out) {
    static const rp__pjrt_run_options plain = {.head = {.bytes = sizeof plain}};
    executable *x = made;
    char why[1024];
    if (x->forks != rp__door_forks())
        return rp__fail(RP_ERROR_STATE, "XLA was opened before the process forked, and its threads stayed behind");
    rp_stream *ours = NULL;
    if (x->on_gpu) {
        if (rp__captures_active()) return RP__DOOR_NOT_NOW; /* nobody may wait for a device meanwhile */
        rp__device *d = rp__device_get((rp_device){RP_DEVICE_CUDA, 0});
        if (!d) return rp_error_status();
        if (rp__error_record_check(d) != RP_OK) return RP__DOOR_EARLIER;
        rp__foreign_collect(d);
        ours = rp__current_stream(d);
    }
    for (uint32_t k = 0; k < x->part->n_in; k++)
        RP_TRY(bind(x, k, in[k] ? in[k] : x->part->in[k].tensor, !in[k], ours));
    if (ours) RP_TRY(order_before(x, ours));
    rp__pjrt_object *done[1] = {NULL}, *const * arguments[1] = {x->argument}, **results[1] = {x->result};
    rp__pjrt_execute e = {.head = HEAD(e),
                          .executable = x->loaded,
                          .options = &plain,
                          .arguments = arguments,
                          .n_devices = 1,
                          .n_arguments = x->part->n_in,
                          .results = results,
                          .done = done};
    bool began = !failed(RP__PJRT_EXECUTE, &e, why, sizeof why), some = false;
    if (!began && ours && give_back(ours, &some) != RP_OK) {
        forget_written(x);
        return RP__DOOR_EARLIER;
    }
    if (some) { /* it may have lacked that memory */
        done[0] = NULL;
        began = !failed(RP__PJRT_EXECUTE, &e, why, sizeof why);
    }
    if (!began || !((ours && order_behind(x, ours, done[0])) || wait_for_run(x, done[0], why, sizeof why))) {
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

static rp_status check(const rp__engine_options *options) { return rp__engine_check_switch(options, "xla", "tf32"); }

static const char *const keys[] = {"tf32", NULL};
RP__ENGINE_OF_DOOR(xla, .title = "XLA", .device = RP_DEVICE_CPU, .runs_on = runs_on, .check = check, .writes = true)
