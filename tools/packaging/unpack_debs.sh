#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks Debian packages into a folder.  apt fetches them with lists of its own, so that neither the machine's packages nor its
# architectures change.
#
#   tools/packaging/unpack_debs.sh FOLDER ARCHITECTURE SUITE PACKAGE...     SUITE: a release of Debian, or - for the machine's own archives
set -euo pipefail
folder=$(realpath -m "$1") architecture=$2 suite=$3
shift 3
[ ! -e "$folder/.ready" ] || exit 0
rm -rf "$folder"
work=$folder/apt
mkdir -p "$work"/{lists/partial,archives/partial,packages}
touch "$work/status"
apt=(apt-get -q -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o Dir::State::lists="$work/lists"
  -o Dir::State::status="$work/status" -o Dir::Cache="$work" -o APT::Sandbox::User=root)
if [ "$suite" != - ]; then
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >"$work/sources.list"
  apt+=(-o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=-)
fi
"${apt[@]}" update >/dev/null
(cd "$work/packages" && "${apt[@]}" download "$@" >/dev/null)
for package in "$work"/packages/*.deb; do
  dpkg-deb -x "$package" "$folder"
done
rm -rf "$work"
touch "$folder/.ready"
