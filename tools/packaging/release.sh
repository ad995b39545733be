#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the files of a release of the current commit, all of one version.
#
#   tools/packaging/release.sh [OPTION...] [OPTION=VALUE...]     options of CMake for the Debian packages, such as FSDP_TORCH=FOLDER
#
#   --tag TAG         the release that is meant: another version, or one that docs/CHANGELOG.md calls not released, is an error
#   --provision       installs what is needed first, PyTorch too, whose LibTorch becomes FSDP_TORCH
#   --allow-changes   goes on with changes that are not committed
#
#   OUT (dist)        where they go; what an earlier SHA256SUMS in it lists is removed first
#   WHEELS, DEBS      folders with the wheels and the Debian packages, to take instead of building them
#   FSDP_STATIC_SOURCES   what tools/packaging/static_sources.sh fetched; CMake runs it if it is empty
#
#   fsdp_ckpt-<version>-<tags>.whl                   the static program and the Python module, a wheel for each kind of Python
#   fsdp-ckpt-<version>-linux-<processor>            the static program of the wheels; THIRD_PARTY and LICENSE belong to it
#   fsdp-<version>-linux-<processor>.spdx.json       what is linked into it
#   fsdp-ckpt_<version>_<architecture>.deb           the tool, linked with Debian's libraries
#   libfsdp-dev_<version>_<architecture>.deb         libfsdp, for the LibTorch that FSDP_TORCH names
#   fsdp-<version>.tar.gz                            the sources
#   SHA256SUMS
# Exit: 0 all are there, 1 they contradict each other, 2 something could not be made.
set -euo pipefail
umask 022   # the packages have it in their bytes
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
OUT=$(realpath -m "${OUT:-$ROOT/dist}")
WHEELS=${WHEELS:+$(realpath "$WHEELS")}
DEBS=${DEBS:+$(realpath "$DEBS")}
cd "$ROOT"
say() { printf 'release.sh: %s\n' "$*" >&2; }

changes=no tag='' provision=no
while :; do
  case ${1:-} in
    --allow-changes) changes=yes ;;
    --provision) provision=yes ;;
    --tag) tag=${2:?--tag needs a tag}; shift ;;
    *) break ;;
  esac
  shift
done
if [ $changes = no ] && [ -n "$(git status --porcelain)" ]; then
  say "there are changes that are not committed; a release is of a commit (--allow-changes goes on)"
  exit 2
fi
version=$(tools/packaging/version.sh)
if [ -n "$tag" ]; then
  [ "$tag" = "v$version" ] || { say "the tag is $tag, and the version of project() in CMakeLists.txt $version"; exit 1; }
  section=$(sed -n "/^## $version\$/,/^## [^#]/p" docs/CHANGELOG.md)
  [ -n "$section" ] || { say "docs/CHANGELOG.md has no section '## $version'"; exit 1; }
  ! grep -q 'not released' <<<"$section" || { say "docs/CHANGELOG.md says that $version is not released; say when it was"; exit 1; }
fi
if [ $provision = yes ]; then
  torch=$(. tests/support/provision.sh && need_packages tool package torch && need_cmake && need_python &&
    "$PYTHON" -c 'import torch; print(torch.__path__[0])')
  set -- "FSDP_TORCH=$torch" "$@"
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
mkdir -p "$OUT"
work=$(mktemp -d "$OUT/.release-XXXXXX")
trap 'rm -rf "$work"' EXIT
made=$work/made
mkdir "$made"

say "the wheels"
if [ -n "$WHEELS" ]; then
  cp "$WHEELS"/fsdp_ckpt-"$version"-*.whl "$made" || true
else
  [ -x tools/packaging/wheel.sh ] || { say "tools/packaging/wheel.sh is missing; without it there is no wheel and no static program"; exit 2; }
  OUT=$made tools/packaging/wheel.sh ${FSDP_STATIC_SOURCES:+FSDP_STATIC_SOURCES="$FSDP_STATIC_SOURCES"} >&2
fi
wheels=("$made"/fsdp_ckpt-"$version"-py3-none-*.whl "$made"/fsdp_ckpt-"$version"-cp312-abi3-*.whl)
for wheel in "${wheels[@]}"; do
  [ -f "$wheel" ] || { say "a wheel of version $version is missing, ${wheel##*/}; there are: $(ls "$made")"; exit 1; }
done

say "the static program"
program=$made/fsdp-ckpt-$version-linux-$(uname -m)
python3 - "${wheels[0]}" "$program" "$made/THIRD_PARTY" <<'PYTHON'
import os, sys, zipfile
wheel, *targets = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for target, end in zip(targets, ("/scripts/fsdp-ckpt", "/licenses/THIRD_PARTY")):
        name, = [name for name in archive.namelist() if name.endswith(end)]
        with open(target, "wb") as file:
            file.write(archive.read(name))
os.chmod(targets[0], 0o755)
PYTHON
cp LICENSE "$made"
[ "$("$program" --version | head -n 1)" = "fsdp-ckpt $version" ] || { say "the program of the wheels is of another version"; exit 1; }

say "the bill of materials"
tools/packaging/sbom.py "$program" "$made/THIRD_PARTY" "${program##*/}" >"$made/fsdp-$version-linux-$(uname -m).spdx.json" || exit 1

say "the Debian packages"
if [ -z "$DEBS" ]; then
  DEBS=$work/debs
  options=()
  for option in "$@"; do options+=("-D$option"); done
  cmake --preset torch -B build/deb -DCMAKE_INSTALL_PREFIX=/usr ${options[@]+"${options[@]}"} >&2
  cmake --build build/deb --target installed >&2
  cpack --config build/deb/CPackConfig.cmake -B "$DEBS" >&2
fi
for package in fsdp-ckpt libfsdp-dev; do
  debs=("$DEBS/${package}_$version"_*.deb)
  [ -f "${debs[0]}" ] && [ ${#debs[@]} = 1 ] || { say "one $package of version $version is wanted in $DEBS"; exit 1; }
  cp "${debs[0]}" "$made"
done

say "the sources"
tools/packaging/source.sh "$made" >&2
rm "$made"/*.sha256   # SHA256SUMS has it

(cd "$made" && LC_ALL=C sha256sum -- * >"$work/SHA256SUMS")
mv "$work/SHA256SUMS" "$made"
if [ -f "$OUT/SHA256SUMS" ]; then
  while read -r _ name; do
    case $name in */*) ;; *) rm -f -- "$OUT/${name#\*}" ;; esac
  done <"$OUT/SHA256SUMS"
fi
chmod -R a+rX "$made"
mv -f -- "$made"/* "$OUT"
ls "$OUT" >&2
