/* See trust.h. */
#include "core/trust.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool others_may_write(const struct stat *st) {
    const bool own_group = st->st_uid == geteuid() && st->st_gid == st->st_uid;
    return (st->st_mode & S_IWOTH) || ((st->st_mode & S_IWGRP) && st->st_gid != 0 && !own_group);
}

const char *rp__library_refused(const char *path, char *why, size_t bytes) {
    /* The loader itself takes what it finds there, whoever asks. */
    static const char *const system[] = {"/usr/", "/lib/", "/lib64/"};
    char real[PATH_MAX];
    struct stat st;
    if (!realpath(path, real) || stat(real, &st) != 0) return NULL;
    for (size_t i = 0; i < sizeof system / sizeof *system; i++) {
        if (!strncmp(real, system[i], strlen(system[i]))) return NULL;
    }
    for (int folder = 0; folder < 2; folder++) {
        if (st.st_uid != geteuid() && st.st_uid != 0) {
            (void)snprintf(why, bytes, "not opened: %s belongs to another user", real);
            return why;
        }
        if (others_may_write(&st) && !(folder && (st.st_mode & S_ISVTX))) {
            (void)snprintf(why, bytes, "not opened: others may write %s (chmod go-w)", real);
            return why;
        }
        char *slash = strrchr(real, '/');
        if (slash == real || stat((*slash = 0, real), &st) != 0) break;
    }
    return NULL;
}
