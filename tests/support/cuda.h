/* Tests on the CUDA device: the emulator of tests/cudasim by default, a real driver with REPRISE_TEST_CUDA=real. */
#ifndef RP_TEST_CUDA_H
#define RP_TEST_CUDA_H

#include <stdbool.h>

/* Points the library at the emulator; call before anything else of Reprise. REPRISE_TEST_FILTER: only the tests whose name
   matches this pattern. False (with a printed reason) when there is
   neither an emulator nor, if asked for, a real device. */
bool test_cuda_choose(void);
bool test_cuda_is_real(void);
/* Is case k one to run? On a GPU, and with REPRISE_TEST_ALL=1, all are; on the emulator, where the system's compiler makes every kernel, one
   of n, and one of 3 n in a build of sanitizers, which see the host's code and not the kernels. */
bool test_cuda_takes(unsigned k, unsigned n);
/* A number below n (up to 65536), drawn from a and b: in each run the same, and in step with neither, for cases whose number has a meaning. */
unsigned test_cuda_draws(unsigned a, unsigned b, unsigned n);
/* For tests of any device: the default device is CUDA where REPRISE_TEST_CUDA is set ("real", or "sim": the emulator). False,
   with a printed reason, when that device is not there. */
bool test_device_choose(void);

#endif
