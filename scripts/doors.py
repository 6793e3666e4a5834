#!/usr/bin/env python3
"""Engines and ONNX beside each other: doors.py BUILD, run by doors.sh in its virtual environment.

  exports  `reprise export` of models and of graphs with sizes that vary: onnx.checker passes them, and ONNX Runtime's Python
           interface computes from the file what `reprise run` computes from the graph.
  table    Models and engines: the largest difference to eager, the time of a call beside fused kernels and, for onnxrt, beside ONNX
           Runtime's own Python interface on the exported file.
Ends with 1 where something differs."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort

MODELS = ("mlp", "cnn", "rnn", "lstm", "resnet18", "bert", "vit", "gpt2")
TOOL = None
failures = []


def tool(*args, check=True):
    done = subprocess.run([TOOL, *args], capture_output=True, text=True, check=False)
    if check and done.returncode:
        failures.append(f"reprise {' '.join(args)}: {done.stderr.strip()}")
    return done


def session(path):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


NUMPY = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(double)": np.float64, "tensor(bool)": np.bool_}


def feed(s, sizes=None):
    rng = np.random.default_rng(1)
    given = {}
    for i in s.get_inputs():
        shape = [(sizes or {}).get(d, 3) if isinstance(d, str) else d for d in i.shape]
        kind = NUMPY[i.type]
        given[i.name] = (rng.integers(0, 2, shape).astype(kind) if kind in (np.int64, np.bool_)
                         else rng.standard_normal(shape).astype(kind))
    return given


def period(call, seconds=0.5):
    for _ in range(3):
        call()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e6 * sorted(times)[len(times) // 2]


GRAPHS = {
    "rows": """graph "rows" with { symbol s0 = 8 of size(0, 0) } (%0: f32[s0, 10], %1: f32[10]) {
  %2: f32[s0, 10] = mul(%0, %1)
  %3: f32[s0*10] alias(%2) = view(%2) {size = [s0*10]}
  %4: f32[s0, 5, 2] alias(%2) = view(%2) {size = [s0, 5, 2]}
  %5: f32[s0, 10] = softmax(%2) {dim = 1}
  return %3, %4, %5
}
""",
}


def graphs(work):
    for name, text in GRAPHS.items():
        path = work / f"{name}.ir"
        path.write_text(text)
        tool("export", str(path), str(work / f"{name}.onnx"))
        if failures:
            return
        model = onnx.load(str(work / f"{name}.onnx"))
        onnx.checker.check_model(model, full_check=True)
        s = session(str(work / f"{name}.onnx"))
        for rows in (1, 8, 13):
            x, w = (np.random.default_rng(rows).standard_normal(n).astype(np.float32) for n in ((rows, 10), (10,)))
            got = s.run(None, dict(zip((i.name for i in s.get_inputs()), (x, w))))
            y = x * w
            e = np.exp(y - y.max(1, keepdims=True))
            for a, b in zip(got, (y.reshape(-1), y.reshape(rows, 5, 2), e / e.sum(1, keepdims=True))):
                if a.shape != b.shape or np.abs(a - b).max() > 1e-5:
                    failures.append(f"{name} of {rows} rows differs")
        print(f"graph {name}: checked, and equal for three sizes")


def exported(work, model):
    """The model's file, checked, and equal to eager; the time of its call through ONNX Runtime's own interface."""
    path, n = str(work / f"{model}.onnx"), len(failures)
    tool("export", model, path)
    if len(failures) > n:
        return None
    onnx.checker.check_model(path, full_check=True)
    sites = sum(1 for n in onnx.load(path, load_external_data=False).graph.node if n.doc_string)
    assert sites > 0, "no call site in the nodes"
    s = session(path)
    given = feed(s)
    args = ["run", model, "--backend=eager"]
    for k, value in enumerate(given.values()):
        np.save(work / f"in{k}.npy", value)
        args.append(f"--input=@{work}/in{k}.npy")
    got = s.run(None, given)
    for k, value in enumerate(got):
        args.append(f"--output={work}/out{k}.npy")
    tool(*args)
    for k, value in enumerate(got):
        want = np.load(work / f"out{k}.npy")
        if value.shape != want.shape or np.abs(value - want).max() > 2e-4 + 2e-3 * np.abs(want).max():
            failures.append(f"{model}.onnx: result {k} differs from eager's")
    return period(lambda: s.run(None, given))


def row(model, backend, train):
    args = ["bench", model, f"--backend={backend}", "--json", "--seconds=0.5"] + (["--train"] if train else [])
    done = tool(*args, check=False)
    if done.returncode:
        return None
    found = json.loads(done.stdout)
    found = found if isinstance(found, list) else found.get("rows", found)
    return found[0]["period_us"] if isinstance(found, list) else None


def main():
    global TOOL
    build = pathlib.Path(sys.argv[1]).resolve()
    TOOL = str(build / "tools/reprise/reprise")
    work = pathlib.Path(os.getcwd())
    backends = {b["name"]: b for b in json.loads(tool("backends", "--json").stdout)}
    engines = [e for e in ("onnxrt", "xla") if backends.get(e, {}).get("available")]
    for e in engines:
        print(f"{e}: {backends[e]['version']}, {backends[e]['where']}")
    graphs(work)
    models = [m.split()[0] for m in tool("run", "--list").stdout.splitlines()]
    print(f"{'us a call':<18}{'fused':>12}" + "".join(f"{e:>12}" for e in engines) + f"{'ORT Python':>12}   against eager")
    for model in [m for m in MODELS if m in models]:
        own = exported(work, model)
        agree = tool("run", model, "--compare", "--backend=" + ",".join(["eager", *engines]), "--atol=2e-4", "--rtol=2e-3")
        line = f"{model:<18}"
        for backend in ["fused", *engines]:
            us = row(model, backend, False)
            line += f"{us:>12.1f}" if us else f"{'-':>12}"
        line += f"{own:>12.1f}" if own else f"{'-':>12}"
        print(line + ("   equal" if agree.returncode == 0 else "   DIFFERS"), flush=True)
        if os.environ.get("DOORS_TRAIN", "1") != "0":
            line = f"{model + ', step':<18}"
            for backend in ["fused", *engines]:
                us = row(model, backend, True)
                line += f"{us:>12.1f}" if us else f"{'-':>12}"
            print(line, flush=True)
    for f in failures:
        print("FAILED", f)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
