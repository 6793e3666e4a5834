#!/usr/bin/env python3
"""Whole models on this machine, ours beside PyTorch's in one run: forward functions and training steps (forward, loss,
backward, Adam).

    models.py REPRISE [--device cpu] [--compile] [--seconds N] [MODEL,BATCH,LENGTH,DTYPE,forward|step ...]

REPRISE is the command-line tool. Ours: `reprise bench`, eagerly and as one graph. PyTorch: eagerly, on a GPU as one CUDA
graph captured by hand and, of steps, with the model by torch.cuda.make_graphed_callables, and with --compile
torch.compile(mode="reduce-overhead"), whose compilation takes minutes. Float32
is IEEE's on both sides; tf32 is float32 whose products and convolutions may round to it. On a CPU PyTorch takes as many threads as ours (REPRISE_NUM_THREADS). Medians of periods in us; host: of a call's return; MB: the peak beyond weights and arguments;
launches: calls of a launch, a copy or a graph a time, of what they run on the device (ours: graphs and their nodes, as `reprise explain`
has them; PyTorch's: its profiler, on a GPU). Last
the ratio of PyTorch's best to ours, and the geometric mean of all. Needs torch, torchvision, timm and transformers."""

import argparse
import copy
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "conformance"))

# Model, rows, tokens (0: no text), type, what.
WORKS = """mlp,64,0,f32,step cnn,64,0,f32,step rnn,0,0,f32,forward rnn,0,0,f32,step lstm,32,32,f32,forward
resnet18,1,0,f32,forward resnet18,1,0,tf32,forward resnet18,64,0,f16,forward resnet18,32,0,f32,step resnext101_32x8d,1,0,f32,forward
vit_b_16,8,0,bf16,forward bert,1,12,f32,forward bert,8,128,f32,forward bert,8,128,bf16,forward bert,8,128,f32,step
gpt2,1,64,f32,forward gpt2,4,256,bf16,forward""".split()


def tool(program, command, device, work, *more):
    """What the command-line tool says of a work, as JSON; a text where it fails."""
    name, batch, length, dtype, what = work
    line = [program, command, name, f"--device={device}", f"--dtype={dtype}", "--json", *more]
    line += [f"--batch={batch}"] * (batch > 0) + [f"--length={length}"] * (length > 0) + ["--train"] * (what == "step")
    done = subprocess.run(line, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return (done.stderr.strip() or f"ended with {done.returncode}")[-200:]


def graphs_of(records):
    """Device graphs of explain's records and their nodes, which one call launches; NONE where a part runs otherwise."""
    if isinstance(records, str) or any(r["kind"] in ("skip", "break") for r in records):
        return None
    nodes = [int(m[1]) for r in records if r["kind"] == "graph" and (m := re.search(r": (\d+) nodes", r["message"]))]
    return (len(nodes), sum(nodes)) if nodes else None


def ours(program, device, work, seconds):
    rows = tool(program, "bench", device, work, f"--seconds={seconds}")
    if isinstance(rows, str):
        return {"eager": rows}
    graphs = graphs_of(tool(program, "explain", device, work))
    return {r["backend"]: (r["host_us"], r["period_us"], r["memory_bytes"], graphs if r["backend"] == "fused" else None)
            if "period_us" in r else r.get("error", "failed") for r in rows}


def inputs_of(torch, models, name, batch, length, dtype):
    """As conformance makes them, with other sizes; floats of the type, all tokens kept."""
    torch.manual_seed(1)
    build, inputs, target = models.ALL[name]

    def sized(make):
        t = make()
        size = list(t.shape)
        if batch and size:
            size[0] = batch
        if length and t.ndim > 1 and not (t.is_floating_point() and t.ndim > 2):
            size[1] = length
        if t.is_floating_point():
            return (torch.ones(size) if t.ndim == 2 and length else torch.randn(size)).to(dtype)
        return torch.randint(0, int(t.max()) + 1, size)

    model = build()
    if name.startswith("resne"):  # as `reprise bench` has them
        inputs, target = [lambda: torch.randn(batch or 1, 3, 224, 224)], lambda: torch.randint(0, 1000, (batch or 1,))
    inner = getattr(model, "inner", None)
    if hasattr(inner, "set_attn_implementation"):
        inner.set_attn_implementation("sdpa")
    return model.to(dtype), [sized(i) for i in inputs], sized(target)


def measure(call, sync, seconds):
    for _ in range(3):
        call()
    sync()
    host, period, end = [], [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(period) < 3:
        for _ in range(5):
            begin = time.perf_counter()
            call()
            host.append(time.perf_counter() - begin)
            sync()
        begin = time.perf_counter()
        n = max(1, min(200, int(5e-3 / (host[-1] + 1e-5))))
        for _ in range(n):
            call()
        sync()
        period.append((time.perf_counter() - begin) / n)
    middle = lambda values: sorted(values)[len(values) // 2] * 1e6
    return middle(host), middle(period)


def capture(torch, fn):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay


CALLS = re.compile(r"cu(da)?(LaunchKernel|GraphLaunch|Memcpy.*Async|Memset.*Async)")


def launched(events):
    """(calls that launch, what ran on the device) among the events of a profile: dicts of cat and name."""
    calls = sum(e.get("cat") in ("cuda_runtime", "cuda_driver") and bool(CALLS.match(e["name"])) for e in events)
    return calls, sum(e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") for e in events)


def profiled(torch, fn):
    """launched() of one call."""
    from torch.profiler import ProfilerActivity, profile
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        fn()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        p.export_chrome_trace(path)
        with open(path) as f:
            return launched(json.load(f)["traceEvents"])


def theirs(torch, models, device, work, seconds, compiles):
    name, batch, length, dtype, what = work
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    types = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    model, inputs, target = inputs_of(torch, models, name, batch, length, types[dtype])
    cuda = device == "cuda"
    model, inputs, target = model.to(device), [t.to(device) for t in inputs], target.to(device)

    def caller(model):
        if what != "step":
            def call():
                with torch.no_grad():
                    return model(*inputs)
            return call
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=cuda, fused=True)

        def call():
            optimizer.zero_grad(set_to_none=False)
            models.loss_of(model, inputs, target)[1].backward()
            optimizer.step()
        return call

    def callables():
        own = copy.deepcopy(model)  # whose forward becomes another
        return caller(torch.cuda.make_graphed_callables(own, tuple(inputs), allow_unused_input=True))

    model.train(what == "step")
    call = caller(model)
    found = {}
    held = torch.cuda.memory_allocated() if cuda else 0
    ways = {"eager": lambda: call}
    if cuda:
        ways["graph"] = lambda: capture(torch, call)
    if cuda and what == "step":
        ways["callables"] = callables
    if compiles:
        ways["compiled"] = lambda: torch.compile(call, mode="reduce-overhead")
    for way, make in ways.items():
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        try:
            fn = make()
            times = measure(fn, torch.cuda.synchronize if cuda else lambda: None, seconds)
            peak = torch.cuda.max_memory_allocated() - held if cuda else 0
            found[way] = (*times, peak, profiled(torch, fn) if cuda else None)
            del fn
        except Exception as e:  # a peer that fails is a line of the table
            found[way] = f"{type(e).__name__}: {e}".split("\n")[0][:150]
    return found


FIELDS = f"{'period':>10s}{'host':>9s}{'MB':>9s}{'launches':>12s}"


def fields(m):
    """(host, period, bytes, (launches, of how many) or None) as columns, or why there are none."""
    if isinstance(m, str):
        return f"  {m}"
    launches = f"{m[3][0]}/{m[3][1]}" if m[3] else "-"
    return f"{m[1]:10.1f}{m[0]:9.1f}{m[2] / 1e6:9.1f}{launches:>12s}"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("program")
    options.add_argument("works", nargs="*")
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--seconds", type=float, default=0.5)
    o = options.parse_intermixed_args()
    import torch

    import models

    if o.device == "cpu":
        torch.set_num_threads(int(os.environ.get("REPRISE_NUM_THREADS", os.cpu_count())))
    ratios = []
    print(f"{'work':44s}{'ours':9s}{FIELDS}   {'PyTorch':10s}{FIELDS}")
    for text in o.works or WORKS:
        name, batch, length, dtype, what = text.split(",")
        if name not in models.ALL:
            options.error(f"there is no model {name}: {', '.join(models.ALL)}")
        work = (name, int(batch), int(length), dtype, what)
        mine, peer = ours(o.program, o.device, work, o.seconds), theirs(torch, models, o.device, work, o.seconds, o.compile)
        if o.device == "cuda":
            torch.cuda.empty_cache()
        for k, (own, other) in enumerate(itertools.zip_longest(mine.items(), peer.items())):
            row = f"{text if k == 0 else '':44s}" + (f"{own[0]:9s}{fields(own[1])}" if own else " " * (9 + len(FIELDS)))
            print((row + (f"   {other[0]:10s}{fields(other[1])}" if other else "")).rstrip())
        best = [p[1] for p in peer.values() if isinstance(p, tuple)]
        own = [m[1] for m in mine.values() if isinstance(m, tuple)]
        if best and own:
            ratios.append((min(best) / min(own), text))
            print(f"{'':44s}PyTorch's best / ours {ratios[-1][0]:.2f}", flush=True)
    if ratios:
        mean = math.exp(sum(math.log(r) for r, _ in ratios) / len(ratios))
        below = [f"{text} {r:.2f}" for r, text in sorted(ratios) if r < 1]
        print(f"geometric mean of {len(ratios)}: {mean:.2f}; below 1: {', '.join(below) or 'none'}")


if __name__ == "__main__":
    main()
