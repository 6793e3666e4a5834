/* Bessel functions: lowerings of bessel.def, by series of scripts/special_coeffs.py in x^2 near 0 and in 1 / x^2 or 1 / x beyond. */
#include <math.h>

#include "ops/formula.h"
#include "ops/private.h"
#include "ops/rules.h"
#include "ops/series.h"

static const double j0_near[] = {0.15772797147489012,      -0.00872344235285222129,  0.26517861320333681,
                                 -0.370094993872649779,    0.158067102332097261,     -0.0348937694114088852,
                                 0.0048191800694676045,    -0.000460626166206275048, 0.0000324603288210050808,
                                 -1.76194690776215075e-6,  7.60816359241878187e-8,   -2.6792535305576729e-9,
                                 7.84869631447946442e-11,  -1.94383468673701657e-12, 4.12532059563437393e-14,
                                 -7.58850812544754634e-16, 1.2218515873961411e-17};
static const double j1_near[] = {0.0810448463256581151,    -0.148975145067652109,     0.160999262357209703,
                                 -0.0826804917668179066,   0.0222136396549660354,     -0.00364694060076927596,
                                 0.000405033772835482183,  -0.0000325555486685725852, 1.98587740499151674e-6,
                                 -9.52198475675043618e-8,  3.68713375909714824e-9,    -1.17802662269588484e-10,
                                 3.16015458034800332e-12,  -7.22175523965177343e-14,  1.42321440035139423e-15,
                                 -2.44419729161904639e-17, 3.69126829979293326e-19};
static const double y0_near[] = {-0.0331461132032849417,   -0.274474305529745265,    0.179034314077182663,
                                 0.261567346255046637,     -0.177302012781143582,    0.0471966895957633869,
                                 -0.00728796247955207918,  0.000753113593257774228,  -0.0000563207914105698698,
                                 3.20653253765480098e-6,   -1.44072332740186995e-7,  5.24879478733051612e-9,
                                 -1.58375525418120151e-10, 4.02633081830612075e-12,  -8.74734120331076955e-14,
                                 1.6434898714919469e-15,   -2.69778811525668356e-17, 3.90325841734759827e-19};
static const double y1_near[] = {0.00253801323574178173,   -0.0160871730476687502,   -0.0959120453608307425,
                                 0.0844519725965234584,    -0.0283281239445943656,   0.00528989754416711301,
                                 -0.000641455145132635599, 0.0000550598287333874384, -3.5380800186893499e-6,
                                 1.77078045561544034e-7,   -7.11055004989927978e-9,  2.34433790591151639e-10,
                                 -6.46515184141159424e-12, 1.51429151205001995e-13,  -3.05118596944732527e-15,
                                 5.34668038572867012e-17,  -8.22491137202158463e-19};
static const double p0_far[] = {0.999460349347518665,     -0.000536522046813211742, 3.07518478751947462e-6,
                                -5.1705945376060977e-8,   1.63064646351513831e-9,   -7.86409137723707e-11,
                                5.16826238734919246e-12,  -4.30457886992539122e-13, 4.32659574315494056e-14,
                                -5.06903409593523608e-15, 6.7480722157338737e-16,   -1.00115137234677858e-16,
                                1.63059192337441847e-17,  -2.8808661694828712e-18};
static const double q0_far[] = {-0.0155558546053370091,   0.000068385199426116496,  -7.41449841106064726e-7,
                                1.79724572479689918e-8,   -7.27191593686631998e-10, 4.22012190466873844e-11,
                                -3.20674742099663474e-12, 3.00614512535170631e-13,  -3.336328185322427e-14,
                                4.25522504024546112e-15,  -6.09993013164005001e-16, 9.66212897030325674e-17,
                                -1.66860652143781463e-17, 3.10824404867381443e-18,  -6.19111578735814493e-19,
                                1.30914487172201215e-19,  -2.92116271526427736e-20};
static const double p1_far[] = {1.0009030408600137,      0.000898989833085940856,  -3.98728430048890852e-6,
                                6.17763396064429853e-8,  -1.87189074910630661e-9,  8.8168986595823389e-11,
                                -5.7048636403956447e-12, 4.69919551523054238e-13,  -4.68422378399048922e-14,
                                5.45267489604471717e-15, -7.22118084227401792e-16, 1.06676891143354125e-16,
                                -1.7312313216116335e-17, 3.04929911976658723e-18};
static const double q1_far[] = {
    0.0467777870695353252,   -0.0000962772354915707932, 9.13861525795545412e-7,  -2.09597813840834225e-8,
    8.22919332765055413e-10, -4.68636368817694523e-11,  3.51521879496860809e-12, -3.26431567432789993e-13,
    3.59677658291652919e-14, -4.56125239507729719e-15,  6.50828295778338395e-16, -1.02691475318232429e-16,
    1.76763554877647916e-17, -3.28345198729816146e-18,  6.5240811495892603e-19,  -1.3765771484849488e-19};
static const double i0_small[] = {1.60292280680796332,     0.638809625651177011,     0.036854859694361758,
                                  0.000982878127251479832, 0.0000149836542089272927, 1.4738449008423847e-7,
                                  1.01147979006748255e-9,  5.11499790201127981e-12,  1.98428062268056187e-14,
                                  6.0905165060589549e-17};
static const double i1_small[] = {0.641758996991187405,    0.147539320149193419,    0.00589874268002078831,
                                  0.000119881371746387083, 1.47391651190931269e-6,  1.21380749687409216e-8,
                                  7.16110669279927947e-11, 3.17487931131011993e-13, 1.09629983487730753e-15,
                                  3.03150212209335544e-18};
static const double k0_near[] = {-0.267663696616951384,  0.344289899924628487,     0.0359799365153615016,
                                 0.00126461541144692592, 0.0000228621210311945179, 2.53479107902614946e-7,
                                 1.90451637722020886e-9, 1.03496952576336246e-11,  4.25981614279108258e-14,
                                 1.3744654358807509e-16, 3.57089652850837359e-19};
static const double k1_near[] = {0.762650113669473885,     -0.353155960776544876,    -0.122611180822657148,
                                 -0.00697572385963986435,  -0.000173028895751305206, -2.43340614156596823e-6,
                                 -2.21338763073472586e-8,  -1.41148839263352776e-10, -6.66690169419932901e-13,
                                 -2.42744985051936593e-15, -7.0238634793862876e-18};
static const double k0_far[] = {
    1.22015154103297773,      -0.0314481013119645005,   0.00156988388573005337,  -0.000128495495816278026,
    0.0000139498137188764994, -1.83175552271911948e-6,  2.76681363944501508e-7,  -4.66048989768794767e-8,
    8.57403401741422609e-9,   -1.69753450938906152e-9,  3.57739728140032845e-10, -7.95748924447739704e-11,
    1.85594911495492655e-11,  -4.51459788337451918e-12, 1.14034058820734423e-12, -2.98009692314817835e-13,
    8.03289077506837437e-14,  -2.22751332674629636e-14, 6.34007647627664597e-15, -1.84859337792090717e-15,
    5.51205599940433336e-16,  -1.67823112575490064e-16, 5.21039177764355411e-17, -1.64758059398426328e-17,
    5.30043377117733577e-18,  -1.73317120058210003e-18};
static const double k1_far[] = {
    1.36031309524222133,       0.103923736576817238,    -0.00285781685962277939,  0.000195215518471351631,
    -0.0000193619797416608296, 2.40648494783721712e-6,  -3.50196060308781254e-7,  5.74108412545004929e-8,
    -1.0345762465678097e-8,    2.01504975519703462e-9,  -4.19035475934192558e-10, 9.21831518760531413e-11,
    -2.12996783842779102e-11,  5.13963967348234354e-12, -1.28917396094982294e-12, 3.34841966605224312e-13,
    -8.97670518201014607e-14,  2.47715442421959868e-14, -7.01983708921476885e-15, 2.03870316623986088e-15,
    -6.05704727064301782e-16,  1.83809357524304543e-16, -5.68946284919364837e-17, 1.79405104788635729e-17,
    -5.75674448207330245e-18,  1.87786519016232674e-18};

/* ---- J and Y: near up to 8; beyond, sqrt(2 / (pi x)) times P cos(t) - 8 / x Q sin(t) for J and P sin(t) + 8 / x Q cos(t) for Y, t = x - (2
   order + 1) pi / 4, P and Q by (8 / x)^2 */

typedef struct waves {
    rp__val p, q, cosine, sine, size; /* of t; q with its 8 / x; size with what the two below lack */
} waves;

/* cos(x - pi / 4) = (cos(x) + sin(x)) / sqrt(2), and so on: x itself is not rounded again. */
static waves waves_of(rp__lower *lw, rp_dtype compute, rp__val x, unsigned order) {
    const rp__val z = DIV(NUM(8), x), u = SUB(MUL(NUM(2), MUL(z, z)), NUM(1));
    const rp__val c = PRIM(COS, x), s = PRIM(SIN, x), sum = ADD(c, s), difference = SUB(s, c);
    return (waves){.p = order ? SERIES(u, p1_far) : SERIES(u, p0_far),
                   .q = MUL(z, order ? SERIES(u, q1_far) : SERIES(u, q0_far)),
                   .cosine = order ? difference : sum,
                   .sine = order ? NEG(sum) : difference,
                   .size = PRIM(SQRT, DIV(NUM(M_1_PI), x))};
}
static rp__val far_first(rp__lower *lw, const waves *w) {
    return MUL(w->size, SUB(MUL(w->p, w->cosine), MUL(w->q, w->sine)));
}
static rp__val far_second(rp__lower *lw, const waves *w) {
    return MUL(w->size, ADD(MUL(w->p, w->sine), MUL(w->q, w->cosine)));
}
static rp__val near_place(rp__lower *lw, rp_dtype compute, rp__val x) {
    return SUB(MUL(MUL(x, x), NUM(1.0 / 32)), NUM(1));
}

static rp__val first_kind(rp__lower *lw, rp__val x, rp_dtype compute, unsigned order) {
    const rp__val size = ABS(x), u = near_place(lw, compute, x);
    const waves w = waves_of(lw, compute, size, order);
    const rp__val far = far_first(lw, &w);
    const rp__val near = order ? MUL(x, SERIES(u, j1_near)) : SERIES(u, j0_near);
    return WHERE(LE(size, NUM(8)), near, order ? WHERE(LT(x, NUM(0)), NEG(far), far) : far);
}
RP__UNARY(special_bessel_j0, first_kind(lw, x, compute, 0))
RP__UNARY(special_bessel_j1, first_kind(lw, x, compute, 1))

/* NaN below 0, by the logarithm. */
static rp__val second_kind(rp__lower *lw, rp__val x, rp_dtype compute, unsigned order) {
    const rp__val u = near_place(lw, compute, x), log = MUL(LOG(x), NUM(M_2_PI));
    const waves w = waves_of(lw, compute, x, order);
    rp__val near;
    if (order == 0) {
        near = ADD(MUL(log, SERIES(u, j0_near)), SERIES(u, y0_near));
    } else {
        near = MUL(x, ADD(MUL(log, SERIES(u, j1_near)), SERIES(u, y1_near)));
        near = SUB(near, DIV(NUM(M_2_PI), x));
    }
    near = WHERE(EQ(x, NUM(0)), NUM(-INFINITY), near);
    return WHERE(LE(x, NUM(8)), near, far_second(lw, &w));
}
RP__UNARY(special_bessel_y0, second_kind(lw, x, compute, 0))
RP__UNARY(special_bessel_y1, second_kind(lw, x, compute, 1))

/* ---- K: near up to 2, with what is infinite at 0 apart; beyond e^-x / sqrt(x) times a series in 1 / x */

static rp__val decaying(rp__lower *lw, rp__val x, rp_dtype compute, unsigned order, bool scaled) {
    const rp__val u = SUB(MUL(MUL(x, x), NUM(0.5)), NUM(1)), v = SUB(DIV(NUM(4), x), NUM(1));
    const rp__val log = SUB(LOG(x), NUM(M_LN2)); /* of x / 2, which may be too small a number */
    rp__val near, far = DIV(order ? SERIES(v, k1_far) : SERIES(v, k0_far), PRIM(SQRT, x));
    if (order == 0)
        near = SUB(SERIES(u, k0_near), MUL(log, SERIES(u, i0_small)));
    else
        near = ADD(MUL(log, MUL(x, SERIES(u, i1_small))), DIV(SERIES(u, k1_near), x));
    if (scaled) near = MUL(near, EXP(x));
    if (!scaled) far = MUL(far, EXP(NEG(x)));
    near = WHERE(LT(NUM(0), x), near, WHERE(EQ(x, NUM(0)), NUM(INFINITY), NUM(NAN)));
    return WHERE(LE(x, NUM(2)), near, far);
}
RP__UNARY(special_modified_bessel_k0, decaying(lw, x, compute, 0, false))
RP__UNARY(special_modified_bessel_k1, decaying(lw, x, compute, 1, false))
RP__UNARY(special_scaled_modified_bessel_k0, decaying(lw, x, compute, 0, true))
RP__UNARY(special_scaled_modified_bessel_k1, decaying(lw, x, compute, 1, true))

static rp__val spherical(rp__lower *lw, rp__val x, rp_dtype compute) {
    const rp__val inside = WHERE(EQ(x, NUM(0)), NUM(1), DIV(PRIM(SIN, x), x));
    return WHERE(EQ(ABS(x), NUM(INFINITY)), NUM(0), inside);
}
RP__UNARY(special_spherical_bessel_j0, spherical(lw, x, compute))

/* ---- Ai: near from -5 to 2; beyond e^-z / (2 sqrt(pi) x^(1/4)) times a series in 1 / z, z = 2/3 x^(3/2), and on the left (P cos(t) + Q
   sin(t)) / (sqrt(pi) x^(1/4)), t = z - pi / 4, P and Q z by 1 / z^2. In float64: the phase grows faster than x. */

static const double airy_near[] = {
    0.151689476282236718,     -0.00522869240847236502,   -0.00718300756334212319,  -0.275008582517007838,
    0.152672856527366125,     0.112997229018335714,      -0.129301635199807934,    0.0217179504230826672,
    0.0249118507027364134,    -0.0143358574218957304,    0.000696689451639598042,  0.00197439893352901904,
    -0.000723039397225219928, -0.0000161124145261774665, 0.0000813327367324993929, -0.0000207753658139754613,
    -1.60547626871647576e-6,  2.05601582556013877e-6,    -3.82552051728417797e-7,  -4.91387059618417806e-8,
    3.51416864205189188e-8,   -4.84638501086049629e-9,   -8.89781205942221303e-10, 4.32978624864880762e-10,
    -4.41474559743930138e-11, -1.10968629957643418e-11,  4.02483202879783206e-12,  -2.96099362498464524e-13,
    -1.02576351272874762e-13, 2.92057987682902401e-14,   -1.46199555114862313e-15, -7.35505053091766958e-16,
    1.69865484081828054e-16,  -5.05632082246529418e-18,  -4.22344484836266438e-18, 8.08700884719002475e-19};
static const double airy_right[] = {
    0.984405304917155196,    -0.0147927848501041987,   0.000732717746542671434, -0.0000612595423417824993,
    6.83476697557269029e-6,  -9.23722973540398155e-7,  1.4362253404380519e-7,   -2.48931942232209598e-8,
    4.7097934400543278e-9,   -9.58386370811273208e-10, 2.07458554836775917e-10, -4.73726733219227696e-11,
    1.13360998082242348e-11, -2.82770678231935085e-12, 7.32071209512559757e-13, -1.95997939110897221e-13,
    5.41011625706839221e-14, -1.53564668022238356e-14, 4.47234039330002478e-15, -1.33380946747566825e-15,
    4.06658204645623099e-16, -1.26558322564528899e-16, 4.0151263340158711e-17,  -1.29699721359609367e-17,
    4.26134990741239982e-18, -1.42267684229350711e-18};
static const double airy_left_p[] = {0.999672341546100543,     -0.000325548356105532215, 2.06974515596911914e-6,
                                     -3.8909617364744243e-8,   1.36459594469503361e-9,   -7.26556343886668169e-11,
                                     5.23467562906290689e-12,  -4.74966941582145197e-13, 5.17215613960418868e-14,
                                     -6.53372529554528448e-15, 9.33927407277720897e-16,  -1.48233305125804555e-16,
                                     2.57459883996440026e-17,  -4.8369440585693956e-18};
static const double airy_left_q[] = {0.009272787915716868,     -0.0000436175518450265999, 5.29408468379181058e-7,
                                     -1.43411886571025513e-8,  6.44032484779689751e-10,   -4.11763874964760875e-11,
                                     3.42354453788285968e-12,  -3.49042170175170169e-13,  4.19083885626569228e-14,
                                     -5.75607523714160232e-15, 8.85041599229921731e-16,   -1.49838899435935372e-16,
                                     2.75725295907542577e-17,  -5.45780224587676889e-18,  1.15235977409726492e-18,
                                     -2.57731719907281047e-19, 6.0706287039337291e-20,    -1.49848590917046254e-20};

static rp__val airy(rp__lower *lw, rp__val x) {
    const rp_dtype compute = RP_F64;
    const double two = 1.8856180831641267, five = 7.4535599249992993; /* z of 2 and of 5 */
    const rp__val size = ABS(x), root = PRIM(SQRT, size), quarter = PRIM(SQRT, root),
                  z = MUL(MUL(size, root), NUM(2.0 / 3));
    const rp__val near = SERIES(MUL(ADD(ADD(x, x), NUM(3)), NUM(1.0 / 7)), airy_near);
    const rp__val right = DIV(MUL(EXP(NEG(z)), SERIES(SUB(DIV(NUM(2 * two), z), NUM(1)), airy_right)), quarter);
    const rp__val s = DIV(NUM(five), z), u = SUB(MUL(NUM(2), MUL(s, s)), NUM(1));
    const rp__val c = PRIM(COS, z), d = PRIM(SIN, z); /* cos(t) is (c + d) / sqrt(2), sin(t) is (d - c) / sqrt(2) */
    const rp__val swings = ADD(MUL(SERIES(u, airy_left_p), ADD(c, d)), MUL(MUL(s, SERIES(u, airy_left_q)), SUB(d, c)));
    const rp__val left = DIV(MUL(swings, NUM(M_2_SQRTPI / 2 * M_SQRT1_2)), quarter);
    const rp__val y = WHERE(LT(NUM(2), x), MUL(right, NUM(M_2_SQRTPI / 4)), WHERE(LT(x, NUM(-5)), left, near));
    return WHERE(EQ(size, NUM(INFINITY)), NUM(NAN), y);
}
void rp__lower_special_airy_ai(rp__lower *lw) {
    const rp_dtype type = rp__lw_float(rp__lw_in_dtype(lw, 0));
    rp__lw_out(lw, 0, rp__lw_cast(lw, airy(lw, rp__lw_cast(lw, rp__lw_in_as(lw, 0, type), RP_F64)), type));
}
