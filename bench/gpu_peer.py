#!/usr/bin/env python3
"""PyTorch's half of `make bench-gpu`: the works of bench/gpu_reprise.c, and the table of both.

gpu_peer.py first          prints the seconds from $REPRISE_BENCH_START to the first result of a CUDA graph
gpu_peer.py FILE [COLD WARM PEER]
                           measures PyTorch, reads our lines from FILE, prints everything with ratios last;
                           COLD, WARM, PEER: seconds from process start to the first graphed result.
                           Writes bench_gpu.json into $OUT if that is set.
"""

import json
import os
import statistics
import sys
import time

SECONDS = 0.8
BURST_SECONDS = 5e-3
FIELDS = ("host_us", "host_low_us", "latency_us", "period_us", "first_s", "GB/s")


def first():
    import torch

    x = torch.randn(64, 10, device="cuda")
    net = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).cuda()
    with torch.no_grad():
        graph = capture(torch, lambda: net(x))
    graph.replay()
    torch.cuda.synchronize()
    print(f"{time.time() - float(os.environ['REPRISE_BENCH_START']):.4f}")


def capture(torch, fn, warmup=3):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph


def measure(torch, make):
    """make() gives the function to call; its time and that of two calls is the time to the second result."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call = make()
    for _ in range(2):
        call()
        torch.cuda.synchronize()
    first_s = time.perf_counter() - begin
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    host, latency, period = [], [], []
    burst = 0
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(period) < 3:  # in turns, as tools/reprise/measure.c
        stop = time.perf_counter() + BURST_SECONDS
        while True:
            t0 = time.perf_counter()
            call()
            t1 = time.perf_counter()
            torch.cuda.synchronize()
            t2 = time.perf_counter()
            host.append(t1 - t0)
            latency.append(t2 - t0)
            if t2 >= stop:
                break
        burst = burst or int(BURST_SECONDS / statistics.median(latency)) + 1
        t0 = time.perf_counter()
        for _ in range(burst):
            call()
        torch.cuda.synchronize()
        period.append((time.perf_counter() - t0) / burst)
    low = sorted(host)[len(host) // 10]
    return [t * 1e6 for t in (statistics.median(host), low, statistics.median(latency), statistics.median(period))] + [first_s]


def works(torch):
    """(work, mode, make, bytes, with gradients)"""
    functional = torch.nn.functional

    def forward(name, fn, args, moved_bytes=0.0):
        def graphed():
            graph = capture(torch, lambda: fn(*args))
            return graph.replay

        def callables():
            made = torch.cuda.make_graphed_callables(fn, args)
            return lambda: made(*args)

        def compiled(**options):
            def make():
                torch._dynamo.reset()
                made = torch.compile(fn, **options)
                return lambda: made(*args)

            return make

        yield name, "eager", lambda: (lambda: fn(*args)), moved_bytes
        yield name, "raw graph", graphed, moved_bytes
        yield name, "graphed callables", callables, moved_bytes
        yield name, "compile", compiled(), moved_bytes
        yield name, "compile reduce-overhead", compiled(mode="reduce-overhead"), moved_bytes

    def compiled_call(fn, t):
        torch._dynamo.reset()
        made = torch.compile(fn)
        return lambda: made(t)

    x, y = torch.randn(10000, device="cuda"), torch.randn(10000, device="cuda")
    yield from forward("trig n=1e4", lambda a, b: torch.cos(a) + torch.sin(b), (x, y))

    def mlp():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).cuda()

    net = mlp()
    one, batch = torch.randn(10, device="cuda"), torch.randn(64, 10, device="cuda")
    yield from forward("MLP 10-64-10 (10,)", lambda a: net(a), (one,))
    yield from forward("MLP 10-64-10 b64", lambda a: net(a), (batch,))
    target = torch.randint(0, 10, (64,), device="cuda")

    def step_of(model, adam):
        def step():
            with torch.enable_grad():
                adam.zero_grad(set_to_none=True)
                functional.cross_entropy(model(batch), target).backward()
                adam.step()

        return step

    def adam_of(model):
        return torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)

    def train_eager():
        model = mlp()
        return step_of(model, adam_of(model))

    def train_graphed():
        model = mlp()
        with torch.enable_grad():
            made = torch.cuda.make_graphed_callables(model, (batch.clone(),))
        return step_of(made, adam_of(model))

    def train_whole():
        model = mlp()
        graph = capture(torch, step_of(model, adam_of(model)))
        return graph.replay

    def train_compiled(**options):
        def make():
            torch._dynamo.reset()
            model = mlp()
            adam = adam_of(model)
            made = torch.compile(model, **options)
            return step_of(made, adam)

        return make

    for mode, make in (
        ("eager", train_eager),
        ("graphed callables", train_graphed),
        ("raw graph, whole step", train_whole),
        ("compile", train_compiled()),
        ("compile reduce-overhead", train_compiled(mode="reduce-overhead")),
    ):
        yield "train MLP b64 Adam", mode, make, 0.0

    a, b = torch.zeros(1 << 28, device="cuda"), torch.zeros(1 << 28, device="cuda")
    yield "copy 1 GiB", "eager", lambda: (lambda: a.copy_(b)), 2.0 * (1 << 30)
    for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        big = torch.randn(8192, 4096, device="cuda").to(dtype)
        weight, bias = torch.ones(4096, device="cuda", dtype=dtype), torch.zeros(4096, device="cuda", dtype=dtype)

        def rows(t, weight=weight, bias=bias):
            return torch.softmax(functional.layer_norm(functional.gelu(t), (4096,), weight, bias), -1)

        moved = 2.0 * big.numel() * big.element_size()

        def norm(t, weight=weight, bias=bias):
            return functional.layer_norm(t, (4096,), weight, bias)

        yield from forward(f"gelu-layernorm-softmax 8192x4096 {label}", rows, (big,), moved)
        for name, fn in (("softmax", lambda t: torch.softmax(t, -1)), ("layernorm", norm)):
            yield f"{name} 8192x4096 {label}", "eager", lambda fn=fn: (lambda: fn(big)), moved
            yield f"{name} 8192x4096 {label}", "compile", lambda fn=fn: compiled_call(fn, big), moved


def ours(path):
    rows = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            fields = line.rstrip("\n").split("\t")
            row = {"work": fields[0], "system": "reprise", "mode": fields[1]}
            if len(fields) == 8:
                row.update(zip(FIELDS, map(float, fields[2:])))
            else:
                row["reason"] = fields[2]
            rows.append(row)
    return rows


def peers():
    import torch

    torch.set_float32_matmul_precision("high")
    rows = []
    with torch.no_grad():
        for work, mode, make, moved in works(torch):
            row = {"work": work, "system": f"torch {torch.__version__}", "mode": mode}
            try:
                row.update(zip(FIELDS, measure(torch, make)))
                row["GB/s"] = moved / row["period_us"] * 1e-3
            except Exception as error:  # a mode that fails is a row that says so
                row["reason"] = f"{type(error).__name__}: {error}".split("\n")[0]
            rows.append(row)
    return rows


# (what, our mode, its field, peer's mode, its field): the ratio is peer / ours.
RATIOS = [
    ("trig n=1e4", "fused", "period_us", "raw graph", "period_us"),
    ("trig n=1e4", "fused", "host_us", "raw graph", "host_us"),
    ("trig n=1e4", "fused, moved input", "host_us", "compile reduce-overhead", "host_us"),
    ("MLP 10-64-10 (10,)", "fused", "period_us", "raw graph", "period_us"),
    ("MLP 10-64-10 b64", "fused", "period_us", "raw graph", "period_us"),
    ("train MLP b64 Adam", "fused whole step", "period_us", "raw graph, whole step", "period_us"),
    ("train MLP b64 Adam", "fused whole step", "period_us", "graphed callables", "period_us"),
    ("train MLP b64 Adam", "fused whole step", "period_us", "compile reduce-overhead", "period_us"),
    ("gelu-layernorm-softmax 8192x4096 f32", "fused", "period_us", "compile", "period_us"),
    ("gelu-layernorm-softmax 8192x4096 bf16", "fused", "period_us", "compile", "period_us"),
    ("softmax 8192x4096 f32", "fused", "period_us", "compile", "period_us"),
    ("softmax 8192x4096 bf16", "fused", "period_us", "compile", "period_us"),
    ("layernorm 8192x4096 f32", "fused", "period_us", "compile", "period_us"),
    ("layernorm 8192x4096 bf16", "fused", "period_us", "compile", "period_us"),
]


def main():
    rows = ours(sys.argv[1]) + peers()
    print(f"{'work':40}{'system':18}{'mode':32}" + "".join(f"{field:>12}" for field in FIELDS))
    for work in dict.fromkeys(row["work"] for row in rows):
        for row in rows:
            if row["work"] != work:
                continue
            head = f"{work:40}{row['system']:18}{row['mode']:32}"
            if "reason" in row:
                print(f"{head}  {row['reason']}")
            else:
                print(head + "".join(f"{row[f]:12.4f}" if f == "first_s" else f"{row[f]:12.2f}" for f in FIELDS))
    known = {(r["work"], r["system"] == "reprise", r["mode"]): r for r in rows if "reason" not in r}
    print("\nratios, PyTorch / Reprise")
    ratios = []
    for work, mode, field, peer_mode, peer_field in RATIOS:
        a, b = known.get((work, True, mode)), known.get((work, False, peer_mode))
        value = b[peer_field] / a[field] if a and b else None
        ratios.append({"work": work, "mode": mode, "field": field, "peer_mode": peer_mode, "ratio": value})
        print(f"  {work:40}{mode:24}{field:12} to {peer_mode:26}" + (f"{value:8.2f}" if value else "   not measured"))
    copy = known.get(("copy 1 GiB", True, "eager"))
    for name in ("gelu-layernorm-softmax", "softmax", "layernorm"):
        for label in ("f32", "bf16"):
            row = known.get((f"{name} 8192x4096 {label}", True, "fused"))
            if row and copy:
                share = row["GB/s"] / copy["GB/s"]
                print(f"  {name} {label}: {row['GB/s']:.0f} GB/s, {share:.2f} of the copy rate")
    start = dict(zip(("cold", "warm", "peer"), map(float, sys.argv[2:5])))
    if start:
        print(
            f"  process start to first graphed result: {start['cold']:.3f} s with an empty cache, "
            f"{start['warm']:.3f} s with a filled one; PyTorch {start['peer']:.3f} s ({start['peer'] / start['warm']:.1f})"
        )
    if os.environ.get("OUT"):
        with open(os.path.join(os.environ["OUT"], "bench_gpu.json"), "w", encoding="utf-8") as out:
            json.dump({"rows": rows, "ratios": ratios, "start": start}, out, indent=1)


if __name__ == "__main__":
    if sys.argv[1:] == ["first"]:
        first()
    else:
        main()
