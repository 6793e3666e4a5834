/* oneDNN behind products and convolutions: opens the module, decides by the problem alone whether it serves, keeps plans. A
   problem is cut into blocks (rows, batches or images) that depend on the problem alone; a block is an item of the launch.
   Records hold the problem, never a plan, so they outlive the process that made them. */
#include "kernel/cpu/lib_onednn.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#include <unistd.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/fork.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/thread.h"
#include "core/trust.h"

enum { BLOCKS = 8, PROBLEM_WORDS = sizeof(rp__onednn_problem) / 8 };
enum {
    OUT,
    A,
    B,
    BIAS,
    SCRATCH,
    BLOCK_COUNT,
    BLOCK_SCRATCH,
    BLOCK_DIM,
    BLOCK_SIZE,
    PROBLEM,
    WORDS = PROBLEM + PROBLEM_WORDS
};
_Static_assert(sizeof(rp__onednn_problem) % 8 == 0, "the problem is copied into words");

static const char module_file[] = "libreprise-onednn.so";
static const rp__onednn *table;

static const rp__onednn *open_at(const char *path) {
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        rp__log(RP__LOG_KERNEL, "oneDNN: %s", dlerror());
        return NULL;
    }
    const rp__onednn *t = dlsym(module, RP__ONEDNN_TABLE);
    if (t && t->abi == RP__ONEDNN_ABI) {
        rp__log(RP__LOG_KERNEL, "oneDNN %d.%d.%d from %s", t->version[0], t->version[1], t->version[2], path);
        return t;
    }
    dlclose(module);
    return NULL;
}

/* The module in this folder, which is named from / on: another name means another place once the program changes its folder. */
static const rp__onednn *open_in(const char *folder, size_t length) {
    char path[4096], why[4096];
    const int n = snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, module_file);
    if (*folder != '/' || n < 0 || (size_t)n >= sizeof path || access(path, F_OK) != 0) return NULL;
    if (!rp__library_refused(path, why, sizeof why)) return open_at(path);
    rp__log(RP__LOG_KERNEL, "oneDNN: %s", why);
    return NULL;
}

/* The file that this code came from. The loader calls a program as its caller did (argv[0]), which may be no path at all. */
static const char *own_file(char *path, size_t bytes) {
    Dl_info here;
    if (!dladdr((const void *)&table, &here) || !here.dli_fname) return "";
#if defined(__linux__)
    Dl_info program;
    const void *headers = (const void *)(uintptr_t)getauxval(AT_PHDR);
    if (dladdr(headers, &program) && program.dli_fbase == here.dli_fbase) {
        const ssize_t n = readlink("/proc/self/exe", path, bytes - 1);
        path[n > 0 ? n : 0] = 0;
        return path;
    }
#endif
    (void)snprintf(path, bytes, "%s", here.dli_fname);
    return path;
}

static void open_module(void) {
    const char *wanted = rp__env("REPRISE_ONEDNN"), *folder = rp__env("REPRISE_MODULE_DIR");
    if (wanted && strcmp(wanted, "0") == 0) return;
    char path[4096];
    const char *own = own_file(path, sizeof path), *slash = strrchr(own, '/');
    if (slash) table = open_in(own, (size_t)(slash - own));
    if (!table && folder) table = open_in(folder, strlen(folder));
    if (!table) table = open_at(module_file);
}

static const rp__onednn *onednn(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_module);
    return table;
}
const rp__onednn *rp__onednn_module(void) { return onednn(); }
bool rp__onednn_available(void) { return onednn() != NULL; }

/* ---- plans: those that were used last, and those in use */

typedef struct kept_plan {
    rp__mutex lock; /* a plan's memory objects serve one run at a time */
    rp__fork_lock fork_lock;
    rp__hash key;
    struct kept_plan *newer, *older;
    unsigned users; /* of the map and of who has it */
    void *plan;     /* NULL: oneDNN cannot */
    size_t scratch;
} kept_plan;
static rp__mutex plans_lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_plans, &plans_lock, 1)
static rp__map plans;
static kept_plan *newest, *oldest; /* of the map, by last use */

size_t rp__onednn_plan_count(void) {
    rp__lock(&plans_lock);
    size_t n = plans.count;
    rp__unlock(&plans_lock);
    return n;
}

/* Nobody has it any more. Without plans_lock. */
static void plan_free(kept_plan *p) {
    rp__fork_lock_remove(&p->fork_lock);
    if (p->plan) onednn()->plan_free(p->plan);
    pthread_mutex_destroy(&p->lock);
    rp__free(p);
}

static void leave_order(kept_plan *p) {
    *(p->newer ? &p->newer->older : &newest) = p->older;
    *(p->older ? &p->older->newer : &oldest) = p->newer;
}

static void enter_order(kept_plan *p) {
    p->newer = NULL;
    p->older = newest;
    *(newest ? &newest->newer : &oldest) = p;
    newest = p;
}

/* The oldest leaves the map; it, if nobody uses it. */
static kept_plan *give_way(void) {
    kept_plan *p = oldest;
    leave_order(p);
    (void)rp__map_remove(&plans, p->key);
    return --p->users == 0 ? p : NULL;
}

static kept_plan *plan_new(const rp__onednn_problem *q, rp__hash key) {
    kept_plan *p = rp__calloc(1, sizeof *p);
    if (!p) return NULL;
    p->key = key;
    p->plan = onednn()->plan_new(q, &p->scratch);
    if (!rp__map_put(&plans, key, p)) {
        if (p->plan) onednn()->plan_free(p->plan);
        rp__free(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    p->fork_lock = (rp__fork_lock){.locks = &p->lock, .n = 1};
    rp__fork_lock_add(&p->fork_lock);
    p->users = 1;
    enter_order(p);
    return p;
}

/* Given back with plan_done. */
static kept_plan *plan_of(const rp__onednn_problem *q, int64_t block) {
    const rp__hash key = rp__hash_bytes(q, sizeof *q, (rp__hash){(uint64_t)block, 0x6f6e65646e6e});
    kept_plan *gone = NULL;
    rp__lock(&plans_lock);
    kept_plan *p = rp__map_get(&plans, key);
    if (p && p != newest) {
        leave_order(p);
        enter_order(p);
    }
    if (!p) p = plan_new(q, key);
    if (p) p->users++;
    if (plans.count > RP__ONEDNN_PLANS) gone = give_way();
    rp__unlock(&plans_lock);
    if (gone) plan_free(gone);
    return p;
}

static void plan_done(kept_plan *p) {
    if (!p) return;
    rp__lock(&plans_lock);
    bool last = --p->users == 0;
    rp__unlock(&plans_lock);
    if (last) plan_free(p);
}

/* The problem of a block: blocks are equal but for the last. */
static rp__onednn_problem block_of(const rp__onednn_problem *q, unsigned dim, int64_t size, int64_t block) {
    rp__onednn_problem part = *q;
    const int64_t all = q->size[0][dim], left = all - block * size;
    part.size[0][dim] = part.size[1][dim] = left < size ? left : size;
    if (q->kind == RP__ONEDNN_MATMUL && dim == 0) part.size[2][0] = part.size[0][0];
    return part;
}

static void run(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    (void)kernel;
    rp__onednn_problem q;
    memcpy(&q, w + PROBLEM, sizeof q);
    const unsigned dim = (unsigned)w[BLOCK_DIM];
    const int64_t size = (int64_t)w[BLOCK_SIZE], bytes = q.dtype == RP__ONEDNN_F32 ? 4 : 2;
    for (int64_t block = begin; block < end; block++) {
        const rp__onednn_problem part = block_of(&q, dim, size, block);
        char *at[4];
        for (unsigned i = 0; i < 4; i++) at[i] = (char *)(uintptr_t)w[OUT + i];
        const int64_t first = block * size * bytes;
        at[0] += first * q.stride[0][dim];
        at[1] += first * q.stride[1][dim];
        if (q.kind == RP__ONEDNN_MATMUL && dim == 0) at[2] += first * q.stride[2][0];
        kept_plan *p = plan_of(&part, block);
        int status = -1;
        if (p && p->plan) {
            rp__lock(&p->lock);
            status = onednn()->run(p->plan, (void *const *)at,
                                   (char *)(uintptr_t)w[SCRATCH] + block * (int64_t)w[BLOCK_SCRATCH]);
            rp__unlock(&p->lock);
        }
        plan_done(p);
        if (status) rp__fail(RP_ERROR_INTERNAL, "oneDNN failed with status %d", status);
    }
}
static rp__kernel kernel = {.kind = RP__KERNEL_CPU, .name = "onednn", .key = {1, 0x6f6e65646e6e}, .cpu = run};

/* ---- which problems */

static int dtype_of(rp_dtype d) {
    return d == RP_F32 ? RP__ONEDNN_F32 : d == RP_BF16 ? RP__ONEDNN_BF16 : d == RP_F16 ? RP__ONEDNN_F16 : -1;
}

static bool matmul_problem(const rp__operand *o, size_t n, rp__onednn_problem *q) {
    const unsigned nd = o[0].ndim;
    q->kind = RP__ONEDNN_MATMUL;
    q->ndim = 3;
    for (unsigned i = 0; i < 3; i++) {
        int64_t batch = 1, step = 0;
        for (unsigned d = nd - 2; d-- > 0;) { /* the batch dims must be one stride */
            if (o[i].size[d] == 1) continue;
            if (batch == 1)
                step = o[i].stride[d];
            else if (o[i].stride[d] != step * batch)
                return false;
            batch *= o[i].size[d];
        }
        q->size[i][0] = batch, q->size[i][1] = o[i].size[nd - 2], q->size[i][2] = o[i].size[nd - 1];
        q->stride[i][1] = o[i].stride[nd - 2], q->stride[i][2] = o[i].stride[nd - 1];
        q->stride[i][0] = batch > 1 ? step : q->size[i][1] * q->size[i][2];
        /* a plain or transposed matrix: one unit stride, the other at least a row */
        const int64_t *size = q->size[i], *stride = q->stride[i];
        const bool rows = stride[2] == 1 && stride[1] >= size[2],
                   columns = i > 0 && stride[1] == 1 && stride[2] >= size[1];
        if (!(rows || columns) || (batch > 1 && stride[0] < size[1] * size[2])) return false;
    }
    if (q->size[0][0] != q->size[1][0] || q->size[0][0] != q->size[2][0]) return false;
    if (n > 3 && o[3].stride[0] != 1 && o[3].size[0] != 1) return false;
    q->bias = n > 3;
    return q->size[0][0] >= BLOCKS || q->size[0][1] >= 32 * BLOCKS;
}

static bool conv_problem(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                         rp__onednn_problem *q) {
    const rp__conv_geometry *g = &call->conv;
    if (op == RP__LIB_CONV_WEIGHT || o[0].size[0] < 2) return false;
    q->kind = op == RP__LIB_CONV_FORWARD ? RP__ONEDNN_CONV_FORWARD : RP__ONEDNN_CONV_INPUT;
    q->ndim = o[0].ndim;
    q->spatial = g->spatial;
    q->groups = g->groups;
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned d = 0; d < o[i].ndim; d++) {
            q->size[i][d] = o[i].size[d];
            q->stride[i][d] = o[i].stride[d];
            if (o[i].stride[d] < 1) return false;
        }
    }
    const rp__operand *x = op == RP__LIB_CONV_FORWARD ? &o[1] : &o[0], *y = op == RP__LIB_CONV_FORWARD ? &o[0] : &o[1],
                      *w = &o[2];
    for (unsigned k = 0; k < g->spatial; k++) {
        q->conv_stride[k] = g->stride[k];
        q->padding[k] = g->padding[k];
        q->dilation[k] = g->dilation[k];
        /* what the last window needs; less than nothing when the tail of x is not looked at */
        q->padding_end[k] = (y->size[2 + k] - 1) * g->stride[k] + g->dilation[k] * (w->size[2 + k] - 1) + 1 -
                            x->size[2 + k] - g->padding[k];
    }
    q->bias = op == RP__LIB_CONV_FORWARD && n > 3 && o[3].base;
    return !q->bias || o[3].stride[0] == 1;
}

static bool problem_of(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                       rp__onednn_problem *q, unsigned *dim, int64_t *size, int64_t *blocks) {
    const int dtype = dtype_of(o[0].dtype);
    if (dtype < 0 || n < 3) return false;
    memset(q, 0, sizeof *q);
    q->dtype = dtype;
    for (size_t i = 0; i < n; i++)
        for (unsigned d = 0; d < o[i].ndim; d++)
            if (o[i].size[d] <= 0) return false;
    if (!(op == RP__LIB_MATMUL ? matmul_problem(o, n, q) : conv_problem(op, o, n, call, q)) || !onednn()) return false;
    *dim = op == RP__LIB_MATMUL && q->size[0][0] < BLOCKS ? 1 : 0;
    *size = (q->size[0][*dim] + BLOCKS - 1) / BLOCKS;
    *blocks = (q->size[0][*dim] + *size - 1) / *size;
    return true;
}

bool rp__onednn_serves(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                       size_t *scratch) {
    rp__onednn_problem q;
    unsigned dim;
    int64_t size, blocks;
    if (!problem_of(op, o, n, call, &q, &dim, &size, &blocks)) return false;
    size_t most = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const rp__onednn_problem part = block_of(&q, dim, size, b);
        kept_plan *p = plan_of(&part, b);
        const bool can = p && p->plan;
        if (can && p->scratch > most) most = p->scratch;
        plan_done(p);
        if (!can) return false;
    }
    *scratch = (most + 63) / 64 * 64 * (size_t)blocks;
    return true;
}

rp_status rp__onednn_bind(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                          size_t scratch, rp__launch_buffer *buffer, rp__launch *out) {
    rp__onednn_problem q;
    unsigned dim;
    int64_t size, blocks;
    if (!problem_of(op, o, n, call, &q, &dim, &size, &blocks)) return RP_ERROR_INTERNAL;
    uint64_t *w = buffer->words;
    for (uint32_t i = 0; i < 3; i++) rp__operand_slot(&o[i], OUT + i, i ? RP__READ : RP__WRITE, buffer, out);
    w[BIAS] = w[SCRATCH] = 0;
    if (q.bias) rp__operand_slot(&o[3], BIAS, RP__READ, buffer, out);
    if (scratch) RP_TRY(rp__workspace_slot(call, scratch, SCRATCH, buffer, out));
    w[BLOCK_COUNT] = (uint64_t)blocks, w[BLOCK_SCRATCH] = scratch / (uint64_t)blocks;
    w[BLOCK_DIM] = dim, w[BLOCK_SIZE] = (uint64_t)size;
    memcpy(w + PROBLEM, &q, sizeof q);
    out->n_words = WORDS;
    out->items = blocks;
    out->grain = 1;
    out->kernel = &kernel;
    return RP_OK;
}
