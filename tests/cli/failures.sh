# Exit codes 1 (running, input, output), 3 (model) and 4 (memory), each with its reason.
. tests/cli/lib.sh

# 1: input and output.
run tamis generate -m $model -f "$work/nothing"
expect 1 out '' err '*nothing: No such file or directory*'
run tamis generate -m $model -f "$work"
expect 1 out '' err '*Is a directory*'
printf '1 2\n3 four\n' >"$work/ids"
run tamis generate -m $model --ids "$work/ids"
expect 1 out '' err "*ids:2: value seen 'four', allowed: an integer from 0 to 2047*"
: >"$work/empty"
run tamis generate -m $model --ids "$work/empty"
expect 1 out '' err '*the prompt has no tokens*'
run tamis generate -m $model --ids $data/golden-ids.txt -c 1024
expect 1 out '' err '*the prompt has 1024 tokens, allowed: 1023*'
if [ -w /dev/full ]; then
    for words in 'generate -p And -n 4' 'inspect' 'tokenize -p And' 'help' '--version' \
        'generate --help' "ppl --ids $work/short"; do
        echo 1 2 3 >"$work/short"
        case $words in
        help | --version | *--help) full="$words" ;;
        *) full="$words -m $model -q" ;;
        esac
        run sh -c "\"\$0\" $full >/dev/full" "$TAMIS_BIN"
        expect 1 out '' err '*error: standard output: *'
    done
fi
run sh -c "\"\$0\" tokenize -m $model -p And >&-" "$TAMIS_BIN"
expect 1 out '' err '*error: standard output: *'
# A file size limit is a failing write, not the end of the process; nothing half written stays.
run sh -c "{ ulimit -f 1; \"\$0\" logits -m $model --ids $data/prompt-1.ids -o '$work/big.npy' -q; echo \$?; } 2>&1 | cat" \
    "$TAMIS_BIN"
expect 0 out '*File too large*
1
'
expect_true 'no file left' [ -z "$(ls "$work" | grep big.npy)" ]
# A reader that goes away ends the run long before its 4000 tokens.
run sh -c "{ \"\$0\" generate -m $model -p And -n 4000 --ignore-eos -q; echo \$? >'$work/code'; } | head -c 1" \
    "$TAMIS_BIN"
expect 0 out '?' err '*error: standard output: Broken pipe*'
expect_true "exit code $(cat "$work/code")" [ "$(cat "$work/code")" = 1 ]

# 3: the model folder.
run tamis generate -m "$work/nowhere" -p x
expect 3 out '' err '*nowhere*'
run tamis inspect "$work/nowhere"
expect 3 out '' err '*nowhere*'
run tamis inspect $model/config.json
expect 3 out '' err '*config.json*'
copy_model llama
edit_model llama config.json 's/"deepseek_v4"/"llama"/; s/DeepseekV4ForCausalLM/LlamaForCausalLM/'
for command in "generate -p x" "logits --ids $data/prompt-0.ids -o $work/x.npy" \
    "ppl --ids $data/prompt-0.ids" inspect; do
    run tamis $command -m "$work/llama"
    expect 3 out '' err '*llama*'
done
copy_model ratio
edit_model ratio config.json 's/^    128,$/    16,/'
run tamis inspect "$work/ratio"
expect 3 out '' err '*compress_ratios*16*'
copy_model truncated
rm "$work/truncated/model.safetensors"
head -c 1000000 $model/model.safetensors >"$work/truncated/model.safetensors"
run tamis generate -m "$work/truncated" -p x
expect 3 out '' err '*model.safetensors*'
copy_model no_weights
rm "$work/no_weights/model.safetensors"
run tamis generate -m "$work/no_weights" -p x
expect 3 out '' err '*model.safetensors*'
copy_model bad_tokenizer
edit_model bad_tokenizer tokenizer.json 's/"BPE"/"WordPiece"/'
run tamis generate -m "$work/bad_tokenizer" -p x
expect 3 out '' err '*WordPiece*'
copy_model bad_json
edit_model bad_json config.json '2s/:/;/'
run tamis generate -m "$work/bad_json" -p x
expect 3 out '' err '*config.json*'

# 4: the plan does not fit. 2: a context that the model does not have.
run tamis generate -m $model -p x --memory-limit 10KiB
expect 4 out '' err '*memory: * of 10.0 KiB allowed*error: the memory plan needs *, allowed: 10.0 KiB; *'
run tamis logits -m $model --ids $data/prompt-0.ids --memory-limit 10KiB -o "$work/x.npy" -q
expect 4 out '' err '*error: the memory plan needs *'
expect_true 'an output file of a refused run' [ ! -e "$work/x.npy" ]
run tamis ppl -m $model --ids $data/prompt-0.ids --memory-limit 0.01MiB -q
expect 4 out '' err '*error: the memory plan needs *'
run tamis generate -m $model -p x -n 1 --memory-limit 1GiB -q
expect 0 err ''
run tamis generate -m $model -p x -c 4097
expect 2 out '' err '*-c: *4097*4096*'
copy_model long
edit_model long config.json 's/"max_position_embeddings": 4096/"max_position_embeddings": 60000000/'
run tamis generate -m "$work/long" -p x -c 60000000 --memory-limit 1GiB
expect 4 out '' err '*error: the memory plan needs * GiB, allowed: 1.00 GiB*'

done_testing
