/* Optimizer steps: all parameters of one combination of types in one launch. step and lr are 0-d tensors that the kernel reads,
   so that a captured step replays with their current values; bias corrections are computed from step in the kernel.
   DAGs depend on types and switches only and are kept for good: there are few. */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/rules.h"

enum { MAX_GROUP = 4, MAX_SHARED = 2, MAX_SCALARS = 8 };

/* One step: lists of equal length that are walked together, then 0-d tensors. */
typedef struct step {
    const rp__call *call;
    unsigned n_lists, n_shared, n_scalars;
    uint32_t written;  /* bit k: list k is written */
    uint32_t switches; /* what shapes the DAG beside types */
    rp_scalar scalars[MAX_SCALARS];
    void (*build)(rp__dag_builder *b, const struct step *s, const uint16_t *access, const rp_dtype *type);
} step;

/* ---- the DAG */

typedef struct known {
    void (*build)(rp__dag_builder *b, const step *s, const uint16_t *access, const rp_dtype *type);
    uint32_t switches;
    rp_dtype types[MAX_GROUP + MAX_SHARED];
    rp__dag *dag;
    struct known *next;
} known;
static _Atomic(known *) known_dags;
static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)

static rp__dag *find_dag(const step *s, const rp_dtype *types) {
    for (known *k = atomic_load_explicit(&known_dags, memory_order_acquire); k; k = k->next) {
        if (k->build == s->build && k->switches == s->switches && memcmp(k->types, types, sizeof k->types) == 0)
            return k->dag;
    }
    return NULL;
}

static rp__dag *make_dag(const step *s, const rp_dtype *types) {
    rp__dag_builder *b = rp__dag_new();
    if (!b) return NULL;
    uint16_t access[MAX_GROUP + MAX_SHARED];
    for (unsigned k = 0; k < s->n_lists + s->n_shared; k++) {
        bool written = k < s->n_lists && (s->written >> k & 1u);
        access[k] = rp__dag_access(b, written ? RP__ACCESS_READ_WRITE : RP__ACCESS_READ, types[k], RP__ELEMENTS);
    }
    for (unsigned k = 0; k < s->n_scalars; k++) (void)rp__dag_scalar(b);
    s->build(b, s, access, types);
    return rp__dag_finish(b);
}

/* Borrowed: the list owns it. */
static rp__dag *dag_of(const step *s, const rp_dtype *types) {
    rp__dag *dag = find_dag(s, types);
    if (dag) return dag;
    rp__lock(&lock);
    dag = find_dag(s, types);
    if (!dag) {
        known *k = rp__calloc(1, sizeof *k);
        if (!k)
            (void)RP__OOM("an optimizer kernel");
        else
            dag = make_dag(s, types);
        if (dag) {
            *k = (known){.build = s->build, .switches = s->switches, .dag = dag, .next = atomic_load(&known_dags)};
            memcpy(k->types, types, sizeof k->types);
            atomic_store_explicit(&known_dags, k, memory_order_release);
        } else {
            rp__free(k);
        }
    }
    rp__unlock(&lock);
    return dag;
}

/* ---- checks */

static rp_tensor *member(const step *s, unsigned list, uint32_t i) {
    return s->call->in[s->call->list_begin[list] + i];
}
static uint32_t count(const step *s, unsigned list) {
    return s->call->list_begin[list + 1] - s->call->list_begin[list];
}
static rp_tensor *shared_tensor(const step *s, unsigned k, unsigned n_params) {
    return s->call->in[s->call->list_begin[n_params - s->n_shared + k]];
}

/* The first n_lists parameters are lists of equal length and sizes; step and lr come last. */
static rp_status check(const rp__call *call, unsigned n_lists) {
    const unsigned n_params = call->op->schema.n_tensor_params;
    const uint32_t *begin = call->list_begin, n = begin[1] - begin[0];
    for (unsigned list = 1; list < n_lists; list++) {
        if (begin[list + 1] - begin[list] != n)
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "lists of %u parameters and %u tensors beside them", n,
                                begin[list + 1] - begin[list]);
    }
    for (unsigned k = n_params - MAX_SHARED; k < n_params; k++) { /* both, also where the kernel reads lr alone */
        const rp_tensor *t = call->in[begin[k]];
        if (t->ndim != 0 || t->dtype != RP_F32)
            return rp__op_error(call, RP_ERROR_SHAPE, "step and lr must be 0-d float32 tensors");
    }
    for (uint32_t i = 0; i < n; i++) {
        const rp_tensor *p = call->in[begin[0] + i];
        for (unsigned list = 0; list < n_lists; list++) {
            const rp_tensor *t = call->in[begin[list] + i];
            RP_TRY(rp__call_need_float(call, (rp_dtype)t->dtype));
            if (!rp__same_size(p, t)) {
                char a[RP__SHAPE_TEXT], b[RP__SHAPE_TEXT];
                return rp__op_error(call, RP_ERROR_SHAPE,
                                    "parameter %u has size %s, but a tensor beside it has size %s", i,
                                    rp__shape_text(p->size, p->ndim, a), rp__shape_text(t->size, t->ndim, b));
            }
        }
    }
    return RP_OK;
}

/* ---- launching */

static void operand(rp__space_access *a, const rp_tensor *t) {
    a->base = rp__tensor_data(t);
    a->iota_base = 0;
    a->storage = t->storage;
    rp__tensor_byte_range(t, &a->begin, &a->end);
}

/* A parameter whose tensors do not all lie row-major: a launch of its own over its dims. */
static rp_status launch_strided(const step *s, rp__device *d, rp_stream *stream, rp__dag *dag, uint32_t i,
                                unsigned n_params) {
    rp__space_access accesses[MAX_GROUP + MAX_SHARED];
    const rp_tensor *p = member(s, 0, i);
    rp__space space = {.dims = {p->ndim},
                       .n_accesses = (uint16_t)(s->n_lists + s->n_shared),
                       .n_scalars = (uint16_t)s->n_scalars,
                       .accesses = accesses,
                       .scalars = s->scalars,
                       .op = s->call->op->name,
                       .site = s->call->site};
    memcpy(space.extent, p->size, p->ndim * sizeof *p->size);
    for (unsigned k = 0; k < s->n_lists + s->n_shared; k++) {
        const rp_tensor *t = k < s->n_lists ? member(s, k, i) : shared_tensor(s, k - s->n_lists, n_params);
        operand(&accesses[k], t);
        for (unsigned dim = 0; dim < p->ndim; dim++) accesses[k].stride[dim] = k < s->n_lists ? t->stride[dim] : 0;
    }
    rp__space_collapse(dag, &space, accesses);
    return rp__loop_launch(d, stream, dag, &space);
}

static void types_of(const step *s, uint32_t i, rp_dtype *types) {
    memset(types, 0, (MAX_GROUP + MAX_SHARED) * sizeof *types);
    for (unsigned k = 0; k < s->n_lists; k++) types[k] = (rp_dtype)member(s, k, i)->dtype;
    for (unsigned k = 0; k < s->n_shared; k++) types[s->n_lists + k] = RP_F32;
}

static bool all_contiguous(const step *s, uint32_t i) {
    for (unsigned k = 0; k < s->n_lists; k++) {
        if (!rp__tensor_contiguous(member(s, k, i))) return false;
    }
    return true;
}

static rp_status run_groups(const step *s, rp__device *d, rp_stream *stream, unsigned n_params, bool *done,
                            rp__space_access *accesses, int64_t *extents) {
    uint32_t n = count(s, 0);
    unsigned width = s->n_lists + s->n_shared;
    rp__space shared = {.dims = {1},
                        .n_accesses = (uint16_t)width,
                        .n_scalars = (uint16_t)s->n_scalars,
                        .scalars = s->scalars,
                        .op = s->call->op->name,
                        .site = s->call->site};
    for (uint32_t first = 0; first < n; first++) {
        if (done[first]) continue;
        rp_dtype types[MAX_GROUP + MAX_SHARED], other[MAX_GROUP + MAX_SHARED];
        types_of(s, first, types);
        rp__dag *dag = dag_of(s, types);
        if (!dag) return rp_error_status();
        size_t n_groups = 0;
        for (uint32_t i = first; i < n; i++) {
            types_of(s, i, other);
            if (done[i] || memcmp(types, other, sizeof types) != 0) continue;
            done[i] = true;
            int64_t elements = rp__tensor_numel(member(s, 0, i));
            if (elements == 0) continue;
            if (!all_contiguous(s, i)) {
                RP_TRY(launch_strided(s, d, stream, dag, i, n_params));
                continue;
            }
            for (unsigned k = 0; k < width; k++) {
                rp__space_access *a = &accesses[n_groups * width + k];
                operand(a, k < s->n_lists ? member(s, k, i) : shared_tensor(s, k - s->n_lists, n_params));
                a->stride[0] = k < s->n_lists;
            }
            extents[n_groups++] = elements;
        }
        if (n_groups > 0) RP_TRY(rp__loop_launch_many(d, stream, dag, &shared, accesses, extents, n_groups));
    }
    return RP_OK;
}

static rp_status run_step(const step *s) {
    unsigned n_params = s->call->op->schema.n_tensor_params;
    uint32_t n = count(s, 0);
    if (n == 0) return RP_OK;
    rp__device *d = rp__device_get(member(s, 0, 0)->device);
    if (!d) return rp_error_status();
    unsigned width = s->n_lists + s->n_shared;
    bool *done = rp__calloc(n, sizeof *done);
    rp__space_access *accesses = rp__calloc((size_t)n * width, sizeof *accesses);
    int64_t *extents = rp__calloc(n, sizeof *extents);
    rp_status status = done && accesses && extents
                           ? run_groups(s, d, rp__current_stream(d), n_params, done, accesses, extents)
                           : RP__OOM("the operands of an optimizer step");
    rp__free(done);
    rp__free(accesses);
    rp__free(extents);
    return status;
}

/* ---- shared arithmetic: numbers in the parameter's compute type */

typedef struct maths {
    rp__dag_builder *b;
    rp_dtype type;
} maths;
static rp__val add(maths m, rp__val x, rp__val y) { return rp__dag_op(m.b, RP__ADD, x, y, RP__NO_VAL); }
static rp__val sub(maths m, rp__val x, rp__val y) { return rp__dag_op(m.b, RP__SUB, x, y, RP__NO_VAL); }
static rp__val mul(maths m, rp__val x, rp__val y) { return rp__dag_op(m.b, RP__MUL, x, y, RP__NO_VAL); }
static rp__val quotient(maths m, rp__val x, rp__val y) { return rp__dag_op(m.b, RP__DIV, x, y, RP__NO_VAL); }
static rp__val apply(maths m, rp__prim op, rp__val x) { return rp__dag_op(m.b, op, x, RP__NO_VAL, RP__NO_VAL); }
static rp__val load(maths m, uint16_t access) {
    return rp__dag_cast(m.b, rp__dag_load(m.b, access, RP__NO_VAL, RP__NO_VAL), m.type);
}
static rp__val scalar(maths m, uint16_t k) { return rp__dag_scalar_value(m.b, k, m.type); }
static maths maths_of(rp__dag_builder *b, const rp_dtype *types) {
    return (maths){b, (rp_dtype)rp__dtypes[types[0]].compute};
}

/* ---- Adam */

enum { ADAM_DECAY = 1, ADAM_DECOUPLED = 2, ADAM_MAXIMIZE = 4 };
enum { A_LOG_BETA1, A_LOG_BETA2, A_BETA2, A_ONE_MINUS_BETA1, A_ONE_MINUS_BETA2, A_EPS, A_DECAY, A_SCALARS };

/* 1 - beta^t = -expm1(t log beta): exact to the last digits also for the first steps. */
static rp__val correction(maths m, rp__val t, uint16_t log_beta) {
    return apply(m, RP__NEG, apply(m, RP__EXPM1, mul(m, t, scalar(m, log_beta))));
}

/* access: parameter, gradient, mean, mean of squares; step, lr */
static void build_adam(rp__dag_builder *b, const step *s, const uint16_t *access, const rp_dtype *types) {
    maths m = maths_of(b, types);
    rp__val p = load(m, access[0]), g = load(m, access[1]), mean = load(m, access[2]), square = load(m, access[3]);
    rp__val t = load(m, access[4]), lr = load(m, access[5]);
    if (s->switches & ADAM_MAXIMIZE) g = apply(m, RP__NEG, g);
    if (s->switches & ADAM_DECAY) {
        if (s->switches & ADAM_DECOUPLED)
            p = sub(m, p, mul(m, mul(m, lr, scalar(m, A_DECAY)), p));
        else
            g = add(m, g, mul(m, scalar(m, A_DECAY), p));
    }
    mean = add(m, mean, mul(m, scalar(m, A_ONE_MINUS_BETA1), sub(m, g, mean)));
    square = add(m, mul(m, scalar(m, A_BETA2), square), mul(m, scalar(m, A_ONE_MINUS_BETA2), mul(m, g, g)));
    rp__val root = apply(m, RP__SQRT, correction(m, t, A_LOG_BETA2));
    rp__val denominator = add(m, quotient(m, apply(m, RP__SQRT, square), root), scalar(m, A_EPS));
    rp__val size = quotient(m, lr, correction(m, t, A_LOG_BETA1));
    p = sub(m, p, mul(m, size, quotient(m, mean, denominator)));
    rp__dag_store(b, access[0], p);
    rp__dag_store(b, access[2], mean);
    rp__dag_store(b, access[3], square);
}

rp_status rp__infer_adam_step_(const rp__call *call, rp__meta *out) {
    double beta1 = rp__attr_float(call, 0), beta2 = rp__attr_float(call, 1), eps = rp__attr_float(call, 2);
    double decay = rp__attr_float(call, 3);
    (void)out;
    if (!(beta1 >= 0 && beta1 < 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Invalid beta parameter at index 0: %g", beta1);
    if (!(beta2 >= 0 && beta2 < 1))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Invalid beta parameter at index 1: %g", beta2);
    if (!(eps >= 0)) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Invalid epsilon value: %g", eps);
    if (!(decay >= 0)) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Invalid weight_decay value: %g", decay);
    return check(call, 4);
}

rp_status rp__run_adam_step_(const rp__call *call) {
    double beta1 = rp__attr_float(call, 0), beta2 = rp__attr_float(call, 1), eps = rp__attr_float(call, 2);
    double decay = rp__attr_float(call, 3);
    step s = {.call = call,
              .n_lists = 4,
              .n_shared = 2,
              .n_scalars = A_SCALARS,
              .written = 1u | 4u | 8u,
              .build = build_adam,
              .switches = (decay != 0 ? ADAM_DECAY : 0u) | (rp__attr_bool(call, 4) ? ADAM_DECOUPLED : 0u) |
                          (rp__attr_bool(call, 5) ? ADAM_MAXIMIZE : 0u)};
    s.scalars[A_LOG_BETA1] = rp_f64(log(beta1));
    s.scalars[A_LOG_BETA2] = rp_f64(log(beta2));
    s.scalars[A_BETA2] = rp_f64(beta2);
    s.scalars[A_ONE_MINUS_BETA1] = rp_f64(1 - beta1);
    s.scalars[A_ONE_MINUS_BETA2] = rp_f64(1 - beta2);
    s.scalars[A_EPS] = rp_f64(eps);
    s.scalars[A_DECAY] = rp_f64(decay);
    return run_step(&s);
}

/* ---- SGD */

enum { SGD_DECAY = 1, SGD_MOMENTUM = 2, SGD_NESTEROV = 4, SGD_MAXIMIZE = 8, SGD_DAMPENED = 16 };
enum { S_MOMENTUM, S_ONE_MINUS_DAMPENING, S_DECAY, S_SCALARS };

/* access: parameter, gradient[, momentum buffer]; [step,] lr. The first gradient enters the buffer whole. A buffer of zeros does
   that by itself, except under dampening: there the kernel asks the step, so that a recorded step is right at every replay. */
static void build_sgd(rp__dag_builder *b, const step *s, const uint16_t *access, const rp_dtype *types) {
    maths m = maths_of(b, types);
    bool momentum = s->switches & SGD_MOMENTUM;
    rp__val p = load(m, access[0]), g = load(m, access[1]), lr = load(m, access[s->n_lists + s->n_shared - 1]);
    if (s->switches & SGD_MAXIMIZE) g = apply(m, RP__NEG, g);
    if (s->switches & SGD_DECAY) g = add(m, g, mul(m, scalar(m, S_DECAY), p));
    if (momentum) {
        rp__val v =
            add(m, mul(m, scalar(m, S_MOMENTUM), load(m, access[2])), mul(m, scalar(m, S_ONE_MINUS_DAMPENING), g));
        if (s->switches & SGD_DAMPENED) {
            rp__val later =
                rp__dag_op(b, RP__LT, rp__dag_const(b, m.type, rp_i64(1)), load(m, access[s->n_lists]), RP__NO_VAL);
            v = rp__dag_op(b, RP__WHERE, later, v, g);
        }
        rp__dag_store(b, access[2], v);
        g = s->switches & SGD_NESTEROV ? add(m, g, mul(m, scalar(m, S_MOMENTUM), v)) : v;
    }
    rp__dag_store(b, access[0], sub(m, p, mul(m, lr, g)));
}

rp_status rp__infer_sgd_step_(const rp__call *call, rp__meta *out) {
    double momentum = rp__attr_float(call, 0), dampening = rp__attr_float(call, 1), decay = rp__attr_float(call, 2);
    (void)out;
    if (!(momentum >= 0)) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Invalid momentum value: %g", momentum);
    if (!(decay >= 0)) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "Invalid weight_decay value: %g", decay);
    if (rp__attr_bool(call, 3) && (momentum == 0 || dampening != 0))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                            "Nesterov momentum requires a momentum and zero dampening");
    return check(call, momentum != 0 ? 3 : 2);
}

rp_status rp__run_sgd_step_(const rp__call *call) {
    double momentum = rp__attr_float(call, 0), dampening = rp__attr_float(call, 1), decay = rp__attr_float(call, 2);
    bool nesterov = rp__attr_bool(call, 3), dampened = momentum != 0 && dampening != 0;
    step s = {.call = call,
              .n_lists = momentum != 0 ? 3 : 2,
              .n_shared = dampened ? 2 : 1,
              .n_scalars = S_SCALARS,
              .build = build_sgd,
              .written = momentum != 0 ? 1u | 4u : 1u,
              .switches = (decay != 0 ? SGD_DECAY : 0u) | (momentum != 0 ? SGD_MOMENTUM : 0u) |
                          (nesterov ? SGD_NESTEROV : 0u) | (rp__attr_bool(call, 4) ? SGD_MAXIMIZE : 0u) |
                          (dampened ? SGD_DAMPENED : 0u)};
    s.scalars[S_MOMENTUM] = rp_f64(momentum);
    s.scalars[S_ONE_MINUS_DAMPENING] = rp_f64(1 - dampening);
    s.scalars[S_DECAY] = rp_f64(decay);
    return run_step(&s);
}
