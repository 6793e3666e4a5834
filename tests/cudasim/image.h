/* The form of a compiled program: what the emulated NVRTC hands out as a cubin and the emulated driver loads. */
#ifndef CUDASIM_IMAGE_H
#define CUDASIM_IMAGE_H

#include <stdint.h>

#define CUDASIM_MAGIC "CUDASIM\n"

struct cudasim_image {
    char magic[8];
    uint32_t abi;
    uint32_t reserved;
    uint64_t hash;  /* of the source and the options */
    uint64_t bytes; /* of the shared object, which follows */
};

#endif
