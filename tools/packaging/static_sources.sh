#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches the sources of what a static build compiles itself: no distribution has archives of isa-l, nor of a libcurl with HTTP alone.
#
#   tools/packaging/static_sources.sh FOLDER
#
#   FOLDER/isal    isa-l's CRC: crc/, include/, cmake/crc.cmake, LICENSE, VERSION.  It comes with the source package of Python's `isal`,
#                  through pip, which refuses other bytes than those of the hash
#   FOLDER/curl    libcurl: CMakeLists.txt, CMake/, include/, lib/, LICENSE, VERSION.  It is the source package of this machine's
#                  distribution with the patches in it, through apt, which checks its signature
#
# pip's and apt's own configurations (a mirror, a proxy) apply.  Needs dpkg-dev, and what `apt-get update` has fetched; changes nothing of apt's.
set -euo pipefail
folder=${1:?folder}
NAME=isal-1.9.1
SHA256=d210dca02a689ef2af709d2c62d2daac2e36b5d2fa06e6dc0d023c83fee77e91

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { printf 'static_sources.sh: %s\n' "$*" >&2; }

# place NAME VERSION FILE...: moves the files to FOLDER/NAME.  VERSION last: whoever finds it finds everything.
place() {
  local to=$folder/$1 version=$2
  shift 2
  [ -n "$version" ]
  rm -rf "$to"
  mkdir -p "$to"
  mv "$@" "$to"
  echo "$version" >"$work/VERSION"
  mv "$work/VERSION" "$to"
}

fetch_isal() {
  local python=${PYTHON:-python3} inside=$work/$NAME/src/isal/isa-l
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m venv "$work/venv"
    python=$work/venv/bin/python
  fi
  printf '%s --hash=sha256:%s\n' "${NAME/-/==}" "$SHA256" >"$work/requirements.txt"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary isal --require-hashes \
    -r "$work/requirements.txt" -d "$work" >&2
  tar -xzf "$work/$NAME.tar.gz" -C "$work"
  place isal "$(sed -n 's/^ *VERSION \([0-9][0-9.]*\)$/\1/p' "$inside/CMakeLists.txt" | head -n 1)" "$inside"/{crc,include,cmake,LICENSE}
}

# The archives that have the program curl have its source too, if they are asked for it.
fetch_curl() {
  local archives file apt inside
  command -v dpkg-source >/dev/null || { say "dpkg-source is missing, which unpacks libcurl's source: apt-get install dpkg-dev"; exit 2; }
  archives=$(apt-cache policy curl 2>/dev/null | sed -n 's|^ *-\?[0-9]* \([^ ]*://[^ ]*\) .*|\1|p' | sort -u)
  [ -n "$archives" ] || { say "apt knows no archive that has curl: apt-get update"; exit 2; }
  mkdir -p "$work"/apt/{sources,lists/partial,archives/partial}
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    if grep -qsF "$archives" "$file"; then
      sed 's/^\(Types:\).*/\1 deb-src/; s/^deb\([ \t]\)/deb-src\1/' "$file" >"$work/apt/sources/${file##*/}"
    fi
  done
  apt=(apt-get -q -o Dir::Etc::sourcelist=- -o Dir::Etc::sourceparts="$work/apt/sources" -o Dir::State::lists="$work/apt/lists"
    -o Dir::Cache="$work/apt" -o APT::Sandbox::User=root)
  { "${apt[@]}" update && (cd "$work" && "${apt[@]}" source --only-source curl); } >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; say "libcurl's source could not be fetched with apt"; exit 2; }
  inside=$(echo "$work"/curl-*/)
  mv "$inside/debian/copyright" "$inside/LICENSE"
  # The package's version: that of its newest change.
  place curl "$(sed -n '1s/^curl (\(.*\)) .*/\1/p' "$inside/debian/changelog")" "$inside"/{CMakeLists.txt,CMake,include,lib,libcurl.pc.in,curl-config.in,LICENSE}
}

[ -e "$folder/isal/VERSION" ] || fetch_isal
[ -e "$folder/curl/VERSION" ] || fetch_curl
