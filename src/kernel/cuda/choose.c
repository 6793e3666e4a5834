/* The decision of a branch or loop inside a CUDA graph: binds choose.cuh. Called by library.c of this folder alone. */
#include <string.h>

#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

static void no_macros(uint64_t facts, rp__text *out) { (void)facts, (void)out; }

rp_status rp__cuda_choose_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                               const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)op;
    static const uint32_t access[2] = {RP__READ, RP__READ | RP__WRITE};
    if (n < 1 || n > 2 || o[0].dtype != RP_BOOL || (n > 1) != (call->limit > 0))
        return rp__fail(RP_ERROR_INTERNAL, "%s: operands of a choice do not fit", call->op);
    rp__operand_slots(o, n, access, buffer, out);
    uint64_t *w = buffer->words; /* handle predicate counter limit first */
    w[2] = n > 1 ? w[1] : 0;
    w[1] = w[0];
    w[0] = 0;
    w[3] = (uint64_t)call->limit;
    w[4] = call->first;
    for (size_t k = 0; k < n; k++) buffer->slots[k].word = (uint32_t)k + 1;
    out->n_words = 5;
    out->grid[0] = out->grid[1] = out->grid[2] = out->block[0] = out->block[1] = out->block[2] = 1;
    rp__text_kernel_key key;
    memset(&key, 0, sizeof key);
    key.family = "choose";
    return rp__text_kernel(d, &key, no_macros, rp__embed_choose_cuh, rp__embed_choose_cuh_len, &out->kernel);
}
