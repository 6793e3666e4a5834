/* Rows of the CUDA C emitter that begin or end within a vector (emit_parts.h): memory is read where it is aligned, and what the order of
 * emit.h calls lane p of a row is lane p + shift of the threads, for this row, until the lanes are exchanged. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

static bool begins_within(const rp__emitter *e) { return e->c->ragged == 2; }

void rp__emit_ragged_shared(const rp__emitter *e, unsigned lanes) {
    unsigned widest = 0;
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->dag->nodes[k].op == RP__REDUCE) {
            const unsigned bytes = (unsigned)rp__dtype_bytes((rp_dtype)e->dag->nodes[k].dtype);
            widest = bytes > widest ? bytes : widest;
        }
    if (begins_within(e) && widest)
        rp__text_add(e->out, "    __shared__ %s lanes_[%u];\n", widest > 4 ? "rp_u64" : "rp_u32", lanes);
}

void rp__emit_ragged_start(const rp__emitter *e, unsigned span) {
    for (unsigned a = 0; a < e->dag->n_accesses && begins_within(e); a++) {
        if (!(e->c->unit >> a & 1) || e->dag->accesses[a].kind == RP__ACCESS_IOTA) continue;
        rp__text_add(e->out, "    const int shift = (int)((rp_u64)(a%u + o%u) / %u %% %u);\n", a, a,
                     (unsigned)rp__dtype_bytes((rp_dtype)e->dag->accesses[a].dtype), span);
        return;
    }
    rp__text_puts(e->out, "    const int shift = 0;\n");
}

void rp__emit_ragged_vector(const rp__emitter *e, const char *at, const char *sure, unsigned span) {
    if (e->filled)
        rp__text_add(e->out, "    const int f = %s - shift, whole = u > 0 || f >= 0; (void)whole;\n", at);
    else
        rp__text_add(e->out, "    const int f = %s - shift, whole = %s || (f >= 0 && f + %u <= len); (void)whole;\n",
                     at, sure, span);
}

static void add_element(const rp__emitter *e, unsigned slots) {
    if (begins_within(e))
        rp__text_add(e->out, "        const int q = u == 0 && f + j < 0 ? f + j + %u : f + j; (void)q;\n", slots);
    else
        rp__text_puts(e->out, "        const int q = f + j; (void)q;\n");
}

void rp__emit_ragged_element(const rp__emitter *e, unsigned slots, const char *first) {
    const char *index = rp__emit_index_type(e);
    add_element(e, slots);
    rp__text_add(e->out, "        const %s i = %s(%s)q; (void)i;\n        const int in = %s; (void)in;\n", index, first,
                 index, e->filled ? "1" : "whole || q < len");
}

void rp__emit_ragged_load(const rp__emitter *e, unsigned node, const char *to, unsigned span, unsigned slots,
                          const char *first, const char *at) {
    const unsigned access = e->dag->nodes[node].access, dtype = e->dag->accesses[access].dtype;
    const unsigned words = rp__emit_words(dtype, span);
    const char *type = rp__emit_word_type(dtype);
    rp__text_add(e->out,
                 "    if (whole) %s = *(const rp_vec_%s_%u *)(%s);\n    else {\n"
                 "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) %s.e[j] = 0;\n"
                 "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n",
                 to, type, words, at, words, to, span);
    add_element(e, slots);
    rp__text_puts(e->out, "        if (q < len) ");
    if (rp__emit_is_half(dtype))
        rp__text_add(e->out, "%s.e[j / 2] |= (rp_u32)a%u[o%u + %sq] << j %% 2 * 16;\n", to, access, access, first);
    else
        rp__text_add(e->out, "%s.e[j] = a%u[o%u + %sq];\n", to, access, access, first);
    rp__text_puts(e->out, "    } }\n");
}

void rp__emit_ragged_store(const rp__emitter *e, const rp__store *s, unsigned number, unsigned span, unsigned slots,
                           const char *first) {
    const unsigned dtype = e->dag->accesses[s->access].dtype;
    rp__text_add(e->out, "    if (live && !whole) _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n", span);
    add_element(e, slots);
    rp__text_add(e->out, "        if (q < len) a%u[o%u + %sq] = ", s->access, s->access, first);
    if (rp__emit_is_half(dtype))
        rp__text_add(e->out, "rp_cvt_f32_to_%s(w%u[j]);\n", rp__dtypes[dtype].short_name, number);
    else
        rp__text_add(e->out, "w%u.e[j];\n", number);
    rp__text_puts(e->out, "    }\n");
}

void rp__emit_ragged_late(const rp__emitter *e, unsigned phase, unsigned span) {
    for (unsigned k = 0; k < e->dag->n_nodes && begins_within(e); k++)
        if (rp__emit_reduces_in(e, k, phase))
            rp__text_add(
                e->out,
                "    %s late%u[%u]; _Pragma(\"unroll\") for (int j = 0; j < %u; j++) late%u[j] = c%u[0]; /* unused ones */\n",
                rp__emit_type(e->dag->nodes[k].dtype), k, span, span, k, k);
}

void rp__emit_ragged_accumulation(const rp__emitter *e, unsigned phase, const char *lane) {
    if (!begins_within(e)) {
        rp__emit_accumulation(e, phase, lane, "in");
        return;
    }
    char t[64];
    rp__text_puts(e->out, "        const int early = u > 0 || f + j >= 0; (void)early;\n");
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase))
            rp__text_add(e->out, "        if (u == 0) late%u[j] = %s;\n", k, rp__emit_value(e, e->dag->nodes[k].a, t));
    rp__emit_accumulation(e, phase, lane, "in && early");
}

void rp__emit_ragged_lanes(const rp__emitter *e, unsigned phase, const rp__row_shape *shape, unsigned slots) {
    const unsigned lanes = shape->threads * shape->strips * shape->span, own = shape->strips * shape->span;
    if (!begins_within(e)) return;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        const char *type = rp__emit_type(n->dtype);
        char c[32], late[32];
        (void)snprintf(c, sizeof c, "c%u[j]", k);
        (void)snprintf(late, sizeof late, "late%u[j]", k);
        rp__text_add(e->out,
                     "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) if (t == 0 && j < shift && %u - shift + j < "
                     "len) %s = ",
                     shape->span - 1, slots, c);
        rp__emit_combine(e, n, c, late);
        rp__text_puts(e->out, ";\n");
        /* neighbours in a warp write and read neighbours */
        for (int write = 1; write >= 0; write--) {
            rp__text_add(e->out,
                         "    rp_barrier();\n    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) {\n        const int "
                         "p = (m / %u * %u + t * %u + m %% %u%s) & %u;\n",
                         own, shape->span, shape->threads * shape->span, shape->span, shape->span,
                         write ? " - shift" : "", lanes - 1);
            rp__text_add(e->out,
                         "        %s *at = (%s *)lanes_ + ((int)threadIdx.x - t) * %u + p %% %u * %u + p / %u;\n", type,
                         type, own, shape->span, lanes / shape->span, shape->span);
            rp__text_add(e->out, write ? "        *at = c%u[m];\n    }\n" : "        c%u[m] = *at;\n    }\n", k);
        }
    }
}
