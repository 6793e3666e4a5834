/* The op table: builtin rows (constant, generated from ops.def) and ops registered by the user. Adding is locked; readers are
   not: a row is complete before the count that makes it visible, and never moves. */
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "ops/rules.h"
#include "ops/table.h"

const rp__op rp__ops[RP__OP_BUILTIN_COUNT] = {
#include "ops_table.inc"
};

enum { CHUNK = 64, CHUNKS = 64 };
static _Atomic(const rp__op **) chunks[CHUNKS]; /* each of CHUNK rows */
static atomic_size_t n_user;
static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)

size_t rp__op_table_count(void) { return RP__OP_BUILTIN_COUNT + atomic_load_explicit(&n_user, memory_order_acquire); }

const rp__op *rp__op_table_at(size_t index) {
    if (index < RP__OP_BUILTIN_COUNT) return &rp__ops[index];
    index -= RP__OP_BUILTIN_COUNT;
    if (index >= atomic_load_explicit(&n_user, memory_order_acquire)) return NULL;
    return atomic_load_explicit(&chunks[index / CHUNK], memory_order_acquire)[index % CHUNK];
}

static const rp__op *find_user(const char *name) {
    size_t n = atomic_load_explicit(&n_user, memory_order_acquire);
    for (size_t i = 0; i < n; i++) {
        const rp__op *op = rp__op_table_at(RP__OP_BUILTIN_COUNT + i);
        if (strcmp(op->name, name) == 0) return op;
    }
    return NULL;
}

/* Builtin rows by name, built by insertion at the first look-up. */
static uint16_t by_name[RP__OP_BUILTIN_COUNT];
static pthread_once_t by_name_once = PTHREAD_ONCE_INIT;

static void sort_names(void) {
    for (unsigned i = 0; i < RP__OP_BUILTIN_COUNT; i++) {
        unsigned at = i;
        for (; at > 0 && strcmp(rp__ops[by_name[at - 1]].name, rp__ops[i].name) > 0; at--)
            by_name[at] = by_name[at - 1];
        by_name[at] = (uint16_t)i;
    }
}

const rp__op *rp__op_find(const char *name) {
    if (!name) return NULL;
    (void)pthread_once(&by_name_once, sort_names);
    size_t low = 0, high = RP__OP_BUILTIN_COUNT;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(name, rp__ops[by_name[middle]].name);
        if (order == 0) return &rp__ops[by_name[middle]];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return find_user(name);
}

rp_status rp__op_table_add(rp__op *op) {
    rp_status status = RP_OK;
    rp__lock(&lock);
    size_t n = atomic_load(&n_user);
    if (rp__op_find(op->name)) {
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_register: an op named '%s' exists", op->name);
    } else if (n == CHUNK * CHUNKS) {
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_register: more than %d ops", CHUNK * CHUNKS);
    } else {
        const rp__op **chunk = atomic_load(&chunks[n / CHUNK]);
        if (!chunk) {
            chunk = rp__calloc(CHUNK, sizeof *chunk);
            atomic_store(&chunks[n / CHUNK], chunk);
        }
        if (!chunk) {
            status = RP__OOM("the table of user ops");
        } else {
            op->index = (uint32_t)(RP__OP_BUILTIN_COUNT + n);
            chunk[n % CHUNK] = op;
            atomic_store_explicit(&n_user, n + 1, memory_order_release);
        }
    }
    rp__unlock(&lock);
    return status;
}

/* ---- public */

size_t rp_op_count(void) { return rp__op_table_count(); }

rp_status rp_op_info_at_at(const char *site, size_t index, rp_op_info *info) {
    RP__CALLED_FROM(site);
    static const char *const kinds[] = {
        [RP__POINTWISE] = "pointwise", [RP__ROWS] = "rows",           [RP__INDEXED] = "indexed", [RP__VIEW] = "view",
        [RP__LIBRARY] = "library",     [RP__COMPOSITE] = "composite", [RP__HOST] = "host",       [RP__USER] = "user",
    };
    const rp__op *op = rp__op_table_at(index);
    if (!op || !info)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_info_at: %s", info ? "no op has this index" : "info is NULL");
    *info = (rp_op_info){
        .name = op->name,
        .schema = op->schema_text,
        .doc = op->doc,
        .lowering = op->flags & RP_OP_RANDOM && op->lowering != RP__LIBRARY ? "random" : kinds[op->lowering],
        .differentiable = op->vjp != NULL || op->lowering == RP__COMPOSITE || op->functional_op != NULL,
        .flags = op->flags & 0xffffu,
    };
    return RP_OK;
}
