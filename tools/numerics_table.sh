#!/bin/sh
# Prints docs/numerics-table.md: the tables of `tamis inspect --profile` in Markdown, around the words
# that stand there. A test compares; to renew it:
#
#     sh tools/numerics_table.sh build/release/tamis >table && mv table docs/numerics-table.md
set -eu
tamis=${1:-build/release/tamis}
page=docs/numerics-table.md

# Columns are two or more spaces apart. The folders are small, so a row has its layout's name only:
# its bytes in the real models stand in the table of the page's end.
table() { # DIR PROFILE
    "$tamis" inspect "$1" --profile "$2" |
        sed -e '1,/^numerics, profile/d' -e 's/, [0-9]* bytes//' -e 's/   */ | /g' \
            -e 's/^\(.*\)$/| \1 |/' | sed '1a\
|---|---|---|---|---|---|---|---|'
}

# A line "<!-- inspect DIR PROFILE -->" is followed by the table, up to the next empty line.
is_table=false
while IFS= read -r line; do
    case $line in
    '<!-- inspect '*)
        printf '%s\n' "$line"
        # shellcheck disable=SC2086  # the words of the line
        set -- ${line#<!-- inspect }
        table "$1" "$2"
        is_table=true
        ;;
    '')
        is_table=false
        echo
        ;;
    *) "$is_table" || printf '%s\n' "$line" ;;
    esac
done <"$page"
