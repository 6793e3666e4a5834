#!/bin/sh
# Compiles every public header alone, as C99, C11 and C++11, without a warning: check_headers.sh INCLUDE_DIR.
# INCLUDE_DIR is that of an installed prefix, so that generated headers are there and private ones are not.
set -eu
dir=$1
bad=0
n=0
for header in "$dir"/*.h; do
    name=$(basename "$header")
    for std in c99 c11 c++11; do
        case $std in
        c++*) lang=c++ compilers="g++ clang++" ;;
        *) lang=c compilers="gcc clang" ;;
        esac
        for compiler in $compilers; do
            n=$((n + 1))
            # The declaration behind it: a header of macros alone would leave the translation unit empty.
            if ! printf '#include <%s>\nextern int unit;\n' "$name" | $compiler -x $lang -std=$std -Wall -Wextra -pedantic -Werror \
                -fsyntax-only -I"$dir" -; then
                echo "$name is not clean as $std with $compiler"
                bad=1
            fi
        done
    done
done
[ $n -gt 0 ] || bad=1
exit $bad
