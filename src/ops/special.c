/* Functions of statistics and of the edges of numbers: lowerings of special.def. */
#include <math.h>

#include "ops/formula.h"
#include "ops/grad.h"
#include "ops/infer.h"
#include "ops/private.h"
#include "ops/rules.h"
#include "ops/series.h"

/* As PyTorch, not of half types. */
rp_status rp__infer_special(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_unary_float(call, out));
    return out->dtype == RP_F32 || out->dtype == RP_F64 ? RP_OK : rp__call_refuse_dtype(call, out->dtype);
}

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
    rp_tensor *places = rp_to_dtype(rp_mul_scalar(rp_neg(rp__count_beside(x, p)), rp_f64(0.5)), compute);
    rp_tensor *each = rp_lgamma(rp_add(rp_unsqueeze(rp_to_dtype(call->in[0], compute), -1), places));
    rp_tensor *y = rp_add_scalar(rp_sum(each, RP_DIMS(-1)), rp_f64((double)p * (double)(p - 1) / 4 * log(M_PI)));
    return rp__give(call, dtype == compute ? y : rp_to_dtype(y, dtype));
}

rp_status rp__infer_special_zeta(const rp__call *call, rp__meta *out) {
    RP_TRY(rp__infer_binary_float(call, out));
    return out->dtype == RP_F32 || out->dtype == RP_F64 ? RP_OK : rp__call_refuse_dtype(call, out->dtype);
}

/* ---- the normal distribution: series of special_coeffs.py. erfcx is that of (1 + 2 x) erfcx(x) in (x - 3.75) / (x + 3.75) for x >= 0;
   ndtri of p is (p - 1/2) times that in (p - 1/2)^2 up to 0.425 from the middle, beyond -r times that in r = sqrt(-log p). */

static const double erfcx_series[] = {
    1.17757893456740175,       -0.00459005458064647733, -0.0842491333665179156,   0.0592099399981918905,
    -0.0266586684353057523,    0.00907499767070526509,  -0.00241316354041760819,  0.000490775836525808632,
    -0.0000691697330250120637, 4.13902798607301017e-6,  7.74038306619849067e-7,   -2.18864010492343957e-7,
    1.07649994656709104e-8,    4.5219598112182869e-9,   -7.75440020883135111e-10, -6.31808834088668449e-11,
    2.8687950109306699e-11,    1.94558685457773472e-13, -9.65469674843343891e-13, 3.25254814814873984e-14,
    3.34781194828680539e-14,   -1.8645628804193131e-15, -1.25079505306886471e-15, 7.41823525662404346e-17,
    5.06814890479611132e-17,   -2.2370566594359996e-18, -2.18734294430301766e-18};
static const double ndtri_middle[] = {
    2.87347353922790163,      0.424952368745746081,    0.0698631763347935763,   0.0144271181255917416,
    0.00332010048701319511,   0.000813806576120347425, 0.000207868407537473789, 0.0000546572536677379631,
    0.0000146838734732002498, 4.01073897825851879e-6,  1.10998242487950945e-6,  3.10489773818313678e-7,
    8.76239942425181046e-8,   2.4913574468428182e-8,   7.12872714066758883e-9,  2.05103685697956258e-9,
    5.92946133048663715e-10,  1.72142071158390771e-10, 5.01627139749050096e-11, 1.46663778500661892e-11,
    4.30095406211730084e-12,  1.26467970272359994e-12, 3.72787492326986121e-13, 1.10131817173509471e-13,
    3.26026270948652105e-14,  9.66959701677174697e-15, 2.87287203009381229e-15, 8.5490853979510562e-16,
    2.54781562576870595e-16,  7.60354468526874532e-17, 2.27207860632834743e-17, 6.79756094930705393e-18};
static const double ndtri_tail[] = {
    1.18702094152027399,       0.196487327979827761,     -0.0688775247412136605,   0.0222205401421837278,
    -0.00686247791304821828,   0.00206414815453984936,   -0.000610170745841785028, 0.000178198553342033518,
    -0.0000515874364122224768, 0.0000148364732826709404, -4.24548659438161291e-6,  1.21005833975111619e-6,
    -3.43804407261217266e-7,   9.74314765552486764e-8,   -2.75527182750160013e-8,  7.77780768792708274e-9,
    -2.19227692588981702e-9,   6.17124726526403762e-10,  -1.7352640407832101e-10,  4.87455747088590363e-11,
    -1.36814782766783312e-11,  3.83708852363100898e-12,  -1.07541880642824644e-12, 3.01225060750870077e-13,
    -8.43273587020529269e-14,  2.35956783843776375e-14,  -6.59937296672993607e-15, 1.84499961528332825e-15,
    -5.15618337931807861e-16,  1.44049643319920988e-16,  -4.02308819745353948e-17, 1.12326165150494738e-17,
    -3.13534751432096448e-18};
static const double ndtri_far[] = {
    1.39093218518528264,      0.0295895747693761532,    -0.0156522613979115851,    0.00764285288978295372,
    -0.00356891059654185425,  0.00161991275698039398,   -0.000721032724140442044,  0.000316394550095036661,
    -0.000137341976359849582, 0.0000591146504324211074, -0.0000252713889206456314, 0.0000107433353564778003,
    -4.54600150885584823e-6,  1.91608117269324171e-6,   -8.04896269420137983e-7,   3.37137318872116488e-7,
    -1.40856591619117263e-7,  5.87198938651919488e-8,   -2.44311177750303194e-8,   1.01471985833776657e-8,
    -4.20798748226047237e-9,  1.74259904032681044e-9,   -7.20734271360657978e-10,  2.97755432917442869e-10,
    -1.22884378231515134e-10, 5.06671268308104122e-11,  -2.08729578418364054e-11,  8.59213995644622173e-12,
    -3.53432429575295208e-12, 1.45286166070280541e-12,  -5.96866857394981546e-13,  2.45067802209952824e-13,
    -1.00570106181034248e-13, 4.12517083971780704e-14,  -1.69129869095945748e-14,  6.93134661103064022e-15,
    -2.8395283657309494e-15,  1.16283303282331832e-15,  -4.7603769747836839e-16,   1.94817322333856793e-16,
    -7.97048304652486014e-17, 3.26002146989880792e-17,  -1.33303722472970631e-17,  5.44950135869194536e-18,
    -2.22725565608438232e-18};

/* e^(x^2), the rounding of the square made good. */
static rp__val exp_of_square(rp__lower *lw, rp__val x, rp_dtype compute) {
    const rp__val high = MUL(x, x), low = PRIM(FMA, x, x, NEG(high));
    return MUL(EXP(high), ADD(low, NUM(1)));
}
/* Beyond 32 the exponential is infinite in every type. */
static rp__val scaled_erfc(rp__lower *lw, rp__val x, rp_dtype compute) {
    const rp__val size = ABS(x), u = SUB(NUM(1), DIV(NUM(7.5), ADD(size, NUM(3.75))));
    const rp__val right = DIV(SERIES(u, erfcx_series), ADD(NUM(1), ADD(size, size)));
    const rp__val left = SUB(MUL(NUM(2), exp_of_square(lw, MIN(size, NUM(32)), compute)), right);
    return WHERE(LT(x, NUM(0)), left, right);
}
RP__UNARY(special_erfcx, scaled_erfc(lw, x, compute))

static rp__val log_normal_part(rp__lower *lw, rp__val x, rp_dtype compute) {
    const rp__val t = MUL(x, NUM(-M_SQRT1_2)), half = NUM(0.5);
    const rp__val low = SUB(LOG(MUL(scaled_erfc(lw, t, compute), half)), MUL(MUL(x, x), half));
    return WHERE(LT(x, NUM(-1)), low, LOG1P(MUL(PRIM(ERFC, NEG(t)), NUM(-0.5))));
}
RP__UNARY(special_log_ndtr, log_normal_part(lw, x, compute))

static rp__val normal_quantile(rp__lower *lw, rp__val p, rp_dtype compute) {
    const rp__val q = SUB(p, NUM(0.5)), v = MUL(MUL(q, q), NUM(2 / (0.425 * 0.425)));
    const rp__val middle = MUL(q, SERIES(SUB(v, NUM(1)), ndtri_middle));
    const rp__val tail = WHERE(LT(q, NUM(0)), p, SUB(NUM(1), p)), r = PRIM(SQRT, NEG(LOG(tail)));
    const rp__val high = SERIES(MUL(SUB(r, NUM(3.3)), NUM(1 / 1.7)), ndtri_tail);
    const rp__val far = SERIES(MUL(SUB(r, NUM(16.5)), NUM(1 / 11.5)), ndtri_far);
    const rp__val size = WHERE(EQ(tail, NUM(0)), NUM(INFINITY), MUL(r, WHERE(LE(r, NUM(5)), high, far)));
    return WHERE(LE(ABS(q), NUM(0.425)), middle, WHERE(LT(q, NUM(0)), NEG(size), size));
}
RP__UNARY(special_ndtri, normal_quantile(lw, x, compute))

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
