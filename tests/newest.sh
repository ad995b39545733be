#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints which producers of checkpoints have a newer version than the pinned one, and what the interop tests find with it.
#
#   tests/newest.sh [--list] [--only PRODUCER]...     with --list: asks the package index alone
#
# Needs the environments and the fsdp-ckpt of build/ci, which tests/run.sh makes; --list does not.  See tests/interop/newest.py.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/tests/support/provision.sh"
cd "$ROOT"
export JOBS

base=$(find_python3) || die "no python3 between 3.10 and 3.13 with venv; install python3-venv"
python=build/newest/python   # has pip, and nothing else
[ -x "$python/bin/pip" ] || "$base" -m venv "$python"
case " $* " in
  *" --list "*) ;;
  *)
    grep -q '^FSDP_TEST_PYTHON:.*=.' build/ci/CMakeCache.txt 2>/dev/null || die "build/ci is not configured with FSDP_TEST_PYTHON: run tests/run.sh first"
    step "fsdp-ckpt" cmake --build --preset ci --target fsdp-ckpt -j "$JOBS"
    ;;
esac
exec "$python/bin/python" tests/interop/newest.py "$@"
