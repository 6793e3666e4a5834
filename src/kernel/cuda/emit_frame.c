/* What the kernels of the CUDA C emitter have in common (emit_parts.h): the signature and what comes before the first loop,
 * indices and offsets, vector loads, the nodes and stores of a row. It must not decide where a node is computed (emit.c
 * does). */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

/* ---- parameters and indices ---- */

void rp__emit_signature(const rp__emitter *e, const char *name, uint32_t n_words, unsigned threads) {
    rp__text_add(e->out, "typedef struct { rp_u64 w[%u]; } rp_words_%s;\n", n_words, name);
    const unsigned cluster = e->c->template_ == RP__CUDA_CLUSTER          ? e->c->down
                             : e->c->template_ == RP__CUDA_CLUSTER_COLUMN ? e->c->parts
                                                                          : 0;
    if (cluster) rp__text_add(e->out, "#define RP_CLUSTER_%s __cluster_dims__(%u, 1, 1)\n", name, cluster);
    rp__text_puts(e->out, "extern \"C\" __global__ void ");
    if (cluster) rp__text_add(e->out, "RP_CLUSTER_%s ", name);
    unsigned blocks = 0; /* of a multiprocessor, at least */
    if (e->c->template_ == RP__CUDA_CLUSTER && threads == RP__CUDA_BLOCK)
        blocks = 2; /* hides what a cluster waits for */
    if (e->c->template_ == RP__CUDA_ROW && e->c->ragged && e->c->groups * e->c->span <= 32 && e->dag->n_nodes <= 24)
        blocks = 768 / threads; /* a few registers less for a thread are cheap */
    rp__text_add(e->out, "__launch_bounds__(%u", threads);
    if (blocks) rp__text_add(e->out, ", %u", blocks);
    rp__text_add(e->out, ") %s(const rp_words_%s p)\n{\n", name, name);
}

static void add_bases(const rp__emitter *e) {
    for (unsigned a = 0; a < e->dag->n_accesses; a++) {
        const rp__access *x = &e->dag->accesses[a];
        if (x->kind == RP__ACCESS_IOTA) continue;
        rp__text_add(e->out, "    %s%s *a%u = (%s%s *)p.w[%u];\n", x->kind == RP__ACCESS_READ ? "const " : "",
                     rp__emit_type(x->dtype), a, x->kind == RP__ACCESS_READ ? "const " : "", rp__emit_type(x->dtype),
                     e->words.address + a);
    }
}

static void add_uniform_nodes(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->level[k] == RP__LEVEL_UNIFORM) rp__emit_node(e, (rp__val)k, NULL);
}

/* Of dims that a thread divides by again and again: the inner ones of rows that it walks, those of several vectors of points. */
static bool has_inverse(const rp__emitter *e, unsigned d) {
    const rp__cuda_class *c = e->c;
    if (c->wide) return false;
    if (rp__emit_is_rows(c)) return c->template_ != RP__CUDA_SHORT && d > c->n_outer;
    return c->template_ == RP__CUDA_POINTWISE && c->unroll > 1;
}

void rp__emit_start(const rp__emitter *e, bool many) {
    rp__text_puts(e->out, "    rp_launch_dependents();\n    rp_grid_wait();\n");
    if (!many) add_bases(e);
    for (unsigned d = 1; d < e->n_dims; d++)
        if (has_inverse(e, d))
            rp__text_add(e->out, "    const rp_u32 inv%u = rp_inverse((rp_u32)p.w[%u]); (void)inv%u;\n", d,
                         e->words.extent + d, d);
    add_uniform_nodes(e);
}

static void add_inner_extent(const rp__emitter *e) {
    rp__text_add(e->out, "    const %s R = 1", rp__emit_index_type(e));
    for (unsigned d = 0; d < e->c->n_inner; d++)
        rp__text_add(e->out, " * (%s)p.w[%u]", rp__emit_index_type(e), e->words.extent + e->c->n_outer + d);
    rp__text_puts(e->out, ";\n");
}

void rp__emit_rows_start(const rp__emitter *e, bool inner) {
    const char *index = rp__emit_index_type(e);
    rp__emit_start(e, false);
    rp__text_add(e->out, "    const %s rows = (%s)p.w[%u];\n", index, index,
                 rp__emit_extra_word(e, RP__CUDA_WORD_POINTS));
    if (inner) add_inner_extent(e);
}

static bool is_row_node(const rp__emitter *e, unsigned k, unsigned phase) {
    const rp__node *n = &e->dag->nodes[k];
    return e->level[k] == RP__LEVEL_ROW && n->phase == phase && n->op != RP__REDUCE && n->op != RP__CONST;
}

static void add_columns(const rp__emitter *e) {
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", e->columns);
}

void rp__emit_row_nodes(const rp__emitter *e, unsigned phase) {
    for (unsigned k = 0; k < e->dag->n_nodes && e->columns > 1; k++)
        if (is_row_node(e, k, phase))
            rp__text_add(e->out, "    %s r%u[%u];\n", rp__emit_value_type(e, (rp__val)k), k, e->columns);
    if (e->columns > 1) add_columns(e);
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_row_node(e, k, phase)) rp__emit_node(e, (rp__val)k, NULL);
    if (e->columns > 1) rp__text_puts(e->out, "    }\n");
}

void rp__emit_indices(const rp__emitter *e, const char *from, const char *prefix, unsigned first, unsigned n) {
    const char *type = e->c->wide ? "rp_u64" : "rp_u32", *index = rp__emit_index_type(e);
    rp__text_add(e->out, "    %s %sr = (%s)%s;\n", type, prefix, type, from);
    for (unsigned d = n; d-- > 0;) {
        if (d == 0) {
            rp__text_add(e->out, "    const %s %s0 = (%s)%sr;\n", index, prefix, index, prefix);
            break;
        }
        uint32_t w = e->words.extent + first + d;
        if (has_inverse(e, first + d)) {
            rp__text_add(e->out,
                         "    const rp_u32 %ss%u = rp_share(%sr, (rp_u32)p.w[%u], inv%u);\n"
                         "    const %s %s%u = (%s)(%sr - %ss%u * (rp_u32)p.w[%u]);\n    %sr = %ss%u;\n",
                         prefix, d, prefix, w, first + d, index, prefix, d, index, prefix, prefix, d, w, prefix, prefix,
                         d);
            continue;
        }
        rp__text_add(e->out, "    const %s %s%u = (%s)(%sr %% (%s)p.w[%u]);\n", index, prefix, d, index, prefix, type,
                     w);
        rp__text_add(e->out, "    %sr /= (%s)p.w[%u];\n", prefix, type, w);
    }
}

void rp__emit_access_offsets(const rp__emitter *e, const char *prefix, unsigned first, unsigned n) {
    for (unsigned a = 0; a < e->dag->n_accesses; a++) {
        rp__text_add(e->out, "    const %s o%u = 0", rp__emit_index_type(e), a);
        for (unsigned d = 0; d < n; d++)
            if (rp__emit_moves(e, a, first + d))
                rp__text_add(e->out, " + %s%u * (%s)p.w[%u]", prefix, d, rp__emit_index_type(e),
                             rp__emit_stride_word(e, a, first + d));
        rp__text_puts(e->out, ";\n");
    }
}

void rp__emit_places(const rp__emitter *e, const rp__cuda_place *places, unsigned n) {
    const char *index = rp__emit_index_type(e);
    unsigned dim = 0;
    for (unsigned k = 0; k < n; dim += places[k++].dims) {
        if (places[k].dims == 0) continue;
        rp__text_add(e->out, "        %s d%ur = (%s)(%s);\n", index, dim, index, places[k].from);
        for (unsigned i = places[k].dims; i-- > 0;) {
            const uint32_t w = e->words.extent + dim + i;
            if (i == 0)
                rp__text_add(e->out, "        const %s d%u = d%ur;\n", index, dim, dim);
            else
                rp__text_add(e->out, "        const %s d%u = d%ur %% (%s)p.w[%u];\n        d%ur /= (%s)p.w[%u];\n",
                             index, dim + i, dim, index, w, dim, index, w);
        }
    }
    add_bases(e);
    for (unsigned a = 1; a < e->dag->n_accesses; a++) {
        rp__text_add(e->out, "        const %s o%u = 0", index, a);
        for (unsigned d = 0; d < e->n_dims; d++)
            rp__text_add(e->out, " + d%u * (%s)p.w[%u]", d, index, rp__emit_stride_word(e, a, d));
        rp__text_puts(e->out, ";\n");
    }
}

/* ---- vectors ---- */

/* Two 16-bit floats share a word, so that one instruction takes either out or rounds both. */
bool rp__emit_is_half(unsigned dtype) {
    return rp__dtype_is_float((rp_dtype)dtype) && rp__dtype_is_narrow((rp_dtype)dtype);
}
unsigned rp__emit_words(unsigned dtype, unsigned width) { return rp__emit_is_half(dtype) ? width / 2 : width; }
const char *rp__emit_word_type(unsigned dtype) { return rp__emit_is_half(dtype) ? "rp_u32" : rp__emit_type(dtype); }

void rp__emit_vector_types(const rp__emitter *e, unsigned width) {
    for (unsigned k = 1; k < RP__DTYPE_COUNT; k++) { /* what lies alike in memory is said once */
        unsigned bytes = (unsigned)rp__dtype_bytes((rp_dtype)k) * width, words = rp__emit_words(k, width);
        const char *type = rp__emit_word_type(k);
        if (words == 0) continue; /* one 16-bit float is no vector */
        rp__text_add(e->out, "#ifndef RP_VEC_%s_%u\n#define RP_VEC_%s_%u\n", type, words, type, words);
        rp__text_add(e->out, "typedef struct __align__(%u) { %s e[%u]; } rp_vec_%s_%u;\n#endif\n",
                     bytes > 16 ? 16 : bytes, type, words, type, words);
    }
}

void rp__emit_loaded(const rp__emitter *e, unsigned node, const char *index) {
    unsigned access = e->dag->nodes[node].access, dtype = e->dag->accesses[access].dtype;
    char raw[64];
    if (rp__emit_is_half(dtype)) {
        rp__text_add(e->out, "rp_cvt_%sx2_to_f32(l%u[%s / 2], %s %% 2)", rp__dtypes[dtype].short_name, node, index,
                     index);
        return;
    }
    (void)snprintf(raw, sizeof raw, "l%u[%s]", node, index);
    rp__emit_converted(e, access, raw);
}

void rp__emit_vector_loads(const rp__emitter *e, unsigned count, unsigned vector, const char *at, const char *guard) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (e->level[k] != RP__LEVEL_ELEMENT || !rp__emit_in_vectors(e, n)) continue;
        unsigned dtype = e->dag->accesses[n->access].dtype, words = rp__emit_words(dtype, vector);
        const char *type = rp__emit_word_type(dtype);
        rp__text_add(e->out, "    %s l%u[%u];\n    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", type, k,
                     count * words, count);
        rp__text_add(e->out, "        rp_vec_%s_%u x; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) x.e[j] = 0;\n",
                     type, words, words);
        rp__text_add(e->out, "        if (%s) x = *(const rp_vec_%s_%u *)(a%u + (%s));\n", guard, type, words,
                     n->access, at);
        rp__text_add(e->out,
                     "        _Pragma(\"unroll\") for (int j = 0; j < %u; j++) l%u[u * %u + j] = x.e[j];\n    }\n",
                     words, k, words);
    }
}

void rp__emit_vector_load(const rp__emitter *e, unsigned node, unsigned vector, const char *at, const char *guard) {
    unsigned access = e->dag->nodes[node].access, dtype = e->dag->accesses[access].dtype;
    unsigned words = rp__emit_words(dtype, vector);
    const char *type = rp__emit_word_type(dtype);
    rp__text_add(e->out, "    rp_vec_%s_%u x%u; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) x%u.e[j] = 0;\n", type,
                 words, node, words, node);
    rp__text_add(e->out, "    if (%s) x%u = *(const rp_vec_%s_%u *)(a%u + o%u%s);\n    const %s *l%u = x%u.e;\n", guard,
                 node, type, words, access, access, at, type, node, node);
}

void rp__emit_vectors(const rp__emitter *e, unsigned node, unsigned vector, unsigned count) {
    const unsigned dtype = e->dag->accesses[e->dag->nodes[node].access].dtype;
    rp__text_add(e->out, "    rp_vec_%s_%u x%u[%u];\n", rp__emit_word_type(dtype), rp__emit_words(dtype, vector), node,
                 count);
}

void rp__emit_vectors_load(const rp__emitter *e, unsigned node, unsigned vector, const char *at, const char *guard) {
    const unsigned access = e->dag->nodes[node].access, dtype = e->dag->accesses[access].dtype;
    const unsigned words = rp__emit_words(dtype, vector);
    rp__text_add(
        e->out,
        "        if (%s) x%u[w] = *(const rp_vec_%s_%u *)(a%u + o%u%s); else _Pragma(\"unroll\") for (int j = 0; "
        "j < %u; j++) x%u[w].e[j] = 0;\n",
        guard, node, rp__emit_word_type(dtype), words, access, access, at, words, node);
}

void rp__emit_vectors_use(const rp__emitter *e, unsigned node) {
    const unsigned dtype = e->dag->accesses[e->dag->nodes[node].access].dtype;
    rp__text_add(e->out, "    const %s *l%u = x%u[w].e;\n", rp__emit_word_type(dtype), node, node);
}

bool rp__emit_vector_store(const rp__emitter *e, const rp__store *s) {
    return s->mode == RP__STORE_SET && s->offset == RP__NO_VAL && s->predicate == RP__NO_VAL &&
           (e->c->unit >> s->access & 1) && e->c->vector > 1;
}

/* Values of 16-bit floats wait as f32 for their neighbour. */
void rp__emit_gathered(const rp__emitter *e, const rp__store *s, unsigned number, unsigned width) {
    unsigned dtype = e->dag->accesses[s->access].dtype;
    if (rp__emit_is_half(dtype))
        rp__text_add(e->out, "    float w%u[%u];\n", number, width);
    else
        rp__text_add(e->out, "    rp_vec_%s_%u w%u;\n", rp__emit_type(dtype), width, number);
}

void rp__emit_gather(const rp__emitter *e, const rp__store *s, unsigned number) {
    char t[64];
    if (rp__emit_is_half(e->dag->accesses[s->access].dtype)) {
        rp__text_add(e->out, "        w%u[j] = (float)%s;\n", number, rp__emit_value(e, s->value, t));
        return;
    }
    rp__text_add(e->out, "        w%u.e[j] = ", number);
    rp__emit_stored(e, s->access, s->value);
    rp__text_puts(e->out, ";\n");
}

void rp__emit_gathered_store(const rp__emitter *e, const rp__store *s, unsigned number, unsigned width,
                             const char *guard, const char *at) {
    unsigned dtype = e->dag->accesses[s->access].dtype, words = rp__emit_words(dtype, width);
    bool half = rp__emit_is_half(dtype);
    if (half)
        rp__text_add(e->out,
                     "    rp_vec_rp_u32_%u y%u;\n    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) "
                     "y%u.e[j] = rp_cvt_f32_to_%sx2(w%u[j * 2], w%u[j * 2 + 1]);\n",
                     words, number, words, number, rp__dtypes[dtype].short_name, number, number);
    if (words == 8 && rp__dtype_bytes(dtype) == 4)
        rp__text_add(e->out, "    if (%s) rp_st_v8((void *)(%s), w%u.e);\n", guard, at, number);
    else
        rp__text_add(e->out, "    if (%s) *(rp_vec_%s_%u *)(%s) = %c%u;\n", guard, rp__emit_word_type(dtype), words, at,
                     half ? 'y' : 'w', number);
}

void rp__emit_lane_stores(const rp__emitter *e, bool rows, const char *guard) {
    const rp__dag *d = e->dag;
    for (unsigned k = 0; k < d->n_stores; k++) {
        if (!rows && rp__dag_is_row(d, d->stores[k].axes)) continue;
        if (rp__emit_vector_store(e, &d->stores[k]))
            rp__emit_gather(e, &d->stores[k], k);
        else
            rp__emit_store(e, &d->stores[k], guard);
    }
}

void rp__emit_where(const char *place, unsigned access, char *out, size_t bytes) {
    size_t n = 0;
    for (const char *s = place; *s && n + 1 < bytes; s++) {
        if (*s == '@')
            n += (size_t)snprintf(out + n, bytes - n, "%u", access);
        else
            out[n++] = *s;
    }
    out[n < bytes ? n : bytes - 1] = 0;
}

void rp__emit_vector_stores(const rp__emitter *e, bool rows, unsigned width, const char *guard, const char *place) {
    const rp__dag *d = e->dag;
    char at[64];
    for (unsigned k = 0; k < d->n_stores; k++) {
        if ((!rows && rp__dag_is_row(d, d->stores[k].axes)) || !rp__emit_vector_store(e, &d->stores[k])) continue;
        rp__emit_where(place, d->stores[k].access, at, sizeof at);
        rp__emit_gathered_store(e, &d->stores[k], k, width, guard, at);
    }
}

/* ---- rows ---- */

/* Row number -> indices and offsets; `row` is clamped so that idle threads read valid memory, `live` says whether they store. */
void rp__emit_row_start(const rp__emitter *e, bool exact) {
    const char *index = rp__emit_index_type(e);
    if (exact)
        rp__text_add(e->out, "    const int live = 1;\n    const %s row = row_; (void)row; (void)rows;\n", index);
    else
        rp__text_add(e->out,
                     "    const int live = row_ < rows;\n    const %s row = live ? row_ : rows - %u; (void)row;\n",
                     index, e->columns);
    if (e->c->n_outer > 0) {
        rp__emit_indices(e, "row", "d", 0, e->c->n_outer);
        rp__emit_access_offsets(e, "d", 0, e->c->n_outer);
    } else {
        for (unsigned a = 0; a < e->dag->n_accesses; a++)
            rp__text_add(e->out, "    const %s o%u = 0;\n", rp__emit_index_type(e), a);
    }
}

/* Elements j of a vector of a row share all indices but the last, whose dim holds whole vectors. */
static bool shares_indices(const rp__cuda_class *c) {
    switch ((rp__cuda_template)c->template_) {
    case RP__CUDA_ROW:
    case RP__CUDA_CLUSTER:
    case RP__CUDA_ROW_LOOP:
    case RP__CUDA_PARTIAL_ROW:
    case RP__CUDA_SPLIT: return c->vector > 1;
    default: return false;
    }
}

void rp__emit_inner_indices(const rp__emitter *e) {
    const unsigned n = e->c->n_inner;
    if (n <= 1) return;
    if (!shares_indices(e->c)) {
        rp__emit_indices(e, "i", "i", e->c->n_outer, n);
        return;
    }
    rp__emit_indices(e, "(i - j)", "k", e->c->n_outer, n);
    if (e->c->crosses) { /* one division a vector: what follows is at most one place of the dims before further on */
        const char *index = rp__emit_index_type(e);
        for (unsigned d = n; d-- > 0;) {
            char step[24] = "j";
            if (d + 1 < n) (void)snprintf(step, sizeof step, "over%u", d + 1);
            const uint32_t w = e->words.extent + e->c->n_outer + d;
            if (d == 0)
                rp__text_add(e->out, "    const %s i0 = k0 + %s;\n", index, step);
            else
                rp__text_add(e->out,
                             "    const int over%u = k%u + %s >= (%s)p.w[%u];\n"
                             "    const %s i%u = over%u ? k%u + %s - (%s)p.w[%u] : k%u + %s;\n",
                             d, d, step, index, w, index, d, d, d, step, index, w, d, step);
        }
        return;
    }
    for (unsigned d = 0; d < n; d++)
        rp__text_add(e->out, "    const %s i%u = k%u%s;\n", rp__emit_index_type(e), d, d, d + 1 == n ? " + j" : "");
}

void rp__emit_element_nodes(const rp__emitter *e, unsigned phase, const char *guard) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        bool here = e->recompute ? e->needed[k] : e->place[k] == phase;
        if (e->level[k] == RP__LEVEL_ELEMENT && here) rp__emit_node(e, (rp__val)k, guard);
    }
}

void rp__emit_row_stores(const rp__emitter *e, const char *guard) {
    if (e->columns > 1) add_columns(e);
    for (unsigned k = 0; k < e->dag->n_stores; k++)
        if (rp__dag_is_row(e->dag, e->dag->stores[k].axes)) rp__emit_store(e, &e->dag->stores[k], guard);
    if (e->columns > 1) rp__text_puts(e->out, "    }\n");
}
