#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels with the static program, in dist/; pip chooses among them.
#
#   tools/packaging/wheel.sh [OPTION=VALUE...]     options of CMake, such as FSDP_STATIC_SOURCES=FOLDER
#
#   fsdp_ckpt-<version>-py3-none-<platforms>.whl                              for any Linux, without the native part of the module
#   fsdp_ckpt-<version>-cp312-abi3-manylinux_2_28_<processor>.whl             with it, for Python 3.12 and later
#   fsdp_ckpt-<version>-cp311-cp311-manylinux_2_28_<processor>.whl, ...       with it, for an older Python
#
# HEADERS are the folders with a Python.h for which the native part is built, empty for none; without it, those of this machine's Pythons
# of 3.9 and later, and if none is of 3.12 or later, those of Debian 13's package, which are fetched.  MACHINE is the processor that the options build for (this machine's; tools/packaging/aarch64.sh names another
# one).  OUT (dist) is where the wheels go and BUILD (build/wheel) where CMake builds.  Equal sources, tools and libraries give equal
# bytes, in any folder.  Needs what the static preset needs (docs/install.md) and the packages of
# tests/support/requirements-packaging.txt; PYTHON names an environment that has them, otherwise pip fetches them into a new one.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
OUT=$(realpath -m "${OUT:-$ROOT/dist}")
BUILD=$(realpath -m "${BUILD:-$ROOT/build/wheel}")
cd "$ROOT"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { printf 'wheel.sh: %s\n' "$*" >&2; }
if [ -z "${PYTHON:-}" ]; then
  python3 -m venv "$work/python"
  PYTHON=$work/python/bin/python
  "$PYTHON" -m pip install -q --disable-pip-version-check -r tests/support/requirements-packaging.txt
fi
# The times in the archive: those of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
machine=${MACHINE:-$(uname -m)}

defines=()
for option in FSDP_STATIC=ON FSDP_WITH_HDF5=ON FSDP_PYTHON=OFF "$@"; do
  defines+=("--config-settings=cmake.define.$option")
done
"$PYTHON" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$work/plain" "--config-settings=build-dir=$BUILD" --config-settings=wheel.py-api=py3 \
  "${defines[@]}" .

made=()
# tagged FOLDER REGEX TAGS...: tags the wheel in the folder, if auditwheel finds nothing in it that a machine of the platform could lack.
tagged() {
  local folder=$1 regex=$2
  shift 2
  "$PYTHON" -m wheel tags --remove --platform-tag "linux_$machine" "$folder"/*.whl >/dev/null   # scikit-build-core names the machine it runs on
  "$PYTHON" -m auditwheel show "$folder"/*.whl >"$work/audit" 2>&1 && grep -Eq "\"manylinux_2_($regex)_$machine" "$work/audit" ||
    { cat "$work/audit" >&2; exit 1; }
  "$PYTHON" -m wheel tags --remove "$@" "$folder"/*.whl >/dev/null
  made+=("$folder"/*.whl)
}

# native HEADERS MINOR: the native part for Python 3.MINOR, in a wheel with what the plain one has.
native() {
  local abi=cp3$2 folder=$work/$2 name
  [ "$2" -lt 12 ] || abi=abi3
  rm -rf "$BUILD"/tools/python/package
  { cmake -B "$BUILD" -USKBUILD_SOABI -USKBUILD_SOSABI -DFSDP_PYTHON=ON -DFSDP_PYTHON_INCLUDE="$1" -Dnanobind_ROOT="$("$PYTHON" -m nanobind --cmake_dir)" &&
    cmake --build "$BUILD" --target fsdp_python; } >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
  name=$(echo "$BUILD"/tools/python/package/fsdp_ckpt/_native*.so)
  # What is neither Python's nor of a version that the old C library has.
  if readelf --dyn-syms --wide "$name" | awk '$7 == "UND" && $5 == "GLOBAL" { print $8 }' | grep -Ev '^(_?Py\w+|\w+@GLIBC_[0-9.]+)$' >&2; then
    say "the native part refers to these, which a machine may lack: old_glibc.cpp has what glibc 2.28 lacks"
    exit 1
  fi
  "$PYTHON" -m wheel unpack -d "$folder" "$work"/plain/*.whl >/dev/null
  cp "$name" "$folder"/*/fsdp_ckpt
  sed -i 's/^Root-Is-Purelib: .*/Root-Is-Purelib: false/' "$folder"/*/*.dist-info/WHEEL
  "$PYTHON" - "$folder"/*/*.dist-info/licenses/THIRD_PARTY <<'EOF'
import importlib.metadata, os, sys, nanobind
path, = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    text = file.read()
table, rest = text.split("\n\nThe C library and nettle", 1)
table += f"\n  nanobind: BSD-3-Clause; its sources, of version {nanobind.__version__}\n  robin-map: MIT; with nanobind, of version {nanobind.__version__}"
texts = "The C library and nettle" + rest
rule = 80 * "="
for name, place in (("nanobind", importlib.metadata.distribution("nanobind").locate_file(f"nanobind-{nanobind.__version__}.dist-info/licenses/LICENSE")),
                    ("robin-map", os.path.join(os.path.dirname(nanobind.__file__), "ext/robin_map/include/tsl/robin_map.h"))):
    with open(place, encoding="utf-8") as file:
        licence = file.read() if name == "nanobind" else file.read().split("*/", 1)[0] + "*/\n"
    texts += f"\n{rule}\n{name}: {os.path.basename(place)}\n{rule}\n\n{licence}"
with open(path, "w", encoding="utf-8") as file:
    file.write(table + "\n\n" + texts)
EOF
  mkdir "$folder/packed"
  "$PYTHON" -m wheel pack -d "$folder/packed" "$folder"/fsdp_ckpt-* >/dev/null
  tagged "$folder/packed" '([5-9]|1[0-9]|2[0-8])' --python-tag "cp3$2" --abi-tag "$abi" --platform-tag "manylinux_2_28_$machine"
}

declare -A headers=()
# take FOLDER...: the folders with a Python.h.
take() {
  local folder minor
  for folder in "$@"; do
    minor=$(sed -n 's/^#define PY_VERSION  *"3\.\([0-9]*\)\..*/\1/p' "$folder/patchlevel.h" 2>/dev/null) || continue
    [ "${minor:-0}" -ge 9 ] || continue
    [ "$minor" -lt 12 ] || minor=12   # one for all of them
    headers[$minor]=$folder
  done
}
if [ -n "${HEADERS+set}" ]; then
  take $HEADERS
else
  [ "$machine" != "$(uname -m)" ] || take /usr/include/python3.* "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/include/python3.*
  if [ -z "${headers[12]:-}" ]; then
    case $machine in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 ;; *) architecture=$machine ;; esac
    tools/packaging/unpack_debs.sh "$BUILD-headers" "$architecture" trixie libpython3.13-dev >"$work/log" 2>&1 && take "$BUILD"-headers/usr/include/python3.13 ||
      { tail -n 5 "$work/log" >&2; say "no headers of Python 3.12 or later: no wheel has the native part for it; HEADERS names the folder of its Python.h"; }
  fi
fi
for minor in "${!headers[@]}"; do native "${headers[$minor]}" "$minor"; done
# A static program asks nothing of the C library: it runs where manylinux does, and on musl.
tagged "$work/plain" '(5|17)' --platform-tag "manylinux_2_17_$machine.manylinux2014_$machine.musllinux_1_1_$machine"
mkdir -p "$OUT"
mv "${made[@]}" "$OUT"
for wheel in "${made[@]}"; do echo "$OUT/${wheel##*/}"; done
