/* Handles of objects that are no tensors: streams, events, pools, generators, graphs, traces, functions, optimizers. As a tensor's slot does,
   the object's memory outlives it, all zero but for this head, which says what it was and where it was made: so a stale handle
   fails the checks that a failed constructor's object fails, and only then somebody asks which of the two it is. Checks that
   pass cost nothing more. A program holds one reference of an object that it made, an rp_ir as many as it has retained, and
   gives each up once; what the library holds of it besides is counted by the object. */
#ifndef RP_CORE_HANDLE_H
#define RP_CORE_HANDLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef struct rp__handle {       /* first member of the object */
    _Atomic uint32_t state;       /* 0: of no memory of ours (static objects) */
    atomic_uint held;             /* references of the program, 1 at first */
    const char *kind, *op, *site; /* constant strings; kind: "stream" */
    char name[32];                /* that the program gave it; "": none */
    struct rp__handle *next;      /* among the free ones of its size */
    uint32_t steps;               /* size of the whole */
} rp__handle;

/* Zero but for its head, op and site of which come from the frame in force; NULL (and no error) when out of memory. The longest
   free memory of the size is used again, once RP__HANDLE_QUARANTINE others are free; never with REPRISE_CHECK=1. */
void *rp__handle_new(const char *kind, size_t bytes);
/* The object is gone: its memory becomes zero, and free. NULL is nothing. */
void rp__handle_free(void *object);
enum { RP__HANDLE_QUARANTINE = 64 };

/* The program gives up its reference; false and a sticky error when it has none. `call` is the public function. */
bool rp__handle_give_up(rp__handle *h, const char *call);
/* Was it made, and is it not released? */
bool rp__handle_is_live(const rp__handle *h);
/* Why an object that failed a check is none: NULL, released, or never made. Sets the sticky error. */
rp_status rp__handle_refuse(const rp__handle *h, const char *call, const char *kind);

#endif
