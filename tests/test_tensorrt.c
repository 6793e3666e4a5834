/* The engine "tensorrt" on the emulated GPU, before a library of the test's own (tests/data/engines/tensorrt.c), which stands where TensorRT
   would: layouts of both majors, what is told of libraries that are something else, refusals, failures. And, where TensorRT's builder is
   here, engines that it makes of our models. ctest: timeout=300 cost=10 */
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
#include <sys/wait.h>
#include <unistd.h>

#include <reprise.h>
#include <reprise_io.h>

#include "doors/tensorrt/builder.h"
#include "support/check.h"
#include "support/cuda.h"

#define TEN "-DVERSION=101300 -DLAYOUT=10 -DEXPECTED_FLAGS=0"
#define ELEVEN "-DVERSION=110000 -DLAYOUT=11 -DEXPECTED_FLAGS=0"
enum { N = 16 };

static void relu(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_relu(in[0]);
}
static const rp_fn fn = {relu, NULL, 0, "relu"};

static bool explains(rp_compiled *f, const char *kind, const char *reason, const char *text) {
    rp_explain_entry e;
    for (size_t k = 0; k < rp_explain_count(f); k++) {
        OK(rp_explain_get(f, k, &e));
        if (strcmp(e.kind, kind) == 0 && strcmp(e.reason, reason) == 0 && strstr(e.message, text)) return true;
    }
    return false;
}

/* What a process finds that has the library made with these flags. */
typedef struct expected {
    const char *why;                  /* NULL: the engine is available */
    const char *kind, *reason, *text; /* of explain */
    bool tf32, cpu, grad;
} expected;

static bool as_expected(const expected *x) {
    rp_backend_info info = {.struct_size = sizeof info};
    const char *const options[][2] = {{"tf32", "1"}};
    if (rp_backend_info_get("tensorrt", &info) != RP_OK) return false;
    if (info.available != !x->why || (x->why && !strstr(info.why, x->why))) {
        print_message("available: %d, '%s'\n", info.available, info.why);
        return false;
    }
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "tensorrt", .engine_options = options,
                                               .n_engine_options = x->tf32));
    rp_set_default_device(x->cpu ? rp_cpu() : rp_cuda(0));
    rp_tensor *t = rp_arange(rp_f64(1), rp_f64(N + 1), rp_f64(1)), *y = NULL;
    if (x->grad) (void)rp_set_requires_grad(t, true);
    bool good = true;
    for (int turn = 0; turn < 4 && good; turn++) {
        float got[N];
        good = rp_call(f, &t, 1, &y, 1) == RP_OK && rp_to_host(rp_detach(y), got, sizeof got) == RP_OK;
        for (int k = 0; k < N && good; k++) good = got[k] == (float)(k + 1);
    }
    if (!good) print_message("%s\n", rp_error_message());
    if (good && !explains(f, x->kind, x->reason, x->text)) {
        good = false;
        print_message("explain has no %s [%s] with '%s'\n", x->kind, x->reason, x->text);
    }
    rp_compiled_release(f);
    return good && !rp_failed();
}

/* In a process of its own: a library is opened once. */
static void with_library(const char *flags, const expected *x) {
    char path[64], command[700], cache[64];
    const char *data = getenv("REPRISE_TEST_DATA");
    (void)snprintf(path, sizeof path, "./tensorrt_%d.so", (int)getpid());
    (void)snprintf(cache, sizeof cache, "./tensorrt_%d.cache", (int)getpid());
    (void)snprintf(command, sizeof command, "cc -w -shared -fPIC %s -o %s %s/engines/tensorrt.c 2>/dev/null", flags,
                   path, data ? data : ".");
    if (system(command) != 0) skip();
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)setenv("REPRISE_TENSORRT", path, 1);
        (void)setenv("REPRISE_CACHE_DIR", cache, 1);
        const bool good = as_expected(x);
        (void)fflush(NULL);
        _exit(good ? 0 : 1);
    }
    int status = 1;
    (void)waitpid(child, &status, 0);
    (void)remove(path);
    (void)snprintf(command, sizeof command, "rm -rf %s", cache);
    (void)system(command);
    assert_int_equal(status, 0);
}

static void an_engine_of_either_major_runs_on_the_stream(void **state) {
    (void)state;
    const expected whole = {.kind = "engine", .reason = "", .text = "part 1 of 1: 1 nodes, TensorRT"};
    with_library(TEN, &whole);
    with_library(ELEVEN, &whole);
}

static void products_round_their_operands_where_that_is_asked(void **state) {
    (void)state;
    const expected whole = {.kind = "engine", .reason = "", .text = "part 1 of 1: 1 nodes, TensorRT", .tf32 = true};
    with_library("-DVERSION=101300 -DLAYOUT=10 -DEXPECTED_FLAGS=64", &whole);
}

static void libraries_of_other_layouts_are_not_called(void **state) {
    (void)state;
    const expected other = {.why = "do not lie where they are expected",
                            .kind = "skip",
                            .reason = "engine-absent",
                            .text = "do not lie where they are expected"};
    with_library("-DVERSION=101300 -DLAYOUT=11 -DEXPECTED_FLAGS=0", &other);
    with_library("-DVERSION=110000 -DLAYOUT=10 -DEXPECTED_FLAGS=0", &other);
}

static void versions_that_are_not_known_are_refused(void **state) {
    (void)state;
    const expected old = {.why = "is version 8.6.1; 10 and 11 are used",
                          .kind = "skip",
                          .reason = "engine-absent",
                          .text = "is version 8.6.1"},
                   young = {.why = "is version 12.0.0", .kind = "skip", .reason = "engine-absent", .text = "12.0.0"};
    with_library("-DVERSION=80601 -DLAYOUT=10 -DEXPECTED_FLAGS=0", &old);
    with_library("-DVERSION=120000 -DLAYOUT=11 -DEXPECTED_FLAGS=0", &young);
}

static void half_of_it_is_not_enough(void **state) {
    (void)state;
    const expected half = {
        .why = "half of it is here", .kind = "skip", .reason = "engine-absent", .text = "libnvonnxparser.so.10"};
    with_library(TEN " -DNO_PARSER", &half);
}

static void what_it_refuses_and_what_fails_is_told(void **state) {
    (void)state;
    const expected refused = {.kind = "skip", .reason = "engine-refused", .text = "Relu is beneath it"},
                   failed = {.kind = "skip", .reason = "engine-failed", .text = "the stream is on fire"};
    with_library(TEN " -DREFUSES", &refused);
    with_library(ELEVEN " -DFAILS", &failed);
}

static void it_takes_graphs_of_inference_on_a_gpu(void **state) {
    (void)state;
    const expected elsewhere = {.kind = "skip", .reason = "engine-device", .text = "relu", .cpu = true},
                   training = {.kind = "skip", .reason = "engine-inference-only", .text = "training", .grad = true};
    with_library(TEN, &elsewhere);
    with_library(TEN, &training);
}

/* ---- the builder itself: TensorRT-RTX's needs no GPU */

static void a_builder_that_is_here_makes_engines_of_our_models(void **state) {
    (void)state;
    char version[64], where[512], why[512], model[64];
    if (!rp__trt_open(version, where, why)) {
        print_message("%s\n", why);
        skip();
    }
    print_message("TensorRT %s\n", version);
    rp_tensor *x = rp_full(RP_DIMS(N), rp_f64(2));
    rp_ir *ir = rp_trace(fn, &x, 1, 1);
    (void)snprintf(model, sizeof model, "./tensorrt_%d.onnx", (int)getpid());
    OK(rp_onnx_save(model, ir, NULL));
    static char bytes[1 << 16];
    FILE *f = fopen(model, "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    (void)fclose(f);
    (void)remove(model);
    rp__text plan = {0};
    OK(rp__trt_plan(bytes, n, false, &plan));
    assert_true(plan.length > 64);
    rp__text_free(&plan);
    FAILS(RP_ERROR_COMPILE, "refuses the model", rp__trt_plan("no model", 8, true, &plan));
    rp_ir_release(ir);
}

int main(void) {
    if (!test_cuda_choose()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(an_engine_of_either_major_runs_on_the_stream, take_error),
        cmocka_unit_test_teardown(products_round_their_operands_where_that_is_asked, take_error),
        cmocka_unit_test_teardown(libraries_of_other_layouts_are_not_called, take_error),
        cmocka_unit_test_teardown(versions_that_are_not_known_are_refused, take_error),
        cmocka_unit_test_teardown(half_of_it_is_not_enough, take_error),
        cmocka_unit_test_teardown(what_it_refuses_and_what_fails_is_told, take_error),
        cmocka_unit_test_teardown(it_takes_graphs_of_inference_on_a_gpu, take_error),
        cmocka_unit_test_teardown(a_builder_that_is_here_makes_engines_of_our_models, take_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
