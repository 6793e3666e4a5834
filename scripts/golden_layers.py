#!/usr/bin/env python3
"""Writes tests/data/layers.txt: what a current PyTorch gives for the cases of tests/test_layers.c, whose names and formulas these are.
usage: scripts/golden_layers.py tests/data/layers.txt   (needs torch; the tests need only the file)"""
import math
import sys

import torch
from torch import nn

torch.set_default_dtype(torch.float64)


def filled(size, k):
    n = math.prod(size)
    return torch.tensor([0.5 * math.sin(1 + 0.37 * i + 1.7 * k) for i in range(n)], dtype=torch.float64).reshape(size)


def MASK(*size):
    return filled(size, 200) > 0.3


def BIAS(*size):
    return filled(size, 201)


def causal(n):
    return torch.ones(n, n).triu(1).bool()



def mha(attn=None, padding=None, weights=False, average=True, **k):
    def run(l, *x):
        q, key, v = (x * 3)[:3] if len(x) == 1 else (x[0], x[1], x[-1])
        y, w = l(q, key, v, key_padding_mask=padding, attn_mask=attn, need_weights=weights, average_attn_weights=average, **k)
        return [y, w] if weights else [y]
    return run


def one(call):
    return lambda l, *x: [call(l, *x)]


def recurrent(l, x, *h):
    y, s = l(x, h if len(h) == 2 else h[0] if h else None)
    return [y, *(s if isinstance(s, tuple) else [s])]


def packed(l, x):
    y, s = l(nn.utils.rnn.PackedSequence(x, torch.tensor([3, 2, 2, 1])))
    return [y.data, *s]


plain = one(lambda l, *x: l(*x))
tracked = dict(eps=0.01, momentum=0.3, affine=True, track_running_stats=True)
E = dict(dim_feedforward=5, dropout=0.0)
# name: layer, call, sizes of inputs
CASES = {
    "rms_norm": (nn.RMSNorm((3, 4)), plain, [(2, 3, 4)]),
    "rms_norm_plain": (nn.RMSNorm(4, 0.1, False), plain, [(2, 3, 4)]),
    "group_norm": (nn.GroupNorm(2, 6), plain, [(2, 6, 3)]),
    "instance_norm": (nn.InstanceNorm1d(3), plain, [(2, 3, 5)]),
    "instance_norm_tracked": (nn.InstanceNorm2d(3, **tracked), plain, [(2, 3, 2, 4)]),
    "instance_norm_eval": (nn.InstanceNorm2d(3, **tracked).eval(), plain, [(2, 3, 2, 4)]),
    "heads_self": (nn.MultiheadAttention(6, 2), mha(weights=True), [(3, 2, 6)]),
    "heads_masked": (nn.MultiheadAttention(6, 2, batch_first=True), mha(BIAS(4, 3, 4), MASK(2, 4)), [(2, 3, 6), (2, 4, 6)]),
    "heads_sizes": (nn.MultiheadAttention(4, 2, bias=False, kdim=3, vdim=5), mha(MASK(3, 4), weights=True, average=False),
                    [(3, 2, 4), (4, 2, 3), (4, 2, 5)]),
    "heads_more": (nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True), mha(BIAS(3, 4), MASK(2, 4)),
                   [(3, 2, 4), (4, 2, 4), (4, 2, 4)]),
    "heads_alone": (nn.MultiheadAttention(4, 1), mha(causal(3), is_causal=True), [(3, 4)]),
    "heads_causal": (nn.MultiheadAttention(4, 2), mha(causal(3), weights=True, average=False), [(3, 2, 4)]),
    "encoder_layer": (nn.TransformerEncoderLayer(4, 2, 6, 0.0), one(lambda l, x: l(x, src_key_padding_mask=MASK(2, 3))), [(3, 2, 4)]),
    "encoder_layer_first": (nn.TransformerEncoderLayer(4, 2, activation="gelu", norm_first=True, batch_first=True, bias=False, **E),
                            one(lambda l, x: l(x, src_mask=BIAS(3, 3))), [(2, 3, 4)]),
    "decoder_layer": (nn.TransformerDecoderLayer(4, 2, layer_norm_eps=0.01, batch_first=True, **E),
                      one(lambda l, t, m: l(t, m, tgt_mask=causal(3), memory_key_padding_mask=MASK(2, 5))), [(2, 3, 4), (2, 5, 4)]),
    "encoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, norm_first=True, **E), 2, nn.LayerNorm(4),
                                      enable_nested_tensor=False), plain, [(3, 2, 4)]),
    "decoder": (nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 1, batch_first=True, **E), 2),
                one(lambda l, t, m: l(t, m, tgt_mask=BIAS(3, 3))), [(2, 3, 4), (2, 2, 4)]),
}
CASES |= {
    "rnn": (nn.RNN(2, 3), recurrent, [(3, 2, 2)]),
    "rnn_relu": (nn.RNN(2, 3, 2, "relu", bias=False), recurrent, [(3, 2, 2), (2, 2, 3)]),
    "gru": (nn.GRU(2, 3, 2, batch_first=True, bidirectional=True), recurrent, [(2, 4, 2)]),
    "lstm": (nn.LSTM(2, 3, proj_size=2, bidirectional=True), recurrent, [(3, 2, 2), (2, 2, 2), (2, 2, 3)]),
    "lstm_alone": (nn.LSTM(2, 3), recurrent, [(3, 2)]),
    "lstm_packed": (nn.LSTM(2, 3, bidirectional=True), packed, [(8, 2)]),
    "rnn_cell": (nn.RNNCell(2, 3, nonlinearity="relu"), plain, [(2, 2), (2, 3)]),
    "gru_cell": (nn.GRUCell(2, 3, False), plain, [(2,)]),
    "lstm_cell": (nn.LSTMCell(2, 3), lambda l, x, h, c: list(l(x, (h, c))), [(2, 2), (2, 3), (2, 3)]),
}
CASES |= {
    "conv1d": (nn.Conv1d(2, 3, 3), plain, [(2, 2, 7)]),
    "conv2d_reflect": (nn.Conv2d(2, 4, (3, 2), (1, 2), (2, 1), groups=2, padding_mode="reflect"), plain, [(1, 2, 5, 6)]),
    "conv2d_same": (nn.Conv2d(2, 3, (4, 3), dilation=(1, 2), padding="same", padding_mode="circular"), plain, [(1, 2, 5, 6)]),
    "conv1d_same": (nn.Conv1d(2, 3, 4, padding="same"), plain, [(2, 2, 5)]),
    "conv3d": (nn.Conv3d(2, 2, (2, 3, 2), padding=(1, 0, 1), bias=False, padding_mode="replicate"), plain, [(1, 2, 3, 4, 3)]),
    "conv_transpose1d": (nn.ConvTranspose1d(2, 4, 3, 2, 1, 1, 2), plain, [(1, 2, 4)]),
    "conv_transpose3d": (nn.ConvTranspose3d(2, 3, (2, 1, 2), dilation=(2, 1, 1)), plain, [(1, 2, 2, 3, 2)]),
    "prelu": (nn.PReLU(3), plain, [(2, 3, 4)]),
    "bilinear": (nn.Bilinear(2, 3, 4), plain, [(5, 2), (5, 3)]),
}


def sequence(l, x, lengths, *h):
    """Of lengths in any order, padded again."""
    y, s = l(nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), l.batch_first, enforce_sorted=False), h or None)
    return [nn.utils.rnn.pad_packed_sequence(y, l.batch_first, -0.5, 5)[0], *s]


def unpooled(size, **k):
    def run(l, x):
        pooled, at = nn.functional.max_pool2d(x, l.kernel_size, l.stride, l.padding, return_indices=True)
        return [l(pooled, at, size)]
    return run


CASES |= {
    "batch_norm_cumulative": (nn.BatchNorm1d(3, momentum=None), lambda l, x, y, z: [l(x), l(y), l(z)], [(4, 3), (3, 3), (5, 3)]),
    "layer_norm_no_bias": (nn.LayerNorm((3, 4), bias=False), plain, [(2, 3, 4)]),
    "instance_norm_alone": (nn.InstanceNorm1d(3, **tracked), plain, [(3, 5)]),
    "instance_norm_alone2": (nn.InstanceNorm2d(3, affine=True), plain, [(3, 2, 4)]),
    "conv_transpose_sized": (nn.ConvTranspose2d(2, 3, 3, 2, 1), one(lambda l, x: l(x, output_size=(8, 7))), [(1, 2, 4, 4)]),
    "unpool": (nn.MaxUnpool2d((2, 3)), unpooled(None), [(1, 2, 4, 6)]),
    "unpool_sized": (nn.MaxUnpool2d(2, 2), unpooled((1, 2, 5, 5)), [(1, 2, 5, 5)]),
    "adaptive_none": (nn.AdaptiveAvgPool2d((None, 2)), plain, [(1, 2, 3, 4)]),
    "loss_by_name": (nn.MSELoss(reduction="sum"), plain, [(2, 3), (2, 3)]),
    "unfold_layer": (nn.Unfold(2), plain, [(1, 2, 3, 4)]),
    "fold_layer": (nn.Fold((3, 4), 2), plain, [(1, 8, 6)]),
    "identity": (nn.Identity(), plain, [(2, 3)]),
    "lstm_sequence": (nn.LSTM(2, 3, bidirectional=True), lambda l, x, h, c: sequence(l, x, [2, 4, 1], h, c),
                      [(4, 3, 2), (2, 3, 3), (2, 3, 3)]),
    "lstm_sequence_first": (nn.LSTM(2, 3, batch_first=True), lambda l, x: sequence(l, x, [1, 3, 3]), [(3, 3, 2)]),
    "padded": (nn.Identity(), lambda l, *x: [nn.utils.rnn.pad_sequence(x, True, 0.25)], [(2, 3), (4, 3), (1, 3)]),
}


def write(f, kind, name, t, values=True):
    t = t.detach()
    numbers = " ".join(repr(v) for v in t.reshape(-1).tolist()) if values else ""
    f.write(" ".join([kind, name, str(t.dim()), *map(str, t.shape), numbers]).rstrip() + "\n")


def main():
    with open(sys.argv[1], "w") as f:
        for name, (layer, call, sizes) in CASES.items():
            layer = layer.double()
            f.write(f"case {name}\n")
            state = layer.state_dict()
            for k, (key, t) in enumerate(state.items()):
                write(f, "state", key, t, False)
                if t.is_floating_point():
                    t.copy_(filled(t.shape, k) + (1 if "var" in key else 0))
            buffers = {k: v.clone() for k, v in layer.named_buffers()}
            x = [filled(s, 100 + i).requires_grad_() for i, s in enumerate(sizes)]
            out = call(layer, *x)
            loss = 0
            for i, o in enumerate(out):
                write(f, "out", str(i), o)
                loss = loss + (o * filled(o.shape, 300 + i)).sum()
            loss.backward()
            for i, t in enumerate(x):
                if t.grad is not None:
                    write(f, "grad", f"#{i}", t.grad)
            for key, t in layer.named_parameters():
                if t.grad is not None:
                    write(f, "grad", key, t.grad)
            for key, t in layer.named_buffers():
                if t.is_floating_point() and not torch.equal(t, buffers[key]):
                    write(f, "after", key, t)
    print(f"{len(CASES)} layers, PyTorch {torch.__version__}", file=sys.stderr)


main()
