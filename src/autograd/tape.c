/* Nodes, edges, saved tensors and the entry that a tensor has on the tape. Called by record.c (ops), function.c and
   checkpoint.c, and by floors 6 and 7 through rp__tape_attach. Runs no derivative: that is backward.c.
   Freeing must not recurse along the graph: the last reference to a node only puts it on the thread's list of dead nodes. */
#include "autograd/tape.h"
#include "core/alloc.h"
#include "core/fork.h"
#include "core/log.h"
#include "ops/grad.h"

#include <string.h>

void (*rp__grad_watch_hook)(rp_tensor *t);
rp_status (*rp__history_watch_hook)(rp_tensor *t);

/* ---------------------------------------------------------------- locks, grad mode */

enum { LOCKS = 64 };
#define LOCK4 RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT, RP__MUTEX_INIT
#define LOCK16 LOCK4, LOCK4, LOCK4, LOCK4
static rp__mutex locks[LOCKS] = {LOCK16, LOCK16, LOCK16, LOCK16};
RP__LOCKS_SURVIVE_FORK(fork_locks, locks, LOCKS)

rp__mutex *rp__autograd_lock(const void *object) {
    uint64_t h = (uint64_t)(uintptr_t)object;
    return &locks[(h >> 6 ^ h >> 12) % LOCKS];
}

bool rp__grad_switch(bool enabled) {
    bool old = !rp__flags.grad_disabled;
    rp__flags.grad_disabled = !enabled;
    return old;
}

_Thread_local rp__grad_said rp__grad_said_now;

void rp_grad_leave(bool *was) { (void)rp_set_grad_enabled(*was); }

bool rp_set_grad_enabled(bool enabled) {
    if (!RP__UNLIKELY(rp__grad_said_now.apart)) return rp__grad_switch(enabled);
    bool old = rp__grad_said_now.on;
    rp__grad_said_now.on = enabled;
    return old;
}

bool rp_grad_enabled(void) { return rp__grad_said_now.apart ? rp__grad_said_now.on : !rp__flags.grad_disabled; }

/* ---------------------------------------------------------------- nodes */

static atomic_uint_fast64_t last_sequence;

rp__tape_node *rp__tape_node_retain(rp__tape_node *n) {
    if (n) atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
    return n;
}

static _Thread_local rp__tape_node *dead_nodes;

static void node_destroy(rp__tape_node *n) {
    n->class_->destroy(n);
    for (uint32_t i = 0; i < n->n_in; i++) rp__tape_node_release(n->edges[i].node);
    rp__hooks_free(n);
    rp__retain_free(n);
    if (n->stream && !n->stream->is_default) rp__stream_drop(n->stream);
    rp__free(n);
}

void rp__tape_node_release(rp__tape_node *n) {
    if (!n || atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) != 1) return;
    n->next_dead = dead_nodes;
    dead_nodes = n;
    if (rp__flags.taking_apart) return;
    rp__flags.taking_apart = true;
    while (dead_nodes) {
        rp__tape_node *dead = dead_nodes;
        dead_nodes = dead->next_dead;
        node_destroy(dead);
    }
    rp__flags.taking_apart = false;
}

void rp__meta_of(const rp_tensor *t, rp__meta *out) {
    out->dtype = (rp_dtype)t->dtype;
    out->device = t->device;
    out->ndim = t->ndim;
    memcpy(out->size, t->size, t->ndim * sizeof *t->size);
}

static void meta_read(const rp__tape_node *n, const rp__tape_meta *m, rp__meta *out) {
    out->dtype = (rp_dtype)m->dtype;
    out->device = (rp_device){(rp_device_type)m->device_type, m->device_index};
    out->ndim = m->ndim;
    if (m->ndim > 0) memcpy(out->size, n->dims + m->dims, m->ndim * sizeof *out->size);
}

void rp__tape_in_meta(const rp__tape_node *n, uint32_t k, rp__meta *out) { meta_read(n, &n->meta[k], out); }
void rp__tape_out_meta(const rp__tape_node *n, uint32_t k, rp__meta *out) { meta_read(n, &n->meta[n->n_in + k], out); }

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

static const rp_tensor *first_of(rp_tensor *const *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (list[i]) return list[i];
    return NULL;
}

rp_status rp__tape_node_new(const rp__tape_class *class_, const char *op, const char *site, rp_tensor *const *in,
                            uint32_t n_in, rp_tensor *const *out, uint32_t n_out, size_t payload_bytes,
                            rp__tape_node **node) {
    *node = NULL;
    size_t n_dims = 0;
    for (uint32_t i = 0; i < n_in; i++) n_dims += in[i] ? in[i]->ndim : 0;
    for (uint32_t i = 0; i < n_out; i++) n_dims += out[i] ? out[i]->ndim : 0;
    size_t at_edges = round_up(sizeof(rp__tape_node), 16);
    size_t at_dims = at_edges + n_in * sizeof(rp__edge);
    size_t at_meta = at_dims + n_dims * sizeof(rp_dim);
    size_t at_payload = round_up(at_meta + (n_in + n_out) * sizeof(rp__tape_meta), 16);
    char *memory = rp__alloc(at_payload + payload_bytes);
    if (!memory) return RP__OOM("tape node");
    memset(memory, 0, at_dims);
    memset(memory + at_payload, 0, payload_bytes);
    rp__tape_node *n = (rp__tape_node *)(void *)memory;
    atomic_init(&n->refs, 1);
    n->class_ = class_;
    n->op = op;
    n->site = site;
    n->n_in = n_in;
    n->n_out = n_out;
    n->edges = (rp__edge *)(void *)(memory + at_edges);
    n->dims = (rp_dim *)(void *)(memory + at_dims);
    n->meta = (rp__tape_meta *)(void *)(memory + at_meta);
    n->payload = payload_bytes > 0 ? memory + at_payload : NULL;

    uint32_t dims = 0;
    for (uint32_t i = 0; i < n_in + n_out; i++) {
        const rp_tensor *t = i < n_in ? in[i] : out[i - n_in];
        rp__tape_meta *m = &n->meta[i];
        memset(m, 0, sizeof *m);
        if (!t) continue;
        *m = (rp__tape_meta){t->dtype, t->ndim, (uint8_t)t->device.type, t->device.index, dims};
        memcpy(n->dims + dims, t->size, t->ndim * sizeof *t->size);
        dims += t->ndim;
    }
    rp_status status = RP_OK;
    for (uint32_t i = 0; i < n_in && status == RP_OK; i++) {
        if (in[i]) status = rp__tape_edge_of(in[i], &n->edges[i]);
        const rp__tape_node *before = n->edges[i].node;
        if (before && site && before->site == site && before->repeats >= n->repeats) n->repeats = before->repeats + 1;
    }
    if (RP__UNLIKELY(n->repeats == RP__TAPE_REPEATS_ADVICE))
        rp__log(
            RP__LOG_ADVICE,
            "the result of %s at %s has %d calls of that line in its history: a sum over steps keeps the memory of each; "
            "detach what is added (rp_detach)",
            op, site, RP__TAPE_REPEATS_ADVICE);
    const rp_tensor *where = first_of(out, n_out);
    if (!where) where = first_of(in, n_in);
    rp__device *device = where ? rp__device_get(where->device) : NULL;
    if (status == RP_OK && where && !device) status = rp_error_status();
    if (status != RP_OK) {
        for (uint32_t i = 0; i < n_in; i++) rp__tape_node_release(n->edges[i].node);
        rp__free(n);
        return status;
    }
    if (device) {
        n->stream = rp__current_stream(device);
        if (!n->stream->is_default) atomic_fetch_add_explicit(&n->stream->refs, 1, memory_order_relaxed);
    }
    /* After the edges: what they lead to may have been made just now. */
    n->sequence = atomic_fetch_add_explicit(&last_sequence, 1, memory_order_relaxed) + 1;
    *node = n;
    return RP_OK;
}

/* ---------------------------------------------------------------- the entry of a tensor */

rp__autograd *rp__autograd_get(rp_tensor *t) {
    if (t->autograd) return t->autograd;
    rp__autograd *a = rp__calloc(1, sizeof *a);
    if (!a) {
        (void)RP__OOM("tape entry of a tensor");
        return NULL;
    }
    a->tensor = t;
    t->autograd = a;
    return a;
}

/* The handle dies. Its accumulate node, which holds the handle, died before. */
static void autograd_free(rp__autograd *a) {
    if (a->node) {
        rp__retain_remove(a->node, a);
        rp__tape_node_release(a->node);
    }
    if (a->grad) rp_release(a->grad);
    rp__hooks_free_of_tensor(a);
    if (a->base) rp_release(a->base);
    rp__view_steps_release(a->steps);
    rp__free(a);
}

_Atomic uint64_t rp__grad_changes = 1;

rp_status rp__tape_edge_of(rp_tensor *t, rp__edge *out) {
    *out = (rp__edge){NULL, 0};
    if (t->flags & RP__T_REQUIRES_GRAD) return rp__accumulate_node(t, &out->node);
    rp__autograd *a = t->autograd;
    if (!a) return RP_OK;
    if (!a->base) {
        *out = (rp__edge){rp__tape_node_retain(a->node), a->out_index};
        return RP_OK;
    }
    if (!a->node && !rp__grad_needed(a->base)) return RP_OK;
    RP_TRY(rp__view_refresh(a));
    rp__mutex *lock = rp__autograd_lock(a);
    rp__lock(lock);
    *out = (rp__edge){rp__tape_node_retain(a->node), a->out_index};
    rp__unlock(lock);
    return RP_OK;
}

rp_status rp__tape_set_history(rp_tensor *t, rp__tape_node *n, uint32_t index) {
    rp__autograd *a = rp__autograd_get(t);
    if (!a) return RP_ERROR_OUT_OF_MEMORY;
    RP_TRY(rp__history_watch(t));
    if (t->flags & RP__T_RETAINS_GRAD) {
        RP_TRY(rp__retain_add(n, index, a));
        if (a->node) rp__retain_remove(a->node, a);
    }
    rp__tape_node *old = a->node;
    a->node = rp__tape_node_retain(n);
    a->out_index = index;
    rp__grad_change(t);
    rp__tape_node_release(old);
    return RP_OK;
}

void rp__tape_put_back(rp_tensor *t, rp__tape_node *n, uint32_t index, uint64_t view_version) {
    rp__autograd *a = t->autograd; /* there since the history changed */
    rp__tape_node *old = a->node;
    a->view_version = view_version;
    if (old == n && a->out_index == index) return;
    if (t->flags & RP__T_RETAINS_GRAD) {
        if (n) (void)rp__retain_add(n, index, a); /* without memory for it the sticky error says so */
        if (old) rp__retain_remove(old, a);
    }
    a->node = rp__tape_node_retain(n);
    a->out_index = index;
    rp__grad_change(t);
    rp__tape_node_release(old);
}

rp_status rp__tape_attach(const rp__tape_class *class_, void *payload, const char *op, const char *site,
                          rp_tensor *const *in, uint32_t n_in, rp_tensor *const *out, uint32_t n_out,
                          rp__tape_node **node) {
    bool needed = false;
    if (node) *node = NULL;
    for (uint32_t i = 0; i < n_in && !rp__flags.grad_disabled; i++)
        needed = needed || (in[i] && rp__grad_needed(in[i]));
    rp__tape_node holder = {.class_ = class_, .op = op, .site = site, .payload = payload};
    if (!needed) {
        class_->destroy(&holder);
        return RP_OK;
    }
    rp__tape_node *n;
    rp_status status = rp__tape_node_new(class_, op, site, in, n_in, out, n_out, 0, &n);
    if (status != RP_OK) {
        class_->destroy(&holder);
        return status;
    }
    n->payload = payload;
    for (uint32_t k = 0; k < n_out && status == RP_OK; k++)
        if (out[k] && rp__dtype_is_float((rp_dtype)out[k]->dtype)) status = rp__tape_set_history(out[k], n, k);
    if (node && status == RP_OK) *node = n;
    rp__tape_node_release(n);
    return status;
}

/* ---------------------------------------------------------------- saved tensors */

/* In a trace it must be known to the trace, so the op makes it. */
rp_tensor *rp__tape_shadow(rp_tensor *t) {
    rp_tensor *shadow;
    if (t->traced || rp__flags.tracing) { /* an argument or a parameter, too: the graph must see whose value it is */
        const rp__op *op = RP__OP(detach);
        rp__call call = {
            .op = op, .site = t->site, .in = &t, .n_in = 1, .list_begin = {0, 1}, .out = &shadow, .n_out = 1};
        rp__flags.shadowing = true;
        rp_status status = rp__dispatch_below(RP__LAYER_AUTOGRAD, &call);
        rp__flags.shadowing = false;
        if (status != RP_OK) return rp__tensor_error();
    } else {
        shadow = rp__tensor_view(t, t->size, t->stride, t->ndim, t->offset);
    }
    if (!rp__tensor_is_error(shadow)) {
        shadow->op = t->op;
        shadow->site = t->site;
    }
    return shadow;
}

static uint64_t version_of(const rp_tensor *t) {
    return atomic_load_explicit(&t->storage->version, memory_order_relaxed);
}

static const char *site_of(const char *site) { return site && *site ? site : "no call site"; }

rp_status rp__tape_released(const rp__tape_node *n) {
    return rp__fail(
        RP_ERROR_STATE,
        "backward through the graph a second time: what `%s` (%s) had saved was freed after the first; pass "
        "retain_graph to the first rp_backward or rp_grad",
        n->op, site_of(n->site));
}

/* A handle is kept only where it cannot come to own, through a later in-place op, the node that keeps it: leaves that require
   a gradient, and values of a running trace. All others are kept as a second handle with the edge beside it. */
rp_status rp__saved_pack(rp__saved *s, rp_tensor *t, bool is_output, uint32_t index) {
    rp_status status = RP_OK;
    memset(s, 0, sizeof *s);
    if (rp__checkpoint_pack(s, t, is_output, index, &status)) return status;
    s->is_output = is_output;
    s->version = version_of(t);
    if (!is_output && (t->flags & RP__T_REQUIRES_GRAD)) {
        s->tensor = rp_retain(t);
        return RP_OK;
    }
    rp_tensor *shadow = rp__tape_shadow(t);
    if (rp__tensor_is_error(shadow)) return rp_error_status();
    if (is_output)
        s->edge.index = index;
    else
        RP_TRY(rp__tape_edge_of(t, &s->edge));
    s->tensor = rp__tensor_unscope(shadow);
    return RP_OK;
}

rp_tensor *rp__saved_attach(const rp__saved *s, rp_tensor *value, rp__tape_node *n) {
    rp__tape_node *producer = s->is_output ? n : s->edge.node;
    bool floating = rp__dtype_is_float((rp_dtype)value->dtype); /* indices have no history */
    if (rp__flags.grad_disabled || !producer || !floating || (value->flags & RP__T_REQUIRES_GRAD)) return value;
    rp_tensor *t = rp__tape_shadow(value);
    if (rp__tensor_is_error(t)) return t;
    return rp__tape_set_history(t, producer, s->edge.index) == RP_OK ? t : rp__tensor_error();
}

rp_tensor *rp__saved_unpack(rp__saved *s, rp__tape_node *n) {
    if (s->checkpoint) return rp__checkpoint_unpack(s, n);
    if (!s->tensor) {
        (void)rp__tape_released(n);
        return rp__tensor_error();
    }
    uint64_t version = version_of(s->tensor);
    if (version != s->version) {
        const rp__storage *storage = s->tensor->storage;
        char text[RP__SHAPE_TEXT];
        (void)rp__fail(
            RP_ERROR_VERSION,
            "a tensor needed for the gradient of `%s` (%s) has been modified in place by `%s` (%s): %s %s is at "
            "version %llu, expected version %llu",
            n->op, site_of(n->site), storage->writer_op ? storage->writer_op : "a write", site_of(storage->writer_site),
            s->is_output ? "its result" : "its argument", rp__tensor_text(s->tensor, text), (unsigned long long)version,
            (unsigned long long)s->version);
        return rp__tensor_error();
    }
    return rp__saved_attach(s, s->tensor, n);
}

void rp__saved_drop(rp__saved *s) {
    if (s->checkpoint) rp__checkpoint_drop(s);
    rp_tensor *t = s->tensor;
    rp__tape_node *node = s->edge.node;
    s->tensor = NULL;
    s->edge.node = NULL;
    if (t) rp_release(t);
    rp__tape_node_release(node);
}

/* Here and not in record.c: a static link takes this file in wherever a gradient can be asked for. */
__attribute__((constructor)) static void autograd_install(void) {
    rp__autograd_free_hook = autograd_free;
    rp__layer_default(RP__LAYER_AUTOGRAD, &rp__autograd_layer);
}
