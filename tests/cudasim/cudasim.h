/* What tests may ask of the emulated driver beyond the CUDA API: dlsym these from the library that REPRISE_LIBCUDA
 * names. Environment: CUDASIM_SEED (order of everything unordered), CUDASIM_DEVICES (1), CUDASIM_MEMORY (bytes a
 * device, 8 GiB), CUDASIM_STRICT=1 (device memory is unreadable for the host outside the emulator),
 * CUDASIM_FAIL=n[:code] (the n-th call fails), CUDASIM_CACHE (folder of compiled kernels), CUDASIM_CC (the C compiler
 * of all texts), CUDASIM_MEET=n (a compilation waits for n at once), CUDASIM_NVRTC_VERSION (any text: another version of NVRTC),
 * CUDASIM_LEAKS=1 (report what is alive at exit), CUDASIM_QUIET=1 (no text on stderr). */
#ifndef CUDASIM_H
#define CUDASIM_H

typedef struct cudasim_counters {
    unsigned long long calls;    /* driver calls that failure injection counts */
    unsigned long long launches; /* grids that ran */
    unsigned long long graph_launches;
    unsigned long long early;       /* grids begun before a programmatic predecessor was complete */
    unsigned long long suspended;   /* of these: stopped at rp_grid_wait */
    unsigned long long faults;      /* kernels that faulted */
    unsigned long long patches;     /* cuGraphExec*SetParams calls */
    unsigned int live_allocations;  /* cuMemAlloc */
    unsigned int live_pinned;       /* cuMemHostAlloc */
    unsigned int live_physical;     /* cuMemCreate */
    unsigned int live_reservations; /* cuMemAddressReserve */
    unsigned int live_streams, live_events, live_libraries, live_graphs, live_execs;
    unsigned int live_contexts;      /* primary contexts retained */
    unsigned long long device_bytes; /* in use on all devices */
} cudasim_counters;

#pragma GCC visibility push(default)

/* All take effect at once and may be called from any thread. */
void cudasim_seed(unsigned long long seed);
void cudasim_fail_after(unsigned long long n, int code); /* the n-th call from now fails once with `code`; 0: none */
void cudasim_get_counters(cudasim_counters *counters);
void cudasim_reset_error(void); /* clears the sticky error of a faulted kernel; what was queued is dropped */
int cudasim_last_text(char *text, unsigned int size); /* the last complaint; its length */

/* For emulated libraries: fn(copy of params) as one kernel of the stream, captured where the stream captures. Returns a
 * CUresult. */
int cudasim_launch_native(void *stream, void (*fn)(void *params), const void *params, unsigned long long bytes);
/* Of libnvrtc: the most compilations that were under way at once. */
unsigned int cudasim_compiling(void);
/* The same check that a copy of device memory gets. */
int cudasim_is_device(unsigned long long address, unsigned long long bytes);

#pragma GCC visibility pop

#endif
