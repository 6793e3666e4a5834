#!/usr/bin/env python3
"""Derive the polynomial coefficients of src/kernel/cpu/vmath.h.

Needs mpmath. Discrete Remez exchange on a Chebyshev-spaced grid, weighted so that the error is
relative to the function's result; the coefficients are rounded to the target format one by one,
lowest order first, and the rest fitted again after each rounding.

usage: vmath_coeffs.py [NAME...]      prints "NAME: log2(max weighted error)" and hex floats
"""
import sys
import struct
from mpmath import mp, mpf, exp, expm1, log, sin, cos, tanh, sinh, erf, erfc, asin, atan, sqrt, pi, matrix, lu_solve

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
THIRD = mpf(1) / 3 * mpf('1.0001')


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


def erfcx(x):
    return exp(x * x) * erfc(x)


ERFC_K = mpf(4)                                  # t = (x - k) / (x + k) for x in [0.468, 28]
ERFC_LO = (mpf('0.468') - ERFC_K) / (mpf('0.468') + ERFC_K)
ERFC_HI = (28 - ERFC_K) / (28 + ERFC_K)


def erfc_t(t):
    x = ERFC_K * (1 + t) / (1 - t)
    return (1 + 2 * x) * erfcx(x)


def jobs():
    yield 'exp_f32', lambda k: fit(k, 24, -H, H, 5, expq, lambda r: r * r / exp(r))
    yield 'exp2_f32', lambda k: fit(k, 24, -0.5005, 0.5005, 6, exp2q, lambda r: abs(r) / mpf(2) ** r)
    yield 'log_f32', lambda k: fit(k, 24, -THIRD, THIRD, 7, log_p, lambda f: f ** 3 / log(1 + f))
    # about a point near the middle of the range of z = x^2, where the sum's terms are small; the points were searched
    # in steps of 2^-12 so that the first two coefficients lose next to nothing by rounding
    tc, ec = mpf(2249) / 4096, mpf(1927) / 4096
    yield 'tanh_f32', lambda k: fit(k, 24, EPS - tc, 1 - tc, 9, lambda u: tanh(sqrt(u + tc)) / sqrt(u + tc) - 1,
                                    lambda u: sqrt(u + tc) / tanh(sqrt(u + tc)), once=True)
    yield 'erf_f32', lambda k: fit(k, 24, EPS - ec, 1 - ec, 8, lambda u: erf(sqrt(u + ec)) / sqrt(u + ec) - 1,
                                   lambda u: sqrt(u + ec) / erf(sqrt(u + ec)), once=True)
    yield 'erfh_f32', lambda k: fit(k, 24, mpf('-0.195'), mpf('2.8125'), 8, lambda x: -log(erfcx(x + mpf('1.1875'))),
                                    lambda x: erfc(x + mpf('1.1875')))
    yield 'sin_f32', lambda k: fit(k, 53, EPS, Q * Q, 3, lambda z: (sin(sqrt(z)) / sqrt(z) - 1) / z,
                                   lambda z: z * sqrt(z) / sin(sqrt(z)))
    yield 'cos_f32', lambda k: fit(k, 53, EPS, Q * Q, 4, lambda z: (cos(sqrt(z)) - 1) / z, lambda z: z / cos(sqrt(z)))
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
    yield 'erfc_f64', lambda k: fit(k, 53, ERFC_LO, ERFC_HI, 23, erfc_t, lambda t: 1 / erfc_t(t), once=True)


if __name__ == '__main__':
    want = sys.argv[1:]
    for key, job in jobs():
        if not want or key in want:
            job(key)
