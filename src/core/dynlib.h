/* Libraries opened at run time: where they are looked for, what was found, and the reason for each place that had none.
 * libcuda.c, libnvrtc.c and src/kernel/cuda/libcublaslt.c describe a library as a rp__dynlib_spec and call
 * rp__dynlib_open; `doctor` prints rp__dynlib_report. Nothing here knows CUDA, and nothing here allocates: a library
 * that is absent costs no memory and the reasons survive an out-of-memory process. */
#ifndef RP_CORE_DYNLIB_H
#define RP_CORE_DYNLIB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct rp__dynlib_symbol {
    const char *name; /* exact exported name */
    size_t offset;    /* of the function pointer in the caller's table */
    bool optional;    /* absent: the pointer stays NULL and the name is recorded */
} rp__dynlib_symbol;

typedef struct rp__dynlib_spec {
    const char *title;          /* for messages: "CUDA driver" */
    const char *variable;       /* environment variable that names a file; when set nothing else is tried */
    const char *const *sonames; /* newest first, NULL at the end */
    const char *const *folders; /* further folders after the loader's path, NULL at the end; may be NULL */
    bool in_toolkit; /* also look in $CUDA_HOME, $CUDA_PATH, the default CUDA folder and NVIDIA's Python wheels */
    const rp__dynlib_symbol *symbols;
    size_t n_symbols;
} rp__dynlib_spec;

#define RP__DYNLIB_REASONS 6144
#define RP__DYNLIB_PATH 1024

/* One per library, with static storage, initialised by RP__DYNLIB_INIT. */
typedef struct rp__dynlib {
    pthread_mutex_t lock;
    bool tried;
    void *handle;                     /* NULL: absent */
    char file[RP__DYNLIB_PATH];       /* the file that was loaded */
    char reasons[RP__DYNLIB_REASONS]; /* one line a candidate that failed; ends in "...\n" when cut */
    size_t reasons_len;
    size_t n_missing;  /* optional symbols that the library lacks */
    char missing[512]; /* their names, blank separated, cut when too long */
} rp__dynlib;

#define RP__DYNLIB_INIT                                                                                                \
    { PTHREAD_MUTEX_INITIALIZER, false, NULL, "", "", 0, 0, "" }

/* Opens the library once a process and fills the function pointers of `table`. Later calls, from any thread, return
 * what the first found. A library that lacks a required symbol is closed, its reason kept, and the search goes on. True
 * when found. */
bool rp__dynlib_open(rp__dynlib *lib, const rp__dynlib_spec *spec, void *table);

/* Variables of the environment that the search reads, besides that of the spec; NULL at the end. */
extern const char *const rp__dynlib_variables[];

/* The file that was loaded, "" before or without one. */
const char *rp__dynlib_file(rp__dynlib *lib);

/* Writes what was found, or the reasons, as lines of text into `text` (always ended by NUL); returns the bytes that the
 * whole text needs, without the NUL. Opens nothing: before the first rp__dynlib_open it says so. */
size_t rp__dynlib_report(rp__dynlib *lib, const rp__dynlib_spec *spec, char *text, size_t size);

#endif
