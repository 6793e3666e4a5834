/* Scans in CUDA C (emit_parts.h): a block walks a row in tiles of 4 elements a thread, one tile after the other. The order of
 * combining is a function of the element's place alone: its thread's elements before it, from left to right; the lanes of its
 * warp before its own, by doubling distances; the warps of its chunk before its own, from left to right; and, before all of these, the
 * chunks before its own, from left to right. Few long rows are two launches: a block a chunk leaves the chunk's total, and a block a
 * chunk combines those before it and scans. Scans of scans are stages: what a stage's nodes need is ready when it begins. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

enum { WARPS = RP__CUDA_BLOCK / 32 };

static bool is_scan(const rp__emitter *e, unsigned k) { return e->dag->nodes[k].op == RP__SCAN && e->needed[k]; }

void rp__emit_find_stages(rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        const rp__val operands[3] = {n->a, n->b, n->c};
        e->stage[k] = 0;
        for (int i = 0; i < 3 && e->level[k] == RP__LEVEL_ELEMENT; i++)
            if (operands[i] != RP__NO_VAL && e->stage[operands[i]] > e->stage[k]) e->stage[k] = e->stage[operands[i]];
        e->stage[k] += n->op == RP__SCAN;
    }
}

/* What a scan combines by that is no operator: log(exp(a) + exp(b)). */
void rp__emit_scan_functions(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (n->op != RP__SCAN || n->imm.i != RP__SCAN_LOGADDEXP) continue;
        const char *f = rp__emit_suffix(n->dtype), *type = rp__emit_type(n->dtype);
        rp__text_add(
            e->out,
            "#ifndef RP_LOGADDEXP_%s\n#define RP_LOGADDEXP_%s\n"
            "RP_FN %s rp_logaddexp_%s(%s a, %s b) {\n"
            "    const %s high = rp_max_%s(a, b), low = rp_min_%s(a, b);\n"
            "    return a == b ? high + (%s)0.6931471805599453 : high + rp_log1p_%s(rp_exp_%s(low - high));\n}\n"
            "#endif\n",
            f, f, type, f, type, type, type, f, f, type, f, f);
    }
}

void rp__emit_scan_shared(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->dag->nodes[k].op == RP__SCAN)
            rp__text_add(e->out, "    __shared__ %s g%u[2][%u];\n", rp__emit_type(e->dag->nodes[k].dtype), k, WARPS);
}

void rp__emit_scan_carries(const rp__emitter *e, char name) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_scan(e, k)) rp__text_add(e->out, "    %s %c%u = 0;\n", rp__emit_type(e->dag->nodes[k].dtype), name, k);
}

/* `to` = `left` combined with `right`; without a left part (`any` false) right alone. */
static void add_joined(const rp__emitter *e, const rp__node *n, const char *to, const char *any, const char *left,
                       const char *right) {
    rp__text_add(e->out, "%s = ", to);
    if (any) rp__text_add(e->out, "!(%s) ? %s : ", any, right);
    rp__emit_combine(e, n, left, right);
    rp__text_puts(e->out, "; ");
}

/* v<k> of the tile, from its operand's four elements of each thread. */
static void add_scan(const rp__emitter *e, unsigned k) {
    const rp__node *n = &e->dag->nodes[k];
    const char *type = rp__emit_type(n->dtype), *shuffle = rp__emit_shuffle(n->dtype);
    char own[24], before[24], value[64];
    (void)snprintf(own, sizeof own, "v%u[j]", k);
    (void)snprintf(before, sizeof before, "v%u[j - 1]", k);
    rp__text_puts(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) { ");
    if (rp__emit_in_vectors(e, &e->dag->nodes[n->a])) {
        rp__text_add(e->out, "const %s v%u = ", rp__emit_type(e->dag->nodes[n->a].dtype), n->a);
        rp__emit_loaded(e, n->a, "j");
        rp__text_puts(e->out, "; ");
    }
    add_joined(e, n, own, "j", before, rp__emit_value(e, n->a, value));
    rp__text_puts(e->out, "}\n");
    rp__text_add(e->out, "    { %s run = v%u[3], sum = q%u; int any = u != 0;\n", type, k, k);
    rp__text_add(
        e->out,
        "    _Pragma(\"unroll\") for (int m = 1; m < 32; m *= 2) { const %s x = (%s)rp_shfl_up_%s(run, m, 32); "
        "if ((t & 31) >= m) ",
        type, type, shuffle);
    add_joined(e, n, "run", NULL, "x", "run");
    rp__text_add(e->out, "}\n    const %s left = (%s)rp_shfl_up_%s(run, 1, 32);\n", type, type, shuffle);
    rp__text_add(e->out, "    if ((t & 31) == 31) g%u[u & 1][t / 32] = run;\n    rp_barrier();\n", k);
    rp__text_add(e->out, "    for (int m = 0; m < t / 32; m++) { const %s x = g%u[u & 1][m]; ", type, k);
    add_joined(e, n, "sum", "any", "sum", "x");
    rp__text_puts(e->out, "any = 1; }\n    if ((t & 31) > 0) { ");
    add_joined(e, n, "sum", "any", "sum", "left");
    rp__text_puts(e->out, "any = 1; }\n    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) { ");
    add_joined(e, n, own, "any", "sum", own);
    (void)snprintf(before, sizeof before, "Q%u", k);
    add_joined(e, n, own, "chunk > 0", before, own);
    rp__text_add(e->out, "}\n    any = u != 0; for (int m = 0; m < %u; m++) { const %s x = g%u[u & 1][m]; ", WARPS,
                 type, k);
    char carry[24];
    (void)snprintf(carry, sizeof carry, "q%u", k);
    add_joined(e, n, carry, "any", carry, "x");
    rp__text_puts(e->out, "any = 1; } }\n");
}

void rp__emit_scan_chunk_end(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_scan(e, k)) {
            char before[24], own[24];
            (void)snprintf(before, sizeof before, "Q%u", k);
            (void)snprintf(own, sizeof own, "q%u", k);
            rp__text_puts(e->out, "    ");
            add_joined(e, &e->dag->nodes[k], before, "chunk > 0", before, own);
            rp__text_puts(e->out, "\n");
        }
}

void rp__emit_scan_before(const rp__emitter *e) {
    unsigned which = 0;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!is_scan(e, k)) continue;
        char before[24];
        (void)snprintf(before, sizeof before, "Q%u", k);
        rp__text_add(e->out, "    _Pragma(\"unroll 8\") for (rp_i64 c = 0; c < (rp_i64)chunk_; c++) { const %s x = ",
                     rp__emit_type(e->dag->nodes[k].dtype));
        rp__emit_partial(e, k, which++, "c", "0");
        rp__text_puts(e->out, "; ");
        add_joined(e, &e->dag->nodes[k], before, "c > 0", before, "x");
        rp__text_puts(e->out, "}\n");
    }
}

void rp__emit_scan_totals(const rp__emitter *e) {
    unsigned which = 0;
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (is_scan(e, k)) {
            rp__text_puts(e->out, "    if (t == 0) ");
            rp__emit_partial(e, k, which++, "chunk_", "0");
            rp__text_add(e->out, " = q%u;\n", k);
        }
}

void rp__emit_scan_tile(const rp__emitter *e, const char *element) {
    const rp__dag *d = e->dag;
    unsigned stages = 0;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (!e->needed[k] || e->level[k] != RP__LEVEL_ELEMENT) continue;
        const unsigned stage = e->stage[k];
        stages = stage > stages ? stage : stages;
        if (e->array[k]) rp__text_add(e->out, "    %s v%u[4];\n", rp__emit_type(d->nodes[k].dtype), k);
    }
    for (unsigned stage = 0; stage <= stages; stage++) {
        for (unsigned k = 0; k < d->n_nodes && stage > 0; k++)
            if (is_scan(e, k) && e->stage[k] == stage) add_scan(e, k);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) {\n%s", element);
        rp__emit_inner_indices(e);
        rp__emit_scan_vectors(e);
        for (unsigned k = 0; k < d->n_nodes; k++)
            if (e->needed[k] && e->array[k] && d->nodes[k].op != RP__SCAN && e->stage[k] == stage)
                rp__emit_node(e, (rp__val)k, "in");
        rp__text_puts(e->out, "    }\n");
    }
}

/* Elements of whole vectors are taken out in every loop over them. */
void rp__emit_scan_vectors(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        if (e->needed[k] && e->level[k] == RP__LEVEL_ELEMENT && rp__emit_in_vectors(e, &e->dag->nodes[k]))
            rp__emit_node(e, (rp__val)k, "in");
}
