# Prompt in, text out: golden continuations, prompts from every source, stops, ends, JSON.
. tests/cli/lib.sh

f32='--temp 0 --kv-cache-dtype f32'
for k in 0 1 2 3; do
    run tamis generate -m $model -f $data/prompt-$k.txt -n 64 $f32
    expect 0 out_file $data/greedy-$k.txt err '*model:*deepseek_v4, profile exact*cpu:*kernels*memory:*sample: greedy*finish: length*speed:*tok/s*'
done
run tamis generate -m $model --ids $data/prompt-1.ids -n 64 --print-ids -q $f32
expect 0 out_file $data/greedy-1.ids err ''
run tamis generate -m $model -p "$(cat $data/prompt-1.txt)" -n 64 --print-ids -q $f32 -ub 3 -t 3
expect 0 out_file $data/greedy-1.ids err ''
run_with_input tamis generate -m $model -f - -n 64 -q $f32 <$data/prompt-2.txt
expect 0 out_file $data/greedy-2.txt err ''
run_with_input tamis generate -m $model --ids - -n 64 -q $f32 <$data/prompt-3.ids
expect 0 out_file $data/greedy-3.txt err ''
run env TAMIS_CPU=portable "$TAMIS_BIN" generate -m $model -f $data/prompt-0.txt -n 64 $f32
expect 0 out_file $data/greedy-0.txt err '*cpu: *portable kernels*'
# A prompt that spells the BOS gets no second one.
run tamis generate -m $model -q $f32 -n 64 -p '<｜begin▁of▁sentence｜>In the beginning God'
expect 0 out_file $data/greedy-0.txt err ''

# Off a terminal the text ends as generated; where both outputs are one pipe the report starts anew.
for k in 0 1; do
    run sh -c "\"\$TAMIS_BIN\" generate -m $model -f $data/prompt-$k.txt -n 64 $f32 2>&1 | cat"
    expect 0 out "*
$(cat $data/greedy-$k.txt)
tamis: finish: length
*"
    run sh -c "\"\$TAMIS_BIN\" generate -m $model -f $data/prompt-$k.txt -n 64 $f32 -q 2>&1 | cat"
    expect 0 out_file $data/greedy-$k.txt
done

# Stop strings: inside a token, across tokens, the first of several, one that never comes.
stop() { # EXPECTED-TEXT STOP...
    expected=$1
    shift
    run tamis generate -m $model -p 'In the beginning God' -n 64 $f32 "$@"
    expect 0 out "$expected" err '*finish: stop*'
}
stop ' of the e' --stop arth
stop ' of the earth, and the law o' --stop 'f the LORD'
stop ' of the earth, and the' --stop ' of Israel' --stop ' law' --stop never
stop '' --stop ' '
run tamis generate -m $model -p 'In the beginning God' -n 64 $f32 --stop 'Abraham'
expect 0 out_file $data/greedy-0.txt err '*finish: length*'
run tamis generate -m $model -p 'In the beginning God' -n 64 $f32 --stop 'the law' --json
expect 0 out '{"text": " of the earth, and ", "ids": [[]*], "finish_reason": "stop", "prompt_tokens": 6, "generated_tokens": *}
'
run tamis generate -m $model -p 'In the beginning God' -n 3 $f32 --stop 'the law' --print-ids
expect 0 out "$(cut -d' ' -f1-3 $data/greedy-0.ids)
"

# Sampling: the model's generation_config.json unless flags; a seed that is not given is printed.
run tamis generate -m $model -p And -n 8
expect 0 err '*sample: temperature 0.8, top-k 0, top-p 0.95, min-p 0, seed [0-9]*'
run tamis generate -m $model -p And -n 8 --temp 1.5 --top-k 7 --top-p 0.5 --min-p 0.25 --seed 99
expect 0 err '*sample: temperature 1.5, top-k 7, top-p 0.5, min-p 0.25, seed 99*'
run tamis generate -m $model -p And -n 24 --seed 7 -t 1 -q
expect 0 out '?*' err ''
cp "$work/out" "$work/seed7"
for threads in 1 2 3; do
    run tamis generate -m $model -p And -n 24 --seed 7 -t $threads -ub $threads -q
    expect 0 out_file "$work/seed7"
done
run tamis generate -m $model -p And -n 24 --seed 8 -q
expect_true 'another seed, the same text' sh -c "! cmp -s '$work/out' '$work/seed7'"
run tamis generate -m $model -p And -n 24 --top-k 1 --temp 2 --seed 3 -q
cp "$work/out" "$work/top1"
run tamis generate -m $model -p And -n 24 --temp 0 -q
expect 0 out_file "$work/top1"
# -1 as other programs have it: top-k off, a random seed (three equal ones: once in 2^64).
run tamis generate -m $model -p And -n 24 --seed 7 --top-k -1
expect 0 out_file "$work/seed7" err '*top-k 0, *seed 7*'
seed_of() { sed -n 's/.*sample: .* seed \([0-9]*\)$/\1/p' "$work/err"; }
run tamis generate -m $model -p And -n 2 --seed -1
expect 0 err '*sample: *, seed [0-9]*'
seeds=$(seed_of)
cp "$work/out" "$work/random"
run tamis generate -m $model -p And -n 2 --seed "$seeds"
expect 0 out_file "$work/random"
for i in 1 2; do
    run env TAMIS_SEED=-1 "$TAMIS_BIN" generate -m $model -p And -n 2
    expect 0
    seeds="$seeds $(seed_of)"
done
expect_true "random seeds: $seeds" [ "$(echo "$seeds" | tr ' ' '\n' | sort -u | wc -l)" -gt 1 ]
copy_model greedy
edit_model greedy generation_config.json 's/"do_sample": true/"do_sample": false/'
run tamis generate -m "$work/greedy" -p And -n 24
expect 0 out_file "$work/top1" err '*sample: greedy*'
run tamis generate -m "$work/greedy" -p And -n 4 --top-p 0.9
expect 0 err '*sample: temperature 0.8, top-k 0, top-p 0.9*'

# Ends: none, context full, an end-of-text id (here: the second golden id declared as one).
run tamis generate -m $model -p And -n 0
expect 0 out '' err '*finish: length*'
run tamis generate -m $model --ids $data/prompt-0.ids -n -1 -c 16 --print-ids $f32
expect 0 out "$(cut -d' ' -f1-10 $data/greedy-0.ids)
" err '*finish: context full (16 tokens)*'
second=$(cut -d' ' -f2 $data/greedy-0.ids)
copy_model eos
edit_model eos generation_config.json "s/\"eos_token_id\": 1/\"eos_token_id\": [1, $second]/"
run tamis generate -m "$work/eos" --ids $data/prompt-0.ids -n 9 --print-ids $f32
expect 0 out "$(cut -d' ' -f1 $data/greedy-0.ids)
" err "*finish: eos (token $second)*"
run tamis generate -m "$work/eos" --ids $data/prompt-0.ids -n 9 --print-ids --ignore-eos $f32
expect 0 out "$(cut -d' ' -f1-9 $data/greedy-0.ids)
" err '*finish: length*'

# Ids that the tokenizer does not name are never drawn: without 2042 .. 2047 none of them comes,
# though the same flat draw with them shows some.
count_chat_ids() {
    tr ' ' '\n' <"$work/out" | awk '$1 >= 2042 { n++ } END { print n + 0 }'
}
flat='-p And -n 200 --temp 1000 --top-p 1 --seed 1 --print-ids --ignore-eos -q'
run tamis generate -m $model $flat
expect 0
expect_true 'no id above 2041 in 200 draws' [ "$(count_chat_ids)" -gt 0 ]
copy_model short
edit_model short tokenizer.json '31s/},/}/; 32,85d'
run tamis generate -m "$work/short" $flat
expect 0
expect_true 'an id that the tokenizer does not name' [ "$(count_chat_ids)" -eq 0 ]

# A folder without tokenizer: ids in, ids out; what needs text is refused.
copy_model bare
rm "$work/bare/tokenizer.json" "$work/bare/tokenizer_config.json"
run tamis generate -m "$work/bare" --ids $data/prompt-1.ids -n 64 $f32
expect 0 out_file $data/greedy-1.ids err '*no tokenizer*'
run tamis generate -m "$work/bare" --ids $data/prompt-1.ids -n 2 --json -q $f32
expect 0 out '{"ids": [[]*], "finish_reason": "length"*' err ''
run tamis generate -m "$work/bare" -p And
expect 2 out '' err '*-p: the model folder has no tokenizer.json; give token ids with --ids*'
run tamis generate -m "$work/bare" --ids $data/prompt-1.ids --stop x
expect 2 out '' err '*--stop: the model folder has no tokenizer.json*'

done_testing
