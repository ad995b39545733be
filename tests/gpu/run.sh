#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs everything that needs a GPU, in at most 8 minutes: tests, training, checkpoints, time and memory of steps (see measure.py).
#
#   tests/gpu/run.sh [--no-table] [OPTION...]            builds a bundle first, and fills the table of docs/performance.md
#   tests/gpu/run.sh --bundle FOLDER [OPTION...]         runs a bundle that bundle.sh built elsewhere: nothing is installed or fetched
#
#   --out FOLDER        where results.jsonl, log.txt, summary.md and traces go (default build/gpu-results)
#   --only a,d          these steps alone
#   --timed-steps N     (default 20)
#   --tool-gb N         the size of the checkpoint for fsdp-ckpt (default 4)
#   --device cpu        tries the scripts on a machine without a GPU
#   --limit a=60        another time limit of a step, in seconds
#
# The programs use the LibTorch in the folder FSDP_TORCH, else that of the Python FSDP_PYTHON (default python3), which is the Python side.
# Exit: 0 all that could run passed, 1 something failed, 2 it could not be built or run, 3 this machine shows no GPU.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TABLE=1 BUNDLE= RESULTS=$ROOT/build/gpu-results DEVICE=cuda
PYTHON=${FSDP_PYTHON:-python3} words=()
value() { [ $# -gt 1 ] || { echo "error: $1 needs a value; see the head of tests/gpu/run.sh" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
  case $1 in
    --no-table) TABLE=0 ;;
    --bundle) value "$@"; BUNDLE=$2; shift ;;
    --out) value "$@"; RESULTS=$2; shift ;;
    --device) value "$@"; DEVICE=$2; shift ;;
    --only | --timed-steps | --tool-gb | --limit) value "$@"; words+=("$1" "$2"); shift ;;
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
if [ "$DEVICE" != cpu ]; then
  command -v nvidia-smi >/dev/null || no_gpu "there is no nvidia-smi, so no driver of NVIDIA"
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
  [ "$gpus" -gt 0 ] || no_gpu "nvidia-smi lists none"
  case ${CUDA_VISIBLE_DEVICES-all} in '' | -1) no_gpu "CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES'" ;; esac
fi

if [ -z "$BUNDLE" ]; then
  BUNDLE=$ROOT/build/gpu-bundle
  "$ROOT/tests/gpu/bundle.sh" "$BUNDLE"
  . "$ROOT/tests/support/provision.sh"
  need_python
else
  TABLE=0
fi
export PYTHONDONTWRITEBYTECODE=1
command=("$PYTHON" "$ROOT/tests/gpu/measure.py" --bundle "$BUNDLE" --out "$RESULTS" --device "$DEVICE" ${words[@]+"${words[@]}"})
[ $TABLE = 1 ] || exec "${command[@]}"
status=0
"${command[@]}" || status=$?
[ $status -le 1 ] || exit $status
"$PYTHON" "$ROOT/tests/gpu/fill_table.py" "$RESULTS/results.jsonl" "$ROOT/docs/performance.md"
exit $status
