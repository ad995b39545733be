#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what tests/gpu/run.sh runs on a machine with a GPU, as one folder.  It needs no GPU here, and there nothing but Python with the
# same PyTorch: no network, no package manager, no compiler.
#
#   tests/gpu/bundle.sh [FOLDER]     default build/gpu-bundle; at most 60 MiB
#
#   FOLDER/bin          the programs, stripped.  They find LibTorch by LD_LIBRARY_PATH, which run.sh makes from FSDP_TORCH.
#   FOLDER/lib          libraries of Debian's packages that the programs need
#   FOLDER/tests        run.sh, the Python side and what they need: FOLDER/tests/gpu/run.sh --bundle FOLDER runs without this tree
#   FOLDER/bundle.json  what it was built from
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$ROOT/tests/support/provision.sh"
BUNDLE=$(realpath -m "${1:-$ROOT/build/gpu-bundle}")
cd "$ROOT"
MOST_MIB=60
PROGRAMS=(tests/libfsdp/tests_libfsdp_gpu tests/libfsdp/cuda/tests_libfsdp_cuda samples/train_gpt tests/bench/bench_train_step tools/fsdp-ckpt)

need_packages tool test torch
need_cmake
need_python
torch=$("$PYTHON" -c 'import torch; print(torch.__path__[0])')
BUILD=build/gpu
build() {
  configure release -B $BUILD -DFSDP_WITH_TORCH=ON -DFSDP_TORCH="$torch" -DFSDP_CUDA_PROGRAMS=ON -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
    -DCMAKE_INSTALL_RPATH='$ORIGIN/../lib' >/dev/null &&
    LD_LIBRARY_PATH=$(torch_folders) cmake --build $BUILD -j "$JOBS" --target "${PROGRAMS[@]##*/}"
}
# Of PyPI's wheel: its own libraries, and those of CUDA beside it.
torch_folders() {
  local folders=("$torch/lib" "$torch"/../nvidia/*/lib) IFS=:
  echo "${folders[*]}"
}

# Prints the libraries that the programs name, and that come neither with LibTorch nor with a C++ runtime.
carried() {
  local needed
  needed=$(readelf -d "${PROGRAMS[@]/#/$BUILD/}" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u |
    grep -Ev '^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)|ld-linux.*)\.so') || return
  LD_LIBRARY_PATH=$(torch_folders) ldd "${PROGRAMS[@]/#/$BUILD/}" | sed -n 's/^\t\([^ ]*\) => \(\/[^ ]*\) .*/\1 \2/p' | sort -u |
    while read -r name path; do
      case $path in "$torch"/*) continue ;; esac
      ! grep -qxF "$name" <<<"$needed" || echo "$path"
    done
}

pack() {
  local part=$BUNDLE.part size
  rm -rf "$part" && mkdir -p "$part/bin" "$part/lib" || return
  for program in "${PROGRAMS[@]}"; do strip -o "$part/bin/${program##*/}" "$BUILD/$program" || return; done
  for library in $(carried); do cp -L "$library" "$part/lib/" || return; done
  # The Python side; its folders are those of this tree.
  for file in tests/gpu/{run.sh,measure.py,results.py,steps.py,tool_steps.py,fsdp2.py,fill_table.py} \
    tests/bench/{train_step,make_folder,by_pytorch}.py tests/parity/{gpt_twin,models}.py tests/support/launch.py; do
    mkdir -p "$part/${file%/*}" && cp "$file" "$part/$file" || return
  done
  "$PYTHON" - "$part/bundle.json" "$(git describe --always --dirty 2>/dev/null || echo unknown)" <<'DESCRIBE' || return
import datetime, json, sys, torch
with open(sys.argv[1], "w") as f:
    json.dump({"commit": sys.argv[2], "torch": torch.__version__, "built": datetime.date.today().isoformat()}, f, indent=1)
DESCRIBE
  size=$(du -sm --apparent-size "$part" | cut -f 1)
  [ "$size" -le $MOST_MIB ] || { say "error: $part has $size MiB, and at most $MOST_MIB can be carried"; return 1; }
  rm -rf "$BUNDLE" && mv "$part" "$BUNDLE" && say "   $BUNDLE: $size MiB"
}

step "build" build
step "bundle" pack
