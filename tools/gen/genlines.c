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

enum { MAX_LINES = 512 };
static struct {
    rp__hash key;
    int plan;
    unsigned chunks; /* chunk functions */
} entries[MAX_LINES];
static size_t n_entries;
static rp__text text;

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
        rp__text_add(&text, "*/\n");
        rp__emit_line(dag, p, prefix, &text);
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

static void pointwise(rp_dtype dtype, bool all) {
    const int64_t size[] = {4, 8};
    rp_tensor *x = rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = dtype)),
              *y = rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = dtype));
    const rp_scalar two = rp_f64(2), one = rp_i64(1);
    rp_add(x, y, RP_OPTIONS(rp_add_options, .alpha = one));
    rp_add_(x, y, RP_OPTIONS(rp_add_options, .alpha = one));
    rp_mul(x, y);
    rp_mul_scalar(x, two);
    rp_add_scalar(x, two);
    rp_relu(x);
    rp_gelu(x);
    rp_clone(x);
    if (!all) return;
    rp_sub(x, y, RP_OPTIONS(rp_sub_options, .alpha = one));
    rp_div(x, y);
    rp_neg(x);
    rp_exp(x);
    rp_sin(x);
    rp_tanh(x);
    rp_sigmoid(x);
    rp_sqrt(x);
    rp_fill_(x, one);
}

static void rows(rp_dtype dtype) {
    const int64_t size[] = {4, 8};
    rp_tensor *x = rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = dtype)),
              *w = rp_empty(size + 1, 1, RP_OPTIONS(rp_empty_options, .dtype = dtype));
    rp_softmax(x, -1);
    rp_log_softmax(x, -1);
    rp_layer_norm(x, RP_DIMS(8), w, w, 1e-5);
    rp_layer_norm(x, RP_DIMS(8), NULL, NULL, 1e-5);
    rp_sum(x, RP_DIMS(-1));
    rp_mean(x, RP_DIMS(-1));
    rp_amax(x, RP_DIMS(-1), false);
}

static void steps(void) {
    const int64_t size[] = {4, 8};
    rp_tensor *x = rp_empty(size, 2);
    rp_set_requires_grad(x, true);
    rp_set_grad(x, rp_empty(size, 2));
    rp_optimizer *const all[] = {rp_adam(&x, 1, 1e-3, NULL), rp_adamw(&x, 1, 1e-3, NULL), rp_sgd(&x, 1, 0.1, NULL),
                                 rp_sgd(&x, 1, 0.1, RP_OPTIONS(rp_sgd_options, .momentum = 0.9))};
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
    pointwise(RP_F32, true);
    pointwise(RP_BF16, false);
    rows(RP_F32);
    rows(RP_BF16);
    steps();
    rp_to_dtype(rp_empty(size, 2), RP_BF16);
    rp_to_dtype(rp_empty(size, 2, RP_OPTIONS(rp_empty_options, .dtype = RP_BF16)), RP_F32);
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
        fprintf(f, "    {{UINT64_C(0x%" PRIx64 "), UINT64_C(0x%" PRIx64 ")}, %d, k%zu_l_%d, {", entries[i].key.lo,
                entries[i].key.hi, entries[i].plan, i, entries[i].plan);
        for (unsigned k = 0; k < entries[i].chunks; k++) fprintf(f, "k%zu_c_%u, ", i, k);
        fprintf(f, "%s}},\n", entries[i].chunks ? "" : "NULL");
    }
    fputs("};\nconst size_t JOIN(rp__n_lines_, RP_ISA) = sizeof JOIN(rp__lines_, RP_ISA) / sizeof(rp__line_entry);\n",
          f);
    if (ferror(f) | fclose(f)) die("cannot write");
    rp__text_free(&text);
    return 0;
}
