/* The caching allocator: size rules, reuse, splitting and merging, other streams, pools, statistics, running out. The rules of
   CUDA devices run here over a device of the test's own that counts its segments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "device/allocator.h"
#include "device/cpu/memory.h"
#include "support/slow.h"
#include "tensor/tensor.h"

static rp_memory_stats stats(void) {
    rp_memory_stats s = {.struct_size = sizeof s};
    assert_int_equal(rp_memory_stats_get(rp_cpu(), &s), RP_OK);
    return s;
}

static rp__device *cpu(void) { return rp_current_stream(rp_cpu())->device; }

static rp__block *take(rp__device *d, rp_stream *s, size_t bytes) {
    rp__block *b = NULL;
    assert_int_equal(rp__block_alloc(d, s, bytes, &b), RP_OK);
    assert_true(b->bytes >= bytes);
    if (bytes) memset(b->data, 0xa5, d->id.type == RP_DEVICE_CPU ? bytes : 0);
    return b;
}

/* First of all tests: opening the device, and the thread's first allocation, fail at each step and then succeed. */
static void the_device_opens_after_failures(void **state) {
    (void)state;
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        rp__block *b = NULL;
        rp__alloc_fail_at(n);
        rp_stream *s = rp_current_stream(rp_cpu());
        if (s->device) rp__block_alloc(s->device, s, 10, &b);
        rp__alloc_fail_at(0);
        bool failed = rp_failed();
        assert_int_equal(failed, b == NULL);
        if (failed) assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
        failures += failed;
        if (b) rp__block_free(s->device, b);
        if (!failed) break;
    }
    assert_int_equal(failures, 4); /* stream, allocator, generator, block; a refused segment is asked for again */
    failures = 0;
    for (uint64_t n = 1; n < 8; n++) {
        rp_empty_cache(rp_cpu()); /* of the stream before, which would serve this one */
        rp_stream *s = rp_stream_new(rp_cpu());
        rp__block *b[2] = {0};
        rp__alloc_fail_at(n);
        for (int k = 0; k < 2; k++)
            rp__block_alloc(s->device, k ? s : s->device->default_stream, 1000 + 1500 * (size_t)n, &b[k]);
        rp__alloc_fail_at(0);
        assert_int_equal(rp_failed(), !b[0] || !b[1]);
        failures += rp_failed();
        rp_error_take();
        for (int k = 0; k < 2; k++) rp__block_free(s->device, b[k]);
        rp_stream_release(s);
    }
    assert_true(failures >= 4);
}

static void small_blocks_have_classes(void **state) {
    (void)state;
    rp__device *d = cpu();
    rp_stream *s = d->default_stream;
    static const struct {
        size_t bytes, usable;
    } rows[] = {{1, 64},    {64, 64},     {65, 128},    {512, 512},     {513, 640},    {640, 640},
                {641, 768}, {1024, 1024}, {1025, 1280}, {20000, 20480}, {32768, 32768}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rp__block *b = take(d, s, rows[i].bytes);
        assert_int_equal(b->bytes, rows[i].usable);
        assert_int_equal((uintptr_t)b->data % 64, 0);
        void *address = b->data;
        rp__block_free(d, b);
        b = take(d, s, rows[i].usable); /* at once, from the thread's list */
        assert_ptr_equal(b->data, address);
        rp__block_free(d, b);
    }
    rp__block *none = take(d, s, 0);
    assert_null(none->data);
    rp__block_free(d, none);
    rp__block_free(d, NULL);
}

static void blocks_do_not_overlap(void **state) {
    (void)state;
    enum { N = 400 };
    rp__device *d = cpu();
    rp_stream *side = rp_stream_new(rp_cpu());
    rp__block *held[N] = {0};
    size_t bytes[N];
    unsigned char mark[N];
    uint64_t random = 3;
    rp_memory_stats before = stats();
    for (int step = 0; step < 6000; step++) {
        random = rp__hash_mix(random, 5);
        size_t k = random % N;
        if (held[k]) {
            const unsigned char *p = held[k]->data;
            for (size_t i = 0; i < bytes[k]; i += 61) assert_int_equal(p[i], mark[k]);
            assert_int_equal(p[bytes[k] - 1], mark[k]);
            rp__block_free(d, held[k]);
            held[k] = NULL;
        } else {
            bytes[k] = 1 + (random >> 20) % (step % 16 == 0 ? 3000000 : step % 2 ? 300 : 60000);
            held[k] = take(d, random >> 63 ? side : d->default_stream, bytes[k]);
            mark[k] = (unsigned char)(random >> 12);
            memset(held[k]->data, mark[k], bytes[k]);
        }
    }
    for (int k = 0; k < N; k++) rp__block_free(d, held[k]);
    rp_stream_release(side);
    rp_memory_stats after = stats();
    assert_int_equal(after.allocated, before.allocated);
    assert_int_equal(after.allocations - before.allocations, after.frees - before.frees);
    assert_true(after.allocated_peak > before.allocated && after.reserved >= after.allocated);
}

static void freed_neighbours_merge(void **state) {
    (void)state;
    rp__device *d = cpu();
    rp_stream *s = rp_stream_new(rp_cpu()); /* with shelves of its own */
    rp_empty_cache(rp_cpu());
    uint64_t reserved = stats().reserved;
    rp__block *a = take(d, s, 1 << 20), *b = take(d, s, 1 << 20), *c = take(d, s, 1 << 20);
    char *first = a->data;
    assert_ptr_equal(b->data, first + (1 << 20));
    assert_int_equal(stats().reserved, reserved + (16 << 20));
    rp__block_free(d, a);
    rp__block_free(d, c);
    rp__block_free(d, b);
    rp__block *whole = take(d, s, 7 << 20);
    assert_ptr_equal(whole->data, first);
    rp__block_free(d, whole);
    rp_empty_cache(rp_cpu());
    assert_int_equal(stats().reserved, reserved);
    rp_stream_release(s);
}

static void the_peak_is_exact_in_one_thread(void **state) {
    (void)state;
    rp__device *d = cpu();
    uint64_t base = stats().allocated;
    assert_int_equal(base, 0);
    enum { N = 3000 };
    static rp__block *held[N];
    uint64_t peak = stats().allocated_peak, want = 0;
    for (int i = 0; i < N; i++) {
        held[i] = take(d, d->default_stream, i % 3 ? 100 : 50000);
        want += held[i]->bytes;
    }
    assert_true(want > peak);
    assert_int_equal(stats().allocated, want);
    for (int i = 0; i < N; i++) rp__block_free(d, held[i]);
    assert_int_equal(stats().allocated, 0);
    assert_int_equal(stats().allocated_peak, want);
    rp_memory_stats partial = {.struct_size = offsetof(rp_memory_stats, allocated_peak)};
    partial.reserved = 77;
    assert_int_equal(rp_memory_stats_get(rp_cpu(), &partial), RP_OK); /* an older caller's struct */
    assert_int_equal(partial.reserved, 77);
    assert_int_equal(rp_memory_stats_get(rp_cpu(), &(rp_memory_stats){0}), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
}

/* ---- other streams */

static void slow(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    (void)kernel, (void)begin, (void)end;
    *(int *)(uintptr_t)words[0] += 1;
}
static rp__kernel slow_kernel = {.kind = RP__KERNEL_CPU, .name = "slow", .cpu = slow};

static void blocks_wait_for_other_streams(void **state) {
    (void)state;
    rp__device *d = cpu();
    rp_stream *s = rp_stream_new(rp_cpu());
    int runs = 0;
    uint64_t words[] = {(uint64_t)(uintptr_t)&runs};
    rp__launch l = {.kernel = &slow_kernel, .words = words, .n_words = 1, .items = 1, .grain = 1, .barrier = true};
    static const size_t sizes[] = {64, 100000};
    for (size_t i = 0; i < 2; i++) {
        rp__block *b = take(d, d->default_stream, sizes[i]);
        void *address = b->data;
        for (int k = 0; k < 30; k++) rp__launch_on(s, &l); /* queued work that may touch the block */
        assert_int_equal(rp__block_used_by(b, s), RP_OK);
        assert_int_equal(rp__block_used_by(b, s), RP_OK);
        assert_int_equal(rp__block_used_by(b, d->default_stream), RP_OK);
        rp__block_free(d, b);
        rp__block *other = take(d, d->default_stream, sizes[i]);
        assert_ptr_not_equal(other->data, address);
        rp_stream_synchronize(s);
        /* Done: the block comes back with the next look at the waiting ones. */
        rp__block *flush = take(d, d->default_stream, 5 << 20);
        rp__block *again[64];
        bool found = false;
        for (int k = 0; k < 64; k++) {
            again[k] = take(d, d->default_stream, sizes[i]);
            found = found || again[k]->data == address;
        }
        for (int k = 0; k < 64; k++) rp__block_free(d, again[k]);
        assert_true(found || i == 0); /* a small one goes back to all threads: not found for certain */
        rp__block_free(d, flush);
        rp__block_free(d, other);
    }
    rp_stream_release(s);
    assert_int_equal(stats().allocated, 0);
}

static void streams_leave_their_memory(void **state) {
    (void)state;
    rp__device *d = cpu();
    rp_empty_cache(rp_cpu());
    rp_stream *s = rp_stream_new(rp_cpu());
    rp__block *b = take(d, s, 9 << 20);
    void *address = b->data;
    rp_stream_release(s); /* lives on with its block */
    assert_int_equal(b->stream->refs, 1);
    rp__block_free(d, b);
    for (int k = 0; k < 2; k++) { /* what it cached is for any stream that needs a segment */
        s = k ? d->default_stream : rp_stream_new(rp_cpu());
        b = take(d, s, 9 << 20);
        assert_ptr_equal(b->data, address);
        rp__block_free(d, b);
        if (k == 0) rp_stream_release(s);
    }
    rp_empty_cache(rp_cpu());
}

/* ---- pools */

static void
pools_keep_their_memory(void **state) { /* A2, A3, A9, A10: the route decides; a pool lives while it is used */
    (void)state;
    rp__device *d = cpu();
    rp_stream *s = rp_stream_new(rp_cpu());
    uint64_t reserved = stats().reserved;
    rp_pool *pool = rp_pool_new(rp_cpu());
    rp__allocator_capture(s, NULL, pool);
    rp__block *a = take(d, s, 1000), *b = take(d, s, 3 << 20);
    rp__allocator_capture(s, NULL, NULL);
    assert_true(a->pool == pool && b->pool == pool);
    assert_int_equal(pool->refs, 3);
    assert_true(stats().in_private_pools > 0);
    void *address = b->data;
    rp__block_free(d, b);
    b = take(d, s, 3 << 20); /* not routed: other memory */
    assert_ptr_not_equal(b->data, address);
    rp__block_free(d, b);
    rp__allocator_capture(s, NULL, pool);
    b = take(d, s, 3 << 20);
    assert_ptr_equal(b->data, address);
    rp__allocator_capture(s, NULL, NULL);
    rp__block_free(d, b);
    rp_empty_cache(rp_cpu());
    assert_true(stats().in_private_pools > 0); /* only the pool's end frees them */
    rp_pool_release(pool);
    assert_true(stats().in_private_pools > 0); /* a lives */
    rp__block_free(d, a);
    assert_int_equal(stats().in_private_pools, 0);
    rp_stream_release(s);
    rp_empty_cache(rp_cpu());
    assert_true(stats().reserved <= reserved);
}

/* ---- a device of the test's own, with the rules of CUDA */

static size_t segment_bytes[64], n_segments, limit;
static size_t held_bytes;
static rp_status fake_alloc(rp__device *d, size_t bytes, void **out) {
    (void)d;
    if (held_bytes + bytes > limit) return rp__fail(RP_ERROR_OUT_OF_MEMORY, "the fake device is full");
    segment_bytes[n_segments++ % 64] = bytes;
    held_bytes += bytes;
    *out = malloc(bytes);
    return RP_OK;
}
static void fake_free(rp__device *d, void *p, size_t bytes) {
    (void)d;
    held_bytes -= bytes;
    free(p);
}
static rp_status fake_synchronize(rp__device *d) {
    (void)d;
    return RP_OK;
}

static void cuda_sizes_are_pytorchs(void **state) { /* A1; A5: an error tells of private pools */
    (void)state;
    static const rp__device_ops fake_ops = {
        .name = "fake", .segment_alloc = fake_alloc, .segment_free = fake_free, .synchronize = fake_synchronize};
    rp__device d = {.id = {RP_DEVICE_CUDA, 0}, .ops = &fake_ops, .label = "fake"};
    rp_stream s = {.device = &d, .is_default = true};
    d.default_stream = &s;
    limit = (size_t)64 << 20;
    n_segments = 0;
    assert_int_equal(rp__allocator_new(&d, &d.allocator), RP_OK);
    rp__block *a = take(&d, &s, 1), *b = take(&d, &s, 513), *c = take(&d, &s, 1 << 20);
    assert_true(a->bytes == 512 && b->bytes == 1024 && c->bytes == 1 << 20);
    assert_true(n_segments == 1 && segment_bytes[0] == 2 << 20); /* all three from one */
    rp__block *m = take(&d, &s, (1 << 20) + 1);
    assert_true(n_segments == 2 && segment_bytes[1] == 20 << 20);
    assert_int_equal(m->bytes, (1 << 20) + 512);
    rp__block *l = take(&d, &s, (10 << 20) + 1); /* what the 20 MiB segment has left serves it */
    assert_int_equal(n_segments, 2);
    rp__block *l2 = take(&d, &s, (10 << 20) + 1);
    assert_true(n_segments == 3 && segment_bytes[2] == 12 << 20);
    assert_int_equal(l2->bytes, (10 << 20) + 512); /* a rest of more than 1 MiB is split off */
    rp__block *l3 = take(&d, &s, (11 << 20) + (1 << 19));
    assert_int_equal(l3->bytes, 12 << 20); /* a smaller one is not */
    assert_int_equal(n_segments, 4);
    rp__block_free(&d, l3);
    rp__block_free(&d, l2);
    rp__block_free(&d, l);
    rp__block_free(&d, m);

    /* 46 MiB are held, 44 of them cached: a request that does not fit makes the cache go, then succeeds. */
    rp__block *huge = take(&d, &s, (size_t)60 << 20);
    assert_int_equal(held_bytes, ((size_t)60 << 20) + (2 << 20));
    assert_false(rp_failed());
    rp__block *none;
    assert_int_equal(rp__block_alloc(&d, &s, (size_t)30 << 20, &none), RP_ERROR_OUT_OF_MEMORY);
    assert_null(none);
    assert_string_equal(
        rp_error_message(),
        "out of memory: tried to allocate 30.00 MiB on cuda:0; tensors hold 61.00 MiB of 62.00 MiB reserved, "
        "0 bytes of it in private pools of graphs; 0 freed blocks wait for other streams");
    rp_error_take();
    rp__block_free(&d, huge);
    rp__block_free(&d, a);
    rp__block_free(&d, c);
    rp__block_free(&d, b);
    rp__allocator_free(d.allocator);
    assert_int_equal(held_bytes, 0);
}

/* ---- what the system has */

/* Writes a file of a machine that the test makes up, with the folders around it. */
static void put(const char *root, const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *at = full + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        (void)mkdir(full, 0700);
        *at = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

enum { MIB = 1 << 20 };
static uint64_t left(const char *root, char whose[96]) { return rp__cpu_memory_left(root, whose, 96) / MIB; }

/* Memory that can be had is that of the machine or of the tightest group around the process, whatever its version and however
   deep; swap counts as far as the group may use it, and pages of files can be dropped. */
static void groups_of_the_system_limit_memory(void **state) {
    (void)state;
    char whose[96], root[] = "memory-XXXXXX", command[64];
    assert_non_null(mkdtemp(root));
    assert_true(rp__cpu_memory_left(root, whose, 96) == UINT64_MAX); /* nothing is known */
    put(root, "/proc/meminfo",
        "MemTotal:  8388608 kB\nMemFree:  1 kB\nMemAvailable:  4194304 kB\nSwapFree:  1048576 kB\n");
    assert_int_equal(left(root, whose), 5120);
    assert_string_equal(whose, "memory and swap of the machine");

    /* version 2: the group allows 3 GiB, of which 1 is used, half of that by files; its parent allows less */
    put(root, "/proc/self/cgroup", "3:cpu,memory_not:/elsewhere\n0::/outer/inner\n");
    put(root, "/proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n30 22 0:26 / /cg rw,nosuid shared:9 - cgroup2 none rw\n");
    put(root, "/cg/outer/inner/memory.max", "3221225472\n");
    put(root, "/cg/outer/inner/memory.current", "1073741824\n");
    put(root, "/cg/outer/inner/memory.stat", "anon 1\ninactive_file 268435456\nactive_file 268435456\n");
    assert_int_equal(left(root, whose), 2048 + 512 + 1024);
    assert_string_equal(whose, "the limit of control group /outer/inner");
    put(root, "/cg/outer/inner/memory.swap.max", "104857600\n");
    put(root, "/cg/outer/inner/memory.swap.current", "0\n");
    assert_int_equal(left(root, whose), 2048 + 512 + 100);
    put(root, "/cg/outer/memory.max", "max\n");
    put(root, "/cg/outer/memory.current", "9\n");
    assert_int_equal(left(root, whose), 2048 + 512 + 100);
    put(root, "/cg/outer/memory.max", "536870912\n");
    put(root, "/cg/outer/memory.swap.max", "0\n");
    put(root, "/cg/outer/memory.swap.current", "0\n");
    assert_int_equal(left(root, whose), 511); /* 9 bytes are used */
    assert_string_equal(whose, "the limit of control group /outer");
    put(root, "/cg/outer/memory.current", "636870912\n"); /* more than allowed, for a moment */
    assert_int_equal(left(root, whose), 0);

    /* version 1, of a container that sees its own group as the root */
    put(root, "/proc/self/cgroup", "5:cpu,memory:/docker/1a2b/job\n");
    put(root, "/proc/self/mountinfo",
        "31 22 0:27 /docker/1a2b /v1 rw - cgroup cgroup rw,memory_not\n32 22 0:28 /docker/1a2b /cg1 rw - cgroup cgroup "
        "rw,memory\n");
    put(root, "/cg1/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put(root, "/cg1/memory.usage_in_bytes", "1\n");
    assert_int_equal(left(root, whose), 5120);
    put(root, "/cg1/job/memory.limit_in_bytes", "2147483648\n");
    put(root, "/cg1/job/memory.usage_in_bytes", "1073741824\n");
    assert_int_equal(left(root, whose), 1024 + 1024);
    assert_string_equal(whose, "the limit of control group /job");
    put(root, "/cg1/job/memory.memsw.limit_in_bytes", "2147483648\n");
    put(root, "/cg1/job/memory.memsw.usage_in_bytes", "1073741824\n");
    put(root, "/cg1/job/memory.stat", "inactive_file 7\ntotal_inactive_file 104857600\ntotal_active_file 0\n");
    assert_int_equal(left(root, whose), 1124);
    put(root, "/cg1/memory.limit_in_bytes", "1048576\n");
    assert_int_equal(left(root, whose), 1024); /* the outer group is full; the machine can swap for it */

    put(root, "/proc/self/status", "Name: x\nRssAnon:  1024 kB\nVmSwap:  1024 kB\n");
    assert_int_equal(rp__cpu_memory_promised(root, 5 * MIB), 3 * MIB);
    assert_int_equal(rp__cpu_memory_promised(root, MIB), 0);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

/* More than there is is refused when it is asked for, not when it is written to; also in portions that would fit one by one. */
static void more_memory_than_there_is_is_refused(void **state) {
    (void)state;
    char whose[96];
    uint64_t there = rp__cpu_memory_left("", whose, sizeof whose);
    if (there > UINT64_C(1) << 46) skip(); /* the system does not say */
    rp_scope s = rp_scope_begin();
    assert_true(rp_is_error(rp_empty(RP_DIMS(INT64_C(1) << 46))));
    assert_non_null(strstr(rp_error_message(), "tried to allocate 256.00 TiB on cpu, which has "));
    assert_non_null(strstr(rp_error_message(), whose));
    assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
    if (ADDRESS_CHECKED) { /* it marks what is not in use, in memory of an eighth of its size */
        rp_scope_end(s, NULL, 0);
        return;
    }
    int64_t portion = (int64_t)(there / 5 * 2), fit = 0;
    for (; fit < 4 && !rp_is_error(rp_empty(&portion, 1, RP_OPTIONS(rp_empty_options, .dtype = RP_U8))); fit++) {}
    assert_in_range(fit, 1, 2);
    assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
    rp_scope_end(s, NULL, 0);
    rp_empty_cache(rp_cpu());
    s = rp_scope_begin(); /* what was refused, or promised and given back, stands in nobody's way */
    assert_false(rp_is_error(rp_empty(&portion, 1, RP_OPTIONS(rp_empty_options, .dtype = RP_U8))));
    rp_scope_end(s, NULL, 0);
    rp_empty_cache(rp_cpu());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_opens_after_failures),
        cmocka_unit_test(small_blocks_have_classes),
        cmocka_unit_test(the_peak_is_exact_in_one_thread),
        cmocka_unit_test(blocks_do_not_overlap),
        cmocka_unit_test(freed_neighbours_merge),
        cmocka_unit_test(blocks_wait_for_other_streams),
        cmocka_unit_test(streams_leave_their_memory),
        cmocka_unit_test(pools_keep_their_memory),
        cmocka_unit_test(cuda_sizes_are_pytorchs),
        cmocka_unit_test(groups_of_the_system_limit_memory),
        cmocka_unit_test(more_memory_than_there_is_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
