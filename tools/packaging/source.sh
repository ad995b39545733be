#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the source archive of the current commit: OUT/fsdp-<version>.tar.gz, and its SHA-256 beside it.
#
#   tools/packaging/source.sh [OUT]     OUT is dist/ if not given
#
# Equal commits give equal bytes: names, order, times and owners are those that git archive writes.  Changes that are not committed
# are not in it, and are reported.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
OUT=$(realpath -m "${1:-$ROOT/dist}")
cd "$ROOT"
git rev-parse --verify -q HEAD >/dev/null || { echo "source.sh: a clone is needed, and $ROOT is none" >&2; exit 2; }
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "source.sh: changes that are not committed are left out" >&2
version=$(tools/packaging/version.sh)
name=fsdp-$version
mkdir -p "$OUT"
# tar.umask, because a configuration of git could change the modes.
git -c tar.umask=0022 archive --format=tar --prefix="$name/" HEAD | gzip -9n >"$OUT/$name.tar.gz.part"
mv "$OUT/$name.tar.gz.part" "$OUT/$name.tar.gz"
(cd "$OUT" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
echo "$OUT/$name.tar.gz"
