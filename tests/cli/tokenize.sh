# tokenize: text and ids from every source, JSON lines both ways, bad lines by number.
. tests/cli/lib.sh

without_bos() { cut -d' ' -f2- "$1"; }

run tamis tokenize -m $model -f $data/prompt-1.txt
expect 0 out "$(without_bos $data/prompt-1.ids)
" err ''
run tamis tokenize -m $model -p "$(cat $data/prompt-1.txt)" --add-bos
expect 0 out_file $data/prompt-1.ids
run_with_input tamis tokenize -m $model --add-bos <$data/prompt-1.txt
expect 0 out_file $data/prompt-1.ids
run_with_input tamis tokenize -m $model --add-bos -f - <$data/prompt-1.txt
expect 0 out_file $data/prompt-1.ids
run tamis tokenize -m $model -p ''
expect 0 out '
'
run tamis tokenize -m $model -p '' --add-bos
expect 0 out '0
'
run tamis tokenize -m $model -p '<｜begin▁of▁sentence｜>'
expect 0 out '0
'
run tamis tokenize -m $model -p '<｜begin▁of▁sentence｜>' --plain
expect 0 out '[1-9]* [1-9]*
'

run tamis tokenize -m $model --decode -p "$(without_bos $data/prompt-1.ids)"
expect 0 out_file $data/prompt-1.txt
run_with_input tamis tokenize -m $model --decode <$data/prompt-1.ids
expect 0 out "<｜begin▁of▁sentence｜>$(cat $data/prompt-1.txt)"
run tamis tokenize -m $model --decode -p '5 2048'
expect 1 out '' err "*-p:1: value seen '2048', allowed: an integer from 0 to 2047*"
run_with_input tamis tokenize -m $model --decode <$data/prompt-1.txt
expect 1 out '' err "*standard input:1: value seen 'And', allowed: an integer*"

# A whole text there and back, through JSON too.
head -c 5000 $model/valid.txt >"$work/text"
run tamis tokenize -m $model -f "$work/text"
cp "$work/out" "$work/ids"
run tamis tokenize -m $model --decode -f "$work/ids"
expect 0 out_file "$work/text"
printf '%s\n' '{"text": "And it came"}' '{"other": 1, "text": ""}' '{"text": "a\u0000b \u00e9\n"}' \
    >"$work/lines"
run tamis tokenize -m $model --json -f "$work/lines"
expect 0 out '{"ids": [[][0-9, ]*[]]}
{"ids": [[][]]}
{"ids": [[][0-9, ]*[]]}
' err ''
cp "$work/out" "$work/id_lines"
run_with_input tamis tokenize -m $model --json --decode <"$work/id_lines"
expect 0 out '{"text": "And it came"}
{"text": ""}
{"text": "a\\u0000b é\\n"}
'
run_with_input tamis tokenize -m $model --json --add-bos <"$work/lines"
expect 0 out '{"ids": [[]0, [0-9, ]*[]]}
{"ids": [[]0[]]}
*'

bad_line() { # LINE ERROR [OPTION]
    printf '{"text": "x", "ids": [1]}\n%s\n' "$1" >"$work/bad"
    run_with_input tamis tokenize -m $model --json ${3:-} <"$work/bad"
    expect 1 out '{*}
' err "tamis: error: standard input:2: $2
"
}
bad_line '{"text": "x"' '*'
bad_line '' '*'
bad_line '[1]' 'not a JSON object'
bad_line '{"ids": [1]}' 'key "text" is missing or not a string'
bad_line '{"text": 5}' 'key "text" is missing or not a string'
bad_line '{"text": "\ud800"}' '*'
bad_line '{"text": "x"}' 'key "ids" is missing or not an array' --decode
bad_line '{"ids": [5, 2048]}' 'ids[[]1[]], allowed: an integer from 0 to 2047' --decode
bad_line '{"ids": ["5"]}' 'ids[[]0[]], allowed: an integer from 0 to 2047' --decode
run tamis tokenize -m $model --json -f "$work/nothing"
expect 1 out '' err '*nothing: No such file or directory*'

# The folder needs nothing but a tokenizer; without one it is a bad model.
mkdir "$work/only"
cp $model/tokenizer.json "$work/only"
run tamis tokenize -m "$work/only" -p And
expect 0 out '[0-9]*
'
run tamis tokenize -m "$work/only" -p And --add-bos
expect 2 out '' err '*--add-bos: tokenizer_config.json names no bos_token*'
rm "$work/only/tokenizer.json"
run tamis tokenize -m "$work/only" -p And
expect 3 out '' err '*tokenizer.json*'
echo '{"model": {"type": "Unigram"}}' >"$work/only/tokenizer.json"
run tamis tokenize -m "$work/only" -p And
expect 3 out '' err '*tokenizer.json*'

done_testing
