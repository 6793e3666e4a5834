/* Files: safetensors against bytes written by hand and by PyTorch's rules, npy against numpy's, state that is saved, killed and
   resumed. Hostile files: an error that names the file, and nothing changed. */
/* ctest: timeout=240 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <reprise.h>
#include <reprise_io.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "support/in_scope.h"

/* ---------------------------------------------------------------- helpers */

static void refused(const char *text) {
    if (!rp_failed() || !strstr(rp_error_message(), text)) fail_msg("\"%s\" is not in: %s", text, rp_error_message());
    (void)rp_error_take();
}

static int teardown(void **state) {
    unlink("io.safetensors");
    unlink("io.npy");
    return scope_teardown(state);
}

static void put(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A safetensors file of this header and n bytes 0, 1, 2, ... */
static void put_header(const char *path, const char *header, size_t n) {
    static unsigned char all[4096];
    uint64_t length = strlen(header);
    memcpy(all, &length, 8);
    memcpy(all + 8, header, length);
    for (size_t i = 0; i < n; i++) all[8 + length + i] = (unsigned char)i;
    put(path, all, 8 + length + n);
}

static void same(rp_tensor *a, rp_tensor *b) {
    static char x[65536], y[65536];
    size_t bytes = (size_t)rp_numel(a) * rp_dtype_size(rp_dtype_of(a));
    assert_true(rp_dtype_of(a) == rp_dtype_of(b) && rp_ndim(a) == rp_ndim(b) && rp_numel(a) == rp_numel(b));
    assert_true(bytes <= sizeof x);
    OK(rp_to_host(a, x, bytes));
    OK(rp_to_host(b, y, bytes));
    assert_memory_equal(x, y, bytes);
}

static bool jansson_is_there(void) {
    put_header("io.safetensors", "{}", 0);
    rp_safetensors *f = rp_safetensors_open("io.safetensors");
    bool there = !rp_failed();
    if (!there) print_message("skipped: %s\n", rp_error_message());
    (void)rp_error_take();
    rp_safetensors_release(f);
    return there;
}
#define NEEDS_JANSSON                                                                                                  \
    if (!jansson_is_there()) skip()

/* ---------------------------------------------------------------- safetensors */

static void a_file_is_read_in_place(void **state) {
    (void)state;
    NEEDS_JANSSON;
    put_header(
        "io.safetensors",
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\\u00e9\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},"
        "\"none\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[11,11]},"
        "\"wide\":{\"dtype\":\"F8_E4M3\",\"shape\":[],\"data_offsets\":[11,12]}}   ",
        12);
    rp_safetensors *f = rp_safetensors_open("io.safetensors");
    assert_int_equal(rp_safetensors_count(f), 4);
    static const char *const names[] = {"a", "b\xc3\xa9", "none", "wide"};
    rp_file_tensor info;
    for (size_t i = 0; i < 4; i++) {
        OK(rp_safetensors_info(f, i, &info));
        assert_string_equal(info.name, names[i]);
    }
    assert_true(info.type == RP_DTYPE_NONE && info.ndim == 0 && info.bytes == 1);
    assert_string_equal(info.dtype, "F8_E4M3");
    assert_string_equal(rp_safetensors_metadata(f, "format"), "pt");
    assert_null(rp_safetensors_metadata(f, "other"));
    assert_true(rp_safetensors_has(f, "none") && !rp_safetensors_has(f, "nothing"));
    rp_tensor *b = rp_safetensors_tensor(f, names[1]), *a = rp_safetensors_tensor(f, "a"),
              *none = rp_safetensors_tensor(f, "none");
    assert_true(rp_size(none, 0) == 0 && rp_size(none, 1) == 7 && rp_dtype_of(none) == RP_BF16);
    assert_true(rp_is_error(rp_safetensors_tensor(f, "wide")));
    refused("type F8_E4M3");
    assert_true(rp_is_error(rp_safetensors_tensor(f, "nothing")));
    refused("no tensor `nothing`");
    OK(rp_safetensors_info(f, 1, &info));
    rp_safetensors_release(f); /* its tensors stay */
    static const unsigned char bytes[] = {0, 1, 2, 3, 4, 5, 6, 7};
    float values[2];
    uint8_t small[3];
    OK(rp_to_host(b, values, sizeof values));
    OK(rp_to_host(a, small, sizeof small));
    assert_memory_equal(values, bytes, 8);
    assert_true(small[0] == 8 && small[2] == 10);
    rp_fill_(a, rp_i64(77)); /* writes a copy, never the file */
    f = rp_safetensors_open("io.safetensors");
    OK(rp_to_host(rp_safetensors_tensor(f, "a"), small, sizeof small));
    assert_int_equal(small[0], 8);
    rp_safetensors_release(f);
    assert_int_not_equal(rp_safetensors_info(f, 0, &info), RP_OK);
    refused("released");
}

static void files_that_are_none(void **state) {
    (void)state;
    NEEDS_JANSSON;
    static const struct {
        const char *header;
        size_t bytes;
        const char *why;
    } files[] = {
        {"", 0, "not JSON"},
        {"{", 0, "not JSON"},
        {"[]", 0, "no map"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}} x", 4, "not JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "duplicate"},
        {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "ends behind the file: at byte"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "1 bytes behind"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "it begins at byte"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
         6, "gap or an overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "range is not that"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "no range"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "no range"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "no range"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "list of sizes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "list of sizes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,9223372036854775807],\"data_offsets\":[0,4]}}", 4, "too large"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,18446744073709551614],\"data_offsets\":[0,4]}}", 4, "not JSON"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "none of safetensors"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,0]}}", 0, "range is not that"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "alone"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4, "alone"},
        {"{\"a\":3}", 4, "alone"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "map of texts"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
         "more dimensions"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        put_header("io.safetensors", files[i].header, files[i].bytes);
        rp_safetensors *f = rp_safetensors_open("io.safetensors");
        assert_int_equal(rp_safetensors_count(f), 0);
        assert_int_equal(rp_error_status(), RP_ERROR_IO);
        assert_non_null(strstr(rp_error_message(), "io.safetensors"));
        refused(files[i].why);
        rp_safetensors_release(f);
    }
    static const struct {
        const char *bytes;
        size_t n;
        const char *why;
    } starts[] = {{"", 0, "shorter than 8"},
                  {"\2\0\0\0\0\0\0", 7, "shorter than 8"},
                  {"\x3c\0\0\0\0\0\xff\xff", 8, "100000000"},
                  {"\3\0\0\0\0\0\0\0{}", 10, "within its header"},
                  {"\1\0\0\0\0\0\0\0\xff", 9, "not JSON"}};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        put("io.safetensors", starts[i].bytes, starts[i].n);
        rp_safetensors_release(rp_safetensors_open("io.safetensors"));
        refused(starts[i].why);
    }
    char deep[400];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 199);
    deep[399] = 0;
    put_header("io.safetensors", deep, 0);
    rp_safetensors_release(rp_safetensors_open("io.safetensors"));
    refused("nested deeper");
    rp_safetensors_release(rp_safetensors_open("io.missing"));
    refused("No such file");
    rp_safetensors_release(rp_safetensors_open("."));
    refused("regular file");
    assert_int_equal(mkfifo("io.fifo", 0600), 0);
    rp_safetensors_release(rp_safetensors_open("io.fifo"));
    unlink("io.fifo");
    refused("regular file");
    rp_safetensors_release(rp_safetensors_open(NULL));
    refused("NULL");
}

/* Bytes of a good file changed at random: an error or another good file, never more (run under sanitizers too). */
static void random_damage(void **state) {
    (void)state;
    NEEDS_JANSSON;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"b\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[24,32]}}";
    uint64_t x = 88172645463325252u;
    for (int round = 0; round < 3000; round++) {
        put_header("io.safetensors", header, 32);
        FILE *f = fopen("io.safetensors", "r+b");
        for (int k = 0; k < 1 + round % 3; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            static const char likely[] = "{}[]\",:0123456789-e.\\";
            int c = round % 2 ? likely[(x >> 32) % (sizeof likely - 1)] : (int)((x >> 40) & 255);
            fseek(f, (long)((x >> 8) % (sizeof header + 39)), SEEK_SET);
            fputc(c, f);
        }
        fclose(f);
        rp_safetensors *file = rp_safetensors_open("io.safetensors");
        for (size_t i = 0; i < rp_safetensors_count(file); i++) {
            rp_file_tensor info;
            OK(rp_safetensors_info(file, i, &info));
            rp_tensor *t = rp_safetensors_tensor(file, info.name);
            if (!rp_is_error(t)) assert_true((uint64_t)rp_numel(t) * rp_dtype_size(rp_dtype_of(t)) == info.bytes);
            (void)rp_error_take();
        }
        (void)rp_error_take();
        rp_safetensors_release(file);
    }
}

static void an_index_and_its_files(void **state) {
    (void)state;
    NEEDS_JANSSON;
    put_header("io-1.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    put_header("io-2.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
    static const struct {
        const char *text, *why;
    } files[] = {{"{\"metadata\":{},\"weight_map\":{\"a\":\"io-1.safetensors\",\"b\":\"io-2.safetensors\"}}", NULL},
                 {"{\"weight_map\":{\"a\":\"io-1.safetensors\",\"b\":\"io-1.safetensors\"}}", "in no file"},
                 {"{\"weight_map\":{\"a\":\"../io-1.safetensors\"}}", "no file beside"},
                 {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no file beside"},
                 {"{\"weight_map\":{\"a\":\"..\"}}", "no file beside"},
                 {"{\"weight_map\":{\"a\":7}}", "no file beside"},
                 {"{\"weight_map\":{\"a\":\"io-3.safetensors\"}}", "No such file"},
                 {"{\"map\":{}}", "no weight_map"},
                 {"7", "not JSON"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        put("io.index.json", files[i].text, strlen(files[i].text));
        rp_safetensors *f = rp_safetensors_open("io.index.json");
        if (files[i].why) {
            refused(files[i].why);
        } else {
            assert_int_equal(rp_safetensors_count(f), 2);
            assert_int_equal(rp_numel(rp_safetensors_tensor(f, "b")), 2);
        }
        rp_safetensors_release(f);
    }
    put_header("io-2.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
    put("io.index.json", files[0].text, strlen(files[0].text));
    rp_safetensors_release(rp_safetensors_open("io.index.json"));
    refused("two files have a tensor `a`");
    unlink("io-1.safetensors");
    unlink("io-2.safetensors");
    unlink("io.index.json");
}

static void what_is_written_is_read(void **state) {
    (void)state;
    NEEDS_JANSSON;
    static const rp_dtype dtypes[] = {RP_F32, RP_F64, RP_F16, RP_BF16, RP_I64, RP_I32, RP_U8, RP_BOOL, RP_I8, RP_I16};
    enum { N = sizeof dtypes / sizeof *dtypes };
    rp_named_tensor t[N + 3];
    char names[N][24];
    rp_tensor *base = rp_mul_scalar(rp_randn(RP_DIMS(3, 5)), rp_f64(50));
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d \"\\\n\t%s", i, rp_dtype_name(dtypes[i]));
        t[i] = (rp_named_tensor){names[i], rp_transpose(rp_to_dtype(base, dtypes[i]), 0, 1)};
    }
    t[N] = (rp_named_tensor){"scalar", rp_full(RP_NO_DIMS, rp_f64(0.1))};
    t[N + 1] = (rp_named_tensor){"empty", rp_zeros(RP_DIMS(0, 4))};
    t[N + 2] = (rp_named_tensor){"part", rp_slice(base, 1, 1, 4, 2)};
    static const char *const metadata[][2] = {{"format", "pt"}, {"note", "\"quoted\"\x1f"}};
    OK(rp_safetensors_save("io.safetensors", t, N + 3, metadata, 2));
    rp_safetensors *f = rp_safetensors_open("io.safetensors");
    assert_int_equal(rp_safetensors_count(f), N + 3);
    for (int i = 0; i < N + 3; i++) same(rp_safetensors_tensor(f, t[i].name), t[i].tensor);
    assert_string_equal(rp_safetensors_metadata(f, "note"), metadata[1][1]);
    rp_safetensors_release(f);
    OK(rp_safetensors_save("io.safetensors", NULL, 0, NULL, 0));
    f = rp_safetensors_open("io.safetensors");
    assert_int_equal(rp_safetensors_count(f), 0);
    rp_safetensors_release(f);
    rp_named_tensor twice[] = {{"x", base}, {"x", base}};
    assert_int_equal(rp_safetensors_save("io.safetensors", twice, 2, NULL, 0), RP_ERROR_INVALID_ARGUMENT);
    refused("two tensors are called `x`");
    twice[0].name = "\xff\xfe";
    assert_int_equal(rp_safetensors_save("io.safetensors", twice, 1, NULL, 0), RP_ERROR_INVALID_ARGUMENT);
    refused("UTF-8");
    assert_int_equal(rp_safetensors_save("/nonexistent/x", NULL, 0, NULL, 0), RP_ERROR_IO);
    refused("No such file");
    assert_int_equal(rp_safetensors_save("/dev/full", NULL, 0, NULL, 0), RP_ERROR_IO);
    refused("regular file");
}

/* ---------------------------------------------------------------- npy */

static void npy_files(void **state) {
    (void)state;
    static const char *const dict = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n";
    static const struct {
        const char *descr, *order, *shape;
        size_t bytes;    /* of elements */
        const char *why; /* NULL: it is read */
    } files[] = {
        {"<f4", "False", "(2, 3)", 24, NULL},
        {"<f4", "True", "(2, 3)", 24, NULL},
        {"<f4", "False", "(2, 3)", 23, "23 bytes are there"},
        {"<f4", "False", "(2, 3)", 25, "25 bytes are there"},
        {">f4", "False", "(2, 3)", 24, "big-endian"},
        {"<c8", "False", "(2, 3)", 48, "type that Reprise does not have (<c8)"},
        {"|O", "False", "(2, 3)", 48, "does not have (|O)"},
        {"<f4", "Maybe", "(2, 3)", 24, "header"},
        {"<f4", "False", "(2, 3", 24, "header"},
        {"<f4", "False", "(2 3)", 24, "header"},
        {"<f4", "False", "(-2, 3)", 24, "header"},
        {"<f4", "False", "(6)", 24, "header"},
        {"<f4", "False", "(4294967296, 4294967296, 4)", 24, "too large"},
        {"<f4", "False", "(99999999999999999999,)", 24, "too large"},
        {"<f4", "False", "(9223372036854775807, 2, 3)", 24, "too large"},
        {"<f4", "False", "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,6)", 24, "more dimensions"},
        {"<f4", "False", "(2, 3), 'shape': (2, 3)", 24, "header"},
        {"<f4", "__import__('os')", "(2, 3)", 24, "header"},
    };
    char data[1024];
    for (int version = 1; version <= 3; version++) {
        size_t prefix = version == 1 ? 10 : 12;
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            memset(data, 0, sizeof data);
            memcpy(data, "\x93NUMPY", 6);
            data[6] = (char)version;
            const int n = snprintf(data + prefix, 500, dict, files[i].descr, files[i].order, files[i].shape);
            data[8] = (char)(n & 255), data[9] = (char)(n >> 8);
            memset(data + prefix + n, 0, 64);
            put("io.npy", data, prefix + (size_t)n + files[i].bytes);
            rp_tensor *t = rp_npy_load("io.npy");
            assert_true(rp_is_error(t) == (files[i].why != NULL));
            if (files[i].why)
                refused(files[i].why);
            else
                assert_true(rp_size(t, 0) == 2 && rp_size(t, 1) == 3);
        }
    }
    static const struct {
        const char *bytes;
        size_t n;
        const char *why;
    } starts[] = {{"", 0, "no file of numpy"},
                  {"\x93NUMPY\x01", 7, "no file of numpy"},
                  {"\x93NUMPX\x01\x00\x01\x00{", 11, "no file of numpy"},
                  {"\x93NUMPY\x04\x00\x01\x00{", 11, "versions 1.0"},
                  {"\x93NUMPY\x02\x00\x01\x00{", 11, "within its header"},
                  {"\x93NUMPY\x01\x00\xFF\xFF{", 11, "within its header"},
                  {"\x93NUMPY\x01\x00\x00\x00", 10, "header"},
                  {"\x93NUMPY\x01\x00\x02\x00{\x00", 12, "header"}};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        put("io.npy", starts[i].bytes, starts[i].n);
        assert_true(rp_is_error(rp_npy_load("io.npy")));
        refused(starts[i].why);
    }
    /* Columns come first in the file. */
    memcpy(data, "\x93NUMPY\x01\x00", 8);
    const int n = snprintf(data + 10, 500, dict, "<f4", "True", "(2, 3)");
    data[8] = (char)n, data[9] = 0;
    const float columns[6] = {0, 3, 1, 4, 2, 5}, rows[6] = {0, 1, 2, 3, 4, 5};
    memcpy(data + 10 + n, columns, sizeof columns);
    put("io.npy", data, 10 + (size_t)n + sizeof columns);
    same(rp_npy_load("io.npy"), rp_from_data(rows, RP_DIMS(2, 3), RP_F32));
    rp_tensor *wide = rp_to_dtype(rp_randn(RP_DIMS(3, 2)), RP_BF16);
    OK(rp_npy_save("io.npy", rp_transpose(wide, 0, 1)));
    same(rp_npy_load("io.npy"), rp_to_dtype(rp_transpose(wide, 0, 1), RP_F32));
}

/* ---------------------------------------------------------------- the state of a program */

struct net {
    rp_linear_layer first, second;
    rp_batch_norm_layer bn;
    rp_dropout_layer drop;
    rp_module *m;
    rp_optimizer *opt;
};

static void net_make(struct net *n, int64_t width) {
    memset(n, 0, sizeof *n);
    n->m = rp_module_new("net");
    OK(rp_linear_add(n->m, "first", &n->first, 4, width, true));
    OK(rp_batch_norm_add(n->m, "bn", &n->bn, width, NULL));
    OK(rp_dropout_add(n->m, "drop", &n->drop, 0.25));
    OK(rp_linear_add(n->m, "second", &n->second, width, 2, true));
    n->opt = rp_adamw_module(n->m, 1e-2, NULL);
}

static void net_end(struct net *n) {
    rp_optimizer_release(n->opt);
    rp_module_release(n->m);
}

static void step(struct net *n, bool whole) {
    rp_scope inner = rp_scope_begin();
    rp_tensor *h =
        rp_relu(rp_batch_norm_layer_forward(&n->bn, rp_linear_layer_forward(&n->first, rp_randn(RP_DIMS(6, 4)))));
    rp_tensor *y = rp_linear_layer_forward(&n->second, rp_dropout_layer_forward(&n->drop, h));
    OK(rp_backward(rp_mean(rp_mul(y, y)), NULL, NULL));
    if (!whole) OK(rp_set_grad(n->second.bias, NULL)); /* its count of steps stays behind */
    OK(rp_optimizer_step(n->opt));
    OK(rp_optimizer_zero_grad(n->opt, true));
    OK(rp_scope_end(inner, NULL, 0));
}

static void equal_nets(struct net *a, struct net *b) {
    size_t n, k;
    const rp_named_tensor *x = rp_module_state(a->m, &n), *y = rp_module_state(b->m, &k);
    assert_int_equal(n, k);
    for (size_t i = 0; i < n; i++) same(x[i].tensor, y[i].tensor);
    for (size_t i = 0; i < rp_optimizer_param_count(a->opt, 0); i++) {
        same(rp_optimizer_state(a->opt, 0, i, "exp_avg"), rp_optimizer_state(b->opt, 0, i, "exp_avg"));
        same(rp_optimizer_state(a->opt, 0, i, "step"), rp_optimizer_state(b->opt, 0, i, "step"));
    }
}

static const rp_save_options *saving(const struct net *n) {
    static rp_save_options o;
    o = (rp_save_options){.struct_size = sizeof o, .optimizer = n->opt, .random = true};
    return &o;
}
static const rp_load_options *loading(const struct net *n) {
    static rp_load_options o;
    o = (rp_load_options){.struct_size = sizeof o, .optimizer = n->opt, .random = true};
    return &o;
}

/* Ten steps, and five, a file, and five in another program: the same to the bit. */
static void a_resumed_program_goes_on(void **state) {
    (void)state;
    NEEDS_JANSSON;
    struct net a, b;
    OK(rp_manual_seed(21));
    net_make(&a, 8);
    for (int i = 0; i < 10; i++) step(&a, i != 2 && i != 3);
    OK(rp_manual_seed(21));
    net_make(&b, 8);
    for (int i = 0; i < 5; i++) step(&b, i != 2 && i != 3);
    OK(rp_optimizer_set_lr(b.opt, 0, 1e-2));
    OK(rp_save("io.safetensors", b.m, saving(&b)));
    net_end(&b);
    OK(rp_manual_seed(99));
    net_make(&b, 8);
    step(&b, true);
    OK(rp_load("io.safetensors", b.m, loading(&b)));
    assert_true(rp_item_f64(rp_optimizer_state(b.opt, 0, 0, "step")) == 5);
    assert_true(rp_item_f64(rp_optimizer_state(b.opt, 0, 5, "step")) == 3);
    for (int i = 0; i < 5; i++) step(&b, true);
    equal_nets(&a, &b);
    net_end(&a);
    net_end(&b);
}

static void loads_that_fail_change_nothing(void **state) {
    (void)state;
    NEEDS_JANSSON;
    struct net a, b, c;
    net_make(&a, 8);
    step(&a, true);
    OK(rp_save("io.safetensors", a.m, saving(&a)));
    net_make(&b, 7);
    OK(rp_manual_seed(4));
    step(&b, true);
    net_make(&c, 7);
    OK(rp_save("io2.safetensors", b.m, saving(&b)));
    OK(rp_load("io2.safetensors", c.m, loading(&c)));
    char report[1024];
    rp_load_options o = *loading(&b);
    o.report = report;
    o.report_bytes = sizeof report;
    assert_int_equal(rp_load("io.safetensors", b.m, &o), RP_ERROR_IO);
    refused("F32 (8) in the file, (7) in the program");
    assert_non_null(strstr(report, "first.weight: F32 (8, 4) in the file, (7, 4) in the program\n"));
    assert_non_null(strstr(report, "reprise/optimizer/0/0/exp_avg: "));
    equal_nets(&b, &c);
    rp_optimizer *other = rp_sgd_module(a.m, 0.1, NULL);
    o = (rp_load_options){.struct_size = sizeof o, .optimizer = other};
    assert_int_equal(rp_load("io.safetensors", a.m, &o), RP_ERROR_IO);
    refused("optimizer: adamw");
    rp_optimizer_release(other);
    /* Names: a prefix, renames, and what only one side has. */
    rp_module *m = rp_module_new("m");
    rp_linear_layer layer;
    rp_tensor *extra = rp_zeros(RP_DIMS(2));
    OK(rp_linear_add(m, "head", &layer, 8, 2, true));
    OK(rp_module_add_buffer(m, "extra", &extra, true));
    static const char *const renames[][2] = {{"nd.", "head."}};
    o = (rp_load_options){.struct_size = sizeof o, .prefix = "seco", .renames = renames, .n_renames = 1};
    assert_int_equal(rp_load("io.safetensors", m, &o), RP_ERROR_IO);
    refused("extra: only in the module");
    o.partial = true;
    OK(rp_load("io.safetensors", m, &o));
    same(layer.weight, a.second.weight);
    o = (rp_load_options){.struct_size = sizeof o, .random = true};
    OK(rp_save("io2.safetensors", m, NULL));
    assert_int_equal(rp_load("io2.safetensors", m, &o), RP_ERROR_IO);
    refused("no state of a generator");
    /* A place that no loader goes to, and a loader that is gone: found before anything is written. */
    rp_tensor *rows = rp_zeros(RP_DIMS(6, 2)), *ones = rp_ones(RP_DIMS(2, 8)), *before = rp_clone(layer.weight);
    rp_loader *loader = rp_loader_new(&rows, 1, 2, NULL);
    const rp_named_tensor state_of[] = {
        {"head.weight", ones}, {"head.bias", rp_zeros(RP_DIMS(2))}, {"extra", rp_zeros(RP_DIMS(2))}};
    static const char *const places[] = {"5 0 4", "5 -1 0", "5 8388608 0", "5 99999999999999999999 0", "5 0", ""};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *const metadata[][2] = {{"reprise/loader", places[i]}};
        OK(rp_safetensors_save("io2.safetensors", state_of, 3, metadata, 1));
        o = (rp_load_options){.struct_size = sizeof o, .loader = loader};
        assert_int_equal(rp_load("io2.safetensors", m, &o), RP_ERROR_IO);
        refused("not a position of this loader");
        same(layer.weight, before);
    }
    rp_loader_release(loader);
    assert_true(rp_load("io2.safetensors", m, &o) != RP_OK);
    refused("loader");
    same(layer.weight, before);
    OK(rp_save("io2.safetensors", m, NULL));
    OK(rp_module_to_dtype(m, RP_F64)); /* types are converted */
    OK(rp_load("io2.safetensors", m, NULL));
    same(rp_to_dtype(layer.weight, RP_F32), a.second.weight);
    rp_module_release(m);
    net_end(&a);
    net_end(&b);
    net_end(&c);
    unlink("io2.safetensors");
}

/* No memory at one allocation after the other, a loader's place and counts that part a group among what is read: the program is as
   it was, or loaded whole. */
static void loads_without_memory(void **state) {
    (void)state;
    NEEDS_JANSSON;
    struct net a, b, was;
    rp_tensor *rows = rp_zeros(RP_DIMS(6, 2));
    rp_loader *loader = rp_loader_new(&rows, 1, 2, RP_OPTIONS(rp_loader_options, .shuffle = true));
    net_make(&a, 3);
    step(&a, true);
    step(&a, false);
    rp_save_options saved = *saving(&a);
    saved.loader = loader;
    OK(rp_save("io2.safetensors", a.m, &saved));
    net_make(&was, 3);
    step(&was, true);
    OK(rp_save("io.safetensors", was.m, saving(&was)));
    net_make(&b, 3);
    uint64_t failures = 0;
    for (uint64_t n = 0;; n++) { /* 0: all is there, and caches fill */
        OK(rp_load("io.safetensors", b.m, loading(&b)));
        OK(rp_loader_seek(loader, 5, 0, 1));
        int64_t place;
        rp_load_options o = *loading(&b);
        o.loader = loader;
        rp__alloc_fail_at(n);
        const rp_status status = rp_load("io2.safetensors", b.m, &o);
        rp__alloc_fail_at(0);
        (void)rp_error_take();
        OK(rp_loader_position(loader, NULL, NULL, &place));
        assert_int_equal(place, status == RP_OK ? 0 : 1);
        equal_nets(&b, status == RP_OK ? &a : &was);
        failures += status != RP_OK;
        if (n > 0 && status == RP_OK) break;
    }
    assert_true(failures > 20);
    rp_loader_release(loader);
    net_end(&a);
    net_end(&b);
    net_end(&was);
    unlink("io2.safetensors");
}

/* What a plateau has seen goes with the state, to the bit; its options stay the program's. */
static void plateau_is_kept(void **state) {
    (void)state;
    NEEDS_JANSSON;
    struct net a;
    rp_plateau p, q;
    net_make(&a, 3);
    step(&a, false);
    OK(rp_plateau_init(&p, RP_OPTIONS(rp_plateau_options, .patience = 3, .cooldown = 4)));
    OK(rp_plateau_step(&p, a.opt, 1.0 / 3));
    for (int k = 0; k < 6; k++) OK(rp_plateau_step(&p, a.opt, 2));
    assert_true(p.best == 1.0 / 3 && p.cooldown_left > 0);
    OK(rp_save("io2.safetensors", a.m, RP_OPTIONS(rp_save_options, .plateau = &p)));
    OK(rp_plateau_init(&q, RP_OPTIONS(rp_plateau_options, .patience = 7)));
    const rp_plateau fresh = q;
    OK(rp_load("io2.safetensors", a.m, RP_OPTIONS(rp_load_options, .plateau = &q)));
    assert_true(q.best == p.best && q.options.patience == 7);
    assert_int_equal(q.bad_epochs, p.bad_epochs);
    assert_int_equal(q.cooldown_left, p.cooldown_left);
    OK(rp_save("io2.safetensors", a.m, NULL)); /* a file without one: as it was */
    q = fresh;
    assert_int_equal(rp_load("io2.safetensors", a.m, RP_OPTIONS(rp_load_options, .plateau = &q)), RP_ERROR_IO);
    rp_error_take();
    assert_memory_equal(&q, &fresh, sizeof q);
    net_end(&a);
    unlink("io2.safetensors");
}

static int files_here(void) {
    DIR *d = opendir(".");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += strncmp(e->d_name, "io.safetensors", 14) == 0;
    closedir(d);
    return n;
}

/* Killed at any moment, a program leaves the state of before or after; a full disk leaves that of before. */
static void a_torn_file_is_never_seen(void **state) {
    (void)state;
    NEEDS_JANSSON;
    struct net a;
    net_make(&a, 64);
    OK(rp_save("io.safetensors", a.m, saving(&a)));
    struct stat st;
    assert_int_equal(stat("io.safetensors", &st), 0);
    for (int round = 0; round < 12; round++) {
        pid_t child = fork();
        if (child == 0) {
            rp_fill_(a.first.weight,
                     rp_f64(round)); /* of a leaf: refused under grad mode, which does not matter here */
            for (;;)
                (void)rp_safetensors_save("io.safetensors", &(rp_named_tensor){"w", rp_detach(a.first.weight)}, 1, NULL,
                                          0);
        }
        usleep((useconds_t)(3000 * (round + 1)));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        rp_safetensors *f = rp_safetensors_open("io.safetensors");
        assert_true(!rp_failed() && rp_safetensors_count(f) > 0);
        rp_safetensors_release(f);
    }
    OK(rp_save("io.safetensors", a.m, saving(&a)));
    struct rlimit old, small = {512, 512};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    int before = files_here();
    setrlimit(RLIMIT_FSIZE, &small);
    rp_status status = rp_save("io.safetensors", a.m, saving(&a));
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status, RP_ERROR_IO);
    refused("File too large");
    assert_int_equal(files_here(), before);
    OK(rp_load("io.safetensors", a.m, loading(&a)));
    net_end(&a);
    DIR *d = opendir("."); /* of the children that were killed */
    for (struct dirent *e; d && (e = readdir(d));)
        if (strncmp(e->d_name, "io.safetensors.", 15) == 0) unlink(e->d_name);
    closedir(d);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, scope_setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_file_is_read_in_place),
        TEST(files_that_are_none),
        TEST(random_damage),
        TEST(an_index_and_its_files),
        TEST(what_is_written_is_read),
        TEST(npy_files),
        TEST(a_resumed_program_goes_on),
        TEST(loads_that_fail_change_nothing),
        TEST(loads_without_memory),
        TEST(plateau_is_kept),
        TEST(a_torn_file_is_never_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
