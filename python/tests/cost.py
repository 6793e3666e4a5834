#!/usr/bin/env python3
"""What a call costs: of a program with 1 and with 100 tensors, above the library's own call; of compiled models, beside eager PyTorch and
inductor (default and reduce-overhead) in the same run.

usage: python python/tests/cost.py [--models mlp,bert] [--peers eager,inductor,reduce-overhead]"""
import argparse
import time

import torch

import reprise
from models import call, made


def best(f, seconds=0.5):
    """Seconds a call, the least of several turns."""
    for _ in range(5):
        f()
    n, least, begin = 20, 1e9, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        t = time.perf_counter()
        for _ in range(n):
            f()
        least = min(least, (time.perf_counter() - t) / n)
    return least


def tensors(n):
    xs = [torch.randn(4) for _ in range(n)]
    torch._dynamo.reset()
    reprise.reset()
    run = torch.compile(lambda *xs: [x + 1 for x in xs], backend="reprise")
    with torch.no_grad():
        run(*xs), run(*xs)
    program = reprise.explain().graphs[0].programs[0]
    whole, bare = best(lambda: program.run(list(xs))), min(program.bare(list(xs), 200) for _ in range(20))
    print(f"{n:3} tensors in and out: {whole * 1e6:7.2f} us, the library alone {bare * 1e6:7.2f} us, above it {(whole - bare) * 1e6:7.2f} us")


def model(name, how):
    torch._dynamo.reset()
    m, batch, loss = made(name, torch.float32)
    run = {"eager": lambda: m, "reprise": lambda: torch.compile(m, backend="reprise"), "inductor": lambda: torch.compile(m),
           "reduce-overhead": lambda: torch.compile(m, mode="reduce-overhead")}[how]()
    times = []
    m.eval()
    with torch.no_grad():
        begin = time.perf_counter()
        call(run, m, batch)
        first = time.perf_counter() - begin
        times.append(best(lambda: call(run, m, batch)))
    m.train()
    optimizer = torch.optim.SGD(m.parameters(), 0.0)

    def step():
        optimizer.zero_grad()
        loss(call(run, m, batch)).backward()
        optimizer.step()
    times.append(best(step))
    print(f"{name:12} {how:16} first call {first:6.1f} s, inference {times[0] * 1e6:9.1f} us, training step {times[1] * 1e6:9.1f} us", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="mlp,encoder,resnet18")
    parser.add_argument("--peers", default="eager,inductor,reduce-overhead")
    o = parser.parse_args()
    torch.set_num_threads(1)
    for n in (1, 10, 100):
        tensors(n)
    for name in filter(None, o.models.split(",")):
        for how in ["reprise", *filter(None, o.peers.split(","))]:
            try:
                model(name, how)
            except Exception as e:
                print(f"{name:12} {how:16} {type(e).__name__}: {str(e).splitlines()[0][:120]}", flush=True)


if __name__ == "__main__":
    main()
