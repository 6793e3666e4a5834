#!/usr/bin/env python3
"""Derive the polynomial coefficients of src/kernel/cpu/vmath.h and src/kernel/cuda/support.cuh.

Needs mpmath, and numpy for some f32 forms. Discrete Remez exchange on a Chebyshev-spaced grid,
weighted so that the error is relative to the function's result; where the weight vanishes inside
the range or the exchange stalls, Lawson's reweighted least squares. The coefficients are rounded to
the target format one by one, lowest order first, and the rest fitted again after each rounding.

usage: vmath_coeffs.py [NAME...]      prints "NAME: log2(max weighted error)" and hex floats
"""
import sys
import struct
from mpmath import mp, mpf, exp, expm1, log, sin, cos, tanh, sinh, erf, erfc, asin, atan, sqrt, pi, psi, findroot, matrix, lu_solve, loggamma

mp.prec = 200
LN2 = log(mpf(2))


def round_to(x, bits):
    """Nearest f32/f64 (bits 24/53) as an mpf."""
    if bits == 53:
        return mpf(float(x))
    return mpf(struct.unpack('f', struct.pack('f', float(x)))[0])


def hex_float(c, suffix):
    text = float(c).hex()
    head, tail = text.split('p')
    return (head.rstrip('0').rstrip('.') if '.' in head else head) + 'p' + tail + suffix


def remez(xs, fs, ws, powers):
    """Minimise max |w (f - sum c_k x^p_k)| over the grid; returns (coefficients, error)."""
    n = len(powers)
    m = len(xs)
    idx = [round((m - 1) * (1 - mp.cos(pi * i / n)) / 2) for i in range(n + 1)]
    idx = sorted(set(int(i) for i in idx))
    i = 0
    while len(idx) < n + 1:                      # tiny grids can collapse two nodes
        if i not in idx:
            idx.append(i)
        i += 1
    idx.sort()
    best = None
    for _ in range(12):
        a = matrix(n + 1, n + 1)
        b = matrix(n + 1, 1)
        for r, i in enumerate(idx):
            for c, p in enumerate(powers):
                a[r, c] = xs[i] ** p
            a[r, n] = (-1) ** r / ws[i]
            b[r] = fs[i]
        s = lu_solve(a, b)
        cs = [s[k] for k in range(n)]
        err = []
        for x, f, w in zip(xs, fs, ws):
            v = mpf(0)
            for c, p in zip(cs, powers):
                v += c * x ** p
            err.append(w * (f - v))
        worst = max(abs(e) for e in err)
        if best is None or worst < best[1]:
            best = (cs, worst)
        # one extremum a sign run, then drop the smaller end until n + 1 are left
        ext = []
        for i, e in enumerate(err):
            if ext and (err[ext[-1]] > 0) == (e > 0):
                if abs(e) > abs(err[ext[-1]]):
                    ext[-1] = i
            else:
                ext.append(i)
        while len(ext) > n + 1:
            if abs(err[ext[0]]) < abs(err[ext[-1]]):
                ext.pop(0)
            else:
                ext.pop()
        if len(ext) < n + 1 or ext == idx:
            break
        idx = ext
    return best


def fit(name, bits, lo, hi, n, f, w, once=False):
    """P(x) = sum c_k x^k, k < n, on [lo, hi] against f with weight w; once: round all coefficients of one fit."""
    m = 40 * n
    xs = [(mpf(lo) + hi) / 2 - (mpf(hi) - lo) / 2 * mp.cos(pi * (2 * i + 1) / (2 * m)) for i in range(m)]
    ws = [mpf(w(x)) for x in xs]
    fs = [mpf(f(x)) for x in xs]
    rest = list(fs)
    out = []
    for k in range(n):
        if not once or not k:
            cs, _ = remez(xs, rest, ws, list(range(k, n)))
        c = round_to(cs[k if once else 0], bits)
        if once and not k:
            print('%s: low part of the first: %s' % (name, float(cs[0] - c).hex()))
        out.append(c)
        rest = [r - c * x ** k for r, x in zip(rest, xs)]
    worst = max(abs(r * w_) for r, w_ in zip(rest, ws))
    print('%s: 2^%.1f' % (name, float(mp.log(worst, 2))))
    suffix = 'f' if bits == 24 else ''
    print('   ' + ', '.join(hex_float(c, suffix) for c in out))
    sys.stdout.flush()


def lawson(name, lo, hi, n, f, w):
    """The same minimax problem as fit() in f32, by least squares whose weights follow the error."""
    import numpy as np
    m = 600
    k = np.arange(m)
    xs = (lo + hi) / 2 - (hi - lo) / 2 * np.cos(np.pi * (2 * k + 1) / (2 * m))
    ws = np.array([abs(float(w(mpf(float(x))))) for x in xs])
    rest = np.array([float(f(mpf(float(x)))) for x in xs])
    out = []
    for first in range(n):
        a = np.array([[x ** p for p in range(first, n)] for x in xs])
        scale = np.abs(a).max(0)
        lam = np.ones(m) / m
        best = None
        for _ in range(200):
            root = np.sqrt(lam) * ws
            c = np.linalg.lstsq(a / scale * root[:, None], rest * root, rcond=None)[0]
            e = np.abs(ws * (rest - a / scale @ c))
            if best is None or e.max() < best[1]:
                best = (c / scale, e.max())
            lam *= e / e.max() + 1e-12
            lam /= lam.sum()
        out.append(round_to(best[0][0], 24))
        rest = rest - float(out[-1]) * xs ** first
    print('%s: 2^%.1f' % (name, np.log2(np.abs(ws * rest).max())))
    print('   ' + ', '.join(hex_float(c, 'f') for c in out))
    sys.stdout.flush()


def log_r(z):
    """log((1+s)/(1-s)) = 2s + s R(z), R = z P(z), z = s^2; this is P."""
    s = sqrt(z)
    return (log((1 + s) / (1 - s)) - 2 * s) / (s * z)


def log2_t(z):
    """Third and later terms of log((1+s)/(1-s)) / (2s) = 1 + z/3 + z^2 P(z)."""
    s = sqrt(z)
    return (log((1 + s) / (1 - s)) / (2 * s) - 1 - z / 3) / (z * z)


H = LN2 / 2 * mpf('1.001')
Q = pi / 4 * mpf('1.0001')
ZL = (sqrt(mpf(2)) - 1) ** 2 / (sqrt(mpf(2)) + 1) ** 2 * mpf('1.0001')
EPS = mpf(2) ** -60
Z = float((pi / 4) ** 2 * mpf('1.0005'))


def expq(r):
    with mp.workprec(400):
        return (exp(r) - 1 - r) / (r * r)


def exp2q(r):
    with mp.workprec(400):
        return (mpf(2) ** r - 1) / r


def log_p(f):
    """log(1 + f) = f - f^2 / 2 + f^3 P(f)."""
    with mp.workprec(400):
        return (log(1 + f) - f + f * f / 2) / f ** 3


def odd(f):
    """P of f(x) = x + x^3 P(x^2)."""
    def p(z):
        with mp.workprec(400):
            return (f(sqrt(z)) / sqrt(z) - 1) / z
    return p


def cos_c(z):
    """cos x = 1 - x^2 / 2 + x^4 P(x^2)."""
    with mp.workprec(400):
        return (cos(sqrt(z)) - 1 + z / 2) / z ** 2


def erfcx(x):
    return exp(x * x) * erfc(x)


def gamma_p(t):
    with mp.workprec(400):
        return loggamma(t + mpf('1.5')) / ((t + mpf('0.5')) * (t - mpf('0.5')))


PSI_ROOT = findroot(lambda x: psi(0, x), mpf('1.46'))


def digamma_p(t):
    with mp.workprec(400):
        return psi(0, t + mpf('1.5')) / (t + mpf('1.5') - PSI_ROOT)


def erfinv_near(t):
    """erfinv(x) / x of w = -log(1 - x^2), t = w - 2.5."""
    with mp.workprec(400):
        x = sqrt(1 - exp(-(mpf(t) + mpf('2.5'))))
        return mp.erfinv(x) / x if x else 1 / sqrt(4 / pi)


def erfinv_far(t):
    """The same of the square root of w, t = sqrt(w) - 3."""
    return erfinv_near((mpf(t) + 3) ** 2 - mpf('2.5'))


def erfinv_of(centre):
    """The same of the root of w, around the root `centre`."""
    return lambda t: erfinv_near((mpf(t) + centre) ** 2 - mpf('2.5'))


def log_over(base):
    """log(1 + f) / f to a base."""
    def p(f):
        with mp.workprec(400):
            return log(1 + f) / (f * log(mpf(base)))
    return p


def ratio(p):
    """The weight of an error relative to what p is a factor of."""
    return lambda x: 1 / p(x)


def erfc_short(t):
    """e^(x^2) erfc(x) of t = (x - 2.5) / (x + 2.5)."""
    return erfcx(mpf('2.5') * (1 + t) / (1 - t))


ERFC_K = mpf(4)                                  # t = (x - k) / (x + k) for x in [0.468, 28]
ERFC_LO = (mpf('0.468') - ERFC_K) / (mpf('0.468') + ERFC_K)
ERFC_HI = (28 - ERFC_K) / (28 + ERFC_K)


def erfc_t(t):
    x = ERFC_K * (1 + t) / (1 - t)
    return (1 + 2 * x) * erfcx(x)


def jobs():
    yield 'exp_f32', lambda k: fit(k, 24, -H, H, 5, expq, lambda r: r * r / exp(r))
    yield 'exp2_f32', lambda k: fit(k, 24, -0.5005, 0.5005, 6, exp2q, lambda r: abs(r) / mpf(2) ** r)
    # of src/kernel/cpu/isa/attention_dots.h
    yield 'exp2_dots', lambda k: fit(k, 24, -0.5005, 0.5005, 5, exp2q, lambda r: abs(r) / mpf(2) ** r)
    yield 'log_f32', lambda k: lawson(k, -1.0001 / 3, 1.0001 / 3, 8, log_p, lambda f: f ** 3 / log(1 + f))
    yield 'sin_f32', lambda k: lawson(k, 1e-9, Z, 3, odd(sin), lambda z: z * sqrt(z) / sin(sqrt(z)))
    yield 'cos_f32', lambda k: lawson(k, 1e-9, Z, 3, cos_c, lambda z: z * z / cos(sqrt(z)))
    yield 'tanh_f32', lambda k: lawson(k, 1e-9, 1.0001, 7, odd(tanh), lambda z: z * sqrt(z) / tanh(sqrt(z)))
    yield 'erf_f32', lambda k: lawson(k, 1e-9, 1.0001, 7, lambda z: erf(sqrt(z)) / sqrt(z) - 1,
                                      lambda z: sqrt(z) / erf(sqrt(z)))
    yield 'erfg_f32', lambda k: lawson(k, 0.9999, 4, 6, lambda x: -log(erfc(x)) / x - 1,
                                       lambda x: x * erfc(x) / erf(x))
    yield 'asin_f32', lambda k: lawson(k, 1e-9, 0.25001, 5, odd(asin), lambda z: z * sqrt(z) / asin(sqrt(z)))
    yield 'atan_f32', lambda k: lawson(k, 1e-9, 1.0001, 9, odd(atan), lambda z: z * sqrt(z) / atan(sqrt(z)))
    yield 'erfinv_f32', lambda k: lawson(k, -2.5, 2.5, 10, erfinv_near, lambda t: 1 / erfinv_near(t))
    yield 'erfinvfar_f32', lambda k: lawson(k, -0.8, 1.01, 10, erfinv_far, lambda t: 1 / erfinv_far(t))
    # of src/kernel/cuda/support.cuh: log2(erfc x) / x
    yield 'erfp1', lambda k: lawson(k, 1e-9, 4, 8, lambda x: log(erfc(x)) / LN2 / x, lambda x: x * erfc(x) * LN2)
    # of the same: psi(x) = (x - root) P(x - 1.5) on [1, 2]
    yield 'digamma_f32', lambda k: fit(k, 24, mpf(-0.5), mpf(0.5), 11, digamma_p, lambda t: 1 / digamma_p(t), once=True)
    # those of the tangent, in f64
    yield 'sin_short', lambda k: fit(k, 53, EPS, Q * Q, 3, lambda z: (sin(sqrt(z)) / sqrt(z) - 1) / z,
                                     lambda z: z * sqrt(z) / sin(sqrt(z)))
    yield 'cos_short', lambda k: fit(k, 53, EPS, Q * Q, 4, lambda z: (cos(sqrt(z)) - 1) / z, lambda z: z / cos(sqrt(z)))
    # of f32 functions that are computed in f64
    third = mpf('1.0001') / 3
    yield 'exp_short', lambda k: fit(k, 53, -H, H, 7, expq, lambda r: r * r / exp(r))
    yield 'exp2_short', lambda k: fit(k, 53, -0.5005, 0.5005, 8, exp2q, lambda r: abs(r) / mpf(2) ** r)
    yield 'log2_short', lambda k: fit(k, 53, -third, third, 14, log_over(2), ratio(log_over(2)), once=True)
    yield 'log10_short', lambda k: fit(k, 53, -third, third, 14, log_over(10), ratio(log_over(10)), once=True)
    yield 'pow_short', lambda k: fit(k, 53, -third, third, 17, log_over(2), ratio(log_over(2)), once=True)
    yield 'erfc_short', lambda k: fit(k, 53, mpf(-1), mpf('7.7') / mpf('12.7'), 14, erfc_short, ratio(erfc_short), once=True)
    yield 'sinh_short', lambda k: fit(k, 53, EPS, mpf(1), 5, lambda z: (sinh(sqrt(z)) / sqrt(z) - 1) / z,
                                      lambda z: z * sqrt(z) / sinh(sqrt(z)))
    yield 'exp_f64', lambda k: fit(k, 53, -H, H, 10, expq, lambda r: r * r / exp(r))
    yield 'exp2_f64', lambda k: fit(k, 53, -0.5005, 0.5005, 12, exp2q, lambda r: abs(r) / mpf(2) ** r)
    yield 'log_f64', lambda k: fit(k, 53, EPS, ZL, 7, log_r, lambda z: z / 2)
    yield 'pow_f64', lambda k: fit(k, 53, EPS, ZL, 8, log2_t, lambda z: z * z)
    yield 'sin_f64', lambda k: fit(k, 53, EPS, Q * Q, 6, lambda z: (sin(sqrt(z)) / sqrt(z) - 1) / z,
                                   lambda z: z * sqrt(z) / sin(sqrt(z)))
    yield 'cos_f64', lambda k: fit(k, 53, EPS, Q * Q, 6, lambda z: (cos(sqrt(z)) - 1 + z / 2) / (z * z),
                                   lambda z: z * z / cos(sqrt(z)))
    yield 'sinh_f64', lambda k: fit(k, 53, EPS, mpf(1), 8, lambda z: (sinh(sqrt(z)) / sqrt(z) - 1) / z,
                                    lambda z: z * sqrt(z) / sinh(sqrt(z)))
    yield 'atan_f64', lambda k: fit(k, 53, EPS, (sqrt(mpf(2)) - 1) ** 2 * mpf('1.0001'), 13,
                                    lambda z: (atan(sqrt(z)) / sqrt(z) - 1) / z,
                                    lambda z: z * sqrt(z) / atan(sqrt(z)))
    yield 'asin_f64', lambda k: fit(k, 53, EPS, mpf('0.25001'), 14,
                                    lambda z: (asin(sqrt(z)) / sqrt(z) - 1) / z,
                                    lambda z: z * sqrt(z) / asin(sqrt(z)))
    yield 'erf_f64', lambda k: fit(k, 53, EPS, mpf('0.7225'), 13, lambda z: erf(sqrt(z)) / sqrt(z) - 1,
                                   lambda z: sqrt(z) / erf(sqrt(z)))
    yield 'erfg_f64', lambda k: fit(k, 53, mpf('0.8499'), mpf(6), 19, lambda x: -log(erfc(x)) / x - 1,
                                    lambda x: x * erfc(x) / erf(x), once=True)
    yield 'erfinv_f64', lambda k: fit(k, 53, mpf('-2.5'), mpf('2.5'), 22, erfinv_near, ratio(erfinv_near), once=True)
    for name, centre, half, n in ('erfinvmid_f64', '3.125', '0.9', 20), ('erfinvfar_f64', '5.0625', '1.06', 18):
        yield name, lambda k, f=erfinv_of(mpf(centre)), h=mpf(half), n=n: fit(k, 53, -h, h, n, f, ratio(f), once=True)
    # log gamma(x) = (x - 1) (x - 2) P(x - 1.5)
    yield 'lgamma_f64', lambda k: fit(k, 53, mpf(-0.5), mpf(0.5), 21, gamma_p, lambda t: 1 / gamma_p(t), once=True)
    yield 'erfc_f64', lambda k: fit(k, 53, ERFC_LO, ERFC_HI, 23, erfc_t, lambda t: 1 / erfc_t(t), once=True)


if __name__ == '__main__':
    want = sys.argv[1:]
    for key, job in jobs():
        if not want or key in want:
            job(key)
