# Ctrl-C, SIGTERM, SIGHUP: the step in progress ends, the text so far is complete, exit 128 + the
# signal's number, no half-written file.
. tests/cli/lib.sh

# Starts a command in the background with the signals as a terminal would have them, waits until the
# file $1 is there and not empty (20 s at most), sends $signal and waits for the end.
signal=INT
interrupt_when() {
    awaited=$1
    shift
    command="$*"
    rm -f "$work/out" "$work/err"
    env --default-signal=INT,TERM,HUP "$@" </dev/null >"$work/out" 2>"$work/err" &
    pid=$!
    tries=0
    while [ ! -s "$awaited" ] && [ $tries -lt 400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    [ $tries -lt 400 ] || code=none die "nothing in $awaited after 20 s"
    kill -$signal $pid
    wait $pid
    code=$?
}

interrupt_when "$work/out" "$TAMIS_BIN" generate -m $model -p And -n -1 --ignore-eos --temp 0 --print-ids
expect 130 out '[0-9]*
' err '*finish: interrupted*speed:*'
n=$(wc -w <"$work/out")
expect_true "$n ids" [ "$n" -ge 1 ] && [ "$n" -lt 4000 ]
cp "$work/out" "$work/interrupted"
run tamis generate -m $model -p And -n "$n" --ignore-eos --temp 0 --print-ids -q
expect 0 out_file "$work/interrupted"

interrupt_when "$work/out" "$TAMIS_BIN" generate -m $model -p And -n -1 --ignore-eos --temp 0
expect 130 out '?*' err '*finish: interrupted*'

# Between the steps of a long input: the report on standard error says that they have begun.
for i in 1 2 3; do cat $data/golden-ids.txt; done >"$work/ids"
interrupt_when "$work/err" "$TAMIS_BIN" generate -m $model --ids "$work/ids" -ub 1 -n 1
expect 130 out '' err '*finish: interrupted*'
interrupt_when "$work/err" "$TAMIS_BIN" ppl -m $model --ids "$work/ids" -ub 1
expect 130 out '' err '*
tamis: interrupted
'
mkdir "$work/dir"
interrupt_when "$work/err" "$TAMIS_BIN" logits -m $model --ids "$work/ids" -ub 1 -o "$work/dir/x.npy"
expect 130 out '' err '*
tamis: interrupted
'
expect_true 'a file was left' [ -z "$(ls -A "$work/dir")" ]

# What ends programs from outside (timeout, a service manager, a closed terminal).
for case in 'TERM 143' 'HUP 129'; do
    signal=${case% *}
    interrupt_when "$work/err" "$TAMIS_BIN" logits -m $model --ids "$work/ids" -ub 1 -o "$work/dir/x.npy"
    expect "${case#* }" out '' err '*
tamis: interrupted
'
    expect_true "SIG$signal left a file" [ -z "$(ls -A "$work/dir")" ]
    interrupt_when "$work/out" "$TAMIS_BIN" generate -m $model -p And -n -1 --ignore-eos --temp 0
    expect "${case#* }" out '?*' err '*finish: interrupted*'
done
signal=INT
# Under nohup SIGHUP is ignored.
rm -f "$work/err"
env --ignore-signal=HUP "$TAMIS_BIN" logits -m $model --ids $data/prompt-0.ids -ub 1 \
    -o "$work/dir/x.npy" </dev/null >"$work/out" 2>"$work/err" &
pid=$!
while [ ! -s "$work/err" ] && kill -0 $pid 2>/dev/null; do sleep 0.05; done
kill -HUP $pid 2>/dev/null
command='logits, SIGHUP ignored'
wait $pid
code=$?
expect 0 out ''
expect_true 'the file is there' [ -s "$work/dir/x.npy" ]

# While waiting for the keyboard.
mkfifo "$work/fifo"
(sleep 5 >"$work/fifo") &
writer=$!
echo started >"$work/started"
env --default-signal=INT "$TAMIS_BIN" tokenize -m $model -f "$work/fifo" >"$work/out" 2>"$work/err" &
pid=$!
sleep 0.5
kill -INT $pid
command='tokenize -f fifo'
wait $pid
code=$?
kill $writer 2>/dev/null
expect 130 out ''

done_testing
