/* Recurrent networks and cells as layers. */
#include "ops/private.h"
#include <reprise_nn.h>

#include "core/alloc.h"
#include "core/options.h"
#include "nn/layer.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int64_t gates_of(rp_recurrent_kind kind) { return kind == RP_LSTM ? 4 : kind == RP_GRU ? 3 : 1; }

static rp_status check_kind(const char *what, rp_recurrent_kind kind) {
    if (kind == RP_RNN_TANH || kind == RP_RNN_RELU || kind == RP_GRU || kind == RP_LSTM) return RP_OK;
    return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: there is no kind %d", what, (int)kind);
}

/* A parameter, uniform in +-1/sqrt(hidden). */
static rp_status uniform_new(rp_tensor **place, const int64_t *size, size_t n, int64_t hidden) {
    const double bound = 1.0 / sqrt((double)hidden);
    *place = rp__parameter_new(size, n, RP_DTYPE_NONE);
    return *place ? rp_init_uniform(*place, -bound, bound) : rp_error_status();
}

/* ---------------------------------------------------------------- networks */

static rp_status recurrent_check(const rp_recurrent_layer *l) {
    static const char what[] = "recurrent layer";
    RP_TRY(check_kind(what, l->kind));
    RP_TRY(rp__layer_positive(what, "input_size", l->input_size));
    RP_TRY(rp__layer_positive(what, "hidden_size", l->hidden_size));
    RP_TRY(rp__layer_positive(what, "num_layers", l->num_layers));
    RP_TRY(rp__layer_probability(what, l->dropout));
    if (l->proj_size < 0 || (l->proj_size && (l->kind != RP_LSTM || l->proj_size >= l->hidden_size)))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "recurrent layer: proj_size is of LSTM alone, and smaller than the hidden size %lld, not %lld",
                        (long long)l->hidden_size, (long long)l->proj_size);
    if (l->hidden_size > INT64_MAX / 4)
        return rp__fail(RP_ERROR_SHAPE, "recurrent layer: a hidden size of %lld does not fit",
                        (long long)l->hidden_size);
    return RP_OK;
}

typedef char parameter_name[48];

static rp_status recurrent_fill(rp_recurrent_layer *l, parameter_name *names) {
    const int64_t rows = gates_of(l->kind) * l->hidden_size, state = l->proj_size ? l->proj_size : l->hidden_size;
    const int directions = l->bidirectional ? 2 : 1;
    const size_t each = (l->bias ? 4 : 2) + (l->proj_size != 0);
    RP_TRY(recurrent_check(l));
    if ((size_t)l->num_layers > RP_RECURRENT_MAX_PARAMETERS / (each * (size_t)directions))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "recurrent layer: %lld layers are more than %d parameters",
                        (long long)l->num_layers, RP_RECURRENT_MAX_PARAMETERS);
    for (int64_t layer = 0; layer < l->num_layers; layer++) {
        const int64_t in = layer ? state * directions : l->input_size;
        const struct {
            const char *name;
            int64_t size[2];
            size_t ndim;
        } parts[5] = {{"weight_ih", {rows, in}, 2},
                      {"weight_hh", {rows, state}, 2},
                      {"bias_ih", {rows, 0}, 1},
                      {"bias_hh", {rows, 0}, 1},
                      {"weight_hr", {state, l->hidden_size}, 2}};
        for (int d = 0; d < directions; d++) {
            for (int k = 0; k < 5; k++) {
                if ((parts[k].ndim == 1 && !l->bias) || (k == 4 && !l->proj_size)) continue;
                snprintf(names[l->n_parameters], sizeof *names, "%s_l%lld%s", parts[k].name, (long long)layer,
                         d ? "_reverse" : "");
                RP_TRY(uniform_new(&l->parameters[l->n_parameters++], parts[k].size, parts[k].ndim, l->hidden_size));
            }
        }
    }
    return RP_OK;
}

rp_status rp_recurrent_add_at(const char *site, rp_module *m, const char *name, rp_recurrent_layer *l,
                              rp_recurrent_kind kind, int64_t input_size, int64_t hidden_size,
                              const rp_recurrent_options *options) {
    RP__CALLED_FROM(site);
    rp_recurrent_options o;
    parameter_name names[RP_RECURRENT_MAX_PARAMETERS];
    rp__module_field fields[RP_RECURRENT_MAX_PARAMETERS];
    RP_TRY(rp__layer_need(l, "recurrent layer"));
    memset(l, 0, sizeof *l);
    RP_TRY(rp__options_read("recurrent layer", options, sizeof o, &o));
    l->kind = kind;
    l->input_size = input_size;
    l->hidden_size = hidden_size;
    l->num_layers = o.num_layers ? o.num_layers : 1;
    l->proj_size = o.proj_size;
    l->dropout = o.dropout;
    l->bias = !o.no_bias;
    l->batch_first = o.batch_first;
    l->bidirectional = o.bidirectional;
    const rp_status status = recurrent_fill(l, names);
    if (status != RP_OK) {
        for (size_t k = 0; k < l->n_parameters; k++) rp__parameter_release(&l->parameters[k]);
        return status;
    }
    for (size_t k = 0; k < l->n_parameters; k++) fields[k] = (rp__module_field){names[k], &l->parameters[k], false};
    return rp__module_adopt_layer(m, name, fields, l->n_parameters, &l->module);
}

/* Zeros beside x. */
static rp_tensor *zeros_beside(const rp_tensor *x, const rp_dim *size, size_t n) {
    return rp_zeros(size, n, RP_OPTIONS(rp_zeros_options, .dtype = (rp_dtype)x->dtype, .device = &x->device));
}

static rp_tensor *first_state(const rp_recurrent_layer *l, rp_tensor *given, const rp_tensor *x, rp_dim batch,
                              bool alone, bool cell) {
    if (given) return alone ? rp_unsqueeze(given, 1) : given;
    const rp_dim size[3] = {l->num_layers * (l->bidirectional ? 2 : 1), batch,
                            l->proj_size && !cell ? l->proj_size : l->hidden_size};
    return zeros_beside(x, size, 3);
}

/* One call of the op. packed: batch sizes; NULL: x is padded, (L, N, C) or batch_first. */
static rp_tensor *call_op(const rp_recurrent_layer *l, rp_tensor *x, rp_tensor *packed, rp_tensor *h, rp_tensor *c,
                          rp_tensor **hy, rp_tensor **cy) {
    const bool train = rp_module_training(l->module), both = l->bidirectional;
    rp_tensor *const hx[2] = {h, c}, *const *params = l->parameters;
    const size_t n = l->n_parameters;
#define ARGUMENTS params, n, l->bias, l->num_layers, l->dropout, train, both
    switch (l->kind) {
    case RP_LSTM:
        return packed ? rp_lstm_data(x, packed, hx, 2, ARGUMENTS, hy, cy)
                      : rp_lstm(x, hx, 2, ARGUMENTS, l->batch_first, hy, cy);
    case RP_GRU: return packed ? rp_gru_data(x, packed, h, ARGUMENTS, hy) : rp_gru(x, h, ARGUMENTS, l->batch_first, hy);
    case RP_RNN_RELU:
        return packed ? rp_rnn_relu_data(x, packed, h, ARGUMENTS, hy)
                      : rp_rnn_relu(x, h, ARGUMENTS, l->batch_first, hy);
    default:
        return packed ? rp_rnn_tanh_data(x, packed, h, ARGUMENTS, hy)
                      : rp_rnn_tanh(x, h, ARGUMENTS, l->batch_first, hy);
    }
#undef ARGUMENTS
}

static rp_tensor *forward(const rp_recurrent_layer *l, rp_tensor *x, rp_tensor *packed, rp_tensor *hx, rp_tensor *cx,
                          rp_tensor **hy, rp_tensor **cy) {
    if (rp__tensor_check(x, "recurrent layer: the input") != RP_OK) return rp__tensor_error();
    const bool alone = !packed && x->ndim == 2;
    const unsigned rank = packed || alone ? 2 : 3;
    rp_dim batch = 1;
    if (x->ndim != rank) {
        (void)rp__fail(RP_ERROR_SHAPE, "recurrent layer: the input has %u dims, not %s", x->ndim,
                       packed ? "2, as packed sequences have" : "3, or 2 without a batch");
        return rp__tensor_error();
    }
    if (packed && !hx) {
        int64_t most[1] = {0};
        rp_tensor *longest = rp_slice(packed, 0, 0, 1);
        if (rp_dtype_of(longest) == RP_I64 && rp_numel(longest) == 1) (void)rp_to_host(longest, most, sizeof most);
        batch = most[0];
    } else if (!packed && !alone) {
        batch = x->size[l->batch_first ? 0 : 1];
    }
    rp_tensor *h = first_state(l, hx, x, batch, alone, false);
    rp_tensor *c = l->kind == RP_LSTM ? first_state(l, cx, x, batch, alone, true) : NULL;
    const int64_t dim = l->batch_first ? 0 : 1;
    rp_tensor *y = call_op(l, alone ? rp_unsqueeze(x, dim) : x, packed, h, c, hy, cy);
    if (!alone) return y;
    *hy = rp_squeeze(*hy, 1);
    if (c) *cy = rp_squeeze(*cy, 1);
    return rp_squeeze(y, dim);
}

static rp_tensor *run(const char *site, const rp_recurrent_layer *l, rp_tensor *x, rp_tensor *packed, rp_tensor *hx,
                      rp_tensor *cx, rp_tensor **hy, rp_tensor **cy) {
    rp_tensor *kept[3] = {rp__tensor_error(), rp__tensor_error(), rp__tensor_error()};
    if (!l) {
        kept[0] = rp__no_layer(site, "recurrent layer");
    } else {
        rp__site_frame frame = rp__site_push(site, "recurrent");
        rp_scope scope = rp__scope_begin();
        rp_tensor *in[] = {x, hx, cx};
        const size_t n_out = l->kind == RP_LSTM ? 3 : 2;
        rp__hooks_before(l->module, in, n_out);
        if (l->kind == RP_LSTM && !in[1] != !in[2])
            (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "recurrent layer: LSTM takes hx and cx, or neither");
        else if (scope.id)
            kept[0] = forward(l, in[0], packed, in[1], in[2], &kept[1], &kept[2]);
        rp__hooks_after(l->module, in, n_out, kept, n_out);
        rp__scope_end(scope, kept, n_out);
        rp__site_pop(frame);
    }
    if (hy) *hy = kept[1];
    if (cy) *cy = l && l->kind != RP_LSTM ? NULL : kept[2];
    return kept[0];
}

rp_tensor *rp_recurrent_forward_at(const char *site, const rp_recurrent_layer *l, rp_tensor *x, rp_tensor *hx,
                                   rp_tensor *cx, rp_tensor **hy, rp_tensor **cy) {
    return run(site, l, x, NULL, hx, cx, hy, cy);
}

rp_tensor *rp_recurrent_forward_packed_at(const char *site, const rp_recurrent_layer *l, rp_tensor *data,
                                          rp_tensor *batch_sizes, rp_tensor *hx, rp_tensor *cx, rp_tensor **hy,
                                          rp_tensor **cy) {
    /* what is not given is an error of the op, not a padded sequence */
    return run(site, l, data, batch_sizes ? batch_sizes : rp__tensor_error(), hx, cx, hy, cy);
}

/* ---------------------------------------------------------------- sequences of any order of lengths */

/* indices NULL: sequences that were sorted before, as rp_pack_padded_sequence takes them. */
static rp_tensor *in_order(rp_tensor *state, rp_tensor *indices) {
    return state && indices ? rp_index_select(state, 1, indices) : state;
}

rp_status rp_packed_sequence_make_at(const char *site, rp_packed_sequence *p, rp_tensor *x, rp_tensor *lengths,
                                     bool batch_first) {
    RP__CALLED_FROM(site);
    if (!p) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_packed_sequence_make: nowhere to write to");
    const uint64_t failures = rp__error_count();
    rp_scope scope = rp__scope_begin();
    rp_tensor *order, *made[4];
    rp_tensor *sorted = rp_sort(rp_to_device(lengths, rp_cpu(), false), 0, true, NULL, &order);
    made[2] = rp_to_device(order, rp_device_of(x), false);
    made[3] = rp_argsort(made[2], 0);
    rp_tensor *rows = rp_index_select(x, batch_first ? 0 : 1, made[2]);
    made[0] = rp_pack_padded_sequence(rows, sorted, batch_first, &made[1]);
    const rp_status status = rp__status_since(failures);
    rp__scope_end(scope, made, 4);
    *p = (rp_packed_sequence){made[0], made[1], made[2], made[3]};
    return status;
}

static rp_status packed_check(const rp_packed_sequence *p, const char *call) {
    return p ? RP_OK : rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: the sequence is NULL", call);
}

rp_tensor *rp_packed_sequence_pad_at(const char *site, const rp_packed_sequence *p, bool batch_first,
                                     double padding_value, int64_t total_length, rp_tensor **lengths) {
    RP__CALLED_FROM(site);
    rp_tensor *made[2] = {rp__tensor_error(), rp__tensor_error()};
    if (packed_check(p, "rp_packed_sequence_pad") == RP_OK) {
        rp_scope scope = rp__scope_begin();
        rp_tensor *n,
            *y = rp_pad_packed_sequence(p->data, p->batch_sizes, batch_first, rp_f64(padding_value), total_length, &n);
        made[0] = y, made[1] = n;
        if (p->unsorted_indices) {
            made[0] = rp_index_select(y, batch_first ? 0 : 1, p->unsorted_indices);
            made[1] = rp_index_select(n, 0, rp_to_device(p->unsorted_indices, rp_cpu(), false));
        }
        rp__scope_end(scope, made, 2);
    }
    if (lengths) *lengths = made[1];
    return made[0];
}

rp_tensor *rp_recurrent_forward_sequence_at(const char *site, const rp_recurrent_layer *l, const rp_packed_sequence *p,
                                            rp_tensor *hx, rp_tensor *cx, rp_tensor **hy, rp_tensor **cy) {
    RP__CALLED_FROM(site);
    rp_tensor *made[3] = {rp__tensor_error(), rp__tensor_error(), rp__tensor_error()};
    if (packed_check(p, "rp_recurrent_forward_sequence") == RP_OK) {
        rp_scope scope = rp__scope_begin();
        hx = in_order(hx, p->sorted_indices);
        cx = in_order(cx, p->sorted_indices);
        made[0] =
            run(site, l, p->data, p->batch_sizes ? p->batch_sizes : rp__tensor_error(), hx, cx, &made[1], &made[2]);
        made[1] = in_order(made[1], p->unsorted_indices);
        made[2] = in_order(made[2], p->unsorted_indices);
        rp__scope_end(scope, made, made[2] ? 3 : 2);
    }
    if (hy) *hy = made[1];
    if (cy) *cy = made[2];
    return made[0];
}

rp_tensor *rp_pad_sequence_at(const char *site, rp_tensor *const *sequences, size_t n, bool batch_first,
                              double padding_value) {
    RP__CALLED_FROM(site);
    rp_tensor *y = rp__tensor_error();
    int64_t longest = 0;
    if (n == 0 || !sequences) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_pad_sequence: there are no sequences");
        return y;
    }
    for (size_t k = 0; k < n; k++) {
        if (rp__tensor_check(sequences[k], "rp_pad_sequence: a sequence") != RP_OK) return y;
        if (sequences[k]->ndim == 0) {
            (void)rp__fail(RP_ERROR_SHAPE, "rp_pad_sequence: sequence %zu has no dims", k);
            return y;
        }
        const int64_t length = rp_size(sequences[k], 0);
        if (length > longest) longest = length;
    }
    rp_tensor **padded = rp__calloc(n, sizeof *padded);
    if (!padded) {
        (void)RP__OOM("rp_pad_sequence");
        return y;
    }
    rp_scope scope = rp__scope_begin();
    for (size_t k = 0; k < n; k++) {
        int64_t pad[2 * RP_MAX_DIMS] = {0};
        const size_t dims = sequences[k]->ndim;
        pad[2 * dims - 1] = longest - rp_size(sequences[k], 0);
        padded[k] = rp_pad(sequences[k], pad, 2 * dims, "constant", rp_f64(padding_value));
    }
    y = rp_stack(padded, n, batch_first ? 0 : 1);
    rp__scope_end(scope, &y, 1);
    rp__free(padded);
    return y;
}

/* ---------------------------------------------------------------- cells */

static rp_status cell_fill(rp_recurrent_cell *l, int64_t in, bool bias) {
    const int64_t rows = gates_of(l->kind) * l->hidden_size;
    RP_TRY(uniform_new(&l->weight_ih, RP_DIMS(rows, in), l->hidden_size));
    RP_TRY(uniform_new(&l->weight_hh, RP_DIMS(rows, l->hidden_size), l->hidden_size));
    if (!bias) return RP_OK;
    RP_TRY(uniform_new(&l->bias_ih, RP_DIMS(rows), l->hidden_size));
    return uniform_new(&l->bias_hh, RP_DIMS(rows), l->hidden_size);
}

rp_status rp_recurrent_cell_add_at(const char *site, rp_module *m, const char *name, rp_recurrent_cell *l,
                                   rp_recurrent_kind kind, int64_t input_size, int64_t hidden_size, bool bias) {
    RP__CALLED_FROM(site);
    static const char what[] = "recurrent cell";
    RP_TRY(rp__layer_need(l, what));
    *l = (rp_recurrent_cell){.kind = kind, .hidden_size = hidden_size};
    RP_TRY(check_kind(what, kind));
    RP_TRY(rp__layer_positive(what, "input_size", input_size));
    RP_TRY(rp__layer_positive(what, "hidden_size", hidden_size));
    if (hidden_size > INT64_MAX / 4)
        return rp__fail(RP_ERROR_SHAPE, "recurrent cell: a hidden size of %lld does not fit", (long long)hidden_size);
    const rp_status status = cell_fill(l, input_size, bias);
    if (status == RP_OK)
        return RP__ADOPT_LAYER(m, name, l, {"weight_ih", &l->weight_ih, false}, {"weight_hh", &l->weight_hh, false},
                               {"bias_ih", &l->bias_ih, false}, {"bias_hh", &l->bias_hh, false});
    rp__parameter_release(&l->weight_ih);
    rp__parameter_release(&l->weight_hh);
    rp__parameter_release(&l->bias_ih);
    rp__parameter_release(&l->bias_hh);
    return status;
}

static rp_tensor *cell_forward(const rp_recurrent_cell *l, rp_tensor *x, rp_tensor *hx, rp_tensor *cx, rp_tensor **cy) {
    if (rp__tensor_check(x, "recurrent cell: the input") != RP_OK) return rp__tensor_error();
    const bool alone = x->ndim == 1;
    const rp_dim size[2] = {alone || x->ndim == 0 ? 1 : x->size[0], l->hidden_size};
    rp_tensor *s[2] = {hx, cx};
    for (int k = 0; k < 2; k++) {
        if (!s[k])
            s[k] = zeros_beside(x, size, 2);
        else if (alone)
            s[k] = rp_unsqueeze(s[k], 0);
    }
    if (alone) x = rp_unsqueeze(x, 0);
    rp_tensor *y;
#define WEIGHTS l->weight_ih, l->weight_hh, l->bias_ih, l->bias_hh
    switch (l->kind) {
    case RP_LSTM: y = rp_lstm_cell(x, s, 2, WEIGHTS, cy); break;
    case RP_GRU: y = rp_gru_cell(x, s[0], WEIGHTS); break;
    case RP_RNN_RELU: y = rp_rnn_relu_cell(x, s[0], WEIGHTS); break;
    default: y = rp_rnn_tanh_cell(x, s[0], WEIGHTS);
    }
#undef WEIGHTS
    if (!alone) return y;
    if (l->kind == RP_LSTM) *cy = rp_squeeze(*cy, 0);
    return rp_squeeze(y, 0);
}

rp_tensor *rp_recurrent_cell_forward_at(const char *site, const rp_recurrent_cell *l, rp_tensor *x, rp_tensor *hx,
                                        rp_tensor *cx, rp_tensor **cy) {
    rp_tensor *kept[2] = {rp__tensor_error(), rp__tensor_error()};
    if (!l) {
        kept[0] = rp__no_layer(site, "recurrent cell");
    } else {
        rp__site_frame frame = rp__site_push(site, "recurrent_cell");
        rp_scope scope = rp__scope_begin();
        rp_tensor *in[] = {x, hx, cx};
        const size_t n_out = l->kind == RP_LSTM ? 2 : 1;
        rp__hooks_before(l->module, in, 1 + n_out);
        if (scope.id) kept[0] = cell_forward(l, in[0], in[1], in[2], &kept[1]);
        rp__hooks_after(l->module, in, 1 + n_out, kept, n_out);
        rp__scope_end(scope, kept, n_out);
        rp__site_pop(frame);
    }
    if (cy) *cy = l && l->kind != RP_LSTM ? NULL : kept[1];
    return kept[0];
}
