/* Put between the prelude and every emitted kernel: random numbers, error records, integer and float division with Python's
 * rounding. Plain C over the prelude. */

/* Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC11): Philox4x32-10 */
RP_FN void rp_philox_at(rp_u64 seed, rp_u64 counter, rp_u32 third, rp_u32 *x) {
    rp_u32 k0 = (rp_u32)seed, k1 = (rp_u32)(seed >> 32);
    x[0] = (rp_u32)counter;
    x[1] = (rp_u32)(counter >> 32);
    x[2] = third;
    x[3] = 0;
    _Pragma("unroll") for (int round = 0; round < 10; round++) {
        const rp_u32 h0 = rp_mulhi_u32(0xD2511F53u, x[0]), l0 = 0xD2511F53u * x[0];
        const rp_u32 h1 = rp_mulhi_u32(0xCD9E8D57u, x[2]), l1 = 0xCD9E8D57u * x[2];
        x[0] = h1 ^ x[1] ^ k0;
        x[1] = l1;
        x[2] = h0 ^ x[3] ^ k1;
        x[3] = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

RP_FN void rp_philox(rp_u64 seed, rp_u64 counter, rp_u32 *x) { rp_philox_at(seed, counter, 0, x); }

/* state: {seed, base} in device memory for captured draws, else null */
RP_FN void rp_random_words(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 number, rp_u32 *x) {
    const volatile rp_u64 *s = (const volatile rp_u64 *)state;
    rp_u64 base = 0;
    if (s) {
        seed = s[0];
        base = s[1];
    }
    rp_philox(seed, base + inner + (rp_u64)number, x);
}

RP_FN rp_u32 rp_pick(const rp_u32 *x, int k) { return k == 0 ? x[0] : k == 1 ? x[1] : k == 2 ? x[2] : x[3]; }

RP_FN rp_i64 rp_random_word(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 i) {
    rp_u32 x[4];
    rp_random_words(state, seed, inner, i >> 2, x);
    return (rp_i64)rp_pick(x, (int)(i & 3));
}

RP_FN rp_i64 rp_random_word64(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 i) {
    rp_u32 x[4];
    rp_random_words(state, seed, inner, i >> 1, x);
    return (rp_i64)(i & 1 ? (rp_u64)x[2] << 32 | x[3] : (rp_u64)x[0] << 32 | x[1]);
}

RP_FN float rp_random_normal_f32(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 i) {
    rp_u32 x[4];
    rp_random_words(state, seed, inner, i >> 2, x);
    const rp_u32 a = i & 2 ? x[2] : x[0], b = i & 2 ? x[3] : x[1];
    const double u1 = ((double)a + 1.0) * 2.3283064365386963e-10, u2 = (double)b * 2.3283064365386963e-10;
    const double m = rp_sqrt_f64(-2.0 * rp_log_f64(u1)), angle = 6.283185307179586 * u2;
    return (float)(m * (i & 1 ? rp_sin_f64(angle) : rp_cos_f64(angle)));
}

RP_FN double rp_random_normal_f64(rp_u64 state, rp_u64 seed, rp_u64 inner, rp_i64 i) {
    rp_u32 x[4];
    rp_random_words(state, seed, inner, i >> 1, x);
    const double u1 = ((double)(((rp_u64)x[0] << 32 | x[1]) >> 11) + 1.0) * 1.1102230246251565e-16;
    const double u2 = (double)(((rp_u64)x[2] << 32 | x[3]) >> 11) * 1.1102230246251565e-16;
    const double m = rp_sqrt_f64(-2.0 * rp_log_f64(u1)), angle = 6.283185307179586 * u2;
    return m * (i & 1 ? rp_sin_f64(angle) : rp_cos_f64(angle));
}

/* 1 + erf(x) = erfc(-x). erfc(a) = 2^(a P(a)) for a >= 0, absolutely within 2^-25.9 on [0, 4] before rounding (weighted minimax
 * fit of scripts/vmath_coeffs.py, "erfp1"); beyond, P falls on and the result is 0. */
RP_FN float rp_erfp1_f32(float x) {
    const float a = rp_fabs_f32(x);
    float p = rp_bits_f32(0xb83e46bcu);
    p = rp_fma_f32(p, a, rp_bits_f32(0x39e99911u));
    p = rp_fma_f32(p, a, rp_bits_f32(0xbac33da2u));
    p = rp_fma_f32(p, a, rp_bits_f32(0xba4b0296u));
    p = rp_fma_f32(p, a, rp_bits_f32(0x3ce773ceu));
    p = rp_fma_f32(p, a, rp_bits_f32(0xbe180b87u));
    p = rp_fma_f32(p, a, rp_bits_f32(0xbf6b1d57u));
    p = rp_fma_f32(p, a, rp_bits_f32(0xbfd05f4fu));
    const float tail = rp_exp2_approx_f32(p * a);
    return x < 0 ? tail : 2.0f - tail;
}
/* What RP_NUMBERS_FAST allows (src/kernel/relax.h). */
RP_FN float rp_exp_approx_f32(float x) { return rp_exp2_approx_f32(x * rp_bits_f32(0x3fb8aa3bu)); }
RP_FN float rp_sigmoid_approx_f32(float x) { return rp_recip_approx_f32(1.0f + rp_exp_approx_f32(-x)); }
/* An odd polynomial near 0, where 1 - 2 / (1 + e^2x) has lost its digits. */
RP_FN float rp_tanh_approx_f32(float x) {
    const float z = x * x;
    float p = rp_fma_f32(rp_bits_f32(0x3cb327a4u), z, rp_bits_f32(0xbd5d0dd1u));
    p = rp_fma_f32(p, z, rp_bits_f32(0x3e088889u));
    p = rp_fma_f32(p, z, rp_bits_f32(0xbeaaaaabu));
    p = rp_fma_f32(p * z, x, x);
    const float far = 1.0f - 2.0f * rp_recip_approx_f32(1.0f + rp_exp_approx_f32(x + x));
    return rp_fabs_f32(x) < 0.3f ? p : far;
}

RP_FN double rp_erfp1_f64(double x) { return rp_erf_f64(x) + 1; }

/* psi, by recurrence up to 10 and an asymptotic series; below 0 by reflection. A pole at 0 has the sign of -x, others are NaN. */
RP_FN double rp_digamma_f64(double x) {
    if (x == 0) return rp_copysign_f64(1 / rp_fabs_f64(x), -x);
    double a = x < 0 ? 1 - x : x, sum = 0;
    for (; a < 10; a += 1) sum += 1 / a;
    const double i = 1 / a, z = i * i;
    double p = (1.0 / 12 * z - 691.0 / 32760) * z + 1.0 / 132;
    p = ((p * z - 1.0 / 240) * z + 1.0 / 252) * z - 1.0 / 120;
    double y = ((rp_log_f64(a) - 0.5 * i) - z * (p * z + 1.0 / 12)) - sum;
    if (x < 0)
        y = x == rp_floor_f64(x)
                ? rp_bits_f64(0x7ff8000000000000ull)
                : y - 3.14159265358979323846 / rp_tan_f64(3.14159265358979323846 * (x - rp_rint_f64(x)));
    return x > 0 && 1 / x == 0 ? x : y;
}
/* From 0 on in f32, a quarter of the time: psi(x) = (x - root) P(x - 3/2) on [1, 2], with the root in two parts so that nothing is lost
 * near it (P: scripts/vmath_coeffs.py), by recurrence from there below 1 and up to 4, the series beyond. */
RP_FN float rp_digamma_f32(float x) {
    if (x <= 0) return (float)rp_digamma_f64(x);
    if (!(x < 4)) {
        const float i = 1 / x, z = i * i;
        const float p = z * (1.0f / 12 - z * (1.0f / 120 - z * (1.0f / 252 - z * (1.0f / 240 - z * (1.0f / 132)))));
        return (rp_log_f32(x) - 0.5f * i) - p;
    }
    const float t = x - (x < 1 ? 0.5f : x > 3 ? 3.5f : x > 2 ? 2.5f : 1.5f);
    float p = rp_fma_f32(rp_bits_f32(0x3c362bb1u), t, rp_bits_f32(0xbc8637cdu));
    p = rp_fma_f32(p, t, rp_bits_f32(0x3c8b1a44u));
    p = rp_fma_f32(p, t, rp_bits_f32(0xbcd332c8u));
    p = rp_fma_f32(p, t, rp_bits_f32(0x3d27711fu));
    p = rp_fma_f32(p, t, rp_bits_f32(0xbd7e2f8du));
    p = rp_fma_f32(p, t, rp_bits_f32(0x3dc285f7u));
    p = rp_fma_f32(p, t, rp_bits_f32(0xbe17f5dau));
    p = rp_fma_f32(p, t, rp_bits_f32(0x3e7650ceu));
    p = rp_fma_f32(p, t, rp_bits_f32(0xbed8e5b4u));
    p = rp_fma_f32(p, t, rp_bits_f32(0x3f737866u));
    const float far = (t - rp_bits_f32(0xbd1d279du)) - rp_bits_f32(0x30ad7c7fu);
    const float above = x < 1 ? -1.0f : x > 3 ? 2 * x - 3 : x > 2 ? 1.0f : 0.0f;
    const float below = x < 1 ? x : x > 3 ? (x - 1) * (x - 2) : x - 1;
    return far * p + (x < 1 || x > 2 ? above / below : 0.0f);
}

/* q^-s. The squares of trigamma, which is the slope of digamma, are a product each; where s is a literal nothing else is left. */
RP_FN double rp__zeta_term(double s, double q) { return s == 2 ? 1 / (q * q) : rp_pow_f64(q, -s); }

/* Hurwitz' zeta of s > 1 at q > 0: ten terms and the Euler-Maclaurin sum of the others. */
RP_FN double rp__zeta_above(double s, double q) {
    const double factor[8] = {1.0 / 12,
                              -1.0 / 720,
                              1.0 / 30240,
                              -1.0 / 1209600,
                              1.0 / 47900160,
                              -691.0 / 1307674368000.0,
                              1.0 / 74724249600.0,
                              -3617.0 / 10670622842880000.0};
    const double w = q + 10;
    double sum = rp__zeta_term(s, q);
    for (int k = 1; k < 10; k++) sum += rp__zeta_term(s, q + k);
    const double b = rp__zeta_term(s, w), z = 1 / (w * w);
    double rest = (s == 2 ? 1 / w : b > 1e-290 ? b * w : rp_pow_f64(w, 1 - s)) / (s - 1) + 0.5 * b, term = b * s / w;
    for (int k = 0; k < 8; k++) {
        rest += factor[k] * term;
        term *= (s + (2 * k + 1)) * (s + (2 * k + 2)) * z;
    }
    return rest == rest ? sum + rest : sum; /* of large s what underflowed and what overflowed */
}
/* For whole s below 0 too: the terms up to 0 are those of two other sums. */
RP_FN double rp_zeta_f64(double s, double q) {
    const double inf = rp_bits_f64(0x7ff0000000000000ull), none = rp_bits_f64(0x7ff8000000000000ull);
    if (s != s || q != q) return s + q;
    if (s <= 1) return s == 1 ? inf : none;
    if (s == 2 && q != rp_floor_f64(q)) { /* one sum for either sign, so that a warp with both has one: by reflection */
        const double sum = rp__zeta_above(2, q > 0 ? q : 1 - q);
        if (q > 0) return sum;
        const double root = 3.14159265358979323846 / rp_sin_f64(3.14159265358979323846 * (q - rp_rint_f64(q)));
        return root * root - sum;
    }
    if (q > 0) return q == inf ? 0 : rp__zeta_above(s, q);
    const double f = rp_floor_f64(q);
    if (q == f) return inf;
    if (s != rp_floor_f64(s)) return none;
    const double part = q - f, ends = rp__zeta_above(s, 1 - part) - rp__zeta_above(s, 1 - part - f), half = s * 0.5;
    return rp__zeta_above(s, part) + (half == rp_floor_f64(half) ? ends : -ends);
}
/* The squares in f32: five terms, and the sum of the others. */
RP_FN float rp_zeta_f32(float s, float q) {
    if (s != 2 || !(q > 0)) return (float)rp_zeta_f64(s, q);
    float sum = 0;
    _Pragma("unroll") for (int k = 4; k >= 0; k--) {
        const float term = 1 / (q + (float)k);
        sum += term * term;
    }
    const float i = 1 / (q + 5), z = i * i;
    return sum + (i + z * (0.5f + i * (1.0f / 6 - z * (1.0f / 30 - z * (1.0f / 42 - z * (1.0f / 30))))));
}

/* The bits of a number count up away from zero. */
RP_FN float rp_nextafter_f32(float x, float y) {
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    if (x == 0) return rp_copysign_f32(rp_bits_f32(1), y);
    return rp_bits_f32(rp_f32_bits(x) + ((x < y) != (x < 0) ? 1u : 0xffffffffu));
}
RP_FN double rp_nextafter_f64(double x, double y) {
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    if (x == 0) return rp_copysign_f64(rp_bits_f64(1), y);
    return rp_bits_f64(rp_f64_bits(x) + ((x < y) != (x < 0) ? 1ull : ~0ull));
}

/* Shifts by b modulo the width, and Euclid on magnitudes. */
#define RP__INTEGERS(t, T, U, width)                                                                                   \
    RP_FN T rp_shl_##t(T a, T b) { return (T)((U)a << (b & (width - 1))); }                                            \
    RP_FN T rp_shr_##t(T a, T b) { return (T)(a >> (b & (width - 1))); }                                               \
    RP_FN T rp_gcd_##t(T a, T b) {                                                                                     \
        U x = a < 0 ? (U)0 - (U)a : (U)a, y = b < 0 ? (U)0 - (U)b : (U)b;                                              \
        while (y) {                                                                                                    \
            const U r = x % y;                                                                                         \
            x = y;                                                                                                     \
            y = r;                                                                                                     \
        }                                                                                                              \
        return (T)x;                                                                                                   \
    }
RP__INTEGERS(i32, rp_i32, rp_u32, 32)
RP__INTEGERS(i64, rp_i64, rp_u64, 64)
RP__INTEGERS(u8, rp_u8, rp_u8, 8)

/* the record of device/error_record.h: the first error wins */
RP_FN void rp_report(rp_u64 record, rp_u64 tag, rp_u64 code, rp_i64 index, rp_i64 bound) {
    volatile rp_u64 *r = (volatile rp_u64 *)record;
    if (rp_atomic_cas_u64((rp_u64 *)record, 0, 1) == 0) {
        r[1] = code;
        r[2] = tag;
        r[3] = (rp_u64)index;
        r[4] = (rp_u64)bound;
        rp_threadfence_system();
        r[0] = 2;
    }
}

RP_FN float rp_floordiv_f32(float a, float b) {
    if (b == 0) return a / b;
    float m = rp_fmod_f32(a, b), d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) d -= 1;
    if (d == 0) return rp_copysign_f32(0, a / b);
    float f = rp_floor_f32(d);
    return d - f > 0.5f ? f + 1 : f;
}

RP_FN double rp_floordiv_f64(double a, double b) {
    if (b == 0) return a / b;
    double m = rp_fmod_f64(a, b), d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) d -= 1;
    if (d == 0) return rp_copysign_f64(0, a / b);
    double f = rp_floor_f64(d);
    return d - f > 0.5 ? f + 1 : f;
}

/* Places and sizes: a machine has no instruction for either division, and that of 32 bits takes a quarter of the other's. */
RP_FN int rp_is_short(rp_i64 a, rp_i64 b) { return (((rp_u64)a | (rp_u64)b) >> 32) == 0 && b != 0; }

/* a / b of many a by one b: the estimate by the inverse is one too low at most. By 0, the size of a dim without elements, nothing is divided. */
RP_FN rp_u32 rp_inverse(rp_u32 b) { return b ? 0xffffffffu / b : 0; }
RP_FN rp_u32 rp_share(rp_u32 a, rp_u32 b, rp_u32 inverse) {
    const rp_u32 q = rp_mulhi_u32(a, inverse);
    return a - q * b >= b ? q + 1 : q;
}

RP_FN rp_i64 rp_floordiv_i64(rp_u64 record, rp_u64 tag, rp_i64 a, rp_i64 b) {
    if (rp_is_short(a, b)) return (rp_i64)((rp_u32)a / (rp_u32)b);
    if (b == 0) {
        rp_report(record, tag, 2, a, 0);
        return 0;
    }
    if (b == -1) return (rp_i64)(0 - (rp_u64)a);
    const rp_i64 q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

RP_FN float rp_remainder_f32(float a, float b) {
    float m = rp_fmod_f32(a, b);
    return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}

RP_FN double rp_remainder_f64(double a, double b) {
    double m = rp_fmod_f64(a, b);
    return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}

RP_FN rp_i64 rp_remainder_i64(rp_u64 record, rp_u64 tag, rp_i64 a, rp_i64 b) {
    if (rp_is_short(a, b)) return (rp_i64)((rp_u32)a % (rp_u32)b);
    if (b == 0) rp_report(record, tag, 2, a, 0);
    if (b == 0 || b == -1) return 0;
    const rp_i64 m = a % b;
    return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}

RP_FN rp_i64 rp_check_index(rp_u64 record, rp_u64 tag, rp_i64 index, rp_i64 bound, int wrap) {
    const rp_i64 at = wrap && index < 0 ? index + bound : index;
    if (at >= 0 && at < bound) return at;
    rp_report(record, tag, 1, index, bound);
    return 0;
}
