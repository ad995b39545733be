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
. "$ROOT/tests/bench/build.sh"
need_packages tool test torch
need_cmake
need_python
cd "$ROOT"
step "build" build_bench bench_meta_start
exec "$PYTHON" tests/bench/meta_start.py build/release-torch/tests/bench/bench_meta_start "$@"
