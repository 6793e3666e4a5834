/* Convolutions on CUDA: forward, input gradient and weight gradient by one text (conv.cuh). */
#include <string.h>

#include "kernel/cuda/library.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

static void macros(uint64_t facts, rp__text *out) {
    rp__text_kernel_dtype((rp_dtype)(facts & 0xff), out);
    rp__text_add(out, "#define RP_KIND %u\n#define RP_SPATIAL %u\n#define RP_BIAS %u\n#define RP_REST %u\n",
                 (unsigned)(facts >> 8 & 3), (unsigned)(facts >> 10 & 3), (unsigned)(facts >> 12 & 1),
                 (unsigned)(facts >> 32));
}

/* Words, slots, grid and facts of the kernel; out->grid[0] is 0: there is nothing to compute. A result without memory has no
 * slot. */
static rp_status set_tiles(rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                           rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts) {
    /* which operand is y, x, w; the first operand is always the one written */
    static const unsigned order[3][3] = {{0, 1, 2}, {1, 0, 2}, {1, 2, 0}};
    unsigned kind = op == RP__LIB_CONV_FORWARD ? 0 : op == RP__LIB_CONV_INPUT ? 1 : 2, s = call->conv.spatial;
    rp__operand sorted[4];
    uint32_t access[4] = {RP__READ, RP__READ, RP__READ, RP__READ};
    bool bias = kind == 0 && n > 3 && o[3].base;
    for (unsigned k = 0; k < 3; k++) {
        sorted[k] = o[order[kind][k]];
        if (order[kind][k] == 0) access[k] = RP__WRITE;
    }
    if (bias) sorted[3] = o[3];
    const rp__operand *y = &sorted[0], *x = &sorted[1], *w = &sorted[2];
    int64_t g = call->conv.groups, batch = x->size[0], c = x->size[1], oc = w->size[0], in = 1, points = 1, taps = 1;
    for (unsigned k = 0; k < s; k++) {
        in *= x->size[2 + k];
        points *= y->size[2 + k];
        taps *= w->size[2 + k];
    }
    int64_t rows = kind == 1 ? c / g : oc / g, columns = kind == 0   ? batch * points
                                                         : kind == 1 ? batch * in
                                                                     : c / g * taps;
    if (rows == 0 || columns == 0 || g == 0) return RP_OK;
    uint64_t *words = buffer->words;
    for (unsigned k = 0; k < (bias ? 4u : 3u); k++) {
        words[k] = 0;
        if (sorted[k].base) rp__cuda_operand_slot(&sorted[k], k, access[k], buffer, out);
    }
    if (!bias) words[3] = 0;
    words[4] = (uint64_t)batch;
    words[5] = (uint64_t)c;
    words[6] = (uint64_t)oc;
    words[7] = (uint64_t)g;
    uint32_t at = 8;
    for (unsigned k = 0; k < s; k++) {
        const int64_t sizes[6] = {x->size[2 + k],       y->size[2 + k],        w->size[2 + k],
                                  call->conv.stride[k], call->conv.padding[k], call->conv.dilation[k]};
        for (unsigned f = 0; f < 6; f++) words[at++] = (uint64_t)sizes[f];
    }
    for (unsigned t = 0; t < 3; t++)
        for (unsigned k = 0; k < 2 + s; k++) words[at++] = (uint64_t)sorted[t].stride[k];
    words[at++] = bias ? (uint64_t)sorted[3].stride[0] : 0;
    out->n_words = at;
    *facts = (uint64_t)y->dtype | (uint64_t)kind << 8 | (uint64_t)s << 10 | (uint64_t)bias << 12;
    int64_t gx = (columns + 31) / 32, gy = (rows + 31) / 32;
    if (gx > INT32_MAX || gy > 65535 || g > 65535)
        return rp__fail(RP_ERROR_SHAPE, "%s: this convolution is more than one CUDA launch takes", call->op);
    out->grid[0] = (uint32_t)gx;
    out->grid[1] = (uint32_t)gy;
    out->grid[2] = (uint32_t)g;
    out->block[0] = 256;
    out->block[1] = out->block[2] = 1;
    return RP_OK;
}

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    rp__text_kernel_key key = {.family = "conv"};
    (void)workspace;
    RP_TRY(set_tiles(p->op, p->o, p->n, p->call, buffer, out, &key.facts));
    if (out->grid[0] == 0) return RP_OK;
    return rp__text_kernel(p->device, &key, macros, rp__embed_conv_cuh, rp__embed_conv_cuh_len, &out->kernel);
}

static uint32_t words(const rp__problem *p) {
    const unsigned spatial = p->call->conv.spatial;
    return 8 + 6 * spatial + 3 * (2 + spatial) + 1;
}

static rp_status tiles(const rp__problem *p, bool *wide, rp__launch_buffer *buffer, rp__launch *out, uint64_t *facts) {
    *wide = true;
    return set_tiles(p->op, p->o, 3, p->call, buffer, out, facts);
}

static void source(const char *name, uint64_t facts, const char *follow, rp__text *out) {
    rp__text_kernel_source(name, facts, macros, rp__embed_conv_cuh, rp__embed_conv_cuh_len, follow, out);
}

const rp__cuda_product_row rp__cuda_conv_row = {
    .row = {.name = "simt", .ops = RP__CUDA_CONVOLUTIONS, .follows = true, .order = rp__problem_order, .bind = bind},
    .words = words,
    .tiles = tiles,
    .source = source};
