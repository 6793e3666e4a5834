/* What the files of tracing share; nobody else includes it. trace.c records and computes; trace_grad.c watches what the
   function does with gradients, and says whether a graph may stand for it. */
#ifndef RP_TRACE_TRACE_PARTS_H
#define RP_TRACE_TRACE_PARTS_H

#include "autograd/tape.h"
#include "trace/flow.h"
#include "trace/ir_run.h"
#include "trace/trace.h"

/* What a handle holds while a trace knows it. */
struct rp__trace_value {
    rp__trace *trace; /* NULL: the trace has ended without computing it */
    rp_tensor *tensor;
    rp__ir_value value;
    struct rp__trace_value *next, *previous;
};

typedef struct rp__trace_outside { /* a tensor that was not made by a recorded op */
    rp_tensor *tensor;             /* retained */
    rp__ir_value value;            /* now: an in-place op gives it another */
    uint32_t arg; /* ABSTRACT: it is argument `arg`, behind whose stand-in fn should not get; RP__IR_NONE */
    bool reached; /* fn used it all the same */
} rp__trace_outside;

typedef struct rp__trace_memory { /* a storage of the graph */
    rp__storage *storage;         /* retained; NULL: given back early */
    rp_dim base;                  /* offset of the first tensor met in it: the graph counts from there */
    rp__ir_value first;           /* pending memory: the value that covers it; RP__IR_NONE: memory from outside */
    rp__ir_value last;            /* the latest value in it; RP__IR_NONE: none yet */
    bool written;                 /* from outside: `version` is what it was */
    uint64_t version;
    const char *writer_op, *writer_site;
} rp__trace_memory;

typedef struct rp__trace_watch { /* .grad of a tensor that the function reads or sets */
    rp_tensor *tensor;           /* retained; the stand-in of an ABSTRACT argument */
    rp_tensor *entry;            /* retained; NULL: none */
    uint32_t arg, input;
} rp__trace_watch;

typedef struct rp__trace_history { /* of a tensor from outside, as it was before the trace changed it */
    rp_tensor *tensor;             /* retained */
    rp__tape_node *node;           /* counted; NULL: none */
    uint32_t out_index;
    uint64_t view_version;
} rp__trace_history;

typedef struct rp__trace_counter {
    rp_generator *generator;
    rp_dim used;
} rp__trace_counter;

struct rp__trace {
    rp__trace *around;
    const rp__trace_request *request;
    rp__trace_result *result;
    rp__trace_mode mode;
    rp_ir *ir;
    rp_scope scope;
    uint64_t first_id;              /* what is made inside has this id or a later one */
    struct rp__trace_value *values; /* live handles */
    rp__trace_outside *outside;
    size_t n_outside, outside_capacity;
    rp__map by_handle, by_storage; /* index + 1 */
    rp__trace_memory *memory;      /* by storage number; those of values inside regions are empty */
    size_t n_memory, memory_capacity;
    rp__ir_value *before; /* per value in some memory: the one that came before it there */
    size_t before_capacity;
    rp__trace_watch *watches;
    size_t n_watches, watches_capacity;
    rp__map by_watched, by_entry; /* tensor and .grad at entry -> watch, index + 1 */
    rp__trace_history *histories; /* since what was recorded last was computed */
    size_t n_histories, histories_capacity;
    rp__trace_counter *counters;
    size_t n_counters, counters_capacity;
    rp_tensor **operands; /* tensors behind arguments past n_in; borrowed from `outside` */
    size_t n_operands, operands_capacity;
    rp_tensor **stand_in; /* ABSTRACT: the arguments that fn sees; in the scope */
    int hooks,
        leaf_hooks; /* registered while recording, less those removed: on results, on what outlives the function */
    const char *hook_site;
    const char *untaped_site; /* of a write without tape into memory whose values carry gradients; NULL: none */
    rp__flow flow;            /* of a derived trace, as far as it was asked */
    /* The graph cannot stand for the function, which may have taken the error and gone on: this is what comes of the trace. */
    rp_status spoilt;
    bool busy; /* computing: not to be entered again */
};

/* by_handle */
static inline rp__hash rp__trace_key(const void *p) {
    return (rp__hash){rp__hash_mix((uint64_t)(uintptr_t)p, 1), (uint64_t)(uintptr_t)p};
}
/* by_storage */
static inline rp__hash rp__trace_key_of_id(uint64_t id) { return (rp__hash){rp__hash_mix(id, 2), id}; }
/* SIZE_MAX: absent */
static inline size_t rp__trace_index(const rp__map *m, rp__hash key) {
    return (size_t)(uintptr_t)rp__map_get(m, key) - 1;
}

/* ---- trace_grad.c */

/* Stands between an argument with history and what a trace makes of it: a backward inside that arrives here leaves the
   function. */
extern const rp__tape_class rp__trace_alias_class;
void rp__trace_watch_gradients(void); /* installs the hooks of autograd */
/* Notes in the result why the gradients of `out` are not those of the graph, or makes its marks agree with the tape. */
rp_status rp__trace_judge(rp__trace *t, rp_tensor *const *out);
void rp__trace_restore_gradients(rp__trace *t);
/* What was recorded is not computed: tensors from outside get the histories back that they had before. */
void rp__trace_restore_histories(rp__trace *t);
void rp__trace_forget_histories(rp__trace *t);
/* Operands of a call that a derived trace records, as they are under the function's grad mode: in[k] becomes a detached value. */
rp_status rp__trace_cut_operands(rp__trace *t, const rp__call *call, rp__ir_value *in);
/* What .grad of watched tensors is at the end: results[*n...] and effects. */
rp_status rp__trace_exit_gradients(rp__trace *t, rp__ir_value *results, uint32_t *n);

#endif
