/* The decision of a branch or loop inside a device graph, on the CPU: the handle is the address of a 32-bit word that the graph's
   node reads (device/cpu/graph.c). */
#include "kernel/cpu/lib.h"

enum { HANDLE, PREDICATE = RP__CHOOSE_PREDICATE, COUNTER, LIMIT, FIRST, WORDS };

static void run(const rp__kernel *k, const uint64_t *w, int64_t begin, int64_t end) {
    (void)k;
    if (begin >= end) return;
    bool go = *(const uint8_t *)(uintptr_t)w[PREDICATE] != 0;
    if (w[COUNTER]) {
        int64_t *counter = (int64_t *)(uintptr_t)w[COUNTER];
        *counter = w[FIRST] ? 0 : *counter + 1;
        go = go && *counter < (int64_t)w[LIMIT];
    }
    *(uint32_t *)(uintptr_t)w[HANDLE] = go;
}

static rp__kernel kernel = {.kind = RP__KERNEL_CPU, .name = "choose", .key = {1, 0x63686f6f7365}, .cpu = run};

rp_status rp__cpu_choose_bind(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                              const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out) {
    (void)d, (void)op;
    if (n < 1 || o[0].dtype != RP_BOOL || (n > 1) != (call->limit > 0))
        return rp__fail(RP_ERROR_INTERNAL, "%s: operands of a choice do not fit", call->op);
    uint64_t *w = buffer->words;
    w[HANDLE] = w[COUNTER] = 0;
    rp__operand_slot(&o[0], PREDICATE, RP__READ, buffer, out);
    if (n > 1) rp__operand_slot(&o[1], COUNTER, RP__READ | RP__WRITE, buffer, out);
    w[LIMIT] = (uint64_t)call->limit;
    w[FIRST] = call->first;
    out->n_words = WORDS;
    out->items = out->grain = 1;
    out->kernel = &kernel;
    return RP_OK;
}
