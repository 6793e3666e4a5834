#!/usr/bin/env python3
"""Functions of one and two numbers at special values, forward and gradient, against PyTorch: NaN, infinities, zeros of either sign, the
edges of the types, and exact thresholds with their neighbours.

usage: python tests/opinfo/special_values.py LIBRARY [--ops a,b]   (needs a Python with torch; opinfo.sh runs it behind opinfo.py)

Every row of one or two tensors with one result, whose other arguments have defaults or stand in ARGUMENTS, is compared with what PyTorch
calls so. Of what is finite on both sides a wide tolerance is asked: here it is what kind of number comes out, and on which side of a kink
a value lies. What PyTorch gives in float64, rounded, is right as well: it rounds on the way. What differs on purpose is in DIFFERENT; anything else makes the exit status 1."""
import argparse
import math
import os
import re
import sys
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402

from bridge import Library, Refused, attribute, default  # noqa: E402

EDGES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 6.0, 20.0)
ARGUMENTS = {"threshold": [(0.5, 2.0), (0.0, -1.0)], "polygamma": [(1,), (2,)], "hardtanh": [(), (0.0, 6.0), (0.5, 0.5)], "clamp": [(-0.5, 0.5), (None, 0.5), (0.5, -0.5)],
             "softshrink": [(), (0.0,), (1.5,)], "hardshrink": [(), (0.0,), (1.5,)], "pow_scalar": [(k,) for k in (0, 1, 2, 3, 0.5, -1, -0.5)],
             "elu": [(), (1.5, 0.5, 2.0)], "celu": [(), (2.0,)], "softplus": [(), (2.0, 3.0)], "leaky_relu": [(), (-0.5,)], "logit": [(), (0.25,)],
             "nan_to_num": [(), (0.5, 1.0, -1.0)], "mvlgamma": [(2,)], "threshold_": [(0.5, 2.0)], "gelu": [()]}
# What PyTorch calls otherwise: of the op, its arguments in order.
CALLS = {"pow_scalar": torch.pow, "log_sigmoid": torch.nn.functional.logsigmoid, "polygamma": lambda x, n: torch.polygamma(n, x)}
WHOLE = {"bucketize", "searchsorted", "isin", "hinge_embedding_loss", "kl_div", "norm_except_dim"}  # not of each element by itself
RANDOM = re.compile(r".*(dropout|rand|bernoulli|uniform|normal|exponential|cauchy|geometric|poisson|rrelu|empty).*")
# What is meant to differ: patterns of the row and of what is said of it, and the reason.
DIFFERENT = [
    (r"(di|poly)gamma", r"forward|gradient", "a pole is infinite and infinity has a limit, where PyTorch comes out at some number or NaN; beside poles ours is the exact one"),
    (r"lgamma|mvlgamma", r"gradient 0: value", "beside poles PyTorch's digamma is not exact"),
    (r"fmod|remainder", r"forward: NaN", "PyTorch's vectors divide by numbers whose quotient is infinite"),
    (r"ldexp", r"gradient 1: infinity", "PyTorch overflows on the way"),
    (r"logaddexp2", r"forward: zero", "PyTorch rounds on the way"),
    (r"special_ndtr", r"forward: zero", "PyTorch takes 1 + erf, which is 0 early"),
    (r"nextafter", r"refused", "a gradient that is always 0 hides a mistake"),
    (r"softsign|special_log_ndtr", r"gradient 0: NaN", "at infinity the limit"),
    (r"special_erfcx", r"gradient 0: infinity", "the last numbers: both overflow on the way"),
    (r"special_.*bessel_k[01]", r"1 times; float64 .4.94065646e-324.", "PyTorch takes half of the least number, which is 0"),
    (r"special_.*polynomial_.*", r"forward", "PyTorch takes orders that no integer holds for negative ones, and overflows on the way; an angle's rounding is no 0"),
    (r"igammac?", r"forward", "NaN stays NaN, and the least shapes have their limit"),
    (r"special_zeta", r"forward: NaN", "NaN stays NaN"),
    (r"special_i[01]e?", r"gradient 0: (value|zero|NaN).*float16", "the difference of numbers that were rounded to 16 bits"),
    (r"pow", r"gradient 0: infinity, 1 times; float16", "the rounding of a power that overflows"),
]


def values(dtype):
    info, found = torch.finfo(dtype), []
    for edge in EDGES:
        t = torch.tensor(edge, dtype=dtype)
        found += [edge, torch.nextafter(t, torch.tensor(math.inf, dtype=dtype)).item(), torch.nextafter(t, torch.tensor(-math.inf, dtype=dtype)).item()]
    found += [info.max, info.tiny, info.smallest_normal / 2, 1e-3, 10.0, 30.0, 100.0, math.inf]
    both = sorted({v for v in found if v > 0})
    return torch.tensor([math.nan, 0.0, -0.0, *both, *(-v for v in both)], dtype=dtype)


def theirs(name):
    if name in CALLS:
        return CALLS[name]
    for place in (torch, torch.nn.functional, torch.special):
        f = getattr(place, name.removeprefix("special_") if place is torch.special else name, None)
        if callable(f):
            return f
    return None


def kind(got, want):
    """"" or how an element differs."""
    if math.isnan(want) or math.isnan(got):
        return "" if math.isnan(want) and math.isnan(got) else "NaN"
    if math.isinf(want) or math.isinf(got):
        return "" if got == want else "infinity"
    if (got == 0) != (want == 0):
        return "zero" if abs(got - want) > 1e-30 else ""
    return "" if abs(got - want) <= 2e-2 * max(abs(want), abs(got)) + 1e-6 else "value"


def slopes(f, leaves, extra):
    """The result and the gradients of its sum, None where PyTorch has none."""
    y = f(*leaves, *extra)
    grads = [None] * len(leaves)
    if isinstance(y, torch.Tensor) and y.requires_grad:
        try:
            grads = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
        except RuntimeError:
            pass
        y = y.detach()
    return [y, *(torch.zeros(g.shape) if g is not None and g._is_zerotensor() else g for g in grads)]


def compare(lib, row, f, extra, dtype, tell):
    tensors = [p for p in row.params if p.tensor]
    v = values(dtype)
    inputs = [v] if len(tensors) == 1 else [v.repeat_interleave(len(v)), v.repeat(len(v))]
    leaves = [t.clone().requires_grad_() for t in inputs]
    try:
        want = slopes(f, leaves, extra)
        exact = slopes(f, [t.detach().double().requires_grad_() for t in leaves], extra)
    except Exception:  # of what it does not take
        return 0
    if not isinstance(want[0], torch.Tensor) or want[0].shape != inputs[0].shape:
        return 0
    given, keep, attrs = list(extra), [], []
    for p in row.params:
        if not p.tensor:
            attrs.append(attribute(p, given.pop(0) if given else default(p), keep))
    learns = any(g is not None for g in want[1:])
    with lib.scope():
        try:
            handles = [lib.tensor(t.detach(), learns) for t in leaves]
            out = lib.call(row, handles, attrs)[0]
            got = [lib.torch(out)]
            if learns:
                start = torch.ones_like(want[0])
                got += [lib.torch(g) if g else None for g in lib.gradients([out], handles, [lib.tensor(start)])]
        except Refused as e:
            tell("refused", str(e)[:100], "")
            return 0
    for at, (a, b) in enumerate(zip(got, want)):
        if b is None:
            continue
        a, c = torch.zeros(b.shape) if a is None else a, b if exact[at] is None else exact[at].to(b.dtype)
        for k, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist())):
            why = kind(float(x), float(y))
            if why and kind(float(x), float(z)):
                tell("forward" if at == 0 else f"gradient {at - 1}", why, f"({', '.join(f'{t[k].item():.9g}' for t in inputs)}): {x:.6g}, PyTorch {y:.6g}")
    return len(v)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--ops")
    o, _ = parser.parse_known_args()
    warnings.simplefilter("ignore")
    lib = Library(os.path.abspath(o.library))
    wanted, seen, found = set(o.ops.split(",")) if o.ops else None, 0, {}
    for name, row in sorted(lib.rows().items()):
        tensors = [p for p in row.params if p.tensor]
        rest = [p for p in row.params if not p.tensor]
        plain = 1 <= len(tensors) <= 2 and row.n_out == 1 and not any(p.many or p.written or p.optional for p in tensors)
        f = theirs(name)
        if not plain or not f or name in WHOLE or RANDOM.fullmatch(name) or wanted and name not in wanted:
            continue
        if name not in ARGUMENTS and any(p.default is None or p.base == "Generator" for p in rest):
            continue
        for extra in ARGUMENTS.get(name, [()]):
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
                def tell(where, why, text):
                    found.setdefault((name, extra, where, why), []).append((str(dtype)[6:], text))

                seen += compare(lib, row, f, extra, dtype, tell) > 0
    unknown = 0
    for (name, extra, where, why), texts in found.items():
        line = f"{where}: {why}, {len(texts)} times; " + "; ".join(f"{d} {t}" for d, t in texts[:4])
        reason = next((r for op, words, r in DIFFERENT if re.fullmatch(op, name) and re.search(words, line)), "")
        unknown += not reason
        print(f"{name}{extra or ''} {where}: {why}, {len(texts)} times: {reason}" if reason else f"{name}{extra or ''} {line}")
    print(f"special values: {seen} functions and types, {len(found)} kinds of difference, {unknown} of them without a reason")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
