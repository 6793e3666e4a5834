/* ctest: labels=cuda timeout=900 cost=105 */
/* Attention by one kernel, beside a plain loop in double: results and gradients over a family of sizes, masks, layouts and element types, on the
   CPU and on the CUDA device (the emulator, or a real one with REPRISE_TEST_CUDA=real); the random numbers of dropout, bit for bit those of
   docs/random.md; the same bits eagerly, compiled and captured. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <reprise.h>

#include "device/device.h"
#include "device/generator.h"
#include "kernel/cpu/dots.h"
#include "support/cuda.h"
#include "support/slow.h"

enum { NO_MASK, BOOL_MASK, F32_MASK, SAME_MASK };
enum { ROWS, HEADS_INNER, APART, LAYOUTS }; /* row-major; (B, L, H, E) turned; features two elements apart */

typedef struct work {
    rp_dtype dtype;
    int64_t b, h, kv, l, s, e, v;
    bool causal;
    int mask, layout;
    double scale, p;
    bool broadcast; /* the mask has one row, and one head */
} work;

static uint64_t state_of_words = 1;
static uint32_t random_word(void) {
    state_of_words = state_of_words * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state_of_words >> 33);
}
static int64_t below(int64_t n) { return (int64_t)(random_word() % (uint32_t)n); }
static double value(void) { return (double)(random_word() % 4096) / 1024 - 2; }

/* (b, h, l, e) of random numbers. */
static rp_tensor *operand(const work *w, int64_t h, int64_t l, int64_t e, bool grad) {
    const int64_t width = w->layout == APART ? 2 * e : e, n = w->b * h * l * width;
    double *data = malloc((size_t)n * sizeof *data + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < n; i++) data[i] = value();
    const bool turned = w->layout == HEADS_INNER;
    const int64_t size[4] = {w->b, turned ? l : h, turned ? h : l, width};
    rp_tensor *t = rp_to_dtype(rp_from_data(data, size, 4, RP_F64), w->dtype);
    free(data);
    if (turned) t = rp_transpose(t, 1, 2);
    if (w->layout == APART) t = rp_slice(t, 3, 0, INT64_MAX, 2);
    t = rp_detach(t);
    assert_int_equal(rp_set_requires_grad(t, grad), RP_OK);
    return t;
}

static rp_tensor *mask_of(const work *w) {
    if (w->mask == NO_MASK) return NULL;
    const int64_t heads = w->broadcast ? 1 : w->h, rows = w->broadcast ? 1 : w->l, n = w->b * heads * rows * w->s;
    double *data = malloc((size_t)n * sizeof *data + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < n; i++)
        data[i] = w->mask == BOOL_MASK ? random_word() % 3 != 0 : random_word() % 4 == 0 ? -INFINITY : value();
    /* a row that sees nothing */
    for (int64_t i = 0; i < w->s && !w->broadcast; i++) data[i] = w->mask == BOOL_MASK ? 0 : -INFINITY;
    rp_tensor *t =
        rp_to_dtype(rp_from_data(data, RP_DIMS(w->b, heads, rows, w->s), RP_F64), w->mask == BOOL_MASK  ? RP_BOOL
                                                                                  : w->mask == F32_MASK ? RP_F32
                                                                                                        : w->dtype);
    free(data);
    return t;
}

static double *host(rp_tensor *t) {
    size_t n = 1;
    for (size_t d = 0; d < rp_ndim(t); d++) n *= (size_t)rp_size(t, (int64_t)d);
    double *data = malloc(n * sizeof *data + 1);
    assert_non_null(data);
    if (rp_to_host(rp_contiguous(rp_to_dtype(rp_detach(t), RP_F64)), data, n * sizeof *data) != RP_OK)
        fail_msg("%s", rp_error_message());
    return data;
}

static rp_tensor *attend(const work *w, rp_tensor *const *in) {
    return rp_scaled_dot_product_attention(in[0], in[1], in[2], in[3], w->p, w->causal,
                                           RP_OPTIONS(rp_scaled_dot_product_attention_options,
                                                      .scale = rp_f64(w->scale),
                                                      .enable_gqa = w->h == w->kv ? RP_UNSET : RP_TRUE));
}

/* want: out (b, h, l, v) and the gradients of q, k, v. */
static void reference(const work *w, double *const *in, const double *grad, uint64_t seed, uint64_t place,
                      double **want) {
    const double *q = in[0], *k = in[1], *v = in[2], *mask = in[3];
    const int64_t group = w->h / w->kv;
    double *p = calloc((size_t)w->s + 1, sizeof *p), *kept = calloc((size_t)w->s + 1, sizeof *kept);
    for (int64_t bh = 0; bh < w->b * w->h; bh++) {
        const int64_t kv = bh / w->h * w->kv + bh % w->h / group;
        for (int64_t i = 0; i < w->l; i++) {
            double most = -INFINITY, sum = 0, delta = 0;
            for (int64_t j = 0; j < w->s; j++) {
                p[j] = 0;
                for (int64_t c = 0; c < w->e; c++)
                    p[j] += q[(bh * w->l + i) * w->e + c] * k[(kv * w->s + j) * w->e + c];
                p[j] *= w->scale;
                if (mask) {
                    const double m =
                        mask[((w->broadcast ? bh / w->h : bh) * (w->broadcast ? 1 : w->l) + (w->broadcast ? 0 : i)) *
                                 w->s +
                             j];
                    p[j] = w->mask == BOOL_MASK ? (m != 0 ? p[j] : -INFINITY) : p[j] + m;
                }
                if (w->causal && j > i) p[j] = -INFINITY;
                most = fmax(most, p[j]);
                kept[j] = 1;
                if (w->p > 0) {
                    const uint64_t element = (uint64_t)((bh * w->l + i) * w->s + j);
                    uint32_t word[4];
                    rp__philox(seed, place + element / 4, word);
                    kept[j] = (float)(word[element % 4] >> 8) * 0x1p-24f < (float)(1 - w->p) ? 1 / (1 - w->p) : 0;
                }
            }
            for (int64_t j = 0; j < w->s; j++) sum += p[j] = most == -INFINITY ? 0 : exp(p[j] - most);
            double *out = want[0] + (bh * w->l + i) * w->v;
            const double *g = grad + (bh * w->l + i) * w->v;
            for (int64_t c = 0; c < w->v; c++) {
                out[c] = 0;
                for (int64_t j = 0; j < w->s; j++)
                    out[c] += sum == 0 ? 0 : p[j] / sum * kept[j] * v[(kv * w->s + j) * w->v + c];
                delta += g[c] * out[c];
            }
            for (int64_t j = 0; j < w->s; j++) {
                const double weight = sum == 0 ? 0 : p[j] / sum;
                double slope = 0;
                for (int64_t c = 0; c < w->v; c++) {
                    slope += g[c] * v[(kv * w->s + j) * w->v + c];
                    want[3][(kv * w->s + j) * w->v + c] += weight * kept[j] * g[c];
                }
                const double d = weight * (slope * kept[j] - delta) * w->scale;
                for (int64_t c = 0; c < w->e; c++) {
                    want[1][(bh * w->l + i) * w->e + c] += d * k[(kv * w->s + j) * w->e + c];
                    want[2][(kv * w->s + j) * w->e + c] += d * q[(bh * w->l + i) * w->e + c];
                }
            }
        }
    }
    free(p);
    free(kept);
}

static void describe(const work *w, char *text, size_t n) {
    snprintf(text, n, "%s (%lld, %lld of %lld, %lld x %lld, %lld, %lld)%s mask %d layout %d scale %g dropout %g",
             rp_dtype_name(w->dtype), (long long)w->b, (long long)w->h, (long long)w->kv, (long long)w->l,
             (long long)w->s, (long long)w->e, (long long)w->v, w->causal ? " causal" : "", w->mask, w->layout,
             w->scale, w->p);
}

/* The error of one rounding of weights and results to the type, of the largest result; sums of f32 in any order. */
static double allowed(rp_dtype d) { return d == RP_F64 ? 1e-12 : d == RP_F32 ? 3e-5 : d == RP_F16 ? 4e-3 : 3e-2; }

static void look_at(const work *w) {
    static const char *const names[4] = {"result", "gradient of query", "gradient of key", "gradient of value"};
    char text[200];
    describe(w, text, sizeof text);
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[4] = {operand(w, w->h, w->l, w->e, true), operand(w, w->kv, w->s, w->e, true),
                        operand(w, w->kv, w->s, w->v, true), mask_of(w)};
    rp_tensor *grad = operand(w, w->h, w->l, w->v, false), *got[4];
    uint64_t seed = 0, place = 0, after = 0;
    rp_generator *generator = rp_default_generator(rp_default_device());
    assert_int_equal(rp_generator_get(generator, &seed, &place), RP_OK);
    got[0] = attend(w, in);
    assert_int_equal(rp_generator_get(generator, &seed, &after), RP_OK);
    if (rp_failed()) fail_msg("%s: %s", text, rp_error_message());
    assert_int_equal(after - place, w->p > 0 ? (w->b * w->h * w->l * w->s + 3) / 4 : 0);
    if (rp_grad(&got[0], 1, in, 3, &grad, NULL, &got[1]) != RP_OK) fail_msg("%s: %s", text, rp_error_message());
    const int64_t sizes[4] = {w->b * w->h * w->l * w->v, w->b * w->h * w->l * w->e, w->b * w->kv * w->s * w->e,
                              w->b * w->kv * w->s * w->v};
    double *values[4] = {host(in[0]), host(in[1]), host(in[2]), in[3] ? host(in[3]) : NULL}, *g = host(grad), *want[4];
    for (int i = 0; i < 4; i++) assert_non_null(want[i] = calloc((size_t)sizes[i] + 1, sizeof **want));
    reference(w, values, g, seed, place, want);
    for (int i = 0; i < 4; i++) {
        double *have = host(got[i]), largest = 0.05;
        for (int64_t n = 0; n < sizes[i]; n++) largest = fmax(largest, fabs(want[i][n]));
        for (int64_t n = 0; n < sizes[i]; n++)
            if (!(fabs(have[n] - want[i][n]) <= allowed(w->dtype) * largest))
                fail_msg("%s: element %lld of the %s is %.9g, not %.9g (largest %g)", text, (long long)n, names[i],
                         have[n], want[i][n], largest);
        free(have);
    }
    for (int i = 0; i < 4; i++) {
        free(want[i]);
        free(values[i]);
    }
    free(g);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

static const work fixed[] = {
    {RP_F32, 2, 4, 4, 100, 70, 64, 64, false, NO_MASK, ROWS, 0.125, 0, false},
    {RP_F32, 1, 4, 2, 33, 65, 40, 24, false, SAME_MASK, HEADS_INNER, 0.2, 0.25, false},
    {RP_F32, 1, 2, 1, 70, 129, 80, 80, true, NO_MASK, ROWS, 0.1, 0, false},
    {RP_F32, 1, 1, 1, 20, 40, 200, 256, false, BOOL_MASK, APART, 0.07, 0, false},
    {RP_F32, 1, 2, 2, 1, 300, 64, 64, false, F32_MASK, ROWS, -0.1, 0, true},
    {RP_F64, 1, 2, 2, 19, 33, 17, 9, true, NO_MASK, ROWS, 0.3, 0.1, false},
    {RP_F64, 1, 2, 1, 5, 70, 256, 256, false, F32_MASK, ROWS, 0.05, 0, false},
    {RP_BF16, 2, 2, 2, 150, 140, 64, 64, false, NO_MASK, HEADS_INNER, 0.125, 0, false},
    {RP_F16, 1, 2, 2, 140, 150, 64, 64, true, NO_MASK, ROWS, 0.125, 0, false},
    {RP_BF16, 1, 4, 2, 70, 90, 128, 128, true, NO_MASK, ROWS, 0.09, 0, false},
    {RP_F16, 1, 2, 2, 33, 31, 33, 35, false, SAME_MASK, APART, 0.15, 0, false},
    {RP_F16, 1, 2, 1, 40, 70, 96, 64, false, BOOL_MASK, ROWS, 0.1, 0.2, false},
    {RP_F16, 1, 2, 2, 66, 70, 24, 256, true, NO_MASK, HEADS_INNER, 0.06, 0.5, false},
    {RP_BF16, 1, 1, 1, 40, 70, 256, 200, false, F32_MASK, ROWS, 0.06, 0, true},
    {RP_F16, 2, 8, 2, 1, 600, 64, 64, false, NO_MASK, ROWS, 0.125, 0, false},
    {RP_F16, 1, 4, 4, 5, 700, 32, 48, false, BOOL_MASK, ROWS, 0.2, 0, false},
    {RP_BF16, 1, 8, 1, 3, 300, 128, 128, true, NO_MASK, ROWS, 0.09, 0, false},
    {RP_BF16, 1, 6, 2, 20, 80, 160, 160, false, NO_MASK, ROWS, -0.05, 0, false},
};

static work any(int64_t longest) {
    static const rp_dtype dtypes[4] = {RP_F32, RP_F16, RP_BF16, RP_F64};
    static const int64_t heads[6] = {8, 16, 32, 64, 128, 256};
    work w = {.dtype = dtypes[below(4)],
              .b = 1 + below(2),
              .kv = 1 + below(2),
              .l = 1 + below(longest),
              .s = 1 + below(longest)};
    w.h = w.kv * (1 + below(3));
    w.e = below(2) ? heads[below(6)] : 1 + below(256);
    w.v = below(2) ? w.e : 1 + below(256);
    w.causal = below(3) == 0;
    w.mask = w.causal ? NO_MASK : (int)below(4);
    w.broadcast = below(2);
    w.layout = (int)below(LAYOUTS);
    w.scale = (below(5) ? 1 : -1) / sqrt((double)w.e) / 2;
    w.p = below(3) ? 0 : 0.3;
    return w;
}

static bool choose(bool cuda) {
    if (rp_set_default_device(cuda ? rp_cuda(0) : rp_cpu()) != RP_OK) fail_msg("%s", rp_error_message());
    return true;
}

/* Draws what look_at would: the cases that follow are the same. */
static void pass_over(const work *w) {
    (void)choose(false);
    rp_scope scope = rp_scope_begin();
    (void)operand(w, w->h, w->l, w->e, true), (void)operand(w, w->kv, w->s, w->e, true);
    (void)operand(w, w->kv, w->s, w->v, true), (void)mask_of(w), (void)operand(w, w->h, w->l, w->v, false);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    (void)choose(true);
}

/* A bit for each type, mask, layout and whatever else code goes by. */
static unsigned kinds(const work *w) {
    const unsigned type = w->dtype == RP_F64 ? 0 : w->dtype == RP_F32 ? 1 : w->dtype == RP_F16 ? 2 : 3;
    return 1u << type | 1u << (4 + w->mask) | 1u << (8 + w->layout) |
           (w->p > 0 ? 1u << (type < 2 ? 11 + type : 13) : 0) | (unsigned)w->causal << 14 |
           (unsigned)(w->scale < 0) << 15 | (unsigned)w->broadcast << 16 | (unsigned)(w->h != w->kv) << 17 |
           (unsigned)(w->l < 10) << 18;
}

/* The emulator takes every other one, with all kinds that there are among them. */
static void look_at_table(bool cuda, const work *all, size_t n) {
    unsigned has = 0, met = 0;
    for (size_t i = 0; i < n; i++) {
        has |= kinds(&all[i]);
        if (cuda && !test_cuda_takes((unsigned)i + 1, 2)) continue;
        met |= kinds(&all[i]);
        look_at(&all[i]);
    }
    if (!SLOW_BUILD) assert_int_equal(met, has);
}

static void family(bool cuda, int n, int64_t longest) {
    (void)choose(cuda);
    assert_int_equal(rp_manual_seed(5), RP_OK);
    look_at_table(cuda, fixed, sizeof fixed / sizeof *fixed);
    state_of_words = 7;
    for (int i = 0; i < n; i++) {
        const work w = any(longest);
        if (!cuda || test_cuda_takes((unsigned)i, 2))
            look_at(&w);
        else
            pass_over(&w);
    }
}
static void test_family_cpu(void **state) {
    (void)state;
    family(false, SLOW_BUILD ? 50 : 200, 150);
}
static void test_family_cuda(void **state) {
    (void)state;
    family(true, 12, test_cuda_is_real() ? 300 : 40);
}

/* Few queries and many keys: the keys are shared out over blocks. */
static void test_decoding(void **state) {
    (void)state;
    for (int cuda = 0; cuda < 2; cuda++) {
        (void)choose(cuda);
        for (int64_t l = 1; l <= 16; l = l * 2 + 1) {
            const work w = {l % 2 ? RP_BF16 : RP_F16,
                            1,
                            4,
                            l < 8 ? 2 : 4,
                            l,
                            500 + 64 * l,
                            64,
                            64,
                            false,
                            NO_MASK,
                            ROWS,
                            0.125,
                            0,
                            false};
            look_at(&w);
        }
    }
}

/* Tiles of warpgroups serve where they fill the device: here one of a single multiprocessor. */
static const work by_warpgroups[] = {
    {RP_BF16, 1, 2, 2, 150, 140, 64, 64, false, NO_MASK, HEADS_INNER, 0.125, 0, false},
    {RP_F16, 1, 2, 1, 200, 270, 64, 64, true, NO_MASK, ROWS, 0.125, 0, false},
    {RP_BF16, 1, 1, 1, 300, 130, 64, 64, true, NO_MASK, ROWS, 0.125, 0.3, false},
    {RP_F16, 1, 2, 2, 33, 31, 33, 35, false, SAME_MASK, APART, 0.15, 0, false},
    {RP_F16, 1, 1, 1, 140, 260, 128, 128, true, NO_MASK, ROWS, 0.09, 0, false},
    {RP_F16, 1, 2, 1, 40, 131, 96, 64, false, BOOL_MASK, ROWS, 0.1, 0.2, false},
    {RP_BF16, 1, 1, 1, 40, 600, 128, 128, false, NO_MASK, ROWS, 0.09, 0, false},
    {RP_BF16, 1, 2, 1, 40, 129, 128, 112, false, SAME_MASK, ROWS, 0.09, 0, true},
    {RP_BF16, 1, 2, 2, 130, 70, 80, 80, false, NO_MASK, ROWS, 0.1, 0, false},
    {RP_BF16, 1, 1, 1, 70, 150, 256, 200, false, F32_MASK, ROWS, 0.06, 0, true},
    {RP_F16, 1, 1, 1, 66, 70, 24, 256, true, NO_MASK, HEADS_INNER, 0.06, 0.5, false},
    {RP_BF16, 1, 3, 1, 65, 100, 160, 160, false, NO_MASK, ROWS, -0.05, 0, false},
    {RP_BF16, 1, 3, 3, 33, 4100, 16, 112, false, NO_MASK, ROWS, 0.25, 0, false},
    {RP_F16, 1, 1, 1, 700, 270, 24, 32, true, NO_MASK, ROWS, 0.2, 0,
     false}, /* more tiles than blocks, shorter and shorter */
    /* keys of one step */
    {RP_BF16, 1, 2, 2, 200, 77, 80, 80, false, NO_MASK, ROWS, 0.1, 0, false},
    {RP_F16, 1, 2, 1, 130, 5, 64, 64, false, NO_MASK, HEADS_INNER, 0.125, 0, false},
    {RP_F16, 1, 1, 1, 150, 100, 128, 128, true, NO_MASK, ROWS, 0.09, 0, false},
    {RP_BF16, 1, 2, 1, 70, 64, 64, 40, false, F32_MASK, ROWS, 0.125, 0.2, false},
};

static void test_warpgroups(void **state) {
    (void)state;
    (void)choose(true);
    rp__device *d = rp_current_stream(rp_cuda(0))->device;
    const int processors = d->multiprocessors;
    d->multiprocessors = 1;
    look_at_table(true, by_warpgroups, sizeof by_warpgroups / sizeof *by_warpgroups);
    d->multiprocessors = processors;
}
/* Where tiles of two warpgroups are fewer than multiprocessors, those of one. */
static void test_one_warpgroup(void **state) {
    static const work some[] = {
        {RP_BF16, 1, 2, 2, 70, 140, 64, 64, false, BOOL_MASK, ROWS, 0.125, 0, true},
        {RP_F16, 1, 2, 1, 100, 200, 64, 64, true, NO_MASK, HEADS_INNER, 0.125, 0, false},
        {RP_BF16, 1, 2, 2, 65, 130, 128, 96, false, F32_MASK, ROWS, 0.09, 0.2, false},
        {RP_F16, 1, 2, 2, 40, 70, 200, 256, false, NO_MASK, APART, 0.06, 0, false},
    };
    (void)state;
    (void)choose(true);
    rp__device *d = rp_current_stream(rp_cuda(0))->device;
    const int processors = d->multiprocessors;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        d->multiprocessors = 3; /* more than tiles of two, no more than those of one */
        if (test_cuda_takes((unsigned)i, 1)) look_at(&some[i]);
    }
    d->multiprocessors = processors;
}
static void test_warpgroups_any(void **state) {
    (void)state;
    (void)choose(true);
    rp__device *d = rp_current_stream(rp_cuda(0))->device;
    const int processors = d->multiprocessors;
    d->multiprocessors = 1;
    state_of_words = 9;
    for (int i = 0; i < (test_cuda_is_real() ? 8 : 2); i++) {
        work w = any(test_cuda_is_real() ? 400 : 100);
        if (w.dtype == RP_F32 || w.dtype == RP_F64) w.dtype = i % 2 ? RP_F16 : RP_BF16;
        w.l += 32;
        look_at(&w);
    }
    d->multiprocessors = processors;
}

/* Without tensor cores tiles go by how many multiprocessors there are to fill; 16-bit floats come that way on older devices alone. */
static void test_without_tensor_cores(void **state) {
    static const work some[] = {
        {RP_F32, 1, 3, 3, 150, 140, 64, 64, false, NO_MASK, ROWS, 0.125, 0, false},
        {RP_F32, 1, 2, 1, 130, 150, 64, 48, true, NO_MASK, HEADS_INNER, 0.125, 0.2, false},
        {RP_F32, 1, 1, 1, 70, 90, 128, 128, false, F32_MASK, ROWS, 0.09, 0, true},
        {RP_F32, 1, 1, 1, 40, 100, 20, 36, false, BOOL_MASK, APART, 0.2, 0, false},
        {RP_F32, 1, 1, 1, 35, 70, 256, 248, true, NO_MASK, ROWS, 0.06, 0, false},
        {RP_F64, 1, 2, 1, 66, 70, 64, 64, true, NO_MASK, ROWS, 0.125, 0, false},
        {RP_F64, 1, 1, 1, 40, 50, 128, 112, false, SAME_MASK, HEADS_INNER, 0.09, 0.1, false},
        {RP_F16, 1, 2, 1, 50, 60, 64, 64, true, NO_MASK, ROWS, 0.125, 0.2, false},
        {RP_BF16, 1, 1, 1, 40, 70, 80, 33, false, SAME_MASK, APART, 0.1, 0, true},
    };
    (void)state;
    (void)choose(true);
    rp__device *d = rp_current_stream(rp_cuda(0))->device;
    const int processors = d->multiprocessors, arch = d->arch;
    for (unsigned i = 0; i < sizeof some / sizeof *some; i++) {
        const bool narrow = some[i].dtype == RP_F16 || some[i].dtype == RP_BF16;
        if (narrow && test_cuda_is_real()) continue; /* the device would not run what an older one does */
        if (narrow) d->arch = 75;
        for (unsigned fill = 0; fill < 3; fill++) {
            if (!test_cuda_takes(i + fill, 2)) continue;
            d->multiprocessors = 1 << 3 * fill;
            look_at(&some[i]);
        }
        d->multiprocessors = processors;
        d->arch = arch;
    }
}

/* ---- forms */

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const work *w = ctx;
    (void)n_in, (void)n_out;
    out[0] = attend(w, in);
    rp_grad(&out[0], 1, in, 3, &in[4], NULL, &out[1]);
}

static void same_bits(const char *what, rp_tensor *const *a, rp_tensor *const *b, const work *w) {
    char text[200];
    describe(w, text, sizeof text);
    if (rp_failed()) fail_msg("%s: %s", text, rp_error_message());
    for (int i = 0; i < 4; i++) {
        const size_t n = (size_t)rp_numel(a[i]) * rp_dtype_size(w->dtype);
        unsigned char *x = malloc(n + 1), *y = malloc(n + 1);
        assert_true(x && y);
        assert_int_equal(rp_to_host(rp_contiguous(rp_detach(a[i])), x, n), RP_OK);
        assert_int_equal(rp_to_host(rp_contiguous(rp_detach(b[i])), y, n), RP_OK);
        if (memcmp(x, y, n)) fail_msg("%s: %s, result %d has other bits", text, what, i);
        free(x);
        free(y);
    }
}

static void forms(work w) {
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[5] = {operand(&w, w.h, w.l, w.e, true), operand(&w, w.kv, w.s, w.e, true),
                        operand(&w, w.kv, w.s, w.v, true), mask_of(&w), operand(&w, w.h, w.l, w.v, false)};
    rp_tensor *eager[4], *again[4], *got[4];
    if (!in[3]) in[3] = rp_full(RP_DIMS(1, 1, 1, 1), rp_bool(true), RP_OPTIONS(rp_full_options, .dtype = RP_BOOL));
    assert_int_equal(rp_manual_seed(11), RP_OK);
    body(&w, in, 5, eager, 4);
    assert_int_equal(rp_manual_seed(11), RP_OK);
    body(&w, in, 5, again, 4);
    same_bits("twice", eager, again, &w);
    rp_compiled *f = rp_compile((rp_fn){body, &w, sizeof w, "attention"},
                                RP_OPTIONS(rp_compile_options, .backend = "fused", .fullgraph = true));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rp_manual_seed(11), RP_OK);
        if (rp_call(f, in, 5, got, 4) != RP_OK) fail_msg("%s", rp_error_message());
        same_bits("compiled", eager, got, &w);
    }
    rp_compiled_release(f);
    rp_graph *graph = rp_graph_new();
    assert_int_equal(rp_manual_seed(11), RP_OK);
    assert_int_equal(rp_graph_begin(graph, rp_default_device(), NULL), RP_OK);
    body(&w, in, 5, got, 4);
    if (rp_graph_end(graph) != RP_OK) fail_msg("%s", rp_error_message());
    assert_int_equal(rp_manual_seed(11), RP_OK);
    assert_int_equal(rp_graph_replay(graph), RP_OK);
    same_bits("captured", eager, got, &w);
    rp_graph_release(graph);
    assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
}

/* On a CPU a query alone goes another way than one among many, and has the same bits. */
static rp_tensor *attend_some(const work *w, rp_tensor *const *in, int64_t first, int64_t n) {
    rp_tensor *mask =
        in[3] ? rp_narrow(in[3], 2, rp_size(in[3], 2) == 1 ? 0 : first, rp_size(in[3], 2) == 1 ? 1 : n) : NULL;
    return rp_scaled_dot_product_attention(rp_narrow(in[0], 2, first, n), in[1], in[2], mask, 0, false,
                                           RP_OPTIONS(rp_scaled_dot_product_attention_options,
                                                      .scale = rp_f64(w->scale),
                                                      .enable_gqa = w->h == w->kv ? RP_UNSET : RP_TRUE));
}
static void test_few_queries(void **state) {
    (void)state;
    (void)choose(false);
    state_of_words = 21;
    for (int i = 0; i < (SLOW_BUILD ? 20 : 80); i++) {
        rp_scope scope = rp_scope_begin();
        work w = any(150);
        w.l = 17 + below(8), w.causal = false, w.p = 0;
        if (i % 3 == 0) w.s = 1 + below(20); /* fewer than fill a vector, or hardly */
        rp_tensor *in[4] = {operand(&w, w.h, w.l, w.e, false), operand(&w, w.kv, w.s, w.e, false),
                            operand(&w, w.kv, w.s, w.v, false), mask_of(&w)};
        rp_tensor *all = rp_contiguous(attend_some(&w, in, 0, w.l));
        for (int64_t n = 1; n < 6; n += n == 1 ? 1 : 3) {
            for (int64_t first = 0; first + n <= w.l; first += 5) {
                rp_tensor *some = rp_contiguous(attend_some(&w, in, first, n));
                rp_tensor *want = rp_contiguous(rp_narrow(all, 2, first, n));
                if (rp_failed()) fail_msg("%s", rp_error_message());
                if (memcmp(rp_data(some), rp_data(want), (size_t)rp_numel(want) * rp_dtype_size(w.dtype))) {
                    char text[200];
                    describe(&w, text, sizeof text);
                    fail_msg("%s: %d of them from %d on have other bits", text, (int)n, (int)first);
                }
            }
        }
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
}

static void test_forms(void **state) {
    (void)state;
    static const int some[] = {1, 5, 7, 9, 11, 12, 14};
    for (int cuda = 0; cuda < 2; cuda++) {
        (void)choose(cuda);
        for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
            work w = fixed[some[i]];
            if (cuda && !test_cuda_takes((unsigned)i, 2)) continue;
            if (w.causal) w.causal = false; /* a mask takes its place */
            if (cuda && !test_cuda_is_real()) w.l = w.l > 40 ? 40 : w.l;
            forms(w);
        }
    }
    rp__device *d = rp_current_stream(rp_cuda(0))->device;
    const int processors = d->multiprocessors;
    d->multiprocessors = 1;
    forms(by_warpgroups[5]);
    d->multiprocessors = processors;
}

/* Weights stay with probability 1 - p, and results keep their mean. */
static void test_dropout(void **state) {
    (void)state;
    for (int cuda = 0; cuda < 2; cuda++) {
        (void)choose(cuda);
        rp_scope scope = rp_scope_begin();
        assert_int_equal(rp_manual_seed(3), RP_OK);
        rp_tensor *zero = rp_zeros(RP_DIMS(1, 4, 64, 16)), *one = rp_ones(RP_DIMS(1, 4, 64, 16));
        double *out = host(rp_scaled_dot_product_attention(zero, zero, one, NULL, 0.25, false, NULL));
        double sum = 0;
        for (int i = 0; i < 4 * 64; i++) { /* 64 equal weights a row, some of them gone: whole numbers of 4 / 3 / 64 */
            const double kept = out[16 * i] * 48;
            if (fabs(kept - round(kept)) > 1e-3 || kept < 24 || kept > 64)
                fail_msg("row %d keeps %g weights of 64", i, kept);
            sum += kept;
        }
        if (fabs(sum / (4 * 64 * 64) - 0.75) > 0.02) fail_msg("%g of the weights stay", sum / (4 * 64 * 64));
        free(out);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
}

/* What is not a number shows in the rows that see it, and in no other. */
static void test_not_numbers(void **state) {
    (void)state;
    for (int cuda = 0; cuda < 2; cuda++) {
        (void)choose(cuda);
        for (int narrow = 0; narrow < 2; narrow++) {
            rp_scope scope = rp_scope_begin();
            float q[4 * 8] = {0}, v[4 * 8] = {0};
            q[2 * 8] = NAN;
            const rp_dtype dtype = narrow ? RP_BF16 : RP_F32;
            rp_tensor *a = rp_to_dtype(rp_from_data(q, RP_DIMS(1, 1, 4, 8), RP_F32), dtype),
                      *b = rp_to_dtype(rp_from_data(v, RP_DIMS(1, 1, 4, 8), RP_F32), dtype);
            double *queries = host(rp_scaled_dot_product_attention(a, b, b)),
                   *keys = host(rp_scaled_dot_product_attention(b, a, b, NULL, 0, true, NULL));
            for (int i = 0; i < 4; i++) {
                if (isnan(queries[8 * i]) != (i == 2)) fail_msg("row %d is %g", i, queries[8 * i]);
                if (isnan(keys[8 * i]) != (i >= 2)) fail_msg("row %d is %g", i, keys[8 * i]);
            }
            free(queries);
            free(keys);
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
        }
    }
}

/* The matrix unit or not, where there is one: what a mask of large numbers, and keys that nobody sees, leave of results and gradients. */
static rp_tensor *numbers(rp_dtype dtype, int64_t rows, int64_t columns) {
    const work w = {.dtype = dtype, .b = 1, .layout = ROWS};
    return operand(&w, 1, rows, columns, true);
}
static void test_far_masks(void **state) {
    enum { L = 33, S = 64, E = 64, ALL = 3, HALF = 5, HIDDEN = 7 };
    static const double far[] = {-3.4028234663852886e38, -1e9, -2e10, -5e9, -1e12};
    static const rp_dtype dtypes[] = {RP_BF16, RP_F16, RP_F32};
    (void)state;
    (void)choose(false);
    for (unsigned n = 0; n < 2 * 3 * sizeof far / sizeof *far; n++) {
        rp_scope scope = rp_scope_begin();
        const rp_dtype d = dtypes[n / 2 % 3];
        double mask[L * S] = {0};
        rp__dots_set((int)(n % 2));
        for (int j = 0; j < S; j++) {
            mask[ALL * S + j] = far[n / 6];
            mask[HALF * S + j] = j < S / 2 ? far[n / 6] : 0;
        }
        rp_tensor *q = numbers(d, L, E), *k = numbers(d, S, E), *v = numbers(d, S, E), *got[4], *plain[2];
        rp_tensor *bias = rp_to_dtype(rp_from_data(mask, RP_DIMS(1, 1, L, S), RP_F64), RP_F32),
                  *grad = numbers(d, L, E);
        got[0] = rp_scaled_dot_product_attention(q, k, v, bias, 0, false, NULL);
        assert_int_equal(rp_grad(&got[0], 1, (rp_tensor *[]){q, k, v}, 3, &grad, NULL, &got[1]), RP_OK);
        /* a row that all keys are equally far from has their mean; one whose first half is far, what the second half gives */
        plain[0] = rp_mean(rp_to_dtype(v, RP_F32), RP_DIMS(2), false, NULL);
        plain[1] = rp_scaled_dot_product_attention(rp_slice(q, 2, HALF, HALF + 1, 1), rp_slice(k, 2, S / 2, S, 1),
                                                   rp_slice(v, 2, S / 2, S, 1), NULL, 0, false, NULL);
        for (int i = 0; i < 2; i++) {
            double *have = host(rp_slice(got[0], 2, i ? HALF : ALL, (i ? HALF : ALL) + 1, 1)), *want = host(plain[i]);
            for (int c = 0; c < E; c++)
                if (!(fabs(have[c] - want[c]) <= allowed(d) * 2))
                    fail_msg("%s, unit %u, %g: %.9g, not %.9g", rp_dtype_name(d), n % 2, far[n / 6], have[c], want[c]);
            free(have);
            free(want);
        }
        for (int i = 1; i < 4; i++) {
            double *have = host(got[i]);
            for (int c = 0; c < (i == 1 ? L : S) * E;
                 c++) /* a weight of the row in all is 1 at the most, rounded as it is */
                if (!(fabs(have[c]) < 500))
                    fail_msg("%s, unit %u, %g: gradient %d is %g", rp_dtype_name(d), n % 2, far[n / 6], i, have[c]);
            free(have);
        }
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
    for (int unit = 0; unit < 2;
         unit++) { /* hidden keys that are no numbers, and rows of a length that fills no tile */
        rp_scope scope = rp_scope_begin();
        rp__dots_set(unit);
        double seen[L * S], apart[S] = {0};
        for (int i = 0; i < L * S; i++) seen[i] = i % S != HIDDEN;
        apart[HIDDEN] = INFINITY;
        rp_tensor *q = numbers(RP_BF16, L, E), *v = numbers(RP_BF16, S, E), *grad = numbers(RP_BF16, L, E), *y, *g[2];
        rp_tensor *k =
            rp_detach(rp_add(numbers(RP_BF16, S, E), rp_to_dtype(rp_from_data(apart, RP_DIMS(S, 1), RP_F64), RP_BF16)));
        assert_int_equal(rp_set_requires_grad(k, true), RP_OK);
        y = rp_scaled_dot_product_attention(
            q, k, v, rp_to_dtype(rp_from_data(seen, RP_DIMS(1, 1, L, S), RP_F64), RP_BOOL), 0, false, NULL);
        assert_int_equal(rp_grad(&y, 1, (rp_tensor *[]){k, v}, 2, &grad, NULL, g), RP_OK);
        for (int i = 0; i < 2; i++) {
            double *have = host(rp_slice(g[i], 2, HIDDEN, HIDDEN + 1, 1));
            for (int c = 0; c < E; c++)
                if (have[c] != 0) fail_msg("unit %d: gradient %d of a hidden key is %g", unit, i, have[c]);
            free(have);
        }
        /* what follows a query does not show in its bits */
        rp_tensor *q2 = numbers(RP_BF16, 130, 80), *k2 = numbers(RP_BF16, 130, 80), *v2 = numbers(RP_BF16, 130, 80);
        const rp_scaled_dot_product_attention_options *scale =
            RP_OPTIONS(rp_scaled_dot_product_attention_options, .scale = rp_f64(0.1));
        rp_tensor *whole = rp_scaled_dot_product_attention(q2, k2, v2, NULL, 0, true, scale);
        rp_tensor *less = rp_scaled_dot_product_attention(rp_slice(q2, 2, 0, 129, 1), rp_slice(k2, 2, 0, 129, 1),
                                                          rp_slice(v2, 2, 0, 129, 1), NULL, 0, true, scale);
        double *more = host(rp_slice(whole, 2, 0, 129, 1)), *own = host(less);
        for (int c = 0; c < 129 * 80; c++)
            if (more[c] != own[c])
                fail_msg("unit %d: row %d is %g with a row behind it, not %g", unit, c / 80, more[c], own[c]);
        free(more);
        free(own);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
    rp__dots_set(-1);
}

/* A few queries, whose vectors run along keys where the matrix unit multiplies, have the bits that they have among more. */
static void test_fewest(void **state) {
    enum { ALL = 7, E = 48, V = 40 };
    static const int64_t keys[] = {1, 31, 33, 512, 700, 1500};
    (void)state;
    if (!rp__dots_here()) skip();
    for (size_t n = 0; n < 2 * sizeof keys / sizeof *keys; n++) {
        rp_scope scope = rp_scope_begin();
        const int64_t S = keys[n / 2];
        const bool masked = n % 2;
        rp_tensor *q = numbers(RP_BF16, ALL, E), *k = numbers(RP_BF16, S, E), *v = numbers(RP_BF16, S, V), *mask = NULL;
        if (masked) { /* query 0 sees nothing */
            mask = rp_to_dtype(rp_gt_scalar(rp_rand(RP_DIMS(1, 1, ALL, S)), rp_f64(0.3)), RP_BOOL);
            rp_fill_(rp_slice(mask, 2, 0, 1, 1), rp_f64(0));
        }
        const rp_scaled_dot_product_attention_options *scale =
            RP_OPTIONS(rp_scaled_dot_product_attention_options, .scale = rp_f64(masked ? -0.2 : 0.3));
        double *want = host(rp_scaled_dot_product_attention(q, k, v, mask, 0, false, scale));
        for (int64_t few = 1; few < ALL; few++) {
            const int64_t from = few % 3;
            rp_tensor *m = mask ? rp_slice(mask, 2, from, from + few, 1) : NULL;
            if (from + few > ALL) continue;
            double *have =
                host(rp_scaled_dot_product_attention(rp_slice(q, 2, from, from + few, 1), k, v, m, 0, false, scale));
            for (int64_t head = 0, heads = rp_size(q, 1); head < heads; head++)
                for (int64_t i = 0; i < few * V; i++)
                    if (memcmp(&have[head * few * V + i], &want[(head * ALL + from) * V + i], sizeof *have) != 0)
                        fail_msg("%d of %d queries, %d keys: element %d is %g, not %g", (int)few, ALL, (int)S, (int)i,
                                 have[head * few * V + i], want[(head * ALL + from) * V + i]);
            free(have);
        }
        free(want);
        assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
    }
}

int main(void) {
    if (!test_cuda_choose()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_family_cpu),     cmocka_unit_test(test_few_queries),
        cmocka_unit_test(test_family_cuda),    cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_warpgroups),     cmocka_unit_test(test_one_warpgroup),
        cmocka_unit_test(test_warpgroups_any), cmocka_unit_test(test_without_tensor_cores),
        cmocka_unit_test(test_forms),          cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_not_numbers),    cmocka_unit_test(test_far_masks),
        cmocka_unit_test(test_fewest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
