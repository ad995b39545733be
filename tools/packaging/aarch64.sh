#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the static fsdp-ckpt for AArch64, or the wheels with it, on an x86-64 Debian 12 or later.
#
#   tools/packaging/aarch64.sh [OPTION=VALUE...]             options of CMake; leaves build/static-aarch64/tools/fsdp-ckpt
#   tools/packaging/aarch64.sh --wheel [OPTION=VALUE...]     leaves the wheels in dist/, as tools/packaging/wheel.sh
#
# Needs g++-aarch64-linux-gnu, qemu-user-static (which prints the manual page and the completions), and what the static preset needs.
# The archives are those of Debian's arm64 packages, which are unpacked into build/sysroot-aarch64.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$ROOT"
sysroot=$ROOT/build/sysroot-aarch64
tools/packaging/unpack_debs.sh "$sysroot" arm64 - zlib1g-dev libzstd-dev nettle-dev libhdf5-dev libaec-dev libssl-dev libc-ares-dev libexpat1-dev
# Licences and sources do not depend on the processor: a build for this machine has them.
[ -e build/static/THIRD_PARTY ] || cmake --preset static
wheel=no
[ "${1:-}" != --wheel ] || { wheel=yes; shift; }
sources=$(sed -n 's/^FSDP_STATIC_SOURCES:PATH=//p' build/static/CMakeCache.txt)
options=(CMAKE_TOOLCHAIN_FILE="$ROOT/tools/packaging/aarch64.cmake" FSDP_SYSROOT="$sysroot" FSDP_THIRD_PARTY="$ROOT/build/static/THIRD_PARTY"
  FSDP_STATIC_SOURCES="${sources:-$ROOT/build/static/sources}" "$@")
if [ $wheel = yes ]; then
  MACHINE=aarch64 BUILD=$ROOT/build/wheel-aarch64 exec tools/packaging/wheel.sh "${options[@]}"
fi
cmake --preset static -B build/static-aarch64 "${options[@]/#/-D}"
cmake --build build/static-aarch64
qemu-aarch64-static build/static-aarch64/tools/fsdp-ckpt --version
