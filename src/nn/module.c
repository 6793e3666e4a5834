/* Modules: a tree of names over handles that lie in the program's own structs. The root owns all memory of the tree; lists that a
   program asked for, and what compiled functions compare, are made from the tree and forgotten when it changes. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/alloc.h"
#include "core/flags.h"
#include "core/handle.h"
#include "core/hash.h"
#include "core/text.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef enum part { PARAMETER, BUFFER, BUFFER_OF_NO_STATE } part;

typedef struct entry {
    char *name;
    part part;
    rp_tensor **place; /* of the program */
    rp_tensor *tensor; /* retained; NULL: absent, for good */
} entry;

typedef enum list_kind { PARAMETERS, BUFFERS, STATE, LISTS } list_kind;

typedef struct list {
    rp_named_tensor *items; /* names belong to the list */
    rp_tensor **tensors;    /* the same, without names */
    size_t n;
    bool made;
} list;

/* Hooks of one kind, in order. A list never changes, so that who runs it meets what was there when it began, whatever the hooks
   themselves register and remove; a module has another one then. */
typedef struct hook {
    uint64_t id;
    rp_module_pre_hook *before; /* one of the two */
    rp_module_hook *after;
    void *ctx;
} hook;
typedef struct hooks {
    atomic_uint refs;
    rp_module *module;
    size_t n;
    hook items[];
} hooks;

/* A function of rp_compile_module: what it needs at a call. */
typedef struct compiled {
    struct compiled *next;
    rp_module *root;
    rp_fn fn;
} compiled;

struct rp_module {
    rp__handle handle;
    char *name;
    rp_module *parent; /* NULL: a root */
    rp_module **children;
    entry *entries;
    size_t n_children, children_capacity, n_entries, entries_capacity;
    bool training;
    void *owned; /* rp__module_own */
    void (*give_back)(void *memory);
    hooks *before, *after; /* NULL: none */
    uint64_t hooks_version;
    list lists[LISTS];
    /* of a root */
    compiled *functions; /* not NULL: nothing is registered any more */
    rp_tensor *
        *watched; /* handles of the whole tree, then its modules' modes and versions of hooks: what functions compare */
    size_t watched_bytes;
    uint64_t
        modes; /* modes and versions of hooks of the whole tree in a number: what a function of rp_compile compares that calls a
                       layer; in memory that outlives us */
};

static rp_module failed_module; /* returned when there is no memory for one */

static rp_status module_check(const rp_module *m, const char *call) {
    return rp__handle_check(m, RP__HANDLE_MODULE, call);
}

static rp_module *root_of(rp_module *m) {
    while (m->parent) m = m->parent;
    return m;
}

/* ---------------------------------------------------------------- the tree */

static void name_free(const char *name) {
    union {
        const char *given;
        char *own;
    } it = {name};
    rp__free(it.own);
}

static void lists_free(rp_module *m) {
    for (int k = 0; k < LISTS; k++) {
        for (size_t i = 0; i < m->lists[k].n; i++) name_free(m->lists[k].items[i].name);
        rp__free(m->lists[k].items);
        rp__free(m->lists[k].tensors);
        m->lists[k] = (list){0};
    }
}

/* What lies below m changed. */
static void lists_forget(rp_module *m) {
    for (; m; m = m->parent) lists_free(m);
}

static void hooks_drop(hooks *h) {
    if (h && atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) == 1) rp__free(h);
}

static void module_free(rp_module *m) {
    for (size_t i = 0; i < m->n_children; i++) module_free(m->children[i]);
    hooks_drop(m->before);
    hooks_drop(m->after);
    if (m->owned) m->give_back(m->owned);
    lists_free(m);
    for (size_t i = 0; i < m->n_entries; i++) {
        rp__free(m->entries[i].name);
        if (m->entries[i].tensor) rp_release(m->entries[i].tensor);
    }
    for (compiled *c = m->functions, *next; c; c = next) {
        next = c->next;
        rp__free(c);
    }
    rp__free(m->watched);
    rp__free(m->children);
    rp__free(m->entries);
    rp__free(m->name);
    rp__handle_free(m);
}

static rp_module *module_make(const char *name) {
    rp_module *m = rp__handle_new(RP__HANDLE_MODULE, sizeof *m);
    if (!m) return NULL;
    m->training = true;
    m->name = rp__strdup(name ? name : "");
    if (m->name) return m;
    rp__handle_free(m);
    return NULL;
}

rp_module *rp_module_new_at(const char *site, const char *name) {
    RP__CALLED_FROM(site);
    rp_module *m = module_make(name);
    if (m) return m;
    (void)RP__OOM("a module");
    return &failed_module;
}

void rp_module_release(rp_module *m) {
    if (!m || m == &failed_module) return;
    if (rp__handle_is(m, RP__HANDLE_MODULE) && m->parent) {
        (void)rp__fail(RP_ERROR_STATE, "rp_module_release: `%s` is a child, which goes with its root", m->name);
        return;
    }
    if (rp__handle_give_up(m, RP__HANDLE_MODULE, "rp_module_release")) module_free(m);
}

/* May `name` be given below m? */
static rp_status name_check(rp_module *m, const char *call, const char *name) {
    RP_TRY(module_check(m, call));
    if (root_of(m)->functions)
        return rp__fail(RP_ERROR_STATE,
                        "%s: module `%s` has a compiled function; register everything before rp_compile_module", call,
                        root_of(m)->name);
    if (!name || !*name || strchr(name, '.'))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a name has at least one character and no dot, not \"%s\"", call,
                        name ? name : "NULL");
    bool taken = false;
    for (size_t i = 0; i < m->n_children; i++) taken = taken || strcmp(m->children[i]->name, name) == 0;
    for (size_t i = 0; i < m->n_entries; i++) taken = taken || strcmp(m->entries[i].name, name) == 0;
    if (taken) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: module `%s` has a `%s` already", call, m->name, name);
    return RP_OK;
}

static rp_status child_new(rp_module *m, const char *name, rp_module **out) {
    RP_TRY(name_check(m, "rp_module_child", name));
    rp_module *child = RP__GROW(&m->children, &m->children_capacity, m->n_children + 1) ? module_make(name) : NULL;
    if (!child) return RP__OOM("a module");
    child->parent = m;
    child->training = m->training;
    m->children[m->n_children++] = *out = child;
    return RP_OK;
}

void rp__module_own(rp_module *m, void *memory, void (*give_back)(void *memory)) {
    m->owned = memory;
    m->give_back = give_back;
}

rp_module *rp_module_child_at(const char *site, rp_module *m, const char *name) {
    RP__CALLED_FROM(site);
    rp_module *child = &failed_module;
    (void)child_new(m, name, &child);
    return child;
}

static rp_status entry_add(rp_module *m, const char *call, const char *name, rp_tensor **place, part p) {
    RP_TRY(name_check(m, call, name));
    if (!place) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the place of `%s` is NULL", call, name);
    rp_tensor *t = *place;
    if (t) RP_TRY(rp__tensor_check(t, name));
    if (t && p == PARAMETER && !(rp_is_leaf(t) && rp__dtype_is_float((rp_dtype)t->dtype)))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: `%s` must be a leaf of a floating type; it is %s of type %s",
                        call, name, rp_is_leaf(t) ? "one" : "a result of an op", rp_dtype_name((rp_dtype)t->dtype));
    char *copy = RP__GROW(&m->entries, &m->entries_capacity, m->n_entries + 1) ? rp__strdup(name) : NULL;
    if (!copy) return RP__OOM("a module");
    m->entries[m->n_entries++] = (entry){copy, p, place, t ? rp_retain(t) : NULL};
    lists_forget(m);
    return RP_OK;
}

rp_status rp_module_add_parameter_at(const char *site, rp_module *m, const char *name, rp_tensor **place) {
    RP__CALLED_FROM(site);
    return entry_add(m, "rp_module_add_parameter", name, place, PARAMETER);
}

rp_status rp_module_add_buffer_at(const char *site, rp_module *m, const char *name, rp_tensor **place,
                                  bool persistent) {
    RP__CALLED_FROM(site);
    return entry_add(m, "rp_module_add_buffer", name, place, persistent ? BUFFER : BUFFER_OF_NO_STATE);
}

rp_status rp__module_adopt(rp_module *m, const char *name, const rp__module_field *fields, size_t n,
                           rp_module **child) {
    rp_module *c = NULL;
    rp_status status = child_new(m, name, &c);
    for (size_t i = 0; i < n && status == RP_OK; i++)
        status =
            entry_add(c, "rp_module_child", fields[i].name, fields[i].place, fields[i].buffer ? BUFFER : PARAMETER);
    for (size_t i = 0; i < n; i++) {
        if (*fields[i].place) rp_release(*fields[i].place);
        if (status != RP_OK) *fields[i].place = NULL;
    }
    if (status != RP_OK && c) rp__module_undo(c);
    if (status == RP_OK && child) *child = c;
    return status;
}

rp_status rp__module_adopt_layer(rp_module *m, const char *name, const rp__module_field *fields, size_t n,
                                 const rp_module **own) {
    rp_module *child = NULL;
    RP_TRY(rp__module_adopt(m, name, fields, n, &child));
    *own = child;
    return RP_OK;
}

void rp__module_undo(rp_module *child) {
    if (child == &failed_module) return;
    rp_module *m = child->parent;
    m->n_children--;
    module_free(child);
    lists_forget(m);
}

/* Calls visit for every module of the tree, a parent before its children. */
static void walk(rp_module *m, void (*visit)(void *ctx, rp_module *m), void *ctx) {
    visit(ctx, m);
    for (size_t i = 0; i < m->n_children; i++) walk(m->children[i], visit, ctx);
}

/* ---------------------------------------------------------------- lists */

/* A name of the whole: path of the modules, dot, name. */
static char *joined(const char *path, const char *name) {
    size_t n = strlen(path), k = strlen(name);
    char *s = rp__alloc(n + k + 2);
    if (!s) return NULL;
    memcpy(s, path, n);
    if (n) s[n++] = '.';
    memcpy(s + n, name, k + 1);
    return s;
}

typedef struct filling {
    size_t capacity;
    rp__map known; /* ids of tensors: parameters and buffers are listed once, whatever names they have */
} filling;

static rp_status list_fill(list *l, list_kind kind, rp_module *m, const char *path, filling *f) {
    for (size_t i = 0; i < m->n_entries; i++) {
        const entry *e = &m->entries[i];
        bool wanted = kind == PARAMETERS ? e->part == PARAMETER
                      : kind == BUFFERS  ? e->part != PARAMETER
                                         : e->part != BUFFER_OF_NO_STATE;
        if (*e->place != e->tensor)
            return rp__fail(
                RP_ERROR_STATE,
                "module: `%s%s%s` is not the tensor that was registered: write into a parameter with rp_copy_", path,
                *path ? "." : "", e->name);
        if (!wanted || !e->tensor) continue;
        const rp__hash key = {e->tensor->id, rp__hash_mix(e->tensor->id, 1)};
        if (kind != STATE && rp__map_get(&f->known, key)) continue;
        if ((kind != STATE && !rp__map_put(&f->known, key, e->tensor)) || !RP__GROW(&l->items, &f->capacity, l->n + 1))
            return RP__OOM("a list of a module's tensors");
        char *name = joined(path, e->name);
        if (!name) return RP__OOM("a list of a module's tensors");
        l->items[l->n++] = (rp_named_tensor){name, e->tensor};
    }
    for (size_t i = 0; i < m->n_children; i++) {
        char *below = joined(path, m->children[i]->name);
        if (!below) return RP__OOM("a list of a module's tensors");
        rp_status status = list_fill(l, kind, m->children[i], below, f);
        rp__free(below);
        RP_TRY(status);
    }
    return RP_OK;
}

static const list *list_of(rp_module *m, list_kind kind, const char *call, size_t *n) {
    if (n) *n = 0;
    if (module_check(m, call) != RP_OK) return NULL;
    list *l = &m->lists[kind];
    if (!l->made) {
        filling f = {0};
        rp_status status = list_fill(l, kind, m, "", &f);
        rp__map_free(&f.known);
        if (status == RP_OK) {
            l->tensors = rp__calloc(l->n + 1, sizeof *l->tensors);
            if (!l->tensors) status = RP__OOM("a list of a module's tensors");
        }
        if (status != RP_OK) {
            lists_forget(m);
            return NULL;
        }
        for (size_t i = 0; i < l->n; i++) l->tensors[i] = l->items[i].tensor;
        l->made = true;
    }
    if (n) *n = l->n;
    return l;
}

rp_tensor *const *rp_module_parameters_at(const char *site, rp_module *m, size_t *n) {
    RP__CALLED_FROM(site);
    const list *l = list_of(m, PARAMETERS, "rp_module_parameters", n);
    return l ? l->tensors : NULL;
}

static const rp_named_tensor *named(rp_module *m, list_kind kind, const char *call, size_t *n) {
    const list *l = list_of(m, kind, call, n);
    return l ? l->items : NULL;
}

const rp_named_tensor *rp_module_named_parameters_at(const char *site, rp_module *m, size_t *n) {
    RP__CALLED_FROM(site);
    return named(m, PARAMETERS, "rp_module_named_parameters", n);
}

const rp_named_tensor *rp_module_named_buffers_at(const char *site, rp_module *m, size_t *n) {
    RP__CALLED_FROM(site);
    return named(m, BUFFERS, "rp_module_named_buffers", n);
}

const rp_named_tensor *rp_module_state_at(const char *site, rp_module *m, size_t *n) {
    RP__CALLED_FROM(site);
    return named(m, STATE, "rp_module_state", n);
}

static rp_status apply(rp_module *m, const char *path, rp_module_visit *visit, void *ctx) {
    for (size_t i = 0; i < m->n_children; i++) {
        char *below = joined(path, m->children[i]->name);
        if (!below) return RP__OOM("rp_module_apply");
        rp_status status = apply(m->children[i], below, visit, ctx);
        rp__free(below);
        RP_TRY(status);
    }
    return visit(ctx, m, path);
}

rp_status rp_module_apply_at(const char *site, rp_module *m, rp_module_visit *visit, void *ctx) {
    RP__CALLED_FROM(site);
    RP_TRY(module_check(m, "rp_module_apply"));
    if (!visit) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_module_apply: the function is NULL");
    return apply(m, "", visit, ctx);
}

/* ---------------------------------------------------------------- what compiled functions compare */

typedef struct tally {
    size_t tensors, modules;
    rp_tensor **handles; /* NULL: only counts */
    uint64_t *modes;     /* 2 version of hooks + training */
} tally;

static void watch(void *ctx, rp_module *m) {
    tally *t = ctx;
    for (size_t i = 0; i < m->n_entries; i++, t->tensors++)
        if (t->handles) t->handles[t->tensors] = m->entries[i].tensor;
    if (t->modes) t->modes[t->modules] = m->hooks_version << 1 | m->training;
    t->modules++;
}

static void mix_modes(void *ctx, rp_module *m) {
    uint64_t *modes = ctx;
    *modes = rp__hash_mix(*modes, m->hooks_version << 1 | m->training);
}

/* Brings what functions compare up to date. */
static void watched_update(rp_module *m) {
    rp_module *root = root_of(m);
    root->modes = 1;
    walk(root, mix_modes, &root->modes);
    if (!root->watched) return;
    tally count = {0};
    walk(root, watch, &count);
    tally fill = {.handles = root->watched, .modes = (uint64_t *)(void *)(root->watched + count.tensors)};
    walk(root, watch, &fill);
}

static void modes_guard(const rp_module *m) {
    rp_module *root = root_of((rp_module *)(uintptr_t)m);
    if (root->modes == 0) watched_update(root);
    (void)rp_guard_bytes(&root->modes, sizeof root->modes);
}

static rp_status watched_make(rp_module *root) {
    if (root->watched) return RP_OK;
    tally count = {0};
    walk(root, watch, &count);
    size_t bytes = count.tensors * sizeof(rp_tensor *) + count.modules * sizeof(uint64_t);
    root->watched = rp__calloc(1, bytes);
    if (!root->watched) return RP__OOM("a compiled function of a module");
    root->watched_bytes = bytes;
    watched_update(root);
    return RP_OK;
}

static void call_compiled(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const compiled *c = ctx;
    (void)rp_guard_bytes(c->root->watched, c->root->watched_bytes);
    if (c->fn.ctx_bytes) (void)rp_guard_bytes(c->fn.ctx, c->fn.ctx_bytes);
    c->fn.body(c->fn.ctx, in, n_in, out, n_out);
}

static rp_status compiled_new(rp_module *m, rp_fn fn, compiled **out) {
    RP_TRY(module_check(m, "rp_compile_module"));
    if (!fn.body) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_compile_module: the function has no body");
    rp_module *root = root_of(m);
    RP_TRY(watched_make(root));
    compiled *c = rp__calloc(1, sizeof *c);
    if (!c) return RP__OOM("a compiled function of a module");
    c->next = root->functions;
    c->root = root;
    c->fn = fn;
    root->functions = *out = c;
    return RP_OK;
}

rp_compiled *rp_compile_module_at(const char *site, rp_module *m, rp_fn fn, const rp_compile_options *options) {
    RP__CALLED_FROM(site);
    compiled *c = NULL;
    if (compiled_new(m, fn, &c) != RP_OK)
        return rp_compile((rp_fn){0}, options); /* the object that stands for a failure */
    return rp_compile((rp_fn){call_compiled, c, sizeof *c, fn.name ? fn.name : root_of(m)->name}, options);
}

/* ---------------------------------------------------------------- hooks */

/* The module at a dotted path below m; NULL: there is none. */
static rp_module *found(rp_module *m, const char *path) {
    while (m && *path) {
        const size_t n = strcspn(path, ".");
        rp_module *next = NULL;
        for (size_t i = 0; i < m->n_children && !next; i++)
            if (strncmp(m->children[i]->name, path, n) == 0 && !m->children[i]->name[n]) next = m->children[i];
        m = next;
        path += n + (path[n] == '.' && path[n + 1]);
    }
    return m;
}

rp_module *rp_module_find_at(const char *site, rp_module *m, const char *path) {
    RP__CALLED_FROM(site);
    if (module_check(m, "rp_module_find") != RP_OK) return &failed_module;
    rp_module *below = path ? found(m, path) : NULL;
    if (below) return below;
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_module_find: module `%s` has no module `%s` below it", m->name,
                   path ? path : "NULL");
    return &failed_module;
}

static hooks *hooks_new(rp_module *m, size_t n) {
    hooks *h = rp__calloc(1, sizeof *h + n * sizeof *h->items);
    if (!h) {
        (void)RP__OOM("a module's hook");
        return NULL;
    }
    atomic_init(&h->refs, 1);
    h->module = m;
    return h;
}

static void hooks_become(rp_module *m, hooks **place, hooks *now) {
    if (RP__UNLIKELY(rp__flags.tracing)) modes_guard(m); /* as they were when the function began */
    hooks_drop(*place);
    *place = now;
    m->hooks_version++;
    watched_update(m);
}

static uint64_t hook_add(rp_module *m, hooks **place, hook one) {
    static _Atomic uint64_t last_id;
    const size_t n = *place ? (*place)->n : 0;
    hooks *now = hooks_new(m, n + 1);
    if (!now) return 0;
    if (n) memcpy(now->items, (*place)->items, n * sizeof *now->items);
    one.id = 1 + atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed);
    now->items[n] = one;
    now->n = n + 1;
    hooks_become(m, place, now);
    return one.id;
}

uint64_t rp_module_register_forward_pre_hook_at(const char *site, rp_module *m, rp_module_pre_hook *fn, void *ctx) {
    RP__CALLED_FROM(site);
    if (module_check(m, "rp_module_register_forward_pre_hook") != RP_OK) return 0;
    if (fn) return hook_add(m, &m->before, (hook){.before = fn, .ctx = ctx});
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_module_register_forward_pre_hook: the hook is NULL");
    return 0;
}

uint64_t rp_module_register_forward_hook_at(const char *site, rp_module *m, rp_module_hook *fn, void *ctx) {
    RP__CALLED_FROM(site);
    if (module_check(m, "rp_module_register_forward_hook") != RP_OK) return 0;
    if (fn) return hook_add(m, &m->after, (hook){.after = fn, .ctx = ctx});
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_module_register_forward_hook: the hook is NULL");
    return 0;
}

rp_status rp_module_remove_hook_at(const char *site, rp_module *m, uint64_t id) {
    RP__CALLED_FROM(site);
    RP_TRY(module_check(m, "rp_module_remove_hook"));
    hooks **const places[] = {&m->before, &m->after};
    for (int k = 0; k < 2; k++) {
        const hooks *h = *places[k];
        for (size_t i = 0; h && i < h->n; i++) {
            if (h->items[i].id != id) continue;
            hooks *now = h->n > 1 ? hooks_new(m, h->n - 1) : NULL;
            if (!now && h->n > 1) return rp_error_status();
            for (size_t from = 0; now && from < h->n; from++)
                if (from != i) now->items[now->n++] = h->items[from];
            hooks_become(m, places[k], now);
            return RP_OK;
        }
    }
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_module_remove_hook: module `%s` has no hook %llu", m->name,
                    (unsigned long long)id);
}

void rp__hooks_before(const rp_module *m, rp_tensor **in, size_t n_in) {
    hooks *h = m ? m->before : NULL;
    if (m && RP__UNLIKELY(rp__flags.tracing)) modes_guard(m);
    if (RP__LIKELY(!h)) return;
    atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
    for (size_t i = 0; i < h->n; i++) h->items[i].before(h->items[i].ctx, h->module, in, n_in);
    hooks_drop(h);
}

void rp__hooks_after(const rp_module *m, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    hooks *h = m ? m->after : NULL;
    if (m && RP__UNLIKELY(rp__flags.tracing)) modes_guard(m);
    if (RP__LIKELY(!h)) return;
    atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
    for (size_t i = 0; i < h->n; i++) h->items[i].after(h->items[i].ctx, h->module, in, n_in, out, n_out);
    hooks_drop(h);
}

rp_tensor *rp__hooks_result(const rp_module *m, rp_tensor *const *in, size_t n_in, rp_tensor *y) {
    rp__hooks_after(m, in, n_in, &y, 1);
    return y;
}

rp_status rp_module_call_at(const char *site, rp_module *m, rp_fn fn, rp_tensor *const *in, size_t n_in,
                            rp_tensor **out, size_t n_out) {
    RP__CALLED_FROM(site);
    enum { MOST = 64 };
    rp_tensor *given[MOST];
    for (size_t k = 0; out && k < n_out; k++) out[k] = rp__tensor_error();
    RP_TRY(module_check(m, "rp_module_call"));
    if (!fn.body || n_in > MOST || (n_in && !in) || (n_out && !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_module_call: %s",
                        !fn.body      ? "the function has no body"
                        : n_in > MOST ? "there may be 64 arguments at most"
                                      : "a list of tensors is NULL");
    if (n_in) memcpy(given, in, n_in * sizeof *given);
    rp__hooks_before(m, given, n_in);
    fn.body(fn.ctx, given, n_in, out, n_out);
    rp__hooks_after(m, given, n_in, out, n_out);
    return rp_error_status();
}

/* ---------------------------------------------------------------- mode, gradients, dtype */

static void mode_set(void *ctx, rp_module *m) { m->training = *(const bool *)ctx; }

rp_status rp_module_set_training_at(const char *site, rp_module *m, bool training) {
    RP__CALLED_FROM(site);
    RP_TRY(module_check(m, "rp_module_set_training"));
    if (RP__UNLIKELY(rp__flags.tracing)) modes_guard(m); /* as it was when the function began */
    walk(m, mode_set, &training);
    watched_update(m);
    return RP_OK;
}

bool rp_module_training(const rp_module *m) {
    if (!rp__handle_is(m, RP__HANDLE_MODULE)) return !m; /* what was not made, or is none, has no mode */
    if (RP__UNLIKELY(rp__flags.tracing)) modes_guard(m);
    return m->training;
}

rp_status rp_module_set_requires_grad_at(const char *site, rp_module *m, bool requires_grad) {
    RP__CALLED_FROM(site);
    size_t n;
    const list *l = list_of(m, PARAMETERS, "rp_module_set_requires_grad", &n);
    if (!l) return rp_error_status();
    for (size_t i = 0; i < n; i++) RP_TRY(rp_set_requires_grad(l->tensors[i], requires_grad));
    return RP_OK;
}

/* Where tensors go: to a device, or (dtype not NONE) floats to a dtype. */
typedef struct target {
    rp_device device;
    rp_dtype dtype;
} target;

static bool is_there(const rp_tensor *t, const target *to) {
    if (to->dtype == RP_DTYPE_NONE) return rp__device_equal(t->device, to->device);
    return !rp__dtype_is_float((rp_dtype)t->dtype) || (rp_dtype)t->dtype == to->dtype;
}

static rp_tensor *moved_to(rp_tensor *t, const target *to) {
    return to->dtype == RP_DTYPE_NONE ? rp_to_device(t, to->device, false) : rp_to_dtype(t, to->dtype);
}

/* A tensor that takes the place of `old`, with its gradient; retained. NULL and a sticky error on failure. */
static rp_tensor *converted(rp_tensor *old, const target *to) {
    rp_tensor *t = moved_to(old, to), *grad = rp_grad_of(old);
    if (rp__tensor_is_error(t) || (rp_requires_grad(old) && rp_set_requires_grad(t, true) != RP_OK)) return NULL;
    if (grad && rp_set_grad(t, moved_to(grad, to)) != RP_OK) return NULL;
    return rp_retain(t);
}

typedef struct move {
    rp_tensor *from, *to;
} move;
typedef struct moves { /* tensors that change */
    move *all;
    size_t n;
} moves;

static void move_entries(void *ctx, rp_module *m) {
    const moves *moved = ctx;
    for (size_t i = 0; i < m->n_entries; i++) {
        entry *e = &m->entries[i];
        for (size_t k = 0; e->tensor && k < moved->n; k++) {
            if (e->tensor != moved->all[k].from) continue;
            *e->place = rp_retain(moved->all[k].to);
            rp_release(e->tensor);
            e->tensor = *e->place;
            lists_forget(m);
            break;
        }
    }
}

static rp_status moves_make(moves *moved, rp_tensor *const *tensors, size_t n, const target *goal) {
    for (size_t i = 0; i < n; i++) {
        rp_tensor *t = tensors[i], *to = t;
        if (is_there(t, goal)) continue;
        if (!(to = converted(t, goal))) return rp_error_status();
        moved->all[moved->n++] = (move){rp_retain(t), to};
    }
    return RP_OK;
}

/* Parameters and buffers of m: all, or on failure none. */
static rp_status move_all(rp_module *m, const char *call, const target *to) {
    size_t np, nb;
    const list *p = list_of(m, PARAMETERS, call, &np), *b = p ? list_of(m, BUFFERS, call, &nb) : NULL;
    if (!b) return rp_error_status();
    moves moved = {rp__calloc(np + nb + 1, sizeof *moved.all), 0};
    if (!moved.all) return RP__OOM("moving a module");
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? moves_make(&moved, p->tensors, np, to) : rp_error_status();
    if (status == RP_OK) status = moves_make(&moved, b->tensors, nb, to);
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    if (status == RP_OK) {
        walk(root_of(m), move_entries, &moved); /* a tensor may have names outside of m, too */
        watched_update(m);
    }
    for (size_t i = 0; i < moved.n; i++) {
        rp_release(moved.all[i].from);
        rp_release(moved.all[i].to);
    }
    rp__free(moved.all);
    return status;
}

rp_status rp_module_to_dtype_at(const char *site, rp_module *m, rp_dtype dtype) {
    RP__CALLED_FROM(site);
    if (!rp__dtype_is_float(dtype))
        return rp__fail(RP_ERROR_DTYPE, "rp_module_to_dtype: %s is not a floating type", rp_dtype_name(dtype));
    return move_all(m, "rp_module_to_dtype", &(target){.dtype = dtype});
}

rp_status rp_module_to_device_at(const char *site, rp_module *m, rp_device device) {
    RP__CALLED_FROM(site);
    if (!rp__device_get(device)) return rp_error_status();
    return move_all(m, "rp_module_to_device", &(target){.device = device, .dtype = RP_DTYPE_NONE});
}

/* ---------------------------------------------------------------- summary */

static void size_text(const rp_tensor *t, char *out, size_t bytes) {
    size_t n = (size_t)snprintf(out, bytes, "(");
    for (size_t d = 0; d < t->ndim && n < bytes; d++)
        n += (size_t)snprintf(out + n, bytes - n, "%s%lld", d ? ", " : "", (long long)t->size[d]);
    if (n < bytes) snprintf(out + n, bytes - n, ")");
}

/* Totals of m's parameters, each once. */
static rp_status totals_add(rp__text *text, rp_module *m) {
    size_t n;
    const list *parameters = list_of(m, PARAMETERS, "rp_module_summary", &n);
    if (!parameters) return rp_error_status();
    long long trained = 0, kept = 0;
    for (size_t i = 0; i < n; i++)
        *(rp_requires_grad(parameters->tensors[i]) ? &trained : &kept) += rp_numel(parameters->tensors[i]);
    rp__text_add(text, "%lld parameters, %lld of them trained\n", trained + kept, trained);
    return RP_OK;
}

static size_t text_give(rp__text *text, rp_status status, char *buf, size_t bytes) {
    if (status == RP_OK && text->failed) status = RP__OOM("rp_module_summary");
    const size_t length = status == RP_OK ? text->length : 0;
    if (buf && bytes && length) snprintf(buf, bytes, "%s", text->data);
    rp__text_free(text);
    return length;
}

size_t rp_module_summary_at(const char *site, rp_module *m, char *buf, size_t bytes) {
    RP__CALLED_FROM(site);
    if (buf && bytes) *buf = 0;
    size_t n;
    const rp_named_tensor *all = named(m, STATE, "rp_module_summary", &n);
    if (!all) return 0;
    size_t width = 4;
    for (size_t i = 0; i < n; i++) width = strlen(all[i].name) > width ? strlen(all[i].name) : width;
    rp__text text = {0};
    char size[256];
    rp__text_add(&text, "%-*s  %-20s %-8s %13s %13s\n", (int)width, "name", "size", "type", "elements", "bytes");
    for (size_t i = 0; i < n; i++) {
        const rp_tensor *t = all[i].tensor;
        size_text(t, size, sizeof size);
        rp__text_add(&text, "%-*s  %-20s %-8s %13lld %13lld\n", (int)width, all[i].name, size,
                     rp_dtype_name((rp_dtype)t->dtype), (long long)rp_numel(t),
                     (long long)rp_numel(t) * (long long)rp_dtype_size((rp_dtype)t->dtype));
    }
    const rp_status status = totals_add(&text, m);
    return text_give(&text, status, buf, bytes);
}

/* ---- of a forward */

enum { MOST_RESULTS = 64, SIZES_TEXT = 200 };
/* Of a module's hooks while one of ours is among them: no version that it has otherwise, nor one that was used before. */
static const uint64_t OUR_VERSION = UINT64_C(1) << 62;

/* A row: a module, what its first call met, and what it had before. */
typedef struct shown {
    rp_module *module;
    char *path;
    char in[SIZES_TEXT], out[SIZES_TEXT];
    unsigned long long calls;
    hooks *before, *ours;
    uint64_t version;
    bool training;
} shown;

typedef struct showing {
    shown *rows;
    size_t n, capacity;
    uint64_t id; /* of our hooks */
    double made; /* bytes that came out of modules */
} showing;

typedef struct watcher { /* what one of our hooks gets */
    showing *all;
    size_t row;
} watcher;

static bool is_value(const rp_tensor *t) { return t && t->magic == RP__TENSOR_MAGIC && !rp__tensor_is_error(t); }

static void sizes_text(rp_tensor *const *t, size_t n, char *out) {
    size_t at = 0;
    out[0] = 0;
    for (size_t k = 0; k < n; k++) {
        if (!t[k]) continue;
        char one[SIZES_TEXT] = "error";
        if (is_value(t[k])) size_text(t[k], one, sizeof one);
        const bool fits = at + strlen(one) + 5 < SIZES_TEXT;
        at += (size_t)snprintf(out + at, SIZES_TEXT - at, "%s%s", at ? " " : "", fits ? one : "...");
        if (!fits) return;
    }
}

static void show(void *ctx, rp_module *m, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const watcher *w = ctx;
    shown *row = &w->all->rows[w->row];
    (void)m;
    for (size_t k = 0; k < n_out; k++)
        if (is_value(out[k])) w->all->made += (double)rp_numel(out[k]) * (double)rp_dtype_size((rp_dtype)out[k]->dtype);
    if (row->calls++) return;
    sizes_text(in, n_in, row->in);
    sizes_text(out, n_out, row->out);
}

static rp_status rows_make(showing *s, rp_module *m, const char *path) {
    if (!RP__GROW(&s->rows, &s->capacity, s->n + 1)) return RP__OOM("rp_module_summary");
    char *own = rp__strdup(path);
    if (!own) return RP__OOM("rp_module_summary");
    s->rows[s->n++] =
        (shown){.module = m, .path = own, .in = "-", .out = "-", .version = m->hooks_version, .training = m->training};
    for (size_t i = 0; i < m->n_children; i++) {
        char *below = joined(path, m->children[i]->name);
        if (!below) return RP__OOM("rp_module_summary");
        const rp_status status = rows_make(s, m->children[i], below);
        rp__free(below);
        RP_TRY(status);
    }
    return RP_OK;
}

/* Our hook behind those that every module has, and evaluation mode. */
static rp_status showing_begin(showing *s, watcher *watchers) {
    static _Atomic uint64_t times;
    s->id = OUR_VERSION + atomic_fetch_add_explicit(&times, 1, memory_order_relaxed);
    for (size_t i = 0; i < s->n; i++) {
        rp_module *m = s->rows[i].module;
        const size_t n = m->after ? m->after->n : 0;
        hooks *now = hooks_new(m, n + 1);
        if (!now) return rp_error_status();
        if (n) memcpy(now->items, m->after->items, n * sizeof *now->items);
        watchers[i] = (watcher){s, i};
        now->items[n] = (hook){.id = s->id, .after = show, .ctx = &watchers[i]};
        now->n = n + 1;
        s->rows[i].before = m->after;
        s->rows[i].ours = m->after = now;
        m->hooks_version = s->id;
        m->training = false;
    }
    watched_update(s->rows[0].module);
    return RP_OK;
}

static void showing_end(showing *s) {
    for (size_t i = 0; i < s->n; i++) {
        shown *row = &s->rows[i];
        rp_module *m = row->module;
        if (row->ours && m->after == row->ours) {
            hooks_drop(m->after);
            m->after = row->before;
            m->hooks_version = row->version;
        } else if (row->ours) { /* the forward has registered or removed one */
            (void)rp_module_remove_hook(m, s->id);
            hooks_drop(row->before);
        }
        if (row->ours) m->training = row->training;
        rp__free(row->path);
    }
    if (s->n) watched_update(s->rows[0].module);
    rp__free(s->rows);
}

/* Runs the forward. What it makes goes with a scope of its own. */
static rp_status showing_run(showing *s, const char *site, rp_fn fn, rp_tensor *const *in, size_t n_in, size_t n_out) {
    rp_tensor *out[MOST_RESULTS] = {NULL};
    const bool grad_mode = rp_set_grad_enabled(false);
    const rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? RP_OK : rp_error_status();
    if (status == RP_OK) {
        (void)rp_module_call_at(site, s->rows[0].module, fn, in, n_in, out, n_out);
        for (size_t k = 0; k < n_out && status == RP_OK; k++)
            status = rp__tensor_check(out[k], "rp_module_summary_with: a result");
    }
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

static long long own_parameters(const rp_module *m) {
    long long n = 0;
    for (size_t i = 0; i < m->n_entries; i++)
        if (m->entries[i].tensor && m->entries[i].part == PARAMETER) n += rp_numel(m->entries[i].tensor);
    return n;
}

static void rows_add(const showing *s, rp__text *text) {
    int name = 4, in = 5, out = 6;
    for (size_t i = 0; i < s->n; i++) {
        const shown *row = &s->rows[i];
        const char *own = *row->path ? row->path : row->module->name;
        name = (int)strlen(own) > name ? (int)strlen(own) : name;
        in = (int)strlen(row->in) > in ? (int)strlen(row->in) : in;
        out = (int)strlen(row->out) > out ? (int)strlen(row->out) : out;
    }
    rp__text_add(text, "%-*s  %-*s  %-*s %13s %6s\n", name, "name", in, "input", out, "output", "parameters", "calls");
    for (size_t i = 0; i < s->n; i++) {
        const shown *row = &s->rows[i];
        rp__text_add(text, "%-*s  %-*s  %-*s %13lld %6llu\n", name, *row->path ? row->path : row->module->name, in,
                     row->in, out, row->out, own_parameters(row->module), row->calls);
    }
}

size_t rp_module_summary_with_at(const char *site, rp_module *m, rp_fn fn, rp_tensor *const *in, size_t n_in,
                                 size_t n_out, char *buf, size_t bytes) {
    RP__CALLED_FROM(site);
    if (buf && bytes) *buf = 0;
    if (module_check(m, "rp_module_summary_with") != RP_OK) return 0;
    if (n_out > MOST_RESULTS || rp__flags.tracing) {
        (void)rp__fail(n_out > MOST_RESULTS ? RP_ERROR_INVALID_ARGUMENT : RP_ERROR_STATE, "rp_module_summary_with: %s",
                       n_out > MOST_RESULTS ? "there may be 64 results at most"
                                            : "not within a function that is recorded");
        return 0;
    }
    showing s = {0};
    rp__text text = {0};
    rp_status status = rows_make(&s, m, "");
    watcher *watchers = status == RP_OK ? rp__calloc(s.n, sizeof *watchers) : NULL;
    if (status == RP_OK && !watchers) status = RP__OOM("rp_module_summary");
    if (status == RP_OK) status = showing_begin(&s, watchers);
    if (status == RP_OK) status = showing_run(&s, site, fn, in, n_in, n_out);
    if (status == RP_OK) {
        rows_add(&s, &text);
        status = totals_add(&text, m);
        rp__text_add(&text, "%.0f bytes come out of modules\n", s.made);
    }
    showing_end(&s);
    rp__free(watchers);
    return text_give(&text, status, buf, bytes);
}
