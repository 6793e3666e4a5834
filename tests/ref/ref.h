/* Reference of the ops, for the sweep of test_ops.c: values are doubles in row-major order, an op is a plain loop over them.
   Written from PyTorch's documentation, with its own list of ops and its own arguments; it must never look at the op table or call
   the library's rules. */
#ifndef RP_TESTS_REF_H
#define RP_TESTS_REF_H

#include <reprise.h>

enum { REF_MAX_IN = 6, REF_MAX_ATTRS = 8, REF_MAX_OUT = 4 };

typedef struct ref_value {
    rp_dtype dtype;
    int ndim;
    int64_t size[RP_MAX_DIMS];
    int64_t n;
    double *v;   /* values, rounded to dtype */
    double *mag; /* magnitude of what was added up for each value: the tolerance is relative to it; NULL: |v| */
} ref_value;

typedef enum ref_layout {
    REF_CONTIGUOUS,
    REF_TRANSPOSED,
    REF_SLICED,
    REF_EXPANDED,
    REF_OFFSET,
    REF_LAYOUTS
} ref_layout;

typedef struct ref_case {
    ref_layout layout; /* of the inputs: given to the generator */
    int n_in, n_attrs, n_out;
    ref_value in[REF_MAX_IN];
    bool absent[REF_MAX_IN];
    rp_attr attrs[REF_MAX_ATTRS];
    ref_value out[REF_MAX_OUT];
    bool exact;  /* bits are equal: copies, integers, comparisons */
    double ulps; /* else: of the type in which the op calculates, relative to mag */
    bool narrow; /* sums are rounded to the stored type after every addition: ulps are that type's */
    bool
        factors; /* one factor of each product of a sum was rounded to the stored type: half a unit of it, of what was added up */
    bool passed_over; /* this variant is an error, or means nothing: tested elsewhere */
} ref_case;

typedef struct ref_op ref_op;
struct ref_op {
    const char *name;
    /* Makes case number `variant` for this dtype: inputs, attributes and expected outputs. false: there is none. */
    bool (*make)(const ref_op *op, rp_dtype dtype, int variant, ref_case *c);
    double (*f1)(double);
    double (*f2)(double, double);
    int flags;
};

const ref_op *ref_find(const char *name);
const ref_op *ref_at(size_t index); /* NULL past the end */

void ref_reset(void); /* frees all values made so far */
double ref_round(rp_dtype dtype, double x);
ref_value ref_new(rp_dtype dtype, const int64_t *size, int ndim);
bool ref_is_float(rp_dtype d);
rp_dtype ref_promote(rp_dtype a, rp_dtype b);
/* torch.result_type of tensors of given ranks (and a number of kind `scalar`, or -1). */
rp_dtype ref_result_type(const ref_value *const *v, int n, int scalar);

/* Philox4x32-10, from its paper. */
void ref_philox(uint64_t seed, uint64_t counter, uint32_t out[4]);

#endif
