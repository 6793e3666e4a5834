/* See nvrtc.h. With a cubin on disk neither NVRTC's library nor its first-call cost is paid. The name of an entry comes from
 * all that makes a cubin but the compiler, whose version is its first line: one of another version is replaced.
 *
 * A text is compiled by the thread that asks for it first, without a lock; others that ask for the same one wait for that
 * thread, and for no other. A thread that compiles waits for nobody, so no two wait for each other; a batch waits for what
 * others compile only when it has finished its own. */
#include "kernel/cuda/nvrtc.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/text.h"
#include "device/cuda/cuda.h"
#include "kernel/cuda/emit.h"
#include "kernel/cuda/nvrtc_version.h"
#include "kernel/disk_cache.h"
#include "reprise_embed.h"

enum { VERSION_BYTES = RP__NVRTC_VERSION };

/* And -arch, which follows from the device, the version and what the text calls. */
static const char *const options[] = {"--std=c++17", "--fmad=false", "-default-device"};
enum { N_OPTIONS = sizeof options / sizeof *options };

/* A text that calls rp_wgmma_.. begins so: these are instructions of one architecture, sm_90a. */
static const char warpgroups[] = "#define RP_PRELUDE_WGMMA 1\n";

static rp__mutex lock = RP__MUTEX_INIT;
static pthread_cond_t made = PTHREAD_COND_INITIALIZER; /* a text has left `making` */
static rp__map known;                                  /* `here` of a text -> rp__kernel, one reference each */
static rp__map making;                                 /* the same of texts that a thread compiles now */
static rp__nvrtc_stats stats;

rp__nvrtc_stats rp__nvrtc_statistics(void) {
    rp__lock(&lock);
    rp__nvrtc_stats s = stats;
    rp__unlock(&lock);
    return s;
}

/* The compiler and the options of one device. */
typedef struct compiler {
    const rp__libnvrtc *nvrtc;
    char version[VERSION_BYTES];
    int arch; /* 90 of "-arch=sm_90" */
} compiler;

/* sm_<arch>, or the newest that this NVRTC knows: newer devices run it if the cubin's major version fits. */
static rp_status need_compiler(const rp__device *d, compiler *c) {
    int n = 0, best = d->arch, all[64];
    RP_TRY(rp__nvrtc_need(&c->nvrtc, c->version));
    if (c->nvrtc->nvrtcGetNumSupportedArchs(&n) == NVRTC_SUCCESS && n > 0 && n <= 64 &&
        c->nvrtc->nvrtcGetSupportedArchs(all) == NVRTC_SUCCESS) {
        best = 0;
        for (int k = 0; k < n; k++)
            if (all[k] <= d->arch && all[k] > best) best = all[k];
    }
    if (best == 0)
        return rp__fail(RP_ERROR_UNAVAILABLE, "NVRTC %s knows no architecture for sm_%d", c->version, d->arch);
    c->arch = best;
    return RP_OK;
}

static uint64_t now_us(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* One text on its way to a cubin. `compile` may run on any thread: what went wrong is kept, not made sticky. */
typedef struct job {
    const compiler *with;
    char *text, *name;
    void *cubin; /* from rp__alloc */
    size_t bytes;
    uint64_t microseconds;
    rp_status status;
    char message[800];
    rp__kernel *kernel; /* pending; counted */
    rp__hash key, here;
    bool claimed; /* in `making`, by us */
    bool skipped; /* somebody else has it, or makes it */
} job;

static void compile_failed(job *j, nvrtcProgram program, nvrtcResult result) {
    const rp__libnvrtc *nvrtc = j->with->nvrtc;
    size_t bytes = 0;
    char *log = NULL;
    if (program && nvrtc->nvrtcGetProgramLogSize(program, &bytes) == NVRTC_SUCCESS && bytes > 1)
        log = rp__calloc(bytes + 1, 1);
    if (log && nvrtc->nvrtcGetProgramLog(program, log) == NVRTC_SUCCESS)
        rp__log(RP__LOG_KERNEL, "NVRTC on %s:\n%s", j->name, log);
    const char *first = log ? strstr(log, ": error") : NULL; /* behind warnings that do not matter */
    while (first && first > log && first[-1] != '\n') first--;
    j->status = RP_ERROR_COMPILE;
    (void)snprintf(j->message, sizeof j->message, "NVRTC %s on kernel %s: %s: %.600s", j->with->version, j->name,
                   nvrtc->nvrtcGetErrorString(result),
                   first ? first
                   : log ? log
                         : "");
    rp__free(log);
}

static void compile(job *j) {
    const rp__libnvrtc *nvrtc = j->with->nvrtc;
    nvrtcProgram program = NULL;
    char arch[32];
    const char *all[N_OPTIONS + 1] = {arch};
    const bool own = j->with->arch == 90 && strncmp(j->text, warpgroups, sizeof warpgroups - 1) == 0;
    (void)snprintf(arch, sizeof arch, "-arch=sm_%d%s", j->with->arch, own ? "a" : "");
    memcpy(all + 1, options, sizeof options);
    uint64_t start = now_us();
    nvrtcResult result = nvrtc->nvrtcCreateProgram(&program, j->text, j->name, 0, NULL, NULL);
    if (result == NVRTC_SUCCESS) result = nvrtc->nvrtcCompileProgram(program, N_OPTIONS + 1, all);
    if (result == NVRTC_SUCCESS) result = nvrtc->nvrtcGetCUBINSize(program, &j->bytes);
    if (result == NVRTC_SUCCESS) {
        j->cubin = rp__alloc(j->bytes);
        if (j->cubin)
            result = nvrtc->nvrtcGetCUBIN(program, j->cubin);
        else
            j->status = RP_ERROR_OUT_OF_MEMORY;
    }
    if (result != NVRTC_SUCCESS) compile_failed(j, program, result);
    if (program) (void)nvrtc->nvrtcDestroyProgram(&program);
    j->microseconds = now_us() - start;
}

/* The sticky error of a job that failed. */
static rp_status job_status(const job *j) {
    if (j->status == RP_OK) return RP_OK;
    if (j->status == RP_ERROR_OUT_OF_MEMORY) return RP__OOM("a compiled CUDA kernel");
    return rp__fail(j->status, "%s", j->message);
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
    if (status == RP_OK) {
        CUresult found = rp__cuda_of(d)->cu->cuLibraryGetKernel(&kernel, library, name);
        status = found == CUDA_ERROR_NOT_FOUND
                     ? rp__fail(RP_ERROR_COMPILE, "the source has no extern \"C\" __global__ function %s", name)
                     : rp__cuda_status(d, found, "cuLibraryGetKernel");
    }
    if (status == RP_OK) status = RP__CU(d, cuKernelGetFunction(out, kernel));
    if (status == RP_OK && rp__cuda_of(d)->cu->cuFuncLoad) /* now, since a first launch inside a capture could not */
        status = RP__CU(d, cuFuncLoad(*out));
    int fixed = 0; /* shared memory: what a kernel does not have for itself it may ask for at a launch */
    if (status == RP_OK) status = RP__CU(d, cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *out));
    if (status == RP_OK && (size_t)fixed < d->shared_limit)
        status = RP__CU(
            d, cuFuncSetAttribute(*out, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)d->shared_limit - fixed));
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
    char version[VERSION_BYTES];
    rp__nvrtc_version(version); /* none: nobody could make it anew */
    bool fits = bytes > VERSION_BYTES && (!*version || strncmp(text, version, VERSION_BYTES) == 0);
    rp__error_state before; /* an older error stays */
    rp__error_save(&before);
    *found = fits && load(d, text + VERSION_BYTES, name, out) == RP_OK;
    const bool lost = fits && !*found && atomic_load(&d->lost);
    if (*found) {
        rp__lock(&lock);
        stats.from_disk++;
        rp__unlock(&lock);
    } else if (fits && !lost) { /* whole by its hash, and yet the driver refused it: compile anew */
        (void)rp_error_take();
        rp__disk_cache_drop(key, "cubin");
    }
    rp__error_restore(&before);
    rp__free(entry);
    return lost ? RP_ERROR_DEVICE_LOST : RP_OK;
}

/* Loads the cubin of a finished job and keeps it on disk. */
static rp_status finish(rp__device *d, const job *j, CUfunction *out) {
    RP_TRY(job_status(j));
    rp__lock(&lock);
    stats.compiled++;
    stats.microseconds += j->microseconds;
    rp__unlock(&lock);
    rp_status status = load(d, j->cubin, j->name, out);
    char *entry = status == RP_OK ? rp__calloc(1, VERSION_BYTES + j->bytes) : NULL;
    if (entry) {
        memcpy(entry, j->with->version, VERSION_BYTES);
        memcpy(entry + VERSION_BYTES, j->cubin, j->bytes);
        char why[512];
        if (!rp__disk_cache_put(j->key, "cubin", entry, VERSION_BYTES + j->bytes, why, sizeof why))
            rp__log(RP__LOG_CACHE, "kernel %s is not kept: %s", j->name, why);
    }
    rp__free(entry);
    return status;
}

static rp__kernel *kernel_new(rp__hash key, rp__kernel_kind kind, const char *name, CUfunction function) {
    rp__kernel *k = rp__calloc(1, sizeof *k);
    char *own = k ? rp__strdup(name) : NULL;
    if (!own) {
        rp__free(k);
        (void)RP__OOM("a CUDA kernel");
        return NULL;
    }
    atomic_init(&k->refs, 1);
    k->kind = kind;
    k->key = key;
    k->name = own;
    k->function = function;
    k->destroy = destroy;
    return k;
}

/* ---- batches */

typedef struct batch {
    job *jobs;
    size_t n, capacity;
} batch;
static _Thread_local batch *current; /* NULL: none is open */

static void job_free(job *j) {
    rp__free(j->text);
    rp__free(j->name);
    rp__free(j->cubin);
    if (j->kernel) rp__kernel_release(j->kernel);
}

rp_status rp__nvrtc_batch_begin(rp__device *d) {
    (void)d;
    if (current) return rp__fail(RP_ERROR_INTERNAL, "a batch of CUDA kernels inside another");
    current = rp__calloc(1, sizeof *current);
    return current ? RP_OK : RP__OOM("a batch of CUDA kernels");
}

/* The pending kernel of a text; NULL: none yet. */
static rp__kernel *pending(rp__hash here) {
    for (size_t k = 0; k < current->n; k++) {
        if (memcmp(&current->jobs[k].here, &here, sizeof here) == 0) return current->jobs[k].kernel;
    }
    return NULL;
}

/* Takes over the text. */
static rp_status add_job(rp__text *text, rp__hash key, rp__hash here, rp__kernel_kind kind, const char *name,
                         rp__kernel **out) {
    if (!RP__GROW(&current->jobs, &current->capacity, current->n + 1)) return RP__OOM("a batch of CUDA kernels");
    job *j = &current->jobs[current->n];
    memset(j, 0, sizeof *j);
    j->name = rp__strdup(name);
    j->kernel = j->name ? kernel_new(key, kind, name, NULL) : NULL;
    if (!j->kernel) {
        rp__free(j->name);
        return RP__OOM("a batch of CUDA kernels");
    }
    j->key = key;
    j->here = here;
    j->text = text->data;
    memset(text, 0, sizeof *text);
    current->n++;
    *out = j->kernel;
    return RP_OK;
}

/* ---- who makes what; under the lock */

/* The kernel of a text, once nobody makes it any more; NULL: it is ours to make. A reference of the map. */
static rp__kernel *wait_for(rp__hash here) {
    for (;;) {
        rp__kernel *k = rp__map_get(&known, here);
        if (k || !rp__map_get(&making, here)) return k;
        (void)pthread_cond_wait(&made, &lock);
    }
}

static bool claim(rp__hash here) {
    static char somebody;
    return rp__map_put(&making, here, &somebody);
}

static void unclaim(rp__hash here) {
    (void)rp__map_remove(&making, here);
    (void)pthread_cond_broadcast(&made);
}

/* ---- batches, their end */

static void compile_job(void *ctx, int64_t k) {
    job *j = (job *)ctx + k;
    if (!j->skipped) compile(j);
}

/* Takes those that nobody has and nobody makes. */
static void claim_jobs(batch *b) {
    rp__lock(&lock);
    for (size_t k = 0; k < b->n; k++) {
        job *j = &b->jobs[k];
        j->skipped = rp__map_get(&known, j->here) || rp__map_get(&making, j->here);
        if (!j->skipped) j->claimed = claim(j->here); /* without memory two may compile it: both are good */
    }
    rp__unlock(&lock);
}

static rp_status finish_job(rp__device *d, job *j) {
    CUfunction function = NULL;
    RP_TRY(finish(d, j, &function));
    j->kernel->function = function;
    rp__lock(&lock);
    if (!rp__map_get(&known, j->here) && rp__map_put(&known, j->here, j->kernel)) j->kernel = NULL;
    rp__unlock(&lock);
    return RP_OK;
}

static void unclaim_jobs(batch *b) {
    rp__lock(&lock);
    for (size_t k = 0; k < b->n; k++)
        if (b->jobs[k].claimed) unclaim(b->jobs[k].here);
    rp__unlock(&lock);
}

/* What another thread has or makes; ours, if that failed. */
static rp_status take_job(rp__device *d, job *j) {
    rp__lock(&lock);
    const rp__kernel *k = wait_for(j->here);
    if (k) j->kernel->function = k->function;
    rp__unlock(&lock);
    if (k) return RP_OK;
    compile(j);
    return finish_job(d, j);
}

rp_status rp__nvrtc_batch_end(rp__device *d, bool keep) {
    batch b = current ? *current : (batch){0};
    rp_status status = RP_OK;
    compiler with;
    rp__free(current);
    current = NULL;
    keep = keep && b.n > 0;
    if (keep) status = rp__cuda_enter(d);
    if (keep && status == RP_OK) status = need_compiler(d, &with);
    if (keep && status == RP_OK) {
        for (size_t k = 0; k < b.n; k++) b.jobs[k].with = &with;
        claim_jobs(&b);
        rp__team((int64_t)b.n, compile_job, b.jobs);
        for (size_t k = 0; k < b.n && status == RP_OK; k++)
            if (!b.jobs[k].skipped) status = finish_job(d, &b.jobs[k]);
        unclaim_jobs(&b);
        for (size_t k = 0; k < b.n && status == RP_OK; k++)
            if (b.jobs[k].skipped) status = take_job(d, &b.jobs[k]);
    }
    for (size_t k = 0; k < b.n; k++) job_free(&b.jobs[k]);
    rp__free(b.jobs);
    return status;
}

/* ---- one kernel */

/* From disk, or compiled, by the calling thread alone. */
static rp_status make(rp__device *d, rp__text *text, rp__hash key, rp__kernel_kind kind, const char *name,
                      rp__kernel **out) {
    CUfunction function = NULL;
    bool found;
    RP_TRY(from_disk(d, key, name, &function, &found));
    if (!found) {
        compiler with;
        char own[160];
        RP_TRY(need_compiler(d, &with));
        (void)snprintf(own, sizeof own, "%s", name);
        job j = {.with = &with, .text = text->data, .name = own, .key = key};
        compile(&j);
        rp_status status = finish(d, &j, &function);
        rp__free(j.cubin);
        RP_TRY(status);
    }
    *out = kernel_new(key, kind, name, function);
    return *out ? RP_OK : rp_error_status();
}

/* In a batch: from disk, or a job. A user's kernel is looked at before it is recorded, and no job. */
static rp_status make_in_batch(rp__device *d, rp__text *text, rp__hash key, rp__hash here, rp__kernel_kind kind,
                               const char *name, rp__kernel **out) {
    CUfunction function = NULL;
    bool found;
    RP_TRY(from_disk(d, key, name, &function, &found));
    if (!found) {
        RP_TRY(add_job(text, key, here, kind, name, out));
        (void)rp__kernel_retain(*out);
        return RP_OK;
    }
    rp__kernel *k = kernel_new(key, kind, name, function);
    if (!k) return rp_error_status();
    rp__lock(&lock);
    rp__kernel *other = rp__map_get(&known, here);
    if (other || rp__map_put(&known, here, k)) (void)rp__kernel_retain(other ? other : k);
    rp__unlock(&lock);
    if (other) rp__kernel_release(k);
    *out = other ? other : k;
    return RP_OK;
}

/* By this thread, or by another one that makes it already. */
static rp_status make_or_wait(rp__device *d, rp__text *text, rp__hash key, rp__hash here, rp__kernel_kind kind,
                              const char *name, rp__kernel **out) {
    rp__lock(&lock);
    rp__kernel *k = wait_for(here);
    if (k) *out = rp__kernel_retain(k);
    bool claimed = !k && claim(here);
    rp__unlock(&lock);
    if (k) return RP_OK;
    rp_status status = make(d, text, key, kind, name, &k);
    rp__lock(&lock);
    if (status == RP_OK && !rp__map_get(&known, here) && rp__map_put(&known, here, k)) (void)rp__kernel_retain(k);
    if (claimed) unclaim(here);
    rp__unlock(&lock);
    if (status == RP_OK) *out = k;
    return status;
}

/* All that makes a cubin, but the compiler's version (from_disk). */
static rp__hash key_of(const rp__device *d, rp__kernel_kind kind, const rp__text *text) {
    int facts[2] = {d->arch, (int)kind};
    rp__hash key = rp__hash_bytes(facts, sizeof facts, rp__hash_none());
    for (size_t k = 0; k < N_OPTIONS; k++) key = rp__hash_bytes(options[k], strlen(options[k]), key);
    return rp__hash_bytes(text->data, text->length, key);
}

rp_status rp__nvrtc_kernel(rp__device *d, const char *source, const char *name, rp__kernel_kind kind,
                           rp__kernel **out) {
    *out = NULL;
    RP_TRY(rp__cuda_enter(d));
    rp__text text = {0};
    if (strstr(source, "rp_wgmma_")) rp__text_puts(&text, warpgroups);
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
    rp__hash key = key_of(d, kind, &text), here = rp__hash_bytes(&d->slot, sizeof d->slot, key);
    rp__lock(&lock);
    rp__kernel *k = rp__map_get(&known, here);
    if (!k && current) k = pending(here);
    if (k) *out = rp__kernel_retain(k);
    rp__unlock(&lock);
    rp_status status = RP_OK;
    if (!k && current && kind != RP__KERNEL_CUDA_USER)
        status = make_in_batch(d, &text, key, here, kind, name, out);
    else if (!k)
        status = make_or_wait(d, &text, key, here, kind, name, out);
    rp__text_free(&text);
    return status;
}
