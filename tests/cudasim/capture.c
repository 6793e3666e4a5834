/* Stream capture: which streams and events belong to which capture, and every rule that makes a capture fail. The error
 * of each rule is the one that the real driver returns. */
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static sim_capture *captures;
static unsigned long long next_id = 1;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* A number for the thread; pthread_t is opaque. */
static unsigned long this_thread(void) {
    static unsigned long threads;
    static _Thread_local unsigned long mine;
    if (!mine) {
        mine = ++threads; /* under the driver's lock */
    }
    return mine;
}

sim_capture *sim_capture_find(unsigned long long id) {
    sim_capture *c = captures;
    while (c && c->id != id) {
        c = c->next;
    }
    return c;
}

void sim_capture_invalidate(sim_capture *capture) { capture->invalid = true; }

bool sim_capture_any(CUcontext ctx, sim_capture **which) {
    for (CUstream s = sim_streams; s; s = s->next) {
        if (s->capture && s->ctx == ctx) {
            *which = s->capture;
            return true;
        }
    }
    return false;
}

CUresult sim_capture_unsafe(void) {
    if (!captures || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    for (sim_capture *c = captures; c; c = c->next) {
        bool mine = c->thread == this_thread() && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (mine || global) {
            sim_capture_invalidate(c);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult sim_capture_implicit(CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    if (stream != &sim_legacy) {
        return result;
    }
    for (CUstream s = sim_streams; s; s = s->next) {
        if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING)) {
            sim_capture_invalidate(s->capture);
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return result;
}

CUresult sim_capture_usable(CUstream stream) {
    return stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

void sim_capture_set(CUstream stream, CUgraphNode const *deps, const CUgraphEdgeData *edges, size_t n) {
    CUgraphNode *new_deps = sim_alloc(n + 1, sizeof *new_deps);
    CUgraphEdgeData *new_edges = sim_alloc(n + 1, sizeof *new_edges);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        for (size_t j = 0; j < kept; j++) {
            known = known || new_deps[j] == deps[i];
        }
        if (!known) {
            new_deps[kept] = deps[i];
            if (edges) {
                new_edges[kept] = edges[i];
            }
            kept++;
        }
    }
    free(stream->deps);
    free(stream->edges);
    stream->deps = new_deps;
    stream->edges = new_edges;
    stream->n_deps = kept;
}

static void add_deps(CUstream stream, CUgraphNode const *deps, const CUgraphEdgeData *edges, size_t n) {
    size_t all = stream->n_deps + n;
    CUgraphNode *d = sim_alloc(all + 1, sizeof *d);
    CUgraphEdgeData *e = sim_alloc(all + 1, sizeof *e);
    for (size_t i = 0; i < all; i++) {
        bool old = i < stream->n_deps;
        d[i] = old ? stream->deps[i] : deps[i - stream->n_deps];
        if (old) {
            e[i] = stream->edges[i];
        } else if (edges) {
            e[i] = edges[i - stream->n_deps];
        }
    }
    sim_capture_set(stream, d, e, all);
    free(d);
    free(e);
}

CUresult sim_capture_record(CUevent event, CUstream stream) {
    CUresult result = sim_capture_usable(stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    event->capture_id = stream->capture->id;
    free(event->deps);
    free(event->edges);
    event->n_deps = stream->n_deps;
    event->deps = sim_alloc(stream->n_deps + 1, sizeof *event->deps);
    event->edges = sim_alloc(stream->n_deps + 1, sizeof *event->edges);
    if (stream->n_deps) {
        memcpy(event->deps, stream->deps, stream->n_deps * sizeof *event->deps);
        memcpy(event->edges, stream->edges, stream->n_deps * sizeof *event->edges);
    }
    return CUDA_SUCCESS;
}

CUresult sim_capture_wait(CUstream stream, CUevent event, bool *handled) {
    sim_capture *of_event = event->capture_id ? sim_capture_find(event->capture_id) : NULL;
    if (stream->capture && stream->capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (event->capture_id && !of_event) { /* that capture has ended */
        if (stream->capture) {
            sim_capture_invalidate(stream->capture);
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (!of_event && !stream->capture) {
        return CUDA_SUCCESS;
    }
    *handled = true;
    if (!of_event) {
        if (!event->recorded) {
            return CUDA_SUCCESS;
        }
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (of_event->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (stream == &sim_legacy) {
        sim_capture_invalidate(of_event);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture && stream->capture != of_event) {
        sim_capture_invalidate(stream->capture);
        sim_capture_invalidate(of_event);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!stream->capture) { /* the stream joins the capture */
        stream->capture = of_event;
        sim_capture_set(stream, NULL, NULL, 0);
    }
    add_deps(stream, event->deps, event->edges, event->n_deps);
    return CUDA_SUCCESS;
}

/* ---- The API ---- */

static CUresult begin(CUstream stream, CUgraph graph, CUgraphNode const *deps, const CUgraphEdgeData *edges, size_t n,
                      CUstreamCaptureMode mode) {
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return result;
    }
    if (s == &sim_legacy) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if ((unsigned int)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (s->capture) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    sim_capture *c = sim_alloc(1, sizeof *c);
    c->id = next_id++;
    c->mode = mode;
    c->graph = graph ? graph : sim_graph_new();
    c->own_graph = !graph;
    c->origin = s;
    c->thread = this_thread();
    c->next = captures;
    captures = c;
    c->graph->capturing = c;
    s->capture = c;
    sim_capture_set(s, deps, edges, n);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    SIM_BEGIN();
    return sim_end(begin(stream, NULL, NULL, NULL, 0, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps,
                                     const CUgraphEdgeData *edges, size_t n, CUstreamCaptureMode mode) {
    SIM_BEGIN();
    if (!sim_handle_is(graph, SIM_GRAPH) || graph->capturing || (n && !deps)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < n; i++) {
        if (!sim_handle_is(deps[i], SIM_NODE) || deps[i]->graph != graph) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
    }
    return sim_end(begin(stream, graph, deps, edges, n, mode));
}

/* `node` is one of `deps` or before one of them. `seen` has a flag for each node of the graph. */
static void mark_before(CUgraphNode node, bool *seen) {
    if (seen[node->index]) {
        return;
    }
    seen[node->index] = true;
    for (size_t i = 0; i < node->n_deps; i++) {
        mark_before(node->deps[i].node, seen);
    }
}

static bool all_joined(const sim_capture *c) {
    bool *seen = sim_alloc(c->graph->n_nodes + 1, sizeof *seen);
    bool joined = true;
    for (size_t i = 0; i < c->origin->n_deps; i++) {
        mark_before(c->origin->deps[i], seen);
    }
    for (CUstream s = sim_streams; s; s = s->next) {
        for (size_t i = 0; s->capture == c && s != c->origin && i < s->n_deps; i++) {
            joined = joined && seen[s->deps[i]->index];
        }
    }
    free(seen);
    return joined;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return sim_end(result);
    }
    if (graph) {
        *graph = NULL;
    }
    if (!s->capture) {
        return sim_end(CUDA_ERROR_ILLEGAL_STATE);
    }
    sim_capture *c = s->capture;
    if (c->origin != s) {
        sim_capture_invalidate(c);
        return sim_end(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != this_thread()) {
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; /* and the capture is over: seen on an H200, driver 580 */
    } else if (c->invalid) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (!all_joined(c)) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    for (CUstream t = sim_streams; t; t = t->next) {
        if (t->capture == c) {
            t->capture = NULL;
            t->n_deps = 0;
        }
    }
    for (sim_capture **link = &captures; *link; link = &(*link)->next) {
        if (*link == c) {
            *link = c->next;
            break;
        }
    }
    c->graph->capturing = NULL;
    if (result != CUDA_SUCCESS && c->own_graph) {
        sim_graph_free(c->graph);
    } else if (result == CUDA_SUCCESS && graph) {
        *graph = c->graph;
    }
    free(c);
    return sim_end(result);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s || !status) {
        return sim_end(s ? CUDA_ERROR_INVALID_VALUE : result);
    }
    result = sim_capture_implicit(s);
    *status = !s->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
              : s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return sim_end(result);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **deps, const CUgraphEdgeData **edges, size_t *n) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s || !status) {
        return sim_end(s ? CUDA_ERROR_INVALID_VALUE : result);
    }
    result = sim_capture_implicit(s);
    if (result != CUDA_SUCCESS || !s->capture || s->capture->invalid) {
        *status = s->capture ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_NONE;
        return sim_end(result);
    }
    for (size_t i = 0; deps && !edges && i < s->n_deps; i++) {
        if (s->edges[i].type || s->edges[i].from_port) {
            return sim_end(CUDA_ERROR_LOSSY_QUERY);
        }
    }
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id) {
        *id = s->capture->id;
    }
    if (graph) {
        *graph = s->capture->graph;
    }
    if (deps) {
        *deps = s->deps;
    }
    if (edges) {
        *edges = s->edges;
    }
    if (n) {
        *n = s->n_deps;
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **deps, size_t *n) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, deps, NULL, n);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *deps, const CUgraphEdgeData *edges,
                                              size_t n, unsigned int flags) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return sim_end(result);
    }
    if (!s->capture) {
        return sim_end(CUDA_ERROR_ILLEGAL_STATE);
    }
    result = sim_capture_usable(s);
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (n && !deps)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < n; i++) {
        if (!sim_handle_is(deps[i], SIM_NODE) || deps[i]->graph != s->capture->graph) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
    }
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        sim_capture_set(s, deps, edges, n);
    } else {
        add_deps(s, deps, edges, n);
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    SIM_BEGIN();
    if (!mode || (unsigned int)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return sim_end(CUDA_SUCCESS);
}

static const CUgraphEdgeData programmatic_edge = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                                  .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};

CUresult sim_capture_add(CUstream stream, CUgraphNodeType type, bool programmatic, CUgraphNode *node) {
    CUresult result = sim_capture_usable(stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    bool kernels = type == CU_GRAPH_NODE_TYPE_KERNEL;
    for (size_t i = 0; i < stream->n_deps; i++) {
        kernels = kernels && stream->deps[i]->type == CU_GRAPH_NODE_TYPE_KERNEL;
    }
    for (size_t i = 0; i < stream->n_deps; i++) { /* edges of a programmatic event hold for kernels only */
        if (type != CU_GRAPH_NODE_TYPE_KERNEL) {
            stream->edges[i] = (CUgraphEdgeData){0};
        } else if (programmatic && kernels) {
            stream->edges[i] = programmatic_edge;
        }
    }
    *node = sim_node_new(stream->capture->graph, type, stream->deps, stream->edges, stream->n_deps);
    sim_capture_set(stream, node, NULL, 1);
    return CUDA_SUCCESS;
}
