#!/bin/sh
# Proves that check_layers.sh can fail: a small made-up tree passes, and each offence put into it
# is found in the right file.
set -eu
check=$(cd "$(dirname "$0")" && pwd)/check_layers.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

fresh_tree() {
    rm -rf "$tree/src" "$tree/cli"
    mkdir -p "$tree/src/core" "$tree/src/kernels/x86" "$tree/src/attention/dsa" "$tree/src/attention/sfa" "$tree/cli"
    printf 'core:\nkernels: core\nattention/dsa: core kernels\nattention/sfa: core kernels\n' > "$tree/layers.txt"
    for folder in core kernels attention/dsa attention/sfa; do
        echo "# $folder" > "$tree/src/$folder/README.md"
    done
    printf '#include "tamis/base.h"\nvoid *f(void) { return malloc(1); }\n' > "$tree/src/core/mem.c"
    printf '#include <math.h>\n#include "core/mem.h"\n#include "kernels/x86/b.h"\n' > "$tree/src/kernels/x86/a.c"
    printf '/* free(x), #include "attention/sfa/x.h"\n * exit(1) */\nvoid g(void) { log("free(1)"); pool->free(1); block_free(2); } // abort()\n' > "$tree/src/attention/dsa/c.c"
    printf '#include "tamis/tamis.h"\n#include "options.h"\nint main(void) { exit(0); }\n' > "$tree/cli/main.c"
}

# usage: expect_offence FILE TEXT: with TEXT appended to FILE the check fails and names FILE
expect_offence() {
    fresh_tree
    mkdir -p "$(dirname "$tree/$1")"
    printf '%s\n' "$2" >> "$tree/$1"
    if output=$(sh "$check" "$tree"); then
        echo "not found: $2 in $1"
        failed=1
    elif ! echo "$output" | grep -q "^$1"; then
        echo "found, but not in $1: $output"
        failed=1
    fi
}

fresh_tree
sh "$check" "$tree" || { echo "the clean tree does not pass"; failed=1; }
expect_offence src/core/mem.c '#include "kernels/kernels.h"'
expect_offence src/kernels/x86/a.c '#include "attention/dsa/c.h"'
expect_offence src/kernels/x86/a.c '#  include <attention/dsa/c.h>'
expect_offence src/attention/dsa/c.c '#include "attention/sfa/x.h"'
expect_offence src/attention/sfa/d.c '#include "attention/dsa/x.h"'
expect_offence src/attention/dsa/c.c '#include "plain.h"'
expect_offence src/attention/dsa/c.c 'void h(void *p) { free(p); }'
expect_offence src/kernels/x86/a.c 'static char *s(void) { return calloc (1, 1); }'
expect_offence src/core/mem.c 'void h(void) { printf("x"); }'
expect_offence src/core/mem.c 'void h(void) { /* why */ exit(1); }'
expect_offence cli/main.c '#include "core/mem.h"'
expect_offence layers.txt 'tests: nowhere'
expect_offence src/stray/e.c 'int unlisted;'
expect_offence src/core/README.md "$(seq 15)"
fresh_tree
rm "$tree/src/kernels/README.md"
sh "$check" "$tree" | grep -q '^src/kernels/README.md: missing' || { echo "missing README not found"; failed=1; }
fresh_tree
mv "$tree/src/attention/dsa/README.md" "$tree/src/attention"
rm "$tree/src/attention/sfa/README.md"
sh "$check" "$tree" || { echo "a README for a group of folders is refused"; failed=1; }

[ "$failed" -eq 0 ] && echo "check_layers.sh finds every offence"
exit "$failed"
