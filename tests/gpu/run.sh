#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs everything that needs a GPU, and fills the table of docs/performance.md.
#
#   tests/gpu/run.sh [--no-table] [--steps N]     N timed steps a benchmark (default 50)
#
# Runs the tests with the label gpu, trains on one rank with NCCL and on several with Gloo (which lets ranks share a GPU) or, where
# there are several GPUs, with NCCL, and measures steps.  What was left out is said, with the reason, here and below the table.
# Exit: 0 all that could run passed, 1 something failed, 2 it could not be built or run, 3 this machine shows no GPU.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TABLE=1 STEPS=50
while [ $# -gt 0 ]; do
  case $1 in
    --no-table) TABLE=0 ;;
    --steps) STEPS=${2:?steps}; shift ;;
    *) echo "error: unknown option '$1'; see the head of tests/gpu/run.sh" >&2; exit 2 ;;
  esac
  shift
done

# Before anything is installed or built.
no_gpu() {
  echo "no GPU: $1" >&2
  echo "nothing was built, run or measured; docs/performance.md stays as it is" >&2
  exit 3
}
command -v nvidia-smi >/dev/null || no_gpu "there is no nvidia-smi, so no driver of NVIDIA"
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
[ "$gpus" -gt 0 ] || no_gpu "nvidia-smi lists none"
case ${CUDA_VISIBLE_DEVICES-all} in '' | -1) no_gpu "CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES'" ;; esac

. "$ROOT/tests/support/provision.sh"
cd "$ROOT"
need_packages tool test torch
need_cmake
need_python
torch=$("$PYTHON" -c 'import torch; print(torch.__path__[0])')
"$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  die "nvidia-smi lists $gpus GPU(s), but PyTorch can use none: its CUDA may be newer than the driver"

FOLDER=build/gpu
build() {
  configure release -B $FOLDER -DFSDP_WITH_TORCH=ON -DFSDP_TORCH="$torch" -DFSDP_CUDA_PROGRAMS=ON >/dev/null &&
    cmake --build $FOLDER -j "$JOBS" --target tests_libfsdp_gpu tests_libfsdp_cuda train_mlp train_gpt bench_train_step
}
step "build" build
rm -f $FOLDER/gpu.xml
tests() { ctest --test-dir $FOLDER -L '^gpu$' --no-tests=error --output-on-failure --output-junit "$ROOT/$FOLDER/gpu.xml" >&2 || true; }
step "tests" tests
status=0
"$PYTHON" tests/gpu/measure.py --build $FOLDER --junit $FOLDER/gpu.xml --steps "$STEPS" --results $FOLDER/results.json || status=$?
[ $status -le 1 ] || exit 2
[ $TABLE = 0 ] || "$PYTHON" tests/gpu/fill_table.py $FOLDER/results.json docs/performance.md
exit $status
