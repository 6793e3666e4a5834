/* Device graphs on CUDA: explicit ones, built node by node from launch records, and captured ones, whose nodes are read back
 * after each launch of ours. Both end in one table of nodes, so that both can be re-pointed. */
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "device/capture.h"
#include "device/cuda/graph_exec.h"

typedef struct node {
    rp__launch
        *launch; /* a copy; words are what the next launch uses. NULL: foreign node, or copies and fills of a capture */
    CUgraphNode *exits; /* what a successor depends on: one for a kernel, the frontier of a captured library call */
    size_t n_exits;
    bool moving; /* see rp__graph_execs_move */
} node;

struct rp__devgraph {
    rp__device *device;
    CUgraph graph;
    rp__graph_execs execs;
    node *nodes;
    size_t n_nodes, capacity;
    rp__devgraph *root;   /* of a body: the graph that is launched, whose executable has its nodes */
    rp__devgraph *bodies; /* of its choices, linked by next; the driver owns their graphs */
    rp__devgraph *next;
};

static rp__cuda *state(const rp__devgraph *g) { return rp__cuda_of(g->device); }

static rp__devgraph *graph_struct(rp__device *d) {
    rp__devgraph *g = rp__calloc(1, sizeof *g);
    if (g)
        g->device = d;
    else
        (void)RP__OOM("CUDA graph");
    return g;
}

rp_status rp__cuda_graph_new(rp__device *d, rp__devgraph **out) {
    *out = NULL;
    RP_TRY(rp__cuda_enter(d));
    rp__devgraph *g = graph_struct(d);
    if (!g) return RP_ERROR_OUT_OF_MEMORY;
    rp_status status = RP__CU(d, cuGraphCreate(&g->graph, 0));
    if (status != RP_OK) {
        rp__free(g);
        return status;
    }
    *out = g;
    return RP_OK;
}

void rp__cuda_graph_free(rp__devgraph *g) {
    if (!g) return;
    rp__cuda *c = state(g);
    bool driver = rp__cuda_enter_to_free(g->device);
    rp__graph_execs_free(g->device, &g->execs, driver);
    if (driver && g->graph && !g->root) (void)c->cu->cuGraphDestroy(g->graph);
    while (g->bodies) {
        rp__devgraph *body = g->bodies;
        g->bodies = body->next;
        rp__cuda_graph_free(body);
    }
    for (size_t k = 0; k < g->n_nodes; k++) {
        if (g->nodes[k].launch) rp__launch_free(g->nodes[k].launch, false);
        rp__free(g->nodes[k].exits);
    }
    rp__free(g->nodes);
    rp__free(g);
}

size_t rp__cuda_graph_nodes(const rp__devgraph *g) { return g->n_nodes; }

const rp__launch *rp__cuda_graph_node(const rp__devgraph *g, uint32_t k) {
    return k < g->n_nodes ? g->nodes[k].launch : NULL;
}

/* A table entry with copies of launch, NULL for a choice, and exits. */
static rp_status table_add(rp__devgraph *g, const rp__launch *launch, const CUgraphNode *exits, size_t n_exits) {
    if (!RP__GROW(&g->nodes, &g->capacity, g->n_nodes + 1)) return RP__OOM("nodes of a CUDA graph");
    node *n = &g->nodes[g->n_nodes];
    memset(n, 0, sizeof *n);
    n->exits = rp__alloc((n_exits ? n_exits : 1) * sizeof *exits);
    n->launch = launch ? rp__launch_copy(launch, false) : NULL;
    if (!n->exits || (launch && !n->launch)) {
        rp__free(n->exits);
        if (n->launch) rp__launch_free(n->launch, false);
        return RP__OOM("a node of a CUDA graph");
    }
    if (n_exits) memcpy(n->exits, exits, n_exits * sizeof *exits);
    n->n_exits = n_exits;
    g->n_nodes++;
    return RP_OK;
}

rp_status rp__cuda_kernel_params(const rp__launch *l, void *params[RP__CUDA_PARAMS], CUDA_KERNEL_NODE_PARAMS *out) {
    union {
        const uint64_t *words;
        void *param;
    } at = {.words = l->words};
    params[0] = at.param;
    if (l->kernel->kind == RP__KERNEL_CUDA_USER) {
        if (l->n_words > RP__CUDA_PARAMS)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: a CUDA kernel of a user's op takes at most %d parameters",
                            l->op, (int)RP__CUDA_PARAMS);
        for (uint32_t w = 0; w < l->n_words; w++) {
            at.words = &l->words[w];
            params[w] = at.param;
        }
    }
    memset(out, 0, sizeof *out);
    out->func = l->kernel->function;
    out->gridDimX = l->grid[0];
    out->gridDimY = l->grid[1];
    out->gridDimZ = l->grid[2];
    out->blockDimX = l->block[0];
    out->blockDimY = l->block[1];
    out->blockDimZ = l->block[2];
    out->sharedMemBytes = l->shared_bytes;
    out->kernelParams = params;
    return RP_OK;
}

/* Blocks of an early kernel are placed where those of its predecessor leave room, two on one multiprocessor and none on the
 * next: a light kernel does not mind, but one whose blocks hold tiles in shared memory then computes on a part of the machine.
 * Such a kernel starts on a free machine, behind full edges; with few blocks, which find room anywhere, it may be early. */
static bool placed_freely(const rp__devgraph *g, const rp__launch *launch) {
    return rp__launch_holds_tiles(launch) && rp__launch_blocks(launch) * 8 > (uint64_t)g->device->multiprocessors;
}

/* The dependencies of a new node as driver nodes; an edge is programmatic when both ends are our kernels, all of which wait for
 * their predecessors before they touch memory (cuda-frontier: rules of programmatic dependent launch), and an early start is
 * no loss. */
static rp_status dependencies(rp__devgraph *g, const rp__launch *launch, const uint32_t *deps, size_t n_deps,
                              CUgraphNode **nodes, CUgraphEdgeData **edges, size_t *n) {
    bool ours =
        launch && launch->kernel->kind == RP__KERNEL_CUDA && state(g)->programmatic && !placed_freely(g, launch);
    size_t total = 0;
    *n = 0;
    for (size_t k = 0; k < n_deps; k++) {
        if (deps[k] >= g->n_nodes)
            return rp__fail(RP_ERROR_INTERNAL, "%s: dependency %u of a graph of %zu nodes",
                            launch ? launch->op : "a choice", (unsigned)deps[k], g->n_nodes);
        total += g->nodes[deps[k]].n_exits;
    }
    *nodes = rp__alloc((total ? total : 1) * sizeof **nodes);
    *edges = rp__calloc(total ? total : 1, sizeof **edges);
    if (!*nodes || !*edges) return RP__OOM("dependencies of a CUDA graph node");
    for (size_t k = 0; k < n_deps; k++) {
        const node *from = &g->nodes[deps[k]];
        bool both = ours && from->launch && from->launch->kernel->kind == RP__KERNEL_CUDA;
        for (size_t x = 0; x < from->n_exits; x++, ++*n) {
            (*nodes)[*n] = from->exits[x];
            if (both) {
                (*edges)[*n].from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
                (*edges)[*n].type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
            }
        }
    }
    return RP_OK;
}

static rp_status add_kernel(rp__devgraph *g, const rp__launch *launch, const CUgraphNode *deps,
                            const CUgraphEdgeData *edges, size_t n) {
    rp__device *d = g->device;
    const rp__libcuda *cu = state(g)->cu;
    void *params[RP__CUDA_PARAMS];
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUgraphNode made = NULL;
    RP_TRY(rp__cuda_kernel_params(launch, params, &kernel));
    if (state(g)->programmatic) {
        CUgraphNodeParams p;
        memset(&p, 0, sizeof p);
        p.type = CU_GRAPH_NODE_TYPE_KERNEL;
        p.kernel.func = kernel.func;
        p.kernel.gridDimX = kernel.gridDimX;
        p.kernel.gridDimY = kernel.gridDimY;
        p.kernel.gridDimZ = kernel.gridDimZ;
        p.kernel.blockDimX = kernel.blockDimX;
        p.kernel.blockDimY = kernel.blockDimY;
        p.kernel.blockDimZ = kernel.blockDimZ;
        p.kernel.sharedMemBytes = kernel.sharedMemBytes;
        p.kernel.kernelParams = params;
        RP_TRY(
            rp__cuda_status(d, cu->cuGraphAddNode(&made, g->graph, deps, n ? edges : NULL, n, &p), "cuGraphAddNode"));
    } else {
        RP_TRY(RP__CU(d, cuGraphAddKernelNode(&made, g->graph, deps, n, &kernel)));
    }
    return table_add(g, launch, &made, 1);
}

/* The stream on which library calls are captured into graphs; one thread at a time has it, another makes its own. */
static rp_stream *side_stream_take(rp__device *d) {
    rp__cuda *c = rp__cuda_of(d);
    rp__lock(&c->lock);
    rp_stream *s = c->side_stream;
    c->side_stream = NULL;
    rp__unlock(&c->lock);
    return s ? s : rp__stream_new(d); /* not under the lock, which opening the context takes */
}

static void side_stream_give(rp__device *d, rp_stream *s) {
    rp__cuda *c = rp__cuda_of(d);
    rp__lock(&c->lock);
    if (!c->side_stream && s->native) {
        c->side_stream = s;
        s = NULL;
    }
    rp__unlock(&c->lock);
    if (s) rp__stream_drop(s);
}

/* Ends the capture of a stream, on every path: what else failed, the stream must be usable afterwards. */
static CUresult end_capture(rp__device *d, rp_stream *s, CUgraph *out) {
    const rp__libcuda *cu = rp__cuda_of(d)->cu;
    *out = NULL;
    CUresult result = cu->cuStreamEndCapture(s->native, out);
    if (result != CUDA_SUCCESS) {
        CUgraph rest = NULL;
        if (cu->cuStreamEndCapture(s->native, &rest) == CUDA_SUCCESS && rest && !*out) *out = rest;
    }
    return result;
}

/* Between begin and end of the capture on `side`. */
static rp_status capture_library(rp__devgraph *g, rp_stream *side, const rp__launch *launch) {
    rp__cuda *c = state(g);
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph same = NULL;
    const CUgraphNode *exits = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t n_exits = 0;
    RP_TRY(launch->kernel->enqueue(launch->kernel, side, launch));
    RP_TRY(rp__cuda_status(
        g->device, c->cu->cuStreamGetCaptureInfo(side->native, &capturing, &id, &same, &exits, &edges, &n_exits),
        "cuStreamGetCaptureInfo"));
    return table_add(g, launch, exits, n_exits);
}

/* A library call is captured into the graph behind its dependencies. */
static rp_status add_library(rp__devgraph *g, const rp__launch *launch, const CUgraphNode *deps, size_t n) {
    rp__device *d = g->device;
    rp__cuda *c = state(g);
    if (!c->cu->cuStreamBeginCaptureToGraph || !c->cu->cuStreamGetCaptureInfo)
        return rp__fail(RP_ERROR_UNAVAILABLE, "%s: library calls in graphs need a CUDA driver of 12.3 or later",
                        launch->op);
    rp_stream *side = side_stream_take(d);
    rp_status status = side->native ? RP__CU(d, cuStreamBeginCaptureToGraph(side->native, g->graph, deps, NULL, n,
                                                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
                                    : rp_error_status();
    if (status == RP_OK) {
        CUgraph same = NULL;
        status = capture_library(g, side, launch);
        CUresult ended = end_capture(d, side, &same); /* g's own graph */
        if (status == RP_OK) status = rp__cuda_status(d, ended, "cuStreamEndCapture");
    }
    side_stream_give(d, side);
    return status;
}

rp_status rp__cuda_graph_add(rp__devgraph *g, const rp__launch *launch, const uint32_t *deps, size_t n_deps,
                             uint32_t *out) {
    CUgraphNode *nodes = NULL;
    CUgraphEdgeData *edges = NULL;
    size_t n = 0;
    RP_TRY(rp__cuda_enter(g->device));
    rp_status status = dependencies(g, launch, deps, n_deps, &nodes, &edges, &n);
    if (status == RP_OK)
        status = launch->kernel->kind == RP__KERNEL_CUDA_LIBRARY ? add_library(g, launch, nodes, n)
                                                                 : add_kernel(g, launch, nodes, edges, n);
    rp__free(nodes);
    rp__free(edges);
    if (status == RP_OK && out) *out = (uint32_t)(g->n_nodes - 1);
    return status;
}

/* ---- choices: conditional nodes (CUDA 12.4, with an else 12.8) ---- */

rp_status rp__cuda_graph_choice_new(rp__devgraph *g, bool two, uint64_t *handle) {
    rp__device *d = g->device;
    const rp__libcuda *cu = state(g)->cu;
    int version = 0;
    CUgraphConditionalHandle made = 0;
    RP_TRY(rp__cuda_enter(d));
    RP_TRY(RP__CU(d, cuDriverGetVersion(&version)));
    int needed = two ? 12080 : 12040;
    if (!cu->cuGraphConditionalHandleCreate || !cu->cuGraphAddNode || version < needed)
        return rp__fail(RP_ERROR_UNAVAILABLE,
                        "branches and loops in graphs need a CUDA driver of %d.%d or later, not %d.%d", needed / 1000,
                        needed % 1000 / 10, version / 1000, version % 1000 / 10);
    RP_TRY(rp__cuda_status(
        d, cu->cuGraphConditionalHandleCreate(&made, g->graph, state(g)->ctx, 0, CU_GRAPH_COND_ASSIGN_DEFAULT),
        "cuGraphConditionalHandleCreate"));
    *handle = (uint64_t)made;
    return RP_OK;
}

static rp_status add_choice(rp__devgraph *g, uint64_t handle, bool loop, unsigned n_bodies, const CUgraphNode *deps,
                            size_t n, rp__devgraph *bodies[2]) {
    const rp__libcuda *cu = state(g)->cu;
    CUgraphNode made = NULL;
    CUgraphNodeParams p;
    memset(&p, 0, sizeof p);
    p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    p.conditional.handle = (CUgraphConditionalHandle)handle;
    p.conditional.type = loop ? CU_GRAPH_COND_TYPE_WHILE : CU_GRAPH_COND_TYPE_IF;
    p.conditional.size = n_bodies;
    p.conditional.ctx = state(g)->ctx;
    RP_TRY(rp__cuda_status(g->device, cu->cuGraphAddNode(&made, g->graph, deps, NULL, n, &p), "cuGraphAddNode"));
    for (unsigned k = 0; k < n_bodies; k++) {
        rp__devgraph *body = graph_struct(g->device);
        if (!body) return RP_ERROR_OUT_OF_MEMORY;
        body->root = g->root ? g->root : g;
        body->graph = p.conditional.phGraph_out[k];
        body->next = g->bodies;
        g->bodies = bodies[k] = body;
    }
    return table_add(g, NULL, &made, 1);
}

rp_status rp__cuda_graph_choice_add(rp__devgraph *g, uint64_t handle, bool loop, bool two, const uint32_t *deps,
                                    size_t n_deps, uint32_t *out, rp__devgraph *bodies[2]) {
    CUgraphNode *nodes = NULL;
    CUgraphEdgeData *edges = NULL;
    size_t n = 0;
    RP_TRY(rp__cuda_enter(g->device));
    bodies[0] = bodies[1] = NULL;
    rp_status status = dependencies(g, NULL, deps, n_deps, &nodes, &edges, &n);
    if (status == RP_OK) status = add_choice(g, handle, loop, two ? 2 : 1, nodes, n, bodies);
    rp__free(nodes);
    rp__free(edges);
    if (status == RP_OK) *out = (uint32_t)(g->n_nodes - 1);
    return status;
}

static rp_status set_node(rp__devgraph *g, const node *n) {
    void *params[RP__CUDA_PARAMS];
    CUDA_KERNEL_NODE_PARAMS kernel;
    RP_TRY(rp__cuda_kernel_params(n->launch, params, &kernel));
    return RP__CU(g->device, cuGraphKernelNodeSetParams(n->exits[0], &kernel));
}

/* An executable starts with what the template has: what has moved since the last one is moved there, too. */
static rp_status settle_moving(rp__devgraph *g) {
    for (size_t k = 0; k < g->n_nodes; k++)
        if (g->nodes[k].moving) RP_TRY(set_node(g, &g->nodes[k]));
    for (rp__devgraph *body = g->bodies; body; body = body->next) RP_TRY(settle_moving(body));
    return RP_OK;
}

static void forget_moving(rp__devgraph *g) {
    for (size_t k = 0; k < g->n_nodes; k++) g->nodes[k].moving = false;
    for (rp__devgraph *body = g->bodies; body; body = body->next) forget_moving(body);
}

rp_status rp__cuda_graph_instantiate(rp__devgraph *g, rp_stream *upload_on) {
    RP_TRY(rp__cuda_enter(g->device));
    RP_TRY(settle_moving(g));
    forget_moving(g);
    return rp__graph_execs_begin(g->device, &g->execs, g->graph, upload_on, g->bodies != NULL);
}

void rp__cuda_graph_count(rp__devgraph *g, _Atomic uint64_t *count) { rp__graph_execs_count(&g->execs, count); }

rp_status rp__cuda_graph_launch(rp__devgraph *g, rp_stream *s) {
    RP_TRY(rp__cuda_enter(g->device));
    return rp__graph_execs_launch(g->device, &g->execs, g->graph, s);
}

rp_status rp__cuda_graph_set_words(rp__devgraph *g, uint32_t k, const uint64_t *words) {
    rp__device *d = g->device;
    if (k >= g->n_nodes || !g->nodes[k].launch || g->nodes[k].launch->kernel->kind == RP__KERNEL_CUDA_LIBRARY)
        return rp__fail(RP_ERROR_INTERNAL, "node %u of a CUDA graph cannot be re-pointed", (unsigned)k);
    node *n = &g->nodes[k];
    rp__graph_execs *execs = g->root ? &g->root->execs : &g->execs;
    union {
        const uint64_t *in;
        uint64_t *out;
    } own = {.in = n->launch->words}; /* the copy is ours to change */
    RP_TRY(execs->n ? rp__graph_execs_move(execs, n->exits[0], n->launch, &n->moving) : rp__cuda_enter(d));
    memcpy(own.out, words, n->launch->n_words * sizeof *words);
    return execs->n ? RP_OK : set_node(g, n);
}

/* ---- capture ---- */

rp_status rp__cuda_capture_begin(rp__device *d, rp_stream *s, rp_capture_mode mode) {
    static const CUstreamCaptureMode modes[] = {[RP_CAPTURE_THREAD_LOCAL] = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                [RP_CAPTURE_GLOBAL] = CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                [RP_CAPTURE_RELAXED] = CU_STREAM_CAPTURE_MODE_RELAXED};
    RP_TRY(rp__cuda_enter(d));
    rp__devgraph *g = graph_struct(d);
    if (!g) return RP_ERROR_OUT_OF_MEMORY;
    rp_status status = RP__CU(d, cuStreamBeginCapture(s->native, modes[mode]));
    if (status != RP_OK) {
        rp__free(g);
        return status;
    }
    s->capture->native = g;
    return RP_OK;
}

rp_status rp__cuda_capture_of_others(rp__device *d, rp_stream *s, uint64_t *id) {
    rp__cuda *c = rp__cuda_of(d);
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t number = 1;
    *id = 0;
    if (!s->native)
        return RP_OK; /* the driver's default stream is never captured, and asking it is an error while others are */
    RP_TRY(rp__cuda_enter(d));
    if (c->cu->cuStreamGetCaptureInfo) {
        CUgraph graph = NULL;
        const CUgraphNode *last = NULL;
        const CUgraphEdgeData *edges = NULL;
        size_t n = 0;
        RP_TRY(rp__cuda_status(d,
                               c->cu->cuStreamGetCaptureInfo(s->native, &capturing, &number, &graph, &last, &edges, &n),
                               "cuStreamGetCaptureInfo"));
    } else {
        RP_TRY(RP__CU(d, cuStreamIsCapturing(s->native, &capturing)));
    }
    if (capturing == CU_STREAM_CAPTURE_STATUS_ACTIVE) *id = number ? number : UINT64_MAX;
    return RP_OK;
}

rp_status rp__cuda_capture_note_others(rp__device *d, rp_stream *s) {
    s->capture->native = graph_struct(d);
    return s->capture->native ? RP_OK : RP_ERROR_OUT_OF_MEMORY;
}

rp_status rp__cuda_capture_note(rp__device *d, rp_stream *s, const rp__launch *launch) {
    rp__cuda *c = rp__cuda_of(d);
    rp__devgraph *g = s->capture->native;
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    const CUgraphNode *last = NULL;
    const CUgraphEdgeData *edges = NULL;
    size_t n = 0;
    if (!c->cu->cuStreamGetCaptureInfo) /* before 12.3 the graph works but its nodes stay where they point */
        return RP_OK;
    RP_TRY(rp__cuda_status(d, c->cu->cuStreamGetCaptureInfo(s->native, &capturing, &id, &graph, &last, &edges, &n),
                           "cuStreamGetCaptureInfo"));
    return table_add(g, launch, last, n);
}

rp_status rp__cuda_capture_end(rp__device *d, rp_stream *s, rp__devgraph **out) {
    rp__devgraph *g = s->capture->native;
    s->capture->native = NULL;
    *out = NULL;
    rp_status status = rp__cuda_enter(d);
    if (rp__cuda_enter_to_free(d)) {
        CUresult result = end_capture(d, s, &g->graph);
        if (status == RP_OK) status = rp__cuda_status(d, result, "cuStreamEndCapture");
    }
    if (status == RP_OK && !g->graph) status = rp__fail(RP_ERROR_CAPTURE, "the capture gave no graph");
    if (status != RP_OK) {
        rp__cuda_graph_free(g);
        return status;
    }
    *out = g;
    return RP_OK;
}
