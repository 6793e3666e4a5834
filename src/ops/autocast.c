/* Autocast: which ops run in a lower precision, which in float32, which in the widest type of their operands:
   PyTorch's lists for CPU and CUDA, by the names of rows. It sees a call before all other layers, casts operands by
   ops, so that gradients go through the casts, and hands the call on with itself out of the way. Casts of parameters
   are kept until autocast ends or the parameter is written; not in a trace, whose graph finds equal casts by itself,
   and not while a stream captures, whose replays must cast anew. What is kept are values: each use has a cast of its own on the
   tape, as it has in a trace and in a capture, so that the gradients of several uses are added up in the parameter's type by all. */
#include "ops/private.h"

#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "device/capture.h"
#include "ops/autocast.h"
#include "ops/execute.h"
#include "ops/grad.h"
#include "ops/ops.h"

typedef enum policy { AS_IT_IS, LOWER, FLOAT32, WIDEST } policy;

static const struct {
    const char *op;
    uint8_t cpu, cuda; /* policy */
} lists[] = {
    {"addbmm", LOWER, LOWER},
    {"addmm", LOWER, LOWER},
    {"addmv", AS_IT_IS, LOWER},
    {"addr", AS_IT_IS, LOWER},
    {"baddbmm", LOWER, LOWER},
    {"bmm", LOWER, LOWER},
    {"chain_matmul", AS_IT_IS, LOWER},
    {"conv1d", LOWER, LOWER},
    {"conv2d", LOWER, LOWER},
    {"conv3d", LOWER, LOWER},
    {"conv_transpose1d", LOWER, LOWER},
    {"conv_transpose2d", LOWER, LOWER},
    {"conv_transpose3d", LOWER, LOWER},
    {"einsum", AS_IT_IS, LOWER},
    {"gru_cell", AS_IT_IS, LOWER},
    {"linalg_multi_dot", AS_IT_IS, LOWER},
    {"linalg_vecdot", LOWER, LOWER},
    {"linear", LOWER, LOWER},
    {"lstm_cell", AS_IT_IS, LOWER},
    {"matmul", LOWER, LOWER},
    {"mm", LOWER, LOWER},
    {"mv", AS_IT_IS, LOWER},
    {"prelu", LOWER, LOWER},
    {"rnn_relu_cell", AS_IT_IS, LOWER},
    {"rnn_tanh_cell", AS_IT_IS, LOWER},
    {"scaled_dot_product_attention", LOWER, LOWER},

    {"acos", AS_IT_IS, FLOAT32},
    {"adaptive_avg_pool3d", FLOAT32, AS_IT_IS},
    {"adaptive_max_pool3d", FLOAT32, AS_IT_IS},
    {"asin", AS_IT_IS, FLOAT32},
    {"avg_pool3d", FLOAT32, AS_IT_IS},
    {"binary_cross_entropy", FLOAT32, AS_IT_IS},
    {"binary_cross_entropy_with_logits", FLOAT32, FLOAT32},
    {"cdist", FLOAT32, FLOAT32},
    {"cosh", AS_IT_IS, FLOAT32},
    {"cosine_embedding_loss", FLOAT32, FLOAT32},
    {"cosine_similarity", AS_IT_IS, FLOAT32},
    {"cross_entropy", FLOAT32, FLOAT32},
    {"ctc_loss", FLOAT32, AS_IT_IS},
    {"cumprod", AS_IT_IS, FLOAT32},
    {"cumsum", AS_IT_IS, FLOAT32},
    {"dist", AS_IT_IS, FLOAT32},
    {"erfinv", AS_IT_IS, FLOAT32},
    {"exp", AS_IT_IS, FLOAT32},
    {"expm1", AS_IT_IS, FLOAT32},
    {"group_norm", AS_IT_IS, FLOAT32},
    {"hinge_embedding_loss", FLOAT32, FLOAT32},
    {"huber_loss", FLOAT32, FLOAT32},
    {"interpolate", AS_IT_IS, FLOAT32},
    {"istft", FLOAT32, FLOAT32}, /* and stft: transforms, which are products here */
    {"kl_div", FLOAT32, FLOAT32},
    {"l1_loss", FLOAT32, FLOAT32},
    {"layer_norm", AS_IT_IS, FLOAT32},
    {"linalg_cholesky", FLOAT32, AS_IT_IS},
    {"linalg_cholesky_ex", FLOAT32, AS_IT_IS},
    {"linalg_eigh", FLOAT32, AS_IT_IS},
    {"linalg_eigvalsh", FLOAT32, AS_IT_IS},
    {"linalg_inv", FLOAT32, AS_IT_IS},
    {"linalg_lstsq", FLOAT32, AS_IT_IS},
    {"linalg_matrix_norm", AS_IT_IS, FLOAT32},
    {"linalg_matrix_norm_str", AS_IT_IS, FLOAT32},
    {"linalg_matrix_rank", FLOAT32, AS_IT_IS},
    {"linalg_qr", FLOAT32, AS_IT_IS},
    {"linalg_solve", FLOAT32, AS_IT_IS},
    {"linalg_svd", FLOAT32, AS_IT_IS},
    {"linalg_svdvals", FLOAT32, AS_IT_IS},
    {"linalg_vector_norm", AS_IT_IS, FLOAT32},
    {"log", AS_IT_IS, FLOAT32},
    {"log10", AS_IT_IS, FLOAT32},
    {"log1p", AS_IT_IS, FLOAT32},
    {"log2", AS_IT_IS, FLOAT32},
    {"log_softmax", AS_IT_IS, FLOAT32},
    {"logsumexp", AS_IT_IS, FLOAT32},
    {"margin_ranking_loss", FLOAT32, FLOAT32},
    {"matrix_trace", FLOAT32, AS_IT_IS},
    {"max_pool3d", FLOAT32, AS_IT_IS},
    {"max_pool3d_with_indices", FLOAT32, AS_IT_IS},
    {"max_unpool1d", FLOAT32, AS_IT_IS},
    {"max_unpool2d", FLOAT32, AS_IT_IS},
    {"max_unpool3d", FLOAT32, AS_IT_IS},
    {"mse_loss", FLOAT32, FLOAT32},
    {"multi_margin_loss", FLOAT32, FLOAT32},
    {"multilabel_margin_loss", FLOAT32, FLOAT32},
    {"nanquantile", FLOAT32, AS_IT_IS},
    {"native_layer_norm", AS_IT_IS, FLOAT32},
    {"nll_loss", FLOAT32, FLOAT32},
    {"norm", AS_IT_IS, FLOAT32},
    {"pdist", AS_IT_IS, FLOAT32},
    {"poisson_nll_loss", FLOAT32, FLOAT32},
    {"pow", AS_IT_IS, FLOAT32},
    {"pow_scalar", AS_IT_IS, FLOAT32},
    {"prod", FLOAT32, FLOAT32},
    {"quantile", FLOAT32, AS_IT_IS},
    {"reciprocal", AS_IT_IS, FLOAT32},
    {"renorm", AS_IT_IS, FLOAT32},
    {"rms_norm", AS_IT_IS, FLOAT32},
    {"rsqrt", AS_IT_IS, FLOAT32},
    {"sinh", AS_IT_IS, FLOAT32},
    {"smooth_l1_loss", FLOAT32, FLOAT32},
    {"soft_margin_loss", FLOAT32, FLOAT32},
    {"softmax", AS_IT_IS, FLOAT32},
    {"softplus", AS_IT_IS, FLOAT32},
    {"stft", FLOAT32, FLOAT32},
    {"sum", AS_IT_IS, FLOAT32},
    {"tan", AS_IT_IS, FLOAT32},
    {"triplet_margin_loss", FLOAT32, FLOAT32},

    {"addcdiv", AS_IT_IS, WIDEST},
    {"addcmul", AS_IT_IS, WIDEST},
    {"atan2", AS_IT_IS, WIDEST},
    {"bilinear", AS_IT_IS, WIDEST},
    {"cat", WIDEST, AS_IT_IS},
    {"cross", AS_IT_IS, WIDEST},
    {"dot", AS_IT_IS, WIDEST},
    {"grid_sampler", FLOAT32, WIDEST},
    {"index_copy", WIDEST, AS_IT_IS},
    {"index_put", AS_IT_IS, WIDEST},
    {"scatter_add", AS_IT_IS, WIDEST},
    {"stack", WIDEST, AS_IT_IS},
    {"tensordot", AS_IT_IS, WIDEST},
    {"vdot", AS_IT_IS, WIDEST},
};

/* The entry of a row, found once: 1 + its number from 1, or 1: in no list. All threads find the same. */
static policy policy_of(const rp__op *op, rp_device_type device) {
    enum { ROWS = 2048 }; /* rows behind them, of the user, are looked for each time */
    static _Atomic uint8_t known[ROWS];
    _Static_assert(sizeof lists / sizeof *lists < UINT8_MAX, "an entry is a byte");
    size_t at = op->index < ROWS ? atomic_load_explicit(&known[op->index], memory_order_relaxed) : 0;
    if (at == 0) {
        at = sizeof lists / sizeof *lists;
        while (at > 0 && strcmp(lists[at - 1].op, op->name) != 0) at--;
        at++;
        if (op->index < ROWS) atomic_store_explicit(&known[op->index], (uint8_t)at, memory_order_relaxed);
    }
    if (at == 1) return AS_IT_IS;
    return (policy)(device == RP_DEVICE_CPU ? lists[at - 2].cpu : lists[at - 2].cuda);
}

/* ---------------------------------------------------------------- casts that are kept */

typedef struct kept {
    rp_tensor *of, *cast; /* retained; the cast has no history */
    uint64_t version;
} kept;

static _Thread_local rp__map *cache; /* by tensor and type; NULL: nothing is kept */

static rp__hash key_of(const rp_tensor *t, rp_dtype dtype) {
    return (rp__hash){rp__hash_mix((uint64_t)(uintptr_t)t, 7 + (uint64_t)dtype), (uint64_t)(uintptr_t)t};
}

static void kept_free(kept *k) {
    rp_release(k->of);
    rp_release(k->cast);
    rp__free(k);
}

static void cache_drop(void) {
    size_t at = 0;
    rp__hash key;
    void *entry;
    if (!cache) return;
    while (rp__map_next(cache, &at, &key, &entry)) kept_free(entry);
    rp__map_free(cache);
    rp__free(cache);
    cache = NULL;
}

/* A parameter: what is cast again and again while it stays as it is. */
static bool is_kept(rp_tensor *t) {
    return (t->flags & RP__T_REQUIRES_GRAD) && t->dtype == RP_F32 && !rp__flags.tracing && !rp__captures_active() &&
           rp_grad_enabled();
}

static rp_tensor *cast_without_history(rp_tensor *t, rp_dtype dtype) {
    const bool old = rp__grad_switch(false);
    rp_tensor *made = rp_to_dtype(t, dtype);
    (void)rp__grad_switch(old);
    return made;
}

/* The value of t in that type: what is kept, or made and kept from now on. */
static rp_tensor *value_of(rp_tensor *t, rp_dtype dtype) {
    const uint64_t version = rp_version(t);
    kept *k = cache ? rp__map_get(cache, key_of(t, dtype)) : NULL;
    if (k && k->version == version) return k->cast;
    rp_tensor *made = cast_without_history(t, dtype);
    if (rp__tensor_is_error(made)) return made;
    if (k) {
        rp_release(k->cast);
        k->cast = rp_retain(made);
        k->version = version;
        return made;
    }
    if (!cache) cache = rp__calloc(1, sizeof *cache);
    k = cache ? rp__calloc(1, sizeof *k) : NULL;
    if (!k) return made;
    *k = (kept){rp_retain(t), rp_retain(made), version};
    if (!rp__map_put(cache, key_of(t, dtype), k)) kept_free(k);
    return made;
}

/* Below autograd, in place of the work of a cast: the result is there. */
typedef struct giver {
    rp__layer layer;
    rp_tensor *result;
} giver;

static rp_status give(rp__layer *self, rp__layer_kind at, rp__call *call) {
    (void)at;
    call->out[0] = ((giver *)(void *)self)->result;
    return RP_OK;
}

static rp_tensor *cast(rp_tensor *t, rp_dtype dtype) {
    if ((rp_dtype)t->dtype == dtype) return t;
    if (!is_kept(t)) return rp_to_dtype(t, dtype);
    rp_tensor *value = value_of(t, dtype);
    if (rp__tensor_is_error(value)) return value;
    giver g = {{give}, rp_detach(value)};
    if (rp__tensor_is_error(g.result)) return g.result;
    rp__layer *below = rp__layer_set(RP__LAYER_TRACE, &g.layer);
    rp_tensor *result = rp_to_dtype(t, dtype);
    (void)rp__layer_set(RP__LAYER_TRACE, below);
    return result;
}

/* ---------------------------------------------------------------- the layer */

static rp_dtype type_for(rp_device_type device) {
    const uint8_t state = rp__flags.autocast;
    return (rp_dtype)(device == RP_DEVICE_CPU ? state & 15 : state >> 4);
}

/* float64 stays what it is. */
static bool is_cast(const rp_tensor *t, rp_device_type device) {
    return t && t->device.type == device && t->dtype != RP_F64 && rp__dtype_is_float((rp_dtype)t->dtype);
}

/* Does the call say of which type its result is? */
static bool names_type(const rp__call *call) {
    const rp__schema *s = &call->op->schema;
    for (unsigned i = 0, at = 0; i < s->n_params; i++) {
        if (s->params[i].kind != RP__PARAM_ATTR) continue;
        if (s->params[i].attr_kind == RP_ATTR_DTYPE && call->attrs[at].v.dtype != RP_DTYPE_NONE) return true;
        at++;
    }
    return false;
}

static rp_dtype widest(const rp__call *call, rp_device_type device) {
    rp_dtype type = RP_DTYPE_NONE;
    for (uint32_t i = 0; i < call->n_in; i++) {
        if (!is_cast(call->in[i], device)) continue;
        const rp_dtype own = (rp_dtype)call->in[i]->dtype;
        type = type == RP_DTYPE_NONE || type == own ? own : RP_F32;
    }
    return type;
}

static rp_status hand_on(rp__layer *self, rp__layer_kind at, rp__call *call) {
    (void)rp__layer_set(at, NULL);
    rp_status status = rp__dispatch_below(at, call);
    (void)rp__layer_set(at, self);
    return status;
}

/* The call with operands of `type`. Casts that no history holds go with the call. */
static rp_status with_casts(rp__layer *self, rp__layer_kind at, rp__call *call, rp_dtype type, rp_device_type device) {
    rp_tensor *cast_in[RP__MAX_IN], *const *given = call->in;
    rp_status status = RP_OK;
    rp__scope_guard guard = rp__scope_guard_begin();
    (void)rp__layer_set(at, NULL);
    for (uint32_t i = 0; i < call->n_in && status == RP_OK; i++) {
        cast_in[i] = is_cast(given[i], device) ? cast(given[i], type) : given[i];
        if (cast_in[i] && rp__tensor_is_error(cast_in[i])) status = rp_error_status();
    }
    (void)rp__layer_set(at, self);
    call->in = cast_in;
    if (status == RP_OK) status = hand_on(self, at, call);
    call->in = given;
    rp__scope_guard_end(guard, call->out, status == RP_OK ? call->n_out : 0);
    return status;
}

static rp_status handle(rp__layer *self, rp__layer_kind at, rp__call *call) {
    rp_device_type device = RP_DEVICE_CPU;
    bool any = false;
    for (uint32_t i = 0; i < call->n_in && !any; i++) {
        if (!call->in[i] || !rp__dtype_is_float((rp_dtype)call->in[i]->dtype)) continue;
        device = call->in[i]->device.type;
        any = true;
    }
    const rp_dtype lower = any ? type_for(device) : RP_DTYPE_NONE;
    const policy p = lower != RP_DTYPE_NONE ? policy_of(call->op, device) : AS_IT_IS;
    rp_dtype type = RP_DTYPE_NONE;
    switch (p) {
    case AS_IT_IS: return rp__dispatch_below(at, call);
    case LOWER: type = lower; break;
    case FLOAT32: type = names_type(call) ? RP_DTYPE_NONE : RP_F32; break;
    case WIDEST: type = widest(call, device); break;
    }
    return type == RP_DTYPE_NONE ? hand_on(self, at, call) : with_casts(self, at, call, type, device);
}

static rp__layer layer = {handle};

uint8_t rp__autocast_switch(uint8_t state) {
    const uint8_t old = rp__flags.autocast;
    rp__flags.autocast = state;
    (void)rp__layer_set(RP__LAYER_AUTOCAST, state ? &layer : NULL);
    return old;
}

rp_dtype rp_set_autocast_at(const char *site, rp_device_type device, rp_dtype dtype) {
    RP__CALLED_FROM(site);
    const rp_dtype old = rp_autocast_dtype(device);
    if ((device != RP_DEVICE_CPU && device != RP_DEVICE_CUDA) ||
        (dtype != RP_DTYPE_NONE && !(rp__dtype_is_valid(dtype) && rp__dtype_is_half(dtype)))) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT,
                       "rp_set_autocast: the device must be a CPU or CUDA, the type float16, bfloat16 or none, not %s",
                       rp_dtype_name(dtype));
        return old;
    }
    const unsigned shift = device == RP_DEVICE_CPU ? 0 : 4;
    (void)rp__autocast_switch((uint8_t)((rp__flags.autocast & ~(15u << shift)) | (unsigned)dtype << shift));
    if (!rp__flags.autocast) cache_drop();
    return old;
}

rp_dtype rp_autocast_dtype(rp_device_type device) { return type_for(device); }
