/* Recipes: what the programs of one graph have in common at different sizes. Which nodes are one kernel, the order in which
   kernels run, and the kernels follow from a *domain* of sizes: which sizes are 0, 1 or equal, and on a GPU on which side of the
   thresholds of fusion they are. A program of other sizes in the domain takes them over, once every group has been found to be
   one kernel for its sizes too; addresses, words, grids, plan and device graph are its own.

   A unit has one set, which it uses while it builds; not locked. */
#ifndef RP_COMPILE_RECIPE_H
#define RP_COMPILE_RECIPE_H

#include "compile/program.h"

typedef struct rp__recipes rp__recipes;
typedef struct rp__recipe rp__recipe;

rp__recipes *rp__recipes_new(void); /* NULL and a sticky error: out of memory */
void rp__recipes_free(rp__recipes *r);
/* The recipe of a settled graph's domain; new ones are empty. Stays until rp__recipes_trim. */
rp_status rp__recipes_find(rp__recipes *r, const rp_ir *ir, rp__recipe **out);
/* Only so many stay, those used last. */
void rp__recipes_trim(rp__recipes *r);

/* The graph's nodes in the recipe's groups, and their order, which is the caller's (rp__fusion.n_groups + 1 entries, of the arena).
   *taken: false if the recipe is empty or a group does not hold for these sizes: then there is no fusion. */
rp_status rp__recipe_take(const rp__recipe *r, const rp_ir *ir, rp__device *d, rp__fusion *f, bool *taken);
void rp__recipe_order(const rp__recipe *r, uint32_t *order, uint32_t *n_order);
/* Writes a fusion and its order down, in place of what was there. */
rp_status rp__recipe_keep(rp__recipe *r, const rp__fusion *f, const uint32_t *order, uint32_t n_order);
/* Two a group (rp__group_lowering), as long as the recipe; NULL: there is no group. */
rp__group_kernel *rp__recipe_kernels(rp__recipe *r);

#endif
