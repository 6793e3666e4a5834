/* The emulated NVRTC: CUDA C of the common subset to a shared object, by the system's C compiler. The source is
 * rewritten as little as possible: the lines from rp-prelude begin to rp-prelude end become the emulator's prelude;
 * extern "C" goes; __shared__ variables get a section of their kernel; extern __shared__ arrays become pointers. A
 * table of the kernels with a wrapper and the size of each parameter is appended, so sizes come from the compiler.
 * A short text is compiled by tcc, where there is one, before the system's compiler would have begun; what tcc refuses,
 * and long texts, whose kernels run for longer than they compile, are the system's compiler's.
 * Compiled objects are kept in CUDASIM_CACHE (by default a folder of this process, removed at exit) under the hash of
 * source, options and compiler. REPRISE_REAL_NVRTC names NVIDIA's library: what is compiled here is given to it as it
 * came, once a hash, and what it refuses is refused; REPRISE_REAL_NVRTC_EVERY=n gives it one text of n, told by the hash,
 * and the first of each family, whose kernels have the same name up to a hash or else to its last number. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "device/cuda/cuda_api.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cudasim.h"
#include "image.h"
#include "runtime.h"

#define EXPORT __attribute__((visibility("default")))
#define RP__NVRTC_FN(need, name, symbol, ret, args) EXPORT ret symbol args;
#include "device/cuda/libnvrtc.def"
#undef RP__NVRTC_FN

/* Embedded by the build. */
extern const char rp__embed_runtime_h[];
extern const char rp__embed_prelude_h[];
extern char **environ;

struct _nvrtcProgram {
    char *source;
    char *log;
    unsigned char *image;
    size_t image_bytes;
};

/* ---- Text ---- */

typedef struct text {
    char *p;
    size_t n, cap;
    bool failed;
} text;

static void put(text *t, const char *s, size_t n) {
    if (t->failed) {
        return;
    }
    if (t->n + n + 1 > t->cap) {
        size_t cap = (t->n + n + 1) * 2;
        char *p = realloc(t->p, cap);
        if (!p) {
            t->failed = true;
            return;
        }
        t->p = p;
        t->cap = cap;
    }
    memcpy(t->p + t->n, s, n);
    t->n += n;
    t->p[t->n] = '\0';
}

static void puts_to(text *t, const char *s) { put(t, s, strlen(s)); }

#define MAX_KERNELS 1024
#define MAX_PARAMS 64

typedef struct kernel {
    char name[128];
    char bounds[64];
    char *params[MAX_PARAMS]; /* each as written, for a struct member */
    unsigned int n_params;
} kernel;

typedef struct rewriter {
    const char *body; /* of the source, behind the prelude */
    const char *at;
    text out;
    kernel *kernels;
    unsigned int n_kernels;
    bool shared_outside; /* a __shared__ variable of a device function: one section for all kernels */
    char error[256];
} rewriter;

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

static bool is_word(const char *p, const char *start, const char *word) {
    size_t n = strlen(word);
    return strncmp(p, word, n) == 0 && !word_char(p[n]) && (p == start || !word_char(p[-1]));
}

static const char *skip_space(const char *p) {
    while (isspace((unsigned char)*p)) {
        p++;
    }
    return p;
}

/* Behind a string, a character constant or a comment that starts at p; p itself when none does. */
static const char *skip_inert(const char *p) {
    if (p[0] == '/' && p[1] == '*') {
        const char *end = strstr(p + 2, "*/");
        return end ? end + 2 : p + strlen(p);
    }
    if (p[0] == '/' && p[1] == '/') {
        return p + strcspn(p, "\n");
    }
    if (*p == '"' || *p == '\'') {
        char quote = *p++;
        while (*p && *p != quote) {
            p += *p == '\\' && p[1] ? 2 : 1;
        }
        return *p ? p + 1 : p;
    }
    return p;
}

/* The bracket that closes the one at p. */
static const char *closing(const char *p, char open, char close) {
    int depth = 0;
    while (*p) {
        const char *q = skip_inert(p);
        if (q != p) {
            p = q;
            continue;
        }
        depth += *p == open;
        depth -= *p == close;
        if (depth == 0) {
            return p;
        }
        p++;
    }
    return NULL;
}

static bool add_param(kernel *k, const char *p, size_t n) {
    while (n && isspace((unsigned char)*p)) {
        p++;
        n--;
    }
    while (n && isspace((unsigned char)p[n - 1])) {
        n--;
    }
    if (n == 0 || (n == 4 && strncmp(p, "void", 4) == 0)) {
        return true;
    }
    if (k->n_params == MAX_PARAMS) {
        return false;
    }
    k->params[k->n_params] = strndup(p, n);
    return k->params[k->n_params++] != NULL;
}

/* At `__global__`: reads attributes, name and parameters. Returns the place of the body's or the declaration's start.
 * */
static const char *read_kernel(rewriter *r, const char *p, kernel *k) {
    memset(k, 0, sizeof *k);
    const char *name = NULL;
    size_t name_n = 0;
    for (;;) {
        p = skip_space(p);
        const char *q = skip_inert(p);
        if (q != p) {
            p = q;
        } else if (word_char(*p)) {
            name = p;
            while (word_char(*p)) {
                p++;
            }
            name_n = (size_t)(p - name);
            const char *open = skip_space(p);
            if (*open != '(') {
                continue;
            }
            const char *close = closing(open, '(', ')');
            if (!close) {
                break;
            }
            if (name_n == 17 && strncmp(name, "__launch_bounds__", 17) == 0) {
                size_t n = strcspn(open + 1, ",)");
                snprintf(k->bounds, sizeof k->bounds, "%.*s", (int)n, open + 1);
                p = close + 1;
                continue;
            }
            snprintf(k->name, sizeof k->name, "%.*s", (int)name_n, name);
            const char *start = open + 1;
            int depth = 0;
            for (const char *c = start; c <= close; c++) {
                depth += *c == '(';
                depth -= *c == ')' && c < close;
                if ((*c == ',' && depth == 0) || c == close) {
                    if (!add_param(k, start, (size_t)(c - start))) {
                        snprintf(r->error, sizeof r->error, "error: kernel %s has too many parameters", k->name);
                        return NULL;
                    }
                    start = c + 1;
                }
            }
            return close + 1;
        } else if (*p == '*') {
            p++;
        } else {
            break;
        }
    }
    snprintf(r->error, sizeof r->error, "error: cannot read the kernel after __global__");
    return NULL;
}

static void line_directive(rewriter *r, const char *start) {
    unsigned int line = 1;
    for (const char *c = start; c < r->at; c++) {
        line += *c == '\n';
    }
    char s[64];
    snprintf(s, sizeof s, "\n#line %u\n", line);
    puts_to(&r->out, s);
}

/* `extern __shared__ type name[];` at p (the type): a pointer inside a function, a macro at file scope. */
static const char *dynamic_shared(rewriter *r, const char *p, const char *start, bool in_function) {
    const char *end = strchr(p, ';'), *bracket = end ? memchr(p, '[', (size_t)(end - p)) : NULL;
    if (!bracket) {
        snprintf(r->error, sizeof r->error, "error: extern __shared__ must declare an array");
        return NULL;
    }
    const char *name_end = bracket;
    while (name_end > p && isspace((unsigned char)name_end[-1])) {
        name_end--;
    }
    const char *name = name_end;
    while (name > p && word_char(name[-1])) {
        name--;
    }
    const char *type = skip_space(p);
    if (strncmp(type, "__align__", 9) == 0) { /* dynamic shared memory starts at a multiple of 16 */
        type = skip_space(closing(strchr(type, '('), '(', ')') + 1);
    }
    int type_n = (int)(name - type), name_n = (int)(name_end - name);
    char s[512];
    if (in_function) {
        snprintf(s, sizeof s, "%.*s *const %.*s = (%.*s *)cudasim_rt->self->dynamic_shared", type_n, type, name_n, name,
                 type_n, type);
        puts_to(&r->out, s);
        return end;
    }
    snprintf(s, sizeof s, "\n#define %.*s ((%.*s *)cudasim_rt->self->dynamic_shared)\n", name_n, name, type_n, type);
    puts_to(&r->out, s);
    r->at = end + 1;
    line_directive(r, start);
    return end + 1;
}

static bool rewrite(rewriter *r, const char *source) {
    const char *begin = strstr(source, "/* rp-prelude begin */"), *end = strstr(source, "/* rp-prelude end */");
    const char *body = source;
    puts_to(&r->out, "#line 1 \"cudasim-runtime\"\n");
    puts_to(&r->out, rp__embed_runtime_h);
    puts_to(&r->out, "#line 1 \"cudasim-prelude\"\n");
    puts_to(&r->out, rp__embed_prelude_h);
    if (begin && end && end > begin) {
        put(&r->out, source, (size_t)(begin - source));
        body = end + strlen("/* rp-prelude end */");
    }
    r->body = r->at = body;
    puts_to(&r->out, "\n#line 1 \"kernels.cu\"\n");
    line_directive(r, source);
    int depth = 0, kernel_depth = -1;
    unsigned int inside = 0; /* number of the kernel whose body this is, from 1 */
    bool expects_body = false;
    const char *p = body;
    while (*p) {
        const char *q = skip_inert(p);
        if (q != p) {
            put(&r->out, p, (size_t)(q - p));
            p = q;
            continue;
        }
        if (is_word(p, body, "extern")) {
            const char *after = skip_space(p + 6);
            if (strncmp(after, "\"C\"", 3) == 0) {
                const char *open = skip_space(after + 3);
                if (*open == '{') {
                    snprintf(r->error, sizeof r->error,
                             "error: write extern \"C\" before each kernel instead of a block");
                    return false;
                }
                p = after + 3;
                continue;
            }
            if (is_word(after, body, "__shared__")) {
                p = dynamic_shared(r, after + 10, source, depth > 0);
                if (!p) {
                    return false;
                }
                continue;
            }
        }
        if (is_word(p, body, "_Pragma")) { /* of loops, which the system's compilers do not know */
            const char *after = closing(skip_space(p + 7), '(', ')');
            p = after ? after + 1 : p + 7;
            continue;
        }
        if (is_word(p, body, "__shared__")) {
            char s[128];
            if (!inside) {
                r->shared_outside = true;
            }
            snprintf(s, sizeof s, "static __attribute__((section(CUDASIM_SECTION(%u)))) ", inside);
            puts_to(&r->out, s);
            p += 10;
            continue;
        }
        if (is_word(p, body, "__global__") && depth == 0) {
            if (r->n_kernels == MAX_KERNELS) {
                snprintf(r->error, sizeof r->error, "error: more than %d kernels in a program", MAX_KERNELS);
                return false;
            }
            kernel *k = &r->kernels[r->n_kernels];
            const char *after = read_kernel(r, p + 10, k);
            if (!after) {
                return false;
            }
            if (*skip_space(after) == '{') {
                r->n_kernels++;
                expects_body = true;
            } else { /* a declaration */
                for (unsigned int i = 0; i < k->n_params; i++) {
                    free(k->params[i]);
                }
            }
            put(&r->out, p, (size_t)(after - p));
            p = after;
            continue;
        }
        if (*p == '{') {
            if (expects_body) {
                inside = r->n_kernels;
                kernel_depth = depth;
                expects_body = false;
            }
            depth++;
        } else if (*p == '}') {
            depth--;
            if (inside && depth == kernel_depth) {
                inside = 0;
            }
        }
        if (word_char(*p)) { /* whole words at once */
            q = p;
            while (word_char(*q)) {
                q++;
            }
        } else {
            q = p + 1;
        }
        put(&r->out, p, (size_t)(q - p));
        p = q;
    }
    return true;
}

/* The table that runtime.h describes. Sections exist only where variables do: hence weak. */
static void append_table(rewriter *r) {
    char s[1024];
    text *t = &r->out;
    puts_to(t, "\n#line 1 \"cudasim-table\"\n");
    for (unsigned int i = 0; i < r->n_kernels; i++) {
        const kernel *k = &r->kernels[i];
        unsigned int section = r->shared_outside ? 0 : i + 1;
        snprintf(s, sizeof s,
                 "extern unsigned char __start_cudasim_shared_%u[] __attribute__((weak, visibility(\"hidden\")));\n"
                 "extern unsigned char __stop_cudasim_shared_%u[] __attribute__((weak, visibility(\"hidden\")));\n"
                 "struct cudasim_arguments_%u {\n",
                 section, section, i);
        puts_to(t, s);
        for (unsigned int j = 0; j < k->n_params; j++) {
            puts_to(t, "    ");
            puts_to(t, k->params[j]);
            puts_to(t, ";\n");
        }
        snprintf(
            s, sizeof s,
            "    char cudasim_end[0];\n};\nstatic void cudasim_run_%u(const unsigned char *a) {\n    (void)a;\n    %s(",
            i, k->name);
        puts_to(t, s);
        char table[96];
        text offsets = {0};
        for (unsigned int j = 0; j < k->n_params; j++) {
            const char *param = k->params[j], *end = param + strlen(param);
            const char *name = end;
            while (name > param && word_char(name[-1])) {
                name--;
            }
            snprintf(s, sizeof s, "%s((const struct cudasim_arguments_%u *)a)->%s", j ? ", " : "", i, name);
            puts_to(t, s);
            snprintf(
                s, sizeof s,
                "{ __builtin_offsetof(struct cudasim_arguments_%u, %s), sizeof(((struct cudasim_arguments_%u *)0)->%s) }, ",
                i, name, i, name);
            puts_to(&offsets, s);
        }
        snprintf(table, sizeof table, "static const struct cudasim_param cudasim_params_%u[] = { ", i);
        puts_to(t, ");\n}\n");
        puts_to(t, table);
        puts_to(t, offsets.p ? offsets.p : "");
        puts_to(t, "{ 0, 0 } };\n");
        t->failed = t->failed || offsets.failed;
        free(offsets.p);
    }
    puts_to(t, "static const struct cudasim_kernel cudasim_kernels[] = {\n");
    for (unsigned int i = 0; i < r->n_kernels; i++) {
        const kernel *k = &r->kernels[i];
        unsigned int section = r->shared_outside ? 0 : i + 1;
        snprintf(
            s, sizeof s,
            "    { \"%s\", cudasim_run_%u, cudasim_params_%u, %u, (%s), __start_cudasim_shared_%u, __stop_cudasim_shared_%u },\n",
            k->name, i, i, k->n_params, k->bounds[0] ? k->bounds : "0", section, section);
        puts_to(t, s);
    }
    snprintf(
        s, sizeof s,
        "    { 0, 0, 0, 0, 0, 0, 0 } };\n__attribute__((visibility(\"default\"))) struct cudasim_module cudasim_module = { "
        "CUDASIM_ABI, %u, cudasim_kernels, &cudasim_runtime };\n",
        r->n_kernels);
    puts_to(t, s);
}

/* ---- The compiler and its cache ---- */

static pthread_mutex_t folder_lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[512];
static bool folder_is_ours;

static void remove_folder(void) {
    DIR *dir = folder_is_ours ? opendir(folder) : NULL;
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    if (dir) {
        closedir(dir);
        rmdir(folder);
    }
}

static bool cache_folder(char *path, size_t size) {
    pthread_mutex_lock(&folder_lock);
    if (!folder[0]) {
        const char *wanted = getenv("CUDASIM_CACHE"), *tmp = getenv("TMPDIR");
        if (wanted && *wanted) {
            snprintf(folder, sizeof folder, "%.400s", wanted);
            mkdir(folder, 0700);
        } else {
            snprintf(folder, sizeof folder, "%.400s/cudasim-nvrtc-XXXXXX", tmp && *tmp ? tmp : "/tmp");
            if (mkdtemp(folder)) {
                folder_is_ours = true;
                atexit(remove_folder);
            } else {
                folder[0] = '\0';
            }
        }
    }
    snprintf(path, size, "%s", folder);
    pthread_mutex_unlock(&folder_lock);
    return path[0] != '\0';
}

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n) {
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ b[i]) * 0x100000001b3u;
    }
    return h ^ h >> 29;
}

static char *read_file(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        return NULL;
    }
    text t = {0};
    char part[65536];
    size_t n;
    while ((n = fread(part, 1, sizeof part, f)) > 0) {
        put(&t, part, n);
    }
    bool bad = ferror(f) != 0;
    fclose(f);
    if (t.failed || bad || !t.p) {
        free(t.p);
        return NULL;
    }
    *bytes = t.n;
    return t.p;
}

static const char *compiler(void) {
    const char *cc = getenv("CUDASIM_CC");
    return cc && *cc ? cc : "cc";
}

/* Bytes behind the prelude, 12,000 of which are in every text. Templates of tiles are longer: they run for longer than
 * they compile. */
enum { SHORT_TEXT = 40000 };

/* A pointer among these members, outside of comments: '*' before a name. */
static bool has_pointer(const char *at, const char *end) {
    for (; at < end; at++) {
        if (at[0] == '/' && at[1] == '*') {
            const char *close = strstr(at + 2, "*/");
            at = close && close < end ? close + 1 : end;
        } else if (at[0] == '*' && (isalpha((unsigned char)at[1]) || at[1] == '_')) {
            return true;
        }
    }
    return false;
}

/* tcc 0.9.27 stores a returned struct of 12 bytes as 16, over what lies beside it. Is there a function that returns a
 * struct without a pointer, which would make its size a multiple of 8? Those aligned by themselves have a power of 2. */
static bool returns_odd_struct(const char *body) {
    static const char begin[] = "typedef struct {", function[] = "RP_FN ";
    for (const char *at = strstr(body, begin); at; at = strstr(at, begin)) {
        const char *members = at += sizeof begin - 1;
        for (int depth = 1; *at && depth; at++) {
            depth += (*at == '{') - (*at == '}');
        }
        if (has_pointer(members, at)) {
            continue;
        }
        at += strspn(at, " \n");
        size_t n = strcspn(at, ",; \n");
        for (const char *f = strstr(body, function); f; f = strstr(f, function)) {
            f += sizeof function - 1;
            if (strncmp(f, at, n) == 0 && f[n] == ' ') {
                return true;
            }
        }
    }
    return false;
}

static bool is_quick(const char *body) {
#ifdef __x86_64__
    const char *cc = getenv("CUDASIM_CC");
    return !(cc && *cc) && strnlen(body, SHORT_TEXT + 1) <= SHORT_TEXT && !returns_odd_struct(body);
#else /* what tcc makes for other machines has not been tried */
    (void)body;
    return false;
#endif
}

/* Runs a compiler, whose words go to the file log_path. 0: done, 1: it refuses the source, -1: it cannot be run. */
static int run_compiler(const char *const *arguments, const char *log_path) {
    pid_t pid;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log_path, 0x241 /* O_WRONLY|O_CREAT|O_TRUNC */, 0600);
    posix_spawn_file_actions_adddup2(&actions, 2, 1);
    int failed = posix_spawnp(&pid, arguments[0], &actions, NULL, (char *const *)(uintptr_t)arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        return -1;
    }
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

/* Compiles `source` to `object`; the compiler's words go to *log. 0: done, 1: the source is wrong, -1: the compiler
 * cannot run. */
static int compile(const char *source, const char *object, const char *log_path, bool quick, char **log) {
    const char *const tcc[] = {"tcc", "-shared", "-nostdlib", "-w", source, "-o", object, NULL};
    const char *const arguments[] = {compiler(),
                                     "-x",
                                     "c",
                                     "-std=gnu11",
                                     "-Og", /* half of the time that -O1 takes; kernels run as long */
                                     "-fPIC",
                                     "-pipe",
                                     "-shared",
                                     "-nostdlib", /* the process has libm: looking for it costs a third of the link */
                                     "-w",
                                     "-fno-math-errno",
                                     "-ffp-contract=off",
                                     "-fno-strict-aliasing",
                                     "-fvisibility=default",
                                     source,
                                     "-o",
                                     object,
                                     "-lgcc",
                                     NULL};
    if (quick && run_compiler(tcc, log_path) == 0) {
        return 0;
    }
    int result = run_compiler(arguments, log_path);
    size_t n;
    *log = result < 0 ? NULL : read_file(log_path, &n);
    return result;
}

/* ---- NVIDIA's own, where it is named: the emulator must not accept what it would not ---- */

static pthread_once_t real_once = PTHREAD_ONCE_INIT;
static struct {
    const char *path; /* NULL: not asked for */
    const char *why;  /* it is asked for and cannot be had; NULL: it is there */
    nvrtcResult (*create)(nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *);
    nvrtcResult (*compile)(nvrtcProgram, int, const char *const *);
    nvrtcResult (*log_size)(nvrtcProgram, size_t *);
    nvrtcResult (*log)(nvrtcProgram, char *);
    nvrtcResult (*destroy)(nvrtcProgram *);
} real;

static void mark(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) {
        close(file);
    }
}

/* How much of a kernel's name is that of its family: a hash ends it, wherever that stands. */
static int family_length(const char *name) {
    for (const char *p = strchr(name, '_'); p; p = strchr(p + 1, '_')) {
        size_t digits = strspn(p + 1, "0123456789abcdef");
        if (digits >= 12 && (p[1 + digits] == '_' || p[1 + digits] == '\0')) {
            return (int)(p - name);
        }
    }
    const char *number = strrchr(name, '_');
    return number ? (int)(number - name) : 0;
}

/* What its family leaves in the cache is `family`. */
static bool real_wanted(const char *family, uint64_t hash) {
    const char *path = getenv("REPRISE_REAL_NVRTC"), *every = getenv("REPRISE_REAL_NVRTC_EVERY");
    int n = every ? atoi(every) : 1;
    return path && *path && (n < 2 || hash % (unsigned int)n == 0 || access(family, F_OK));
}

static void real_open(void) {
    const char *path = getenv("REPRISE_REAL_NVRTC");
    if (!path || !*path) {
        return;
    }
    real.path = path;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    real.why = handle ? NULL : "it cannot be loaded";
    const struct {
        const char *name;
        void *at;
    } symbols[] = {{"nvrtcCreateProgram", &real.create},
                   {"nvrtcCompileProgram", &real.compile},
                   {"nvrtcGetProgramLogSize", &real.log_size},
                   {"nvrtcGetProgramLog", &real.log},
                   {"nvrtcDestroyProgram", &real.destroy}};
    for (size_t i = 0; handle && i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(handle, symbols[i].name);
        memcpy(symbols[i].at, &symbol, sizeof symbol); /* ISO C has no cast from an object to a function */
        real.why = symbol ? real.why : "it lacks a function";
    }
}

/* What NVIDIA's compiler says of the program if it refuses it, to be freed; NULL: nothing. */
static char *real_refuses(nvrtcProgram program, int n_options, const char *const *options) {
    pthread_once(&real_once, real_open);
    if (!real.path) {
        return NULL;
    }
    nvrtcProgram theirs = NULL;
    char *words = NULL;
    size_t n = 0;
    if (real.why || real.create(&theirs, program->source, "reprise.cu", 0, NULL, NULL)) {
        return asprintf(&words, "NVRTC of %s: %s\n", real.path, real.why ? real.why : "no program") < 0 ? NULL : words;
    }
    if (real.compile(theirs, n_options, options) && !real.log_size(theirs, &n)) {
        char *log = calloc(n + 1, 1);
        if (log) {
            real.log(theirs, log);
        }
        if (asprintf(&words, "NVRTC of %s refuses what the emulator accepts:\n%s\n", real.path, log ? log : "") < 0) {
            words = NULL;
        }
        free(log);
    }
    real.destroy(&theirs);
    return words;
}

/* `quick`: by tcc, where that can. `kernel_name`: of the first one. */
static nvrtcResult build(nvrtcProgram program, const text *source, uint64_t hash, bool quick, const char *kernel_name,
                         int n_options, const char *const *options) {
    char path[600], object[700], accepted[700], family[800], c_file[700], log_file[700], made[700];
    static unsigned int serial;
    if (!cache_folder(path, sizeof path)) {
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    snprintf(object, sizeof object, "%s/%016llx.so", path, (unsigned long long)hash);
    snprintf(accepted, sizeof accepted, "%s/%016llx.real", path, (unsigned long long)hash);
    snprintf(family, sizeof family, "%s/family-%.*s", path, family_length(kernel_name), kernel_name);
    size_t bytes = 0;
    char *data = read_file(object, &bytes);
    if (!data) {
        unsigned int mine = __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED);
        snprintf(c_file, sizeof c_file, "%s/%d-%u.c", path, (int)getpid(), mine);
        snprintf(log_file, sizeof log_file, "%s/%d-%u.log", path, (int)getpid(), mine);
        snprintf(made, sizeof made, "%s/%d-%u.so", path, (int)getpid(), mine);
        FILE *f = fopen(c_file, "wb");
        bool written = f && fwrite(source->p, 1, source->n, f) == source->n;
        written = f && fclose(f) == 0 && written;
        char *log = NULL;
        int result = written ? compile(c_file, made, log_file, quick, &log) : -1;
        if (result == 0 && rename(made, object) == 0) {
            data = read_file(object, &bytes);
        }
        if (!getenv("CUDASIM_KEEP")) {
            unlink(c_file);
        }
        unlink(log_file);
        if (log) {
            free(program->log);
            program->log = log;
        }
        if (result == 1) {
            return NVRTC_ERROR_COMPILATION;
        }
        if (!data) {
            return NVRTC_ERROR_INTERNAL_ERROR;
        }
    }
    if (access(accepted, F_OK) && real_wanted(family, hash)) {
        char *words = real_refuses(program, n_options, options);
        if (words) {
            free(program->log);
            free(data);
            program->log = words;
            return NVRTC_ERROR_COMPILATION;
        }
        mark(accepted);
        mark(family);
    }
    struct cudasim_image head = {.magic = "", .abi = CUDASIM_ABI, .hash = hash, .bytes = bytes};
    memcpy(head.magic, CUDASIM_MAGIC, sizeof head.magic);
    program->image_bytes = sizeof head + bytes;
    program->image = malloc(program->image_bytes);
    if (program->image) {
        memcpy(program->image, &head, sizeof head);
        memcpy(program->image + sizeof head, data, bytes);
    }
    free(data);
    return program->image ? NVRTC_SUCCESS : NVRTC_ERROR_OUT_OF_MEMORY;
}

/* ---- The API ---- */

const char *nvrtcGetErrorString(nvrtcResult result) {
    static const char *const names[] = {"NVRTC_SUCCESS",
                                        "NVRTC_ERROR_OUT_OF_MEMORY",
                                        "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                        "NVRTC_ERROR_INVALID_INPUT",
                                        "NVRTC_ERROR_INVALID_PROGRAM",
                                        "NVRTC_ERROR_INVALID_OPTION",
                                        "NVRTC_ERROR_COMPILATION",
                                        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"};
    return (unsigned int)result < 8               ? names[result]
           : result == NVRTC_ERROR_INTERNAL_ERROR ? "NVRTC_ERROR_INTERNAL_ERROR"
                                                  : "NVRTC_ERROR unknown";
}

/* The minor number is no NVIDIA release and changes with the emulator's prelude: whoever keeps compiled kernels by
 * version keeps these apart from real ones and drops them when the prelude changes. */
nvrtcResult nvrtcVersion(int *major, int *minor) {
    if (!major || !minor) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    uint64_t h = hash_bytes(CUDASIM_ABI, rp__embed_prelude_h, strlen(rp__embed_prelude_h));
    h = hash_bytes(h, rp__embed_runtime_h, strlen(rp__embed_runtime_h));
    const char *other = getenv("CUDASIM_NVRTC_VERSION"); /* another compiler, for what keeps its results */
    if (other) {
        h = hash_bytes(h, other, strlen(other));
    }
    *major = 13;
    *minor = 1000 + (int)(h % 1000000);
    return NVRTC_SUCCESS;
}

static const int architectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
#define N_ARCHITECTURES ((int)(sizeof architectures / sizeof architectures[0]))

nvrtcResult nvrtcGetNumSupportedArchs(int *n) {
    if (!n) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    *n = N_ARCHITECTURES;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int *archs) {
    if (!archs) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    memcpy(archs, architectures, sizeof architectures);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int n_headers,
                               const char *const *headers, const char *const *include_names) {
    (void)name, (void)headers, (void)include_names;
    if (!program || !source || n_headers != 0) { /* emitted sources include nothing */
        return NVRTC_ERROR_INVALID_INPUT;
    }
    nvrtcProgram p = calloc(1, sizeof *p);
    if (p) {
        p->source = strdup(source);
        p->log = strdup("");
    }
    if (!p || !p->source || !p->log) {
        nvrtcDestroyProgram(&p);
        return NVRTC_ERROR_OUT_OF_MEMORY;
    }
    *program = p;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    if (!program) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    if (*program) {
        free((*program)->source);
        free((*program)->log);
        free((*program)->image);
        free(*program);
    }
    *program = NULL;
    return NVRTC_SUCCESS;
}

/* Options are checked for their form: a misspelt one fails here as it would with NVIDIA's. */
static bool option_known(const char *option) {
    static const char *const known[] = {"-arch=",
                                        "--gpu-architecture=",
                                        "-default-device",
                                        "--device-as-default-execution-space",
                                        "-minimal",
                                        "--minimal",
                                        "--fmad=",
                                        "-fmad=",
                                        "-use_fast_math",
                                        "--use_fast_math",
                                        "-D",
                                        "--define-macro=",
                                        "-std=",
                                        "--std=",
                                        "-lineinfo",
                                        "--generate-line-info",
                                        "-w",
                                        "--disable-warnings",
                                        "--split-compile=",
                                        "-split-compile=",
                                        "-modify-stack-limit=",
                                        "--modify-stack-limit=",
                                        "--no-cache",
                                        "-no-cache",
                                        "-Ofast-compile=",
                                        "--Ofast-compile=",
                                        "--ftz=",
                                        "-ftz=",
                                        "--prec-div=",
                                        "-prec-div=",
                                        "--prec-sqrt=",
                                        "-prec-sqrt=",
                                        "--extra-device-vectorization",
                                        "-extra-device-vectorization",
                                        "--maxrregcount=",
                                        "-maxrregcount="};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t n = strlen(known[i]);
        bool open = known[i][n - 1] == '=' || strcmp(known[i], "-D") == 0;
        if (open ? strncmp(option, known[i], n) == 0 && option[n] : strcmp(option, known[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Compilations at this moment, and the most that there were. */
static struct {
    pthread_mutex_t lock;
    unsigned int now, most;
} compiling = {PTHREAD_MUTEX_INITIALIZER, 0, 0};

static void compiling_add(int by) {
    pthread_mutex_lock(&compiling.lock);
    compiling.now += (unsigned int)by;
    if (compiling.now > compiling.most) {
        compiling.most = compiling.now;
    }
    pthread_mutex_unlock(&compiling.lock);
}

unsigned int cudasim_compiling(void) {
    pthread_mutex_lock(&compiling.lock);
    unsigned int most = compiling.most;
    pthread_mutex_unlock(&compiling.lock);
    return most;
}

/* With CUDASIM_MEET=n a compilation waits until n have been under way at once, ten seconds at the most. */
static void compiling_meet(void) {
    const char *wanted = getenv("CUDASIM_MEET");
    for (int i = 0; wanted && i < 1000 && cudasim_compiling() < (unsigned int)atoi(wanted); i++) {
        usleep(10000);
    }
}

static nvrtcResult compile_program(nvrtcProgram program, int n_options, const char *const *options);

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int n_options, const char *const *options) {
    compiling_add(1);
    compiling_meet();
    nvrtcResult result = compile_program(program, n_options, options);
    compiling_add(-1);
    return result;
}

static nvrtcResult compile_program(nvrtcProgram program, int n_options, const char *const *options) {
    if (!program || n_options < 0 || (n_options && !options)) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    rewriter r = {0};
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, compiler(), strlen(compiler()));
    for (int i = 0; i < n_options; i++) {
        if (!option_known(options[i])) {
            char message[256];
            snprintf(message, sizeof message, "nvrtc: error: invalid value for option: %.200s\n", options[i]);
            free(program->log);
            program->log = strdup(message);
            return NVRTC_ERROR_INVALID_OPTION;
        }
        hash = hash_bytes(hash, options[i], strlen(options[i]) + 1);
        if (strncmp(options[i], "-D", 2) == 0) {
            const char *equals = strchr(options[i], '=');
            puts_to(&r.out, "#define ");
            put(&r.out, options[i] + 2, equals ? (size_t)(equals - options[i] - 2) : strlen(options[i] + 2));
            puts_to(&r.out, equals ? " " : " 1");
            puts_to(&r.out, equals ? equals + 1 : "");
            puts_to(&r.out, "\n");
        }
    }
    free(program->image);
    program->image = NULL;
    puts_to(&r.out, "#define CUDASIM_SECTION_NAME(n) \"cudasim_shared_\" #n\n");
    size_t hole = r.out.n; /* which section a variable is in is known at the end */
    puts_to(&r.out, "#define CUDASIM_SECTION(n) CUDASIM_SECTION_NAME(n)\n");
    r.kernels = calloc(MAX_KERNELS + 1, sizeof *r.kernels);
    nvrtcResult result = NVRTC_ERROR_OUT_OF_MEMORY;
    if (r.kernels && !rewrite(&r, program->source)) {
        free(program->log);
        program->log = strdup(r.error);
        result = NVRTC_ERROR_COMPILATION;
    } else if (r.kernels) {
        append_table(&r);
        if (r.shared_outside && !r.out.failed) {
            char *all = strstr(r.out.p + hole, "CUDASIM_SECTION_NAME(n)");
            memcpy(all, "CUDASIM_SECTION_NAME(0)", 23);
        }
        if (!r.out.failed) {
            hash = hash_bytes(hash, r.out.p, r.out.n);
            result = build(program, &r.out, hash, is_quick(r.body), r.kernels[0].name, n_options, options);
        }
    }
    for (unsigned int i = 0; r.kernels && i < r.n_kernels; i++) {
        for (unsigned int j = 0; j < r.kernels[i].n_params; j++) {
            free(r.kernels[i].params[j]);
        }
    }
    free(r.kernels);
    free(r.out.p);
    return result;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
    if (!program || !size) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    *size = program->image ? program->image_bytes : 0;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin) {
    if (!program || !cubin) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    if (!program->image) {
        return NVRTC_ERROR_INVALID_PROGRAM;
    }
    memcpy(cubin, program->image, program->image_bytes);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) { return nvrtcGetCUBINSize(program, size); }

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx) { return nvrtcGetCUBIN(program, ptx); }

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
    if (!program || !size) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    *size = strlen(program->log ? program->log : "") + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
    if (!program || !log) {
        return NVRTC_ERROR_INVALID_INPUT;
    }
    strcpy(log, program->log ? program->log : "");
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcSetFlowCallback(nvrtcProgram program, int (*callback)(void *, void *), void *payload) {
    (void)callback, (void)payload;
    return program ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_INPUT;
}
