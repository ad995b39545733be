#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the source of isa-l's CRC, for static builds: distributions have isa-l only as a shared library.
#
#   tools/packaging/isal_source.sh FOLDER     leaves crc/, include/, cmake/crc.cmake, LICENSE and VERSION in FOLDER
#
# The source comes with the source package of Python's `isal`, through pip, so pip's own configuration (a mirror, a proxy)
# applies.  pip refuses other bytes than those of the hash.
set -euo pipefail
folder=${1:?folder}
NAME=isal-1.9.1
SHA256=d210dca02a689ef2af709d2c62d2daac2e36b5d2fa06e6dc0d023c83fee77e91

[ ! -e "$folder/VERSION" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
if ! "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv "$work/venv"
  python=$work/venv/bin/python
fi
printf '%s --hash=sha256:%s\n' "${NAME/-/==}" "$SHA256" >"$work/requirements.txt"
"$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary isal --require-hashes \
  -r "$work/requirements.txt" -d "$work" >&2
inside=$NAME/src/isal/isa-l
tar -xzf "$work/$NAME.tar.gz" -C "$work" "$inside"/{crc,include,cmake/crc.cmake,CMakeLists.txt,LICENSE}
mkdir -p "$folder"
rm -rf "$folder"/{crc,include,cmake}
mv "$work/$inside"/{crc,include,cmake,LICENSE} "$folder"
# Last: whoever finds it finds everything.
sed -n 's/^ *VERSION \([0-9][0-9.]*\)$/\1/p' "$work/$inside/CMakeLists.txt" | head -n 1 >"$work/VERSION"
[ -s "$work/VERSION" ]
mv "$work/VERSION" "$folder/VERSION"
