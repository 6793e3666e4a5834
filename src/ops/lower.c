/* Lowering of one op into the loop form: the functions that lowerings call, and the eager driver. A lowering runs at most
   twice a call: the geometry pass (no builder: collects accesses, scalars, draws and the values that shape the DAG, which are
   the key) and, when the key is new, the building pass, which makes the same requests in the same order. Pointwise ops whose
   key holds dtypes only skip both: a cached recipe names their operands. Caches belong to a thread; DAGs are shared. */
#include "ops/lower.h"

#include <assert.h>
#include <string.h>

#include "core/alloc.h"
#include "ops/execute.h"
#include "ops/product.h"

enum { MAX_EXPLICIT = 12, MAX_STRUCTURAL = 10, MAX_DRAWS = 4, MAX_WINDOWS = 16, KEY_WORDS = 3 };

typedef enum source_kind { SRC_IN, SRC_OUT, SRC_IOTA, SRC_EXPLICIT_IN, SRC_EXPLICIT_OUT, SRC_PLACES } source_kind;
typedef struct source {
    uint8_t kind, index; /* operand, or rp__lower_iota */
    uint8_t slot;        /* explicit strides; dim of RP__IOTA_DIM */
    rp__axes axes;
    uint8_t windows;
} source;
typedef struct scalar {
    rp__lower_scalar from;
    rp_dtype compute;
} scalar;

struct rp__lower {
    const rp__call *call;
    rp__dag_builder *b;   /* NULL in the geometry pass */
    rp__lower_sink *sink; /* NULL in eager execution */
    rp_status status;
    uint8_t n_structural, n_draws, n_explicit;
    uint8_t ndim;   /* of the space in logical order */
    bool reversed;  /* inner dims are walked from their ends */
    uint32_t inner; /* bit d: dim d is inner */
    uint16_t n_accesses, n_scalars;
    const rp_dim *size;
    int64_t structural[MAX_STRUCTURAL];
    source access[RP__DAG_MAX_ACCESSES];
    scalar scalars[RP__DAG_MAX_SCALARS];
    rp_dim stride[MAX_EXPLICIT][RP_MAX_DIMS];
    rp_dim own_size[RP_MAX_DIMS];
    uint8_t n_windows;
    rp__lw_window windows[MAX_WINDOWS];
    struct rp__random_draw draw[MAX_DRAWS];
    rp__device *device;
    rp_stream *stream;
};

static void fail(rp__lower *lw, const char *what) {
    if (lw->status == RP_OK) lw->status = rp__op_error(lw->call, RP_ERROR_INTERNAL, "lowering: %s", what);
}

static bool building(const rp__lower *lw) { return lw->b != NULL; }

/* ---- what is being lowered */

const rp__call *rp__lw_call(const rp__lower *lw) { return lw->call; }
rp_dtype rp__lw_in_dtype(const rp__lower *lw, unsigned k) { return (rp_dtype)lw->call->in[k]->dtype; }
rp_dtype rp__lw_out_dtype(const rp__lower *lw, unsigned k) { return (rp_dtype)lw->call->out[k]->dtype; }
rp_dtype rp__lw_compute(rp_dtype dtype) { return (rp_dtype)rp__dtypes[dtype].compute; }
bool rp__lw_has(const rp__lower *lw, unsigned k) { return k < lw->call->n_in && lw->call->in[k]; }

bool rp__lw_attr_is_one(const rp__lower *lw, unsigned attr) {
    return rp__scalar_is_one(rp__call_attr(lw->call, attr)->v.scalar);
}

rp_dtype rp__lw_promoted(const rp__lower *lw, unsigned n, int attr) {
    rp__promotion p = {RP_DTYPE_NONE, RP_DTYPE_NONE, RP_DTYPE_NONE};
    if (lw->call->op->scalar_operand && attr < 0) {
        n--;
        attr = 0;
    }
    for (unsigned k = 0; k < n; k++) {
        const rp_tensor *t = lw->call->in[k];
        if (t) rp__promote_tensor(&p, (rp_dtype)t->dtype, t->ndim);
    }
    if (attr >= 0) rp__promote_scalar(&p, lw->call->attrs[attr].v.scalar.kind);
    return rp__promotion_result(&p);
}

int64_t rp__lw_structural_value(rp__lower *lw, int64_t value) {
    if (lw->sink) {
        if (lw->sink->structural) lw->sink->structural(lw->sink, lw->call, value);
        return value;
    }
    if (lw->n_structural == MAX_STRUCTURAL)
        fail(lw, "too many structural values");
    else
        lw->structural[lw->n_structural++] = value;
    return value;
}

/* ---- accesses */

static rp__access_kind access_kind(const source *s) {
    return s->kind == SRC_IOTA || s->kind == SRC_PLACES        ? RP__ACCESS_IOTA
           : s->kind == SRC_OUT || s->kind == SRC_EXPLICIT_OUT ? RP__ACCESS_WRITE
                                                               : RP__ACCESS_READ;
}

static const rp_tensor *access_tensor(const rp__call *call, const source *s) {
    return s->kind == SRC_OUT || s->kind == SRC_EXPLICIT_OUT ? call->out[s->index] : call->in[s->index];
}

static uint16_t add_access(rp__lower *lw, source s) {
    if (lw->n_accesses == RP__DAG_MAX_ACCESSES) {
        fail(lw, "too many accesses");
        return 0;
    }
    lw->access[lw->n_accesses] = s;
    if (building(lw)) {
        rp_dtype dtype = access_kind(&s) == RP__ACCESS_IOTA ? RP_I64 : (rp_dtype)access_tensor(lw->call, &s)->dtype;
        (void)rp__dag_access_windows(lw->b, access_kind(&s), dtype, s.axes, s.windows);
    }
    return lw->n_accesses++;
}

/* The access of an operand or an iota that needs no strides of its own: one each. */
static uint16_t find_access(rp__lower *lw, source s) {
    for (uint16_t i = 0; i < lw->n_accesses; i++) {
        const source *o = &lw->access[i];
        if (!o->windows && o->kind == s.kind && o->index == s.index && o->slot == s.slot && o->axes == s.axes) return i;
    }
    return add_access(lw, s);
}

rp__val rp__lw_in(rp__lower *lw, unsigned k) {
    if (lw->sink) return lw->sink->in(lw->sink, lw->call, k, false);
    uint16_t access = find_access(lw, (source){SRC_IN, (uint8_t)k, 0, RP__ELEMENTS, 0});
    return building(lw) ? rp__dag_load(lw->b, access, RP__NO_VAL, RP__NO_VAL) : 0;
}

static rp__val add_scalar(rp__lower *lw, rp__lower_scalar from, rp_dtype compute);

/* Integers of another width take the number as i64 and cast it. */
static rp__val number(rp__lower *lw, unsigned attr, rp_dtype type) {
    const rp__lower_scalar from = {.kind = RP__SCALAR_ATTR, .attr = attr};
    if (rp__dtype_wraps(type)) return rp__lw_cast(lw, add_scalar(lw, from, RP_I64), type);
    return add_scalar(lw, from, rp__lw_compute(type));
}

rp__val rp__lw_number(rp__lower *lw, unsigned attr, rp_dtype type) {
    return number(lw, attr + (lw->call->op->scalar_operand != 0), type);
}

rp__val rp__lw_in_as(rp__lower *lw, unsigned k, rp_dtype to) {
    if (k && lw->call->op->scalar_operand == k) return number(lw, 0, to);
    rp__val v = rp__lw_in(lw, k);
    return rp__lw_in_dtype(lw, k) == to ? v : rp__lw_cast(lw, v, to);
}

static void store(rp__lower *lw, unsigned k, rp__val v, rp__axes axes) {
    v = rp__lw_cast(lw, v, rp__lw_compute(rp__lw_out_dtype(lw, k)));
    if (lw->sink) {
        lw->sink->out(lw->sink, lw->call, k, v);
        return;
    }
    uint16_t access = add_access(lw, (source){SRC_OUT, (uint8_t)k, 0, axes, 0});
    if (building(lw)) rp__dag_store(lw->b, access, v);
}

void rp__lw_out(rp__lower *lw, unsigned k, rp__val v) { store(lw, k, v, RP__ELEMENTS); }
void rp__lw_out_row(rp__lower *lw, unsigned k, rp__val v) { store(lw, k, v, RP__ALONG_ROWS); }

static rp__val iota(rp__lower *lw, rp__lower_iota kind, unsigned dim) {
    if (lw->sink) return lw->sink->iota(lw->sink, lw->call, kind, dim);
    bool row = kind == RP__IOTA_DIM && lw->inner != 0 && !(lw->inner >> dim & 1u);
    uint16_t access =
        find_access(lw, (source){SRC_IOTA, (uint8_t)kind, (uint8_t)dim, row ? RP__ALONG_ROWS : RP__ELEMENTS, 0});
    return building(lw) ? rp__dag_iota(lw->b, access) : 0;
}

rp__val rp__lw_linear_index(rp__lower *lw) { return iota(lw, RP__IOTA_LINEAR, 0); }
rp__val rp__lw_dim_index(rp__lower *lw, unsigned dim) {
    if (!lw->sink) rp__lw_structural_value(lw, dim);
    return iota(lw, RP__IOTA_DIM, dim);
}

uint16_t rp__lw_access(rp__lower *lw, bool out, unsigned k, const rp_dim *stride, rp__axes axes) {
    if (lw->sink) return lw->sink->access(lw->sink, lw->call, out, k, stride, axes);
    if (lw->n_explicit == MAX_EXPLICIT) {
        fail(lw, "too many accesses with strides of their own");
        return 0;
    }
    memcpy(lw->stride[lw->n_explicit], stride, lw->ndim * sizeof *stride);
    return add_access(lw, (source){out ? SRC_EXPLICIT_OUT : SRC_EXPLICIT_IN, (uint8_t)k, lw->n_explicit++, axes, 0});
}

uint16_t rp__lw_windows(rp__lower *lw, int k, const rp_dim *stride, const rp__lw_window *windows, unsigned n,
                        rp__axes axes) {
    if (lw->sink) return lw->sink->windows(lw->sink, lw->call, k, stride, windows, n, axes);
    if (lw->n_explicit == MAX_EXPLICIT || lw->n_windows + n > MAX_WINDOWS) {
        fail(lw, "too many accesses with windows");
        return 0;
    }
    memcpy(lw->stride[lw->n_explicit], stride, lw->ndim * sizeof *stride);
    memcpy(&lw->windows[lw->n_windows], windows, n * sizeof *windows);
    lw->n_windows = (uint8_t)(lw->n_windows + n);
    return add_access(lw, (source){.kind = k < 0 ? SRC_PLACES : SRC_EXPLICIT_IN,
                                   .index = (uint8_t)(k < 0 ? 0 : k),
                                   .slot = lw->n_explicit++,
                                   .axes = axes,
                                   .windows = (uint8_t)n});
}

rp__val rp__lw_inside(rp__lower *lw, uint16_t access) {
    rp__dag_builder *b = lw->sink ? lw->sink->builder : lw->b;
    return b ? rp__dag_inside(b, access) : 0;
}

rp__val rp__lw_place(rp__lower *lw, uint16_t access) {
    rp__dag_builder *b = lw->sink ? lw->sink->builder : lw->b;
    return b ? rp__dag_iota(b, access) : 0;
}

rp__val rp__lw_in_front(rp__lower *lw, unsigned k) {
    if (lw->sink) return lw->sink->in(lw->sink, lw->call, k, true);
    const rp_tensor *t = lw->call->in[k];
    rp_dim stride[RP_MAX_DIMS] = {0};
    memcpy(stride, t->stride, t->ndim * sizeof *stride);
    return rp__lw_load(lw, rp__lw_access(lw, false, k, stride, RP__ELEMENTS), RP__NO_VAL, RP__NO_VAL);
}

rp__val rp__lw_load(rp__lower *lw, uint16_t access, rp__val offset, rp__val predicate) {
    return building(lw) ? rp__dag_load(lw->b, access, offset, predicate) : 0;
}

/* ---- scalars */

static rp__val add_scalar(rp__lower *lw, rp__lower_scalar from, rp_dtype compute) {
    if (lw->sink) return lw->sink->scalar(lw->sink, lw->call, &from, compute);
    uint16_t i = 0;
    for (; i < lw->n_scalars; i++) {
        const scalar *s = &lw->scalars[i];
        if (s->compute == compute && s->from.kind == from.kind && s->from.attr == from.attr && s->from.fn == from.fn &&
            from.kind != RP__SCALAR_SIZE)
            break;
    }
    if (i == RP__DAG_MAX_SCALARS) {
        fail(lw, "too many scalars");
        return 0;
    }
    if (i == lw->n_scalars) {
        lw->scalars[lw->n_scalars++] = (scalar){from, compute};
        if (building(lw)) (void)rp__dag_scalar(lw->b);
    }
    return building(lw) ? rp__dag_scalar_value(lw->b, i, compute) : 0;
}

rp__val rp__lw_attr(rp__lower *lw, unsigned attr, rp_dtype compute) {
    attr += lw->call->op->scalar_operand != 0;
    return add_scalar(lw, (rp__lower_scalar){.kind = RP__SCALAR_ATTR, .attr = attr}, compute);
}

rp__val rp__lw_scalar_fn(rp__lower *lw, rp_scalar (*value)(const rp__call *call), rp_dtype compute) {
    return add_scalar(lw, (rp__lower_scalar){.kind = RP__SCALAR_FN, .fn = value}, compute);
}

rp__val rp__lw_inner_extent(rp__lower *lw, rp_dtype compute) {
    return add_scalar(lw, (rp__lower_scalar){.kind = RP__SCALAR_INNER_EXTENT}, compute);
}

rp__val rp__lw_size(rp__lower *lw, rp_dim d) {
    return add_scalar(lw, (rp__lower_scalar){.kind = RP__SCALAR_SIZE, .size = d}, RP_I64);
}

rp_scalar rp__lower_scalar_value(const rp__lower_scalar *from, const rp__call *call) {
    if (from->kind == RP__SCALAR_FN) return rp__scalar_value(from->fn(call));
    if (from->kind == RP__SCALAR_SIZE) return rp_i64(rp__dim_value(from->size));
    const rp_attr *a = &call->attrs[from->attr];
    switch (a->kind) {
    case RP_ATTR_SCALAR: return rp__scalar_value(a->v.scalar);
    case RP_ATTR_FLOAT: return rp_f64(a->v.f);
    case RP_ATTR_BOOL: return rp_bool(a->v.b);
    default: return rp_i64(a->v.i);
    }
}

/* ---- operations */

rp__val rp__lw_const(rp__lower *lw, rp_dtype compute, double value) {
    return building(lw) ? rp__dag_const(lw->b, compute, (rp_scalar){RP_SCALAR_F64, {.f = value}}) : 0;
}
rp__val rp__lw_const_i(rp__lower *lw, rp_dtype compute, int64_t value) {
    return building(lw) ? rp__dag_const(lw->b, compute, (rp_scalar){RP_SCALAR_I64, {.i = value}}) : 0;
}
rp__val rp__lw_1(rp__lower *lw, rp__prim op, rp__val a) {
    return building(lw) ? rp__dag_op(lw->b, op, a, RP__NO_VAL, RP__NO_VAL) : 0;
}
rp__val rp__lw_2(rp__lower *lw, rp__prim op, rp__val a, rp__val b) {
    return building(lw) ? rp__dag_op(lw->b, op, a, b, RP__NO_VAL) : 0;
}
rp__val rp__lw_3(rp__lower *lw, rp__prim op, rp__val a, rp__val b, rp__val c) {
    return building(lw) ? rp__dag_op(lw->b, op, a, b, c) : 0;
}
rp__val rp__lw_cast(rp__lower *lw, rp__val a, rp_dtype to) { return building(lw) ? rp__dag_cast(lw->b, a, to) : 0; }
rp__val rp__lw_reduce(rp__lower *lw, rp__reduce_kind kind, rp__val a) {
    if (lw->sink) return lw->sink->reduce(lw->sink, lw->call, kind, a);
    return building(lw) ? rp__dag_reduce(lw->b, kind, a, RP__ALONG_ROW) : 0;
}
rp__val rp__lw_scan(rp__lower *lw, rp__scan_kind kind, rp__val a) {
    if (lw->sink) return lw->sink->scan(lw->sink, lw->call, kind, a);
    return building(lw) ? rp__dag_scan(lw->b, kind, a, RP__ALONG_ROW) : 0;
}
rp__val rp__lw_factor(rp__lower *lw, unsigned k, const rp_dim *stride, const uint8_t *along) {
    if (!lw->sink) {
        fail(lw, "a product by itself");
        return 0;
    }
    return lw->sink->factor(lw->sink, lw->call, k, stride, along);
}
rp__val rp__lw_contract(rp__lower *lw, rp__val a, rp__val b, unsigned order) {
    if (!lw->sink) {
        fail(lw, "a product by itself");
        return 0;
    }
    return lw->sink->contract(lw->sink, lw->call, a, b, order);
}
void rp__lw_join(rp__lower *lw, unsigned dim) {
    if (lw->sink) lw->sink->join(lw->sink, lw->call, dim);
}
rp__val rp__lw_check_index(rp__lower *lw, rp__val index, rp__val bound, bool wrap_negative) {
    return building(lw) ? rp__dag_op(lw->b, RP__CHECK_INDEX, index, bound, wrap_negative ? 1 : 0) : 0;
}

/* ---- random numbers */

rp_status rp__reserve_draw(const rp__call *call, unsigned generator_attr, rp__device *d, rp_stream *s,
                           uint64_t counters, struct rp__random_draw *out) {
    rp_generator *g = call->attrs[generator_attr].v.generator;
    if (!g) g = d->generator;
    if (g->device && g->device != d) {
        char a[24], b[24];
        return rp__op_error(call, RP_ERROR_DEVICE, "Expected a '%s' device type for generator but found '%s'",
                            rp__device_text(d->id, a), rp__device_text(g->device->id, b));
    }
    return rp__random_reserve(g, s, counters, out);
}

/* Counters are reserved in the geometry pass, which runs exactly once a call. */
static unsigned add_draw(rp__lower *lw, unsigned generator_attr, bool wide) {
    if (lw->sink) return lw->sink->draw(lw->sink, lw->call, generator_attr, wide);
    if (lw->n_draws == MAX_DRAWS) {
        fail(lw, "too many draws");
        return 0;
    }
    if (!building(lw) && lw->status == RP_OK) {
        uint64_t n = (uint64_t)rp__tensor_numel(lw->call->out[0]), per = wide ? 2 : 4;
        lw->status = rp__reserve_draw(lw->call, generator_attr, lw->device, lw->stream, n / per + (n % per != 0),
                                      &lw->draw[lw->n_draws]);
    }
    return lw->n_draws++;
}

rp__val rp__lw_random(rp__lower *lw, unsigned generator_attr, rp__prim philox_kind, rp_dtype dtype) {
    unsigned draw = add_draw(lw, generator_attr, philox_kind == RP__PHILOX64);
    rp__val element = rp__lw_linear_index(lw);
    return building(lw)
               ? rp__dag_op_imm(lw->b, philox_kind, philox_kind == RP__PHILOX_NORMAL ? dtype : RP_I64, element, draw)
               : 0;
}

/* ---- spaces */

void rp__lw_inner(rp__lower *lw, uint32_t mask) {
    if (lw->sink) lw->sink->inner(lw->sink, lw->call, mask);
    lw->inner = mask;
}

void rp__lw_reverse(rp__lower *lw) {
    if (lw->sink) lw->sink->reverse(lw->sink, lw->call);
    lw->reversed = true;
}

void rp__lw_space(rp__lower *lw, const rp_dim *size, size_t ndim, uint32_t inner_mask) {
    if (lw->sink) lw->sink->space(lw->sink, lw->call, size, ndim, inner_mask);
    memcpy(lw->own_size, size, ndim * sizeof *size);
    lw->size = lw->own_size;
    lw->ndim = (uint8_t)ndim;
    lw->inner = inner_mask;
}

/* The space before a lowering says otherwise: of in[0] for ROWS, of output 0 for the rest. */
static void begin_pass(rp__lower *lw, rp__dag_builder *b) {
    const rp_tensor *shape = lw->call->op->lowering == RP__ROWS ? lw->call->in[0] : lw->call->out[0];
    lw->b = b;
    lw->n_structural = lw->n_draws = lw->n_explicit = lw->n_windows = 0;
    lw->n_accesses = lw->n_scalars = 0;
    lw->inner = 0;
    lw->reversed = false;
    lw->ndim = shape->ndim;
    lw->size = shape->size;
}

rp_status rp__lower_into(rp__lower_sink *sink, const rp__call *call) {
    rp__lower lw;
    lw.call = call;
    lw.sink = sink;
    lw.status = RP_OK;
    begin_pass(&lw, sink->builder);
    if (call->op->lowering == RP__PRODUCT)
        rp__product_lower(&lw);
    else
        call->op->rule.lower(&lw);
    return lw.status;
}

/* ---- the thread's cache

   A call has a few places, the first of which its hash gives: a DAG that leaves takes its kernels along, so calls of one step must
   not drive each other out while there is room. The hash is of what a call says, never of addresses: what a program costs does
   not change from run to run. */

enum { CACHE_PLACES = 512, CACHE_TRIES = 8, RECIPE_ACCESSES = RP__FLAT_ACCESSES, RECIPE_SCALARS = 3 };
typedef struct entry {
    uint64_t key[KEY_WORDS]; /* op; input dtypes and ranks; output dtypes and scalar kinds */
    int64_t structural[MAX_STRUCTURAL];
    rp__dag *dag; /* NULL: free */
    uint8_t n_structural, n_accesses, n_scalars;
    bool recipe; /* pointwise, nothing structural: access and scalars say how to fill a space */
    bool iota;   /* a recipe with one */
    source access[RECIPE_ACCESSES];
    rp__lower_scalar scalars[RECIPE_SCALARS];
} entry;

typedef struct lowered {
    entry entries[CACHE_PLACES];
    uint64_t built;
} lowered;

static RP__TLS_FAST lowered *cache_;

static void free_cache(void *p) {
    lowered *cache = p;
    for (unsigned i = 0; i < CACHE_PLACES; i++) rp__dag_release(cache->entries[i].dag);
    rp__free(cache);
    cache_ = NULL;
}

static __attribute__((noinline)) lowered *new_cache(void) {
    static rp__thread_end caches = {.end = free_cache};
    cache_ = rp__thread_new(&caches, sizeof *cache_);
    if (!cache_) (void)RP__OOM("the kernel cache of a thread");
    return cache_;
}

static inline lowered *cache_get(void) { return RP__LIKELY(cache_ != NULL) ? cache_ : new_cache(); }

uint64_t rp__lower_built(void) { return cache_ ? cache_->built : 0; }

static inline bool base_key(const rp__call *call, uint64_t key[KEY_WORDS]) {
    if (RP__UNLIKELY(call->n_in > 8 || call->n_out > 4 || call->n_attrs > 8)) return false;
    uint64_t in = 0, out = 0;
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        in |= (uint64_t)(t ? t->dtype | (t->ndim == 0) << 6 : 0) << 8 * k;
    }
    for (uint32_t k = 0; k < call->n_out; k++) out |= (uint64_t)call->out[k]->dtype << 8 * k;
    for (uint32_t k = 0; k < call->n_attrs; k++) {
        if (call->attrs[k].kind == RP_ATTR_SCALAR) {
            const rp_scalar s = rp__scalar_value(call->attrs[k].v.scalar);
            out |= (uint64_t)(8u | (unsigned)s.kind << 1 | rp__scalar_is_one(s)) << (32 + 4 * k);
        }
    }
    key[0] = (uint64_t)(uintptr_t)call->op;
    key[1] = in;
    key[2] = out;
    return true;
}

static inline uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * UINT64_C(0x9e3779b97f4a7c15);
    return a ^ a >> 29;
}

static inline unsigned place_of(const rp__op *op, const uint64_t key[KEY_WORDS], const int64_t *structural,
                                unsigned n) {
    uint64_t h = mix(mix(op->index, key[1]), key[2]);
    for (unsigned i = 0; i < n; i++) h = mix(h, (uint64_t)structural[i]);
    return (unsigned)(h >> 20) % CACHE_PLACES;
}

static inline bool entry_is(const entry *e, const uint64_t key[KEY_WORDS], const int64_t *structural, unsigned n) {
    return e->dag && e->key[0] == key[0] && e->key[1] == key[1] && e->key[2] == key[2] && e->n_structural == n &&
           (n == 0 || memcmp(e->structural, structural, n * sizeof *structural) == 0);
}

/* NULL: not there. */
static inline const entry *find_entry(const lowered *cache, unsigned place, const uint64_t key[KEY_WORDS],
                                      const int64_t *structural, unsigned n) {
    for (unsigned i = 0; i < CACHE_TRIES; i++) {
        const entry *e = &cache->entries[(place + i) % CACHE_PLACES];
        if (entry_is(e, key, structural, n)) return e;
        if (!e->dag) return NULL; /* entries are replaced and never leave: behind a free place is none */
    }
    return NULL;
}

/* ---- spaces of eager calls */

static void fill_operand(rp__space_access *a, const rp_tensor *t) {
    a->base = rp__tensor_data(t);
    a->iota_base = 0;
    a->storage = t->storage;
    rp__tensor_byte_range(t, &a->begin, &a->end);
}

/* A contiguous call of a pointwise op with a recipe: one dim, elements one after the other, or one value. The addresses of its
   operands; an iota has none. */
static bool fill_flat(const entry *e, const rp__call *call, rp__flat *f) {
    const rp_tensor *out = call->out[0];
    f->still = 0;
    for (unsigned i = 0; i < e->n_accesses; i++) {
        f->base[i] = NULL;
        if (e->access[i].kind == SRC_IOTA) continue; /* the recipe holds linear numbers only */
        const rp_tensor *t = access_tensor(call, &e->access[i]);
        bool same = t->ndim == out->ndim, dense = true;
        uint64_t expected = 1;
        for (unsigned d = t->ndim; same && d-- > 0; expected *= (uint64_t)t->size[d]) {
            same = rp__dim_same_word(t->size[d], out->size[d]);
            dense = dense && (uint64_t)t->stride[d] == expected;
        }
        if (same) {
            if (RP__UNLIKELY(!dense) && !rp__tensor_contiguous(t)) return false; /* strides of sizes 1 do not matter */
        } else if (t->ndim == 0) {
            f->still |= UINT64_C(1) << i;
        } else {
            return false;
        }
        f->base[i] = rp__tensor_data(t);
    }
    return true;
}

/* The same as a space. */
static void flat_space(const entry *e, const rp__call *call, const rp__flat *f, rp__space *space,
                       rp__space_access *accesses) {
    for (unsigned i = 0; i < e->n_accesses; i++) {
        rp__space_access *a = &accesses[i];
        const bool still = f->still >> i & 1u;
        a->base = f->base[i];
        a->iota_base = 0;
        a->storage = NULL;
        a->begin = a->end = 0;
        a->stride[0] = !still;
        if (e->access[i].kind == SRC_IOTA) continue;
        const rp_tensor *t = access_tensor(call, &e->access[i]);
        int64_t bytes = (int64_t)rp__dtype_bytes((rp_dtype)t->dtype);
        a->storage = t->storage;
        a->begin = t->offset * bytes;
        a->end = a->begin + (still ? 1 : f->n) * bytes;
    }
    *space = (rp__space){.dims = {1},
                         .extent = {f->n},
                         .n_accesses = e->n_accesses,
                         .n_scalars = e->n_scalars,
                         .accesses = accesses,
                         .scalars = f->scalars,
                         .op = call->op->name,
                         .site = call->site};
}

/* Stride of tensor t along dim d of a space of rank n to whose sizes it broadcasts. */
static int64_t broadcast_stride(const rp_tensor *t, const rp_dim *size, unsigned n, unsigned d) {
    int td = (int)d - (int)(n - t->ndim);
    return td < 0 || (rp__dim_same_word(t->size[td], 1) && !rp__dim_same_word(size[d], 1)) ? 0 : t->stride[td];
}

/* Strides, by logical dim, of an output of a ROWS op: along inner dims it may have size 1 or no dim at all. */
static void rows_strides(const rp__lower *lw, const rp_tensor *t, int64_t *stride) {
    unsigned td = 0;
    for (unsigned d = 0; d < lw->ndim; d++) {
        bool inner = lw->inner >> d & 1u;
        if (t->ndim == lw->ndim)
            stride[d] = broadcast_stride(t, lw->size, lw->ndim, d);
        else
            stride[d] = inner ? 0 : t->stride[td++];
    }
}

static void fill_strides(const rp__lower *lw, const source *s, int64_t *stride) {
    if (s->kind == SRC_EXPLICIT_IN || s->kind == SRC_EXPLICIT_OUT || s->kind == SRC_PLACES) {
        memcpy(stride, lw->stride[s->slot], lw->ndim * sizeof *stride);
    } else if (s->kind == SRC_IOTA) {
        int64_t step = 1;
        for (unsigned d = lw->ndim; d-- > 0;) {
            stride[d] = s->index == RP__IOTA_DIM ? d == s->slot : step;
            step *= lw->size[d];
        }
    } else {
        const rp_tensor *t = access_tensor(lw->call, s);
        if (s->axes == RP__ALONG_ROWS || (s->kind == SRC_OUT && lw->call->op->lowering == RP__ROWS)) {
            rows_strides(lw, t, stride);
        } else {
            for (unsigned d = 0; d < lw->ndim; d++) stride[d] = broadcast_stride(t, lw->size, lw->ndim, d);
        }
    }
}

/* The access from the other end of its inner dims. */
static void reverse_access(const rp__lower *lw, const source *s, rp__space_access *a, int64_t *stride) {
    int64_t reach = 0;
    for (unsigned d = 0; d < lw->ndim; d++) {
        if (!(lw->inner >> d & 1u)) continue;
        if (rp__dim_number(lw->size[d]) > 0) reach += (lw->size[d] - 1) * stride[d];
        stride[d] = -stride[d];
    }
    if (s->kind == SRC_IOTA)
        a->iota_base += reach;
    else
        a->base = (char *)a->base + reach * (int64_t)rp__dtype_bytes((rp_dtype)access_tensor(lw->call, s)->dtype);
}

/* Outer dims first, each group in logical order. */
static void fill_space(const rp__lower *lw, rp__space *space, rp__space_access *accesses) {
    unsigned order[RP_MAX_DIMS], n = 0;
    for (unsigned d = 0; d < lw->ndim; d++) {
        if (!(lw->inner >> d & 1u)) order[n++] = d;
    }
    const unsigned n_outer = n;
    for (unsigned d = 0; d < lw->ndim; d++) {
        if (lw->inner >> d & 1u) order[n++] = d;
    }
    space->dims[0] = (uint8_t)n_outer;
    space->dims[1] = (uint8_t)(n - n_outer);
    for (unsigned d = 0; d < n; d++) space->extent[d] = lw->size[order[d]];
    for (unsigned k = 0; k < lw->n_windows; k++) {
        const rp__lw_window *w = &lw->windows[k];
        space->windows[k] =
            (rp__space_window){.size = w->size, .stride = w->stride, .pad = w->pad, .divisor = w->divisor};
        for (unsigned d = 0; d < n; d++) space->windows[k].factor[d] = w->factor[order[d]];
    }
    for (unsigned i = 0; i < lw->n_accesses; i++) {
        int64_t stride[RP_MAX_DIMS];
        const source *s = &lw->access[i];
        if (access_kind(s) == RP__ACCESS_IOTA)
            accesses[i] = (rp__space_access){.base = NULL};
        else
            fill_operand(&accesses[i], access_tensor(lw->call, s));
        fill_strides(lw, s, stride);
        if (lw->reversed) reverse_access(lw, s, &accesses[i], stride);
        for (unsigned d = 0; d < n; d++) accesses[i].stride[d] = stride[order[d]];
    }
}

static bool nothing_to_do(const rp__lower *lw) {
    for (unsigned d = 0; d < lw->ndim; d++) {
        if (rp__dim_same_word(lw->size[d], 0) && !(lw->inner >> d & 1u)) return true;
    }
    return false;
}

/* ---- the eager driver */

static rp__dag *build(rp__lower *lw) {
    rp__dag_builder *b = rp__dag_new();
    if (!b) return NULL;
    begin_pass(lw, b);
    lw->call->op->rule.lower(lw);
    if (lw->status != RP_OK) {
        rp__dag_abandon(b);
        return NULL;
    }
    return rp__dag_finish(b);
}

/* In builds with assertions a kernel that is found by its key is made again: a lowering that branches on what is in no key would
   be launched as another call's kernel. DAGs are interned, so that equal ones are one. */
static void check_key(const rp__call *call, rp__device *d, rp_stream *s, const rp__dag *dag) {
#ifndef NDEBUG
    rp__lower lw = {.call = call, .status = RP_OK, .device = d, .stream = s};
    rp__dag *again = build(&lw);
    assert(again == dag || !again);
    rp__dag_release(again);
#else
    (void)call, (void)d, (void)s, (void)dag;
#endif
}

/* Puts a new DAG into the cache, which then owns the reference: at the first free place, or one of its own in turn. */
static void remember(lowered *cache, unsigned place, const rp__lower *lw, const uint64_t key[KEY_WORDS], rp__dag *dag) {
    unsigned at = 0;
    while (at < CACHE_TRIES && cache->entries[(place + at) % CACHE_PLACES].dag) at++;
    if (at == CACHE_TRIES) at = (unsigned)(cache->built % CACHE_TRIES);
    entry *e = &cache->entries[(place + at) % CACHE_PLACES];
    rp__dag_release(e->dag);
    memcpy(e->key, key, sizeof e->key);
    memcpy(e->structural, lw->structural, lw->n_structural * sizeof *e->structural);
    e->dag = dag;
    e->n_structural = lw->n_structural;
    e->n_accesses = (uint8_t)lw->n_accesses;
    e->n_scalars = (uint8_t)lw->n_scalars;
    e->recipe = lw->call->op->lowering == RP__POINTWISE && lw->n_structural == 0 && lw->n_draws == 0 &&
                lw->n_explicit == 0 && lw->n_accesses <= RECIPE_ACCESSES && lw->n_scalars <= RECIPE_SCALARS;
    e->iota = false;
    for (unsigned i = 0; e->recipe && i < lw->n_accesses; i++) {
        e->access[i] = lw->access[i];
        e->iota = e->iota || lw->access[i].kind == SRC_IOTA;
        e->recipe = lw->access[i].kind != SRC_IOTA || lw->access[i].index == RP__IOTA_LINEAR;
    }
    for (unsigned i = 0; e->recipe && i < lw->n_scalars; i++) {
        e->scalars[i] = lw->scalars[i].from;
        e->recipe = e->scalars[i].kind == RP__SCALAR_ATTR || e->scalars[i].kind == RP__SCALAR_FN;
    }
}

static void keep_launch(const rp__lower *lw, rp__dag *dag, const rp__space *space, rp__kept_launch *keep) {
    if (lw->n_accesses > RP__KEPT_ACCESSES || lw->reversed) return; /* accesses start where operands do */
    keep->n_accesses = (uint8_t)lw->n_accesses;
    for (unsigned i = 0; i < lw->n_accesses; i++) {
        const source *a = &lw->access[i];
        keep->operand[i] = access_kind(a) == RP__ACCESS_IOTA    ? RP__KEPT_NONE
                           : access_kind(a) == RP__ACCESS_WRITE ? (uint8_t)(RP__KEPT_OUT | a->index)
                                                                : a->index;
    }
    keep->ready = lw->device->ops->loops->ready_new(lw->device, dag, space);
}

#ifndef NDEBUG
static uint64_t print_words(uint64_t print, const int64_t *words, size_t n) {
    for (size_t i = 0; i < n; i++) print = rp__hash_mix(print, (uint64_t)words[i]);
    return print;
}

/* Of the kernel, and of all that it is launched with but addresses. */
static uint64_t print_of(const rp__dag *dag, const rp__space *space) {
    const unsigned n = rp__space_dims(space);
    uint64_t print = print_words(rp__hash_mix(dag->key.lo, dag->key.hi), space->extent, n);
    for (unsigned x = 0; x < RP__DAG_MAX_AXES; x++) print = rp__hash_mix(print, space->dims[x]);
    for (unsigned i = 0; i < space->n_accesses; i++) {
        print = print_words(print, space->accesses[i].stride, n);
        print = rp__hash_mix(print, (uint64_t)space->accesses[i].iota_base);
    }
    for (unsigned i = 0; i < dag->n_windows; i++) {
        const rp__space_window *w = &space->windows[i];
        print =
            print_words(print_words(print, (const int64_t[]){w->size, w->stride, w->pad, w->divisor}, 4), w->factor, n);
    }
    for (unsigned i = 0; i < space->n_scalars; i++) {
        const rp_dtype d = rp__dag_scalar_dtype(dag, (uint16_t)i);
        if (d != RP_DTYPE_NONE) print = rp__hash_mix(print, rp__scalar_word(space->scalars[i], d));
    }
    return print;
}
#endif

/* The geometry pass found what the call needs: fill and launch. */
static __attribute__((noinline)) rp_status launch_lowered(rp__lower *lw, lowered *cache, const uint64_t *key,
                                                          rp__kept_launch *keep) {
    const rp__call *call = lw->call;
    rp__space_access accesses[RP__DAG_MAX_ACCESSES];
    rp_scalar scalars[RP__DAG_MAX_SCALARS];
    rp__space_window windows[MAX_WINDOWS];
    rp__space space = {.n_accesses = lw->n_accesses,
                       .n_scalars = lw->n_scalars,
                       .accesses = accesses,
                       .windows = windows,
                       .scalars = scalars,
                       .draw = lw->n_draws ? lw->draw : NULL,
                       .n_draws = lw->n_draws,
                       .op = call->op->name,
                       .site = call->site};
    fill_space(lw, &space, accesses);
    uint64_t row = 1; /* beyond 64 bits only where there are no rows */
    for (unsigned i = 0; i < space.dims[1]; i++) row *= (uint64_t)space.extent[space.dims[0] + i];
    for (unsigned i = 0; i < lw->n_scalars; i++) {
        const rp__lower_scalar *from = &lw->scalars[i].from;
        scalars[i] = from->kind == RP__SCALAR_INNER_EXTENT ? rp_i64((int64_t)row) : rp__lower_scalar_value(from, call);
    }

    const unsigned place = key ? place_of(call->op, key, lw->structural, lw->n_structural) : 0;
    const entry *e = key ? find_entry(cache, place, key, lw->structural, lw->n_structural) : NULL;
    rp__dag *dag;
    if (e) {
        dag = rp__dag_retain(e->dag);
        check_key(call, lw->device, lw->stream, dag);
    } else {
        dag = build(lw);
        if (!dag) return rp_error_status();
        cache->built++;
        if (key) remember(cache, place, lw, key, rp__dag_retain(dag));
    }
    rp__space_collapse(dag, &space, accesses);
#ifndef NDEBUG
    if (keep) keep->print = print_of(dag, &space);
#endif
    const bool look = keep && keep->look;
    rp_status status = look ? RP_OK : rp__loop_launch(lw->device, lw->stream, dag, &space);
    if (keep && !look && status == RP_OK) keep_launch(lw, dag, &space, keep);
    rp__dag_release(dag);
    return status;
}

/* In two frames: each has large arrays, and a thread may have little stack. */
static __attribute__((noinline)) rp_status launch_general(const rp__call *call, rp__device *d, rp_stream *s,
                                                          lowered *cache, const uint64_t *key, rp__kept_launch *keep) {
    rp__lower lw;
    lw.call = call;
    lw.sink = NULL;
    lw.status = RP_OK;
    lw.device = d;
    lw.stream = s;
    begin_pass(&lw, NULL);
    call->op->rule.lower(&lw);
    RP_TRY(lw.status);
    return nothing_to_do(&lw) ? RP_OK : launch_lowered(&lw, cache, key, keep);
}

static __attribute__((noinline)) rp_status launch_space(const entry *e, const rp__call *call, rp__device *d,
                                                        rp_stream *s, const rp__flat *flat) {
    rp__space_access accesses[RECIPE_ACCESSES];
    rp__space space;
    flat_space(e, call, flat, &space, accesses);
    return rp__loop_launch(d, s, e->dag, &space);
}

rp_status rp__lower_launch(const rp__call *call, rp__device *d, rp_stream *s, rp__kept_launch *keep) {
    lowered *cache = cache_get();
    if (RP__UNLIKELY(!cache)) return rp_error_status();
    uint64_t key[KEY_WORDS];
    if (RP__UNLIKELY(!base_key(call, key))) return launch_general(call, d, s, cache, NULL, keep);
    const entry *e = find_entry(cache, place_of(call->op, key, NULL, 0), key, NULL, 0);
    if (!e || !e->recipe || keep) return launch_general(call, d, s, cache, key, keep);

    rp_scalar scalars[RECIPE_SCALARS];
    rp__flat flat = {.n_accesses = e->n_accesses, .n_scalars = e->n_scalars, .scalars = scalars};
    flat.n = rp__tensor_numel(call->out[0]);
    if (flat.n == 0) return RP_OK;
    if (!fill_flat(e, call, &flat)) return launch_general(call, d, s, cache, key, NULL);
    check_key(call, d, s, e->dag);
    for (unsigned i = 0; i < e->n_scalars; i++) scalars[i] = rp__lower_scalar_value(&e->scalars[i], call);
    const rp__loop_backend *loops = d->ops->loops;
    if (loops->launch_flat && !e->iota && RP__LIKELY(!rp__kernel_log_set) && loops->launch_flat(d, s, e->dag, &flat))
        return RP_OK;
    return launch_space(e, call, d, s, &flat);
}
