/* What the files of a unit (unit.h) share; nobody else includes it. */
#ifndef RP_COMPILE_UNIT_PARTS_H
#define RP_COMPILE_UNIT_PARTS_H

#include "compile/explain.h"
#include "compile/program.h"

/* ---- unit_explain.c */
/* What a program is made of. to: NULL is allowed. */
void rp__unit_explain(rp__explain *to, const rp__executable *e);
/* What of it was not taken over from programs of other sizes. */
void rp__unit_explain_made(rp__explain *to, const rp__executable *e);
/* `kinds` (rp__executable_options.tell) of moves happened; their counts follow by themselves. */
void rp__unit_explain_moves(rp__explain *to, const rp__executable *e, uint32_t kinds);

/* ---- unit_leaf.c */
rp_status rp__unit_leaf_compile(const rp_backend *leaf, rp_ir *graph, void **compiled);
rp_status rp__unit_leaf_run(const rp_backend *leaf, const rp_ir *graph, void *compiled, rp_tensor *const *in,
                            size_t n_in, rp_tensor **out, size_t n_out);
void rp__unit_leaf_destroy(const rp_backend *leaf, void *compiled);

#endif
