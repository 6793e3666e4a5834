/* Build-time program: writes the line functions (src/kernel/cpu/line.h) that the library carries compiled, so that everyday eager
   ops run as compiled code where there is no compiler. It links the library's objects, makes the calls below on small tensors,
   and emits each loop kernel that they launch, once; nothing is computed. The same emitter serves tier 1, so nothing is written
   twice. usage: genlines OUT.c */
#include <inttypes.h>
#include <reprise.h>
#include <reprise_nn.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/device.h"
#include "kernel/cpu/jit.h"

/* The program itself has none. */
#define NONE(isa)                                                                                                      \
    const rp__line_entry rp__lines_##isa[1];                                                                           \
    const size_t rp__n_lines_##isa = 0;
NONE(baseline)
#ifndef RP_ISA_BASELINE_ONLY
NONE(avx2)
NONE(avx512)
#endif

enum { MAX_LINES = 1024 };
static struct {
    rp__hash key;
    int plan;
    unsigned chunks; /* chunk functions */
    bool wide;       /* see WIDE */
} entries[MAX_LINES];
static size_t n_entries;
static rp__text text;
/* Norms in many forms, operations of few instructions and those of f16 are not compiled for the narrow vectors of an instruction set that has a wider one beside it. */
#define WIDE "#if RP_VEC_BYTES > 16 || defined(RP_ISA_BASELINE_ONLY)\n"
static bool wide;

static void die(const char *what) {
    fprintf(stderr, "genlines: %s%s%s\n", what, rp_failed() ? ": " : "", rp_failed() ? rp_error_message() : "");
    exit(1);
}

static void emit(const rp__dag *dag, rp__plan plan) {
    rp__program *p = rp__program_new(dag, plan, rp__tiles_named("baseline"), false);
    if (!p) die("no program");
    const bool twin =
        plan == RP__PLAN_KEEP && !p->kept_bytes; /* of the recomputing program, which serves (backend.c) */
    if (!twin && rp__line_fits(dag, p)) {
        char prefix[32];
        if (n_entries == MAX_LINES) die("too many line functions");
        (void)snprintf(prefix, sizeof prefix, "k%zu_", n_entries);
        rp__text_add(&text, "\n/*\n");
        rp__dag_text(dag, &text);
        rp__text_puts(&text, wide ? "*/\n" WIDE : "*/\n");
        rp__emit_line(dag, p, prefix, &text);
        if (wide) rp__text_puts(&text, "#endif\n");
        entries[n_entries].wide = wide;
        entries[n_entries].key = dag->key;
        entries[n_entries].chunks = rp__line_chunk_phases(p);
        entries[n_entries++].plan = (int)plan;
    }
    rp__program_release(p);
}

/* In place of the CPU's bind: launches nothing. */
static rp_status take(rp__device *d, rp__dag *dag, const rp__space *space, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)space, (void)buffer;
    out->kernel = NULL;
    for (size_t i = 0; i < n_entries; i++) {
        if (rp__hash_equal(entries[i].key, dag->key)) return RP_OK;
    }
    bool rows = !dag->n_stores || dag->ordered;
    for (unsigned i = 0; i < dag->n_stores; i++) rows = rows || rp__dag_is_row(dag, dag->stores[i].axes);
    if (!rows) {
        emit(dag, RP__PLAN_ELEMENTS);
    } else {
        emit(dag, RP__PLAN_RECOMPUTE);
        emit(dag, RP__PLAN_KEEP);
    }
    return RP_OK;
}

static rp_status take_many(rp__device *d, rp__dag *dag, const rp__space *shared, const rp__space_access *accesses,
                           const int64_t *extents, size_t n_groups, rp__launch_buffer *buffer, rp__launch *out) {
    (void)accesses, (void)extents, (void)n_groups;
    return take(d, dag, shared, buffer, out);
}

/* ---- everyday programs */

static rp_tensor *relu(rp_tensor *x) { return rp_relu(x); }
static rp_tensor *hardtanh(rp_tensor *x) { return rp_hardtanh(x, rp_f64(-1), rp_f64(1)); }
static rp_tensor *leaky_relu(rp_tensor *x) { return rp_leaky_relu(x, rp_f64(0.01)); }
static rp_tensor *clamp(rp_tensor *x) { return rp_clamp(x, rp_f64(-1), rp_f64(1)); }
static rp_tensor *clamp_below(rp_tensor *x) { return rp_clamp(x, rp_f64(-1), rp_none()); }
static rp_tensor *clamp_above(rp_tensor *x) { return rp_clamp(x, rp_none(), rp_f64(1)); }
static rp_tensor *round_whole(rp_tensor *x) { return rp_round(x); }
static rp_tensor *softshrink(rp_tensor *x) { return rp_softshrink(x, rp_f64(0.5)); }
static rp_tensor *hardshrink(rp_tensor *x) { return rp_hardshrink(x, rp_f64(0.5)); }
static rp_tensor *nan_to_num(rp_tensor *x) { return rp_nan_to_num(x, rp_none(), rp_none(), rp_none()); }
/* An element of these is a few instructions: what moves memory beside them is most of it without a line function. */
typedef rp_tensor *unary(rp_tensor *x);
static unary *const cheap[] = {relu,       rp_relu6,    hardtanh,    rp_hardsigmoid, rp_hardswish, leaky_relu,
                               clamp,      clamp_below, clamp_above, rp_abs,         rp_neg,       rp_sign,
                               rp_square,  rp_sqrt,     round_whole, rp_floor,       rp_ceil,      rp_trunc,
                               softshrink, hardshrink,  nan_to_num,  rp_reciprocal,  rp_rsqrt,     rp_deg2rad};
static void unary_slope(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    unary *const *f = ctx;
    (void)n_in;
    rp_tensor *y = (*f)(in[0]);
    (void)!rp_grad(&y, 1, in, n_out, in + 1, NULL, out);
}
/* Its gradient: of a tape, and in one with the value. */
static void slope_of(unary *const *f, rp_dtype dtype) {
    const int64_t size[] = {4, 8};
    rp_tensor *in[2], *out[1];
    for (int i = 0; i < 2; i++) in[i] = rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = dtype));
    rp_set_requires_grad(in[0], true);
    rp_set_grad_enabled(true);
    unary_slope((void *)(uintptr_t)f, in, 2, out, 1);
    rp_compiled *c = rp_compile((rp_fn){unary_slope, (void *)(uintptr_t)f, sizeof *f, "slope"}, NULL);
    for (int call = 0; call < 3; call++) (void)!rp_call(c, in, 2, out, 1);
    rp_compiled_release(c);
    rp_set_grad_enabled(false);
}

static void pointwise(rp_dtype dtype) {
    const int64_t size[] = {4, 8};
    rp_tensor *x = rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = dtype)),
              *y = rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = dtype));
    const rp_scalar two = rp_f64(2), one = rp_i64(1);
    const bool narrow = !wide;
    rp_add(x, y, RP_OPTIONS(rp_add_options, .alpha = one));
    rp_add_(x, y, RP_OPTIONS(rp_add_options, .alpha = one));
    rp_mul(x, y);
    rp_mul_scalar(x, two);
    rp_add_scalar(x, two);
    rp_relu(x);
    rp_gelu(x);
    rp_clone(x);
    wide = wide || dtype != RP_F32;
    rp_sub(x, y, RP_OPTIONS(rp_sub_options, .alpha = one));
    rp_div(x, y);
    rp_neg(x);
    rp_exp(x);
    rp_tanh(x);
    rp_sigmoid(x);
    rp_sqrt(x);
    rp_fill_(x, one);
    if (dtype == RP_F32) rp_sin(x);
    wide = true;
    rp_maximum(x, y);
    rp_minimum(x, y);
    rp_silu(x);
    for (size_t i = 0; i < sizeof cheap / sizeof *cheap; i++) {
        cheap[i](x);
        slope_of(&cheap[i], dtype);
    }
    wide = !narrow;
}

static void reductions(rp_dtype dtype) {
    const int64_t size[] = {4, 8};
    rp_tensor *x = rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = dtype));
    rp_sum(x, RP_DIMS(-1));
    rp_mean(x, RP_DIMS(-1));
    rp_prod(x, -1, false);
    rp_amax(x, RP_DIMS(-1), false);
    rp_amin(x, RP_DIMS(-1), false);
    rp_linalg_vector_norm(x, rp_f64(2), RP_DIMS(-1), false);
}
static void rows(rp_dtype dtype) {
    const int64_t size[] = {4, 8};
    rp_tensor *x = rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = dtype)),
              *w = rp_empty(size + 1, 1, RP_OPTIONS(rp_empty_options, .dtype = dtype));
    rp_softmax(x, -1);
    rp_log_softmax(x, -1);
    rp_layer_norm(x, RP_DIMS(8), w, w, 1e-5);
    rp_layer_norm(x, RP_DIMS(8), NULL, NULL, 1e-5);
    reductions(dtype);
}

/* ---- norms, softmax, prelu and the loss of classes as the compiler makes them */

typedef enum norm { LAYER, RMS, GROUP, BATCH, BATCH_STILL, INSTANCE, PRELU, SOFTMAX, LOG_SOFTMAX, UNIT, CLASSES } norm;
typedef struct form {
    norm kind;
    bool residual;   /* of x plus another */
    unsigned affine; /* weight, and bias */
} form;
static rp_tensor *apply(const form *f, rp_tensor *const *in) {
    rp_tensor *x = *in++;
    if (f->residual) x = rp_add(x, *in++, RP_OPTIONS(rp_add_options, .alpha = rp_i64(1)));
    rp_tensor *w = f->affine ? in[0] : NULL, *b = f->affine > 1 ? in[1] : NULL;
    in += f->affine;
    const int64_t last = rp_size(x, rp_ndim(x) - 1);
    switch (f->kind) {
    case LAYER: return rp_layer_norm(x, RP_DIMS(last), w, b, 1e-5);
    case RMS: return rp_rms_norm(x, RP_DIMS(last), w);
    case GROUP: return rp_group_norm(x, 2, w, b);
    case BATCH: return rp_batch_norm(x, w, b, in[0], in[1], true);
    case BATCH_STILL: return rp_batch_norm(x, w, b, in[0], in[1], false);
    case INSTANCE: return rp_instance_norm(x, w, b, NULL, NULL, true, 0.1, 1e-5, true);
    case PRELU: return rp_prelu(x, w);
    case SOFTMAX: return rp_softmax(x, -1);
    case LOG_SOFTMAX: return rp_log_softmax(x, -1);
    case UNIT: return rp_normalize(x, 2, -1, 1e-12);
    case CLASSES: return rp_cross_entropy(x, in[0]);
    default: return NULL;
    }
}
static size_t differentiable(const form *f) { return 1u + f->residual + f->affine; }
static void value(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    out[0] = apply(ctx, in);
}
/* The last one in is the gradient of the result. */
static void slopes(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_tensor *y = apply(ctx, in);
    (void)!rp_grad(&y, 1, in, n_out, &in[n_in - 1], NULL, out);
}
static void norm_form(const form *f, rp_dtype dtype, bool many) {
    const bool rows = f->kind == LAYER || f->kind == RMS || f->kind >= SOFTMAX;
    /* Many rows have their sums over columns beside them (fusion.md). */
    const int64_t few[] = {4, 8}, some[] = {256, 64}, images[] = {4, 6, 8, 8};
    const int64_t *const size = !rows ? images : many ? some : few, channels = size[1];
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[8];
    size_t n = 0;
    const rp_empty_options options = {.struct_size = sizeof options, .dtype = dtype};
    for (unsigned i = 0; i <= f->residual; i++) in[n++] = rp_empty(size, rows ? 2 : 4, &options);
    for (unsigned i = 0; i < f->affine; i++) in[n++] = rp_empty(&channels, 1, &options);
    for (unsigned i = 0; i < 2 && (f->kind == BATCH || f->kind == BATCH_STILL); i++)
        in[n++] = rp_empty(&channels, 1, &options);
    if (f->kind == CLASSES) in[n++] = rp_empty(size, 1, RP_OPTIONS(rp_empty_options, .dtype = RP_I64));
    rp_tensor *y = apply(f, in);
    /* for inference; forward and backward of a tape, and both in one */
    for (int how = 0; how < 3; how++) {
        for (size_t i = 0; i < differentiable(f); i++) rp_set_requires_grad(in[i], how > 0);
        rp_set_grad_enabled(how > 0);
        rp_tensor *out[8] = {NULL};
        in[n] = rp_empty_like(y);
        rp_compiled *c = rp_compile((rp_fn){how == 2 ? slopes : value, (void *)(uintptr_t)f, sizeof *f, "norm"}, NULL);
        for (int call = 0; call < 3; call++) { /* the first one runs op by op */
            (void)!rp_call(c, in, n + (how == 2), out, how == 2 ? differentiable(f) : 1);
            if (how == 1) (void)!rp_backward(out[0], in[n], NULL);
        }
        rp_compiled_release(c);
        rp_set_grad_enabled(false);
        if (rp_failed()) die("a compiled norm");
    }
    rp_scope_end(scope, NULL, 0);
}
static void norms(rp_dtype dtype) {
    static const form all[] = {
        {LAYER, false, 2},   {LAYER, false, 1},       {LAYER, false, 0},    {LAYER, true, 2},     {RMS, false, 1},
        {RMS, false, 0},     {RMS, true, 1},          {GROUP, false, 2},    {GROUP, true, 2},     {BATCH, false, 2},
        {BATCH, true, 2},    {BATCH_STILL, false, 2}, {INSTANCE, false, 0}, {INSTANCE, false, 2}, {PRELU, false, 1},
        {SOFTMAX, false, 0}, {LOG_SOFTMAX, false, 0}, {UNIT, false, 0},     {CLASSES, false, 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        norm_form(&all[i], dtype, false);
        if (all[i].kind == LAYER || all[i].kind == RMS) norm_form(&all[i], dtype, true);
    }
}

static void steps(void) {
    const int64_t size[] = {4, 8};
    rp_tensor *x = rp_empty(size, 2);
    rp_set_requires_grad(x, true);
    rp_set_grad(x, rp_empty(size, 2));
    rp_optimizer *const all[] = {
        rp_adam(&x, 1, 1e-3, NULL),    rp_adamw(&x, 1, 1e-3, NULL),
        rp_sgd(&x, 1, 0.1, NULL),      rp_sgd(&x, 1, 0.1, RP_OPTIONS(rp_sgd_options, .momentum = 0.9)),
        rp_rmsprop(&x, 1, 1e-2, NULL), rp_adagrad(&x, 1, 1e-2, NULL)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (int k = 0; k < 2; k++) rp_optimizer_step(all[i]);
        rp_optimizer_release(all[i]);
    }
}

int main(int argc, char **argv) {
    if (argc != 2) die("usage: genlines OUT.c");
    rp__loop_backend loops = rp__cpu_loops;
    rp__device_ops ops = *rp__cpu_device.ops;
    loops.bind = take;
    loops.bind_many = take_many;
    ops.loops = &loops;
    rp__cpu_device.ops = &ops;
    rp_set_grad_enabled(false);

    rp_scope scope = rp_scope_begin();
    const int64_t size[] = {4, 8};
    static const rp_dtype all[] = {RP_F32, RP_F16, RP_BF16};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        wide = all[i] == RP_F16; /* whose conversions are many instructions there */
        pointwise(all[i]);
        rows(all[i]);
    }
    wide = false;
    reductions(RP_F64);
    steps();
    wide = true;
    norms(RP_F32);
    norms(RP_BF16);
    norms(RP_F16);
    wide = false;
    for (size_t i = 1; i < sizeof all / sizeof *all; i++) {
        rp_to_dtype(rp_empty(size, 2), all[i]);
        rp_to_dtype(rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = all[i])), RP_F32);
    }
    rp_scope_end(scope, NULL, 0);
    if (rp_failed() || text.failed) die("out of memory, or a call that failed");

    FILE *f = fopen(argv[1], "w");
    if (!f) die("cannot write");
    fputs(
        "/* Generated by tools/gen/genlines.c: line functions of everyday programs, compiled once an instruction set. */\n"
        "#define RP_LINE_FN static\n#include \"kernel/cpu/group.h\"\n#include \"kernel/cpu/program.h\"\n",
        f);
    fputs(text.data, f);
    fputs("\n#define JOIN_(a, b) a##b\n#define JOIN(a, b) JOIN_(a, b)\n"
          "const rp__line_entry JOIN(rp__lines_, RP_ISA)[] = {\n",
          f);
    for (size_t i = 0; i < n_entries; i++) {
        if (entries[i].wide) fputs(WIDE, f);
        fprintf(f, "    {{UINT64_C(0x%" PRIx64 "), UINT64_C(0x%" PRIx64 ")}, %d, k%zu_l_%d, {", entries[i].key.lo,
                entries[i].key.hi, entries[i].plan, i, entries[i].plan);
        for (unsigned k = 0; k < entries[i].chunks; k++) fprintf(f, "k%zu_c_%u, ", i, k);
        fprintf(f, "%s}},\n%s", entries[i].chunks ? "" : "NULL", entries[i].wide ? "#endif\n" : "");
    }
    fputs("};\nconst size_t JOIN(rp__n_lines_, RP_ISA) = sizeof JOIN(rp__lines_, RP_ISA) / sizeof(rp__line_entry);\n",
          f);
    if (ferror(f) | fclose(f)) die("cannot write");
    rp__text_free(&text);
    return 0;
}
