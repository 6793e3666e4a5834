#!/bin/sh
# Runs the CUDA tests on this machine's GPU: device_test.sh [FOLDER] [tests|sanitizer].
# FOLDER holds the test programs and, where the machine lacks them, libcmocka.so.0 and libjansson.so.4 (default: build/test/tests).
# LIMIT: seconds of a program. One line a test: verdict, name, seconds, what failed; logs in ${OUT:-build/device}. Kernels are kept in REPRISE_CACHE_DIR
# (default: beside the logs), so that all processes, and the next run, compile each once. The op sweep runs in parts, as many at
# a time as there are processors. Ends with 1 if anything failed.
set -u
cd "$(dirname "$0")/.." || exit 1
folder=$(cd "${1:-build/test/tests}" && pwd) || exit 1
what=${2:-all}
out=${OUT:-$PWD/build/device}
mkdir -p "$out"
export REPRISE_TEST_CUDA=real REPRISE_TEST_REAL_CUDA=1 CUBLASLT_LOG_LEVEL=1
export REPRISE_TEST_DATA="${REPRISE_TEST_DATA:-$PWD/tests/data}"
export REPRISE_CACHE_DIR="${REPRISE_CACHE_DIR:-$out/cache}"
export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p "$REPRISE_CACHE_DIR"
cd "$out" || exit 1 # what tests write lies there
jobs=$(nproc)
limit=${LIMIT:-120} # seconds of a program
: >"$out/verdicts"

# verdict NAME RC SECONDS LOG: prints the line and keeps it.
verdict() {
    case $2 in
    0) word=ok ;;
    124 | 137) word="TIME" ;;
    *) word="FAIL" ;;
    esac
    why=""
    [ "$2" = 0 ] || why=$(grep -aE 'LINE|ERROR|fail|differs|hazard|Invalid|error:' "$4" | head -3 | tr '\n' ' ' | cut -c1-300)
    printf '%-4s %-44s %4s s  %s\n' "$word" "$1" "$3" "$why" | tee -a "$out/verdicts"
}

# test NAME SECONDS [PROGRAM]: one program under a limit.
run_test() {
    log=$out/$1.log
    begin=$(date +%s)
    timeout "$2" "$folder/${3:-$1}" >"$log" 2>&1
    verdict "$1" $? $(($(date +%s) - begin)) "$log"
}

# The sweep in PARTS parts: a prime, so that no part gets one type of every op.
PARTS=61
sweep() {
    begin=$(date +%s)
    export folder out PARTS
    # shellcheck disable=SC2016 # expanded by the inner shell
    seq 0 $((PARTS - 1)) | xargs -P "$jobs" -I{} sh -c '
        REPRISE_TEST_SHARD={}/$PARTS timeout 200 "$folder/test_cuda_ops" >"$out/ops_{}.log" 2>&1
        echo $? >"$out/ops_{}.rc"'
    rc=0
    cat "$out"/ops_[0-9]*.log >"$out/test_cuda_ops.log"
    for part in "$out"/ops_*.rc; do
        r=$(cat "$part")
        [ "$r" = 0 ] || rc=$r
    done
    cases=$(sed -n 's/^\([0-9]*\) cases$/\1/p' "$out"/ops_[0-9]*.log | awk '{ n += $1 } END { print n + 0 }')
    rm -f "$out"/ops_*.rc
    verdict "test_cuda_ops ($cases cases)" "$rc" $(($(date +%s) - begin)) "$out/test_cuda_ops.log"
}

# sanitize TOOL PROGRAM FILTER: one test of a program under compute-sanitizer.
sanitize() {
    log=$out/$1_$2_$3.log
    begin=$(date +%s)
    REPRISE_TEST_FILTER=$3 timeout 140 compute-sanitizer --tool "$1" --error-exitcode 9 "$folder/$2" >"$log" 2>&1
    rc=$?
    grep -q '\[ *OK' "$log" || [ $rc != 0 ] || rc=8 # no test ran
    verdict "$1 $2 $3" $rc $(($(date +%s) - begin)) "$log"
}

if [ "$what" != sanitizer ]; then
    for t in test_cuda_loops test_cuda_library test_cuda_dnn test_cuda_user test_outside test_behaviours test_graphs test_graphed test_compiled_capture test_compiled_function test_cuda_graphs test_program_cuda test_train_fused test_cudasim test_cudasim_graphs test_cudasim_libraries test_stream_memory test_compile_calls test_alias test_graphed_around test_instances test_fuzz_streams test_indexing test_linalg test_autocast; do
        run_test "$t" "$limit" &
    done
    run_test test_road 400 &
    REPRISE_FUZZ_SECONDS=40 run_test test_fuzz_fused 100 &
    REPRISE_FUZZ_SEEDS=40 run_test test_fuzz_calls 300 &
    REPRISE_FUZZ_SEEDS=20 run_test test_fuzz_modes 300 &
    sweep
    wait
fi

if [ "$what" != tests ] && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        for t in pointwise pointwise_layouts gather_and_errors random rows order split_rows clusters many scans windows; do
            echo "$tool test_cuda_loops test_$t"
        done
        for t in topk nonzero multinomial scatter chain conv; do echo "$tool test_cuda_library test_$t"; done
        for t in raw_replay raw_random raw_repoint; do echo "$tool test_graphs test_$t"; done
        echo "$tool test_graphed test_graphed_training"
    done >"$out/list"
    echo "synccheck test_cuda_library test_chain" >>"$out/list"
    running=0
    while read -r tool program filter; do
        sanitize "$tool" "$program" "$filter" &
        running=$((running + 1))
        if [ $running -ge 8 ]; then
            wait
            running=0
        fi
    done <"$out/list"
    wait
fi

echo "$(grep -c '^ok' "$out/verdicts") ok, $(grep -vc '^ok' "$out/verdicts") not"
! grep -qv '^ok' "$out/verdicts"
