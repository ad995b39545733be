#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the line coverage of formats/ and tools/ by the tests, file by file and in all.
#
#   tests/coverage.sh          report in build/coverage/coverage.html
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/tests/support/provision.sh"
. "$ROOT/tests/support/corpus.sh"
cd "$ROOT"

need_packages tool test rare
need_cmake
need_python
need_trainers
need_corpus
need_frameworks_corpus

step "configure" configure coverage -DFSDP_TEST_PYTHON="$PYTHON" \
  -DFSDP_TEST_TRAINERS_PYTHON="$TRAINERS_PYTHON" -DFSDP_TEST_CORPUS="$CORPUS" \
  -DFSDP_TEST_FRAMEWORKS_CORPUS="$FRAMEWORKS_CORPUS"
step "build" cmake --build --preset coverage -j "$JOBS"
find build/coverage -name '*.gcda' -delete
step "tests" ctest --preset coverage -j "$JOBS" -E '^fault\.kill' --output-on-failure
gcovr --root . --object-directory build/coverage --filter 'formats/' --filter 'tools/' --exclude-throw-branches --exclude-unreachable-branches \
  --html build/coverage/coverage.html --print-summary --txt
