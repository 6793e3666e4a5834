/* DAG -> bytecode of the tile interpreter: classes of values, phases, register homes by liveness, stores that may be written
   by the producing instruction. Called by backend.c once a DAG and plan; nothing here depends on sizes or strides. */
#include "kernel/cpu/program.h"

#ifndef RP_ISA_BASELINE_ONLY
#include <cpuid.h>
#endif
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/env.h"
#include "core/log.h"
#include "core/thread.h"

enum { DEAR = 8 }; /* of rp__node_cost */
enum { UNIFORM = RP__VALUE_UNIFORM, ROW = RP__VALUE_ROW, ELEMENT = RP__VALUE_ELEMENT };

typedef struct compiler {
    const rp__dag *dag;
    rp__plan plan;
    const rp__tiles *tiles;
    /* grouped programs: the open group, its nodes and reductions, the group that computes each node of the phase */
    uint16_t open_nodes[RP__DAG_MAX_NODES], open_reductions[RP__DAG_MAX_NODES];
    uint16_t n_open, n_open_reductions, n_open_inputs;
    uint16_t open_inputs[RP__GROUP_POINTERS];
    uint16_t group_of[RP__DAG_MAX_NODES]; /* 1 + group */
    size_t group_capacity;
    uint8_t class[RP__DAG_MAX_NODES];
    uint8_t found[RP__DAG_MAX_NODES];  /* depends on what memory holds */
    uint8_t needed[RP__DAG_MAX_NODES]; /* in the phase under way */
    uint8_t made[RP__DAG_MAX_NODES];   /* in an earlier phase */
    uint8_t kept[RP__DAG_MAX_NODES];
    uint8_t cost[RP__DAG_MAX_NODES]; /* of computing it again */
    uint32_t kept_at[RP__DAG_MAX_NODES];
    uint16_t block[RP__DAG_MAX_NODES];
    uint16_t last_use[RP__DAG_MAX_NODES]; /* in the segment: node number of the last user */
    uint32_t slot_at[RP__DAG_MAX_NODES];
    rp__program *p;
    size_t n_insns, capacity;
    /* tile slots: offset, size, free */
    struct slot {
        uint32_t at;
        uint8_t size, used;
    } slots[RP__DAG_MAX_NODES];
    uint32_t n_slots;
} compiler;

static unsigned size_of(unsigned dtype) { return (unsigned)rp__dtypes[dtype].bytes; }

static rp__insn *emit(compiler *c) {
    if (!RP__GROW(&c->p->insns, &c->capacity, c->n_insns + 1)) return NULL;
    rp__insn *i = &c->p->insns[c->n_insns++];
    *i = (rp__insn){.a = RP__NO_VAL, .b = RP__NO_VAL, .c = RP__NO_VAL, .d = RP__NO_VAL};
    return i;
}

static void classify(compiler *c) {
    const rp__dag *d = c->dag;
    for (unsigned i = 0; i < d->n_nodes; i++) {
        const rp__node *n = &d->nodes[i];
        const rp__val operands[3] = {n->a, n->b, n->c};
        c->found[i] = n->op == RP__LOAD || n->op == RP__REDUCE || n->op == RP__SCAN;
        for (int k = 0; k < 3; k++) c->found[i] |= operands[k] != RP__NO_VAL && c->found[operands[k]];
        bool uniform =
            n->op != RP__LOAD && n->op != RP__IOTA && n->op != RP__INSIDE && n->op != RP__REDUCE && n->op != RP__SCAN;
        for (int k = 0; k < 3; k++)
            uniform = uniform && (operands[k] == RP__NO_VAL || c->class[operands[k]] == UNIFORM);
        c->class[i] = uniform ? UNIFORM : c->plan != RP__PLAN_ELEMENTS && rp__dag_is_row(d, n->axes) ? ROW : ELEMENT;
        if (c->class[i] == ELEMENT) {
            c->p->cost += rp__node_cost(n);
            if (size_of(n->dtype) < c->p->min_size) c->p->min_size = (uint8_t)size_of(n->dtype);
        }
    }
}

static bool select_fn(compiler *c, const rp__node *n, rp__insn *i) {
    unsigned to = rp__tile_type(n->dtype);
    if (n->op == RP__CAST)
        i->fn = c->tiles->cast[rp__tile_type(c->dag->nodes[n->a].dtype)][to];
    else if (n->op == RP__ROUND)
        i->fn = c->tiles->round[rp__narrow_kind((unsigned)n->imm.i) - 1];
    else if (n->op == RP__WHERE || n->op == RP__PHILOX_NORMAL)
        i->fn = c->tiles->op[n->op][to];
    else
        i->fn = c->tiles->op[n->op][rp__tile_type(c->dag->nodes[n->a].dtype)];
    if (!i->fn)
        rp__fail(RP_ERROR_INTERNAL, "loop kernel: no routine for operation %u on %s", n->op, rp__dtypes[n->dtype].name);
    return i->fn != NULL;
}
/* The instruction of node v, without its home. */
static rp__insn *emit_node(compiler *c, unsigned v) {
    const rp__node *n = &c->dag->nodes[v];
    rp__insn *i = emit(c);
    if (!i) {
        rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel program");
        return NULL;
    }
    i->d = (uint16_t)v;
    i->a = n->a;
    i->b = n->b;
    i->c = n->c;
    i->imm = n->imm.i;
    i->access = n->access;
    i->type = (uint8_t)rp__tile_type(n->dtype);
    i->size = (uint8_t)size_of(n->dtype);
    i->kind = n->op == RP__LOAD     ? RP__INSN_LOAD
              : n->op == RP__IOTA   ? RP__INSN_IOTA
              : n->op == RP__SCAN   ? RP__INSN_SCAN
              : n->op == RP__INSIDE ? RP__INSN_INSIDE
                                    : RP__INSN_OP;
    if (i->kind == RP__INSN_IOTA) c->p->counted |= UINT64_C(1) << n->access;
    c->p->places = c->p->places || (n->op == RP__LOAD && n->a != RP__NO_VAL && !c->found[n->a]);
    for (unsigned k = 0, s = 0; i->kind == RP__INSN_SCAN && k < v; k++) {
        s += c->dag->nodes[k].op == RP__SCAN;
        i->access = (uint16_t)s;
    }
    if (i->kind == RP__INSN_OP && n->op != RP__CONST && n->op != RP__SCALAR && !select_fn(c, n, i)) return NULL;
    return i;
}

static uint32_t slot_take(compiler *c, unsigned size) {
    for (uint32_t k = 0; k < c->n_slots; k++) {
        if (!c->slots[k].used && c->slots[k].size == size) {
            c->slots[k].used = 1;
            return k;
        }
    }
    c->slots[c->n_slots] = (struct slot){c->p->tile_bytes, (uint8_t)size, 1};
    c->p->tile_bytes += size;
    return c->n_slots++;
}

/* May the routine write over an operand of the same element size? */
static bool in_place(const rp__node *n) {
    return n->op < RP__PRIM_COUNT && n->op != RP__CAST && n->op != RP__PHILOX && n->op != RP__PHILOX64 &&
           n->op != RP__PHILOX_NORMAL;
}
/* `before`: the result may then lie where an operand did. Not where a load did: at launch it may turn out uniform (one vector
   that every step reads again), which the first results would overwrite. */
static void free_operands(compiler *c, const rp__node *n, unsigned v, uint8_t *held, bool before) {
    const rp__val operands[3] = {n->a, n->b, n->c};
    for (int k = 0; k < 3; k++) {
        rp__val o = operands[k];
        if (before && o != RP__NO_VAL && c->dag->nodes[o].op == RP__LOAD) continue;
        if (o != RP__NO_VAL && held[o] && c->last_use[o] == v) {
            c->slots[c->slot_at[o]].used = 0;
            held[o] = 0;
        }
    }
}
/* What computing each value again would cost a later phase, from values that are kept so far. Values worth row scratch cost about
   an exponential or more where a later phase first asks for them; what is cheaper is computed again, so that the row's scratch
   stays small and emitted code is not held up by stores. */
static void find_costs(compiler *c) {
    for (unsigned v = 0; v < c->dag->n_nodes; v++) {
        const rp__node *n = &c->dag->nodes[v];
        const rp__val operands[3] = {n->a, n->b, n->c};
        const bool half =
            n->op == RP__LOAD && c->p->access_narrow[n->access]; /* a bool's conversion is next to nothing */
        const bool places =
            (n->op == RP__LOAD || n->op == RP__IOTA || n->op == RP__INSIDE) && c->dag->accesses[n->access].windows;
        unsigned sum = places ? DEAR : n->op == RP__IOTA ? 0 : rp__node_cost(n) + half;
        for (int k = 0; k < 3; k++) {
            if (operands[k] == RP__NO_VAL || c->class[operands[k]] != ELEMENT) continue;
            sum += c->kept[operands[k]] ? 1 : c->cost[operands[k]];
        }
        c->cost[v] = (uint8_t)(sum > 255 ? 255 : sum);
    }
}

static void need(compiler *c, rp__val v) {
    if (v != RP__NO_VAL && c->class[v] == ELEMENT) c->needed[v] = 1;
}
static void use(compiler *c, rp__val v, unsigned by) {
    if (v != RP__NO_VAL && c->class[v] == ELEMENT) c->last_use[v] = (uint16_t)by;
}

/* Which element nodes phase `phase` computes; earlier values are marked kept. */
static void find_needed(compiler *c, unsigned phase, bool stores) {
    const rp__dag *d = c->dag;
    memset(c->needed, 0, d->n_nodes);
    find_costs(c);
    for (unsigned i = 0; i < c->p->n_reductions; i++) {
        if (c->p->reductions[i].phase == phase) need(c, d->nodes[c->p->reductions[i].d].a);
    }
    for (unsigned i = 0; stores && i < d->n_stores; i++) {
        if (rp__dag_is_row(d, d->stores[i].axes)) continue;
        need(c, d->stores[i].value);
        need(c, d->stores[i].offset);
        need(c, d->stores[i].predicate);
    }
    for (unsigned v = d->n_nodes; v-- > 0;) {
        if (!c->needed[v]) continue;
        const rp__node *n = &d->nodes[v];
        if (c->plan == RP__PLAN_KEEP && c->made[v] && (c->kept[v] || c->cost[v] >= DEAR)) {
            if (!c->kept[v]) {
                c->kept[v] = 1;
                c->kept_at[v] = c->p->kept_bytes;
                c->p->kept_bytes += size_of(n->dtype);
            }
            continue;
        }
        need(c, n->a);
        need(c, n->b);
        need(c, n->c);
    }
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

/* What a group can hold: arithmetic whose routine may compute more than n elements. */
static bool groupable(const compiler *c, const rp__node *n) {
    if (n->op >= RP__PRIM_COUNT) return false;
    switch (n->op) {
    case RP__CHECK_INDEX:
    case RP__PHILOX:
    case RP__PHILOX64:
    case RP__PHILOX_NORMAL: return false;
    case RP__FLOORDIV:
    case RP__REMAINDER: return rp__dtype_is_float((rp_dtype)n->dtype);
    default: return c->class[n - c->dag->nodes] == ELEMENT;
    }
}
static bool add_input(rp__group *g, uint16_t v) {
    for (unsigned i = 0; i < g->n_inputs; i++) {
        if (g->inputs[i] == v) return true;
    }
    if (g->n_inputs == RP__GROUP_POINTERS) return false;
    g->inputs[g->n_inputs++] = v;
    return true;
}
/* Is node v, of the group that is being closed, used outside of it in this phase? */
static bool used_outside(const compiler *c, unsigned v, bool stores) {
    const rp__dag *d = c->dag;
    for (unsigned u = 0; u < d->n_nodes; u++) {
        if (!c->needed[u] || (c->kept[u] && c->made[u]) || c->group_of[u] == c->group_of[v]) continue;
        if (d->nodes[u].a == v || d->nodes[u].b == v || d->nodes[u].c == v) return true;
    }
    for (unsigned i = 0; stores && i < d->n_stores; i++) {
        const rp__store *s = &d->stores[i];
        if (!rp__dag_is_row(d, s->axes) && (s->value == v || s->offset == v || s->predicate == v)) return true;
    }
    return c->kept[v];
}
static bool emit_reduce(compiler *c, unsigned r) {
    const rp__reduction *red = &c->p->reductions[r];
    rp__insn *i = emit(c);
    if (!i) return false;
    i->kind = RP__INSN_REDUCE;
    i->a = c->dag->nodes[red->d].a;
    i->access = (uint16_t)r;
    i->type = red->type;
    i->size = red->size;
    return true;
}
/* The open group becomes an instruction. One that only reduces has nothing to keep in registers: routines do that, by columns too. */
static bool close_group(compiler *c, bool stores) {
    rp__program *p = c->p;
    if (!c->n_open) {
        for (unsigned k = 0; k < c->n_open_reductions; k++) {
            if (!emit_reduce(c, c->open_reductions[k])) goto oom;
        }
        c->n_open_reductions = c->n_open_inputs = 0;
        return true;
    }
    if (!RP__GROW(&p->groups, &c->group_capacity, p->n_groups + 1u)) goto oom;
    rp__group *g = &p->groups[p->n_groups++];
    *g = (rp__group){.n_nodes = c->n_open, .n_reductions = c->n_open_reductions};
    g->nodes = rp__arena_copy(&p->arena, c->open_nodes, sizeof(uint16_t) * (c->n_open + 1u));
    g->reductions = rp__arena_copy(&p->arena, c->open_reductions, sizeof(uint16_t) * (c->n_open_reductions + 1u));
    g->inputs = RP__NEW(&p->arena, uint16_t, RP__GROUP_POINTERS);
    g->outputs = RP__NEW(&p->arena, rp__group_output, c->n_open + 1u);
    if (!g->nodes || !g->reductions || !g->inputs || !g->outputs) goto oom;
    for (unsigned i = 0; i < g->n_nodes; i++) {
        const rp__node *n = &c->dag->nodes[g->nodes[i]];
        const rp__val operands[3] = {n->a, n->b, n->c};
        for (int k = 0; k < 3; k++) {
            if (operands[k] == RP__NO_VAL || c->group_of[operands[k]] == p->n_groups) continue;
            if (!add_input(g, operands[k])) goto large;
        }
    }
    for (unsigned i = 0; i < g->n_reductions; i++) {
        rp__val a = c->dag->nodes[p->reductions[g->reductions[i]].d].a;
        if (c->group_of[a] != p->n_groups && !add_input(g, a)) goto large;
    }
    rp__insn *in = emit(c);
    if (!in) goto oom;
    in->kind = RP__INSN_GROUP;
    in->access = (uint16_t)(p->n_groups - 1);
    for (unsigned i = 0; i < g->n_nodes; i++) {
        const unsigned v = g->nodes[i];
        if (!used_outside(c, v, stores)) continue;
        const unsigned size = size_of(c->dag->nodes[v].dtype);
        rp__group_output *o = &g->outputs[g->n_outputs++];
        *o = (rp__group_output){.d = (uint16_t)v, .size = (uint8_t)size, .home = RP__HOME_TILE};
        if (c->kept[v]) {
            o->home = RP__HOME_KEPT;
            o->at = c->kept_at[v];
        } else {
            o->at = p->tile_bytes;
            p->tile_bytes += size;
        }
    }
    if (g->n_inputs + g->n_outputs + g->n_reductions > RP__GROUP_POINTERS) goto large;
    c->n_open = c->n_open_reductions = c->n_open_inputs = 0;
    return true;
large:
    rp__fail(RP_ERROR_COMPILE, "loop kernel: too many values for one emitted function");
    return false;
oom:
    rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel program");
    return false;
}
enum { GROUP_INPUTS = RP__GROUP_POINTERS - 16 }; /* the rest is for what a group hands on */
/* Notes what node n, of the open group, reads of others; false: that is more than a group reads. */
static bool note_inputs(compiler *c, const rp__node *n) {
    const rp__val operands[3] = {n->a, n->b, n->c};
    for (int k = 0; k < 3; k++) {
        unsigned i = 0;
        if (operands[k] == RP__NO_VAL || c->group_of[operands[k]] == c->p->n_groups + 1) continue;
        while (i < c->n_open_inputs && c->open_inputs[i] != operands[k]) i++;
        if (i == c->n_open_inputs && i == GROUP_INPUTS) return false;
        if (i == c->n_open_inputs) c->open_inputs[c->n_open_inputs++] = (uint16_t)operands[k];
    }
    return true;
}
/* Node v of a grouped program: into the open group, or an instruction of its own behind it. */
static bool emit_grouped(compiler *c, unsigned v, unsigned phase, bool stores) {
    const rp__dag *d = c->dag;
    rp__program *p = c->p;
    const rp__node *n = &d->nodes[v];
    if (c->class[v] == ELEMENT && c->needed[v]) {
        const bool old = c->kept[v] && c->made[v];
        if (!old && groupable(c, n)) {
            if (!note_inputs(c, n) && (!close_group(c, stores) || !note_inputs(c, n))) return false;
            c->open_nodes[c->n_open++] = (uint16_t)v;
            c->group_of[v] = (uint16_t)(p->n_groups + 1);
        } else {
            const rp__val operands[3] = {n->a, n->b, n->c};
            for (int k = 0; k < 3 && !old; k++) {
                if (operands[k] == RP__NO_VAL || c->group_of[operands[k]] != p->n_groups + 1) continue;
                if (!close_group(c, stores)) return false;
            }
            rp__insn *i = emit_node(c, v);
            if (!i) return false;
            if (old) {
                i->kind = RP__INSN_KEPT;
                i->a = i->b = i->c = RP__NO_VAL;
            }
            i->home = c->kept[v] ? RP__HOME_KEPT : RP__HOME_TILE;
            i->at = c->kept[v] ? c->kept_at[v] : p->tile_bytes;
            if (!c->kept[v]) p->tile_bytes += i->size;
        }
    }
    for (unsigned r = 0; r < p->n_reductions; r++) {
        if (p->reductions[r].phase == phase && d->nodes[p->reductions[r].d].a == v) {
            c->open_reductions[c->n_open_reductions++] = (uint16_t)r;
        }
    }
    return true;
}

static bool emit_element_phase(compiler *c, unsigned phase, bool stores) {
    const rp__dag *d = c->dag;
    rp__program *p = c->p;
    find_needed(c, phase, stores);
    memset(c->last_use, 0, sizeof(uint16_t) * d->n_nodes);
    uint8_t held[RP__DAG_MAX_NODES];
    memset(held, 0, d->n_nodes);
    for (unsigned v = 0; v < d->n_nodes; v++) {
        if (!c->needed[v] || (c->kept[v] && c->made[v])) continue;
        use(c, d->nodes[v].a, v);
        use(c, d->nodes[v].b, v);
        use(c, d->nodes[v].c, v);
    }
    for (unsigned i = 0; stores && i < d->n_stores; i++) {
        if (rp__dag_is_row(d, d->stores[i].axes)) continue;
        use(c, d->stores[i].value, RP__NO_VAL);
        use(c, d->stores[i].offset, RP__NO_VAL);
        use(c, d->stores[i].predicate, RP__NO_VAL);
    }
    p->element[phase].begin = (uint32_t)c->n_insns;
    memset(c->group_of, 0, sizeof(uint16_t) * d->n_nodes);
    for (unsigned v = 0; p->grouped && v < d->n_nodes; v++) {
        if (!emit_grouped(c, v, phase, stores)) return false;
    }
    if (p->grouped && !close_group(c, stores)) return false;
    for (unsigned v = 0; !p->grouped && v < d->n_nodes; v++) {
        const rp__node *n = &d->nodes[v];
        if (c->class[v] == ELEMENT && c->needed[v]) {
            bool old = c->kept[v] && c->made[v];
            rp__insn *i = emit_node(c, v);
            if (!i) return false;
            if (old) {
                i->kind = RP__INSN_KEPT;
                i->a = i->b = i->c = RP__NO_VAL;
            }
            if (c->kept[v]) {
                i->home = RP__HOME_KEPT;
                i->at = c->kept_at[v];
                if (!old) free_operands(c, n, v, held, false);
            } else {
                i->home = RP__HOME_TILE;
                if (in_place(n)) free_operands(c, n, v, held, true);
                c->slot_at[v] = slot_take(c, i->size);
                i->at = c->slots[c->slot_at[v]].at;
                held[v] = 1;
                free_operands(c, n, v, held, false);
            }
        }
        for (unsigned r = 0; r < p->n_reductions; r++) {
            if (p->reductions[r].phase != phase || d->nodes[p->reductions[r].d].a != v) continue;
            if (!emit_reduce(c, r)) goto oom;
        }
        if (held[v] && !c->last_use[v]) { /* only a reduction used it */
            c->slots[c->slot_at[v]].used = 0;
            held[v] = 0;
        }
    }
    for (unsigned i = 0; stores && i < p->n_stores; i++) {
        if (p->stores[i].row) continue;
        rp__insn *s = emit(c);
        if (!s) goto oom;
        s->kind = RP__INSN_STORE;
        s->access = (uint16_t)i;
        s->a = p->stores[i].value;
    }
    p->element[phase].end = (uint32_t)c->n_insns;
    for (unsigned v = 0; v < d->n_nodes; v++) {
        if (held[v]) c->slots[c->slot_at[v]].used = 0;
        if (c->needed[v]) c->made[v] = 1;
    }
    return true;
oom:
    rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel program");
    return false;
}

static void find_loaded(compiler *c) {
    rp__program *p = c->p;
    for (unsigned k = 0; k < p->n_stores; k++) {
        rp__program_store *st = &p->stores[k];
        const uint16_t used[3] = {st->value, st->offset, st->predicate};
        for (int o = 0; o < 3; o++) {
            const rp__node *n = used[o] == RP__NO_VAL ? NULL : &c->dag->nodes[used[o]];
            if (n && n->op == RP__LOAD) st->loaded |= UINT64_C(1) << n->access;
        }
    }
}

/* A store whose producing instruction may write memory itself, and what must not overlap then. */
static void find_direct(compiler *c) {
    rp__program *p = c->p;
    if (!p->n_phases) return;
    struct rp__segment s = p->element[p->n_phases - 1];
    for (unsigned k = 0; k < p->n_stores; k++) {
        rp__program_store *st = &p->stores[k];
        if (st->row || st->mode != RP__STORE_SET || st->offset != RP__NO_VAL || st->predicate != RP__NO_VAL ||
            p->access_narrow[st->access] || c->class[st->value] != ELEMENT) {
            continue;
        }
        bool again = false;
        for (unsigned j = 0; j < k; j++) again = again || (p->stores[j].direct && p->stores[j].value == st->value);
        for (uint32_t i = s.begin; i < s.end && !again; i++) {
            const rp__insn *in = &p->insns[i];
            if (in->d == st->value && in->kind == RP__INSN_OP && in->home == RP__HOME_TILE && in->size == st->size) {
                st->direct = true;
                st->producer = i;
                p->insns[i].direct = (uint16_t)(k + 1);
            }
            const rp__group *g = in->kind == RP__INSN_GROUP ? &p->groups[in->access] : NULL;
            for (unsigned o = 0; g && o < g->n_outputs; o++) {
                if (g->outputs[o].d != st->value || g->outputs[o].home != RP__HOME_TILE) continue;
                st->direct = true;
                st->producer = i;
                g->outputs[o].direct = (uint16_t)(k + 1);
            }
        }
        if (!st->direct) continue;
        for (uint32_t i = s.begin; i < s.end; i++) { /* reads after the producer, through registers or by loads */
            const rp__insn *in = &p->insns[i];
            if (i > st->producer && in->kind == RP__INSN_LOAD) st->late_reads |= UINT64_C(1) << in->access;
            if (i > st->producer) {
                const rp__group *g = in->kind == RP__INSN_GROUP ? &p->groups[in->access] : NULL;
                const uint16_t own[3] = {in->a, in->b, in->c}, *operands = g ? g->inputs : own;
                for (int o = 0; o < (g ? g->n_inputs : 3); o++) {
                    if (operands[o] == RP__NO_VAL || c->class[operands[o]] != ELEMENT) continue;
                    const rp__node *n = &c->dag->nodes[operands[o]];
                    if (n->op == RP__LOAD) st->late_reads |= UINT64_C(1) << n->access;
                }
            }
        }
    }
}

static uint64_t identity_of(unsigned kind, unsigned type) {
    union {
        float f[2];
        double d;
        int32_t i[2];
        int64_t l;
        uint8_t b[8];
        uint64_t u;
    } v = {.u = 0};
    switch (kind) {
    case RP__REDUCE_MAX:
        if (type == RP__TILE_F32)
            v.f[0] = -INFINITY;
        else if (type == RP__TILE_F64)
            v.d = -(double)INFINITY;
        else if (type == RP__TILE_I32)
            v.i[0] = INT32_MIN;
        else if (type == RP__TILE_I64)
            v.l = INT64_MIN;
        break;
    case RP__REDUCE_MIN:
        if (type == RP__TILE_F32)
            v.f[0] = INFINITY;
        else if (type == RP__TILE_F64)
            v.d = (double)INFINITY;
        else if (type == RP__TILE_I32)
            v.i[0] = INT32_MAX;
        else if (type == RP__TILE_I64)
            v.l = INT64_MAX;
        else
            v.b[0] = 255;
        break;
    case RP__REDUCE_PROD:
        if (type == RP__TILE_F32)
            v.f[0] = 1;
        else if (type == RP__TILE_F64)
            v.d = 1;
        else
            v.l = 1;
        break;
    case RP__REDUCE_ALL: v.b[0] = 1; break;
    default: break;
    }
    return v.u;
}

void rp__program_release(rp__program *p) {
    if (!p) return;
    rp__arena_free(&p->arena);
    rp__free(p->groups);
    rp__free(p->insns);
    rp__free(p);
}

/* Is all of it a load and a store of the same bytes? */
static bool only_moves(const rp__program *p) {
    if (p->plan != RP__PLAN_ELEMENTS || p->n_phases != 1 || p->n_stores != 1) return false;
    const rp__insn *load = p->insns + p->element[0].begin, *store = load + 1;
    const rp__program_store *st = &p->stores[0];
    return p->element[0].end - p->element[0].begin == 2 && load->kind == RP__INSN_LOAD && load->a == RP__NO_VAL &&
           load->b == RP__NO_VAL && !p->access_windows[load->access] && store->kind == RP__INSN_STORE &&
           st->value == load->d && st->offset == RP__NO_VAL && st->predicate == RP__NO_VAL &&
           st->mode == RP__STORE_SET && p->access_size[load->access] == st->size &&
           p->access_load[load->access] == p->access_narrow[st->access];
}

static const rp__insn *maker(const rp__program *p, struct rp__segment s, uint16_t v) {
    for (uint32_t k = s.begin; k < s.end; k++) {
        const rp__insn *i = &p->insns[k];
        if (i->d == v && (i->kind == RP__INSN_OP || i->kind == RP__INSN_LOAD || i->kind == RP__INSN_IOTA)) return i;
    }
    return NULL;
}
static bool is_op(const rp__program *p, const rp__insn *i, rp__prim op, unsigned type) {
    return i && i->kind == RP__INSN_OP && i->fn == p->tiles->op[op][type];
}
/* Is the register the largest or the least of what an earlier phase loads from there? */
static bool is_extreme_of(const rp__program *p, unsigned phase, uint16_t v, uint16_t access) {
    for (unsigned k = 0; k < phase; k++) {
        for (uint32_t i = p->element[k].begin; i < p->element[k].end; i++) {
            const rp__insn *reduce = &p->insns[i];
            if (reduce->kind != RP__INSN_REDUCE || p->reductions[reduce->access].d != v) continue;
            const uint8_t kind = p->reductions[reduce->access].kind;
            const rp__insn *load = maker(p, p->element[k], reduce->a);
            return (kind == RP__REDUCE_MAX || kind == RP__REDUCE_MIN) && load && load->kind == RP__INSN_LOAD &&
                   load->a == RP__NO_VAL && load->b == RP__NO_VAL && load->access == access;
        }
    }
    return false;
}
/* MIN of WHERE(x == largest or isnan(x), number, INT64_MAX), where x is loaded as it is. */
static bool find_largest_in(const compiler *c, unsigned phase) {
    const rp__program *p = c->p;
    const struct rp__segment s = p->element[phase];
    const rp__insn *reduce = s.end > s.begin ? &p->insns[s.end - 1] : NULL;
    if (!reduce || reduce->kind != RP__INSN_REDUCE || p->reductions[reduce->access].kind != RP__REDUCE_MIN ||
        p->reductions[reduce->access].type != RP__TILE_I64)
        return false;
    const rp__insn *where = maker(p, s, reduce->a), *most = NULL;
    if (!is_op(p, where, RP__WHERE, RP__TILE_I64)) return false;
    for (uint32_t k = 0; k < p->uniform_end; k++) {
        const rp__insn *i = &p->insns[k];
        if (i->d == where->c && !i->fn && i->b == RP__NO_VAL && i->imm == INT64_MAX) most = i;
    }
    const rp__insn *iota = maker(p, s, where->b), *is = maker(p, s, where->a), *nan = NULL;
    if (!most || !iota || iota->kind != RP__INSN_IOTA || p->access_windows[iota->access] || !is) return false;
    if (is_op(p, is, RP__OR, RP__TILE_BOOL)) {
        const rp__insn *a = maker(p, s, is->a), *b = maker(p, s, is->b);
        const bool first = is_op(p, a, RP__ISNAN, RP__TILE_F32) || is_op(p, a, RP__ISNAN, RP__TILE_F64);
        nan = first ? a : b;
        is = first ? b : a;
        if (!nan) return false;
    }
    const rp__insn *load = is && is->kind == RP__INSN_OP ? maker(p, s, nan ? nan->a : is->a) : NULL;
    if (!load && is && is->kind == RP__INSN_OP && !nan) load = maker(p, s, is->b);
    if (!load || load->kind != RP__INSN_LOAD || load->a != RP__NO_VAL || load->b != RP__NO_VAL ||
        load->home != RP__HOME_TILE || !p->tiles->first[load->type] || !is_op(p, is, RP__EQ, load->type) ||
        (load->type == RP__TILE_F32 || load->type == RP__TILE_F64) != (nan != NULL) ||
        (nan && !is_op(p, nan, RP__ISNAN, load->type)) || p->access_windows[load->access])
        return false;
    const uint16_t largest = is->a == load->d ? is->b : is->a;
    if ((is->a != load->d && is->b != load->d) || c->class[largest] != ROW) return false;
    if (s.end - s.begin != (nan ? 7u : 5u) || !is_extreme_of(p, phase, largest, load->access)) return false;
    for (uint32_t k = s.begin; k < s.end; k++)
        if (p->insns[k].home != RP__HOME_TILE) return false; /* a later phase reads it */
    c->p->largest = (rp__program_largest){(uint16_t)(phase + 1), largest, iota->access, reduce->access,
                                          (uint32_t)(load - p->insns)};
    return true;
}
static void find_largest(const compiler *c) {
    for (unsigned phase = 0; phase < c->p->n_phases && c->p->plan != RP__PLAN_ELEMENTS; phase++) {
        if (find_largest_in(c, phase)) return;
    }
}

static bool compile(compiler *c) {
    const rp__dag *d = c->dag;
    rp__program *p = c->p;
    for (unsigned i = 0; i < d->n_accesses; i++) {
        const rp__access *a = &d->accesses[i];
        p->access_iota[i] = a->kind == RP__ACCESS_IOTA;
        p->access_size[i] = a->kind == RP__ACCESS_IOTA ? 8 : (uint8_t)size_of(a->dtype);
        p->access_narrow[i] = a->kind == RP__ACCESS_IOTA ? 0 : (uint8_t)rp__narrow_kind(a->dtype);
        p->access_load[i] = a->kind != RP__ACCESS_IOTA && a->dtype == RP_BOOL ? RP__LOAD_BOOL : p->access_narrow[i];
        p->access_row[i] = rp__dag_is_row(d, a->axes);
        p->access_windows[i] = a->windows;
        p->first_window[i] = (uint8_t)p->n_windows;
        p->n_windows = (uint16_t)(p->n_windows + a->windows);
        if (p->access_load[i]) p->converts = true;
        if (!p->access_row[i] && p->access_size[i] < p->min_size) p->min_size = p->access_size[i];
    }
    classify(c);

    /* Element phases, reductions. */
    int last = -1;
    for (unsigned v = 0; v < d->n_nodes; v++) {
        const rp__node *n = &d->nodes[v];
        if (n->op != RP__REDUCE) continue;
        unsigned type = rp__tile_type(n->dtype), size = size_of(n->dtype);
        uint32_t at = 0; /* accumulators serve one phase after the other, and each is aligned */
        for (unsigned r = 0; r < p->n_reductions; r++) {
            const rp__reduction *other = &p->reductions[r];
            if (other->phase == n->phase - 1) at = other->at + other->size;
        }
        at = (at + size - 1) / size * size;
        p->reductions[p->n_reductions++] = (rp__reduction){.kind = (uint8_t)n->imm.i,
                                                           .type = (uint8_t)type,
                                                           .size = (uint8_t)size,
                                                           .d = (uint16_t)v,
                                                           .phase = (uint16_t)(n->phase - 1),
                                                           .at = at,
                                                           .identity = identity_of((unsigned)n->imm.i, type)};
        if (p->acc_bytes < at + size) p->acc_bytes = at + size;
        if (n->phase - 1 > last) last = n->phase - 1;
    }
    for (unsigned r = 0; r < p->n_reductions; r++) {
        const unsigned size = p->reductions[r].size;
        p->acc_bytes = (p->acc_bytes + size - 1) / size * size; /* levels of the stack of partials follow each other */
    }
    for (unsigned v = 0; v < d->n_nodes; v++) {
        const rp__node *n = &d->nodes[v];
        if (n->op != RP__SCAN) continue;
        const unsigned size = size_of(n->dtype);
        p->scan_bytes = (p->scan_bytes + size - 1) / size * size;
        p->scans[p->n_scans++] = (rp__program_scan){.kind = (uint8_t)n->imm.i,
                                                    .type = (uint8_t)rp__tile_type(n->dtype),
                                                    .size = (uint8_t)size,
                                                    .at = p->scan_bytes};
        p->scan_bytes += RP__SCAN_STATE * size;
    }
    p->scan_bytes = (p->scan_bytes + 7) / 8 * 8;
    for (unsigned i = 0; i < d->n_stores; i++) {
        const rp__store *s = &d->stores[i];
        p->stores[i] = (rp__program_store){.access = s->access,
                                           .value = s->value,
                                           .offset = s->offset,
                                           .predicate = s->predicate,
                                           .dtype = d->accesses[s->access].dtype,
                                           .mode = s->mode,
                                           .row = rp__dag_is_row(d, s->axes) && c->plan != RP__PLAN_ELEMENTS,
                                           .size = (uint8_t)size_of(d->accesses[s->access].dtype)};
        p->written |= UINT64_C(1) << s->access;
        if (s->mode == RP__STORE_ADD) {
            p->serial = true;
            p->added |= UINT64_C(1) << s->access;
        }
        if (p->stores[i].row) continue;
        const rp__val operands[3] = {s->value, s->offset, s->predicate};
        for (int k = 0; k < 3; k++) {
            int phase = operands[k] == RP__NO_VAL || c->plan == RP__PLAN_ELEMENTS ? 0 : d->nodes[operands[k]].phase;
            if (phase > last) last = phase;
        }
    }
    p->n_phases = (uint16_t)(last + 1);

    /* Uniform values: constants and scalars first of all, then what depends on them only. */
    for (unsigned v = 0; v < d->n_nodes; v++) {
        if (c->class[v] != UNIFORM) continue;
        rp__insn *i = emit_node(c, v);
        if (!i) return false;
        i->home = RP__HOME_UNIFORM;
        i->at = p->n_blocks;
        p->block_reg[p->n_blocks++] = (uint16_t)v;
        const rp__node *n = &d->nodes[v];
        if (n->op == RP__CONST) {
            union {
                float f;
                uint64_t u;
            } f32 = {.u = 0};
            f32.f = (float)n->imm.f;
            i->imm = n->dtype == RP_F32 ? (int64_t)f32.u : n->imm.i;
        }
        i->b = n->op == RP__SCALAR ? n->access : i->b; /* fn NULL: b none: the bits are imm; else scalar word b */
    }
    p->uniform_end = (uint32_t)c->n_insns;
    for (unsigned v = 0; v < d->n_nodes; v++) {
        if (c->class[v] != ROW) continue;
        p->row_reg[p->n_row_regs] = (uint16_t)v;
        p->row_size[p->n_row_regs] = (uint8_t)size_of(d->nodes[v].dtype);
        c->block[v] = p->n_row_regs++;
        p->row_bytes += size_of(d->nodes[v].dtype);
    }
    for (unsigned phase = 0; phase < p->n_phases;
         phase++) { /* what must be kept is known before the first is emitted */
        find_needed(c, phase, phase + 1u == p->n_phases);
        for (unsigned v = 0; v < d->n_nodes; v++) c->made[v] |= c->needed[v];
    }
    memset(c->made, 0, sizeof c->made);
    for (unsigned phase = 0; phase <= p->n_phases; phase++) {
        p->row[phase].begin = (uint32_t)c->n_insns;
        for (unsigned v = 0; v < d->n_nodes; v++) {
            const rp__node *n = &d->nodes[v];
            if (c->class[v] != ROW || n->op == RP__REDUCE) continue;
            if (n->phase != phase && !(phase == p->n_phases && n->phase > phase)) continue;
            rp__insn *i = emit_node(c, v);
            if (!i) return false;
            i->home = RP__HOME_ROW;
            i->at = c->block[v];
        }
        p->row[phase].end = (uint32_t)c->n_insns;
        if (phase < p->n_phases && !emit_element_phase(c, phase, phase + 1u == p->n_phases)) return false;
    }
    p->n_insns = (uint32_t)c->n_insns;
    if (p->grouped) {
        memcpy(p->classes, c->class, d->n_nodes);
        if (p->min_size > 4) p->min_size = 4; /* emitted loops step by vectors of 32-bit lanes */
    }
    find_loaded(c);
    find_direct(c);
    p->moves = only_moves(p);
    find_largest(c);
    if (p->tile_bytes > RP__PROGRAM_TILE_BYTES || p->row_bytes > RP__PROGRAM_ROW_BYTES ||
        p->acc_bytes > RP__PROGRAM_ACC_BYTES || p->scan_bytes > RP__PROGRAM_SCAN_BYTES ||
        p->n_blocks > RP__PROGRAM_BLOCKS || p->n_row_regs > RP__PROGRAM_BLOCKS) {
        rp__fail(RP_ERROR_INTERNAL,
                 "loop kernel: too large for one kernel (%u bytes of live values an element, %u of row values, %u of "
                 "accumulators, %u constants); it must be split",
                 p->tile_bytes, p->row_bytes, p->acc_bytes, p->n_blocks);
        return false;
    }
    return true;
}

rp__program *rp__program_new(const rp__dag *dag, rp__plan plan, const rp__tiles *tiles, bool grouped) {
    compiler *c = rp__calloc(1, sizeof *c);
    size_t n = dag->n_nodes + 1u, phases = dag->n_phases + 1u;
    size_t bytes[] = {sizeof(rp__program),
                      phases * sizeof(struct rp__segment),
                      phases * sizeof(struct rp__segment),
                      n * sizeof(rp__reduction),
                      (dag->n_stores + 1u) * sizeof(rp__program_store),
                      n * sizeof(uint16_t),
                      n * sizeof(uint16_t),
                      n,
                      7 * (dag->n_accesses + 1u),
                      n,
                      n * sizeof(rp__program_scan)};
    size_t offset[11], total = 0;
    for (int i = 0; i < 11; i++) {
        offset[i] = total;
        total += (bytes[i] + 15) / 16 * 16;
    }
    char *memory = rp__calloc(1, total);
    if (!c || !memory) {
        rp__free(c);
        rp__free(memory);
        rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel program");
        return NULL;
    }
    rp__program *p = (rp__program *)memory;
    p->row = (struct rp__segment *)(memory + offset[1]);
    p->element = (struct rp__segment *)(memory + offset[2]);
    p->reductions = (rp__reduction *)(memory + offset[3]);
    p->stores = (rp__program_store *)(memory + offset[4]);
    p->row_reg = (uint16_t *)(memory + offset[5]);
    p->block_reg = (uint16_t *)(memory + offset[6]);
    p->row_size = (uint8_t *)(memory + offset[7]);
    p->access_size = (uint8_t *)(memory + offset[8]);
    p->access_narrow = p->access_size + dag->n_accesses;
    p->access_load = p->access_narrow + dag->n_accesses;
    p->access_row = p->access_load + dag->n_accesses;
    p->access_iota = p->access_row + dag->n_accesses;
    p->access_windows = p->access_iota + dag->n_accesses;
    p->first_window = p->access_windows + dag->n_accesses;
    p->classes = (uint8_t *)(memory + offset[9]);
    p->scans = (rp__program_scan *)(memory + offset[10]);
    p->grouped = grouped;
    p->tiles = tiles;
    p->plan = plan;
    p->n_regs = dag->n_nodes;
    p->n_accesses = dag->n_accesses;
    p->n_scalars = dag->n_scalars;
    p->n_stores = dag->n_stores;
    p->n_draws = dag->n_draws;
    p->checks = dag->checks;
    p->min_size = 8;
    const uint64_t extra[2] = {(uint64_t)plan, tiles->vec_bytes};
    p->key = rp__hash_bytes(extra, sizeof extra, dag->key);
    c->dag = dag;
    c->plan = plan;
    c->tiles = tiles;
    c->p = p;
    if (!compile(c)) {
        rp__program_release(p);
        p = NULL;
    }
    rp__free(c);
    return p;
}

/* ---- the table for this CPU ----------------------------------------------------------------------------------------- */

#ifndef RP_ISA_BASELINE_ONLY
static bool has_f16c(void) { /* clang 14 does not know the name */
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif
static bool cpu_has(const rp__tiles *t) {
#ifdef RP_ISA_BASELINE_ONLY
    return t == &rp__tiles_baseline;
#else
    __builtin_cpu_init();
    if (t == &rp__tiles_avx2) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    }
    if (t == &rp__tiles_avx512) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && cpu_has(&rp__tiles_avx2);
    }
    return t == &rp__tiles_baseline;
#endif
}
const rp__tiles *rp__tiles_named(const char *name) {
    static const rp__tiles *const all[] = {
#ifndef RP_ISA_BASELINE_ONLY
        &rp__tiles_avx512, &rp__tiles_avx2,
#endif
        &rp__tiles_baseline};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if ((!name || !strcmp(name, all[i]->name)) && cpu_has(all[i])) return all[i];
    }
    return NULL;
}
_Atomic(const rp__tiles *) rp__tiles_chosen;
const rp__tiles *rp__tiles_choose(void) {
    const char *name = rp__env("REPRISE_CPU");
    const rp__tiles *t = name ? rp__tiles_named(name) : NULL;
    if (name && !t && rp__env_understood("REPRISE_CPU"))
        rp__log(RP__LOG_ENVIRONMENT, "REPRISE_CPU=%s has no effect: this CPU or library has no such instruction set",
                name);
    if (!t) t = rp__tiles_named(NULL);
    atomic_store_explicit(&rp__tiles_chosen, t, memory_order_release);
    return t;
}
void rp__tiles_set(const rp__tiles *t) { atomic_store_explicit(&rp__tiles_chosen, t, memory_order_release); }
