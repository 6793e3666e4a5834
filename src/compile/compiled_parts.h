/* What the files of compiled functions share; nobody else includes it. compiled.c serves the calls: with a specialisation whose
   guards hold, or a new one (specialisation.c), traced as the function ran or without computing (retrace.c), or, where
   a function cannot be one graph, in segments (segments.c). */
#ifndef RP_COMPILE_COMPILED_PARTS_H
#define RP_COMPILE_COMPILED_PARTS_H

#include "compile/backend.h"
#include "compile/callable.h"
#include "compile/guards.h"
#include "compile/instances.h"
#include "compile/program.h"
#include "trace/trace.h"

typedef struct rp__specialisation {
    atomic_uint refs;
    rp__guards guards;
    rp__trace_result trace; /* ir and effects on gradients */
    rp__hash hash;
    rp__explain *explain; /* what is said of it; NULL: nothing */
    const rp__engine *engine;
    void *object;
    size_t n_out; /* of the function */
    uint64_t calls;
    uint64_t *arg_ids; /* of the tensors that were its arguments when it was recorded */
    bool symbolic;
    bool *by_rows;                     /* of its pattern; NULL: not symbolic */
    bool repeats;                      /* the function gives one tensor as several of its results */
    bool holds_replayed;               /* it captured outputs of a replay, which a later one overwrites */
    bool moves_gradients;              /* the graph reads or leaves gradients of leaves */
    _Atomic(rp__executable *) program; /* what a call comes down to; NULL: more than a program, or not known yet */
    struct rp__specialisation *next;
} rp__specialisation;

typedef struct rp__segment {
    void *object; /* NULL: node by node */
    rp__explain *explain;
    uint64_t used;  /* in call number `used` of those that ran in segments */
    uint64_t bytes; /* of device memory, when it ran last */
} rp__segment;

typedef struct rp__compiled {
    rp_compiled base;
    const rp__engine *engine;
    rp_compile_options options;
    rp__mutex lock;           /* list, segments; held while a call is traced */
    rp__specialisation *list; /* most recently used first */
    size_t n;
    size_t n_made, n_segments; /* so far; they are numbered */
    rp__engine_options engine_options;
    size_t *free_strides; /* options.free_strides */
    rp__instances *instances;
    /* There never were two specialisations at a time: a call may keep the lock and take no other, as calls of one program
       take turns anyway. */
    bool alone;
    bool lazy; /* trace-and-flush, because of: */
    rp__reason lazy_reason;
    char lazy_site[256];
    unsigned ctx_misses;    /* calls that were recorded anew because bytes of ctx differed, and gave another graph */
    rp__map segments;       /* hash -> segment */
    uint64_t segment_bytes; /* of all */
    uint64_t segment_calls; /* calls that ran in segments */
    uint64_t resets;        /* rp_compile_reset has been heard so often */
    _Atomic uint64_t given; /* rp__engine_request.given */
} rp__compiled;

/* ---- specialisation.c: all but release and run under the lock of the function */
void rp__specialisation_release(rp__specialisation *s); /* one count of s->refs */
void rp__specialisation_drop(rp__compiled *c, const rp__specialisation *s);
/* The backend's object for a graph; NULL and RP_OK when it could not and that is not to be an error. */
rp_status rp__specialisation_compile(rp__compiled *c, const rp__engine_request *of, void **object);
/* First in the list. Takes the trace over. environment: as the function found it. sizes, strides: words per argument; NULL:
   numbers. */
rp_status rp__specialisation_make(rp__compiled *c, rp__trace_result *trace, uint64_t environment, rp_tensor *const *in,
                                  size_t n_in, size_t n_out, const rp_dim *const *sizes, const rp_dim *const *strides,
                                  rp__specialisation **out);
rp_status rp__specialisation_run(rp__specialisation *s, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                                 size_t n_out);

/* ---- retrace.c */
typedef struct rp__pattern { /* words of arguments whose sizes changed; NULL entries: as the tensor */
    rp__symbols *symbols;
    rp_dim (*size)[RP_MAX_DIMS], (*stride)[RP_MAX_DIMS];
    const rp_dim **sizes, **strides;
    bool *by_rows; /* per argument: its strides follow from its sizes */
} rp__pattern;
/* What differs from the call for which `from` was made. To be freed, also on failure. */
rp_status rp__pattern_make(const rp__specialisation *from, rp_tensor *const *in, size_t n_in, rp__pattern *p);
void rp__pattern_free(rp__pattern *p);
/* The function, without computing; p: NULL, or the words of its sizes. */
rp_status rp__retrace_abstract(rp__compiled *c, const rp__pattern *p, rp_tensor *const *in, size_t n_in, size_t n_out,
                               rp__trace_result *result);
/* Why the graph of a trace may not stand for the function. */
rp__reason rp__retrace_unusable(const rp__trace_result *r);
bool rp__retrace_same_outside(const rp__trace_result *a, const rp__trace_result *b);
/* What tracing a call again shows. */
typedef enum rp__verdict {
    RP__RETRACE_PURE,
    RP__RETRACE_OTHER_CALL, /* the specialisation does not stand for this call, another may */
    RP__RETRACE_FAILS,      /* without computing, the function fails: so may the call */
    RP__RETRACE_UNUSABLE    /* from now on the function runs at every call */
} rp__verdict;
/* Traces the call again and compares. Not RP_OK: out of memory. */
rp_status rp__retrace(rp__compiled *c, rp__specialisation *s, rp_tensor *const *in, size_t n_in, size_t n_out,
                      rp__verdict *v, rp__trace_result *again, rp__reason *reason, rp__text *detail);

/* ---- segments.c, under the lock of the function */
/* From now on it runs at every call. */
void rp__segments_only(rp__compiled *c, rp__reason reason, const char *site, const char *detail);
void rp__segments_clear(rp__compiled *c);
/* Runs the function and records it; what it must have computed before its end is run in segments. */
rp_status rp__segments_trace(rp__compiled *c, rp__trace_mode mode, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                             size_t n_out, rp__trace_result *result);
/* Under fullgraph the values are true, and the call is an error all the same. */
rp_status rp__segments_fullgraph(const rp__compiled *c);
rp_status rp__segments_call(rp__compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
/* A call of which an abstract trace fails: if the function fails here, too, that is all that there is to it; the next call may
   fare better. Otherwise it cannot be traced, and runs at every call. */
rp_status rp__segments_call_failing(rp__compiled *c, const char *detail, rp_tensor *const *in, size_t n_in,
                                    rp_tensor **out, size_t n_out);

#endif
