/* Files of the library's user: whole ones are mapped to be read; written ones lie beside their target until they are whole. */
#ifndef RP_IO_FILE_H
#define RP_IO_FILE_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/error.h"

/* A regular file, mapped privately: what the program writes there stays its own. Counted. Who cuts the file shorter meanwhile kills
   the process, as with every mapped file; who replaces it, as the writer below does, changes nothing. */
typedef struct rp__file {
    atomic_uint refs;
    uint8_t *data; /* NULL: the file is empty */
    uint64_t bytes;
    char name[]; /* for messages */
} rp__file;

rp__file *rp__file_map(const char *call, const char *path); /* NULL and a sticky error */
rp__file *rp__file_retain(rp__file *f);
void rp__file_release(rp__file *f);

/* A new file that takes the place of the old one when it is whole and on disk: a reader sees the one or the other. Calls after a
   failure do nothing; rp__writer_end tells the first. */
typedef struct rp__writer {
    const char *call;
    char *target, *temporary; /* target: links followed */
    int fd;
    int fault; /* errno; 0: none */
} rp__writer;

rp_status rp__writer_begin(rp__writer *w, const char *call, const char *path);
void rp__writer_put(rp__writer *w, const void *data, size_t bytes);
rp_status rp__writer_end(rp__writer *w, bool keep); /* keep false: the target stays as it is */

#endif
