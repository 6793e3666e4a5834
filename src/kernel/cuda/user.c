/* Kernels of users' CUDA sources: behind user_kernel of the device's table (device.h), called by ops/user.c. A source is compiled
 * once a process and device, after the prelude, whose functions it may call. */
#include <stdio.h>

#include "core/text.h"
#include "device/cuda/cuda.h"
#include "kernel/cuda/nvrtc.h"

rp_status rp__cuda_user_kernel(rp__device *d, const char *op, const char *source, const char *entry,
                               const uint8_t *bytes, uint32_t n, rp__kernel **out);

static rp__mutex lock = RP__MUTEX_INIT;
static rp__map known; /* (source's address, device) -> kernel, one reference each */

/* A kernel with other parameters would read what is not there. Drivers before 12.4 cannot say. */
static rp_status check_parameters(rp__device *d, const rp__kernel *k, const uint8_t *bytes, uint32_t n) {
    const rp__libcuda *cu = rp__cuda_of(d)->cu;
    size_t offset, size;
    if (!cu->cuFuncGetParamInfo) return RP_OK;
    for (uint32_t i = 0; i < n; i++) {
        CUresult result = cu->cuFuncGetParamInfo(k->function, i, &offset, &size);
        if (result == CUDA_ERROR_INVALID_VALUE)
            return rp__fail(RP_ERROR_COMPILE, "the CUDA kernel %s has %u parameters where the schema makes it %u",
                            k->name, (unsigned)i, (unsigned)n);
        RP_TRY(rp__cuda_status(d, result, "cuFuncGetParamInfo"));
        if (size != bytes[i])
            return rp__fail(RP_ERROR_COMPILE,
                            "parameter %u of the CUDA kernel %s has %zu bytes where the schema makes it %u: pointers, "
                            "long long numel, then int as long long, float and Scalar as double, bool, dtype as int",
                            (unsigned)i, k->name, size, bytes[i]);
    }
    if (cu->cuFuncGetParamInfo(k->function, n, &offset, &size) == CUDA_SUCCESS)
        return rp__fail(RP_ERROR_COMPILE, "the CUDA kernel %s has more parameters than the %u of the schema", k->name,
                        (unsigned)n);
    return RP_OK;
}

static rp_status make(rp__device *d, const char *op, const char *source, const char *entry, const uint8_t *bytes,
                      uint32_t n, rp__kernel **out) {
    rp__text text = {0};
    rp__text_add(&text, "\n#line 1 \"%s\"\n", op); /* the compiler's messages count the user's lines */
    rp__text_puts(&text, source);
    rp_status status = text.failed ? RP__OOM("source of a CUDA kernel")
                                   : rp__nvrtc_kernel(d, text.data, entry, RP__KERNEL_CUDA_USER, out);
    rp__text_free(&text);
    RP_TRY(status);
    status = check_parameters(d, *out, bytes, n);
    if (status != RP_OK) rp__kernel_release(*out);
    return status;
}

rp_status rp__cuda_user_kernel(rp__device *d, const char *op, const char *source, const char *entry,
                               const uint8_t *bytes, uint32_t n, rp__kernel **out) {
    uint64_t facts[2] = {(uint64_t)(uintptr_t)source, d->slot};
    rp__hash at = rp__hash_bytes(facts, sizeof facts, rp__hash_none());
    rp__lock(&lock);
    rp__kernel *k = rp__map_get(&known, at);
    rp__unlock(&lock);
    if (!k) {
        RP_TRY(make(d, op, source, entry, bytes, n, &k));
        rp__lock(&lock);
        rp__kernel *other = rp__map_get(&known, at); /* of a thread that was faster */
        bool kept = other || rp__map_put(&known, at, k);
        rp__unlock(&lock);
        if (other || !kept) rp__kernel_release(k);
        if (!kept) return RP__OOM("a CUDA kernel");
        if (other) k = other;
    }
    *out = k;
    return RP_OK;
}
