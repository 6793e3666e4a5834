#!/usr/bin/env python3
"""Engines and ONNX beside each other: doors.py BUILD PART, run by doors.sh in its virtual environment. The parts:

  exports  `reprise export` of models and of graphs with sizes that vary: onnx.checker passes them, and ONNX Runtime's Python
           interface computes from the file what eager computes.
  ops      onnx.checker passes the model of every op that tests/test_doors.c left in the folder ops.
  table    Models and engines: the largest difference to eager, the first call, the time of a call beside fused kernels and, for
           onnxrt, beside ONNX Runtime's own Python interface on the exported file; inference, and whole training steps.
Ends with 1 where something differs. DOORS_SECONDS (60): rows of the table that would begin later are compared with eager as all are, and not
timed. DOORS_DEVICE=cuda: the table of models on a GPU, which needs no Python package but NumPy."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

try:
    import onnx
    import onnxruntime as ort
except ImportError:  # the table does without
    ort = None

# Model, and what of it is measured for which engines. Steps of the large ones take minutes: their small kin stand for them.
QUICK, LARGER, ALL = ("onnxrt", "xla"), ("onnxrt", "xla", "ipex"), ("onnxrt", "xla", "ipex", "tvm")
TABLE = (("mlp", False, ALL), ("mlp", True, QUICK), ("cnn", False, ALL), ("cnn", True, QUICK), ("rnn", False, QUICK),
         ("rnn", True, QUICK), ("bert-tiny", False, ALL), ("resnet18", False, LARGER), ("bert", False, LARGER),
         ("bert-tiny", True, QUICK), ("resnet-tiny", True, QUICK))
EXPORTS = ("mlp", "cnn", "rnn", "lstm-tiny", "vit-tiny", "gpt2-tiny", "bert-tiny", "resnet18")
LARGE = ("bert", "gpt2")
TOOL = None
DEVICE = ["--device=" + os.environ["DOORS_DEVICE"]] if "DOORS_DEVICE" in os.environ else []
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


def period(call, seconds=0.2):
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
    """The model's file, checked, and equal to eager."""
    path, n = str(work / f"{model}.onnx"), len(failures)
    tool("export", model, path)
    if len(failures) > n:
        return False
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
    return len(failures) == n


def export(work, model):
    good = exported(work, model)
    for file in work.glob(f"{model}.onnx*"):
        file.unlink()
    print(f"export {model}: " + ("checked, and equal to eager" if good else "FAILED"), flush=True)


def own_period(work, model):
    """The time of a call through ONNX Runtime's own interface, us; None: there is no file."""
    path = str(work / f"{model}.onnx")
    if tool("export", model, path).returncode:
        return None
    s = session(path)
    given = feed(s)
    us = period(lambda: s.run(None, given))
    for file in work.glob(f"{model}.onnx*"):
        file.unlink()
    return us


def measured(model, train, backends):
    args = ["bench", model, "--backend=" + ",".join(backends), "--json", "--seconds=0.2", *DEVICE] + (["--train"] if train else [])
    done = tool(*args)
    return {r["backend"]: r for r in json.loads(done.stdout)} if done.returncode == 0 else {}


def differences(model, engines):
    """To eager, by backend; of inference: steps are compared by the tests."""
    done = tool("run", model, "--compare", "--json", "--backend=" + ",".join(["eager", *engines]), "--atol=2e-4",
                "--rtol=2e-3", *DEVICE, check=False)
    if not done.stdout:
        failures.append(f"{model}: {done.stderr.strip()}")
        return {}
    found = {}
    for d in json.loads(done.stdout)["differences"]:
        found[d["backend"]] = max(found.get(d["backend"], 0), d["absolute"])
        if d["beyond"]:
            failures.append(f"{model}: {d['backend']} differs from eager by {d['absolute']}")
    return found


def table(work, engines, end):
    print(f"{'model':<20}{'backend':<10}{'first ms':>12}{'us a call':>12}{'beside fused':>14}{'own Python':>12}{'to eager':>12}")
    for model, train, wanted in TABLE:
        name = model + (", step" if train else "")
        here = [e for e in wanted if e in engines]
        apart = {} if train else differences(model, here)
        if time.monotonic() > end:
            print(f"{name}: not timed" + "".join(f", {backend} {most:.1e} to eager" for backend, most in apart.items()), flush=True)
            continue
        rows = measured(model, train, ["fused", *here])
        for backend, r in rows.items():
            beside = r["period_us"] / rows["fused"]["period_us"]
            line = f"{name:<20}{backend:<10}{r['first_ms']:>12.1f}{r['period_us']:>12.1f}{beside:>14.2f}"
            python = own_period(work, model) if ort and backend == "onnxrt" and not train else None
            line += f"{python:>12.1f}" if python else f"{'':>12}"
            print(line + (f"{apart[backend]:>12.1e}" if backend in apart else ""), flush=True)


def check_ops(work):
    files = sorted((work / "ops").glob("*.onnx"))
    for file in files:
        try:
            onnx.checker.check_model(str(file), full_check=True)
        except Exception as why:  # pylint: disable=broad-except
            failures.append(f"{file.name}: {str(why).strip().splitlines()[0]}")
    if not files:
        failures.append("no op left a model")
    print(f"ops: {len(files)} models checked")


def main():
    global TOOL
    build, part = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    end = time.monotonic() + float(os.environ.get("DOORS_SECONDS", "60"))
    TOOL = str(build / "tools/reprise/reprise")
    work = pathlib.Path(os.getcwd())
    if part == "exports":
        graphs(work)
        for model in EXPORTS:
            export(work, model)
    elif part == "ops":
        check_ops(work)
    else:
        backends = {b["name"]: b for b in json.loads(tool("backends", "--json").stdout)}
        engines = [e for e in ALL if backends.get(e, {}).get("available")]
        for e in engines:
            print(f"{e}: {backends[e]['version']}, {backends[e]['where']}")
        table(work, engines, end)
        for model in LARGE if ort and not DEVICE else ():
            export(work, model)
    for f in failures:
        print("FAILED", f)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
