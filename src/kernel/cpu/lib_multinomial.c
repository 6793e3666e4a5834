/* multinomial on the CPU, by the integer rule of docs/random.md, which every device follows to the bit. A row's integer weights
   stand in a Fenwick tree, so a draw and a removal cost log n. An item is a row. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "device/error_record.h"
#include "device/generator.h"
#include "kernel/cpu/lib.h"

enum {
    OUT,
    WEIGHTS,
    TREE,
    STATE,
    SEED,
    INNER,
    ERRORS,
    TAG,
    SAMPLES,
    N,
    REPLACEMENT,
    OUT_ROW,
    OUT_SAMPLE,
    W_ROW,
    W_N,
    WORDS
};

typedef struct row {
    const void *w;
    int64_t stride, n;
    rp_dtype dtype;
    double max;
    int shift; /* integer weight = floor(w / max * 2^shift), at least 1 where w > 0 */
} row;

static double weight(const row *r, int64_t i) {
    return r->dtype == RP_F64 ? ((const double *)r->w)[i * r->stride] : (double)((const float *)r->w)[i * r->stride];
}
static uint64_t integer_weight(const row *r, int64_t i) {
    const double w = weight(r, i);
    if (!(w > 0)) return 0;
    const uint64_t x = (uint64_t)ldexp(w / r->max, r->shift);
    return x ? x : 1;
}

static uint64_t word64(const uint64_t *w, uint64_t element) {
    const uint64_t *state = (const uint64_t *)(uintptr_t)w[STATE];
    uint32_t x[4];
    rp__philox(state ? state[0] : w[SEED], (state ? state[1] : 0) + w[INNER] + element / 2, x);
    return element % 2 ? (uint64_t)x[2] << 32 | x[3] : (uint64_t)x[0] << 32 | x[1];
}
static uint64_t high_product(uint64_t a, uint64_t b) {
    const uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    const uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + (uint32_t)middle;
    return ah * bh + (middle >> 32) + (other >> 32);
}

/* First index whose inclusive prefix sum exceeds t; what is left of t belongs to it. */
static int64_t find(const uint64_t *tree, int64_t n, int64_t top, uint64_t t) {
    int64_t at = 0;
    for (int64_t step = top; step; step >>= 1) {
        if (at + step <= n && tree[at + step - 1] <= t) {
            at += step;
            t -= tree[at - 1];
        }
    }
    return at;
}

static void sample_row(const row *in, const uint64_t *w, int64_t number, uint64_t *tree, int64_t *out) {
    row r = *in;
    const int64_t *v = (const int64_t *)w, samples = v[SAMPLES], step = v[OUT_SAMPLE];
    rp__error_record *errors = (rp__error_record *)(uintptr_t)w[ERRORS];
    int64_t positive = 0;
    bool bad = false;
    for (int64_t i = 0; i < r.n; i++) {
        const double x = weight(&r, i);
        bad = bad || !(x >= 0) || x - x != 0;
        positive += x > 0;
        if (x > r.max) r.max = x;
    }
    rp__error_code code = bad                                     ? RP__ERROR_WEIGHT
                          : !positive                             ? RP__ERROR_WEIGHT_SUM
                          : !w[REPLACEMENT] && positive < samples ? RP__ERROR_WEIGHT_COUNT
                                                                  : (rp__error_code)0;
    if (code) {
        rp__error_record_put_code(errors, code, w[TAG], number, v[N]);
        for (int64_t s = 0; s < samples; s++) out[s * step] = 0;
        return;
    }
    int64_t top = 1;
    while (top * 2 <= r.n) top *= 2;
    r.shift = 62;
    for (int64_t n = 1; n < r.n; n *= 2) r.shift--;
    uint64_t total = 0;
    for (int64_t i = 0; i < r.n; i++) total += tree[i] = integer_weight(&r, i);
    for (int64_t i = 1; i <= r.n; i++) {
        const int64_t up = i + (i & -i);
        if (up <= r.n) tree[up - 1] += tree[i - 1];
    }
    for (int64_t s = 0; s < samples; s++) {
        const int64_t at = find(tree, r.n, top, high_product(word64(w, (uint64_t)(number * samples + s)), total));
        out[s * step] = at;
        if (w[REPLACEMENT]) continue;
        const uint64_t gone = integer_weight(&r, at);
        total -= gone;
        for (int64_t i = at + 1; i <= r.n; i += i & -i) tree[i - 1] -= gone;
    }
}

static void run_rows(const uint64_t *w, int64_t begin, int64_t end, rp_dtype dtype) {
    const int64_t *v = (const int64_t *)w;
    const size_t bytes = rp__dtype_bytes(dtype);
    for (int64_t i = begin; i < end; i++) {
        const row r = {.w = (const char *)(uintptr_t)w[WEIGHTS] + i * v[W_ROW] * (int64_t)bytes,
                       .stride = v[W_N],
                       .n = v[N],
                       .dtype = dtype};
        sample_row(&r, w, i, (uint64_t *)(uintptr_t)w[TREE] + i * v[N], (int64_t *)(uintptr_t)w[OUT] + i * v[OUT_ROW]);
    }
}
static void run_f32(const rp__kernel *k, const uint64_t *w, int64_t begin, int64_t end) {
    (void)k;
    run_rows(w, begin, end, RP_F32);
}
static void run_f64(const rp__kernel *k, const uint64_t *w, int64_t begin, int64_t end) {
    (void)k;
    run_rows(w, begin, end, RP_F64);
}
static rp__kernel kernel_f32 = {
    .kind = RP__KERNEL_CPU, .name = "multinomial_f32", .key = {1, 0x6d756c7469}, .cpu = run_f32};
static rp__kernel kernel_f64 = {
    .kind = RP__KERNEL_CPU, .name = "multinomial_f64", .key = {2, 0x6d756c7469}, .cpu = run_f64};

size_t rp__cpu_multinomial_workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                     const rp__library_call *call) {
    (void)d, (void)op, (void)n, (void)call;
    return (size_t)rp__operand_numel(&o[1]) * sizeof(uint64_t);
}

rp_status rp__cpu_multinomial_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                   const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__operand *y = &o[0], *x = &o[1];
    if (y->size[0] == 0 || y->size[1] == 0) return RP_OK;
    uint64_t *w = buffer->words;
    rp__operand_slot(y, OUT, RP__WRITE, buffer, out);
    rp__operand_slot(x, WEIGHTS, RP__READ, buffer, out);
    RP_TRY(rp__workspace_slot(call, rp__cpu_multinomial_workspace(d, op, o, n, call), TREE, buffer, out));
    w[STATE] = (uint64_t)(uintptr_t)call->draw.state, w[SEED] = call->draw.seed, w[INNER] = call->draw.inner;
    w[ERRORS] = (uint64_t)(uintptr_t)d->errors, w[TAG] = rp__error_tag(call->op, call->site);
    w[SAMPLES] = (uint64_t)y->size[1], w[N] = (uint64_t)x->size[1], w[REPLACEMENT] = call->replacement;
    w[OUT_ROW] = (uint64_t)y->stride[0], w[OUT_SAMPLE] = (uint64_t)y->stride[1];
    w[W_ROW] = (uint64_t)x->stride[0], w[W_N] = (uint64_t)x->stride[1];
    out->n_words = WORDS;
    out->draw = STATE;
    out->n_draws = 1;
    out->items = y->size[0];
    out->grain = rp__cpu_grain(out->items, 30.0 * (double)x->size[1] + 150.0 * (double)y->size[1]);
    out->kernel = x->dtype == RP_F64 ? &kernel_f64 : &kernel_f32;
    return RP_OK;
}
