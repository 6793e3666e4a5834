/* Pooling and padding: reads through windows of memory that have bounds (kernel/loop.h). A pool is a rows kernel whose
   rows are the windows; the gradient of a pool is one as well, whose rows are the outputs that an element of the input had a
   part in. Kernel sizes, strides, paddings and dilations are arguments of the kernel. (N, C, places) or (C, places). */
#include <math.h>
#include <string.h>

#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

enum { MOST = 3 }; /* spatial dims */
typedef struct pool {
    unsigned spatial;
    int64_t kernel[MOST], stride[MOST], padding[MOST], dilation[MOST];
    bool ceil;
} pool;

/* One value for all dims, or one each. */
static rp_status each_dim(const rp__call *call, unsigned attr, const char *name, unsigned spatial, int64_t *out) {
    static const char *const counts[] = {"", "one int", "two ints", "three ints"};
    const rp_attr *a = &call->attrs[attr];
    if (a->n != 1 && a->n != spatial)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s must either be a single int, or a tuple of %s", name,
                            counts[spatial]);
    for (unsigned d = 0; d < spatial; d++) {
        out[d] = a->v.ints[a->n == 1 ? 0 : d];
        if (out[d] < 0 || out[d] > INT32_MAX)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s must lie between 0 and %d", name, INT32_MAX);
    }
    return RP_OK;
}

/* Of a pool the spatial dims are those of its int[] kernel_size; its gradient has a value for each in all lists. */
static rp_status spatial_of(const rp__call *call, unsigned first, unsigned *out) {
    *out = first == 0 ? call->op->schema.params[1].fixed : (unsigned)call->attrs[first].n;
    if (*out >= 1 && *out <= MOST) return RP_OK;
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "a pool has 1 to %d spatial dims, not %u", MOST, *out);
}

/* Attributes from `first` on: kernel_size, stride (none: the kernel's), padding, dilation where there is one, ceil_mode. */
static rp_status pool_of(const rp__call *call, unsigned first, bool dilates, pool *p) {
    unsigned s;
    memset(p, 0, sizeof *p);
    RP_TRY(spatial_of(call, first, &s));
    p->spatial = s;
    RP_TRY(each_dim(call, first, "kernel_size", s, p->kernel));
    memcpy(p->stride, p->kernel, sizeof p->stride);
    if (call->attrs[first + 1].n) RP_TRY(each_dim(call, first + 1, "stride", s, p->stride));
    RP_TRY(each_dim(call, first + 2, "padding", s, p->padding));
    for (unsigned d = 0; d < s; d++) p->dilation[d] = 1;
    if (dilates) RP_TRY(each_dim(call, first + 3, "dilation", s, p->dilation));
    p->ceil = rp__attr_bool(call, first + 3 + dilates);
    for (unsigned d = 0; d < s; d++) {
        if (p->kernel[d] == 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "kernel size should be greater than zero");
        if (p->stride[d] == 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "stride should be greater than zero");
        if (p->dilation[d] == 0)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "dilation should be greater than zero");
        const int64_t reach = (p->kernel[d] - 1) * p->dilation[d] + 1;
        if (p->padding[d] > reach / 2)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "pad should be at most half of effective kernel size, but got pad=%lld, "
                                "kernel_size=%lld and dilation=%lld",
                                (long long)p->padding[d], (long long)p->kernel[d], (long long)p->dilation[d]);
    }
    return RP_OK;
}

static rp_dim apply(rp__dim_op op, rp_dim a, rp_dim b) { return rp__dim_apply(op, a, b); }

/* Windows along one dim. With ceil_mode the last may reach past the end, but must begin inside the input or its left padding. */
static rp_dim pooled(rp_dim in, const pool *p, unsigned d) {
    const int64_t reach = (p->kernel[d] - 1) * p->dilation[d] + 1;
    rp_dim room = apply(RP__DIM_ADD, in, 2 * p->padding[d] - reach + (p->ceil ? p->stride[d] - 1 : 0));
    rp_dim n = apply(RP__DIM_ADD, apply(RP__DIM_FLOORDIV, room, p->stride[d]), 1);
    if (!p->ceil) return n;
    const rp_dim begin = apply(RP__DIM_MUL, apply(RP__DIM_SUB, n, 1), p->stride[d]);
    return rp__dim_is(RP__DIM_LT, begin, apply(RP__DIM_ADD, in, p->padding[d])) ? n : apply(RP__DIM_SUB, n, 1);
}

/* A size (N, C, places) or (C, places) with places and channels. */
static rp_status check_places(const rp__call *call, unsigned spatial, const rp_dim *in, size_t n) {
    char text[RP__SHAPE_TEXT];
    bool good = n == spatial + 1 || n == spatial + 2;
    for (size_t d = n == spatial + 2; good && d < n; d++) good = !rp__dim_is(RP__DIM_EQ, in[d], 0);
    if (good) return RP_OK;
    return rp__op_error(call, RP_ERROR_SHAPE,
                        "Expected %uD or %uD (batch mode) tensor with optional 0 dim batch size for input, but got: %s",
                        spatial + 1, spatial + 2, rp__shape_text(in, n, text));
}

/* A result whose last dims are `places`. */
static void places_meta(const rp__call *call, const rp_dim *in, size_t n, const rp_dim *places, unsigned spatial,
                        rp__meta *out) {
    rp_device device = out->device;
    memset(out, 0, sizeof *out);
    out->device = device;
    out->dtype = (rp_dtype)call->in[0]->dtype;
    out->ndim = (uint8_t)n;
    memcpy(out->size, in, (n - spatial) * sizeof *in);
    memcpy(out->size + n - spatial, places, spatial * sizeof *in);
}

/* Meta of the pool of an input of this size. */
static rp_status pooled_meta(const rp__call *call, const pool *p, const rp_dim *in, size_t n, rp__meta *out) {
    const unsigned s = p->spatial;
    char text[RP__SHAPE_TEXT];
    rp_dim places[MOST];
    RP_TRY(check_places(call, s, in, n));
    for (unsigned d = 0; d < s; d++) {
        places[d] = pooled(in[n - s + d], p, d);
        if (rp__dim_is(RP__DIM_LT, places[d], 1))
            return rp__op_error(call, RP_ERROR_SHAPE, "Given input size: %s. Output size is too small",
                                rp__shape_text(in, n, text));
    }
    places_meta(call, in, n, places, s, out);
    return RP_OK;
}

/* Meta of a gradient with respect to an input of size attribute 0, whose pool is as large as in[0]. */
static rp_status input_meta(const rp__call *call, const pool *p, rp__meta *out) {
    const rp_attr *size = &call->attrs[0];
    const rp_tensor *grad = call->in[0];
    rp__meta meta;
    memset(&meta, 0, sizeof meta);
    RP_TRY(rp__call_need_float(call, (rp_dtype)grad->dtype));
    RP_TRY(pooled_meta(call, p, size->v.ints, size->n, &meta));
    bool same = meta.ndim == grad->ndim;
    for (unsigned d = 0; same && d < meta.ndim; d++) same = rp__dim_is(RP__DIM_EQ, meta.size[d], grad->size[d]);
    if (!same) {
        char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
        return rp__op_error(call, RP_ERROR_SHAPE, "a gradient of size %s does not belong to an input of size %s",
                            rp__shape_text(grad->size, grad->ndim, a), rp__shape_text(size->v.ints, size->n, b));
    }
    out->dtype = meta.dtype;
    out->ndim = (uint8_t)size->n;
    memcpy(out->size, size->v.ints, size->n * sizeof *size->v.ints);
    return RP_OK;
}

/* ---- what lowerings share */

/* The space: planes and places of `t`, the window's elements inner. Returns its first inner dim. */
static unsigned pool_space(rp__lower *lw, const rp_tensor *t, const pool *p) {
    rp_dim size[RP_MAX_DIMS];
    const unsigned n = t->ndim;
    (void)rp__lw_structural_value(lw, p->spatial); /* ranks do not say it: a batch may be there or not */
    memcpy(size, t->size, n * sizeof *size);
    memcpy(size + n, p->kernel, p->spatial * sizeof *size);
    rp__lw_space(lw, size, n + p->spatial, ((1u << p->spatial) - 1u) << n);
    return n;
}

/* Strides along the planes of t alone. */
static void plane_strides(const rp_tensor *t, unsigned spatial, rp_dim stride[RP_MAX_DIMS]) {
    memset(stride, 0, RP_MAX_DIMS * sizeof *stride);
    for (unsigned d = 0; d + spatial < t->ndim; d++) stride[d] = t->stride[d];
}

/* Place along spatial dim d that element k of output o's window is in: o * stride + k * dilation - padding. */
static rp__lw_window forward_window(const pool *p, unsigned n, unsigned d, rp_dim size, rp_dim stride) {
    rp__lw_window w = {.size = size, .stride = stride, .pad = p->padding[d], .divisor = 1};
    w.factor[n - p->spatial + d] = p->stride[d];
    w.factor[n + d] = p->dilation[d];
    return w;
}
/* The other way: the output whose window has place i of the input as its element k. */
static rp__lw_window backward_window(const pool *p, unsigned n, unsigned d, rp_dim size, rp_dim stride) {
    rp__lw_window w = {.size = size, .stride = stride, .pad = -p->padding[d], .divisor = p->stride[d]};
    w.factor[n - p->spatial + d] = 1;
    w.factor[n + d] = -p->dilation[d];
    return w;
}

typedef rp__lw_window window_fn(const pool *p, unsigned n, unsigned d, rp_dim size, rp_dim stride);
static uint16_t windows_access(rp__lower *lw, unsigned k, const pool *p, unsigned n, window_fn *window) {
    const rp_tensor *t = rp__lw_call(lw)->in[k];
    const unsigned first = n - p->spatial;
    rp_dim stride[RP_MAX_DIMS];
    rp__lw_window w[MOST];
    plane_strides(t, p->spatial, stride);
    for (unsigned d = 0; d < p->spatial; d++) w[d] = window(p, n, d, t->size[first + d], t->stride[first + d]);
    return rp__lw_windows(lw, (int)k, stride, w, p->spatial, RP__ELEMENTS);
}
static uint16_t forward_access(rp__lower *lw, unsigned k, const pool *p, unsigned n) {
    return windows_access(lw, k, p, n, forward_window);
}
static uint16_t backward_access(rp__lower *lw, unsigned k, const pool *p, unsigned n) {
    return windows_access(lw, k, p, n, backward_window);
}
static rp__val load(rp__lower *lw, uint16_t access) { return rp__lw_load(lw, access, RP__NO_VAL, RP__NO_VAL); }
static rp__val two(rp__lower *lw, rp__prim op, rp__val a, rp__val b) { return rp__lw_2(lw, op, a, b); }

/* ---- largest */

/* Attributes from `first` on are those of max_pool2d. */
rp_status rp__infer_max_pool2d_with_indices(const rp__call *call, rp__meta *out) {
    pool p;
    RP_TRY(rp__call_need_number(call, (rp_dtype)call->in[0]->dtype));
    RP_TRY(pool_of(call, 0, true, &p));
    RP_TRY(pooled_meta(call, &p, call->in[0]->size, call->in[0]->ndim, &out[0]));
    RP_TRY(pooled_meta(call, &p, call->in[0]->size, call->in[0]->ndim, &out[1]));
    out[1].dtype = RP_I64;
    return RP_OK;
}

/* What no element is below. */
static rp__val least(rp__lower *lw, rp_dtype dtype) {
    const rp_dtype compute = rp__lw_compute(dtype);
    if (rp__dtype_is_float(compute)) return rp__lw_const(lw, compute, -INFINITY);
    const int64_t value = dtype == RP_I8    ? INT8_MIN
                          : dtype == RP_I16 ? INT16_MIN
                          : dtype == RP_I32 ? INT32_MIN
                          : dtype == RP_I64 ? INT64_MIN
                                            : 0;
    return rp__lw_const_i(lw, compute, value);
}

/* Results: the largest of x in each row, and the number of its element; outside of the window x is the least of its type. inside:
   RP__NO_VAL where no element is outside. */
static void largest_and_place(rp__lower *lw, rp__val x, rp__val inside, rp__val number) {
    rp__val largest = rp__lw_reduce(lw, RP__REDUCE_MAX, x);
    /* One reduction for both: NaN counts as -1 - place, so that the last is the least, below every place. */
    rp__val less = rp__lw_const_i(lw, RP_I64, -1), far = rp__lw_const_i(lw, RP_I64, INT64_MAX);
    rp__val is = two(lw, RP__EQ, x, largest);
    if (inside != RP__NO_VAL) is = two(lw, RP__AND, inside, is);
    rp__val place = rp__lw_3(lw, RP__WHERE, is, number, far);
    if (rp__dtype_is_float(rp__lw_compute(rp__lw_in_dtype(lw, 0))))
        place = rp__lw_3(lw, RP__WHERE, rp__lw_1(lw, RP__ISNAN, x), two(lw, RP__SUB, less, number), place);
    place = rp__lw_reduce(lw, RP__REDUCE_MIN, place);
    rp__lw_out_row(lw, 0, largest);
    rp__lw_out_row(lw, 1, rp__lw_3(lw, RP__WHERE, two(lw, RP__LE, place, less), two(lw, RP__SUB, less, place), place));
}

/* The index is the row-major place among the spatial dims: of the first largest element, or of the last NaN. */
void rp__lower_max_pool2d_with_indices(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0];
    pool p;
    if (pool_of(call, 0, true, &p) != RP_OK) return;
    const unsigned n = pool_space(lw, call->out[0], &p);
    const uint16_t access = forward_access(lw, 0, &p, n);
    const rp_dim still[RP_MAX_DIMS] = {0};
    rp__lw_window plane[MOST];
    rp_dim step = 1;
    for (unsigned d = p.spatial; d-- > 0;) {
        plane[d] = forward_window(&p, n, d, t->size[n - p.spatial + d], step);
        step = apply(RP__DIM_MUL, step, t->size[n - p.spatial + d]);
    }
    rp__val number = rp__lw_place(lw, rp__lw_windows(lw, -1, still, plane, p.spatial, RP__ELEMENTS));
    rp__val inside = rp__lw_inside(lw, access);
    rp__val x = rp__lw_3(lw, RP__WHERE, inside, load(lw, access), least(lw, rp__lw_in_dtype(lw, 0)));
    largest_and_place(lw, x, inside, number);
}

static rp_status done(const rp__call *call) { return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK; }

#define INTS(k) call->attrs[k].v.ints, call->attrs[k].n
rp_status rp__expand_max_pool2d(const rp__call *call) {
    call->out[0] = rp_max_pool2d_with_indices_at(call->site, call->in[0], INTS(0), INTS(1), INTS(2), INTS(3),
                                                 call->attrs[4].v.b, NULL);
    return done(call);
}

rp_status rp__expand_max_pool3d(const rp__call *call) {
    call->out[0] = rp_max_pool3d_with_indices_at(call->site, call->in[0], INTS(0), INTS(1), INTS(2), INTS(3),
                                                 call->attrs[4].v.b, NULL);
    return done(call);
}

/* A pool of one dim is one of two, of which the first has one place. */
typedef struct flat_list {
    int64_t value[2];
    size_t n;
} flat_list;
static rp_status flat_ints(const rp__call *call, unsigned attr, const char *name, int64_t first, flat_list *out) {
    const rp_attr *a = &call->attrs[attr];
    *out = (flat_list){{first, 0}, 0};
    if (a->n == 0 && attr == 1) return RP_OK; /* no stride: the kernel's */
    RP_TRY(each_dim(call, attr, name, 1, &out->value[1]));
    out->n = 2;
    return RP_OK;
}
static rp_status flat_input(const rp__call *call, rp_tensor **out) {
    RP_TRY(check_places(call, 1, call->in[0]->size, call->in[0]->ndim));
    *out = rp_unsqueeze_at(call->site, call->in[0], -2);
    return rp__tensor_is_error(*out) ? rp_error_status() : RP_OK;
}

static rp_status max_pool1d(const rp__call *call, rp_tensor **indices) {
    flat_list kernel, stride, padding, dilation;
    rp_tensor *x;
    RP_TRY(flat_ints(call, 0, "kernel_size", 1, &kernel));
    RP_TRY(flat_ints(call, 1, "stride", 1, &stride));
    RP_TRY(flat_ints(call, 2, "padding", 0, &padding));
    RP_TRY(flat_ints(call, 3, "dilation", 1, &dilation));
    RP_TRY(flat_input(call, &x));
    rp_tensor *y = rp_max_pool2d_with_indices_at(call->site, x, kernel.value, 2, stride.value, stride.n, padding.value,
                                                 2, dilation.value, 2, call->attrs[4].v.b, indices);
    call->out[0] = rp_squeeze_at(call->site, y, -2);
    if (indices) *indices = rp_squeeze_at(call->site, *indices, -2);
    return done(call);
}

/* PyTorch takes integers with indices alone. */
rp_status rp__expand_max_pool1d(const rp__call *call) {
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    return max_pool1d(call, NULL);
}
rp_status rp__expand_max_pool1d_with_indices(const rp__call *call) { return max_pool1d(call, &call->out[1]); }

rp_status rp__expand_avg_pool1d(const rp__call *call) {
    flat_list kernel, stride, padding;
    rp_tensor *x;
    RP_TRY(flat_ints(call, 0, "kernel_size", 1, &kernel));
    RP_TRY(flat_ints(call, 1, "stride", 1, &stride));
    RP_TRY(flat_ints(call, 2, "padding", 0, &padding));
    RP_TRY(flat_input(call, &x));
    rp_tensor *y = rp_avg_pool2d_at(call->site, x, kernel.value, 2, stride.value, stride.n, padding.value, 2,
                                    call->attrs[3].v.b, call->attrs[4].v.b, INT64_MIN);
    call->out[0] = rp_squeeze_at(call->site, y, -2);
    return done(call);
}

/* The row-major number of the space's place among the last dims of t, which are the space's. */
static rp__val place_number(rp__lower *lw, const rp_tensor *t, unsigned spatial) {
    const unsigned first = t->ndim - spatial;
    rp__val at = rp__lw_dim_index(lw, first);
    for (unsigned d = first + 1; d < t->ndim; d++)
        at = two(lw, RP__ADD, two(lw, RP__MUL, at, rp__lw_size(lw, t->size[d])), rp__lw_dim_index(lw, d));
    return at;
}

/* (grad, indices; input_size, then the attributes of the pool). */
rp_status rp__infer_max_pool_input(const rp__call *call, rp__meta *out) {
    pool p;
    RP_TRY(pool_of(call, 1, true, &p));
    if (call->in[1]->dtype != RP_I64 || !rp__same_size(call->in[0], call->in[1]))
        return rp__op_error(call, RP_ERROR_SHAPE, "expected int64 indices of the gradient's size");
    return input_meta(call, &p, out);
}

void rp__lower_max_pool_input(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    pool p;
    if (pool_of(call, 1, true, &p) != RP_OK) return;
    const unsigned n = pool_space(lw, call->out[0], &p);
    const uint16_t grad = backward_access(lw, 0, &p, n), indices = backward_access(lw, 1, &p, n);
    rp__val here = place_number(lw, call->out[0], p.spatial);
    rp__val is = two(lw, RP__AND, rp__lw_inside(lw, indices), two(lw, RP__EQ, load(lw, indices), here));
    rp__val zero = rp__lw_const(lw, rp__lw_compute(rp__lw_in_dtype(lw, 0)), 0);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_SUM, rp__lw_3(lw, RP__WHERE, is, load(lw, grad), zero)));
}

/* ---- mean */

/* What a window's sum is divided by. Attributes from `first` on: count_include_pad, divisor_override. */
typedef enum divisor { DIVIDE_BY_ALL, DIVIDE_BY_COUNT, DIVIDE_BY_INSIDE, DIVIDE_BY_NUMBER } divisor;
static divisor divisor_of(const rp__call *call, unsigned first, const pool *p, const rp_dim *in, const rp_dim *out) {
    const bool padding_counts = rp__attr_bool(call, first);
    if (rp__attr_int(call, first + 1) != INT64_MIN) return DIVIDE_BY_NUMBER;
    bool all = true;
    for (unsigned d = 0; d < p->spatial; d++) {
        all = all && (padding_counts || p->padding[d] == 0) &&
              (rp__dim_hint(out[d]) - 1) * p->stride[d] + p->kernel[d] <= rp__dim_hint(in[d]) + 2 * p->padding[d];
    }
    return all ? DIVIDE_BY_ALL : padding_counts ? DIVIDE_BY_COUNT : DIVIDE_BY_INSIDE;
}
/* Elements of the window of output `at` along one dim that count: those of the padded input, or those of the input. */
static rp__val counted(rp__lower *lw, const pool *p, unsigned d, rp_dim in, rp__val at, divisor by) {
    rp__val begin = two(lw, RP__MUL, at, rp__lw_size(lw, p->stride[d]));
    rp__val end = two(lw, RP__ADD, begin, rp__lw_size(lw, p->kernel[d]));
    if (by == DIVIDE_BY_INSIDE) {
        begin = two(lw, RP__MAX, begin, rp__lw_size(lw, p->padding[d]));
        end = two(lw, RP__MIN, end, rp__lw_size(lw, in + p->padding[d]));
    } else {
        end = two(lw, RP__MIN, end, rp__lw_size(lw, in + 2 * p->padding[d]));
    }
    return two(lw, RP__SUB, end, begin);
}

/* Of the window of output (at[0], ..): their product. in: sizes of the input. */
static rp__val all_counted(rp__lower *lw, const pool *p, const rp_dim *in, const rp__val *at, divisor by,
                           rp_dtype compute) {
    rp__val count = counted(lw, p, 0, in[0], at[0], by);
    for (unsigned d = 1; d < p->spatial; d++) count = two(lw, RP__MUL, count, counted(lw, p, d, in[d], at[d], by));
    return rp__lw_cast(lw, count, compute);
}

static rp_status check_divisor(const rp__call *call, unsigned attr) {
    return rp__attr_int(call, attr) == 0 ? rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "divisor must be not zero")
                                         : RP_OK;
}

rp_status rp__infer_avg_pool2d(const rp__call *call, rp__meta *out) {
    pool p;
    RP_TRY(pool_of(call, 0, false, &p));
    RP_TRY(check_divisor(call, 5));
    if (call->in[0]->dtype != RP_I64) RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    return pooled_meta(call, &p, call->in[0]->size, call->in[0]->ndim, out);
}

/* Of integers, towards 0. */
static rp__val quotient(rp__lower *lw, rp__val a, rp__val b) {
    const rp__val zero = rp__lw_const_i(lw, RP_I64, 0), down = two(lw, RP__FLOORDIV, a, b);
    const rp__val left = two(lw, RP__NE, two(lw, RP__REMAINDER, a, b), zero);
    const rp__val below = two(lw, RP__NE, two(lw, RP__LT, a, zero), two(lw, RP__LT, b, zero));
    return rp__lw_3(lw, RP__WHERE, two(lw, RP__AND, left, below), two(lw, RP__ADD, down, rp__lw_const_i(lw, RP_I64, 1)),
                    down);
}

void rp__lower_avg_pool2d(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const rp_tensor *t = call->in[0], *out = call->out[0];
    pool p;
    if (pool_of(call, 0, false, &p) != RP_OK) return;
    const unsigned n = pool_space(lw, out, &p);
    const divisor by = divisor_of(call, 4, &p, t->size + n - p.spatial, out->size + n - p.spatial);
    rp__val total = rp__lw_reduce(lw, RP__REDUCE_SUM, load(lw, forward_access(lw, 0, &p, n))), count;
    switch ((divisor)rp__lw_structural_value(lw, by)) {
    case DIVIDE_BY_NUMBER: count = rp__lw_attr(lw, 5, compute); break;
    case DIVIDE_BY_ALL: count = rp__lw_inner_extent(lw, compute); break;
    default: {
        rp__val at[MOST];
        for (unsigned d = 0; d < p.spatial; d++) at[d] = rp__lw_dim_index(lw, n - p.spatial + d);
        count = all_counted(lw, &p, t->size + n - p.spatial, at, by, compute);
    }
    }
    rp__lw_out_row(lw, 0, rp__dtype_is_float(compute) ? two(lw, RP__DIV, total, count) : quotient(lw, total, count));
}

/* (grad; input_size, then the attributes of the pool). */
rp_status rp__infer_avg_pool_input(const rp__call *call, rp__meta *out) {
    pool p;
    RP_TRY(pool_of(call, 1, false, &p));
    RP_TRY(check_divisor(call, 6));
    return input_meta(call, &p, out);
}

/* The number of the output along spatial dim d. */
static rp__val output_place(rp__lower *lw, const pool *p, unsigned n, unsigned d, rp_dim size) {
    const rp_dim still[RP_MAX_DIMS] = {0};
    const rp__lw_window w = backward_window(p, n, d, size, 1);
    return rp__lw_place(lw, rp__lw_windows(lw, -1, still, &w, 1, RP__ELEMENTS));
}

void rp__lower_avg_pool_input(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const rp_tensor *grad = call->in[0], *out = call->out[0];
    pool p;
    if (pool_of(call, 1, false, &p) != RP_OK) return;
    const unsigned n = pool_space(lw, out, &p);
    const divisor by = divisor_of(call, 5, &p, out->size + n - p.spatial, grad->size + n - p.spatial);
    rp__val x = load(lw, backward_access(lw, 0, &p, n)), total;
    switch ((divisor)rp__lw_structural_value(lw, by)) {
    case DIVIDE_BY_NUMBER:
        total = two(lw, RP__DIV, rp__lw_reduce(lw, RP__REDUCE_SUM, x), rp__lw_attr(lw, 6, compute));
        break;
    case DIVIDE_BY_ALL:
        total = two(lw, RP__DIV, rp__lw_reduce(lw, RP__REDUCE_SUM, x), rp__lw_inner_extent(lw, compute));
        break;
    default: {
        rp__val at[MOST];
        for (unsigned d = 0; d < p.spatial; d++) at[d] = output_place(lw, &p, n, d, grad->size[n - p.spatial + d]);
        rp__val count = all_counted(lw, &p, out->size + n - p.spatial, at, by, compute);
        total = rp__lw_reduce(lw, RP__REDUCE_SUM, two(lw, RP__DIV, x, count));
    }
    }
    rp__lw_out_row(lw, 0, total);
}

/* ---- adaptive: window i of `to` along a dim of `from` places is [i from / to, (i + 1) from / to), rounded down and up. Seen from the
   input, the windows that an element is in are the same with the sizes exchanged. Where one size divides the other the windows along
   that dim lie side by side, and nothing has to be asked of an element. */

static rp_status adaptive_places(const rp__call *call, unsigned spatial, rp_dim *places) {
    const rp_attr *a = &call->attrs[0];
    const rp_tensor *t = call->in[0];
    RP_TRY(rp__call_need_float(call, (rp_dtype)t->dtype));
    RP_TRY(check_places(call, spatial, t->size, t->ndim));
    if (a->n != 1 && a->n != spatial)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "output_size must have %u entries, not %zu", spatial,
                            a->n);
    for (unsigned d = 0; d < spatial; d++) {
        places[d] = a->v.ints[a->n == 1 ? 0 : d];
        if (rp__dim_is(RP__DIM_LT, places[d], 0))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "elements of output_size must be greater than or equal to 0");
    }
    return RP_OK;
}

/* How the places of one dim of the space meet those of the operand. */
typedef enum meeting {
    MEET_ANY,  /* element k of window i: the floor of i from / to, and k */
    MEET_MANY, /* element k of window i: i n + k, with n = from / to */
    MEET_ONE,  /* window i has one element: i / n, with n = to / from */
    MEET_SAME, /* the same with n = 1 */
    MEET_ALL   /* the same with one place */
} meeting;
static bool divides(rp_dim a, rp_dim b) {
    return !rp__dim_is(RP__DIM_EQ, a, 0) && rp__dim_is(RP__DIM_EQ, apply(RP__DIM_MOD, b, a), 0);
}
static meeting meeting_of(rp_dim from, rp_dim to) {
    if (rp__dim_same_word(from, 1)) return MEET_ALL;
    if (rp__dim_same_word(from, to)) return MEET_SAME;
    return divides(to, from) ? MEET_MANY : divides(from, to) ? MEET_ONE : MEET_ANY;
}

/* Most elements of a window of `to` over `from` places. */
static rp_dim widest(meeting how, rp_dim from, rp_dim to) {
    if (how == MEET_MANY) return apply(RP__DIM_FLOORDIV, from, to);
    if (how != MEET_ANY || rp__dim_is(RP__DIM_EQ, to, 0)) return 1;
    /* The ceiling and one more: a window begins and ends within a step. */
    return apply(RP__DIM_ADD, apply(RP__DIM_FLOORDIV, apply(RP__DIM_ADD, from, apply(RP__DIM_SUB, to, 1)), to), 1);
}

typedef struct adaptive {
    unsigned first, spatial; /* of the dims of the space */
    unsigned n;              /* of them that are not within windows */
    meeting how[MOST];
    rp_dim from[MOST], to[MOST];
    rp__val at[MOST];    /* of the window's element */
    rp__val inside;      /* is it one? */
    bool points, always; /* windows of one element; all elements are inside */
} adaptive;

/* The space: the places of t, then as many elements as the widest window over `from` has, if one has several. numbers: all of at[] are
   wanted, else those that a load asks for: an index that nobody reads would keep dims apart. */
static adaptive adaptive_space(rp__lower *lw, const rp_tensor *t, const rp_dim *from, unsigned spatial, bool numbers) {
    adaptive a = {.first = t->ndim - spatial, .spatial = spatial, .n = t->ndim, .points = true, .always = true};
    rp_dim size[RP_MAX_DIMS];
    int64_t how = spatial; /* ranks do not say it: a batch may be there or not */
    memcpy(size, t->size, t->ndim * sizeof *size);
    for (unsigned d = 0; d < spatial; d++) {
        a.from[d] = from[d];
        a.to[d] = t->size[a.first + d];
        a.how[d] = meeting_of(a.from[d], a.to[d]);
        a.points = a.points && a.how[d] >= MEET_ONE;
        a.always = a.always && a.how[d] != MEET_ANY;
        size[t->ndim + d] = widest(a.how[d], a.from[d], a.to[d]);
        how = how * (MEET_ALL + 1) + a.how[d];
    }
    (void)rp__lw_structural_value(lw, how);
    rp__lw_space(lw, size, t->ndim + (a.points ? 0 : spatial), a.points ? 0 : ((1u << spatial) - 1u) << t->ndim);
    const rp__val one = rp__lw_const_i(lw, RP_I64, 1), zero = rp__lw_const_i(lw, RP_I64, 0);
    bool asked = false;
    for (unsigned d = 0; d < spatial; d++) {
        if (a.how[d] == MEET_ALL) a.at[d] = zero;
        if (a.how[d] == MEET_ALL || (!numbers && (a.how[d] == MEET_SAME || a.how[d] == MEET_MANY))) continue;
        const rp__val i = rp__lw_dim_index(lw, a.first + d);
        if (a.how[d] == MEET_SAME) {
            a.at[d] = i;
            continue;
        }
        if (a.how[d] == MEET_ONE) {
            a.at[d] = two(lw, RP__FLOORDIV, i, rp__lw_size(lw, apply(RP__DIM_FLOORDIV, a.to[d], a.from[d])));
            continue;
        }
        const rp__val k = rp__lw_dim_index(lw, t->ndim + d);
        if (a.how[d] == MEET_MANY) {
            a.at[d] = two(lw, RP__ADD, two(lw, RP__MUL, i, rp__lw_size(lw, size[t->ndim + d])), k);
            continue;
        }
        const rp__val in = rp__lw_size(lw, a.from[d]), out = rp__lw_size(lw, a.to[d]);
        const rp__val next =
            two(lw, RP__ADD, two(lw, RP__MUL, two(lw, RP__ADD, i, one), in), two(lw, RP__SUB, out, one));
        const rp__val at = two(lw, RP__ADD, two(lw, RP__FLOORDIV, two(lw, RP__MUL, i, in), out), k);
        const rp__val inside = two(lw, RP__LT, at, two(lw, RP__FLOORDIV, next, out));
        a.at[d] =
            two(lw, RP__MIN, at, two(lw, RP__SUB, in, one)); /* what is outside reads the last element, and drops it */
        a.inside = asked ? two(lw, RP__AND, a.inside, inside) : inside;
        asked = true;
    }
    return a;
}

/* x where the element is one of the window's, else `other`. */
static rp__val adaptive_where(rp__lower *lw, const adaptive *a, rp__val x, rp__val other) {
    return a->always ? x : rp__lw_3(lw, RP__WHERE, a->inside, x, other);
}

static rp__val zero_of(rp__lower *lw) { return rp__lw_const(lw, rp__lw_compute(rp__lw_in_dtype(lw, 0)), 0); }

/* The sum over a window, whose order begins with 0: -0 alone becomes 0. */
static rp__val adaptive_sum(rp__lower *lw, const adaptive *a, rp__val x) {
    return a->points ? two(lw, RP__ADD, x, zero_of(lw)) : rp__lw_reduce(lw, RP__REDUCE_SUM, x);
}
static void adaptive_out(rp__lower *lw, const adaptive *a, unsigned k, rp__val v) {
    if (a->points)
        rp__lw_out(lw, k, v);
    else
        rp__lw_out_row(lw, k, v);
}

/* Elements of window `at` of `to` over `from` places. */
static rp__val window_size(rp__lower *lw, rp__val at, rp_dim from, rp_dim to) {
    rp__val one = rp__lw_const_i(lw, RP_I64, 1), in = rp__lw_size(lw, from), out = rp__lw_size(lw, to);
    rp__val next = two(lw, RP__ADD, two(lw, RP__MUL, two(lw, RP__ADD, at, one), in), two(lw, RP__SUB, out, one));
    return two(lw, RP__SUB, two(lw, RP__FLOORDIV, next, out), two(lw, RP__FLOORDIV, two(lw, RP__MUL, at, in), out));
}

/* Elements of the window at `at` of `out` over `in`, as a number of type `compute`. */
static rp_dim even_size(rp_dim in, rp_dim out) {
    return divides(out, in) ? apply(RP__DIM_FLOORDIV, in, out) : 1; /* fewer places than windows: each has one */
}
static rp__val adaptive_count(rp__lower *lw, const adaptive *a, const rp_dim *in, const rp_dim *out, const rp__val *at,
                              rp_dtype compute) {
    rp__val count = 0;
    for (unsigned d = 0; d < a->spatial; d++) {
        const rp__val n =
            a->how[d] == MEET_ANY ? window_size(lw, at[d], in[d], out[d]) : rp__lw_size(lw, even_size(in[d], out[d]));
        count = d ? two(lw, RP__MUL, count, n) : n;
    }
    return rp__lw_cast(lw, count, compute);
}

static rp__val adaptive_load(rp__lower *lw, const adaptive *a, unsigned k) {
    const rp_tensor *t = rp__lw_call(lw)->in[k];
    rp_dim stride[RP_MAX_DIMS];
    rp__val offset = RP__NO_VAL;
    plane_strides(t, a->spatial, stride);
    for (unsigned d = 0; d < a->spatial; d++) {
        const rp_dim step = t->stride[a->first + d];
        if (a->how[d] == MEET_ALL) continue;
        if (a->how[d] == MEET_SAME) {
            stride[a->first + d] = step;
            continue;
        }
        if (a->how[d] == MEET_MANY) {
            stride[a->first + d] = apply(RP__DIM_MUL, step, apply(RP__DIM_FLOORDIV, a->from[d], a->to[d]));
            stride[a->n + d] = step;
            continue;
        }
        const rp__val part = two(lw, RP__MUL, a->at[d], rp__lw_size(lw, step));
        offset = offset == RP__NO_VAL ? part : two(lw, RP__ADD, offset, part);
    }
    return rp__lw_load(lw, rp__lw_access(lw, false, k, stride, RP__ELEMENTS), offset, RP__NO_VAL);
}

static rp__val adaptive_number(rp__lower *lw, const adaptive *a, const rp_dim *size) {
    rp__val number = a->at[0];
    for (unsigned d = 1; d < a->spatial; d++)
        number = two(lw, RP__ADD, two(lw, RP__MUL, number, rp__lw_size(lw, size[d])), a->at[d]);
    return number;
}

/* Of the output the spatial dims are the last ones of its int[] output_size. */
static unsigned adaptive_dims(const rp__call *call) { return call->op->schema.params[1].fixed; }

rp_status rp__infer_adaptive_avg_pool2d(const rp__call *call, rp__meta *out) {
    const rp_tensor *t = call->in[0];
    rp_dim places[MOST];
    RP_TRY(adaptive_places(call, adaptive_dims(call), places));
    places_meta(call, t->size, t->ndim, places, adaptive_dims(call), out);
    return RP_OK;
}

void rp__lower_adaptive_avg_pool2d(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0], *out = call->out[0];
    const unsigned s = adaptive_dims(call), first = t->ndim - s;
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const adaptive a = adaptive_space(lw, out, t->size + first, s, false);
    rp__val x = adaptive_where(lw, &a, adaptive_load(lw, &a, 0), zero_of(lw)), i[MOST] = {0};
    for (unsigned d = 0; d < s; d++)
        if (a.how[d] == MEET_ANY) i[d] = rp__lw_dim_index(lw, first + d);
    rp__val count = adaptive_count(lw, &a, t->size + first, out->size + first, i, compute);
    adaptive_out(lw, &a, 0, two(lw, RP__DIV, adaptive_sum(lw, &a, x), count));
}

/* (grad[, indices]; input_size, spatial). */
static rp_status adaptive_input(const rp__call *call, rp__meta *out) {
    const rp_attr *size = &call->attrs[0];
    const int64_t spatial = rp__attr_int(call, 1);
    const rp_tensor *grad = call->in[0];
    RP_TRY(rp__call_need_float(call, (rp_dtype)grad->dtype));
    bool good = spatial >= 1 && spatial <= MOST && size->n == grad->ndim && size->n > (size_t)spatial;
    for (size_t d = 0; good && d + (size_t)spatial < size->n; d++)
        good = rp__dim_is(RP__DIM_EQ, size->v.ints[d], grad->size[d]);
    if (!good) return rp__op_error(call, RP_ERROR_SHAPE, "a gradient that does not belong to an input of that size");
    RP_TRY(check_places(call, (unsigned)spatial, size->v.ints, size->n));
    places_meta(call, size->v.ints, size->n, size->v.ints + size->n - spatial, (unsigned)spatial, out);
    return RP_OK;
}

rp_status rp__infer_adaptive_avg_pool_input(const rp__call *call, rp__meta *out) { return adaptive_input(call, out); }

void rp__lower_adaptive_avg_pool_input(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *grad = call->in[0], *out = call->out[0];
    const unsigned s = (unsigned)rp__attr_int(call, 1), first = out->ndim - s;
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const adaptive a = adaptive_space(lw, out, grad->size + first, s, false);
    rp__val count = adaptive_count(lw, &a, out->size + first, grad->size + first, a.at, compute);
    rp__val x = two(lw, RP__DIV, adaptive_load(lw, &a, 0), count);
    adaptive_out(lw, &a, 0, adaptive_sum(lw, &a, adaptive_where(lw, &a, x, zero_of(lw))));
}

rp_status rp__infer_adaptive_max_pool2d(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_adaptive_avg_pool2d(call, &out[0]));
    RP_TRY(rp__infer_adaptive_avg_pool2d(call, &out[1]));
    out[1].dtype = RP_I64;
    return RP_OK;
}

void rp__lower_adaptive_max_pool2d(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0], *out = call->out[0];
    const unsigned s = adaptive_dims(call);
    const adaptive a = adaptive_space(lw, out, t->size + t->ndim - s, s, true);
    const rp__val least = rp__lw_const(lw, rp__lw_compute(rp__lw_in_dtype(lw, 0)), -INFINITY);
    rp__val x = adaptive_where(lw, &a, adaptive_load(lw, &a, 0), least);
    const rp__val number = adaptive_number(lw, &a, t->size + t->ndim - s);
    if (a.points) {
        rp__lw_out(lw, 0, x);
        rp__lw_out(lw, 1, number);
        return;
    }
    largest_and_place(lw, x, a.always ? RP__NO_VAL : a.inside, number);
}

rp_status rp__infer_adaptive_max_pool_input(const rp__call *call, rp__meta *out) {
    if (call->in[1]->dtype != RP_I64 || !rp__same_size(call->in[0], call->in[1]))
        return rp__op_error(call, RP_ERROR_SHAPE, "expected int64 indices of the gradient's size");
    return adaptive_input(call, out);
}

void rp__lower_adaptive_max_pool_input(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *grad = call->in[0], *out = call->out[0];
    const unsigned s = (unsigned)rp__attr_int(call, 1);
    const adaptive a = adaptive_space(lw, out, grad->size + out->ndim - s, s, false);
    rp__val is = two(lw, RP__EQ, adaptive_load(lw, &a, 1), place_number(lw, out, s));
    if (!a.always) is = two(lw, RP__AND, a.inside, is);
    const rp__val x = rp__lw_3(lw, RP__WHERE, is, adaptive_load(lw, &a, 0), zero_of(lw));
    adaptive_out(lw, &a, 0, adaptive_sum(lw, &a, x));
}

/* One dim as two, of which the first has one place. */
static rp_status flat_places(const rp__call *call, rp_tensor **x, int64_t places[2]) {
    const rp_attr *a = &call->attrs[0];
    if (a->n != 1)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "output_size must have one entry, not %zu", a->n);
    places[0] = 1;
    places[1] = a->v.ints[0];
    return flat_input(call, x);
}

rp_status rp__expand_adaptive_avg_pool1d(const rp__call *call) {
    int64_t places[2];
    rp_tensor *x;
    RP_TRY(flat_places(call, &x, places));
    call->out[0] = rp_squeeze_at(call->site, rp_adaptive_avg_pool2d_at(call->site, x, places, 2), -2);
    return done(call);
}

rp_status rp__expand_adaptive_max_pool1d(const rp__call *call) {
    int64_t places[2];
    rp_tensor *x, *indices;
    RP_TRY(flat_places(call, &x, places));
    call->out[0] = rp_squeeze_at(call->site, rp_adaptive_max_pool2d_at(call->site, x, places, 2, &indices), -2);
    call->out[1] = rp_squeeze_at(call->site, indices, -2);
    return done(call);
}

/* ---- made of the above */

/* (sum of x ** p) ** (1 / p) of each window: a mean, times the window's size. A negative sum gives 0, as PyTorch's. */
static rp_status lp_pool(const rp__call *call, unsigned spatial) {
    const double p = rp__attr_float(call, 0);
    rp_tensor *x = rp__wide(call->in[0]), *powers = rp_pow_scalar(x, rp_f64(p)), *mean;
    int64_t kernel[MOST], size = 1;
    RP_TRY(rp__call_need_float(call, (rp_dtype)call->in[0]->dtype));
    RP_TRY(each_dim(call, 1, "kernel_size", spatial, kernel));
    for (unsigned d = 0; d < spatial; d++)
        if (__builtin_mul_overflow(size, kernel[d], &size))
            return rp__op_error(call, RP_ERROR_SHAPE, "a window has too many elements");
    const bool ceil = rp__attr_bool(call, 3);
    switch (spatial) {
    case 1: mean = rp_avg_pool1d_at(call->site, powers, INTS(1), INTS(2), RP_DIMS(0), ceil, true); break;
    case 2: mean = rp_avg_pool2d_at(call->site, powers, INTS(1), INTS(2), RP_DIMS(0), ceil, true, INT64_MIN); break;
    default: mean = rp_avg_pool3d_at(call->site, powers, INTS(1), INTS(2), RP_DIMS(0), ceil, true, INT64_MIN);
    }
    rp_tensor *sum = rp_mul_scalar(rp_mul(rp_sign(mean), rp_relu(rp_abs(mean))), rp_i64(size));
    rp_tensor *y = rp_pow_scalar(sum, rp_f64(1 / p));
    if (!rp__tensor_is_error(y) && y->dtype != call->in[0]->dtype) y = rp_to_dtype(y, (rp_dtype)call->in[0]->dtype);
    call->out[0] = y;
    return done(call);
}
rp_status rp__expand_lp_pool1d(const rp__call *call) { return lp_pool(call, 1); }
rp_status rp__expand_lp_pool2d(const rp__call *call) { return lp_pool(call, 2); }
rp_status rp__expand_lp_pool3d(const rp__call *call) { return lp_pool(call, 3); }

/* Each element at its index of a plane of zeros. */
static rp_status unpool(const rp__call *call, unsigned spatial) {
    rp_tensor *x = call->in[0], *indices = call->in[1];
    const rp_attr *a = &call->attrs[0];
    rp_dim size[RP_MAX_DIMS], plane[RP_MAX_DIMS];
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    RP_TRY(check_places(call, spatial, x->size, x->ndim));
    if (indices->dtype != RP_I64)
        return rp__op_error(call, RP_ERROR_DTYPE, "elements in indices should be type int64 but got: %s",
                            rp_dtype_name((rp_dtype)indices->dtype));
    if (!rp__same_size(x, indices))
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected shape of indices to be same as that of the input tensor");
    if (a->n != spatial)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "There should be exactly %u elements in output_size, but got %zu", spatial, a->n);
    const unsigned planes = x->ndim - spatial;
    memcpy(size, x->size, planes * sizeof *size);
    memcpy(plane, x->size, planes * sizeof *plane);
    plane[planes] = 1;
    for (unsigned d = 0; d < spatial; d++) {
        size[planes + d] = a->v.ints[d];
        if (rp__dim_is(RP__DIM_LT, size[planes + d], 0))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "output_size must not be negative");
        plane[planes] = apply(RP__DIM_MUL, plane[planes], size[planes + d]);
    }
    rp_tensor *zeros =
        rp_zeros(plane, planes + 1, RP_OPTIONS(rp_zeros_options, .dtype = (rp_dtype)x->dtype, .device = &x->device));
    rp_tensor *flat = rp_flatten(x, (int64_t)planes, -1), *at = rp_flatten(indices, (int64_t)planes, -1);
    rp_tensor *y = rp_scatter_at(call->site, zeros, -1, at, flat, NULL); /* of a place that is named twice the last */
    call->out[0] = rp_view(y, size, x->ndim);
    return done(call);
}
rp_status rp__expand_max_unpool1d(const rp__call *call) { return unpool(call, 1); }
rp_status rp__expand_max_unpool2d(const rp__call *call) { return unpool(call, 2); }
rp_status rp__expand_max_unpool3d(const rp__call *call) {
    int64_t value[MOST];
    RP_TRY(each_dim(call, 1, "stride", 3, value));
    for (unsigned d = 0; d < 3; d++)
        if (value[d] == 0) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "strides should be greater than zero");
    RP_TRY(each_dim(call, 2, "padding", 3, value));
    return unpool(call, 3);
}

/* ---- constant padding: pairs (before, after) from the last dim on; a negative one cuts off */

rp_status rp__infer_constant_pad_nd(const rp__call *call, rp__meta *out) {
    const uint64_t failures = rp__error_count();
    const rp_tensor *t = call->in[0];
    const rp_attr *pad = &call->attrs[0];
    if (pad->n % 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Length of pad must be even but instead it equals %zu",
                            pad->n);
    if (pad->n / 2 > t->ndim || pad->n / 2 > RP__ACCESS_WINDOWS)
        return rp__op_error(
            call, RP_ERROR_INVALID_ARGUMENT,
            "Length of pad should be no more than twice the number of dimensions of the input, and 16. Pad length is "
            "%zu while the input has %u dimensions.",
            pad->n, t->ndim);
    bool adds = false;
    for (size_t k = 0; k < pad->n; k++) adds = adds || pad->v.ints[k] > 0;
    if (adds && !rp__scalar_fits(call->attrs[1].v.scalar, (rp_dtype)t->dtype))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "value cannot be converted to type %s without overflow",
                            rp_dtype_name((rp_dtype)t->dtype));
    rp__meta_like(out, t, (rp_dtype)t->dtype);
    for (unsigned k = 0; k < pad->n / 2; k++) {
        const unsigned d = t->ndim - 1u - k;
        int64_t both;
        if (__builtin_add_overflow(pad->v.ints[2 * k], pad->v.ints[2 * k + 1], &both))
            return rp__op_error(call, RP_ERROR_SHAPE, "a padded size does not fit into 64 bits");
        out->size[d] = apply(RP__DIM_ADD, out->size[d], both);
        if (rp__dim_is(RP__DIM_LT, out->size[d], 0))
            return rp__op_error(
                call, RP_ERROR_SHAPE,
                "The input size %lld, plus negative padding %lld and %lld, resulted in a negative output "
                "size, which is invalid. Check dimension %u of your input.",
                (long long)rp__dim_hint(t->size[d]), (long long)pad->v.ints[2 * k], (long long)pad->v.ints[2 * k + 1],
                d);
    }
    return rp__status_since(failures);
}

void rp__lower_constant_pad_nd(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0], *out = call->out[0];
    const rp_attr *pad = &call->attrs[0];
    rp_dim stride[RP_MAX_DIMS] = {0};
    rp__lw_window windows[RP__ACCESS_WINDOWS];
    unsigned n = 0;
    rp__lw_space(lw, out->size, out->ndim, 0);
    for (unsigned d = 0; d < t->ndim; d++) {
        const unsigned k = t->ndim - 1u - d;
        const int64_t before = k < pad->n / 2 ? pad->v.ints[2 * k] : 0;
        if (before == 0 && rp__dim_same_word(out->size[d], t->size[d])) {
            stride[d] = t->stride[d];
            continue;
        }
        windows[n] = (rp__lw_window){.size = t->size[d], .stride = t->stride[d], .pad = before, .divisor = 1};
        windows[n++].factor[d] = 1;
    }
    if (!rp__lw_structural_value(lw, n)) {
        rp__lw_out(lw, 0, rp__lw_in(lw, 0));
        return;
    }
    const uint16_t access = rp__lw_windows(lw, 0, stride, windows, n, RP__ELEMENTS);
    rp__val value = rp__lw_attr(lw, 1, rp__lw_compute(rp__lw_in_dtype(lw, 0)));
    rp__lw_out(lw, 0, rp__lw_3(lw, RP__WHERE, rp__lw_inside(lw, access), load(lw, access), value));
}
