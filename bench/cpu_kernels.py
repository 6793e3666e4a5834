#!/usr/bin/env python3
"""Single kernels on the CPU beside PyTorch: cpu_kernels.py PROGRAM WORKS [THREADS [PART-OF-NAME...]], PROGRAM being gpu_kernels.

The two take turns, ROUNDS a work, so that what else the machine does falls on both; the fastest call of each counts, in time of the
processor where there is one thread. Ends with the geometric mean and the rows below 1.
"""

import math
import os
import subprocess
import sys
import time

import gpu_kernels

ROUNDS = 3
SECONDS = 0.3


def main():
    program, works, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 2
    import torch

    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    ours = subprocess.Popen(
        [program, "--cpu", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, REPRISE_NUM_THREADS=str(threads)),
    )

    def mine(line):
        ours.stdin.write(line + "\n")
        ours.stdin.flush()
        answer = ours.stdout.readline().rstrip("\n").split("\t")
        return (float(answer[1]), answer[2], float(answer[3])) if len(answer) == 4 else (0.0, answer[-1], 0.0)

    def theirs(call, args):
        least, end = math.inf, time.perf_counter() + SECONDS
        with torch.no_grad():
            while time.perf_counter() < end:
                begin = clock()
                call(*args)
                least = min(least, clock() - begin)
        return 1e6 * least

    rows = []
    print(f"{'':52}{'us':>12}{'FAST':>12}{'PyTorch':>12}{'ratio':>8}{'FAST':>8}")
    for line in open(works):
        line = line.strip()
        if not line or line[0] == "#" or (len(sys.argv) > 4 and not any(p in line for p in sys.argv[4:])):
            continue
        kind, dtype, *n = line.split()
        call, args = gpu_kernels.make(torch, kind, getattr(torch, gpu_kernels.TYPES[dtype]), [int(x) for x in n], "cpu")
        with torch.no_grad():
            call(*args)
        us, fast, peer, rate = math.inf, math.inf, math.inf, ""
        for _ in range(ROUNDS):
            took, said, relaxed = mine(line)
            fast = min(fast, relaxed)
            if took < us:
                us, rate = took, said
            peer = min(peer, theirs(call, args))
        if us:
            rows.append((line, peer / us))
        ratios = (peer / us, peer / fast) if us else (0, 0)
        print(f"{line:52}{us:12.1f}{fast:12.1f}{peer:12.1f}{ratios[0]:8.2f}{ratios[1]:8.2f}  {rate}", flush=True)
    ours.stdin.close()
    ours.wait()
    if rows:
        mean = math.exp(sum(math.log(r) for _, r in rows) / len(rows))
        print(f"geometric mean of {len(rows)} rows: {mean:.2f}")
        low = sorted((r, line) for line, r in rows if r < 1)
        print(f"{len(low)} below 1" + "".join(f"\n  {r:.2f}  {line}" for r, line in low))


if __name__ == "__main__":
    main()
