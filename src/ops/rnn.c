/* Recurrent networks: the input's part of all steps is one product, then the steps are one kernel (recur, a library op) where the device has one that
   is better. Elsewhere they are made of products and pointwise ops: each step is a product of the state and what stands behind it. A trace has
   every such step, so their number is part of what was traced; so are the sizes of packed sequences, which are read on the host. */
#include "ops/rnn.h"
#include "kernel/library.h"

#include "core/alloc.h"
#include "device/device.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

typedef rp__recurrent_cell cell;
#define gates_of(kind) ((int64_t)rp__cell_gates(kind))

typedef struct weights {
    rp_tensor *w_ih, *w_hh, *b_ih, *b_hh; /* (gates H, C), (gates H, P), (gates H) or NULL */
    rp_tensor *w_hr;                      /* (P, H): the state is projected; NULL: it is not, P is H */
} weights;
typedef struct state {
    rp_tensor *h, *c; /* (N, P), (N, H); c: of lstm */
} state;

/* Columns of gate k. */
static rp_tensor *gate(rp_tensor *all, const weights *w, cell kind, int64_t k) {
    const rp_dim each = rp__dim_apply(RP__DIM_FLOORDIV, w->w_hh->size[0], gates_of(kind));
    return rp_slice(all, -1, rp__dim_apply(RP__DIM_MUL, each, k), rp__dim_apply(RP__DIM_MUL, each, k + 1));
}

/* One step; x: the input's part, with its bias. */
static state step(cell kind, const weights *w, rp_tensor *x, state s) {
    rp_tensor *y = rp_linear(s.h, w->w_hh, w->b_hh);
    switch (kind) {
    case RP__CELL_TANH: return (state){.h = rp_tanh(rp_add(x, y))};
    case RP__CELL_RELU: return (state){.h = rp_relu(rp_add(x, y))};
    case RP__CELL_GRU: {
        rp_tensor *r = rp_sigmoid(rp_add(gate(x, w, kind, 0), gate(y, w, kind, 0)));
        rp_tensor *z = rp_sigmoid(rp_add(gate(x, w, kind, 1), gate(y, w, kind, 1)));
        rp_tensor *n = rp_tanh(rp_add(gate(x, w, kind, 2), rp_mul(r, gate(y, w, kind, 2))));
        return (state){.h = rp_add(n, rp_mul(z, rp_sub(s.h, n)))};
    }
    default: break;
    }
    y = rp_add(x, y);
    rp_tensor *i = rp_sigmoid(gate(y, w, kind, 0)), *f = rp_sigmoid(gate(y, w, kind, 1));
    rp_tensor *g = rp_tanh(gate(y, w, kind, 2)), *o = rp_sigmoid(gate(y, w, kind, 3));
    state next = {.c = rp_add(rp_mul(f, s.c), rp_mul(i, g))};
    next.h = rp_mul(o, rp_tanh(next.c));
    if (w->w_hr) next.h = rp_linear(next.h, w->w_hr, NULL);
    return next;
}

/* ---- cells */

static rp_status check_cell(const rp__call *call, cell kind, const rp_tensor *x, state s, const weights *w) {
    if (x->ndim != 2)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected 2D input (batch x feature), but got %uD input", x->ndim);
    for (int k = 0; k < 2; k++) {
        const rp_tensor *h = k == 0 ? s.h : s.c;
        if (!h) continue;
        if (h->ndim != 2)
            return rp__op_error(call, RP_ERROR_SHAPE, "Expected 2D hidden state (batch x feature), but got %uD",
                                h->ndim);
        if (!rp__dim_is(RP__DIM_EQ, h->size[0], x->size[0]))
            return rp__op_error(call, RP_ERROR_SHAPE, "Input batch size %lld doesn't match hidden%d batch size %lld",
                                (long long)rp__dim_hint(x->size[0]), k, (long long)rp__dim_hint(h->size[0]));
    }
    const rp_tensor *hidden = s.c ? s.c : s.h;
    if (w->w_ih->ndim != 2 || w->w_hh->ndim != 2 || !rp__dim_is(RP__DIM_EQ, w->w_ih->size[1], x->size[1]))
        return rp__op_error(call, RP_ERROR_SHAPE, "input has inconsistent input_size: got %lld expected %lld",
                            (long long)rp__dim_hint(x->size[1]),
                            (long long)(w->w_ih->ndim == 2 ? rp__dim_hint(w->w_ih->size[1]) : 0));
    const rp_dim rows = rp__dim_apply(RP__DIM_MUL, hidden->size[1], gates_of(kind));
    if (!rp__dim_is(RP__DIM_EQ, w->w_hh->size[0], rows) || !rp__dim_is(RP__DIM_EQ, w->w_ih->size[0], rows) ||
        !rp__dim_is(RP__DIM_EQ, w->w_hh->size[1], s.h->size[1]))
        return rp__op_error(call, RP_ERROR_SHAPE,
                            "hidden has inconsistent hidden_size: got %lld, weights have %lld rows",
                            (long long)rp__dim_hint(hidden->size[1]), (long long)rp__dim_hint(w->w_hh->size[0]));
    return rp__call_need_float(call, (rp_dtype)x->dtype);
}

static rp_status run_cell(const rp__call *call, cell kind) {
    const uint32_t *at = call->list_begin;
    rp_tensor *const *in = call->in, *x = in[0];
    const weights w = {.w_ih = in[at[2]], .w_hh = in[at[3]], .b_ih = in[at[4]], .b_hh = in[at[5]]};
    const unsigned states = at[2] - at[1];
    if (states != (kind == RP__CELL_LSTM ? 2 : 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "lstm expects two hidden states, not %u", states);
    state s = {in[at[1]], kind == RP__CELL_LSTM ? in[at[1] + 1] : NULL};
    RP_TRY(check_cell(call, kind, x, s, &w));
    s = step(kind, &w, rp_linear(x, w.w_ih, w.b_ih), s);
    call->out[0] = s.h;
    if (kind == RP__CELL_LSTM) call->out[1] = s.c;
    return rp__tensor_is_error(s.h) ? rp_error_status() : RP_OK;
}

rp_status rp__expand_rnn_tanh_cell(const rp__call *call) { return run_cell(call, RP__CELL_TANH); }
rp_status rp__expand_rnn_relu_cell(const rp__call *call) { return run_cell(call, RP__CELL_RELU); }
rp_status rp__expand_gru_cell(const rp__call *call) { return run_cell(call, RP__CELL_GRU); }
rp_status rp__expand_lstm_cell(const rp__call *call) { return run_cell(call, RP__CELL_LSTM); }

/* ---- sequences */

rp_tensor *rp__joined(rp_tensor **list, int64_t n, int64_t dim) {
    enum { AT_ONCE = 256 }; /* RP__MAX_IN is above */
    while (n > 1) {
        int64_t m = 0;
        for (int64_t i = 0; i < n; i += AT_ONCE)
            list[m++] = rp_cat(list + i, (size_t)(n - i < AT_ONCE ? n - i : AT_ONCE), dim);
        n = m;
    }
    return list[0];
}

/* Steps of a sequence: of (n, N, C), or of packed rows, those of step t from offset[t] on. */
typedef struct steps {
    int64_t n;
    int64_t *batch, *offset; /* NULL: not packed; n is nobody's */
} steps;

static rp_tensor *rows_of(rp_tensor *t, int64_t from, int64_t to) { return t ? rp_slice(t, 0, from, to) : NULL; }
static state part_of(state s, int64_t from, int64_t to) {
    return (state){rows_of(s.h, from, to), rows_of(s.c, from, to)};
}

/* Has the device a kernel for the steps that is better than what they are made of? */
static bool recurs(cell kind, const weights *w, const rp_tensor *in, state s) {
    const rp_tensor *all[] = {w->w_hh, w->b_hh, s.h, s.c};
    rp__device *d = rp__device_get(in->device);
    if (!d || !d->ops->library->recurs || w->w_hr || in->ndim != 3) return false;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        if (all[k] && (all[k]->dtype != in->dtype || !rp__device_equal(all[k]->device, in->device))) return false;
    /* What does not fit each other has its error of the product. */
    if (!rp__dim_is(RP__DIM_EQ, w->w_hh->size[1], s.h->size[1]) ||
        !rp__dim_is(RP__DIM_EQ, in->size[2], w->w_hh->size[0]) ||
        (w->b_hh && !rp__dim_is(RP__DIM_EQ, w->b_hh->size[0], w->w_hh->size[0])))
        return false;
    const int64_t most = d->ops->library->recurs(d, kind, (rp_dtype)in->dtype, rp__dim_value(s.h->size[1]));
    return rp__dim_is(RP__DIM_LT, 0, s.h->size[0]) && !rp__dim_is(RP__DIM_LT, most, s.h->size[0]);
}

static rp_status by_kernel(cell kind, const weights *w, rp_tensor *in, state s, bool reverse, rp_tensor **out,
                           state *last) {
    const uint64_t failures = rp__error_count();
    rp_tensor *cells = NULL, *kept = NULL;
    *last = (state){.c = NULL};
    rp_tensor *states = rp_recur(in, w->w_hh, w->b_hh, s.h, s.c, kind, reverse, &last->h, &cells, &last->c, &kept);
    if (rp__tensor_is_error(states)) return rp_error_status();
    if (kind != RP__CELL_LSTM) last->c = NULL;
    *out = rp_narrow(states, 0, reverse ? 0 : 1, in->size[0]);
    return rp__status_since(failures);
}

/* One direction of one layer: all states, in the order of the sequence, and the last. */
static rp_status direction(cell kind, const weights *w, rp_tensor *x, const steps *along, state s, bool reverse,
                           rp_tensor **out, state *last) {
    const uint64_t failures = rp__error_count();
    rp_tensor *in = rp_linear(x, w->w_ih, w->b_ih);
    if (rp__tensor_is_error(in)) return rp_error_status();
    if (!along->batch && recurs(kind, w, in, s)) return by_kernel(kind, w, in, s, reverse, out, last);
    const int64_t n = along->batch ? along->n : rp__dim_value(x->size[0]);
    const state first = s;
    rp_tensor **all = rp__calloc((size_t)n * 3, sizeof(rp_tensor *)), **ended_h = all + n, **ended_c = all + 2 * n;
    int64_t rows = along->batch ? along->batch[reverse ? n - 1 : 0] : 0, ended = n; /* ended sequences stand behind */
    if (!all) return RP__OOM("the steps of a sequence");
    if (along->batch && reverse) s = part_of(first, 0, rows);
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = reverse ? n - 1 - i : i;
        if (!along->batch) {
            s = step(kind, w, rp_select(in, 0, t), s);
            all[t] = rp_unsqueeze(s.h, 0);
            continue;
        }
        const int64_t now = along->batch[t];
        if (now < rows) {
            const state done = part_of(s, now, rows);
            ended--;
            ended_h[ended] = done.h;
            ended_c[ended] = done.c;
            s = part_of(s, 0, now);
        } else if (now > rows) {
            const state more = part_of(first, rows, now);
            rp_tensor *const h[2] = {s.h, more.h}, *const c[2] = {s.c, more.c};
            s.h = rp_cat(h, 2, 0);
            if (s.c) s.c = rp_cat(c, 2, 0);
        }
        rows = now;
        s = step(kind, w, rows_of(in, along->offset[t], along->offset[t] + now), s);
        all[t] = s.h;
    }
    *out = rp__joined(all, n, 0);
    if (ended < n) {
        /* The shortest ended first and stands last. One place is free before them: a step ends none. */
        ended--;
        ended_h[ended] = s.h;
        ended_c[ended] = s.c;
        s.h = rp__joined(ended_h + ended, n - ended, 0);
        if (s.c) s.c = rp__joined(ended_c + ended, n - ended, 0);
    }
    *last = s;
    rp__free(all);
    return rp__status_since(failures);
}

typedef struct network {
    cell kind;
    rp_tensor *x;
    rp_tensor *const *hx, *const *params; /* state (and cell), (layers directions, N, .) */
    uint32_t n_params;
    int64_t layers, directions;
    bool biases, train, projected;
    double dropout;
} network;

/* Layers after each other, (L, N, C) or packed. */
static rp_status run_layers(const rp__call *call, const network *net, const steps *along) {
    const uint64_t failures = rp__error_count();
    const int64_t total = net->layers * net->directions;
    rp_tensor *x = net->x;
    rp_tensor **last_h = rp__calloc((size_t)total * 2, sizeof(rp_tensor *)), **last_c = last_h + total;
    rp_status status = last_h ? RP_OK : RP__OOM("the states of a network");
    rp_tensor *const *param = net->params;
    for (int64_t layer = 0; layer < net->layers && status == RP_OK; layer++) {
        rp_tensor *out[2] = {NULL, NULL};
        for (int64_t d = 0; d < net->directions && status == RP_OK; d++) {
            const int64_t at = layer * net->directions + d;
            weights w = {.w_ih = param[0], .w_hh = param[1]};
            param += 2;
            if (net->biases) {
                w.b_ih = param[0];
                w.b_hh = param[1];
                param += 2;
            }
            if (net->projected) w.w_hr = *param++;
            state s = {rp_select(net->hx[0], 0, at), net->kind == RP__CELL_LSTM ? rp_select(net->hx[1], 0, at) : NULL},
                  last = s;
            status = direction(net->kind, &w, x, along, s, d == 1, &out[d], &last);
            if (status != RP_OK) break;
            last_h[at] = rp_unsqueeze(last.h, 0);
            last_c[at] = last.c ? rp_unsqueeze(last.c, 0) : NULL;
        }
        if (status != RP_OK) break;
        x = net->directions == 2 ? rp_cat(out, 2, -1) : out[0];
        if (net->train && net->dropout > 0 && layer + 1 < net->layers) x = rp_dropout(x, net->dropout, true);
    }
    if (status == RP_OK) {
        call->out[0] = x;
        call->out[1] = rp__joined(last_h, total, 0);
        if (net->kind == RP__CELL_LSTM) call->out[2] = rp__joined(last_c, total, 0);
        status = rp__status_since(failures);
    }
    rp__free(last_h);
    return status;
}

/* The network that the call describes: `packed` ones have batch sizes behind the data. Attributes are the same but batch_first. */
static rp_status network_of(const rp__call *call, cell kind, bool packed, network *net) {
    const uint32_t *at = call->list_begin;
    const unsigned p = packed ? 2 : 1; /* the parameter hx */
    *net = (network){.kind = kind,
                     .x = call->in[0],
                     .hx = call->in + at[p],
                     .params = call->in + at[p + 1],
                     .n_params = at[p + 2] - at[p + 1],
                     .layers = rp__attr_int(call, 1),
                     .directions = rp__attr_bool(call, 4) ? 2 : 1,
                     .biases = rp__attr_bool(call, 0),
                     .train = rp__attr_bool(call, 3),
                     .dropout = rp__attr_float(call, 2)};
    const unsigned states = at[p + 1] - at[p], rank = packed ? 2 : 3;
    const rp_tensor *x = net->x;
    if (kind == RP__CELL_LSTM && states != 2)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "lstm expects two hidden states");
    if (x->ndim != rank) return rp__op_error(call, RP_ERROR_SHAPE, "Expected %uD input, but got %uD", rank, x->ndim);
    RP_TRY(rp__call_need_float(call, (rp_dtype)x->dtype));
    for (unsigned k = 0; k < states; k++) {
        if (net->hx[k]->ndim == 3) continue;
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected 3D hidden states, but got %uD", net->hx[k]->ndim);
    }
    net->projected = states == 2 && !rp__dim_is(RP__DIM_EQ, net->hx[0]->size[2], net->hx[1]->size[2]);
    const int64_t each = (net->biases ? 4 : 2) + net->projected, want = net->layers > RP__MAX_IN ? 0 : net->layers;
    if (want < 1 || want * net->directions * each != net->n_params)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "%lld layers in %lld directions need %lld weights each, but there are %u",
                            (long long)net->layers, (long long)net->directions, (long long)each, net->n_params);
    if (!(net->dropout >= 0 && net->dropout <= 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "dropout probability has to be between 0 and 1, but got %g", net->dropout);
    for (uint32_t k = 0; k < net->n_params; k++) {
        const bool vector = net->biases && k % each >= 2 && k % each < 4;
        if (net->params[k]->ndim != (vector ? 1 : 2))
            return rp__op_error(call, RP_ERROR_SHAPE, "weight %u has %u dims, not %d", k, net->params[k]->ndim,
                                vector ? 1 : 2);
        if (k % each > 1) continue;
        const rp_tensor *hidden = net->hx[states - 1];
        if (!rp__dim_is(RP__DIM_EQ, net->params[k]->size[0],
                        rp__dim_apply(RP__DIM_MUL, hidden->size[2], gates_of(kind))))
            return rp__op_error(call, RP_ERROR_SHAPE, "weight %u has %lld rows, but the hidden size is %lld", k,
                                (long long)rp__dim_hint(net->params[k]->size[0]),
                                (long long)rp__dim_hint(hidden->size[2]));
    }
    return RP_OK;
}

static rp_status check_states(const rp__call *call, const network *net, rp_dim batch) {
    for (unsigned k = 0; k < (net->kind == RP__CELL_LSTM ? 2 : 1); k++) {
        const rp_tensor *h = net->hx[k];
        char text[RP__SHAPE_TEXT];
        if (!rp__dim_is(RP__DIM_EQ, h->size[0], net->layers * net->directions) ||
            !rp__dim_is(RP__DIM_EQ, h->size[1], batch))
            return rp__op_error(call, RP_ERROR_SHAPE, "Expected hidden[%u] size (%lld, %lld, %lld), got %s", k,
                                (long long)(net->layers * net->directions), (long long)rp__dim_hint(batch),
                                (long long)rp__dim_hint(h->size[2]), rp__shape_text(h->size, 3, text));
    }
    return RP_OK;
}

static rp_status run_sequence(const rp__call *call, cell kind) {
    network net;
    RP_TRY(network_of(call, kind, false, &net));
    const bool batch_first = rp__attr_bool(call, 5);
    RP_TRY(check_states(call, &net, net.x->size[batch_first ? 0 : 1]));
    if (batch_first) net.x = rp_transpose(net.x, 0, 1);
    if (rp__tensor_is_error(net.x)) return rp_error_status();
    const steps along = {.batch = NULL};
    if (rp__dim_is(RP__DIM_LT, net.x->size[0], 1))
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected sequence length to be larger than 0 in RNN");
    RP_TRY(run_layers(call, &net, &along));
    if (batch_first) call->out[0] = rp_transpose(call->out[0], 0, 1);
    return RP_OK;
}

rp_status rp__expand_rnn_tanh(const rp__call *call) { return run_sequence(call, RP__CELL_TANH); }
rp_status rp__expand_rnn_relu(const rp__call *call) { return run_sequence(call, RP__CELL_RELU); }
rp_status rp__expand_gru(const rp__call *call) { return run_sequence(call, RP__CELL_GRU); }
rp_status rp__expand_lstm(const rp__call *call) { return run_sequence(call, RP__CELL_LSTM); }

/* ---- packed sequences */

/* The numbers of an int64 vector with at least one, *n of them, to be freed. */
static rp_status numbers_of(const rp__call *call, rp_tensor *t, const char *what, int64_t **out, int64_t *n) {
    if (t->dtype != RP_I64 || t->ndim != 1)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s must be an int64 tensor of one dim", what);
    *n = rp__dim_value(t->size[0]);
    if (*n < 1) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s is empty", what);
    *out = rp__calloc((size_t)*n * 2, sizeof **out); /* twice: room for offsets */
    if (!*out) return RP__OOM("the sizes of sequences");
    const rp_status status = rp_to_host(t, *out, (size_t)*n * sizeof **out);
    if (status == RP_OK) return RP_OK;
    rp__free(*out);
    *out = NULL;
    return status;
}

/* Batch sizes: positive, none above the one before; together `rows`. */
static rp_status steps_of(const rp__call *call, rp_tensor *sizes, rp_dim rows, steps *out) {
    *out = (steps){.n = 0};
    RP_TRY(numbers_of(call, sizes, "batch_sizes", &out->batch, &out->n));
    out->offset = out->batch + out->n;
    int64_t total = 0;
    bool good = true;
    for (int64_t t = 0; t < out->n && good; t++) {
        out->offset[t] = total;
        good = out->batch[t] > 0 && (t == 0 || out->batch[t] <= out->batch[t - 1]) &&
               !__builtin_add_overflow(total, out->batch[t], &total);
    }
    if (good && rp__dim_is(RP__DIM_EQ, rows, total)) return RP_OK;
    rp__free(out->batch);
    out->batch = NULL;
    return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                        "batch_sizes must be positive, not increase, and add up to the %lld rows of the data",
                        (long long)rp__dim_hint(rows));
}

static rp_status run_packed(const rp__call *call, cell kind) {
    network net;
    steps along;
    RP_TRY(network_of(call, kind, true, &net));
    RP_TRY(steps_of(call, call->in[1], net.x->size[0], &along));
    rp_status status = check_states(call, &net, along.batch[0]);
    if (status == RP_OK) status = run_layers(call, &net, &along);
    rp__free(along.batch);
    return status;
}

rp_status rp__expand_rnn_tanh_data(const rp__call *call) { return run_packed(call, RP__CELL_TANH); }
rp_status rp__expand_rnn_relu_data(const rp__call *call) { return run_packed(call, RP__CELL_RELU); }
rp_status rp__expand_gru_data(const rp__call *call) { return run_packed(call, RP__CELL_GRU); }
rp_status rp__expand_lstm_data(const rp__call *call) { return run_packed(call, RP__CELL_LSTM); }

/* int64 numbers on the CPU. */
static rp_tensor *vector_of(const int64_t *values, int64_t n) {
    const rp_device device = rp_default_device();
    if (rp_set_default_device(rp_cpu()) != RP_OK) return rp__tensor_error();
    rp_tensor *t = rp_from_data(values, &n, 1, RP_I64);
    return rp_set_default_device(device) == RP_OK ? t : rp__tensor_error();
}

/* Runs of steps with equally many sequences are one part each. */
static rp_status pack(const rp__call *call, rp_tensor *x, const int64_t *lengths, int64_t n) {
    const uint64_t failures = rp__error_count();
    const int64_t longest = lengths[0];
    int64_t *sizes = rp__calloc((size_t)longest, sizeof *sizes), n_parts = 0;
    rp_tensor **parts = rp__calloc((size_t)n, sizeof(rp_tensor *));
    rp_status status = sizes && parts ? RP_OK : RP__OOM("packed sequences");
    for (int64_t left = n, t = 0; status == RP_OK && t < longest; left--) {
        if (lengths[left - 1] == t) continue; /* as long as the one behind */
        const int64_t until = lengths[left - 1];
        rp_tensor *part = rp_slice(rp_slice(x, 0, t, until), 1, 0, left);
        parts[n_parts++] = rp_flatten(part, 0, 1);
        for (; t < until; t++) sizes[t] = left;
    }
    if (status == RP_OK) {
        call->out[0] = rp__joined(parts, n_parts, 0);
        call->out[1] = vector_of(sizes, longest);
        status = rp__status_since(failures);
    }
    rp__free(sizes);
    rp__free(parts);
    return status;
}

rp_status rp__expand_pack_padded_sequence(const rp__call *call) {
    rp_tensor *x = call->in[0];
    int64_t *lengths, n;
    if (x->ndim < 2) return rp__op_error(call, RP_ERROR_SHAPE, "Expected sequences (L, N, ..), but got %uD", x->ndim);
    if (rp__attr_bool(call, 0)) x = rp_transpose(x, 0, 1);
    RP_TRY(numbers_of(call, call->in[1], "lengths", &lengths, &n));
    bool sorted = true;
    for (int64_t i = 1; i < n; i++) sorted = sorted && lengths[i] <= lengths[i - 1];
    rp_status status = RP_OK;
    if (!rp__dim_is(RP__DIM_EQ, x->size[1], n))
        status = rp__op_error(call, RP_ERROR_SHAPE,
                              "Expected `len(lengths)` to be equal to batch_size, but got %lld (batch_size=%lld)",
                              (long long)n, (long long)rp__dim_hint(x->size[1]));
    else if (!sorted)
        status = rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "lengths must be sorted in decreasing order");
    else if (lengths[n - 1] < 1)
        status = rp__op_error(
            call, RP_ERROR_INVALID_ARGUMENT,
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0");
    else if (rp__dim_is(RP__DIM_LT, x->size[0], lengths[0]))
        status = rp__op_error(call, RP_ERROR_SHAPE, "a length is %lld, but the sequences have %lld steps",
                              (long long)lengths[0], (long long)rp__dim_hint(x->size[0]));
    else
        status = pack(call, x, lengths, n);
    rp__free(lengths);
    return status;
}

static rp_status unpack(const rp__call *call, const steps *along, int64_t total) {
    const uint64_t failures = rp__error_count();
    rp_tensor *x = call->in[0];
    const int64_t n = along->batch[0];
    int64_t *lengths = rp__calloc((size_t)n, sizeof *lengths), n_parts = 0;
    rp_tensor **parts = rp__calloc((size_t)along->n + 1, sizeof(rp_tensor *));
    rp_status status = lengths && parts ? RP_OK : RP__OOM("packed sequences");
    for (int64_t t = 0; status == RP_OK && t < along->n;) {
        const int64_t now = along->batch[t], from = t;
        while (t < along->n && along->batch[t] == now) t++;
        const int64_t size[2] = {t - from, now};
        int64_t pad[2 * RP_MAX_DIMS] = {0};
        rp_tensor *part =
            rp_unflatten(rows_of(x, along->offset[from], along->offset[from] + now * (t - from)), 0, size, 2);
        pad[2 * (x->ndim - 1) + 1] = n - now; /* pairs from the last dim on; the batch is dim 1 */
        parts[n_parts++] = rp_constant_pad_nd(part, pad, 2 * (size_t)(x->ndim + 1), call->attrs[1].v.scalar);
        for (int64_t i = 0; i < now; i++) lengths[i] = t;
    }
    if (status == RP_OK) {
        call->out[0] = rp__joined(parts, n_parts, 0);
        if (total > along->n) {
            int64_t behind[2 * RP_MAX_DIMS] = {0};
            behind[2 * x->ndim + 1] = total - along->n;
            call->out[0] = rp_constant_pad_nd_at(call->site, call->out[0], behind, 2 * (size_t)(x->ndim + 1),
                                                 call->attrs[1].v.scalar);
        }
        if (rp__attr_bool(call, 0)) call->out[0] = rp_transpose(call->out[0], 0, 1);
        call->out[1] = vector_of(lengths, n);
        status = rp__status_since(failures);
    }
    rp__free(lengths);
    rp__free(parts);
    return status;
}

rp_status rp__expand_pad_packed_sequence(const rp__call *call) {
    rp_tensor *x = call->in[0];
    int64_t total = rp__attr_int(call, 2);
    steps along;
    if (x->ndim < 1 || x->ndim >= RP_MAX_DIMS)
        return rp__op_error(call, RP_ERROR_SHAPE, "Expected packed rows, but got %uD", x->ndim);
    if (total > INT32_MAX)
        return rp__op_error(call, RP_ERROR_SHAPE, "total_length is at most %d, not %lld", INT32_MAX, (long long)total);
    RP_TRY(steps_of(call, call->in[1], x->size[0], &along));
    if (total < 1) total = along.n;
    rp_status status =
        total < along.n
            ? rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                           "Expected total_length to be at least the length of the longest sequence in input, but got "
                           "total_length=%lld and max sequence length being %lld",
                           (long long)total, (long long)along.n)
            : unpack(call, &along, total);
    rp__free(along.batch);
    return status;
}
