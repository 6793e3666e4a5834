/* CUDA C kernels over points whose accesses disagree about which dim is contiguous (emit_parts.h): a block computes a tile of two
 * dims, the last one and `across`. What lies along `across` in memory goes through shared memory, so that both sides are read and
 * written in whole lines; everything else is as in emit_point.c. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

static unsigned pitch_of(const rp__emitter *e, unsigned access) {
    return rp__cuda_tile_pitch(e->c->tile, (unsigned)rp__dtype_bytes((rp_dtype)e->dag->accesses[access].dtype));
}

static bool is_staged(const rp__emitter *e, unsigned access, unsigned kinds) {
    const unsigned kind = e->dag->accesses[access].kind;
    const bool moves = kinds == RP__ACCESS_READ ? kind != RP__ACCESS_WRITE : kind != RP__ACCESS_READ;
    return (e->c->staged >> access & 1) && moves;
}

/* Values of an access between memory and s<access>, neighbours along `across` by neighbours in a warp. */
static void add_moved(const rp__emitter *e, unsigned access, bool in) {
    const rp__cuda_class *c = e->c;
    const char *type = rp__emit_type(e->dag->accesses[access].dtype), *index = rp__emit_index_type(e);
    const bool whole = c->staged_unit >> access & 1;
    const unsigned width = whole ? c->stage : 1, along = c->down / width, pitch = pitch_of(e, access);
    const unsigned turns = c->down * c->tile / width / RP__CUDA_BLOCK, batch = turns < 8 ? turns : 8;
    const uint32_t strides[2] = {rp__emit_stride_word(e, access, c->across),
                                 rp__emit_stride_word(e, access, e->n_dims - 1)};
    char vector[48];
    (void)snprintf(vector, sizeof vector, width > 1 ? "rp_tile_%s_%u" : "%s", type, width);
    rp__text_add(e->out, "    for (int turn = 0; turn < %u; turn += %u) {\n    %s x[%u];\n", turns, batch, vector,
                 batch);
    for (int step = 0; step < 2; step++) { /* all loads of a batch before the first store */
        const bool memory = in == (step == 0);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int u = 0; u < %u; u++) {\n", batch);
        rp__text_add(e->out,
                     "        const int n = (turn + u) * %d + (int)threadIdx.x, sy = n %% %u * %u, sx = n / %u;\n",
                     RP__CUDA_BLOCK, along, width, along);
        if (memory) {
            rp__text_add(e->out, "        if (t0 + sy < T && f0 + sx < F) ");
            char at[160];
            if (whole)
                (void)snprintf(at, sizeof at, "*(%s%s *)(a%u + q%u + sy + sx * (%s)p.w[%u])", in ? "const " : "",
                               vector, access, access, index, strides[1]);
            else
                (void)snprintf(at, sizeof at, "a%u[q%u + sy * (%s)p.w[%u] + sx * (%s)p.w[%u]]", access, access, index,
                               strides[0], index, strides[1]);
            rp__text_add(e->out, in ? "x[u] = %s;" : "%s = x[u];", at);
            if (in) /* what is outside is computed with as 0 */
                rp__text_add(e->out,
                             width > 1
                                 ? "\n        else _Pragma(\"unroll\") for (int j = 0; j < %u; j++) x[u].e[j] = 0;"
                                 : " else x[u] = 0;",
                             width);
        } else if (width > 1) {
            rp__text_add(e->out, "        _Pragma(\"unroll\") for (int j = 0; j < %u; j++) ", width);
            rp__text_add(e->out, in ? "s%u[(sy + j) * %u + sx] = x[u].e[j];" : "x[u].e[j] = s%u[(sy + j) * %u + sx];",
                         access, pitch);
        } else {
            rp__text_add(e->out, in ? "        s%u[sy * %u + sx] = x[u];" : "        x[u] = s%u[sy * %u + sx];", access,
                         pitch);
        }
        rp__text_puts(e->out, "\n    }\n");
    }
    rp__text_puts(e->out, "    }\n");
}

static void add_types(const rp__emitter *e) {
    const rp__cuda_class *c = e->c;
    for (unsigned a = 0; a < e->dag->n_accesses; a++) {
        if (!(c->staged_unit >> a & 1)) continue;
        const unsigned dtype = e->dag->accesses[a].dtype, bytes = (unsigned)rp__dtype_bytes((rp_dtype)dtype) * c->stage;
        const char *type = rp__emit_type(dtype);
        rp__text_add(e->out,
                     "#ifndef RP_TILE_%s_%u\n#define RP_TILE_%s_%u\ntypedef struct __align__(%u) { %s e[%u]; } "
                     "rp_tile_%s_%u;\n#endif\n",
                     type, c->stage, type, c->stage, bytes > 16 ? 16 : bytes, type, c->stage, type, c->stage);
    }
}

/* The tile of this block: f0 and t0, its first place along the last dim and across, and d<dim> of the others. */
static void add_place(const rp__emitter *e) {
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    const unsigned last = e->n_dims - 1;
    rp__text_add(e->out, "    const %s F = (%s)p.w[%u], T = (%s)p.w[%u];\n", index, index, e->words.extent + last,
                 index, e->words.extent + c->across);
    rp__text_add(e->out,
                 "    rp_u32 place = blockIdx.x;\n    const rp_u32 nf = (rp_u32)((F + %u) / %u), nt = (rp_u32)((T + "
                 "%u) / %u);\n",
                 c->tile - 1u, c->tile, c->down - 1u, c->down);
    rp__text_add(e->out,
                 "    const %s f0 = (%s)(place %% nf) * %u; place /= nf;\n    const %s t0 = (%s)(place %% nt) * %u; "
                 "place /= nt;\n",
                 index, index, c->tile, index, index, c->down);
    for (unsigned d = last; d-- > 0;) {
        if (d == c->across) continue;
        const uint32_t w = e->words.extent + d;
        rp__text_add(e->out, "    const %s d%u = (%s)(place %% (rp_u32)p.w[%u]); place /= (rp_u32)p.w[%u];\n", index, d,
                     index, w, w);
    }
    rp__text_puts(e->out, "    (void)place;\n");
    for (unsigned a = 0; a < e->dag->n_accesses; a++) {
        rp__text_add(e->out, "    const %s q%u = t0 * (%s)p.w[%u] + f0 * (%s)p.w[%u]", index, a, index,
                     rp__emit_stride_word(e, a, c->across), index, rp__emit_stride_word(e, a, last));
        for (unsigned d = 0; d < last; d++)
            if (d != c->across) rp__text_add(e->out, " + d%u * (%s)p.w[%u]", d, index, rp__emit_stride_word(e, a, d));
        rp__text_puts(e->out, ";\n");
    }
}

void rp__emit_tile(const rp__emitter *e, const char *name) {
    const rp__dag *d = e->dag;
    const rp__cuda_class *c = e->c;
    const char *index = rp__emit_index_type(e);
    const unsigned vector = c->vector, along = c->tile / vector, last = e->n_dims - 1;
    rp__emit_vector_types(e, vector);
    add_types(e);
    rp__emit_signature(e, name, rp__cuda_word_count(d, c, 0), RP__CUDA_BLOCK);
    for (unsigned a = 0; a < d->n_accesses; a++)
        if (c->staged >> a & 1)
            rp__text_add(e->out, "    __shared__ %s s%u[%u];\n", rp__emit_type(d->accesses[a].dtype), a,
                         c->down * pitch_of(e, a));
    rp__emit_start(e, false);
    add_place(e);
    rp__emit_row_nodes(e, 0);
    for (unsigned a = 0; a < d->n_accesses; a++)
        if (is_staged(e, a, RP__ACCESS_READ)) add_moved(e, a, true);
    rp__text_puts(e->out, "    rp_barrier();\n");
    rp__text_add(e->out, "    %sfor (int u = 0; u < %u; u++) {\n", d->n_nodes <= 32 ? "_Pragma(\"unroll 4\") " : "",
                 c->down * along / RP__CUDA_BLOCK);
    rp__text_add(e->out,
                 "    const int n = u * %d + (int)threadIdx.x, sx = n %% %u * %u, sy = n / %u;\n"
                 "    const %s d%u = f0 + sx, d%u = t0 + sy; const int ok = d%u < F && d%u < T;\n",
                 RP__CUDA_BLOCK, along, vector, along, index, last, c->across, last, c->across);
    for (unsigned a = 0; a < d->n_accesses; a++)
        rp__text_add(e->out, "    const %s o%u = q%u + sy * (%s)p.w[%u] + sx * (%s)p.w[%u]; (void)o%u;\n", index, a, a,
                     index, rp__emit_stride_word(e, a, c->across), index, rp__emit_stride_word(e, a, last), a);
    for (unsigned k = 0; k < d->n_nodes && vector > 1; k++)
        if (e->level[k] == RP__LEVEL_ELEMENT && d->nodes[k].a == RP__NO_VAL && rp__emit_in_vectors(e, &d->nodes[k]))
            rp__emit_vector_load(e, k, vector, "", "ok");
    rp__emit_point_body(e, "ok", false);
    rp__text_puts(e->out, "    }\n");
    bool stores = false;
    for (unsigned a = 0; a < d->n_accesses; a++) stores = stores || is_staged(e, a, RP__ACCESS_WRITE);
    if (stores) rp__text_puts(e->out, "    rp_barrier();\n");
    for (unsigned a = 0; a < d->n_accesses; a++)
        if (is_staged(e, a, RP__ACCESS_WRITE)) add_moved(e, a, false);
    rp__text_puts(e->out, "}\n");
}

void rp__emit_staged(const rp__emitter *e, unsigned access) {
    rp__text_add(e->out, "s%u[sy * %u + sx + j]", access, pitch_of(e, access));
}
