#!/bin/sh
# Builds the consumer against an installed prefix in every way that a user may: run.sh PREFIX WORKDIR.
# pkg-config shared and static, find_package shared and static, and both again after the prefix was moved, which the
# CMake package permits. Runs each program and checks which library it loads.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(cd "$1" && pwd)
rm -rf "$2"
mkdir -p "$2"
work=$(cd "$2" && pwd)
: "${CC:=cc}"

pc=$(find "$prefix" -name reprise.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir reprise)
version=$(pkg-config --modversion reprise)

loads() { LD_LIBRARY_PATH=$libdir ldd "$1" | grep -q 'libreprise\.so'; }
check() { # PROGRAM shared|static
    out=$(LD_LIBRARY_PATH=$libdir "$1")
    [ "$out" = "$version" ] || { echo "$1 printed '$out', the package says $version" >&2; exit 1; }
    case $2 in
    shared) loads "$1" || { echo "$1 does not load libreprise.so" >&2; exit 1; } ;;
    static) ! loads "$1" || { echo "$1 loads libreprise.so" >&2; exit 1; } ;;
    esac
}

# eval: pkg-config quotes a path with spaces for a shell.
eval "$CC \"\$here/main.c\" $(pkg-config --cflags --libs reprise) -o \"\$work/pc_shared\""
check "$work/pc_shared" shared
# Static: the archive by its name, and what it needs in turn.
eval "$CC \"\$here/main.c\" $(pkg-config --cflags reprise) \"\$libdir/libreprise.a\" -lm -ldl -pthread -o \"\$work/pc_static\""
check "$work/pc_static" static
case " $(pkg-config --static --libs reprise) " in
*" -lm "*) ;;
*) echo "reprise.pc: --static does not name libm" >&2; exit 1 ;;
esac

# Opened late, by a C program and by an interpreter.
eval "$CC \"\$here/dlopen.c\" $(pkg-config --cflags reprise) -ldl -pthread -o \"\$work/dlopen\""
[ "$("$work/dlopen" "$libdir/libreprise.so")" = "$version" ] || { echo "dlopen: another version" >&2; exit 1; }
if command -v python3 >/dev/null; then
    python3 - "$libdir/libreprise.so" "$version" <<'END'
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.rp_version_string.restype = library.rp_error_message.restype = ctypes.c_char_p
assert library.rp_version_string().decode() == sys.argv[2]
assert library.rp_set_num_threads(0) == 1 and b"set_num_threads" in library.rp_error_message()
END
fi

cmake_build() { # PREFIX DIR
    if ! { cmake -S "$here" -B "$work/$2" -DCMAKE_PREFIX_PATH="$1" -DWANT_VERSION="$version" &&
        cmake --build "$work/$2"; } >"$work/$2.log" 2>&1; then
        cat "$work/$2.log" >&2
        exit 1
    fi
}
cmake_build "$prefix" cmake
check "$work/cmake/consumer_shared" shared
check "$work/cmake/consumer_static" static

# The package and the SONAME promise the same: before 1.0 this minor version alone, from 1.0 on this major version.
soname=$(readelf -d "$libdir/libreprise.so" | sed -n 's/.*(SONAME).*\[libreprise\.so\.\(.*\)\]/\1/p')
major=${version%%.*} rest=${version#*.}
minor=${rest%%.*}
compatible() { # VERSION: does find_package take what is installed for it?
    cat >"$work/asks.cmake" <<END
set(PACKAGE_FIND_VERSION $1)
set(PACKAGE_FIND_VERSION_MAJOR $(echo "$1" | cut -d. -f1))
set(PACKAGE_FIND_VERSION_MINOR $(echo "$1" | cut -d. -f2))
set(CMAKE_SIZEOF_VOID_P 8)
include("$(find "$prefix" -name reprise-config-version.cmake)")
if(NOT PACKAGE_VERSION_COMPATIBLE)
    message(FATAL_ERROR "no")
endif()
END
    cmake -P "$work/asks.cmake" >/dev/null 2>&1
}
compatible "$major.$minor" || { echo "the package refuses its own version" >&2; exit 1; }
! compatible "$major.$((minor + 1))" || { echo "the package serves a later version" >&2; exit 1; }
! compatible "$((major + 1)).0" || { echo "the package serves another major version" >&2; exit 1; }
case $soname in
"$major.$minor") [ "$major" = 0 ] ;;
"$major") [ "$major" != 0 ] && { [ "$minor" = 0 ] || compatible "$major.$((minor - 1))"; } ;;
*) false ;;
esac || { echo "SONAME libreprise.so.$soname for version $version" >&2; exit 1; }
if [ "$major" = 0 ] && [ "$minor" != 0 ]; then
    ! compatible "0.$((minor - 1))" || { echo "the package serves programs of the minor version before" >&2; exit 1; }
fi

cp -R "$prefix" "$work/moved prefix"
cmake_build "$work/moved prefix" moved
"$work/moved/consumer_static" >/dev/null
moved_tool=$("$work/moved prefix/bin/reprise" --version)
[ "$moved_tool" = "reprise $version" ] || { echo "moved tool: $moved_tool" >&2; exit 1; }
ldd "$work/moved prefix/bin/reprise" | grep -qF "moved prefix" || { echo "the moved tool loads another library" >&2; exit 1; }
