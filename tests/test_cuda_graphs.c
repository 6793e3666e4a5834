/* Device graphs of CUDA: explicit graphs whose edges come from slots, raw captures, library calls behind dependencies, moved
   inputs, random state. On the emulator every case runs under several orders of what is unordered, and a consumer behind a
   programmatic edge starts before its producer: a missing edge or wait gives wrong values, which the first test shows.
   ctest: labels=cuda timeout=600 cost=19 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <reprise.h>

#include "cudasim/cudasim.h"
#include "device/device.h"
#include "support/cuda.h"
#include "tensor/tensor.h"

#define OK(expression)                                                                                                 \
    do {                                                                                                               \
        rp_status ok_status = (expression);                                                                            \
        if (ok_status != RP_OK || rp_failed()) fail_msg("%s: %s", #expression, rp_error_message());                    \
    } while (0)

static struct {
    void (*seed)(unsigned long long);
    void (*counters)(cudasim_counters *);
} sim; /* NULL on real hardware */

static void *find(void *library, const char *name) {
    void *p = dlsym(library, name);
    if (!p) fail_msg("the emulator has no %s", name);
    return p;
}

static cudasim_counters counters(void) {
    cudasim_counters c;
    memset(&c, 0, sizeof c);
    if (sim.counters) sim.counters(&c);
    return c;
}
static void seed(unsigned long long n) {
    if (sim.seed) sim.seed(n);
}

static int start(void **state) {
    (void)state;
    (void)rp_error_take();
    if (!test_cuda_is_real() && !sim.seed) {
        void *library = dlopen(getenv("REPRISE_LIBCUDA"), RTLD_NOW);
        if (!library) return 1;
        *(void **)&sim.seed = find(library, "cudasim_seed");
        *(void **)&sim.counters = find(library, "cudasim_get_counters");
    }
    (void)rp_set_default_device(rp_cuda(0));
    (void)rp_manual_seed(7);
    return rp_failed();
}
static int end(void **state) {
    (void)state;
    seed(1);
    return rp_error_take() == RP_OK && rp_synchronize(rp_cuda(0)) == RP_OK ? 0 : 1;
}

static rp_tensor *wave(double scale, int64_t rows, int64_t columns) {
    float *v = malloc((size_t)(rows * columns) * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < rows * columns; i++) v[i] = (float)(scale * (double)((i * 7919 + 13) % 2003 - 1001) / 1001);
    rp_tensor *t = rp_from_data(v, RP_DIMS(rows, columns), RP_F32);
    free(v);
    return t;
}

/* The same bits? */
static bool equal(rp_tensor *a, rp_tensor *b) {
    size_t bytes = (size_t)rp_numel(b) * rp_dtype_size(rp_dtype_of(b));
    char *x = calloc(bytes + 1, 1), *y = calloc(bytes + 1, 1);
    assert_int_equal(rp_numel(a), rp_numel(b));
    OK(rp_to_host(a, x, bytes));
    OK(rp_to_host(b, y, bytes));
    bool same = memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return same;
}

/* ---- explicit graphs ---- */

enum { MOST = 64 };
typedef struct list {
    rp__launch_recorder base;
    rp__launch *launches[MOST];
    uint32_t n, library;
} list;

static rp_status keep(rp__launch_recorder *self, rp_stream *s, const rp__launch *l) {
    list *all = (list *)self;
    (void)s;
    if (all->n == MOST) return RP_ERROR_INTERNAL;
    all->library += l->kernel->kind == RP__KERNEL_CUDA_LIBRARY;
    all->launches[all->n] = rp__launch_copy(l, true);
    return all->launches[all->n++] ? RP_OK : RP_ERROR_OUT_OF_MEMORY;
}

/* Runs `body` without computing anything; the launches it would have made. */
static void gather(list *all, void (*body)(rp_tensor **in, rp_tensor **out), rp_tensor **in, rp_tensor **out) {
    memset(all, 0, sizeof *all);
    all->base.record = keep;
    rp__launch_recorder *outer = rp__launch_recorder_set(&all->base);
    body(in, out);
    (void)rp__launch_recorder_set(outer);
    OK(RP_OK);
}

/* Edges from slots; `without`: leaves out those into this launch. */
static rp__devgraph *build(const list *all, uint32_t without, size_t *n_edges) {
    rp__device *d = rp__device_get(rp_cuda(0));
    rp__devgraph *g = NULL;
    OK(d->ops->graph_new(d, &g));
    *n_edges = 0;
    for (uint32_t k = 0; k < all->n; k++) {
        uint32_t deps[MOST], n = 0, node;
        for (uint32_t j = 0; j < k && k != without; j++)
            if (rp__launch_conflict(all->launches[j], all->launches[k])) deps[n++] = j;
        *n_edges += n;
        OK(d->ops->graph_add(g, all->launches[k], deps, n, &node));
        assert_int_equal(node, k);
    }
    assert_int_equal(d->ops->graph_nodes(g), all->n);
    OK(d->ops->graph_instantiate(g, d->default_stream));
    return g;
}

static void release(list *all) {
    for (uint32_t k = 0; k < all->n; k++) rp__launch_free(all->launches[k], true);
}

/* Two chains that meet, a sum over rows, a product by cuBLASLt behind one and before another kernel: with so few rows, which are no whole
   vectors, none of our own is sooner. */
enum { ROWS = 3, WIDTH = 1201 };
static void diamond(rp_tensor **in, rp_tensor **out) {
    rp_tensor *a = rp_sin(in[0]), *b = rp_mul_scalar(in[0], rp_f64(0.5)), *c = rp_mul(a, b);
    out[0] = rp_softmax(rp_add(c, a), -1);
    out[1] = rp_matmul(out[0], in[1]);
    out[2] = rp_mul(out[1], b);
    rp_add_(out[2], c);
}

static void test_explicit(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp__device *d = rp__device_get(rp_cuda(0));
    rp_stream *stream = rp__current_stream(d);
    rp_tensor *in[] = {wave(2, ROWS, WIDTH), wave(1, WIDTH, WIDTH)}, *want[3], *got[3];
    list all;
    size_t edges;
    diamond(in, want);
    OK(rp_synchronize(rp_cuda(0)));
    rp_scope inner = rp_scope_begin(); /* keeps every intermediate, so that no two share memory */
    gather(&all, diamond, in, got);
    assert_true(all.n >= 7 && all.library == 1);
    rp__devgraph *g = build(&all, UINT32_MAX, &edges);
    assert_true(edges >= all.n - 2);
    cudasim_counters before = counters();
    for (unsigned long long order = 1; order <= 12; order++) {
        seed(order);
        for (int k = 0; k < 3; k++) rp_fill_(got[k], rp_f64(-1));
        OK(d->ops->graph_launch(g, stream));
        for (int k = 0; k < 3; k++)
            if (!equal(got[k], want[k])) fail_msg("order %llu: result %d differs", order, k);
    }
    cudasim_counters after = counters();
    if (sim.counters) {
        assert_int_equal(after.graph_launches - before.graph_launches, 12);
        assert_true(after.early > before.early); /* consumers did start before their producers */
        assert_true(after.suspended > before.suspended);
    }
    d->ops->graph_free(g);
    /* the control: without the edges into one launch, some order gives other values */
    for (uint32_t without = 1; sim.seed && without < all.n; without++) {
        bool noticed = false;
        g = build(&all, without, &edges);
        for (unsigned long long order = 1; order <= 40 && !noticed; order++) {
            seed(order);
            for (int k = 0; k < 3; k++) rp_fill_(got[k], rp_f64(-1));
            for (uint32_t k = 0; k < all.n; k++) /* values of the last launch must not help */
                for (uint32_t j = 0; j < all.launches[k]->n_slots; j++) {
                    const rp__slot *slot = &all.launches[k]->slots[j];
                    if (slot->access == RP__WRITE)
                        OK(d->ops->fill(d, stream, slot->storage->data, 0x3f, slot->storage->bytes));
                }
            OK(d->ops->graph_launch(g, stream));
            for (int k = 0; k < 3; k++) noticed = !equal(got[k], want[k]) || noticed;
        }
        bool first = true; /* launches that read inputs alone have no edges to lose */
        for (uint32_t j = 0; j < without; j++)
            first = first && !rp__launch_conflict(all.launches[j], all.launches[without]);
        if (noticed == first) fail_msg("launch %u without its edges: %s", without, noticed ? "noticed" : "not noticed");
        d->ops->graph_free(g);
    }
    release(&all);
    OK(rp_scope_end(inner, NULL, 0));
    OK(rp_scope_end(s, NULL, 0));
}

/* A product of many tiles starts behind a full edge, since where its blocks lie decides its time; what follows it, and a product of few
   tiles, starts early. */
static void into_product(rp_tensor **in, rp_tensor **out) {
    out[0] = rp_relu(in[0]);
    out[1] = rp_matmul(out[0], in[1]);
}
static void behind_product(rp_tensor **in, rp_tensor **out) {
    out[0] = rp_matmul(in[0], in[1]);
    out[1] = rp_relu(out[0]);
}
static void test_early(void **state) {
    (void)state;
    static const struct {
        void (*body)(rp_tensor **in, rp_tensor **out);
        int64_t rows, inner, columns;
        bool early;
    } cases[] = {
        {into_product, 512, 96, 512, false}, {behind_product, 512, 96, 512, true}, {into_product, 64, 96, 64, true}};
    rp__device *d = rp__device_get(rp_cuda(0));
    rp_stream *stream = rp__current_stream(d);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *in[] = {wave(2, cases[k].rows, cases[k].inner), wave(1, cases[k].inner, cases[k].columns)}, *want[2],
                  *got[2];
        list all;
        size_t edges;
        cases[k].body(in, want);
        OK(rp_synchronize(rp_cuda(0)));
        gather(&all, cases[k].body, in, got);
        assert_int_equal(all.n, 2);
        assert_int_equal(all.library, 0);
        rp__devgraph *g = build(&all, UINT32_MAX, &edges);
        assert_int_equal(edges, 1);
        unsigned long long before = counters().early;
        OK(d->ops->graph_launch(g, stream));
        assert_true(equal(got[1], want[1]));
        if (sim.counters && (counters().early > before) != cases[k].early)
            fail_msg("case %zu: early is %d", k, !cases[k].early);
        d->ops->graph_free(g);
        release(&all);
        OK(rp_scope_end(s, NULL, 0));
    }
}

/* Words of a node are changed, and only those. */
static void test_words(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp__device *d = rp__device_get(rp_cuda(0));
    rp_stream *stream = rp__current_stream(d);
    rp_tensor *in[] = {wave(2, ROWS, WIDTH), wave(1, WIDTH, WIDTH)}, *moved[] = {wave(3, ROWS, WIDTH), in[1]}, *want[3],
              *got[3];
    list all;
    size_t edges;
    diamond(moved, want);
    gather(&all, diamond, in, got);
    rp__devgraph *g = build(&all, UINT32_MAX, &edges);
    cudasim_counters before = counters();
    unsigned patched = 0;
    for (uint32_t k = 0; k < all.n; k++) {
        const rp__launch *l = d->ops->graph_node(g, k);
        uint64_t words[512];
        bool reads = false;
        assert_non_null(l);
        assert_true(l->n_words <= 512);
        memcpy(words, l->words, l->n_words * sizeof *words);
        for (uint32_t j = 0; j < l->n_slots; j++)
            if (l->slots[j].storage == in[0]->storage) {
                words[l->slots[j].word] += (uint64_t)(uintptr_t)rp_data(moved[0]) - (uint64_t)(uintptr_t)rp_data(in[0]);
                reads = true;
            }
        if (!reads) continue;
        OK(d->ops->graph_set_words(g, k, words));
        patched++;
    }
    assert_int_equal(patched, 2);
    for (unsigned long long order = 1; order <= 4; order++) {
        seed(order);
        OK(d->ops->graph_launch(g, stream));
        for (int k = 0; k < 3; k++) assert_true(equal(got[k], want[k]));
    }
    if (sim.counters) assert_int_equal(counters().patches - before.patches, 2);
    for (uint32_t k = 0; k < all.n; k++) /* a library call has no words to change */
        if (all.launches[k]->kernel->kind == RP__KERNEL_CUDA_LIBRARY) {
            assert_int_equal(d->ops->graph_set_words(g, k, all.launches[k]->words), RP_ERROR_INTERNAL);
            assert_int_equal(rp_error_take(), RP_ERROR_INTERNAL);
        }
    d->ops->graph_free(g);
    release(&all);
    OK(rp_scope_end(s, NULL, 0));
}

/* Points what reads in[0] at `at`. */
static void point(rp__devgraph *g, const list *all, rp_tensor *from, rp_tensor *at) {
    rp__device *d = rp__device_get(rp_cuda(0));
    for (uint32_t k = 0; k < all->n; k++) {
        const rp__launch *l = all->launches[k];
        uint64_t words[512];
        bool reads = false;
        assert_true(l->n_words <= 512);
        memcpy(words, l->words, l->n_words * sizeof *words);
        for (uint32_t j = 0; j < l->n_slots; j++)
            if (l->slots[j].storage == from->storage) {
                words[l->slots[j].word] += (uint64_t)(uintptr_t)rp_data(at) - (uint64_t)(uintptr_t)rp_data(from);
                reads = true;
            }
        if (reads) OK(d->ops->graph_set_words(g, k, words));
    }
}

/* Parameters that keep coming back get an executable of their own, and are not set again; others are, as before. */
static void test_returning(void **state) {
    (void)state;
    enum { PLACES = 7 };
    rp_scope s = rp_scope_begin();
    rp__device *d = rp__device_get(rp_cuda(0));
    rp_stream *stream = rp__current_stream(d), *other = rp_stream_new(rp_cuda(0));
    rp_tensor *product = wave(1, WIDTH, WIDTH), *in[PLACES], *want[PLACES][3], *got[3];
    list all;
    size_t edges;
    for (int i = 0; i < PLACES; i++) {
        in[i] = wave(1 + i, ROWS, WIDTH);
        diamond((rp_tensor *[]){in[i], product}, want[i]);
    }
    gather(&all, diamond, (rp_tensor *[]){in[0], product}, got);
    rp__devgraph *g = build(&all, UINT32_MAX, &edges);
    cudasim_counters before = counters();
    for (int turn = 0; turn < 24; turn++) { /* two places, then three */
        int i = turn < 12 ? turn % 2 : turn % 3;
        if (turn == 8 || turn == 20) before = counters();
        point(g, &all, in[0], in[i]);
        OK(d->ops->graph_launch(g, stream));
        for (int k = 0; k < 3; k++) assert_true(equal(got[k], want[i][k]));
        if (sim.counters && (turn == 11 || turn == 23)) {
            assert_int_equal(counters().patches, before.patches);
            assert_int_equal(counters().live_execs, turn == 11 ? 2 : 3);
        }
    }
    for (int i = 3; i < PLACES; i++) { /* places that do not come back: two nodes each, one executable */
        before = counters();
        point(g, &all, in[0], in[i]);
        OK(d->ops->graph_launch(g, stream));
        for (int k = 0; k < 3; k++) assert_true(equal(got[k], want[i][k]));
        if (sim.counters) assert_int_equal(counters().patches - before.patches, 2);
    }
    /* On another stream than the last launch's nothing orders two executables: the last one is changed. Its launches do not
       overlap. */
    for (int turn = 0; turn < 12; turn++) {
        rp_stream *on = turn % 2 ? other : stream;
        before = counters();
        point(g, &all, in[0], in[turn % 3]);
        OK(d->ops->graph_launch(g, on));
        OK(rp_stream_synchronize(on));
        for (int k = 0; k < 3; k++) assert_true(equal(got[k], want[turn % 3][k]));
        if (sim.counters && turn > 0) assert_int_equal(counters().patches - before.patches, 2);
    }
    d->ops->graph_free(g);
    release(&all);
    rp_stream_release(other);
    OK(rp_scope_end(s, NULL, 0));
}

static void line(rp_tensor **in, rp_tensor **out) {
    out[0] = rp_sin(in[0]);
    out[1] = rp_mul(out[0], in[0]);
    out[2] = rp_sum(out[1], NULL, 0);
}

/* As many places as executables have them all; of more that take turns none comes back in time, and no executable is made for
   one. */
static void test_many_places(void **state) {
    (void)state;
    enum { PLACES = 20 };
    rp_scope s = rp_scope_begin();
    rp__device *d = rp__device_get(rp_cuda(0));
    rp_stream *stream = rp__current_stream(d);
    rp_tensor *in[PLACES], *want[PLACES][3], *got[3];
    list all;
    size_t edges;
    for (int i = 0; i < PLACES; i++) {
        in[i] = wave(1 + i, 5, 7);
        line(&in[i], want[i]);
    }
    gather(&all, line, in, got);
    rp__devgraph *g = build(&all, UINT32_MAX, &edges);
    for (int places = PLACES; places >= 16; places -= PLACES - 16) {
        for (int turn = 0; turn < 4 * places; turn++) {
            int i = turn % places;
            cudasim_counters before = counters();
            point(g, &all, in[0], in[i]);
            OK(d->ops->graph_launch(g, stream));
            for (int k = 0; k < 3; k++) assert_true(equal(got[k], want[i][k]));
            if (!sim.counters || turn < 3 * places) continue;
            assert_int_equal(counters().patches - before.patches, places == 16 ? 0 : 2);
            assert_int_equal(counters().live_execs, places == 16 ? 16 : 1);
        }
    }
    d->ops->graph_free(g);
    release(&all);
    OK(rp_scope_end(s, NULL, 0));
}

/* ---- raw captures ---- */

static void test_capture(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *in[] = {wave(2, ROWS, WIDTH), wave(1, WIDTH, WIDTH)}, *want[3], *got[3];
    diamond(in, want);
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, rp_cuda(0), NULL));
    diamond(in, got);
    OK(rp_graph_end(g));
    for (unsigned long long order = 1; order <= 8; order++) {
        seed(order);
        OK(rp_graph_replay(g));
        for (int k = 0; k < 3; k++)
            if (!equal(got[k], want[k])) fail_msg("order %llu: result %d differs", order, k);
    }
    /* what a library call reads stays where it is, and the message says so; its values may change */
    rp_tensor *other = wave(0.5, WIDTH, WIDTH);
    assert_int_equal(rp_graph_repoint(g, in[1], other), RP_ERROR_CAPTURE);
    assert_non_null(strstr(rp_error_message(), "library"));
    (void)rp_error_take();
    rp_tensor *now[] = {in[0], other};
    diamond(now, want);
    rp_copy_(in[1], other);
    OK(rp_graph_replay(g));
    for (int k = 0; k < 3; k++) assert_true(equal(got[k], want[k]));
    /* the other input is read by our kernels only */
    now[0] = wave(4, ROWS, WIDTH);
    diamond(now, want);
    cudasim_counters before = counters();
    OK(rp_graph_repoint(g, in[0], now[0]));
    for (unsigned long long order = 1; order <= 4; order++) {
        seed(order);
        OK(rp_graph_replay(g));
        for (int k = 0; k < 3; k++) assert_true(equal(got[k], want[k]));
    }
    if (sim.counters) assert_int_equal(counters().patches - before.patches, 2);
    rp_graph_release(g);
    OK(rp_scope_end(s, NULL, 0));
}

/* A capture that forks to a second stream and joins: both branches are in the graph, ordered by the events alone. */
static void test_fork(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    rp_tensor *x = wave(2, 64, 33), *left, *right, *sum;
    rp_stream *main_stream = rp_stream_new(rp_cuda(0)), *side = rp_stream_new(rp_cuda(0));
    rp_event *fork = rp_event_new(rp_cuda(0), false), *join = rp_event_new(rp_cuda(0), false);
    rp_tensor *want = rp_add(rp_exp(rp_sin(x)), rp_tanh(rp_sin(x)));
    OK(rp_synchronize(rp_cuda(0)));
    rp_graph *g = rp_graph_new();
    OK(rp_graph_begin(g, rp_cuda(0), RP_OPTIONS(rp_graph_options, .stream = main_stream)));
    left = rp_sin(x);
    OK(rp_event_record(fork, main_stream));
    OK(rp_stream_wait_event(side, fork));
    OK(rp_set_current_stream(side));
    right = rp_tanh(left);
    OK(rp_event_record(join, side));
    OK(rp_set_current_stream(main_stream));
    left = rp_exp(left);
    OK(rp_stream_wait_event(main_stream, join));
    sum = rp_add(left, right);
    OK(rp_graph_end(g));
    for (unsigned long long order = 1; order <= 16; order++) {
        seed(order);
        rp_fill_(sum, rp_f64(0));
        OK(rp_synchronize(rp_cuda(0)));
        OK(rp_graph_replay(g));
        if (!equal(sum, want)) fail_msg("order %llu", order);
    }
    rp_graph_release(g);
    rp_event_release(fork);
    rp_event_release(join);
    rp_stream_release(side);
    rp_stream_release(main_stream);
    OK(rp_scope_end(s, NULL, 0));
}

/* Each replay draws what eager would have drawn next. */
static void draw(rp_tensor *x, rp_tensor **out) {
    out[0] = rp_dropout(x, 0.3, true);
    out[1] = rp_randn(RP_DIMS(17));
    out[2] = rp_multinomial(rp_softmax(x, -1), 3, true);
    out[3] = rp_add(rp_rand(RP_DIMS(64, 33)), out[0]);
}

static void test_random(void **state) {
    (void)state;
    rp_scope s = rp_scope_begin();
    enum { ROUNDS = 4 };
    rp_tensor *x = wave(2, 64, 33), *want[ROUNDS][4], *got[4], *between[2];
    rp_generator *g = rp_default_generator(rp_cuda(0));
    uint64_t at[2][2];
    OK(rp_manual_seed(99));
    for (int r = 0; r < ROUNDS; r++) draw(x, want[r]);
    between[0] = rp_rand(RP_DIMS(5));
    OK(rp_generator_get(g, &at[0][0], &at[0][1]));
    rp_graph *graph = rp_graph_new();
    OK(rp_graph_begin(graph, rp_cuda(0), NULL));
    draw(x, got);
    OK(rp_graph_end(graph));
    OK(rp_manual_seed(99));
    for (int r = 0; r < ROUNDS; r++) { /* an eager round among the replays */
        rp_tensor *eager[4];
        seed((unsigned long long)r + 1);
        if (r == 2)
            draw(x, eager);
        else
            OK(rp_graph_replay(graph));
        for (int k = 0; k < 4; k++)
            if (!equal(r == 2 ? eager[k] : got[k], want[r][k])) fail_msg("round %d: result %d differs", r, k);
    }
    between[1] = rp_rand(RP_DIMS(5));
    OK(rp_generator_get(g, &at[1][0], &at[1][1]));
    assert_true(equal(between[1], between[0]));
    assert_int_equal(at[0][1], at[1][1]);
    rp_graph_release(graph);
    OK(rp_scope_end(s, NULL, 0));
}

/* Many captures: nothing is left, neither handles of the driver nor memory. */
static void test_no_leak(void **state) {
    (void)state;
    cudasim_counters before = {0}, after;
    rp_memory_stats stats[2] = {{.struct_size = sizeof stats[0]}, {.struct_size = sizeof stats[0]}};
    for (int round = 0; round < 30; round++) {
        rp_scope s = rp_scope_begin();
        rp_tensor *x = wave(1, 16, 16), *y;
        rp_graph *g = rp_graph_new();
        OK(rp_graph_begin(g, rp_cuda(0), NULL));
        y = rp_exp(rp_sin(x));
        OK(rp_graph_end(g));
        OK(rp_graph_replay(g));
        assert_true(equal(y, rp_exp(rp_sin(x))));
        rp_graph_release(g);
        OK(rp_scope_end(s, NULL, 0));
        OK(rp_synchronize(rp_cuda(0)));
        if (round == 4) {
            before = counters();
            OK(rp_memory_stats_get(rp_cuda(0), &stats[0]));
        }
    }
    after = counters();
    OK(rp_memory_stats_get(rp_cuda(0), &stats[1]));
    assert_int_equal(after.live_graphs, before.live_graphs);
    assert_int_equal(after.live_execs, before.live_execs);
    assert_int_equal(after.live_streams, before.live_streams);
    assert_int_equal(after.live_events, before.live_events);
    assert_int_equal(after.live_physical, before.live_physical);
    assert_int_equal(after.live_allocations, before.live_allocations);
    assert_int_equal(stats[1].reserved, stats[0].reserved);
    assert_int_equal(stats[1].in_private_pools, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, end)
int main(void) {
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        TEST(test_explicit), TEST(test_early), TEST(test_words),  TEST(test_returning), TEST(test_many_places),
        TEST(test_capture),  TEST(test_fork),  TEST(test_random), TEST(test_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
