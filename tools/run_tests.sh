#!/bin/sh
# Runs the tests of a build folder and counts single test cases. usage: run_tests.sh BUILD_DIR
# Last line: "N passed, N failed"; exit code 1 if anything failed. A program that ends without its
# cmocka summary (crash, sanitizer report, time limit, not built) counts as one more failure, and a
# test that is not a cmocka program as one case.
set -eu
build=${1:?usage: run_tests.sh BUILD_DIR}
log=$build/Testing/Temporary/LastTest.log
rm -f "$log"

ctest_status=0
ctest --test-dir "$build" --output-on-failure --parallel "${JOBS:-$(nproc)}" || ctest_status=$?
[ -f "$log" ] || { echo "no test ran"; echo "0 passed, 1 failed"; exit 1; }

awk -v ctest_status="$ctest_status" '
function finish() {
    if (name == "") return
    if (ok && cases == 0) passed++
    if (!ok && case_failures == 0) { failed++; print "failed: " name }
    name = ""
}
/^[0-9]+\/[0-9]+ Testing: / { finish(); name = $3; ok = cases = case_failures = 0; ended = 0; next }
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
/^<end of output>$/ { ended = 1 }
/^Test Passed\.$/ { if (ended) ok = 1 }
END {
    finish()
    if (ctest_status != 0 && failed == 0) failed = 1
    if (passed + failed == 0) failed = 1
    printf "%d passed, %d failed\n", passed, failed
    exit failed != 0
}' "$log"
