/* The whole road for every op of the table: its first sample (tests/samples) goes through every floor, and all floors agree.
   On the CPU, bit for bit with eager: traced, printed, parsed and run; compiled by each backend, forward and backward, with
   three changed sizes; captured, replayed and replayed with moved inputs; as emitted C (a second process, REPRISE_JIT=wait; one op of
   nine, with REPRISE_TEST_ALL=1 all of them). On the
   CUDA device (the emulator, or a real one): eager within a tolerance of the CPU; captured, re-pointed and the backend
   "cudagraphs" bit for bit with eager there; "fused" within the tolerance. test_samples fails where a row has no sample.
   ctest: labels=cuda,slow timeout=1500 cost=110 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <reprise.h>

#include "kernel/cpu/jit.h"
#include "samples/samples.h"
#include "support/cuda.h"
#include "support/slow.h"

extern char **environ;

/* ---- samples ---- */

enum { MAX_OUT = SAMPLE_OUT, MAX_RESULTS = 40 };
static sample *samples; /* those that take the whole road */
static int SAMPLES;

static void collect_samples(void) {
    samples = calloc(sample_count(), sizeof *samples);
    for (size_t i = 0; i < sample_count(); i++)
        if (sample_at(i)->whole_road) samples[SAMPLES++] = *sample_at(i);
}

static bool wanted(const sample *s) {
    const char *only = getenv("ROAD_OP"); /* a name: only that op, for finding a fault */
    return !only || !*only || strcmp(only, s->op->name) == 0;
}

/* Needs values on the host, where operands are on the default device: neither traced nor captured. */
static bool reads_host(const sample *s) { return rp__op_syncs(s->op, rp_default_device()); }

typedef struct context {
    const sample *sample;
    bool capturing; /* views get a kernel behind them */
} context;

static void body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const context *c = ctx;
    const rp__lowering lowering = c->sample->op->lowering;
    (void)n_in, (void)n_out;
    (void)sample_call(c->sample, in, out);
    if (c->capturing && (lowering == RP__VIEW || lowering == RP__COMPOSITE)) out[0] = rp_mul_scalar(out[0], rp_f64(2));
}

/* ---- results ---- */

typedef struct value {
    bool absent;
    rp_dtype dtype;
    int ndim;
    int64_t size[RP_MAX_DIMS];
    size_t bytes;
    void *data;
} value;
typedef struct results {
    int n;
    value v[MAX_RESULTS];
} results;

static void results_free(results *r) {
    for (int i = 0; i < r->n; i++) free(r->v[i].data);
    r->n = 0;
}

static bool collect(results *r, rp_tensor *t) {
    assert_true(r->n < MAX_RESULTS);
    value *v = &r->v[r->n++];
    memset(v, 0, sizeof *v);
    v->absent = !t;
    if (!t) return true;
    if (rp_is_error(t)) return false;
    v->dtype = rp_dtype_of(t);
    v->ndim = (int)rp_ndim(t);
    for (int d = 0; d < v->ndim; d++) v->size[d] = rp_size(t, d);
    v->bytes = (size_t)rp_numel(t) * rp_dtype_size(v->dtype);
    v->data = calloc(v->bytes + 1, 1);
    return v->data && rp_to_host(t, v->data, v->bytes) == RP_OK;
}

static double element(const value *v, size_t i) {
    switch (v->dtype) {
    case RP_F32: return ((const float *)v->data)[i];
    case RP_F64: return ((const double *)v->data)[i];
    case RP_I64: return (double)((const int64_t *)v->data)[i];
    case RP_I32: return ((const int32_t *)v->data)[i];
    default: return ((const uint8_t *)v->data)[i];
    }
}

/* tolerance 0: the same bits. Otherwise of the largest magnitude of the array, and at least of 1; integers stay exact. */
static bool same(const results *got, const results *want, double tolerance, char why[200]) {
    if (got->n != want->n) {
        (void)snprintf(why, 200, "%d results instead of %d", got->n, want->n);
        return false;
    }
    for (int k = 0; k < want->n; k++) {
        const value *a = &got->v[k], *b = &want->v[k];
        if (a->absent != b->absent || a->dtype != b->dtype || a->ndim != b->ndim || a->bytes != b->bytes ||
            memcmp(a->size, b->size, sizeof a->size) != 0) {
            (void)snprintf(why, 200, "result %d of %d has another type, size or presence", k, want->n);
            return false;
        }
        if (a->absent) continue;
        size_t n = a->bytes / rp_dtype_size(a->dtype);
        double most = 1;
        bool real = a->dtype == RP_F32 || a->dtype == RP_F64;
        for (size_t i = 0; i < n; i++) most = isfinite(element(b, i)) ? fmax(most, fabs(element(b, i))) : most;
        for (size_t i = 0; i < n; i++) {
            double x = element(a, i), y = element(b, i), bound = real ? tolerance * most : 0;
            size_t size = rp_dtype_size(a->dtype);
            bool bits = memcmp((char *)a->data + i * size, (char *)b->data + i * size, size) == 0;
            if (bits || (bound > 0 && (fabs(x - y) <= bound || (isnan(x) && isnan(y))))) continue;
            (void)snprintf(why, 200, "result %d of %d, element %zu is %.9g instead of %.9g", k, want->n, i, x, y);
            return false;
        }
    }
    return true;
}

/* ---- the table of what was done ---- */

enum floor {
    EAGER,
    BACKWARD,
    SECOND,
    TEXT,
    B_EAGER,
    B_AOT,
    B_GRAPHS,
    B_FUSED,
    RESIZE,
    CAPTURE,
    REPOINT,
    NATIVE,
    CUDA,
    CUDA_BACKWARD,
    CUDA_CAPTURE,
    CUDA_REPOINT,
    CUDA_GRAPHS,
    CUDA_FUSED,
    FLOORS
};
static const char *const floor_names[FLOORS] = {"eager",        "backward",     "second",    "text",     "b:eager",
                                                "b:aot_eager",  "b:cudagraphs", "b:fused",   "resize",   "capture",
                                                "repoint",      "emitted C",    "cuda",      "cuda bwd", "cuda capture",
                                                "cuda repoint", "cuda graphs",  "cuda fused"};
typedef struct cell {
    enum { NOT_RUN, OK, SKIPPED, FAILED } state;
    const char *reason;
} cell;
static cell (*table)[FLOORS];
static int failures;

static void ok(const sample *s, enum floor f) {
    cell *c = &table[s - samples][f];
    if (c->state == NOT_RUN) c->state = OK;
}
static void skipped(const sample *s, enum floor f, const char *reason) {
    cell *c = &table[s - samples][f];
    if (c->state != FAILED) *c = (cell){SKIPPED, reason};
}
__attribute__((format(printf, 3, 4))) static bool failed(const sample *s, enum floor f, const char *format, ...) {
    va_list args;
    va_start(args, format);
    table[s - samples][f].state = FAILED;
    failures++;
    printf("FAILED %s(%s), %s: ", s->op->name, s->text, floor_names[f]);
    vprintf(format, args);
    printf("%s%s\n", rp_failed() ? ": " : "", rp_error_message());
    (void)rp_error_take();
    va_end(args);
    return false;
}

/* ---- one call, with its gradients ---- */

enum { N = 6, CHANGED = 3 };
/* The first change makes a size a symbol; the others show whether all that was derived from it is one as well. */
static const int64_t changed[CHANGED] = {9, 13, 4};
enum { FORWARD = 0, WITH_GRAD = 1, WITH_SECOND = 2 };

/* sum(w * y * y): depends on y twice, so that every op has a second derivative. */
static rp_tensor *loss_of(rp_tensor *y) {
    float w[512];
    int64_t n = rp_numel(y), size[RP_MAX_DIMS];
    assert_true(n <= 512);
    for (int64_t i = 0; i < n; i++) w[i] = (float)(i * 389 % 1024) / 512 - 1;
    for (size_t d = 0; d < rp_ndim(y); d++) size[d] = rp_size(y, (int64_t)d);
    rp_tensor *weight = rp_to_dtype(rp_from_data(w, size, rp_ndim(y), RP_F32), rp_dtype_of(y));
    return rp_sum(rp_mul(rp_mul(y, y), weight));
}

/* Outputs, then gradients of the float inputs, then gradients of the sum of their squares. False with a sticky error or a
   text in why. */
static bool run(const sample *s, rp_compiled *f, int64_t n, unsigned variant, int order, results *r, char why[200]) {
    rp_tensor *in[SAMPLE_IN + 1], *out[MAX_OUT] = {0}, *leaf[SAMPLE_IN], *grad[SAMPLE_IN];
    int n_leaf = 0, n_out = (int)sample_outs(s);
    bool done = false;
    r->n = 0;
    (void)snprintf(why, 200, "the call failed");
    rp_scope scope = rp_scope_begin();
    (void)rp_manual_seed(11);
    sample_make(s, RP_F32, n, variant, in);
    for (int i = 0; i < s->n_in && order; i++)
        if (sample_is_value(&s->in[i])) {
            leaf[n_leaf++] = in[i];
            if (rp_set_requires_grad(in[i], true) != RP_OK) goto end;
        }
    if (rp_call(f, in, (size_t)s->n_in, out, (size_t)n_out) != RP_OK || rp_failed()) goto end;
    for (int i = 0; i < n_out; i++) {
        if (!collect(r, out[i])) goto end;
        if (rp_device_of(out[i]).type == rp_default_device().type || reads_host(s)) continue;
        (void)snprintf(why, 200, "result %d is on another device", i);
        goto end;
    }
    if (order) {
        (void)snprintf(why, 200, "backward failed");
        if (!rp_requires_grad(out[0])) {
            (void)snprintf(why, 200, "the result requires no gradient");
            goto end;
        }
        rp_tensor *loss = loss_of(out[0]);
        if (rp_grad(&loss, 1, leaf, (size_t)n_leaf, NULL,
                    RP_OPTIONS(rp_backward_options, .create_graph = order == WITH_SECOND, .allow_unused = true),
                    grad) != RP_OK)
            goto end;
        for (int i = 0; i < n_leaf; i++)
            if (!collect(r, grad[i])) goto end;
    }
    if (order == WITH_SECOND) {
        rp_tensor *sum = NULL;
        (void)snprintf(why, 200, "the second backward failed");
        for (int i = 0; i < n_leaf; i++) {
            if (!grad[i] || !rp_requires_grad(grad[i])) continue;
            rp_tensor *t = rp_sum(rp_mul(grad[i], grad[i]));
            sum = sum ? rp_add(sum, t) : t;
        }
        if (!sum) {
            (void)snprintf(why, 200, "no gradient carries a tape");
            goto end;
        }
        if (rp_grad(&sum, 1, leaf, (size_t)n_leaf, NULL, RP_OPTIONS(rp_backward_options, .allow_unused = true), grad) !=
            RP_OK)
            goto end;
        for (int i = 0; i < n_leaf; i++)
            if (!collect(r, grad[i])) goto end;
    }
    done = !rp_failed();
end:
    (void)rp_scope_end(scope, NULL, 0);
    return done;
}

static int order_of(const sample *s) { return sample_order(s) ? WITH_GRAD : FORWARD; }

/* ---- the floors ---- */

typedef struct expected {
    results at[2], resized[CHANGED]; /* variants 0 and 1 of size N, variant 0 of changed sizes: outputs and gradients */
    results second;
} expected;

static bool eager(const sample *s, rp_compiled *plain, expected *e) {
    char why[200];
    int order = order_of(s);
    for (int v = 0; v < 2; v++)
        if (!run(s, plain, N, (unsigned)v, FORWARD, &e->at[v], why)) return failed(s, EAGER, "%s", why);
    ok(s, EAGER);
    if (order == FORWARD) skipped(s, BACKWARD, "no derivative");
    for (int v = 0; v < 2 && order; v++) {
        results_free(&e->at[v]);
        if (!run(s, plain, N, (unsigned)v, order, &e->at[v], why)) return failed(s, BACKWARD, "%s", why);
        ok(s, BACKWARD);
    }
    for (int k = 0; k < CHANGED; k++)
        if (!run(s, plain, changed[k], 0, order, &e->resized[k], why)) return failed(s, EAGER, "changed size: %s", why);
    if (sample_order(s) < 2) {
        skipped(s, SECOND, order ? "gradient is constant" : "no derivative");
        return true;
    }
    if (!run(s, plain, N, 0, WITH_SECOND, &e->second, why)) return failed(s, SECOND, "%s", why);
    /* the first part again, whatever is kept for the second */
    results head = e->second;
    head.n = e->at[0].n;
    if (!same(&head, &e->at[0], 0, why)) return failed(s, SECOND, "with create_graph: %s", why);
    ok(s, SECOND);
    return true;
}

/* Trace, text, parse, check, equal, run. */
static bool as_text(const sample *s, rp_fn fn, const expected *e) {
    if (reads_host(s)) {
        skipped(s, TEXT, "reads values on the host");
        return true;
    }
    rp_tensor *in[SAMPLE_IN + 1], *out[MAX_OUT] = {0};
    char why[200];
    bool good = true;
    rp_scope scope = rp_scope_begin();
    int n_out = (int)sample_outs(s);
    sample_make(s, RP_F32, N, 0, in);
    (void)rp_manual_seed(11);
    rp_ir *ir = rp_trace(fn, in, (size_t)s->n_in, (size_t)n_out), *parsed = NULL;
    size_t bytes = rp_failed() ? 0 : rp_ir_text(ir, NULL, 0);
    char *text = calloc(bytes + 1, 1);
    if (rp_failed()) good = failed(s, TEXT, "rp_trace");
    if (good) {
        (void)rp_ir_text(ir, text, bytes + 1);
        parsed = rp_ir_parse(text, bytes);
        if (rp_failed() || rp_ir_check(parsed) != RP_OK)
            good = failed(s, TEXT, "parsing\n%s\n", text);
        else if (!rp_ir_equal(ir, parsed))
            good = failed(s, TEXT, "the parsed text is another graph\n%s\n", text);
    }
    for (int which = 0; good && which < 2; which++) {
        results r = {0}, want = e->at[0];
        want.n = n_out;
        (void)rp_manual_seed(11);
        if (rp_ir_run(which ? parsed : ir, in, (size_t)s->n_in, out, (size_t)n_out) != RP_OK)
            good = failed(s, TEXT, "rp_ir_run of the %s graph", which ? "parsed" : "traced");
        for (int i = 0; good && i < n_out; i++)
            if (!collect(&r, out[i])) good = failed(s, TEXT, "result %d", i);
        if (good && !same(&r, &want, 0, why)) good = failed(s, TEXT, "rp_ir_run: %s", why);
        results_free(&r);
    }
    free(text);
    rp_ir_release(ir);
    rp_ir_release(parsed);
    (void)rp_scope_end(scope, NULL, 0);
    if (good) ok(s, TEXT);
    return good;
}

/* A backend that gave up would give the right values too. */
static bool nothing_skipped(const sample *s, rp_compiled *f, enum floor floor) {
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        if (rp_explain_get(f, i, &e) != RP_OK) return failed(s, floor, "rp_explain_get");
        if (strcmp(e.kind, "skip") == 0 || strcmp(e.kind, "break") == 0)
            return failed(s, floor, "%s %s: %s", e.kind, e.reason, e.message);
    }
    return true;
}

static bool compiled(const sample *s, rp_fn fn, const char *backend, enum floor floor, const expected *e,
                     double tolerance, bool resize) {
    char why[200];
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = backend));
    bool good = !rp_failed() || failed(s, floor, "rp_compile");
    static const unsigned variants[] = {0, 1, 0};
    for (int call = 0; good && call < 3; call++) {
        results r;
        if (!run(s, f, N, variants[call], order_of(s), &r, why))
            good = failed(s, floor, "call %d: %s", call, why);
        else if (!same(&r, &e->at[variants[call]], tolerance, why))
            good = failed(s, floor, "call %d: %s", call, why);
        results_free(&r);
    }
    for (int call = 0; good && resize && call < CHANGED + 1; call++) {
        results r;
        int k = call == 0 ? 0 : call - 1; /* the first of them twice */
        if (!run(s, f, changed[k], 0, order_of(s), &r, why))
            good = failed(s, RESIZE, "\"%s\", size %d: %s", backend, (int)changed[k], why);
        else if (!same(&r, &e->resized[k], tolerance, why))
            good = failed(s, RESIZE, "\"%s\", size %d: %s", backend, (int)changed[k], why);
        else
            ok(s, RESIZE);
        results_free(&r);
    }
    if (good && !reads_host(s)) good = nothing_skipped(s, f, floor);
    rp_compiled_release(f);
    if (good) ok(s, floor);
    return good;
}

/* Takes `to` where the graph read `from`: nodes are re-pointed, or the values are copied. NULL on failure. */
static const char *move_input(rp_graph *g, rp_tensor *from, rp_tensor *to) {
    if (rp_graph_repoint(g, from, to) == RP_OK) return "re-pointed";
    if (rp_error_status() != RP_ERROR_CAPTURE) return NULL;
    if (strstr(rp_error_message(), "does not use")) {
        (void)rp_error_take();
        return "not read";
    }
    (void)rp_error_take();
    bool mode = rp_set_grad_enabled(false);
    rp_copy_(from, to);
    (void)rp_set_grad_enabled(mode);
    return rp_failed() ? NULL : "copied";
}

static bool captured(const sample *s, rp_device device, rp_fn fn, enum floor capture, enum floor repoint,
                     const expected *e) {
    if (reads_host(s)) {
        skipped(s, capture, "reads values on the host");
        skipped(s, repoint, "reads values on the host");
        return true;
    }
    rp_tensor *in[SAMPLE_IN + 1], *moved[SAMPLE_IN + 1], *out[MAX_OUT] = {0};
    char why[200];
    bool good = true, patched = false, copied = false;
    int n_out = (int)sample_outs(s);
    results want[2];
    context capturing = {s, true};
    rp_fn captured_fn = {fn.body, &capturing, sizeof capturing, fn.name};
    rp_scope scope = rp_scope_begin();
    /* what is expected: the same function, eagerly, here */
    for (int v = 0; v < 2; v++) {
        rp_compiled *plain = rp_plain(captured_fn);
        good = run(s, plain, N, (unsigned)v, FORWARD, &want[v], why) && good;
        rp_compiled_release(plain);
    }
    if (!good) good = failed(s, capture, "eager: %s", why);
    sample_make(s, RP_F32, N, 0, in);
    sample_make(s, RP_F32, N, 1, moved);
    rp_graph *g = rp_graph_new();
    (void)rp_synchronize(device);
    (void)rp_manual_seed(11);
    if (good && rp_graph_begin(g, device, NULL) != RP_OK) good = failed(s, capture, "rp_graph_begin");
    if (good) {
        captured_fn.body(captured_fn.ctx, in, (size_t)s->n_in, out, (size_t)n_out);
        if (rp_graph_end(g) != RP_OK || rp_failed()) good = failed(s, capture, "rp_graph_end");
    }
    (void)e;
    for (int replay = 0; good && replay < 4; replay++) {
        int v = replay >= 2;
        results r = {0};
        if (replay == 2)
            for (int i = 0; good && i < s->n_in; i++) {
                const char *how = move_input(g, in[i], moved[i]);
                if (!how)
                    good = failed(s, repoint, "input %d", i);
                else if (strcmp(how, "re-pointed") == 0)
                    patched = true;
                else if (strcmp(how, "copied") == 0)
                    copied = true;
            }
        (void)rp_manual_seed(11);
        if (good && rp_graph_replay(g) != RP_OK) good = failed(s, v ? repoint : capture, "replay %d", replay);
        if (good && rp_synchronize(device) != RP_OK) good = failed(s, v ? repoint : capture, "replay %d", replay);
        for (int i = 0; good && i < n_out; i++)
            if (!collect(&r, out[i])) good = failed(s, v ? repoint : capture, "replay %d", replay);
        if (good && !same(&r, &want[v], 0, why)) good = failed(s, v ? repoint : capture, "replay %d: %s", replay, why);
        results_free(&r);
        if (good && !v) ok(s, capture);
    }
    if (good && patched)
        ok(s, repoint);
    else if (good)
        skipped(s, repoint, copied ? "library operand: copied" : "reads no input");
    rp_graph_release(g);
    results_free(&want[0]);
    results_free(&want[1]);
    (void)rp_scope_end(scope, NULL, 0);
    return good;
}

/* ---- emitted C, in a process of its own: what "wait" means is read once ---- */

static pid_t native_child;
static FILE *native_file; /* without a name: nothing is left, however the test ends */

static void write_results(FILE *f, const results *r) {
    (void)fwrite(&r->n, sizeof r->n, 1, f);
    for (int i = 0; i < r->n; i++) {
        (void)fwrite(&r->v[i], sizeof r->v[i], 1, f);
        if (r->v[i].bytes) (void)fwrite(r->v[i].data, r->v[i].bytes, 1, f);
    }
}

static bool read_results(FILE *f, results *r) {
    if (fread(&r->n, sizeof r->n, 1, f) != 1 || r->n < 0 || r->n > MAX_RESULTS) {
        r->n = 0;
        return false;
    }
    int n = r->n;
    r->n = 0;
    for (int i = 0; i < n; i++) {
        if (fread(&r->v[i], sizeof r->v[i], 1, f) != 1) return false;
        r->v[i].data = calloc(r->v[i].bytes + 1, 1);
        r->n++;
        if (r->v[i].bytes && fread(r->v[i].data, r->v[i].bytes, 1, f) != 1) return false;
    }
    return true;
}

/* An op costs several runs of the C compiler: one of nine (of 27 in a build of sanitizers), and all of them in
   `make test-all`. */
static bool emitted(int i) {
    const char *only = getenv("ROAD_OP");
    return test_takes_all() || (only && *only) || i % (SLOW_BUILD ? 27 : 9) == 0;
}

/* The second process: eager and fused results of the ops by compiled kernels. */
static int native_main(const char *number) {
    FILE *f = fdopen(atoi(number), "wb");
    if (!f) return 2;
    (void)rp_set_deterministic(true);
    for (int i = 0; i < SAMPLES; i++) {
        char why[200];
        context c = {&samples[i], false};
        rp_fn fn = {body, &c, sizeof c, samples[i].op->name};
        if (!wanted(&samples[i]) || !emitted(i)) continue;
        for (int k = 0; k < 2; k++) {
            rp_compiled *g = k ? rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "fused")) : rp_plain(fn);
            results r;
            /* the first call of a compiled function traces, and runs what it traced; the second runs the program */
            if (k) {
                (void)run(&samples[i], g, N, 1, order_of(&samples[i]), &r, why);
                results_free(&r);
            }
            if (!run(&samples[i], g, N, 0, order_of(&samples[i]), &r, why)) {
                (void)fprintf(stderr, "%s by emitted C: %s: %s\n", samples[i].op->name, why, rp_error_message());
                (void)rp_error_take();
                results_free(&r);
            }
            write_results(f, &r);
            results_free(&r);
            rp_compiled_release(g);
        }
    }
    rp__jit_counters c;
    rp__jit_counters_get(&c);
    (void)fwrite(&c, sizeof c, 1, f);
    return fclose(f) == 0 ? 0 : 2;
}

static bool have_compiler(void) { return system("cc --version >/dev/null 2>&1") == 0; }

static void native_start(void) {
    if (!have_compiler()) return;
    native_file = tmpfile();
    if (!native_file) {
        failures++;
        printf("FAILED emitted C: no temporary file\n");
        return;
    }
    native_child = fork();
    if (native_child == 0) {
        char number[16];
        (void)snprintf(number, sizeof number, "%d", fileno(native_file));
        (void)setenv("REPRISE_JIT", "wait", 1);
        (void)execl("/proc/self/exe", "test_road", "--native", number, (char *)NULL);
        _exit(127);
    }
}

static void native_compare(const expected *all) {
    if (native_child <= 0) {
        for (int i = 0; i < SAMPLES; i++) skipped(&samples[i], NATIVE, "no C compiler");
        return; /* tier 0 is all that there is */
    }
    int status = 0;
    (void)waitpid(native_child, &status, 0);
    FILE *f = native_file;
    rewind(f); /* the position is shared with the process that wrote */
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        failures++;
        printf("FAILED emitted C: its process ended with status %d\n", status);
        (void)fclose(f);
        return;
    }
    for (int i = 0; i < SAMPLES; i++)
        for (int k = 0; k < 2; k++) {
            results r = {0};
            char why[200];
            if (!wanted(&samples[i])) continue;
            if (!emitted(i))
                skipped(&samples[i], NATIVE, "left to make test-all");
            else if (!read_results(f, &r))
                (void)failed(&samples[i], NATIVE, "its results are missing");
            else if (!same(&r, &all[i].at[0], 0, why))
                (void)failed(&samples[i], NATIVE, "%s: %s", k ? "fused" : "eager", why);
            else
                ok(&samples[i], NATIVE);
            results_free(&r);
        }
    rp__jit_counters c = {0};
    if (fread(&c, sizeof c, 1, f) != 1 || c.compiled + c.cached == 0 || c.failed) {
        failures++;
        printf("FAILED emitted C: %llu kernels compiled, %llu cached, %llu failed\n", (unsigned long long)c.compiled,
               (unsigned long long)c.cached, (unsigned long long)c.failed);
    }
    (void)fclose(f);
}

/* ---- all of it ---- */

static const struct {
    const char *name;
    enum floor cpu;
} backends[] = {{"eager", B_EAGER}, {"aot_eager", B_AOT}, {"cudagraphs", B_GRAPHS}, {"fused", B_FUSED}};

static expected *all;

static void test_every_backend_is_there(void **state) {
    (void)state;
    for (size_t b = 0; b < sizeof backends / sizeof *backends; b++) {
        bool found = false;
        for (size_t i = 0; i < rp_backend_count(); i++)
            found = found || strcmp(rp_backend_name(i), backends[b].name) == 0;
        if (!found) fail_msg("there is no backend \"%s\"", backends[b].name);
    }
}

static void test_cpu(void **state) {
    (void)state;
    int before = failures;
    for (int i = 0; i < SAMPLES; i++) {
        const sample *s = &samples[i];
        context c = {s, false};
        rp_fn fn = {body, &c, sizeof c, s->op->name};
        if (!wanted(s)) continue;
        rp_compiled *plain = rp_plain(fn);
        if (eager(s, plain, &all[i])) {
            (void)as_text(s, fn, &all[i]);
            for (size_t b = 0; b < sizeof backends / sizeof *backends; b++)
                (void)compiled(s, fn, backends[b].name, backends[b].cpu, &all[i], 0, true);
            (void)captured(s, rp_cpu(), fn, CAPTURE, REPOINT, &all[i]);
        }
        rp_compiled_release(plain);
    }
    assert_int_equal(failures, before);
}

static void test_emitted_c(void **state) {
    (void)state;
    int before = failures;
    native_compare(all);
    assert_int_equal(failures, before);
}

static void test_cuda(void **state) {
    (void)state;
    int before = failures;
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    for (int i = 0; i < SAMPLES; i++) {
        const sample *s = &samples[i];
        context c = {s, false};
        rp_fn fn = {body, &c, sizeof c, s->op->name};
        char why[200];
        /* the emulator's kernels are built without contraction, a GPU's elementary functions differ by a few units */
        const double tolerance = 1e-5;
        if (!wanted(s) || !test_cuda_takes((unsigned)i, 1)) continue;
        rp_compiled *plain = rp_plain(fn);
        expected here = {0};
        bool good = true;
        for (int v = 0; good && v < 2; v++)
            if (!run(s, plain, N, (unsigned)v, order_of(s), &here.at[v], why)) good = failed(s, CUDA, "%s", why);
        results out = here.at[0], want = all[i].at[0];
        out.n = out.n < (int)sample_outs(s) ? out.n : (int)sample_outs(s);
        want.n = want.n < (int)sample_outs(s) ? want.n : (int)sample_outs(s);
        if (good && !same(&out, &want, tolerance, why)) good = failed(s, CUDA, "%s", why);
        if (good) ok(s, CUDA);
        if (good && order_of(s) == FORWARD)
            skipped(s, CUDA_BACKWARD, "no derivative");
        else if (good && !same(&here.at[0], &all[i].at[0], tolerance, why))
            good = failed(s, CUDA_BACKWARD, "%s", why);
        else if (good)
            ok(s, CUDA_BACKWARD);
        if (good) {
            (void)captured(s, rp_cuda(0), fn, CUDA_CAPTURE, CUDA_REPOINT, &here);
            (void)compiled(s, fn, "cudagraphs", CUDA_GRAPHS, &here, 0, false);
            (void)compiled(s, fn, "fused", CUDA_FUSED, &all[i], tolerance, true);
        }
        for (int v = 0; v < 2; v++) results_free(&here.at[v]);
        rp_compiled_release(plain);
    }
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
    assert_int_equal(failures, before);
}

static void print_table(void) {
    const char *reasons[16];
    int n_reasons = 0, counts[4] = {0};
    printf("%-20s", "");
    for (int f = 0; f < FLOORS; f++) printf(" %c", 'A' + f);
    printf("\n");
    for (int i = 0; i < SAMPLES; i++) {
        printf("%-20s", samples[i].op->name);
        for (int f = 0; f < FLOORS; f++) {
            const cell *c = &table[i][f];
            counts[c->state]++;
            int k = 0;
            if (c->state == SKIPPED) {
                while (k < n_reasons && strcmp(reasons[k], c->reason) != 0) k++;
                if (k == n_reasons && n_reasons < 9) reasons[n_reasons++] = c->reason;
            }
            printf(" %c", c->state == OK ? '+' : c->state == SKIPPED ? '1' + k : c->state == FAILED ? 'X' : '?');
        }
        printf("\n");
    }
    for (int f = 0; f < FLOORS; f++) printf("%s%c %s", f ? ", " : "", 'A' + f, floor_names[f]);
    printf("\n+ ok, X failed, ? not reached");
    for (int k = 0; k < n_reasons; k++) printf(", %d skipped: %s", k + 1, reasons[k]);
    printf("\n%d ok, %d skipped, %d failed, %d not reached\n", counts[OK], counts[SKIPPED], counts[FAILED],
           counts[NOT_RUN]);
}

int main(int argc, char **argv) {
    collect_samples();
    table = calloc((size_t)SAMPLES, sizeof *table);
    all = calloc((size_t)SAMPLES, sizeof *all);
    if (argc == 3 && strcmp(argv[1], "--native") == 0) return native_main(argv[2]);
    (void)setenv("REPRISE_JIT", "0", 1);
    bool cuda = test_cuda_choose();
    native_start();
    (void)rp_set_deterministic(true); /* sums that collide: the same bits everywhere */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_backend_is_there),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_emitted_c),
        cmocka_unit_test(test_cuda),
    };
    int result = cuda ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    print_table();
    for (int i = 0; i < SAMPLES; i++) {
        results_free(&all[i].at[0]);
        results_free(&all[i].at[1]);
        for (int k = 0; k < CHANGED; k++) results_free(&all[i].resized[k]);
        results_free(&all[i].second);
    }
    return result;
}
