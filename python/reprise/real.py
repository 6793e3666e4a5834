"""Graphs with complex numbers as graphs of real ones: a complex tensor is a pair of tensors, and transforms are products with matrices of
cosines and sines, of a size's factors one after the other. Where an op has no place here, or a size that is transformed changes, the graph stays
as it is.

Called by dynamo.py before a graph is lowered; knows nothing of the library."""
import contextlib
import copy
import functools
import math
import operator

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
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


def pair(v, dtype, device):
    """v as a pair of this type of its parts: a tensor, a number or already one."""
    if isinstance(v, Pair):
        return v if v.re.dtype == dtype else Pair(v.re.to(dtype), v.im.to(dtype))
    if isinstance(v, torch.Tensor):
        re = v.to(dtype)
        return Pair(re, torch.zeros_like(re))
    if isinstance(v, SYMBOLS):
        return Pair(torch.full((), v, dtype=dtype, device=device), torch.full((), 0.0, dtype=dtype, device=device))
    v = complex(v)
    return Pair(*(torch.full((), x, dtype=dtype, device=device) for x in (v.real, v.imag)))


NARROW = {torch.complex64: torch.float32, torch.complex128: torch.float64}
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def part(dtype):
    return NARROW.get(dtype, dtype)


def is_complex(v):
    return isinstance(v, torch.Tensor) and v.is_complex()


def wide(v):
    """Does a node's value hold complex numbers?"""
    return any(is_complex(t) for t in (v if isinstance(v, (list, tuple)) else [v]))


# ---------------------------------------------------------------- arithmetic


def product(a, b):
    """Of two pairs. Products and sums are those of PyTorch's kernels, in their order; its vectors may fuse a product with a sum, which shows in a last bit and where a
    product overflows."""
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def _add(a, b, alpha=1):
    alpha = complex(alpha)
    b = product(Pair(alpha.real, alpha.imag), b)
    return Pair(a.re + b.re, a.im + b.im)


def _sub(a, b, alpha=1):
    return _add(a, b, -alpha)


def _conj(a):
    return Pair(a.re, -a.im) if isinstance(a, Pair) else a.conjugate()  # or a number


def _neg(a):
    return Pair(-a.re, -a.im)


def _div(a, b):
    """By the larger part of the divisor, so that its square need not be held."""
    first = b.re.abs() >= b.im.abs()
    large, small = torch.where(first, b.re, b.im), torch.where(first, b.im, b.re)
    nothing = (b.re == 0) & (b.im == 0)
    ratio = small / large
    scale = 1 / (large + small * ratio)
    re = torch.where(first, a.re + a.im * ratio, a.re * ratio + a.im) * scale
    im = torch.where(first, a.im - a.re * ratio, a.im * ratio - a.re) * scale
    return Pair(torch.where(nothing, a.re / b.re.abs(), re), torch.where(nothing, a.im / b.im.abs(), im))


def _pow(a, exponent):
    if not isinstance(a, Pair) or exponent not in (0, 1, 2, 3):
        raise Absent("a power")
    found = Pair(torch.ones_like(a.re), torch.zeros_like(a.re)) if exponent == 0 else a
    for _ in range(int(exponent) - 1):
        found = product(found, a)
    return found


def _bilinear(f):
    def product(a, b):
        if not isinstance(a, Pair):
            return Pair(f(a, b.re), f(a, b.im))
        if not isinstance(b, Pair):
            return Pair(f(a.re, b), f(a.im, b))
        return Pair(f(a.re, b.re) - f(a.im, b.im), f(a.re, b.im) + f(a.im, b.re))
    return product


def _exp(a):
    """With the limits of C's cexp, and without what is too large between numbers that are not."""
    size, half, cos, sin = a.re.exp(), (a.re * 0.5).exp(), a.im.cos(), a.im.sin()
    large, lost = size.isinf(), ~a.im.isfinite()
    re = torch.where(large, half * (half * cos), size * cos)
    im = torch.where(large, half * (half * sin), size * sin)
    low, high = lost & (a.re == -math.inf), lost & (a.re == math.inf)
    re = torch.where(low, 0.0, torch.where(high, math.inf, re))
    im = torch.where(low, torch.where(a.im < 0, -0.0, 0.0), torch.where(a.im == 0, a.im, im))
    return Pair(re, im)


def _sgn(a):
    size = torch.hypot(a.re, a.im)
    at = torch.where(size == 0, 1, size)
    return Pair(a.re / at, a.im / at)


def _to_copy(a, dtype=None, **more):
    if dtype == torch.bool:
        return aten._to_copy.default((a.re != 0) | (a.im != 0), **more)
    if dtype is not None and not dtype.is_complex:
        return aten._to_copy.default(a.re, dtype=dtype, **more)
    to = part(dtype) if dtype is not None else None
    if not isinstance(a, Pair):
        a = Pair(a, torch.zeros_like(a))
    return Pair(*(aten._to_copy.default(t, **({"dtype": to} if to else {}), **more) for t in (a.re, a.im)))


# ---------------------------------------------------------------- transforms


def product_precision():
    """What PyTorch's switches say of products of float32 on a GPU. Which of them were used decides which of them may be asked."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


@functools.cache
def turns(n, m, of, dtype, device):
    """cos and sin of 2 pi j k / of, for j < n and k < m."""
    with disable_proxy_modes_tracing(), unset_fake_temporarily():
        angle = (torch.arange(n)[:, None] * torch.arange(m)[None, :] % of).double() * (2 * math.pi / of)
        return angle.cos().to(dtype).to(device), angle.sin().to(dtype).to(device)


def factor(n):
    """The largest divisor of n that is not above its root, unless n is small."""
    return 1 if n <= 16 else max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)


def _last(x, sign):
    """Of the last dim; n = p q: sums over q, turns, sums over p."""
    n = x.re.shape[-1]
    if not isinstance(n, int):
        raise Absent("a transform of a size that changes")
    if x.re.dtype == torch.float32 and x.re.device.type == "cuda" and product_precision() != "highest":
        raise Absent("a transform by products that are rounded to TF32")
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
    x = product(x, Pair(cos, sin * sign))
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
    if not isinstance(n, int) or n > 1024:
        raise Absent("a transform of a large size to real numbers")
    for k in dim[:-1]:
        x = _along(x, k, 1)
    half = n // 2 + 1
    here = Pair(x.re.narrow(d, 0, half), x.im.narrow(d, 0, half))
    place = torch.arange(half, device=x.re.device)
    alone = (place == 0) | (2 * place == n)
    weight = torch.where(alone, 1, 2).to(x.re.dtype)
    cos, sin = turns(half, n, n, x.re.dtype, x.re.device)
    re, im = here.re.transpose(d, -1) * weight, here.im.transpose(d, -1) * torch.where(alone, 0, 2).to(x.re.dtype)
    y = (re @ cos - im @ sin).transpose(d, -1)
    return _scaled(Pair(y, y), normalization, n * math.prod(x.re.shape[k] for k in dim[:-1])).re


def _masked_fill(a, mask, value):
    value = complex(value)
    return Pair(a.re.masked_fill(mask, value.real), a.im.masked_fill(mask, value.imag))


def _equal(a, b):
    return (a.re == b.re) & (a.im == b.im)


def _full_like(a, value, dtype=None, **more):
    like = a.re if isinstance(a, Pair) else a
    if dtype is not None and not dtype.is_complex:
        return aten.full_like.default(like, value, dtype=dtype, **more)
    value = complex(value)
    return Pair(*(aten.full_like.default(like, v, dtype=dtype and part(dtype), **more) for v in (value.real, value.imag)))


# Of two operands that are made pairs of one type first, as PyTorch's kernels see them: a real one has an imaginary part, 0, that takes
# part in what is calculated.
OF_TWO = {"eq.Scalar": _equal, "eq.Tensor": _equal, "ne.Scalar": lambda a, b: ~_equal(a, b), "ne.Tensor": lambda a, b: ~_equal(a, b),
          "mul.Tensor": product, "mul.Scalar": product, "add.Tensor": _add, "add.Scalar": _add, "sub.Tensor": _sub, "sub.Scalar": _sub,
          "rsub.Scalar": lambda a, b, alpha=1: _sub(b, a, alpha), "div.Tensor": _div, "div.Scalar": _div}
OPS = {"masked_fill.Scalar": _masked_fill, "neg.default": _neg, "reciprocal.default": lambda a: _div(pair(1, a.re.dtype, a.re.device), a),
       "pow.Tensor_Scalar": _pow, "mm.default": _bilinear(torch.mm), "bmm.default": _bilinear(torch.bmm), "exp.default": _exp, "sgn.default": _sgn,
       "isnan.default": lambda a: a.re.isnan() | a.im.isnan(), "isinf.default": lambda a: a.re.isinf() | a.im.isinf(), "full_like.default": _full_like, "fill.Scalar": _full_like,
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
    "where.self copy.default lift_fresh_copy.default zeros_like.default new_zeros.default gather.default index_select.default diagonal.default cumsum.default".split())


# Of these all operands hold numbers, but for a condition; of the others in EACH all but the first are places.
MIXED = {"where.self", "cat.default", "copy.default", "slice_scatter.default", "select_scatter.default"}
is_pair = lambda a: isinstance(a, Pair)


def each(name, target, args, kwargs, like):
    kwargs = {k: part(v) if isinstance(v, torch.dtype) else v for k, v in kwargs.items()}
    if name in MIXED:
        widened = lambda a: pair(a, part(like.dtype), like.device) if isinstance(a, torch.Tensor) else a
        first = args[:1] if name == "where.self" else ()
        args = (*first, *torch.utils._pytree.tree_map(widened, args[len(first):], is_leaf=is_pair))
    found = []
    for take in (lambda p: p.re, lambda p: p.im):
        one = lambda a: take(a) if isinstance(a, Pair) else a
        at = lambda tree: torch.utils._pytree.tree_map(one, tree, is_leaf=is_pair)
        found.append(target(*at(args), **at(kwargs)))
    return [Pair(*two) for two in zip(*found)] if isinstance(found[0], (list, tuple)) else Pair(*found)


def check(v, val):
    """Is v what the node gives by its value in the graph?"""
    if isinstance(val, (list, tuple)):
        for a, b in zip(v, val, strict=True):
            check(a, b)
    elif isinstance(val, torch.Tensor) and not isinstance(v, complex):
        kinds = [v.re, v.im] if isinstance(v, Pair) else [v]
        if isinstance(v, Pair) != is_complex(val) or any(t.shape != val.shape or t.dtype != part(val.dtype) for t in kinds):
            raise Absent(f"a result that is {val.dtype}, {tuple(val.shape)}")


def step(node, args, kwargs):
    """What a node with complex operands or results gives."""
    target, val = node.target, node.meta.get("val")
    if target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        raise Absent(str(target))
    name = str(target)[5:]
    given = any(is_pair(a) for a in torch.utils._pytree.tree_leaves((args, kwargs), is_leaf=is_pair))
    if name in OF_TWO:
        of = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in node.args[:2]]
        dtype, device = torch.result_type(*of), next(v.device for v in of if isinstance(v, torch.Tensor))
        if dtype not in NARROW:
            raise Absent(f"numbers of type {dtype}")
        return OF_TWO[name](*(pair(a, NARROW[dtype], device) for a in args[:2]), *args[2:], **kwargs)
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
        return each(name, target, args, kwargs, val[0] if isinstance(val, (list, tuple)) else val)
    raise Absent(name)


# ---------------------------------------------------------------- graphs


def constant(t):
    """A tensor of the graph's own."""
    if not is_complex(t):
        return t
    if t.dtype not in NARROW:
        raise Absent(f"numbers of type {t.dtype}")
    with disable_proxy_modes_tracing(), unset_fake_temporarily():
        return Pair(*(p.contiguous() for p in torch.view_as_real(t.resolve_conj().resolve_neg()).unbind(-1)))


def restrided(t, stride):
    """t as it lies, or a copy that lies so; dims that were expanded are again."""
    if t.numel() == 0 or all(a == b or n == 1 for a, b, n in zip(t.stride(), stride, t.shape)):
        return t
    whole = t.shape
    for d in range(t.dim()):
        t = t.narrow(d, 0, 1) if stride[d] == 0 and t.shape[d] > 1 else t
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t).expand(whole)


def as_traced(val):
    """A function that lays a tensor as `val` lies, which is a result of the graph. Where strides change, each is the next inner one, of the traced
    call, times its size: real parts keep the places between them."""
    strides = val.stride()
    if all(isinstance(s, int) for s in strides):
        return lambda t: restrided(t, strides)
    inward = sorted(range(val.dim()), key=lambda d: strides[d].node.hint if isinstance(strides[d], torch.SymInt) else strides[d])
    inward = [d for d in inward if not isinstance(strides[d], int) or strides[d] != 0]

    begin = strides[inward[0]] if inward and isinstance(strides[inward[0]], int) else 1

    def lay(t):
        dense, step = [0] * t.dim(), begin
        for d in inward:
            dense[d] = step
            step *= max(t.shape[d], 1)
        return restrided(t, dense)
    return lay


def shared(r, whole):
    """Is a result a view of complex numbers that somebody else holds, an argument or one of `whole`, the results? Autograd makes such a view again,
    of the strides and the offset that it would have."""
    n, wanted = r, False
    while isinstance(n, torch.fx.Node) and n.op == "call_function":
        schema = getattr(n.target, "_schema", None)
        if n.target is not operator.getitem and (schema is None or not any(r.alias_info is not None for r in schema.returns)):
            break
        wanted = wanted or wide(n.meta.get("val"))
        n = n.args[0]
        if n in whole:
            break
    return n is not r and (n.op == "placeholder" or n in whole) and (wanted or wide(n.meta.get("val")))


KNOWN = ("guards", "axioms", "var_to_range", "var_to_range_sloc", "replacements", "replacements_slocs", "divisible", "symbol_guard_counter")
VERSIONS = ("_version_counter", "_replacements_version_counter")


@contextlib.contextmanager
def for_all_sizes(env):
    """What is traced in here holds for all sizes that the graph is called with. What it takes for granted of them becomes a guard of the graph, as
    long as there may be more of those, unless it makes a number of a symbol; else it is Absent, and nothing is known of sizes that was not before."""
    if env is None:
        yield
        return
    known = {name: copy.copy(getattr(env, name)) for name in KNOWN if hasattr(env, name)}
    try:
        with env.error_on_new_guards() if env.frozen else contextlib.nullcontext():
            yield
        if env.replacements != known["replacements"]:
            raise Absent("sizes that would be numbers")
    except Exception as e:
        for name, value in known.items():
            setattr(env, name, value)
        for name in VERSIONS:
            if hasattr(env, name):
                setattr(env, name, getattr(env, name) + 1)
        for cached in vars(type(env)).values():  # answers, which are guards no more
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        if isinstance(e, (AttributeError, RuntimeError, AssertionError, TypeError)):
            raise Absent(f"sizes that decide: {e}") from None
        raise


def as_real(gm, private=None):
    """(a graph of real numbers, a function of its call that takes and gives what gm does), or None: there are no complex numbers, or it
    cannot be said without them. private: in the meta of results that a backward alone reads."""
    nodes = list(gm.graph.nodes)
    if not any(wide(n.meta.get("val")) for n in nodes):
        return None
    places = [n for n in nodes if n.op == "placeholder"]
    vals = [n.meta.get("val") for n in places]
    leaves = [v for n in nodes for v in torch.utils._pytree.tree_leaves(n.meta.get("val"))]
    symbols = [s for v in leaves for s in ([*v.shape, *v.stride()] if isinstance(v, torch.Tensor) else [v]) if isinstance(s, SYMBOLS)]
    if any(free_unbacked_symbols(s) for s in symbols) or not all(isinstance(v, (torch.Tensor, torch.SymInt)) for v in vals):
        return None
    sizes = symbols[0].node.shape_env if symbols else None
    modes = {v.fake_mode for v in vals if hasattr(v, "fake_mode")}
    if len(modes) != 1 or any(is_complex(v) and v.dtype not in NARROW for v in leaves):
        return None
    (mode,) = modes
    written = {n.args[0] for n in nodes if n.target is aten.copy_.default}
    negative = [isinstance(v, torch.Tensor) and v.is_neg() for v in vals]
    if any(n in written and neg for n, neg in zip(places, negative)):
        return None
    output = next(n for n in nodes if n.op == "output")
    wanted = list(output.args[0])
    if symbols and any(shared(r, set(wanted) - {None}) for r in wanted if isinstance(r, torch.fx.Node) and private not in r.meta):
        return None

    def run(*args):
        env = {n: Pair(a.select(-1, 0), a.select(-1, 1)) if is_complex(v) else a for n, a, v in zip(places, args, vals)}
        for n in nodes:
            if n.op == "get_attr":
                env[n] = constant(functools.reduce(getattr, n.target.split("."), gm))
            if n.op != "call_function":
                continue
            given = torch.fx.node.map_arg(n.args, env.__getitem__), torch.fx.node.map_arg(n.kwargs, env.__getitem__)
            touched = wide(n.meta.get("val")) or any(wide(a.meta.get("val")) for a in n.all_input_nodes) or any(isinstance(a, complex) for a in n.args)
            with set_current_meta(n):
                target = aten.neg.default if n.target is aten._neg_view.default else n.target  # of the imaginary part of a conjugate
                if touched:
                    env[n] = step(n, *given)
                    check(env[n], n.meta.get("val"))
                else:
                    env[n] = target(*given[0], **given[1])
        found = [env[r] if isinstance(r, torch.fx.Node) else r for r in wanted]
        return [torch.stack([f.re, f.im], -1) if isinstance(f, Pair) else f for f in found]
    from .decompose import table
    allowed, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with mode, preserve_node_meta(), for_all_sizes(sizes):
            given = [torch.empty((*v.shape, 2), dtype=part(v.dtype), device=v.device) if is_complex(v) else
                     torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) if neg else v for v, neg in zip(vals, negative)]
            made = make_fx(run, decomposition_table=table(), tracing_mode="real")(*given)
    except Absent:
        return None
    finally:
        mode.allow_non_fake_inputs = allowed
    which, turned = [k for k, v in enumerate(vals) if is_complex(v)], [k for k, v in enumerate(vals) if not is_complex(v) and negative[k]]
    given_back = [(k, places.index(r) if r in places else None, is_complex(r.meta["val"]), as_traced(r.meta["val"])) for k, r in enumerate(wanted)
                  if isinstance(r, torch.fx.Node) and isinstance(r.meta.get("val"), torch.Tensor)]

    def around(call):
        def whole(args):
            kept = list(args)
            args.clear()
            for k in which:
                kept[k] = torch.view_as_real(kept[k].resolve_conj().resolve_neg())
            for k in turned:
                kept[k] = kept[k].resolve_neg()
            first = {k: kept[k] for _, k, *_ in given_back if k is not None}
            out = list(call(kept))
            for k, place, paired, lay in given_back:
                t = first[place] if place is not None else out[k]
                if paired:
                    t = torch.view_as_complex(t if place is not None else t.contiguous()).detach()  # as a tensor of its own
                out[k] = t if place is not None else lay(t)
            return out
        return whole
    return made, around
