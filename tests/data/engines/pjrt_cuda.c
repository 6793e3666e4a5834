/* A plug-in that says it is one of CUDA (tests/test_doors.c): PLAIN, that of a CPU, to which the memory of an emulated GPU is as good as
   any. STREAMS is how it orders runs with streams: 0 not at all; 1 as XLA does; 2 it takes a stream of a view and does not look at it;
   3 it cannot make a stream wait. What it was asked is counted. While pjrt_late is set, runs fail when they are done, and while pjrt_silent is,
   they have no event; pjrt_short, once set, makes runs fail until a buffer is given back behind such a failure. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "doors/xla/pjrt.h"

int pjrt_views_on_streams, pjrt_waits_on_streams, pjrt_host_waits, pjrt_late, pjrt_silent, pjrt_short;

static rp__pjrt_call *words[512], *plain[512];
static void *theirs; /* the one stream that views may be defined on */

static void *of_cuda(const char *name) { return dlsym(dlopen(getenv("REPRISE_LIBCUDA"), RTLD_NOW), name); }

static rp__pjrt_object *an_error(void) {
    rp__pjrt_pointer none = {.head = {1}}; /* a struct of one byte */
    return plain[RP__PJRT_POINTER](&none);
}

static rp__pjrt_object *platform(void *arguments) {
    rp__pjrt_text *a = arguments;
    a->text = "cuda";
    a->length = 4;
    return NULL;
}

static rp__pjrt_object *await(void *arguments) {
    pjrt_host_waits++;
    return plain[RP__PJRT_EVENT_AWAIT](arguments);
}

static rp__pjrt_object *on_ready(void *arguments) {
    rp__pjrt_on_ready *a = arguments;
    if (!pjrt_late) return plain[RP__PJRT_EVENT_ON_READY](a);
    a->call(an_error(), a->ctx);
    return NULL;
}

static rp__pjrt_object *view(void *arguments) {
    rp__pjrt_view *a = arguments, plainly = *a;
    if (!a->stream) return plain[RP__PJRT_VIEW](a);
    pjrt_views_on_streams++;
    if (STREAMS != 2 && a->stream != (intptr_t)theirs) return an_error();
    int (*synchronize)(void *) = (int (*)(void *))of_cuda("cuStreamSynchronize");
    if (STREAMS != 2 && synchronize(theirs) != 0) abort();
    plainly.stream = 0;
    rp__pjrt_object *error = plain[RP__PJRT_VIEW](&plainly);
    a->buffer = plainly.buffer;
    return error;
}

static rp__pjrt_object *stream_of(void *arguments) {
    rp__pjrt_stream_of *a = arguments;
    int (*create)(void **, unsigned) = (int (*)(void **, unsigned))of_cuda("cuStreamCreate");
    if (!theirs && create(&theirs, 1) != 0) abort();
    a->stream = (intptr_t)theirs;
    return NULL;
}

static rp__pjrt_object *wait_on(void *arguments) {
    const rp__pjrt_wait_on *a = arguments;
    rp__pjrt_ready ready = {.head = {sizeof ready}, .buffer = a->buffer};
    if (STREAMS == 3) return an_error();
    pjrt_waits_on_streams++;
    rp__pjrt_object *error = plain[RP__PJRT_BUFFER_READY](&ready);
    rp__pjrt_one one = {.head = {sizeof one}, .object = ready.event};
    if (!error) error = plain[RP__PJRT_EVENT_AWAIT](&one);
    if (ready.event) (void)plain[RP__PJRT_EVENT_DESTROY](&one);
    return error;
}

static bool lacks; /* a run failed for want of memory */

static rp__pjrt_object *execute(void *arguments) {
    rp__pjrt_execute *a = arguments;
    if (pjrt_short) {
        lacks = true;
        return an_error();
    }
    rp__pjrt_object *error = plain[RP__PJRT_EXECUTE](a);
    if (!error && pjrt_silent) {
        rp__pjrt_one one = {.head = {sizeof one}, .object = a->done[0]};
        (void)plain[RP__PJRT_EVENT_DESTROY](&one);
        a->done[0] = NULL;
    }
    return error;
}

static rp__pjrt_object *gone(void *arguments) {
    if (lacks) pjrt_short = lacks = 0;
    return plain[RP__PJRT_BUFFER_DESTROY](arguments);
}

static const rp__pjrt_extension stream = {sizeof stream, RP__PJRT_EXTENSION_STREAM, NULL, stream_of, wait_on},
                                first = {24, 0, &stream, NULL, NULL};

void *GetPjrtApi(void) {
    void *library = dlopen(PLAIN, RTLD_NOW);
    void *(*table_of)(void) = (void *(*)(void))dlsym(library, "GetPjrtApi");
    void *table = table_of();
    memcpy(plain, table, *(size_t *)table);
    memcpy(words, plain, sizeof words);
    const void *extensions = STREAMS ? &first : NULL;
    memcpy(&words[RP__PJRT_EXTENSIONS], &extensions, sizeof extensions);
    words[RP__PJRT_PLATFORM] = platform;
    words[RP__PJRT_VIEW] = view;
    words[RP__PJRT_EVENT_AWAIT] = await;
    words[RP__PJRT_EVENT_ON_READY] = on_ready;
    words[RP__PJRT_EXECUTE] = execute;
    words[RP__PJRT_BUFFER_DESTROY] = gone;
    return words;
}
