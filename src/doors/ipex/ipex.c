/* "ipex": Intel's extension of PyTorch was oneDNN on a CPU, and has ended. Fused kernels, but products and convolutions of some size by
   frozen weights, and what follows them, are nets of oneDNN (kernel/onednn/onednn.h): bias, activation, the residual and scales of
   channels are part of the primitive's call, weights are packed once, and what passes between two primitives lies as they like it.
   Where oneDNN's module is not here, it is `fused` and no more. */
#include <stdio.h>
#include <string.h>

#include "compile/rewrite.h"
#include "core/alloc.h"
#include "doors/door.h"
#include "doors/engines.h"
#include "doors/library.h"
#include "kernel/cpu/lib_onednn.h"

static bool open_door(char version[64], char where[512], char why[512]) {
    const rp__onednn *t = rp__onednn_module();
    version[0] = where[0] = why[0] = 0;
    if (t) (void)snprintf(version, 64, "oneDNN %d.%d.%d", t->version[0], t->version[1], t->version[2]);
    if (t) (void)snprintf(where, 512, "libreprise-onednn.so");
    return true;
}

/* ---- what it takes */

static const char *const followers[] = {"relu", "gelu", "tanh", "sigmoid", "add", "mul"};

static bool is_op(const rp__ir_node *n, const char *name) {
    return n && n->kind == RP__IR_OP && !n->dead && strcmp(n->op->name, name) == 0;
}
static bool is_conv(const rp__ir_node *n) { return is_op(n, "conv1d") || is_op(n, "conv2d") || is_op(n, "conv3d"); }

/* Memory that a net can name: float32, some of it, its root without gaps. */
static bool is_named(const rp_ir *ir, rp__ir_value v) {
    const rp__ir_value_info *info = &ir->values[v], *root = &ir->values[rp__ir_root(ir, v)];
    const rp__ir_node *from = rp__ir_producer(ir, rp__ir_root(ir, v));
    if (info->meta.dtype != RP_F32 || info->meta.ndim > 5 || (from && from->kind == RP__IR_CONST)) return false;
    for (unsigned d = 0; d < info->meta.ndim; d++)
        if (info->meta.size[d] < 1 || info->stride[d] < 0) return false;
    return rp__ir_value_dense(root);
}

static bool is_captured(const rp_ir *ir, rp__ir_value v) {
    const rp__ir_node *from = rp__ir_producer(ir, rp__ir_root(ir, v));
    return from && from->kind == RP__IR_CAPTURED;
}

/* A product or convolution that is worth a primitive. */
static bool is_anchor(const rp_ir *ir, const rp__ir_node *n) {
    const bool conv = is_conv(n);
    if (!conv && !is_op(n, "linear")) return false;
    const rp__ir_value_info *x = &ir->values[n->in[0]], *w = &ir->values[n->in[1]], *y = &ir->values[n->out[0]];
    if (!is_named(ir, n->in[0]) || !is_named(ir, n->in[1]) || !is_named(ir, n->out[0]) || !is_captured(ir, n->in[1]))
        return false;
    if (n->in[2] != RP__IR_NONE && (!is_named(ir, n->in[2]) || ir->values[n->in[2]].meta.ndim != 1)) return false;
    double work = (double)rp__numel(y->meta.size, y->meta.ndim);
    for (unsigned d = 1; d < w->meta.ndim; d++) work *= (double)w->meta.size[d];
    if (conv) return x->meta.ndim == w->meta.ndim && work >= RP__ONEDNN_CONV_WORK;
    return w->meta.ndim == 2 && x->meta.ndim >= 2 && rp__ir_value_contiguous(x) && rp__ir_value_contiguous(y) &&
           work >= RP__ONEDNN_MATMUL_WORK;
}

/* The only node that reads a value; NULL: there are others, or none, or it is a result. */
static const rp__ir_node *only_reader(const rp_ir *ir, rp__ir_value v) {
    const rp__ir_node *reader = NULL;
    for (uint32_t k = 0; k < ir->body.n_results; k++)
        if (ir->body.results[k] == v) return NULL;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_in && !n->dead; i++) {
            if (n->in[i] != v) continue;
            if (reader) return NULL;
            reader = n;
        }
    }
    return reader;
}

static bool same_sizes(const rp_ir *ir, rp__ir_value a, rp__ir_value b) {
    return rp__meta_same_size(&ir->values[a].meta, &ir->values[b].meta);
}

/* May it be the second operand of what follows y: of its sizes, or one number a channel (of a product: a column)? */
static bool is_second(const rp_ir *ir, rp__ir_value v, rp__ir_value y, bool conv, bool added) {
    const rp__meta *m = &ir->values[v].meta, *of = &ir->values[y].meta;
    if (!is_named(ir, v)) return false;
    if (same_sizes(ir, v, y)) return added && (conv || rp__ir_value_contiguous(&ir->values[v]));
    const unsigned lead = of->ndim - m->ndim, channel = conv ? 1 : of->ndim - 1u;
    if (m->ndim > of->ndim || channel < lead) return false;
    for (unsigned d = 0; d < m->ndim; d++)
        if (m->size[d] != 1 && lead + d != channel) return false;
    return m->size[channel - lead] == of->size[channel];
}

/* Of a node that follows a product or convolution: the operand by which it does; RP__IR_NONE: it follows none. *anchor: that. */
static rp__ir_value chain_of(const rp_ir *ir, const rp__ir_node *n, unsigned depth, const rp__ir_node **anchor) {
    bool follows = false;
    for (size_t k = 0; k < sizeof followers / sizeof *followers; k++) follows = follows || is_op(n, followers[k]);
    if (!follows || depth == RP__ONEDNN_CHAIN) return RP__IR_NONE;
    for (uint32_t k = 0; k < n->n_in; k++) {
        const rp__ir_value v = n->in[k], other = n->n_in > 1 ? n->in[1 - k] : RP__IR_NONE;
        const rp__ir_node *from = rp__ir_producer(ir, v);
        if (!from || from->out[0] != v || only_reader(ir, v) != n || !same_sizes(ir, v, n->out[0])) continue;
        if (is_anchor(ir, from))
            *anchor = from;
        else if (chain_of(ir, from, depth + 1, anchor) == RP__IR_NONE)
            continue;
        if (other != RP__IR_NONE && !is_second(ir, other, v, is_conv(*anchor), is_op(n, "add"))) continue;
        if (is_op(n, "add") && !(rp__scalar_f64(n->attrs[0].v.scalar) == 1)) continue;
        const rp__ir_value_info *y = &ir->values[n->out[0]];
        if (is_named(ir, n->out[0]) && (is_conv(*anchor) || rp__ir_value_contiguous(y))) return v;
    }
    return RP__IR_NONE;
}

static bool takes(const rp__engine_options *options, const rp_ir *ir, const rp__ir_node *n, char why[256]) {
    const rp__ir_node *anchor;
    (void)options;
    why[0] = 0;
    if (!rp__onednn_module()) return false;
    if (rp__ir_is_view(n)) return true;
    return is_anchor(ir, n) || chain_of(ir, n, 0, &anchor) != RP__IR_NONE;
}

/* ---- nets */

typedef struct net {
    const rp__door_part *part;
    void *made;
    void **address;
    unsigned forks;
} net;

typedef struct maker {
    const rp__door_part *part;
    const rp_ir *ir;
    rp__onednn_value *values;
    int n_values;
    rp__onednn_call *calls; /* in the order in which they run; those that still grow lie behind them */
    int n_calls;
    int *of;    /* per value of ir: of the net; -1: not there yet */
    int *grows; /* per value of ir: the call whose result it is so far; -1: none */
    rp__onednn_call *open;
    int n_open;
    bool failed;
} maker;

static int new_value(maker *m, const rp__onednn_value *v) {
    m->values[m->n_values] = *v;
    if (v->root < 0) m->values[m->n_values].root = m->n_values;
    return m->n_values++;
}

static void lay_out(rp__onednn_value *v, const rp__ir_value_info *info) {
    v->ndim = info->meta.ndim;
    for (int d = 0; d < v->ndim; d++) v->size[d] = info->meta.size[d], v->stride[d] = info->stride[d];
}

/* Rows of the last dim, one behind the other. */
static void lay_rows(rp__onednn_value *v, const rp__ir_value_info *info) {
    const rp__meta *m = &info->meta;
    v->ndim = 2;
    v->size[1] = v->stride[0] = m->ndim ? m->size[m->ndim - 1] : 1;
    v->size[0] = rp__numel(m->size, m->ndim) / v->size[1];
    v->stride[1] = 1;
}

/* An operand as a value of the net: rows says how a product sees it. */
static int value_of(maker *m, rp__ir_value v, bool rows) {
    const rp__ir_value root = rp__ir_root(m->ir, v);
    if (m->of[root] < 0) {
        m->failed = true;
        return 0;
    }
    const rp__onednn_value *r = &m->values[m->of[root]];
    rp__onednn_value is = {.root = m->of[root], .address = -1};
    if (root == v && (!rows || r->ndim == 2)) return m->of[root];
    if (r->address < 0 && !r->plain) { /* of another shape than its maker gave it */
        m->failed = true;
        return 0;
    }
    if (rows)
        lay_rows(&is, &m->ir->values[v]);
    else
        lay_out(&is, &m->ir->values[v]);
    is.offset = m->ir->values[v].offset - m->ir->values[root].offset;
    return new_value(m, &is);
}

/* The second operand of what follows: with as many dims as the result. */
static int second_of(maker *m, rp__ir_value v, rp__ir_value y, bool rows) {
    const rp__ir_value_info *info = &m->ir->values[v];
    const bool full = same_sizes(m->ir, v, y);
    if (full) return value_of(m, v, rows);
    const rp__ir_value root = rp__ir_root(m->ir, v);
    rp__onednn_value is = {.root = m->of[root], .address = -1};
    const unsigned of = m->ir->values[y].meta.ndim, lead = of - info->meta.ndim, channel = rows ? of - 1u : 1;
    if (is.root < 0 || (m->values[is.root].address < 0 && !m->values[is.root].plain)) {
        m->failed = true;
        return 0;
    }
    const int64_t n = info->meta.size[channel - lead];
    is.ndim = rows ? 2 : (int32_t)of;
    for (int d = 0; d < is.ndim; d++) is.size[d] = 1, is.stride[d] = d == 0 || rows ? n : 1;
    is.size[1] = n;
    is.stride[1] = 1;
    is.offset = info->offset - m->ir->values[root].offset;
    if (n > 1 && info->stride[channel - lead] != 1) m->failed = true;
    return new_value(m, &is);
}

static int post_of(const rp__ir_node *n) {
    if (is_op(n, "relu")) return RP__ONEDNN_RELU;
    if (is_op(n, "tanh")) return RP__ONEDNN_TANH;
    if (is_op(n, "sigmoid")) return RP__ONEDNN_SIGMOID;
    if (is_op(n, "add")) return RP__ONEDNN_ADD;
    if (is_op(n, "mul")) return RP__ONEDNN_MUL;
    return strcmp(n->attrs[0].v.string, "tanh") == 0 ? RP__ONEDNN_GELU_TANH : RP__ONEDNN_GELU;
}

static bool in_part(const rp__door_part *p, const rp__ir_node *n) {
    for (size_t k = 0; k < p->n_nodes; k++)
        if (&p->ir->nodes[p->nodes[k]] == n) return true;
    return false;
}

static bool is_viewed(const rp__door_part *p, rp__ir_value v) {
    for (size_t k = 0; k < p->n_nodes; k++) {
        const rp__ir_node *n = &p->ir->nodes[p->nodes[k]];
        if (rp__ir_is_view(n) && n->in[0] == v) return true;
    }
    return false;
}

static void begin_call(maker *m, const rp__ir_node *n) {
    const bool conv = is_conv(n);
    rp__onednn_call *c = &m->open[m->n_open];
    *c = (rp__onednn_call){.problem = {.kind = conv ? RP__ONEDNN_CONV_FORWARD : RP__ONEDNN_MATMUL, .groups = 1}};
    c->in[0] = value_of(m, n->in[0], !conv);
    c->in[1] = value_of(m, n->in[1], false);
    c->in[2] = n->in[2] == RP__IR_NONE ? -1 : value_of(m, n->in[2], false);
    m->grows[n->out[0]] = m->n_open++;
    if (!conv) return;
    rp__onednn_problem *q = &c->problem;
    const rp__meta *x = &m->ir->values[n->in[0]].meta, *w = &m->ir->values[n->in[1]].meta,
                   *y = &m->ir->values[n->out[0]].meta;
    q->spatial = (int32_t)w->ndim - 2;
    q->groups = n->attrs[3].v.i;
    for (int d = 0; d < q->spatial; d++) {
        const rp_attr *a = n->attrs;
        q->conv_stride[d] = a[0].v.ints[a[0].n == 1 ? 0 : d];
        q->padding[d] = a[1].v.ints[a[1].n == 1 ? 0 : d];
        q->dilation[d] = a[2].v.ints[a[2].n == 1 ? 0 : d];
        q->padding_end[d] = (y->size[2 + d] - 1) * q->conv_stride[d] + q->dilation[d] * (w->size[2 + d] - 1) + 1 -
                            x->size[2 + d] - q->padding[d];
    }
}

static void follow(maker *m, const rp__ir_node *n, rp__ir_value by) {
    const int which = m->grows[by];
    if (which < 0) { /* what it follows is another part's */
        m->failed = true;
        return;
    }
    rp__onednn_call *c = &m->open[which];
    const bool rows = c->problem.kind == RP__ONEDNN_MATMUL;
    c->post[c->n_posts].kind = post_of(n);
    if (n->n_in > 1) c->post[c->n_posts].value = second_of(m, n->in[n->in[0] == by], n->out[0], rows);
    c->n_posts++;
    m->grows[n->out[0]] = which;
}

/* Nothing more follows: the call is the next one, and v its result. */
static void end_call(maker *m, rp__ir_value v) {
    rp__onednn_call *c = &m->calls[m->n_calls++];
    *c = m->open[m->grows[v]];
    rp__onednn_value out = {.root = -1, .address = -1, .plain = is_viewed(m->part, v)};
    if (c->problem.kind == RP__ONEDNN_MATMUL)
        lay_rows(&out, &m->ir->values[v]);
    else
        lay_out(&out, &m->ir->values[v]);
    for (uint32_t k = 0; k < m->part->n_out; k++)
        if (m->part->out[k].value == v) out.address = (int32_t)(m->part->n_in + k);
    c->out = m->of[v] = new_value(m, &out);
}

static void write_calls(maker *m) {
    const rp__door_part *p = m->part;
    for (uint32_t k = 0; k < p->n_in; k++) {
        const rp__door_value *v = &p->in[k];
        rp__onednn_value is = {.root = -1, .address = (int32_t)k, .plain = 1};
        if (v->weight) is.fixed = rp__tensor_data(v->tensor);
        lay_out(&is, &m->ir->values[v->value]);
        m->of[v->value] = new_value(m, &is);
    }
    for (size_t k = 0; k < p->n_nodes && !m->failed; k++) {
        const rp__ir_node *n = &m->ir->nodes[p->nodes[k]], *anchor;
        if (n->kind == RP__IR_CAPTURED || n->kind == RP__IR_CONST || rp__ir_is_view(n)) continue;
        if (is_anchor(m->ir, n))
            begin_call(m, n);
        else
            follow(m, n, chain_of(m->ir, n, 0, &anchor));
        const rp__ir_node *next = only_reader(m->ir, n->out[0]);
        if (m->failed || (next && in_part(p, next) && chain_of(m->ir, next, 0, &anchor) == n->out[0])) continue;
        end_call(m, n->out[0]);
    }
}

static void destroy(void *made) {
    net *n = made;
    if (n->made) rp__onednn_module()->net_free(n->made);
    rp__free(n->address);
    rp__free(n);
}

static rp_status build(const rp__door_part *p, const rp__engine_options *options, void **made) {
    maker m = {.part = p, .ir = p->ir};
    net *n = rp__calloc(1, sizeof *n);
    const size_t most = 4 * p->n_nodes + p->n_in + 1; /* values: three operands a node and its result */
    (void)options;
    m.values = rp__calloc(most, sizeof *m.values);
    m.calls = rp__calloc(p->n_nodes + 1, sizeof *m.calls);
    m.open = rp__calloc(p->n_nodes + 1, sizeof *m.open);
    m.of = rp__alloc((p->ir->n_values + 1) * sizeof *m.of);
    m.grows = rp__alloc((p->ir->n_values + 1) * sizeof *m.grows);
    if (n) n->address = rp__calloc((size_t)p->n_in + p->n_out + 1, sizeof *n->address);
    rp_status status = RP_OK;
    if (!n || !n->address || !m.values || !m.calls || !m.open || !m.of || !m.grows) {
        status = RP__OOM("a net of oneDNN");
    } else {
        n->part = p;
        n->forks = rp__door_forks();
        memset(m.of, 0xff, (p->ir->n_values + 1) * sizeof *m.of);
        memset(m.grows, 0xff, (p->ir->n_values + 1) * sizeof *m.grows);
        write_calls(&m);
        /* a child of fork has none of the threads that OpenMP may have started before */
        const int threads = n->forks == 0 ? rp_num_threads() : 1;
        if (!m.failed) n->made = rp__onednn_module()->net_new(m.values, m.n_values, m.calls, m.n_calls, threads);
        if (!n->made)
            status = rp__fail(RP_ERROR_COMPILE, "oneDNN has no primitives for a part of %zu nodes: %s", p->n_nodes,
                              m.failed ? "what follows a product is cut off from it" : "it refuses them");
    }
    rp__free(m.values);
    rp__free(m.calls);
    rp__free(m.open);
    rp__free(m.of);
    rp__free(m.grows);
    if (status == RP_OK) {
        *made = n;
        return RP_OK;
    }
    if (n) destroy(n);
    return status;
}

static rp_status run(void *made, rp_tensor *const *in, rp_tensor **out) {
    const net *n = made;
    const rp__door_part *p = n->part;
    if (n->forks != rp__door_forks())
        return rp__fail(RP_ERROR_STATE,
                        "a net of oneDNN was made before the process forked, and its threads stayed behind");
    for (uint32_t k = 0; k < p->n_in; k++) n->address[k] = rp__tensor_data(in[k] ? in[k] : p->in[k].tensor);
    for (uint32_t k = 0; k < p->n_out; k++) {
        out[k] = rp__door_result(&p->out[k], p->ir);
        if (rp__tensor_is_error(out[k])) return rp_error_status();
        n->address[p->n_in + k] = rp__tensor_data(out[k]);
    }
    const int status = rp__onednn_module()->net_run(n->made, n->address);
    return status ? rp__fail(RP_ERROR_STATE, "oneDNN failed with status %d", status) : RP_OK;
}

static const char *const keys[] = {NULL};
RP__ENGINE_OF_DOOR(ipex, .title = "oneDNN", .device = RP_DEVICE_CPU, .inference = true, .shares = true)
