/* What the slots of a program's records say (program_parts.h): which record waits for which, and which words hold addresses of
   buffers. Called while it is built, and again when its device graph is. */
#include "compile/edges.h"
#include "compile/explain.h"
#include "compile/program_parts.h"
#include "compile/touched.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

/* Edges: a write waits for all that overlap, a read for writes. */
typedef struct filler { /* of one device graph: its edges are found, then its nodes are made */
    rp__executable *p;
    rp__devgraph *graph;       /* NULL: edges are being found */
    rp__touched reads, writes; /* so far, less what a later write covers */
    rp__edges edges;
    uint32_t *deps, *mark; /* of the node being found; per node, the last `stamp` that made it a dependency */
    struct past {
        uint32_t depth;
        double end; /* when it is done, where only its edges hold it back (node_time) */
    } * past;       /* per node */
    size_t deps_capacity, mark_capacity, past_capacity;
    uint32_t n_deps, stamp, depth;
    uint32_t n_made;  /* nodes of `graph` */
    double time, end; /* ns: of all nodes one behind the other, of the path that takes longest */
    rp_status failed;
    double busy;   /* ns: of those that have the device for themselves */
    int64_t bytes; /* that they touch */
    bool line;     /* every node waits for the one before it */
} filler;

static void filler_free(filler *f) {
    rp__touched_free(&f->reads);
    rp__touched_free(&f->writes);
    rp__edges_free(&f->edges);
    rp__free(f->deps);
    rp__free(f->mark);
    rp__free(f->past);
}

static rp_status depend(filler *f, uint32_t node) {
    if (f->mark[node] == f->stamp) return RP_OK;
    if (!RP__GROW(&f->deps, &f->deps_capacity, f->n_deps + 1u)) return RP__OOM("edges of a program");
    f->mark[node] = f->stamp;
    f->deps[f->n_deps++] = node;
    return RP_OK;
}

static bool visit_touching(void *ctx, uint32_t node) {
    filler *f = ctx;
    f->failed = f->failed ? f->failed : depend(f, node);
    return f->failed == RP_OK;
}
/* The node being added waits for what the launch conflicts with. */
static rp_status wait_for(filler *f, const rp__launch *l) {
    for (uint32_t k = 0; k < l->n_slots; k++) {
        const rp__slot *s = &l->slots[k];
        (void)rp__touched_each(&f->writes, s, visit_touching, f);
        if (s->access & RP__WRITE) (void)rp__touched_each(&f->reads, s, visit_touching, f);
        RP_TRY(f->failed);
    }
    return RP_OK;
}

/* Later nodes find what the launch, part of `node`, touches. */
static rp_status note(filler *f, const rp__launch *l, uint32_t node) {
    for (uint32_t k = 0; k < l->n_slots; k++) {
        const rp__slot *s = &l->slots[k];
        const bool write = s->access & RP__WRITE;
        if (write) { /* what lies wholly inside is ordered through this write from now on */
            rp__touched_drop(&f->reads, s);
            rp__touched_drop(&f->writes, s);
        }
        RP_TRY(rp__touched_add(write ? &f->writes : &f->reads, s, node));
    }
    return RP_OK;
}

static rp_status begin_node(filler *f) {
    const uint32_t node = f->edges.n_nodes;
    f->stamp++;
    f->n_deps = 0;
    if (!RP__GROW(&f->mark, &f->mark_capacity, node + 1u)) return RP__OOM("edges of a program");
    f->mark[node] = 0;
    return RP_OK;
}

/* ---- what nodes take, in ns, as measured on an H200: a training step of 10 nodes, 7 of them on the longest path, takes 14.9 us as a line
   and 13.5 with forks, and its launch 1.42 us of the host and 1.97. A driver launches a line in the same time whatever its length.
     NODE_START   a node that does next to nothing, behind another
     NODE_BESIDE  what of that is left of a node beside the longest path: it waits for another branch, or is waited for
     FORK_LAUNCH  of the host, for each node of a graph that is no line, but FORK_LEAST at least
     BLOCK_BYTES  that a block moves in a ns, where each multiprocessor has one at most
     FEW_BLOCKS   by which a product or a library's call counts */
enum { NODE_START = 1490, NODE_BESIDE = 1030, FORK_LAUNCH = 55, FORK_LEAST = 550, BLOCK_BYTES = 30, FEW_BLOCKS = 4 };

/* Is it a loop of ours, whose blocks share the bytes that the launch touches? */
static bool is_loop(const rp__executable *p, uint32_t record) {
    const struct rp__program_made *made =
        p->record_group[record] == RP__IR_NONE ? NULL : &p->made[p->record_group[record]];
    for (uint32_t k = 0; made && k < made->n_dags; k++)
        if (!p->dags[made->first_dag + k].dag->rest) return true;
    return false;
}
static int64_t bytes_of(const rp__launch *l) {
    int64_t bytes = 0;
    for (uint32_t k = 0; k < l->n_slots; k++) bytes += l->slots[k].end - l->slots[k].begin;
    return bytes;
}
/* Of products and what libraries do only the bytes are known, of which each block reads many again: they count as what a few blocks
   take. */
static double node_time(const rp__executable *p, const rp__launch *l, uint32_t record) {
    double blocks = (double)rp__launch_blocks(l);
    if (blocks > p->device->multiprocessors) blocks = p->device->multiprocessors;
    if (blocks < 1 || !is_loop(p, record)) blocks = FEW_BLOCKS;
    return NODE_START + (double)bytes_of(l) / (BLOCK_BYTES * blocks);
}

/* A kernel of tiles with a block for every multiprocessor leaves no room for another: beside it that one only takes its caches. */
static bool fills_device(const rp__executable *p, const rp__launch *l) {
    return rp__launch_holds_tiles(l) && rp__launch_blocks(l) >= (uint64_t)p->device->multiprocessors;
}

/* Forks let the nodes beside the longest path run beside it, no faster than memory serves them all, and not beside one that fills the
   device. Do they save more of the device's time than they cost the host? */
static bool forks_pay(const filler *f) {
    const uint32_t n = f->edges.n_nodes;
    const double together = NODE_START + (double)f->bytes / BLOCK_BYTES / f->p->device->multiprocessors;
    double device = f->end > together ? f->end : together;
    device = (device > f->busy ? device : f->busy) + NODE_BESIDE * (double)(n - f->depth);
    const double launch = FORK_LAUNCH * (double)n;
    return device + (launch > FORK_LEAST ? launch : FORK_LEAST) < f->time;
}

/* The dependencies are known. time: of the node. */
static rp_status end_node(filler *f, double time) {
    const uint32_t node = f->edges.n_nodes;
    uint32_t depth = 0;
    double begin = 0;
    if (!RP__GROW(&f->past, &f->past_capacity, node + 1u)) return RP__OOM("edges of a program");
    for (uint32_t k = 0; k < f->n_deps; k++) {
        const struct past *before = &f->past[f->deps[k]];
        if (before->depth > depth) depth = before->depth;
        if (before->end > begin) begin = before->end;
    }
    f->past[node] = (struct past){depth + 1, begin + time};
    if (begin + time > f->end) f->end = begin + time;
    f->time += time;
    if (depth + 1 > f->depth) f->depth = depth + 1;
    return rp__edges_add(&f->edges, f->deps, f->n_deps);
}

static rp_status find_record(filler *f, const rp__launch *l, uint32_t record) {
    const uint32_t node = f->edges.n_nodes;
    RP_TRY(begin_node(f));
    RP_TRY(wait_for(f, l));
    const double time = node_time(f->p, l, record);
    RP_TRY(end_node(f, time));
    f->bytes += bytes_of(l);
    if (fills_device(f->p, l)) f->busy += time;
    return note(f, l, node);
}

/* What the node to be made waits for; *before has room for what one of a line does. */
static const uint32_t *edges_of(filler *f, uint32_t *before, uint32_t *n) {
    const uint32_t node = f->n_made++;
    const struct rp__edges_of *e = &f->edges.of[node];
    *before = node - 1;
    *n = f->line ? node > 0 : e->n;
    f->p->n_edges += *n;
    return f->line ? before : e->n ? &f->edges.from[e->first] : NULL;
}

/* handle: of the decision that the record makes; 0: it makes none. */
static rp_status add_record(filler *f, uint32_t record, uint64_t handle) {
    enum { MAX_WORDS = 8 };
    rp__executable *p = f->p;
    rp__launch l = *p->records[record];
    uint64_t words[MAX_WORDS];
    uint32_t node, before, n;
    if (!f->graph) return find_record(f, &l, record);
    if (handle) {
        if (l.n_words > MAX_WORDS) return rp__fail(RP_ERROR_INTERNAL, "a decision of %u words", l.n_words);
        memcpy(words, l.words, l.n_words * sizeof *words);
        words[0] = handle;
        l.words = words;
    }
    if (!RP__GROW(&p->places, &p->places_capacity, p->n_places + 1u)) return RP__OOM("nodes of a program");
    const uint32_t *deps = edges_of(f, &before, &n);
    RP_TRY(p->device->ops->graph_add(f->graph, &l, deps, n, &node));
    p->places[p->n_places] = (rp__program_place){f->graph, node, p->node[record], handle};
    p->node[record] = p->n_places++;
    return RP_OK;
}

static rp_status add_steps(filler *f, const rp__program_part *part, uint32_t first, uint32_t n);
typedef struct content { /* of a graph: steps, and behind them what decides whether `loop` goes on */
    const rp__program_part *part;
    uint32_t first, n;
    const rp__program_choice *loop; /* NULL: none */
    uint64_t handle;
    bool body; /* of a region */
} content;
static rp_status make_graph(rp__executable *p, const content *c, rp__devgraph *graph);

/* visit(f, launch, node) for every launch that the region may make. */
static rp_status each_launch(filler *f, const rp__program_choice *c, uint32_t node,
                             rp_status (*visit)(filler *f, const rp__launch *l, uint32_t node)) {
    const rp__program_part *parts[3] = {c->test, c->body[0], c->body[1]};
    for (unsigned k = 0; k < 3; k++) {
        for (uint32_t i = 0; parts[k] && i < parts[k]->n_steps; i++) {
            const rp__program_step *step = &parts[k]->steps[i];
            if (!step->choice) {
                RP_TRY(visit(f, f->p->records[step->record], node));
            } else {
                RP_TRY(visit(f, f->p->records[step->choice->set], node));
                RP_TRY(each_launch(f, step->choice, node, visit));
            }
        }
    }
    return c->loop ? visit(f, f->p->records[c->again], node) : RP_OK;
}

static rp_status visit_wait(filler *f, const rp__launch *l, uint32_t node) {
    (void)node;
    return wait_for(f, l);
}

static rp_status find_choice(filler *f, const rp__program_choice *c) {
    const uint32_t node = f->edges.n_nodes;
    RP_TRY(begin_node(f));
    RP_TRY(depend(f, node - 1));
    RP_TRY(each_launch(f, c, node, visit_wait));
    RP_TRY(end_node(f, NODE_START));
    return each_launch(f, c, node, note);
}

static rp_status add_choice(filler *f, const rp__program_choice *c) {
    const rp__device_ops *ops = f->p->device->ops;
    bool two = !c->loop && c->body[1]->n_steps > 0;
    uint64_t handle = 0;
    uint32_t node, before, n;
    rp__devgraph *bodies[2] = {NULL, NULL};
    if (!ops->graph_choice_new)
        return rp__fail(RP_ERROR_UNAVAILABLE, "graphs of this device have no branches and loops");
    if (c->loop) RP_TRY(add_steps(f, c->test, 0, c->test->n_steps));
    if (f->graph) RP_TRY(ops->graph_choice_new(f->graph, two, &handle));
    RP_TRY(add_record(f, c->set, handle));
    if (!f->graph) return find_choice(f, c);
    const uint32_t *deps = edges_of(f, &before, &n);
    RP_TRY(ops->graph_choice_add(f->graph, handle, c->loop, two, deps, n, &node, bodies));
    for (unsigned k = 0; k < 2 && bodies[k]; k++)
        RP_TRY(make_graph(f->p, &(content){c->body[k], 0, c->body[k]->n_steps, c->loop ? c : NULL, handle, true},
                          bodies[k]));
    return RP_OK;
}

static rp_status add_steps(filler *f, const rp__program_part *part, uint32_t first, uint32_t n) {
    for (uint32_t k = first; k < first + n; k++) {
        const rp__program_step *step = &part->steps[k];
        RP_TRY(step->choice ? add_choice(f, step->choice) : add_record(f, step->record, 0));
    }
    return RP_OK;
}

static rp_status add_again(filler *f, const content *c) {
    if (!c->loop) return RP_OK;
    RP_TRY(add_steps(f, c->loop->test, 0, c->loop->test->n_steps));
    return add_record(f, c->loop->again, c->handle);
}

/* Of the steps, whose edges are found. */
static rp_status choose_line(filler *f, bool body) {
    rp__executable *p = f->p;
    const bool in_order = !p->device->ops->graph_count, asked = p->layout != RP_LAYOUT_AUTO;
    const bool narrow = !forks_pay(f);
    f->line = asked ? p->layout == RP_LAYOUT_LINE : !in_order && narrow;
    if (!RP__GROW(&p->layouts, &p->layouts_capacity, p->n_layouts + 1)) return RP__OOM("graphs of a program");
    const rp__reason reason = asked      ? RP__REASON_LAYOUT_ASKED
                              : in_order ? RP__REASON_LAYOUT_IN_ORDER
                              : narrow   ? RP__REASON_LAYOUT_LONG_PATH
                                         : RP__REASON_LAYOUT_SHORT_PATH;
    const uint32_t n = f->edges.n_nodes;
    p->layouts[p->n_layouts++] =
        (rp__executable_layout){rp__reason_name(reason), n, f->depth, f->line || f->depth == n, body};
    return RP_OK;
}

/* Edges that others imply are left out: a driver launches a graph without forks in a time that does not grow with it. That holds
   across programmatic edges, since every kernel of ours waits before it ends. */
static rp_status make_graph(rp__executable *p, const content *c, rp__devgraph *graph) {
    filler f = {.p = p};
    rp_status status = add_steps(&f, c->part, c->first, c->n);
    if (status == RP_OK) status = choose_line(&f, c->body);
    if (status == RP_OK) status = add_again(&f, c);
    if (status == RP_OK && !f.line) status = rp__edges_reduce(&f.edges);
    f.graph = graph;
    if (status == RP_OK) status = add_steps(&f, c->part, c->first, c->n);
    if (status == RP_OK) status = add_again(&f, c);
    filler_free(&f);
    return status;
}

static rp_status fill_graph(rp__executable *p, const rp__program_part *part, uint32_t first, uint32_t n,
                            rp__devgraph **out) {
    RP_TRY(p->device->ops->graph_new(p->device, out));
    if (p->device->ops->graph_count) p->device->ops->graph_count(*out, &p->executables);
    RP_TRY(make_graph(p, &(content){.part = part, .first = first, .n = n}, *out));
    return p->device->ops->graph_instantiate(*out, p->device->default_stream);
}

/* Runs of launches as graphs; between them the host decides. */
static rp_status build_segments(rp__executable *p) {
    for (rp__program_part *part = p->parts; part; part = part->next) {
        for (uint32_t k = 0, n; k < part->n_steps; k += n) {
            for (n = 0; k + n < part->n_steps && !part->steps[k + n].choice; n++) {}
            if (n == 0) {
                n = 1;
                continue;
            }
            if (!RP__GROW(&part->segments, &part->segments_capacity, part->n_segments + 1u))
                return RP__OOM("graphs of a program");
            rp__program_segment *s = &part->segments[part->n_segments++];
            *s = (rp__program_segment){.first = k, .n = n};
            RP_TRY(fill_graph(p, part, k, n, &s->graph));
        }
    }
    return RP_OK;
}

void rp__program_drop_graph(rp__executable *p) {
    if (p->graph) p->device->ops->graph_free(p->graph);
    p->graph = NULL;
    for (rp__program_part *part = p->parts; part; part = part->next) {
        for (uint32_t k = 0; k < part->n_segments; k++) {
            if (part->segments[k].graph) p->device->ops->graph_free(part->segments[k].graph);
        }
        part->n_segments = 0;
    }
    p->graphed = false;
    p->n_layouts = 0;
    p->n_places = 0;
    for (uint32_t r = 0; r < p->n_records && p->node; r++) p->node[r] = RP__IR_NONE;
}

bool rp__program_is_one_call(const rp__executable *p) {
    return p->n_choices == 0 && p->body->n_steps == 1 &&
           p->records[p->body->steps[0].record]->kernel->kind == RP__KERNEL_CUDA_LIBRARY;
}

static bool visit_none(void *ctx, uint32_t node) {
    (void)ctx, (void)node;
    return false;
}
/* Does a record write what the launch would read ahead? */
static bool reads_written(const rp__touched *written, const rp__launch *l) {
    for (uint32_t k = 0; k < l->n_slots; k++) {
        const rp__slot *s = &l->slots[k];
        if ((s->access & RP__AHEAD) && !rp__touched_each(written, s, visit_none, NULL)) return true;
    }
    return false;
}

static rp_status collect_written(const rp__executable *p, rp__touched *written) {
    for (uint32_t r = 0; r < p->n_records; r++) {
        for (uint32_t k = 0; k < p->records[r]->n_slots; k++) {
            const rp__slot *s = &p->records[r]->slots[k];
            if (!(s->access & RP__WRITE)) continue;
            rp__touched_drop(written, s);
            RP_TRY(rp__touched_add(written, s, r));
        }
    }
    return RP_OK;
}

/* rp__launch.ahead of the records. */
static rp_status set_ahead(rp__executable *p) {
    bool asked = false, barrier = false; /* behind which nothing is known to stay */
    rp__touched written = {0};
    rp_status status = RP_OK;
    p->n_ahead = 0;
    for (uint32_t r = 0; r < p->n_records; r++) {
        asked = asked || p->records[r]->ahead;
        barrier = barrier || p->records[r]->barrier;
    }
    if (asked && !barrier) status = collect_written(p, &written);
    for (uint32_t r = 0; asked && status == RP_OK && r < p->n_records; r++) {
        const rp__launch *l = p->records[r];
        if (!l->ahead) continue;
        const bool ahead = !barrier && !reads_written(&written, l);
        ((uint64_t *)(uintptr_t)l->words)[l->ahead] = ahead; /* the copy is ours */
        p->n_ahead += ahead;
    }
    rp__touched_free(&written);
    return status;
}

rp_status rp__program_build_graph(rp__executable *p) {
    rp__program_drop_graph(p);
    RP_TRY(set_ahead(p));
    p->n_edges = 0;
    rp_status status = p->split ? RP_ERROR_UNAVAILABLE : fill_graph(p, p->body, 0, p->body->n_steps, &p->graph);
    bool refused = status == RP_ERROR_UNAVAILABLE || status == RP_ERROR_DRIVER;
    if (refused && p->n_choices > 0) { /* no such nodes, or not with these bodies */
        if (!p->split) {
            p->split = rp__arena_strdup(&p->arena, rp_error_message());
            (void)rp_error_take();
            if (!p->split) return RP__OOM("graphs of a program");
        }
        rp__program_drop_graph(p);
        p->n_edges = 0;
        status = build_segments(p);
    }
    if (status == RP_OK) p->graphed = true;
    return status;
}

/* Of each captured tensor the first value; the caller's to free. */
static rp__ir_value *captured_values(const rp_ir *ir) {
    rp__ir_value *values = rp__alloc((ir->n_captured + 1) * sizeof *values);
    for (size_t k = 0; k < ir->n_captured && values; k++) values[k] = RP__IR_NONE;
    for (size_t k = 0; k < ir->n_nodes && values; k++) {
        const rp__ir_node *n = &ir->nodes[k];
        if (n->kind == RP__IR_CAPTURED && values[n->captured_index] == RP__IR_NONE)
            values[n->captured_index] = n->out[0];
    }
    return values;
}

static void describe_outer(const rp__executable *p, const rp__ir_value *captured, uint32_t buffer,
                           rp__program_outer *o) {
    const rp__program_buffer *b = &p->buffers[buffer];
    const rp__ir_value v = b->kind == RP__BUFFER_ARG ? p->ir->body.args[b->index] : captured[b->index];
    *o = (rp__program_outer){.buffer = buffer,
                             .arg = b->kind == RP__BUFFER_ARG ? b->index : RP__IR_NONE,
                             .captured = b->kind == RP__BUFFER_CAPTURED ? p->ir->captured[b->index] : NULL,
                             .element_bytes = (int64_t)rp__dtype_bytes(p->ir->values[v].meta.dtype),
                             .site = b->written_site ? b->written_site : ""};
    o->shift = p->ir->values[v].offset * o->element_bytes;
    o->now = (uintptr_t)b->address + (uintptr_t)o->shift;
}

/* Memory that a tensor once has is its own until it goes, and the program holds its captured tensors. */
static bool stays(const rp__program_outer *o) {
    return o->captured && o->now && (uintptr_t)rp__tensor_data(o->captured) == o->now;
}

/* Which words of which records hold addresses of which buffer. */
rp_status rp__program_collect_patches(rp__executable *p) {
    for (uint32_t i = 0; i < p->n_records; i++) {
        for (uint32_t k = 0; k < p->records[i]->n_slots; k++) {
            int32_t b = p->records[i]->slots[k].buffer;
            if (b < 0) continue;
            const rp__slot *s = &p->records[i]->slots[k];
            rp__kernel_kind kind = p->records[i]->kernel->kind;
            rp__program_buffer *touched = &p->buffers[b];
            if (touched->n_patches++ == 0 || s->begin < touched->begin) touched->begin = s->begin;
            if (s->end > touched->end) touched->end = s->end;
            if (kind == RP__KERNEL_CUDA_LIBRARY) touched->library = true;
        }
    }
    for (uint32_t b = 0; b < p->n_buffers; b++) {
        p->buffers[b].patches = RP__NEW(&p->arena, rp__program_patch, p->buffers[b].n_patches + 1u);
        if (!p->buffers[b].patches) return RP__OOM("patches of a program");
        p->buffers[b].n_patches = 0;
    }
    for (uint32_t i = 0; i < p->n_records; i++) {
        for (uint32_t k = 0; k < p->records[i]->n_slots; k++) {
            const rp__slot *s = &p->records[i]->slots[k];
            if (s->buffer < 0) continue;
            rp__program_buffer *b = &p->buffers[s->buffer];
            bool twice = false;
            for (uint32_t j = b->n_patches; j-- > 0 && b->patches[j].record == i && !twice;)
                twice = b->patches[j].word == s->word;
            if (!twice) b->patches[b->n_patches++] = (rp__program_patch){i, s->word};
        }
    }
    p->touched = RP__NEW(&p->arena, uint8_t, p->n_records + 1u);
    p->touched_list = RP__NEW(&p->arena, uint32_t, p->n_records + 1u);
    p->outers = RP__NEW(&p->arena, rp__program_outer, p->n_buffers + 1u);
    rp__ir_value *captured = captured_values(p->ir);
    if (!p->touched || !p->touched_list || !p->outers || !captured) {
        rp__free(captured);
        return RP__OOM("patches of a program");
    }
    for (unsigned place = 0; place < 4; place++) { /* see n_written, first_compared, end_compared */
        for (uint32_t s = 0; s < p->n_buffers; s++) {
            const rp__program_buffer *b = &p->buffers[s];
            bool outside = b->kind == RP__BUFFER_ARG || b->kind == RP__BUFFER_CAPTURED;
            if (!outside || b->written != (place < 2) || (b->n_patches == 0 && !b->written)) continue;
            rp__program_outer *o = &p->outers[p->n_outers];
            describe_outer(p, captured, s, o);
            if (stays(o) == (place == 0 || place == 3)) p->n_outers++;
        }
        if (place == 0) p->first_compared = p->n_outers;
        if (place == 1) p->n_written = p->n_outers;
        if (place == 2) p->end_compared = p->n_outers;
    }
    rp__free(captured);
    return RP_OK;
}
