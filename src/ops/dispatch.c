/* Dispatch: the one entry of every op call, the per-thread chain of layers, and the end of the chain, which infers, allocates
   outputs and hands the call to its lowering. Called by the generated functions, by floors that make calls, and by floor 6 to
   lower one op at a time. It knows lowering kinds, never single ops. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/capture.h"
#include "ops/execute.h"
#include "ops/format.h"
#include "ops/infer.h"
#include "ops/product.h"
#include "ops/repeat.h"
#include "ops/rules.h"
#include "ops/view.h"

/* ---- layers */

typedef struct chain {
    rp__layer *layer[RP__LAYER_COUNT];
    uint16_t mask;    /* bit k: layer k is present */
    uint16_t own;     /* bit k: set by rp__layer_set in this thread; defaults do not touch it */
    uint32_t version; /* of the defaults that were taken over */
} chain;

static RP__TLS_FAST chain chain_;
static _Atomic(rp__layer *) default_layer[RP__LAYER_COUNT];
static atomic_uint default_version;

static void set_layer(chain *c, unsigned kind, rp__layer *layer) {
    c->layer[kind] = layer;
    c->mask = (uint16_t)(layer ? c->mask | 1u << kind : c->mask & ~(1u << kind));
}

static __attribute__((noinline)) void take_defaults(chain *c, uint32_t version) {
    for (unsigned k = 0; k < RP__LAYER_COUNT; k++) {
        if (!(c->own >> k & 1u)) set_layer(c, k, atomic_load(&default_layer[k]));
    }
    c->version = version;
}

static inline chain *chain_get(void) {
    chain *c = &chain_;
    uint32_t version = atomic_load_explicit(&default_version, memory_order_acquire);
    if (RP__UNLIKELY(c->version != version)) take_defaults(c, version);
    return c;
}

rp__layer *rp__layer_set(rp__layer_kind kind, rp__layer *layer) {
    chain *c = chain_get();
    rp__layer *old = c->layer[kind];
    set_layer(c, kind, layer);
    c->own |= (uint16_t)(1u << kind);
    return old;
}

void rp__layer_default(rp__layer_kind kind, rp__layer *layer) {
    atomic_store(&default_layer[kind], layer);
    atomic_fetch_add(&default_version, 1);
}

/* A composite is expanded above autograd: the calls that it makes are differentiated, traced and fused, not it. What it makes
   on the way lives in a scope of its own. */
static rp_status expand(rp__call *call) {
    rp__scope_guard guard = rp__scope_guard_begin();
    rp_status status = call->op->rule.expand(call);
    rp__scope_guard_end(guard, call->out, status == RP_OK ? call->n_out : 0);
    return status;
}

/* Layers [from, ...), then execution. */
static inline rp_status descend(rp__call *call, unsigned from) {
    const chain *c = chain_get();
    uint32_t mask = c->mask & (~0u << from);
    if (call->op->lowering == RP__COMPOSITE && from <= RP__LAYER_AUTOGRAD && !(mask & ((1u << RP__LAYER_AUTOGRAD) - 1)))
        return expand(call);
    if (RP__LIKELY(mask == 0)) return rp__execute(call);
    unsigned k = (unsigned)__builtin_ctz(mask);
    return c->layer[k]->handle(c->layer[k], (rp__layer_kind)k, call);
}

rp_status rp__dispatch_below(rp__layer_kind at, rp__call *call) { return descend(call, (unsigned)at + 1); }

/* ---- handles */

static const rp__param *tensor_param(const rp__call *call, uint32_t flat) {
    const rp__schema *s = &call->op->schema;
    for (unsigned i = 0, t = 0; i < s->n_params; i++) {
        if (s->params[i].kind == RP__PARAM_ATTR) continue;
        if (flat >= call->list_begin[t] && flat < call->list_begin[t + 1]) return &s->params[i];
        t++;
    }
    return NULL;
}

static inline bool usable(const rp_tensor *t) {
    return RP__LIKELY(t != NULL) && RP__LIKELY(t->magic == RP__TENSOR_MAGIC) && RP__LIKELY(!(t->flags & RP__T_ERROR)) &&
           RP__LIKELY(!rp__storage_is_stale(t->storage));
}

static __attribute__((noinline)) rp_status check_handle(const rp__call *call, uint32_t k) {
    const rp__param *p = tensor_param(call, k);
    const bool absent =
        !call->in[k] && p && (p->kind == RP__PARAM_OPTIONAL_TENSOR || p->optional); /* of a list's, too */
    if (absent) return RP_OK;
    rp_status status = rp__tensor_check(call->in[k], p ? p->name : "tensor");
    if (status != RP_OK) return status;
    /* A sound handle that the fast test does not know would be a defect of one of the two tests. */
    return usable(call->in[k]) ? RP_OK : rp__op_error(call, RP_ERROR_STATE, "argument %u is not a usable tensor", k);
}

static __attribute__((noinline)) void fail_outputs(rp__call *call) {
    for (uint32_t k = 0; k < call->n_out; k++) call->out[k] = rp__tensor_error();
}

/* An attribute with a word below RP__DIM_SYMBOL_LIMIT: a symbol of this thread's trace where the schema says SymInt, None of an
   optional integer, or nothing that a caller may pass. */
static __attribute__((noinline)) rp_status check_words(const rp__call *call, uint32_t k) {
    const rp__schema *s = &call->op->schema;
    const rp_attr *a = &call->attrs[k];
    const rp__param *p = NULL;
    for (unsigned i = 0, at = 0; i < s->n_params && !p; i++) {
        if (s->params[i].kind == RP__PARAM_ATTR && at++ == k) p = &s->params[i];
    }
    if (a->kind ==
        RP_ATTR_SCALAR) { /* any number; a word of the trace in force is a symbol, where a Scalar may be one */
        const bool number = a->v.scalar.kind == RP_SCALAR_SYM_F64;
        if (rp__scalar_is_symbol(a->v.scalar) && !rp__num_known(a->v.scalar))
            return rp__op_error(call, RP_ERROR_STATE,
                                "%s is a symbolic size of another trace, or of one that has ended",
                                p ? p->name : "an attribute");
        if (!number && (a->v.scalar.v.i == INT64_MIN || !rp__dim_known(a->v.scalar.v.i))) return RP_OK;
        if (p && (p->type == RP__TYPE_PLAIN || (number && p->type == RP__TYPE_FLOAT))) return RP_OK;
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "%s is a symbolic size, and must be a number: rp_sym_guard_int gives it",
                            p ? p->name : "an attribute");
    }
    const int64_t *words = a->kind == RP_ATTR_INT ? &a->v.i : a->v.ints;
    for (size_t i = 0; i < (a->kind == RP_ATTR_INT ? 1 : a->n); i++) {
        if (!rp__dim_is_symbol(words[i]) || (p && p->optional && words[i] == INT64_MIN)) continue;
        if (rp__dim_known(words[i])) {
            if (!p || p->symbolic) continue;
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "%s is a symbolic size, and must be a number: rp_sym_guard_int gives it", p->name);
        }
        return rp__op_error(
            call, RP_ERROR_INDEX,
            "%s is %lld, out of range: whole numbers begin at %lld, and the symbolic sizes of a trace are "
            "for its own calls only",
            p ? p->name : "an attribute", (long long)words[i], (long long)RP__DIM_SYMBOL_LIMIT);
    }
    return RP_OK;
}

/* The parameter of attribute k. */
static const rp__param *attr_param(const rp__call *call, uint32_t k) {
    const rp__schema *s = &call->op->schema;
    for (unsigned i = 0, at = 0; i < s->n_params; i++) {
        if (s->params[i].kind == RP__PARAM_ATTR && at++ == k) return &s->params[i];
    }
    return NULL;
}

/* What PyTorch has and this library has not yet, of the types that an attribute may have beyond its kind. */
static __attribute__((noinline)) rp_status check_typed(const rp__call *call) {
    for (uint32_t k = 0; k < call->n_attrs; k++) {
        const rp__param *p = attr_param(call, k);
        const rp_attr *a = &call->attrs[k];
        if (!p || p->type == RP__TYPE_PLAIN || rp__attr_is_none(a)) continue;
        switch ((rp__param_type)p->type) {
        case RP__TYPE_LAYOUT:
            if (a->v.i != RP_STRIDED)
                return rp__op_error(call, RP_ERROR_UNAVAILABLE, "%s: only strided tensors are supported", p->name);
            break;
        case RP__TYPE_MEMORY_FORMAT: break; /* format.c */
        case RP__TYPE_BOOL:
            if (a->v.scalar.v.b && strcmp(p->name, "pin_memory") == 0)
                return rp__op_error(call, RP_ERROR_UNAVAILABLE,
                                    "%s: page-locked tensors come from rp_empty_pinned and rp_pin_memory", p->name);
            break;
        case RP__TYPE_DEVICE: {
            rp_device own = call->n_in && call->in[0] ? call->in[0]->device : rp_default_device();
            if (a->v.i != rp__device_word(own))
                return rp__op_error(
                    call, RP_ERROR_UNAVAILABLE,
                    "%s: another device than %s is not supported yet; see rp_set_default_device and rp_to_device",
                    p->name, call->n_in ? "the operand's" : "the thread's default");
            break;
        }
        case RP__TYPE_FLOAT:
        case RP__TYPE_PLAIN: break;
        }
    }
    return RP_OK;
}

static inline bool words_are_values(const rp_attr *a) {
    if (a->kind == RP_ATTR_INT) return !rp__dim_is_symbol(a->v.i);
    if (a->kind == RP_ATTR_SCALAR) {
        const rp_scalar s = a->v.scalar;
        return !(rp__scalar_is_symbol(s) || (s.kind == RP_SCALAR_I64 && rp__dim_is_symbol(s.v.i)));
    }
    for (size_t i = 0; a->kind == RP_ATTR_INTS && i < a->n; i++) {
        if (rp__dim_is_symbol(a->v.ints[i])) return false;
    }
    return true;
}

enum { MAX_LIST = 1 << 16 }; /* numbers in an attribute: more is a count that went wrong */

static __attribute__((noinline)) rp_status bad_attr(const rp__call *call, uint32_t k) {
    if (call->attrs[k].kind == RP_ATTR_GENERATOR)
        return rp__handle_refuse(call->attrs[k].v.generator, RP__HANDLE_GENERATOR, "generator");
    const rp__param *p = attr_param(call, k);
    if (rp__attr_is_none(&call->attrs[k]) && call->attrs[k].kind != RP_ATTR_INTS) {
        if (p && p->optional) return RP_OK;
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s may not be None", p ? p->name : "an attribute");
    }
    if (call->attrs[k].kind == RP_ATTR_INTS && call->attrs[k].n > MAX_LIST)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "attribute %u is a list of %zu numbers", k,
                            call->attrs[k].n);
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                        call->attrs[k].kind == RP_ATTR_INTS ? "attribute %u is a list without values"
                                                            : "attribute %u is a scalar of no known kind",
                        k);
}

/* Of a call with words in Scalars: below, they say that they are symbols. User ops get numbers, and the trace a guard. */
static __attribute__((noinline)) rp_status descend_symbols(rp__call *call) {
    const rp_attr *given = call->attrs;
    rp_attr attrs[RP__MAX_PARAMS];
    for (uint32_t k = 0; k < call->n_attrs; k++) {
        attrs[k] = given[k];
        rp_scalar *s = &attrs[k].v.scalar;
        if (attrs[k].kind != RP_ATTR_SCALAR || (s->kind != RP_SCALAR_I64 && !rp__scalar_is_symbol(*s))) continue;
        if (!rp__scalar_is_symbol(*s) && rp__dim_is_symbol(s->v.i) && s->v.i != INT64_MIN && rp__dim_known(s->v.i))
            s->kind = RP_SCALAR_SYM;
        if (call->op->lowering == RP__USER) *s = rp__scalar_value(*s);
    }
    call->attrs = attrs;
    rp_status status = descend(call, 0);
    call->attrs = given;
    return status;
}

rp_status rp__dispatch(rp__call *call) {
    assert(call->n_attrs == call->op->schema.n_attrs); /* keys of calls hold all of them */
    rp__site_frame frame = rp__site_push(call->site, call->op->name);
    call->site = rp__site();
    const uint64_t failures = rp__error_count();
    bool symbols = false;
    rp_status status = RP_OK;
    for (uint32_t k = 0; k < call->n_in && status == RP_OK; k++) {
        if (RP__UNLIKELY(!usable(call->in[k]))) status = check_handle(call, k);
    }
    for (uint32_t k = 0; k < call->n_attrs && status == RP_OK; k++) {
        const rp_attr *a = &call->attrs[k];
        if (RP__UNLIKELY((a->kind == RP_ATTR_INTS && a->n && (!a->v.ints || a->n > MAX_LIST)) ||
                         (a->kind == RP_ATTR_SCALAR && (unsigned)a->v.scalar.kind - 1u > RP_SCALAR_SYM_F64 - 1u) ||
                         (a->kind == RP_ATTR_STRING && !a->v.string) ||
                         (a->kind == RP_ATTR_GENERATOR && a->v.generator &&
                          !rp__handle_is(a->v.generator, RP__HANDLE_GENERATOR))))
            status = bad_attr(call, k);
        else if (RP__UNLIKELY(!words_are_values(a))) {
            status = check_words(call, k);
            symbols = symbols || a->kind == RP_ATTR_SCALAR;
        }
    }
    if (RP__UNLIKELY(call->op->schema.typed) && status == RP_OK) status = check_typed(call);
    if (RP__LIKELY(status == RP_OK)) status = RP__UNLIKELY(symbols) ? descend_symbols(call) : descend(call, 0);
    /* Sizes that overflow in an expansion or a lowering are told by the sticky error alone. */
    if (RP__LIKELY(status == RP_OK)) status = rp__status_since(failures);
    if (RP__UNLIKELY(status != RP_OK)) fail_outputs(call);
    rp__site_pop(frame);
    return status;
}

/* ---- messages */

enum { OPERANDS_TEXT = 384 };

/* " (float32 (2, 3), none)"; "" for a call without operands. */
static const char *operands_text(const rp__call *call, char text[OPERANDS_TEXT]) {
    char one[RP__SHAPE_TEXT];
    const size_t room = OPERANDS_TEXT - 8; /* for the end */
    size_t used = 0;
    text[0] = 0;
    for (uint32_t k = 0; k < call->n_in; k++) {
        const char *t = !call->in[k] ? "none" : rp__tensor_text(call->in[k], one);
        int n = snprintf(text + used, room - used, "%s%s", k ? ", " : " (", t);
        if (n < 0 || (size_t)n >= room - used || k == 8) {
            (void)snprintf(text + used, OPERANDS_TEXT - used, ", ...");
            used += strlen(text + used);
            break;
        }
        used += (size_t)n;
    }
    if (used) (void)snprintf(text + used, OPERANDS_TEXT - used, ")");
    return text;
}

rp_status rp__op_error(const rp__call *call, rp_status status, const char *format, ...) {
    char text[512], operands[OPERANDS_TEXT];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return rp__fail(status, "%s: %s%s", call->op->name, text, operands_text(call, operands));
}

/* ---- inference */

/* The device of a call: that of its tensors; a 0-d CPU tensor goes along with any. Factories use the thread's default. */
static rp_status call_device(const rp__call *call, rp_device *out) {
    const rp_tensor *first = NULL;
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *t = call->in[k];
        if (!t) continue;
        if (!first) {
            first = t;
        } else if (!rp__device_equal(first->device, t->device)) {
            char a[24], b[24];
            if (first->ndim == 0 && first->device.type == RP_DEVICE_CPU)
                first = t;
            else if (t->ndim != 0 || t->device.type != RP_DEVICE_CPU)
                return rp__op_error(
                    call, RP_ERROR_DEVICE,
                    "Expected all tensors to be on the same device, but found at least two devices, %s and %s",
                    rp__device_text(first->device, a), rp__device_text(t->device, b));
        }
    }
    *out = first ? first->device : rp_default_device();
    return RP_OK;
}

/* A rule need not look after overflows: rp__dim_apply reports them and goes on with 0, which is found here. So is a result whose
   elements or bytes cannot be counted; no kernel, view or allocation meets one. */
static __attribute__((noinline)) rp_status refuse_result(const rp__call *call, uint32_t k, const rp__meta *meta,
                                                         bool failed) {
    char size[RP__SHAPE_TEXT];
    if (failed) { /* the arithmetic named its numbers; the operands are added */
        char operands[OPERANDS_TEXT];
        return rp__fail_context("the result of %s was sized%s", call->op->name, operands_text(call, operands));
    }
    return rp__op_error(call, RP_ERROR_SHAPE, "result %u of size %s is too large: its bytes cannot be counted", k,
                        rp__shape_text(meta->size, meta->ndim, size));
}

static inline rp_status check_result(const rp__call *call, uint32_t k, const rp__meta *meta, uint64_t failures) {
    if (RP__UNLIKELY(rp__error_count() != failures)) {
        /* An error that was there before stays; this call's is only counted. */
        return refuse_result(call, k, meta, true);
    }
    int64_t bytes = (int64_t)rp__dtype_bytes(meta->dtype);
    bool fits = true, empty = false;
    for (unsigned d = 0; d < meta->ndim; d++) {
        if (rp__dim_is_symbol(meta->size[d])) continue;
        const int64_t size = rp__dim_number(meta->size[d]);
        if (RP__UNLIKELY(size <= 0)) {
            fits = fits && size == 0;
            empty = true;
        } else {
            fits = rp__mul_i64(bytes, size, &bytes) && fits;
        }
    }
    if (RP__LIKELY(fits)) return RP_OK;
    if (empty) { /* whatever its other sizes are */
        bool negative = false;
        for (unsigned d = 0; d < meta->ndim; d++)
            negative = negative || (!rp__dim_is_symbol(meta->size[d]) && rp__dim_number(meta->size[d]) < 0);
        if (!negative) return RP_OK;
    }
    return refuse_result(call, k, meta, false);
}

rp_status rp__op_view(const rp__call *call, rp__meta *out, rp__view *view) {
    uint64_t failures = rp__error_count();
    RP_TRY(rp__call_view_map(call, view));
    RP_TRY(rp__call_view_place(call, view));
    const rp_tensor *base = call->in[0];
    out->dtype = (rp_dtype)base->dtype;
    out->device = base->device;
    out->ndim = view->ndim;
    out->order = RP__ROW_MAJOR; /* it has its strides */
    memcpy(out->size, view->size, view->ndim * sizeof *view->size);
    return check_result(call, 0, out, failures);
}

rp_status rp__op_infer(const rp__call *call, rp__meta *out) {
    if (call->op->lowering == RP__VIEW) {
        rp__view view;
        return rp__op_view(call, out, &view);
    }
    if (!call->op->infer)
        return rp__op_error(call, RP_ERROR_INTERNAL, "an op that is expanded has no shape rule of its own");
    if (call->n_out > 0) {
        RP_TRY(call_device(call, &out[0].device));
        for (uint32_t k = 1; k < call->n_out; k++) out[k].device = out[0].device;
    }
    uint64_t failures = rp__error_count();
    for (uint32_t k = 0; k < call->n_out; k++) out[k].order = RP__ROW_MAJOR;
    RP_TRY(call->op->infer(call, out));
    for (uint32_t k = 0; k < call->n_out; k++) RP_TRY(check_result(call, k, &out[k], failures));
    return rp__call_format(call, out);
}

/* ---- overlap of memory that is written */

typedef enum overlap { OVERLAP_NONE, OVERLAP_FULL, OVERLAP_PARTIAL, OVERLAP_UNKNOWN } overlap;

/* Where the elements of a tensor lie, in numbers of items; symbols are what they stand for in this call. */
typedef struct extent {
    int64_t size[RP_MAX_DIMS], stride[RP_MAX_DIMS], begin, end; /* begin: element 0, as no stride is negative */
    unsigned ndim;
    bool empty, dense; /* dense: it fills its range, each element once */
} extent;

static extent extent_of(const rp_tensor *t) {
    extent e = {.begin = rp__dim_hint(t->offset), .ndim = t->ndim, .dense = true};
    int64_t numel = 1;
    e.end = e.begin + 1;
    for (unsigned d = 0; d < t->ndim; d++) {
        const int64_t size = e.size[d] = rp__dim_hint(t->size[d]), stride = e.stride[d] = rp__dim_hint(t->stride[d]);
        numel *= size;
        e.end += (size - 1) * stride;
        e.empty = e.empty || size == 0;
        e.dense = e.dense && (stride != 0 || size == 1);
    }
    e.dense = e.dense && e.end - e.begin == numel;
    return e;
}

static bool same_strides(const extent *a, const extent *b) {
    if (a->ndim != b->ndim) return false;
    for (unsigned d = 0; d < a->ndim; d++)
        if (a->size[d] != b->size[d] || (a->size[d] > 1 && a->stride[d] != b->stride[d])) return false;
    return true;
}

/* PyTorch's get_overlap_status, which decides exactly for dense tensors only. */
static overlap overlap_of(const rp_tensor *a, const rp_tensor *b) {
    if (a->storage != b->storage && !rp__storage_meets(a->storage, b->storage)) return OVERLAP_NONE;
    const extent x = extent_of(a), y = extent_of(b);
    if (x.empty || y.empty) return OVERLAP_NONE;
    const int64_t item = (int64_t)rp__dtype_bytes((rp_dtype)a->dtype),
                  other = (int64_t)rp__dtype_bytes((rp_dtype)b->dtype);
    /* What is recorded has no memory yet. */
    const int64_t apart =
        a->storage == b->storage ? 0 : (const char *)b->storage->data - (const char *)a->storage->data;
    if (x.end * item <= y.begin * other + apart || y.end * other + apart <= x.begin * item) return OVERLAP_NONE;
    if (a->dtype == b->dtype && x.begin * item == y.begin * other + apart && same_strides(&x, &y)) return OVERLAP_FULL;
    return x.dense && y.dense ? OVERLAP_PARTIAL : OVERLAP_UNKNOWN;
}

static rp_status check_written(const rp__call *call, const rp_tensor *t) {
    if (rp__tensor_overlaps_itself(t))
        return rp__op_error(
            call, RP_ERROR_INVALID_ARGUMENT,
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation.");
    return RP_OK;
}

/* ---- execution */

/* A copy of t with memory of its own on device d: for inputs that the op would overwrite, and for 0-d CPU operands of CUDA
   ops. */
static rp_tensor *copy_of(rp__device *d, rp_tensor *t) {
    rp_tensor *out = rp__tensor_empty(d, (rp_dtype)t->dtype, t->size, t->ndim);
    if (rp__tensor_is_error(out)) return out;
    rp_stream *s = rp__current_stream(d);
    if (!rp__device_equal(t->device, d->id)) { /* the CPU's stream may still have to write it */
        rp__device *from = rp__device_get(t->device);
        bool copied = from && from->ops->stream_synchronize(from, rp__current_stream(from)) == RP_OK &&
                      d->ops->copy_in(d, s, rp__tensor_data(out), rp__tensor_data(t),
                                      rp__dtype_bytes((rp_dtype)t->dtype)) == RP_OK;
        return copied ? out : rp__tensor_error();
    }
    rp_tensor *in[] = {t}, *outs[] = {out};
    rp__call call = {.op = RP__OP(clone), .site = rp__site(), .in = in, .n_in = 1, .out = outs, .n_out = 1};
    return rp__lower_launch(&call, d, s, NULL) == RP_OK ? out : rp__tensor_error();
}

/* Inputs that cannot be used as they are, replaced in a list of the call's own. */
typedef struct replaced {
    rp_tensor *in[RP__LOWER_MAX_IN];
    rp__call call;
} replaced;

static rp_status replace_input(replaced *r, const rp__call **call, rp__device *d, uint32_t k) {
    if (*call != &r->call) {
        if ((*call)->n_in > RP__LOWER_MAX_IN)
            return rp__op_error(*call, RP_ERROR_INTERNAL, "too many operands for a loop kernel");
        memcpy(r->in, (*call)->in, (*call)->n_in * sizeof *r->in);
        r->call = **call;
        r->call.in = r->in;
        *call = &r->call;
    }
    r->in[k] = copy_of(d, r->in[k]);
    return rp__tensor_is_error(r->in[k]) ? rp_error_status() : RP_OK;
}

/* Outputs of a call: fresh tensors, or the argument that an output is. */
static rp_status allocate(const rp__call *call, rp__device *d, const rp__meta *meta) {
    const rp__schema *schema = &call->op->schema;
    for (uint32_t k = 0; k < call->n_out; k++) {
        if (schema->out_written[k]) {
            call->out[k] = rp__call_written(call, k);
            continue;
        }
        call->out[k] = rp__tensor_of_meta(d, &meta[k]);
        if (rp__tensor_is_error(call->out[k])) return rp_error_status();
    }
    return RP_OK;
}

uint32_t rp__call_written_at(const rp__call *call, uint32_t k) {
    const rp__schema *schema = &call->op->schema;
    for (unsigned i = 0, t = 0; i < schema->n_params; i++) {
        const rp__param *p = &schema->params[i];
        if (p->kind == RP__PARAM_ATTR) continue;
        if (p->written && p->alias == schema->out_alias[k]) return call->list_begin[t];
        t++;
    }
    return UINT32_MAX;
}

rp_tensor *rp__call_written(const rp__call *call, uint32_t k) {
    const uint32_t at = rp__call_written_at(call, k);
    return at < call->n_in ? call->in[at] : rp__tensor_error();
}

/* Every argument that the schema marks as written: no element may be reached twice. */
static rp_status check_all_written(const rp__call *call) {
    const rp__schema *schema = &call->op->schema;
    for (unsigned i = 0, t = 0; i < schema->n_params; i++) {
        if (schema->params[i].kind == RP__PARAM_ATTR) continue;
        if (schema->params[i].written) {
            for (uint32_t k = call->list_begin[t]; k < call->list_begin[t + 1]; k++)
                RP_TRY(check_written(call, call->in[k]));
        }
        t++;
    }
    return RP_OK;
}

static rp_status refuse_partial(const rp__call *call) {
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                        "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                        "single memory location. Please clone() the tensor before performing the operation.");
}

/* A trace serves calls with these numbers. */
static void fix_extent(const rp_tensor *t) {
    (void)rp__dim_value(t->offset);
    for (unsigned d = 0; d < t->ndim; d++) {
        (void)rp__dim_value(t->size[d]);
        (void)rp__dim_value(t->stride[d]);
    }
}

rp_status rp__op_check_written(const rp__call *call) {
    if (call->op->lowering == RP__LIBRARY || call->op->lowering == RP__PRODUCT) return check_all_written(call);
    if (call->op->lowering != RP__POINTWISE && call->op->lowering != RP__ROWS && call->op->lowering != RP__INDEXED)
        return RP_OK;
    const rp_tensor *t = rp__call_written(call, 0);
    if (call->op->functional_op != RP__OP(fill)) RP_TRY(check_written(call, t));
    for (uint32_t k = 0; k < call->n_in; k++) {
        const rp_tensor *x = call->in[k];
        if (!x || x == t || overlap_of(x, t) != OVERLAP_PARTIAL) continue;
        fix_extent(x);
        fix_extent(t);
        return refuse_partial(call);
    }
    return RP_OK;
}

static void mark_all_written(const rp__call *call) {
    const rp__schema *schema = &call->op->schema;
    for (unsigned i = 0, t = 0; i < schema->n_params; i++) {
        if (schema->params[i].kind == RP__PARAM_ATTR) continue;
        if (schema->params[i].written) {
            for (uint32_t k = call->list_begin[t]; k < call->list_begin[t + 1]; k++)
                rp__storage_written(call->in[k]->storage, call->op->name, call->site);
        }
        t++;
    }
}

/* In place: inputs that share memory with the written tensor. The same elements in the same order are read before they are
   written; what PyTorch refuses is refused; what it leaves undefined is read from a copy. */
static rp_status settle_overlaps(replaced *r, const rp__call **call, rp__device *d) {
    rp_tensor *written = rp__call_written(*call, 0);
    for (uint32_t k = 0; k < (*call)->n_in; k++) {
        rp_tensor *t = (*call)->in[k];
        if (!t || t == written) continue;
        overlap o = overlap_of(t, written);
        if (o == OVERLAP_PARTIAL) return refuse_partial(*call);
        if (o == OVERLAP_UNKNOWN) RP_TRY(replace_input(r, call, d, k));
    }
    return RP_OK;
}

/* copy_ is the one op whose tensors may live on two devices: src becomes a contiguous tensor of its dtype beside self. */
static rp_status fetch_source(const rp__call *call, rp__device *d, rp_tensor **src) {
    rp_tensor *t = *src;
    rp__device *from = rp__device_get(t->device);
    if (!from) return rp_error_status();
    RP_TRY(rp__capture_forbid(rp__current_stream(from), "copying to another device"));
    RP_TRY(rp__capture_forbid(rp__current_stream(d), "copying from another device"));
    if (!rp__tensor_contiguous(t)) {
        t = copy_of(from, t);
        if (rp__tensor_is_error(t)) return rp_error_status();
    }
    rp_tensor *here = rp__tensor_empty(d, (rp_dtype)t->dtype, t->size, t->ndim);
    if (rp__tensor_is_error(here)) return rp_error_status();
    size_t bytes = (size_t)rp__tensor_numel(t) * rp__dtype_bytes((rp_dtype)t->dtype);
    *src = here;
    if (bytes == 0) return RP_OK;
    if (from->id.type == RP_DEVICE_CPU) {
        RP_TRY(from->ops->stream_synchronize(from, rp__current_stream(from)));
        return d->ops->copy_in(d, rp__current_stream(d), rp__tensor_data(here), rp__tensor_data(t), bytes);
    }
    if (d->id.type == RP_DEVICE_CPU)
        return from->ops->copy_out(from, rp__current_stream(from), rp__tensor_data(here), rp__tensor_data(t), bytes);
    return rp__op_error(call, RP_ERROR_DEVICE,
                        "a copy between two CUDA devices goes through the CPU: copy there first");
}

/* Equal layouts: the copy is one of bytes, with nothing in between. */
static bool is_copy_of_bytes(const rp_tensor *self, const rp_tensor *src) {
    return self->dtype == src->dtype && rp__same_size(self, src) && rp__tensor_contiguous(self) &&
           rp__tensor_contiguous(src) && (self->device.type == RP_DEVICE_CPU || src->device.type == RP_DEVICE_CPU) &&
           !rp__launch_recorder_now;
}

/* From and to the host. non_blocking, over page-locked memory: behind the call, in the current stream of the other device. */
static rp_status copy_bytes(rp_tensor *self, rp_tensor *src, bool non_blocking) {
    const bool in = src->device.type == RP_DEVICE_CPU;
    rp__device *host = rp__device_get(rp_cpu()), *d = rp__device_get(in ? self->device : src->device);
    if (!host || !d) return rp_error_status();
    rp_stream *s = rp__current_stream(d), *queue = rp__current_stream(host);
    const size_t bytes = (size_t)rp__tensor_numel(self) * rp__dtype_bytes((rp_dtype)self->dtype);
    void *to = rp__tensor_data(self);
    const void *from = rp__tensor_data(src);
    RP_TRY(rp__capture_forbid(queue, in ? "copying to another device" : "copying from another device"));
    RP_TRY(rp__capture_forbid(s, in ? "copying from another device" : "copying to another device"));
    RP_TRY(host->ops->stream_synchronize(host, queue));
    RP_TRY(rp__storage_used_by(in ? self->storage : src->storage, s));
    if (!non_blocking || !bytes || !d->ops->host_is_pinned(d, in ? from : to))
        return in ? d->ops->copy_in(d, s, to, from, bytes) : d->ops->copy_out(d, s, to, from, bytes);
    RP_TRY(rp__storage_used_by(in ? src->storage : self->storage, s));
    return in ? d->ops->copy_in_later(d, s, to, from, bytes) : d->ops->copy_out_later(d, s, to, from, bytes);
}

static rp_status materialise(const rp__call *call) {
    for (uint32_t k = 0; k < call->n_in; k++) {
        rp_tensor *t = call->in[k];
        if (t && RP__UNLIKELY(t->traced != NULL) && !t->storage->data) RP_TRY(rp__tensor_materialise(t));
    }
    return RP_OK;
}

/* fill_ may write expanded memory, every element being the same: it writes each place once. */
static rp_tensor *without_repeats(rp_tensor *t) {
    rp_dim size[RP_MAX_DIMS];
    for (unsigned d = 0; d < t->ndim; d++)
        size[d] = rp__dim_same_word(t->stride[d], 0) && rp__dim_number(t->size[d]) > 1 ? 1 : t->size[d];
    return rp__tensor_view(t, size, t->stride, t->ndim, t->offset);
}

/* Launches; what is found on the way is kept if the call is one to keep and is launched as it is. */
static rp_status launch_loop(const rp__repeat *repeat, const rp__call *call, const rp__call *use, rp__device *d) {
    rp_stream *s = rp__current_stream(d);
    if (RP__LIKELY(!repeat->keep) || use != call || rp__kernel_log_set || !rp__launch_runs_at_once(s))
        return rp__lower_launch(use, d, s, NULL);
    rp__kept_launch keep = {.ready = NULL};
    rp_status status = rp__lower_launch(use, d, s, &keep);
    if (status == RP_OK) rp__repeat_keep(repeat, call, &keep);
    return status;
}

static rp_status run_loop_inplace(rp__call *call, const rp__repeat *repeat) {
    replaced r;
    const rp__call *use = call;
    rp_tensor *self = rp__call_written(call, 0);
    rp__device *d = rp__device_get(self->device);
    if (!d) return rp_error_status();
    rp_status status;
    rp__scope_guard guard = rp__scope_guard_begin();
    if (call->op->functional_op == RP__OP(copy) && !rp__device_equal(call->in[1]->device, self->device) &&
        is_copy_of_bytes(self, call->in[1])) {
        RP_TRY_GOTO(status, done, copy_bytes(self, call->in[1], rp__attr_bool(call, 0)));
        rp__storage_written(self->storage, call->op->name, call->site);
        goto done;
    }
    if (call->n_in == 2 && !rp__device_equal(call->in[1]->device, self->device) &&
        (call->op->functional_op == RP__OP(copy) || call->in[1]->ndim == 0)) {
        r.call = *call;
        r.in[0] = call->in[0];
        r.in[1] = call->in[1];
        r.call.in = r.in;
        use = &r.call;
        RP_TRY_GOTO(status, done, fetch_source(call, d, &r.in[1]));
    }
    rp__meta meta[RP__MAX_OUTS];
    RP_TRY_GOTO(status, done, rp__op_infer(use, meta));
    call->out[0] = self;
    if (call->op->functional_op == RP__OP(fill) && RP__UNLIKELY(rp__tensor_overlaps_itself(self)))
        call->out[0] = without_repeats(self);
    RP_TRY_GOTO(status, done,
                rp__tensor_is_error(call->out[0]) ? rp_error_status() : check_written(call, call->out[0]));
    RP_TRY_GOTO(status, done, settle_overlaps(&r, &use, d));
    RP_TRY_GOTO(status, done, launch_loop(repeat, call, use, d));
    call->out[0] = self;
    rp__storage_written(self->storage, call->op->name, call->site);
done:
    rp__scope_guard_end(guard, NULL, 0);
    if (status == RP_OK) { /* the argument is returned with one more reference */
        call->out[0] = rp__tensor_enter_scope(self);
        status = rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
    }
    return status;
}

static rp_status run_loop(rp__call *call, const rp__repeat *repeat) {
    if (call->op->flags & RP_OP_INPLACE) return run_loop_inplace(call, repeat);
    rp__meta meta[RP__MAX_OUTS];
    RP_TRY(rp__op_infer(call, meta));
    rp__device *d = rp__device_get(meta[0].device);
    if (RP__UNLIKELY(!d)) return rp_error_status();
    RP_TRY(allocate(call, d, meta));
    replaced r;
    const rp__call *use = call;
    for (uint32_t k = 0; k < call->n_in; k++) {
        if (call->in[k] && RP__UNLIKELY(!rp__device_equal(call->in[k]->device, d->id)))
            RP_TRY(replace_input(&r, &use, d, k));
    }
    return launch_loop(repeat, call, use, d);
}

static rp_status run_view(rp__call *call, const rp__repeat *repeat) {
    rp__meta meta;
    rp__view view;
    RP_TRY(rp__op_view(call, &meta, &view));
    call->out[0] = rp__tensor_view(call->in[0], view.size, view.stride, view.ndim, view.offset);
    if (rp__tensor_is_error(call->out[0])) return rp_error_status();
    if (repeat->keep) rp__repeat_keep(repeat, call, NULL);
    return RP_OK;
}

static rp_status run_library(rp__call *call) {
    rp__meta meta[RP__MAX_OUTS];
    RP_TRY(rp__op_infer(call, meta));
    for (uint32_t k = 1; k < call->n_in; k++) {
        if (call->in[k] && call->in[0] && !rp__device_equal(call->in[k]->device, call->in[0]->device))
            return rp__op_error(call, RP_ERROR_DEVICE, "Expected all tensors to be on the same device");
    }
    if (call->n_out > 0) {
        rp__device *d = rp__device_get(meta[0].device);
        if (!d) return rp_error_status();
        RP_TRY(allocate(call, d, meta));
    }
    if (call->op->flags & RP_OP_INPLACE) RP_TRY(check_all_written(call));
    rp__scope_guard guard = rp__scope_guard_begin();
    rp_status status = call->op->lowering == RP__PRODUCT ? rp__product_run(call) : call->op->rule.run(call);
    rp__scope_guard_end(guard, NULL, 0);
    if (status == RP_OK && (call->op->flags & RP_OP_INPLACE)) mark_all_written(call);
    return status;
}

static rp_status run_host(rp__call *call) {
    rp__scope_guard guard = rp__scope_guard_begin();
    rp_status status = call->op->rule.run(call);
    rp__scope_guard_end(guard, call->out, status == RP_OK ? call->n_out : 0);
    return status;
}

/* An op whose result depends on values that the host reads: in a capture there are none yet. */
static __attribute__((noinline)) rp_status check_sync(const rp__call *call) {
    rp_device id;
    RP_TRY(call_device(call, &id));
    if (!rp__op_syncs(call->op, id)) return RP_OK;
    rp__device *d = rp__device_get(id);
    if (!d) return rp_error_status();
    return rp__capture_forbid(rp__current_stream(d), "an op that reads values on the host");
}

static __attribute__((noinline)) rp_status run_anew(rp__call *call, const rp__repeat *repeat) {
    RP_TRY(materialise(call));
    if (RP__UNLIKELY(call->op->flags & RP_OP_SYNC)) RP_TRY(check_sync(call));
    switch (call->op->lowering) {
    case RP__POINTWISE:
    case RP__ROWS:
    case RP__INDEXED: return run_loop(call, repeat);
    case RP__VIEW: return run_view(call, repeat);
    case RP__LIBRARY:
    case RP__PRODUCT: return run_library(call);
    case RP__HOST: return run_host(call);
    case RP__COMPOSITE: return expand(call);
    case RP__USER: return rp__user_run(call);
    }
    return rp__op_error(call, RP_ERROR_INTERNAL, "unknown lowering");
}

rp_status rp__execute(rp__call *call) {
    rp__repeat repeat = {.keep = false};
    rp_status status;
    if (RP__LIKELY(call->op->lowering <= RP__VIEW) && RP__LIKELY(rp__repeat_run(call, &repeat, &status))) return status;
    return run_anew(call, &repeat);
}
