#!/usr/bin/env python3
"""Writes tests/data/golden/strides.txt: how results of a current PyTorch lie in memory, for operands that lie in many ways.
usage: golden_strides.py OUTPUT   (needs torch; the tests need only the file)

A line, read by tests/test_formats.c, is
    OP OPERAND... = RESULT
with OPERAND and RESULT as SIZE,SIZE:STRIDE,STRIDE. Results of which a dim of one element has a stride that no order of dims
gives (PyTorch hands an operand's on) are left out, as are cases where float32 operands would be refused."""
import random
import sys

import torch
import torch.nn.functional as F

random.seed(20)
torch.manual_seed(20)
out = open(sys.argv[1], "w")


def text(t):
    join = lambda v: ",".join(str(x) for x in v)
    return f"{join(t.shape)}:{join(t.stride())}"


def lies(size):
    """A tensor of this size in one of the ways that programs make."""
    n = len(size)
    way = random.choice(["row", "row", "permuted", "last", "sliced", "expanded", "stepped"])
    if way == "last" and n in (4, 5):
        format = torch.channels_last if n == 4 else torch.channels_last_3d
        return torch.rand(size).contiguous(memory_format=format)
    if way == "permuted" and n > 1:
        order = list(range(n))
        random.shuffle(order)
        back = [order.index(d) for d in range(n)]
        return torch.rand([size[d] for d in order]).permute(back)
    if way == "sliced" and n:
        d = random.randrange(n)
        return torch.rand([s + (k == d) for k, s in enumerate(size)]).narrow(d, 1, size[d])
    if way == "stepped" and n:
        d = random.randrange(n)
        return torch.rand([2 * s if k == d else s for k, s in enumerate(size)])[(slice(None),) * d + (slice(None, None, 2),)]
    if way == "expanded" and n:
        d = random.randrange(n)
        return torch.rand([1 if k == d else s for k, s in enumerate(size)]).expand(size)
    return torch.rand(size)


def of_an_order(t):
    """Do the strides follow from an order of dims, those of one element included?"""
    run, left = 1, list(range(t.dim()))
    while left:
        d = next((d for d in left if t.stride(d) == run and t.size(d) == 1), None)
        if d is None:
            d = next((d for d in left if t.stride(d) == run), None)
        if d is None:
            return False
        left.remove(d)
        run *= t.size(d)
    return True


def case(name, f, *operands):
    try:
        result = f(*operands)
    except (RuntimeError, ValueError, IndexError):
        return
    if of_an_order(result):
        print(name, *[text(t) for t in operands], "=", text(result), file=out)


def size(n):
    return [random.choice([1, 2, 3, 4, 5]) for _ in range(n)]


def broadcast(s):
    s = [1 if random.random() < 0.25 else x for x in s]
    return s[random.randrange(len(s)):] if random.random() < 0.25 and len(s) > 1 else s


ONES = [("sin", torch.sin), ("clone", torch.clone), ("to_dtype", lambda x: x.to(torch.float64)),
        ("add_scalar", lambda x: x + 2), ("zeros_like", torch.zeros_like), ("contiguous", lambda x: x.contiguous()),
        ("sum", lambda x: x.sum(0, keepdim=True)), ("amax", lambda x: x.amax(-1, keepdim=True)),
        ("mean", lambda x: x.mean(1, keepdim=True)), ("softmax", lambda x: x.softmax(-1))]
IMAGES = [("max_pool2d", lambda x: F.max_pool2d(x, 2, 1)), ("avg_pool2d", lambda x: F.avg_pool2d(x, 2, 1)),
          ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True)),
          ("batch_norm_eval", lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]))),
          ("pad", lambda x: F.pad(x, (1, 2))), ("channels_last", lambda x: x.contiguous(memory_format=torch.channels_last)),
          ("clone_channels_last", lambda x: x.clone(memory_format=torch.channels_last))]
CONVERTED = [("to_dtype_channels_last", lambda x: x.to(torch.float64, memory_format=torch.channels_last)),
             ("to_dtype_contiguous", lambda x: x.to(torch.float32, copy=True, memory_format=torch.contiguous_format))]

for _ in range(40):
    for name, f in ONES:
        case(name, f, lies(size(random.choice([2, 3, 4, 4, 5]))))
    for name, f in IMAGES:
        case(name, f, lies(size(4)))
    case("conv2d", F.conv2d, lies([2, 3, 4, 5]), lies([4, 3, 2, 2]))
    case("conv2d", F.conv2d, lies([random.choice([1, 2]), 2, 3, 3]), lies([2, 2, 2, 2]))
for _ in range(150):
    s = size(random.choice([2, 3, 4, 4, 5]))
    case("add", torch.add, lies(broadcast(s)), lies(broadcast(s)))
    case("mul", torch.mul, lies(s), lies(s))
    case("where", lambda c, a, b: torch.where(c > 0.5, a, b), lies(broadcast(s)), lies(broadcast(s)), lies(broadcast(s)))
    case("cat", lambda *t: torch.cat(t, 1), lies(s), lies(s))
    case("copy", torch.ops.aten.copy, lies(s), lies(s))
    case("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 0, 0, y.shape[0]), lies(s), lies(s))
for _ in range(40):
    for name, f in CONVERTED:
        case(name, f, lies(size(4)))
