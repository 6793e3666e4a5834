/* Host side of steps.cuh: macros, words and grid. Called by library.c of this folder alone. */
#include <string.h>

#include "device/cuda/cuda.h"
#include "kernel/cuda/lib_select.h"
#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

static void macros(uint64_t facts, rp__text *out) {
    rp__text_add(out, "#define RP_T %s\n#define RP_FUNCTION %u\n", (facts & 0xff) == RP_F64 ? "double" : "float",
                 (unsigned)(facts >> 8));
    rp__text_write(out, rp__embed_steps_h, rp__embed_steps_h_len);
}

rp_status rp__cuda_steps_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                              const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    static const uint32_t access[3] = {RP__WRITE, RP__READ, RP__READ};
    (void)op, (void)n;
    if (o[0].size[0] == 0) return RP_OK;
    rp__operand_slots(o, 3, access, buffer, out);
    uint64_t *w = buffer->words;
    w[3] = (uint64_t)o[0].size[0];
    w[4] = (uint64_t)(uintptr_t)call->draw.state, w[5] = call->draw.seed, w[6] = call->draw.inner;
    memcpy(&w[7], &call->least, sizeof w[7]);
    out->n_words = 8;
    if (call->steps >= RP_STEPS_GAMMA) {
        out->draw = 4;
        out->n_draws = 1;
    }
    rp__text_kernel_key key = {.family = "steps", .facts = (uint64_t)o[0].dtype | (uint64_t)call->steps << 8};
    RP_TRY(rp__text_kernel(d, &key, macros, rp__embed_steps_cuh, rp__embed_steps_cuh_len, &out->kernel));
    return rp__cuda_line_grid(out, call, (o[0].size[0] + 255) / 256, 256);
}
