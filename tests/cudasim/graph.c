/* Explicit graphs, executables, updates and launches. A graph owns its nodes; a child or a body graph is owned by its
 * node. Instantiation makes a deep copy in topological order whose nodes remember their origin; a launch turns the copy
 * into ops (engine.c), so changes to the executable concern later launches only. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern cudasim_counters sim_counters;

/* What cuGraphKernelNodeGetParams reports as the function of a library's kernel. */
static const struct cudasim_kernel library_kernel = {.name = "library kernel"};
static struct CUfunc_st library_function = {.kernel = &library_kernel};

/* ---- Graphs and nodes ---- */

CUgraph sim_graph_new(void) {
    CUgraph g = sim_alloc(1, sizeof *g);
    sim_handle_add(g, SIM_GRAPH);
    return g;
}

static void node_free(CUgraphNode n) {
    sim_handle_remove(n);
    free(n->deps);
    free(n->launch.arguments);
    free(n->param_pointers);
    if (n->child) {
        sim_graph_free(n->child);
    }
    for (unsigned int i = 0; n->bodies && i < n->conditional.size; i++) {
        sim_graph_free(n->bodies[i]);
    }
    free(n->bodies);
    free(n);
}

void sim_graph_free(CUgraph g) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        node_free(g->nodes[i]);
    }
    free(g->nodes);
    while (g->conds) {
        sim_cond *c = g->conds;
        g->conds = c->next;
        sim_handle_remove(c);
        free(c);
    }
    sim_handle_remove(g);
    free(g);
}

static void add_dep(CUgraphNode node, CUgraphNode dep, const CUgraphEdgeData *edge) {
    node->deps = sim_grow(node->deps, node->n_deps + 1, sizeof *node->deps);
    node->deps[node->n_deps++] = (struct sim_dep){.node = dep, .edge = edge ? *edge : (CUgraphEdgeData){0}};
}

CUgraphNode sim_node_new(CUgraph graph, CUgraphNodeType type, CUgraphNode const *deps, const CUgraphEdgeData *edges,
                         size_t n) {
    CUgraphNode node = sim_alloc(1, sizeof *node);
    node->graph = graph;
    node->type = type;
    node->index = graph->n_nodes;
    for (size_t i = 0; i < n; i++) {
        add_dep(node, deps[i], edges ? &edges[i] : NULL);
    }
    graph->nodes = sim_grow(graph->nodes, graph->n_nodes + 1, sizeof *graph->nodes);
    graph->nodes[graph->n_nodes++] = node;
    sim_handle_add(node, SIM_NODE);
    return node;
}

/* Pointers into the node's own copy of the arguments, which cuGraphKernelNodeGetParams hands out. */
void sim_node_params(CUgraphNode n) {
    const struct cudasim_kernel *k = n->launch.function->kernel;
    free(n->param_pointers);
    n->param_pointers = sim_alloc(k->n_params + 1, sizeof *n->param_pointers);
    for (unsigned int i = 0; i < k->n_params; i++) {
        n->param_pointers[i] = n->launch.arguments + k->params[i].offset;
    }
}

static bool edge_ok(CUgraphNodeType from, CUgraphNodeType to, const CUgraphEdgeData *e) {
    if (e->to_port || e->from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER ||
        e->type > CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) {
        return false;
    }
    if (e->from_port == 0 && e->type == 0) {
        return true;
    }
    return from == CU_GRAPH_NODE_TYPE_KERNEL && to == CU_GRAPH_NODE_TYPE_KERNEL && e->from_port != 0 &&
           e->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
}

static CUresult add_check(CUgraphNode *node, CUgraph graph, CUgraphNodeType type, CUgraphNode const *deps,
                          const CUgraphEdgeData *edges, size_t n) {
    if (!node || !sim_handle_is(graph, SIM_GRAPH) || (n && !deps)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < n; i++) {
        if (!sim_handle_is(deps[i], SIM_NODE) || deps[i]->graph != graph ||
            (edges && !edge_ok(deps[i]->type, type, &edges[i]))) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        for (size_t j = 0; j < i; j++) {
            if (deps[j] == deps[i]) {
                return CUDA_ERROR_INVALID_VALUE;
            }
        }
    }
    return CUDA_SUCCESS;
}

static bool has_conditional(CUgraph g) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        CUgraphNode n = g->nodes[i];
        if (n->type == CU_GRAPH_NODE_TYPE_CONDITIONAL || (n->child && has_conditional(n->child))) {
            return true;
        }
    }
    return g->conds != NULL;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    SIM_BEGIN();
    if (!graph || flags) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *graph = sim_graph_new();
    return sim_end(CUDA_SUCCESS);
}

CUresult cuGraphDestroy(CUgraph graph) {
    SIM_BEGIN_FREE();
    if (!sim_handle_is(graph, SIM_GRAPH) || graph->owned || graph->capturing) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    sim_graph_free(graph);
    return sim_end(CUDA_SUCCESS);
}

/* ---- Node parameters ---- */

CUresult sim_copy_from_params(const CUDA_MEMCPY3D *p, sim_copy *c) {
    if (p->WidthInBytes == 0 || p->Height == 0 || p->Depth == 0 || p->srcLOD || p->dstLOD) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY || p->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    bool src_host = p->srcMemoryType == CU_MEMORYTYPE_HOST, dst_host = p->dstMemoryType == CU_MEMORYTYPE_HOST;
    *c = (sim_copy){.width = p->WidthInBytes, .height = p->Height, .depth = p->Depth};
    c->src_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
    c->dst_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
    c->src_slice = c->src_pitch * (p->srcHeight ? p->srcHeight : p->Height);
    c->dst_slice = c->dst_pitch * (p->dstHeight ? p->dstHeight : p->Height);
    const unsigned char *src = src_host ? p->srcHost : (const unsigned char *)(uintptr_t)p->srcDevice;
    unsigned char *dst = dst_host ? p->dstHost : (unsigned char *)(uintptr_t)p->dstDevice;
    if (!src || !dst || (p->Height > 1 && (c->src_pitch < p->WidthInBytes || c->dst_pitch < p->WidthInBytes))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    c->src = src + p->srcXInBytes + p->srcY * c->src_pitch + p->srcZ * c->src_slice;
    c->dst = dst + p->dstXInBytes + p->dstY * c->dst_pitch + p->dstZ * c->dst_slice;
    size_t src_bytes = (p->Depth - 1) * c->src_slice + (p->Height - 1) * c->src_pitch + p->WidthInBytes;
    size_t dst_bytes = (p->Depth - 1) * c->dst_slice + (p->Height - 1) * c->dst_pitch + p->WidthInBytes;
    if (p->srcMemoryType == CU_MEMORYTYPE_DEVICE && !sim_memory_is_device((CUdeviceptr)(uintptr_t)c->src, src_bytes) &&
        !sim_memory_is_pinned(c->src, src_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p->dstMemoryType == CU_MEMORYTYPE_DEVICE && !sim_memory_is_device((CUdeviceptr)(uintptr_t)c->dst, dst_bytes) &&
        !sim_memory_is_pinned(c->dst, dst_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult set_check(const CUDA_MEMSET_NODE_PARAMS *s) {
    if ((s->elementSize != 1 && s->elementSize != 2 && s->elementSize != 4) || s->width == 0 || s->height == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t row = s->width * s->elementSize, bytes = s->height > 1 ? (s->height - 1) * s->pitch + row : row;
    if ((s->height > 1 && s->pitch < row) || s->dst % s->elementSize || !sim_memory_is_device(s->dst, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult kernel_launch_of(const CUDA_KERNEL_NODE_PARAMS *p, sim_launch *launch) {
    CUfunction f = p->func ? p->func : (CUfunction)(void *)p->kern;
    return sim_launch_make(launch, f, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ,
                           p->sharedMemBytes, p->kernelParams, p->extra);
}

static void take_launch(CUgraphNode n, const sim_launch *launch) {
    free(n->launch.arguments);
    n->launch = *launch;
    sim_node_params(n);
}

/* ---- Adding nodes ---- */

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, CUgraphNode const *deps, const CUgraphEdgeData *edges,
                           size_t n, const CUDA_KERNEL_NODE_PARAMS *params) {
    CUresult result = add_check(node, graph, CU_GRAPH_NODE_TYPE_KERNEL, deps, edges, n);
    sim_launch launch;
    if (result != CUDA_SUCCESS || !params) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    result = kernel_launch_of(params, &launch);
    if (result == CUDA_SUCCESS) {
        *node = sim_node_new(graph, CU_GRAPH_NODE_TYPE_KERNEL, deps, edges, n);
        take_launch(*node, &launch);
    }
    return result;
}

static CUresult add_copy(CUgraphNode *node, CUgraph graph, CUgraphNode const *deps, const CUgraphEdgeData *edges,
                         size_t n, const CUDA_MEMCPY3D *params) {
    CUresult result = add_check(node, graph, CU_GRAPH_NODE_TYPE_MEMCPY, deps, edges, n);
    sim_copy copy;
    if (result == CUDA_SUCCESS) {
        result = params ? sim_copy_from_params(params, &copy) : CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *node = sim_node_new(graph, CU_GRAPH_NODE_TYPE_MEMCPY, deps, edges, n);
        (*node)->copy = *params;
    }
    return result;
}

static CUresult add_set(CUgraphNode *node, CUgraph graph, CUgraphNode const *deps, const CUgraphEdgeData *edges,
                        size_t n, const CUDA_MEMSET_NODE_PARAMS *params) {
    CUresult result = add_check(node, graph, CU_GRAPH_NODE_TYPE_MEMSET, deps, edges, n);
    if (result == CUDA_SUCCESS) {
        result = params ? set_check(params) : CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        *node = sim_node_new(graph, CU_GRAPH_NODE_TYPE_MEMSET, deps, edges, n);
        (*node)->set = *params;
    }
    return result;
}

static CUgraph graph_copy(CUgraph from, bool keep_origin);

static CUresult add_child(CUgraphNode *node, CUgraph graph, CUgraphNode const *deps, const CUgraphEdgeData *edges,
                          size_t n, CUgraph child, bool move) {
    CUresult result = add_check(node, graph, CU_GRAPH_NODE_TYPE_GRAPH, deps, edges, n);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!sim_handle_is(child, SIM_GRAPH) || child == graph || child->owned || child->capturing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (has_conditional(child)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUgraph copy = move ? child : graph_copy(child, false);
    if (!copy) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    copy->owned = true;
    *node = sim_node_new(graph, CU_GRAPH_NODE_TYPE_GRAPH, deps, edges, n);
    (*node)->child = copy;
    return CUDA_SUCCESS;
}

static sim_cond *cond_of(CUgraphConditionalHandle handle) {
    sim_cond *c = (sim_cond *)(uintptr_t)handle;
    return sim_handle_is(c, SIM_COND) ? c : NULL;
}

/* The graph that a body belongs to in the end: handles are made for it. */
static bool same_tree(CUgraph graph, CUgraph root) {
    if (graph == root) {
        return true;
    }
    for (size_t i = 0; i < root->n_nodes; i++) {
        CUgraphNode n = root->nodes[i];
        for (unsigned int j = 0; n->bodies && j < n->conditional.size; j++) {
            if (same_tree(graph, n->bodies[j])) {
                return true;
            }
        }
    }
    return false;
}

static CUresult add_conditional(CUgraphNode *node, CUgraph graph, CUgraphNode const *deps, const CUgraphEdgeData *edges,
                                size_t n, CUDA_CONDITIONAL_NODE_PARAMS *params) {
    CUresult result = add_check(node, graph, CU_GRAPH_NODE_TYPE_CONDITIONAL, deps, edges, n);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_cond *c = cond_of(params->handle);
    bool size_ok = params->type == CU_GRAPH_COND_TYPE_WHILE ? params->size == 1
                   : params->type == CU_GRAPH_COND_TYPE_IF
                       ? params->size == 1 || params->size == 2
                       : params->type == CU_GRAPH_COND_TYPE_SWITCH && params->size > 0;
    if (!c || c->user || !size_ok || !same_tree(graph, c->graph)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *node = sim_node_new(graph, CU_GRAPH_NODE_TYPE_CONDITIONAL, deps, edges, n);
    c->user = *node;
    (*node)->conditional = *params;
    (*node)->bodies = sim_alloc(params->size, sizeof *(*node)->bodies);
    for (unsigned int i = 0; i < params->size; i++) {
        (*node)->bodies[i] = sim_graph_new();
        (*node)->bodies[i]->owned = true;
    }
    params->phGraph_out = (*node)->conditional.phGraph_out = (*node)->bodies;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
                           size_t n, CUgraphNodeParams *params) {
    SIM_BEGIN();
    CUresult result;
    if (!params) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: result = add_kernel(node, graph, deps, edges, n, &params->kernel); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: result = add_copy(node, graph, deps, edges, n, &params->memcpy.copyParams); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS set;
        memcpy(&set, &params->memset, sizeof set); /* the same fields, then the context */
        result = add_set(node, graph, deps, edges, n, &set);
        break;
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        result = add_check(node, graph, CU_GRAPH_NODE_TYPE_HOST, deps, edges, n);
        if (result == CUDA_SUCCESS && !params->host.fn) {
            result = CUDA_ERROR_INVALID_VALUE;
        }
        if (result == CUDA_SUCCESS) {
            *node = sim_node_new(graph, CU_GRAPH_NODE_TYPE_HOST, deps, edges, n);
            (*node)->host = params->host;
        }
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        result = add_child(node, graph, deps, edges, n, params->graph.graph,
                           params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
        break;
    case CU_GRAPH_NODE_TYPE_EMPTY:
        result = add_check(node, graph, CU_GRAPH_NODE_TYPE_EMPTY, deps, edges, n);
        if (result == CUDA_SUCCESS) {
            *node = sim_node_new(graph, CU_GRAPH_NODE_TYPE_EMPTY, deps, edges, n);
        }
        break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        result = add_conditional(node, graph, deps, edges, n, &params->conditional);
        break;
    default: result = CUDA_ERROR_NOT_SUPPORTED; break;
    }
    return sim_end(result);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
                                 const CUDA_KERNEL_NODE_PARAMS *params) {
    SIM_BEGIN();
    return sim_end(add_kernel(node, graph, deps, NULL, n, params));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
                              const CUDA_MEMCPY3D *params, CUcontext ctx) {
    SIM_BEGIN();
    return sim_end(ctx ? add_copy(node, graph, deps, NULL, n, params) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
                              const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx) {
    SIM_BEGIN();
    return sim_end(ctx ? add_set(node, graph, deps, NULL, n, params) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n) {
    SIM_BEGIN();
    CUresult result = add_check(node, graph, CU_GRAPH_NODE_TYPE_EMPTY, deps, NULL, n);
    if (result == CUDA_SUCCESS) {
        *node = sim_node_new(graph, CU_GRAPH_NODE_TYPE_EMPTY, deps, NULL, n);
    }
    return sim_end(result);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n, CUgraph child) {
    SIM_BEGIN();
    return sim_end(add_child(node, graph, deps, NULL, n, child, false));
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t n) {
    SIM_BEGIN();
    if (!sim_handle_is(graph, SIM_GRAPH) || (n && (!from || !to))) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < n; i++) {
        if (!sim_handle_is(from[i], SIM_NODE) || !sim_handle_is(to[i], SIM_NODE) || from[i]->graph != graph ||
            to[i]->graph != graph || from[i] == to[i] || (edges && !edge_ok(from[i]->type, to[i]->type, &edges[i]))) {
            return sim_end(CUDA_ERROR_INVALID_VALUE);
        }
        for (size_t j = 0; j < to[i]->n_deps; j++) {
            if (to[i]->deps[j].node == from[i]) {
                return sim_end(CUDA_ERROR_INVALID_VALUE);
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        add_dep(to[i], from[i], edges ? &edges[i] : NULL);
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext ctx,
                                        unsigned int value, unsigned int flags) {
    SIM_BEGIN();
    (void)ctx;
    if (!handle || !sim_handle_is(graph, SIM_GRAPH) || flags > CU_GRAPH_COND_ASSIGN_DEFAULT) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    sim_cond *c = sim_alloc(1, sizeof *c);
    c->graph = graph;
    c->default_value = value;
    c->flags = flags;
    c->value = 0x5eed; /* undefined until it is set */
    sim_cond **link = &graph->conds;
    while (*link) {
        link = &(*link)->next;
    }
    *link = c;
    sim_handle_add(c, SIM_COND);
    *handle = (CUgraphConditionalHandle)(uintptr_t)c;
    return sim_end(CUDA_SUCCESS);
}

/* ---- Reading ---- */

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n) {
    SIM_BEGIN();
    if (!sim_handle_is(graph, SIM_GRAPH) || !n) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (nodes) {
        for (size_t i = 0; i < *n; i++) {
            nodes[i] = i < graph->n_nodes ? graph->nodes[i] : NULL;
        }
        *n = *n < graph->n_nodes ? *n : graph->n_nodes;
    } else {
        *n = graph->n_nodes;
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *n) {
    SIM_BEGIN();
    if (!sim_handle_is(graph, SIM_GRAPH) || !n || !from != !to) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    size_t count = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        for (size_t j = 0; j < graph->nodes[i]->n_deps; j++, count++) {
            const struct sim_dep *d = &graph->nodes[i]->deps[j];
            if (!from || count >= *n) {
                continue;
            }
            if (!edges && (d->edge.type || d->edge.from_port)) {
                return sim_end(CUDA_ERROR_LOSSY_QUERY);
            }
            from[count] = d->node;
            to[count] = graph->nodes[i];
            if (edges) {
                edges[count] = d->edge;
            }
        }
    }
    *n = from && *n < count ? *n : count;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    SIM_BEGIN();
    if (!sim_handle_is(node, SIM_NODE) || !type) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    *type = node->type;
    return sim_end(CUDA_SUCCESS);
}

static bool is_kernel_node(CUgraphNode node) {
    return sim_handle_is(node, SIM_NODE) && node->type == CU_GRAPH_NODE_TYPE_KERNEL;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    SIM_BEGIN();
    if (!is_kernel_node(node) || !params) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    memset(params, 0, sizeof *params);
    params->func = node->native ? &library_function : node->launch.function;
    params->gridDimX = node->native ? 1 : node->launch.grid[0];
    params->gridDimY = node->native ? 1 : node->launch.grid[1];
    params->gridDimZ = node->native ? 1 : node->launch.grid[2];
    params->blockDimX = node->native ? 128 : node->launch.block[0];
    params->blockDimY = node->native ? 1 : node->launch.block[1];
    params->blockDimZ = node->native ? 1 : node->launch.block[2];
    params->sharedMemBytes = node->launch.shared_bytes;
    params->kernelParams = node->param_pointers;
    params->ctx = sim_current();
    return sim_end(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    SIM_BEGIN();
    if (!is_kernel_node(node) || !params || node->native) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    sim_launch launch;
    CUresult result = kernel_launch_of(params, &launch);
    if (result == CUDA_SUCCESS) {
        take_launch(node, &launch);
    }
    return sim_end(result);
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue *value) {
    SIM_BEGIN();
    bool known = attr == CU_LAUNCH_ATTRIBUTE_PRIORITY || attr == CU_LAUNCH_ATTRIBUTE_COOPERATIVE ||
                 attr == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW || attr == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ||
                 attr == CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    if (!is_kernel_node(node) || !value || !known) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    unsigned int i = 0;
    while (i < node->n_attrs && node->attrs[i].id != attr) {
        i++;
    }
    if (i == sizeof node->attrs / sizeof node->attrs[0]) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    node->n_attrs += i == node->n_attrs;
    node->attrs[i] = (sim_attr){attr, *value};
    return sim_end(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attr, CUkernelNodeAttrValue *value) {
    SIM_BEGIN();
    if (!is_kernel_node(node) || !value) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    memset(value, 0, sizeof *value);
    for (unsigned int i = 0; i < node->n_attrs; i++) {
        if (node->attrs[i].id == attr) {
            *value = node->attrs[i].value;
        }
    }
    return sim_end(CUDA_SUCCESS);
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags) {
    static const char *const names[] = {"kernel", "memcpy", "memset", "host", "graph", "empty"};
    SIM_BEGIN();
    (void)flags;
    if (!sim_handle_is(graph, SIM_GRAPH) || !path) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    FILE *out = fopen(path, "w");
    if (!out) {
        return sim_end(CUDA_ERROR_OPERATING_SYSTEM);
    }
    fprintf(out, "digraph dot {\n");
    for (size_t i = 0; i < graph->n_nodes; i++) {
        CUgraphNode n = graph->nodes[i];
        const char *type = n->type < 6 ? names[n->type] : "conditional";
        const char *kernel = n->type != CU_GRAPH_NODE_TYPE_KERNEL ? ""
                             : n->native                          ? "library"
                                                                  : n->launch.function->kernel->name;
        fprintf(out, "  n%zu [label=\"%zu %s %s\"];\n", i, i, type, kernel);
        for (size_t j = 0; j < n->n_deps; j++) {
            fprintf(out, "  n%zu -> n%zu%s;\n", n->deps[j].node->index, i,
                    n->deps[j].edge.type ? " [label=\"programmatic\"]" : "");
        }
    }
    fprintf(out, "}\n");
    return sim_end(fclose(out) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM);
}

/* ---- Executables ---- */

static void node_copy(CUgraphNode to, CUgraphNode from) {
    to->disabled = from->disabled;
    to->native = from->native;
    to->native_bytes = from->native_bytes;
    to->copy = from->copy;
    to->set = from->set;
    to->host = from->host;
    to->n_attrs = from->n_attrs;
    memcpy(to->attrs, from->attrs, sizeof to->attrs);
    to->launch = from->launch;
    if (from->native) {
        to->launch.arguments = sim_alloc(from->native_bytes + 1, 1);
        memcpy(to->launch.arguments, from->launch.arguments, from->native_bytes);
    } else if (from->type == CU_GRAPH_NODE_TYPE_KERNEL) {
        to->launch.arguments = sim_alloc(from->launch.function->bytes + 16, 1);
        memcpy(to->launch.arguments, from->launch.arguments, from->launch.function->bytes);
        sim_node_params(to);
    }
}

/* The nodes in an order in which every edge goes forward; NULL: there is a cycle. Nodes without an order keep that of
 * their making. */
static CUgraphNode *sorted(CUgraph g) {
    CUgraphNode *order = sim_alloc(g->n_nodes + 1, sizeof *order);
    bool *placed = sim_alloc(g->n_nodes + 1, sizeof *placed);
    size_t n = 0;
    for (bool more = true; more && n < g->n_nodes;) {
        more = false;
        for (size_t i = 0; i < g->n_nodes; i++) {
            bool free_now = !placed[i];
            for (size_t j = 0; free_now && j < g->nodes[i]->n_deps; j++) {
                free_now = placed[g->nodes[i]->deps[j].node->index];
            }
            if (free_now) {
                placed[i] = more = true;
                order[n++] = g->nodes[i];
            }
        }
    }
    free(placed);
    if (n < g->n_nodes) {
        free(order);
        return NULL;
    }
    return order;
}

static CUgraph graph_copy(CUgraph from, bool keep_origin) {
    CUgraphNode *order = sorted(from);
    if (!order) {
        return NULL;
    }
    CUgraph to = sim_graph_new();
    to->owned = true;
    CUgraphNode *map = sim_alloc(from->n_nodes + 1, sizeof *map);
    bool ok = true;
    for (size_t i = 0; i < from->n_nodes && ok; i++) {
        CUgraphNode f = order[i], t = sim_node_new(to, f->type, NULL, NULL, 0);
        map[f->index] = t;
        t->origin = keep_origin ? f : NULL;
        for (size_t j = 0; j < f->n_deps; j++) {
            add_dep(t, map[f->deps[j].node->index], &f->deps[j].edge);
            map[f->deps[j].node->index]->full_out |= f->deps[j].edge.type == 0;
        }
        node_copy(t, f);
        if (f->child) {
            t->child = graph_copy(f->child, keep_origin);
            ok = t->child != NULL;
        }
        if (f->bodies) {
            t->conditional = f->conditional;
            t->bodies = sim_alloc(f->conditional.size, sizeof *t->bodies);
            for (unsigned int j = 0; j < f->conditional.size; j++) {
                t->bodies[j] = graph_copy(f->bodies[j], keep_origin);
                if (!t->bodies[j]) {
                    t->conditional.size = j;
                    ok = false;
                    break;
                }
            }
        }
    }
    free(map);
    free(order);
    if (!ok) {
        sim_graph_free(to);
        return NULL;
    }
    return to;
}

static CUresult check_body(CUgraph g, CUgraphNode *bad) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        CUgraphNode n = g->nodes[i];
        if (n->type == CU_GRAPH_NODE_TYPE_HOST) {
            *bad = n;
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (n->child && check_body(n->child, bad) != CUDA_SUCCESS) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return CUDA_SUCCESS;
}

/* All that makes instantiation fail but cycles. */
static CUresult check_graph(CUgraph g, CUgraphNode *bad, CUgraphInstantiateResult *why) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        CUgraphNode n = g->nodes[i];
        CUresult result = CUDA_SUCCESS;
        if (n->type == CU_GRAPH_NODE_TYPE_KERNEL && !n->native) {
            result = sim_function_check(n->launch.function);
            *why = CUDA_GRAPH_INSTANTIATE_ERROR;
        }
        for (unsigned int j = 0; n->bodies && j < n->conditional.size && result == CUDA_SUCCESS; j++) {
            result = check_body(n->bodies[j], bad);
            *why = CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
            if (result == CUDA_SUCCESS) {
                result = check_graph(n->bodies[j], bad, why);
            }
        }
        if (n->child && result == CUDA_SUCCESS) {
            result = check_graph(n->child, bad, why);
        }
        if (result != CUDA_SUCCESS) {
            *bad = *bad ? *bad : n;
            return result;
        }
    }
    for (sim_cond *c = g->conds; c; c = c->next) {
        if (!c->user) {
            *why = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static void collect_conds(CUgraph g, CUgraphExec e) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        CUgraphNode n = g->nodes[i];
        if (n->bodies) {
            e->conds = sim_grow(e->conds, e->n_conds + 1, sizeof *e->conds);
            e->conds[e->n_conds++] = cond_of(n->conditional.handle);
        }
        for (unsigned int j = 0; n->bodies && j < n->conditional.size; j++) {
            collect_conds(n->bodies[j], e);
        }
    }
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags, CUgraphNode *bad,
                            CUgraphInstantiateResult *why) {
    *bad = NULL;
    *why = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (!exec || !sim_handle_is(graph, SIM_GRAPH) || flags > 15 || graph->owned || graph->capturing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (graph->instantiated_once && has_conditional(graph)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = check_graph(graph, bad, why);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraph copy = graph_copy(graph, true);
    if (!copy) {
        *why = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph->instantiated_once = true;
    CUgraphExec e = sim_alloc(1, sizeof *e);
    e->graph = copy;
    e->source = graph;
    collect_conds(copy, e);
    sim_handle_add(e, SIM_EXEC);
    *exec = e;
    *why = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    SIM_BEGIN();
    CUgraphNode bad;
    CUgraphInstantiateResult why;
    return sim_end(flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD ? CUDA_ERROR_INVALID_VALUE
                                                              : instantiate(exec, graph, flags, &bad, &why));
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    SIM_BEGIN();
    if (!params) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_end(instantiate(exec, graph, params->flags, &params->hErrNode_out, &params->result_out));
}

/* As on a device, nobody waits for a launch whose executable is destroyed: it goes on, and what it needs stays until then. */
static CUgraphExec dying;
void sim_execs_bury(void) {
    for (CUgraphExec *link = &dying; *link;) {
        CUgraphExec exec = *link;
        if (exec->last && exec->last->state != 2) {
            link = &exec->dying;
            continue;
        }
        *link = exec->dying;
        sim_op_release(exec->last);
        sim_graph_free(exec->graph);
        free(exec->conds);
        free(exec);
    }
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    SIM_BEGIN_FREE();
    if (!sim_handle_is(exec, SIM_EXEC)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    sim_handle_remove(exec);
    exec->dying = dying;
    dying = exec;
    sim_execs_bury();
    return sim_end(CUDA_SUCCESS);
}

/* ---- Launch ---- */

static void expand(CUgraph g, sim_op *start, sim_op *end);

/* The op of one node, not submitted; for a child graph its last op, with *first its first. */
static sim_op *node_op(CUgraphNode n, sim_op **first) {
    sim_op *op;
    *first = NULL;
    if (n->disabled) {
        return *first = sim_op_new(OP_EMPTY);
    }
    switch (n->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        if (n->native) {
            op = sim_op_new(OP_NATIVE);
            op->native = n->native;
            op->owned = sim_alloc(n->native_bytes + 1, 1);
            memcpy(op->owned, n->launch.arguments, n->native_bytes);
        } else {
            op = sim_op_new(OP_KERNEL);
            op->grid = sim_grid_new(&n->launch);
        }
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        op = sim_op_new(OP_COPY);
        if (sim_copy_from_params(&n->copy, &op->copy) != CUDA_SUCCESS) {
            sim_complain("a memcpy node's device memory is no longer allocated");
            sim_sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        op = sim_op_new(OP_SET);
        op->set = n->set;
        if (set_check(&n->set) != CUDA_SUCCESS) {
            sim_complain("a memset node's memory is no longer allocated");
            sim_sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        op = sim_op_new(OP_HOST);
        op->host = n->host.fn;
        op->host_data = n->host.userData;
        break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        op = sim_op_new(OP_CONDITIONAL);
        op->conditional = n;
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        *first = sim_op_new(OP_EMPTY);
        op = sim_op_new(OP_EMPTY);
        expand(n->child, *first, op);
        return op;
    default: op = sim_op_new(OP_EMPTY); break;
    }
    return *first = op;
}

/* All nodes behind `start`, and `end` behind them. Neither is submitted here. */
static void expand(CUgraph g, sim_op *start, sim_op *end) {
    sim_op **ops = sim_alloc(g->n_nodes + 1, sizeof *ops), **first = sim_alloc(g->n_nodes + 1, sizeof *first);
    sim_op_after(end, start, false);
    for (size_t i = 0; i < g->n_nodes; i++) {
        CUgraphNode n = g->nodes[i];
        ops[i] = node_op(n, &first[i]);
        sim_op_after(first[i], start, false);
        for (size_t j = 0; j < n->n_deps; j++) {
            const struct sim_dep *d = &n->deps[j];
            sim_op *producer = ops[d->node->index];
            bool programmatic = d->edge.type && producer->type == OP_KERNEL && first[i]->type == OP_KERNEL;
            sim_op_after(first[i], producer, programmatic);
        }
        if (!n->full_out) {
            sim_op_after(end, ops[i], false);
        }
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        sim_op_submit(ops[i]);
        if (first[i] != ops[i]) {
            sim_op_submit(first[i]);
            sim_op_release(first[i]);
        }
        sim_op_release(ops[i]);
    }
    free(ops);
    free(first);
}

void sim_exec_begin(CUgraphExec e) {
    for (size_t i = 0; i < e->n_conds; i++) {
        e->conds[i]->value =
            e->conds[i]->flags & CU_GRAPH_COND_ASSIGN_DEFAULT ? e->conds[i]->default_value : sim_random(2);
    }
}

void sim_cond_set(unsigned long long handle, unsigned int value) { cond_of(handle)->value = value; }

bool sim_conditional_step(sim_op *op) {
    CUgraphNode n = op->conditional;
    unsigned int value = cond_of(n->conditional.handle)->value, body = n->conditional.size;
    bool again = op->state != 0;
    switch (n->conditional.type) {
    case CU_GRAPH_COND_TYPE_WHILE: body = value ? 0 : 1; break;
    case CU_GRAPH_COND_TYPE_IF: body = again ? 2 : value ? 0 : 1; break;
    default: body = again ? n->conditional.size : value; break;
    }
    op->state = 1;
    if (body >= n->conditional.size) {
        return false;
    }
    sim_op *start = sim_op_new(OP_EMPTY), *end = sim_op_new(OP_EMPTY);
    sim_op_after(op, end, false);
    expand(n->bodies[body], start, end);
    sim_op_submit(end);
    sim_op_submit(start);
    sim_op_release(start);
    sim_op_release(end);
    return true;
}

static CUresult check_alive(CUgraph g) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < g->n_nodes && result == CUDA_SUCCESS; i++) {
        CUgraphNode n = g->nodes[i];
        if (n->type == CU_GRAPH_NODE_TYPE_KERNEL && !n->native && !n->disabled) {
            result = sim_function_check(n->launch.function);
        }
        if (n->child && result == CUDA_SUCCESS) {
            result = check_alive(n->child);
        }
        for (unsigned int j = 0; n->bodies && j < n->conditional.size && result == CUDA_SUCCESS; j++) {
            result = check_alive(n->bodies[j]);
        }
    }
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return sim_end(result);
    }
    if (!sim_handle_is(exec, SIM_EXEC)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    result = sim_capture_implicit(s);
    if (result == CUDA_SUCCESS) {
        result = check_alive(exec->graph);
    }
    for (size_t i = 0; i < exec->n_conds && result == CUDA_SUCCESS; i++) {
        if (!exec->conds[i] || !sim_handle_is(exec->conds[i], SIM_COND)) {
            sim_complain("the graph of a conditional handle was destroyed before its executable");
            result = CUDA_ERROR_INVALID_HANDLE;
        }
    }
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    if (s->capture) { /* a launch is captured as a child graph */
        CUgraphNode node;
        if (exec->n_conds) {
            return sim_end(CUDA_ERROR_NOT_SUPPORTED);
        }
        result = sim_capture_add(s, CU_GRAPH_NODE_TYPE_GRAPH, false, &node);
        if (result == CUDA_SUCCESS) {
            node->child = graph_copy(exec->graph, false);
        }
        return sim_end(result);
    }
    sim_op *start = sim_op_new(OP_EMPTY), *end = sim_op_new(OP_EMPTY);
    start->exec = exec;
    sim_stream_follow(start, s);
    sim_op_after(start, exec->last, false); /* an executable runs one launch at a time */
    expand(exec->graph, start, end);
    sim_op_submit(start);
    sim_op_release(start);
    sim_op_release(exec->last);
    exec->last = sim_op_retain(end);
    sim_stream_push(s, end, false);
    sim_counters.graph_launches++;
    return sim_end(sim_sticky);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return sim_end(result);
    }
    if (!sim_handle_is(exec, SIM_EXEC)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    if (s->capture) {
        sim_capture_invalidate(s->capture);
        return sim_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    return sim_end(CUDA_SUCCESS);
}

/* ---- Changing an executable ---- */

static CUgraphNode find_origin(CUgraph g, CUgraphNode origin) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        CUgraphNode n = g->nodes[i], found = NULL;
        if (n->origin == origin) {
            return n;
        }
        if (n->child) {
            found = find_origin(n->child, origin);
        }
        for (unsigned int j = 0; n->bodies && !found && j < n->conditional.size; j++) {
            found = find_origin(n->bodies[j], origin);
        }
        if (found) {
            return found;
        }
    }
    return NULL;
}

static CUgraphNode exec_node(CUgraphExec exec, CUgraphNode node, int type) {
    if (!sim_handle_is(exec, SIM_EXEC) || !sim_handle_is(node, SIM_NODE)) {
        return NULL;
    }
    CUgraphNode n = find_origin(exec->graph, node);
    return n && (type < 0 || (int)n->type == type) ? n : NULL;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    SIM_BEGIN();
    CUgraphNode n = exec_node(exec, node, CU_GRAPH_NODE_TYPE_KERNEL);
    if (!n || !params || n->native) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    sim_launch launch;
    CUresult result = kernel_launch_of(params, &launch);
    if (result == CUDA_SUCCESS) {
        take_launch(n, &launch);
        sim_counters.patches++;
    }
    return sim_end(result);
}

/* The kinds of memory and, but for one-dimensional copies, the shape stay. */
static bool copy_alike(const CUDA_MEMCPY3D *a, const CUDA_MEMCPY3D *b) {
    bool line = a->Height == 1 && a->Depth == 1 && b->Height == 1 && b->Depth == 1;
    return a->srcMemoryType == b->srcMemoryType && a->dstMemoryType == b->dstMemoryType &&
           (line || (a->WidthInBytes == b->WidthInBytes && a->Height == b->Height && a->Depth == b->Depth));
}

static bool set_alike(const CUDA_MEMSET_NODE_PARAMS *a, const CUDA_MEMSET_NODE_PARAMS *b) {
    return (a->height == 1 && b->height == 1) ||
           (a->height == b->height && a->width == b->width && a->elementSize == b->elementSize);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *params,
                                        CUcontext ctx) {
    SIM_BEGIN();
    CUgraphNode n = exec_node(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY);
    sim_copy copy;
    if (!n || !params || !ctx || !copy_alike(&n->copy, params)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult result = sim_copy_from_params(params, &copy);
    if (result == CUDA_SUCCESS) {
        n->copy = *params;
        sim_counters.patches++;
    }
    return sim_end(result);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params,
                                        CUcontext ctx) {
    SIM_BEGIN();
    CUgraphNode n = exec_node(exec, node, CU_GRAPH_NODE_TYPE_MEMSET);
    if (!n || !params || !ctx || !set_alike(&n->set, params)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult result = set_check(params);
    if (result == CUDA_SUCCESS) {
        n->set = *params;
        sim_counters.patches++;
    }
    return sim_end(result);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    SIM_BEGIN();
    CUgraphNode n = exec_node(exec, node, -1);
    if (!n || (n->type != CU_GRAPH_NODE_TYPE_KERNEL && n->type != CU_GRAPH_NODE_TYPE_MEMCPY &&
               n->type != CU_GRAPH_NODE_TYPE_MEMSET)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    n->disabled = !enabled;
    return sim_end(CUDA_SUCCESS);
}

static CUgraphExecUpdateResult compare(CUgraph old, CUgraph new, CUgraphNode *bad) {
    *bad = NULL;
    if (old->n_nodes != new->n_nodes) {
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    for (size_t i = 0; i < old->n_nodes; i++) {
        CUgraphNode a = old->nodes[i], b = new->nodes[i];
        *bad = b->origin;
        if (a->type != b->type) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        }
        if (a->n_deps != b->n_deps) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        }
        for (size_t j = 0; j < a->n_deps; j++) {
            if (a->deps[j].node->index != b->deps[j].node->index ||
                memcmp(&a->deps[j].edge, &b->deps[j].edge, sizeof a->deps[j].edge) != 0) {
                return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
            }
        }
        if (!a->native != !b->native) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
        }
        if ((a->type == CU_GRAPH_NODE_TYPE_MEMCPY && !copy_alike(&a->copy, &b->copy)) ||
            (a->type == CU_GRAPH_NODE_TYPE_MEMSET && !set_alike(&a->set, &b->set)) ||
            a->conditional.type != b->conditional.type || a->conditional.size != b->conditional.size) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
        }
        CUgraphExecUpdateResult result = a->child ? compare(a->child, b->child, bad) : CU_GRAPH_EXEC_UPDATE_SUCCESS;
        for (unsigned int j = 0; a->bodies && result == CU_GRAPH_EXEC_UPDATE_SUCCESS && j < a->conditional.size; j++) {
            result = compare(a->bodies[j], b->bodies[j], bad);
        }
        if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
            return result;
        }
    }
    *bad = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* The executable keeps its own nodes' origins and conditional handles; all parameters become the new ones. */
static void keep_identity(CUgraph old, CUgraph new) {
    for (size_t i = 0; i < old->n_nodes; i++) {
        CUgraphNode a = old->nodes[i], b = new->nodes[i];
        b->origin = a->origin;
        b->disabled = a->disabled;
        if (a->child) {
            keep_identity(a->child, b->child);
        }
        if (a->bodies) {
            sim_cond *from = cond_of(b->conditional.handle), *to = cond_of(a->conditional.handle);
            if (from && to) {
                to->default_value = from->default_value;
            }
            b->conditional.handle = a->conditional.handle;
        }
        for (unsigned int j = 0; a->bodies && j < a->conditional.size; j++) {
            keep_identity(a->bodies[j], b->bodies[j]);
        }
    }
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    SIM_BEGIN();
    if (!sim_handle_is(exec, SIM_EXEC) || !sim_handle_is(graph, SIM_GRAPH) || !info) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    memset(info, 0, sizeof *info);
    CUgraphInstantiateResult why;
    CUresult result = check_graph(graph, &info->errorNode, &why);
    CUgraph copy = result == CUDA_SUCCESS ? graph_copy(graph, true) : NULL;
    if (!copy) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR;
        return sim_end(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    }
    info->result = compare(exec->graph, copy, &info->errorNode);
    if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        sim_graph_free(copy);
        return sim_end(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    }
    if (exec->last && exec->last->state != 2 && exec->n_conds) {
        sim_run_until(exec->last); /* its conditional ops point into the old copy */
    }
    keep_identity(exec->graph, copy);
    sim_graph_free(exec->graph);
    exec->graph = copy;
    return sim_end(CUDA_SUCCESS);
}
