/* Kernels made of an embedded text (a .cuh of this folder) behind a few macros: found by a small key on the hot path, built
 * through nvrtc.h the first time. */
#ifndef RP_KERNEL_CUDA_TEXT_KERNEL_H
#define RP_KERNEL_CUDA_TEXT_KERNEL_H

#include "core/dtype.h"
#include "core/text.h"
#include "device/device.h"

/* Statements that stand in a text: what is done with each result x, in place of the line RP_FOLLOW, and what makes x of the first and the second
 * factor, in place of the lines RP_FACTOR_A and RP_FACTOR_B, in a kernel whose macros ask for it; what is done with eight results at once, in
 * place of the lines RP_WIDE_TYPES, _HELD, _LINE and _REST (emit.h). NULL: nothing. */
typedef struct rp__text_parts {
    const char *follow, *factor[2], *wide[4];
} rp__text_parts;

typedef struct rp__text_kernel_key {
    const char *family;          /* constant string: start of the kernel's name */
    uint64_t facts;              /* whatever the macros depend on */
    const rp__text_parts *parts; /* NULL: none */
} rp__text_kernel_key;

/* Adds the macro lines for `facts`, and texts that several kernels share, to `out`; RP_WORDS is defined before. In these and in the
 * kernel's own text RP_NAME( and the lines of parts are replaced. */
typedef void rp__text_kernel_macros(uint64_t facts, rp__text *out);
/* Borrowed: kernels of texts live as long as the process. */
rp_status rp__text_kernel(rp__device *d, const rp__text_kernel_key *key, rp__text_kernel_macros *macros,
                          const char *text, size_t length, rp__kernel **out);

/* What a kernel of this family, without parts, was made of; false: it is none. */
bool rp__text_kernel_facts(const rp__kernel *k, const char *family, uint64_t *facts);

/* The source by itself: `name` is the kernel's. */
void rp__text_kernel_source(const char *name, uint64_t facts, rp__text_kernel_macros *macros, const char *text,
                            size_t length, const rp__text_parts *parts, rp__text *out);

/* RP_T, RP_ACC, RP_LOAD, RP_STORE and RP_MULADD of a dtype: f16 and bf16 accumulate in f32, integers in 64 bits. */
void rp__text_kernel_dtype(rp_dtype dtype, rp__text *out);

/* Of atomic functions (rp_red_add_f32): the type that they combine; NULL: there are none. */
static inline const char *rp__cuda_atomic(rp_dtype dtype) {
    return rp__dtype_is_float(dtype) || rp__dtype_bytes(dtype) >= 4 ? rp__dtypes[dtype].short_name : NULL;
}

#endif
