#!/bin/sh
# Builds library and tests for aarch64 and runs tests under qemu: nothing may assume x86, and the numbers contract gives the same
# bits there. check_aarch64.sh [CTEST REGEX]; by default the tests of numbers, kernels, ops, gradients, compiling and graphs
# (of test_loop_jit and test_road those tests fail here that start their own program again: the emulator cannot).
# Installs the cross compiler and qemu where it is root (10 minutes on two cores, which is why .ci/run leaves it out); the test
# library's aarch64 packages are unpacked below build/, the system's list of architectures stays as it is.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
tests=${1:-'^test_(core|tensor|allocator|vmath|numbers|loop|library|ops|autograd|golden|compile|graphs|regions|threads|nn)$'}
build=$root/build/aarch64
triple=aarch64-linux-gnu
mkdir -p "$build"

sh scripts/setup.sh build
if ! command -v $triple-gcc >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then
    if [ "$(id -u)" != 0 ]; then
        echo "check_aarch64.sh: gcc-aarch64-linux-gnu and qemu-user-static are missing, and only root can install them" >&2
        exit 1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static >"$build/setup.log" 2>&1 ||
        { cat "$build/setup.log" >&2; exit 1; }
fi

# cmocka for aarch64: lists and packages of that architecture in a folder of their own.
if [ ! -e "$build/sysroot/usr/include/cmocka.h" ]; then
    mkdir -p "$build/apt/lists/partial" "$build/apt/cache/archives/partial" "$build/sysroot"
    : >"$build/apt/status"
    apt() {
        apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$build/apt" \
            -o Dir::State::status="$build/apt/status" -o Dir::Cache="$build/apt/cache" -o APT::Sandbox::User= "$@"
    }
    apt update
    (cd "$build/apt" && apt download libcmocka0 libcmocka-dev)
    for package in "$build"/apt/*.deb; do
        dpkg -x "$package" "$build/sysroot"
    done
fi

# The one header without code; the host's folder of headers must not be searched.
mkdir -p "$build/include"
cp /usr/include/xxhash.h "$build/include/"

# Generators of the build are programs of the target too: they and the tests run through the emulator.
export PKG_CONFIG_LIBDIR="$build/sysroot/usr/lib/$triple/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$build/sysroot"
CC=$triple-gcc sh scripts/configure.sh "$build/tree" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64-static;-L;/usr/$triple" -DREPRISE_XXHASH_INCLUDE="$build/include" \
    -DREPRISE_WERROR=ON -DREPRISE_ASSERT=ON -DREPRISE_CLI=OFF -DREPRISE_BENCH=OFF -DREPRISE_ONEDNN=OFF
# Only what is run is built.
targets=$(cd tests && for file in test_*.c; do echo "${file%.c}"; done | grep -E "$tests")
# shellcheck disable=SC2086
nice cmake --build "$build/tree" -j "${JOBS:-$(nproc)}" --target $targets cudasim_cuda cudasim_nvrtc cudasim_cublaslt cudasim_cudnn

# What the tests compile (tier 1, the emulator's kernels) is compiled by the cross compiler, under the name that they look for.
mkdir -p "$build/bin"
ln -sf "$(command -v $triple-gcc)" "$build/bin/cc"
export PATH="$build/bin:$PATH" LD_LIBRARY_PATH="$build/sysroot/usr/lib/$triple" QEMU_LD_PREFIX="/usr/$triple"
nice ctest --test-dir "$build/tree" --output-on-failure --no-tests=error -j "${JOBS:-$(nproc)}" --timeout 3000 -R "$tests"
