# Drafting: the text is that of no drafting, byte for byte; what cannot be drafted is refused by name.
. tests/cli/lib.sh

f32='--temp 0 --kv-cache-dtype f32'
figures='*draft:  * tokens guessed, * right (* %); * tokens per step*'
for how in mtp prompt-lookup; do
    for k in 0 3; do
        run tamis generate -m $model -f $data/prompt-$k.txt -n 64 $f32 --draft $how
        expect 0 out_file $data/greedy-$k.txt err "*draft:  $how, up to 3 tokens per step*memory:$figures"
    done
    for n in 1 15; do
        run tamis generate -m $model --ids $data/prompt-1.ids -n 64 --print-ids -q $f32 --draft $how \
            --draft-tokens $n -t 2
        expect 0 out_file $data/greedy-1.ids err ''
    done
done
run tamis generate -m $model -f $data/prompt-2.txt -n 64 $f32 --draft none
expect 0 out_file $data/greedy-2.txt
expect_true 'no figures without a drafter' sh -c "! grep -q draft '$work/err'"
run env TAMIS_DRAFT=prompt-lookup "$TAMIS_BIN" generate -m $model -f $data/prompt-2.txt -n 64 $f32 \
    --draft-max 5 -ub 6
expect 0 out_file $data/greedy-2.txt err '*prompt-lookup, up to 5 tokens per step*'

run tamis generate -m $model -p And -n 2 $f32 --draft mtp --draft-tokens 1
expect 0 err '*draft:  mtp, up to 1 token per step
*'

# In every profile.
for profile in official ascend; do
    run tamis generate -m $model -f $data/prompt-0.txt -n 48 --temp 0 -q --profile $profile
    cp "$work/out" "$work/$profile"
    for how in mtp prompt-lookup; do
        run tamis generate -m $model -f $data/prompt-0.txt -n 48 --temp 0 --profile $profile --draft $how -t 2
        expect 0 out_file "$work/$profile" err "*profile $profile,$figures"
    done
done

# Sampled: the same text for a seed.
run tamis generate -m $model -p And -n 32 --seed 7 -q
cp "$work/out" "$work/seed7"
for how in mtp prompt-lookup; do
    run tamis generate -m $model -p And -n 32 --seed 7 -q --draft $how --draft-tokens 4 -t 2
    expect 0 out_file "$work/seed7"
done

# Ends in the middle of a step: a stop string, an end-of-text id, a full context, --max-tokens.
run tamis generate -m $model -p 'In the beginning God' -n 64 $f32 --draft mtp --draft-tokens 8 --stop arth
expect 0 out ' of the e' err '*finish: stop*'
run tamis generate -m $model -p And -n 0 $f32 --draft mtp
expect 0 out '' err '*finish: length*draft:  mtp, 0 tokens guessed*'
for n in 1 2 5; do
    run tamis generate -m $model --ids $data/prompt-0.ids -n $n --print-ids $f32 --draft mtp
    expect 0 out "$(cut -d' ' -f1-$n $data/greedy-0.ids)
" err '*finish: length*'
done
for context in 7 8 16; do
    run tamis generate -m $model --ids $data/prompt-0.ids -n -1 -c $context --print-ids $f32 \
        --draft mtp --draft-tokens 15
    expect 0 out "$(cut -d' ' -f1-$((context - 6)) $data/greedy-0.ids)
" err "*finish: context full ($context tokens)*"
done
fifth=$(cut -d' ' -f5 $data/greedy-0.ids)
copy_model eos
edit_model eos generation_config.json "s/\"eos_token_id\": 1/\"eos_token_id\": [1, $fifth]/"
run tamis generate -m "$work/eos" --ids $data/prompt-0.ids -n 9 --print-ids $f32
expect 0 err "*finish: eos (token $fifth)*"
cp "$work/out" "$work/plain"
run tamis generate -m "$work/eos" --ids $data/prompt-0.ids -n 9 --print-ids $f32 --draft mtp --draft-tokens 9
expect 0 out_file "$work/plain" err "*finish: eos (token $fifth)*"
run tamis generate -m $model -p And -n 8 $f32 --draft mtp --json -q
expect 0 out '{"text": *, "finish_reason": "length", "prompt_tokens": 2, "generated_tokens": 8, "drafted_tokens": [1-9]*, "accepted_tokens": *, "index_cache": "none", "profile": "exact"}
'

# Refusals.
run tamis generate -m tests/golden/v4-pro-fp8 --ids $data/prompt-0.ids --draft mtp
expect 2 out '' err '*--draft: the model folder has no MTP block; allowed: none, prompt-lookup*'
copy_model dspark
rm "$work/dspark/model.safetensors"
sed 's/"mtp\.0\.e_proj\.weight"/"mtp.0.main_proj.weight"/; s/"mtp\.0\.hc_attn_scale"/"mtp.0.hc_attn_sc"/' \
    $model/model.safetensors >"$work/dspark/model.safetensors"
run tamis generate -m "$work/dspark" -p And -n 4 $f32 --draft mtp
expect 2 out '' err '*--draft: the model folder has a DSpark drafter, which tamis does not run; allowed: none, prompt-lookup*'
run tamis generate -m "$work/dspark" -f $data/prompt-0.txt -n 64 $f32 --draft prompt-lookup
expect 0 out_file $data/greedy-0.txt
run tamis generate -m $model -p And --draft magic
expect 2 out '' err "*--draft: value seen 'magic', allowed: none or mtp or prompt-lookup*"
for n in 0 16 x; do
    run tamis generate -m $model -p And --draft mtp --draft-tokens $n
    expect 2 out '' err "*--draft-tokens: value seen '$n', allowed: an integer from 1 to 15*"
done
run tamis generate -m $model -p And --draft-tokens 2
expect 2 out '' err '*--draft-tokens: needs --draft mtp or --draft prompt-lookup*'
run tamis generate -m $model -p And --draft mtp -ub 3
expect 2 out '' err '*-ub: value seen 3, allowed: at least 4, for the drafts*'
run tamis logits -m $model --ids $data/prompt-0.ids -o "$work/x.npy" --draft mtp
expect 2 out '' err '*--draft*'

done_testing
