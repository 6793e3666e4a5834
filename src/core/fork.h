/* fork: the child has one thread, and whatever other threads of the parent were in the middle of stays as it was. Locks that are
   registered here are held by the forking thread while the process is copied, so that in the child what they protect is whole and
   they are free. What has threads of its own (the pool, the compiler of kernels) starts over in the child; a CUDA context does
   not survive and says so. Objects that another thread was using at that moment (a compiled function in the middle of a call) are
   not for the child. */
#ifndef RP_CORE_FORK_H
#define RP_CORE_FORK_H

#include "core/thread.h"

typedef struct rp__fork_lock {
    rp__mutex *locks;
    unsigned n;
    bool recursive;
    struct rp__fork_lock *next;
    unsigned held; /* during a fork: the first `held` are ours */
} rp__fork_lock;

void rp__fork_lock_add(rp__fork_lock *l);
void rp__fork_lock_remove(rp__fork_lock *l);       /* before its memory goes; not under one of its locks */
void rp__fork_handler_add(void (*in_child)(void)); /* runs when the locks are free again */

/* At file level: locks (an array or one) of static storage are registered when the library is loaded. */
#define RP__LOCKS_SURVIVE_FORK(name, first, count)                                                                     \
    static rp__fork_lock name = {.locks = (first), .n = (count)};                                                      \
    __attribute__((constructor)) static void name##_add(void) { rp__fork_lock_add(&name); }

#endif
