/* A program: a list of calls of ops by name, made from an FX graph by reprise/lower.py, or a graph in the text form of rp_ir. Owns how it
   is read, replayed as the body of a compiled function, checked against the results that PyTorch expects, and called.
   A body runs without Python: the interpreter's lock is not held while the library works. */
#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A number of a step: itself, or what an earlier step calculated of sizes. Whole, but for what "num_..." calculates and is given. */
typedef struct word {
    rp_scalar value;
    int32_t reg; /* -1: value */
} word;

typedef struct attribute {
    rp_attr a;
    word *words; /* of an int, a Scalar that is one, or a list of ints; NULL: `a` as it is */
    double *floats;
} attribute;

/* What PyTorch's fake tensors say of a result; dtype NONE: nothing is known. */
typedef struct expected {
    rp_dtype dtype;
    size_t ndim;
    int64_t size[RP_MAX_DIMS];
} expected;

enum kind { STEP_OP, STEP_GRAD, STEP_SIZE, STEP_CALC, STEP_COND, STEP_WHILE };

/* A branch, or the condition or body of a loop: steps over the program's own slots and registers, of which `in` are filled with what the
   function is given and `out` are what it gives. */
typedef struct block {
    struct step *steps;
    int32_t *in, *out; /* slots */
    size_t n_steps, n_in, n_out;
} block;

typedef struct step {
    enum kind kind;
    const char *op, *site; /* STEP_CALC: op is the name of the function */
    int32_t *in, *out;     /* slots; -1: absent. STEP_SIZE: in[0]; STEP_SIZE, STEP_CALC: out[0] is a register */
    size_t n_in, n_out;
    attribute *attrs;
    size_t n_attrs;
    expected *expect; /* n_out */
    word a, b;        /* STEP_SIZE: a is the dim; STEP_CALC: the operands */
    /* STEP_GRAD: gradients of the op's results (slots), and which operands they are wanted of */
    int32_t *grads, *wrt;
    size_t n_grads, n_wrt;
    /* STEP_COND: in[0] is the predicate, and both branches. STEP_WHILE: `in` is the state; condition and body. */
    block *blocks;
} step;

/* An argument as it was last called with: the same memory in the same form is the same handle. */
typedef struct seen {
    rp_tensor *t; /* one reference, or NULL */
    void *data;
    uint64_t device, form; /* the words of dl_tensor for type and index; for rank and element type */
    int64_t size[RP_MAX_DIMS], stride[RP_MAX_DIMS];
} seen;

/* The lists of one call. */
typedef struct room {
    rp_tensor **in, **out;
    PyObject **keeps; /* of arguments: what is released behind the call */
    size_t n_keeps;
} room;

typedef struct fault {
    size_t step;
    char *message;
} fault;

typedef struct program program;
typedef struct context {
    const program *p;
    fault *faults; /* NULL: errors stay where they are; else room for `most` */
    size_t n_faults, most;
} context;

enum { NOTHING = INT32_MIN };

struct program {
    PyObject_HEAD char *name;
    step *steps;
    size_t n_steps, n_in, n_out, n_slots, n_regs;
    size_t n_nested; /* steps of blocks */
    int32_t *out;
    int32_t *order; /* what call() gives: result k, or -1 - k: argument k, or NOTHING */
    size_t n_order;
    bool in_order; /* what call() gives is the results as they are */
    bool *owned;   /* arguments that a result may share the memory of: a handle holds the tensor */
    seen *seen;
    room room;        /* of a call while no other runs */
    size_t calls;     /* how many run now; they hold what was seen */
    rp_ir *ir;        /* instead of steps */
    rp_device device; /* where ops without operands put their results */
    context context;
    rp_compiled *compiled;
};

/* ---- replay */

static rp_scalar read_number(word w, const rp_scalar *regs) { return w.reg < 0 ? w.value : regs[w.reg]; }
static int64_t read_word(word w, const rp_scalar *regs) { return read_number(w, regs).v.i; }

/* Attributes with sizes filled in; lists lie in `room`. */
static rp_status fill_attrs(const step *s, const rp_scalar *regs, rp_attr *out, int64_t *room) {
    for (size_t k = 0; k < s->n_attrs; k++) {
        const attribute *from = &s->attrs[k];
        out[k] = from->a;
        if (!from->words) continue;
        if (from->a.kind == RP_ATTR_INT)
            out[k].v.i = read_word(*from->words, regs);
        else if (from->a.kind == RP_ATTR_SCALAR)
            out[k].v.scalar = read_number(*from->words, regs);
        else {
            out[k].v.ints = room;
            for (size_t i = 0; i < from->a.n; i++) *room++ = read_word(from->words[i], regs);
        }
    }
    return RP_OK;
}

static rp_scalar root(rp_scalar a, rp_scalar b) {
    (void)b;
    return rp_num_sqrt(a);
}
static rp_scalar numbers_add(rp_scalar a, rp_scalar b) { return rp_num_add(a, b); }
static rp_scalar numbers_mul(rp_scalar a, rp_scalar b) { return rp_num_mul(a, b); }
static rp_scalar numbers_div(rp_scalar a, rp_scalar b) { return rp_num_div(a, b); }
static rp_scalar numbers_pow(rp_scalar a, rp_scalar b) { return rp_num_pow(a, b); }

static rp_scalar calculate(const char *f, rp_scalar a, rp_scalar b) {
    static const struct {
        const char *name;
        rp_scalar (*f)(rp_scalar a, rp_scalar b);
    } numbers[] = {{"num_add", numbers_add},
                   {"num_mul", numbers_mul},
                   {"num_div", numbers_div},
                   {"num_pow", numbers_pow},
                   {"num_sqrt", root}};
    static const struct {
        const char *name;
        int64_t (*f)(int64_t a, int64_t b);
    } table[] = {{"add", rp_sym_add},           {"sub", rp_sym_sub}, {"mul", rp_sym_mul}, {"mod", rp_sym_mod},
                 {"floordiv", rp_sym_floordiv}, {"max", rp_sym_max}, {"min", rp_sym_min}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(numbers[i].name, f)) return numbers[i].f(a, b);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, f)) return (rp_i64)(table[i].f(a.v.i, b.v.i));
    return (rp_i64)(0); /* lower.py gives no other name */
}

#define MOST_IN 512
#define MOST_ATTRS 32
#define MOST_INTS 256

static rp_status run_op(const step *s, const rp_attr *attrs, rp_tensor *const *in, rp_tensor **out) {
    return rp_op_call_at(s->site, s->op, in, s->n_in, attrs, s->n_attrs, out, s->n_out);
}

/* The gradient of an op that PyTorch has as an op of its own: the op again, under a tape; what of it the gradient does not need goes
   when the graph is simplified. */
static rp_status run_grad(const step *s, const rp_attr *attrs, rp_tensor *const *in, rp_tensor *const *slots,
                          rp_tensor **out) {
    rp_tensor *operand[MOST_IN], *leaf[8], *result[8], *root[8], *grad[8];
    size_t n_roots = 0;
    memcpy(operand, in, s->n_in * sizeof *in);
    bool before = rp_set_grad_enabled(true);
    for (size_t k = 0; k < s->n_wrt; k++) {
        rp_tensor *of = operand[s->wrt[k]];
        if (rp_op_call_at(s->site, "detach", &of, 1, NULL, 0, &leaf[k], 1) == RP_OK)
            (rp_set_requires_grad)(leaf[k], true);
        operand[s->wrt[k]] = leaf[k];
    }
    rp_status status = rp_failed()
                           ? rp_error_status()
                           : rp_op_call_at(s->site, s->op, operand, s->n_in, attrs, s->n_attrs, result, s->n_grads);
    for (size_t k = 0; k < s->n_grads && status == RP_OK; k++) {
        if (s->grads[k] < 0) continue;
        root[n_roots] = result[k];
        grad[n_roots++] = slots[s->grads[k]];
    }
    if (status == RP_OK) {
        rp_backward_options options = {.struct_size = sizeof options, .allow_unused = true};
        status = rp_grad_at(s->site, root, n_roots, leaf, s->n_wrt, grad, &options, out);
    }
    for (size_t k = 0; k < s->n_wrt && status == RP_OK; k++)
        if (!out[k]) status = rp_op_call_at(s->site, "zeros_like", &leaf[k], 1, NULL, 0, &out[k], 1);
    (void)rp_set_grad_enabled(before);
    return status;
}

static char *copy_text(const char *text) {
    size_t n = strlen(text) + 1;
    char *copy = malloc(n);
    if (copy) memcpy(copy, text, n);
    return copy;
}

static void note_fault(context *c, size_t step, const char *message) {
    if (c->n_faults < c->most) c->faults[c->n_faults++] = (fault){step, copy_text(message)};
}

/* A result of the size that PyTorch expects, so that a check goes on behind a step that failed. */
static rp_tensor *stand_in(const expected *e) {
    rp_tensor *t = NULL;
    const rp_attr attrs[] = {{.kind = RP_ATTR_INTS, .n = e->ndim, .v.ints = e->size},
                             {.kind = RP_ATTR_SCALAR, .v.scalar = {.kind = RP_SCALAR_I64, .v.i = 0}},
                             {.kind = RP_ATTR_DTYPE, .v.dtype = e->dtype ? e->dtype : RP_F32}};
    (void)rp_op_call_at(NULL, "full", NULL, 0, attrs, 3, &t, 1);
    return t;
}

static size_t shape_text(char *out, size_t room, rp_dtype dtype, const int64_t *size, size_t ndim) {
    int n = snprintf(out, room, "%s(", rp_dtype_name(dtype));
    for (size_t d = 0; d < ndim && n >= 0 && (size_t)n < room; d++)
        n += snprintf(out + n, room - (size_t)n, "%s%lld", d ? ", " : "", (long long)size[d]);
    if (n >= 0 && (size_t)n < room) n += snprintf(out + n, room - (size_t)n, ")");
    return n < 0 ? 0 : (size_t)n;
}

/* Did `s` give what PyTorch says? Notes the fault, as one of the program's step `at`, and puts stand-ins in place if not. */
static void check_step(context *c, const step *s, size_t at, rp_tensor **out, rp_status status) {
    bool good = status == RP_OK && !rp_failed();
    if (!good) note_fault(c, at, rp_failed() ? rp_error_message() : rp_status_name(status));
    for (size_t k = 0; k < s->n_out && good; k++) {
        const expected *e = &s->expect[k];
        if (e->dtype == RP_DTYPE_NONE || s->out[k] < 0) continue;
        int64_t size[RP_MAX_DIMS];
        size_t ndim = (rp_ndim)(out[k]);
        for (size_t d = 0; d < ndim; d++) size[d] = (rp_size)(out[k], (int64_t)d);
        if (!rp_failed() && (rp_dtype_of)(out[k]) == e->dtype && ndim == e->ndim &&
            !memcmp(size, e->size, ndim * sizeof *size))
            continue;
        char ours[256], theirs[256], text[640];
        shape_text(ours, sizeof ours, (rp_dtype_of)(out[k]), size, ndim);
        shape_text(theirs, sizeof theirs, e->dtype, e->size, e->ndim);
        snprintf(text, sizeof text, "%s gives %s, PyTorch %s", s->op, ours, theirs);
        note_fault(c, at, text);
        good = false;
    }
    if (good) return;
    (void)rp_error_take();
    for (size_t k = 0; k < s->n_out; k++) out[k] = s->out[k] < 0 ? NULL : stand_in(&s->expect[k]);
}

/* One replay: what its steps have calculated so far. */
typedef struct run {
    context *c;
    rp_tensor **slots;
    rp_scalar *regs;
    size_t at; /* the program's step that runs, also where that is one of a block of it */
} run;

typedef struct region { /* what a branch or a loop's function is called with */
    run *r;
    const block *b;
} region;

static bool run_steps(run *r, const step *steps, size_t n, bool outermost);

static void run_block(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    const region *g = ctx;
    for (size_t k = 0; k < n_in && k < g->b->n_in; k++) g->r->slots[g->b->in[k]] = in[k];
    if (!run_steps(g->r, g->b->steps, g->b->n_steps, false)) return;
    for (size_t k = 0; k < n_out; k++) out[k] = g->r->slots[g->b->out[k]];
}

static rp_status run_regions(run *r, const step *s, rp_tensor *const *in, rp_tensor **out) {
    region first = {r, &s->blocks[0]}, second = {r, &s->blocks[1]};
    rp_fn a = {run_block, &first, 0, s->op}, b = {run_block, &second, 0, s->op};
    return s->kind == STEP_COND ? (rp_cond_at)(s->site, in[0], a, b, NULL, 0, out, s->n_out)
                                : (rp_while_at)(s->site, a, b, in, s->n_in, 0, out);
}

/* False: an error is set. Steps of a block read all that came before them. */
static bool run_steps(run *r, const step *steps, size_t n, bool outermost) {
    for (size_t at = 0; at < n; at++) {
        const step *s = &steps[at];
        rp_tensor *operand[MOST_IN], *result[MOST_IN];
        rp_attr attrs[MOST_ATTRS];
        int64_t room[MOST_INTS];
        if (outermost) r->at = at;
        if (s->kind == STEP_SIZE) {
            r->regs[s->out[0]] = (rp_i64)((rp_sym_size)(r->slots[s->in[0]], s->a.value.v.i));
            continue;
        }
        if (s->kind == STEP_CALC) {
            r->regs[s->out[0]] = calculate(s->op, read_number(s->a, r->regs), read_number(s->b, r->regs));
            continue;
        }
        for (size_t k = 0; k < s->n_in; k++) operand[k] = s->in[k] < 0 ? NULL : r->slots[s->in[k]];
        rp_status status = fill_attrs(s, r->regs, attrs, room);
        if (status == RP_OK && s->kind == STEP_OP) status = run_op(s, attrs, operand, result);
        if (status == RP_OK && s->kind == STEP_GRAD) status = run_grad(s, attrs, operand, r->slots, result);
        if (status == RP_OK && s->blocks) status = run_regions(r, s, operand, result);
        if (r->c->faults)
            check_step(r->c, s, r->at, result, status);
        else if (status != RP_OK)
            return false;
        for (size_t k = 0; k < s->n_out; k++)
            if (s->out[k] >= 0) r->slots[s->out[k]] = result[k];
    }
    return true;
}

static void replay(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    context *c = ctx;
    const program *p = c->p;
    if (p->ir) {
        (void)(rp_ir_run)(p->ir, in, n_in, out, n_out);
        return;
    }
    rp_device before = rp_default_device();
    bool moved = p->device.type != before.type || p->device.index != before.index;
    if (moved) (void)(rp_set_default_device)(p->device);
    run r = {c, calloc(p->n_slots + 1, sizeof *r.slots), calloc(p->n_regs + 1, sizeof *r.regs), 0};
    if (r.slots && r.regs) {
        memcpy(r.slots, in, n_in * sizeof *in);
        (void)run_steps(&r, p->steps, p->n_steps, true);
        for (size_t k = 0; k < n_out; k++) out[k] = r.slots[p->out[k]];
    }
    if (moved) (void)(rp_set_default_device)(before);
    free(r.slots);
    free(r.regs);
}

/* ---- reading what Python made; every reader gives false with a Python error */

static bool read_size(PyObject *o, int64_t *out) {
    *out = PyLong_AsLongLong(o);
    return *out != -1 || !PyErr_Occurred();
}

static bool read_word_of(PyObject *o, program *p, word *out) {
    int64_t reg = 0;
    out->reg = -1;
    if (!PyTuple_Check(o)) {
        if (!read_size(o, &reg)) return false;
        out->value = (rp_i64)(reg);
        return true;
    }
    if (!read_size(PyTuple_GetItem(o, 0), &reg)) return false;
    if (reg < 0 || reg > 1 << 24) return PyErr_SetString(PyExc_ValueError, "no such register"), false;
    out->reg = (int32_t)reg;
    if ((size_t)reg >= p->n_regs) p->n_regs = (size_t)reg + 1;
    return true;
}

static bool read_number_of(PyObject *o, program *p, word *out) {
    if (!PyFloat_Check(o)) return read_word_of(o, p, out);
    *out = (word){rp_f64(PyFloat_AsDouble(o)), -1};
    return true;
}

static bool read_slots(PyObject *o, program *p, size_t most, int32_t **out, size_t *n) {
    Py_ssize_t size = PyTuple_Size(o);
    if (size < 0) return false;
    if ((size_t)size > most) return PyErr_Format(PyExc_ValueError, "a step of %zd tensors", size), false;
    *out = calloc((size_t)size + 1, sizeof **out);
    if (!*out) return PyErr_NoMemory(), false;
    *n = (size_t)size;
    for (Py_ssize_t i = 0; i < size; i++) {
        int64_t slot;
        if (!read_size(PyTuple_GetItem(o, i), &slot)) return false;
        if (slot < -1 || slot > 1 << 24) return PyErr_SetString(PyExc_ValueError, "no such slot"), false;
        (*out)[i] = (int32_t)slot;
        if (slot >= 0 && (size_t)slot >= p->n_slots) p->n_slots = (size_t)slot + 1;
    }
    return true;
}

static bool read_words(PyObject *list, program *p, attribute *out) {
    Py_ssize_t n = PyTuple_Size(list);
    if (n < 0) return false;
    out->a.n = (size_t)n;
    out->words = calloc((size_t)n + 1, sizeof *out->words);
    if (!out->words) return PyErr_NoMemory(), false;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!read_word_of(PyTuple_GetItem(list, i), p, &out->words[i])) return false;
    return true;
}

/* (kind, value): an int may be the tuple (register,); a Scalar keeps its type. */
static bool read_attr(PyObject *o, program *p, attribute *out) {
    int kind;
    PyObject *value;
    if (!PyArg_ParseTuple(o, "iO", &kind, &value)) return false;
    out->a.kind = (rp_attr_kind)kind;
    switch (out->a.kind) {
    case RP_ATTR_INT: {
        out->words = calloc(1, sizeof *out->words);
        if (!out->words) return PyErr_NoMemory(), false;
        return read_word_of(value, p, out->words);
    }
    case RP_ATTR_INTS: return read_words(value, p, out);
    case RP_ATTR_FLOAT: out->a.v.f = PyFloat_AsDouble(value); break;
    case RP_ATTR_BOOL: out->a.v.b = PyObject_IsTrue(value) == 1; break;
    case RP_ATTR_DTYPE: out->a.v.dtype = (rp_dtype)PyLong_AsLong(value); break;
    case RP_ATTR_STRING: out->a.v.string = py_keep_text(value); break;
    case RP_ATTR_NONE: break;
    case RP_ATTR_SCALAR:
        if (PyBool_Check(value))
            out->a.v.scalar = rp_bool(value == Py_True);
        else if (PyFloat_Check(value))
            out->a.v.scalar = rp_f64(PyFloat_AsDouble(value));
        else {
            out->words = calloc(1, sizeof *out->words);
            if (!out->words) return PyErr_NoMemory(), false;
            return read_word_of(value, p, out->words);
        }
        break;
    case RP_ATTR_FLOATS: {
        Py_ssize_t n = PyTuple_Size(value);
        if (n < 0) return false;
        out->floats = calloc((size_t)n + 1, sizeof *out->floats);
        if (!out->floats) return PyErr_NoMemory(), false;
        for (Py_ssize_t i = 0; i < n; i++) out->floats[i] = PyFloat_AsDouble(PyTuple_GetItem(value, i));
        out->a.n = (size_t)n;
        out->a.v.floats = out->floats;
        break;
    }
    case RP_ATTR_GENERATOR: PyErr_SetString(PyExc_ValueError, "a generator as an attribute"); break;
    }
    return !PyErr_Occurred();
}

static bool read_attrs(PyObject *o, program *p, step *s) {
    Py_ssize_t n = PyTuple_Size(o);
    if (n < 0) return false;
    if (n > MOST_ATTRS) return PyErr_SetString(PyExc_ValueError, "too many attributes"), false;
    s->attrs = calloc((size_t)n + 1, sizeof *s->attrs);
    if (!s->attrs) return PyErr_NoMemory(), false;
    s->n_attrs = (size_t)n;
    size_t ints = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!read_attr(PyTuple_GetItem(o, i), p, &s->attrs[i])) return false;
        if (s->attrs[i].a.kind == RP_ATTR_INTS) ints += s->attrs[i].a.n;
    }
    if (ints > MOST_INTS) return PyErr_SetString(PyExc_ValueError, "too many sizes"), false;
    return true;
}

/* None, or (dtype, sizes), for each result */
static bool read_expected(PyObject *o, step *s) {
    s->expect = calloc(s->n_out + 1, sizeof *s->expect);
    if (!s->expect) return PyErr_NoMemory(), false;
    if (PyTuple_Size(o) != (Py_ssize_t)s->n_out) return PyErr_SetString(PyExc_ValueError, "expected results"), false;
    for (size_t k = 0; k < s->n_out; k++) {
        PyObject *e = PyTuple_GetItem(o, (Py_ssize_t)k), *sizes;
        int dtype;
        if (e == Py_None) continue;
        if (!PyArg_ParseTuple(e, "iO", &dtype, &sizes)) return false;
        Py_ssize_t n = PyTuple_Size(sizes);
        if (n < 0) return false;
        if (n > RP_MAX_DIMS)
            return PyErr_Format(py_error, "a tensor has at most %d dimensions, not %zd", RP_MAX_DIMS, n), false;
        s->expect[k].dtype = (rp_dtype)dtype;
        s->expect[k].ndim = (size_t)n;
        for (Py_ssize_t d = 0; d < n; d++)
            if (!read_size(PyTuple_GetItem(sizes, d), &s->expect[k].size[d])) return false;
    }
    return true;
}

static bool read_step(PyObject *o, program *p, step *s);

/* (slots that are given, steps, slots of results) */
static bool read_block(PyObject *o, program *p, block *b) {
    PyObject *in, *steps, *out;
    if (!PyArg_ParseTuple(o, "OOO", &in, &steps, &out)) return false;
    Py_ssize_t n = PyList_Size(steps);
    if (n < 0 || !read_slots(in, p, MOST_IN, &b->in, &b->n_in)) return false;
    if (!(b->steps = calloc((size_t)n + 1, sizeof *b->steps))) return PyErr_NoMemory(), false;
    p->n_nested += (size_t)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        b->n_steps = (size_t)i + 1;
        if (!read_step(PyList_GetItem(steps, i), p, &b->steps[i])) return false;
    }
    return read_slots(out, p, MOST_IN, &b->out, &b->n_out);
}

/* Is each of them a slot? */
static bool all_there(const int32_t *slots, size_t n) {
    for (size_t k = 0; k < n; k++)
        if (slots[k] < 0) return false;
    return true;
}

static bool read_step(PyObject *o, program *p, step *s) {
    PyObject *op = NULL, *site = NULL, *in = NULL, *attrs = NULL, *out = NULL, *expect = NULL, *a = NULL, *b = NULL;
    int slot, dim, reg;
    if (!PyTuple_Check(o) || PyTuple_Size(o) < 1) return PyErr_SetString(PyExc_TypeError, "a step is a tuple"), false;
    PyObject *kind = PyTuple_GetItem(o, 0), *rest = PyTuple_GetSlice(o, 1, PyTuple_Size(o));
    bool good = false;
    if (!rest) return false;
    if (!PyUnicode_CompareWithASCIIString(kind, "op") || !PyUnicode_CompareWithASCIIString(kind, "grad")) {
        PyObject *grads = NULL, *wrt = NULL;
        s->kind = PyTuple_Size(o) == 7 ? STEP_OP : STEP_GRAD;
        good = PyArg_ParseTuple(rest, "OOOOOO|OO", &op, &site, &in, &attrs, &out, &expect, &grads, &wrt) &&
               (s->op = py_keep_text(op)) && (site == Py_None || (s->site = py_keep_text(site))) &&
               read_slots(in, p, MOST_IN, &s->in, &s->n_in) && read_slots(out, p, MOST_IN, &s->out, &s->n_out) &&
               read_attrs(attrs, p, s) && read_expected(expect, s);
        if (good && s->kind == STEP_GRAD)
            good = wrt && read_slots(grads, p, 8, &s->grads, &s->n_grads) && read_slots(wrt, p, 8, &s->wrt, &s->n_wrt);
        for (size_t k = 0; good && k < s->n_wrt; k++)
            if (s->wrt[k] < 0 || (size_t)s->wrt[k] >= s->n_in || s->in[s->wrt[k]] < 0 || s->n_wrt != s->n_out)
                good = (PyErr_SetString(PyExc_ValueError, "a gradient of no operand"), false);
    } else if (!PyUnicode_CompareWithASCIIString(kind, "size")) {
        s->kind = STEP_SIZE;
        s->op = "size";
        good = PyArg_ParseTuple(rest, "iii", &slot, &dim, &reg);
        if (good && (slot < 0 || (size_t)slot >= p->n_slots || reg < 0 || reg > 1 << 24))
            good = (PyErr_SetString(PyExc_ValueError, "a size of no tensor"), false);
        s->in = calloc(1, sizeof *s->in);
        s->out = calloc(1, sizeof *s->out);
        if (good && s->in && s->out) {
            s->in[0] = slot;
            s->out[0] = reg;
            s->a = (word){(rp_i64)(dim), -1};
            if ((size_t)reg >= p->n_regs) p->n_regs = (size_t)reg + 1;
        }
    } else if (!PyUnicode_CompareWithASCIIString(kind, "calc")) {
        s->kind = STEP_CALC;
        good = PyArg_ParseTuple(rest, "OOOi", &op, &a, &b, &reg) && (s->op = py_keep_text(op)) &&
               read_number_of(a, p, &s->a) && read_number_of(b, p, &s->b);
        s->out = calloc(1, sizeof *s->out);
        if (good && s->out) {
            s->out[0] = reg;
            if ((size_t)reg >= p->n_regs) p->n_regs = (size_t)reg + 1;
        }
    } else if (!PyUnicode_CompareWithASCIIString(kind, "cond") || !PyUnicode_CompareWithASCIIString(kind, "while")) {
        bool loop = !PyUnicode_CompareWithASCIIString(kind, "while");
        s->kind = loop ? STEP_WHILE : STEP_COND;
        s->op = loop ? "while" : "cond";
        good = PyArg_ParseTuple(rest, "OOOOOO", &site, &in, &out, &expect, &a, &b) &&
               (site == Py_None || (s->site = py_keep_text(site))) && read_slots(in, p, MOST_IN, &s->in, &s->n_in) &&
               read_slots(out, p, MOST_IN, &s->out, &s->n_out) && read_expected(expect, s) &&
               ((s->blocks = calloc(2, sizeof *s->blocks)) || (PyErr_NoMemory(), false)) &&
               read_block(a, p, &s->blocks[0]) && read_block(b, p, &s->blocks[1]);
        const size_t given = loop ? s->n_in : 0;
        for (size_t k = 0; good && k < 2; k++) {
            const block *of = &s->blocks[k];
            good = of->n_in == given && of->n_out == (loop && k == 0 ? 1 : s->n_out) && all_there(of->in, of->n_in) &&
                   all_there(of->out, of->n_out);
        }
        good = good && all_there(s->in, s->n_in) && s->n_in == (loop ? s->n_out : 1);
        if (!good && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "blocks that do not fit their step");
    } else {
        PyErr_Format(PyExc_ValueError, "no step is a %R", kind);
    }
    Py_DECREF(rest);
    if (good && ((s->kind == STEP_SIZE && !s->in) || (s->kind >= STEP_SIZE && !s->out)))
        good = (PyErr_NoMemory(), false);
    return good;
}

/* ---- life */

static void step_free(step *s) {
    for (size_t k = 0; s->blocks && k < 2; k++) {
        for (size_t i = 0; s->blocks[k].steps && i < s->blocks[k].n_steps; i++) step_free(&s->blocks[k].steps[i]);
        free(s->blocks[k].steps);
        free(s->blocks[k].in);
        free(s->blocks[k].out);
    }
    free(s->blocks);
    for (size_t k = 0; s->attrs && k < s->n_attrs; k++) {
        free(s->attrs[k].words);
        free(s->attrs[k].floats);
    }
    free(s->attrs);
    free(s->in);
    free(s->out);
    free(s->grads);
    free(s->wrt);
    free(s->expect);
}

static void room_free(room *r) {
    free(r->in);
    free(r->keeps);
    *r = (room){NULL, NULL, NULL, 0};
}

static bool room_make(room *r, const program *p) {
    r->in = calloc(p->n_in + p->n_out + 1, sizeof *r->in);
    r->keeps = calloc(p->n_in + 1, sizeof *r->keeps);
    if (!r->in || !r->keeps) {
        room_free(r);
        return PyErr_NoMemory(), false;
    }
    r->out = r->in + p->n_in;
    return true;
}

static void program_free(PyObject *self) {
    program *p = (program *)self;
    PyTypeObject *type = Py_TYPE(self);
    rp_compiled_release(p->compiled);
    for (size_t k = 0; p->seen && k < p->n_in; k++)
        if (p->seen[k].t) (rp_release)(p->seen[k].t);
    for (size_t k = 0; p->steps && k < p->n_steps; k++) step_free(&p->steps[k]);
    rp_ir_release(p->ir);
    room_free(&p->room);
    free(p->steps);
    free(p->seen);
    free(p->owned);
    free(p->order);
    free(p->out);
    free(p->name);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

typedef const char *text_pair[2];

/* ((key, value), ...) of texts; *out is the caller's to free. */
static bool read_pairs(PyObject *o, text_pair **out, size_t *n) {
    Py_ssize_t size = PyTuple_Size(o);
    if (size < 0) return false;
    *out = calloc((size_t)size + 1, sizeof **out);
    if (!*out) return PyErr_NoMemory(), false;
    *n = (size_t)size;
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *key, *value;
        if (!PyArg_ParseTuple(PyTuple_GetItem(o, i), "UU", &key, &value)) return false;
        if (!((*out)[i][0] = py_keep_text(key)) || !((*out)[i][1] = py_keep_text(value))) return false;
    }
    return true;
}

/* Numbers of a tuple; *out is the caller's to free. */
static bool read_numbers(PyObject *o, size_t **out, size_t *n) {
    Py_ssize_t size = PyTuple_Size(o);
    if (size < 0) return false;
    *out = calloc((size_t)size + 1, sizeof **out);
    if (!*out) return PyErr_NoMemory(), false;
    *n = (size_t)size;
    for (Py_ssize_t i = 0; i < size && !PyErr_Occurred(); i++) (*out)[i] = PyLong_AsSize_t(PyTuple_GetItem(o, i));
    return !PyErr_Occurred();
}

static bool make_compiled(program *p, PyObject *options) {
    rp_compile_options o = {.struct_size = sizeof o, .fullgraph = true};
    text_pair *pairs = NULL;
    size_t *free_strides = NULL;
    PyObject *value;
    if (options && options != Py_None) {
        if ((value = PyDict_GetItemString(options, "engine")) && value != Py_None && !(o.backend = py_keep_text(value)))
            return false;
        if ((value = PyDict_GetItemString(options, "static_sizes"))) o.static_sizes = PyObject_IsTrue(value) == 1;
        if ((value = PyDict_GetItemString(options, "no_graph"))) o.no_graph = PyObject_IsTrue(value) == 1;
        if ((value = PyDict_GetItemString(options, "strict"))) o.strict = PyObject_IsTrue(value) == 1;
        if ((value = PyDict_GetItemString(options, "wait"))) o.wait = PyObject_IsTrue(value) == 1;
        if ((value = PyDict_GetItemString(options, "tune"))) o.tune = PyObject_IsTrue(value) == 1;
        if ((value = PyDict_GetItemString(options, "numbers")))
            o.numbers = PyUnicode_CompareWithASCIIString(value, "fast") == 0 ? RP_NUMBERS_FAST : RP_NUMBERS_DEFAULT;
        int type, index;
        if ((value = PyDict_GetItemString(options, "device")) && PyArg_ParseTuple(value, "ii", &type, &index))
            p->device = (rp_device){(rp_device_type)type, index};
        if ((value = PyDict_GetItemString(options, "engine_options")) && !PyErr_Occurred())
            (void)read_pairs(value, &pairs, &o.n_engine_options);
        o.engine_options = (const char *const(*)[2])pairs;
        if ((value = PyDict_GetItemString(options, "free_strides")) && !PyErr_Occurred())
            (void)read_numbers(value, &free_strides, &o.n_free_strides);
        o.free_strides = free_strides;
        if (PyErr_Occurred()) {
            free(free_strides);
            free(pairs);
            return false;
        }
    }
    p->context.p = p;
    p->compiled = (rp_compile)((rp_fn){replay, &p->context, 0, p->name}, &o);
    free(pairs); /* the function has copies */
    free(free_strides);
    return !rp_failed() || (py_fail("compile"), false);
}

static bool make_room(program *p, const char *name) {
    p->name = copy_text(name);
    p->seen = calloc(p->n_in + 1, sizeof *p->seen);
    p->owned = calloc(p->n_in + 1, sizeof *p->owned);
    return (p->name && p->seen && p->owned) || (PyErr_NoMemory(), false);
}

/* Program(name, n_in, steps, results, owned, options) */
static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)keywords;
    const char *name;
    int n_in;
    PyObject *steps, *results, *owned, *options;
    if (!PyArg_ParseTuple(args, "siOOOO", &name, &n_in, &steps, &results, &owned, &options)) return NULL;
    program *p = (program *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!p) return NULL;
    p->n_in = p->n_slots = n_in < 0 ? 0 : (size_t)n_in;
    Py_ssize_t n = PyList_Size(steps);
    bool good = n >= 0 && make_room(p, name) &&
                ((p->steps = calloc((size_t)n + 1, sizeof *p->steps)) || (PyErr_NoMemory(), false));
    for (Py_ssize_t i = 0; good && i < n; i++) {
        p->n_steps = (size_t)i + 1;
        good = read_step(PyList_GetItem(steps, i), p, &p->steps[i]);
    }
    size_t slots = p->n_slots, n_owned = 0;
    int32_t *which = NULL;
    good = good && read_slots(results, p, SIZE_MAX, &p->out, &p->n_out) &&
           read_slots(owned, p, SIZE_MAX, &which, &n_owned);
    for (size_t k = 0; good && k < p->n_out; k++)
        if (p->out[k] < 0 || p->n_slots != slots)
            good = (PyErr_SetString(PyExc_ValueError, "a result of no step"), false);
    for (size_t k = 0; good && k < n_owned; k++)
        if (which[k] >= 0 && (size_t)which[k] < p->n_in) p->owned[which[k]] = true;
    free(which);
    if (!good || !make_compiled(p, options)) {
        Py_DECREF(p);
        return NULL;
    }
    return (PyObject *)p;
}

/* Program.read(text, options): a graph in text form */
static PyObject *program_read(PyObject *type, PyObject *args) {
    const char *text;
    Py_ssize_t bytes;
    PyObject *options;
    if (!PyArg_ParseTuple(args, "s#O", &text, &bytes, &options)) return NULL;
    program *p = (program *)((allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc))((PyTypeObject *)type, 0);
    if (!p) return NULL;
    p->ir = (rp_ir_parse)(text, (size_t)bytes);
    bool good = !rp_failed() || (py_fail("compile_ir"), false);
    if (good) {
        const rp_ir_value *list;
        p->n_in = rp_ir_block_args(rp_ir_body(p->ir), &list);
        p->n_out = rp_ir_block_results(rp_ir_body(p->ir), &list);
        const char *name = rp_ir_name(p->ir);
        good = make_room(p, name && *name ? name : "graph") && make_compiled(p, options);
    }
    if (!good) {
        Py_DECREF(p);
        return NULL;
    }
    return (PyObject *)p;
}

/* ---- calls */

static void give_back(void *ctx) { /* a tensor that a handle held; in any thread */
    if (!Py_IsInitialized()) return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)ctx);
    PyGILState_Release(state);
}

static char nothing[16] __attribute__((aligned(16))); /* memory of tensors without elements */

static bool same_form(const seen *a, const dl_tensor *v, const int64_t *stride, uint64_t device, uint64_t form) {
    if (!a->t || a->device != device || a->form != form) return false;
    for (int32_t d = 0; d < v->ndim; d++)
        if (a->size[d] != v->shape[d] || a->stride[d] != stride[d]) return false;
    return true;
}

/* On CUDA the caller's current stream becomes ours before there is a handle, once a device (*followed, -1 at first).
   The handle of argument k, borrowed from p->seen, which nobody replaces while another call runs, or of the innermost scope. */
static rp_tensor *argument(program *p, size_t k, PyObject *object, int32_t *followed, room *r) {
    dl_tensor v;
    int64_t carried[2] = {0, 0}, carried_stride[2] = {1, 1}, plain[RP_MAX_DIMS];
    seen *last = &p->seen[k];
    if (PyLong_Check(
            object)) { /* a number of the caller's: the size of a tensor without elements, so that it may be a symbol */
        if (!read_size(object, &carried[1])) return NULL;
        if (carried[1] < 0) {
            PyErr_Format(py_error, "a negative number (%lld) as an argument", (long long)carried[1]);
            return NULL;
        }
        v = (dl_tensor){.data = nothing,
                        .device_type = DL_CPU,
                        .ndim = 2,
                        .code = DL_INT,
                        .bits = 64,
                        .lanes = 1,
                        .shape = carried,
                        .strides = carried_stride};
    } else {
        PyObject *keep;
        if (py_view(object, &v, &keep)) return NULL;
        if (keep) r->keeps[r->n_keeps++] = keep;
    }
    if (v.device_type == DL_CUDA && v.device_id != *followed) {
        if (py_follow_stream(rp_cuda(v.device_id))) return NULL;
        *followed = v.device_id;
    }
    uint64_t place, form;
    memcpy(&place, &v.device_type, sizeof place);
    memcpy(&form, &v.ndim, sizeof form);
    void *data = v.data ? (char *)v.data + v.byte_offset : nothing;
    const int64_t *stride = v.strides;
    if (!stride && v.ndim <= RP_MAX_DIMS) {
        int64_t step = 1;
        for (int32_t d = v.ndim; d-- > 0; step *= v.shape[d]) plain[d] = step;
        stride = plain;
    }
    bool own = p->owned[k];
    if (!own && last->data == data && same_form(last, &v, stride, place, form)) return last->t;
    rp_dtype dtype;
    rp_device device;
    if (py_dtype_of(&v, &dtype, &device)) return NULL;
    if (own) Py_INCREF(object);
    rp_tensor *t = (rp_from_blob)(data, v.shape, (size_t)v.ndim, stride, dtype, device, own ? give_back : NULL,
                                  own ? object : NULL);
    if (rp_is_error(t) || (rp_declare_stable)(t) != RP_OK) return py_fail("an argument");
    if (own || p->calls > 1) return t;
    if (last->t) (rp_release)(last->t);
    *last = (seen){.t = (rp_retain)(t), .data = data, .device = place, .form = form};
    memcpy(last->size, v.shape, (size_t)v.ndim * sizeof *v.shape);
    memcpy(last->stride, stride, (size_t)v.ndim * sizeof *stride);
    return t;
}

/* Calls the compiled function without the interpreter's lock. Results belong to the innermost scope. */
static rp_status call_free(program *p, rp_tensor **in, rp_tensor **out) {
    rp_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = (rp_call)(p->compiled, in, p->n_in, out, p->n_out);
    Py_END_ALLOW_THREADS;
    return status;
}

/* Calls the function on what fills r->in, of which `good` says whether it is whole. A list of its results, each as `make` gives it; NULL: an
   exception is set. */
static PyObject *results_of(program *p, room *r, bool good, PyObject *(*make)(rp_tensor *t)) {
    if (!good) return NULL;
    if (call_free(p, r->in, r->out) != RP_OK) {
        py_fail(p->name);
        return NULL;
    }
    PyObject *results = PyList_New((Py_ssize_t)p->n_out);
    for (size_t k = 0; results && k < p->n_out; k++) {
        PyObject *t = make(r->out[k]);
        if (t)
            PyList_SetItem(results, (Py_ssize_t)k, t);
        else
            Py_CLEAR(results);
    }
    return results;
}

/* A call of its own lists and scope; `own` where another call has those of the program. */
typedef struct call {
    room *room, own;
    rp_scope scope;
} call;

/* Begins a call with this list of arguments; false: an exception is set. */
static bool begin_call(program *p, PyObject *args, call *c) {
    if (!PyList_Check(args) || (size_t)PyList_Size(args) != p->n_in) {
        PyErr_Format(PyExc_TypeError, "%s takes a list of %zu arguments", p->name, p->n_in);
        return false;
    }
    c->own = (room){NULL, NULL, NULL, 0};
    c->room = p->calls > 0 ? &c->own : &p->room;
    if (!c->room->in && !room_make(c->room, p)) return false;
    p->calls++;
    c->room->n_keeps = 0;
    c->scope = (rp_scope_begin)();
    return true;
}

static void end_call(program *p, call *c) {
    (rp_scope_end)(c->scope, NULL, 0);
    for (size_t k = 0; k < c->room->n_keeps; k++) Py_DECREF(c->room->keeps[k]);
    if (c->room == &c->own) room_free(&c->own);
    p->calls--;
}

/* The handles of torch tensors and ints. */
static bool read_arguments(program *p, PyObject *list, room *r) {
    int32_t followed = -1;
    for (size_t k = 0; k < p->n_in; k++)
        if (!(r->in[k] = argument(p, k, PyList_GetItem(list, (Py_ssize_t)k), &followed, r))) return false;
    return true;
}

/* arrange(tuple): what call() gives, in this order: k for result k, -1 - k for argument k, None for None. Once. */
static PyObject *program_arrange(PyObject *self, PyObject *places) {
    program *p = (program *)self;
    Py_ssize_t n = PyTuple_Size(places);
    if (n < 0) return NULL;
    if (p->order) Py_RETURN_NONE; /* another thread was first */
    int32_t *order = calloc((size_t)n + 1, sizeof *order);
    if (!order) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t at = NOTHING;
        PyObject *place = PyTuple_GetItem(places, i);
        if (place != Py_None && (!read_size(place, &at) || at < -(int64_t)p->n_in || at >= (int64_t)p->n_out)) {
            free(order);
            return PyErr_Occurred() ? NULL
                                    : PyErr_Format(PyExc_IndexError, "no result or argument %lld", (long long)at);
        }
        order[i] = (int32_t)at;
    }
    p->order = order;
    p->n_order = (size_t)n;
    p->in_order = p->n_order == p->n_out;
    for (size_t i = 0; i < p->n_order && p->in_order; i++) p->in_order = order[i] == (int32_t)i;
    Py_RETURN_NONE;
}

/* The list that call() gives, of `results`, which are given up, and of the arguments. */
static PyObject *arranged(const program *p, PyObject *results, PyObject *args) {
    PyObject *list = PyList_New((Py_ssize_t)p->n_order);
    for (size_t k = 0; list && k < p->n_order; k++) {
        const int32_t at = p->order[k];
        PyObject *one = at == NOTHING ? Py_None : at < 0 ? PyList_GetItem(args, -1 - at) : PyList_GetItem(results, at);
        Py_XINCREF(one);
        if (one)
            PyList_SetItem(list, (Py_ssize_t)k, one);
        else
            Py_CLEAR(list);
    }
    Py_DECREF(results);
    return list;
}

static PyObject *run_torch(program *p, PyObject *args, bool arrange) {
    call c;
    if (!begin_call(p, args, &c)) return NULL;
    PyObject *results = results_of(p, c.room, read_arguments(p, args, c.room), py_torch_from);
    if (results && arrange && !p->in_order) results = arranged(p, results, args);
    end_call(p, &c);
    return results;
}

/* run(list of torch tensors and ints) -> list of torch tensors. The list stays as it is. */
static PyObject *program_run(PyObject *self, PyObject *args) { return run_torch((program *)self, args, false); }

/* call(the same list) -> what arrange() said. */
static PyObject *program_call(PyObject *self, PyObject *args) {
    program *p = (program *)self;
    return p->order ? run_torch(p, args, true) : PyErr_Format(PyExc_ValueError, "%s is not arranged", p->name);
}

/* arrays(list of arrays) -> list of Array */
static PyObject *program_arrays(PyObject *self, PyObject *args) {
    program *p = (program *)self;
    call c;
    if (!begin_call(p, args, &c)) return NULL;
    rp_tensor **in = c.room->in;
    size_t n = 0;
    while (n < p->n_in && (in[n] = py_from_array(PyList_GetItem(args, (Py_ssize_t)n)))) n++;
    PyObject *results = results_of(p, c.room, n == p->n_in, py_array_new);
    for (size_t k = 0; k < n; k++) (rp_release)(in[k]);
    end_call(p, &c);
    return results;
}

/* bare(arguments as run takes them, n) -> seconds a call of the library alone, without Python: what run() is measured against */
static PyObject *program_bare(PyObject *self, PyObject *args) {
    program *p = (program *)self;
    PyObject *list;
    int n;
    call c;
    if (!PyArg_ParseTuple(args, "Oi", &list, &n)) return NULL;
    if (n < 1) return PyErr_Format(PyExc_ValueError, "%d calls", n);
    if (!begin_call(p, list, &c)) return NULL;
    room *r = c.room;
    bool good = read_arguments(p, list, r);
    struct timespec begin = {0, 0}, end = {0, 0};
    (void)timespec_get(&begin, TIME_UTC);
    for (int i = 0; i < n && good; i++) {
        rp_scope inner = (rp_scope_begin)();
        good = (rp_call)(p->compiled, r->in, p->n_in, r->out, p->n_out) == RP_OK || (py_fail(p->name), false);
        (rp_scope_end)(inner, NULL, 0);
    }
    (void)timespec_get(&end, TIME_UTC);
    end_call(p, &c);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    return good ? PyFloat_FromDouble(seconds / n) : NULL;
}

/* ---- checks and facts */

static bool read_type(PyObject *o, rp_ir_type *type) {
    int dtype, device, index;
    PyObject *sizes, *dynamic;
    *type = (rp_ir_type){.struct_size = sizeof *type};
    if (!PyArg_ParseTuple(o, "iiiOO", &dtype, &device, &index, &sizes, &dynamic)) return false;
    Py_ssize_t n = PyTuple_Size(sizes);
    if (n < 0) return false;
    if (n > RP_MAX_DIMS)
        return PyErr_Format(py_error, "a tensor has at most %d dimensions, not %zd", RP_MAX_DIMS, n), false;
    type->dtype = (rp_dtype)dtype;
    type->device = (rp_device){(rp_device_type)device, index};
    type->ndim = (size_t)n;
    for (Py_ssize_t d = 0; d < n; d++) {
        PyObject *symbol = PyTuple_GetItem(dynamic, d);
        if (!symbol || !read_size(PyTuple_GetItem(sizes, d), &type->size[d])) return false;
        type->dynamic[d] = PyObject_IsTrue(symbol) == 1;
    }
    return true;
}

/* The types of the arguments, or NULL with an exception. Freed by the caller. */
static rp_ir_type *read_types(const program *p, PyObject *types) {
    if (!PyList_Check(types) || (size_t)PyList_Size(types) != p->n_in)
        return PyErr_Format(PyExc_TypeError, "a type an argument"), NULL;
    rp_ir_type *list = calloc(p->n_in + 1, sizeof *list);
    bool good = list || (PyErr_NoMemory(), false);
    for (size_t k = 0; good && k < p->n_in; k++) good = read_type(PyList_GetItem(types, (Py_ssize_t)k), &list[k]);
    if (!good) free(list), list = NULL;
    return list;
}

/* check([(dtype, device type, index, sizes, which of them change) an argument]) -> [(step, what is wrong)]; step -1: with the whole. */
static PyObject *program_check(PyObject *self, PyObject *types) {
    program *p = (program *)self;
    rp_ir_type *list = read_types(p, types);
    if (!list) return NULL;
    context c = {.p = p, .most = p->n_steps + p->n_nested};
    c.faults = calloc(c.most + 1, sizeof *c.faults);
    PyObject *found = c.faults ? PyList_New(0) : PyErr_NoMemory();
    if (found) {
        rp_scope scope = (rp_scope_begin)();
        rp_ir *ir;
        Py_BEGIN_ALLOW_THREADS;
        ir = (rp_trace_types)((rp_fn){replay, &c, 0, p->name}, list, p->n_in, p->n_out);
        rp_ir_release(ir);
        Py_END_ALLOW_THREADS;
        bool failed = rp_failed();
        for (size_t k = 0; k < c.n_faults + (failed && c.n_faults == 0); k++) {
            bool whole = k >= c.n_faults;
            PyObject *one = Py_BuildValue("(is)", whole ? -1 : (int)c.faults[k].step,
                                          whole                 ? rp_error_message()
                                          : c.faults[k].message ? c.faults[k].message
                                                                : "");
            if (!one || PyList_Append(found, one)) {
                Py_XDECREF(one);
                Py_CLEAR(found);
                break;
            }
            Py_DECREF(one);
        }
        (void)rp_error_take();
        (rp_scope_end)(scope, NULL, 0);
    }
    for (size_t k = 0; c.faults && k < c.n_faults; k++) free(c.faults[k].message);
    free(c.faults);
    free(list);
    return found;
}

/* text([type an argument]) -> what is traced for arguments of these types, in the library's text form */
static PyObject *program_text(PyObject *self, PyObject *types) {
    program *p = (program *)self;
    rp_ir_type *list = read_types(p, types);
    if (!list) return NULL;
    context c = {.p = p};
    PyObject *text = NULL;
    rp_scope scope = (rp_scope_begin)();
    rp_ir *ir;
    size_t bytes = 0;
    char *buffer = NULL;
    Py_BEGIN_ALLOW_THREADS;
    ir = (rp_trace_types)((rp_fn){replay, &c, 0, p->name}, list, p->n_in, p->n_out);
    if (!rp_failed()) bytes = (rp_ir_text)(ir, NULL, 0);
    if (!rp_failed()) buffer = malloc(bytes + 1);
    if (buffer) (void)(rp_ir_text)(ir, buffer, bytes + 1);
    rp_ir_release(ir);
    Py_END_ALLOW_THREADS;
    if (rp_failed())
        py_fail(p->name);
    else if (!buffer)
        PyErr_NoMemory();
    else
        text = PyUnicode_FromStringAndSize(buffer, (Py_ssize_t)bytes);
    free(buffer);
    (rp_scope_end)(scope, NULL, 0);
    free(list);
    return text;
}

static PyObject *program_explain(PyObject *self, PyObject *unused) {
    (void)unused;
    program *p = (program *)self;
    PyObject *list = PyList_New(0);
    size_t n = (rp_explain_count)(p->compiled);
    for (size_t k = 0; list && k < n; k++) {
        rp_explain_entry e;
        if ((rp_explain_get)(p->compiled, k, &e) != RP_OK) {
            Py_DECREF(list);
            return py_fail("explain");
        }
        PyObject *one = Py_BuildValue("(ssssLs)", e.kind, e.reason, e.message, e.site, (long long)e.count, e.of);
        if (!one || PyList_Append(list, one)) {
            Py_XDECREF(one);
            Py_CLEAR(list);
            break;
        }
        Py_DECREF(one);
    }
    return list;
}

static PyObject *program_name(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(((program *)self)->name);
}

static PyObject *program_arguments(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(((program *)self)->n_in);
}

static PyMethodDef methods[] = {
    {"run", program_run, METH_O, "calls it with a list of torch tensors and ints"},
    {"arrange", program_arrange, METH_O, "which results and arguments call() gives, in which order"},
    {"call", program_call, METH_O, "run(), arranged"},
    {"bare", program_bare, METH_VARARGS, "seconds a call of the library takes alone"},
    {"arrays", program_arrays, METH_O, "calls it with a list of arrays"},
    {"check", program_check, METH_O, "what of it the library refuses for arguments of these types"},
    {"text", program_text, METH_O, "what is traced for arguments of these types, as text"},
    {"explain", program_explain, METH_NOARGS, "what became of it, a tuple a fact"},
    {"read", program_read, METH_VARARGS | METH_CLASS, "a program of a graph in text form"},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef members[] = {{"name", program_name, NULL, "of the function", NULL},
                                {"arguments", program_arguments, NULL, "how many it takes", NULL},
                                {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {{Py_tp_new, program_new},
                              {Py_tp_dealloc, program_free},
                              {Py_tp_methods, methods},
                              {Py_tp_getset, members},
                              {0, NULL}};
static PyType_Spec spec = {"reprise._c.Program", sizeof(program), 0, Py_TPFLAGS_DEFAULT, slots};

int py_program_ready(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    return type ? PyModule_AddObject(module, "Program", type) : -1;
}
