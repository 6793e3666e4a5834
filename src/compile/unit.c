/* Units (unit.h). A unit keeps a variant a tuple of sizes, as many as its function may keep (instances.h); a graph that cannot
   become one executable runs node by node, and explain says why.

   The list of variants and what explain is told of them are under the lock of the set of instances. A variant of a unit
   without symbols stays as long as the unit and is found without a lock; any other is counted by the list and by each call
   that runs it, so that one that had to go is freed by the last call. */
#include "compile/unit.h"

#include <string.h>

#include "compile/pipeline.h"
#include "compile/recipe.h"
#include "compile/unit_parts.h"
#include "core/alloc.h"
#include "trace/ir_run.h"

typedef struct variant {
    rp__instance instance; /* first */
    atomic_uint refs;
    struct variant *next;
    rp__unit *unit;
    rp__explain *explain; /* NULL: none any more */
    int64_t *binding;
    rp_ir *graph;               /* concrete; counted */
    rp__executable *executable; /* fused */
    void *compiled;             /* another leaf's */
    bool donate;                /* donors are overwritten */
    uint8_t precisions; /* rp__float32_precisions: a backward is run under the setting of its call, as eagerly */
} variant;

struct rp__unit {
    atomic_uint refs;
    rp__mutex build; /* one variant at a time */
    rp__instances *instances;
    rp__instance_owner owner;
    rp_ir *graph;
    const rp__leaf *leaf;
    bool no_graph, wait, strict, tune;
    rp_numbers numbers;
    atomic_bool interpreted; /* the leaf could not do it; set under the lock of building, never cleared */
    rp_graph_layout layout;
    rp__shared_arena *arena;
    rp__recipes *recipes; /* with symbols; under the lock of building */
    rp__executable_random *random;
    size_t n_random, n_symbols;
    bool *donors, *free_args; /* per argument; NULL: none */
    bool *free_results;       /* per result; NULL: none */
    const rp__engine_options *engine_options;
    rp__explain *explain;
    _Atomic(variant *) variants; /* last used first */
};

static rp_status take(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in, size_t n_in, variant **out);
static void drop(variant *v);

/* What an interpreted unit reads was there when the unit was made. */
static inline bool is_interpreted(const rp__unit *u) {
    return atomic_load_explicit(&u->interpreted, memory_order_acquire);
}

/* Is a variant one executable, and nothing else? */
static inline bool makes_program(const rp__unit *u) {
    return u->leaf->kind == RP__LEAF_PROGRAM || u->leaf->kind == RP__LEAF_FUSED;
}

/* A copy of what programs are told of each of n; NULL: nothing. */
static rp_status take_flags(const rp__unit *u, const bool *flags, uint32_t n, bool **out) {
    bool any = false;
    for (uint32_t k = 0; k < n && flags && makes_program(u); k++) any = any || flags[k];
    if (!any) return RP_OK;
    *out = rp__alloc(n * sizeof **out);
    if (!*out) return RP__OOM("compiled graph");
    memcpy(*out, flags, n * sizeof *flags);
    return RP_OK;
}

rp_status rp__unit_new(const rp__unit_request *request, rp__unit **out) {
    rp__unit *u = *out = rp__calloc(1, sizeof *u);
    if (!u) return RP__OOM("compiled graph");
    atomic_init(&u->refs, 1);
    pthread_mutex_init(&u->build, NULL);
    u->graph = rp__ir_retain(request->graph);
    u->leaf = request->leaf;
    atomic_init(&u->interpreted, request->leaf->kind == RP__LEAF_NODES);
    u->no_graph = request->no_graph;
    u->wait = request->wait;
    u->numbers = request->numbers;
    u->tune = request->tune;
    u->layout = request->layout;
    u->strict = request->strict;
    u->arena = request->arena;
    u->engine_options = request->engine_options;
    u->instances = request->instances ? rp__instances_retain(request->instances) : rp__instances_new(0, 0);
    if (!u->instances) {
        rp__unit_free(u);
        *out = NULL;
        return RP_ERROR_OUT_OF_MEMORY;
    }
    u->explain = rp__explain_open(request->explain, "%s", request->name ? request->name : "graph");
    u->n_symbols = rp__symbols_count(u->graph->symbols);
    rp__symbols_seal(u->graph->symbols); /* any thread may bring sizes, and so may the unit of its backward */
    if (u->n_symbols > 0 && makes_program(u)) {
        u->recipes = rp__recipes_new();
        if (!u->recipes) {
            rp__unit_free(u);
            *out = NULL;
            return RP_ERROR_OUT_OF_MEMORY;
        }
    }
    if (request->random) {
        u->random = rp__calloc(request->n_random + 1, sizeof *u->random);
        if (!u->random) {
            rp__unit_free(u);
            *out = NULL;
            return RP__OOM("compiled graph");
        }
        for (size_t k = 0; k < request->n_random; k++) {
            u->random[u->n_random++] = request->random[k];
            (void)rp__generator_retain(request->random[k].generator);
        }
    }
    const uint32_t n_args = u->graph->body.n_args, n_results = u->graph->body.n_results;
    if (take_flags(u, request->donors, n_args, &u->donors) != RP_OK ||
        take_flags(u, request->free_args, n_args, &u->free_args) != RP_OK ||
        take_flags(u, request->free_results, n_results, &u->free_results) != RP_OK) {
        rp__unit_free(u);
        *out = NULL;
        return RP_ERROR_OUT_OF_MEMORY;
    }
    /* A program is built for the addresses of a call; another engine that cannot do a graph says so now. */
    if (u->leaf->kind >= RP__LEAF_DOOR && u->n_symbols == 0) {
        variant *v;
        rp_status status = take(u, &(rp__unit_call){0}, NULL, 0, &v);
        if (status != RP_OK) {
            rp__unit_free(u);
            *out = NULL;
            return status;
        }
        drop(v);
    }
    return RP_OK;
}

static void variant_free(variant *v) {
    if (v->executable) rp__executable_free(v->executable);
    if (v->compiled && v->unit->leaf->kind == RP__LEAF_DOOR)
        v->unit->leaf->ops->destroy(v->compiled);
    else if (v->compiled)
        rp__unit_leaf_destroy(&v->unit->leaf->users, v->compiled);
    if (v->graph) rp__ir_release(v->graph);
    rp__free(v->binding);
    rp__free(v);
}

static void drop(variant *v) {
    if (atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) == 1) variant_free(v);
}

static variant *hold(variant *v) {
    atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    return v;
}

void rp__unit_forget_explain(rp__unit *u) {
    if (!u || !u->instances) return;
    rp__lock(&u->instances->lock);
    rp__explain_close(u->explain); /* and those of variants */
    u->explain = NULL;
    for (variant *v = u->variants; v; v = v->next) v->explain = NULL;
    rp__unlock(&u->instances->lock);
}

static void release(rp__unit *u) {
    if (atomic_fetch_sub_explicit(&u->refs, 1, memory_order_acq_rel) != 1) return;
    for (size_t k = 0; k < u->n_random; k++) rp__generator_drop(u->random[k].generator);
    rp__free(u->random);
    rp__free(u->donors);
    rp__free(u->free_args);
    rp__free(u->free_results);
    rp__recipes_free(u->recipes);
    rp__instances_release(u->instances);
    rp__ir_release(u->graph);
    pthread_mutex_destroy(&u->build);
    rp__free(u);
}

/* Can its variants go before it does? */
static bool is_limited(const rp__unit *u) { return u->n_symbols > 0; }

void rp__unit_free(rp__unit *u) {
    if (!u) return;
    rp__unit_forget_explain(u);
    if (u->instances) rp__lock(&u->instances->lock);
    variant *v = u->variants;
    u->variants = NULL;
    for (variant *x = v; x && is_limited(u); x = x->next) rp__instances_remove(u->instances, &x->instance);
    if (u->instances) rp__unlock(&u->instances->lock);
    for (variant *next; v; v = next) {
        next = v->next;
        drop(v);
    }
    release(u);
}

/* "s0 = 40, s1 = 8". */
static void sizes_text(const rp__unit *u, const variant *v, rp__text *out) {
    for (size_t k = 0; k < u->n_symbols; k++) {
        if (k) rp__text_puts(out, ", ");
        rp__symbols_text(u->graph->symbols, rp__symbols_word(u->graph->symbols, k), false, out);
        rp__text_add(out, " = %lld", (long long)v->binding[k]);
    }
}

static bool is_for(const rp__unit *u, const variant *v, const int64_t *binding) {
    return u->n_symbols == 0 || memcmp(v->binding, binding, u->n_symbols * sizeof *binding) == 0;
}

/* What tells v from a variant for the same sizes: how arguments lie whose strides are free, and the precision of its call. Under the lock. */
static void beside_text(const rp__unit *u, const variant *v, rp__text *out) {
    const variant *other = u->variants;
    while (other && (other->donate != v->donate || !is_for(u, other, v->binding))) other = other->next;
    if (!other) return;
    const rp__ir_block *body = &v->graph->body;
    for (uint32_t k = 0; u->free_args && k < body->n_args; k++) {
        const rp__ir_value_info *a = rp__ir_info(v->graph, body->args[k]),
                                *b = rp__ir_info(other->graph, other->graph->body.args[k]);
        bool same = true;
        for (unsigned d = 0; d < a->meta.ndim; d++) same = same && rp__dim_same_word(a->stride[d], b->stride[d]);
        if (same || !u->free_args[k]) continue;
        rp__text_add(out, ", argument %u with strides (", (unsigned)k);
        for (unsigned d = 0; d < a->meta.ndim; d++)
            rp__text_add(out, "%s%lld", d ? ", " : "", (long long)rp__dim_number(a->stride[d]));
        rp__text_puts(out, ")");
    }
    if (other->precisions != v->precisions)
        rp__text_add(out, ", float32 products %s, convolutions %s", rp_float32_matmul_precision(),
                     rp_float32_conv_precision());
}

/* Under the lock. */
static void open_explain(rp__unit *u, variant *v) {
    rp__text t = {0};
    sizes_text(u, v, &t);
    if (v->donate) rp__text_puts(&t, ", over saved values");
    beside_text(u, v, &t);
    /* The first one of a unit without sizes is the unit itself. */
    const char *text = t.data ? t.data + (strncmp(t.data, ", ", 2) == 0 ? 2 : 0) : "";
    v->explain = *text ? rp__explain_open(u->explain, "%s", text) : u->explain;
    rp__text_free(&t);
    if (is_limited(u))
        rp__explain_add(u->explain, "instance", RP__REASON_NONE, NULL, 1, "programs made for a tuple of sizes");
}

/* Moved arguments and copies are facts from the first of their kind on; counts follow by themselves. */
static void explain_moves(void *ctx, const rp__executable *e, uint32_t kinds) {
    rp__unit *u = ctx;
    rp__lock(&u->instances->lock);
    const variant *v = u->variants;
    while (v && v->executable != e) v = v->next;
    if (v && v->explain) rp__unit_explain_moves(v->explain, e, kinds);
    rp__unlock(&u->instances->lock);
}

/* Of generator k, for these sizes. */
static rp_status counters(const rp__unit *u, const int64_t *binding, size_t k, uint64_t *out) {
    int64_t count = (int64_t)u->random[k].count;
    if (u->n_symbols > 0 && !rp__symbols_value(u->graph->symbols, (rp_dim)count, binding, &count))
        return rp__fail(RP_ERROR_SHAPE, "a count of random numbers overflows for these arguments");
    *out = (uint64_t)count;
    return RP_OK;
}

/* What another engine says of its graph. */
static void tell(void *ctx, const char *kind, rp__reason reason, const char *site, const char *text) {
    rp__unit *u = ctx;
    rp__lock(&u->instances->lock);
    if (u->explain) rp__explain_add(u->explain, kind, reason, site, 1, "%s", text);
    rp__unlock(&u->instances->lock);
}

static rp_status build_door(rp__unit *u, variant *v) {
    const rp__leaf_request request = {.graph = v->graph,
                                      .options = u->engine_options,
                                      .strict = u->strict,
                                      .wait = u->wait,
                                      .no_graph = u->no_graph,
                                      .numbers = u->numbers,
                                      .tune = u->tune,
                                      .layout = u->layout,
                                      .random = u->random,
                                      .n_random = u->n_random,
                                      .tell = tell,
                                      .tell_ctx = u};
    return u->leaf->ops->compile(u->leaf, &request, &v->compiled);
}

static rp_status build(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in, size_t n_in, variant *v) {
    const int64_t *binding = call->binding;
    v->donate = u->donors && call->donate;
    if (u->n_symbols > 0) {
        v->binding = rp__alloc(u->n_symbols * sizeof *v->binding);
        if (!v->binding) return RP__OOM("compiled graph");
        memcpy(v->binding, binding, u->n_symbols * sizeof *binding);
        RP_TRY(rp__pipeline_sized(u->graph, binding, &v->graph));
    } else {
        v->graph = rp__ir_retain(u->graph);
    }
    if (u->free_args) {
        rp_ir *sized = v->graph;
        v->graph = NULL;
        const rp_status status = rp__restride(sized, u->free_args, in, &v->graph);
        rp__ir_release(sized);
        RP_TRY(status);
    }
    if (u->leaf->kind == RP__LEAF_USERS) return rp__unit_leaf_compile(&u->leaf->users, v->graph, &v->compiled);
    if (u->leaf->kind == RP__LEAF_DOOR) return build_door(u, v);
    rp__executable_random *random = rp__alloc((u->n_random + 1) * sizeof *random);
    if (!random) return RP__OOM("compiled graph");
    rp_status status = RP_OK;
    for (size_t k = 0; k < u->n_random && status == RP_OK; k++) {
        random[k] = u->random[k];
        status = counters(u, binding, k, &random[k].count);
    }
    const rp__executable_options options = {.no_fusion = u->leaf->kind == RP__LEAF_PROGRAM,
                                            .no_graph = u->no_graph,
                                            .wait = u->wait,
                                            .numbers = u->numbers,
                                            .tune = u->tune,
                                            .layout = u->layout,
                                            .grows = u->n_symbols > 0,
                                            .arena = u->arena,
                                            .recipes = u->recipes,
                                            .random = u->random ? random : NULL,
                                            .n_random = u->n_random,
                                            .donors = v->donate ? u->donors : NULL,
                                            .free_results = u->free_results,
                                            .tell = explain_moves,
                                            .tell_ctx = u};
    if (status == RP_OK) status = rp__pipeline_program(v->graph, in, n_in, &options, &v->executable);
    rp__free(random);
    v->instance.program = v->executable;
    return status;
}

static bool lies_so(const rp__unit *u, const variant *v, rp_tensor *const *in) {
    const rp__ir_block *body = &v->graph->body;
    for (uint32_t k = 0; k < body->n_args; k++)
        if (u->free_args[k] && !rp__ir_lies_as(v->graph, body->args[k], in[k])) return false;
    return true;
}

static bool serves(const rp__unit *u, const variant *v, const rp__unit_call *call, rp_tensor *const *in) {
    return v->donate == (u->donors && call->donate) && v->precisions == rp__float32_precisions() &&
           is_for(u, v, call->binding) && (!u->free_args || lies_so(u, v, in));
}

/* The variant for these sizes and strides and what may be overwritten, first in the list; counted for the caller. NULL: there is none.
   Under the lock. */
static variant *search(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in) {
    variant *before = NULL;
    for (variant *v = u->variants; v; before = v, v = v->next) {
        if (!serves(u, v, call, in)) continue;
        if (is_limited(u)) rp__instances_use(u->instances, &v->instance);
        if (before) {
            before->next = v->next;
            v->next = u->variants;
            u->variants = v;
        }
        return hold(v);
    }
    return NULL;
}

static void unlink_variant(variant *v) {
    rp__unit *u = v->unit;
    if (u->variants == v) {
        u->variants = v->next;
        return;
    }
    variant *before = u->variants;
    while (before->next != v) before = before->next;
    before->next = v->next;
}

/* What exceeds the limits leaves its list: *gone, linked by next, each counted together with its unit. Under the lock. */
static void evict(rp__instances *s, variant **gone) {
    for (rp__instance *i; (i = rp__instances_victim(s));) {
        variant *v = (variant *)i;
        rp__instances_remove(s, i);
        unlink_variant(v);
        rp__explain_close(v->explain);
        v->explain = NULL;
        rp__explain_add(v->unit->explain, "instance", RP__REASON_INSTANCE_EVICTED, NULL, 1, NULL);
        atomic_fetch_add_explicit(&v->unit->refs, 1, memory_order_relaxed);
        v->next = *gone;
        *gone = v;
    }
}

/* A new variant, taken over, enters the list. */
static rp_status enter(rp__unit *u, variant *v, variant **gone) {
    rp__instances *s = u->instances;
    rp_status status = RP_OK;
    rp__lock(&s->lock);
    if (is_limited(u)) status = rp__instances_add(s, &v->instance);
    if (status == RP_OK) {
        if (u->explain) {
            open_explain(u, v);
            if (v->executable) rp__unit_explain(v->explain, v->executable);
            if (v->executable && is_limited(u)) rp__unit_explain_made(u->explain, v->executable);
        }
        v->next = u->variants;
        u->variants = v; /* from here on others may find and run it without the lock */
        evict(s, gone);
    }
    rp__unlock(&s->lock);
    return status;
}

/* As search; made if missing. */
static rp_status take(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in, size_t n_in, variant **out) {
    rp__lock(&u->instances->lock);
    *out = search(u, call, in);
    rp__unlock(&u->instances->lock);
    if (*out) return RP_OK;
    variant *v = rp__calloc(1, sizeof *v), *gone = NULL;
    if (!v) return RP__OOM("compiled graph");
    v->unit = u;
    v->precisions = (uint8_t)rp__float32_precisions();
    v->instance.owner = &u->owner;
    atomic_init(&v->refs, 1);
    rp_status status = build(u, call, in, n_in, v);
    if (status == RP_OK) status = enter(u, hold(v), &gone);
    if (status == RP_OK)
        *out = v;
    else
        variant_free(v);
    for (variant *next; gone; gone = next) {
        rp__unit *owner = gone->unit;
        next = gone->next;
        drop(gone);
        release(owner);
    }
    return status;
}

/* What the call draws of each generator, as a program would: all of it at once, or again what an earlier call drew. */
static rp_status draws_of(rp__unit *u, const rp__unit_call *call, rp__random_log *log) {
    for (size_t k = 0; k < call->n_draws; k++) {
        const rp__executable_random *r = &call->draws[k];
        rp__random_draw draw = {NULL, r->seed, r->base};
        if (r->memory) draw = (rp__random_draw){r->memory->block->data, 0, r->base};
        RP_TRY(rp__random_log_add(log, r->generator, RP__RANDOM_OPEN, &draw, r->memory));
    }
    for (size_t k = 0; k < u->n_random && call->n_draws == 0; k++) {
        rp_generator *g = u->random[k].generator;
        rp__random_draw draw;
        rp__random_memory *memory;
        uint64_t count = 0;
        RP_TRY(counters(u, call->binding, k, &count));
        RP_TRY(rp__random_take(g, rp__current_stream(g->device), count, &draw, &memory));
        RP_TRY(rp__random_log_add(log, g, count, &draw, memory));
        if (call->drawn) call->drawn[k] = (rp__executable_random){g, count, draw.seed, draw.inner, memory};
    }
    return RP_OK;
}

static rp_status interpret(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                           size_t n_out) {
    rp__ir_run_options options = {.binding = u->n_symbols > 0 ? call->binding : NULL};
    if (!u->random) return rp__ir_run(u->graph, in, n_in, out, n_out, &options); /* it draws as it goes */
    rp__random_log log = {0};
    options.whole = true;
    rp_status status = draws_of(u, call, &log);
    rp__random_log *outer_again = rp__random_again_set(&log), *outer_log = rp__random_log_set(NULL);
    if (status == RP_OK) status = rp__ir_run(u->graph, in, n_in, out, n_out, &options);
    (void)rp__random_log_set(outer_log);
    (void)rp__random_again_set(outer_again);
    rp__random_log_free(&log);
    return status;
}

/* May the graph run node by node because its leaf could not do it? */
static bool may_interpret(const rp__unit *u, rp_status status) {
    if (u->strict) return false;
    return rp__leaf_is_program(u->leaf->kind) ? status == RP_ERROR_UNAVAILABLE : status == RP_ERROR_COMPILE;
}

/* What the call draws of each generator, all of it at once, as a program would. */
static rp_status take_draws(const rp__unit *u, const rp__unit_call *call, rp__executable_random *draws) {
    for (size_t k = 0; k < u->n_random; k++) {
        rp_generator *g = u->random[k].generator;
        rp__random_draw draw;
        rp__random_memory *memory;
        uint64_t count = 0;
        RP_TRY(counters(u, call->binding, k, &count));
        RP_TRY(rp__random_take(g, rp__current_stream(g->device), count, &draw, &memory));
        draws[k] = (rp__executable_random){g, count, draw.seed, draw.inner, memory};
        if (call->drawn) call->drawn[k] = draws[k];
    }
    return RP_OK;
}

static rp_status run_door(const rp__unit *u, const variant *v, const rp__unit_call *call, rp_tensor *const *in,
                          size_t n_in, rp_tensor **out, size_t n_out) {
    const rp__leaf_ops *ops = u->leaf->ops;
    if (RP__LIKELY(u->n_random == 0 || call->n_draws > 0))
        return ops->run(v->compiled, in, n_in, out, n_out, call->draws, call->n_draws);
    rp__executable_random *draws = rp__alloc(u->n_random * sizeof *draws);
    if (!draws) return RP__OOM("random state of a program");
    rp_status status = take_draws(u, call, draws);
    if (status == RP_OK) status = ops->run(v->compiled, in, n_in, out, n_out, draws, u->n_random);
    rp__free(draws);
    return status;
}

static inline rp_status run_variant(rp__unit *u, const variant *v, const rp__unit_call *call, rp_tensor *const *in,
                                    size_t n_in, rp_tensor **out, size_t n_out) {
    if (u->leaf->kind == RP__LEAF_DOOR) return run_door(u, v, call, in, n_in, out, n_out);
    if (RP__UNLIKELY(!v->executable))
        return rp__unit_leaf_run(&u->leaf->users, v->graph, v->compiled, in, n_in, out, n_out);
    return rp__executable_run(v->executable, in, n_in, out, n_out, call->draws, call->n_draws, call->drawn);
}

/* *v, counted; NULL: the unit is run node by node. */
static rp_status build_or_interpret(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in, size_t n_in,
                                    variant **v) {
    *v = NULL;
    if (is_interpreted(u)) return RP_OK; /* since a moment */
    rp_status status = take(u, call, in, n_in, v);
    if (!may_interpret(u, status)) return status;
    rp__reason reason = rp__leaf_is_program(u->leaf->kind) ? RP__REASON_NOT_ONE_PROGRAM : RP__REASON_COMPILE_FAILED;
    rp__lock(&u->instances->lock);
    rp__explain_add(u->explain, "skip", reason, NULL, 1, "%s", rp_error_message());
    rp__unlock(&u->instances->lock);
    (void)rp_error_take();
    atomic_store_explicit(&u->interpreted, true, memory_order_release);
    return RP_OK;
}

/* The variant is not the one of the last call, or may be evicted meanwhile. */
static __attribute__((noinline)) rp_status run_other(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in,
                                                     size_t n_in, rp_tensor **out, size_t n_out) {
    if (is_interpreted(u)) return interpret(u, call, in, n_in, out, n_out);
    for (size_t k = 0; k < n_in; k++) { /* a value that no trace has computed is no fault of the program to be made */
        if (in[k]->traced && !in[k]->storage->data) RP_TRY(rp__tensor_materialise(in[k]));
    }
    rp__lock(&u->instances->lock);
    variant *v = search(u, call, in);
    rp__unlock(&u->instances->lock);
    if (!v) {
        rp__error_state before;
        rp__error_save(&before);
        rp__lock(&u->build);
        rp_status status = build_or_interpret(u, call, in, n_in, &v);
        rp__unlock(&u->build);
        rp__error_restore(&before);
        RP_TRY(status);
        if (!v) return interpret(u, call, in, n_in, out, n_out);
    }
    rp_status status = run_variant(u, v, call, in, n_in, out, n_out);
    drop(v);
    return status;
}

rp_status rp__unit_run(rp__unit *u, const rp__unit_call *call, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                       size_t n_out) {
    const variant *v = is_limited(u) ? NULL : atomic_load_explicit(&u->variants, memory_order_acquire);
    if (RP__LIKELY(v && !is_interpreted(u) && serves(u, v, call, in)))
        return run_variant(u, v, call, in, n_in, out, n_out);
    return run_other(u, call, in, n_in, out, n_out);
}

rp__executable *rp__unit_settled(const rp__unit *u) {
    const variant *v = atomic_load_explicit(&u->variants, memory_order_acquire);
    return v && u->n_symbols == 0 && !u->donors && !is_interpreted(u) ? v->executable : NULL;
}
