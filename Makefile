# A thin front of CMake: everything real is in CMakeLists.txt.
#
#   make          build/hayate, the CPU program
#   make serve    installs what is missing (as root on Debian), builds, serves the bundled model on port 8000
#   make demo     one streamed answer of the bundled model
#   make test     everything that fits into ten minutes on two cores;  make test-long  what does not
#   make deps     only installs what building and testing need
#   make asan, make tsan   build and run the unit tests under the sanitizers
#   make fuzz     every libFuzzer target for FUZZ_SECONDS (60)
#   make lint     formatting, layers, clang-tidy

JOBS := $(shell nproc 2>/dev/null || echo 2)
FUZZ_SECONDS ?= 60
MODEL ?= models/m3-nano
PORT ?= 8000
BUILD := cmake --build
.DEFAULT_GOAL := all
.PHONY: all library tests test test-long serve demo deps asan tsan fuzz lint format clean help

all: build/CMakeCache.txt
	@$(BUILD) build -j$(JOBS) --target hayate library

build/CMakeCache.txt: | deps
	@cmake --preset release >/dev/null

# Silent when everything is there; never asks.
deps:
	@tools/install_deps

tests: build/CMakeCache.txt
	@$(BUILD) build -j$(JOBS) --target hayate library tests

test: tests
	@cd build && ctest -LE long --output-on-failure -j$(JOBS)

test-long: tests
	@cd build && ctest -L long --output-on-failure

serve: all
	build/hayate serve $(MODEL) --port $(PORT)

demo: all
	build/hayate generate $(MODEL) --chat --prompt "What is 4837 + 961?" --temperature 0 --max-tokens 256

asan tsan: deps
	@cmake --preset $@ >/dev/null
	@$(BUILD) build-$@ -j$(JOBS) --target hayate library tests
	@cd build-$@ && ctest -LE "long|slow" --output-on-failure -j$(JOBS)

fuzz: deps
	@cmake --preset fuzz >/dev/null
	@$(BUILD) build-fuzz -j$(JOBS) --target fuzzers
	@tools/run_fuzzers build-fuzz $(FUZZ_SECONDS)

lint: deps
	@cmake --preset release >/dev/null
	@tools/lint build

clean:
	rm -rf build build-*
