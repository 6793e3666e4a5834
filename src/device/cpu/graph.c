/* Device graphs of the CPU: a checked list of launches in an order that the edges allow, and stream capture, which makes such
   lists. Without REPRISE_STREAM_SEED=0 the order is drawn from the seed: a missing edge gives a wrong result sooner or later. */
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "device/capture.h"

typedef struct choice {
    struct choice *next; /* of the graph */
    uint32_t decision;   /* what the handle points to */
    bool loop;
    rp__devgraph *body[2]; /* owned; NULL before the node was added, and where there is none */
} choice;

typedef struct node {
    rp__launch *launch; /* owned; its words are ours to change. NULL: a choice */
    choice *choice;
    uint32_t *deps;
    uint32_t n_deps;
} node;

struct rp__devgraph {
    node *nodes;
    size_t n, capacity;
    uint32_t *order;    /* of the executable form; NULL before */
    choice *choices;    /* owned */
    rp__devgraph *root; /* of a body: the graph that is launched */
    atomic_int queued;  /* launches that streams have not run yet; of the root */
};

rp_status rp__cpu_graph_new(rp__device *d, rp__devgraph **out) {
    (void)d;
    *out = rp__calloc(1, sizeof **out);
    return *out ? RP_OK : RP__OOM("a device graph");
}

/* Appends a node without work. */
static rp_status add_node(rp__devgraph *g, const uint32_t *deps, size_t n_deps, uint32_t *out) {
    if (g->order) return rp__fail(RP_ERROR_STATE, "a node cannot be added to an instantiated graph");
    for (size_t i = 0; i < n_deps; i++) {
        if (deps[i] >= g->n)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "node %zu of a graph cannot depend on node %u: it does not exist yet", g->n,
                            (unsigned)deps[i]);
    }
    if (g->n >= UINT32_MAX || !RP__GROW(&g->nodes, &g->capacity, g->n + 1))
        return RP__OOM("the nodes of a device graph");
    node n = {.n_deps = (uint32_t)n_deps};
    if (n_deps) {
        n.deps = rp__alloc(n_deps * sizeof *n.deps);
        if (!n.deps) return RP__OOM("the edges of a device graph");
        memcpy(n.deps, deps, n_deps * sizeof *deps);
    }
    *out = (uint32_t)g->n;
    g->nodes[g->n++] = n;
    return RP_OK;
}

rp_status rp__cpu_graph_add(rp__devgraph *g, const rp__launch *l, const uint32_t *deps, size_t n_deps, uint32_t *out) {
    if (!l->kernel) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "a graph node needs a kernel");
    rp__launch *copy = rp__launch_copy(l, false); /* graphs keep memory alive by pools and plans, not by nodes */
    if (!copy) return RP_ERROR_OUT_OF_MEMORY;
    rp_status status = add_node(g, deps, n_deps, out);
    if (status == RP_OK)
        g->nodes[*out].launch = copy;
    else
        rp__launch_free(copy, false);
    return status;
}

rp_status rp__cpu_graph_choice_new(rp__devgraph *g, bool two, uint64_t *handle) {
    (void)two;
    choice *c = rp__calloc(1, sizeof *c);
    if (!c) return RP__OOM("a choice of a device graph");
    c->next = g->choices;
    g->choices = c;
    *handle = (uint64_t)(uintptr_t)&c->decision;
    return RP_OK;
}

rp_status rp__cpu_graph_choice_add(rp__devgraph *g, uint64_t handle, bool loop, bool two, const uint32_t *deps,
                                   size_t n_deps, uint32_t *out, rp__devgraph *bodies[2]) {
    choice *c = g->choices;
    while (c && (uint64_t)(uintptr_t)&c->decision != handle) c = c->next;
    if (!c || c->body[0])
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "a choice needs a decision of its own in its graph");
    c->loop = loop;
    for (unsigned k = 0; k < (two ? 2u : 1u); k++) {
        RP_TRY(rp__cpu_graph_new(NULL, &c->body[k]));
        c->body[k]->root = g->root ? g->root : g;
    }
    RP_TRY(add_node(g, deps, n_deps, out));
    g->nodes[*out].choice = c;
    bodies[0] = c->body[0];
    bodies[1] = c->body[1];
    return RP_OK;
}

rp_status rp__cpu_graph_instantiate(rp__devgraph *g, rp_stream *upload_on) {
    (void)upload_on;
    if (g->order) return RP_OK;
    for (const choice *c = g->choices; c; c = c->next) {
        if (!c->body[0]) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "a decision of a device graph has no choice");
        for (unsigned k = 0; k < 2 && c->body[k]; k++) RP_TRY(rp__cpu_graph_instantiate(c->body[k], NULL));
    }
    uint32_t *order = rp__alloc(g->n * sizeof *order);
    uint32_t *left = rp__alloc(g->n * sizeof *left), *ready = rp__alloc(g->n * sizeof *ready);
    rp_status status = order && left && ready ? RP_OK : RP__OOM("the executable form of a device graph");
    size_t n_ready = 0, done = 0;
    /* Edges point back, so walking users is a scan over later nodes: lists of users keep it linear. */
    uint32_t *first_user = rp__alloc((g->n + 1) * sizeof *first_user), *users = NULL;
    size_t n_edges = 0;
    for (size_t i = 0; i < g->n; i++) n_edges += g->nodes[i].n_deps;
    users = rp__alloc(n_edges * sizeof *users);
    if (status == RP_OK && (!first_user || !users)) status = RP__OOM("the executable form of a device graph");
    if (status != RP_OK) goto done;
    memset(first_user, 0, (g->n + 1) * sizeof *first_user);
    for (size_t i = 0; i < g->n; i++) {
        left[i] = g->nodes[i].n_deps;
        for (uint32_t k = 0; k < g->nodes[i].n_deps; k++) first_user[g->nodes[i].deps[k] + 1]++;
    }
    for (size_t i = 0; i < g->n; i++) first_user[i + 1] += first_user[i];
    for (size_t i = 0; i < g->n; i++) {
        for (uint32_t k = 0; k < g->nodes[i].n_deps; k++) {
            uint32_t dep = g->nodes[i].deps[k];
            users[first_user[dep]++] = (uint32_t)i; /* first_user[dep] is now the end of dep's list */
        }
    }
    for (size_t i = g->n; i-- > 0;) {
        if (left[i] == 0)
            ready[n_ready++] =
                (uint32_t)i; /* the lowest is on top: without a seed the order stays close to that of adding */
    }
    while (n_ready) {
        uint64_t chance = rp__cpu_random();
        size_t pick = chance ? (size_t)(chance % n_ready) : n_ready - 1;
        uint32_t i = ready[pick];
        ready[pick] = ready[--n_ready];
        order[done++] = i;
        for (uint32_t k = i ? first_user[i - 1] : 0; k < first_user[i]; k++) {
            if (--left[users[k]] == 0) ready[n_ready++] = users[k];
        }
    }
    if (done != g->n) status = rp__fail(RP_ERROR_INTERNAL, "a device graph has a cycle");
done:
    rp__free(left);
    rp__free(ready);
    rp__free(first_user);
    rp__free(users);
    if (status == RP_OK)
        g->order = order;
    else
        rp__free(order);
    return status;
}

static rp_status run(const rp__devgraph *g);

static rp_status run_choice(const choice *c) {
    if (!c->loop) {
        const rp__devgraph *body = c->body[c->decision ? 0 : 1];
        return body ? run(body) : RP_OK;
    }
    rp_status status = RP_OK;
    while (c->decision && status == RP_OK) status = run(c->body[0]);
    return status;
}

static rp_status run(const rp__devgraph *g) {
    rp_status status = RP_OK;
    for (size_t i = 0; i < g->n; i++) {
        const node *n = &g->nodes[g->order[i]];
        rp_status one = RP__LIKELY(n->launch != NULL) ? rp__cpu_run(n->launch) : run_choice(n->choice);
        if (RP__UNLIKELY(one != RP_OK) && status == RP_OK) status = one;
    }
    return status;
}

rp_status rp__cpu_graph_run_queued(rp__devgraph *g) {
    rp_status status = run(g);
    atomic_fetch_sub(&g->queued, 1);
    return status;
}

rp_status rp__cpu_graph_launch(rp__devgraph *g, rp_stream *s) {
    if (!g->order) return rp__fail(RP_ERROR_STATE, "the device graph is not instantiated");
    if (RP__LIKELY(s->is_default)) return run(g);
    if (s->capture) { /* its nodes become nodes of the capture, one after the other: any order that its edges allow is right */
        if (g->choices) return rp__fail(RP_ERROR_CAPTURE, "a graph with choices cannot be captured into another");
        for (size_t i = 0; i < g->n; i++) RP_TRY(rp__cpu_capture_launch(s, g->nodes[g->order[i]].launch));
        return RP_OK;
    }
    atomic_fetch_add(&g->queued, 1);
    rp_status status = rp__cpu_enqueue_graph(s, g);
    if (status != RP_OK) atomic_fetch_sub(&g->queued, 1);
    return status;
}

rp_status rp__cpu_graph_set_words(rp__devgraph *g, uint32_t index, const uint64_t *words) {
    if (index >= g->n)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the graph has %zu nodes, there is no node %u", g->n,
                        (unsigned)index);
    rp__devgraph *root = g->root ? g->root : g;
    if (atomic_load(&root->queued)) rp__cpu_graph_drain(root); /* launches made before still read the old words */
    rp__launch *l = g->nodes[index].launch;
    if (!l)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "node %u of the graph is a choice: it has no words",
                        (unsigned)index);
    memcpy(l + 1, words, l->n_words * sizeof *words); /* where rp__launch_copy put them */
    return RP_OK;
}

size_t rp__cpu_graph_nodes(const rp__devgraph *g) { return g->n; }
const rp__launch *rp__cpu_graph_node(const rp__devgraph *g, uint32_t index) {
    return index < g->n ? g->nodes[index].launch : NULL;
}

void rp__cpu_graph_free(rp__devgraph *g) {
    if (!g) return;
    if (atomic_load(&g->queued)) rp__cpu_graph_drain(g);
    for (size_t i = 0; i < g->n; i++) {
        if (g->nodes[i].launch) rp__launch_free(g->nodes[i].launch, false);
        rp__free(g->nodes[i].deps);
    }
    while (g->choices) {
        choice *c = g->choices;
        g->choices = c->next;
        rp__cpu_graph_free(c->body[0]);
        rp__cpu_graph_free(c->body[1]);
        rp__free(c);
    }
    rp__free(g->nodes);
    rp__free(g->order);
    rp__free(g);
}

/* ---- capture */

typedef struct lane { /* a stream of the capture */
    rp_stream *stream;
    rp__cpu_frontier frontier;
} lane;

typedef struct recording {
    uint64_t serial;
    rp__capture *capture;
    rp__devgraph *graph;
    lane *lanes; /* [0]: the stream that began */
    size_t n, capacity;
    struct recording *next;
} recording;

static rp__mutex lock = RP__MUTEX_INIT; /* all recordings */
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)
static recording *recordings;

static lane *lane_of(recording *r, const rp_stream *s) {
    for (size_t i = 0; i < r->n; i++) {
        if (r->lanes[i].stream == s) return &r->lanes[i];
    }
    return NULL;
}

static lane *lane_add(recording *r, rp_stream *s) {
    if (!RP__GROW(&r->lanes, &r->capacity, r->n + 1)) {
        RP__OOM("the streams of a capture");
        return NULL;
    }
    r->lanes[r->n] = (lane){.stream = s};
    return &r->lanes[r->n++];
}

static rp_status frontier_set(rp__cpu_frontier *f, const uint32_t *nodes, size_t n) {
    if (!RP__GROW(&f->nodes, &f->capacity, n)) return RP__OOM("the dependencies of a capture");
    if (n) memcpy(f->nodes, nodes, n * sizeof *nodes);
    f->n = n;
    return RP_OK;
}

static rp_status frontier_join(rp__cpu_frontier *f, const rp__cpu_frontier *other) {
    if (!RP__GROW(&f->nodes, &f->capacity, f->n + other->n)) return RP__OOM("the dependencies of a capture");
    for (size_t i = 0; i < other->n; i++) {
        size_t k = 0;
        while (k < f->n && f->nodes[k] != other->nodes[i]) k++;
        if (k == f->n) f->nodes[f->n++] = other->nodes[i];
    }
    return RP_OK;
}

/* A capture that could not record something must not look whole. */
static rp_status spoiled(rp_stream *s, rp_status status) {
    if (status != RP_OK) rp__capture_invalidate(s->capture, rp_error_message());
    return status;
}

rp_status rp__cpu_capture_begin(rp__device *d, rp_stream *s, rp_capture_mode mode) {
    (void)mode;
    static uint64_t serials;
    recording *r = rp__calloc(1, sizeof *r);
    if (!r) return RP__OOM("a capture");
    rp_status status = rp__cpu_graph_new(d, &r->graph);
    if (status != RP_OK || !lane_add(r, s)) {
        rp__cpu_graph_free(r->graph);
        rp__free(r);
        return RP_ERROR_OUT_OF_MEMORY;
    }
    r->capture = s->capture;
    s->capture->native = r;
    rp__lock(&lock);
    r->serial = ++serials;
    r->next = recordings;
    recordings = r;
    rp__unlock(&lock);
    return RP_OK;
}

rp_status rp__cpu_capture_launch(rp_stream *s, const rp__launch *l) {
    recording *r = s->capture->native;
    uint32_t index;
    rp__lock(&lock);
    lane *own = lane_of(r, s);
    rp_status status = rp__cpu_graph_add(r->graph, l, own->frontier.nodes, own->frontier.n, &index);
    if (status == RP_OK) status = frontier_set(&own->frontier, &index, 1);
    rp__unlock(&lock);
    return spoiled(s, status);
}

rp_status rp__cpu_capture_mark(rp_stream *s, rp__cpu_mark *mark) {
    recording *r = s->capture->native;
    rp__lock(&lock);
    const lane *own = lane_of(r, s);
    rp_status status = frontier_set(&mark->frontier, own->frontier.nodes, own->frontier.n);
    if (status == RP_OK) mark->capture = r->serial;
    rp__unlock(&lock);
    return spoiled(s, status);
}

rp_status rp__cpu_capture_wait(rp_stream *s, const rp__cpu_mark *mark) {
    rp_status status = RP_OK;
    rp__lock(&lock);
    recording *r = recordings;
    while (r && r->serial != mark->capture) r = r->next;
    if (!r)
        status = rp__fail(RP_ERROR_CAPTURE, "the event was recorded in a capture that has ended");
    else
        status = rp__capture_join(r->capture, s); /* nothing when s is in it already */
    lane *own = status == RP_OK ? lane_of(r, s) : NULL;
    if (status == RP_OK && !own && !(own = lane_add(r, s))) status = RP_ERROR_OUT_OF_MEMORY;
    if (status == RP_OK) status = frontier_join(&own->frontier, &mark->frontier);
    if (status != RP_OK && r) rp__capture_invalidate(r->capture, rp_error_message());
    rp__unlock(&lock);
    return s->capture ? spoiled(s, status) : status;
}

rp_status rp__cpu_capture_outsider(rp_stream *s) {
    return spoiled(s, rp__fail(RP_ERROR_CAPTURE,
                               "a capturing stream cannot wait for an event that was recorded outside of the capture"));
}

/* Is the work of every stream behind what the first stream waited for? */
static rp_status check_joined(const recording *r) {
    const rp__devgraph *g = r->graph;
    uint8_t *reached = rp__calloc(g->n ? g->n : 1, 1);
    if (!reached) return RP__OOM("the check of a capture");
    for (size_t i = 0; i < r->lanes[0].frontier.n; i++) reached[r->lanes[0].frontier.nodes[i]] = 1;
    for (size_t i = g->n; i-- > 0;) {
        for (uint32_t k = 0; reached[i] && k < g->nodes[i].n_deps; k++) reached[g->nodes[i].deps[k]] = 1;
    }
    rp_status status = RP_OK;
    for (size_t i = 1; i < r->n && status == RP_OK; i++) {
        for (size_t k = 0; k < r->lanes[i].frontier.n && status == RP_OK; k++) {
            uint32_t index = r->lanes[i].frontier.nodes[k];
            const rp__launch *l = g->nodes[index].launch;
            if (reached[index]) continue;
            bool placed = l->site && *l->site;
            status = rp__fail(
                RP_ERROR_CAPTURE,
                "a stream that joined the capture was not joined back: nothing waits for its %s%s%s; record an event on it and let "
                "the capturing stream wait for that",
                l->op && *l->op ? l->op : "last launch", placed ? " launched at " : "", placed ? l->site : "");
        }
    }
    rp__free(reached);
    return status;
}

rp_status rp__cpu_capture_end(rp__device *d, rp_stream *s, rp__devgraph **out) {
    (void)d;
    recording *r = s->capture->native;
    rp__lock(&lock);
    for (recording **link = &recordings; *link; link = &(*link)->next) {
        if (*link == r) {
            *link = r->next;
            break;
        }
    }
    rp__unlock(&lock);
    rp_status status = check_joined(r);
    if (status == RP_OK) {
        *out = r->graph;
    } else {
        rp__cpu_graph_free(r->graph);
        *out = NULL;
    }
    for (size_t i = 0; i < r->n; i++) rp__free(r->lanes[i].frontier.nodes);
    rp__free(r->lanes);
    rp__free(r);
    return status;
}
