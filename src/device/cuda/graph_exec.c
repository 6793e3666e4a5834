/* The executables of one CUDA graph. Re-pointing a node costs the host a good part of a launch, as its parameters go to the
 * device: so changes are gathered until the launch, and a graph whose parameters keep coming back (a ring of input buffers,
 * results of which the caller holds the last) gets up to RP__GRAPH_EXECS executables, each with the parameters of a recent
 * launch: then a moved input costs a comparison. Called by graph.c; knows nothing of who launches.
 *
 * Launches of one executable are put in order by the driver, on whatever streams they are; two executables share the memory
 * of the graph, so that only the stream orders them: another one than the last is taken on the stream of the last launch
 * only. */
#include "device/cuda/graph_exec.h"

#include <string.h>

#include "core/alloc.h"

/* Nodes of all executables of a graph: one takes about 10 KB of device memory a node. RETURNS: a first one may be by chance. */
enum { ALL_NODES = 1024, RETURNS = 2 };

static const rp__libcuda *driver_of(const rp__device *d) { return rp__cuda_of(d)->cu; }

static CUresult instantiate(rp__device *d, CUgraph graph, rp_stream *upload_on, CUgraphExec *out, int *result) {
    CUDA_GRAPH_INSTANTIATE_PARAMS p;
    memset(&p, 0, sizeof p);
    *out = NULL;
    if (upload_on) {
        p.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
        p.hUploadStream = upload_on->native;
    }
    CUstreamCaptureMode mode = rp__cuda_relax(d);
    CUresult status = driver_of(d)->cuGraphInstantiateWithParams(out, graph, &p);
    rp__cuda_unrelax(d, mode);
    *result = (int)p.result_out;
    return status;
}

void rp__graph_execs_count(rp__graph_execs *e, _Atomic uint64_t *count) {
    e->count = count;
    if (count) atomic_fetch_add_explicit(count, e->n, memory_order_relaxed);
}

rp_status rp__graph_execs_begin(rp__device *d, rp__graph_execs *e, CUgraph graph, rp_stream *upload_on, bool single) {
    size_t nodes = 0;
    int result;
    rp__graph_execs_free(d, e, true);
    rp_status status =
        rp__cuda_status(d, instantiate(d, graph, upload_on, &e->list[0].exec, &result), "cuGraphInstantiateWithParams");
    if (status == RP_OK && result != CUDA_GRAPH_INSTANTIATE_SUCCESS)
        status =
            rp__fail(RP_ERROR_DRIVER, "cuGraphInstantiateWithParams on cuda:%d: result %d", (int)d->id.index, result);
    if (status == RP_OK) status = RP__CU(d, cuGraphGetNodes(graph, NULL, &nodes));
    if (status != RP_OK) {
        rp__graph_execs_free(d, e, true);
        return status;
    }
    e->n = 1;
    if (e->count) atomic_fetch_add_explicit(e->count, 1, memory_order_relaxed);
    size_t room = single || nodes > ALL_NODES ? 1 : ALL_NODES / (nodes + !nodes);
    e->limit = room < RP__GRAPH_EXECS ? (unsigned)room : RP__GRAPH_EXECS;
    return RP_OK;
}

static void destroy(rp__device *d, CUgraphExec exec) {
    CUstreamCaptureMode mode = rp__cuda_relax(d);
    (void)driver_of(d)->cuGraphExecDestroy(exec);
    rp__cuda_unrelax(d, mode);
}

void rp__graph_execs_free(rp__device *d, rp__graph_execs *e, bool driver) {
    for (unsigned k = 0; k < RP__GRAPH_EXECS; k++) {
        if (e->list[k].exec && driver) destroy(d, e->list[k].exec);
        rp__free(e->list[k].words);
    }
    rp__free(e->moving);
    rp__free(e->template_words);
    if (e->count) atomic_fetch_sub_explicit(e->count, e->n, memory_order_relaxed);
    *e = (rp__graph_execs){.count = e->count};
}

/* A node moves for the first time: all executables have what its launch says. */
static rp_status add_moving(rp__graph_execs *e, CUgraphNode node, rp__launch *launch) {
    size_t n = e->n_words + launch->n_words;
    bool ok = RP__GROW(&e->moving, &e->moving_capacity, e->n_moving + 1) &&
              RP__GROW(&e->template_words, &e->template_capacity, n);
    for (unsigned k = 0; k < e->n && ok; k++) ok = RP__GROW(&e->list[k].words, &e->list[k].capacity, n);
    if (!ok) return RP__OOM("parameters of a CUDA graph");
    e->moving[e->n_moving++] = (rp__graph_moving){node, launch, e->n_words};
    memcpy(e->template_words + e->n_words, launch->words, launch->n_words * sizeof *launch->words);
    for (unsigned k = 0; k < e->n; k++)
        memcpy(e->list[k].words + e->n_words, launch->words, launch->n_words * sizeof *launch->words);
    e->n_words = n;
    return RP_OK;
}

rp_status rp__graph_execs_move(rp__graph_execs *e, CUgraphNode node, rp__launch *launch, bool *moving) {
    if (!*moving) RP_TRY(add_moving(e, node, launch));
    *moving = e->stale = true;
    return RP_OK;
}

static bool differs(const rp__graph_exec *x, const rp__graph_moving *m) {
    return memcmp(x->words + m->at, m->launch->words, m->launch->n_words * sizeof *x->words) != 0;
}

static bool fits(const rp__graph_execs *e, const rp__graph_exec *x) {
    for (size_t k = 0; k < e->n_moving; k++)
        if (differs(x, &e->moving[k])) return false;
    return true;
}

/* Have these parameters been asked for lately? They are noted. */
static bool come_back(rp__graph_execs *e) {
    uint64_t hash = 0;
    for (size_t k = 0; k < e->n_moving; k++) {
        const rp__launch *l = e->moving[k].launch;
        for (uint32_t w = 0; w < l->n_words; w++)
            hash = (hash ^ l->words[w]) * UINT64_C(0x9e3779b97f4a7c15) + (hash >> 29);
    }
    bool known = false;
    for (unsigned k = 0; k < e->n_seen && k < RP__GRAPH_SEEN; k++) known = known || e->seen[k] == hash;
    if (!known) e->seen[e->n_seen++ % RP__GRAPH_SEEN] = hash;
    return known;
}

/* One more executable, as the template is; without one, without an error too, the graph stays with those that it has. */
static rp__graph_exec *add_exec(rp__device *d, rp__graph_execs *e, CUgraph graph, rp_stream *s) {
    rp__graph_exec *x = &e->list[e->n];
    int result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    x->words = rp__alloc(e->n_words * sizeof *x->words);
    bool ok = x->words && instantiate(d, graph, s, &x->exec, &result) == CUDA_SUCCESS &&
              result == CUDA_GRAPH_INSTANTIATE_SUCCESS;
    if (!ok) {
        if (x->exec) destroy(d, x->exec);
        rp__free(x->words);
        memset(x, 0, sizeof *x);
        e->limit = e->n;
        return NULL;
    }
    x->capacity = e->n_words;
    memcpy(x->words, e->template_words, e->n_words * sizeof *x->words);
    e->n++;
    if (e->count) atomic_fetch_add_explicit(e->count, 1, memory_order_relaxed);
    return x;
}

static rp_status patch(rp__device *d, const rp__graph_execs *e, rp__graph_exec *x) {
    for (size_t k = 0; k < e->n_moving; k++) {
        const rp__graph_moving *m = &e->moving[k];
        void *params[RP__CUDA_PARAMS];
        CUDA_KERNEL_NODE_PARAMS kernel;
        if (!differs(x, m)) continue;
        RP_TRY(rp__cuda_kernel_params(m->launch, params, &kernel));
        RP_TRY(RP__CU(d, cuGraphExecKernelNodeSetParams(x->exec, m->node, &kernel)));
        memcpy(x->words + m->at, m->launch->words, m->launch->n_words * sizeof *x->words);
    }
    return RP_OK;
}

/* Makes list[now] the executable with the parameters of the next launch. */
static rp_status choose(rp__device *d, rp__graph_execs *e, CUgraph graph, rp_stream *s) {
    bool free_choice = s->id == e->stream && !s->capture;
    unsigned oldest = 0;
    rp__graph_exec *x = &e->list[e->now];
    if (fits(e, x)) return RP_OK;
    /* From the one behind the last on: buffers that take turns have made them in this order. */
    for (unsigned i = 1, k = e->now; i < e->n && free_choice; i++) {
        k = k + 1 < e->n ? k + 1 : 0;
        if (fits(e, &e->list[k])) {
            e->now = k;
            return RP_OK;
        }
        if (e->list[k].used < e->list[oldest].used) oldest = k;
    }
    if (free_choice) x = &e->list[oldest];
    if (free_choice && e->n < e->limit && come_back(e) && ++e->returns >= RETURNS) {
        rp__graph_exec *more = add_exec(d, e, graph, s);
        if (more) x = more;
    }
    RP_TRY(patch(d, e, x));
    e->now = (unsigned)(x - e->list);
    return RP_OK;
}

rp_status rp__graph_execs_launch(rp__device *d, rp__graph_execs *e, CUgraph graph, rp_stream *s) {
    if (RP__UNLIKELY(e->n == 0)) return rp__fail(RP_ERROR_STATE, "a CUDA graph is launched before it was instantiated");
    if (e->stale) {
        RP_TRY(choose(d, e, graph, s));
        e->stale = false;
    }
    e->stream = s->id;
    e->list[e->now].used = ++e->turn;
    return rp__cuda_status(d, driver_of(d)->cuGraphLaunch(e->list[e->now].exec, s->native), "cuGraphLaunch");
}
