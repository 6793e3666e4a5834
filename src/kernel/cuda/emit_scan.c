/* Scans in CUDA C (emit_parts.h): the threads of a row, a power of two of them, walk it in tiles of 4 elements a thread, one tile after the
 * other; a block has one row of 256 threads or several of fewer. Rows side by side in memory are side by side in a block, and their
 * threads, which no warp has then, meet in shared memory. The order of combining is a function of the element's place alone: its thread's elements before it, from left to right; the lanes of its
 * warp before its own, by doubling distances; the warps of its chunk before its own, from left to right; and, before all of these, the
 * chunks before its own, from left to right. Few long rows are two launches: a block a chunk leaves the chunk's total, and a block a
 * chunk combines those before it and scans. Scans of scans are stages: what a stage's nodes need is ready when it begins. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

enum { TOTALS = 256 /* of chunks before, in shared memory at once */ };

unsigned rp__emit_scan_threads(const rp__emitter *e) {
    return e->c->template_ == RP__CUDA_SCAN ? e->c->threads : RP__CUDA_BLOCK;
}

/* Rows side by side: `rows` of them, or 0. */
static unsigned rows_across(const rp__emitter *e) {
    return e->c->template_ == RP__CUDA_SCAN && e->c->across ? e->c->tile : 0;
}

/* Threads of a row whose values go to each other one by one, at most 32: a "warp" of the order, whoever they are. */
static unsigned lanes_of(const rp__emitter *e) { return rp__emit_scan_threads(e) < 32 ? rp__emit_scan_threads(e) : 32; }

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
    const unsigned across = rows_across(e), threads = rp__emit_scan_threads(e);
    const unsigned rows = e->c->template_ == RP__CUDA_SCAN ? e->c->tile : 1;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const char *type = rp__emit_type(e->dag->nodes[k].dtype);
        if (e->dag->nodes[k].op != RP__SCAN) continue;
        if (across)
            rp__text_add(e->out, "    __shared__ %s g%u[2][%u][%u];\n", type, k, threads, across);
        else if (threads > 32)
            rp__text_add(e->out, "    __shared__ %s g%u[2][%u];\n", type, k, rows * threads / 32);
        if (e->c->template_ == RP__CUDA_SCAN_PARTS)
            rp__text_add(e->out, "    __shared__ %s z%u[%u];\n", type, k, TOTALS);
    }
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
    const unsigned lanes = lanes_of(e), warps = rp__emit_scan_threads(e) / lanes;
    char total[64]; /* of warp m of the row */
    rp__text_add(e->out, "    { %s run = v%u[3], sum = q%u; int any = u != 0;\n", type, k, k);
    if (rows_across(e)) {
        unsigned steps = 0, step = 0;
        while (1u << steps < lanes) steps++;
        for (unsigned m = 1; m <= lanes;
             m *= 2, step++) { /* what the last step leaves is everybody's total up to there */
            rp__text_add(e->out, "    g%u[(u * %u + %u) & 1][t][tx] = run; rp_barrier();\n", k, steps + 1, step);
            if (m == lanes) break;
            rp__text_add(e->out, "    if ((t & %u) >= %u) { const %s x = g%u[(u * %u + %u) & 1][t - %u][tx]; ",
                         lanes - 1, m, type, k, steps + 1, step, m);
            add_joined(e, n, "run", NULL, "x", "run");
            rp__text_puts(e->out, "}\n");
        }
        rp__text_add(e->out,
                     "    const int b%u = (u * %u + %u) & 1; const %s left = t > 0 ? g%u[b%u][t - 1][tx] : run;\n", k,
                     steps + 1, steps, type, k, k);
        (void)snprintf(total, sizeof total, "g%u[b%u][m * %u + %u][tx]", k, k, lanes, lanes - 1);
    } else {
        rp__text_add(
            e->out,
            "    _Pragma(\"unroll\") for (int m = 1; m < %u; m *= 2) { const %s x = (%s)rp_shfl_up_%s(run, m, %u); "
            "if ((t & %u) >= m) ",
            lanes, type, type, shuffle, lanes, lanes - 1);
        add_joined(e, n, "run", NULL, "x", "run");
        rp__text_add(e->out, "}\n    const %s left = (%s)rp_shfl_up_%s(run, 1, %u);\n", type, type, shuffle, lanes);
        if (warps > 1)
            rp__text_add(e->out, "    if ((t & 31) == 31) g%u[u & 1][threadIdx.x / 32] = run;\n    rp_barrier();\n", k);
        (void)snprintf(total, sizeof total, "g%u[u & 1][((int)threadIdx.x - t) / 32 + m]", k);
    }
    if (warps > 1) {
        rp__text_add(e->out, "    for (int m = 0; m < t / 32; m++) { const %s x = %s; ", type, total);
        add_joined(e, n, "sum", "any", "sum", "x");
        rp__text_puts(e->out, "any = 1; }\n");
    }
    rp__text_add(e->out, "    if ((t & %u) > 0) { ", lanes - 1);
    add_joined(e, n, "sum", "any", "sum", "left");
    rp__text_puts(e->out, "any = 1; }\n    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) { ");
    add_joined(e, n, own, "any", "sum", own);
    (void)snprintf(before, sizeof before, "Q%u", k);
    add_joined(e, n, own, "chunk > 0", before, own);
    rp__text_puts(e->out, "}\n");
    if (!e->c->full) {
        char carry[24];
        (void)snprintf(carry, sizeof carry, "q%u", k);
        rp__text_add(e->out, "    any = u != 0; for (int m = 0; m < %u; m++) { const %s x = %s; ", warps, type, total);
        add_joined(e, n, carry, "any", carry, "x");
        rp__text_puts(e->out, "any = 1; }\n");
    }
    rp__text_puts(e->out, "    }\n");
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
        /* all threads fetch them, one warp adds them up: one after the other from memory, each would wait for its own */
        rp__text_add(e->out,
                     "    for (rp_i64 from = 0; from < (rp_i64)chunk_; from += %u) {\n    rp_barrier();\n"
                     "    if (from + t < (rp_i64)chunk_) z%u[t] = ",
                     TOTALS, k);
        rp__emit_partial(e, k, which++, "(from + t)", "0");
        rp__text_add(e->out,
                     ";\n    rp_barrier();\n    const int left = chunk_ - from < %u ? (int)(chunk_ - from) : %u;\n"
                     "    _Pragma(\"unroll 8\") for (int m = 0; t < 32 && m < left; m++) { const %s x = z%u[m]; ",
                     TOTALS, TOTALS, rp__emit_type(e->dag->nodes[k].dtype), k);
        add_joined(e, &e->dag->nodes[k], before, "from + m > 0", before, "x");
        rp__text_add(
            e->out,
            "}\n    }\n    rp_barrier();\n    if (t == 0) z%u[0] = Q%u;\n    rp_barrier();\n    Q%u = z%u[0];\n", k, k,
            k, k);
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
