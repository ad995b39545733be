#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures training steps of libfsdp against PyTorch's FSDP1 and FSDP2, side by side in one run, and prints markdown tables.
#
#   tests/bench/train.sh [--rounds N] [--steps N] [--only peers8,peers64,peers512,strong64,...,memory] [--trainer PATH]
#
# About 25 minutes on two cores that do nothing else; needs about 5 GB of memory.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/tests/support/provision.sh"
. "$ROOT/tests/bench/build.sh"
case " $* " in
  *" --trainer "*) trainer=() ;;
  *) trainer=(--trainer "$ROOT/build/release-torch/tests/bench/bench_train_step") ;;
esac

need_packages tool test torch
need_cmake
need_python
cd "$ROOT"
[ ${#trainer[@]} = 0 ] || step "build" build_bench bench_train_step
exec "$PYTHON" tests/bench/train.py "${trainer[@]}" "$@"
