# Help texts come from the option table: every option is there with its variable, and an example.
. tests/cli/lib.sh

run tamis --version
expect 0 out 'tamis [0-9]*.[0-9]*.[0-9]*
' err ''
run tamis version
expect 0 out 'tamis *' err ''

run tamis --help
expect 0 out 'tamis *usage: tamis COMMAND*TAMIS_MAX_MODEL_LEN*exit codes:*130*' err ''
cp "$work/out" "$work/general"
run tamis help
expect 0 out_file "$work/general" err ''
run tamis -h
expect 0 out_file "$work/general" err ''

run tamis help help
expect 0 out 'usage: tamis help [[]COMMAND]*' err ''
run tamis help version
expect 0 out 'usage: tamis version*' err ''

for name in generate logits ppl tokenize inspect; do
    run tamis help $name
    expect 0 out "usage: tamis $name*--model DIR*TAMIS_MODEL*examples:*tamis $name *" err ''
    cp "$work/out" "$work/$name"
    run tamis $name --help
    expect 0 out_file "$work/$name" err ''
    run tamis $name -m x -h
    expect 0 out_file "$work/$name" err ''
    expect_true 'every option line is at most 110 wide' \
        awk 'length($0) > 110 { exit 1 }' "$work/$name"
done
run tamis help generate
expect 0 out '*-n, --max-tokens N*--n-predict*default: 128*TAMIS_MAX_TOKENS*--stop S*--temp T*--top-k K*--top-p P*--min-p P*-s, --seed N*--print-ids*-t, --threads N*-c, --max-model-len N*--ctx-size*-ub, --max-num-batched-tokens N*--kv-cache-dtype TYPE*--memory-limit SIZE*-q, --quiet*'

# Each option of a help text is one that the command takes, and docs/cli.md speaks of it.
for name in generate logits ppl tokenize inspect; do
    for option in $(sed -n 's/^ *\(-[a-z]*, \)\{0,1\}\(--[a-z-]*\).*/\2/p' "$work/$name"); do
        [ "$option" = --help ] && continue
        grep -q -e "$option" docs/cli.md || die "$option is not in docs/cli.md"
        run tamis $name "$option="
        n_checks=$((n_checks + 1))
        case $(cat "$work/err") in
        *'unknown option'* | *'does not belong'*) die "$option is in the help text only" ;;
        esac
    done
done

done_testing
