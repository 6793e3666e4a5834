/* Bools from outside of the library may hold any byte: what is not 0 is true, for the interpreter, for emitted C and on CUDA, over
   contiguous, strided and repeated memory.
   ctest: labels=numbers,cuda timeout=300 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <reprise.h>

#include "support/cuda.h"
#include "support/many_locks.h"

enum { ROWS = 5, COLUMNS = 211, N = ROWS * COLUMNS, WAYS = 3, OPS = 16 };
static uint8_t bytes[N], ones[N];
static bool have_cuda;

static rp_tensor *sum(rp_tensor *x, int64_t dim) { return rp_sum(x, RP_DIMS(dim)); }

/* x: bools (ROWS, COLUMNS) or (COLUMNS, ROWS); p: plain bools of the same size. */
static rp_tensor *run_op(int op, rp_tensor *x, rp_tensor *p) {
    rp_tensor *two = rp_full(RP_NO_DIMS, rp_f64(2)), *three = rp_full(RP_NO_DIMS, rp_f64(3));
    switch (op) {
    case 0: return rp_logical_not(x);
    case 1: return sum(x, -1);
    case 2: return sum(x, 0);
    case 3: return rp_to_dtype(x, RP_F32);
    case 4: return rp_to_dtype(x, RP_U8);
    case 5: return rp_to_dtype(x, RP_I64);
    case 6: return rp_eq(x, p);
    case 7: return rp_lt(p, x);
    case 8: return rp_where(x, two, three);
    case 9: return rp_where(p, x, rp_logical_not(p));
    case 10: return rp_mul(x, p);
    case 11: return rp_add(x, p, RP_OPTIONS(rp_add_options, .alpha = rp_bool(true)));
    case 12: return rp_amax(x, RP_DIMS(-1), false);
    case 13: return rp_clone(rp_transpose(x, 0, 1));
    case 14: return rp_add(rp_to_dtype(p, RP_I32), rp_select(rp_select(x, 0, 1), 0, 1));
    default: return rp_nonzero(x);
    }
}

static rp_tensor *laid_out(const uint8_t *data, int way) {
    rp_tensor *x = rp_from_data(data, RP_DIMS(ROWS, COLUMNS), RP_BOOL);
    if (way == 1) return rp_transpose(x, 0, 1);
    return way == 2 ? rp_expand(rp_select(x, 0, 0), RP_DIMS(ROWS, COLUMNS)) : x;
}

static void same_as_ones(void) {
    static char have[16 * N], want[16 * N];
    for (int i = 0; i < N; i++) {
        static const uint8_t some[] = {0, 2, 1, 0, 255, 128, 0, 64};
        bytes[i] = some[(i * 7 + i / 8) % 8];
        ones[i] = bytes[i] != 0;
    }
    for (int way = 0; way < WAYS; way++) {
        for (int op = 0; op < OPS; op++) {
            rp_scope scope = rp_scope_begin();
            uint8_t shuffled[N];
            for (int i = 0; i < N; i++) shuffled[i] = ones[N - 1 - i];
            rp_tensor *plain = laid_out(shuffled, way);
            rp_tensor *got = run_op(op, laid_out(bytes, way), plain), *right = run_op(op, laid_out(ones, way), plain);
            const size_t n = (size_t)rp_numel(right) * rp_dtype_size(rp_dtype_of(right));
            assert_int_equal(rp_numel(got), rp_numel(right));
            if (n > sizeof have) fail_msg("layout %d, op %d: %zu bytes", way, op, n);
            assert_int_equal(rp_to_host(got, have, n), RP_OK);
            assert_int_equal(rp_to_host(right, want, n), RP_OK);
            if (op == 9 || op == 13) /* values that went through: true is any byte */
                for (size_t i = 0; i < n; i++) have[i] = have[i] != 0;
            if (rp_failed() || memcmp(have, want, n)) fail_msg("layout %d, op %d: %s", way, op, rp_error_message());
            rp_scope_end(scope, NULL, 0);
        }
    }
}

static void interpreted(void **state) {
    (void)state;
    same_as_ones();
}
/* The mode of tier 1 is read once: another process. */
static void emitted(void **state) {
    (void)state;
    if (system("cc --version > /dev/null 2>&1")) skip();
    pid_t child = fork();
    if (child == 0) {
        setenv("REPRISE_JIT", "wait", 1);
        execl("/proc/self/exe", "test_bool_bytes", "emitted", (char *)NULL);
        _exit(99);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
static void on_cuda(void **state) {
    (void)state;
    if (!have_cuda) skip();
    assert_int_equal(rp_set_default_device(rp_cuda(0)), RP_OK);
    same_as_ones();
    assert_int_equal(rp_set_default_device(rp_cpu()), RP_OK);
}

int main(int argc, char **argv) {
    const struct CMUnitTest again[] = {cmocka_unit_test(interpreted)};
    if (argc > 1 && !strcmp(argv[1], "emitted")) return cmocka_run_group_tests(again, NULL, NULL);
    setenv("REPRISE_JIT", "0", 1);
    have_cuda = test_cuda_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interpreted),
        cmocka_unit_test(emitted),
        cmocka_unit_test(on_cuda),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
