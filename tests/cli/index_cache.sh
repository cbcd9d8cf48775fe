# IndexCache flags: obeyed, stated as an approximation, refused where a layer has no indexer.
. tests/cli/lib.sh

f32='--temp 0 --kv-cache-dtype f32'
warning='tamis: warning: index:  1 layer uses an earlier layer*s selection (IndexCache): an approximation, config.json does not ask for it
'
note="*${warning}*memory:*"
run tamis generate -m $model -f $data/prompt-0.txt -n 64 $f32 --index-topk-pattern FF
expect 0 out_file $data/greedy-0.txt
expect_true 'nothing is shared' sh -c "! grep -q IndexCache '$work/err'"
run tamis generate -m $model -f $data/prompt-0.txt -n 64 $f32 --index-topk-freq 1
expect 0 out_file $data/greedy-0.txt err '*index:  0 layers share: *memory:*'
run tamis generate -m $model -f $data/prompt-0.txt -n 2 $f32 --index-topk-pattern FS
expect 0 err "$note"

# Of three layers the first two select for themselves whatever the frequency.
v32=tests/golden/v32-fp8
echo 1 2 3 4 5 >"$work/ids"
run env TAMIS_INDEX_TOPK_FREQ=2 "$TAMIS_BIN" ppl -m $v32 --ids "$work/ids"
expect 0 err "$note"
run tamis logits -m $v32 --ids "$work/ids" -o "$work/x.npy" --index-topk-freq 2 -q
expect 0 err "$warning"
run tamis ppl -m $v32 --ids "$work/ids" --json -q --index-topk-freq 2
expect 0 out '{*, "index_cache": "approximate", *}
' err "$warning"
run tamis ppl -m $v32 --ids "$work/ids" --json -q --index-topk-freq 1
expect 0 out '{*, "index_cache": "none", *}
' err ''

glm=tests/golden/glm52-fp8
run tamis generate -m $glm --ids "$work/ids" -n 2 $f32
expect 0 err '*index:  3 layers use an earlier layer*s selection (IndexCache), as config.json says*'
run tamis generate -m $glm --ids "$work/ids" -n 2 $f32 --json -q
expect 0 out '{*, "index_cache": "config", *}
' err ''
run tamis generate -m $glm --ids "$work/ids" -n 2 $f32 --index-topk-pattern FSSSFS
expect 0 err '*index:  4 layers *an approximation*'
run tamis generate -m $glm --ids "$work/ids" -n 2 $f32 --index-topk-pattern FFFSFS
expect 2 out '' err '*--index-topk-pattern: *layer 2 *no indexer*'
run tamis generate -m $glm --ids "$work/ids" -n 2 $f32 --index-topk-freq 1
expect 2 out '' err '*--index-topk-freq: *layer 2 *no indexer*'
for pattern in SF FX F,S FFF f; do
    run tamis generate -m $model -p And --index-topk-pattern $pattern
    expect 2 out '' err "*--index-topk-pattern: *\"$pattern\", allowed: F and S, F first, at most 2*"
done
run tamis generate -m $model -p And --index-topk-pattern FS --index-topk-freq 2
expect 2 out '' err '*exclude each other*'
run tamis generate -m $model -p And --index-topk-freq 0
expect 2 out '' err '*--index-topk-freq: value seen*'

done_testing
