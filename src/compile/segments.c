/* Trace-and-flush: a function that cannot be one graph runs at every call; its segments are compiled, and found by their hash.
   They are bounded by number and by the memory of their programs (rp_compile_options.instance_bytes): the least recently used go
   first, those of this call and the one before stay, so that a function whose segments are many is not compiled at every call. */
#include <stdio.h>

#include "compile/compiled_parts.h"
#include "core/alloc.h"
#include "trace/ir_run.h"

enum { SEGMENT_LIMIT = 256 };

void rp__segments_only(rp__compiled *c, rp__reason reason, const char *site, const char *detail) {
    c->lazy = true;
    c->lazy_reason = reason;
    (void)snprintf(c->lazy_site, sizeof c->lazy_site, "%s", site && *site ? site : "no call site");
    rp__explain_add(c->base.explain, "break", reason, site, 1,
                    "%s%s%s; the function runs at every call (trace-and-flush)", rp__reason_text(reason),
                    detail ? ": " : "", detail ? detail : "");
    if (reason == RP__REASON_WRITTEN_WITHOUT_TAPE)
        rp__explain_advise(c->base.explain, RP__REASON_STEP_NOT_DETACHED, c->lazy_site, c->base.name, "%s",
                           rp__reason_text(RP__REASON_STEP_NOT_DETACHED));
}

static void segment_free(const rp__compiled *c, rp__segment *s) {
    if (s->object) c->engine->destroy(s->object);
    rp__explain_close(s->explain);
    rp__free(s);
}

void rp__segments_clear(rp__compiled *c) {
    size_t at = 0;
    void *value;
    rp__hash key;
    while (rp__map_next(&c->segments, &at, &key, &value)) segment_free(c, value);
    rp__map_free(&c->segments);
    c->segments = (rp__map){0};
    c->segment_bytes = 0;
}

/* What its program holds by now: results that callers keep make it grow. */
static void measure(rp__compiled *c, rp__segment *s) {
    const rp__executable *p = s->object && c->engine->settled ? c->engine->settled(s->object) : NULL;
    const rp__storage *arena = NULL;
    uint64_t bytes = p ? rp__executable_holds(p, &arena) : 0;
    if (arena) bytes += arena->bytes;
    c->segment_bytes += bytes - s->bytes;
    s->bytes = bytes;
}

static void evict(rp__compiled *c) {
    const uint64_t limit = c->options.instance_bytes ? c->options.instance_bytes : RP__INSTANCE_BYTES;
    while (c->segments.count > SEGMENT_LIMIT || c->segment_bytes > limit) {
        rp__segment *oldest = NULL;
        rp__hash key, its_key = rp__hash_none();
        void *value;
        for (size_t at = 0; rp__map_next(&c->segments, &at, &key, &value);) {
            rp__segment *s = value;
            if (s->used + 1 >= c->segment_calls || (oldest && oldest->used <= s->used)) continue;
            oldest = s;
            its_key = key;
        }
        if (!oldest) return;
        (void)rp__map_remove(&c->segments, its_key);
        c->segment_bytes -= oldest->bytes;
        segment_free(c, oldest);
        rp__explain_add(c->base.explain, "instance", RP__REASON_INSTANCE_EVICTED, NULL, 1,
                        "the least recently used segment made room for others");
    }
}

/* rp__trace_request.run; ctx: the function. */
static rp_status run_segment(void *ctx, rp_ir *ir, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__compiled *c = ctx;
    rp__hash hash;
    const uint64_t environment = rp__guards_environment();
    RP_TRY(rp__ir_hash(ir, &hash));
    hash = rp__hash_bytes(&environment, sizeof environment, hash);
    rp__segment *s = rp__map_get(&c->segments, hash);
    if (!s) {
        s = rp__calloc(1, sizeof *s);
        if (!s) return RP__OOM("segment");
        s->explain = rp__explain_open(c->base.explain, "segment %zu", ++c->n_segments);
        const rp__engine_request request = {.graph = ir, .segment = true, .explain = s->explain};
        rp_status status = rp__specialisation_compile(c, &request, &s->object);
        if (status != RP_OK || !rp__map_put(&c->segments, hash, s)) {
            segment_free(c, s);
            return status != RP_OK ? status : RP__OOM("segment");
        }
        rp__explain_add(s->explain, "specialisation", RP__REASON_NONE, NULL, 1, "segment of %zu nodes",
                        ir->body.n_nodes);
    }
    s->used = c->segment_calls;
    rp_status status =
        s->object ? c->engine->run(s->object, in, n_in, out, n_out) : rp__ir_run(ir, in, n_in, out, n_out, NULL);
    measure(c, s);
    evict(c);
    return status;
}

rp_status rp__segments_fullgraph(const rp__compiled *c) {
    return rp__fail(RP_ERROR_GRAPH_BREAK, "%s: %s, and fullgraph was asked for: %s", c->base.name,
                    rp__reason_text(c->lazy_reason), c->lazy_site);
}

rp_status rp__segments_trace(rp__compiled *c, rp__trace_mode mode, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                             size_t n_out, rp__trace_result *result) {
    const rp__trace_request request = {
        .mode = mode, .fn = c->base.fn, .in = in, .n_in = n_in, .n_out = n_out, .run = run_segment, .run_ctx = c};
    c->segment_calls++;
    return rp__trace_run(&request, out, result);
}

static rp_status run_lazy(rp__compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp__trace_result result = {0};
    rp_status status = rp__segments_trace(c, RP__TRACE_SEGMENTS, in, n_in, out, n_out, &result);
    rp__trace_result_free(&result);
    return status;
}

rp_status rp__segments_call(rp__compiled *c, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    rp_status status = run_lazy(c, in, n_in, out, n_out);
    return status == RP_OK && c->options.fullgraph ? rp__segments_fullgraph(c) : status;
}

rp_status rp__segments_call_failing(rp__compiled *c, const char *detail, rp_tensor *const *in, size_t n_in,
                                    rp_tensor **out, size_t n_out) {
    RP_TRY(run_lazy(c, in, n_in, out, n_out));
    rp__segments_only(c, RP__REASON_TRACE_FAILED, NULL, detail);
    return c->options.fullgraph ? rp__segments_fullgraph(c) : RP_OK;
}
