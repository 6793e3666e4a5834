/* How a loop kernel runs: data beside what it computes (rp__dag) and where (rp__space). All zero: what the backend chooses from sizes.
   Each field is a wish of a backend's template; one that the space at hand does not allow is not followed, so that a schedule may be
   used for sizes other than those it was measured with. What `free` is not needed for gives the bits of any other schedule. */
#ifndef RP_KERNEL_SCHEDULE_H
#define RP_KERNEL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rp__schedule {
    uint8_t path;   /* 1 + a template of CUDA, 1 + a walk of the CPU */
    uint8_t unroll; /* CUDA, points and columns: vectors of a thread */
    uint8_t narrow; /* CUDA, points: vectors are 1 / 2^narrow as wide as they could be; columns: stripes likewise */
    uint8_t flat;   /* CUDA: no tile in shared memory, no vectors in rows that are not whole ones; CPU: no blocks */
    uint8_t share;  /* CUDA, rows of more than 1024 elements: 1 as many threads as the order has, 2 half as many */
    uint8_t parts;  /* CUDA, columns: blocks a chunk */
    uint8_t past;   /* CPU: 1 stores stay in the caches, 2 stores pass them by */
    uint8_t grain;  /* CPU: slices of 2^(grain - 8) times the length; 0: as it is */
    uint16_t tree;  /* CUDA, rows: virtual threads of the order, a power of two; needs `free` */
} rp__schedule;

#endif
