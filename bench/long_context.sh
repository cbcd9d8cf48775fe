#!/bin/sh
# A context of 100,000 tokens on the demo model: memory against the plan, time of a token at 1,000
# and at the end. Works on a copy of the folder whose config.json declares a larger maximum.
#
#     bench/long_context.sh [LENGTH [BUILD_DIR [THREADS [f32|bf16]]]]
set -eu
length=${1:-100000}
build=${2:-build/release}
threads=${3:-$(nproc)}
cache=${4:-bf16}
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp models/demo/*.json models/demo/model.safetensors "$dir/"
sed -i "s/\"max_position_embeddings\": [0-9]*/\"max_position_embeddings\": $length/" "$dir/config.json"
# the held-out text; the program repeats its ids as often as needed
"$build/tamis" tokenize -m models/demo -f models/demo/valid.txt > "$dir/text.ids"
"$build/long_context" "$dir" "$dir/text.ids" "$length" "$threads" "$cache"
