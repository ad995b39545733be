#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs the tests of a tier (tests/tiers.txt).
#
#   tests/run.sh                     what has to pass before a change lands: half an hour to an hour on two cores
#   tests/run.sh --quick             unit tests and layering: minutes, where a build is there
#   tests/run.sh --all [--resume]    every test: hours; --resume goes on where such a run was stopped
#
# The last line counts the tests: "N passed, N failed".  Exit: 0 all passed, 1 some failed, 2 could not run.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TIER=default RESUME=()
for word in "$@"; do
  case $word in
    --quick | --all) TIER=${word#--} ;;
    --resume) RESUME=(--resume) ;;
    *) sed -n '5,7s/^# *//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
[ $TIER = all ] || export FSDP_TEST_SAMPLE=1
. "$ROOT/tests/support/provision.sh"
. "$ROOT/tests/support/corpus.sh"
cd "$ROOT"
say "== $(tests/support/yardstick.sh)"

groups=(tool test torch)
[ $TIER = quick ] || groups+=(format tidy mpi)
[ $TIER != all ] || groups+=(fuzz package rare)
need_packages "${groups[@]}"
need_cmake
need_python
settings=(-DFSDP_TEST_PYTHON="$PYTHON" -DFSDP_WITH_TORCH=ON -DFSDP_TORCH="$("$PYTHON" -c 'import torch; print(torch.__path__[0])')")
tiers() { "$PYTHON" tests/support/run_tiers.py "$@"; }
# The last command: it prints the count.
run_tests() { exec "$PYTHON" tests/support/run_tiers.py run $TIER --build build/ci --jobs "$JOBS" ${RESUME[@]+"${RESUME[@]}"}; }

if [ $TIER = quick ]; then
  step "configure" configure ci "${settings[@]}"
  step "build" cmake --build --preset ci -j "$JOBS" --target $(tiers programs quick)
  run_tests
fi

# What tests compare with.  Making it leaves a processor idle most of the time, and of what is built nothing needs it.
need_others() {
  need_trainers
  need_corpus
  need_parity
  need_docs
  [ $TIER = all ] || return 0
  need_producers
  need_models
  need_remote
  need_frameworks_corpus
  need_quantizers
  need_bridge
  need_quantized_corpus
  need_packaging
  need_release
  need_torches
  need_old_userland
}
begin need_others

need_module
settings+=(-DFSDP_PYTHON=ON -DPython_EXECUTABLE="$MODULE_PYTHON")
name_parity
settings+=(-DFSDP_TEST_PARITY="$PARITY")
step "configure" configure ci "${settings[@]}"
step "build" cmake --build --preset ci -j "$JOBS"

await "what tests compare with"
need_others   # all of it is there: this says where
settings+=(-DFSDP_TEST_TRAINERS_PYTHON="$TRAINERS_PYTHON" -DFSDP_TEST_CORPUS="$CORPUS" -DFSDP_TEST_DOCS_PYTHON="$DOCS_PYTHON")
if [ $TIER = all ]; then
  settings+=(-DFSDP_TEST_PRODUCERS_PYTHON="$PRODUCERS_PYTHON" -DFSDP_TEST_REMOTE_PYTHON="$REMOTE_PYTHON" -DFSDP_TEST_MODELS_PYTHON="$MODELS_PYTHON"
    -DFSDP_TEST_FRAMEWORKS_CORPUS="$FRAMEWORKS_CORPUS" -DFSDP_TEST_QUANTIZERS_PYTHON="$QUANTIZERS_PYTHON"
    -DFSDP_TEST_BRIDGE_PYTHON="$BRIDGE_PYTHON"
    -DFSDP_TEST_QUANTIZED_CORPUS="$QUANTIZED_CORPUS" -DFSDP_TEST_PACKAGING_PYTHON="$PACKAGING_PYTHON"
    -DFSDP_TEST_RELEASE_PYTHON="$RELEASE_PYTHON" -DFSDP_TEST_STATIC_SOURCES="$STATIC_SOURCES" -DFSDP_TEST_OLD_USERLAND="$OLD_USERLAND"
    -DFSDP_TEST_TORCHES="$TORCHES")
fi
step "configure for all tests" configure ci "${settings[@]}"
step "build for all tests" cmake --build --preset ci -j "$JOBS"
run_tests
