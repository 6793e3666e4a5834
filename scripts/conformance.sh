#!/bin/sh
# Compares a build with PyTorch (tests/conformance): conformance.sh BUILD [arguments of models.py: --large, names of models,
# --device cuda, --out FOLDER]. The Python of CONFORMANCE_PYTHON has
# torch, torchvision, timm, transformers, safetensors and tokenizers; without it they are installed below build/.
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
python=${CONFORMANCE_PYTHON:-build/conformance-venv/bin/python}
if [ ! -x "$python" ]; then
    python3 -m venv build/conformance-venv
    build/conformance-venv/bin/pip install --quiet --disable-pip-version-check \
        torch torchvision timm transformers tokenizers safetensors numpy expecttest
fi
export REPRISE_MODULE_DIR="$PWD/$build" REPRISE_CACHE_DIR="$PWD/$build/test-cache"
"$python" tests/conformance/tokens.py "$build/tests/token_run"
"$python" tests/conformance/models.py "$build/tests/model_run" "$@"
