/* The calling thread's launch buffer: where bind writes the words and slots of the launch that is being made. One a thread,
   allocated at its first launch, freed with the thread. */
#include "core/alloc.h"
#include "device/generator.h"
#include "kernel/loop.h"

static _Thread_local rp__launch_buffer *buffer;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool key_made;

static void buffer_free(void *p) {
    buffer = NULL;
    rp__free(p);
}

static void make_key(void) { key_made = pthread_key_create(&key, buffer_free) == 0; }

rp__launch_buffer *rp__launch_buffer_get(void) {
    if (RP__LIKELY(buffer != NULL)) return buffer;
    pthread_once(&once, make_key);
    rp__launch_buffer *b = key_made ? rp__alloc(sizeof *b) : NULL;
    if (!b || pthread_setspecific(key, b)) {
        rp__free(b);
        RP__OOM("a thread's launch buffer");
        return NULL;
    }
    buffer = b;
    return b;
}
