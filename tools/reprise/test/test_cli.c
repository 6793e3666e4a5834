/* The command-line tool from outside: output, JSON, exit codes. argv[1] is the tool. Says nothing of the library
   itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *tool;

/* Runs `tool ARGUMENTS`; stdout (or, with both, stderr too) is returned, to be freed. */
static char *run(const char *arguments, int *code, bool both) {
    char command[4096];
    snprintf(command, sizeof command, "'%s' %s %s", tool, arguments, both ? "2>&1" : "2>/dev/null");
    FILE *in = popen(command, "r");
    assert_non_null(in);
    size_t n = 0, room = 1 << 16;
    char *text = malloc(room);
    assert_non_null(text);
    for (size_t got; (got = fread(text + n, 1, room - n - 1, in)) > 0;) {
        n += got;
        if (room - n < 4096) {
            text = realloc(text, room *= 2);
            assert_non_null(text);
        }
    }
    text[n] = 0;
    int status = pclose(in);
    assert_true(WIFEXITED(status));
    *code = WEXITSTATUS(status);
    return text;
}

static json_t *run_json(const char *arguments) {
    int code;
    json_error_t error;
    char *text = run(arguments, &code, false);
    json_t *doc = json_loads(text, 0, &error);
    if (code || !doc) {
        char *all = run(arguments, &code, true);
        print_message("%s: exit code %d, %s\n%s\n", arguments, code, doc ? "" : error.text, all);
        free(all);
    }
    assert_int_equal(code, 0);
    assert_non_null(doc);
    free(text);
    return doc;
}

static const char *string_of(json_t *object, const char *key) {
    const char *s = json_string_value(json_object_get(object, key));
    assert_non_null(s);
    return s;
}

static void expect(const char *arguments, int code, const char *text) {
    int got;
    char *out = run(arguments, &got, true);
    if (got != code || !strstr(out, text)) print_message("%s: exit code %d\n%s\n", arguments, got, out);
    assert_int_equal(got, code);
    assert_non_null(strstr(out, text));
    free(out);
}

static void test_full_disk(void **state) { /* output that did not reach its reader */
    (void)state;
    static const char *const commands[] = {
        "--version", "--help", "ops", "ops --json", "backends", "doctor", "doctor --json", "dump trig", "explain trig",
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char line[128];
        snprintf(line, sizeof line, "%s 2>&1 >/dev/full #", commands[i]);
        expect(line, 1, "reprise: cannot write the output");
    }
}

static void test_wrong_use(void **state) {
    (void)state;
    expect("", 2, "Usage");
    expect("nothing", 2, "no command 'nothing'");
    expect("ops --bogus", 2, "bogus");
    expect("demo --device tpu", 2, "cpu or cuda");
    expect("demo --steps 0", 2, "--steps: '0' is no number");
    expect("demo --steps 3x", 2, "--steps: '3x' is no number");
    expect("demo --text /nonexistent", 1, "--text /nonexistent");
    expect("explain nothing", 2, "no model 'nothing'");
    expect("explain rows --train", 2, "not trained");
    expect("explain trig --backend nothing", 2, "there are: eager");
    expect("run x.ir --backend nothing", 2, "there are: eager");
    expect("bench x.ir --backend eager,nothing", 2, "there are: eager");
    expect("run", 2, "Usage");
    expect("run x.ir --compare --backend eager", 2, "two or more");
    expect("bench --backend eager", 2, "for a model or a graph");
    expect("run nothing", 2, "models are simple, trig");
    expect("run mlp --dtype f8", 2, "f32, tf32, f64, f16 or bf16");
    expect("run mlp --batch 0", 2, "no number from 1");
    expect("run rnn --batch 3", 2, "takes no batch");
    expect("run cnn --length 3", 2, "takes no texts");
    expect("run bert-tiny --length x", 2, "--length: 'x' is no number");
    expect("run trig --weights x.safetensors", 2, "has no weights");
    expect("run mlp --weights /nonexistent/x.safetensors", 1, "/nonexistent/x.safetensors");
    expect("run x.ir --batch 2", 2, "for models");
    expect("run mlp --input f32 --input f32", 1, "has 1 arguments");
    expect("run mlp --input f32[4,10]=1,2", 1, "2 values for 40 elements");
    expect("run bert-tiny --text x", 2, "belong together");
    expect("run mlp --tokenizer v --text x", 2, "mlp takes no texts");
    expect("run bert-tiny --tokenizer /nonexistent/vocab.txt --text x", 1, "/nonexistent/vocab.txt");
    expect("train", 2, "Usage");
    expect("train nothing", 2, "no model 'nothing'");
    expect("train rows", 2, "not trained");
    expect("train mlp --steps 0", 2, "no number from 1");
    expect("train mlp --rate 0", 2, "no learning rate");
    expect("train simple --output x.safetensors", 2, "has no weights");
    expect("bench rows --train", 2, "not trained");
    expect("bench mlp --calls 3", 2, "not for models");
    expect("bench softmax --train", 2, "the others for a model");
    expect("explain trig --input f32", 2, "for graphs");
    expect("dump /nonexistent", 1, "/nonexistent");
    expect("bench --seconds x", 2, "no time");
    expect("bench --seconds 0.001 nope", 2, "no row is named so");
    expect("explain nope", 2, "models are");
    expect("tune nope", 2, "models are");
    expect("cache", 2, "--warm");
    expect("cache --warm nope", 2, "models are");
    expect("cache --warm --arch 90", 2, "sm_ and a number");
    expect("tune rows --train", 2, "not trained");
    expect("--help", 0, "doctor");
}

static void test_help(void **state) {
    (void)state;
    static const char *const names[] = {"demo",    "run",  "train",  "bench", "tune",     "cache",
                                        "explain", "dump", "export", "ops",   "backends", "doctor"};
    static const char *const forms[] = {"help %s", "%s --help", "%s -h"};
    char line[64], *text[3];
    int code;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int f = 0; f < 3; f++) {
            snprintf(line, sizeof line, forms[f], names[i]);
            text[f] = run(line, &code, false);
            assert_int_equal(code, 0);
            snprintf(line, sizeof line, "Usage: reprise %s ", names[i]);
            assert_non_null(strstr(text[f], line));
            assert_string_equal(text[f], text[0]);
        }
        for (int f = 0; f < 3; f++) free(text[f]);
    }
    static const char *const all[] = {"-h", "--help", "help", "help help", "help -h"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char *listed = run(all[i], &code, false);
        assert_int_equal(code, 0);
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            snprintf(line, sizeof line, "\n  %s ", names[k]);
            assert_non_null(strstr(listed, line));
        }
        free(listed);
    }
    expect("help nothing", 2, "no command 'nothing'");
    expect("help ops run", 2, "one command");
    expect("help --bogus", 2, "no command");
    expect("-V", 0, "reprise ");
}

/* Files that would be waited for, or that are larger than they look, and names that would move a terminal's cursor. */
static void test_odd_files(void **state) {
    (void)state;
    static const char *const commands[] = {"dump %s", "run %s", "explain %s", "bench %s", "demo --text %s"};
    char pipe[] = "./test_cli_XXXXXX", sparse[] = "./test_cli_XXXXXX", line[128];
    assert_true(close(mkstemp(pipe)) == 0 && unlink(pipe) == 0 && mkfifo(pipe, 0600) == 0);
    int fd = mkstemp(sparse);
    assert_true(fd >= 0 && ftruncate(fd, INT64_C(1) << 40) == 0);
    close(fd);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(line, sizeof line, commands[i], pipe);
        expect(line, 1, "it is a pipe");
        snprintf(line, sizeof line, commands[i], sparse);
        expect(line, 1, "it is larger than");
        snprintf(line, sizeof line, commands[i], "./");
        expect(line, 1, "it is a folder");
    }
    unlink(pipe);
    unlink(sparse);
    static const char *const named[] = {
        "dump ./", "run ./", "explain ./",        "bench ./",        "demo --text ./",     "explain ",
        "",        "ops --", "run x.ir --input ", "demo --seconds ", "run x.ir --backend "};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        int code;
        snprintf(line, sizeof line, "%s\"$(printf 'a\\033[2J\\302\\233b')\"", named[i]);
        char *text = run(line, &code, true);
        assert_true(code == 1 || code == 2);
        if (!strstr(text, "a\\x1B[2J\\xC2")) print_message("%s: %s\n", named[i], text);
        assert_non_null(strstr(text, "a\\x1B[2J\\xC2"));
        assert_null(strchr(text, '\033'));
        free(text);
    }
}

static const char *const graph_text =
    "graph \"g\" with { symbol s0 = 4 of size(0, 0) } (%0: f32[s0, 3], %1: i64[s0]) {\n"
    "  %2: f32[s0, 3] = tanh(%0)\n  return %2, %1\n}\n";

static void put_file(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void test_graph_files(void **state) {
    (void)state;
    put_file("test_cli.ir", graph_text, strlen(graph_text));
    expect("run test_cli.ir", 0, "result 0: float32[4, 3]\ntensor(");
    expect("run - <test_cli.ir", 0, "result 1: int64[4]\n");
    expect("run test_cli.ir -i f32[2,3]=0.5 -i i64[2]=7,-9", 0, "tensor([ 7, -9])");
    expect("run test_cli.ir --compare", 0, "result 0: fused equals eager");
    expect("run test_cli.ir --compare --backend cudagraphs,inductor -i f32[9,3] -i i64[9]", 0,
           "inductor equals cudagraphs");
    expect("run test_cli.ir -i _ -i _ -i _", 2, "3 inputs");
    expect("run test_cli.ir -i f32[2,3]=1,2", 1, "2 values for 6 elements");
    expect("run test_cli.ir -i _ -i =x", 1, "no integer");
    expect("run test_cli.ir -i f31", 2, "types are");
    expect("run test_cli.ir -i f32[1,", 2, "expected TYPE");
    expect("run test_cli.ir -i f32[4,4]", 1, "RP_ERROR_");
    expect("bench --seconds 0.01 test_cli.ir --backend fused", 0, "fused ");
    expect("explain test_cli.ir", 0, "tanh");
    expect("cache --warm simple", 0, "simple");
    expect("tune rows --device cpu --json", 0, "\"schedule\"");
    expect("explain - -i f32[7,3] -i i64[7] <test_cli.ir", 0, "tanh");
    /* the same numbers for the same seed */
    int code;
    char *a = run("run test_cli.ir --seed 3", &code, false),
         *b = run("run --seed 3 --backend eager test_cli.ir", &code, false);
    char *c = run("run test_cli.ir --seed 4", &code, false);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    free(a), free(b), free(c);

    /* out and in again; a file that differs fails the command, unless that much is permitted */
    expect("run test_cli.ir -i f32[2,3]=0.5 -i i64[2]=1,2 -o test_cli.npy -o test_cli_1.npy", 0, "");
    expect("run test_cli.ir -i f32[2,3]=0.5 -i @test_cli_1.npy -e test_cli.npy -e test_cli_1.npy", 0,
           "fused equals the file");
    expect("run test_cli.ir -i f32[2,3]=0.5 -i i64[2]@test_cli_1.npy -e _ -e test_cli_1.npy", 0,
           "result 1: fused equals the file");
    expect("run test_cli.ir -i f32[2,3]=0.51 -i i64[2] -e test_cli.npy", 1, "in 6 of 6: absolute 0.00783");
    expect("run test_cli.ir -i f32[2,3]=0.51 -i i64[2] -e test_cli.npy --atol 0.01", 0, "in 6 of 6");
    expect("run test_cli.ir -i f32[2,3]=nan -i i64[2] -e test_cli.npy --atol 0.01", 1, "absolute inf");
    expect("run test_cli.ir -i @test_cli_1.npy", 1, "RP_ERROR_");
    expect("run test_cli.ir -i f32[2,3]@test_cli_1.npy", 1, "holds i64[2]");
    expect("run test_cli.ir -o /dev/null", 1, "no regular file");
    expect("run test_cli.ir -o /nonexistent/x.npy", 1, "No such file");
    expect("run test_cli.ir -o a -o b -o c", 2, "the graph has 2 results");
    json_t *doc = run_json("run test_cli.ir --json --compare -i f32[2,3]=0.51 -i i64[2] -e test_cli.npy --rtol 1"),
           *entry;
    size_t i;
    assert_int_equal(json_array_size(json_object_get(doc, "results")), 2);
    assert_int_equal(json_array_size(json_object_get(doc, "differences")), 3 + 2 + 2);
    json_array_foreach(json_object_get(doc, "differences"), i, entry)
        assert_true(json_is_false(json_object_get(entry, "beyond")));
    json_decref(doc);
    struct stat st;
    FILE *f = fopen("test_cli.npy", "rb");
    unsigned char bytes[256];
    assert_true(f && !fstat(fileno(f), &st) && st.st_size == 128 + 24 && fread(bytes, 1, sizeof bytes, f) == 152);
    fclose(f);
    assert_memory_equal(bytes, "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                        66);
    assert_int_equal(bytes[127], '\n');

    /* a program in text form that is none */
    put_file("test_cli.ir", graph_text, strlen(graph_text) / 2);
    expect("run test_cli.ir", 1, "test_cli.ir: ");
    expect("bench test_cli.ir", 1, "test_cli.ir: ");
    unlink("test_cli.ir");
    unlink("test_cli.npy");
    unlink("test_cli_1.npy");
}

/* Files of numpy that are not what they say. */

static void test_ops(void **state) {
    (void)state;
    json_t *list = run_json("ops --json"), *op;
    size_t i, found = 0;
    json_array_foreach(list, i, op) {
        const char *name = string_of(op, "name"), *schema = string_of(op, "schema");
        assert_int_equal(strncmp(schema, name, strlen(name)), 0);
        assert_true(*string_of(op, "doc") && *string_of(op, "lowering"));
        assert_true(json_is_boolean(json_object_get(op, "differentiable")));
        found += !strcmp(name, "softmax") || !strcmp(name, "multinomial");
    }
    assert_int_equal(found, 2);
    char last[64];
    snprintf(last, sizeof last, "\n%zu ops\n", json_array_size(list));
    expect("ops", 0, last);
    json_decref(list);
}

static void test_backends(void **state) {
    (void)state;
    json_t *list = run_json("backends --json"), *one;
    size_t i, found = 0, others = 0;
    json_array_foreach(list, i, one) {
        const char *s = json_string_value(json_object_get(one, "name"));
        const bool here = json_is_true(json_object_get(one, "available"));
        assert_non_null(s);
        found += here && (!strncmp(s, "fused", 5) || !strcmp(s, "eager") || !strcmp(s, "aot_eager") ||
                          !strcmp(s, "inductor") || !strcmp(s, "cudagraphs"));
        if (strcmp(s, "onnxrt") != 0 && strcmp(s, "xla") != 0) continue;
        others++; /* where it is, or why it is not */
        assert_true(strlen(json_string_value(json_object_get(one, here ? "where" : "why"))) > 0);
    }
    assert_int_equal(found, 5);
    assert_int_equal(others, 2);
    json_decref(list);
}

static void test_doctor(void **state) {
    (void)state;
    json_t *doc = run_json("doctor --json");
    const char *const subjects[] = {"version", "device cpu:0", "vector kernels", "threads",  "CUDA driver",
                                    "NVRTC",   "cuBLASLt",     "cuDNN",          "compiler", "cache"};
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        json_t *lines = json_object_get(doc, subjects[i]);
        if (!lines && !strcmp(subjects[i], "device cpu:0")) lines = json_object_get(doc, "device cpu");
        if (!json_array_size(lines)) print_message("doctor does not speak of: %s\n", subjects[i]);
        assert_true(json_array_size(lines) > 0);
    }
    json_decref(doc);
    expect("doctor", 0, "vector kernels: ");
    setenv("REPRISE_CC", "none", 1);
    expect("doctor", 0, "REPRISE_CC=none");
    static const char *const wrong[][2] = {{"REPRISE_NUM_THREADS", "2x"},
                                           {"REPRISE_NUM_THREADS", "100000"},
                                           {"REPRISE_CPU", "avx3"},
                                           {"REPRISE_JIT", "off"}};
    char text[128];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *before = getenv(wrong[i][0]);
        char *old = before ? strdup(before) : NULL;
        assert_int_equal(setenv(wrong[i][0], wrong[i][1], 1), 0);
        snprintf(text, sizeof text, "  %s=%s is not understood", wrong[i][0], wrong[i][1]);
        expect("doctor", 0, text);
        assert_int_equal(old ? setenv(wrong[i][0], old, 1) : unsetenv(wrong[i][0]), 0);
        free(old);
    }
    unsetenv("REPRISE_CC");
}

static void test_explain(void **state) {
    (void)state;
    /* Softmax of a layer norm of a gelu is one kernel. */
    json_t *list = run_json("explain rows --json"), *entry;
    size_t i, kernels = 0;
    json_array_foreach(list, i, entry) {
        assert_true(json_is_integer(json_object_get(entry, "count")));
        if (strcmp(string_of(entry, "kind"), "kernel")) continue;
        kernels++;
        assert_non_null(strstr(string_of(entry, "message"), "gelu"));
        assert_non_null(strstr(string_of(entry, "message"), "softmax"));
    }
    assert_int_equal(kernels, 1);
    json_decref(list);
    expect("explain mlp --train", 0, "foreach_update_");
    expect("explain trig --backend eager", 0, "");
}

static void test_dump(void **state) {
    (void)state;
    json_t *list = run_json("dump trig --json"), *part;
    const char *graph = NULL;
    size_t i, functional = 0, kernels = 0, cuda = 0;
    json_array_foreach(list, i, part) {
        const char *kind = string_of(part, "part"), *text = string_of(part, "text");
        if (!strcmp(kind, "graph")) graph = text;
        functional += !strcmp(kind, "functional graph");
        kernels += !strncmp(kind, "kernel ", 7);
        cuda += !strcmp(kind, "CUDA C") && strstr(text, "__global__");
    }
    assert_non_null(graph);
    assert_true(functional == 1 && kernels == 1 && cuda == 1);

    /* A graph in text form is read and printed again as it is. */
    char path[] = "test_cli_XXXXXX", arguments[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, graph, strlen(graph)), (ssize_t)strlen(graph));
    snprintf(arguments, sizeof arguments, "dump --json %s", path);
    json_t *again = run_json(arguments);
    assert_string_equal(string_of(json_array_get(again, 0), "text"), graph);
    json_decref(again);
    assert_int_equal(ftruncate(fd, (off_t)strlen(graph) / 2), 0);
    snprintf(arguments, sizeof arguments, "dump %s", path);
    expect(arguments, 1, path);
    assert_int_equal(pwrite(fd, graph, strlen(graph), 0), (ssize_t)strlen(graph));
    snprintf(arguments, sizeof arguments, "dump --kernels --json %s", path);
    again = run_json(arguments);
    kernels = 0;
    json_array_foreach(again, i, part) kernels += !strncmp(string_of(part, "part"), "kernel ", 7);
    assert_int_equal(kernels, 1);
    json_decref(again);
    close(fd);
    unlink(path);
    json_decref(list);
    expect("dump mlp --train", 0, "adam");
    expect("dump mlp --dtype f16 --batch 3 --device cpu", 0, "f16[3, ");
    expect("explain mlp --dtype bf16 --batch 3 --device cpu", 0, "kernel");
    expect("explain trig --batch 3", 2, "takes no batch");
    expect("dump trig --length 3", 2, "takes no texts");
    expect("explain test_cli.ir --batch 3", 2, "are for models");
    expect("dump test_cli.ir --dtype f16", 2, "are for models");
}

/* Kernels of a GPU that is not here, which the emulated compiler takes: those of a model, and of a graph in text form. */
static void test_dump_offline(void **state) {
    (void)state;
    const char *emulator = getenv("REPRISE_CUDASIM_DIR");
    char compiler[4096], path[] = "test_cli_XXXXXX", arguments[64];
    snprintf(compiler, sizeof compiler, "%s/libnvrtc.so.13", emulator ? emulator : ".");
    if (access(compiler, R_OK) != 0) skip();
    assert_int_equal(setenv("REPRISE_LIBNVRTC", compiler, 1), 0);
    assert_int_equal(setenv("REPRISE_CUDA_OFFLINE", "sm_90:132", 1), 0);
    json_t *list = run_json("dump trig --device cuda --json"), *part;
    const char *graph = string_of(json_array_get(list, 0), "text");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, graph, strlen(graph)), (ssize_t)strlen(graph));
    close(fd);
    snprintf(arguments, sizeof arguments, "dump --kernels --json %s", path);
    json_t *again = run_json(arguments);
    size_t i, kernels = 0;
    json_array_foreach(list, i, part) kernels += !strncmp(string_of(part, "part"), "kernel ", 7);
    json_array_foreach(again, i, part) kernels += !strncmp(string_of(part, "part"), "kernel ", 7);
    assert_int_equal(kernels, 2);
    json_decref(again);
    json_decref(list);
    unlink(path);
    assert_int_equal(unsetenv("REPRISE_CUDA_OFFLINE"), 0);
    assert_int_equal(unsetenv("REPRISE_LIBNVRTC"), 0);
}

/* A model's weights go into a file and come back, and its backends agree; types, batches and arguments are those that
   were asked for. */
static void test_models(void **state) {
    (void)state;
    json_t *list = run_json("run --list --json"), *entry;
    size_t i, found = 0;
    json_array_foreach(list, i, entry) found += !strcmp(string_of(entry, "name"), "resnext101_32x8d");
    assert_int_equal(found, 1);
    json_decref(list);

    json_t *trained = run_json("train cnn --device cpu --steps 6 --compare --json");
    assert_int_equal(json_array_size(trained), 2);
    json_array_foreach(trained, i, entry) {
        json_t *loss = json_object_get(entry, "loss");
        assert_int_equal(json_array_size(loss), 6);
        assert_true(json_real_value(json_array_get(loss, 5)) < json_real_value(json_array_get(loss, 0)));
        assert_true(json_real_value(json_object_get(entry, "difference")) == 0);
    }
    json_decref(trained);
    expect("train simple --device cpu --steps 5 --compare", 0, "the same weights as eager");
    expect("train mlp --device cpu --steps 5 --seed 3 --output test_cli_w.safetensors", 0, "step 5");
    expect("run mlp --device cpu --weights test_cli_w.safetensors --input _ --output test_cli_y.npy", 0,
           "float32[64, 10]");
    expect("run mlp --device cpu --weights test_cli_w.safetensors --seed 9 --input =0 --batch 2", 0, "float32[2, 10]");
    expect("run mlp --device cpu --weights test_cli_w.safetensors --expect test_cli_y.npy", 0, "equals the file");
    expect("run mlp --device cpu --expect test_cli_y.npy", 1, "differs from the file");
    expect("run mlp --device cpu --weights test_cli_w.safetensors --prefix model.", 1, "test_cli_w.safetensors");
    expect("run bert-tiny --device cpu --dtype f16 --batch 3", 0, "float16[3, 6, 50]");
    expect("run bert-tiny --device cpu --batch 3 --length 9", 0, "float32[3, 9, 50]");
    expect("run bert-tiny --device cpu --length 17", 1, "17"); /* it has 16 positions */
    FILE *vocab = fopen("test_cli_vocab.txt", "w");
    assert_non_null(vocab);
    fputs("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\nsat\n##s\n", vocab);
    fclose(vocab);
    /* the same numbers, given by hand */
    const char *text = "run bert-tiny --device cpu --tokenizer test_cli_vocab.txt --text 'The cats [MASK]'";
    char line[256];
    snprintf(line, sizeof line, "%s --output test_cli_y.npy", text);
    expect(line, 0, "tokens: [CLS] the cat ##s [MASK] [SEP]\ntoken 4: ");
    expect("run bert-tiny --device cpu --input 'i64[1,6]=2,5,6,8,4,3' --input 'i64[1,6]=0' --input 'f32[1,6]=1' "
           "--expect test_cli_y.npy",
           0, "equals the file");
    snprintf(line, sizeof line, "%s --text cat --json", text); /* a shorter one, padded */
    json_t *doc = run_json(line), *texts = json_object_get(doc, "texts");
    assert_int_equal(json_array_size(texts), 2);
    json_t *places = json_object_get(json_array_get(texts, 0), "places"),
           *guesses = json_object_get(json_array_get(places, 0), "guesses");
    assert_int_equal(json_array_size(json_object_get(json_array_get(texts, 1), "tokens")), 3);
    assert_int_equal(json_array_size(json_object_get(json_array_get(texts, 1), "places")), 0);
    assert_int_equal(json_array_size(guesses), 5);
    double before = 1, sum = 0;
    json_array_foreach(guesses, i, entry) {
        const double p = json_real_value(json_object_get(entry, "probability"));
        assert_true(p <= before && p > 1.0 / 50 / 4);
        sum += before = p;
    }
    assert_true(sum > 5.0 / 50 && sum < 1);
    json_decref(doc);
    expect("run gpt2-tiny --device cpu --tokenizer test_cli_vocab.txt --text 'the cat'", 0, "next: ");
    unlink("test_cli_vocab.txt");
    expect("run llama-tiny --device cpu --dtype f64 --compare", 0, "fused equals eager");
    expect("run cnn --device cpu --dtype tf32 --compare", 0, "fused equals eager");
    expect("run mlp --device cpu --input f32[3,10]=0.5", 0, "float32[3, 10]");
    unlink("test_cli_w.safetensors");
    unlink("test_cli_y.npy");
    for (int train = 0; train < 2; train++) {
        json_t *times = run_json(train ? "bench mlp --device cpu --train --seconds 0.01 --json"
                                       : "bench mlp --device cpu --seconds 0.01 --json");
        assert_int_equal(json_array_size(times), 2);
        json_array_foreach(times, i, entry) {
            assert_string_equal(string_of(entry, "what"), train ? "step" : "forward");
            assert_true(json_real_value(json_object_get(entry, "period_us")) > 0);
            assert_true(json_integer_value(json_object_get(entry, "memory_bytes")) > 0);
        }
        json_decref(times);
    }
}

static void test_bench(void **state) {
    (void)state;
    json_t *list = run_json("bench --json --seconds 0.002"), *row;
    size_t i, timed = 0, leaks = 0;
    json_array_foreach(list, i, row) {
        if (json_object_get(row, "ns")) {
            double low = json_real_value(json_object_get(row, "low_ns"));
            assert_true(low > 0 && low <= json_real_value(json_object_get(row, "ns")));
            timed++;
            continue;
        }
        assert_int_equal(json_integer_value(json_object_get(row, "bytes_left")), 0);
        assert_int_equal(json_integer_value(json_object_get(row, "tensors_left")), 0);
        leaks++;
    }
    assert_true(timed >= 10 && leaks == 2);
    json_decref(list);
    list = run_json("bench --json --calls 3 16"); /* names with a 16 */
    assert_true(json_array_size(list) >= 2);
    json_array_foreach(list, i, row) assert_true(json_real_value(json_object_get(row, "ns")) > 0);
    json_decref(list);
    expect("bench --calls 0", 2, "no number of calls");
    /* A peer is asked a row a line, and its times stand beside ours; one that ends early fails the command. */
    char path[] = "test_cli_XXXXXX", arguments[96];
    const char *const scripts[] = {
        "#!/bin/sh\nwhile IFS='\t' read -r seconds name; do\n"
        "  case $name in *softmax*) echo 123456 98765 ;; *) echo 0 ;; esac\ndone\n",
        "#!/bin/sh\nread -r line\necho 123456\nexit 3\n",
    };
    for (i = 0; i < 2; i++) {
        int fd = i == 0 ? mkstemp(path) : open(path, O_WRONLY | O_TRUNC);
        assert_true(fd >= 0 && write(fd, scripts[i], strlen(scripts[i])) == (ssize_t)strlen(scripts[i]));
        assert_int_equal(fchmod(fd, 0700), 0);
        close(fd);
        snprintf(arguments, sizeof arguments, "bench --seconds 0.002 --peer ./%s softmax", path);
        expect(arguments, i ? 1 : 0, i ? "the peer failed" : "123.5 us     98.8 us");
    }
    unlink(path);
}

static void test_demo(void **state) {
    (void)state;
    char path[] = "test_cli_XXXXXX", arguments[96];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (int i = 0; i < 400; i++) {
        static const char line[] = "the quick brown fox jumps over the lazy dog and runs away\n";
        assert_int_equal(write(fd, line, strlen(line)), (ssize_t)strlen(line));
    }
    close(fd);
    snprintf(arguments, sizeof arguments, "demo --device cpu --json --seconds 1e6 --steps 160 --text %s", path);
    json_t *doc = run_json(arguments), *table, *row;
    /* What a terminal shows of it is 80 columns wide. */
    snprintf(arguments, sizeof arguments, "demo --device cpu --seconds 1e6 --steps 20 --text %s", path);
    int code;
    char *shown = run(arguments, &code, false);
    assert_int_equal(code, 0);
    for (const char *at = shown; *at;) {
        const size_t length = strcspn(at, "\n");
        if (length > 79) print_message("%.*s\n", (int)length, at);
        assert_true(length <= 79);
        at += length + (at[length] == '\n');
    }
    assert_non_null(strstr(shown, "held out"));
    free(shown);
    unlink(path);
    size_t t, r;
    assert_int_equal(json_array_size(json_object_get(doc, "tables")), 6);
    json_array_foreach(json_object_get(doc, "tables"), t, table) {
        assert_int_equal(json_array_size(json_object_get(table, "rows")),
                         t < 4 ? 4 : 2); /* large ones: the ends alone */
        json_array_foreach(json_object_get(table, "rows"), r, row) {
            if (json_object_get(row, "reason")) print_message("%s\n", string_of(row, "reason"));
            assert_null(json_object_get(row, "reason"));
            assert_true(json_real_value(json_object_get(row, "period_us")) > 0);
            /* On a CPU every mode gives the bits of eager. */
            assert_true(json_is_real(json_object_get(row, "difference")));
            assert_true(json_real_value(json_object_get(row, "difference")) == 0);
        }
    }
    json_t *model = json_object_get(doc, "language_model");
    double before = json_real_value(json_object_get(model, "held_out_before"));
    double after = json_real_value(json_object_get(model, "held_out"));
    assert_int_equal(json_integer_value(json_object_get(model, "steps")), 160);
    assert_true(after > 0 && after < 0.9 * before);
    assert_true(strlen(string_of(model, "sample")) > 100);
    assert_true(json_is_true(json_object_get(model, "resumed_equal")));
    assert_true(json_integer_value(json_object_get(model, "checkpoint_bytes")) > 100000);
    json_decref(doc);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    tool = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help),      cmocka_unit_test(test_odd_files),    cmocka_unit_test(test_graph_files),
        cmocka_unit_test(test_wrong_use), cmocka_unit_test(test_ops),          cmocka_unit_test(test_backends),
        cmocka_unit_test(test_full_disk), cmocka_unit_test(test_doctor),       cmocka_unit_test(test_explain),
        cmocka_unit_test(test_dump),      cmocka_unit_test(test_models),       cmocka_unit_test(test_bench),
        cmocka_unit_test(test_demo),      cmocka_unit_test(test_dump_offline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
