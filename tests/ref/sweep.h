/* The op sweep: calls of the reference's cases on a device, compared with the reference. Called by test_ops.c (CPU) and
   test_cuda_ops.c. Failures end the running cmocka test. */
#ifndef RP_TESTS_REF_SWEEP_H
#define RP_TESTS_REF_SWEEP_H

#include "ref/ref.h"

enum { REF_TYPES = 10 };
extern const rp_dtype ref_types[REF_TYPES];

/* Row-major values, rounded to d, on the default device. */
rp_tensor *ref_from_values(rp_dtype d, const double *v, int64_t n, const int64_t *size, int ndim);
/* The same logical values in another memory layout; made with view ops, so that it exists on every device. */
rp_tensor *ref_tensor(const ref_value *r, ref_layout layout);
/* Fails with `what` in front unless t has the type, sizes and (within the tolerances of c) values of `want`. */
void ref_compare(const char *what, rp_tensor *t, const ref_value *want, const ref_case *c);

/* Is this case to be run? c holds its inputs and layout. */
typedef bool ref_wants(const ref_op *op, rp_dtype dtype, const ref_case *c, int variant);
/* Every op of the reference over types, layouts and cases on `device`; `wants` NULL: all of them. An op left without a case
   fails. Returns how many cases ran.
   REPRISE_TEST_SHARD=i/n: only the i-th of n parts (0 is the first), by op and type; n processes together run it all. */
int ref_sweep(rp_device device, ref_wants *wants);
/* The part that this process is to run. */
void ref_shard(unsigned *index, unsigned *count);

#endif
