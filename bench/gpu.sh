#!/bin/sh
# Builds the library and bench/gpu_reprise.c and measures them beside PyTorch on this machine's GPU, in one run.
# Needs a C compiler, CMake, xxhash.h and a python3 with PyTorch; no network, no other packages. XXHASH_INCLUDE names the
# folder of xxhash.h where it is not installed. BENCH_GPU_ARGS are arguments of gpu_reprise. Lines go to build/gpu.
set -eu
cd "$(dirname "$0")/.."
dir=build/gpu
sh scripts/configure.sh "$dir" -DREPRISE_TESTS=OFF -DREPRISE_EXAMPLES=OFF -DREPRISE_CLI=OFF -DREPRISE_ONEDNN=OFF \
    ${XXHASH_INCLUDE:+"-DREPRISE_XXHASH_INCLUDE=$XXHASH_INCLUDE"}
cmake --build "$dir" -j "$(nproc)" --target bench_gpu_reprise >"$dir/build.log" 2>&1 || {
    cat "$dir/build.log" >&2
    exit 1
}
program=$dir/bench/gpu_reprise
cache=$PWD/$dir/cache
now() { date +%s.%N; }

# Process start to the first graphed result: with an empty kernel cache, with what that left, and the peer's.
rm -rf "$cache"
mkdir -p "$cache"
# shellcheck disable=SC2086
cold=$(REPRISE_CACHE_DIR=$cache REPRISE_BENCH_START=$(now) "$program" ${BENCH_GPU_ARGS:-} first)
# shellcheck disable=SC2086
warm=$(REPRISE_CACHE_DIR=$cache REPRISE_BENCH_START=$(now) "$program" ${BENCH_GPU_ARGS:-} first)
peer=$(REPRISE_BENCH_START=$(now) python3 bench/gpu_peer.py first)
# shellcheck disable=SC2086
REPRISE_CACHE_DIR=$cache "$program" ${BENCH_GPU_ARGS:-} >"$dir/reprise.tsv"
python3 bench/gpu_peer.py "$dir/reprise.tsv" "$cold" "$warm" "$peer"
