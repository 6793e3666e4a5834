/* One line of samples an op: tests/samples/FAMILY.def, beside the row's src/ops/FAMILY.def. From it follow the sweep over element
   types and memory layouts (sweep.c) with the values that PyTorch gives (tests/data/golden/NAME.txt), the gradient check (first and
   second), the road (eager = compiled = captured, CPU = CUDA), the spoiling of attributes, and what the fuzzers call. Forms that are
   derived from a row (`name_`, `name_scalar`) have samples derived from its own.

       SAMPLES(op, "sample; sample; ...", .field = value)

   A sample is a call: arguments in the order of the op's schema, `name=value` from where one was left out; what is not given has
   its default (PyTorch's, in the expected values). Blanks stand between arguments.

     f(n,4)      a tensor of the swept type; values of either sign. n is the size that changes: 6 here, others in the road
     p g q u w t s in the place of f: at least 0.5; at least 1.25; within (0.25, 0.75); within (-1, 1); wide, to +-32; few values, many equal; NaN, infinities and zeros
     m           matrices (the last two dims) that are symmetric and positive-definite
     b i7        bool; int64 indices below 7
     d(3)        int64 3, 2, 1: sizes that decrease
     f:f64(4)    another type than the swept one: f32 f64 f16 bf16 i32 i64 u8 bool
     *f(3)       the op writes it: it is cloned before, and looked at as one more result; without a gradient
     !f(3)       no gradient is asked for it
     [f(n) f(2)] a list of tensors
     none        None, or an absent tensor
     1 1.5 true [1,n] float64 tanh   attributes, as the schema wants them; n is the size, also as a Scalar

   The first sample of a line takes the whole road, as do those behind a "+"; all others the sweep, the gradient check (not t and s,
   which lie on kinks) and the fuzzers. Fields:

     .ulps     error allowed to floats, in units of the type in which the op computes, of what was added up (16)
     .cancels  an elementwise op of one operand whose error is that of a difference: relative to the largest result, as it is
               for all ops of several operands
     .narrow   sums are rounded to the stored type on the way: ulps are that type's
     .refused  types that PyTorch takes and the library does not: "bool u8" (docs/deviations.md says why)
     .host     types that PyTorch and the library take on a CPU alone
     .own_types  results have other types than PyTorch's (docs/deviations.md says why); private rows may
     .flags    SAMPLE_UNWRITTEN: the result is memory as it was found; SAMPLE_RANDOM: of an op that calls a random one.
               SAMPLE_TENSOR_CORES: on a CUDA device 16-bit floats are results of two products, and what the first one leaves is rounded for
               the second, as tensor cores take no other operand, nor does the matrix unit of a CPU for bfloat16 (kernel/cpu/dots.h): half a unit of the stored type, of what is added up. PyTorch's flash
               attention rounds there as well, also on a CPU: of 400 random samples of such sizes (2.15, f16 and bf16, against float64)
               350 and more lie beyond the bound of one rounding of the result, by up to 0.16 units of the largest one; on the emulator
               these samples need 0.1 */
#ifndef RP_TESTS_SAMPLES_H
#define RP_TESTS_SAMPLES_H

#include "ops/ops.h"
#include "ref/sweep.h"

enum { SAMPLE_IN = 20, SAMPLE_ATTRS = RP__MAX_PARAMS, SAMPLE_OUT = RP__MAX_OUTS + SAMPLE_IN, SAMPLE_INTS = 40 };
enum { SAMPLE_N = 6 };     /* n of the expected values */
enum { SAMPLE_TYPES = 8 }; /* the first of ref_types; int8 and int16 are swept by the references of tests/ref */
enum { SAMPLE_UNWRITTEN = 1, SAMPLE_RANDOM = 2, SAMPLE_TENSOR_CORES = 4 };

typedef struct sample_row {
    const char *op, *text;
    double ulps;
    bool narrow, cancels, own_types;
    const char *refused, *host;
    unsigned flags;
} sample_row;

typedef struct sample_tensor {
    char kind; /* f p g q u w t s b i d m */
    bool written, constant;
    rp_dtype dtype;            /* RP_DTYPE_NONE: the swept one */
    int64_t below;             /* of indices */
    int ndim, n_dim;           /* n_dim: which dim is n, -1 none */
    int64_t size[RP_MAX_DIMS]; /* -1: n */
} sample_tensor;

typedef struct sample {
    const rp__op *op;
    const sample_row *row;
    char text[256];               /* as written; of a derived form, derived */
    unsigned number;              /* of the row's samples */
    bool whole_road, sized;       /* sized: an attribute is n */
    int n_args;                   /* operands of the op, lists expanded */
    uint8_t list[RP__MAX_PARAMS]; /* tensors of each list */
    bool apart;                   /* lists have different lengths: a NULL stands behind each but the last */
    int n_in; /* tensors of the sample: operands that are not absent, and perhaps one only for its size, n */
    int place[SAMPLE_IN + 1]; /* which operand each is; -1: none */
    sample_tensor in[SAMPLE_IN + 1];
    char word[SAMPLE_ATTRS][48]; /* of each attribute of the schema; "": not given */
} sample;

size_t sample_count(void);
const sample *
sample_at(size_t index); /* in the order of rows: an op's samples are neighbours, derived forms come last */
const sample *sample_of(const char *op); /* the first sample of an op; NULL */

bool sample_is_random(const sample *s);                              /* has no expected values */
const char *sample_parse_tensor(const char *text, sample_tensor *t); /* one; returns what stands behind it */
bool sample_is_value(const sample_tensor *t);                        /* floats in floats: what has a gradient */
rp_dtype sample_dtype(const sample_tensor *t, rp_dtype swept);
ref_value sample_values(const sample_tensor *t, rp_dtype swept, int64_t n, unsigned salt); /* of a case (ref_reset) */
/* Its n_in tensors on the default device. Different variants have different values. */
void sample_make(const sample *s, rp_dtype swept, int64_t n, unsigned variant, rp_tensor **in);
/* All attributes of the schema. ints: room for lists. Returns how many. */
size_t sample_attrs(const sample *s, int64_t n, rp_attr *attrs, int64_t (*ints)[SAMPLE_INTS]);
/* What a call gives: the op's results, or of one that has none or writes more than its result, then what is written. */
size_t sample_outs(const sample *s);
/* The call with these n_in tensors: written operands are cloned. */
rp_status sample_call(const sample *s, rp_tensor *const *in, rp_tensor **out);
rp_status sample_call_on(const sample *s, rp_tensor *const *in, rp_tensor **out); /* they are not */

/* ---- steps of random programs */

/* A call of some op that computes something of floats, of all in the table but factories, draws, parts and forms in place: with `first` and others of the pool in the place of its tensors: as they are where attributes say nothing of sizes (of
   elementwise ops, and of ops of one operand of that rank), else repeated or cut off to the sample's sizes; in its ranges. Returns
   one of the results. All is drawn from `random`. */
rp_tensor *sample_apply(uint64_t random, rp_tensor *first, rp_tensor *const *pool, size_t n_pool);
/* The same, where the result has a gradient for all that it is made of. */
rp_tensor *sample_apply_differentiable(uint64_t random, rp_tensor *first, rp_tensor *const *pool, size_t n_pool);
/* The same of an elementwise op in place, which writes `target`; if nothing in the pool suits the op drawn, nothing. */
void sample_apply_in_place(uint64_t random, rp_tensor *target, rp_tensor *const *pool, size_t n_pool);

/* ---- the sweep: every sample of every op over types and layouts on `device` against the values of tests/data/golden, and where
   there are none against those of its own float64. */
typedef bool sample_wants(const sample *s, rp_dtype dtype, ref_layout layout);
int sample_sweep(rp_device device, sample_wants *wants); /* NULL: all; returns how many calls */
bool sample_has_golden(const sample *s);
/* How often a result can be differentiated: 0, 1 (the gradient is constant) or 2, as PyTorch says where it has a say. */
int sample_order(const sample *s);
/* The calls as text for scripts/golden.py. */
void sample_print_calls(const char *op); /* NULL: of all */

#endif
