#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds fsdp-ckpt from this checkout, with the packages it needs: for jobs that have no program yet.
#
#   tools/ci/build.sh FOLDER     leaves FOLDER/tools/fsdp-ckpt
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(realpath -m "${1:?folder}")
. "$ROOT/tests/support/provision.sh"
need_packages tool
need_cmake
cd "$ROOT"
step "configure" quietly "$folder.log" configure tools -B "$folder"
step "build" quietly "$folder.log" cmake --build "$folder" --target fsdp-ckpt
