#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks how the sources are written.
#
#   tests/lint.sh format                           clang-format 14 over every C++ file
#   tests/lint.sh tidy [--all-checks] [FOLDER...]  clang-tidy 16 over FOLDERs of formats/, tools/ and libfsdp/;
#                                                  with --all-checks also Clang's analyzer, which doubles the time
#   tests/lint.sh tidy --update                    over all of them, and notes in tests/support/tidied.txt that they passed
#
# Without a FOLDER clang-tidy reads all of them; in the default tier, those that changed since they were noted.  It reads a
# folder as one file, as the build of the preset `ci` does.
# $FSDP_CACHE/tidy remembers what passed.
# Exit: 0 nothing to report, 1 findings, 2 could not run, 77 this distribution has no clang-tidy 16.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/tests/support/provision.sh"
cd "$ROOT"

# Another version formats differently.  A distribution that no longer has it leaves PyPI's package.
need_clang_format() {
  local dir=$FSDP_CACHE/clang-format-14.0.6
  CLANG_FORMAT=$(command -v clang-format-14) && return
  if offered clang-format-14; then
    need_packages format
    CLANG_FORMAT=clang-format-14
    return
  fi
  CLANG_FORMAT=$dir/bin/clang-format
  [ -x "$CLANG_FORMAT" ] || { "$(find_python3)" -m venv "$dir" && "$dir/bin/python" -m pip install -q clang-format==14.0.6; } ||
    die "clang-format 14 is not to be had here"
}

format() {
  need_clang_format
  find formats libfsdp samples tests tools -name '*.h' -o -name '*.cpp' | xargs -n 64 -P "$JOBS" "$CLANG_FORMAT" --dry-run -Werror || return 1
}

tidy() {
  if ! command -v clang-tidy-16 >/dev/null && ! offered clang-tidy-16; then
    say "clang-tidy 16 is not to be had here"
    exit 77
  fi
  local changed
  if [ -n "${FSDP_TEST_SAMPLE:-}" ] && [ $# = 0 ]; then
    changed=$(python3 tests/support/tidy.py --changed) || return 2
    [ -n "$changed" ] || { echo "clang-tidy: no folder changed"; return 0; }
    set -- $changed
  fi
  need_packages tool torch tidy
  need_cmake
  need_python
  configure torch -B build/tidy -DCMAKE_CXX_COMPILER=clang++-16 \
    -DFSDP_TORCH="$("$PYTHON" -c 'import torch; print(torch.__path__[0])')" >/dev/null
  "$PYTHON" tests/support/tidy.py --build build/tidy --tidy clang-tidy-16 --record "$FSDP_CACHE/tidy" --jobs "$JOBS" "$@"
}

case ${1:-} in
  format|tidy) "$@" ;;
  *) sed -n '5,8s/^# //p' "$0" >&2; exit 2 ;;
esac
