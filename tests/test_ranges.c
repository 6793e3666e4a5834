/* Ranges for profilers: with the library, its answers; without, -1 and nothing else. Each in a process of its own, as a library is
   looked for once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <reprise.h>

static int in_child(int (*body)(void)) {
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(body());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int answers(const char *file) {
    void *library = dlopen(file, RTLD_NOW);
    const char *(*last)(void) = NULL;
    if (!library) return 1;
    *(void **)&last = dlsym(library, "cudasim_range");
    if (!last) return 2;
    if (rp_range_push("step") != 0 || rp_range_push("backward") != 1) return 3;
    if (strcmp(last(), "backward") != 0) return 4;
    if (rp_range_pop() != 1 || rp_range_push(NULL) != 1 || strcmp(last(), "") != 0) return 5;
    if (rp_range_pop() != 1 || rp_range_pop() != 0 || rp_range_pop() != -2) return 6;
    return rp_failed() ? 7 : 0;
}

static int answered(void) { return answers(getenv("REPRISE_LIBNVTX")); }

static void ranges(void **state) {
    (void)state;
    const char *folder = getenv("REPRISE_CUDASIM_DIR");
    if (!folder) skip();
    char file[1024];
    (void)snprintf(file, sizeof file, "%s/libnvToolsExt.so.1", folder);
    assert_int_equal(setenv("REPRISE_LIBNVTX", file, 1), 0);
    assert_int_equal(in_child(answered), 0);
}

/* CUDA 13 has the functions in a library of another name. The loader reads its path when a program starts. */
static char folder_of_13[] = "/tmp/reprise-nvtx-XXXXXX";

static int found_by_the_loader(void) {
    char paths[1200], file[64];
    Dl_info own;
    if (!dladdr(__extension__(void *) rp_range_push, &own)) return 10;
    const char *slash = strrchr(own.dli_fname, '/');
    (void)snprintf(paths, sizeof paths, "%s:%.*s", folder_of_13, slash ? (int)(slash - own.dli_fname) : 1,
                   slash ? own.dli_fname : ".");
    (void)snprintf(file, sizeof file, "%s/libnvtx3interop.so.1", folder_of_13);
    (void)setenv("LD_LIBRARY_PATH", paths, 1);
    (void)unsetenv("REPRISE_LIBNVTX");
    (void)execl("/proc/self/exe", "test_ranges", file, (char *)NULL);
    return 11;
}

static void name_of_cuda_13(void **state) {
    (void)state;
    const char *sim = getenv("REPRISE_CUDASIM_DIR");
    if (!sim) skip();
    char from[1024], to[64], bytes[4096];
    assert_non_null(mkdtemp(folder_of_13));
    (void)snprintf(from, sizeof from, "%s/libnvToolsExt.so.1", sim);
    (void)snprintf(to, sizeof to, "%s/libnvtx3interop.so.1", folder_of_13);
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, in));) assert_int_equal(fwrite(bytes, 1, n, out), n);
    (void)fclose(in);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(in_child(found_by_the_loader), 0);
    (void)unlink(to);
    (void)rmdir(folder_of_13);
}

static int unanswered(void) { return rp_range_push("step") != -1 || rp_range_pop() != -1 || rp_failed(); }

static void none(void **state) {
    (void)state;
    assert_int_equal(setenv("REPRISE_LIBNVTX", "/nonexistent/libnvToolsExt.so.1", 1), 0);
    assert_int_equal(in_child(unanswered), 0);
    char text[16384];
    (void)rp_doctor(text, sizeof text);
    assert_non_null(strstr(text, "NVTX"));
}

int main(int argc, char **argv) {
    if (argc > 1) return answers(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges), cmocka_unit_test(name_of_cuda_13),
                                       cmocka_unit_test(none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
