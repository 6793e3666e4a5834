/* foreach_update_: an update rule (optim.h) over tensors that are walked together, all of one combination of types in
   one launch. What a recorded step must see change (step, learning rate, found_inf) are 0-d tensors that the kernel
   reads. DAGs depend on rule, flags and types only and are kept for good: there are few. */
#include <string.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "ops/execute.h"
#include "ops/infer.h"
#include "ops/optim.h"
#include "ops/rules.h"

/* step, lr, extra, momentum, found_inf */
enum { MAX_SHARED = 5, MAX_ACCESSES = RP__UPDATE_LISTS + MAX_SHARED };
/* Attributes. */
enum { RULE, NUMBERS, FLAGS };

/* A call: the lists that the rule has, then the 0-d tensors that it reads. */
typedef struct step {
    const rp__call *call;
    const rp__update_rule *rule;
    uint32_t flags;
    unsigned n_lists, n_shared, n_scalars;
    unsigned list[RP__UPDATE_LISTS], shared[MAX_SHARED]; /* tensor parameters of the op */
    rp_scalar scalars[RP__UPDATE_SCALARS];
} step;

/* ---- the DAG */

typedef struct key {
    const rp__update_rule *rule;
    uint32_t flags, shared; /* bits: which 0-d tensors */
    rp_dtype types[MAX_ACCESSES];
} key;
typedef struct known {
    key key;
    rp__dag *dag;
    struct known *next;
} known;
static _Atomic(known *) known_dags;
static rp__mutex lock = RP__MUTEX_INIT;
RP__LOCKS_SURVIVE_FORK(fork_lock, &lock, 1)

static rp__dag *find_dag(const key *k) {
    for (known *e = atomic_load_explicit(&known_dags, memory_order_acquire); e; e = e->next) {
        if (e->key.rule == k->rule && e->key.flags == k->flags && e->key.shared == k->shared &&
            memcmp(e->key.types, k->types, sizeof k->types) == 0)
            return e->dag;
    }
    return NULL;
}

static rp__dag *make_dag(const step *s, const rp_dtype *types) {
    rp__dag_builder *b = rp__dag_new();
    if (!b) return NULL;
    uint16_t access[MAX_ACCESSES];
    uint8_t written = s->rule->written | (uint8_t)(rp__update_lists(s->rule, s->flags) & ~s->rule->lists);
    for (unsigned k = 0; k < s->n_lists + s->n_shared; k++) {
        bool writes = k < s->n_lists && (written >> s->list[k] & 1u);
        access[k] = rp__dag_access(b, writes ? RP__ACCESS_READ_WRITE : RP__ACCESS_READ, types[k], RP__ELEMENTS);
    }
    for (unsigned k = 0; k < s->n_scalars; k++) (void)rp__dag_scalar(b);
    rp__update u = {.b = b, .type = (rp_dtype)rp__dtypes[types[0]].compute, .flags = s->flags, .momentum = RP__NO_VAL};
    rp__val before[RP__UPDATE_LISTS], skip = RP__NO_VAL, *shared[] = {&u.step, &u.lr, &u.extra, &u.momentum, &skip};
    for (unsigned k = 0; k < s->n_lists; k++)
        before[k] = u.list[s->list[k]] = rp__dag_cast(b, rp__dag_load(b, access[k], RP__NO_VAL, RP__NO_VAL), u.type);
    for (unsigned k = 0; k < s->n_shared; k++) {
        unsigned which = s->shared[k] - RP__UPDATE_LISTS;
        rp__val value = rp__dag_load(b, access[s->n_lists + k], RP__NO_VAL, RP__NO_VAL);
        *shared[which] =
            shared[which] == &skip || shared[which] == &u.momentum ? value : rp__dag_cast(b, value, u.type);
        if (which == 0) u.step_access = access[s->n_lists + k];
    }
    s->rule->build(&u);
    if (skip != RP__NO_VAL)
        skip =
            rp__dag_op(b, RP__NE, skip, rp__dag_const(b, types[s->n_lists + s->n_shared - 1], rp_f64(0)), RP__NO_VAL);
    for (unsigned k = 0; k < s->n_lists; k++) {
        rp__val value = u.list[s->list[k]];
        if (!(written >> s->list[k] & 1u)) continue;
        if (skip != RP__NO_VAL) value = rp__dag_op(b, RP__WHERE, skip, before[k], value);
        rp__dag_store(b, access[k], value);
    }
    return rp__dag_finish(b);
}

/* Borrowed: the list owns it. */
static rp__dag *dag_of(const step *s, const rp_dtype *types) {
    key k = {.rule = s->rule, .flags = s->flags};
    for (unsigned i = 0; i < s->n_shared; i++) k.shared |= 1u << s->shared[i];
    memcpy(k.types, types, sizeof k.types);
    rp__dag *dag = find_dag(&k);
    if (dag) return dag;
    rp__lock(&lock);
    dag = find_dag(&k);
    if (!dag) {
        known *e = rp__calloc(1, sizeof *e);
        if (!e)
            (void)RP__OOM("an optimizer kernel");
        else
            dag = make_dag(s, types);
        if (dag) {
            *e = (known){.key = k, .dag = dag, .next = atomic_load(&known_dags)};
            atomic_store_explicit(&known_dags, e, memory_order_release);
        } else {
            rp__free(e);
        }
    }
    rp__unlock(&lock);
    return dag;
}

/* ---- the call */

static uint32_t count_of(const rp__call *call, unsigned list) {
    return call->list_begin[list + 1] - call->list_begin[list];
}
static rp_tensor *member(const step *s, unsigned k, uint32_t i) {
    return s->call->in[s->call->list_begin[s->list[k]] + i];
}
static rp_tensor *shared_tensor(const step *s, unsigned k) { return s->call->in[s->call->list_begin[s->shared[k]]]; }

static rp_status take_shared(step *s, unsigned which, bool wanted, const char *name) {
    const rp__call *call = s->call;
    const rp_tensor *t = call->in[call->list_begin[RP__UPDATE_LISTS + which]];
    if (!t) return wanted ? rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s needs %s", s->rule->name, name) : RP_OK;
    if (t->ndim != 0 || (t->dtype != RP_F32 && t->dtype != RP_F64))
        return rp__op_error(call, RP_ERROR_SHAPE, "%s must be a 0-d tensor of type float32 or float64", name);
    if (wanted) s->shared[s->n_shared++] = RP__UPDATE_LISTS + which;
    return RP_OK;
}

static rp_status read_call(const rp__call *call, step *s) {
    *s = (step){.call = call, .rule = rp__update_rule_find(call->attrs[RULE].v.string)};
    const rp__update_rule *r = s->rule;
    if (!r) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "there is no such rule");
    const int64_t flags = rp__attr_int(call, FLAGS);
    if (flags < 0 || flags >= RP__UPDATE_FLAGS || ((uint32_t)flags & ~r->flags))
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s has no flags %lld", r->name, (long long)flags);
    s->flags = (uint32_t)flags;
    if (call->attrs[NUMBERS].n != r->n_numbers)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s takes %u numbers", r->name, r->n_numbers);
    const double *numbers = call->attrs[NUMBERS].v.floats;
    const char *wrong = r->check ? r->check(numbers, s->flags) : NULL;
    if (wrong) return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s", wrong);
    if (r->scalars) r->scalars(numbers, s->scalars);
    s->n_scalars = r->n_scalars;
    const uint8_t lists = rp__update_lists(r, s->flags);
    for (unsigned k = 0; k < RP__UPDATE_LISTS; k++) {
        if (count_of(call, k) != (lists >> k & 1u ? count_of(call, 0) : 0))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "lists of %u parameters and %u tensors beside them",
                                count_of(call, 0), count_of(call, k));
        if (lists >> k & 1u) s->list[s->n_lists++] = k;
    }
    RP_TRY(take_shared(s, 0, r->step, "step"));
    RP_TRY(take_shared(s, 1, r->lr, "lr"));
    RP_TRY(take_shared(s, 2, r->extra, "extra"));
    const bool cycled = call->in[call->list_begin[RP__UPDATE_LISTS + 3]] != NULL;
    if (cycled && !r->cycles)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "%s takes no momentum as a tensor", r->name);
    RP_TRY(take_shared(s, 3, cycled, "momentum"));
    return take_shared(s, 4, call->in[call->list_begin[RP__UPDATE_LISTS + 4]] != NULL, "found_inf");
}

rp_status rp__infer_foreach_update_(const rp__call *call, rp__meta *out) {
    step s;
    (void)out;
    RP_TRY(read_call(call, &s));
    for (uint32_t i = 0; i < count_of(call, 0); i++) {
        const rp_tensor *p = member(&s, 0, i);
        for (unsigned k = 0; k < s.n_lists; k++) {
            const rp_tensor *t = member(&s, k, i);
            RP_TRY(rp__call_need_float(call, (rp_dtype)t->dtype));
            if (s.rule->numbers >> s.list[k] & 1u ? t->ndim != 0 : !rp__same_size(p, t)) {
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
static rp_status launch_strided(const step *s, rp__device *d, rp_stream *stream, rp__dag *dag, uint32_t i) {
    rp__space_access accesses[MAX_ACCESSES];
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
        const rp_tensor *t = k < s->n_lists ? member(s, k, i) : shared_tensor(s, k - s->n_lists);
        operand(&accesses[k], t);
        for (unsigned dim = 0; dim < p->ndim; dim++) accesses[k].stride[dim] = t->ndim ? t->stride[dim] : 0;
    }
    rp__space_collapse(dag, &space, accesses);
    return rp__loop_launch(d, stream, dag, &space);
}

static void types_of(const step *s, uint32_t i, rp_dtype *types) {
    memset(types, 0, MAX_ACCESSES * sizeof *types);
    for (unsigned k = 0; k < s->n_lists; k++) types[k] = (rp_dtype)member(s, k, i)->dtype;
    for (unsigned k = 0; k < s->n_shared; k++) types[s->n_lists + k] = (rp_dtype)shared_tensor(s, k)->dtype;
}

static bool all_contiguous(const step *s, uint32_t i) {
    for (unsigned k = 0; k < s->n_lists; k++) {
        if (!rp__tensor_contiguous(member(s, k, i))) return false;
    }
    return true;
}

static rp_status run_groups(const step *s, rp__device *d, rp_stream *stream, bool *done, rp__space_access *accesses,
                            int64_t *extents) {
    uint32_t n = count_of(s->call, 0);
    unsigned width = s->n_lists + s->n_shared;
    rp__space shared = {.dims = {1},
                        .n_accesses = (uint16_t)width,
                        .n_scalars = (uint16_t)s->n_scalars,
                        .scalars = s->scalars,
                        .op = s->call->op->name,
                        .site = s->call->site};
    for (uint32_t first = 0; first < n; first++) {
        if (done[first]) continue;
        rp_dtype types[MAX_ACCESSES], other[MAX_ACCESSES];
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
                RP_TRY(launch_strided(s, d, stream, dag, i));
                continue;
            }
            for (unsigned k = 0; k < width; k++) {
                rp__space_access *a = &accesses[n_groups * width + k];
                const rp_tensor *t = k < s->n_lists ? member(s, k, i) : shared_tensor(s, k - s->n_lists);
                operand(a, t);
                a->stride[0] = k < s->n_lists && !(s->rule->numbers >> s->list[k] & 1u);
            }
            extents[n_groups++] = elements;
        }
        if (n_groups > 0) RP_TRY(rp__loop_launch_many(d, stream, dag, &shared, accesses, extents, n_groups));
    }
    return RP_OK;
}

rp_status rp__run_foreach_update_(const rp__call *call) {
    step s;
    RP_TRY(read_call(call, &s));
    uint32_t n = count_of(call, 0);
    if (n == 0) return RP_OK;
    rp__device *d = rp__device_get(member(&s, 0, 0)->device);
    if (!d) return rp_error_status();
    unsigned width = s.n_lists + s.n_shared;
    bool *done = rp__calloc(n, sizeof *done);
    rp__space_access *accesses = rp__calloc((size_t)n * width, sizeof *accesses);
    int64_t *extents = rp__calloc(n, sizeof *extents);
    rp_status status = done && accesses && extents ? run_groups(&s, d, rp__current_stream(d), done, accesses, extents)
                                                   : RP__OOM("the operands of an optimizer step");
    rp__free(done);
    rp__free(accesses);
    rp__free(extents);
    return status;
}
