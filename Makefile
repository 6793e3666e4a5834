# The front door: each target does its own set-up, then calls CMake. Everything made lies under build/.
#   make run | test | test-all | fuzz | bench | bench-gpu | install | format | check-format | clean
#   make wheel         the Python package, as build/wheel/*.whl
#   make fuzz SECONDS=60
#   make install PREFIX=/usr/local DESTDIR=
#   CC, JOBS, CMAKE_FLAGS and CTEST_FLAGS are passed on. WERROR=1 makes warnings errors in the test build.
SHELL = /bin/sh
PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_FLAGS ?=
CTEST_FLAGS ?=
WERROR ?= 0
SECONDS ?= 60
# make's own default for CC is not a choice of the user's.
ifneq ($(origin CC),default)
export CC
endif

configure = sh scripts/configure.sh
build = cmake --build

PYTHON ?= python3

.PHONY: all run test test-all fuzz bench bench-gpu wheel doc install format check-format clean setup
all: setup
	@$(configure) build/release -DREPRISE_TESTS=OFF -DREPRISE_EXAMPLES=OFF $(CMAKE_FLAGS)
	@$(build) build/release -j $(JOBS)

setup:
	@sh scripts/setup.sh build

run: all
	@build/release/tools/reprise/reprise demo

test:
	@sh scripts/setup.sh test
	@$(configure) build/test -DREPRISE_ASSERT=ON -DREPRISE_HERE=ON -DREPRISE_WERROR=$(WERROR) $(CMAKE_FLAGS)
	@$(build) build/test -j $(JOBS)
	@ctest --test-dir build/test --output-on-failure --no-tests=error -j $(JOBS) $(CTEST_FLAGS)

# Also what takes long or needs other libraries: comparisons with PyTorch.
test-all: test
	@REPRISE_TEST_ALL=1 ctest --test-dir build/test --output-on-failure --no-tests=error -j $(JOBS) -L 'cuda|numbers'
	@sh scripts/conformance.sh build/test
	@sh scripts/opinfo.sh build/test

fuzz:
	@sh scripts/setup.sh test
	@JOBS=$(JOBS) sh scripts/fuzz.sh $(SECONDS)

bench:
	@sh scripts/setup.sh bench
	@$(configure) build/release -DREPRISE_TESTS=OFF -DREPRISE_EXAMPLES=OFF -DREPRISE_BENCH_PEER=ON $(CMAKE_FLAGS)
	@$(build) build/release -j $(JOBS) --target bench_programs
	@$(build) build/release --target bench
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
		$(PYTHON) bench/cpu_kernels.py build/release/bench/gpu_kernels bench/cpu_works.txt; fi

bench-gpu:
	@sh bench/gpu.sh

wheel:
	@sh scripts/setup.sh wheel
	@JOBS=$(JOBS) $(PYTHON) python/build_wheel.py --out build/wheel

# The reference of the headers, build/release/html; needs doxygen. `make install` takes it along.
doc: all
	@$(build) build/release --target doc

install: all
	@prefix="$(PREFIX)"; case $$prefix in /*) ;; *) prefix=$$PWD/$$prefix ;; esac; \
	    DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$$prefix"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

format:
	@sh scripts/format.sh write

check-format:
	@sh scripts/format.sh check

clean:
	@rm -rf build
