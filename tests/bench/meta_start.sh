#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the memory of ranks that shard a module of the meta device, and prints a table.
#
#   tests/bench/meta_start.sh [--ranks N] [--width N] [--blocks N]
#
# A model of 8 GB on 4 ranks takes about 12 GB of memory and three minutes.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/tests/support/provision.sh"
need_packages tool test torch
need_cmake
need_python
cd "$ROOT"
torch=$("$PYTHON" -c 'import torch; print(torch.__path__[0])')
build() {
  configure release -B build/release-torch -DFSDP_WITH_TORCH=ON -DFSDP_TORCH="$torch" >/dev/null &&
    cmake --build build/release-torch -j "$JOBS" --target bench_meta_start
}
step "build" build
exec "$PYTHON" tests/bench/meta_start.py build/release-torch/tests/bench/bench_meta_start "$@"
