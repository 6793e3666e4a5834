/* What LAPACK computes: matrices are copied to the host as float64, worked on one after the other, and copied back in their type, of
   tensors on whatever device. Where launches of a CPU are recorded, the work on one call is one. Operands of one call have one batch
   (linalg_forms.c sees to that). */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "device/device.h"
#include "device/error_record.h"
#include "kernel/lapack.h"
#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/rules.h"

/* ---- types and sizes */

/* Operand k has the dims of operand 0 but for its last `own` ones: a graph's text may say anything. */
static rp_status check_batch(const rp__call *call, unsigned k, unsigned own) {
    const rp_tensor *a = call->in[0], *t = call->in[k];
    bool same = t->ndim >= own && t->ndim - own == a->ndim - 2u;
    for (unsigned d = 0; same && d + 2u < a->ndim; d++) same = rp__dim_is(RP__DIM_EQ, t->size[d], a->size[d]);
    return same ? RP_OK : rp__op_error(call, RP_ERROR_SHAPE, "operands must have the same batch dimensions");
}

static rp_status check_matrix(const rp__call *call, unsigned k, bool square) {
    const rp_tensor *t = call->in[k];
    if (t->dtype != RP_F32 && t->dtype != RP_F64)
        return rp__op_error(call, RP_ERROR_DTYPE, "Expected a floating point tensor of float32 or float64. Got %s",
                            rp__dtype_title((rp_dtype)t->dtype));
    if (t->dtype != call->in[0]->dtype) return rp__op_error(call, RP_ERROR_DTYPE, "operands must have the same dtype");
    if (t->ndim < 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "The input tensor must have at least 2 dimensions, but it has %u",
                            t->ndim);
    if (square && !rp__dim_is(RP__DIM_EQ, t->size[t->ndim - 1], t->size[t->ndim - 2]))
        return rp__op_error(
            call, RP_ERROR_SHAPE, "A must be batches of square matrices, but they are %lld by %lld matrices",
            (long long)rp__dim_hint(t->size[t->ndim - 2]), (long long)rp__dim_hint(t->size[t->ndim - 1]));
    return k ? check_batch(call, k, 2) : RP_OK;
}

static rp_dim lesser(rp_dim a, rp_dim b) { return rp__dim_is(RP__DIM_LT, a, b) ? a : b; }

/* The batch of operand 0, then rows and, unless it is a vector (columns < 0), columns. */
static void meta_of(const rp__call *call, rp_dtype dtype, rp_dim rows, rp_dim columns, bool vector, rp__meta *out) {
    rp__meta_like(out, call->in[0], dtype);
    out->ndim = (uint8_t)(out->ndim - 2);
    out->size[out->ndim++] = rows;
    if (!vector) out->size[out->ndim++] = columns;
}
static void meta_of_batch(const rp__call *call, rp_dtype dtype, rp__meta *out) {
    rp__meta_like(out, call->in[0], dtype);
    out->ndim = (uint8_t)(out->ndim - 2);
}
static rp_dim rows_of(const rp__call *call, unsigned k) { return call->in[k]->size[call->in[k]->ndim - 2]; }
static rp_dim columns_of(const rp__call *call, unsigned k) { return call->in[k]->size[call->in[k]->ndim - 1]; }

rp_status rp__infer_cholesky_factor(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, true));
    rp__meta_like(&out[0], call->in[0], (rp_dtype)call->in[0]->dtype);
    meta_of_batch(call, RP_I32, &out[1]);
    return RP_OK;
}

rp_status rp__infer_solve_square(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, true));
    RP_TRY(check_matrix(call, 1, false));
    if (!rp__dim_is(RP__DIM_EQ, rows_of(call, 0), rows_of(call, 1)))
        return rp__op_error(call, RP_ERROR_SHAPE, "Incompatible shapes of A and B for the equation AX = B");
    rp__meta_like(&out[0], call->in[1], (rp_dtype)call->in[1]->dtype);
    meta_of_batch(call, RP_I32, &out[1]);
    return RP_OK;
}

rp_status rp__infer_solve_triangle(const rp__call *call, rp__meta *out) {
    const bool left = rp__attr_bool(call, 1);
    RP_TRY(check_matrix(call, 0, true));
    RP_TRY(check_matrix(call, 1, false));
    if (!rp__dim_is(RP__DIM_EQ, rows_of(call, 0), left ? rows_of(call, 1) : columns_of(call, 1)))
        return rp__op_error(call, RP_ERROR_SHAPE, "Incompatible shapes of A and B for the equation %s",
                            left ? "AX = B" : "XA = B");
    rp__meta_like(out, call->in[1], (rp_dtype)call->in[1]->dtype);
    return RP_OK;
}

rp_status rp__infer_lu_determinant(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, true));
    for (unsigned k = 0; k < 3; k++) meta_of_batch(call, (rp_dtype)call->in[0]->dtype, &out[k]);
    return RP_OK;
}

rp_status rp__infer_lu_factors(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, false));
    rp__meta_like(&out[0], call->in[0], (rp_dtype)call->in[0]->dtype);
    meta_of(call, RP_I32, lesser(rows_of(call, 0), columns_of(call, 0)), 0, true, &out[1]);
    meta_of_batch(call, RP_I32, &out[2]);
    return RP_OK;
}

rp_status rp__infer_pivots_order(const rp__call *call, rp__meta *out) {
    const rp_tensor *pivots = call->in[0];
    if (pivots->dtype != RP_I32)
        return rp__op_error(call, RP_ERROR_DTYPE,
                            "LU_pivots is expected to be a contiguous tensor of torch.int32 dtype");
    if (pivots->ndim < 2) return rp__op_error(call, RP_ERROR_SHAPE, "pivots come as columns");
    meta_of(call, RP_I64, rp__attr_int(call, 0), 0, true, out);
    return RP_OK;
}

rp_status rp__infer_linalg_ldl_factor_ex(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, true));
    rp__meta_like(&out[0], call->in[0], (rp_dtype)call->in[0]->dtype);
    meta_of(call, RP_I32, rows_of(call, 0), 0, true, &out[1]);
    meta_of_batch(call, RP_I32, &out[2]);
    return RP_OK;
}

rp_status rp__infer_ldl_solution(const rp__call *call, rp__meta *out) {
    const rp_tensor *pivots = call->in[2];
    RP_TRY(check_matrix(call, 0, true));
    RP_TRY(check_matrix(call, 1, false));
    RP_TRY(check_batch(call, 2, 1));
    if (!rp__dim_is(RP__DIM_EQ, rows_of(call, 0), rows_of(call, 1)) ||
        !rp__dim_is(RP__DIM_EQ, rows_of(call, 0), pivots->size[pivots->ndim - 1]))
        return rp__op_error(call, RP_ERROR_SHAPE, "B and pivots must have as many rows as LD");
    rp__meta_like(out, call->in[1], (rp_dtype)call->in[1]->dtype);
    return RP_OK;
}

rp_status rp__infer_geqrf(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, false));
    rp__meta_like(&out[0], call->in[0], (rp_dtype)call->in[0]->dtype);
    meta_of(call, (rp_dtype)call->in[0]->dtype, lesser(rows_of(call, 0), columns_of(call, 0)), 0, true, &out[1]);
    return RP_OK;
}

enum { QR_REDUCED, QR_COMPLETE, QR_R };
rp_status rp__infer_qr_factors(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, false));
    const rp_dtype d = (rp_dtype)call->in[0]->dtype;
    const rp_dim m = rows_of(call, 0), n = columns_of(call, 0), k = lesser(m, n);
    const int64_t mode = rp__attr_int(call, 0);
    meta_of(call, d, m, mode == QR_COMPLETE ? m : k, false, &out[0]);
    meta_of(call, d, mode == QR_COMPLETE ? m : k, n, false, &out[1]);
    if (mode == QR_R) {
        out[0].ndim = 1;
        out[0].size[0] = 0;
    }
    return RP_OK;
}

rp_status rp__infer_eigen_pairs(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, true));
    meta_of(call, (rp_dtype)call->in[0]->dtype, rows_of(call, 0), 0, true, &out[0]);
    rp__meta_like(&out[1], call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

rp_status rp__infer_singular_parts(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, false));
    const rp_dtype d = (rp_dtype)call->in[0]->dtype;
    const rp_dim m = rows_of(call, 0), n = columns_of(call, 0), k = lesser(m, n);
    const bool full = rp__attr_bool(call, 0);
    meta_of(call, d, m, full ? m : k, false, &out[0]);
    meta_of(call, d, k, 0, true, &out[1]);
    meta_of(call, d, full ? n : k, n, false, &out[2]);
    return RP_OK;
}

rp_status rp__infer_pseudo_inverse(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, rp__attr_bool(call, 2)));
    meta_of(call, (rp_dtype)call->in[0]->dtype, columns_of(call, 0), rows_of(call, 0), false, out);
    return RP_OK;
}

rp_status rp__infer_least_squares(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, false));
    RP_TRY(check_matrix(call, 1, false));
    if (!rp__dim_is(RP__DIM_EQ, rows_of(call, 0), rows_of(call, 1)))
        return rp__op_error(call, RP_ERROR_SHAPE, "input.size(-2) should match other.size(-2)");
    meta_of(call, (rp_dtype)call->in[0]->dtype, columns_of(call, 0), columns_of(call, 1), false, &out[0]);
    meta_of_batch(call, RP_I64, &out[1]);
    return RP_OK;
}

rp_status rp__infer_lyapunov(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, true));
    RP_TRY(check_matrix(call, 1, true));
    if (!rp__dim_is(RP__DIM_EQ, rows_of(call, 0), rows_of(call, 1)))
        return rp__op_error(call, RP_ERROR_SHAPE, "Incompatible shapes of H and Z for the equation HY + YH = Z");
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

rp_status rp__infer_linalg_polar(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, false));
    const rp_dim m = rows_of(call, 0), n = columns_of(call, 0);
    if (rp__dim_is(RP__DIM_LT, m, n))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "input must have at least as many rows as columns, but got %lld by %lld matrices",
                            (long long)rp__dim_hint(m), (long long)rp__dim_hint(n));
    rp__meta_like(&out[0], call->in[0], (rp_dtype)call->in[0]->dtype);
    meta_of(call, (rp_dtype)call->in[0]->dtype, n, n, false, &out[1]);
    return RP_OK;
}

rp_status rp__infer_linalg_matrix_sqrth(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, true));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

/* ---- a call on the host */

typedef struct job {
    const rp__call *call;
    const rp__lapack *lapack;
    rp__device *device;
    rp_stream *stream;
    rp__meta meta[RP__MAX_OUTS];
    double *in[3], *out[RP__MAX_OUTS]; /* row-major */
    double *work[4];
    int64_t numel[RP__MAX_OUTS], batch;
    int m, n, k; /* of operand 0; k the lesser */
} job;

static void job_end(job *j) {
    for (unsigned i = 0; i < 3; i++) rp__free(j->in[i]);
    for (unsigned i = 0; i < RP__MAX_OUTS; i++) rp__free(j->out[i]);
    for (unsigned i = 0; i < 4; i++) rp__free(j->work[i]);
}

static rp_status out_of_memory(const rp__call *call) {
    return rp__op_error(call, RP_ERROR_OUT_OF_MEMORY, "no memory for the matrices on the host");
}

static rp_status fetch(job *j, unsigned k) {
    rp_tensor *t = rp__run_contiguous(j->call->in[k], RP_F64);
    if (rp__tensor_is_error(t)) return rp_error_status();
    const size_t bytes = (size_t)rp__tensor_numel(t) * sizeof(double);
    if (!(j->in[k] = rp__alloc(bytes))) return out_of_memory(j->call);
    return bytes ? j->device->ops->copy_out(j->device, j->stream, j->in[k], rp__tensor_data(t), bytes) : RP_OK;
}

/* What a call is by its sizes, and room for its results. */
static rp_status job_sizes(const rp__call *call, bool lapack, job *j) {
    const rp_tensor *a = call->in[0];
    const int64_t rows = a->size[a->ndim - 2], columns = a->size[a->ndim - 1];
    j->call = call;
    if (lapack && !(j->lapack = rp__lapack_get()))
        return rp__op_error(call, RP_ERROR_UNAVAILABLE,
                            "needs LAPACK, which was not found: install liblapack3 or OpenBLAS, or name a file in "
                            "REPRISE_LIBLAPACK (`reprise doctor` says where it was looked for)");
    bool large = false;
    for (unsigned i = 0; i < call->n_in; i++)
        for (unsigned d = 0; d < call->in[i]->ndim; d++) large |= rp__dim_number(call->in[i]->size[d]) > 1 << 20;
    for (unsigned i = 0; i < call->n_out; i++) /* a result's size may be an argument */
        for (unsigned d = 0; d < j->meta[i].ndim; d++) large |= rp__dim_number(j->meta[i].size[d]) > 1 << 20;
    if (large) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "matrices are at most 2^20 large");
    j->m = (int)rows;
    j->n = (int)columns;
    j->k = j->m < j->n ? j->m : j->n;
    j->batch = 1;
    for (unsigned d = 0; d + 2u < a->ndim; d++) j->batch *= a->size[d];
    return RP_OK;
}

static rp_status job_room(job *j) {
    for (unsigned i = 0; i < j->call->n_out; i++) {
        j->numel[i] = 1;
        for (unsigned d = 0; d < j->meta[i].ndim; d++) j->numel[i] *= j->meta[i].size[d];
        if (!(j->out[i] = rp__calloc((size_t)j->numel[i] + 1, sizeof(double)))) return out_of_memory(j->call);
    }
    return RP_OK;
}

static rp_status job_fetch(job *j) {
    for (unsigned i = 0; i < j->call->n_in; i++) RP_TRY(fetch(j, i));
    return job_room(j);
}

static rp_status job_give(job *j) {
    for (unsigned i = 0; i < j->call->n_out; i++) {
        const rp__meta *m = &j->meta[i];
        rp_tensor *t = rp__tensor_empty(j->device, RP_F64, m->size, m->ndim);
        if (rp__tensor_is_error(t)) return rp_error_status();
        if (j->numel[i] > 0)
            RP_TRY(j->device->ops->copy_in(j->device, j->stream, rp__tensor_data(t), j->out[i],
                                           (size_t)j->numel[i] * sizeof(double)));
        j->call->out[i] = rp__run_contiguous(t, m->dtype);
        if (rp__tensor_is_error(j->call->out[i])) return rp_error_status();
    }
    return RP_OK;
}

static bool room(job *j, unsigned which, int64_t numbers) {
    return (j->work[which] = rp__calloc((size_t)(numbers > 0 ? numbers : 1), sizeof(double))) != NULL;
}

/* A run for one matrix of the batch. */
typedef rp_status each(job *j, int64_t b);
static rp_status run_each(job *j, each *one) {
    rp_status status = RP_OK;
    for (int64_t b = 0; status == RP_OK && b < j->batch; b++) status = one(j, b);
    return status;
}

/* ---- recorded calls: operands and results are memory of the CPU */

static rp_status read_in(job *j, unsigned k, const void *from) {
    const rp_tensor *t = j->call->in[k];
    const int64_t n = rp__tensor_numel(t);
    double *to = j->in[k] = rp__alloc((size_t)(n + 1) * sizeof(double));
    if (!to) return out_of_memory(j->call);
    switch (t->dtype) {
    case RP_F64: memcpy(to, from, (size_t)n * sizeof *to); return RP_OK;
    case RP_F32:
        for (int64_t i = 0; i < n; i++) to[i] = ((const float *)from)[i];
        return RP_OK;
    case RP_I32:
        for (int64_t i = 0; i < n; i++) to[i] = ((const int32_t *)from)[i];
        return RP_OK;
    default: return rp__op_error(j->call, RP_ERROR_INTERNAL, "an operand of dtype %d", (int)t->dtype);
    }
}

static rp_status write_out(const job *j, unsigned k, void *to) {
    const double *from = j->out[k];
    const int64_t n = j->numel[k];
    switch (j->meta[k].dtype) {
    case RP_F64: memcpy(to, from, (size_t)n * sizeof *from); return RP_OK;
    case RP_F32:
        for (int64_t i = 0; i < n; i++) ((float *)to)[i] = (float)from[i];
        return RP_OK;
    case RP_I32:
        for (int64_t i = 0; i < n; i++) ((int32_t *)to)[i] = (int32_t)from[i];
        return RP_OK;
    case RP_I64:
        for (int64_t i = 0; i < n; i++) ((int64_t *)to)[i] = (int64_t)from[i];
        return RP_OK;
    default: return rp__op_error(j->call, RP_ERROR_INTERNAL, "a result of dtype %d", (int)j->meta[k].dtype);
    }
}

/* What fails is told where whoever called looks next, and results are NaN and zeros then: nobody waits here. */
static rp_status work(const rp__call *call, const void *const *in, void *const *out, uint64_t tag, bool lapack,
                      each *one) {
    job j = {.call = call};
    rp__error_state before, found;
    rp__error_save(&before);
    for (unsigned k = 0; k < call->n_out; k++) {
        const rp_tensor *t = call->out[k];
        j.meta[k] = (rp__meta){.dtype = (rp_dtype)t->dtype, .device = t->device, .ndim = t->ndim};
        memcpy(j.meta[k].size, t->size, t->ndim * sizeof *t->size);
    }
    rp_status status = job_sizes(call, lapack, &j);
    for (unsigned k = 0; k < call->n_in && status == RP_OK; k++) status = read_in(&j, k, in[k]);
    if (status == RP_OK) status = job_room(&j);
    if (status == RP_OK) status = run_each(&j, one);
    if (status != RP_OK)
        for (unsigned k = 0; k < call->n_out; k++)
            for (int64_t i = 0; j.out[k] && i < j.numel[k]; i++)
                j.out[k][i] = rp__dtype_is_float(j.meta[k].dtype) ? NAN : 0;
    for (unsigned k = 0; k < call->n_out; k++)
        if (j.out[k]) (void)write_out(&j, k, out[k]);
    job_end(&j);
    rp__error_save(&found);
    if (status != RP_OK) rp__error_record_put_text(&rp__cpu_device, tag, found.text);
    rp__error_restore(&before);
    return status;
}

static rp_status run_recorded(const rp__call *call, job *j, rp__host_work *recorded) {
    rp_tensor *in[3];
    for (unsigned k = 0; k < call->n_in; k++) {
        in[k] = rp__run_contiguous(call->in[k], (rp_dtype)call->in[k]->dtype);
        if (rp__tensor_is_error(in[k])) return rp_error_status();
    }
    for (unsigned k = 0; k < call->n_out; k++) {
        call->out[k] = rp__tensor_empty(j->device, j->meta[k].dtype, j->meta[k].size, j->meta[k].ndim);
        if (rp__tensor_is_error(call->out[k])) return rp_error_status();
    }
    return rp__host_launch(call, j->device, in, recorded);
}

typedef struct lapack_rule {
    bool lapack;
    each *one;
    rp__host_work *work;
} lapack_rule;

static rp_status run(const rp__call *call, const lapack_rule *r) {
    job j = {.call = call};
    RP_TRY(rp__op_infer(call, j.meta));
    if (!(j.device = rp__device_get(j.meta[0].device))) return rp_error_status();
    j.stream = rp__current_stream(j.device);
    rp_status status = job_sizes(call, r->lapack, &j);
    if (status == RP_OK && j.device == &rp__cpu_device && rp__host_recorded(j.stream))
        return run_recorded(call, &j, r->work);
    if (status == RP_OK) status = job_fetch(&j);
    if (status == RP_OK) status = run_each(&j, r->one);
    if (status == RP_OK) status = job_give(&j);
    job_end(&j);
    return status;
}

/* What the rule of a row is given: of `one`, and whether that calls LAPACK. */
#define ROUTINE(name, lapack, one)                                                                                     \
    static rp_status name##_work(const rp__call *call, const void *const *in, void *const *out, uint64_t tag) {        \
        return work(call, in, out, tag, lapack, one);                                                                  \
    }                                                                                                                  \
    static const lapack_rule name = {lapack, one, name##_work}

static int at_least_one(int n) { return n > 1 ? n : 1; }
/* Row-major (m, n) as columns, and back. */
static void turn(const double *from, int64_t m, int64_t n, double *to) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < n; k++) to[k * m + i] = from[i * n + k];
}

static rp_status failed(const rp__call *call, const char *routine, int info) {
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                        info < 0 ? "%s refuses its argument %d: the matrix holds NaN or infinities"
                                 : "%s did not converge (%d): the matrix holds NaN or is badly conditioned",
                        routine, info < 0 ? -info : info);
}

/* ---- the routines */

/* By columns a row-major matrix is its transpose: the lower triangle of one is the upper one of the other. */
static rp_status cholesky_one(job *j, int64_t b) {
    const bool upper = rp__attr_bool(j->call, 0), check = rp__attr_bool(j->call, 1);
    const int64_t n = j->n;
    double *a = j->out[0] + b * n * n;
    int info = 0, ld = at_least_one(j->n);
    memcpy(a, j->in[0] + b * n * n, (size_t)(n * n) * sizeof *a);
    if (n) j->lapack->dpotrf_(upper ? "L" : "U", &j->n, a, &ld, &info, 1);
    if (info < 0) return failed(j->call, "dpotrf", info);
    if (info > 0 && check)
        return rp__op_error(j->call, RP_ERROR_INVALID_ARGUMENT,
                            "The factorization could not be completed because the input is not positive-definite (the "
                            "leading minor of order %d is not positive-definite).",
                            info);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            if (upper ? k < i : k > i) a[i * n + k] = 0;
    j->out[1][b] = info;
    return RP_OK;
}
ROUTINE(cholesky_factor, true, cholesky_one);
rp_status rp__run_cholesky_factor(const rp__call *call) { return run(call, &cholesky_factor); }

/* The LU factors of matrix b in work[0], its pivots in work[1]; what the determinant's sign is. */
static rp_status factor(job *j, int64_t b, int **pivots, int *info) {
    const int64_t n = j->n;
    int ld = at_least_one(j->n);
    if (!j->work[0] && (!room(j, 0, n * n) || !room(j, 1, n))) return out_of_memory(j->call);
    *pivots = (int *)j->work[1];
    *info = 0;
    turn(j->in[0] + b * n * n, n, n, j->work[0]);
    if (n) j->lapack->dgetrf_(&j->n, &j->n, j->work[0], &ld, *pivots, info);
    return *info < 0 ? failed(j->call, "dgetrf", *info) : RP_OK;
}

static rp_status solve_one(job *j, int64_t b) {
    enum { REFUSE, MOVE };
    const int64_t n = j->n, singular = rp__attr_int(j->call, 0);
    const rp_tensor *right = j->call->in[1];
    int *pivots, info, ld = at_least_one(j->n), columns = (int)right->size[right->ndim - 1];
    RP_TRY(factor(j, b, &pivots, &info));
    if (info > 0 && singular == REFUSE)
        return rp__op_error(j->call, RP_ERROR_INVALID_ARGUMENT,
                            "The solver failed because the input matrix is singular: diagonal element %d of its LU "
                            "factors is zero",
                            info);
    const int zero_at = info;
    for (int64_t i = 0; i < n && singular == MOVE; i++) {
        double *diagonal = &j->work[0][i * n + i];
        if (*diagonal == 0) *diagonal = right->dtype == RP_F32 ? FLT_EPSILON : DBL_EPSILON;
    }
    if (!j->work[2] && !room(j, 2, n * columns)) return out_of_memory(j->call);
    turn(j->in[1] + b * n * columns, n, columns, j->work[2]);
    info = 0;
    if (n && columns) j->lapack->dgetrs_("N", &j->n, &columns, j->work[0], &ld, pivots, j->work[2], &ld, &info, 1);
    if (info < 0) return failed(j->call, "dgetrs", info);
    turn(j->work[2], columns, n, j->out[0] + b * n * columns);
    j->out[1][b] = zero_at;
    return RP_OK;
}
ROUTINE(solve_square, true, solve_one);
rp_status rp__run_solve_square(const rp__call *call) { return run(call, &solve_square); }

static rp_status determinant_one(job *j, int64_t b) {
    const int64_t n = j->n;
    int *pivots, info;
    double det = 1, sign = 1, log_size = 0;
    RP_TRY(factor(j, b, &pivots, &info));
    for (int64_t i = 0; i < n; i++) {
        const double diagonal = j->work[0][i * n + i], flip = pivots[i] != i + 1 ? -1 : 1;
        det *= diagonal * flip;
        sign *= (diagonal > 0 ? 1 : diagonal < 0 ? -1 : diagonal) * flip; /* NaN stays one, 0 is 0 */
        log_size += log(fabs(diagonal));
    }
    j->out[0][b] = det;
    j->out[1][b] = sign;
    j->out[2][b] = log_size;
    return RP_OK;
}
ROUTINE(lu_determinant, true, determinant_one);
rp_status rp__run_lu_determinant(const rp__call *call) { return run(call, &lu_determinant); }

/* Substitution, a row of the result after the other; X A = B is A^T X^T = B^T. */
static rp_status triangle_one(job *j, int64_t b) {
    const bool left = rp__attr_bool(j->call, 1), upper = rp__attr_bool(j->call, 0) == left,
               unit = rp__attr_bool(j->call, 2);
    const rp_tensor *right = j->call->in[1];
    const int64_t n = j->n, rows = right->size[right->ndim - 2], columns = right->size[right->ndim - 1];
    const int64_t many = left ? columns : rows, step = left ? columns : 1, next = left ? 1 : columns;
    const double *a = j->in[0] + b * n * n;
    double *x = j->out[0] + b * rows * columns;
    memcpy(x, j->in[1] + b * rows * columns, (size_t)(rows * columns) * sizeof *x);
    for (int64_t c = 0; c < many; c++) {
        double *v = x + c * next;
        for (int64_t done = 0; done < n; done++) {
            const int64_t i = upper ? n - 1 - done : done;
            double sum = v[i * step];
            for (int64_t k = upper ? i + 1 : 0; k < (upper ? n : i); k++)
                sum -= (left ? a[i * n + k] : a[k * n + i]) * v[k * step];
            v[i * step] = unit ? sum : sum / a[i * n + i];
        }
    }
    return RP_OK;
}
ROUTINE(solve_triangle, false, triangle_one);
rp_status rp__run_solve_triangle(const rp__call *call) { return run(call, &solve_triangle); }

static rp_status lu_one(job *j, int64_t b) {
    const int64_t m = j->m, n = j->n, k = j->k;
    int info = 0, ld = at_least_one(j->m);
    if (!j->work[0] && (!room(j, 0, m * n) || !room(j, 1, k))) return out_of_memory(j->call);
    int *pivots = (int *)j->work[1];
    turn(j->in[0] + b * m * n, m, n, j->work[0]);
    if (k) j->lapack->dgetrf_(&j->m, &j->n, j->work[0], &ld, pivots, &info);
    if (info < 0) return failed(j->call, "dgetrf", info);
    if (info > 0 && rp__attr_bool(j->call, 0))
        return rp__op_error(
            j->call, RP_ERROR_INVALID_ARGUMENT,
            "U[%d,%d] is zero and using it on lu_solve would result in a division by zero. If you still "
            "want to perform the factorization, consider calling linalg.lu(A, pivot) or "
            "linalg.lu_factor_ex(A, pivot)",
            info, info);
    turn(j->work[0], n, m, j->out[0] + b * m * n);
    for (int64_t i = 0; i < k; i++) j->out[1][b * k + i] = pivots[i];
    j->out[2][b] = info;
    return RP_OK;
}
ROUTINE(lu_factors, true, lu_one);
rp_status rp__run_lu_factors(const rp__call *call) { return run(call, &lu_factors); }

/* The exchanges of vector b, one after the other. */
static rp_status order_one(job *j, int64_t b) {
    const int64_t k = j->m, rows = j->meta[0].size[j->meta[0].ndim - 1];
    double *order = j->out[0] + b * rows;
    for (int64_t i = 0; i < rows; i++) order[i] = (double)i;
    for (int64_t i = 0; i < k && i < rows; i++) {
        const int64_t with = (int64_t)j->in[0][b * k + i] - 1;
        if (with < 0 || with >= rows)
            return rp__op_error(j->call, RP_ERROR_INVALID_ARGUMENT, "pivots must lie between 1 and %lld, not at %lld",
                                (long long)rows, (long long)(with + 1));
        const double row = order[i];
        order[i] = order[with];
        order[with] = row;
    }
    return RP_OK;
}
ROUTINE(pivots_order, false, order_one);
rp_status rp__run_pivots_order(const rp__call *call) { return run(call, &pivots_order); }

/* ---- symmetric matrices, by the lower triangle */

static int asked(double best);

static rp_status ldl_one(job *j, int64_t b) {
    const int64_t n = j->n;
    int info = 0, query = -1, ld = at_least_one(j->n);
    if (n == 0) return RP_OK;
    if (!j->work[0]) {
        double best = 1;
        int pivot = 0;
        j->lapack->dsytrf_("L", &j->n, NULL, &ld, &pivot, &best, &query, &info, 1);
        if (!room(j, 0, n * n) || !room(j, 1, n) || !room(j, 2, asked(best)) || !room(j, 3, 1))
            return out_of_memory(j->call);
        j->work[3][0] = asked(best);
    }
    int length = (int)j->work[3][0], *pivots = (int *)j->work[1];
    turn(j->in[0] + b * n * n, n, n, j->work[0]);
    j->lapack->dsytrf_("L", &j->n, j->work[0], &ld, pivots, j->work[2], &length, &info, 1);
    if (info < 0) return failed(j->call, "dsytrf", info);
    if (info > 0 && rp__attr_bool(j->call, 1))
        return rp__op_error(j->call, RP_ERROR_INVALID_ARGUMENT,
                            "the matrix is singular: diagonal block %d of D is zero", info);
    double *out = j->out[0] + b * n * n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c <= i; c++) out[i * n + c] = j->work[0][c * n + i];
    for (int64_t i = 0; i < n; i++) j->out[1][b * n + i] = pivots[i];
    j->out[2][b] = info;
    return RP_OK;
}
ROUTINE(linalg_ldl_factor_ex, true, ldl_one);
rp_status rp__run_linalg_ldl_factor_ex(const rp__call *call) { return run(call, &linalg_ldl_factor_ex); }

static rp_status ldl_solution_one(job *j, int64_t b) {
    const rp_tensor *right = j->call->in[1];
    const int64_t n = j->n;
    int info = 0, ld = at_least_one(j->n), columns = (int)right->size[right->ndim - 1];
    if (n == 0 || columns == 0) return RP_OK;
    if (!j->work[0] && (!room(j, 0, n * n) || !room(j, 1, n) || !room(j, 2, n * columns)))
        return out_of_memory(j->call);
    int *pivots = (int *)j->work[1];
    for (int64_t i = 0; i < n; i++) {
        const double at = fabs(j->in[2][b * n + i]);
        if (!(at >= 1 && at <= (double)n))
            return rp__op_error(j->call, RP_ERROR_INVALID_ARGUMENT, "pivots must lie between 1 and %lld, not at %g",
                                (long long)n, at);
        pivots[i] = (int)j->in[2][b * n + i];
    }
    /* A negative one and the next are of one block: dsytrs does not look whether there is a next. */
    for (int64_t i = 0; i < n; i += pivots[i] < 0 ? 2 : 1)
        if (pivots[i] < 0 && i + 1 == n)
            return rp__op_error(j->call, RP_ERROR_INVALID_ARGUMENT, "the last pivot, %d, is half of a block",
                                pivots[i]);
    turn(j->in[0] + b * n * n, n, n, j->work[0]);
    turn(j->in[1] + b * n * columns, n, columns, j->work[2]);
    j->lapack->dsytrs_("L", &j->n, &columns, j->work[0], &ld, pivots, j->work[2], &ld, &info, 1);
    if (info) return failed(j->call, "dsytrs", info);
    turn(j->work[2], columns, n, j->out[0] + b * n * columns);
    return RP_OK;
}
ROUTINE(ldl_solution, true, ldl_solution_one);
rp_status rp__run_ldl_solution(const rp__call *call) { return run(call, &ldl_solution); }

/* Numbers of workspace that a routine asks for. */
static int asked(double best) { return best >= 1 && best < 0x1p30 ? (int)best : 1; }

static rp_status qr_one(job *j, int64_t b) {
    const int64_t mode = rp__attr_int(j->call, 0), m = j->m, n = j->n, k = j->k, wide = mode == QR_COMPLETE ? m : k;
    int info = 0, query = -1, ld = at_least_one(j->m), q = (int)wide;
    if (m == 0 || n == 0) { /* no columns: Q is the identity, as far as there is one */
        for (int64_t i = 0; i < m && mode == QR_COMPLETE; i++) j->out[0][(b * m + i) * m + i] = 1;
        return RP_OK;
    }
    int length = 1;
    if (!j->work[0]) {
        double best[2] = {1, 1};
        j->lapack->dgeqrf_(&j->m, &j->n, best, &ld, best, best, &query, &info);
        if (mode != QR_R) j->lapack->dorgqr_(&j->m, &q, &j->k, best, &ld, best, best + 1, &query, &info);
        length = asked(fmax(best[0], best[1]));
        if (!room(j, 0, m * (n > wide ? n : wide)) || !room(j, 1, k) || !room(j, 2, length) || !room(j, 3, 1))
            return out_of_memory(j->call);
        j->work[3][0] = length;
    }
    length = (int)j->work[3][0];
    double *a = j->work[0];
    turn(j->in[0] + b * m * n, m, n, a);
    j->lapack->dgeqrf_(&j->m, &j->n, a, &ld, j->work[1], j->work[2], &length, &info);
    if (info) return failed(j->call, "dgeqrf", info);
    double *r = j->out[1] + b * wide * n;
    for (int64_t i = 0; i < k; i++)
        for (int64_t c = i; c < n; c++) r[i * n + c] = a[c * m + i];
    if (mode == QR_R) return RP_OK;
    j->lapack->dorgqr_(&j->m, &q, &j->k, a, &ld, j->work[1], j->work[2], &length, &info);
    if (info) return failed(j->call, "dorgqr", info);
    turn(a, wide, m, j->out[0] + b * m * wide);
    return RP_OK;
}
ROUTINE(qr_factors, true, qr_one);
rp_status rp__run_qr_factors(const rp__call *call) { return run(call, &qr_factors); }

static rp_status reflections_one(job *j, int64_t b) {
    const int64_t m = j->m, n = j->n, k = j->k;
    int info = 0, query = -1, ld = at_least_one(j->m);
    if (k == 0) return RP_OK;
    if (!j->work[0]) {
        double best = 1;
        j->lapack->dgeqrf_(&j->m, &j->n, &best, &ld, &best, &best, &query, &info);
        if (!room(j, 0, m * n) || !room(j, 1, asked(best)) || !room(j, 2, 1)) return out_of_memory(j->call);
        j->work[2][0] = asked(best);
    }
    int length = (int)j->work[2][0];
    turn(j->in[0] + b * m * n, m, n, j->work[0]);
    j->lapack->dgeqrf_(&j->m, &j->n, j->work[0], &ld, j->out[1] + b * k, j->work[1], &length, &info);
    if (info) return failed(j->call, "dgeqrf", info);
    turn(j->work[0], n, m, j->out[0] + b * m * n);
    return RP_OK;
}
ROUTINE(geqrf, true, reflections_one);
rp_status rp__run_geqrf(const rp__call *call) { return run(call, &geqrf); }

/* Rising values into w, vectors into the columns of a, which is symmetric and so is its own transpose. */
static rp_status eigen(job *j, bool upper, double *a, double *w) {
    /* What dsyevd asks for at least. */
    const int64_t n = j->n, least = 1 + 6 * n + 2 * n * n;
    int info = 0, words = (int)(3 + 5 * n), length = (int)least, ld = at_least_one(j->n);
    const char *half = upper ? "L" : "U"; /* by columns */
    if (n == 0) return RP_OK;
    if (least > INT32_MAX) return rp__op_error(j->call, RP_ERROR_UNAVAILABLE, "the matrices are too large");
    if (!j->work[2] && (!room(j, 2, least) || !room(j, 3, words))) return out_of_memory(j->call);
    j->lapack->dsyevd_("V", half, &j->n, a, &ld, w, j->work[2], &length, (int *)j->work[3], &words, &info, 1, 1);
    return info ? failed(j->call, "dsyevd", info) : RP_OK;
}

static rp_status eigen_one(job *j, int64_t b) {
    const int64_t n = j->n;
    if (!j->work[0] && !room(j, 0, n * n)) return out_of_memory(j->call);
    memcpy(j->work[0], j->in[0] + b * n * n, (size_t)(n * n) * sizeof(double));
    RP_TRY(eigen(j, rp__attr_bool(j->call, 0), j->work[0], j->out[0] + b * n));
    turn(j->work[0], n, n, j->out[1] + b * n * n);
    return RP_OK;
}
ROUTINE(eigen_pairs, true, eigen_one);
rp_status rp__run_eigen_pairs(const rp__call *call) { return run(call, &eigen_pairs); }

/* Of matrix b: values into s; by columns u (m, full ? m : k) and vt (full ? n : k, n). */
static rp_status singular(job *j, int64_t b, bool full, double *s, double *u, double *vt) {
    const int64_t m = j->m, n = j->n;
    int info = 0, query = -1, ld = at_least_one(j->m), ldvt = at_least_one(full ? j->n : j->k), length;
    const char *which = full ? "A" : "S";
    if (j->k == 0) return RP_OK;
    if (!j->work[2]) {
        double best = 1;
        int word = 0;
        j->lapack->dgesdd_(which, &j->m, &j->n, NULL, &ld, NULL, NULL, &ld, NULL, &ldvt, &best, &query, &word, &info,
                           1);
        length = asked(best);
        if (!room(j, 2, m * n + 1 + length) || !room(j, 3, 4 * (int64_t)j->k + 1)) return out_of_memory(j->call);
        j->work[2][m * n] = length;
    }
    length = (int)j->work[2][m * n];
    turn(j->in[0] + b * m * n, m, n, j->work[2]);
    j->lapack->dgesdd_(which, &j->m, &j->n, j->work[2], &ld, s, u, &ld, vt, &ldvt, j->work[2] + m * n + 1, &length,
                       (int *)j->work[3], &info, 1);
    return info ? failed(j->call, "dgesdd", info) : RP_OK;
}

static rp_status singular_one(job *j, int64_t b) {
    const bool full = rp__attr_bool(j->call, 0);
    const int64_t m = j->m, n = j->n, k = j->k, wide = full ? m : k, high = full ? n : k;
    if (k == 0) { /* nothing to rotate */
        for (int64_t i = 0; i < m && full; i++) j->out[0][(b * m + i) * m + i] = 1;
        for (int64_t i = 0; i < n && full; i++) j->out[2][(b * n + i) * n + i] = 1;
        return RP_OK;
    }
    if (!j->work[0] && (!room(j, 0, m * wide) || !room(j, 1, high * n))) return out_of_memory(j->call);
    RP_TRY(singular(j, b, full, j->out[1] + b * k, j->work[0], j->work[1]));
    turn(j->work[0], wide, m, j->out[0] + b * m * wide);
    turn(j->work[1], n, high, j->out[2] + b * high * n);
    return RP_OK;
}
ROUTINE(singular_parts, true, singular_one);
rp_status rp__run_singular_parts(const rp__call *call) { return run(call, &singular_parts); }

/* V diag(1 / s) U^T over the values that count. Of a symmetric matrix |s| are its eigenvalues' sizes, and U = V up to signs: one
   triangle (the lower) is read. */
static rp_status pseudo_inverse_one(job *j, int64_t b) {
    const double atol = rp__attr_float(j->call, 0), rtol = rp__attr_float(j->call, 1);
    const bool hermitian = rp__attr_bool(j->call, 2);
    const int64_t m = j->m, n = j->n, k = j->k;
    double largest = 0, *y = j->out[0] + b * m * n;
    if (k == 0) return RP_OK;
    if (!j->work[0] && (!room(j, 0, m * k + k) || !room(j, 1, k * n))) return out_of_memory(j->call);
    double *s = j->work[0] + m * k;
    if (hermitian) {
        memcpy(j->work[0], j->in[0] + b * n * n, (size_t)(n * n) * sizeof(double));
        RP_TRY(eigen(j, false, j->work[0], s));
        for (int64_t i = 0; i < k; i++)
            for (int64_t c = 0; c < n; c++) j->work[1][c * k + i] = j->work[0][i * m + c];
    } else {
        RP_TRY(singular(j, b, false, s, j->work[0], j->work[1]));
    }
    for (int64_t i = 0; i < k; i++) largest = fmax(largest, fabs(s[i]));
    const double limit = fmax(atol, rtol * largest);
    for (int64_t i = 0; i < k; i++) {
        if (!(fabs(s[i]) > limit)) continue;
        for (int64_t c = 0; c < n; c++) {
            const double scaled = j->work[1][c * k + i] / s[i];
            for (int64_t r = 0; r < m; r++) y[c * m + r] += scaled * j->work[0][i * m + r];
        }
    }
    return RP_OK;
}
ROUTINE(pseudo_inverse, true, pseudo_inverse_one);
rp_status rp__run_pseudo_inverse(const rp__call *call) { return run(call, &pseudo_inverse); }

/* U H of W S V^T is W V^T and V S V^T. */
static rp_status polar_one(job *j, int64_t b) {
    const int64_t m = j->m, n = j->n;
    double *u = j->out[0] + b * m * n, *h = j->out[1] + b * n * n;
    if (n == 0) return RP_OK;
    if (!j->work[0] && (!room(j, 0, m * n + n) || !room(j, 1, n * n))) return out_of_memory(j->call);
    double *w = j->work[0], *s = w + m * n, *vt = j->work[1];
    RP_TRY(singular(j, b, false, s, w, vt));
    for (int64_t r = 0; r < m; r++)
        for (int64_t c = 0; c < n; c++)
            for (int64_t i = 0; i < n; i++) u[r * n + c] += w[i * m + r] * vt[c * n + i];
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c <= r; c++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++) sum += vt[r * n + i] * s[i] * vt[c * n + i];
            h[r * n + c] = h[c * n + r] = sum;
        }
    return RP_OK;
}
ROUTINE(linalg_polar, true, polar_one);
rp_status rp__run_linalg_polar(const rp__call *call) { return run(call, &linalg_polar); }

static rp_status sqrth_one(job *j, int64_t b) {
    const int64_t n = j->n;
    double *x = j->out[0] + b * n * n;
    if (n == 0) return RP_OK;
    if (!j->work[0] && !room(j, 0, n * n + n)) return out_of_memory(j->call);
    double *v = j->work[0], *values = v + n * n; /* vectors as rows */
    memcpy(v, j->in[0] + b * n * n, (size_t)(n * n) * sizeof *v);
    RP_TRY(eigen(j, false, v, values));
    for (int64_t i = 0; i < n; i++) {
        const double root = values[i] < 0 ? 0 : sqrt(values[i]); /* below 0 by rounding, where rank is missing */
        for (int64_t r = 0; r < n; r++)
            for (int64_t c = 0; c <= r; c++) x[r * n + c] += v[i * n + r] * v[i * n + c] * root;
    }
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < r; c++) x[c * n + r] = x[r * n + c];
    return RP_OK;
}
ROUTINE(linalg_matrix_sqrth, true, sqrth_one);
rp_status rp__run_linalg_matrix_sqrth(const rp__call *call) { return run(call, &linalg_matrix_sqrth); }

static rp_status least_squares_one(job *j, int64_t b) {
    const rp_tensor *right = j->call->in[1];
    const int64_t m = j->m, n = j->n, columns = right->size[right->ndim - 1], high = m > n ? m : n;
    const double rcond = rp__attr_float(j->call, 0);
    int info = 0, query = -1, rank = 0, ld = at_least_one(j->m), ldb = at_least_one((int)high), many = (int)columns,
        length;
    if (j->k == 0 || columns == 0) return RP_OK;
    if (!j->work[0]) {
        double best = 1;
        int pivot = 0;
        j->lapack->dgelsy_(&j->m, &j->n, &many, NULL, &ld, NULL, &ldb, &pivot, &rcond, &rank, &best, &query, &info);
        length = asked(best);
        if (!room(j, 0, m * n) || !room(j, 1, high * columns) || !room(j, 2, length + 1) || !room(j, 3, n))
            return out_of_memory(j->call);
        j->work[2][0] = length;
    }
    length = (int)j->work[2][0];
    turn(j->in[0] + b * m * n, m, n, j->work[0]);
    memset(j->work[3], 0, (size_t)n * sizeof(double));
    for (int64_t c = 0; c < columns; c++)
        for (int64_t i = 0; i < high; i++) j->work[1][c * high + i] = i < m ? j->in[1][(b * m + i) * columns + c] : 0;
    j->lapack->dgelsy_(&j->m, &j->n, &many, j->work[0], &ld, j->work[1], &ldb, (int *)j->work[3], &rcond, &rank,
                       j->work[2] + 1, &length, &info);
    if (info) return failed(j->call, "dgelsy", info);
    for (int64_t c = 0; c < columns; c++)
        for (int64_t i = 0; i < n; i++) j->out[0][(b * n + i) * columns + c] = j->work[1][c * high + i];
    j->out[1][b] = rank;
    return RP_OK;
}
ROUTINE(least_squares, true, least_squares_one);
rp_status rp__run_least_squares(const rp__call *call) { return run(call, &least_squares); }

/* ---- exponentials need no LAPACK */

rp_status rp__infer_exponential_of(const rp__call *call, rp__meta *out) {
    RP_TRY(check_matrix(call, 0, true));
    rp__meta_like(out, call->in[0], (rp_dtype)call->in[0]->dtype);
    return RP_OK;
}

static void multiply(const double *a, const double *b, int64_t n, double *out) {
    memset(out, 0, (size_t)(n * n) * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            for (int64_t c = 0; c < n; c++) out[i * n + c] += a[i * n + k] * b[k * n + c];
}

/* exp(A) = exp(A / 2^s)^(2^s) with a norm up to 1/2, of which 16 terms of the series leave less than the last place of a float64. */
static rp_status exponential_one(job *j, int64_t b) {
    enum { TERMS = 16 };
    const int64_t n = j->n, all = n * n;
    double norm = 0, *y = j->out[0] + b * all;
    int squares = 0;
    if (n == 0) return RP_OK;
    if (!j->work[0] && (!room(j, 0, all) || !room(j, 1, all))) return out_of_memory(j->call);
    double *a = j->work[0], *product = j->work[1];
    memcpy(a, j->in[0] + b * all, (size_t)all * sizeof *a);
    for (int64_t c = 0; c < n; c++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += fabs(a[i * n + c]);
        norm = sum > norm || isnan(sum) ? sum : norm;
    }
    if (!isfinite(norm)) {
        for (int64_t i = 0; i < all; i++) y[i] = NAN;
        return RP_OK;
    }
    (void)frexp(norm, &squares);
    squares = squares + 1 > 0 ? squares + 1 : 0;
    for (int64_t i = 0; i < all; i++) a[i] = ldexp(a[i], -squares);
    for (int64_t i = 0; i < n; i++) y[i * n + i] = 1;
    for (int term = TERMS; term > 0; term--) { /* 1 + A / term (1 + A / (term + 1) (..)) */
        multiply(a, y, n, product);
        for (int64_t i = 0; i < all; i++) y[i] = product[i] / term + (i % (n + 1) == 0);
    }
    for (; squares > 0; squares--) {
        multiply(y, y, n, product);
        memcpy(y, product, (size_t)all * sizeof *y);
    }
    return RP_OK;
}
ROUTINE(exponential_of, false, exponential_one);
rp_status rp__run_exponential_of(const rp__call *call) { return run(call, &exponential_of); }

/* Of H = V diag(l) V^T: V (V^T Z V / (l_i + l_j)) V^T. */
static rp_status lyapunov_one(job *j, int64_t b) {
    const int64_t n = j->n, all = n * n;
    if (n == 0) return RP_OK;
    if (!j->work[0] && (!room(j, 0, 2 * all + n) || !room(j, 1, all))) return out_of_memory(j->call);
    double *rows = j->work[0], *v = rows + all, *l = v + all, *t = j->work[1], *y = j->out[0] + b * all;
    memcpy(rows, j->in[0] + b * all, (size_t)all * sizeof *rows);
    RP_TRY(eigen(j, false, rows, l));
    turn(rows, n, n, v);
    multiply(rows, j->in[1] + b * all, n, y);
    multiply(y, v, n, t);
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < n; c++) t[i * n + c] /= l[i] + l[c];
    multiply(v, t, n, y);
    multiply(y, rows, n, t);
    memcpy(y, t, (size_t)all * sizeof *y);
    return RP_OK;
}
ROUTINE(lyapunov, true, lyapunov_one);
rp_status rp__run_lyapunov(const rp__call *call) { return run(call, &lyapunov); }
