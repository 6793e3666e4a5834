/* See disk_cache.h. One lock around the folder; file operations run outside it. */
#include "kernel/disk_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/thread.h"

enum { ENTRY_LIMIT = 1 << 28 }; /* bytes; what is larger is none of ours */
static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)
static bool opened;
static char folder[1024];
static char reason[1280];
static uint64_t stored; /* entries of this process */
static atomic_uint temporary_number;

typedef struct trailer { /* the last RP__DISK_CACHE_TRAILER bytes of an entry */
    char magic[8];
    uint64_t bytes;
    rp__hash hash;
} trailer;
_Static_assert(sizeof(trailer) == RP__DISK_CACHE_TRAILER, "the trailer is a file format");
static const char magic[8] = {'R', 'P', 'K', 'E', 'R', 'N', '0', '2'};

/* Makes every folder of the path. */
static bool make_folders(char *path) {
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p) continue;
        char end = *p;
        *p = 0;
        bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
        *p = end;
        if (!ok) return false;
        if (!end) return true;
    }
}

const char *rp__disk_folder_refused(const char *path, char *why, size_t bytes) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        (void)snprintf(why, bytes, "%s is no folder", path);
    else if (st.st_uid != geteuid())
        (void)snprintf(why, bytes, "%s belongs to another user: kernels from there are not run", path);
    else if (st.st_mode & (S_IWGRP | S_IWOTH))
        (void)snprintf(why, bytes, "others may write in %s: kernels from there are not run (chmod go-w)", path);
    else
        return NULL;
    return why;
}

int rp__disk_file_open(const char *path, struct stat *st) {
    /* O_NONBLOCK: a pipe in its place would be waited for */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return -1;
    if (fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH)))
        return fd;
    (void)close(fd);
    return -1;
}

static char start_folder[RP__DISK_CACHE_PATH]; /* "" when it has no name */
static void find_start(void) {
    if (!getcwd(start_folder, sizeof start_folder)) start_folder[0] = 0;
}

const char *rp__disk_folder_ready(char *out, size_t bytes, char *why, size_t why_bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *own = rp__env("REPRISE_CACHE_DIR"), *xdg = rp__env("XDG_CACHE_HOME"), *home = rp__env("HOME");
    int n = -1;
    (void)pthread_once(&once, find_start);
    out[0] = 0;
    if (own && (*own == '/' || *start_folder))
        n = snprintf(out, bytes, "%s%s%s", *own == '/' ? "" : start_folder, *own == '/' ? "" : "/", own);
    else if (!own && xdg && *xdg == '/')
        n = snprintf(out, bytes, "%s/reprise", xdg);
    else if (!own && home && *home == '/')
        n = snprintf(out, bytes, "%s/.cache/reprise", home);
    const char *refused = why;
    if (n < 0)
        (void)snprintf(why, why_bytes, "no REPRISE_CACHE_DIR, XDG_CACHE_HOME or HOME names a folder");
    else if ((size_t)n >= bytes)
        (void)snprintf(why, why_bytes, "the name of the cache folder is longer than %zu bytes", bytes - 1);
    else if (!make_folders(out))
        (void)snprintf(why, why_bytes, "cannot make the cache folder %s: %s", out, strerror(errno));
    else
        refused = rp__disk_folder_refused(out, why, why_bytes);
    if (refused) out[0] = 0;
    return refused;
}

void rp__disk_folder_sweep(const char *path) {
    enum { DAY = 86400 };
    DIR *d = opendir(path);
    if (!d) return;
    const time_t now = time(NULL);
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        const char *name = e->d_name;
        if ((strstr(name, ".tmp") || !strncmp(name, "version.", 8)) &&
            !fstatat(dirfd(d), name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) && now - st.st_mtime > DAY)
            (void)unlinkat(dirfd(d), name, 0);
    }
    (void)closedir(d);
}

static void open_folder(void) {
    opened = true;
    if (!rp__disk_folder_ready(folder, sizeof folder, reason, sizeof reason) && access(folder, W_OK | X_OK) != 0)
        (void)snprintf(reason, sizeof reason, "cannot write to the cache folder %s: %s", folder, strerror(errno));
}

const char *rp__disk_cache_folder(void) {
    rp__lock(&lock);
    if (!opened) open_folder();
    rp__unlock(&lock);
    return folder;
}

const char *rp__disk_cache_reason(void) {
    (void)rp__disk_cache_folder();
    return reason;
}

static bool entry_path(rp__hash key, const char *extension, char path[RP__DISK_CACHE_PATH]) {
    char hex[33];
    rp__hash_text(key, hex);
    return *rp__disk_cache_folder() &&
           snprintf(path, RP__DISK_CACHE_PATH, "%s/%s.%s", folder, hex, extension) < RP__DISK_CACHE_PATH;
}

/* Whole file; NULL when it cannot be read. */
static void *read_file(const char *path, size_t *bytes) {
    struct stat st;
    int fd = rp__disk_file_open(path, &st);
    if (fd < 0) return NULL;
    char *data = NULL;
    size_t done = 0;
    if (st.st_size >= RP__DISK_CACHE_TRAILER && st.st_size <= ENTRY_LIMIT) data = rp__alloc((size_t)st.st_size);
    while (data && done < (size_t)st.st_size) {
        ssize_t n = read(fd, data + done, (size_t)st.st_size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    (void)close(fd);
    if (data && done == (size_t)st.st_size) {
        *bytes = done;
        return data;
    }
    rp__free(data);
    return NULL;
}

bool rp__disk_cache_get(rp__hash key, const char *extension, void **data, size_t *bytes) {
    char path[RP__DISK_CACHE_PATH];
    size_t all;
    if (!entry_path(key, extension, path)) return false;
    char *file = read_file(path, &all);
    if (!file) return false;
    trailer t;
    memcpy(&t, file + all - sizeof t, sizeof t);
    size_t size = all - sizeof t;
    if (memcmp(t.magic, magic, sizeof magic) != 0 || t.bytes != size ||
        !rp__hash_equal(t.hash, rp__hash_bytes(file, size, key))) {
        rp__log(RP__LOG_CACHE, "removing the damaged entry %s", path);
        rp__free(file);
        (void)unlink(path);
        return false;
    }
    *data = file;
    *bytes = size;
    return true;
}

typedef struct entry {
    char name[96];
    int64_t when;
    uint64_t bytes;
} entry;

static int older_first(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return x->when < y->when ? -1 : x->when > y->when;
}

/* Removes the oldest entries until a quarter of the limit is free. */
static void prune(uint64_t limit) {
    DIR *d = opendir(folder);
    entry *list = NULL;
    size_t n = 0, capacity = 0;
    uint64_t total = 0;
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        size_t length = strlen(e->d_name);
        if (length < 34 || length >= sizeof list->name || e->d_name[32] != '.' ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (!RP__GROW(&list, &capacity, n + 1)) break;
        memcpy(list[n].name, e->d_name, length + 1);
        list[n].when = (int64_t)st.st_mtime;
        list[n].bytes = (uint64_t)st.st_size;
        total += list[n++].bytes;
    }
    if (total > limit) {
        qsort(list, n, sizeof *list, older_first);
        for (size_t k = 0; k < n && total > limit - limit / 4; k++)
            if (unlinkat(dirfd(d), list[k].name, 0) == 0) total -= list[k].bytes;
    }
    rp__free(list);
    (void)closedir(d);
}

static uint64_t limit_bytes(void) { return (uint64_t)rp__env_number("REPRISE_CACHE_LIMIT", 512) << 20; }

static bool write_all(int fd, const void *data, size_t bytes) {
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool rp__disk_cache_put(rp__hash key, const char *extension, const void *data, size_t bytes) {
    char path[RP__DISK_CACHE_PATH], temporary[RP__DISK_CACHE_PATH + 64];
    if (!entry_path(key, extension, path)) return false;
    /* Processes of two hosts or containers may have one number: the clock tells them apart, and O_EXCL the rest. */
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(temporary, sizeof temporary, "%s.%ld.%lx.%u.tmp", path, (long)getpid(), (unsigned long)now.tv_nsec,
                   atomic_fetch_add(&temporary_number, 1));
    trailer t = {.bytes = bytes, .hash = rp__hash_bytes(data, bytes, key)};
    memcpy(t.magic, magic, sizeof magic);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write_all(fd, data, bytes) && write_all(fd, &t, sizeof t);
    int why = errno;
    if (fd >= 0 && close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        why = errno;
    }
    rp__lock(&lock);
    if (!ok) (void)snprintf(reason, sizeof reason, "cannot write to the cache folder %s: %s", folder, strerror(why));
    bool look = ok && stored++ % 64 == 0;
    rp__unlock(&lock);
    if (!ok && fd >= 0) (void)unlink(temporary);
    if (look) {
        rp__disk_folder_sweep(folder);
        prune(limit_bytes());
    }
    return ok;
}

void rp__disk_cache_drop(rp__hash key, const char *extension) {
    char path[RP__DISK_CACHE_PATH];
    if (entry_path(key, extension, path)) (void)unlink(path);
}
