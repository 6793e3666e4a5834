#!/bin/sh
# The Python package: makes the wheel, installs it into a virtual environment beside PyTorch, and runs its tests, its examples and (with
# `models` as an argument) the table of models. PYTHON_TESTS_PYTHON names a Python that has torch, torchvision, timm and transformers, beside
# which the wheel is unpacked; `install` makes one in build/python-venv from PyPI, some gigabytes. Without either what needs no PyTorch
# is tested, and it is said.
set -eu
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1 # nothing is left beside the sources
wheel=$(WERROR=1 python3 python/build_wheel.py --out build/wheel)
if [ -n "${PYTHON_TESTS_PYTHON:-}" ]; then
    python=$PYTHON_TESTS_PYTHON
    rm -rf build/python-site
    "$python" -m pip install --quiet --no-index --no-deps --disable-pip-version-check --target build/python-site "$wheel"
    PYTHONPATH=$PWD/build/python-site
    export PYTHONPATH
else
    python=build/python-venv/bin/python
    [ -x "$python" ] || python3 -m venv build/python-venv
    if [ "${1:-}" = install ]; then
        shift
        "$python" -m pip install --quiet --disable-pip-version-check torch torchvision timm transformers
    fi
    "$python" -c 'import numpy' 2>/dev/null || "$python" -m pip install --quiet --disable-pip-version-check numpy ||
        { echo "skipped: numpy cannot be had"; exit 0; }
    "$python" -m pip install --quiet --no-index --no-deps --force-reinstall --disable-pip-version-check "$wheel"
fi
# Kernels of these tests are none of the user's.
REPRISE_CACHE_DIR=${REPRISE_CACHE_DIR:-$PWD/build/python-cache}
export REPRISE_CACHE_DIR
mkdir -p "$REPRISE_CACHE_DIR"
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "no PyTorch is here: \`sh scripts/python_tests.sh install\` gets it"
    "$python" -m unittest discover -s python/tests -p test_face.py
    exit 0
fi
"$python" -m unittest discover -s python/tests
for example in examples/python/*.py; do
    echo "$example"
    "$python" "$example"
done
[ "${1:-}" != models ] || "$python" python/tests/models.py
