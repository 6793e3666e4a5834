/* Kernels from CUDA C: compiled by NVRTC, kept as cubins in the disk cache, loaded once a device. Shared by loops.c, the
 * library ops of this folder and users' ops. */
#ifndef RP_KERNEL_CUDA_NVRTC_H
#define RP_KERNEL_CUDA_NVRTC_H

#include "device/device.h"

/* The kernel `name` of `source` (text after the prelude and support.cuh). One reference for the caller. Compiles when
 * neither the process nor the disk knows it; RP_ERROR_UNAVAILABLE without NVRTC, RP_ERROR_COMPILE with its log. */
rp_status rp__nvrtc_kernel(rp__device *d, const char *source, const char *name, rp__kernel_kind kind, rp__kernel **out);

typedef struct rp__nvrtc_stats {
    uint64_t compiled, from_disk, microseconds; /* microseconds: spent in NVRTC */
} rp__nvrtc_stats;
rp__nvrtc_stats rp__nvrtc_statistics(void);

#endif
