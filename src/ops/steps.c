/* Functions and draws of kernel/steps.h: run rules of steps.def and polynomials.def. What is not a vector of float32 or float64 is copied
   into one. */
#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/library_ops.h"
#include "ops/private.h"
#include "ops/rules.h"

/* t in the size of out. */
static rp_tensor *vector_of(rp_tensor *t, const rp_tensor *out, rp_dtype dtype, rp__device *d) {
    bool same = t->ndim == out->ndim && (rp_dtype)t->dtype == dtype && rp__tensor_contiguous(t);
    for (unsigned k = 0; same && k < t->ndim; k++) same = rp__dim_same_word(t->size[k], out->size[k]);
    if (same) return t;
    rp_tensor *copy = rp__tensor_empty(d, dtype, out->size, out->ndim);
    return rp__tensor_is_error(copy) || rp__run_copy(copy, t) != RP_OK ? rp__tensor_error() : copy;
}
static rp__operand flat(const rp_tensor *t) {
    rp__operand o = rp__operand_of(t);
    o.size[0] = rp__tensor_numel(t);
    o.stride[0] = 1;
    o.ndim = 1;
    return o;
}

/* The least number that PyTorch lets a draw be: the least normal one. */
static double least(rp_dtype dtype) { return dtype == RP_F64 ? 0x1p-1022 : dtype == RP_F16 ? 0x1p-14 : 0x1p-126; }

static rp_status steps(const rp__call *call, uint8_t function) {
    rp_tensor *out = call->out[0];
    const rp_dtype compute = out->dtype == RP_F64 ? RP_F64 : RP_F32;
    rp__library_call library = {.steps = function, .least = least((rp_dtype)out->dtype)};
    rp__device *d = rp__device_get(out->device);
    if (!d) return rp_error_status();
    if (library.steps >= RP_STEPS_GAMMA)
        RP_TRY(rp__reserve_draw(call, 0, d, rp__current_stream(d), (uint64_t)rp__tensor_numel(out), &library.draw));
    if (rp__dim_same_word(rp__tensor_numel(out), 0)) return RP_OK;
    rp_tensor *a = vector_of(call->in[0], out, compute, d),
              *b = call->n_in > 1 ? vector_of(call->in[1], out, compute, d) : a;
    const bool direct = (rp_dtype)out->dtype == compute && rp__tensor_contiguous(out);
    rp_tensor *y = direct ? out : rp__tensor_empty(d, compute, out->size, out->ndim);
    if (rp__tensor_is_error(a) || rp__tensor_is_error(b) || rp__tensor_is_error(y)) return rp_error_status();
    const rp__operand o[3] = {flat(y), flat(a), flat(b)};
    RP_TRY(rp__run_library_op(call, RP__LIB_STEPS, o, 3, &library));
    return direct ? RP_OK : rp__run_copy(out, y);
}

rp_status rp__run_igamma(const rp__call *call) { return steps(call, RP_STEPS_IGAMMA); }
rp_status rp__run_igammac(const rp__call *call) { return steps(call, RP_STEPS_IGAMMAC); }
rp_status rp__run_standard_gamma_grad(const rp__call *call) { return steps(call, RP_STEPS_GAMMA_SLOPE); }
rp_status rp__run_special_hermite_polynomial_h(const rp__call *call) { return steps(call, RP_STEPS_HERMITE_H); }
rp_status rp__run_special_hermite_polynomial_he(const rp__call *call) { return steps(call, RP_STEPS_HERMITE_HE); }
rp_status rp__run_special_laguerre_polynomial_l(const rp__call *call) { return steps(call, RP_STEPS_LAGUERRE_L); }
rp_status rp__run_special_legendre_polynomial_p(const rp__call *call) { return steps(call, RP_STEPS_LEGENDRE_P); }
rp_status rp__run_standard_gamma(const rp__call *call) { return steps(call, RP_STEPS_GAMMA); }
rp_status rp__run_poisson(const rp__call *call) { return steps(call, RP_STEPS_POISSON); }
rp_status rp__run_binomial(const rp__call *call) { return steps(call, RP_STEPS_BINOMIAL); }

rp_status rp__expand_sample_dirichlet(const rp__call *call) {
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    if (dtype != RP_F32 && dtype != RP_F64) return rp__call_refuse_dtype(call, dtype);
    if (call->in[0]->ndim == 0) return rp__op_error(call, RP_ERROR_SHAPE, "parameters of no dims have no parts");
    /* Draws of small shapes are beyond float32; no part is 0 or all, so that logarithms of both are finite. */
    rp_tensor *parts = rp_standard_gamma_at(call->site, rp_to_dtype(call->in[0], RP_F64), call->attrs[0].v.generator);
    rp_tensor *y = rp_to_dtype(rp_div_at(call->site, parts, rp_sum(parts, RP_DIMS(-1), true)), dtype);
    rp_tensor *kept = rp_clamp(rp_detach(y), rp_f64(least(dtype)), rp_f64(dtype == RP_F64 ? 1 - 0x1p-53 : 1 - 0x1p-24));
    return rp__give(call, rp_where(rp_eq(y, kept), y, kept));
}
