/* ctest: labels=cuda timeout=600 cost=95 */
/* Products of matrices on CUDA through tiles (kernel/cuda/product.cuh), each row of the table by itself: against sums of whole numbers,
   which no order of adding up changes; the same bits for all strides, alignments and tiles; with what follows, eager against compiled.
   Runs on the emulator; with REPRISE_TEST_CUDA=real on a GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "device/device.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/matmul.h"
#include "kernel/library.h"
#include "ops/execute.h"
#include "ops/library_ops.h"
#include "support/cuda.h"
#include "tensor/tensor.h"

static rp__device *cuda;

static void ok(void) {
    if (rp_failed()) fail_msg("%s", rp_error_message());
}

/* Whole numbers from -most to most. */
static rp_tensor *whole(unsigned seed, int most, rp_dtype dtype, const int64_t *size, size_t n_dims) {
    int64_t n = 1;
    for (size_t d = 0; d < n_dims; d++) n *= size[d];
    float *data = malloc((size_t)(n + 1) * sizeof *data);
    uint32_t state = seed * 2654435761u + 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (float)((int)(state >> 8) % (2 * most + 1) - most);
    }
    rp_tensor *t = rp_to_dtype(rp_from_data(data, size, n_dims, RP_F32), dtype);
    free(data);
    ok();
    return t;
}

/* A copy of t's numbers that lies in memory as `how` says: bit 0 the last two dims swapped, bit 1 rows further apart than they are
   long, bit 2 not aligned, bit 3 every second element only. */
static rp_tensor *laid_out(rp_tensor *t, unsigned how) {
    const int nd = (int)rp_ndim(t);
    rp_tensor *x = how & 1 ? rp_contiguous(rp_transpose(t, -1, -2)) : rp_contiguous(t);
    const int64_t along = rp_size(x, -1), right = how & 2 ? 7 : 0, left = how & 4 ? 1 : 0;
    if (how & 14) {
        int64_t size[4];
        for (int d = 0; d < nd; d++) size[d] = rp_size(x, d);
        const int64_t step = how & 8 ? 2 : 1;
        size[nd - 1] = left + step * along + right;
        rp_tensor *room = rp_full(size, (size_t)nd, rp_f64(0), RP_OPTIONS(rp_full_options, .dtype = rp_dtype_of(t)));
        rp_tensor *place = rp_slice(room, -1, left, left + step * along, step);
        rp_copy_(place, x, NULL);
        x = place;
    }
    x = how & 1 ? rp_transpose(x, -1, -2) : x;
    ok();
    return x;
}

/* One row of the table computes a (.., M, K) b (.., K, N) [+ bias]. */
static void run(const rp__cuda_product_row *row, rp_tensor *out, rp_tensor *a, rp_tensor *b, rp_tensor *bias) {
    const rp__library_call call = {.op = "test", .site = "test_products.c"};
    const rp__operand o[4] = {rp__operand_of(out), rp__operand_of(a), rp__operand_of(b),
                              bias ? rp__operand_of(bias) : (rp__operand){.ndim = 1}};
    const rp__problem p = {cuda, RP__LIB_MATMUL, o, bias ? 4 : 3, &call, RP__ORDER_ELSEWHERE, NULL};
    rp__launch launch = {.op = "test", .site = call.site};
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    size_t workspace = 0;
    assert_non_null(buffer);
    assert_true(row->row.serves(&p, &workspace));
    if (row->row.bind(&p, workspace, buffer, &launch) != RP_OK ||
        rp__launch_on(rp__current_stream(cuda), &launch) != RP_OK)
        ok();
    ok();
}

static float *on_host(rp_tensor *t) {
    float *x = malloc((size_t)(rp_numel(t) + 1) * sizeof *x);
    rp_to_host(rp_to_dtype(rp_contiguous(t), RP_F32), x, (size_t)rp_numel(t) * sizeof *x);
    ok();
    return x;
}

static rp_tensor *empty(rp_dtype dtype, const int64_t *size, size_t n_dims) {
    return rp_full(size, n_dims, rp_f64(-77), RP_OPTIONS(rp_full_options, .dtype = dtype));
}

/* What the numbers are, rounded as a result is. */
static void assert_product(const char *what, rp_tensor *out, rp_tensor *a, rp_tensor *b, rp_tensor *bias, int64_t batch,
                           int64_t m, int64_t n, int64_t k) {
    float *x = on_host(a), *y = on_host(b), *z = bias ? on_host(bias) : NULL, *got = on_host(out);
    float *want = malloc((size_t)(batch * m * n + 1) * sizeof *want);
    for (int64_t i = 0; i < batch * m * n; i++) {
        const int64_t g = i / (m * n), r = i / n % m, c = i % n;
        double sum = z ? z[c] : 0;
        for (int64_t j = 0; j < k; j++) sum += (double)x[(g * m + r) * k + j] * y[(g * k + j) * n + c];
        want[i] = rp_dtype_of(out) == RP_I8 ? (float)(int8_t)(uint8_t)(int64_t)sum : (float)sum;
    }
    rp_tensor *rounded = rp_to_dtype(
        rp_to_dtype(rp_from_data(want, (const int64_t[]){batch * m * n}, 1, RP_F32), rp_dtype_of(out)), RP_F32);
    rp_to_host(rounded, want, (size_t)(batch * m * n) * sizeof *want);
    ok();
    for (int64_t i = 0; i < batch * m * n; i++) {
        if (got[i] != want[i])
            fail_msg("%s: element %lld is %g, not %g", what, (long long)i, (double)got[i], (double)want[i]);
    }
    free(x), free(y), free(z), free(got), free(want);
}

static void one(const rp__cuda_product_row *row, rp_dtype dtype, int64_t batch, int64_t m, int64_t n, int64_t k,
                unsigned how_a, unsigned how_b, unsigned how_out, bool with_bias) {
    char what[128];
    rp_scope scope = rp_scope_begin();
    (void)snprintf(what, sizeof what, "%s %s %lld x %lld x %lld x %lld, layouts %u %u %u", row->row.name,
                   rp_dtype_name(dtype), (long long)batch, (long long)m, (long long)n, (long long)k, how_a, how_b,
                   how_out);
    rp_tensor *a = laid_out(whole(1, 5, dtype, (const int64_t[]){batch, m, k}, 3), how_a),
              *b = laid_out(whole(2, 5, dtype, (const int64_t[]){batch, k, n}, 3), how_b),
              *bias = with_bias ? whole(3, 9, dtype, &n, 1) : NULL,
              *out = laid_out(empty(dtype, (const int64_t[]){batch, m, n}, 3), how_out);
    ok();
    run(row, out, a, b, bias);
    assert_product(what, out, a, b, bias, batch, m, n, k);
    rp_scope_end(scope, NULL, 0);
}

static void test_sums(void **state) {
    static const struct {
        int64_t batch, m, n, k;
        int multiprocessors;
    } cases[] = {
        {1, 1, 1, 1, 132},     {1, 3, 5, 7, 132},     {2, 17, 33, 40, 132},  {1, 64, 64, 64, 132},
        {3, 70, 130, 65, 1},   {1, 129, 257, 100, 1}, {1, 130, 129, 33, 2},  {1, 1, 200, 1030, 132},
        {1, 200, 1, 520, 132}, {1, 16, 64, 512, 132}, {2, 40, 48, 300, 132}, {1, 100, 72, 4200, 4},
        {1, 33, 20, 9000, 1},
    };
    const rp__cuda_product_row *const rows[] = {&rp__cuda_tensor_row, &rp__cuda_tensor_row, &rp__cuda_tensor_row,
                                                &rp__cuda_fma_row};
    static const rp_dtype dtypes[] = {RP_F16, RP_BF16, RP_I8, RP_F32};
    const int multiprocessors = cuda->multiprocessors;
    (void)state;
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (unsigned d = 0; d < 4; d++) {
            const unsigned layout = c * 5 + d * 3; /* one of all in turn; all of them below */
            cuda->multiprocessors = cases[c].multiprocessors;
            if (test_cuda_takes(c + d, 3))
                one(rows[d], dtypes[d], cases[c].batch, cases[c].m, cases[c].n, cases[c].k, layout % 16,
                    layout / 3 % 16, layout / 2 % 4, c % 2);
            if (test_cuda_takes(c + d, 4))
                one(rows[d], dtypes[d], cases[c].batch, cases[c].m, cases[c].n, cases[c].k, 0, d % 2, 0, false);
            cuda->multiprocessors = multiprocessors;
        }
    }
}

static void test_layouts(void **state) {
    (void)state;
    for (unsigned a = 0; a < 16; a++) {
        if (!test_cuda_takes(a, 3)) continue;
        one(&rp__cuda_tensor_row, RP_BF16, 2, 24, 40, 72, a, (a * 7 + 3) % 16, a % 8, a % 2);
        one(&rp__cuda_tensor_row, RP_I8, 2, 24, 40, 72, a, (a * 5 + 1) % 16, a % 8, a % 2);
        one(&rp__cuda_fma_row, RP_F32, 2, 24, 40, 72, a, (a * 3 + 2) % 16, a % 8, a % 2);
    }
}

/* Offsets of 64 bits, which a stride asks for even where its dim has one element. */
static void test_far_apart(void **state) {
    static const rp_dtype dtypes[] = {RP_BF16, RP_I8, RP_F32};
    const int64_t m = 20, n = 24, k = 40;
    (void)state;
    for (unsigned d = 0; d < 3; d++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *a = whole(1, 5, dtypes[d], (const int64_t[]){1, m, k}, 3),
                  *b = whole(2, 5, dtypes[d], (const int64_t[]){1, k, n}, 3),
                  *far = rp_as_strided(a, RP_DIMS(1, m, k), RP_DIMS(INT64_C(1) << 40, k, 1)),
                  *out = empty(dtypes[d], (const int64_t[]){1, m, n}, 3);
        ok();
        run(d == 2 ? &rp__cuda_fma_row : &rp__cuda_tensor_row, out, far, b, NULL);
        assert_product("far apart", out, a, b, NULL, 1, m, n, k);
        rp_scope_end(scope, NULL, 0);
    }
}

/* Numbers that are not whole: the bits are a function of sizes alone. */
static void test_bits(void **state) {
    static const rp_dtype dtypes[] = {RP_F16, RP_BF16, RP_F32};
    (void)state;
    for (unsigned d = 0; d < 3; d++) {
        rp_scope scope = rp_scope_begin();
        const rp__cuda_product_row *row = dtypes[d] == RP_F32 ? &rp__cuda_fma_row : &rp__cuda_tensor_row;
        rp_tensor *a = rp_div_scalar(whole(4, 1000, dtypes[d], (const int64_t[]){1, 70, 1100}, 3), rp_f64(7)),
                  *b = rp_div_scalar(whole(5, 1000, dtypes[d], (const int64_t[]){1, 1100, 72}, 3), rp_f64(900)),
                  *first = empty(dtypes[d], (const int64_t[]){1, 70, 72}, 3);
        run(row, first, a, b, NULL);
        for (unsigned how = 1; how < 16; how++) {
            if (!test_cuda_takes(how, 5)) continue;
            rp_tensor *out = empty(dtypes[d], (const int64_t[]){1, 70, 72}, 3);
            run(row, out, laid_out(a, how), laid_out(b, 15 - how), NULL);
            if (!rp_item_i64(rp_all(rp_eq(out, first)))) fail_msg("layout %u changes bits", how);
        }
        ok();
        rp_scope_end(scope, NULL, 0);
    }
}

/* Dims of a CONTRACT may be divided into rows and batches in another way than the op's: the shares of K are those of its order. */
static void test_wanted_order(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *a = whole(1, 5, RP_BF16, (const int64_t[]){2, 40, 512}, 3),
              *b = whole(2, 5, RP_BF16, (const int64_t[]){2, 512, 24}, 3),
              *out = empty(RP_BF16, (const int64_t[]){2, 40, 24}, 3);
    const rp__operand o[3] = {rp__operand_of(out), rp__operand_of(a), rp__operand_of(b)};
    const rp__library_call call = {.op = "test", .site = "test_products.c"};
    rp__problem p = {cuda, RP__LIB_MATMUL, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
    const rp__order own = rp__cuda_tensor_row.row.order(&p);
    assert_int_equal(rp__order_family_of(own), RP__FAMILY_MMA);
    for (unsigned shares = 0; shares < 4; shares++) {
        rp__launch launch = {.op = "test", .site = call.site};
        rp__launch_buffer *buffer = rp__launch_buffer_get();
        p.order = rp__order_with(rp__order_of(RP__CONTRACT_PRODUCT, 0), RP__FAMILY_MMA, shares);
        assert_int_equal(rp__cuda_tensor_row.row.order(&p), p.order);
        if (rp__cuda_tensor_row.row.bind(&p, 0, buffer, &launch) != RP_OK ||
            rp__launch_on(rp__current_stream(cuda), &launch) != RP_OK)
            ok();
        assert_int_equal(launch.grid[0] % (1u << shares), 0);
        assert_product("shares of K", out, a, b, NULL, 2, 40, 24, 512);
    }
    rp_scope_end(scope, NULL, 0);
}

/* Instructions of warpgroups: each tile, both ways that an operand may run, sizes that end inside of tiles and of 16 bytes, shares of K. */
static void test_groups(void **state) {
    static const struct {
        int64_t batch, m, n, k;
        unsigned how_a, how_b; /* 2: rows are 7 elements further apart */
        int multiprocessors;
        unsigned shares;
    } cases[] = {{1, 70, 136, 200, 0, 0, 1, 0},  {2, 50, 131, 257, 2, 3, 2, 0},   {1, 200, 136, 97, 1, 0, 2, 0},
                 {1, 130, 257, 304, 0, 1, 1, 0}, {1, 129, 257, 100, 3, 2, 1, 0},  {3, 64, 64, 256, 0, 1, 1, 0},
                 {1, 33, 72, 400, 0, 0, 1, 1},   {1, 65, 40, 1042, 3, 0, 1, 2},   {2, 25, 24, 1393, 2, 0, 1, 3},
                 {1, 128, 256, 520, 1, 1, 1, 0}, {1, 90, 200, 89, 2, 0, 1, 1},    {1, 300, 40, 264, 0, 1, 2, 0},
                 {5, 136, 120, 72, 1, 0, 3, 0},  {1, 120, 128, 1024, 0, 0, 1, 0}, {1, 64, 120, 1864, 1, 0, 1, 0},
                 {1, 250, 64, 512, 0, 1, 1, 0},  {1, 128, 250, 1104, 1, 1, 1, 0}};
    const int multiprocessors = cuda->multiprocessors;
    const rp__library_call call = {.op = "test", .site = "test_products.c"};
    unsigned long long tiles = 0;
    unsigned groups = 0, runs = 0;
    (void)state;
    if (cuda->arch != 90) {
        print_message("skipped: a device of 9.0 has these instructions\n");
        skip();
    }
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (unsigned turn = 0; turn < 2; turn++) {
            if (!test_cuda_takes(c + turn, 2)) continue; /* either type */
            runs++;
            const rp_dtype dtype = turn ? RP_F16 : RP_BF16;
            const int64_t batch = cases[c].batch, m = cases[c].m, n = cases[c].n, k = cases[c].k;
            char what[96];
            rp_scope scope = rp_scope_begin();
            (void)snprintf(what, sizeof what, "groups %lld x %lld x %lld x %lld", (long long)batch, (long long)m,
                           (long long)n, (long long)k);
            rp_tensor *a = laid_out(whole(1, 5, dtype, (const int64_t[]){batch, m, k}, 3), cases[c].how_a),
                      *b = laid_out(whole(2, 5, dtype, (const int64_t[]){batch, k, n}, 3), cases[c].how_b),
                      *out = laid_out(empty(dtype, (const int64_t[]){batch, m, n}, 3), turn ? 6 : 0);
            const rp__operand o[3] = {rp__operand_of(out), rp__operand_of(a), rp__operand_of(b)};
            rp__problem p = {cuda, RP__LIB_MATMUL, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
            rp__launch launch = {.op = "test", .site = call.site};
            rp__launch_buffer *buffer = rp__launch_buffer_get();
            unsigned long long facts = 0;
            p.order = rp__order_with(rp__order_of(RP__CONTRACT_PRODUCT, 0), RP__FAMILY_MMA, cases[c].shares);
            assert_int_equal(rp__cuda_tensor_row.row.order(&p), p.order);
            cuda->multiprocessors = cases[c].multiprocessors;
            if (rp__cuda_tensor_row.row.bind(&p, 0, buffer, &launch) != RP_OK ||
                rp__launch_on(rp__current_stream(cuda), &launch) != RP_OK)
                ok();
            cuda->multiprocessors = multiprocessors;
            assert_int_equal(sscanf(launch.kernel->name, "rp_product_%llx", &facts), 1);
            if ((facts >> 8 & 7) == 5) tiles |= 1ull << (facts >> 11 & 31), groups++; /* product.c */
            assert_int_equal(launch.grid[0] % (1u << cases[c].shares), 0);
            assert_product(what, out, a, b, NULL, batch, m, n, k);
            rp_scope_end(scope, NULL, 0);
        }
    }
    if (runs >= sizeof cases / sizeof *cases && (__builtin_popcountll(tiles) < 3 || groups * 34 < runs * 20))
        fail_msg("tiles %llx, %u by groups of %u", tiles, groups, runs);
}

/* Each tile of fma, of warps and of warpgroups by itself, with results that lie as vectors, in pairs and one by one, and a bias. */
static void test_each_tile(void **state) {
    enum { FMA = 9, FIRST = 16, TILES = 12 }; /* product.c */
    (void)state;
    for (unsigned k = FMA; k < FIRST; k++) {
        rp__cuda_product_tile = 1 + k;
        one(&rp__cuda_fma_row, RP_F32, 1, 13 + 16 * (k % 2), 130, 100, 0, k % 2, 0, true);
        rp__cuda_product_tile = 0;
    }
    for (unsigned k = 0; k < FMA; k++) {
        rp__cuda_product_tile = 1 + k;
        one(&rp__cuda_tensor_row, RP_BF16, 1, 66, 264, 200, 0, k % 2, 0, k % 2);
        rp__cuda_product_tile = 0;
    }
    if (cuda->arch != 90) {
        print_message("skipped: a device of 9.0 has these instructions\n");
        skip();
    }
    for (unsigned k = 0; k < TILES; k++) {
        rp__cuda_product_tile = 1 + FIRST + k;
        one(&rp__cuda_tensor_row, RP_BF16, 1, 66 + 64 * (k % 2), 102 + 192 * (k % 3 == 0) + k % 2, 200, 0, 1, 0, true);
        if (test_cuda_takes(k, 2))
            one(&rp__cuda_tensor_row, RP_F16, 1, 130, 104, 704, k / 2 % 2, 0, k % 3 ? 0 : 6, k / 2 % 2);
        if (test_cuda_takes(k + 1, 2)) one(&rp__cuda_tensor_row, RP_F16, 1, 130, 264, 200, 0, k / 2 % 2, 0, true);
        rp__cuda_product_tile = 0;
    }
}

/* f32 in slices: each tile in every number of shares, sizes that end inside of a slice, of a step, of a tile, sums of several blocks; numbers
   that are not whole have the same bits in all of them. */
static void test_slices(void **state) {
    enum { FIRST = 28, TILES = 8 }; /* product.c */
    static const int64_t cases[][3] = {{12, 200, 97}, {5, 131, 2500}, {70, 72, 290}, {33, 17, 20}, {16, 264, 1060}};
    const rp__library_call call = {.op = "test", .site = "test_products.c"};
    (void)state;
    if (cuda->arch < 90) {
        print_message("skipped: clusters of blocks are of 9.0\n");
        skip();
    }
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t m = cases[c][0], n = cases[c][1], k = cases[c][2];
        rp_scope scope = rp_scope_begin();
        rp_tensor *a = whole(6, 5, RP_F32, (const int64_t[]){1, m, k}, 3),
                  *b = whole(7, 5, RP_F32, (const int64_t[]){1, k, n}, 3),
                  *odd = rp_div_scalar(whole(8, 1000, RP_F32, (const int64_t[]){1, k, n}, 3), rp_f64(900)),
                  *first[4] = {NULL};
        ok();
        for (unsigned tile = 0; tile < TILES; tile++) {
            for (unsigned shares = 0; shares < 4; shares++) {
                const unsigned how = (c + tile * 3 + shares * 5) % 16;
                if (!test_cuda_takes(c + tile + shares, 3)) continue;
                for (unsigned whole_numbers = 0; whole_numbers < 2; whole_numbers++) {
                    rp_tensor *factor = whole_numbers ? b : odd,
                              *out = laid_out(empty(RP_F32, (const int64_t[]){1, m, n}, 3), how / 2 % 8),
                              *x = laid_out(a, how), *y = laid_out(factor, how * 7 % 16);
                    const rp__operand o[3] = {rp__operand_of(out), rp__operand_of(x), rp__operand_of(y)};
                    const rp__problem p = {
                        cuda,  RP__LIB_MATMUL,
                        o,     3,
                        &call, rp__order_with(rp__order_of(RP__CONTRACT_PRODUCT, 0), RP__FAMILY_SLICES, shares),
                        NULL};
                    rp__launch launch = {.op = "test", .site = call.site};
                    rp__launch_buffer *buffer = rp__launch_buffer_get();
                    rp__cuda_product_tile = 1 + FIRST + tile;
                    assert_int_equal(rp__cuda_fma_row.row.order(&p), p.order);
                    if (rp__cuda_fma_row.row.bind(&p, 0, buffer, &launch) != RP_OK ||
                        rp__launch_on(rp__current_stream(cuda), &launch) != RP_OK)
                        ok();
                    rp__cuda_product_tile = 0;
                    assert_int_equal(launch.grid[0] % (1u << shares), 0);
                    if (whole_numbers)
                        assert_product("slices", out, a, b, NULL, 1, m, n, k);
                    else if (!first[shares])
                        first[shares] = out;
                    else if (!rp_item_i64(rp_all(rp_eq(out, first[shares]))))
                        fail_msg("tile %u, layout %u, %u shares: other bits", tile, how, 1u << shares);
                }
            }
        }
        ok();
        rp_scope_end(scope, NULL, 0);
    }
    /* a few rows of a wide product are cut into slices, eagerly and behind it; large ones are not */
    rp_scope scope = rp_scope_begin();
    static const int64_t sizes[][4] = {
        {8, 4096, 1024, 1}, {12, 3072, 768, 1}, {12, 768, 3072, 1}, {1024, 1024, 128, 0}};
    for (unsigned c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        const int64_t m = sizes[c][0], n = sizes[c][1], k = sizes[c][2];
        rp_tensor *a = empty(RP_F32, (const int64_t[]){1, m, k}, 3), *b = empty(RP_F32, (const int64_t[]){1, k, n}, 3),
                  *out = empty(RP_F32, (const int64_t[]){1, m, n}, 3);
        const rp__operand o[3] = {rp__operand_of(out), rp__operand_of(a), rp__operand_of(b)};
        const rp__problem p = {cuda, RP__LIB_MATMUL, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
        const int multiprocessors = cuda->multiprocessors;
        cuda->multiprocessors = 132;
        assert_int_equal(rp__order_family_of(rp__cuda_fma_row.row.order(&p)) == RP__FAMILY_SLICES, sizes[c][3]);
        cuda->multiprocessors = multiprocessors;
    }
    rp_scope_end(scope, NULL, 0);
}

/* Few rows, or few columns: every way in which the operands can lie has the same bits, and so has the product the other way round; batches, biases,
   sums that end inside of a piece, more lines than there are few. */
static void test_few(void **state) {
    static const struct {
        rp_dtype dtype;
        int64_t batch, few, many, k;
    } cases[] = {
        {RP_F32, 1, 12, 96, 768}, {RP_F32, 1, 1, 52, 1029},   {RP_F32, 2, 3, 40, 260},   {RP_F32, 1, 16, 33, 300},
        {RP_F32, 3, 5, 24, 515},  {RP_F32, 1, 20, 44, 256},   {RP_F16, 1, 4, 72, 1024},  {RP_BF16, 2, 7, 48, 523},
        {RP_F16, 1, 1, 130, 700}, {RP_BF16, 1, 12, 40, 1500}, {RP_F32, 1, 2, 1200, 256}, {RP_F16, 1, 8, 1600, 264},
        {RP_BF16, 1, 3, 40, 640}, {RP_F16, 1, 16, 64, 515},   {RP_F16, 1, 2, 24, 300},   {RP_BF16, 3, 20, 32, 256}};
    const rp__library_call call = {.op = "test", .site = "test_products.c"};
    const rp__order lanes = rp__order_with(rp__order_of(RP__CONTRACT_PRODUCT, 0), RP__FAMILY_LANES, 0);
    (void)state;
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t batch = cases[c].batch, k = cases[c].k;
        rp_scope scope = rp_scope_begin();
        rp_tensor *few = whole(6, 5, cases[c].dtype, (const int64_t[]){batch, cases[c].few, k}, 3),
                  *many = whole(7, 5, cases[c].dtype, (const int64_t[]){batch, k, cases[c].many}, 3),
                  *odd = rp_to_dtype(
                      rp_div_scalar(whole(8, 1000, RP_F32, (const int64_t[]){batch, k, cases[c].many}, 3), rp_f64(900)),
                      cases[c].dtype),
                  *first = NULL;
        for (unsigned turned = 0; turned < 2; turned++) {
            const int64_t m = turned ? cases[c].many : cases[c].few, n = turned ? cases[c].few : cases[c].many;
            rp_tensor *bias = whole(9, 5, cases[c].dtype, (const int64_t[]){n}, 1);
            ok();
            for (unsigned how = 0; how < 16; how++) {
                if (!test_cuda_takes(c + how, 3)) continue;
                for (unsigned whole_numbers = 0; whole_numbers < 2; whole_numbers++) {
                    rp_tensor *factor = whole_numbers ? many : odd, *with = whole_numbers && how % 2 ? bias : NULL,
                              *a = turned ? rp_transpose(factor, 1, 2) : few,
                              *b = turned ? rp_transpose(few, 1, 2) : factor,
                              *out = laid_out(empty(cases[c].dtype, (const int64_t[]){batch, m, n}, 3), how / 2 % 8),
                              *x = laid_out(a, how), *y = laid_out(b, how * 7 % 16);
                    rp__operand o[4] = {rp__operand_of(out), rp__operand_of(x), rp__operand_of(y)};
                    if (with) o[3] = rp__operand_of(with);
                    const rp__problem p = {cuda, RP__LIB_MATMUL, o, with ? 4 : 3, &call, lanes, NULL};
                    rp__launch launch = {.op = "test", .site = call.site};
                    rp__launch_buffer *buffer = rp__launch_buffer_get();
                    size_t workspace = 0;
                    assert_int_equal(rp__cuda_stream_row.row.order(&p), lanes);
                    assert_true(rp__cuda_stream_row.row.serves(&p, &workspace));
                    if (rp__cuda_stream_row.row.bind(&p, 0, buffer, &launch) != RP_OK ||
                        rp__launch_on(rp__current_stream(cuda), &launch) != RP_OK)
                        ok();
                    if (whole_numbers)
                        assert_product("few", out, a, b, with, batch, m, n, k);
                    else if (!first)
                        first = out;
                    else if (!rp_item_i64(rp_all(rp_eq(turned ? rp_transpose(out, 1, 2) : out, first))))
                        fail_msg("case %u, layout %u, turned %u: other bits", c, how, turned);
                }
            }
        }
        ok();
        rp_scope_end(scope, NULL, 0);
    }
}

/* Who computes a product, by sizes, on a device of 9.0 with 132 multiprocessors: rounds of tiles whose ends take as long as several steps
 * are not one round. */
static void test_choice(void **state) {
    static const struct {
        rp_dtype dtype;
        int64_t batch, m, k, n;
        bool ours;
    } cases[] = {{RP_BF16, 64, 256, 256, 256, true},    {RP_F16, 384, 512, 64, 512, false},
                 {RP_BF16, 1, 512, 512, 512, true},     {RP_BF16, 1, 16, 4096, 4096, false},
                 {RP_BF16, 1, 64, 4096, 4096, true},    {RP_BF16, 64, 256, 64, 256, true},
                 {RP_BF16, 1, 2048, 2048, 2048, false}, {RP_F16, 1, 4096, 4096, 4096, false},
                 {RP_BF16, 1, 128, 255, 128, false}, /* element by element: never by the kernel that walks K alone */
                 {RP_F16, 1, 24, 4000, 32, true}};
    const int multiprocessors = cuda->multiprocessors;
    const rp__library_call call = {.op = "test", .site = "test_products.c"};
    (void)state;
    if (cuda->arch != 90) {
        print_message("skipped: a device of 9.0 has these instructions\n");
        skip();
    }
    cuda->multiprocessors = 132;
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int64_t rows[3] = {cases[c].m, cases[c].m, cases[c].k}, columns[3] = {cases[c].n, cases[c].k, cases[c].n};
        rp__operand o[3] = {{.ndim = 3}, {.ndim = 3}, {.ndim = 3}};
        for (unsigned k = 0; k < 3; k++) {
            o[k].dtype = cases[c].dtype;
            o[k].size[0] = cases[c].batch, o[k].size[1] = rows[k], o[k].size[2] = columns[k];
            o[k].stride[0] = rows[k] * columns[k], o[k].stride[1] = columns[k], o[k].stride[2] = 1;
        }
        const rp__problem p = {cuda, RP__LIB_MATMUL, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
        const bool ours = rp__cuda_tensor_row.row.cost(&p) < rp__cuda_lt_row.row.cost(&p);
        if (rp__cuda_matmul_row.row.cost(&p) <= rp__cuda_lt_row.row.cost(&p)) {
            cuda->multiprocessors = multiprocessors;
            fail_msg("case %u walks K alone", c);
        }
        if (ours != cases[c].ours) {
            cuda->multiprocessors = multiprocessors;
            fail_msg("case %u is %s", c, ours ? "ours" : "the library's");
        }
    }
    /* what is ours of many small ones is by warpgroups */
    rp_scope scope = rp_scope_begin();
    rp_tensor *t[3];
    for (unsigned k = 0; k < 3; k++) t[k] = empty(RP_BF16, (const int64_t[]){64, 256, 256}, 3);
    const rp__operand o[3] = {rp__operand_of(t[0]), rp__operand_of(t[1]), rp__operand_of(t[2])};
    const rp__problem p = {cuda, RP__LIB_MATMUL, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
    rp__launch launch = {.op = "test", .site = call.site};
    unsigned long long facts = 0;
    const rp_status status = rp__cuda_tensor_row.row.bind(&p, 0, rp__launch_buffer_get(), &launch);
    cuda->multiprocessors = multiprocessors;
    if (status != RP_OK) ok();
    assert_int_equal(sscanf(launch.kernel->name, "rp_product_%llx", &facts), 1);
    assert_int_equal(facts >> 8 & 7, 5); /* product.c */
    rp_scope_end(scope, NULL, 0);
}

/* ---- with what follows */

static void activation(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    rp_tensor *y = rp_linear(in[0], in[1], in[2]);
    out[0] = rp_add(rp_mul(rp_sigmoid(y), in[3]), in[4]);
}
static void plain(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_relu(rp_add(rp_matmul(in[0], in[1]), in[2]));
}
/* Siblings as attention has them, and one that reads what another one gives. */
static void siblings(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_linear(in[0], in[1], in[4]);
    out[1] = rp_linear(in[0], in[2], in[5]);
    out[2] = rp_linear(in[0], in[3], in[6]);
    out[3] = rp_linear(out[1], in[2], in[5]);
}
static void test_siblings(void **state) {
    (void)state;
    for (unsigned d = 0; d < 4; d++) {
        const int64_t m = d < 2 ? 96 : 4, n = d < 2 ? 216 : 384; /* few rows: stream.c's */
        const rp_dtype dtype = d % 2 ? RP_F32 : RP_BF16;
        rp_scope scope = rp_scope_begin();
        rp_tensor *in[7] = {whole(1, 3, dtype, (const int64_t[]){m, n}, 2)}, *want[4], *got[4];
        unsigned most = 0;
        for (unsigned k = 0; k < 3; k++) {
            in[1 + k] = whole(2 + k, 3, dtype, (const int64_t[]){n, n}, 2);
            in[4 + k] = whole(5 + k, 3, dtype, &n, 1);
        }
        siblings(NULL, in, 7, want, 4);
        rp_compiled *f = rp_compile((rp_fn){.body = siblings, .name = "siblings"},
                                    RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
        for (unsigned turn = 0; turn < 3; turn++) {
            if (turn == 2) in[2] = rp_clone(in[2], NULL); /* moved: the launch is re-pointed */
            rp_call(f, in, 7, got, 4);
            ok();
            for (size_t k = 0; k < 4; k++)
                if (!rp_item_i64(rp_all(rp_eq(got[k], want[k])))) fail_msg("result %zu of siblings", k);
        }
        for (size_t k = 0; k < rp_explain_count(f); k++) {
            rp_explain_entry e;
            unsigned long long facts;
            assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
            const char *at = strstr(e.message, d < 2 ? "rp_product_" : "rp_stream_");
            if (!at || sscanf(strchr(at + 3, '_'), "_%llx", &facts) != 1) continue;
            const unsigned problems = (unsigned)(facts >> (d < 2 ? 30 : 17) & 3) + 1; /* product.c, stream.c */
            if (problems > most) most = problems;
        }
        assert_int_equal(most, 3);
        rp_compiled_release(f);
        rp_scope_end(scope, NULL, 0);
    }
}
/* i8: additions wrap */
static void whole_numbers(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_add(rp_matmul(in[0], in[1]), in[2]);
    out[1] = rp_gt(out[0], in[2]);
}

static int64_t launches(rp_compiled *f) {
    int64_t n = 0;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        rp_explain_entry e;
        assert_int_equal(rp_explain_get(f, k, &e), RP_OK);
        if (strcmp(e.kind, "kernel") == 0 || strcmp(e.kind, "library") == 0) n += e.count;
    }
    return n;
}

static void follows(const char *what, rp_body *body, rp_tensor *const *in, size_t n_in, size_t n_out) {
    rp_tensor *want[2] = {0}, *got[2] = {0};
    body(NULL, in, n_in, want, n_out);
    ok();
    rp_compiled *f = rp_compile((rp_fn){.body = body, .name = what},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (unsigned turn = 0; turn < 2; turn++) {
        rp_call(f, in, n_in, got, n_out);
        ok();
        for (size_t k = 0; k < n_out; k++) {
            if (!rp_item_i64(rp_all(rp_eq(want[k], got[k])))) fail_msg("%s: bits of result %zu differ", what, k);
        }
    }
    ok();
    if (launches(f) != 1) {
        for (size_t k = 0; k < rp_explain_count(f); k++) {
            rp_explain_entry e;
            (void)rp_explain_get(f, k, &e);
            print_message("%s [%s] %s (%lld)\n", e.kind, e.reason, e.message, (long long)e.count);
        }
        fail_msg("%s: %lld launches", what, (long long)launches(f));
    }
    rp_compiled_release(f);
}

static void test_follows(void **state) {
    static const rp_dtype dtypes[] = {RP_F16, RP_BF16};
    (void)state;
    for (unsigned d = 0; d < 2; d++) {
        rp_scope scope = rp_scope_begin();
        const rp_dtype t = dtypes[d];
#define WHOLE(seed, most, ...)                                                                                         \
    whole(seed, most, t, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
        rp_tensor *x = rp_div_scalar(WHOLE(1, 999, 3, 47, 160), rp_f64(700)),
                  *w = rp_div_scalar(WHOLE(2, 999, 96, 160), rp_f64(3000));
        rp_tensor *in[] = {x, w, WHOLE(3, 9, 96), WHOLE(4, 9, 3, 47, 96), WHOLE(5, 9, 96)};
        follows("linear, sigmoid, scale, add", activation, in, 5, 1);
        /* batches that share the second factor: rows of one product in the DAG, batches in the op */
        rp_tensor *shared[] = {rp_div_scalar(WHOLE(1, 999, 6, 40, 264), rp_f64(700)),
                               rp_expand(rp_div_scalar(WHOLE(2, 999, 264, 72), rp_f64(3000)), RP_DIMS(6, 264, 72)),
                               WHOLE(3, 9, 72)};
        follows("batches of one weight", plain, shared, 3, 1);
        rp_tensor *apart[] = {rp_div_scalar(WHOLE(1, 999, 4, 5, 33, 128), rp_f64(700)),
                              rp_div_scalar(WHOLE(2, 999, 4, 5, 128, 24), rp_f64(3000)), WHOLE(3, 9, 33, 24)};
        follows("batches", plain, apart, 3, 1);
        rp_tensor *turned[] = {rp_transpose(rp_div_scalar(WHOLE(1, 999, 250, 33), rp_f64(700)), 0, 1),
                               rp_div_scalar(WHOLE(2, 999, 250, 57), rp_f64(3000)), WHOLE(3, 9, 33, 1)};
        follows("turned", plain, turned, 3, 1);
        rp_tensor *row[] = {rp_div_scalar(WHOLE(1, 999, 1, 2048), rp_f64(700)),
                            rp_div_scalar(WHOLE(2, 999, 2048, 300), rp_f64(3000)), WHOLE(3, 9, 300)};
        follows("one row", plain, row, 3, 1);
        rp_scope_end(scope, NULL, 0);
    }
    rp_scope scope = rp_scope_begin();
    const rp_dtype t = RP_I8;
    rp_tensor *small[] = {WHOLE(1, 100, 20, 30), WHOLE(2, 100, 30, 10), WHOLE(3, 100, 10)};
    follows("small products of i8", whole_numbers, small, 3, 2);
    rp_tensor *large[] = {WHOLE(1, 100, 70, 300), WHOLE(2, 100, 300, 81), WHOLE(3, 100, 81)};
    follows("products of i8", whole_numbers, large, 3, 2);
    rp_scope_end(scope, NULL, 0);
}

/* f32 by fma: the sizes from which large tiles serve. */
static void test_follows_f32(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    const rp_dtype t = RP_F32;
    rp_tensor *x = rp_div_scalar(WHOLE(1, 999, 130, 300), rp_f64(700)),
              *w = rp_div_scalar(WHOLE(2, 999, 120, 300), rp_f64(3000));
    rp_tensor *in[] = {x, w, WHOLE(3, 9, 120), WHOLE(4, 9, 130, 120), WHOLE(5, 9, 120)};
    follows("linear, sigmoid, scale, add", activation, in, 5, 1);
    rp_scope_end(scope, NULL, 0);
}

/* ---- precision */

/* Tensor cores under a setting: how far from the sums of the numbers as they are, and the same bits for all layouts. */
static void test_precision(void **state) {
    static const struct {
        rp__float32_precision precision;
        double error; /* of a result, in parts of the sum of |a b| */
    } cases[] = {{RP__FLOAT32_HIGH, 1.1e-3}, {RP__FLOAT32_MEDIUM, 1.1e-3}, {RP__FLOAT32_BF16X3, 4e-5}};
    const int64_t m = 50, n = 72, k = 200;
    (void)state;
    for (unsigned c = 0; c < 3; c++) {
        rp_scope scope = rp_scope_begin();
        rp_tensor *a = rp_div_scalar(whole(1, 4000000, RP_F32, (const int64_t[]){1, m, k}, 3), rp_f64(3e6)),
                  *b = rp_div_scalar(whole(2, 4000000, RP_F32, (const int64_t[]){1, k, n}, 3), rp_f64(3e6)),
                  *first = NULL;
        float *x = on_host(a), *y = on_host(b);
        for (unsigned how = 0; how < 16; how += how < 4 ? 1 : 4) {
            rp_tensor *out = empty(RP_F32, (const int64_t[]){1, m, n}, 3), *left = laid_out(a, how),
                      *right = laid_out(b, how * 7 % 16);
            const rp__operand o[3] = {rp__operand_of(out), rp__operand_of(left), rp__operand_of(right)};
            const rp__library_call call = {.op = "test", .precision = (uint8_t)cases[c].precision};
            const rp__problem p = {cuda, RP__LIB_MATMUL, o, 3, &call, RP__ORDER_ELSEWHERE, NULL};
            rp__launch launch = {.op = "test"};
            rp__launch_buffer *buffer = rp__launch_buffer_get();
            if (rp__cuda_tensor_row.row.bind(&p, 0, buffer, &launch) != RP_OK ||
                rp__launch_on(rp__current_stream(cuda), &launch) != RP_OK)
                ok();
            assert_int_equal(rp__order_family_of(rp__cuda_tensor_row.row.order(&p)),
                             cases[c].precision == RP__FLOAT32_BF16X3 ? RP__FAMILY_BF16X3 : RP__FAMILY_TF32);
            if (how > 0) {
                if (!rp_item_i64(rp_all(rp_eq(out, first)))) fail_msg("precision %u: layout %u changes bits", c, how);
                continue;
            }
            float *got = on_host(out);
            double worst = 0;
            for (int64_t i = 0; i < m * n; i++) {
                double sum = 0, size = 0;
                for (int64_t j = 0; j < k; j++) {
                    const double product = (double)x[i / n * k + j] * (double)y[j * n + i % n];
                    sum += product;
                    size += fabs(product);
                }
                if (fabs((double)got[i] - sum) > worst * size) worst = fabs((double)got[i] - sum) / size;
            }
            if (worst > cases[c].error || worst < 1e-9) fail_msg("precision %u: error %g", c, worst);
            free(got);
            first = out;
        }
        free(x), free(y);
        rp_scope_end(scope, NULL, 0);
    }
}

/* One compiled function under all settings: eager and compiled go together. */
static void test_precision_switch(void **state) {
    (void)state;
    assert_string_equal(rp_float32_matmul_precision(), "highest");
    assert_false(rp_float32_matmul_allow_tf32());
    assert_int_not_equal(rp_set_float32_matmul_precision("exact"), RP_OK);
    assert_non_null(strstr(rp_error_message(), "exact"));
    (void)rp_error_take();
    static const char *const words[][2] = {
        {"ieee", "highest"}, {"tf32", "high"}, {"medium", "medium"}, {"bf16x3", "bf16x3"}};
    rp_scope scope = rp_scope_begin();
    const rp_dtype t = RP_F32;
    rp_tensor *x = rp_div_scalar(WHOLE(1, 99999, 130, 300), rp_f64(70000)),
              *w = rp_div_scalar(WHOLE(2, 99999, 120, 300), rp_f64(300000));
    rp_tensor *in[] = {x, w, WHOLE(3, 9, 120), WHOLE(4, 9, 130, 120), WHOLE(5, 9, 120)}, *seen[4] = {0};
    rp_compiled *f = rp_compile((rp_fn){.body = activation, .name = "precision"},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (unsigned turn = 0; turn < 2; turn++) {
        for (unsigned k = 0; k < 4; k++) {
            rp_tensor *got = NULL;
            assert_int_equal(rp_set_float32_matmul_precision(words[k][0]), RP_OK);
            assert_string_equal(rp_float32_matmul_precision(), words[k][1]);
            activation(NULL, in, 5, &seen[k], 1);
            rp_call(f, in, 5, &got, 1);
            ok();
            if (!rp_item_i64(rp_all(rp_eq(seen[k], got)))) fail_msg("%s: eager and compiled differ", words[k][0]);
        }
    }
    assert_true(rp_item_i64(rp_all(rp_eq(seen[1], seen[2]))));
    assert_false(rp_item_i64(rp_all(rp_eq(seen[0], seen[1]))));
    assert_false(rp_item_i64(rp_all(rp_eq(seen[0], seen[3]))));
    assert_false(rp_set_float32_matmul_allow_tf32(true));
    assert_string_equal(rp_float32_matmul_precision(), "high");
    assert_true(rp_set_float32_matmul_allow_tf32(false));
    assert_string_equal(rp_float32_matmul_precision(), "highest");
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
}

static int setup(void **state) {
    (void)state;
    if (rp_set_default_device(rp_cuda(0)) != RP_OK) return -1;
    cuda = rp__device_get(rp_cuda(0));
    return cuda ? 0 : -1;
}

int main(void) {
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_far_apart),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_wanted_order),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_each_tile),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_few),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_siblings),
        cmocka_unit_test(test_follows),
        cmocka_unit_test(test_follows_f32),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_precision_switch),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
