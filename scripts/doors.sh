#!/bin/sh
# Other engines: doors.sh BUILD [VENV]. Installs their wheels into a virtual environment (VENV, by default BUILD/doors-venv), runs
# every op through each engine that is here (tests/test_doors.c), has TensorRT's builder make engines where it is (tests/test_tensorrt.c),
# exports models and has them checked and run by others (doors.py), and prints the table of engines and models. Ends with 0, saying so,
# where wheels cannot be had.
set -e
build=$(cd "$1" && pwd)
venv=${2:-$build/doors-venv}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work" ORT_DISABLE_TELEMETRY=1 # what others leave in the folder of temporary files goes with ours
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" || { echo "skipped: there is no module venv"; exit 0; }
fi
if ! "$venv/bin/python" -c "import onnx, onnxruntime, numpy" 2>/dev/null; then
    "$venv/bin/pip" install -q onnx onnxruntime numpy lammps-jax-pjrt-cpu apache-tvm ||
        { echo "skipped: the wheels of other engines cannot be had"; exit 0; }
fi
export VIRTUAL_ENV="$venv" REPRISE_MODULE_DIR="$build" REPRISE_TEST_DATA="$root/tests/data"
export REPRISE_CUDASIM_DIR="${REPRISE_CUDASIM_DIR:-$build/tests/cudasim}" # of the plug-in of CUDA, and of TensorRT
cd "$work"
mkdir ops
# Engines' compilers are one thread for most of the time: every op is beside all else that is not timed.
every='*_computes_every_op'
REPRISE_TEST_FILTER=$every DOORS_ONNX=$work/ops "$build/tests/test_doors" >every_op.log 2>&1 &
ops=$!
bad=0
REPRISE_TEST_SKIP=$every "$build/tests/test_doors" || bad=1
[ ! -x "$build/tests/test_tensorrt" ] || "$build/tests/test_tensorrt" || bad=1
"$venv/bin/python" "$root/scripts/doors.py" "$build" exports || bad=1
wait "$ops" || bad=1
cat every_op.log
"$venv/bin/python" "$root/scripts/doors.py" "$build" ops || bad=1
[ ! -x "$build/bench/host_doors" ] || "$build/bench/host_doors" 1 || bad=1
"$venv/bin/python" "$root/scripts/doors.py" "$build" table || bad=1
exit $bad
