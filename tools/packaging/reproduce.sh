#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the static fsdp-ckpt of the current commit twice, in folders of different names and depths and without ccache, and compares the bytes.
#
#   tools/packaging/reproduce.sh [OPTION=VALUE...]     options of CMake, such as FSDP_STATIC_SOURCES=FOLDER
#
# Prints the program's SHA-256.  Exit: 0 the same, 1 not.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
commit=$(git -C "$ROOT" rev-parse --short=12 HEAD)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=()
for option in "$@"; do options+=("-D$option"); done
build() {
  local folder=$1
  mkdir -p "$folder"
  git -C "$ROOT" archive HEAD | tar -x -C "$folder"
  (cd "$folder" && CCACHE_DISABLE=1 cmake --preset static -DFSDP_COMMIT="$commit" "${options[@]}" && CCACHE_DISABLE=1 cmake --build --preset static) >"$work/log" 2>&1 ||
    { tail -n 40 "$work/log" >&2; exit 2; }
  mv "$folder/build/static/tools/fsdp-ckpt" "$2"
  rm -rf "$folder"
}
build "$work/a" "$work/first"
build "$work/another folder/with a deeper name" "$work/second"
sha256sum <"$work/first" | cut -d' ' -f1
if cmp "$work/first" "$work/second"; then echo "the same bytes"; else exit 1; fi
