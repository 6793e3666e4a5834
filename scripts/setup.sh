#!/bin/sh
# Installs the system packages that a purpose needs: setup.sh build | wheel | bench | test | ci.
#   build  what `make run` and `make install` need
#   wheel  the same, and what `make wheel` compiles its module with
#   bench  the same as build, and the library that `make bench` compares with, where there is such a package
#   test   the same as build, and the unit test library
#   ci     everything that .ci/run uses
# Looks for each thing itself, and calls apt-get only when something is absent: as root or through sudo, which asks for a password
# only at a terminal. Without either it names the packages and fails, unless what is absent can be done without. Quiet unless it
# fails.
set -eu
cd "$(dirname "$0")/.."
purpose=${1:-build}
case $purpose in
build | wheel | bench | test | ci) ;;
*)
    echo "usage: setup.sh build | wheel | bench | test | ci" >&2
    exit 2
    ;;
esac

needed=""
wanted=""
need() { needed="$needed $*"; }
want() { wanted="$wanted $*"; }
have() { command -v "$1" >/dev/null 2>&1; }

# A compiler that cannot include a C library header or a named header is as good as none.
compiler=${CC:-}
for name in cc gcc clang; do
    if [ -z "$compiler" ] && have "$name"; then compiler=$name; fi
done
compiler=${compiler:-gcc}
has_header() { printf '#include <%s>\n' "$1" | $compiler -E -x c - >/dev/null 2>&1; }
has_module() { have pkg-config && pkg-config --exists "$1"; }

# $compiler may carry arguments ("ccache gcc").
if ! have "${compiler%% *}"; then
    case $compiler in
    clang*) need clang libc6-dev ;;
    *) need gcc libc6-dev ;;
    esac
elif ! has_header stdio.h; then
    need libc6-dev
fi
have cmake || need cmake
have ninja || want ninja-build
have pkg-config || need pkg-config
has_header xxhash.h || need libxxhash-dev
has_module jansson || need libjansson-dev
# Opened at run time by tokenizers, for texts beyond ASCII.
if have ldconfig && ! ldconfig -p 2>/dev/null | grep -q 'liblapack\.so\.3'; then want liblapack3; fi
if have ldconfig && ! ldconfig -p 2>/dev/null | grep -q 'libutf8proc\.so\.[23]'; then want libutf8proc2; fi
if [ "$purpose" = bench ]; then
    has_package_file() { printf '#include <%s>\n' "$1" | ${CXX:-c++} -E -x c++ -I/usr/include/torch/csrc/api/include - >/dev/null 2>&1; }
    if ! have "${CXX:-c++}"; then
        want g++ libtorch-dev
    elif ! has_package_file torch/torch.h; then
        want libtorch-dev
    fi
elif [ "$purpose" = wheel ]; then
    have python3 || need python3
    python3 -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null || need python3-dev
elif [ "$purpose" != build ]; then
    has_module cmocka || need libcmocka-dev
    # Compiles short kernels of the emulator at a fraction of the cost; without it the C compiler compiles all.
    if [ "$(uname -m)" = x86_64 ]; then have tcc || want tcc; fi
fi
if [ "$purpose" = ci ]; then
    have gcc || need gcc libc6-dev
    have g++ || need g++
    have clang || need clang
    # Sanitizers' runtime, and what names the lines of their reports.
    if ! printf 'int main(void) { return 0; }' | clang -fsanitize=address,undefined -x c - -o /dev/null 2>/dev/null; then need libclang-rt-dev; fi
    have llvm-symbolizer || want llvm
    have clang-query || need clang-tools
    have ld.lld || want lld
    have ccache || want ccache
    have nm || need binutils
    have git || need git
    has_header dnnl.h || has_header oneapi/dnnl/dnnl.h || want libdnnl-dev
    have python3 || need python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
fi
[ -n "$needed$wanted" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=""
elif have sudo && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
elif have sudo && [ -n "$needed" ] && [ -t 0 ] && [ -t 2 ]; then
    as_root="sudo"
else
    [ -n "$needed" ] || exit 0
    echo "reprise: these packages are missing, and only root can install them:" >&2
    echo "    apt-get install$needed$wanted" >&2
    exit 1
fi
if ! have apt-get; then
    [ -n "$needed" ] || exit 0
    echo "reprise: missing (names of Debian's packages):$needed" >&2
    exit 1
fi

mkdir -p build
log=build/setup.log
: >"$log"
apt_install() {
    echo "+ apt-get install $*" >>"$log"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 \
        install -y -qq --no-install-recommends "$@" >>"$log" 2>&1
}
apt_update() { $as_root apt-get -o DPkg::Lock::Timeout=120 update -qq >>"$log" 2>&1; }

echo "reprise: installing$needed$wanted" >&2
# The package lists may be absent or old: only a failure asks for new ones.
# shellcheck disable=SC2086
if apt_install $needed $wanted || { apt_update && apt_install $needed $wanted; }; then
    exit 0
fi
# shellcheck disable=SC2086
if [ -z "$needed" ] || apt_install $needed; then
    exit 0
fi
cat "$log" >&2
echo "reprise: could not install$needed" >&2
exit 1
