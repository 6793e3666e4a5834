/* Pooling and padding: reads through windows of memory that have bounds (kernel/loop.h). A pooled plane is a rows kernel whose
   rows are the windows; the gradient of a pool is one as well, whose rows are the outputs that an element of the input had a
   part in. Kernel sizes, strides, paddings and dilations are arguments of the kernel. (N, C, H, W) or (C, H, W). */
#include <math.h>
#include <string.h>

#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

typedef struct pool {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool ceil;
} pool;

/* One value for both dims, or two. */
static rp_status pair(const rp__call *call, unsigned attr, const char *name, int64_t out[2]) {
    const rp_attr *a = &call->attrs[attr];
    if (a->n != 1 && a->n != 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s must either be a single int, or a tuple of two ints",
                            name);
    out[0] = a->v.ints[0];
    out[1] = a->v.ints[a->n - 1];
    for (unsigned d = 0; d < 2; d++) {
        if (out[d] < 0 || out[d] > INT32_MAX)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s must lie between 0 and %d", name, INT32_MAX);
    }
    return RP_OK;
}

/* Attributes from `first` on: kernel_size, stride (none: the kernel's), padding, dilation where there is one, ceil_mode. */
static rp_status pool_of(const rp__call *call, unsigned first, bool dilates, pool *p) {
    RP_TRY(pair(call, first, "kernel_size", p->kernel));
    memcpy(p->stride, p->kernel, sizeof p->stride);
    if (call->attrs[first + 1].n) RP_TRY(pair(call, first + 1, "stride", p->stride));
    RP_TRY(pair(call, first + 2, "padding", p->padding));
    p->dilation[0] = p->dilation[1] = 1;
    if (dilates) RP_TRY(pair(call, first + 3, "dilation", p->dilation));
    p->ceil = rp__attr_bool(call, first + 3 + dilates);
    for (unsigned d = 0; d < 2; d++) {
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

/* Meta of the pool of a (.., H, W) of this size. */
static rp_status pooled_meta(const rp__call *call, const pool *p, const rp_dim *in, size_t n, rp__meta *out) {
    char text[RP__SHAPE_TEXT];
    const rp_dtype dtype = (rp_dtype)call->in[0]->dtype;
    RP_TRY(rp__call_need_float(call, dtype));
    bool good = n == 3 || n == 4;
    for (size_t d = n == 4; good && d < n; d++) good = !rp__dim_is(RP__DIM_EQ, in[d], 0);
    if (!good)
        return rp__op_error(
            call, RP_ERROR_SHAPE,
            "Expected 3D or 4D (batch mode) tensor with optional 0 dim batch size for input, but got: %s",
            rp__shape_text(in, n, text));
    rp_device device = out->device;
    memset(out, 0, sizeof *out);
    out->device = device;
    out->dtype = dtype;
    out->ndim = (uint8_t)n;
    memcpy(out->size, in, (n - 2) * sizeof *in);
    for (unsigned d = 0; d < 2; d++) {
        out->size[n - 2 + d] = pooled(in[n - 2 + d], p, d);
        if (rp__dim_is(RP__DIM_LT, out->size[n - 2 + d], 1))
            return rp__op_error(call, RP_ERROR_SHAPE, "Given input size: %s. Output size is too small",
                                rp__shape_text(in, n, text));
    }
    return RP_OK;
}

/* Meta of a gradient with respect to an input of size attribute 0, whose pool is as large as in[0]. */
static rp_status input_meta(const rp__call *call, const pool *p, rp__meta *out) {
    const rp_attr *size = &call->attrs[0];
    const rp_tensor *grad = call->in[0];
    rp__meta meta;
    memset(&meta, 0, sizeof meta);
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
    memcpy(size, t->size, n * sizeof *size);
    size[n] = p->kernel[0];
    size[n + 1] = p->kernel[1];
    rp__lw_space(lw, size, n + 2, 3u << n);
    return n;
}

/* Strides along the planes of t alone. */
static void plane_strides(const rp_tensor *t, rp_dim stride[RP_MAX_DIMS]) {
    memset(stride, 0, RP_MAX_DIMS * sizeof *stride);
    for (unsigned d = 0; d + 2 < t->ndim; d++) stride[d] = t->stride[d];
}

/* Row (0) or column (1) that element k of output o's window is in: o * stride + k * dilation - padding. */
static rp__lw_window forward_window(const pool *p, unsigned n, unsigned d, rp_dim size, rp_dim stride) {
    rp__lw_window w = {.size = size, .stride = stride, .pad = p->padding[d], .divisor = 1};
    w.factor[n - 2 + d] = p->stride[d];
    w.factor[n + d] = p->dilation[d];
    return w;
}
/* The other way: the output whose window has place i of the input as its element k. */
static rp__lw_window backward_window(const pool *p, unsigned n, unsigned d, rp_dim size, rp_dim stride) {
    rp__lw_window w = {.size = size, .stride = stride, .pad = -p->padding[d], .divisor = p->stride[d]};
    w.factor[n - 2 + d] = 1;
    w.factor[n + d] = -p->dilation[d];
    return w;
}

static uint16_t forward_access(rp__lower *lw, unsigned k, const pool *p, unsigned n) {
    const rp_tensor *t = rp__lw_call(lw)->in[k];
    rp_dim stride[RP_MAX_DIMS];
    plane_strides(t, stride);
    const rp__lw_window w[2] = {forward_window(p, n, 0, t->size[n - 2], t->stride[n - 2]),
                                forward_window(p, n, 1, t->size[n - 1], t->stride[n - 1])};
    return rp__lw_windows(lw, (int)k, stride, w, 2, RP__ELEMENTS);
}
static uint16_t backward_access(rp__lower *lw, unsigned k, const pool *p, unsigned n) {
    const rp_tensor *t = rp__lw_call(lw)->in[k];
    rp_dim stride[RP_MAX_DIMS];
    plane_strides(t, stride);
    const rp__lw_window w[2] = {backward_window(p, n, 0, t->size[n - 2], t->stride[n - 2]),
                                backward_window(p, n, 1, t->size[n - 1], t->stride[n - 1])};
    return rp__lw_windows(lw, (int)k, stride, w, 2, RP__ELEMENTS);
}
static rp__val load(rp__lower *lw, uint16_t access) { return rp__lw_load(lw, access, RP__NO_VAL, RP__NO_VAL); }
static rp__val two(rp__lower *lw, rp__prim op, rp__val a, rp__val b) { return rp__lw_2(lw, op, a, b); }

/* ---- largest */

/* Attributes from `first` on are those of max_pool2d. */
rp_status rp__infer_max_pool2d_with_indices(const rp__call *call, rp__meta *out) {
    pool p;
    RP_TRY(pool_of(call, 0, true, &p));
    RP_TRY(pooled_meta(call, &p, call->in[0]->size, call->in[0]->ndim, &out[0]));
    RP_TRY(pooled_meta(call, &p, call->in[0]->size, call->in[0]->ndim, &out[1]));
    out[1].dtype = RP_I64;
    return RP_OK;
}

/* The index is the row-major place in the plane: of the first largest element, or of the last NaN. */
void rp__lower_max_pool2d_with_indices(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_tensor *t = call->in[0];
    pool p;
    if (pool_of(call, 0, true, &p) != RP_OK) return;
    const unsigned n = pool_space(lw, call->out[0], &p);
    const uint16_t access = forward_access(lw, 0, &p, n);
    const rp_dim still[RP_MAX_DIMS] = {0};
    const rp__lw_window plane[2] = {forward_window(&p, n, 0, t->size[n - 2], t->size[n - 1]),
                                    forward_window(&p, n, 1, t->size[n - 1], 1)};
    rp__val number = rp__lw_place(lw, rp__lw_windows(lw, -1, still, plane, 2, RP__ELEMENTS));
    rp__val inside = rp__lw_inside(lw, access);
    rp__val x = rp__lw_3(lw, RP__WHERE, inside, load(lw, access),
                         rp__lw_const(lw, rp__lw_compute(rp__lw_in_dtype(lw, 0)), -INFINITY));
    rp__val largest = rp__lw_reduce(lw, RP__REDUCE_MAX, x);
    /* One reduction for both: NaN counts as -1 - place, so that the last is the least, below every place. */
    rp__val less = rp__lw_const_i(lw, RP_I64, -1), far = rp__lw_const_i(lw, RP_I64, INT64_MAX);
    rp__val is = two(lw, RP__AND, inside, two(lw, RP__EQ, x, largest));
    rp__val place = rp__lw_3(lw, RP__WHERE, is, number, far);
    place = rp__lw_3(lw, RP__WHERE, rp__lw_1(lw, RP__ISNAN, x), two(lw, RP__SUB, less, number), place);
    place = rp__lw_reduce(lw, RP__REDUCE_MIN, place);
    rp__lw_out_row(lw, 0, largest);
    rp__lw_out_row(lw, 1, rp__lw_3(lw, RP__WHERE, two(lw, RP__LE, place, less), two(lw, RP__SUB, less, place), place));
}

rp_status rp__expand_max_pool2d(const rp__call *call) {
    const rp_attr *a = call->attrs;
    call->out[0] = rp_max_pool2d_with_indices_at(call->site, call->in[0], a[0].v.ints, a[0].n, a[1].v.ints, a[1].n,
                                                 a[2].v.ints, a[2].n, a[3].v.ints, a[3].n, a[4].v.b, NULL);
    return rp__tensor_is_error(call->out[0]) ? rp_error_status() : RP_OK;
}

/* (grad, indices; input_size, then the attributes of the pool). */
rp_status rp__infer_max_pool2d_input(const rp__call *call, rp__meta *out) {
    pool p;
    RP_TRY(pool_of(call, 1, true, &p));
    if (call->in[1]->dtype != RP_I64 || !rp__same_size(call->in[0], call->in[1]))
        return rp__op_error(call, RP_ERROR_SHAPE, "expected int64 indices of the gradient's size");
    return input_meta(call, &p, out);
}

void rp__lower_max_pool2d_input(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    pool p;
    if (pool_of(call, 1, true, &p) != RP_OK) return;
    const unsigned n = pool_space(lw, call->out[0], &p);
    const uint16_t grad = backward_access(lw, 0, &p, n), indices = backward_access(lw, 1, &p, n);
    rp__val here =
        two(lw, RP__ADD, two(lw, RP__MUL, rp__lw_dim_index(lw, n - 2), rp__lw_size(lw, call->out[0]->size[n - 1])),
            rp__lw_dim_index(lw, n - 1));
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
    for (unsigned d = 0; d < 2; d++) {
        all = all && (padding_counts || p->padding[d] == 0) &&
              (out[d] - 1) * p->stride[d] + p->kernel[d] <= in[d] + 2 * p->padding[d];
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

static rp_status check_divisor(const rp__call *call, unsigned attr) {
    return rp__attr_int(call, attr) == 0 ? rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "divisor must be not zero")
                                         : RP_OK;
}

rp_status rp__infer_avg_pool2d(const rp__call *call, rp__meta *out) {
    pool p;
    RP_TRY(pool_of(call, 0, false, &p));
    RP_TRY(check_divisor(call, 5));
    return pooled_meta(call, &p, call->in[0]->size, call->in[0]->ndim, out);
}

void rp__lower_avg_pool2d(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const rp_tensor *t = call->in[0], *out = call->out[0];
    pool p;
    if (pool_of(call, 0, false, &p) != RP_OK) return;
    const unsigned n = pool_space(lw, out, &p);
    const divisor by = divisor_of(call, 4, &p, t->size + n - 2, out->size + n - 2);
    rp__val total = rp__lw_reduce(lw, RP__REDUCE_SUM, load(lw, forward_access(lw, 0, &p, n))), count;
    switch ((divisor)rp__lw_structural_value(lw, by)) {
    case DIVIDE_BY_NUMBER: count = rp__lw_attr(lw, 5, compute); break;
    case DIVIDE_BY_ALL: count = rp__lw_inner_extent(lw, compute); break;
    default:
        count = two(lw, RP__MUL, counted(lw, &p, 0, t->size[n - 2], rp__lw_dim_index(lw, n - 2), by),
                    counted(lw, &p, 1, t->size[n - 1], rp__lw_dim_index(lw, n - 1), by));
        count = rp__lw_cast(lw, count, compute);
    }
    rp__lw_out_row(lw, 0, two(lw, RP__DIV, total, count));
}

/* (grad; input_size, then the attributes of the pool). */
rp_status rp__infer_avg_pool2d_input(const rp__call *call, rp__meta *out) {
    pool p;
    RP_TRY(pool_of(call, 1, false, &p));
    RP_TRY(check_divisor(call, 6));
    return input_meta(call, &p, out);
}

/* The number of output row (0) or column (1). */
static rp__val output_place(rp__lower *lw, const pool *p, unsigned n, unsigned d, rp_dim size) {
    const rp_dim still[RP_MAX_DIMS] = {0};
    const rp__lw_window w = backward_window(p, n, d, size, 1);
    return rp__lw_place(lw, rp__lw_windows(lw, -1, still, &w, 1, RP__ELEMENTS));
}

void rp__lower_avg_pool2d_input(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_dtype compute = rp__lw_compute(rp__lw_in_dtype(lw, 0));
    const rp_tensor *grad = call->in[0], *out = call->out[0];
    pool p;
    if (pool_of(call, 1, false, &p) != RP_OK) return;
    const unsigned n = pool_space(lw, out, &p);
    const divisor by = divisor_of(call, 5, &p, out->size + n - 2, grad->size + n - 2);
    rp__val x = load(lw, backward_access(lw, 0, &p, n)), total;
    switch ((divisor)rp__lw_structural_value(lw, by)) {
    case DIVIDE_BY_NUMBER:
        total = two(lw, RP__DIV, rp__lw_reduce(lw, RP__REDUCE_SUM, x), rp__lw_attr(lw, 6, compute));
        break;
    case DIVIDE_BY_ALL:
        total = two(lw, RP__DIV, rp__lw_reduce(lw, RP__REDUCE_SUM, x), rp__lw_inner_extent(lw, compute));
        break;
    default: {
        rp__val row = output_place(lw, &p, n, 0, grad->size[n - 2]),
                column = output_place(lw, &p, n, 1, grad->size[n - 1]);
        rp__val count = two(lw, RP__MUL, counted(lw, &p, 0, out->size[n - 2], row, by),
                            counted(lw, &p, 1, out->size[n - 1], column, by));
        total = rp__lw_reduce(lw, RP__REDUCE_SUM, two(lw, RP__DIV, x, rp__lw_cast(lw, count, compute)));
    }
    }
    rp__lw_out_row(lw, 0, total);
}

/* ---- constant padding: pairs (before, after) from the last dim on; a negative one cuts off */

rp_status rp__infer_constant_pad_nd(const rp__call *call, rp__meta *out) {
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
    return rp_failed() ? rp_error_status() : RP_OK;
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
