/* Tensors, storages, scopes. A tensor is a handle: dtype, sizes, strides, an offset into a storage, and what autograd and
   tracing hang on it. Many tensors may share a storage (views). */
#ifndef RP_TENSOR_TENSOR_H
#define RP_TENSOR_TENSOR_H

#include "core/dim.h"
#include "core/dtype.h"
#include "core/flags.h"
#include "device/allocator.h"

typedef struct rp__storage {
    atomic_uint refs;
    rp_device device;
    void *data; /* device address of byte 0; NULL when empty or pending */
    size_t bytes;
    _Atomic uint64_t version;            /* in-place writes */
    const char *writer_op, *writer_site; /* of the last in-place write, for version errors */
    rp__block *block;                    /* its own: ours, or foreign memory with a deleter; NULL: it owns none */
    rp__block *behind;                   /* of the memory that it stands for, which deleter_ctx keeps */
    void (*deleter)(void *ctx);          /* of the library's own */
    void *deleter_ctx;
    bool foreign; /* memory of others: it may lie under another storage as well, and we never give it to anybody */
    bool stable;  /* foreign, but declared to be written and freed through us alone (rp_declare_stable) */
    bool inner;   /* of a program, for good: no tensor's */
    bool sample;  /* the static input of a graphed callable, once */
    /* outputs of replays: stale when *generation != stamp (floor 7) */
    const _Atomic uint64_t *generation;
    uint64_t stamp;
    const char *replay_site; /* of the rp_call whose replay gave the output; a constant string, "": unknown */
    uint64_t id;             /* unique, never reused: keys of guards and liveness checks */
} rp__storage;

rp__storage *rp__storage_new(rp__device *d, rp_stream *s, size_t bytes); /* NULL and a sticky error; refs 1 */
/* Memory that something else keeps; data NULL: a pending storage, whose data (and block) a trace fills in later. The deleter runs
   with the last reference; `behind` is the storage whose memory this is, which ctx keeps (NULL: none). */
rp__storage *rp__storage_wrap(rp_device device, void *data, size_t bytes, const rp__storage *behind,
                              void (*deleter)(void *), void *ctx);
/* Memory of a program. Its deleter (NULL: none) runs when the last reference is gone and all work that uses the memory is done. */
rp__storage *rp__storage_foreign(rp__device *d, void *data, size_t bytes, void (*deleter)(void *), void *ctx);
rp__storage *rp__storage_retain(rp__storage *s);
void rp__storage_release(rp__storage *s);
/* Is it the output of a replay that a later one has overwritten? */
static inline bool rp__storage_is_stale(const rp__storage *s) {
    return RP__UNLIKELY(s->generation != NULL) && atomic_load_explicit(s->generation, memory_order_acquire) != s->stamp;
}
static inline rp__block *rp__storage_block(const rp__storage *s) { return s->block ? s->block : s->behind; }
/* Stream s uses it: it is not used again, or given back to its owner, before s is done. NULL, and memory of others that they keep
   for good, needs no such care. */
static inline rp_status rp__storage_used_by(const rp__storage *s, rp_stream *stream) {
    rp__block *b = s ? rp__storage_block(s) : NULL;
    return b && b->stream != stream ? rp__block_used_by(b, stream) : RP_OK;
}
/* May its owner write or free it unseen? Then graphs copy it. */
static inline bool rp__storage_is_unseen(const rp__storage *s) { return s->foreign && !s->stable; }
void rp__storage_written(rp__storage *s, const char *op, const char *site); /* version + 1 */
/* Do two storages have bytes in common? Only where one of them is memory of others: each of ours is its own. */
static inline bool rp__storage_meets(const rp__storage *a, const rp__storage *b) {
    if (RP__LIKELY(!a->foreign && !b->foreign) || a == b || !a->data || !b->data) return false;
    uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    return x < y + b->bytes && y < x + a->bytes;
}

enum {                          /* rp_tensor.flags */
       RP__T_REQUIRES_GRAD = 1, /* leaf that asks for a gradient */
       RP__T_VIEW = 2,
       RP__T_RETAINS_GRAD = 4,
       RP__T_ERROR = 8,
       RP__T_DETACHED = 16 /* a view that autograd takes for a tensor of its own: result of detach */
};
struct rp_tensor {
    uint32_t
        magic; /* RP__TENSOR_MAGIC, or RP__TENSOR_DEAD after release: the slot keeps op and site for a while; handle.h has both */
    atomic_uint refs;
    atomic_uint retained; /* how many of refs belong to no scope: releasing more than was retained is an error */
    uint8_t dtype, ndim, flags;
    rp_device device;
    rp__storage *storage;           /* never NULL but for the error tensor; its data is NULL while pending in a trace */
    rp_dim offset;                  /* elements from the storage's start */
    struct rp__autograd *autograd;  /* tape entry (floor 4); NULL: none needed */
    struct rp__trace_value *traced; /* the value that a running trace gave it (floor 5); NULL outside */
    const char *op, *site;          /* who made it */
    uint64_t id;                    /* unique, never reused */
    rp_dim size[RP_MAX_DIMS];       /* only [0, ndim) is meaningful */
    rp_dim stride[RP_MAX_DIMS];
};

rp_tensor *rp__tensor_error(void); /* the error tensor: static, never counted, scoped or written */

/* New handles, owned by the innermost scope. Error tensor on failure. */
rp_tensor *rp__tensor_new(rp_dtype dtype, const rp_dim *size, size_t ndim,
                          rp__storage *storage_retained); /* row-major, offset 0; op and site from the frame in force */
/* Bytes of a row-major tensor; false and a sticky error for sizes that no tensor can have. */
bool rp__tensor_bytes(rp_dtype dtype, const int64_t *size, size_t ndim, size_t *bytes);
rp_tensor *rp__tensor_empty(rp__device *d, rp_dtype dtype, const rp_dim *size,
                            size_t ndim); /* with memory; sizes are values */
/* With memory of the stream; all was worked out before. */
typedef struct rp__tensor_form {
    size_t bytes;
    uint8_t dtype, ndim;
    const rp_dim *size, *stride;
} rp__tensor_form;
rp_tensor *rp__tensor_of_form(rp__device *d, rp_stream *s, const rp__tensor_form *form);
/* Any strides and offset; rank and storage are sound. */
rp_tensor *rp__tensor_over(rp_dtype dtype, const rp_dim *size, const rp_dim *stride, size_t ndim, rp_dim offset,
                           rp__storage *storage_retained);
rp_tensor *rp__tensor_view(rp_tensor *base, const rp_dim *size, const rp_dim *stride, size_t ndim,
                           rp_dim offset); /* same storage */
/* One more reference, owned by the innermost scope: what an in-place op does with the argument that it returns. t, or the error
   tensor when out of memory. */
rp_tensor *rp__tensor_enter_scope(rp_tensor *t);
/* A handle with its own reference and no scope, for tapes, programs and internal tables; rp_release frees it. */
rp_tensor *
rp__tensor_unscope(rp_tensor *t); /* takes the scope's reference out of the innermost scope that holds it; returns t */

/* Is the handle usable? Otherwise sets the sticky error (NULL argument, released handle with its op and line, error tensor
   passed on silently) and returns a failure. `what` names the argument. */
rp_status rp__tensor_check(const rp_tensor *t, const char *what);

/* A call writes `out` before it has read all of `in`. Where a program gives one array as both (rp_call(f, &h, 1, &h, 1)),
   `call` is made with `apart`, a copy of `in`, in its place, and its status returned. */
#define RP__LISTS_APART(in, n_in, out, n_out, call)                                                                    \
    do {                                                                                                               \
        uintptr_t in_at = (uintptr_t)(in), out_at = (uintptr_t)(out);                                                  \
        if (RP__UNLIKELY(in_at < out_at + (n_out) * sizeof *(out) && out_at < in_at + (n_in) * sizeof *(in))) {        \
            rp_tensor **apart = rp__list_copy(in, n_in);                                                               \
            rp_status status_apart = apart ? (call) : RP_ERROR_OUT_OF_MEMORY;                                          \
            for (size_t k_apart = 0; !apart && k_apart < (n_out); k_apart++) (out)[k_apart] = rp__tensor_error();      \
            rp__free(apart);                                                                                           \
            return status_apart;                                                                                       \
        }                                                                                                              \
    } while (0)
rp_tensor **rp__list_copy(rp_tensor *const *list, size_t n); /* NULL and a sticky error when out of memory */

/* The released slot is not reused as long as REPRISE_CHECK=1, else for the thread's next RP__QUARANTINE releases. */
enum { RP__QUARANTINE = 64 };

static inline bool rp__tensor_is_error(const rp_tensor *t) { return (t->flags & RP__T_ERROR) != 0; }
static inline char *rp__tensor_data(const rp_tensor *t) /* address of element 0 */
{
    return t->storage && t->storage->data
               ? (char *)t->storage->data + (size_t)t->offset * rp__dtype_bytes((rp_dtype)t->dtype)
               : NULL;
}
rp_dim rp__tensor_numel(const rp_tensor *t);
bool rp__tensor_contiguous(const rp_tensor *t); /* row-major without gaps; size-1 dims and empty tensors do not count */
bool rp__tensor_overlaps_itself(const rp_tensor *t); /* expanded: two indices, one address */
/* Bytes of the storage that the tensor can touch. */
void rp__tensor_byte_range(const rp_tensor *t, int64_t *begin, int64_t *end);
const char *rp__tensor_text(const rp_tensor *t, char buf[RP__SHAPE_TEXT]); /* "float32 (2, 3)" */
/* Makes memory exist and hold the value: computes what a trace left pending. RP_OK for ordinary tensors. Floor 5 installs it. */
rp_status rp__tensor_materialise(rp_tensor *t);
extern rp_status (*rp__materialise_hook)(rp_tensor *t); /* t NULL: everything that this thread's trace left pending */
extern void (*rp__autograd_free_hook)(struct rp__autograd *a); /* floor 4: drops tape references of a dying handle */
extern void (*rp__trace_free_hook)(struct rp__trace_value *v); /* floor 5 */

/* Floor 4: the name that a result's derivative is printed under ("AddBackward0"); NULL for tensors without one. */
extern const char *(*rp__grad_name_hook)(const rp_tensor *t);

/* Internal scopes: what the library makes inside lives in one. Out of memory (a sticky error) gives an id of 0: then what is
   made lives in the scope around, and rp__scope_end does nothing. */
rp_scope rp__scope_begin(void);
void rp__scope_end(rp_scope scope, rp_tensor *const *keep, size_t n);

/* Is t in `scope` or in one that began in it, in this thread? What is older comes in once more where an op hands its operand on: who asks
   whether something was made inside compares ids with rp__unique_id_fresh, too. */
bool rp__scope_holds(rp_scope scope, const rp_tensor *t);

/* For rp_memory_stats. */
void rp__tensor_statistics(uint64_t *root_scope_tensors, uint64_t *live_tensors);

/* The calling thread's free lists and scopes (src/tensor/local.h). */
uint64_t rp__unique_id(void); /* of tensors and storages: rising within a thread, never reused */
/* One above those of all that is there now, and below those of what this thread makes next. */
uint64_t rp__unique_id_fresh(void);

#endif
