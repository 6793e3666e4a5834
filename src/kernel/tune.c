/* See tune.h. What is known lies in a map of the process behind a lock; measuring takes no lock, so that two threads may measure one
   kernel, and the later one's answer stays. */
#include "kernel/tune.h"

#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/thread.h"
#include "device/capture.h"
#include "kernel/disk_cache.h"
#include "kernel/relax.h"

enum {
    VERSION = 1,      /* of entries and of what schedules mean */
    MOST = 16,        /* schedules of a kernel */
    ROUNDS = 5,       /* of which the fastest counts */
    ROUND_NS = 200000 /* of launches back to back, at least */
};
/* A schedule that gains less than this is noise. */
static const double worth = 0.97;
static const int64_t most_bytes = INT64_C(2) << 30;

static int64_t monotonic(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
int64_t (*rp__tune_clock)(void);
static int64_t now(void) { return rp__tune_clock ? rp__tune_clock() : monotonic(); }

static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)
static rp__map known; /* key -> rp__tuned */
static struct {
    rp__hash machine;
    double rate;
} copies; /* of the machine asked about last */

void rp__tune_forget(void) {
    size_t at = 0;
    rp__hash key;
    void *value;
    rp__lock(&lock);
    while (rp__map_next(&known, &at, &key, &value)) rp__free(value);
    rp__map_free(&known);
    known = (rp__map){NULL, 0, 0};
    copies.rate = 0;
    rp__unlock(&lock);
}

/* ---- what a measurement is of */

typedef struct names {
    rp__hash kernel, space, machine, key;
} names;

static rp__hash machine_of(rp__device *d) {
    rp__text t = {0};
    rp__text_add(&t, "%s %d %d ", d->ops->name, d->arch, d->multiprocessors);
    d->ops->loops->machine(d, &t);
    const rp__hash h = rp__hash_bytes(t.data ? t.data : "", t.length, rp__hash_none());
    rp__text_free(&t);
    return h;
}

/* Twice the logarithm, and whether vectors divide it. */
static uint64_t size_class(int64_t n) {
    if (n <= 0) return 0;
    const unsigned bits = 63u - (unsigned)__builtin_clzll((unsigned long long)n);
    const bool upper = bits > 0 && (n >> (bits - 1) & 1);
    const unsigned whole = n % 16 == 0 ? 4 : (unsigned)__builtin_ctzll((unsigned long long)n);
    return 1u + 2u * bits + upper + ((uint64_t)whole << 8);
}
static uint64_t stride_class(int64_t s) {
    return s == 0 ? 0 : s == 1 ? 1 : s == -1 ? 2 : s < 0 ? 3 : s % 16 == 0 ? 5 : 4;
}

static rp__hash class_of(const rp__dag *dag, const rp__space *s) {
    uint64_t words[RP__SPACE_MAX_DIMS + RP__DAG_MAX_AXES + 1];
    const unsigned dims = rp__space_dims(s);
    unsigned n = 0;
    words[n++] = s->lanes;
    for (unsigned x = 0; x < RP__DAG_MAX_AXES; x++) words[n++] = s->dims[x];
    for (unsigned k = 0; k < dims; k++) words[n++] = size_class(s->extent[k]);
    rp__hash h = rp__hash_bytes(words, n * sizeof *words, rp__hash_none());
    for (unsigned a = 0; a < dag->n_accesses; a++) {
        n = 0;
        words[n++] = dag->accesses[a].kind == RP__ACCESS_IOTA ? 0 : (uintptr_t)s->accesses[a].base % 16;
        for (unsigned k = 0; k < dims; k++) words[n++] = stride_class(s->accesses[a].stride[k]);
        h = rp__hash_bytes(words, n * sizeof *words, h);
    }
    return h;
}

static names names_of(rp__device *d, const rp__dag *dag, const rp__space *space, bool free) {
    const uint64_t how[2] = {VERSION, free};
    names n = {.kernel = dag->key, .space = class_of(dag, space), .machine = machine_of(d)};
    const rp__hash all[3] = {n.kernel, n.space, n.machine};
    n.key = rp__hash_bytes(all, sizeof all, rp__hash_bytes(how, sizeof how, rp__hash_none()));
    return n;
}

/* ---- the disk */

typedef struct entry {
    char magic[8];
    rp__hash kernel, space, machine;
    rp__schedule how;
    uint32_t tried;
    int64_t own, best;
} entry;
static const char magic[8] = "rptune1";

/* Is it of what it should be of, and a schedule that the backend offers? */
static bool fits(const entry *e, const names *n, const rp__schedule *offered, size_t n_offered) {
    static const rp__schedule own;
    if (memcmp(e->magic, magic, sizeof magic) != 0 || !rp__hash_equal(e->kernel, n->kernel) ||
        !rp__hash_equal(e->space, n->space) || !rp__hash_equal(e->machine, n->machine) || e->own <= 0 || e->best <= 0)
        return false;
    bool found = memcmp(&e->how, &own, sizeof own) == 0;
    for (size_t k = 0; k < n_offered && !found; k++) found = memcmp(&e->how, &offered[k], sizeof own) == 0;
    return found;
}

static bool from_disk(rp__device *d, rp__dag *dag, const rp__space *space, bool free, const names *n, rp__tuned *out) {
    rp__schedule offered[MOST];
    void *data;
    size_t bytes;
    if (!rp__disk_cache_get(n->key, "tune", &data, &bytes)) return false;
    entry e;
    bool ok = bytes == sizeof e;
    if (ok) {
        memcpy(&e, data, sizeof e);
        ok = fits(&e, n, offered, d->ops->loops->schedules(d, dag, space, free, offered, MOST));
    }
    rp__free(data);
    if (ok) {
        *out = (rp__tuned){.how = e.how, .known = true, .tried = e.tried, .own = e.own, .best = e.best};
    } else {
        rp__log(RP__LOG_CACHE, "a schedule that is kept is not of its kernel, or none that it could have: removed");
        rp__disk_cache_drop(n->key, "tune");
    }
    return ok;
}

static void to_disk(const names *n, const rp__tuned *t) {
    char why[512];
    entry e;
    memset(&e, 0, sizeof e); /* padding too */
    memcpy(e.magic, magic, sizeof magic);
    e.kernel = n->kernel;
    e.space = n->space;
    e.machine = n->machine;
    e.how = t->how;
    e.tried = t->tried;
    e.own = t->own;
    e.best = t->best;
    if (!rp__disk_cache_put(n->key, "tune", &e, sizeof e, why, sizeof why))
        rp__log(RP__LOG_CACHE, "a measured schedule is not kept: %s", why);
}

static bool lookup(const names *n, rp__tuned *out) {
    rp__lock(&lock);
    const rp__tuned *t = rp__map_get(&known, n->key);
    if (t) *out = *t;
    rp__unlock(&lock);
    return t != NULL;
}
static void remember(const names *n, const rp__tuned *t) {
    rp__tuned *own = rp__alloc(sizeof *own);
    if (!own) return;
    *own = *t;
    rp__lock(&lock);
    rp__tuned *old = rp__map_get(&known, n->key);
    if (!rp__map_put(&known, n->key, own)) old = own;
    rp__unlock(&lock);
    rp__free(old);
}

/* ---- measuring */

int64_t rp__tune_bytes(const rp__dag *dag, const rp__space *s) {
    int64_t bytes = 0;
    for (unsigned a = 0; a < dag->n_accesses; a++) {
        if (dag->accesses[a].kind == RP__ACCESS_IOTA) continue;
        int64_t own = (int64_t)rp__dtype_bytes((rp_dtype)dag->accesses[a].dtype);
        for (unsigned k = 0; k < rp__space_dims(s); k++)
            if (s->accesses[a].stride[k] != 0) own *= s->extent[k];
        /* what is read at computed places or by windows is no more than there is */
        const int64_t there = s->accesses[a].end - s->accesses[a].begin;
        if (there > 0 && own > there) own = there;
        bytes += dag->accesses[a].kind == RP__ACCESS_READ_WRITE ? 2 * own : own;
    }
    return bytes;
}

/* Memory like that of a space, whose accesses lie in it as they do in theirs. Zeros: indices are in range, nothing is subnormal. */
typedef struct copy {
    rp__space space;
    rp__space_access accesses[RP__DAG_MAX_ACCESSES];
    rp__storage *storage[RP__DAG_MAX_ACCESSES];
    unsigned n;
} copy;

static void copy_free(copy *c) {
    for (unsigned k = 0; k < c->n; k++) rp__storage_release(c->storage[k]);
    c->n = 0;
}

static rp_status copy_make(rp__device *d, rp_stream *s, const rp__dag *dag, const rp__space *space, copy *c) {
    const rp__storage *of[RP__DAG_MAX_ACCESSES];
    c->space = *space;
    c->space.accesses = c->accesses;
    c->n = 0;
    memcpy(c->accesses, space->accesses, space->n_accesses * sizeof *c->accesses);
    for (unsigned a = 0; a < space->n_accesses; a++) {
        rp__space_access *own = &c->accesses[a];
        if (dag->accesses[a].kind == RP__ACCESS_IOTA || !own->storage) continue;
        unsigned k = 0;
        while (k < c->n && of[k] != own->storage) k++;
        int64_t begin = own->begin, end = own->end;
        for (unsigned b = 0; b < space->n_accesses; b++) { /* all of the storage that the launch touches */
            if (space->accesses[b].storage != space->accesses[a].storage) continue;
            if (space->accesses[b].begin < begin) begin = space->accesses[b].begin;
            if (space->accesses[b].end > end) end = space->accesses[b].end;
        }
        begin -= (int64_t)(((uintptr_t)space->accesses[a].storage->data + (uintptr_t)begin) % 256); /* as aligned */
        if (k == c->n) {
            const size_t bytes = (size_t)(end - begin) + 256;
            of[k] = own->storage;
            c->storage[k] = rp__storage_new(d, s, bytes);
            if (!c->storage[k]) return rp_error_status();
            c->n++;
            RP_TRY(d->ops->fill(d, s, c->storage[k]->data, 0, bytes));
        }
        /* Of a base only its distance from the storage's first byte counts, which may be negative. */
        const char *data = own->storage->data;
        char *to = c->storage[k]->data;
        to += (256 - (uintptr_t)to % 256) % 256;
        const int64_t shift = (int64_t)(to - (char *)c->storage[k]->data) - begin;
        own->base =
            (char *)((uintptr_t)c->storage[k]->data + ((uintptr_t)own->base - (uintptr_t)data) + (uintptr_t)shift);
        own->begin += shift;
        own->end += shift;
        own->storage = c->storage[k];
    }
    return RP_OK;
}

/* ns of a launch. */
static rp_status time_of(rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space, int64_t *out) {
    int64_t n = 1;
    *out = 0;
    RP_TRY(rp__loop_launch(d, s, dag, space)); /* compiles, touches memory */
    RP_TRY(rp_stream_synchronize(s));
    for (int round = 0; round < ROUNDS;) {
        const int64_t start = now();
        for (int64_t k = 0; k < n; k++) RP_TRY(rp__loop_launch(d, s, dag, space));
        RP_TRY(rp_stream_synchronize(s));
        const int64_t took = now() - start;
        if (took < ROUND_NS && n < 1024 && *out == 0) {
            n *= 4;
            continue;
        }
        const int64_t each = took / n > 0 ? took / n : 1;
        if (*out == 0 || each < *out) *out = each;
        round++;
    }
    return RP_OK;
}

static bool can_be_measured(const rp__dag *dag, const rp__space *space) {
    if (dag->rest || dag->random || !dag->rows) return false;
    for (unsigned k = 0; k < dag->n_nodes; k++) {
        const rp__node *n = &dag->nodes[k];
        const bool integer = n->dtype != RP_F32 && n->dtype != RP_F64;
        if (integer && (n->op == RP__FLOORDIV || n->op == RP__REMAINDER)) return false; /* zeros would be divided by */
    }
    int64_t bytes = 0;
    for (unsigned k = 0; k < rp__space_dims(space); k++)
        if (space->extent[k] <= 0) return false;
    for (unsigned a = 0; a < space->n_accesses; a++) bytes += space->accesses[a].end - space->accesses[a].begin;
    return bytes <= most_bytes;
}

static rp_status compare(rp__device *d, rp_stream *s, rp__dag *dag, const rp__space *space, const rp__schedule *offered,
                         size_t n, rp__tuned *out) {
    copy c;
    rp_status status = copy_make(d, s, dag, space, &c);
    c.space.how = NULL;
    if (d->ops->loops->hot) d->ops->loops->hot(dag, true);
    if (status == RP_OK) status = time_of(d, s, dag, &c.space, &out->own);
    out->best = out->own;
    out->tried = 1;
    for (size_t k = 0; k < n && status == RP_OK; k++) {
        int64_t took;
        c.space.how = &offered[k];
        status = time_of(d, s, dag, &c.space, &took);
        if (status != RP_OK && !atomic_load(&d->lost)) { /* one that does not compile is not the fastest */
            rp__log(RP__LOG_KERNEL, "a schedule cannot be measured: %s", rp_error_message());
            (void)rp_error_take();
            status = RP_OK;
            continue;
        }
        out->tried++;
        if (status == RP_OK && (double)took < worth * (double)out->own && took < out->best) {
            out->best = took;
            out->how = offered[k];
        }
    }
    copy_free(&c);
    return status;
}

rp_status rp__tune_measure(rp__device *d, rp__dag *dag, const rp__space *space, bool free) {
    rp__schedule offered[MOST];
    rp__tuned t = {.known = true, .measured = true};
    if (!d->ops->loops->schedules || !can_be_measured(dag, space) || rp__tune_find(d, dag, space, free, &t))
        return RP_OK;
    rp_stream *s = rp__current_stream(d);
    if (atomic_load(&s->capture)) return RP_OK; /* what is launched here belongs to others */
    const size_t n = d->ops->loops->schedules(d, dag, space, free, offered, MOST);
    rp__launch_recorder *recorder = rp__launch_recorder_set(NULL);
    rp_kernel_log *log = rp__kernel_log_set;
    rp__kernel_log_set = NULL;
    t = (rp__tuned){.known = true, .measured = true};
    const rp_status status = compare(d, s, dag, space, offered, n, &t);
    rp__kernel_log_set = log;
    (void)rp__launch_recorder_set(recorder);
    RP_TRY(status);
    const names name = names_of(d, dag, space, free);
    remember(&name, &t);
    to_disk(&name, &t);
    return RP_OK;
}

bool rp__tune_find(rp__device *d, rp__dag *dag, const rp__space *space, bool free, rp__tuned *out) {
    if (!d->ops->loops->schedules || !can_be_measured(dag, space)) return false;
    const names n = names_of(d, dag, space, free);
    if (lookup(&n, out)) return true;
    if (!from_disk(d, dag, space, free, &n, out)) return false;
    remember(&n, out);
    return true;
}

/* ---- what the machine can do */

static rp__dag *copy_dag(void) {
    rp__dag_builder *b = rp__dag_new();
    const uint16_t from = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS),
                   to = rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, RP__ELEMENTS);
    rp__dag_store(b, to, rp__dag_load(b, from, RP__NO_VAL, RP__NO_VAL));
    return rp__dag_finish(b);
}

/* Larger copies until one takes a few milliseconds, or fills half a gigabyte. */
static rp_status measure_copy(rp__device *d, rp_stream *s, double *rate) {
    const int64_t enough = 4000000, most = INT64_C(1) << 26; /* ns, elements */
    rp__dag *dag = copy_dag();
    rp_status status = dag ? RP_OK : rp_error_status();
    for (int64_t n = 1 << 18, took = 0; status == RP_OK && n <= most && took < enough; n *= 4) {
        rp__storage *m[2] = {rp__storage_new(d, s, (size_t)n * 4), rp__storage_new(d, s, (size_t)n * 4)};
        rp__space_access a[2] = {{.stride = {1}, .end = n * 4}, {.stride = {1}, .end = n * 4}};
        const rp__space space = {.dims = {1}, .extent = {n}, .n_accesses = 2, .accesses = a, .op = "copy", .site = ""};
        for (int k = 0; k < 2 && status == RP_OK; k++) {
            if (!m[k]) {
                status = rp_error_status();
                continue;
            }
            a[k].base = m[k]->data;
            a[k].storage = m[k];
            status = d->ops->fill(d, s, m[k]->data, 0, (size_t)n * 4);
        }
        if (status == RP_OK) status = time_of(d, s, dag, &space, &took);
        if (status == RP_OK) *rate = 8e9 * (double)n / (double)took;
        for (int k = 0; k < 2; k++)
            if (m[k]) rp__storage_release(m[k]);
    }
    rp__dag_release(dag);
    return status;
}

typedef struct rate_entry {
    char magic[8];
    rp__hash machine;
    double rate;
} rate_entry;

double rp__tune_copy_rate(rp__device *d, bool measure) {
    const rp__hash machine = machine_of(d);
    const uint64_t version = VERSION;
    const rp__hash key = rp__hash_bytes(&version, sizeof version, machine);
    double rate = 0;
    rp__lock(&lock);
    if (rp__hash_equal(copies.machine, machine)) rate = copies.rate;
    rp__unlock(&lock);
    if (rate > 0) return rate;
    void *data;
    size_t bytes;
    rate_entry e;
    if (rp__disk_cache_get(key, "rate", &data, &bytes)) {
        if (bytes == sizeof e) memcpy(&e, data, sizeof e);
        if (bytes == sizeof e && memcmp(e.magic, magic, sizeof magic) == 0 && rp__hash_equal(e.machine, machine) &&
            e.rate > 0 && e.rate < 1e18)
            rate = e.rate;
        else
            rp__disk_cache_drop(key, "rate");
        rp__free(data);
    }
    rp_stream *s = rp__current_stream(d);
    if (rate == 0 && measure && !atomic_load(&s->capture)) {
        char why[512];
        rp__launch_recorder *recorder = rp__launch_recorder_set(NULL);
        rp_kernel_log *log = rp__kernel_log_set;
        rp__error_state before;
        rp__error_save(&before);
        rp__kernel_log_set = NULL;
        if (measure_copy(d, s, &rate) != RP_OK) rate = 0;
        rp__kernel_log_set = log;
        rp__error_restore(&before);
        (void)rp__launch_recorder_set(recorder);
        memset(&e, 0, sizeof e);
        memcpy(e.magic, magic, sizeof magic);
        e.machine = machine;
        e.rate = rate;
        if (rate > 0) (void)rp__disk_cache_put(key, "rate", &e, sizeof e, why, sizeof why);
    }
    rp__lock(&lock);
    copies.machine = machine;
    copies.rate = rate;
    rp__unlock(&lock);
    return rate;
}
