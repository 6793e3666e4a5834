/* reprise.h - record tensor programs and play them back.
 *
 * The manual of the library. Tier 1 (tensors, ops, gradients, compile, graphs) is what a program needs; tier 2 is for
 * those who capture by hand, embed, extend or inspect. Ops are declared in reprise_ops.h, generated from the op table (src/ops);
 * their names, arguments and corner cases are PyTorch's.
 *
 * Conventions
 *   Ownership  A tensor that a function returns belongs to the innermost open scope of the calling thread: it lives until
 *              that scope ends, longer if rp_retain'ed or moved out by rp_scope_end. Arguments are borrowed.
 *   Errors     A failed op returns the error tensor, never NULL; the thread's sticky error keeps the first failure.
 *              Actions return rp_status. Nothing here aborts, exits or prints because of a caller's mistake.
 *   Threads    A tensor may be used by several threads; its metadata changes (requires_grad, in-place ops) are the
 *              caller's to order. Scopes, errors, grad mode, default device and current streams belong to a thread.
 *   Lists      A call may be given one array as its arguments and its results: rp_call(f, &h, 1, &h, 1).
 *   Structs    One that begins with struct_size may grow: RP_OPTIONS fills that in, what a program does not know is zero, and
 *              what the library does not know must be. All others keep their layout for good: rp_fn, rp_scalar, rp_device,
 *              rp_graphed_callable (rp_graphed_options grows), what rp_explain_get and rp_op_info_get fill, layers.
 *   Sizes      dims are (const int64_t *, size_t) pairs, outermost first, in elements; strides are in elements.
 *   Sites      Every op, and every other function that can fail (RP_CALL), is also a macro that passes "file:line" of the call;
 *              errors, explain and dumps name it. What fails later (in a backward, a replay) names the line of the op, or, where
 *              it has none, that of the call it failed in.
 */
#ifndef REPRISE_H
#define REPRISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#if defined(REPRISE_STATIC)
#define RP_API
#elif defined(__GNUC__)
#define RP_API __attribute__((visibility("default")))
#else
#define RP_API
#endif

/* A function that can fail. Beside rp_x(...) there is rp_x_at(site, ...), and rp_x is also a macro that calls it with the place
   of the call; bindings call the function, (rp_x)(...). Declared in reprise_calls.h, which is generated from this file. */
#define RP_CALL RP_API

#ifdef __cplusplus
#include "reprise_cxx.h" /* RP_DIMS, RP_TENSORS, RP_OPTIONS */
extern "C" {
#endif

#define RP_VERSION_MAJOR 0
#define RP_VERSION_MINOR 1
#define RP_VERSION_PATCH 0
#define RP_MAX_DIMS 16 /* rank 0 to 16 */

/* ---------------------------------------------------------------- tier 1: status, errors, call sites */

typedef enum rp_status {
    RP_OK = 0,
    RP_ERROR_INVALID_ARGUMENT = 1, /* a value outside what the function accepts */
    RP_ERROR_SHAPE = 2,            /* sizes, ranks or strides that do not fit */
    RP_ERROR_DTYPE = 3,            /* an element type that the op does not take */
    RP_ERROR_DEVICE = 4,           /* tensors on different devices, or no such device */
    RP_ERROR_OUT_OF_MEMORY = 5,    /* host or device memory */
    RP_ERROR_INDEX = 6,            /* an index outside its dimension, found on the host or by a kernel */
    /* a call in the wrong order: backward twice, capture inside capture, released handle */
    RP_ERROR_STATE = 7,
    RP_ERROR_VERSION = 8,      /* a tensor needed by backward was modified in place */
    RP_ERROR_STALE = 9,        /* the output of a replay that a later replay has overwritten */
    RP_ERROR_CAPTURE = 10,     /* an operation that a stream capture does not permit */
    RP_ERROR_GRAPH_BREAK = 11, /* fullgraph asked for, and the function read a value on the host */
    RP_ERROR_GUARD = 12,       /* arguments differ from what was recorded */
    RP_ERROR_UNAVAILABLE = 13, /* a library, driver or feature that this machine lacks */
    RP_ERROR_COMPILE = 14,     /* a kernel did not compile */
    RP_ERROR_IO = 15,          /* a file: missing, short, malformed, disk full */
    RP_ERROR_DRIVER = 16,      /* a CUDA call failed */
    RP_ERROR_DEVICE_LOST = 17, /* the context died; final, with the first cause */
    RP_ERROR_INTERNAL = 18     /* a defect of Reprise */
} rp_status;

/* "file:line" of the place where it is written. */
#define RP_STRINGIZE_(x) #x
#define RP_STRINGIZE(x) RP_STRINGIZE_(x)
#define RP_HERE (__FILE__ ":" RP_STRINGIZE(__LINE__))

/* The arguments that a call of an op leaves out: rp_sum(x) is rp_sum_at(RP_HERE, x rp_sum_rest_1). At most 40 arguments. */
#define RP_REST(op, ...) RP_REST_1(op, RP_COUNT(__VA_ARGS__))
#define RP_REST_1(op, n) RP_REST_2(op, n)
#define RP_REST_2(op, n) op##_rest_##n
#define RP_COUNT(...)                                                                                                  \
    RP_COUNT_1(__VA_ARGS__, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19,    \
               18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define RP_COUNT_1(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21,     \
                   _22, _23, _24, _25, _26, _27, _28, _29, _30, _31, _32, _33, _34, _35, _36, _37, _38, _39, _40, n,   \
                   ...)                                                                                                \
    n

RP_API const char *rp_version_string(void);          /* "0.1.0" */
RP_API const char *rp_status_name(rp_status status); /* "RP_ERROR_SHAPE" */
RP_API bool rp_failed(void);                         /* does the thread hold a sticky error? */
RP_API rp_status rp_error_status(void);              /* its code, RP_OK without one */
/* op, shapes, call site and hint; "" without one; valid until the thread's next failing call or rp_error_take */
RP_API const char *rp_error_message(void);
RP_API rp_status rp_error_take(void); /* returns the code and clears the error */
/* With a sticky error: writes "what: message" and a newline to `file`, clears the error and returns 1, which main may return; else
   0. `what` may be NULL. */
RP_API int rp_report(FILE *file, const char *what);

/* ---------------------------------------------------------------- tier 1: element types, devices, scalars */

/* numbering is stable; the table is src/core/dtype.def */
typedef enum rp_dtype {
    RP_DTYPE_NONE = 0, /* "not given" where a dtype is optional */
    RP_F32 = 1,
    RP_F64 = 2,
    RP_F16 = 3,
    RP_BF16 = 4,
    RP_I32 = 5,
    RP_I64 = 6,
    RP_U8 = 7,
    RP_BOOL = 8,
    RP_I8 = 9,
    RP_I16 = 10
} rp_dtype;

RP_API const char *rp_dtype_name(rp_dtype dtype); /* "float32" */
RP_API size_t rp_dtype_size(rp_dtype dtype);      /* bytes an element */

typedef enum rp_device_type { RP_DEVICE_CPU = 0, RP_DEVICE_CUDA = 1 } rp_device_type;
typedef struct rp_device {
    rp_device_type type;
    int32_t index;
} rp_device;

RP_API rp_device rp_cpu(void);
RP_API rp_device rp_cuda(int index);
RP_API bool rp_device_available(rp_device device);
RP_API int rp_device_count(rp_device_type type);
RP_CALL rp_status rp_set_default_device(rp_device device); /* of the calling thread; where factories put tensors */
RP_API rp_device rp_default_device(void);
/* Waits for all streams; reports errors found by kernels. While any thread captures on a CUDA device, the driver refuses to wait
   for the whole of it, and that capture becomes invalid: wait for streams then (rp_stream_synchronize). */
RP_CALL rp_status rp_synchronize(rp_device device);

typedef enum rp_scalar_kind {
    RP_SCALAR_NONE = 0,
    RP_SCALAR_I64 = 1,
    RP_SCALAR_F64 = 2,
    RP_SCALAR_BOOL = 3,
    RP_SCALAR_SYM = 4,    /* a symbolic size of a trace, in v.i: what ops make of rp_i64(rp_sym_size(x, 0)) */
    RP_SCALAR_SYM_F64 = 5 /* a number calculated of symbolic sizes, in v.i: what rp_num_div and its like return */
} rp_scalar_kind;
/* a host number, exact; a weak type in promotion, like a Python number */
typedef struct rp_scalar {
    rp_scalar_kind kind;
    union {
        int64_t i;
        double f;
        bool b;
    } v;
} rp_scalar;

RP_API rp_scalar rp_i64(int64_t value); /* rp_i64(0.5) does not compile */
#define rp_i64(value) rp_i64((value) | 0)
RP_API rp_scalar rp_f64(double value);
RP_API rp_scalar rp_bool(bool value);
RP_API rp_scalar
rp_none(void); /* no number: for arguments that PyTorch takes None for, and options that are not given */

/* An optional bool: PyTorch's bool? and bools among options, where "not given" is neither. */
typedef enum rp_tristate { RP_UNSET = 0, RP_TRUE = 1, RP_FALSE = 2 } rp_tristate;
typedef enum rp_layout { RP_LAYOUT_NONE = 0, RP_STRIDED = 1, RP_SPARSE_COO = 2 } rp_layout;
typedef enum rp_memory_format {
    RP_FORMAT_NONE = 0, /* not given */
    RP_CONTIGUOUS_FORMAT = 1,
    RP_PRESERVE_FORMAT = 2,
    RP_CHANNELS_LAST = 3,
    RP_CHANNELS_LAST_3D = 4
} rp_memory_format;

/* ---------------------------------------------------------------- tier 1: tensors and scopes */

typedef struct rp_tensor rp_tensor;
typedef struct rp_generator rp_generator;

#define RP_NO_DIMS ((const int64_t *)NULL), ((size_t)0) /* a 0-d size, or "all dimensions" of a reduction */
#ifndef __cplusplus
#define RP_DIMS(...) ((const int64_t[]){__VA_ARGS__}), (sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define RP_TENSORS(...)                                                                                                \
    ((rp_tensor *const[]){__VA_ARGS__}), (sizeof((rp_tensor *const[]){__VA_ARGS__}) / sizeof(rp_tensor *))
/* An options struct with struct_size filled in: RP_OPTIONS(rp_backward_options, .retain_graph = true) */
#define RP_OPTIONS(type, ...) (&(type){.struct_size = sizeof(type), __VA_ARGS__})
#endif

typedef struct rp_scope {
    uint64_t id; /* opaque */
} rp_scope;

RP_CALL rp_scope rp_scope_begin(void);
/* Releases the scope's reference to every tensor made since rp_scope_begin, except keep[0..n), which move to the next
   scope out. Scopes opened inside and not ended end with it. RP_ERROR_STATE if `scope` is not open in this thread. */
RP_CALL rp_status rp_scope_end(rp_scope scope, rp_tensor *const *keep, size_t n);
/* RP_SCOPE { ... } is a scope, and RP_NO_GRAD { ... } is without gradients, until the block is left, be it by return, goto, break or
   continue, which leave this block and no loop around it. With GCC and Clang; elsewhere the calls at beginning and end. */
#if defined(__GNUC__)
#define RP_BLOCK_NAME_(a, b) a##b
#define RP_BLOCK_NAME(a, b) RP_BLOCK_NAME_(a, b)
#define RP_BLOCK_(type, begin, end, was, once)                                                                         \
    for (type was __attribute__((cleanup(end))) = (begin), *once = &was; once; once = NULL)
#define RP_SCOPE                                                                                                       \
    RP_BLOCK_(rp_scope, rp_scope_begin(), rp_scope_leave, RP_BLOCK_NAME(rp_scope_, __LINE__),                          \
              RP_BLOCK_NAME(rp_once_, __LINE__))
#define RP_NO_GRAD                                                                                                     \
    RP_BLOCK_(bool, rp_set_grad_enabled(false), rp_grad_leave, RP_BLOCK_NAME(rp_grad_, __LINE__),                      \
              RP_BLOCK_NAME(rp_on_, __LINE__))
#endif
RP_API void rp_scope_leave(rp_scope *scope); /* what the blocks above end with */
RP_API void rp_grad_leave(bool *was);

RP_CALL rp_tensor *rp_retain(rp_tensor *t); /* one more reference, owned by the caller; returns t */
/* gives back a reference of rp_retain; NULL and the error tensor are ignored */
RP_CALL void rp_release(rp_tensor *t);
RP_API bool rp_is_error(const rp_tensor *t);

RP_CALL size_t rp_ndim(const rp_tensor *t);
/* dim may count from the end; -1 and an error if out of range */
RP_CALL int64_t rp_size(const rp_tensor *t, int64_t dim);
RP_CALL int64_t rp_stride(const rp_tensor *t, int64_t dim); /* in elements */
RP_CALL int64_t rp_numel(const rp_tensor *t);
/* Sizes as torch.SymInt: numbers in eager calls; where a compiled function is traced with symbolic sizes, words that stand for
   an expression of its arguments' sizes, so that one specialisation serves all of them, which rp_size does not: it fixes the
   number. A word goes wherever a schema says SymInt (sizes of view, expand, full, rand, ...; bounds of slice; the index of
   select) or Scalar (a factor, an end of arange: rp_i64(word)), and into rp_sym_*, for calculating and comparing; nothing else
   may look at it, and it means nothing outside of its trace: used there it is an error. A size that does not fit is an error and 0. */
RP_CALL int64_t rp_sym_size(const rp_tensor *t, int64_t dim);
RP_CALL int64_t rp_sym_numel(const rp_tensor *t);
RP_CALL int64_t rp_sym_add(int64_t a, int64_t b);
RP_CALL int64_t rp_sym_sub(int64_t a, int64_t b);
RP_CALL int64_t rp_sym_mul(int64_t a, int64_t b);
RP_CALL int64_t rp_sym_floordiv(int64_t a, int64_t b); /* of a size, not negative, by one above 0; as rp_sym_mod */
RP_CALL int64_t rp_sym_mod(int64_t a, int64_t b);
RP_CALL int64_t rp_sym_max(int64_t a, int64_t b);
RP_CALL int64_t rp_sym_min(int64_t a, int64_t b);
/* The answer in this call; a specialisation serves calls with the same answer. */
RP_CALL bool rp_sym_eq(int64_t a, int64_t b);
RP_CALL bool rp_sym_lt(int64_t a, int64_t b);
RP_CALL bool rp_sym_le(int64_t a, int64_t b);
RP_CALL int64_t
rp_sym_guard_int(int64_t a); /* the number in this call; a specialisation serves calls with the same one */
/* Numbers calculated of sizes, as torch.SymFloat: rp_num_div(rp_f64(1), rp_num_sqrt(rp_i64(rp_sym_size(q, -1)))). As Python
   calculates: of whole numbers a sum, a difference, a product and a power of 0 to 62 are whole, all else is a float64; a division by
   0 and the root of a number below 0 give what IEEE arithmetic does. In eager calls the result is a number; of symbolic sizes it is
   an expression of them, which goes wherever a schema says Scalar or float? (a factor, the scale of attention) and into rp_num_*. */
RP_CALL rp_scalar rp_num_add(rp_scalar a, rp_scalar b);
RP_CALL rp_scalar rp_num_sub(rp_scalar a, rp_scalar b);
RP_CALL rp_scalar rp_num_mul(rp_scalar a, rp_scalar b);
RP_CALL rp_scalar rp_num_div(rp_scalar a, rp_scalar b);
RP_CALL rp_scalar rp_num_pow(rp_scalar a, rp_scalar b);
RP_CALL rp_scalar rp_num_sqrt(rp_scalar a);
RP_CALL rp_dtype rp_dtype_of(const rp_tensor *t);
RP_CALL rp_device rp_device_of(const rp_tensor *t);
RP_CALL bool rp_is_contiguous(const rp_tensor *t); /* row-major */
/* Tensor.is_contiguous(memory_format=...): is the memory in the order of the format? Sizes of 1 fit any. */
RP_CALL bool rp_is_contiguous_format(const rp_tensor *t, rp_memory_format format);
/* in-place writes to the storage so far (PyTorch: Tensor._version) */
RP_CALL uint64_t rp_version(const rp_tensor *t);
/* Address of element 0; NULL (and an error) for the error tensor. Computes what is pending: CPU memory may be read at once,
   unless the current stream is capturing; NULL and an error if a kernel found one in its data (an index out of bounds). CUDA:
   device memory, for work on the stream that wrote it. */
RP_CALL void *rp_data(rp_tensor *t);

/* Copies host data (row-major) into a new tensor on the default device. In a compiled function up to 4096 bytes are a constant of
   the graph; more is another tensor in each call: make it once, outside. */
RP_CALL rp_tensor *rp_from_data(const void *data, const int64_t *size, size_t ndim, rp_dtype dtype);
/* Page-locked memory of the host (pin_memory=True, Tensor.pin_memory): a tensor on the CPU that CUDA devices read and write while
   the host goes on. The second is t itself if that is pinned, else a copy without a gradient. Without a CUDA device an error. */
RP_CALL rp_tensor *rp_empty_pinned(const int64_t *size, size_t ndim, rp_dtype dtype);
RP_CALL rp_tensor *rp_pin_memory(rp_tensor *t);
RP_CALL bool rp_is_pinned(const rp_tensor *t); /* also memory of others that is wrapped */
/* Tensor.to(device): t itself if it lies there, else a copy. non_blocking, between a pinned tensor and a CUDA device: the copy goes
   on behind the call, in the device's current stream (rp_copy_ has it, too). Before the host reads what it brings, or writes what it
   takes, the program waits for that stream; the memory stays until then by itself. Otherwise it changes nothing. */
RP_CALL rp_tensor *rp_to_device(rp_tensor *t, rp_device device, bool non_blocking);

/* Wraps memory that the caller owns (torch.from_blob); deleter(ctx), if any, is called once, at once on failure, else when no
   tensor uses the memory and streams have done the work that does: in the last release, or later, in any thread, in a call that
   waits for the device (rp_stream_synchronize, rp_to_host, ...) or wraps more. stride: ndim of them, in elements; NULL: row-major;
   only a dimension of size 1 may have a negative one.
   data must be aligned to its element size, a bool is true if its byte is not 0. Writes that bypass Reprise are not seen by
   version counters. */
RP_CALL rp_tensor *rp_from_blob(void *data, const int64_t *size, size_t ndim, const int64_t *stride, rp_dtype dtype,
                                rp_device device, void (*deleter)(void *ctx), void *ctx);
/* Graphs and compiled functions copy an argument in wrapped memory (rp_from_blob, rp_from_dlpack) that lies elsewhere than the
   one before: its owner could write or free it unseen while they read. This declares that the memory of t is stable: it is
   there until its deleter was called (without one: as long as tensors or work under way use it), and nobody writes to it but
   through Reprise while work that reads it is under way or a backward that reads it is still to come. From now on it is read in
   place, as memory
   of the library's own is. For all tensors that share the memory; it cannot be taken back. */
RP_CALL rp_status rp_declare_stable(rp_tensor *t);
/* Copies the elements, row-major, to host memory of exactly `bytes` = numel * element size. Synchronises. */
RP_CALL rp_status rp_to_host(rp_tensor *t, void *dst, size_t bytes);
/* The value of a one-element tensor (Tensor.item). Synchronises. On failure i64 0 and a sticky error. */
RP_CALL rp_scalar rp_item(rp_tensor *t);
RP_CALL double rp_item_f64(rp_tensor *t);
/* rounds towards zero; infinities, NaN and what does not fit: 0 and RP_ERROR_INVALID_ARGUMENT */
RP_CALL int64_t rp_item_i64(rp_tensor *t);
/* Views of all parts of a dim, written to out[0..n_out) (torch.split, split_with_sizes, chunk, unbind). Returns how many there are;
   what is left of out is NULL. More than n_out: an error, and 0. A trace takes their number for fixed. */
RP_CALL size_t rp_split(rp_tensor *t, int64_t split_size, int64_t dim, rp_tensor **out, size_t n_out);
RP_CALL size_t rp_split_with_sizes(rp_tensor *t, const int64_t *sizes, size_t n, int64_t dim, rp_tensor **out);
RP_CALL size_t rp_chunk(rp_tensor *t, int64_t chunks, int64_t dim, rp_tensor **out, size_t n_out);
RP_CALL size_t rp_unbind(rp_tensor *t, int64_t dim, rp_tensor **out, size_t n_out);
/* As equal as they can be, the first ones one longer: torch.tensor_split. */
RP_CALL size_t rp_tensor_split(rp_tensor *t, int64_t sections, int64_t dim, rp_tensor **out, size_t n_out);
/* n tensors expanded to one size, and vectors to a grid of which each walks one dim (torch.broadcast_tensors, torch.meshgrid):
   out[0..n). indexing: "ij", or "xy", which swaps the first two dims. */
RP_CALL rp_status rp_broadcast_tensors(rp_tensor *const *tensors, size_t n, rp_tensor **out);
RP_CALL rp_status rp_meshgrid(rp_tensor *const *tensors, size_t n, const char *indexing, rp_tensor **out);
/* Writes the tensor as PyTorch's repr does (4 digits, summarised past 1000 elements), NUL-terminated, into buf; returns
   the length it needs without the NUL. */
RP_CALL size_t rp_format(rp_tensor *t, char *buf, size_t bytes);

/* ---------------------------------------------------------------- tier 1: gradients */

RP_CALL rp_status rp_set_requires_grad(rp_tensor *t, bool requires_grad); /* leaves of floating type only */
RP_CALL bool rp_requires_grad(const rp_tensor *t);
RP_CALL bool rp_is_leaf(const rp_tensor *t);
RP_CALL rp_tensor *rp_grad_of(rp_tensor *t);                  /* .grad, borrowed; NULL when there is none */
RP_CALL rp_status rp_set_grad(rp_tensor *t, rp_tensor *grad); /* NULL clears it (zero_grad with set_to_none) */
RP_CALL rp_status rp_retain_grad(rp_tensor *t);
/* of the thread; returns the old value (torch.set_grad_enabled) */
RP_API bool rp_set_grad_enabled(bool enabled);
RP_API bool rp_grad_enabled(void);

/* torch.autocast of the thread, for one kind of device: from now on ops of PyTorch's lists run in dtype (RP_F16 or RP_BF16),
   in float32, or in the widest type of their operands; RP_DTYPE_NONE: no longer. Returns the type of before, which ends the
   region: they nest. Casts of parameters are kept until all are off. A backward runs without; a compiled function keeps a
   specialisation a state. */
RP_CALL rp_dtype rp_set_autocast(rp_device_type device, rp_dtype dtype);
RP_API rp_dtype rp_autocast_dtype(rp_device_type device);

typedef struct rp_backward_options {
    size_t struct_size;
    bool retain_graph;
    bool create_graph; /* the gradients carry a tape themselves; implies retain_graph */
    bool allow_unused; /* rp_grad only: an input that was not used gets NULL instead of an error */
} rp_backward_options;

/* Adds d(root . gradient)/d(leaf) into .grad of every leaf (torch.Tensor.backward). gradient NULL: 1 for a one-element root. */
RP_CALL rp_status rp_backward(rp_tensor *root, rp_tensor *gradient, const rp_backward_options *options);
/* torch.autograd.grad: out[i] = sum_k d(outputs[k] . grad_outputs[k])/d(inputs[i]); .grad of leaves is untouched.
   grad_outputs may be NULL (ones for one-element outputs), so may its entries. */
RP_CALL rp_status rp_grad(rp_tensor *const *outputs, size_t n_outputs, rp_tensor *const *inputs, size_t n_inputs,
                          rp_tensor *const *grad_outputs, const rp_backward_options *options, rp_tensor **out);

/* Called with the gradient that reaches t, before it is accumulated or passed on; returns NULL (unchanged) or a
   replacement of the same size (Tensor.register_hook). Returns an id for rp_remove_hook, 0 on failure. What is wrong with what it
   returns is told with the line that registered it. */
typedef rp_tensor *rp_hook(void *ctx, rp_tensor *grad);
RP_CALL uint64_t rp_register_hook(rp_tensor *t, rp_hook *hook, void *ctx);
RP_CALL rp_status rp_remove_hook(rp_tensor *t, uint64_t id);

/* ---------------------------------------------------------------- tier 1: functions, compile, graphs */

/* A function of tensors. It reads in[0..n_in), and writes out[0..n_out); entries left NULL are absent outputs. */
typedef void rp_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
typedef struct rp_fn {
    rp_body *body;
    void *ctx;        /* passed to body; parameters (handles), flags, numbers */
    size_t ctx_bytes; /* bytes at ctx that are compared at every call of a compiled function */
    const char *name; /* for messages; rp_function_apply keeps it: a string constant */
} rp_fn;

typedef struct rp_compiled rp_compiled; /* a plain, compiled or graphed callable */

/* How the nodes of a compiled function's device graph wait for each other. A driver launches a line in the same time whatever
   its length; with forks, a launch costs the host more, and short nodes run side by side. */
typedef enum rp_graph_layout {
    RP_LAYOUT_AUTO = 0, /* on a GPU forks where they save more of its time than they cost the host, else a line */
    RP_LAYOUT_LINE = 1, /* each node waits for the one before it */
    RP_LAYOUT_FORKS = 2 /* a node waits for what it reads and overwrites, and for nothing else */
} rp_graph_layout;

/* What a compiled function computes. RP_NUMBERS_DEFAULT: the bits that the same calls give eagerly. RP_NUMBERS_FAST: results within
   rounding errors of those, the same at every call but the first with new sizes, which runs op by op: a product and the sum that
   it goes into are rounded once (fma); a quotient is a product with a reciprocal; on a GPU, float32 reciprocals, quotients, exp,
   tanh, sigmoid and 1/sqrt are within 2^-20 of the value, relatively (exp: (|x| + 3) 2^-23); float16 and bfloat16 values between
   the ops of one kernel stay float32; with `tune`, sums are added up in the order that is fastest. rp_explain_get lists what was
   done (kind "numbers"). */
typedef enum rp_numbers { RP_NUMBERS_DEFAULT, RP_NUMBERS_FAST } rp_numbers;

/* zero is torch.compile's default */
typedef struct rp_compile_options {
    size_t struct_size;
    /* NULL: "fused" (alias "inductor"); "eager", "aot_eager", "cudagraphs", or a registered one */
    const char *backend;
    bool fullgraph;         /* a graph break is an error instead of trace-and-flush */
    bool static_sizes;      /* never re-trace a changed size as a symbol (dynamic=False) */
    bool no_graph;          /* "fused": launch the program's kernels one by one instead of as one device graph */
    bool strict;            /* a skipped graph is an error */
    bool wait;              /* wait for background compiles before the first run */
    int purity;             /* re-trace and compare every purity-th call; the second call always is */
    size_t cache_limit;     /* specialisations kept, least recently used goes first; 0: 32 */
    rp_graph_layout layout; /* "fused", "cudagraphs": of the device graphs; rp_explain says what was chosen */
    /* A specialisation with symbolic sizes keeps a program (memory and device graph) for each tuple of sizes that it was
       called with, a backward likewise. So many are kept in all, and so many bytes of device memory, least recently used
       goes first; the last one of each forward and backward stays. Results and saved tensors of one that went stay valid. */
    size_t instance_limit;   /* 0: 64 */
    uint64_t instance_bytes; /* 0: 1 GiB */
    /* Pairs of key and value for a backend that is another engine (docs/guide/11-engines.md); copied. Others take none. */
    const char *const (*engine_options)[2];
    size_t n_engine_options;
    rp_numbers numbers; /* "fused" */
    /* "fused": schedules of kernels are measured on the device when the function is compiled for new sizes, and the best are kept
       in the cache on disk (REPRISE_TUNE=1: of every function). The bits of results are the same, but under RP_NUMBERS_FAST. */
    bool tune;
    /* "fused": numbers of results that may lie in memory as is fastest to make and to read, not with the strides of the eager function:
       what only another compiled function reads, as a backward what its forward saved (torch._inductor.config.keep_output_stride = False,
       a result at a time). Numbers of no result, and functions
       that are no one graph, are passed over. Copied. */
    const size_t *free_strides;
    size_t n_free_strides;
} rp_compile_options;

RP_CALL rp_compiled *rp_compile(rp_fn fn, const rp_compile_options *options);
RP_CALL rp_compiled *rp_plain(rp_fn fn); /* the function itself, called through rp_call */
/* A call that fails gives error tensors; the line of the call is in messages about its arguments and results. */
RP_CALL rp_status rp_call(rp_compiled *f, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
/* The same with a name for each argument: names[i] is that of in[i], dotted where arguments are nested ("batch.tokens"). The
   first call that succeeds fixes count, names and places for f, however it was made; another count, name or place is
   RP_ERROR_GUARD afterwards, and the function does not run. No two names are equal, and none is a part of another's path. */
RP_CALL rp_status rp_call_named(rp_compiled *f, const char *const *names, rp_tensor *const *in, size_t n_in,
                                rp_tensor **out, size_t n_out);
RP_API void rp_compiled_release(rp_compiled *f);
/* while tracing: compare these bytes too at every later call */
RP_CALL rp_status rp_guard_bytes(const void *bytes, size_t n);

/* torch.cuda.make_graphed_callables */
typedef struct rp_graphed_options {
    size_t struct_size;
    int warmup; /* warm-up iterations; 0: 3; negative: none */
    bool allow_unused_input;
    bool training;        /* the functions' mode at capture: see rp_graphed_set_training */
    struct rp_pool *pool; /* NULL: a new private pool */
} rp_graphed_options;
/* one callable to be graphed */
typedef struct rp_graphed_callable {
    rp_fn fn;
    rp_tensor *const *args; /* sample arguments: they become the static inputs */
    size_t n_args;
    rp_tensor *const *params; /* trainable tensors that fn reads through ctx: all of them, one left out is an error */
    size_t n_params;
    size_t n_out;
} rp_graphed_callable;
/* Captures n callables, forwards in order and backwards in reverse, into one pool; out[i] is called with rp_call. What a function
   writes into an argument is in the caller's tensor after the call. */
RP_CALL rp_status rp_make_graphed_callables(const rp_graphed_callable *callables, size_t n,
                                            const rp_graphed_options *options, rp_compiled **out);
RP_CALL rp_status rp_graphed_set_training(rp_compiled *f, bool training); /* mode != captured mode: runs eagerly */

/* torch._dynamo's cudagraphs_inner: fn of these inputs as one recorded graph and nothing around it, without gradients. copy_inputs: a
   call copies its arguments to where the recording reads; otherwise they are the sample tensors, or lie where those do. copy_outputs:
   a call gives copies; otherwise its results are the same memory at every call. */
RP_CALL rp_compiled *rp_cudagraphs_inner(rp_fn fn, rp_tensor *const *in, size_t n_in, size_t n_out, bool copy_inputs,
                                         bool copy_outputs);

/* ---------------------------------------------------------------- tier 1: control flow (regions) */

/* A function gives every result that it is asked for, and branches give the same sizes and types: anything else is an error that
   names the function and the line. */
RP_CALL rp_status rp_cond(rp_tensor *pred, rp_fn then_fn, rp_fn else_fn, rp_tensor *const *in, size_t n_in,
                          rp_tensor **out, size_t n_out); /* torch.cond */
/* torch.while_loop: state' = body(state) while cond(state); max_iter > 0 bounds it and makes it differentiable. */
RP_CALL rp_status rp_while(rp_fn cond_fn, rp_fn body_fn, rp_tensor *const *in, size_t n, int64_t max_iter,
                           rp_tensor **out);
/* torch.utils.checkpoint: recomputes fn in backward instead of keeping its intermediates. What ctx points to, and tensors
   that fn reads through it, must be there until then: rp_retain those that a scope, or rp_call, would release. */
RP_CALL rp_status rp_checkpoint(rp_fn fn, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

/* ---------------------------------------------------------------- tier 1: random numbers */

RP_CALL rp_generator *rp_default_generator(rp_device device);
RP_CALL rp_generator *rp_generator_new(rp_device device, uint64_t seed);
RP_API void rp_generator_release(rp_generator *g);
RP_CALL rp_status rp_manual_seed(uint64_t seed); /* all default generators (torch.manual_seed) */
RP_CALL rp_status rp_generator_seed(rp_generator *g, uint64_t seed);
RP_CALL rp_status rp_generator_get(rp_generator *g, uint64_t *seed, uint64_t *offset); /* offset in Philox counters */
RP_CALL rp_status rp_generator_set(rp_generator *g, uint64_t seed, uint64_t offset);
/* In a graph that others record on an adopted stream (torch.cuda.graph) draws of g are an error: its replays cannot go on in g. Until the call with NULL
   they read {seed, first counter} from the two words at `state`, memory of g's device, instead: whoever records has them written anew
   for each replay, before what draws, and keeps them until that has run. All other draws are as before. */
RP_CALL rp_status rp_generator_follow(rp_generator *g, const uint64_t *state);

/* ---------------------------------------------------------------- tier 2: streams, events, raw capture */

typedef struct rp_stream rp_stream;
typedef struct rp_event rp_event;
typedef struct rp_graph rp_graph;
typedef struct rp_pool rp_pool;

RP_CALL rp_stream *rp_stream_new(rp_device device);
RP_API void rp_stream_release(rp_stream *s);
/* A stream that somebody else made, of the device's primary context: `native` is its CUstream, NULL the driver's default stream. Work
   is put on it like on any other; its owner keeps it until the last reference is given back, and memory that was freed in its order
   is no longer used. One that is wrapped already is given again, with one more reference. A CPU has none.
   If its owner captures it at that moment, what is put on it until then is recorded: memory that the graph uses is kept for good. Wrap
   it again when the capture has begun, and when it has ended; a graph cannot draw random numbers. */
RP_CALL rp_stream *rp_stream_wrap(rp_device device, void *native);
RP_CALL rp_stream *rp_current_stream(rp_device device); /* of the thread, borrowed */
RP_CALL rp_status rp_set_current_stream(rp_stream *s);
RP_CALL rp_status rp_stream_synchronize(rp_stream *s);
RP_CALL bool rp_stream_query(rp_stream *s); /* is all its work done? */
RP_CALL rp_event *rp_event_new(rp_device device, bool timing);
RP_API void rp_event_release(rp_event *e);
RP_CALL rp_status rp_event_record(rp_event *e, rp_stream *s);
RP_CALL rp_status rp_event_synchronize(rp_event *e);
RP_CALL bool rp_event_query(rp_event *e);
/* negative and an error if not recorded with timing */
RP_CALL double rp_event_elapsed_ms(rp_event *start, rp_event *end);
RP_CALL rp_status rp_stream_wait_event(rp_stream *s, rp_event *e);
/* What is queued on s from now on begins behind what is queued on `before` (torch.cuda.Stream.wait_stream). */
RP_CALL rp_status rp_stream_wait_stream(rp_stream *s, rp_stream *before);

/* A named range of the thread's work, as NVIDIA's profilers show it (torch.cuda.nvtx): how deep it lies, from 0. Without the library NVTX
   (libnvToolsExt), opened at run time, -1, and nothing happens. */
RP_API int rp_range_push(const char *name);
RP_API int rp_range_pop(void);

typedef enum rp_capture_mode {
    RP_CAPTURE_THREAD_LOCAL = 0,
    RP_CAPTURE_GLOBAL = 1,
    RP_CAPTURE_RELAXED = 2
} rp_capture_mode;
/* torch.cuda.graph */
typedef struct rp_graph_options {
    size_t struct_size;
    rp_pool *pool;     /* NULL: a new private pool */
    rp_stream *stream; /* NULL: a side stream of the library; never the default stream */
    rp_capture_mode mode;
    bool keep_graph;           /* keep the template: rp_graph_instantiate may be called later */
    bool check_input_liveness; /* replay errors when a tensor read by the graph has died or moved */
} rp_graph_options;

RP_CALL rp_graph *rp_graph_new(void);
/* Ends a capture that is under way. From another thread than the one that captures it is RP_ERROR_STATE, and the graph stays. */
RP_CALL void rp_graph_release(rp_graph *g);
/* The stream becomes current. A thread has one capture at a time, of whatever device; the thread that begins one ends it. */
RP_CALL rp_status rp_graph_begin(rp_graph *g, rp_device device, const rp_graph_options *options);
RP_CALL rp_status rp_graph_end(rp_graph *g); /* restores the stream on every path */
RP_CALL rp_status rp_graph_instantiate(rp_graph *g);
RP_CALL rp_status rp_graph_replay(rp_graph *g); /* on the thread's current stream; asynchronous */
RP_CALL rp_status rp_graph_reset(rp_graph *g);
/* The next replays read `to` where the capture read `from` (same size, strides, dtype, device): nodes are re-pointed. */
RP_CALL rp_status rp_graph_repoint(rp_graph *g, rp_tensor *from, rp_tensor *to);
RP_CALL rp_pool *rp_graph_pool(rp_graph *g);   /* borrowed */
RP_API bool rp_is_capturing(rp_device device); /* the thread's current stream */
RP_CALL rp_pool *rp_pool_new(rp_device device);
RP_API void rp_pool_release(rp_pool *p);

/* ---------------------------------------------------------------- tier 2: kernels of the program's own */

/* What a kernel does with the memory of a parameter; RP_ACCESS_NONE: the parameter is a number. */
typedef enum rp_access {
    RP_ACCESS_NONE = 0,
    RP_ACCESS_READ = 1,
    RP_ACCESS_WRITE = 2,
    RP_ACCESS_READ_WRITE = 3
} rp_access;
/* The eight bytes of a parameter, as the kernel sees them: the address of element 0, or a number of at most eight bytes */
typedef union rp_word {
    void *data;
    int64_t i64;
    uint64_t u64;
    double f64;
    int32_t i32;
    float f32;
    bool b;
} rp_word;
/* a parameter of a kernel */
typedef struct rp_param {
    rp_access access;
    rp_tensor *tensor; /* unless RP_ACCESS_NONE */
    rp_word value;     /* of RP_ACCESS_NONE */
} rp_param;
/* C; a C++ program fills an array of rp_param. */
#ifndef __cplusplus
#define RP_READS(t)                                                                                                    \
    {                                                                                                                  \
        RP_ACCESS_READ, (t), { NULL }                                                                                  \
    }
#define RP_WRITES(t)                                                                                                   \
    {                                                                                                                  \
        RP_ACCESS_WRITE, (t), { NULL }                                                                                 \
    }
#define RP_READS_WRITES(t)                                                                                             \
    {                                                                                                                  \
        RP_ACCESS_READ_WRITE, (t), { NULL }                                                                            \
    }
#define RP_VALUE(member, x)                                                                                            \
    {                                                                                                                  \
        RP_ACCESS_NONE, NULL, { .member = (x) }                                                                        \
    } /* RP_VALUE(f32, 0.5f) */
#define RP_PARAMS(...) ((const rp_param[]){__VA_ARGS__}), (sizeof((const rp_param[]){__VA_ARGS__}) / sizeof(rp_param))
#endif

/* Puts a kernel of the program's own on the current stream of a device, at its place among the ops: streams, captures, graphs
   and moved arguments treat it as a kernel of the library's, by what `params` say. The tensors that it touches are all named,
   once for each parameter; their sizes and strides are not passed on. A kernel without tensors keeps its place among all other
   work, and a graph that holds one copies arguments instead of reading them where they moved. At most 64 parameters.
   There is no derivative: under grad mode a tensor that is written must not require a gradient (rp_function_apply makes an op of
   a kernel and its derivative, rp_op_register one that is also traced). In a compiled function a launch is a graph break.
   `name`, for messages, is kept: a string constant. */
/* The CPU runs items [0, items), perhaps at once in several threads: begin and end are multiples of grain, or items. The
   function calls nothing of Reprise. */
typedef void rp_cpu_kernel(const rp_word *params, int64_t begin, int64_t end);
RP_CALL rp_status rp_launch(const char *name, rp_cpu_kernel *kernel, int64_t items, int64_t grain,
                            const rp_param *params, size_t n_params);
/* entries left 0 are 1, shared_bytes apart */
typedef struct rp_cuda_grid {
    size_t struct_size;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic shared memory */
} rp_cuda_grid;
/* `function` is a CUfunction of the device's primary context; its module stays loaded as long as a graph holds the launch. Its
   parameters are those of `params`, in order. */
RP_CALL rp_status rp_cuda_launch(const char *name, rp_device device, void *function, const rp_cuda_grid *grid,
                                 const rp_param *params, size_t n_params);

/* ---------------------------------------------------------------- tier 2: memory statistics, DLPack */

/* bytes; torch.cuda.memory_stats */
typedef struct rp_memory_stats {
    size_t struct_size;
    uint64_t allocated, allocated_peak; /* in live tensors */
    uint64_t reserved, reserved_peak;   /* held from the device or the system */
    uint64_t in_private_pools;          /* part of reserved that only graphs may use */
    uint64_t allocations, frees;        /* counts since start */
    uint64_t root_scope_tensors;        /* tensors of this thread that no scope will release */
    uint64_t live_tensors;              /* handles, all threads */
} rp_memory_stats;
RP_CALL rp_status rp_memory_stats_get(rp_device device, rp_memory_stats *stats);
RP_CALL rp_status rp_memory_stats_reset_peak(rp_device device); /* the peaks start again from what is held now */
RP_CALL rp_status rp_empty_cache(rp_device device);

struct DLManagedTensorVersioned;
struct DLManagedTensor; /* of DLPack before 1.0 */
/* NULL on failure, also one that a kernel found in its data on the CPU; the consumer calls its deleter */
RP_CALL struct DLManagedTensorVersioned *rp_to_dlpack(rp_tensor *t);
/* Take ownership, also on failure. */
RP_CALL rp_tensor *rp_from_dlpack(struct DLManagedTensorVersioned *managed);
/* It says neither its version nor whether it may be written: it is taken as 1.0's, and for memory that may be. */
RP_CALL rp_tensor *rp_from_dlpack_unversioned(struct DLManagedTensor *managed);

/* ---------------------------------------------------------------- tier 2: threads, logging, switches */

/* Of the CPU pool, for this process: 1 to 256, another number is an error; a larger machine is used by 256. Results do not
   depend on it. */
RP_CALL rp_status rp_set_num_threads(int n);
RP_API int rp_num_threads(void);
RP_API bool rp_set_deterministic(bool on); /* torch.use_deterministic_algorithms; returns the old value */
RP_API bool rp_deterministic(void);
/* How matrix products of float32 on CUDA round their factors (torch.set_float32_matmul_precision), for this process; sums are float32.
   "highest", also "ieee", from the start: not at all. "high", also "tf32": to 10 bits behind the point, on tensor cores, where that is
   faster. "medium": as "high", which PyTorch takes it for on CUDA. "bf16x3": to two bfloat16 of 8 bits each, of whose four products the
   smallest is left out. On devices before sm_80, on a CPU, and in small products they are all "highest". Eager calls and functions that
   are compiled afterwards go by it; a compiled function keeps a specialisation a setting. Another word is an error. */
RP_CALL rp_status rp_set_float32_matmul_precision(const char *precision);
RP_API const char *rp_float32_matmul_precision(void); /* "highest", "high", "medium", "bf16x3" */
RP_API bool rp_set_float32_matmul_allow_tf32(
    bool allow); /* torch.backends.cuda.matmul.allow_tf32: "high" or "highest"; the old value */
RP_API bool rp_float32_matmul_allow_tf32(void); /* "high" or "medium" */
/* The same of convolutions and their gradients (torch.backends.cudnn.conv.fp32_precision): "highest", also "ieee", from the start, unlike
   PyTorch's; "high", also "tf32", whatever the size. Some stay "highest": several groups of fewer than 16 channels, in or out, and results of
   up to four channels at many places, as the gradient of a picture. */
RP_CALL rp_status rp_set_float32_conv_precision(const char *precision);
RP_API const char *rp_float32_conv_precision(void); /* "highest", "high" */
RP_API bool rp_set_float32_conv_allow_tf32(
    bool allow); /* torch.backends.cudnn.allow_tf32, of convolutions alone: "high" or "highest"; the old value */
RP_API bool rp_float32_conv_allow_tf32(void);

/* ---------------------------------------------------------------- tier 2: ops by name, user ops, introspection */

typedef enum rp_attr_kind {
    RP_ATTR_INT = 0,
    RP_ATTR_FLOAT = 1,
    RP_ATTR_BOOL = 2,
    RP_ATTR_SCALAR = 3,
    RP_ATTR_DTYPE = 4,
    RP_ATTR_INTS = 5,
    RP_ATTR_GENERATOR = 6,
    RP_ATTR_STRING = 7,
    RP_ATTR_FLOATS = 8,
    RP_ATTR_NONE = 9 /* None, for an attribute that the schema makes optional; rp_op_call alone takes it */
} rp_attr_kind;
/* one attribute of an op, in schema order */
typedef struct rp_attr {
    rp_attr_kind kind;
    size_t n; /* RP_ATTR_INTS, RP_ATTR_FLOATS: how many */
    union {
        int64_t i;
        double f;
        bool b;
        rp_scalar scalar;
        rp_dtype dtype;
        const int64_t *ints; /* NULL: None of int[]? */
        const double *floats;
        rp_generator *generator;
        const char *string;
    } v;
} rp_attr;

/* Calls any op of the table by its name. Tensor arguments in schema order (an optional one may be NULL; a Tensor[]
   argument takes all remaining tensors; several share them equally, or each but the last ends with a NULL); attributes in schema order, trailing ones with defaults may be left out. */
RP_CALL rp_status rp_op_call(const char *name, rp_tensor *const *in, size_t n_in, const rp_attr *attrs, size_t n_attrs,
                             rp_tensor **out, size_t n_out);

/* A user's op. The same facts as a row of the table; see docs/developers/forms.md. */
typedef struct rp_op_descriptor {
    size_t struct_size;
    const char *schema; /* "my_scale(Tensor self, float factor=1.0) -> Tensor" */
    const char *doc;
    /* Sizes and dtype of output k from the inputs; NULL: those of the first input. */
    rp_status (*infer)(void *ctx, rp_tensor *const *in, size_t n_in, const rp_attr *attrs, size_t n_attrs, size_t k,
                       int64_t *size, size_t *ndim, rp_dtype *dtype);
    /* Contiguous inputs and outputs on the CPU: data pointers and numel per tensor. A status other than RP_OK fails the call, or,
       on a queued stream and in a replay, the next call that waits for the device. */
    rp_status (*cpu)(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                     rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs, size_t n_attrs);
    /* CUDA C: extern "C" __global__ void NAME(const T *in0, ..., T *out0, ..., long long numel of out0, attributes by value).
       Tensors are row-major; an absent one is NULL. Attributes: int is long long, float and Scalar are double, bool is bool,
       dtype is int; lists, strings and generators are refused. Compiled at the first call, once a process; the source sees no
       headers, and a*b+c is not contracted. An error of the compiler is RP_ERROR_COMPILE with its text. */
    const char *cuda_source;
    const char *cuda_entry;
    int cuda_elements_per_block; /* grid = ceil(numel(out 0) / this), block = 256 threads; 0: 256. No launch if it is empty */
    /* Gradients with ops: grad_in[i] may be left NULL. NULL: not differentiable. */
    rp_status (*backward)(void *ctx, rp_tensor *const *grad_out, size_t n_out, rp_tensor *const *in, size_t n_in,
                          rp_tensor *const *out, const rp_attr *attrs, size_t n_attrs, rp_tensor **grad_in);
    void *ctx;
} rp_op_descriptor;
RP_CALL rp_status rp_op_register(const rp_op_descriptor *descriptor);

/* what the table says of an op */
typedef struct rp_op_info {
    const char *name;
    const char *schema;
    const char *doc;
    const char *lowering; /* "pointwise", "rows", "view", "library", "composite", "random", "indexed", "user" */
    bool differentiable;
    uint32_t flags; /* RP_OP_... */
} rp_op_info;
#define RP_OP_INPLACE 1u
#define RP_OP_VIEW 2u
#define RP_OP_RANDOM 4u
#define RP_OP_SYNC 8u              /* reads device data on the host; not to be captured */
#define RP_OP_NONDETERMINISTIC 16u /* on CUDA, unless rp_set_deterministic */
RP_API size_t rp_op_count(void);
RP_CALL rp_status rp_op_info_get(size_t index, rp_op_info *info);

/* torch.autograd.Function: forward runs without a tape; backward is called with the gradients of the outputs (zeros where
   none came), and leaves grad_in[i] NULL where there is none. While a compiled function is traced both run, and from then on
   neither does. */
typedef struct rp_function {
    size_t struct_size;
    rp_fn forward;
    rp_status (*backward)(void *ctx, rp_tensor *const *saved, size_t n_saved, rp_tensor *const *grad_out, size_t n_out,
                          rp_tensor **grad_in, size_t n_in);
    void *backward_ctx;
    bool save_outputs; /* saved = inputs, then outputs if true */
} rp_function;
RP_CALL rp_status rp_function_apply(const rp_function *f, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                    size_t n_out);

/* ---------------------------------------------------------------- tier 2: backends, explain, graphs as text */

typedef struct rp_ir rp_ir; /* a traced graph: see docs/ir.md for its text form */

/* make_fx; NULL never: an empty rp_ir on failure. RP_ERROR_GRAPH_BREAK: the function reads a value on the host, or, where a
   result needs a gradient, does what only a tape differentiates (a custom function whose backward cannot be recorded, a hook
   that it leaves, ...). */
RP_CALL rp_ir *rp_trace(rp_fn fn, rp_tensor *const *in, size_t n_in, size_t n_out);
/* one more reference; how a backend keeps the graph that it was given */
RP_API rp_ir *rp_ir_retain(const rp_ir *ir);
RP_API void rp_ir_release(rp_ir *ir);
RP_CALL size_t rp_ir_text(const rp_ir *ir, char *buf, size_t bytes); /* returns the length it needs without the NUL */
RP_CALL rp_ir *rp_ir_parse(const char *text, size_t bytes);
RP_CALL rp_status rp_ir_check(const rp_ir *ir); /* the checker: types, dominance, regions */
RP_CALL bool rp_ir_equal(const rp_ir *a, const rp_ir *b);
RP_CALL rp_status rp_ir_run(const rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);

/* A backend turns a functional graph into something callable (torch._dynamo.register_backend). */
typedef struct rp_backend {
    size_t struct_size;
    const char *name;
    rp_status (*compile)(void *ctx, const rp_ir *graph, void **compiled);
    rp_status (*run)(void *ctx, void *compiled, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
    void (*destroy)(void *ctx, void *compiled);
    void *ctx;
} rp_backend;
RP_CALL rp_status rp_register_backend(const rp_backend *backend);
/* The name is free again, for another one too; functions that were compiled with the backend go on with it, so its ctx stays
   until they and their tapes are gone. Backends of the library stay. */
RP_CALL rp_status rp_unregister_backend(const char *name);
/* the names that rp_compile takes: an alias is one, behind that of its backend */
RP_API size_t rp_backend_count(void);
RP_CALL const char *rp_backend_name(size_t index);
/* A backend by its name: is it here? Of one that is a library of others, which version and where it was found, or why it was not; opens
   that library. */
typedef struct rp_backend_info {
    size_t struct_size;
    bool available;
    char version[64];
    char where[512]; /* "" for the library's own */
    char why[512];   /* "" where it is available */
} rp_backend_info;
RP_CALL rp_status rp_backend_info_get(const char *name, rp_backend_info *info);

/* torch._dynamo.reset: every compiled function lets go, at its next call, of its specialisations, and of the verdict that it
   must run at every call; it is as new. Calls that are under way end with what they have. */
RP_API void rp_compile_reset(void);
/* torch._dynamo.utils.counters: what compiled functions of the process have met since its start, or since they were cleared.
   Kinds and reasons are those of rp_explain_get: "specialisation", "instance", "break", "skip", "guard", "fusion", "lowering". */
typedef struct rp_counter {
    const char *kind, *reason; /* "" where no reason applies */
    uint64_t count;            /* not 0 */
} rp_counter;
RP_API size_t rp_counter_count(void);
RP_CALL rp_status rp_counter_get(size_t index, rp_counter *counter);
RP_API void rp_counters_clear(void);

/* What a compiled function did and did not do, and why: one record a fact, in program order. Records of a specialisation or
   program that was evicted go; what happened to it (kinds "specialisation", "instance", "fusion", "lowering", "copy", "patch",
   "skip", "break") is counted on in a record of what it was a part of. */
typedef struct rp_explain_entry {
    /* "specialisation", "instance", "fusion", "lowering", "kernel", "library", "region", "unfused", "graph", "copy", "patch",
       "skip", "break", "guard", "memory", "advice" */
    const char *kind;
    const char *reason;  /* the name in the reason table, e.g. "iteration-spaces-differ"; "" where none applies */
    const char *message; /* one sentence */
    const char *site;    /* call site or "" */
    int64_t count;       /* how often, or bytes for "memory" */
    const char *of;      /* what it is about: "" the function; "specialisation 2, backward, s0 = 40" */
} rp_explain_entry;
RP_CALL size_t rp_explain_count(rp_compiled *f);
/* strings live until the next call of f */
RP_CALL rp_status rp_explain_get(rp_compiled *f, size_t index, rp_explain_entry *entry);

/* One loop kernel as it is made ready: its expressions (docs/developers/loop.md), and the sources emitted for the CPU and for CUDA.
   The CUDA source needs no GPU. A text that could not be made is "". Strings live during the call. */
typedef void rp_kernel_log(void *ctx, const char *op, const char *site, const char *loop, const char *c_source,
                           const char *cuda_source);
/* Every launch of a loop kernel by the calling thread is told to `log` first, eager ones too; NULL: none. The log calls
   nothing that computes. Returns the log that was set before, and what it was given through old_ctx (NULL: not wanted): both
   set it again. */
RP_API rp_kernel_log *rp_set_kernel_log(rp_kernel_log *log, void *ctx, void **old_ctx);

/* What the library found on this machine, and why something is absent: lines "subject: text", a subject's further lines
   begin with two blanks. NUL-terminated into buf; returns the length it needs without the NUL. */
RP_API size_t rp_doctor(char *buf, size_t bytes);

#ifdef __cplusplus
}
#endif

#include "reprise_calls.h"
/* A file that calls no ops may leave their header out. */
#ifndef REPRISE_NO_OPS
#include "reprise_ops.h"
#endif

#endif
