/* rp_doctor: what this machine offers, in one text. Asks the seams that know (devices, CUDA libraries, vector kernels,
 * compiler, cache) and opens what is opened at first use anyway; it computes nothing and leaves no error behind. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/env.h"
#include "core/json.h"
#include "core/text.h"
#include "core/unicode.h"
#include "device/cuda/libcuda.h"
#include "device/cuda/libnvrtc.h"
#include "device/cuda/libnvtx.h"
#include "device/device.h"
#include "kernel/cpu/jit.h"
#include "kernel/cpu/tiles.h"
#include "kernel/cuda/libcublaslt.h"
#include "kernel/cuda/libcudnn.h"
#include "kernel/disk_cache.h"
#include "kernel/lapack.h"
#include "kernel/library.h"

static void add_fault(void *ctx, const char *sentence) { rp__text_add(ctx, "  %s\n", sentence); }

/* A report names its subject itself; its further lines are set in. */
static void add_report(rp__text *t, size_t (*report)(char *text, size_t size)) {
    char text[8192];
    report(text, sizeof text);
    const char *indent = "";
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        rp__text_add(t, "%s%s\n", indent, line + (*indent ? strspn(line, " ") : 0));
        indent = "  ";
    }
}

static void add_device(rp__text *t, rp_device id) {
    char name[24];
    rp__device *d = rp__device_get(id);
    if (!d) {
        rp__text_add(t, "device %s: %s\n", rp__device_text(id, name), rp_error_message());
        return;
    }
    rp__text_add(t, "device %s: %s", rp__device_text(id, name), d->label);
    if (id.type == RP_DEVICE_CUDA) {
        rp__text_add(t, ", sm_%d, %d multiprocessors, %zu KiB of shared memory a block", d->arch, d->multiprocessors,
                     d->shared_limit >> 10);
    }
    rp__text_puts(t, "\n");
    if (d->ops->library && d->ops->library->name) {
        const char *results = d->ops->library->name(d, RP__LIB_CONV_FORWARD),
                   *weights = d->ops->library->name(d, RP__LIB_CONV_WEIGHT);
        rp__text_add(t, "  products by %s, convolutions by %s", d->ops->library->name(d, RP__LIB_MATMUL), results);
        if (strcmp(results, weights) != 0 && id.type == RP_DEVICE_CUDA)
            rp__text_add(t, ", some of their weight gradients by %s", weights);
        rp__text_puts(t, "\n");
    }
}

/* The compiler of tier 1, found as execvp would find it. */
static void add_compiler(rp__text *t) {
    const char *jit = rp__env("REPRISE_JIT"), *cc = rp__env("REPRISE_CC"), *path = rp__env("PATH");
    if (!cc) cc = "cc";
    const bool off = jit && !strcmp(jit, "0");
    if (off || !strcmp(cc, "none") || rp__env_ignored()) {
        rp__text_add(t, "compiler: switched off by %s; kernels are interpreted\n",
                     off                 ? "REPRISE_JIT=0"
                     : rp__env_ignored() ? "the rights of the program"
                                         : "REPRISE_CC=none");
        return;
    }
    size_t length = strcspn(cc, " ");
    char file[1024];
    bool found = false;
    if (memchr(cc, '/', length)) {
        found = snprintf(file, sizeof file, "%.*s", (int)length, cc) < (int)sizeof file && !access(file, X_OK);
    }
    for (const char *p = path ? path : ""; !found && *p; p += strcspn(p, ":"), p += *p == ':') {
        int n = snprintf(file, sizeof file, "%.*s/%.*s", (int)strcspn(p, ":"), p, (int)length, cc);
        found = n < (int)sizeof file && !access(file, X_OK);
    }
    if (found) {
        rp__text_add(t, "compiler: %s (%s) makes native CPU kernels\n", file, cc);
    } else {
        rp__text_add(t, "compiler: '%s' was not found; CPU kernels are interpreted\n", cc);
    }
    rp__jit_counters c;
    rp__jit_counters_get(&c);
    rp__text_add(t, "  this process: %llu compiled, %llu from the cache, %llu failed\n", (unsigned long long)c.compiled,
                 (unsigned long long)c.cached, (unsigned long long)c.failed);
}

static void add_cache(rp__text *t) {
    char folder[RP__DISK_PATH], why[RP__DISK_PATH];
    const bool there = rp__disk_cache_folder(folder, why, sizeof why);
    rp__text_add(t, "cache: %s%s%s\n", there ? folder : "none", *why ? ": " : "", why);
    if (there) rp__text_add(t, "  %s\n", *why ? "cannot be written now" : "writable");
}

size_t rp_doctor(char *buf, size_t bytes) {
    rp__text t = {0};
    rp__error_state before;
    rp__error_save(&before);
    rp__text_add(&t, "version: %s\n", rp_version_string());
    add_device(&t, rp_cpu());
    rp__text_add(&t, "vector kernels: %s, %u bytes a vector\n", rp__tiles_current()->name,
                 rp__tiles_current()->vec_bytes);
    const char *cpu = rp__env("REPRISE_CPU");
    if (cpu && rp__env_understood("REPRISE_CPU") && !rp__tiles_named(cpu))
        rp__text_add(&t, "  REPRISE_CPU=%s has no effect: this CPU or library has no such instruction set\n", cpu);
    rp__text_add(&t, "threads: %d\n", rp_num_threads());
    int n_cuda = rp_device_count(RP_DEVICE_CUDA);
    for (int i = 0; i < n_cuda; i++) {
        add_device(&t, rp_cuda(i));
    }
    if (!n_cuda) rp__text_puts(&t, "device cuda: none\n");
    rp__libcuda_get();
    rp__libnvrtc_get();
    rp__libnvtx_get();
    rp__libcublaslt_get();
    rp__libcudnn_get();
    add_report(&t, rp__libcuda_report);
    add_report(&t, rp__libnvrtc_report);
    add_report(&t, rp__libnvtx_report);
    add_report(&t, rp__libcublaslt_report);
    add_report(&t, rp__libcudnn_report);
    add_report(&t, rp__json_report);
    add_report(&t, rp__lapack_report);
    add_report(&t, rp__unicode_report);
    add_compiler(&t);
    add_cache(&t);
    rp__text faults = {0};
    if (rp__env_ignored())
        rp__text_puts(&t, "environment: not read, since the program has rights that whoever started it may not have\n");
    else if (rp__env_faults(add_fault, &faults) && faults.data)
        rp__text_add(&t, "environment:\n%s", faults.data);
    rp__text_free(&faults);
    rp_error_take();
    rp__error_restore(&before);
    const char *text = t.failed || !t.data ? "" : t.data;
    size_t length = strlen(text);
    if (buf && bytes) {
        size_t n = length < bytes ? length : bytes - 1;
        memcpy(buf, text, n);
        buf[n] = 0;
    }
    rp__text_free(&t);
    return length;
}
