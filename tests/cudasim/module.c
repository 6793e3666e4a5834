/* Libraries, kernels and launches of the emulated driver. An image is what the emulated NVRTC made: a header and a
 * shared object, which is loaded from a temporary file (each load is an instance of its own, with its own __device__
 * variables). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "sim.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image.h"

struct CUlib_st {
    void *handle;
    const struct cudasim_module *module;
    struct CUfunc_st *functions;
    void *globals[64];
    unsigned int n_globals;
};

struct cudasim_runtime *sim_runtime(void);

CUresult sim_function_check(CUfunction f) {
    if (!sim_handle_is(f, SIM_KERNEL)) {
        sim_complain("a kernel of a library that is not or no longer loaded");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return CUDA_SUCCESS;
}

static void *open_image(const struct cudasim_image *image) {
    const char *folder = getenv("TMPDIR");
    char path[512];
    /* The loader takes a name that it has met for the same file: among thousands of names drawn by mkstemp two may be alike. */
    static unsigned int serial;
    snprintf(path, sizeof path, "%.400s/cudasim-%u-XXXXXX", folder && *folder ? folder : "/tmp",
             __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED));
    int file = mkstemp(path);
    if (file < 0) {
        sim_complain("cannot write %s", path);
        return NULL;
    }
    const unsigned char *bytes = (const unsigned char *)image + sizeof *image;
    size_t done = 0;
    while (done < image->bytes) {
        ssize_t n = write(file, bytes + done, image->bytes - done);
        if (n <= 0) {
            break;
        }
        done += (size_t)n;
    }
    close(file);
    void *handle = done == image->bytes ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!handle) {
        sim_complain("cannot load a compiled kernel: %s", done == image->bytes ? dlerror() : "the disk is full");
    }
    unlink(path);
    return handle;
}

/* tcc puts sections that have a name of their own among what is only read, beside code. */
static void shared_writable(const struct cudasim_kernel *k) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)k->shared / page * page;
    if (k->shared < k->shared_end &&
        mprotect((void *)start, (uintptr_t)k->shared_end - start, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
        sim_complain("shared memory of %s cannot be made writable: %s", k->name, strerror(errno));
    }
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options, void **jit_values,
                           unsigned int n_jit, CUlibraryOption *options, void **values, unsigned int n) {
    SIM_BEGIN();
    (void)jit_options, (void)jit_values, (void)n_jit, (void)options, (void)values, (void)n;
    if (!library || !code) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    struct cudasim_image image;
    if (memcmp(code, CUDASIM_MAGIC, 8) != 0) {
        return sim_end(CUDA_ERROR_INVALID_IMAGE);
    }
    memcpy(&image, code, sizeof image);
    if (image.abi != CUDASIM_ABI) {
        return sim_end(CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    void *handle = open_image(code);
    const struct cudasim_module *module = handle ? dlsym(handle, "cudasim_module") : NULL;
    if (!module) {
        return sim_end(CUDA_ERROR_INVALID_IMAGE);
    }
    *module->runtime = sim_runtime();
    CUlibrary lib = sim_alloc(1, sizeof *lib);
    lib->handle = handle;
    lib->module = module;
    lib->functions = sim_alloc(module->n_kernels + 1, sizeof *lib->functions);
    for (unsigned int i = 0; i < module->n_kernels; i++) {
        CUfunction f = &lib->functions[i];
        f->kernel = &module->kernels[i];
        f->library = lib;
        for (unsigned int j = 0; j < f->kernel->n_params; j++) {
            f->bytes = f->kernel->params[j].offset + f->kernel->params[j].size;
        }
        f->max_dynamic_shared = -1;
        shared_writable(f->kernel);
        sim_handle_add(f, SIM_KERNEL);
    }
    sim_handle_add(lib, SIM_LIBRARY);
    *library = lib;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuLibraryUnload(CUlibrary library) {
    SIM_BEGIN_FREE();
    if (!sim_handle_is(library, SIM_LIBRARY)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    CUresult result = sim_run_all();
    for (unsigned int i = 0; i < library->module->n_kernels; i++) {
        sim_handle_remove(&library->functions[i]);
    }
    for (unsigned int i = 0; i < library->n_globals; i++) {
        sim_memory_global_remove(library->globals[i]);
    }
    sim_handle_remove(library);
    dlclose(library->handle);
    free(library->functions);
    free(library);
    return sim_end(result);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    SIM_BEGIN();
    if (!kernel || !name) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (!sim_handle_is(library, SIM_LIBRARY)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    for (unsigned int i = 0; i < library->module->n_kernels; i++) {
        if (strcmp(library->module->kernels[i].name, name) == 0) {
            *kernel = (CUkernel)(void *)&library->functions[i];
            return sim_end(CUDA_SUCCESS);
        }
    }
    return sim_end(CUDA_ERROR_NOT_FOUND);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name) {
    SIM_BEGIN();
    if (!sim_handle_is(library, SIM_LIBRARY)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    void *p = name ? dlsym(library->handle, name) : NULL;
    Dl_info info;
    ElfW(Sym) *symbol = NULL;
    void *extra = NULL;
    if (!p || !dladdr1(p, &info, &extra, RTLD_DL_SYMENT) || !extra) {
        return sim_end(CUDA_ERROR_NOT_FOUND);
    }
    symbol = extra;
    if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || strncmp(name, "cudasim_", 8) == 0) {
        return sim_end(CUDA_ERROR_NOT_FOUND);
    }
    if (library->n_globals < 64) {
        sim_memory_global_add(p, symbol->st_size);
        library->globals[library->n_globals++] = p;
    }
    if (ptr) {
        *ptr = (CUdeviceptr)(uintptr_t)p;
    }
    if (bytes) {
        *bytes = symbol->st_size;
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    SIM_BEGIN();
    CUfunction f = (CUfunction)(void *)kernel;
    if (!function) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (!sim_handle_is(f, SIM_KERNEL)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    *function = f;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuFuncLoad(CUfunction function) {
    SIM_BEGIN();
    return sim_end(sim_handle_is(function, SIM_KERNEL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

#define SHARED_DEFAULT 49152
#define SHARED_OPTIN 232448 /* 227 KiB */

static unsigned int static_shared(CUfunction f) { return (unsigned int)(f->kernel->shared_end - f->kernel->shared); }

static unsigned int max_threads(CUfunction f) { return f->kernel->max_threads ? f->kernel->max_threads : 1024; }

static int max_dynamic(CUfunction f) {
    return f->max_dynamic_shared >= 0 ? f->max_dynamic_shared : SHARED_DEFAULT - (int)static_shared(f);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f) {
    SIM_BEGIN();
    if (!value) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (!sim_handle_is(f, SIM_KERNEL)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)max_threads(f); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)static_shared(f); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = max_dynamic(f); break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = f->carveout; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: *value = 0; break;
    default: return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) {
    SIM_BEGIN();
    if (!sim_handle_is(f, SIM_KERNEL)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || (unsigned int)value + static_shared(f) > SHARED_OPTIN) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
        f->max_dynamic_shared = value;
    } else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
        f->carveout = value;
    } else if (attribute != CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
    SIM_BEGIN();
    if (!sim_handle_is(f, SIM_KERNEL)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (!offset || index >= f->kernel->n_params) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *offset = f->kernel->params[index].offset;
    if (size) {
        *size = f->kernel->params[index].size;
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block_size,
                                                     size_t dynamic_shared_bytes) {
    SIM_BEGIN();
    if (!sim_handle_is(f, SIM_KERNEL)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (!blocks || block_size <= 0) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    int by_threads = block_size > (int)max_threads(f) ? 0 : 2048 / ((block_size + 31) / 32 * 32);
    size_t shared = dynamic_shared_bytes + static_shared(f) + 1024;
    int by_shared = shared > 233472 ? 0 : (int)(233472 / shared);
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    *blocks = *blocks > 32 ? 32 : *blocks;
    return sim_end(CUDA_SUCCESS);
}

/* ---- Launches ---- */

CUresult sim_launch_make(sim_launch *launch, CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                         unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, void **params,
                         void **extra) {
    memset(launch, 0, sizeof *launch);
    if (!sim_handle_is(f, SIM_KERNEL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    unsigned long long threads = (unsigned long long)bx * by * bz;
    if (gx == 0 || gy == 0 || gz == 0 || threads == 0 || gx > 2147483647u || gy > 65535 || gz > 65535 || bz > 64 ||
        bx > 1024 || by > 1024 || threads > max_threads(f) || (params == NULL && f->kernel->n_params > 0) || extra) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (shared > (unsigned int)max_dynamic(f)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *launch = (sim_launch){.function = f, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared_bytes = shared};
    launch->arguments = sim_alloc(f->bytes + 16, 1);
    for (unsigned int i = 0; i < f->kernel->n_params; i++) {
        memcpy(launch->arguments + f->kernel->params[i].offset, params[i], f->kernel->params[i].size);
    }
    return CUDA_SUCCESS;
}

static CUresult launch_kernel(CUfunction f, const CUlaunchConfig *c, void **params, void **extra) {
    CUresult result;
    CUstream s = sim_stream_get(c->hStream, &result);
    if (!s) {
        return result;
    }
    if (s->capture && s->capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    result = sim_capture_implicit(s);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool programmatic = false;
    CUevent event = NULL;
    for (unsigned int i = 0; i < c->numAttrs; i++) {
        const CUlaunchAttribute *a = &c->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            programmatic = a->value.programmaticStreamSerializationAllowed != 0;
        } else if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
            event = a->value.programmaticEvent.event;
            if (!sim_handle_is(event, SIM_EVENT) || !(event->flags & CU_EVENT_DISABLE_TIMING)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
        } else if (a->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT ||
                   a->id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    sim_launch launch;
    result = sim_launch_make(&launch, f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                             c->blockDimZ, c->sharedMemBytes, params, extra);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (s->capture) {
        CUgraphNode node;
        result = sim_capture_add(s, CU_GRAPH_NODE_TYPE_KERNEL, programmatic, &node);
        if (result != CUDA_SUCCESS) {
            free(launch.arguments);
            return result;
        }
        node->launch = launch;
        sim_node_params(node);
        for (unsigned int i = 0; i < c->numAttrs && node->n_attrs < 8; i++) {
            CUlaunchAttributeID id = c->attrs[i].id;
            if (id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT && id != CU_LAUNCH_ATTRIBUTE_IGNORE) {
                node->attrs[node->n_attrs++] = (sim_attr){id, c->attrs[i].value};
            }
        }
        if (event) { /* who waits for it follows by a programmatic edge */
            result = sim_capture_record(event, s);
            if (result == CUDA_SUCCESS) {
                event->edges[0].from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
                event->edges[0].type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
            }
        }
        return result;
    }
    sim_op *op = sim_op_new(OP_KERNEL);
    op->grid = sim_grid_new(&launch);
    free(launch.arguments);
    if (event) { /* outside of capture a completion event, which is later than it needs to be */
        sim_op_release(event->op);
        event->op = sim_op_retain(op);
        event->recorded = true;
        event->capture_id = 0;
    }
    sim_stream_push(s, op, programmatic);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    SIM_BEGIN();
    if (!config || (config->numAttrs && !config->attrs)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_end(launch_kernel(function, config, params, extra));
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **params, void **extra) {
    SIM_BEGIN();
    CUlaunchConfig config = {.gridDimX = grid_x,
                             .gridDimY = grid_y,
                             .gridDimZ = grid_z,
                             .blockDimX = block_x,
                             .blockDimY = block_y,
                             .blockDimZ = block_z,
                             .sharedMemBytes = shared_bytes,
                             .hStream = stream};
    return sim_end(launch_kernel(function, &config, params, extra));
}

int cudasim_launch_native(void *stream, void (*fn)(void *params), const void *params, unsigned long long bytes) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return sim_end(result);
    }
    result = sim_capture_implicit(s);
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    unsigned char *copy = sim_alloc(bytes + 1, 1);
    memcpy(copy, params, bytes);
    if (s->capture) {
        CUgraphNode node;
        result = sim_capture_add(s, CU_GRAPH_NODE_TYPE_KERNEL, false, &node);
        if (result != CUDA_SUCCESS) {
            free(copy);
            return sim_end(result);
        }
        node->native = fn;
        node->native_bytes = bytes;
        node->launch.arguments = copy;
        return sim_end(CUDA_SUCCESS);
    }
    sim_op *op = sim_op_new(OP_NATIVE);
    op->native = fn;
    op->owned = copy;
    sim_stream_push(s, op, false);
    return sim_end(CUDA_SUCCESS);
}

int cudasim_is_device(unsigned long long address, unsigned long long bytes) {
    SIM_BEGIN_FREE();
    bool is = sim_memory_is_device(address, bytes);
    sim_end(CUDA_SUCCESS);
    return is;
}
