/* C emitter of tier 1: one function for each group of operations of a grouped program, over group.h's types. Walks, loads of
   strided memory, chunks and trees stay with the interpreter, so emitted code knows neither shapes nor strides: an input is a
   pointer and a step of 1 or 0 (other strides were gathered into a tile). Called by jit.c. */
#include "kernel/cpu/jit.h"

#include <stdio.h>
#include <string.h>

static const char *const type_names[RP__TILE_TYPES] = {"f32", "f64", "i32", "i64", "u8", "bool"};
static const char *const reduce_names[] = {"sum", "max", "min", "prod", "any", "all"};
static const char *const prim_names[] = {
#define RP_PRIM(name, arity, class) #name,
#include "kernel/prims.def"
};
enum { SPECIALISE_NODES = 96, UNROLL_NODES = 160 }; /* larger groups: one loop, so that compiling stays short */

static const char *type_of(const rp__dag *dag, unsigned v) { return type_names[rp__tile_type(dag->nodes[v].dtype)]; }
static void lower_name(char out[32], const char *name) {
    size_t k = 0;
    for (; name[k] && k < 31; k++) out[k] = (char)(name[k] >= 'A' && name[k] <= 'Z' ? name[k] + 32 : name[k]);
    out[k] = 0;
}

void rp__emit_op(const rp__dag *dag, unsigned v, rp__text *t) {
    const rp__node *n = &dag->nodes[v];
    const char *to = type_of(dag, v);
    char name[32];
    rp__text_add(t, "const g_%s v%u = ", to, v);
    if (n->op == RP__CAST) {
        rp__text_add(t, "g_cast_%s_%s(v%u); ", type_of(dag, n->a), to, n->a);
        return;
    }
    if (n->op == RP__ROUND) {
        rp__text_add(t, "g_round_%s(v%u); ", rp__dtypes[n->imm.i].short_name, n->a);
        return;
    }
    lower_name(name, prim_names[n->op]);
    rp__text_add(t, "g_%s_%s(v%u", name, n->op == RP__WHERE ? to : type_of(dag, n->a), n->a);
    if (n->b != RP__NO_VAL) rp__text_add(t, ", v%u", n->b);
    if (n->c != RP__NO_VAL) rp__text_add(t, ", v%u", n->c);
    rp__text_puts(t, "); ");
}

/* The computation of the group at elements j.., as one line: loads, operations, stores. */
static void emit_body(const rp__dag *dag, const rp__program *p, const rp__group *g, rp__text *t) {
    for (unsigned i = 0; i < g->n_inputs; i++) {
        unsigned v = g->inputs[i];
        const char *type = type_of(dag, v);
        if (p->classes[v] == RP__VALUE_UNIFORM) continue;
        rp__text_add(t, "const g_%s v%u = s%u ? g_load_%s(p[%u], j, s%u) : r%u; ", type, v, i, type, i, i, v);
    }
    for (unsigned i = 0; i < g->n_nodes; i++) rp__emit_op(dag, g->nodes[i], t);
    for (unsigned i = 0; i < g->n_outputs; i++) {
        unsigned v = g->outputs[i].d;
        rp__text_add(t, "g_store_%s(p[%u], j, v%u); ", type_of(dag, v), g->n_inputs + i, v);
    }
}
static void emit_reduce(const rp__dag *dag, const rp__program *p, const rp__group *g, const char *form, rp__text *t) {
    for (unsigned i = 0; i < g->n_reductions; i++) {
        const rp__reduction *red = &p->reductions[g->reductions[i]];
        const char *type = type_names[red->type];
        unsigned v = dag->nodes[red->d].a, at = (unsigned)g->n_inputs + g->n_outputs + i;
        char call[64];
        snprintf(call, sizeof call, "g_red_%s_%s", reduce_names[red->kind], type);
        if (!strcmp(form, "register"))
            rp__text_add(t, "a%u[k] = %s(a%u[k], v%u); ", i, call, i, v);
        else if (!strcmp(form, "lanes"))
            rp__text_add(t,
                         "const g_%s x%u = g_load_%s(p[%u], k * G_N, 1); "
                         "g_store_%s(p[%u], k * G_N, g_where_%s(m, %s(x%u, v%u), x%u)); ",
                         type, i, type, at, type, at, type, call, i, v, i);
        else if (!strcmp(form, "block"))
            rp__text_add(t, "g_store_%s(p[%u], j, %s(g_load_%s(p[%u], j, 1), v%u)); ", type, at, call, type, at, v);
        else
            rp__text_add(t,
                         "const g_%s x%u = g_load_%s(p[%u], j, 1); "
                         "g_store_%s(p[%u], j, g_where_%s(m, %s(x%u, v%u), x%u)); ",
                         type, i, type, at, type, at, type, call, i, v, i);
    }
}

static void emit_function(const rp__dag *dag, const rp__program *p, unsigned number, bool across, rp__text *t) {
    const rp__group *g = &p->groups[number];
    rp__text_add(t, "static inline __attribute__((always_inline)) void %s_%d_%u(char *const *q, int64_t n",
                 across ? "x" : "a", p->plan, number);
    for (unsigned i = 0; i < g->n_inputs; i++) {
        if (p->classes[g->inputs[i]] != RP__VALUE_UNIFORM) rp__text_add(t, ", int64_t s%u", i);
    }
    const unsigned pointers = (unsigned)g->n_inputs + g->n_outputs + g->n_reductions;
    rp__text_add(t, ") {\n    char *p[%u];\n    for (int i = 0; i < %u; i++) p[i] = q[i];\n", pointers ? pointers : 1,
                 pointers);
    for (unsigned i = 0; i < g->n_inputs; i++) {
        unsigned v = g->inputs[i];
        bool uniform = p->classes[v] == RP__VALUE_UNIFORM;
        rp__text_add(t, "    const g_%s %s%u = g_load_%s(p[%u], 0, 0);\n", type_of(dag, v), uniform ? "v" : "r", v,
                     type_of(dag, v), i);
    }
    const bool unroll = g->n_nodes <= UNROLL_NODES;
    if (!g->n_reductions) {
        rp__text_puts(t, "    for (int64_t j = 0; j < n; j += G_N) { ");
        emit_body(dag, p, g, t);
        rp__text_puts(t, "}\n}\n");
        return;
    }
    if (across) {
        rp__text_puts(t, "    int64_t j = 0;\n    for (; j + G_N <= n; j += G_N) { ");
        emit_body(dag, p, g, t);
        emit_reduce(dag, p, g, "block", t);
        rp__text_puts(t, "}\n    if (j < n) { const g_bool m = g_first(n - j); ");
        emit_body(dag, p, g, t);
        emit_reduce(dag, p, g, "block tail", t);
        rp__text_puts(t, "}\n}\n");
        return;
    }
    rp__text_puts(t, "    enum { K = 32 / G_N };\n    int64_t i = 0;\n");
    if (unroll) {
        for (unsigned i = 0; i < g->n_reductions; i++) {
            const char *type = type_names[p->reductions[g->reductions[i]].type];
            rp__text_add(
                t,
                "    g_%s a%u[K];\n#pragma GCC unroll 8\n    for (int k = 0; k < K; k++) a%u[k] = g_load_%s(p[%u], k * G_N, 1);\n",
                type, i, i, type, (unsigned)g->n_inputs + g->n_outputs + i);
        }
        rp__text_puts(t, "    for (; i + 32 <= n; i += 32) {\n#pragma GCC unroll 8\n"
                         "        for (int k = 0; k < K; k++) { const int64_t j = i + k * G_N; ");
        emit_body(dag, p, g, t);
        emit_reduce(dag, p, g, "register", t);
        rp__text_puts(t, "}\n    }\n");
        for (unsigned i = 0; i < g->n_reductions; i++) {
            const char *type = type_names[p->reductions[g->reductions[i]].type];
            rp__text_add(t,
                         "#pragma GCC unroll 8\n    for (int k = 0; k < K; k++) g_store_%s(p[%u], k * G_N, a%u[k]);\n",
                         type, (unsigned)g->n_inputs + g->n_outputs + i, i);
        }
    }
    rp__text_puts(
        t,
        "    for (int64_t j = i, k = 0; j < n; j += G_N, k = (k + 1) % K) { const g_bool m = g_first(n - j < G_N ? n - j : G_N); ");
    emit_body(dag, p, g, t);
    emit_reduce(dag, p, g, "lanes", t);
    rp__text_puts(t, "}\n}\n");
}

/* The exported function: the usual steps (elements 1, row values 0 along and 1 across) as constants, and any others. */
static void emit_entry(const rp__dag *dag, const rp__program *p, unsigned number, bool across, rp__text *t) {
    const rp__group *g = &p->groups[number];
    const char *form = across ? "x" : "a";
    emit_function(dag, p, number, across, t);
    rp__text_add(t, "void rp_%s_%d_%u(char *const *p, const int64_t *s, int64_t n) {\n    (void)s;\n", form, p->plan,
                 number);
    if (g->n_nodes <= SPECIALISE_NODES && g->n_inputs) {
        rp__text_puts(t, "    if (1");
        for (unsigned i = 0; i < g->n_inputs; i++) {
            unsigned class = p->classes[g->inputs[i]];
            if (class == RP__VALUE_UNIFORM) continue;
            rp__text_add(t, " && s[%u] == %d", i, class == RP__VALUE_ROW && !across ? 0 : 1);
        }
        rp__text_add(t, ") { %s_%d_%u(p, n", form, p->plan, number);
        for (unsigned i = 0; i < g->n_inputs; i++) {
            unsigned class = p->classes[g->inputs[i]];
            if (class != RP__VALUE_UNIFORM) rp__text_add(t, ", %d", class == RP__VALUE_ROW && !across ? 0 : 1);
        }
        rp__text_puts(t, "); return; }\n");
    }
    rp__text_add(t, "    %s_%d_%u(p, n", form, p->plan, number);
    for (unsigned i = 0; i < g->n_inputs; i++) {
        if (p->classes[g->inputs[i]] != RP__VALUE_UNIFORM) rp__text_add(t, ", s[%u]", i);
    }
    rp__text_puts(t, ");\n}\n");
}

void rp__emit_c(const rp__dag *dag, const rp__program *p, rp__text *t) {
    for (unsigned i = 0; i < p->n_groups; i++) {
        emit_entry(dag, p, i, false, t);
        if (p->groups[i].n_reductions) emit_entry(dag, p, i, true, t);
    }
}
