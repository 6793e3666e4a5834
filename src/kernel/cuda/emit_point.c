/* CUDA C kernels over points (emit_parts.h): one space, or groups of equal problems in one launch. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

void rp__emit_point_body(const rp__emitter *e, const char *guard, bool many) {
    const rp__dag *d = e->dag;
    unsigned vector = e->c->vector;
    for (unsigned k = 0; k < d->n_nodes; k++) { /* what a whole vector shares, and loads at places that it shares */
        const rp__node *n = &d->nodes[k];
        if (e->still[k]) rp__emit_node(e, (rp__val)k, guard);
        if (e->level[k] != RP__LEVEL_ELEMENT || n->a == RP__NO_VAL || !rp__emit_in_vectors(e, n)) continue;
        char at[80], place[64];
        (void)snprintf(at, sizeof at, " + %s", rp__emit_value(e, n->a, place));
        rp__emit_vector_load(e, k, vector, at, guard);
    }
    for (unsigned k = 0; k < d->n_stores; k++)
        if (rp__emit_vector_store(e, &d->stores[k]))
            rp__emit_gathered(e, &d->stores[k], k, vector);
        else if (e->c->late)
            rp__text_add(e->out, "    %s w%u[%u];\n", rp__emit_type(d->accesses[d->stores[k].access].dtype), k, vector);
    rp__text_add(e->out,
                 "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n        const int e = u * %u + j; (void)e;\n",
                 vector, vector);
    if (many) rp__text_puts(e->out, "        const rp_i64 x = g + j;\n");
    for (unsigned k = 0; k < d->n_nodes; k++)
        if (e->level[k] == RP__LEVEL_ELEMENT && !e->still[k]) rp__emit_node(e, (rp__val)k, guard);
    for (unsigned k = 0; k < d->n_stores; k++) {
        if (rp__emit_vector_store(e, &d->stores[k])) {
            rp__emit_gather(e, &d->stores[k], k);
        } else if (e->c->late) {
            rp__text_add(e->out, "        w%u[j] = ", k);
            rp__emit_stored(e, d->stores[k].access, d->stores[k].value);
            rp__text_puts(e->out, ";\n");
        } else {
            rp__emit_store(e, &d->stores[k], guard);
        }
    }
    rp__text_puts(e->out, "    }\n");
    for (unsigned k = 0; k < d->n_stores && e->c->late; k++) {
        const unsigned a = d->stores[k].access;
        rp__text_add(
            e->out,
            "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) if (%s) a%u[o%u + j * (%s)p.w[%u]] = w%u[j];\n",
            vector, guard, a, a, rp__emit_index_type(e), rp__emit_stride_word(e, a, e->along), k);
    }
    for (unsigned k = 0; k < d->n_stores; k++)
        if (rp__emit_vector_store(e, &d->stores[k])) {
            unsigned a = d->stores[k].access;
            char at[32];
            if (many)
                (void)snprintf(at, sizeof at, "a%u + g", a);
            else
                (void)snprintf(at, sizeof at, "a%u + o%u", a, a);
            rp__emit_gathered_store(e, &d->stores[k], k, vector, guard, at);
        }
}

/* The loads of all of a thread's vectors are issued before anything is computed, so that they are in flight together; only a
 * one-dim space has a cheap address for that. */
bool rp__emit_loads_early(const rp__emitter *e) { return e->n_dims == 1 && e->c->vector > 1; }

/* The points behind the last whole vector, one a thread of the first block. */
static void add_rest(const rp__emitter *e) {
    const char *index = rp__emit_index_type(e);
    rp__cuda_class c = *e->c;
    rp__emitter rest = *e;
    c.vector = c.unroll = 1;
    c.unit = c.gathered = 0;
    rest.c = &c;
    rp__text_add(e->out,
                 "    if (blockIdx.x == 0) {\n    const int u = 0;\n    const %s g = points + (%s)threadIdx.x;\n"
                 "    const int ok = g < all;\n",
                 index, index);
    rp__emit_indices(&rest, "g", "d", 0, rest.n_dims);
    rp__emit_access_offsets(&rest, "d", 0, rest.n_dims);
    rp__emit_point_body(&rest, "ok", false);
    rp__text_puts(e->out, "    }\n");
}

/* A thread takes vectors blockIdx * 256 * unroll + u * 256 + threadIdx, u < unroll. */
void rp__emit_pointwise(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    unsigned vector = e->c->vector, unroll = e->c->unroll;
    const char *index = rp__emit_index_type(e);
    rp__emit_vector_types(e, vector);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, 0), RP__CUDA_BLOCK);
    rp__emit_start(e, false);
    rp__text_add(e->out, "    const %s %s = (%s)p.w[%u];\n", index, e->c->ragged ? "all" : "points", index,
                 rp__emit_extra_word(e, RP__CUDA_WORD_POINTS));
    if (e->c->ragged) rp__text_add(e->out, "    const %s points = all - all %% %u;\n", index, vector);
    rp__text_add(e->out, "    const %s first = ((%s)blockIdx.x * %u + (%s)threadIdx.x) * %u;\n", index, index,
                 RP__CUDA_BLOCK * unroll, index, vector);
    rp__emit_row_nodes(e, 0);
    char at[64];
    bool early = rp__emit_loads_early(e);
    if (early) {
        (void)snprintf(at, sizeof at, "first + (%s)u * %u", index, RP__CUDA_BLOCK * vector);
        char guard[96];
        (void)snprintf(guard, sizeof guard, "%s < points", at);
        rp__emit_vector_loads(e, unroll, vector, at, guard);
    }
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", unroll);
    rp__text_add(e->out, "    const %s g = first + (%s)u * %u;\n    const int ok = g < points;\n", index, index,
                 RP__CUDA_BLOCK * vector);
    rp__emit_indices(e, "g", "d", 0, e->n_dims);
    rp__emit_access_offsets(e, "d", 0, e->n_dims);
    for (unsigned k = 0; k < d->n_nodes && !early && vector > 1; k++)
        if (e->level[k] == RP__LEVEL_ELEMENT && d->nodes[k].a == RP__NO_VAL && rp__emit_in_vectors(e, &d->nodes[k]))
            rp__emit_vector_load(e, k, vector, "", "ok");
    rp__emit_point_body(e, "ok", false);
    rp__text_puts(e->out, "    }\n");
    if (e->c->ragged) add_rest(e);
    rp__text_puts(e->out, "}\n");
}

/* Over two dims: loads of a single element, and of a vector. */
static bool is_single(const rp__emitter *e, unsigned k) {
    return e->dag->nodes[k].op == RP__LOAD && e->level[k] == RP__LEVEL_ELEMENT && e->c->vector == 1;
}
static bool is_whole(const rp__emitter *e, unsigned k) {
    return e->level[k] == RP__LEVEL_ELEMENT && rp__emit_in_vectors(e, &e->dag->nodes[k]);
}

/* Vector u of a thread: its place follows from that of the one before. */
static void add_group_place(const rp__emitter *e, unsigned first) {
    const char *index = rp__emit_index_type(e);
    const unsigned n = e->dag->n_accesses;
    rp__text_add(e->out,
                 "    const int w = u; (void)w;\n    const %s d0 = q0, d1 = q1;\n"
                 "    q0 += sq; q1 += sr; if (q1 >= along) { q1 -= along; q0++; }\n",
                 index);
    for (unsigned a = 0; a < n; a++)
        rp__text_add(e->out, "    const %s o%u = d0 * (%s)p.w[own + %u] + d1 * (%s)p.w[own + %u]; (void)o%u;\n", index,
                     a, index, first + n + 2 * a, index, first + n + 2 * a + 1, a);
}

/* All of a thread's loads are in flight before the first store. */
static void add_group_loads(const rp__emitter *e, const char *at, unsigned first) {
    const rp__dag *d = e->dag;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (is_single(e, k))
            rp__text_add(e->out, "    %s x%u[%u];\n", rp__emit_type(d->accesses[d->nodes[k].access].dtype), k,
                         e->c->unroll);
        if (is_whole(e, k)) rp__emit_vectors(e, k, e->c->vector, e->c->unroll);
    }
    const char *index = rp__emit_index_type(e);
    rp__text_add(e->out,
                 "    { %s y0 = q0, y1 = q1;\n    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n"
                 "    const int ok = %s < points;\n",
                 index, e->c->unroll, at);
    add_group_place(e, first);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (is_single(e, k)) rp__emit_early_load(e, k, "ok");
        if (is_whole(e, k)) rp__emit_vectors_load(e, k, e->c->vector, "", "ok");
    }
    rp__text_puts(e->out, "    }\n    q0 = y0; q1 = y1; }\n");
}

/* Groups of equal problems: a block finds its group by binary search over first-block words. */
void rp__emit_many(const rp__emitter *e, const char *name, uint32_t n_groups) {
    const rp__dag *d = e->dag;
    const bool two = e->c->n_outer == 2;
    const char *index = rp__emit_index_type(e), *whole = e->c->wide ? "rp_u64" : "rp_u32";
    unsigned vector = e->c->vector, unroll = e->c->unroll, stride = rp__cuda_group_words(d, e->c), first = two ? 3 : 2;
    uint32_t table = d->n_scalars + RP__CUDA_EXTRA_WORDS;
    rp__emit_vector_types(e, vector);
    rp__emit_signature(e, name, rp__cuda_word_count(d, e->c, n_groups), RP__CUDA_BLOCK);
    rp__emit_start(e, true);
    rp__text_add(
        e->out,
        "    int lo = 0, hi = (int)p.w[%u] - 1;\n"
        "    while (lo < hi) { const int mid = (lo + hi + 1) / 2; if (p.w[%u + %u * mid] <= (rp_u64)blockIdx.x) lo = mid; else hi = mid - 1; }\n",
        rp__emit_extra_word(e, RP__CUDA_WORD_POINTS), table + 1, stride);
    rp__text_add(e->out, "    const int own = %u + lo * %u;\n    const rp_i64 points = (rp_i64)p.w[own];\n", table,
                 stride);
    for (unsigned a = 0; a < d->n_accesses; a++) {
        const rp__access *x = &d->accesses[a];
        if (x->kind != RP__ACCESS_IOTA)
            rp__text_add(e->out, "    %s%s *a%u = (%s%s *)p.w[own + %u];\n", x->kind == RP__ACCESS_READ ? "const " : "",
                         rp__emit_type(x->dtype), a, x->kind == RP__ACCESS_READ ? "const " : "",
                         rp__emit_type(x->dtype), first + a);
    }
    rp__text_add(
        e->out,
        "    const rp_i64 first = (((rp_i64)blockIdx.x - (rp_i64)p.w[own + 1]) * %u + (rp_i64)threadIdx.x) * %u;\n",
        RP__CUDA_BLOCK * unroll, vector);
    rp__emit_row_nodes(e, 0);
    char at[64], guard[96];
    if (two) /* the place of a thread's next vector follows from that of the one before: one division for all of them */
        rp__text_add(e->out,
                     "    const %s along = (%s)p.w[own + 2], sq = (%s)((%s)%u / (%s)along), sr = %u - sq * along;\n"
                     "    %s q0 = (%s)((%s)first / (%s)along), q1 = (%s)first - q0 * along;\n",
                     index, index, index, whole, RP__CUDA_BLOCK * vector, whole, RP__CUDA_BLOCK * vector, index, index,
                     whole, whole, index);
    (void)snprintf(at, sizeof at, "first + (rp_i64)u * %u", RP__CUDA_BLOCK * vector);
    (void)snprintf(guard, sizeof guard, "%s < points", at);
    if (vector > 1 && !two) rp__emit_vector_loads(e, unroll, vector, at, guard);
    if (two) {
        add_group_loads(e, at, first);
        for (unsigned k = 0; k < d->n_nodes; k++) e->early[k] = is_single(e, k);
    }
    rp__text_add(
        e->out,
        "    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n    const rp_i64 g = %s;\n    const int ok = g < points;\n",
        unroll, at);
    if (two) {
        add_group_place(e, first);
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (is_whole(e, k)) rp__emit_vectors_use(e, k);
    }
    rp__emit_point_body(e, "ok", !two);
    rp__text_puts(e->out, "    }\n}\n");
}
