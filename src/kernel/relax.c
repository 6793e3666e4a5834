/* See relax.h. One walk over the nodes, operands first: each is copied into a new builder, or said otherwise there. */
#include "kernel/relax.h"

#include "core/alloc.h"

typedef struct relaxed { /* of a node of the old DAG */
    rp__val value;       /* in the new one */
    rp__val exact;       /* the same with the rounding to its own type */
    rp__val x, y;        /* value is x * y, rounded; RP__NO_VAL: it is no product */
    uint32_t uses;
} relaxed;

typedef struct relaxer {
    const rp__dag *dag;
    rp__dag_builder *b;
    relaxed *of;
    unsigned freedoms;
    uint32_t *taken;
    bool changed;
} relaxer;

static bool may(const relaxer *r, rp__freedom f) { return r->freedoms >> f & 1u; }
static void took(relaxer *r, rp__freedom f) {
    r->taken[f]++;
    r->changed = true;
}
static bool is_float(unsigned dtype) { return dtype == RP_F32 || dtype == RP_F64; }

/* Does it tell values apart that differ in the last bit only? */
static bool is_sharp(unsigned op) {
    switch (op) {
    case RP__EQ:
    case RP__NE:
    case RP__LT:
    case RP__LE:
    case RP__FLOOR:
    case RP__CEIL:
    case RP__TRUNC:
    case RP__RINT:
    case RP__FLOORDIV:
    case RP__REMAINDER:
    case RP__FMOD:
    case RP__NEXTAFTER: return true;
    default: return false;
    }
}

/* Operand v of node n. */
static rp__val operand(const relaxer *r, const rp__node *n, rp__val v) {
    if (v == RP__NO_VAL) return v;
    const bool whole = n->op == RP__CAST && !is_float(n->dtype);
    return is_sharp(n->op) || whole ? r->of[v].exact : r->of[v].value;
}

/* A product that node n alone reads, and that is calculated as often. */
static bool joins(const relaxer *r, const rp__node *n, rp__val v) {
    const relaxed *o = &r->of[v];
    return o->x != RP__NO_VAL && o->uses == 1 && r->dag->nodes[v].axes == n->axes;
}

static bool contract(relaxer *r, const rp__node *n, relaxed *out) {
    if (!may(r, RP__FREE_FMA) || !is_float(n->dtype) || (n->op != RP__ADD && n->op != RP__SUB)) return false;
    const bool minus = n->op == RP__SUB, left = joins(r, n, n->a), right = !left && joins(r, n, n->b);
    if (!left && !right) return false;
    const relaxed *p = &r->of[left ? n->a : n->b];
    rp__val x = p->x, c = r->of[left ? n->b : n->a].value;
    if (minus && left) c = rp__dag_op(r->b, RP__NEG, c, RP__NO_VAL, RP__NO_VAL);
    if (minus && right) x = rp__dag_op(r->b, RP__NEG, x, RP__NO_VAL, RP__NO_VAL);
    out->value = rp__dag_op(r->b, RP__FMA, x, p->y, c);
    took(r, RP__FREE_FMA);
    return true;
}

/* Is the operand the same for several elements of the node? */
static bool stands_still(const relaxer *r, const rp__node *n, rp__val v) { return r->dag->nodes[v].axes != n->axes; }

static rp__val approximate(relaxer *r, const rp__node *n, rp__prim op, rp__val a, rp__val b) {
    const bool about = may(r, RP__FREE_FUNCTIONS) && n->dtype == RP_F32;
    if (about) took(r, RP__FREE_FUNCTIONS);
    return rp__dag_node(
        r->b, (rp__node){.op = (uint8_t)op, .dtype = n->dtype, .a = a, .b = b, .c = RP__NO_VAL, .imm.i = about});
}

static void calculate(relaxer *r, const rp__node *n, relaxed *out) {
    const rp__val a = operand(r, n, n->a), b = operand(r, n, n->b), c = operand(r, n, n->c);
    if (contract(r, n, out)) return;
    switch (n->op) {
    case RP__MUL:
        out->x = a;
        out->y = b;
        break;
    case RP__DIV:
        if (may(r, RP__FREE_QUOTIENT) && stands_still(r, n, n->b)) {
            out->x = a;
            out->y = approximate(r, n, RP__RECIP, b, RP__NO_VAL);
            out->value = rp__dag_op(r->b, RP__MUL, out->x, out->y, RP__NO_VAL);
            took(r, RP__FREE_QUOTIENT);
            return;
        }
        out->value = approximate(r, n, RP__DIV, a, b);
        return;
    case RP__RECIP:
    case RP__RSQRT:
    case RP__EXP:
    case RP__TANH:
    case RP__SIGMOID: out->value = approximate(r, n, (rp__prim)n->op, a, RP__NO_VAL); return;
    case RP__ROUND:
        if (may(r, RP__FREE_WIDE) && rp__dtype_is_half((rp_dtype)n->imm.i)) {
            *out = (relaxed){.value = a, .x = RP__NO_VAL, .y = RP__NO_VAL, .uses = out->uses};
            out->exact = rp__dag_op_imm(r->b, RP__ROUND, RP_F32, r->of[n->a].exact, n->imm.i);
            if (r->of[n->a].uses == 1) { /* a product goes on through it */
                out->x = r->of[n->a].x;
                out->y = r->of[n->a].y;
            }
            took(r, RP__FREE_WIDE);
            return;
        }
        break;
    default: break;
    }
    rp__node copy = *n;
    copy.a = a;
    copy.b = b;
    copy.c = c;
    out->value = rp__dag_node(r->b, copy);
}

static void count(relaxer *r, rp__val v) {
    if (v != RP__NO_VAL) r->of[v].uses++;
}

static void walk(relaxer *r) {
    const rp__dag *d = r->dag;
    for (unsigned k = 0; k < d->n_accesses; k++) {
        const rp__access *a = &d->accesses[k];
        (void)rp__dag_access_windows(r->b, (rp__access_kind)a->kind, (rp_dtype)a->dtype, a->axes, a->windows);
    }
    for (unsigned k = 0; k < d->n_scalars; k++) (void)rp__dag_scalar(r->b);
    for (unsigned k = 0; k < d->n_nodes; k++) {
        count(r, d->nodes[k].a);
        count(r, d->nodes[k].b);
        count(r, d->nodes[k].c);
    }
    for (unsigned k = 0; k < d->n_stores; k++) {
        count(r, d->stores[k].value);
        count(r, d->stores[k].offset);
        count(r, d->stores[k].predicate);
    }
    for (unsigned k = 0; k < d->n_nodes; k++) {
        relaxed *out = &r->of[k];
        out->value = out->exact = out->x = out->y = RP__NO_VAL;
        calculate(r, &d->nodes[k], out);
        if (out->exact == RP__NO_VAL) out->exact = out->value;
    }
    for (unsigned k = 0; k < d->n_stores; k++) {
        const rp__store *s = &d->stores[k];
        rp__dag_store_at(r->b, s->access, r->of[s->value].value,
                         s->offset == RP__NO_VAL ? RP__NO_VAL : r->of[s->offset].value,
                         s->predicate == RP__NO_VAL ? RP__NO_VAL : r->of[s->predicate].value, (rp__store_mode)s->mode);
    }
}

rp__dag *rp__dag_relax(rp__dag *dag, unsigned freedoms, uint32_t taken[RP__FREE_COUNT]) {
    if (!dag || !freedoms) return dag;
    relaxer r = {.dag = dag, .b = rp__dag_new(), .freedoms = freedoms, .taken = taken};
    r.of = rp__calloc(dag->n_nodes + 1u, sizeof *r.of);
    rp__dag *out = NULL;
    if (!r.b || !r.of) {
        rp__dag_abandon(r.b);
        (void)RP__OOM("a relaxed kernel");
    } else {
        walk(&r);
        if (r.changed) {
            out = rp__dag_finish(r.b);
        } else {
            rp__dag_abandon(r.b);
            out = rp__dag_retain(dag);
        }
    }
    rp__free(r.of);
    rp__dag_release(dag);
    return out;
}
