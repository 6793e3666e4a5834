#!/usr/bin/env python3
"""Works that nobody tuned for: draw_works.py kernels|ops SEED COUNT [--device cpu|cuda]

Prints COUNT lines for gpu_kernels and cpu_kernels.py (kernels) or op_survey.py (ops), drawn from families of shapes by a seed, so
that a new seed is a new survey: sizes are mostly what networks have, often odd, and small enough for the device named."""

import argparse
import math
import random

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["kernels", "ops"])
parser.add_argument("seed", type=int)
parser.add_argument("count", type=int)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
o = parser.parse_args()
r = random.Random(o.seed)
gpu = o.device == "cuda"
MOST = (1 << 26) if gpu else (1 << 22)  # elements of a tensor
FLOPS = 2e11 if gpu else 2e9  # of a product


def near(low, high):
    """A size on a scale of logarithms: a power of two, a multiple of 8 or of 32, or any."""
    n = int(math.exp(r.uniform(math.log(low), math.log(high))) + 0.5)
    way = r.random()
    if way < 0.3:
        n = 1 << max(0, round(math.log2(n)))
    elif way < 0.6:
        n = max(1, (n + 16) // 32) * 32
    elif way < 0.75:
        n = max(1, (n + 4) // 8) * 8
    return min(max(n, low), high)


def dtype(halves=0.5):
    return r.choice(["f16", "bf16"]) if r.random() < halves else "f32"


def fits(*sizes):
    return all(math.prod(s) <= MOST for s in sizes)


def conv():
    groups = 1
    k, step = r.choice([(1, 1), (1, 2), (3, 1), (3, 1), (3, 2), (5, 1), (7, 2), (2, 2), (4, 2)])
    c, out = r.choice([1, 3, near(8, 1024)]), near(8, 1024)
    way = r.random()
    if way < 0.12:
        c = out = near(16, 768)
        groups = c
    elif way < 0.24:
        groups = r.choice([2, 4, 8, 32])
        c, out = (max(1, n // groups // 4) * 4 * groups for n in (c, out))
    side, batch = r.choice([7, 10, 14, 15, 20, 28, 32, 40, 56, 64, 80, 112, 224]), r.choice([1, 1, 2, 4, 8, 16, 32, 64])
    side = max(side, k)
    pad = r.choice([0, k // 2, k // 2]) if k != 2 else 0
    after = (side + 2 * pad - k) // step + 1
    if not fits((batch, c, side, side), (batch, out, after, after)):
        return None
    if 2 * batch * out * after * after * c // groups * k * k > FLOPS:
        return None
    kind = r.choice(["conv", "conv", "convx", "convw"])
    return f"{kind} {dtype()} {batch} {c} {side} {side} {out} {k} {step} {pad} {groups} {r.randint(0, 1)}"


def product():
    m, k, n = near(1, 4096), near(16, 8192), near(8, 8192)
    if r.random() < 0.25:
        m = r.choice([1, 2, 4, 8, 16])
    if 2 * m * k * n > FLOPS or not fits((m, k), (k, n), (m, n)):
        return None
    kind = r.choice(["matmul", "linear", "linear", "lineargelu"])
    return f"{kind} {dtype()} {m} {k} {n}"


def bmm():
    b, m, k, n = near(2, 512), near(1, 512), near(16, 512), near(16, 512)
    if 2 * b * m * k * n > FLOPS or not fits((b, m, k), (b, k, n), (b, m, n)):
        return None
    return f"bmm {dtype()} {b} {m} {k} {n}"


def attention():
    heads, features = r.choice([4, 8, 12, 16, 20, 32]), r.choice([32, 64, 64, 80, 96, 128, 128, 256])
    kv = heads // r.choice([1, 1, 1, 2, 4])
    rows, batch = near(16, 4096 if gpu else 512), r.choice([1, 2, 4, 8, 16])
    keys = rows if r.random() < 0.7 else near(16, 4096 if gpu else 1024)
    if r.random() < 0.2:
        rows = 1
    if 4 * batch * heads * rows * keys * features > FLOPS or not fits((batch, heads, keys, features)):
        return None
    kind = r.choice(["attention", "attention", "attentiong"]) if rows > 1 else "attention"
    causal = int(rows == keys and r.random() < 0.5)
    return f"{kind} {dtype(0.7)} {batch} {heads} {kv} {rows} {keys} {features} {causal}"


def rows():
    n = near(64, 70000)
    m = near(1, max(2, MOST // 4 // n))
    kind = r.choice(["softmax", "softmaxgrad", "layernorm", "layernormgrad", "rmsnorm", "rmsnormgrad", "rowsum", "colsum", "logsoftmax"])
    return f"{kind} {dtype()} {m} {n}"


def moves():
    way = r.randint(0, 3)
    if way == 0:
        size = [near(2, 512) for _ in range(r.choice([3, 4]))]
        order = list(range(len(size)))
        r.shuffle(order)
        if not fits(size) or order == sorted(order):
            return None
        return f"permute {dtype()} {len(size)} {' '.join(map(str, order + size))}"
    if way == 1:
        n, m, k = near(2, 16), near(16, 8192), near(16, 2048)
        return f"cat {dtype()} {n} {m} {k}" if n * m * k <= MOST else None
    if way == 2:
        n, m, k = near(1000, 100000), near(16, 2048), near(64, 32768)
        return f"{r.choice(['embedding', 'pick'])} {dtype()} {n} {m} {k}" if n * m <= MOST and m * k <= MOST else None
    n, m = near(4, 8192), near(64, 100000)
    kind = r.choice(["cumsum", "cumsum", "logcumsumexp", "argmax"])
    return f"{kind} {dtype(0.2)} {n} {m} {r.randint(0, 1)}" if n * m <= MOST else None


def pool():
    batch, c, side, k = r.choice([1, 4, 16, 32]), near(8, 512), near(7, 112), r.choice([2, 3, 3, 5])
    if not fits((batch, c, side, side)):
        return None
    kind = r.choice(["maxpool", "maxpoolgrad", "avgpool", "avgpoolgrad"])
    return f"{kind} {dtype()} {batch} {c} {side} {side} {k} {r.choice([1, 2, k])} {k // 2} {r.randint(0, 1)}"


def recurrent():
    steps, batch, width, units = near(4, 128), near(1, 64), near(16, 512), near(16, 512)
    if steps * batch * units * (width + units) * 8 > FLOPS:
        return None
    return f"{r.choice(['lstm', 'gru', 'rnn', 'lstmgrad', 'grugrad'])} f32 {steps} {batch} {width} {units}"


def dims(least=2, most=4):
    elements = r.choice([1 << 12, 1 << 16, 1 << 20, MOST // 4])
    size = [near(1, 4096) for _ in range(r.randint(least, most) - 1)]
    while math.prod(size) > elements:
        size[r.randrange(len(size))] = 1
    size.insert(r.randint(0, len(size)), max(1, int(elements / math.prod(size) * r.uniform(0.5, 1))))
    return size


def t(size, d=None, extra=""):
    return f"{d or dtype(0.35)}[{','.join(map(str, size))}]{extra}"


def unary():
    name = r.choice("relu gelu silu mish elu selu celu leaky_relu softplus log_sigmoid hardtanh hardswish sigmoid tanh exp log1p sin atan "
                    "erf sqrt rsqrt reciprocal square abs sign floor round expm1 exp2 log2 asinh tanhshrink".split())
    return f"{name} {t(dims())}"


def binary():
    name = r.choice(["add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "hypot", "fmod", "copysign"])
    size, d = dims(), dtype(0.35)
    other = [1 if r.random() < 0.35 else s for s in size]
    if r.random() < 0.3:
        other = other[1:]
    over = {"add": "add.Tensor", "sub": "sub.Tensor", "mul": "mul.Tensor", "div": "div.Tensor", "pow": "pow.Tensor_Tensor",
            "fmod": "fmod.Tensor", "copysign": "copysign.Tensor"}.get(name)
    return f"{name} {t(size, d)} {t(other, d)}" + (f" aten={over}" if over else "") + (" forward" if name in ("pow", "fmod") else "")


def reduction():
    size = dims(1)
    some = sorted(r.sample(range(len(size)), r.randint(1, len(size))))
    name, over = r.choice([("sum", "sum.dim_IntList"), ("mean", "mean.dim"), ("amax", None), ("var", "var.correction"),
                           ("std", "std.correction"), ("logsumexp", None), ("count_nonzero", "count_nonzero.dim_IntList")])
    if name in ("var", "std") and math.prod(size[k] for k in some) < 2:
        return None
    return f"{name} {t(size)} dim={some}".replace(", ", ",") + (f" aten={over}" if over else "")


def one_dim():
    size = dims(1, 3)
    dim = r.randrange(len(size))
    name, over = r.choice([("softmax", "softmax.int"), ("log_softmax", None), ("cumsum", None), ("argmax", None), ("prod", "prod.dim_int"),
                           ("any", "any.dim"), ("logcumsumexp", None), ("cumprod", None), ("max_dim", "max.dim")])
    return f"{name} {t(size, 'f32' if name in ('cumprod', 'prod') else None)} dim={dim}" + (f" aten={over}" if over else "")


def main():
    kernels = [conv, conv, conv, product, product, bmm, attention, rows, rows, moves, pool, recurrent]
    ops = [unary, unary, binary, reduction, reduction, one_dim]
    seen = set()  # sorted in the end: works of a kind side by side
    while len(seen) < o.count:
        line = r.choice(kernels if o.what == "kernels" else ops)()
        if line and line not in seen:
            seen.add(line)
    print("\n".join(sorted(seen)))


main()
