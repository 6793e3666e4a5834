/* Raw graphs (torch.cuda.CUDAGraph, torch.cuda.graph): capture what a stream is given, replay it. The states of an rp_graph:
   empty -> capturing -> captured (-> instantiated at the end of the capture, or later with keep_graph) -> empty by reset. What
   was captured is counted: a call that uses it while another thread resets or releases the graph goes on with it. */
#include <string.h>

#include "core/alloc.h"
#include "core/holds.h"
#include "core/log.h"
#include "core/options.h"
#include "graphs/recording.h"

typedef struct captured {
    rp__recording recording; /* used in a turn of its pool once the capture has ended */
    atomic_uint refs;        /* the graph's, and one a call */
    bool keep_graph, check_liveness;
} captured;

struct rp_graph {
    rp__handle handle;
    atomic_uint holds;  /* the program's, and one a call that takes `captured` */
    rp__mutex lock;     /* capturing, captured, pool */
    bool capturing;     /* into what is captured already: only the thread that records touches it */
    captured *captured; /* NULL: empty */
    rp__recorder recorder;
    rp_pool *pool;   /* of the last capture; stays after reset until the next */
    rp_stream *side; /* taken for the capture under way; NULL: the caller's stream */
};

static rp_graph error_graph; /* what rp_graph_new returns out of memory: every use of it fails */

static void captured_drop(captured *c) {
    if (!c || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) return;
    rp__recording_free(&c->recording);
    rp__free(c);
}

static bool hold(rp_graph *g) { return rp__holds_take(&g->holds); }

static void drop(rp_graph *g) {
    if (atomic_fetch_sub_explicit(&g->holds, 1, memory_order_acq_rel) != 1) return;
    if (g->pool) rp__pool_drop(g->pool);
    (void)pthread_mutex_destroy(&g->lock);
    rp__handle_free(g);
}

/* What was captured, counted. */
static rp_status take(rp_graph *g, const char *call, captured **out) {
    if (!hold(g)) return rp__handle_refuse(g, RP__HANDLE_GRAPH, call);
    rp__lock(&g->lock);
    captured *c = g->capturing ? NULL : g->captured;
    if (c) atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    rp__unlock(&g->lock);
    drop(g);
    *out = c;
    return c ? RP_OK : rp__fail(RP_ERROR_STATE, "%s: called without a preceding successful capture", call);
}

static captured *leave(rp_graph *g) {
    if (!hold(g)) return NULL;
    rp__lock(&g->lock);
    captured *c = g->captured;
    g->captured = NULL;
    g->capturing = false;
    rp__unlock(&g->lock);
    drop(g);
    return c;
}

static bool is_capturing(rp_graph *g) {
    if (!hold(g)) return false;
    rp__lock(&g->lock);
    bool capturing = g->capturing;
    rp__unlock(&g->lock);
    drop(g);
    return capturing;
}

/* Only the thread that records can end a capture: its launches still point to the recorder. */
static rp_status check_owner(rp_graph *g, const char *call) {
    if (!is_capturing(g) || rp__recorder_is_current(&g->recorder)) return RP_OK;
    return rp__fail(RP_ERROR_STATE, "%s: another thread captures into this graph: only that thread can end the capture",
                    call);
}

/* whole: it is to be replayed. The graph is empty after a failure. */
static rp_status end_capture(rp_graph *g, bool whole, size_t *nodes) {
    rp_status status = rp__recorder_end(&g->recorder, nodes);
    rp__side_stream_give(g->side);
    g->side = NULL;
    if (status == RP_OK && whole && !g->captured->keep_graph)
        status = rp__recording_instantiate(&g->captured->recording);
    if (status != RP_OK || !whole) {
        captured_drop(leave(g));
        return status;
    }
    rp__lock(&g->lock);
    g->capturing = false;
    rp__unlock(&g->lock);
    return RP_OK;
}

static rp_status usable(const rp_graph *g, const char *call) {
    if (!g) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the graph is NULL", call);
    if (g == &error_graph)
        return rp_failed() ? rp_error_status()
                           : rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the graph was never made", call);
    return rp__handle_check(g, RP__HANDLE_GRAPH, call);
}

rp_graph *rp_graph_new_at(const char *site) {
    RP__CALLED_FROM(site);
    rp_graph *g = rp__handle_new(RP__HANDLE_GRAPH, sizeof *g);
    if (!g) {
        RP__OOM("a graph");
        return &error_graph;
    }
    atomic_init(&g->holds, 1);
    (void)pthread_mutex_init(&g->lock, NULL);
    return g;
}

void rp_graph_release_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    if (!g || g == &error_graph || usable(g, "graph_release") != RP_OK || check_owner(g, "graph_release") != RP_OK ||
        !rp__handle_give_up(g, RP__HANDLE_GRAPH, "graph_release"))
        return;
    if (is_capturing(g)) { /* abandoned: ended like any other, so that stream and pool come free */
        rp__error_state kept;
        rp__error_save(&kept);
        (void)end_capture(g, false, NULL);
        (void)rp_error_take();
        rp__error_restore(&kept);
    }
    captured_drop(leave(g));
    drop(g);
}

/* Of a graph that is capturing already, as far as other threads see. */
static rp_status begin(rp_graph *g, rp_device device, const rp_graph_options *o) {
    RP_TRY(rp__recorder_check_outermost("graph_begin"));
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    if (o->stream) RP_TRY(rp__handle_check(o->stream, RP__HANDLE_STREAM, "graph_begin"));
    if (o->pool) RP_TRY(rp__handle_check(o->pool, RP__HANDLE_POOL, "graph_begin"));
    if (o->stream && o->stream->device != d)
        return rp__fail(RP_ERROR_DEVICE, "graph_begin: the stream belongs to another device than the capture");
    if (o->pool && o->pool->device != d)
        return rp__fail(RP_ERROR_DEVICE, "graph_begin: the pool belongs to another device than the capture");
    rp_pool *pool = o->pool ? rp__pool_retain(o->pool) : rp_pool_new(device);
    if (!pool->device) return rp_error_status();
    if (!o->pool) atomic_store(&pool->handle.held, 0); /* rp_graph_pool lends it */
    rp_stream *side = o->stream ? NULL : rp__side_stream_take(d);
    rp_status status = RP_OK;
    if (!o->stream && !side) status = rp_error_status();
    if (status == RP_OK)
        status = rp__recorder_begin(&g->recorder, &g->captured->recording, side ? side : o->stream, pool, o->mode);
    if (status != RP_OK) {
        rp__side_stream_give(side);
        rp__pool_drop(pool);
        return status;
    }
    g->side = side;
    rp__lock(&g->lock);
    rp_pool *const last = g->pool;
    g->pool = pool;
    rp__unlock(&g->lock);
    if (last) rp__pool_drop(last);
    return RP_OK;
}

rp_status rp_graph_begin_at(const char *site, rp_graph *g, rp_device device, const rp_graph_options *options) {
    RP__CALLED_FROM(site);
    rp_graph_options o;
    RP_TRY(usable(g, "graph_begin"));
    RP_TRY(rp__options_read("graph_begin", options, sizeof o, &o));
    if ((unsigned)o.mode > RP_CAPTURE_RELAXED)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "graph_begin: %d is not a capture mode", (int)o.mode);
    captured *c = rp__calloc(1, sizeof *c);
    if (!c) return RP__OOM("a graph");
    atomic_init(&c->refs, 1);
    c->keep_graph = o.keep_graph;
    c->check_liveness = o.check_input_liveness;
    rp__lock(&g->lock);
    const bool capturing = g->capturing, owns = g->captured != NULL;
    if (!owns) {
        g->captured = c;
        g->capturing = true;
    }
    rp__unlock(&g->lock);
    if (owns) {
        rp__free(c);
        return capturing ? rp__fail(RP_ERROR_STATE, "graph_begin: this graph is capturing already")
                         : rp__fail(RP_ERROR_STATE, "graph_begin: this graph already owns a captured graph: make a new "
                                                    "one, or reset it first");
    }
    rp_status status = begin(g, device, &o);
    if (status != RP_OK) captured_drop(leave(g));
    return status;
}

rp_status rp_graph_end_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    size_t nodes;
    RP_TRY(usable(g, "graph_end"));
    if (!is_capturing(g)) return rp__fail(RP_ERROR_STATE, "graph_end: this graph is not capturing");
    RP_TRY(check_owner(g, "graph_end"));
    RP_TRY(end_capture(g, true, &nodes));
    if (nodes == 0)
        rp__log(RP__LOG_GRAPHS, "the captured graph is empty: was the work given to another device or stream?");
    return RP_OK;
}

rp_status rp_graph_instantiate_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    captured *c;
    RP_TRY(usable(g, "graph_instantiate"));
    if (!hold(g)) return rp__handle_refuse(g, RP__HANDLE_GRAPH, "graph_instantiate");
    rp__lock(&g->lock);
    const bool keep_graph = g->captured && g->captured->keep_graph, capturing = g->capturing;
    rp__unlock(&g->lock);
    drop(g);
    if (!keep_graph)
        return rp__fail(RP_ERROR_STATE,
                        "graph_instantiate: only graphs captured with keep_graph are instantiated by their user");
    if (capturing) return rp__fail(RP_ERROR_STATE, "graph_instantiate: graph_end must have succeeded before");
    RP_TRY(take(g, "graph_instantiate", &c));
    rp_pool *const turn = rp__turn_begin(c->recording.pool);
    rp_status status = rp__recording_instantiate(&c->recording);
    rp__turn_end(turn);
    captured_drop(c);
    return status;
}

/* Is the graph the only one that still holds this memory? Its handle is gone then: the values are what they were when the last
   tensor died, and nobody can change them. */
static rp_status check_liveness(const rp__recording *r) {
    size_t dead = 0;
    const rp__external *first = NULL;
    for (size_t k = 0; k < r->n_externals; k++) {
        const rp__external *e = &r->externals[k];
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

static rp_status replay(captured *c) {
    rp__recording *const r = &c->recording;
    if (c->check_liveness) RP_TRY(check_liveness(r));
    rp_stream *s = rp__current_stream(r->device);
    if (RP__UNLIKELY(rp__stream_capturing(s))) return rp__capture_forbid(s, "replaying a graph");
    return rp__recording_replay(r, s);
}

rp_status rp_graph_replay_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    captured *c;
    RP_TRY(usable(g, "graph_replay"));
    RP_TRY(take(g, "graph_replay", &c));
    rp_pool *const turn = rp__turn_begin(c->recording.pool);
    rp_status status = replay(c);
    rp__turn_end(turn);
    captured_drop(c);
    return status;
}

rp_status rp_graph_reset_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    RP_TRY(usable(g, "graph_reset"));
    RP_TRY(check_owner(g, "graph_reset"));
    rp_status status = is_capturing(g) ? end_capture(g, false, NULL) : RP_OK;
    captured_drop(leave(g));
    return status;
}

static rp_status repoint(rp__recording *r, const rp_tensor *from, rp_tensor *to) {
    char text[RP__SHAPE_TEXT];
    rp__external *e = rp__recording_find(r, from->storage);
    if (!e)
        return rp__fail(RP_ERROR_CAPTURE, "graph_repoint: the capture does not use %s from outside",
                        rp__tensor_text(from, text));
    if (from->storage == to->storage && from->offset == to->offset) return rp__recording_repoint(r, e, NULL, NULL);
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
                rp__tensor_text(from, text));
    }
    return rp__recording_repoint(r, e, to->storage, rp__tensor_data(to) - (size_t)from->offset * bytes);
}

/* At another thread's replay as well as before it, nodes go all together. */
rp_status rp_graph_repoint_at(const char *site, rp_graph *g, rp_tensor *from, rp_tensor *to) {
    RP__CALLED_FROM(site);
    char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
    captured *c;
    RP_TRY(usable(g, "graph_repoint"));
    RP_TRY(rp__tensor_check(from, "graph_repoint: from"));
    RP_TRY(rp__tensor_check(to, "graph_repoint: to"));
    RP_TRY(take(g, "graph_repoint", &c));
    bool same = from->dtype == to->dtype && from->ndim == to->ndim && rp__device_equal(from->device, to->device);
    for (unsigned k = 0; same && k < from->ndim; k++)
        same = from->size[k] == to->size[k] && (from->size[k] <= 1 || from->stride[k] == to->stride[k]);
    rp_status status =
        same ? rp__tensor_materialise(to)
             : rp__fail(RP_ERROR_GUARD,
                        "graph_repoint: %s cannot stand for %s: sizes, strides, dtype and device must agree",
                        rp__tensor_text(to, a), rp__tensor_text(from, b));
    if (status == RP_OK) {
        rp_pool *const turn = rp__turn_begin(c->recording.pool);
        status = repoint(&c->recording, from, to);
        rp__turn_end(turn);
    }
    captured_drop(c);
    return status;
}

rp_pool *rp_graph_pool_at(const char *site, rp_graph *g) {
    RP__CALLED_FROM(site);
    if (usable(g, "graph_pool") != RP_OK || !hold(g)) return NULL;
    rp__lock(&g->lock);
    rp_pool *pool = g->pool;
    rp__unlock(&g->lock);
    drop(g);
    return pool;
}
