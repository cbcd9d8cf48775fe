#!/bin/sh
# Runs the tests of a build folder and counts single test cases. usage: run_tests.sh BUILD_DIR
# Last line: "N passed, N failed"; exit code 1 if anything failed. A program that ends without its
# cmocka summary (crash, sanitizer report, time limit, not built) counts as one more failure, and a
# test that is not a cmocka program as one case.
set -eu
build=${1:?usage: run_tests.sh BUILD_DIR}
log=$build/Testing/Temporary/LastTest.log              # output of every program
failures=$build/Testing/Temporary/LastTestsFailed.log  # lines "NUMBER:PROGRAM", none if all is well
rm -f "$log" "$failures"

ctest_status=0
ctest --test-dir "$build" --output-on-failure --parallel "${JOBS:-$(nproc)}" || ctest_status=$?
[ -f "$log" ] || { echo "no test ran"; echo "0 passed, 1 failed"; exit 1; }
[ -f "$failures" ] || : > "$failures"

awk -v ctest_status="$ctest_status" -v failures="$failures" '
function finish(    ok) {
    if (name == "") return
    ok = !(name in has_failed)
    if (ok && cases == 0) passed++
    if (!ok && case_failures == 0) { failed++; print "failed: " name }
    name = ""
}
FILENAME == failures { sub(/^[0-9]+:/, ""); has_failed[$0] = 1; next }
/^[0-9]+\/[0-9]+ Testing: / { finish(); name = $3; cases = case_failures = 0; next }
/\[       OK \] / { passed++; cases++ }
/\[  SKIPPED \] [0-9]+ test\(s\), listed below/ {
    match($0, /\] [0-9]+ test/)
    print "skipped: " name " (" substr($0, RSTART + 2) + 0 ")"
    cases++
}
/\[  FAILED  \] [0-9]+ test\(s\), listed below/ {
    match($0, /\] [0-9]+ test/)
    n = substr($0, RSTART + 2) + 0
    failed += n; case_failures += n
    print "failed: " name " (" n ")"
}
END {
    finish()
    if (ctest_status != 0 && failed == 0) failed = 1
    if (passed + failed == 0) failed = 1
    printf "%d passed, %d failed\n", passed, failed
    exit failed != 0
}' "$failures" "$log"
