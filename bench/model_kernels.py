#!/usr/bin/env python3
"""Where a model's time on a GPU goes: the kernels of one replay, by NVIDIA's profiler (ncu).

    model_kernels.py [--each] REPRISE MODEL [ARGUMENT of `reprise bench` ...]
    model_kernels.py [--each] --csv FILE

Profiles `reprise bench MODEL --backend=fused --device=cuda` kernel by kernel - ncu has to be in PATH - and looks for the last
replay: the kernels at the end that repeat those before them. Prints what each kernel takes of it, the longest first, how often it
is launched, and the rate at which it moves memory; with --each all launches in order. `reprise dump MODEL` with the same options prints
the sources of these names, REPRISE_CUDA_OFFLINE=sm_90:132 where there is no GPU. Times are those of kernels that run by themselves:
their sum is more than a replay takes, whose launches overlap. --csv: what ncu printed before, in these units.
"""

import argparse
import collections
import csv
import subprocess
import sys

TIME, READ, WRITTEN = "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"
UNITS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6,
         "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}  # fmt: skip


def profile(program, model, arguments):
    command = ["ncu", "--graph-profiling", "node", "--clock-control", "none", "--cache-control", "none", "--csv",
               "--metrics", ",".join((TIME, READ, WRITTEN)), program, "bench", model, "--backend=fused", "--device=cuda",
               "--seconds=0.001", "--json", *arguments]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: ended with {done.returncode}\n{(done.stderr or done.stdout)[-1000:]}")
    return done.stdout.splitlines()


def launches(lines):
    """(name, grid, block, us, bytes) of each launch, in order."""
    rows = csv.DictReader(line for line in lines if line.startswith('"'))
    found = collections.OrderedDict()
    for row in rows:
        one = found.setdefault(row["ID"], [row["Kernel Name"], row["Grid Size"], row["Block Size"], 0.0, 0.0])
        value = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
        one[3 if row["Metric Name"] == TIME else 4] += value
    return list(found.values())


def last_replay(all_launches):
    """A period of the longest end that repeats itself; all launches where there is none."""
    names = [tuple(launch[:2]) for launch in all_launches]
    longest, period = 0, len(names)
    for n in range(1, len(names) // 2 + 1):
        same = 0
        while same + n < len(names) and names[-1 - same] == names[-1 - same - n]:
            same += 1
        if same >= n and same + n > longest:
            longest, period = same + n, n
    return all_launches[-period:]


def rate(moved, us):
    return f"{moved / us / 1e6:6.2f} TB/s" if moved and us else " " * 11


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--each", action="store_true", help="all launches in order")
    parser.add_argument("reprise", nargs="?")
    parser.add_argument("model", nargs="?")
    options, arguments = parser.parse_known_args()
    if options.csv:
        with open(options.csv) as file:
            lines = file.read().splitlines()
    elif options.reprise and options.model:
        lines = profile(options.reprise, options.model, arguments)
    else:
        parser.error("a program and a model, or --csv FILE")
    replay = last_replay(launches(lines))
    total = sum(launch[3] for launch in replay)
    print(f"{len(replay)} launches, {total:.1f} us by themselves")
    if options.each:
        for number, (name, grid, block, us, moved) in enumerate(replay):
            print(f"{number:5} {us:9.2f} us {rate(moved, us)}  {name[:90]} {grid} {block}")
        return
    kernels = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for name, _, _, us, moved in replay:
        one = kernels[name]
        one[0] += 1
        one[1] += us
        one[2] += moved
    for name, (count, us, moved) in sorted(kernels.items(), key=lambda k: -k[1][1]):
        print(f"{us:9.1f} us {100 * us / total:5.1f} % {count:4} x {rate(moved, us)}  {name[:110]}")


if __name__ == "__main__":
    main()
