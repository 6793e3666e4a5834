/* Edges of a graph whose nodes are numbered so that each comes from earlier ones: kept side by side while nodes are added, and then
   those dropped that others imply (program_slots.c). */
#ifndef REPRISE_COMPILE_EDGES_H
#define REPRISE_COMPILE_EDGES_H

#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef struct rp__edges { /* all zero: no nodes */
    struct rp__edges_of {
        size_t first; /* its edges in `from` */
        uint32_t n;
    } * of; /* per node */
    uint32_t *from;
    uint32_t n_nodes;
    size_t n_from, of_capacity, from_capacity;
} rp__edges;
void rp__edges_free(rp__edges *e);

/* One more node, behind n different ones, in any order. */
rp_status rp__edges_add(rp__edges *e, const uint32_t *from, uint32_t n);
/* Drops the edges from nodes that another edge's node is behind already. The others keep their order. */
rp_status rp__edges_reduce(rp__edges *e);

#endif
