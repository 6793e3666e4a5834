#!/usr/bin/env python3
"""A table: models of torchvision, timm and transformers through torch.compile(backend="reprise"), inference and five training steps beside
eager PyTorch.

usage: python python/tests/models.py [NAME...] [--steps 5] [--threads 4] [--device cpu|cuda] [--part K/N] [--verbose] [--ways | --times]

"passed": every node ran in the library; "split": some ran in PyTorch (how many, and why, below the table); "refused": none, or an error. A
difference beyond the tolerance makes the exit status 1. Errors are relative to the largest element; training is measured by the gradients
of the first step and the parameters behind the last, in float64. "strays" is how far eager PyTorch itself ends from there when the
parameters it begins with are moved by a unit in the last place: a model that multiplies that by a million does so with our rounding, too.
--ways measures inference in other ways instead, beside eager PyTorch in the same way: batches of other sizes, a model in channels_last memory,
one that was trained between two evaluations, and autocast to bfloat16, where both are measured by how far they are from float32.
--times measures instead what a call and a training step (forward and backward) of float32 take in eager PyTorch, compiled by inductor, and
compiled by us: medians of turns that follow each other, and how long the first calls took. The fourth number is inductor's time by ours.
On a GPU eager PyTorch is not exact in float64 everywhere (gradients of wav2vec2): where ours are not its, both are measured by eager
PyTorch on the CPU, and "strays" is then how far it is from there on the GPU."""
import argparse
import contextlib
import logging
import os
import statistics
import sys
import time
import traceback
import warnings

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.simplefilter("ignore")
import torch  # noqa: E402

import reprise  # noqa: E402
import families  # noqa: E402, F401: fills the zoo, too
import kinds  # noqa: E402, F401: and so does this
from zoo import ZOO  # noqa: E402

logging.getLogger("torch").setLevel(logging.CRITICAL)
torch._dynamo.config.allow_rnn = True  # a recurrent layer is part of the graph
# Of inference in float32; of gradients and parameters in float64; of the latter, where a model computes norms, softmax or positions in float32
# whatever it is given.
SINGLE, DOUBLE, INSIDE = 2e-4, 1e-8, 1e-5
LEAST = 1e-10  # of the largest element of any gradient
STRAY = 8  # times what eager strays by itself
SINGLE_INSIDE = {"llama", "qwen2", "mixtral", "t5", "mamba", "switch", "xcit", "bloom", "mpt", "mistral", "gemma", "gemma2", "phi", "qwen3_moe", "deepseek",
                 "gpt_oss", "mamba2", "longformer", "evonorm", "efficientvit", "naflexvit", *families.SINGLE_INSIDE, *kinds.SINGLE_INSIDE}
DEVICE = "cpu"  # --device


def flat(y):
    return [t for t in torch.utils._pytree.tree_leaves(y) if isinstance(t, torch.Tensor)]


def error(got, want):
    """The largest difference of a tensor, by its largest element, or a thousandth of that of all."""
    worst, floor = 0.0, 1e-3 * max([t.detach().double().abs().nan_to_num(posinf=0).max().item() for t in want if t.numel()], default=1.0)
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.isfinite(), b.isfinite()):
            return float("inf")
        if b.numel():
            a, b = (t.double().nan_to_num(posinf=0, neginf=0) for t in (a.detach(), b.detach()))
            worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=max(floor, 1e-9))).item())
    return worst


def made(name, dtype):
    torch.manual_seed(0)
    model, batch, loss = ZOO[name][1]()
    for p in model.parameters():  # heads that begin as zeros would hide everything before them
        if p.dim() > 1 and not p.any():
            torch.nn.init.normal_(p, std=0.05)
    batch = {k: v.to(DEVICE, dtype if v.is_floating_point() else None) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    return model.to(DEVICE, dtype), batch, loss


def inference(name, backend, dtype=torch.float32):
    model, batch, _ = made(name, dtype)
    model.eval()
    run = torch.compile(model, backend=backend) if backend else model
    with torch.no_grad():
        first = flat(call(run, model, batch))
        return flat(call(run, model, batch)), first


def call(run, model, batch):
    return run(*batch.values()) if isinstance(model, torch.nn.Sequential) else run(**batch)


@contextlib.contextmanager
def exact():
    """Eager PyTorch multiplies by a sixth that is rounded to single precision, in float64, too, in hardsigmoid's gradient and, on a GPU, in
    hardswish: here it has all digits."""
    f = torch.nn.functional
    hardsigmoid, hardswish = f.hardsigmoid, f.hardswish
    f.hardsigmoid, f.hardswish = lambda x, inplace=False: f.relu6(x + 3) / 6, lambda x, inplace=False: x * f.relu6(x + 3) / 6
    try:
        yield
    finally:
        f.hardsigmoid, f.hardswish = hardsigmoid, hardswish


@contextlib.contextmanager
def on_the_cpu():
    global DEVICE
    device, DEVICE = DEVICE, "cpu"
    try:
        yield
    finally:
        DEVICE = device


def on_cpu(found):
    return [[t.cpu() for t in tensors] for tensors in found]


def training(name, backend, steps, dtype=torch.float64, moved=False):
    model, batch, loss_of = made(name, dtype)
    for p in model.parameters() if moved else ():
        p.data *= 1 + torch.finfo(dtype).eps * torch.randint(-1, 2, p.shape).to(DEVICE, dtype)
    model.train()
    run = torch.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    losses, gradients = [], []
    for k in range(steps):
        optimizer.zero_grad()
        loss = loss_of(call(run, model, batch))
        loss.backward()
        if k == 0:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]  # AOT autograd gives zeros
        optimizer.step()
        losses.append(loss.detach())
    return gradients, losses, [t.detach() for t in model.state_dict().values()]


class ShowsNothing(Exception):
    """Any result would agree with PyTorch's."""


def one(name, steps):
    """(verdict, error of inference, of gradients, of the parameters at the end, what eager strays, report, seconds)"""
    began = time.monotonic()
    reports = []
    torch._dynamo.reset()
    reprise.reset()
    a, again = inference(name, "reprise")
    b, _ = inference(name, None)
    wrong = max(error(a, b), error(again, b))
    reports += reprise.explain().graphs
    torch._dynamo.reset()
    reprise.reset()
    got = training(name, "reprise", steps)
    with exact():
        want, moved = training(name, None, steps), training(name, None, steps, moved=True)
        if DEVICE != "cpu" and max(error(got[0], want[0]), error(got[2], want[2])) > DOUBLE:
            with on_the_cpu():
                exactly = training(name, None, steps)
            got, want, moved = on_cpu(got), exactly, on_cpu(want)
    if not all(torch.isfinite(t).all() for t in want[1]) or not any(t is not None and t.abs().max() > LEAST for t in want[0]):
        raise ShowsNothing("PyTorch's own losses are no numbers, or no gradient is anything but 0")
    reports += reprise.explain().graphs
    graphs = reports
    eager = sum(len(g.eager) for g in graphs)
    verdict = "passed" if eager == 0 and graphs else "split" if any(g.parts for g in graphs) else "refused"
    return verdict, wrong, error(got[0], want[0]), error(got[2], want[2]), error(moved[2], want[2]), graphs, time.monotonic() - began


def larger(batch, more):
    """The batch with its first `more` entries once more behind it."""
    return {k: torch.cat([v, v[:more]]) if isinstance(v, torch.Tensor) and v.dim() else v for k, v in batch.items()}


def evaluated(model, run, batch):
    model.eval()
    with torch.no_grad():
        return flat(call(run, model, batch))


def ways(name):
    """(what is measured, its error, what it may be): "-" where eager PyTorch itself refuses the way."""
    found = []

    def fresh():
        torch._dynamo.reset()
        model, batch, loss = made(name, torch.float32)
        return model, batch, loss, torch.compile(model, backend="reprise")

    def way(what, f):
        try:
            found.append((what, *f()))
        except EagerRefuses:
            found.append((what, None, 0))

    def eager(f):
        try:
            return f()
        except Exception as e:
            raise EagerRefuses from e

    def batches():
        model, batch, _, run = fresh()
        worst = 0
        for more in (0, 1, 2, 1):
            batch_of = larger(batch, more)
            want = eager(lambda: evaluated(model, model, batch_of))
            worst = max(worst, error(evaluated(model, run, batch_of), want))
        return worst, SINGLE

    def channels_last():
        model, batch, _, run = fresh()
        if not any(isinstance(t, torch.Tensor) and t.dim() == 4 for t in batch.values()):
            raise EagerRefuses
        model.to(memory_format=torch.channels_last)
        batch = {k: v.to(memory_format=torch.channels_last) if isinstance(v, torch.Tensor) and v.dim() == 4 else v for k, v in batch.items()}
        return error(evaluated(model, run, batch), evaluated(model, model, batch)), SINGLE

    def switched():
        model, batch, loss, run = fresh()
        evaluated(model, run, batch)
        model.train()
        loss(call(run, model, batch)).backward()
        return error(evaluated(model, run, batch), evaluated(model, model, batch)), SINGLE

    def autocast():
        model, batch, _, run = fresh()
        exactly = evaluated(model, model, batch)
        with torch.autocast(DEVICE, torch.bfloat16):
            want, got = eager(lambda: evaluated(model, model, batch)), evaluated(model, run, batch)
        if any(a.dtype != b.dtype for a, b in zip(got, want, strict=True)):
            return float("inf"), 0
        strays = error([t.float() for t in want], exactly)
        return error([t.float() for t in got], exactly), 2 * strays + SINGLE
    for what, f in (("batches", batches), ("channels_last", channels_last), ("switched", switched), ("bfloat16", autocast)):
        way(what, f)
    return found


class EagerRefuses(Exception):
    """The model does not run so in PyTorch either."""


def table_of_ways(names):
    bad = []
    for name in names:
        reprise.reset()
        try:
            found = ways(name)
            split = sum(len(g.eager) for g in reprise.explain().graphs)
            wrong = [what for what, e, limit in found if e is not None and not e <= limit]
            print(f"{name:20} " + ", ".join(f"{what} {'-' if e is None else f'{e:.1e}'}" for what, e, _ in found) + (f"; {split} nodes in PyTorch" if split else "")
                  + (f"  DIFFERS: {' '.join(wrong)}" if wrong else ""), flush=True)
        except Exception as e:
            wrong = [type(e).__name__]
            print(f"{name:20} refused  {type(e).__name__}: {str(e).splitlines()[0][:150]}", flush=True)
        bad += [name] * bool(wrong)
    print(f"{len(names)} models; {len(bad)} wrong: {' '.join(bad)}")
    return 1 if bad else 0


# As inductor, with all kernels compiled before the first call.
WAYS_TO_RUN = {"eager": lambda m: m, "inductor": torch.compile, "reprise": lambda m: torch.compile(m, backend="reprise", options={"wait": True})}


def medians(runs, seconds):
    """Seconds a call of each, by name: the median of turns that follow each other, so that what else runs here slows all of them."""
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    took, many = {how: [] for how in runs}, {}
    for how, f in runs.items():
        f(), f()
        wait()
        t = time.perf_counter()
        f()
        wait()
        many[how] = max(1, int(2e-3 / (time.perf_counter() - t)))
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(took["eager"]) < 5:
        for how, f in runs.items():
            t = time.perf_counter()
            for _ in range(many[how]):
                f()
            wait()
            took[how].append((time.perf_counter() - t) / many[how])
    return {how: statistics.median(t) for how, t in took.items()}


def timed(name, seconds):
    """(first calls, seconds of a call, seconds of a training step), by the way to run"""
    torch._dynamo.reset()
    calls, steps, first = {}, {}, {}
    for how, compiled in WAYS_TO_RUN.items():
        began = time.monotonic()
        still, batch, _ = made(name, torch.float32)
        moving, _, loss = made(name, torch.float32)
        still.eval()
        moving.train()

        def call_of(run=compiled(still), m=still, batch=batch):
            with torch.no_grad():
                return call(run, m, batch)

        def step_of(run=compiled(moving), m=moving, batch=batch, loss=loss):
            for p in m.parameters():
                p.grad = None
            loss(call(run, m, batch)).backward()
        calls[how], steps[how] = call_of, step_of
        call_of(), step_of()
        first[how] = time.monotonic() - began
    return first, medians(calls, seconds), medians(steps, seconds)


def table_of_times(names, seconds):
    print(f"PyTorch {torch.__version__}, reprise {reprise.__version__}, {torch.get_num_threads()} threads, us")
    head = lambda what: f"{what + ': eager':>18} {'inductor':>9} {'reprise':>9} {'ratio':>6}"
    print(f"{'model':20} {head('call')} {head('step')}  first calls, s")
    slower = []
    for name in names:
        try:
            first, *found = timed(name, seconds)
        except Exception as e:
            print(f"{name:20} {type(e).__name__}: {str(e).splitlines()[0][:150]}", flush=True)
            continue
        print(f"{name:20} " + " ".join(f"{t['eager'] * 1e6:18.1f} {t['inductor'] * 1e6:9.1f} {t['reprise'] * 1e6:9.1f} {t['inductor'] / t['reprise']:6.2f}" for t in found)
              + "  " + " ".join(f"{first[how]:.1f}" for how in WAYS_TO_RUN), flush=True)
        slower += [name] * any(t["reprise"] > t["inductor"] for t in found)
    print(f"slower than inductor: {' '.join(slower) or 'none'}")
    return 0


def share(text):
    """K/N: what gives the K-th of N shares of a list."""
    k, n = map(int, text.split("/"))
    if not 1 <= k <= n:
        raise ValueError(text)
    return lambda all_of: all_of[k - 1::n]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ZOO))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=min(4, os.cpu_count()))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", type=share, default="1/1", metavar="K/N", help="of N shares of the models the K-th, from 1: processes side by side")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0, help="of --times, for each of calls and steps")
    o = parser.parse_args()
    global DEVICE
    DEVICE = o.device
    torch.backends.cudnn.allow_tf32 = False  # PyTorch's products of float32 have all their digits as they are, its convolutions have not
    for name in set(o.names) - ZOO.keys():
        parser.error(f"no model {name}; there are {', '.join(ZOO)}")
    torch.set_num_threads(o.threads)
    if o.times:
        return table_of_times(o.part(o.names or list(ZOO)), o.seconds)
    if o.ways:
        return table_of_ways(o.part(o.names or list(ZOO)))
    bad, reasons, verdicts = [], {}, []
    print(f"PyTorch {torch.__version__}, reprise {reprise.__version__}")
    print(f"{'model':20} {'kind':12} {'verdict':8} {'graphs':>6} {'nodes':>6} {'eager':>6} {'inference':>10} {'gradients':>10} {f'{o.steps} steps':>10} {'strays':>10} {'s':>6}")
    for name in o.part(o.names or list(ZOO)):
        kind = ZOO[name][0]
        try:
            verdict, wrong, gradients, end, stray, graphs, seconds = one(name, o.steps)
        except Exception as e:
            if o.verbose:
                traceback.print_exc()
            print(f"{name:20} {kind:12} refused  {type(e).__name__}: {str(e).splitlines()[0][:150]}", flush=True)
            bad.append(name)
            verdicts.append("refused")
            continue
        eager = sum(len(g.eager) for g in graphs)
        limit = INSIDE if name in SINGLE_INSIDE else DOUBLE
        good = wrong <= SINGLE and gradients <= limit and end <= max(limit, STRAY * stray)
        print(f"{name:20} {kind:12} {verdict:8} {len(graphs):6} {sum(g.nodes for g in graphs):6} {eager:6} {wrong:10.1e} {gradients:10.1e} {end:10.1e} {stray:10.1e} {seconds:6.1f}"
              + ("" if good else "  DIFFERS"), flush=True)
        verdicts.append(verdict)
        if not good:
            bad.append(name)
        for g in graphs:
            for _, op, reason, place in g.eager:
                reasons.setdefault((op, reason), set()).add(name)
    for (op, reason), names in sorted(reasons.items()):
        print(f"  {op}: {reason} ({', '.join(sorted(names))})")
    print(f"{len(verdicts)} models: " + ", ".join(f"{verdicts.count(v)} {v}" for v in ("passed", "split", "refused")) + f"; {len(bad)} wrong: {' '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
