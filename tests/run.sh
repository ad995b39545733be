#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test.
#
#   tests/run.sh [--fuzz-seconds N]     N seconds of fuzzing a target (default 20), 0 for none
#
# The last line counts the tests: "N passed, N failed".  Exit: 0 all passed, 1 some failed, 2 could not run.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/tests/support/provision.sh"
. "$ROOT/tests/support/corpus.sh"
cd "$ROOT"

FUZZ_SECONDS=20
[ "${1:-}" != --fuzz-seconds ] || FUZZ_SECONDS=${2:?seconds}

need_packages tool test torch fuzz package mpi
need_cmake
need_python

# What tests compare with.
need_others() {
  need_frameworks
  need_models
  need_peft
  need_producers
  need_remote
  need_corpus
  need_frameworks_corpus
  need_parity
  need_packaging
  need_release
  need_old_userland
}
# Making it leaves a processor idle most of the time, and of what is built nothing needs it.
others_log=$(mktemp)
need_others >"$others_log" 2>&1 &
others=$!
trap 'kill "$others" 2>/dev/null || true; rm -f "$others_log"' EXIT

name_parity
settings=(-DFSDP_TEST_PYTHON="$PYTHON" -DFSDP_TEST_PARITY="$PARITY" -DFSDP_WITH_TORCH=ON -DFSDP_TORCH="$("$PYTHON" -c 'import torch; print(torch.__path__[0])')")
step "configure" configure ci "${settings[@]}"
step "build" cmake --build --preset ci -j "$JOBS"

await_others() {
  local status=0
  wait "$others" || status=$?
  cat "$others_log" >&2
  return $status
}
step "what tests compare with" await_others
need_others   # all of it is there: this says where
settings+=(-DFSDP_TEST_FRAMEWORKS_PYTHON="$FRAMEWORKS_PYTHON" -DFSDP_TEST_MODELS_PYTHON="$MODELS_PYTHON" -DFSDP_TEST_PEFT_PYTHON="$PEFT_PYTHON"
  -DFSDP_TEST_PRODUCERS_PYTHON="$PRODUCERS_PYTHON" -DFSDP_TEST_REMOTE_PYTHON="$REMOTE_PYTHON" -DFSDP_TEST_CORPUS="$CORPUS"
  -DFSDP_TEST_FRAMEWORKS_CORPUS="$FRAMEWORKS_CORPUS"
  -DFSDP_TEST_PACKAGING_PYTHON="$PACKAGING_PYTHON" -DFSDP_TEST_RELEASE_PYTHON="$RELEASE_PYTHON" -DFSDP_TEST_ISAL_SOURCE="$ISAL_SOURCE"
  -DFSDP_TEST_OLD_USERLAND="$OLD_USERLAND")
step "configure for all tests" configure ci "${settings[@]}"
step "build for all tests" cmake --build --preset ci -j "$JOBS"

# A failing test must not end the script: the count comes last.
report=build/ci/tests.xml
rm -f "$report"
run_ctest() { ctest --preset ci -j "$JOBS" --no-tests=error --output-junit "$ROOT/$report" || true; }
step "tests" run_ctest
[ -s "$report" ] || die "ctest left no report"

# tests, failed, skipped of the first line's attributes
count() { grep -m1 '<testsuite' -A6 "$report" | grep -o "\b$1=\"[0-9]*\"" | head -n1 | tr -dc 0-9; }
total=$(count tests) failed=$(count failures) skipped=$(($(count skipped) + $(count disabled)))
passed=$((total - failed - skipped))

# Its own closing line is added to ours.
run_fuzz() {
  local log=build/fuzz.log last
  tests/fuzz/run.sh --seconds "$FUZZ_SECONDS" 2>&1 | tee "$log" | grep -v '^[0-9]* passed, [0-9]* failed$' || true
  last=$(tail -n 1 "$log")
  if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
  else
    say "the fuzz targets could not run"
    failed=$((failed + 1))
  fi
}
[ "$FUZZ_SECONDS" = 0 ] || step "fuzzing, $FUZZ_SECONDS s a target" run_fuzz

# One test each.
lint() {
  local status=0
  tests/lint.sh "$1" >&2 || status=$?
  case $status in
    0) passed=$((passed + 1)) ;;
    3) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
  esac
}
step "format of the sources" lint format
step "clang-tidy" lint tidy

# What failed long ago is said again here, where the end of the output is all that is kept.
failures() {
  "$PYTHON" - "$report" <<'END'
import sys
import xml.etree.ElementTree as tree
for test in tree.parse(sys.argv[1]).iter("testcase"):
    if test.find("failure") is not None:
        print(f"== failed: {test.get('name')}")
        print("\n".join((test.findtext("system-out") or "").splitlines()[-40:]))
END
}
failures

closing="$passed passed, $failed failed"
[ "$skipped" = 0 ] || closing+=", $skipped skipped"
echo "$closing"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
