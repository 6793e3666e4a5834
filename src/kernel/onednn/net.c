/* Nets (onednn.h): products and convolutions with what follows them as post-ops, one primitive a call. A value may lie in several layouts:
   the caller's, and those that primitives ask for; a step between two primitives copies from one to another, and what never changes is
   copied once. */
#include <stdlib.h>
#include <string.h>

#include "kernel/onednn/parts.h"

typedef struct place { /* a value in a layout */
    int value;
    rp__dnnl_desc desc;
    dnnl_memory_t memory;
    int address; /* of the caller's memory, which is given at each run; -1: it stays */
    int64_t offset;
} place;

typedef struct step {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[4 + RP__ONEDNN_CHAIN];
    int n_args;
} step;

typedef struct net {
    const rp__onednn_value *values; /* while it is made */
    int n_values;
    int *home; /* per value: its place as its maker, or the caller, laid it out; -1: not made yet */
    place *places;
    step *steps;
    int n_places, n_steps, room_places, room_steps;
    dnnl_stream_t stream;
    int threads; /* primitives are made for as many, and start them */
} net;

enum { ELEMENT = 4 };

static bool grow(void **list, int n, int *room, size_t each) {
    if (n < *room) return true;
    const int more = *room ? 2 * *room : 16;
    void *bigger = realloc(*list, (size_t)more * each);
    if (!bigger) return false;
    *list = bigger;
    *room = more;
    return true;
}

static step *new_step(net *n, dnnl_primitive_desc_t pd) {
    if (!grow((void **)&n->steps, n->n_steps, &n->room_steps, sizeof *n->steps)) return NULL;
    step *s = &n->steps[n->n_steps];
    memset(s, 0, sizeof *s);
    if (dnnl_primitive_create(&s->primitive, pd) != dnnl_success) return NULL;
    n->n_steps++;
    return s;
}

static void argument(const net *n, step *s, int name, int at) {
    s->args[s->n_args++] = (dnnl_exec_arg_t){name, n->places[at].memory};
}

/* desc: becomes the place's, also on failure. handle: memory, DNNL_MEMORY_ALLOCATE or, of the caller's, DNNL_MEMORY_NONE. */
static int new_place(net *n, int value, rp__dnnl_desc desc, void *handle, int address, int64_t offset) {
    if (!grow((void **)&n->places, n->n_places, &n->room_places, sizeof *n->places)) {
        rp__dnnl_desc_free(&desc);
        return -1;
    }
    place *p = &n->places[n->n_places++];
    *p = (place){.value = value, .desc = desc, .address = address, .offset = offset};
    return dnnl_memory_create(&p->memory, RP__DESC(&p->desc), rp__dnnl_engine, handle) == dnnl_success ? n->n_places - 1
                                                                                                       : -1;
}

/* The value's memory as its root has it, seen through a description. */
static int place_over(net *n, int value, rp__dnnl_desc desc) {
    const rp__onednn_value *v = &n->values[value], *root = &n->values[v->root];
    const int64_t offset = v->offset * ELEMENT;
    if (root->fixed) return new_place(n, value, desc, (char *)(uintptr_t)root->fixed + offset, -1, 0);
    if (root->address >= 0) return new_place(n, value, desc, DNNL_MEMORY_NONE, root->address, offset);
    void *base = NULL;
    if (v->root == value) return new_place(n, value, desc, DNNL_MEMORY_ALLOCATE, -1, 0);
    if (n->home[v->root] < 0 ||
        dnnl_memory_get_data_handle(n->places[n->home[v->root]].memory, &base) != dnnl_success) {
        rp__dnnl_desc_free(&desc);
        return -1;
    }
    return new_place(n, value, desc, (char *)base + offset, -1, 0);
}

static bool strided(const rp__onednn_value *v, rp__dnnl_desc *d) {
    dnnl_dims_t size = {0}, stride = {0};
    for (int k = 0; k < v->ndim; k++) size[k] = v->size[k], stride[k] = v->stride[k];
    return rp__dnnl_desc_new(d, v->ndim, size, dnnl_f32, stride);
}

/* A place of the value in the layout that is its own. */
static int home_of(net *n, int value) {
    rp__dnnl_desc d;
    if (n->home[value] < 0 && strided(&n->values[value], &d)) n->home[value] = place_over(n, value, d);
    return n->home[value];
}

/* A step that copies from one place to another; of what never changes it is done at once. */
static bool copy(net *n, int from, int to, bool once) {
    dnnl_primitive_desc_t pd = NULL;
    if (dnnl_reorder_primitive_desc_create(&pd, RP__DESC(&n->places[from].desc), rp__dnnl_engine,
                                           RP__DESC(&n->places[to].desc), rp__dnnl_engine, NULL) != dnnl_success)
        return false;
    step *s = new_step(n, pd);
    dnnl_primitive_desc_destroy(pd);
    if (!s) return false;
    argument(n, s, DNNL_ARG_FROM, from);
    argument(n, s, DNNL_ARG_TO, to);
    if (!once) return true;
    const bool good = dnnl_primitive_execute(s->primitive, n->stream, s->n_args, s->args) == dnnl_success &&
                      dnnl_stream_wait(n->stream) == dnnl_success;
    dnnl_primitive_destroy(s->primitive);
    n->n_steps--;
    return good;
}

/* The value, of which `from` is a place, in the layout wanted. */
static int in_layout(net *n, int value, int from, rp__dnnl_desc_ref wanted) {
    rp__dnnl_desc d;
    if (from < 0 || !wanted) return -1;
    for (int k = 0; k < n->n_places; k++)
        if (n->places[k].value == value && dnnl_memory_desc_equal(RP__DESC(&n->places[k].desc), wanted)) return k;
    if (!rp__dnnl_desc_copy(&d, wanted)) return -1;
    const int to = new_place(n, value, d, DNNL_MEMORY_ALLOCATE, -1, 0);
    return to >= 0 && copy(n, from, to, n->values[n->values[value].root].fixed != NULL) ? to : -1;
}

/* ---- a call */

/* A weight as a primitive takes it: that of a product turned, the groups of a convolution's a dim of their own. */
static bool weight_desc(const rp__onednn_problem *q, const rp__onednn_value *w, bool any, rp__dnnl_desc *d) {
    dnnl_dims_t size = {0}, stride = {0};
    int ndim = 0;
    if (q->kind == RP__ONEDNN_MATMUL) {
        for (; ndim < 2; ndim++) size[ndim] = w->size[1 - ndim], stride[ndim] = w->stride[1 - ndim];
    } else {
        if (q->groups > 1) size[ndim] = q->groups, stride[ndim++] = w->size[0] / q->groups * w->stride[0];
        size[ndim] = w->size[0] / q->groups, stride[ndim++] = w->stride[0];
        for (int k = 1; k < w->ndim; k++) size[ndim] = w->size[k], stride[ndim++] = w->stride[k];
    }
    return any ? rp__dnnl_desc_any(d, ndim, size, dnnl_f32) : rp__dnnl_desc_new(d, ndim, size, dnnl_f32, stride);
}

static bool any_desc(const rp__onednn_value *v, rp__dnnl_desc *d) {
    dnnl_dims_t size = {0};
    for (int k = 0; k < v->ndim; k++) size[k] = v->size[k];
    return rp__dnnl_desc_any(d, v->ndim, size, dnnl_f32);
}

static bool is_binary(int kind) { return kind == RP__ONEDNN_ADD || kind == RP__ONEDNN_MUL; }

static bool is_full(const net *n, const rp__onednn_call *c, int post) {
    const rp__onednn_value *v = &n->values[c->post[post].value], *out = &n->values[c->out];
    return is_binary(c->post[post].kind) && v->ndim == out->ndim &&
           memcmp(v->size, out->size, (size_t)out->ndim * sizeof *out->size) == 0;
}

/* A second operand of the result's sizes is added to what lies in the result's memory, where it is copied before: convolutions take such
   a one as a tensor of its own in their plain reference alone. */
static dnnl_primitive_attr_t attributes(net *n, const rp__onednn_call *c) {
    static const dnnl_alg_kind_t algorithm[RP__ONEDNN_POSTS] = {
        dnnl_eltwise_relu,     dnnl_eltwise_gelu_erf, dnnl_eltwise_gelu_tanh, dnnl_eltwise_tanh,
        dnnl_eltwise_logistic, dnnl_binary_add,       dnnl_binary_mul};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t posts = NULL;
    bool good = dnnl_primitive_attr_create(&attr) == dnnl_success && dnnl_post_ops_create(&posts) == dnnl_success;
    for (int k = 0; k < c->n_posts && good; k++) {
        const dnnl_alg_kind_t a = algorithm[c->post[k].kind];
        if (is_full(n, c, k)) {
#if DNNL_VERSION_MAJOR >= 3
            good = dnnl_post_ops_append_sum(posts, 1, 0, dnnl_data_type_undef) == dnnl_success;
#else
            good = dnnl_post_ops_append_sum(posts, 1) == dnnl_success;
#endif
        } else if (is_binary(c->post[k].kind)) {
            const int at = home_of(n, c->post[k].value);
            good = at >= 0 && dnnl_post_ops_append_binary(posts, a, RP__DESC(&n->places[at].desc)) == dnnl_success;
        } else {
#if DNNL_VERSION_MAJOR >= 3
            good = dnnl_post_ops_append_eltwise(posts, a, 0, 0) == dnnl_success;
#else
            good = dnnl_post_ops_append_eltwise(posts, 1, a, 0, 0) == dnnl_success;
#endif
        }
    }
    good = good && dnnl_primitive_attr_set_post_ops(attr, posts) == dnnl_success;
    if (posts) dnnl_post_ops_destroy(posts);
    if (good) return attr;
    if (attr) dnnl_primitive_attr_destroy(attr);
    return NULL;
}

/* Not the plain reference: fused kernels are better. */
static dnnl_primitive_desc_t describe(net *n, const rp__onednn_call *c, rp__dnnl_desc d[4]) {
    dnnl_primitive_attr_t attr = attributes(n, c);
    dnnl_primitive_desc_t pd = NULL;
    rp__onednn_problem q = c->problem;
    q.bias = c->in[2] >= 0;
    if (attr && rp__dnnl_describe(&q, d, attr, &pd) != dnnl_success) pd = NULL;
    if (attr) dnnl_primitive_attr_destroy(attr);
    if (!pd || !rp__dnnl_is_reference(pd)) return pd;
    dnnl_primitive_desc_destroy(pd);
    return NULL;
}

/* Where the result lies: in the primitive's layout, unless its reader wants another. */
static int result_place(net *n, const rp__onednn_call *c, rp__dnnl_desc_ref wanted, bool *copied) {
    const rp__onednn_value *out = &n->values[c->out];
    rp__dnnl_desc d;
    *copied = false;
    if (out->address >= 0 || out->plain) {
        const int home = home_of(n, c->out);
        if (home < 0 || dnnl_memory_desc_equal(RP__DESC(&n->places[home].desc), wanted)) return home;
        *copied = true;
    }
    if (!rp__dnnl_desc_copy(&d, wanted)) return -1;
    const int at = new_place(n, c->out, d, DNNL_MEMORY_ALLOCATE, -1, 0);
    if (!*copied) n->home[c->out] = at;
    return at;
}

static bool add_steps(net *n, const rp__onednn_call *c, dnnl_primitive_desc_t pd) {
    static const dnnl_query_t layout[] = {dnnl_query_src_md, dnnl_query_weights_md};
    static const int name[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS};
    int in[2], post[RP__ONEDNN_CHAIN], bias = c->in[2] >= 0 ? home_of(n, c->in[2]) : 0;
    rp__dnnl_desc as;
    bool copied, good = bias >= 0;
    for (int k = 0; k < 2 && good; k++) {
        int from = -1;
        if (k == 0)
            from = home_of(n, c->in[0]);
        else if (weight_desc(&c->problem, &n->values[c->in[1]], false, &as))
            from = place_over(n, c->in[1], as);
        in[k] = in_layout(n, c->in[k], from, dnnl_primitive_desc_query_md(pd, layout[k], 0));
        good = in[k] >= 0;
    }
    rp__dnnl_desc_ref wanted = dnnl_primitive_desc_query_md(pd, dnnl_query_dst_md, 0);
    for (int k = 0; k < c->n_posts && good; k++) {
        if (!is_binary(c->post[k].kind)) continue;
        post[k] = home_of(n, c->post[k].value);
        good = post[k] >= 0;
    }
    const int out = good ? result_place(n, c, wanted, &copied) : -1;
    for (int k = 0; k < c->n_posts && out >= 0 && good; k++)
        if (is_full(n, c, k)) good = copy(n, post[k], out, false);
    step *s = out >= 0 && good ? new_step(n, pd) : NULL;
    if (!s) return false;
    argument(n, s, DNNL_ARG_DST, out);
    for (int k = 0; k < 2; k++) argument(n, s, name[k], in[k]);
    if (c->in[2] >= 0) argument(n, s, DNNL_ARG_BIAS, bias);
    for (int k = 0; k < c->n_posts; k++)
        if (is_binary(c->post[k].kind) && !is_full(n, c, k))
            argument(n, s, DNNL_ARG_ATTR_MULTIPLE_POST_OP(k) | DNNL_ARG_SRC_1, post[k]);
    return !copied || copy(n, out, n->home[c->out], false);
}

static bool bias_desc(const rp__onednn_call *c, const rp__onednn_value *b, rp__dnnl_desc *d) {
    dnnl_dims_t size = {b->size[0]}, stride = {b->stride[0]};
    if (c->problem.kind == RP__ONEDNN_MATMUL) size[0] = 1, size[1] = b->size[0], stride[0] = b->size[0], stride[1] = 1;
    return rp__dnnl_desc_new(d, c->problem.kind == RP__ONEDNN_MATMUL ? 2 : 1, size, dnnl_f32, stride);
}

static bool add_call(net *n, const rp__onednn_call *c) {
    rp__dnnl_desc d[4];
    memset(d, 0, sizeof d);
    int full = 0;
    for (int k = 0; k < c->n_posts; k++) full += is_full(n, c, k);
    bool good = full < 2 && any_desc(&n->values[c->out], &d[0]) && any_desc(&n->values[c->in[0]], &d[1]) &&
                weight_desc(&c->problem, &n->values[c->in[1]], true, &d[2]);
    if (good && c->in[2] >= 0) {
        good = bias_desc(c, &n->values[c->in[2]], &d[3]);
        if (good && n->home[c->in[2]] < 0) {
            rp__dnnl_desc own;
            good = bias_desc(c, &n->values[c->in[2]], &own);
            if (good) n->home[c->in[2]] = place_over(n, c->in[2], own);
        }
    }
    dnnl_primitive_desc_t pd = good ? describe(n, c, d) : NULL;
    good = pd && add_steps(n, c, pd);
    if (pd) dnnl_primitive_desc_destroy(pd);
    for (int k = 0; k < 4; k++) rp__dnnl_desc_free(&d[k]);
    return good;
}

/* ---- the interface */

void rp__dnnl_net_free(void *handle) {
    net *n = handle;
    if (!n) return;
    for (int k = 0; k < n->n_steps; k++) dnnl_primitive_destroy(n->steps[k].primitive);
    for (int k = 0; k < n->n_places; k++) {
        if (n->places[k].memory) dnnl_memory_destroy(n->places[k].memory);
        rp__dnnl_desc_free(&n->places[k].desc);
    }
    if (n->stream) dnnl_stream_destroy(n->stream);
    free(n->steps);
    free(n->places);
    free(n->home);
    free(n);
}

static bool make(net *n, const rp__onednn_value *values, int n_values, const rp__onednn_call *calls, int n_calls) {
    n->home = malloc(((size_t)n_values + 1) * sizeof *n->home);
    if (!n->home) return false;
    n->values = values;
    n->n_values = n_values;
    for (int k = 0; k < n_values; k++) n->home[k] = -1;
    bool good = dnnl_stream_create(&n->stream, rp__dnnl_engine, dnnl_stream_default_flags) == dnnl_success;
    for (int k = 0; k < n_calls && good; k++) good = add_call(n, &calls[k]);
    n->values = NULL;
    return good;
}

void *rp__dnnl_net_new(const rp__onednn_value *values, int n_values, const rp__onednn_call *calls, int n_calls,
                       int threads) {
    const int before = rp__dnnl_threads(threads);
    net *n = rp__dnnl_begin() ? calloc(1, sizeof *n) : NULL;
    if (n) n->threads = threads;
    if (n && !make(n, values, n_values, calls, n_calls)) {
        rp__dnnl_net_free(n);
        n = NULL;
    }
    (void)rp__dnnl_threads(before);
    return n;
}

static int run(net *n, void *const *addresses) {
    dnnl_status_t status = dnnl_success;
    for (int k = 0; k < n->n_places && status == dnnl_success; k++) {
        const place *p = &n->places[k];
        if (p->address >= 0) status = dnnl_memory_set_data_handle(p->memory, (char *)addresses[p->address] + p->offset);
    }
    for (int k = 0; k < n->n_steps && status == dnnl_success; k++)
        status = dnnl_primitive_execute(n->steps[k].primitive, n->stream, n->steps[k].n_args, n->steps[k].args);
    const dnnl_status_t waited = dnnl_stream_wait(n->stream);
    return (int)(status == dnnl_success ? waited : status);
}

int rp__dnnl_net_run(void *handle, void *const *addresses) {
    net *n = handle;
    const int before = rp__dnnl_threads(n->threads);
    const int status = run(n, addresses);
    (void)rp__dnnl_threads(before);
    return status;
}
