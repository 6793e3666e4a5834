/* ctest: labels=cuda timeout=600 cost=80 */
/* Loop kernels on CUDA against the CPU: every template, the classes of layouts and sizes that choose it, and the rule that the
   order of a reduction is a function of its length alone (contiguous, transposed and split rows give the same bits). Runs on the
   emulator; with REPRISE_TEST_CUDA=real on a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/cuda/emit.h"
#include "support/cuda.h"
#include "support/loops.h"
#include "tensor/tensor.h"

enum { MOST = 8 };

/* One operand of a kernel: the same bytes on both devices. */
typedef struct operand {
    int64_t offset, elements; /* the array in memory: access starts at `offset` elements */
    int64_t stride[RP__SPACE_MAX_DIMS];
} operand;

typedef struct problem {
    rp__dag *dag;
    unsigned n_outer, n_inner;
    int64_t extent[RP__SPACE_MAX_DIMS];
    operand operands[MOST];
    rp_scalar scalars[4];
    struct rp__random_draw draw;
    rp__space_window windows[4];
    rp__schedule how; /* all zero: as the backend chooses */
} problem;

static size_t element_bytes(const problem *p, unsigned k) {
    return rp__dtype_bytes((rp_dtype)p->dag->accesses[k].dtype);
}

static void fill_operand(unsigned char *to, rp_dtype dtype, int64_t n, uint64_t seed) {
    test_rng r = {seed};
    for (int64_t i = 0; i < n; i++) {
        double x = (double)(int64_t)(test_next(&r) >> 11) * 0x1p-53 * 4.0 - 2.0;
        rp_scalar s = rp__dtype_is_float(dtype) ? rp_f64(x)
                      : dtype == RP_BOOL        ? rp_bool(x > 0)
                                                : rp_i64((int64_t)(fabs(x) * 20));
        rp__scalar_store(s, dtype, to + (size_t)i * rp__dtype_bytes(dtype));
    }
}

static bool in_one;             /* launch, where there may be several */
static const char *wanted_text; /* NULL, or what the source of the next kernels has to have in it */

/* Runs the problem on a device; out[k] gets the bytes of every operand afterwards. */
static void run(rp_device id, const problem *p, unsigned char **out) {
    rp__device *d = rp__device_get(id);
    if (!d) fail_msg("%s", rp_error_message());
    rp_stream *s = rp__current_stream(d);
    rp__storage *storage[MOST];
    rp__space_access access[MOST];
    memset(access, 0, sizeof access);
    for (unsigned k = 0; k < p->dag->n_accesses; k++) {
        size_t bytes = (size_t)p->operands[k].elements * element_bytes(p, k);
        memcpy(access[k].stride, p->operands[k].stride, sizeof access[k].stride);
        storage[k] = NULL;
        access[k].iota_base = p->operands[k].offset;
        if (p->dag->accesses[k].kind == RP__ACCESS_IOTA) continue;
        storage[k] = rp__storage_new(d, s, bytes ? bytes : 1);
        assert_non_null(storage[k]);
        fill_operand(out[k], (rp_dtype)p->dag->accesses[k].dtype, p->operands[k].elements, 77 + k);
        if (p->dag->accesses[k].kind == RP__ACCESS_WRITE) memset(out[k], 0xee, bytes);
        assert_int_equal(d->ops->copy_in(d, s, storage[k]->data, out[k], bytes), RP_OK);
        access[k].storage = storage[k];
        access[k].base = (char *)storage[k]->data + (size_t)p->operands[k].offset * element_bytes(p, k);
        access[k].end = (int64_t)bytes;
    }
    struct rp__random_draw draw = p->draw;
    rp__space_window windows[4];
    memcpy(windows, p->windows, sizeof windows);
    rp__space space = {.dims = {(uint8_t)p->n_outer, (uint8_t)p->n_inner},
                       .n_accesses = p->dag->n_accesses,
                       .n_scalars = p->dag->n_scalars,
                       .accesses = access,
                       .windows = windows,
                       .scalars = p->scalars,
                       .draw = &draw,
                       .n_draws = p->dag->n_draws,
                       .how = &p->how,
                       .op = "test",
                       .site = "test_cuda_loops.c"};
    memcpy(space.extent, p->extent, sizeof space.extent);
    if (wanted_text && id.type == RP_DEVICE_CUDA) { /* of the template that is meant to serve */
        rp__text text = {0};
        if (d->ops->loops->source(d, p->dag, &space, &text) != RP_OK) fail_msg("%s", rp_error_message());
        if (!strstr(text.data, wanted_text))
            fail_msg("no %s: extents %lld %lld %lld, strides of operand 0 %lld %lld %lld", wanted_text,
                     (long long)space.extent[0], (long long)space.extent[1], (long long)space.extent[2],
                     (long long)access[0].stride[0], (long long)access[0].stride[1], (long long)access[0].stride[2]);
        rp__text_free(&text);
    }
    if ((in_one ? rp__loop_launch_one : rp__loop_launch)(d, s, p->dag, &space) != RP_OK)
        fail_msg("%s", rp_error_message());
    for (unsigned k = 0; k < p->dag->n_accesses; k++) {
        if (!storage[k]) continue;
        size_t bytes = (size_t)p->operands[k].elements * element_bytes(p, k);
        if (d->ops->copy_out(d, s, out[k], storage[k]->data, bytes) != RP_OK) fail_msg("%s", rp_error_message());
        rp__storage_release(storage[k]);
    }
}

static void make_room(const problem *p, unsigned char **out) {
    for (unsigned k = 0; k < p->dag->n_accesses; k++) {
        out[k] = calloc((size_t)p->operands[k].elements + 1, 8);
        assert_non_null(out[k]);
    }
}
static void free_room(const problem *p, unsigned char **out) {
    for (unsigned k = 0; k < p->dag->n_accesses; k++) free(out[k]);
}

static double as_double(rp_dtype dtype, const unsigned char *at) { return rp__scalar_f64(rp__scalar_load(dtype, at)); }

/* CPU and CUDA agree within `ulps` units of the storage type (0: same bits), relative to the largest of a row of results. */
static void compare(const problem *p, double tolerance) {
    unsigned char *cpu[MOST], *cuda[MOST];
    make_room(p, cpu);
    make_room(p, cuda);
    run(rp_cpu(), p, cpu);
    run(rp_cuda(0), p, cuda);
    for (unsigned k = 0; k < p->dag->n_accesses; k++) {
        rp_dtype dtype = (rp_dtype)p->dag->accesses[k].dtype;
        size_t bytes = element_bytes(p, k);
        if (p->dag->accesses[k].kind == RP__ACCESS_READ || p->dag->accesses[k].kind == RP__ACCESS_IOTA) continue;
        for (int64_t i = 0; i < p->operands[k].elements; i++) {
            const unsigned char *a = cpu[k] + (size_t)i * bytes, *b = cuda[k] + (size_t)i * bytes;
            if (memcmp(a, b, bytes) == 0) continue;
            double x = as_double(dtype, a), y = as_double(dtype, b);
            if (isnan(x) && isnan(y)) continue;
            if (!(fabs(x - y) <= tolerance * fmax(1.0, fabs(x))))
                fail_msg("operand %u element %lld: cpu %.9g cuda %.9g", k, (long long)i, x, y);
        }
    }
    free_room(p, cpu);
    free_room(p, cuda);
}

static void set_row_major(problem *p, unsigned k, unsigned first, unsigned last) { /* dims [first, last) */
    int64_t stride = 1;
    memset(p->operands[k].stride, 0, sizeof p->operands[k].stride);
    for (unsigned d = last; d-- > first;) {
        p->operands[k].stride[d] = stride;
        stride *= p->extent[d];
    }
    p->operands[k].elements = stride;
}

/* ---- pointwise ---- */

static rp__dag *pointwise_dag(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, dtype, false), y = load_new(b, dtype, false);
    const bool truth = dtype == RP_BOOL;
    store_new(b, dtype, op2(b, truth ? RP__XOR : RP__ADD, op2(b, truth ? RP__AND : RP__MUL, x, y), x), false);
    return rp__dag_finish(b);
}

static void test_pointwise(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I32, RP_I64, RP_U8, RP_I8, RP_I16};
    static const int64_t sizes[] = {0, 1, 3, 4, 255, 256, 1024, 5000};
    (void)state;
    for (unsigned t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            problem p = {.dag = pointwise_dag(dtypes[t]), .n_outer = 1, .extent = {sizes[n]}};
            assert_non_null(p.dag);
            for (unsigned k = 0; k < 3; k++) set_row_major(&p, k, 0, 1);
            compare(&p, 0);
            for (unsigned k = 0; k < 3; k++) { /* off the vector alignment */
                p.operands[k].offset = 1;
                p.operands[k].elements++;
            }
            compare(&p, 0);
            rp__dag_release(p.dag);
        }
}

static void test_pointwise_layouts(void **state) {
    (void)state;
    problem p = {.dag = pointwise_dag(RP_F32), .n_outer = 3, .extent = {5, 6, 8}};
    for (unsigned k = 0; k < 3; k++) set_row_major(&p, k, 0, 3);
    memset(p.operands[1].stride, 0, sizeof p.operands[1].stride); /* a row broadcast over the outer dims */
    p.operands[1].stride[2] = 1;
    p.operands[1].elements = 8;
    compare(&p, 0);
    p.operands[0].stride[1] = 1; /* one operand transposed */
    p.operands[0].stride[2] = 6;
    compare(&p, 0);
    p.operands[1].stride[2] = 0; /* a scalar */
    compare(&p, 0);
    p.n_outer = 0; /* rank 0 */
    compare(&p, 0);
    rp__dag_release(p.dag);
}

/* Dims of operand k lie in memory in the order `order`, outermost first, with a gap behind the innermost. */
static void set_order(problem *p, unsigned k, const unsigned *order, unsigned n, int64_t gap) {
    int64_t stride = 1;
    for (unsigned i = n; i-- > 0;) {
        p->operands[k].stride[order[i]] = stride;
        stride = stride * p->extent[order[i]] + (i + 1 == n ? gap : 0);
    }
    p->operands[k].elements = stride;
}

/* Operands that disagree about which dim is contiguous, of two to five dims, of whole and broken tiles and vectors, off the alignment,
 * long along one side only: read, written, or both, through shared memory. */
static void test_tiles(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_U8, RP_F64, RP_F16, RP_BOOL, RP_I16};
    static const int64_t sizes[][2] = {{64, 128}, {65, 131}, {3, 1500}, {1000, 5}, {100, 52}, {8, 300}};
    (void)state;
    for (unsigned t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            if (t > 2 && n > 1 && !test_cuda_is_real()) continue;
            problem p = {.dag = pointwise_dag(dtypes[t]), .n_outer = 2, .extent = {sizes[n][0], sizes[n][1]}};
            assert_non_null(p.dag);
            const int64_t side = sizes[n][0] < sizes[n][1] ? sizes[n][0] : sizes[n][1];
            wanted_text = side * (int64_t)element_bytes(&p, 0) < 8 ? NULL : "__shared__"; /* else caches serve */
            for (unsigned way = 0; way < 4; way++) { /* bit k: operand k lies the other way round */
                static const unsigned turned[] = {1, 3, 4, 5}, plain[2] = {0, 1}, across[2] = {1, 0};
                if (way > 1 && (n > 2 || t > 1) && !test_cuda_is_real()) continue;
                for (unsigned k = 0; k < 3; k++)
                    set_order(&p, k, turned[way] >> k & 1 ? across : plain, 2, way == 2 ? 3 : 0);
                compare(&p, 0);
            }
            p.operands[0].offset = 1;
            p.operands[0].elements++;
            compare(&p, 0);
            rp__dag_release(p.dag);
        }
    static const unsigned orders[][5] = {
        {0, 1, 2, 3, 4}, {0, 2, 3, 1, 4}, {4, 2, 1, 3, 0}, {3, 0, 4, 1, 2}, {1, 4, 2, 0, 3}};
    problem p = {.dag = pointwise_dag(RP_F32), .n_outer = 5, .extent = {16, 3, 18, 2, 20}};
    for (unsigned o = 0; o < 5; o++) {
        wanted_text = o > 1 ? "__shared__" : NULL;
        for (unsigned k = 0; k < 3; k++) set_order(&p, k, orders[k == 1 ? 0 : k == 0 ? o : 2], 5, 0);
        if (o == 3) memset(p.operands[1].stride, 0, sizeof p.operands[1].stride); /* one value for all points */
        compare(&p, 0);
    }
    rp__dag_release(p.dag);
    wanted_text = NULL;
    rp__dag_builder *b =
        rp__dag_new(); /* in place, across the other operand; places are counted by the rows of neither */
    const uint16_t own = rp__dag_access(b, RP__ACCESS_READ_WRITE, RP_F32, RP__ELEMENTS);
    const uint16_t number = rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS);
    rp__val x = op2(b, RP__ADD, rp__dag_load(b, own, NONE, NONE), load_new(b, RP_F32, false));
    rp__dag_store(b, own, op2(b, RP__ADD, x, rp__dag_cast(b, rp__dag_iota(b, number), RP_F32)));
    problem q = {.dag = rp__dag_finish(b), .n_outer = 2, .extent = {70, 90}};
    wanted_text = "__shared__";
    for (unsigned k = 0; k < 3; k++) set_order(&q, k, (unsigned[2]){k == 0, k != 0}, 2, 0);
    q.operands[2].stride[0] = 91;
    q.operands[2].elements = 70 * 91;
    compare(&q, 0);
    rp__dag_release(q.dag);
    wanted_text = NULL;
}

/* Rows that lie side by side in memory, with values of theirs that elements ask for: softmax and a norm over a dim that is not the last. */
static rp__dag *softmax_dag(rp_dtype dtype);
static void test_column_phases(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F64};
    static const int64_t sizes[][3] = {{3, 21, 60},  {1, 700, 64}, {2, 130, 33}, {2, 1500, 12}, {1, 5000, 10},
                                       {2, 150, 64}, {3, 96, 196}, {2, 33, 17},  {1, 1024, 24}, {40, 5, 8}};
    (void)state;
    wanted_text = "ty + ";
    for (unsigned t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            const int64_t r = sizes[n][1], beside = sizes[n][2];
            problem p = {.dag = softmax_dag(dtypes[t]), .n_outer = 2, .n_inner = 1, .extent = {sizes[n][0], beside, r}};
            assert_non_null(p.dag);
            for (unsigned k = 0; k < 2; k++)
                p.operands[k] = (operand){.elements = sizes[n][0] * r * beside, .stride = {r * beside, 1, beside}};
            compare(&p, t == 0 ? 2e-6 : t == 1 ? 1e-2 : 1e-14);
            rp__dag_release(p.dag);
        }
    wanted_text = NULL;
}

static void test_functions(void **state) {
    static const rp__prim ops[] = {
#define RP_MATH1(prim, f, cost) RP__##prim,
#define RP_MATH2(prim, f, cost)
#include "kernel/prims.def"
        RP__SIGMOID, RP__ABS, RP__SIGN, RP__NEG, RP__RECIP, RP__RSQRT, RP__ERFP1};
    (void)state;
    for (unsigned t = 0; t < 2; t++)
        for (unsigned k = 0; k < sizeof ops / sizeof *ops; k++) {
            rp_dtype dtype = t ? RP_F64 : RP_F32;
            rp__dag_builder *b = rp__dag_new();
            rp__val x = load_new(b, dtype, false);
            if (ops[k] == RP__ERFP1)
                x = op2(b, RP__MUL, x, rp__dag_const(b, dtype, test_f(4))); /* to where it is 0 and 2 */
            store_new(b, dtype, op1(b, ops[k], x), false);
            problem p = {.dag = rp__dag_finish(b), .n_outer = 1, .extent = {700}};
            set_row_major(&p, 0, 0, 1);
            set_row_major(&p, 1, 0, 1);
            /* of these, what docs/developers/vmath.md bounds: 20 and 40 units */
            const double bound = !t ? 5e-7 : ops[k] == RP__LGAMMA ? 4.5e-15 : ops[k] == RP__DIGAMMA ? 9e-15 : 1e-15;
            compare(&p, bound);
            rp__dag_release(p.dag);
        }
}

static void test_gather_and_errors(void **state) {
    (void)state;
    rp__dag_builder *b = rp__dag_new();
    uint16_t table = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS);
    uint16_t bound = rp__dag_scalar(b), stride = rp__dag_scalar(b);
    rp__val index = load_new(b, RP_I64, false);
    rp__val checked = rp__dag_op(b, RP__CHECK_INDEX, index, rp__dag_scalar_value(b, bound, RP_I64), 0);
    rp__val offset = op2(b, RP__MUL, checked, rp__dag_scalar_value(b, stride, RP_I64));
    store_new(b, RP_F32, rp__dag_load(b, table, offset, NONE), false);
    problem p = {.dag = rp__dag_finish(b), .n_outer = 2, .extent = {7, 5}, .scalars = {test_i(50), test_i(5)}};
    assert_non_null(p.dag);
    p.operands[0].elements = 50 * 5;
    p.operands[0].stride[1] = 1;
    p.operands[1].elements = 7;
    p.operands[1].stride[0] = 1;
    set_row_major(&p, 2, 0, 2);
    compare(&p, 0);
    /* a bound that some index passes: the device's record says which op */
    p.scalars[0] = test_i(3);
    unsigned char *out[MOST];
    make_room(&p, out);
    rp__device *d = rp__device_get(rp_cuda(0));
    rp_stream *s = rp__current_stream(d);
    rp__storage *storage[3];
    rp__space_access access[3];
    memset(access, 0, sizeof access);
    for (unsigned k = 0; k < 3; k++) {
        size_t bytes = (size_t)p.operands[k].elements * element_bytes(&p, k);
        storage[k] = rp__storage_new(d, s, bytes);
        fill_operand(out[k], (rp_dtype)p.dag->accesses[k].dtype, p.operands[k].elements, 77 + k);
        assert_int_equal(d->ops->copy_in(d, s, storage[k]->data, out[k], bytes), RP_OK);
        access[k].storage = storage[k];
        access[k].base = storage[k]->data;
        access[k].end = (int64_t)bytes;
        memcpy(access[k].stride, p.operands[k].stride, sizeof access[k].stride);
    }
    rp__space space = {.dims = {2},
                       .n_accesses = 3,
                       .n_scalars = 2,
                       .accesses = access,
                       .scalars = p.scalars,
                       .op = "embedding",
                       .site = "here:1"};
    memcpy(space.extent, p.extent, sizeof space.extent);
    assert_int_equal(rp__loop_launch(d, s, p.dag, &space), RP_OK);
    assert_int_equal(rp_synchronize(rp_cuda(0)), RP_ERROR_INDEX);
    assert_non_null(strstr(rp_error_message(), "embedding"));
    assert_int_equal(rp_error_take(), RP_ERROR_INDEX);
    assert_int_equal(rp_synchronize(rp_cuda(0)), RP_OK);
    for (unsigned k = 0; k < 3; k++) rp__storage_release(storage[k]);
    free_room(&p, out);
    rp__dag_release(p.dag);
}

static void test_random(void **state) {
    static const rp__prim kinds[] = {RP__PHILOX, RP__PHILOX64, RP__PHILOX_NORMAL};
    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        rp__dag_builder *b = rp__dag_new();
        rp_dtype dtype = kinds[k] == RP__PHILOX_NORMAL ? RP_F32 : RP_I64;
        rp__val number = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
        store_new(b, dtype, rp__dag_op_imm(b, kinds[k], dtype, number, 0), false);
        problem p = {.dag = rp__dag_finish(b), .n_outer = 2, .extent = {13, 21}, .draw = {.seed = 12345, .inner = 99}};
        assert_non_null(p.dag);
        set_row_major(&p, 0, 0, 2);
        set_row_major(&p, 1, 0, 2);
        compare(&p, kinds[k] == RP__PHILOX_NORMAL ? 3e-7 : 0);
        rp__dag_release(p.dag);
    }
}

/* ---- rows ---- */

static rp__dag *softmax_dag(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, dtype, false);
    rp__val e = op1(b, RP__EXP, op2(b, RP__SUB, x, rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW)));
    store_new(b, dtype, op2(b, RP__DIV, e, rp__dag_reduce(b, RP__REDUCE_SUM, e, RP__ALONG_ROW)), false);
    return rp__dag_finish(b);
}

static rp__dag *sum_dag(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, dtype, false);
    rp__val s = rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW),
            m = rp__dag_reduce(b, RP__REDUCE_MAX, op1(b, RP__NEG, x), RP__ALONG_ROW);
    store_new(b, dtype == RP_I32 ? RP_I64 : dtype, s, true);
    store_new(b, dtype, m, true);
    return rp__dag_finish(b);
}

static const int64_t lengths[] = {0, 1, 3, 4, 7, 31, 128, 129, 1000, 1024, 2048, 4100, 16384, 16388, 40000};

static void test_rows(void **state) {
    (void)state;
    for (unsigned t = 0; t < 3; t++)
        for (unsigned n = 0; n < sizeof lengths / sizeof *lengths; n++) {
            rp_dtype dtype = t == 0 ? RP_F32 : t == 1 ? RP_BF16 : RP_F64;
            problem p = {.dag = softmax_dag(dtype),
                         .n_outer = 1,
                         .n_inner = 1,
                         .extent = {lengths[n] > 5000 ? 2 : 5, lengths[n]}};
            assert_non_null(p.dag);
            set_row_major(&p, 0, 0, 2);
            set_row_major(&p, 1, 0, 2);
            compare(&p, t == 0 ? 2e-6 : t == 1 ? 1e-2 : 1e-14);
            rp__dag_release(p.dag);
        }
}

/* layer norm and softmax, with a weight for all rows */
static rp__dag *norm_dag(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, dtype, false), w = load_new(b, dtype, false);
    rp__val d = op2(b, RP__SUB, x, rp__dag_reduce(b, RP__REDUCE_SUM, op1(b, RP__ERFP1, x), RP__ALONG_ROW));
    rp__val y =
        op2(b, RP__MUL, op2(b, RP__MUL, d, rp__dag_reduce(b, RP__REDUCE_SUM, op2(b, RP__MUL, d, d), RP__ALONG_ROW)), w);
    rp__val m = rp__dag_reduce(b, RP__REDUCE_MAX, y, RP__ALONG_ROW),
            n = rp__dag_reduce(b, RP__REDUCE_MIN, op1(b, RP__NEG, y), RP__ALONG_ROW);
    store_new(b, dtype, op1(b, RP__EXP, op2(b, RP__DIV, y, m)), false);
    store_new(b, dtype, op2(b, RP__ADD, m, n), true);
    return rp__dag_finish(b);
}

static void one_multiprocessor(rp__device *d) { d->multiprocessors = 1; }
static void no_clusters(rp__device *d) { d->clusters = false; }

/* A norm of `rows` rows of r elements: the same bits on the device as it is and on a changed one. */
static void same_bits(rp_dtype dtype, int64_t rows, int64_t r, void (*change)(rp__device *)) {
    rp__device *d = rp__device_get(rp_cuda(0));
    assert_non_null(d);
    const int multiprocessors = d->multiprocessors;
    const bool clusters = d->clusters;
    problem p = {.dag = norm_dag(dtype), .n_outer = 1, .n_inner = 1, .extent = {rows, r}};
    assert_non_null(p.dag);
    set_row_major(&p, 0, 0, 2);
    set_row_major(&p, 1, 1, 2);
    set_row_major(&p, 2, 0, 2);
    set_row_major(&p, 3, 0, 1);
    unsigned char *plain[MOST], *changed[MOST];
    make_room(&p, plain);
    make_room(&p, changed);
    run(rp_cuda(0), &p, plain);
    change(d);
    run(rp_cuda(0), &p, changed);
    d->multiprocessors = multiprocessors;
    d->clusters = clusters;
    for (unsigned k = 2; k < 4; k++)
        assert_memory_equal(plain[k], changed[k], (size_t)p.operands[k].elements * element_bytes(&p, k));
    free_room(&p, plain);
    free_room(&p, changed);
    rp__dag_release(p.dag);
}

/* Rows that begin and end within a vector of memory: the bits of ones that are read element by element; whether one thread or several
 * blocks have a row, it begins anywhere and so does the next one. */
static void test_ragged_rows(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F16, RP_F64};
    static const int64_t sizes[] = {1030, 1411, 2047, 3001, 4095, 4096, 6007, 16383, 16387, 33333};
    static const uint8_t paths[] = {0, 1 + RP__CUDA_ROW_LOOP, 1 + RP__CUDA_SPLIT};
    (void)state;
    for (unsigned t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++)
            for (unsigned way = 0; way < 3; way++) {
                const int64_t r = sizes[n], rows = r > 5000 ? 2 : 9;
                if (way && (r < 16385 || (t > 1 && !test_cuda_is_real()))) continue;
                if (!way && !test_cuda_takes(n + t, 2)) continue;
                problem p = {.dag = norm_dag(dtypes[t]), .n_outer = 1, .n_inner = 1, .extent = {rows, r}};
                assert_non_null(p.dag);
                set_row_major(&p, 0, 0, 2);
                set_row_major(&p, 1, 1, 2);
                set_row_major(&p, 2, 0, 2);
                set_row_major(&p, 3, 0, 1);
                for (unsigned k = 0; k < 3; k += 2) { /* the last vector of memory is not whole */
                    p.operands[k].offset = r == 4096 ? 3 : n % 2;
                    p.operands[k].elements += p.operands[k].offset;
                }
                unsigned char *plain[MOST], *ragged[MOST];
                make_room(&p, plain);
                make_room(&p, ragged);
                p.how.path = paths[way];
                wanted_text = "const int shift = (int)";
                run(rp_cuda(0), &p, ragged);
                wanted_text = NULL;
                p.how.flat = 1;
                run(rp_cuda(0), &p, plain);
                for (unsigned k = 2; k < 4; k++)
                    if (memcmp(plain[k], ragged[k], (size_t)p.operands[k].elements * element_bytes(&p, k)) != 0)
                        fail_msg("rows of %lld, type %u, way %u: other bits in vectors", (long long)r, t, way);
                free_room(&p, plain);
                free_room(&p, ragged);
                rp__dag_release(p.dag);
            }
}

/* Such rows of one warp are read element by element, 32 apart: the bits of rows that begin at whole vectors, at sizes at which the elements
 * of a thread become more; whether the device has one multiprocessor or many. */
static void test_warp_rows(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F16, RP_F64, RP_I32};
    static const int64_t sizes[] = {129, 130, 147, 159, 161, 191, 255, 257, 319,  322,
                                    511, 513, 639, 641, 770, 895, 897, 993, 1021, 1023};
    (void)state;
    for (unsigned t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            const int64_t r = sizes[n], rows = 11, apart = (r + 3) / 4 * 4;
            if (!test_cuda_takes(n + t, 2)) continue;
            problem p = {.dag = dtypes[t] == RP_I32 ? sum_dag(RP_I32) : norm_dag(dtypes[t]),
                         .n_outer = 1,
                         .n_inner = 1,
                         .extent = {rows, r}};
            assert_non_null(p.dag);
            unsigned char *out[2][MOST];
            for (int vectors = 1; vectors >= 0; vectors--) {
                for (unsigned k = 0; k < p.dag->n_accesses; k++) {
                    const bool row = rp__dag_is_row(p.dag, p.dag->accesses[k].axes),
                               weight = dtypes[t] != RP_I32 && k == 1;
                    set_row_major(&p, k, weight ? 1 : 0, row ? 1 : 2);
                    if (row || weight) continue;
                    p.operands[k].elements = rows * apart;
                    p.operands[k].stride[0] = vectors ? apart : r;
                }
                make_room(&p, out[vectors]);
                wanted_text = vectors ? "const int shift = 0" : "* 32 + t";
                run(rp_cuda(0), &p, out[vectors]);
                wanted_text = NULL;
            }
            for (unsigned k = 0; k < p.dag->n_accesses; k++) { /* the first row of both is the same */
                const bool row = rp__dag_is_row(p.dag, p.dag->accesses[k].axes);
                if (memcmp(out[0][k], out[1][k], (row ? 1 : (size_t)r) * element_bytes(&p, k)) != 0)
                    fail_msg(
                        "rows of %lld, type %u: access %u begins with %02x%02x%02x%02x, in vectors with %02x%02x%02x%02x",
                        (long long)r, t, k, out[0][k][3], out[0][k][2], out[0][k][1], out[0][k][0], out[1][k][3],
                        out[1][k][2], out[1][k][1], out[1][k][0]);
            }
            free_room(&p, out[0]);
            free_room(&p, out[1]);
            rp__dag_release(p.dag);
        }
    for (unsigned n = 0; n < 3; n++) { /* whole groups that begin within a vector */
        problem p = {.dag = softmax_dag(RP_BF16), .n_outer = 1, .n_inner = 1, .extent = {5, 256 << n}};
        assert_non_null(p.dag);
        for (unsigned k = 0; k < 2; k++) {
            set_row_major(&p, k, 0, 2);
            p.operands[k].offset = 1;
            p.operands[k].elements++;
        }
        wanted_text = "* 32 + t";
        compare(&p, 1e-2);
        wanted_text = NULL;
        rp__dag_release(p.dag);
    }
}

/* Where rows are many a thread takes more of one, in wider vectors: the same bits as where they are few. */
static void test_row_shares(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F16, RP_F64};
    static const int64_t sizes[] = {1028, 1536, 2000, 2048, 2052, 3072, 4094, 4096, 5120, 9001};
    (void)state;
    for (unsigned t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++)
            if (test_cuda_takes(n + t, 2)) same_bits(dtypes[t], 5, sizes[n], one_multiprocessor);
}

/* Sums of the same rows in three layouts: the same bits; and close to the CPU's. */
static void test_order(void **state) {
    (void)state;
    for (unsigned n = 1; n < sizeof lengths / sizeof *lengths; n++)
        for (unsigned rows = 3; rows <= 40; rows += 37) {
            int64_t r = lengths[n];
            if (r > 20000 && rows > 3 && !test_cuda_is_real()) continue;
            problem p = {.dag = sum_dag(RP_F32), .n_outer = 1, .n_inner = 1, .extent = {rows, r}};
            assert_non_null(p.dag);
            unsigned char *out[3][MOST];
            for (unsigned layout = 0; layout < 3; layout++) {
                set_row_major(&p, 0, 0, 2);
                if (layout == 1) { /* rows side by side */
                    p.operands[0].stride[0] = 1;
                    p.operands[0].stride[1] = rows;
                }
                if (layout == 2) p.operands[0].offset = 1, p.operands[0].elements++; /* off the vector alignment */
                for (unsigned k = 1; k < 3; k++) {
                    memset(p.operands[k].stride, 0, sizeof p.operands[k].stride);
                    p.operands[k].stride[0] = 1;
                    p.operands[k].elements = rows;
                }
                compare(&p, 1e-5 * sqrt((double)r));
                make_room(&p, out[layout]);
                run(rp_cuda(0), &p, out[layout]);
                p.operands[0].offset = 0;
                free_room(&p, out[layout]);
            }
            /* the same values whichever way they lie: a constant operand makes the layouts equal problems */
            float *results[2];
            for (unsigned layout = 0; layout < 2; layout++) {
                rp__device *d = rp__device_get(rp_cuda(0));
                rp_stream *s = rp__current_stream(d);
                float *x = malloc((size_t)(rows * r) * sizeof *x);
                test_rng g = {5};
                for (int64_t i = 0; i < rows * r; i++) {
                    float v = (float)(test_next(&g) >> 40) * 0x1p-24f - 0.5f;
                    if (layout == 0)
                        x[i] = v;
                    else
                        x[i % r * rows + i / r] = v;
                }
                rp__storage *in = rp__storage_new(d, s, (size_t)(rows * r) * 4),
                            *sum = rp__storage_new(d, s, rows * 4u), *max = rp__storage_new(d, s, rows * 4u);
                assert_int_equal(d->ops->copy_in(d, s, in->data, x, (size_t)(rows * r) * 4), RP_OK);
                rp__space_access a[3];
                memset(a, 0, sizeof a);
                a[0] = (rp__space_access){.base = in->data,
                                          .storage = in,
                                          .end = rows * r * 4,
                                          .stride = {layout ? 1 : r, layout ? rows : 1}};
                a[1] = (rp__space_access){.base = sum->data, .storage = sum, .end = rows * 4, .stride = {1, 0}};
                a[2] = (rp__space_access){.base = max->data, .storage = max, .end = rows * 4, .stride = {1, 0}};
                rp__space space = {
                    .dims = {1, 1}, .extent = {rows, r}, .n_accesses = 3, .accesses = a, .op = "sum", .site = "here"};
                assert_int_equal(rp__loop_launch(d, s, p.dag, &space), RP_OK);
                results[layout] = malloc(rows * sizeof(float));
                assert_int_equal(d->ops->copy_out(d, s, results[layout], sum->data, rows * 4u), RP_OK);
                rp__storage_release(in);
                rp__storage_release(sum);
                rp__storage_release(max);
                free(x);
            }
            if (memcmp(results[0], results[1], rows * sizeof(float)) != 0)
                fail_msg("the sum of rows of %lld depends on their layout: %.9g and %.9g", (long long)r,
                         (double)results[0][0], (double)results[1][0]);
            free(results[0]);
            free(results[1]);
            rp__dag_release(p.dag);
        }
}

/* Sums and maxima of `rows` rows of `r` floats, which lie where the strides say. */
static void sums_of(rp__dag *dag, unsigned rows, const int64_t *extent, unsigned n_inner, const int64_t *stride,
                    const float *x, size_t n, float *out) {
    rp__device *d = rp__device_get(rp_cuda(0));
    rp_stream *s = rp__current_stream(d);
    rp__storage *in = rp__storage_new(d, s, n * 4), *sum = rp__storage_new(d, s, rows * 4u),
                *max = rp__storage_new(d, s, rows * 4u);
    assert_int_equal(d->ops->copy_in(d, s, in->data, x, n * 4), RP_OK);
    rp__space_access a[3];
    memset(a, 0, sizeof a);
    a[0] = (rp__space_access){.base = in->data, .storage = in, .end = (int64_t)n * 4};
    memcpy(a[0].stride, stride, (1 + n_inner) * sizeof *stride);
    a[1] = (rp__space_access){.base = sum->data, .storage = sum, .end = rows * 4, .stride = {1}};
    a[2] = (rp__space_access){.base = max->data, .storage = max, .end = rows * 4, .stride = {1}};
    rp__space space = {.dims = {1, (uint8_t)n_inner}, .n_accesses = 3, .accesses = a, .op = "sum", .site = "here"};
    space.extent[0] = rows;
    memcpy(space.extent + 1, extent, n_inner * sizeof *extent);
    if (rp__loop_launch(d, s, dag, &space) != RP_OK) fail_msg("%s", rp_error_message());
    assert_int_equal(d->ops->copy_out(d, s, out, sum->data, rows * 4u), RP_OK);
    assert_int_equal(d->ops->copy_out(d, s, out + rows, max->data, rows * 4u), RP_OK);
    rp__storage_release(in);
    rp__storage_release(sum);
    rp__storage_release(max);
}

/* Rows of several chunks: by a cluster or a block each, by a block a chunk, side by side in wide and in narrow stripes, and along two dims with
 * a gap between: the same bits, close to a sum in double. */
static void test_split_rows(void **state) {
    static const int64_t sizes[][2] = {{4097, 4}, {10001, 5}, {175, 400}, {1, 589824}};
    rp__device *d = rp__device_get(rp_cuda(0));
    assert_non_null(d);
    const int multiprocessors = d->multiprocessors;
    rp__dag *dag = sum_dag(RP_F32);
    (void)state;
    for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        const int64_t outer = sizes[n][0], inner = sizes[n][1], r = outer * inner, gap = inner + 4;
        const unsigned rows = outer == 1 ? 1 : 9;
        float *x = malloc((size_t)(rows * r) * 4), *beside = malloc((size_t)(rows * r) * 4),
              *gaps = calloc((size_t)(rows * outer * gap), 4), *first = malloc(rows * 8u), *other = malloc(rows * 8u);
        test_rng g = {n + 3};
        double exact = 0;
        for (int64_t i = 0; i < rows * r; i++) {
            const float v = (float)(test_next(&g) >> 40) * 0x1p-24f - 0.25f;
            x[i] = beside[i % r * rows + i / r] = gaps[i / inner * gap + i % inner] = v;
            if (i < r) exact += (double)v;
        }
        const bool clusters = d->clusters;
        for (unsigned way = 0; way < 8; way++) {
            const int64_t flat[1] = {r}, two[2] = {outer, inner};
            float *out = way ? other : first;
            d->multiprocessors = way == 1 || way == 2 ? 1 : way == 4 ? 100000 : 40;
            if (way == 1 || way > 5) d->clusters = false;
            if (way < 2 || way == 7)
                sums_of(dag, rows, flat, 1, (int64_t[]){r, 1}, x, (size_t)(rows * r), out);
            else if (way < 5)
                sums_of(dag, rows, flat, 1, (int64_t[]){1, rows}, beside, (size_t)(rows * r), out);
            else
                sums_of(dag, rows, two, 2, (int64_t[]){outer * gap, gap, 1}, gaps, (size_t)(rows * outer * gap), out);
            d->multiprocessors = multiprocessors;
            d->clusters = clusters;
            if (memcmp(out, first, rows * 8u) != 0)
                fail_msg("rows of %lld: way %u gives %.9g, not %.9g", (long long)r, way, (double)out[0],
                         (double)first[0]);
        }
        assert_true(fabs((double)first[0] - exact) < 1e-6 * (double)r);
        free(x);
        free(beside);
        free(gaps);
        free(first);
        free(other);
    }
    rp__dag_release(dag);
}

/* Rows in the registers of a cluster of blocks: the bits of one block that walks them, for rows in vectors and rows that are not
 * aligned. */
static void test_clusters(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16};
    static const int64_t sizes[] = {16385, 16388, 32768, 50257, 70000};
    (void)state;
    for (unsigned t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) same_bits(dtypes[t], 3, sizes[n], no_clusters);
}

/* Sums over the first dim with a factor a place of it, as gradients of a norm's weights are: short ones, several blocks a chunk, several
 * chunks; one column a thread and several. */
static void test_column_weights(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16};
    static const int64_t sizes[][2] = {{100, 40}, {129, 64}, {1500, 32}, {9000, 24}, {20000, 16}};
    rp__device *d = rp__device_get(rp_cuda(0));
    assert_non_null(d);
    const int multiprocessors = d->multiprocessors;
    (void)state;
    for (unsigned t = 0; t < 2; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            rp__dag_builder *b = rp__dag_new();
            rp__val x = load_new(b, dtypes[t], false), factor = load_new(b, RP_F32, false);
            store_new(b, dtypes[t], rp__dag_reduce(b, RP__REDUCE_SUM, op2(b, RP__MUL, x, factor), RP__ALONG_ROW), true);
            store_new(b, RP_F32, rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW), true);
            const int64_t r = sizes[n][0], beside = sizes[n][1];
            problem p = {.dag = rp__dag_finish(b), .n_outer = 1, .n_inner = 1, .extent = {beside, r}};
            assert_non_null(p.dag);
            p.operands[1] = (operand){.elements = r, .stride = {0, 1}};
            for (unsigned k = 2; k < 4; k++) p.operands[k] = (operand){.elements = beside, .stride = {1, 0}};
            for (int single = 0; single < 2; single++) { /* off the alignment of vectors */
                p.operands[0] = (operand){.offset = single, .elements = r * beside + single, .stride = {1, beside}};
                for (int few = 0; few < 2; few++) {
                    d->multiprocessors = few ? 1 : 300;
                    compare(&p, t ? 2e-2 : 1e-5 * sqrt((double)r));
                }
                d->multiprocessors = multiprocessors;
            }
            rp__dag_release(p.dag);
        }
}

/* Few rows that are longer than a cluster takes, with several phases and with scans: a block a chunk, a launch a phase, gives the bits of
 * one block that walks the row. */
static void test_split_phases(void **state) {
    rp__device *d = rp__device_get(rp_cuda(0));
    assert_non_null(d);
    const int multiprocessors = d->multiprocessors;
    const bool clusters = d->clusters;
    (void)state;
    for (unsigned way = 0; way < 4; way++) {
        rp__dag_builder *b = rp__dag_new();
        rp__val x = load_new(b, RP_F32, false);
        if (way == 3) {
            store_new(b, RP_F32, rp__dag_scan(b, RP__SCAN_SUM, x, RP__ALONG_ROW), false);
            store_new(b, RP_F32, rp__dag_scan(b, RP__SCAN_LOGADDEXP, op1(b, RP__COS, x), RP__ALONG_ROW), false);
        }
        rp__dag *one_scan = way == 3 ? rp__dag_finish(b) : NULL;
        if (way != 3) rp__dag_abandon(b);
        problem p = {.dag = one_scan ? one_scan : norm_dag(way == 1 ? RP_BF16 : RP_F32),
                     .n_outer = 1,
                     .n_inner = 1,
                     .extent = {2, way == 2 ? 33333 : 50000}};
        assert_non_null(p.dag);
        for (unsigned k = 0; k < p.dag->n_accesses; k++) {
            const bool row = !one_scan && k == 3, weight = !one_scan && k == 1;
            set_row_major(&p, k, weight ? 1 : 0, row ? 1 : 2);
        }
        unsigned char *one[MOST], *several[MOST];
        make_room(&p, one);
        make_room(&p, several);
        d->clusters = false;
        d->multiprocessors = 100;
        wanted_text = "chunk_ = ";
        run(rp_cuda(0), &p, several);
        wanted_text = NULL;
        d->multiprocessors = 1;
        run(rp_cuda(0), &p, one);
        d->multiprocessors = multiprocessors;
        d->clusters = clusters;
        for (unsigned k = 0; k < p.dag->n_accesses; k++)
            assert_memory_equal(one[k], several[k], (size_t)p.operands[k].elements * element_bytes(&p, k));
        free_room(&p, one);
        free_room(&p, several);
        if (one_scan) compare(&p, 1e-3);
        rp__dag_release(p.dag);
    }
}

/* The place of the largest, by two reductions one after the other. */
static rp__dag *place_dag(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, dtype, false);
    rp__val at = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
    rp__val is = op2(b, RP__EQ, x, rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW));
    rp__val place = rp__dag_op(b, RP__WHERE, is, at, rp__dag_const(b, RP_I64, rp_i64(INT64_MAX)));
    store_new(b, RP_I64, rp__dag_reduce(b, RP__REDUCE_MIN, place, RP__ALONG_ROW), true);
    return rp__dag_finish(b);
}

/* A gradient that is stored and added up, as a bias behind an activation has it, and a second sum of it times a factor a place. */
static rp__dag *gradient_dag(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    const rp_dtype sums = dtype == RP_F64 ? RP_F64 : RP_F32;
    rp__val x = load_new(b, dtype, false), factor = load_new(b, sums, false);
    rp__val y = op2(b, RP__MUL, x, op1(b, RP__COS, x));
    store_new(b, dtype, y, false);
    store_new(b, dtype, rp__dag_reduce(b, RP__REDUCE_SUM, y, RP__ALONG_ROW), true);
    store_new(b, sums, rp__dag_reduce(b, RP__REDUCE_SUM, op2(b, RP__MUL, y, factor), RP__ALONG_ROW), true);
    return rp__dag_finish(b);
}

/* A problem over columns that lie side by side; access `weight` is a number a place of a column. */
static problem columns_problem(rp__dag *dag, int weight, int64_t rows, int64_t r) {
    problem p = {.dag = dag, .n_outer = 1, .n_inner = 1, .extent = {rows, r}};
    assert_non_null(dag);
    for (unsigned k = 0; k < dag->n_accesses; k++) {
        const bool row = rp__dag_is_row(dag, dag->accesses[k].axes),
                   still = (int)k == weight || dag->accesses[k].kind == RP__ACCESS_IOTA;
        p.operands[k] = (operand){.elements = row                ? rows
                                              : (int)k == weight ? r
                                                                 : rows * r,
                                  .stride = {still ? 0 : 1, row     ? 0
                                                            : still ? 1
                                                                    : rows}};
    }
    return p;
}

/* As the device does it, and by one block a stripe in one launch: the same bits. */
static void columns_alike(const problem *p, const char *wanted, bool clusters) {
    rp__device *d = rp__device_get(rp_cuda(0));
    assert_non_null(d);
    const bool had = d->clusters;
    unsigned char *one[MOST], *several[MOST];
    make_room(p, one);
    make_room(p, several);
    d->clusters = clusters;
    wanted_text = wanted;
    run(rp_cuda(0), p, several);
    wanted_text = NULL;
    d->clusters = false;
    in_one = true;
    run(rp_cuda(0), p, one);
    in_one = false;
    d->clusters = had;
    for (unsigned k = 0; k < p->dag->n_accesses; k++)
        if (p->dag->accesses[k].kind != RP__ACCESS_IOTA &&
            memcmp(one[k], several[k], (size_t)p->operands[k].elements * element_bytes(p, k)) != 0)
            fail_msg("operand %u of %lld by %lld: other bits than of one block", k, (long long)p->extent[1],
                     (long long)p->extent[0]);
    free_room(p, one);
    free_room(p, several);
}

/* Columns of several phases, few of them or long ones: parts of a chunk a block, a launch a phase, give the bits of one launch. */
static void test_split_columns(void **state) {
    static const int64_t sizes[][2] = {{1025, 8},   {1500, 17},  {4097, 15},   {9000, 64},  {16384, 9}, {16385, 8},
                                       {20000, 15}, {33000, 12}, {33000, 136}, {2500, 301}, {8192, 40}};
    (void)state;
    for (unsigned t = 0; t < 5; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F64, RP_F32, RP_BF16};
            const int64_t r = sizes[n][0], rows = sizes[n][1];
            if ((t == 2 || r * rows > 1000000) && !test_cuda_takes(n + t, 3)) continue;
            const problem p =
                columns_problem(t < 3 ? norm_dag(dtypes[t]) : place_dag(dtypes[t]), t < 3 ? 1 : -1, rows, r);
            /* many columns fill a large device by themselves */
            columns_alike(&p, r > 2000 && rows < 200 ? "rp_split_column_" : NULL, false);
            if (t >= 3) compare(&p, 0);
            rp__dag_release(p.dag);
        }
}

/* Parts of a column by the blocks of a cluster, walked or held in registers, and what is stored in the walk that adds up, by one block, a
 * cluster, and several of a chunk. */
static void test_cluster_columns(void **state) {
    static const int64_t sizes[][2] = {{300, 16},  {1024, 40},  {1025, 17},   {1500, 1030}, {3000, 64},
                                       {9000, 24}, {16384, 48}, {20000, 136}, {40000, 9},   {1024, 3072}};
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F64};
    unsigned clusters = 0;
    (void)state;
    for (unsigned t = 0; t < 9; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            const int64_t r = sizes[n][0], rows = sizes[n][1];
            if ((t % 3 == 2 || r * rows > 1000000) && !test_cuda_takes(n + t, 4)) continue;
            const rp_dtype dtype = dtypes[t % 3];
            const problem p = columns_problem(t < 3   ? gradient_dag(dtype)
                                              : t < 6 ? norm_dag(dtype)
                                                      : place_dag(dtype),
                                              t < 6 ? 1 : -1, rows, r);
            const bool cluster = r > 1024 && r <= 4096 && rows <= 64;
            clusters += cluster;
            columns_alike(&p, cluster ? "rp_cluster_column_" : NULL, true);
            if (t < 3 || t >= 6) compare(&p, t >= 6 ? 0 : dtype == RP_BF16 ? 2e-2 : 1e-5 * sqrt((double)r));
            rp__dag_release(p.dag);
        }
    assert_true(clusters > 10);
}

/* Columns whose elements are made and not read, and sums that leave little shared memory to a block: texts that can be built. */
static void test_texts_of_columns(void **state) {
    static const int64_t sizes[][2] = {{65536, 8192}, {16384, 16384}, {16384, 4096},
                                       {16384, 1024}, {2048, 1024},   {3000, 3072}};
    rp__device *d = rp__device_get(rp_cuda(0));
    assert_non_null(d);
    const int multiprocessors = d->multiprocessors;
    (void)state;
    for (unsigned n = 0; n < 2 * sizeof sizes / sizeof *sizes; n++) {
        const int64_t r = sizes[n / 2][0], rows = sizes[n / 2][1];
        rp__dag_builder *b = rp__dag_new();
        if (n % 2) { /* four sums of eight bytes */
            rp__val x = load_new(b, RP_F64, false);
            store_new(b, RP_F64, rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW), true);
            store_new(b, RP_F64, rp__dag_reduce(b, RP__REDUCE_SUM, op2(b, RP__MUL, x, x), RP__ALONG_ROW), true);
            store_new(b, RP_F64, rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW), true);
            store_new(b, RP_F64, rp__dag_reduce(b, RP__REDUCE_MIN, x, RP__ALONG_ROW), true);
        } else {
            rp__val at = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
            store_new(b, RP_I64, op2(b, RP__SUB, at, rp__dag_reduce(b, RP__REDUCE_SUM, at, RP__ALONG_ROW)), false);
        }
        const problem p = columns_problem(rp__dag_finish(b), -1, rows, r);
        rp__space_access access[MOST];
        memset(access, 0, sizeof access);
        for (unsigned k = 0; k < p.dag->n_accesses; k++)
            memcpy(access[k].stride, p.operands[k].stride, sizeof access[k].stride);
        const rp__space space = {.dims = {1, 1},
                                 .extent = {rows, r},
                                 .n_accesses = p.dag->n_accesses,
                                 .accesses = access,
                                 .op = "test",
                                 .site = "test_cuda_loops.c"};
        rp__text text = {0};
        d->multiprocessors = 132;
        assert_int_equal(d->ops->loops->source(d, p.dag, &space, &text), RP_OK);
        d->multiprocessors = multiprocessors;
        const char *kernel = strstr(text.data, "__global__");
        assert_non_null(kernel);
        assert_true(strstr(kernel, "column_") && strlen(kernel) < 60000);
        size_t shared = 0;
        for (const char *at = kernel; (at = strstr(at, "__shared__ ")) != NULL; at++) {
            unsigned node = 0, down = 0, columns = 0;
            char type[16];
            if (sscanf(at, "__shared__ %15s h%u[%u][%u]", type, &node, &down, &columns) == 4)
                shared += (size_t)down * columns * (strcmp(type, "float") == 0 ? 4 : 8);
        }
        if (shared == 0 || shared > 48 << 10)
            fail_msg("%lld by %lld: %zu bytes of shared memory", (long long)r, (long long)rows, shared);
        rp__text_free(&text);
        rp__dag_release(p.dag);
    }
}

/* Rows of a table at computed places: read in vectors where rows hold whole ones, element by element where not. */
static void test_rows_of_tables(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_U8};
    (void)state;
    for (unsigned t = 0; t < 3; t++)
        for (unsigned width = 32; width < 36; width += 3) {
            rp__dag_builder *b = rp__dag_new();
            uint16_t table = rp__dag_access(b, RP__ACCESS_READ, dtypes[t], RP__ELEMENTS);
            uint16_t bound = rp__dag_scalar(b), stride = rp__dag_scalar(b);
            rp__val checked =
                rp__dag_op(b, RP__CHECK_INDEX, load_new(b, RP_I64, false), rp__dag_scalar_value(b, bound, RP_I64), 0);
            rp__val offset = op2(b, RP__MUL, checked, rp__dag_scalar_value(b, stride, RP_I64));
            store_new(b, dtypes[t], rp__dag_load(b, table, offset, NONE), false);
            problem p = {
                .dag = rp__dag_finish(b), .n_outer = 2, .extent = {300, width}, .scalars = {test_i(50), test_i(width)}};
            assert_non_null(p.dag);
            p.operands[0] = (operand){.elements = 50 * (int64_t)width, .stride = {0, 1}};
            p.operands[1] = (operand){.elements = 300, .stride = {1, 0}};
            set_row_major(&p, 2, 0, 2);
            wanted_text = width == 32 ? "= *(const rp_vec_" : NULL;
            compare(&p, 0);
            wanted_text = NULL;
            rp__dag_release(p.dag);
        }
}

/* Scans: all kinds, with reductions before and behind, and a scan of a scan; rows of few and of many tiles. */
static rp__dag *scan_dag(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    rp__val x = load_new(b, dtype, false);
    rp__val high = rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW);
    rp__val run = rp__dag_scan(b, RP__SCAN_SUM, op1(b, RP__EXP, op2(b, RP__SUB, x, high)), RP__ALONG_ROW);
    rp__val least = rp__dag_scan(b, RP__SCAN_MIN, op2(b, RP__MUL, x, high), RP__ALONG_ROW);
    rp__val most = rp__dag_scan(b, RP__SCAN_MAX, op2(b, RP__ADD, least, x), RP__ALONG_ROW);
    rp__val all = rp__dag_reduce(b, RP__REDUCE_SUM, run, RP__ALONG_ROW);
    store_new(b, dtype, op2(b, RP__DIV, run, all), false);
    store_new(b, dtype, most, false);
    store_new(b, dtype, rp__dag_scan(b, RP__SCAN_LOGADDEXP, x, RP__ALONG_ROW), false);
    store_new(b, dtype, rp__dag_scan(b, RP__SCAN_PROD, op1(b, RP__COS, x), RP__ALONG_ROW), false);
    store_new(b, dtype, all, true);
    return rp__dag_finish(b);
}

static void test_scans(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 3, 4, 127, 1024, 1025, 4100, 17000};
    for (unsigned t = 0; t < 2; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            if (t && n % 2) continue;
            problem p = {.dag = scan_dag(t ? RP_F64 : RP_F32), .n_outer = 1, .n_inner = 1, .extent = {3, sizes[n]}};
            assert_non_null(p.dag);
            for (unsigned k = 0; k < p.dag->n_accesses; k++) set_row_major(&p, k, 0, k == 5 ? 1 : 2);
            compare(&p, t ? 1e-13 : 2e-5);
            rp__dag_release(p.dag);
        }
    rp__dag_builder *b = rp__dag_new(); /* integers are exact; along memory and across it */
    store_new(b, RP_I64, rp__dag_scan(b, RP__SCAN_SUM, load_new(b, RP_I32, false), RP__ALONG_ROW), false);
    problem p = {.dag = rp__dag_finish(b), .n_outer = 1, .n_inner = 1, .extent = {5, 2100}};
    set_row_major(&p, 0, 0, 2);
    set_row_major(&p, 1, 0, 2);
    compare(&p, 0);
    for (unsigned k = 0; k < 2; k++) {
        p.operands[k].stride[0] = 1;
        p.operands[k].stride[1] = 5;
    }
    compare(&p, 0);
    rp__dag_release(p.dag);
}

/* What lies before on a level of the order: nothing at first. */
typedef struct level {
    float sum;
    bool any;
} level;
static void take(level *b, float x) {
    b->sum = b->any ? b->sum + x : x;
    b->any = true;
}
static float behind(level far, float x, bool any) { return far.any ? any ? far.sum + x : far.sum : x; }

/* The order of docs/developers/loop.md, of a sum: x and out are steps of `step` elements. */
static void ordered_scan(const float *x, float *out, int64_t n, int64_t step) {
    enum { WARP = 128, SECTION = 2048, CHUNK = 16384, GROUP = 32 * CHUNK };
    level groups = {0}, chunks = {0}, sections = {0}, warps = {0};
    for (int64_t first = 0; first < n; first += WARP) {
        if (first && first % SECTION == 0) {
            take(&sections, warps.sum);
            warps.any = false;
        }
        if (first && first % CHUNK == 0) {
            take(&chunks, sections.sum);
            sections.any = false;
        }
        if (first && first % GROUP == 0) {
            take(&groups, chunks.sum);
            chunks.any = false;
        }
        float own[WARP], total[32], old[32];
        for (int64_t i = 0; i < WARP; i++) {
            const float value = first + i < n ? x[(first + i) * step] : 0;
            own[i] = i % 4 ? own[i - 1] + value : value;
        }
        for (unsigned lane = 0; lane < 32; lane++) total[lane] = own[4 * lane + 3];
        for (unsigned m = 1; m < 32; m *= 2) {
            memcpy(old, total, sizeof total);
            for (unsigned lane = m; lane < 32; lane++) total[lane] = old[lane - m] + old[lane];
        }
        level far = {behind(groups, chunks.sum, chunks.any), groups.any || chunks.any};
        far = (level){behind(far, sections.sum, sections.any), far.any || sections.any};
        far = (level){behind(far, warps.sum, warps.any), far.any || warps.any};
        for (int64_t i = 0; i < WARP && first + i < n; i++) {
            const level all = {i < 4 ? far.sum : behind(far, total[i / 4 - 1], true), far.any || i >= 4};
            out[(first + i) * step] = behind(all, own[i], true);
        }
        take(&warps, total[31]);
    }
}

/* Along memory and across it, few rows and many, wide and narrow blocks: the bits of the order. */
static void test_scan_order(void **state) {
    static const int64_t sizes[] = {1,   3,   4,   5,    8,    13,   31,   32,    33,    127,
                                    130, 500, 640, 1028, 2048, 2052, 6001, 17000, 33000, 540000};
    static const unsigned rows_of[] = {1, 3, 8, 45};
    rp__device *d = rp__device_get(rp_cuda(0));
    (void)state;
    assert_non_null(d);
    const int multiprocessors = d->multiprocessors;
    rp__dag_builder *b = rp__dag_new();
    store_new(b, RP_F32, rp__dag_scan(b, RP__SCAN_SUM, load_new(b, RP_F32, false), RP__ALONG_ROW), false);
    problem p = {.dag = rp__dag_finish(b), .n_outer = 1, .n_inner = 1};
    assert_non_null(p.dag);
    for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++)
        for (unsigned k = 0; k < 4; k++)
            for (int way = 0; way < 3; way++) { /* along memory, across it, across it in narrow blocks */
                const int64_t rows = rows_of[k], r = sizes[n];
                unsigned char *out[MOST];
                if (r > 40000 && (way || rows > 3)) continue; /* groups of chunks: a block a row, a block a chunk */
                if (r < 40000 && !test_cuda_takes(n + k + (unsigned)way, r > 2000 ? 3 : 2)) continue;
                p.extent[0] = rows;
                p.extent[1] = r;
                for (unsigned a = 0; a < 2; a++)
                    p.operands[a] = (operand){.elements = rows * r, .stride = {way ? 1 : r, way ? rows : 1}};
                make_room(&p, out);
                d->multiprocessors = way == 2 ? multiprocessors : 1;
                run(rp_cuda(0), &p, out);
                float *wanted = malloc((size_t)(rows * r) * sizeof *wanted);
                assert_non_null(wanted);
                for (int64_t row = 0; row < rows; row++) {
                    const int64_t at = way ? row : row * r;
                    ordered_scan((const float *)(const void *)out[0] + at, wanted + at, r, way ? rows : 1);
                }
                if (memcmp(wanted, out[1], (size_t)(rows * r) * sizeof *wanted) != 0)
                    fail_msg("%u rows of %lld, way %d: other bits", rows_of[k], (long long)r, way);
                free(wanted);
                free_room(&p, out);
            }
    d->multiprocessors = multiprocessors;
    rp__dag_release(p.dag);
}

/* log(exp(a) + exp(b)) of infinities, NaN and numbers far apart, as rows of one tile and of several: what the CPU says. */
static void test_scan_extremes(void **state) {
    (void)state;
    for (unsigned t = 0; t < 2; t++)
        for (unsigned n = 0; n < 3; n++) {
            const rp_dtype dtype = t ? RP_F64 : RP_F32;
            const int64_t rows = 8, r = n == 0 ? 7 : n == 1 ? 500 : 20000;
            rp__dag_builder *b = rp__dag_new();
            rp__val x = load_new(b, dtype, false); /* between -2 and 2 */
            rp__val far = op2(b, RP__MUL, x, rp__dag_const(b, dtype, rp_f64(60)));
            rp__val one = rp__dag_const(b, dtype, rp_f64(1)), none = rp__dag_const(b, dtype, rp_f64(-INFINITY));
            /* nothing until an element above 1, infinite from one above 1.99 on */
            rp__val some = rp__dag_op(b, RP__WHERE, op2(b, RP__LT, one, x), far, none);
            rp__val all = rp__dag_op(b, RP__WHERE, op2(b, RP__LT, rp__dag_const(b, dtype, rp_f64(1.99)), x),
                                     rp__dag_const(b, dtype, rp_f64(INFINITY)), some);
            rp__val bad = op2(b, RP__DIV, all, op2(b, RP__SUB, x, x));
            store_new(b, dtype, rp__dag_scan(b, RP__SCAN_LOGADDEXP, far, RP__ALONG_ROW), false);
            store_new(b, dtype, rp__dag_scan(b, RP__SCAN_LOGADDEXP, some, RP__ALONG_ROW), false);
            store_new(b, dtype, rp__dag_scan(b, RP__SCAN_LOGADDEXP, all, RP__ALONG_ROW), false);
            store_new(b, dtype, rp__dag_scan(b, RP__SCAN_LOGADDEXP, bad, RP__ALONG_ROW), false);
            problem p = {.dag = rp__dag_finish(b), .n_outer = 1, .n_inner = 1, .extent = {rows, r}};
            assert_non_null(p.dag);
            for (int across = 0; across < 2; across++) {
                for (unsigned k = 0; k < p.dag->n_accesses; k++)
                    p.operands[k] = (operand){.elements = rows * r, .stride = {across ? 1 : r, across ? rows : 1}};
                compare(&p, t ? 1e-13 : 1e-6);
            }
            rp__dag_release(p.dag);
        }
}

/* Scans of scans and of other types, with what is read backwards: rows side by side give the bits of rows one after the other. */
static void test_scan_layouts(void **state) {
    static const int64_t sizes[] = {1, 5, 11, 16, 20, 32, 33, 130, 1100, 4500};
    (void)state;
    for (unsigned t = 0; t < 3; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            const rp_dtype dtype = t == 0 ? RP_F32 : t == 1 ? RP_F64 : RP_BF16;
            const int64_t rows = 37, r = sizes[n];
            rp__dag_builder *b = rp__dag_new();
            rp__val x = load_new(b, dtype, false);
            rp__val sum = rp__dag_scan(b, RP__SCAN_SUM, x, RP__ALONG_ROW);
            rp__val most = rp__dag_scan(b, RP__SCAN_MAX, op2(b, RP__MUL, sum, x), RP__ALONG_ROW);
            rp__val at = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
            store_new(b, dtype, op2(b, RP__ADD, most, load_new(b, dtype, true)), false);
            store_new(b, RP_I64, rp__dag_scan(b, RP__SCAN_SUM, at, RP__ALONG_ROW), false);
            store_new(b, dtype, rp__dag_scan(b, RP__SCAN_LOGADDEXP, x, RP__ALONG_ROW), false);
            problem p = {.dag = rp__dag_finish(b), .n_outer = 1, .n_inner = 1, .extent = {rows, r}};
            assert_non_null(p.dag);
            unsigned char *along[MOST], *across[MOST];
            for (int way = 0; way < 2; way++) {
                unsigned char **out = way ? across : along;
                for (unsigned k = 0; k < p.dag->n_accesses; k++) {
                    const bool row = rp__dag_is_row(p.dag, p.dag->accesses[k].axes);
                    p.operands[k] = (operand){.elements = row ? rows : rows * r, .stride = {row || way ? 1 : r}};
                    p.operands[k].stride[1] = row ? 0 : way ? rows : 1;
                    if (p.dag->accesses[k].kind == RP__ACCESS_IOTA) p.operands[k] = (operand){.stride = {0, 1}};
                    if (k > 0 || n % 2) continue; /* the same elements of every row, backwards */
                    p.operands[0] = (operand){.elements = r, .offset = r - 1, .stride = {0, -1}};
                }
                if (n % 2) /* a row of equal elements lies alike both ways */
                    p.operands[0] = (operand){.elements = rows, .stride = {1, 0}};
                make_room(&p, out);
                run(rp_cuda(0), &p, out);
            }
            for (unsigned k = 0; k < p.dag->n_accesses; k++) {
                const size_t bytes = element_bytes(&p, k);
                if (p.dag->accesses[k].kind != RP__ACCESS_WRITE) continue;
                for (int64_t i = 0; i < rows * r; i++)
                    if (memcmp(along[k] + (size_t)i * bytes, across[k] + (size_t)(i % r * rows + i / r) * bytes, bytes))
                        fail_msg("type %u, %lld elements, operand %u: other bits", t, (long long)r, k);
            }
            free_room(&p, along);
            free_room(&p, across);
            rp__dag_release(p.dag);
        }
}

/* Windows: sums over windows of a padded plane and over those that an element is part of (with a divisor), rows side by side and
   not, and single elements. */
static void test_windows(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) {
        const bool rows = way != 3, wide = way == 2;
        rp__dag_builder *b = rp__dag_new();
        const rp__axes axes = rows ? RP__ALONG_ROWS : RP__ELEMENTS;
        uint16_t from = rp__dag_access_windows(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS, 2);
        uint16_t numbers = rp__dag_access_windows(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS, 2);
        rp__val x = rp__dag_load(b, from, NONE, NONE), place = rp__dag_iota(b, numbers), in = rp__dag_inside(b, from);
        if (rows) {
            x = rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW);
            place = rp__dag_reduce(b, RP__REDUCE_MAX, place, RP__ALONG_ROW);
            in = rp__dag_reduce(b, RP__REDUCE_ANY, in, RP__ALONG_ROW);
        }
        rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, axes), x);
        rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_I64, axes), place);
        rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, RP_BOOL, axes), in);
        /* 2 planes of 9 x 11 behind each other; windows of 3 x 2, steps 2 and 1, padding 1 */
        problem p = {.dag = rp__dag_finish(b), .n_outer = 3, .n_inner = 2, .extent = {2, wide ? 9 : 5, 11, 3, 2}};
        assert_non_null(p.dag);
        for (unsigned k = 0; k < 2; k++) p.operands[k] = (operand){.elements = 2 * 9 * 11, .stride = {9 * 11}};
        for (unsigned k = 2; k < 5; k++) set_row_major(&p, k, 0, rows ? 3 : 5);
        for (int k = 0; k < 4; k++)
            p.windows[k] =
                k % 2 ? (rp__space_window){.size = 11, .stride = 1, .pad = 1, .divisor = 1, .factor = {0, 0, 1, 0, 1}}
                      : (rp__space_window){.size = 9, .stride = 11, .pad = 1, .divisor = 1, .factor = {0, 2, 0, 1, 0}};
        if (wide) {
            p.windows[0] = p.windows[2] =
                (rp__space_window){.size = 5, .stride = 11, .pad = -1, .divisor = 2, .factor = {0, 1, 0, -1, 0}};
        }
        if (way ==
            1) { /* one of two planes in every other row of blocks: rows of the kernel run side by side in memory */
            p.extent[2] = 1;
            p.windows[1].factor[2] = p.windows[3].factor[2] = 0;
            for (unsigned k = 2; k < 5; k++) set_row_major(&p, k, 0, 3);
        }
        compare(&p, 1e-5);
        rp__dag_release(p.dag);
    }
}

/* ---- short rows: a thread has whole ones ---- */

/* The same bits from threads that have a row each, or several, as from threads that share one. */
static void same_short(problem *p, const char *what, unsigned number) {
    rp__device *d = rp__device_get(rp_cuda(0));
    assert_non_null(d);
    const int multiprocessors = d->multiprocessors;
    unsigned char *shared[MOST], *alone[MOST];
    make_room(p, shared);
    make_room(p, alone);
    p->how.flat = 1;
    run(rp_cuda(0), p, shared);
    p->how.flat = 0;
    one_multiprocessor(d); /* which few rows fill: vectors */
    for (p->how.narrow = 0; p->how.narrow < 4; p->how.narrow++) {
        if (p->how.narrow % 2 && !test_cuda_is_real()) continue;
        wanted_text = "rp_short_";
        run(rp_cuda(0), p, alone);
        wanted_text = NULL;
        for (unsigned k = 0; k < p->dag->n_accesses; k++)
            if (p->dag->accesses[k].kind == RP__ACCESS_WRITE &&
                memcmp(shared[k], alone[k], (size_t)p->operands[k].elements * element_bytes(p, k)) != 0)
                fail_msg("%s %u, operand %u, narrow %u: other bits", what, number, k, p->how.narrow);
    }
    d->multiprocessors = multiprocessors;
    p->how.narrow = 0;
    free_room(p, shared);
    free_room(p, alone);
}

/* The largest of a window and the least number among those that are it, and a sum. */
static rp__dag *window_dag(rp_dtype dtype) {
    rp__dag_builder *b = rp__dag_new();
    const rp_dtype compute = rp__dtype_is_narrow(dtype) ? RP_F32 : dtype;
    const uint16_t from = rp__dag_access_windows(b, RP__ACCESS_READ, dtype, RP__ELEMENTS, 2);
    const uint16_t numbers = rp__dag_access_windows(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS, 2);
    rp__val x = rp__dag_load(b, from, NONE, NONE), in = rp__dag_inside(b, from);
    rp__val least = rp__dag_op(b, RP__WHERE, in, x, rp__dag_const(b, compute, test_f(-INFINITY)));
    rp__val most = rp__dag_reduce(b, RP__REDUCE_MAX, least, RP__ALONG_ROW);
    rp__val place = rp__dag_op(b, RP__WHERE, op2(b, RP__AND, in, op2(b, RP__EQ, x, most)), rp__dag_iota(b, numbers),
                               rp__dag_const(b, RP_I64, test_i(INT64_MAX)));
    store_new(b, dtype, most, true);
    store_new(b, RP_I64, rp__dag_reduce(b, RP__REDUCE_MIN, place, RP__ALONG_ROW), true);
    store_new(b, dtype, rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW), true);
    return rp__dag_finish(b);
}

typedef struct window_case {
    int64_t channels, in, out, kernel, factor, step, pad, divisor; /* the same along both dims of the plane */
} window_case;

/* Planes of 2 images; elements of channels lie side by side (last), or those of a line do. */
static void set_case(problem *p, const window_case *w, bool last) {
    const int64_t plane = w->in * w->in, image = w->channels * plane;
    const int64_t across = last ? w->channels : 1, down = w->in * across, channel = last ? 1 : plane;
    p->n_outer = 4;
    p->n_inner = 2;
    memcpy(p->extent, (int64_t[6]){2, w->channels, w->out, w->out, w->kernel, w->kernel}, 6 * sizeof *p->extent);
    p->operands[0] = (operand){.elements = 2 * image, .stride = {image, channel}};
    p->operands[1] = (operand){0};
    for (unsigned k = 2; k < 5; k++) {
        static const unsigned channels_last[4] = {0, 2, 3, 1}, plain[4] = {0, 1, 2, 3};
        set_order(p, k, last ? channels_last : plain, 4, 0);
    }
    for (unsigned k = 0; k < 4; k++) {
        const int64_t stride = k == 0 ? down : k == 1 ? across : k == 2 ? w->in : 1;
        p->windows[k] = (rp__space_window){.size = w->in, .stride = stride, .pad = w->pad, .divisor = w->divisor};
        p->windows[k].factor[2 + k % 2] = w->factor;
        p->windows[k].factor[4 + k % 2] = w->step;
    }
}

static void test_short_windows(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_F16, RP_F64, RP_BF16};
    static const window_case cases[] = {
        {8, 16, 8, 2, 2, 1, 0, 1},  {8, 15, 8, 3, 2, 1, 1, 1},      {3, 17, 17, 3, 1, 1, 1, 1},
        {16, 12, 6, 3, 2, 2, 2, 1}, {8, 8, 16, 2, 1, -1, 0, 2},     {8, 8, 15, 3, 1, -1, -1, 2},
        {6, 6, 18, 3, 1, -1, 0, 3}, {4, 9, 20, 5, 1, -2, -2, 2},    {24, 7, 7, 7, 1, 1, 3, 1},
        {5, 40, 4, 8, 8, 1, 0, 1},  {2, 300, 3, 2, 140, 5, -129, 1}};
    (void)state;
    for (unsigned t = 0; t < 4; t++)
        for (unsigned n = 0; n < sizeof cases / sizeof *cases; n++)
            for (unsigned last = 0; last < 2; last++) {
                if (t > 1 && (n + last) % 4 && !test_cuda_is_real()) continue;
                problem p = {.dag = window_dag(dtypes[t])};
                assert_non_null(p.dag);
                set_case(&p, &cases[n], last);
                same_short(&p, "windows", n);
                if (n < 2) { /* off the vector alignment */
                    p.operands[0].offset = 1;
                    p.operands[0].elements++;
                    same_short(&p, "windows off the alignment", n);
                }
                if (t == 0) compare(&p, 1e-5);
                rp__dag_release(p.dag);
            }
}

/* Sums and norms over few elements that are not the contiguous ones, of rows whose number is no multiple of a vector too. */
static void test_short_sums(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F64, RP_I64};
    static const int64_t sizes[] = {2, 3, 4, 5, 8, 13, 16, 17, 31, 32};
    (void)state;
    for (unsigned t = 0; t < 4; t++)
        for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            if (t > 1 && n % 4 && !test_cuda_is_real()) continue;
            const int64_t beside = n % 3 == 2 ? 301 : 304;
            rp__dag_builder *b = rp__dag_new();
            rp__val x = load_new(b, dtypes[t], false);
            rp__val d = op2(b, RP__SUB, x, rp__dag_reduce(b, RP__REDUCE_MAX, x, RP__ALONG_ROW));
            rp__val sum = rp__dag_reduce(b, RP__REDUCE_SUM, op2(b, RP__MUL, d, d), RP__ALONG_ROW);
            store_new(b, dtypes[t], op2(b, RP__ADD, sum, load_new(b, dtypes[t], true)), true);
            problem p = {.dag = rp__dag_finish(b), .n_outer = 2, .n_inner = 1, .extent = {3, beside, sizes[n]}};
            assert_non_null(p.dag);
            p.operands[0] = (operand){.elements = 3 * beside * sizes[n], .stride = {beside * sizes[n], 1, beside}};
            p.operands[1] = (operand){.elements = 3, .stride = {1}};
            set_row_major(&p, 2, 0, 2);
            same_short(&p, "sums", n);
            rp__dag_release(p.dag);
        }
}

/* Windows whose places are computed: element k of window i of 3 begins at the place 2 i + k of a line, if it has that many. */
static void test_short_places(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16};
    (void)state;
    for (unsigned t = 0; t < 2; t++)
        for (unsigned n = 0; n < 3; n++) {
            const int64_t beside = n == 0 ? 64 : n == 1 ? 60 : 33, lines = 21, places = 10;
            rp__dag_builder *b = rp__dag_new();
            const uint16_t from = rp__dag_access(b, RP__ACCESS_READ, dtypes[t], RP__ELEMENTS);
            const uint16_t bound = rp__dag_scalar(b), stride = rp__dag_scalar(b);
            rp__val i = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ALONG_ROWS));
            rp__val k = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ALONG_ROW));
            rp__val at = op2(b, RP__ADD, i, k), most = rp__dag_scalar_value(b, bound, RP_I64);
            rp__val place = op2(b, RP__MUL, op2(b, RP__MIN, at, most), rp__dag_scalar_value(b, stride, RP_I64));
            rp__val x = rp__dag_op(b, RP__WHERE, op2(b, RP__LE, at, most), rp__dag_load(b, from, place, NONE),
                                   rp__dag_const(b, RP_F32, test_f(0)));
            store_new(b, dtypes[t], rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW), true);
            problem p = {.dag = rp__dag_finish(b),
                         .n_outer = 3,
                         .n_inner = 1,
                         .extent = {4, places, beside, 3},
                         .scalars = {test_i(lines - 1), test_i(beside)}};
            assert_non_null(p.dag);
            p.operands[0] = (operand){.elements = 4 * lines * beside, .stride = {lines * beside, 0, 1, 0}};
            p.operands[1] = (operand){.elements = 1, .stride = {0, 2}};
            p.operands[2] = (operand){.elements = 1, .stride = {0, 0, 0, 1}};
            set_row_major(&p, 3, 0, 3);
            same_short(&p, "places", n);
            compare(&p, t ? 1e-2 : 2e-6);
            rp__dag_release(p.dag);
        }
}

/* Numbers of 64 bits of which 32 are enough, and others: sums, products, divisions and checked indices of an iota that begins and steps
 * where they are, just are not, or are negative. */
static void test_ranges(void **state) {
    static const struct {
        int64_t first, step, divisor;
        bool narrow; /* its quotients are of 32 bits without a sign */
    } cases[] = {{0, 1, 7, true},
                 {INT32_MAX - 1998, 2, 3, true},
                 {INT32_MAX - 1997, 2, 3, false},
                 {0, INT64_C(1) << 31, 5, false},
                 {-1000, 1, 7, false},
                 {3, 1, -7, false},
                 {INT64_C(1) << 62, 1, INT64_C(1) << 33, false},
                 {1000, -1, 1, true}};
    (void)state;
    for (unsigned n = 0; n < sizeof cases / sizeof *cases; n++)
        for (unsigned rows = 0; rows < 2; rows++) {
            rp__dag_builder *b = rp__dag_new();
            const uint16_t divisor = rp__dag_scalar(b), bound = rp__dag_scalar(b);
            rp__val i = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
            rp__val by = rp__dag_scalar_value(b, divisor, RP_I64), most = rp__dag_scalar_value(b, bound, RP_I64);
            rp__val x = load_new(b, RP_F32, false);
            rp__val quotient = op2(b, RP__FLOORDIV, i, by), rest = op2(b, RP__REMAINDER, i, by);
            rp__val square = op2(b, RP__MUL, i, i), twice = op2(b, RP__ADD, i, i);
            rp__val clamped = op2(b, RP__MAX, op2(b, RP__MIN, quotient, most), rp__dag_const(b, RP_I64, test_i(0)));
            rp__val all = op2(b, RP__SUB, op2(b, RP__ADD, op2(b, RP__ADD, square, twice), rest), quotient);
            rp__val cast = rp__dag_cast(b,
                                        op2(b, RP__MIN, op2(b, RP__MAX, x, rp__dag_const(b, RP_F32, test_f(-2))),
                                            rp__dag_const(b, RP_F32, test_f(7))),
                                        RP_I64);
            all = op2(b, RP__ADD, all, op2(b, RP__MUL, clamped, cast));
            if (rows)
                store_new(b, RP_I64, rp__dag_reduce(b, RP__REDUCE_SUM, all, RP__ALONG_ROW), true);
            else
                store_new(b, RP_I64, all, false);
            problem p = {.dag = rp__dag_finish(b),
                         .n_outer = rows ? 1 : 2,
                         .n_inner = rows,
                         .extent = {25, 40},
                         .scalars = {test_i(cases[n].divisor), test_i(6)}};
            assert_non_null(p.dag);
            p.operands[0] = (operand){.offset = cases[n].first, .stride = {40 * cases[n].step, cases[n].step}};
            set_row_major(&p, 1, 0, 2);
            set_row_major(&p, 2, 0, rows ? 1 : 2);
            wanted_text = cases[n].narrow ? "(rp_i32)((rp_u32)" : "rp_floordiv_i64(";
            compare(&p, 0);
            wanted_text = NULL;
            rp__dag_release(p.dag);
        }
}

/* Places that are calculated in floats, as those of pictures at other sizes: of 64 bits where 32 may not be enough, which NaN decides, too. */
static void test_ranges_of_floats(void **state) {
    static const struct {
        double first, step;
        const char *text;
    } cases[] = {{0.5, 0.75, "rp_cvt_f32_to_i32("},    {0.5, 2148000, "rp_cvt_f32_to_i32("},
                 {0.5, 2149000, "rp_cvt_f32_to_i64("}, {-3, 1e30, "rp_cvt_f32_to_i64("},
                 {0, NAN, "rp_cvt_f32_to_i64("},       {-1e6, -0.3, "rp_cvt_f32_to_i32("}};
    (void)state;
    for (unsigned n = 0; n < sizeof cases / sizeof *cases; n++) {
        rp__dag_builder *b = rp__dag_new();
        const uint16_t first = rp__dag_scalar(b), step = rp__dag_scalar(b);
        rp__val i = rp__dag_iota(b, rp__dag_access(b, RP__ACCESS_IOTA, RP_I64, RP__ELEMENTS));
        rp__val x = op2(b, RP__ADD, rp__dag_cast(b, i, RP_F32), rp__dag_scalar_value(b, first, RP_F32));
        x = op2(b, RP__SUB, op2(b, RP__MUL, x, rp__dag_scalar_value(b, step, RP_F32)),
                rp__dag_const(b, RP_F32, test_f(0.5)));
        rp__val place = rp__dag_cast(b, op1(b, RP__FLOOR, x), RP_I64);
        store_new(b, RP_I64, op2(b, RP__SUB, place, i), false);
        problem p = {.dag = rp__dag_finish(b),
                     .n_outer = 1,
                     .extent = {1000},
                     .scalars = {test_f(cases[n].first), test_f(cases[n].step)}};
        assert_non_null(p.dag);
        p.operands[0] = (operand){.elements = 1, .stride = {1}};
        set_row_major(&p, 1, 0, 1);
        wanted_text = cases[n].text;
        compare(&p, 0);
        wanted_text = NULL;
        rp__dag_release(p.dag);
    }
}

/* Points side by side in memory whose number is no multiple of a vector: those behind the last vector, too. */
static void test_rest(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16, RP_F64, RP_U8};
    static const int64_t sizes[] = {2049, 4099, 8191, 70003};
    (void)state;
    for (unsigned t = 0; t < 4; t++)
        for (unsigned n = 0; n < 4; n++) {
            rp__dag_builder *b = rp__dag_new();
            rp__val x = load_new(b, dtypes[t], false), y = load_new(b, dtypes[t], false);
            store_new(b, dtypes[t], op2(b, RP__MUL, op2(b, RP__ADD, x, y), x), false);
            problem p = {.dag = rp__dag_finish(b), .n_outer = 1, .extent = {sizes[n]}};
            assert_non_null(p.dag);
            for (unsigned k = 0; k < 3; k++) set_row_major(&p, k, 0, 1);
            wanted_text = "= all - all % ";
            compare(&p, 0);
            wanted_text = NULL;
            rp__dag_release(p.dag);
        }
}

/* Rows of two dims that lie in one line, which need not end with a vector, with a weight and a bias for each place of the first: group norm. */
static void test_lines(void **state) {
    static const struct {
        int64_t rows, channels, places;
        unsigned offset;
        const char *template_;
    } cases[] = {{5, 4, 33, 0, "_row_"},        {5, 4, 9, 0, "_row_"},         {9, 12, 121, 0, "_row_"},
                 {9, 3, 121, 0, "_row_"},       {3, 32, 1089, 0, "_cluster_"}, {3, 16, 1089, 1, "_cluster_"},
                 {2, 33, 1001, 0, "_cluster_"}, {7, 6, 3, 0, "_row_"}};
    static const rp_dtype dtypes[] = {RP_F32, RP_BF16};
    (void)state;
    for (unsigned n = 0; n < sizeof cases / sizeof *cases; n++)
        for (unsigned t = 0; t < 2; t++)
            for (unsigned two = 0; two < 2; two++) { /* a second operand of the size of the first */
                if ((t || two) && n % 3 && !test_cuda_is_real()) continue;
                rp__dag_builder *b = rp__dag_new();
                rp__val x = load_new(b, dtypes[t], false), w = load_new(b, dtypes[t], false);
                rp__val y = two ? op2(b, RP__MUL, load_new(b, dtypes[t], false), w) : x;
                rp__val mean = rp__dag_reduce(b, RP__REDUCE_MAX, y, RP__ALONG_ROW);
                rp__val d = op2(b, RP__SUB, y, mean);
                rp__val sum = rp__dag_reduce(b, RP__REDUCE_SUM, op2(b, RP__MUL, d, d), RP__ALONG_ROW);
                rp__val scaled = op2(b, RP__DIV, op2(b, RP__ADD, d, x), op1(b, RP__SQRT, sum));
                store_new(b, dtypes[t], op2(b, RP__MUL, scaled, w), false);
                problem p = {.dag = rp__dag_finish(b),
                             .n_outer = 1,
                             .n_inner = 2,
                             .extent = {cases[n].rows, cases[n].channels, cases[n].places}};
                assert_non_null(p.dag);
                set_row_major(&p, 0, 0, 3);
                p.operands[0].offset = cases[n].offset;
                p.operands[0].elements += cases[n].offset;
                p.operands[1] =
                    (operand){.elements = cases[n].rows * cases[n].channels, .stride = {cases[n].channels, 1, 0}};
                for (unsigned k = 2; k < 3 + two; k++) set_row_major(&p, k, 0, 3);
                wanted_text = two && cases[n].channels > 12 ? "_split_" : cases[n].template_;
                compare(&p, t ? 2e-2 : 1e-5);
                wanted_text = NULL;
                rp__dag_release(p.dag);
            }
}

/* Rows of two dims of which one has no element. */
static void test_empty_rows(void **state) {
    (void)state;
    for (unsigned n = 0; n < 2; n++) {
        rp__dag_builder *b = rp__dag_new();
        rp__val x = load_new(b, RP_F32, false);
        store_new(b, RP_F32, rp__dag_reduce(b, RP__REDUCE_SUM, op2(b, RP__MUL, x, x), RP__ALONG_ROW), true);
        problem p = {.dag = rp__dag_finish(b), .n_outer = 1, .n_inner = 2, .extent = {5, n ? 4 : 0, n ? 0 : 4}};
        assert_non_null(p.dag);
        p.operands[0] = (operand){.elements = 64, .stride = {0, 9, 2}};
        set_row_major(&p, 1, 0, 1);
        compare(&p, 0);
        rp__dag_release(p.dag);
    }
}

/* Places that are computed for a line and serve all planes: a thread has several planes of a place. */
static void test_planes(void **state) {
    static const rp_dtype dtypes[] = {RP_F32, RP_F16};
    (void)state;
    for (unsigned t = 0; t < 2; t++)
        for (unsigned n = 0; n < 3; n++) { /* 8 planes a thread, 4, one */
            const int64_t images = 2, planes = n == 0 ? 8 : n == 1 ? 12 : 7, line = 600, from_line = 40;
            rp__dag_builder *b = rp__dag_new();
            const uint16_t bound = rp__dag_scalar(b);
            rp__val at = load_new(b, RP_I64, false), weight = load_new(b, dtypes[t], false);
            const uint16_t from = rp__dag_access(b, RP__ACCESS_READ, dtypes[t], RP__ELEMENTS);
            rp__val most = rp__dag_scalar_value(b, bound, RP_I64), sum = NONE;
            rp__val low = op2(b, RP__MIN, op2(b, RP__MAX, at, rp__dag_const(b, RP_I64, test_i(0))), most);
            for (int k = 0; k < 3; k++) {
                rp__val place = op2(b, RP__MIN, op2(b, RP__ADD, low, rp__dag_const(b, RP_I64, test_i(k))), most);
                rp__val part = op2(b, RP__MUL, weight, op2(b, RP__ADD, weight, rp__dag_const(b, RP_F32, test_f(k))));
                rp__val x = op2(b, RP__MUL, rp__dag_load(b, from, place, NONE), part);
                sum = sum == NONE ? x : op2(b, RP__ADD, sum, x);
            }
            store_new(b, dtypes[t], sum, false);
            problem p = {.dag = rp__dag_finish(b),
                         .n_outer = 3,
                         .extent = {images, planes, line},
                         .scalars = {test_i(from_line - 1)}};
            assert_non_null(p.dag);
            p.operands[0] = (operand){.elements = images * line, .stride = {line, 0, 1}};
            p.operands[1] = p.operands[0];
            p.operands[2] =
                (operand){.elements = images * planes * from_line, .stride = {planes * from_line, from_line, 0}};
            set_row_major(&p, 3, 0, 3);
            rp__device *d = rp__device_get(rp_cuda(0));
            assert_non_null(d);
            const int multiprocessors = d->multiprocessors;
            one_multiprocessor(d); /* which few places fill */
            wanted_text = n == 0 ? "[8];" : n == 1 ? "[4];" : "_pointwise_";
            compare(&p, t ? 1e-2 : 2e-6);
            wanted_text = NULL;
            d->multiprocessors = multiprocessors;
            rp__dag_release(p.dag);
        }
}

/* row: the rate is declared a row value; else only its stride says that a group shares it, as optimizers do. */
static void run_many(bool row) {
    rp__device *d = rp__device_get(rp_cuda(0));
    rp_stream *s = rp__current_stream(d);
    rp__dag_builder *b = rp__dag_new();
    uint16_t w = rp__dag_access(b, RP__ACCESS_READ_WRITE, RP_F32, RP__ELEMENTS),
             g = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS);
    rp__val lr = load_new(b, RP_F32, row);
    rp__dag_store(b, w,
                  op2(b, RP__SUB, rp__dag_load(b, w, NONE, NONE), op2(b, RP__MUL, lr, rp__dag_load(b, g, NONE, NONE))));
    rp__dag *dag = rp__dag_finish(b);
    assert_non_null(dag);
    enum { GROUPS = 37 };
    static const float rate = 0.25f;
    rp__storage *rates = rp__storage_new(d, s, 4), *memory[GROUPS][2];
    assert_int_equal(d->ops->copy_in(d, s, rates->data, &rate, 4), RP_OK);
    rp__space_access a[GROUPS * 3];
    int64_t extents[GROUPS];
    float *host[GROUPS][2];
    memset(a, 0, sizeof a);
    for (int64_t k = 0; k < GROUPS; k++) {
        extents[k] = k * k * 7 % 900;
        size_t bytes = (size_t)extents[k] * 4;
        for (unsigned o = 0; o < 2; o++) {
            host[k][o] = malloc(bytes + 4);
            fill_operand((unsigned char *)host[k][o], RP_F32, extents[k], (uint64_t)k * 2 + o + 1);
            memory[k][o] = rp__storage_new(d, s, bytes + 4);
            assert_int_equal(d->ops->copy_in(d, s, memory[k][o]->data, host[k][o], bytes), RP_OK);
            a[k * 3 + o] = (rp__space_access){
                .base = memory[k][o]->data, .storage = memory[k][o], .end = (int64_t)bytes, .stride = {1}};
        }
        a[k * 3 + 2] = (rp__space_access){.base = rates->data, .storage = rates, .end = 4};
    }
    rp__space shared = {.dims = {1}, .n_accesses = 3, .op = "sgd", .site = "here"};
    rp__launch one;
    assert_int_equal(rp__loop_bind_many(d, dag, &shared, a, extents, GROUPS, rp__launch_buffer_get(), &one), RP_OK);
    if (rp__loop_launch_many(d, s, dag, &shared, a, extents, GROUPS) != RP_OK) fail_msg("%s", rp_error_message());
    for (int64_t k = 0; k < GROUPS; k++) {
        float *now = malloc((size_t)extents[k] * 4 + 4);
        assert_int_equal(d->ops->copy_out(d, s, now, memory[k][0]->data, (size_t)extents[k] * 4), RP_OK);
        for (int64_t i = 0; i < extents[k]; i++) {
            float want = host[k][0][i] - rate * host[k][1][i];
            if (now[i] != want)
                fail_msg("group %lld element %lld: %.9g, want %.9g", (long long)k, (long long)i, (double)now[i],
                         (double)want);
        }
        free(now);
        for (unsigned o = 0; o < 2; o++) {
            free(host[k][o]);
            rp__storage_release(memory[k][o]);
        }
    }
    rp__storage_release(rates);
    rp__dag_release(dag);
}

static void test_many(void **state) {
    (void)state;
    run_many(true);
    run_many(false);
}

/* Cats of what lies somewhere else: the parts, whole vectors or not, of one type or several, along any dim, dense or strided, are what the CPU
 * makes of them. */
static size_t cat_on(rp_device device, const int64_t *sizes, int way, int64_t dim, unsigned char *out) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *part[7];
    rp_device before = rp_default_device();
    assert_int_equal(rp_set_default_device(device), RP_OK);
    for (int64_t k = 0; k < 7; k++) {
        int64_t size[3] = {sizes[0], sizes[1], sizes[2]}, n = 1;
        size[dim] += k % 3;
        if (way == 2 && k == 4) size[0] = sizes[2] + (dim == 2), size[2] = sizes[0] + (dim == 0);
        if (way == 3 && k == 4) size[2] += 3;
        for (unsigned d = 0; d < 3; d++) n *= size[d];
        float *data = malloc((size_t)n * sizeof *data);
        fill_operand((unsigned char *)data, RP_F32, n, (uint64_t)k + 1);
        part[k] = rp_from_data(data, size, 3, RP_F32);
        free(data);
        if (way == 1 && k == 5) part[k] = rp_to_dtype(part[k], RP_F16);
        if (way == 2 && k == 4) part[k] = rp_transpose(part[k], 0, 2);
        if (way == 3 && k == 4) part[k] = rp_narrow(part[k], 2, 1, size[2] - 3);
    }
    rp_tensor *all = rp_cat(part, 7, dim);
    const size_t bytes = (size_t)rp_numel(all) * 4;
    if (rp_failed()) fail_msg("%s", rp_error_message());
    assert_int_equal(rp_to_host(all, out, bytes), RP_OK);
    assert_int_equal(rp_set_default_device(before), RP_OK);
    rp_scope_end(scope, NULL, 0);
    return bytes;
}

static void test_cats(void **state) {
    static const int64_t sizes[][3] = {{5, 8, 12}, {3, 7, 5}, {33, 1, 64}, {40, 20, 1}};
    static unsigned char want[1 << 17], got[1 << 17];
    (void)state;
    for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++)
        for (int way = 0; way < 4; way++) /* 1: one of another type, 2: one turned round, 3: a slice */
            for (int64_t dim = 0; dim < 3; dim++) {
                const size_t bytes = cat_on(rp_cpu(), sizes[n], way, dim, want);
                assert_int_equal(cat_on(rp_cuda(0), sizes[n], way, dim, got), bytes);
                assert_memory_equal(want, got, bytes);
            }
}

int main(void) {
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pointwise),
        cmocka_unit_test(test_pointwise_layouts),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_gather_and_errors),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_row_shares),
        cmocka_unit_test(test_ragged_rows),
        cmocka_unit_test(test_warp_rows),
        cmocka_unit_test(test_split_rows),
        cmocka_unit_test(test_clusters),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_scans),
        cmocka_unit_test(test_split_columns),
        cmocka_unit_test(test_cluster_columns),
        cmocka_unit_test(test_texts_of_columns),
        cmocka_unit_test(test_scan_order),
        cmocka_unit_test(test_scan_layouts),
        cmocka_unit_test(test_scan_extremes),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_column_phases),
        cmocka_unit_test(test_split_phases),
        cmocka_unit_test(test_column_weights),
        cmocka_unit_test(test_rows_of_tables),
        cmocka_unit_test(test_cats),
        cmocka_unit_test(test_short_windows),
        cmocka_unit_test(test_short_sums),
        cmocka_unit_test(test_short_places),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_ranges_of_floats),
        cmocka_unit_test(test_rest),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_empty_rows),
        cmocka_unit_test(test_planes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
