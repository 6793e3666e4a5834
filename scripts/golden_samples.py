#!/usr/bin/env python3
"""Writes tests/data/golden/NAME.txt, the values that a current PyTorch gives for the samples of tests/samples.
usage: build/test/tests/test_samples --calls [OP] | scripts/golden_samples.py tests/data/golden   (needs torch; the tests need only the files)

An op of the table is found in PyTorch by its ATen name; those that have none there, or are parts of ATen ops, are said in ADAPT.
The format of the files is in tests/samples/sweep.c."""
import math
import os
import sys
import warnings

import torch

aten = torch.ops.aten
F = torch.nn.functional
TYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool"]
CLASS = {"float32": "f", "float64": "f", "float16": "f", "bfloat16": "f", "int32": "i", "int64": "i", "uint8": "u", "bool": "b"}
VALUES_OF = {"f": "float64", "i": "int64", "u": "uint8", "b": "bool"}


def statistics(x, w, b, eps):
    y, mean, rstd = aten.native_batch_norm(x, w if w is None else w.flatten(), b if b is None else b.flatten(), None, None, True, 0.0, eps)
    dims = [d for d in range(x.dim()) if d != 1]
    return y, mean, rstd, x.var(dims)


def ce_rows(x, t, ignore):
    return F.cross_entropy(x, t, ignore_index=ignore, reduction="none"), x.amax(1), (x - x.amax(1, keepdim=True)).exp().sum(1).log()


def others(x, dim=None):
    if not x.is_floating_point():
        raise RuntimeError("floats")
    flat = x.reshape(-1) if dim is None or x.dim() == 0 else x.movedim(dim, -1)
    n = flat.shape[-1]
    y = torch.stack([torch.cat([flat[..., :k], flat[..., k + 1:]], -1).prod(-1) for k in range(n)], -1) if n else flat
    return y.reshape(x.shape) if dim is None or x.dim() == 0 else y.movedim(-1, dim)


def resample_nearest(x, size, mode, step):
    """interpolate's nearest places, along the last dims; of the types that it takes."""
    if not x.dtype.is_floating_point and x.dtype != torch.uint8:
        raise RuntimeError("no such places")
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    for k, (n, s) in enumerate(zip(size, step)):
        dim = x.dim() - len(size) + k
        scale = torch.tensor(s, dtype=wide) if s > 0 else torch.tensor(x.shape[dim], dtype=wide) / torch.tensor(n, dtype=wide)
        at = ((torch.arange(n, dtype=wide) + 0.5 * mode) * scale).floor().long().clamp(max=x.shape[dim] - 1)
        x = x.index_select(dim, at)
    return x


def pad_edges(x, pad, mode):
    """F.pad of any dims: along each, elements at the places that those of the result are copies of."""
    for k in range(len(pad) // 2):
        dim = x.dim() - 1 - k
        n, at = x.shape[dim], torch.arange(-pad[2 * k], x.shape[dim] + pad[2 * k + 1])
        at = n - 1 - (n - 1 - at.abs()).abs() if mode == 0 else at.clamp(0, n - 1) if mode == 1 else at % n
        x = x.index_select(dim, at)
    return x


def transposed(f, g, size):
    x = torch.zeros(size, dtype=g.dtype, requires_grad=True)
    return torch.autograd.grad(f(x), x, g, create_graph=True)[0]


def exp_scan(w, of, at, dim):
    if not w.is_floating_point():
        raise RuntimeError("floats")
    return ((w.double() * of.double().exp()).cumsum(dim) * at.double().exp()).to(w.dtype)


def unfold_scatter(x, src, dim, size, step):
    y = x.clone()
    y.unfold(dim, size, step).copy_(src)
    return y


def scatter(x, dim, index, src, reduce=None):
    return x.scatter(dim, index, src) if reduce is None else x.scatter(dim, index, src, reduce=reduce)


def lyapunov(h, z):
    l, v = torch.linalg.eigh(h)
    return v @ (v.mT @ z @ v / (l.unsqueeze(-1) + l.unsqueeze(-2))) @ v.mT


def into(f):
    return lambda x, *a, **o: x.copy_(f(x, *a, **o))


def philox(seed, counter):
    x, k = [counter & 0xffffffff, counter >> 32, 0, 0], [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k[0], b & 0xffffffff, (a >> 32) ^ x[3] ^ k[1], a & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return x


def attention_keep(place, q, k, p):
    size = [*q.shape[:3], k.shape[2]]
    words = [w for i in range((math.prod(size) + 3) // 4) for w in philox(int(place[0]), int(place[1]) + i)][:math.prod(size)]
    return torch.tensor([(w >> 8) * 2.0**-24 < torch.tensor(1 - p).float().item() for w in words], dtype=torch.bool).reshape(size)


def attention_weights(q, k, v, mask, place, p, causal, scale):
    if not q.is_floating_point():
        raise RuntimeError("floats")
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = q.shape[1] // k.shape[1]
    q, k, v = q.to(compute), *(t.to(compute).repeat_interleave(group, 1) for t in (k, v))
    scores = q @ k.mT * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return q, k, v, scores, attention_keep(place, q, k, p).to(compute) / (1 - p) if place is not None else 1, group


def flash_attention(q, k, v, mask, place, p, causal, scale):
    dtype = q.dtype
    q, k, v, scores, kept, _ = attention_weights(q, k, v, mask, place, p, causal, scale)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -math.inf, 0).unsqueeze(-1)).exp() * kept
    return (weights @ v).transpose(1, 2).to(dtype), lse


def flash_attention_backward(grad, q, k, v, mask, place, lse, delta, p, causal, scale):
    dtype = q.dtype
    q, k, v, scores, kept, group = attention_weights(q, k, v, mask, place, p, causal, scale)
    grad, lse, delta = (t.to(q.dtype) for t in (grad.transpose(1, 2), lse, delta))
    weights = (scores - lse.unsqueeze(-1)).exp()
    d = weights * (grad @ v.mT * kept - delta.unsqueeze(-1))
    dq, dk, dv = d @ k * scale, d.mT @ q * scale, (weights * kept).mT @ grad
    dk, dv = (t.unflatten(1, (-1, group)).sum(2) for t in (dk, dv))
    return tuple(t.transpose(1, 2).to(dtype) for t in (dq, dk, dv))


def recur_type(t):
    if t.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"recur: {t.dtype}")


def recur(x, w, b, h, c, cell, reverse):
    recur_type(x)
    h = x.new_zeros(x.shape[1], w.shape[1]) if h is None else h
    c = torch.zeros_like(h) if c is None and cell == 3 else c
    states, cells, kept = [h], [c], []
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        y = F.linear(h, w, b)
        if cell < 2:
            h = [torch.tanh, torch.relu][cell](x[t] + y)
        elif cell == 2:
            (xr, xz, xn), (yr, yz, yn) = x[t].chunk(3, -1), y.chunk(3, -1)
            r, z = torch.sigmoid(xr + yr), torch.sigmoid(xz + yz)
            n = torch.tanh(xn + r * yn)
            kept.append(torch.cat([r, z, n, yn], -1))
            h = n + z * (h - n)
        else:
            i, f, g, o = (x[t] + y).chunk(4, -1)
            i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
            kept.append(torch.cat([i, f, g, o], -1))
            c = f * c + i * g
            h = o * torch.tanh(c)
            cells.append(c)
        states.append(h)
    turned = [torch.stack(v[::-1] if reverse else v) if len(v) > 1 or v is kept and v else None for v in (states, cells, kept)]
    return (turned[0], h, h.new_zeros(len(x) + 1, len(h), 0) if c is None else turned[1],
            h.new_zeros(len(h), 0) if c is None else c, h.new_zeros(len(x), len(h), 0) if not kept else turned[2])


def recur_backward(grad, last, last_cell, states, cells, kept, w, cell, reverse):
    recur_type(states)
    steps = len(states) - 1
    grad = torch.zeros_like(states) if grad is None else grad
    dh = torch.zeros_like(states[0]) if last is None else last
    dc = torch.zeros_like(cells[0]) if last_cell is None else last_cell
    dx, dy = [None] * steps, [None] * steps
    for t in range(steps) if reverse else reversed(range(steps)):
        after, before = (t, t + 1) if reverse else (t + 1, t)
        d, y, past = dh + grad[after], states[after], 0
        if cell == 0:
            dx[t] = dy[t] = d * (1 - y * y)
        elif cell == 1:
            dx[t] = dy[t] = torch.where(y <= 0, torch.zeros_like(d), d)
        elif cell == 2:
            r, z, n, yn = kept[t].chunk(4, -1)
            dn = d * (1 - z) * (1 - n * n)
            dx[t] = torch.cat([dn * yn * r * (1 - r), d * (states[before] - n) * z * (1 - z), dn], -1)
            dy[t] = torch.cat([*dx[t].chunk(3, -1)[:2], dn * r], -1)
            past = d * z
        else:
            i, f, g, o = kept[t].chunk(4, -1)
            c = torch.tanh(cells[after])
            e = dc + d * o * (1 - c * c)
            dx[t] = dy[t] = torch.cat([e * g * i * (1 - i), e * cells[before] * f * (1 - f), e * i * (1 - g * g), d * c * o * (1 - o)], -1)
            dc = e * f
        dh = past + dy[t] @ w
    dx, dy = torch.stack(dx), torch.stack(dy)
    return dx, dy if cell == 2 else dx[..., :0], dh + grad[steps if reverse else 0], dc


def ctc_ways(before, skips):
    """(N, L, 3): logarithms of the ways into each state"""
    low = torch.full_like(before[:, :1], -1e30)
    one = torch.cat([low, before[:, :-1]], 1)
    two = torch.cat([low, low, before[:, :-2]], 1)[:, :before.shape[1]]
    return torch.stack([before, one, torch.where(skips & (torch.arange(before.shape[1]) > 1), two, low.expand_as(two))], 2)


def ctc_type(t):
    if t.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"ctc: {t.dtype}")


def ctc_reach(score, skips, lengths):
    ctc_type(score)
    rows = [torch.where(torch.arange(score.shape[2]) < 2, score[0], torch.full_like(score[0], -1e30))]
    for t in range(1, score.shape[0]):
        rows.append(torch.where((t < lengths).unsqueeze(1), ctc_ways(rows[-1], skips).logsumexp(2) + score[t], rows[-1]))
    return torch.stack(rows)


def ctc_carry(x, reach, skips, lengths, back):
    ctc_type(x)
    size = x.shape[2]
    steps = [torch.eye(size, dtype=x.dtype).expand(x.shape[1], size, size)]  # [n, to, from]
    for t in range(1, x.shape[0]):
        w, share = torch.zeros(x.shape[1], size, size, dtype=x.dtype), ctc_ways(reach[t - 1], skips).softmax(2)
        for k in range(min(3, size)):
            w = w + torch.diag_embed(share[:, k:, k], -k)
        steps.append(torch.where((t < lengths)[:, None, None], w, steps[0]))
    if back:
        x, steps = x.flip(0), [steps[0], *(w.mT for w in steps[:0:-1])]
    rows = [x[0]]
    for t in range(1, x.shape[0]):
        rows.append(x[t] + (steps[t] @ rows[-1].unsqueeze(2)).squeeze(2))
    return torch.stack(rows).flip(0) if back else torch.stack(rows)


# rows of the table that are several overloads in PyTorch, or parts of one
SCATTERS = {
    "scatter": scatter,
    "scatter_scalar": scatter,
    "scatter_set": scatter,
    "scatter_mul": lambda x, dim, index, src: x.scatter_reduce(dim, index, src, "prod"),
    "scatter_max": lambda x, dim, index, src: x.scatter_reduce(dim, index, src, "amax"),
    "scatter_min": lambda x, dim, index, src: x.scatter_reduce(dim, index, src, "amin"),
}
SCATTERS |= {name + "_": into(f) for name, f in SCATTERS.items()}

REDUCTIONS = ["none", "mean", "sum", "batchmean"]


def class_value(x, t, ignore):
    return torch.where(t == ignore, torch.zeros_like(x.select(1, 0)), x.gather(1, t.long().masked_fill(t == ignore, 0).unsqueeze(1)).squeeze(1))


def wide(x, f):
    return f(x.float()).to(x.dtype) if x.is_floating_point() and x.element_size() == 2 else f(x)


def embedding_bag(w, indices, offsets=None, freq=False, mode=0, sparse=False, weights=None, last=False, pad=None):
    return F.embedding_bag(indices, w, offsets, scale_grad_by_freq=bool(freq), mode=["sum", "mean", "max"][mode], per_sample_weights=weights, include_last_offset=last, padding_idx=pad)


def unique(x, sorted=True, return_inverse=False, return_counts=False):
    return aten._unique2(x, sorted, return_inverse, return_counts)


def exact(name, *order):
    """Waves by mpmath: PyTorch's are up to 1e-5 off beyond 5, in float64 as well."""
    import mpmath
    kind, f = mpmath.airyai if name == "airy_ai" else getattr(mpmath, "bessel" + name[-2]), getattr(torch.special, name)

    def values(x):
        y = f(x)
        v = [float(kind(*order, t)) if math.isfinite(w) and math.isfinite(t) else w for t, w in zip(x.reshape(-1).tolist(), y.reshape(-1).tolist())]
        return y + (torch.tensor(v, dtype=y.dtype).reshape(y.shape) - y).nan_to_num().detach()
    return values


def incomplete(name):
    """Incomplete gamma functions by mpmath: PyTorch's are up to 3e-10 off in float64."""
    import mpmath
    f = getattr(torch, name)

    def value(a, x, y):
        if not (math.isfinite(a) and math.isfinite(x) and a > 0 and x > 0):
            return y
        return float(mpmath.gammainc(a, 0, x, regularized=True) if name == "igamma" else mpmath.gammainc(a, x, mpmath.inf, regularized=True))

    def values(a, x):
        y = f(a, x)
        rows = (t.reshape(-1).tolist() for t in (*torch.broadcast_tensors(a, x), y))
        v = torch.tensor([value(*row) for row in zip(*rows)], dtype=y.dtype).reshape(y.shape)
        return y + (v - y).nan_to_num().detach()
    return values


def standard_gamma_grad(a, y):
    """By mpmath: PyTorch's is an approximation of three digits."""
    import mpmath
    if not a.is_floating_point() or not y.is_floating_point():
        raise RuntimeError("floats")
    a, y = torch.broadcast_tensors(a, y)

    def slope(a, y):
        below = mpmath.diff(lambda s: mpmath.gammainc(s, 0, y, regularized=True), a)
        return float(-below / (mpmath.mpf(y) ** (a - 1) * mpmath.exp(-y) / mpmath.gamma(a)))
    with mpmath.workdps(40):
        v = [slope(s, t) for s, t in zip(a.reshape(-1).tolist(), y.reshape(-1).tolist())]
    return torch.tensor(v, dtype=a.dtype).reshape(a.shape)


def fake_quantize(x, scale, zero, low, high):
    size = torch.broadcast_to(scale, x.shape).shape
    scale, zero = scale.expand(size).reshape(-1), zero.expand(size).reshape(-1)
    return torch.fake_quantize_per_channel_affine(x.reshape(-1), scale, zero, 0, low, high).reshape(x.shape)


def histc_counts(x, low, high, bins):
    torch.finfo(x.dtype)  # of floats alone, as histc
    at = ((x - low) * bins / (high - low)).nan_to_num().long().clamp(max=bins - 1)
    return torch.bincount(at[(x >= low) & (x <= high)], minlength=bins).to(torch.int32)


def taps_of(t, index, weight):
    if weight.dtype not in (torch.float32, torch.float64):
        raise RuntimeError("weights are wide")
    return index.long().clamp(min=0), torch.where(index >= 0, weight, 0)


def weighted_gather(x, index, weight):
    at, by = taps_of(x, index, weight)
    return sum(x.gather(2, at[:, k:k + 1].expand(-1, x.shape[1], -1)) * by[:, k:k + 1] for k in range(at.shape[1]))


def weighted_scatter(grad, index, weight, places):
    at, by = taps_of(grad, index, weight)
    y = torch.zeros(*grad.shape[:2], places, dtype=weight.dtype)
    for k in range(at.shape[1]):
        y = y.scatter_add(2, at[:, k:k + 1].expand_as(grad), grad * by[:, k:k + 1])
    return y


def window(name):
    f = getattr(torch, name)
    return lambda n, periodic=True, *a, dtype=torch.float32: f(n, periodic, *a, dtype=torch.float64).to(dtype)  # rounded once


def signal_window(name, *names):
    f = getattr(torch.signal.windows, name)

    def values(n, *args, dtype=torch.float32, **more):
        given = {**dict(zip(names, args)), **more}
        return f(n, sym=not given.pop("periodic", True), dtype=torch.float64, **given).to(dtype)
    return values


ADAPT = {
    "nuttall_window": signal_window("nuttall", "periodic"),
    "cosine_window": signal_window("cosine", "periodic"),
    "gaussian_window": signal_window("gaussian", "periodic", "std"),
    "exponential_window": signal_window("exponential", "periodic", "center", "tau"),
    "general_cosine_window": signal_window("general_cosine", "a", "periodic"),
    "special_airy_ai": exact("airy_ai"),
    **{f"special_bessel_{kind}{n}": exact(f"bessel_{kind}{n}", n) for kind in "jy" for n in (0, 1)},
    "fake_quantize": lambda x, scale, zero, low, high: fake_quantize(x, scale, zero, low, high),
    "fake_quantize_per_tensor_affine_tensor_qparams": lambda x, scale, zero, low, high: aten.fake_quantize_per_tensor_affine.tensor_qparams(x, scale, zero, low, high),
    **{name: window(name) for name in ("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")},
    "igamma": incomplete("igamma"),
    "igammac": incomplete("igammac"),
    "igamma_": into(incomplete("igamma")),
    "igammac_": into(incomplete("igammac")),
    "standard_gamma": aten._standard_gamma,
    "standard_gamma_grad": standard_gamma_grad,
    "sample_dirichlet": aten._sample_dirichlet,
    "embedding_bag": embedding_bag,
    "unique": unique,
    "clamp_tensor": aten.clamp.Tensor,
    "special_xlog1py_scalar": aten.special_xlog1py.other_scalar,
    "rsub_scalar": aten.rsub.Scalar,
    "div_mode": lambda a, b, rounding_mode=None: torch.div(a, b, rounding_mode=rounding_mode),
    "div_mode_scalar": lambda a, b, rounding_mode=None: torch.div(a, b, rounding_mode=rounding_mode),
    "float_power_scalar": aten.float_power.Tensor_Scalar,
    "scalar_pow": aten.pow.Scalar,
    "where_scalar": aten.where.Scalar,
    "where_scalar_self": aten.where.ScalarSelf,
    "where_scalar_other": aten.where.ScalarOther,
    "weight_norm": aten._weight_norm,
    "type_as": lambda x, y: x.type_as(y),
    "sum_to_size": lambda x, size: x.sum_to_size(size),
    "histogram": lambda x, bins, range=None, weight=None, density=False: torch.histogram(
        x, bins, range=None if range is None else tuple(range), weight=weight, density=density),
    "histogram_bins": lambda x, bins, weight=None, density=False: torch.histogram(x, bins, weight=weight, density=density),
    "linalg_cond_str": lambda x, p: torch.linalg.cond(x, p),
    "linalg_cond": lambda x, p=None: torch.linalg.cond(x, p),
    "searchsorted": lambda rows, x, *sorter, **options: torch.searchsorted(
        rows, x, **options, **({"sorter": sorter[0]} if sorter and "sorter" not in options else {})),
    "search_rows": lambda rows, x, sorter=None, out_int32=False, right=False: torch.searchsorted(rows, x, sorter=sorter, out_int32=out_int32, right=right),
    "histc_counts": histc_counts,
    "weighted_gather": weighted_gather,
    "weighted_scatter": weighted_scatter,
    "repeat_interleave_tensor": lambda x, n, dim=None: torch.repeat_interleave(x, n, dim=dim),
    "randperm": torch.randperm,
    "linear_cross_entropy": lambda x, w, t, linear_bias=None, weight=None, reduction=1, ignore_index=None, label_smoothing=0.0: F.linear_cross_entropy(
        x, w, t, linear_bias=linear_bias, weight=weight, reduction=REDUCTIONS[reduction], ignore_index=ignore_index, label_smoothing=label_smoothing),
    "stft": lambda x, n, hop=None, win=None, window=None, center=True, mode="reflect", normalized=False, onesided=None, align_to_window=None:
        aten.stft.center(x, n, hop, win, window, center, mode, normalized, onesided, False, align_to_window),
    "istft": lambda x, n, hop=None, win=None, window=None, center=True, normalized=False, onesided=None, length=None: torch.istft(
        torch.view_as_complex(x.contiguous()), n, hop, win, window, center, normalized, onesided, length),
    "squeeze_copy": lambda x, dim: torch.squeeze_copy(x, dim),
    "squeeze_dims_copy": lambda x, dim=None: torch.squeeze_copy(x) if dim is None else torch.squeeze_copy(x, dim),
    "max_unpool1d": lambda x, at, size: aten.max_unpool2d(x.unsqueeze(-1), at.unsqueeze(-1), [*size, 1]).squeeze(-1),
    "segment_reduce": lambda x, reduce, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None: wide(
        x, lambda y: torch.segment_reduce(y, reduce, lengths=lengths, offsets=offsets, axis=axis, unsafe=unsafe, initial=initial)),
    "unsafe_masked_index": aten._unsafe_masked_index,
    "unsafe_masked_index_put_accumulate": aten._unsafe_masked_index_put_accumulate,
    "isreal": torch.isreal,
    "softmin": lambda x, dim, dtype=None: F.softmin(x, dim, dtype=dtype),
    "safe_softmax": aten._safe_softmax,
    "chunk_cat": lambda tensors, dim, parts: aten._chunk_cat(tensors, dim, parts),
    "unravel_index": lambda at, shape: torch.stack(torch.unravel_index(at, tuple(shape)), -1),
    "histogramdd": lambda x, bins, range=None, weight=None, density=False: (lambda r: (r.hist, torch.cat(r.bin_edges)))(torch.histogramdd(
        x, bins if len(bins) > 1 else bins[0], range=None if range is None else list(range), weight=weight, density=density)),
    "histogramdd_bins": lambda x, bins, weight=None, density=False: torch.histogramdd(x, bins, weight=weight, density=density).hist,
    "gradient": lambda x, spacing=None, dim=None, edge_order=1: (wide(x, lambda y: torch.gradient(y, spacing=1 if spacing is None else spacing, edge_order=edge_order, **({} if dim is None else {"dim": dim}))[0])),
    "gradient_x": lambda x, at, dim=0, edge_order=1: torch.gradient(x.float() if x.dtype.itemsize == 2 and at.dtype.itemsize > 2 else x, spacing=(at,), dim=dim, edge_order=edge_order)[0],
    "nll_loss": aten.nll_loss_nd,
    "class_value": class_value,
    "ctc_loss": aten.ctc_loss.Tensor,
    "cholesky_factor": lambda self, upper, check: torch.linalg.cholesky_ex(self, upper=upper),
    "solve_square": lambda A, B, singular: tuple(torch.linalg.solve_ex(A, B)),
    "lu_factors": lambda A, check: tuple(torch.linalg.lu_factor_ex(A, check_errors=check)),
    "pivots_order": lambda pivots, rows: torch.lu_unpack(torch.zeros(*pivots.shape[:-2], rows, pivots.shape[-2]), pivots.squeeze(-1), unpack_data=False)[0].argmax(-2),
    "ldl_solution": lambda LD, B, pivots: torch.linalg.ldl_solve(LD, pivots, B),
    "linalg_solve_ex": lambda A, B, left=True, check_errors=False: tuple(torch.linalg.solve_ex(A, B, left=left, check_errors=check_errors)),
    "solve_triangle": lambda A, B, upper, left, unit: torch.linalg.solve_triangular(A, B, upper=upper, left=left, unitriangular=unit),
    "lu_determinant": lambda A: (torch.linalg.det(A), *torch.linalg.slogdet(A)),
    "exponential_of": aten.matrix_exp,
    "qr_factors": lambda A, mode: torch.linalg.qr(A, ["reduced", "complete", "r"][mode]),
    "pseudo_inverse": lambda A, atol, rtol, hermitian: torch.linalg.pinv(A, atol=atol, rtol=rtol, hermitian=hermitian),
    "least_squares": lambda A, B, rcond: (lambda r: (r.solution, r.rank))(torch.linalg.lstsq(A, B, rcond)),
    "linalg_matrix_rank": lambda self, atol=None, rtol=None, hermitian=False: torch.linalg.matrix_rank(self, atol=atol, rtol=rtol, hermitian=hermitian),
    "linalg_pinv": lambda self, atol=None, rtol=None, hermitian=False: torch.linalg.pinv(self, atol=atol, rtol=rtol, hermitian=hermitian),
    "bilinear": lambda input1, input2, weight, bias=None: F.bilinear(input1, input2, weight, bias),
    "cross": lambda self, other, dim=None: torch.cross(self, other) if dim is None else torch.cross(self, other, dim=dim),
    "normalize": lambda input, p=2.0, dim=1, eps=1e-12: F.normalize(input, p, dim, eps),
    "binary_cross_entropy": lambda x, t, weight=None, reduction=1: F.binary_cross_entropy(x, t, weight, reduction=REDUCTIONS[reduction]),
    "binary_cross_entropy_with_logits": lambda x, t, weight=None, pos_weight=None, reduction=1:
        F.binary_cross_entropy_with_logits(x, t, weight, pos_weight=pos_weight, reduction=REDUCTIONS[reduction]),
    "binary_cross_entropy_elements": lambda x, t: F.binary_cross_entropy(x, t, reduction="none"),
    "kl_div": lambda x, t, reduction=1, log_target=False: F.kl_div(x, t, reduction=REDUCTIONS[reduction], log_target=log_target),
    "poisson_nll_loss": lambda x, t, log_input=True, full=False, eps=1e-8, reduction=1: aten.poisson_nll_loss(x, t, log_input, full, eps, reduction),
    "gaussian_nll_loss": lambda x, t, var, full=False, eps=1e-6, reduction=1: F.gaussian_nll_loss(x, t, var, full, eps, REDUCTIONS[reduction]),
    "multilabel_soft_margin_loss": lambda x, t, weight=None, reduction=1: F.multilabel_soft_margin_loss(x, t, weight, reduction=REDUCTIONS[reduction]),
    "pow_scalar": aten.pow.Tensor_Scalar,
    "cross_entropy": lambda x, t, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0:
        aten.cross_entropy_loss(x, t, weight, reduction, ignore_index, label_smoothing),
    "view_copy_dtype": aten.view_copy.dtype,
    "to_dtype": lambda x, dtype, **options: x.to(dtype, **options),
    "sort": lambda x, dim=-1, descending=False, stable=None: aten.sort.stable(x, stable=True, dim=dim, descending=descending),
    "argsort": lambda x, dim=-1, descending=False, stable=None: aten.sort.stable(x, stable=True, dim=dim, descending=descending)[1],
    "max_dim": aten.max.dim,
    "min_dim": aten.min.dim,
    "var_mean": aten.var_mean.correction,
    "std_mean": aten.std_mean.correction,
    "norm": lambda x, p=2, dim=None, keepdim=False, dtype=None: torch.norm(x, "fro" if p is None else p, dim, keepdim, dtype=dtype),
    "linalg_matrix_norm_str": aten.linalg_matrix_norm.str_ord,
    "linalg_norm_str": aten.linalg_norm.ord_str,
    "prod_others": others,
    "cumsum_reversed": lambda x, dim: x.flip(dim).cumsum(dim).flip(dim),
    "exp_scan": lambda w, of, at, dim, back:
        exp_scan(w.flip(dim), of.flip(dim), at.flip(dim), dim).flip(dim) if back and w.dim() else exp_scan(w, of, at, dim),
    "median_dim": aten.median.dim,
    "nanmedian_dim": aten.nanmedian.dim,
    "quantile_scalar": aten.quantile.scalar,
    "nanquantile_scalar": aten.nanquantile.scalar,
    "gather_shared": aten.gather.default,
    "allclose": lambda *a, **k: torch.tensor(aten.allclose(*a, **k)),
    "equal": lambda *a: torch.tensor(aten.equal(*a)),
    "trapezoid_x": aten.trapezoid.x,
    "cumulative_trapezoid_x": aten.cumulative_trapezoid.x,
    "batch_norm": lambda *a: F.batch_norm(a[0], *(a + (True, 0.1, 1e-5)[len(a) - 5:])[3:5], *a[1:3], *(a + (0.1, 1e-5)[len(a) - 6:])[5:8]),
    "batch_norm_train": statistics,
    "cross_entropy_rows": ce_rows,
    "conv_input": lambda g, w, size, *a: getattr(torch.nn.grad, f"conv{w.dim() - 2}d_input")(size, w, g, *a),
    "conv_weight": lambda g, x, size, *a: getattr(torch.nn.grad, f"conv{len(size) - 2}d_weight")(x, size, g, *a),
    **{f"lp_pool{n}d": lambda x, p, k, s=(), ceil=False, n=n: wide(x, lambda y: getattr(F, f"lp_pool{n}d")(
        y, p, (k * n if len(k) == 1 else k) if n > 1 else k[0], (s if n > 1 else s[0]) if s else None, ceil)) for n in (1, 2, 3)},
    "interpolate": lambda x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None, antialias=False:
        (wide if antialias else lambda x, f: f(x))(x, lambda y: F.interpolate(
            y, size, scale_factor or None, mode, align_corners, recompute_scale_factor, antialias)),  # no antialias of halves on a CPU
    "pad": F.pad,
    "grid_sample": F.grid_sample,
    "affine_grid": lambda x, *a: wide(x, lambda y: F.affine_grid(y, *a)),
    "fold": lambda x, *a: F.fold(x, *(v[0] if isinstance(v, (list, tuple)) and len(v) == 1 else v for v in a)),
    "lyapunov": lyapunov,
    "linalg_polar": lambda A: tuple(torch.linalg.polar(A)),
    "affine_grid_generator": lambda x, *a: wide(x, lambda y: aten.affine_grid_generator(y, *a)),
    "avg_pool3d": lambda x, *a, **k: wide(x, lambda y: aten.avg_pool3d(y, *a, **k)),  # no half pools of volumes on a CPU
    **{f"conv{n}d_padding": getattr(aten, f"conv{n}d").padding for n in (1, 2, 3)},
    "squeeze_dims": lambda x, dims=None: x.squeeze() if dims is None else x.squeeze(dims),
    "unfold_scatter": unfold_scatter,
    "eye": lambda n, m=None, dtype=None: torch.eye(n, n if m is None else m, dtype=dtype),
    "matrix_trace": aten.trace,
    "fliplr": torch.fliplr,
    "flipud": torch.flipud,
    "repeat_interleave": lambda x, n, dim=None, output_size=None: torch.repeat_interleave(x, n, dim=dim),
    "index_load": aten.index.Tensor,
    "index_place": lambda indices, sizes: torch.arange(math.prod(sizes)).reshape(sizes)[tuple(i.long() for i in indices)],
    "one_hot_rows": lambda x, n: F.one_hot(x.long(), n),
    **SCATTERS,
    "index_fill_": lambda x, dim, index, value: x.index_fill_(dim, index, value),
    "index_fill_scalar": lambda x, dim, index, value: x.index_fill(dim, index, value),
    "index_fill_scalar_": lambda x, dim, index, value: x.index_fill_(dim, index, value),
    "embedding_backward": lambda g, i, n: aten.embedding_dense_backward(g, i, n, -1, False),
    "lstm_data": aten.lstm.data,
    "gru_data": aten.gru.data,
    "rnn_tanh_data": aten.rnn_tanh.data,
    "rnn_relu_data": aten.rnn_relu.data,
    "pack_padded_sequence": aten._pack_padded_sequence,
    "pad_packed_sequence": aten._pad_packed_sequence,
    "rms_norm_rows": lambda x, shape, w, eps: (F.rms_norm(x, shape, w, eps),
                                               (x * x).mean(list(range(-len(shape), 0)), True).add(eps).rsqrt()),
    "local_response_norm": lambda x, *a: wide(x, lambda y: F.local_response_norm(y, *a)),
    "attention_keep": attention_keep,
    "flash_attention": flash_attention,
    "flash_attention_backward": flash_attention_backward,
    "recur": recur,
    "recur_backward": recur_backward,
    "ctc_reach": ctc_reach,
    "ctc_carry": ctc_carry,
    "pad_edges": pad_edges, "resample_nearest": resample_nearest,
    "pad_edges_input": lambda g, size, pad, mode: transposed(lambda x: pad_edges(x, pad, mode), g, size),
    "avg_pool_input": lambda g, size, *a: aten.avg_pool2d_backward(g, torch.zeros(size, dtype=g.dtype), *a),
}


def number(v):
    text = repr(float(v))  # the shortest decimal that reads back as the same double; also inf, -inf, nan
    return text[:-2] if text.endswith(".0") else text


def read(words):
    kind, rest = words[0], words[1:]
    if kind in ("tensor", "written", "constant"):
        ndim = int(rest[1])
        size = [int(v) for v in rest[2:2 + ndim]]
        values = torch.tensor([float(v) for v in rest[2 + ndim:]], dtype=torch.float64)
        return values.to(getattr(torch, rest[0])).reshape(size)
    if kind in ("ints", "floats"):
        return [int(v) if kind == "ints" else float(v) for v in rest]
    return {"none": lambda: None, "int": lambda: int(rest[0]), "float": lambda: float(rest[0]), "bool": lambda: rest[0] == "1",
            "dtype": lambda: getattr(torch, rest[0]), "str": lambda: rest[0]}[kind]()


def function(name):
    if name in ADAPT:
        return ADAPT[name]
    if name.endswith("_scalar") and hasattr(aten, name[:-7]):
        return getattr(aten, name[:-7]).Scalar
    return getattr(aten, name, None)


def calls(lines):
    for line in lines:
        words = line.rstrip("\n").split(" ")
        if words[0] == "call":
            file, name, dtype = words[1:4]
            text, args, options, written, constant = " ".join(words[4:]), [], {}, [], []
        elif words[0] == "end":
            yield file, name, dtype, text, args, options, written, constant
        elif words[2] == "list":
            args.append([])
        else:
            v = read(words[2:])
            if words[2] == "written":
                written.append(v)
            if words[2] == "constant":
                constant.append(v)
            if words[0] == "item":
                args[-1].append(v)
            elif words[0] == "option":
                options[words[1]] = v
            else:
                skipped = len(args)  # arguments that the sample left out have names from there on
                args.append((words[1], v))


def run(name, args, options, written):
    f = function(name)
    if f is None:
        return None
    plain = []
    for a in args:
        plain.append(a[1] if isinstance(a, tuple) else a)
    names = [a[0] if isinstance(a, tuple) else None for a in args]
    schema, code = getattr(getattr(f, "default", f), "_schema", None), getattr(f, "__code__", None)
    if schema is not None or code is not None:  # a gap in the arguments: the rest by name
        wanted = [a.name for a in schema.arguments] if code is None else list(code.co_varnames[:code.co_argcount])
        for k, n in enumerate(names):
            if n is not None and n in wanted and wanted.index(n) != k:
                options = {**options, **dict(zip(names[k:], plain[k:]))}
                plain = plain[:k]
                break
    result = f(*plain, **options)
    results = result if isinstance(result, (tuple, list)) else [result]
    results = [r for r in results if not any(r is w for w in written)]  # what is written and returned is looked at once
    return [*results, *(w.clone() for w in written)]


def tensors(args):
    for a in args:
        for v in a[1] if isinstance(a, tuple) and isinstance(a[1], list) else a if isinstance(a, list) else [a[1]]:
            if isinstance(v, torch.Tensor):
                yield v


def order_of(name, args, options, written, constant):
    """How often the first result can be differentiated with respect to the floats: a loss of its squares depends on it twice."""
    leaves = [t for t in tensors(args) if t.is_floating_point() and not any(t is w for w in written + constant)]
    for t in leaves:
        t.requires_grad_()
    out = run(name, args, options, written)[0]
    if not leaves or not out.requires_grad:
        return 0
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    try:
        grads = torch.autograd.grad((out * out * weight).sum(), leaves, create_graph=True, allow_unused=True)
    except RuntimeError as e:
        print(f"{name}: PyTorch's own gradient fails: {str(e).splitlines()[0]}", file=sys.stderr)
        return 2
    return 2 if any(g is not None and g.requires_grad for g in grads) else 1


def main():
    folder, files, seen = sys.argv[1], {}, {}
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    for file, name, dtype, text, args, options, written, constant in calls(sys.stdin):
        refused = None
        try:
            out = run(name, args, options, written)
            if out is None:
                print(f"{name}: PyTorch has no such op", file=sys.stderr)
                continue
        except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError) as e:
            out, refused = None, e
        s = seen.setdefault((file, name, text), {})
        s[dtype] = out
        if dtype == "float64":
            order = 0 if out is None else order_of(name, args, options, written, constant)
        if refused is not None and dtype in ("float32", "float64"):
            print(f"{name} {text} {dtype}: {str(refused).splitlines()[0]}", file=sys.stderr)
        if len(s) < len(TYPES):
            continue
        lines = [f"sample {name} {text}"]
        lines.append("types " + " ".join("-" if s[t] is None else "/".join(str(o.dtype).replace("torch.", "") for o in s[t]) for t in TYPES))
        lines.append(f"order {order}")
        for c, t in VALUES_OF.items():
            if s[t] is None:
                others = [u for u in TYPES if CLASS[u] == c and s[u] is not None]
                if others:
                    print(f"{name} {text}: {t} is refused, {others} are not", file=sys.stderr)
                continue
            for o in s[t]:
                values = [number(v) for v in o.reshape(-1).tolist()]
                lines.append(" ".join([c, str(o.dim()), *map(str, o.shape), *values]))
        for u, t in (("float32", "float64"), ("int32", "int64")):  # one list of values serves both
            for a, b in zip(s[u] or [], s[t] or []):
                if not torch.allclose(a.double(), b.double(), 1e-4, 1e-4, equal_nan=True):
                    print(f"{name} {text}: {u} and {t} have different values", file=sys.stderr)
        files.setdefault(file, []).append("\n".join(lines) + "\n")
    for file, parts in files.items():
        with open(os.path.join(folder, file + ".txt"), "w") as f:
            f.write("".join(parts))
    print(f"{len(seen)} samples in {len(files)} files, PyTorch {torch.__version__}", file=sys.stderr)


main()
