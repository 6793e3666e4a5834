/* See compile.h. */
#include "doors/tvm/compile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/env.h"

extern char **environ;

/* Arguments: the model, the object to be, the target. */
static const char script[] = "import sys\n"
                             "import onnx, tvm\n"
                             "from tvm import relax\n"
                             "from tvm.relax.frontend.onnx import from_onnx\n"
                             "module = from_onnx(onnx.load(sys.argv[1]), keep_params_in_input=False)\n"
                             "module = relax.get_pipeline('zero')(module)\n"
                             "target = sys.argv[3]\n"
                             "if target.startswith('{'):\n"
                             "    import json\n"
                             "    target = json.loads(target)\n"
                             "tvm.compile(module, tvm.target.Target(target)).export_library(sys.argv[2])\n";

typedef enum place { MODEL, OBJECT, LOG, PLACES } place;
static const char *const names[PLACES] = {"model.onnx", "module.so", "log"};

typedef struct work {
    char folder[128], path[PLACES][160];
} work;

static rp_status begin(work *w) {
    const char *tmp = rp__env("TMPDIR");
    (void)snprintf(w->folder, sizeof w->folder, "%s/reprise-tvm-XXXXXX",
                   tmp && *tmp == '/' && strlen(tmp) < 80 ? tmp : "/tmp");
    if (!mkdtemp(w->folder))
        return rp__fail(RP_ERROR_COMPILE, "TVM: no folder for its compiler, %s: %s", w->folder, strerror(errno));
    const size_t folder = strlen(w->folder);
    for (int k = 0; k < PLACES; k++) {
        memcpy(w->path[k], w->folder, folder);
        (void)snprintf(w->path[k] + folder, sizeof w->path[k] - folder, "/%s", names[k]);
    }
    return RP_OK;
}

static void end(const work *w) {
    for (int k = 0; k < PLACES; k++) (void)unlink(w->path[k]);
    (void)rmdir(w->folder);
}

/* The last line of a text that is not empty. */
static void last_line(char *text, char *out, size_t bytes) {
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' ')) text[--n] = 0;
    const char *line = strrchr(text, '\n');
    rp__printable(out, bytes, line ? line + 1 : text);
}

static rp_status said(const work *w, const char *what) {
    char line[400] = "";
    size_t n;
    char *log = rp__disk_file_read(w->path[LOG], &n);
    if (log) last_line(log, line, sizeof line);
    rp__free(log);
    return rp__fail(RP_ERROR_COMPILE, "TVM's compiler %s%s%s", what, *line ? ": " : "", line);
}

static int start(const char *python, work *w, const char *target, pid_t *pid) {
    char *const argv[] = {(char *)(uintptr_t)python,
                          (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t)script,
                          w->path[MODEL],
                          w->path[OBJECT],
                          (char *)(uintptr_t)target,
                          NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none;
    (void)sigemptyset(&none);
    int e = posix_spawn_file_actions_init(&actions);
    if (e) return e;
    e = posix_spawnattr_init(&attr);
    if (e) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return e;
    }
    e = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    if (!e) e = posix_spawnattr_setsigmask(&attr, &none);
    if (!e) e = posix_spawnattr_setpgroup(&attr, 0);
    if (!e) e = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!e) e = posix_spawn_file_actions_addopen(&actions, 1, w->path[LOG], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (!e) e = posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (!e) e = posix_spawnp(pid, python, &actions, &attr, argv, environ);
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&actions);
    return e;
}

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static rp_status run(const char *python, work *w, const char *target, int seconds) {
    pid_t pid = 0, got = 0;
    int status = 0;
    const int e = start(python, w, target, &pid);
    if (e) return rp__fail(RP_ERROR_COMPILE, "TVM's compiler: %s cannot be started: %s", python, strerror(e));
    for (const double limit = now() + seconds; got == 0 || (got < 0 && errno == EINTR);) {
        got = waitpid(pid, &status, WNOHANG);
        if (got != 0) continue;
        if (now() > limit) {
            (void)kill(-pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            return rp__fail(RP_ERROR_COMPILE, "TVM's compiler took longer than %d s", seconds);
        }
        (void)nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    /* where the program waits for every child itself, the object shows how it ended */
    return got == pid && !(WIFEXITED(status) && WEXITSTATUS(status) == 0) ? said(w, "fails") : RP_OK;
}

rp_status rp__tvm_compile(const char *python, const rp__text *model, const char *target, const char *identity,
                          int seconds, char path[RP__DISK_PATH]) {
    work w;
    char why[256] = "";
    rp__hash key = rp__hash_bytes(identity, strlen(identity), rp__hash_none());
    key = rp__hash_bytes(target, strlen(target), key);
    key = rp__hash_bytes(script, sizeof script, key);
    key = rp__hash_bytes(model->data, model->length, key);
    if (rp__disk_cache_file(key, "tvm.so", path)) return RP_OK;
    RP_TRY(begin(&w));
    rp_status status = RP_OK;
    if (!rp__disk_file_write(w.path[MODEL], model->data, model->length))
        status = rp__fail(RP_ERROR_COMPILE, "TVM: %s: %s", w.path[MODEL], strerror(errno));
    if (status == RP_OK) status = run(python, &w, target, seconds);
    size_t n = 0;
    void *object = status == RP_OK ? rp__disk_file_read(w.path[OBJECT], &n) : NULL;
    if (status == RP_OK && !object) status = said(&w, "wrote nothing");
    if (status == RP_OK &&
        (!rp__disk_cache_put(key, "tvm.so", object, n, why, sizeof why) || !rp__disk_cache_file(key, "tvm.so", path)))
        status = rp__fail(RP_ERROR_COMPILE, "TVM: its module cannot be kept: %s", *why ? why : "the cache lost it");
    rp__free(object);
    end(&w);
    return status;
}
