/* Ops of the user: a descriptor becomes a row of the table and is dispatched, taped and traced like any other. On the CPU the
   user's function runs as one launch over row-major tensors, so that capture and programs see it; on CUDA the launch is of a
   kernel that the device makes of the user's source. Rows stay for the life of the process. */
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "device/capture.h"
#include "device/error_record.h"
#include "ops/execute.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/table.h"

typedef struct user_op {
    rp__op op;
    rp_op_descriptor descriptor;
} user_op;

static const rp_op_descriptor *descriptor_of(const rp__op *op) { return op->user; }

/* ---- shape and derivative */

static rp_status infer(const rp__call *call, rp__meta *out) {
    const rp_op_descriptor *d = descriptor_of(call->op);
    for (uint32_t k = 0; k < call->n_out; k++) {
        if (!d->infer) {
            rp__meta_like(&out[k], call->in[0], (rp_dtype)call->in[0]->dtype);
            continue;
        }
        size_t ndim = 0;
        rp_dtype dtype = RP_DTYPE_NONE;
        rp_status status =
            d->infer(d->ctx, call->in, call->n_in, call->attrs, call->n_attrs, k, out[k].size, &ndim, &dtype);
        if (status != RP_OK) return rp__op_error(call, status, "the op's shape function failed");
        if (ndim > RP_MAX_DIMS || !rp__dtype_is_valid(dtype))
            return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT,
                                "the op's shape function gave %zu dimensions and dtype %d", ndim, (int)dtype);
        for (size_t i = 0; i < ndim; i++) {
            if (!rp__dim_is_symbol(out[k].size[i]) && rp__dim_number(out[k].size[i]) < 0)
                return rp__op_error(call, RP_ERROR_SHAPE, "the op's shape function gave a negative size");
        }
        out[k].ndim = (uint8_t)ndim;
        out[k].dtype = dtype;
    }
    return RP_OK;
}

static rp_status vjp(const rp__vjp *g) {
    const rp__call *call = g->call;
    const rp_op_descriptor *d = descriptor_of(call->op);
    rp_tensor *grad_out[RP__MAX_OUTS];
    for (uint32_t k = 0; k < call->n_out; k++) {
        grad_out[k] = g->grad_out[k];
        if (!grad_out[k]) /* the user's function sees zeros, not absence */
            grad_out[k] = rp__zeros_of(&g->out_meta[k]);
        if (rp__tensor_is_error(grad_out[k])) return rp_error_status();
    }
    uint64_t before = rp__error_count();
    rp_status status = d->backward(d->ctx, grad_out, call->n_out, call->in, call->n_in, call->out, call->attrs,
                                   call->n_attrs, g->grad_in);
    return rp__returned(status, before, "the backward of op", call->op->name);
}

/* ---- the CPU launch */

/* What one launch needs beside addresses: handles that carry sizes and no memory, and the attributes. */
typedef struct payload {
    const rp__op *op;
    const char *site;
    rp__host_work *work; /* NULL: the descriptor's function */
    uint32_t n_in, n_out, n_attrs;
    _Atomic(rp_status) status; /* of the last run that failed */
    atomic_bool watched;       /* the call that made the launch will look at `status` */
    rp__error_record *errors;  /* where a failure goes that no call looks at: of a queue or a replay */
    uint64_t tag;
    rp_tensor **handles; /* inputs, then outputs */
    rp_attr *attrs;
    int64_t *ints; /* lists of attrs */
} payload;

static void run_cpu(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    (void)begin;
    (void)end;
    payload *p = kernel->payload;
    const void *in[RP__MAX_IN];
    void *out[RP__MAX_OUTS];
    for (uint32_t k = 0; k < p->n_in; k++) in[k] = (const void *)(uintptr_t)words[k];
    for (uint32_t k = 0; k < p->n_out; k++) out[k] = (void *)(uintptr_t)words[p->n_in + k];
    if (p->work) {
        const rp__call call = {.op = p->op,
                               .in = p->handles,
                               .out = p->handles + p->n_in,
                               .n_in = p->n_in,
                               .n_out = p->n_out,
                               .attrs = p->attrs,
                               .n_attrs = p->n_attrs,
                               .site = p->site};
        (void)p->work(&call, in, out, p->tag);
        return;
    }
    const rp_op_descriptor *d = descriptor_of(p->op);
    rp_status status =
        d->cpu(d->ctx, in, p->n_in, out, p->n_out, p->handles, p->handles + p->n_in, p->attrs, p->n_attrs);
    if (status == RP_OK) return;
    atomic_store(&p->status, status);
    if (!atomic_load(&p->watched)) rp__error_record_put_code(p->errors, RP__ERROR_USER, p->tag, status, 0);
}

static void destroy_kernel(rp__kernel *k) {
    payload *p = k->payload;
    if (p) {
        for (uint32_t i = 0; p->handles && i < p->n_in + p->n_out; i++) rp__free(p->handles[i]);
        rp__free(p->handles);
        rp__free(p->attrs);
        rp__free(p->ints);
        rp__free(p);
    }
    rp__free(k);
}

/* A handle with the geometry of t. It lives in the payload: neither scoped nor counted. */
static rp_tensor *shell_of(const rp_tensor *t) {
    rp_tensor *s = rp__calloc(1, sizeof *s);
    if (!s) return NULL;
    s->magic = RP__TENSOR_MAGIC;
    atomic_init(&s->refs, 1);
    s->dtype = t->dtype;
    s->ndim = t->ndim;
    s->device = t->device;
    s->id = t->id;
    memcpy(s->size, t->size, t->ndim * sizeof *t->size);
    memcpy(s->stride, t->stride, t->ndim * sizeof *t->stride);
    return s;
}

static bool fill_payload(payload *p, const rp__call *call, rp_tensor *const *in) {
    size_t n_ints = 0;
    p->n_in = call->n_in;
    p->n_out = call->n_out;
    p->n_attrs = call->n_attrs;
    for (uint32_t k = 0; k < call->n_attrs; k++) n_ints += call->attrs[k].kind == RP_ATTR_INTS ? call->attrs[k].n : 0;
    p->handles = rp__calloc(call->n_in + call->n_out, sizeof *p->handles);
    p->attrs = rp__alloc((call->n_attrs + 1) * sizeof *p->attrs);
    p->ints = rp__alloc((n_ints + 1) * sizeof *p->ints);
    if (!p->handles || !p->attrs || !p->ints) return false;
    for (uint32_t k = 0; k < call->n_in + call->n_out; k++) {
        const rp_tensor *t = k < call->n_in ? in[k] : call->out[k - call->n_in];
        if (t && !(p->handles[k] = shell_of(t))) return false;
    }
    int64_t *ints = p->ints;
    for (uint32_t k = 0; k < call->n_attrs; k++) {
        p->attrs[k] = call->attrs[k];
        if (call->attrs[k].kind == RP_ATTR_INTS && call->attrs[k].n) {
            memcpy(ints, call->attrs[k].v.ints, call->attrs[k].n * sizeof *ints);
            p->attrs[k].v.ints = ints;
            ints += call->attrs[k].n;
        }
    }
    return true;
}

static rp__kernel *make_kernel(const rp__call *call, const rp__device *d, rp_tensor *const *in, rp__host_work *work) {
    rp__kernel *k = rp__calloc(1, sizeof *k);
    payload *p = rp__calloc(1, sizeof *p);
    if (!k || !p) {
        rp__free(k);
        rp__free(p);
        return NULL;
    }
    p->op = call->op;
    p->site = call->site;
    p->work = work;
    p->errors = d->errors;
    p->tag = rp__error_tag(call->op->name, call->site);
    atomic_init(&p->watched, true);
    atomic_init(&k->refs, 1);
    atomic_init(&k->cpu, run_cpu);
    k->kind = RP__KERNEL_CPU;
    k->name = call->op->name;
    k->key = rp__hash_bytes(call->op->schema_text, strlen(call->op->schema_text), rp__hash_none());
    k->payload = p;
    k->destroy = destroy_kernel;
    if (fill_payload(p, call, in)) return k;
    destroy_kernel(k);
    return NULL;
}

/* ---- launches: a word for the address of each input (0 for an absent one) and of each result */

static rp_status begin_launch(const rp__call *call, rp_tensor *const *in, rp__launch *out) {
    rp__launch_buffer *buffer = rp__launch_buffer_get();
    if (!buffer) return rp_error_status();
    *out = (rp__launch){.words = buffer->words,
                        .slots = buffer->slots,
                        .n_words = call->n_in + call->n_out,
                        .site = call->site,
                        .op = call->op->name};
    for (uint32_t i = 0; i < out->n_words; i++) {
        const rp_tensor *t = i < call->n_in ? in[i] : call->out[i - call->n_in];
        buffer->words[i] = t ? (uint64_t)(uintptr_t)rp__tensor_data(t) : 0;
        if (!t) continue;
        rp__slot *slot = &buffer->slots[out->n_slots++];
        *slot =
            (rp__slot){.word = i, .access = i < call->n_in ? RP__READ : RP__WRITE, .storage = t->storage, .buffer = -1};
        rp__tensor_byte_range(t, &slot->begin, &slot->end);
    }
    return RP_OK;
}

rp_status rp__host_launch(const rp__call *call, rp__device *d, rp_tensor *const *in, rp__host_work *work) {
    rp__launch launch;
    RP_TRY(begin_launch(call, in, &launch));
    launch.items = launch.grain = 1;
    launch.kernel = make_kernel(call, d, in, work);
    if (!launch.kernel) return RP__OOM("the launch of an op on the host");
    rp_status status = rp__launch_on(rp__current_stream(d), &launch);
    payload *p = launch.kernel->payload;
    atomic_store(&p->watched, false); /* before the status is read: what fails later goes to the record */
    rp_status own = atomic_load(&p->status);
    if (status == RP_OK && own != RP_OK) status = rp__op_error(call, own, RP__USER_FAILED);
    rp__kernel_release(launch.kernel);
    return status;
}

bool rp__host_recorded(const rp_stream *s) { return rp__launch_recorder_get() || rp__stream_capturing(s); }

static rp_status launch_cpu(const rp__call *call, rp__device *d, rp_tensor *const *in) {
    if (!descriptor_of(call->op)->cpu) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "the op has no CPU function");
    return rp__host_launch(call, d, in, NULL);
}

/* An attribute as a kernel's parameter; check_schema lets no other kinds through. Returns its bytes, the low ones of the word. */
static uint8_t attr_word(const rp_attr *a, uint64_t *word) {
    double f = a->v.f;
    if (a->kind == RP_ATTR_SCALAR) {
        const rp_scalar *s = &a->v.scalar;
        f = s->kind == RP_SCALAR_F64 ? s->v.f : s->kind == RP_SCALAR_I64 ? (double)s->v.i : (double)s->v.b;
    }
    switch (a->kind) {
    case RP_ATTR_BOOL: *word = a->v.b; return 1;
    case RP_ATTR_DTYPE: *word = (uint64_t)a->v.dtype; return 4;
    case RP_ATTR_INT: *word = (uint64_t)a->v.i; return 8;
    default: memcpy(word, &f, sizeof f); return 8;
    }
}

static rp_status launch_cuda(const rp__call *call, rp__device *d, rp_tensor *const *in) {
    enum { BLOCK = 256 };
    const rp_op_descriptor *u = descriptor_of(call->op);
    if (!u->cuda_source) return rp__op_error(call, RP_ERROR_UNAVAILABLE, "the op has no CUDA source");
    const int64_t n = rp_numel(call->out[0]), each = u->cuda_elements_per_block ? u->cuda_elements_per_block : BLOCK;
    for (uint32_t k = 1; k < call->n_out && n == 0; k++) {
        if (rp_numel(call->out[k]) != 0)
            return rp__op_error(call, RP_ERROR_SHAPE,
                                "result 0 is empty and result %u is not: result 0 says how many blocks the kernel has",
                                k);
    }
    if (n == 0) return RP_OK;
    if ((n - 1) / each >= INT32_MAX)
        return rp__op_error(call, RP_ERROR_SHAPE, "this is more than one CUDA launch takes");
    rp__launch launch;
    uint64_t words[RP__MAX_PARAMS + RP__MAX_OUTS + 1];
    uint8_t bytes[RP__MAX_PARAMS + RP__MAX_OUTS + 1];
    RP_TRY(begin_launch(call, in, &launch));
    memcpy(words, launch.words, launch.n_words * sizeof *words);
    words[launch.n_words++] = (uint64_t)n;
    memset(bytes, 8, launch.n_words);
    for (uint32_t k = 0; k < call->n_attrs; k++, launch.n_words++)
        bytes[launch.n_words] = attr_word(&call->attrs[k], &words[launch.n_words]);
    launch.words = words;
    launch.grid[0] = (uint32_t)((n - 1) / each + 1);
    launch.block[0] = BLOCK;
    launch.grid[1] = launch.grid[2] = launch.block[1] = launch.block[2] = 1;
    RP_TRY(
        d->ops->user_kernel(d, call->op->name, u->cuda_source, u->cuda_entry, bytes, launch.n_words, &launch.kernel));
    return rp__launch_on(rp__current_stream(d), &launch);
}

static rp_status run_on(const rp__call *call, rp__device *d) {
    rp_tensor *in[RP__MAX_IN];
    for (uint32_t k = 0; k < call->n_in; k++) {
        in[k] = NULL;
        if (!call->in[k]) continue;
        if (!rp__device_equal(call->in[k]->device,
                              d->id)) /* numbers of the CPU do not go along: they are read by address */
            return rp__op_error(call, RP_ERROR_DEVICE, "Expected all tensors to be on the same device");
        in[k] = rp__run_contiguous(call->in[k], (rp_dtype)call->in[k]->dtype);
        if (rp__tensor_is_error(in[k])) return rp_error_status();
    }
    return d->ops->user_kernel ? launch_cuda(call, d, in) : launch_cpu(call, d, in);
}

rp_status rp__user_run(rp__call *call) {
    rp__meta meta[RP__MAX_OUTS];
    RP_TRY(rp__op_infer(call, meta));
    rp__device *d = rp__device_get(meta[0].device);
    if (!d) return rp_error_status();
    for (uint32_t k = 0; k < call->n_out; k++) {
        call->out[k] = rp__tensor_empty(d, meta[k].dtype, meta[k].size, meta[k].ndim);
        if (rp__tensor_is_error(call->out[k])) return rp_error_status();
    }
    rp__scope_guard guard = rp__scope_guard_begin();
    rp_status status = run_on(call, d);
    rp__scope_guard_end(guard, NULL, 0);
    return status;
}

/* ---- registration */

/* What a kernel with a fixed list of parameters cannot take. */
static rp_status check_cuda(const rp__schema *s, const rp_op_descriptor *d) {
    if (!d->cuda_entry)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_register: %s: cuda_source without cuda_entry", s->name);
    if (d->cuda_elements_per_block < 0)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_register: %s: cuda_elements_per_block is %d", s->name,
                        d->cuda_elements_per_block);
    for (unsigned i = 0; i < s->n_params; i++) {
        const rp__param *p = &s->params[i];
        bool fixed = p->kind != RP__PARAM_ATTR
                         ? p->kind != RP__PARAM_TENSORS
                         : p->attr_kind != RP_ATTR_INTS && p->attr_kind != RP_ATTR_STRING &&
                               p->attr_kind != RP_ATTR_GENERATOR && p->attr_kind != RP_ATTR_FLOATS &&
                               !(p->attr_kind == RP_ATTR_SCALAR && p->optional);
        if (!fixed)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "rp_op_register: %s: a CUDA kernel takes tensors and numbers: no list, text or generator",
                            s->name);
    }
    return RP_OK;
}

static rp_status check_schema(const rp__schema *s, const rp_op_descriptor *d) {
    bool lists = false;
    for (unsigned i = 0; i < s->n_params; i++) {
        const rp__param *p = &s->params[i];
        lists = lists || p->kind == RP__PARAM_TENSORS;
        if (p->written || p->aliased)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "rp_op_register: %s: a user op may not write or return its arguments", s->name);
    }
    if (s->n_outs == 0)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_register: %s: a user op has at least one result", s->name);
    if (!d->cpu && !d->cuda_source)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_register: %s has neither a CPU function nor CUDA source",
                        s->name);
    if (d->cuda_source) RP_TRY(check_cuda(s, d));
    if (!d->infer && (s->n_tensor_params == 0 || s->params[0].kind != RP__PARAM_TENSOR))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "rp_op_register: %s: without a shape function the first parameter must be a Tensor", s->name);
    if (d->backward && lists)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "rp_op_register: %s: an op with a Tensor[] parameter has no derivative", s->name);
    return RP_OK;
}

/* Strings of the descriptor are copied: it may live on the caller's stack. */
static bool copy_strings(user_op *u) {
    rp_op_descriptor *d = &u->descriptor;
    const char **texts[] = {&d->schema, &d->doc, &d->cuda_source, &d->cuda_entry};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (*texts[i] && !(*texts[i] = rp__strdup(*texts[i]))) {
            for (size_t k = i; k < sizeof texts / sizeof *texts; k++) *texts[k] = NULL;
            return false;
        }
    }
    return true;
}

static void discard(user_op *u) {
    const char *texts[] = {u->descriptor.schema, u->descriptor.doc, u->descriptor.cuda_source,
                           u->descriptor.cuda_entry};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) rp__free((void *)(uintptr_t)texts[i]);
    rp__free(u);
}

rp_status rp_op_register_at(const char *site, const rp_op_descriptor *given) {
    RP__CALLED_FROM(site);
    rp_op_descriptor read;
    const rp_op_descriptor *descriptor = &read;
    if (!given) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_op_register: the descriptor is NULL");
    RP_TRY(rp__options_read("rp_op_register", given, sizeof read, &read));
    user_op *u = rp__calloc(1, sizeof *u);
    if (!u) return RP__OOM("a user op");
    rp_status status = rp__schema_parse(descriptor->schema, &u->op.schema);
    if (status == RP_OK) status = check_schema(&u->op.schema, descriptor);
    if (status != RP_OK) {
        rp__free(u);
        return status;
    }
    u->descriptor = *descriptor;
    if (!copy_strings(u)) {
        discard(u);
        return RP__OOM("a user op");
    }
    rp__op *op = &u->op;
    op->name = op->schema.name;
    op->schema_text = u->descriptor.schema;
    op->doc = u->descriptor.doc ? u->descriptor.doc : "";
    op->lowering = RP__USER;
    op->infer = infer;
    op->vjp = descriptor->backward ? vjp : NULL;
    op->functional = "";
    if (descriptor->backward)
        op->saves = ((1u << op->schema.n_tensor_params) - 1u) | ((1u << op->schema.n_outs) - 1u) << 16;
    op->user = &u->descriptor;
    status = rp__op_table_add(op);
    if (status != RP_OK) discard(u);
    return status;
}
