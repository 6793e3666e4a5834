/* Facts about element types, from dtype.def, and PyTorch's promotion rules (torch.result_type). */
#ifndef RP_CORE_DTYPE_H
#define RP_CORE_DTYPE_H

#include <reprise.h>

#include "core/dim.h"

enum {
    RP__DTYPE_LAST = 0
#define RP_DTYPE(...) +1
#include "core/dtype.def"
#undef RP_DTYPE
    ,
    RP__DTYPE_COUNT /* including RP_DTYPE_NONE */
};

typedef enum rp__category { RP__CATEGORY_BOOL, RP__CATEGORY_INT, RP__CATEGORY_FLOAT } rp__category;

/* DLPack's DLDataTypeCode. */
enum { RP__DLPACK_INT = 0, RP__DLPACK_UINT = 1, RP__DLPACK_FLOAT = 2, RP__DLPACK_BFLOAT = 4, RP__DLPACK_BOOL = 6 };

typedef struct rp__dtype_info {
    const char *name, *short_name, *title; /* title: PyTorch's, in messages */
    uint8_t bytes, category;               /* rp__category */
    uint8_t
        compute; /* rp_dtype in which kernels calculate; if another, values are rounded (integers: wrapped) when stored */
    /* Bits of a value without its sign, of a float those of its significand; of an integer 1 where it has a sign, of a float the
       bits of its exponent. A type whose digits and reach are no less holds every value. */
    uint8_t digits, reach;
    const char *cuda;                    /* storage in CUDA C */
    uint8_t dlpack, onnx, pjrt;          /* codes: of DLPack, TensorProto.DataType, PJRT_Buffer_Type */
    const char *npy, *safetensors, *hlo; /* names in files and in StableHLO; npy: "" where NumPy has no such type */
} rp__dtype_info;
extern const rp__dtype_info rp__dtypes[RP__DTYPE_COUNT];

static inline size_t rp__dtype_bytes(rp_dtype d) { return rp__dtypes[d].bytes; }
static inline bool rp__dtype_is_float(rp_dtype d) {
    return rp__dtypes[d].category == RP__CATEGORY_FLOAT && d != RP_DTYPE_NONE;
}
/* Kernels calculate in another type, and round to this one what they store. */
static inline bool rp__dtype_is_narrow(rp_dtype d) { return rp__dtypes[d].compute != d; }
/* A float of 16 bits. */
static inline bool rp__dtype_is_half(rp_dtype d) { return rp__dtype_is_float(d) && rp__dtypes[d].bytes == 2; }
/* The largest and the smallest value of an integer, or bool. */
static inline int64_t rp__dtype_most(rp_dtype d) { return (int64_t)((UINT64_C(1) << rp__dtypes[d].digits) - 1); }
static inline int64_t rp__dtype_least(rp_dtype d) { return rp__dtypes[d].reach ? -rp__dtype_most(d) - 1 : 0; }
/* The bits of infinity. */
static inline uint64_t rp__dtype_infinity(rp_dtype d) {
    return ((UINT64_C(1) << rp__dtypes[d].reach) - 1) << (rp__dtypes[d].digits - 1);
}
/* An integer that is no int64: numbers, which are, wrap into it. */
static inline bool rp__dtype_wraps(rp_dtype d) { return rp__dtypes[d].category == RP__CATEGORY_INT && d != RP_I64; }
/* Can d hold every value of `from`? */
static inline bool rp__dtype_holds(rp_dtype d, rp_dtype from) {
    const rp__dtype_info *a = &rp__dtypes[d], *b = &rp__dtypes[from];
    return a->category >= b->category && a->digits >= b->digits && a->reach >= b->reach;
}
static inline bool rp__dtype_is_valid(rp_dtype d) { return (unsigned)d > 0 && (unsigned)d < RP__DTYPE_COUNT; }

rp_dtype rp__promote(rp_dtype a, rp_dtype b); /* of two tensors of rank > 0; table of torch.promote_types */
/* Of operands of different weight: a dimensioned tensor outweighs a 0-d tensor, which outweighs a host scalar, unless the
   lighter one has a higher category (then its default type: float32 for float scalars, int64 for ints). */
typedef struct rp__promotion {
    rp_dtype dim, zero, scalar; /* RP_DTYPE_NONE: no such operand yet */
} rp__promotion;
void rp__promote_tensor(rp__promotion *p, rp_dtype dtype, size_t ndim);
void rp__promote_scalar(rp__promotion *p, rp_scalar_kind kind);
rp_dtype rp__promotion_result(const rp__promotion *p);

bool rp__scalar_fits(rp_scalar s,
                     rp_dtype d); /* can the number be cast without an overflow error (PyTorch: full, fill_) */
void rp__scalar_store(rp_scalar s, rp_dtype d, void *dst); /* one element of dtype d */
rp_scalar rp__scalar_load(rp_dtype d, const void *src);
/* A size as a number: an integer, or RP_SCALAR_SYM, a symbol of the trace. Conversions below take the value of a symbol, and so
   specialise the trace to it. */
rp_scalar rp__scalar_dim(rp_dim d);
static inline bool rp__scalar_is_symbol(rp_scalar s) { return RP__UNLIKELY(s.kind >= RP_SCALAR_SYM); }
static inline bool rp__scalar_is_size(rp_scalar s) { return RP__UNLIKELY(s.kind == RP_SCALAR_SYM); }
static inline bool rp__scalar_is_float(rp_scalar s) { return s.kind == RP_SCALAR_F64 || s.kind == RP_SCALAR_SYM_F64; }
/* a op b as Python calculates it: whole of whole numbers (but quotients and roots), else a float; of symbols a symbol, which is a
   size or a number of sizes. Values are calculated by rp__num_f64, whenever they are known. */
rp_scalar rp__num_apply(rp__num_op op, rp_scalar a, rp_scalar b);
double rp__num_f64(rp__num_op op, double a, double b);
/* Is it a number, a size that may be used now, or a number of such sizes? */
bool rp__num_known(rp_scalar s);
rp_scalar rp__scalar_value(rp_scalar s);
double rp__scalar_f64(rp_scalar s);
int64_t rp__scalar_i64(rp_scalar s); /* truncates, saturating; NaN gives 0 */

uint16_t rp__f32_to_f16(float f); /* round to nearest, ties to even; NaN stays quiet NaN */
float rp__f16_to_f32(uint16_t h);
uint16_t rp__f32_to_bf16(float f);
float rp__bf16_to_f32(uint16_t h);

#endif
