/* The kernel cache on disk: compiled kernels (shared objects, cubins) by 128-bit key. Both compilers (kernel/cpu/jit.c and
   kernel/cuda/nvrtc.c) use it and nothing else does. Folder: $REPRISE_CACHE_DIR, else $XDG_CACHE_HOME/reprise, else
   ~/.cache/reprise; made with mode 0700. Entries are written to a temporary name and renamed, so a reader sees a whole entry
   or none; each ends in a trailer with its length and the hash of key and bytes, and one that does not fit is removed and
   counts as absent. The oldest beyond $REPRISE_CACHE_LIMIT MiB (512) are removed. A folder that cannot be written is no
   error: nothing is kept, and rp__disk_cache_reason says why. Never sets the sticky error. */
#ifndef RP_KERNEL_DISK_CACHE_H
#define RP_KERNEL_DISK_CACHE_H

#include <sys/stat.h>

#include "core/hash.h"

enum { RP__DISK_CACHE_PATH = 1200, RP__DISK_CACHE_TRAILER = 32 };

/* The entry's bytes without the trailer, from rp__alloc; false: absent, damaged or no memory. */
bool rp__disk_cache_get(rp__hash key, const char *extension, void **data, size_t *bytes);
bool rp__disk_cache_put(rp__hash key, const char *extension, const void *data, size_t bytes);
void rp__disk_cache_drop(rp__hash key, const char *extension); /* an entry that did not load */
const char *rp__disk_cache_folder(void);                       /* "" when there is none */
const char *rp__disk_cache_reason(void);                       /* why nothing is kept; "" when all is well */

/* Where compiled kernels are kept, by its whole path (a relative REPRISE_CACHE_DIR counts from the folder in which the process
   was when it was first asked for), made if it is not there. NULL: it may be used; else why not, into `why`, and no name. */
const char *rp__disk_folder_ready(char *out, size_t bytes, char *why, size_t why_bytes);
/* Removes what processes that were killed left there a day ago. No compiler may take as long (REPRISE_CC_SECONDS). */
void rp__disk_folder_sweep(const char *folder);

/* What others may write is not executed. A folder of compiled kernels belongs to this user, and no one else may write in it;
   NULL: it does, else why not, into `why`. A file is a regular one of this user, no link, which no one else may write: a
   descriptor to read it, or -1. */
const char *rp__disk_folder_refused(const char *folder, char *why, size_t bytes);
int rp__disk_file_open(const char *path, struct stat *st);

#endif
