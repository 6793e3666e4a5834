/* See file.h. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/text.h"

static rp_status file_fail(const char *call, const char *path, const char *why) {
    char name[512];
    rp__printable(name, sizeof name, path);
    return rp__fail(RP_ERROR_IO, "%s: %s: %s", call, name, why);
}

/* ---------------------------------------------------------------- reading */

rp__file *rp__file_map(const char *call, const char *path) {
    if (!path) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the path is NULL", call);
        return NULL;
    }
    rp__file *f = rp__calloc(1, sizeof *f + strlen(path) + 1);
    if (!f) {
        (void)RP__OOM("a file");
        return NULL;
    }
    atomic_init(&f->refs, 1);
    strcpy(f->name, path);
    struct stat st;
    const char *why = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* no waiting for a pipe */
    if (fd < 0 || fstat(fd, &st) != 0) {
        why = strerror(errno);
    } else if (!S_ISREG(st.st_mode)) {
        why = "it is no regular file";
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            why = strerror(errno);
        else
            f->data = p;
        f->bytes = (uint64_t)st.st_size;
    }
    if (why) (void)file_fail(call, path, why);
    if (fd >= 0) close(fd);
    if (!why) return f;
    rp__free(f);
    return NULL;
}

rp__file *rp__file_retain(rp__file *f) {
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

void rp__file_release(rp__file *f) {
    if (!f || atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1) return;
    if (f->data) munmap(f->data, (size_t)f->bytes);
    rp__free(f);
}

/* ---------------------------------------------------------------- writing */

static void writer_free(rp__writer *w) {
    rp__free(w->target);
    rp__free(w->temporary);
    *w = (rp__writer){.fd = -1};
}

rp_status rp__writer_begin(rp__writer *w, const char *call, const char *path) {
    *w = (rp__writer){.call = call, .fd = -1};
    if (!path) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the path is NULL", call);
    char real[PATH_MAX];
    struct stat st;
    if (!realpath(path, real)) { /* it is not there yet */
        if (strlen(path) >= sizeof real) return file_fail(call, path, strerror(ENAMETOOLONG));
        strcpy(real, path);
    }
    /* A rename would put a file in the place of a device or a pipe. */
    if (stat(real, &st) == 0 && !S_ISREG(st.st_mode)) return file_fail(call, path, "it is no regular file");
    static atomic_uint number;
    w->target = rp__strdup(real);
    w->temporary = rp__alloc(strlen(real) + 40);
    if (!w->target || !w->temporary) {
        writer_free(w);
        return RP__OOM("a file to write");
    }
    do { /* mode 0666 and the umask of the process, which cannot be asked for without changing it */
        sprintf(w->temporary, "%s.%ld-%u.tmp", real, (long)getpid(), atomic_fetch_add(&number, 1));
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (w->fd < 0 && errno == EEXIST);
    if (w->fd >= 0) return RP_OK;
    rp_status status = file_fail(call, w->temporary, strerror(errno));
    writer_free(w);
    return status;
}

void rp__writer_put(rp__writer *w, const void *data, size_t bytes) {
    const char *p = data;
    while (bytes && !w->fault) {
        const ssize_t n = write(w->fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            w->fault = n < 0 ? errno : EIO;
            return;
        }
        p += n;
        bytes -= (size_t)n;
    }
}

/* The new name is on disk, too, when the folder is. */
static void folder_sync(const char *target) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", target);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

rp_status rp__writer_end(rp__writer *w, bool keep) {
    if (w->fd < 0) return RP_OK;
    if (keep && !w->fault && fsync(w->fd) != 0 && errno != EINVAL) w->fault = errno;
    if (close(w->fd) != 0 && !w->fault) w->fault = errno;
    if (keep && !w->fault && rename(w->temporary, w->target) != 0) w->fault = errno;
    if (!keep || w->fault)
        unlink(w->temporary);
    else
        folder_sync(w->target);
    rp_status status = keep && w->fault ? file_fail(w->call, w->target, strerror(w->fault)) : RP_OK;
    writer_free(w);
    return status;
}
