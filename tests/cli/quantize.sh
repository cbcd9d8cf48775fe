# tamis-quantize: options, what it prints, and that tamis runs and shows what it writes.
. tests/cli/lib.sh
quantize=$(dirname "$TAMIS_BIN")/tamis-quantize
v32=tests/golden/v32-bf16
glm=tests/golden/glm52-fp8

run "$quantize" --help
expect 0 out 'usage: tamis-quantize -m DIR -o DIR*--calibrate FILE*exit codes: *' err ''
run "$quantize" -m $v32 -h
expect 0 out 'usage: *' err ''

run "$quantize"
expect 2 out '' err 'tamis-quantize: --model is missing, allowed: a folder
'
run "$quantize" -m $v32
expect 2 out '' err 'tamis-quantize: --output is missing, allowed: a folder
'
run "$quantize" -m $v32 -o "$work/x" --quick
expect 2 out '' err 'tamis-quantize: --quick is no option, allowed: see --help
'
run "$quantize" -m $v32 -o
expect 2 out '' err 'tamis-quantize: --output has no value, allowed: see --help
'
run "$quantize" -m $v32 -o "$work/x" --scheme w4a8-dynamic
expect 2 out '' err "tamis-quantize: --scheme is 'w4a8-dynamic', allowed: float, w8a8, w8a8-dynamic, w8a8-mix
"
run "$quantize" -m $v32 -o "$work/x" --attention=int8
expect 2 out '' err "tamis-quantize: --attention is 'int8', allowed: float, w8a8, w8a8-dynamic, w8a8-mix
"
run "$quantize" -m $v32 -o "$work/x" --experts w8a8
expect 2 out '' err "tamis-quantize: --experts is 'w8a8', allowed: float, w8a8-dynamic, w4a8-dynamic
"
for threads in 0 257 x 1x -1; do
    run "$quantize" -m $v32 -o "$work/x" --threads $threads
    expect 2 out '' err "tamis-quantize: --threads is '$threads', allowed: 1..256
"
done
run "$quantize" -m $v32 -o "$work/x" --shard-mib=0
expect 2 out '' err "tamis-quantize: --shard-mib is '0', allowed: 1..1048576
"
run "$quantize" -m tests/none -o "$work/x"
expect 1 out '' err 'tamis-quantize: tests/none/config.json: *'
expect_true 'nothing was made' [ ! -e "$work/x" ]
run "$quantize" -m $v32 -o tests/golden
expect 1 out '' err 'tamis-quantize: tests/golden: holds *, allowed: a new or an empty folder
'

# A static folder with int4 experts, in shards.
echo '5 6 7 8 9 10 11 12' >"$work/few.ids"
run "$quantize" --model=$glm --output "$work/glm" --attention w8a8 --experts=w4a8-dynamic \
    --calibrate "$work/few.ids" --shard-mib 1 --threads 2
expect 0 out "$work/glm: 2 files of tensors, * bytes
  W4A8_DYNAMIC 96
  W8A8_DYNAMIC 34
  W8A8         24
  FLOAT        61
  calibrated with 8 tokens
" err ''
run "$quantize" -m "$work/glm" -o "$work/again"
expect 1 out '' err 'tamis-quantize: */quant_model_description.json: is there, allowed: a folder that is not quantised yet (floats, FP8, FP4)
'
run tamis inspect "$work/glm"
expect 0 out '*attention *I8, W8A8 *experts *I4, W4A8_DYNAMIC *mtp *I4, W4A8_DYNAMIC *' err ''
run tamis inspect "$work/glm" --profile official
expect 3 out '' err '*is I8 (W8A8), allowed: *in profile official*'

# The demo model's twin talks.
run "$quantize" -m $model -o "$work/demo"
expect 0 out "$work/demo: 1 file of tensors, *
  W8A8_DYNAMIC 190
  FLOAT        118
" err ''
for profile in exact ascend; do
    run tamis generate -m "$work/demo" --profile $profile -p 'And the king' -n 8 --temperature 0
    expect 0 out '?*'
done

# A rotated folder: the main model runs, its MTP block does not.
sed '1s/.*/{ "is_rot_used": true,/' "$work/demo/quant_model_description.json" >"$work/rotated.json"
mv "$work/rotated.json" "$work/demo/quant_model_description.json"
run tamis inspect "$work/demo"
expect 0 out '*drafter     rotated mtp, not run*' err ''
run tamis generate -m "$work/demo" -p 'And the king' -n 2 --temperature 0
expect 0 out '?*'
run tamis generate -m "$work/demo" -p 'And the king' -n 2 --draft mtp
expect 2 out '' err '*is rotated (is_rot_used)*'

# The file that says how int8 is meant is missing.
rm "$work/demo/quant_model_description.json"
run tamis inspect "$work/demo"
expect 3 out '' err '*dtype is I8*quant_model_description.json*'

done_testing
