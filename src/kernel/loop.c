/* Loop kernels: the builder (hash-consing, folding), interning, text form and the order of chunk partials.
   Called by lowerings, the fuser and tests. Knows nothing of devices but who frees their compiled forms. A DAG is immutable
   once finished; the builder belongs to one thread. */
#include "kernel/loop.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/thread.h"
#include "kernel/product.h"
#include "kernel/tree.h"

typedef enum prim_class { ARITH, FLOAT, BITS, CMP, LOGIC, SEL, CAST_CLASS, CLASSIFY, ANY } prim_class;
#define CAST CAST_CLASS
static const struct prim_info {
    const char *name;
    uint8_t arity, class;
} prims[RP__NODE_COUNT] = {
#define RP_PRIM(name, arity, class) {#name, arity, class},
#include "kernel/prims.def"
    {"LOAD", 2, ANY},   {"IOTA", 0, ANY},   {"INSIDE", 0, ANY}, {"CONST", 0, ANY},
    {"SCALAR", 0, ANY}, {"REDUCE", 1, ANY}, {"SCAN", 1, ANY},   {"CONTRACT", 2, ANY},
};
#undef CAST
static const char *const reduce_names[] = {"sum", "max", "min", "prod", "any", "all"};
static const char *const scan_names[] = {"sum", "prod", "max", "min", "logaddexp"};
static const char *const contract_names[] = {"product", "conv", "conv_input", "conv_weight"};

struct rp__dag_builder {
    bool failed;
    rp__node *nodes;
    size_t n_nodes, node_capacity;
    uint32_t *table; /* open addressing: node index + 1 */
    size_t table_size;
    uint16_t n_accesses, n_windows, n_scalars, n_stores;
    rp__access accesses[RP__DAG_MAX_ACCESSES];
    uint8_t scalar_dtypes[RP__DAG_MAX_SCALARS];
    rp__store stores[RP__DAG_MAX_ACCESSES];
};

static rp__val fail(rp__dag_builder *b, const char *why) {
    if (b && !b->failed) {
        b->failed = true;
        rp__fail(RP_ERROR_INTERNAL, "loop kernel: %s", why);
    }
    return RP__NO_VAL;
}

rp__dag_builder *rp__dag_new(void) {
    rp__dag_builder *b = rp__calloc(1, sizeof *b);
    if (!b) rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel builder");
    return b;
}
void rp__dag_abandon(rp__dag_builder *b) {
    if (!b) return;
    rp__free(b->nodes);
    rp__free(b->table);
    rp__free(b);
}

uint16_t rp__dag_access(rp__dag_builder *b, rp__access_kind kind, rp_dtype dtype, rp__axes axes) {
    if (!b || b->failed) return 0;
    if (b->n_accesses == RP__DAG_MAX_ACCESSES) {
        fail(b, "too many accesses");
        return 0;
    }
    b->accesses[b->n_accesses] = (rp__access){.kind = (uint8_t)kind, .dtype = (uint8_t)dtype, .axes = axes};
    return b->n_accesses++;
}
uint16_t rp__dag_access_windows(rp__dag_builder *b, rp__access_kind kind, rp_dtype dtype, rp__axes axes,
                                unsigned windows) {
    const uint16_t access = rp__dag_access(b, kind, dtype, axes);
    if (!b || b->failed) return 0;
    if (windows > RP__ACCESS_WINDOWS || b->n_windows + windows > RP__DAG_WINDOWS ||
        (windows && kind != RP__ACCESS_READ && kind != RP__ACCESS_IOTA)) {
        fail(b, "too many windows, or windows of a store");
        return 0;
    }
    b->accesses[access].windows = (uint8_t)windows;
    b->n_windows = (uint16_t)(b->n_windows + windows);
    return access;
}
uint16_t rp__dag_scalar(rp__dag_builder *b) {
    if (!b || b->failed) return 0;
    if (b->n_scalars == RP__DAG_MAX_SCALARS) {
        fail(b, "too many scalars");
        return 0;
    }
    return b->n_scalars++;
}
rp_dtype rp__dag_dtype(const rp__dag_builder *b, rp__val v) {
    return b && v < b->n_nodes ? (rp_dtype)b->nodes[v].dtype : RP_DTYPE_NONE;
}

/* ---- nodes ---------------------------------------------------------------------------------------------------------- */

static uint64_t node_hash(const rp__node *n) {
    uint64_t h = rp__hash_mix((uint64_t)n->over << 48 | (uint64_t)n->op << 32 | (uint64_t)n->dtype << 16 | n->access,
                              (uint64_t)n->imm.i);
    return rp__hash_mix(h, (uint64_t)n->a << 32 | (uint64_t)n->b << 16 | n->c);
}
static bool node_equal(const rp__node *x, const rp__node *y) {
    return x->op == y->op && x->dtype == y->dtype && x->a == y->a && x->b == y->b && x->c == y->c &&
           x->access == y->access && x->over == y->over && x->imm.i == y->imm.i;
}
static bool table_grow(rp__dag_builder *b) {
    size_t size = b->table_size ? b->table_size * 2 : 64;
    uint32_t *table = rp__calloc(size, sizeof *table);
    if (!table) return false;
    for (size_t i = 0; i < b->n_nodes; i++) {
        size_t at = node_hash(&b->nodes[i]) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = (uint32_t)i + 1;
    }
    rp__free(b->table);
    b->table = table;
    b->table_size = size;
    return true;
}
/* The node, found or made; axes and phase follow from the operands. */
static rp__val intern(rp__dag_builder *b, rp__node n) {
    if (!b || b->failed) return RP__NO_VAL;
    if (2 * (b->n_nodes + 1) > b->table_size && !table_grow(b)) goto oom;
    size_t at = node_hash(&n) & (b->table_size - 1);
    for (; b->table[at]; at = (at + 1) & (b->table_size - 1)) {
        if (node_equal(&b->nodes[b->table[at] - 1], &n)) return (rp__val)(b->table[at] - 1);
    }
    if (b->n_nodes == RP__DAG_MAX_NODES) return fail(b, "too many nodes");
    if (!RP__GROW(&b->nodes, &b->node_capacity, b->n_nodes + 1)) goto oom;
    const rp__val operands[3] = {n.a, n.b, n.c};
    n.axes = n.op == RP__LOAD || n.op == RP__IOTA || n.op == RP__INSIDE ? b->accesses[n.access].axes : 0;
    n.phase = 0;
    for (int i = 0; i < 3; i++) {
        if (operands[i] == RP__NO_VAL) continue;
        const rp__node *o = &b->nodes[operands[i]];
        n.axes |= o->axes;
        if (o->phase > n.phase) n.phase = o->phase;
    }
    if (n.op == RP__REDUCE || n.op == RP__CONTRACT) {
        if (n.phase == 254) return fail(b, "too many phases");
        n.axes &= (rp__axes)~n.over;
        n.phase++;
    }
    if (n.op == RP__SCAN) n.axes |= n.over;
    b->nodes[b->n_nodes] = n;
    b->table[at] = (uint32_t)++b->n_nodes;
    return (rp__val)(b->n_nodes - 1);
oom:
    b->failed = true;
    rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel builder");
    return RP__NO_VAL;
}
static rp__node node_of(rp__prim op, rp_dtype dtype, rp__val a, rp__val x, rp__val c) {
    return (rp__node){.op = (uint8_t)op, .dtype = (uint8_t)dtype, .a = a, .b = x, .c = c};
}
static bool is_compute(rp_dtype d) { return rp__dtype_is_valid(d) && !rp__dtype_is_narrow(d); }
static bool is_int(rp_dtype d) { return is_compute(d) && rp__dtypes[d].category == RP__CATEGORY_INT; }
static bool is_float(rp_dtype d) { return is_compute(d) && rp__dtype_is_float(d); }
static bool valid(rp__dag_builder *b, rp__val v) { return b && !b->failed && v < b->n_nodes; }

rp__val rp__dag_load(rp__dag_builder *b, uint16_t access, rp__val offset, rp__val predicate) {
    if (!b || b->failed) return RP__NO_VAL;
    if (access >= b->n_accesses) return fail(b, "load of an unknown access");
    if (offset != RP__NO_VAL && rp__dag_dtype(b, offset) != RP_I64) return fail(b, "an offset must be i64");
    if (b->accesses[access].windows && (offset != RP__NO_VAL || predicate != RP__NO_VAL))
        return fail(b, "an offset or predicate beside windows");
    if (predicate != RP__NO_VAL && rp__dag_dtype(b, predicate) != RP_BOOL) return fail(b, "a predicate must be bool");
    rp__node n = node_of((rp__prim)RP__LOAD, (rp_dtype)rp__dtypes[b->accesses[access].dtype].compute, offset, predicate,
                         RP__NO_VAL);
    n.access = access;
    return intern(b, n);
}
rp__val rp__dag_iota(rp__dag_builder *b, uint16_t access) {
    if (!b || b->failed) return RP__NO_VAL;
    if (access >= b->n_accesses) return fail(b, "iota of an unknown access");
    rp__node n = node_of((rp__prim)RP__IOTA, RP_I64, RP__NO_VAL, RP__NO_VAL, RP__NO_VAL);
    n.access = access;
    return intern(b, n);
}

rp__val rp__dag_inside(rp__dag_builder *b, uint16_t access) {
    if (!b || b->failed) return RP__NO_VAL;
    if (access >= b->n_accesses || !b->accesses[access].windows) return fail(b, "inside of an access without windows");
    rp__node n = node_of((rp__prim)RP__INSIDE, RP_BOOL, RP__NO_VAL, RP__NO_VAL, RP__NO_VAL);
    n.access = access;
    return intern(b, n);
}

/* An integer brought into the range of dtype d by wrapping. */
static int64_t wrap(int64_t v, rp_dtype d) {
    const unsigned digits = rp__dtypes[d].digits;
    if (d == RP_BOOL) return v != 0;
    if (digits == 63) return v;
    const int64_t low = (int64_t)((uint64_t)v & ((UINT64_C(1) << digits) - 1)); /* without the sign */
    return rp__dtypes[d].reach && (v >> digits & 1) ? low - (INT64_C(1) << digits) : low;
}
static int64_t f64_to_i64(double f) {
    if (isnan(f)) return 0;
    if (f >= 0x1p63) return INT64_MAX;
    return f < -0x1p63 ? INT64_MIN : (int64_t)f;
}
/* What CAST gives for a constant. */
static void cast_imm(rp__node *n, rp_dtype from, rp_dtype to) {
    if (is_float(from) && is_float(to)) {
        if (to == RP_F32) n->imm.f = (float)n->imm.f;
    } else if (is_float(from)) {
        double f = n->imm.f;
        if (to == RP_BOOL) {
            n->imm.i = !(f == 0);
        } else {
            int64_t v = f64_to_i64(f);
            if (to == RP_I32) v = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v;
            n->imm.i = wrap(v, to);
        }
    } else if (is_float(to)) {
        n->imm.f = to == RP_F32 ? (double)(float)n->imm.i : (double)n->imm.i;
    } else {
        n->imm.i = wrap(n->imm.i, to);
    }
    n->dtype = (uint8_t)to;
}
rp__val rp__dag_const(rp__dag_builder *b, rp_dtype compute, rp_scalar value) {
    if (!b || b->failed) return RP__NO_VAL;
    if (!is_compute(compute)) return fail(b, "a constant of a storage type");
    rp__node n = node_of((rp__prim)RP__CONST, compute, RP__NO_VAL, RP__NO_VAL, RP__NO_VAL);
    if (value.kind == RP_SCALAR_F64) {
        n.imm.f = value.v.f;
        cast_imm(&n, RP_F64, compute);
    } else {
        n.imm.i = value.kind == RP_SCALAR_BOOL ? value.v.b : value.v.i;
        cast_imm(&n, RP_I64, compute);
    }
    return intern(b, n);
}
static rp__val const_int(rp__dag_builder *b, rp_dtype d, int64_t v) {
    return rp__dag_const(b, d, (rp_scalar){RP_SCALAR_I64, {.i = v}});
}
rp__val rp__dag_scalar_value(rp__dag_builder *b, uint16_t scalar, rp_dtype compute) {
    if (!b || b->failed) return RP__NO_VAL;
    if (scalar >= b->n_scalars || !is_compute(compute)) return fail(b, "an unknown scalar, or one of a storage type");
    if (b->scalar_dtypes[scalar] && b->scalar_dtypes[scalar] != (uint8_t)compute) {
        return fail(b, "a scalar is read in two dtypes");
    }
    b->scalar_dtypes[scalar] = (uint8_t)compute;
    rp__node n = node_of((rp__prim)RP__SCALAR, compute, RP__NO_VAL, RP__NO_VAL, RP__NO_VAL);
    n.access = scalar;
    return intern(b, n);
}

/* ---- operations and folding ----------------------------------------------------------------------------------------- */

/* Folds an operation on integer or bool constants; false: not folded (division by zero must reach the error record). */
static bool fold(rp__prim op, rp_dtype d, int64_t x, int64_t y, int64_t *out) {
    uint64_t ux = (uint64_t)x, uy = (uint64_t)y;
    switch (op) {
    case RP__ADD: *out = wrap((int64_t)(ux + uy), d); return true;
    case RP__SUB: *out = wrap((int64_t)(ux - uy), d); return true;
    case RP__MUL: *out = wrap((int64_t)(ux * uy), d); return true;
    case RP__NEG: *out = wrap((int64_t)(0 - ux), d); return true;
    case RP__ABS: *out = wrap(x < 0 ? (int64_t)(0 - ux) : x, d); return true;
    case RP__SIGN: *out = (x > 0) - (x < 0); return true;
    case RP__MAX: *out = x > y ? x : y; return true;
    case RP__MIN: *out = x < y ? x : y; return true;
    case RP__AND: *out = x & y; return true;
    case RP__OR: *out = x | y; return true;
    case RP__XOR: *out = x ^ y; return true;
    case RP__NOT: *out = d == RP_BOOL ? !x : wrap(~x, d); return true;
    case RP__EQ: *out = x == y; return true;
    case RP__NE: *out = x != y; return true;
    case RP__LT: *out = x < y; return true;
    case RP__LE: *out = x <= y; return true;
    case RP__FLOORDIV:
    case RP__REMAINDER: {
        if (y == 0) return false;
        int64_t q = y == -1 ? (int64_t)(0 - ux) : x / y, r = y == -1 ? 0 : x % y;
        if (r && (r < 0) != (y < 0)) {
            q--;
            r += y;
        }
        *out = wrap(op == RP__FLOORDIV ? q : r, d);
        return true;
    }
    default: return false;
    }
}
static bool is_const(const rp__dag_builder *b, rp__val v, int64_t i) {
    return b->nodes[v].op == RP__CONST && !is_float((rp_dtype)b->nodes[v].dtype) && b->nodes[v].imm.i == i;
}
static bool accepts(prim_class class, rp_dtype d) {
    switch (class) {
    case ARITH: return d != RP_BOOL;
    case FLOAT:
    case CLASSIFY: return is_float(d);
    case BITS: return is_int(d) || d == RP_BOOL;
    case LOGIC: return d == RP_BOOL;
    default: return true;
    }
}

rp__val rp__dag_op(rp__dag_builder *b, rp__prim op, rp__val a, rp__val x, rp__val c) {
    if (!b || b->failed) return RP__NO_VAL;
    if ((unsigned)op >= RP__PRIM_COUNT || op == RP__CAST || op == RP__ROUND || op == RP__PHILOX || op == RP__PHILOX64 ||
        op == RP__PHILOX_NORMAL) {
        return fail(b, "an operation that has a builder of its own");
    }
    const struct prim_info *info = &prims[op];
    if (!valid(b, a) || (info->arity > 1 && !valid(b, x)) || (info->arity > 2 && !valid(b, c))) {
        return fail(b, "a missing operand");
    }
    int64_t imm = 0;
    rp_dtype d = rp__dag_dtype(b, op == RP__WHERE ? x : a), result = d;
    if (op == RP__CHECK_INDEX) {
        imm = c == 1;
        c = RP__NO_VAL;
        if (d != RP_I64) return fail(b, "CHECK_INDEX takes i64");
    }
    if (info->arity < 2) x = RP__NO_VAL;
    if (info->arity < 3) c = RP__NO_VAL;
    if (op == RP__WHERE) {
        if (rp__dag_dtype(b, a) != RP_BOOL || rp__dag_dtype(b, c) != d) return fail(b, "WHERE takes (bool, T, T)");
        if (b->nodes[a].op == RP__CONST) return b->nodes[a].imm.i ? x : c;
        if (x == c) return x;
    } else {
        if ((x != RP__NO_VAL && rp__dag_dtype(b, x) != d) || (c != RP__NO_VAL && rp__dag_dtype(b, c) != d))
            return fail(b, "operands of different types");
        if (!accepts((prim_class)info->class, d)) return fail(b, "an operand type that the operation does not take");
    }
    if (info->class == CMP || info->class == CLASSIFY) result = RP_BOOL;
    if (!is_float(d) && op != RP__WHERE && op != RP__CHECK_INDEX) {
        int64_t v;
        bool ca = b->nodes[a].op == RP__CONST, cx = x == RP__NO_VAL || b->nodes[x].op == RP__CONST;
        if (ca && cx && fold(op, d, b->nodes[a].imm.i, x == RP__NO_VAL ? 0 : b->nodes[x].imm.i, &v)) {
            return const_int(b, result, v);
        }
        if (d != RP_BOOL) {
            if (op == RP__ADD && is_const(b, a, 0)) return x;
            if ((op == RP__ADD || op == RP__SUB) && is_const(b, x, 0)) return a;
            if (op == RP__MUL && is_const(b, a, 1)) return x;
            if ((op == RP__MUL || op == RP__FLOORDIV) && is_const(b, x, 1)) return a;
            if (op == RP__MUL && is_const(b, a, 0)) return a;
            if (op == RP__MUL && is_const(b, x, 0)) return x;
        } else if (op == RP__NOT && b->nodes[a].op == RP__NOT) {
            return b->nodes[a].a;
        }
    }
    rp__node n = node_of(op, result, a, x, c);
    n.imm.i = imm;
    return intern(b, n);
}

rp__val rp__dag_op_imm(rp__dag_builder *b, rp__prim op, rp_dtype dtype, rp__val a, int64_t imm) {
    if (!b || b->failed) return RP__NO_VAL;
    if (!valid(b, a)) return fail(b, "a missing operand");
    rp_dtype d = rp__dag_dtype(b, a);
    switch (op) {
    case RP__ROUND:
        if (!rp__dtype_is_valid((rp_dtype)imm) || !rp__dtype_is_narrow((rp_dtype)imm) || rp__dtypes[imm].compute != d)
            return fail(b, "ROUND takes a value to a type that is calculated in the value's");
        if (b->nodes[a].op == RP__ROUND && b->nodes[a].imm.i == imm) return a;
        if (b->nodes[a].op == RP__LOAD && b->accesses[b->nodes[a].access].dtype == imm) return a;
        dtype = d;
        break;
    case RP__PHILOX:
    case RP__PHILOX64:
    case RP__PHILOX_NORMAL:
        if (d != RP_I64 || imm < 0 || imm > 255)
            return fail(b, "a random number takes an i64 element number and a draw");
        if (op != RP__PHILOX_NORMAL) dtype = RP_I64;
        if (!is_float(dtype) && dtype != RP_I64) return fail(b, "random numbers are i64, f32 or f64");
        break;
    default: return fail(b, "an operation without an immediate");
    }
    rp__node n = node_of(op, dtype, a, RP__NO_VAL, RP__NO_VAL);
    n.imm.i = imm;
    return intern(b, n);
}

rp__val rp__dag_node(rp__dag_builder *b, rp__node n) {
    if (!b || b->failed) return RP__NO_VAL;
    if ((n.a != RP__NO_VAL && !valid(b, n.a)) || (n.b != RP__NO_VAL && !valid(b, n.b)) ||
        (n.c != RP__NO_VAL && !valid(b, n.c)))
        return fail(b, "a missing operand");
    if (n.op == RP__SCALAR) return rp__dag_scalar_value(b, n.access, (rp_dtype)n.dtype);
    return intern(b, n);
}

rp__val rp__dag_cast(rp__dag_builder *b, rp__val a, rp_dtype to) {
    if (!b || b->failed) return RP__NO_VAL;
    if (!valid(b, a) || !rp__dtype_is_valid(to)) return fail(b, "a missing operand");
    rp_dtype compute = (rp_dtype)rp__dtypes[to].compute, from = rp__dag_dtype(b, a);
    if (from != compute) {
        if (b->nodes[a].op == RP__CONST) {
            rp__node n = b->nodes[a];
            cast_imm(&n, from, compute);
            a = intern(b, n);
        } else {
            a = intern(b, node_of(RP__CAST, compute, a, RP__NO_VAL, RP__NO_VAL));
        }
    }
    return compute != to && a != RP__NO_VAL ? rp__dag_op_imm(b, RP__ROUND, compute, a, to) : a;
}

rp__val rp__dag_reduce(rp__dag_builder *b, rp__reduce_kind kind, rp__val a, rp__axes over) {
    if (!b || b->failed) return RP__NO_VAL;
    if (!valid(b, a) || (unsigned)kind > RP__REDUCE_ALL || !over) return fail(b, "a missing operand");
    rp_dtype d = rp__dag_dtype(b, a);
    if (kind == RP__REDUCE_SUM || kind == RP__REDUCE_PROD) {
        if (!is_float(d)) a = rp__dag_cast(b, a, RP_I64);
    } else if (kind == RP__REDUCE_ANY || kind == RP__REDUCE_ALL) {
        a = rp__dag_cast(b, a, RP_BOOL);
    } else if (d == RP_BOOL) {
        kind = kind == RP__REDUCE_MAX ? RP__REDUCE_ANY : RP__REDUCE_ALL;
    }
    if (a == RP__NO_VAL) return a;
    rp__node n = node_of((rp__prim)RP__REDUCE, rp__dag_dtype(b, a), a, RP__NO_VAL, RP__NO_VAL);
    n.imm.i = kind;
    n.over = over;
    return intern(b, n);
}

rp__val rp__dag_scan(rp__dag_builder *b, rp__scan_kind kind, rp__val a, rp__axes over) {
    if (!b || b->failed) return RP__NO_VAL;
    if (!valid(b, a) || (unsigned)kind >= RP__SCAN_KINDS || !over) return fail(b, "a missing operand");
    rp_dtype d = rp__dag_dtype(b, a);
    if (kind == RP__SCAN_LOGADDEXP && !is_float(d)) return fail(b, "a sum of exponentials of integers");
    if (!is_float(d) && (kind == RP__SCAN_SUM || kind == RP__SCAN_PROD))
        a = rp__dag_cast(b, a, RP_I64);
    else if (d == RP_BOOL)
        a = rp__dag_cast(b, a, RP_U8);
    if (a == RP__NO_VAL) return a;
    rp__node n = node_of((rp__prim)RP__SCAN, rp__dag_dtype(b, a), a, RP__NO_VAL, RP__NO_VAL);
    n.imm.i = kind;
    n.over = over;
    return intern(b, n);
}

rp__val rp__dag_contract(rp__dag_builder *b, rp__val a, rp__val x, rp__axes over, rp__order order) {
    if (!b || b->failed) return RP__NO_VAL;
    if (!valid(b, a) || !valid(b, x) || !over) return fail(b, "a missing operand");
    const rp_dtype d = rp__dag_dtype(b, a);
    if (rp__dag_dtype(b, x) != d || d == RP_BOOL) return fail(b, "a product of different types, or of bools");
    rp__node n = node_of((rp__prim)RP__CONTRACT, d, a, x, RP__NO_VAL);
    n.imm.i = order;
    n.over = over;
    return intern(b, n);
}

void rp__dag_store(rp__dag_builder *b, uint16_t access, rp__val value) {
    rp__dag_store_at(b, access, value, RP__NO_VAL, RP__NO_VAL, RP__STORE_SET);
}
void rp__dag_store_at(rp__dag_builder *b, uint16_t access, rp__val value, rp__val offset, rp__val predicate,
                      rp__store_mode mode) {
    if (!b || b->failed) return;
    if (access >= b->n_accesses || !valid(b, value)) {
        fail(b, "a store of nothing");
        return;
    }
    const rp__access *to = &b->accesses[access];
    if (to->kind != RP__ACCESS_WRITE && to->kind != RP__ACCESS_READ_WRITE) {
        fail(b, "a store to an access that is not written");
        return;
    }
    if ((offset != RP__NO_VAL && rp__dag_dtype(b, offset) != RP_I64) ||
        (predicate != RP__NO_VAL && rp__dag_dtype(b, predicate) != RP_BOOL)) {
        fail(b, "an offset must be i64 and a predicate bool");
        return;
    }
    /* The rounding to a 16-bit type is the store's own. */
    value = rp__dag_cast(b, value, (rp_dtype)rp__dtypes[to->dtype].compute);
    if (b->failed) return;
    const rp__axes varies = b->nodes[value].axes | (offset == RP__NO_VAL ? 0 : b->nodes[offset].axes) |
                            (predicate == RP__NO_VAL ? 0 : b->nodes[predicate].axes);
    if (varies & ~to->axes) {
        fail(b, "a store of a value that changes along axes which the store does not walk");
        return;
    }
    if (b->n_stores == RP__DAG_MAX_ACCESSES) {
        fail(b, "too many stores");
        return;
    }
    b->stores[b->n_stores++] = (rp__store){.access = access,
                                           .value = value,
                                           .offset = offset,
                                           .predicate = predicate,
                                           .mode = (uint8_t)mode,
                                           .axes = to->axes};
}

/* ---- finishing: dead nodes, key, interning -------------------------------------------------------------------------- */

static struct {
    rp__mutex lock;
    rp__map map; /* key -> rp__dag; weak: a DAG leaves when its last reference goes */
} interned = {RP__MUTEX_INIT, {NULL, 0, 0}};
RP__LOCKS_SURVIVE_FORK(fork_lock, &interned.lock, 1)

/* By device type: who frees rp__dag.backend. */
static const rp__loop_backend *const backends[2] = {
    [RP_DEVICE_CPU] = &rp__cpu_loops, [RP_DEVICE_CUDA] = &rp__cuda_loops};

static void mark(uint8_t *live, rp__val v) {
    if (v != RP__NO_VAL) live[v] = 1;
}

/* ---- axes */

/* Does axis x come before y? Those that no reduction removes come first; of two that accesses have alike, x and y are one (0). */
static int compare_axes(const rp__dag *d, unsigned x, unsigned y) {
    for (unsigned i = 0; i < d->n_nodes; i++) {
        const unsigned over = d->nodes[i].over;
        if ((over >> x & 1u) != (over >> y & 1u)) return over >> x & 1u ? 1 : -1;
    }
    for (unsigned a = 0; a < d->n_accesses; a++) {
        const unsigned has = d->accesses[a].axes;
        if ((has >> x & 1u) != (has >> y & 1u)) return has >> x & 1u ? -1 : 1;
    }
    return 0;
}
static rp__axes renamed_axes(rp__axes axes, const uint8_t *map) {
    unsigned out = 0;
    for (unsigned x = 0; x < RP__DAG_MAX_AXES; x++) {
        if ((axes >> x & 1u) && map[x] < RP__DAG_MAX_AXES) out |= 1u << map[x];
    }
    return (rp__axes)out;
}
/* What templates of rows ask: see rp__dag.rows. */
static void find_rows(rp__dag *d) {
    d->rows = true;
    for (unsigned i = 0; i < d->n_nodes; i++) {
        if (!d->nodes[i].over) continue;
        if (d->inner && d->inner != d->nodes[i].over) d->rows = false;
        d->inner |= d->nodes[i].over;
    }
    const unsigned all = (1u << d->n_axes) - 1u;
    for (unsigned i = 0; i < d->n_stores && !d->inner; i++) d->inner = (rp__axes)(all & ~d->stores[i].axes);
    for (unsigned a = 0; a < d->n_accesses; a++) {
        const unsigned has = d->accesses[a].axes & d->inner;
        if (has && has != d->inner) d->rows = false;
    }
}
/* Canonical axes: one for all that are alike, in the order of compare_axes. */
static void name_axes(rp__dag *d, rp__node *nodes, rp__access *accesses, rp__store *stores, uint8_t *map) {
    uint8_t order[RP__DAG_MAX_AXES];
    unsigned used = 0, n = 0;
    for (unsigned a = 0; a < d->n_accesses; a++) used |= accesses[a].axes;
    for (unsigned i = 0; i < d->n_nodes; i++) used |= nodes[i].over; /* a sum of equal values */
    for (unsigned x = 0; x < RP__DAG_MAX_AXES; x++) {
        map[x] = RP__DAG_MAX_AXES;
        if (!(used >> x & 1u)) continue;
        unsigned at = n++;
        for (; at > 0 && compare_axes(d, x, order[at - 1]) < 0; at--) order[at] = order[at - 1];
        order[at] = (uint8_t)x;
    }
    for (unsigned k = 0; k < n; k++) {
        d->n_axes = (uint8_t)(d->n_axes + (k == 0 || compare_axes(d, order[k - 1], order[k]) != 0));
        map[order[k]] = (uint8_t)(d->n_axes - 1);
    }
    for (unsigned i = 0; i < d->n_nodes; i++) {
        nodes[i].axes = renamed_axes(nodes[i].axes, map);
        nodes[i].over = renamed_axes(nodes[i].over, map);
        d->ordered |= nodes[i].over;
    }
    for (unsigned a = 0; a < d->n_accesses; a++) accesses[a].axes = renamed_axes(accesses[a].axes, map);
    for (unsigned i = 0; i < d->n_stores; i++) stores[i].axes = renamed_axes(stores[i].axes, map);
    find_rows(d);
}

/* ---- what follows a contraction, and what makes its factors */

static bool plain_load(const rp__dag *d, rp__val v) {
    const rp__node *n = &d->nodes[v];
    return n->op == RP__LOAD && n->a == RP__NO_VAL && n->b == RP__NO_VAL;
}

/* The contraction, if there is one and nothing else that adds up; else the builder fails. */
static unsigned contraction_of(const rp__dag *d, rp__dag_builder *b) {
    unsigned contract = RP__NO_VAL;
    for (unsigned i = 0; i < d->n_nodes; i++) {
        if (d->nodes[i].op == RP__CONTRACT && contract == RP__NO_VAL)
            contract = i;
        else if (d->nodes[i].over)
            (void)fail(b, "a contraction stands alone among reductions");
    }
    return contract;
}

static void mark_operands(const rp__dag *d, uint8_t *live, unsigned contract) {
    for (unsigned i = d->n_nodes; i-- > 0;) {
        if (!live[i] || i == contract) continue;
        mark(live, d->nodes[i].a);
        mark(live, d->nodes[i].b);
        mark(live, d->nodes[i].c);
    }
}

/* A DAG of points: what follows the contraction, whose access 0 reads the sum, or, of operand `factor`, what makes it, whose access 0 it is
   stored to. `from`: the accesses of d that the others are. NULL and a sticky error. */
static rp__dag *make_part(const rp__dag *d, rp__val factor, uint16_t *from) {
    const bool follows = factor == RP__NO_VAL;
    rp__val *made = rp__alloc((d->n_nodes + 1u) * sizeof *made);
    uint8_t *live = rp__calloc(d->n_nodes + 1u, 1);
    uint16_t *to = rp__alloc((d->n_accesses + 1u) * sizeof *to);
    rp__dag_builder *b = rp__dag_new();
    rp__dag *part = NULL;
    const bool room = made && live && to && b;
    const unsigned contract = room ? contraction_of(d, b) : 0, n_stores = follows ? d->n_stores : 0u;
    for (unsigned i = 0; room && i < n_stores; i++) {
        mark(live, d->stores[i].value);
        mark(live, d->stores[i].offset);
        mark(live, d->stores[i].predicate);
        if (d->stores[i].axes & d->ordered) (void)fail(b, "a store along the axes of a contraction");
    }
    if (room && !follows) mark(live, factor);
    if (room) mark_operands(d, live, contract);
    const bool fits = room && !b->failed && contract != RP__NO_VAL;
    if (fits) {
        memset(to, 0xff, d->n_accesses * sizeof *to);
        (void)rp__dag_access(b, follows ? RP__ACCESS_READ : RP__ACCESS_WRITE, (rp_dtype)d->nodes[contract].dtype,
                             RP__ALONG_ROWS);
        for (unsigned i = 0; i < d->n_scalars; i++) b->scalar_dtypes[rp__dag_scalar(b)] = d->scalar_dtypes[i];
        from[0] = RP__NO_VAL;
    }
    for (unsigned i = 0; fits && i < d->n_nodes + n_stores; i++) {
        const rp__node *n = i < d->n_nodes ? &d->nodes[i] : NULL;
        if (n && !live[i]) continue;
        if (n && n->op != RP__LOAD && n->op != RP__IOTA) continue;
        const unsigned a = n ? n->access : d->stores[i - d->n_nodes].access;
        if (to[a] != RP__NO_VAL) continue;
        if (d->accesses[a].windows) (void)fail(b, "windows beside a contraction");
        to[a] = rp__dag_access(b, (rp__access_kind)d->accesses[a].kind, (rp_dtype)d->accesses[a].dtype, RP__ALONG_ROWS);
        from[to[a]] = (uint16_t)a;
    }
    for (unsigned i = 0; fits && i < d->n_nodes; i++) {
        if (!live[i]) continue;
        rp__node n = d->nodes[i];
        if (i == contract) {
            made[i] = rp__dag_load(b, 0, RP__NO_VAL, RP__NO_VAL);
            continue;
        }
        if (n.a != RP__NO_VAL) n.a = made[n.a];
        if (n.b != RP__NO_VAL) n.b = made[n.b];
        if (n.c != RP__NO_VAL) n.c = made[n.c];
        if (n.op == RP__LOAD || n.op == RP__IOTA) n.access = to[n.access];
        made[i] = intern(b, n);
    }
    for (unsigned i = 0; fits && i < n_stores; i++) {
        const rp__store *s = &d->stores[i];
        rp__dag_store_at(b, to[s->access], made[s->value], s->offset == RP__NO_VAL ? RP__NO_VAL : made[s->offset],
                         s->predicate == RP__NO_VAL ? RP__NO_VAL : made[s->predicate], (rp__store_mode)s->mode);
    }
    if (fits && !follows) rp__dag_store(b, 0, made[factor]);
    if (room)
        part = rp__dag_finish(b);
    else
        rp__dag_abandon(b);
    if (!room) (void)RP__OOM("a loop kernel");
    rp__free(made);
    rp__free(live);
    rp__free(to);
    return part;
}

/* Fills the parts of d and their accesses, which have room behind one another in `from`. */
static bool make_parts(rp__dag *d, uint16_t *from) {
    const rp__node *n = d->nodes;
    d->rest_access = from;
    d->rest = make_part(d, RP__NO_VAL, from);
    if (!d->rest) return false;
    while (n->op != RP__CONTRACT) n++;
    const rp__val factors[2] = {n->a, n->b};
    const bool loads[2] = {plain_load(d, n->a), plain_load(d, n->b)};
    /* A load of another type than the other factor's converts. */
    const bool mixed =
        loads[0] && loads[1] && d->accesses[d->nodes[n->a].access].dtype != d->accesses[d->nodes[n->b].access].dtype;
    for (unsigned k = 0; k < 2; k++) {
        if (loads[k] && (!mixed || d->accesses[d->nodes[factors[k]].access].dtype == n->dtype)) continue;
        from += d->n_accesses + 1u;
        d->before_access[k] = from;
        d->before[k] = make_part(d, factors[k], from);
        if (!d->before[k]) return false;
    }
    return true;
}

static void release_parts(rp__dag *const *parts) {
    for (unsigned k = 0; k < 3; k++) rp__dag_release(parts[k]);
}

rp__dag *rp__dag_finish(rp__dag_builder *b) { return rp__dag_finish_map(b, NULL); }
rp__dag *rp__dag_finish_map(rp__dag_builder *b, uint8_t map[RP__DAG_MAX_AXES]) {
    if (!b) return NULL;
    rp__dag *d = NULL, *extra[3] = {NULL};
    uint8_t *live = NULL;
    rp__val *renamed = NULL;
    if (b->failed) goto done;
    size_t n = b->n_nodes, n_live = 0;
    live = rp__calloc(n + 1, 1);
    renamed = rp__alloc((n + 1) * sizeof *renamed);
    if (!live || !renamed) goto oom;
    for (size_t i = 0; i < b->n_stores; i++) {
        mark(live, b->stores[i].value);
        mark(live, b->stores[i].offset);
        mark(live, b->stores[i].predicate);
    }
    for (size_t i = n; i-- > 0;) {
        if (!live[i]) continue;
        mark(live, b->nodes[i].a);
        mark(live, b->nodes[i].b);
        mark(live, b->nodes[i].c);
        n_live++;
    }
    size_t node_bytes = n_live * sizeof(rp__node), access_bytes = b->n_accesses * sizeof(rp__access),
           store_bytes = b->n_stores * sizeof(rp__store), head = (sizeof *d + 15) / 16 * 16;
    bool contracts = false;
    for (size_t i = 0; i < n; i++) contracts = contracts || (live[i] && b->nodes[i].op == RP__CONTRACT);
    const size_t plain = node_bytes + store_bytes + access_bytes + b->n_scalars, even = (plain + 1) / 2 * 2;
    size_t body = even + (contracts ? 3 * (b->n_accesses + 1u) * sizeof(uint16_t) : 0);
    d = rp__calloc(1, head + body);
    if (!d) goto oom;
    rp__node *nodes = (rp__node *)((char *)d + head);
    rp__store *stores = (rp__store *)(nodes + n_live);
    rp__access *accesses = (rp__access *)(stores + b->n_stores);
    uint8_t *scalars = (uint8_t *)(accesses + b->n_accesses);
    uint16_t *from = (uint16_t *)((char *)nodes + even);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (!live[i]) continue;
        renamed[i] = (rp__val)at;
        rp__node *m = &nodes[at++];
        *m = b->nodes[i];
        if (m->a != RP__NO_VAL) m->a = renamed[m->a];
        if (m->b != RP__NO_VAL) m->b = renamed[m->b];
        if (m->c != RP__NO_VAL) m->c = renamed[m->c];
        if (m->phase >= d->n_phases) d->n_phases = (uint16_t)(m->phase + 1);
        if (m->op == RP__PHILOX || m->op == RP__PHILOX64 || m->op == RP__PHILOX_NORMAL) {
            d->random = true;
            if (m->imm.i >= d->n_draws) d->n_draws = (uint16_t)(m->imm.i + 1);
        }
        if (m->op == RP__CHECK_INDEX ||
            ((m->op == RP__FLOORDIV || m->op == RP__REMAINDER) && !is_float((rp_dtype)m->dtype))) {
            d->checks = true;
        }
        d->scans = d->scans || m->op == RP__SCAN;
        if (m->op == RP__SCALAR) scalars[m->access] = m->dtype;
    }
    for (size_t i = 0; i < b->n_stores; i++) {
        stores[i] = b->stores[i];
        stores[i].value = renamed[stores[i].value];
        if (stores[i].offset != RP__NO_VAL) stores[i].offset = renamed[stores[i].offset];
        if (stores[i].predicate != RP__NO_VAL) stores[i].predicate = renamed[stores[i].predicate];
    }
    memcpy(accesses, b->accesses, access_bytes);
    if (!d->n_phases) d->n_phases = 1;
    d->n_nodes = (uint16_t)n_live;
    d->n_accesses = b->n_accesses;
    d->n_scalars = b->n_scalars;
    d->n_windows = b->n_windows;
    d->n_stores = b->n_stores;
    d->nodes = nodes;
    d->stores = stores;
    d->accesses = accesses;
    d->scalar_dtypes = scalars;
    uint8_t axis[RP__DAG_MAX_AXES];
    name_axes(d, nodes, accesses, stores, axis);
    if (map) memcpy(map, axis, sizeof axis);
    atomic_init(&d->refs, 1);
    const uint64_t counts[4] = {n_live, b->n_accesses, b->n_scalars, b->n_stores};
    d->key = rp__hash_bytes(counts, sizeof counts, rp__hash_none());
    for (size_t i = 0; i < n_live; i++) { /* field by field: padding has no value */
        const rp__node *m = &nodes[i];
        const uint64_t words[3] = {(uint64_t)m->op << 56 | (uint64_t)m->dtype << 48 | (uint64_t)m->access << 32 |
                                       (uint64_t)m->a << 16 | m->b,
                                   (uint64_t)m->over << 16 | m->c, (uint64_t)m->imm.i};
        d->key = rp__hash_bytes(words, sizeof words, d->key);
    }
    d->key = rp__hash_bytes(stores, store_bytes + access_bytes + b->n_scalars, d->key);
    if (contracts && !make_parts(d, from)) {
        release_parts((rp__dag *const[]){d->rest, d->before[0], d->before[1]});
        rp__free(d);
        d = NULL;
        goto done;
    }

    rp__lock(&interned.lock);
    rp__dag *old = rp__map_get(&interned.map, d->key);
    if (old) {
        atomic_fetch_add_explicit(&old->refs, 1, memory_order_relaxed);
        extra[0] = d->rest, extra[1] = d->before[0], extra[2] = d->before[1];
        rp__free(d);
        d = old;
    } else if (!rp__map_put(&interned.map, d->key, d)) {
        rp__unlock(&interned.lock);
        goto oom;
    }
    rp__unlock(&interned.lock);
    release_parts(extra);
done:
    rp__free(live);
    rp__free(renamed);
    rp__dag_abandon(b);
    return d;
oom:
    if (d) release_parts((rp__dag *const[]){d->rest, d->before[0], d->before[1]});
    rp__free(d);
    d = NULL;
    rp__fail(RP_ERROR_OUT_OF_MEMORY, "out of memory: loop kernel");
    goto done;
}

rp__dag *rp__dag_retain(rp__dag *d) {
    if (d) atomic_fetch_add_explicit(&d->refs, 1, memory_order_relaxed);
    return d;
}
void rp__dag_release(rp__dag *d) {
    if (!d) return;
    /* The last reference goes under the lock: finish, which looks a DAG up there, never meets a dying one. */
    unsigned refs = atomic_load_explicit(&d->refs, memory_order_relaxed);
    while (refs > 1) {
        if (atomic_compare_exchange_weak_explicit(&d->refs, &refs, refs - 1, memory_order_release,
                                                  memory_order_relaxed)) {
            return;
        }
    }
    rp__lock(&interned.lock);
    bool last = atomic_fetch_sub_explicit(&d->refs, 1, memory_order_acq_rel) == 1;
    if (last) {
        rp__map_remove(&interned.map, d->key);
        if (!interned.map.count) rp__map_free(&interned.map);
    }
    rp__unlock(&interned.lock);
    if (!last) return;
    for (int i = 0; i < 2; i++) {
        if (d->backend[i]) backends[i]->destroy(d);
    }
    release_parts((rp__dag *const[]){d->rest, d->before[0], d->before[1]});
    rp__free(d);
}

static const uint8_t math_cost[RP__NODE_COUNT] = {
#define RP_MATH1(prim, f, cost) [RP__##prim] = cost,
#define RP_MATH2(prim, f, cost) [RP__##prim] = cost,
#include "kernel/prims.def"
};
unsigned rp__node_cost(const rp__node *n) {
    if (math_cost[n->op]) return math_cost[n->op];
    switch (n->op) {
    case RP__FLOORDIV:
    case RP__REMAINDER:
    case RP__PHILOX:
    case RP__PHILOX64:
    case RP__PHILOX_NORMAL:
    case RP__GCD: return 32;
    case RP__ERFP1:
    case RP__SIGMOID: return 8;
    case RP__SCAN: return 8;
    case RP__ROUND: return 6;
    default: return n->op == RP__LOAD && n->a != RP__NO_VAL ? 8 : 1;
    }
}

rp_dtype rp__dag_scalar_dtype(const rp__dag *dag, uint16_t scalar) {
    return scalar < dag->n_scalars ? (rp_dtype)dag->scalar_dtypes[scalar] : RP_DTYPE_NONE;
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

static void add_axes(rp__text *out, rp__axes axes) { /* axis 0 is a */
    for (unsigned x = 0; x < RP__DAG_MAX_AXES; x++) {
        if (axes >> x & 1u) rp__text_add(out, "%c", 'a' + (int)x);
    }
}
static void add_order(rp__text *out, rp__order order) {
    static const char *const families[] = {"", " mma", " tf32", " bf16x3", " integer", " slots", " slices", " dots"};
    rp__text_add(out, "%s by %u, %u", families[rp__order_family_of(order)], rp__order_block(order),
                 rp__order_group(order));
    if (rp__order_shares(order)) rp__text_add(out, " in %u", 1u << rp__order_shares(order));
}
static void add_operand(rp__text *out, rp__val v, const char *before) {
    if (v == RP__NO_VAL) return;
    rp__text_add(out, "%s%%%u", before, v);
}
void rp__dag_text(const rp__dag *d, rp__text *out) {
    static const char *const kinds[] = {"read", "write", "read-write", "iota"};
    for (unsigned i = 0; i < d->n_accesses; i++) {
        rp__text_add(out, "access @%u %s %s [", i, kinds[d->accesses[i].kind],
                     d->accesses[i].kind == RP__ACCESS_IOTA ? "i64" : rp__dtypes[d->accesses[i].dtype].short_name);
        add_axes(out, d->accesses[i].axes);
        rp__text_puts(out, "]");
        if (d->accesses[i].windows) rp__text_add(out, " windows %u", d->accesses[i].windows);
        rp__text_puts(out, "\n");
    }
    for (unsigned i = 0; i < d->n_nodes; i++) {
        const rp__node *n = &d->nodes[i];
        char name[32];
        size_t k = 0;
        for (const char *p = prims[n->op].name; *p && k + 1 < sizeof name; p++) {
            name[k++] = (char)(*p >= 'A' && *p <= 'Z' ? *p + 32 : *p);
        }
        name[k] = 0;
        const bool approximate = n->op < RP__PRIM_COUNT && prims[n->op].class == FLOAT && n->imm.i;
        rp__text_add(out, "%%%u %s = %s%s", i, rp__dtypes[n->dtype].short_name, approximate ? "approximate " : "",
                     name);
        switch (n->op) {
        case RP__LOAD:
            rp__text_add(out, " @%u", n->access);
            add_operand(out, n->a, " at ");
            add_operand(out, n->b, " if ");
            break;
        case RP__IOTA:
        case RP__INSIDE: rp__text_add(out, " @%u", n->access); break;
        case RP__SCALAR: rp__text_add(out, " $%u", n->access); break;
        case RP__CONST:
            if (is_float((rp_dtype)n->dtype))
                rp__text_add(out, " %a", n->imm.f);
            else
                rp__text_add(out, " %lld", (long long)n->imm.i);
            break;
        case RP__REDUCE:
            rp__text_add(out, " %s %%%u over ", reduce_names[n->imm.i], n->a);
            add_axes(out, n->over);
            break;
        case RP__SCAN:
            rp__text_add(out, " %s %%%u along ", scan_names[n->imm.i], n->a);
            add_axes(out, n->over);
            break;
        case RP__CONTRACT:
            rp__text_add(out, " %s %%%u, %%%u over ", contract_names[rp__order_form((rp__order)n->imm.i)], n->a, n->b);
            add_axes(out, n->over);
            add_order(out, (rp__order)n->imm.i);
            break;
        default:
            add_operand(out, n->a, " ");
            add_operand(out, n->b, ", ");
            add_operand(out, n->c, ", ");
            if (n->op == RP__ROUND)
                rp__text_add(out, " to %s", rp__dtypes[n->imm.i].short_name);
            else if (n->op == RP__PHILOX || n->op == RP__PHILOX64 || n->op == RP__PHILOX_NORMAL)
                rp__text_add(out, " draw %lld", (long long)n->imm.i);
            else if (n->op == RP__CHECK_INDEX && n->imm.i)
                rp__text_puts(out, " wrap");
        }
        rp__text_puts(out, " [");
        add_axes(out, n->axes);
        rp__text_add(out, "] phase %u\n", n->phase);
    }
    for (unsigned i = 0; i < d->n_stores; i++) {
        const rp__store *s = &d->stores[i];
        rp__text_add(out, "%s @%u %%%u", s->mode == RP__STORE_ADD ? "add" : "store", s->access, s->value);
        add_operand(out, s->offset, " at ");
        add_operand(out, s->predicate, " if ");
        rp__text_puts(out, "\n");
    }
}
