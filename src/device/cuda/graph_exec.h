/* The executables of one CUDA graph (graph_exec.c). Included by graph.c alone. */
#ifndef RP_DEVICE_CUDA_GRAPH_EXEC_H
#define RP_DEVICE_CUDA_GRAPH_EXEC_H

#include "device/cuda/cuda.h"

enum { RP__GRAPH_EXECS = 16, RP__GRAPH_SEEN = RP__GRAPH_EXECS }; /* more places in turn than executables serve none */

typedef struct rp__graph_exec {
    CUgraphExec exec;
    uint64_t *words; /* parameters of moving nodes as this executable has them */
    size_t capacity;
    uint64_t used; /* turn of its last launch */
} rp__graph_exec;

/* A kernel node whose parameters have been changed since the graph was instantiated. */
typedef struct rp__graph_moving {
    CUgraphNode node;
    rp__launch *launch; /* borrowed from the graph's table; its words are what the next launch is to use */
    size_t at;          /* of its words */
} rp__graph_moving;

typedef struct rp__graph_execs { /* all zero: none */
    rp__graph_exec list[RP__GRAPH_EXECS];
    unsigned n, now, limit; /* now: the one launched last */
    rp__graph_moving *moving;
    size_t n_moving, moving_capacity;
    uint64_t *template_words; /* of moving nodes: a new executable starts with them */
    size_t n_words, template_capacity;
    bool stale;                    /* some moving node may differ from what list[now] has */
    uint64_t turn, stream;         /* launches so far; the stream of the last */
    uint64_t seen[RP__GRAPH_SEEN]; /* hashes of the last parameters for which no executable was there */
    unsigned n_seen, returns;      /* returns: how often one of them came back */
    _Atomic uint64_t *count;       /* somebody's, who outlives this: goes up and down with n; NULL */
} rp__graph_execs;

rp_status rp__graph_execs_begin(rp__device *d, rp__graph_execs *e, CUgraph graph, rp_stream *upload_on, bool single);
void rp__graph_execs_free(rp__device *d, rp__graph_execs *e, bool driver);
/* Before launch->words change: the next launch uses them as they are then. *moving: false the first time, true from then on. */
rp_status rp__graph_execs_move(rp__graph_execs *e, CUgraphNode node, rp__launch *launch, bool *moving);
/* From now on *count also counts these. */
void rp__graph_execs_count(rp__graph_execs *e, _Atomic uint64_t *count);
rp_status rp__graph_execs_launch(rp__device *d, rp__graph_execs *e, CUgraph graph, rp_stream *s);

#endif
