/* What rp_call calls: plain, compiled (this folder) and graphed (floor 7) functions behind one table. */
#ifndef RP_COMPILE_CALLABLE_H
#define RP_COMPILE_CALLABLE_H

#include <stdatomic.h>

#include "compile/explain.h"
#include "core/handle.h"
#include "core/thread.h"

typedef struct rp__callable_ops {
    const char *kind; /* "plain", "compiled", "graphed" */
    /* Handles of in[] are checked; out[] is zeroed. Leaves nothing but out[] in the innermost scope (rp__callable_end). */
    rp_status (*call)(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                      size_t n_out);    /* site: of rp_call; NULL: unknown. Ops of the function name their own */
    void (*destroy)(rp_compiled *f);    /* frees the whole object but name and explain */
    rp__mutex *(*lock)(rp_compiled *f); /* under which calls are served without a hold; NULL: they hold f */
} rp__callable_ops;

/* First member of every callable, whose memory is rp__handle_new's; rp__callable_begin fills it. */
struct rp_compiled {
    rp__handle handle;
    const rp__callable_ops *ops; /* NULL: the object of a failed constructor, or released */
    atomic_uint holds;           /* the program's, and one a call that runs the function itself */
    rp_fn fn;                    /* inside another trace the function itself is called (inlined) */
    char *name;
    rp__explain *explain;
    _Atomic(struct rp__argument_names *)
        names; /* of rp_call_named (named.c), one piece of memory; NULL: none were given yet */
};
rp_status rp__callable_begin(rp_compiled *f, const rp__callable_ops *ops, rp_fn fn);
/* The function itself, with a clean error state, so that its failure can be told from an older one; its results are checked. */
rp_status rp__callable_body(rp_fn fn, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out);
/* Around a call that runs the function itself, which may release f: it stays until the call is over. False: f is released already. */
bool rp__callable_hold(rp_compiled *f);
void rp__callable_drop(rp_compiled *f);
/* Ends the scope in which a call was served: its results move out, unless it failed. */
rp_status rp__callable_end(rp_scope scope, rp_status status, rp_tensor **out, size_t n_out);
/* explain_print.c: a function lives from enter to leave, which tells what explain knows of it where REPRISE_EXPLAIN asks. */
void rp__explain_enter(rp_compiled *f);
void rp__explain_leave(rp_compiled *f);
static inline bool rp__callable_is_live(const rp_compiled *f) {
    return rp__handle_is(f, RP__HANDLE_FUNCTION) && f->ops;
}
/* Why f, which is not live, cannot be called: NULL, of another kind, a failed constructor's, or released. */
rp_status rp__callable_refuse(const rp_compiled *f, const char *call);
rp_compiled *rp__callable_failed(void); /* what constructors return on failure */
/* rp__callable_ops.call of a plain function, and of a backend that runs the function itself. */
rp_status rp__callable_plain(rp_compiled *f, const char *site, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                             size_t n_out);

#endif
