/* The state of a training program in one safetensors file: the module under its own names;
   "reprise/optimizer/GROUP/PARAMETER/NAME", "reprise/optimizer/GROUP/lr", "reprise/optimizer/GROUP/schedule" (the step of
   its schedule), "reprise/optimizer/GROUP/momentum" (which it cycles) and "reprise/optimizer/GROUP/steps" (of each
   parameter); "reprise/scaler/NAME"; "reprise/average/count" and
   "reprise/average/K"; "reprise/lbfgs/NAME"; as metadata the generators, "reprise/random/DEVICE" = "SEED OFFSET", the loader, "reprise/loader" =
   "SEED EPOCH BATCH", and a plateau, "reprise/plateau" = "BITS_OF_THE_BEST BAD_EPOCHS COOLDOWN_LEFT". A load looks at everything and makes every tensor before it writes to one. */
#include "ops/private.h"
#include <reprise_io.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/text.h"
#include "device/device.h"
#include "io/loader.h"
#include "nn/lbfgs.h"
#include "nn/optimizer.h"
#include "nn/update.h"
#include "tensor/tensor.h"

#define OURS "reprise/"
enum { NAME = 96, MAX_NOTES = 4 + RP__DEVICE_SLOTS };

/* ---------------------------------------------------------------- lists that grow */

typedef struct tensors {
    rp_named_tensor *items;
    size_t n, capacity;
    char **names; /* of those that are not the module's */
    size_t n_names, names_capacity;
} tensors;

static void tensors_free(tensors *t) {
    for (size_t i = 0; i < t->n_names; i++) rp__free(t->names[i]);
    rp__free(t->items);
    rp__free(t->names);
}

static rp__hash key_of(const char *name) { return rp__hash_bytes(name, strlen(name), rp__hash_none()); }

/* The first of each name; the map is freed by the caller, also on failure. */
static rp_status by_names(const rp_named_tensor *t, size_t n, rp__map *out) {
    for (size_t k = n; k-- > 0;)
        if (!rp__map_put(out, key_of(t[k].name), (void *)(uintptr_t)&t[k])) return RP__OOM("the state of a program");
    return RP_OK;
}

static rp_status add(tensors *t, const char *name, rp_tensor *tensor) {
    if (!RP__GROW(&t->items, &t->capacity, t->n + 1)) return RP__OOM("the state of a program");
    t->items[t->n++] = (rp_named_tensor){name, tensor};
    return RP_OK;
}

/* The steps of all parameters of a group, as the file has them. */
static rp_tensor *counts_of(rp_optimizer *opt, size_t group) {
    size_t n = rp_optimizer_param_count(opt, group);
    float *counts = rp__calloc(n + 1, sizeof *counts);
    if (!counts) {
        (void)RP__OOM("the state of an optimizer");
        return rp__tensor_error();
    }
    rp_device device = rp_default_device();
    rp_tensor *t = rp__tensor_error();
    if (rp__optimizer_counts(opt, group, counts) == RP_OK && rp_set_default_device(rp_cpu()) == RP_OK) {
        t = rp_from_data(counts, RP_DIMS((int64_t)n), RP_F32);
        if (rp_set_default_device(device) != RP_OK) t = rp__tensor_error();
    }
    rp__free(counts);
    return t;
}

/* One that is not the module's, by a name of ours. */
static RP__PRINTF(3, 4) rp_status add_own(tensors *t, rp_tensor *tensor, const char *format, ...) {
    char name[NAME];
    va_list args;
    if (rp__tensor_is_error(tensor)) return rp_error_status();
    va_start(args, format);
    (void)vsnprintf(name, sizeof name, format, args);
    va_end(args);
    char *own = RP__GROW(&t->names, &t->names_capacity, t->n_names + 1) ? rp__strdup(name) : NULL;
    if (!own) return RP__OOM("the state of a program");
    t->names[t->n_names++] = own;
    return add(t, own, tensor);
}

/* Every tensor of an optimizer, in an order of its own. Counts of steps are copies. */
static rp_status add_optimizer(tensors *t, rp_optimizer *opt) {
    for (size_t g = 0; g < rp_optimizer_group_count(opt); g++) {
        RP_TRY(add_own(t, rp_optimizer_lr(opt, g), OURS "optimizer/%zu/lr", g));
        RP_TRY(add_own(t, counts_of(opt, g), OURS "optimizer/%zu/steps", g));
        rp_tensor *schedule = rp__optimizer_schedule_step(opt, g), *momentum = rp__optimizer_momentum(opt, g), *state;
        if (schedule) RP_TRY(add_own(t, schedule, OURS "optimizer/%zu/schedule", g));
        if (momentum) RP_TRY(add_own(t, momentum, OURS "optimizer/%zu/momentum", g));
        const char *kind;
        for (size_t i = 0; i < rp_optimizer_param_count(opt, g); i++)
            for (size_t k = 0; (state = rp__optimizer_state(opt, g, i, k, &kind)); k++)
                RP_TRY(add_own(t, state, OURS "optimizer/%zu/%zu/%s", g, i, kind));
    }
    return RP_OK;
}

static rp_status add_scaler(tensors *t, const rp_grad_scaler *s) {
    RP_TRY(add_own(t, rp_grad_scaler_state(s, "scale"), OURS "scaler/scale"));
    return add_own(t, rp_grad_scaler_state(s, "growth_tracker"), OURS "scaler/growth_tracker");
}

static rp_status add_average(tensors *t, const rp_average *a) {
    RP_TRY(add_own(t, rp_average_count(a), OURS "average/count"));
    for (size_t i = 0; i < rp__average_size(a); i++) RP_TRY(add_own(t, rp_average_tensor(a, i), OURS "average/%zu", i));
    return RP_OK;
}

static rp_status add_lbfgs(tensors *t, const rp_lbfgs *l) {
    for (size_t k = 0; k < RP__LBFGS_TENSORS; k++) {
        const char *name = "";
        rp_tensor *own = rp__lbfgs_tensor(l, k, &name);
        RP_TRY(add_own(t, own, OURS "lbfgs/%s", name));
    }
    return RP_OK;
}

/* ---------------------------------------------------------------- saving */

typedef struct notes {
    const char *(*pairs)[2];
    size_t n;
    char keys[MAX_NOTES][48], texts[MAX_NOTES][80];
    size_t own;
} notes;

static void note(notes *all, const char *key, const char *text) {
    snprintf(all->keys[all->own], sizeof *all->keys, OURS "%s", key);
    snprintf(all->texts[all->own], sizeof *all->texts, "%s", text);
    all->pairs[all->n][0] = all->keys[all->own];
    all->pairs[all->n++][1] = all->texts[all->own++];
}

static rp_status note_random(notes *all) {
    for (rp__device *d = NULL; (d = rp__device_next_open(d));) {
        uint64_t seed, offset;
        char key[40], text[64], name[24];
        RP_TRY(rp_generator_get(rp_default_generator(d->id), &seed, &offset));
        snprintf(key, sizeof key, "random/%s", rp__device_text(d->id, name));
        snprintf(text, sizeof text, "%" PRIu64 " %" PRIu64, seed, offset);
        note(all, key, text);
    }
    return RP_OK;
}

static rp_status note_loader(notes *all, const rp_loader *l) {
    uint64_t seed;
    int64_t epoch, batch;
    char text[80];
    RP_TRY(rp_loader_position(l, &seed, &epoch, &batch));
    snprintf(text, sizeof text, "%" PRIu64 " %" PRId64 " %" PRId64, seed, epoch, batch);
    note(all, "loader", text);
    return RP_OK;
}

static void note_plateau(notes *all, const rp_plateau *p) {
    uint64_t bits;
    char text[80];
    memcpy(&bits, &p->best, sizeof bits);
    snprintf(text, sizeof text, "%" PRIu64 " %" PRId64 " %" PRId64, bits, p->bad_epochs, p->cooldown_left);
    note(all, "plateau", text);
}

static rp_status save(const char *path, rp_module *m, const rp_save_options *o) {
    size_t n;
    const uint64_t failures = rp__error_count();
    const rp_named_tensor *state = rp_module_state(m, &n);
    RP_TRY(rp__status_since(failures));
    tensors t = {0};
    notes extra = {.pairs = rp__calloc(o->n_metadata + MAX_NOTES, sizeof *extra.pairs)};
    rp_status status = extra.pairs ? RP_OK : RP__OOM("the state of a program");
    for (size_t i = 0; i < n && status == RP_OK; i++) {
        if (strncmp(state[i].name, OURS, sizeof OURS - 1) == 0)
            status =
                rp__fail(RP_ERROR_INVALID_ARGUMENT,
                         "rp_save: names that begin with " OURS ", as `%s` does, are not the module's", state[i].name);
        else
            status = add(&t, state[i].name, state[i].tensor);
    }
    for (size_t i = 0; i < o->n_metadata && status == RP_OK; i++) {
        extra.pairs[extra.n][0] = o->metadata[i][0];
        extra.pairs[extra.n++][1] = o->metadata[i][1];
    }
    const char *kind = status == RP_OK && o->optimizer ? rp__optimizer_kind(o->optimizer) : NULL;
    if (status == RP_OK && o->optimizer && !kind) status = rp_error_status();
    if (status == RP_OK && o->optimizer) {
        note(&extra, "optimizer", kind);
        status = add_optimizer(&t, o->optimizer);
    }
    if (status == RP_OK && o->scaler) status = add_scaler(&t, o->scaler);
    if (status == RP_OK && o->average) status = add_average(&t, o->average);
    if (status == RP_OK && o->lbfgs) status = add_lbfgs(&t, o->lbfgs);
    if (status == RP_OK && o->random) status = note_random(&extra);
    if (status == RP_OK && o->loader) status = note_loader(&extra, o->loader);
    if (status == RP_OK && o->plateau) note_plateau(&extra, o->plateau);
    if (status == RP_OK)
        status = rp_safetensors_save(path, t.items, t.n, (const char *const(*)[2])extra.pairs, extra.n);
    rp__free(extra.pairs);
    tensors_free(&t);
    return status;
}

rp_status rp_save_at(const char *site, const char *path, rp_module *m, const rp_save_options *options) {
    RP__CALLED_FROM(site);
    rp_save_options o;
    RP_TRY(rp__options_read("rp_save", options, sizeof o, &o));
    if (o.n_metadata && !o.metadata)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_save: the list of metadata is NULL");
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? save(path, m, &o) : rp_error_status();
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}

/* ---------------------------------------------------------------- loading */

typedef struct load {
    const rp_load_options *o;
    rp_safetensors *file;
    rp__text report;
    size_t faults, missing, unexpected;
    char first[200];
    rp_tensor **to, **from; /* n pairs */
    size_t n;
} load;

static void tell(load *l, const char *format, const char *name, const char *detail) {
    char shown[120], line[200];
    rp__printable(shown, sizeof shown, name);
    snprintf(line, sizeof line, format, shown, detail);
    if (!l->faults++) memcpy(l->first, line, sizeof line);
    rp__text_add(&l->report, "%s\n", line);
}

/* The module's name of one of the file; NULL: it is not meant. `room` is given back by the caller. */
static rp_status module_name(const load *l, const char *name, char **out) {
    const rp_load_options *o = l->o;
    *out = NULL;
    if (strncmp(name, OURS, sizeof OURS - 1) == 0) return RP_OK;
    size_t prefix = o->prefix ? strlen(o->prefix) : 0;
    if (prefix && strncmp(name, o->prefix, prefix) != 0) return RP_OK;
    name += prefix;
    const char *instead = "";
    for (size_t i = 0; i < o->n_renames; i++) {
        size_t n = strlen(o->renames[i][0]);
        if (strncmp(name, o->renames[i][0], n) != 0) continue;
        instead = o->renames[i][1];
        name += n;
        break;
    }
    *out = rp__alloc(strlen(instead) + strlen(name) + 1);
    if (!*out) return RP__OOM("rp_load");
    strcpy(*out, instead);
    strcat(*out, name);
    return RP_OK;
}

static void sizes_text(const int64_t *size, size_t n, char out[64]) {
    size_t at = (size_t)snprintf(out, 64, "(");
    for (size_t d = 0; d < n && at < 64; d++)
        at += (size_t)snprintf(out + at, 64 - at, "%s%lld", d ? ", " : "", (long long)size[d]);
    if (at < 64) snprintf(out + at, 64 - at, ")");
}

/* Element `index` of the file goes into `to`, if it fits. */
static rp_status take(load *l, const rp_file_tensor *info, rp_tensor *to) {
    bool fits = to->ndim == info->ndim && memcmp(to->size, info->size, info->ndim * sizeof *info->size) == 0;
    if (!fits || info->type == RP_DTYPE_NONE) {
        char have[64], want[64], detail[160];
        sizes_text(info->size, info->ndim, have);
        sizes_text(to->size, to->ndim, want);
        snprintf(detail, sizeof detail, "%s %s in the file, %s in the program", info->dtype, have, want);
        tell(l, "%s: %s", info->name, detail);
        return RP_OK;
    }
    rp_device device = rp_default_device();
    RP_TRY(rp_set_default_device(to->device));
    rp_tensor *from = rp_safetensors_tensor(l->file, info->name);
    RP_TRY(rp_set_default_device(device));
    if (rp__tensor_is_error(from)) return rp_error_status();
    l->to[l->n] = to;
    l->from[l->n++] = from;
    return RP_OK;
}

/* The module's tensors, and by name; `taken` says which of them the file has. */
static rp_status take_named(load *l, const rp_named_tensor *state, size_t n, const rp__map *names, bool *taken) {
    for (size_t i = 0; i < rp_safetensors_count(l->file); i++) {
        rp_file_tensor info;
        char *name;
        RP_TRY(rp_safetensors_info(l->file, i, &info));
        RP_TRY(module_name(l, info.name, &name));
        if (!name) continue;
        const rp_named_tensor *own = rp__map_get(names, key_of(name));
        rp__free(name);
        if (!own) {
            l->unexpected++;
            if (!l->o->partial) tell(l, "%s: %s", info.name, "only in the file");
        } else if (taken[own - state]) {
            tell(l, "%s: %s", own->name, "two tensors of the file have this name, after renames");
        } else {
            taken[own - state] = true;
            RP_TRY(take(l, &info, own->tensor));
        }
    }
    for (size_t k = 0; k < n; k++) {
        if (taken[k]) continue;
        l->missing++;
        if (!l->o->partial) tell(l, "%s: %s", state[k].name, "only in the module");
    }
    return RP_OK;
}

static rp_status take_module(load *l, const rp_named_tensor *state, size_t n, bool *taken) {
    rp__map names = {0};
    rp_status status = by_names(state, n, &names);
    if (status == RP_OK) status = take_named(l, state, n, &names, taken);
    rp__map_free(&names);
    return status;
}

/* What of ours begins with `prefix`, into those of the list of that name. */
static rp_status take_states(load *l, const rp__map *names, const char *prefix, size_t *ours) {
    for (size_t i = 0; i < rp_safetensors_count(l->file); i++) {
        rp_file_tensor info;
        RP_TRY(rp_safetensors_info(l->file, i, &info));
        if (strncmp(info.name, prefix, strlen(prefix)) != 0) continue;
        ++*ours;
        const rp_named_tensor *own = rp__map_get(names, key_of(info.name));
        if (own)
            RP_TRY(take(l, &info, own->tensor));
        else
            tell(l, "%s: %s", info.name, "only in the file");
    }
    return RP_OK;
}

/* All that `t` has from `first` on, and nothing else of that prefix. */
static rp_status take_own(load *l, const tensors *t, size_t first, const char *prefix, const char *what,
                          const char *fewer) {
    size_t ours = 0;
    rp__map names = {0};
    rp_status status = by_names(t->items + first, t->n - first, &names);
    if (status == RP_OK) status = take_states(l, &names, prefix, &ours);
    rp__map_free(&names);
    RP_TRY(status);
    if (ours < t->n - first) tell(l, "%s: %s", what, ours ? fewer : "the file has none");
    return RP_OK;
}

static rp_status take_optimizer(load *l, tensors *t) {
    const char *kind = rp_safetensors_metadata(l->file, OURS "optimizer"), *own = rp__optimizer_kind(l->o->optimizer);
    if (!own) return rp_error_status();
    if (!kind || strcmp(kind, own) != 0) {
        tell(l, "%s: %s", "optimizer", kind ? kind : "the file has none");
        return RP_OK;
    }
    RP_TRY(add_optimizer(t, l->o->optimizer));
    return take_own(l, t, 0, OURS "optimizer/", "optimizer",
                    "the file has fewer parameters or groups, or no step of a schedule");
}

static rp_status take_scaler(load *l, tensors *t) {
    const size_t first = t->n;
    RP_TRY(add_scaler(t, l->o->scaler));
    return take_own(l, t, first, OURS "scaler/", "scaler", "the file has a part of it");
}

static rp_status take_average(load *l, tensors *t) {
    const size_t first = t->n;
    RP_TRY(add_average(t, l->o->average));
    return take_own(l, t, first, OURS "average/", "average", "the file has fewer tensors");
}

static rp_status take_lbfgs(load *l, tensors *t) {
    const size_t first = t->n;
    RP_TRY(add_lbfgs(t, l->o->lbfgs));
    return take_own(l, t, first, OURS "lbfgs/", "lbfgs", "the file has a part of it");
}

typedef struct place { /* of a loader */
    uint64_t seed;
    int64_t epoch, batch;
} place;

static rp_status take_loader(load *l, place *out) {
    RP_TRY(rp_loader_position(l->o->loader, NULL, NULL, NULL)); /* it is one */
    const char *text = rp_safetensors_metadata(l->file, OURS "loader");
    if (!text)
        tell(l, "%s: %s", "loader", "the file has none");
    else if (sscanf(text, "%" SCNu64 " %" SCNd64 " %" SCNd64, &out->seed, &out->epoch, &out->batch) != 3 ||
             !rp__loader_has(l->o->loader, out->epoch, out->batch))
        tell(l, "%s: %s", "loader", "it is not a position of this loader");
    return RP_OK;
}

static void take_plateau(load *l, rp_plateau *out) {
    const char *text = rp_safetensors_metadata(l->file, OURS "plateau");
    uint64_t bits = 0;
    *out = *l->o->plateau;
    if (!text)
        tell(l, "%s: %s", "plateau", "the file has none");
    else if (sscanf(text, "%" SCNu64 " %" SCNd64 " %" SCNd64, &bits, &out->bad_epochs, &out->cooldown_left) != 3 ||
             out->bad_epochs < 0 || out->cooldown_left < 0)
        tell(l, "%s: %s", "plateau", "it is not a best and two counts");
    memcpy(&out->best, &bits, sizeof bits);
}

typedef struct generator {
    rp_generator *g;
    uint64_t seed, offset;
} generator;

static rp_status take_random(load *l, generator *out, size_t *n) {
    for (rp__device *d = NULL; (d = rp__device_next_open(d));) {
        char key[64], name[24];
        snprintf(key, sizeof key, OURS "random/%s", rp__device_text(d->id, name));
        const char *text = rp_safetensors_metadata(l->file, key);
        generator *g = &out[*n];
        if (!text) continue;
        if (sscanf(text, "%" SCNu64 " %" SCNu64, &g->seed, &g->offset) != 2) {
            tell(l, "%s: %s", key, "it is not a seed and an offset");
            continue;
        }
        g->g = rp_default_generator(d->id);
        ++*n;
    }
    if (*n == 0) tell(l, "%s: %s", "random", "the file has no state of a generator");
    return RP_OK;
}

/* Everything that takes memory comes before the first write, so that a load that does not fit changes nothing: tensors of other
   types or elsewhere become ones that are copied as they are, and counts of steps are read into lists of their own. */

static rp_status make_ready(load *l) {
    for (size_t i = 0; i < l->n; i++) {
        rp_tensor *to = l->to[i], *from = l->from[i];
        if (!rp__device_equal(from->device, to->device)) from = rp_to_device(from, to->device, false);
        if (from->dtype != to->dtype) from = rp_to_dtype(from, (rp_dtype)to->dtype);
        if (rp__tensor_is_error(from)) return rp_error_status();
        l->from[i] = from;
    }
    return RP_OK;
}

/* counts: one list a group, freed by the caller. What is read into is a copy of the optimizer's counts (counts_of). */
static rp_status read_counts(load *l, const tensors *t, float **counts) {
    size_t group = 0;
    for (size_t i = 0; i < t->n; i++) {
        const char *end = strrchr(t->items[i].name, '/');
        if (!end || strcmp(end, "/steps") != 0) continue;
        const size_t bytes = (size_t)rp_numel(t->items[i].tensor) * sizeof(float);
        for (size_t k = 0; k < l->n; k++)
            if (l->to[k] == t->items[i].tensor && rp__tensor_is_error(rp_copy_(l->to[k], l->from[k])))
                return rp_error_status();
        if (!(counts[group] = rp__alloc(bytes + 1))) return RP__OOM("rp_load");
        RP_TRY(rp_to_host(t->items[i].tensor, counts[group++], bytes));
    }
    return RP_OK;
}

static rp_status write_all(load *l, float *const *counts, size_t groups) {
    for (size_t i = 0; i < l->n; i++)
        if (rp__tensor_is_error(rp_copy_(l->to[i], l->from[i]))) return rp_error_status();
    for (size_t g = 0; g < groups; g++) /* which parts what no longer goes together */
        RP_TRY(rp__optimizer_set_counts(l->o->optimizer, g, counts[g]));
    return RP_OK;
}

static rp_status load_file(load *l, const char *path, rp_module *m) {
    size_t n, n_random = 0;
    const uint64_t failures = rp__error_count();
    const rp_named_tensor *state = rp_module_state(m, &n);
    RP_TRY(rp__status_since(failures));
    l->file = rp_safetensors_open(path);
    RP_TRY(rp__status_since(failures));
    tensors optimizer = {0}; /* and scaler, average */
    place at = {0};
    rp_plateau plateau;
    generator random[RP__DEVICE_SLOTS + 1];
    size_t all = rp_safetensors_count(l->file);
    bool *taken = rp__calloc(n + 1, sizeof *taken);
    l->to = rp__calloc(all + 1, sizeof *l->to);
    l->from = rp__calloc(all + 1, sizeof *l->from);
    rp_status status = taken && l->to && l->from ? take_module(l, state, n, taken) : RP__OOM("rp_load");
    if (status == RP_OK && l->o->optimizer) status = take_optimizer(l, &optimizer);
    if (status == RP_OK && l->o->scaler) status = take_scaler(l, &optimizer);
    if (status == RP_OK && l->o->average) status = take_average(l, &optimizer);
    if (status == RP_OK && l->o->lbfgs) status = take_lbfgs(l, &optimizer);
    if (status == RP_OK && l->o->loader) status = take_loader(l, &at);
    if (status == RP_OK && l->o->plateau) take_plateau(l, &plateau);
    if (status == RP_OK && l->o->random) status = take_random(l, random, &n_random);
    if (status == RP_OK && l->faults)
        status = rp__fail(RP_ERROR_IO, "rp_load: %s: %s%s", path, l->first, l->faults > 1 ? " (and more)" : "");
    const size_t groups = status == RP_OK && l->o->optimizer ? rp_optimizer_group_count(l->o->optimizer) : 0;
    float **counts = rp__calloc(groups + 1, sizeof *counts);
    if (!counts && status == RP_OK) status = RP__OOM("rp_load");
    if (status == RP_OK) status = make_ready(l);
    if (status == RP_OK && groups) status = read_counts(l, &optimizer, counts);
    if (status == RP_OK) status = write_all(l, counts, groups);
    if (status == RP_OK && l->o->loader) status = rp_loader_seek(l->o->loader, at.seed, at.epoch, at.batch);
    for (size_t i = 0; i < n_random && status == RP_OK; i++)
        status = rp_generator_set(random[i].g, random[i].seed, random[i].offset);
    if (status == RP_OK && l->o->plateau) *l->o->plateau = plateau;
    for (size_t g = 0; counts && g < groups; g++) rp__free(counts[g]);
    rp__free(counts);
    tensors_free(&optimizer);
    rp__free(taken);
    rp__free(l->to);
    rp__free(l->from);
    return status;
}

rp_status rp_load_at(const char *site, const char *path, rp_module *m, const rp_load_options *options) {
    RP__CALLED_FROM(site);
    rp_load_options o;
    RP_TRY(rp__options_read("rp_load", options, sizeof o, &o));
    if (o.n_renames && !o.renames) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_load: the list of renames is NULL");
    for (size_t i = 0; i < o.n_renames; i++)
        if (!o.renames[i][0] || !o.renames[i][1])
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_load: pair %zu of the renames is not whole", i);
    load l = {.o = &o};
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? load_file(&l, path, m) : rp_error_status();
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    rp_safetensors_release(l.file);
    if (o.report && o.report_bytes) snprintf(o.report, o.report_bytes, "%s", l.report.data ? l.report.data : "");
    rp__text_free(&l.report);
    return status;
}
