# SPDX-License-Identifier: Apache-2.0
# Sourced after provision.sh.
#
#   build_bench TARGET   builds a benchmark of libfsdp, as build/release-torch/tests/bench/TARGET.  Needs need_python.

build_bench() {
  configure release -B build/release-torch -DFSDP_WITH_TORCH=ON -DFSDP_TORCH="$("$PYTHON" -c 'import torch; print(torch.__path__[0])')" >/dev/null &&
    cmake --build build/release-torch -j "$JOBS" --target "$1"
}
