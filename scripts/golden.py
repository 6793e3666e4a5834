#!/usr/bin/env python3
"""Writes tests/data/golden/ops.txt: calls of ops with the results of a current PyTorch, for semantics that are easily got wrong.
usage: golden.py OUTPUT   (needs torch; the tests need only the file)

Format, read by tests/test_golden.c: one call is
    op NAME TOLERANCE        results agree to TOLERANCE * max(1, |value|); 0: exactly
    in DTYPE NDIM SIZE... VALUE...
    attr KIND VALUE...
    out DTYPE NDIM SIZE... VALUE...   or   error
    end
Values are decimal numbers that read back exactly, inf, -inf or nan."""
import itertools
import math
import sys

import torch

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
          torch.int32: "int32", torch.int64: "int64", torch.uint8: "uint8", torch.bool: "bool",
          torch.int8: "int8", torch.int16: "int16"}
out = open(sys.argv[1], "w")


def number(v):
    v = float(v)
    text = repr(v)  # the shortest decimal that reads back as the same double; also inf, -inf, nan
    return text[:-2] if text.endswith(".0") else text


def tensor(kind, t):
    sizes = " ".join(str(s) for s in t.shape)
    values = " ".join(number(v) for v in t.reshape(-1).tolist())
    print(f"{kind} {DTYPES[t.dtype]} {t.dim()} {sizes} {values}".rstrip(), file=out)


def attr(a):
    def text(v):
        if isinstance(v, torch.dtype):
            return DTYPES[v]
        return v if isinstance(v, str) else number(v)
    print("attr", a[0], *[text(v) for v in a[1:]], file=out)


def call(name, f, ins, attrs=(), tolerance=0.0):
    print(f"op {name} {number(tolerance)}", file=out)
    for t in ins:
        tensor("in", t)
    for a in attrs:
        attr(a)
    try:
        result = f()
        for t in result if isinstance(result, (tuple, list)) else [result]:
            tensor("out", t)
    except (RuntimeError, NotImplementedError, IndexError, ValueError):
        print("error", file=out)
    print("end", file=out)


def scalar(v):
    return ("scalar", "bool" if isinstance(v, bool) else "int" if isinstance(v, int) else "float", v)


T = torch.tensor
inf, nan = math.inf, math.nan
F = torch.nn.functional

# promotion: types, 0-d tensors, numbers
for a, b in itertools.product(DTYPES, DTYPES):
    for shape_a, shape_b in (((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())):
        x, y = torch.ones(shape_a, dtype=a), torch.full(shape_b, 3).to(b)
        call("add", lambda: x + y, [x, y], [scalar(1)])
        call("lt", lambda: x < y, [x, y])
    x, y = torch.ones(2, dtype=a), torch.full((2,), 3).to(b)
    call("div", lambda: x / y, [x, y], tolerance=1e-2)
    call("mul_", lambda: x.clone().mul_(y), [x, y])
    call("cat", lambda: torch.cat([x, y]), [x, y], [("int", 0)])
    call("where", lambda: torch.where(T([True, False]), x, y), [T([True, False]), x, y])
for a in DTYPES:
    x = torch.ones(2, dtype=a)
    for v in (2, 2.5, True):
        call("add_scalar", lambda: x + v, [x], [scalar(v)])
        call("mul_scalar", lambda: x * v, [x], [scalar(v)])
        call("div_scalar", lambda: x / v, [x], [scalar(v)], 1e-2)
        call("eq_scalar", lambda: x == v, [x], [scalar(v)])
        call("add_scalar_", lambda: x.clone().add_(v), [x], [scalar(v)])
        call("pow_scalar", lambda: x ** v, [x], [scalar(v)])
    call("sum", lambda: x.sum(), [x], [("ints",), ("bool", False), ("dtype", "none")])
    call("mean", lambda: x.mean(), [x], [("ints",), ("bool", False), ("dtype", "none")])
    for name in ("exp", "neg", "abs", "sign", "relu", "logical_not"):
        call(name, lambda: getattr(torch, name)(x), [x], tolerance=2e-2)

# values that formulas forget
for dtype, eps in ((torch.float32, 2e-6), (torch.float64, 1e-13), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
    x = T([0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 0.5, -0.5, 2.0, 1e-4, 3.0, -3.0, 9.0, -9.0, 30.0, -30.0], dtype=torch.float64).to(dtype)
    for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "abs", "sign", "relu", "sin", "cos"):
        call(name, lambda: getattr(torch, name)(x), [x], tolerance=eps)
    call("gelu", lambda: F.gelu(x), [x], tolerance=eps)
    for e in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, -1.5):
        call("pow_scalar", lambda: x ** e, [x], [scalar(e)], eps * 4)
    y = x.flip(0)
    for name in ("maximum", "minimum", "div"):
        call(name, lambda: getattr(torch, name)(x, y), [x, y], tolerance=eps)
    rows = T([[1, 2, 3, 4], [1000, 1000, 1000, 999], [-inf, 0, 1, 2], [-inf] * 4, [inf, 0, 1, 2], [nan, 0, 1, 2], [3e4, -3e4, 0, 0]],
             dtype=torch.float64).to(dtype)
    for dim in (0, 1):
        call("softmax", lambda: torch.softmax(rows, dim), [rows], [("int", dim)], eps)
        call("log_softmax", lambda: torch.log_softmax(rows, dim), [rows], [("int", dim)], eps * 8)
        call("amax", lambda: torch.amax(rows, dim), [rows], [("ints", dim), ("bool", False)])
    n = T([[1, 2, 3, 4], [1000, 1001, 1002, 1003], [5, 5, 5, 5], [1e-3, 2e-3, 3e-3, 4e-3]], dtype=torch.float64).to(dtype)
    call("layer_norm", lambda: F.layer_norm(n, (4,)), [n], [("ints", 4), ("float", 1e-5)], eps * 8)
    k = T([1, nan, 3, -inf, inf, 2], dtype=torch.float64).to(dtype)
    for largest in (True, False):
        call("topk", lambda: torch.topk(k, 4, 0, largest), [k], [("int", 4), ("int", 0), ("bool", largest), ("bool", True)])
    for descending in (False, True):
        s = T([[1, nan, -0.0, 3, 0.0, -inf, inf, 1, nan, 2]], dtype=torch.float64).to(dtype)
        call("sort", lambda: torch.sort(s, dim=-1, descending=descending, stable=True), [s], [("int", -1), ("bool", descending), ("scalar", "bool", 1)])
    for to in DTYPES:
        c = T([0.0, 1.0, -1.0, 1.5, 2.5, -0.5, 100.25, 0.1], dtype=torch.float64).to(dtype)
        if to != torch.uint8:  # negative numbers to uint8 are undefined in C
            call("to_dtype", lambda: c.to(to), [c], [("dtype", to)])
for x in (torch.zeros(0), torch.zeros(2, 0), torch.zeros(0, 2)):
    for dim in range(x.dim()):
        call("sum", lambda: x.sum(dim), [x], [("ints", dim), ("bool", False), ("dtype", "none")])
        call("mean", lambda: x.mean(dim, keepdim=True), [x], [("ints", dim), ("bool", True), ("dtype", "none")])
        call("amax", lambda: x.amax(dim), [x], [("ints", dim), ("bool", False)])
        call("softmax", lambda: x.softmax(dim), [x], [("int", dim)])
for dtype in (torch.float32, torch.int64, torch.uint8, torch.bool):
    for x in (T([[0, 2, 3], [0, 0, 1]]).to(dtype), T(3).to(dtype), torch.zeros(0, 2, dtype=dtype)):
        for name in ("any", "all"):
            for keep in (False, True):  # dim=[] takes each element by itself
                call(name, lambda: getattr(torch, name)(x, dim=[], keepdim=keep), [x], [("ints",), ("bool", keep)])
logits = T([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1000.0, 0.0, -1000.0], [-inf, 0.0, 0.0]])
for targets in ([0, 1, 2, 1], [0, -100, 0, 2], [-100] * 4, [2, 2, 0, 0]):
    t = T(targets)
    for i, reduction in enumerate(("none", "mean", "sum")):
        call("cross_entropy", lambda: F.cross_entropy(logits, t, reduction=reduction), [logits, t], [("int", i), ("int", -100)], 2e-6)
call("cross_entropy", lambda: F.cross_entropy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)), [torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)],
     [("int", 1), ("int", -100)])
for start, end, step, dtype in ((0, 1, 0.1, torch.float32), (0.5, 5.5, 0.7, torch.int64), (5, -2, -3, torch.int32), (0, 5, 2, torch.float16),
                                (1, 1, 1, torch.int64), (0, 1, 0, torch.int64), (1, 0, 1, torch.int64), (0, 2, 1, torch.bool)):
    call("arange", lambda: torch.arange(start, end, step, dtype=dtype), [], [scalar(start), scalar(end), scalar(step), ("dtype", dtype)], 1e-6)
for dtype in DTYPES:
    s = T([[3, 1, 2, 1], [0, 5, 0, 7]]).to(dtype)
    for x, dim in ((s, 0), (s, 1), (T(4).to(dtype), -1), (T(4).to(dtype), 1), (torch.zeros(0, 3, dtype=dtype), 0), (torch.zeros(0, 3, dtype=dtype), 1)):
        for descending in (False, True):
            call("sort", lambda: torch.sort(x, dim=dim, descending=descending, stable=True), [x], [("int", dim), ("bool", descending), ("scalar", "bool", 1)])
            call("argsort", lambda: torch.argsort(x, dim=dim, descending=descending, stable=True), [x], [("int", dim), ("bool", descending), ("scalar", "bool", 1)])
empty = torch.zeros(0)
call("cat", lambda: torch.cat([empty, torch.ones(2, 3)], 1), [empty, torch.ones(2, 3)], [("int", 1)])
call("cat", lambda: torch.cat([empty.double(), torch.ones(2, 3)], 1), [empty.double(), torch.ones(2, 3)], [("int", 1)])
call("cat", lambda: torch.cat([torch.zeros(0, 3), torch.ones(2, 3)], 0), [torch.zeros(0, 3), torch.ones(2, 3)], [("int", 0)])
for shape in ((), (3,), (2, 0)):
    z = torch.ones(shape)
    call("nonzero", lambda: torch.nonzero(z), [z])
    call("matmul", lambda: torch.matmul(z, torch.ones(3)), [z, torch.ones(3)])
out.close()
