#!/bin/sh
# Advice, never a failure: what clang-format would change in the C files that differ from the last
# commit, and in those that it touched.
set -eu
cd "$(dirname "$0")/.."
if ! command -v clang-format >/dev/null 2>&1; then
    echo "format: clang-format is not installed, nothing checked"
    exit 0
fi
files=$({ git diff --name-only --diff-filter=d HEAD; git ls-files --others --exclude-standard
          git diff-tree --no-commit-id --name-only --diff-filter=d -r HEAD; } |
        grep '\.[ch]$' | sort -u || true)
for file in $files; do
    lines=$(clang-format "$file" | diff "$file" - | grep -c '^[<>]' || true)
    [ "$lines" -eq 0 ] || echo "format: $file: clang-format would change $lines lines"
done
