/* Where Python keeps packages (door.h). */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/env.h"
#include "doors/door.h"

/* Of the files in a folder that begin with the stem, the last by name. */
static bool in_folder(const char *folder, const char *stem, char *path, size_t bytes) {
    DIR *dir = opendir(folder);
    char best[256] = "";
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, stem, strlen(stem)) != 0 || strlen(entry->d_name) >= sizeof best) continue;
        if (strcmp(entry->d_name, best) > 0) (void)snprintf(best, sizeof best, "%s", entry->d_name);
    }
    if (dir) closedir(dir);
    return *best && snprintf(path, bytes, "%s/%s", folder, best) < (int)bytes;
}

static bool in_prefix(const char *prefix, const char *below, const char *stem, char *path, size_t bytes) {
    static const char *const packages[] = {"site-packages", "dist-packages"};
    char folder[PATH_MAX];
    if (snprintf(folder, sizeof folder, "%s/lib", prefix) >= (int)sizeof folder) return false;
    DIR *dir = opendir(folder);
    bool found = false;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        for (unsigned k = 0; k < 2 && !found && strncmp(entry->d_name, "python3", 7) == 0; k++) {
            char at[PATH_MAX];
            if (snprintf(at, sizeof at, "%s/lib/%s/%s/%s", prefix, entry->d_name, packages[k], below) < (int)sizeof at)
                found = in_folder(at, stem, path, bytes);
        }
    }
    if (dir) closedir(dir);
    return found;
}

/* The prefix of a python3: its folder's parent, of the link and of the file. */
static bool beside_python(const char *python, const char *below, const char *stem, char *path, size_t bytes) {
    char real[PATH_MAX], link[PATH_MAX];
    (void)snprintf(link, sizeof link, "%s", python);
    char *const files[] = {link, realpath(python, real)};
    for (unsigned k = 0; k < 2; k++) {
        for (unsigned up = 0; files[k] && up < 2; up++) {
            char *slash = strrchr(files[k], '/');
            if (slash) *slash = 0;
        }
        if (files[k] && in_prefix(files[k], below, stem, path, bytes)) return true;
    }
    return false;
}

bool rp__door_find(const char *below, const char *stem, char *path, size_t bytes) {
    const char *venv = rp__env("VIRTUAL_ENV"), *home = rp__env("HOME"), *folders = rp__env("PATH");
    if (venv && *venv && in_prefix(venv, below, stem, path, bytes)) return true;
    for (const char *p = folders ? folders : ""; *p; p += *p == ':') {
        char python[PATH_MAX];
        const size_t n = strcspn(p, ":");
        const int length = snprintf(python, sizeof python, "%.*s/python3", (int)(n < PATH_MAX - 16 ? n : 0), p);
        p += n;
        if (n == 0 || length >= (int)sizeof python || access(python, X_OK) != 0) continue;
        if (beside_python(python, below, stem, path, bytes)) return true;
        break; /* the first is the one that runs */
    }
    char local[PATH_MAX];
    return home && *home && snprintf(local, sizeof local, "%s/.local", home) < (int)sizeof local &&
           in_prefix(local, below, stem, path, bytes);
}
