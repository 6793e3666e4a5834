/* Graphs as StableHLO text (github.com/openxla/stablehlo): an emitter whose values are %0, %1, .. of one function, of known sizes. Some
   functions of the mathematical library are of the dialect CHLO, which compilers of StableHLO expand. */
#ifndef RP_DOORS_XLA_TEXT_H
#define RP_DOORS_XLA_TEXT_H

#include "doors/emit.h"

typedef struct rp__hlo {
    rp__emitter emitter; /* first */
    rp__text args, body;
    unsigned n_args, n_named; /* names within regions */
    bool tf32;                /* products of float32 may round their operands, as XLA does on a GPU if it is not told */
} rp__hlo;

extern const rp__put_ops rp__hlo_ops;
void rp__hlo_begin(rp__hlo *h, const rp_ir *ir);
void rp__hlo_end(rp__hlo *h);
/* The next argument. alias: its memory may become that of this result; negative: it may not. */
rp__put_val rp__hlo_arg(rp__hlo *h, const rp__put_type *type, int alias);
/* The whole module; freed by the caller. False: out of memory. */
bool rp__hlo_module(rp__hlo *h, const rp__put_val *results, unsigned n, rp__text *out);

#endif
