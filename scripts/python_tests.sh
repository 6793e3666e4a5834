#!/bin/sh
# The Python package: makes the wheel, installs it into a virtual environment beside PyTorch, and runs its tests, its examples and (with
# `models` as an argument) the table of models. The environment is build/python-venv, made once with PyTorch from PyPI; or
# PYTHON_TESTS_PYTHON names a Python that has torch, torchvision, timm and transformers, beside which the wheel is unpacked.
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
    "$python" -c 'import torch, torchvision, timm, transformers, numpy' 2>/dev/null ||
        "$python" -m pip install --quiet --disable-pip-version-check torch torchvision timm transformers numpy
    "$python" -m pip install --quiet --no-index --no-deps --force-reinstall --disable-pip-version-check "$wheel"
fi
# Kernels of these tests are none of the user's.
REPRISE_CACHE_DIR=${REPRISE_CACHE_DIR:-$PWD/build/python-cache}
export REPRISE_CACHE_DIR
mkdir -p "$REPRISE_CACHE_DIR"
"$python" -m unittest discover -s python/tests
for example in examples/python/*.py; do
    echo "$example"
    "$python" "$example"
done
[ "${1:-}" != models ] || "$python" python/tests/models.py
