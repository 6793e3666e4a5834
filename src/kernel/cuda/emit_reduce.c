/* Reductions in CUDA C (emit_parts.h): identities, the lanes of a thread, the tree over the threads of a row, the fold over
 * chunks. The order that they add up to is the one in emit.h; nothing here may depend on anything but the size. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

static void add_identity(const rp__emitter *e, const rp__node *n) {
    switch ((rp__reduce_kind)n->imm.i) {
    case RP__REDUCE_SUM:
    case RP__REDUCE_ANY: rp__text_puts(e->out, "0"); break;
    case RP__REDUCE_PROD:
    case RP__REDUCE_ALL: rp__text_puts(e->out, "1"); break;
    default: {
        bool max = n->imm.i == RP__REDUCE_MAX;
        switch ((rp_dtype)n->dtype) {
        case RP_F32: rp__text_add(e->out, "rp_bits_f32(0x%sf800000u)", max ? "f" : "7"); break;
        case RP_F64: rp__text_add(e->out, "rp_bits_f64(0x%sff0000000000000ull)", max ? "f" : "7"); break;
        case RP_I32: rp__text_puts(e->out, max ? "(-2147483647 - 1)" : "2147483647"); break;
        case RP_I64: rp__text_puts(e->out, max ? "(-9223372036854775807ll - 1ll)" : "9223372036854775807ll"); break;
        case RP_U8: rp__text_puts(e->out, max ? "0" : "255"); break;
        default: rp__text_puts(e->out, max ? "0" : "1"); break;
        }
    }
    }
}

void rp__emit_combine(const rp__emitter *e, const rp__node *n, const char *a, const char *b) {
    bool real = n->dtype == RP_F32 || n->dtype == RP_F64;
    const char *type = rp__emit_type(n->dtype);
    static const rp__reduce_kind of_scan[] = {RP__REDUCE_SUM, RP__REDUCE_PROD, RP__REDUCE_MAX, RP__REDUCE_MIN};
    if (n->op == RP__SCAN && n->imm.i == RP__SCAN_LOGADDEXP) {
        rp__text_add(e->out, "rp_logaddexp_%s(%s, %s)", rp__emit_suffix(n->dtype), a, b);
        return;
    }
    const rp__reduce_kind kind = n->op == RP__SCAN ? of_scan[n->imm.i] : (rp__reduce_kind)n->imm.i;
    switch (kind) {
    case RP__REDUCE_SUM: rp__text_add(e->out, "(%s)(%s + %s)", type, a, b); break;
    case RP__REDUCE_PROD: rp__text_add(e->out, "(%s)(%s * %s)", type, a, b); break;
    case RP__REDUCE_ANY: rp__text_add(e->out, "(%s)((%s != 0) | (%s != 0))", type, a, b); break;
    case RP__REDUCE_ALL: rp__text_add(e->out, "(%s)((%s != 0) & (%s != 0))", type, a, b); break;
    default: {
        const char *name = kind == RP__REDUCE_MAX ? "max" : "min";
        if (real)
            rp__text_add(e->out, "rp_%s_%s(%s, %s)", name, rp__emit_suffix(n->dtype), a, b);
        else
            rp__text_add(e->out, "(%s %s %s ? %s : %s)", a, kind == RP__REDUCE_MAX ? ">" : "<", b, a, b);
    }
    }
}

/* What goes from thread to thread: bytes as words. */
static const rp__dtype_info *exchanged(unsigned dtype) {
    return &rp__dtypes[rp__dtype_bytes((rp_dtype)dtype) < 4 ? RP_I32 : dtype];
}
const char *rp__emit_shuffle(unsigned dtype) { return exchanged(dtype)->short_name; }

static void add_halving(const rp__emitter *e, const rp__node *n, const char *name, unsigned count, unsigned least) {
    char a[48], b[48];
    (void)snprintf(a, sizeof a, "%s[m]", name);
    for (unsigned half = count / 2; half >= least; half /= 2) {
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) %s = ", half, a);
        (void)snprintf(b, sizeof b, "%s[m + %u]", name, half);
        rp__emit_combine(e, n, a, b);
        rp__text_puts(e->out, ";\n");
    }
}

void rp__emit_halving(const rp__emitter *e, unsigned node, const char *name, unsigned count) {
    add_halving(e, &e->dag->nodes[node], name, count, 1);
}

/* s<k> and what the lane of a warp `mask` further has of it */
static void add_shuffle(const rp__emitter *e, unsigned k, unsigned mask) {
    const rp__node *n = &e->dag->nodes[k];
    const char *type = rp__emit_type(n->dtype);
    char a[48];
    (void)snprintf(a, sizeof a, "s%u", k);
    rp__text_add(e->out, "    { const %s other = (%s)rp_shfl_xor_%s(s%u, %u, 32); s%u = ", type, type,
                 rp__emit_shuffle(n->dtype), k, mask, k);
    rp__emit_combine(e, n, a, "other");
    rp__text_puts(e->out, "; }\n");
}

/* s<k> over `width` neighbouring lanes of a warp */
static void add_shuffles(const rp__emitter *e, unsigned k, unsigned width) {
    for (unsigned mask = width / 2; mask > 0; mask /= 2) add_shuffle(e, k, mask);
}

/* g<k>: the groups of four of a thread, those of the same place in the tree's upper levels combined */
static void add_groups(const rp__emitter *e, unsigned k, const rp__row_shape *shape) {
    const rp__node *n = &e->dag->nodes[k];
    const char *type = rp__emit_type(n->dtype);
    unsigned fours = shape->span / 4, groups = shape->strips * fours;
    char a[48], b[48], g[24];
    rp__text_add(e->out,
                 "    %s s%u, g%u[%u];\n    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) { const %s lo = ", type, k,
                 k, groups, groups, type);
    (void)snprintf(a, sizeof a, "c%u[m * 4]", k);
    (void)snprintf(b, sizeof b, "c%u[m * 4 + 2]", k);
    rp__emit_combine(e, n, a, b);
    rp__text_puts(e->out, ", hi = ");
    (void)snprintf(a, sizeof a, "c%u[m * 4 + 1]", k);
    (void)snprintf(b, sizeof b, "c%u[m * 4 + 3]", k);
    rp__emit_combine(e, n, a, b);
    rp__text_add(e->out, "; g%u[m] = ", k);
    rp__emit_combine(e, n, "lo", "hi");
    rp__text_puts(e->out, "; }\n");
    (void)snprintf(g, sizeof g, "g%u", k);
    add_halving(e, n, g, groups, fours);
}

/* g<k>[j]: the group of four of strip j that this thread and its neighbours hold. */
static void add_strided_groups(const rp__emitter *e, unsigned k) {
    const rp__node *n = &e->dag->nodes[k];
    const char *type = rp__emit_type(n->dtype);
    rp__text_add(e->out, "    %s s%u, g%u[%u];\n", type, k, k, e->c->span);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) { %s y = c%u[m];\n", e->c->span, type,
                 k);
    for (unsigned mask = 2; mask > 0; mask /= 2) {
        rp__text_add(e->out, "    { const %s other = (%s)rp_shfl_xor_%s(y, %u, 32); y = ", type, type,
                     rp__emit_shuffle(n->dtype), mask);
        rp__emit_combine(e, n, "y", "other");
        rp__text_puts(e->out, "; }\n");
    }
    rp__text_add(e->out, "    g%u[m] = y; }\n", k);
}

/* s<k> of a row that one warp has with its elements 32 apart: c<k>[j] of four neighbours are the group j * 8 + t / 4. They exchange halves, so
 * that each has one group in the end, and the tree follows: over j, which is t % 4 then, and over t / 4. */
static void add_strided_warp(const rp__emitter *e, unsigned k) {
    const rp__node *n = &e->dag->nodes[k];
    const char *type = rp__emit_type(n->dtype), *shuffle = rp__emit_shuffle(n->dtype);
    rp__text_add(
        e->out,
        "    %s s%u; { %s y[2];\n    _Pragma(\"unroll\") for (int m = 0; m < 2; m++) {\n"
        "        const %s other = (%s)rp_shfl_xor_%s(t & 2 ? c%u[m] : c%u[m + 2], 2, 32), own = t & 2 ? c%u[m + "
        "2] : c%u[m];\n        y[m] = ",
        type, k, type, type, type, shuffle, k, k, k, k);
    rp__emit_combine(e, n, "own", "other");
    rp__text_add(e->out,
                 "; }\n    const %s other = (%s)rp_shfl_xor_%s(t & 1 ? y[0] : y[1], 1, 32), own = t & 1 ? y[1] : "
                 "y[0];\n    s%u = ",
                 type, type, shuffle, k);
    rp__emit_combine(e, n, "own", "other");
    rp__text_puts(e->out, "; }\n");
    add_shuffle(e, k, 2);
    add_shuffle(e, k, 1);
    for (unsigned mask = 16; mask > 2; mask /= 2) add_shuffle(e, k, mask);
}

/* One warp folds what the threads of the row left in shared memory, so that the others issue nothing for it; each reduction of
 * a kernel has another warp. `fours` values of g<k> a thread. */
static void add_block_trees(const rp__emitter *e, unsigned phase, unsigned threads, unsigned groups, const char *turn,
                            bool strided) {
    const unsigned fours = groups / threads, span = groups * 4 / threads;
    unsigned warps = threads / 32, nth = 0;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        for (unsigned m = 0; strided && m < span; m++) /* four threads have `span` groups together: one each */
            rp__text_add(e->out, "    if ((t & 3) == %u) h%u%s[%u + t / 4] = g%u[%u];\n", m, k, turn, m * threads / 4,
                         k, m);
        for (unsigned m = 0; !strided && m < fours; m++)
            rp__text_add(e->out, "    h%u%s[t * %u + %u] = g%u[%u];\n", k, turn, fours, m, k, m);
    }
    rp__text_puts(e->out, "    rp_barrier();\n");
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (n->op != RP__REDUCE) continue;
        nth++;
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        rp__text_add(e->out, "    if (t / 32 == %u) { %s q[%u];\n", nth % warps, rp__emit_type(n->dtype), groups / 32);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) q[m] = h%u%s[m * 32 + (t & 31)];\n",
                     groups / 32, k, turn);
        add_halving(e, n, "q", groups / 32, 1);
        rp__text_add(e->out, "    s%u = q[0];\n", k);
        add_shuffles(e, k, 32);
        rp__text_add(e->out, "    if ((t & 31) == 0) h%u%s[%u] = s%u; }\n", k, turn, groups, k);
    }
    rp__text_puts(e->out, "    rp_barrier();\n");
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) rp__text_add(e->out, "    s%u = h%u%s[%u];\n", k, k, turn, groups);
}

void rp__emit_trees(const rp__emitter *e, unsigned phase, const rp__row_shape *shape, const char *turn) {
    unsigned groups = shape->threads * shape->span / 4;
    bool any = false;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        if (e->c->strided && groups == 32) {
            add_strided_warp(e, k);
            continue;
        }
        if (e->c->strided)
            add_strided_groups(e, k);
        else
            add_groups(e, k, shape);
        any = true;
        if (groups > 32) continue;
        rp__text_add(e->out, "    s%u = g%u[0];\n", k, k);
        add_shuffles(e, k, groups);
    }
    if (any && groups > 32) add_block_trees(e, phase, shape->threads, groups, turn, e->c->strided);
}

bool rp__emit_reduces_in(const rp__emitter *e, unsigned k, unsigned phase) {
    return e->dag->nodes[k].op == RP__REDUCE && e->dag->nodes[k].phase == phase + 1u;
}

void rp__emit_shared(const rp__emitter *e, const char *extents) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->dag->nodes[k].op == RP__REDUCE)
            rp__text_add(e->out, "    __shared__ %s h%u%s;\n", rp__emit_type(e->dag->nodes[k].dtype), k, extents);
}

void rp__emit_accumulators(const rp__emitter *e, unsigned phase, unsigned lanes) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            rp__text_add(e->out, "    %s c%u[%u]; _Pragma(\"unroll\") for (int m = 0; m < %u; m++) c%u[m] = ",
                         rp__emit_type(e->dag->nodes[k].dtype), k, lanes, lanes, k);
            add_identity(e, &e->dag->nodes[k]);
            rp__text_puts(e->out, ";\n");
        }
}

void rp__emit_accumulation(const rp__emitter *e, unsigned phase, const char *lane, const char *guard) {
    char t[64], c[64];
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            const rp__node *n = &e->dag->nodes[k];
            (void)snprintf(c, sizeof c, "c%u[%s]", k, lane);
            rp__text_puts(e->out, "        ");
            if (guard) rp__text_add(e->out, "if (%s) ", guard);
            rp__text_add(e->out, "%s = ", c);
            rp__emit_combine(e, n, c, rp__emit_value(e, n->a, t));
            rp__text_puts(e->out, ";\n");
        }
}

void rp__emit_fold_start(const rp__emitter *e, unsigned phase) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            const char *type = rp__emit_type(e->dag->nodes[k].dtype);
            rp__text_add(e->out, "    %s r%u, f%u = ", type, k, k);
            add_identity(e, &e->dag->nodes[k]);
            rp__text_puts(e->out, ";\n");
        }
}

void rp__emit_fold_identity(const rp__emitter *e, unsigned node) {
    rp__text_add(e->out, "    %s f%u = ", rp__emit_type(e->dag->nodes[node].dtype), node);
    add_identity(e, &e->dag->nodes[node]);
    rp__text_puts(e->out, ";\n");
}

void rp__emit_fold_step(const rp__emitter *e, unsigned k, const char *x) {
    char f[24];
    (void)snprintf(f, sizeof f, "f%u", k);
    rp__text_add(e->out, "%s = ", f);
    rp__emit_combine(e, &e->dag->nodes[k], f, x);
    rp__text_puts(e->out, ";\n");
}

void rp__emit_fold(const rp__emitter *e, unsigned phase) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            char s[24];
            (void)snprintf(s, sizeof s, "s%u", k);
            rp__text_add(e->out, "    if (t == (int)(chunk / %u %% %u)) ", RP__CUDA_CHUNK, RP__CUDA_FOLD);
            rp__emit_fold_step(e, k, s);
        }
}

void rp__emit_fold_lanes(const rp__emitter *e, unsigned phase, unsigned lanes, const char *turn) {
    bool any = false;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        const char *type = rp__emit_type(e->dag->nodes[k].dtype);
        any = true;
        if (lanes > 32)
            rp__text_add(e->out, "    %s s%u; const %s g%u[1] = {f%u};\n", type, k, type, k, k);
        else
            rp__text_add(e->out, "    %s s%u = f%u;\n", type, k, k);
        if (lanes <= 32) add_shuffles(e, k, lanes);
    }
    if (any && lanes > 32) add_block_trees(e, phase, lanes, lanes, turn, false);
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) rp__text_add(e->out, "    r%u = s%u;\n", k, k);
}

void rp__emit_fold_end(const rp__emitter *e, unsigned phase, const char *turn) {
    rp__text_puts(e->out, "    {\n");
    rp__emit_fold_lanes(e, phase, RP__CUDA_FOLD, turn);
    rp__text_puts(e->out, "    }\n");
}

void rp__emit_cluster_shared(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->dag->nodes[k].op == RP__REDUCE)
            rp__text_add(e->out, "    __shared__ %s z%u;\n", exchanged(e->dag->nodes[k].dtype)->cuda, k);
}

/* Eight threads after the other have the fold lanes, so that no block waits for itself again. */
void rp__emit_cluster_fold(const rp__emitter *e, unsigned phase) {
    const unsigned blocks = e->c->down;
    bool any = false;
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (rp__emit_reduces_in(e, k, phase)) {
            any = true;
            rp__text_add(e->out, "    if (t == 0) z%u = s%u;\n", k, k);
        }
    if (!any) return;
    rp__text_add(e->out, "    rp_cluster_barrier(%u);\n", blocks);
    rp__emit_fold_start(e, phase);
    rp__text_puts(e->out, "    {\n");
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!rp__emit_reduces_in(e, k, phase)) continue;
        const unsigned dtype = e->dag->nodes[k].dtype;
        char x[96];
        (void)snprintf(x, sizeof x, "(%s)rp_cluster_read_%s(&z%u, t %% %d, %u)", rp__emit_type(dtype),
                       rp__emit_shuffle(dtype), k, RP__CUDA_MOST_BLOCKS, blocks);
        rp__text_add(e->out, "    if (t %% %d < %u) { const %s x = %s; ", RP__CUDA_MOST_BLOCKS, blocks,
                     rp__emit_type(dtype), x);
        rp__emit_fold_step(e, k, "x");
        rp__text_puts(e->out, "    }\n");
    }
    rp__emit_fold_lanes(e, phase, RP__CUDA_MOST_BLOCKS, "");
    rp__text_puts(e->out, "    }\n");
}
