#!/usr/bin/env python3
"""Prints the Chebyshev series of src/ops/bessel.c and src/ops/special.c: functions interpolated with 40 digits, terms below 1e-18 of the
largest left out; and the coefficients of Temme's expansion in src/kernel/steps.h (temme).
usage: scripts/special_coeffs.py [NAME]   (needs mpmath)"""
import sys
from fractions import Fraction

from mpmath import airyai, airybi, besseli, besselj, besselk, bessely, cos, erfc, erfinv, exp, inf, log, mp, mpf, pi, sin, sqrt

mp.dps = 40


def terms(f, n):
    nodes = [cos(pi * (k + mpf(1) / 2) / n) for k in range(n)]
    values = [f(u) for u in nodes]
    c = [2 * sum(v * cos(j * pi * (k + mpf(1) / 2) / n) for k, v in enumerate(values)) / n for j in range(n)]
    c[0] /= 2
    largest = max(abs(t) for t in c)
    while abs(c[-1]) < largest * mpf(10) ** -18:
        c.pop()
    if len(c) > n - 4:
        raise SystemExit("more nodes")
    return c


def near(f, end):
    """of x = sqrt(end (u + 1) / 2): even functions"""
    return lambda u: f(sqrt(end * (u + 1) / 2))


def hankel(order, part):
    """u = 128 / x^2 - 1: P or 8 Q / x's Q of J = sqrt(2 / (pi x)) (P cos(t) - 8 / x Q sin(t)), t = x - (2 order + 1) pi / 4"""
    def f(u):
        x = sqrt(128 / (u + 1))
        t, size = x - (2 * order + 1) * pi / 4, sqrt(pi * x / 2)
        j, y = besselj(order, x), bessely(order, x)
        return size * (j * cos(t) + y * sin(t)) if part == "p" else size * (y * cos(t) - j * sin(t)) * x / 8
    return f


def ndtri_tail(low, high):
    """minus ndtri(e^(-r^2)) / r over low <= r <= high"""
    def f(u):
        r = (low + high) / 2 + (high - low) / 2 * u
        p, mp.dps = exp(-r * r), 60
        x = sqrt(2 * max(r * r - log(2 * sqrt(pi) * max(r, 1)), mpf(1)))
        for _ in range(60):  # Newton for log of the tail
            tail = erfc(x / sqrt(2)) / 2
            step = (log(tail) + r * r) * tail / (exp(-x * x / 2) / sqrt(2 * pi))
            x += step
            if abs(step) < mpf(10) ** -45:
                break
        mp.dps = 40
        return x / r
    return f


def airy_right(u):
    """s = (u + 1) / 2 = zeta(2) / zeta(x), zeta = 2/3 x^(3/2): Ai(x) e^zeta x^(1/4) 2 sqrt(pi)"""
    zeta = mpf(4) * sqrt(mpf(2)) / 3 / ((u + 1) / 2)
    x = (zeta * 3 / 2) ** (mpf(2) / 3)
    return airyai(x) * exp(zeta) * sqrt(sqrt(x)) * 2 * sqrt(pi)


def airy_left(part):
    """(u + 1) / 2 = (zeta(5) / zeta(x))^2: P or Q zeta / zeta(5) of Ai(-x) = (P cos(t) + Q sin(t)) / (sqrt(pi) x^(1/4)), t = zeta - pi / 4"""
    def f(u):
        zeta = mpf(10) * sqrt(mpf(5)) / 3 / sqrt((u + 1) / 2)
        x = (zeta * 3 / 2) ** (mpf(2) / 3)
        t, size = zeta - pi / 4, sqrt(pi) * sqrt(sqrt(x))
        a, b = airyai(-x), airybi(-x)
        return size * (a * cos(t) - b * sin(t)) if part == "p" else size * (a * sin(t) + b * cos(t)) * zeta / (mpf(10) * sqrt(mpf(5)) / 3)
    return f


def temme(rows, terms):
    """Of the k-th row the powers of eta; 1 + mu is x / a and eta^2 / 2 = mu - log(1 + mu)."""
    n = terms + 2 * rows + 4
    mu = [Fraction(0), Fraction(1)]
    for k in range(2, n + 2):
        mu.append((mu[k - 1] - sum(mu[i] * (k + 1 - i) * mu[k + 1 - i] for i in range(2, k))) / (k + 1))
    under = [Fraction(1)]  # eta / mu
    for k in range(1, n):
        under.append(-sum(mu[i + 1] * under[k - i] for i in range(1, k + 1)))
    row = under[1:]
    for _ in range(rows):
        print("{" + ", ".join(repr(float(c)) for c in row[:terms]) + "},")
        row = [(k + 2) * row[k + 2] - row[1] * under[k + 1] for k in range(len(row) - 3)]


SERIES = {
    "airy_near": (lambda u: airyai((7 * u - 3) / 2), 50),
    "airy_right": (airy_right, 70),
    "airy_left_p": (airy_left("p"), 50),
    "airy_left_q": (airy_left("q"), 50),
    "erfcx_series": (lambda u: (1 + 2 * x_of(u)) * scaled_erfc(x_of(u)), 60),
    "ndtri_middle": (lambda u: sqrt(2) * erfinv(2 * q_of(u)) / q_of(u), 60),
    "ndtri_tail": (ndtri_tail(mpf("1.6"), mpf(5)), 60),
    "ndtri_far": (ndtri_tail(mpf(5), mpf(28)), 70),
    "j0_near": (near(lambda x: besselj(0, x), 64), 40),
    "j1_near": (near(lambda x: besselj(1, x) / x, 64), 40),
    "y0_near": (near(lambda x: bessely(0, x) - 2 / pi * log(x) * besselj(0, x), 64), 40),
    "y1_near": (near(lambda x: (bessely(1, x) - 2 / pi * (log(x) * besselj(1, x) - 1 / x)) / x, 64), 40),
    **{f"{p}{n}_far": (hankel(n, p), 60) for n in (0, 1) for p in "pq"},
    "i0_small": (near(lambda x: besseli(0, x), 4), 30),
    "i1_small": (near(lambda x: besseli(1, x) / x, 4), 30),
    "k0_near": (near(lambda x: besselk(0, x) + log(x / 2) * besseli(0, x), 4), 30),
    "k1_near": (near(lambda x: (besselk(1, x) - log(x / 2) * besseli(1, x)) * x, 4), 30),
    "k0_far": (lambda u: (lambda x: besselk(0, x) * exp(x) * sqrt(x))(4 / (u + 1)), 60),
    "k1_far": (lambda u: (lambda x: besselk(1, x) * exp(x) * sqrt(x))(4 / (u + 1)), 60),
}


def x_of(u):
    return mpf("3.75") * (1 + u) / (1 - u)


def q_of(u):
    return mpf("0.425") * sqrt((u + 1) / 2)


def scaled_erfc(x):
    mp.dps, old = 60, mp.dps
    y = erfc(x) * exp(x * x)
    mp.dps = old
    return y


if "temme" in (sys.argv[1:] or ["temme"]):
    temme(6, 14)
for name, (f, n) in SERIES.items():
    if name in (sys.argv[1:] or SERIES):
        c = terms(f, n)
        print(f"static const double {name}[] = {{{', '.join(mp.nstr(t, 18) for t in c)}}};")
