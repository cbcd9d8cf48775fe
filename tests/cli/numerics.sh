# docs/numerics-table.md says what the program prints.
. tests/cli/lib.sh

run sh tools/numerics_table.sh "$TAMIS_BIN"
expect 0 out_file docs/numerics-table.md err ''
for profile in exact official ascend; do
    expect_true "the page has tables of profile $profile" \
        [ "$(grep -c "^<!-- inspect [a-z0-9/-]* $profile -->$" docs/numerics-table.md)" -eq 2 ]
done
expect_true 'tables are not empty' [ "$(grep -c '^| all | ' docs/numerics-table.md)" -gt 50 ]

done_testing
