# logits: the .npy file's bytes, positions in any order, nothing half written, bad input by line.
. tests/cli/lib.sh

ids="$work/ids"
head -n 3 $data/golden-ids.txt >"$ids" # 48 ids
row_bytes=8192                         # 2048 f32

row() { # FILE N: row N (from 0) of a .npy file with a header of 128 bytes
    tail -c +$((129 + $2 * row_bytes)) "$1" | head -c $row_bytes
}
same_row() { # FILE N FILE N
    row "$1" "$2" >"$work/row1"
    row "$3" "$4" >"$work/row2"
    cmp -s "$work/row1" "$work/row2"
}
size_is() { [ "$(wc -c <"$1")" -eq "$2" ]; }

run tamis logits -m $model --ids "$ids" -o "$work/all.npy"
expect 0 out '' err '*memory:*'
expect_true 'size of 48 rows' size_is "$work/all.npy" $((128 + 48 * row_bytes))
magic=$(head -c 10 "$work/all.npy" | od -An -tx1 | tr -d ' \n')
expect_true "magic, version, header length: $magic" [ "$magic" = 934e554d505901007600 ]
header=$(head -c 128 "$work/all.npy" | tail -c +11)
expect_true "header: $header" \
    [ "$(echo "$header" | sed 's/ *$//')" = "{'descr': '<f4', 'fortran_order': False, 'shape': (48, 2048), }" ]
expect_true 'the header ends with a newline' \
    [ "$(head -c 128 "$work/all.npy" | tail -c 1 | od -An -tx1 | tr -d ' ')" = 0a ]

# The same bytes for any step size, thread count and CPU level.
for options in '-ub 1' '-ub 7 -t 3' '-ub 512 -t 1 -c 100' '-t 2'; do
    run tamis logits -m $model --ids "$ids" -o "$work/other.npy" -q $options
    expect 0 out '' err ''
    expect_true "other bytes with $options" cmp -s "$work/all.npy" "$work/other.npy"
done
run env TAMIS_CPU=portable "$TAMIS_BIN" logits -m $model --ids "$ids" -o "$work/other.npy" -q
expect 0
expect_true 'other bytes with TAMIS_CPU=portable' cmp -s "$work/all.npy" "$work/other.npy"
run tamis logits -m $model --ids "$ids" -o "$work/f32.npy" -q --kv-cache-dtype f32
expect 0
expect_true 'bf16 and f32 caches give the same bytes' sh -c "! cmp -s '$work/all.npy' '$work/f32.npy'"

run tamis logits -m $model --ids "$ids" -o "$work/last.npy" --positions last -q
expect 0
expect_true 'size of 1 row' size_is "$work/last.npy" $((128 + row_bytes))
expect_true 'the last row' same_row "$work/last.npy" 0 "$work/all.npy" 47
printf '40\n3\t3 0\n' >"$work/positions"
run tamis logits -m $model --ids "$ids" -o "$work/some.npy" --positions "$work/positions" -ub 5 -q
expect 0
expect_true 'size of 4 rows' size_is "$work/some.npy" $((128 + 4 * row_bytes))
expect_true 'row 0 is position 40' same_row "$work/some.npy" 0 "$work/all.npy" 40
expect_true 'row 1 is position 3' same_row "$work/some.npy" 1 "$work/all.npy" 3
expect_true 'row 2 is position 3' same_row "$work/some.npy" 2 "$work/all.npy" 3
expect_true 'row 3 is position 0' same_row "$work/some.npy" 3 "$work/all.npy" 0
run tamis logits -m $model --ids "$ids" -o /dev/stdout --positions last -q
expect 0 out_file "$work/last.npy"
ln -s "$work/target.npy" "$work/link.npy"
run tamis logits -m $model --ids "$ids" -o "$work/link.npy" --positions last -q
expect 0
expect_true 'a link is followed, not replaced' \
    sh -c "[ -L '$work/link.npy' ] && cmp -s '$work/target.npy' '$work/last.npy'"

# Bad input: file, line, value. No output file, no temporary one.
mkdir "$work/out_dir"
refused() { # IDS-TEXT POSITIONS-TEXT ERROR
    printf "$1" >"$work/bad_ids"
    printf "$2" >"$work/bad_positions"
    run tamis logits -m $model --ids "$work/bad_ids" --positions "$work/bad_positions" \
        -o "$work/out_dir/x.npy" -q
    expect 1 out '' err "$3"
    expect_true 'a file was left' [ -z "$(ls -A "$work/out_dir")" ]
}
refused '1 2\n\n3 x4 5\n' '0' "*bad_ids:3: value seen 'x4', allowed: an integer from 0 to 2047*"
refused '1 2048' '0' "*bad_ids:1: value seen '2048', allowed: an integer from 0 to 2047*"
refused '1 -1' '0' "*bad_ids:1: value seen '-1', *"
refused '1 2.0' '0' "*bad_ids:1: value seen '2.0', *"
refused '1 99999999999999999999999999' '0' "*bad_ids:1: value seen '99999999999999999999999999', *"
refused ' \n' '0' '*bad_ids: no ids, allowed: at least 1*'
refused '1 2' '0\n2' "*bad_positions:2: value seen '2', allowed: an integer from 0 to 1*"
refused '1 2' '' '*bad_positions: no positions, allowed: at least 1*'
run tamis logits -m $model --ids "$work/nothing" -o "$work/out_dir/x.npy" -q
expect 1 out '' err '*nothing: No such file or directory*'
run tamis logits -m $model --ids "$ids" -o "$work/no_dir/x.npy" -q
expect 1 out '' err '*no_dir/x.npy: No such file or directory*'
run tamis logits -m $model --ids "$ids" -o "$work/out_dir" -q
expect 1 out '' err '*out_dir: Is a directory*'
run tamis logits -m $model --ids "$ids" -c 47 -o "$work/out_dir/x.npy" -q
expect 1 out '' err '*ids: 48 ids, allowed: 47 (the context length)*'
if [ -w /dev/full ]; then
    run tamis logits -m $model --ids "$ids" -o /dev/full -q
    expect 1 out '' err '*/dev/full: No space left on device*'
fi
# An existing file stays as it is until the new one is complete.
echo old >"$work/out_dir/x.npy"
run tamis logits -m $model --ids "$work/bad_ids" --positions "$work/bad_positions" \
    -o "$work/out_dir/x.npy" -q
expect 1
expect_true 'the old file was touched' [ "$(cat "$work/out_dir/x.npy")" = old ]

done_testing
