/* The CPU device's own parts: queued streams, events, captures and device graphs. Private to src/device/cpu/. */
#ifndef RP_DEVICE_CPU_CPU_H
#define RP_DEVICE_CPU_CPU_H

#include "device/device.h"

/* Runs one launch now, in slices on the pool. */
rp_status rp__cpu_run(const rp__launch *l);

/* stream.c: streams and events */
rp_status rp__cpu_stream_create(rp__device *d, rp_stream *s);
void rp__cpu_stream_destroy(rp__device *d, rp_stream *s);
rp_status rp__cpu_stream_synchronize(rp__device *d, rp_stream *s);
bool rp__cpu_stream_query(rp__device *d, rp_stream *s);
rp_status rp__cpu_stream_wait_event(rp__device *d, rp_stream *s, rp_event *e);
rp_status rp__cpu_event_create(rp__device *d, rp_event *e);
void rp__cpu_event_destroy(rp__device *d, rp_event *e);
rp_status rp__cpu_event_record(rp__device *d, rp_event *e, rp_stream *s);
rp_status rp__cpu_event_synchronize(rp__device *d, rp_event *e);
bool rp__cpu_event_query(rp__device *d, rp_event *e);
bool rp__cpu_event_done(rp__device *d, rp_event *e);
bool rp__cpu_idle(rp__device *d);
void rp__cpu_poll(rp__device *d);
double rp__cpu_event_elapsed_ms(rp__device *d, rp_event *start, rp_event *end);
rp_status rp__cpu_launch(rp__device *d, rp_stream *s, const rp__launch *l);
rp_status rp__cpu_synchronize(rp__device *d);
rp_status rp__cpu_enqueue_copy(rp__device *d, rp_stream *s, void *dst, const void *host,
                               size_t bytes);                   /* queued streams only */
rp_status rp__cpu_enqueue_graph(rp_stream *s, rp__devgraph *g); /* queued streams only */
void rp__cpu_graph_drain(rp__devgraph *g);                      /* runs what streams have queued of g */
uint64_t rp__cpu_random(void); /* of the stream order's sequence; 0 always when REPRISE_STREAM_SEED is 0 */

/* graph.c: device graphs and captures */
rp_status rp__cpu_graph_new(rp__device *d, rp__devgraph **out);
rp_status rp__cpu_graph_add(rp__devgraph *g, const rp__launch *l, const uint32_t *deps, size_t n_deps, uint32_t *node);
rp_status rp__cpu_graph_choice_new(rp__devgraph *g, bool two, uint64_t *handle);
rp_status rp__cpu_graph_choice_add(rp__devgraph *g, uint64_t handle, bool loop, bool two, const uint32_t *deps,
                                   size_t n_deps, uint32_t *node, rp__devgraph *bodies[2]);
rp_status rp__cpu_graph_instantiate(rp__devgraph *g, rp_stream *upload_on);
rp_status rp__cpu_graph_launch(rp__devgraph *g, rp_stream *s);
rp_status rp__cpu_graph_set_words(rp__devgraph *g, uint32_t node, const uint64_t *words);
size_t rp__cpu_graph_nodes(const rp__devgraph *g);
const rp__launch *rp__cpu_graph_node(const rp__devgraph *g, uint32_t node);
void rp__cpu_graph_free(rp__devgraph *g);
rp_status rp__cpu_graph_run_queued(rp__devgraph *g); /* all nodes, now */
rp_status rp__cpu_capture_begin(rp__device *d, rp_stream *s, rp_capture_mode mode);
rp_status rp__cpu_capture_end(rp__device *d, rp_stream *s, rp__devgraph **out);
rp_status rp__cpu_capture_launch(rp_stream *s, const rp__launch *l);

/* A set of nodes of a capture, on which what comes next depends. */
typedef struct rp__cpu_frontier {
    uint32_t *nodes;
    size_t n, capacity;
} rp__cpu_frontier;
/* What an event recorded in a capture remembers. */
typedef struct rp__cpu_mark {
    uint64_t capture; /* serial of the capture; 0: none */
    rp__cpu_frontier frontier;
} rp__cpu_mark;
rp_status
rp__cpu_capture_outsider(rp_stream *s); /* error: a capturing stream waits for an event from outside the capture */
rp_status rp__cpu_capture_mark(rp_stream *s, rp__cpu_mark *mark);
rp_status rp__cpu_capture_wait(rp_stream *s,
                               const rp__cpu_mark *mark); /* joins s to the mark's capture when it is not in it */

#endif
