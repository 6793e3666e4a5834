/* Recurrent layers along a sequence on the CPU (library.h): an item is some sequences, of which each step is one product (gemm.h) and the cells
   (recur.h). */
#include <string.h>

#include "core/dtype.h"
#include "kernel/cpu/gemm.h"
#include "kernel/cpu/lib.h"
#include "kernel/cpu/recur.h"
#include "kernel/cpu/tiles.h"

enum {
    STATES,
    LAST,
    CELLS,
    LAST_CELL,
    KEPT,
    X,
    W,
    B,
    HIDDEN,
    C,
    DX,
    DY,
    DH,
    DC,
    GRAD,
    GRAD_LAST,
    GRAD_CELL,
    SPARE, /* of each item w by columns, or of GRU backwards the products of a step */
    TURNED,
    STEPS,
    SEQUENCES,
    EACH, /* of an item */
    UNITS,
    CELL,
    REVERSE,
    X_STEP,
    X_ROW,
    DTYPE,
    PRODUCT, /* of a step */
    WORDS = PRODUCT + RP__GEMM_WORDS
};
enum {
    MOST_UNITS = 512,                /* more fill threads with each step's product alone */
    FEW = RP__GEMM_STREAM_TILE_M,    /* sequences of an item at least */
    BESIDE = 12,                     /* up to which products read w as it lies, and sooner by columns */
    TURNS = 4,                       /* steps that are worth its transposition */
    ALONE = 1 << 18,                 /* cycles of all that are one item's */
    MOST_EACH = RP__GEMM_MAX_TILE_M, /* rows of one tile */
};

static const rp__recur_isa *current(void) { return RP__ISA_TABLE(rp__recur); }

int64_t rp__cpu_recurs(rp__device *d, rp__recurrent_cell cell, rp_dtype dtype, int64_t units) {
    (void)d, (void)cell;
    return (dtype == RP_F32 || dtype == RP_F64) && units <= MOST_UNITS ? INT64_MAX : 0;
}

/* One item's view of the words: `count` sequences from n on. */
typedef struct item {
    const uint64_t *w;
    int64_t steps, rows, H, gates, n, count;
    size_t bytes; /* of an element */
    rp__recurrent_cell cell;
    bool reverse, wide;
    uint64_t product[RP__GEMM_WORDS];
    int64_t tiles;
    rp__cpu_entry *multiply;
} item;

static item item_of(const uint64_t *w, int64_t number) {
    item a = {.w = w,
              .steps = (int64_t)w[STEPS],
              .rows = (int64_t)w[SEQUENCES],
              .H = (int64_t)w[UNITS],
              .cell = (rp__recurrent_cell)w[CELL],
              .reverse = w[REVERSE] != 0,
              .wide = w[DTYPE] == RP_F64,
              .bytes = w[DTYPE] == RP_F64 ? 8 : 4,
              .multiply = rp__gemm_current()->matmul[w[DTYPE]]};
    const int64_t each = (int64_t)w[EACH];
    a.gates = rp__cell_gates(a.cell);
    a.n = number * each, a.count = a.rows - a.n < each ? a.rows - a.n : each;
    memcpy(a.product, w + PRODUCT, sizeof a.product);
    uint64_t *p = a.product;
    p[RP__GEMM_M] = (uint64_t)a.count;
    a.tiles = (a.count + (int64_t)p[RP__GEMM_TILE_M] - 1) / (int64_t)p[RP__GEMM_TILE_M] *
              (((int64_t)p[RP__GEMM_N] + (int64_t)p[RP__GEMM_TILE_N] - 1) / (int64_t)p[RP__GEMM_TILE_N]);
    return a;
}
/* Element `at` of what a word names; NULL where there is none. */
static void *place(const item *a, unsigned word, int64_t at) {
    return a->w[word] ? (char *)(uintptr_t)a->w[word] + at * (int64_t)a->bytes : NULL;
}
static void multiply(item *a, void *out, const void *in) {
    a->product[RP__GEMM_OUT] = (uint64_t)(uintptr_t)out, a->product[RP__GEMM_A] = (uint64_t)(uintptr_t)in;
    a->multiply(NULL, a->product, 0, a->tiles);
}
/* The item's rows of (N, H) tensors: of `from`, or zeros. */
static void begin_rows(const item *a, void *to, const void *from) {
    const size_t bytes = (size_t)(a->count * a->H) * a->bytes;
    if (from)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
}

static void forward(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    const rp__recur_isa *isa = current();
    (void)kernel;
    for (int64_t number = begin; number < end; number++) {
        item a = item_of(w, number);
        const int64_t H = a.H, rows = a.rows, at = a.n * H, first = a.reverse ? a.steps : 0, last = a.steps - first;
        const bool lstm = a.cell == RP__CELL_LSTM, keeps = a.cell >= RP__CELL_GRU;
        void *const turned = place(&a, w[TURNED] ? SPARE : W, w[TURNED] ? number * a.gates * H * H : 0);
        if (w[TURNED]) isa->turn[a.wide](a.gates * H, H, place(&a, W, 0), turned);
        a.product[RP__GEMM_B] = (uint64_t)(uintptr_t)turned, a.product[RP__GEMM_BIAS] = w[B];
        begin_rows(&a, place(&a, STATES, first * rows * H + at), place(&a, HIDDEN, at));
        if (lstm) begin_rows(&a, place(&a, CELLS, first * rows * H + at), place(&a, C, at));
        for (int64_t step = 0; step < a.steps; step++) {
            const int64_t t = a.reverse ? a.steps - 1 - step : step;
            const int64_t after = (t + !a.reverse) * rows * H + at, before = (t + a.reverse) * rows * H + at;
            const int64_t kept = (t * rows + a.n) * 4 * H;
            multiply(&a, keeps ? place(&a, KEPT, kept) : place(&a, STATES, after), place(&a, STATES, before));
            for (int64_t i = 0; i < a.count; i++) {
                const rp__recur_row row = {
                    .units = H,
                    .x = place(&a, X, t * (int64_t)w[X_STEP] + (a.n + i) * (int64_t)w[X_ROW]),
                    .kept = keeps ? place(&a, KEPT, kept + i * 4 * H) : NULL,
                    .before = place(&a, STATES, before + i * H),
                    .after = place(&a, STATES, after + i * H),
                    .cell_before = lstm ? place(&a, CELLS, before + i * H) : NULL,
                    .cell_after = lstm ? place(&a, CELLS, after + i * H) : NULL,
                };
                isa->forward[a.wide](a.cell, &row);
            }
        }
        begin_rows(&a, place(&a, LAST, at), place(&a, STATES, last * rows * H + at));
        if (lstm) begin_rows(&a, place(&a, LAST_CELL, at), place(&a, CELLS, last * rows * H + at));
    }
}

static void add_rows(const item *a, void *to, const void *more) {
    for (int64_t i = 0; i < a->count * a->H; i++) {
        if (a->wide)
            ((double *)to)[i] += ((const double *)more)[i];
        else
            ((float *)to)[i] += ((const float *)more)[i];
    }
}

static void backward(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    const rp__recur_isa *isa = current();
    (void)kernel;
    for (int64_t number = begin; number < end; number++) {
        item a = item_of(w, number);
        const int64_t H = a.H, rows = a.rows, at = a.n * H, wide = a.gates * H;
        const bool lstm = a.cell == RP__CELL_LSTM, gru = a.cell == RP__CELL_GRU;
        a.product[RP__GEMM_B] = w[W], a.product[RP__GEMM_BIAS] = 0;
        void *const dh = place(&a, DH, at), *const products = gru ? place(&a, SPARE, at) : dh;
        begin_rows(&a, dh, place(&a, GRAD_LAST, at));
        if (lstm) begin_rows(&a, place(&a, DC, at), place(&a, GRAD_CELL, at));
        for (int64_t step = 0; step < a.steps; step++) {
            const int64_t t = a.reverse ? step : a.steps - 1 - step;
            const int64_t after = (t + !a.reverse) * rows * H + at, before = (t + a.reverse) * rows * H + at;
            const int64_t sums = (t * rows + a.n) * wide, kept = (t * rows + a.n) * 4 * H;
            for (int64_t i = 0; i < a.count; i++) {
                const rp__recur_row row = {
                    .units = H,
                    .kept = a.cell >= RP__CELL_GRU ? place(&a, KEPT, kept + i * 4 * H) : NULL,
                    .before = place(&a, STATES, before + i * H),
                    .after = place(&a, STATES, after + i * H),
                    .cell_before = lstm ? place(&a, CELLS, before + i * H) : NULL,
                    .cell_after = lstm ? place(&a, CELLS, after + i * H) : NULL,
                    .dh = place(&a, DH, at + i * H),
                    .dc = lstm ? place(&a, DC, at + i * H) : NULL,
                    .dx = place(&a, DX, sums + i * wide),
                    .dy = gru ? place(&a, DY, sums + i * wide) : NULL,
                    .more = gru && step ? place(&a, SPARE, at + i * H) : NULL,
                    .grad = place(&a, GRAD, after + i * H),
                };
                isa->backward[a.wide](a.cell, &row);
            }
            multiply(&a, products, place(&a, gru ? DY : DX, sums));
        }
        if (gru) add_rows(&a, dh, products);
        if (w[GRAD]) add_rows(&a, dh, place(&a, GRAD, (a.reverse ? a.steps : 0) * rows * H + at));
    }
}

static rp__kernel forward_kernel = {.kind = RP__KERNEL_CPU, .name = "recur", .key = {1, 0x7265637572}, .cpu = forward};
static rp__kernel backward_kernel = {
    .kind = RP__KERNEL_CPU, .name = "recur_backward", .key = {2, 0x7265637572}, .cpu = backward};

static bool turns(const rp__operand *o) { return o[1].size[0] <= BESIDE && o[5].size[0] >= TURNS; }

size_t rp__cpu_recur_workspace(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                               const rp__library_call *call) {
    (void)d, (void)n;
    const rp__operand *last = op == RP__LIB_RECUR_BACK ? &o[2] : &o[1];
    const size_t bytes = rp__dtype_bytes((rp_dtype)last->dtype), units = (size_t)last->size[1];
    if (op == RP__LIB_RECUR_BACK)
        return call->recurrence.cell == RP__CELL_GRU ? (size_t)rp__operand_numel(last) * bytes : 0;
    const size_t items = ((size_t)last->size[0] + FEW - 1) / FEW; /* at most: each turns w for itself */
    return turns(o) ? items * (size_t)rp__cell_gates(call->recurrence.cell) * units * units * bytes : 0;
}

rp_status rp__cpu_recur_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                             const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    static const uint8_t forward_order[10] = {STATES, LAST, CELLS, LAST_CELL, KEPT, X, W, B, HIDDEN, C},
                         backward_order[11] = {DX, DY, DH, DC, GRAD, GRAD_LAST, GRAD_CELL, STATES, CELLS, KEPT, W};
    const bool back = op == RP__LIB_RECUR_BACK;
    const rp__operand *x = back ? &o[0] : &o[5], *last = back ? &o[2] : &o[1];
    uint64_t *w = buffer->words, product[RP__GEMM_WORDS];
    if (rp__operand_numel(last) == 0) return RP_OK;
    const int64_t steps = x->size[0], rows = last->size[0], H = last->size[1];
    const int64_t gates = rp__cell_gates(call->recurrence.cell), threads = rp_num_threads();
    const bool turned = !back && turns(o), keeps = call->recurrence.cell >= RP__CELL_GRU;
    const double work = (double)steps * (double)rows * (double)H * ((double)(gates * H) / 8 + 50);
    int64_t each = work < ALONE ? rows : (rows + threads - 1) / threads;
    if (each < FEW) each = FEW;
    if (each > MOST_EACH) each = MOST_EACH;
    if (each > rows) each = rows;

    rp__gemm_problem p = {.m = each, .n = gates * H, .k = H, .om = keeps ? 4 * H : H, .on = 1, .am = H, .ak = 1};
    p.bk = turned ? gates * H : 1, p.bn = turned ? 1 : H;
    if (back)
        p = (rp__gemm_problem){
            .m = each, .n = H, .k = gates * H, .om = H, .on = 1, .am = gates * H, .ak = 1, .bk = H, .bn = 1};
    rp__cpu_gemm_words(&p, x->dtype, !back && o[7].base ? RP__GEMM_BIAS_N : 0, buffer, out);
    w[RP__GEMM_BIAS_STRIDE] = 1;
    memcpy(product, w, sizeof product);

    memset(w, 0, WORDS * sizeof *w);
    memcpy(w + PRODUCT, product, sizeof product);
    for (size_t k = 0; k < n; k++)
        if (o[k].base)
            rp__operand_slot(&o[k], back ? backward_order[k] : forward_order[k],
                             k < (back ? 4u : 5u) ? RP__WRITE : RP__READ, buffer, out);
    RP_TRY(rp__workspace_slot(call, rp__cpu_recur_workspace(d, op, o, n, call), SPARE, buffer, out));
    w[TURNED] = turned, w[DTYPE] = x->dtype, w[EACH] = (uint64_t)each;
    w[STEPS] = (uint64_t)steps, w[SEQUENCES] = (uint64_t)rows, w[UNITS] = (uint64_t)H;
    w[CELL] = call->recurrence.cell, w[REVERSE] = call->recurrence.reverse;
    w[X_STEP] = (uint64_t)x->stride[0], w[X_ROW] = (uint64_t)x->stride[1];
    out->n_words = WORDS;
    out->items = (rows + each - 1) / each;
    out->grain = rp__cpu_grain(out->items, work / (double)out->items);
    out->kernel = back ? &backward_kernel : &forward_kernel;
    return RP_OK;
}
