/* The registry of devices, and the public face of streams and events: argument checks, counts, and the thread's defaults.
   What a device does lies behind its ops; nothing here knows which device it is. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/flags.h"
#include "core/fork.h"
#include "core/log.h"
#include "device/allocator.h"
#include "device/capture.h"
#include "device/error_record.h"
#include "device/generator.h"

static struct {
    rp__mutex lock;
    atomic_bool cpu_open;
    bool cuda_asked;
    rp__device *cuda; /* array of n_cuda */
    size_t n_cuda;
    const char *cuda_why;
    atomic_bool cuda_open[RP__DEVICE_SLOTS - 1];
} registry = {.lock = RP__MUTEX_INIT};
RP__LOCKS_SURVIVE_FORK(fork_lock, &registry.lock, 1)

rp_device rp_cpu(void) { return (rp_device){RP_DEVICE_CPU, 0}; }
rp_device rp_cuda(int index) { return (rp_device){RP_DEVICE_CUDA, index}; }

const char *rp__device_text(rp_device id, char buf[24]) {
    if (id.type == RP_DEVICE_CPU)
        snprintf(buf, 24, "cpu");
    else
        snprintf(buf, 24, "cuda:%d", (int)id.index);
    return buf;
}

/* Numbers begin at 1, the default stream's too: 0 is no stream where one is remembered by its number. */
static rp_stream *stream_handle(rp__device *d) {
    static _Atomic uint64_t ids;
    rp_stream *s = rp__handle_new(RP__HANDLE_STREAM, sizeof *s);
    if (!s) {
        RP__OOM("a stream");
        return NULL;
    }
    atomic_init(&s->refs, 1);
    s->device = d;
    s->id = atomic_fetch_add(&ids, 1) + 1;
    return s;
}

rp_status rp__device_open(rp__device *d) {
    rp_stream *s = d->default_stream = stream_handle(d);
    if (!s) return RP_ERROR_OUT_OF_MEMORY;
    s->is_default = true;
    rp_status status = d->ops->stream_create(d, s);
    if (status != RP_OK) {
        rp__handle_free(s);
        d->default_stream = NULL;
        return status;
    }
    RP_TRY_GOTO(status, undo, rp__allocator_new(d, &d->allocator));
    RP_TRY_GOTO(status, undo, rp__generator_open(d, &d->generator));
    rp__log(RP__LOG_DEVICE, "opened %s", d->label);
    return RP_OK;
undo:
    rp__allocator_free(d->allocator);
    d->allocator = NULL;
    d->ops->stream_destroy(d, s);
    rp__handle_free(s);
    d->default_stream = NULL;
    return status;
}

static void ask_for_cuda(void) { /* under the lock */
    if (registry.cuda_asked) return;
    registry.cuda_asked = true;
    rp__error_state state;
    rp__error_save(&state);
    if (rp__cuda_devices(&registry.cuda, &registry.n_cuda, &registry.cuda_why) != RP_OK) {
        registry.n_cuda = 0;
        registry.cuda_asked = false; /* out of memory: the next call asks again */
    }
    if (registry.n_cuda > RP__DEVICE_SLOTS - 1) registry.n_cuda = RP__DEVICE_SLOTS - 1;
    if (registry.n_cuda == 0)
        rp__log(RP__LOG_DEVICE, "no CUDA device: %s", registry.cuda_why ? registry.cuda_why : rp_error_message());
    rp_error_take();
    rp__error_restore(&state);
}

static rp__device *open_once(rp__device *d, atomic_bool *open) {
    if (RP__LIKELY(atomic_load_explicit(open, memory_order_acquire))) return d;
    rp__lock(&registry.lock);
    bool is_open = atomic_load_explicit(open, memory_order_relaxed);
    if (!is_open && rp__device_open(d) == RP_OK) {
        atomic_store_explicit(open, true, memory_order_release);
        is_open = true;
    }
    rp__unlock(&registry.lock);
    return is_open ? d : NULL;
}

rp__device *rp__device_get(rp_device id) {
    if (id.type == RP_DEVICE_CPU && id.index == 0) return open_once(&rp__cpu_device, &registry.cpu_open);
    char text[24];
    if (id.type == RP_DEVICE_CPU) {
        rp__fail(RP_ERROR_DEVICE, "there is one CPU device: its index is 0, not %d", (int)id.index);
        return NULL;
    }
    if (id.type != RP_DEVICE_CUDA || id.index < 0) {
        rp__fail(RP_ERROR_DEVICE, "no such device: type %d, index %d", (int)id.type, (int)id.index);
        return NULL;
    }
    rp__lock(&registry.lock);
    ask_for_cuda();
    size_t n = registry.n_cuda;
    rp__unlock(&registry.lock);
    if ((size_t)id.index >= n) {
        if (n)
            rp__fail(RP_ERROR_DEVICE, "%s does not exist: this machine has %zu CUDA device%s",
                     rp__device_text(id, text), n, n == 1 ? "" : "s");
        else
            rp__fail(RP_ERROR_UNAVAILABLE, "%s is not available: %s", rp__device_text(id, text),
                     registry.cuda_why ? registry.cuda_why : "no CUDA device was found");
        return NULL;
    }
    return open_once(&registry.cuda[id.index], &registry.cuda_open[id.index]);
}

rp__device *rp__device_next_open(rp__device *d) {
    rp__lock(&registry.lock);
    size_t from = !d || d == &rp__cpu_device ? 0 : (size_t)(d - registry.cuda) + 1;
    rp__device *found = NULL;
    if (!d && atomic_load(&registry.cpu_open)) found = &rp__cpu_device;
    for (size_t i = from; !found && i < registry.n_cuda; i++) {
        if (atomic_load(&registry.cuda_open[i])) found = &registry.cuda[i];
    }
    rp__unlock(&registry.lock);
    return found;
}

int rp_device_count(rp_device_type type) {
    if (type == RP_DEVICE_CPU) return 1;
    if (type != RP_DEVICE_CUDA) return 0;
    rp__lock(&registry.lock);
    ask_for_cuda();
    int n = (int)registry.n_cuda;
    rp__unlock(&registry.lock);
    return n;
}

bool rp_device_available(rp_device device) { return device.index >= 0 && device.index < rp_device_count(device.type); }

/* ---- what belongs to a thread */

static RP__TLS_FAST rp_device default_device; /* zero is the CPU */
RP__TLS_FAST rp_stream *rp__current_cpu;      /* retained; NULL: the default stream */
static RP__TLS_FAST rp_stream **current_cuda; /* the same, RP__DEVICE_SLOTS - 1 of them; NULL: none was ever set */

static void release_current(void *unused) {
    (void)unused;
    rp_stream *s = rp__current_cpu;
    rp__current_cpu = NULL;
    rp__stream_drop(s);
    rp_stream **cuda = current_cuda;
    current_cuda = NULL;
    for (size_t i = 0; cuda && i < RP__DEVICE_SLOTS - 1; i++) rp__stream_drop(cuda[i]);
    rp__free(cuda);
}

rp_status rp_set_default_device_at(const char *site, rp_device device) {
    RP__CALLED_FROM(site);
    if (!rp__device_get(device)) return rp_error_status();
    default_device = device;
    return RP_OK;
}

rp_device rp_default_device(void) { return default_device; }

rp_stream *rp__current_stream(rp__device *d) {
    rp_stream *s = d->slot == 0 ? rp__current_cpu : current_cuda ? current_cuda[d->slot - 1] : NULL;
    return s ? s : d->default_stream;
}

/* ---- streams */

static rp_stream error_stream; /* what rp_stream_new returns on failure: no device */
static rp_event error_event;

static rp_status stream_check(const rp_stream *s, const char *call) {
    return rp__handle_check(s, RP__HANDLE_STREAM, call);
}

static rp_status event_check(const rp_event *e, const char *call) {
    return rp__handle_check(e, RP__HANDLE_EVENT, call);
}

static rp_status same_device(const rp__device *a, const rp__device *b, const char *what) {
    char x[24], y[24];
    if (a == b) return RP_OK;
    return rp__fail(RP_ERROR_DEVICE, "%s: the stream is of %s, the event of %s", what, rp__device_text(a->id, x),
                    rp__device_text(b->id, y));
}

static atomic_bool several_streams;
bool rp__several_streams(void) { return atomic_load_explicit(&several_streams, memory_order_relaxed); }

rp_stream *rp_stream_new_at(const char *site, rp_device device) {
    RP__CALLED_FROM(site);
    atomic_store_explicit(&several_streams, true, memory_order_relaxed);
    rp__device *d = rp__device_get(device);
    return d ? rp__stream_new(d) : &error_stream;
}

rp_stream *rp__stream_new(rp__device *d) {
    rp_stream *s = stream_handle(d);
    if (!s) return &error_stream;
    if (d->ops->stream_create(d, s) != RP_OK) {
        rp__handle_free(s);
        return &error_stream;
    }
    return s;
}

/* Adopted streams: one handle a native stream, so that what was freed in its order is found again. */
static rp__mutex foreign_lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(foreign_fork_lock, &foreign_lock, 1)
static rp_stream *foreign_streams;

static rp_stream *adopt(rp__device *d, void *native) { /* under the lock */
    for (rp_stream *s = foreign_streams; s; s = s->next_foreign) {
        if (s->device != d || s->native != native) continue;
        atomic_fetch_add_explicit(&s->handle.held, 1, memory_order_relaxed);
        return rp__stream_retain(s);
    }
    rp_stream *s = stream_handle(d);
    if (!s) return &error_stream;
    s->native = native;
    s->foreign = true;
    s->next_foreign = foreign_streams;
    foreign_streams = s;
    return s;
}

rp_stream *rp_stream_wrap_at(const char *site, rp_device device, void *native) {
    RP__CALLED_FROM(site);
    rp__device *d = rp__device_get(device);
    if (!d) return &error_stream;
    if (device.type == RP_DEVICE_CPU) {
        rp__fail(RP_ERROR_DEVICE, "stream_wrap: a CPU has no streams but those of rp_stream_new");
        return &error_stream;
    }
    atomic_store_explicit(&several_streams, true, memory_order_relaxed);
    rp__lock(&foreign_lock);
    rp_stream *s = adopt(d, native);
    rp__unlock(&foreign_lock);
    if (s == &error_stream || rp__capture_follow(s) == RP_OK) return s;
    rp_stream_release(s);
    return &error_stream;
}

/* Gives a reference up; true: it was the last one, and nobody finds the stream any more. */
static bool last_of_foreign(rp_stream *s) {
    rp__lock(&foreign_lock);
    bool last = atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1;
    for (rp_stream **link = &foreign_streams; last && *link; link = &(*link)->next_foreign) {
        if (*link != s) continue;
        *link = s->next_foreign;
        break;
    }
    rp__unlock(&foreign_lock);
    return last;
}

rp_stream *rp__stream_retain(rp_stream *s) {
    if (s && s->device) atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void rp_stream_release(rp_stream *s) {
    if (!s || s == &error_stream || (rp__handle_is(s, RP__HANDLE_STREAM) && s->is_default)) return;
    if (rp__handle_give_up(s, RP__HANDLE_STREAM, "stream_release")) rp__stream_drop(s);
}

void rp__stream_drop(rp_stream *s) {
    if (!s || !s->device || s->is_default) return;
    if (s->foreign ? !last_of_foreign(s) : atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    rp__device *d = s->device;
    d->ops->stream_destroy(d, s);
    rp__allocator_forget(d, s);
    rp__handle_free(s);
}

rp_stream *rp_current_stream_at(const char *site, rp_device device) {
    RP__CALLED_FROM(site);
    rp__device *d = rp__device_get(device);
    return d ? rp__current_stream(d) : &error_stream;
}

rp_status rp_set_current_stream_at(const char *site, rp_stream *s) {
    RP__CALLED_FROM(site);
    RP_TRY(stream_check(s, "set_current_stream"));
    bool cpu = s->device->slot == 0;
    if (!s->is_default) {
        static rp__thread_end streams = {.end = release_current};
        if (!rp__thread_keep(&streams, &error_stream)) /* any value: it looks at the pointers above */
            return RP__OOM("the thread's current stream");
        if (!cpu && !current_cuda) current_cuda = rp__calloc(RP__DEVICE_SLOTS - 1, sizeof *current_cuda);
        if (!cpu && !current_cuda) return RP__OOM("the thread's current streams");
    } else if (!cpu && !current_cuda) {
        return RP_OK; /* going back needs no memory */
    }
    rp_stream **place = cpu ? &rp__current_cpu : &current_cuda[s->device->slot - 1];
    rp_stream *old = *place;
    *place = s->is_default ? NULL : rp__stream_retain(s);
    rp__stream_drop(old);
    return RP_OK;
}

rp_status rp__device_waited(rp__device *d) {
    rp__foreign_collect(d);
    if (d != &rp__cpu_device && rp__cpu_device.allocator) rp__foreign_collect(&rp__cpu_device); /* page-locked memory */
    return rp__error_record_check(d);
}

rp_status rp_stream_synchronize_at(const char *site, rp_stream *s) {
    RP__CALLED_FROM(site);
    RP_TRY(stream_check(s, "stream_synchronize"));
    RP_TRY(rp__capture_forbid(s, "synchronising a stream"));
    RP_TRY(s->device->ops->stream_synchronize(s->device, s));
    return rp__device_waited(s->device);
}

bool rp_stream_query_at(const char *site, rp_stream *s) {
    RP__CALLED_FROM(site);
    if (stream_check(s, "stream_query") != RP_OK || rp__capture_forbid(s, "querying a stream") != RP_OK) return false;
    bool done = s->device->ops->stream_query(s->device, s);
    if (done) rp__foreign_collect(s->device);
    return done;
}

rp_status rp_synchronize_at(const char *site, rp_device device) {
    RP__CALLED_FROM(site);
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    RP_TRY(rp__capture_forbid(rp__current_stream(d), "synchronising a device"));
    RP_TRY(rp__capture_forbid(NULL, "synchronising a device"));
    RP_TRY(d->ops->synchronize(d));
    return rp__device_waited(d);
}

/* ---- events */

rp_event *rp_event_new_at(const char *site, rp_device device, bool timing) {
    RP__CALLED_FROM(site);
    rp__device *d = rp__device_get(device);
    if (!d) return &error_event;
    rp_event *e = rp__handle_new(RP__HANDLE_EVENT, sizeof *e);
    if (!e) {
        RP__OOM("an event");
        return &error_event;
    }
    e->device = d;
    e->timing = timing;
    if (d->ops->event_create(d, e) != RP_OK) {
        rp__handle_free(e);
        return &error_event;
    }
    return e;
}

void rp_event_release(rp_event *e) {
    if (!e || e == &error_event || !rp__handle_give_up(e, RP__HANDLE_EVENT, "event_release")) return;
    e->device->ops->event_destroy(e->device, e);
    rp__handle_free(e);
}

rp_status rp_event_record_at(const char *site, rp_event *e, rp_stream *s) {
    RP__CALLED_FROM(site);
    RP_TRY(event_check(e, "event_record"));
    RP_TRY(stream_check(s, "event_record"));
    RP_TRY(same_device(s->device, e->device, "event_record"));
    RP_TRY(e->device->ops->event_record(e->device, e, s));
    e->recorded = true;
    e->captured = s->capture != NULL;
    return RP_OK;
}

rp_status rp__stream_follow(rp_stream *s, rp_stream *before) {
    rp_event *e = rp_event_new(before->device->id, false);
    rp_status status = e->device ? rp_event_record(e, before) : rp_error_status();
    if (status == RP_OK) status = rp_stream_wait_event(s, e);
    rp_event_release(e);
    return status;
}

rp_status rp_event_synchronize_at(const char *site, rp_event *e) {
    RP__CALLED_FROM(site);
    RP_TRY(event_check(e, "event_synchronize"));
    if (!e->recorded) return RP_OK;
    RP_TRY(rp__capture_forbid(NULL, "synchronising an event"));
    RP_TRY(e->device->ops->event_synchronize(e->device, e));
    rp__foreign_collect(e->device);
    return RP_OK;
}

bool rp_event_query_at(const char *site, rp_event *e) {
    RP__CALLED_FROM(site);
    if (event_check(e, "event_query") != RP_OK) return false;
    if (!e->recorded) return true;
    if (rp__capture_forbid(NULL, "querying an event") != RP_OK) return false;
    bool done = e->device->ops->event_query(e->device, e);
    if (done) rp__foreign_collect(e->device);
    return done;
}

double rp_event_elapsed_ms_at(const char *site, rp_event *start, rp_event *end) {
    RP__CALLED_FROM(site);
    if (event_check(start, "event_elapsed_ms") != RP_OK || event_check(end, "event_elapsed_ms") != RP_OK) return -1;
    if (start->device != end->device) {
        rp__fail(RP_ERROR_DEVICE, "event_elapsed_ms: the events are of different devices");
        return -1;
    }
    if (!start->timing || !end->timing || !start->recorded || !end->recorded) {
        rp__fail(RP_ERROR_STATE, "event_elapsed_ms: both events must be made with timing and recorded");
        return -1;
    }
    if (start->captured || end->captured) { /* drivers differ in what they call this */
        rp__fail(RP_ERROR_CAPTURE, "event_elapsed_ms: an event that was recorded in a capture has no time");
        return -1;
    }
    return start->device->ops->event_elapsed_ms(start->device, start, end);
}

rp_status rp_stream_wait_event_at(const char *site, rp_stream *s, rp_event *e) {
    RP__CALLED_FROM(site);
    RP_TRY(stream_check(s, "stream_wait_event"));
    RP_TRY(event_check(e, "stream_wait_event"));
    RP_TRY(same_device(s->device, e->device, "stream_wait_event"));
    return e->recorded ? s->device->ops->stream_wait_event(s->device, s, e) : RP_OK;
}

rp_status rp_stream_wait_stream_at(const char *site, rp_stream *s, rp_stream *before) {
    RP__CALLED_FROM(site);
    RP_TRY(stream_check(s, "stream_wait_stream"));
    RP_TRY(stream_check(before, "stream_wait_stream"));
    RP_TRY(same_device(s->device, before->device, "stream_wait_stream"));
    return s == before ? RP_OK : rp__stream_follow(s, before);
}

/* ---- switches */

static atomic_bool deterministic;
static atomic_int float32_precision, float32_conv_precision;

static const char *const precisions[] = {[RP__FLOAT32_HIGHEST] = "highest",
                                         [RP__FLOAT32_HIGH] = "high",
                                         [RP__FLOAT32_MEDIUM] = "medium",
                                         [RP__FLOAT32_BF16X3] = "bf16x3"};

rp_status (*rp__switch_hook)(void);

static rp_status before_switch(bool changes) {
    return RP__UNLIKELY(rp__flags.tracing) && changes && rp__switch_hook ? rp__switch_hook() : RP_OK;
}

static bool is_word(const char *word, const char *a, const char *b) {
    return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

/* most: of the settings, in the order of their enum; told: their words. */
static rp_status set_precision(atomic_int *at, const char *op, const char *precision, int most, const char *told) {
    int to = -1;
    if (!precision) precision = "(null)";
    if (is_word(precision, "highest", "ieee")) to = RP__FLOAT32_HIGHEST;
    if (is_word(precision, "high", "tf32")) to = RP__FLOAT32_HIGH;
    if (is_word(precision, "medium", "bf16x3")) to = *precision == 'm' ? RP__FLOAT32_MEDIUM : RP__FLOAT32_BF16X3;
    if (to < 0 || to > most)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: \"%s\" is none of %s", op, precision, told);
    RP_TRY(before_switch(atomic_load_explicit(at, memory_order_relaxed) != to));
    atomic_store_explicit(at, to, memory_order_relaxed);
    return RP_OK;
}
rp_status rp_set_float32_matmul_precision_at(const char *site, const char *precision) {
    RP__CALLED_FROM(site);
    return set_precision(&float32_precision, "set_float32_matmul_precision", precision, RP__FLOAT32_BF16X3,
                         "\"highest\" (\"ieee\"), \"high\" (\"tf32\"), \"medium\" and \"bf16x3\"");
}
rp__float32_precision rp__float32_matmul_precision(void) {
    return (rp__float32_precision)atomic_load_explicit(&float32_precision, memory_order_relaxed);
}
const char *rp_float32_matmul_precision(void) { return precisions[rp__float32_matmul_precision()]; }
static bool allows_tf32(int precision) { return precision == RP__FLOAT32_HIGH || precision == RP__FLOAT32_MEDIUM; }
static bool set_allowed(atomic_int *at, bool allow) {
    const int to = allow ? RP__FLOAT32_HIGH : RP__FLOAT32_HIGHEST;
    const int now = atomic_load_explicit(at, memory_order_relaxed);
    return allows_tf32(before_switch(now != to) == RP_OK ? atomic_exchange(at, to) : now);
}
bool rp_set_float32_matmul_allow_tf32(bool allow) { return set_allowed(&float32_precision, allow); }
bool rp_float32_matmul_allow_tf32(void) { return allows_tf32(rp__float32_matmul_precision()); }

rp_status rp_set_float32_conv_precision_at(const char *site, const char *precision) {
    RP__CALLED_FROM(site);
    return set_precision(&float32_conv_precision, "set_float32_conv_precision", precision, RP__FLOAT32_HIGH,
                         "\"highest\" (\"ieee\") and \"high\" (\"tf32\")");
}
rp__float32_precision rp__float32_conv_precision(void) {
    return (rp__float32_precision)atomic_load_explicit(&float32_conv_precision, memory_order_relaxed);
}
const char *rp_float32_conv_precision(void) { return precisions[rp__float32_conv_precision()]; }
bool rp_set_float32_conv_allow_tf32(bool allow) { return set_allowed(&float32_conv_precision, allow); }
bool rp_float32_conv_allow_tf32(void) { return allows_tf32(rp__float32_conv_precision()); }

bool rp_set_deterministic(bool on) {
    const bool now = rp_deterministic();
    return before_switch(now != on) == RP_OK ? atomic_exchange(&deterministic, on) : now;
}
bool rp_deterministic(void) { return atomic_load_explicit(&deterministic, memory_order_relaxed); }
