#!/bin/sh
# Builds the fuzz targets with clang and runs each for FUZZ_SECONDS (default 30) seconds, starting
# from its corpus. New inputs and crashes stay under build/fuzz.
set -eu
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-30}
build=build/fuzz
if ! command -v clang >/dev/null 2>&1; then
    echo "make fuzz needs clang with its libFuzzer: on Debian the packages clang and libclang-rt-dev" >&2
    exit 1
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_C_FLAGS_DEBUG="-O1 -g" -DTAMIS_SANITIZE=address,undefined,fuzzer-no-link \
    -DTAMIS_BUILD_FUZZERS=ON -DTAMIS_BUILD_TESTS=OFF -DTAMIS_BUILD_PROGRAMS=OFF >/dev/null
cmake --build "$build" -j "${JOBS:-$(nproc)}"
for source in fuzz/fuzz_*.c; do
    [ -f "$source" ] || { echo "no fuzz targets"; exit 0; }
    target=$(basename "$source" .c)
    name=${target#fuzz_}
    mkdir -p "$build/found/$name"
    echo "== $target, $seconds s"
    "$build/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 \
        -print_final_stats=1 -artifact_prefix="$build/found/$name-" \
        "$build/found/$name" "fuzz/corpus/$name"
done
