/* Functions of statistics and of the edges of numbers: lowerings of special.def. */
#include <math.h>

#include "ops/formula.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"

RP__UNARY(isposinf, EQ(x, NUM(INFINITY)))
RP__UNARY(isneginf, EQ(x, NUM(-INFINITY)))

/* NaN stays: it is in neither half. */
RP__UNARY(special_entr, WHERE(EQ(x, NUM(0)), NUM(0), WHERE(LT(x, NUM(0)), NUM(-INFINITY), MUL(NEG(x), LOG(x)))))
RP__UNARY(special_ndtr, MUL(PRIM(ERFC, MUL(x, NUM(-M_SQRT1_2))), NUM(0.5)))
RP__BINARY_FLOAT(special_xlog1py, WHERE(PRIM(ISNAN, b), b, WHERE(EQ(a, NUM(0)), NUM(0), MUL(a, LOG1P(b)))))

rp_status rp__expand_mvlgamma(const rp__call *call) {
    const rp_tensor *x = call->in[0];
    const int64_t p = rp__attr_int(call, 0);
    if (x->dtype == RP_BOOL) return rp__call_refuse_dtype(call, RP_BOOL);
    if (p < 1 || p > 1 << 16)
        return rp__op_error(call, RP_ERROR_INVALID_ARGUMENT, "p has to be between 1 and 65536, not %lld", (long long)p);
    const rp_dtype dtype = rp__float_or_default((rp_dtype)x->dtype), compute = dtype == RP_F64 ? RP_F64 : RP_F32;
    rp_tensor *places = rp_to_dtype(rp_mul_scalar(rp__count_beside(x, p), rp_f64(-0.5)), compute);
    rp_tensor *each = rp_lgamma(rp_add(rp_unsqueeze(rp_to_dtype(call->in[0], compute), -1), places));
    rp_tensor *y = rp_add_scalar(rp_sum(each, RP_DIMS(-1)), rp_f64((double)p * (double)(p - 1) / 4 * log(M_PI)));
    return rp__give(call, dtype == compute ? y : rp_to_dtype(y, dtype));
}

rp_status rp__infer_special_zeta(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_binary_float(call, out));
    return out->dtype == RP_F32 || out->dtype == RP_F64 ? RP_OK : rp__call_refuse_dtype(call, out->dtype);
}

/* ---- modified Bessel functions: Chebyshev series of I0(x) e^-x and I1(x) e^-x / x over 0 <= x <= 8, in x / 4 - 1, and of
   I0(x) e^-x sqrt(x) and I1(x) e^-x sqrt(x) beyond, in 16 / x - 1; interpolated with 60 digits. */

static const double near_0[] = {
    0.338397637204738042,     -0.304682672343198399,    0.171620901522208775,    -0.0949010970480476444,
    0.0493052842396707085,    -0.0237374148058994688,   0.0105464603945949983,   -0.00432430999505057594,
    0.0016394756169413358,    -0.000576375574538582366, 0.000188502885095841656, -0.000057541950100821037,
    0.0000164484480707288971, -4.41673835845875056e-6,  1.11738753912010372e-6,  -2.67079385394061173e-7,
    6.04699502254191895e-8,   -1.30002500998624804e-8,  2.65982372468238665e-9,  -5.18979560163526291e-10,
    9.67580903537323691e-11,  -1.72682629144155571e-11, 2.95505266312963983e-12, -4.85644678311192946e-13,
    7.67618549860493562e-14,  -1.16853328779934517e-14, 1.71539128555513303e-15, -2.43127984654795469e-16,
    3.3307945188222381e-17,   -4.41534164647933938e-18};
static const double near_1[] = {
    0.126293593221816827,    -0.176416518357834055,    0.102643658689847095,     -0.0529459812080949914,
    0.0247264490306265168,   -0.0105640848946261982,   0.00415642294431288816,   -0.00151357245063125315,
    0.000512285956168575773, -0.000161760815825896746, 0.0000478156510755005423, -0.0000132731636560394358,
    3.47025130813767848e-6,  -8.56872026469545474e-7,  2.00329475355213526e-7,   -4.44505912879632808e-8,
    9.38153738649577178e-9,  -1.88724975172282929e-9,  3.62559028155211704e-10,  -6.66348972350202774e-11,
    1.17361862988909016e-11, -1.98397439776494372e-12, 3.22379336594557471e-13,  -5.04218550472791169e-14,
    7.60068429473540693e-15, -1.10559694773538631e-15, 1.55363195773620047e-16,  -2.11142121435816608e-17,
    2.77791411276104637e-18};
static const double far_0[] = {
    0.402245205507054416,     0.00336911647825569409,   0.0000688975834691682398, 2.89137052083475648e-6,
    2.04891858946906374e-7,   2.26666899049817806e-8,   3.39623202570838635e-9,   4.94060238822496959e-10,
    1.18891471078464383e-11,  -3.14991652796324136e-11, -1.32158118404477131e-11, -1.79417853150680612e-12,
    7.18012445138366623e-13,  3.8527783827421427e-13,   1.54008621752140983e-14,  -4.15056934728722209e-14,
    -9.55484669882830765e-15, 3.81168066935262242e-15,  1.77256013305652638e-15,  -3.42548561967721913e-16,
    -2.82762398051658348e-16, 3.46122286769746109e-17,  4.46562142029676e-17,     -4.83050448594418207e-18,
    -7.23318048787475395e-18, 9.9214754121736986e-19,   1.19365089084598209e-18};
static const double far_1[] = {
    0.38928811750914006,      -0.00976109749136146841,  -0.000110588938762623716, -3.88256480887769039e-6,
    -2.51223623787020893e-7,  -2.63146884688951951e-8,  -3.83538038596423702e-9,  -5.58974346219658381e-10,
    -1.89749581235054123e-11, 3.25260358301548824e-11,  1.41258074366137813e-11,  2.03562854414708951e-12,
    -7.19855177624590851e-13, -4.08355111109219732e-13, -2.10154184277266431e-14, 4.27244001671195135e-14,
    1.04202769841288028e-14,  -3.8144030724370078e-15,  -1.88035477551078245e-15, 3.30820231092092828e-16,
    2.96262899764595014e-16,  -3.20952592199342396e-17, -4.65030536848935833e-17, 4.41434832307170795e-18,
    7.51729631084210481e-18,  -9.31417886732688338e-19, -1.24219327519489096e-18};

/* By Clenshaw's recurrence; in float32 without terms that it does not hold. */
static rp__val series(rp__lower *lw, rp_dtype compute, rp__val u, const double *c, unsigned n) {
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
#define SERIES(u, c) series(lw, compute, u, c, sizeof(c) / sizeof *(c))

static rp__val scaled_0(rp__lower *lw, rp__val x, rp_dtype compute) {
    const rp__val size = ABS(x), near = SERIES(SUB(MUL(size, NUM(0.25)), NUM(1)), near_0);
    const rp__val far = DIV(SERIES(SUB(DIV(NUM(16), size), NUM(1)), far_0), PRIM(SQRT, size));
    return WHERE(LE(size, NUM(8)), near, far);
}
static rp__val scaled_1(rp__lower *lw, rp__val x, rp_dtype compute) {
    const rp__val size = ABS(x), near = MUL(SERIES(SUB(MUL(size, NUM(0.25)), NUM(1)), near_1), x);
    const rp__val far = DIV(SERIES(SUB(DIV(NUM(16), size), NUM(1)), far_1), PRIM(SQRT, size));
    return WHERE(LE(size, NUM(8)), near, PRIM(COPYSIGN, far, x));
}
RP__UNARY(i0, MUL(scaled_0(lw, x, compute), EXP(ABS(x))))
RP__UNARY(special_i0e, scaled_0(lw, x, compute))
RP__UNARY(special_i1, MUL(scaled_1(lw, x, compute), EXP(ABS(x))))
RP__UNARY(special_i1e, scaled_1(lw, x, compute))
