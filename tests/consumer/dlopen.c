/* A program that knows nothing of Reprise when it starts: opens the library late, as a language binding does, uses it from
   several threads, closes it, and only then lets a thread end that used it. dlopen LIBRARY */
#include <dlfcn.h>
#include <pthread.h>
#include <reprise.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 8 };

static struct {
    const char *(*version)(void);
    rp_tensor *(*from_data)(const void *, const int64_t *, size_t, rp_dtype);
    rp_tensor *(*add)(rp_tensor *, rp_tensor *, const rp_add_options *);
    rp_status (*to_host)(rp_tensor *, void *, size_t);
    rp_status (*take)(void);
    const char *(*message)(void);
} rp;

static int find(void *library, const char *name, void *function, size_t bytes) {
    void *symbol = dlsym(library, name);
    if (!symbol) fprintf(stderr, "%s\n", dlerror());
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}
#define FIND(library, name, field) find(library, name, &rp.field, sizeof rp.field)

/* A result, and an error with its text, which this thread still holds when it ends. */
static void *use(void *unused) {
    float x[3] = {1, 2, 3}, y[3] = {0};
    (void)unused;
    rp_tensor *t = rp.from_data(x, RP_DIMS(3), RP_F32);
    if (rp.to_host(rp.add(t, t, NULL), y, sizeof y) != RP_OK || y[2] != 6) return "wrong sum";
    rp_tensor *odd = rp.from_data(x, RP_DIMS(2), RP_F32);
    rp.add(t, odd, NULL);
    if (!strstr(rp.message(), "add") || rp.take() != RP_ERROR_SHAPE) return "no error";
    rp.add(t, odd, NULL);
    return NULL;
}

static pthread_barrier_t closed;

static void *outlive(void *unused) {
    void *failed = use(unused);
    pthread_barrier_wait(&closed);
    pthread_barrier_wait(&closed);
    return failed;
}

int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "which library?");
        return 1;
    }
    if (!(FIND(library, "rp_version_string", version) && FIND(library, "rp_from_data", from_data) &&
          FIND(library, "rp_add", add) && FIND(library, "rp_to_host", to_host) &&
          FIND(library, "rp_error_take", take) && FIND(library, "rp_error_message", message)))
        return 1;
    pthread_t threads[THREADS + 1];
    void *failed = use(NULL), *each = NULL;
    pthread_barrier_init(&closed, NULL, 2);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, use, NULL);
    pthread_create(&threads[THREADS], NULL, outlive, NULL);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &each);
        if (each) failed = each;
    }
    pthread_barrier_wait(&closed);
    puts(rp.version());
    dlclose(library);
    pthread_barrier_wait(&closed);
    pthread_join(threads[THREADS], &each);
    if (each) failed = each;
    if (failed) fprintf(stderr, "%s\n", (const char *)failed);
    return failed != NULL;
}
