#!/usr/bin/env python3
"""The rows of `make bench` or `make bench-gpu` with this tree and with another commit, in one run: before.py COMMIT [--gpu].

Builds COMMIT, or the tree in a folder of that name, beside this tree, with the same options, in build/before/<commit>, and lets the two take turns: a round is every row of the one, then
of the other, the next round the other way round, so that what else the machine does falls on both. Of each row stand the medians of the rounds,
how far from them half of the rounds lie (the noise), and new / old; of what both print, the median and what a tenth of the calls stayed below.
A row is `slower` where three quarters of the new one's rounds took longer than three quarters of the old one's, and `faster` where it is the other
way round. What one side cannot do says why. Last come the lines of src/ of both, a folder a row (scripts/src_lines.sh).

Ends with 1 where a row is slower or is measured by the old commit alone. Rows that only this tree has are named, not compared."""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLAIN = ["-DREPRISE_TESTS=OFF", "-DREPRISE_EXAMPLES=OFF"]
# As `make bench` and bench/gpu.sh configure them: the build folder, its options, what is built and where it lies
TOOL = ("build/release", PLAIN + ["-DREPRISE_BENCH_PEER=ON"], "reprise-cli", "tools/reprise/reprise")
GPU = ("build/gpu", PLAIN + ["-DREPRISE_CLI=OFF", "-DREPRISE_ONEDNN=OFF"], "bench_gpu_reprise", "bench/gpu_reprise")


def run(*command, cwd=ROOT, **more):
    return subprocess.run(command, cwd=cwd, check=True, **more)


def git(*words):
    return run("git", *words, stdout=subprocess.PIPE, text=True).stdout.strip()


def build(tree, what, jobs):
    """The program of a tree."""
    folder, flags, target, program = what
    if what is TOOL:
        flags = flags + shlex.split(os.environ.get("CMAKE_FLAGS", ""))
    if what is GPU and os.environ.get("XXHASH_INCLUDE"):
        flags = flags + ["-DREPRISE_XXHASH_INCLUDE=" + os.environ["XXHASH_INCLUDE"]]
    run("sh", "scripts/configure.sh", folder, *flags, cwd=tree)
    log = tree / folder / "before.log"
    with open(log, "w") as out:
        done = subprocess.run(["cmake", "--build", folder, "-j", jobs, "--target", target], cwd=tree, stdout=out, stderr=out)
    if done.returncode:
        sys.exit("before.py: %s does not build, see %s" % (tree, log))
    return tree / folder / program


def other_tree(commit):
    """Its files, kept for the next run."""
    tree = ROOT / "build/before" / commit[:12]
    if not (tree / "CMakeLists.txt").exists():
        tree.mkdir(parents=True, exist_ok=True)
        files = run("git", "archive", commit, stdout=subprocess.PIPE).stdout
        run("tar", "-x", "-C", str(tree), input=files)
    return tree


def rows_of_tool(program, seconds, names, env):
    """{(row, figure): nanoseconds, or the reason}"""
    got = run(program, "bench", "--json", "--seconds", str(seconds), *(names or [""]), stdout=subprocess.PIPE, text=True, env=env)
    found = {}
    for row in json.loads(got.stdout):
        for key, figure in (("ns", "median"), ("low_ns", "a tenth")):
            if "reason" in row:
                found[row["name"], figure] = row["reason"]
            elif key in row:
                found[row["name"], figure] = row[key]
    return found


def rows_of_gpu(program, seconds, names, env):
    got = run(program, *os.environ.get("BENCH_GPU_ARGS", "").split(), stdout=subprocess.PIPE, text=True, env=env)
    found = {}
    for line in got.stdout.splitlines():
        work, mode, *figures = line.split("\t")
        row = work + ", " + mode
        if names and not any(name in row for name in names):
            continue
        for figure, value in zip(("host", "a tenth", "latency", "period"), figures):
            found[row, figure] = 1e3 * float(value) if len(figures) > 1 else figures[0]
    return found


def quartiles(values):
    values = sorted(values)
    return values[len(values) // 4], values[len(values) - 1 - len(values) // 4]


def shown(ns):
    return "%.0f ns" % ns if ns < 1e4 else "%.2f us" % (ns / 1e3) if ns < 1e6 else "%.2f ms" % (ns / 1e6)


def table(old, new):
    """Prints the rows; how many are slower, or lost."""
    wrong = 0
    print("| row | figure | old | noise | new | noise | new / old | |\n|---|---|---|---|---|---|---|---|")
    for key in list(old[0]) + [key for key in new[0] if key not in old[0]]:
        a, b = [r.get(key) for r in old], [r.get(key) for r in new]
        row = "| %s | %s |" % key
        reasons = [next((x for x in side if isinstance(x, str)), None) for side in (a, b)]
        if None in a or reasons[0]:
            print(row, "%s | | | | | not compared |" % (reasons[0] or "no such row"))
            continue
        if None in b or reasons[1]:
            print(row, "%s | | %s | | | lost |" % (shown(statistics.median(a)), reasons[1] or "no such row"))
            wrong += 1
            continue
        middle = [statistics.median(side) for side in (a, b)]
        spread = ["%.1f %%" % (50 * (q[1] - q[0]) / m) for q, m in zip(map(quartiles, (a, b)), middle)]
        (a1, a3), (b1, b3) = quartiles(a), quartiles(b)
        verdict = "slower" if b1 > a3 else "faster" if b3 < a1 else ""
        wrong += verdict == "slower"
        print(row, "%s | %s | %s | %s | %.3f | %s |" % (shown(middle[0]), spread[0], shown(middle[1]), spread[1],
                                                     middle[1] / middle[0], verdict))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("names", nargs="*", help="parts of names: only the rows that contain one")
    parser.add_argument("--gpu", action="store_true", help="the rows of make bench-gpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="a row of make bench and round (0.2)")
    parser.add_argument("--build-only", action="store_true", help="builds both and measures nothing")
    args = parser.parse_args()
    folder = pathlib.Path(args.commit).is_dir()  # where git is not, as on a machine that was lent for its GPU
    commit = args.commit if folder else git("rev-parse", "--verify", args.commit + "^{commit}")
    jobs = os.environ.get("JOBS", str(os.cpu_count()))
    what, rows = (GPU, rows_of_gpu) if args.gpu else (TOOL, rows_of_tool)
    trees = [pathlib.Path(commit).resolve() if folder else other_tree(commit), ROOT]
    programs = [build(tree, what, jobs) for tree in trees]
    if args.build_only:
        return 0
    envs = [os.environ | {"REPRISE_CACHE_DIR": str(ROOT / "build/before" / name)} for name in ("cache-old", "cache-new")]
    for env in envs:
        os.makedirs(env["REPRISE_CACHE_DIR"], exist_ok=True)
    if folder:
        print("old: %s\nnew: %s" % tuple(trees))
    else:
        print("old: %s\nnew: %s%s" % (git("log", "-1", "--format=%h %cs %s", commit), git("log", "-1", "--format=%h %cs %s"),
              ", with changes" if git("status", "--porcelain", "-uno") else ""))
    print("%d rounds in turn" % args.rounds, flush=True)
    for program, env in zip(programs, envs):
        rows(program, 0.02, args.names, env)  # kernels are compiled
    measured = ([], [])
    for r in range(args.rounds):
        for side in ((0, 1), (1, 0))[r % 2]:
            measured[side].append(rows(programs[side], args.seconds, args.names, envs[side]))
    wrong = table(*measured)
    if not folder:
        print("\nLines of src/, old and new:\n", flush=True)
        run("sh", "scripts/src_lines.sh", commit)
    print("\n%d rows slower or lost" % wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
