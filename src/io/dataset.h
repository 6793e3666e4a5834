/* What readers of data sets share. */
#ifndef RP_IO_DATASET_H
#define RP_IO_DATASET_H

#include <reprise_io.h>

#include "io/file.h"

/* What a file of numpy lies in, for messages; mapped: its tensor is that memory, of the file that it holds. npy.c */
typedef struct rp__npy_source {
    const char *call;
    rp__file *file;
    bool mapped;
} rp__npy_source;
rp_status rp__npy_parse(const rp__npy_source *from, const uint8_t *data, uint64_t bytes, rp_tensor **out);

/* A tensor as such a file: header, then elements, which rp__free gives back. */
typedef struct rp__npy {
    char header[1024];
    size_t header_bytes, bytes;
    void *data;
} rp__npy;
rp_status rp__npy_make(const char *call, rp_tensor *t, rp__npy *out);

#endif
