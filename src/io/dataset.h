/* What readers of data sets share. */
#ifndef RP_IO_DATASET_H
#define RP_IO_DATASET_H

#include <reprise_io.h>

#include "io/file.h"

/* A file of numpy that lies in memory: of f, which messages name. npy.c */
rp_status rp__npy_parse(const rp__file *f, const uint8_t *data, uint64_t bytes, rp_tensor **out);

#endif
