/* Calls that repeat (repeat.h): a table of the thread, one place a hash, of loop and view ops on CPU tensors.

   The key holds all that a rule, a lowering or the binding of a launch may look at: the op, of each tensor its dtype, sizes and
   strides (views: its offset), every attribute. Left out because every call looks itself: addresses and what follows from them
   (overlaps of a written tensor), stream, recorder and kernel log, the CPU's instruction set (the launch knows its own), and all
   that the layers above decide, which ran before. Not kept: symbols of a trace, lists of tensors, generators and strings, draws,
   results without elements, calls that fail. A place that is taken changes hands when the same new call misses it twice in a row:
   calls that are never repeated cost a comparison. Nothing here can fail: without memory nothing is kept. */
#include "ops/repeat.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "core/alloc.h"
#include "device/device.h"

enum { SLOTS = 512, MAX_RESULTS = 4, MAX_WORDS = 128 };
enum { NONE, IN, OUT }; /* where an access finds its tensor */

typedef struct entry {
    uint32_t written;       /* the input that an op in place writes */
    rp__kept_launch launch; /* ready NULL: a view */
    struct operand {
        uint8_t list, k, shift;   /* shift: log2 of the element bytes */
    } operand[RP__KEPT_ACCESSES]; /* of each access */
    rp_dim offset;                /* of a view */
    uint32_t n_out;
    rp__tensor_form out[MAX_RESULTS]; /* fresh results; a view's has no bytes */
    uint64_t words[];                 /* the key; then sizes and strides of `out` */
} entry;

typedef struct table {
    struct slot {
        entry *entry;
        uint32_t missed, refused; /* what place_of said of the call that missed last, and of one that cannot be kept */
    } slot[SLOTS];
    uint32_t mask; /* of places in use: SLOTS - 1 */
    uint64_t runs;
} table;

static RP__TLS_FAST table *table_;

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

static __attribute__((noinline)) table *table_new(void) {
    static rp__thread_end tables = {.end = table_free};
    table *t = rp__thread_new(&tables, sizeof *t);
    if (t) t->mask = SLOTS - 1;
    return table_ = t;
}

uint64_t rp__repeat_count(void) { return table_ ? table_->runs : 0; }

void rp__repeat_one_place(bool one) {
    table *t = table_ ? table_ : table_new();
    if (t) t->mask = one ? 0 : SLOTS - 1;
}

/* ---- keys */

/* Letters [at, at + 8) of a short text; a longer one has no key. */
enum { SHORT_TEXT = 15 };
static uint64_t text_word(const char *text, size_t at) {
    uint64_t word = 0;
    size_t n = text ? strlen(text) : 0;
    if (n > at) memcpy(&word, text + at, n - at < 8 ? n - at : 8);
    return word;
}

static inline uint64_t attr_word(const rp_attr *a) {
    uint64_t word = 0;
    if (a->kind == RP_ATTR_SCALAR) {
        if (a->v.scalar.kind == RP_SCALAR_BOOL) return a->v.scalar.v.b;
        memcpy(&word, &a->v.scalar.v, sizeof word);
        return word;
    }
    if (a->kind == RP_ATTR_BOOL) return a->v.b;
    if (a->kind == RP_ATTR_DTYPE) return (uint64_t)a->v.dtype;
    if (a->kind == RP_ATTR_INTS) return a->n + !a->v.ints * UINT64_C(0x100000000); /* None is not [] */
    if (a->kind == RP_ATTR_STRING) return text_word(a->v.string, 0);
    memcpy(&word, &a->v, sizeof word); /* an integer or a number; of other kinds there are no keys */
    return word;
}

static inline bool is_symbol(int64_t word) { return rp__dim_is_symbol(word) && word != INT64_MIN; /* int?: None */ }

/* Dtype and rank; never 0. */
static inline uint64_t type_of(const rp_tensor *t) {
    uint16_t type;
    _Static_assert(offsetof(rp_tensor, ndim) == offsetof(rp_tensor, dtype) + 1, "dtype and ndim are neighbours");
    memcpy(&type, (const char *)t + offsetof(rp_tensor, dtype), sizeof type);
    return type;
}

/* The one description of a key: compares the call with the words of an entry or, with `fill`, writes them, of which there is
   room for `room`. Two keys that agree so far go on alike, so comparing stays inside the words that were filled. Returns how
   many there are; 0: the call is another, or has no key. */
static inline __attribute__((always_inline)) size_t key_walk(const rp__call *call, uint64_t *words, size_t room,
                                                             const bool fill) {
    size_t n = 0;
#define WORD(value)                                                                                                    \
    do {                                                                                                               \
        const uint64_t word_ = (uint64_t)(value);                                                                      \
        if (fill ? n == room : words[n] != word_) return 0;                                                            \
        if (fill) words[n] = word_;                                                                                    \
        n++;                                                                                                           \
    } while (0)
    WORD((uintptr_t)call->op);
    WORD(call->n_in);
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (RP__UNLIKELY(!t)) {
            WORD(0);
            continue;
        }
        if (RP__UNLIKELY(t->traced != NULL) || (fill && t->device.type != RP_DEVICE_CPU)) return 0;
        WORD(type_of(t) | (uint64_t)t->device.type << 32);
        for (unsigned d = 0; d < t->ndim; d++) {
            if (fill && (rp__dim_is_symbol(t->size[d]) || rp__dim_is_symbol(t->stride[d]))) return 0;
            WORD(t->size[d]);
            WORD(t->stride[d]);
        }
    }
    if (call->op->lowering == RP__VIEW) WORD(call->in[0]->offset);
    for (uint32_t k = 0; k < call->n_attrs; k++) {
        const rp_attr *a = &call->attrs[k];
        if (fill &&
            ((a->kind > RP_ATTR_INTS && a->kind != RP_ATTR_STRING) || (a->kind == RP_ATTR_INT && is_symbol(a->v.i)) ||
             (a->kind == RP_ATTR_SCALAR && rp__scalar_is_symbol(a->v.scalar))))
            return 0;
        WORD((uint64_t)a->kind | (a->kind == RP_ATTR_SCALAR ? (uint64_t)a->v.scalar.kind << 8 : 0));
        WORD(attr_word(a));
        if (RP__UNLIKELY(a->kind == RP_ATTR_STRING)) {
            if (fill && a->v.string && strlen(a->v.string) > SHORT_TEXT) return 0;
            WORD(text_word(a->v.string, 8) | (uint64_t)!a->v.string << 63 |
                 (uint64_t)(a->v.string && strlen(a->v.string) > SHORT_TEXT) << 62);
        }
        for (size_t i = 0; a->kind == RP_ATTR_INTS && i < a->n; i++) {
            if (fill && is_symbol(a->v.ints[i])) return 0;
            WORD(a->v.ints[i]);
        }
    }
#undef WORD
    return n;
}

/* Where a call has its place: of what keys differ in most often, as much as is cheap to look at. */
static inline uint64_t look_of(const rp_tensor *t) {
    if (RP__UNLIKELY(!t)) return 0;
    const unsigned last = t->ndim - 1u;
    if (RP__UNLIKELY(!t->ndim)) return type_of(t);
    return (type_of(t) + ((uint64_t)t->size[last] << 16) + ((uint64_t)t->stride[last] << 32)) ^ (uint64_t)t->size[0]
                                                                                                    << 48;
}
static inline uint64_t mix(uint64_t h, uint64_t word) { return (h << 7 | h >> 57) ^ word; }
static inline uint32_t place_of(const rp__call *call) {
    uint64_t h = mix(call->op->index, look_of(call->in[0])); /* the same in every process */
    if (call->n_in > 1) h = mix(h, look_of(call->in[1]));
    for (uint32_t k = 0; k < call->n_attrs; k++) {
        const rp_attr *a = &call->attrs[k];
        h = mix(h, a->kind == RP_ATTR_INTS && a->n ? (uint64_t)a->v.ints[0] + a->n : attr_word(a));
    }
    return (uint32_t)(h * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

static inline bool entry_is(entry *e, const rp__call *call) { return e && key_walk(call, e->words, 0, false) != 0; }

/* ---- running */

/* Inputs in memory that the written tensor may share are for the careful way. */
static inline bool stands_apart(const rp__call *call, const rp_tensor *self) {
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (t && t != self && (t->storage == self->storage || rp__storage_meets(t->storage, self->storage)))
            return false;
    }
    return true;
}

/* Results of a call that has not just a fresh one: the tensor that it writes, or several. RP_ERROR_UNAVAILABLE without a sticky
   error: not this way. */
static __attribute__((noinline)) rp_status make_results(const entry *e, rp__call *call, rp_stream *s) {
    if (e->n_out == 0) {
        if (!stands_apart(call, call->in[e->written])) return RP_ERROR_UNAVAILABLE;
        call->out[0] = call->in[e->written];
    }
    for (uint32_t k = 0; k < e->n_out; k++) {
        call->out[k] = rp__tensor_of_form(&rp__cpu_device, s, &e->out[k]);
        if (rp__tensor_is_error(call->out[k])) return rp_error_status();
    }
    return RP_OK;
}

static __attribute__((noinline)) rp_status note_written(rp__call *call) {
    rp__storage_written(call->out[0]->storage, call->op->name, call->site);
    call->out[0] = rp__tensor_enter_scope(call->out[0]); /* returned with one more reference */
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

/* In builds with assertions a call that is found by its key is lowered again: what a rule or a lowering looks at and the key does
   not hold would make it run as another call. */
static inline rp_status check_launch(const entry *e, const rp__call *call, rp_stream *s) {
#ifndef NDEBUG
    rp__kept_launch again = {.look = true};
    RP_TRY(rp__lower_launch(call, &rp__cpu_device, s, &again)); /* memory may be short */
    assert(again.print == e->launch.print);
#else
    (void)e, (void)call, (void)s;
#endif
    return RP_OK;
}
static inline void check_view(const entry *e, const rp__call *call) {
#ifndef NDEBUG
    rp__meta meta;
    rp__view view;
    memset(&meta, 0, sizeof meta);
    memset(&view, 0, sizeof view);
    assert(rp__op_view(call, &meta, &view) == RP_OK);
    assert(view.ndim == e->out[0].ndim && rp__dim_same_word(view.offset, e->offset));
    assert(memcmp(view.size, e->out[0].size, view.ndim * sizeof *view.size) == 0);
    assert(memcmp(view.stride, e->out[0].stride, view.ndim * sizeof *view.stride) == 0);
#else
    (void)e, (void)call;
#endif
}

/* Its launch is out of date (another instruction set, a kernel compiled since): the call goes the general way and makes
   its results there. Or it cannot be checked. */
static __attribute__((noinline)) bool drop_results(const entry *e, rp__call *call) {
    for (uint32_t k = 0; k < e->n_out; k++) rp_release(rp__tensor_unscope(call->out[k]));
    return false;
}

/* false: nothing was done. */
static __attribute__((noinline)) bool run_launch(const entry *e, rp__call *call, rp_status *status) {
    rp_stream *s = rp__current_cpu_stream();
    if (RP__UNLIKELY(!rp__launch_runs_at_once(s) || rp__kernel_log_set)) return false;
    *status = RP_OK;
    if (RP__LIKELY(e->n_out == 1)) {
        call->out[0] = rp__tensor_of_form(&rp__cpu_device, s, &e->out[0]);
        if (RP__UNLIKELY(rp__tensor_is_error(call->out[0]))) *status = rp_error_status();
    } else {
        *status = make_results(e, call, s);
    }
    if (RP__UNLIKELY(*status != RP_OK)) return *status != RP_ERROR_UNAVAILABLE;
    if (RP__UNLIKELY((*status = check_launch(e, call, s)) != RP_OK)) return !drop_results(e, call);
    char *base[RP__KEPT_ACCESSES];
    for (unsigned i = 0; i < e->launch.n_accesses; i++) {
        const struct operand *o = &e->operand[i];
        if (RP__UNLIKELY(o->list == NONE)) {
            base[i] = NULL;
            continue;
        }
        const rp_tensor *t = o->list == OUT ? call->out[o->k] : call->in[o->k];
        base[i] = (char *)t->storage->data + ((size_t)t->offset << o->shift);
    }
    if (RP__UNLIKELY(
            !rp__cpu_device.ops->loops->ready_run(e->launch.ready, s, base, call->op->name, call->site, status)))
        return drop_results(e, call);
    if (e->n_out == 0 && *status == RP_OK) *status = note_written(call);
    return true;
}

static inline bool run_entry(const entry *e, rp__call *call, rp_status *status) {
    if (RP__LIKELY(e->launch.ready != NULL)) return run_launch(e, call, status);
    const rp__tensor_form *f = &e->out[0];
    check_view(e, call);
    call->out[0] = rp__tensor_view(call->in[0], f->size, f->stride, f->ndim, e->offset);
    *status = rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
    return true;
}

bool rp__repeat_run(rp__call *call, rp__repeat *r, rp_status *status) {
    r->keep = false;
    table *t = RP__LIKELY(table_ != NULL) ? table_ : table_new();
    if (RP__UNLIKELY(!t || call->n_in == 0)) return false;
    r->place = place_of(call);
    struct slot *s = &t->slot[r->place & t->mask];
    if (RP__LIKELY(entry_is(s->entry, call)) && RP__LIKELY(run_entry(s->entry, call, status))) {
        s->missed = ~r->place;
        t->runs++;
        return true;
    }
    r->keep = (!s->entry || s->missed == r->place) && s->refused != r->place;
    s->missed = r->place;
    return false;
}

/* ---- keeping */

static bool is_form(const rp_tensor *t) {
    return t->storage->bytes > 0 && rp__dim_same_word(t->offset, 0) && /* fresh, so dense */
           t->storage->bytes == (size_t)rp__tensor_numel(t) * rp__dtype_bytes((rp_dtype)t->dtype);
}

static entry *entry_new(const rp__call *call, const rp__kept_launch *launch, const uint64_t *key, size_t n_key) {
    const rp__schema *schema = &call->op->schema;
    const bool writes = call->op->flags & RP_OP_INPLACE;
    const uint32_t n_out = writes ? 0 : call->n_out;
    if ((call->op->flags & RP_OP_SYNC) || call->n_out < 1 || call->n_out > MAX_RESULTS || (writes && call->n_out != 1))
        return NULL;
    for (unsigned i = 0; i < schema->n_params; i++) {
        if (schema->params[i].kind == RP__PARAM_TENSORS) return NULL;
    }
    size_t words = n_key;
    for (uint32_t k = 0; k < n_out; k++) {
        if (schema->out_written[k] || (launch && !is_form(call->out[k]))) return NULL;
        words += 2 * (size_t)call->out[k]->ndim;
    }
    if (writes && rp__tensor_overlaps_itself(rp__call_written(call, 0)))
        return NULL; /* fill_ was launched over a part */
    entry *e = rp__calloc(1, sizeof *e + words * sizeof *e->words);
    if (!e) return NULL;
    memcpy(e->words, key, n_key * sizeof *key);
    if (launch) e->launch = *launch;
    for (unsigned i = 0; launch && i < launch->n_accesses; i++) {
        const uint8_t o = launch->operand[i], k = o & (uint8_t)~RP__KEPT_OUT;
        if (o == RP__KEPT_NONE) continue; /* zero is NONE */
        const rp_tensor *t = o & RP__KEPT_OUT ? call->out[k] : call->in[k];
        e->operand[i] = (struct operand){o & RP__KEPT_OUT ? OUT : IN, k,
                                         (uint8_t)__builtin_ctzll(rp__dtype_bytes((rp_dtype)t->dtype))};
    }
    if (writes) e->written = rp__call_written_at(call, 0);
    if (!launch) e->offset = call->out[0]->offset;
    e->n_out = n_out;
    rp_dim *at = (rp_dim *)(e->words + n_key);
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
    struct slot *s = &table_->slot[r->place & table_->mask];
    uint64_t key[MAX_WORDS];
    const size_t n_key = key_walk(call, key, MAX_WORDS, true);
    entry *e = n_key && (!launch || launch->ready) ? entry_new(call, launch, key, n_key) : NULL;
    if (e) {
        entry_free(s->entry);
        s->entry = e;
        return;
    }
    if (launch && launch->ready) rp__cpu_device.ops->loops->ready_free(launch->ready);
    if (n_key) s->refused = r->place; /* of calls without a key, others at the place may have one */
}
