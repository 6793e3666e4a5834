/* The kernel cache on disk: compiled kernels (shared objects, cubins) by 128-bit key. Both compilers (kernel/cpu/jit.c and
   kernel/cuda/nvrtc.c) use it and nothing else does. Folder: $REPRISE_CACHE_DIR, else $XDG_CACHE_HOME/reprise, else
   ~/.cache/reprise; made with mode 0700. Entries are written to a temporary name and renamed, so a reader sees a whole entry
   or none; each ends in a trailer with its length and the hash of key and bytes, and one that does not fit is removed and
   counts as absent. The oldest beyond $REPRISE_CACHE_MB MiB (768) are removed, and what killed processes left there a day ago. A
   folder that cannot be written is no error: nothing is kept, and `why` says so. Never sets the sticky error.

   What others may write is not executed: a folder of compiled kernels belongs to this user, and no one else may write in it;
   a file is a regular one of this user, no link, which no one else may write. */
#ifndef RP_KERNEL_DISK_CACHE_H
#define RP_KERNEL_DISK_CACHE_H

#include "core/hash.h"

enum { RP__DISK_PATH = 1200 };

/* The folder by its whole path (a relative $REPRISE_CACHE_DIR counts from the folder in which the process was when it first asked),
   made if it was not there; `why` is empty when entries can be kept in it. False: nor can they be read. */
bool rp__disk_cache_folder(char folder[RP__DISK_PATH], char *why, size_t bytes);
bool rp__disk_cache_loads(char *why, size_t bytes); /* the same, and can the loader load files from there? */

/* The entry's bytes without the trailer, from rp__alloc; false: absent, damaged or no memory. */
bool rp__disk_cache_get(rp__hash key, const char *extension, void **data, size_t *bytes);
/* For loaders of files (those of ELF ignore the trailer): the path of an entry that get would give. */
bool rp__disk_cache_file(rp__hash key, const char *extension, char path[RP__DISK_PATH]);
bool rp__disk_cache_put(rp__hash key, const char *extension, const void *data, size_t bytes, char *why, size_t room);
void rp__disk_cache_drop(rp__hash key, const char *extension); /* an entry that did not load */

/* A folder of this process alone for a compiler and its files, from which objects can be loaded; one at a time. It goes with the
   process; that of a process that was killed goes when the next one makes its own. *place, 0 at first: which of the places for
   such folders is tried next. False: none is left, or the process ends, and why. */
bool rp__disk_work_folder(char folder[RP__DISK_PATH], size_t *place, char *why, size_t bytes);
void rp__disk_work_end(void);
int rp__disk_folder_fault(const char *folder); /* does it not take a file as large as an object? An errno, or 0 */

/* A whole file and a zero byte behind, from rp__alloc; NULL: absent, another's, or too large. */
char *rp__disk_file_read(const char *path, size_t *bytes);
bool rp__disk_file_write(const char *path, const void *data, size_t bytes); /* a new one; false and errno */

#endif
