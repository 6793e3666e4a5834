/* Handles of objects that are no tensors: streams, events, pools, generators, graphs, traces, functions, optimizers. As a tensor's slot does,
   the object's memory outlives it, all zero but for this head, which says what it was and where it was made. The first word says
   the kind and whether the object lives, in one number: the check of a public call is one comparison, which a handle of another
   kind, a stale one and a failed constructor's object all fail, and only then somebody asks which of them it is. A program holds one reference of an object that it made, an rp_ir as many as it has retained, and
   gives each up once; what the library holds of it besides is counted by the object. */
#ifndef RP_CORE_HANDLE_H
#define RP_CORE_HANDLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

#define RP__HANDLE_KINDS(X)                                                                                            \
    X(STREAM, "stream")                                                                                                \
    X(EVENT, "event")                                                                                                  \
    X(POOL, "pool")                                                                                                    \
    X(GENERATOR, "generator")                                                                                          \
    X(GRAPH, "graph")                                                                                                  \
    X(IR, "rp_ir")                                                                                                     \
    X(FUNCTION, "function")                                                                                            \
    X(MODULE, "module")                                                                                                \
    X(SEQUENTIAL, "sequence of layers")                                                                                \
    X(OPTIMIZER, "optimizer")                                                                                          \
    X(LBFGS, "L-BFGS optimizer")                                                                                       \
    X(SCHEDULE, "schedule")                                                                                            \
    X(SCALER, "gradient scaler")                                                                                       \
    X(SCALER_STAGE, "stage of a gradient scaler")                                                                      \
    X(AVERAGE, "average")                                                                                              \
    X(SAFETENSORS, "safetensors file")                                                                                 \
    X(LOADER, "loader")                                                                                                \
    X(TOKENIZER, "tokenizer")
typedef enum rp__handle_kind {
#define X(NAME, text) RP__HANDLE_##NAME,
    RP__HANDLE_KINDS(X)
#undef X
} rp__handle_kind;

typedef struct rp__handle {  /* first member of the object */
    _Atomic uint32_t state;  /* RP__HANDLE_STATE; 0: of no memory of ours (static objects) */
    atomic_uint held;        /* references of the program, 1 at first */
    const char *op, *site;   /* constant strings */
    char name[32];           /* that the program gave it; "": none */
    struct rp__handle *next; /* among the free ones of its size */
    uint32_t steps;          /* size of the whole */
} rp__handle;
/* A tensor's first word is another one (tensor.h), so that a tensor is no handle and a handle no tensor. */
#define RP__HANDLE_STATE(kind, live) (0x52504800u | (uint32_t)(kind) << 1 | (live))
enum { RP__TENSOR_MAGIC = 0x52505431, RP__TENSOR_DEAD = 0x52505430 };

/* Zero but for its head, op and site of which come from the frame in force; NULL (and no error) when out of memory. The longest
   free memory of the size is used again, once RP__HANDLE_QUARANTINE others are free; never with REPRISE_CHECK=1. */
void *rp__handle_new(rp__handle_kind kind, size_t bytes);
/* The object is gone: its memory becomes zero, and free. NULL is nothing. */
void rp__handle_free(void *object);
enum { RP__HANDLE_QUARANTINE = 64 };

/* Objects are given as they are: their first member is the handle. Is it one of that kind, made and not released? */
static inline bool rp__handle_is(const void *object, rp__handle_kind kind) {
    const rp__handle *const h = object;
    return h && atomic_load_explicit(&h->state, memory_order_relaxed) == RP__HANDLE_STATE(kind, true);
}
/* Why an object that failed the check is none: NULL, of another kind, released, or never made. Sets the sticky error. */
rp_status rp__handle_refuse(const void *object, rp__handle_kind kind, const char *call);
/* What the object is, by its first word: "stream"; NULL: of no kind that there is. */
const char *rp__handle_kind_of(const void *object);
/* What every public call asks of what it is given; `call` is its name. */
static inline rp_status rp__handle_check(const void *object, rp__handle_kind kind, const char *call) {
    return RP__LIKELY(rp__handle_is(object, kind)) ? RP_OK : rp__handle_refuse(object, kind, call);
}
/* The program gives up its reference; false and a sticky error when it has none, or the object is of another kind. */
bool rp__handle_give_up(void *object, rp__handle_kind kind, const char *call);

#endif
