#!/usr/bin/env python3
"""What a call costs: of a program with 1 and with 100 tensors in and out, above the library's own call, beside an op of PyTorch's own that
makes as many tensors; of compiled models, and of training steps that are one graph, beside eager PyTorch and inductor (default and
reduce-overhead) in the same run.

usage: python python/tests/cost.py [--device cpu|cuda] [--models mlp,bert|all] [--peers eager,inductor,reduce-overhead] [--part K/N]

On a GPU a time is that of calls on end, until the last has ended; "host" is how long a single call takes to return, before the GPU has
computed anything that it waits for."""
import argparse
import time

import torch

import reprise
import models
from models import call, made

TURN = {"cpu": 3e-4, "cuda": 1e-2}  # seconds


def best(f, seconds=0.5):
    """Seconds a call, the least of many turns, which are short: what else runs here comes between few of them."""
    for _ in range(5):
        f()
    n, took = 1, 0
    while took < TURN[models.DEVICE]:
        n *= 2
        took = turn(f, n)
    least, begin = took / n, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        least = min(least, turn(f, n) / n)
    return least


def turn(f, n):
    wait = torch.cuda.synchronize if models.DEVICE == "cuda" else lambda: None
    wait()
    t = time.perf_counter()
    for _ in range(n):
        f()
    wait()
    return time.perf_counter() - t


def host(f, seconds=0.3):
    """Seconds until a call returns, the median, with nothing before it on the GPU."""
    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < 5:
        torch.cuda.synchronize()
        t = time.perf_counter()
        f()
        took.append(time.perf_counter() - t)
    torch.cuda.synchronize()
    return sorted(took)[len(took) // 2]


def times(f):
    """(the time of a call, and on a GPU the host's part) in words."""
    return f"{best(f) * 1e6:9.1f} us" + (f" (host {host(f) * 1e6:7.1f})" if models.DEVICE == "cuda" else "")


def tensors(n_in, n_out):
    xs = [torch.randn(4, device=models.DEVICE) for _ in range(n_in)]
    torch._dynamo.reset()
    reprise.reset()
    run = torch.compile(lambda *xs: [xs[k % n_in] + (1 + k) for k in range(n_out)] if n_out >= n_in else [sum(xs)], backend="reprise")
    with torch.no_grad():
        run(*xs), run(*xs)
    program = reprise.explain().graphs[0].programs[0]
    whole, bare = best(lambda: program.run(xs)), min(program.bare(xs, 100) for _ in range(100))
    rows = torch.randn(n_out, 4, device=models.DEVICE)
    print(f"{n_in:3} tensors in, {n_out:3} out: {whole * 1e6:7.2f} us, the library alone {bare * 1e6:7.2f} us, above it {(whole - bare) * 1e6:7.2f} us; "
          f"PyTorch makes {n_out} by unbind in {best(lambda: rows.unbind(0)) * 1e6:.2f} us", flush=True)


def model(name, how):
    torch._dynamo.reset()
    m, batch, loss = made(name, torch.float32)
    run = compiled(m, how)
    m.eval()
    with torch.no_grad():
        begin = time.perf_counter()
        call(run, m, batch)
        first = time.perf_counter() - begin
        inference = times(lambda: call(run, m, batch))
    m.train()
    optimizer = torch.optim.SGD(m.parameters(), 0.0)

    def step():
        optimizer.zero_grad()
        loss(call(run, m, batch)).backward()
        optimizer.step()
    print(f"{name:18} {how:16} first call {first:6.1f} s, inference {inference}, training step {times(step)}", flush=True)


def whole_step(how):
    """A step of an MLP with its gradients and Adam as one graph."""
    from torch.optim.adam import adam
    torch._dynamo.reset()
    torch.manual_seed(0)
    m = torch.nn.Sequential(torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(models.DEVICE)
    params = list(m.parameters())
    means, squares, counts = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params], [torch.zeros((), device=models.DEVICE) for _ in params]
    x, t = torch.randn(64, 10, device=models.DEVICE), torch.randint(0, 10, (64,), device=models.DEVICE)

    def step():
        loss = torch.nn.functional.cross_entropy(m(x), t)
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            adam(params, list(grads), means, squares, [], counts, foreach=False, amsgrad=False, beta1=0.9, beta2=0.999, lr=1e-3, weight_decay=0.0, eps=1e-8,
                 maximize=False, capturable=models.DEVICE == "cuda")
        return loss.detach()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        run = compiled(step, how)
        print(f"mlp b64 Adam {how:16} a step that is one graph {times(run)}", flush=True)


def compiled(f, how):
    return {"eager": lambda: f, "reprise": lambda: torch.compile(f, backend="reprise"), "inductor": lambda: torch.compile(f),
            "reduce-overhead": lambda: torch.compile(f, mode="reduce-overhead")}[how]()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="mlp,encoder,resnet18")
    parser.add_argument("--peers", default="eager,inductor,reduce-overhead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", type=models.share, default="1/1", metavar="K/N", help="of N shares of the models the K-th, from 1")
    o = parser.parse_args()
    models.DEVICE = o.device
    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(1)
    for n_in, n_out in ((1, 1), (10, 10), (100, 1), (1, 100), (100, 100)):
        tensors(n_in, n_out)
    wanted = list(models.ZOO) if o.models == "all" else [*filter(None, o.models.split(","))]
    for name in ["", *o.part(wanted)]:
        for how in ["reprise", *filter(None, o.peers.split(","))]:
            try:
                model(name, how) if name else whole_step(how)
            except Exception as e:
                print(f"{name:18} {how:16} {type(e).__name__}: {str(e).splitlines()[0][:120]}", flush=True)


if __name__ == "__main__":
    main()
