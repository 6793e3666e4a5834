/* rp_set_kernel_log: shows loop kernels on their way to a launch, for `reprise dump` and for tests. Emits texts only; what
   runs does not change. The log is a thread's own, and is not called for kernels that the log's own emission makes. */
#include "core/text.h"
#include "device/device.h"
#include "kernel/loop.h"

RP__TLS_FAST rp_kernel_log *rp__kernel_log_set;
static _Thread_local void *log_ctx;

extern const rp__loop_backend rp__cuda_loops; /* kernel/cuda/loops.c: its emitter needs no driver */

rp_kernel_log *rp_set_kernel_log(rp_kernel_log *log, void *ctx, void **old_ctx) {
    rp_kernel_log *old = rp__kernel_log_set;
    if (old_ctx) *old_ctx = log_ctx;
    rp__kernel_log_set = log;
    log_ctx = ctx;
    return old;
}

void rp__kernel_log_tell(rp__device *d, rp__dag *dag, const rp__space *space) {
    rp_kernel_log *log = rp__kernel_log_set;
    rp__text loop = {0}, c = {0}, cuda = {0};
    rp__error_state before;
    rp__kernel_log_set = NULL;
    rp__error_save(&before);
    rp__dag_text(dag, &loop);
    /* Addresses and sizes are arguments of a kernel, so the text for another device comes from the same space. */
    rp__device like = {.id = {RP_DEVICE_CUDA, 0}, .multiprocessors = d->multiprocessors};
    if (d->id.type == RP_DEVICE_CPU) (void)rp__cpu_loops.source(d, dag, space, &c);
    (void)rp__cuda_loops.source(d->id.type == RP_DEVICE_CUDA ? d : &like, dag, space, &cuda);
    rp__error_restore(&before);
    const char *texts[3] = {loop.data, c.data, cuda.data};
    for (int i = 0; i < 3; i++) {
        if (!texts[i]) texts[i] = "";
    }
    log(log_ctx, space->op ? space->op : "", space->site ? space->site : "", texts[0], texts[1], texts[2]);
    rp__text_free(&loop);
    rp__text_free(&c);
    rp__text_free(&cuda);
    rp__kernel_log_set = log;
}
