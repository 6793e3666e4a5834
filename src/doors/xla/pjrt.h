/* PJRT's C interface, as far as it is used: a table whose function pointers stand at fixed words, each called with the address of a
   struct that begins with its own size and a chain of extensions (none here). Fields are in the order of the interface; a size ends
   behind the last field. */
#ifndef RP_DOORS_XLA_PJRT_H
#define RP_DOORS_XLA_PJRT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rp__pjrt_object rp__pjrt_object; /* errors, clients, devices, executables, buffers, events */

typedef struct rp__pjrt_head {
    size_t bytes;
    void *extensions;
} rp__pjrt_head;

/* Words of the table. */
enum {
    RP__PJRT_BYTES = 0,
    RP__PJRT_EXTENSIONS = 1, /* a chain of rp__pjrt_extension */
    RP__PJRT_VERSION = 4,    /* two ints: major, minor */
    RP__PJRT_ERROR_DESTROY = 5,
    RP__PJRT_ERROR_MESSAGE = 6,
    RP__PJRT_INITIALIZE = 8,
    RP__PJRT_EVENT_DESTROY = 10,
    RP__PJRT_EVENT_AWAIT = 13,
    RP__PJRT_EVENT_ON_READY = 14,
    RP__PJRT_CLIENT_CREATE = 15,
    RP__PJRT_PLATFORM = 17,
    RP__PJRT_DEVICES = 21,
    RP__PJRT_COMPILE = 25,
    RP__PJRT_FROM_HOST = 27,
    RP__PJRT_EXECUTABLE_DESTROY = 55,
    RP__PJRT_EXECUTE = 60,
    RP__PJRT_BUFFER_DESTROY = 63,
    RP__PJRT_TO_HOST = 75,
    RP__PJRT_BUFFER_READY = 77,
    RP__PJRT_POINTER = 78,
    RP__PJRT_VIEW = 98,
    RP__PJRT_WORDS = 99 /* that a table must have */
};
enum { RP__PJRT_OLDEST_MINOR = 54 };

/* Calls with one object, and those that give one. */
typedef struct rp__pjrt_one {
    rp__pjrt_head head;
    rp__pjrt_object *object;
} rp__pjrt_one;
typedef struct rp__pjrt_text {
    rp__pjrt_head head;
    const rp__pjrt_object *of;
    const char *text; /* not ended by NUL */
    size_t length;
} rp__pjrt_text;
enum { RP__PJRT_OPTION_BOOL = 4 };
typedef struct rp__pjrt_option {
    rp__pjrt_head head;
    const char *name;
    size_t length;
    int type;
    union {
        const char *text;
        int64_t number;
        bool flag;
    } is;
    size_t n; /* elements of the value */
} rp__pjrt_option;
typedef struct rp__pjrt_client {
    rp__pjrt_head head;
    const rp__pjrt_option *options;
    size_t n_options;
    void *callbacks[4];
    rp__pjrt_object *client; /* out */
    void *more_callbacks[2];
} rp__pjrt_client;
typedef struct rp__pjrt_devices {
    rp__pjrt_head head;
    rp__pjrt_object *client;
    rp__pjrt_object *const *devices; /* out */
    size_t n;
} rp__pjrt_devices;
typedef struct rp__pjrt_program {
    rp__pjrt_head head;
    const char *code;
    size_t code_bytes;
    const char *format;
    size_t format_bytes;
} rp__pjrt_program;
typedef struct rp__pjrt_compile {
    rp__pjrt_head head;
    rp__pjrt_object *client;
    const rp__pjrt_program *program;
    const char *options;
    size_t options_bytes;
    rp__pjrt_object *executable; /* out */
} rp__pjrt_compile;
enum { RP__PJRT_DURING_CALL = 0, RP__PJRT_ZERO_COPY = 2, RP__PJRT_OURS_TO_WRITE = 3 };
typedef struct rp__pjrt_from_host {
    rp__pjrt_head head;
    rp__pjrt_object *client;
    const void *data;
    int type;
    const int64_t *size;
    size_t ndim;
    const int64_t *strides;
    size_t n_strides;
    int semantics;
    rp__pjrt_object *device, *memory;
    void *layout;
    rp__pjrt_object *done, *buffer; /* out */
} rp__pjrt_from_host;
/* A buffer over memory of the plug-in's device that is another's. */
typedef struct rp__pjrt_view {
    rp__pjrt_head head;
    rp__pjrt_object *client;
    void *data;
    const int64_t *size;
    size_t ndim;
    int type;
    void *layout; /* NULL: row-major */
    rp__pjrt_object *device;
    void (*gone)(void *data, void *ctx); /* some plug-ins call it without a look */
    void *ctx;
    intptr_t stream;         /* 0: what is there now; else what is there when the stream has come so far */
    rp__pjrt_object *buffer; /* out */
    rp__pjrt_object *memory;
} rp__pjrt_view;
typedef struct rp__pjrt_run_options {
    rp__pjrt_head head;
    void *none[13];
} rp__pjrt_run_options;
typedef struct rp__pjrt_execute {
    rp__pjrt_head head;
    rp__pjrt_object *executable;
    const rp__pjrt_run_options *options;
    rp__pjrt_object *const *const *arguments;
    size_t n_devices, n_arguments;
    rp__pjrt_object **const *results;
    rp__pjrt_object **done;
    rp__pjrt_object *device;
} rp__pjrt_execute;
typedef struct rp__pjrt_to_host {
    rp__pjrt_head head;
    rp__pjrt_object *buffer;
    void *layout, *to;
    size_t bytes;
    rp__pjrt_object *done; /* out */
} rp__pjrt_to_host;
typedef struct rp__pjrt_pointer {
    rp__pjrt_head head;
    rp__pjrt_object *buffer;
    uintptr_t pointer; /* out */
} rp__pjrt_pointer;

typedef struct rp__pjrt_ready {
    rp__pjrt_head head;
    rp__pjrt_object *buffer;
    rp__pjrt_object *event; /* out */
} rp__pjrt_ready;
typedef struct rp__pjrt_on_ready {
    rp__pjrt_head head;
    rp__pjrt_object *event;
    void (*call)(rp__pjrt_object *error, void *ctx); /* the error, or NULL, is its own */
    void *ctx;
} rp__pjrt_on_ready;

typedef rp__pjrt_object *rp__pjrt_call(void *arguments); /* an error, or NULL */

/* What plug-ins of GPUs have beside the table: order on streams. The arguments' structs begin with their size alone. */
enum { RP__PJRT_EXTENSION_STREAM = 3 };
typedef struct rp__pjrt_extension {
    size_t bytes;
    int type;
    const struct rp__pjrt_extension *next;
    /* of RP__PJRT_EXTENSION_STREAM: a stream that views may be defined on; and one waits until a buffer is computed */
    rp__pjrt_call *stream_of, *wait_on;
} rp__pjrt_extension;
typedef struct rp__pjrt_stream_of {
    size_t bytes;
    rp__pjrt_object *device;
    intptr_t stream; /* out */
} rp__pjrt_stream_of;
typedef struct rp__pjrt_wait_on {
    size_t bytes;
    intptr_t stream;
    rp__pjrt_object *buffer;
} rp__pjrt_wait_on;

#endif
