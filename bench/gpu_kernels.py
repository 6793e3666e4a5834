#!/usr/bin/env python3
"""PyTorch's half of the single kernels, and the table of both: gpu_kernels.py WORKS FILE, FILE being what gpu_kernels printed.

Each work is captured as one graph, eagerly and compiled by Inductor; the faster one counts. Precision as in Reprise: float32 products
and convolutions in IEEE arithmetic, and once more in TF32 as a remark; "tf32" is float32 with TF32 allowed. Ends with the geometric mean and the rows below 1.
"""

import math
import os
import statistics
import sys
import time

SECONDS = 0.15
TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "tf32": "float32", "f64": "float64"}


def make(torch, kind, dtype, n, device="cuda"):
    f = torch.nn.functional

    def new(*size):
        return torch.randn(*size, device=device).to(dtype)

    def gradient(of, *args):
        given = torch.randn_like(of(*args))
        args = tuple(a.requires_grad_() for a in args)

        def both(*x):
            with torch.enable_grad():
                return torch.autograd.grad(of(*x[:-1]), x[:-1], x[-1])

        return both, (*args, given)

    base = kind.removesuffix("grad")
    norms = {
        "softmax": lambda x: torch.softmax(x, -1),
        "softmax1": lambda x: torch.softmax(x, 1),
        "channelnorm": lambda x: (x - x.mean(1, True)) * (x - x.mean(1, True)).square().mean(1, True).rsqrt(),
        "layernorm": lambda x, a, b: f.layer_norm(x, (n[1],), a, b),
        "rmsnorm": lambda x, a: f.rms_norm(x, (n[1],), a, 1e-5),
    }
    if base in norms:
        weights = {"layernorm": 2, "rmsnorm": 1}.get(base, 0)
        args = (new(*n), *(new(n[1]) for _ in range(weights)))
        return gradient(norms[base], *args) if kind != base else (norms[base], args)
    if kind == "permute":
        order, size = n[1 : 1 + n[0]], n[1 + n[0] :]
        return lambda x: x.permute(order).contiguous(), (new(*size),)
    if kind == "addt":
        return lambda x, y: x.t() + y, (new(n[0], n[1]), new(n[1], n[0]))
    if kind == "sum":
        return lambda x: x.sum(), (new(n[0]),)
    if kind in ("rowsum", "colsum"):
        dim = 1 if kind == "rowsum" else 0
        return lambda x: x.sum(dim), (new(*n),)
    if kind == "mean023":
        return lambda x: x.mean((0, 2, 3)), (new(*n),)
    if kind == "logsoftmax":
        return lambda x: torch.log_softmax(x, -1), (new(*n),)
    if kind == "transpose":
        return lambda x: x.t().contiguous(), (new(*n),)
    if kind == "nhwc":
        return lambda x: x.permute(0, 2, 3, 1).contiguous(), (new(*n),)
    if kind == "cat":
        return lambda *x: torch.cat(x, 1), tuple(new(n[1], n[2]) for _ in range(n[0]))
    if kind == "bmm":
        return lambda a, b: a @ b, (new(n[0], n[1], n[2]), new(n[0], n[2], n[3]))
    if kind == "linear":
        return f.linear, (new(n[0], n[1]), new(n[2], n[1]), new(n[2]))
    if kind in ("embedding", "pick"):
        table, places = new(n[0], n[1]), torch.randint(0, n[0], (n[2],), device=device)
        if kind == "pick":
            return lambda t, i: t.index_select(0, i), (table, places)
        return lambda t, i: f.embedding(i, t), (table, places)
    if kind in ("cumsum", "logcumsumexp", "argmax"):
        return lambda x: getattr(x, kind)(n[2]), (new(n[0], n[1]),)
    if "pool" in kind:
        x, last = new(*n[:4]), len(n) > 7 and n[7]
        pools = {
            "maxpool": lambda x: f.max_pool2d(x, n[4], n[5], n[6]),
            "avgpool": lambda x: f.avg_pool2d(x, n[4], n[5], n[6]),
            "adaptivepool": lambda x: f.adaptive_avg_pool2d(x, n[4]),
        }
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        return gradient(pools[base], x) if kind != base else (pools[base], (x,))
    if base in ("lstm", "gru", "rnn"):  # one layer from zeros; the last state is no result
        rows = n[3] * {"lstm": 4, "gru": 3, "rnn": 1}[base]
        scale = n[3] ** -0.5
        weights = [new(rows, n[2]) * scale, new(rows, n[3]) * scale, new(rows) * scale, new(rows) * scale]

        def recurrent(x, *weights):
            zero = torch.zeros(1, n[1], n[3], dtype=dtype, device=device)
            at = (True, 1, 0.0, kind != base, False, False)
            if base == "lstm":
                return torch.lstm(x, (zero, zero), weights, *at)[0]
            return (torch.gru if base == "gru" else torch.rnn_tanh)(x, zero, weights, *at)[0]

        args = (new(*n[:3]), *weights)
        return gradient(recurrent, *args) if kind != base else (recurrent, args)
    if kind == "adam":
        x = torch.nn.Parameter(new(n[0]))
        x.grad = new(n[0])
        adam = torch.optim.Adam([x], 1e-3, fused=True)
        return lambda: adam.step(), ()
    if kind == "matmul":
        return lambda a, b: a @ b, (new(n[0], n[1]), new(n[1], n[2]))
    if kind == "lineargelu":
        return lambda x, w, b: f.gelu(f.linear(x, w, b)), (new(n[0], n[1]), new(n[2], n[1]), new(n[2]))
    if kind == "chain":

        def chain(x):
            for i in range(n[0]):
                x = torch.sin(x) if i % 2 else x * 1.01
            return x

        return chain, (new(n[1], n[2]),)
    if kind.startswith("attention"):
        batch, heads, kv, rows, keys, features, causal = n
        args = [new(batch, h, s, features) for h, s in ((heads, rows), (kv, keys), (kv, keys), (heads, rows))]

        def attend(q, k, v):
            return f.scaled_dot_product_attention(q, k, v, is_causal=bool(causal), enable_gqa=heads != kv)

        def gradients(q, k, v, g):
            with torch.enable_grad():
                return torch.autograd.grad(attend(q, k, v), (q, k, v), g)

        if kind == "attention":
            return attend, tuple(args[:3])
        return gradients, tuple(a.requires_grad_(i < 3) for i, a in enumerate(args))
    if kind == "conv1d":
        batch, c, length, out, k, step, padding, groups = n
        return lambda x, w: f.conv1d(x, w, None, step, padding, 1, groups), (new(batch, c, length), new(out, c // groups, k))
    if kind == "conv3d":
        *size, out, k, step, padding = n
        return lambda x, w: f.conv3d(x, w, None, step, padding), (new(*size), new(out, size[1], k, k, k))
    batch, c, h, w, out, k, step, padding, groups, last = n
    args = [new(batch, c, h, w), new(out, c // groups, k, k)]
    args.append(torch.empty_like(f.conv2d(*args, None, step, padding, 1, groups)).normal_())
    if last:
        args = [a.contiguous(memory_format=torch.channels_last) for a in args]
    if kind == "conv":
        return lambda x, w: f.conv2d(x, w, None, step, padding, 1, groups), tuple(args[:2])
    if kind == "convres":
        args += [new(out, 1, 1), new(out, 1, 1)]
        return lambda x, w, y, a, b: f.relu(f.conv2d(x, w, None, step, padding, 1, groups) * a + b + y), tuple(args)
    mask = [kind == "convx", kind == "convw", False]
    return (
        lambda x, w, g: torch.ops.aten.convolution_backward(
            g, x, w, None, [step] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, mask
        )[0 if kind == "convx" else 1]
    ), tuple(args)


def period(torch, call):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    t0 = time.perf_counter()
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    burst = max(1, int(5e-3 / ((time.perf_counter() - t0) / 5)))
    times = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 3:
        t0 = time.perf_counter()
        for _ in range(burst):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - t0) / burst)
    return statistics.median(times) * 1e6


def captured(torch, fn, args):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            fn(*args)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn(*args)
    return graph.replay


def best(torch, fn, args, compile_too):
    with torch.set_grad_enabled(any(a.requires_grad for a in args)):
        us = period(torch, captured(torch, fn, args))
        if compile_too:
            try:
                torch._dynamo.reset()
                us = min(us, period(torch, captured(torch, torch.compile(fn), args)))
            except Exception as error:  # Inductor cannot: eager counts
                print(f"# {type(error).__name__}", file=sys.stderr)
    return us


def tf32(torch, on):
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def main():
    import torch

    ours = {}
    with open(sys.argv[2], encoding="utf-8") as lines:
        for line in lines:
            fields = line.rstrip("\n").split("\t")
            ours[fields[0]] = fields[1:]
    ratios = {}
    print(f"{'work':44}{'reprise us':>12}{'FAST us':>12}{'torch us':>12}{'ratio':>8}{'FAST':>8}  rate")
    with open(sys.argv[1], encoding="utf-8") as works:
        for line in works:
            line = line.strip()
            if not line or line[0] == "#" or line not in ours:
                continue
            kind, dtype, *numbers = line.split()
            product = kind.startswith(("conv", "linear", "attention")) or kind in ("matmul", "bmm")
            torch.use_deterministic_algorithms(kind == "attentiond", warn_only=True)
            fn, args = make(torch, kind, getattr(torch, TYPES[dtype]), [int(n) for n in numbers])
            tf32(torch, dtype == "tf32")
            us = best(torch, fn, args, (not product or kind in ("lineargelu", "convres")) and not os.environ.get("BENCH_EAGER_PEER"))
            remark = ""
            if product and dtype == "f32":
                tf32(torch, True)
                remark = f"  (TF32 {best(torch, fn, args, False):.1f})"
            del args
            torch.cuda.empty_cache()
            mine = ours[line]
            if len(mine) < 2:
                print(f"{line:44}  {mine[0]}")
                continue
            ratios[line] = us / float(mine[0])
            fast = float(mine[2]) if len(mine) > 2 else float(mine[0])
            print(
                f"{line:44}{float(mine[0]):12.2f}{fast:12.2f}{us:12.2f}{ratios[line]:8.2f}{us / fast:8.2f}  {mine[1]}{remark}",
                flush=True,
            )
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios)) if ratios else 0
    print(f"\ngeometric mean of {len(ratios)} ratios, PyTorch / Reprise: {mean:.2f}; below 1:")
    for work, ratio in sorted(ratios.items(), key=lambda item: item[1]):
        if ratio < 1:
            print(f"  {work:44}{ratio:8.2f}")


if __name__ == "__main__":
    main()
