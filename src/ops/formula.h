/* Lowerings and derivatives as formulas. In a lowering `lw` is the lowering and `compute` the type in which it calculates; the
   names below are its primitives. RP__UNARY and its like define a whole rule from one expression: tools/gen/genops.c knows them. */
#ifndef RP_OPS_FORMULA_H
#define RP_OPS_FORMULA_H

#include "ops/lower.h"
#include "tensor/tensor.h"

#define ADD(a, b) rp__lw_2(lw, RP__ADD, a, b)
#define SUB(a, b) rp__lw_2(lw, RP__SUB, a, b)
#define MUL(a, b) rp__lw_2(lw, RP__MUL, a, b)
#define DIV(a, b) rp__lw_2(lw, RP__DIV, a, b)
#define MAX(a, b) rp__lw_2(lw, RP__MAX, a, b)
#define MIN(a, b) rp__lw_2(lw, RP__MIN, a, b)
#define LT(a, b) rp__lw_2(lw, RP__LT, a, b)
#define LE(a, b) rp__lw_2(lw, RP__LE, a, b)
#define EQ(a, b) rp__lw_2(lw, RP__EQ, a, b)
#define NE(a, b) rp__lw_2(lw, RP__NE, a, b)
#define AND(a, b) rp__lw_2(lw, RP__AND, a, b)
#define OR(a, b) rp__lw_2(lw, RP__OR, a, b)
#define NOT(a) rp__lw_1(lw, RP__NOT, a)
#define NEG(a) rp__lw_1(lw, RP__NEG, a)
#define ABS(a) rp__lw_1(lw, RP__ABS, a)
#define EXP(a) rp__lw_1(lw, RP__EXP, a)
#define LOG(a) rp__lw_1(lw, RP__LOG, a)
#define LOG1P(a) rp__lw_1(lw, RP__LOG1P, a)
#define PRIM(p, ...)                                                                                                   \
    rp__lw_prim(lw, RP__##p, (rp__val[3]){__VA_ARGS__}, sizeof((rp__val[]){__VA_ARGS__}) / sizeof(rp__val))
#define WHERE(c, a, b) rp__lw_3(lw, RP__WHERE, c, a, b)
#define NUM(value) rp__lw_const(lw, compute, value)
#define ATTR(k) rp__lw_attr(lw, k, compute)

static inline rp__val rp__lw_prim(rp__lower *lw, rp__prim op, const rp__val *v, size_t n) {
    return n == 1 ? rp__lw_1(lw, op, v[0]) : n == 2 ? rp__lw_2(lw, op, v[0], v[1]) : rp__lw_3(lw, op, v[0], v[1], v[2]);
}
static inline rp_dtype rp__lw_float(rp_dtype d) { return rp__dtype_is_float(d) ? d : RP_F32; }

/* A unary op from its value for x, in self's type (SAME) or, integers in float32, in a floating one; WITH: what comes in it more than once is
   given a name behind it, "t = MUL(x, ATTR(0))", one after the other. */
#define RP__UNARY_AS(name, as, value, ...)                                                                             \
    void rp__lower_##name(rp__lower *lw) {                                                                             \
        const rp_dtype type = as(rp__lw_in_dtype(lw, 0)), compute = rp__lw_compute(type);                              \
        const rp__val __VA_ARGS__;                                                                                     \
        (void)compute;                                                                                                 \
        rp__lw_out(lw, 0, value);                                                                                      \
    }
#define RP__SAME_TYPE(d) (d)
#define RP__UNARY(name, value) RP__UNARY_AS(name, rp__lw_float, value, x = rp__lw_in_as(lw, 0, type))
#define RP__UNARY_SAME(name, value) RP__UNARY_AS(name, RP__SAME_TYPE, value, x = rp__lw_in_as(lw, 0, type))
#define RP__UNARY_WITH(name, value, ...)                                                                               \
    RP__UNARY_AS(name, rp__lw_float, value, x = rp__lw_in_as(lw, 0, type), __VA_ARGS__)
/* One of two operands a and b in their promoted type, or in a floating one. */
#define RP__BINARY_AS(name, as, value)                                                                                 \
    void rp__lower_##name(rp__lower *lw) {                                                                             \
        const rp_dtype type = as(rp__lw_promoted(lw, 2, -1)), compute = rp__lw_compute(type);                          \
        const rp__val a = rp__lw_in_as(lw, 0, type), b = rp__lw_in_as(lw, 1, type);                                    \
        (void)compute;                                                                                                 \
        rp__lw_out(lw, 0, value);                                                                                      \
    }
#define RP__BINARY(name, value) RP__BINARY_AS(name, RP__SAME_TYPE, value)
#define RP__BINARY_FLOAT(name, value) RP__BINARY_AS(name, rp__lw_float, value)

#endif
