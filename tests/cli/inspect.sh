# inspect: the table and the same facts as JSON; its totals equal the safetensors header's.
. tests/cli/lib.sh

run tamis inspect $model
expect 0 out 'family      deepseek_v4, profile exact
*vocabulary 2048, hidden size 128, context at most 4096
layers      5: 0-1 window/hash, 2 C4/learned, 3 C128/learned, 4 C4/learned
            (attention/feed-forward)
*drafter     mtp block
tokenizer   tokenizer.json
*group *format *tensors *parameters *bytes*
router *I64 * 2 * 0 *65536
*mtp *F8_E4M3*
*total *
KV cache *bytes per token bf16*
not run     0 tensors
' err ''
cp "$work/out" "$work/table"
run tamis inspect --model $model
expect 0 out_file "$work/table"

run tamis inspect $model --json
expect 0 out '{*"family": "deepseek_v4"*"drafter": "mtp"*"has_tokenizer": true*"layers": *"kind": "window"*"kind": "C4"*"kind": "C128"*"groups": *"unused": *}
' err ''
number() { sed -n "s/^  \"$1\": \([0-9]*\),*\$/\1/p" "$work/out"; }
sum() { # KEY: over the groups
    sed -n "s/^      \"$1\": \([0-9]*\),*\$/\1/p" "$work/out" | awk '{ n += $1 } END { print n }'
}
# All bytes behind the header are tensors: file size less 8 less the header's length.
header=$(head -c 8 $model/model.safetensors | od -An -tu8 | tr -d ' ')
file=$(wc -c <$model/model.safetensors | tr -d ' ')
expect_true "bytes $(number bytes)" [ "$(number bytes)" -eq $((file - 8 - header)) ]
tensors=$(tail -c +9 $model/model.safetensors | head -c "$header" | tr '{' '\n' | grep -c '"data_offsets"')
expect_true "tensors $(number tensors), header $tensors" [ "$(number tensors)" -eq "$tensors" ]
for key in tensors parameters bytes; do
    expect_true "$key: groups sum to $(sum $key), total $(number $key)" \
        [ "$(sum $key)" -eq "$(number $key)" ]
done
# models/demo/README.md: 3.54 M + 0.59 M.
expect_true "parameters $(number parameters)" [ "$(number parameters)" -eq 4137798 ]
bf16=$(number kv_bytes_per_token_bf16)
expect_true 'f32 caches take twice the bytes of bf16' \
    [ "$(number kv_bytes_per_token_f32)" -eq $((2 * bf16)) ]
expect_true 'ring bytes' [ "$(number ring_bytes_f32)" -gt "$(number ring_bytes_bf16)" ]

run tamis inspect tests/golden/glm52-fp8
expect 0 out "*            (attention/feed-forward; shared: uses an earlier layer's selection)
*tokenizer   none: ids only
*" err ''
run tamis inspect tests/golden/glm52-fp8 --json
expect 0 out '*"has_tokenizer": false*' err ''

done_testing
