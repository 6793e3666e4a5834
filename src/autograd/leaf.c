/* Leaves: requires_grad, .grad, and the node that adds into .grad. Called by programs, and by the engine for every leaf that a
   gradient reaches. */
#include "autograd/tape.h"

#include "ops/private.h"

#include "core/alloc.h"
#include "core/fork.h"
#include "ops/format.h"
#include "ops/grad.h"

/* ---------------------------------------------------------------- the accumulating node */

static rp_tensor *leaf_of(const rp__tape_node *n) { return *(rp_tensor *const *)n->payload; }

static bool same_size(const rp_tensor *a, const rp_tensor *b) {
    bool same = a->ndim == b->ndim;
    for (size_t d = 0; same && d < a->ndim; d++) same = rp__dim_is(RP__DIM_EQ, a->size[d], b->size[d]);
    return same;
}

/* Dims by falling stride; false unless the tensor then is without gaps and overlaps (PyTorch: non-overlapping and dense). */
static bool dense_order(const rp_tensor *t, int64_t *order) {
    size_t n = t->ndim;
    for (size_t d = 0; d < n; d++) {
        size_t k = d;
        for (; k > 0 && rp__dim_is(RP__DIM_LT, t->stride[order[k - 1]], t->stride[d]); k--) order[k] = order[k - 1];
        order[k] = (int64_t)d;
    }
    rp_dim expected = 1;
    for (size_t k = n; k-- > 0;) {
        rp_dim size = t->size[order[k]];
        if (rp__dim_is(RP__DIM_EQ, size, 1)) continue;
        if (!rp__dim_is(RP__DIM_EQ, t->stride[order[k]], expected)) return false;
        expected = rp__dim_apply(RP__DIM_MUL, expected, size);
    }
    return true;
}

/* The layout that PyTorch gives to .grad: the leaf's strides if it is dense, else row-major. */
static bool layout_fits(const rp_tensor *grad, const rp_tensor *leaf) {
    int64_t order[RP_MAX_DIMS];
    if (!dense_order(leaf, order)) return rp__tensor_contiguous(grad);
    for (size_t d = 0; d < leaf->ndim; d++)
        if (rp__dim_is(RP__DIM_NE, leaf->size[d], 1) && !rp__dim_is(RP__DIM_EQ, leaf->stride[d], grad->stride[d]))
            return false;
    return true;
}

static rp_tensor *clone_like(rp_tensor *grad, const rp_tensor *leaf) {
    int64_t order[RP_MAX_DIMS], back[RP_MAX_DIMS];
    if (rp__tensor_contiguous(leaf) || !dense_order(leaf, order)) return rp__row_major_copy(grad);
    for (size_t k = 0; k < leaf->ndim; k++) back[order[k]] = (int64_t)k;
    return rp_permute(rp__row_major_copy(rp_permute(grad, order, leaf->ndim)), back, leaf->ndim);
}

/* grad may become .grad itself: nobody else can see its memory. Values of a trace are shared by their nature. */
static bool own(const rp_tensor *t) {
    return !t->traced && atomic_load_explicit(&t->refs, memory_order_acquire) == 1 && /* the engine's */
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1 && !t->storage->foreign;
}

static rp_status accumulate(rp_tensor *leaf, rp_tensor *grad, bool create_graph) {
    rp__autograd *a = rp__autograd_get(leaf);
    if (!a) return RP_ERROR_OUT_OF_MEMORY;
    rp_tensor *value;
    rp__grad_watch(leaf);
    if (!a->grad)
        value = !create_graph && own(grad) && layout_fits(grad, leaf) ? grad : clone_like(grad, leaf);
    else if (create_graph)
        value = rp_add(a->grad, grad);
    else
        value = rp_add_(a->grad, grad);
    if (rp__tensor_is_error(value)) return rp_error_status();
    if (value == a->grad) return RP_OK;
    rp_tensor *old = a->grad;
    a->grad = rp_retain(value);
    rp__grad_change(leaf);
    if (old) rp_release(old);
    return RP_OK;
}

/* Two threads whose graphs end in the same leaf take turns. */
static rp__mutex accumulate_locks[16] = {RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT,
                                         RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT,
                                         RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT,
                                         RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT};
RP__LOCKS_SURVIVE_FORK(fork_locks, accumulate_locks, 16)

static rp_status accumulate_backward(rp__tape_node *n, rp_tensor *const *grad_out, rp_tensor **grad_in,
                                     bool create_graph) {
    (void)grad_in;
    rp_tensor *leaf = leaf_of(n);
    rp__mutex *lock = &accumulate_locks[leaf->id % 16];
    rp__lock(lock);
    rp_status status = accumulate(leaf, grad_out[0], create_graph);
    rp__unlock(lock);
    return status;
}

static void accumulate_destroy(rp__tape_node *n) {
    rp_tensor *leaf = leaf_of(n);
    rp__autograd *a = leaf->autograd;
    rp__mutex *lock = rp__autograd_lock(a);
    rp__lock(lock);
    if (a->accumulate == n) a->accumulate = NULL;
    rp__unlock(lock);
    rp_release(leaf);
}

const rp__tape_class rp__accumulate_class = {"accumulate", accumulate_backward, NULL, accumulate_destroy};

static bool node_try_retain(rp__tape_node *n) {
    unsigned refs = atomic_load_explicit(&n->refs, memory_order_relaxed);
    while (refs > 0)
        if (atomic_compare_exchange_weak_explicit(&n->refs, &refs, refs + 1, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return true;
    return false;
}

rp_status rp__accumulate_node(rp_tensor *leaf, rp__tape_node **out) {
    rp__autograd *a = rp__autograd_get(leaf); /* there already, but for stand-ins of a trace */
    if (!a) return rp_error_status();
    rp__mutex *lock = rp__autograd_lock(a);
    rp__lock(lock);
    rp__tape_node *n = a->accumulate && node_try_retain(a->accumulate) ? a->accumulate : NULL;
    rp__unlock(lock);
    if (!n) {
        rp__tape_node *made;
        RP_TRY(rp__tape_node_new(&rp__accumulate_class, leaf->op ? leaf->op : "leaf", leaf->site, NULL, 0, &leaf, 1,
                                 sizeof(rp_tensor *), &made));
        *(rp_tensor **)made->payload = rp_retain(leaf);
        rp__lock(lock);
        if (a->accumulate && node_try_retain(a->accumulate))
            n = a->accumulate; /* another thread was faster */
        else
            a->accumulate = made;
        rp__unlock(lock);
        if (n)
            rp__tape_node_release(made);
        else
            n = made;
    }
    *out = n;
    return RP_OK;
}

/* ---------------------------------------------------------------- what programs ask and set */

rp_status rp_set_requires_grad_at(const char *site, rp_tensor *t, bool requires_grad) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__tensor_check(t, "rp_set_requires_grad: the tensor"));
    bool leaf_flag = (t->flags & RP__T_REQUIRES_GRAD) != 0;
    if (leaf_flag == requires_grad && (leaf_flag || !rp__grad_needed(t))) return RP_OK;
    if (!leaf_flag && rp__grad_needed(t)) {
        if (requires_grad) return RP_OK; /* it is a result, and requires one already */
        return rp__fail(
            RP_ERROR_STATE,
            "rp_set_requires_grad: only leaves can be changed; a result of an op that must not pass on a gradient is "
            "made by rp_detach");
    }
    if (requires_grad && !rp__dtype_is_float((rp_dtype)t->dtype))
        return rp__fail(RP_ERROR_DTYPE, "rp_set_requires_grad: only floating types have gradients, not %s",
                        rp_dtype_name((rp_dtype)t->dtype));
    if (!rp__autograd_get(t)) return RP_ERROR_OUT_OF_MEMORY;
    if (requires_grad)
        t->flags |= RP__T_REQUIRES_GRAD;
    else
        t->flags = (uint8_t)(t->flags & ~RP__T_REQUIRES_GRAD);
    rp__grad_change(t);
    return RP_OK;
}

bool rp_requires_grad_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    return rp__tensor_check(t, "rp_requires_grad: the tensor") == RP_OK && rp__grad_needed(t);
}

bool rp_is_leaf_at(const char *site, const rp_tensor *t) {
    RP__CALLED_FROM(site);
    if (rp__tensor_check(t, "rp_is_leaf: the tensor") != RP_OK) return true;
    return (t->flags & RP__T_REQUIRES_GRAD) || !rp__grad_needed(t);
}

rp_tensor *rp_grad_of_at(const char *site, rp_tensor *t) {
    RP__CALLED_FROM(site);
    if (rp__tensor_check(t, "rp_grad_of: the tensor") != RP_OK) return NULL;
    rp__grad_watch(t);
    return t->autograd ? t->autograd->grad : NULL;
}

rp_status rp_set_grad_at(const char *site, rp_tensor *t, rp_tensor *grad) {
    RP__CALLED_FROM(site);
    RP_TRY(rp__tensor_check(t, "rp_set_grad: the tensor"));
    rp__grad_watch(t);
    if (!grad) {
        rp_tensor *old = t->autograd ? t->autograd->grad : NULL;
        if (old) {
            t->autograd->grad = NULL;
            rp__grad_change(t);
            rp_release(old);
        }
        return RP_OK;
    }
    RP_TRY(rp__tensor_check(grad, "rp_set_grad: the gradient"));
    if (grad == t) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_set_grad: a tensor cannot be its own gradient");
    if (!same_size(t, grad) || t->dtype != grad->dtype || !rp__device_equal(t->device, grad->device)) {
        char have[RP__SHAPE_TEXT], want[RP__SHAPE_TEXT];
        return rp__fail(RP_ERROR_SHAPE,
                        "rp_set_grad: the gradient %s does not have the tensor's size, dtype and device: %s",
                        rp__tensor_text(grad, have), rp__tensor_text(t, want));
    }
    rp__autograd *a = rp__autograd_get(t);
    if (!a) return RP_ERROR_OUT_OF_MEMORY;
    rp_tensor *old = a->grad;
    a->grad = rp_retain(grad);
    rp__grad_change(t);
    if (old) rp_release(old);
    return RP_OK;
}
