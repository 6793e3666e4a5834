/* See product.h. */
#include "ops/product.h"
#include "ops/library_ops.h"

#include <string.h>

#include "device/device.h"
#include "ops/execute.h"
#include "tensor/tensor.h"

/* What the row says, dim by dim. */
static rp_status look(const rp__call *call, rp__product *out) {
    out->n = 0; /* operands are written by who counts them */
    out->added = 0;
    out->rows = out->covers = false;
    memset(out->in, 0, sizeof out->in);
    memset(&out->conv, 0, sizeof out->conv);
    return call->op->rule.product(call, out);
}

/* (B, T, K) x (K, N): the batch is more rows. */
static void fold(rp__product *p) {
    rp__operand *y = &p->o[0], *a = &p->o[1], *b = &p->o[2];
    const unsigned nd = y->ndim;
    const bool empty = nd < 3 || a->size[nd - 1] == 0;
    int64_t rows = 1, y_stride = 0, a_stride = 0;
    if (nd < 3) return;
    for (unsigned d = nd - 1; d-- > 0;) {
        if (y->size[d] == 1) continue;
        if (rows == 1) {
            y_stride = y->stride[d];
            a_stride = a->stride[d];
        } else if (!empty && (y->stride[d] != y_stride * rows || a->stride[d] != a_stride * rows)) {
            return;
        }
        rows *= y->size[d];
    }
    rp__operand *const all[3] = {y, a, b};
    for (unsigned k = 0; k < 3; k++) {
        rp__operand *o = all[k];
        for (unsigned d = 0; d < 2; d++) {
            o->size[d] = o->size[nd - 2 + d];
            o->stride[d] = o->stride[nd - 2 + d];
        }
        o->ndim = 2;
    }
    y->size[0] = a->size[0] = rows;
    y->stride[0] = y_stride;
    a->stride[0] = a_stride;
}

/* Which operands of a convolution are the window, and the picture that it moves over. */
static unsigned window_of(rp__library_op op) { return op == RP__LIB_CONV_WEIGHT ? 0 : 2; }
static unsigned picture_of(rp__library_op op) {
    return op == RP__LIB_CONV_FORWARD ? 1 : op == RP__LIB_CONV_INPUT ? 0 : 2;
}

static bool covers(const rp__product *p) {
    if (p->op == RP__LIB_MATMUL || p->n < 3 || p->conv.groups != 1) return false;
    const rp__operand *w = &p->o[window_of(p->op)], *x = &p->o[picture_of(p->op)];
    int64_t all = w->size[1], places = 1;
    for (unsigned d = 0; d < p->conv.spatial; d++) {
        const int64_t size = w->size[2 + d];
        if (rp__dim_is_symbol(size) || size != x->size[2 + d] || p->conv.padding[d] != 0 ||
            (size > 1 && p->conv.dilation[d] != 1) || !rp__mul_i64(all, size, &all))
            return false;
        places *= size;
    }
    if (rp__dim_is_symbol(w->size[1]) || places < 2 || all >= INT32_MAX) return false;
    const rp__device *d = rp__device_get(p->o[0].storage->device);
    return d && d->ops->library->turned;
}

/* Do channels and places lie by rows, without gaps? */
static bool lies_by_rows(const rp__operand *o) {
    int64_t run = 1;
    for (unsigned d = o->ndim; d-- > 1; run *= o->size[d])
        if (o->size[d] != 1 && o->stride[d] != run) return false;
    return true;
}

/* Channels and places are channels. */
static void cover(rp__product *p) {
    rp__operand *const both[2] = {&p->o[window_of(p->op)], &p->o[picture_of(p->op)]};
    if (!lies_by_rows(both[0]) || !lies_by_rows(both[1])) return;
    for (unsigned k = 0; k < 2; k++) {
        for (unsigned d = 2; d < both[k]->ndim; d++) {
            both[k]->size[1] *= both[k]->size[d];
            both[k]->size[d] = both[k]->stride[d] = 1;
        }
        both[k]->stride[1] = 1;
    }
}

rp_status rp__product_of(const rp__call *call, rp__product *out) {
    RP_TRY(look(call, out));
    if (out->rows) fold(out);
    out->covers = covers(out);
    if (out->covers) cover(out);
    return RP_OK;
}

static rp_tensor *tensor_over(const rp__operand *o) {
    const int64_t offset = ((char *)o->base - (char *)o->storage->data) / (int64_t)rp__dtype_bytes(o->dtype);
    return rp__tensor_over(o->dtype, o->size, o->stride, o->ndim, offset, rp__storage_retain(o->storage));
}

/* Memory for operand k in its place, by rows or with its channels innermost. */
static rp_tensor *turned_like(rp__device *d, const rp__operand *o, bool rows) {
    rp_tensor *to = rp__tensor_empty(d, o->dtype, o->size, o->ndim);
    if (!rp__tensor_is_error(to) && !rows) rp__channels_innermost(o, to->stride);
    return to;
}

/* Operands that the device reads otherwise are copied first, and a result that it writes otherwise behind it. */
static rp_status run_turned(const rp__call *call, rp__product *p, rp__library_call *library, rp__turned turned) {
    rp__device *d = rp__device_get(p->o[0].storage->device);
    const rp__scope_guard guard = rp__scope_guard_begin();
    rp_tensor *result = NULL, *made = NULL;
    rp_status status = d ? RP_OK : rp_error_status();
    for (unsigned k = 0; k < p->n && status == RP_OK; k++) {
        if (!((turned.channels | turned.rows) >> k & 1u)) continue;
        rp_tensor *from = tensor_over(&p->o[k]), *to = turned_like(d, &p->o[k], turned.rows >> k & 1u);
        if (rp__tensor_is_error(to) || rp__tensor_is_error(from)) {
            status = rp_error_status();
            break;
        }
        if (k == 0)
            result = from;
        else
            status = rp__run_copy(to, from);
        p->o[k] = rp__operand_of(to);
        if (k == 0) made = to;
    }
    if (status == RP_OK && p->covers) cover(p);
    if (status == RP_OK) status = rp__run_library_op(call, p->op, p->o, p->n, library);
    if (status == RP_OK && result) status = rp__run_copy(result, made);
    rp__scope_guard_end(guard, NULL, 0);
    return status;
}

/* What the op may do with factors of f32. */
static uint8_t precision_of(rp__library_op op) {
    return (uint8_t)(op == RP__LIB_MATMUL ? rp__float32_matmul_precision() : rp__float32_conv_precision());
}

/* How the device wants the operands of a convolution, of which those of `there` lie with their channels innermost elsewhere, too. */
static rp_status to_turn(const rp__product *p, uint8_t precision, rp__device *d, uint32_t there, rp__turned *out) {
    *out = (rp__turned){.there = there};
    if (p->op == RP__LIB_MATMUL || p->n < 3 || !d || !d->ops->library->turned) return RP_OK;
    if (p->covers) {
        const unsigned both[2] = {window_of(p->op), picture_of(p->op)};
        for (unsigned k = 0; k < 2; k++)
            if (!lies_by_rows(&p->o[both[k]])) out->rows |= 1u << both[k];
        if (out->rows) return RP_OK;
    }
    const rp__library_call library = {.conv = p->conv, .precision = precision};
    const rp_status status = d->ops->library->turned(d, p->op, p->o, p->n, &library, out);
    if (p->covers) out->channels = out->likes = 0; /* they would be copied back */
    return status;
}

rp_status rp__product_turned(const rp__call *call, rp__device *d, uint32_t there, rp__turned *out) {
    rp__product p;
    rp__turned turned;
    uint32_t sorted = 0;
    *out = (rp__turned){.there = there};
    RP_TRY(rp__product_of(call, &p));
    for (unsigned k = 1; k < p.n; k++) sorted |= (there >> p.in[k] & 1u) << k;
    RP_TRY(to_turn(&p, precision_of(p.op), d, sorted, &turned));
    for (unsigned k = 1; k < p.n; k++) {
        out->channels |= (turned.channels >> k & 1u) << p.in[k];
        out->rows |= (turned.rows >> k & 1u) << p.in[k];
        out->likes |= (turned.likes >> k & 1u) << p.in[k];
    }
    return RP_OK;
}

rp_status rp__product_run(const rp__call *call) {
    rp__product p;
    rp__turned turned;
    RP_TRY(rp__product_of(call, &p));
    if (rp__dim_same_word(rp__tensor_numel(call->out[0]), 0)) return RP_OK;
    if (p.n == 0) return rp__run_fill(call->out[0], rp_i64(0));
    rp__library_call library = {.conv = p.conv, .precision = precision_of(p.op)};
    RP_TRY(to_turn(&p, library.precision, rp__device_get(p.o[0].storage->device), 0, &turned));
    if (turned.channels | turned.rows) return run_turned(call, &p, &library, turned);
    return rp__run_library_op(call, p.op, p.o, p.n, &library);
}

static rp__contract_form form_of(rp__library_op op) {
    return op == RP__LIB_CONV_FORWARD  ? RP__CONTRACT_CONV
           : op == RP__LIB_CONV_INPUT  ? RP__CONTRACT_CONV_INPUT
           : op == RP__LIB_CONV_WEIGHT ? RP__CONTRACT_CONV_WEIGHT
                                       : RP__CONTRACT_PRODUCT;
}

/* A CONTRACT of a convolution knows what a dim is by the operands that vary along it. */
static bool varies(const rp__product *p) {
    if (p->op == RP__LIB_MATMUL) return true;
    for (unsigned k = 1; k < 3; k++) {
        for (unsigned d = 0; d < p->o[k].ndim; d++) {
            if (p->o[k].size[d] > 1 && p->o[k].stride[d] == 0) return false;
        }
    }
    return true;
}

rp_status rp__product_order(const rp__call *call, rp__device *d, rp__order *order) {
    rp__product p;
    *order = RP__ORDER_ELSEWHERE;
    RP_TRY(rp__product_of(call, &p));
    if (p.n == 0 || !varies(&p)) return RP_OK;
    /* The space of a result that is the window or the picture is not the one of its channels. */
    if (p.covers && (p.op != RP__LIB_CONV_FORWARD || !lies_by_rows(&p.o[1]) || !lies_by_rows(&p.o[2]))) return RP_OK;
    const rp__library_call library = {
        .op = call->op->name, .site = call->site, .conv = p.conv, .precision = precision_of(p.op)};
    *order = d->ops->library->order(d, p.op, p.o, p.n, &library);
    return RP_OK;
}

/* ---- lowering */

typedef struct space { /* dims of the result, then those that are added up over */
    rp_dim size[RP_MAX_DIMS], a[RP_MAX_DIMS], b[RP_MAX_DIMS], bias[RP_MAX_DIMS];
    rp_dim along[3][RP_MAX_DIMS]; /* convolutions: factors of windows */
    unsigned n;
    uint32_t inner;
} space;

/* One more dim, unless operand 0 of the op has it and the result has not; its number. */
static unsigned add(space *s, rp_dim size, rp_dim a, rp_dim b, bool inner) {
    s->size[s->n] = size;
    s->a[s->n] = a;
    s->b[s->n] = b;
    if (inner) s->inner |= 1u << s->n;
    return s->n++;
}

static void matmul_space(const rp__product *p, space *s) {
    const rp__operand *y = &p->o[0], *a = &p->o[1], *b = &p->o[2];
    const unsigned nd = y->ndim;
    for (unsigned d = 0; d < nd; d++) {
        if (p->added >> d & 1u) continue;
        const unsigned at = add(s, y->size[d], d == nd - 1 ? 0 : a->stride[d], d == nd - 2 ? 0 : b->stride[d], false);
        if (d == nd - 1 && p->n > 3) s->bias[at] = p->o[3].stride[0];
    }
    (void)add(s, a->size[nd - 1], a->stride[nd - 1], b->stride[nd - 2], true);
}

/* A dim of `groups` times `each` channels, as two where there are groups; strides of both operands from group to group and from
   channel to channel. */
static unsigned add_channels(rp__lower *lw, space *s, int64_t groups, int64_t each, rp_dim a_group, rp_dim b_group,
                             rp_dim a, rp_dim b) {
    if (groups > 1) rp__lw_join(lw, add(s, groups, a_group, b_group, false));
    return add(s, each, a, b, false);
}

static void conv_space(rp__lower *lw, const rp__product *p, space *s, rp__lw_window *windows) {
    const rp__conv_geometry *g = &p->conv;
    const rp__operand *result = &p->o[0];
    const bool image = !(p->added & 1u);
    if (p->op == RP__LIB_CONV_WEIGHT) {
        const rp__operand *y = &p->o[1], *x = &p->o[2];
        const int64_t rows = y->size[1] / g->groups, c = x->size[1] / g->groups;
        (void)add_channels(lw, s, g->groups, rows, rows * y->stride[1], c * x->stride[1], y->stride[1], 0);
        (void)add(s, c, 0, x->stride[1], false);
        for (unsigned i = 0; i < g->spatial; i++)
            s->along[i][add(s, result->size[2 + i], 0, 0, false)] = g->dilation[i];
        (void)add(s, y->size[0], y->stride[0], x->stride[0], true);
        for (unsigned i = 0; i < g->spatial; i++)
            s->along[i][add(s, y->size[2 + i], y->stride[2 + i], 0, true)] = g->stride[i];
    } else {
        const rp__operand *from = &p->o[1], *w = &p->o[2];
        const bool forward = p->op == RP__LIB_CONV_FORWARD;
        const int64_t outputs = w->size[0] / g->groups, inputs = w->size[1];
        const int64_t rows = forward ? outputs : inputs, k = forward ? inputs : outputs;
        if (image) (void)add(s, result->size[0], 0, from->stride[0], false);
        const unsigned at = add_channels(lw, s, g->groups, rows, outputs * w->stride[0], k * from->stride[1],
                                         w->stride[forward ? 0 : 1], 0);
        if (p->n > 3) {
            s->bias[at] = p->o[3].stride[0];
            if (g->groups > 1) s->bias[at - 1] = rows * p->o[3].stride[0];
        }
        for (unsigned i = 0; i < g->spatial; i++)
            s->along[i][add(s, result->size[2 + i], 0, 0, false)] = forward ? g->stride[i] : 1;
        (void)add(s, k, w->stride[forward ? 1 : 0], from->stride[1], true);
        for (unsigned i = 0; i < g->spatial; i++)
            s->along[i][add(s, w->size[2 + i], w->stride[2 + i], 0, true)] = forward ? g->dilation[i] : -g->dilation[i];
    }
    const rp__operand *windowed = &p->o[p->op == RP__LIB_CONV_WEIGHT ? 2 : 1];
    const bool input = p->op == RP__LIB_CONV_INPUT;
    for (unsigned i = 0; i < g->spatial; i++) {
        windows[i] = (rp__lw_window){.size = windowed->size[2 + i],
                                     .stride = windowed->stride[2 + i],
                                     .pad = input ? -g->padding[i] : g->padding[i],
                                     .divisor = input ? g->stride[i] : 1};
        memcpy(windows[i].factor, s->along[i], sizeof s->along[i]);
    }
}

/* Which dim of the space each dim of input k is, by what the row made of its strides. False: that cannot be told. */
static bool dims_of(const rp_tensor *t, const space *s, const rp_dim *stride, uint8_t *along) {
    for (unsigned j = 0; j < t->ndim; j++) {
        along[j] = RP__LW_NO_DIM;
        if (rp__dim_same_word(t->size[j], 1) || rp__dim_same_word(t->stride[j], 0)) continue;
        for (unsigned d = 0; d < s->n; d++) {
            if (!rp__dim_same_word(stride[d], t->stride[j]) || !rp__dim_same_word(s->size[d], t->size[j])) continue;
            if (along[j] != RP__LW_NO_DIM) return false;
            along[j] = (uint8_t)d;
        }
        if (along[j] == RP__LW_NO_DIM) return false;
        for (unsigned i = 0; i < j; i++)
            if (along[i] == along[j]) return false;
    }
    return true;
}

static rp__val factor(rp__lower *lw, const rp__product *p, unsigned operand, const space *s, const rp_dim *stride) {
    const unsigned k = p->in[operand];
    uint8_t along[RP_MAX_DIMS];
    const bool known = p->op == RP__LIB_MATMUL && dims_of(rp__lw_call(lw)->in[k], s, stride, along);
    return rp__lw_factor(lw, k, stride, known ? along : NULL);
}

rp_status rp__product_factor_cost(const rp__call *call, rp__device *d, rp__order order, unsigned input,
                                  unsigned *cost) {
    rp__product p;
    *cost = 0;
    RP_TRY(look(call, &p));
    if (p.n == 0 || p.op != RP__LIB_MATMUL || !d->ops->library->factor_cost) return RP_OK;
    const rp__library_call library = {
        .op = call->op->name, .site = call->site, .precision = (uint8_t)rp__float32_matmul_precision()};
    for (unsigned k = 1; k < 3; k++) {
        if (p.in[k] != input) continue;
        const unsigned most = d->ops->library->factor_cost(d, p.op, p.o, 3, &library, order, k - 1);
        if (*cost == 0 || most < *cost) *cost = most;
    }
    return RP_OK;
}

void rp__product_lower(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    rp__product p;
    rp__lw_window windows[3];
    space s;
    memset(&s, 0, sizeof s);
    rp__device *d = rp__device_get(call->out[0]->device);
    rp__order order;
    if (!d || rp__product_order(call, d, &order) != RP_OK || order == RP__ORDER_ELSEWHERE || look(call, &p) != RP_OK)
        return; /* asked before */
    if (covers(&p)) cover(&p);
    const rp__contract_form form = form_of(p.op);
    const bool weight = form == RP__CONTRACT_CONV_WEIGHT;
    if (form == RP__CONTRACT_PRODUCT)
        matmul_space(&p, &s);
    else
        conv_space(lw, &p, &s, windows);
    /* The first factor is that of the rows: a matrix, a weight, or what comes in beside the input. The second may have windows. */
    const unsigned rows = form == RP__CONTRACT_PRODUCT || weight ? 1 : 2, columns = 3 - rows;
    rp__lw_space(lw, s.size, s.n, s.inner);
    const rp__val a = factor(lw, &p, rows, &s, s.a);
    rp__val b;
    if (form == RP__CONTRACT_PRODUCT)
        b = factor(lw, &p, columns, &s, s.b);
    else
        b = rp__lw_load(lw, rp__lw_windows(lw, p.in[columns], s.b, windows, p.conv.spatial, RP__ELEMENTS), RP__NO_VAL,
                        RP__NO_VAL);
    rp__val v = rp__lw_contract(lw, a, b, order);
    if (p.n > 3) {
        const uint16_t bias = rp__lw_access(lw, false, p.in[3], s.bias, RP__ALONG_ROWS);
        v = rp__lw_2(lw, RP__ADD, v, rp__lw_load(lw, bias, RP__NO_VAL, RP__NO_VAL));
    }
    rp__lw_out_row(lw, 0, v);
}
