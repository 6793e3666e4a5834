#!/bin/sh
# Fuzzes for a while: fuzz.sh [SECONDS]. Every test_fuzz_* program runs for SECONDS (60) under the address and undefined-behaviour
# sanitizers, on the CPU and, where it knows devices, as long again on the emulated GPU, from seeds that no run before it had, as many
# programs at a time as there are processors; where clang is, the parser of graphs is driven by libFuzzer as well, from
# tests/data/fuzz/ir and what earlier runs found (build/fuzz/corpus).
# A finding prints the program, its seed and how to run it alone. Text that broke the parser belongs into tests/data/fuzz/ir, which
# test_fuzz_ir runs. Ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-60}
case $seconds in
'' | *[!0-9]*)
    echo "usage: fuzz.sh [SECONDS]" >&2
    exit 2
    ;;
esac
jobs=${JOBS:-$(nproc)}
dir=build/fuzz
if command -v clang >/dev/null 2>&1 && printf 'int LLVMFuzzerTestOneInput(void);\nint LLVMFuzzerTestOneInput(void){return 0;}' |
    clang -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null; then
    engine=ON
    export CC=clang
else
    engine=OFF
fi
sh scripts/configure.sh $dir -DREPRISE_SANITIZE=address,undefined -DREPRISE_CLI=OFF -DREPRISE_EXAMPLES=OFF -DREPRISE_BENCH=OFF \
    -DREPRISE_FUZZ=$engine || exit 1
names=$(for f in tests/test_fuzz_*.c; do basename "$f" .c; done)
runs=$(for name in $names; do
    echo "$name"
    ! grep -q test_device_choose "tests/$name.c" || echo "$name@emulated"
done)
[ $engine = OFF ] || names="$names fuzz_ir_parse" runs="$runs fuzz_ir_parse"
# shellcheck disable=SC2086
cmake --build $dir -j "$jobs" --target $names cudasim_cuda cudasim_nvrtc cudasim_nvtx cudasim_cublaslt cudasim_cudnn >$dir/build.log 2>&1 || {
    tail -n 40 $dir/build.log >&2
    exit 1
}
mkdir -p $dir/run $dir/corpus $dir/cudasim
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:allocator_may_return_null=1:detect_stack_use_after_return=1:intercept_tls_get_addr=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export REPRISE_TEST_DATA="$PWD/tests/data" REPRISE_CACHE_DIR="$PWD/$dir/cache" REPRISE_MODULE_DIR="$PWD/$dir"
export REPRISE_CUDASIM_DIR="$PWD/$dir/tests/cudasim" CUDASIM_CACHE="$PWD/$dir/cudasim"
first=$(($(date +%s) * 1000))
root=$PWD

run_one() { # NAME or NAME@emulated: 0 and one line, or the tail of what it printed
    log=$root/$dir/$1.log program=${1%@*}
    unset REPRISE_TEST_CUDA # in a subshell of this run
    [ "$program" = "$1" ] || export REPRISE_TEST_CUDA=sim
    if [ "$1" = fuzz_ir_parse ]; then
        (cd $dir/run && "$root/$dir/tests/$1" -max_total_time="$seconds" -max_len=4096 -print_final_stats=1 \
            "$root/$dir/corpus" "$root/tests/data/fuzz/ir") >"$log" 2>&1
    else
        (cd $dir/run && REPRISE_FUZZ_FIRST=$first REPRISE_FUZZ_SEEDS=1 REPRISE_FUZZ_SECONDS=$seconds "$root/$dir/tests/$program") \
            >"$log" 2>&1
    fi
    code=$?
    if [ "$1" = fuzz_ir_parse ] && [ $code = 0 ]; then # which draws in the dark where the library does not say where it was
        seen=$(grep -aoE 'cov: [0-9]+' "$log" | tail -n 1 | tr -dc 0-9)
        [ "${seen:-0}" -ge 500 ] || { echo "libFuzzer saw ${seen:-0} places of the library" >>"$log"; code=1; }
    fi
    if grep -qE '^(no emulator|REPRISE_CUDASIM_DIR)' "$log"; then code=1; fi
    if [ $code = 0 ]; then
        echo "$1: ok, $(grep -aoE '[0-9]+ (programs|calls|texts|cases)[^.]*|stat::number_of_executed_units: *[0-9]+' "$log" | tail -n 1)"
        return 0
    fi
    echo "$1: FAILED ($code)"
    tail -n 60 "$log" | sed 's/^/    /'
    return 1
}

failed=0 passed=0 running=0
results=$dir/results
rm -rf $results && mkdir -p $results
for name in $runs; do
    (run_one "$name" >$results/"$name".txt; echo $? >$results/"$name".rc) &
    running=$((running + 1))
    if [ $running -ge "$jobs" ]; then
        wait
        running=0
    fi
done
wait
for name in $runs; do
    cat $results/"$name".txt
    if [ "$(cat $results/"$name".rc)" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "first seed $first; REPRISE_FUZZ_SEED=SEED $dir/tests/NAME runs one"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
