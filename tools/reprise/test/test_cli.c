/* The command-line tool from outside: output, JSON, exit codes. argv[1] is the tool. Says nothing of the library itself. */
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
    expect("demo --text /nonexistent", 1, "--text /nonexistent");
    expect("explain nothing", 2, "no model 'nothing'");
    expect("explain rows --train", 2, "not trained");
    expect("explain trig --backend nothing", 1, "nothing");
    expect("dump /nonexistent", 1, "/nonexistent");
    expect("bench --seconds x", 2, "no time");
    expect("bench --seconds 0.001 nope", 2, "no row is named so");
    expect("explain nope", 2, "models are");
    expect("--help", 0, "doctor");
}

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
    json_t *list = run_json("backends --json"), *name;
    size_t i, found = 0;
    json_array_foreach(list, i, name) {
        const char *s = json_string_value(name);
        assert_non_null(s);
        found += !strncmp(s, "fused", 5) || !strcmp(s, "eager") || !strcmp(s, "aot_eager") || !strcmp(s, "cudagraphs");
    }
    assert_int_equal(found, 4);
    json_decref(list);
}

static void test_doctor(void **state) {
    (void)state;
    json_t *doc = run_json("doctor --json");
    const char *const subjects[] = {"version", "device cpu:0", "vector kernels", "threads", "CUDA driver",
                                    "NVRTC",   "cuBLASLt",     "compiler",       "cache"};
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
    expect("explain mlp --train", 0, "adam");
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
    expect(arguments, 1, "reprise dump: RP_ERROR");
    close(fd);
    unlink(path);
    json_decref(list);
    expect("dump mlp --train", 0, "adam");
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
    snprintf(arguments, sizeof arguments, "demo --device cpu --json --seconds 4 --text %s", path);
    json_t *doc = run_json(arguments), *table, *row;
    unlink(path);
    size_t t, r;
    assert_int_equal(json_array_size(json_object_get(doc, "tables")), 4);
    json_array_foreach(json_object_get(doc, "tables"), t, table) {
        assert_int_equal(json_array_size(json_object_get(table, "rows")), 4);
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
    assert_true(after > 0 && after < 0.9 * before);
    assert_true(strlen(string_of(model, "sample")) > 100);
    json_decref(doc);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    tool = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_use), cmocka_unit_test(test_ops),    cmocka_unit_test(test_backends),
        cmocka_unit_test(test_full_disk), cmocka_unit_test(test_doctor), cmocka_unit_test(test_explain),
        cmocka_unit_test(test_dump),      cmocka_unit_test(test_bench),  cmocka_unit_test(test_demo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
