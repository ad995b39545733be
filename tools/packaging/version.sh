#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the version: that of project() in the top-level CMakeLists.txt, the only place that has it.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
version=$(sed -n 's/^project(fsdp VERSION \([0-9][0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt")
[ -n "$version" ] || { echo "version.sh: CMakeLists.txt has no project(fsdp VERSION ...)" >&2; exit 2; }
echo "$version"
