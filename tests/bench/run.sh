#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures fsdp-ckpt against cp, cat and PyTorch, side by side in one run, and prints markdown tables.
#
#   tests/bench/run.sh [--rounds N] [--only PART,...] [--inputs N] [--large GB] [--tool PATH]
#                      [--memory touched|full|found] [--busy CORES] [--before PATH]
#                      [--model MB] [--sizes GB,...] [--schemes WORD,...]
#
# `quantize` is measured beside compressed-tensors, whose environment takes 3 GB.
# Needs about 8 GB of disk (26 GB with the `memory` part's 8 GB folder, removed afterwards).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/tests/support/provision.sh"
case " $* " in
  *" --tool "*) tool=() ;;
  *) tool=(--tool "$ROOT/build/tools/tools/fsdp-ckpt") ;;
esac

need_packages tool python
need_cmake
need_python
case " $* " in
  *" quantize"* | *",quantize"*) need_trainers && need_quantizers && tool+=(--packages "$QUANTIZERS_PYTHON") ;;
esac
cd "$ROOT"
build() { configure tools >/dev/null && cmake --build --preset tools -j "$JOBS"; }
[ ${#tool[@]} = 0 ] || step "build" build
exec "$PYTHON" tests/bench/run.py --cache "$FSDP_CACHE" "${tool[@]}" "$@"
