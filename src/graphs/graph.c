/* Raw graphs (torch.cuda.CUDAGraph, torch.cuda.graph): capture what a stream is given, replay it. The states of an rp_graph:
   empty -> capturing -> captured (-> instantiated at the end of the capture, or later with keep_graph) -> empty by reset. */
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "graphs/recording.h"

struct rp_graph {
    rp__handle handle;
    bool capturing, keep_graph, check_liveness;
    rp__recorder recorder;
    rp__recording recording;
    rp_pool *pool;   /* of the last capture; stays after reset until the next */
    rp_stream *side; /* taken for the capture under way; NULL: the caller's stream */
};

static rp_graph error_graph; /* what rp_graph_new returns out of memory: every use of it fails */

/* Only the thread that records can end a capture: its launches still point to the recorder. */
static rp_status check_owner(const rp_graph *g, const char *call) {
    if (!g->capturing || rp__recorder_is_current(&g->recorder)) return RP_OK;
    return rp__fail(RP_ERROR_STATE, "%s: another thread captures into this graph: only that thread can end the capture",
                    call);
}

static rp_status end_capture(rp_graph *g, size_t *nodes) {
    g->capturing = false;
    rp_status status = rp__recorder_end(&g->recorder, nodes);
    rp__side_stream_give(g->side);
    g->side = NULL;
    return status;
}

static rp_status usable(const rp_graph *g, const char *call) {
    if (!g) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the graph is NULL", call);
    if (g == &error_graph)
        return rp_failed() ? rp_error_status()
                           : rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the graph was never made", call);
    return RP__LIKELY(rp__handle_is_live(&g->handle)) ? RP_OK : rp__handle_refuse(&g->handle, call, "graph");
}

rp_graph *rp_graph_new_at(const char *site) {
    RP__CALLED_FROM(site);
    rp_graph *g = rp__handle_new("graph", sizeof *g);
    if (!g) {
        RP__OOM("a graph");
        return &error_graph;
    }
    return g;
}

void rp_graph_release_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    if (!g || g == &error_graph || check_owner(g, "graph_release") != RP_OK ||
        !rp__handle_give_up(&g->handle, "graph_release"))
        return;
    if (g->capturing) { /* abandoned: ended like any other, so that stream and pool come free */
        rp__error_state kept;
        rp__error_save(&kept);
        (void)end_capture(g, NULL);
        (void)rp_error_take();
        rp__error_restore(&kept);
    }
    rp__recording_free(&g->recording);
    if (g->pool) rp__pool_drop(g->pool);
    rp__handle_free(g);
}

rp_status rp_graph_begin_at(const char *site, rp_graph *g, rp_device device, const rp_graph_options *options) {
    RP__CALLED_FROM(site);
    rp_graph_options o;
    RP_TRY(usable(g, "graph_begin"));
    RP_TRY(rp__options_read("graph_begin", options, sizeof o, &o));
    if ((unsigned)o.mode > RP_CAPTURE_RELAXED)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "graph_begin: %d is not a capture mode", (int)o.mode);
    if (g->capturing) return rp__fail(RP_ERROR_STATE, "graph_begin: this graph is capturing already");
    if (g->recording.graph)
        return rp__fail(RP_ERROR_STATE,
                        "graph_begin: this graph already owns a captured graph: make a new one, or reset it first");
    RP_TRY(rp__recorder_check_outermost("graph_begin"));
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    if (o.stream && !o.stream->device) return rp__handle_refuse(&o.stream->handle, "graph_begin", "stream");
    if (o.pool && !o.pool->device) return rp__handle_refuse(&o.pool->handle, "graph_begin", "pool");
    if (o.stream && o.stream->device != d)
        return rp__fail(RP_ERROR_DEVICE, "graph_begin: the stream belongs to another device than the capture");
    if (o.pool && o.pool->device != d)
        return rp__fail(RP_ERROR_DEVICE, "graph_begin: the pool belongs to another device than the capture");
    rp_pool *pool = o.pool ? rp__pool_retain(o.pool) : rp_pool_new(device);
    if (!pool->device) return rp_error_status();
    if (!o.pool) atomic_store(&pool->handle.held, 0); /* rp_graph_pool lends it */
    rp_stream *side = o.stream ? NULL : rp__side_stream_take(d);
    rp_status status = RP_OK;
    if (!o.stream && !side) status = rp_error_status();
    if (status == RP_OK) status = rp__recorder_begin(&g->recorder, &g->recording, side ? side : o.stream, pool, o.mode);
    if (status != RP_OK) {
        rp__side_stream_give(side);
        rp__pool_drop(pool);
        return status;
    }
    g->side = side;
    if (g->pool) rp__pool_drop(g->pool);
    g->pool = pool;
    g->capturing = true;
    g->keep_graph = o.keep_graph;
    g->check_liveness = o.check_input_liveness;
    return RP_OK;
}

rp_status rp_graph_end_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    size_t nodes;
    RP_TRY(usable(g, "graph_end"));
    if (!g->capturing) return rp__fail(RP_ERROR_STATE, "graph_end: this graph is not capturing");
    RP_TRY(check_owner(g, "graph_end"));
    RP_TRY(end_capture(g, &nodes));
    if (nodes == 0)
        rp__log(RP__LOG_GRAPHS, "the captured graph is empty: was the work given to another device or stream?");
    if (g->keep_graph) return RP_OK;
    rp_status status = rp__recording_instantiate(&g->recording);
    if (status != RP_OK) rp__recording_free(&g->recording);
    return status;
}

rp_status rp_graph_instantiate_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    RP_TRY(usable(g, "graph_instantiate"));
    if (!g->keep_graph)
        return rp__fail(RP_ERROR_STATE,
                        "graph_instantiate: only graphs captured with keep_graph are instantiated by their user");
    if (g->capturing || !g->recording.graph)
        return rp__fail(RP_ERROR_STATE, "graph_instantiate: graph_end must have succeeded before");
    return rp__recording_instantiate(&g->recording);
}

/* Is the graph the only one that still holds this memory? Its handle is gone then: the values are what they were when the last
   tensor died, and nobody can change them. */
static rp_status check_liveness(const rp_graph *g) {
    size_t dead = 0;
    const rp__external *first = NULL;
    for (size_t k = 0; k < g->recording.n_externals; k++) {
        const rp__external *e = &g->recording.externals[k];
        if (e->moved || e->storage->inner || atomic_load(&e->storage->refs) > 1) continue;
        if (!first) first = e;
        dead++;
    }
    if (!dead) return RP_OK;
    return rp__fail(RP_ERROR_CAPTURE,
                    "graph_replay: %zu tensor%s that the graph uses ha%s died; the first is used by %s at %s", dead,
                    dead == 1 ? "" : "s", dead == 1 ? "s" : "ve", first->op ? first->op : "an op",
                    first->site ? first->site : "an unknown place");
}

rp_status rp_graph_replay_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    RP_TRY(usable(g, "graph_replay"));
    if (RP__UNLIKELY(g->capturing || !g->recording.graph))
        return rp__fail(RP_ERROR_STATE, "graph_replay: called without a preceding successful capture");
    if (g->check_liveness) RP_TRY(check_liveness(g));
    rp_stream *s = rp__current_stream(g->recording.device);
    if (RP__UNLIKELY(rp__stream_capturing(s))) return rp__capture_forbid(s, "replaying a graph");
    rp_pool *const turn = rp__turn_begin(g->recording.pool);
    rp_status status = rp__recording_replay(&g->recording, s);
    rp__turn_end(turn);
    return status;
}

rp_status rp_graph_reset_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    RP_TRY(usable(g, "graph_reset"));
    RP_TRY(check_owner(g, "graph_reset"));
    rp_status status = RP_OK;
    if (g->capturing) status = end_capture(g, NULL);
    rp__recording_free(&g->recording);
    g->keep_graph = g->check_liveness = false;
    return status;
}

/* At another thread's replay as well as before it, nodes go all together. */
static rp_status repoint(rp__recording *r, rp__external *e, rp__storage *to, char *address) {
    rp_pool *const turn = rp__turn_begin(r->pool);
    rp_status status = rp__recording_repoint(r, e, to, address);
    rp__turn_end(turn);
    return status;
}

rp_status rp_graph_repoint_at(const char *site, rp_graph *g, rp_tensor *from, rp_tensor *to) {
    RP__CALLED_FROM(site);
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    RP_TRY(usable(g, "graph_repoint"));
    RP_TRY(rp__tensor_check(from, "graph_repoint: from"));
    RP_TRY(rp__tensor_check(to, "graph_repoint: to"));
    if (g->capturing || !g->recording.graph)
        return rp__fail(RP_ERROR_STATE, "graph_repoint: called without a preceding successful capture");
    bool same = from->dtype == to->dtype && from->ndim == to->ndim && rp__device_equal(from->device, to->device);
    for (unsigned k = 0; same && k < from->ndim; k++)
        same = from->size[k] == to->size[k] && (from->size[k] <= 1 || from->stride[k] == to->stride[k]);
    if (!same)
        return rp__fail(RP_ERROR_GUARD,
                        "graph_repoint: %s cannot stand for %s: sizes, strides, dtype and device must agree",
                        rp__tensor_text(to, a), rp__tensor_text(from, b));
    RP_TRY(rp__tensor_materialise(to));
    rp__external *e = rp__recording_find(&g->recording, from->storage);
    if (!e)
        return rp__fail(RP_ERROR_CAPTURE, "graph_repoint: the capture does not use %s from outside",
                        rp__tensor_text(from, b));
    if (from->storage == to->storage && from->offset == to->offset) return repoint(&g->recording, e, NULL, NULL);
    /* the graph addresses the whole storage: byte 0 of `from`'s storage goes where `to`'s element 0 asks for it */
    size_t bytes = rp__dtype_bytes((rp_dtype)from->dtype);
    int64_t begin, end;
    rp__tensor_byte_range(from, &begin, &end);
    if (begin != 0 || (size_t)end != from->storage->bytes) {
        int64_t to_begin, to_end;
        rp__tensor_byte_range(to, &to_begin, &to_end);
        if (to_begin < begin || to->storage->bytes - (size_t)to_begin < from->storage->bytes - (size_t)begin)
            return rp__fail(
                RP_ERROR_CAPTURE,
                "graph_repoint: %s is a part of a larger memory that the graph uses; the new one must lie in as much",
                rp__tensor_text(from, b));
    }
    return repoint(&g->recording, e, to->storage, rp__tensor_data(to) - (size_t)from->offset * bytes);
}

rp_pool *rp_graph_pool_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    return usable(g, "graph_pool") == RP_OK ? g->pool : NULL;
}
