#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Counts what sharding costs a step on simulated devices, and writes the table of docs/performance.md.
#
#   tests/bench/device_steps.sh [COSTS]
#
# COSTS: a tests_libfsdp_costs that is built already.  Two minutes with it; counts, not times: they are the same on any machine.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/tests/support/provision.sh"
cd "$ROOT"
need_packages tool test torch
need_cmake
need_python
build() {
  configure ci -DFSDP_WITH_TORCH=ON -DFSDP_TORCH="$("$PYTHON" -c 'import torch; print(torch.__path__[0])')" >/dev/null &&
    cmake --build build/ci -j "$JOBS" --target tests_libfsdp_costs
}
[ $# -gt 0 ] || step "build" build
exec "$PYTHON" tests/bench/device_steps.py "${1:-build/ci/tests/libfsdp/sim/tests_libfsdp_costs}"
