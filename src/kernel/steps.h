/* Functions and draws of one element that take as many steps as the element asks for, which the loop form has not: the same text for
   the CPU (kernel/cpu/lib_steps.c) and CUDA (kernel/cuda/steps.cuh), in float64. Plain C over names of the CUDA prelude, RP_FN and
   rp_philox_at; nothing is included here, and it
   may be included twice. An element whose steps do not end after RP_STEPS_ROUNDS is given up: a draw is its mean then.

   gamma: the incomplete gamma function is a series below its mean, a continued fraction above, and near a large mean N. Temme's
   expansion (SIAM J. Math. Anal. 10, 1979), whose coefficients scripts/special_coeffs.py prints.
   draws: an element has a counter of Philox' of its own, and as many blocks behind it as it asks for (the counter's third word). */

#ifndef RP_STEPS_FUNCTIONS
#define RP_STEPS_FUNCTIONS
enum {
    RP_STEPS_IGAMMA,      /* P(a, b) */
    RP_STEPS_IGAMMAC,     /* Q(a, b) = 1 - P */
    RP_STEPS_GAMMA_SLOPE, /* of b as the shape a changes, P staying: the slope of a draw */
    RP_STEPS_HERMITE_H,   /* polynomials of a, of the order b */
    RP_STEPS_HERMITE_HE,
    RP_STEPS_LAGUERRE_L,
    RP_STEPS_LEGENDRE_P,
    RP_STEPS_GAMMA,    /* draws: of shape a */
    RP_STEPS_POISSON,  /* of rate a */
    RP_STEPS_BINOMIAL, /* of a trials, each with probability b */
    RP_STEPS_COUNT
};
enum { RP_STEPS_ORDERS = 1 << 16, RP_STEPS_ROUNDS = 1 << 12 };
#endif

#ifdef RP_FN /* else the names alone */

#define RP__INF rp_bits_f64(0x7ff0000000000000ull)
#define RP__NONE rp_bits_f64(0x7ff8000000000000ull)

/* ---- the gamma function */

/* log gamma(a) - ((a - 1/2) log(a) - a + log(2 pi) / 2), a >= 8 */
RP_FN double rp_steps_stirling(double a) {
    const double z = 1 / (a * a);
    double s = 1.0 / 156;
    s = s * z - 691.0 / 360360;
    s = s * z + 1.0 / 1188;
    s = s * z - 1.0 / 1680;
    s = s * z + 1.0 / 1260;
    s = s * z - 1.0 / 360;
    s = s * z + 1.0 / 12;
    return s / a;
}
RP_FN double rp_steps_log_gamma(double a) { /* a > 0 */
    double below = 1;
    for (; a < 8; a += 1) below *= a;
    return ((a - 0.5) * rp_log_f64(a) - a + 0.91893853320467274178) + rp_steps_stirling(a) - rp_log_f64(below);
}
RP_FN double rp_steps_log_gamma_1p(double a) { /* log gamma(1 + a), exact near 0, a > 0 */
    const double more[15] = {
        0.6449340668482264,    0.2020569031595943,    0.0823232337111382,    0.03692775514336993,
        0.01734306198444914,   0.008349277381922827,  0.00407735619794434,   0.002008392826082214,
        0.0009945751278180853, 0.0004941886041194646, 0.0002460865533080483, 0.0001227133475784891,
        6.124813505870483e-05, 3.058823630702049e-05, 1.528225940865187e-05}; /* zeta(k) - 1, k = 2 .. 16 */
    if (a > 0.2) return rp_steps_log_gamma(1 + a);
    double s = 0;
    for (int k = 16; k >= 2; k--) s = (more[k - 2] / k) * (k % 2 ? -1 : 1) + s * a;
    return a * (0.42278433509846713939 + a * s) - rp_log1p_f64(a);
}
RP_FN double rp_steps_psi(double a) { /* its slope, a > 0 */
    double below = 0;
    for (; a < 10; a += 1) below += 1 / a;
    const double z = 1 / (a * a);
    const double s =
        z * (1.0 / 12 -
             z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
    return rp_log_f64(a) - 0.5 / a - s - below;
}
/* log(1 + m) - m, where 1 + m = r */
RP_FN double rp_steps_log1p_less(double m, double r) {
    if (rp_fabs_f64(m) > 0.5) return rp_log_f64(r) - m;
    const double s = m / (2 + m), z = s * s;
    double sum = 0;
    for (int k = 37; k >= 3; k -= 2) sum = 1.0 / k + z * sum;
    return 2 * s * z * sum - m * s;
}
/* x^a e^-x / gamma(a + 1) */
RP_FN double rp_steps_gamma_front(double a, double x) {
    if (a < 8) return rp_exp_f64(a * rp_log_f64(x) - x - rp_steps_log_gamma_1p(a));
    return rp_exp_f64(a * rp_steps_log1p_less((x - a) / a, x / a) - rp_steps_stirling(a)) /
           rp_sqrt_f64(6.28318530717958647693 * a);
}

/* ---- the incomplete gamma function: P of the shape a below x, Q above */

/* P by its series; *slope, unless null: dP / da */
RP_FN double rp_steps_gamma_series(double a, double x, double *slope) {
    double term = 1, sum = 1, turn = 0, turned = 0;
    for (int k = 1; k < RP_STEPS_ROUNDS * 4; k++) {
        term *= x / (a + k);
        turn += 1 / (a + k);
        sum += term;
        turned -= term * turn;
        if (term * (slope ? turn + 1 : 1) <= sum * 1e-17) break;
    }
    const double front = rp_steps_gamma_front(a, x);
    if (slope) *slope = front * (sum * (rp_log_f64(x) - rp_steps_psi(a + 1)) + turned);
    return front * sum;
}
/* Q by Legendre's continued fraction (Lentz), and dQ / da */
RP_FN double rp_steps_gamma_fraction(double a, double x, double *slope) {
    double b = x + 1 - a, d = 1 / b, c = 1e300, h = d, dd = d * d, dc = 0, dh = dd; /* d.. are slopes along a */
    for (int i = 1; i < RP_STEPS_ROUNDS; i++) {
        const double n = i * (a - i);
        b += 2;
        const double under = n * d + b, dunder = i * d + n * dd - 1;
        dc = (i - n * dc / c) / c - 1;
        c = b + n / c;
        d = 1 / under;
        dd = -dunder * d * d;
        const double step = d * c, dstep = dd * c + d * dc;
        dh = dh * step + h * dstep;
        h *= step;
        if (rp_fabs_f64(step - 1) <= 3e-16 && (!slope || rp_fabs_f64(h * dstep) <= 1e-15 * rp_fabs_f64(dh))) break;
    }
    const double front = a * rp_steps_gamma_front(a, x);
    if (slope) *slope = front * (h * (rp_log_f64(x) - rp_steps_psi(a)) + dh);
    return front * h;
}
/* Q of small a and x, where P is nearly 1 */
RP_FN double rp_steps_gamma_rest(double a, double x) {
    double term = 1, sum = 0;
    for (int k = 1; k < 60; k++) {
        term *= -x / k;
        sum += term / (a + k);
        if (rp_fabs_f64(term) <= 1e-18) break;
    }
    const double front = rp_expm1_f64(a * rp_log_f64(x) - rp_steps_log_gamma_1p(a));
    return -front - (front + 1) * a * sum;
}
/* Near a large mean: P (upper: Q) */
RP_FN double rp_steps_gamma_near(double a, double x, int upper) {
    const double rest[6][14] = {
        {-0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073, 0.0003527336860670194,
         -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06, -1.85406221071516e-06,
         8.296711340953087e-07, -1.7665952736826078e-07, 6.707853543401498e-09, 1.0261809784240309e-08,
         -4.382036018453353e-09},
        {-0.001851851851851852, -0.003472222222222222, 0.0026455026455026454, -0.0009902263374485596,
         0.00020576131687242798, -4.018775720164609e-07, -1.8098550334489977e-05, 7.64916091608111e-06,
         -1.6120900894563446e-06, 4.647127802807434e-09, 1.378633446915721e-07, -5.752545603517705e-08,
         1.1951628599778148e-08, -1.7543241719747647e-11},
        {0.004133597883597883, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06,
         -0.0001073665322636516, 5.2923448829120125e-05, -1.2760635188618728e-05, 3.423578734096138e-08,
         1.3721957309062934e-06, -6.298992138380055e-07, 1.4280614206064242e-07, -2.0477098421990866e-10,
         -1.409252991086752e-08, 6.228974084922022e-09},
        {0.0006494341563786008, 0.00022947209362139917, -0.0004691894943952557, 0.00026772063206283885,
         -7.561801671883977e-05, -2.396505113867297e-07, 1.1082654115347302e-05, -5.6749528269915965e-06,
         1.4230900732435883e-06, -2.7861080291528143e-11, -1.6958404091930278e-07, 8.099464905388083e-08,
         -1.9111168485973655e-08, 2.3928620439808118e-12},
        {-0.0008618882909167117, 0.0007840392217200666, -0.0002990724803031902, -1.4638452578843418e-06,
         6.641498215465122e-05, -3.968365047179435e-05, 1.1375726970678419e-05, 2.507497226237533e-10,
         -1.6954149536558305e-06, 8.907507532205309e-07, -2.292934834000805e-07, 2.956794137544049e-11,
         2.8865829742708783e-08, -1.4189739437803219e-08},
        {-0.00033679855336635813, -6.972813758365857e-05, 0.0002772753244959392, -0.00019932570516188847,
         6.797780477937208e-05, 1.419062920643967e-07, -1.3594048189768693e-05, 8.018470256334202e-06,
         -2.291481176508095e-06, -3.252473551298454e-10, 3.4652846491085265e-07, -1.8447187191171344e-07,
         4.8240967037894184e-08, -1.7989466721743514e-14},
    };
    const double m = (x - a) / a, f = -rp_steps_log1p_less(m, x / a), size = rp_sqrt_f64(2 * f),
                 e = m < 0 ? -size : size;
    double sum = 0;
    for (int k = 5; k >= 0; k--) {
        double s = 0;
        for (int n = 13; n >= 0; n--) s = s * e + rest[k][n];
        sum = sum / a + s;
    }
    const double more = rp_exp_f64(-a * f) / rp_sqrt_f64(6.28318530717958647693 * a) * sum, t = e * rp_sqrt_f64(a / 2);
    return upper ? 0.5 * rp_erfc_f64(t) + more : 0.5 * rp_erfc_f64(-t) - more;
}
RP_FN double rp_steps_igamma(double a, double x, int upper) {
    if (!(a >= 0) || !(x >= 0)) return RP__NONE;
    if (a == 0) return x > 0 ? (double)!upper : RP__NONE;
    if (x == 0) return upper;
    if (a == RP__INF) return x == RP__INF ? RP__NONE : (double)(upper != 0);
    if (x == RP__INF) return !upper;
    if (a > 200 && rp_fabs_f64(x - a) < 0.25 * a) return rp_steps_gamma_near(a, x, upper);
    if (x > 1.1 && x > a) {
        const double q = rp_steps_gamma_fraction(a, x, 0);
        return upper ? q : 1 - q;
    }
    if (upper && x <= 1.1 && (x <= 0.5 ? -0.4 / rp_log_f64(x) > a : x * 1.1 > a)) return rp_steps_gamma_rest(a, x);
    const double p = rp_steps_gamma_series(a, x, 0);
    return upper ? 1 - p : p;
}
RP_FN double rp_steps_gamma_slope(double a, double x) {
    if (!(a > 0) || !(x >= 0) || a == RP__INF || x == RP__INF) return RP__NONE;
    if (x == 0) return 0;
    if (a > 1e6) { /* x = a + z sqrt(a) + (z^2 - 1) / 3 + ... */
        const double w = (x - a) / rp_sqrt_f64(a), z = w - (w * w - 1) / (3 * rp_sqrt_f64(a));
        return 1 + z / (2 * rp_sqrt_f64(a)) - (z * z * z - 7 * z) / (72 * a * rp_sqrt_f64(a));
    }
    double slope;
    const double density = a * rp_steps_gamma_front(a, x) / x;
    if (density == 0) return x < a ? 0 : 1; /* where nothing is drawn */
    if (x > 1.5 && x > a + 1) {
        (void)rp_steps_gamma_fraction(a, x, &slope);
        return slope / density;
    }
    (void)rp_steps_gamma_series(a, x, &slope);
    return -slope / density;
}

/* ---- orthogonal polynomials by their recurrences */

RP_FN double rp_steps_polynomial(int which, double x, double n) {
    const double order = rp_trunc_f64(n);
    if (!(order >= 0)) return 0;
    if (order > RP_STEPS_ORDERS) return RP__NONE;
    if (order == 0) return 1;
    double p = 1, q = which == RP_STEPS_HERMITE_H ? x + x : which == RP_STEPS_LAGUERRE_L ? 1 - x : x;
    for (double k = 1; k < order && q == q; k += 1) {
        double r;
        if (which == RP_STEPS_HERMITE_H)
            r = (x + x) * q - (k + k) * p;
        else if (which == RP_STEPS_HERMITE_HE)
            r = x * q - k * p;
        else if (which == RP_STEPS_LAGUERRE_L)
            r = (((k + k) + (1 - x)) * q - k * p) / (k + 1);
        else
            r = ((k + k + 1) * x * q - k * p) / (k + 1);
        p = q;
        q = r;
    }
    return q;
}

/* ---- draws */

typedef struct rp_steps_blocks {
    rp_u64 seed, counter;
    rp_u32 round, word[4];
} rp_steps_blocks;
RP_FN void rp_steps_blocks_next(rp_steps_blocks *s) { rp_philox_at(s->seed, s->counter, s->round++, s->word); }
/* Within (0, 1), of words k and k + 1. */
RP_FN double rp_steps_blocks_unit(const rp_steps_blocks *s, int k) {
    return ((double)(((rp_u64)s->word[k] << 32 | s->word[k + 1]) >> 12) + 0.5) * 2.220446049250313e-16;
}

/* G. Marsaglia and W. W. Tsang, A Simple Method for Generating Gamma Variables (TOMS 26, 2000). */
RP_FN double rp_steps_draw_gamma(rp_steps_blocks *s, double a) {
    if (!(a > 0) || a == RP__INF) return a < 0 || a != a ? RP__NONE : a;
    double scale = 1;
    rp_steps_blocks_next(s);
    if (a < 1) {
        scale = rp_exp_f64(rp_log_f64(rp_steps_blocks_unit(s, 0)) / a);
        a += 1;
    }
    const double d = a - 1.0 / 3, c = 1 / rp_sqrt_f64(9 * d);
    for (int k = 0; k < RP_STEPS_ROUNDS; k++) {
        rp_steps_blocks_next(s);
        const double far = rp_sqrt_f64(-2 * rp_log_f64(((double)s->word[0] + 0.5) * 2.3283064365386963e-10));
        const double z = far * rp_cos_f64(6.28318530717958647693 * ((double)s->word[1] * 2.3283064365386963e-10));
        const double t = 1 + c * z, v = t * t * t, u = rp_steps_blocks_unit(s, 2);
        if (t > 0 && rp_log_f64(u) < 0.5 * z * z + d * (1 - v + rp_log_f64(v))) return scale * d * v;
    }
    return scale * d;
}

/* log(m^k e^-m / k!) */
RP_FN double rp_steps_log_poisson(double k, double m) {
    if (k < 8) return k * rp_log_f64(m) - m - rp_steps_log_gamma_1p(k);
    return k * rp_steps_log1p_less((m - k) / k, m / k) - rp_steps_stirling(k) -
           0.5 * rp_log_f64(6.28318530717958647693 * k);
}
/* Small rates by inversion, others by W. Hoermann's PTRS (Insurance: Mathematics and Economics 12, 1993). */
RP_FN double rp_steps_draw_poisson(rp_steps_blocks *s, double m) {
    if (!(m > 0) || m == RP__INF) return m < 0 || m != m ? RP__NONE : m;
    if (m < 10) {
        rp_steps_blocks_next(s);
        const double u = rp_steps_blocks_unit(s, 0);
        double k = 0, p = rp_exp_f64(-m), sum = p;
        for (; u > sum && k < 200; sum += p) {
            k += 1;
            p *= m / k;
        }
        return k;
    }
    const double b = 0.931 + 2.53 * rp_sqrt_f64(m), a = -0.059 + 0.02483 * b;
    const double inverse = rp_log_f64(1.1239 + 1.1328 / (b - 3.4)), sure = 0.9277 - 3.6224 / (b - 2);
    for (int i = 0; i < RP_STEPS_ROUNDS; i++) {
        rp_steps_blocks_next(s);
        const double u = rp_steps_blocks_unit(s, 0) - 0.5, v = rp_steps_blocks_unit(s, 2), edge = 0.5 - rp_fabs_f64(u);
        const double k = rp_floor_f64((2 * a / edge + b) * u + m + 0.43);
        if (edge >= 0.07 && v <= sure) return k;
        if (k < 0 || (edge < 0.013 && v > edge)) continue;
        if (rp_log_f64(v) + inverse - rp_log_f64(a / (edge * edge) + b) <= rp_steps_log_poisson(k, m)) return k;
    }
    return rp_floor_f64(m);
}

/* log of the probability of k of n, 0 < p < 1, by its distance from the mean (C. Loader, 2000). */
RP_FN double rp_steps_factorial_rest(double k) { /* of Stirling's formula, k > 0 */
    return k < 8 ? rp_steps_log_gamma_1p(k) - ((k + 0.5) * rp_log_f64(k) - k + 0.91893853320467274178)
                 : rp_steps_stirling(k);
}
RP_FN double rp_steps_log_binomial(double n, double p, double k) {
    if (k == 0) return n * rp_log1p_f64(-p);
    if (k == n) return n * rp_log_f64(p);
    const double m = n * p, l = n - k, o = n - m;
    const double near = k * rp_steps_log1p_less((m - k) / k, m / k) + l * rp_steps_log1p_less((o - l) / l, o / l);
    const double rest = rp_steps_factorial_rest(n) - rp_steps_factorial_rest(k) - rp_steps_factorial_rest(l);
    return near + rest + 0.5 * rp_log_f64(n / (6.28318530717958647693 * k * l));
}
/* Small means by the distances between successes, others by W. Hoermann's BTRS (J. Stat. Comput. Simul. 46, 1993). */
RP_FN double rp_steps_draw_binomial(rp_steps_blocks *s, double n, double p) {
    if (n != n || p != p) return RP__NONE;
    if (!(n > 0) || !(p > 0)) return 0;
    if (p >= 1 || n == RP__INF) return n;
    const int turned = p > 0.5;
    if (turned) p = 1 - p;
    if (n * p < 10) {
        const double base = rp_log1p_f64(-p);
        double at = 0, k = 0;
        for (int i = 0; i < RP_STEPS_ROUNDS; i++) {
            rp_steps_blocks_next(s);
            at += rp_floor_f64(rp_log_f64(rp_steps_blocks_unit(s, 0)) / base) + 1;
            if (!(at <= n)) break;
            k += 1;
        }
        return turned ? n - k : k;
    }
    const double deviation = rp_sqrt_f64(n * p * (1 - p)), b = 1.15 + 2.53 * deviation,
                 a = -0.0873 + 0.0248 * b + 0.01 * p;
    const double sure = 0.92 - 4.2 / b, alpha = (2.83 + 5.1 / b) * deviation;
    const double most = rp_steps_log_binomial(n, p, rp_floor_f64((n + 1) * p));
    double k = rp_floor_f64(n * p);
    for (int i = 0; i < RP_STEPS_ROUNDS; i++) {
        rp_steps_blocks_next(s);
        const double u = rp_steps_blocks_unit(s, 0) - 0.5, v = rp_steps_blocks_unit(s, 2), edge = 0.5 - rp_fabs_f64(u);
        const double y = rp_floor_f64((2 * a / edge + b) * u + n * p + 0.5);
        if (y < 0 || y > n) continue;
        k = y;
        if (edge >= 0.07 && v <= sure) break;
        if (rp_log_f64(v * alpha / (a / (edge * edge) + b)) <= rp_steps_log_binomial(n, p, y) - most) break;
        k = rp_floor_f64(n * p);
    }
    return turned ? n - k : k;
}

/* ---- all of them; seed, counter and least are read by draws alone */

RP_FN double rp_steps(int function, double a, double b, rp_u64 seed, rp_u64 counter, double least) {
    rp_steps_blocks s;
    s.seed = seed;
    s.counter = counter;
    s.round = 0;
    switch (function) {
    case RP_STEPS_IGAMMA: return rp_steps_igamma(a, b, 0);
    case RP_STEPS_IGAMMAC: return rp_steps_igamma(a, b, 1);
    case RP_STEPS_GAMMA_SLOPE: return rp_steps_gamma_slope(a, b);
    case RP_STEPS_GAMMA: {
        const double y = rp_steps_draw_gamma(&s, a);
        return y < least ? least : y;
    }
    case RP_STEPS_POISSON: return rp_steps_draw_poisson(&s, a);
    case RP_STEPS_BINOMIAL: return rp_steps_draw_binomial(&s, a, b);
    default: return rp_steps_polynomial(function, a, b);
    }
}

#endif
