/* See fork.h. The order in which threads nest the registered locks is not known here, so they are only tried: all, or none
   and again after a pause. A lock that cannot be had within a second (its holder forks, or waits for the thread that does) is
   given up: in the child it is free and what it protects is as it was. */
#include "core/fork.h"

#include <time.h>

enum { MAX_HANDLERS = 8, PAUSES = 10000, PAUSE_NS = 100000 };

static rp__fork_lock *all; /* under `adding` */
static rp__mutex adding = RP__MUTEX_INIT;
static void (*handlers[MAX_HANDLERS])(void);
static unsigned n_handlers;

static void drop(void) {
    for (rp__fork_lock *l = all; l; l = l->next) {
        while (l->held) rp__unlock(&l->locks[--l->held]);
    }
}

static bool take(void) {
    for (rp__fork_lock *l = all; l; l = l->next) {
        for (; l->held < l->n; l->held++) {
            if (pthread_mutex_trylock(&l->locks[l->held]) != 0) return false;
        }
    }
    return true;
}

static void prepare(void) {
    rp__lock(&adding);
    for (int k = 0; !take() && k < PAUSES; k++) {
        drop();
        rp__unlock(&adding); /* who holds a lock may wait to register another */
        (void)nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
        rp__lock(&adding);
    }
}

static void in_parent(void) {
    drop();
    rp__unlock(&adding);
}

/* Made anew: the child's thread has another number than the one that holds them, which recursive locks remember. */
static void in_child(void) {
    for (rp__fork_lock *l = all; l; l = l->next) {
        for (unsigned k = 0; k < l->n; k++) {
            pthread_mutexattr_t attributes;
            (void)pthread_mutexattr_init(&attributes);
            (void)pthread_mutexattr_settype(&attributes, l->recursive ? PTHREAD_MUTEX_RECURSIVE : PTHREAD_MUTEX_NORMAL);
            (void)pthread_mutex_init(&l->locks[k], &attributes);
            (void)pthread_mutexattr_destroy(&attributes);
        }
        l->held = 0;
    }
    (void)pthread_mutex_init(&adding, NULL);
    for (unsigned k = 0; k < n_handlers; k++) handlers[k]();
}

static void watch(void) { (void)pthread_atfork(prepare, in_parent, in_child); }

void rp__fork_lock_add(rp__fork_lock *l) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch);
    rp__lock(&adding);
    l->next = all;
    all = l;
    rp__unlock(&adding);
}

void rp__fork_lock_remove(rp__fork_lock *l) {
    rp__lock(&adding);
    rp__fork_lock **at = &all;
    while (*at && *at != l) at = &(*at)->next;
    if (*at) *at = l->next;
    rp__unlock(&adding);
}

void rp__fork_handler_add(void (*handler)(void)) {
    rp__lock(&adding);
    if (n_handlers < MAX_HANDLERS) handlers[n_handlers++] = handler;
    rp__unlock(&adding);
}
