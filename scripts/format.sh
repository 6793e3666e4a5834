#!/bin/sh
# Formats every C file (format.sh write) or names those that are not formatted (format.sh check).
# One version decides, so that layout never depends on the machine: clang-format 14.0.6, from the system or else
# from its Python wheel in build/format-venv.
set -eu
cd "$(dirname "$0")/.."
version=14.0.6
tool=""
for candidate in clang-format-14 clang-format build/format-venv/bin/clang-format; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" --version | grep -qF "version $version"; then
        tool=$candidate
        break
    fi
done
if [ -z "$tool" ]; then
    mkdir -p build
    if ! { python3 -m venv build/format-venv && build/format-venv/bin/pip install "clang-format==$version"; } \
        >build/format.log 2>&1; then
        cat build/format.log >&2
        exit 1
    fi
    tool=build/format-venv/bin/clang-format
fi

files() {
    for folder in include src models tests tools examples bench python; do
        [ ! -d "$folder" ] || find "$folder" -type f \( -name '*.c' -o -name '*.h' -o -name '*.cuh' \) -print0
    done
}
case ${1:-} in
write) files | xargs -0 -r -n 40 -P "$(nproc 2>/dev/null || echo 2)" "$tool" -i ;;
check) files | xargs -0 -r -n 40 -P "$(nproc 2>/dev/null || echo 2)" "$tool" --dry-run -Werror ;;
*)
    echo "usage: format.sh write | check" >&2
    exit 2
    ;;
esac
