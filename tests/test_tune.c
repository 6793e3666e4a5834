/* Schedules as data and the tuner (kernel/schedule.h, kernel/tune.h): every schedule that a backend offers gives the same bits; what
   is measured is kept and found again; entries that are damaged, or of something else, are not used; tuned programs give eager's
   bits, and explain says how they run. On the CPU, then on CUDA (the emulator, or a GPU with REPRISE_TEST_CUDA=real). */
/* ctest: labels=compile timeout=600 */
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
#include <unistd.h>

#include "core/alloc.h"
#include "kernel/disk_cache.h"
#include "kernel/tune.h"
#include "support/each_device.h"

#define BODY(name) static void name(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out)
#define UNUSED ((void)ctx, (void)in, (void)n_in, (void)n_out)

/* ---- a clock that the tests move: every look at it takes as long as `tick` says */

static int64_t at, ticks, tick;
static int64_t clock_of_the_test(void) {
    ticks++;
    return at += tick;
}

/* ---- kernels */

typedef enum kind { POINTS, TRANSPOSED, ROWS, COLUMNS, MAXIMA, KINDS } kind;
typedef struct problem {
    rp__dag *dag;
    rp__space space;
    rp__space_access accesses[2];
    rp_tensor *from, *to;
} problem;

static rp__dag *dag_of(kind k) {
    const bool reduces = k >= ROWS;
    rp__dag_builder *b = rp__dag_new();
    uint16_t from = rp__dag_access(b, RP__ACCESS_READ, RP_F32, RP__ELEMENTS);
    uint16_t to = rp__dag_access(b, RP__ACCESS_WRITE, RP_F32, k == ROWS || !reduces ? RP__ELEMENTS : RP__ALONG_ROWS);
    rp__val x = rp__dag_load(b, from, RP__NO_VAL, RP__NO_VAL);
    if (k == ROWS) {
        rp__val m = rp__dag_reduce(b, RP__REDUCE_SUM, x, RP__ALONG_ROW);
        rp__dag_store(b, to, rp__dag_op(b, RP__MUL, rp__dag_op(b, RP__SUB, x, m, RP__NO_VAL), x, RP__NO_VAL));
    } else if (reduces) {
        rp__dag_store(b, to, rp__dag_reduce(b, k == MAXIMA ? RP__REDUCE_MAX : RP__REDUCE_SUM, x, RP__ALONG_ROW));
    } else {
        rp__dag_store(b, to, rp__dag_op(b, RP__ADD, rp__dag_op(b, RP__MUL, x, x, RP__NO_VAL), x, RP__NO_VAL));
    }
    return rp__dag_finish(b);
}

/* rows of r elements; TRANSPOSED and COLUMNS read memory whose last dim is the other one. */
static void make(problem *p, kind k, int64_t rows, int64_t r) {
    const bool across = k == TRANSPOSED || k == COLUMNS, one = k == COLUMNS || k == MAXIMA;
    memset(p, 0, sizeof *p);
    p->dag = dag_of(k);
    assert_non_null(p->dag);
    p->from = rp_sub_scalar(rp_rand(RP_DIMS(rows * r)), rp_f64(0.4));
    p->to = rp_zeros(RP_DIMS(one ? rows : rows * r));
    if (rp_failed()) fail_msg("%s", rp_error_message());
    rp_tensor *const t[2] = {p->from, p->to};
    for (int i = 0; i < 2; i++) {
        rp__space_access *a = &p->accesses[i];
        a->base = t[i]->storage->data;
        a->storage = t[i]->storage;
        a->end = rp_numel(t[i]) * 4;
        a->stride[0] = i == 1 && one ? 1 : r;
        a->stride[1] = i == 1 && one ? 0 : 1;
        if (i == 0 && across) {
            a->stride[0] = 1;
            a->stride[1] = rows;
        }
    }
    p->space = (rp__space){
        .dims = {1, 1}, .extent = {rows, r}, .n_accesses = 2, .accesses = p->accesses, .op = "test", .site = ""};
    rp__space_collapse(p->dag, &p->space, p->accesses);
}

static void run(problem *p, const rp__schedule *how, char *bytes, size_t n) {
    rp__device *d = rp__device_get(device);
    p->space.how = how;
    OK(d->ops->fill(d, rp__current_stream(d), p->to->storage->data, 0xee, n));
    OK(rp__loop_launch(d, rp__current_stream(d), p->dag, &p->space));
    OK(rp_to_host(p->to, bytes, n));
}

static void schedules_give_the_same_bits(void **state) {
    (void)state;
    static const struct {
        int64_t rows, r;
        unsigned emulated; /* kinds (bits) that the emulator runs, whose compiler takes its time */
    } sizes[] = {{3, 40, 0},
                 {70, 130, 1u << POINTS | 1u << TRANSPOSED | 1u << COLUMNS},
                 {64, 1536, 1u << ROWS},
                 {5, 3000, 0},
                 {2, 20000, 1u << ROWS | 1u << MAXIMA},
                 {3, 40000, 0},
                 {600, 33, 0}};
    const bool small = device.type == RP_DEVICE_CUDA && !test_cuda_is_real();
    size_t offered = 0, words = 0;
    for (int k = 0; k < KINDS; k++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            if (small && !(sizes[s].emulated >> k & 1u)) continue;
            rp_scope scope = rp_scope_begin();
            problem p;
            rp__schedule how[16];
            make(&p, (kind)k, sizes[s].rows, sizes[s].r);
            rp__device *d = rp__device_get(device);
            const size_t n = d->ops->loops->schedules(d, p.dag, &p.space, false, how, 16);
            const size_t bytes = (size_t)rp_numel(p.to) * 4;
            char *want = malloc(bytes), *got = malloc(bytes);
            run(&p, NULL, want, bytes);
            for (size_t i = 0; i < n; i++) {
                rp__text t = {0};
                run(&p, &how[i], got, bytes);
                if (memcmp(got, want, bytes) != 0)
                    fail_msg("kind %d, %lld x %lld, schedule %zu: other bits", k, (long long)sizes[s].rows,
                             (long long)sizes[s].r, i);
                d->ops->loops->schedule_text(d, p.dag, &p.space, &t);
                words += t.length > 0;
                rp__text_free(&t);
            }
            offered += n;
            free(want);
            free(got);
            rp__dag_release(p.dag);
            (void)rp_scope_end(scope, NULL, 0);
        }
    }
    assert_true(offered >= 12);
    assert_int_equal(words, offered);
}

/* ---- what is kept */

static void remove_entries(void) {
    char folder[RP__DISK_PATH], why[512];
    assert_true(rp__disk_cache_folder(folder, why, sizeof why));
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (strstr(e->d_name, ".tune")) (void)unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    rp__tune_forget();
}

/* Calls visit for each entry of the tuner on disk. */
static size_t each_entry(void (*visit)(const char *path)) {
    char folder[RP__DISK_PATH], why[512], path[RP__DISK_PATH + 300];
    size_t n = 0;
    assert_true(rp__disk_cache_folder(folder, why, sizeof why));
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        const size_t length = strlen(e->d_name);
        if (length < 5 || strcmp(e->d_name + length - 5, ".tune") != 0) continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (visit) visit(path);
        n++;
    }
    closedir(dir);
    return n;
}

static void what_is_measured_is_kept(void **state) {
    (void)state;
    problem p;
    rp__tuned t, again;
    remove_entries();
    rp__device *d = rp__device_get(device);
    make(&p, ROWS, 64, 1536);
    assert_false(rp__tune_find(d, p.dag, &p.space, false, &t));
    rp__tune_clock = clock_of_the_test;
    tick = 1000000;
    OK(rp__tune_measure(d, p.dag, &p.space, false));
    assert_true(rp__tune_find(d, p.dag, &p.space, false, &t));
    assert_true(t.known && t.measured && t.tried >= 2);
    assert_int_equal(t.own, t.best); /* all as fast as each other: nothing is worth a change */
    static const rp__schedule none;
    assert_memory_equal(&t.how, &none, sizeof none);
    assert_int_equal(each_entry(NULL), 1);
    ticks = 0;
    OK(rp__tune_measure(d, p.dag, &p.space, false));
    assert_int_equal(ticks, 0); /* known: not measured again */
    rp__tune_forget();
    assert_true(rp__tune_find(d, p.dag, &p.space, false, &again));
    assert_true(again.known && !again.measured);
    assert_int_equal(again.best, t.best);
    assert_false(rp__tune_find(d, p.dag, &p.space, true, &again)); /* with other orders it is another question */
    rp__tune_clock = NULL;
    rp__dag_release(p.dag);
}

/* Time stands still but for the first schedule measured, the backend's own: the first other one wins. */
static int64_t slow_first(void) {
    ticks++;
    return at += ticks <= 12 ? 10000000 : 1000000;
}
static void the_fastest_is_chosen(void **state) {
    (void)state;
    problem p;
    rp__tuned t;
    rp__schedule how[16];
    remove_entries();
    rp__device *d = rp__device_get(device);
    make(&p, ROWS, 64, 1536);
    const size_t n = d->ops->loops->schedules(d, p.dag, &p.space, false, how, 16);
    assert_true(n >= 1);
    rp__tune_clock = slow_first;
    ticks = 0;
    OK(rp__tune_measure(d, p.dag, &p.space, false));
    rp__tune_clock = NULL;
    assert_true(rp__tune_find(d, p.dag, &p.space, false, &t));
    assert_int_equal(t.tried, n + 1);
    assert_true(t.best < t.own);
    assert_memory_equal(&t.how, &how[0], sizeof *how);
    rp__dag_release(p.dag);
}

static long where;
static void damage(const char *path) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, where, where < 0 ? SEEK_END : SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, where, where < 0 ? SEEK_END : SEEK_SET), 0);
    assert_true(fputc(c ^ 0x41, f) != EOF);
    assert_int_equal(fclose(f), 0);
}
static void damaged_entries_are_not_used(void **state) {
    (void)state;
    static const long places[] = {0, 9, 60, -3};
    rp__device *d = rp__device_get(device);
    problem p;
    rp__tuned t;
    make(&p, ROWS, 64, 1536);
    for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
        remove_entries();
        OK(rp__tune_measure(d, p.dag, &p.space, false));
        where = places[k];
        assert_int_equal(each_entry(damage), 1);
        rp__tune_forget();
        assert_false(rp__tune_find(d, p.dag, &p.space, false, &t));
        assert_int_equal(each_entry(NULL), 0); /* removed */
    }
    rp__dag_release(p.dag);
}

/* A sound entry under the name of another kernel: as somebody who writes names by hand would have it. */
static char stolen[4096];
static size_t stolen_bytes;
static void take(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    stolen_bytes = fread(stolen, 1, sizeof stolen, f);
    assert_int_equal(fclose(f), 0);
}
static void give(const char *path) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(stolen, 1, stolen_bytes, f), stolen_bytes);
    assert_int_equal(fclose(f), 0);
}
static void entries_of_others_are_not_used(void **state) {
    (void)state;
    rp__device *d = rp__device_get(device);
    problem p, other;
    rp__tuned t;
    make(&p, ROWS, 64, 1536);
    make(&other, COLUMNS, 70, 130);
    remove_entries();
    OK(rp__tune_measure(d, other.dag, &other.space, false));
    assert_int_equal(each_entry(take), 1);
    remove_entries();
    OK(rp__tune_measure(d, p.dag, &p.space, false));
    assert_int_equal(each_entry(give), 1);
    rp__tune_forget();
    assert_false(rp__tune_find(d, p.dag, &p.space, false, &t));
    rp__dag_release(p.dag);
    rp__dag_release(other.dag);
}

/* ---- programs */

BODY(step) {
    UNUSED;
    rp_tensor *h = rp_softmax(rp_add(in[0], in[1]), -1);
    out[0] = rp_mul(h, rp_transpose(in[1], 0, 1));
    out[1] = rp_sum(rp_mul(in[0], in[0]), RP_DIMS(0), false);
    out[2] = rp_add(rp_dropout(in[0], 0.5, true), in[1]);
}

static int64_t told(rp_compiled *f, const char *what, const char *reason, const char *words) {
    int64_t total = 0;
    for (size_t i = 0; i < rp_explain_count(f); i++) {
        rp_explain_entry e;
        OK(rp_explain_get(f, i, &e));
        if (strcmp(e.kind, what) == 0 && strcmp(e.reason, reason) == 0 && strstr(e.message, words)) total += e.count;
    }
    return total;
}

static void tuned_programs_give_the_same_bits(void **state) {
    (void)state;
    remove_entries();
    rp_tensor *x[2] = {rp_rand(RP_DIMS(96, 96)), rp_rand(RP_DIMS(96, 96))}, *want[3], *got[3];
    OK(rp_manual_seed(3));
    step(NULL, x, 2, want, 3);
    for (int round = 0; round < 3; round++) { /* measured, known, read from the disk */
        if (round == 2) rp__tune_forget();
        rp_compiled *f =
            rp_compile((rp_fn){step, NULL, 0, "step"}, RP_OPTIONS(rp_compile_options, .fullgraph = true, .tune = true));
        for (int call = 0; call < 3; call++) { /* the first runs op by op */
            OK(rp_manual_seed(3));
            OK(rp_call(f, x, 2, got, 3));
            for (int k = 0; k < 3; k++) same(got[k], want[k]);
        }
        const char *reason = round < 2 ? "tuned" : "tuned-before";
        assert_true(told(f, "schedule", reason, " us, the fastest of ") >= 1);
        assert_true(told(f, "schedule", reason, "% of the ") >= 1);
        assert_true(told(f, "schedule", "not-tuned", "bytes") >= 1); /* what draws */
        rp_compiled_release(f);
    }
    rp_compiled *f = rp_compile((rp_fn){step, NULL, 0, "step"}, RP_OPTIONS(rp_compile_options, .fullgraph = true));
    for (int call = 0; call < 2; call++) OK(rp_call(f, x, 2, got, 3));
    assert_int_equal(told(f, "schedule", "tuned", ""), 0);
    rp_compiled_release(f);
}

/* Other orders are within rounding, and the same at every call. */
BODY(mean_of_rows) {
    UNUSED;
    out[0] = rp_sub(in[0], rp_mean(in[0], RP_DIMS(-1), true));
}
static void tuned_fast_numbers_are_near(void **state) {
    (void)state;
    remove_entries();
    rp_tensor *x = rp_rand(RP_DIMS(6, 3000)), *want, *got, *again;
    mean_of_rows(NULL, &x, 1, &want, 1);
    rp_compiled *f =
        rp_compile((rp_fn){mean_of_rows, NULL, 0, "mean"},
                   RP_OPTIONS(rp_compile_options, .fullgraph = true, .tune = true, .numbers = RP_NUMBERS_FAST));
    for (int call = 0; call < 2; call++) OK(rp_call(f, &x, 1, &got, 1));
    OK(rp_call(f, &x, 1, &again, 1));
    same(again, got);
    rp_tensor *off = rp_amax(rp_abs(rp_sub(got, want)), RP_NO_DIMS, false);
    assert_true(rp_item_f64(off) < 1e-5);
    rp_compiled_release(f);
}

static int run_all(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(schedules_give_the_same_bits, begin, end),
        cmocka_unit_test_setup_teardown(what_is_measured_is_kept, begin, end),
        cmocka_unit_test_setup_teardown(the_fastest_is_chosen, begin, end),
        cmocka_unit_test_setup_teardown(damaged_entries_are_not_used, begin, end),
        cmocka_unit_test_setup_teardown(entries_of_others_are_not_used, begin, end),
        cmocka_unit_test_setup_teardown(tuned_programs_give_the_same_bits, begin, end),
        cmocka_unit_test_setup_teardown(tuned_fast_numbers_are_near, begin, end),
    };
    RUN_ON_EACH_DEVICE(tests);
}

int main(void) {
    char cache[] = "/tmp/reprise-tune-XXXXXX", command[64];
    if (!mkdtemp(cache) || setenv("REPRISE_CACHE_DIR", cache, 1) != 0) return 1;
    const int failed = run_all();
    (void)snprintf(command, sizeof command, "rm -r '%s'", cache);
    return system(command) != 0 || failed;
}
