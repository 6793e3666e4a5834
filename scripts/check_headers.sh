#!/bin/sh
# Compiles every public header alone, as C99, C11 and C++11, and a use of their macros, without a warning: check_headers.sh
# INCLUDE_DIR.
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
# The macros, as a program writes them; rp_full also passes its arguments on to a macro of its own.
use='#include <reprise.h>
rp_tensor *use(rp_tensor *x, size_t n) {
    rp_tensor *y = rp_full(RP_DIMS(2, n, 3), rp_f64(0.5), RP_OPTIONS(rp_full_options, .dtype = RP_F32));
    y = rp_cat(RP_TENSORS(x, y), 0);
    y = rp_cat(RP_TENSORS(y), 0);
    y = rp_sum(rp_add(y, x));
    rp_backward(y, NULL, RP_OPTIONS(rp_backward_options, .retain_graph = true, .create_graph = n > 2));
    return rp_mean(y, RP_DIMS(0), true);
}'
for std in c99 c11 c++11 c++20; do
    case $std in
    c++*) lang=c++ compilers="g++ clang++" ;;
    *) lang=c compilers="gcc clang" ;;
    esac
    for compiler in $compilers; do
        n=$((n + 1))
        if ! printf '%s\n' "$use" | $compiler -x $lang -std=$std -Wall -Wextra -Wshadow -pedantic -Werror -fsyntax-only \
            -I"$dir" -; then
            echo "the macros do not work as $std with $compiler"
            bad=1
        fi
    done
done
# An integer of any width is a scalar without a warning; a floating number is none.
integers='#include <reprise.h>
rp_scalar use(signed char a, unsigned short b, unsigned c, int64_t d, uint64_t e, bool f, rp_dtype g) {
    (void)rp_i64(a), (void)rp_i64(b), (void)rp_i64(c), (void)rp_i64(e), (void)rp_i64(f), (void)rp_i64(g);
    return rp_i64(d - 1);
}'
for std in c99 c11 c++11 c++20; do
    case $std in
    c++*) lang=c++ compilers="g++ clang++" ;;
    *) lang=c compilers="gcc clang" ;;
    esac
    for compiler in $compilers; do
        n=$((n + 1))
        if ! printf '%s\n' "$integers" | $compiler -x $lang -std=$std -Wall -Wextra -pedantic -Werror -fsyntax-only -I"$dir" -; then
            echo "rp_i64 does not take every integer as $std with $compiler"
            bad=1
        fi
        for number in 0.5 1.5f 2.0L; do
            if printf '#include <reprise.h>\nrp_scalar use(void) { return rp_i64(%s); }\n' $number |
                $compiler -x $lang -std=$std -w -fsyntax-only -I"$dir" - 2>/dev/null; then
                echo "rp_i64($number) compiles as $std with $compiler"
                bad=1
            fi
        done
    done
done
[ $n -gt 0 ] || bad=1
exit $bad
