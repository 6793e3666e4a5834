/* Names of backends: the built-in engines, those that higher floors add, and users' rp_backends, each wrapped by AOT autograd.
   What a user takes back leaves the table, but stays: compiled functions and tapes may point at it. */
#include <stdio.h>
#include <string.h>

#include "compile/aot.h"
#include "compile/backend.h"
#include "core/alloc.h"
#include "core/fork.h"
#include "core/options.h"
#include "core/text.h"
#include "core/thread.h"

/* ---- engines over a leaf */

rp_status rp__leaf_compile(const rp__engine *self, const rp__engine_request *request, void **object) {
    rp__aot *a;
    RP_TRY(rp__aot_compile(self->leaf, request, &a));
    *object = a;
    return RP_OK;
}

rp_status rp__leaf_run(void *object, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    return rp__aot_run(object, in, n_in, out, n_out);
}

void rp__leaf_destroy(void *object) { rp__aot_free(object); }
struct rp__executable *rp__leaf_settled(const void *object) {
    return rp__aot_settled(object);
}

const rp__leaf rp__leaf_nodes = {.kind = RP__LEAF_NODES}, rp__leaf_program = {.kind = RP__LEAF_PROGRAM},
               rp__leaf_fused = {.kind = RP__LEAF_FUSED};

static const rp__engine aot_eager = {
    .name = "aot_eager", .tags = RP__ENGINE_DEBUG, RP__ENGINE_OVER_LEAF, .leaf = &rp__leaf_nodes};
/* Eager's kernels, one a node, as one device graph: no launch overhead, nothing fused (torch/_dynamo/backends/cudagraphs.py). */
static const rp__engine cudagraphs = {.name = "cudagraphs", RP__ENGINE_OVER_LEAF, .leaf = &rp__leaf_program};
static const rp__engine fused = {.name = "fused", .alias = "inductor", RP__ENGINE_OVER_LEAF, .leaf = &rp__leaf_fused};

/* ---- "eager": compiled.c runs the function itself and asks nothing of the engine */

static rp_status eager_compile(const rp__engine *self, const rp__engine_request *request, void **object) {
    (void)self;
    (void)request;
    *object = NULL;
    return RP_OK;
}

static rp_status eager_run(void *object, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)object;
    (void)in;
    (void)n_in;
    (void)out;
    (void)n_out;
    return rp__fail(RP_ERROR_INTERNAL, "backend \"eager\" runs no graphs");
}

static void eager_destroy(void *object) { (void)object; }

static const rp__engine eager = {.name = "eager",
                                 .tags = RP__ENGINE_DEBUG | RP__ENGINE_RUNS_FUNCTION,
                                 .compile = eager_compile,
                                 .run = eager_run,
                                 .destroy = eager_destroy};

/* ---- the table */

enum { MAX_ENGINES = 256 };
static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)
static const rp__engine *engines[MAX_ENGINES] = {&eager, &aot_eager, &fused, &cudagraphs};
static size_t n_engines;

/* Under the lock: those of floor 8 join behind the built-in ones, before anybody else's. */
static void join_doors(void) {
    if (n_engines) return;
    while (engines[n_engines]) n_engines++;
    for (size_t k = 0; rp__door_engines[k] && n_engines < MAX_ENGINES; k++) engines[n_engines++] = rp__door_engines[k];
}

static bool is_called(const rp__engine *e, const char *name) {
    return strcmp(e->name, name) == 0 || (e->alias && strcmp(e->alias, name) == 0);
}

static const rp__engine *find(const char *name) {
    for (size_t i = 0; i < n_engines; i++) {
        if (is_called(engines[i], name)) return engines[i];
    }
    return NULL;
}

rp_status rp__engine_register(const rp__engine *e) {
    rp__lock(&lock);
    join_doors();
    bool taken = find(e->name) || (e->alias && find(e->alias)), full = n_engines == MAX_ENGINES;
    if (!taken && !full) engines[n_engines++] = e;
    rp__unlock(&lock);
    if (taken) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "there is a backend \"%s\" already", e->name);
    return full ? rp__fail(RP_ERROR_STATE, "more than %d backends", MAX_ENGINES) : RP_OK;
}

const rp__engine *rp__engine_find(const char *name) {
    rp__lock(&lock);
    join_doors();
    const rp__engine *e = name ? find(name) : find("fused");
    if (!e && !name) e = &aot_eager;
    rp__text names = {0};
    for (size_t i = 0; !e && i < n_engines; i++)
        rp__text_add(&names, "%s%s%s%s%s", i ? ", " : "", engines[i]->name, engines[i]->alias ? " (" : "",
                     engines[i]->alias ? engines[i]->alias : "", engines[i]->alias ? ")" : "");
    rp__unlock(&lock);
    if (!e)
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "there is no backend \"%s\"; there are: %s", name,
                       names.data ? names.data : "");
    rp__text_free(&names);
    return e;
}

/* A user's backend. */
typedef struct owned {
    rp__engine engine; /* first */
    rp__leaf leaf;
    struct owned *next;
} owned;
static owned *gone; /* under the lock; for whoever looks for leaks */

rp_status rp_unregister_backend_at(const char *site, const char *name) {
    RP__CALLED_FROM(site);
    if (!name) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_unregister_backend: the name is NULL");
    rp__lock(&lock);
    join_doors();
    size_t at = 0;
    while (at < n_engines && strcmp(engines[at]->name, name) != 0) at++;
    bool there = at < n_engines, users = there && engines[at]->leaf && engines[at]->leaf->kind == RP__LEAF_USERS;
    if (users) {
        owned *o = (owned *)(uintptr_t)engines[at];
        memmove(&engines[at], &engines[at + 1], (--n_engines - at) * sizeof *engines);
        o->next = gone;
        gone = o;
    }
    rp__unlock(&lock);
    if (users) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                    there ? "backend \"%s\" is the library's own and stays" : "there is no backend \"%s\"", name);
}

rp_status rp_register_backend_at(const char *site, const rp_backend *given) {
    RP__CALLED_FROM(site);
    rp_backend backend;
    RP_TRY(rp__options_read("rp_register_backend", given, sizeof backend, &backend));
    if (!backend.name || !*backend.name || !backend.compile || !backend.run)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_register_backend: a name, compile and run are needed");
    owned *o = rp__calloc(1, sizeof *o);
    char *name = rp__strdup(backend.name);
    if (!o || !name) {
        rp__free(o);
        rp__free(name);
        return RP__OOM("backend");
    }
    o->leaf = (rp__leaf){.kind = RP__LEAF_USERS, .users = backend};
    o->leaf.users.name = name;
    o->engine = (rp__engine){.name = name, RP__ENGINE_OVER_LEAF, .leaf = &o->leaf};
    rp_status status = rp__engine_register(&o->engine);
    if (status != RP_OK) {
        rp__free(name);
        rp__free(o);
    }
    return status;
}

size_t rp_backend_count(void) {
    rp__lock(&lock);
    join_doors();
    size_t n = n_engines;
    for (size_t i = 0; i < n_engines; i++) n += engines[i]->alias != NULL;
    rp__unlock(&lock);
    return n;
}

const char *rp_backend_name_at(const char *site, size_t index) {
    RP__CALLED_FROM(site);
    rp__lock(&lock);
    join_doors();
    const char *name = NULL;
    size_t at = 0;
    for (size_t i = 0; i < n_engines && !name; i++) { /* an alias is the name behind */
        if (at++ == index) name = engines[i]->name;
        if (!name && engines[i]->alias && at++ == index) name = engines[i]->alias;
    }
    rp__unlock(&lock);
    if (!name) (void)rp__fail(RP_ERROR_INDEX, "backend %zu does not exist", index);
    return name ? name : "";
}

rp_status rp_backend_info_get_at(const char *site, const char *name, rp_backend_info *info) {
    RP__CALLED_FROM(site);
    rp_backend_info found = {.struct_size = sizeof found, .available = true};
    if (!name || !info) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_backend_info_get: an argument is NULL");
    const rp__engine *e = rp__engine_find(name);
    if (!e) return rp_error_status();
    if (e->leaf && e->leaf->kind == RP__LEAF_DOOR)
        e->leaf->ops->info(e->leaf, &found);
    else
        (void)snprintf(found.version, sizeof found.version, "%d.%d.%d", RP_VERSION_MAJOR, RP_VERSION_MINOR,
                       RP_VERSION_PATCH);
    return rp__options_write("rp_backend_info_get", info, sizeof found, &found);
}
