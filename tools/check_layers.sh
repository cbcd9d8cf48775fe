#!/bin/sh
# House rules that a machine can check. usage: check_layers.sh [ROOT]; exit code 1 and one line per
# offence if a rule is broken.
#
#  - every #include in src follows layers.txt; programs (cli, examples) see only tamis/*.h and the
#    headers beside them
#  - only src/core allocates; the library neither prints nor exits
#  - every folder of layers.txt (or the folder around it) has a README.md of at most 15 lines
set -eu
root=${1:-$(dirname "$0")/..}
cd "$root"

sources=$(find src cli examples -name '*.[ch]' 2>/dev/null | LC_ALL=C sort)
folders=$(sed 's/#.*//; s/:.*//; /^ *$/d' layers.txt)
status=0

# shellcheck disable=SC2086  # file names in this tree hold no spaces
awk '
# Splits "a: b c" into the table; the order of the lines is the order of the layers.
FILENAME == "layers.txt" {
    sub(/#.*/, "")
    if ($0 ~ /^ *$/) next
    if (split($0, part, ":") != 2) { complain("not \"folder: folders\": " $0); next }
    n = split(part[2], names, " ")
    for (i = 1; i <= n; i++) {
        if (!(names[i] in known)) complain(part[1] " names " names[i] ", which is not above it")
        may[part[1], names[i]] = 1
    }
    known[part[1]] = 1
    next
}
FNR == 1 { in_comment = 0; home = layer_of(FILENAME); program = FILENAME !~ /^src\// }
{
    line = strip($0)
    if (line ~ /^[ \t]*#[ \t]*include/) check_include(line)
    else if (!program) check_calls(line)
}
END { exit bad }

function complain(text) { print FILENAME ":" FNR ": " text; bad = 1 }

# "src/attention/dsa/x.c" -> "attention/dsa"; the longest listed folder that holds the file.
function layer_of(path,    dir) {
    if (path !~ /^src\//) { sub(/\/.*/, "", path); return path }
    dir = substr(path, 5)
    while (sub(/\/[^\/]*$/, "", dir)) if (dir in known) return dir
    complain("folder is not in layers.txt"); return "?"
}

# Drops comments, also those over several lines.
function strip(text,    out, at) {
    out = ""
    while (text != "") {
        if (in_comment) {
            at = index(text, "*/")
            if (at == 0) return out
            text = substr(text, at + 2); in_comment = 0
        } else {
            at = match(text, /\/[*\/]/)
            if (at == 0) return out text
            out = out substr(text, 1, at - 1)
            if (substr(text, at, 2) == "//") return out
            text = substr(text, at + 2); in_comment = 1
        }
    }
    return out
}

function check_include(text,    quoted, path, dir) {
    if (!match(text, /["<][^">]*[">]/)) return
    quoted = substr(text, RSTART, 1) == "\""
    path = substr(text, RSTART + 1, RLENGTH - 2)
    if (path ~ /^tamis\//) return
    if (program) {
        if (quoted && path ~ /\//) complain("a program may not include " path)
        return
    }
    dir = path
    while (sub(/\/[^\/]*$/, "", dir)) if (dir in known) break
    if (!(dir in known)) {
        if (quoted) complain("\"" path "\" is not \"folder/file.h\" of a folder in layers.txt")
        return
    }
    if (dir != home && !((home, dir) in may)) complain(home " may not include " path)
}

function check_calls(text) {
    gsub(/"([^"\\]|\\.)*"/, "\"\"", text)
    if (home != "core" && text ~ /(^|[^A-Za-z0-9_>.])(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|strndup|asprintf|getline)[ ]*\(/)
        complain("only src/core allocates: " text)
    if (text ~ /(^|[^A-Za-z0-9_>.])(printf|puts|putchar|perror|exit|_exit|abort)[ ]*\(/)
        complain("the library neither prints nor exits: " text)
}
' layers.txt $sources || status=1

for folder in $folders; do
    readme=src/$folder/README.md
    case $folder in # nested folders may share one
        */*) [ -f "$readme" ] || readme=src/${folder%/*}/README.md ;;
    esac
    if [ ! -f "$readme" ]; then
        echo "$readme: missing"
        status=1
    elif [ "$(wc -l < "$readme")" -gt 15 ]; then
        echo "$readme: $(wc -l < "$readme") lines, allowed 15"
        status=1
    fi
done
[ "$status" -eq 0 ] && echo "layers: $(echo "$sources" | wc -l) files follow layers.txt"
exit "$status"
