/* Devices: the seam between Reprise and a machine that runs launches. src/device/cpu/ and src/device/cuda/ implement
   rp__device_ops; everything above talks to rp__device, rp__stream, rp__launch and rp__devgraph only. */
#ifndef RP_DEVICE_DEVICE_H
#define RP_DEVICE_DEVICE_H

#include "core/error.h"
#include "core/handle.h"
#include "core/hash.h"
#include "core/thread.h"
#include "device/launch.h"

typedef struct rp__device rp__device;
typedef struct rp__block rp__block;       /* a piece of device memory from the caching allocator (allocator.h) */
typedef struct rp__devgraph rp__devgraph; /* an executable graph of launches */

/* What a device must provide. All functions return a status and set the sticky error. Handles are the device's own. */
typedef struct rp__device_ops {
    const char *name; /* "cpu", "cuda" */

    /* segments for the caching allocator: large, rarely called */
    rp_status (*segment_alloc)(rp__device *d, size_t bytes, void **out);
    void (*segment_free)(rp__device *d, void *p, size_t bytes);
    /* Bytes that it can still give, with `reserved` bytes of segments handed out; *limit (n bytes) names what sets the number.
       NULL: segment_alloc refuses what is not there; else a segment above it is not asked for. */
    uint64_t (*memory_left)(rp__device *d, uint64_t reserved, char *limit, size_t n);

    /* streams: `native` is the device's handle (CUstream; queue of the CPU device) */
    rp_status (*stream_create)(rp__device *d, rp_stream *s);
    void (*stream_destroy)(rp__device *d, rp_stream *s);
    rp_status (*stream_synchronize)(rp__device *d, rp_stream *s);
    bool (*stream_query)(rp__device *d, rp_stream *s);
    rp_status (*stream_wait_event)(rp__device *d, rp_stream *s, rp_event *e);
    rp_status (*event_create)(rp__device *d, rp_event *e);
    void (*event_destroy)(rp__device *d, rp_event *e);
    rp_status (*event_record)(rp__device *d, rp_event *e, rp_stream *s);
    rp_status (*event_synchronize)(rp__device *d, rp_event *e);
    bool (*event_query)(rp__device *d, rp_event *e);
    /* For devices whose work runs in threads of the host that wait for it, or ask; else NULL. event_done and idle answer under
       any lock, and run nothing; poll, under none, runs a little of the work that event_done was asked about. */
    bool (*event_done)(rp__device *d, rp_event *e);
    bool (*idle)(rp__device *d);
    void (*poll)(rp__device *d);
    double (*event_elapsed_ms)(rp__device *d, rp_event *start, rp_event *end);

    /* work */
    rp_status (*launch)(rp__device *d, rp_stream *s, const rp__launch *launch);
    rp_status (*copy_in)(rp__device *d, rp_stream *s, void *dst, const void *host,
                         size_t bytes); /* host bytes may change after return */
    rp_status (*copy_out)(rp__device *d, rp_stream *s, void *host, const void *src, size_t bytes); /* synchronises s */
    rp_status (*fill)(rp__device *d, rp_stream *s, void *dst, int byte, size_t bytes);
    /* Page-locked memory of the host, and copies from and to it that go on behind the call: until s has done them, their memory
       stays. NULL, all of them: the device reads the host's memory as it is. */
    rp_status (*host_alloc)(rp__device *d, size_t bytes, void **out);
    void (*host_free)(rp__device *d, void *p);
    bool (*host_is_pinned)(rp__device *d, const void *p);
    rp_status (*copy_in_later)(rp__device *d, rp_stream *s, void *dst, const void *host, size_t bytes);
    rp_status (*copy_out_later)(rp__device *d, rp_stream *s, void *host, const void *src, size_t bytes);
    rp_status (*synchronize)(rp__device *d);

    /* capture: between begin and end the stream records instead of running; launches go through launch() above */
    rp_status (*capture_begin)(rp__device *d, rp_stream *s, rp_capture_mode mode);
    rp_status (*capture_end)(rp__device *d, rp_stream *s,
                             rp__devgraph **out); /* `out` template, not instantiated; NULL on failure */

    /* Adopted streams: the number of the capture that somebody else began on s, 0: none; and notes the launches of s from now on, in
       s->capture->native, for as long as the process lives. NULL: the device has no adopted streams. */
    rp_status (*capture_of_others)(rp__device *d, rp_stream *s, uint64_t *id);
    rp_status (*capture_note_others)(rp__device *d, rp_stream *s);

    /* explicit graphs: nodes by launch record and dependency indices (edges from slots are the caller's to compute) */
    rp_status (*graph_new)(rp__device *d, rp__devgraph **out);
    rp_status (*graph_add)(rp__devgraph *g, const rp__launch *launch, const uint32_t *deps, size_t n_deps,
                           uint32_t *node);
    rp_status (*graph_instantiate)(rp__devgraph *g, rp_stream *upload_on);
    rp_status (*graph_launch)(rp__devgraph *g, rp_stream *s);
    rp_status (*graph_set_words)(rp__devgraph *g, uint32_t node,
                                 const uint64_t *words); /* takes effect at the next launch */
    /* Choices: nodes that run one of their bodies. graph_choice_new gives the handle of a decision, which a launch of
       RP__LIB_CHOOSE in g makes (its first word); graph_choice_add the node that obeys it, after deps: of a loop, bodies[0] runs
       and the decision is looked at again while it is 1; else bodies[0] runs if it is 1, bodies[1] (if two) if it is 0. Bodies
       belong to the graph: filled before it is instantiated, instantiated and freed with it; their nodes are changed by
       graph_set_words. RP_ERROR_UNAVAILABLE: graphs of this device have no such nodes. */
    rp_status (*graph_choice_new)(rp__devgraph *g, bool two, uint64_t *handle);
    rp_status (*graph_choice_add)(rp__devgraph *g, uint64_t handle, bool loop, bool two, const uint32_t *deps,
                                  size_t n_deps, uint32_t *node, rp__devgraph *bodies[2]);
    size_t (*graph_nodes)(const rp__devgraph *g);
    /* *count goes up and down with the executables of g, of which a launch takes one; it outlives g. NULL: a graph is what is
       launched. */
    void (*graph_count)(rp__devgraph *g, _Atomic uint64_t *count);
    const rp__launch *(*graph_node)(const rp__devgraph *g, uint32_t node); /* NULL: foreign node, not re-pointable */
    void (*graph_free)(rp__devgraph *g);

    /* kernels of the loop form (kernel/loop.h) and library ops (kernel/library.h): see there */
    const struct rp__loop_backend *loops;
    const struct rp__library *library;

    /* The kernel `entry` of a source that the user wrote for the device, borrowed: it lives as long as the process. It takes n
       parameters, a word each, of which it reads the low bytes[k]. op and source are constant strings (the same address: the same
       op). NULL: the device calls the user's function instead. */
    rp_status (*user_kernel)(rp__device *d, const char *op, const char *source, const char *entry, const uint8_t *bytes,
                             uint32_t n, rp__kernel **out);
} rp__device_ops;

struct rp__device {
    rp_device id;
    const rp__device_ops *ops;
    struct rp__allocator *allocator;
    rp_stream *default_stream;
    rp_generator *generator;         /* the default generator */
    struct rp__error_record *errors; /* where kernels report bad indices (error_record.h) */
    char label[96];                  /* "NVIDIA H200", "cpu (avx512, 2 threads)" */
    int multiprocessors;             /* CUDA: SMs; CPU: 1 */
    size_t shared_limit;             /* CUDA: opt-in bytes a block */
    int arch;                        /* CUDA: 90 for sm_90 */
    bool clusters;                   /* CUDA: blocks can read each other's shared memory */
    _Atomic(rp_status) lost;         /* RP_ERROR_DEVICE_LOST once the context died */
    void *native;
    unsigned slot; /* place in per-thread tables: 0 for the CPU, 1 + index for CUDA devices */
};
enum { RP__DEVICE_SLOTS = 65 };

/* The device, opened at first use; NULL and a sticky error when there is none. */
rp__device *rp__device_get(rp_device id);
rp__device *rp__device_next_open(rp__device *d); /* NULL: the first; devices that are in use */
static inline bool rp__device_equal(rp_device a, rp_device b) { return a.type == b.type && a.index == b.index; }
const char *rp__device_text(rp_device id, char buf[24]); /* "cuda:0" */

struct rp_stream {
    rp__handle handle;
    atomic_uint refs;
    rp__device *device;
    bool is_default;
    bool foreign; /* the program's, adopted: never destroyed here */
    void *native;
    /* Other threads ask whether the stream captures before they wait for it: written by rp__allocator_capture alone. */
    _Atomic(struct rp__capture *) capture; /* not NULL while capturing (capture.h) */
    _Atomic(rp_pool *) route;              /* where its allocations come from; NULL: the default pool (allocator.h) */
    uint64_t id;
    rp_stream *given_up_next; /* of the allocator, under its lock: references that it has given up */
    unsigned given_up;
    rp_stream *next_foreign; /* adopted streams of all devices (device.c) */
};
struct rp_event {
    rp__handle handle;
    rp__device *device;
    bool timing, recorded, captured; /* captured: it was last recorded in a capture */
    void *native;
};
/* The host has waited for work of d: deleters that waited for it run, and the errors that its kernels found are told. */
rp_status rp__device_waited(rp__device *d);
rp_stream *rp__current_stream(rp__device *d); /* never NULL */
rp_stream *rp__stream_retain(rp_stream *s);
void rp__stream_drop(rp_stream *s); /* a reference of the library; NULL is nothing */
rp_status rp__stream_follow(rp_stream *s,
                            rp_stream *before); /* what s is given from now on runs behind what `before` has */
rp_stream *rp__stream_new(rp__device *d);       /* for the library's own use: programs meet it in captures alone */
bool rp__several_streams(
    void); /* has the program made a stream? until then nothing needs to be ordered across streams */

/* A device is made complete (default stream, allocator, generator) by its owner: fills what `ops`, `id` and `native` allow.
   On failure everything made is undone. */
rp_status rp__device_open(rp__device *d);
/* How src/device/cuda/ comes in: the machine's CUDA devices, static or allocated once, not yet opened. Called once, when a
   CUDA device is first asked for. Their absence is not an error: *n = 0 and *why says the reason (constant or static text). */
rp_status rp__cuda_devices(rp__device **out, size_t *n, const char **why);
extern rp__device rp__cpu_device; /* src/device/cpu/ */

/* rp__current_stream of the CPU, once it is open, inline. */
extern RP__TLS_FAST rp_stream *rp__current_cpu; /* device.c alone writes it */
static inline rp_stream *rp__current_cpu_stream(void) {
    return RP__UNLIKELY(rp__current_cpu != NULL) ? rp__current_cpu : rp__cpu_device.default_stream;
}
/* Would a launch on s do no more than run, in this thread, before rp__launch_on returns? Then the backend that made it may run it
   without writing a record that nobody reads: a tiny op costs less than its record. */
static inline bool rp__launch_runs_at_once(const rp_stream *s) {
    return RP__LIKELY(!rp__launch_recorder_now) && s->is_default && s->device->id.type == RP_DEVICE_CPU;
}

/* rp_set_float32_matmul_precision, rp_set_float32_conv_precision: what products and convolutions of f32 may do with their factors. */
typedef enum rp__float32_precision {
    RP__FLOAT32_HIGHEST,
    RP__FLOAT32_HIGH,
    RP__FLOAT32_MEDIUM,
    RP__FLOAT32_BF16X3
} rp__float32_precision;
/* Called before a switch of the process changes while this thread traces; floor 5 installs it: what is recorded already goes by the
   switch as it was. Unless it returns RP_OK the switch stays. */
extern rp_status (*rp__switch_hook)(void);
rp__float32_precision rp__float32_matmul_precision(void);
rp__float32_precision rp__float32_conv_precision(void); /* HIGHEST or HIGH */
/* Both as one number below 16: what is compiled under one setting is not run under another. */
static inline uint64_t rp__float32_precisions(void) {
    return (uint64_t)rp__float32_matmul_precision() | (uint64_t)rp__float32_conv_precision() << 2;
}

#endif
