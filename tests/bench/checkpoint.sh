#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures saving and loading of sharded state by libfsdp beside PyTorch's DCP, turn by turn in one run, and prints a table.
#
#   tests/bench/checkpoint.sh [--mebibytes N] [--rounds N] [--ranks N] [--folder FOLDER] [--program PATH]
#
# Needs three times the state as disk space in FOLDER (default: below build/), and about five times as memory.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/tests/support/provision.sh"
. "$ROOT/tests/bench/build.sh"
cd "$ROOT"
program=(--program "$ROOT/build/release-torch/tests/bench/bench_checkpoint")
folder=(--folder "$ROOT/build/bench-checkpoint")
case " $* " in *" --program "*) program=() ;; esac
case " $* " in *" --folder "*) folder=() ;; *) mkdir -p "${folder[1]}" ;; esac

need_packages tool test torch
need_cmake
need_python
[ ${#program[@]} = 0 ] || step "build" build_bench bench_checkpoint
exec "$PYTHON" tests/bench/checkpoint.py "${program[@]}" "${folder[@]}" "$@"
