/* The search behind rp__dynlib_open. Order: the override variable; the dynamic loader's own path; the folders of the
 * spec; $CUDA_HOME and $CUDA_PATH; the default CUDA folder; NVIDIA's Python wheels (site-packages/nvidia/.../lib) of
 * $VIRTUAL_ENV, of the python3 on PATH and of ~/.local. In each place newer names come first. Only libc is used, no
 * heap of ours. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* dlinfo */
#endif
#include "core/dynlib.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/env.h"
#include "core/trust.h"

/* A wheel puts its libraries at nvidia/<package>/lib or deeper; below this nothing of interest was ever shipped. */
#define WHEEL_DEPTH 4

typedef struct search {
    rp__dynlib *lib;
    const rp__dynlib_spec *spec;
    void *table;
} search;

__attribute__((format(printf, 2, 3))) static void add_reason(rp__dynlib *lib, const char *format, ...) {
    static const char cut[] = "...\n";
    size_t room = sizeof lib->reasons - sizeof cut - lib->reasons_len;
    if (room <= 1) {
        return;
    }
    va_list args;
    va_start(args, format);
    int n = vsnprintf(lib->reasons + lib->reasons_len, room, format, args);
    va_end(args);
    if (n < 0) {
        return;
    }
    if ((size_t)n >= room) { /* full: end in a mark, and take no more */
        size_t end = sizeof lib->reasons - sizeof cut;
        memcpy(lib->reasons + end - 1, cut, sizeof cut);
        lib->reasons_len = end;
        return;
    }
    lib->reasons_len += (size_t)n;
}

/* dlerror's text often repeats the file name that the reason line already starts with. */
static const char *loader_text(const char *file) {
    const char *text = dlerror();
    size_t n = strlen(file);
    if (!text) {
        return "the loader gave no reason";
    }
    if (strncmp(text, file, n) == 0 && text[n] == ':') {
        text += n + 1;
        while (*text == ' ') {
            text++;
        }
    }
    return text;
}

static bool fill_table(const search *s, void *handle, const char *file) {
    rp__dynlib *lib = s->lib;
    lib->n_missing = 0;
    lib->missing[0] = '\0';
    for (size_t i = 0; i < s->spec->n_symbols; i++) {
        const rp__dynlib_symbol *symbol = &s->spec->symbols[i];
        void *address = dlsym(handle, symbol->name);
        if (!address && !symbol->optional) {
            add_reason(lib, "%s: has no function %s\n", file, symbol->name);
            return false;
        }
        if (!address) {
            size_t len = strlen(lib->missing);
            snprintf(lib->missing + len, sizeof lib->missing - len, "%s%s", len ? " " : "", symbol->name);
            lib->n_missing++;
        }
        /* Object and function pointers have one size wherever dlsym exists (POSIX). */
        memcpy((char *)s->table + symbol->offset, &address, sizeof address);
    }
    return true;
}

static bool try_file(const search *s, const char *file) {
    rp__dynlib *lib = s->lib;
    char why[RP__DYNLIB_PATH + 64];
    if (strchr(file, '/') && rp__library_refused(file, why, sizeof why)) {
        add_reason(lib, "%s: %s\n", file, why);
        return false;
    }
    dlerror();
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        add_reason(lib, "%s: %s\n", file, loader_text(file));
        return false;
    }
    if (!fill_table(s, handle, file)) {
        for (size_t i = 0; i < s->spec->n_symbols; i++) {
            void *none = NULL;
            memcpy((char *)s->table + s->spec->symbols[i].offset, &none, sizeof none);
        }
        dlclose(handle);
        return false;
    }
    lib->handle = handle;
    struct link_map *map = NULL;
    const char *path = file;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && map->l_name[0]) {
        path = map->l_name;
    }
    snprintf(lib->file, sizeof lib->file, "%s", path);
    return true;
}

/* Names of the spec in one folder. A folder without any of them gives no reason line of its own: `absent` asks for one.
 * */
static bool try_folder(const search *s, const char *folder, bool absent) {
    bool any = false;
    for (const char *const *name = s->spec->sonames; *name; name++) {
        char path[RP__DYNLIB_PATH];
        int n = snprintf(path, sizeof path, "%s/%s", folder, *name);
        if (n < 0 || (size_t)n >= sizeof path || access(path, F_OK) != 0) {
            continue;
        }
        any = true;
        if (try_file(s, path)) {
            return true;
        }
    }
    char reason[RP__DYNLIB_PATH + 64];
    snprintf(reason, sizeof reason, "%s: no %s there\n", folder, s->spec->sonames[0]);
    if (!any && absent && !strstr(s->lib->reasons, reason)) { /* one folder may come from two places of the search */
        add_reason(s->lib, "%s", reason);
    }
    return false;
}

/* nvidia/ of a site-packages folder, with its sub-folders: every folder named lib. */
static bool try_wheel_tree(const search *s, const char *folder, int depth) {
    DIR *dir = depth > 0 ? opendir(folder) : NULL;
    if (!dir) {
        return false;
    }
    bool found = false;
    struct dirent *entry;
    while (!found && (entry = readdir(dir)) != NULL) {
        char path[RP__DYNLIB_PATH];
        if (entry->d_name[0] == '.' ||
            (entry->d_type != DT_DIR && entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)) {
            continue;
        }
        int n = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (n < 0 || (size_t)n >= sizeof path) {
            continue;
        }
        found = strcmp(entry->d_name, "lib") == 0 ? try_folder(s, path, false) : try_wheel_tree(s, path, depth - 1);
    }
    closedir(dir);
    return found;
}

/* prefix/lib/python3.*: site-packages and Debian's dist-packages. */
static bool try_python_prefix(const search *s, const char *prefix) {
    char lib_folder[RP__DYNLIB_PATH];
    snprintf(lib_folder, sizeof lib_folder, "%.*s/lib", RP__DYNLIB_PATH - 8, prefix);
    DIR *dir = opendir(lib_folder);
    if (!dir) {
        return false;
    }
    bool found = false;
    struct dirent *entry;
    while (!found && (entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, "python3", 7) != 0) {
            continue;
        }
        static const char *const packages[] = {"site-packages", "dist-packages"};
        for (size_t i = 0; i < 2 && !found; i++) {
            char path[RP__DYNLIB_PATH];
            int n = snprintf(path, sizeof path, "%s/%s/%s/nvidia", lib_folder, entry->d_name, packages[i]);
            if (n > 0 && (size_t)n < sizeof path) {
                found = try_wheel_tree(s, path, WHEEL_DEPTH);
            }
        }
    }
    closedir(dir);
    return found;
}

/* The prefix of the python3 found first on PATH: its real file's bin folder and the link's own. */
static bool try_python_on_path(const search *s) {
    const char *path = rp__env("PATH");
    while (path && *path) {
        size_t n = strcspn(path, ":");
        char file[RP__DYNLIB_PATH];
        int len = snprintf(file, sizeof file, "%.*s/python3", (int)(n < RP__DYNLIB_PATH ? n : 0), path);
        if (n > 0 && len > 0 && (size_t)len < sizeof file && access(file, X_OK) == 0) {
            char real[PATH_MAX];
            char *const files[] = {file, realpath(file, real)};
            for (size_t i = 0; i < 2; i++) {
                for (int up = 0; files[i] && up < 2; up++) { /* .../bin/python3 -> ... */
                    char *slash = strrchr(files[i], '/');
                    if (slash) {
                        *slash = '\0';
                    }
                }
                if (files[i] && try_python_prefix(s, files[i])) {
                    return true;
                }
            }
            return try_python_prefix(s, "/usr/local");
        }
        path += n + (path[n] == ':');
    }
    return false;
}

static bool try_toolkit(const search *s) {
    static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH"};
    static const char *const below[] = {"lib64", "lib"};
    char path[RP__DYNLIB_PATH];
    for (size_t i = 0; i < 2; i++) {
        const char *home = rp__env(variables[i]);
        for (size_t j = 0; home && *home && j < 2; j++) {
            int n = snprintf(path, sizeof path, "%s/%s", home, below[j]);
            if (n > 0 && (size_t)n < sizeof path && try_folder(s, path, j == 0)) {
                return true;
            }
        }
    }
    if (try_folder(s, "/usr/local/cuda/lib64", true)) {
        return true;
    }
    const char *venv = rp__env("VIRTUAL_ENV");
    if (venv && *venv && try_python_prefix(s, venv)) {
        return true;
    }
    if (try_python_on_path(s)) {
        return true;
    }
    const char *home = rp__env("HOME");
    if (home && *home) {
        int n = snprintf(path, sizeof path, "%s/.local", home);
        if (n > 0 && (size_t)n < sizeof path && try_python_prefix(s, path)) {
            return true;
        }
    }
    add_reason(s->lib, "Python wheels: no nvidia/.../lib/%s\n", s->spec->sonames[0]);
    return false;
}

static bool try_all(const search *s) {
    const char *file = s->spec->variable ? rp__env(s->spec->variable) : NULL;
    if (file && *file) {
        size_t before = s->lib->reasons_len;
        if (try_file(s, file)) {
            return true;
        }
        if (s->lib->reasons_len > before) {
            add_reason(s->lib, "%s is set, so no other place was tried\n", s->spec->variable);
        }
        return false;
    }
    for (const char *const *name = s->spec->sonames; *name; name++) {
        if (try_file(s, *name)) {
            return true;
        }
    }
    for (const char *const *folder = s->spec->folders; folder && *folder; folder++) {
        if (try_folder(s, *folder, true)) {
            return true;
        }
    }
    return s->spec->in_toolkit && try_toolkit(s);
}

/* LD_LIBRARY_PATH is the dynamic loader's. */
const char *const rp__dynlib_variables[] = {
    "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "PATH", "HOME", NULL};

const char *rp__dynlib_file(rp__dynlib *lib) {
    pthread_mutex_lock(&lib->lock);
    const char *file = lib->handle ? lib->file : ""; /* written once */
    pthread_mutex_unlock(&lib->lock);
    return file;
}

bool rp__dynlib_open(rp__dynlib *lib, const rp__dynlib_spec *spec, void *table) {
    pthread_mutex_lock(&lib->lock);
    if (!lib->tried) {
        search s = {lib, spec, table};
        try_all(&s);
        lib->tried = true;
    }
    bool found = lib->handle != NULL;
    pthread_mutex_unlock(&lib->lock);
    return found;
}

size_t rp__dynlib_report(rp__dynlib *lib, const rp__dynlib_spec *spec, char *text, size_t size) {
    pthread_mutex_lock(&lib->lock);
    int n;
    if (!lib->tried) {
        n = snprintf(text, size, "%s: not looked for yet\n", spec->title);
    } else if (!lib->handle) {
        n = snprintf(text, size, "%s: not found\n%s", spec->title, lib->reasons);
    } else {
        n = snprintf(text, size, "%s: %s%s%s%s\n", spec->title, lib->file, lib->n_missing ? " (without " : "",
                     lib->missing, lib->n_missing ? ")" : "");
    }
    pthread_mutex_unlock(&lib->lock);
    return n > 0 ? (size_t)n : 0;
}
