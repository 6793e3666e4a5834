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

static int answered(void) {
    void *library = dlopen(getenv("REPRISE_LIBNVTX"), RTLD_NOW);
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

static void ranges(void **state) {
    (void)state;
    const char *folder = getenv("REPRISE_CUDASIM_DIR");
    if (!folder) skip();
    char file[1024];
    (void)snprintf(file, sizeof file, "%s/libnvToolsExt.so.1", folder);
    assert_int_equal(setenv("REPRISE_LIBNVTX", file, 1), 0);
    assert_int_equal(in_child(answered), 0);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges), cmocka_unit_test(none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
