/* What tests of loop kernels share: short builders, layouts of one logical array, and a device that runs launches at once. */
#ifndef RP_TEST_LOOPS_H
#define RP_TEST_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "device/error_record.h"
#include "kernel/cpu/program.h"
#include "kernel/loop.h"

#define NONE RP__NO_VAL
static inline rp_scalar test_f(double f) { return (rp_scalar){RP_SCALAR_F64, {.f = f}}; }
static inline rp_scalar test_i(int64_t i) { return (rp_scalar){RP_SCALAR_I64, {.i = i}}; }
static inline rp__val op1(rp__dag_builder *b, rp__prim op, rp__val a) { return rp__dag_op(b, op, a, NONE, NONE); }
static inline rp__val op2(rp__dag_builder *b, rp__prim op, rp__val a, rp__val x) {
    return rp__dag_op(b, op, a, x, NONE);
}
static inline rp__val load_new(rp__dag_builder *b, rp_dtype dtype, bool row) {
    return rp__dag_load(b, rp__dag_access(b, RP__ACCESS_READ, dtype, row ? RP__ALONG_ROWS : RP__ELEMENTS), NONE, NONE);
}
static inline void store_new(rp__dag_builder *b, rp_dtype dtype, rp__val v, bool row) {
    rp__dag_store(b, rp__dag_access(b, RP__ACCESS_WRITE, dtype, row ? RP__ALONG_ROWS : RP__ELEMENTS), v);
}

/* A pseudo-random sequence of the test's own. */
typedef struct test_rng {
    uint64_t state;
} test_rng;
uint64_t test_next(test_rng *r);
uint64_t test_below(test_rng *r, uint64_t n);

/* A device that owns nothing but an error record; launches run where they are bound. */
typedef struct test_device {
    rp__device device;
    rp__device_ops ops;
    rp__error_record errors;
} test_device;
void test_device_init(test_device *d);
/* Binds and runs over the pool; with `split`, in the calling thread in pieces whose ends are drawn from it. Aborts on failure. */
void test_run(test_device *d, rp__dag *dag, const rp__space *space, test_rng *split);

#endif
