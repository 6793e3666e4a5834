#!/bin/sh
# What the assembler makes of an emitted CUDA kernel on standard input: registers, and instructions up to the first exit (what lies
# behind are the rare ways of divisions), by kind. Needs nvcc and nvdisasm of a CUDA toolkit; SASS names a file for the listing.
#   bench/gpu_reprise source bf16 | sh scripts/sass.sh
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat "$root/src/kernel/cuda/prelude.cuh" "$root/src/kernel/cuda/support.cuh" - >"$dir/kernel.cu"
nvcc -cubin -arch="${ARCH:-sm_90}" --fmad=false -w -Xptxas -v -o "$dir/kernel.cubin" "$dir/kernel.cu" 2>&1 |
    sed -n 's/.*Used \([0-9]*\) registers.*/\1 registers/p'
nvdisasm -c "$dir/kernel.cubin" >"${SASS:-$dir/kernel.sass}"
sed -n 's#^ */\*[0-9a-f]*\*/ *\(@!*U*P[0-9T]* *\)*\([A-Z0-9_]*\).*;.*#\2#p' "${SASS:-$dir/kernel.sass}" |
    awk '!ended { n++; kind[$1]++ } $1 == "EXIT" { ended = 1 }
         END { print n " instructions"; for (k in kind) print kind[k], k | "sort -rn" }'
