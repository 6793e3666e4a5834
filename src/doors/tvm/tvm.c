/* TVM as an engine: a part becomes an ONNX model, that a module (compile.h), and that a virtual machine in this process. Arguments are
   views of our memory, results the machine's memory, which the tensor owns.
   Options: target (TVM's words, "llvm" or a JSON object), python (the program that has TVM), seconds (for its compiler). */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/trust.h"
#include "doors/engines.h"
#include "doors/library.h"
#include "doors/onnx/part.h"
#include "doors/tvm/compile.h"
#include "doors/tvm/ffi.h"

/* ---- the library */

enum { OPSET = 18, COMPILE_SECONDS = 600 };

static struct {
    pthread_once_t once;
    rp__door_found found;
    rp__tvm tvm;
    void *load, *function, *size, *item; /* of modules and arrays */
    char python[512];
} lib = {.once = PTHREAD_ONCE_INIT};

static const char *const names[] = {"libtvm_ffi.so", NULL};
static const char *const wheels[][2] = {{"tvm_ffi/lib", "libtvm_ffi.so"}, {NULL, NULL}};
static const rp__door_library where_it_is = {"REPRISE_TVM", names, wheels, "TVMFFIFunctionCall"};

/* The error that a call left, which it releases. */
static void take_error(char *text, size_t bytes) {
    void *error = NULL;
    lib.tvm.error(&error);
    if (!error) {
        (void)snprintf(text, bytes, "it gave no reason");
        return;
    }
    rp__tvm_bytes cell[2];
    memcpy(cell, (const char *)error + RP__TVM_HEADER, sizeof cell);
    (void)snprintf(text, bytes, "%.*s: %.*s", (int)(cell[0].n < 60 ? cell[0].n : 60), cell[0].data,
                   (int)(cell[1].n < 700 ? cell[1].n : 700), cell[1].data);
    (void)lib.tvm.release(error);
}

static bool global(const char *name, void **out) {
    const rp__tvm_bytes text = {name, strlen(name)};
    if (lib.tvm.global(&text, out) != 0) {
        take_error(lib.found.why, sizeof lib.found.why);
        return false;
    }
    if (!*out) (void)snprintf(lib.found.why, sizeof lib.found.why, "%.300s has no function %s", lib.found.where, name);
    return *out != NULL;
}

/* The runtimes are libraries of the package beside that of the functions: .../tvm_ffi/lib and .../tvm/lib. */
static bool open_runtime(const char *file) {
    char path[700], refused[300];
    const char *package = strstr(lib.found.where, "/tvm_ffi/lib/");
    if (package)
        (void)snprintf(path, sizeof path, "%.*s/tvm/lib/%s", (int)(package - lib.found.where), lib.found.where, file);
    else
        (void)snprintf(path, sizeof path, "%s", file);
    if (package && rp__library_refused(path, refused, sizeof refused)) {
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.180s: %s", path, refused);
        return false;
    }
    dlerror();
    if (dlopen(path, RTLD_NOW | RTLD_GLOBAL)) return true;
    const char *text = dlerror();
    (void)snprintf(lib.found.why, sizeof lib.found.why, "half of it is here: %.400s", text ? text : path);
    return false;
}

/* The Python program whose package it is; python3 where that is not known. */
static void find_python(void) {
    (void)snprintf(lib.python, sizeof lib.python, "%s", lib.found.where);
    char *folder = strstr(lib.python, "/lib/python3");
    if (folder) (void)snprintf(folder, sizeof lib.python - (size_t)(folder - lib.python), "/bin/python3");
    if (!folder || access(lib.python, X_OK) != 0) (void)snprintf(lib.python, sizeof lib.python, "python3");
}

static void open_library(void) {
    void *entry;
    lib.found.forks = rp__door_forks();
    void *handle = rp__door_load(&where_it_is, lib.found.where, lib.found.why, &entry);
    if (!handle) return;
#define TAKE(member, name, result, parameters)                                                                         \
    entry = dlsym(handle, name);                                                                                       \
    if (!entry)                                                                                                        \
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.300s has no function %s", lib.found.where, name);       \
    if (!entry) return;                                                                                                \
    memcpy(&lib.tvm.member, &entry, sizeof lib.tvm.member);
    RP__TVM_FUNCTIONS(TAKE)
#undef TAKE
    rp__tvm_version v = {0};
    lib.tvm.version(&v);
    (void)snprintf(lib.found.version, sizeof lib.found.version, "tvm_ffi %u.%u.%u", v.major, v.minor, v.patch);
    if (v.major != 0 || v.minor != 1) {
        (void)snprintf(lib.found.why, sizeof lib.found.why, "%.300s is tvm_ffi %u.%u; 0.1 is used", lib.found.where,
                       v.major, v.minor);
        return;
    }
    find_python();
    lib.found.here = open_runtime("libtvm_runtime.so") && open_runtime("libtvm_runtime_extra.so") &&
                     global("ffi.ModuleLoadFromFile", &lib.load) && global("ffi.ModuleGetFunction", &lib.function) &&
                     global("ffi.ArraySize", &lib.size) && global("ffi.ArrayGetItem", &lib.item);
    if (lib.found.here) lib.found.why[0] = 0;
}

static bool open_door(char version[64], char where[512], char why[512]) {
    (void)pthread_once(&lib.once, open_library);
    return rp__door_answer(&lib.found, version, where, why);
}

static bool takes(const rp__engine_options *options, const rp_ir *ir, const rp__ir_node *n, char why[256]) {
    (void)options;
    return rp__onnx_takes(ir, n, OPSET, true, why);
}

/* ---- machines */

typedef struct machine {
    const rp__door_part *part;
    rp__onnx_part onnx; /* which inputs; its model is gone */
    void *module, *vm, *run;
    rp__tvm_tensor *tensor; /* per input */
    rp__tvm_any *argument;  /* likewise */
    unsigned forks;
} machine;

static bool is_object(const rp__tvm_any *a) { return a->type >= 64 && a->v.object; }
static void drop(void *object) {
    if (object) (void)lib.tvm.release(object);
}

static void destroy(void *made) {
    machine *m = made;
    if (m->forks == rp__door_forks()) {
        drop(m->run);
        drop(m->vm);
        drop(m->module);
    }
    rp__onnx_part_free(&m->onnx);
    rp__free(m->tensor);
    rp__free(m->argument);
    rp__free(m);
}

static rp_status call(void *function, const rp__tvm_any *in, int32_t n, rp__tvm_any *out) {
    char why[800];
    *out = (rp__tvm_any){.type = 0};
    if (lib.tvm.call(function, in, n, out) == 0) return RP_OK;
    take_error(why, sizeof why);
    return rp__fail(RP_ERROR_COMPILE, "TVM (%s): %s", lib.found.version, why);
}

static rp__tvm_any text_of(const char *s) { return (rp__tvm_any){.type = RP__TVM_TEXT, .v.text = s}; }
static rp__tvm_any int_of(int64_t i) { return (rp__tvm_any){.type = RP__TVM_INT, .v.i = i}; }

static rp_status function_of(void *module, int32_t type, const char *name, void **out) {
    const rp__tvm_any in[] = {{.type = type, .v.object = module}, text_of(name), {.type = RP__TVM_BOOL, .v.i = 1}};
    rp__tvm_any found;
    RP_TRY(call(lib.function, in, 3, &found));
    *out = is_object(&found) ? found.v.object : NULL;
    return *out ? RP_OK
                : rp__fail(RP_ERROR_COMPILE, "TVM (%s): its module has no function %s", lib.found.version, name);
}

static rp_status start_machine(machine *m, const char *path) {
    const rp__tvm_any file = text_of(path), where[] = {int_of(RP__TVM_CPU), int_of(0), int_of(RP__TVM_POOLED)};
    rp__tvm_any module, vm, nothing;
    void *load = NULL, *begin = NULL;
    RP_TRY(call(lib.load, &file, 1, &module));
    m->module = is_object(&module) ? module.v.object : NULL;
    rp_status status = function_of(m->module, module.type, "vm_load_executable", &load);
    if (status == RP_OK) status = call(load, NULL, 0, &vm);
    if (status == RP_OK) m->vm = is_object(&vm) ? vm.v.object : NULL;
    if (status == RP_OK) status = function_of(m->vm, vm.type, "vm_initialization", &begin);
    if (status == RP_OK) status = call(begin, where, 3, &nothing);
    if (status == RP_OK) status = function_of(m->vm, vm.type, "main", &m->run);
    drop(load);
    drop(begin);
    return status;
}

static void type_of(rp_dtype dtype, rp__tvm_tensor *t) {
    t->bits = (uint8_t)(8 * rp__dtype_bytes(dtype));
    t->lanes = 1;
    t->code = rp__dtypes[dtype].dlpack;
}

static void describe(machine *m) {
    for (uint32_t k = 0; k < m->onnx.n_in; k++) {
        const rp__door_value *v = &m->part->in[m->onnx.in_of[k]];
        rp__tvm_tensor *t = &m->tensor[k];
        *t = (rp__tvm_tensor){
            .device_type = RP__TVM_CPU, .ndim = v->type.ndim, .shape = (int64_t *)(uintptr_t)v->type.size};
        type_of(v->type.dtype, t);
        m->argument[k] = (rp__tvm_any){.type = RP__TVM_DLTENSOR, .v.object = t};
    }
}

static rp_status build(const rp__door_part *p, const rp__engine_options *options, void **made) {
    const char *target = rp__engine_option(options, "target"), *python = rp__engine_option(options, "python"),
               *seconds = rp__engine_option(options, "seconds");
    char path[RP__DISK_PATH];
    machine *m = rp__calloc(1, sizeof *m);
    if (!m) return RP__OOM("a machine of TVM");
    m->part = p;
    m->forks = rp__door_forks();
    rp_status status = rp__onnx_part_write(p, "TVM", OPSET, &m->onnx);
    m->tensor = rp__calloc(m->onnx.n_in + 1u, sizeof *m->tensor);
    m->argument = rp__calloc(m->onnx.n_in + 1u, sizeof *m->argument);
    if (status == RP_OK && (!m->tensor || !m->argument)) status = RP__OOM("a machine of TVM");
    if (status == RP_OK)
        status = rp__tvm_compile(python ? python : lib.python, &m->onnx.model, target ? target : "llvm",
                                 lib.found.version, seconds ? atoi(seconds) : COMPILE_SECONDS, path);
    rp__text_free(&m->onnx.model);
    if (status == RP_OK) status = start_machine(m, path);
    if (status != RP_OK) {
        destroy(m);
        return status;
    }
    describe(m);
    *made = m;
    return RP_OK;
}

/* ---- running */

/* Its kernels read whole vectors: memory that begins elsewhere is copied. */
static rp_status bind(machine *m, uint32_t k, rp_tensor *t) {
    static char nothing[RP__TVM_ALIGNMENT] __attribute__((aligned(64)));
    void *data = rp__tensor_data(t);
    if (data && (uintptr_t)data % RP__TVM_ALIGNMENT != 0) {
        const rp__door_value *v = &m->part->in[m->onnx.in_of[k]];
        rp_tensor *x = rp__door_result(v, m->part->ir);
        if (rp__tensor_is_error(x)) return rp_error_status();
        memcpy(rp__tensor_data(x), data,
               (size_t)rp__numel(v->type.size, v->type.ndim) * rp__dtype_bytes(v->type.dtype));
        data = rp__tensor_data(x);
    }
    m->tensor[k].data = data ? data : nothing;
    return RP_OK;
}

/* A tensor over a result, which it takes over. */
static rp_tensor *own(const machine *m, uint32_t k, const rp__tvm_any *of) {
    const rp__door_value *v = &m->part->out[k];
    const rp__ir_value_info *info = &m->part->ir->values[v->value];
    rp__tvm_tensor t, want = {.device_type = RP__TVM_CPU};
    bool fits = is_object(of) && of->type == RP__TVM_TENSOR;
    if (fits) memcpy(&t, (const char *)of->v.object + RP__TVM_HEADER, sizeof t);
    type_of(v->type.dtype, &want);
    fits = fits && t.ndim == v->type.ndim && t.bits == want.bits && t.lanes == 1 && t.device_type == RP__TVM_CPU;
    for (int32_t d = 0; fits && d < t.ndim; d++) fits = t.shape[d] == v->type.size[d];
    if (!fits) {
        if (is_object(of)) drop(of->v.object);
        (void)rp__fail(RP_ERROR_STATE, "TVM (%s): result %u is not what the graph says", lib.found.version, k);
        return rp__tensor_error();
    }
    const size_t bytes = (size_t)rp__numel(v->type.size, v->type.ndim) * rp__dtype_bytes(v->type.dtype);
    if (bytes == 0) {
        drop(of->v.object);
        return rp__door_result(v, m->part->ir);
    }
    rp__storage *s =
        rp__storage_wrap(info->meta.device, (char *)t.data + t.byte_offset, bytes, NULL, drop, of->v.object);
    if (!s) return rp__tensor_error();
    s->foreign = false; /* made for us: nobody else writes it */
    return rp__tensor_over(info->meta.dtype, info->meta.size, info->stride, info->meta.ndim, 0, s);
}

static rp_status take_results(const machine *m, const rp__tvm_any *result, rp_tensor **out) {
    if (m->part->n_out == 1 && result->type != RP__TVM_ARRAY) {
        out[0] = own(m, 0, result);
        return rp__tensor_is_error(out[0]) ? rp_error_status() : RP_OK;
    }
    rp__tvm_any n;
    rp_status status = call(lib.size, result, 1, &n);
    if (status == RP_OK && n.v.i != m->part->n_out)
        status = rp__fail(RP_ERROR_STATE, "TVM (%s) gave %lld results instead of %u", lib.found.version,
                          (long long)n.v.i, m->part->n_out);
    for (uint32_t k = 0; k < m->part->n_out && status == RP_OK; k++) {
        const rp__tvm_any in[] = {*result, int_of(k)};
        rp__tvm_any one;
        status = call(lib.item, in, 2, &one);
        if (status == RP_OK) out[k] = own(m, k, &one);
        if (status == RP_OK && rp__tensor_is_error(out[k])) status = rp_error_status();
    }
    if (is_object(result)) drop(result->v.object);
    return status;
}

static rp_status run(void *made, rp_tensor *const *in, rp_tensor **out) {
    machine *m = made;
    rp__tvm_any result;
    if (m->forks != rp__door_forks())
        return rp__fail(RP_ERROR_STATE, "TVM was opened before the process forked, and its threads stayed behind");
    for (uint32_t k = 0; k < m->onnx.n_in; k++) RP_TRY(bind(m, k, in[m->onnx.in_of[k]]));
    RP_TRY(call(m->run, m->argument, (int32_t)m->onnx.n_in, &result));
    return take_results(m, &result, out);
}

static rp_status check(const rp__engine_options *options) {
    const char *seconds = rp__engine_option(options, "seconds");
    if (seconds && (!*seconds || strspn(seconds, "0123456789") != strlen(seconds) || strlen(seconds) > 6))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "backend \"tvm\": seconds is a number, not \"%s\"", seconds);
    return RP_OK;
}

static const char *const keys[] = {"target", "python", "seconds", NULL};
RP__ENGINE_OF_DOOR(tvm, .title = "TVM", .device = RP_DEVICE_CPU, .check = check)
