/* Random programs over several streams: ops, compiled functions and captures on streams that are ordered by events where a program
   has to order them, memory wrapped with deleters that overwrite it, and tensors, graphs, functions and streams released at any
   time. Every tensor has a twin that the host has calculated; each is compared before it is released. Numbers stay small whole ones,
   so that any order of sums is exact. support/fuzz.h says which seeds run.
   ctest: labels=threads timeout=300 cost=10 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/each_device.h"
#include "support/fuzz.h"

enum { STREAMS = 4, TENSORS = 12, FUNCTIONS = 3, ACTIONS = 120, MAX = 40000 };
static const int64_t lengths[] = {3, 70, 900, 12000, MAX};

static uint64_t random_state;
static unsigned below(unsigned n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)(random_state >> 20) % n;
}

/* All elements of a tensor are equal: its twin is one number. */
typedef struct twin {
    rp_tensor *t; /* retained; NULL: free */
    int64_t n;
    float value;
    unsigned stream; /* that wrote it last */
} twin;

typedef struct world {
    uint64_t seed;
    rp_stream *streams[STREAMS]; /* the first is the default one */
    unsigned now;
    twin twins[TENSORS];
    rp_compiled *functions[FUNCTIONS];
    unsigned wrapped, deleted;
} world;

static void wrong(const world *w, const char *what) {
    fail_msg("seed %llu: %s %s", (unsigned long long)w->seed, what, rp_error_message());
}

static void go_to(world *w, unsigned k) {
    w->now = k;
    OK(rp_set_current_stream(w->streams[k]));
}

/* The current stream may read and write what `of` holds. */
static void order(const world *w, const twin *of) {
    if (of->stream == w->now) return;
    rp_event *e = rp_event_new(device, false);
    OK(rp_event_record(e, w->streams[of->stream]));
    OK(rp_stream_wait_event(w->streams[w->now], e));
    rp_event_release(e);
}

static void put(world *w, unsigned at, rp_tensor *t, int64_t n, float value) {
    if (rp_is_error(t)) wrong(w, "an error where none was to be:");
    w->twins[at] = (twin){rp_retain(t), n, value, w->now};
}

static void compare(world *w, const twin *x) {
    static float have[MAX];
    order(w, x);
    OK(rp_to_host(x->t, have, (size_t)x->n * sizeof *have));
    for (int64_t i = 0; i < x->n; i++) {
        char what[128];
        if (have[i] == x->value) continue;
        (void)snprintf(what, sizeof what, "element %lld of %lld is %g instead of %g", (long long)i, (long long)x->n,
                       (double)have[i], (double)x->value);
        wrong(w, what);
    }
}

static void drop(world *w, twin *x, bool look) {
    if (!x->t) return;
    if (look) compare(w, x);
    rp_release(x->t);
    x->t = NULL;
}

static void twice_and_one(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add_scalar(rp_mul_scalar(in[0], rp_f64(2)), rp_f64(1));
}
/* The same, if dropout with p = 0.5 of twice a number is a number or 0: draws, and ends with what does not depend on them. */
static void with_noise(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *noise = rp_dropout(rp_ones(RP_DIMS(8)), 0.5, true);
    rp_tensor *one = rp_add_scalar(rp_mul_scalar(rp_amax(noise, RP_NO_DIMS, false), rp_f64(0)), rp_f64(1));
    out[0] = rp_add(rp_mul_scalar(in[0], rp_f64(2)), one);
}

/* Memory of the program: another tensor's, which the deleter writes at once. */
typedef struct lent {
    world *w;
    rp_tensor *owner;
    rp_stream *home;
} lent;
static void take_back(void *ctx) {
    lent *l = ctx;
    rp_stream *now = rp_current_stream(device);
    (void)rp_set_current_stream(l->home);
    (void)rp_fill_(l->owner, rp_f64(-9999));
    (void)rp_set_current_stream(now);
    rp_release(l->owner);
    l->w->deleted++;
    free(l);
}

static rp_tensor *wrapped(world *w, int64_t n, float value) {
    lent *l = malloc(sizeof *l);
    assert_non_null(l);
    unsigned now = w->now;
    go_to(w, 0);
    *l = (lent){w, rp_retain(rp_full(&n, 1, rp_f64(value))), w->streams[0]};
    OK(rp_synchronize(device));
    void *data = rp_data(l->owner);
    go_to(w, now);
    rp_tensor *t = rp_from_blob(data, &n, 1, NULL, RP_F32, device, take_back, l);
    if (below(2)) OK(rp_declare_stable(t));
    w->wrapped++;
    return t;
}

/* y = 2 x + 1 in one of several ways; x may be released before any of it ran. */
static rp_tensor *apply(world *w, twin *x) {
    rp_tensor *y = NULL;
    order(w, x);
    unsigned how = below(6);
    if (how < 3) {
        rp_compiled **f = &w->functions[how];
        if (!*f)
            *f = rp_compile((rp_fn){how == 2 ? with_noise : twice_and_one, NULL, 0, "f"},
                            RP_OPTIONS(rp_compile_options, .no_graph = below(2) == 0));
        OK(rp_call(*f, &x->t, 1, &y, 1));
        if (below(3) == 0) {
            rp_compiled_release(*f);
            *f = NULL;
        }
    } else if (how == 3) {
        twice_and_one(NULL, &x->t, 1, &y, 1);
    } else { /* captured; and perhaps, meanwhile, work beside the capture */
        rp_graph *g = rp_graph_new();
        OK(rp_set_current_stream(w->streams[0]));
        rp_tensor *beside = rp_empty(&x->n, 1); /* of another stream than will use it */
        OK(rp_set_current_stream(w->streams[w->now]));
        order(w, &(twin){.stream = 0});
        OK(rp_graph_begin(g, device, RP_OPTIONS(rp_graph_options, .mode = RP_CAPTURE_RELAXED)));
        rp_stream *inside = rp_current_stream(device);
        twice_and_one(NULL, &x->t, 1, &y, 1);
        if (how == 5) {
            OK(rp_set_current_stream(w->streams[w->now]));
            (void)rp_fill_(beside, rp_f64(5));
            OK(rp_set_current_stream(inside));
        }
        OK(rp_graph_end(g));
        OK(rp_set_current_stream(w->streams[w->now]));
        OK(rp_graph_replay(g));
        y = rp_clone(y);
        rp_graph_release(g);
    }
    return y;
}

static void act(world *w) {
    twin *x = &w->twins[below(TENSORS)], *y = &w->twins[below(TENSORS)];
    unsigned at = below(TENSORS);
    switch (below(8)) {
    case 0: go_to(w, below(STREAMS)); break;
    case 1:
    case 2: {
        int64_t n = lengths[below(5)];
        float value = (float)below(50);
        drop(w, &w->twins[at], below(3) == 0);
        put(w, at, below(2) ? wrapped(w, n, value) : rp_full(&n, 1, rp_f64(value)), n, value);
        break;
    }
    case 3: drop(w, x, below(3) == 0); break;
    case 4: /* in place */
        if (!x->t) break;
        for (unsigned k = 0; k < STREAMS; k++) order(w, &(twin){.stream = k}); /* those who read it */
        (void)rp_fill_(x->t, rp_f64(7));
        x->value = 7;
        x->stream = w->now;
        break;
    case 5: {
        if (!x->t || !y->t || x->n != y->n || x == y) break;
        order(w, x);
        order(w, y);
        rp_tensor *sum = rp_add(x->t, y->t);
        float value = x->value + y->value;
        int64_t n = x->n;
        drop(w, &w->twins[at], false);
        put(w, at, sum, n, value);
        break;
    }
    default: {
        if (!x->t || x->value > 1000) break;
        rp_tensor *result = apply(w, x);
        float value = 2 * x->value + 1;
        int64_t n = x->n;
        drop(w, &w->twins[at], false);
        put(w, at, result, n, value);
    }
    }
}

static void run_seed(uint64_t seed) {
    world w = {.seed = seed, .streams = {rp_current_stream(device)}};
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 12345;
    for (unsigned k = 1; k < STREAMS; k++) w.streams[k] = rp_stream_new(device);
    for (unsigned k = 0; k < ACTIONS; k++) {
        rp_scope scope = rp_scope_begin();
        act(&w);
        OK(rp_scope_end(scope, NULL, 0));
        if (rp_failed()) wrong(&w, "");
    }
    go_to(&w, 0);
    rp_scope scope = rp_scope_begin(); /* of what deleters write */
    for (unsigned k = 0; k < TENSORS; k++) drop(&w, &w.twins[k], true);
    for (unsigned k = 0; k < FUNCTIONS; k++) rp_compiled_release(w.functions[k]);
    OK(rp_synchronize(device));
    OK(rp_scope_end(scope, NULL, 0));
    for (unsigned k = 1; k < STREAMS; k++) rp_stream_release(w.streams[k]);
    if (w.wrapped != w.deleted) wrong(&w, "a deleter ran never or twice");
}

static void test_fuzz(void **state) {
    (void)state;
    fuzz_seeds f = fuzz_begin(device.type == RP_DEVICE_CPU ? 150 : 4);
    for (uint64_t seed; fuzz_next(&f, &seed);) run_seed(seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_fuzz, begin, end)};
    RUN_ON_EACH_DEVICE(tests);
}
