# Shared by the command line tests; POSIX sh. Each test is one script, run from the project root by
# ctest with TAMIS_BIN set:
#
#     . tests/cli/lib.sh
#     run tamis generate -m models/demo          # keeps exit code, standard output and error
#     expect 2 out '' err '*an input is missing*'
#
# `out` and `err` take a glob that the whole text must match ("*" crosses lines); out_file and
# err_file take a file that must be equal byte for byte. The final newline counts.

set -u
: "${TAMIS_BIN:?the path of the tamis program}"
export LC_ALL=C
model=models/demo
data=tests/cli/data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n_checks=0

# Nothing from the caller's environment may steer the program.
for variable in $(env | sed -n 's/^\(TAMIS_[A-Z0-9_]*\)=.*/\1/p'); do
    [ "$variable" = TAMIS_BIN ] || unset "$variable"
done

tamis() {
    "$TAMIS_BIN" "$@"
}

die() {
    echo "FAILED: $*" >&2
    echo "command: $command" >&2
    echo "exit code: $code" >&2
    echo "--- standard output" >&2
    head -c 2000 "$work/out" >&2
    echo "--- standard error" >&2
    head -c 4000 "$work/err" >&2
    exit 1
}

# Runs a command with nothing on standard input unless the caller redirects it into run_with_input.
run() {
    run_with_input "$@" </dev/null
}

run_with_input() {
    command="$*"
    "$@" >"$work/out" 2>"$work/err"
    code=$?
}

# A file's text with its trailing newlines; sets $text.
slurp() {
    text=$(cat "$1" && echo .)
    text=${text%.}
}

expect_glob() {
    slurp "$work/$1"
    # shellcheck disable=SC2254  # the pattern is meant to be one
    case $text in
    $2) ;;
    *) die "standard $1 is not like: $2" ;;
    esac
}

expect() {
    n_checks=$((n_checks + 1))
    [ "$code" -eq "$1" ] || die "exit code $code, expected $1"
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        out | err) expect_glob "$1" "$2" ;;
        out_file | err_file) cmp -s "$work/${1%_file}" "$2" || die "standard ${1%_file} differs from $2" ;;
        esac
        shift 2
    done
}

# expect_true MESSAGE COMMAND...: a condition about the last run.
expect_true() {
    n_checks=$((n_checks + 1))
    message=$1
    shift
    "$@" || die "$message"
}

# A folder like the demo model with links to its files, to change one of them: copy_model NAME.
copy_model() {
    mkdir "$work/$1"
    for file in config.json generation_config.json model.safetensors tokenizer.json \
        tokenizer_config.json; do
        ln -s "$PWD/$model/$file" "$work/$1/$file"
    done
}

# edit_model NAME FILE SED-SCRIPT: replaces the link by a changed copy.
edit_model() {
    rm "$work/$1/$2"
    sed "$3" "$model/$2" >"$work/$1/$2"
}

done_testing() {
    echo "$n_checks checks"
}
