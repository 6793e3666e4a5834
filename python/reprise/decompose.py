"""Which ATen ops PyTorch takes apart before the library sees them, and how those are taken apart that it leaves whole."""
import functools
import math

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

aten = torch.ops.aten

# Beside core_aten_decompositions(): gradients and norms in terms of simpler ops.
MORE = ["threshold_backward", "native_layer_norm_backward", "_softmax_backward_data", "_log_softmax_backward_data", "gelu_backward", "silu_backward",
        "sigmoid_backward", "tanh_backward", "hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward", "elu_backward",
        "softplus_backward", "mish_backward", "logit_backward", "log_sigmoid_backward", "native_dropout_backward", "glu_backward",
        "native_group_norm", "native_group_norm_backward", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
        "_native_batch_norm_legit_functional", "_batch_norm_with_update_functional", "_batch_norm_no_update", "batch_norm_backward",
        "native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
        "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "mse_loss", "mse_loss_backward",
        "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward",
        "binary_cross_entropy_with_logits", "upsample_bilinear2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "upsample_nearest2d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d", "_upsample_nearest_exact2d",
        "_fused_rms_norm", "_fused_rms_norm_backward", "rms_norm", "select_backward", "slice_backward",
        "diagonal_backward", "unfold_backward", "_euclidean_dist", "reflection_pad1d_backward", "reflection_pad2d_backward",
        "replication_pad2d_backward", "std.correction", "lstm.input", "gru.input", "rnn_tanh.input",
        "rnn_relu.input", "_weight_norm_interface", "unsafe_split", "unsafe_chunk"]
WHOLE = ["embedding", "lerp", "logsumexp", "mv", "dot", "vdot", "roll", "tril", "triu", "xlogy", "renorm", "baddbmm", "addmv", "addr", "fill", "masked_fill",
         "std_mean.correction", "index_copy", "index_add", "im2col", "col2im", "bucketize", "native_layer_norm", "linalg_vector_norm", "rot90", "_safe_softmax",
         "embedding_dense_backward", "expand_copy", "pixel_shuffle", "pixel_unshuffle", "split_with_sizes"]


def _overloads(name):
    base, _, overload = name.partition(".")
    packet = getattr(aten, base, None)
    if packet is None:
        return []
    return [getattr(packet, overload)] if overload else [getattr(packet, o) for o in packet.overloads()]


def table():
    """Decompositions for AOT autograd."""
    there = {packet: getattr(torch.ops.transformers, packet, None) for packet in GROUPED}  # once that is imported
    return {**_of_aten(), **{op.default: GROUPED[packet] for packet, op in there.items() if op is not None}}


@functools.cache
def _of_aten():
    found = dict(core_aten_decompositions())
    for name in MORE:
        for op in _overloads(name):
            try:
                found.update(get_decompositions([op]))
            except (RuntimeError, KeyError):
                continue
    for name in WHOLE:
        for op in _overloads(name):
            found.pop(op, None)
    found.update({op: f for name, f in OWN.items() for op in _overloads(name)})
    found.update({op: _of_each(name) for name in LISTS for op in _overloads("_foreach_" + name)})
    return found


# ---------------------------------------------------------------- what PyTorch has no decomposition of


def _encoder_layer(src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1, norm_bias_1,
                   norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None, mask_type=None):
    """The fast path of nn.TransformerEncoderLayer, an op of inference. mask_type 1: keys that are hidden, (batch, keys); else of whole scores.
    Whatever is not 0 in it hides, also where it is of floats."""
    F = torch.nn.functional
    if mask is not None and mask_type == 1:
        mask = mask[:, None, None, :]

    def attention(x):
        q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in F.linear(x, qkv_weight, qkv_bias).chunk(3, -1))
        scores = (q * (q.shape[-1] ** -0.5)) @ k.transpose(-1, -2)
        scores = scores if mask is None else scores.masked_fill(mask.to(torch.bool), -math.inf)
        y = scores.softmax(-1) @ v
        return F.linear(y.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed(x):
        return F.linear((F.gelu if use_gelu else F.relu)(F.linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    def norm(x, weight, bias):
        return F.layer_norm(x, [embed_dim], weight, bias, eps)
    if norm_first:
        src = src + attention(norm(src, norm_weight_1, norm_bias_1))
        return src + feed(norm(src, norm_weight_2, norm_bias_2))
    src = norm(src + attention(src), norm_weight_1, norm_bias_1)
    return norm(src + feed(src), norm_weight_2, norm_bias_2)


def _weight_norm_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    """Of w = v * (g / norms), norms over all dims but one."""
    norms, others = saved_norms.view(saved_g.shape), [d for d in range(saved_v.dim()) if d != dim]
    along = (grad_w * saved_v).sum(others, keepdim=True)
    return (saved_g / norms) * (grad_w - saved_v * (along / norms ** 2)), along / norms


def _cdist_backward(grad, x1, x2, p, cdist):
    """Of the rows of x1; 0 where rows are equal."""
    d, g, whole = x1.unsqueeze(-2) - x2.unsqueeze(-3), grad.unsqueeze(-1), cdist.unsqueeze(-1)
    if p == 0:
        return (g * d * 0).sum(-2)
    if p == 1:
        return (g * d.sign()).sum(-2)
    if p == math.inf:
        return (g * d.sign() * (d.abs() == whole)).sum(-2)
    part = d if p == 2 else d.sign() * d.abs() ** (p - 1)
    return torch.where((whole == 0) | (d == 0), 0, g * part / (whole if p == 2 else whole ** (p - 1))).sum(-2)


def _trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """Sums over some dims of a product of three, each of which lacks some: what nn.Bilinear and its gradients are."""
    whole = i1.dim() + len(expand1)
    places = ["".join(chr(97 + d) for d in range(whole) if d not in {e % whole for e in expand}) for expand in (expand1, expand2, expand3)]
    left = "".join(chr(97 + d) for d in range(whole) if d not in {s % whole for s in sumdim})
    return torch.einsum(",".join(places) + "->" + left, i1, i2, i3)


def _bags(offsets, n, bags):
    """The bag of each of n indices; offsets may tell where the last one ends, too."""
    return torch.searchsorted(offsets[:bags], torch.arange(n, dtype=offsets.dtype, device=offsets.device), right=True) - 1


def _embedding_bag_backward(grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse,
                            per_sample_weights, padding_idx=-1):
    if sparse or mode == 2 and scale_grad_by_freq:
        return NotImplemented
    counts = bag_size[:grad.shape[0]]  # without padding; on a GPU of one bag more where offsets tell where the last one ends
    if mode == 2:  # the index of an empty bag is -1 there
        whole = torch.where((counts > 0).unsqueeze(-1), grad, 0)
        return grad.new_zeros(num_weights, grad.shape[1]).scatter_add(0, maximum_indices.long().clamp(min=0), whole)
    bag = _bags(offsets, indices.shape[0], grad.shape[0])
    rows = grad[bag]
    if mode == 1:
        rows = (rows / counts.clamp(min=1)[bag].unsqueeze(-1).to(torch.promote_types(grad.dtype, torch.float32))).to(grad.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx >= 0:
        rows = torch.where((indices == padding_idx).unsqueeze(-1), 0, rows)
    return aten.embedding_dense_backward.default(rows, indices, num_weights, -1, scale_grad_by_freq)


def _per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    along = (grad[_bags(offsets, indices.shape[0], grad.shape[0])] * weight[indices]).sum(-1)
    return torch.where(indices == padding_idx, 0, along) if padding_idx >= 0 else along


def _fractional_backward(grad_output, x, kernel_size, output_size, indices):
    n = len(kernel_size)
    flat = torch.zeros_like(x.flatten(-n)).scatter_add(-1, indices.flatten(-n), grad_output.flatten(-n))
    return flat.view(x.shape)


def _masked_scatter_backward(grad_output, mask, sizes):
    """Of the source: its first elements are those that went where the mask is true, in order."""
    n = math.prod(sizes)
    if isinstance(n, int) and n == 0:
        return grad_output.new_zeros(sizes)
    mask = mask.expand_as(grad_output).flatten()
    place = (mask.cumsum(0) - 1).clamp(min=0)
    return grad_output.new_zeros(n).index_add(0, place, torch.where(mask, grad_output.flatten(), 0)).view(sizes)


def _rrelu(x, noise, lower=0.125, upper=1 / 3, training=False, generator=None):
    if generator is not None:
        return NotImplemented
    if not training:
        return torch.where(x <= 0, x * ((lower + upper) / 2), x), noise.clone()
    slope = torch.where(x <= 0, aten.uniform.default(x, lower, upper), 1)
    return x * slope, slope


def _rrelu_backward(grad_output, x, noise, lower, upper, training, self_is_result):
    if training and upper - lower > 1e-6:
        return grad_output * noise
    return torch.where(x <= 0, grad_output * ((lower + upper) / 2), grad_output)


def _conv_tbc(x, weight, bias, pad=0):
    return torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1)


def _blocks(ends, rows):
    """Groups of consecutive rows, which end at `ends`, in blocks of one size: how many rows a block has; the group of each block; the row of the whole
    at each row of a block, and whether there is one; at each row of the whole the row in all blocks. There are as many blocks as any groups of so
    many rows could have."""
    groups = ends.shape[0]
    size = max(1, -(-rows // groups)) if isinstance(rows, int) else 64
    n = torch.sym_min(rows // size + groups, rows)
    ends = ends.long()
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    last = (-(-(ends - begins) // size)).cumsum(0)  # block of each group, from 1
    first = torch.cat([last.new_zeros(1), last[:-1]])
    count = lambda k: torch.arange(k, device=ends.device)
    block = count(n)
    of = torch.searchsorted(last, block, right=True).clamp(max=groups - 1)
    row = (begins[of] + (block - first[of]) * size)[:, None] + count(size)
    there = (row < ends[of][:, None]) & (block < last[-1])[:, None]
    at = torch.searchsorted(ends, count(rows), right=True).clamp(max=groups - 1)
    back = first[at] * size + count(rows) - begins[at]
    return of, row.clamp(max=rows - 1), there, back.clamp(max=n * size - 1)


def _grouped_mm(x, y, offs=None, bias=None, out_dtype=None):
    """Products of groups whose sizes are known when they run: of the rows of x, the columns of y, or what is summed over. Rows are put into blocks that belong to
    one group each. What belongs to no group is 0."""
    if bias is not None or out_dtype not in (None, x.dtype):
        return NotImplemented
    if x.dim() == y.dim() == 3:
        return torch.bmm(x, y)
    if x.dim() == 3:
        return _grouped_mm(y.t(), x.transpose(-1, -2), offs).t()
    rows = x.shape[0] if y.dim() == 3 else x.shape[1]
    if isinstance(rows, int) and rows == 0:
        return x.new_zeros((*offs.shape, x.shape[0], y.shape[1]) if y.dim() == 2 else (0, y.shape[2]))
    of, row, there, back = _blocks(offs, rows)
    there = there.unsqueeze(-1)
    if y.dim() == 3:
        found = torch.bmm(x[row], y[of]).flatten(0, 1)[back]
        return torch.where((torch.arange(rows, device=x.device) < offs[-1])[:, None], found, 0)
    parts = torch.bmm(torch.where(there, x.t()[row], 0).transpose(-1, -2), torch.where(there, y[row], 0))
    wide = parts.to(torch.promote_types(parts.dtype, torch.float32))
    return wide.new_zeros(*offs.shape, *wide.shape[1:]).index_add(0, of, wide).to(x.dtype)


# Ops of the package transformers, in models whose experts are products of groups.
GROUPED = {"grouped_mm_fallback": _grouped_mm,
           "grouped_mm_fallback_backward": lambda x, y, offs, grad: (_grouped_mm(grad, y.transpose(-1, -2), offs), _grouped_mm(x.t(), grad, offs))}

OWN = {"_grouped_mm.default": _grouped_mm, "_weight_norm_interface_backward.default": _weight_norm_backward, "_cdist_backward.default": _cdist_backward,
       "_transformer_encoder_layer_fwd.default": _encoder_layer, "_trilinear.default": _trilinear, "conv_tbc.default": _conv_tbc,
       "_embedding_bag_backward.default": _embedding_bag_backward, "_embedding_bag_per_sample_weights_backward.default": _per_sample_weights_backward,
       "fractional_max_pool2d_backward.default": _fractional_backward, "fractional_max_pool3d_backward.default": _fractional_backward,
       "masked_scatter_backward.default": _masked_scatter_backward, "rrelu_with_noise_functional.default": _rrelu,
       "rrelu_with_noise_backward.default": _rrelu_backward}

# Ops of lists of tensors, which optimizers are made of: the op of each element.
LISTS = ("abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone copy cos cosh div erf erfc exp expm1 floor frac lerp lgamma log log10 "
         "log1p log2 max maximum minimum mm mul neg norm pow powsum reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc zero").split()


def _plus_product(f):
    def one(x, a, b, value=1):
        return x + value * f(a, b) if isinstance(value, torch.Tensor) else (torch.addcmul if f is torch.mul else torch.addcdiv)(x, a, b, value=value)
    return one


def _or_number(of_tensors, of_number):
    return lambda x, y: (of_tensors if isinstance(y, torch.Tensor) else of_number)(x, y)


ELEMENT = {"addcmul": _plus_product(torch.mul), "addcdiv": _plus_product(torch.div), "maximum": _or_number(torch.maximum, torch.clamp_min),
           "minimum": _or_number(torch.minimum, torch.clamp_max), "zero": torch.zeros_like, "copy": aten.copy.default, "max": torch.amax,
           "norm": torch.linalg.vector_norm, "powsum": lambda x, ord=2, dtype=None: torch.sum(x.abs() ** ord, dtype=dtype)}


def _of_each(name):
    one = ELEMENT.get(name) or getattr(torch, name)

    def whole(*given, **named):
        if name in ("addcmul", "addcdiv") and isinstance(given[-1], torch.Tensor):  # the numbers are the elements of a tensor
            given = (*given[:-1], given[-1].unbind())
        n = next(len(a) for a in given if isinstance(a, (list, tuple)))
        at = lambda a, k: a[k] if isinstance(a, (list, tuple)) else a
        return [one(*(at(a, k) for a in given), **{w: at(a, k) for w, a in named.items()}) for k in range(n)]
    return whole
