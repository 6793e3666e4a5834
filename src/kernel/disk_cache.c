/* See disk_cache.h. The folder is asked for at each use: what the environment says, and who may write there, may change. */
#include "kernel/disk_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/thread.h"

enum {
    FILE_LIMIT = 1 << 28, /* bytes; what is larger is none of ours */
    KEPT_MIB = 768,
    DAY =
        86400, /* s; what is older was left by a process that was killed: no compiler may take as long (core/env.def) */
    TRAILER_BYTES = 32
};

typedef struct trailer { /* the end of an entry */
    char magic[8];
    uint64_t bytes;
    rp__hash hash; /* of key and bytes */
} trailer;
_Static_assert(sizeof(trailer) == TRAILER_BYTES, "the trailer is a file format");
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

/* Who may write in the folder of what is executed? */
static bool refused(const char *folder, char *why, size_t bytes) {
    struct stat st;
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode))
        (void)snprintf(why, bytes, "%s is no folder", folder);
    else if (st.st_uid != geteuid())
        (void)snprintf(why, bytes, "%s belongs to another user: kernels from there are not run", folder);
    else if (st.st_mode & (S_IWGRP | S_IWOTH))
        (void)snprintf(why, bytes, "others may write in %s: kernels from there are not run (chmod go-w)", folder);
    else
        return false;
    return true;
}

static char start_folder[RP__DISK_PATH]; /* "" when it has no name */
static void find_start(void) {
    if (!getcwd(start_folder, sizeof start_folder)) start_folder[0] = 0;
}

bool rp__disk_cache_folder(char folder[RP__DISK_PATH], char *why, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *own = rp__env("REPRISE_CACHE_DIR"), *xdg = rp__env("XDG_CACHE_HOME"), *home = rp__env("HOME");
    int n = -1;
    (void)pthread_once(&once, find_start);
    *why = 0;
    if (own && (*own == '/' || *start_folder))
        n = snprintf(folder, RP__DISK_PATH, "%s%s%s", *own == '/' ? "" : start_folder, *own == '/' ? "" : "/", own);
    else if (!own && xdg && *xdg == '/')
        n = snprintf(folder, RP__DISK_PATH, "%s/reprise", xdg);
    else if (!own && home && *home == '/')
        n = snprintf(folder, RP__DISK_PATH, "%s/.cache/reprise", home);
    if (n < 0)
        (void)snprintf(why, bytes, "no REPRISE_CACHE_DIR, XDG_CACHE_HOME or HOME names a folder");
    else if (n >= RP__DISK_PATH - 128) /* an entry's name follows */
        (void)snprintf(why, bytes, "the name of the cache folder is longer than %d bytes", RP__DISK_PATH - 129);
    else if (!make_folders(folder))
        (void)snprintf(why, bytes, "cannot make the cache folder: %s: %s", strerror(errno), folder);
    else if (!refused(folder, why, bytes)) {
        if (access(folder, W_OK | X_OK) != 0)
            (void)snprintf(why, bytes, "cannot write to the cache folder: %s: %s", strerror(errno), folder);
        return true;
    }
    *folder = 0;
    return false;
}

/* ---- folders for loaders and compilers */

/* Why the loader could not load objects from there; NULL: it can. */
static const char *not_loadable(const char *folder) {
    struct statvfs fs;
    if (strchr(folder, '$')) return "the loader replaces names after a $ in it";
    return statvfs(folder, &fs) == 0 && (fs.f_flag & ST_NOEXEC) ? "it is mounted noexec" : NULL;
}

bool rp__disk_cache_loads(char *why, size_t bytes) {
    char folder[RP__DISK_PATH];
    const char *fault = rp__disk_cache_folder(folder, why, bytes) ? not_loadable(folder) : NULL;
    if (fault) (void)snprintf(why, bytes, "no kernel can be loaded from the cache folder: %s: %s", fault, folder);
    return *folder && !fault;
}

static const char work_name[] = "reprise-work-XXXXXX";

/* The folder in use, if any. The process may end at any moment while a thread compiles. */
static rp__mutex work_lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_work, &work_lock, 1)
static struct {
    atomic_long
        process; /* 0: nobody worked here yet. A child that came about without the handlers of fork has its parent's */
    bool ended;
    int lock;                   /* of the folder, open; free when the process is gone, however it ended; -1: none */
    char folder[RP__DISK_PATH]; /* "": none */
} work = {.lock = -1};

/* A compiler that outlives its process may write once more meanwhile. */
static void remove_work(const char *folder) {
    enum { TRIES = 100 };
    for (int k = 0; k < TRIES; k++) {
        DIR *d = opendir(folder);
        for (struct dirent *e; d && (e = readdir(d));)
            if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) (void)unlinkat(dirfd(d), e->d_name, 0);
        if (d) (void)closedir(d);
        if (rmdir(folder) == 0 || errno != ENOTEMPTY) return;
    }
}

static void drop_work(void) {
    if (work.lock >= 0) (void)close(work.lock);
    work.lock = -1;
    work.folder[0] = 0;
}

__attribute__((destructor)) static void end_work(void) {
    if (atomic_load(&work.process) != (long)getpid()) return;
    rp__lock(&work_lock);
    work.ended = true;
    if (*work.folder) remove_work(work.folder);
    drop_work();
    rp__unlock(&work_lock);
}

static void leave_work_to_the_parent(void) {
    drop_work();
    atomic_store(&work.process, (long)getpid());
}
static void watch_work(void) {
    atomic_store(&work.process, (long)getpid());
    rp__fork_handler_add(leave_work_to_the_parent);
}

/* False: a process is at work there. Where folders cannot be locked *fd is -1. */
static bool lock_work(const char *folder, int *fd) {
    *fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0) return false;
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return true;
    const bool busy = errno == EWOULDBLOCK;
    (void)close(*fd);
    *fd = -1;
    return !busy;
}

/* Work folders of processes that were killed. */
static void sweep_work(const char *parent) {
    DIR *d = opendir(parent);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[RP__DISK_PATH + 32];
        struct stat st;
        int fd = -1;
        if (strlen(e->d_name) != sizeof work_name - 1 || strncmp(e->d_name, work_name, strcspn(work_name, "X")) != 0 ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
            snprintf(path, sizeof path, "%s/%.24s", parent, e->d_name) >= (int)sizeof path || !lock_work(path, &fd))
            continue;
        if (fd >= 0 || time(NULL) - st.st_mtime > DAY) remove_work(path);
        if (fd >= 0) (void)close(fd);
    }
    if (d) (void)closedir(d);
}

/* Makes and locks work.folder, whose name ends in X's. */
static bool make_work(void) {
    enum { TRIES = 8 };
    const size_t n = strlen(work.folder);
    for (int k = 0; k < TRIES; k++) {
        struct stat path, made;
        memcpy(work.folder + n - 6, "XXXXXX", 6);
        if (!mkdtemp(work.folder)) return false;
        /* Another process may have swept it before it was locked. */
        if (lock_work(work.folder, &work.lock) && stat(work.folder, &path) == 0 &&
            (work.lock < 0 || (fstat(work.lock, &made) == 0 && made.st_ino == path.st_ino)))
            return true;
        if (work.lock >= 0) (void)close(work.lock);
        work.lock = -1;
    }
    errno = EBUSY;
    return false;
}

/* In one of the parents, from *place on. Under the lock. */
static bool find_work(size_t *place, char *why, size_t bytes) {
    const char *tmp = rp__env("TMPDIR");
    char cache[RP__DISK_PATH], unused[1];
    const char *const parents[] = {tmp && *tmp == '/' && strlen(tmp) < 512 ? tmp : "/tmp", "/tmp", "/var/tmp",
                                   "/dev/shm", cache};
    while (*place < sizeof parents / sizeof *parents) {
        const char *parent = parents[(*place)++];
        if (parent == cache && !rp__disk_cache_folder(cache, unused, sizeof unused)) continue;
        const char *fault = not_loadable(parent);
        if (!fault) sweep_work(parent);
        (void)snprintf(work.folder, RP__DISK_PATH, "%.*s/%s", RP__DISK_PATH - 32, parent, work_name);
        if (!fault && make_work()) return true;
        (void)snprintf(why, bytes, "no folder for objects, %.128s: %s", parent, fault ? fault : strerror(errno));
        work.folder[0] = 0;
    }
    return false;
}

bool rp__disk_work_folder(char folder[RP__DISK_PATH], size_t *place, char *why, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch_work);
    rp__lock(&work_lock);
    if (work.ended) (void)snprintf(why, bytes, "no folder for objects: the process ends");
    const bool found = !work.ended && find_work(place, why, bytes);
    if (found) memcpy(folder, work.folder, sizeof work.folder);
    rp__unlock(&work_lock);
    return found;
}

void rp__disk_work_end(void) {
    rp__lock(&work_lock);
    if (*work.folder) remove_work(work.folder);
    drop_work();
    rp__unlock(&work_lock);
}

static bool entry_path(rp__hash key, const char *extension, char path[RP__DISK_PATH], char *why, size_t bytes) {
    char hex[33];
    if (!rp__disk_cache_folder(path, why, bytes)) return false;
    rp__hash_text(key, hex);
    size_t n = strlen(path);
    (void)snprintf(path + n, RP__DISK_PATH - n, "/%s.%s", hex, extension);
    return true;
}

char *rp__disk_file_read(const char *path, size_t *bytes) {
    struct stat st;
    /* O_NONBLOCK: a pipe in its place would be waited for */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return NULL;
    char *data = NULL;
    size_t done = 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH)) &&
        st.st_size <= FILE_LIMIT)
        data = rp__alloc((size_t)st.st_size + 1);
    while (data && done < (size_t)st.st_size) {
        ssize_t n = read(fd, data + done, (size_t)st.st_size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    (void)close(fd);
    if (data && done == (size_t)st.st_size) {
        data[done] = 0;
        *bytes = done;
        return data;
    }
    rp__free(data);
    return NULL;
}

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

/* A new file of both pieces. On failure: nothing is left of it, and errno. */
static bool write_file(const char *path, const void *data, size_t bytes, const trailer *end) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    bool ok = write_all(fd, data, bytes) && (!end || write_all(fd, end, sizeof *end));
    int why = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (!ok) (void)unlink(path);
    errno = why;
    return ok;
}

bool rp__disk_file_write(const char *path, const void *data, size_t bytes) {
    return write_file(path, data, bytes, NULL);
}

int rp__disk_folder_fault(const char *folder) {
    static const char zeros[1 << 20];
    char path[RP__DISK_PATH + 32];
    (void)snprintf(path, sizeof path, "%s/work.probe", folder);
    int fault = rp__disk_file_write(path, zeros, sizeof zeros) ? 0 : errno;
    (void)unlink(path);
    return fault;
}

/* The entry at `path`, without its trailer. */
static char *sound_entry(rp__hash key, const char *path, size_t *bytes) {
    size_t all;
    char *file = rp__disk_file_read(path, &all);
    trailer t = {.bytes = 0};
    if (!file) return NULL;
    if (all >= sizeof t) memcpy(&t, file + all - sizeof t, sizeof t);
    *bytes = all - sizeof t;
    if (all >= sizeof t && memcmp(t.magic, magic, sizeof magic) == 0 && t.bytes == *bytes &&
        rp__hash_equal(t.hash, rp__hash_bytes(file, *bytes, key)))
        return file;
    rp__log(RP__LOG_CACHE, "removing the damaged entry %s", path);
    rp__free(file);
    (void)unlink(path);
    return NULL;
}

bool rp__disk_cache_get(rp__hash key, const char *extension, void **data, size_t *bytes) {
    char path[RP__DISK_PATH], why[512];
    *data = entry_path(key, extension, path, why, sizeof why) ? sound_entry(key, path, bytes) : NULL;
    return *data != NULL;
}

bool rp__disk_cache_file(rp__hash key, const char *extension, char path[RP__DISK_PATH]) {
    char why[512];
    size_t bytes;
    char *data = entry_path(key, extension, path, why, sizeof why) ? sound_entry(key, path, &bytes) : NULL;
    rp__free(data);
    return data != NULL;
}

typedef struct entry {
    char name[96];
    int64_t when; /* ns */
    uint64_t bytes;
} entry;

static int older_first(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return x->when < y->when ? -1 : x->when > y->when;
}

/* Removes the oldest entries beyond the limit, and what killed processes left. */
static void prune(const char *folder) {
    const uint64_t limit = (uint64_t)rp__env_number("REPRISE_CACHE_MB", KEPT_MIB) << 20;
    const time_t now = time(NULL);
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
        if (strstr(e->d_name, ".tmp") && now - st.st_mtime > DAY) {
            (void)unlinkat(dirfd(d), e->d_name, 0);
            continue;
        }
        if (!RP__GROW(&list, &capacity, n + 1)) break;
        memcpy(list[n].name, e->d_name, length + 1);
        list[n].when = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        list[n].bytes = (uint64_t)st.st_size;
        total += list[n++].bytes;
    }
    if (total > limit) {
        qsort(list, n, sizeof *list, older_first);
        for (size_t k = 0; k < n && total > limit; k++)
            if (unlinkat(dirfd(d), list[k].name, 0) == 0) total -= list[k].bytes;
    }
    rp__free(list);
    (void)closedir(d);
}

bool rp__disk_cache_put(rp__hash key, const char *extension, const void *data, size_t bytes, char *why, size_t room) {
    static atomic_uint number;
    char path[RP__DISK_PATH], temporary[RP__DISK_PATH + 64];
    if (!entry_path(key, extension, path, why, room)) return false;
    /* Processes of two hosts or containers may have one number: the clock tells them apart, and O_EXCL the rest. */
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(temporary, sizeof temporary, "%s.%ld.%lx.%u.tmp", path, (long)getpid(), (unsigned long)now.tv_nsec,
                   atomic_fetch_add(&number, 1));
    trailer t = {.bytes = bytes, .hash = rp__hash_bytes(data, bytes, key)};
    memcpy(t.magic, magic, sizeof magic);
    bool ok = write_file(temporary, data, bytes, &t);
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        int error = errno;
        (void)unlink(temporary);
        errno = error;
    }
    if (!ok) (void)snprintf(why, room, "cannot write to the cache folder: %s: %s", strerror(errno), path);
    *strrchr(path, '/') = 0;
    if (ok) prune(path);
    return ok;
}

void rp__disk_cache_drop(rp__hash key, const char *extension) {
    char path[RP__DISK_PATH], why[512];
    if (entry_path(key, extension, path, why, sizeof why)) (void)unlink(path);
}
