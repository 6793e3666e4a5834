/* Chebyshev polynomials: lowerings of polynomials.def. Within [-1, 1] of an angle, beyond of its hyperbolic one, both of |x|: by x -> -x the
   first two change their sign with odd orders, and the third and fourth also change into each other. In float64, as an order multiplies
   the error of an angle. */
#include <math.h>

#include "ops/formula.h"
#include "ops/rules.h"

typedef enum kind { FIRST, SECOND, THIRD, FOURTH } kind;

static rp__val polynomial(rp__lower *lw, rp__val x, rp__val n, kind of) {
    const rp_dtype compute = RP_F64;
    const rp__val size = ABS(x), one = NUM(1), inside = LE(size, one), half = MUL(n, NUM(0.5));
    const rp__val t = PRIM(ACOS, MIN(size, one)), a = PRIM(ACOSH, MAX(size, one));
    const rp__val odd = NE(half, PRIM(FLOOR, half)), negative = LT(x, NUM(0));
    rp__val y;
    if (of == FIRST) {
        y = WHERE(inside, PRIM(COS, MUL(n, t)), PRIM(COSH, MUL(n, a)));
    } else if (of == SECOND) {
        const rp__val m = ADD(n, one);
        y = WHERE(inside, DIV(PRIM(SIN, MUL(m, t)), PRIM(SIN, t)), DIV(PRIM(SINH, MUL(m, a)), PRIM(SINH, a)));
        y = WHERE(EQ(size, one), m, y);
    } else {
        const rp__val m = ADD(n, NUM(0.5)), h = NUM(0.5), th = MUL(t, h), ah = MUL(a, h), mt = MUL(m, t),
                      ma = MUL(m, a);
        const rp__val even = WHERE(inside, DIV(PRIM(COS, mt), PRIM(COS, th)), DIV(PRIM(COSH, ma), PRIM(COSH, ah)));
        rp__val other = WHERE(inside, DIV(PRIM(SIN, mt), PRIM(SIN, th)), DIV(PRIM(SINH, ma), PRIM(SINH, ah)));
        other = WHERE(EQ(size, one), ADD(m, m), other);
        y = of == THIRD ? WHERE(negative, other, even) : WHERE(negative, even, other);
    }
    /* as recurrences have it, whose terms of different signs meet from order 3 on */
    y = WHERE(EQ(size, NUM(INFINITY)), WHERE(LE(n, NUM(2)), NUM(INFINITY), NUM(NAN)), y);
    y = WHERE(PRIM(ISNAN, x), x, WHERE(AND(negative, odd), NEG(y), y));
    y = WHERE(EQ(n, NUM(0)), one, y);
    return WHERE(LE(NUM(0), n), y, NUM(0));
}
static void chebyshev(rp__lower *lw, kind of, bool shifted) {
    const rp_dtype compute = RP_F64, type = rp__lw_float(rp__lw_promoted(lw, 2, -1));
    rp__val x = rp__lw_cast(lw, rp__lw_in_as(lw, 0, type), RP_F64),
            n = rp__lw_cast(lw, rp__lw_in_as(lw, 1, type), RP_F64);
    if (shifted) x = SUB(ADD(x, x), NUM(1));
    rp__lw_out(lw, 0, rp__lw_cast(lw, polynomial(lw, x, PRIM(TRUNC, n), of), type));
}
void rp__lower_special_chebyshev_polynomial_t(rp__lower *lw) { chebyshev(lw, FIRST, false); }
void rp__lower_special_chebyshev_polynomial_u(rp__lower *lw) { chebyshev(lw, SECOND, false); }
void rp__lower_special_chebyshev_polynomial_v(rp__lower *lw) { chebyshev(lw, THIRD, false); }
void rp__lower_special_chebyshev_polynomial_w(rp__lower *lw) { chebyshev(lw, FOURTH, false); }
void rp__lower_special_shifted_chebyshev_polynomial_t(rp__lower *lw) { chebyshev(lw, FIRST, true); }
void rp__lower_special_shifted_chebyshev_polynomial_u(rp__lower *lw) { chebyshev(lw, SECOND, true); }
void rp__lower_special_shifted_chebyshev_polynomial_v(rp__lower *lw) { chebyshev(lw, THIRD, true); }
void rp__lower_special_shifted_chebyshev_polynomial_w(rp__lower *lw) { chebyshev(lw, FOURTH, true); }
