/* Data sets (IDX, CIFAR, archives of numpy, bytes), loaders, and programs that are killed at any moment and go on to the bit: one
   with everything that a file keeps, and examples/13_classifier.c. */
/* ctest: timeout=300 cost=10 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int classifier_main(int argc, char **argv);
#define main classifier_main
#include "../examples/13_classifier.c"
#undef main

#include "support/check.h"

static bool have_jansson(void) {
    FILE *f = fopen("data.probe", "wb");
    (void)fwrite("\2\0\0\0\0\0\0\0{}", 1, 10, f);
    (void)fclose(f);
    rp_safetensors *s = rp_safetensors_open("data.probe");
    const bool there = !rp_failed();
    rp_safetensors_release(s);
    (void)rp_error_take();
    (void)unlink("data.probe");
    return there;
}

static void put(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void is(rp_tensor *t, const int64_t *size, size_t ndim, rp_dtype dtype, const void *data, size_t bytes) {
    char have[4096];
    if (rp_failed()) fail_msg("%s", rp_error_message());
    assert_int_equal(rp_dtype_of(t), dtype);
    assert_int_equal(rp_ndim(t), ndim);
    for (size_t d = 0; d < ndim; d++) assert_int_equal(rp_size(t, (int64_t)d), size[d]);
    assert_int_equal(rp_to_host(t, have, bytes), RP_OK);
    assert_memory_equal(have, data, bytes);
}
#define IS(t, dtype, data, bytes, ...) is((t), RP_DIMS(__VA_ARGS__), (dtype), (data), (bytes))

/* ---- files */

static void idx_files(void **state) {
    (void)state;
    static const uint8_t images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 253, 254, 255};
    static const uint8_t floats[] = {0, 0, 13, 1, 0, 0, 0, 2, 0x3f, 0x80, 0, 0, 0xc0, 0x20, 0, 0};
    static const uint8_t shorts[] = {0, 0, 11, 1, 0, 0, 0, 2, 1, 2, 0xff, 0xfe};
    put("data.idx", images, sizeof images);
    IS(rp_idx_load("data.idx"), RP_U8, images + 16, 6, 2, 1, 3);
    put("data.idx", floats, sizeof floats);
    IS(rp_idx_load("data.idx"), RP_F32, ((const float[]){1, -2.5}), 8, 2);
    put("data.idx", shorts, sizeof shorts);
    IS(rp_idx_load("data.idx"), RP_I16, ((const int16_t[]){258, -2}), 4, 2);
    for (size_t n = 0; n < sizeof images; n++) { /* cut off anywhere */
        put("data.idx", images, n);
        assert_true(rp_is_error(rp_idx_load("data.idx")));
        FAILED(RP_ERROR_IO, n < 16 ? "data.idx: byte 0: it is no IDX file" : "data.idx: byte 16: its sizes");
    }
    static const uint8_t vast[] = {0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
    put("data.idx", vast, sizeof vast);
    assert_true(rp_is_error(rp_idx_load("data.idx")));
    FAILED(RP_ERROR_IO, "do not agree");
    assert_true(rp_is_error(rp_idx_load("data.none")));
    FAILED(RP_ERROR_IO, "No such file");
    unlink("data.idx");
}

static void cifar_files(void **state) {
    (void)state;
    enum { RECORD = 3073 };
    uint8_t *file = malloc(2 * RECORD + 2);
    for (int i = 0; i < 2 * RECORD + 2; i++) file[i] = (uint8_t)(i * 7);
    file[0] = 3;
    file[RECORD] = 9;
    put("data.cifar", file, 2 * RECORD);
    put("data.cifar2", file, RECORD);
    rp_tensor *x, *y;
    OK(rp_cifar_load((const char *const[]){"data.cifar", "data.cifar2"}, 2, 10, &x, &y));
    IS(y, RP_I64, ((const int64_t[]){3, 9, 3}), 24, 3);
    assert_true(rp_size(x, 0) == 3 && rp_size(x, 1) == 3 && rp_size(x, 2) == 32 && rp_size(x, 3) == 32);
    IS(rp_reshape(rp_select(x, 0, 1), RP_DIMS(3072)), RP_U8, file + RECORD + 1, 3072, 3072);
    file[RECORD] = 10;
    put("data.cifar", file, 2 * RECORD);
    assert_int_equal(rp_cifar_load((const char *const[]){"data.cifar"}, 1, 10, &x, &y), RP_ERROR_IO);
    FAILED(RP_ERROR_IO, "data.cifar: byte 3073: it has a label beyond the classes");
    assert_int_equal(rp_cifar_load((const char *const[]){"data.cifar"}, 1, 100, &x, &y), RP_ERROR_IO);
    FAILED(RP_ERROR_IO, "data.cifar: byte 3074: it does not consist of records");
    file[1] = 77;
    put("data.cifar", file, RECORD + 1);
    OK(rp_cifar_load((const char *const[]){"data.cifar"}, 1, 100, &x, &y));
    IS(y, RP_I64, ((const int64_t[]){77}), 8, 1);
    assert_int_equal(rp_cifar_load(NULL, 0, 10, &x, &y), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "64 files");
    free(file);
    unlink("data.cifar");
    unlink("data.cifar2");
}

static void text_files(void **state) {
    (void)state;
    put("data.txt", "to be\n", 6);
    IS(rp_text_load("data.txt"), RP_U8, "to be\n", 6, 6);
    put("data.txt", "", 0);
    IS(rp_text_load("data.txt"), RP_U8, "", 0, 0);
    unlink("data.txt");
}

/* What numpy.savez(weights=numpy.float32([1, 2])) writes, but for dates and checksums, which are not looked at. */
static size_t archive(uint8_t *out, uint16_t method) {
    static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
    uint8_t npy[256] = "\x93NUMPY\x01";
    const size_t n = sizeof header - 1;
    npy[8] = (uint8_t)n;
    memcpy(npy + 10, header, n);
    const float values[] = {1, 2};
    memcpy(npy + 10 + n, values, sizeof values);
    const uint32_t bytes = (uint32_t)(10 + n + sizeof values);
    static const char name[] = "weights.npy";
    uint8_t *u = out;
    memset(u, 0, 30);
    memcpy(u, "PK\3\4", 4);
    u[26] = sizeof name - 1;
    u[28] = 4; /* something extra */
    memcpy(u + 30, name, sizeof name - 1);
    u += 30 + sizeof name - 1 + 4;
    memcpy(u, npy, bytes);
    u += bytes;
    const uint32_t directory = (uint32_t)(u - out);
    memset(u, 0, 46);
    memcpy(u, "PK\1\2", 4);
    memcpy(u + 10, &method, 2);
    memcpy(u + 20, &bytes, 4);
    memcpy(u + 24, &bytes, 4);
    u[28] = sizeof name - 1;
    memcpy(u + 46, name, sizeof name - 1);
    u += 46 + sizeof name - 1;
    memset(u, 0, 22);
    memcpy(u, "PK\5\6", 4);
    u[8] = u[10] = 1;
    memcpy(u + 16, &directory, 4);
    return (size_t)(u + 22 - out);
}

static void archives(void **state) {
    (void)state;
    uint8_t file[1024] = {0};
    const size_t n = archive(file, 0);
    put("data.npz", file, n);
    const float values[] = {1, 2};
    IS(rp_npz_load("data.npz", "weights"), RP_F32, values, 8, 2);
    IS(rp_npz_load("data.npz", "weights.npy"), RP_F32, values, 8, 2);
    assert_true(rp_is_error(rp_npz_load("data.npz", "weight")));
    FAILED(RP_ERROR_IO, "no member `weight`");
    (void)archive(file, 8);
    put("data.npz", file, n);
    assert_true(rp_is_error(rp_npz_load("data.npz", "weights")));
    FAILED(RP_ERROR_IO, "compressed");
    (void)archive(file, 0);
    for (size_t k = 0; k < n; k++) { /* cut off, and each byte another: an error or the values, never more */
        put("data.npz", file, k);
        assert_true(rp_is_error(rp_npz_load("data.npz", "weights")));
        assert_int_equal(rp_error_take(), RP_ERROR_IO);
        const uint8_t kept = file[k];
        for (int change = 1; change < 256; change += 127) {
            file[k] = (uint8_t)(kept ^ change);
            put("data.npz", file, n);
            (void)rp_npz_load("data.npz", "weights");
            (void)rp_error_take();
        }
        file[k] = kept;
    }
    unlink("data.npz");
}

/* What is written is read again, and is to the byte what zip and numpy say: a checksum that is known, places in the directory. */
static void archives_written(void **state) {
    (void)state;
    const float wide[6] = {1, 2, 3, 4, 5, 6};
    const int64_t one = -7;
    rp_tensor *a = rp_from_data(wide, RP_DIMS(2, 3), RP_F32), *b = rp_from_data(&one, RP_DIMS(), RP_I64);
    const rp_named_tensor both[] = {
        {"layer.weight", rp_transpose(a, 0, 1)}, {"step", b}, {"none", rp_zeros(RP_DIMS(0, 4))}};
    OK(rp_npz_save("data.npz", both, 3));
    IS(rp_npz_load("data.npz", "layer.weight"), RP_F32, ((const float[]){1, 4, 2, 5, 3, 6}), 24, 3, 2);
    is(rp_npz_load("data.npz", "step"), NULL, 0, RP_I64, &one, 8);
    IS(rp_npz_load("data.npz", "none"), RP_F32, "", 0, 0, 4);
    uint8_t file[2048];
    const rp_named_tensor bytes = {"b", rp_from_data("123456789", RP_DIMS(9), RP_U8)};
    OK(rp_npz_save("data.npz", &bytes, 1));
    FILE *f = fopen("data.npz", "rb");
    assert_non_null(f);
    const size_t n = fread(file, 1, sizeof file, f);
    fclose(f);
    assert_int_equal(n, 30 + 5 + 128 + 9 + 46 + 5 + 22);
    static const uint8_t sum[4] = {0xb3, 0xb3, 0x17, 0x96}; /* of the whole member, by zlib over what numpy writes */
    assert_memory_equal(file + 14, sum, 4);
    assert_memory_equal(file + 30 + 5 + 128 + 9 + 16, sum, 4);
    assert_int_equal(rp_npz_save("data.npz", &(rp_named_tensor){"", b}, 1), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "needs a name");
    const rp_named_tensor twice[] = {{"w", a}, {"w", b}};
    assert_int_equal(rp_npz_save("data.npz", twice, 2), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "two tensors have the name `w`");
    assert_int_equal(rp_npz_save("/nonexistent/x.npz", &bytes, 1), RP_ERROR_IO);
    FAILED(RP_ERROR_IO, "/nonexistent");
    IS(rp_npz_load("data.npz", "b"), RP_U8, "123456789", 9, 9); /* as it was */
    unlink("data.npz");
}

/* A file in place: what is written to it is the tensor's own, and the file may go. */
static void npy_in_place(void **state) {
    (void)state;
    const float values[] = {1, 2, 3, 4, 5, 6};
    OK(rp_npy_save("data.npy", rp_from_data(values, RP_DIMS(3, 2), RP_F32)));
    rp_tensor *t = rp_npy_map("data.npy");
    IS(t, RP_F32, values, 24, 3, 2);
    (void)rp_fill_(rp_select(t, 0, 1), rp_i64(0));
    IS(t, RP_F32, ((const float[]){1, 2, 0, 0, 5, 6}), 24, 3, 2);
    IS(rp_npy_load("data.npy"), RP_F32, values, 24, 3, 2);
    rp_tensor *batch;
    rp_tensor *again = rp_npy_map("data.npy");
    unlink("data.npy");
    rp_loader *l = rp_loader_new(&again, 1, 2, NULL);
    assert_true(rp_loader_next(l, &batch, 1));
    IS(batch, RP_F32, values, 16, 2, 2);
    rp_loader_release(l);
    static const char header[] = "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }\n";
    uint8_t file[128] = "\x93NUMPY\x01";
    file[8] = sizeof header - 1;
    memcpy(file + 10, header, sizeof header - 1);
    put("data.npy", file, 10 + sizeof header - 1 + 8);
    assert_true(rp_is_error(rp_npy_map("data.npy")));
    FAILED(RP_ERROR_IO, "rp_npy_map: data.npy: byte 69: its elements are in Fortran order");
    memcpy(strstr((char *)file + 10, "True, "), "False,", 6);
    file[8] = sizeof header; /* a blank more */
    file[10 + sizeof header - 2] = ' ', file[10 + sizeof header - 1] = '\n';
    put("data.npy", file, 10 + sizeof header + 8);
    assert_true(rp_is_error(rp_npy_map("data.npy")));
    FAILED(RP_ERROR_IO, "not aligned");
    unlink("data.npy");
}

/* ---- loaders */

enum { N = 23 };

/* An epoch, as the first column of the first array; the second says the same in another type. */
static int epoch_of(rp_loader *l, int64_t *order) {
    rp_tensor *batch[2];
    int64_t n = 0;
    while (rp_loader_next(l, batch, 2)) {
        float wide[2 * N];
        int64_t ids[N];
        const int64_t rows = rp_size(batch[0], 0);
        assert_int_equal(rp_to_host(batch[0], wide, (size_t)rows * 2 * sizeof *wide), RP_OK);
        assert_int_equal(rp_to_host(batch[1], ids, (size_t)rows * sizeof *ids), RP_OK);
        for (int64_t i = 0; i < rows; i++) {
            assert_true(wide[2 * i] == (float)ids[i] && wide[2 * i + 1] == -(float)ids[i]);
            order[n++] = ids[i];
        }
    }
    if (rp_failed()) fail_msg("%s", rp_error_message());
    return (int)n;
}

static rp_loader *loader_of(bool shuffle, int workers, bool drop_last) {
    float wide[2 * N];
    int64_t ids[N];
    for (int i = 0; i < N; i++) {
        ids[i] = i;
        wide[2 * i] = (float)i;
        wide[2 * i + 1] = -(float)i;
    }
    rp_tensor *arrays[] = {rp_from_data(wide, RP_DIMS(N, 2), RP_F32), rp_from_data(ids, RP_DIMS(N), RP_I64)};
    return rp_loader_new(
        arrays, 2, 4,
        RP_OPTIONS(rp_loader_options, .shuffle = shuffle, .workers = workers, .drop_last = drop_last, .seed = 77));
}

static void batches(void **state) {
    (void)state;
    int64_t order[2][N], first[N];
    for (int workers = 0; workers <= 3; workers++) {
        rp_loader *l = loader_of(false, workers, false);
        assert_int_equal(rp_loader_batches(l), 6);
        for (int e = 0; e < 2; e++) {
            assert_int_equal(epoch_of(l, order[e]), N);
            for (int i = 0; i < N; i++) assert_int_equal(order[e][i], i);
        }
        rp_loader_release(l);
        l = loader_of(false, workers, true);
        assert_int_equal(rp_loader_batches(l), 5);
        assert_int_equal(epoch_of(l, order[0]), 20);
        rp_loader_release(l);
        l = loader_of(true, workers, false);
        for (int e = 0; e < 2; e++) {
            bool seen[N] = {false};
            assert_int_equal(epoch_of(l, order[e]), N);
            for (int i = 0; i < N; i++) seen[order[e][i]] = true;
            for (int i = 0; i < N; i++) assert_true(seen[i]);
        }
        assert_memory_not_equal(order[0], order[1], sizeof order[0]);
        if (workers == 0) memcpy(first, order[0], sizeof first);
        assert_memory_equal(order[0], first, sizeof first); /* whoever gathers it */
        /* from the middle of the first epoch on */
        OK(rp_loader_seek(l, 77, 0, 3));
        int64_t rest[N];
        assert_int_equal(epoch_of(l, rest), N - 12);
        assert_memory_equal(rest, order[0] + 12, (N - 12) * sizeof *rest);
        uint64_t seed;
        int64_t epoch, batch;
        OK(rp_loader_position(l, &seed, &epoch, &batch));
        assert_true(seed == 77 && epoch == 1 && batch == 0);
        rp_loader_release(l);
    }
}

static void wrong_loaders(void **state) {
    (void)state;
    rp_tensor *a[] = {rp_zeros(RP_DIMS(4, 2)), rp_zeros(RP_DIMS(3)), rp_zeros(RP_NO_DIMS)}, *out[2];
    rp_loader *l = rp_loader_new(a, 2, 2, NULL);
    FAILED(RP_ERROR_SHAPE, "array 1 has 3 rows");
    assert_false(rp_loader_next(l, out, 2));
    FAILED(RP_ERROR_STATE, "could not be made");
    (void)rp_loader_new(a + 2, 1, 2, NULL);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "must have rows");
    (void)rp_loader_new(a, 1, 0, NULL);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "at least one row");
    (void)rp_loader_new(a, 1, 1, RP_OPTIONS(rp_loader_options, .workers = 65));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "workers");
    l = rp_loader_new(a, 1, 3, NULL);
    assert_false(rp_loader_next(l, out, 2));
    FAILED(RP_ERROR_INVALID_ARGUMENT, "has 1 arrays");
    assert_int_equal(rp_loader_seek(l, 0, 0, 3), RP_ERROR_INVALID_ARGUMENT);
    FAILED(RP_ERROR_INVALID_ARGUMENT, "no epoch");
    rp_loader_release(l);
}

/* ---- killed and resumed */

enum { STEPS = 40 };

/* Trains to its end, from the file if there is one. */
static int program(const char *path) {
    rp_linear_layer first, second;
    rp_dropout_layer drop;
    rp_module *m = rp_module_new("m");
    rp_tensor *batch[2];
    int64_t epoch;
    rp_manual_seed(5);
    rp_tensor *data[] = {rp_randn(RP_DIMS(40, 6)), rp_randint(0, 3, RP_DIMS(40))};
    rp_linear_add(m, "first", &first, 6, 8, true);
    rp_dropout_add(m, "drop", &drop, 0.25);
    rp_linear_add(m, "second", &second, 8, 3, true);
    size_t n;
    rp_tensor *const *params = rp_module_parameters(m, &n);
    rp_optimizer *opt = rp_nadam_module(m, 0.02, NULL);
    rp_schedule *s = rp_schedule_one_cycle(0.05, STEPS + 2, NULL);
    rp_optimizer_set_schedule(opt, s);
    rp_grad_scaler *scaler = rp_grad_scaler_new(RP_OPTIONS(rp_grad_scaler_options, .growth_interval = 7));
    rp_average *mean = rp_average_new(params, n, 0.9);
    rp_loader *loader = rp_loader_new(data, 2, 8, RP_OPTIONS(rp_loader_options, .shuffle = true, .workers = 2));
    if (access(path, R_OK) == 0)
        rp_load(path, m,
                RP_OPTIONS(rp_load_options, .optimizer = opt, .random = true, .scaler = scaler, .average = mean,
                           .loader = loader));
    while (!rp_failed() && rp_loader_position(loader, NULL, &epoch, NULL) == RP_OK && epoch < STEPS / 5) {
        rp_scope scope = rp_scope_begin();
        if (rp_loader_next(loader, batch, 2)) {
            rp_tensor *h = rp_dropout_layer_forward(&drop, rp_relu(rp_linear_layer_forward(&first, batch[0])));
            rp_tensor *loss = rp_cross_entropy(rp_linear_layer_forward(&second, h), batch[1]);
            rp_backward(rp_grad_scaler_scale(scaler, loss), NULL, NULL);
            rp_grad_scaler_step(scaler, opt);
            rp_grad_scaler_update(scaler);
            rp_optimizer_schedule_step(opt);
            rp_optimizer_zero_grad(opt, true);
            rp_average_update(mean);
        }
        rp_save(path, m,
                RP_OPTIONS(rp_save_options, .optimizer = opt, .random = true, .scaler = scaler, .average = mean,
                           .loader = loader));
        rp_scope_end(scope, NULL, 0);
    }
    if (rp_failed()) fprintf(stderr, "%s\n", rp_error_message());
    return rp_failed();
}

static int classify(const char *path) {
    char *arguments[] = {(char[]){"classifier"}, strdup(path), NULL};
    const int failed = classifier_main(2, arguments);
    free(arguments[1]);
    return failed;
}

/* Runs it in a process of its own, which is killed after that many microseconds; 0: it ends by itself. */
static bool ran(int (*run)(const char *), const char *path, useconds_t after) {
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(run(path) ? 1 : 0);
    if (after) {
        usleep(after);
        kill(child, SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
    return WIFEXITED(status);
}

static size_t contents(const char *path, char *out, size_t room) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(out, 1, room, f);
    (void)fclose(f);
    assert_true(n > 0 && n < room);
    return n;
}

static void goes_on(int (*run)(const char *)) {
    static char whole[1 << 18], parts[1 << 18];
    unlink("data.whole");
    unlink("data.parts");
    assert_true(ran(run, "data.whole", 0));
    const size_t n = contents("data.whole", whole, sizeof whole);
    bool ended = false;
    for (unsigned round = 0; round < 8 && !ended; round++) ended = ran(run, "data.parts", 15000 + 17000 * round);
    if (!ended) assert_true(ran(run, "data.parts", 0));
    assert_int_equal(contents("data.parts", parts, sizeof parts), n);
    assert_memory_equal(whole, parts, n);
    unlink("data.whole");
    unlink("data.parts");
    (void)!system("rm -f data.parts.*.tmp"); /* of those that were killed */
}

static void a_killed_program_goes_on(void **state) {
    (void)state;
    if (!have_jansson()) skip();
    goes_on(program);
}

static void a_killed_classifier_goes_on(void **state) {
    (void)state;
    if (!have_jansson()) skip();
    goes_on(classify);
}

/* Every kind of optimizer, saved between two steps. */
static void every_optimizer_goes_on(void **state) {
    (void)state;
    if (!have_jansson()) skip();
    for (int kind = 0; kind < 11; kind++) {
        rp_scope scope = rp_scope_begin();
        rp_linear_layer layer[2];
        rp_module *m[2];
        rp_optimizer *opt[2];
        for (int k = 0; k < 2; k++) {
            rp_manual_seed(3);
            m[k] = rp_module_new("m");
            OK(rp_linear_add(m[k], "fc", &layer[k], 4, 3, true));
            opt[k] = kind == 0   ? rp_sgd_module(m[k], 0.1, RP_OPTIONS(rp_sgd_options, .momentum = 0.9))
                     : kind == 1 ? rp_adam_module(m[k], 0.1, RP_OPTIONS(rp_adam_options, .amsgrad = true))
                     : kind == 2 ? rp_adamw_module(m[k], 0.1, NULL)
                     : kind == 3 ? rp_rmsprop_module(m[k], 0.1,
                                                     RP_OPTIONS(rp_rmsprop_options, .momentum = 0.5, .centered = true))
                     : kind == 4 ? rp_adagrad_module(m[k], 0.1, NULL)
                     : kind == 5 ? rp_adadelta_module(m[k], 0.1, NULL)
                     : kind == 6 ? rp_adamax_module(m[k], 0.1, NULL)
                     : kind == 7 ? rp_nadam_module(m[k], 0.1, NULL)
                     : kind == 8 ? rp_radam_module(m[k], 0.1, NULL)
                     : kind == 9 ? rp_lion_module(m[k], 0.1, NULL)
                                 : rp_lamb_module(m[k], 0.1, NULL);
        }
        for (int t = 0; t < 6; t++) {
            if (t == 3) { /* the second goes on where the first is */
                OK(rp_save("data.opt", m[0], RP_OPTIONS(rp_save_options, .optimizer = opt[0])));
                OK(rp_load("data.opt", m[1], RP_OPTIONS(rp_load_options, .optimizer = opt[1])));
            }
            for (int k = 0; k < (t < 3 ? 1 : 2); k++) {
                rp_tensor *x = rp_full(RP_DIMS(2, 4), rp_f64(0.25 + 0.125 * t));
                rp_tensor *y = rp_linear_layer_forward(&layer[k], x);
                OK(rp_backward(rp_sum(rp_mul(y, y)), NULL, NULL));
                if (t == 1) OK(rp_set_grad(layer[k].bias, NULL)); /* its count stays behind */
                OK(rp_optimizer_step(opt[k]));
                OK(rp_optimizer_zero_grad(opt[k], true));
            }
        }
        float a[12], b[12];
        OK(rp_to_host(layer[0].weight, a, sizeof a));
        OK(rp_to_host(layer[1].weight, b, sizeof b));
        if (memcmp(a, b, sizeof a) != 0) fail_msg("optimizer %d goes on otherwise", kind);
        OK(rp_to_host(layer[0].bias, a, 12));
        OK(rp_to_host(layer[1].bias, b, 12));
        if (memcmp(a, b, 12) != 0) fail_msg("optimizer %d goes on otherwise: the bias", kind);
        for (int k = 0; k < 2; k++) {
            rp_optimizer_release(opt[k]);
            rp_module_release(m[k]);
        }
        rp_scope_end(scope, NULL, 0);
    }
    unlink("data.opt");
}

static rp_tensor *bowl(void *ctx) {
    const rp_linear_layer *layer = ctx;
    rp_set_grad(layer->weight, NULL);
    rp_set_grad(layer->bias, NULL);
    rp_tensor *y = rp_linear_layer_forward(layer, rp_full(RP_DIMS(1, 4), rp_f64(0.75)));
    rp_tensor *loss = rp_sum(rp_add(rp_mul(y, y), rp_sin(y)));
    rp_backward(loss, NULL, NULL);
    return loss;
}

/* Its vectors and numbers, too: a third and a fourth step are those of a program that never stopped. */
static void lbfgs_goes_on(void **state) {
    (void)state;
    if (!have_jansson()) skip();
    rp_linear_layer layer[2];
    rp_module *m[2];
    rp_lbfgs *l[2];
    for (int k = 0; k < 2; k++) {
        size_t n;
        rp_manual_seed(3);
        m[k] = rp_module_new("m");
        OK(rp_linear_add(m[k], "fc", &layer[k], 4, 3, true));
        rp_tensor *const *params = rp_module_parameters(m[k], &n);
        l[k] = rp_lbfgs_new(params, n, 0.25,
                            RP_OPTIONS(rp_lbfgs_options, .max_iter = 2, .history_size = 3, .strong_wolfe = true));
    }
    for (int t = 0; t < 2; t++) (void)rp_lbfgs_step(l[0], bowl, &layer[0]);
    OK(rp_save("data.lbfgs", m[0], RP_OPTIONS(rp_save_options, .lbfgs = l[0])));
    OK(rp_load("data.lbfgs", m[1], RP_OPTIONS(rp_load_options, .lbfgs = l[1])));
    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 2; k++) (void)rp_lbfgs_step(l[k], bowl, &layer[k]);
    float a[12], b[12];
    OK(rp_to_host(layer[0].weight, a, sizeof a));
    OK(rp_to_host(layer[1].weight, b, sizeof b));
    assert_memory_equal(a, b, sizeof a);
    OK(rp_save("data.lbfgs", m[0], NULL));
    assert_int_equal(rp_load("data.lbfgs", m[1], RP_OPTIONS(rp_load_options, .lbfgs = l[1])), RP_ERROR_IO);
    FAILED(RP_ERROR_IO, "lbfgs: the file has none");
    for (int k = 0; k < 2; k++) {
        rp_lbfgs_release(l[k]);
        rp_set_grad(layer[k].weight, NULL);
        rp_set_grad(layer[k].bias, NULL);
        rp_module_release(m[k]);
    }
    unlink("data.lbfgs");
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, take_error)
    const struct CMUnitTest tests[] = {
        TEST(a_killed_program_goes_on), /* first: what forks has no threads */
        TEST(a_killed_classifier_goes_on),
        TEST(idx_files),
        TEST(cifar_files),
        TEST(text_files),
        TEST(archives),
        TEST(archives_written),
        TEST(npy_in_place),
        TEST(batches),
        TEST(wrong_loaders),
        TEST(every_optimizer_goes_on),
        TEST(lbfgs_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
