/* What compiled kernels and the emulated driver share: the thread that runs, and the calls a kernel makes into the
 * driver. This text is part of every kernel that nvrtc.c compiles (before prelude.h) and is included by the driver, so
 * it must stay free of headers. */
#ifndef CUDASIM_RUNTIME_H
#define CUDASIM_RUNTIME_H

#define CUDASIM_WARP 32
#define CUDASIM_SLOT 32 /* bytes that a lane can give to an exchange */

struct cudasim_dim3 {
    unsigned int x, y, z;
};

/* The public part of a device thread. */
struct cudasim_thread {
    struct cudasim_dim3 thread_idx, block_idx, block_dim, grid_dim;
    unsigned char *dynamic_shared;
    unsigned int lane;
};

/* What an exchange gives back: the value of each lane and which lanes exist. Valid until the lane's next exchange but
 * one. */
struct cudasim_exchange {
    unsigned char slot[CUDASIM_WARP][CUDASIM_SLOT];
    unsigned int lanes;
};

struct cudasim_runtime {
    struct cudasim_thread *self;
    int race; /* counts down; at 0 a point of interest lets other threads run */
    void (*yield)(void);
    void (*spin)(void); /* the thread waits for another one's write */
    void (*barrier)(int line);
    const struct cudasim_exchange *(*exchange)(int kind, const void *value, unsigned int size);
    void (*grid_wait)(void);
    void (*launch_dependents)(void);
    void (*set_conditional)(unsigned long long handle, unsigned int value);
    void (*cluster_barrier)(unsigned int n, int line);
    void (*cluster_read)(void *to, const void *at, unsigned int size, unsigned int rank, unsigned int n);
    void (*cluster_write)(void *at, const void *from, unsigned int size, unsigned int rank, unsigned int n);
    void (*copy_async)(void *to, const void *from, unsigned int size, unsigned int valid);
    void (*copy_async_commit)(void);
    void (*copy_async_wait)(int n);
    void (*misaligned)(const void *address, unsigned int size);
    unsigned long long (*clock_ns)(void);
};

struct cudasim_param {
    unsigned int offset, size;
};

struct cudasim_kernel {
    const char *name;
    void (*run)(const unsigned char *arguments);
    const struct cudasim_param *params;
    unsigned int n_params;
    unsigned int max_threads;           /* of __launch_bounds__, 0 without */
    unsigned char *shared, *shared_end; /* the static shared variables */
};

#define CUDASIM_ABI 3

/* Exported by every compiled program as `cudasim_module`. */
struct cudasim_module {
    int abi;
    unsigned int n_kernels;
    const struct cudasim_kernel *kernels;
    struct cudasim_runtime **runtime; /* the driver stores its own here */
};

#endif
