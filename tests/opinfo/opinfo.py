#!/usr/bin/env python3
"""PyTorch's own samples of its ops (OpInfo) through the library, and its results as the measure.

usage: python tests/opinfo/opinfo.py LIBRARY [--ops a,b] [--dtypes float32,int64] [--jobs N] [--list]   (needs a Python with torch; `make test-all`)

For every row of the op table that has an OpInfo, found by its name: all samples in all types, eagerly, over operands with gaps, and
compiled by "fused" (twice, with the bits of eager); gradients with respect to all float operands, eager and compiled; and OpInfo's wrong
calls, which must be errors. A sample goes to the first of the row, its Scalar form and its named overloads whose schema takes it; in-place
forms are run with those that PyTorch's own form takes. Each op runs in a process of its own, so that a crash is told and ends nothing.

A float result is right if torch.testing.assert_close says so, or if it is no further from the same op in float64 than twice what
PyTorch's is, or within 32 units in the last place of the largest element. What the library refuses, and where it differs on purpose, is
in reasons.txt; anything else makes the exit status 1, as does an op of core ATen or an OpInfo that is neither here nor in
docs/from-pytorch.md."""
import argparse
import collections
import fnmatch
import json
import multiprocessing
import os
import re
import sys
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch  # noqa: E402

from bridge import DTYPES, IN_PLACE, Library, Refused, Unsaid, attribute, default  # noqa: E402

FORMS = ("", "_with_indices", "_scalar", "_dim", "_dims", "_str", "_x", "_mode", "_tensor", "_other", "_padding")  # names of overloads
MODES = ("eager", "strided", "fused", "grad", "fused grad", "in place", "errors")
HERE = os.path.dirname(os.path.abspath(__file__))

# ---------------------------------------------------------------- from OpInfo's words to the schema's

# OpInfos whose name is not the op's.
OTHER_NAMES = {"max": ["max", "max_dim", "maximum"], "min": ["min", "min_dim", "minimum"], "to": ["to_dtype"], "div": ["div", "div_scalar", "div_mode"],
               "nn.functional.pad": ["constant_pad_nd", "pad"], "nn.functional.logsigmoid": ["log_sigmoid"], "squeeze": ["squeeze", "squeeze_dims"],
               "nn.functional.unfold": ["im2col"], "normal": ["normal_tensors"],
               "trace": ["matrix_trace"], "true_divide": ["div", "div_scalar"],
               "trapz": ["trapezoid", "trapezoid_x"], "clamp_min": ["clamp", "clamp_tensor"], "clamp_max": ["clamp", "clamp_tensor"],
               **{f"signal.windows.{w}": [f"{w}_window"] for w in ("bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine",
                                                                   "hamming", "hann", "kaiser", "nuttall")},
               "signal.windows.general_hamming": ["hamming_window"],
               "pinverse": ["linalg_pinv"], "fft.fftshift": ["fft_fftshift"], "fft.ifftshift": ["fft_ifftshift"],
               "gradient": ["gradient", "gradient_x"], "histogramdd": ["histogramdd", "histogramdd_bins"], "histogram": ["histogram", "histogram_bins"],
               "_segment_reduce": ["segment_reduce"],
               "_unsafe_masked_index": ["unsafe_masked_index"], "_unsafe_masked_index_put_accumulate": ["unsafe_masked_index_put_accumulate"],
               "_chunk_cat": ["chunk_cat"], "svd_lowrank": [], "pca_lowrank": [],  # of a product of their samples: tests/test_linalg.c
                "torch.ops.aten._safe_softmax.default": ["safe_softmax"], "squeeze_copy": ["squeeze_copy", "squeeze_dims_copy"],
               "_upsample_bilinear2d_aa": ["interpolate"], "nn.functional.upsample_bilinear": ["interpolate"],
               "nn.functional.upsample_nearest": ["interpolate"], "lu_solve": ["linalg_lu_solve"], "triangular_solve": ["linalg_solve_triangular"],
               "nn.functional.triplet_margin_with_distance_loss": ["triplet_margin_loss"],
               "linalg.diagonal": ["diagonal"]}
TYPES = {"bool": torch.bool, "byte": torch.uint8, "char": torch.int8, "double": torch.float64, "float": torch.float32, "half": torch.float16,
         "bfloat16": torch.bfloat16, "int": torch.int32, "long": torch.int64, "short": torch.int16}
OTHER_NAMES |= {**{name: ["to_dtype"] for name in TYPES}, "mT": ["transpose"], "mH": ["transpose"], "T": ["t"], "H": ["t"],
                "__rmatmul__": ["matmul"],
                **{f"__r{name}__": [row, row + "_scalar"] for name, row in (("add", "add"), ("mul", "mul"), ("sub", "rsub"), ("and", "bitwise_and"),
                                                                           ("or", "bitwise_or"), ("xor", "bitwise_xor"))}}
SYNONYMS = {"input": "self", "axis": "dim", "fill_value": "value", "training": "train"}
NEUTRAL = {"device", "layout", "pin_memory", "requires_grad", "memory_format", "generator", "inplace", "out", "sparse", "max_norm", "norm_type",
           "scale_grad_by_freq", "size_average", "as_tuple", "reduce", "non_blocking", "copy"}
USUAL = (2.0, "cpu", torch.strided, torch.contiguous_format)
NEVER_MIND = {"inplace", "requires_grad", "pin_memory", "non_blocking", "copy"}  # also if True
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2, "batchmean": 3}


def first_last(x, args, kw):
    return args[0], (x, *args[1:]), kw


def from_zero(x, args, kw):
    return (0, (x, 1), kw) if not args else (x, (*args, 1), kw) if len(args) == 1 else (x, args, kw)


def norm(x, args, kw):
    args, kw = list(args), dict(kw)
    if args and args[0] == "fro":
        args[0] = None
    if kw.get("p") == "fro":
        kw["p"] = None
    return x, tuple(args), kw


def converted(x, args, kw):
    kw = dict(kw)
    kw.pop("copy", None), kw.pop("memory_format", None)
    types = [a for a in (*args, *kw.values()) if isinstance(a, torch.dtype)]
    if not types:
        raise Unsaid("conversion to no type")
    return x, (types[0],), {}


def variance(x, args, kw):
    """unbiased, of the old overloads, is a correction of 1 or 0."""
    args, kw = list(args), dict(kw)
    at = 0 if args and isinstance(args[0], bool) else 1
    if len(args) > at and isinstance(args[at], bool):
        kw["unbiased"] = args.pop(at)
        if len(args) > at:
            kw["keepdim"] = args.pop(at)
    if kw.get("unbiased") is not None:
        kw["correction"] = int(kw.pop("unbiased"))
    return x, tuple(args), kw


def normalised(x, args, kw):
    """batch_norm(x, mean, var, weight, bias, training, ...): the schema has weight and bias first."""
    names = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    return x, (), {"weight": None, "bias": None, "running_mean": None, "running_var": None, "training": False, **dict(zip(names, args)), **kw}


def padded(x, args, kw):
    pad, mode, value = (*args, *(None,) * 3)[:3]
    mode, value = kw.get("mode", mode) or "constant", kw.get("value", value)
    return x, (pad,), {**({} if mode == "constant" else {"mode": mode}), **({} if value is None else {"value": value})}


def instances(x, args, kw):
    names = ("running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    usual = {"weight": None, "bias": None, "running_mean": None, "running_var": None, "use_input_stats": True, "momentum": 0.1, "eps": 1e-5,
             "cudnn_enabled": False}
    return x, (), {**usual, **dict(zip(names, args)), **kw}


def drawn(x, args, kw):
    """randint(high, size) and randint_like(x, high) begin at 0."""
    kw = dict(kw)
    if isinstance(x, torch.Tensor):
        return x, tuple(args) if len(args) + ("high" in kw) + ("low" in kw) > 1 else (0, *args), kw
    return (x, args, kw) if len(args) > 1 or "size" in kw and args else (0, (x, *args), kw)


def last_dims(x, args, kw):
    return x, args, {"dim1": -2, "dim2": -1, **kw}


def upper(x, args, kw):
    return x, (None, *args), kw


def windows(x, args, kw):
    names = ("kernel_size", "dilation", "padding", "stride")
    return x, (), {"dilation": 1, "padding": 0, "stride": 1, **dict(zip(names, args)), **kw}


def training(x, args, kw):
    names = ("p", "training")
    return x, (), {"p": 0.5, "training": False, **dict(zip(names, args)), **kw}


def training_told(x, args, kw):
    """By default these draw."""
    if "training" not in kw:
        raise Unsaid("no training")
    return x, args, kw


def adapted(x, args, kw):
    """A size of None is the operand's."""
    names = ("output_size", "return_indices")
    kw = {**dict(zip(names, args)), **kw}
    size = kw["output_size"]
    if isinstance(size, (tuple, list)) and None in size:
        kw["output_size"] = [x.shape[d - len(size)] if n is None else n for d, n in enumerate(size)]
    kw.pop("return_indices", None)  # the op gives both
    return x, (), kw


def unpooled(x, args, kw):
    names = ("indices", "kernel_size", "stride", "padding", "output_size")
    kw = {"stride": None, "padding": 0, "output_size": None, **dict(zip(names, args)), **kw}
    each = lambda v: list(v) if isinstance(v, (tuple, list)) else [v] * n
    n = kw.pop("places")
    kernel, padding = each(kw["kernel_size"]), each(kw["padding"])
    stride = kernel if kw["stride"] is None else each(kw["stride"])
    size = torch.nn.functional._unpool_output_size(x, kernel, stride, padding, kw["output_size"])
    return x, (kw["indices"], list(size)[-n:]), {"stride": stride, "padding": padding} if n == 3 else {}


def looked_up(x, args, kw):
    """A padding_idx below 0 counts from the end, for the op -1 is none."""
    kw = dict(kw)
    if kw.get("padding_idx") is not None and kw["padding_idx"] < 0:
        kw["padding_idx"] += x.shape[0]
    return x, args, kw


def bagged(x, args, kw):
    return x, args, {**kw, "mode": ("sum", "mean", "max").index(kw.get("mode", "mean"))}


def pairs(x, args, kw):
    """tensordot: a number of dims, or two lists."""
    dims = kw.get("dims", args[1] if len(args) > 1 else 2)
    a, b = (list(range(-dims, 0)), list(range(dims))) if isinstance(dims, int) else dims
    return x, (args[0], a, b), {}


def distances(x, args, kw):
    args, kw = tuple(args), {**dict(zip(("p", "compute_mode"), args[1:])), **kw}
    args = args[:1]
    modes = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    return x, args, {**kw, "compute_mode": modes.index(kw["compute_mode"])} if "compute_mode" in kw else kw


def unpooled_row(x, args, kw):
    """A row as a plane of one column, which is how PyTorch takes it."""
    x, args, kw = unpooled(x, args, {**kw, "places": 1})
    return x, args, kw


def slopes_of(x, args, kw):
    """Of one dim: a list of one spacing and one dim."""
    one = lambda v: v[0] if isinstance(v, (list, tuple)) and len(v) == 1 else v
    kw = {k: one(v) for k, v in kw.items() if v is not None}
    return (x, (kw.pop("spacing"),), kw) if isinstance(kw.get("spacing"), torch.Tensor) else (x, args, kw)


def resized(mode, **more):
    return lambda x, args, kw: (x, (), {**{"scale_factor" if k == "scale_factors" else "size" if k == "output_size" else k: v for k, v in
                                           {**dict(zip(("size", "scale_factor"), args)), **kw}.items() if v is not None}, "mode": mode, **more})


def windowed(x, args, kw):
    """By symmetry, of a number of places; general_hamming's alpha leaves beta."""
    kw = dict(kw)
    if "alpha" in kw and kw["alpha"] is not None:
        kw["beta"] = 1 - kw["alpha"]
    return x, (), {**dict(zip(("a",), args)), "periodic": not kw.pop("sym", True), **kw}


def default_distance(x, args, kw):
    kw = dict(kw)
    distance = kw.pop("distance_function", None)
    if distance is not None and not isinstance(distance, torch.nn.PairwiseDistance):
        raise Unsaid("a distance that is a function")
    return x, args, kw


def pairs_of_parts(x, args, kw):
    return x, args, {**kw, "return_complex": False}


def signal_of(x, args, kw):
    return torch.view_as_real(x.resolve_conj()).detach() if x.is_complex() else x, args, kw


def triangle(x, args, kw):
    if kw.get("transpose"):
        raise Unsaid("transpose=True")
    return args[0], (x,), {"upper": kw.get("upper", True), "unitriangular": kw.get("unitriangular", False)}


def each_class(x, args, kw):
    kw = {k: v for k, v in kw.items() if k != "options"}  # of how much memory is used on the way
    return x, args, kw


SAY = {"nn.functional.max_unpool1d": unpooled_row, "gradient": slopes_of, "_upsample_bilinear2d_aa": resized("bilinear", antialias=True),
       "nn.functional.upsample_bilinear": resized("bilinear", align_corners=True), "nn.functional.upsample_nearest": resized("nearest"),
       **{f"signal.windows.{w}": windowed for w in ("bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "hamming", "hann",
                                                    "kaiser", "nuttall", "general_hamming")},
       **{name: lambda x, args, kw, to=to: (x, (to,), {}) for name, to in TYPES.items()}, "__rmatmul__": first_last,
       **{name: lambda x, args, kw: (x, (-2, -1), {}) for name in ("mT", "mH")},
       "nn.functional.triplet_margin_with_distance_loss": default_distance, "stft": pairs_of_parts, "istft": signal_of,
       "triangular_solve": triangle, "lu_solve": lambda x, args, kw: (args[0], (args[1], x), kw), "nn.functional.linear_cross_entropy": each_class,
       **{f"nn.functional.adaptive_{kind}_pool{n}d": adapted for kind in ("avg", "max") for n in (1, 2, 3)},
       "nn.functional.max_unpool2d": lambda x, args, kw: unpooled(x, args, {**kw, "places": 2}), "nn.functional.alpha_dropout": training,
       "nn.functional.max_unpool3d": lambda x, args, kw: unpooled(x, args, {**kw, "places": 3}),
       "where": first_last, "polygamma": first_last, "special.polygamma": first_last, "special.polygamma_special_polygamma_n_0": first_last,
       "einsum": first_last, "nn.functional.instance_norm": instances, "tensordot": pairs, "cdist": distances,
        "arange": from_zero, "randint": drawn, "randint_like": drawn, "nn.functional.unfold": windows, "nn.functional.embedding": looked_up, "nn.functional.embedding_bag": bagged,
       "nn.functional.feature_alpha_dropout": training, "nn.functional.dropout2d": training_told, "nn.functional.dropout3d": training_told,
       "clamp_max": upper, "linalg.diagonal": last_dims, "norm": norm, "to": converted, "var": variance, "std": variance,
       "var_mean": variance, "std_mean": variance, "nn.functional.batch_norm": normalised, "nn.functional.pad": padded}
# Ops whose indices, and where gradients go by these, may be those of any of several equal elements.
PLACES = {"topk", "kthvalue", "mode", "median_dim", "nanmedian_dim", "sort", "argsort", "msort"}
# Ops whose results may have either sign, column by column: sizes of elements are compared, and gradients where the signs are the same.
SIGNS = {"linalg_eigh", "linalg_svd"}
# Where Python's function gives less than the op.
OPS = {"stft": lambda x, *args, return_complex=None, **kw: torch.view_as_real(torch.stft(x, *args, return_complex=True, **kw)),
       "unravel_index": lambda at, shape: torch.stack(torch.unravel_index(at, shape), -1),
       "gradient": lambda x, **kw: torch.gradient(x, **{k: v for k, v in kw.items() if v is not None}),
       "histogramdd": lambda x, bins, **kw: (lambda r: r.hist if isinstance(bins[0], torch.Tensor) else (r.hist, torch.cat(r.bin_edges)))(
           torch.histogramdd(x, bins, **kw)),
       "triangular_solve": lambda b, a, **kw: torch.triangular_solve(b, a, **kw)[0],
       "unique_consecutive": torch.ops.aten.unique_consecutive.default,
       "unique": lambda x, sorted=True, return_inverse=False, return_counts=False, dim=None:
           torch.ops.aten._unique2(x, sorted, return_inverse, return_counts) if dim is None
           else torch.ops.aten.unique_dim(x, dim, sorted, return_inverse, return_counts)}


def bind(row, name, sample):
    """(tensors, attributes) of the row's call; Unsaid if its schema does not take the sample."""
    x, args, kw = SAY.get(name, lambda *a: a)(sample.input, tuple(sample.args), dict(sample.kwargs))
    if kw.get("return_indices") is not None and kw.pop("return_indices") != row.name.endswith("_with_indices"):
        raise Unsaid("return_indices")
    values, given, keep = [x, *args], {}, []
    positional, names = [p for p in row.params if not p.keyword], {p.name for p in row.params}
    for k, p in enumerate(positional):
        if not values:
            break
        if p.many and p.length == 0 and p.base == "int" and len(values) > 1 and all(type(v) is int for v in values):
            given[p.name], values = values, []  # permute(0, 2, 1)
        else:
            given[p.name] = values.pop(0)
    if values:
        raise Unsaid(f"more than {len(positional)} positional arguments")
    for n, v in kw.items():
        n = n if n in names else SYNONYMS.get(n, n)
        if n in names:
            given[n] = v
        elif isinstance(v, torch.Tensor) or not (v is None or n in NEVER_MIND or n in NEUTRAL and (v is False or v is not True and v in USUAL)):
            raise Unsaid(n if isinstance(v, torch.Tensor) else f"{n}={v!r}")
    tensors, attrs = [], []
    for p in row.params:
        v = given.get(p.name)
        if p.tensor and p.many:
            if not isinstance(v, (list, tuple)) or not all(isinstance(t, torch.Tensor) for t in v):
                raise Unsaid(f"{p.name}: no list of tensors")
            tensors += v
        elif p.tensor:
            if not isinstance(v, torch.Tensor) and not (v is None and p.optional):
                raise Unsaid(f"{p.name}: {type(v).__name__}, no tensor")
            tensors.append(v)
        else:
            if p.name == "reduction" and p.base == "int" and v in REDUCTIONS:
                v = REDUCTIONS[v]
            absent = p.name not in given or (v is None and not p.optional and p.default)
            attrs.append(attribute(p, default(p) if absent else v, keep))
    for t in tensors:
        if t is not None and (t.dtype not in DTYPES or t.layout != torch.strided or t.is_conj() or t.is_neg()):
            raise Unsaid(f"{t.dtype} {t.layout}")
    return tensors, attrs, keep


def rows_of(info, rows):
    base = re.sub(r"^(nn\.functional|special|_refs|masked|signal\.windows)\.", "", info.name).replace(".", "_")
    if info.name in OTHER_NAMES:
        return [rows[n] for n in OTHER_NAMES[info.name] if n in rows]
    if re.match(r"masked\.|signal\.|_refs\.", info.name):
        return []
    if info.name.startswith("special.") and "special_" + base in rows:
        base = "special_" + base
    found = [rows[base + f] for f in FORMS if base + f in rows]
    for alias in info.aliases:
        found = found or [rows[alias.name + f] for f in FORMS if alias.name + f in rows]
    return found


# ---------------------------------------------------------------- the measure


def tree(f, v):
    if isinstance(v, torch.Tensor):
        return f(v)
    if isinstance(v, (list, tuple)) and type(v) in (list, tuple):
        return type(v)(tree(f, e) for e in v)
    return {k: tree(f, e) for k, e in v.items()} if isinstance(v, dict) else v


def changed(f, sample):
    from torch.testing._internal.opinfo.core import SampleInput
    return SampleInput(tree(f, sample.input), args=tree(f, tuple(sample.args)), kwargs=tree(f, dict(sample.kwargs)))


def fresh(t):
    return t.detach().clone(memory_format=torch.preserve_format).requires_grad_(t.requires_grad)


def gaps(t):
    if t.dim() == 0 or t.numel() < 2:
        return fresh(t)
    return torch.repeat_interleave(t.detach(), 2, dim=-1)[..., ::2].requires_grad_(t.requires_grad)


def wide(t):
    return t.detach().double().requires_grad_(t.requires_grad) if t.dtype.is_floating_point else t.detach()


def results(v):
    v = v if isinstance(v, (list, tuple)) else [v]
    return [t if isinstance(t, torch.Tensor) else torch.tensor(t) for t in v if isinstance(t, (torch.Tensor, bool))]


def wrong(got, want, exact):
    """"" or what is wrong. exact(): the result in float64, or None."""
    if got.dtype != want.dtype:
        return f"{got.dtype}, PyTorch gives {want.dtype}"
    if got.shape != want.shape:
        return f"size {tuple(got.shape)}, PyTorch gives {tuple(want.shape)}"
    try:
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False)
        return ""
    except AssertionError as e:
        text = " ".join(str(e).split())[:200]
    truth = exact() if got.dtype.is_floating_point else None
    if truth is None or truth.shape != got.shape or not truth.dtype.is_floating_point:
        return text
    there = got.isfinite()
    if torch.equal(there, want.isfinite()):
        if not torch.equal(got[~there].nan_to_num(), want[~there].nan_to_num()):
            return text
    elif not torch.equal(there, truth.to(got.dtype).isfinite()):  # PyTorch may overflow on the way
        return text
    use = there & want.isfinite() & truth.isfinite()
    mine, theirs = ((t.double() - truth).abs()[use].max().item() if use.any() else 0.0 for t in (got, want))
    unit = torch.finfo(got.dtype).eps * (truth[use].abs().max().item() if use.any() else 0.0)
    return "" if mine <= max(2 * theirs, 32 * unit) else text


def same_places(x, a, b):
    """Do two tensors of indices along some dim name equal elements? Which of several equal ones is found is nobody's promise."""
    for d in range(x.dim()):
        i, j = (t if t.dim() == x.dim() else t.unsqueeze(d) for t in (a, b))
        if i.dim() != x.dim() or any(n > m for k, (n, m) in enumerate(zip(i.shape, x.shape)) if k != d):
            continue
        if i.numel() and (int(min(i.min(), j.min())) < 0 or int(max(i.max(), j.max())) >= x.shape[d]):
            continue
        if torch.equal(x.gather(d, i).nan_to_num(), x.gather(d, j).nan_to_num()):
            return True
    return False


def by_value(x, g):
    """What elements of g belong to each of the different elements of x, added up."""
    values, which = torch.unique(x.detach().nan_to_num(), return_inverse=True)
    return torch.zeros(values.numel(), dtype=torch.float64).index_add(0, which.flatten(), g.double().flatten())


def decided(op, k, t, want):
    """Of result k what is not anyone's choice: signs, and what completes the vectors of svd to a basis."""
    if op == "linalg_svd" and k != 1:
        n = want[1].shape[-1]
        t = t[..., :n] if k == 0 else t[..., :n, :]
    return t.abs() if op in SIGNS else t


def same_bits(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.is_floating_point:  # one NaN is as good as another
        if not torch.equal(a.isnan(), b.isnan()):
            return False
        a, b = a.masked_fill(a.isnan(), 0), b.masked_fill(b.isnan(), 0)
        return torch.equal(a, b) and torch.equal(a.signbit(), b.signbit())
    return torch.equal(a, b)


def starts(outs):
    """Gradients to begin from, the same numbers in every type."""
    return [torch.cos(torch.arange(o.numel(), dtype=torch.float64)).reshape(o.shape).to(o.dtype) for o in outs]


def leaves_of(tensors):
    found = []
    for t in tensors:
        if t is not None and t.requires_grad and not any(t is u for u in found):
            found.append(t)
    return found


def reference(op, sample, leaves):
    """PyTorch's results and, of those that have a gradient, the gradients of the leaves; None: it has no derivative here."""
    outs = results(op(sample.input, *sample.args, **sample.kwargs))
    which = [k for k, o in enumerate(outs) if o.requires_grad]
    if not leaves or not which:
        return [o.detach() for o in outs], which, None
    roots = [outs[k] for k in which]
    try:
        grads = torch.autograd.grad(roots, leaves, starts(roots), allow_unused=True)
    except RuntimeError:
        return [o.detach() for o in outs], which, None
    return [o.detach() for o in outs], which, [None if g is None else g.detach() for g in grads]


class Checker:
    def __init__(self, lib, rows, info, put):
        self.lib, self.rows, self.info, self.put = lib, rows, info, put
        self.op = OPS.get(info.name, info.op)

    def choose(self, sample):
        """The row whose schema takes the sample, and its call."""
        why = "no row"
        for row in self.rows:
            try:
                return (row, *bind(row, self.info.name, sample))
            except Unsaid as e:
                why = str(e)
        raise Unsaid(why)

    def sample(self, sample, dtype, layout):
        """layout: a function that gives each tensor of the sample its memory."""
        strided = layout is gaps
        sample = changed(layout, sample)
        mode, tell = "strided" if strided else "eager", lambda m, why: self.put(self.rows[0].name, m, dtype, why, sample)
        try:
            row, tensors, attrs, keep = self.choose(sample)
        except Unsaid as e:
            return None if strided else tell(mode, f"unsaid: {e}")
        tell = lambda m, why: self.put(row.name, m, dtype, why, sample)
        leaves = leaves_of(tensors)
        try:
            want, which, want_grads = reference(self.op, sample, leaves)
        except Exception:  # PyTorch does not take it
            return None
        exact = []

        def truth():
            if not exact:
                again = changed(wide, sample)
                try:
                    exact.extend(reference(self.op, again, leaves_of(self.choose(again)[1])))
                except Exception:  # not in float64
                    exact.extend([[], [], None])
            return exact

        def compare(got, m):
            if len(got) < len(want):
                return tell(m, f"{len(got)} results, PyTorch gives {len(want)}")
            for k, w in enumerate(want):
                if unsure(row, sample):
                    why = "" if got[k].dtype == w.dtype and got[k].shape == w.shape else f"{got[k].dtype} {tuple(got[k].shape)}"
                else:
                    def part(t):
                        return decided(row.name, k, t, want) if t.shape == w.shape else t

                    why = wrong(part(got[k]), part(w), lambda: part(truth()[0][k]) if k < len(truth()[0]) else None)
                if why and row.name in PLACES and got[k].dtype == w.dtype == torch.int64 and got[k].shape == w.shape \
                        and same_places(sample.input.detach(), got[k], w):
                    why = ""
                if why:
                    return tell(m, f"result {k}: {why}")
            return tell(m, "")

        def gradients(handles, outs, m, compare_with=None):
            owners = [t for t in tensors if t is not None]
            inputs = [next(h for h, u in zip(handles, tensors) if u is t) for t in leaves]
            asked = [k for k in which if want[k].numel() or self.lib.requires_grad(outs[k])]  # of nothing there is none
            roots = [outs[k] for k in asked if self.lib.requires_grad(outs[k])]
            if len(roots) < len(asked):
                tell(m, "a result without a gradient") if any(g is not None and g.count_nonzero() for g in want_grads) else tell(m, "")
                return None
            held = starts([want[k] for k in asked])
            grads = self.lib.gradients(roots, inputs, [self.lib.tensor(t) for t in held])
            got = [None if not g else self.lib.torch(g) for g in grads]
            del owners
            if compare_with is not None:
                same = all((a is None) == (b is None) and (a is None or same_bits(a, b)) for a, b in zip(got, compare_with))
                tell(m, "" if same else "bits: another gradient than eager")
                return got
            if row.name in SIGNS and any((a * b < 0).any() for a, b in zip(values, want)):
                return got
            for k, (a, b) in enumerate(zip(got, want_grads)):
                a, b = (torch.zeros_like(leaves[k]).detach() if g is None else g for g in (a, b))
                why = wrong(a, b, lambda: truth()[2][k] if truth()[2] and k < len(truth()[2]) else None)
                if why and row.name in PLACES and a.shape == b.shape and not wrong(by_value(leaves[k], a), by_value(leaves[k], b), lambda: None):
                    why = ""
                if why:
                    tell(m, f"gradient {k}: {why}")
                    return got
            tell(m, "")
            return got

        seen = {}

        def handle(t):
            if t is None:
                return None
            if id(t) not in seen:
                seen[id(t)] = self.lib.tensor(t.detach(), t.requires_grad and want_grads is not None)
            return seen[id(t)]

        with self.lib.scope():
            try:
                handles = [handle(t) for t in tensors]
                outs = self.lib.call(row, handles, attrs)
                got = [self.lib.torch(h) for h in outs]
            except Refused as e:
                return tell(mode, f"refused: {e}")
            compare(got, mode)
            values, eager_grads = got, None
            random = unsure(row, sample)
            if want_grads is not None and not random:
                try:
                    eager_grads = gradients(handles, outs, "grad" if not strided else "strided")
                except Refused as e:
                    tell("grad" if not strided else "strided", f"refused: {e}")
            if strided or random:
                return None
            try:
                with self.lib.compiled(row, handles, attrs) as run:
                    for turn in range(2):
                        outs = run(handles)
                        again = [self.lib.torch(h) for h in outs]
                        if not all(map(same_bits, again, got)):
                            return tell("fused", "bits: another result than eager")
                    tell("fused", "")
                    if eager_grads is not None:
                        gradients(handles, outs, "fused grad", eager_grads)
            except Refused as e:
                tell("fused", f"refused: {e}")
        return None

    def in_place(self, row, sample, dtype):
        """The form in place, where PyTorch's takes the sample."""
        op = getattr(torch.Tensor, row.name, None)
        if op is None or not isinstance(sample.input, torch.Tensor):
            return
        sample = changed(lambda t: t.detach().clone(), sample)
        try:
            want = op(sample.input.clone(), *sample.args, **sample.kwargs)
            tensors, attrs, keep = bind(row, self.info.name, sample)
        except Exception:
            return
        target = sample.input.clone()
        with self.lib.scope():
            try:
                handles = [self.lib.tensor(target)] + [self.lib.tensor(t) for t in tensors[1:]]
                got = self.lib.torch(self.lib.call(row, handles, attrs)[0])
            except Refused as e:
                return self.put(row.name, "in place", dtype, f"refused: {e}", sample)
        why = "" if unsure(row, sample) else wrong(got, want, lambda: op(wide(sample.input), *tree(wide, tuple(sample.args)), **tree(wide, dict(sample.kwargs))))
        self.put(row.name, "in place", dtype, why, sample)

    def error(self, e):
        """A wrong call must be an error, where it can be said at all."""
        sample = e.sample_input
        try:
            row, tensors, attrs, keep = self.choose(sample)
        except Unsaid:
            return
        try:
            self.info.op(sample.input, *sample.args, **sample.kwargs)
            return  # PyTorch takes it by now
        except Exception as error:
            theirs = str(error).split("\n")[0]
        with self.lib.scope():
            try:
                outs = self.lib.call(row, [self.lib.tensor(t if t is None else t.detach()) for t in tensors], attrs)
                for h in outs:
                    self.lib.torch(h)
            except (Refused, Unsaid):
                return self.put(row.name, "errors", "", "", sample)
        self.put(row.name, "errors", "", f"taken; PyTorch: {theirs}", sample)


def unsure(row, sample):
    """Random, or memory as it was found: type and size are all that can be compared."""
    draws = any(p.base == "Generator" for p in row.params) or "dropout" in row.name and sample.kwargs.get("training", False)
    return draws or "empty" in row.name or sample.kwargs.get("dropout_p", 0.0) > 0


# ---------------------------------------------------------------- running


def brief(sample):
    return str(tree(lambda t: f"{str(t.dtype)[6:]}{tuple(t.shape)}", [sample.input, tuple(sample.args), dict(sample.kwargs)]))[:200]


def run_info(path, info, rows, names, dtypes, pipe):
    """Everything of one OpInfo, in a process of its own."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lib = Library(path)
    counts, failures, state = collections.Counter(), {}, [""]

    def put(row, mode, dtype, why, sample):
        kind = "said" if why.startswith("unsaid") else "no" if why.startswith("refused") else "bad" if why else "ok"
        counts[row, mode, kind] += 1
        if why:
            key = (row, mode, re.sub(r"-?\d[\d.e+-]*", "N", why)[:90])
            failures.setdefault(key, [0, why, dtype, brief(sample)])[0] += 1

    checker = Checker(lib, [rows[n] for n in names], info, put)
    forms = [rows[n + "_"] for n in names if n + "_" in rows]
    for dtype in dtypes:
        if dtype not in DTYPES or dtype not in info.dtypes:
            continue
        word = str(dtype)[6:]
        grad = dtype in (torch.float32, torch.float64, torch.bfloat16) and info.supports_autograd
        try:
            samples = list(info.sample_inputs("cpu", dtype, requires_grad=grad))
        except Exception as e:  # of the generator
            continue
        for s in samples:
            pipe.send(("at", brief(s)))
            checker.sample(s, word, fresh)
            checker.sample(s, word, gaps)
            for form in forms:
                checker.in_place(form, s, word)
    if info.error_inputs_func is not None:
        try:
            errors = list(info.error_inputs("cpu"))
        except Exception:
            errors = []
        for e in errors:
            pipe.send(("at", brief(e.sample_input)))
            checker.error(e)
    pipe.send(("done", [(*k, n) for k, n in counts.items()], [(*k, *v) for k, v in failures.items()]))


def run_all(path, work, dtypes, jobs, limit):
    """Yields (name, counts, failures) as OpInfos end."""
    context, waiting, live = multiprocessing.get_context("fork"), list(work), []
    while waiting or live:
        while waiting and len(live) < jobs:
            info, rows, names = waiting.pop(0)
            mine, theirs = context.Pipe(False)
            p = context.Process(target=run_info, args=(path, info, rows, names, dtypes, theirs))
            p.start()
            theirs.close()
            live.append([p, mine, info, names, "", time.monotonic()])
        for entry in list(live):
            p, pipe, info, names, at, began = entry
            done = None
            try:
                while pipe.poll(0.02):
                    message = pipe.recv()
                    if message[0] == "at":
                        entry[4] = message[1]
                    else:
                        done = message[1:]
            except EOFError:
                p.join()
                done = done or ([(names[0], "eager", "bad", 1)], [(names[0], "eager", "crash", 1, f"crash: the process ended with {p.exitcode}", "", entry[4])])
            if not done and time.monotonic() - began > limit:
                p.kill()
                done = ([(names[0], "eager", "bad", 1)], [(names[0], "eager", "time", 1, f"crash: not ready after {limit} s", "", entry[4])])
            if done:
                p.join()
                live.remove(entry)
                yield (info, *done)


def core_without_rows(rows):
    """Ops of core ATen that are no rows and of which docs/from-pytorch.md does not say what stands for them."""
    with open(os.path.join(HERE, "../../docs/from-pytorch.md")) as f:
        told, lacking = f.read().partition("### Names of core ATen")[2], set()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix("aten::")
        op = getattr(getattr(torch.ops.aten, name, None), schema.overload_name or "default", None) if name != schema.name else None
        if op is not None and torch.Tag.core in op.tags and name not in rows and f"`{name}`" not in told:
            lacking.add(name)
    return sorted(lacking)


def names_without_rows(infos, rows):
    """OpInfos that no row stands for and of which docs/from-pytorch.md does not say what does."""
    with open(os.path.join(HERE, "../../docs/from-pytorch.md")) as f:
        table = f.read().partition("### Names of OpInfo")[2]
    told = [name for line in table.splitlines() if line.startswith("| ") for name in re.findall("`([^`]*)`", line.split(" | ")[0])]
    return sorted({i.name for i in infos if not rows_of(i, rows) and not any(fnmatch.fnmatchcase(i.name, t) for t in told)})


def reasons():
    with open(os.path.join(HERE, "reasons.txt")) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                op, words, reason = (part.strip() for part in line.split(" | "))
                yield op, re.compile(words), reason


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--ops", help="rows or OpInfos, by name")
    parser.add_argument("--dtypes", default="float32,float64,float16,bfloat16,int64,int32,int16,int8,uint8,bool")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=int, default=900, help="for one op")
    parser.add_argument("--json", help="counts and failures as a file")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    path, rows = os.path.abspath(o.library), Library(os.path.abspath(o.library)).rows()
    wanted, work, covered = set(o.ops.split(",")) if o.ops else None, [], set()
    for info in op_db:
        names = [r.name for r in rows_of(info, rows) if not r.flags & IN_PLACE]
        if names and (wanted is None or info.name in wanted or wanted & set(names)):
            work.append((info, rows, names))
            covered.update(names)
    dtypes = [getattr(torch, d) for d in o.dtypes.split(",")]
    documented = list(reasons())
    counts, failures = collections.Counter(), collections.defaultdict(list)
    for info, some, bad in run_all(path, work, dtypes, o.jobs, o.seconds):
        for row, mode, kind, n in some:
            counts[row, mode, kind] += n
        for row, mode, _, n, why, dtype, sample in bad:
            failures[row].append((mode, n, why, dtype, sample))
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"counts": [(*k, n) for k, n in counts.items()], "failures": failures}, f, indent=1)

    print(f"PyTorch {torch.__version__}: of {len(rows)} ops {len(covered)} have an OpInfo")
    print(f"{'op':32}" + "".join(f"{m:>12}" for m in MODES) + f"{'refused':>10}{'unsaid':>8}")
    for row in sorted({r for r, _, _ in counts}):
        line = f"{row:32}"
        for m in MODES:
            ok, bad = counts[row, m, "ok"], counts[row, m, "bad"]
            line += f"{f'{ok}/{ok + bad}' if ok + bad else '-':>12}"
        print(line + f"{sum(counts[row, m, 'no'] for m in MODES):>10}{sum(counts[row, m, 'said'] for m in MODES):>8}")
    undocumented, told = [], collections.Counter()
    for row in sorted(failures):
        for mode, n, why, dtype, sample in failures[row]:
            reason = next((r for op, words, r in documented if re.fullmatch(op, row) and words.search(f"{mode}: {why} {sample}")), None)
            if reason:
                told[row, reason] += n
            elif why.startswith("unsaid"):
                told[row, "the schema has no place for " + why[8:60]] += n
            else:
                undocumented.append(f"{row} [{mode}, {dtype}, {n} times]: {why}\n    {sample}")
    print("\nrefused or otherwise on purpose:")
    for (row, reason), n in sorted(told.items()):
        print(f"  {row:32} {n:5}  {reason}")
    lacking = [] if wanted else core_without_rows(rows)
    undocumented += [f"{name}: of core ATen, and neither a row nor in docs/from-pytorch.md" for name in lacking]
    absent = [] if wanted else names_without_rows(op_db, rows)
    undocumented += [f"{name}: an OpInfo without a row, and not in docs/from-pytorch.md" for name in absent]
    print("\ndifferences:" if undocumented else "\nno differences")
    for line in undocumented:
        print("  " + line)
    passed, all_of = (sum(n for (_, _, k), n in counts.items() if k in kinds) for kinds in (("ok",), ("ok", "bad", "no", "said")))
    print(f"{passed} of {all_of} checks passed, {sum(told.values())} did not, for a stated reason; {len(undocumented)} kinds of difference")
    return 1 if undocumented else 0


if __name__ == "__main__":
    sys.exit(main())
