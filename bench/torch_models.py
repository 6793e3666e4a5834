#!/usr/bin/env python3
"""Networks of timm and torchvision at their usual sizes through torch.compile(backend="reprise") on a GPU, beside eager PyTorch as one
CUDA graph: torch_models.py [--inductor] [--seconds 0.2] [--jobs 8] NAME,BATCH,TYPE,forward|step ...

TYPE is f16, bf16, tf32 or f32; step is forward, sum and backward. Periods in us are medians of replays of a CUDA graph that holds
the work, ours as well; PyTorch's is the best of both layouts of images. "call" is ours called as a function, not captured. Works
compile side by side, measuring takes turns. Last the geometric mean of the ratios, PyTorch's to ours. Needs torch, torchvision, timm and the wheel."""

import argparse
import fcntl
import math
import os
import statistics
import subprocess
import sys
import time
import warnings

from models import capture

WORKS = """mobilenetv3_large_100,32,f16,forward efficientnet_b0,32,f16,forward convnext_tiny,16,bf16,forward regnety_032,32,f16,forward
densenet121,16,f16,forward swin_tiny_patch4_window7_224,16,bf16,forward mixer_b16_224,16,bf16,forward inception_v3,16,tf32,forward
vgg16_bn,16,f16,forward resnet50,1,tf32,forward efficientnet_b0,16,tf32,step convnext_tiny,8,bf16,step""".split()


def period(torch, call, seconds):
    """Median of the time of a replay, in us."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times, until, n = [], time.perf_counter() + seconds, 1
    while time.perf_counter() < until or len(times) < 5:
        begin.record()
        for _ in range(n):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / n)
        n = max(1, min(100, int(4e3 / times[-1])))
    return statistics.median(times[1:])


def made(torch, name, batch, kind, what, last):
    torch.manual_seed(0)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
    if ":" in name:
        import torchvision

        model = torchvision.models.get_model(name.split(":")[1], weights=None)
        size = (batch, 3, 520, 520) if "segmentation" in type(model).__module__ else (batch, 3, 224, 224)
    else:
        import timm

        model = timm.create_model(name, pretrained=False)
        size = (batch, *model.default_cfg.get("input_size", (3, 224, 224)))
    model = model.to("cuda", dtype).train(what == "step")
    image = torch.randn(size, device="cuda", dtype=dtype)
    if last:
        model, image = model.to(memory_format=torch.channels_last), image.to(memory_format=torch.channels_last)
    return model, image


def first(y):
    return y["out"] if isinstance(y, dict) else y[0] if isinstance(y, (tuple, list)) else y


def work_of(torch, model, image, what):
    if what == "forward":

        def call():
            with torch.no_grad():
                return first(model(image))

        return call

    def call():
        for p in model.parameters():
            p.grad = None
        y = first(model(image))
        y.float().square().mean().backward()
        return y.detach()  # a graph that is kept holds gradients to the stream it was made on

    return call


def one(o, work):
    warnings.simplefilter("ignore")
    import torch

    import reprise

    name, batch, kind, what = work.split(",")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
    torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
    torch._dynamo.config.cache_size_limit = 64

    def measured(backend, last):
        print(f"{backend or 'PyTorch'}{', channels last' * last}", file=sys.stderr)
        model, image = made(torch, name, int(batch), kind, what, last)
        run = torch.compile(model, backend=backend) if backend else model
        call = work_of(torch, run, image, what)
        with open("/tmp/torch_models.lock", "a") as lock:
            if not backend:
                fcntl.flock(lock, fcntl.LOCK_EX)
            for _ in range(3):
                y = call()
            torch.cuda.synchronize()
            if backend:
                fcntl.flock(lock, fcntl.LOCK_EX)
            replay = capture(torch, call)
            return period(torch, replay, o.seconds), period(torch, call, o.seconds / 4), y.detach().float()

    begin = time.perf_counter()
    ours, called, y = measured("reprise", False)
    spent = time.perf_counter() - begin
    split = sum(len(g.eager) for g in reprise.explain().graphs)
    copied = sum(g.copied for g in reprise.explain().graphs)
    plain, _, want = measured(None, False)
    last, _, _ = measured(None, True)
    peers = [plain, last]
    text = f"{plain:9.0f} {last:9.0f}"
    if o.inductor:
        compiled = measured("inductor", True)[0]
        peers.append(compiled)
        text += f" {compiled:9.0f}"
    error = ((y - want).abs().max() / want.abs().max()).item()
    print(f"{work:46} {ours:9.0f} {called:9.0f} {text} {min(peers) / ours:6.2f} {error:9.1e} {spent:5.0f} {split:5} {copied:6}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("works", nargs="*")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--one", action="store_true")
    o = parser.parse_args()
    if o.one:
        return one(o, o.works[0])
    print(f"{'work':46} {'ours':>9} {'call':>9} {'PyTorch':>9} {'last':>9}{'  inductor' if o.inductor else ''} {'ratio':>6} {'error':>9} {'s':>5} split copied")
    waiting, running, ratios = list(o.works or WORKS), [], []
    options = ["--inductor"] * o.inductor + ["--seconds", str(o.seconds), "--one"]
    while waiting or running:
        while waiting and len(running) < o.jobs:
            work = waiting.pop(0)
            running.append((work, subprocess.Popen([sys.executable, __file__, *options, work], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)))
        for job in [j for j in running if j[1].poll() is not None]:
            running.remove(job)
            out, err = job[1].communicate()
            if job[1].returncode:
                said = [line for line in err.splitlines() if "Error" in line or "error:" in line] or [str(job[1].returncode)]
                who = [line for line in err.splitlines() if line.split(",")[0] in ("reprise", "PyTorch", "inductor")]
                print(f"{job[0]:46} failed: {who[-1] if who else ''}: {said[0][:200]}", flush=True)
                continue
            print(out, end="", flush=True)
            ratios.append(float(out.split()[5 + o.inductor]))
        time.sleep(0.2)
    if ratios:
        print(f"geometric mean of {len(ratios)}: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")


if __name__ == "__main__":
    main()
