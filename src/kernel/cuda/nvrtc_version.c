/* See nvrtc_version.h. */
#include "kernel/cuda/nvrtc_version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/dynlib.h"
#include "core/env.h"
#include "core/thread.h"
#include "kernel/disk_cache.h"

typedef struct note {
    char version[RP__NVRTC_VERSION];
    int64_t size, seconds, nanoseconds; /* of the file */
    char file[RP__DYNLIB_PATH];
} note;

static rp__mutex lock = RP__MUTEX_INIT;
static const rp__libnvrtc *nvrtc; /* NULL until it was needed */
static bool known;                /* the version, or that there is none */
static char version[RP__NVRTC_VERSION];

/* What the search for the library depends on: variables, and the dynamic loader's cache of folders. */
static rp__hash place(void) {
    struct stat st;
    int64_t cache[3] = {0};
    const char *file = rp__env("REPRISE_LIBNVRTC");
    rp__hash h = rp__hash_bytes(file ? file : "", file ? strlen(file) : 0, rp__hash_none());
    for (const char *const *name = rp__dynlib_variables; *name; name++) {
        const char *value = rp__env(*name);
        h = rp__hash_bytes(value ? value : "", value ? strlen(value) : 0, h);
    }
    if (stat("/etc/ld.so.cache", &st) == 0) {
        cache[0] = st.st_size;
        cache[1] = st.st_mtim.tv_sec;
        cache[2] = st.st_mtim.tv_nsec;
    }
    return rp__hash_bytes(cache, sizeof cache, h);
}

static bool describe(const char *file, note *out) {
    struct stat st;
    memset(out, 0, sizeof *out);
    if (!*file || strlen(file) >= sizeof out->file || stat(file, &st) != 0) return false;
    out->size = st.st_size;
    out->seconds = st.st_mtim.tv_sec;
    out->nanoseconds = st.st_mtim.tv_nsec;
    memcpy(out->file, file, strlen(file));
    return true;
}

static bool read_note(char out[RP__NVRTC_VERSION]) {
    void *entry = NULL;
    size_t bytes = 0;
    note then, now;
    if (!rp__disk_cache_get(place(), "nvrtc", &entry, &bytes)) return false;
    bool fits = bytes == sizeof then;
    if (fits) memcpy(&then, entry, sizeof then);
    rp__free(entry);
    fits = fits && memchr(then.file, 0, sizeof then.file) && memchr(then.version, 0, sizeof then.version) &&
           describe(then.file, &now);
    if (!fits) return false;
    memcpy(now.version, then.version, sizeof now.version);
    if (memcmp(&then, &now, sizeof then) != 0) return false;
    memcpy(out, then.version, sizeof then.version);
    return true;
}

static void write_note(void) {
    char old[RP__NVRTC_VERSION];
    note now;
    if (!describe(rp__libnvrtc_file(), &now)) return;
    if (read_note(old) && strcmp(old, version) == 0) return;
    memcpy(now.version, version, sizeof now.version);
    char why[512];
    (void)rp__disk_cache_put(place(), "nvrtc", &now, sizeof now, why, sizeof why);
}

static void load(void) { /* under the lock */
    const rp__libnvrtc *found = rp__libnvrtc_get();
    int major = 0, minor = 0;
    known = true;
    memset(version, 0, sizeof version);
    if (!found) return;
    (void)found->nvrtcVersion(&major, &minor);
    (void)snprintf(version, sizeof version, "%d.%d", major, minor);
    nvrtc = found;
    write_note();
}

rp_status rp__nvrtc_need(const rp__libnvrtc **out, char text[RP__NVRTC_VERSION]) {
    rp__lock(&lock);
    if (!nvrtc) load();
    *out = nvrtc;
    memcpy(text, version, sizeof version);
    rp__unlock(&lock);
    if (*out) return RP_OK;
    return rp__fail(RP_ERROR_UNAVAILABLE, "no CUDA compiler: libnvrtc could not be loaded (`reprise doctor` says why)");
}

void rp__nvrtc_version(char out[RP__NVRTC_VERSION]) {
    rp__lock(&lock);
    if (!known && read_note(version)) known = true;
    if (!known) load();
    memcpy(out, version, sizeof version);
    rp__unlock(&lock);
}
