#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures how fast fsdp-ckpt reads from a store, beside curl with the same ranges, in one run, and prints markdown tables.
#
#   tests/bench/remote.sh [--rounds N] [--latencies MS,...] [--only PART,...] [--gib N] [--files N] [--folder FOLDER] [--tool PATH]
#
# Needs 4 GB of disk below FOLDER (/tmp), and curl.  PARTs: large, consolidate, small, file.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/tests/support/provision.sh"
case " $* " in
  *" --tool "*) tool=() ;;
  *) tool=(--tool "$ROOT/build/tools/tools/fsdp-ckpt") ;;
esac

need_packages tool
need_cmake
cd "$ROOT"
build() { configure tools >/dev/null && cmake --build --preset tools -j "$JOBS"; }
[ ${#tool[@]} = 0 ] || step "build" build
server=$(mktemp)
trap 'rm -f "$server"' EXIT
"${CXX:-c++}" -std=c++20 -O2 -pthread tests/bench/range_server.cpp -o "$server"
python3 tests/bench/remote.py --server "$server" "${tool[@]}" "$@"
