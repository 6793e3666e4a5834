/* The emulated driver: capture, graphs, failure on demand. By default the libraries of
 * REPRISE_CUDASIM_DIR are driven. With REPRISE_TEST_REAL_CUDA=1 the installed ones are, and the tests that need the emulator
 * (poison, failure on demand, deliberately wrong kernels) are skipped with a line each: so the rest shows that the emulator
 * answers as a GPU does. */
/* ctest: labels=cuda timeout=600 cost=8 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cudasim/cudasim.h"
#include "support/cudasim.h"

/* ---- Capture ---- */

static void test_capture(void **state) {
    (void)state;
    CUstream side;
    CUevent fork, join;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr a = device_alloc(12);
    OK(cu->cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cu->cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    CUgraph of_info = NULL;
    const CUgraphNode *deps;
    const CUgraphEdgeData *edges;
    size_t n;
    launch_put(a, 1, stream);
    OK(cu->cuStreamGetCaptureInfo(stream, &status, &id, &of_info, &deps, &edges, &n));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_true(id != 0 && of_info != NULL && n == 1);
    CUgraphNode first = deps[0];
    OK(cu->cuEventRecord(fork, stream));
    OK(cu->cuStreamWaitEvent(side, fork, 0));
    OK(cu->cuStreamIsCapturing(side, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    launch_put(a + 4, 2, side);
    launch_put(a, 3, stream);
    OK(cu->cuMemsetD32Async(a + 8, 9, 1, side));
    OK(cu->cuEventRecord(join, side));
    OK(cu->cuStreamWaitEvent(stream, join, 0));
    OK(cu->cuStreamGetCaptureInfo(stream, &status, &id, &of_info, &deps, &edges, &n));
    assert_int_equal(n, 2);
    OK(cu->cuStreamEndCapture(stream, &graph));
    OK(cu->cuStreamIsCapturing(side, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    n = 0;
    OK(cu->cuGraphGetNodes(graph, NULL, &n));
    assert_int_equal(n, 4);
    OK(cu->cuGraphGetEdges(graph, NULL, NULL, NULL, &n));
    assert_int_equal(n, 3);
    CUgraphNodeType type;
    OK(cu->cuGraphNodeGetType(first, &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_KERNEL);
    CUDA_KERNEL_NODE_PARAMS params;
    OK(cu->cuGraphKernelNodeGetParams(first, &params));
    assert_int_equal(*(int *)params.kernelParams[1], 1);
    assert_true(*(CUdeviceptr *)params.kernelParams[0] == a);
    OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cu->cuGraphUpload(exec, stream));
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        OK(cu->cuMemsetD32Async(a, 0, 3, stream));
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuStreamSynchronize(stream));
        assert_int_equal(read_int(a), 3);
        assert_int_equal(read_int(a + 4), 2);
        assert_int_equal(read_int(a + 8), 9);
    }
    OK(cu->cuGraphExecDestroy(exec));
    OK(cu->cuGraphDestroy(graph));
    OK(cu->cuStreamDestroy(side));
    OK(cu->cuEventDestroy(fork));
    OK(cu->cuEventDestroy(join));
    OK(cu->cuMemFree(a));
}

static CUresult end_capture(CUstream s) {
    CUgraph graph = (CUgraph)(uintptr_t)1;
    CUresult result = cu->cuStreamEndCapture(s, &graph);
    if (result == CUDA_SUCCESS) {
        OK(cu->cuGraphDestroy(graph));
    } else if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
        assert_null(graph);
    }
    return result;
}

static void *end_elsewhere(void *data) {
    (void)data;
    cu->cuCtxSetCurrent(ctx);
    CUgraph graph;
    return (void *)(uintptr_t)cu->cuStreamEndCapture(stream, &graph);
}

static void *alloc_elsewhere(void *data) {
    CUdeviceptr p = 0;
    CUresult *result = data;
    cu->cuCtxSetCurrent(ctx);
    *result = cu->cuMemAlloc(&p, 64);
    if (*result == CUDA_SUCCESS) {
        cu->cuMemFree(p);
    }
    return NULL;
}

static void test_capture_errors(void **state) {
    (void)state;
    CUstream side, blocking;
    CUevent event, outside;
    CUgraph graph;
    CUdeviceptr p = device_alloc(4), q;
    CUstreamCaptureMode local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, global = CU_STREAM_CAPTURE_MODE_GLOBAL,
                        relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    int v = 0;
    OK(cu->cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cu->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
    OK(cu->cuEventRecord(outside, side));
    FAILS(CUDA_ERROR_ILLEGAL_STATE, cu->cuStreamEndCapture(stream, &graph));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuStreamBeginCapture(NULL, local));
    /* 900 and then 901: synchronising, querying, allocating */
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_ILLEGAL_STATE, cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuStreamSynchronize(stream));
    void *params[] = {&p, &v};
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
          cu->cuLaunchKernel(fn("put"), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuStreamQuery(stream));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuMemAlloc(&q, 64));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu->cuCtxSynchronize());
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    /* The same call is allowed in relaxed mode, by capture or by thread. */
    OK(cu->cuStreamBeginCapture(stream, relaxed));
    OK(cu->cuMemAlloc(&q, 64));
    OK(end_capture(stream));
    OK(cu->cuMemFree(q));
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuThreadExchangeStreamCaptureMode(&relaxed));
    OK(cu->cuMemAlloc(&q, 64));
    OK(cu->cuThreadExchangeStreamCaptureMode(&relaxed));
    assert_int_equal(relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(end_capture(stream));
    OK(cu->cuMemFree(q));
    /* Another thread is forbidden by a global capture only. */
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        CUresult result = CUDA_SUCCESS;
        OK(cu->cuStreamBeginCapture(stream, i ? global : local));
        pthread_create(&thread, NULL, alloc_elsewhere, &result);
        pthread_join(thread, NULL);
        assert_int_equal(result, i ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
        assert_int_equal(end_capture(stream), i ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    }
    /* 902: two captures meet */
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuStreamBeginCapture(side, local));
    OK(cu->cuEventRecord(event, side));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_MERGE, cu->cuStreamWaitEvent(stream, event, 0));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(side));
    /* 903: ended on another stream; 904: not joined */
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuEventRecord(event, stream));
    OK(cu->cuStreamWaitEvent(side, event, 0));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cu->cuStreamEndCapture(side, &graph));
    assert_int_not_equal(end_capture(stream), CUDA_SUCCESS);
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuEventRecord(event, stream));
    OK(cu->cuStreamWaitEvent(side, event, 0));
    launch_put(p, 1, side);
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, end_capture(stream));
    /* 905: waits for work outside; 907: asks for an event inside */
    OK(cu->cuStreamBeginCapture(stream, local));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cu->cuStreamWaitEvent(stream, outside, 0));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuEventRecord(event, stream));
    FAILS(CUDA_ERROR_CAPTURED_EVENT, cu->cuEventQuery(event));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    OK(cu->cuStreamBeginCapture(stream, local));
    OK(cu->cuEventRecord(event, stream));
    FAILS(CUDA_ERROR_CAPTURED_EVENT, cu->cuEventSynchronize(event));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(stream));
    /* 906: the legacy stream while a blocking stream is captured */
    OK(cu->cuStreamBeginCapture(blocking, relaxed));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu->cuLaunchKernel(fn("put"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(blocking));
    OK(cu->cuStreamBeginCapture(blocking, relaxed));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu->cuMemcpyHtoD(p, &v, 4));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end_capture(blocking));
    /* 908: ended by another thread, which ends it all the same */
    pthread_t thread;
    void *result;
    OK(cu->cuStreamBeginCapture(stream, local));
    pthread_create(&thread, NULL, end_elsewhere, NULL);
    pthread_join(thread, &result);
    assert_int_equal((int)(uintptr_t)result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    FAILS(CUDA_ERROR_ILLEGAL_STATE, end_capture(stream));
    OK(cu->cuEventDestroy(event));
    OK(cu->cuEventDestroy(outside));
    OK(cu->cuStreamDestroy(side));
    OK(cu->cuStreamDestroy(blocking));
    OK(cu->cuMemFree(p));
}

/* ---- Graphs ---- */

static CUgraphNodeParams put_node(CUdeviceptr *p, int *v, void **params) {
    params[0] = p;
    params[1] = v;
    CUgraphNodeParams n = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    n.kernel = (CUDA_KERNEL_NODE_PARAMS){.func = fn("put"),
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 1,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params};
    return n;
}

static void test_graph(void **state) {
    (void)state;
    CUgraph graph, child;
    CUgraphNode set, one, two, copy, empty, nested, in_child;
    CUgraphExec exec;
    CUdeviceptr a = device_alloc(64), b = a + 32;
    int v1 = 11, v2 = 22, v3 = 33;
    void *params[2];
    OK(cu->cuGraphCreate(&graph, 0));
    OK(cu->cuGraphCreate(&child, 0));
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = a, .value = 5, .elementSize = 4, .width = 8, .height = 1};
    OK(cu->cuGraphAddMemsetNode(&set, graph, NULL, 0, &fill, ctx));
    CUgraphNodeParams node = put_node(&a, &v1, params);
    OK(cu->cuGraphAddNode(&one, graph, &set, NULL, 1, &node));
    CUdeviceptr a4 = a + 4;
    node = put_node(&a4, &v2, params);
    OK(cu->cuGraphAddKernelNode(&two, graph, &set, 1, &node.kernel));
    CUgraphNode both[2] = {one, two};
    OK(cu->cuGraphAddEmptyNode(&empty, graph, both, 2));
    CUDA_MEMCPY3D move = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = b,
                          .WidthInBytes = 32,
                          .Height = 1,
                          .Depth = 1};
    OK(cu->cuGraphAddMemcpyNode(&copy, graph, &empty, 1, &move, ctx));
    CUdeviceptr b8 = b + 8;
    node = put_node(&b8, &v3, params);
    OK(cu->cuGraphAddKernelNode(&in_child, child, NULL, 0, &node.kernel));
    OK(cu->cuGraphAddChildGraphNode(&nested, graph, &copy, 1, child));
    OK(cu->cuGraphDestroy(child)); /* the node has a copy */
    OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    const int expected[8] = {11, 22, 33, 5, 5, 5, 5, 5};
    int got[8];
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(got, b, sizeof got));
        assert_memory_equal(got, expected, sizeof got);
    }
    /* A launch that is queued keeps the parameters it was queued with. */
    v1 = 44;
    node = put_node(&a, &v1, params);
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuGraphExecKernelNodeSetParams(exec, one, &node.kernel));
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(b), 11);
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(b), 44);
    CUDA_KERNEL_NODE_PARAMS unchanged;
    OK(cu->cuGraphKernelNodeGetParams(one, &unchanged));
    assert_int_equal(*(int *)unchanged.kernelParams[1], 11); /* the graph itself is as it was */
    /* Disabled nodes do nothing; edges through them hold. */
    OK(cu->cuGraphNodeSetEnabled(exec, two, 0));
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuGraphNodeSetEnabled(exec, nested, 0));
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuStreamSynchronize(stream));
    assert_int_equal(read_int(b + 4), 5);
    OK(cu->cuGraphNodeSetEnabled(exec, two, 1));
    fill.value = 6;
    OK(cu->cuGraphExecMemsetNodeSetParams(exec, set, &fill, ctx));
    move.WidthInBytes = 16;
    OK(cu->cuGraphExecMemcpyNodeSetParams(exec, copy, &move, ctx));
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(got, b, sizeof got));
    assert_true(got[3] == 6 && got[4] == 5 && got[1] == 22);
    /* A whole update: back to the graph's own parameters. Then one that does not fit. */
    CUgraphExecUpdateResultInfo info;
    OK(cu->cuGraphExecUpdate(exec, graph, &info));
    assert_int_equal(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
    OK(cu->cuGraphLaunch(exec, stream));
    OK(cu->cuStreamSynchronize(stream));
    OK(cu->cuMemcpyDtoH(got, b, sizeof got));
    assert_memory_equal(got, expected, sizeof got);
    CUgraphNode more;
    OK(cu->cuGraphAddEmptyNode(&more, graph, NULL, 0));
    FAILS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cu->cuGraphExecUpdate(exec, graph, &info));
    assert_int_equal(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    /* A cycle is refused where the graph is instantiated. */
    CUgraphExec none;
    CUgraphNode from = nested, to = set;
    OK(cu->cuGraphAddDependencies(graph, &from, &to, NULL, 1));
    assert_int_not_equal(cu->cuGraphInstantiateWithFlags(&none, graph, 0), CUDA_SUCCESS);
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuGraphAddEmptyNode(&more, graph, (CUgraphNode[]){one, one}, 2));
    OK(cu->cuGraphExecDestroy(exec));
    OK(cu->cuGraphDestroy(graph));
    OK(cu->cuMemFree(a));
}

static void add_scale(CUgraphNode *node, CUgraph graph, const char *name, args *a, CUgraphNode *dep,
                      bool programmatic) {
    void *params[] = {a};
    CUgraphNodeParams n = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    n.kernel = (CUDA_KERNEL_NODE_PARAMS){.func = fn(name),
                                         .gridDimX = 4,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 64,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .kernelParams = params};
    CUgraphEdgeData edge = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                            .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    OK(cu->cuGraphAddNode(node, graph, dep, dep && programmatic ? &edge : NULL, dep ? 1 : 0, &n));
}

/* A chain of kernels by programmatic edges; with `name` in the middle. Returns how many of SEEDS runs gave the right
 * result. */
static int run_chain(const char *name) {
    enum { N = 256, LENGTH = 5 };
    CUdeviceptr buffer[LENGTH + 1];
    float host[N];
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode last = NULL;
    int right = 0;
    OK(cu->cuGraphCreate(&graph, 0));
    for (int i = 0; i <= LENGTH; i++) {
        buffer[i] = device_alloc(sizeof host);
    }
    for (int i = 0; i < LENGTH; i++) {
        args a = {buffer[i + 1], buffer[i], N, 2.0f, 0};
        CUgraphNode node;
        add_scale(&node, graph, i == 2 ? name : "scale", &a, i ? &last : NULL, true);
        last = node;
    }
    OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        for (int i = 1; i <= LENGTH; i++) {
            OK(cu->cuMemsetD32Async(buffer[i], 0x7fc00000, N, stream));
        }
        for (int i = 0; i < N; i++) {
            host[i] = (float)i + (float)s;
        }
        OK(cu->cuStreamSynchronize(stream));
        to_device(buffer[0], host, sizeof host);
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuStreamSynchronize(stream));
        OK(cu->cuMemcpyDtoH(host, buffer[LENGTH], sizeof host));
        bool good = true;
        for (int i = 0; i < N; i++) {
            good = good && host[i] == ((float)i + (float)s) * 32.0f;
        }
        right += good;
    }
    OK(cu->cuGraphExecDestroy(exec));
    OK(cu->cuGraphDestroy(graph));
    for (int i = 0; i <= LENGTH; i++) {
        OK(cu->cuMemFree(buffer[i]));
    }
    return right;
}

static void test_programmatic_edges(void **state) {
    (void)state;
    cudasim_counters before, after;
    if (!real) {
        sim.counters(&before);
    }
    assert_int_equal(run_chain("scale"), SEEDS);
    if (!real) {
        sim.counters(&after);
        assert_true(after.early > before.early);
        assert_true(after.suspended > before.suspended);
        assert_int_equal(run_chain("scale_no_wait"), 0); /* the missing wait gives wrong data, always */
    }
    /* By capture: the attribute of the consumer becomes an edge with data. */
    CUgraph graph;
    CUgraphNode from[2], to[2];
    CUgraphEdgeData edges[2];
    CUdeviceptr p = device_alloc(4);
    size_t n = 2;
    int v = 1;
    void *params[] = {&p, &v};
    CUlaunchAttribute attr = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    attr.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = &attr,
                             .numAttrs = 1};
    OK(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (v = 1; v <= 3; v++) {
        OK(cu->cuLaunchKernelEx(&config, fn("put"), params, NULL));
    }
    OK(cu->cuStreamEndCapture(stream, &graph));
    FAILS(CUDA_ERROR_LOSSY_QUERY, cu->cuGraphGetEdges(graph, from, to, NULL, &n));
    n = 2;
    OK(cu->cuGraphGetEdges(graph, from, to, edges, &n));
    assert_int_equal(n, 2);
    assert_int_equal(edges[0].type, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    assert_int_equal(edges[0].from_port, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
    /* A programmatic edge needs kernels on both sides. */
    CUgraphNode empty, bad;
    OK(cu->cuGraphAddEmptyNode(&empty, graph, NULL, 0));
    CUgraphNodeParams node = put_node(&p, &v, params);
    FAILS(CUDA_ERROR_INVALID_VALUE, cu->cuGraphAddNode(&bad, graph, &empty, edges, 1, &node));
    OK(cu->cuGraphDestroy(graph));
    /* In a stream without capture. */
    for (unsigned long long s = 1; s <= SEEDS; s++) {
        seed(s);
        for (v = 1; v <= 4; v++) {
            OK(cu->cuLaunchKernelEx(&config, fn("put"), params, NULL));
        }
        OK(cu->cuStreamSynchronize(stream));
        assert_int_equal(read_int(p), 4);
    }
    OK(cu->cuMemFree(p));
}

static void test_conditional_nodes(void **state) {
    (void)state;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphConditionalHandle loop, branch, many;
    CUgraphNode first, node;
    CUdeviceptr left = device_alloc(4), count = device_alloc(16);
    OK(cu->cuGraphCreate(&graph, 0));
    OK(cu->cuGraphConditionalHandleCreate(&loop, graph, ctx, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    OK(cu->cuGraphConditionalHandleCreate(&branch, graph, ctx, 0, CU_GRAPH_COND_ASSIGN_DEFAULT));
    OK(cu->cuGraphConditionalHandleCreate(&many, graph, ctx, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = count, .value = 0, .elementSize = 4, .width = 4, .height = 1};
    OK(cu->cuGraphAddMemsetNode(&first, graph, NULL, 0, &fill, ctx));
    CUgraphNodeParams while_node = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    while_node.conditional =
        (CUDA_CONDITIONAL_NODE_PARAMS){.handle = loop, .type = CU_GRAPH_COND_TYPE_WHILE, .size = 1, .ctx = ctx};
    OK(cu->cuGraphAddNode(&node, graph, &first, NULL, 1, &while_node));
    CUgraph body = while_node.conditional.phGraph_out[0], same = NULL;
    OK(cu->cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    void *count_params[] = {&count}, *down_params[] = {&left, &loop};
    launch("count", 1, 1, 0, stream, count_params);
    launch("countdown", 1, 1, 0, stream, down_params);
    OK(cu->cuStreamEndCapture(stream, &same));
    assert_ptr_equal(same, body);
    /* IF with ELSE by the default 0, and SWITCH by the default 1. */
    CUgraphNodeParams if_node = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL}, switch_node = if_node;
    if_node.conditional =
        (CUDA_CONDITIONAL_NODE_PARAMS){.handle = branch, .type = CU_GRAPH_COND_TYPE_IF, .size = 2, .ctx = ctx};
    switch_node.conditional =
        (CUDA_CONDITIONAL_NODE_PARAMS){.handle = many, .type = CU_GRAPH_COND_TYPE_SWITCH, .size = 3, .ctx = ctx};
    CUgraphNode after, last;
    OK(cu->cuGraphAddNode(&after, graph, &node, NULL, 1, &if_node));
    OK(cu->cuGraphAddNode(&last, graph, &after, NULL, 1, &switch_node));
    for (unsigned int i = 0; i < 5; i++) {
        CUdeviceptr at = count + (i < 2 ? 4 : 8);
        int value = (int)i + 10;
        void *params[2];
        CUgraphNodeParams put = put_node(&at, &value, params);
        CUgraphNode inner;
        OK(cu->cuGraphAddNode(&inner,
                              i < 2 ? if_node.conditional.phGraph_out[i] : switch_node.conditional.phGraph_out[i - 2],
                              NULL, NULL, 0, &put));
    }
    OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int n = 1; n < 7; n++) {
        seed((unsigned long long)n);
        write_int(left, n);
        OK(cu->cuGraphLaunch(exec, stream));
        OK(cu->cuStreamSynchronize(stream));
        assert_int_equal(read_int(left), 0);
        assert_int_equal(read_int(count), n);
        assert_int_equal(read_int(count + 4), 11); /* ELSE */
        assert_int_equal(read_int(count + 8), 13); /* case 1 */
    }
    CUgraphExec second;
    assert_int_not_equal(cu->cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_SUCCESS);
    CUgraph outer;
    OK(cu->cuGraphCreate(&outer, 0));
    assert_int_not_equal(cu->cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph), CUDA_SUCCESS);
    /* A handle that no node uses. */
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {.flags = 0};
    OK(cu->cuGraphConditionalHandleCreate(&loop, outer, ctx, 1, 0));
    assert_int_not_equal(cu->cuGraphInstantiateWithParams(&second, outer, &how), CUDA_SUCCESS);
    assert_int_equal(how.result_out, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED);
    OK(cu->cuGraphDestroy(outer));
    OK(cu->cuGraphExecDestroy(exec));
    OK(cu->cuGraphDestroy(graph));
    OK(cu->cuMemFree(left));
    OK(cu->cuMemFree(count));
}

/* ---- Failure on demand ---- */

/* A small piece of work that cleans up after itself wherever it fails. */
static CUresult small_work(CUdeviceptr *out) {
    CUdeviceptr p = 0;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode node;
    int v = 3, back = 0;
    void *params[2];
    CUgraphNodeParams put = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    put.kernel = (CUDA_KERNEL_NODE_PARAMS){.gridDimX = 1,
                                           .gridDimY = 1,
                                           .gridDimZ = 1,
                                           .blockDimX = 1,
                                           .blockDimY = 1,
                                           .blockDimZ = 1,
                                           .kernelParams = params};
    CUkernel kernel;
    CUresult result = cu->cuMemAlloc(&p, 64);
    params[0] = &p;
    params[1] = &v;
    if (result == CUDA_SUCCESS) {
        result = cu->cuLibraryGetKernel(&kernel, common, "put");
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuKernelGetFunction(&put.kernel.func, kernel);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuGraphCreate(&graph, 0);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuGraphAddNode(&node, graph, NULL, NULL, 0, &put);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuGraphInstantiateWithFlags(&exec, graph, 0);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuGraphLaunch(exec, stream);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuStreamSynchronize(stream);
    }
    if (result == CUDA_SUCCESS) {
        result = cu->cuMemcpyDtoH(&back, p, sizeof back);
    }
    if (exec) {
        cu->cuGraphExecDestroy(exec);
    }
    if (graph) {
        cu->cuGraphDestroy(graph);
    }
    if (p) {
        cu->cuMemFree(p);
    }
    *out = (CUdeviceptr)back;
    return result;
}

static void test_failures(void **state) {
    (void)state;
    NEEDS_EMULATOR();
    cudasim_counters before, after;
    CUdeviceptr out;
    int failed = 0;
    sim.counters(&before);
    for (unsigned long long n = 1; n < 100; n++) {
        sim.fail_after(n, n % 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
        CUresult result = small_work(&out);
        sim.fail_after(0, 0);
        sim.counters(&after);
        assert_int_equal(after.live_allocations, before.live_allocations);
        assert_int_equal(after.live_graphs, before.live_graphs);
        assert_int_equal(after.live_execs, before.live_execs);
        if (result == CUDA_SUCCESS) {
            break;
        }
        failed++;
        assert_int_equal(result, n % 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
    }
    assert_int_equal(failed, 9);
    assert_true(out == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capture),
        cmocka_unit_test(test_capture_errors),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_programmatic_edges),
        cmocka_unit_test(test_conditional_nodes),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
