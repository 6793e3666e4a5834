/* A driver without a device: what compiles for an architecture that is not here. */
#ifndef RP_DEVICE_CUDA_OFFLINE_H
#define RP_DEVICE_CUDA_OFFLINE_H

#include "device/cuda/libcuda.h"

/* The table that REPRISE_CUDA_OFFLINE asks for, "sm_90" or "sm_90:132" with the number of multiprocessors; NULL: it asks for none. */
const rp__libcuda *rp__cuda_offline(void);

#endif
