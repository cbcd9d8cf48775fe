#!/bin/sh
# Tokens per second of the demo model: a prompt of 1,000 tokens and 200 generated ones (greedy), with
# one and with two threads, three runs each.
#
#     bench/demo_speed.sh [BUILD_DIR]
set -eu
build=${1:-build/release}
cd "$(dirname "$0")/.."

ids=$(mktemp)
trap 'rm -f "$ids"' EXIT
"$build/tamis" tokenize -m models/demo -f models/demo/valid.txt --add-bos | cut -d' ' -f1-1000 >"$ids"

name=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)
echo "demo model on: ${name:-$(uname -m)}, $(nproc) CPUs for this process"
for threads in 1 2; do
    for run in 1 2 3; do
        report=$("$build/tamis" generate -m models/demo --ids "$ids" -n 200 --temp 0 --ignore-eos \
            -t $threads 2>&1 >/dev/null) || { echo "$report" >&2; exit 1; }
        echo "$threads thread(s), run $run: $(echo "$report" | sed -n 's/^tamis: speed: *//p')"
    done
done
