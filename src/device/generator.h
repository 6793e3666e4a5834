/* Generators: Philox4x32-10, counter based. A random op reserves ceil(n/4) counters (ceil(n/2) for 64-bit values) at its
   place in program order; element i in logical row-major order uses counter offset + i/4, word i mod 4. Seed and offset also
   live in device memory, so that a captured kernel reads the values of the replay: a kernel gets (pointer to state, offset
   inside the launch sequence). Outside captures the state pointer holds {seed, base} and `inner` is 0-based from base. */
#ifndef RP_DEVICE_GENERATOR_H
#define RP_DEVICE_GENERATOR_H

#include "device/device.h"

struct rp_generator {
    rp__handle handle;
    atomic_uint refs;
    rp__device *device;
    rp__mutex lock;
    uint64_t seed, offset;              /* host truth: the next op's first counter */
    struct rp__random_memory *followed; /* what draws in captures of others read; NULL: they are an error */
    uint64_t followed_used;             /* counters behind it */
};

rp_status rp__generator_open(rp__device *d,
                             rp_generator **out); /* a device's default generator, with the seed in force */
rp_generator *rp__generator_retain(rp_generator *g);
void rp__generator_drop(rp_generator *g); /* a reference of the library; NULL is nothing */

/* What a random kernel receives: counter of element 0 = (state ? state[1] : 0) + inner, key = state ? state[0] : seed. */
typedef struct rp__random_draw {
    const uint64_t *state; /* device memory {seed, base offset}; NULL outside capture */
    uint64_t seed, inner;
} rp__random_draw;

/* Reserves `counters` for one op on stream s; in a capture the increment belongs to the captured graph, whose replay advances
   the generator by the total. */
rp_status rp__random_reserve(rp_generator *g, rp_stream *s, uint64_t counters, rp__random_draw *out);

/* ---- recomputation: a second run of a function draws the numbers of the first, whether either is eager or captured */

/* Where the replays of one capture find {seed, base offset} of a generator. Whoever draws from it holds it. */
typedef struct rp__random_memory {
    atomic_uint refs;
    rp__device *device;
    rp__block *block; /* of the default stream: outside the capture's pool */
} rp__random_memory;
rp__random_memory *rp__random_memory_retain(rp__random_memory *m);
void rp__random_memory_release(rp__random_memory *m);

/* rp__random_reserve that also says whose memory out->state is: *memory is borrowed, NULL outside captures. */
rp_status rp__random_take(rp_generator *g, rp_stream *s, uint64_t counters, rp__random_draw *out,
                          rp__random_memory **memory);
/* rp__random_reserve in a capture of others: from what the generator follows. */
rp_status rp__random_take_followed(rp_generator *g, uint64_t counters, rp__random_draw *out,
                                   rp__random_memory **memory);
/* Where the next draw of g on s will be, without drawing it. */
rp_status rp__random_peek(rp_generator *g, rp_stream *s, rp__random_draw *out, rp__random_memory **memory);

/* What the ops of a run have drawn, in order. */
typedef struct rp__random_log {
    struct rp__random_log *outer; /* notes the same */
    struct rp__random_drawn {
        rp_generator *generator;  /* retained */
        uint64_t counters, taken; /* taken: by the run that draws them again */
        rp__random_draw draw;
        rp__random_memory *memory; /* of draw.state; retained; NULL: drawn outside captures */
    } * drawn;
    size_t n, capacity;
    size_t next; /* those before it are taken */
} rp__random_log;
/* counters RP__RANDOM_OPEN: as many as are asked for. */
#define RP__RANDOM_OPEN (UINT64_MAX / 2)
rp_status rp__random_log_add(rp__random_log *log, rp_generator *g, uint64_t counters, const rp__random_draw *draw,
                             rp__random_memory *memory);
void rp__random_log_free(rp__random_log *log);

/* The thread's; returned: what to give to the next call of the same function. While a log is set, draws are noted in it. */
rp__random_log *rp__random_log_set(rp__random_log *log);
/* While a log is set to be drawn again, draws are taken from it, those of each generator in its order, and generators stay where
   they are. The two runs may cut the counters of a generator into other portions: ops one by one, a program all at once. */
rp__random_log *rp__random_again_set(rp__random_log *log);
void rp__random_rewind(rp__random_log *log); /* before it is drawn again */

/* Without the check for captures: what only looks, or puts back what it found. */
void rp__generator_state(rp_generator *g, uint64_t *seed, uint64_t *offset);
void rp__generator_put(rp_generator *g, uint64_t seed, uint64_t offset);

/* The function itself; every device implements the same (Salmon et al., SC11). */
void rp__philox(uint64_t seed, uint64_t counter, uint32_t out[4]);
/* A counter's further blocks, for elements that ask for an unknown number: third is 0 in the others. */
void rp__philox_at(uint64_t seed, uint64_t counter, uint32_t third, uint32_t out[4]);
/* Conversions, part of the contract: uniform f32 in [0,1): (w >> 8) * 2^-24; f64: (w0:w1 >> 11) * 2^-53 with w0 the high half;
   integers in [0, n): high half of the 32x32 (64x64) product; Bernoulli(p): uniform f32 < p; normals: Box-Muller on
   (u1 = (w0 + 1) * 2^-32, u2 = w1 * 2^-32): words 0,1 give elements 0,1 and words 2,3 elements 2,3 of a counter. */

#endif
