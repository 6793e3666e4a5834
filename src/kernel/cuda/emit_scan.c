/* Scans in CUDA C (emit_parts.h): the threads of a row, a power of two of them, walk it in tiles of 4 elements a thread, one tile after the
 * other; a block has one row of 256 threads or several of fewer. Rows side by side in memory are side by side in a block, and their
 * threads, which no warp has then, meet in shared memory; short ones are a thread's each. The order of combining is a function of the element's
 * place alone: its thread's elements before it, from left to right; the lanes of its warp before its own, by doubling distances; from left to
 * right the warps of its section before its own, the sections of its chunk, the chunks of its group and the groups. What lies before is combined first, the farthest with
 * what is nearer, and then with the thread's own elements. Few long rows are two launches: a block a chunk, of which each warp has a section, leaves the totals of these and
 * its own, and a block a chunk combines those before it and scans. Scans of scans are stages: what a stage's nodes need is ready when it begins. */
#include "kernel/cuda/emit_parts.h"

#include <stdio.h>

enum {
    GROUP = 32,    /* chunks */
    TOTALS = 256,  /* of groups before, in shared memory at once */
    UNIT = 4 * 32, /* elements of a warp */
    WARP = 32,
    SECTIONS = RP__CUDA_CHUNK / RP__CUDA_SECTION
};

/* A warp has a section to itself. */
static bool has_sections(const rp__emitter *e) {
    return e->c->template_ == RP__CUDA_SCAN_TOTALS || e->c->template_ == RP__CUDA_SCAN_PARTS;
}

unsigned rp__emit_scan_threads(const rp__emitter *e) {
    return e->c->template_ == RP__CUDA_SCAN ? e->c->threads : has_sections(e) ? WARP : RP__CUDA_BLOCK;
}

unsigned rp__emit_scan_own(const rp__emitter *e) {
    return e->c->template_ == RP__CUDA_SCAN && e->c->span ? e->c->span : 4;
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

/* What a scan combines by that is no operator: log(exp(a) + exp(b)), the larger one and log(1 + y), where y is the exponential of what the other is less. Two
 * infinities of one sign differ by nothing. Scans are made of these, so f32 takes a polynomial for log(1 + y) / y, y in [0, 1] (minimax, relative error 3e-8),
 * which knows no other y and has no branch. */
static const char logaddexp_f32[] =
    "#ifndef RP_LOGADDEXP_f32\n#define RP_LOGADDEXP_f32\n"
    "RP_FN float rp_logaddexp_f32(float a, float b) {\n"
    "    const float high = rp_max_f32(a, b), less = rp_fmin_f32(rp_fabs_f32(a - b) * -1.44269504f, 0.0f);\n"
    "    const float y = rp_exp2_approx_f32(less);\n"
    "    float q = 0x1.56ee0ap-8f;\n"
    "    q = rp_fma_f32(q, y, -0x1.e369eep-6f);\n"
    "    q = rp_fma_f32(q, y, 0x1.4069dap-4f);\n"
    "    q = rp_fma_f32(q, y, -0x1.17d2c0p-3f);\n"
    "    q = rp_fma_f32(q, y, 0x1.874a80p-3f);\n"
    "    q = rp_fma_f32(q, y, -0x1.fcc8c6p-3f);\n"
    "    q = rp_fma_f32(q, y, 0x1.553004p-2f);\n"
    "    q = rp_fma_f32(q, y, -0x1.fffeacp-2f);\n"
    "    q = rp_fma_f32(q, y, 0x1.fffffep-1f);\n"
    "    return rp_fma_f32(y, q, high);\n}\n"
    "#endif\n";
static const char logaddexp_f64[] = "#ifndef RP_LOGADDEXP_f64\n#define RP_LOGADDEXP_f64\n"
                                    "RP_FN double rp_logaddexp_f64(double a, double b) {\n"
                                    "    const double less = rp_fmin_f64(-rp_fabs_f64(a - b), 0.0);\n"
                                    "    return rp_max_f64(a, b) + rp_log1p_f64(rp_exp_f64(less));\n}\n"
                                    "#endif\n";

void rp__emit_scan_functions(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const rp__node *n = &e->dag->nodes[k];
        if (n->op != RP__SCAN || n->imm.i != RP__SCAN_LOGADDEXP) continue;
        rp__text_puts(e->out, n->dtype == RP_F64 ? logaddexp_f64 : logaddexp_f32);
    }
}

void rp__emit_scan_shared(const rp__emitter *e) {
    const unsigned across = rows_across(e), threads = rp__emit_scan_threads(e);
    const unsigned rows = e->c->template_ == RP__CUDA_SCAN ? e->c->tile : 1;
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        const char *type = rp__emit_type(e->dag->nodes[k].dtype);
        if (e->dag->nodes[k].op != RP__SCAN) continue;
        if (has_sections(e))
            rp__text_add(e->out, "    __shared__ %s z%u[%u];\n", type, k,
                         e->c->template_ == RP__CUDA_SCAN_PARTS ? TOTALS : SECTIONS);
        else if (across && threads > 1)
            rp__text_add(e->out, "    __shared__ %s g%u[2][%u][%u];\n", type, k, threads, across);
        else if (threads > 32)
            rp__text_add(e->out, "    __shared__ %s g%u[2][%u];\n", type, k, rows * threads / 32);
    }
}

static void add_zeros(const rp__emitter *e, const char *names) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++)
        for (const char *name = names; is_scan(e, k) && *name; name++)
            rp__text_add(e->out, "    %s %c%u = 0;\n", rp__emit_type(e->dag->nodes[k].dtype), *name, k);
}

static bool is_one_tile(const rp__emitter *e) { return e->c->template_ == RP__CUDA_SCAN && e->c->full; }

/* What lies before, of which nothing is read where there is nothing: groups G, chunks of this group C, all chunks Q. */
void rp__emit_scan_row(const rp__emitter *e) {
    if (!is_one_tile(e)) add_zeros(e, "GCQ");
}

/* And sections of this chunk S, warps of this section q, all sections P. */
void rp__emit_scan_chunk(const rp__emitter *e) {
    if (!is_one_tile(e)) add_zeros(e, "SqP");
}

/* `to` = `left` combined with `right`; without a left part (`any` false) right alone. */
static void add_joined(const rp__emitter *e, const rp__node *n, const char *to, const char *any, const char *left,
                       const char *right) {
    rp__text_add(e->out, "%s = ", to);
    if (any) rp__text_add(e->out, "!(%s) ? %s : ", any, right);
    rp__emit_combine(e, n, left, right);
    rp__text_puts(e->out, "; ");
}

/* v<k>, its operand's elements from left to right: in fours. */
static void add_own(const rp__emitter *e, unsigned k) {
    const rp__node *n = &e->dag->nodes[k];
    char own[24], before[24], value[64];
    (void)snprintf(own, sizeof own, "v%u[j]", k);
    (void)snprintf(before, sizeof before, "v%u[j - 1]", k);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) { ", rp__emit_scan_own(e));
    if (rp__emit_in_vectors(e, &e->dag->nodes[n->a])) {
        rp__text_add(e->out, "const %s v%u = ", rp__emit_type(e->dag->nodes[n->a].dtype), n->a);
        rp__emit_loaded(e, n->a, "j");
        rp__text_puts(e->out, "; ");
    }
    add_joined(e, n, own, "j % 4", before, rp__emit_value(e, n->a, value));
    rp__text_puts(e->out, "}\n");
}

/* A whole row is the thread's: its fours are lanes. */
static void add_scan_alone(const rp__emitter *e, unsigned k) {
    const rp__node *n = &e->dag->nodes[k];
    const unsigned own = rp__emit_scan_own(e), lanes = (own + 3) / 4;
    char to[32], left[32];
    add_own(e, k);
    if (lanes < 2) return;
    rp__text_add(e->out,
                 "    { %s run[%u]; _Pragma(\"unroll\") for (int m = 0; m < %u; m++) run[m] = v%u[m * 4 + 3];\n",
                 rp__emit_type(n->dtype), lanes, lanes - 1, k);
    for (unsigned m = 1; m < lanes - 1; m *= 2)
        for (unsigned lane = lanes - 2; lane >= m; lane--) {
            (void)snprintf(to, sizeof to, "run[%u]", lane);
            (void)snprintf(left, sizeof left, "run[%u]", lane - m);
            rp__text_puts(e->out, "    ");
            add_joined(e, n, to, NULL, left, to);
            rp__text_puts(e->out, "\n");
        }
    (void)snprintf(to, sizeof to, "v%u[j]", k);
    rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 4; j < %u; j++) { ", own);
    add_joined(e, n, to, NULL, "run[j / 4 - 1]", to);
    rp__text_puts(e->out, "}\n    }\n");
}

/* run, of all lanes up to this one; left, of those before it. What warp m of the row has, as an expression, to `total`. */
static void add_lanes(const rp__emitter *e, unsigned k, char total[64]) {
    const rp__node *n = &e->dag->nodes[k];
    const char *type = rp__emit_type(n->dtype), *shuffle = rp__emit_shuffle(n->dtype);
    const unsigned lanes = lanes_of(e), warps = rp__emit_scan_threads(e) / lanes;
    rp__text_add(e->out, "    %s run = v%u[3];\n", type, k);
    if (rows_across(e) && lanes > 1) {
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
        (void)snprintf(total, 64, "g%u[b%u][m * %u + %u][tx]", k, k, lanes, lanes - 1);
        return;
    }
    rp__text_add(
        e->out,
        "    _Pragma(\"unroll\") for (int m = 1; m < %u; m *= 2) { const %s x = (%s)rp_shfl_up_%s(run, m, %u); "
        "if ((t & %u) >= m) ",
        lanes, type, type, shuffle, lanes, lanes - 1);
    add_joined(e, n, "run", NULL, "x", "run");
    rp__text_add(e->out, "}\n    const %s left = (%s)rp_shfl_up_%s(run, 1, %u);\n", type, type, shuffle, lanes);
    if (warps > 1)
        rp__text_add(e->out, "    if ((t & 31) == 31) g%u[u & 1][threadIdx.x / 32] = run;\n    rp_barrier();\n", k);
    if (warps > 1)
        (void)snprintf(total, 64, "g%u[u & 1][((int)threadIdx.x - t) / 32 + m]", k);
    else
        (void)snprintf(total, 64, "(%s)rp_shfl_idx_%s(run, %u, %u)", type, shuffle, lanes - 1, lanes);
}

/* before, what the warps of the row before this one have, behind those of the tiles before in its section; mine: there is something. q<k> takes in all
 * of the tile. */
static void add_warps(const rp__emitter *e, unsigned k, const char *total) {
    const rp__node *n = &e->dag->nodes[k];
    const char *type = rp__emit_type(n->dtype);
    const unsigned threads = rp__emit_scan_threads(e), warps = threads / lanes_of(e);
    char q[24], s[24], p[24], big[24];
    (void)snprintf(q, sizeof q, "q%u", k);
    (void)snprintf(s, sizeof s, "S%u", k);
    (void)snprintf(p, sizeof p, "P%u", k);
    (void)snprintf(big, sizeof big, "Q%u", k);
    if (is_one_tile(e)) {
        rp__text_add(e->out, "    %s before = 0; int mine = 0;\n", type);
        if (warps == 1) return;
        rp__text_add(e->out, "    for (int m = 0; m < t / 32; m++) { const %s x = %s; ", type, total);
        add_joined(e, n, "before", "m", "before", "x");
        rp__text_puts(e->out, "mine = 1; }\n");
        return;
    }
    const unsigned tiles = RP__CUDA_SECTION / 4 / threads;
    if (!has_sections(e)) {
        rp__text_add(e->out, "    if (u %% %u == 0) {\n    if (u > 0) { ", tiles);
        char any[24];
        (void)snprintf(any, sizeof any, "u > %u", tiles);
        add_joined(e, n, s, any, s, q);
        add_joined(e, n, p, "chunk > 0", big, s);
        rp__text_add(e->out, "} else %s = %s;\n    }\n", p, big);
    }
    rp__text_add(e->out, "    %s before = %s; int mine = u %% %u != 0;\n", type, q, tiles);
    rp__text_add(e->out, "    { int has = mine; _Pragma(\"unroll\") for (int m = 0; m < %u; m++) { const %s x = %s; ",
                 warps, type, total);
    if (warps > 1) rp__text_add(e->out, "if (m == t / 32) { before = %s; mine = has; } ", q);
    add_joined(e, n, q, "has", q, "x");
    rp__text_puts(e->out, "has = 1; } }\n");
    rp__text_add(e->out, has_sections(e) ? "    if (chunk > 0) { " : "    if (chunk > 0 || u >= %u) { ", tiles);
    rp__text_add(e->out, "before = !mine ? %s : ", p);
    rp__emit_combine(e, n, p, "before");
    rp__text_puts(e->out, "; mine = 1; }\n");
}

/* v<k> of the tile, from its operand's four elements of each thread. */
static void add_scan(const rp__emitter *e, unsigned k) {
    const rp__node *n = &e->dag->nodes[k];
    char own[24], total[64];
    if (e->c->template_ == RP__CUDA_SCAN && e->c->span) {
        add_scan_alone(e, k);
        return;
    }
    (void)snprintf(own, sizeof own, "v%u[j]", k);
    add_own(e, k);
    rp__text_puts(e->out, "    {\n");
    add_lanes(e, k, total);
    add_warps(e, k, total);
    rp__text_add(e->out, "    if ((t & %u) > 0) { ", lanes_of(e) - 1);
    add_joined(e, n, "before", "mine", "before", "left");
    rp__text_puts(e->out, "mine = 1; }\n    _Pragma(\"unroll\") for (int j = 0; j < 4; j++) { ");
    add_joined(e, n, own, "mine", "before", own);
    rp__text_puts(e->out, "}\n    }\n");
}

/* The chunk's total, of eight sections since it is not the row's last one, to those before the next one. */
void rp__emit_scan_chunk_end(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!is_scan(e, k)) continue;
        const rp__node *n = &e->dag->nodes[k];
        char name[5][24];
        for (int i = 0; i < 5; i++) (void)snprintf(name[i], sizeof name[i], "%c%u", "SqCGQ"[i], k);
        rp__text_puts(e->out, "    ");
        add_joined(e, n, name[0], NULL, name[0], name[1]);
        rp__text_puts(e->out, "\n    ");
        char any[64];
        (void)snprintf(any, sizeof any, "chunk / %u %% %u", RP__CUDA_CHUNK, GROUP);
        add_joined(e, n, name[2], any, name[2], name[0]);
        rp__text_puts(e->out, "\n    ");
        (void)snprintf(any, sizeof any, "chunk / %u >= %u", RP__CUDA_CHUNK, GROUP);
        add_joined(e, n, name[4], any, name[3], name[2]);
        rp__text_add(e->out, "\n    if (chunk / %u %% %u == %u) %s = %s;\n", RP__CUDA_CHUNK, GROUP, GROUP - 1, name[3],
                     name[4]);
    }
}

/* The totals of a row's sections, chunk by chunk, and those of its chunks, as an operand. */
static void add_total(const rp__emitter *e, unsigned k, bool section, const char *number) {
    unsigned which = 0;
    for (unsigned i = 0; i < k; i++) which += is_scan(e, i);
    rp__text_add(e->out,
                 "((%s *)((rp_u64 *)p.w[%u] + %u * chunks * (rp_i64)rows))[(%s%s) * (rp_i64)rows + (rp_i64)row]",
                 rp__emit_type(e->dag->nodes[k].dtype), rp__emit_extra_word(e, RP__CUDA_WORD_PARTIAL),
                 which * RP__CUDA_SCAN_TOTALS_A_CHUNK, section ? "" : "chunks * 8 + ", number);
}

/* G of the groups before the block's and C of the chunks before in its group, at the same time; then S of the sections before the warp's. A group's
 * total is a thread's: one after the other from memory, each would wait for its own. */
void rp__emit_scan_before(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!is_scan(e, k)) continue;
        const rp__node *n = &e->dag->nodes[k];
        const char *type = rp__emit_type(n->dtype);
        char g[24], c[24], q[24], s[24], p[24], z[24];
        (void)snprintf(g, sizeof g, "G%u", k);
        (void)snprintf(c, sizeof c, "C%u", k);
        (void)snprintf(q, sizeof q, "Q%u", k);
        (void)snprintf(s, sizeof s, "S%u", k);
        (void)snprintf(p, sizeof p, "P%u", k);
        (void)snprintf(z, sizeof z, "z%u", k);
        rp__text_add(
            e->out,
            "    { const rp_i64 groups = (rp_i64)chunk_ / %u, first = groups * %u;\n    const int id = "
            "(int)threadIdx.x;\n"
            "    if (id >= %u) { _Pragma(\"unroll 8\") for (rp_i64 m = first; m < (rp_i64)chunk_; m++) { const %s "
            "x = ",
            GROUP, GROUP, RP__CUDA_BLOCK - WARP, type);
        add_total(e, k, false, "m");
        rp__text_puts(e->out, "; ");
        add_joined(e, n, c, "m > first", c, "x");
        rp__text_add(
            e->out,
            "} }\n    for (rp_i64 from = 0; from < groups; from += %u) {\n    rp_barrier();\n"
            "    if (from + id < groups) { %s x[%u], all = 0; _Pragma(\"unroll\") for (int m = 0; m < %u; m++) x[m] = ",
            TOTALS, type, GROUP, GROUP);
        add_total(e, k, false, "(from + id) * 32 + m");
        rp__text_add(e->out, ";\n    _Pragma(\"unroll\") for (int m = 0; m < %u; m++) { ", GROUP);
        add_joined(e, n, "all", "m", "all", "x[m]");
        rp__text_add(e->out, "} %s[id] = all; }\n    rp_barrier();\n", z);
        rp__text_add(e->out,
                     "    const int left = groups - from < %u ? (int)(groups - from) : %u;\n"
                     "    _Pragma(\"unroll 8\") for (int m = 0; id >= %u && m < left; m++) { const %s x = %s[m]; ",
                     TOTALS, TOTALS, RP__CUDA_BLOCK - WARP, type, z);
        add_joined(e, n, g, "from + m > 0", g, "x");
        rp__text_add(e->out, "}\n    }\n    rp_barrier();\n    if (id == %u) { %s = %s; if (groups > 0) { %s = ",
                     RP__CUDA_BLOCK - 1, q, c, q);
        rp__text_puts(e->out, "first < (rp_i64)chunk_ ? ");
        rp__emit_combine(e, n, g, c);
        rp__text_add(e->out,
                     " : %s; } %s[0] = %s; }\n"
                     "    _Pragma(\"unroll 1\") for (int m = 0; m < section; m++) { const %s x = ",
                     g, z, q, type);
        add_total(e, k, true, "(rp_i64)chunk_ * 8 + m");
        rp__text_puts(e->out, "; ");
        add_joined(e, n, s, "m", s, "x");
        rp__text_add(e->out, "}\n    rp_barrier();\n    %s = %s[0]; %s = %s;\n    if (section > 0) ", q, z, p, q);
        add_joined(e, n, p, "chunk_ > 0", q, s);
        rp__text_puts(e->out, "\n    }\n");
    }
}

/* The total of this warp's section, and of the block's chunk. */
void rp__emit_scan_totals(const rp__emitter *e) {
    for (unsigned k = 0; k < e->dag->n_nodes; k++) {
        if (!is_scan(e, k)) continue;
        const rp__node *n = &e->dag->nodes[k];
        char s[24], z[24];
        (void)snprintf(s, sizeof s, "S%u", k);
        (void)snprintf(z, sizeof z, "z%u[m]", k);
        rp__text_add(e->out, "    if (t == 0) z%u[section] = q%u;\n    if (t == 0) ", k, k);
        add_total(e, k, true, "(rp_i64)chunk_ * 8 + section");
        rp__text_add(e->out,
                     " = q%u;\n    rp_barrier();\n    if (threadIdx.x == 0) {\n    for (int m = 0; m < %u; m++) { ", k,
                     SECTIONS);
        add_joined(e, n, s, "m", s, z);
        rp__text_puts(e->out, "}\n    ");
        add_total(e, k, false, "(rp_i64)chunk_");
        rp__text_add(e->out, " = %s;\n    }\n", s);
    }
}

void rp__emit_scan_tile(const rp__emitter *e, const char *element) {
    const rp__dag *d = e->dag;
    unsigned stages = 0;
    for (unsigned k = 0; k < d->n_nodes; k++) {
        if (!e->needed[k] || e->level[k] != RP__LEVEL_ELEMENT) continue;
        const unsigned stage = e->stage[k];
        stages = stage > stages ? stage : stages;
        if (e->array[k])
            rp__text_add(e->out, "    %s v%u[%u];\n", rp__emit_type(d->nodes[k].dtype), k, rp__emit_scan_own(e));
    }
    for (unsigned stage = 0; stage <= stages; stage++) {
        for (unsigned k = 0; k < d->n_nodes && stage > 0; k++)
            if (is_scan(e, k) && e->stage[k] == stage) add_scan(e, k);
        rp__text_add(e->out, "    _Pragma(\"unroll\") for (int j = 0; j < %u; j++) {\n%s", rp__emit_scan_own(e),
                     element);
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
