/* The CPU as a device: its table of operations, its memory, and running one launch. Kernels come from src/kernel/cpu/. */
#include "device/cpu/cpu.h"

#include <string.h>
#include <sys/mman.h>

#include "core/alloc.h"
#include "device/cpu/memory.h"
#include "device/error_record.h"

enum { HUGE_PAGE = 2 << 20 };

typedef struct job {
    const rp__kernel *kernel;
    const uint64_t *words;
    rp__cpu_entry *entry;
} job;

static void run_slice(void *ctx, int64_t begin, int64_t end) {
    const job *j = ctx;
    j->entry(j->kernel, j->words, begin, end);
}

rp_status rp__cpu_run(const rp__launch *l) {
    rp__kernel *k = l->kernel;
    rp__cpu_entry *entry = atomic_load_explicit(&k->cpu, memory_order_acquire);
    if (RP__LIKELY(l->items <= l->grain)) { /* one slice: nothing to share */
        uint64_t before = rp__error_count();
        if (l->items > 0) entry(k, l->words, 0, l->items);
        return rp__status_since(before);
    }
    return rp__parallel(l->items, l->grain, run_slice, &(job){k, l->words, entry});
}

static rp_status segment_alloc(rp__device *d, size_t bytes, void **out) {
    (void)d;
    void *p = rp__alloc_denied()
                  ? MAP_FAILED
                  : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: the system gives no %zu bytes", bytes);
    /* Large tensors are read and written end to end: with 4 KB pages that costs a page walk every 64 cache lines. Only advice. */
    if (bytes >= HUGE_PAGE) (void)madvise(p, bytes, MADV_HUGEPAGE);
    *out = p;
    return RP_OK;
}

static void segment_free(rp__device *d, void *p, size_t bytes) {
    (void)d;
    munmap(p, bytes);
}

static uint64_t memory_left(rp__device *d, uint64_t reserved, char *limit, size_t n) {
    (void)d;
    uint64_t left = rp__cpu_memory_left("", limit, n), promised = rp__cpu_memory_promised("", reserved);
    return left > promised ? left - promised : 0;
}

static rp_status copy_in(rp__device *d, rp_stream *s, void *dst, const void *host, size_t bytes) {
    if (bytes == 0) return RP_OK;
    if (s->is_default) {
        memcpy(dst, host, bytes);
        return RP_OK;
    }
    return rp__cpu_enqueue_copy(d, s, dst, host, bytes);
}

static rp_status copy_out(rp__device *d, rp_stream *s, void *host, const void *src, size_t bytes) {
    RP_TRY(rp__cpu_stream_synchronize(d, s));
    if (bytes) memcpy(host, src, bytes);
    return RP_OK;
}

/* words: address, byte value, bytes in all. An item is a byte. */
static void fill_entry(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    (void)kernel;
    memset((char *)(uintptr_t)words[0] + begin, (int)words[1], (size_t)(end - begin));
}

static rp__kernel fill_kernel = {.kind = RP__KERNEL_CPU, .name = "fill", .cpu = fill_entry};

static rp_status fill(rp__device *d, rp_stream *s, void *dst, int byte, size_t bytes) {
    if (bytes == 0) return RP_OK;
    const uint64_t words[] = {(uint64_t)(uintptr_t)dst, (uint64_t)byte};
    return rp__cpu_launch(d, s,
                          &(rp__launch){.kernel = &fill_kernel,
                                        .words = words,
                                        .n_words = 2,
                                        .items = (int64_t)bytes,
                                        .grain = 1 << 20,
                                        .site = rp__site(),
                                        .op = "fill",
                                        .barrier = true});
}

/* Floor 2 (src/kernel/cpu/) defines them; here they are addresses only. */
extern const struct rp__loop_backend rp__cpu_loops;
extern const struct rp__library rp__cpu_library;

static const rp__device_ops ops = {
    .name = "cpu",
    .segment_alloc = segment_alloc,
    .segment_free = segment_free,
    .memory_left = memory_left,
    .stream_create = rp__cpu_stream_create,
    .stream_destroy = rp__cpu_stream_destroy,
    .stream_synchronize = rp__cpu_stream_synchronize,
    .stream_query = rp__cpu_stream_query,
    .stream_wait_event = rp__cpu_stream_wait_event,
    .event_create = rp__cpu_event_create,
    .event_destroy = rp__cpu_event_destroy,
    .event_record = rp__cpu_event_record,
    .event_synchronize = rp__cpu_event_synchronize,
    .event_query = rp__cpu_event_query,
    .event_done = rp__cpu_event_done,
    .idle = rp__cpu_idle,
    .poll = rp__cpu_poll,
    .event_elapsed_ms = rp__cpu_event_elapsed_ms,
    .launch = rp__cpu_launch,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .fill = fill,
    .synchronize = rp__cpu_synchronize,
    .capture_begin = rp__cpu_capture_begin,
    .capture_end = rp__cpu_capture_end,
    .graph_new = rp__cpu_graph_new,
    .graph_add = rp__cpu_graph_add,
    .graph_instantiate = rp__cpu_graph_instantiate,
    .graph_choice_new = rp__cpu_graph_choice_new,
    .graph_choice_add = rp__cpu_graph_choice_add,
    .graph_launch = rp__cpu_graph_launch,
    .graph_set_words = rp__cpu_graph_set_words,
    .graph_nodes = rp__cpu_graph_nodes,
    .graph_node = rp__cpu_graph_node,
    .graph_free = rp__cpu_graph_free,
    .loops = &rp__cpu_loops,
    .library = &rp__cpu_library,
};

static rp__error_record errors;

rp__device rp__cpu_device = {
    .id = {RP_DEVICE_CPU, 0},
    .ops = &ops,
    .errors = &errors,
    .label = "cpu",
    .multiprocessors = 1,
    .slot = 0,
};
