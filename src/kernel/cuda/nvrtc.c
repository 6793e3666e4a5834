/* See nvrtc.h. With a cubin on disk neither NVRTC's library (about 100 MB) nor its first-call cost is paid: the version of the
 * compiler is therefore not part of the name of an entry but its first line, and is compared only once NVRTC is loaded. */
#include "kernel/cuda/nvrtc.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/text.h"
#include "device/cuda/cuda.h"
#include "device/cuda/libnvrtc.h"
#include "kernel/cuda/emit.h"
#include "kernel/disk_cache.h"
#include "reprise_embed.h"

enum { VERSION_BYTES = 16 };

static rp__mutex lock = RP__MUTEX_INIT;
static rp__map known; /* key of (source, kind, device) -> rp__kernel, one reference each */
static rp__nvrtc_stats stats;
static const rp__libnvrtc *nvrtc; /* NULL until it was needed */
static char version[VERSION_BYTES];

rp__nvrtc_stats rp__nvrtc_statistics(void) {
    rp__lock(&lock);
    rp__nvrtc_stats s = stats;
    rp__unlock(&lock);
    return s;
}

static rp_status need_nvrtc(void) {
    if (nvrtc) return RP_OK;
    const rp__libnvrtc *found = rp__libnvrtc_get();
    if (!found)
        return rp__fail(RP_ERROR_UNAVAILABLE,
                        "no CUDA compiler: libnvrtc could not be loaded (`reprise doctor` says why)");
    int major = 0, minor = 0;
    (void)found->nvrtcVersion(&major, &minor);
    (void)snprintf(version, sizeof version, "%d.%d", major, minor);
    nvrtc = found;
    return RP_OK;
}

/* sm_<arch>, or the newest that this NVRTC knows: newer devices run it if the cubin's major version fits. */
static rp_status architecture(const rp__device *d, char out[32]) {
    int n = 0, best = d->arch, all[64];
    if (nvrtc->nvrtcGetNumSupportedArchs(&n) == NVRTC_SUCCESS && n > 0 && n <= 64 &&
        nvrtc->nvrtcGetSupportedArchs(all) == NVRTC_SUCCESS) {
        best = 0;
        for (int k = 0; k < n; k++)
            if (all[k] <= d->arch && all[k] > best) best = all[k];
    }
    if (best == 0) return rp__fail(RP_ERROR_UNAVAILABLE, "NVRTC %s knows no architecture for sm_%d", version, d->arch);
    (void)snprintf(out, 32, "-arch=sm_%d", best);
    return RP_OK;
}

static uint64_t now_us(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static rp_status compile_error(nvrtcProgram program, const char *name, nvrtcResult result) {
    size_t bytes = 0;
    char *log = NULL;
    if (program && nvrtc->nvrtcGetProgramLogSize(program, &bytes) == NVRTC_SUCCESS && bytes > 1)
        log = rp__calloc(bytes + 1, 1);
    if (log && nvrtc->nvrtcGetProgramLog(program, log) == NVRTC_SUCCESS)
        rp__log(RP__LOG_KERNEL, "NVRTC on %s:\n%s", name, log);
    rp_status status = rp__fail(RP_ERROR_COMPILE, "NVRTC %s on kernel %s: %s: %.600s", version, name,
                                nvrtc->nvrtcGetErrorString(result), log ? log : "");
    rp__free(log);
    return status;
}

/* The cubin of the whole text, from rp__alloc. */
static rp_status compile(const rp__device *d, const char *text, const char *name, void **cubin, size_t *bytes) {
    char arch[32];
    nvrtcProgram program = NULL;
    RP_TRY(need_nvrtc());
    RP_TRY(architecture(d, arch));
    const char *options[] = {arch, "--std=c++17", "--fmad=false", "-default-device"};
    uint64_t start = now_us();
    nvrtcResult result = nvrtc->nvrtcCreateProgram(&program, text, name, 0, NULL, NULL);
    if (result == NVRTC_SUCCESS)
        result = nvrtc->nvrtcCompileProgram(program, (int)(sizeof options / sizeof *options), options);
    if (result == NVRTC_SUCCESS) result = nvrtc->nvrtcGetCUBINSize(program, bytes);
    rp_status status = RP_OK;
    *cubin = NULL;
    if (result == NVRTC_SUCCESS) {
        *cubin = rp__alloc(*bytes);
        if (!*cubin)
            status = RP__OOM("a compiled CUDA kernel");
        else
            result = nvrtc->nvrtcGetCUBIN(program, *cubin);
    }
    if (status == RP_OK && result != NVRTC_SUCCESS) status = compile_error(program, name, result);
    if (program) (void)nvrtc->nvrtcDestroyProgram(&program);
    if (status != RP_OK) {
        rp__free(*cubin);
        *cubin = NULL;
        return status;
    }
    stats.compiled++;
    stats.microseconds += now_us() - start;
    return RP_OK;
}

static void destroy(rp__kernel *k) {
    char *name;
    memcpy(&name, &k->name, sizeof name);
    rp__free(name);
    rp__free(k); /* its module stays loaded: graphs may still hold the function, and keys repeat */
}

static rp_status load(rp__device *d, const void *cubin, const char *name, CUfunction *out) {
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    CUstreamCaptureMode mode = rp__cuda_relax(d);
    rp_status status = RP__CU(d, cuLibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    if (status == RP_OK) status = RP__CU(d, cuLibraryGetKernel(&kernel, library, name));
    if (status == RP_OK) status = RP__CU(d, cuKernelGetFunction(out, kernel));
    if (status == RP_OK && rp__cuda_of(d)->cu->cuFuncLoad) /* now, since a first launch inside a capture could not */
        status = RP__CU(d, cuFuncLoad(*out));
    if (status != RP_OK && library) (void)rp__cuda_of(d)->cu->cuLibraryUnload(library);
    rp__cuda_unrelax(d, mode);
    return status;
}

static rp_status from_disk(rp__device *d, rp__hash key, const char *name, CUfunction *out, bool *found) {
    void *entry = NULL;
    size_t bytes = 0;
    *found = false;
    if (!rp__disk_cache_get(key, "cubin", &entry, &bytes)) return RP_OK;
    const char *text = entry;
    bool fits = bytes > VERSION_BYTES && (!nvrtc || strncmp(text, version, VERSION_BYTES) == 0);
    if (fits && load(d, text + VERSION_BYTES, name, out) == RP_OK) {
        *found = true;
        stats.from_disk++;
    } else if (fits) { /* whole by its hash, and yet the driver refused it: compile anew */
        if (atomic_load(&d->lost)) {
            rp__free(entry);
            return RP_ERROR_DEVICE_LOST;
        }
        (void)rp_error_take();
        rp__disk_cache_drop(key, "cubin");
    }
    rp__free(entry);
    return RP_OK;
}

static rp_status make(rp__device *d, rp__hash key, const char *text, const char *name, CUfunction *out) {
    bool found;
    RP_TRY(from_disk(d, key, name, out, &found));
    if (found) return RP_OK;
    void *cubin = NULL;
    size_t bytes = 0;
    RP_TRY(compile(d, text, name, &cubin, &bytes));
    rp_status status = load(d, cubin, name, out);
    char *entry = status == RP_OK ? rp__calloc(1, VERSION_BYTES + bytes) : NULL;
    if (entry) {
        memcpy(entry, version, VERSION_BYTES);
        memcpy(entry + VERSION_BYTES, cubin, bytes);
        (void)rp__disk_cache_put(key, "cubin", entry, VERSION_BYTES + bytes);
    }
    rp__free(entry);
    rp__free(cubin);
    return status;
}

rp_status rp__nvrtc_kernel(rp__device *d, const char *source, const char *name, rp__kernel_kind kind,
                           rp__kernel **out) {
    *out = NULL;
    RP_TRY(rp__cuda_enter(d));
    rp__text text = {0};
    if (strstr(source, "rp_set_conditional(")) rp__text_puts(&text, "#define RP_PRELUDE_CONDITIONAL 1\n");
    rp__text_puts(&text, "/* rp-prelude begin */\n");
    rp__text_write(&text, rp__embed_prelude_cuh, rp__embed_prelude_cuh_len);
    rp__text_puts(&text, "\n/* rp-prelude end */\n");
    rp__text_write(&text, rp__embed_support_cuh, rp__embed_support_cuh_len);
    rp__text_puts(&text, source);
    if (text.failed) {
        rp__text_free(&text);
        return RP__OOM("source of a CUDA kernel");
    }
    int facts[2] = {d->arch, (int)kind};
    rp__hash key = rp__hash_bytes(text.data, text.length, rp__hash_bytes(facts, sizeof facts, rp__hash_none()));
    rp__hash here = rp__hash_bytes(&d->slot, sizeof d->slot, key);
    rp__lock(&lock);
    rp__kernel *k = rp__map_get(&known, here);
    rp_status status = RP_OK;
    if (!k) {
        CUfunction function = NULL;
        status = make(d, key, text.data, name, &function);
        k = status == RP_OK ? rp__calloc(1, sizeof *k) : NULL;
        char *own = k ? rp__strdup(name) : NULL;
        if (status == RP_OK && (!k || !own || !rp__map_put(&known, here, k))) {
            rp__free(k);
            rp__free(own);
            k = NULL;
            status = RP__OOM("a CUDA kernel");
        }
        if (k) {
            atomic_init(&k->refs, 1);
            k->kind = kind;
            k->key = key;
            k->name = own;
            k->function = function;
            k->destroy = destroy;
        }
    }
    if (k) *out = rp__kernel_retain(k);
    rp__unlock(&lock);
    rp__text_free(&text);
    return status;
}
