/* The engine: runs nodes backward. A work list ordered by sequence, highest first: an edge always leads to a node with a smaller
   sequence, so a node that comes out of the list has received everything that it will. Gradients wait in slots, one a node that
   was reached. Called by rp_backward, rp_grad and rp__checkpoint; several threads may run engines, each its own. */
#include "autograd/tape.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "device/capture.h"
#include "ops/autocast.h"
#include "ops/grad.h"

#include "ops/private.h"
#include <stdlib.h>
#include <string.h>

typedef struct slot {    /* a node that was reached */
    rp__tape_node *node; /* borrowed from the edge that led here: alive while the graph is */
    rp_stream
        *stream; /* where it runs, once `placed`: a current stream of the thread, or the node's; NULL: it has none */
    bool placed;
    rp_tensor **grads; /* n_out, counted */
    rp_tensor *one[1]; /* where grads is for nodes with one output */
    bool needed;       /* lies between roots and inputs; always without inputs */
} slot;

typedef struct stop { /* input `number` is that output of the node */
    const rp__tape_node *node;
    uint32_t index;
    size_t number;
} stop;

typedef struct engine {
    slot **slots; /* by node: open addressing, 0 or a power of two */
    size_t n_slots, slot_capacity;
    slot **heap; /* by sequence */
    size_t n_heap, heap_capacity;
    stop *stops; /* the inputs of rp_grad by node: those of one lie together */
    size_t n_inputs;
    rp_tensor **captured; /* counted */
    rp_stream **streams;  /* that work went to, other than the caller's; counted */
    size_t n_streams, stream_capacity;
    bool retain_graph, create_graph;
} engine;

/* ---------------------------------------------------------------- slots */

static size_t slot_home(const engine *e, const rp__tape_node *n) {
    return (size_t)(n->sequence * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (e->slot_capacity - 1);
}

static slot **slot_place(const engine *e, const rp__tape_node *n) {
    size_t i = slot_home(e, n);
    while (e->slots[i] && e->slots[i]->node != n) i = (i + 1) & (e->slot_capacity - 1);
    return &e->slots[i];
}

static slot *slot_find(const engine *e, const rp__tape_node *n) {
    return e->slot_capacity > 0 ? *slot_place(e, n) : NULL;
}

static rp_status slots_double(engine *e) {
    size_t old_capacity = e->slot_capacity;
    slot **old = e->slots;
    slot **larger = rp__calloc(old_capacity > 0 ? 2 * old_capacity : 64, sizeof *larger);
    if (!larger) return RP__OOM("backward");
    e->slots = larger;
    e->slot_capacity = old_capacity > 0 ? 2 * old_capacity : 64;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i]) *slot_place(e, old[i]->node) = old[i];
    rp__free(old);
    return RP_OK;
}

/* Removes without a gap in the probe sequences behind it. */
static void slot_remove(engine *e, slot *s) {
    size_t mask = e->slot_capacity - 1, hole = (size_t)(slot_place(e, s->node) - e->slots);
    for (size_t i = (hole + 1) & mask; e->slots[i]; i = (i + 1) & mask) {
        size_t home = slot_home(e, e->slots[i]->node);
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            e->slots[hole] = e->slots[i];
            hole = i;
        }
    }
    e->slots[hole] = NULL;
    e->n_slots--;
}

static void slot_free(slot *s) {
    for (uint32_t k = 0; k < s->node->n_out; k++)
        if (s->grads[k]) rp_release(s->grads[k]);
    if (s->grads != s->one) rp__free(s->grads);
    rp__tape_node_release(s->node);
    rp__free(s);
}

/* ---------------------------------------------------------------- the work list */

static rp_status heap_push(engine *e, slot *s) {
    if (!RP__GROW(&e->heap, &e->heap_capacity, e->n_heap + 1)) return RP__OOM("backward");
    size_t i = e->n_heap++;
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (e->heap[parent]->node->sequence >= s->node->sequence) break;
        e->heap[i] = e->heap[parent];
        i = parent;
    }
    e->heap[i] = s;
    return RP_OK;
}

static slot *heap_pop(engine *e) {
    slot *top = e->heap[0], *last = e->heap[--e->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= e->n_heap) break;
        if (child + 1 < e->n_heap && e->heap[child + 1]->node->sequence > e->heap[child]->node->sequence) child++;
        if (last->node->sequence >= e->heap[child]->node->sequence) break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

/* The slot of a node, made and put on the work list if it is new. */
static rp_status slot_get(engine *e, rp__tape_node *n, slot **out) {
    slot *s = slot_find(e, n);
    if (!s) {
        if (2 * (e->n_slots + 1) > e->slot_capacity) RP_TRY(slots_double(e));
        s = rp__calloc(1, sizeof *s);
        if (!s) return RP__OOM("backward");
        s->grads = n->n_out > 1 ? rp__calloc(n->n_out, sizeof *s->grads) : s->one;
        if (!s->grads) {
            rp__free(s);
            return RP__OOM("backward");
        }
        s->node = rp__tape_node_retain(n);
        s->needed = e->n_inputs == 0;
        rp_status status = heap_push(e, s);
        if (status != RP_OK) {
            slot_free(s);
            return status;
        }
        *slot_place(e, n) = s;
        e->n_slots++;
    }
    *out = s;
    return RP_OK;
}

/* ---------------------------------------------------------------- inputs */

static int by_node(const void *x, const void *y) {
    const uintptr_t a = (uintptr_t)((const stop *)x)->node, b = (uintptr_t)((const stop *)y)->node;
    return a < b ? -1 : a > b;
}

static rp_status stops_make(engine *e, const rp__edge *inputs) {
    e->stops = rp__alloc((e->n_inputs + 1) * sizeof *e->stops);
    if (!e->stops) return RP__OOM("backward");
    for (size_t i = 0; i < e->n_inputs; i++) e->stops[i] = (stop){inputs[i].node, inputs[i].index, i};
    qsort(e->stops, e->n_inputs, sizeof *e->stops, by_node);
    return RP_OK;
}

/* Where those of the node begin: while is_stop, the next is one, too. */
static const stop *stops_of(const engine *e, const rp__tape_node *n) {
    size_t low = 0, high = e->n_inputs;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)e->stops[middle].node < (uintptr_t)n)
            low = middle + 1;
        else
            high = middle;
    }
    return e->stops + low;
}
static bool is_stop(const engine *e, const stop *s, const rp__tape_node *n) {
    return s < e->stops + e->n_inputs && s->node == n;
}

/* ---------------------------------------------------------------- accumulation */

/* May the tensor be written: nobody else sees it, and it is no value of a trace. */
static bool own(const rp_tensor *t) {
    return !t->traced && !(t->flags & RP__T_VIEW) && atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1 && !t->storage->foreign;
}

/* *sum += grad; both counted, grad is taken over. */
static rp_status add_into(engine *e, rp_tensor **sum, rp_tensor *grad) {
    if (!*sum) {
        *sum = grad;
        return RP_OK;
    }
    rp_tensor *result;
    if (!e->create_graph && own(*sum))
        result = rp_add_(*sum, grad);
    else if (!e->create_graph && own(grad))
        result = rp_add_(grad, *sum); /* addition of two commutes to the bit */
    else
        result = rp_add(*sum, grad);
    bool failed = rp__tensor_is_error(result);
    if (!failed) rp_retain(result);
    rp_release(grad);
    if (failed) return rp_error_status();
    rp_release(*sum);
    *sum = result;
    return RP_OK;
}

/* ---------------------------------------------------------------- streams */

/* Work that `from` was given so far comes before what `to` will be given. */
static rp_status stream_order(rp_stream *from, rp_stream *to) {
    if (!from || !to || from == to || from->device != to->device) return RP_OK;
    rp_event *event = rp_event_new(from->device->id, false);
    rp_status status = rp_event_record(event, from);
    if (status == RP_OK) status = rp_stream_wait_event(to, event);
    rp_event_release(event);
    return status;
}

static rp_status stream_note(engine *e, rp_stream *s) {
    for (size_t i = 0; i < e->n_streams; i++)
        if (e->streams[i] == s) return RP_OK;
    if (!RP__GROW(&e->streams, &e->stream_capacity, e->n_streams + 1)) return RP__OOM("backward");
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    e->streams[e->n_streams++] = s;
    return RP_OK;
}

static bool has_needed_edge(const engine *e, const rp__tape_node *n) {
    if (e->n_inputs == 0) return true;
    for (uint32_t i = 0; i < n->n_in; i++) {
        slot *s = n->edges[i].node ? slot_find(e, n->edges[i].node) : NULL;
        if (s && s->needed) return true;
    }
    return false;
}

static const char *site_of(const rp__tape_node *n) { return n->site && *n->site ? n->site : "no call site"; }

/* Finds where the node of s runs: on the stream of its forward. What only adds up gradients - a leaf's node, which is as old as
   the oldest result that holds it, or one that rp_grad stops at - computes nothing that was begun elsewhere: if that stream is
   not in the capture that goes on, it takes the one that is current. A derivative stays, and a default stream cannot be drawn
   into a capture. */
static rp_status slot_put(const engine *e, slot *s) {
    rp__tape_node *n = s->node;
    s->stream = n->stream;
    s->placed = true;
    if (RP__LIKELY(!n->stream || !rp__captures_active())) return RP_OK;
    rp_stream *here = rp__current_stream(n->stream->device);
    if (n->stream->capture == here->capture) return RP_OK;
    bool leaf = n->class_ == &rp__accumulate_class;
    if (leaf || !has_needed_edge(e, n)) {
        s->stream = here;
        if (leaf && here->capture && !atomic_exchange_explicit(&n->told, true, memory_order_relaxed)) {
            const rp_tensor *t = *(rp_tensor *const *)n->payload;
            char text[RP__SHAPE_TEXT];
            rp__log(
                RP__LOG_GRAPHS,
                "a result from before the capture still holds the tape of the leaf %s that `%s` made (%s): its gradient "
                "is added up on the capturing stream",
                rp__tensor_text(t, text), n->op, site_of(n));
        }
        return RP_OK;
    }
    if (!n->stream->is_default && !n->stream->capture) return RP_OK; /* joins the capture, and comes back at the end */
    return rp__fail(
        RP_ERROR_CAPTURE,
        "the result of `%s` (%s) was computed %s, and its derivative would run there: compute it inside the "
        "capture, or cut it off with rp_detach",
        n->op, site_of(n),
        here->capture ? "before the capture, on a stream that cannot take part in it"
                      : "on a stream that is being captured now");
}

/* A gradient made on stream `from`, which is current, arrives at a node that runs on its own: there it is added up, after what
   `from` was given so far. The reference is taken over. */
static rp_status deliver(engine *e, rp_stream *from, slot *s, uint32_t index, rp_tensor *grad) {
    rp_status status = s->placed ? RP_OK : slot_put(e, s);
    if (status != RP_OK) {
        rp_release(grad);
        return status;
    }
    rp_stream *to = s->stream;
    if (!from || !to || from == to || from->device != to->device) return add_into(e, &s->grads[index], grad);
    status = stream_order(from, to);
    if (status == RP_OK) status = rp__storage_used_by(grad->storage, to);
    (void)rp__stream_retain(from); /* the thread may be all that holds it */
    if (status == RP_OK) status = rp_set_current_stream(to);
    if (status != RP_OK) {
        rp_release(grad);
        rp__stream_drop(from);
        return status;
    }
    status = add_into(e, &s->grads[index], grad);
    rp_status restored = rp_set_current_stream(from);
    rp__stream_drop(from);
    return status != RP_OK ? status : restored;
}

/* ---------------------------------------------------------------- running nodes */

rp_status rp__grad_fit(rp_tensor **grad, const rp__meta *meta, const char *what) {
    rp_tensor *t = *grad;
    RP_TRY(rp__tensor_check(t, "gradient"));
    bool same = t->ndim == meta->ndim;
    for (size_t d = 0; same && d < t->ndim; d++) same = rp__dim_is(RP__DIM_EQ, t->size[d], meta->size[d]);
    if (!same) {
        bool broadcast = t->ndim >= meta->ndim;
        for (size_t d = 0; broadcast && d < meta->ndim; d++) {
            rp_dim want = meta->size[meta->ndim - 1 - d];
            broadcast = rp__dim_is(RP__DIM_EQ, want, 1) || rp__dim_is(RP__DIM_EQ, want, t->size[t->ndim - 1 - d]);
        }
        if (!broadcast) {
            char have[RP__SHAPE_TEXT], want[RP__SHAPE_TEXT];
            return rp__fail(RP_ERROR_SHAPE, "%s returned a gradient of size %s for an input of size %s", what,
                            rp__shape_text(t->size, t->ndim, have), rp__shape_text(meta->size, meta->ndim, want));
        }
        t = rp__sum_to_size(t, meta->size, meta->ndim);
    }
    if (!rp__tensor_is_error(t) && t->dtype != meta->dtype) t = rp_to_dtype(t, meta->dtype);
    t = rp__to_device_of(t, meta);
    if (rp__tensor_is_error(t)) return rp_error_status();
    *grad = t;
    return RP_OK;
}

/* From a node that runs on `stream`. Takes the reference over. */
static rp_status send(engine *e, const rp__tape_node *from, rp_stream *stream, const rp__edge *edge, rp_tensor *grad) {
    slot *s = NULL;
    rp_status status = RP_OK;
    if (edge->node->sequence >= from->sequence)
        status = rp__fail(RP_ERROR_INTERNAL, "tape: `%s` leads to the younger node `%s`", from->op, edge->node->op);
    if (status == RP_OK) status = slot_get(e, edge->node, &s);
    if (status == RP_OK && s->needed) return deliver(e, stream, s, edge->index, grad);
    rp_release(grad);
    return status;
}

/* The engine that runs the thread's innermost node: knows which gradients rp_grad does not ask for. */
static _Thread_local engine *running;

bool rp__tape_needs(const rp__tape_node *n, uint32_t in) {
    if (!n->edges[in].node) return false;
    if (!running || running->n_inputs == 0) return true;
    const slot *s = slot_find(running, n->edges[in].node);
    return !s || s->needed;
}

bool rp__tape_retains(void) { return !running || running->retain_graph; }

rp_tensor *rp__tape_take_sum(const rp__tape_node *n, uint32_t in) {
    slot *s = running && n->edges[in].node ? slot_find(running, n->edges[in].node) : NULL;
    if (!s || !s->grads[n->edges[in].index]) return NULL;
    rp_tensor *sum = rp__tensor_enter_scope(s->grads[n->edges[in].index]);
    if (rp__tensor_is_error(sum)) return sum;
    rp_release(sum);
    s->grads[n->edges[in].index] = NULL;
    return sum;
}

/* Runs the node's function; grads_in has n_in entries of NULL. Inside a scope of the caller. */
static rp_status node_compute(engine *e, slot *s, rp_tensor **grads_in) {
    rp__tape_node *n = s->node;
    if (n->released) return rp__tape_released(n);
    bool any = false;
    for (uint32_t k = 0; k < n->n_out; k++) any = any || s->grads[k];
    if (any) RP_TRY(n->class_->backward(n, s->grads, grads_in, e->create_graph));
    for (uint32_t i = 0; i < n->n_in; i++) {
        if (!grads_in[i]) continue;
        if (!rp__tape_needs(n, i)) {
            grads_in[i] = NULL;
            continue;
        }
        rp__meta meta;
        rp__tape_in_meta(n, i, &meta);
        RP_TRY(rp__grad_fit(&grads_in[i], &meta, n->op));
    }
    return RP_OK;
}

static rp_status node_hooks(engine *e, slot *s) {
    rp__tape_node *n = s->node;
    bool leaf = n->class_ == &rp__accumulate_class;
    for (uint32_t k = 0; k < n->n_out; k++) {
        rp_tensor *grad = s->grads[k];
        if (!grad) continue;
        if (leaf) {
            rp__autograd *a = (*(rp_tensor *const *)n->payload)->autograd;
            if (a->hooks) RP_TRY(rp__hooks_run_leaf(a, &grad));
        } else if (n->hooks) {
            RP_TRY(rp__hooks_run(n, k, &grad));
        }
        if (grad != s->grads[k]) {
            rp_retain(grad);
            rp_release(s->grads[k]);
            s->grads[k] = grad;
        }
        if (n->retain) RP_TRY(rp__retain_run(n, k, grad));
        for (const stop *i = stops_of(e, n); is_stop(e, i, n); i++)
            if (i->index == k && !e->captured[i->number]) e->captured[i->number] = rp_retain(grad);
    }
    return RP_OK;
}

static rp_status node_run(engine *e, slot *s) {
    enum { FEW = 8 };
    rp__tape_node *n = s->node;
    rp_tensor *few[FEW] = {NULL}, **grads_in = few;
    if (n->n_in > FEW && !(grads_in = rp__calloc(n->n_in, sizeof *grads_in))) return RP__OOM("backward");
    rp_stream *previous = s->stream ? rp__stream_retain(rp__current_stream(s->stream->device)) : NULL;
    bool switched = previous != s->stream;
    rp_scope scope = rp__scope_begin();
    /* its ops are the forward call's; without a line of that, they have the one of rp_backward */
    rp__site_frame frame = rp__site_enter((rp__site_frame){n->site && *n->site ? n->site : NULL, n->op});
    rp_status status = scope.id ? RP_OK : rp_error_status();
    if (status == RP_OK && switched) {
        status = stream_note(e, s->stream);
        if (status == RP_OK) status = rp_set_current_stream(s->stream);
    }
    if (status == RP_OK) status = node_hooks(e, s);
    /* what rp_grad stops at keeps what it saved: its own backward is still to come */
    bool runs = has_needed_edge(e, n) && (e->n_inputs == 0 || n->class_ != &rp__accumulate_class);
    if (status == RP_OK && runs) status = node_compute(e, s, grads_in);
    /* References of the scope end before gradients are added up: one of them alone may be written. */
    for (uint32_t i = 0; i < n->n_in; i++)
        if (grads_in[i]) {
            if (status == RP_OK)
                rp_retain(grads_in[i]);
            else
                grads_in[i] = NULL;
        }
    for (uint32_t k = 0; k < n->n_out; k++)
        if (s->grads[k]) {
            rp_release(s->grads[k]);
            s->grads[k] = NULL;
        }
    if (status == RP_OK && runs && !e->retain_graph && n->class_->release_saved) n->class_->release_saved(n);
    rp__scope_end(scope, NULL, 0);
    scope = rp__scope_begin();
    for (uint32_t i = 0; i < n->n_in; i++)
        if (grads_in[i]) {
            if (status == RP_OK)
                status = send(e, n, s->stream, &n->edges[i], grads_in[i]);
            else
                rp_release(grads_in[i]);
        }
    rp__scope_end(scope, NULL, 0);
    if (switched && rp__current_stream(s->stream->device) != previous && rp_set_current_stream(previous) != RP_OK &&
        status == RP_OK)
        status = rp_error_status();
    rp__stream_drop(previous);
    rp__site_pop(frame);
    if (grads_in != few) rp__free(grads_in);
    return status;
}

/* ---------------------------------------------------------------- which nodes rp_grad needs */

/* Makes a slot for every node that can be reached, and marks those from which an input can. The work list hands them out by
   falling sequence; `order` then gives rising sequence, in which a node comes after all that it leads to. */
static rp_status mark_needed(engine *e, const rp__edge *roots, size_t n_roots) {
    slot **order = NULL;
    size_t n = 0, capacity = 0;
    rp_status status = RP_OK;
    slot *s;
    for (size_t i = 0; i < n_roots && status == RP_OK; i++) status = slot_get(e, roots[i].node, &s);
    while (e->n_heap > 0 && status == RP_OK) {
        s = heap_pop(e);
        if (!RP__GROW(&order, &capacity, n + 1)) {
            status = RP__OOM("rp_grad");
            break;
        }
        order[n++] = s;
        slot *next;
        for (uint32_t i = 0; i < s->node->n_in && status == RP_OK; i++)
            if (s->node->edges[i].node) status = slot_get(e, s->node->edges[i].node, &next);
    }
    while (n > 0 && status == RP_OK) {
        s = order[--n];
        s->needed = is_stop(e, stops_of(e, s->node), s->node) || has_needed_edge(e, s->node);
    }
    rp__free(order);
    return status;
}

/* ---------------------------------------------------------------- entry */

static rp_status engine_loop(engine *e, const rp__edge *roots, rp_tensor *const *seeds, size_t n_roots) {
    if (e->n_inputs > 0) {
        RP_TRY(mark_needed(e, roots, n_roots));
        for (size_t i = 0; i < e->slot_capacity; i++)
            if (e->slots[i] && e->slots[i]->needed) RP_TRY(heap_push(e, e->slots[i]));
    }
    for (size_t i = 0; i < n_roots; i++) {
        slot *s;
        RP_TRY(slot_get(e, roots[i].node, &s));
        if (!s->needed) continue;
        rp__device *device = rp__device_get(seeds[i]->device);
        if (!device) return rp_error_status();
        RP_TRY(deliver(e, rp__current_stream(device), s, roots[i].index, rp_retain(seeds[i])));
    }
    while (e->n_heap > 0) {
        slot *s = heap_pop(e);
        RP_TRY(node_run(e, s));
        if (e->n_inputs == 0) {
            slot_remove(e, s);
            slot_free(s);
        }
    }
    for (size_t i = 0; i < e->n_streams; i++)
        RP_TRY(stream_order(e->streams[i], rp__current_stream(e->streams[i]->device)));
    return RP_OK;
}

static void engine_free(engine *e) {
    for (size_t i = 0; i < e->slot_capacity; i++)
        if (e->slots[i]) slot_free(e->slots[i]);
    rp__free(e->slots);
    rp__free(e->heap);
    rp__free(e->stops);
    for (size_t i = 0; i < e->n_streams; i++) rp__stream_drop(e->streams[i]);
    rp__free(e->streams);
}
void (*rp__backward_watch_hook)(void);

rp_status rp__engine_run(const rp__edge *roots, rp_tensor *const *seeds, size_t n_roots, const rp__edge *inputs,
                         size_t n_inputs, rp_tensor **out, bool retain_graph, bool create_graph) {
    if (rp__flags.tracing && rp__backward_watch_hook) rp__backward_watch_hook();
    engine e = {.n_inputs = n_inputs, .captured = out, .retain_graph = retain_graph, .create_graph = create_graph};
    for (size_t i = 0; i < n_inputs; i++) out[i] = NULL;
    if (n_inputs > 0) RP_TRY(stops_make(&e, inputs));
    bool grad_mode = rp__grad_switch(create_graph);
    const uint8_t autocast = rp__autocast_switch(0);
    engine *outer = running;
    running = &e;
    rp_status status = engine_loop(&e, roots, seeds, n_roots);
    running = outer;
    (void)rp__autocast_switch(autocast);
    (void)rp__grad_switch(grad_mode);
    engine_free(&e);
    if (status != RP_OK)
        for (size_t i = 0; i < n_inputs; i++)
            if (out[i]) {
                rp_release(out[i]);
                out[i] = NULL;
            }
    return status;
}

static rp_status leaf_edge(engine *e, const rp__edge *edge) {
    slot *s;
    for (const stop *i = stops_of(e, edge->node); is_stop(e, i, edge->node); i++)
        if (i->index == edge->index) return RP_OK;
    return edge->node ? slot_get(e, edge->node, &s) : RP_OK;
}

rp_status rp__tape_each_leaf(rp_tensor *const *outputs, size_t n, rp_tensor *const *stops, size_t n_stops,
                             rp_status (*visit)(void *ctx, const rp_tensor *leaf), void *ctx) {
    rp__edge *edges = rp__calloc(n_stops + 1, sizeof *edges);
    engine e = {.n_inputs = n_stops};
    rp_status status = edges ? RP_OK : RP__OOM("the leaves behind a result");
    for (size_t i = 0; i < n_stops && status == RP_OK; i++) status = rp__tape_edge_of(stops[i], &edges[i]);
    if (status == RP_OK) status = stops_make(&e, edges);
    for (size_t i = 0; i < n && status == RP_OK; i++) {
        rp__edge edge;
        status = rp__tape_edge_of(outputs[i], &edge);
        if (status == RP_OK) status = leaf_edge(&e, &edge);
        rp__tape_node_release(edge.node);
    }
    while (status == RP_OK && e.n_heap > 0) {
        const rp__tape_node *node = heap_pop(&e)->node;
        if (node->class_ == &rp__accumulate_class) status = visit(ctx, *(rp_tensor *const *)node->payload);
        for (uint32_t i = 0; i < node->n_in && status == RP_OK; i++) status = leaf_edge(&e, &node->edges[i]);
    }
    for (size_t i = 0; edges && i < n_stops; i++) rp__tape_node_release(edges[i].node);
    engine_free(&e);
    rp__free(edges);
    return status;
}

/* The gradient that starts at root number i: given, or 1 for a root of one element. */
static rp_tensor *seed_of(const char *function, size_t i, rp_tensor *root, rp_tensor *given) {
    char have[RP__SHAPE_TEXT], want[RP__SHAPE_TEXT];
    if (!given) {
        if (rp__dim_is(RP__DIM_EQ, rp__tensor_numel(root), 1)) return rp_ones_like(root);
        (void)rp__fail(RP_ERROR_SHAPE,
                       "%s: output %zu has size %s; only an output of one element needs no gradient given", function, i,
                       rp__shape_text(root->size, root->ndim, want));
        return rp__tensor_error();
    }
    if (rp__tensor_check(given, "the gradient given for an output") != RP_OK) return rp__tensor_error();
    bool same = given->ndim == root->ndim;
    for (size_t d = 0; same && d < root->ndim; d++) same = rp__dim_is(RP__DIM_EQ, given->size[d], root->size[d]);
    if (!same || !rp__device_equal(given->device, root->device) || !rp__dtype_is_float((rp_dtype)given->dtype)) {
        (void)rp__fail(RP_ERROR_SHAPE,
                       "%s: the gradient given for output %zu is %s, and the output %s; size and device must be equal",
                       function, i, rp__tensor_text(given, have), rp__tensor_text(root, want));
        return rp__tensor_error();
    }
    return given->dtype == root->dtype ? given : rp_to_dtype(given, (rp_dtype)root->dtype);
}

static rp_status roots_prepare(const char *function, const char *what, rp_tensor *const *outputs, size_t n,
                               rp_tensor *const *grad_outputs, bool create_graph, rp__edge *edges, rp_tensor **seeds) {
    for (size_t i = 0; i < n; i++) {
        RP_TRY(rp__tensor_check(outputs[i], what));
        if (!rp__grad_needed(outputs[i]))
            return rp__fail(RP_ERROR_STATE,
                            "%s: output %zu does not require a gradient: no op that made it had an input that does",
                            function, i);
        RP_TRY(rp__tape_edge_of(outputs[i], &edges[i]));
        bool grad_mode = rp__grad_switch(create_graph);
        seeds[i] = seed_of(function, i, outputs[i], grad_outputs ? grad_outputs[i] : NULL);
        (void)rp__grad_switch(grad_mode);
        if (rp__tensor_is_error(seeds[i])) return rp_error_status();
    }
    return RP_OK;
}

rp_status rp__tape_grads(rp_tensor *const *roots, rp_tensor *const *seeds, size_t n_roots, rp_tensor *const *inputs,
                         size_t n_inputs, rp_tensor **grads, bool retain_graph, bool create_graph) {
    const size_t n = n_roots + n_inputs;
    rp__edge *ends = rp__calloc(n + 1, sizeof *ends);
    rp_tensor **found = rp__calloc(n_inputs + 1, sizeof *found);
    rp_status status = ends && found ? RP_OK : RP__OOM("gradients");
    for (size_t k = 0; k < n && status == RP_OK; k++)
        status = rp__tape_edge_of(k < n_roots ? roots[k] : inputs[k - n_roots], &ends[k]);
    if (status == RP_OK && n_roots > 0)
        status = rp__engine_run(ends, seeds, n_roots, ends + n_roots, n_inputs, found, retain_graph, create_graph);
    for (size_t k = 0; k < n_inputs && found; k++) {
        if (status == RP_OK) grads[k] = found[k] ? rp__tensor_enter_scope(found[k]) : NULL;
        if (found[k]) rp_release(found[k]);
    }
    for (size_t k = 0; k < n && ends; k++) rp__tape_node_release(ends[k].node);
    rp__free(ends);
    rp__free(found);
    return status;
}

rp_status rp_backward_at(const char *site, rp_tensor *root, rp_tensor *gradient, const rp_backward_options *options) {
    RP__CALLED_FROM(site);
    rp_backward_options o;
    RP_TRY(rp__options_read("rp_backward", options, sizeof o, &o));
    rp_scope scope = rp__scope_begin();
    rp__edge edge = {NULL, 0};
    rp_tensor *seed;
    rp_status status = scope.id ? RP_OK : rp_error_status();
    if (status == RP_OK)
        status =
            roots_prepare("rp_backward", "rp_backward: the root", &root, 1, &gradient, o.create_graph, &edge, &seed);
    if (status == RP_OK)
        status = rp__engine_run(&edge, &seed, 1, NULL, 0, NULL, o.retain_graph || o.create_graph, o.create_graph);
    rp__tape_node_release(edge.node);
    rp__scope_end(scope, NULL, 0);
    return status;
}

rp_status rp_grad_at(const char *site, rp_tensor *const *outputs, size_t n_outputs, rp_tensor *const *inputs,
                     size_t n_inputs, rp_tensor *const *grad_outputs, const rp_backward_options *options,
                     rp_tensor **out) {
    RP__CALLED_FROM(site);
    rp_backward_options o;
    if ((n_outputs && !outputs) || (n_inputs && (!inputs || !out)))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_grad: a list of tensors is NULL");
    RP__LISTS_APART(inputs, n_inputs, out, n_inputs,
                    rp_grad_at(site, outputs, n_outputs, apart, n_inputs, grad_outputs, options, out));
    RP__LISTS_APART(outputs, n_outputs, out, n_inputs,
                    rp_grad_at(site, apart, n_outputs, inputs, n_inputs, grad_outputs, options, out));
    if (grad_outputs)
        RP__LISTS_APART(grad_outputs, n_outputs, out, n_inputs,
                        rp_grad_at(site, outputs, n_outputs, inputs, n_inputs, apart, options, out));
    for (size_t i = 0; i < n_inputs; i++) out[i] = rp__tensor_error();
    RP_TRY(rp__options_read("rp_grad", options, sizeof o, &o));
    if (n_inputs == 0) return RP_OK;
    rp__edge *edges = rp__calloc(n_outputs + n_inputs, sizeof *edges);
    rp_tensor **tensors = rp__calloc(n_outputs + n_inputs, sizeof *tensors);
    rp_scope scope = rp__scope_begin();
    rp_status status = edges && tensors ? RP_OK : RP__OOM("rp_grad");
    if (!scope.id) status = rp_error_status();
    rp_tensor **results = tensors ? tensors + n_outputs : NULL;
    if (status == RP_OK)
        status = roots_prepare("rp_grad", "rp_grad: an output", outputs, n_outputs, grad_outputs, o.create_graph, edges,
                               tensors);
    for (size_t i = 0; i < n_inputs && status == RP_OK; i++) {
        status = rp__tensor_check(inputs[i], "rp_grad: an input");
        if (status == RP_OK && !rp__grad_needed(inputs[i]))
            status = rp__fail(RP_ERROR_STATE, "rp_grad: input %zu does not require a gradient", i);
        if (status == RP_OK) status = rp__tape_edge_of(inputs[i], &edges[n_outputs + i]);
    }
    if (status == RP_OK && n_outputs > 0)
        status = rp__engine_run(edges, tensors, n_outputs, edges + n_outputs, n_inputs, results,
                                o.retain_graph || o.create_graph, o.create_graph);
    bool ran = status == RP_OK;
    for (size_t i = 0; i < n_inputs && status == RP_OK; i++)
        if (!results[i] && !o.allow_unused)
            status = rp__fail(
                RP_ERROR_STATE,
                "rp_grad: input %zu was not used in making the outputs; set allow_unused to get NULL for it", i);
    /* References given to the caller's scope, not to ours. */
    rp__scope_end(scope, NULL, 0);
    for (size_t i = 0; i < n_inputs && ran; i++) {
        if (status == RP_OK) out[i] = results[i] ? rp__tensor_enter_scope(results[i]) : NULL;
        if (results[i]) rp_release(results[i]);
    }
    for (size_t i = 0; edges && i < n_outputs + n_inputs; i++) rp__tape_node_release(edges[i].node);
    rp__free(edges);
    rp__free(tensors);
    return status;
}
