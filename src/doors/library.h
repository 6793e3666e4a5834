/* A library of an engine, opened once a process and never closed: what it has started (threads, locks) outlives any use. A child of
   fork has none of its threads, so the engine counts as absent there. */
#ifndef RP_DOORS_LIBRARY_H
#define RP_DOORS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

typedef struct rp__door_library {
    const char *variable;           /* names the file; if it is set nothing else is tried */
    const char *const *names;       /* on the loader's path, NULL at the end */
    const char *const (*wheels)[2]; /* folder below site-packages, stem of the file; a NULL folder ends them */
    const char *entry;              /* the function that it must have */
} rp__door_library;

/* The handle and the entry; NULL: why has a line. where: the file. */
void *rp__door_load(const rp__door_library *library, char where[512], char why[512], void **entry);

/* Forks since the start of the process: what was made at another count belongs to a parent. */
unsigned rp__door_forks(void);

/* What opening a library came to; an engine fills it once. */
typedef struct rp__door_found {
    bool here;
    unsigned forks; /* rp__door_forks when it was opened */
    char version[64], where[512], why[512];
} rp__door_found;
/* Is it here, and was it opened in this process? A child has none of its threads. */
bool rp__door_answer(const rp__door_found *found, char version[64], char where[512], char why[512]);

#endif
