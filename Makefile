# Front door of the CMake build; everything here can be done by hand with the presets.
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 30
export JOBS

BUILD = cmake --build --preset

.PHONY: help setup build demo test check asan tsan fuzz bench bench-long clean

help:
	@echo "make demo    install what is missing, build, let the demo model write a text"
	@echo "make test    install what is missing, build, run all tests"
	@echo "make build   build only (build/release)"
	@echo "make check   include order and house rules; formatting of changed files (advice)"
	@echo "make asan    the tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan    the tests under ThreadSanitizer"
	@echo "make fuzz    every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS) seconds (needs clang)"
	@echo "make bench   kernels, layers, tokenizer, tokens per second of the demo model (five minutes)"
	@echo "make bench-long  memory and token times at a context of 100,000 tokens (minutes)"
	@echo "make clean   remove build/"

setup:
	@sh tools/setup.sh

build: setup
	@cmake --preset release >/dev/null
	@$(BUILD) release -j $(JOBS)

demo: setup
	@cmake --preset release >/dev/null
	@$(BUILD) release -j $(JOBS) --target tamis_cli
	build/release/tamis generate -m models/demo -p "And the king said unto" -n 120

test: build
	@sh tools/run_tests.sh build/release

check:
	@sh tools/check_layers.sh
	@sh tools/check_format.sh

asan: setup
	@cmake --preset asan-ubsan >/dev/null
	@$(BUILD) asan-ubsan -j $(JOBS)
	@sh tools/run_tests.sh build/asan-ubsan

tsan: setup
	@cmake --preset tsan >/dev/null
	@$(BUILD) tsan -j $(JOBS)
	@sh tools/run_tests.sh build/tsan

fuzz: setup
	@FUZZ_SECONDS=$(FUZZ_SECONDS) sh tools/run_fuzz.sh

bench: build
	build/release/tamis bench kernels
	build/release/tamis bench layer --shape v4-flash --kind c4 --context 4096,131072 --tokens 1,64 -t 1,2
	build/release/tamis bench layer --shape v32 --kind sfa --context 4096,131072 -t 1,2
	build/release/bench_tokenizer models/demo
	sh bench/demo_speed.sh build/release

bench-long: build
	sh bench/long_context.sh

clean:
	rm -rf build
