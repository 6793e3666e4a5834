/* See env.h. Reads the table of core/env.def; keeps nothing but whether faults were told. */
#include "core/env.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include "core/log.h"
#include "core/text.h"

extern char **environ;

typedef struct variable {
    const char *name;
    enum { CHECK_ANY, CHECK_FOLDER, CHECK_NUMBER, CHECK_WORDS, CHECK_TOPICS } check;
    uint64_t low, high;
    const char *words; /* with commas between them */
    const char *accepted;
} variable;

#define ANY .check = CHECK_ANY
#define FOLDER .check = CHECK_FOLDER
#define TOPICS .check = CHECK_TOPICS, .words = RP__LOG_NAMES ", all"
#define NUMBER(l, h) .check = CHECK_NUMBER, .low = (l), .high = (h)
#define WORDS(w) .check = CHECK_WORDS, .words = (w)
static const variable variables[] = {
#define RP_VARIABLE(variable_name, how, text) {.name = variable_name, how, .accepted = text},
#include "core/env.def"
#undef RP_VARIABLE
};
enum { N_VARIABLES = sizeof variables / sizeof *variables };

/* Of the project's own tests, which set them where this library runs. */
static const char *const of_tests[] = {"REPRISE_TEST_", "REPRISE_FUZZ", "REPRISE_CUDASIM_", "REPRISE_REAL_",
                                       "REPRISE_BENCH_"};

static const variable *row_of(const char *name, size_t length) {
    for (size_t i = 0; i < N_VARIABLES; i++) {
        if (!strncmp(variables[i].name, name, length) && !variables[i].name[length]) return &variables[i];
    }
    return NULL;
}

bool rp__env_ignored(void) {
#if defined(__linux__)
    return getauxval(AT_SECURE) != 0;
#else
    return getuid() != geteuid() || getgid() != getegid();
#endif
}

const char *rp__env(const char *name) {
    assert(strncmp(name, "REPRISE_", 8) != 0 || row_of(name, strlen(name)));
    const char *value = rp__env_ignored() ? NULL : getenv(name);
    return value && *value ? value : NULL;
}

static bool number_of(const variable *v, const char *value, uint64_t *out) {
    char *end;
    errno = 0;
    const int base = v->high > INT64_MAX ? 0 : 10; /* seeds may be written in any base */
    *out = strtoull(value, &end, base);
    return value[0] >= '0' && value[0] <= '9' && !*end && !errno && *out >= v->low && *out <= v->high;
}

static bool word_of(const char *words, const char *word, size_t length) {
    for (const char *p = words; *p; p += strspn(p, ", ")) {
        size_t n = strcspn(p, ",");
        if (n == length && !memcmp(p, word, n)) return true;
        p += n;
    }
    return false;
}

static bool understood(const variable *v, const char *value) {
    uint64_t n;
    switch (v->check) {
    case CHECK_ANY: return true;
    case CHECK_FOLDER: return *value == '/';
    case CHECK_NUMBER: return number_of(v, value, &n);
    case CHECK_WORDS: return word_of(v->words, value, strlen(value));
    case CHECK_TOPICS: break;
    }
    for (const char *p = value; *p; p += *p == ',') {
        size_t length = strcspn(p, ",");
        if (!word_of(v->words, p, length)) return false;
        p += length;
    }
    return true;
}

bool rp__env_understood(const char *name) {
    const char *value = rp__env(name);
    return !value || understood(row_of(name, strlen(name)), value);
}

long long rp__env_number(const char *name, long long otherwise) {
    const char *value = rp__env(name);
    uint64_t n;
    return value && number_of(row_of(name, strlen(name)), value, &n) ? (long long)n : otherwise;
}

size_t rp__env_faults(void (*tell)(void *ctx, const char *sentence), void *ctx) {
    size_t faults = 0;
    if (rp__env_ignored()) return 0;
    for (char *const *at = environ; at && *at; at++) {
        if (strncmp(*at, "REPRISE_", 8) != 0) continue;
        const size_t length = strcspn(*at, "=");
        const char *value = (*at)[length] ? *at + length + 1 : "";
        const variable *v = row_of(*at, length);
        bool test = false;
        for (size_t i = 0; i < sizeof of_tests / sizeof *of_tests; i++)
            test = test || !strncmp(*at, of_tests[i], strlen(of_tests[i]));
        if (test || (v && (!*value || understood(v, value)))) continue;
        char sentence[512], raw[64], name[128], text[128];
        (void)snprintf(raw, sizeof raw, "%.*s", (int)length, *at);
        rp__printable(name, sizeof name, raw);
        rp__printable(text, sizeof text, value);
        if (v)
            (void)snprintf(sentence, sizeof sentence, "%s=%s is not understood and has no effect: %s", name, text,
                           v->accepted);
        else
            (void)snprintf(sentence, sizeof sentence,
                           "%s is no variable of Reprise and has no effect: reprise(1) lists them", name);
        tell(ctx, sentence);
        faults++;
    }
    return faults;
}

static void log_fault(void *ctx, const char *sentence) {
    (void)ctx;
    rp__log(RP__LOG_ENVIRONMENT, "%s", sentence);
}
static void check(void) { (void)rp__env_faults(log_fault, NULL); }
void rp__env_check(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, check);
}
