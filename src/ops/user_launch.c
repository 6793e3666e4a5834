/* Launches of the program's own kernels: a parameter list becomes a launch record with a slot for each tensor, which takes the
   way of every launch. Called by programs only; ops of the user's are src/ops/user.c. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "device/launch.h"
#include "tensor/tensor.h"

enum { MAX_PARAMS = 64 }; /* of a user's kernel on CUDA: src/device/cuda/cuda.c */

typedef struct user_kernel {
    rp__kernel base;
    rp_cpu_kernel *body; /* NULL: base.function */
} user_kernel;

/* Words are the parameters as they are. */
static void run(const rp__kernel *kernel, const uint64_t *words, int64_t begin, int64_t end) {
    ((const user_kernel *)kernel->payload)->body((const rp_word *)(const void *)words, begin, end);
}

static void destroy(rp__kernel *kernel) { rp__free(kernel->payload); }

static rp__kernel *kernel_new(const char *name, rp_cpu_kernel *body, void *function) {
    user_kernel *k = rp__calloc(1, sizeof *k);
    if (!k) {
        (void)RP__OOM("the kernel of a launch");
        return NULL;
    }
    atomic_init(&k->base.refs, 1);
    atomic_init(&k->base.cpu, body ? run : NULL);
    k->base.kind = body ? RP__KERNEL_CPU : RP__KERNEL_CUDA_USER;
    k->base.name = name;
    k->base.key = rp__hash_bytes(name, strlen(name), rp__hash_none());
    k->base.function = function;
    k->base.payload = k;
    k->base.destroy = destroy;
    k->body = body;
    return &k->base;
}

static rp_status check(const rp_param *p, size_t k, rp_device device) {
    char what[40], text[24], other[24];
    snprintf(what, sizeof what, "parameter %zu", k);
    if ((unsigned)p->access > RP_ACCESS_READ_WRITE)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: %d is not an access", what, (int)p->access);
    if (p->access == RP_ACCESS_NONE) return RP_OK;
    RP_TRY(rp__tensor_check(p->tensor, what));
    if (!rp__device_equal(p->tensor->device, device))
        return rp__fail(RP_ERROR_DEVICE, "%s is on %s, the kernel on %s", what,
                        rp__device_text(p->tensor->device, text), rp__device_text(device, other));
    if ((p->access & RP_ACCESS_WRITE) && rp_grad_enabled() && rp_requires_grad(p->tensor))
        return rp__fail(
            RP_ERROR_STATE,
            "%s requires a gradient and is written by a kernel, which has no derivative: turn grad mode off, "
            "or use rp_function_apply",
            what);
    return RP_OK;
}

static rp_status launch(rp__device *d, rp__launch *l, const rp_param *params, size_t n) {
    uint64_t words[MAX_PARAMS] = {0};
    rp__slot slots[MAX_PARAMS];
    uint32_t n_slots = 0;
    for (size_t k = 0; k < n; k++) {
        const rp_param *p = &params[k];
        if (p->access == RP_ACCESS_NONE) {
            words[k] = p->value.u64;
            continue;
        }
        RP_TRY(rp__tensor_materialise(p->tensor)); /* in a trace the launch happens now */
        words[k] = (uint64_t)(uintptr_t)rp__tensor_data(p->tensor);
        rp__slot *s = &slots[n_slots++];
        *s =
            (rp__slot){.word = (uint32_t)k, .access = (uint32_t)p->access, .storage = p->tensor->storage, .buffer = -1};
        rp__tensor_byte_range(p->tensor, &s->begin, &s->end);
    }
    l->barrier = n_slots == 0;
    if (l->barrier && rp__flags.tracing && rp__materialise_hook) RP_TRY(rp__materialise_hook(NULL));
    l->words = words;
    l->n_words = (uint32_t)n;
    l->slots = slots;
    l->n_slots = n_slots;
    RP_TRY(rp__launch_on(rp__current_stream(d), l));
    for (uint32_t k = 0; k < n_slots; k++) {
        if (slots[k].access & RP__WRITE) rp__storage_written(slots[k].storage, l->op, l->site);
    }
    return RP_OK;
}

/* Everything but what is special to a device is in l. */
static rp_status launch_checked(const char *name, rp_device device, rp_cpu_kernel *body, void *function, rp__launch *l,
                                const rp_param *params, size_t n) {
    rp__device *d = rp__device_get(device);
    if (!d) return rp_error_status();
    if (!body && !function) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the kernel is NULL");
    if (n > MAX_PARAMS)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "a kernel takes at most %d parameters, not %zu", MAX_PARAMS, n);
    if (n && !params) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "the parameters are NULL");
    for (size_t k = 0; k < n; k++) RP_TRY(check(&params[k], k, device));
    l->kernel = kernel_new(name, body, function);
    if (!l->kernel) return rp_error_status();
    l->op = name;
    l->site = rp__site();
    rp_status status = launch(d, l, params, n);
    rp__kernel_release(l->kernel);
    return status;
}

rp_status rp_launch_at(const char *site, const char *name, rp_cpu_kernel *kernel, int64_t items, int64_t grain,
                       const rp_param *params, size_t n_params) {
    if (!name) name = "launch";
    rp__site_frame outer = rp__site_push(site, name);
    rp__launch l = {.items = items, .grain = grain};
    rp_status status = items < 0 || grain < 1 ? rp__fail(RP_ERROR_INVALID_ARGUMENT,
                                                         "a launch has no negative number of items, and slices of at "
                                                         "least one")
                                              : RP_OK;
    if (status == RP_OK) status = launch_checked(name, rp_cpu(), kernel, NULL, &l, params, n_params);
    rp__site_pop(outer);
    return status;
}

rp_status rp_cuda_launch_at(const char *site, const char *name, rp_device device, void *function,
                            const rp_cuda_grid *given, const rp_param *params, size_t n_params) {
    if (!name) name = "cuda_launch";
    rp__site_frame outer = rp__site_push(site, name);
    rp__launch l = {.items = 1, .grain = 1};
    rp_cuda_grid read, *grid = &read;
    rp_status status = given ? rp__options_read(name, given, sizeof read, &read)
                             : rp__fail(RP_ERROR_INVALID_ARGUMENT, "the grid is NULL");
    if (status == RP_OK && device.type != RP_DEVICE_CUDA)
        status = rp__fail(RP_ERROR_DEVICE, "a CUDA kernel runs on a CUDA device");
    for (unsigned k = 0; k < 3 && status == RP_OK; k++) {
        l.grid[k] = grid->grid[k] ? grid->grid[k] : 1;
        l.block[k] = grid->block[k] ? grid->block[k] : 1;
    }
    if (status == RP_OK) {
        l.shared_bytes = grid->shared_bytes;
        status = launch_checked(name, device, NULL, function, &l, params, n_params);
    }
    rp__site_pop(outer);
    return status;
}
