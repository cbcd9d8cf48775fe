# Every option as TAMIS_*, the command line wins, bad values name the variable.
. tests/cli/lib.sh

run env TAMIS_MODEL=$model TAMIS_PROMPT='In the beginning God' TAMIS_MAX_TOKENS=4 TAMIS_TEMP=0 \
    TAMIS_PRINT_IDS=1 TAMIS_KV_CACHE_DTYPE=f32 "$TAMIS_BIN" generate
expect 0 out "$(cut -d' ' -f1-4 $data/greedy-0.ids)
" err '*caches f32*'
run env TAMIS_MAX_TOKENS=4 TAMIS_PRINT_IDS=true "$TAMIS_BIN" generate -m $model -n 2 --temp 0 \
    --kv-cache-dtype f32 -p 'In the beginning God'
expect 0 out "$(cut -d' ' -f1-2 $data/greedy-0.ids)
"
run env TAMIS_PROFILE=official "$TAMIS_BIN" generate -m $model --ids $data/prompt-0.ids -n 2 --temp 0
expect 0 err '*model:  deepseek_v4, profile official, *caches fp8*'
# A flag silences the variables of its group; an empty variable is none; off is off.
run env TAMIS_PROMPT=unused TAMIS_MAX_TOKENS= TAMIS_PRINT_IDS=off TAMIS_QUIET=yes "$TAMIS_BIN" \
    generate -m $model --ids $data/prompt-0.ids -n 2 --temp 0
expect 0 out ' of the' err ''
# Variables of options that a command does not have are not its business.
run env TAMIS_TEMP=hot "$TAMIS_BIN" tokenize -m $model -p x
expect 0

run env TAMIS_THREADS=many "$TAMIS_BIN" generate -m $model -p x
expect 2 out '' err "*TAMIS_THREADS: value seen 'many', allowed: an integer from 1 to 256*"
run env TAMIS_JSON=maybe "$TAMIS_BIN" inspect $model
expect 2 out '' err "*TAMIS_JSON: value seen 'maybe', allowed: 1 or 0*"
run env TAMIS_PROMPT=a TAMIS_FILE=b "$TAMIS_BIN" generate -m $model
expect 2 out '' err '*TAMIS_PROMPT and TAMIS_FILE exclude each other*'
run env TAMIS_CPU=fast "$TAMIS_BIN" generate -m $model -p x
expect 2 out '' err '*TAMIS_CPU*fast*portable*avx2*'

# The last of two flags wins.
run tamis generate -m nowhere -m $model -p 'In the beginning God' -n 64 --max-tokens=2 --temp=0 -q
expect 0 out ' of the' err ''

done_testing
