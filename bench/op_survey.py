#!/usr/bin/env python3
"""Every kind of op beside PyTorch, forward and gradient: op_survey.py LIBRARY [--device cuda] [--works FILE] [PART-OF-LINE...]

Reads bench/op_works.txt: a line is an op by its ATen name, tensors, and arguments by name. Ours is the op as a compiled function,
called by its name through tests/opinfo/bridge.py; its gradient is that of all floating tensors, a compiled function too. PyTorch
runs the same ATen op eagerly, on a GPU captured as one graph. Periods are medians in us, one after the other on the same memory; below 1: PyTorch is
faster. Ends with the geometric mean and the rows below 1. Not a proof of results: opinfo.py compares those; here the largest difference is told where it
is not small, as a survey of other sizes.
  --threads N  of both, on a CPU; 1: periods are in time of the processor, so that what else the machine does counts less
  --warm I/N   only compiles every N-th work from the I-th on, so that processes side by side fill the cache of kernels first
"""

import argparse
import ast
import ctypes as C
import functools
import math
import os
import re
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "opinfo"))
import bridge  # noqa: E402
import torch  # noqa: E402

TYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "u8": "uint8", "i8": "int8", "i16": "int16",
         "bool": "bool"}
TENSOR = re.compile(r"(f32|f64|f16|bf16|i64|i32|i16|i8|u8|bool)\[([\d,]*)\](?:<(\d+))?(\+?)(cl)?~?")
SECONDS = 0.04
clock = time.perf_counter


def tensor(word, device):
    """f32[3,4]: normal; f32[3]+: in (0, 1); i64[3]<10: below 10; f32[1,3,8,8]cl: channels last; f32[3]~: without a gradient; -: none."""
    if word == "-":
        return None
    kind, size, below, positive, last = TENSOR.fullmatch(word).groups()
    size, dtype = [int(n) for n in size.split(",") if n], getattr(torch, TYPES[kind])
    if kind == "bool":
        return torch.rand(size, device=device) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, int(below or 100), size, dtype=dtype, device=device)
    t = (torch.rand(size, device=device) * 0.98 + 0.01 if positive else torch.randn(size, device=device)).to(dtype)
    return t.contiguous(memory_format=torch.channels_last) if last else t


def differentiable(t):
    return t is not None and t.is_floating_point() and not t.still


class Work:
    """name: row of ours; `aten=NAME` where PyTorch's differs, `torch=PATH` where it is a function of Python's."""

    def __init__(self, line, rows, device):
        words = re.findall(r"[^\s\[(]*(?:\[[^\]]*\]|\([^)]*\))?\S*", line)
        words = [w for w in words if w]
        self.row, self.named, self.tensors = rows[words[0]], {}, []
        path = "ops.aten." + words[0]
        for word in words[1:]:
            if word == "-" or TENSOR.fullmatch(word):
                t = tensor(word, device)
                if t is not None:
                    t.still = word.endswith("~")
                self.tensors.append(t)
            elif word.startswith(("aten=", "torch=")):
                path = word.replace("aten=", "ops.aten.").replace("torch=", "")
            else:
                name, value = word.split("=", 1)
                self.named[name] = ast.literal_eval(value)
        self.op = functools.reduce(getattr, path.split("."), torch)
        ours = [p.name for p in self.row.params]
        theirs = getattr(getattr(self.op, "default", self.op), "_schema", None)
        names = [a.name for a in theirs.arguments] if theirs else ours
        # One of another name in PyTorch stands at its place there.
        self.renamed = {o: n for o, n in zip(ours, names) if o != n and o not in names and n not in ours}
        self.keep = []
        unknown = set(self.named) - {p.name for p in self.row.params}
        if unknown:
            raise ValueError(f"no {', '.join(unknown)} in {self.row.schema}")

    def ours(self):
        """Tensors and attributes of the call."""
        given, tensors, attrs = list(self.tensors), [], []
        for p in self.row.params:
            if p.tensor:
                if p.many:
                    tensors, given = tensors + given, []
                else:
                    tensors.append(given.pop(0) if given else None)
            elif p.base != "Generator":
                value = self.named[p.name] if p.name in self.named else bridge.default(p)
                attrs.append(bridge.attribute(p, value, self.keep))
            else:
                a = bridge.Attr()
                a.kind = bridge.GENERATOR
                attrs.append(a)
        return tensors, attrs

    def theirs(self, tensors):
        """By the names of parameters, which are PyTorch's."""
        given, named = list(tensors), dict(self.named)
        for p in self.row.params:
            if p.tensor and given:
                named[p.name], given = (given, []) if p.many else (given[0], given[1:])
        for name in self.renamed:
            named[self.renamed[name]] = named.pop(name)
        return self.op(**named)


def first_float(results):
    found = results if isinstance(results, (tuple, list)) else [results]
    return next((r for r in found if isinstance(r, torch.Tensor) and r.is_floating_point()), None)


class Ours:
    def __init__(self, library, device):
        self.lib, self.c, self.cuda = library, library.c, device == "cuda"
        self.device = bridge.Device(1 if self.cuda else 0, 0)
        self.c.rp_synchronize.argtypes = [bridge.Device]
        self.c.rp_detach.argtypes, self.c.rp_detach.restype = [C.c_void_p], C.c_void_p

    def handle(self, t, gradient):
        size, stride = ((C.c_int64 * (t.dim() + 1))(*v) for v in (t.shape, t.stride()))
        h = self.c.rp_from_blob(t.data_ptr() or C.addressof(size), size, t.dim(), stride, bridge.DTYPES[t.dtype], self.device, None, None)
        if gradient:
            self.c.rp_set_requires_grad(h, True)
        self.lib.check()
        return h

    def compiled(self, work, tangent):
        """The function, its arguments, and how many results; tangent: of its gradient."""
        tensors, attrs = work.ours()
        there = [k for k, t in enumerate(tensors) if t is not None]
        floats = [i for i, k in enumerate(there) if differentiable(tensors[k])]
        n_tensors, keep = len(tensors), [t for t in tensors if t is not None]
        if tangent is not None:
            tangent.still = True
            keep.append(tangent)

        def body(_, inputs, n_in, out, n_out):
            handles = [None] * n_tensors
            for i, k in enumerate(there):
                handles[k] = inputs[i]
            results = self.lib.apply(work.row, handles, attrs)
            if tangent is None:
                for k, h in enumerate(results[:n_out]):
                    out[k] = h
                return
            options = bridge.BackwardOptions(C.sizeof(bridge.BackwardOptions), False, False, True)
            grads = bridge.pointers([None] * len(floats))
            self.c.rp_grad(bridge.pointers(results[:1]), 1, bridge.pointers([inputs[i] for i in floats]), len(floats),
                           bridge.pointers([inputs[n_in - 1]]), C.byref(options), grads)
            for k in range(n_out):
                out[k] = grads[k]

        n_out = work.row.n_out if tangent is None else len(floats)
        fn = bridge.Fn(bridge.BODY(body), None, 0, work.row.name.encode())
        options = bridge.CompileOptions(16, b"fused")
        f = self.c.rp_compile(fn, C.byref(options))
        self.lib.check()
        inputs = bridge.pointers([self.handle(t, tangent is not None and differentiable(t)) for t in keep])
        out, n_in = bridge.pointers([None] * n_out), len(keep)

        def call():
            scope = self.c.rp_scope_begin()
            status = self.c.rp_call(f, inputs, n_in, out, n_out)
            self.c.rp_scope_end(scope, None, 0)
            if status:
                self.lib.check(status)

        def result():
            with self.lib.scope():
                self.lib.check(self.c.rp_call(f, inputs, n_in, out, n_out))
                return next((self.lib.torch(h) for h in out[:n_out] if h), None)

        call.fn, call.f, call.result = fn, f, result
        return call

    def sync(self):
        self.lib.check(self.c.rp_synchronize(self.device))


def period(call, sync):
    for _ in range(3):
        call()
    sync()
    begin = clock()
    for _ in range(3):
        call()
    sync()
    burst = max(1, int(SECONDS / 8 / ((clock() - begin) / 3)))
    times, end = [], clock() + SECONDS
    while clock() < end or len(times) < 3:
        begin = clock()
        for _ in range(burst):
            call()
        sync()
        times.append((clock() - begin) / burst)
    return statistics.median(times) * 1e6


def leaves_of(work, gradient):
    return [t if t is None else t.detach().requires_grad_(gradient and differentiable(t)) for t in work.tensors]


def peer(work, tangent, cuda):
    """What PyTorch calls, and its result."""
    leaves = leaves_of(work, tangent is not None)
    floats = [t for t in leaves if t is not None and t.requires_grad]

    def once():
        if tangent is None:
            with torch.no_grad():
                return work.theirs(leaves)
        return torch.autograd.grad(first_float(work.theirs(leaves)), floats, tangent, allow_unused=True)

    if not cuda:
        return once, once()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        once()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            once()
        except RuntimeError:  # waits for the device: no graph can have it
            return once, once()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = once()
    graph.replay()
    return graph.replay, result


def difference(mine, want):
    if mine is None or want is None or not want.is_floating_point() or mine.shape != want.shape:
        return 0.0
    a, b = mine.double(), want.detach().cpu().double()
    worst = (a - b).abs().nan_to_num(0).max().item() if a.numel() else 0
    return worst / (b.abs().nan_to_num(0, 0, 0).max().item() + 1e-30)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("library")
    options.add_argument("parts", nargs="*")
    options.add_argument("--works", default=os.path.join(HERE, "op_works.txt"))
    options.add_argument("--device", default="cpu")
    options.add_argument("--threads", type=int)
    options.add_argument("--warm")
    o = options.parse_args()
    if o.threads:
        global clock
        os.environ["REPRISE_NUM_THREADS"] = str(o.threads)
        torch.set_num_threads(o.threads)
        clock = time.process_time if o.threads == 1 else time.perf_counter
    cuda = o.device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(1)
    library = bridge.Library(o.library)
    rows, ours = library.rows(), Ours(library, o.device)
    lines = [line.strip() for line in open(o.works, encoding="utf-8")]
    lines = [x for x in lines if x and x[0] != "#" and (not o.parts or any(p in x for p in o.parts))]
    if o.warm:
        first, step = map(int, o.warm.split("/"))
        lines = lines[first::step]
    ratios, torch_sync = {}, torch.cuda.synchronize if cuda else lambda: None
    print(f"{'work':86}{'reprise us':>12}{'torch us':>12}{'ratio':>8}")
    for line in lines:
        for gradient in (False, True):
            name = ("grad " if gradient else "") + line
            tangent = None
            try:
                work = Work(line.removesuffix(" forward"), rows, o.device)
                if gradient:
                    if line.endswith(" forward") or not any(map(differentiable, work.tensors)):
                        continue
                    result = first_float(work.theirs(leaves_of(work, True)))
                    if result is None or not result.requires_grad:
                        continue
                    tangent = torch.randn_like(result)
                if cuda:
                    torch.cuda.synchronize()
                call = ours.compiled(work, tangent)
                for _ in range(3):
                    call()
                ours.sync()
                if o.warm:
                    continue
                mine = period(call, ours.sync)
                theirs, want = peer(work, tangent, cuda)
                other = period(theirs, torch_sync)
                off = difference(call.result(), first_float(want))
                ratios[name] = other / mine
                remark = f"  differs by {off:.1e}" if off > (3e-2 if "16[" in line else 1e-3) else ""
                print(f"{name:86}{mine:12.1f}{other:12.1f}{ratios[name]:8.2f}{remark}", flush=True)
            except Exception as error:  # a row that cannot is a line of the table
                library.c.rp_error_take()
                if not o.warm:
                    print(f"{name:86}  {type(error).__name__}: {error}".split("\n")[0][:260], flush=True)
        if cuda:
            torch.cuda.empty_cache()
    if ratios:
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        print(f"\ngeometric mean of {len(ratios)} ratios, PyTorch / Reprise: {mean:.2f}; below 1:")
        for name, ratio in sorted(ratios.items(), key=lambda r: r[1]):
            if ratio < 1:
                print(f"  {ratio:6.2f}  {name}")


if __name__ == "__main__":
    main()
