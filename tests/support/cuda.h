/* Tests on the CUDA device: the emulator of tests/cudasim by default, a real driver with REPRISE_TEST_CUDA=real. */
#ifndef RP_TEST_CUDA_H
#define RP_TEST_CUDA_H

#include <stdbool.h>

/* Points the library at the emulator; call before anything else of Reprise. False (with a printed reason) when there is
   neither an emulator nor, if asked for, a real device. */
bool test_cuda_choose(void);
bool test_cuda_is_real(void);

#endif
