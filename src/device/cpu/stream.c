/* Streams and events of the CPU. The default stream runs inline. Another stream is a queue whose items run when somebody waits
   for it or asks: which queue goes on next is drawn from a seed (REPRISE_STREAM_SEED), so that an order that only an event
   would guarantee is broken sooner or later. REPRISE_STREAM_SEED=0 runs just what is needed.
   Two locks, in this order: `turn` is held by the thread that runs an item, one at a time; `lock` for a moment by who looks at
   queues, never while an item runs. Only those that wait for work to be done take `turn`: an item may be a kernel of the
   program's that itself waits for another thread, and that one may ask, launch, record and allocate. */
#include "device/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/flags.h"
#include "core/fork.h"

/* One recording of an event: what waits for it keeps it. */
typedef struct record {
    uint32_t refs; /* under the lock */
    bool done;
    struct timespec time;
    struct queue *queue; /* where it waits to happen; NULL when done */
} record;

typedef struct event {
    record *last; /* NULL: not recorded, or recorded in a capture */
    rp__cpu_mark mark;
} event;

typedef enum item_kind { ITEM_LAUNCH, ITEM_COPY, ITEM_RECORD, ITEM_WAIT, ITEM_GRAPH } item_kind;

typedef struct item {
    struct item *next;
    uint64_t number; /* of the queues' items, rising */
    item_kind kind;
    union {
        rp__launch *launch; /* owned */
        struct {
            void *dst;
            size_t bytes;
        } copy;         /* the bytes follow the item */
        record *record; /* counted */
        rp__devgraph *graph;
    } what;
} item;

typedef struct queue {
    item *head, *tail;
    struct queue *next, *prev; /* all queues */
    bool orphan;               /* its stream is gone: it goes with its last item */
    unsigned asked;            /* how often rp__cpu_event_done found it not far enough since the last poll */
} queue;

enum { TURN, LOCK, LOCKS };
static rp__mutex locks[LOCKS] = {RP__MUTEX_INIT, RP__MUTEX_INIT};
RP__LOCKS_SURVIVE_FORK(fork_locks, locks, LOCKS)
static pthread_once_t once = PTHREAD_ONCE_INIT;
static queue *queues;
static uint64_t random_state;
static atomic_bool asked; /* of some queue */
static uint64_t n_pushed; /* the number of the last item */

static void start(void) { random_state = (uint64_t)rp__env_number("REPRISE_STREAM_SEED", 1); }

static void enter(void) { rp__lock(&locks[LOCK]); }
static void leave(void) { rp__unlock(&locks[LOCK]); }

/* As who runs items; not `in_item`. */
static void turn_enter(void) {
    rp__lock(&locks[TURN]);
    enter();
}

static bool turn_try(void) {
    if (rp__flags.in_item || pthread_mutex_trylock(&locks[TURN]) != 0) return false;
    enter();
    return true;
}

static void turn_leave(void) {
    leave();
    rp__unlock(&locks[TURN]);
}

static uint64_t draw(void) {
    pthread_once(&once, start);
    if (!random_state) return 0;
    random_state += UINT64_C(0x9e3779b97f4a7c15);
    random_state += random_state == 0;
    return rp__hash_mix(random_state, 0);
}

uint64_t rp__cpu_random(void) {
    enter();
    uint64_t value = draw();
    leave();
    return value;
}

/* ---- running; all under both locks, but for what an item does */

static void record_release(record *r) {
    if (r && --r->refs == 0) rp__free(r);
}

static void record_happen(record *r) {
    clock_gettime(CLOCK_MONOTONIC, &r->time);
    r->done = true;
    r->queue = NULL;
}

static bool blocked(const queue *q) { return q->head->kind == ITEM_WAIT && !q->head->what.record->done; }

static void unlink_queue(queue *q) {
    if (q->prev)
        q->prev->next = q->next;
    else
        queues = q->next;
    if (q->next) q->next->prev = q->prev;
    rp__free(q);
}

/* The item stays in its queue until it is done: who looks there sees that it is not. */
static rp_status run_head(queue *q) {
    item *i = q->head;
    rp_status status = RP_OK;
    switch (i->kind) {
    case ITEM_RECORD:
        record_happen(i->what.record);
        record_release(i->what.record);
        break;
    case ITEM_WAIT: record_release(i->what.record); break;
    default:
        leave();
        rp__flags.in_item = true;
        if (i->kind == ITEM_LAUNCH) {
            rp__site_frame outer = rp__site_enter((rp__site_frame){i->what.launch->site, i->what.launch->op});
            status = rp__cpu_run(i->what.launch);
            rp__site_pop(outer);
            rp__launch_free(i->what.launch, false);
        } else if (i->kind == ITEM_COPY) {
            memcpy(i->what.copy.dst, i + 1, i->what.copy.bytes);
        } else {
            status = rp__cpu_graph_run_queued(i->what.graph);
        }
        rp__flags.in_item = false;
        enter();
    }
    q->head = i->next;
    if (!q->head) q->tail = NULL;
    rp__free(i);
    if (q->orphan && !q->head) unlink_queue(q);
    return status;
}

/* One item that brings q on, or by chance one of another queue. q is not empty. */
static rp_status step(queue *q) {
    while (blocked(q)) /* what it waits for was put into its queue earlier: this ends */
        q = q->head->what.record->queue;
    uint64_t chance = draw();
    if (chance & 1) {
        size_t n = 0;
        for (queue *other = queues; other; other = other->next) n += other->head && !blocked(other);
        size_t k = (size_t)((chance >> 1) % n); /* n >= 1: q itself */
        for (queue *other = queues; other; other = other->next) {
            if (other->head && !blocked(other) && k-- == 0) {
                q = other;
                break;
            }
        }
    }
    return run_head(q);
}

/* What was in the queue when this was called, and is no item that the caller is in. Not under a lock. */
static rp_status drain(queue *q) {
    rp_status status = RP_OK;
    if (rp__flags.in_item) return RP_OK;
    turn_enter();
    for (uint64_t last = n_pushed; q->head && q->head->number <= last;) {
        rp_status one = step(q);
        status = status == RP_OK ? one : status;
        turn_leave(); /* others have their turn */
        turn_enter();
    }
    turn_leave();
    return status;
}

/* Gives the caller's reference of r up. Not under a lock. */
static rp_status reach(record *r) {
    rp_status status = RP_OK;
    if (rp__flags.in_item) {
        enter();
        record_release(r);
        leave();
        return RP_OK;
    }
    turn_enter();
    while (!r->done) {
        rp_status one = step(r->queue);
        status = status == RP_OK ? one : status;
        turn_leave();
        turn_enter();
    }
    record_release(r);
    turn_leave();
    return status;
}

static item *item_new(item_kind kind, size_t extra) {
    item *i = extra <= SIZE_MAX - sizeof *i ? rp__alloc(sizeof *i + extra) : NULL;
    if (!i) {
        RP__OOM("an entry of a stream's queue");
        return NULL;
    }
    i->kind = kind;
    i->next = NULL;
    return i;
}

/* Under `lock`. */
static void push(queue *q, item *i) {
    i->number = ++n_pushed;
    if (q->tail)
        q->tail->next = i;
    else
        q->head = i;
    q->tail = i;
}

/* ---- streams */

rp_status rp__cpu_stream_create(rp__device *d, rp_stream *s) {
    (void)d;
    if (s->is_default) return RP_OK;
    queue *q = rp__calloc(1, sizeof *q);
    if (!q) return RP__OOM("a stream's queue");
    s->native = q;
    enter();
    q->next = queues;
    if (q->next) q->next->prev = q;
    queues = q;
    leave();
    return RP_OK;
}

void rp__cpu_stream_destroy(rp__device *d, rp_stream *s) {
    (void)d;
    queue *q = s->native;
    if (!q) return;
    drain(q);
    enter();
    if (q->head) /* an item gave up the last reference */
        q->orphan = true;
    else
        unlink_queue(q);
    leave();
}

rp_status rp__cpu_stream_synchronize(rp__device *d, rp_stream *s) {
    (void)d;
    return s->is_default ? RP_OK : drain(s->native);
}

bool rp__cpu_stream_query(rp__device *d, rp_stream *s) {
    (void)d;
    if (s->is_default) return true;
    queue *q = s->native;
    if (turn_try()) {
        if (q->head) step(q); /* asking makes some progress, so that a program that polls ends */
        turn_leave();
    }
    enter();
    bool done = !q->head;
    leave();
    return done;
}

rp_status rp__cpu_synchronize(rp__device *d) {
    (void)d;
    rp_status status = RP_OK;
    if (rp__flags.in_item) return RP_OK;
    turn_enter();
    for (uint64_t last = n_pushed;;) {
        queue *q = queues; /* from the first one again: they come and go while an item runs */
        while (q && !(q->head && q->head->number <= last)) q = q->next;
        if (!q) break;
        rp_status one = step(q);
        status = status == RP_OK ? one : status;
        turn_leave();
        turn_enter();
    }
    turn_leave();
    return status;
}

rp_status rp__cpu_launch(rp__device *d, rp_stream *s, const rp__launch *l) {
    (void)d;
    if (s->is_default) return rp__cpu_run(l);
    if (s->capture) return rp__cpu_capture_launch(s, l);
    item *i = item_new(ITEM_LAUNCH, 0);
    if (!i) return RP_ERROR_OUT_OF_MEMORY;
    i->what.launch = rp__launch_copy(l, false); /* memory is the caller's to keep in stream order, as on a GPU */
    if (!i->what.launch) {
        rp__free(i);
        return RP_ERROR_OUT_OF_MEMORY;
    }
    enter();
    push(s->native, i);
    leave();
    return RP_OK;
}

rp_status rp__cpu_enqueue_copy(rp__device *d, rp_stream *s, void *dst, const void *host, size_t bytes) {
    (void)d;
    if (s->capture)
        return rp__fail(RP_ERROR_CAPTURE, "copying data from the host is not permitted while its stream is capturing");
    item *i = item_new(ITEM_COPY, bytes);
    if (!i) return RP_ERROR_OUT_OF_MEMORY;
    i->what.copy.dst = dst;
    i->what.copy.bytes = bytes;
    memcpy(i + 1, host, bytes);
    enter();
    push(s->native, i);
    leave();
    return RP_OK;
}

rp_status rp__cpu_enqueue_graph(rp_stream *s, rp__devgraph *g) {
    item *i = item_new(ITEM_GRAPH, 0);
    if (!i) return RP_ERROR_OUT_OF_MEMORY;
    i->what.graph = g;
    enter();
    push(s->native, i);
    leave();
    return RP_OK;
}

static bool has_graph(const queue *q, const rp__devgraph *g) {
    for (const item *i = q->head; i; i = i->next) {
        if (i->kind == ITEM_GRAPH && i->what.graph == g) return true;
    }
    return false;
}

void rp__cpu_graph_drain(rp__devgraph *g) {
    if (rp__flags.in_item) return;
    turn_enter();
    for (;;) {
        queue *q = queues;
        while (q && !has_graph(q, g)) q = q->next;
        if (!q) break;
        step(q);
    }
    turn_leave();
}

/* ---- events */

rp_status rp__cpu_event_create(rp__device *d, rp_event *e) {
    (void)d;
    e->native = rp__calloc(1, sizeof(event));
    return e->native ? RP_OK : RP__OOM("an event");
}

void rp__cpu_event_destroy(rp__device *d, rp_event *e) {
    (void)d;
    event *own = e->native;
    enter();
    record_release(own->last);
    leave();
    rp__free(own->mark.frontier.nodes);
    rp__free(own);
}

rp_status rp__cpu_event_record(rp__device *d, rp_event *e, rp_stream *s) {
    (void)d;
    event *own = e->native;
    record *r = NULL;
    item *i = NULL;
    if (s->capture) { /* without the lock: recordings have one of their own, under which memory is asked for */
        RP_TRY(rp__cpu_capture_mark(s, &own->mark));
        enter();
        record_release(own->last);
        own->last = NULL;
        leave();
        return RP_OK;
    }
    r = rp__calloc(1, sizeof *r);
    if (!r) return RP__OOM("the recording of an event");
    r->refs = 1;
    if (!s->is_default && !(i = item_new(ITEM_RECORD, 0))) {
        rp__free(r);
        return RP_ERROR_OUT_OF_MEMORY;
    }
    enter();
    own->mark.capture = 0;
    record_release(own->last);
    own->last = r;
    if (i) {
        r->refs++;
        r->queue = s->native;
        i->what.record = r;
        push(s->native, i);
    } else {
        record_happen(r);
    }
    leave();
    return RP_OK;
}

static rp_status captured(const event *own) {
    return own->mark.capture ? rp__fail(RP_ERROR_CAPTURE, "an event recorded in a capture has no state to ask for")
                             : RP_OK;
}

/* The last recording, counted; NULL: there is none, or it is done. */
static record *outstanding(const event *own) {
    enter();
    record *r = own->last && !own->last->done ? own->last : NULL;
    if (r) r->refs++;
    leave();
    return r;
}

rp_status rp__cpu_event_synchronize(rp__device *d, rp_event *e) {
    (void)d;
    event *own = e->native;
    RP_TRY(captured(own));
    record *r = outstanding(own);
    return r ? reach(r) : RP_OK;
}

bool rp__cpu_event_query(rp__device *d, rp_event *e) {
    (void)d;
    event *own = e->native;
    if (captured(own) != RP_OK) return false;
    record *r = outstanding(own);
    if (!r) return true;
    if (turn_try()) {
        if (!r->done) step(r->queue);
        turn_leave();
    }
    enter();
    bool done = r->done;
    record_release(r);
    leave();
    return done;
}

bool rp__cpu_event_done(rp__device *d, rp_event *e) {
    (void)d;
    event *own = e->native;
    if (captured(own) != RP_OK) return false;
    enter();
    const record *r = own->last;
    bool done = !r || r->done;
    if (!done) {
        r->queue->asked++;
        atomic_store_explicit(&asked, true, memory_order_relaxed);
    }
    leave();
    return done;
}

bool rp__cpu_idle(rp__device *d) {
    (void)d;
    enter();
    const queue *q = queues;
    while (q && !q->head) q = q->next;
    leave();
    return !q;
}

/* A step for each time that somebody asked, as if they had asked here. */
void rp__cpu_poll(rp__device *d) {
    (void)d;
    if (RP__LIKELY(!atomic_load_explicit(&asked, memory_order_relaxed)) || !turn_try()) return;
    for (;;) {
        queue *q = queues;
        while (q && !q->asked) q = q->next;
        if (!q) break;
        q->asked = q->head ? q->asked - 1 : 0;
        if (q->head) step(q);
    }
    atomic_store_explicit(&asked, false, memory_order_relaxed);
    turn_leave();
}

double rp__cpu_event_elapsed_ms(rp__device *d, rp_event *start_event, rp_event *end_event) {
    (void)d;
    event *a = start_event->native, *b = end_event->native;
    if (captured(a) != RP_OK || captured(b) != RP_OK) return -1;
    enter();
    double ms = -1;
    if (a->last && b->last && a->last->done && b->last->done)
        ms = (double)(b->last->time.tv_sec - a->last->time.tv_sec) * 1e3 +
             (double)(b->last->time.tv_nsec - a->last->time.tv_nsec) * 1e-6;
    else
        rp__fail(RP_ERROR_STATE, "event_elapsed_ms: an event has not happened yet: synchronise it first");
    leave();
    return ms;
}

rp_status rp__cpu_stream_wait_event(rp__device *d, rp_stream *s, rp_event *e) {
    (void)d;
    event *own = e->native;
    if (own->mark.capture) return rp__cpu_capture_wait(s, &own->mark);
    if (s->capture) return rp__cpu_capture_outsider(s);
    if (s->is_default) { /* it runs inline: so must what it waits for */
        record *r = outstanding(own);
        return r ? reach(r) : RP_OK;
    }
    item *i = item_new(ITEM_WAIT, 0);
    if (!i) return RP_ERROR_OUT_OF_MEMORY;
    enter();
    record *r = own->last;
    if (r && !r->done) {
        r->refs++;
        i->what.record = r;
        push(s->native, i);
        i = NULL;
    }
    leave();
    rp__free(i);
    return RP_OK;
}
