/* Calls that repeat (repeat.h): a table of the thread, one place a hash, of loop and view ops on CPU tensors.

   The key holds all that a rule, a lowering or the binding of a launch may look at: the op, of each tensor its dtype, sizes and
   strides (views: its offset), every attribute. Left out because every call looks itself: addresses and what follows from them
   (overlaps of a written tensor), stream, recorder and kernel log, the CPU's instruction set (the launch knows its own), and all
   that the layers above decide, which ran before. Not kept: symbols of a trace, lists of tensors, generators and strings, draws,
   results without elements, calls that fail. A place changes hands when the same new call missed it twice in a row: a call that
   is never repeated costs the comparison only. Nothing here can fail: without memory nothing is kept. */
#include "ops/repeat.h"

#include <string.h>

#include "core/alloc.h"
#include "device/device.h"

enum { SLOTS = 512, MAX_RESULTS = 4 };

typedef struct entry {
    uint32_t n_key, written; /* written: the input that an op in place writes */
    rp__kept_launch launch;  /* ready NULL: a view */
    rp_dim offset;           /* of a view */
    uint32_t n_out;
    rp__tensor_form out[MAX_RESULTS]; /* fresh results; a view's has no bytes */
    uint64_t words[];                 /* the key; then sizes and strides of `out` */
} entry;

typedef struct table {
    struct {
        entry *entry;
        uint32_t missed; /* hash of the call that missed last */
    } slot[SLOTS];
    uint64_t runs;
} table;

static RP__TLS_FAST table *table_;
static pthread_key_t table_key;
static pthread_once_t table_once = PTHREAD_ONCE_INIT;
static bool table_key_made;

static void entry_free(entry *e) {
    if (e && e->launch.ready) rp__cpu_device.ops->loops->ready_free(e->launch.ready);
    rp__free(e);
}

static void table_free(void *p) {
    table *t = p;
    for (unsigned i = 0; i < SLOTS; i++) entry_free(t->slot[i].entry);
    rp__free(t);
    table_ = NULL;
}

static void make_key(void) { table_key_made = pthread_key_create(&table_key, table_free) == 0; }

static __attribute__((noinline)) table *table_new(void) {
    (void)pthread_once(&table_once, make_key);
    table *t = table_key_made ? rp__calloc(1, sizeof *t) : NULL;
    if (t && pthread_setspecific(table_key, t) != 0) {
        rp__free(t);
        t = NULL;
    }
    return table_ = t;
}

uint64_t rp__repeat_count(void) { return table_ ? table_->runs : 0; }

/* ---- keys */

static inline uint64_t attr_word(const rp_attr *a) {
    uint64_t word = 0;
    switch (a->kind) {
    case RP_ATTR_INT: return (uint64_t)a->v.i;
    case RP_ATTR_FLOAT: memcpy(&word, &a->v.f, sizeof word); return word;
    case RP_ATTR_BOOL: return a->v.b;
    case RP_ATTR_DTYPE: return (uint64_t)a->v.dtype;
    default:
        if (a->v.scalar.kind == RP_SCALAR_BOOL) return a->v.scalar.v.b;
        memcpy(&word, &a->v.scalar.v, sizeof word);
        return word;
    }
}

static inline bool is_symbol(int64_t word) { return rp__dim_is_symbol(word) && word != INT64_MIN; /* int?: None */ }

/* Fills r->key; false: the call has none. */
static inline bool key_fill(const rp__call *call, rp__repeat *r) {
    uint64_t *key = r->key, *const end = key + RP__REPEAT_WORDS;
    const bool view = call->op->lowering == RP__VIEW;
    int64_t all = 0; /* negative: one of the sizes and strides is, a symbol */
    if (RP__UNLIKELY(call->relu || call->stage || call->n_in == 0)) return false;
    *key++ = (uint64_t)(uintptr_t)call->op;
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (RP__UNLIKELY(end - key < 2 + 2 * RP_MAX_DIMS)) return false;
        if (!t) {
            *key++ = 0;
            continue;
        }
        if (RP__UNLIKELY(t->traced || t->device.type != RP_DEVICE_CPU)) return false;
        const unsigned n = t->ndim;
        *key++ = 1u | (uint64_t)t->dtype << 8 | (uint64_t)n << 16;
        if (view) *key++ = (uint64_t)t->offset;
        for (unsigned d = 0; d < n; d++, key += 2) {
            key[0] = (uint64_t)t->size[d];
            key[1] = (uint64_t)t->stride[d];
            all |= t->size[d] | t->stride[d];
        }
    }
    if (RP__UNLIKELY(all < 0)) return false;
    for (uint32_t k = 0; k < call->n_attrs; k++) {
        const rp_attr *a = &call->attrs[k];
        const size_t n = a->kind == RP_ATTR_INTS ? a->n : 1;
        if (RP__UNLIKELY(a->kind > RP_ATTR_INTS || (size_t)(end - key) < 1 + n)) return false;
        *key++ = (uint64_t)n << 16 | (a->kind == RP_ATTR_SCALAR ? (uint64_t)a->v.scalar.kind << 8 : 0) | a->kind;
        if (a->kind == RP_ATTR_INTS) {
            for (size_t i = 0; i < n; i++) {
                if (is_symbol(a->v.ints[i])) return false;
                *key++ = (uint64_t)a->v.ints[i];
            }
        } else {
            if (a->kind == RP_ATTR_INT && is_symbol(a->v.i)) return false;
            *key++ = attr_word(a);
        }
    }
    r->n = (uint32_t)(key - r->key);
    return true;
}

static inline uint32_t hash_of(const uint64_t *key, uint32_t n) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++) h = (h << 5 | h >> 59) ^ key[i];
    return (uint32_t)(h * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

static inline bool entry_is(const entry *e, const rp__repeat *r) {
    if (!e || e->n_key != r->n) return false;
    for (uint32_t i = 0; i < r->n; i++) {
        if (e->words[i] != r->key[i]) return false;
    }
    return true;
}

/* ---- running */

/* Inputs in memory that the written tensor may share are for the careful way. */
static inline bool stands_apart(const rp__call *call, const rp_tensor *self) {
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (t && t != self &&
            (t->storage == self->storage || (t->storage->foreign && self->storage->foreign)))
            return false;
    }
    return true;
}

/* false: nothing was done. */
static inline bool run_loop(const entry *e, rp__call *call, rp_status *status) {
    rp_stream *s = rp__current_stream(&rp__cpu_device);
    const bool writes = call->op->flags & RP_OP_INPLACE;
    if (RP__UNLIKELY(!rp__launch_runs_at_once(s) || rp__kernel_log_set)) return false;
    if (writes) {
        if (!stands_apart(call, call->in[e->written])) return false;
        call->out[0] = call->in[e->written];
    }
    for (uint32_t k = 0; k < e->n_out; k++) {
        call->out[k] = rp__tensor_of_form(&rp__cpu_device, s, &e->out[k]);
        if (RP__UNLIKELY(rp__tensor_is_error(call->out[k]))) {
            *status = rp_error_status();
            return true;
        }
    }
    char *base[RP__KEPT_ACCESSES];
    for (unsigned i = 0; i < e->launch.n_accesses; i++) {
        const unsigned o = e->launch.operand[i];
        base[i] = o == RP__KEPT_NONE ? NULL
                                     : rp__tensor_data(o & RP__KEPT_OUT ? call->out[o & ~RP__KEPT_OUT] : call->in[o]);
    }
    if (RP__UNLIKELY(!rp__cpu_device.ops->loops->ready_run(e->launch.ready, s, base, call->op->name, call->site,
                                                           status))) {
        for (uint32_t k = 0; k < e->n_out; k++) rp_release(rp__tensor_unscope(call->out[k]));
        return false;
    }
    if (writes && *status == RP_OK) {
        rp__storage_written(call->out[0]->storage, call->op->name, call->site);
        call->out[0] = rp__tensor_enter_scope(call->out[0]); /* returned with one more reference */
        if (RP__UNLIKELY(rp__tensor_is_error(call->out[0]))) *status = rp_error_status();
    }
    return true;
}

static inline bool run(const entry *e, rp__call *call, rp_status *status) {
    if (e->launch.ready) return run_loop(e, call, status);
    const rp__tensor_form *f = &e->out[0];
    call->out[0] = rp__tensor_view(call->in[0], f->size, f->stride, f->ndim, e->offset);
    *status = rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
    return true;
}

bool rp__repeat_run(rp__call *call, rp__repeat *r, rp_status *status) {
    r->keep = false;
    table *t = RP__LIKELY(table_ != NULL) ? table_ : table_new();
    if (RP__UNLIKELY(!t) || !key_fill(call, r)) return false;
    r->hash = hash_of(r->key, r->n);
    entry *e = t->slot[r->hash % SLOTS].entry;
    uint32_t *missed = &t->slot[r->hash % SLOTS].missed;
    if (RP__LIKELY(entry_is(e, r)) && RP__LIKELY(run(e, call, status))) {
        *missed = ~r->hash;
        t->runs++;
        return true;
    }
    r->keep = *missed == r->hash;
    *missed = r->hash;
    return false;
}

/* ---- keeping */

static bool is_form(const rp_tensor *t) {
    return t->storage->bytes > 0 && t->offset == 0 && rp__tensor_contiguous(t) &&
           t->storage->bytes == (size_t)rp__tensor_numel(t) * rp__dtype_bytes((rp_dtype)t->dtype);
}

static entry *entry_new(const rp__repeat *r, const rp__call *call, const rp__kept_launch *launch) {
    const rp__schema *schema = &call->op->schema;
    const bool writes = call->op->flags & RP_OP_INPLACE;
    const uint32_t n_out = writes ? 0 : call->n_out;
    if ((call->op->flags & RP_OP_SYNC) || call->n_out > MAX_RESULTS || (writes && call->n_out != 1)) return NULL;
    for (unsigned i = 0; i < schema->n_params; i++) {
        if (schema->params[i].kind == RP__PARAM_TENSORS) return NULL;
    }
    size_t words = r->n;
    for (uint32_t k = 0; k < n_out; k++) {
        if (schema->out_written[k] || (launch && !is_form(call->out[k]))) return NULL;
        words += 2 * (size_t)call->out[k]->ndim;
    }
    if (writes && rp__tensor_overlaps_itself(call->out[0])) return NULL;
    entry *e = rp__calloc(1, sizeof *e + words * sizeof *e->words);
    if (!e) return NULL;
    e->n_key = r->n;
    memcpy(e->words, r->key, r->n * sizeof *r->key);
    if (launch) e->launch = *launch;
    if (writes) e->written = rp__call_written_at(call, 0);
    if (!launch) e->offset = call->out[0]->offset;
    e->n_out = n_out;
    rp_dim *at = (rp_dim *)(e->words + r->n);
    for (uint32_t k = 0; k < n_out; k++) {
        const rp_tensor *t = call->out[k];
        e->out[k] = (rp__tensor_form){launch ? t->storage->bytes : 0, t->dtype, t->ndim, at, at + t->ndim};
        memcpy(at, t->size, t->ndim * sizeof *at);
        memcpy(at + t->ndim, t->stride, t->ndim * sizeof *at);
        at += 2 * t->ndim;
    }
    return e;
}

void rp__repeat_keep(const rp__repeat *r, const rp__call *call, const rp__kept_launch *launch) {
    entry *e = entry_new(r, call, launch);
    if (!e) {
        if (launch) rp__cpu_device.ops->loops->ready_free(launch->ready);
        return;
    }
    entry **place = &table_->slot[r->hash % SLOTS].entry;
    entry_free(*place);
    *place = e;
}
