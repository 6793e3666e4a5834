#!/bin/sh
# Configures one build directory: configure.sh DIR [CMAKE ARGUMENT...]. Quiet unless it fails.
# A directory that was configured with the same arguments, compiler and tree is left as it is: the build itself notices
# changed CMake files and new sources.
set -eu
cd -P "$(dirname "$0")/.." # a tree that is entered by another name is the same tree
dir=$1
shift
want="CC=${CC:-} in $PWD: $*"
stamp=$dir/.configured
if [ -f "$dir/CMakeCache.txt" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi
mkdir -p "$dir"
rm -f "$stamp"
# What CMake found for another compiler or tree cannot be reused; objects can, the build knows their commands.
rm -rf "$dir/CMakeCache.txt" "$dir"/CMakeFiles/[0-9]*
generator="Unix Makefiles"
if command -v ninja >/dev/null 2>&1; then
    generator=Ninja
fi
if ! cmake -G "$generator" -S . -B "$dir" "$@" >"$dir/configure.log" 2>&1; then
    cat "$dir/configure.log" >&2
    exit 1
fi
printf '%s' "$want" >"$stamp"
