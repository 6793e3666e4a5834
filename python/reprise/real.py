"""Graphs with complex numbers as graphs of real ones: a complex tensor is a pair of tensors, and transforms are products with matrices of
cosines and sines, of a size's factors one after the other. Where an op, or a size that changes, has no place here, the graph stays as it is.

Called by dynamo.py before a graph is lowered; knows nothing of the library."""
import functools
import math
import operator

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta, set_current_meta

aten = torch.ops.aten
LARGEST = 64  # of a size's prime factors, each of which is a product with a matrix of that size


class Absent(Exception):
    """An op that is not written down here."""


class Pair:
    """The real and the imaginary part."""
    __slots__ = ("re", "im")

    def __init__(self, re, im):
        self.re, self.im = re, im


def pair(v, like):
    """v as a pair: a tensor, a number or already one."""
    if isinstance(v, Pair):
        return v
    if isinstance(v, torch.Tensor):
        return Pair(v, torch.zeros_like(v))
    v = complex(v)
    number = lambda x: torch.full((), x, dtype=like.re.dtype, device=like.re.device)
    return Pair(number(v.real), number(v.imag))


def part(dtype):
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def is_complex(v):
    return isinstance(v, torch.Tensor) and v.is_complex()


def wide(v):
    """Does a node's value hold complex numbers?"""
    return any(is_complex(t) for t in (v if isinstance(v, (list, tuple)) else [v]))


# ---------------------------------------------------------------- arithmetic


def one_pair(f):
    """Of two operands the first is a tensor; one at least is a pair then."""
    def with_a_pair(a, b, *more, **named):
        if not isinstance(a, Pair) and not isinstance(b, Pair):
            if not isinstance(a, torch.Tensor):
                raise Absent("two numbers")
            a = pair(a, None)
        return f(a, b, *more, **named)
    return with_a_pair


@one_pair
def _mul(a, b):
    if not isinstance(a, Pair):
        a, b = b, a
    if isinstance(b, (int, float)) or isinstance(b, torch.Tensor):
        return Pair(a.re * b, a.im * b)
    b = pair(b, a)
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


@one_pair
def _add(a, b, alpha=1):
    b = b if alpha == 1 else _mul(b, alpha) if isinstance(b, Pair) else b * alpha
    if not isinstance(b, Pair) and not isinstance(b, complex):
        return Pair(a.re + b, a.im + torch.zeros_like(b) if isinstance(b, torch.Tensor) else a.im)
    if not isinstance(a, Pair):
        a = pair(a, b)
    b = pair(b, a)
    return Pair(a.re + b.re, a.im + b.im)


def _conj(a):
    return Pair(a.re, -a.im) if isinstance(a, Pair) else a.conjugate()


def _neg(a):
    return Pair(-a.re, -a.im)


@one_pair
def _sub(a, b, alpha=1):
    return _add(a, _neg(b) if isinstance(b, Pair) else -b, alpha)


def _div(a, b):
    if isinstance(a, Pair) and not isinstance(b, (Pair, complex)):
        return Pair(a.re / b, a.im / b)
    raise Absent("a quotient")


def _bilinear(f):
    def product(a, b):
        if not isinstance(a, Pair):
            return Pair(f(a, b.re), f(a, b.im))
        if not isinstance(b, Pair):
            return Pair(f(a.re, b), f(a.im, b))
        return Pair(f(a.re, b.re) - f(a.im, b.im), f(a.re, b.im) + f(a.im, b.re))
    return product


def _exp(a):
    size = a.re.exp()
    return Pair(size * a.im.cos(), size * a.im.sin())


def _sgn(a):
    size = torch.hypot(a.re, a.im)
    at = torch.where(size == 0, 1, size)
    return Pair(a.re / at, a.im / at)


def _to_copy(a, dtype=None, **more):
    if dtype is not None and not dtype.is_complex:
        raise Absent("a copy of the real part")
    to = part(dtype) if dtype is not None else None
    if not isinstance(a, Pair):
        a = Pair(a, torch.zeros_like(a))
    return Pair(*(aten._to_copy.default(t, **({"dtype": to} if to else {}), **more) for t in (a.re, a.im)))


# ---------------------------------------------------------------- transforms


@functools.cache
def turns(n, m, of, dtype, device):
    """cos and sin of 2 pi j k / of, for j < n and k < m."""
    with unset_fake_temporarily():
        angle = (torch.arange(n)[:, None] * torch.arange(m)[None, :] % of).double() * (2 * math.pi / of)
        return angle.cos().to(dtype).to(device), angle.sin().to(dtype).to(device)


def factor(n):
    """The largest divisor of n that is not above its root, unless n is small."""
    return 1 if n <= 16 else max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)


def _last(x, sign):
    """Of the last dim; n = p q: sums over q, turns, sums over p."""
    n = x.re.shape[-1]
    p = factor(n)
    if p == 1:
        if n > LARGEST:
            raise Absent("a transform of a size with a large prime factor")
        cos, sin = turns(n, n, n, x.re.dtype, x.re.device)
        return _bilinear(torch.matmul)(x, Pair(cos, sin * sign))
    q = n // p
    by = lambda f, a: Pair(f(a.re), f(a.im))
    x = by(lambda t: t.unflatten(-1, (q, p)).transpose(-1, -2), x)  # (.., p, q), element p j + i at [i, j]
    x = _last(x, sign)  # over j: (.., p, q) of i and the new index k < q
    cos, sin = turns(p, q, n, x.re.dtype, x.re.device)
    x = _mul(x, Pair(cos, sin * sign))
    x = by(lambda t: t.transpose(-1, -2), x)  # (.., q, p)
    x = _last(x, sign)  # over i: the new index l < p; the result's place is q l + k
    return by(lambda t: t.transpose(-1, -2).flatten(-2), x)


def _along(x, dim, sign):
    y = _last(Pair(x.re.transpose(dim, -1), x.im.transpose(dim, -1)), sign)
    return Pair(y.re.transpose(dim, -1), y.im.transpose(dim, -1))


def _scaled(x, mode, n):
    scale = {0: 1.0, 1: 1 / math.sqrt(n), 2: 1 / n}[mode]
    return x if scale == 1 else Pair(x.re * scale, x.im * scale)


def _c2c(x, dim, normalization, forward):
    n = math.prod(x.re.shape[d] for d in dim)
    for d in dim:
        x = _along(x, d, -1 if forward else 1)
    return _scaled(x, normalization, n)


def _r2c(x, dim, normalization, onesided):
    y = _c2c(Pair(x, torch.zeros_like(x)), dim, normalization, True)
    if not onesided:
        return y
    keep = x.shape[dim[-1]] // 2 + 1
    return Pair(y.re.narrow(dim[-1], 0, keep), y.im.narrow(dim[-1], 0, keep))


def _c2r(x, dim, normalization, last_dim_size):
    """The other half along the last dim is the conjugate of this one, backwards; of the first, and of the middle, the real part counts."""
    d, n = dim[-1], last_dim_size
    for k in dim[:-1]:
        x = _along(x, k, 1)
    half = n // 2 + 1
    here = Pair(x.re.narrow(d, 0, half), x.im.narrow(d, 0, half))
    place = torch.arange(half, device=x.re.device)
    alone = (place == 0) | (2 * place == n)
    weight = torch.where(alone, 1, 2).to(x.re.dtype)
    cos, sin = turns(half, n, n, x.re.dtype, x.re.device)
    re, im = here.re.transpose(d, -1) * weight, here.im.transpose(d, -1) * torch.where(alone, 0, 2).to(x.re.dtype)
    if n > 1024:
        raise Absent("a transform of a large size to real numbers")
    y = (re @ cos - im @ sin).transpose(d, -1)
    return _scaled(Pair(y, y), normalization, n * math.prod(x.re.shape[k] for k in dim[:-1])).re


def _masked_fill(a, mask, value):
    value = complex(value)
    return Pair(a.re.masked_fill(mask, value.real), a.im.masked_fill(mask, value.imag))


def _equal(a, b):
    b = pair(b, a)
    return (a.re == b.re) & (a.im == b.im)


OPS = {"masked_fill.Scalar": _masked_fill, "eq.Scalar": _equal, "eq.Tensor": _equal, "mul.Tensor": _mul, "mul.Scalar": _mul, "add.Tensor": _add, "add.Scalar": _add, "sub.Tensor": _sub, "sub.Scalar": _sub, "neg.default": _neg,
       "div.Tensor": _div, "div.Scalar": _div, "mm.default": _bilinear(torch.mm), "bmm.default": _bilinear(torch.bmm), "exp.default": _exp, "sgn.default": _sgn,
       "_conj.default": _conj, "_conj_physical.default": _conj, "resolve_conj.default": lambda a: a,
       "complex.default": lambda re, im: Pair(*torch.broadcast_tensors(re, im)), "polar.default": lambda r, angle: Pair(r * angle.cos(), r * angle.sin()),
       "view_as_complex.default": lambda x: Pair(x.select(-1, 0), x.select(-1, 1)), "view_as_real.default": lambda a: torch.stack([a.re, a.im], -1),
       "real.default": lambda a: a.re, "imag.default": lambda a: a.im, "abs.default": lambda a: torch.hypot(a.re, a.im),
       "angle.default": lambda a: torch.atan2(a.im, a.re), "_to_copy.default": _to_copy, "_fft_c2c.default": _c2c, "_fft_r2c.default": _r2c, "_fft_c2r.default": _c2r}
# Ops that do the same with both parts.
EACH = set(
    "view.default _unsafe_view.default reshape.default permute.default transpose.int expand.default unsqueeze.default squeeze.dims squeeze.dim slice.Tensor "
    "select.int cat.default constant_pad_nd.default split.Tensor split_with_sizes.default unbind.int roll.default flip.default index.Tensor slice_scatter.default "
    "select_scatter.default sum.dim_IntList sum.default mean.dim mean.default clone.default alias.default detach.default tril.default triu.default "
    "where.self copy.default zeros_like.default new_zeros.default gather.default index_select.default diagonal.default cumsum.default".split())


def each(target, args, kwargs):
    kwargs = {k: part(v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()}
    if any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in torch.utils._pytree.tree_leaves(args, is_leaf=lambda a: isinstance(a, Pair))):
        raise Absent("real and complex tensors together")
    found = []
    for take in (lambda p: p.re, lambda p: p.im):
        def one(a):
            if isinstance(a, Pair):
                return take(a)
            if isinstance(a, complex):
                return take(Pair(a.real, a.imag))
            return a
        at = lambda tree: torch.utils._pytree.tree_map(one, tree, is_leaf=lambda a: isinstance(a, Pair))
        found.append(target(*at(args), **at(kwargs)))
    return [Pair(*two) for two in zip(*found)] if isinstance(found[0], (list, tuple)) else Pair(*found)


def step(node, args, kwargs):
    """What a node with complex operands or results gives."""
    target, val = node.target, node.meta.get("val")
    if target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        raise Absent(str(target))
    name = str(target)[5:]
    given = any(isinstance(a, Pair) for a in torch.utils._pytree.tree_leaves((args, kwargs), is_leaf=lambda a: isinstance(a, Pair)))
    if name in OPS:
        return OPS[name](*args, **kwargs)
    if name == "scalar_tensor.default":
        kwargs = {k: part(w) if k == "dtype" else w for k, w in kwargs.items()}
        return Pair(*(target(v, **kwargs) for v in (complex(args[0]).real, complex(args[0]).imag)))
    if name == "full.default" and is_complex(val):
        v = complex(args[1])
        kwargs = {k: part(w) if k == "dtype" else w for k, w in kwargs.items()}
        return Pair(target(args[0], v.real, **kwargs), target(args[0], v.imag, **kwargs))
    if name == "constant_pad_nd.default" and len(args) > 2 and args[2] != 0:
        raise Absent("a padding that is not 0")
    if name in EACH and given:
        return each(target, args, kwargs)
    raise Absent(name)


# ---------------------------------------------------------------- graphs


def as_real(gm):
    """(a graph of real numbers, a function of its call that takes and gives what gm does), or None: there are no complex numbers, or it
    cannot be said without them."""
    nodes = list(gm.graph.nodes)
    if not any(wide(n.meta.get("val")) for n in nodes):
        return None
    places = [n for n in nodes if n.op == "placeholder"]
    vals = [n.meta.get("val") for n in places]
    if any(isinstance(v, torch.SymInt) or isinstance(v, torch.Tensor) and any(isinstance(s, torch.SymInt) for s in v.shape) for v in vals):
        return None
    if not all(isinstance(v, torch.Tensor) for v in vals):
        return None
    modes = {v.fake_mode for v in vals if hasattr(v, "fake_mode")}
    if len(modes) != 1 or any(is_complex(v) and part(v.dtype) == v.dtype for v in vals):
        return None
    (mode,) = modes
    output = next(n for n in nodes if n.op == "output")
    wanted = list(output.args[0])

    def run(*args):
        env = {n: Pair(a.select(-1, 0), a.select(-1, 1)) if is_complex(v) else a for n, a, v in zip(places, args, vals)}
        for n in nodes:
            if n.op == "get_attr":
                env[n] = functools.reduce(getattr, n.target.split("."), gm)
                if is_complex(env[n]):
                    raise Absent("a complex constant")
            if n.op != "call_function":
                continue
            given = torch.fx.node.map_arg(n.args, env.__getitem__), torch.fx.node.map_arg(n.kwargs, env.__getitem__)
            touched = wide(n.meta.get("val")) or any(wide(a.meta.get("val")) for a in n.all_input_nodes)
            with set_current_meta(n):
                target = aten.neg.default if n.target is aten._neg_view.default else n.target  # of the imaginary part of a conjugate
                env[n] = step(n, *given) if touched else target(*given[0], **given[1])
        found = [env[r] if isinstance(r, torch.fx.Node) else r for r in wanted]
        return [torch.stack([f.re, f.im], -1) if isinstance(f, Pair) else f for f in found]
    from .decompose import table
    allowed, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode, preserve_node_meta():
            given = [torch.empty((*v.shape, 2), dtype=part(v.dtype), device=v.device) if is_complex(v) else
                     torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) if v.is_neg() else v for v in vals]
            made = make_fx(run, decomposition_table=table(), tracing_mode="real")(*given)
    except Absent:
        return None
    finally:
        mode.allow_non_fake_inputs = allowed
    which, turned = [k for k, v in enumerate(vals) if is_complex(v)], [k for k, v in enumerate(vals) if not is_complex(v) and v.is_neg()]
    given_back = [(k, places.index(r) if r in places else None, r.meta["val"].stride()) for k, r in enumerate(wanted)
                  if isinstance(r, torch.fx.Node) and is_complex(r.meta.get("val"))]

    def around(call):
        def whole(args):
            kept = list(args)
            args.clear()
            for k in which:
                kept[k] = torch.view_as_real(kept[k].resolve_conj().resolve_neg())
            for k in turned:
                kept[k] = kept[k].resolve_neg()
            first = {k: kept[k] for _, k, _ in given_back if k is not None}
            out = list(call(kept))
            for k, place, stride in given_back:
                t = torch.view_as_complex(first[place] if place is not None else out[k].contiguous())
                out[k] = t if place is not None or t.stride() == stride else torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)
            return out
        return whole
    return made, around
