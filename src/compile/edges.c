/* See edges.h. */
#include "compile/edges.h"

#include <string.h>

#include "core/alloc.h"

void rp__edges_free(rp__edges *e) {
    rp__free(e->of);
    rp__free(e->from);
    *e = (rp__edges){0};
}

rp_status rp__edges_add(rp__edges *e, const uint32_t *from, uint32_t n) {
    if (!RP__GROW(&e->of, &e->of_capacity, e->n_nodes + 1u) || !RP__GROW(&e->from, &e->from_capacity, e->n_from + n))
        return RP__OOM("edges of a program");
    e->of[e->n_nodes++] = (struct rp__edges_of){e->n_from, n};
    if (n) memcpy(&e->from[e->n_from], from, n * sizeof *from);
    e->n_from += n;
    return RP_OK;
}

/* Which nodes are behind which is asked for a block of them at a time: a bit each of what every later node is behind, itself not
   included, so that a graph of n nodes takes n * edges / 64 steps at the most and memory for a block. A block from whose nodes
   no edge could be implied takes none: that of a node's only edge never is, nor that from the latest node it is behind. */
enum { WORDS = 8, BLOCK = 64 * WORDS };
typedef struct behind {
    uint64_t bit[WORDS];
} behind;

static uint32_t latest(const rp__edges *e, uint32_t node) {
    uint32_t most = 0;
    for (uint32_t k = 0; k < e->of[node].n; k++) {
        const uint32_t from = e->from[e->of[node].first + k];
        most = from > most ? from : most;
    }
    return most;
}

/* The edges of a node from nodes of the block that begins at `begin`; b: of nodes from there on. */
static void reduce_node(rp__edges *e, behind *b, uint32_t begin, uint32_t node) {
    struct rp__edges_of *of = &e->of[node];
    uint32_t *from = &e->from[of->first], kept = 0;
    behind *mine = &b[node - begin];
    memset(mine, 0, sizeof *mine);
    for (uint32_t k = 0; k < of->n; k++) {
        if (from[k] < begin) continue;
        const behind *other = &b[from[k] - begin];
        for (unsigned w = 0; w < WORDS; w++) mine->bit[w] |= other->bit[w];
    }
    for (uint32_t k = 0; k < of->n; k++) {
        const uint32_t at = from[k] - begin;
        if (from[k] >= begin && at < BLOCK) {
            if (mine->bit[at / 64] >> (at % 64) & 1u) continue;
        }
        from[kept++] = from[k];
    }
    of->n = kept;
    for (uint32_t k = 0; k < kept; k++) {
        const uint32_t at = from[k] - begin;
        if (from[k] >= begin && at < BLOCK) mine->bit[at / 64] |= UINT64_C(1) << (at % 64);
    }
}

/* The last blocks first: what is implied from a later block need not be looked at again. */
rp_status rp__edges_reduce(rp__edges *e) {
    const uint32_t blocks = e->n_nodes / BLOCK + 1u;
    uint32_t *last =
        rp__calloc(blocks, sizeof *last); /* per block: the last node with an edge from it that may be implied */
    behind *b = NULL;
    size_t capacity = 0;
    rp_status status = last ? RP_OK : RP__OOM("edges of a program");
    for (uint32_t node = 0; node < e->n_nodes && status == RP_OK; node++) {
        const uint32_t most = e->of[node].n > 1 ? latest(e, node) : 0;
        for (uint32_t k = 0; k < e->of[node].n && e->of[node].n > 1; k++) {
            const uint32_t from = e->from[e->of[node].first + k];
            if (from != most) last[from / BLOCK] = node;
        }
    }
    for (uint32_t block = blocks; block-- > 0 && status == RP_OK;) {
        const uint32_t begin = block * BLOCK;
        if (last[block] == 0) continue;
        if (!RP__GROW(&b, &capacity, last[block] + 1u - begin)) status = RP__OOM("edges of a program");
        for (uint32_t node = begin; node <= last[block] && status == RP_OK; node++) reduce_node(e, b, begin, node);
    }
    rp__free(b);
    rp__free(last);
    return status;
}
