# tamis bench: usage errors, what every output says, JSON and CSV of the form that programs read, the
# plot. No figure is looked at but for being there.
. tests/cli/lib.sh

machine='machine  *, * CPUs for this process, * kernels, tamis *, 20*Z
'

# Help and usage.
run tamis bench
expect 2 out '' err 'usage: tamis bench WHAT*roof*layer*model*kernels*synth*'
for words in 'bench --help' 'bench help' 'help bench' 'bench -h'; do
    # shellcheck disable=SC2086
    run tamis $words
    expect 0 out 'usage: tamis bench WHAT*roof*layer*model*kernels*synth*' err ''
done
run tamis bench rooof
expect 2 out '' err "*unknown benchmark 'rooof'*usage: tamis bench WHAT*"
run tamis help bench nothing
expect 2 out '' err "*unknown benchmark 'nothing'*"
run tamis bensh
expect 2 out '' err "*did you mean 'bench'?*"
run tamis --help
expect 0 out '*bench      measure speed*'
for what in roof layer model kernels synth; do
    run tamis help bench $what
    expect 0 out "usage: tamis bench $what *examples:*tamis bench $what*" err ''
    cp "$work/out" "$work/help-$what"
    run tamis bench $what --help
    expect 0 out_file "$work/help-$what" err ''
    run tamis bench help $what
    expect 0 out_file "$work/help-$what" err ''
    for option in $(sed -n 's/^ *\(-[a-z]*, \)\{0,1\}\(--[a-z-]*\).*/\2/p' "$work/help-$what"); do
        [ "$option" = --help ] && continue
        grep -q -e "$option" docs/cli.md || die "$option is not in docs/cli.md"
        run tamis bench $what "$option="
        n_checks=$((n_checks + 1))
        case $(cat "$work/err") in
        *'unknown option'* | *'does not belong'*) die "$option is in the help text only" ;;
        esac
    done
done

run tamis bench layer --kind c4
expect 2 out '' err '*bench layer: option --shape SHAPE is missing*tamis help bench layer*'
run tamis bench layer --shape v4 --kind c4
expect 2 out '' err "*--shape: value seen 'v4', allowed: v4-flash or v4-pro or v32 or glm5 or glm52
*"
run tamis bench layer --shape v32 --kind c4 -t 1
expect 2 out '' err '*kind is c4, allowed for v32: sfa, moe, head
'
run tamis bench layer --shape v4-flash --kind moe --experts 3 -t 1
expect 2 out '' err '*n_experts is 3, allowed 6..256
'
run tamis bench layer --shape v4-flash --kind window --kv-cache-dtype int8 -t 1
expect 2 out '' err '*kv_cache_dtype is I8, allowed BF16, F32 (profile exact)
'
bad_list() { # WORD VALUE ALLOWED
    run tamis bench layer --shape v4-flash --kind c4 "$1" "$2"
    expect 2 out '' err "*bench layer: $1: value seen '$2', allowed: $3
*"
}
bad_list --context 1,,2 'integers from 0 to 1048576, with commas between'
bad_list --context 4096, 'integers from 0 to 1048576, with commas between'
bad_list --context 1048577 'integers from 0 to 1048576, with commas between'
bad_list --tokens 0 'integers from 1 to 4096, with commas between'
bad_list --tokens 1x 'integers from 1 to 4096, with commas between'
bad_list -t 1,257 'integers from 1 to 256, with commas between'
bad_list --seconds 0 'a number from 0.05 to 60'
run tamis bench layer --shape v4-flash --kind c4 --plot "$work/x.svg" --context 4096
expect 2 out '' err '*--plot: it needs several contexts, one --tokens and one --threads*'
run tamis bench layer --shape v4-flash --kind c4 --plot "$work/x.svg" --context 8,4 -t 1
expect 2 out '' err '*--plot: it needs contexts that ascend*'
run tamis bench model
expect 2 out '' err '*bench model: option --model DIR is missing*'
run tamis bench model -m $model -p 0 -n 0
expect 2 out '' err '*-p: nothing to measure: -p and -n are both 0*'
run tamis bench model -m $model --csv --json
expect 2 out '' err '*--csv: not together with --json*'
run tamis bench model -m $model -p 8 -n 0 -d 1000000 -t 1
expect 2 out '' err '*max_model_len*1000008*'
run tamis bench model -m "$work/nothing"
expect 3 out '' err '*nothing*'
run tamis bench model -m $model -p 8 -n 0 -t 1 --memory-limit 1MiB
expect 4 out '' err '*'
run tamis bench kernels --kernel no-such
expect 2 out '' err "*--kernel: *no kernel's name contains 'no-such'*"
run tamis bench roof extra
expect 2 out '' err "*unexpected argument 'extra'*"
run tamis bench synth --shape v4-flash
expect 2 out '' err '*option --output DIR is missing*'
run tamis bench synth --shape v4-flash --layers 0,3 -o "$work/synth"
expect 2 out '' err '*layer 1 has ratio 3, allowed 0, 4, 128
'
run tamis bench synth --shape v4-flash -o "$work"
expect 1 out '' err '*is there, allowed: a new folder
'
run tamis bench synth --shape v4-flash -o "$work/no/such/place"
expect 1 out '' err '*cannot create a folder beside it*'
run tamis generate -m $model -p x --shape v32
expect 2 out '' err "*option '--shape' does not belong to this command, but to: bench layer, bench synth*"

# Short runs.
run tamis bench roof -t 1 --seconds 0.05
expect 0 out "${machine}threads  f32 GFLOP/s*
      1 *" err ''
run tamis bench kernels --kernel rmsnorm --seconds 0.05
expect 0 out "${machine}roof     before, 1 thread: *kernel *rmsnorm  *4096 *rmsnorm_bf16 *
roof     after, 2 threads: *" err ''
run tamis bench layer --shape v4-flash --kind window --context 64,512 -t 1 --seconds 0.05 \
    --plot "$work/plot.svg"
expect 0 out "${machine}layer    v4-flash window, profile exact, caches auto; random weights and rows
roof     1 thread, before and after: *
1 token behind 64, 1 thread
*project_in *attend *layer *memory planned *
1 token behind 512, 1 thread
*" err 'tamis: v4-flash window, 1 tokens behind 64*'

# Every tag of the drawing is closed in order, every attribute is in quotation marks.
cat >"$work/well_formed.awk" <<'END'
{ text = text $0 "\n" }
END {
    while (match(text, /<[^>]*>/)) {
        if (substr(text, 1, RSTART - 1) ~ /[<>]|&[^a-z]/) exit 1
        tag = substr(text, RSTART + 1, RLENGTH - 2)
        text = substr(text, RSTART + RLENGTH)
        if (tag ~ /^\//) { if (open[n--] != substr(tag, 2)) exit 1; continue }
        closed = sub(/\/$/, "", tag)
        name = tag; sub(/[ \n].*/, "", name)
        rest = substr(tag, length(name) + 1)
        while (sub(/^[ \n]+[a-zA-Z-]+="[^"<]*"/, "", rest)) ;
        if (rest != "") exit 1
        if (!closed) open[++n] = name
        n_tags++
    }
    exit !(n == 0 && n_tags > 20 && text ~ /^\n*$/)
}
END
expect_true 'the plot is well formed' awk -f "$work/well_formed.awk" "$work/plot.svg"
expect_true 'the plot begins as SVG' grep -q '^<svg xmlns="http://www.w3.org/2000/svg" viewBox=' "$work/plot.svg"
for word in 'project_in' 'attend' 'everything else' 'floor' '>64<' '>512<' 'v4-flash window layer'; do
    expect_true "the plot says $word" grep -q "$word" "$work/plot.svg"
done
run tamis bench layer --shape v4-flash --kind window --context 64,512 -t 1 \
    --plot "$work/no/such.svg"
expect 1 out '' err 'tamis: error: *no/such.svg*'
run tamis bench layer --shape v4-flash --kind moe --experts 6 --context 0 -t 1 --seconds 0.05 -q \
    --profile official --json
expect 0 out '{
  "machine": {*"level": *"date": *
  "shape": "v4-flash",
  "kind": "moe",
  "profile": "official",*"roofs": *"before"*"after"*"runs": *"name": "experts"*' err ''

# A model: names of tests as llama-bench has them, where the depth came from.
run tamis bench model -m $model -p 16 -n 2,3 -d 0,200 -t 1 -r 2 --seconds 0.05
expect 0 out "${machine}model    $model, profile exact, * layers, *roof     1 thread, *
| model *| threads | *test | *t/s | *x floor |
*| *pp16 | * ± * |
*| *tg2 | *
*| *tg3 | *
*| *pp16 @ d200 | *
*| *tg3 @ d200 | *
depth    rows are random numbers, not computed (--fill random)
memory   1 thread: planned *, taken *" err '*'
run tamis bench model -m $model -p 16 -n 2 -t 1,2 -r 1 --csv -q --seconds 0.05
expect 0 out 'cpu,backend,version,date,model,*,n_threads,*
*,1,512,16,0,0,none,*
*,1,512,0,2,0,none,*
*,2,512,16,0,0,none,*
*,2,512,0,2,0,none,*
' err ''
sed 's/"[^"]*"/text/g' "$work/out" >"$work/csv"
expect_true 'every CSV line has as many fields' \
    awk -F, 'NR == 1 { n = NF } NF != n { exit 1 } END { exit NR != 5 }' "$work/csv"
run tamis bench model -m $model -p 16 -n 0 -d 100 -t 1 -r 2 --json -q --seconds 0.05 \
    --fill computed --profile official
expect 0 out '*"profile": "official",*"kv_cache_dtype": "fp8",*"groups": *"planned_bytes": *"tests": *"test": "pp16 @ d100"*"fill": "computed"*"seconds": *"floor_ms": *' err ''

run tamis bench roof -t 1 --seconds 0.05 --json
expect 0 out '{*"machine": *"roofs": [[]*"threads": 1,*"stream_gbs": *"gather_gbs": *' err ''
run tamis bench kernels --kernel swiglu --seconds 0.05 --json
expect 0 out '{*"kernels": *"kernel": "swiglu",*"shape": "4096",*"level": "portable",*"of_roof": *' err ''

# Interrupted between two runs.
"$TAMIS_BIN" bench layer --shape v4-flash --kind window --context 8,9,10,11 -t 1 --seconds 1 \
    >"$work/out" 2>"$work/err" &
pid=$!
sleep 0.5
kill -TERM $pid
wait $pid
code=$?
command='tamis bench layer, interrupted'
expect 143 out '' err '*interrupted
'

# A folder that other commands read; interrupted, nothing stays.
run tamis bench synth --shape v4-flash --layers 0 --experts 6 --vocab 64 -o "$work/synth"
expect 0 out "$work/synth: v4-flash with 1 layers, * parameters, * MiB, random weights of seed 1
" err ''
run tamis inspect "$work/synth"
expect 0 out '*deepseek_v4*'
rm -r "$work/synth"
"$TAMIS_BIN" bench synth --shape v4-pro --experts 64 -o "$work/large" >"$work/out" 2>"$work/err" &
pid=$!
while [ -z "$(ls -d "$work"/large.* 2>/dev/null)" ]; do sleep 0.01; done
kill -TERM $pid
wait $pid
code=$?
command='tamis bench synth, interrupted'
expect 143 out '' err '*stopped*'
expect_true 'nothing of an interrupted folder is left' [ -z "$(ls -d "$work"/large* 2>/dev/null)" ]

done_testing
