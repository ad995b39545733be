#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel with the static program, for any Linux: dist/fsdp_ckpt-<version>-py3-none-<platforms>.whl.
#
#   tools/packaging/wheel.sh [OPTION=VALUE...]     options of CMake, such as FSDP_STATIC_SOURCES=FOLDER
#
# MACHINE is the processor that the options build for (this machine's; tools/packaging/aarch64.sh names another one).
# OUT (dist) is where the wheel goes and BUILD (build/wheel) where CMake builds.  Equal sources, tools and libraries give equal
# bytes, in any folder.  Needs what the static preset needs (docs/install.md) and Python's scikit-build-core, auditwheel and wheel;
# PYTHON names an environment that has them, otherwise pip fetches them into a new one.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
OUT=$(realpath -m "${OUT:-$ROOT/dist}")
BUILD=$(realpath -m "${BUILD:-$ROOT/build/wheel}")
cd "$ROOT"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
  python3 -m venv "$work/python"
  PYTHON=$work/python/bin/python
  "$PYTHON" -m pip install -q --disable-pip-version-check -r tests/support/requirements-packaging.txt
fi
# The times in the archive: those of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
defines=()
for option in FSDP_STATIC=ON FSDP_WITH_HDF5=ON "$@"; do
  defines+=("--config-settings=cmake.define.$option")
done
"$PYTHON" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$work/built" "--config-settings=build-dir=$BUILD" \
  "${defines[@]}" .
machine=${MACHINE:-$(uname -m)}
retag() { (cd "$work/built" && "$PYTHON" -m wheel tags --remove --platform-tag "$1" ./*.whl >/dev/null); }
retag "linux_$machine"   # scikit-build-core names the machine it runs on
# A static program asks nothing of the C library: it runs where manylinux does, and on musl.
"$PYTHON" -m auditwheel show "$work"/built/*.whl >"$work/audit" 2>&1 &&
  grep -Eq "manylinux_2_(5|17)_$machine" "$work/audit" || { cat "$work/audit" >&2; exit 1; }
retag "manylinux_2_17_$machine.manylinux2014_$machine.musllinux_1_1_$machine"
mkdir -p "$OUT"
wheel=$(echo "$work"/built/*.whl)
mv "$wheel" "$OUT"
echo "$OUT/${wheel##*/}"
