/* The loop form: building, folding, interning, text; collapsing spaces; indexed loads and stores; aliasing; many tensors in one
   launch; random numbers; empty spaces; failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "kernel/cpu/jit.h"
#include "kernel/cpu/points.h"
#include "kernel/schedule.h"
#include "support/loops.h"

static test_device device;

static rp__dag *softmax(void) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, RP_F32, false);
    rp__val e = op1(b, RP__EXP, op2(b, RP__SUB, x, rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW)));
    store_new(b, RP_F32, op2(b, RP__DIV, e, rp__dag_reduce(b, RP__REDUCE_SUM, e, RP__ALONG_ROW)), false);
    return rp__dag_finish(b);
}

static void text_is_stable(void **state) {
    (void)state;
    rp__dag *d = softmax();
    rp__text t = {0};
    rp__dag_text(d, &t);
    assert_string_equal(t.data, "access @0 read f32 [ab]\n"
                                "access @1 write f32 [ab]\n"
                                "%0 f32 = load @0 [ab] phase 0\n"
                                "%1 f32 = reduce max %0 over b [a] phase 1\n"
                                "%2 f32 = sub %0, %1 [ab] phase 1\n"
                                "%3 f32 = exp %2 [ab] phase 1\n"
                                "%4 f32 = reduce sum %3 over b [a] phase 2\n"
                                "%5 f32 = div %3, %4 [ab] phase 2\n"
                                "store @1 %5\n");
    assert_int_equal(d->n_phases, 3);
    rp__text_free(&t);
    rp__dag_release(d);
}

static void equal_dags_are_one(void **state) {
    (void)state;
    rp__dag *a = softmax(), *b = softmax();
    assert_ptr_equal(a, b);
    rp__dag_release(a);
    rp__dag_release(b);
    rp__dag_builder *build = rp__dag_new();
    rp__val x = load_new(build, RP_F32, false);
    (void)op1(build, RP__EXP, x); /* dead */
    store_new(build, RP_F32, op1(build, RP__NEG, x), false);
    rp__dag *d = rp__dag_finish(build);
    assert_int_equal(d->n_nodes, 2);
    rp__dag_release(d);
}

static void folding(void **state) {
    (void)state;
    rp__dag_builder *b = rp__dag_new();
    rp__val i = load_new(b, RP_I64, false), x = load_new(b, RP_F32, false);
    rp__val zero = rp__dag_const(b, RP_I64, test_i(0)), one = rp__dag_const(b, RP_I64, test_i(1));
    assert_int_equal(op2(b, RP__ADD, i, zero), i);
    assert_int_equal(op2(b, RP__MUL, i, one), i);
    assert_int_equal(op2(b, RP__ADD, one, one), rp__dag_const(b, RP_I64, test_i(2)));
    assert_int_equal(op2(b, RP__FLOORDIV, rp__dag_const(b, RP_I64, test_i(-7)), rp__dag_const(b, RP_I64, test_i(2))),
                     rp__dag_const(b, RP_I64, test_i(-4)));
    assert_int_equal(rp__dag_cast(b, rp__dag_const(b, RP_I64, test_i(300)), RP_U8),
                     rp__dag_const(b, RP_U8, test_i(44)));
    /* x + 0 stays: -0 + 0 is 0. */
    assert_int_not_equal(op2(b, RP__ADD, x, rp__dag_const(b, RP_F32, test_f(0))), x);
    assert_int_equal(op2(b, RP__MUL, x, x), op2(b, RP__MUL, x, x));
    rp__val h = rp__dag_cast(b, x, RP_F16);
    assert_int_equal(rp__dag_cast(b, h, RP_F16), h);
    rp__val bit = rp__dag_cast(b, i, RP_BOOL);
    assert_int_equal(op1(b, RP__NOT, op1(b, RP__NOT, bit)), bit);
    assert_int_equal(rp__dag_op(b, RP__WHERE, bit, x, x), x);
    rp__dag_abandon(b);
    assert_false(rp_failed());
}

static void misuse_is_sticky(void **state) {
    (void)state;
    rp__dag_builder *b = rp__dag_new();
    rp__val i = load_new(b, RP_I64, false), x = load_new(b, RP_F32, false);
    assert_int_equal(op2(b, RP__ADD, i, x), NONE);
    assert_int_equal(op2(b, RP__ADD, x, x), NONE);
    store_new(b, RP_F32, x, false);
    assert_null(rp__dag_finish(b));
    assert_int_equal(rp_error_take(), RP_ERROR_INTERNAL);
    b = rp__dag_new();
    store_new(b, RP_F32, load_new(b, RP_F32, false), true); /* a row store of an element */
    assert_null(rp__dag_finish(b));
    assert_int_equal(rp_error_take(), RP_ERROR_INTERNAL);
}

static rp__dag *negation(void) {
    rp__dag_builder *b = rp__dag_new();
    store_new(b, RP_F32, op1(b, RP__NEG, load_new(b, RP_F32, false)), false);
    return rp__dag_finish(b);
}
static void collapsing(void **state) {
    (void)state;
    char memory[8];
    rp__space_access a[2];
    memset(a, 0, sizeof a);
    a[0] = (rp__space_access){.base = memory, .stride = {60, 20, 5, 1}};
    a[1] = (rp__space_access){.base = memory, .stride = {60, 20, 5, 1}};
    rp__dag *rows = softmax(), *points = negation();
    rp__space s = {.dims = {3, 1}, .extent = {2, 3, 4, 5}, .n_accesses = 2, .accesses = a};
    rp__space_collapse(rows, &s, a);
    assert_int_equal(s.dims[0], 1);
    assert_int_equal(s.dims[1], 1);
    assert_int_equal(s.extent[0], 24);
    assert_int_equal(a[0].stride[0], 5);
    /* A transposed pair becomes contiguous: outer order is free. */
    a[0] = a[1] = (rp__space_access){.base = memory, .stride = {1, 7, 3}};
    s = (rp__space){.dims = {3}, .extent = {7, 9, 1}, .n_accesses = 2, .accesses = a};
    rp__space_collapse(points, &s, a);
    assert_int_equal(s.dims[0], 1);
    assert_int_equal(s.extent[0], 63);
    assert_int_equal(a[1].stride[0], 1);
    /* An index access keeps the order. */
    a[0] = (rp__space_access){.base = memory, .stride = {1, 7}};
    a[1] = (rp__space_access){.base = NULL, .stride = {9, 1}};
    s = (rp__space){.dims = {2}, .extent = {7, 9}, .n_accesses = 2, .accesses = a};
    rp__space_collapse(points, &s, a);
    assert_int_equal(s.dims[0], 2);
    assert_int_equal(s.extent[0], 7);
    rp__dag_release(rows);
    rp__dag_release(points);

    /* Numbers of places that windows lead to do not: what is stored goes inside, and the factors of the windows go along. */
    rp__dag_builder *b = rp__dag_new();
    const uint16_t numbers = rp__dag_access_windows(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS, 1);
    const rp__val v = rp__dag_iota(b, numbers);
    rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_I64, RP__ELEMENTS), v);
    rp__dag *places = rp__dag_finish(b);
    rp__space_window w = {.size = 30, .stride = 1, .divisor = 1, .factor = {2, 0}};
    a[0] = (rp__space_access){.base = NULL, .stride = {0, 0}};
    a[1] = (rp__space_access){.base = memory, .stride = {1, 7}};
    s = (rp__space){.dims = {2}, .extent = {7, 9}, .n_accesses = 2, .accesses = a, .windows = &w};
    rp__space_collapse(places, &s, a);
    assert_int_equal(s.dims[0], 2);
    assert_int_equal(s.extent[0], 9);
    assert_int_equal(a[1].stride[1], 1);
    assert_int_equal(w.factor[0], 0);
    assert_int_equal(w.factor[1], 2);
    rp__dag_release(places);
}

/* What the CPU binds: dims by what is written, whatever axes they are of; rows keep theirs apart from the dims along them. */
static void order_of_dims(void **state) {
    (void)state;
    char memory[8];
    rp__points p;
    rp__space_access a[3];
    memset(a, 0, sizeof a);
    rp__dag *points = negation(), *rows = softmax();
    a[0] = (rp__space_access){.base = memory, .stride = {-1, 40, 2000}};
    a[1] = (rp__space_access){.base = memory, .stride = {1, 40, 2000}};
    rp__space s = {.dims = {3}, .extent = {40, 50, 3}, .n_accesses = 2, .accesses = a};
    const rp__space *o = rp__points_in_order(points, &s, &p);
    assert_ptr_equal(o, &p.space);
    assert_int_equal(rp__space_dims(o), 2); /* the two that both walk alike are one */
    assert_int_equal(o->extent[0], 150);
    assert_int_equal(o->extent[1], 40);
    assert_int_equal(o->accesses[0].stride[0], 40);
    assert_int_equal(o->accesses[0].stride[1], -1);
    assert_null(rp__points_in_order(points, o, &(rp__points){.space = {.n_accesses = 0}}));

    a[0] = a[1] = (rp__space_access){.base = memory, .stride = {1, 700, 10}};
    s = (rp__space){.dims = {2, 1}, .extent = {10, 6, 70}, .n_accesses = 2, .accesses = a};
    o = rp__points_in_order(rows, &s, &p);
    assert_non_null(o);
    assert_int_equal(rp__space_outer(rows, o), 2);
    assert_int_equal(rp__space_inner(rows, o), 1);
    assert_int_equal(o->extent[0], 6);
    assert_int_equal(o->extent[1], 10);
    assert_int_equal(o->extent[2], 70);
    assert_int_equal(o->accesses[1].stride[1], 1);
    assert_int_equal(o->accesses[1].stride[2], 10);
    rp__dag_release(points);
    rp__dag_release(rows);
}

static rp__space space_1d(int64_t n, const rp__space_access *a, unsigned n_accesses) {
    return (rp__space){
        .dims = {1}, .extent = {n}, .n_accesses = (uint16_t)n_accesses, .accesses = a, .op = "test", .site = "here"};
}

/* out[i] = table[index[i]] where index[i] != 3, bad indices reported; count[index[i]] += 1. */
static void gather_and_scatter(void **state) {
    (void)state;
    rp__dag_builder *b = rp__dag_new();
    rp__val index = load_new(b, RP_I64, false), bound = rp__dag_scalar_value(b, rp__dag_scalar(b), RP_I64);
    rp__val checked = rp__dag_op(b, RP__CHECK_INDEX, index, bound, 1);
    rp__val keep = op2(b, RP__NE, checked, rp__dag_const(b, RP_I64, test_i(3)));
    uint16_t table = rp__dag_access(b, RP__ACCESS_READ, RP_F16, RP__ELEMENTS);
    store_new(b, RP_F32, rp__dag_load(b, table, checked, keep), false);
    uint16_t count = rp__dag_access(b, RP__ACCESS_READ_WRITE, RP_F32, RP__ELEMENTS);
    rp__dag_store_at(b, count, rp__dag_const(b, RP_F32, test_f(1)), checked, keep, RP__STORE_ADD);
    rp__dag *dag = rp__dag_finish(b);
    assert_non_null(dag);
    enum { N = 5000, TABLE = 64 };
    static int64_t indices[N];
    static float out[N], counts[TABLE], want[TABLE];
    uint16_t halves[TABLE];
    for (int i = 0; i < TABLE; i++) halves[i] = rp__f32_to_f16((float)i * 0.25f);
    test_rng r = {7};
    for (int i = 0; i < N; i++) indices[i] = (int64_t)test_below(&r, TABLE) - (i % 5 == 0 ? TABLE : 0);
    rp__space_access a[4];
    memset(a, 0, sizeof a);
    a[0] = (rp__space_access){.base = indices, .stride = {1}};
    a[1] = (rp__space_access){.base = halves, .stride = {0}};
    a[2] = (rp__space_access){.base = out, .stride = {1}};
    a[3] = (rp__space_access){.base = counts, .stride = {0}};
    rp__space s = space_1d(N, a, 4);
    rp_scalar bound_value = test_i(TABLE);
    s.scalars = &bound_value;
    s.n_scalars = 1;
    test_run(&device, dag, &s, NULL);
    for (int i = 0; i < N; i++) {
        int64_t at = indices[i] < 0 ? indices[i] + TABLE : indices[i];
        assert_true(out[i] == (at == 3 ? 0 : (float)at * 0.25f));
        want[at] += at != 3;
    }
    assert_memory_equal(counts, want, sizeof want);
    assert_int_equal(atomic_load(&device.errors.state), 0);
    indices[1234] = TABLE;
    test_run(&device, dag, &s, NULL);
    assert_int_equal(atomic_load(&device.errors.state), 2);
    assert_int_equal(device.errors.index, TABLE);
    assert_int_equal(device.errors.bound, TABLE);
    atomic_store(&device.errors.state, 0);
    rp__dag_release(dag);
}

/* Where nothing is stored the place is not looked at, be it beyond all memory. */
static void places_of_nothing(void **state) {
    (void)state;
    rp__dag_builder *b = rp__dag_new();
    rp__val place = load_new(b, RP_I64, false);
    rp__val keep = op2(b, RP__LE, rp__dag_const(b, RP_I64, test_i(0)), place);
    rp__dag_store_at(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, RP__ELEMENTS), rp__dag_const(b, RP_F32, test_f(1)),
                     place, keep, RP__STORE_SET);
    rp__dag *dag = rp__dag_finish(b);
    assert_non_null(dag);
    enum { N = 200 };
    int64_t places[N];
    float out[N] = {0};
    for (int64_t i = 0; i < N; i++) places[i] = i % 3 ? N - 1 - i : INT64_MIN + i;
    rp__space_access a[2] = {{.base = places, .stride = {1}}, {.base = out, .stride = {0}}};
    rp__space s = space_1d(N, a, 2);
    test_run(&device, dag, &s, NULL);
    for (int i = 0; i < N; i++) assert_true(out[N - 1 - i] == (float)(i % 3 != 0));
    rp__dag_release(dag);
}

/* A launch that is kept tells errors as the call's that runs it, and a schedule is of dims as they are walked: also where that takes them in
   another order, as fewer dims. */
static uint64_t last_word;
static rp_status keep_word(rp__launch_recorder *self, rp_stream *s, const rp__launch *l) {
    (void)self, (void)s;
    last_word = l->words[l->n_words - 1];
    return RP_OK;
}
static void kept_in_another_order(void **state) {
    (void)state;
    enum { N = 64, TABLE = 10 };
    rp__dag_builder *b = rp__dag_new();
    rp__val at = rp__dag_op(b, RP__CHECK_INDEX, load_new(b, RP_I64, false), rp__dag_const(b, RP_I64, test_i(TABLE)), 0);
    const uint16_t table = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS);
    store_new(b, RP_F32, rp__dag_load(b, table, at, NONE), false);
    rp__dag *dag = rp__dag_finish(b), *plain = negation();
    assert_non_null(dag);
    static int64_t index[N * N];
    static float in[N * N], out[N * N], numbers[TABLE];
    rp__space_access a[3] = {{.base = index, .end = sizeof index, .stride = {1, N}},
                             {.base = numbers, .end = sizeof numbers, .stride = {0}},
                             {.base = out, .end = sizeof out, .stride = {1, N}}};
    rp__space s = {.dims = {2}, .extent = {N, N}, .n_accesses = 3, .accesses = a, .op = "first", .site = "here"};
    test_run(&device, dag, &s, NULL);
    rp__ready *kept = rp__cpu_loops.ready_new(&device.device, dag, &s);
    assert_non_null(kept);
    rp__launch_recorder recorder = {.record = keep_word}, *old = rp__launch_recorder_set(&recorder);
    char *const base[3] = {(char *)index, (char *)numbers, (char *)out};
    rp_stream stream = {.device = &device.device};
    rp_status status = RP_ERROR_INTERNAL;
    const bool ran = rp__cpu_loops.ready_run(kept, &stream, base, "second", "there", &status);
    rp__launch_recorder_set(old);
    assert_true(ran);
    assert_int_equal(status, RP_OK);
    assert_int_equal(last_word, rp__error_tag("second", "there"));
    rp__cpu_loops.ready_free(kept);

    rp__space_access x[2] = {{.base = in, .end = sizeof in, .stride = {1, N}},
                             {.base = out, .end = sizeof out, .stride = {1, N}}};
    s.accesses = x;
    s.n_accesses = 2;
    rp__schedule how[8];
    assert_int_equal(rp__cpu_loops.schedules(&device.device, plain, &s, true, how, 8), 0);
    rp__dag_release(dag);
    rp__dag_release(plain);
}

/* Slices of rows side by side end where stretches do that lie one after the other in memory. */
static void slices_of_stretches(void **state) {
    (void)state;
    enum { BLOCKS = 400, STRETCH = 80, R = 8 };
    rp__dag *dag = softmax();
    float *memory = calloc(2 * BLOCKS * STRETCH * R, sizeof *memory);
    rp__space_access a[2] = {{.base = memory, .stride = {STRETCH * R, 1, STRETCH}},
                             {.base = memory + BLOCKS * STRETCH * R, .stride = {STRETCH * R, 1, STRETCH}}};
    rp__space s = {.dims = {2, 1}, .extent = {BLOCKS, STRETCH, R}, .n_accesses = 2, .accesses = a, .op = "test"};
    rp__launch l = {.kernel = NULL};
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    assert_non_null(memory);
    assert_non_null(buffer);
    assert_int_equal(rp__cpu_loops.bind(&device.device, dag, &s, buffer, &l), RP_OK);
    assert_int_equal(l.words[0] & 0xff, RP__WALK_ACROSS);
    assert_true(l.grain > STRETCH && l.grain < l.items);
    assert_int_equal(l.grain % STRETCH, 0);
    test_run(&device, dag, &s, NULL);
    for (int i = 0; i < BLOCKS * STRETCH * R; i++) assert_true(memory[BLOCKS * STRETCH * R + i] == 1.0f / R);
    free(memory);
    rp__dag_release(dag);
}

/* Stores pass the caches where much is moved; numbers of places that nothing reads any more move nothing. */
static int lines_run, lines_past;
static void note_line(const rp__line *l) {
    lines_run++;
    lines_past += l->stream;
}
static void dead_numbers_move_nothing(void **state) {
    (void)state;
    enum { ROWS = 64, R = 40 };
    for (int way = 0; way < 3; way++) { /* all in one; short stretches; long ones */
        const int64_t rows = way == 0 ? 1 : way == 1 ? ROWS : 4, n = ROWS * R / rows;
        rp__dag_builder *b = rp__dag_new();
        (void)rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
        rp__val x = load_new(b, RP_F32, false), y = load_new(b, RP_F32, false);
        store_new(b, RP_F32, op2(b, RP__ADD, op2(b, RP__MUL, x, y), rp__dag_const(b, RP_F32, test_f(11))), false);
        rp__dag *dag = rp__dag_finish(b);
        assert_non_null(dag);
        assert_int_equal(dag->n_accesses, 4);
        static _Alignas(64) float in[ROWS * R], out[ROWS * R], column[ROWS];
        rp__space_access a[4] = {{.iota_base = 0, .stride = {n, 1}},
                                 {.base = in, .stride = {n, 1}},
                                 {.base = column, .stride = {1, 0}},
                                 {.base = out, .stride = {n, 1}}};
        rp__space s = {.dims = {2}, .extent = {rows, n}, .n_accesses = 4, .accesses = a, .op = "test"};
        test_run(&device, dag, &s, NULL);
        rp__cpu_loop *loop = rp__cpu_kernel_made(dag)->payload;
        rp__line_fn *old = atomic_exchange(&loop->line[RP__PLAN_ELEMENTS], note_line);
        const int64_t usual = rp__line_stream_bytes;
        for (int more = 0; more < 2; more++) {
            rp__line_stream_bytes = 8 * ROWS * R + !more; /* what is read and written of elements */
            lines_run = lines_past = 0;
            test_run(&device, dag, &s, NULL);
            assert_true(lines_run > 0);
            assert_int_equal(lines_past > 0, more);
        }
        rp__line_stream_bytes = usual;
        atomic_store(&loop->line[RP__PLAN_ELEMENTS], old);
        rp__dag_release(dag);
    }
}

/* A value written over its operand before another value has read it. */
static void writing_over_an_operand(void **state) {
    (void)state;
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, RP_F32, false);
    rp__val y = op2(b, RP__ADD, x, rp__dag_const(b, RP_F32, test_f(1)));
    rp__val z = op2(b, RP__MUL, x, x);
    store_new(b, RP_F32, y, false);
    store_new(b, RP_F32, z, false);
    rp__dag *dag = rp__dag_finish(b);
    enum { N = 4096 };
    static float memory[N], other[N];
    for (int i = 0; i < N; i++) memory[i] = (float)i;
    rp__space_access a[3] = {
        {.base = memory, .stride = {1}}, {.base = memory, .stride = {1}}, {.base = other, .stride = {1}}};
    rp__space s = space_1d(N, a, 3);
    test_run(&device, dag, &s, NULL);
    for (int i = 0; i < N; i++) assert_true(memory[i] == (float)i + 1 && other[i] == (float)i * (float)i);
    rp__dag_release(dag);
}

static void softmax_in_place(void **state) {
    (void)state;
    rp__dag *dag = softmax();
    enum { ROWS = 7 };
    for (int64_t n = 1; n < 3000; n = n * 3 + 1) {
        float *x = malloc(sizeof *x * (size_t)(ROWS * n)), *y = malloc(sizeof *y * (size_t)(ROWS * n));
        test_rng r = {9};
        for (int64_t i = 0; i < ROWS * n; i++) x[i] = (float)test_below(&r, 100) * 0.1f;
        rp__space_access a[2] = {{.base = x, .stride = {n, 1}}, {.base = y, .stride = {n, 1}}};
        rp__space s = {.dims = {1, 1}, .extent = {ROWS, n}, .n_accesses = 2, .accesses = a};
        test_run(&device, dag, &s, NULL);
        a[1].base = x;
        test_run(&device, dag, &s, NULL);
        assert_memory_equal(x, y, sizeof *x * (size_t)(ROWS * n));
        free(x);
        free(y);
    }
    rp__dag_release(dag);
}

static void empty_spaces(void **state) {
    (void)state;
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, RP_F32, false);
    store_new(b, RP_F32, rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW), true);
    store_new(b, RP_F32, rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW), true);
    rp__dag *dag = rp__dag_finish(b);
    float sum[3] = {5, 5, 5}, max[3] = {5, 5, 5}, none = 0;
    rp__space_access a[3] = {
        {.base = &none, .stride = {0, 1}}, {.base = sum, .stride = {1, 0}}, {.base = max, .stride = {1, 0}}};
    rp__space s = {.dims = {1, 1}, .extent = {3, 0}, .n_accesses = 3, .accesses = a};
    test_run(&device, dag, &s, NULL);
    for (int i = 0; i < 3; i++) assert_true(sum[i] == 0 && max[i] == -INFINITY);
    s.extent[0] = 0;
    s.extent[1] = 4;
    test_run(&device, dag, &s, NULL);
    rp__dag_release(dag);
}

/* One launch over many tensors equals a launch each. */
static rp__dag *adam(void) {
    rp__dag_builder *b = rp__dag_new();
    uint16_t p = rp__dag_access(b, RP__ACCESS_READ_WRITE, RP_F32, RP__ELEMENTS),
             g = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS);
    uint16_t m = rp__dag_access(b, RP__ACCESS_READ_WRITE, RP_F32, RP__ELEMENTS),
             v = rp__dag_access(b, RP__ACCESS_READ_WRITE, RP_F32, RP__ELEMENTS);
    rp__val lr = rp__dag_scalar_value(b, rp__dag_scalar(b), RP_F32),
            beta = rp__dag_scalar_value(b, rp__dag_scalar(b), RP_F32);
    rp__val one = rp__dag_const(b, RP_F32, test_f(1)), rest = op2(b, RP__SUB, one, beta);
    rp__val grad = rp__dag_load(b, g, NONE, NONE);
    rp__val m1 = op2(b, RP__ADD, op2(b, RP__MUL, rp__dag_load(b, m, NONE, NONE), beta), op2(b, RP__MUL, grad, rest));
    rp__val v1 = op2(b, RP__ADD, op2(b, RP__MUL, rp__dag_load(b, v, NONE, NONE), beta),
                     op2(b, RP__MUL, op2(b, RP__MUL, grad, grad), rest));
    rp__val step = op2(b, RP__DIV, op2(b, RP__MUL, lr, m1),
                       op2(b, RP__ADD, op1(b, RP__SQRT, v1), rp__dag_const(b, RP_F32, test_f(1e-8))));
    rp__dag_store(b, m, m1);
    rp__dag_store(b, v, v1);
    rp__dag_store(b, p, op2(b, RP__SUB, rp__dag_load(b, p, NONE, NONE), step));
    return rp__dag_finish(b);
}
static void many_tensors(void **state) {
    (void)state;
    enum { GROUPS = 300 };
    rp__dag *dag = adam();
    assert_non_null(dag);
    static rp__space_access a[GROUPS * 4], b[GROUPS * 4];
    int64_t extents[GROUPS];
    test_rng r = {11};
    for (int g = 0; g < GROUPS; g++) {
        extents[g] = g == 17 ? 0 : (int64_t)test_below(&r, g % 50 == 0 ? 9000 : 300);
        for (int k = 0; k < 4; k++) {
            float *x = malloc(sizeof *x * (size_t)(extents[g] + 1)), *y = malloc(sizeof *y * (size_t)(extents[g] + 1));
            for (int64_t i = 0; i < extents[g]; i++) x[i] = y[i] = (float)test_below(&r, 1000) * 0.01f;
            a[g * 4 + k] = (rp__space_access){.base = x, .stride = {1}};
            b[g * 4 + k] = (rp__space_access){.base = y, .stride = {1}};
        }
    }
    rp_scalar scalars[2] = {test_f(0.01), test_f(0.9)};
    rp__space s = {.dims = {1}, .n_accesses = 4, .n_scalars = 2, .scalars = scalars, .op = "adam", .site = "here"};
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    rp__launch l;
    memset(&l, 0, sizeof l);
    assert_int_equal(rp__loop_bind_many(&device.device, dag, &s, a, extents, GROUPS, buffer, &l), RP_OK);
    assert_int_equal(l.n_slots, GROUPS * 4);
    for (unsigned i = 0; i < l.n_slots; i++) assert_true(l.words[l.slots[i].word] == (uint64_t)(uintptr_t)a[i].base);
    for (int64_t at = 0; at < l.items;) { /* any slicing */
        int64_t n = 1 + (int64_t)test_below(&r, 9);
        if (n > l.items - at) n = l.items - at;
        atomic_load (&l.kernel->cpu)(l.kernel, l.words, at, at + n);
        at += n;
    }
    for (int g = 0; g < GROUPS; g++) {
        rp__space one = s;
        one.extent[0] = extents[g];
        one.accesses = &b[g * 4];
        test_run(&device, dag, &one, NULL);
        for (int k = 0; k < 4; k++) {
            assert_memory_equal(a[g * 4 + k].base, b[g * 4 + k].base, sizeof(float) * (size_t)extents[g]);
            free(a[g * 4 + k].base);
            free(b[g * 4 + k].base);
        }
    }
    rp__dag_release(dag);
}

/* Philox4x32-10 as published (Salmon et al., SC11). */
static void philox(uint64_t seed, uint64_t counter, uint32_t out[4]) {
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0},
             k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int r = 0; r < 10; r++) {
        uint64_t p0 = (uint64_t)c[0] * 0xD2511F53u, p1 = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t n[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c[3] ^ k[1],
                         (uint32_t)p0};
        memcpy(c, n, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}
static void random_numbers(void **state) {
    (void)state;
    uint32_t w[4];
    philox(0, 0, w);
    assert_int_equal(w[0], 0x6627e8d5);
    assert_int_equal(w[3], 0x9b00dbd8);
    rp__dag_builder *b = rp__dag_new();
    rp__val i = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
    store_new(b, RP_I64, rp__dag_op_imm(b, RP__PHILOX, RP_I64, i, 0), false);
    store_new(b, RP_I64, rp__dag_op_imm(b, RP__PHILOX64, RP_I64, i, 0), false);
    store_new(b, RP_F32, rp__dag_op_imm(b, RP__PHILOX_NORMAL, RP_F32, i, 1), false);
    rp__dag *dag = rp__dag_finish(b);
    assert_int_equal(dag->n_draws, 2);
    enum { N = 1003 };
    static int64_t bits[N], wide[N];
    static float normal[N];
    uint64_t saved[2] = {77, 1000}; /* of a capture: seed, base */
    rp__random_draw draws[2] = {{NULL, 42, 5}, {saved, 1, 6}};
    rp__space_access a[4];
    memset(a, 0, sizeof a);
    a[0] = (rp__space_access){.iota_base = 2, .stride = {1}};
    a[1] = (rp__space_access){.base = bits, .stride = {1}};
    a[2] = (rp__space_access){.base = wide, .stride = {1}};
    a[3] = (rp__space_access){.base = normal, .stride = {1}};
    rp__space s = space_1d(N, a, 4);
    s.draw = draws;
    s.n_draws = 2;
    test_run(&device, dag, &s, NULL);
    for (uint64_t e = 2; e < N + 2; e++) {
        philox(42, 5 + e / 4, w);
        assert_int_equal((uint64_t)bits[e - 2], w[e % 4]);
        philox(42, 5 + e / 2, w);
        assert_int_equal((uint64_t)wide[e - 2], (uint64_t)w[e % 2 * 2] << 32 | w[e % 2 * 2 + 1]);
        philox(77, 1006 + e / 4, w);
        double u1 = (w[e % 4 / 2 * 2] + 1.0) * 0x1p-32, u2 = w[e % 4 / 2 * 2 + 1] * 0x1p-32;
        double z =
            sqrt(-2 * log(u1)) * (e % 2 ? sin(2 * 3.14159265358979323846 * u2) : cos(2 * 3.14159265358979323846 * u2));
        assert_true(fabs(normal[e - 2] - z) <= 1e-7 * fabs(z) + 1e-9);
    }
    rp__dag_release(dag);
}

/* Every allocation fails once: an error each time, nothing lost, and it works in the end. */
static void failing_allocations(void **state) {
    (void)state;
    (void)rp__launch_buffer_get();
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {0};
    rp__space_access a[2] = {{.base = x, .stride = {1}}, {.base = y, .stride = {1}}};
    rp__space s = {.dims = {0, 1}, .extent = {8}, .n_accesses = 2, .accesses = a};
    uint64_t before = rp__alloc_live();
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        assert_true(n < 1000);
        rp__alloc_fail_at(n);
        rp__dag *dag = softmax();
        rp__launch l;
        memset(&l, 0, sizeof l);
        rp_status status =
            dag ? rp__cpu_loops.bind(&device.device, dag, &s, rp__launch_buffer_get(), &l) : RP_ERROR_OUT_OF_MEMORY;
        rp__alloc_fail_at(0);
        if (status == RP_OK) {
            done = !rp_failed();
            atomic_load (&l.kernel->cpu)(l.kernel, l.words, 0, l.items);
        } else {
            assert_int_equal(status, RP_ERROR_OUT_OF_MEMORY);
            assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
        }
        rp__dag_release(dag);
        assert_int_equal(rp__alloc_live(), before);
    }
    assert_true(fabsf(y[7] - 0.63233276f) < 1e-6f);
}

int main(void) {
    test_device_init(&device);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_stable),
        cmocka_unit_test(equal_dags_are_one),
        cmocka_unit_test(folding),
        cmocka_unit_test(misuse_is_sticky),
        cmocka_unit_test(collapsing),
        cmocka_unit_test(order_of_dims),
        cmocka_unit_test(gather_and_scatter),
        cmocka_unit_test(places_of_nothing),
        cmocka_unit_test(kept_in_another_order),
        cmocka_unit_test(slices_of_stretches),
        cmocka_unit_test(dead_numbers_move_nothing),
        cmocka_unit_test(writing_over_an_operand),
        cmocka_unit_test(softmax_in_place),
        cmocka_unit_test(empty_spaces),
        cmocka_unit_test(many_tensors),
        cmocka_unit_test(random_numbers),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
