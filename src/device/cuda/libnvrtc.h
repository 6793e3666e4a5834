/* The run-time compiler NVRTC as a table of functions, opened at first use. Callers hold the table: `const rp__libnvrtc
 * *rtc = rp__libnvrtc_get();` then `rtc->nvrtcCreateProgram(...)`; NULL means that there is no NVRTC, and
 * rp__libnvrtc_report says why. */
#ifndef RP_DEVICE_CUDA_LIBNVRTC_H
#define RP_DEVICE_CUDA_LIBNVRTC_H

#include "cuda_api.h"

typedef struct rp__libnvrtc {
#define RP__NVRTC_FN(need, name, symbol, ret, args) ret(*name) args;
#include "libnvrtc.def"
#undef RP__NVRTC_FN
} rp__libnvrtc;

const rp__libnvrtc *rp__libnvrtc_get(void);
const char *rp__libnvrtc_file(void); /* "" while it is not loaded */
size_t rp__libnvrtc_report(char *text, size_t size);

#endif
