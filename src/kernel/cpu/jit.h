/* Tier 1: emitted C, compiled by the system's compiler in a background thread and swapped into the kernel. Called by
   backend.c; explain and tests ask for reasons and counters. It never fails a launch: whatever goes wrong leaves tier 0 in
   place, with a reason.
     REPRISE_JIT        0: never; 1 (default): hot kernels, in the background; wait: every kernel, before its first launch
     REPRISE_CC         the compiler (default cc); "none": never
   Objects are kept on disk (kernel/disk_cache.h). */
#ifndef RP_KERNEL_CPU_JIT_H
#define RP_KERNEL_CPU_JIT_H

#include "kernel/cpu/program.h"

/* Asks for native code of the DAG's CPU kernel; with `wait`, returns when it is there or has failed. True: it is in place. */
bool rp__jit_request(rp__dag *dag, bool wait);
/* Why the DAG's CPU kernel runs where it runs: "native: avx2, compiled in 312 ms", "interpreted: no compiler 'cc'", ... Constant
   until the state changes; never NULL. */
const char *rp__jit_reason(const rp__dag *dag);
/* The same where it was to be compiled and could not; else NULL. Constant from then on. */
const char *rp__jit_fault(const rp__dag *dag);
typedef struct rp__jit_counters {
    uint64_t compiled, cached, failed, pending;
    double compile_ms;
} rp__jit_counters;
void rp__jit_counters_get(rp__jit_counters *out);
void rp__jit_drain(void); /* waits until nothing is queued or compiling */

/* For backend.c. */
rp_status rp__jit_begin(rp__cpu_loop *loop); /* a new kernel; RP_ERROR_OUT_OF_MEMORY without a sticky error */
void rp__jit_count(rp__dag *dag, rp__kernel *kernel, int64_t elements); /* one launch; may ask for compilation */
bool rp__jit_may(const rp__cpu_loop *loop);                             /* is it compiled, or may it yet be? */
void rp__jit_forget(rp__cpu_loop *loop);                                /* the kernel dies */
rp_status rp__jit_source(const rp__dag *dag, const rp__kernel *kernel, rp__text *out);
rp__kernel *rp__cpu_kernel(rp__dag *dag);            /* backend.c: borrowed; NULL and a sticky error */
rp__kernel *rp__cpu_kernel_made(const rp__dag *dag); /* NULL: none yet */
void rp__emit_c(const rp__dag *dag, const rp__program *p, rp__text *t); /* emit_c.c */
void rp__emit_op(const rp__dag *dag, unsigned v, rp__text *t); /* "const g_TYPE vV = ...; " from its operands' names */
/* emit_line.c. The functions are void PREFIXl_PLAN(const rp__line *), and PREFIXc_PHASE for the first rp__line_chunk_phases. */
bool rp__line_fits(const rp__dag *dag, const rp__program *p);
unsigned rp__line_chunk_phases(const rp__program *p); /* all of a program's phases or none */
void rp__emit_line(const rp__dag *dag, const rp__program *p, const char *prefix, rp__text *t);

#endif
