/* C emitter, line functions: a whole program (program.h) as one function over rows of contiguous elements. Values stay in
   registers, phases follow each other while the row is in the first-level cache, chunks and their tree are inside. For few long
   rows, chunk functions: one phase over some chunks of a row, for a thread; row values come in, partials go out. Called by
   jit.c for tier 1 and by tools/gen/genlines.c for what the library carries compiled; line.c decides when one runs. Emits over
   group.h and line.h only, nothing that depends on a vector's width. */
#include <stdio.h>
#include <string.h>

#include "kernel/cpu/jit.h"

static const char *const type_names[RP__TILE_TYPES] = {"f32", "f64", "i32", "i64", "u8", "bool"};
static const char *const reduce_names[] = {"sum", "max", "min", "prod", "any", "all"};

enum {
    MAX_NODES = 96,    /* larger programs run as groups: compiling must stay short */
    UNROLL_NODES = 24, /* operations of a phase up to which its loop takes 32 elements a turn */
    AHEAD_BYTES = 4096
};

typedef struct emitter {
    const rp__dag *dag;
    const rp__program *p;
    rp__text *t;
    bool rows, many; /* many: the step of a load is an argument */
    bool chunks;     /* of a chunk function */
    /* of many, by node: accesses that it depends on, if these may stand still and nothing else changes it, else 0; of a dear one it
       is calculated once for a row where all of them do (hoisted) */
    uint64_t stands[MAX_NODES];
    bool hoisted[MAX_NODES];
} emitter;

/* ---- what a line function can hold */

static bool plain(const rp__insn *i) { return i->a == RP__NO_VAL && i->b == RP__NO_VAL; }
/* Rows may read one value each at a computed place, as losses do that of a class, and know where along them an element is. */
static bool insn_fits(const rp__dag *dag, const rp__program *p, const rp__insn *i, bool row) {
    if (i->kind == RP__INSN_LOAD) return row || plain(i);
    if (i->kind == RP__INSN_IOTA) return p->plan != RP__PLAN_ELEMENTS;
    if (i->kind == RP__INSN_GROUP || i->kind == RP__INSN_SCAN) return false;
    if (i->kind != RP__INSN_OP) return !row;
    const rp__node *n = &dag->nodes[i->d];
    switch (n->op) {
    case RP__CHECK_INDEX: return row;
    case RP__FLOORDIV: /* of integers each tells of a divisor of 0 */
    case RP__REMAINDER: return rp__dtype_is_float((rp_dtype)n->dtype);
    case RP__PHILOX:
    case RP__PHILOX64:
    case RP__PHILOX_NORMAL: return false;
    default: return true;
    }
}
bool rp__line_fits(const rp__dag *dag, const rp__program *p) {
    if (p->grouped || (p->serial && p->plan == RP__PLAN_ELEMENTS) || p->n_windows || p->largest.phase ||
        dag->n_nodes > MAX_NODES)
        return false;
    for (uint32_t k = 0; k < p->uniform_end; k++) {
        const rp__node *n = &dag->nodes[p->insns[k].d];
        if (p->checks && (n->op == RP__CHECK_INDEX || !insn_fits(dag, p, &p->insns[k], true))) return false;
    }
    for (unsigned k = 0; k < p->n_stores; k++) {
        const rp__program_store *st = &p->stores[k];
        if (st->mode == RP__STORE_ADD && (st->row || (st->dtype != RP_F32 && st->dtype != RP_F64))) return false;
        if (st->offset != RP__NO_VAL || st->predicate != RP__NO_VAL) return false;
    }
    for (unsigned phase = 0; phase <= p->n_phases; phase++) {
        for (uint32_t k = p->row[phase].begin; k < p->row[phase].end; k++) {
            if (!insn_fits(dag, p, &p->insns[k], true)) return false;
        }
        if (phase == p->n_phases) break;
        for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
            if (!insn_fits(dag, p, &p->insns[k], false)) return false;
        }
    }
    return true;
}

/* ---- names */

static const char *type_of(const emitter *e, unsigned v) { return type_names[rp__tile_type(e->dag->nodes[v].dtype)]; }
/* How an access lies in memory: that of its dtype, narrow ones included. */
static const char *storage_of(const emitter *e, unsigned access) {
    const unsigned dtype = e->dag->accesses[access].dtype;
    return e->p->access_narrow[access] ? rp__dtypes[dtype].short_name : type_names[rp__tile_type(dtype)];
}
static unsigned bytes_of(const emitter *e, unsigned access) { return e->p->access_size[access]; }
static const char *red_name(const rp__reduction *red, char out[32]) {
    (void)snprintf(out, 32, "%s_%s", reduce_names[red->kind], type_names[red->type]);
    return out;
}

static bool may_stand(const emitter *e, unsigned access) {
    return e->many && e->dag->accesses[access].kind == RP__ACCESS_READ;
}

/* Worth a test in each turn. */
static bool is_dear(rp__prim op) {
    return op == RP__EXP || op == RP__EXPM1 || op == RP__LOG || op == RP__POW || op == RP__SQRT || op == RP__DIV;
}
/* What follows from step counts and learning rates alone stands still with them. A node that depends on all operands has nothing to gain:
   it would be the whole program. */
static void find_hoisted(emitter *e) {
    const rp__program *p = e->p;
    uint64_t all = 0;
    bool uniform[MAX_NODES] = {false};
    memset(e->stands, 0, sizeof e->stands);
    memset(e->hoisted, 0, sizeof e->hoisted);
    if (!e->many || p->n_phases != 1) return;
    for (unsigned a = 0; a < p->n_accesses; a++) all |= (uint64_t)may_stand(e, a) << a;
    for (uint32_t k = 0; k < p->uniform_end; k++) uniform[p->insns[k].d] = true;
    for (uint32_t k = p->element[0].begin; k < p->element[0].end; k++) {
        const rp__insn *i = &p->insns[k];
        if (i->kind == RP__INSN_LOAD && may_stand(e, i->access)) e->stands[i->d] = UINT64_C(1) << i->access;
        if (i->kind != RP__INSN_OP) continue;
        const uint16_t operands[3] = {i->a, i->b, i->c};
        uint64_t mask = 0;
        bool may = true;
        for (int o = 0; o < 3; o++) {
            if (operands[o] == RP__NO_VAL) continue;
            may = may && (uniform[operands[o]] || e->stands[operands[o]]);
            mask |= e->stands[operands[o]];
        }
        if (!may || mask == all) continue;
        e->stands[i->d] = mask;
        e->hoisted[i->d] = mask && is_dear((rp__prim)e->dag->nodes[i->d].op);
    }
}
/* Before a row: h is the value where the accesses of its mask stand still (t), else anything. */
static void emit_hoisted(const emitter *e) {
    const rp__program *p = e->p;
    bool any = false;
    for (unsigned v = 0; v < e->dag->n_nodes; v++) {
        if (!e->hoisted[v]) continue;
        any = true;
        rp__text_add(e->t, "  const int t%u = (l->still & UINT64_C(%llu)) == UINT64_C(%llu); g_%s h%u;\n", v,
                     (unsigned long long)e->stands[v], (unsigned long long)e->stands[v], type_of(e, v), v);
    }
    if (!any) return;
    rp__text_puts(e->t, "  { ");
    for (uint32_t k = p->element[0].begin; k < p->element[0].end; k++) {
        const rp__insn *i = &p->insns[k];
        if ((i->kind != RP__INSN_LOAD && i->kind != RP__INSN_OP) || !e->stands[i->d]) continue;
        if (i->kind == RP__INSN_LOAD)
            rp__text_add(e->t, "const g_%s v%u = r%u; (void)v%u; ", type_of(e, i->d), i->d, i->access, i->d);
        else {
            rp__emit_op(e->dag, i->d, e->t);
            rp__text_add(e->t, "(void)v%u; ", i->d);
        }
        if (e->hoisted[i->d]) rp__text_add(e->t, "h%u = v%u; ", i->d, i->d);
    }
    rp__text_puts(e->t, "}\n");
}

/* ---- one vector of elements: j is its first element in memory behind `at` (q: the row, b: a padded copy), `kept` in scratch */

/* Rows: what is read and written of elements lies behind p, which is q where it lies in the row (emit_places). */
static char memory_of(const emitter *e, char at) { return at == 'q' && e->rows ? 'p' : at; }

/* The function for an operation that is faster on the vectors of a whole turn: then the body is cut in two there. NULL: none. */
static const char *turn_of(const emitter *e, const rp__insn *i) {
    if (i->kind != RP__INSN_OP || e->dag->nodes[i->d].dtype != RP_F32 || e->hoisted[i->d]) return NULL;
    const rp__prim op = (rp__prim)e->dag->nodes[i->d].op;
    return op == RP__EXP ? "g_exp_turn" : op == RP__ERF ? "g_erf_turn" : NULL;
}
static bool has_value(const rp__insn *i) { return i->kind != RP__INSN_STORE && i->kind != RP__INSN_REDUCE; }
static void emit_cut(const emitter *e, unsigned phase, uint32_t at) {
    const rp__program *p = e->p;
    rp__text *t = e->t;
    for (uint32_t k = p->element[phase].begin; k < at; k++) {
        if (has_value(&p->insns[k])) rp__text_add(t, "w%u[k] = v%u; ", p->insns[k].d, p->insns[k].d);
    }
    rp__text_add(t,
                 "}\n      %s(w%u, w%u);\n#pragma GCC unroll 8\n"
                 "      for (int k = 0; k < K; k++) { const int64_t j = i + k * G_N; ",
                 turn_of(e, &p->insns[at]), p->insns[at].a, p->insns[at].d);
    for (uint32_t k = p->element[phase].begin; k <= at; k++) {
        const rp__insn *i = &p->insns[k];
        if (has_value(i)) rp__text_add(t, "const g_%s v%u = w%u[k]; ", type_of(e, i->d), i->d, i->d);
    }
}

static void emit_body(const emitter *e, unsigned phase, char at, const char *kept, bool turn) {
    const rp__program *p = e->p;
    rp__text *t = e->t;
    const char from = memory_of(e, at);
    for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
        const rp__insn *i = &p->insns[k];
        const char *type = has_value(i) ? type_of(e, i->d) : "";
        switch (i->kind) {
        case RP__INSN_LOAD:
            if (may_stand(e, i->access))
                rp__text_add(t, "const g_%s v%u = s%u ? g_load_%s(%c%u, j, 1) : r%u; ", type, i->d, i->access,
                             storage_of(e, i->access), from, i->access, i->access);
            else
                rp__text_add(t, "const g_%s v%u = g_load_%s(%c%u, j, 1); ", type, i->d, storage_of(e, i->access), from,
                             i->access);
            break;
        case RP__INSN_IOTA:
            rp__text_add(t, "const g_%s v%u = g_count_i64((int64_t)(intptr_t)q%u + %s); ", type, i->d, i->access,
                         at == 'b' ? "i + j" : "j");
            break;
        case RP__INSN_OP:
            if (turn && turn_of(e, i)) {
                emit_cut(e, phase, k);
            } else if (e->hoisted[i->d]) {
                rp__text_add(t, "g_%s x%u = h%u; if (!t%u) { ", type, i->d, i->d, i->d);
                rp__emit_op(e->dag, i->d, t);
                rp__text_add(t, "x%u = v%u; } const g_%s v%u = x%u; ", i->d, i->d, type, i->d, i->d);
            } else
                rp__emit_op(e->dag, i->d, t);
            break;
        case RP__INSN_KEPT:
            rp__text_add(t, "const g_%s v%u = g_load_%s(kept + l->kept_cap * %u, %s, 1); ", type, i->d, type, i->at,
                         kept);
            break;
        case RP__INSN_STORE: {
            const rp__program_store *st = &p->stores[i->access];
            const char *storage = storage_of(e, st->access);
            if (st->mode == RP__STORE_ADD)
                rp__text_add(t, "g_store_%s(%c%u, j, g_add_%s(g_load_%s(%c%u, j, 1), v%u)); ", storage,
                             at == 'q' ? from : 'o', at == 'q' ? st->access : i->access, storage, storage,
                             at == 'q' ? from : 'o', at == 'q' ? st->access : i->access, st->value);
            else if (at == 'q')
                rp__text_add(t, "if (past) g_past_%s(%c%u, j, v%u); else g_store_%s(%c%u, j, v%u); ", storage, from,
                             st->access, st->value, storage, from, st->access, st->value);
            else
                rp__text_add(t, "g_store_%s(o%u, j, v%u); ", storage, i->access, st->value);
            break;
        }
        default: break; /* reductions follow the body */
        }
        if (i->home == RP__HOME_KEPT && i->kind != RP__INSN_KEPT) {
            rp__text_add(t, "g_store_%s(kept + l->kept_cap * %u, %s, v%u); ", type, i->at, kept, i->d);
        }
    }
}

static bool reduces(const rp__program *p, unsigned phase) {
    for (unsigned r = 0; r < p->n_reductions; r++) {
        if (p->reductions[r].phase == phase) return true;
    }
    return false;
}
/* Elements that a phase takes a turn: 32, lane by lane, or one vector. */
static bool unrolled(const rp__program *p, unsigned phase) {
    return reduces(p, phase) || p->element[phase].end - p->element[phase].begin <= UNROLL_NODES;
}
/* Over rows: the next row's first use is far enough away that its lines arrive in time, and no hardware prefetcher crosses
   pages. Over chunks: lines of a last-level cache arrive too late for one that does not look far ahead (measured with a sum
   of 16 MB in huge pages: two thirds of the time). */
static void emit_prefetch(const emitter *e, unsigned phase) {
    const rp__program *p = e->p;
    if (!e->chunks && (!e->rows || phase + 1u != p->n_phases || p->n_phases < 2)) return;
    const unsigned from = e->chunks ? phase : 0;
    for (uint32_t k = p->element[from].begin; k < p->element[from].end; k++) {
        const rp__insn *i = &p->insns[k];
        if (i->kind != RP__INSN_LOAD) continue;
        const unsigned bytes = bytes_of(e, i->access), turn = unrolled(p, phase) ? 32 * bytes : 1;
        for (unsigned line = 0; line < turn; line += 64) {
            if (e->chunks)
                rp__text_add(e->t, "__builtin_prefetch(q%u + i * %u + %u); ", i->access, bytes, AHEAD_BYTES + line);
            else
                rp__text_add(e->t, "__builtin_prefetch(q%u + l->row[%u] + i * %u + %u); ", i->access, i->access, bytes,
                             line);
        }
    }
}

/* What is left behind the last whole turn: m elements from i on, in padded copies. */
static void emit_tail(const emitter *e, unsigned phase) {
    const rp__program *p = e->p;
    rp__text *t = e->t;
    const char from = memory_of(e, 'q');
    rp__text_puts(t, "    if (i < end) { const int64_t m = end - i;\n");
    for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
        const rp__insn *i = &p->insns[k];
        const unsigned a = i->access;
        if (i->kind == RP__INSN_STORE)
            rp__text_add(t, "      _Alignas(64) char o%u[%u];\n", a, 32u * p->stores[a].size);
        if (i->kind == RP__INSN_STORE && p->stores[a].mode == RP__STORE_ADD)
            rp__text_add(t, "      g_in(o%u, %c%u + i * %u, m * %u, %u);\n", a, from, p->stores[a].access,
                         p->stores[a].size, p->stores[a].size, p->stores[a].size);
        if (i->kind != RP__INSN_LOAD) continue;
        rp__text_add(t, "      _Alignas(64) char b%u[%u]; ", a, 32 * bytes_of(e, a));
        if (may_stand(e, a)) rp__text_add(t, "if (s%u) ", a);
        rp__text_add(t, "g_in(b%u, %c%u + i * %u, m * %u, %u);\n", a, from, a, bytes_of(e, a), bytes_of(e, a),
                     bytes_of(e, a));
    }
    char name[32];
    for (unsigned r = 0; r < p->n_reductions; r++) {
        if (p->reductions[r].phase != phase) continue;
        rp__text_add(t,
                     "      g_%s y%u[K];\n#pragma GCC unroll 8\n      for (int k = 0; k < K; k++) y%u[k] = a%u[k];\n",
                     type_names[p->reductions[r].type], r, r, r);
    }
    rp__text_add(t, "      for (int64_t j = 0%s; j < m; j += G_N%s) { ", reduces(p, phase) ? ", k = 0" : "",
                 reduces(p, phase) ? ", k++" : "");
    if (reduces(p, phase)) rp__text_puts(t, "const g_bool mask = g_first(m - j < G_N ? m - j : G_N); ");
    emit_body(e, phase, 'b', "i + j", false);
    for (unsigned r = 0; r < p->n_reductions; r++) {
        const rp__reduction *red = &p->reductions[r];
        if (red->phase != phase) continue;
        rp__text_add(t, "y%u[k] = g_where_%s(mask, g_red_%s(y%u[k], v%u), y%u[k]); ", r, type_names[red->type],
                     red_name(red, name), r, e->dag->nodes[red->d].a, r);
    }
    rp__text_puts(t, "}\n");
    for (unsigned r = 0; r < p->n_reductions; r++) {
        if (p->reductions[r].phase != phase) continue;
        rp__text_add(t, "#pragma GCC unroll 8\n      for (int k = 0; k < K; k++) a%u[k] = y%u[k];\n", r, r);
    }
    for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
        const rp__insn *i = &p->insns[k];
        if (i->kind != RP__INSN_STORE) continue;
        const rp__program_store *st = &p->stores[i->access];
        rp__text_add(t, "      g_out(%c%u + i * %u, o%u, m * %u, %u);\n", from, st->access, st->size, i->access,
                     st->size, st->size);
    }
    rp__text_puts(t, "    }\n");
}

/* The accesses of elements of a phase: all, or only what it stores. */
static uint64_t accesses_of(const rp__program *p, unsigned phase, bool stores) {
    uint64_t all = 0;
    for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
        const rp__insn *i = &p->insns[k];
        if (i->kind == RP__INSN_STORE) all |= UINT64_C(1) << p->stores[i->access].access;
        if (i->kind == RP__INSN_LOAD && !stores) all |= UINT64_C(1) << i->access;
    }
    return all;
}
/* Where elements [at, end) of a row are. */
static void emit_places(const emitter *e, unsigned phase, const char *row) {
    const uint64_t all = accesses_of(e->p, phase, false);
    if (!all) return;
    rp__text_add(e->t, "    if (l->apart & UINT64_C(%llu)) l->bring(l, %s, UINT64_C(%llu), at, end);\n",
                 (unsigned long long)all, row, (unsigned long long)all);
    for (unsigned a = 0; a < e->p->n_accesses; a++) {
        if (all >> a & 1u)
            rp__text_add(e->t, "    char *const p%u = l->apart >> %u & 1 ? l->place[%u] - at * %u : q%u;\n", a, a, a,
                         bytes_of(e, a), a);
    }
}
static void emit_taken(const emitter *e, unsigned phase, const char *row) {
    const uint64_t stores = accesses_of(e->p, phase, true);
    if (stores)
        rp__text_add(e->t, "    if (l->apart & UINT64_C(%llu)) l->take(l, %s, UINT64_C(%llu), at, end);\n",
                     (unsigned long long)stores, row, (unsigned long long)stores);
}

/* Elements [i, end) of a phase. */
static void emit_loop(const emitter *e, unsigned phase) {
    const rp__program *p = e->p;
    rp__text *t = e->t;
    char name[32];
    if (unrolled(p, phase)) {
        rp__text_puts(t, "    for (; i + 32 <= end; i += 32) { ");
        emit_prefetch(e, phase);
        bool cut = false;
        for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++)
            cut = cut || turn_of(e, &p->insns[k]);
        for (uint32_t k = p->element[phase].begin; k < p->element[phase].end && cut; k++) {
            const rp__insn *i = &p->insns[k];
            if (has_value(i)) rp__text_add(t, "g_%s w%u[K]; ", type_of(e, i->d), i->d);
        }
        rp__text_puts(t, "\n#pragma GCC unroll 8\n      for (int k = 0; k < K; k++) { const int64_t j = i + k * G_N; ");
    } else {
        rp__text_puts(t, "    for (; i + G_N <= end; i += G_N) { const int64_t j = i; ");
        emit_prefetch(e, phase);
    }
    emit_body(e, phase, 'q', "j", unrolled(p, phase));
    for (unsigned r = 0; r < p->n_reductions; r++) {
        const rp__reduction *red = &p->reductions[r];
        if (red->phase == phase)
            rp__text_add(t, "a%u[k] = g_red_%s(a%u[k], v%u); ", r, red_name(red, name), r, e->dag->nodes[red->d].a);
    }
    rp__text_puts(t, unrolled(p, phase) ? "}\n    }\n" : "}\n");
    if (!e->rows && unrolled(p, phase)) { /* tiny tensors are whole vectors more often than whole turns */
        rp__text_puts(t, "    for (; i + G_N <= end; i += G_N) { const int64_t j = i; ");
        emit_body(e, phase, 'q', "j", false);
        rp__text_puts(t, "}\n");
    }
    emit_tail(e, phase);
}

static void emit_identities(const emitter *e, unsigned phase) {
    const rp__program *p = e->p;
    for (unsigned r = 0; r < p->n_reductions; r++) {
        const rp__reduction *red = &p->reductions[r];
        if (red->phase != phase) continue;
        const char *type = type_names[red->type];
        rp__text_add(e->t,
                     "    g_%s a%u[K];\n#pragma GCC unroll 8\n"
                     "    for (int k = 0; k < K; k++) a%u[k] = g_bits_%s(UINT64_C(%llu));\n",
                     type, r, r, type, (unsigned long long)red->identity);
    }
}

/* A phase: its chunks, and the tree over them (tree.h). */
static void emit_phase(const emitter *e, unsigned phase) {
    const rp__program *p = e->p;
    rp__text *t = e->t;
    if (p->element[phase].begin == p->element[phase].end) return;
    char name[32];
    if (!reduces(p, phase)) {
        if (!e->rows) {
            rp__text_puts(t, "  { const int64_t end = n; int64_t i = 0;\n");
            emit_loop(e, phase);
        } else {
            rp__text_add(t,
                         "  const int64_t step%u = l->apart & UINT64_C(%llu) ? %d : n;\n"
                         "  for (int64_t at = 0; at < n; at += step%u) {\n"
                         "    const int64_t end = n - at < step%u ? n : at + step%u; int64_t i = at;\n",
                         phase, (unsigned long long)accesses_of(p, phase, false), RP__CHUNK, phase, phase, phase);
            emit_places(e, phase, "row");
            emit_loop(e, phase);
            emit_taken(e, phase, "row");
        }
        rp__text_puts(t, "  }\n");
        return;
    }
    for (unsigned r = 0; r < p->n_reductions; r++) {
        const rp__reduction *red = &p->reductions[r];
        if (red->phase == phase)
            rp__text_add(t, "  g_%s v%u = g_bits_%s(0); g_%s t%u[52];\n", type_names[red->type], red->d,
                         type_names[red->type], type_names[red->type], r);
    }
    rp__text_add(t,
                 "  uint64_t count%u = 0;\n  for (int64_t at = 0; at < n || !count%u; at += %d, count%u++) {\n"
                 "    const int64_t end = n - at < %d ? n : at + %d; int64_t i = at;\n",
                 phase, phase, RP__CHUNK, phase, RP__CHUNK, RP__CHUNK);
    emit_places(e, phase, "row");
    emit_identities(e, phase);
    emit_loop(e, phase);
    emit_taken(e, phase, "row");
    for (unsigned r = 0; r < p->n_reductions; r++) {
        const rp__reduction *red = &p->reductions[r];
        if (red->phase != phase) continue;
        red_name(red, name);
        rp__text_add(t,
                     "    v%u = g_end_%s(a%u);\n"
                     "    if (n > %d) { unsigned level = 0; for (; count%u >> level & 1; level++) "
                     "v%u = g_red_%s(t%u[level], v%u); t%u[level] = v%u; }\n",
                     red->d, name, r, RP__CHUNK, phase, red->d, name, r, red->d, r, red->d);
    }
    rp__text_puts(t, "  }\n");
    for (unsigned r = 0; r < p->n_reductions; r++) {
        const rp__reduction *red = &p->reductions[r];
        if (red->phase != phase) continue;
        rp__text_add(t,
                     "  if (n > %d) { unsigned level = 0; while (!(count%u >> level & 1)) level++; v%u = t%u[level]; "
                     "while (count%u >> ++level) if (count%u >> level & 1) v%u = g_red_%s(t%u[level], v%u); }\n",
                     RP__CHUNK, phase, red->d, r, phase, phase, red->d, red_name(red, name), r, red->d);
    }
}

/* At a place, and where a predicate is false 0 without looking there. */
static void emit_row_load(const emitter *e, const rp__insn *i) {
    const char *type = type_of(e, i->d);
    rp__text_add(e->t, "const g_%s v%u = ", type, i->d);
    if (i->b != RP__NO_VAL) rp__text_add(e->t, "!g_get_bool(v%u) ? g_bits_%s(0) : ", i->b, type);
    rp__text_add(e->t, "g_one_%s(q%u", storage_of(e, i->access), i->access);
    if (i->a != RP__NO_VAL) rp__text_add(e->t, " + g_get_i64(v%u) * %u", i->a, bytes_of(e, i->access));
    rp__text_puts(e->t, ");");
}
static void emit_row_values(const emitter *e, unsigned phase) {
    const rp__program *p = e->p;
    for (uint32_t k = p->row[phase].begin; k < p->row[phase].end; k++) {
        const rp__insn *i = &p->insns[k];
        rp__text_puts(e->t, "  ");
        if (i->kind == RP__INSN_LOAD)
            emit_row_load(e, i);
        else if (i->kind == RP__INSN_IOTA)
            rp__text_add(e->t, "const g_i64 v%u = g_bits_i64((uint64_t)(uintptr_t)q%u);", i->d, i->access);
        else if (e->dag->nodes[i->d].op == RP__CHECK_INDEX)
            rp__text_add(e->t,
                         "const g_i64 v%u = g_bits_i64((uint64_t)l->check(l, g_get_i64(v%u), g_get_i64(v%u), %d));",
                         i->d, i->a, i->b, (int)i->imm);
        else
            rp__emit_op(e->dag, i->d, e->t);
        rp__text_puts(e->t, "\n");
    }
}

/* Addresses and uniform values. */
static void emit_operands(const emitter *e) {
    const rp__program *p = e->p;
    for (unsigned a = 0; a < p->n_accesses; a++) rp__text_add(e->t, "  char *q%u = l->base[%u];\n", a, a);
    for (uint32_t k = 0; k < p->uniform_end; k++) {
        const rp__insn *i = &p->insns[k];
        rp__text_add(e->t, "  const g_%s v%u = g_load_%s(l->blocks + 64 * %u, 0, 0);\n", type_of(e, i->d), i->d,
                     type_of(e, i->d), i->at);
    }
}

/* Does a row value enter phase `phase`? */
static bool enters(const rp__program *p, unsigned phase, unsigned v) {
    for (uint32_t k = p->element[phase].begin; k < p->element[phase].end; k++) {
        const rp__insn *i = &p->insns[k];
        if (i->kind == RP__INSN_OP && (i->a == v || i->b == v || i->c == v)) return true;
        if (i->kind == RP__INSN_REDUCE && i->a == v) return true;
        if (i->kind == RP__INSN_STORE && p->stores[i->access].value == v) return true;
    }
    return false;
}
static void emit_chunks(const emitter *e, const char *prefix, unsigned phase) {
    const rp__program *p = e->p;
    rp__text *t = e->t;
    rp__text_add(t,
                 "RP_LINE_FN void %sc_%u(const rp__line *l) {\n  enum { K = 32 / G_N };\n  const int64_t n = l->n; "
                 "const int past = l->stream; (void)past;\n",
                 prefix, phase);
    emit_operands(e);
    for (unsigned a = 0; a < p->n_accesses; a++) rp__text_add(t, "  (void)q%u;\n", a);
    for (unsigned k = 0; k < p->n_row_regs; k++) {
        const unsigned v = p->row_reg[k];
        if (enters(p, phase, v))
            rp__text_add(t, "  const g_%s v%u = g_load_%s(l->values + 64 * %u, 0, 0);\n", type_of(e, v), v,
                         type_of(e, v), k);
    }
    rp__text_add(t,
                 "  for (int64_t c = l->first; c < l->last; c++) {\n    const int64_t at = c * %d, "
                 "end = n - at < %d ? n : at + %d; int64_t i = at;\n",
                 RP__CHUNK, RP__CHUNK, RP__CHUNK);
    emit_places(e, phase, "0");
    emit_identities(e, phase);
    emit_loop(e, phase);
    emit_taken(e, phase, "0");
    for (unsigned r = 0; r < p->n_reductions; r++) {
        const rp__reduction *red = &p->reductions[r];
        char name[32];
        if (red->phase == phase)
            rp__text_add(t, "    g_put_%s((char *)(l->partials + l->chunks * %u + c), g_end_%s(a%u));\n",
                         type_names[red->type], r, red_name(red, name), r);
    }
    rp__text_puts(t, "  }\n  if (past) g_past_end();\n}\n");
}

static void emit_function(const emitter *e, const char *prefix) {
    const rp__program *p = e->p;
    rp__text *t = e->t;
    rp__text_add(t, "static %s void %sb_%d%s(const rp__line *l",
                 e->many ? "__attribute__((noinline))" : "inline __attribute__((always_inline))", prefix, p->plan,
                 e->many ? "m" : "");
    rp__text_puts(t, ") {\n  enum { K = 32 / G_N };\n  const int64_t n = l->n; const int past = l->stream; "
                     "char *const kept = l->kept; (void)kept; (void)past;\n");
    emit_operands(e);
    rp__text_puts(t, "  for (int64_t row = 0; row < l->rows; row++) {\n");
    for (unsigned a = 0; e->many && a < p->n_accesses; a++) {
        if (!may_stand(e, a)) continue;
        const char *compute = type_names[rp__tile_type(rp__dtypes[e->dag->accesses[a].dtype].compute)];
        rp__text_add(t,
                     "  const int s%u = !(l->still >> %u & 1); const g_%s r%u = s%u ? g_bits_%s(0) : g_one_%s(q%u);\n",
                     a, a, compute, a, a, compute, storage_of(e, a), a);
    }
    emit_hoisted(e);
    for (unsigned phase = 0; phase <= p->n_phases; phase++) {
        emit_row_values(e, phase);
        if (phase < p->n_phases) emit_phase(e, phase);
    }
    for (unsigned k = 0; k < p->n_stores; k++) {
        const rp__program_store *st = &p->stores[k];
        if (st->row) rp__text_add(t, "  g_put_%s(q%u, v%u);\n", storage_of(e, st->access), st->access, st->value);
    }
    if (!e->rows) rp__text_puts(t, "  if (!l->row) break;\n");
    for (unsigned a = 0; a < p->n_accesses; a++) rp__text_add(t, " q%u += l->row[%u];", a, a);
    rp__text_puts(t, "\n  }\n  if (past) g_past_end();\n}\n");
}

/* Longer programs are seldom run over few long rows, and take longer to compile. */
unsigned rp__line_chunk_phases(const rp__program *p) {
    return p->plan == RP__PLAN_RECOMPUTE && !p->serial && p->n_phases <= RP__CHUNK_PHASES ? p->n_phases : 0;
}

void rp__emit_line(const rp__dag *dag, const rp__program *p, const char *prefix, rp__text *t) {
    emitter e = {.dag = dag, .p = p, .t = t, .rows = p->plan != RP__PLAN_ELEMENTS};
    emit_function(&e, prefix);
    if (!e.rows) {
        e.many = true;
        find_hoisted(&e);
        emit_function(&e, prefix);
    }
    rp__text_add(t, "RP_LINE_FN void %sl_%d(const rp__line *l) { ", prefix, p->plan);
    if (!e.rows) rp__text_add(t, "if (l->still) { %sb_%dm(l); return; } ", prefix, p->plan);
    rp__text_add(t, "%sb_%d(l); }\n", prefix, p->plan);
    e.chunks = true;
    for (unsigned phase = 0; phase < rp__line_chunk_phases(p); phase++) emit_chunks(&e, prefix, phase);
}
