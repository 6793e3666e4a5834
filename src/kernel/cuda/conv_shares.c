/* Weight gradients whose sums are long beside the result, images times places: shares of the inner index, as many as fill the device, leave
 * their sums in memory (RP_PARTS of conv.cuh, conv_mma.cuh and conv_bulk_weight.cuh), and a second launch adds them up (conv_sum.cuh). Nothing
 * follows such a sum in its kernel. How many shares there are is a function of sizes, dtype and kind of device. */
#include <string.h>

#include "kernel/cuda/conv_parts.h"
#include "kernel/cuda/text_kernel.h"
#include "reprise_embed.h"

int64_t rp__conv_most_shares(const rp__conv_extent *e) {
    enum { LEAST = 256, MOST = 256 }; /* of the inner index in a share; shares */
    return e->k / LEAST < MOST ? e->k / LEAST : MOST;
}

/* Bits of the facts of conv_sum.cuh, over the dtype. */
enum { CHANNELS = 8, GROUPED, FOUR, NARROW };
enum { SUM_THREADS = 256, SUM_GROUPS = 8 };

static int64_t parts_of(const rp__problem *p, rp__conv_extent *e) {
    const rp__operand *sorted[3];
    if (p->op != RP__LIB_CONV_WEIGHT || !rp__dtype_is_float(p->o[0].dtype) || rp__conv_is_depthwise(p)) return 0;
    *e = rp__conv_sort(p, sorted);
    if (e->m == 0 || e->n == 0 || e->k == 0 || e->groups == 0) return 0;
    const bool rounded = p->o[0].dtype == RP_F32 && rp__conv_on_tensor_cores(p);
    if (rounded && rp__conv_bulk_turns(e, p->device)) {
        const int64_t parts = rp__conv_bulk_cut(e, p->device).parts;
        return parts > 1 ? parts : 0;
    }
    const int64_t blocks = (e->m + 63) / 64 * ((e->n + 127) / 128) * e->groups;
    /* few rows are tiles of few threads */
    const int64_t each = rp__conv_on_tensor_cores(p) || e->m > 32 ? 2 : e->m > 16 ? 4 : 8;
    int64_t parts = each * (int64_t)p->device->multiprocessors / blocks;
    const int64_t most = rp__conv_most_shares(e);
    if (parts > most) parts = most;
    if (parts > 1 && rounded) {
        const int64_t turned = rp__conv_turned_parts(e, p->device, most);
        if (turned > 1) parts = turned;
    }
    return parts > 1 && e->m * e->groups <= INT32_MAX / 4 / parts / e->n ? parts : 0;
}

size_t rp__conv_parts_bytes(const rp__conv_extent *e, rp_dtype dtype, int64_t parts) {
    return (size_t)(e->m * e->groups * e->n * parts) * (dtype == RP_F64 ? 8 : 4);
}

static bool serves(const rp__problem *p, size_t *workspace) {
    rp__conv_extent e;
    const int64_t parts = parts_of(p, &e);
    if (parts == 0) return false;
    *workspace = rp__conv_parts_bytes(&e, p->o[0].dtype, parts);
    return true;
}

static double cost(const rp__problem *p) { return rp__problem_work(p) / 64; }

static rp_status bind(const rp__problem *p, size_t workspace, rp__launch_buffer *buffer, rp__launch *out) {
    rp__conv_extent e;
    (void)workspace;
    return rp__conv_bind(p, parts_of(p, &e), buffer, out);
}

static void macros(uint64_t facts, rp__text *out) {
    rp__text_kernel_dtype((rp_dtype)(facts & 0xff), out);
    rp__text_add(out, "#define RP_CHANNELS %d\n#define RP_GROUPS %d\n", (int)(facts >> CHANNELS & 1),
                 facts >> GROUPED & 1 ? SUM_GROUPS : 1);
    rp__text_add(out, "#define RP_FOUR %u\n#define RP_INDEX %s\n",
                 facts >> FOUR & 1 ? (unsigned)rp__dtype_bytes((rp_dtype)(facts & 0xff)) : 0,
                 facts >> NARROW & 1 ? "rp_i32" : "rp_i64");
}

enum { FOUR_ELEMENTS = 4 };
/* Four channels, neighbours in a part, are stored at once. */
static bool takes_four(const rp__operand *dw, const rp__library_call *call) {
    const uintptr_t bytes = FOUR_ELEMENTS * (uintptr_t)rp__dtype_bytes(dw->dtype);
    if (dw->dtype == RP_F64 || dw->size[1] % FOUR_ELEMENTS || dw->stride[1] != 1 || (uintptr_t)dw->base % bytes ||
        (uintptr_t)call->workspace % 16)
        return false;
    for (unsigned d = 0; d < dw->ndim; d++)
        if (d != 1 && dw->size[d] > 1 && dw->stride[d] % FOUR_ELEMENTS) return false;
    return true;
}

rp_status rp__cuda_conv_add_shares(const rp__problem *p, rp__launch_buffer *buffer, rp__launch *out) {
    const rp__operand *dw = &p->o[0];
    const rp__library_call *call = p->call;
    rp__text_kernel_key key = {.family = "conv_sum", .facts = (uint64_t)dw->dtype};
    const rp__operand *sorted[3];
    rp__conv_extent e = rp__conv_sort(p, sorted);
    const bool depthwise = rp__conv_is_depthwise(p), grouped = !depthwise && rp__conv_is_grouped(p);
    const int64_t parts = depthwise ? rp__conv_depth_parts(p)
                          : grouped ? rp__conv_group_parts(p)
                                    : parts_of(p, &e),
                  begin = (char *)call->workspace - (char *)call->workspace_storage->data;
    uint64_t *words = buffer->words;
    const int64_t elements = e.m * e.groups * e.n;
    /* few threads would wait for one share after the other */
    const bool in_groups = parts >= 2 * SUM_GROUPS && elements <= SUM_THREADS * 2 * (int64_t)p->device->multiprocessors;
    const bool channels = !grouped && rp__conv_on_tensor_cores(p),
               four = channels && !in_groups && takes_four(dw, call);
    const int64_t each = SUM_THREADS / (in_groups ? SUM_GROUPS : 1) * (four ? FOUR_ELEMENTS : 1);
    key.facts |= (uint64_t)channels << CHANNELS | (uint64_t)in_groups << GROUPED | (uint64_t)four << FOUR |
                 (uint64_t)((double)elements * (double)parts < INT32_MAX / 2) << NARROW;
    memset(out, 0, sizeof *out);
    out->op = call->op;
    out->site = call->site;
    rp__operand_slot(dw, 1, RP__WRITE, buffer, out);
    buffer->slots[out->n_slots++] = (rp__slot){.word = 0,
                                               .access = RP__READ,
                                               .storage = call->workspace_storage,
                                               .buffer = -1,
                                               .begin = begin,
                                               .end = begin + (int64_t)rp__conv_parts_bytes(&e, dw->dtype, parts)};
    words[0] = (uint64_t)(uintptr_t)call->workspace;
    words[2] = (uint64_t)parts;
    words[3] = (uint64_t)dw->size[0];
    words[4] = (uint64_t)dw->size[1];
    words[8] = (uint64_t)dw->stride[0];
    words[9] = (uint64_t)dw->stride[1];
    for (unsigned k = 0; k < 3; k++) { /* the window's dims are the last ones of three */
        const bool there = k + e.spatial >= 3;
        const unsigned d = k + e.spatial - 1;
        words[5 + k] = there ? (uint64_t)dw->size[d] : 1;
        words[10 + k] = there ? (uint64_t)dw->stride[d] : 0;
    }
    out->n_words = 13;
    out->grid[0] = (uint32_t)((elements + each - 1) / each);
    out->grid[1] = out->grid[2] = 1;
    out->block[0] = SUM_THREADS;
    out->block[1] = out->block[2] = 1;
    return rp__text_kernel(p->device, &key, macros, rp__embed_conv_sum_cuh, rp__embed_conv_sum_cuh_len, &out->kernel);
}

const rp__cuda_product_row rp__cuda_conv_shares_row = {
    .row = {.name = "shares", .ops = 1u << RP__LIB_CONV_WEIGHT, .serves = serves, .cost = cost, .bind = bind}};
