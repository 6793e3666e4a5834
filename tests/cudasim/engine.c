/* The queue of the emulated device. Everything that a stream or a graph launch does is an op with full and programmatic
 * predecessors. Ops run when somebody waits (stream, event, context), one at a time, each drawn from all that may
 * legally run then; so what no edge orders runs in an order that changes with the seed. A kernel behind a programmatic
 * edge begins before its producer runs and is suspended at rp_grid_wait until every programmatic producer is complete.
 * */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EARLY_DEPTH 3     /* consumers of consumers begun before one producer */
#define EARLY_FIBERS 4096 /* no further early grid while so many fibers are suspended */

struct CUstream_st sim_legacy;
CUstream sim_streams;
extern cudasim_counters sim_counters;
extern pthread_mutex_t sim_lock;

static sim_op **ready; /* ops without incomplete full predecessors, not done */
static size_t n_ready, cap_ready, n_pending;
static bool busy; /* a host function runs on some thread, without the lock */
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
_Thread_local bool sim_in_host_function;

/* ---- Ops ---- */

sim_op *sim_op_new(int type) {
    sim_op *op = sim_alloc(1, sizeof *op);
    op->type = type;
    op->refs = 1;
    op->full = 1; /* held until sim_op_submit */
    n_pending++;
    return op;
}

sim_op *sim_op_retain(sim_op *op) {
    op->refs++;
    return op;
}

static void op_clear(sim_op *op) {
    for (unsigned int i = 0; i < op->n_producers; i++) {
        sim_op_release(op->producers[i]);
    }
    free(op->producers);
    op->producers = NULL;
    op->n_producers = 0;
    if (op->grid) {
        sim_grid_free(op->grid);
        op->grid = NULL;
    }
    free(op->owned);
    op->owned = NULL;
}

void sim_op_release(sim_op *op) {
    if (op && --op->refs == 0) {
        op_clear(op);
        free(op->out);
        free(op);
    }
}

void sim_op_after(sim_op *op, sim_op *producer, bool programmatic) {
    if (!producer || producer->state == 2 || producer == op) {
        return;
    }
    if (producer->n_out == producer->cap_out) {
        producer->cap_out = producer->cap_out ? producer->cap_out * 2 : 4;
        producer->out = sim_grow(producer->out, producer->cap_out, sizeof *producer->out);
    }
    producer->out[producer->n_out].op = sim_op_retain(op);
    producer->out[producer->n_out++].programmatic = programmatic;
    if (!programmatic) {
        op->full++;
        return;
    }
    op->partial++;
    op->producers = sim_grow(op->producers, op->n_producers + 1, sizeof *op->producers);
    op->producers[op->n_producers++] = sim_op_retain(producer);
}

static void enter_ready(sim_op *op) {
    if (n_ready == cap_ready) {
        cap_ready = cap_ready ? cap_ready * 2 : 64;
        ready = sim_grow(ready, cap_ready, sizeof *ready);
    }
    ready[n_ready++] = sim_op_retain(op);
}

static void less_full(sim_op *op) {
    if (--op->full == 0) {
        enter_ready(op);
    }
}

void sim_op_submit(sim_op *op) { less_full(op); }

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void leave_ready(sim_op *op) {
    for (size_t i = 0; i < n_ready; i++) {
        if (ready[i] == op) {
            ready[i] = ready[--n_ready];
            sim_op_release(op);
            return;
        }
    }
}

static void complete(sim_op *op) {
    op->state = 2;
    op->done_at = now_ms();
    n_pending--;
    leave_ready(op);
    for (unsigned int i = 0; i < op->n_out; i++) {
        sim_op *next = op->out[i].op;
        if (op->out[i].programmatic) {
            next->partial--;
        } else {
            less_full(next);
        }
        sim_op_release(next);
    }
    op->n_out = 0;
    op_clear(op);
}

/* ---- Running ---- */

void sim_copy_run(const sim_copy *c) {
    for (size_t z = 0; z < c->depth; z++) {
        for (size_t y = 0; y < c->height; y++) {
            memmove((unsigned char *)c->dst + z * c->dst_slice + y * c->dst_pitch,
                    (const unsigned char *)c->src + z * c->src_slice + y * c->src_pitch, c->width);
        }
    }
}

static void set_run(const CUDA_MEMSET_NODE_PARAMS *s) {
    for (size_t y = 0; y < s->height; y++) {
        unsigned char *row = (unsigned char *)(uintptr_t)s->dst + y * s->pitch;
        for (size_t x = 0; x < s->width; x++) {
            memcpy(row + x * s->elementSize, &s->value, s->elementSize); /* little endian, as the device */
        }
    }
}

/* May begin: all full predecessors are complete and each programmatic one is complete, has begun, or may begin. */
static bool launchable(const sim_op *op, int depth) {
    if (op->full > 0) {
        return false;
    }
    for (unsigned int i = 0; i < op->n_producers; i++) {
        const sim_op *p = op->producers[i];
        if (p->state == 0 && (depth == 0 || !launchable(p, depth - 1))) {
            return false;
        }
    }
    return true;
}

/* Begins the kernel while producers are incomplete. It may even end, when it never waits. */
static void begin_early(sim_op *op, int depth) {
    if (op->type != OP_KERNEL || op->state != 0 || op->partial == 0 || !launchable(op, EARLY_DEPTH) ||
        sim_fibers_suspended() > EARLY_FIBERS) {
        return;
    }
    sim_op_retain(op);
    for (unsigned int i = 0; depth > 0 && i < op->n_out && sim_sticky == CUDA_SUCCESS; i++) {
        if (op->out[i].programmatic) {
            begin_early(op->out[i].op, depth - 1);
        }
    }
    if (op->state == 0 && sim_sticky == CUDA_SUCCESS) {
        op->state = 1;
        op->early = true;
        sim_counters.early++;
        sim_counters.launches++;
        if (sim_grid_run(op->grid, true)) {
            complete(op);
        } else {
            sim_counters.suspended++;
        }
    }
    sim_op_release(op);
}

static void run_host(sim_op *op) {
    CUhostFn fn = op->host;
    void *data = op->host_data;
    busy = true;
    sim_memory_close();
    pthread_mutex_unlock(&sim_lock);
    sim_in_host_function = true;
    fn(data);
    sim_in_host_function = false;
    pthread_mutex_lock(&sim_lock);
    sim_memory_open();
    busy = false;
    pthread_cond_broadcast(&idle);
}

static void run_op(sim_op *op) {
    sim_op_retain(op);
    for (unsigned int i = 0; i < op->n_out && op->type == OP_KERNEL && sim_sticky == CUDA_SUCCESS; i++) {
        if (op->out[i].programmatic) {
            begin_early(op->out[i].op, EARLY_DEPTH - 1);
        }
    }
    if (sim_sticky != CUDA_SUCCESS) {
        sim_op_release(op);
        return;
    }
    bool done = true;
    switch (op->type) {
    case OP_KERNEL:
        sim_counters.launches += op->state == 0;
        op->state = 1;
        done = sim_grid_run(op->grid, false);
        break;
    case OP_COPY: sim_copy_run(&op->copy); break;
    case OP_SET: set_run(&op->set); break;
    case OP_HOST: run_host(op); break;
    case OP_NATIVE: op->native(op->owned); break;
    case OP_CONDITIONAL:
        done = !sim_conditional_step(op);
        if (!done) { /* comes back when the body, its new predecessor, is complete */
            leave_ready(op);
        }
        break;
    default:
        if (op->exec) {
            sim_exec_begin(op->exec);
        }
        break;
    }
    if (done) {
        complete(op);
    }
    sim_op_release(op);
}

/* Everything queued is dropped: the context is lost. */
static void drop_all(void) {
    while (n_ready > 0) {
        sim_op *op = ready[n_ready - 1];
        sim_op_retain(op);
        complete(op);
        sim_op_release(op);
    }
}

/* One op that may run, drawn. False: nothing may. */
static bool run_one(void) {
    sim_op *chosen = NULL;
    uint32_t seen = 0;
    for (size_t i = 0; i < n_ready; i++) {
        sim_op *op = ready[i];
        bool may = op->state == 0 ? op->partial == 0 || (op->type == OP_KERNEL && launchable(op, EARLY_DEPTH))
                                  : op->partial == 0;
        if (may && op->state == 0 && op->partial > 0 && sim_fibers_suspended() > EARLY_FIBERS) {
            may = false;
        }
        if (may && sim_random(++seen) == 0) {
            chosen = op;
        }
    }
    if (!chosen) {
        return false;
    }
    if (chosen->partial > 0) {
        begin_early(chosen, EARLY_DEPTH - 1);
    } else {
        run_op(chosen);
    }
    return true;
}

static void run_begin(void) {
    while (busy) {
        pthread_cond_wait(&idle, &sim_lock);
    }
    sim_memory_open();
}

static CUresult run_end(void) {
    if (sim_sticky != CUDA_SUCCESS) {
        drop_all();
    }
    CUresult check = sim_sticky == CUDA_SUCCESS ? sim_memory_check() : CUDA_SUCCESS;
    if (check != CUDA_SUCCESS) {
        sim_sticky = check;
        sim_counters.faults++;
    }
    sim_memory_close();
    return sim_sticky;
}

CUresult sim_run_until(sim_op *target) {
    run_begin();
    if (target) {
        sim_op_retain(target);
    }
    while (sim_sticky == CUDA_SUCCESS && (target ? target->state != 2 : n_pending > 0)) {
        if (busy) { /* another thread took over while this one ran a host function */
            pthread_cond_wait(&idle, &sim_lock);
            continue;
        }
        if (!run_one()) {
            sim_complain("the emulator has %zu ops that nothing will ever allow to run", n_pending);
            sim_sticky = CUDA_ERROR_UNKNOWN;
        }
    }
    if (target) {
        sim_op_release(target);
    }
    return run_end();
}

CUresult sim_run_some(void) {
    run_begin();
    uint32_t n = 1 + sim_random(4);
    while (n-- > 0 && sim_sticky == CUDA_SUCCESS && !busy && run_one()) {}
    return run_end();
}

CUresult sim_run_all(void) { return n_pending > 0 || sim_sticky != CUDA_SUCCESS ? sim_run_until(NULL) : CUDA_SUCCESS; }

CUresult sim_run_stream(CUstream stream) {
    sim_op *op = sim_op_new(OP_EMPTY);
    sim_stream_follow(op, stream);
    sim_op_submit(op);
    CUresult result = sim_run_until(op);
    sim_op_release(op);
    return result;
}

/* ---- Streams ---- */

static void follow_tail(sim_op *op, CUstream s) {
    sim_op_after(op, s->last, false);
    sim_op_after(op, s->before, false);
}

/* The legacy stream waits for every blocking stream of its context, and they for it. */
void sim_stream_follow(sim_op *op, CUstream stream) {
    follow_tail(op, stream);
    if (stream == &sim_legacy) {
        for (CUstream s = sim_streams; s; s = s->next) {
            if (!(s->flags & CU_STREAM_NON_BLOCKING)) {
                follow_tail(op, s);
            }
        }
    } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
        follow_tail(op, &sim_legacy);
    }
}

void sim_stream_push(CUstream stream, sim_op *op, bool programmatic) {
    sim_op *last = stream->last;
    programmatic = programmatic && op->type == OP_KERNEL && last && last->state != 2 && last->type == OP_KERNEL;
    sim_op *before = NULL;
    if (programmatic) {
        before = sim_op_new(OP_EMPTY); /* what this launch does not wait for, its full successors do */
        follow_tail(before, stream);
        sim_op_submit(before);
        sim_op_after(op, last, true);
    } else {
        sim_stream_follow(op, stream);
    }
    sim_op_release(stream->before);
    stream->before = before;
    sim_op_release(last);
    stream->last = op;
    sim_op_submit(op);
}

bool sim_stream_idle(CUstream s) {
    bool done = (!s->last || s->last->state == 2) && (!s->before || s->before->state == 2);
    if (done && s == &sim_legacy) {
        for (CUstream t = sim_streams; t; t = t->next) {
            done = done && ((t->flags & CU_STREAM_NON_BLOCKING) || sim_stream_idle(t));
        }
    }
    return done;
}

CUstream sim_stream_get(CUstream stream, CUresult *error) {
    *error = CUDA_SUCCESS;
    if (stream == NULL || stream == CU_STREAM_LEGACY) {
        return &sim_legacy;
    }
    if (stream == CU_STREAM_PER_THREAD) {
        *error = CUDA_ERROR_NOT_SUPPORTED;
        return NULL;
    }
    if (!sim_handle_is(stream, SIM_STREAM)) {
        *error = CUDA_ERROR_INVALID_HANDLE;
        return NULL;
    }
    return stream;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    SIM_BEGIN();
    if (!stream || flags > 1) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUstream s = sim_alloc(1, sizeof *s);
    s->flags = flags;
    s->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    s->ctx = sim_current();
    s->next = sim_streams;
    sim_streams = s;
    sim_handle_add(s, SIM_STREAM);
    *stream = s;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

/* What the stream still has to do goes on without it. */
CUresult cuStreamDestroy_v2(CUstream stream) {
    SIM_BEGIN_FREE();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s || s == &sim_legacy) {
        return sim_end(s ? CUDA_ERROR_INVALID_VALUE : result);
    }
    if (s->capture) {
        sim_capture_invalidate(s->capture);
        if (s->capture->origin == s) {
            s->capture->origin = NULL;
        }
    }
    for (CUstream *link = &sim_streams; *link; link = &(*link)->next) {
        if (*link == s) {
            *link = s->next;
            break;
        }
    }
    sim_handle_remove(s);
    sim_op_release(s->last);
    sim_op_release(s->before);
    free(s->deps);
    free(s->edges);
    free(s);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream stream) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return sim_end(result);
    }
    if (s->capture) {
        sim_capture_invalidate(s->capture);
        return sim_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    result = sim_capture_implicit(s);
    return sim_end(result != CUDA_SUCCESS ? result : sim_run_stream(s));
}

CUresult cuStreamQuery(CUstream stream) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s) {
        return sim_end(result);
    }
    if (s->capture) {
        sim_capture_invalidate(s->capture);
        return sim_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    result = sim_capture_implicit(s);
    if (result == CUDA_SUCCESS && !sim_stream_idle(s)) {
        result = sim_run_some();
    }
    if (result == CUDA_SUCCESS && !sim_stream_idle(s)) {
        result = CUDA_ERROR_NOT_READY;
    }
    return sim_end(result);
}

CUresult cuCtxSynchronize(void) {
    SIM_BEGIN();
    sim_capture *capture;
    if (sim_capture_any(sim_current(), &capture)) {
        sim_capture_invalidate(capture);
        return sim_end(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    return sim_end(sim_run_all());
}

/* ---- Events ---- */

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    SIM_BEGIN();
    if (!event || flags > 7 || (flags & CU_EVENT_INTERPROCESS)) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUevent e = sim_alloc(1, sizeof *e);
    e->flags = flags;
    sim_handle_add(e, SIM_EVENT);
    *event = e;
    return sim_end(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent event) {
    SIM_BEGIN_FREE();
    if (!sim_handle_is(event, SIM_EVENT)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    sim_handle_remove(event);
    sim_op_release(event->op);
    free(event->deps);
    free(event->edges);
    free(event);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s || !sim_handle_is(event, SIM_EVENT)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (s->capture) {
        return sim_end(sim_capture_record(event, s));
    }
    result = sim_capture_implicit(s);
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    sim_op *op = sim_op_new(OP_EMPTY);
    sim_op_release(event->op);
    event->op = sim_op_retain(op);
    event->recorded = true;
    event->capture_id = 0;
    sim_stream_push(s, op, false);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    SIM_BEGIN();
    CUresult result;
    CUstream s = sim_stream_get(stream, &result);
    if (!s || !sim_handle_is(event, SIM_EVENT)) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (flags > 1) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    bool handled = false;
    result = sim_capture_wait(s, event, &handled);
    if (handled || result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    result = sim_capture_implicit(s);
    if (result == CUDA_SUCCESS && event->op && event->op->state != 2) {
        sim_op *op = sim_op_new(OP_EMPTY);
        sim_op_after(op, event->op, false);
        sim_stream_push(s, op, false);
    }
    return sim_end(result);
}

/* Both of an event that a capture recorded. */
static CUresult event_usable(CUevent event) {
    if (!sim_handle_is(event, SIM_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->capture_id) {
        sim_capture *capture = sim_capture_find(event->capture_id);
        if (capture) {
            sim_capture_invalidate(capture);
        }
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
    SIM_BEGIN();
    CUresult result = event_usable(event);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_unsafe();
    }
    if (result == CUDA_SUCCESS && event->op && event->op->state != 2) {
        result = sim_run_some();
        if (result == CUDA_SUCCESS && event->op->state != 2) {
            result = CUDA_ERROR_NOT_READY;
        }
    }
    return sim_end(result);
}

CUresult cuEventSynchronize(CUevent event) {
    SIM_BEGIN();
    CUresult result = event_usable(event);
    if (result == CUDA_SUCCESS && event->op && event->op->state != 2) {
        result = sim_run_until(event->op);
    }
    return sim_end(result);
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
    SIM_BEGIN();
    if (!ms) {
        return sim_end(CUDA_ERROR_INVALID_VALUE);
    }
    CUresult result = event_usable(start);
    if (result == CUDA_SUCCESS) {
        result = event_usable(end);
    }
    if (result == CUDA_ERROR_CAPTURED_EVENT) { /* so a driver of version 580 calls it once the capture has ended */
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result != CUDA_SUCCESS) {
        return sim_end(result);
    }
    if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) || !start->recorded || !end->recorded) {
        return sim_end(CUDA_ERROR_INVALID_HANDLE);
    }
    if (start->op->state != 2 || end->op->state != 2) {
        return sim_end(CUDA_ERROR_NOT_READY);
    }
    *ms = (float)(end->op->done_at - start->op->done_at);
    return sim_end(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) { return cuEventElapsedTime_v2(ms, start, end); }
