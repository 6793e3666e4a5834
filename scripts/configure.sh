#!/bin/sh
# Configures one build directory: configure.sh DIR [CMAKE ARGUMENT...]. Quiet unless it fails.
# A directory that was configured with the same arguments and compiler is left as it is: the build itself notices
# changed CMake files and new sources.
set -eu
cd "$(dirname "$0")/.."
dir=$1
shift
want="CC=${CC:-} $*"
stamp=$dir/.configured
if [ -f "$dir/CMakeCache.txt" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi
mkdir -p "$dir"
rm -f "$stamp"
# A cache of another compiler, or of a tree that was moved, cannot be reused.
if [ -f "$dir/CMakeCache.txt" ]; then
    rm -rf "$dir/CMakeCache.txt" "$dir/CMakeFiles"
fi
generator="Unix Makefiles"
if command -v ninja >/dev/null 2>&1; then
    generator=Ninja
fi
# Nothing of an earlier run's generator may stay either: Ninja and make keep different files, so both may lie there.
if ! cmake -G "$generator" -S . -B "$dir" "$@" >"$dir/configure.log" 2>&1; then
    cat "$dir/configure.log" >&2
    exit 1
fi
printf '%s' "$want" >"$stamp"
