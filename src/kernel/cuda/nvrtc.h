/* Kernels from CUDA C: compiled by NVRTC, kept as cubins in the disk cache, loaded once a device. Shared by loops.c, the
 * library ops of this folder and users' ops. */
#ifndef RP_KERNEL_CUDA_NVRTC_H
#define RP_KERNEL_CUDA_NVRTC_H

#include "device/device.h"

/* The kernel `name` of `source` (text after the prelude and support.cuh). One reference for the caller. Compiles when
 * neither the process nor the disk knows it; RP_ERROR_UNAVAILABLE without NVRTC, RP_ERROR_COMPILE with its log. */
rp_status rp__nvrtc_kernel(rp__device *d, const char *source, const char *name, rp__kernel_kind kind, rp__kernel **out);

/* Between begin and end, a kernel that this thread asks for and that neither the process nor the disk knows comes back at once,
 * without its function: end compiles all of them side by side and loads them. Until then it may be recorded, not launched, and
 * caches must not keep it (is_pending). end with `keep` false drops them, because what they were for has failed. One at a time a
 * thread. */
rp_status rp__nvrtc_batch_begin(rp__device *d);
rp_status rp__nvrtc_batch_end(rp__device *d, bool keep);
static inline bool rp__nvrtc_is_pending(const rp__kernel *k) { return !k->function; }

typedef struct rp__nvrtc_stats {
    uint64_t compiled, from_disk, microseconds; /* microseconds: spent in NVRTC, by all threads */
} rp__nvrtc_stats;
rp__nvrtc_stats rp__nvrtc_statistics(void);

#endif
