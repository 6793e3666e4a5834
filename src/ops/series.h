/* Chebyshev series in lowerings: functions of special.c and bessel.c. */
#ifndef RP_OPS_SERIES_H
#define RP_OPS_SERIES_H

#include <math.h>

#include "ops/formula.h"

/* The sum of c[k] T_k(u) by Clenshaw's recurrence; in float32 without terms that it does not hold. */
static inline rp__val rp__lw_series(rp__lower *lw, rp_dtype compute, rp__val u, const double *c, unsigned n) {
    while (compute != RP_F64 && fabs(c[n - 1]) < 1e-9) n--;
    const rp__val twice = ADD(u, u);
    rp__val above = NUM(0), value = NUM(c[n - 1]);
    for (unsigned k = n - 1; k-- > 1;) {
        const rp__val next = ADD(SUB(MUL(twice, value), above), NUM(c[k]));
        above = value;
        value = next;
    }
    return ADD(SUB(MUL(u, value), above), NUM(c[0]));
}
#define SERIES(u, c) rp__lw_series(lw, compute, u, c, sizeof(c) / sizeof *(c))

#endif
