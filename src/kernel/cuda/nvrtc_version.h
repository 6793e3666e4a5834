/* Which NVRTC this process compiles with, known without loading it (about 100 MB) where possible: the process that loaded it
 * last leaves a note in the disk cache, under all that its search depends on, that names the file, its size and age, and the
 * version. Where the note is missing, or the file is not as it says, NVRTC is loaded. */
#ifndef RP_KERNEL_CUDA_NVRTC_VERSION_H
#define RP_KERNEL_CUDA_NVRTC_VERSION_H

#include "core/error.h"
#include "device/cuda/libnvrtc.h"

enum { RP__NVRTC_VERSION = 16 };

/* The compiler, loaded. RP_ERROR_UNAVAILABLE: there is none. */
rp_status rp__nvrtc_need(const rp__libnvrtc **out, char version[RP__NVRTC_VERSION]);
/* "" if there is no compiler. */
void rp__nvrtc_version(char out[RP__NVRTC_VERSION]);

#endif
