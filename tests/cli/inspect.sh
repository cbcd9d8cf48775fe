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
KV cache    bf16: *bytes per token, all layers (rings: *
            f32: *
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
of_cache() { # KEY N: of the N-th format of the caches
    sed -n "s/^      \"$1\": \([0-9]*\),*\$/\1/p" "$work/out" | sed -n "$2p"
}
expect_true 'f32 caches take twice the bytes of bf16' \
    [ "$(of_cache bytes_per_token 2)" -eq $((2 * $(of_cache bytes_per_token 1))) ]
expect_true 'ring bytes' [ "$(of_cache ring_bytes 2)" -gt "$(of_cache ring_bytes 1)" ]

# A profile adds its arithmetic, stage by stage; the words behind the table are those of the exact one.
run tamis inspect $model --profile official
expect 0 out 'family      deepseek_v4, profile official
*KV cache    fp8: *rows v4-fp8 of 104, index keys index-fp4 of 34
*numerics, profile official
layers *stage *weights *input *output *cache rows *class *source
*all *Q1 wq_a *F8_E4M3 + F8_E8M0 per 128x128 *FP8, groups of 128 *bf16 *ordered *model.py*
*experts *expert w1, w3 *F4_E2M1 + F8_E8M0 per 1x32 *FP8, groups of 128 *
*mtp *e_proj, h_proj*' err ''
run tamis inspect $model --profile ascend
expect 0 out '*KV cache    bf16: *index keys index-int8 of 66
            fp8: *rows v4-a5 of 128*
*numerics, profile ascend
*Q1 wq_a *FP8, groups of 32 *' err ''
run tamis inspect $model --profile official --json
expect 0 out '{*"profile": "official"*"caches": *"kv_cache_dtype": "fp8"*"numerics": *"stage": "Q1 wq_a"*"class": "ordered"*}
' err ''
run tamis inspect $model --profile best
expect 2 out '' err "*--profile: value seen 'best', allowed: exact or official or ascend
*"

run tamis inspect tests/golden/glm52-fp8
expect 0 out "*            (attention/feed-forward; shared: uses an earlier layer's selection)
*tokenizer   none: ids only
*" err ''
run tamis inspect tests/golden/glm52-fp8 --json
expect 0 out '*"has_tokenizer": false*' err ''

# What a profile cannot run is refused by both names.
run tamis inspect tests/golden/v32-fp8 --profile official
expect 3 out '' err '*index_head_dim is 40, must be a power of two (profile official*'

done_testing
