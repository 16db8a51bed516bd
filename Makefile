# A thin front of CMake: everything real is in CMakeLists.txt.
#
#   make          build/hayate, the CPU program, and build/libhayate.a
#   make serve    installs what is missing (as root on Debian), builds, serves the bundled model on port 8000
#   make demo     one streamed answer of the bundled model
#   make tests    builds the tests in build/;  make test  runs everything that fits into ten minutes on two cores
#   make test-long  runs what does not
#   make asan, make tsan   the tests under the sanitizers
#   make races    the engine, its storms, the cache and the server alone under ThreadSanitizer
#   make valgrind  the inner loops and steps of odd sizes under valgrind
#   make aarch64  a cross build for 64-bit Arm and the tests of its inner loops under an emulator
#   make fuzz     every libFuzzer target for FUZZ_SECONDS (60), FUZZ_LONGER="name=seconds ..." for their own time
#   make lint     layers, sizes, clang-tidy

JOBS := $(shell nproc 2>/dev/null || echo 2)
FUZZ_SECONDS ?= 60
MODEL ?= models/m3-nano
PORT ?= 8000
MAKEFLAGS += --no-print-directory
BUILD := cmake --build
.DEFAULT_GOAL := all
.PHONY: all tests test test-long serve demo deps deps-test deps-dev asan tsan races valgrind aarch64 fuzz lint clean

all: deps
	@[ -f build/Makefile ] || cmake --preset release >/dev/null
	@$(BUILD) build -j$(JOBS) --target hayate library

# Silent when everything is there; never asks.
deps:
	@tools/install_deps build
deps-test:
	@tools/install_deps test
deps-dev:
	@tools/install_deps dev

# Configures again: the last time, cmocka and Python may not have been there.
tests: deps-test
	@cmake --preset release >/dev/null
	@$(BUILD) build -j$(JOBS) --target hayate library tests

test: tests
	@cd build && ctest -LE long --output-on-failure -j$(JOBS)

test-long: tests
	@cd build && ctest -L long --output-on-failure

serve: all
	build/hayate serve $(MODEL) --port $(PORT) --enable-auto-tool-choice --tool-call-parser minimax_m3

demo: all
	build/hayate generate $(MODEL) --chat --prompt "What is 4837 + 961?" --temperature 0 --max-tokens 256

asan tsan: deps-dev
	@cmake --preset $@ >/dev/null
	@$(BUILD) build-$@ -j$(JOBS) --target hayate library tests
	@cd build-$@ && ctest -LE "long|slow" --output-on-failure -j$(JOBS)

RACES := independence soak test_engine_engine test_engine_watch test_engine_replay test_cache_store standin
races: deps-dev
	@cmake --preset tsan >/dev/null
	@$(BUILD) build-tsan -j$(JOBS) --target $(RACES)
	@cd build-tsan && ctest -R '^(independence|soak-short|engine/(engine|watch|replay)|cache/store|server/load\.py)$$' --output-on-failure

# VALGRIND: which of the programs, by name.
VALGRIND ?= .
valgrind: deps-dev tests
	@cd build && ctest -L valgrind -R "$(VALGRIND)" --output-on-failure -j$(JOBS)

# A processor with every extension, and one with neither dot-product nor bf16 instructions.
aarch64:
	@tools/install_deps aarch64
	@cmake --preset aarch64 >/dev/null
	@$(BUILD) build-aarch64 -j$(JOBS) --target hayate emulated_tests
	@cd build-aarch64 && for cpu in max cortex-a72; do echo "emulating $$cpu"; \
	    QEMU_CPU=$$cpu ctest -L emulated --output-on-failure -j$(JOBS) || exit 1; done

fuzz: deps-dev
	@cmake --preset fuzz >/dev/null
	@$(BUILD) build-fuzz -j$(JOBS) --target fuzzers
	@tools/run_fuzzers build-fuzz $(FUZZ_SECONDS) $(FUZZ_LONGER)

# LINT=quick leaves out the analyser, which takes most of the time.
LINT ?= all
lint: deps-dev
	@cmake --preset release >/dev/null
	@tools/lint build $(LINT)

clean:
	rm -rf build build-*
