# Wrong command lines: exit 2, nothing on standard output, the flag, the value seen and allowed.
. tests/cli/lib.sh

run tamis
expect 2 out '' err 'usage: tamis COMMAND*generate*logits*ppl*tokenize*inspect*'
run tamis generat
expect 2 out '' err "*unknown command 'generat'; did you mean 'generate'?*usage:*"
run tamis zzzzzz
expect 2 out '' err "*unknown command 'zzzzzz'
usage:*"
run tamis help nothing
expect 2 out '' err "*unknown command 'nothing'*"

run tamis generate
expect 2 out '' err '*generate: option --model DIR is missing*tamis help generate*'
run tamis generate -m $model
expect 2 out '' err '*an input is missing: -p TEXT, -f FILE or --ids FILE*'
run tamis generate -m $model -p x -f y
expect 2 out '' err '*-p and -f exclude each other*'
run tamis ppl -m $model
expect 2 out '' err '*an input is missing: -f FILE or --ids FILE*'
run tamis logits -m $model -o x.npy
expect 2 out '' err '*option --ids FILE is missing*'
run tamis logits -m $model --ids x
expect 2 out '' err '*option --output OUT.npy is missing*'
run tamis inspect
expect 2 out '' err '*option --model DIR is missing*'
run tamis inspect $model more
expect 2 out '' err "*unexpected argument 'more'*"
run tamis generate -m $model words
expect 2 out '' err "*unexpected argument 'words'*"

run tamis generate -m $model -p x --max-model-length 5
expect 2 out '' err "*unknown option '--max-model-length'; did you mean '--max-model-len'?*"
run tamis generate -m $model -p x --tmep=1
expect 2 out '' err "*unknown option '--tmep'; did you mean '--temp'?*"
run tamis generate -m $model -p x --wholly-unknown
expect 2 out '' err "*unknown option '--wholly-unknown'
*"
run tamis logits -m $model --temp 1
expect 2 out '' err "*option '--temp' does not belong to this command, but to: generate*"
run tamis generate -m $model -p x --window 3
expect 2 out '' err "*option '--window' does not belong to this command, but to: ppl*"
run tamis generate -m $model -p
expect 2 out '' err '*-p: a value is missing: TEXT*'
run tamis generate -m $model -p x --print-ids=1
expect 2 out '' err "*--print-ids: value seen '1', allowed: none, it is a switch*"
run tamis inspect ''
expect 2 out '' err "*inspect: DIR: value seen '', allowed: a text that is not empty*"
run tamis logits -m $model --ids $data/prompt-1.ids -o ''
expect 2 out '' err "*-o: value seen '', allowed: a text that is not empty*"

# One bad value of each kind.
bad_value() { # WORDS VALUE ALLOWED
    run tamis generate -m $model -p x "$1" "$2"
    expect 2 out '' err "*generate: $1: value seen '$2', allowed: $3
*"
}
bad_value -m '' 'a text that is not empty'
bad_value -n abc 'an integer from -1 to 2147483647'
bad_value -n -2 'an integer from -1 to 2147483647'
bad_value -n '' 'an integer from -1 to 2147483647'
bad_value -n ' 3' 'an integer from -1 to 2147483647'
bad_value -n 3x 'an integer from -1 to 2147483647'
bad_value -t 0 'an integer from 1 to 256'
bad_value -t 257 'an integer from 1 to 256'
bad_value -c 99999999999999999999 'an integer from 1 to 2147483647'
bad_value -ub 0 'an integer from 1 to 1048576'
bad_value --temp -1 'a number from 0 to 1000'
bad_value --temp nan 'a number from 0 to 1000'
bad_value --temp inf 'a number from 0 to 1000'
bad_value --temperature hot 'a number from 0 to 1000'
bad_value --top-k -2 'an integer from -1 to 2147483647'
bad_value --top-p 1.01 'a number from 0 to 1'
bad_value --min-p -0.1 'a number from 0 to 1'
bad_value --seed -2 'an integer from 0 to 9223372036854775807, or -1 (random)'
bad_value -s 9223372036854775808 'an integer from 0 to 9223372036854775807, or -1 (random)'
bad_value -s '' 'an integer from 0 to 9223372036854775807, or -1 (random)'
bad_value --kv-cache-dtype f16 'auto or bf16 or f32 or fp8 or int8'
bad_value --profile exact,official 'exact or official or ascend'
bad_value --memory-limit 0 '*such as 1.5GiB'
bad_value --memory-limit 5XB '*such as 1.5GiB'
bad_value --memory-limit 1e30GiB '*such as 1.5GiB'
bad_value --stop '' 'a text that is not empty'

# What a profile does not have, by both names.
for pair in exact:fp8:F8_E4M3:'BF16, F32' exact:int8:I8:'BF16, F32' official:bf16:BF16:F8_E4M3 \
    ascend:f32:F32:'BF16, F8_E4M3'; do
    IFS=: read -r profile type seen allowed <<END
$pair
END
    run tamis generate -m $model -p x --profile "$profile" --kv-cache-dtype "$type"
    expect 2 out '' err "*generate: --kv-cache-dtype: *kv_cache_dtype is $seen, allowed $allowed (profile $profile)
*"
done
run tamis ppl -m $model --ids $data/golden-ids.txt --profile exact,
expect 2 out '' err "*--profile: value seen 'exact,', allowed: exact or official or ascend, or several with commas
*"

run tamis tokenize -m $model --json -p x
expect 2 out '' err '*-p: not together with --json*'
run tamis tokenize -m $model --decode --plain -p 1
expect 2 out '' err '*--plain: not together with --decode*'
run tamis tokenize -m $model --decode --add-bos -p 1
expect 2 out '' err '*--add-bos: not together with --decode*'
run tamis generate -m $model -p x --json --print-ids
expect 2 out '' err '*--print-ids: not together with --json*'
run tamis ppl -m $model --ids $data/golden-ids.txt --window 8
expect 2 out '' err '*--window: not together with --ids*'
run tamis generate -m $model -p x --stop "$(printf '\377')"
expect 2 out '' err '*--stop: the string is not UTF-8*'

done_testing
