/* See library.h. */
#include "doors/library.h"

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* dlinfo */
#endif
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/env.h"
#include "core/trust.h"
#include "doors/door.h"

static atomic_uint forks;
static void count_fork(void) { atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed); }
static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, count_fork); }

unsigned rp__door_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch_forks);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

static void *try_file(const char *file, const char *entry_name, char where[512], char why[512], void **entry) {
    char refused[400];
    if (strchr(file, '/') && rp__library_refused(file, refused, sizeof refused)) {
        (void)snprintf(why, 512, "%.80s: %s", file, refused);
        return NULL;
    }
    dlerror();
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *text = dlerror();
        (void)snprintf(why, 512, "%s", text ? text : "the loader gave no reason");
        return NULL;
    }
    *entry = dlsym(handle, entry_name);
    if (!*entry) {
        (void)snprintf(why, 512, "%.300s has no function %s", file, entry_name);
        dlclose(handle);
        return NULL;
    }
    struct link_map *map = NULL;
    const bool known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name;
    (void)snprintf(where, 512, "%s", known ? map->l_name : file);
    return handle;
}

void *rp__door_load(const rp__door_library *library, char where[512], char why[512], void **entry) {
    const char *given = rp__env(library->variable);
    char path[512], first[512] = "";
    if (given && *given) {
        void *handle = try_file(given, library->entry, where, why, entry);
        const size_t at = strlen(why);
        if (!handle) (void)snprintf(why + at, 512 - at, " (%s is set)", library->variable);
        return handle;
    }
    for (const char *const *name = library->names; *name; name++) {
        void *handle = try_file(*name, library->entry, where, why, entry);
        if (handle) return handle;
        if (!*first) (void)snprintf(first, sizeof first, "%s", why);
    }
    for (const char *const(*wheel)[2] = library->wheels; (*wheel)[0]; wheel++) {
        if (!rp__door_find((*wheel)[0], (*wheel)[1], path, sizeof path)) continue;
        void *handle = try_file(path, library->entry, where, why, entry);
        if (handle) return handle;
        (void)snprintf(first, sizeof first, "%s", why);
    }
    (void)snprintf(why, 512, "%.300s, nor in Python's packages; %s may name it",
                   *first ? first : "it is not on the loader's path", library->variable);
    return NULL;
}

bool rp__door_answer(const rp__door_found *found, char version[64], char where[512], char why[512]) {
    memcpy(version, found->version, 64);
    memcpy(where, found->where, 512);
    memcpy(why, found->why, 512);
    if (!found->here || rp__door_forks() == found->forks) return found->here;
    (void)snprintf(why, 512, "it was opened before the process forked, and its threads stayed behind");
    return false;
}
