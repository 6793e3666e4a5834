"""Which ATen ops PyTorch takes apart before the library sees them, and how those are taken apart that it leaves whole."""
import functools

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
        "binary_cross_entropy_with_logits", "embedding", "upsample_bilinear2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "upsample_nearest2d_backward", "upsample_bilinear2d_backward", "upsample_bicubic2d", "_upsample_nearest_exact2d", "pixel_shuffle",
        "pixel_unshuffle", "_fused_rms_norm", "_fused_rms_norm_backward", "rms_norm", "im2col", "col2im", "select_backward", "slice_backward",
        "diagonal_backward", "unfold_backward", "_euclidean_dist", "reflection_pad1d_backward", "reflection_pad2d_backward",
        "replication_pad2d_backward", "embedding_dense_backward", "index_add", "index_copy", "linalg_vector_norm", "_safe_softmax",
        "baddbmm", "addbmm", "addmv", "t", "transpose.int", "rrelu_with_noise_functional", "lerp", "logsumexp", "std_mean.correction", "std.correction",
        "expand_copy", "fill", "masked_fill", "isneginf", "isposinf", "_trilinear", "mv", "dot", "vdot", "addr", "bucketize", "lstm.input", "gru.input",
        "rnn_tanh.input", "rnn_relu.input", "uniform", "_weight_norm_interface", "_weight_norm_interface_backward", "unsafe_split", "unsafe_chunk",
        "split_with_sizes", "renorm", "roll", "rot90", "trace", "tril", "triu", "vec", "xlogy"]
# The library has these whole, and faster than in parts.
WHOLE = ["embedding", "lerp", "logsumexp", "mv", "dot", "vdot", "roll", "tril", "triu", "xlogy", "renorm", "baddbmm", "addmv", "addr", "fill", "masked_fill",
         "std_mean.correction", "index_copy", "index_add", "im2col", "col2im", "bucketize", "native_layer_norm", "linalg_vector_norm", "rot90", "_safe_softmax",
         "embedding_dense_backward", "expand_copy", "pixel_shuffle", "pixel_unshuffle", "split_with_sizes"]


def _overloads(name):
    base, _, overload = name.partition(".")
    packet = getattr(aten, base, None)
    if packet is None:
        return []
    return [getattr(packet, overload)] if overload else [getattr(packet, o) for o in packet.overloads()]


@functools.cache
def table():
    """Decompositions for AOT autograd."""
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
    return found
