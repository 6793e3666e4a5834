#!/bin/sh
# Compares the ops of a build with PyTorch by PyTorch's own samples and at special values (tests/opinfo): opinfo.sh BUILD [arguments
# of opinfo.py]. The Python is that of CONFORMANCE_PYTHON, of scripts/conformance.sh, or python3; where none has torch with its testing
# modules it says so and ends well.
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
for python in "${CONFORMANCE_PYTHON:-}" build/conformance-venv/bin/python python3; do
    [ -n "$python" ] || continue
    if "$python" -c 'import torch.testing._internal.common_methods_invocations' 2>/dev/null; then
        export REPRISE_MODULE_DIR="$PWD/$build" REPRISE_CACHE_DIR="$PWD/$build/test-cache"
        status=0
        for program in schemas opinfo integers special_values; do
            "$python" "tests/opinfo/$program.py" "$build/libreprise.so" "$@" || status=$?
        done
        exit $status
    fi
done
echo "skipped: tests/opinfo needs a Python with torch and what torch.testing needs (numpy, expecttest); CONFORMANCE_PYTHON names one"
