/* Layout: values around convolutions with their channels innermost, or by rows, where the device's kernels read them faster so.
   Requires  a functional graph whose sizes are values.
   Keeps     every bit of every result, and its strides but where they are free: what a copy feeds are values that nobody outside sees.
   A convolution gives the same bits for either layout (kernel/product.h), as every loop does, so this is a choice of speed, and the device's
   (rp__library.turned). It is made for families: values of a graph's own with pictures (batch, channels, places) that loops, convolutions, cats
   and parts of dims connect lie one way, for each edge between two ways costs scattered reads or a second store. A family goes by channels where a
   convolution would pay for a copy of one of them, or likes them so, or has such an operand; it ends at arguments, at results that have
   strides of their own, and at values that something else reads or makes (another view, a product). Members are made so, as nobody outside
   sees their strides; other operands that a convolution wants otherwise are copied: the loop that makes one takes the copy in. Copies of
   arguments are kernels of their own, one for all convolutions that read the argument. */
#include <string.h>

#include "compile/passes.h"
#include "compile/rewrite.h"
#include "core/alloc.h"
#include "ops/product.h"

typedef struct picture { /* a value of the source graph */
    rp__ir_value family; /* another value of it, or itself: of a family there is one such */
    rp__ir_value last;   /* what dst has with its channels innermost: its copy, or itself */
    rp__ir_value rows;   /* and by rows */
    uint32_t made;       /* the node of the body, from 1, at which the latest of these was made */
    bool alone;          /* belongs to no family */
    bool wanted; /* with its channels innermost, by a convolution; of a family's own value: by one of the family */
} picture;
typedef struct layout {
    const rp_ir *src;
    const bool *free_results; /* NULL: none */
    rp__rewrite w;
    picture *of;       /* per value */
    uint32_t *written; /* per storage: the node of the body, from 1, that wrote it last */
    uint32_t at;       /* the node that is visited */
} layout;

static bool is_convolution(const rp__ir_node *n) {
    return !n->dead && n->kind == RP__IR_OP && n->op->lowering == RP__PRODUCT && n->n_out == 1 &&
           n->n_in <= RP__FEW_OPERANDS;
}

/* Reads and writes through strides, whatever they are, and writes no operand. */
static bool is_loop(const rp__ir_node *n) {
    if (n->dead || n->kind != RP__IR_OP || *n->op->functional || n->op->flags & RP_OP_INPLACE) return false;
    const rp__lowering how = n->op->lowering;
    return how == RP__POINTWISE || how == RP__ROWS || how == RP__INDEXED;
}

/* Puts pictures together, or takes a part of one, along one dim, whatever their strides. */
static bool is_cat(const rp__ir_node *n) { return !n->dead && rp__ir_is_op(n, RP__OP(cat)); }
static bool is_part(const rp__ir_node *n) { return !n->dead && rp__ir_is_op(n, RP__OP(slice)); }

/* Inputs of a convolution that are to be copied, if those of `there` are copied anyhow; *windowed: the input with windows of which the result is
   a picture, too (RP__FEW_OPERANDS: none, as of a weight gradient), or NULL. */
static rp_status ask(const rp_ir *ir, const rp__ir_node *n, uint32_t there, rp__turned *out, uint32_t *windowed) {
    rp__ir_stand_in handles[RP__FEW_OPERANDS + 1];
    rp_tensor *in[RP__FEW_OPERANDS] = {0}, *made[1];
    rp__call call;
    rp__product p;
    *out = (rp__turned){0};
    if (windowed) *windowed = RP__FEW_OPERANDS;
    if (!is_convolution(n)) return RP_OK;
    for (uint32_t k = 0; k < n->n_in; k++)
        if (n->in[k] != RP__IR_NONE) in[k] = rp__ir_stand_in_for(ir, n->in[k], &handles[k]);
    made[0] = rp__ir_stand_in_for(ir, n->out[0], &handles[n->n_in]);
    rp__device *d = rp__device_get(made[0]->device);
    if (!d) return rp_error_status();
    rp__ir_call(n, in, made, &call);
    if (windowed) {
        RP_TRY(rp__product_of(&call, &p));
        if ((p.op == RP__LIB_CONV_FORWARD || p.op == RP__LIB_CONV_INPUT) && p.n > 1 && !p.covers) *windowed = p.in[1];
    }
    return rp__product_turned(&call, d, there, out);
}

/* ---------------------------------------------------------------- families */

static rp__ir_value family_of(layout *l, rp__ir_value v) {
    while (l->of[v].family != v) v = l->of[v].family = l->of[l->of[v].family].family;
    return v;
}

static bool goes_by_channels(layout *l, rp__ir_value v) {
    return l->of[v].wanted || (!l->of[v].alone && l->of[family_of(l, v)].wanted);
}

/* Has it more than a place? */
static bool is_picture(const rp__meta *m) {
    for (unsigned d = 2; d < m->ndim; d++)
        if (!rp__dim_same_word(m->size[d], 1)) return true;
    return false;
}

/* parts: one is a part of the other, or both of a third; else they have as many images and channels. */
static void join(layout *l, rp__ir_value a, rp__ir_value b, bool parts) {
    const rp__meta *one = &l->src->values[a].meta, *two = &l->src->values[b].meta;
    if (l->of[a].alone || l->of[b].alone || !is_picture(one) || !is_picture(two) || one->ndim != two->ndim ||
        (!parts && memcmp(one->size, two->size, 2 * sizeof one->size[0]) != 0))
        return;
    const rp__ir_value to = family_of(l, a), from = family_of(l, b);
    l->of[from].family = to;
    l->of[to].wanted |= l->of[from].wanted;
}

static void want(layout *l, rp__ir_value v) {
    l->of[v].wanted = true;
    if (!l->of[v].alone) l->of[family_of(l, v)].wanted = true;
}

/* Inputs of a node that lie, or will, with their channels innermost. */
static uint32_t lying(layout *l, const rp__ir_node *n) {
    uint32_t there = 0;
    for (uint32_t k = 0; k < n->n_in && k < RP__FEW_OPERANDS; k++)
        if (n->in[k] != RP__IR_NONE && goes_by_channels(l, n->in[k])) there |= 1u << k;
    return there;
}

/* Has an operand or result of a convolution all the dims that a picture of a family has? */
static bool is_batch(const rp_ir *ir, const rp__ir_node *n, rp__ir_value v) {
    return ir->values[v].meta.ndim == ir->values[n->in[1]].meta.ndim;
}

/* Who stands alone: what something else than loops and convolutions makes or reads, and what a convolution would not read by channels for
   nothing. */
static rp_status find_alone(layout *l) {
    const rp_ir *ir = l->src;
    for (size_t v = 0; v < ir->n_values; v++) l->of[v].alone = true;
    for (size_t k = 0; k < ir->body.n_nodes; k++) { /* who is read stands before who reads */
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        rp__turned turned = {0};
        uint32_t windowed = RP__FEW_OPERANDS;
        const bool loop = is_loop(n) || is_cat(n) || is_part(n);
        if (n->dead) continue;
        if (!loop) RP_TRY(ask(ir, n, UINT32_MAX, &turned, &windowed));
        const bool convolution = windowed < RP__FEW_OPERANDS;
        for (uint32_t i = 0; i < n->n_out; i++)
            l->of[n->out[i]].alone = !loop && !(convolution && is_batch(ir, n, n->out[i]));
        for (uint32_t i = 0; i < n->n_in && !loop; i++) {
            const bool takes = i < RP__FEW_OPERANDS && turned.channels >> i & 1u && is_batch(ir, n, n->in[i]);
            if (n->in[i] != RP__IR_NONE && !takes) l->of[n->in[i]].alone = true;
        }
    }
    for (uint32_t k = 0; k < ir->body.n_results; k++) {
        const bool is_free = l->free_results && l->free_results[k];
        if (ir->body.results[k] != RP__IR_NONE && !is_free) l->of[ir->body.results[k]].alone = true;
    }
    for (size_t k = ir->body.n_nodes;
         k-- > 0;) { /* a part lies as what it is a part of, which then stands alone, too */
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (is_part(n) && l->of[n->out[0]].alone) l->of[n->in[0]].alone = true;
    }
    for (size_t k = 0; k < ir->body.n_nodes; k++) { /* and so do its other parts */
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        if (is_part(n) && l->of[n->in[0]].alone) l->of[n->out[0]].alone = true;
    }
    return RP_OK;
}

/* What convolutions want, given what others have wanted, and their results as what they read; *more: something else than before. */
static rp_status find_wanted(layout *l, bool *more) {
    const rp_ir *ir = l->src;
    *more = false;
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        rp__turned turned;
        uint32_t windowed;
        RP_TRY(ask(ir, n, lying(l, n), &turned, &windowed));
        for (uint32_t i = 0; i < RP__FEW_OPERANDS; i++) {
            const bool likes = (turned.likes >> i & 1u) && !l->of[n->in[i]].alone;
            if (!(turned.channels >> i & 1u) && !likes) continue;
            if (!goes_by_channels(l, n->in[i])) want(l, n->in[i]), *more = true;
            if (i == windowed && !l->of[n->out[0]].alone && !goes_by_channels(l, n->out[0]))
                want(l, n->out[0]), *more = true;
        }
    }
    return RP_OK;
}

static rp_status find_families(layout *l) {
    const rp_ir *ir = l->src;
    bool more = true;
    RP_TRY(find_alone(l));
    for (size_t k = 0; k < ir->body.n_nodes; k++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[k]];
        rp__ir_value last = RP__IR_NONE;
        const bool parts = is_cat(n) || is_part(n);
        if (!is_loop(n) && !parts) continue;
        for (uint32_t i = 0; i < n->n_in + n->n_out; i++) {
            const rp__ir_value v = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
            if (v == RP__IR_NONE || l->of[v].alone || !is_picture(&ir->values[v].meta)) continue;
            if (last != RP__IR_NONE) join(l, last, v, parts);
            last = v;
        }
    }
    while (more) RP_TRY(find_wanted(l, &more)); /* each turn wants a value that it did not before */
    return RP_OK;
}

/* ---------------------------------------------------------------- copies */

/* Copies of what has been written since, as a weight by an optimizer's step, are copies of something else. */
static void drop_stale(layout *l, rp__ir_value v) {
    if (v != RP__IR_NONE && l->of[v].made < l->written[l->src->values[v].storage])
        l->of[v].last = l->of[v].rows = RP__IR_NONE;
}

/* Channels stand before the spatial dims, of which a window has as many as the weight's rank says. */
static rp_status emit_last(layout *l, rp__ir_value v, unsigned spatial, const char *site, rp__ir_value *out) {
    if (l->of[v].last == RP__IR_NONE) {
        rp__meta meta = l->src->values[v].meta;
        const unsigned channel = meta.ndim - spatial - 1u;
        unsigned k = 0;
        meta.order = (rp__dim_order)channel << 4 * k++;
        for (unsigned d = meta.ndim; d-- > 0;)
            if (d != channel) meta.order |= (rp__dim_order)d << 4 * k++;
        rp_attr format = {.kind = RP_ATTR_INT, .v.i = RP_PRESERVE_FORMAT}; /* other ranks have no name for it */
        if (meta.ndim == spatial + 2u && spatial > 1)
            format.v.i = spatial == 2 ? RP_CHANNELS_LAST : RP_CHANNELS_LAST_3D;
        RP_TRY(rp__ir_emit(l->w.dst, &l->w.dst->body, RP__OP(clone), &l->w.map[v], 1, &format, 1, &meta, 1, site,
                           &l->of[v].last));
        l->of[v].made = l->at;
    }
    *out = l->of[v].last;
    return RP_OK;
}

/* What a node has made lies with its channels innermost, without a copy; part: as what it is a part of does. */
static void make_last(layout *l, rp__ir_value v, bool part) {
    rp__ir_value_info *made = &l->w.dst->values[l->w.map[v]];
    rp_dim run = 1;
    for (unsigned k = 0; k < made->meta.ndim && !part; k++) { /* channels, places from the last one on, images */
        const unsigned d = k == 0 ? 1 : k + 1u < made->meta.ndim ? made->meta.ndim - k : 0;
        made->stride[d] = run;
        run *= made->meta.size[d];
    }
    l->of[v].last = l->w.map[v];
    l->of[v].made = l->at;
}

static rp_status emit_rows(layout *l, rp__ir_value v, const char *site, rp__ir_value *out) {
    if (l->of[v].rows == RP__IR_NONE) {
        rp__meta meta = l->src->values[v].meta;
        const rp_attr format = {.kind = RP_ATTR_INT, .v.i = RP_CONTIGUOUS_FORMAT};
        meta.order = RP__ROW_MAJOR;
        RP_TRY(rp__ir_emit(l->w.dst, &l->w.dst->body, RP__OP(clone), &l->w.map[v], 1, &format, 1, &meta, 1, site,
                           &l->of[v].rows));
        l->of[v].made = l->at;
    }
    *out = l->of[v].rows;
    return RP_OK;
}

/* Does a loop read the copy of its operand? Where its result has as many elements, which the next convolution mostly reads. */
static bool reads_last(const layout *l, const rp__ir_node *n, rp__ir_value v) {
    return v != RP__IR_NONE && l->of[v].last != RP__IR_NONE && is_loop(n) && n->op->lowering == RP__POINTWISE &&
           n->n_out == 1 && rp__meta_same_size(&l->src->values[v].meta, &l->src->values[n->out[0]].meta);
}

static rp_status visit(layout *l, uint32_t node) {
    const rp_ir *ir = l->src;
    const rp__ir_node *n = &ir->nodes[node];
    rp__turned copied;
    l->at++;
    for (uint32_t k = 0; k < n->n_in; k++) {
        if (n->in[k] != RP__IR_NONE && rp__ir_writes(n, k)) l->written[ir->values[n->in[k]].storage] = l->at;
        drop_stale(l, n->in[k]);
    }
    if (n->kind != RP__IR_OP) return rp__rewrite_copy(&l->w, &l->w.dst->body, node);
    rp__ir_value few[RP__FEW_OPERANDS], *in = few;
    if (n->n_in > RP__FEW_OPERANDS && !(in = rp__alloc(n->n_in * sizeof *in))) return RP__OOM("operands of a node");
    rp_status status = ask(ir, n, lying(l, n), &copied, NULL);
    for (uint32_t k = 0; k < n->n_in && status == RP_OK; k++) {
        const rp__ir_value v = n->in[k];
        in[k] = v == RP__IR_NONE ? RP__IR_NONE : l->w.map[v];
        if (k < RP__FEW_OPERANDS && copied.rows >> k & 1u)
            status = emit_rows(l, v, n->site, &in[k]);
        else if (k < RP__FEW_OPERANDS && copied.channels >> k & 1u)
            status = emit_last(l, v, ir->values[n->in[1]].meta.ndim - 2u, n->site, &in[k]);
        else if (reads_last(l, n, v))
            in[k] = l->of[v].last;
    }
    if (status == RP_OK) status = rp__rewrite_copy_with(&l->w, &l->w.dst->body, node, in);
    if (in != few) rp__free(in);
    for (uint32_t k = 0; k < n->n_out && status == RP_OK; k++)
        if (!l->of[n->out[k]].alone && goes_by_channels(l, n->out[k])) make_last(l, n->out[k], is_part(n));
    return status;
}

static rp_status rewrite(layout *l, rp_ir **out) {
    const rp_ir *ir = l->src;
    rp_status status = rp__rewrite_begin(&l->w, ir);
    for (size_t k = 0; k < ir->body.n_nodes && status == RP_OK; k++)
        if (!ir->nodes[ir->body.nodes[k]].dead) status = visit(l, ir->body.nodes[k]);
    if (status == RP_OK) status = rp__rewrite_results(&l->w, &ir->body, &l->w.dst->body);
    return rp__rewrite_end(&l->w, status, "layout", out);
}

rp_status rp__layout(rp_ir *ir, const bool *free_results, rp_ir **out) {
    bool any = false;
    *out = NULL;
    for (size_t k = 0; k < ir->body.n_nodes && !any; k++) {
        rp__turned copied;
        RP_TRY(ask(ir, &ir->nodes[ir->body.nodes[k]], 0, &copied, NULL));
        any = (copied.channels | copied.rows | copied.likes) != 0;
    }
    if (!any) {
        *out = rp__ir_retain(ir);
        return RP_OK;
    }
    layout l = {.src = ir,
                .free_results = free_results,
                .of = rp__alloc((ir->n_values + 1) * sizeof *l.of),
                .written = rp__calloc(ir->n_storages + 1u, sizeof *l.written)};
    if (!l.of || !l.written) {
        rp__free(l.of);
        rp__free(l.written);
        return RP__OOM("layouts of a graph");
    }
    for (size_t v = 0; v <= ir->n_values; v++)
        l.of[v] = (picture){.family = (rp__ir_value)v, .last = RP__IR_NONE, .rows = RP__IR_NONE};
    rp_status status = find_families(&l);
    if (status == RP_OK) status = rewrite(&l, out);
    rp__free(l.of);
    rp__free(l.written);
    return status;
}

/* What reads argument v goes by its strides. */
static void hold(const rp_ir *ir, rp__ir_value v, bool *is_free) {
    if (v != RP__IR_NONE && ir->values[v].node == RP__IR_NONE) is_free[ir->values[v].out_index] = false;
}

void rp__layout_free_args(const rp_ir *ir, bool *is_free) {
    for (uint32_t k = 0; k < ir->body.n_args; k++) is_free[k] = true;
    for (size_t i = 0; i < ir->body.n_nodes; i++) {
        const rp__ir_node *n = &ir->nodes[ir->body.nodes[i]];
        for (uint32_t j = 0; j < n->n_in && !n->dead && !is_loop(n) && !is_convolution(n); j++)
            hold(ir, n->in[j], is_free);
    }
    for (uint32_t i = 0; i < ir->body.n_results; i++) hold(ir, ir->body.results[i], is_free);
}
