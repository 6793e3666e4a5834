#!/usr/bin/env python3
"""Ops of integers that OpInfo samples in floats alone, against PyTorch on random calls, bit for bit: convolutions, whose sums wrap, and
interpolate of uint8.

usage: python tests/opinfo/integers.py LIBRARY [--ops a,b] [--calls N]   (needs a Python with torch; opinfo.sh runs it behind opinfo.py)

Each call is made eagerly, over operands with gaps, and compiled. What PyTorch refuses must be refused; anything else that differs makes the
exit status 1. Calls of one result across are left out of interpolate's: there PyTorch differs from itself (docs/deviations.md)."""
import argparse
import collections
import os
import random
import sys
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from bridge import Library, Refused, attribute, default  # noqa: E402

TYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def drawn(size, dtype):
    info = torch.iinfo(dtype)
    t = torch.randint(info.min // 2, info.max // 2, size).to(dtype)
    return t.to(memory_format=torch.channels_last) if len(size) == 4 and random.random() < 0.2 else t


def convolution(name):
    spatial, transposed = int(name[-2]), "transpose" in name
    some = lambda low, high: [random.randint(low, high) for _ in range(spatial)]
    groups, kernel = random.choice((1, 1, 2, 3)), some(1, 3)
    c, o = groups * random.randint(1, 3), groups * random.randint(1, 3)
    dilation = some(1, 2) if transposed or random.random() < 0.3 else [1] * spatial
    dtype = torch.int64 if transposed and random.random() < 0.9 else random.choice(TYPES)
    stride = some(1, 3)
    kw = {"stride": stride, "padding": [random.randint(0, k // 2 if not transposed else 0) for k in kernel], "groups": groups, "dilation": dilation}
    if transposed:
        kw["output_padding"] = [random.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation)]
    batch = random.choice(((), (1,), (3,)))
    x = drawn((*batch, c, *(random.randint(5, 9) for _ in range(spatial - 1)), random.choice((6, 9, 300))), dtype)
    w = drawn((c, o // groups, *kernel) if transposed else (o, c // groups, *kernel), dtype)
    return [x, w, drawn((o,), dtype) if random.random() < 0.6 else None], kw, getattr(F, name)


def resized(name):
    mode = random.choice(("nearest", "nearest-exact", "bilinear", "bicubic", "bilinear", "bicubic"))
    smooth = mode[:2] == "bi"
    spatial = 2 if smooth else random.randint(1, 3)
    size = [random.randint(1, 9) for _ in range(spatial)]
    kw = {"mode": mode}
    if random.random() < 0.5:
        kw["size"] = [random.randint(2, 14) for _ in range(spatial)]
    else:
        kw["scale_factor"] = [random.choice((0.5, 1.0, 1.5, 2.0, 2.3, 0.7, 3.0, 1.1, 1.02)) for _ in range(spatial)]
        if min(int(n * f) for n, f in zip(size, kw["scale_factor"])) < 2:
            return None
    if smooth:
        kw |= {"align_corners": random.random() < 0.4, "antialias": random.random() < 0.5}
    return [drawn((random.randint(1, 2), random.choice((1, 3, 4, 5, 8)), *size), torch.uint8)], kw, F.interpolate


def gaps(t):
    return t if t is None or t.dim() == 0 else torch.repeat_interleave(t, 2, dim=-1)[..., ::2]


def check(lib, row, tensors, kw, f):
    try:
        want = f(*tensors, **kw)
    except RuntimeError as e:
        if "INTERNAL ASSERT" in str(e):
            return None, ""
        want = None
    keep, attrs = [], []
    for p in row.params:
        if not p.tensor:
            attrs.append(attribute(p, kw[p.name] if p.name in kw else default(p), keep))
    for how in ("eager", "strided", "fused"):
        with lib.scope():
            mine = [gaps(t) if how == "strided" else t for t in tensors]
            handles = [lib.tensor(t) for t in mine]
            try:
                if how == "fused":
                    with lib.compiled(row, handles, attrs) as run:
                        got = lib.torch(run(handles)[0])
                else:
                    got = lib.torch(lib.call(row, handles, attrs)[0])
            except Refused as e:
                if want is not None:
                    return False, f"{how}: refused: {e}"
                continue
            if want is None:
                return False, f"{how}: PyTorch refuses it"
            if got.dtype != want.dtype or not torch.equal(got, want):
                return False, f"{how}: other values"
    return want is not None, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--ops")
    parser.add_argument("--calls", type=int, default=200, help="of each op")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    lib = Library(os.path.abspath(o.library))
    rows = lib.rows()
    makers = {f"conv{t}{n}d": convolution for t in ("", "_transpose") for n in (1, 2, 3)} | {"interpolate": resized}
    random.seed(1), torch.manual_seed(1)
    failed = 0
    for name, maker in makers.items():
        if o.ops and name not in o.ops.split(","):
            continue
        counts = collections.Counter()
        for _ in range(o.calls):
            made = maker(name)
            if made is None:
                continue
            tensors, kw, f = made
            good, why = check(lib, rows[name], tensors, kw, f)
            counts["wrong" if why else "same" if good else "refused by both" if good is False else "PyTorch's own failure"] += 1
            if why:
                print(f"{name} {[t if t is None else (t.dtype, tuple(t.shape), t.stride()) for t in tensors]} {kw}: {why}")
        failed += counts["wrong"]
        print(f"{name:20} " + ", ".join(f"{n} {k}" for k, n in counts.items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
