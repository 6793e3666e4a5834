/* What the library takes from its environment: which variables it knows, whose libraries it opens, and what it believes in a
   program that has more rights than whoever started it.
   ctest: timeout=120 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <reprise.h>
#include <reprise_nn.h>

#include "core/env.h"
#include "core/log.h"
#include "core/text.h"
#include "core/trust.h"
#include "kernel/cpu/jit.h"
#include "kernel/cpu/lib_onednn.h"

static bool have_compiler(void) { return system("cc --version >/dev/null 2>&1") == 0; }

static char folder[600];
static int set_up(void **state) {
    (void)state;
    char here[256];
    if (!getcwd(here, sizeof here)) return -1;
    snprintf(folder, sizeof folder, "%s/environment-XXXXXX", here);
    return mkdtemp(folder) ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    char command[700];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* Runs `program` (this one) as `name` in a process of its own, which does what the word says; what it writes to standard error
   goes to `text`. Returns its exit code. */
static int child(const char *program, const char *name, const char *word, char *text, size_t bytes) {
    int out[2];
    assert_int_equal(pipe(out), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 2);
        close(out[0]);
        execl(program, name, word, folder, (char *)NULL);
        _exit(99);
    }
    close(out[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < bytes && (got = read(out[0], text + n, bytes - n - 1)) > 0;) n += (size_t)got;
    text[n] = 0;
    close(out[0]);
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static unsigned count(const char *text, const char *part) {
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, part)); p += strlen(part)) n++;
    return n;
}

static void what_is_not_understood_is_told_once(void **state) {
    (void)state;
    static const char *const wrong[][3] = {
        {"REPRISE_JIT", "off", "0, 1 or wait"},
        {"REPRISE_NUM_THREADS", "2x", "a number from 1 to 256"},
        {"REPRISE_NUM_THREADS", "257", "a number from 1 to 256"},
        {"REPRISE_NUM_THREADS", "-1", "a number from 1 to 256"},
        {"REPRISE_CPU", "avx3", "baseline, avx2 or avx512"},
        {"REPRISE_CHECK", "yes", "0 or 1"},
        {"REPRISE_ONEDNN", "no", "0 or 1"},
        {"REPRISE_CUDA_VMM", "false", "0 or 1"},
        {"REPRISE_CACHE_MB", "1G", "a number from 1"},
        {"REPRISE_CACHE_MB", "0", "a number from 1"},
        {"REPRISE_CC_SECONDS", "soon", "a number from 1"},
        {"REPRISE_STREAM_SEED", "0x", "a number"},
        {"REPRISE_MODULE_DIR", "lib", "a folder by its whole path"},
        {"REPRISE_LOG", "kernel,fuson", "fusion"},
        {"REPRISE_LOG", "al", "or all"},
    };
    static const char *const right[][2] = {
        {"REPRISE_JIT", "wait"},         {"REPRISE_NUM_THREADS", "256"},
        {"REPRISE_CPU", "baseline"},     {"REPRISE_CHECK", "1"},
        {"REPRISE_LOG", "scope,graphs"}, {"REPRISE_STREAM_SEED", "0x1F"},
        {"REPRISE_CC", "none"},          {"REPRISE_JIT", ""},
        {"REPRISE_TEST_ANYTHING", "1"},
    };
    char text[4096], expected[256], line[512];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *old = getenv(wrong[i][0]);
        char *before = old ? strdup(old) : NULL;
        setenv(wrong[i][0], wrong[i][1], 1);
        assert_int_equal(child("/proc/self/exe", "test", "use", text, sizeof text), 0);
        snprintf(expected, sizeof expected,
                 "reprise environment: %s=%s is not understood and has no effect: ", wrong[i][0], wrong[i][1]);
        if (count(text, expected) != 1 || !strstr(text, wrong[i][2]))
            fail_msg("%s=%s: %s", wrong[i][0], wrong[i][1], text);
        before ? setenv(wrong[i][0], before, 1) : unsetenv(wrong[i][0]);
        free(before);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        const char *old = getenv(right[i][0]);
        char *before = old ? strdup(old) : NULL;
        setenv(right[i][0], right[i][1], 1);
        assert_int_equal(child("/proc/self/exe", "test", "use", text, sizeof text), 0);
        if (*text) fail_msg("%s=%s: %s", right[i][0], right[i][1], text);
        before ? setenv(right[i][0], before, 1) : unsetenv(right[i][0]);
        free(before);
    }
    setenv("REPRISE_THREADS", "4", 1);
    assert_int_equal(child("/proc/self/exe", "test", "use", text, sizeof text), 0);
    assert_int_equal(count(text, "REPRISE_THREADS is no variable of Reprise"), 1);
    rp_doctor(NULL, 0);
    char report[16384];
    assert_true(rp_doctor(report, sizeof report) < sizeof report);
    assert_non_null(strstr(report, "REPRISE_THREADS is no variable"));
    unsetenv("REPRISE_THREADS");
    /* what is told cannot move a terminal's cursor, and is one line */
    setenv("REPRISE_JIT", "\033[2J\nreprise: all is well", 1);
    assert_int_equal(child("/proc/self/exe", "test", "use", text, sizeof text), 0);
    assert_non_null(strstr(text, "REPRISE_JIT=\\x1B[2J\\x0Areprise"));
    assert_int_equal(count(text, "\n"), 1);
    unsetenv("REPRISE_JIT");
    rp__printable(line, 8, "ab\r\xC2\x9B!");
    assert_string_equal(line, "ab\\x0D");
    rp__printable(line, sizeof line, "\xC3\xA4\x7F\xC2\x9B!");
    assert_string_equal(line, "\xC3\xA4\\x7F\\xC2\x9B!");
}

/* A program with the library inside starts as ./something, changes its folder, and finds a file with the module's name there. */
static void a_module_in_the_current_folder_is_not_opened(void **state) {
    (void)state;
    if (!have_compiler()) skip();
    char command[2000], text[1024], mark[700];
    snprintf(mark, sizeof mark, "%s/mark", folder);
    snprintf(
        command, sizeof command,
        "echo '#include <stdio.h>\n__attribute__((constructor)) static void run(void) { fclose(fopen(\"%s\", \"w\")); }' |"
        "cc -shared -fPIC -x c - -o '%s/libreprise-onednn.so'",
        mark, folder);
    assert_int_equal(system(command), 0);
    const char *old = getenv("REPRISE_MODULE_DIR");
    char *before = old ? strdup(old) : NULL;
    static const char *const folders[] = {NULL, ".", "./"};
    for (size_t i = 0; i < 3; i++) {
        folders[i] ? setenv("REPRISE_MODULE_DIR", folders[i], 1) : unsetenv("REPRISE_MODULE_DIR");
        assert_int_equal(child("/proc/self/exe", "./program", "module", text, sizeof text), 0);
        assert_int_equal(access(mark, F_OK), -1);
    }
    setenv("REPRISE_MODULE_DIR", folder, 1); /* the same by its whole name is opened, and is no module of ours */
    assert_int_equal(child("/proc/self/exe", "./program", "module", text, sizeof text), 0);
    assert_int_equal(access(mark, F_OK), 0);
    unlink(mark);
    assert_int_equal(chmod(folder, 0777), 0);
    assert_int_equal(child("/proc/self/exe", "./program", "module", text, sizeof text), 0);
    assert_int_equal(access(mark, F_OK), -1);
    before ? setenv("REPRISE_MODULE_DIR", before, 1) : unsetenv("REPRISE_MODULE_DIR");
    free(before);
}

static void more_rights_than_the_caller(void **state) {
    (void)state;
    if (geteuid() != 0) skip();
    char program[700], command[2400], text[1024];
    snprintf(program, sizeof program, "%s/program", folder);
    snprintf(command, sizeof command, "cp /proc/%ld/exe '%s' && chown 65534:65534 '%s' && chmod 4755 '%s'",
             (long)getpid(), program, program, program);
    assert_int_equal(system(command), 0);
    setenv("REPRISE_CC", "/bin/evil", 1);
    setenv("REPRISE_THREADS", "4", 1);
    const int code = child(program, "program", "rights", text, sizeof text);
    unsetenv("REPRISE_CC");
    unsetenv("REPRISE_THREADS");
    if (code == 77) skip(); /* the file system knows no such programs */
    if (code || *text) fail_msg("exit %d: %s", code, text);
}

static void libraries_of_others(void **state) {
    (void)state;
    char file[700], why[700], link[700];
    snprintf(file, sizeof file, "%s/libsome.so.1", folder);
    snprintf(link, sizeof link, "%s/libsome.so", folder);
    assert_null(rp__library_refused(file, why, sizeof why)); /* not there: the loader says it */
    close(open(file, O_WRONLY | O_CREAT, 0600));
    assert_int_equal(symlink("libsome.so.1", link), 0);
    const char *const names[] = {file, link};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(chmod(file, 0755), 0);
        assert_int_equal(chmod(folder, 0755), 0);
        assert_null(rp__library_refused(names[i], why, sizeof why));
        assert_int_equal(chmod(file, 0757), 0);
        assert_non_null(rp__library_refused(names[i], why, sizeof why));
        assert_non_null(strstr(why, "others may write"));
        assert_int_equal(chmod(file, 0755), 0);
        assert_int_equal(chmod(folder, 0757), 0);
        assert_non_null(rp__library_refused(names[i], why, sizeof why));
        assert_int_equal(chmod(folder, 01777), 0);
        assert_null(rp__library_refused(names[i], why, sizeof why));
        assert_int_equal(chmod(folder, 0755), 0);
        if (geteuid() != 0) continue;
        assert_int_equal(chown(file, 12345, 12345), 0);
        assert_non_null(rp__library_refused(names[i], why, sizeof why));
        assert_non_null(strstr(why, "another user"));
        assert_int_equal(chown(file, 0, 12345), 0);
        assert_int_equal(chmod(file, 0775), 0);
        assert_non_null(rp__library_refused(names[i], why, sizeof why));
        assert_int_equal(chown(file, 0, 0), 0);
        assert_int_equal(chown(folder, 12345, 0), 0);
        assert_non_null(rp__library_refused(names[i], why, sizeof why));
        assert_int_equal(chown(folder, 0, 0), 0);
    }
    /* and the search for CUDA's says it of the file that was named */
    assert_int_equal(chmod(file, 0777), 0);
    char text[16384];
    setenv("REPRISE_LIBNVRTC", file, 1);
    assert_int_equal(child("/proc/self/exe", "test", "doctor", text, sizeof text), 0);
    unsetenv("REPRISE_LIBNVRTC");
    assert_non_null(strstr(text, "others may write"));
}

/* ---- a program's locale */

/* One with a decimal comma: of the machine, or made in `folder`. */
static bool comma(void) {
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "ru_RU.UTF-8", "de_DE"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (setlocale(LC_ALL, names[k])) return true;
    char command[1500];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", folder);
    setenv("LOCPATH", folder, 1);
    const bool made = system(command) == 0 && setlocale(LC_ALL, "de_DE.UTF-8");
    unsetenv("LOCPATH");
    return made;
}

static void half(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_f64(0.5));
}

/* Numbers in texts have a point. */
static void a_locale_with_a_comma(void **state) {
    (void)state;
    if (!comma()) skip();
    char text[1000];
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_from_data((const float[]){0.5f, 1.25f}, RP_DIMS(2), RP_F32);
    rp_format(x, text, sizeof text);
    assert_string_equal(text, "tensor([0.5000, 1.2500])");
    rp_format(rp_mul_scalar(x, rp_f64(2)), text, sizeof text);
    assert_string_equal(text, "tensor([1.0000, 2.5000])");
    rp_format(rp_mul_scalar(x, rp_f64(4)), text, sizeof text);
    assert_string_equal(text, "tensor([2., 5.])");
    rp_format(rp_mul_scalar(x, rp_f64(1e10)), text, sizeof text);
    assert_string_equal(text, "tensor([5.0000e+09, 1.2500e+10])");
    rp_op_layer layer;
    assert_int_equal(rp_op_layer_init(&layer, "leaky_relu(0.25)"), RP_OK);
    assert_true(rp_item_f64(rp_sum(rp_op_layer_forward(&layer, (rp_tensor *[]){rp_neg(x)}, 1))) == -1.75 / 4);
    rp_ir *ir = rp_trace((rp_fn){half, NULL, 0, "half"}, &x, 1, 1);
    const size_t n = rp_ir_text(ir, text, sizeof text);
    assert_non_null(strstr(text, "0.5"));
    rp_ir *again = rp_ir_parse(text, n);
    assert_true(rp_ir_equal(ir, again));
    rp_ir_release(ir);
    rp_ir_release(again);
    rp_compiled *f = rp_compile((rp_fn){half, NULL, 0, "half"}, NULL);
    for (int k = 0; k < 3; k++) {
        rp_tensor *y = NULL;
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_true(rp_item_f64(rp_sum(y)) == 0.875);
    }
    rp_compiled_release(f);
    rp_scope_end(scope, NULL, 0);
    assert_false(rp_failed());
    assert_non_null(setlocale(LC_ALL, "C"));
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "use")) {
        for (int i = 0; i < 2; i++) rp_release(rp_retain(rp_ones(RP_DIMS(3))));
        return rp_failed();
    }
    if (argc > 2 && !strcmp(argv[1], "module")) return chdir(argv[2]) || (rp__onednn_available() && false);
    if (argc > 2 && !strcmp(argv[1], "doctor")) {
        char text[16384];
        rp_doctor(text, sizeof text);
        return fputs(text, stderr) < 0;
    }
    if (argc > 2 && !strcmp(argv[1], "rights")) {
        if (getuid() == geteuid()) return 77;
        if (!getenv("REPRISE_CC") || rp__env("REPRISE_CC") || rp__env("PATH") || rp__env("HOME")) return 1;
        rp_release(rp_retain(rp_ones(RP_DIMS(3))));
        char text[16384];
        rp_doctor(text, sizeof text);
        /* A leak check cannot look into a process of more rights. */
        _exit(!strstr(text, "environment: not read") || !strstr(text, "switched off") || strstr(text, "evil"));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_not_understood_is_told_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_module_in_the_current_folder_is_not_opened, set_up, tear_down),
        cmocka_unit_test_setup_teardown(more_rights_than_the_caller, set_up, tear_down),
        cmocka_unit_test_setup_teardown(libraries_of_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_locale_with_a_comma, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
