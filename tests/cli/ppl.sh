# ppl: the golden mean NLL, windows, bytes, JSON.
. tests/cli/lib.sh

# mean_nll and held-out figures of models/demo/golden.safetensors.
mean_nll=3.846419557215298
close_to() { # VALUE EXPECTED TOLERANCE
    awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(a != "" && d <= t && -d <= t) }'
}
json() { # KEY: its number in the one-line object on standard output
    sed -n "s/.*\"$1\": \([0-9.e-]*\).*/\1/p" "$work/out"
}

run tamis ppl -m $model --ids $data/golden-ids.txt --kv-cache-dtype f32 --json -q
expect 0 out '{"nats_per_token": *, "bits_per_byte": *, "bytes": *, "perplexity": *, "tokens": 1023, "windows": 1, "window": 1024, "index_cache": "none", "profile": "exact"}
' err ''
expect_true "nats per token $(json nats_per_token), golden $mean_nll" \
    close_to "$(json nats_per_token)" $mean_nll 1e-4

# Of the same ids the BOS and the next 200, from ids and from their text in one window behind a BOS,
# with and without the BOS spelled: the same mean, over the bytes of the text.
tr '\n' ' ' <$data/golden-ids.txt | cut -d' ' -f1-201 >"$work/ids"
cut -d' ' -f2- "$work/ids" >"$work/rest"
run tamis tokenize -m $model --decode -f "$work/rest"
cp "$work/out" "$work/text"
run tamis ppl -m $model --ids "$work/ids" --kv-cache-dtype f32 --json -q
expect 0 out '*"tokens": 200, "windows": 1, "window": 201, *'
nats=$(json nats_per_token)
run tamis ppl -m $model -f "$work/text" --kv-cache-dtype f32 --json -q
expect 0 out '*"tokens": 200, "windows": 1, "window": 1024, "index_cache": "none", "profile": "exact"}*'
expect_true "from text: $(json nats_per_token), from ids: $nats" [ "$(json nats_per_token)" = "$nats" ]
expect_true "bytes $(json bytes)" [ "$(json bytes)" = "$(wc -c <"$work/text" | tr -d ' ')" ]
expect_true 'bits per byte' close_to "$(json bits_per_byte)" \
    "$(awk -v n="$nats" -v b="$(json bytes)" 'BEGIN { print n * 200 / log(2) / b }')" 1e-5
cp "$work/out" "$work/plain"
{
    printf '<｜begin▁of▁sentence｜>'
    cat "$work/text"
} >"$work/spelled"
run tamis ppl -m $model -f "$work/spelled" --kv-cache-dtype f32 --json -q
expect 0 out_file "$work/plain"
run tamis ppl -m $model -f "$work/text" --json -q -ub 50 -t 3
expect_true "bf16 caches: $(json nats_per_token)" close_to "$(json nats_per_token)" "$nats" 0.02

# Windows: N tokens behind a BOS each, so all are predicted; the default is 1024 or the context.
run tamis ppl -m $model -f "$work/text" --window 60 --json -q
expect 0 out '*"tokens": 200, "windows": 4, "window": 60, *'
cp "$work/out" "$work/w60"
run tamis ppl -m $model -f "$work/text" --window 60 -ub 7 -t 1 --json -q
expect 0 out_file "$work/w60"
run tamis ppl -m $model -f "$work/text" -c 70 --json -q
expect 0 out '*"tokens": 200, "windows": 3, "window": 70, *'
run tamis ppl -m $model -f "$work/text" --window 100
expect 0 out 'nats per token *
bits per byte  *
perplexity     *
tokens         200 predicted, in 2 windows of 100
' err '*model:*memory:*'
run tamis ppl -m $model -f "$work/text" -c 70 --window 71
expect 2 out '' err '*--window: longer than the context*'
run tamis ppl -m $model -f "$work/text" --window 1
expect 2 out '' err "*--window: value seen '1', allowed: an integer from 2*"

# Several profiles in one run: each as it is alone, compared with the first one.
run tamis ppl -m $model -f "$work/text" --profile official --json -q
expect 0 out '{*"profile": "official"}
'
official=$(json nats_per_token)
run tamis ppl -m $model -f "$work/text" --profile exact,official,exact --json -q
expect 0 out '{"bytes": *, "tokens": 200, "windows": 1, *"profiles": [[]{"profile": "exact", "kv_cache_dtype": "bf16", *}, {"profile": "official", "kv_cache_dtype": "fp8", *}, {"profile": "exact", *, "same_argmax": 1.0, "mean_nll_difference": 0.0, "max_nll_difference": 0.0, "seconds": *}[]]}
' err ''
tr '{' '\n' <"$work/out" >"$work/runs"
of_run() { # PROFILE KEY
    sed -n "s/^\"profile\": \"$1\".*\"$2\": \([0-9.e-]*\).*/\1/p" "$work/runs" | head -n 1
}
expect_true "official alone $official, among others $(of_run official nats_per_token)" \
    [ "$(of_run official nats_per_token)" = "$official" ]
expect_true "nats differ by less than the mean difference of tokens" \
    close_to "$official" "$(of_run exact nats_per_token)" "$(of_run official mean_nll_difference)"
expect_true "mean difference $(of_run official mean_nll_difference) is below the largest" \
    awk -v a="$(of_run official mean_nll_difference)" -v b="$(of_run official max_nll_difference)" \
    'BEGIN { exit !(a > 0 && a < b) }'
run tamis ppl -m $model -f "$work/text" --window 100 --profile exact,ascend
expect 0 out 'profile   caches *tokens *same argmax *mean |d nll| *tok/s
exact     bf16 * 200 * 100.00 % *0.000000 *0.000000 *
ascend    bf16 * 200 * % *
tokens         200 predicted, in 2 windows of 100
' err '*profile exact*profile ascend*'
# What one of them cannot run is refused before anything runs.
run tamis ppl -m $model -f "$work/text" --profile exact,official --kv-cache-dtype bf16
expect 2 out '' err 'tamis: error: ppl: --kv-cache-dtype: *kv_cache_dtype is BF16, allowed F8_E4M3 (profile official)
*'
echo 1 2 3 >"$work/few"
run tamis ppl -m tests/golden/v32-fp8 --ids "$work/few" --profile exact,official
expect 3 out '' err 'tamis: error: *index_head_dim is 40, must be a power of two (profile official*'

# Without add_bos_token the first token of a window is given, not predicted.
copy_model no_bos
edit_model no_bos tokenizer_config.json 's/"add_bos_token": true/"add_bos_token": false/'
run tamis ppl -m "$work/no_bos" -f "$work/text" --window 100 --json -q
expect 0 out '*"tokens": 198, "windows": 2, "window": 100, *'
rm "$work/no_bos/tokenizer.json"
run tamis ppl -m "$work/no_bos" --ids "$work/ids" --json -q
expect 0 out '{"nats_per_token": *, "perplexity": *, "tokens": 200, "windows": 1, "window": 201, "index_cache": "none", "profile": "exact"}
'
run tamis ppl -m "$work/no_bos" -f "$work/text"
expect 2 out '' err '*-f: the model folder has no tokenizer.json*'

: >"$work/empty"
run tamis ppl -m $model -f "$work/empty" -q
expect 1 out '' err '*the text has 0 tokens, allowed: at least 1*'
run tamis ppl -m $model -f "$work/missing" -q
expect 1 out '' err '*missing: No such file or directory*'

done_testing
